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

mod view;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::status;
use view::{Screen, Sort};

/// An answer, and when it came.
struct Sample {
    at: Instant,
    status: status::Status,
}

/// Shows the process behind `socket` until a key ends it.
///
/// # Errors
/// Nobody answers at the start, or standard output is no terminal.
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
            Ok(Some(Key::Sort(sort))) => screen.sort_by(sort),
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

enum Key {
    Quit,
    Sort(Sort),
    Move(isize),
    Other,
}

/// The next key, or `None` at `due`.
fn key(due: Instant) -> io::Result<Option<Key>> {
    if !event::poll(due.saturating_duration_since(Instant::now()))? {
        return Ok(None);
    }
    let Event::Key(key) = event::read()? else { return Ok(Some(Key::Other)) };
    if key.kind != KeyEventKind::Press {
        return Ok(Some(Key::Other));
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Ok(Some(match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char('c') if control => Key::Quit,
        KeyCode::Char('w') => Key::Sort(Sort::Waiting),
        KeyCode::Char('c') => Key::Sort(Sort::Clients),
        KeyCode::Char('t') => Key::Sort(Sort::Transactions),
        KeyCode::Char('p') => Key::Sort(Sort::Pins),
        KeyCode::Char('n') => Key::Sort(Sort::Name),
        KeyCode::Down | KeyCode::Char('j') => Key::Move(1),
        KeyCode::Up | KeyCode::Char('k') => Key::Move(-1),
        KeyCode::PageDown => Key::Move(10),
        KeyCode::PageUp => Key::Move(-10),
        _ => Key::Other,
    }))
}
