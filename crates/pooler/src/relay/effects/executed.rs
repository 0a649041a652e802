//! What a function does that executes a text given to it.
//!
//! # Model   the text is a string of its call, or a value that a Bind gives: one that begins like a
//!           statement is read as one.
//! # Limits  a text made of several strings, or that comes from a table, is not known.

use crate::parts::functions::variables::is_of_a_word;
use crate::relay::effects::Effects;
use crate::session::calls::{Kind, Tokens};
use crate::session::scan::body::scan_body;

/// Levels of strings within strings that are examined: a text may have thousands, `$a$$b$$c$...`.
const DEPTH_MAX: u8 = 4;

/// First words of statements that may leave state on the server.
const BEGINNING: [&[u8]; 17] = [
    b"alter",
    b"begin",
    b"call",
    b"create",
    b"deallocate",
    b"declare",
    b"discard",
    b"do",
    b"listen",
    b"load",
    b"notify",
    b"prepare",
    b"reset",
    b"select",
    b"set",
    b"unlisten",
    b"with",
];

/// Whether a text may be a statement. (Others have unterminated quotes, too.)
fn may_be_statement(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    let length = text.iter().position(|byte| !is_of_a_word(*byte)).unwrap_or(text.len());
    let first = &text[..length];
    text.starts_with(b"--")
        || text.starts_with(b"/*")
        || BEGINNING.iter().any(|word| first.eq_ignore_ascii_case(word))
}

impl Effects {
    /// What a value does to the session if it is executed.
    pub(crate) fn of_executed(value: &[u8], reported: impl Fn(&[u8]) -> bool) -> Self {
        if !may_be_statement(value) {
            return Self::default();
        }
        // As SQL, or as the body of a DO.
        let mut effects = Self::of_body(&scan_body(value, false), &reported);
        effects.absorb(&Self::of_body(&scan_body(value, true), &reported));
        effects
    }

    /// What the strings of a text do if they are executed.
    pub(crate) fn of_strings(text: &[u8], reported: &impl Fn(&[u8]) -> bool) -> Self {
        Self::of_strings_within(text, reported, DEPTH_MAX)
    }

    fn of_strings_within(text: &[u8], reported: &impl Fn(&[u8]) -> bool, depth: u8) -> Self {
        let mut all = Self::default();
        if depth == 0 {
            return all;
        }
        for token in Tokens::lenient(text) {
            if let Kind::String(value) = token.kind {
                all.absorb(&Self::of_executed(&value, reported));
                // A block may execute its own strings.
                all.absorb(&Self::of_strings_within(&value, reported, depth - 1));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::part::Part;

    #[test]
    fn strings_of_a_call_are_read_as_what_it_executes() {
        let of =
            |text: &str| Effects::of_strings(text.as_bytes(), &|name: &[u8]| name == b"timezone");
        for (text, part) in [
            ("select run('set my.a = 1')", Part::CustomSetting),
            ("select run($$ Set Role x$$)", Part::Role),
            ("select run('/* a */ create temp table t (a text)', 'b')", Part::TemporaryObject),
            ("select run('select pg_advisory_lock(1)')", Part::AdvisoryLock),
            ("select run('do $x$ begin listen a; end $x$')", Part::Listen),
            ("do $$ begin perform run('set my.a = 1'); end $$", Part::CustomSetting),
            ("do 'begin perform run(''set my.a = 1''); end'", Part::CustomSetting),
        ] {
            assert!(of(text).pins.contains(part), "{text}");
        }
        assert_eq!(*of("select run('set work_mem = ''5MB''')").names, [b"work_mem"[..].into()]);
        for text in
            ["select run('it''s set', 'insert into t values (1)', 'settle')", "set my.a = 1"]
        {
            assert!(of(text).is_none(), "{text}");
        }
    }

    #[test]
    fn strings_within_strings_without_end_use_up_no_stack() {
        let text: String = (0..10_000).map(|n| format!("$a{n}$")).collect();
        let of = |text: &str| Effects::of_strings(text.as_bytes(), &|_: &[u8]| false);
        assert!(of(&text).is_none());
    }
}
