//! The parts of a session's state, and what may be done with each.
//!
//! # Model   [`TABLE`] is the one list: part x (source, apply, undo, rollback). A [`Policy`] adds
//!           the decision: which parts move with the client to another backend, and which pin it
//!           to the one that has them.
//! # Invariants  every part has exactly one row, at the index of its discriminant; a part moves
//!           under a policy only if its row says how it is applied.
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

/// How a part becomes known, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// By messages that pass anyway (ParameterStatus, Parse, the startup message).
    Wire,
    /// By the scan of statement texts.
    Text,
    /// By a query to the server before the backend is given to another.
    Question,
    /// Only by the extension, or by a name in the configuration.
    Extension,
}

/// How a part is brought to another backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Apply {
    /// By `SET` or `set_config()` before the client's first message.
    Set,
    /// By a Parse before the client's first message.
    Parse,
    /// By `PREPARE` before the client's first message.
    Prepare,
    /// By a `LISTEN` on the backend that listens for all clients of the database.
    Listener,
    /// By nothing: the next use creates it again.
    OnUse,
    /// By a backend that was opened with it.
    Connect,
    /// Not at all.
    Never,
}

/// What removes a part from a backend, so that another client may have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undo {
    /// `SET` or `RESET` of that name to what the next client wants.
    Set,
    /// `SET SESSION AUTHORIZATION DEFAULT`, which resets the role too.
    ResetAuthorization,
    /// Close of the statement, or keeping it for clients that want the same one.
    CloseStatement,
    /// `DEALLOCATE`.
    Deallocate,
    /// `UNLISTEN *`.
    Unlisten,
    /// `DISCARD TEMP`.
    DiscardTemp,
    /// `CLOSE ALL`.
    CloseAll,
    /// `pg_advisory_unlock_all()`.
    UnlockAll,
    /// `DISCARD SEQUENCES`.
    DiscardSequences,
    /// Only the end of the backend.
    CloseBackend,
    /// Only the end of the backend, unless the client has ended it by itself.
    CloseWhileThere,
    /// Nothing has to be undone.
    Nothing,
}

/// What ROLLBACK and ROLLBACK TO SAVEPOINT do to a change of the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rollback {
    /// Undone by both.
    Reverts,
    /// Takes effect at COMMIT; both forget it.
    AtCommit,
    /// Neither undoes it.
    Stays,
}

/// One row of [`TABLE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The part.
    pub part: Part,
    /// Its name in SHOW, metrics and logs.
    pub name: &'static str,
    /// How it becomes known.
    pub sources: &'static [Source],
    /// How it is brought to another backend.
    pub apply: Apply,
    /// How it is removed from a backend.
    pub undo: Undo,
    /// What a rollback does to it.
    pub rollback: Rollback,
}

const fn row(
    part: Part,
    name: &'static str,
    sources: &'static [Source],
    apply: Apply,
    undo: Undo,
    rollback: Rollback,
) -> Row {
    Row { part, name, sources, apply, undo, rollback }
}

use Source::{Extension, Question, Text, Wire};

/// What a session is made of. `docs/sessions/README.md` is the same table for readers.
///
/// Sources in the order in which they are tried. Tested on PostgreSQL 15 and 18: a custom name
/// stays defined after RESET and DISCARD ALL; `random()` goes on after DISCARD ALL; PREPARE and
/// advisory locks survive a rollback.
pub const TABLE: [Row; 23] = [
    row(
        Part::ReportedSetting,
        "reported_setting",
        &[Wire],
        Apply::Set,
        Undo::Set,
        Rollback::Reverts,
    ),
    row(Part::StartSetting, "start_setting", &[Wire], Apply::Set, Undo::Set, Rollback::Reverts),
    row(
        Part::Setting,
        "setting",
        &[Text, Question, Extension],
        Apply::Set,
        Undo::Set,
        Rollback::Reverts,
    ),
    row(
        Part::CustomSetting,
        "custom_setting",
        &[Text, Extension],
        Apply::Set,
        Undo::CloseBackend,
        Rollback::Reverts,
    ),
    row(
        Part::ConnectOnlySetting,
        "connect_only_setting",
        &[Wire],
        Apply::Connect,
        Undo::CloseBackend,
        Rollback::Stays,
    ),
    row(
        Part::Role,
        "role",
        &[Text, Question, Extension],
        Apply::Set,
        Undo::ResetAuthorization,
        Rollback::Reverts,
    ),
    row(
        Part::SessionAuthorization,
        "session_authorization",
        &[Wire, Text, Extension],
        Apply::Set,
        Undo::ResetAuthorization,
        Rollback::Reverts,
    ),
    row(
        Part::ProtocolStatement,
        "protocol_statement",
        &[Wire],
        Apply::Parse,
        Undo::CloseStatement,
        Rollback::Stays,
    ),
    row(
        Part::UnnamedStatement,
        "unnamed_statement",
        &[Wire],
        Apply::Parse,
        Undo::Nothing,
        Rollback::Stays,
    ),
    row(
        Part::SqlStatement,
        "sql_statement",
        &[Text, Question, Extension],
        Apply::Prepare,
        Undo::Deallocate,
        Rollback::Stays,
    ),
    row(
        Part::Listen,
        "listen",
        &[Text, Question, Extension],
        Apply::Listener,
        Undo::Unlisten,
        Rollback::AtCommit,
    ),
    row(
        Part::TemporaryObject,
        "temporary_object",
        &[Text, Question, Extension],
        Apply::Never,
        Undo::DiscardTemp,
        Rollback::Reverts,
    ),
    row(
        Part::HeldCursor,
        "held_cursor",
        &[Text, Question, Extension],
        Apply::Never,
        Undo::CloseAll,
        Rollback::Reverts,
    ),
    row(
        Part::AdvisoryLock,
        "advisory_lock",
        &[Text, Question, Extension],
        Apply::Never,
        Undo::UnlockAll,
        Rollback::Stays,
    ),
    row(
        Part::SequenceValue,
        "sequence_value",
        &[Text, Extension],
        Apply::Never,
        Undo::DiscardSequences,
        Rollback::Stays,
    ),
    row(Part::Seed, "seed", &[Text, Extension], Apply::Never, Undo::CloseBackend, Rollback::Stays),
    row(
        Part::LoadedLibrary,
        "loaded_library",
        &[Text, Extension],
        Apply::Never,
        Undo::CloseBackend,
        Rollback::Stays,
    ),
    row(
        Part::PlVariable,
        "pl_variable",
        &[Extension],
        Apply::Never,
        Undo::CloseBackend,
        Rollback::Stays,
    ),
    row(
        Part::BackupInProgress,
        "backup_in_progress",
        &[Text, Extension],
        Apply::Never,
        Undo::CloseBackend,
        Rollback::Stays,
    ),
    row(
        Part::TemporarySlot,
        "temporary_slot",
        &[Text, Question, Extension],
        Apply::Never,
        Undo::CloseWhileThere,
        Rollback::Stays,
    ),
    row(
        Part::ReplicationOrigin,
        "replication_origin",
        &[Text, Extension],
        Apply::Never,
        Undo::CloseBackend,
        Rollback::Stays,
    ),
    row(
        Part::NamedConnection,
        "named_connection",
        &[Text],
        Apply::Never,
        Undo::CloseBackend,
        Rollback::Stays,
    ),
    row(
        Part::SessionCatalog,
        "session_catalog",
        &[Text],
        Apply::OnUse,
        Undo::Nothing,
        Rollback::Stays,
    ),
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
    /// Its row of [`TABLE`].
    pub fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Its name in SHOW, metrics and logs.
    pub fn name(self) -> &'static str {
        self.row().name
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

    /// The parts, in the order of [`TABLE`].
    pub fn iter(self) -> impl Iterator<Item = Part> {
        TABLE.iter().map(|row| row.part).filter(move |&part| self.contains(part))
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

/// What happens to a client that has a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// The part goes with the client to any backend.
    Moves,
    /// The client keeps its backend while the part exists.
    Pins,
    /// The client keeps its backend to its end, and the backend is closed with it.
    PinsToTheEnd,
    /// The client needs a backend that was opened for it.
    OwnBackend,
}

/// Decides which parts move; all others pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    moves: PartSet,
}

impl Policy {
    /// The present policy: settings, roles, prepared statements and channels move; everything else
    /// pins.
    pub const fn pooler() -> Policy {
        Policy {
            moves: PartSet::of(&[
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
            ]),
        }
    }

    /// Everything moves that can be applied to another backend. That needs more than a bit in a
    /// set: values of settings, frames of savepoints, texts of prepared statements, a listener.
    pub const fn moves() -> Policy {
        Policy {
            moves: Policy::pooler().moves.union(PartSet::of(&[
                Part::Setting,
                Part::CustomSetting,
                Part::Role,
                Part::SessionAuthorization,
                Part::SqlStatement,
                Part::SessionCatalog,
            ])),
        }
    }

    /// What happens to a client that has this part.
    pub fn treatment(self, part: Part) -> Treatment {
        match (self.moves.contains(part), part.row().apply, part.row().undo) {
            (_, Apply::Connect, _) => Treatment::OwnBackend,
            (true, ..) => Treatment::Moves,
            (false, _, Undo::CloseBackend) => Treatment::PinsToTheEnd,
            (false, ..) => Treatment::Pins,
        }
    }

    /// Those of `parts` that keep a client on its backend: the reasons of the pin.
    pub const fn pinning(self, parts: PartSet) -> PartSet {
        parts.minus(self.moves)
    }

    /// Whether a backend that had these parts must be closed, because no command removes them.
    pub fn must_close(self, parts: PartSet) -> bool {
        self.pinning(parts).iter().any(|part| part.row().undo == Undo::CloseBackend)
    }

    /// Whether a backend must be closed if its client leaves while it has these parts.
    pub fn must_close_with(self, parts: PartSet) -> bool {
        let there = |part: Part| part.row().undo == Undo::CloseWhileThere;
        self.must_close(parts) || self.pinning(parts).iter().any(there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_the_row_of_its_own_index() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.part as usize, i, "{}", row.name);
            assert!(!row.sources.is_empty());
        }
        assert_eq!(TABLE.len(), Part::SessionCatalog as usize + 1);
    }

    #[test]
    fn what_moves_can_be_applied() {
        for policy in [Policy::pooler(), Policy::moves()] {
            for row in &TABLE {
                if policy.treatment(row.part) == Treatment::Moves {
                    assert_ne!(row.apply, Apply::Never, "{}", row.name);
                }
            }
        }
    }

    #[test]
    fn document_shows_the_table_of_the_code() {
        let document = include_str!("../../../../docs/sessions/README.md");
        let shown: Vec<&str> =
            document.lines().filter(|line| line.starts_with("| `")).map(str::trim).collect();
        let expected: Vec<String> = TABLE
            .iter()
            .map(|row| {
                let sources: Vec<String> =
                    row.sources.iter().map(|source| format!("{source:?}")).collect();
                format!(
                    "| `{}` | {} | {:?} | {:?} | {:?} | {:?} | {:?} |",
                    row.name,
                    sources.join(", "),
                    row.apply,
                    row.undo,
                    row.rollback,
                    Policy::pooler().treatment(row.part),
                    Policy::moves().treatment(row.part),
                )
            })
            .collect();
        assert_eq!(shown, expected, "write these rows:\n{}", expected.join("\n"));
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
        let policy = Policy::pooler();
        let moving = PartSet::of(&[Part::ReportedSetting, Part::Setting, Part::ProtocolStatement]);
        assert!(policy.pinning(moving).is_empty());
        let parts = moving.union(PartSet::of(&[Part::TemporaryObject, Part::AdvisoryLock]));
        assert_eq!(
            policy.pinning(parts),
            PartSet::of(&[Part::TemporaryObject, Part::AdvisoryLock])
        );
        assert!(!policy.must_close(parts));
        assert!(policy.must_close(PartSet::of(&[Part::Seed])));
        let slot = PartSet::of(&[Part::TemporarySlot]);
        assert!(policy.must_close_with(slot) && !policy.must_close(slot), "it may be dropped");
        assert!(!policy.must_close_with(parts));
        assert!(!Policy::moves().must_close(PartSet::of(&[Part::CustomSetting])));
        assert_eq!(policy.treatment(Part::ConnectOnlySetting), Treatment::OwnBackend);
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
