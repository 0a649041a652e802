//! Settings that differ from a server's base, and the statements that change one set into another.
//!
//! # Model   [`Settings`] is an immutable, sorted map that is shared: sessions with equal settings
//!           hold the same one if an [`Interner`] made it. What a client wants and what its backend
//!           has are two of them; [`Settings::diff`] gives the changes between.
//! # Invariants  names are in lower case (the server compares them without case); values are
//!           canonical, as the server would show them; equal contents are equal whether shared or
//!           not.
//! # Why not always SET for lists  the server keeps `search_path` as a list that is already quoted.
//!           `SET search_path TO 'a, b'` makes it ONE name, and a list that is split and quoted
//!           again may be spelt differently (key words are quoted, spaces change), which the client
//!           can see. `set_config()` takes the value as it is; but it is a query, which takes a
//!           snapshot (a SET TRANSACTION ISOLATION LEVEL after it fails) and costs a plan: so SET
//!           is used where the spelling certainly stays the same ([`list::write_names`]).
//! # Encodings  names and values are the server's own bytes, in the encoding of its database,
//!           whatever `client_encoding` they were set or reported under ([`is_raw`]). They are
//!           written in ASCII only: the server takes the bytes of `\x` escapes in an E'' literal as
//!           they are, and converts all else of a text from the `client_encoding` in force. In some
//!           of these encodings a character ends with the byte of a backslash, so text quoted byte
//!           by byte would be misread.

mod list;
pub(crate) mod quoting;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, Weak};

use self::quoting::write_value;

/// Sets of settings that an [`Interner`] knows at most; beyond, equal ones are not shared.
pub const INTERNED_MAX: usize = 16_384;

/// Settings whose value is a list that the server quotes (GUC_LIST_QUOTE in PostgreSQL's source,
/// which extensions may not use).
const QUOTED_LISTS: [&[u8]; 7] = [
    b"local_preload_libraries",
    b"output_plugin_libraries",
    b"search_path",
    b"session_preload_libraries",
    b"shared_preload_libraries",
    b"temp_tablespaces",
    b"unix_socket_directories",
];

/// Names that neither parse analysis nor the planner's folding of constants reads. (`client_min_messages` is
/// not one: a Parse may have a notice, which a client of `error` does not get.)
const NOT_PARSED: [&[u8]; 14] = [
    b"application_name",
    b"client_connection_check_interval",
    b"default_transaction_deferrable",
    b"default_transaction_isolation",
    b"default_transaction_read_only",
    b"idle_in_transaction_session_timeout",
    b"idle_session_timeout",
    b"in_hot_standby",
    b"is_superuser",
    b"lock_timeout",
    b"statement_timeout",
    b"synchronous_commit",
    b"transaction_timeout",
    b"server_version",
];

/// Whether the meaning of a statement may depend on the setting (its name in lower case). True
/// unless it is known not to: policies and functions may read custom names.
pub fn is_parsed(name: &[u8]) -> bool {
    let logging = name.starts_with(b"log_") && !name.contains(&b'.');
    let network = name.starts_with(b"tcp_") && !name.contains(&b'.');
    !logging && !network && !NOT_PARSED.contains(&name)
}

/// Which settings plans depend on; each value includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PlanReads {
    /// What parse analysis and the planner read by themselves.
    Own,
    /// Also custom settings: functions that the planner calls may read them.
    Custom,
    /// Also all others (`application_name`, `statement_timeout`): functions that read them are
    /// known to exist.
    All,
}

impl PlanReads {
    /// The first value that includes this setting (its name in lower case).
    pub fn of(name: &[u8]) -> Self {
        if !is_parsed(name) {
            Self::All
        } else if is_custom(name) {
            Self::Custom
        } else {
            Self::Own
        }
    }

    /// The same for the results of plans, without their costs. The server's plan cache itself
    /// handles names and roles (`RevalidateCachedQuery`, plancache.c), unless a function reads
    /// them.
    pub(crate) fn of_results(name: &[u8]) -> Self {
        match name {
            b"role" | b"session_authorization" => Self::Custom,
            b"client_encoding" | b"search_path" => Self::All,
            name if is_of_costs(name) => Self::All,
            name => Self::of(name),
        }
    }

    /// By its place, from 0.
    pub(crate) fn from_place(place: u8) -> Self {
        [Self::Own, Self::Custom, Self::All][usize::from(place.min(2))]
    }
}

/// Whether the setting (its name in lower case) decides only which plan is chosen, not its results.
fn is_of_costs(name: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 6] =
        [b"enable_", b"geqo", b"jit", b"max_parallel_", b"min_parallel_", b"parallel_"];
    const NAMES: [&[u8]; 13] = [
        b"constraint_exclusion",
        b"cursor_tuple_fraction",
        b"debug_parallel_query",
        b"effective_cache_size",
        b"effective_io_concurrency",
        b"force_parallel_mode",
        b"from_collapse_limit",
        b"hash_mem_multiplier",
        b"join_collapse_limit",
        b"maintenance_work_mem",
        b"plan_cache_mode",
        b"temp_buffers",
        b"work_mem",
    ];
    let of_library = is_custom(name);
    !of_library
        && (BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
            || name.ends_with(b"_cost")
            || NAMES.contains(&name))
}

/// The server's present name of a setting, given in lower case: it accepts two old ones as well
/// (`map_old_guc_names`, guc.c).
pub fn current_name(name: &[u8]) -> &[u8] {
    match name {
        b"sort_mem" => b"work_mem",
        b"vacuum_mem" => b"maintenance_work_mem",
        name => name,
    }
}

/// Whether the server creates a setting of this name on first use. It then never forgets the name:
/// `current_setting()` of it gives an empty string after a RESET, and no longer NULL.
pub fn is_custom(name: &[u8]) -> bool {
    name.contains(&b'.')
}

/// Settings that stay with their connection. Reading the first three needs rights that a client may
/// have had only for a while (GUC_SUPERUSER_ONLY); the last would end the server connection while
/// it is idle.
const STAYING: [&[u8]; 4] = [
    b"dynamic_library_path",
    b"extension_control_path",
    b"session_preload_libraries",
    b"idle_session_timeout",
];

/// Whether this setting (its name in lower case) can be read, and set on another connection.
pub fn can_move(name: &[u8]) -> bool {
    name.is_ascii() && !STAYING.contains(&name)
}

/// Settings that only superusers, and roles with a grant, may set (PGC_SUSET in guc_tables.c of
/// PostgreSQL 14 to 18), except those that begin with `log_`.
const FOR_SUPERUSERS: [&[u8]; 40] = [
    b"allow_in_place_tablespaces",
    b"allow_system_table_mods",
    b"backtrace_functions",
    b"commit_delay",
    b"composite_type_mismatch",
    b"compute_query_id",
    b"deadlock_timeout",
    b"debug_discard_caches",
    b"dynamic_library_path",
    b"event_triggers",
    b"extension_control_path",
    b"extension_destdir", // Debian's
    b"ignore_checksum_failure",
    b"jit_debugging_support",
    b"jit_dump_bitcode",
    b"jit_profiling_support",
    b"lc_messages",
    b"lo_compat_privileges",
    b"max_stack_depth",
    b"output_plugin_libraries",
    b"session_preload_libraries",
    b"session_replication_role",
    b"temp_file_limit",
    b"trace_lock_oidmin",
    b"trace_lock_table",
    b"trace_locks",
    b"trace_lwlocks",
    b"trace_userlocks",
    b"track_activities",
    b"track_cost_delay_timing",
    b"track_counts",
    b"track_functions",
    b"track_io_timing",
    b"track_wal_io_timing",
    b"update_process_title",
    b"wal_compression",
    b"wal_consistency_checking",
    b"wal_debug",
    b"wal_init_zero",
    b"wal_recycle",
];

/// Whether only superusers may set this setting (its name in lower case, without a dot). A SECURITY
/// DEFINER function may still have set it.
pub fn is_for_superusers(name: &[u8]) -> bool {
    (name.starts_with(b"log_") && name != b"log_parameter_max_length_on_error")
        || name == b"zero_damaged_pages"
        || FOR_SUPERUSERS.contains(&name)
}

/// One setting: its name in lower case and its value, without terminating NUL.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Entry {
    name: Box<[u8]>,
    value: Box<[u8]>,
    /// The first value with which plans depend on it. Kept, so that a Bind need not look at the
    /// name.
    read: PlanReads,
    /// The first value with which their results do.
    decides: PlanReads,
}

impl Entry {
    fn new(name: Box<[u8]>, value: &[u8]) -> Self {
        let (read, decides) = (PlanReads::of(&name), PlanReads::of_results(&name));
        Self { name, value: value.into(), read, decides }
    }
}

/// The name only: values are a client's own and never reach a log.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.name.escape_ascii())
    }
}

/// A hash that tells most sets of settings apart without comparing them. Equal sets have equal
/// marks; different sets may have equal marks, by chance or by an attacker's choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mark {
    all: u32,
    /// The hash of the `search_path`, the costliest setting to change.
    path: u32,
}

impl Mark {
    fn of(entries: &[Entry]) -> Mark {
        let path = entries.binary_search_by(|entry| (*entry.name).cmp(b"search_path"));
        let path = path.map_or(&[][..], |at| &entries[at..=at]);
        Mark { all: fnv_1a(entries), path: if path.is_empty() { 0 } else { fnv_1a(path) } }
    }

    /// Whether the `search_path` is the same.
    #[inline]
    pub fn has_path_of(self, other: Mark) -> bool {
        self.path == other.path
    }

    /// The mark for a session with the own values of this number. (An odd factor: other numbers
    /// give other marks.)
    #[must_use]
    pub fn of_basis(self, basis: u16) -> Mark {
        let own = (u32::from(basis) + 1).wrapping_mul(0x9e37_79b1);
        Mark { all: self.all ^ own, path: self.path ^ own }
    }
}

/// FNV-1a, 32 bits. The lengths separate names and values.
fn fnv_1a(entries: &[Entry]) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    let mut take = |byte: u8| hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    for entry in entries {
        for text in [&entry.name, &entry.value] {
            text.iter().copied().for_each(&mut take);
            text.len().to_le_bytes().into_iter().for_each(&mut take);
        }
    }
    hash
}

/// The settings of a set, and their mark.
#[derive(Debug)]
struct Set {
    entries: Box<[Entry]>,
    mark: Mark,
    /// Whether a name is custom.
    custom: bool,
}

/// An immutable set of settings; cloning it copies a pointer.
#[derive(Clone, Default)]
pub struct Settings(Option<Shared>); // None is the empty set, which needs no memory

/// A pointer of one word: every client holds two.
type Shared = Arc<Set>;

impl Settings {
    /// No setting differs from the base.
    pub const EMPTY: Settings = Settings(None);

    fn entries(&self) -> &[Entry] {
        self.0.as_ref().map_or(&[], |set| &set.entries)
    }

    /// See [`Mark`].
    #[inline]
    pub fn mark(&self) -> Mark {
        self.0.as_ref().map_or(Mark::default(), |set| set.mark)
    }

    /// The value of a setting, its name in any case.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let entries = self.entries();
        // Names in the set are in lower case. (No copy: this is asked for each statement.)
        let lower = || name.iter().map(u8::to_ascii_lowercase);
        let at = entries.binary_search_by(|entry| entry.name.iter().copied().cmp(lower())).ok()?;
        Some(&entries[at].value)
    }

    /// Names and values in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.entries().iter().map(|entry| (&*entry.name, &*entry.value))
    }

    /// How many settings differ from the base.
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    /// Whether there are custom names among them.
    #[inline]
    pub fn has_custom(&self) -> bool {
        self.0.as_ref().is_some_and(|set| set.custom)
    }

    /// Whether they are equal, compared by content.
    fn are_like(&self, other: &Settings) -> bool {
        self.mark() == other.mark() && self.entries() == other.entries()
    }

    /// Whether they are one object. (If not, they may still be equal.)
    #[inline]
    pub fn is_shared_with(&self, other: &Settings) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        }
    }

    /// Whether any name or value has bytes beyond ASCII. As a parameter of a Bind it would be read
    /// in the `client_encoding` in force.
    pub fn needs_encoding(&self) -> bool {
        self.entries().iter().any(|entry| !entry.name.is_ascii() || !entry.value.is_ascii())
    }

    /// The part of them that identifies a prepared statement: two clients may share one only if
    /// their keys are equal. `reads`: what plans depend on.
    pub fn parse_key(&self, reads: PlanReads) -> ParseKey {
        ParseKey { settings: self.clone(), reads }
    }

    /// Whether plans that depend on `reads` are the same under both.
    #[inline]
    pub fn plan_alike(&self, other: &Settings, reads: PlanReads) -> bool {
        let read = |entry: &&Entry| entry.read <= reads;
        self.is_shared_with(other)
            || self.entries().iter().filter(read).eq(other.entries().iter().filter(read))
    }

    /// Whether plans that depend on `reads` give the same results under both.
    #[inline]
    pub fn give_alike(&self, other: &Settings, reads: PlanReads) -> bool {
        let decides = |entry: &&Entry| entry.decides <= reads;
        self.is_shared_with(other)
            || self.entries().iter().filter(decides).eq(other.entries().iter().filter(decides))
    }

    /// Hashes what decides the results of plans that depend on `reads`.
    pub(crate) fn hash_deciding(&self, reads: PlanReads, state: &mut impl Hasher) {
        self.entries().iter().filter(|entry| entry.decides <= reads).for_each(|e| e.hash(state));
    }

    /// The changes that make `self`, which a backend has, into `desired`, in an order in which
    /// they can be applied.
    pub fn diff<'a>(&'a self, desired: &'a Settings) -> Diff<'a> {
        if self.is_shared_with(desired) {
            return Diff { applied: &[], wanted: &[], first: [None, None], last: [None, None] };
        }
        // Only the role that logged in may set the others: other roles end first and begin last.
        // SET SESSION AUTHORIZATION resets the role, which has to be set again.
        let (authorization, role) = (&b"session_authorization"[..], &b"role"[..]);
        let identity = change(self.get(authorization), desired.get(authorization), authorization);
        let resets = identity.is_some() && self.get(authorization).is_some();
        let has_role = self.get(role).filter(|_| !resets);
        let ends = has_role.filter(|_| identity.is_some() || self.get(role) != desired.get(role));
        let had_role = self.get(role).filter(|_| identity.is_none());
        let first =
            [resets.then_some(Change::Reset(authorization)), ends.map(|_| Change::Reset(role))];
        let set = |change: Option<Change<'a>>| change.filter(|c| matches!(c, Change::Set(..)));
        let last = [set(identity), set(change(had_role, desired.get(role), role))];
        Diff { applied: self.entries(), wanted: desired.entries(), first, last }
    }
}

fn change<'a>(
    applied: Option<&[u8]>,
    wanted: Option<&'a [u8]>,
    name: &'a [u8],
) -> Option<Change<'a>> {
    match wanted {
        Some(value) if applied != wanted => Some(Change::Set(name, value)),
        None if applied.is_some() => Some(Change::Reset(name)),
        _ => None,
    }
}

impl PartialEq for Settings {
    #[inline]
    fn eq(&self, other: &Settings) -> bool {
        self.is_shared_with(other) || self.are_like(other)
    }
}

impl Eq for Settings {}

impl Hash for Settings {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entries().hash(state);
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries()).finish()
    }
}

/// Settings as parse analysis sees them: equal if all settings that it may read are equal.
#[derive(Debug, Clone)]
pub struct ParseKey {
    settings: Settings,
    reads: PlanReads,
}

impl ParseKey {
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.settings.entries().iter().filter(|entry| entry.read <= self.reads)
    }
}

impl PartialEq for ParseKey {
    fn eq(&self, other: &ParseKey) -> bool {
        self.settings.is_shared_with(&other.settings) || self.entries().eq(other.entries())
    }
}

impl Eq for ParseKey {}

impl Hash for ParseKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for entry in self.entries() {
            entry.hash(state);
        }
    }
}

/// One step from a backend's settings to a client's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// Set this name to this value.
    Set(&'a [u8], &'a [u8]),
    /// Give this name its base value.
    Reset(&'a [u8]),
}

impl Change<'_> {
    /// The setting.
    pub fn name(&self) -> &[u8] {
        match self {
            Change::Set(name, _) | Change::Reset(name) => name,
        }
    }
}

impl fmt::Debug for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if matches!(self, Change::Set(..)) { "Set" } else { "Reset" };
        write!(f, "{verb}({})", self.name().escape_ascii())
    }
}

/// Iterator of [`Settings::diff`].
#[derive(Debug, Clone)]
pub struct Diff<'a> {
    applied: &'a [Entry],
    wanted: &'a [Entry],
    first: [Option<Change<'a>>; 2],
    last: [Option<Change<'a>>; 2],
}

impl<'a> Iterator for Diff<'a> {
    type Item = Change<'a>;

    fn next(&mut self) -> Option<Change<'a>> {
        if let Some(change) = self.first.iter_mut().find_map(Option::take) {
            return Some(change);
        }
        loop {
            let applied = self.applied.first();
            let wanted = self.wanted.first();
            // The smaller name of both is the next; an absent one is larger than all.
            let name = match (applied, wanted) {
                (None, None) => return self.last.iter_mut().find_map(Option::take),
                (Some(entry), None) | (None, Some(entry)) => &*entry.name,
                (Some(a), Some(w)) => (&*a.name).min(&*w.name),
            };
            let applied = applied.filter(|entry| *entry.name == *name);
            let wanted = wanted.filter(|entry| *entry.name == *name);
            self.applied = &self.applied[usize::from(applied.is_some())..];
            self.wanted = &self.wanted[usize::from(wanted.is_some())..];
            if name == b"role" || name == b"session_authorization" {
                continue; // they come first and last
            }
            let (applied, wanted) = (applied.map(|e| &*e.value), wanted.map(|e| &*e.value));
            if let Some(change) = change(applied, wanted, name) {
                return Some(change);
            }
        }
    }
}

/// Writes the text of a simple query that makes the changes, and returns its number of
/// statements: the server answers each with a CommandComplete (`SET`, `RESET`, or for lists a row
/// and `SELECT 1`), and all take effect or none.
///
/// The text means the same whatever `client_encoding`, `standard_conforming_strings`, `search_path`
/// or `backslash_quote` the backend has.
pub fn write_set_query<'a>(
    changes: impl IntoIterator<Item = Change<'a>>,
    out: &mut Vec<u8>,
) -> usize {
    let mut statements = 0;
    for change in changes {
        if statements > 0 {
            out.push(b';');
        }
        statements += 1;
        match change {
            Change::Set(name, value) => write_set(name, value, false, out),
            Change::Reset(name) if !name.is_ascii() => write_set_config(name, None, false, out),
            Change::Reset(name) => {
                out.extend_from_slice(b"RESET ");
                write_name(name, out);
            }
        }
    }
    statements
}

/// Writes the text of one statement that makes the change up to the end of the transaction, and
/// does not change what is in force after that: earlier settings of the transaction, with LOCAL or
/// without, last as long as they would have.
pub fn write_set_local(change: Change<'_>, out: &mut Vec<u8>) {
    match change {
        Change::Set(name, value) => write_set(name, value, true, out),
        Change::Reset(name) if !name.is_ascii() => write_set_config(name, None, true, out),
        Change::Reset(name) => {
            out.extend_from_slice(b"SET LOCAL ");
            write_name(name, out);
            out.extend_from_slice(b" TO DEFAULT");
        }
    }
}

/// One statement that gives a setting a value, for the session or up to the end of the
/// transaction. The server has already quoted lists: set_config() takes any of them unchanged.
fn write_set(name: &[u8], value: &[u8], local: bool, out: &mut Vec<u8>) {
    if !name.is_ascii() {
        return write_set_config(name, Some(value), local, out);
    }
    let start = out.len();
    out.extend_from_slice(if local { b"SET LOCAL " } else { b"SET " });
    write_name(name, out);
    out.extend_from_slice(b" TO ");
    if !QUOTED_LISTS.contains(&name) {
        write_value(value, out);
    } else if list::write_names(value, out).is_none() {
        out.truncate(start);
        write_set_config(name, Some(value), local, out);
    }
}

/// The same by a query; a RESET if there is no value.
fn write_set_config(name: &[u8], value: Option<&[u8]>, local: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"SELECT pg_catalog.set_config(");
    write_value(name, out);
    out.push(b',');
    match value {
        Some(value) => write_value(value, out),
        None => out.extend_from_slice(b"NULL"),
    }
    out.extend_from_slice(if local { b",true)" } else { b",false)" });
}

/// Each part of a setting's name in double quotes: a part may be a reserved word.
fn write_name(name: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in name {
        match byte {
            b'.' => out.extend_from_slice(b"\".\""),
            b'"' => out.extend_from_slice(b"\"\""),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// Reads what the server's `encode(..., 'hex')` gives.
pub fn read_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

/// Whether text under this `client_encoding` is what the server has, byte by byte, in a database of
/// that `server_encoding` (`pg_any_to_server` and `pg_server_to_any`, mbutils.c: where one of the two is
/// SQL_ASCII nothing is converted).
pub fn is_raw(client_encoding: Option<&[u8]>, server_encoding: Option<&[u8]>) -> bool {
    const BYTES: Option<&[u8]> = Some(b"SQL_ASCII");
    client_encoding == server_encoding || client_encoding == BYTES || server_encoding == BYTES
}

/// Collects settings; the last value of a name counts.
#[derive(Debug, Clone, Default)]
pub struct SettingsBuilder {
    entries: Vec<Entry>,
}

impl SettingsBuilder {
    /// With no settings.
    pub fn new() -> SettingsBuilder {
        SettingsBuilder::default()
    }

    fn find(&self, name: &[u8]) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| (*entry.name).cmp(name))
    }

    /// Sets a value, the name in any case.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> &mut SettingsBuilder {
        let name = name.to_ascii_lowercase();
        match self.find(&name) {
            Ok(at) => self.entries[at].value = value.into(),
            Err(at) => self.entries.insert(at, Entry::new(name.into(), value)),
        }
        self
    }

    /// The value of a setting so far, its name in any case.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let found = |entry: &&Entry| entry.name.eq_ignore_ascii_case(name);
        self.entries.iter().find(found).map(|entry| &*entry.value)
    }

    /// Removes settings that have their base value by `is_base`, which gets name and value.
    pub fn remove_all(&mut self, is_base: impl Fn(&[u8], &[u8]) -> bool) -> &mut SettingsBuilder {
        self.entries.retain(|entry| !is_base(&entry.name, &entry.value));
        self
    }

    /// Removes a setting: it has its base value.
    pub fn remove(&mut self, name: &[u8]) -> &mut SettingsBuilder {
        if let Ok(at) = self.find(&name.to_ascii_lowercase()) {
            self.entries.remove(at);
        }
        self
    }

    /// The settings, in an object of their own: [`Interner::share`] makes equal ones one.
    pub fn build(self) -> Settings {
        if self.entries.is_empty() {
            Settings::EMPTY
        } else {
            let entries = self.entries.into_boxed_slice();
            let mark = Mark::of(&entries);
            let custom = entries.iter().any(|entry| is_custom(&entry.name));
            Settings(Some(Arc::new(Set { entries, mark, custom })))
        }
    }
}

impl From<&Settings> for SettingsBuilder {
    fn from(settings: &Settings) -> SettingsBuilder {
        SettingsBuilder { entries: settings.entries().to_vec() }
    }
}

impl<'a> FromIterator<(&'a [u8], &'a [u8])> for SettingsBuilder {
    fn from_iter<I: IntoIterator<Item = (&'a [u8], &'a [u8])>>(pairs: I) -> SettingsBuilder {
        let mut builder = SettingsBuilder::new();
        for (name, value) in pairs {
            builder.set(name, value);
        }
        builder
    }
}

/// Makes equal settings one object, so that comparing them is comparing pointers.
///
/// It does not keep them alive: a set without holders is forgotten. `S` is keyed by its owner,
/// since names and values come from clients.
#[derive(Debug)]
pub struct Interner<S> {
    hasher: S,
    known: HashMap<u64, Vec<Weak<Set>>, S>,
    count: usize,
    sweep_at: usize,
}

impl<S: BuildHasher + Clone> Interner<S> {
    /// Below this number of sets a sweep is not worth while.
    const SWEEP_MIN: usize = 64;

    /// An empty one.
    pub fn new(hasher: S) -> Interner<S> {
        let known = HashMap::with_hasher(hasher.clone());
        Interner { hasher, known, count: 0, sweep_at: Self::SWEEP_MIN }
    }

    /// The object that stands for all settings equal to these.
    pub fn share(&mut self, settings: Settings) -> Settings {
        let Some(set) = &settings.0 else { return settings };
        let hash = self.hasher.hash_one(&set.entries);
        if let Some(same) = self.known.get(&hash) {
            let mut same = same.iter().filter_map(Weak::upgrade);
            let found = same.find(|known| known.entries == set.entries);
            if let Some(found) = found {
                return Settings(Some(found));
            }
        }
        if self.count >= self.sweep_at {
            self.sweep();
        }
        if self.count < INTERNED_MAX {
            self.known.entry(hash).or_default().push(Arc::downgrade(set));
            self.count += 1;
        }
        settings
    }

    /// Forgets sets without holders. Twice as many may come before the next sweep, so the cost of
    /// sweeping is a constant for each set that was added.
    fn sweep(&mut self) {
        self.known.retain(|_, same| {
            same.retain(|known| known.strong_count() > 0);
            !same.is_empty()
        });
        self.count = self.known.values().map(Vec::len).sum();
        self.sweep_at = (self.count * 2).max(Self::SWEEP_MIN);
    }

    /// How many it knows, including some already forgotten.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        pairs
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
            .collect::<SettingsBuilder>()
            .build()
    }

    fn query(from: &Settings, to: &Settings) -> String {
        let mut out = Vec::new();
        write_set_query(from.diff(to), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn names_compare_without_case_and_the_last_value_counts() {
        let a =
            settings(&[("TimeZone", "UTC"), ("datestyle", "ISO, MDY"), ("TIMEZONE", "PST8PDT")]);
        assert_eq!(a.get(b"timezone"), Some(&b"PST8PDT"[..]));
        assert_eq!(a.len(), 2);
        assert_eq!(a, settings(&[("DateStyle", "ISO, MDY"), ("timezone", "PST8PDT")]));
        let mut builder = SettingsBuilder::from(&a);
        builder.remove(b"TimeZone").remove(b"DATESTYLE").remove(b"x");
        assert_eq!(builder.build(), Settings::EMPTY);
    }

    #[test]
    fn a_difference_is_closed_by_the_least_statements() {
        let from = settings(&[("a", "1"), ("b", "2"), ("d", "4")]);
        let to = settings(&[("b", "2"), ("c", "3"), ("d", "5")]);
        assert_eq!(query(&from, &to), r#"RESET "a";SET "c" TO '3';SET "d" TO '5'"#);
        assert_eq!(query(&from, &from.clone()), "");
        assert_eq!(query(&from, &settings(&[("a", "1"), ("b", "2"), ("d", "4")])), "");
        assert_eq!(query(&Settings::EMPTY, &Settings::EMPTY), "");
        assert_eq!(write_set_query(from.diff(&to), &mut Vec::new()), 3);
    }

    #[test]
    fn who_the_session_is_ends_first_and_begins_last() {
        let a = settings(&[("role", "r"), ("a", "1")]);
        let b = settings(&[("role", "r"), ("session_authorization", "u"), ("z", "1")]);
        assert_eq!(
            query(&a, &b),
            r#"RESET "role";RESET "a";SET "z" TO '1';SET "session_authorization" TO 'u';SET "role" TO 'r'"#
        );
        let v = settings(&[("role", "s"), ("session_authorization", "v"), ("z", "1")]);
        assert_eq!(
            query(&b, &v),
            r#"RESET "session_authorization";SET "session_authorization" TO 'v';SET "role" TO 's'"#
        );
        let r = settings(&[("role", "s")]);
        assert_eq!(query(&settings(&[("role", "r")]), &r), r#"RESET "role";SET "role" TO 's'"#);
        let c = settings(&[("session_authorization", "u")]);
        assert_eq!(query(&b, &c), r#"RESET "role";RESET "z""#);
        // The role went with the authorization.
        assert_eq!(query(&b, &Settings::EMPTY), r#"RESET "session_authorization";RESET "z""#);
    }

    #[test]
    fn quoting_is_exact() {
        let hostile = settings(&[
            ("my.user\"; drop", "a'b\\'; drop"),
            ("search_path", r#""$user", "it's", public"#),
            ("datestyle", "ISO, MDY"),
            ("temp_tablespaces", ""),
        ]);
        assert_eq!(
            query(&Settings::EMPTY, &hostile),
            [
                r#"SET "datestyle" TO 'ISO, MDY'"#,
                r#"SET "my"."user""; drop" TO E'a''b\\''; drop'"#,
                r#"SET "search_path" TO "$user", "it's", "public""#,
                r#"SELECT pg_catalog.set_config('temp_tablespaces','',false)"#,
            ]
            .join(";")
        );
        assert_eq!(
            query(&settings(&[("search_path", "x")]), &Settings::EMPTY),
            r#"RESET "search_path""#
        );
    }

    #[test]
    fn local_changes_are_quoted_as_others_are() {
        let written = |change| {
            let mut out = Vec::new();
            write_set_local(change, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(Change::Set(b"datestyle", b"dmy")), r#"SET LOCAL "datestyle" TO 'dmy'"#);
        assert_eq!(
            written(Change::Set(b"search_path", b"it's,x")),
            r#"SELECT pg_catalog.set_config('search_path','it''s,x',true)"#
        );
        assert_eq!(
            written(Change::Set(b"search_path", b"\"it's\"")),
            r#"SET LOCAL "search_path" TO "it's""#
        );
        assert_eq!(written(Change::Reset(b"my.x")), r#"SET LOCAL "my"."x" TO DEFAULT"#);
    }

    #[test]
    fn what_is_written_reads_as_set_of_the_same_names() {
        use crate::session::scan::{ScanOptions, Verb, scan};
        let all =
            settings(&[("my.Select", "a'b\\"), ("role", "x"), ("local", "-1"), ("w", "\n--/*")]);
        for conforming in [true, false] {
            let mut out = Vec::new();
            let count = write_set_query(Settings::EMPTY.diff(&all), &mut out);
            let options =
                ScanOptions { standard_conforming_strings: conforming, unsafe_encoding: true };
            let found = scan(&out, options);
            assert!(!found.unsure);
            let names: Vec<_> = found
                .statements()
                .map(|statement| match &statement.verb {
                    Verb::Set { name, local: false, .. } => name.as_bytes().to_vec(),
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(names.len(), count);
            assert_eq!(names, [&b"local"[..], b"my.select", b"w", b"role"]);
        }
    }

    #[test]
    fn statements_are_shared_by_what_parsing_reads() {
        let a = settings(&[("application_name", "a"), ("timezone", "UTC"), ("log_duration", "on")]);
        let b = settings(&[("application_name", "b"), ("timezone", "UTC"), ("lock_timeout", "1s")]);
        let c = settings(&[("application_name", "a"), ("timezone", "PST8PDT")]);
        assert_eq!(a.parse_key(PlanReads::Custom), b.parse_key(PlanReads::Custom));
        let hash = |key: ParseKey| BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        assert_eq!(hash(a.parse_key(PlanReads::Custom)), hash(b.parse_key(PlanReads::Custom)));
        assert_ne!(a.parse_key(PlanReads::Custom), c.parse_key(PlanReads::Custom));
        assert!(a.plan_alike(&b, PlanReads::Custom) && !a.plan_alike(&b, PlanReads::All));
        for name in
            ["search_path", "role", "log_x.y", "my.user", "bytea_output", "client_min_messages"]
        {
            let own = settings(&[(name, "x")]);
            assert_ne!(
                own.parse_key(PlanReads::Custom),
                Settings::EMPTY.parse_key(PlanReads::Custom),
                "{name}"
            );
            let custom = name.contains('.');
            assert_eq!(
                own.parse_key(PlanReads::Own) == Settings::EMPTY.parse_key(PlanReads::Own),
                custom,
                "{name}"
            );
        }
    }

    #[test]
    fn what_plans_give_depends_on_less_than_which_plans_are_taken() {
        for (name, from) in [
            ("timezone", PlanReads::Own),
            ("bytea_output", PlanReads::Own),
            ("role", PlanReads::Custom),
            ("my.user", PlanReads::Custom),
            ("application_name", PlanReads::All),
            ("search_path", PlanReads::All),
            ("work_mem", PlanReads::All),
            ("enable_seqscan", PlanReads::All),
        ] {
            let own = settings(&[(name, "x")]);
            for reads in [PlanReads::Own, PlanReads::Custom, PlanReads::All] {
                assert_eq!(own.give_alike(&Settings::EMPTY, reads), reads < from, "{name}");
            }
        }
        let own = settings(&[("work_mem", "x")]);
        assert!(!own.plan_alike(&Settings::EMPTY, PlanReads::Own));
    }

    #[test]
    fn values_beyond_ascii_are_seen() {
        assert!(settings(&[("my.x", "\u{e9}")]).needs_encoding());
        assert!(!settings(&[("my.x", "e")]).needs_encoding());
    }

    #[test]
    fn debug_shows_no_values() {
        let secret = settings(&[("my.token", "hunter2")]);
        assert_eq!(format!("{secret:?}"), r#"{"my.token"}"#);
        assert!(!format!("{:?}", Settings::EMPTY.diff(&secret).next()).contains("hunter2"));
        let mut builder = SettingsBuilder::new();
        builder.set(b"my.token", b"hunter2");
        assert!(!format!("{builder:?}").contains("hunter2"));
    }

    #[test]
    fn interned_settings_are_one_object_and_do_not_pile_up() {
        let mut interner = Interner::new(BuildHasherDefault::<DefaultHasher>::default());
        let a = interner.share(settings(&[("a", "1")]));
        let b = interner.share(settings(&[("A", "1")]));
        assert!(a.is_shared_with(&b));
        assert!(!a.is_shared_with(&interner.share(settings(&[("a", "2")]))));
        for i in 0..100_000 {
            interner.share(settings(&[("a", &i.to_string())]));
        }
        assert!(interner.len() <= 128, "{}", interner.len());
        assert!(a.is_shared_with(&interner.share(settings(&[("a", "1")]))));
        let held: Vec<Settings> = (0..INTERNED_MAX + 10)
            .map(|i| interner.share(settings(&[("b", &i.to_string())])))
            .collect();
        assert!(interner.len() <= INTERNED_MAX);
        assert_eq!(held[INTERNED_MAX + 9], settings(&[("b", &(INTERNED_MAX + 9).to_string())]));
    }
}
