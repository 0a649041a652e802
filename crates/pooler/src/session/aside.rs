//! Changes settings for a moment within a client's transaction, and restores them.
//!
//! # Why     a client may have changed any setting within its pipeline, and Hawser learns that only
//!           when the pipeline ends. So it restores what the server has, not what the books say.
//! # Model   one SELECT saves the values in force under names of its own, and sets the desired
//!           values up to the end of the transaction; a second one sets the saved values. What the
//!           client has set for its session returns at COMMIT (`AtEOXact_GUC`, guc.c: SET LOCAL
//!           after SET masks it); what it has set with LOCAL ends where it would have.
//! # Why not SAVEPOINT and ROLLBACK TO: they need a transaction block, and whether there is one is not
//!           known after other messages of a pipeline.
//! # Limits  the columns of a row are computed from left to right (`ExecProject`). No value comes back as
//!           a result (IS NULL): it might have no equivalent in the client_encoding of that moment.

use super::settings::Change;
use super::settings::quoting::{write_string, write_value};

/// The prefix of the names that save values in force: they are Hawser's, and no state of a session.
pub const KEEPING: &str = "hawser_before.";

const AUTHORIZATION: &[u8] = b"session_authorization";
const ROLE: &[u8] = b"role";

/// Settings to be changed for a moment.
#[derive(Debug)]
pub struct Aside<'a> {
    changes: Vec<Change<'a>>,
    /// Each once.
    names: Vec<&'a [u8]>,
}

impl<'a> Aside<'a> {
    /// From changes in an order in which they can be made.
    pub fn new(changes: Vec<Change<'a>>) -> Self {
        let mut names: Vec<&[u8]> = Vec::with_capacity(changes.len());
        for change in &changes {
            let (Change::Set(name, _) | Change::Reset(name)) = *change;
            // SET SESSION AUTHORIZATION resets the role.
            let role = (name == AUTHORIZATION).then_some(ROLE);
            for name in [Some(name), role].into_iter().flatten() {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        Self { changes, names }
    }

    /// The text that saves the values in force and makes the changes.
    pub fn apart(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (number, name) in self.names.iter().enumerate() {
            column(&mut text, |out| {
                write_string(keeping(number).as_bytes(), out);
                out.extend_from_slice(b",pg_catalog.current_setting(");
                write_value(name, out);
                out.extend_from_slice(b",true)");
            });
        }
        for change in &self.changes {
            column(&mut text, |out| match change {
                Change::Set(name, value) => {
                    write_value(name, out);
                    out.push(b',');
                    write_value(value, out);
                }
                Change::Reset(name) => {
                    write_value(name, out);
                    out.extend_from_slice(b",NULL");
                }
            });
        }
        text
    }

    /// The text that restores the saved values.
    pub fn back(&self) -> Vec<u8> {
        let mut text = Vec::new();
        // Only the role that logged in may set the others: see `Settings::diff`.
        for name in [AUTHORIZATION, ROLE] {
            if self.names.contains(&name) {
                column(&mut text, |out| {
                    write_value(name, out);
                    out.extend_from_slice(b",NULL");
                });
            }
        }
        let is_identity = |name: &[u8]| name == AUTHORIZATION || name == ROLE;
        let names = || self.names.iter().enumerate();
        let others = names().filter(|(_, name)| !is_identity(name));
        let last = [AUTHORIZATION, ROLE].into_iter();
        let last = last.filter_map(|one| names().find(|(_, name)| **name == one));
        for (number, name) in others.chain(last) {
            column(&mut text, |out| {
                write_value(name, out);
                out.extend_from_slice(b",pg_catalog.current_setting(");
                write_string(keeping(number).as_bytes(), out);
                out.push(b')');
            });
        }
        text
    }
}

fn keeping(number: usize) -> String {
    format!("{KEEPING}s{number}")
}

/// One more call of set_config() with these arguments, up to the end of the transaction.
fn column(text: &mut Vec<u8>, arguments: impl FnOnce(&mut Vec<u8>)) {
    text.extend_from_slice(if text.is_empty() { b"SELECT " } else { b"," });
    text.extend_from_slice(b"pg_catalog.set_config(");
    arguments(text);
    text.extend_from_slice(b",true) IS NULL");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(changes: Vec<Change<'_>>) -> Vec<String> {
        let aside = Aside::new(changes);
        let texts = [aside.apart(), aside.back()].into_iter();
        texts.map(|text| String::from_utf8(text).expect("UTF-8")).collect()
    }

    #[test]
    fn what_is_in_force_is_saved_before_all_changes() {
        assert_eq!(
            texts(vec![Change::Set(b"datestyle", b"it's"), Change::Reset(b"my.x")]),
            [
                "SELECT pg_catalog.set_config('hawser_before.s0',pg_catalog.current_setting('datestyle',true),true) IS NULL,\
                 pg_catalog.set_config('hawser_before.s1',pg_catalog.current_setting('my.x',true),true) IS NULL,\
                 pg_catalog.set_config('datestyle','it''s',true) IS NULL,\
                 pg_catalog.set_config('my.x',NULL,true) IS NULL",
                "SELECT pg_catalog.set_config('datestyle',pg_catalog.current_setting('hawser_before.s0'),true) IS NULL,\
                 pg_catalog.set_config('my.x',pg_catalog.current_setting('hawser_before.s1'),true) IS NULL",
            ]
        );
    }

    #[test]
    fn who_the_session_is_ends_first_and_begins_last() {
        let found = texts(vec![
            Change::Reset(AUTHORIZATION),
            Change::Set(b"timezone", b"UTC"),
            Change::Set(AUTHORIZATION, b"one"),
        ]);
        let [apart, back] = &found[..] else { panic!("{found:?}") };
        assert_eq!(apart.matches("set_config('hawser_before").count(), 3, "the role, too: {apart}");
        let names: Vec<_> = back
            .split("set_config('")
            .skip(1)
            .map(|call| call.split('\'').next().unwrap_or_default())
            .collect();
        let identity = ["session_authorization", "role"];
        assert_eq!(names, [&identity[..], &["timezone"], &identity[..]].concat());
    }

    #[test]
    fn what_is_not_ascii_is_read_alike_in_all_encodings() {
        let encoding = Change::Set(b"client_encoding", b"LATIN1");
        let found = texts(vec![encoding, Change::Set(b"search_path", "ä".as_bytes())]);
        assert!(found[0].is_ascii());
        let set = "pg_catalog.set_config('client_encoding','LATIN1',true) IS NULL,\
                   pg_catalog.set_config('search_path',E'\\xc3\\xa4',true)";
        assert!(found[0].contains(set), "{found:?}");
    }
}
