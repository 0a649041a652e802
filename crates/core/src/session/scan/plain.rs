//! Tells at a glance that a text does nothing to the session, for the texts that clients send most.
//!
//! # Model   one pass over the bytes, with no state but the place in the text. Words are looked up
//!           in the same table as the scan's. Whatever is not plain (comments, names in quotes,
//!           escapes, dollar quotes, bytes beyond ASCII, any word that means something to the scan)
//!           ends it, and the scan decides.
//! # Invariant  what is plain here has no effects by the scan's findings; a test compares them.
//! # Why    the scan costs some 1,800 instructions for a short statement, this 300; of what
//!           applications send, all but a few in a thousand is plain.

use super::keyword::{self, Word};
use memchr::memchr;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Means nothing to the scan.
    Nothing,
    Word,
    Digit,
    Quote,
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

/// Bytes from `from` on that go on a word (without a dollar sign) or a number.
#[inline]
fn run(text: &[u8], from: usize, goes_on: impl Fn(Class) -> bool) -> usize {
    text[from..].iter().take_while(|&&byte| goes_on(CLASS[usize::from(byte)])).count()
}

/// Whether a text certainly does nothing to the session that the scan would find: `false` says
/// nothing. For strings with `standard_conforming_strings` on, in an encoding that is ASCII below
/// 0x80.
pub fn is_plain(text: &[u8]) -> bool {
    let mut i = 0;
    let mut first = true; // the next word begins a statement
    let mut alone = false; // nothing but a semicolon may follow in this statement
    while let Some(&byte) = text.get(i) {
        let class = CLASS[usize::from(byte)];
        let next = || text.get(i + 1).map_or(Class::Nothing, |&byte| CLASS[usize::from(byte)]);
        match class {
            Class::Nothing => i += 1,
            Class::Word => {
                let length = run(text, i, |class| matches!(class, Class::Word | Class::Digit));
                let word = &text[i..i + length];
                i += length;
                // A string's prefix, or a name with a dollar sign in it.
                if matches!(text.get(i), Some(b'\'' | b'$' | b'&' | b'"')) || alone {
                    return false;
                }
                let word = keyword::lookup(word).map_or(Word::None, |keyword| keyword.word);
                if std::mem::take(&mut first) {
                    match word {
                        Word::Select
                        | Word::Rows
                        | Word::Insert
                        | Word::Update
                        | Word::Delete
                        | Word::With
                        | Word::Begin
                        | Word::Commit
                        | Word::End => {}
                        Word::Rollback | Word::Abort => alone = true,
                        _ => return false,
                    }
                } else if !means_nothing_inside(word) {
                    return false;
                }
            }
            Class::Digit => {
                i += run(text, i, |class| class == Class::Digit);
                // `1e5`, `0x1F` and what older servers read as two tokens
                if text.get(i).is_some_and(|&byte| CLASS[usize::from(byte)] == Class::Word) {
                    return false;
                }
            }
            Class::Quote => match memchr(b'\'', &text[i + 1..]) {
                Some(length) => i += length + 2, // a doubled quote is a string right behind
                None => return false,
            },
            Class::Semicolon => {
                first = true;
                alone = false;
                i += 1;
            }
            Class::Dash if next() != Class::Dash => i += 1,
            Class::Slash if text.get(i + 1) != Some(&b'*') => i += 1,
            Class::Dollar if next() == Class::Digit => i += 1, // a parameter: the number follows
            _ => return false,
        }
    }
    true
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
            | Word::Into
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
    use crate::engine::effects::Effects;
    use crate::session::scan::{ScanOptions, scan};

    #[test]
    fn what_applications_send_most_is_plain() {
        for text in [
            "SELECT abalance FROM pgbench_accounts WHERE aid = 4711;",
            "UPDATE pgbench_tellers SET tbalance = tbalance + -5 WHERE tid = 1;",
            "INSERT INTO h (tid, mtime) VALUES ($1, CURRENT_TIMESTAMP);",
            "BEGIN; DELETE FROM t WHERE name = 'it''s'; COMMIT",
            "select a.b::text, case when x then 1.5 else .5 end from t as a using (b) for update",
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
        ] {
            assert!(!is_plain(text.as_bytes()), "{text}");
        }
    }

    /// Texts put together at random, of what means something and what joins it.
    #[test]
    fn what_is_plain_has_no_effects() {
        let pieces: Vec<&[u8]> = keyword::all()
            .chain([
                &b" "[..],
                b" ",
                b" ",
                b" ",
                b"\n",
                b"\t",
                b";",
                b"; ",
                b"(",
                b")",
                b",",
                b".",
                b"=",
                b"*",
                b"/",
                b"-",
                b"--",
                b"/*",
                b"*/",
                b"'",
                b"''",
                b"'x'",
                b"\"",
                b"\"x\"",
                b"\\",
                b"$",
                b"$$",
                b"$1",
                b"$a$",
                b"a$b",
                b"e",
                b"E'",
                b"b'",
                b"x'",
                b"n'",
                b"u&'",
                b"U&\"",
                b"&",
                b"1",
                b"1.5",
                b"1e5",
                b"1e",
                b"0x1f",
                b"1_0",
                b"_",
                b"a",
                b"t",
                b"\xc3\xa9",
                b"\x0b",
                b"\x0c",
                b"{",
                b"`",
                b"pg_temp",
                b"PG_TEMP_3",
                b"to",
                b"from",
                b"local",
                b"session",
                b"SELECT 1",
                b"BEGIN; ",
                b"COMMIT; ",
                b"UPDATE t SET a = 1",
                b"INSERT INTO t ",
            ])
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
