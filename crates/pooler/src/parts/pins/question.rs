//! The question to a server before a backend that may have a client's state goes to another client.
//!
//! # Model   one query of one row: for each part in question whether any of it is there (of
//!           statements of PREPARE, which), and for each setting in question its value. It is asked
//!           outside of a transaction, after the server has dealt with rollbacks, ON COMMIT DROP
//!           and the transaction's locks.
//! # Invariants  every name is qualified: the query runs under its client's own role and
//!           search_path. An answer of another shape counts as no answer.
//! # Limits  names of settings are ASCII; values longer than [`VALUE_CHARACTERS_MAX`], more than 64
//!           statements, and statements of more than 65,536 characters together are not returned.
//! # Costs   5 to 20 us in the server for each part; `pg_locks` more where there are many locks.

use crate::session::part::{Part, PartSet};
use crate::session::settings::quoting::write_string;
use crate::session::settings::{is_custom, read_hex};
use crate::wire::frame::{take_u16, take_u32};

/// The most settings in one question.
pub const NAMES_MAX: usize = 32;

/// The longest value that is returned, in characters.
pub const VALUE_CHARACTERS_MAX: usize = 4096;

/// The beginning of each question, which shows in the server's log and in pg_stat_activity. Its
/// transaction does not follow the session's defaults: a deferrable serializable one would wait for
/// all others that write, and the next client with it.
pub const COMMENT: &str = "/* hawser: what is left of the session */ \
     SET TRANSACTION ISOLATION LEVEL READ COMMITTED, NOT DEFERRABLE; SELECT ";

/// The parts that can be asked for, with an expression that is true while any of them exists.
/// (`pg_my_temp_schema()` stays set when the last temporary object has been dropped: so the objects
/// that depend on it count. 2615 is pg_namespace, in every version.) For statements of PREPARE it
/// is an array of names, texts and types of parameters, NULL if there are none, and [`MORE`] if
/// there are too many.
pub const PARTS: [(Part, &str); 5] = [
    (
        Part::TemporaryObject,
        "EXISTS(SELECT 1 FROM pg_catalog.pg_depend WHERE refclassid OPERATOR(pg_catalog.=) 2615 AND refobjid OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema())",
    ),
    (Part::HeldCursor, "EXISTS(SELECT 1 FROM pg_catalog.pg_cursors)"),
    (
        Part::AdvisoryLock,
        "EXISTS(SELECT 1 FROM pg_catalog.pg_locks WHERE pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid() AND locktype OPERATOR(pg_catalog.=) 'advisory')",
    ),
    (
        Part::SqlStatement,
        "(SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 64 OR pg_catalog.sum(pg_catalog.length(statement)) OPERATOR(pg_catalog.>) 65536 THEN 'more' ELSE pg_catalog.array_agg(ARRAY[name,statement,pg_catalog.array_to_string(parameter_types,',')] ORDER BY prepare_time)::pg_catalog.text END FROM pg_catalog.pg_prepared_statements WHERE from_sql)",
    ),
    (
        Part::TemporarySlot,
        "EXISTS(SELECT 1 FROM pg_catalog.pg_replication_slots WHERE temporary AND active_pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid())",
    ),
];

/// Returned in place of the statements of PREPARE if these are too many or too long.
pub const MORE: &[u8] = b"more";

/// The end of the part about statements of PREPARE, and what precedes it, around names, if
/// statements of the protocol are asked for as well.
pub const PARSED: (&str, &str, &str) = (
    " WHERE from_sql)",
    " WHERE from_sql OR name OPERATOR(pg_catalog.=) ANY(ARRAY[",
    "]::pg_catalog.text[]))",
);

/// The parts that can be asked for.
pub const ASKED: PartSet =
    PartSet::of(&[PARTS[0].0, PARTS[1].0, PARTS[2].0, PARTS[3].0, PARTS[4].0]);

/// Around a setting's name: its value.
pub const SETTING: (&str, &str) = ("pg_catalog.left(pg_catalog.current_setting(", ",true),4097)");

/// The same if the client's encoding is not the server's: the server's bytes in hexadecimal digits.
pub const RAW_SETTING: (&str, &str) = (
    "pg_catalog.encode(pg_catalog.convert_to(pg_catalog.left(pg_catalog.current_setting(",
    ",true),4097),pg_catalog.getdatabaseencoding()),'hex')",
);

/// The same, unless the value is the one that a RESET would give. That scans all settings: about
/// 0.7 ms.
pub const SET_IN_SESSION: (&str, &str) = (
    "CASE WHEN EXISTS(SELECT 1 FROM pg_catalog.pg_settings WHERE source OPERATOR(pg_catalog.=) 'session' AND pg_catalog.lower(name) OPERATOR(pg_catalog.=) ",
    ") THEN ",
);

/// Names that pg_settings does not show.
const NOT_SHOWN: [&[u8]; 2] = [b"role", b"session_authorization"];

/// A question about a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    parts: PartSet,
    names: Vec<Box<[u8]>>,
    exact: bool,
    /// Names of statements that the protocol has prepared, and that are asked for like those of
    /// PREPARE.
    parsed: Vec<Box<[u8]>>,
    /// Values are returned as digits ([`RAW_SETTING`]).
    digits: bool,
}

/// A statement of SQL's PREPARE, as the server shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Shown {
    /// Its name.
    pub name: Box<[u8]>,
    /// The text in which the PREPARE stands.
    pub text: Box<[u8]>,
    /// The types of its parameters, as written in a PREPARE.
    pub types: Box<[u8]>,
}

/// The name only: literals are a client's own and never reach a log.
impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.name.escape_ascii())
    }
}

/// The server's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The parts in question that exist.
    pub present: PartSet,
    /// All statements of SQL's PREPARE, in the order in which they were prepared, if these are in
    /// question and not too many.
    pub statements: Option<Vec<Shown>>,
    /// The value of each setting in question; `None` where there is no such setting.
    pub values: Vec<Option<Box<[u8]>>>,
}

impl Question {
    /// Asks about those of `parts` that can be asked for, and the settings of these names. `exact`:
    /// a setting that has been reset, or whose SET was rolled back, then has no value.
    pub fn new(parts: PartSet, names: Vec<Box<[u8]>>, exact: bool) -> Question {
        debug_assert!(names.len() <= NAMES_MAX);
        Question {
            parts: parts.intersection(ASKED),
            names,
            exact,
            parsed: Vec::new(),
            digits: false,
        }
    }

    /// The same, about these statements of the protocol, too.
    #[must_use]
    pub fn with_parsed(self, parsed: Vec<Box<[u8]>>) -> Question {
        Question { parsed, ..self }
    }

    /// The same, of a session with another encoding than its server's.
    #[must_use]
    pub fn in_digits(self, digits: bool) -> Question {
        Question { digits, ..self }
    }

    /// The parts that it is about.
    pub fn parts(&self) -> PartSet {
        self.parts
    }

    /// The settings that it is about.
    pub fn names(&self) -> &[Box<[u8]>] {
        &self.names
    }

    /// Whether it asks nothing.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.names.is_empty()
    }

    /// Writes the text of the query.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(COMMENT.as_bytes());
        let mut first = true;
        let mut comma = |out: &mut Vec<u8>| {
            if !std::mem::replace(&mut first, false) {
                out.push(b',');
            }
        };
        for (part, expression) in PARTS.iter().filter(|(part, _)| self.parts.contains(*part)) {
            comma(out);
            match expression.strip_suffix(PARSED.0) {
                Some(start) if *part == Part::SqlStatement && !self.parsed.is_empty() => {
                    out.extend_from_slice(start.as_bytes());
                    self.write_parsed(out);
                }
                _ => out.extend_from_slice(expression.as_bytes()),
            }
        }
        for name in &self.names {
            comma(out);
            let exact = self.exact && !is_custom(name) && !NOT_SHOWN.contains(&&**name);
            if exact {
                out.extend_from_slice(SET_IN_SESSION.0.as_bytes());
                write_string(name, out);
                out.extend_from_slice(SET_IN_SESSION.1.as_bytes());
            }
            let around = if self.digits { RAW_SETTING } else { SETTING };
            out.extend_from_slice(around.0.as_bytes());
            write_string(name, out);
            out.extend_from_slice(around.1.as_bytes());
            if exact {
                out.extend_from_slice(b" END");
            }
        }
    }

    fn write_parsed(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(PARSED.1.as_bytes());
        for (number, name) in self.parsed.iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            write_string(name, out);
        }
        out.extend_from_slice(PARSED.2.as_bytes());
    }

    /// Reads the body of the one DataRow. `None` if it is not an answer to this, or a value is too
    /// long.
    pub fn read(&self, row: &[u8]) -> Option<Answer> {
        let (columns, mut rest) = take_u16(row)?;
        let mut next = || {
            let (length, after) = take_u32(rest)?;
            if length == u32::MAX {
                rest = after;
                return Some(None);
            }
            let length = usize::try_from(length).ok()?;
            let value = after.get(..length)?;
            rest = &after[length..];
            Some(Some(value))
        };
        let mut answer = Answer { present: PartSet::EMPTY, statements: None, values: Vec::new() };
        let mut asked = 0;
        for (part, _) in PARTS.iter().filter(|(part, _)| self.parts.contains(*part)) {
            asked += 1;
            let value = next()?;
            if *part == Part::SqlStatement {
                let statements = match value {
                    None => Some(Vec::new()),
                    Some(MORE) => None,
                    Some(array) => Some(read_statements(array)?),
                };
                if statements.as_ref().is_none_or(|all| !all.is_empty()) {
                    answer.present.insert(Part::SqlStatement);
                }
                answer.statements = statements;
                continue;
            }
            match value {
                Some(b"t") => answer.present.insert(*part),
                Some(b"f") => {}
                _ => return None,
            }
        }
        for _ in &self.names {
            asked += 1;
            let value: Option<Box<[u8]>> = match next()? {
                Some(digits) if self.digits => Some(read_hex(digits)?.into()),
                value => value.map(Into::into),
            };
            // In bytes: a longer value may be cut, or just have multi-byte characters.
            if value.as_ref().is_some_and(|value| value.len() > VALUE_CHARACTERS_MAX) {
                return None;
            }
            answer.values.push(value);
        }
        (usize::from(columns) == asked && rest.is_empty()).then_some(answer)
    }
}

/// Reads an array of arrays of three strings each, as the server writes it (`array_out`).
fn read_statements(array: &[u8]) -> Option<Vec<Shown>> {
    let inner = array.strip_prefix(b"{{")?.strip_suffix(b"}}")?;
    let mut strings = Vec::new();
    let mut bytes = inner.iter().copied().peekable();
    loop {
        let mut string = Vec::new();
        if bytes.peek() == Some(&b'{') {
            bytes.next();
        }
        if bytes.peek() == Some(&b'"') {
            bytes.next();
            loop {
                match bytes.next()? {
                    b'"' => break,
                    b'\\' => string.push(bytes.next()?),
                    byte => string.push(byte),
                }
            }
        } else {
            while let Some(byte) = bytes.next_if(|byte| !b",}".contains(byte)) {
                string.push(byte);
            }
        }
        strings.push(string.into_boxed_slice());
        if bytes.peek() == Some(&b'}') {
            bytes.next();
        }
        match bytes.next() {
            None => break,
            Some(b',') => {}
            Some(_) => return None,
        }
    }
    let mut all = Vec::with_capacity(strings.len() / 3);
    let mut strings = strings.into_iter();
    while let Some(name) = strings.next() {
        all.push(Shown { name, text: strings.next()?, types: strings.next()? });
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::build;

    fn row(values: &[Option<&[u8]>]) -> Vec<u8> {
        let mut body = Vec::new();
        build::message(&mut body, b'D', |out| {
            out.extend_from_slice(&(values.len() as u16).to_be_bytes());
            for value in values {
                match value {
                    Some(value) => {
                        out.extend_from_slice(&(value.len() as u32).to_be_bytes());
                        out.extend_from_slice(value);
                    }
                    None => out.extend_from_slice(&u32::MAX.to_be_bytes()),
                }
            }
        });
        body.split_off(5)
    }

    #[test]
    fn an_answer_belongs_to_its_question() {
        let question = Question::new(
            PartSet::of(&[Part::AdvisoryLock, Part::TemporaryObject, Part::Listen]),
            vec![b"work_mem"[..].into(), b"my.x"[..].into()],
            true,
        );
        let mut text = Vec::new();
        question.write(&mut text);
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with(COMMENT) && text.contains("pg_locks"), "{text}");
        assert!(text.contains("'work_mem') THEN ") && !text.contains("'my.x') THEN"), "{text}");
        assert!(text.ends_with("current_setting('my.x',true),4097)"), "{text}");
        let answer = question.read(&row(&[Some(b"f"), Some(b"t"), Some(b"4MB"), None])).unwrap();
        assert_eq!(answer.present, PartSet::of(&[Part::AdvisoryLock]));
        assert_eq!(answer.values, [Some(b"4MB"[..].into()), None]);
    }

    #[test]
    fn anything_else_is_no_answer() {
        let question = Question::new(ASKED, vec![b"x"[..].into()], false);
        let t: Option<&[u8]> = Some(b"t");
        assert!(question.read(&row(&[t, t, t, None, t, Some(b"v")])).is_some());
        let long = vec![b'a'; VALUE_CHARACTERS_MAX + 1];
        for values in [
            &[t, t, t, None, t][..],
            &[t, t, t, None, t, t, t],
            &[t, t, None, None, t, t],
            &[t, t, Some(b"true"), None, t, t],
            &[t, t, t, None, None, t],
            &[t, t, t, t, t, t],
            &[t, t, t, Some(b"{{a,b}}"), t, t],
            &[t, t, t, Some(b"{{a,b,\"c}}"), t, t],
            &[t, t, t, Some(b"{{a,b,\"c\"d}}"), t, t],
            &[t, t, t, None, t, Some(&long)],
        ] {
            assert!(question.read(&row(values)).is_none(), "{values:?}");
        }
        assert!(question.read(b"").is_none());
        let mut cut = row(&[t, t, t, None, t, Some(b"value")]);
        cut.pop();
        assert!(question.read(&cut).is_none());
    }

    #[test]
    fn values_are_what_the_server_has_whatever_the_encoding() {
        let names = vec![b"my.x"[..].into()];
        let question = Question::new(PartSet::EMPTY, names, false).in_digits(true);
        let mut text = Vec::new();
        question.write(&mut text);
        assert!(text.is_ascii() && text.ends_with(b"getdatabaseencoding()),'hex')"));
        let answer = |digits: &[u8]| question.read(&row(&[Some(digits)]));
        assert_eq!(answer(b"c3a95c").unwrap().values, [Some(b"\xc3\xa9\\"[..].into())]);
        assert_eq!(answer(b"").unwrap().values, [Some(b""[..].into())]);
        assert!(answer(b"c3a").is_none() && answer(b"xy").is_none());
    }

    #[test]
    fn statements_come_with_their_texts_and_types() {
        let question = Question::new(PartSet::of(&[Part::SqlStatement]), Vec::new(), false);
        let read = |value: Option<&[u8]>| question.read(&row(&[value])).unwrap();
        assert_eq!(read(None).statements, Some(Vec::new()));
        assert!(read(None).present.is_empty());
        let more = read(Some(MORE));
        assert!(more.statements.is_none() && more.present.contains(Part::SqlStatement));
        let array =
            br#"{{p,"PREPARE p AS SELECT '\\\"{a},b'",""},{"a b",x,"integer,character varying"}}"#;
        let answer = read(Some(array));
        assert!(answer.present.contains(Part::SqlStatement));
        let [one, other] = &answer.statements.unwrap()[..] else { panic!() };
        assert_eq!(*one.text, *br#"PREPARE p AS SELECT '\"{a},b'"#);
        assert!(*one.name == *b"p" && one.types.is_empty());
        assert!(*other.name == *b"a b" && *other.types == *b"integer,character varying");
        assert!(!format!("{one:?}").contains("SELECT"));
    }
}
