//! Sets a client's start values again after a statement that resets settings to the server's.
//!
//! # The trap
//! RESET, RESET ALL, SET ... TO DEFAULT and DISCARD ALL give a setting the value with which the
//! *server connection* began (`reset_val`, guc.c). A client that shares server connections began
//! with values of its own, and means those.
//!
//! # Model
//! * extended protocol: the client's values are SET in the same pipeline, after the Execute
//! * a simple query: they are SET in its text, after the statement that resets them; answers to the
//!   inserted statements are dropped, and positions of errors counted back
//! * DISCARD ALL stands alone in a text, and commits by itself in a pipeline. An error after it in
//!   the pipeline would undo a SET there: so a Sync of Hawser's, which commits no more than DISCARD
//!   ALL has, ends the pipeline; the following messages wait for the outcome; and the start values
//!   are sent before them, as before any first message.
//!
//! # Invariants
//! The values are SET in the same transaction and savepoint as the reset: whatever undoes the one
//! undoes the other.
//!
//! # Limits
//! set_config() of a literal name with NULL is a RESET: the client's value is written in place of
//! the NULL, in a Parse as well, and in a Bind (`from_client::client_message::written`). Nothing is
//! inserted in a text that streams ([`crate::relay::limits::WHOLE_TEXT_BYTES`]), that has more notable
//! statements than are listed, that would get more than [`INSERTED_BYTES_MAX`], or that cannot be
//! read for certain: the start values are back when it has ended (not after set_config()). A
//! message's length precedes its text, so the insertions must be known before the first byte is
//! sent: such a text has to be kept, and no client may keep more than a loop's buffer holds. What
//! functions and DO blocks reset: `Effects::resets`.

mod steps;

use std::ops::Range;

use crate::relay::effects::{KEPT_BY_RESET_ALL, Resetting, Unusual};
use crate::session::scan::{Findings, Name, SetValue, Verb};
use crate::session::settings;
use crate::session::settings::quoting::write_value;
use crate::session::settings::{Change, Settings};
use crate::wire::error::with_position;

/// Bytes that are inserted in one text: many RESET ALL, each with all start values after it, would
/// multiply.
const INSERTED_BYTES_MAX: usize = 256 * 1024;

/// Statements that are inserted in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Insertion {
    /// The end of a statement.
    pub(crate) at: usize,
    /// The client's statements since the last insertion.
    pub(crate) statements_before: u32,
    pub(crate) statements: Vec<Vec<u8>>,
}

/// A replacement in a text that is never longer than the original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replacement {
    range: Range<usize>,
    literal: Vec<u8>,
}

impl Replacement {
    /// Padded with spaces if it has fewer characters.
    pub(crate) fn new(range: Range<usize>, mut literal: Vec<u8>) -> Self {
        let missing = range.len().saturating_sub(characters(&literal, true));
        literal.resize(literal.len() + missing, b' ');
        Self { range, literal }
    }
}

/// A place from which on a text is longer than the client's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Longer {
    /// Characters of the client's text before it.
    at: usize,
    /// Characters inserted.
    by: usize,
}

/// Where texts in flight are longer than their client's own.
#[derive(Debug, Default)]
pub(crate) struct LongerTexts {
    /// The text of the Query that is being answered, in order.
    query: Vec<Longer>,
    /// The last Parse whose text is longer, by its serial.
    parse: Option<(u32, Box<[Longer]>)>,
}

impl LongerTexts {
    /// Where the text of the Query that is being answered is longer.
    #[inline]
    pub(crate) fn of_query(&self) -> &[Longer] {
        &self.query
    }

    /// The Query is answered, or another begins.
    #[inline]
    pub(crate) fn query_ended(&mut self) {
        self.query.clear();
    }

    /// The Query's text is longer at these places, too.
    fn extend(&mut self, longer: impl IntoIterator<Item = Longer>) {
        self.query.extend(longer);
        self.query.sort_by_key(|longer| longer.at);
    }

    /// The text of this Parse is longer at these places.
    pub(crate) fn parse(&mut self, serial: u32, longer: Box<[Longer]>) {
        self.parse = Some((serial, longer));
    }

    /// Where the text of this Parse is longer, if it is.
    pub(crate) fn take_parse(&mut self, serial: u32) -> Option<Box<[Longer]>> {
        self.parse.take_if(|(of, _)| *of == serial).map(|(_, longer)| longer)
    }
}

/// The statement that gives a setting its value in `start`, if it has one there.
fn set_again(start: &Settings, name: &[u8], local: bool) -> Option<Vec<u8>> {
    let value = start.get(name)?;
    let name = name.to_ascii_lowercase();
    let mut text = Vec::new();
    let change = Change::Set(&name, value);
    if local {
        settings::write_set_local(change, &mut text);
    } else {
        settings::write_set_query([change], &mut text);
    }
    Some(text)
}

/// The statements that give a setting its value in `start`, and those that are reset with it: see
/// [`Resetting::add`].
fn set_with_others_again(start: &Settings, name: &[u8], local: bool) -> Vec<Vec<u8>> {
    let with_user = name.eq_ignore_ascii_case(b"session_authorization");
    let names = [Some(name), with_user.then_some(&b"role"[..])];
    names.into_iter().flatten().filter_map(|name| set_again(start, name, local)).collect()
}

/// The statements that give all settings their values in `start`.
fn set_all_again(start: &Settings) -> Vec<Vec<u8>> {
    let kept = |name: &[u8]| KEPT_BY_RESET_ALL.contains(&name);
    let names = start.iter().map(|(name, _)| name).filter(|name| !kept(name));
    names.filter_map(|name| set_again(start, name, false)).collect()
}

/// The statements that must follow the only statement of a text.
fn statements_after(start: &Settings, unusual: &Unusual) -> Vec<Vec<u8>> {
    let mut texts = match &unusual.resetting {
        Resetting::No | Resetting::Names(_) => Vec::new(),
        Resetting::All { .. } => set_all_again(start),
    };
    let names = unusual.resetting.names().iter();
    texts.extend(names.filter_map(|name| set_again(start, name, false)));
    let local = unusual.local_defaults.iter();
    texts.extend(local.flat_map(|name| set_with_others_again(start, name, true)));
    texts
}

/// The insertions for a text that has been scanned. `None` if they are not certain.
pub(crate) fn insertions(findings: &Findings, start: &Settings) -> Option<Vec<Insertion>> {
    if findings.unsure || findings.truncated {
        return None;
    }
    let mut all = Vec::new();
    let (mut before, mut bytes) = (0, 0);
    for statement in findings.statements() {
        let statements: Vec<_> = match &statement.verb {
            Verb::Set { name, local, value: SetValue::Default } => {
                set_with_others_again(start, name.as_bytes(), *local)
            }
            Verb::Reset(name) => set_with_others_again(start, name.as_bytes(), false),
            Verb::ResetAll => set_all_again(start),
            // With other statements it fails, at any position (`PreventInTransactionBlock`,
            // xact.c).
            Verb::DiscardAll if findings.count() > 1 => Vec::new(),
            Verb::DiscardAll => return None,
            _ => Vec::new(),
        };
        if !statements.is_empty() {
            bytes += statements.iter().map(Vec::len).sum::<usize>();
            let statements_before =
                statement.number - std::mem::replace(&mut before, statement.number);
            all.push(Insertion { at: statement.range.end, statements_before, statements });
        }
        if bytes > INSERTED_BYTES_MAX {
            return None;
        }
    }
    Some(all)
}

/// A client's start values, as replacements of the NULLs of a text that has been scanned.
pub(crate) fn values_for_nulls(findings: &Findings, start: &Settings) -> Vec<Replacement> {
    if findings.unsure || findings.truncated {
        return Vec::new();
    }
    let value = |(name, range): &(Name, Range<usize>)| {
        let mut literal = Vec::new();
        write_value(start.get(name.as_bytes())?, &mut literal);
        Some(Replacement::new(range.clone(), literal))
    };
    findings.nulls.iter().filter_map(value).collect()
}

/// Makes the replacements in a text, which are in its order, and moves the insertions accordingly.
pub(crate) fn replaced(
    text: &[u8],
    replacements: &[Replacement],
    insertions: &mut [Insertion],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 64 * replacements.len());
    let mut from = 0;
    for Replacement { range, literal } in replacements {
        out.extend_from_slice(&text[from..range.start]);
        out.extend_from_slice(literal);
        from = range.end;
    }
    out.extend_from_slice(&text[from..]);
    for insertion in insertions {
        let ahead = replacements.iter().filter(|replaced| replaced.range.end <= insertion.at);
        insertion.at = ahead
            .fold(insertion.at, |at, replaced| at + replaced.literal.len() - replaced.range.len());
    }
    out
}

/// Both of two sets of insertions in one text, which are never at the same place.
pub(crate) fn merged(one: Vec<Insertion>, other: Vec<Insertion>) -> Vec<Insertion> {
    if one.is_empty() || other.is_empty() {
        return if one.is_empty() { other } else { one };
    }
    // By the numbers of the statements that they follow.
    let mut all: Vec<(u32, Insertion)> = Vec::new();
    for set in [one, other] {
        let mut number = 0;
        for insertion in set {
            number += insertion.statements_before;
            all.push((number, insertion));
        }
    }
    all.sort_by_key(|(number, _)| *number);
    let mut before = 0;
    all.into_iter()
        .map(|(number, insertion)| {
            let statements_before = number - std::mem::replace(&mut before, number);
            Insertion { statements_before, ..insertion }
        })
        .collect()
}

/// Writes a text with its insertions.
pub(crate) fn write_with(text: &[u8], insertions: &[Insertion], out: &mut Vec<u8>) {
    let mut from = 0;
    for insertion in insertions {
        out.extend_from_slice(&text[from..insertion.at]);
        for statement in &insertion.statements {
            out.push(b';');
            out.extend_from_slice(statement);
        }
        from = insertion.at;
    }
    out.extend_from_slice(&text[from..]);
}

/// Characters of a text; where the encoding is not known to be UTF-8, bytes.
fn characters(text: &[u8], utf8: bool) -> usize {
    text.iter().filter(|byte| !utf8 || **byte & 0xc0 != 0x80).count()
}

/// An error's body with the position in the client's own text.
pub(crate) fn count_back(error: &[u8], longer: &[Longer]) -> Option<Vec<u8>> {
    with_position(error, |position| {
        // Counted from 1; each insertion counts characters of the client's text.
        let mut own = position;
        for longer in longer {
            if own > longer.at + longer.by {
                own -= longer.by;
            } else {
                own = own.min(longer.at.max(1));
            }
        }
        own
    })
}

/// By how much, and where, replacements make a text longer.
pub(crate) fn lengthened(
    text: &[u8],
    replaced: &[Replacement],
    utf8: bool,
) -> impl Iterator<Item = Longer> {
    replaced.iter().map(move |Replacement { range, literal }| Longer {
        at: characters(&text[..range.end], utf8),
        by: characters(literal, utf8) - range.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::scan::{ScanOptions, scan};
    use crate::session::settings::SettingsBuilder;

    fn start() -> Settings {
        [("timezone", "Asia/Tokyo"), ("search_path", "a,b"), ("role", "reader")]
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
            .collect::<SettingsBuilder>()
            .build()
    }

    fn restored(text: &str) -> String {
        let findings = scan(text.as_bytes(), ScanOptions::default());
        let Some(insertions) = insertions(&findings, &start()) else { return "-".to_owned() };
        let mut out = Vec::new();
        write_with(text.as_bytes(), &insertions, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_written_is_never_shorter_in_characters() {
        let text = b"select set_config('my.x', null, false), oops";
        let at = text.windows(4).position(|word| word == b"null").unwrap();
        let replaced_by = |literal: &str| {
            let all = [Replacement::new(at..at + 4, literal.as_bytes().to_vec())];
            let sent = String::from_utf8(replaced(text, &all, &mut [])).unwrap();
            let position = sent.chars().position(|c| c == 'o').unwrap() + 1;
            let longer: Vec<_> = lengthened(text, &all, true).collect();
            let error = format!("P{position}\0\0").into_bytes();
            (sent.len(), count_back(&error, &longer).unwrap_or(error))
        };
        let own = text.iter().position(|byte| *byte == b'o').unwrap() + 1;
        for literal in ["'\u{e9}'", "''", "'\u{e9}\u{e9}'", "'Asia/Tokyo'"] {
            let (_, error) = replaced_by(literal);
            assert_eq!(error, format!("P{own}\0\0").as_bytes(), "{literal}");
        }
    }

    #[test]
    fn start_values_stand_after_what_takes_them() {
        let zone = "SET \"timezone\" TO 'Asia/Tokyo'";
        let path = "SELECT pg_catalog.set_config('search_path','a,b',false)";
        for (text, put) in [
            ("SELECT 1; SELECT 2", "SELECT 1; SELECT 2".to_owned()),
            ("RESET TimeZone; SELECT 2", format!("RESET TimeZone;{zone}; SELECT 2")),
            ("reset time zone -- x", format!("reset time zone;{zone} -- x")),
            ("RESET ALL;", format!("RESET ALL;{path};{zone};")),
            (
                "RESET application_name; RESET ROLE",
                "RESET application_name; RESET ROLE;SET \"role\" TO 'reader'".into(),
            ),
            (
                "BEGIN; SET LOCAL TimeZone TO DEFAULT; COMMIT",
                format!(
                    "BEGIN; SET LOCAL TimeZone TO DEFAULT;{}; COMMIT",
                    zone.replace("SET", "SET LOCAL")
                ),
            ),
            ("DISCARD ALL", "-".to_owned()),
            ("RESET TimeZone; DISCARD ALL", format!("RESET TimeZone;{zone}; DISCARD ALL")),
            ("RESET TimeZone; SELECT 'open", "-".to_owned()),
        ] {
            assert_eq!(restored(text), put, "{text}");
        }
    }

    #[test]
    fn what_is_put_into_a_text_has_a_bound() {
        let count = |text: &str| {
            let findings = scan(text.as_bytes(), ScanOptions::default());
            insertions(&findings, &start())
                .map(|all| (all.len(), all.last().unwrap().statements_before))
        };
        let many = "SELECT 1;".repeat(1_000);
        assert_eq!(count(&format!("{many}RESET TimeZone; SELECT 2")), Some((1, 1_001)));
        let long: Settings = [(&b"timezone"[..], &[b'x'; INSERTED_BYTES_MAX / 100][..])]
            .into_iter()
            .collect::<SettingsBuilder>()
            .build();
        for (resets, put) in [(90, true), (110, false)] {
            let findings = scan("RESET ALL;".repeat(resets).as_bytes(), ScanOptions::default());
            assert_eq!(insertions(&findings, &long).is_some(), put, "{resets}");
        }
    }

    #[test]
    fn start_values_stand_in_place_of_nulls() {
        for (text, sent) in [
            (
                "SELECT set_config('TimeZone', NULL, false)",
                "SELECT set_config('TimeZone', 'Asia/Tokyo', false)",
            ),
            (
                "select SET_CONFIG('ROLE',null,true), 1",
                "select SET_CONFIG('ROLE','reader',true), 1",
            ),
            ("SELECT set_config('work_mem', NULL, false)", "="),
            ("SELECT set_config('TimeZone', NULL::text, false)", "="),
            ("SELECT set_config($1, NULL, false)", "="),
            ("SELECT set_config('TimeZone', 'NULL', false), NULL", "="),
        ] {
            let findings = scan(text.as_bytes(), ScanOptions::default());
            let replacements = values_for_nulls(&findings, &start());
            let made = replaced(text.as_bytes(), &replacements, &mut []);
            let expected = if sent == "=" { text } else { sent };
            assert_eq!(String::from_utf8(made).unwrap(), expected);
        }
        let text = b"SELECT set_config('TimeZone', NULL, false); RESET role";
        let findings = scan(text, ScanOptions::default());
        let mut put = insertions(&findings, &start()).unwrap();
        let sent = replaced(text, &values_for_nulls(&findings, &start()), &mut put);
        let mut out = Vec::new();
        write_with(&sent, &put, &mut out);
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains("'Asia/Tokyo', false); RESET role;SET \"role\""), "{out}");
    }

    #[test]
    fn positions_are_counted_in_the_clients_own_text() {
        let text = b"RESET TimeZone; SELECT 1/0";
        let insertions = insertions(&scan(text, ScanOptions::default()), &start()).unwrap();
        let mut out = Vec::new();
        write_with(text, &insertions, &mut out);
        let by = out.len() - text.len();
        let longer = [Longer { at: insertions[0].at, by }];
        for own in [1, 14, 15, 16, 26] {
            let sent = if own > 14 { own + by } else { own };
            let body = format!("SERROR\0P{sent}\0Mwrong\0\0");
            let counted = count_back(body.as_bytes(), &longer).unwrap();
            assert_eq!(counted, format!("SERROR\0P{own}\0Mwrong\0\0").as_bytes());
        }
        assert_eq!(count_back(b"SERROR\0Mwrong\0\0", &longer), None);
    }
}
