//! Words in a text's strings that mean the moment at which the server reads them.
//!
//! The input functions of dates and times take `now`, `today`, `tomorrow` and `yesterday`
//! (`datetktbl`, datetime.c), also within arrays and ranges. Parse analysis makes a constant of such a string:
//! a statement has the moment of its Parse.
//!
//! # Limits  strings count whatever their types are, even 'Buy now'. An escape that may stand for a
//!           letter (`E'\x6eow'`) counts as such a word. A word that continues in the next line's
//!           string is not found.

use super::token::{Lexer, Sink};

const WORDS: [&[u8]; 4] = [b"now", b"today", b"tomorrow", b"yesterday"];
const LONGEST: usize = 9;

fn is_one(word: &[u8]) -> bool {
    WORDS.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Whether a string in this text may stand for the moment at which it is read.
pub(crate) fn names_moment(text: &[u8]) -> bool {
    if memchr::memchr2(b'\'', b'$', text).is_none() {
        return false;
    }
    let escapes = memchr::memchr(b'\\', text).is_some();
    let mut words = text.split(|byte| !byte.is_ascii_alphabetic());
    // A setting decides how a backslash is read: both ways count.
    (escapes || words.any(is_one))
        && (is_in_string(text, true) || (escapes && is_in_string(text, false)))
}

fn is_in_string(text: &[u8], conforming: bool) -> bool {
    let mut finder = Finder::default();
    let mut lexer = Lexer::new(conforming);
    lexer.feed(text, &mut finder);
    lexer.finish(&mut finder);
    finder.found
}

#[derive(Default)]
struct Finder {
    /// The letters read so far, if they may be a word.
    word: [u8; LONGEST],
    /// How many letters there are, also beyond `LONGEST`.
    length: usize,
    /// What comes next stands after a backslash.
    escaped: bool,
    found: bool,
}

impl Finder {
    fn end_word(&mut self) {
        let length = std::mem::take(&mut self.length);
        self.found |= self.word.get(..length).is_some_and(is_one);
    }
}

impl Sink for Finder {
    fn word(&mut self, _: &[u8], _: usize) {}

    fn quoted(&mut self, _: &[u8], _: usize) {}

    fn string(&mut self, _: usize, _: bool) {}

    fn content(&mut self, piece: &[u8]) {
        let mut piece = piece;
        if std::mem::take(&mut self.escaped)
            && let Some((first, rest)) = piece.split_first()
        {
            self.end_word();
            // Any other may spell a letter.
            self.found |= !b"bfnrt\\'\"".contains(first);
            piece = rest;
        }
        for &byte in piece {
            if !byte.is_ascii_alphabetic() {
                self.end_word();
                continue;
            }
            if let Some(place) = self.word.get_mut(self.length) {
                *place = byte;
            }
            self.length = (self.length + 1).min(LONGEST + 1);
        }
    }

    fn escape(&mut self) {
        self.escaped = true;
    }

    fn string_end(&mut self) {
        self.end_word();
    }

    fn symbol(&mut self, _: u8, _: usize) {}

    fn semicolon(&mut self, _: usize) {}

    fn unsure(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_moment_are_found_in_strings_alone() {
        for text in [
            "insert into t values ('now')",
            "select 'TODAY'::date",
            "select E'tomorrow\\n'",
            "select E'\\tnow'",
            "select E'n\\x6fw'",
            "select $$yesterday$$::date",
            "select $a$ Now $a$",
            "select '{now,2024-01-01}'::timestamptz[]",
            "select '[2024-01-01,today)'::daterange",
            "select 'now()'",
            "select 'today12:00'",
            "select 'it''s', 'now'",
            "select 'a\\', 'now'",
        ] {
            assert!(names_moment(text.as_bytes()), "{text}");
        }
        for text in [
            "select now()",
            "select * from t where at > now() - interval '1 day'",
            "select 'known', 'nowhere', 'todays'",
            "select today from t where a = 'b' and b = $1",
            "select 'a', 'b' /* 'now' */ -- 'now'",
            "select \"now\", 'a\\b'",
        ] {
            assert!(!names_moment(text.as_bytes()), "{text}");
        }
    }
}
