//! All pools, the source of their backends, and their upkeep.
//!
//! # Model
//! A pool is made when the first client asks for its (database, role, connect-only settings), from
//! the configuration of that moment. A reload gives each pool its new settings, and begins a new
//! epoch if the route to its servers has changed: backends of older epochs are closed once they are
//! released.
//!
//! # Invariants
//! * a pool that a client holds a place in is never removed
//! * a replication connection has a pool of its own, which ends with it

pub mod census;
mod checked;
mod databases;
pub mod enquiry;
pub mod failures;
pub mod health;
pub mod idle;
pub mod lines;
mod lock_waits;
pub mod membership;
pub mod open;
pub mod place;
pub mod processes;
pub mod seen;
pub mod session;
pub mod share;
mod spare;
mod strangers;
pub mod upkeep;
pub mod vacancy;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use hawser_pooler::ids::PoolId;
use hawser_pooler::lending;
use hawser_pooler::lending::{PoolSettings, SharedPool};
use hawser_pooler::parts::statements::shared::StatementMemory;
use hawser_pooler::queries::tracking::Tracking;
use hawser_pooler::relay::client_info::{ListenLost, PoolMode};
use hawser_pooler::session::options::{Asked, Replication};
use hawser_pooler::wire::error::{ClientError, SqlState};
use hawser_pooler::wire::startup::Pair;
use tokio::sync::Notify;

use crate::auth::access::Access;
use crate::config::{self, Config, DatabaseConfig, TargetSessionAttrs, Timeout};
use crate::dial::enter::Credentials;
use crate::dial::hand_over::Secret;
use crate::dial::password::{self, PasswordSource};
use crate::dial::{Balance, Login, Target};
use crate::gates::Gates;
use crate::limits::shared::UnderLimit;
use crate::limits::{Full, ServerBounds};
use crate::lock::locked;
use crate::loops::{Loops, Pool};
use crate::process::random_u64;
use crate::shared::Shared;
use crate::socket::options::server_tcp_options;
use crate::tls::connect::Connecting;
use crate::totals::{Forgotten, Totals};
pub use checked::CheckedValue;
use checked::CheckedValues;

/// Pools of one database and role for sessions with different settings that only a connect can set:
/// each has server connections of its own.
const CONNECT_ONLY_POOLS_MAX: usize = 64;
/// A login that has found its pool counts as its client within this time: there is no wait in
/// between.
const ENTERS_WITHIN: Duration = Duration::from_millis(500);
/// How long such a pool has neither had a client nor a server connection before another may take its
/// place.
const UNUSED_AFTER: Duration = Duration::from_secs(1);

/// What distinguishes pools.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PoolKey {
    /// The database that clients ask for.
    pub database: String,
    /// The role towards the server.
    pub user: String,
    /// Settings that only a connect can set, sorted.
    pub connect_only: Vec<Pair>,
    /// A replication connection's own number.
    pub replication: Option<u64>,
    /// Whether its clients are of many users, and its server connections are handed over between
    /// them.
    pub shared: bool,
}

/// Where a pool's backends come from, and what they may be.
#[derive(Clone, Debug)]
pub struct Route {
    /// The servers.
    pub target: Target,
    /// The login to them.
    pub login: Login,
    /// Bounds on server connections.
    pub bounds: ServerBounds,
    /// Bound on connections to each server.
    pub per_server: config::Limit,
    /// Sent on each new connection.
    pub connect_query: Option<String>,
    /// The secret for handing over server connections.
    pub secret: Option<Arc<Secret>>,
    /// Private memory at which a free backend is replaced.
    pub memory_max: Option<u64>,
    /// Server connections that serve clients inside.
    pub inside_size: u32,
    /// How many of them look for work at once; 0: as many as there are cores.
    pub inside_places: u32,
}

/// A pool with all that the control side knows about it.
pub struct PoolEntry {
    /// The pool.
    pub pool: Pool,
    /// What it is for.
    pub key: PoolKey,
    /// Where its backends come from.
    pub route: ArcSwap<Route>,
    /// When its clients give their backends back.
    pub mode: Mutex<PoolMode>,
    /// An opening has ended.
    pub changed: Notify,
    /// The details, kept from clients, of the last opening that failed.
    unsaid: Mutex<Option<String>>,
    /// Why waiting does not help, while it does not.
    refusal: Mutex<Option<ClientError>>,
    /// When the last attempt began if it took longer than `server_connect_timeout`, and its error.
    unanswered: Mutex<Option<(Instant, ClientError)>>,
    /// The server is being asked for its parameters, or will be after a pause.
    learning: AtomicBool,
    /// The servers that were seen to keep the state of sessions.
    keeps_state: Mutex<Vec<config::ServerAddress>>,
    /// A server was found to be another pooler.
    is_before_pooler: AtomicBool,
    /// When an opening last found no server that takes sessions, and its error.
    without_server: Mutex<Option<(Instant, String)>>,
    failures: failures::Failures,
    clients: AtomicUsize,
    at_login: Mutex<AtLogin>,
    logins: AtomicU64,
    checked: Mutex<CheckedValues>,
    last_client: Mutex<Instant>,
    seen: seen::SeenOf,
    lock_waits: processes::LockWaits,
    share: share::Share,
}

impl PoolEntry {
    /// Another client wants it, with these credentials.
    fn is_wanted_with(&self, credentials: &Arc<Credentials>) {
        *locked(&self.last_client) = Instant::now();
        let route = self.route.load();
        if !Arc::ptr_eq(&route.login.credentials, credentials) {
            // The password has changed, or the users have been read again.
            let mut changed = Route::clone(&route);
            changed.login.credentials = credentials.clone();
            self.route.store(Arc::new(changed));
        }
    }

    /// Counts a client until the place is dropped.
    pub fn enter(self: &Arc<Self>) -> PoolPlace {
        self.clients.fetch_add(1, Ordering::Relaxed);
        PoolPlace(self.clone())
    }

    /// Counts a client among those that wait at their login for a server, until what is returned is
    /// dropped.
    pub fn wait_at_login(self: &Arc<Self>) -> WaitAtLogin {
        let mut at_login = locked(&self.at_login);
        at_login.last += 1;
        let number = at_login.last;
        at_login.since.insert(number, Instant::now());
        WaitAtLogin { entry: self.clone(), number }
    }

    /// Clients that wait at their login, and for how long the first of them has.
    pub fn waiting_at_login(&self) -> (u32, Duration) {
        let at_login = locked(&self.at_login);
        let oldest =
            at_login.since.first_key_value().map_or(Duration::ZERO, |(_, at)| at.elapsed());
        (u32::try_from(at_login.since.len()).unwrap_or(u32::MAX), oldest)
    }

    /// A client's login has ended.
    pub fn count_login(&self) {
        self.logins.fetch_add(1, Ordering::Relaxed);
    }

    /// Clients that have logged in.
    pub fn login_count(&self) -> u64 {
        self.logins.load(Ordering::Relaxed)
    }

    /// Clients that hold a place.
    pub fn client_count(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// Why waiting for a backend does not help, if it does not.
    pub fn refusal(&self) -> Option<ClientError> {
        locked(&self.refusal).clone()
    }

    /// Whether its server is down, and clients do not wait for it.
    fn is_down(&self) -> bool {
        self.pool.lock().down().is_some()
    }

    /// The error for a login that would wait for a server which is down. (While its database is
    /// paused it waits.)
    fn down(&self, gates: &Gates) -> Option<ClientError> {
        let down = self.pool.lock().down().cloned();
        down.filter(|_| !gates.is_paused(&self.key.database))
    }

    /// The full error of the last failed opening for operators, if clients get less.
    pub fn unsaid(&self) -> Option<String> {
        locked(&self.unsaid).clone()
    }

    /// Whether its server is another pooler, as far as was looked.
    pub fn is_before_pooler(&self) -> bool {
        self.is_before_pooler.load(Ordering::Relaxed)
    }

    /// Why the last opening found no server that takes sessions, if it did, and no longer ago than that.
    pub fn without_server(&self, within: Duration) -> Option<String> {
        let last = locked(&self.without_server);
        last.as_ref().filter(|(at, _)| at.elapsed() < within).map(|(_, why)| why.clone())
    }

    /// The error for a login that has waited since then, if its server has not answered a later
    /// attempt within `server_connect_timeout`: the login has waited as long as it may.
    fn unanswered_since(&self, since: Instant) -> Option<ClientError> {
        let unanswered = locked(&self.unanswered);
        unanswered.as_ref().filter(|(begun, _)| *begun >= since).map(|(_, error)| error.clone())
    }

    /// The server's answer about a start value.
    pub fn checked(&self, name: &[u8], value: &[u8]) -> Option<CheckedValue> {
        locked(&self.checked).get(name, value)
    }

    /// Keeps the server's answer about a start value.
    pub fn keep_checked(&self, name: &[u8], value: &[u8], answer: CheckedValue) {
        locked(&self.checked).keep(name, value, answer);
    }

    /// Begins a new epoch: what is known from the server is asked again.
    pub fn begin_epoch(&self) {
        self.pool.begin_epoch();
        self.pool.lock().set_down(None);
        locked(&self.checked).clear();
        *locked(&self.refusal) = None;
    }

    /// Begins a new epoch: idle backends are closed now, the others as they become free.
    pub fn renew(&self, loops: &Loops) {
        self.begin_epoch();
        idle::close_idle(loops, &self.pool, |_, _| true);
    }

    /// Puts other bounds on its backends in force.
    pub fn set_limits(&self, shared: &Shared, limits: lending::Limits) {
        let due = {
            let mut pool = self.pool.lock();
            if *pool.limits() == limits {
                return;
            }
            pool.set_limits(limits, shared.loops.now())
        };
        shared.open(&self.pool, due);
    }

    fn is_forgotten(&self, after: Duration) -> bool {
        self.client_count() == 0
            && locked(&self.last_client).elapsed() >= after
            && self.pool.lock().total() == 0
    }
}

/// The waiting logins: since when, in the order in which they came.
#[derive(Default)]
struct AtLogin {
    last: u64,
    since: BTreeMap<u64, Instant>,
}

/// A client that waits at its login for a server.
pub struct WaitAtLogin {
    entry: Arc<PoolEntry>,
    number: u64,
}

impl Drop for WaitAtLogin {
    fn drop(&mut self) {
        locked(&self.entry.at_login).since.remove(&self.number);
    }
}

/// A client's place in a pool.
pub struct PoolPlace(Arc<PoolEntry>);

impl Drop for PoolPlace {
    fn drop(&mut self) {
        *locked(&self.0.last_client) = Instant::now();
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the files contain for the servers of each `[[database]]`, by its name: TLS, and the secret
/// for handing over server connections.
#[derive(Clone, Debug, Default)]
pub struct Connectings {
    tls: HashMap<String, Arc<Connecting>>,
    secrets: HashMap<String, Arc<Secret>>,
}

impl Connectings {
    /// Reads the files.
    ///
    /// # Errors
    /// All that is wrong with them.
    pub fn load(config: &Config) -> Result<Self, Vec<String>> {
        let mut loaded = Self::default();
        let mut errors = BTreeSet::new();
        for database in config.databases() {
            match Connecting::load(&database.inherited.tls) {
                Ok(connecting) => {
                    loaded.tls.insert(database.name.clone(), Arc::new(connecting));
                }
                Err(error) => {
                    errors.insert(format!("TLS to servers: {error}"));
                }
            }
            match database.hand_over_secret_file.as_deref().map(Secret::load) {
                None => {}
                Some(Ok(secret)) => {
                    loaded.secrets.insert(database.name.clone(), Arc::new(secret));
                }
                Some(Err(error)) => {
                    errors.insert(format!("hand_over_secret_file: {error}"));
                }
            }
        }
        if errors.is_empty() { Ok(loaded) } else { Err(errors.into_iter().collect()) }
    }

    fn of(&self, database: &DatabaseConfig) -> Arc<Connecting> {
        self.tls.get(&database.name).cloned().unwrap_or_else(|| Arc::new(Connecting::never()))
    }

    /// The secret for handing over the database's server connections.
    pub(crate) fn secret_of(&self, database: &DatabaseConfig) -> Option<Arc<Secret>> {
        self.secrets.get(&database.name).cloned()
    }
}

#[derive(Default)]
struct Registry {
    by_key: HashMap<PoolKey, Arc<PoolEntry>>,
    by_id: HashMap<PoolId, Arc<PoolEntry>>,
    forgotten: Forgotten,
}

impl Registry {
    fn remove(&mut self, entry: &PoolEntry) {
        self.by_key.remove(&entry.key);
        if self.by_id.remove(&entry.pool.id).is_some() {
            let counted = Totals { logins: entry.login_count(), ..Totals::of(&entry.pool.stats) };
            self.forgotten.add(&entry.key.database, counted);
        }
    }

    /// Makes room for one more pool among those with settings that only a connect can set, whose
    /// number is limited. Unused ones go.
    fn make_room(&mut self, key: &PoolKey) -> Result<(), ClientError> {
        if key.connect_only.is_empty() || key.replication.is_some() {
            return Ok(());
        }
        let like_it: Vec<_> = self
            .by_id
            .values()
            .filter(|entry| {
                let other = &entry.key;
                other.replication.is_none()
                    && !other.connect_only.is_empty()
                    && (&other.database, &other.user) == (&key.database, &key.user)
            })
            .cloned()
            .collect();
        let unused = like_it.iter().filter(|entry| entry.is_forgotten(UNUSED_AFTER));
        let room = CONNECT_ONLY_POOLS_MAX + unused.clone().count();
        if like_it.len() < CONNECT_ONLY_POOLS_MAX {
            return Ok(());
        }
        if like_it.len() >= room {
            return Err(ClientError::fatal(
                SqlState::CONFIGURATION_LIMIT_EXCEEDED,
                "too many different settings that only a connect can set",
            )
            .detail(format!(
                "There are {CONNECT_ONLY_POOLS_MAX} kinds of sessions with such settings for database \"{}\" and user \"{}\".",
                key.database, key.user
            )));
        }
        for entry in unused {
            self.remove(entry);
        }
        Ok(())
    }
}

/// All pools.
pub struct Pools {
    loops: usize,
    hash_key: u64,
    /// The memory of the texts of prepared statements, in all pools.
    pub statement_memory: Arc<StatementMemory>,
    registry: Mutex<Registry>,
    databases: databases::Databases,
    connectings: Mutex<Connectings>,
    next_pool: AtomicU32,
    next_replication: AtomicU64,
}

/// What a client of the pool needs to log in to the server.
pub struct Wanted<'a> {
    /// What clients ask for.
    pub database: &'a str,
    /// The client's user.
    pub user: &'a str,
    /// Settings that only a connect can set.
    pub connect_only: &'a [Asked],
    /// `replication`.
    pub replication: Replication,
    /// What the client's login has shown.
    pub credentials: Arc<Credentials>,
}

impl Pools {
    /// No pools yet, in a process of `loops` event loops.
    pub fn new(loops: usize) -> Self {
        Self {
            loops,
            hash_key: random_u64(),
            statement_memory: Arc::new(StatementMemory::new(usize::MAX)),
            registry: Mutex::default(),
            databases: databases::Databases::default(),
            connectings: Mutex::default(),
            next_pool: AtomicU32::new(1),
            next_replication: AtomicU64::new(1),
        }
    }

    /// Sets TLS towards servers.
    pub fn set_connectings(&self, connectings: Connectings) {
        *locked(&self.connectings) = connectings;
    }

    /// Where a login of the control side's own goes, and what it may be.
    pub(crate) fn route(
        &self,
        config: &Config,
        database: &DatabaseConfig,
        user: &str,
        login: Login,
    ) -> Route {
        route(config, database, user, login, &locked(&self.connectings))
    }

    /// The pool with this id.
    pub fn by_id(&self, id: PoolId) -> Option<Arc<PoolEntry>> {
        locked(&self.registry).by_id.get(&id).cloned()
    }

    /// All pools, in order of their making.
    pub fn all(&self) -> Vec<Arc<PoolEntry>> {
        let mut all: Vec<_> = locked(&self.registry).by_id.values().cloned().collect();
        all.sort_by_key(|entry| entry.pool.id);
        all
    }

    /// All limits on server connections of pools, as the configuration has them now, and how many of those
    /// under each are idle.
    pub fn under_limits(&self) -> HashMap<Full, UnderLimit> {
        let mut limits: HashMap<Full, UnderLimit> = HashMap::new();
        for entry in self.all() {
            let (route, idle) = (entry.route.load(), entry.pool.lock().idle_count());
            let mut add = |full, limit, idle| {
                let one = limits.entry(full).or_default();
                (one.limit, one.idle) = (limit, one.idle + idle);
            };
            add(Full::Total, route.bounds.total, idle);
            add(Full::Database(entry.key.database.as_str().into()), route.bounds.database, idle);
            add(Full::User(entry.key.user.as_str().into()), route.bounds.user, idle);
            // With several servers it is not known here which have the idle ones.
            let idle = if route.target.servers.len() == 1 { idle } else { 0 };
            for server in &route.target.servers {
                add(Full::Server(server.clone()), route.per_server, idle);
            }
        }
        limits
    }

    /// The counts of forgotten pools.
    pub fn forgotten(&self) -> Forgotten {
        locked(&self.registry).forgotten.clone()
    }

    /// Whether there is a pool of this database and user for sessions without settings that only
    /// a connect can set.
    pub fn exists(&self, database: &str, user: &str, shared: bool) -> bool {
        let key = PoolKey {
            database: database.to_owned(),
            user: user.to_owned(),
            connect_only: Vec::new(),
            replication: None,
            shared,
        };
        locked(&self.registry).by_key.contains_key(&key)
    }

    /// The pool for a client, made if there is none yet.
    ///
    /// # Errors
    /// There are [`CONNECT_ONLY_POOLS_MAX`] of this database and role already; or `config` is no
    /// longer in force, as it must be while the pool is made: a reload updates only existing pools.
    pub fn get_or_create(
        &self,
        in_force: &ArcSwap<Config>,
        config: &Config,
        database: &DatabaseConfig,
        wanted: &Wanted<'_>,
    ) -> Result<Arc<PoolEntry>, ClientError> {
        let forced = database.forced_user.as_ref().map(|forced| forced.name.as_str());
        let user = forced.unwrap_or(wanted.user);
        let key = self.key_of(database, user, wanted);
        let mut registry = locked(&self.registry);
        if let Some(entry) = registry.by_key.get(&key) {
            entry.is_wanted_with(&wanted.credentials);
            return Ok(entry.clone());
        }
        if !std::ptr::eq(&**in_force.load(), config) {
            let message = "the configuration is being reloaded";
            return Err(
                ClientError::fatal(SqlState::CANNOT_CONNECT_NOW, message).hint("Connect again.")
            );
        }
        registry.make_room(&key)?;
        let entry = Arc::new(self.new_entry(config, database, &key, wanted));
        registry.by_key.insert(key, entry.clone());
        registry.by_id.insert(entry.pool.id, entry.clone());
        Ok(entry)
    }

    fn key_of(&self, database: &DatabaseConfig, user: &str, wanted: &Wanted<'_>) -> PoolKey {
        let mut connect_only: Vec<_> = wanted
            .connect_only
            .iter()
            .map(|asked| (asked.name.clone(), asked.value.clone()))
            .collect();
        connect_only.sort();
        let replication = (wanted.replication != Replication::None)
            .then(|| self.next_replication.fetch_add(1, Ordering::Relaxed));
        PoolKey {
            database: wanted.database.to_owned(),
            user: user.to_owned(),
            connect_only,
            replication,
            shared: database.is_shared_by_users() && replication.is_none(),
        }
    }

    fn new_entry(
        &self,
        config: &Config,
        database: &DatabaseConfig,
        key: &PoolKey,
        wanted: &Wanted<'_>,
    ) -> PoolEntry {
        let user = key.user.as_str();
        let login = Login {
            user: user.to_owned(),
            database: database.dbname_for(wanted.database).to_owned(),
            replication: wanted.replication,
            parameters: wanted.connect_only.to_vec(),
            start: Vec::new(), // the route has it
            credentials: wanted.credentials.clone(),
        };
        let route = route(config, database, user, login, &locked(&self.connectings));
        let (settings, mode) = settings(config, database, user, wanted.replication);
        let pool = SharedPool::with_memory(
            PoolId(self.next_pool.fetch_add(1, Ordering::Relaxed)),
            wanted.database,
            user,
            settings,
            self.loops,
            self.hash_key,
            self.statement_memory.clone(),
        );
        let pool = pool.of_database(self.databases.of(&route));
        let pool = if key.shared { pool.shared_by_users() } else { pool };
        PoolEntry {
            pool: Arc::new(pool),
            key: key.clone(),
            route: ArcSwap::from_pointee(route),
            mode: Mutex::new(mode),
            changed: Notify::new(),
            unsaid: Mutex::new(None),
            refusal: Mutex::new(None),
            unanswered: Mutex::new(None),
            learning: AtomicBool::new(false),
            keeps_state: Mutex::default(),
            is_before_pooler: AtomicBool::new(false),
            without_server: Mutex::new(None),
            failures: failures::Failures::default(),
            clients: AtomicUsize::new(0),
            checked: Mutex::default(),
            last_client: Mutex::new(Instant::now()),
            at_login: Mutex::default(),
            logins: AtomicU64::new(0),
            seen: seen::SeenOf::default(),
            lock_waits: processes::LockWaits::default(),
            share: share::Share::default(),
        }
    }

    /// Removes a pool that has had neither a client nor a server connection for so long. This holds
    /// the lock under which a login finds the pool and makes it wanted again: a login that comes
    /// now keeps it. True if it was removed.
    fn forget(&self, entry: &PoolEntry, after: Duration) -> bool {
        let mut registry = locked(&self.registry);
        let is_forgotten = entry.is_forgotten(after.max(ENTERS_WITHIN));
        if is_forgotten {
            registry.remove(entry);
        }
        is_forgotten
    }

    /// Updates each pool to the present configuration. Begins a new epoch if the route to the
    /// servers has changed.
    pub fn reconfigure(&self, shared: &Shared, connectings: Connectings) {
        let (config, access) = (shared.config.load(), shared.access.load());
        self.statement_memory.set_max(config.reload.pool.prepared_statements_memory.to_usize());
        let now = shared.loops.now();
        for entry in self.all() {
            let Some(database) = config.database(&entry.key.database) else {
                continue; // its clients go on; new ones find no such database
            };
            let old = entry.route.load();
            let mut login = old.login.clone();
            login.database = database.dbname_for(&entry.key.database).to_owned();
            if let Some(credentials) = known_credentials(&access, database, &entry.key.user) {
                login.credentials = credentials;
            }
            let new = route(&config, database, &entry.key.user, login, &connectings);
            let moved = old.target.servers != new.target.servers
                || old.target.session_attrs != new.target.session_attrs
                || !old.target.tls.still_does(&new.target.tls)
                || old.target.reports != new.target.reports
                || old.target.hands_over != new.target.hands_over
                || (new.target.hands_over && old.secret != new.secret)
                || old.login.database != new.login.database
                || old.login.start != new.login.start;
            let (settings, mode) =
                settings(&config, database, &entry.key.user, entry.route.load().login.replication);
            // What the operator's own reset query leaves is only for session mode.
            let leaves_session_mode = mode != PoolMode::Session
                && *entry.pool.settings().server_reset_query != *DISCARD_ALL.as_bytes();
            entry.route.store(Arc::new(new));
            *locked(&entry.mode) = mode;
            let due = entry.pool.lock().set_limits(settings.limits.clone(), now);
            entry.pool.set_settings(settings);
            entry.pool.lock().set_down(None); // the next attempt decides it under the new settings
            shared.open(&entry.pool, due);
            if moved {
                tracing::info!(
                    database = entry.key.database,
                    user = entry.key.user,
                    "settings of server connections have changed: each is replaced when it becomes free"
                );
            }
            if moved || leaves_session_mode {
                entry.renew(&shared.loops);
            }
        }
        self.set_connectings(connectings);
    }
}

/// The present credentials for logins to servers as this user; `None` if they are looked up at each
/// login.
fn known_credentials(
    access: &Access,
    database: &DatabaseConfig,
    user: &str,
) -> Option<Arc<Credentials>> {
    match &database.forced_user {
        Some(forced) if forced.name == user => access.credentials_of(forced, &database.name).ok(),
        Some(_) => None,
        None => access.secret(user).map(|_| access.credentials(user)),
    }
}

fn route(
    config: &Config,
    database: &DatabaseConfig,
    user: &str,
    mut login: Login,
    connectings: &Connectings,
) -> Route {
    let reload = &config.reload;
    let start = database.start_values.iter();
    login.start =
        start.map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into())).collect();
    let limits = config.resolve(database, user).limits;
    Route {
        target: target(config, database, user, connectings),
        login,
        bounds: ServerBounds {
            total: reload.limits.max_server_connections,
            database: limits.max_db_connections,
            user: limits.max_user_connections,
        },
        per_server: reload.limits.max_server_connections_per_server,
        connect_query: database.connect_query.clone(),
        secret: connectings.secret_of(database),
        memory_max: reload.servers.server_max_memory.nonzero(),
        inside_size: database.inside_size,
        inside_places: database.inside_places,
    }
}

/// The servers of a database for a user, and the route to them. `user` is the forced user if the
/// database has one.
pub(crate) fn target(
    config: &Config,
    database: &DatabaseConfig,
    user: &str,
    connectings: &Connectings,
) -> Target {
    let session_attrs = session_attrs(config, database, user);
    let (reload, user) = (&config.reload, config.user(user));
    let max_replica_lag = user.and_then(|user| user.max_replica_lag);
    let load_balance_hosts = user.and_then(|user| user.load_balance_hosts);
    Target {
        servers: database.servers.clone(),
        session_attrs,
        max_replica_lag: max_replica_lag.unwrap_or(database.max_replica_lag).get(),
        balance: Balance::new(load_balance_hosts.unwrap_or(database.load_balance_hosts)),
        tls: connectings.of(database),
        connect_timeout: reload.servers.server_connect_timeout,
        lost_timeout: reload.servers.server_lost_timeout.get(),
        dns_max_ttl: reload.servers.dns_max_ttl,
        retry_after_max: reload.servers.server_login_retry,
        down_after: database.inherited.servers.server_down_timeout.get(),
        tcp: server_tcp_options(&reload.network, reload.servers.server_lost_timeout),
        reports: database.inherited.pool.extension == config::ExtensionUse::Auto,
        hands_over: database.hand_over_secret_file.is_some(),
        proxy: database.proxy_protocol,
        password: password_source(database),
    }
}

/// Which servers of a database are suitable for a user.
fn session_attrs(config: &Config, database: &DatabaseConfig, user: &str) -> TargetSessionAttrs {
    let own = config.user(user).and_then(|user| user.target_session_attrs);
    own.unwrap_or(database.target_session_attrs)
}

/// The source of the password of a database's user, if it is not in the configuration.
fn password_source(database: &DatabaseConfig) -> Option<PasswordSource> {
    let place = match (&database.password_file, database.password_command.as_slice()) {
        (Some(path), _) => password::Place::File(path.clone()),
        (None, []) => return None,
        (None, words) => {
            password::Place::Command { words: words.to_vec(), max_age: database.password_max_age }
        }
    };
    let user = database.forced_user.as_ref()?.name.clone();
    Some(PasswordSource { user, place })
}

/// The query that resets server connections that a client of transaction mode has pinned.
const DISCARD_ALL: &str = "DISCARD ALL";

/// The pool's settings, and when its clients give their backends back.
fn settings(
    config: &Config,
    database: &DatabaseConfig,
    user: &str,
    replication: Replication,
) -> (PoolSettings, PoolMode) {
    let inherited = config.resolve(database, user);
    let (pool, servers, timeouts) = (&inherited.pool, &inherited.servers, &inherited.timeouts);
    let or_never = |timeout: Timeout| timeout.get().unwrap_or_default();
    let exclusive = replication != Replication::None;
    let mode = match pool.pool_mode {
        _ if exclusive => PoolMode::Session,
        config::PoolMode::Session => PoolMode::Session,
        config::PoolMode::Transaction => PoolMode::Transaction,
        config::PoolMode::Statement => PoolMode::Statement,
    };
    let bounds = if exclusive {
        lending::Limits {
            size: 1,
            reserve_size: 0,
            reserve_timeout: Duration::ZERO,
            idle_transaction_reserve: 0,
            lock_wait_reserve: 0,
            min_size: 0,
            queue_max: 0,
            round_robin: false,
        }
    } else {
        lending::Limits {
            size: pool.pool_size,
            reserve_size: pool.reserve_pool_size,
            reserve_timeout: or_never(pool.reserve_pool_timeout),
            idle_transaction_reserve: inherited.idle_transaction_reserve(),
            lock_wait_reserve: pool.lock_wait_reserve,
            min_size: pool.min_pool_size,
            queue_max: config.reload.limits.queue_limit.get().unwrap_or_default(),
            round_robin: pool.server_round_robin,
        }
    };
    // Replication may stream for any time.
    let unless_exclusive =
        |timeout: Timeout| if exclusive { Duration::ZERO } else { or_never(timeout) };
    let settings = PoolSettings {
        limits: bounds,
        query_wait_timeout: or_never(timeouts.query_wait_timeout),
        query_wait_notify: or_never(timeouts.query_wait_notify),
        query_timeout: unless_exclusive(timeouts.query_timeout),
        idle_transaction_timeout: unless_exclusive(timeouts.idle_transaction_timeout),
        pin_timeout: unless_exclusive(timeouts.pin_timeout),
        max_pinned: inherited.max_pinned().unwrap_or(u32::MAX),
        transaction_timeout: unless_exclusive(timeouts.transaction_timeout),
        log_min_duration: unless_exclusive(config.reload.log.log_min_duration),
        wants_writable: session_attrs(config, database, user) == TargetSessionAttrs::ReadWrite,
        tracking: Tracking {
            is_on: config.reload.console.track_queries == config::TrackQueries::Top,
            keeps_examples: config.reload.console.query_examples,
            has_spans: config.start.log.otlp_endpoint.is_some(),
        },
        client_idle_timeout: unless_exclusive(timeouts.client_idle_timeout),
        client_write_timeout: unless_exclusive(timeouts.client_write_timeout),
        client_read_timeout: unless_exclusive(timeouts.client_read_timeout),
        cancel_wait_timeout: or_never(timeouts.cancel_wait_timeout),
        // The core's zero is "never"; the configuration's is "used once".
        server_lifetime: servers.server_lifetime.max(Duration::from_micros(1)),
        server_idle_timeout: or_never(servers.server_idle_timeout),
        server_max_transactions: u64::from(servers.server_max_transactions),
        server_fast_close: !exclusive && servers.server_fast_close,
        max_prepared_statements: pool.max_prepared_statements,
        parse_max_age: pool.parse_max_age,
        server_reset_query: if mode == PoolMode::Session {
            pool.server_reset_query.as_bytes().into()
        } else {
            DISCARD_ALL.as_bytes().into()
        },
        max_packet_size: config.reload.network.max_packet_size.to_usize(),
        listen_lost: match pool.listen_lost {
            config::ListenLost::Disconnect => ListenLost::Disconnect,
            config::ListenLost::Notice => ListenLost::Notice,
        },
        fidelity: match pool.fidelity {
            config::Fidelity::Full => lending::Fidelity::Full,
            config::Fidelity::Classic => lending::Fidelity::Classic,
        },
        stateful_functions: pool.stateful_functions.names.clone(),
        custom_settings_in_plans: pool.custom_settings_in_plans.promised(),
        function_census: pool.function_census && !exclusive,
    };
    (settings, mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[[database]]\nname = \"*\"\nservers = \"localhost:1\"\n\
                          [auth]\nauth_type = \"trust\"\n[[user]]\nname = \"ann\"\n";

    #[test]
    fn pools_for_settings_that_only_a_connect_can_set_are_bounded_for_each_user() {
        let config = Arc::new(Config::from_str(CONFIG, "test.toml").unwrap());
        let in_force = ArcSwap::new(config.clone());
        let database = config.database("app").unwrap();
        let pools = Pools::new(1);
        let get = |user: &str, value: usize| {
            let value = value.to_string();
            let asked =
                [Asked { name: b"post_auth_delay"[..].into(), value: value.as_bytes().into() }];
            let wanted = Wanted {
                database: "app",
                user,
                connect_only: &asked,
                replication: Replication::None,
                credentials: Arc::new(Credentials::new(&crate::auth::secret::Secret::None, None)),
            };
            pools.get_or_create(&in_force, &config, database, &wanted)
        };
        for value in 0..CONNECT_ONLY_POOLS_MAX {
            get("ann", value).unwrap();
        }
        let error = get("ann", CONNECT_ONLY_POOLS_MAX).map(|_| ()).unwrap_err();
        assert_eq!(error.code, SqlState::CONFIGURATION_LIMIT_EXCEEDED);
        get("ann", 0).unwrap();
        get("bob", 0).unwrap();
        let place = get("ann", 0).unwrap().enter();
        std::thread::sleep(UNUSED_AFTER + Duration::from_millis(50));
        get("ann", CONNECT_ONLY_POOLS_MAX).unwrap();
        assert_eq!(pools.all().len(), 3, "unused ones have gone; the one in use has not");
        drop(place);
    }

    #[test]
    fn a_pool_that_a_login_has_just_found_is_not_forgotten() {
        let config = Arc::new(Config::from_str(CONFIG, "test.toml").unwrap());
        let in_force = ArcSwap::new(config.clone());
        let database = config.database("app").unwrap();
        let pools = Pools::new(1);
        let wanted = Wanted {
            database: "app",
            user: "ann",
            connect_only: &[],
            replication: Replication::None,
            credentials: Arc::new(Credentials::new(&crate::auth::secret::Secret::None, None)),
        };
        let get = || pools.get_or_create(&in_force, &config, database, &wanted).unwrap();
        let entry = get();
        std::thread::sleep(ENTERS_WITHIN + Duration::from_millis(10));
        get(); // a login that has not counted itself yet
        assert!(!pools.forget(&entry, Duration::ZERO));
        std::thread::sleep(ENTERS_WITHIN + Duration::from_millis(10));
        let place = entry.enter();
        assert!(!pools.forget(&entry, Duration::ZERO));
        assert!(pools.by_id(entry.pool.id).is_some());
        drop(place);
        std::thread::sleep(ENTERS_WITHIN + Duration::from_millis(10));
        assert!(pools.forget(&entry, Duration::ZERO));
        assert!(pools.by_id(entry.pool.id).is_none());
        assert_ne!(get().pool.id, entry.pool.id);
    }
}
