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

/// What follows the comments and empty statements at the start of a text.
pub(crate) fn after_comments(mut text: &[u8]) -> &[u8] {
    loop {
        text = text.trim_ascii_start();
        text = match text {
            [b';', rest @ ..] => rest,
            [b'-', b'-', rest @ ..] => {
                let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
                &rest[end.unwrap_or(rest.len())..]
            }
            [b'/', b'*', rest @ ..] => after_block_comment(rest),
            _ => return text,
        };
    }
}

/// What follows a comment of C's form, which may be nested (`scan.l`), of which this is the rest.
fn after_block_comment(mut text: &[u8]) -> &[u8] {
    let mut depth = 1;
    while depth > 0 {
        text = match text {
            [] => return text,
            [b'/', b'*', rest @ ..] => {
                depth += 1;
                rest
            }
            [b'*', b'/', rest @ ..] => {
                depth -= 1;
                rest
            }
            [_, rest @ ..] => rest,
        };
    }
    text
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

/// Whether a text is an INSERT by its first word.
#[inline]
pub(crate) fn inserts(text: &[u8]) -> bool {
    // (The first byte decides for most texts.)
    matches!(text.first(), Some(b'i' | b'I')) && begins_with_any(text, &[b"insert"])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_empty_statements_are_no_command() {
        for text in [
            "fetch",
            "  \n fetch",
            "-- a /* b\nfetch",
            "/* a /* b */ -- c */fetch",
            ";; /**/ -- x\r;fetch",
            "/*/ */fetch",
        ] {
            assert_eq!(after_comments(text.as_bytes()), b"fetch", "{text}");
        }
        for text in ["", "--", "-- fetch", "/* fetch", "/* /* */ fetch"] {
            assert_eq!(after_comments(text.as_bytes()), b"", "{text}");
        }
        assert_eq!(after_comments(b"- fetch"), b"- fetch");
    }
}
