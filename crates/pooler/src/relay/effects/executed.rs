//! What a function does that executes a text given to it.
//!
//! # Model   the text is a string of its call, or a value that a Bind gives: one that begins like a
//!           statement is read as one. A text made of several strings, or that comes from a table, is
//!           not known: if neither the function's source, the call nor the Bind has a statement, the
//!           server connection is closed when its client gives it back.
//! # Limits  a function counts as one that executes the statements of its source, if it has any, and no
//!           others.

use crate::parts::functions::variables::is_of_a_word;
use crate::relay::effects::{Effect, Effects};
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

/// First words of the statements beside these that functions execute.
const HARMLESS: [&[u8]; 21] = [
    b"analyze",
    b"cluster",
    b"comment",
    b"copy",
    b"delete",
    b"drop",
    b"execute",
    b"explain",
    b"fetch",
    b"grant",
    b"insert",
    b"lock",
    b"merge",
    b"refresh",
    b"reindex",
    b"revoke",
    b"show",
    b"table",
    b"truncate",
    b"update",
    b"values",
];

/// Whether a text begins with a comment, or with one of these words.
fn begins(text: &[u8], words: &[&[u8]]) -> bool {
    let text = text.trim_ascii_start();
    let length = text.iter().position(|byte| !is_of_a_word(*byte)).unwrap_or(text.len());
    let first = &text[..length];
    text.starts_with(b"--")
        || text.starts_with(b"/*")
        || words.iter().any(|word| first.eq_ignore_ascii_case(word))
}

/// Whether a text may be a statement. (Others have unterminated quotes, too.)
fn may_be_statement(text: &[u8]) -> bool {
    begins(text, &BEGINNING)
}

/// Whether a text is a statement, of those that may leave state or of others.
fn is_statement(text: &[u8]) -> bool {
    may_be_statement(text) || begins(text, &HARMLESS)
}

/// Whether a string of a text is a statement.
pub(crate) fn has_statement(text: &[u8]) -> bool {
    Tokens::lenient(text).into_iter().any(|token| match token.kind {
        Kind::String(value) => is_statement(&value),
        _ => false,
    })
}

/// Whether a string of a function's source is a statement, beside those with which an EXECUTE, or the
/// `format()` of one, begins: what that one executes is known.
pub(crate) fn shows_statement(source: &[u8]) -> bool {
    let tokens = Tokens::lenient(source);
    tokens.iter().enumerate().any(|(at, token)| {
        let Kind::String(value) = &token.kind else { return false };
        let is_known = match &tokens[..at] {
            [.., execute, format, open] if open.is_symbol(b'(') => {
                execute.is_word(&["execute"]) && format.is_word(&["format"])
            }
            [.., execute] => execute.is_word(&["execute"]),
            [] => false,
        };
        is_statement(value) && !is_known
    })
}

/// Whether a text has parameters, or is a PREPARE, whose EXECUTE gives them without a Bind.
fn gets_values_by_bind(text: &[u8]) -> bool {
    let tokens = Tokens::lenient(text);
    tokens.iter().any(|token| token.is_symbol(b'$'))
        && tokens.first().is_some_and(|first| !first.is_word(&["prepare"]))
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

    /// With what the strings of a text do if the functions that it calls execute them.
    pub(crate) fn and_of_executed_strings(
        &mut self,
        text: &[u8],
        reported: impl Fn(&[u8]) -> bool,
    ) {
        self.absorb(&Self::of_strings(text, &reported));
        if self.may(Effect::ExecutesUnshown) {
            if has_statement(text) {
                self.remove(&[Effect::ExecutesUnshown]);
            } else if !gets_values_by_bind(text) {
                self.add(&[Effect::Spoils]);
            }
        }
    }

    /// With what the values of a Bind do if they are executed. Returns whether that is more.
    pub(crate) fn and_of_executed_values<'a>(
        &mut self,
        values: impl IntoIterator<Item = &'a [u8]>,
        reported: impl Fn(&[u8]) -> bool,
    ) -> bool {
        let (mut more, mut is_shown) = (false, false);
        for value in values {
            more |= self.absorb(&Self::of_executed(value, &reported));
            is_shown |= is_statement(value);
        }
        let is_unshown = self.may(Effect::ExecutesUnshown) && !is_shown;
        if is_unshown {
            self.add(&[Effect::Spoils]);
        }
        more | is_unshown
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
    use crate::relay::effects::EffectSet;
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
    fn what_neither_call_nor_bind_shows_closes_the_server_connection() {
        let unshown = || {
            let does = EffectSet::of(&[Effect::ExecutesStrings, Effect::ExecutesUnshown]);
            Effects { does, ..Effects::default() }
        };
        let of_text = |text: &str| {
            let mut effects = unshown();
            effects.and_of_executed_strings(text.as_bytes(), |_| false);
            effects
        };
        for text in [
            "select run(reverse('x tes'))",
            "select run(q) from t",
            "select run('', '$1')",
            "prepare p as select run($1)",
        ] {
            assert!(of_text(text).may(Effect::Spoils), "{text}");
        }
        for text in
            ["select run('update t set a = 1')", "select run($$ SELECT 1$$)", "select run($1)"]
        {
            assert!(!of_text(text).may(Effect::Spoils), "{text}");
        }
        let bound = |values: &[&str]| {
            let mut effects = of_text("select run($1)");
            let values = values.iter().map(|value| value.as_bytes());
            (effects.and_of_executed_values(values, |_| false), effects.may(Effect::Spoils))
        };
        assert_eq!(bound(&["insert into t values (1)"]), (false, false));
        for values in [&["{set my.a = 1}"][..], &[]] {
            assert_eq!(bound(values), (true, true), "{values:?}");
        }
    }

    #[test]
    fn strings_within_strings_without_end_use_up_no_stack() {
        let text: String = (0..10_000).map(|n| format!("$a{n}$")).collect();
        let of = |text: &str| Effects::of_strings(text.as_bytes(), &|_: &[u8]| false);
        assert!(of(&text).is_none());
    }
}
