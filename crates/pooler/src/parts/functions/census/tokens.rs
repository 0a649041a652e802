//! The tokens of a text: words, names and strings, for those who need no more of it.
//!
//! # Limits  strings are read as with `standard_conforming_strings`; in E'' a quote after a
//!           backslash ends them.

use std::borrow::Cow;

use crate::parts::functions::variables::is_of_a_word;

/// A part of a text.
pub(crate) enum Token<'a> {
    Word(&'a [u8]),
    /// In double quotes.
    Name(&'a [u8]),
    Literal(Literal<'a>),
    Other(u8),
}

/// A string.
pub(crate) struct Literal<'a> {
    /// As written, between its quotes.
    pub(super) written: &'a [u8],
    /// It contains doubled quotes.
    doubled: bool,
}

impl<'a> Literal<'a> {
    /// The value, with doubled quotes undone. (Backslashes stay.)
    pub(crate) fn value(&self) -> Cow<'a, [u8]> {
        if !self.doubled || !self.written.contains(&b'\'') {
            return Cow::Borrowed(self.written);
        }
        let mut value = Vec::with_capacity(self.written.len());
        let mut bytes = self.written.iter();
        while let Some(&byte) = bytes.next() {
            value.push(byte);
            if byte == b'\'' {
                bytes.next();
            }
        }
        Cow::Owned(value)
    }
}

/// The tokens of a text, without spaces and comments.
pub(crate) struct Tokens<'a>(pub(crate) &'a [u8]);

impl<'a> Tokens<'a> {
    /// The bytes before `end`, which are taken with it.
    fn until(&mut self, end: &[u8]) -> &'a [u8] {
        let at = memchr::memmem::find(self.0, end).unwrap_or(self.0.len());
        let before = &self.0[..at];
        self.0 = self.0.get(at + end.len()..).unwrap_or_default();
        before
    }

    fn dollar_quoted(&mut self) -> Option<&'a [u8]> {
        let tag = self.0.iter().skip(1).position(|byte| *byte == b'$')? + 2;
        let quote = &self.0[..tag];
        if !quote[1..tag - 1].iter().all(|byte| is_of_a_word(*byte)) {
            return None;
        }
        self.0 = &self.0[tag..];
        Some(self.until(quote))
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            self.0 = self.0.trim_ascii_start();
            let (&first, rest) = self.0.split_first()?;
            match first {
                b'-' if rest.first() == Some(&b'-') => drop(self.until(b"\n")),
                b'/' if rest.first() == Some(&b'*') => drop(self.until(b"*/")),
                b'\'' => {
                    let mut end = 0;
                    while end < rest.len()
                        && (rest[end] != b'\'' || rest.get(end + 1) == Some(&b'\''))
                    {
                        end += if rest[end] == b'\'' { 2 } else { 1 };
                    }
                    self.0 = rest.get(end + 1..).unwrap_or_default();
                    let written = &rest[..end.min(rest.len())];
                    return Some(Token::Literal(Literal { written, doubled: true }));
                }
                b'"' => {
                    self.0 = rest;
                    return Some(Token::Name(self.until(b"\"")));
                }
                b'$' if let Some(written) = self.dollar_quoted() => {
                    return Some(Token::Literal(Literal { written, doubled: false }));
                }
                _ if is_of_a_word(first) => {
                    let end = self.0.iter().position(|byte| !is_of_a_word(*byte));
                    let (word, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
                    self.0 = rest;
                    return Some(Token::Word(word));
                }
                _ => {
                    self.0 = rest;
                    return Some(Token::Other(first));
                }
            }
        }
    }
}
