//! What a server is asked before a backend that may have a client's state is given to another.
//!
//! # Model   one query of one row: for each part in question whether any of it is there, and for
//!           each setting in question its value. Whoever asks does so outside of a transaction, so
//!           that rollbacks, ON COMMIT DROP and locks of the transaction have been accounted for by
//!           the server itself.
//! # Invariants  every name is qualified: the query runs under its client's own role and
//!           search_path. An answer that is not what was asked for is none.
//! # Limits  names of settings are ASCII; a value beyond [`VALUE_CHARACTERS_MAX`] is not told.
//! # Costs   5 to 20 us in the server for each part; `pg_locks` more where there are many locks.

use super::part::{Part, PartSet};
use super::settings::{is_custom, write_string};
use crate::wire::frame::{take_u16, take_u32};

/// Settings that one question may be about.
pub const NAMES_MAX: usize = 32;

/// The longest value that is told, in characters.
pub const VALUE_CHARACTERS_MAX: usize = 4096;

/// What each question begins with: it is seen in the server's log and in pg_stat_activity.
pub const COMMENT: &str = "/* hawser: what is left of the session */ SELECT ";

/// The parts that can be asked for, with what is true while any of them is there. (`pg_my_temp_schema()`
/// stays set when the last temporary object has been dropped: what depends on it counts. 2615 is
/// pg_namespace, in every version.)
pub const PARTS: [(Part, &str); 4] = [
    (
        Part::TemporaryObject,
        "EXISTS(SELECT 1 FROM pg_catalog.pg_depend WHERE refclassid OPERATOR(pg_catalog.=) 2615 AND refobjid OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema())",
    ),
    (Part::HeldCursor, "EXISTS(SELECT 1 FROM pg_catalog.pg_cursors)"),
    (
        Part::AdvisoryLock,
        "EXISTS(SELECT 1 FROM pg_catalog.pg_locks WHERE pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid() AND locktype OPERATOR(pg_catalog.=) 'advisory')",
    ),
    (Part::SqlStatement, "EXISTS(SELECT 1 FROM pg_catalog.pg_prepared_statements WHERE from_sql)"),
];

/// The parts that can be asked for.
pub const ASKED: PartSet = PartSet::of(&[PARTS[0].0, PARTS[1].0, PARTS[2].0, PARTS[3].0]);

/// Around a setting's name: its value.
pub const SETTING: (&str, &str) = ("pg_catalog.left(pg_catalog.current_setting(", ",true),4097)");

/// The same, unless the value is the one that a RESET would give. All settings are looked at for it:
/// about 0.7 ms.
pub const SET_IN_SESSION: (&str, &str) = (
    "CASE WHEN EXISTS(SELECT 1 FROM pg_catalog.pg_settings WHERE source OPERATOR(pg_catalog.=) 'session' AND pg_catalog.lower(name) OPERATOR(pg_catalog.=) ",
    ") THEN ",
);

/// Names that pg_settings does not show.
const NOT_SHOWN: [&[u8]; 2] = [b"role", b"session_authorization"];

/// What is to be found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    parts: PartSet,
    names: Vec<Box<[u8]>>,
    exact: bool,
}

/// What the server has said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Of the parts in question, those that are there.
    pub present: PartSet,
    /// The value of each setting in question; `None` where there is no such setting.
    pub values: Vec<Option<Box<[u8]>>>,
}

impl Question {
    /// About those of `parts` that can be asked for, and the settings of these names. `exact`: a
    /// setting that has been reset, or whose SET was rolled back, has no value then.
    pub fn new(parts: PartSet, names: Vec<Box<[u8]>>, exact: bool) -> Question {
        debug_assert!(names.len() <= NAMES_MAX);
        Question { parts: parts.intersection(ASKED), names, exact }
    }

    /// The parts that it is about.
    pub fn parts(&self) -> PartSet {
        self.parts
    }

    /// The settings that it is about.
    pub fn names(&self) -> &[Box<[u8]>] {
        &self.names
    }

    /// Is it about nothing?
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
        for (_, expression) in PARTS.iter().filter(|(part, _)| self.parts.contains(*part)) {
            comma(out);
            out.extend_from_slice(expression.as_bytes());
        }
        for name in &self.names {
            comma(out);
            let exact = self.exact && !is_custom(name) && !NOT_SHOWN.contains(&&**name);
            if exact {
                out.extend_from_slice(SET_IN_SESSION.0.as_bytes());
                write_string(name, out);
                out.extend_from_slice(SET_IN_SESSION.1.as_bytes());
            }
            out.extend_from_slice(SETTING.0.as_bytes());
            write_string(name, out);
            out.extend_from_slice(SETTING.1.as_bytes());
            if exact {
                out.extend_from_slice(b" END");
            }
        }
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
        let mut answer = Answer { present: PartSet::EMPTY, values: Vec::new() };
        let mut asked = 0;
        for (part, _) in PARTS.iter().filter(|(part, _)| self.parts.contains(*part)) {
            asked += 1;
            match next()? {
                Some(b"t") => answer.present.insert(*part),
                Some(b"f") => {}
                _ => return None,
            }
        }
        for _ in &self.names {
            asked += 1;
            let value = next()?;
            // In bytes: a longer one may be cut, or be just as long in characters of several.
            if value.is_some_and(|value| value.len() > VALUE_CHARACTERS_MAX) {
                return None;
            }
            answer.values.push(value.map(Into::into));
        }
        (usize::from(columns) == asked && rest.is_empty()).then_some(answer)
    }
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
        assert!(question.read(&row(&[t, t, t, t, Some(b"v")])).is_some());
        let long = vec![b'a'; VALUE_CHARACTERS_MAX + 1];
        for values in [
            &[t, t, t, t][..],
            &[t, t, t, t, t, t],
            &[t, t, None, t, t],
            &[t, t, Some(b"true"), t, t],
            &[t, t, t, t, Some(&long)],
        ] {
            assert!(question.read(&row(values)).is_none(), "{values:?}");
        }
        assert!(question.read(b"").is_none());
        let mut cut = row(&[t, t, t, t, Some(b"value")]);
        cut.pop();
        assert!(question.read(&cut).is_none());
    }
}
