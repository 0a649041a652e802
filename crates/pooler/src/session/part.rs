//! The parts of a session's state, and what may be done with each.
//!
//! # Model   each part has a name; [`PartSet::MOVING`] go with the client to another backend, and all
//!           others pin it to the one that has them; [`PartSet::LASTING`] end with their backend.
//!           `docs/sessions/README.md` has the table: how each becomes known, how it is applied and
//!           undone, and what a rollback does to it.
//! # Invariants  every part stands in [`PARTS`] at the index of its discriminant
//! # Why not a bool "session is dirty"  operators ask why a client is pinned, and a pin has to end
//!           when its reason ends: both need the reason.
//! # Limits  32 parts, one bit each in a [`PartSet`].

use std::fmt;

use super::settings::is_custom;

/// One kind of state that a session can have on its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Part {
    /// A setting whose changes the server reports by ParameterStatus.
    ReportedSetting,
    /// A setting that the client gave in its startup message or in `options`.
    StartSetting,
    /// Any other setting that the server knows by a name without a dot.
    Setting,
    /// A setting with a dot in its name: the server creates it on first use and never removes it.
    CustomSetting,
    /// A setting that only a connect can set.
    ConnectOnlySetting,
    /// `SET ROLE`.
    Role,
    /// `SET SESSION AUTHORIZATION`.
    SessionAuthorization,
    /// A named statement of the extended protocol (Parse).
    ProtocolStatement,
    /// The unnamed statement of the extended protocol.
    UnnamedStatement,
    /// A statement of SQL's `PREPARE`; also an `EXECUTE` that needs it.
    SqlStatement,
    /// A channel that is listened to.
    Listen,
    /// A temporary table, view, sequence, function or type, and what lies in `pg_temp`.
    TemporaryObject,
    /// A cursor `WITH HOLD`.
    HeldCursor,
    /// An advisory lock of session level.
    AdvisoryLock,
    /// What `currval` and `lastval` answer.
    SequenceValue,
    /// The state of `random()` after `setseed`.
    Seed,
    /// A library that `LOAD` brought in.
    LoadedLibrary,
    /// Variables that procedural languages keep for a session (SD and GD, `%_SHARED`).
    PlVariable,
    /// A base backup under way between `pg_backup_start` and `pg_backup_stop`.
    BackupInProgress,
    /// A temporary replication slot.
    TemporarySlot,
    /// The replication origin that the session writes under.
    ReplicationOrigin,
    /// A connection that dblink keeps under a name.
    NamedConnection,
    /// A look at the session's own catalogs (`pg_prepared_statements`, `pg_cursors`,
    /// `pg_listening_channels`): no state, but it shows what others left on the backend.
    SessionCatalog,
}

/// The parts, and their names in SHOW, metrics and logs.
const PARTS: [(Part, &str); 23] = [
    (Part::ReportedSetting, "reported_setting"),
    (Part::StartSetting, "start_setting"),
    (Part::Setting, "setting"),
    (Part::CustomSetting, "custom_setting"),
    (Part::ConnectOnlySetting, "connect_only_setting"),
    (Part::Role, "role"),
    (Part::SessionAuthorization, "session_authorization"),
    (Part::ProtocolStatement, "protocol_statement"),
    (Part::UnnamedStatement, "unnamed_statement"),
    (Part::SqlStatement, "sql_statement"),
    (Part::Listen, "listen"),
    (Part::TemporaryObject, "temporary_object"),
    (Part::HeldCursor, "held_cursor"),
    (Part::AdvisoryLock, "advisory_lock"),
    (Part::SequenceValue, "sequence_value"),
    (Part::Seed, "seed"),
    (Part::LoadedLibrary, "loaded_library"),
    (Part::PlVariable, "pl_variable"),
    (Part::BackupInProgress, "backup_in_progress"),
    (Part::TemporarySlot, "temporary_slot"),
    (Part::ReplicationOrigin, "replication_origin"),
    (Part::NamedConnection, "named_connection"),
    (Part::SessionCatalog, "session_catalog"),
];

/// Settings that every supported server (14 to 18) reports and a client can change, in lower case.
/// PostgreSQL 18 reports `search_path` as well, and extensions may report their own: a server's
/// first ParameterStatus messages decide.
pub const REPORTED: [&str; 6] = [
    "application_name",
    "client_encoding",
    "datestyle",
    "intervalstyle",
    "standard_conforming_strings",
    "timezone",
];

/// Whether every server reports this setting, given in lower case; some report more.
pub fn is_reported(name: &[u8]) -> bool {
    REPORTED.iter().any(|reported| reported.as_bytes() == name)
}

impl Part {
    /// Its name in SHOW, metrics and logs.
    pub fn name(self) -> &'static str {
        PARTS[self as usize].1
    }

    /// The part that a setting of this name (in lower case) belongs to, or `None` where it lasts
    /// no longer than a transaction. `reported` says whether this server reports the name.
    pub fn of_setting(name: &[u8], reported: impl FnOnce(&[u8]) -> bool) -> Option<Part> {
        if is_custom(name) {
            return Some(Part::CustomSetting);
        }
        Some(match name {
            b"role" => Part::Role,
            b"session_authorization" => Part::SessionAuthorization,
            b"seed" => Part::Seed,
            // Each transaction resets them to their default_ settings.
            b"transaction_isolation" | b"transaction_read_only" | b"transaction_deferrable" => {
                return None;
            }
            _ if reported(name) => Part::ReportedSetting,
            _ => Part::Setting,
        })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of parts, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct PartSet(u32);

impl PartSet {
    /// No part.
    pub const EMPTY: PartSet = PartSet(0);

    /// What a `SET` or `set_config()` of an unknown name may touch.
    pub const ANY_SETTING: PartSet = PartSet::of(&[
        Part::ReportedSetting,
        Part::Setting,
        Part::CustomSetting,
        Part::Role,
        Part::SessionAuthorization,
        Part::Seed,
    ]);

    /// Those that move with the client to another backend.
    pub const MOVING: PartSet = PartSet::of(&[
        Part::ReportedSetting,
        Part::StartSetting,
        Part::Setting,
        Part::CustomSetting,
        Part::Role,
        Part::SessionAuthorization,
        Part::ProtocolStatement,
        Part::UnnamedStatement,
        Part::SqlStatement,
        Part::Listen,
    ]);

    /// Those that only the end of the backend removes. (Tested on PostgreSQL 15 and 18: a custom
    /// name stays defined after RESET and DISCARD ALL; `random()` goes on after DISCARD ALL.)
    pub const LASTING: PartSet = PartSet::of(&[
        Part::CustomSetting,
        Part::ConnectOnlySetting,
        Part::Seed,
        Part::LoadedLibrary,
        Part::PlVariable,
        Part::BackupInProgress,
        Part::ReplicationOrigin,
        Part::NamedConnection,
    ]);

    /// The same, and those that only their client itself can end.
    pub const LASTING_WHILE_THERE: PartSet =
        PartSet::LASTING.union(PartSet::of(&[Part::TemporarySlot]));

    /// The set of these parts.
    pub const fn of(parts: &[Part]) -> PartSet {
        let mut bits = 0;
        let mut i = 0;
        while i < parts.len() {
            bits |= 1 << parts[i] as u32;
            i += 1;
        }
        PartSet(bits)
    }

    /// Adds a part.
    pub fn insert(&mut self, part: Part) {
        self.0 |= 1 << part as u32;
    }

    /// Takes a part out.
    pub fn remove(&mut self, part: Part) {
        self.0 &= !(1 << part as u32);
    }

    /// Whether it contains this part.
    pub const fn contains(self, part: Part) -> bool {
        self.0 & (1 << part as u32) != 0
    }

    /// Whether it is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// All that are in either.
    pub const fn union(self, other: PartSet) -> PartSet {
        PartSet(self.0 | other.0)
    }

    /// Those that are in both.
    pub const fn intersection(self, other: PartSet) -> PartSet {
        PartSet(self.0 & other.0)
    }

    /// Whether any part is in both.
    pub const fn intersects(self, other: PartSet) -> bool {
        self.0 & other.0 != 0
    }

    /// Those that are not in `other`.
    pub const fn minus(self, other: PartSet) -> PartSet {
        PartSet(self.0 & !other.0)
    }

    /// The parts, in the order of their discriminants.
    pub fn iter(self) -> impl Iterator<Item = Part> {
        PARTS.iter().map(|(part, _)| *part).filter(move |&part| self.contains(part))
    }

    /// Those that keep a client on its backend: the reasons of the pin.
    pub const fn pinning(self) -> PartSet {
        self.minus(PartSet::MOVING)
    }

    /// Whether a backend that had these must be closed, because no command removes them.
    pub const fn must_close(self) -> bool {
        self.pinning().intersects(PartSet::LASTING)
    }

    /// Whether a backend must be closed if its client leaves while it has these.
    pub const fn must_close_with(self) -> bool {
        self.pinning().intersects(PartSet::LASTING_WHILE_THERE)
    }
}

impl FromIterator<Part> for PartSet {
    fn from_iter<I: IntoIterator<Item = Part>>(parts: I) -> PartSet {
        let mut set = PartSet::EMPTY;
        for part in parts {
            set.insert(part);
        }
        set
    }
}

/// As SHOW prints it: `temporary_object,advisory_lock`, or nothing for the empty set.
impl fmt::Display for PartSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, part) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            f.write_str(part.name())?;
        }
        Ok(())
    }
}

impl fmt::Debug for PartSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_stands_at_its_own_index() {
        for (i, (part, name)) in PARTS.iter().enumerate() {
            assert_eq!(*part as usize, i, "{name}");
        }
        assert_eq!(PARTS.len(), Part::SessionCatalog as usize + 1);
    }

    #[test]
    fn document_has_the_parts_of_the_code() {
        let document = include_str!("../../../../docs/sessions/README.md");
        let rows = document.lines().filter(|line| line.starts_with("| `"));
        let shown: Vec<(String, &str)> = rows
            .map(|row| {
                let cells: Vec<&str> = row.split('|').map(str::trim).collect();
                (cells[1].trim_matches('`').to_owned(), cells[6])
            })
            .collect();
        let treatment = |part: Part| {
            let set = PartSet::of(&[part]);
            match () {
                () if part == Part::ConnectOnlySetting => "OwnBackend",
                () if set.pinning().is_empty() => "Moves",
                () if set.must_close() => "PinsToTheEnd",
                () => "Pins",
            }
        };
        let expected: Vec<_> =
            PARTS.iter().map(|(part, name)| ((*name).to_owned(), treatment(*part))).collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn sets_name_their_parts_in_table_order() {
        let set = PartSet::of(&[Part::AdvisoryLock, Part::TemporaryObject]);
        assert_eq!(set.to_string(), "temporary_object,advisory_lock");
        assert_eq!(PartSet::EMPTY.to_string(), "");
        assert_eq!(set.iter().collect::<PartSet>(), set);
        let mut less = set;
        less.remove(Part::AdvisoryLock);
        assert_eq!(set.minus(less), PartSet::of(&[Part::AdvisoryLock]));
        assert!(less.contains(Part::TemporaryObject) && !less.contains(Part::AdvisoryLock));
    }

    #[test]
    fn pooler_pins_for_what_it_cannot_bring_to_another_backend() {
        let moving = PartSet::of(&[Part::ReportedSetting, Part::Setting, Part::ProtocolStatement]);
        assert!(moving.pinning().is_empty());
        let parts = moving.union(PartSet::of(&[Part::TemporaryObject, Part::AdvisoryLock]));
        assert_eq!(parts.pinning(), PartSet::of(&[Part::TemporaryObject, Part::AdvisoryLock]));
        assert!(!parts.must_close());
        assert!(PartSet::of(&[Part::Seed]).must_close());
        let slot = PartSet::of(&[Part::TemporarySlot]);
        assert!(slot.must_close_with() && !slot.must_close(), "it may be dropped");
        assert!(!parts.must_close_with());
        assert!(!PartSet::of(&[Part::CustomSetting]).must_close());
    }

    #[test]
    fn names_of_settings_belong_to_parts() {
        let of = |name: &str| Part::of_setting(name.as_bytes(), |name| name == b"timezone");
        assert_eq!(of("timezone"), Some(Part::ReportedSetting));
        assert_eq!(of("work_mem"), Some(Part::Setting));
        assert_eq!(of("my.user"), Some(Part::CustomSetting));
        assert_eq!(of("role"), Some(Part::Role));
        assert_eq!(of("session_authorization"), Some(Part::SessionAuthorization));
        assert_eq!(of("seed"), Some(Part::Seed));
        assert_eq!(of("transaction_read_only"), None);
    }
}
