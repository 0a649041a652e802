//! Which sequences a text asks currval and lastval for.
//!
//! # Limits  a sequence is known by a string, a parameter, or pg_get_serial_sequence() of these, with
//!           casts or without. Other spellings, and several statements in one text, are not certain.

use crate::session::calls::{Kind, Tokens};
use crate::session::scan::ScanOptions;

/// Sequences that a text asks for by name, at most.
const NAMED_MAX: usize = 8;

/// What a text asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Question {
    /// By currval.
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) lastval: bool,
}

/// How a sequence is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sequence {
    Named(Value),
    /// By the column that owns it.
    Serial {
        table: Value,
        column: Value,
    },
}

/// An argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Literal(Vec<u8>),
    Parameter {
        /// Its place, from 0.
        at: usize,
        /// It is text if its client has declared no type.
        is_text: bool,
    },
}

impl Question {
    /// Whether its parameters are needed to know what it asks for.
    pub(crate) fn has_parameters(&self) -> bool {
        let is_parameter = |value: &Value| matches!(value, Value::Parameter { .. });
        self.sequences.iter().any(|sequence| match sequence {
            Sequence::Named(value) => is_parameter(value),
            Sequence::Serial { table, column } => is_parameter(table) || is_parameter(column),
        })
    }
}

/// What a text asks for. `None`: that is not certain, or nothing.
pub(crate) fn of_sequences(text: &[u8], options: ScanOptions) -> Option<Question> {
    let tokens = Tokens::of(text, options).filter(|tokens| !tokens.disguised)?;
    let mut question = Question::default();
    let mut at = 0;
    while let Some(token) = tokens.all.get(at) {
        let is_called = tokens.all.get(at + 1).is_some_and(|token| token.is_symbol(b'('));
        match &token.kind {
            // (The search_path may be another for a later statement.)
            Kind::Semicolon if at + 1 < tokens.all.len() => return None,
            Kind::String(content) if has_question(content) => return None, // run by something, perhaps
            _ if is_called && token.is_name(b"lastval") => {
                tokens.call(at, b"lastval")?;
                question.lastval = true;
            }
            _ if is_called && token.is_name(b"currval") => {
                tokens.call(at, b"currval")?;
                let (sequence, after) = tokens.sequence(text, at + 2)?;
                tokens.all.get(after).filter(|token| token.is_symbol(b')'))?;
                if question.sequences.len() == NAMED_MAX {
                    return None;
                }
                question.sequences.push(sequence);
                at = after;
            }
            _ => {}
        }
        at += 1;
    }
    (question != Question::default()).then_some(question)
}

/// Whether currval or lastval stands in a text.
pub(crate) fn has_question(text: &[u8]) -> bool {
    text.windows(7)
        .any(|word| word.eq_ignore_ascii_case(b"currval") || word.eq_ignore_ascii_case(b"lastval"))
}

impl Tokens {
    /// The sequence that the expression at `at` names, and where the expression ends.
    fn sequence(&self, text: &[u8], mut at: usize) -> Option<(Sequence, usize)> {
        const SERIAL: &[u8] = b"pg_get_serial_sequence";
        let is_qualified = self.all.get(at)?.is_name(b"pg_catalog")
            && self.all.get(at + 1).is_some_and(|token| token.is_symbol(b'.'));
        if is_qualified {
            at += 2;
        }
        if self.call(at, SERIAL).is_none() {
            let (value, after) = self.value(text, at, false).filter(|_| !is_qualified)?;
            return Some((Sequence::Named(value), after));
        }
        let (table, after) = self.value(text, at + 2, true)?;
        self.all.get(after).filter(|token| token.is_symbol(b','))?;
        let (column, after) = self.value(text, after + 1, true)?;
        self.all.get(after).filter(|token| token.is_symbol(b')'))?;
        Some((Sequence::Serial { table, column }, self.casts(after + 1)?.1))
    }

    /// The string or parameter at `at`, and where its casts end. `is_text`: of an argument that is text.
    fn value(&self, text: &[u8], at: usize, is_text: bool) -> Option<(Value, usize)> {
        let (cast_to_text, after) = self.casts(at + 1)?;
        let value = match &self.all.get(at)?.kind {
            Kind::String(content) if text.get(self.all[at].start) == Some(&b'\'') => {
                Value::Literal(content.clone())
            }
            _ => Value::Parameter {
                at: self.parameter(text, at)?,
                is_text: cast_to_text.unwrap_or(is_text),
            },
        };
        Some((value, after))
    }

    /// Where the casts at `at` end, and whether the first is to text. `None`: one is to another type.
    fn casts(&self, mut at: usize) -> Option<(Option<bool>, usize)> {
        let mut first = None;
        let is = |at: usize, symbol| self.all.get(at).is_some_and(|one| one.is_symbol(symbol));
        while is(at, b':') && is(at + 1, b':') {
            at += 2;
            if self.all.get(at)?.is_name(b"pg_catalog") && is(at + 1, b'.') {
                at += 2;
            }
            let cast = self.all.get(at)?;
            let to_text = cast.is_word(&["text", "varchar"]);
            if !to_text && !cast.is_word(&["regclass"]) {
                return None;
            }
            first = first.or(Some(to_text));
            at += 1;
        }
        Some((first, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The question, in short.
    fn asked(text: &str) -> String {
        let Some(question) = of_sequences(text.as_bytes(), ScanOptions::default()) else {
            return "-".to_owned();
        };
        let value = |value: &Value| match value {
            Value::Literal(literal) => format!("'{}'", String::from_utf8_lossy(literal)),
            Value::Parameter { at, is_text } => format!("{at}{}", if *is_text { "t" } else { "" }),
        };
        let mut all: Vec<String> = question
            .sequences
            .iter()
            .map(|sequence| match sequence {
                Sequence::Named(name) => value(name),
                Sequence::Serial { table, column } => {
                    format!("{}.{}", value(table), value(column))
                }
            })
            .collect();
        all.extend(question.lastval.then(|| "lastval".to_owned()));
        all.join(" ")
    }

    #[test]
    fn sequences_are_known_by_strings_parameters_and_columns() {
        for (text, expected) in [
            ("SELECT CURRVAL($1)", "0"),
            ("select pg_catalog.currval($2::regclass);", "1"),
            ("select currval($1::text::regclass), $2", "0t"),
            ("select currval($1::pg_catalog.varchar)", "0t"),
            ("select Currval ( 'a.\"B\"' ) /* ; */ as currval", "'a.\"B\"'"),
            ("select currval('a'::regclass), currval($1), lastval()", "'a' 0 lastval"),
            ("select \"lastval\"()", "lastval"),
            ("select currval(pg_get_serial_sequence('\"t\"', 'id'))", "'\"t\"'.'id'"),
            ("select currval(pg_catalog.pg_get_serial_sequence($1, $2::text)::regclass)", "0t.1t"),
            ("insert into t values (currval('it''s'))", "'it's'"),
        ] {
            assert_eq!(asked(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_spelt_otherwise_is_not_certain() {
        for text in [
            "select 1",
            "select currval, lastval from t",
            "execute asks",
            "select currval($1 || '_seq')",
            "select currval('a' || '_seq')",
            "select currval(format('%I', 'a'))",
            "select currval(E'a\\142')",
            "select currval('a'\n'b')",
            "select currval(U&'a')",
            "select currval(B'1')",
            "select currval($$a$$)",
            "select currval($1::own)",
            "select currval(own.pg_get_serial_sequence('t', 'id'))",
            "select currval(pg_get_serial_sequence('t', f('id')))",
            "select currval(pg_catalog.$1)",
            "select own.currval('a')",
            "select own.lastval()",
            "select lastval(), query_to_xml('select currval(''a'')')",
            "set search_path = b; select currval('a')",
            "select currval('a",
            "do $$ begin perform lastval(); end $$",
        ] {
            assert_eq!(asked(text), "-", "{text}");
        }
        let more = "select currval('a')".to_owned() + &", currval('a')".repeat(NAMED_MAX);
        assert_eq!(asked(&more), "-");
        let as_many = more.strip_suffix(", currval('a')").unwrap();
        assert_eq!(asked(as_many).split(' ').count(), NAMED_MAX);
    }
}
