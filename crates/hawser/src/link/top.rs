//! `hawser link top`: what a running link does, live, in a terminal.
//!
//! # Model
//! Every interval the link's socket is asked as by `hawser link status`, and the same lines are drawn
//! ([`Report::lines`]), in colours. Rates are the link's own, so that no two answers need be compared.
//!
//! # Invariants
//! * an answer that does not come is said on the screen; what was there stays, and the next one is asked for

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use hawser_link::drive::report::{self, Kind, Report};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::logging::without_control;
use crate::top::key::{Key, key};

const KEYS: &str = "q quit   up/down scroll";

/// All that is on the screen.
struct Screen {
    lines: Vec<(Kind, String)>,
    first: usize,
    trouble: Option<String>,
}

impl Screen {
    fn new(report: &Report) -> Self {
        Self { lines: report.lines(usize::MAX), first: 0, trouble: None }
    }

    fn show(&mut self, report: &Report) {
        self.lines = report.lines(usize::MAX);
        self.trouble = None;
        self.scroll(0);
    }

    /// There was no answer.
    fn complain(&mut self, trouble: &str) {
        self.trouble = Some(without_control(trouble));
    }

    fn scroll(&mut self, lines: isize) {
        let last = self.lines.len().saturating_sub(1);
        self.first = self.first.saturating_add_signed(lines).min(last);
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let [body, foot] =
            Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
        let line = |(kind, text): &(Kind, String)| Line::styled(text.clone(), style(*kind));
        let lines: Vec<_> = self.lines.iter().skip(self.first).map(line).collect();
        frame.render_widget(Paragraph::new(lines), body);
        let foot_line = match &self.trouble {
            Some(trouble) => Line::styled(trouble.clone(), style(Kind::Wrong)),
            None => Line::styled(KEYS, style(Kind::Past)),
        };
        frame.render_widget(Paragraph::new(foot_line), foot);
    }
}

fn style(kind: Kind) -> Style {
    match kind {
        Kind::Head => Style::new().add_modifier(Modifier::BOLD),
        Kind::Fine => Style::new(),
        Kind::Past => Style::new().add_modifier(Modifier::DIM),
        Kind::Wrong => Style::new().fg(Color::Red),
    }
}

/// Shows the link of `socket` until a key ends it.
///
/// # Errors
/// No link answers at the start, or standard output is no terminal.
pub fn run(socket: &Path, interval: Duration) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        let message = "standard output is no terminal: hawser link status prints the same once";
        return Err(io::Error::other(message));
    }
    let mut screen = Screen::new(&report::ask(socket)?);
    let mut answered = Instant::now();
    let mut terminal = ratatui::try_init()?;
    let mut due = answered + interval;
    let result = loop {
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            break Err(error);
        }
        match key(due) {
            Ok(Some(Key::Quit)) => break Ok(()),
            Ok(Some(Key::Move(lines))) => screen.scroll(lines),
            Ok(Some(Key::Letter(_) | Key::Other)) => {}
            Ok(None) => {
                match report::ask(socket) {
                    Ok(report) => {
                        answered = Instant::now();
                        screen.show(&report);
                    }
                    Err(error) => {
                        let seconds = answered.elapsed().as_secs();
                        let place = socket.display();
                        screen
                            .complain(&format!("no answer for {seconds} s from {place}: {error}"));
                    }
                }
                due = Instant::now() + interval;
            }
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    result
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use hawser_link::drive::report::example::busy;

    fn drawn(screen: &Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn it_draws_scrolls_and_complains() {
        let report = busy();
        let mut screen = Screen::new(&report);
        let lines = drawn(&screen, 120, 20);
        assert!(lines[0].starts_with("link main, for 90 s"), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("10.0.0.1 and 10.0.0.2:6433")), "{lines:#?}");
        assert_eq!(lines[19], KEYS);
        screen.scroll(1);
        assert!(drawn(&screen, 120, 20)[0].starts_with("session "));
        screen.scroll(1000);
        screen.complain("no answer\x1b[1m");
        let lines = drawn(&screen, 40, 3);
        assert!(lines[2].starts_with("no answer") && !lines.concat().contains(char::is_control));
        screen.show(&Report { sessions: Vec::new(), ..report });
        assert_eq!(drawn(&screen, 60, 3)[0], "no session: no near end is here");
    }
}
