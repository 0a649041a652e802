//! Texts that are known to do nothing to the session, so that repeated texts are not scanned again.
//!
//! # Model   a small table: a text has one place, by some of its bytes, and the last text there
//!           stays. The text itself is kept, and only an equal text, byte by byte, is found. If a
//!           text has a number or a string, which will differ the next time, only the part before
//!           that is kept, and the scan continues after it.
//!           The digest is kept beside it, for a start with the last rest after it whose digest was
//!           asked for, without its constants.
//! # Invariant  the answer is [`super::is_plain`]'s, or [`digest`]'s, whatever was asked before; tests
//!           compare them.
//! # Limits  [`PLACES`] texts of up to [`KEPT_BYTES_MAX`] each.

use memchr::memchr;

use super::plain::{Start, look};
use crate::queries::digest::{Digest, digest};

/// The most texts that are kept.
const PLACES: usize = 256;
/// The most bytes that are kept of a text.
const KEPT_BYTES_MAX: usize = 512;
/// The fewest bytes before a text's first number or string by which the text is looked up: a
/// shorter start is as quickly scanned.
const START_BYTES: usize = 24;

/// What is kept of a text.
#[derive(Debug, Default)]
struct KnownText {
    text: Vec<u8>,
    /// `text` is the whole text. Otherwise it ends between two words, within a statement.
    whole: bool,
    /// The digest, if it was asked for.
    digest: Option<Digest>,
    /// What follows `text` in a text with this digest, without its constants: see [`without_constants`].
    rest: Vec<u8>,
}

/// Texts that are known to be plain: see [`super::is_plain`].
#[derive(Debug, Default)]
pub struct KnownTexts {
    /// None until the first text comes.
    places: Vec<KnownText>,
}

impl KnownTexts {
    /// Whether a text certainly does nothing to the session: see [`super::is_plain`].
    pub fn is_plain(&mut self, text: &[u8]) -> bool {
        if self.places.is_empty() {
            self.places.resize_with(PLACES, KnownText::default);
        }
        let own = place_of(text);
        let kept = &self.places[own];
        if kept.whole && kept.text == text {
            return true;
        }
        let Some(start) = text.first_chunk::<START_BYTES>() else { return self.read(text, own) };
        let kept = &self.places[place_of(start)];
        if !kept.whole && !kept.text.is_empty() && text.starts_with(&kept.text) {
            return look(text, Start::Within(kept.text.len())).plain;
        }
        self.read(text, own)
    }

    /// The digest of a text: see [`digest`].
    #[inline]
    pub fn digest(&mut self, text: &[u8]) -> Digest {
        if let Some(kept) = self.places.get_mut(place_of(text))
            && kept.whole
            && kept.text == text
        {
            return *kept.digest.get_or_insert_with(|| digest(text).0);
        }
        let start = text.first_chunk::<START_BYTES>();
        let kept = start.and_then(|start| self.places.get_mut(place_of(start)));
        match kept.filter(|kept| !kept.whole && !kept.text.is_empty()) {
            Some(kept) if text.starts_with(&kept.text) => kept.digest_after(text),
            _ => digest(text).0,
        }
    }

    #[cold]
    fn read(&mut self, text: &[u8], own: usize) -> bool {
        let seen = look(text, Start::Text);
        if seen.plain {
            let constant = seen.constant.filter(|end| *end <= KEPT_BYTES_MAX);
            let (place, kept, whole) = match (constant, text.first_chunk::<START_BYTES>()) {
                (Some(end), Some(start)) if end >= START_BYTES => {
                    (place_of(start), &text[..end], false)
                }
                _ => (own, text, true),
            };
            if kept.len() <= KEPT_BYTES_MAX {
                let place = &mut self.places[place];
                place.text.clear();
                place.text.extend_from_slice(kept);
                (place.whole, place.digest) = (whole, None);
            }
        }
        seen.plain
    }
}

impl KnownText {
    /// The digest of a text that starts with this one.
    #[inline]
    fn digest_after(&mut self, text: &[u8]) -> Digest {
        let rest = &text[self.text.len()..];
        if let Some(digest) = self.digest {
            let mut same = self.rest.iter();
            if without_constants(rest, |byte| same.next() == Some(&byte)) && same.next().is_none() {
                return digest;
            }
        }
        let (digest, _) = digest(text);
        self.rest.clear();
        let known = rest.len() <= KEPT_BYTES_MAX
            && without_constants(rest, |byte| {
                self.rest.push(byte);
                true
            });
        self.digest = known.then_some(digest);
        digest
    }
}

/// Passes on the bytes of a text's rest, but of each run of digits that is no part of a word only the first
/// as `0`, and nothing between the quotes of a string. Returns whether all were passed on, and taken: not
/// those of texts that have more than one reading.
#[inline]
fn without_constants(rest: &[u8], mut take: impl FnMut(u8) -> bool) -> bool {
    let (mut i, mut in_word) = (0, false);
    while let Some(&byte) = rest.get(i) {
        let doubled = rest.get(i + 1);
        let mut taken = byte;
        i += 1;
        match byte {
            b'0'..=b'9' if !in_word => {
                i += rest[i..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                taken = b'0';
            }
            b'\'' if !in_word => match memchr(b'\'', &rest[i..]) {
                Some(length) => i += length + 1,
                None => return false,
            },
            b'"' => match memchr(b'"', &rest[i..]) {
                Some(length) => {
                    if !rest[i..=i + length].iter().all(|byte| take(*byte)) {
                        return false;
                    }
                    i += length + 1;
                }
                None => return false,
            },
            b'-' if doubled == Some(&b'-') => return false,
            b'/' if doubled == Some(&b'*') => return false,
            b'$' if in_word || !doubled.is_some_and(u8::is_ascii_digit) => return false,
            b'\'' | b'\\' | 0x80.. => return false,
            _ => {}
        }
        in_word = byte.is_ascii_alphabetic() || byte == b'_' || (in_word && byte.is_ascii_digit());
        if !take(taken) {
            return false;
        }
    }
    true
}

/// The place of a text, by its length, its start, its middle and its end.
#[inline]
fn place_of(text: &[u8]) -> usize {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 by the golden ratio: it spreads over the high bits
    let length = text.len();
    let mut mixed = length as u64;
    if let (Some(start), Some(end)) = (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        mixed = (mixed ^ u64::from_le_bytes(*start)).wrapping_mul(MIX).rotate_left(32);
        if let Some(middle) = text.get(length / 2 - 4..).and_then(<[u8]>::first_chunk::<8>) {
            mixed = (mixed ^ u64::from_le_bytes(*middle)).wrapping_mul(MIX).rotate_left(32);
        }
        mixed ^= u64::from_le_bytes(*end);
    } else if let (Some(start), Some(end)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        mixed ^= u64::from(u32::from_le_bytes(*start)) << 32;
        mixed ^= u64::from(u32::from_le_bytes(*end));
    } else {
        mixed = text.iter().fold(mixed, |mixed, byte| mixed << 8 | u64::from(*byte));
    }
    (mixed.wrapping_mul(MIX) >> 32) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::scan::plain::is_plain;

    fn known(texts: &mut KnownTexts, text: &str) -> bool {
        let plain = texts.is_plain(text.as_bytes());
        assert_eq!(plain, is_plain(text.as_bytes()), "{text}");
        plain
    }

    #[test]
    fn what_is_kept_says_nothing_of_what_goes_on_in_another_way() {
        let mut texts = KnownTexts::default();
        for _ in 0..2 {
            assert!(known(&mut texts, "SELECT a FROM some_table WHERE a = 1"));
            assert!(known(&mut texts, "SELECT a FROM some_table WHERE a = 22"));
            assert!(known(&mut texts, "SELECT a FROM some_table WHERE a = -22 AND b = 'x'"));
            assert!(!known(&mut texts, "SELECT a FROM some_table WHERE a = 'open"));
            assert!(!known(&mut texts, "SELECT a FROM some_table WHERE a = 1; SET x TO 1"));
            assert!(!known(&mut texts, "SELECT a FROM some_table WHERE a = setseed(1)"));
            assert!(known(&mut texts, "SELECT a FROM some_table WHERE a = \"x\""));
            assert!(!known(&mut texts, "SELECT a FROM some_table WHERE a = \"setseed\"(1)"));
            assert!(known(&mut texts, "SELECT a FROM some_table WHERE a = "));
            assert!(!known(&mut texts, "SELECT a FROM some_table WHERE a = --1"));
            assert!(known(&mut texts, "SELECT a FROM some_table WHERE a = - -1"));
            assert!(known(&mut texts, "BEGIN"));
            assert!(known(&mut texts, "COMMIT"));
            assert!(known(&mut texts, "END"));
            let blanks = " ".repeat(START_BYTES);
            assert!(known(&mut texts, &format!("{blanks}COMMIT PREPARED 1")));
            assert!(!known(&mut texts, &format!("{blanks}COMMIT PREPARED 'x'")));
            assert!(!known(&mut texts, "RESET"));
            assert!(known(&mut texts, ""));
        }
    }

    #[test]
    fn what_is_sent_again_is_found() {
        let mut texts = KnownTexts::default();
        let found = |texts: &KnownTexts| texts.places.iter().filter(|k| !k.text.is_empty()).count();
        for (sent, count) in [
            ("BEGIN", 1),
            ("BEGIN", 1),
            ("SELECT a FROM some_table WHERE a = $1", 2),
            ("SELECT a FROM some_table WHERE a = 1", 3),
            ("SELECT a FROM some_table WHERE a = -1 LIMIT 3", 3),
            ("SELECT a FROM some_table WHERE a = '2'", 3),
            ("SET x TO 1", 3),
        ] {
            known(&mut texts, sent);
            assert_eq!(found(&texts), count, "{sent}");
        }
    }

    /// Random texts with repeated starts.
    #[test]
    fn the_answer_is_what_it_is_without_it() {
        const STARTS: [&str; 5] = [
            "SELECT a, b FROM some_table t WHERE a = ",
            "SELECT a, b FROM some_table t WHERE a > 1 AND b = -",
            "BEGIN; UPDATE some_table SET a = a + ",
            "INSERT INTO some_table (a, b) VALUES (",
            "",
        ];
        const PIECES: [&str; 38] = [
            "e'",
            "\u{e9}",
            "$$",
            "a1",
            "12",
            "1.5e-3",
            "'12'",
            "in (1, 2)",
            "1",
            "2",
            "'x'",
            "'",
            "''",
            "-",
            "--",
            "/",
            "/*",
            "*/",
            "*",
            "$1",
            "$",
            "a",
            "set",
            "seed",
            "set_config",
            "setseed",
            "(",
            ")",
            " ",
            " ",
            ";",
            "ROLLBACK",
            "SELECT",
            "BEGIN",
            "\\",
            "\"",
            "\"a\"",
            "\"setseed\"",
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        };
        let (mut texts, mut plain) = (KnownTexts::default(), 0);
        for turn in 0..200_000 {
            let mut text = String::from(STARTS[random(STARTS.len())]);
            for _ in 0..random(5) {
                text.push_str(PIECES[random(PIECES.len())]);
            }
            plain += usize::from(known(&mut texts, &text));
            if turn % 8 == 0 {
                // Asked for twice: what is kept gives the same.
                let digests = [(); 2].map(|()| texts.digest(text.as_bytes()));
                assert_eq!(digests, [digest(text.as_bytes()).0; 2], "{text}");
            }
        }
        assert!(plain > 50_000, "{plain} texts of the 200,000 are plain: the test says little");
    }

    #[test]
    fn long_texts_are_not_kept_beyond_the_bound() {
        let mut texts = KnownTexts::default();
        let columns = "a_column, ".repeat(100);
        for end in ["b FROM t", "b FROM t WHERE a = 1", "b FROM t WHERE a = setseed(1)"] {
            known(&mut texts, &format!("SELECT {columns}{end}"));
            known(&mut texts, &format!("SELECT {columns}{end}"));
        }
        assert!(texts.places.iter().all(|kept| kept.text.len() <= KEPT_BYTES_MAX));
    }
}
