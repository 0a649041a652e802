//! `hawser top`: what a running process does, live, in a terminal.
//!
//! # Model
//! Every interval the control socket is asked as by `hawser status`; rates are the difference of two
//! answers over the time between them. What is drawn is a function of these two ([`view`]), so that
//! tests need no terminal.
//!
//! # Invariants
//! * an answer that does not come is said on the screen; the figures before it stay, and the next
//!   answer is asked for
//! * names and errors of clients and servers move no cursor: control characters are written by
//!   their numbers

mod columns;
pub mod key;
mod queries;
mod view;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::status;
use key::{Key, key};
use view::Screen;

/// An answer, and when it came.
struct Sample {
    at: Instant,
    status: status::Status,
}

/// Shows the process that answers at `socket` until a key ends it.
///
/// # Errors
/// There is no answer at the start, or standard output is no terminal.
pub fn run(socket: &Path, interval: Duration) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        return Err(io::Error::other(
            "standard output is no terminal: hawser status prints the same once",
        ));
    }
    let mut now = Sample { status: status::ask(socket)?, at: Instant::now() };
    let mut screen = Screen::new(None, &now.status);
    let mut answered = now.at;
    let mut terminal = ratatui::try_init()?;
    let result = loop {
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            break Err(error);
        }
        let due = now.at + interval;
        match key(due) {
            Ok(Some(Key::Quit)) => break Ok(()),
            Ok(Some(Key::Letter(letter))) => screen.press(letter),
            Ok(Some(Key::Move(lines))) => screen.scroll(lines),
            Ok(Some(Key::Other)) => {}
            Ok(None) => match status::ask(socket) {
                Ok(status) => {
                    let next = Sample { status, at: Instant::now() };
                    let seconds = (next.at - now.at).as_secs_f64();
                    screen.show(Some((&now.status, seconds)), &next.status);
                    now = next;
                    answered = now.at;
                }
                Err(error) => {
                    now.at = Instant::now();
                    // The seconds change at each look: it is seen that it tries.
                    let seconds = (now.at - answered).as_secs();
                    let place = socket.display();
                    screen.complain(&format!("no answer for {seconds} s from {place}: {error}"));
                }
            },
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    result
}
