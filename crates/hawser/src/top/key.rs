//! Keys, as all live views take them.

use std::io;
use std::time::Instant;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

/// What a key asks for.
pub enum Key {
    /// The end.
    Quit,
    /// So many lines down.
    Move(isize),
    /// What the view has for this letter.
    Letter(char),
    /// Nothing: the view is drawn again.
    Other,
}

/// The next key, or `None` at `due`.
///
/// # Errors
/// The terminal's.
pub fn key(due: Instant) -> io::Result<Option<Key>> {
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
        KeyCode::Down | KeyCode::Char('j') => Key::Move(1),
        KeyCode::Up | KeyCode::Char('k') => Key::Move(-1),
        KeyCode::PageDown => Key::Move(10),
        KeyCode::PageUp => Key::Move(-10),
        KeyCode::Char(letter) => Key::Letter(letter),
        _ => Key::Other,
    }))
}
