//! What a server with the extension reports of a session: the text of `hawser.state`.
//!
//! # Model
//! ```text
//! state = "1" *( " " item )
//! item  = word [ "=" value *( "," value ) ]
//! ```
//! It comes as a ParameterStatus before the ReadyForQuery of a transaction's end, if it is another
//! than the one before. It is exact there (extension/README.md, "The text of hawser.state"): the
//! session does not hold what is not in it.
//!
//! # Invariants  a text that is not understood to the last byte is no report: the reader falls back
//!               to what is known without it. Values never reach a log.
//! # Limits      variables of procedural languages and named connections are in no report.

use std::fmt;

use crate::session::aside::KEEPING;
use crate::session::part::{Part, PartSet};

/// The parameter that carries it. No client can set it or see it.
pub const NAME: &[u8] = b"hawser.state";

/// The parameter that grows whenever what statements mean may have changed (extension/schema.c). It
/// also comes before the ReadyForQuery that ends a transaction. No client can set it or see it.
pub const SCHEMA: &[u8] = b"hawser.schema";

/// The parameter that reports what the server process keeps until it exits (extension/kept.c), when
/// that has changed. No client can set it or see it.
pub const PROCESS: &[u8] = b"hawser.process";

/// The startup parameter that asks a server for it.
pub const ASKING: &[u8] = b"hawser.report";

/// The startup parameter that gives the extension our name of the connection: our number as a
/// pooler in hexadecimal, `/`, the number of the connection. The extension asks by it which client
/// has the connection.
pub const CONNECTION: &[u8] = b"hawser.connection";

/// The version of the text that is understood.
pub const VERSION: &[u8] = b"1";

/// The longest text: more than a server sends (16 KiB, STATE_BYTES_MAX in state.c).
pub const BYTES_MAX: usize = 64 * 1024;

/// Parts that a report covers completely.
pub const COVERED: PartSet = PartSet::of(&[
    Part::ReportedSetting,
    Part::StartSetting,
    Part::Setting,
    Part::CustomSetting,
    Part::Role,
    Part::SessionAuthorization,
    Part::SqlStatement,
    Part::Listen,
    Part::TemporaryObject,
    Part::HeldCursor,
    Part::AdvisoryLock,
    Part::SequenceValue,
    Part::Seed,
    Part::LoadedLibrary,
    Part::BackupInProgress,
    Part::TemporarySlot,
    Part::ReplicationOrigin,
]);

/// What a report says about one setting that the session has set.
#[derive(Clone, PartialEq, Eq)]
pub struct SetTo {
    /// Its name, in lower case.
    pub name: Box<[u8]>,
    /// Its value as SHOW gives it, in the server's encoding. `None`: it is too long, or only some
    /// roles may see it.
    pub value: Option<Box<[u8]>>,
}

/// The name only: values are a client's own and never reach a log.
impl fmt::Debug for SetTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.name.escape_ascii())
    }
}

/// What a session holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The parts other than settings that exist.
    pub parts: PartSet,
    /// Settings whose value is the session's own, in the order of their names.
    pub settings: Vec<SetTo>,
    /// Custom names, in lower case, that the session has created for its whole life.
    pub names: Vec<Box<[u8]>>,
    /// Names of the statements of SQL's PREPARE, sorted, in the server's encoding.
    pub statements: Vec<Box<[u8]>>,
    /// The text could not hold everything: what is missing in it may exist.
    pub is_cut: bool,
}

/// Why a text is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportError {
    /// It is of another version.
    Version,
    /// The server's library was loaded in mid-session: what happened before is not known.
    Late,
    /// It is not in the form of a report, or has an item that is not known.
    Unreadable,
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "it is of another version than this program understands",
            Self::Late => {
                "the extension was loaded in mid-session; put it into shared_preload_libraries"
            }
            Self::Unreadable => "it cannot be read",
        })
    }
}

impl std::error::Error for ReportError {}

/// Items that are either there or not.
const FLAGS: [(&[u8], Part); 7] = [
    (b"temp", Part::TemporaryObject),
    (b"sequences", Part::SequenceValue),
    (b"seed", Part::Seed),
    (b"library", Part::LoadedLibrary),
    (b"backup", Part::BackupInProgress),
    (b"origin", Part::ReplicationOrigin),
    (b"slots", Part::TemporarySlot),
];

/// Items whose names matter only in that there are any.
const LISTS: [(&[u8], Part); 3] = [
    (b"cursors", Part::HeldCursor),
    (b"listen", Part::Listen),
    (b"statements", Part::SqlStatement),
];

impl Report {
    /// Reads the value of the parameter.
    ///
    /// # Errors
    /// It is nothing that may be relied on: see [`ReportError`].
    pub fn read(text: &[u8]) -> Result<Report, ReportError> {
        if text.len() > BYTES_MAX {
            return Err(ReportError::Unreadable);
        }
        let mut items = text.split(|byte| *byte == b' ');
        if items.next() != Some(VERSION) {
            return Err(ReportError::Version);
        }
        let mut report = Report::default();
        let mut seen: Vec<&[u8]> = Vec::new();
        for item in items {
            let equals = item.iter().position(|byte| *byte == b'=');
            let (word, values) = match equals {
                Some(at) => (&item[..at], Some(&item[at + 1..])),
                None => (item, None),
            };
            if seen.contains(&word) || report.is_cut {
                return Err(ReportError::Unreadable); // twice, or after the end
            }
            seen.push(word);
            report.take(word, values)?;
        }
        Ok(report)
    }

    fn take(&mut self, word: &[u8], values: Option<&[u8]>) -> Result<(), ReportError> {
        let part = |known: &[(&[u8], Part)]| {
            known.iter().find(|(name, _)| *name == word).map(|(_, part)| *part)
        };
        let Some(values) = values else {
            match word {
                b"late" => return Err(ReportError::Late),
                b"more" => self.is_cut = true,
                _ => self.parts.insert(part(&FLAGS).ok_or(ReportError::Unreadable)?),
            }
            return Ok(());
        };
        let values = values.split(|byte| *byte == b',');
        match word {
            b"locks" => {
                number(values)?;
                self.parts.insert(Part::AdvisoryLock);
            }
            b"names" => {
                for value in values {
                    let name = name(value)?;
                    if !is_ours(&name) {
                        self.names.push(name);
                    }
                }
            }
            b"set" => {
                for value in values {
                    let (of, value) = match value.iter().position(|byte| *byte == b':') {
                        Some(at) => (&value[..at], Some(unescaped(&value[at + 1..])?)),
                        None => (value, None),
                    };
                    let name = name(of)?;
                    if !is_ours(&name) {
                        self.settings.push(SetTo { name, value });
                    }
                }
                // Custom names are compared without case.
                self.settings.sort_by(|one, other| one.name.cmp(&other.name));
                if self.settings.windows(2).any(|pair| pair[0].name == pair[1].name) {
                    return Err(ReportError::Unreadable);
                }
            }
            _ => {
                let part = part(&LISTS).ok_or(ReportError::Unreadable)?;
                for value in values {
                    let name = unescaped(value)?;
                    if name.is_empty() {
                        return Err(ReportError::Unreadable);
                    }
                    if part == Part::SqlStatement {
                        self.statements.push(name);
                    }
                }
                self.statements.sort_unstable();
                self.parts.insert(part);
            }
        }
        Ok(())
    }

    /// What it says about a setting, by its name in lower case.
    pub fn setting(&self, name: &[u8]) -> Option<&SetTo> {
        let at = self.settings.binary_search_by(|set| (*set.name).cmp(name)).ok()?;
        Some(&self.settings[at])
    }

    /// Whether the session has made this custom name, in lower case.
    pub fn knows(&self, name: &[u8]) -> bool {
        self.names.iter().any(|known| **known == *name)
    }
}

/// What a server process keeps until it exits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Buffers for temporary tables, in kB.
    pub buffers: Option<u64>,
    /// Settings, in lower case, that libraries have defined since it began.
    pub defined: Vec<Box<[u8]>>,
}

impl Kept {
    /// Reads the value of [`PROCESS`]: `"1" [ " buffers=" N ] [ " defined=" name *( "," name ) ]`.
    ///
    /// # Errors
    /// It is nothing that may be relied on: see [`ReportError`].
    pub fn read(text: &[u8]) -> Result<Kept, ReportError> {
        let mut items = text.split(|byte| *byte == b' ');
        if items.next() != Some(VERSION) {
            return Err(ReportError::Version);
        }
        let mut kept = Kept::default();
        for item in items {
            if let Some(size) = item.strip_prefix(b"buffers=") {
                kept.buffers = Some(number(std::iter::once(size))?);
            } else if let Some(names) = item.strip_prefix(b"defined=") {
                kept.defined =
                    names.split(|byte| *byte == b',').map(name).collect::<Result<_, _>>()?;
            } else {
                return Err(ReportError::Unreadable);
            }
        }
        Ok(kept)
    }
}

/// The only one of these, a number above zero.
fn number<'a>(values: impl Iterator<Item = &'a [u8]>) -> Result<u64, ReportError> {
    let digits: Vec<&[u8]> = values.collect();
    let [digits] = digits[..] else { return Err(ReportError::Unreadable) };
    let is_number = digits.iter().all(u8::is_ascii_digit) && digits.len() <= 10;
    if !is_number || digits.first().is_none_or(|first| *first == b'0') {
        return Err(ReportError::Unreadable);
    }
    Ok(digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// Whether a custom name is one of Hawser's own, and no state of the session.
fn is_ours(name: &[u8]) -> bool {
    name.starts_with(KEEPING.as_bytes())
}

/// A name, which is not empty, in lower case.
fn name(escaped: &[u8]) -> Result<Box<[u8]>, ReportError> {
    let mut name = unescaped(escaped)?;
    if name.is_empty() {
        return Err(ReportError::Unreadable);
    }
    name.make_ascii_lowercase();
    Ok(name)
}

/// `%XX` is a byte; letters, digits and `_.-/` stand for themselves, and nothing else stands there.
fn unescaped(escaped: &[u8]) -> Result<Box<[u8]>, ReportError> {
    let digit = |byte: Option<&u8>| match byte {
        Some(digit @ b'0'..=b'9') => Ok(digit - b'0'),
        Some(letter @ b'A'..=b'F') => Ok(letter - b'A' + 10),
        _ => Err(ReportError::Unreadable),
    };
    let mut plain = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter();
    while let Some(&byte) = bytes.next() {
        plain.push(match byte {
            b'%' => digit(bytes.next())? << 4 | digit(bytes.next())?,
            _ if byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte) => byte,
            _ => return Err(ReportError::Unreadable),
        });
    }
    if plain.contains(&0) {
        return Err(ReportError::Unreadable); // no string of a server's has one
    }
    Ok(plain.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Report, ReportError> {
        Report::read(text.as_bytes())
    }

    #[test]
    fn what_the_table_says_of_the_extension_is_covered() {
        let document = include_str!("../../../../../docs/sessions/README.md");
        for row in document.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let (name, known_by) = (cells[1].trim_matches('`'), cells[2]);
            // No report lists variables: the configuration names them.
            let listed = known_by.contains("Extension") && name != Part::PlVariable.name();
            let covered = COVERED.iter().any(|part| part.name() == name);
            assert!(listed == covered || known_by == "Wire", "{name}");
        }
    }

    #[test]
    fn a_session_without_state_has_none() {
        assert_eq!(read("1"), Ok(Report::default()));
    }

    #[test]
    fn what_keeps_values_around_a_parse_is_no_state() {
        let report = read("1 names=hawser_before.s0,my.x set=hawser_before.s0:a").unwrap();
        assert!(report.knows(b"my.x") && !report.knows(b"hawser_before.s0"));
        assert!(report.settings.is_empty());
    }

    #[test]
    fn each_item_is_its_part() {
        for (item, part) in [
            ("temp", Part::TemporaryObject),
            ("locks=12", Part::AdvisoryLock),
            ("sequences", Part::SequenceValue),
            ("seed", Part::Seed),
            ("library", Part::LoadedLibrary),
            ("backup", Part::BackupInProgress),
            ("origin", Part::ReplicationOrigin),
            ("slots", Part::TemporarySlot),
            ("cursors=c,C%20x", Part::HeldCursor),
            ("listen=foo,bar", Part::Listen),
            ("statements=p", Part::SqlStatement),
        ] {
            let report = read(&format!("1 {item}")).unwrap();
            assert_eq!(report.parts, PartSet::of(&[part]), "{item}");
            assert!(report.settings.is_empty() && report.names.is_empty() && !report.is_cut);
            assert!(COVERED.contains(part), "{item}");
        }
    }

    #[test]
    fn what_a_process_keeps_is_read_to_the_last_byte() {
        let read = |text: &str| Kept::read(text.as_bytes());
        assert_eq!(read("1"), Ok(Kept::default()));
        let kept = read("1 buffers=8192 defined=Plpgsql.check_asserts,pg_trgm.x").unwrap();
        assert_eq!(kept.buffers, Some(8192));
        assert_eq!(kept.defined.len(), 2);
        assert_eq!(&*kept.defined[0], b"plpgsql.check_asserts");
        assert_eq!(read("2"), Err(ReportError::Version));
        for text in ["1 ", "1 buffers", "1 buffers=", "1 buffers=0", "1 buffers=1,2", "1 defined="]
        {
            assert_eq!(read(text), Err(ReportError::Unreadable), "{text}");
        }
    }

    #[test]
    fn settings_are_reported_with_their_values() {
        let report = read(
            "1 temp set=application_name:,My.B:%C3%A9%20x,work_mem:5MB,long.v names=My.B more",
        );
        let report = report.unwrap();
        assert_eq!(report.parts, PartSet::of(&[Part::TemporaryObject]));
        let value = |name: &[u8]| report.setting(name).unwrap().value.as_deref();
        assert_eq!(value(b"work_mem"), Some(&b"5MB"[..]));
        assert_eq!(value(b"application_name"), Some(&b""[..]));
        assert_eq!(value(b"my.b"), Some("\u{e9} x".as_bytes()));
        assert_eq!(value(b"long.v"), None);
        assert_eq!(report.setting(b"search_path"), None);
        assert!(report.knows(b"my.b") && !report.knows(b"long.v") && report.is_cut);
        assert!(!format!("{report:?}").contains("5MB"));
    }

    #[test]
    fn what_the_extension_was_observed_to_send_is_read() {
        for text in [
            "1 set=search_path:%22%24user%22%2C%20%22a%20b%22",
            "1 set=role:none,session_authorization:pg_monitor",
            "1 temp locks=2 sequences seed library backup origin slots cursors=c listen=a \
             statements=p,q set=my.y:1 names=my.y",
        ] {
            assert!(read(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_report() {
        for text in ["", " ", "2", "11 temp", "1temp", "temp", "0", "1\ttemp"] {
            assert_eq!(read(text), Err(ReportError::Version), "{text}");
        }
        assert_eq!(read("1 late"), Err(ReportError::Late));
        for text in [
            "1 ",
            "1  temp",
            "1 temp ",
            "1 other",
            "1 other=x",
            "1 temp=x",
            "1 locks",
            "1 locks=",
            "1 locks=0",
            "1 locks=-1",
            "1 locks=1,2",
            "1 locks=x",
            "1 temp temp",
            "1 set=a:1 set=b:2",
            "1 set=",
            "1 set=:x",
            "1 set=a:1,A:2",
            "1 set=a:b:c",
            "1 set=a:%",
            "1 set=a:%4",
            "1 set=a:%4g",
            "1 set=a:%4a",
            "1 set=a:%00",
            "1 set=a:x'y",
            "1 set=a:x,",
            "1 names=,",
            "1 statements=",
            "1 cursors",
            "1 more temp",
            "1 set=a:\u{e9}",
            "1 temp\0",
        ] {
            assert_eq!(read(text), Err(ReportError::Unreadable), "{text}");
        }
        let long = format!("1 set=a:{}", "x".repeat(BYTES_MAX));
        assert_eq!(read(&long), Err(ReportError::Unreadable));
    }
}
