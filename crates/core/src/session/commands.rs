//! What the first words of commands say about them.

/// Whether the first word of a text is one of these.
pub(crate) fn begins_with_any(text: &[u8], words: &[&[u8]]) -> bool {
    let text = text.trim_ascii_start();
    let length = text.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let Some(first) = text.first().map(u8::to_ascii_lowercase) else { return false };
    words.iter().any(|word| {
        word.len() == length && word[0] == first && text[..length].eq_ignore_ascii_case(word)
    })
}

/// Words of statements that draw, whatever functions they call. (currval shows what setval has set,
/// too; a column may be set to a DEFAULT that draws.)
const DRAW: [&[u8]; 7] =
    [b"copy", b"default", b"execute", b"insert", b"merge", b"nextval", b"setval"];

/// Whether such a word stands in a text, anywhere.
pub(crate) fn may_draw(text: &[u8]) -> bool {
    text.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').any(|word| {
        (4..=7).contains(&word.len()) && DRAW.iter().any(|known| word.eq_ignore_ascii_case(known))
    })
}

/// Commands that run no user-defined function, by their first words.
const DRAW_NOTHING: [&[u8]; 10] = [
    b"abort",
    b"begin",
    b"deallocate",
    b"listen",
    b"release",
    b"savepoint",
    b"set",
    b"show",
    b"start",
    b"unlisten",
];

/// Whether a text is commands that certainly draw from no sequence. What follows a semicolon within
/// a quoted text counts as one more.
pub(crate) fn draws_nothing(text: &[u8]) -> bool {
    if let Some(word) = text.first_chunk::<6>()
        && let b"select" | b"insert" | b"update" | b"delete" = &word.map(|b| b.to_ascii_lowercase())
    {
        return false; // the most frequent case, without a look at the list
    }
    let mut rest = text;
    loop {
        rest = rest.trim_ascii_start();
        // Most texts end here, at their first word.
        if !matches!(rest.first(), None | Some(b';')) && !begins_with_any(rest, &DRAW_NOTHING) {
            return false;
        }
        match memchr::memchr(b';', rest) {
            None => return true,
            Some(at) => rest = &rest[at + 1..],
        }
    }
}
