//! What is wrong with a configuration, and where.
//!
//! All errors of a file are collected before any is reported, so that a user gets one list, not one
//! error a run. A message never holds the value of a password.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A place in a configuration file: line and column, both from 1, the column in characters.
///
/// Line 0 is "no place": the value came from the command line or the admin console.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Position {
    /// From 1; 0 is no place.
    pub line: usize,
    /// From 1, in characters; 0 is no place.
    pub column: usize,
}

/// The lines of a text, to find the place of a byte without counting from the start each time: a
/// file may have thousands of databases.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
        Self { text, starts }
    }

    /// The place of byte `offset`; an offset past the end is the end.
    pub(super) fn position(&self, offset: usize) -> Position {
        let mut end = offset.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        // `starts` begins with 0, so at least one start is at or before any offset.
        let line = self.starts.partition_point(|start| *start <= end);
        let column = self.text[self.starts[line - 1]..end].chars().count() + 1;
        Position { line, column }
    }
}

/// One thing that is wrong, with its place: `hawser.toml:12:8: ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, or `--server` and the like where there is none.
    pub file: PathBuf,
    /// From 1; 0 where there is no file.
    pub line: usize,
    /// From 1, in characters; 0 where there is no file.
    pub column: usize,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl ConfigError {
    pub(super) fn new(file: &Path, position: Position, message: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line: position.line,
            column: position.column,
            message: message.into(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file.display(), self.message),
            line => {
                write!(f, "{}:{line}:{}: {}", self.file.display(), self.column, self.message)
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// All that is wrong with one configuration, in the order of the file; never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// # Panics
    /// If `errors` is empty: a failure without a reason is a mistake of the caller.
    pub(super) fn new(mut errors: Vec<ConfigError>) -> Self {
        assert!(!errors.is_empty(), "a configuration was refused without a reason");
        errors.sort_by_key(|error| (error.line, error.column));
        errors.dedup();
        Self(errors)
    }

    pub(super) fn single(error: ConfigError) -> Self {
        Self(vec![error])
    }

    /// The errors, in the order of the file.
    #[must_use]
    pub fn as_slice(&self) -> &[ConfigError] {
        &self.0
    }
}

/// Why one value was refused: the message, and the part of the text if it is narrower than the
/// whole value (an item of a list). The errors of a list's items.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{message}{}", also.iter().map(|also| format!("; {}", also.message)).collect::<String>())]
pub struct Rejected {
    pub(super) message: String,
    pub(super) at: Option<Range<usize>>,
    also: Vec<Rejected>,
}

impl Rejected {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), at: None, also: Vec::new() }
    }

    /// It, and what else is wrong.
    pub(super) fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.also)
    }

    pub(super) fn at(mut self, at: Option<Range<usize>>) -> Self {
        self.at = self.at.or(at);
        self
    }
}

/// What is wrong with the items of a list.
#[derive(Debug, Default)]
pub(super) struct Refusals(Vec<Rejected>);

impl Refusals {
    pub(super) fn add(&mut self, rejected: Rejected) {
        self.0.push(rejected);
    }

    /// The value of an item, unless that is refused.
    pub(super) fn keep<T>(
        &mut self,
        item: Result<T, impl Into<String>>,
        at: &Option<Range<usize>>,
    ) -> Option<T> {
        item.map_err(|error| self.add(Rejected::new(error).at(at.clone()))).ok()
    }

    /// The list, if nothing is wrong with it.
    pub(super) fn or<T>(self, list: T) -> Result<T, Rejected> {
        let mut all = self.0.into_iter();
        match all.next() {
            Some(first) => Err(Rejected { also: all.collect(), ..first }),
            None => Ok(list),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_counts_characters_not_bytes() {
        let text = "a = 1\nnäme = 2";
        let offset = text.find('2').unwrap();
        let lines = Lines::new(text);
        assert_eq!(lines.position(offset), Position { line: 2, column: 8 });
        assert_eq!(lines.position(10_000), Position { line: 2, column: 9 });
        assert_eq!(lines.position(6), Position { line: 2, column: 1 });
        assert_eq!(Lines::new("ä").position(1), Position { line: 1, column: 1 });
        assert_eq!(Lines::new("").position(0), Position { line: 1, column: 1 });
    }
}
