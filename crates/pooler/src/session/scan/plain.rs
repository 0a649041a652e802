//! A quick check that a text does nothing to the session, for the texts that clients send most.
//!
//! # Model   one pass over the bytes, with no state but the place in the text. Words are looked up
//!           in the same table as the scan's, also those in double quotes, though there they are names
//!           and mean less. Anything that is not plain (comments, names with characters that words
//!           do not have, escapes, dollar quotes, bytes beyond ASCII, any word that means something
//!           to the scan) ends it, and the scan decides.
//! # Invariant  what is plain here has no effects by the scan's findings; a test compares them.
//! # Why    the scan costs some 1,800 instructions for a short statement, this a third; of what
//!           applications send, all but a few in a thousand is plain.

use super::keyword::{self, Word};
use memchr::memchr;

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Class {
    Word,
    Digit,
    /// Means nothing to the scan.
    Nothing,
    Quote,
    DoubleQuote,
    Semicolon,
    /// Begins a comment if it is doubled or an asterisk follows.
    Dash,
    Slash,
    Dollar,
    /// Not plain.
    Other,
}

const CLASS: [Class; 256] = {
    let mut class = [Class::Other; 256];
    let mut byte = 0;
    while byte < 256 {
        class[byte] = match byte as u8 {
            b' ' | b'\t' | b'\n' | b'\r' | b'(' | b')' | b',' | b'.' | b'=' | b'<' | b'>'
            | b'*' | b'+' | b'%' | b'^' | b'|' | b'~' | b'!' | b'?' | b':' | b'[' | b']' | b'@'
            | b'#' => Class::Nothing,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => Class::Word,
            b'0'..=b'9' => Class::Digit,
            b'\'' => Class::Quote,
            b'"' => Class::DoubleQuote,
            b';' => Class::Semicolon,
            b'-' => Class::Dash,
            b'/' => Class::Slash,
            b'$' => Class::Dollar,
            _ => Class::Other,
        };
        byte += 1;
    }
    class
};

/// Whether a byte continues a word. (One with a dollar sign in it is not plain.)
#[inline]
fn goes_on(byte: u8) -> bool {
    CLASS[usize::from(byte)] as u8 <= Class::Digit as u8
}

/// Where to begin to read.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// At the start.
    Text,
    /// After this many bytes, which are plain, end between two words, and leave a statement open.
    Within(usize),
}

/// What is seen of a text.
pub(super) struct Seen {
    /// See [`is_plain`].
    pub(super) plain: bool,
    /// The bytes before its first number or string, if they read the same whatever follows, and
    /// leave a statement open. `None`: there is no such place.
    pub(super) constant: Option<usize>,
}

/// Whether a text certainly does nothing to the session that the scan would find: `false` says
/// nothing. For strings with `standard_conforming_strings` on, in an encoding that is ASCII below
/// 0x80.
pub fn is_plain(text: &[u8]) -> bool {
    look(text, Start::Text).plain
}

/// Looks at a text, or at what of it has not been looked at.
pub(super) fn look(text: &[u8], start: Start) -> Seen {
    let (mut i, mut first) = match start {
        Start::Text => (0, true), // the next word begins a statement
        Start::Within(from) => (from, false),
    };
    let mut inserts = false; // INTO says where, and makes no table
    let mut commits = false; // with a string after it, a transaction that was prepared
    let mut alone = false; // nothing but a semicolon may follow in this statement
    let mut literal = false; // a number or string has been read
    let mut constant = None;
    let other = Seen { plain: false, constant: None };
    while i < text.len() {
        let class = CLASS[usize::from(text[i])];
        if class == Class::Nothing {
            i += 1;
            continue;
        }
        if class == Class::Word {
            let from = i;
            i += 1 + text[i + 1..].iter().take_while(|byte| goes_on(**byte)).count();
            // A string's prefix, or a name with a dollar sign in it.
            if alone || (i < text.len() && matches!(text[i], b'\'' | b'$' | b'&' | b'"')) {
                return other;
            }
            let word = &text[from..i];
            if first {
                first = false;
                (inserts, commits) = (false, false);
                match first_word(word) {
                    First::Plain => {}
                    First::Insert => inserts = true,
                    First::Commit => commits = true,
                    First::Alone => alone = true,
                    First::Other => return other,
                }
            } else if let Some(row) = keyword::lookup(word)
                && !(means_nothing_inside(row.word) || (row.word == Word::Into && inserts))
            {
                return other;
            }
            continue;
        }
        if !literal && matches!(class, Class::Digit | Class::Quote) {
            literal = true;
            // A reader that begins there does not know whether a COMMIT precedes it.
            if !first && !alone && !commits {
                constant = end_between_words(&text[..i]);
            }
        }
        match class {
            Class::Digit => match after_number(text, i) {
                Some(after) => i = after,
                None => return other,
            },
            Class::Quote if commits => return other,
            Class::Quote => match memchr(b'\'', &text[i + 1..]) {
                Some(length) => i += length + 2, // a doubled quote is a string that follows at once
                None => return other,
            },
            // No statement begins with a name.
            Class::DoubleQuote if first || alone => return other,
            Class::DoubleQuote => match after_name(text, i) {
                Some(after) => i = after,
                None => return other,
            },
            Class::Semicolon => (first, alone, i) = (true, false, i + 1),
            Class::Dash if text.get(i + 1) != Some(&b'-') => i += 1,
            Class::Slash if text.get(i + 1) != Some(&b'*') => i += 1,
            // A parameter, which is no literal.
            Class::Dollar if text.get(i + 1).is_some_and(u8::is_ascii_digit) => {
                match after_number(text, i + 1) {
                    Some(after) => i = after,
                    None => return other,
                }
            }
            _ => return other,
        }
    }
    Seen { plain: true, constant }
}

/// The index after the name in double quotes at `i`. `None` if it is not a word that means nothing to the
/// scan: a function may be called by it.
#[inline]
fn after_name(text: &[u8], i: usize) -> Option<usize> {
    let length = text[i + 1..].iter().position(|byte| !goes_on(*byte))?;
    let end = i + 1 + length;
    let is_word = length > 0 && text[end] == b'"' && text.get(end + 1) != Some(&b'"');
    let row = keyword::lookup(&text[i + 1..end]);
    (is_word && row.is_none_or(|row| means_nothing_inside(row.word))).then_some(end + 1)
}

/// The index after the number at `i`. `None` for `1e5`, `0x1F` and what older servers read as two
/// tokens.
#[inline]
fn after_number(text: &[u8], mut i: usize) -> Option<usize> {
    while i < text.len() && text[i].is_ascii_digit() {
        i += 1;
    }
    let ends = i >= text.len() || CLASS[usize::from(text[i])] != Class::Word;
    ends.then_some(i)
}

/// The number of bytes before a number or string, without its sign, if they read the same whatever
/// follows: the last of them means nothing by itself or with others.
fn end_between_words(before: &[u8]) -> Option<usize> {
    let before = before.strip_suffix(b"-").unwrap_or(before);
    let last = before.last()?;
    (CLASS[usize::from(*last)] == Class::Nothing).then_some(before.len())
}

/// What the first word of a statement says.
enum First {
    Plain,
    Insert,
    Commit,
    /// Nothing but a semicolon may follow in this statement.
    Alone,
    Other,
}

#[inline]
fn first_word(word: &[u8]) -> First {
    // The most frequent words, without a look at the table.
    if let (6, Some(start), Some(end)) =
        (word.len(), lower(word.first_chunk()), lower(word.last_chunk()))
        && matches!(
            (&start, &end),
            (b"sele", b"lect") | (b"inse", b"sert") | (b"upda", b"date") | (b"dele", b"lete")
        )
    {
        return if &start == b"inse" { First::Insert } else { First::Plain };
    }
    match keyword::lookup(word).map_or(Word::None, |row| row.word) {
        Word::Select | Word::Rows | Word::Update | Word::Delete | Word::With | Word::Begin => {
            First::Plain
        }
        Word::Insert => First::Insert,
        Word::Commit | Word::End => First::Commit,
        Word::Rollback | Word::Abort => First::Alone,
        _ => First::Other,
    }
}

/// Four bytes of a word, in lower case.
#[inline]
fn lower(bytes: Option<&[u8; 4]>) -> Option<[u8; 4]> {
    bytes.map(|bytes| (u32::from_ne_bytes(*bytes) | 0x2020_2020).to_ne_bytes())
}

/// Whether a word that does not begin a statement of these kinds means nothing to the scan.
#[inline]
fn means_nothing_inside(word: Word) -> bool {
    matches!(
        word,
        Word::None
            | Word::As
            | Word::Case
            | Word::Default
            | Word::Delete
            | Word::End
            | Word::For
            | Word::Insert
            | Word::Rows
            | Word::Select
            | Word::Set
            | Word::True
            | Word::Update
            | Word::Using
            | Word::With
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::effects::Effects;
    use crate::session::scan::{ScanOptions, scan};

    #[test]
    fn what_applications_send_most_is_plain() {
        for text in [
            "SELECT abalance FROM pgbench_accounts WHERE aid = 4711;",
            "UPDATE pgbench_tellers SET tbalance = tbalance + -5 WHERE tid = 1;",
            "INSERT INTO h (tid, mtime) VALUES ($1, CURRENT_TIMESTAMP);",
            "BEGIN; DELETE FROM t WHERE name = 'it''s'; COMMIT",
            "select a.b::text, case when x then 1.5 else .5 end from t as a using (b) for update",
            "SELECT \"t\".\"id\", \"t\".\"Name\" FROM \"public\".\"table_1\" AS \"t\" WHERE \"t\".\"id\" = $1",
            "BEGIN",
            "END;",
            "ROLLBACK;",
            " ",
        ] {
            assert!(is_plain(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn what_needs_a_second_look_is_not() {
        for text in [
            "SET x TO 1",
            "SELECT 1; RESET ALL",
            "SELECT set_config('a.b', 'c', false)",
            "SELECT * INTO TEMP t FROM u",
            "SELECT \"set_config\"('a', 'b', false)",
            "SELECT \"a\"\"b\"",
            "SELECT \"a b\"",
            "SELECT \"\"",
            "SELECT \"a",
            "SELECT * FROM \"pg_prepared_statements\"",
            "\"select\" 1",
            "ROLLBACK \"a\"",
            "SELECT E'\\''; SET x TO 1 --'",
            "SELECT 'open",
            "SELECT $$a$$",
            "SELECT a$1",
            "SELECT 1 -- SET",
            "SELECT 1 /* SET */",
            "SELECT 1into temp t",
            "ROLLBACK TO a",
            "SELECT u&'\\0041'",
            "SELECT '\u{e9}' \u{e9}",
            "EXPLAIN ANALYZE EXECUTE p",
            "SELECT a INTO t FROM u",
            "WITH a AS (SELECT 1) SELECT * INTO t FROM a",
            "COMMIT PREPARED 'x'",
        ] {
            assert!(!is_plain(text.as_bytes()), "{text}");
        }
    }

    /// Elements of texts, beside keywords.
    #[rustfmt::skip]
    const PIECES: &[&[u8]] = &[
        b" ", b" ", b" ", b" ", b"\n", b"\t", b";", b"; ", b"(", b")", b",", b".", b"=", b"*", b"/",
        b"-", b"--", b"/*", b"*/", b"'", b"''", b"'x'", b"\"", b"\"x\"", b"\"x\"", b"\"X1_\"",
        b"\"x y\"", b"\"pg_temp\"", b"\\", b"$", b"$$", b"$1", b"$a$", b"a$b", b"e", b"E'", b"b'",
        b"x'", b"n'", b"u&'", b"U&\"", b"&", b"1", b"1.5", b"1e5", b"1e", b"0x1f", b"1_0", b"_",
        b"a", b"t", b"\xc3\xa9", b"\x0b", b"\x0c", b"{", b"`", b"pg_temp", b"PG_TEMP_3", b"to",
        b"from", b"local", b"session", b"SELECT 1", b"BEGIN; ", b"COMMIT; ", b"UPDATE t SET a = 1",
        b"INSERT INTO t ",
    ];

    /// Random texts of meaningful words and separators.
    #[test]
    fn what_is_plain_has_no_effects() {
        let quoted = |word: &[u8]| &*[b"\"", word, b"\""].concat().leak();
        let pieces: Vec<&[u8]> = keyword::all()
            .chain(keyword::all().map(quoted))
            .chain(PIECES.iter().copied())
            .collect();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        };
        let mut plain = 0;
        for _ in 0..200_000 {
            let mut text = Vec::new();
            // Half of them begin like what is plain.
            if random(2) == 0 {
                text.extend_from_slice(
                    [&b"SELECT "[..], b"BEGIN;", b"WITH ", b"INSERT INTO "][random(4)],
                );
            }
            for _ in 0..random(7) {
                text.extend_from_slice(pieces[random(pieces.len())]);
                if random(2) == 0 {
                    text.push(b' ');
                }
            }
            if is_plain(&text) {
                plain += 1;
                let effects = Effects::of(&scan(&text, ScanOptions::default()), |_| false);
                assert!(effects.is_none(), "{}: {effects:?}", text.escape_ascii());
            }
        }
        assert!(plain > 10_000, "{plain} texts of the 200,000 are plain: the test says little");
    }
}
