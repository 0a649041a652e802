//! A pool as the threads share it: the [`Pool`] under its lock, and what belongs to it.
//!
//! # Invariants
//! The lock is held for queue operations only, never over a system call (but the one of SHOW that
//! says so) or another lock.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use crate::hash::Keyed;
use crate::ids::{PoolId, ServerAddressId};
use crate::lending::database::Database;
use crate::lending::departed_servers::DepartedServers;
use crate::lending::lock::unpoisoned;
use crate::lending::process_state::{KnownLasting, Lasting};
use crate::lending::scheduler::{Limits, Pool};
use crate::lending::stats::PoolStats;
use crate::parts::functions::census::Census;
use crate::parts::functions::known::Foreseen;
use crate::parts::functions::variables::FunctionNames;
use crate::parts::listen::notifiers::Notifiers;
use crate::parts::pins::count::PinCount;
use crate::parts::report::count::ReportingCount;
use crate::parts::sequences::asking::Asking;
use crate::parts::settings::custom_names::{CustomNames, KnownNames};
use crate::parts::settings::setters::Setters;
use crate::parts::start_values::basis::{Bases, Basis};
use crate::parts::start_values::parameters::ServerParameters;
use crate::parts::statements::schema_epoch::SchemaEpoch;
use crate::parts::statements::shared::{Statement, StatementMemory, StatementTable};
use crate::queries::tracking::Tracking;
use crate::relay::client_info::ListenLost;
use crate::session::settings::{Interner, Mark, PlanReads, Settings};
use crate::time::Time;
use crate::wire::error::ClientError;

/// What becomes of session state that cannot be applied to another backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fidelity {
    /// Nothing is lost: the client keeps its backend as long as it has such state.
    #[default]
    Full,
    /// As in other poolers: it is lost when the transaction ends, and discarded before the backend
    /// serves another client.
    Classic,
}

/// What the configuration says of a pool; replaced whole by a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    /// Bounds on backends.
    pub limits: Limits,
    /// How long a client waits for a backend. Zero: for ever.
    pub query_wait_timeout: Duration,
    /// After how long a client that waits for a backend gets a notice. Zero: never.
    pub query_wait_notify: Duration,
    /// How long a query may run. Zero: for ever.
    pub query_timeout: Duration,
    /// How long a client may sit idle in a transaction. Zero: for ever.
    pub idle_transaction_timeout: Duration,
    /// How long a client may sit idle outside of a transaction while it keeps its backend for state
    /// that does not move. Zero: for ever.
    pub pin_timeout: Duration,
    /// Backends that clients may keep so at the same time.
    pub max_pinned: u32,
    /// How long a transaction may take. Zero: for ever.
    pub transaction_timeout: Duration,
    /// From which duration on, wait included, a transaction is logged. Zero: none is.
    pub log_min_duration: Duration,
    /// Its servers must take writes: see [`crate::relay::start_again`].
    pub wants_writable: bool,
    /// Whether its queries are counted.
    pub tracking: Tracking,
    /// How long a client may sit idle. Zero: for ever.
    pub client_idle_timeout: Duration,
    /// How long a client may take no byte while another waits for the pool. Zero: for ever.
    pub client_write_timeout: Duration,
    /// How long a client may send nothing of a message that its server waits for, or may have said
    /// goodbye to a query, while another waits for the pool. Zero: for ever.
    pub client_read_timeout: Duration,
    /// How long a cancelled or abandoned query may take to end before its backend is closed.
    pub cancel_wait_timeout: Duration,
    /// Age from which a backend is closed once it is released. Zero: never.
    pub server_lifetime: Duration,
    /// How long a backend may sit idle. Zero: for ever.
    pub server_idle_timeout: Duration,
    /// Transactions after which a backend is closed once it is released. Zero: never.
    pub server_max_transactions: u64,
    /// Clients that keep a backend between transactions are disconnected once the way to its server is no
    /// longer what the configuration says.
    pub server_fast_close: bool,
    /// Shared prepared statements kept on a backend. Zero: they are not shared, but pin.
    pub max_prepared_statements: u32,
    /// How old a server's statement may be when a client that parses it is given it without asking the
    /// server. Zero: each Parse goes to a server.
    pub parse_max_age: Duration,
    /// What discards the state of a client of session mode. Empty: nothing does.
    pub server_reset_query: Box<[u8]>,
    /// The longest message that is let through either way, its header included.
    pub max_packet_size: usize,
    /// What becomes of clients that listen when what listens for them is lost.
    pub listen_lost: ListenLost,
    /// What becomes of session state that does not move.
    pub fidelity: Fidelity,
    /// Whether a prepared statement may depend on custom settings beyond what it reads while it
    /// runs; `None`: the census decides, and it may as long as there is none.
    pub custom_settings_in_plans: Option<bool>,
    /// The host looks into the functions of the database: see [`Census`]. Until it has, a text may do anything.
    pub function_census: bool,
    /// Functions after which a session cannot be given to another client; of new backends.
    pub stateful_functions: Arc<FunctionNames>,
}

impl PoolSettings {
    /// Whether what a client runs is cut off after a time.
    pub(crate) fn bound_time(&self) -> bool {
        !self.query_timeout.is_zero() || !self.transaction_timeout.is_zero()
    }
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            limits: Limits {
                size: 20,
                reserve_size: 0,
                reserve_timeout: Duration::from_secs(5),
                idle_transaction_reserve: 20,
                lock_wait_reserve: 0,
                min_size: 0,
                queue_max: 0,
                round_robin: false,
            },
            query_wait_timeout: Duration::from_secs(120),
            query_wait_notify: Duration::ZERO,
            query_timeout: Duration::ZERO,
            idle_transaction_timeout: Duration::ZERO,
            pin_timeout: Duration::ZERO,
            max_pinned: u32::MAX,
            transaction_timeout: Duration::ZERO,
            log_min_duration: Duration::ZERO,
            wants_writable: false,
            tracking: Tracking::default(),
            client_idle_timeout: Duration::ZERO,
            client_write_timeout: Duration::from_secs(2),
            client_read_timeout: Duration::from_secs(30),
            cancel_wait_timeout: Duration::from_secs(10),
            server_lifetime: Duration::from_secs(3600),
            server_idle_timeout: Duration::from_secs(600),
            server_max_transactions: 0,
            server_fast_close: false,
            max_prepared_statements: 500,
            parse_max_age: Duration::from_secs(1),
            server_reset_query: b"DISCARD ALL"[..].into(),
            max_packet_size: usize::MAX,
            listen_lost: ListenLost::Disconnect,
            fidelity: Fidelity::Full,
            custom_settings_in_plans: None,
            function_census: false,
            stateful_functions: Arc::default(),
        }
    }
}

/// A pool as the threads share it. `B` is the backend itself.
#[derive(Debug)]
pub struct SharedPool<B> {
    /// Its id.
    pub id: PoolId,
    /// The database that clients ask for.
    pub database: String,
    /// The role under which its backends are logged in.
    pub user: String,
    /// Counters.
    pub stats: PoolStats,
    /// Prepared statements that its clients share.
    pub statements: StatementTable,
    /// What all pools of its database know of it.
    database_known: Arc<Database>,
    parse_max_age_us: AtomicU64,
    /// Backends that its clients keep between transactions.
    pub pins: PinCount,
    /// Backends that report what their sessions hold.
    pub reporting: ReportingCount,
    pool: Mutex<Pool<B>>,
    waiting: AtomicU32,
    epoch: AtomicU32,
    left: DepartedServers,
    /// The epoch and the server of the backend that was opened last.
    opened_last: AtomicU64,
    settings: RwLock<Arc<PoolSettings>>,
    parameters: RwLock<Option<Arc<ServerParameters>>>,
    bases: Bases,
    names: KnownNames,
    lasting: KnownLasting,
    interner: Mutex<Interner<Keyed>>,
    last_error: Mutex<Option<ClientError>>,
    /// The epoch, plus one, in which a server's report of a session could not be relied on.
    distrusted_in: AtomicU32,
    setters: Setters,
    /// The census by which its statements are shared.
    adopted: Mutex<Option<Arc<Census>>>,
    /// Changes with what the configuration says of functions.
    functions_serial: AtomicU32,
    shared_by_users: bool,
    /// Its clients may go inside: see [`crate::relay::inside`].
    goes_inside: AtomicBool,
}

fn micros_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl<B> SharedPool<B> {
    /// An empty pool for a process of `loops` event loops; `hash_key` keys its hash maps.
    pub fn new(
        id: PoolId,
        database: &str,
        user: &str,
        settings: PoolSettings,
        loops: usize,
        hash_key: u64,
    ) -> Self {
        let memory = Arc::new(StatementMemory::new(usize::MAX));
        Self::with_memory(id, database, user, settings, loops, hash_key, memory)
    }

    /// The same; the texts of its statements count against `memory`.
    pub fn with_memory(
        id: PoolId,
        database: &str,
        user: &str,
        settings: PoolSettings,
        loops: usize,
        hash_key: u64,
        memory: Arc<StatementMemory>,
    ) -> Self {
        let statements = StatementTable::new(hash_key, memory);
        statements.depend_on(match settings.custom_settings_in_plans {
            Some(false) => PlanReads::Own,
            Some(true) | None => PlanReads::Custom,
        });
        Self {
            id,
            database: database.to_owned(),
            user: user.to_owned(),
            stats: PoolStats::new(loops),
            statements,
            database_known: Arc::default(),
            parse_max_age_us: AtomicU64::new(micros_of(settings.parse_max_age)),
            pins: PinCount::default(),
            reporting: ReportingCount::default(),
            pool: Mutex::new(Pool::new(settings.limits.clone())),
            waiting: AtomicU32::new(0),
            epoch: AtomicU32::new(0),
            left: DepartedServers::default(),
            opened_last: AtomicU64::new(0),
            settings: RwLock::new(Arc::new(settings)),
            parameters: RwLock::new(None),
            bases: Bases::new(hash_key),
            names: KnownNames::default(),
            lasting: KnownLasting::default(),
            interner: Mutex::new(Interner::new(Keyed(hash_key))),
            last_error: Mutex::new(None),
            distrusted_in: AtomicU32::new(0),
            setters: Setters::new(Keyed(hash_key)),
            adopted: Mutex::new(None),
            functions_serial: AtomicU32::new(0),
            shared_by_users: false,
            goes_inside: AtomicBool::new(false),
        }
    }

    /// The same pool for clients of many users, to whom its backends are handed over: see
    /// [`crate::parts::identity::hand_over`]. That never changes in the life of a pool.
    #[must_use]
    pub fn shared_by_users(mut self) -> Self {
        self.shared_by_users = true;
        self
    }

    /// The same pool of a database that has other pools, too.
    #[must_use]
    pub fn of_database(mut self, database: Arc<Database>) -> Self {
        self.database_known = database;
        self.adopt_census();
        self
    }

    /// What all pools of its database know about it.
    pub fn database_known(&self) -> &Database {
        &self.database_known
    }

    /// Who has notified in its database.
    pub fn notifiers(&self) -> &Notifiers {
        &self.database_known.notifiers
    }

    /// Whether clients of its database ask for what they draw from sequences.
    #[inline]
    pub fn asking(&self) -> &Asking {
        &self.database_known.asking
    }

    /// Whether a client that has drawn from a sequence keeps its server connection, at least at times.
    pub fn keeps_draws(&self) -> bool {
        self.asking().has_asked() || self.asking().tries()
    }

    /// The current epoch of its database's schema.
    #[inline]
    pub fn schema_epoch(&self) -> SchemaEpoch {
        self.database_known.schema.epoch()
    }

    /// The same for a client that parses now.
    #[inline]
    pub fn schema_epoch_at(&self, now: Time) -> SchemaEpoch {
        let age = Duration::from_micros(self.parse_max_age_us.load(Ordering::Relaxed));
        self.database_known.schema.epoch_at(now, age)
    }

    /// Its database's schema has changed, or may have.
    pub fn schema_changed(&self) {
        self.database_known.schema.changed();
    }

    /// Whether its clients may go inside.
    pub fn goes_inside(&self) -> bool {
        self.goes_inside.load(Ordering::Relaxed)
    }

    /// Its clients may go inside from now on, or no more.
    pub fn set_goes_inside(&self, may: bool) {
        self.goes_inside.store(may, Ordering::Relaxed);
    }

    /// Whether its backends are handed over to clients of many users.
    #[inline]
    pub fn is_shared_by_users(&self) -> bool {
        self.shared_by_users
    }

    /// The pool itself. Keep the guard for one queue operation.
    pub fn lock(&self) -> PoolGuard<'_, B> {
        PoolGuard { pool: unpoisoned(self.pool.lock()), waiting: &self.waiting }
    }

    /// Whether any client waits: a hint, exact when the lock was last released.
    pub fn anybody_waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// What the configuration says.
    pub fn settings(&self) -> Arc<PoolSettings> {
        unpoisoned(self.settings.read()).clone()
    }

    /// Puts another configuration in force. The bounds of the queue are the caller's to set.
    pub fn set_settings(&self, settings: PoolSettings) {
        self.parse_max_age_us.store(micros_of(settings.parse_max_age), Ordering::Relaxed);
        *unpoisoned(self.settings.write()) = Arc::new(settings);
        self.adopt_census();
        self.functions_serial.fetch_add(1, Ordering::Release);
        self.keep_statements_apart();
    }

    /// What is known about the functions of its database, if its settings let that count: as long as nothing is,
    /// each text counts as if it left what only the end of the server connection removes.
    pub fn census(&self) -> Option<Arc<Census>> {
        let known = || self.database_known.functions.census().unwrap_or_else(Census::of_unknown);
        self.settings().function_census.then(known)
    }

    /// Whether the functions of its database have been looked into, or need not be.
    pub fn knows_functions(&self) -> bool {
        !self.settings().function_census || self.database_known.functions.census().is_some()
    }

    /// A text is sent that may make a function or the like.
    pub(crate) fn foresee(
        &self,
        text: &[u8],
        reported: impl Fn(&[u8]) -> bool,
    ) -> Option<Foreseen> {
        self.database_known.functions.foresee(text, reported)
    }

    /// A statement has succeeded after which functions may do something else.
    pub(crate) fn expect_other_functions(&self) {
        self.database_known.functions.expect_others();
    }

    /// Another census counts: statements that do something else by it are not shared any more.
    pub fn adopt_census(&self) {
        let mut adopted = unpoisoned(self.adopted.lock());
        let census = self.census();
        if adopted.as_ref().map(Arc::as_ptr) == census.as_ref().map(Arc::as_ptr) {
            return;
        }
        let before = std::mem::replace(&mut *adopted, census.clone()).unwrap_or_default();
        self.keep_statements_apart();
        let census = census.unwrap_or_default();
        if before.speaks() || census.speaks() {
            self.statements.supersede(|statement| {
                before.of_text(statement.text()) != census.of_text(statement.text())
            });
        }
    }

    fn keep_statements_apart(&self) {
        let by_census = self.census().map_or(PlanReads::Custom, |census| census.plans_read());
        self.statements.depend_on(match self.settings().custom_settings_in_plans {
            Some(false) => PlanReads::Own,
            Some(true) => by_census.max(PlanReads::Custom),
            None => by_census,
        });
    }

    /// Changes with the census, and with what the configuration says of functions.
    #[inline]
    pub fn functions_serial(&self) -> u32 {
        let own = self.functions_serial.load(Ordering::Acquire);
        own.wrapping_add(self.database_known.functions.serial())
    }

    /// Backends that were opened in an older epoch are closed once they are released.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Whether its servers' reports of their sessions are trusted.
    pub fn trusts_reports(&self) -> bool {
        self.distrusted_in.load(Ordering::Relaxed) != self.epoch().wrapping_add(1)
    }

    /// A server's report cannot be relied on: none is trusted in this epoch. True the first time.
    pub fn distrust_reports(&self) -> bool {
        let epoch = self.epoch().wrapping_add(1);
        self.distrusted_in.swap(epoch, Ordering::Relaxed) != epoch
    }

    /// Hawser's statement that sets so many settings under this `search_path`; `None` if there are
    /// none, or too many. Its parameters are names and values, alternating.
    pub fn setter(&self, settings: usize, path: &[u8]) -> Option<Arc<Statement>> {
        self.setters.get(&self.statements, settings, path)
    }

    /// The servers that its backends leave once they are released.
    pub fn left(&self) -> &DepartedServers {
        &self.left
    }

    /// A backend of this server has been opened, in this epoch.
    pub fn note_opened(&self, server: ServerAddressId, epoch: u32) {
        self.opened_last.store(u64::from(epoch) << 32 | u64::from(server.0), Ordering::Relaxed);
    }

    /// Whether a connection to this server was opened in an older epoch, and the backends of the
    /// current one are of another server.
    pub fn has_moved_from(&self, server: ServerAddressId, epoch: u32) -> bool {
        let now = self.epoch();
        let last = self.opened_last.load(Ordering::Relaxed);
        epoch != now && last >> 32 == u64::from(now) && last as u32 != server.0
    }

    /// Begins a new epoch (RECONNECT, a reload that changed the server, a changed role).
    pub fn begin_epoch(&self) {
        // Under the lock, so that no parameters of an older epoch are stored afterwards.
        let mut parameters = unpoisoned(self.parameters.write());
        self.epoch.fetch_add(1, Ordering::Relaxed);
        *parameters = None;
    }

    /// What servers report at connect; `None` before the first connect of this epoch.
    pub fn parameters(&self) -> Option<Arc<ServerParameters>> {
        unpoisoned(self.parameters.read()).clone()
    }

    /// Keeps what a server reported at a connect that began in this epoch. Returns the values as
    /// the object that all backends with these values share. Reports of an older epoch say nothing
    /// about new sessions, and are not kept.
    pub fn keep_parameters(
        &self,
        epoch: u32,
        said: Arc<ServerParameters>,
    ) -> Arc<ServerParameters> {
        let mut parameters = unpoisoned(self.parameters.write());
        if let Some(kept) = parameters.as_ref().filter(|kept| ***kept == *said) {
            return kept.clone();
        }
        if self.epoch.load(Ordering::Relaxed) == epoch {
            *parameters = Some(said.clone());
        }
        said
    }

    /// The number of the values that servers report at connect. (For a session that users share it
    /// is unknown until the hand-over.)
    pub fn basis(&self) -> Basis {
        if self.shared_by_users {
            return Basis::UNKNOWN;
        }
        self.parameters().map_or(Basis::UNKNOWN, |own| self.basis_of(&own))
    }

    /// The number of these values of a server.
    pub fn basis_of(&self, parameters: &Arc<ServerParameters>) -> Basis {
        self.bases.of(parameters)
    }

    /// The number of these values of one user: no two users have the same. Unknown if there are too
    /// many.
    pub fn basis_of_user(&self, user: &str, parameters: &Arc<ServerParameters>) -> Basis {
        self.bases.of_user(user, parameters)
    }

    /// The basis of the settings of a client that comes from another process.
    pub(crate) fn basis_of_predecessor(&self, parameters: &Arc<ServerParameters>) -> Basis {
        self.bases.of_predecessor(parameters)
    }

    /// The probable first values of a session of this user: those of an earlier one, else those of
    /// the pooler's own.
    pub fn probable_values_of_user(&self, user: &str) -> Option<Arc<ServerParameters>> {
        self.bases.last_of_user(user).or_else(|| self.parameters())
    }

    /// The mark by which clients and backends with these settings are compared; if users share the
    /// pool, the session's own values are part of it.
    #[inline]
    pub fn mark_of(&self, settings: Mark, basis: Basis) -> Mark {
        if self.shared_by_users { settings.of_basis(basis.number()) } else { settings }
    }

    /// The values of that number; `None` if it is unknown.
    pub fn values_of(&self, basis: Basis) -> Option<Arc<ServerParameters>> {
        self.bases.get(basis)
    }

    /// The set of this one custom name, in lower case.
    pub(crate) fn custom_name(&self, name: &[u8]) -> CustomNames {
        self.names.of(name)
    }

    /// The custom names that a backend knows once it has these settings.
    pub fn all_custom_names(&self, settings: &Settings) -> CustomNames {
        self.names.all_among(settings)
    }

    /// The custom names among settings.
    pub fn custom_names(&self, settings: &Settings) -> CustomNames {
        if settings.has_custom() { self.names.among(settings) } else { CustomNames::NONE }
    }

    /// What a process keeps after it has loaded the library that defines this setting, in lower
    /// case.
    pub fn loaded_library(&self, name: &[u8]) -> Lasting {
        self.lasting.loaded_library(name)
    }

    /// What a process keeps that has buffers of this size for temporary tables.
    pub fn temporary_buffers(&self, size: Option<u64>) -> Lasting {
        self.lasting.buffers(size)
    }

    /// What a client with these settings must avoid.
    pub fn avoided_by(&self, settings: &Settings) -> Lasting {
        self.lasting.avoided_by(settings)
    }

    /// What a message with this text must avoid.
    pub fn avoided_by_text(&self, text: &[u8]) -> Lasting {
        self.lasting.avoided_by_text(text)
    }

    /// The table that makes equal settings one object.
    pub fn interner(&self) -> MutexGuard<'_, Interner<Keyed>> {
        unpoisoned(self.interner.lock())
    }

    /// Why no backend could be opened lately; `None` after a success.
    pub fn last_error(&self) -> Option<ClientError> {
        unpoisoned(self.last_error.lock()).clone()
    }

    /// Forgets why no backend could be opened, if `is_over` says so of it.
    pub fn forget_last_error_if(&self, is_over: impl FnOnce(&ClientError) -> bool) {
        unpoisoned(self.last_error.lock()).take_if(|error| is_over(error));
    }

    /// Keeps or forgets why no backend could be opened.
    pub fn set_last_error(&self, error: Option<ClientError>) {
        *unpoisoned(self.last_error.lock()) = error;
    }
}

/// The pool while it is locked; keeps the hint on waiters true when it is dropped.
#[derive(Debug)]
pub struct PoolGuard<'a, B> {
    pool: MutexGuard<'a, Pool<B>>,
    waiting: &'a AtomicU32,
}

impl<B> std::ops::Deref for PoolGuard<'_, B> {
    type Target = Pool<B>;
    fn deref(&self) -> &Pool<B> {
        &self.pool
    }
}

impl<B> std::ops::DerefMut for PoolGuard<'_, B> {
    fn deref_mut(&mut self) -> &mut Pool<B> {
        &mut self.pool
    }
}

impl<B> Drop for PoolGuard<'_, B> {
    fn drop(&mut self) {
        self.waiting.store(self.pool.waiting_count(), Ordering::Relaxed);
    }
}
