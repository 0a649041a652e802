//! Text for terminals.

use std::fmt::{self, Write};
use std::io::Write as _;

/// To standard output; a reader that has gone (`| head`) is no failure.
pub fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// A text of a client or server, for a terminal.
pub fn without_control(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Writing to a string does not fail.
    let _ = Escaped(&mut out).write_str(text);
    out
}

/// Writes control characters by their numbers, as Rust does, and with them those that begin lines or
/// turn the direction of text to some readers (Unicode's line and paragraph separators, bidirectional
/// controls).
#[derive(Debug)]
pub struct Escaped<'a, W>(pub &'a mut W);

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut from = 0;
        for (at, character) in text.char_indices().filter(|(_, one)| is_control(*one)) {
            self.0.write_str(&text[from..at])?;
            write!(self.0, "{}", character.escape_default())?;
            from = at + character.len_utf8();
        }
        self.0.write_str(&text[from..])
    }
}

/// Whether a character does something to a terminal, or to the direction of text, instead of showing.
pub fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
}
