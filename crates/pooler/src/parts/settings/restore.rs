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
//! # Why not after the text
//! `RESET search_path; INSERT ...` in one text would write to another schema, `RESET ALL; ...` run
//! under another role or time zone. No pin gives what follows a RESET its values.
//!
//! # Limits
//! set_config() of a literal name with NULL is a RESET: the client's value is written in place of
//! the NULL, in a Parse as well, and in a Bind (`from_client::client_message::written`). Nothing is
//! inserted in a text that streams ([`crate::relay::limits::WHOLE_TEXT_BYTES`]), that has more notable
//! statements than are listed, that would get more than [`WRITTEN_BYTES_MAX`], or that cannot be
//! read for certain: the start values are SET when it has ended, before the client's next message
//! (not after set_config()), and the server is asked after the transaction what has come of it. A
//! message's length precedes its text, so the insertions must be known before the first byte is
//! sent: such a text has to be kept, and no client may keep more than a loop's buffer holds. What
//! functions and DO blocks reset: `Effects::resets`.

mod steps;

use std::ops::Range;

use crate::relay::effects::{KEPT_BY_RESET_ALL, Resetting, Unusual};
use crate::session::scan::{Findings, Name, SetValue, Statement, Verb};
use crate::session::settings;
use crate::session::settings::quoting::write_value;
use crate::session::settings::{Change, Settings};
use crate::wire::error::with_position;

/// Bytes of the statements that are written into one text: many RESET ALL, each with all start
/// values after it, would multiply.
const WRITTEN_BYTES_MAX: usize = 256 * 1024;

/// What is written into a client's text: after a statement, or in place of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    /// Bytes of the client's text in whose place it stands; none after a statement.
    range: Range<usize>,
    written: Vec<u8>,
    /// The number of the statement that it follows, and how many statements it is.
    follows: Option<(u32, usize)>,
}

impl Edit {
    /// Statements of Hawser's after one of the client's.
    pub(crate) fn after(statement: &Statement, made: &[Vec<u8>]) -> Self {
        let at = statement.range.end;
        let written = made.iter().flat_map(|text| [&b";"[..], text]).flatten().copied().collect();
        Self { range: at..at, written, follows: Some((statement.number, made.len())) }
    }

    /// In place of a part. Padded with spaces if it has fewer characters.
    pub(crate) fn in_place_of(range: Range<usize>, mut written: Vec<u8>) -> Self {
        let missing = range.len().saturating_sub(characters(&written, true));
        written.resize(written.len() + missing, b' ');
        Self { range, written, follows: None }
    }

    /// Where it stands in the client's text.
    pub(crate) fn start(&self) -> usize {
        self.range.start
    }
}

/// A place from which on a text is longer than the client's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Longer {
    /// Characters of the client's text before it.
    at: usize,
    /// Characters more.
    by: usize,
}

/// Where texts in flight are longer than their client's own.
#[derive(Debug, Default)]
pub(crate) struct LongerTexts {
    /// The text of the Query that is being answered.
    query: Box<[Longer]>,
    /// The last Parse whose text is longer, by its serial.
    parse: Option<(u32, Box<[Longer]>)>,
}

impl LongerTexts {
    /// Where the text of the Query that is being answered is longer.
    #[inline]
    pub(crate) fn of_query(&self) -> &[Longer] {
        &self.query
    }

    /// The Query is answered.
    #[inline]
    pub(crate) fn query_ended(&mut self) {
        self.query = Box::default();
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

/// The start values that are SET in a text that has been scanned, after what resets them. `None` if
/// they are not certain.
pub(crate) fn values_after_resets(findings: &Findings, start: &Settings) -> Option<Vec<Edit>> {
    if findings.unsure || findings.truncated {
        return None;
    }
    let mut all = Vec::new();
    let mut bytes = 0;
    for statement in findings.statements() {
        let made = match &statement.verb {
            Verb::Set { name, local, value: SetValue::Default } => {
                set_with_others_again(start, name.as_bytes(), *local)
            }
            Verb::Reset(name) => set_with_others_again(start, name.as_bytes(), false),
            Verb::ResetAll => set_all_again(start),
            // With other statements it fails, at any position (`PreventInTransactionBlock`,
            // xact.c).
            Verb::DiscardAll if findings.count() == 1 => return None,
            _ => continue,
        };
        if !made.is_empty() {
            all.push(Edit::after(statement, &made));
        }
        bytes += made.iter().map(Vec::len).sum::<usize>();
        if bytes > WRITTEN_BYTES_MAX {
            return None;
        }
    }
    Some(all)
}

/// A client's start values in place of the NULLs of a text that has been scanned.
pub(crate) fn values_for_nulls(findings: &Findings, start: &Settings) -> Vec<Edit> {
    if findings.unsure || findings.truncated {
        return Vec::new();
    }
    let value = |(name, range): &(Name, Range<usize>)| {
        let mut literal = Vec::new();
        write_value(start.get(name.as_bytes())?, &mut literal);
        Some(Edit::in_place_of(range.clone(), literal))
    };
    findings.nulls.iter().filter_map(value).collect()
}

/// Writes a text with its edits, which are in its order.
pub(crate) fn write_edited(text: &[u8], edits: &[Edit], out: &mut Vec<u8>) {
    let mut from = 0;
    for edit in edits {
        out.extend_from_slice(&text[from..edit.range.start]);
        out.extend_from_slice(&edit.written);
        from = edit.range.end;
    }
    out.extend_from_slice(&text[from..]);
}

/// Where edits make a text longer.
pub(crate) fn longer(text: &[u8], edits: &[Edit], utf8: bool) -> Box<[Longer]> {
    let longer = |Edit { range, written, .. }: &Edit| Longer {
        at: characters(&text[..range.end], utf8),
        by: characters(written, utf8) - range.len(),
    };
    edits.iter().map(longer).collect()
}

/// Characters of a text; where the encoding is not known to be UTF-8, bytes.
fn characters(text: &[u8], utf8: bool) -> usize {
    text.iter().filter(|byte| !utf8 || **byte & 0xc0 != 0x80).count()
}

/// An error's body with the position in the client's own text.
pub(crate) fn count_back(error: &[u8], longer: &[Longer]) -> Option<Vec<u8>> {
    with_position(error, |position| {
        // Counted from 1.
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
        let edits = values_after_resets(&findings, &start());
        edits.map_or("-".to_owned(), |edits| edited(text, &edits))
    }

    fn edited(text: &str, edits: &[Edit]) -> String {
        let mut out = Vec::new();
        write_edited(text.as_bytes(), edits, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_written_is_never_shorter_in_characters() {
        let text = "select set_config('my.x', null, false), oops";
        let at = text.find("null").unwrap();
        let own = text.find("oops").unwrap() + 1;
        for literal in ["'\u{e9}'", "''", "'\u{e9}\u{e9}'", "'Asia/Tokyo'"] {
            let all = [Edit::in_place_of(at..at + 4, literal.into())];
            let position = edited(text, &all).chars().position(|c| c == 'p').unwrap() - 1;
            let error = format!("P{position}\0\0");
            let counted = count_back(error.as_bytes(), &longer(text.as_bytes(), &all, true));
            assert_eq!(counted.unwrap(), format!("P{own}\0\0").as_bytes(), "{literal}");
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
        let made = |text: &str, start: &Settings| {
            values_after_resets(&scan(text.as_bytes(), ScanOptions::default()), start)
        };
        let many = "SELECT 1;".repeat(1_000);
        let one = made(&format!("{many}RESET TimeZone; SELECT 2"), &start()).unwrap();
        assert_eq!(one.iter().map(|edit| edit.follows).collect::<Vec<_>>(), [Some((1_001, 1))]);
        let long: Settings = [(&b"timezone"[..], &[b'x'; WRITTEN_BYTES_MAX / 100][..])]
            .into_iter()
            .collect::<SettingsBuilder>()
            .build();
        for (resets, put) in [(90, true), (110, false)] {
            assert_eq!(made(&"RESET ALL;".repeat(resets), &long).is_some(), put, "{resets}");
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
            let expected = if sent == "=" { text } else { sent };
            assert_eq!(edited(text, &values_for_nulls(&findings, &start())), expected);
        }
        let text = "SELECT set_config('TimeZone', NULL, false); RESET role";
        let findings = scan(text.as_bytes(), ScanOptions::default());
        let mut edits = values_for_nulls(&findings, &start());
        edits.extend(values_after_resets(&findings, &start()).unwrap());
        let out = edited(text, &edits);
        assert!(out.contains("'Asia/Tokyo', false); RESET role;SET \"role\""), "{out}");
    }

    #[test]
    fn positions_are_counted_in_the_clients_own_text() {
        let text = "RESET TimeZone; SELECT 1/0";
        let findings = scan(text.as_bytes(), ScanOptions::default());
        let edits = values_after_resets(&findings, &start()).unwrap();
        let by = edited(text, &edits).len() - text.len();
        let longer = longer(text.as_bytes(), &edits, true);
        assert_eq!(*longer, [Longer { at: 14, by }]);
        for own in [1, 14, 15, 16, 26] {
            let sent = if own > 14 { own + by } else { own };
            let body = format!("SERROR\0P{sent}\0Mwrong\0\0");
            let counted = count_back(body.as_bytes(), &longer).unwrap();
            assert_eq!(counted, format!("SERROR\0P{own}\0Mwrong\0\0").as_bytes());
        }
        assert_eq!(count_back(b"SERROR\0Mwrong\0\0", &longer), None);
    }
}
