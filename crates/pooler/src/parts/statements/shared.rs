//! Prepared statements of the extended protocol, shared between clients.
//!
//! # Model
//! A client's name stands for a [`Statement`]: text, parameter types, and the settings in force
//! when the client prepared it, as far as parse analysis reads them. Clients for which all of
//! that is equal share one statement on each backend; the pool is the role's, so the role is
//! equal too. (If users share a pool, the number of a session's own values distinguishes them.) A
//! backend that lacks it gets it before the Bind that needs it.
//!
//! # Bounds
//! On a backend by [`crate::parts::statements::prepared_on_server::BackendStatements`] (least recently used goes first), in all by the
//! [`StatementMemory`] that the tables of all pools share: once the texts take more than it
//! allows, those that no client names any more are forgotten. If all are named, or its client names as
//! many as one may ([`StatementMemory::share_of_client`]), a new one is not shared: its client keeps the
//! backend that has it. One that no client names and no backend has is
//! forgotten in any case by [`StatementTable::forget_idle`], unless it is asked for again in time:
//! a text that was sent once (with values in it) would otherwise stay until the bound is reached.
//!
//! # Why the settings are part of it
//! Parse folds constants and resolves names: `'01/02/2024'::date` keeps the DateStyle of its
//! Parse. Sharing by text alone gives wrong answers (trap 6).
//!
//! Custom settings are, too: the planner evaluates functions that are declared IMMUTABLE, and one that
//! reads `my.user` all the same would show one client another's rows. If the configuration, or the
//! [`crate::parts::functions::census`] of the database's functions, says that there is none, clients that
//! differ only in custom settings share ([`StatementTable::depend_on`]).
//!
//! # Why the settings under which it is run are, too
//! The server plans a statement when it is executed, and keeps the plan; and it analyses the text again when
//! something that it depends on may have changed (ANALYZE, any schema that is made or dropped, another
//! `search_path`). Both read the settings in force then. Clients that prepared it alike, and have
//! set another DateStyle since, would pass each other their constants: a client that has set
//! something has a copy that is shared only with others that have set the same
//! ([`Statement::run_under`]). If an unknown setting may be in force (after SET LOCAL), the copy of
//! that server connection is for its client alone, up to the end of the transaction (`only_in` of
//! [`crate::parts::statements::prepared_on_server`]).

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::hash::{IdHasher, Keyed};
use crate::parts::start_values::basis::Basis;
use crate::parts::statements::description::Seen;
use crate::parts::statements::schema_epoch::SchemaEpoch;
use crate::queries::digest::{Digest, digest};
use crate::relay::effects;
use crate::session::commands::{after_comments, begins_with_any, draws_nothing, inserts};
use crate::session::moments::names_moment;
use crate::session::settings::{PlanReads, Settings};
use crate::wire::frame;

/// The unnamed statement as a client prepared it.
#[derive(Debug)]
pub struct Unnamed {
    /// Text, NUL, parameter types: the body of Parse after the name.
    pub body: Box<[u8]>,
    /// Settings in force at the Parse.
    pub settings: Settings,
    /// What executing it may do to the session: of most nothing, for which nothing is allocated.
    effects: Option<Box<effects::Effects>>,
    /// See [`Statement::draws_nothing`].
    pub(crate) draws_nothing: bool,
    /// The epoch of the schema when its client parsed it.
    pub(crate) epoch: SchemaEpoch,
    /// How it was described to its client.
    described: OnceLock<Arc<Seen>>,
}

impl Unnamed {
    pub(crate) fn new(
        body: &[u8],
        settings: Settings,
        effects: Option<effects::Effects>,
        epoch: SchemaEpoch,
    ) -> Arc<Self> {
        let draws_nothing = draws_nothing(text_of(body));
        let effects = effects.filter(|effects| *effects != NO_EFFECTS).map(Box::new);
        let described = OnceLock::new();
        Arc::new(Self { body: body.into(), settings, effects, draws_nothing, epoch, described })
    }

    /// Stands for an unknown statement, which belongs to no client.
    pub(crate) fn unknown() -> Arc<Self> {
        Self::new(&[], Settings::EMPTY, None, SchemaEpoch::NEVER)
    }

    /// The same as parsed under other settings.
    pub(crate) fn under(&self, settings: Settings, effects: effects::Effects) -> Arc<Self> {
        let again = Self::new(&self.body, settings, Some(effects), self.epoch);
        self.described.get().map(|described| again.described.set(described.clone()));
        again
    }

    /// The same with other types of parameters.
    pub(crate) fn with_body(&self, body: &[u8]) -> Arc<Self> {
        let effects = self.effects.as_deref().cloned();
        let again = Self::new(body, self.settings.clone(), effects, self.epoch);
        self.described.get().map(|described| again.described.set(described.clone()));
        again
    }

    /// The unnamed statement of a client that comes from another process, as described to it.
    /// What it does is found when the client first gets a server connection.
    pub(crate) fn to_be_read(
        body: &[u8],
        settings: Settings,
        described: Option<Arc<Seen>>,
        epoch: SchemaEpoch,
    ) -> Arc<Self> {
        let unnamed = Self::new(body, settings, None, epoch);
        described.map(|described| unnamed.described.set(described));
        unnamed
    }

    /// How it was described to its client, if it was.
    #[inline]
    pub(crate) fn described(&self) -> Option<&Arc<Seen>> {
        self.described.get()
    }

    /// Where its description to its client is noted.
    pub(crate) fn noting(&self) -> Arc<Seen> {
        self.described.get_or_init(Arc::default).clone()
    }

    /// What executing it may do to the session.
    #[inline]
    pub(crate) fn effects(&self) -> &effects::Effects {
        self.effects.as_deref().unwrap_or(&NO_EFFECTS)
    }

    /// Whether it does nothing to the session.
    #[inline]
    pub(crate) fn has_no_effects(&self) -> bool {
        self.effects.is_none()
    }

    /// Whether executing it changes no setting, as far as its text shows.
    pub(crate) fn sets_nothing(&self) -> bool {
        self.has_no_effects() && changes_no_setting(text_of(&self.body))
    }
}

/// Whether a statement without effects certainly changes no setting: it writes no row, which could fire a
/// trigger, and calls no function. (The end of a transaction, or of a part of it, takes settings back.)
fn changes_no_setting(text: &[u8]) -> bool {
    const CHANGE_NONE: [&[u8]; 7] =
        [b"begin", b"listen", b"notify", b"savepoint", b"show", b"start", b"unlisten"];
    let text = text.trim_ascii_start();
    let calls = memchr::memchr(b'(', text).is_some();
    begins_with_any(text, &CHANGE_NONE) || (begins_with_any(text, &[b"select"]) && !calls)
}

static NO_EFFECTS: effects::Effects = effects::Effects::NONE;

/// A prepared statement that clients share.
#[derive(Debug)]
pub struct Statement {
    /// Its id. Never used twice in a process.
    pub id: u64,
    /// Its name on servers. Clients cannot guess it.
    pub name: Box<[u8]>,
    /// Text, NUL, parameter types: the body of Parse after the name.
    pub body: Box<[u8]>,
    /// Settings in force at the Parse.
    pub settings: Settings,
    /// Settings in force when it is run, as far as planning or a later analysis reads them. For
    /// most clients those of the Parse.
    pub run_under: Settings,
    /// The basis of all these settings.
    pub basis: Basis,
    /// What executing it may do to the session.
    pub effects: effects::Effects,
    /// Executing it does nothing to the session: looked for once, and not at each Bind.
    pub(crate) is_plain: bool,
    /// It draws nothing from sequences: also looked for once.
    pub(crate) draws_nothing: bool,
    /// Its text begins with INSERT.
    pub(crate) inserts: bool,
    /// Its rows are described anew for each portal: those of another statement, or of a cursor. Of such
    /// statements the server never says that they have changed (`RevalidateCachedQuery`, plancache.c).
    pub(crate) redescribes_rows: bool,
    /// Executing it changes no setting: also looked for once.
    sets_nothing: bool,
    /// What it gives depends on other things of its client's: no two share it.
    is_private: bool,
    /// The epoch of the schema in which a server has prepared it last.
    proven: AtomicU64,
    /// A server sent a warning or notice for it: each client that prepares it gets that, too.
    noted: AtomicBool,
    /// Its effects, or the clients that may share it, are not what was assumed when it was made:
    /// its holders make it again before the next use.
    superseded: AtomicBool,
    /// The digest of its text, once it was asked for.
    digest: OnceLock<Digest>,
}

impl Statement {
    /// Whether it is to be made anew.
    #[inline]
    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }

    /// The digest of its text.
    #[inline]
    pub(crate) fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| digest(self.text()).0)
    }

    /// Whether it is this one.
    fn is(&self, key: &Key<'_>, reads: PlanReads) -> bool {
        !self.is_private
            && *self.body == *key.body
            && self.basis == key.basis
            && self.settings.plan_alike(key.settings, of_a_parse(reads))
            && self.run_under.give_alike(key.run_under, reads)
    }

    /// Its text.
    pub(crate) fn text(&self) -> &[u8] {
        text_of(&self.body)
    }

    /// Whether executing it changes no setting, as far as its text shows.
    pub(crate) fn sets_nothing(&self) -> bool {
        !self.is_superseded() && self.sets_nothing
    }

    /// Its memory, as far as it is known: see [`StatementMemory`].
    fn bytes(&self) -> usize {
        self.body.len() + STATEMENT_OVERHEAD_BYTES
    }

    /// A server has sent a notice while it prepares it.
    pub(crate) fn note(&self) {
        self.noted.store(true, Ordering::Relaxed);
    }

    /// A server has prepared it in this epoch.
    pub(crate) fn prove(&self, epoch: SchemaEpoch) {
        self.proven.fetch_max(epoch.to_bits(), Ordering::Relaxed);
    }

    /// Whether a server sent a notice when it prepared it.
    pub(crate) fn is_noted(&self) -> bool {
        self.noted.load(Ordering::Relaxed)
    }

    /// Whether it means the same under all settings: a command that is not analysed before it
    /// runs, in a text that reads the same in every encoding and without any string.
    pub(crate) fn reads_no_settings(&self) -> bool {
        reads_no_settings(&self.body)
    }
}

impl Unnamed {
    /// Its text.
    pub(crate) fn text(&self) -> &[u8] {
        text_of(&self.body)
    }

    /// See [`Statement::reads_no_settings`].
    pub(crate) fn reads_no_settings(&self) -> bool {
        reads_no_settings(&self.body)
    }
}

/// First words of commands that parse analysis passes on as they are (`transformStmt`, analyze.c).
const COMMANDS: [&[u8]; 26] = [
    b"abort",
    b"alter",
    b"begin",
    b"checkpoint",
    b"cluster",
    b"commit",
    b"deallocate",
    b"discard",
    b"drop",
    b"end",
    b"grant",
    b"listen",
    b"load",
    b"lock",
    b"reindex",
    b"release",
    b"reset",
    b"revoke",
    b"rollback",
    b"savepoint",
    b"set",
    b"show",
    b"start",
    b"truncate",
    b"unlisten",
    b"vacuum",
];

/// The text in the body of a Parse, after the name.
pub(crate) fn text_of(body: &[u8]) -> &[u8] {
    frame::take_string(body).map_or(body, |(text, _)| text)
}

fn reads_no_settings(body: &[u8]) -> bool {
    let text = text_of(body);
    let plain = text.iter().all(|byte| byte.is_ascii() && !b"'\\$&".contains(byte));
    plain && begins_with_any(text, &COMMANDS)
}

/// Whether Parses of two clients may give different results. The columns of its rows may be those
/// of another statement or cursor, of this name in the session: the server notes them at its Parse
/// (`UtilityTupleDescriptor`, utility.c). 'now' is the moment of its Parse.
fn is_private(text: &[u8], effects: &effects::Effects) -> bool {
    begins_with_any(after_comments(text), &[b"fetch"])
        || effects.may(effects::Effect::MentionsAny)
        || !effects.mentions.is_empty()
        || names_moment(text)
}

/// Whether two sessions' settings are equal as far as parse analysis reads them.
pub(crate) fn same_parse_settings(one: &Settings, other: &Settings) -> bool {
    one.plan_alike(other, PlanReads::Custom)
}

/// The part of this that a Parse may depend on: only the planner calls functions.
fn of_a_parse(reads: PlanReads) -> PlanReads {
    reads.min(PlanReads::Custom)
}

/// What distinguishes statements.
#[derive(Clone, Copy)]
struct Key<'a> {
    body: &'a [u8],
    basis: Basis,
    settings: &'a Settings,
    run_under: &'a Settings,
}

impl<'a> Key<'a> {
    /// Of one that is bound under the settings of its Parse.
    fn of_parse(body: &'a [u8], basis: Basis, settings: &'a Settings) -> Self {
        Self { body, basis, settings, run_under: settings }
    }
}

#[derive(Debug)]
struct CachedStatement {
    statement: Arc<Statement>,
    used: u64,
}

type ByHash = HashMap<u64, Vec<CachedStatement>, BuildHasherDefault<IdHasher>>;

#[derive(Debug)]
struct Inner {
    /// By hash of body and settings; entries with equal hashes are compared.
    by_hash: ByHash,
    /// Those of [`StatementTable::to_be_made`], which no Parse finds: likewise, but of settings in all.
    to_be_made: ByHash,
    next_id: u64,
    clock: u64,
    bytes: usize,
    /// A sweep has just found too little to forget: the next is left to `make_room`, because
    /// sweeping at every Parse would cost more than it gains.
    nothing_to_spare: bool,
    /// The clock at the last call of `forget_idle`.
    mark: u64,
}

/// One client may take one of so many parts of the memory for statements.
const CLIENTS_SHARE: usize = 16;
/// It may take this in any case.
const CLIENT_BYTES_MIN: usize = 1 << 20;

/// The memory that the texts of all tables, and clients' names for them, take together and may
/// take.
#[derive(Debug)]
pub struct StatementMemory {
    texts: AtomicUsize,
    names: AtomicUsize,
    bytes_max: AtomicUsize,
}

impl StatementMemory {
    /// Nothing is taken yet.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            texts: AtomicUsize::new(0),
            names: AtomicUsize::new(0),
            bytes_max: AtomicUsize::new(bytes_max),
        }
    }

    /// Bytes taken.
    pub fn bytes(&self) -> usize {
        self.texts.load(Ordering::Relaxed) + self.names.load(Ordering::Relaxed)
    }

    /// Whether there is room for more names.
    pub(crate) fn has_room_for_names(&self) -> bool {
        self.names.load(Ordering::Relaxed) < self.bytes_max.load(Ordering::Relaxed)
    }

    /// What the names of one client, and the texts that they stand for, may take.
    pub(crate) fn share_of_client(&self) -> usize {
        let share = self.bytes_max.load(Ordering::Relaxed) / CLIENTS_SHARE;
        share.max(CLIENT_BYTES_MIN)
    }

    pub(crate) fn name(&self, bytes: usize) {
        self.names.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn unname(&self, bytes: usize) {
        self.names.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Sets another bound.
    pub fn set_max(&self, bytes_max: usize) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Bytes beyond the bound.
    pub fn excess(&self) -> usize {
        self.bytes().saturating_sub(self.bytes_max.load(Ordering::Relaxed))
    }

    fn changed(&self, before: usize, after: usize) {
        if after >= before {
            self.texts.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.texts.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}

/// All shared statements of one pool.
#[derive(Debug)]
pub struct StatementTable {
    key: Keyed,
    memory: Arc<StatementMemory>,
    /// What statements depend on: see [`PlanReads`].
    reads: AtomicU8,
    inner: Mutex<Inner>,
}

impl Drop for StatementTable {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.memory.changed(inner.bytes, 0);
    }
}

/// The memory of a statement beside its text: itself with the two counts of its [`Arc`], its name,
/// the smallest list that its place in the table has, that place, and what the allocator adds to
/// four blocks.
const STATEMENT_OVERHEAD_BYTES: usize =
    size_of::<Statement>() + 16 + 32 + 4 * size_of::<CachedStatement>() + 64 + 4 * 16;
/// A table with room for fewer is never made smaller.
const SPARE_PLACES: usize = 1024;

impl StatementTable {
    /// An empty table whose hashes are keyed.
    pub fn new(hash_key: u64, memory: Arc<StatementMemory>) -> Self {
        Self {
            key: Keyed(hash_key),
            memory,
            reads: AtomicU8::new(PlanReads::Custom as u8),
            inner: Mutex::new(Inner {
                by_hash: HashMap::default(),
                to_be_made: HashMap::default(),
                next_id: 1,
                clock: 0,
                bytes: 0,
                nothing_to_spare: false,
                mark: 0,
            }),
        }
    }

    /// Sets what statements depend on from now on. If that is more than before, all shared
    /// statements are made again.
    pub fn depend_on(&self, reads: PlanReads) {
        if self.reads.swap(reads as u8, Ordering::Relaxed) < reads as u8 {
            self.supersede(|_| true); // plans are not shared between clients from here on
        }
    }

    /// What statements and plans depend on.
    #[inline]
    pub fn reads(&self) -> PlanReads {
        PlanReads::from_place(self.reads.load(Ordering::Relaxed))
    }

    /// Stops sharing those of which this is true; their holders make them again before the next
    /// use.
    pub(crate) fn supersede(&self, is_another: impl Fn(&Statement) -> bool) {
        let all: Vec<Arc<Statement>> = {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.by_hash.values().flatten().map(|kept| kept.statement.clone()).collect()
        };
        // Looked at without the lock: there may be many.
        let others: Vec<_> = all.into_iter().filter(|statement| is_another(statement)).collect();
        if others.is_empty() {
            return;
        }
        for statement in &others {
            statement.superseded.store(true, Ordering::Relaxed);
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let before = inner.bytes;
        inner.forget_superseded();
        self.memory.changed(before, inner.bytes);
    }

    /// Whether a Parse gives the same under both settings.
    pub(crate) fn depend_alike(&self, one: &Settings, other: &Settings) -> bool {
        one.plan_alike(other, of_a_parse(self.reads()))
    }

    /// Whether plans give the same under both settings.
    #[inline]
    pub(crate) fn give_alike(&self, one: &Settings, other: &Settings) -> bool {
        one.is_shared_with(other) || one.give_alike(other, self.reads())
    }

    /// The statements, with the hash of this one; and what it depends on.
    fn locked_for(&self, key: &Key<'_>) -> (MutexGuard<'_, Inner>, u64, PlanReads) {
        loop {
            let reads = self.reads();
            let hash = self.hash(key, reads);
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            // An entry made after a change must not be computed with the old value.
            if self.reads() == reads {
                return (inner, hash, reads);
            }
        }
    }

    /// Whether a Parse may depend on this setting (its name in lower case).
    pub(crate) fn may_depend_on(&self, name: &[u8]) -> bool {
        PlanReads::of(name) <= of_a_parse(self.reads())
    }

    /// Whether plans depend on settings that count from here on.
    pub(crate) fn read_from(&self, from: PlanReads) -> bool {
        from <= self.reads()
    }

    fn hash(&self, key: &Key<'_>, reads: PlanReads) -> u64 {
        let mut hasher = self.key.build_hasher();
        hasher.write(key.body);
        key.settings.parse_key(of_a_parse(reads)).hash(&mut hasher);
        if !key.run_under.give_alike(key.settings, reads) {
            key.run_under.hash_deciding(reads, &mut hasher);
        }
        hasher.finish()
    }

    /// The statement with this body under these settings, if a server has prepared it, and in which epoch
    /// last.
    pub fn find_proven(
        &self,
        body: &[u8],
        basis: Basis,
        settings: &Settings,
    ) -> Option<(Arc<Statement>, SchemaEpoch)> {
        let key = Key::of_parse(body, basis, settings);
        let (inner, hash, reads) = self.locked_for(&key);
        let bucket = inner.by_hash.get(&hash)?;
        let statement = &bucket.iter().find(|kept| kept.statement.is(&key, reads))?.statement;
        let silent = !statement.is_noted();
        let proven = SchemaEpoch::from_bits(statement.proven.load(Ordering::Relaxed));
        (silent && proven > SchemaEpoch::NEVER).then(|| (statement.clone(), proven))
    }

    /// The statement with this body under these settings: an existing one or a new one. `effects`
    /// is asked only for a new one.
    pub fn intern(
        &self,
        body: &[u8],
        basis: Basis,
        settings: &Settings,
        effects: impl FnOnce() -> effects::Effects,
    ) -> Arc<Statement> {
        self.intern_key(&Key::of_parse(body, basis, settings), effects)
    }

    /// The same statement, for clients that run it under these settings: often itself.
    pub(crate) fn to_be_run_under(&self, one: Arc<Statement>, now: &Settings) -> Arc<Statement> {
        if self.give_alike(&one.run_under, now) || one.reads_no_settings() {
            return one;
        }
        let Statement { body, basis, settings, effects, .. } = &*one;
        let key = Key { body, basis: *basis, settings, run_under: now };
        self.intern_key(&key, || effects.clone())
    }

    fn intern_key(
        &self,
        key: &Key<'_>,
        effects: impl FnOnce() -> effects::Effects,
    ) -> Arc<Statement> {
        let (mut inner, hash, reads) = self.locked_for(key);
        match inner.find(hash, key, reads) {
            Some(statement) => statement,
            None => self.insert(&mut inner, hash, key, effects()),
        }
    }

    /// The same, but `None` if it would be a new one and there is no memory for it.
    pub fn intern_if_room(
        &self,
        body: &[u8],
        basis: Basis,
        settings: &Settings,
        effects: impl FnOnce() -> effects::Effects,
    ) -> Option<Arc<Statement>> {
        let key = Key::of_parse(body, basis, settings);
        let (mut inner, hash, reads) = self.locked_for(&key);
        if let Some(statement) = inner.find(hash, &key, reads) {
            return Some(statement);
        }
        if self.memory.excess() > 0 && !inner.nothing_to_spare {
            self.forget_unused(&mut inner);
        }
        if self.memory.excess() > 0 {
            return None;
        }
        Some(self.insert(&mut inner, hash, &key, effects()))
    }

    /// One of Hawser's own: no client's Parse finds it, and it means the same under all settings.
    pub(crate) fn apart(&self, body: &[u8]) -> Arc<Statement> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key::of_parse(body, Basis::UNKNOWN, &Settings::EMPTY);
        self.new_statement(&mut inner, &key, Default::default())
    }

    /// A statement of a client that comes from another process, until a server connection shows
    /// what it does: shared only with other such clients, and made again before its first use.
    pub(crate) fn to_be_made(
        &self,
        body: &[u8],
        basis: Basis,
        settings: &Settings,
    ) -> Arc<Statement> {
        let key = Key::of_parse(body, basis, settings);
        let hash = self.hash(&key, PlanReads::Custom);
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clock += 1;
        let used = inner.clock;
        let known = inner.to_be_made.entry(hash).or_default().iter_mut().find(|kept| {
            let one = &kept.statement;
            // It is not known yet what it depends on: assume all settings.
            *one.body == *body && one.basis == basis && one.settings == *settings
        });
        if let Some(kept) = known {
            kept.used = used;
            return kept.statement.clone();
        }
        let statement = self.new_statement(&mut inner, &key, Default::default());
        statement.superseded.store(true, Ordering::Relaxed);
        let bytes = statement.bytes();
        let kept = CachedStatement { statement: statement.clone(), used };
        inner.to_be_made.entry(hash).or_default().push(kept);
        inner.bytes += bytes;
        self.memory.changed(0, bytes);
        statement
    }

    fn insert(
        &self,
        inner: &mut Inner,
        hash: u64,
        key: &Key<'_>,
        effects: effects::Effects,
    ) -> Arc<Statement> {
        let statement = self.new_statement(inner, key, effects);
        let (used, bytes) = (inner.clock, statement.bytes());
        inner
            .by_hash
            .entry(hash)
            .or_default()
            .push(CachedStatement { statement: statement.clone(), used });
        inner.bytes += bytes;
        self.memory.changed(0, bytes);
        statement
    }

    fn new_statement(
        &self,
        inner: &mut Inner,
        key: &Key<'_>,
        effects: effects::Effects,
    ) -> Arc<Statement> {
        let Key { body, basis, settings, run_under } = *key;
        let id = inner.next_id;
        inner.next_id += 1;
        // The middle part keeps clients from guessing the names of others' statements.
        let secret = (self.key.0 ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 24;
        let is_plain = effects == effects::Effects::NONE;
        Arc::new(Statement {
            id,
            name: format!("hw{secret:010x}_{id:x}").into_bytes().into_boxed_slice(),
            body: body.into(),
            settings: settings.clone(),
            run_under: run_under.clone(),
            basis,
            draws_nothing: draws_nothing(text_of(body)),
            inserts: inserts(text_of(body)),
            redescribes_rows: begins_with_any(
                after_comments(text_of(body)),
                &[b"fetch", b"execute", b"explain", b"show", b"call"],
            ),
            is_private: is_private(text_of(body), &effects),
            is_plain,
            sets_nothing: is_plain && changes_no_setting(text_of(body)),
            effects,
            proven: AtomicU64::new(SchemaEpoch::NEVER.to_bits()),
            noted: AtomicBool::new(false),
            superseded: AtomicBool::new(false),
            digest: OnceLock::new(),
        })
    }

    fn forget_unused(&self, inner: &mut Inner) {
        let before = inner.bytes;
        inner.forget_unused(self.memory.excess());
        self.memory.changed(before, inner.bytes);
        inner.nothing_to_spare = self.memory.excess() > 0;
    }

    /// Forgets statements that no client names any more if all tables together take too much. To be
    /// called now and then: those of a pool that prepares nothing new would stay otherwise.
    pub fn make_room(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.nothing_to_spare = false;
        if self.memory.excess() > 0 {
            self.forget_unused(&mut inner);
        }
    }

    /// Forgets statements that no client names, no backend has, and no Parse has asked for since
    /// the last call. Returns their bytes. To be called at long intervals: it looks at all.
    pub fn forget_idle(&self) -> usize {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = inner.clock;
        let since = std::mem::replace(&mut inner.mark, clock);
        if inner.by_hash.is_empty() && inner.to_be_made.is_empty() {
            return 0;
        }
        let before = inner.bytes;
        let forgotten = inner.forget_idle(since);
        let freed = before - inner.bytes;
        self.memory.changed(before, inner.bytes);
        inner.nothing_to_spare = false;
        drop(inner);
        drop(forgotten); // without the lock: there may be many
        freed
    }

    /// The memory that all tables together take and may take.
    pub fn memory(&self) -> &Arc<StatementMemory> {
        &self.memory
    }

    /// How many statements it holds, and their bytes.
    pub fn size(&self) -> (usize, usize) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.all().count(), inner.bytes)
    }
}

impl Inner {
    fn find(&mut self, hash: u64, key: &Key<'_>, reads: PlanReads) -> Option<Arc<Statement>> {
        self.clock += 1;
        let bucket = self.by_hash.get_mut(&hash)?;
        let kept = bucket.iter_mut().find(|kept| kept.statement.is(key, reads))?;
        kept.used = self.clock;
        Some(kept.statement.clone())
    }

    /// Forgets what no client names, least recently used first, until `excess` bytes and a quarter
    /// of the table are free; so the cost of the sweep is spread over that many new statements.
    fn forget_superseded(&mut self) {
        let mut bytes = self.bytes;
        self.by_hash.retain(|_, bucket| {
            bucket.retain(|kept| {
                let stays = !kept.statement.is_superseded();
                if !stays {
                    bytes -= kept.statement.bytes();
                }
                stays
            });
            !bucket.is_empty()
        });
        self.bytes = bytes;
    }

    /// Takes out what is held by the table alone and was not used after this time.
    fn forget_idle(&mut self, since: u64) -> Vec<CachedStatement> {
        let mut forgotten = Vec::new();
        self.by_hash.retain(|_, bucket| {
            forgotten.extend(bucket.extract_if(.., |kept| {
                kept.used <= since && Arc::strong_count(&kept.statement) == 1
            }));
            !bucket.is_empty()
        });
        // Their clients have made theirs again by now, or have left: of no use to others.
        forgotten.extend(self.take_made());
        self.bytes -= forgotten.iter().map(|kept| kept.statement.bytes()).sum::<usize>();
        // A table that was large once must not stay so.
        if self.by_hash.capacity() > 4 * self.by_hash.len().max(SPARE_PLACES) {
            self.by_hash.shrink_to(2 * self.by_hash.len());
        }
        forgotten
    }

    /// All statements.
    fn all(&self) -> impl Iterator<Item = &CachedStatement> {
        self.by_hash.values().chain(self.to_be_made.values()).flatten()
    }

    /// Takes out those of `to_be_made` that no client names any more.
    fn take_made(&mut self) -> Vec<CachedStatement> {
        let mut made = Vec::new();
        self.to_be_made.retain(|_, bucket| {
            made.extend(bucket.extract_if(.., |kept| Arc::strong_count(&kept.statement) == 1));
            !bucket.is_empty()
        });
        if self.to_be_made.is_empty() {
            self.to_be_made = HashMap::default();
        }
        made
    }

    fn forget_unused(&mut self, excess: usize) {
        let made = self.take_made();
        self.bytes -= made.iter().map(|kept| kept.statement.bytes()).sum::<usize>();
        let mut unused: Vec<(u64, usize)> = self
            .by_hash
            .values()
            .flatten()
            .filter(|kept| Arc::strong_count(&kept.statement) == 1)
            .map(|kept| (kept.used, kept.statement.bytes()))
            .collect();
        unused.sort_unstable();
        let target = self.bytes.saturating_sub(excess) / 4 * 3;
        let mut limit = 0;
        let mut bytes = self.bytes;
        for (used, size) in unused {
            if bytes <= target {
                break;
            }
            bytes -= size;
            limit = used;
        }
        self.by_hash.retain(|_, bucket| {
            bucket.retain(|kept| kept.used > limit || Arc::strong_count(&kept.statement) > 1);
            !bucket.is_empty()
        });
        self.bytes = self.all().map(|kept| kept.statement.bytes()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::statements::prepared_on_server::BackendStatements;
    use crate::relay::effects::Effects;

    /// What a statement of [`prepare`] takes.
    const EACH: usize = STATEMENT_OVERHEAD_BYTES + 7;

    fn table(bytes_max: usize) -> StatementTable {
        StatementTable::new(1, Arc::new(StatementMemory::new(bytes_max)))
    }

    fn prepare(table: &StatementTable, n: u32) -> Option<Arc<Statement>> {
        let body = [&n.to_be_bytes()[..], b"\0\0\0"].concat();
        table.intern_if_room(&body, Basis::UNKNOWN, &Settings::EMPTY, Effects::default)
    }

    #[test]
    fn equal_bodies_share_and_others_do_not() {
        let table = table(usize::MAX);
        let one =
            table.intern(b"SELECT 1\0\0\0", Basis::UNKNOWN, &Settings::EMPTY, Effects::default);
        let same = table
            .intern(b"SELECT 1\0\0\0", Basis::UNKNOWN, &Settings::EMPTY, || panic!("it is known"));
        let other =
            table.intern(b"SELECT 2\0\0\0", Basis::UNKNOWN, &Settings::EMPTY, Effects::default);
        assert!(Arc::ptr_eq(&one, &same));
        assert_ne!(one.id, other.id);
        assert_ne!(one.name, other.name);
    }

    /// After a comment, a FETCH was taken for a statement whose rows are fixed: each other cursor's were
    /// refused.
    #[test]
    fn a_fetch_is_one_after_a_comment_too() {
        let table = table(usize::MAX);
        for (text, anew, private) in [
            ("FETCH 1 FROM c", true, true),
            ("-- app\nFETCH 1 FROM c", true, true),
            ("/* app */ fetch all from c", true, true),
            ("-- app\n;EXPLAIN SELECT 1", true, false),
            ("/* fetch */ SELECT 1", false, false),
            ("SELECT 'fetch'", false, false),
        ] {
            let body = [text.as_bytes(), b"\0\0\0"].concat();
            let one = table.intern(&body, Basis::UNKNOWN, &Settings::EMPTY, Effects::default);
            assert_eq!((one.redescribes_rows, one.is_private), (anew, private), "{text}");
        }
    }

    /// A client ran what another client's server connection had analysed again under that client's
    /// settings.
    #[test]
    fn clients_that_have_set_something_since_share_with_others_that_have_set_the_same() {
        let table = table(usize::MAX);
        table.depend_on(PlanReads::Own);
        let body = b"SELECT '01/02/2020'::date\0\0\0";
        let set = |pairs: &[(&str, &str)]| -> Settings {
            let pairs = pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            pairs.collect::<crate::session::settings::SettingsBuilder>().build()
        };
        let parsed = set(&[("timezone", "UTC")]);
        let one = table.intern(body, Basis::UNKNOWN, &parsed, Effects::default);
        let under = |one: &Arc<Statement>, now: &Settings| table.to_be_run_under(one.clone(), now);
        assert!(Arc::ptr_eq(&one, &under(&one, &parsed)));
        // What the server compares itself, and what it does not read, are left to it.
        for more in [("search_path", "a"), ("role", "r"), ("application_name", "x")] {
            let now = set(&[("timezone", "UTC"), more]);
            assert!(Arc::ptr_eq(&one, &under(&one, &now)), "{more:?}");
        }
        let dmy = set(&[("datestyle", "DMY"), ("timezone", "UTC")]);
        let other = under(&one, &dmy);
        assert_ne!(one.name, other.name);
        assert_eq!(other.settings, parsed, "it is prepared as it was parsed");
        let elsewhere = set(&[("datestyle", "DMY"), ("search_path", "b"), ("timezone", "UTC")]);
        assert!(Arc::ptr_eq(&other, &under(&one, &elsewhere)));
        // With the settings restored, it is the common one; and no Parse under these settings finds
        // the other.
        assert!(Arc::ptr_eq(&one, &under(&other, &parsed)));
        let new = table.intern(body, Basis::UNKNOWN, &dmy, Effects::default);
        assert_ne!(new.id, other.id);
        let command = table.intern(b"COMMIT\0\0\0", Basis::UNKNOWN, &parsed, Effects::default);
        assert!(Arc::ptr_eq(&command, &under(&command, &dmy)), "it is not analysed");
    }

    #[test]
    fn commands_without_strings_read_no_settings() {
        for text in ["DISCARD ALL", " begin", "SET x TO 1", "vacuum t", "reset all -- x"] {
            assert!(reads_no_settings(&[text.as_bytes(), &[0; 3]].concat()), "{text}");
        }
        for text in [
            "SET x TO 'a'",
            "SELECT 1",
            "settle",
            "DECLARE c CURSOR FOR SELECT 1",
            "",
            "BEGIN \u{e4}",
        ] {
            assert!(!reads_no_settings(&[text.as_bytes(), &[0; 3]].concat()), "{text}");
        }
    }

    #[test]
    fn texts_that_no_client_names_are_forgotten_and_named_ones_kept() {
        let table = table(100 * EACH);
        let named =
            table.intern(b"named\0\0\0", Basis::UNKNOWN, &Settings::EMPTY, Effects::default);
        for n in 0..10_000u32 {
            assert!(prepare(&table, n).is_some(), "there is always something to forget");
        }
        let (count, bytes) = table.size();
        assert!(count <= 101 && bytes <= 101 * EACH, "{count} {bytes}");
        assert_eq!(table.memory.bytes(), bytes);
        assert!(Arc::ptr_eq(
            &named,
            &table.intern(b"named\0\0\0", Basis::UNKNOWN, &Settings::EMPTY, Effects::default)
        ));
    }

    #[test]
    fn a_text_that_does_not_fit_is_not_shared_and_known_ones_still_are() {
        let table = table(10 * EACH);
        let named: Vec<_> = (0..11).filter_map(|n| prepare(&table, n)).collect();
        assert_eq!(named.len(), 11);
        assert!(prepare(&table, 11).is_none());
        assert!(Arc::ptr_eq(&named[3], &prepare(&table, 3).unwrap()));
        drop(named);
        assert!(prepare(&table, 11).is_none(), "swept in vain a moment ago");
        table.make_room();
        assert!(prepare(&table, 11).is_some());
    }

    #[test]
    fn what_is_not_asked_for_again_is_forgotten_with_time() {
        let table = table(usize::MAX);
        let named = prepare(&table, 0).unwrap();
        let on_backend = prepare(&table, 1).unwrap();
        let mut backend = BackendStatements::new(10);
        backend.insert(&on_backend, 0, SchemaEpoch::NEVER);
        drop(on_backend);
        for n in 2..100 {
            prepare(&table, n);
        }
        table.forget_idle();
        assert_eq!(table.size().0, 100, "all have been used since the table was made");
        prepare(&table, 2);
        table.forget_idle();
        assert_eq!(table.size(), (3, 3 * EACH), "named, on a backend, asked for again");
        assert_eq!(table.memory.bytes(), 3 * EACH);
        table.forget_idle();
        assert_eq!(table.size().0, 2);
        backend.clear();
        drop(named);
        table.forget_idle();
        assert_eq!((table.size(), table.memory.bytes()), ((0, 0), 0));
    }

    #[test]
    fn pools_share_one_memory_and_a_pool_that_goes_gives_its_part_back() {
        let memory = Arc::new(StatementMemory::new(10 * EACH));
        let (one, other) =
            (StatementTable::new(1, memory.clone()), StatementTable::new(1, memory.clone()));
        for n in 0..11 {
            prepare(&one, n);
        }
        assert!(prepare(&other, 11).is_none(), "the other pool has nothing to forget");
        one.make_room();
        let held = prepare(&other, 11).unwrap();
        memory.set_max(0);
        one.make_room();
        assert_eq!(one.size(), (0, 0));
        drop((held, one, other));
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn statements_of_clients_that_come_are_shared_among_these_and_counted() {
        let table = table(100 * EACH);
        let come = |table: &StatementTable| {
            table.to_be_made(b"come\0\0\0", Basis::UNKNOWN, &Settings::EMPTY)
        };
        let (one, other) = (come(&table), come(&table));
        assert!(Arc::ptr_eq(&one, &other) && one.is_superseded());
        assert_eq!((table.size(), table.memory.bytes()), ((1, EACH), EACH));
        let mut zone = crate::session::settings::SettingsBuilder::default();
        zone.set(b"timezone", b"UTC");
        let elsewhere = table.to_be_made(b"come\0\0\0", Basis::UNKNOWN, &zone.build());
        assert!(!Arc::ptr_eq(&one, &elsewhere), "other settings");
        // A Parse does not find them, because their effects are not known yet.
        let parsed =
            table.intern(b"come\0\0\0", Basis::UNKNOWN, &Settings::EMPTY, Effects::default);
        assert!(!Arc::ptr_eq(&one, &parsed) && !parsed.is_superseded());
        table.supersede(|_| true);
        assert_eq!(table.size().0, 2, "these have nothing to be superseded by");
        drop((one, other));
        table.forget_idle();
        assert_eq!(table.size().0, 1);
        drop(elsewhere);
        table.forget_idle();
        assert_eq!((table.size(), table.memory.bytes()), ((0, 0), 0));
    }

    #[test]
    fn a_backend_closes_what_was_used_least_recently() {
        let table = table(usize::MAX);
        let all: Vec<_> = (0..4u8)
            .map(|n| table.intern(&[n, 0], Basis::UNKNOWN, &Settings::EMPTY, Effects::default))
            .collect();
        let mut on_backend = BackendStatements::new(3);
        assert_eq!(on_backend.insert(&all[0], 0, SchemaEpoch::NEVER), None);
        assert_eq!(on_backend.insert(&all[1], 0, SchemaEpoch::NEVER), None);
        assert_eq!(on_backend.insert(&all[2], 0, SchemaEpoch::NEVER), None);
        assert!(on_backend.touch(all[0].id));
        assert_eq!(on_backend.insert(&all[3], 0, SchemaEpoch::NEVER), Some(all[1].name.clone()));
        assert!(!on_backend.touch(all[1].id));
        assert_eq!(on_backend.len(), 3);
    }
}
