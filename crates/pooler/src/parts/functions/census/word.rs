//! Names as the census keeps them: one word each, in lower case, as long as a server takes it.

use crate::parts::functions::variables::is_of_a_word;

/// A name, or one word of a text.
pub(super) type Word = Box<[u8]>;

/// The longest name, in bytes (NAMEDATALEN).
pub(super) const NAME_BYTES_MAX: usize = 63;

/// No words: these stand for calls with quotes around anything, and by names that are in UTF-8, or
/// are not, in a text that is written otherwise.
pub(super) const QUOTED: &[u8] = b"\"";
pub(super) const IN_UTF8: &[u8] = b"\x01";
pub(super) const NOT_IN_UTF8: &[u8] = b"\x02";

/// No word either, but the name of what any text may call: a function behind an operator, a cast,
/// an operator class or a range type. Changes of the schema by such a function are left out: each
/// text would make all prepared statements old.
pub const ANY_TEXT: &[u8] = b"\x03";

/// The same for any text that writes: what defaults, constraints, domains, indexes, statistics and rules call,
/// since a foreign key's action writes to tables that no text names.
pub const ANY_WRITE: &[u8] = b"\x04";

pub(super) fn lower(word: &[u8]) -> Word {
    word.to_ascii_lowercase().into_boxed_slice()
}

/// What a server makes of a name that is too long (`truncate_identifier`, scansup.c).
pub(super) fn truncated(word: &[u8]) -> &[u8] {
    if word.len() <= NAME_BYTES_MAX {
        return word;
    }
    let is_start = |at: &usize| word[*at] & 0xC0 != 0x80;
    let end = (NAME_BYTES_MAX - 3..=NAME_BYTES_MAX).rev().find(is_start);
    &word[..end.unwrap_or(NAME_BYTES_MAX)]
}

/// The word by which a name is known: its longest one, if it has several in quotes. A name without
/// a word is known by its quotes.
pub(super) fn key(name: &[u8]) -> Word {
    if name == ANY_TEXT || name == ANY_WRITE {
        return name.into();
    }
    let longest = name.split(|byte| !is_of_a_word(*byte)).max_by_key(|word| word.len());
    let longest = longest.unwrap_or_default();
    if longest.is_empty() { QUOTED.into() } else { lower(truncated(longest)) }
}
