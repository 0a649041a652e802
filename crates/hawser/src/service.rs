//! What all tasks of the control side share.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use hawser_sys::stream::TcpOptions;
use tokio::sync::watch;

use crate::auth::scram::MockNonce;
use crate::cancel::CancelGate;
use crate::config::{Config, ConfigError, NetworkSettings, Timeout};
use crate::dial::Dialler;
use crate::gates::Gates;
use crate::limits::Limits;
use crate::login::access::Access;
use crate::login::admin::AdminConsole;
use crate::loops::{Control, Loops};
use crate::phase::Phase;
use crate::pools::Pools;
use crate::pools::census::Censuses;
use crate::pools::enquiry::Enquiries;
use crate::pools::vacancy::Vacancies;
use crate::process::random_bytes;
use crate::resolve::clients::ClientNames;
use crate::takeover::Succession;
use crate::tally::{ErrorCounts, Tally};
use crate::threads::Threads;
use crate::tls::accept::{Accepting, Acceptor};

/// What all tasks of the control side share.
pub struct Service {
    /// The configuration in force.
    pub config: ArcSwap<Config>,
    /// The rules and users in force.
    pub access: ArcSwap<Access>,
    /// TLS towards clients.
    pub acceptor: Acceptor,
    /// Secret of this process from which salts of unknown users are made.
    pub mock: MockNonce,
    /// The event loops.
    pub loops: Loops,
    /// What the loops ask for comes in here; the control side uses it, too.
    pub control: Control,
    /// All counts that are limited.
    pub limits: Arc<Limits>,
    /// All pools.
    pub pools: Pools,
    /// Server connections of the control side itself.
    pub enquiries: Enquiries,
    /// What functions do to sessions.
    pub censuses: Censuses,
    /// Databases that must have no connections for now.
    pub vacancies: Vacancies,
    /// Opens server connections.
    pub dialler: Dialler,
    /// Names of clients' addresses.
    pub client_names: ClientNames,
    /// Bounds cancel requests in flight.
    pub cancels: CancelGate,
    /// Serves the admin database.
    pub admin: Arc<dyn AdminConsole>,
    /// Which databases are paused or disabled.
    pub gates: Gates,
    /// Counters outside of pools.
    pub tally: Tally,
    /// The threads of the control side.
    pub threads: Threads,
    /// The phase of the process.
    pub phase: watch::Sender<Phase>,
    /// The processes before and after this one.
    pub succession: Succession,
    /// The result of the last reload.
    pub last_reload: ArcSwap<LastReload>,
    /// One reload at a time.
    reloading: Mutex<()>,
}

/// The result of the last reload, or of the start.
#[derive(Clone, Debug)]
pub struct LastReload {
    /// When.
    pub at: SystemTime,
    /// Why the previous configuration is still in force, if it is.
    pub refused: Option<String>,
}

impl Default for LastReload {
    fn default() -> Self {
        Self { at: SystemTime::now(), refused: None }
    }
}

/// Why a configuration is not put in force.
#[derive(Debug)]
pub struct NotInForce(pub Vec<String>);

impl std::fmt::Display for NotInForce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for NotInForce {}

impl Service {
    /// With this configuration in force: reads all files that it names.
    ///
    /// # Errors
    /// All errors in those files.
    pub fn new(
        config: Config,
        loops: Loops,
        control: Control,
        admin: Arc<dyn AdminConsole>,
        errors: Arc<ErrorCounts>,
        threads: Threads,
        succession: Succession,
    ) -> Result<Arc<Self>, NotInForce> {
        let (access, accepting, routes) = load_files(&config)?;
        let dialler = Dialler::default();
        dialler.links.put_in_force(&config.reload.links).map_err(NotInForce)?;
        let pools = Pools::new(loops.count());
        pools.statement_memory.set_max(config.reload.pool.prepared_statements_memory.to_usize());
        pools.set_connectings(routes);
        let limits: Arc<Limits> = Arc::default();
        if !config.start.etcd.etcd.is_empty() {
            limits.share();
        }
        Ok(Arc::new(Self {
            config: ArcSwap::from_pointee(config),
            access: ArcSwap::from_pointee(access),
            acceptor: Acceptor::new(accepting),
            mock: MockNonce::generate(random_bytes),
            loops,
            control,
            limits,
            pools,
            enquiries: Enquiries::default(),
            censuses: Censuses::default(),
            vacancies: Vacancies::default(),
            dialler,
            client_names: ClientNames::default(),
            cancels: CancelGate::default(),
            admin,
            gates: Gates::default(),
            tally: Tally { errors, ..Tally::default() },
            threads,
            phase: watch::Sender::new(Phase::Serving),
            succession,
            last_reload: ArcSwap::from_pointee(LastReload::default()),
            reloading: Mutex::new(()),
        }))
    }

    /// Puts another configuration in force, or the same one with its files read again. No client is
    /// disconnected; what only a restart changes stays as it is. Returns what changed, a line each.
    ///
    /// # Errors
    /// All errors in the files that it names: everything stays as it is.
    pub fn put_in_force(&self, config: Config) -> Result<Vec<String>, NotInForce> {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.config.load_full();
        for name in old.diff_restart(&config) {
            tracing::warn!(setting = name, "the setting has changed, which needs a restart");
        }
        let config = config.reloaded_over(&old);
        let (access, accepting, routes) = load_files(&config)?;
        let mut changes = old.changes(&config);
        self.dialler.links.put_in_force(&config.reload.links).map_err(NotInForce)?;
        let old = self.access.load();
        changes.extend(old.changes(&access));
        access.keep_from(&old);
        self.dialler.mptcp.manager.want(config.reload.network.mptcp_manage);
        self.acceptor.replace(accepting);
        self.access.store(Arc::new(access));
        crate::logging::put_in_force(&config.reload.log);
        self.config.store(Arc::new(config));
        self.enquiries.forget();
        self.dialler.resolver.ask_again();
        self.client_names.forget();
        self.pools.reconfigure(self, routes);
        Ok(changes)
    }

    /// Reads the configuration file again and puts it in force, and logs what changed.
    ///
    /// # Errors
    /// All errors: everything stays as it is.
    pub fn reload(&self) -> Result<(), NotInForce> {
        let done = self.read_again();
        let refused = done.as_ref().err().map(ToString::to_string);
        self.last_reload.store(Arc::new(LastReload { at: SystemTime::now(), refused }));
        done
    }

    fn read_again(&self) -> Result<(), NotInForce> {
        let old = self.config.load_full();
        let config = old.read_again().map_err(|errors| NotInForce(vec![errors.to_string()]))?;
        // Earlier warnings have been logged; their positions may have moved.
        let said: HashSet<&str> = old.warnings().iter().map(|old| old.message.as_str()).collect();
        let new = |warning: &&ConfigError| !said.contains(warning.message.as_str());
        let warnings: Vec<_> =
            config.warnings().iter().filter(new).map(ToString::to_string).collect();
        let changes = self.put_in_force(config)?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        if changes.is_empty() {
            tracing::info!("configuration reloaded: nothing changed");
        } else {
            let changes = changes.join("; ");
            tracing::info!(changes, "configuration reloaded");
        }
        Ok(())
    }

    /// The phase of the process.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }
}

type Files = (Access, Option<Accepting>, crate::pools::Connectings);

fn load_files(config: &Config) -> Result<Files, NotInForce> {
    let mut errors = Vec::new();
    let access = Access::load(config).map_err(|error| errors.extend(error)).ok();
    let accepting = Accepting::load(&config.reload.client_tls)
        .map_err(|error| errors.push(error.to_string()))
        .ok();
    let connectings =
        crate::pools::Connectings::load(config).map_err(|error| errors.extend(error)).ok();
    match (access, accepting, connectings) {
        (Some(access), Some(accepting), Some(connectings)) if errors.is_empty() => {
            Ok((access, accepting, connectings))
        }
        _ => Err(NotInForce(errors)),
    }
}

/// TCP options of connections to servers: keepalive detects a lost server within `lost_timeout`.
pub fn server_tcp_options(network: &NetworkSettings, lost_timeout: Timeout) -> TcpOptions {
    let mut options = tcp_options(network);
    if let Some(timeout) = lost_timeout.get() {
        // The first probe comes after `idle`; one interval after the last the connection is given
        // up.
        options.keepalive_count = LOST_PROBES;
        options.keepalive_interval = Duration::from_secs((timeout.as_secs() / 5).max(1));
        let probing = options.keepalive_interval * LOST_PROBES;
        options.keepalive_idle = timeout.saturating_sub(probing).max(Duration::from_secs(1));
    }
    options
}

/// Keepalive probes that a server must have left unanswered.
const LOST_PROBES: u32 = 3;

/// TCP options from the configuration.
pub fn tcp_options(network: &NetworkSettings) -> TcpOptions {
    let or_zero = |timeout: Timeout| timeout.get().unwrap_or_default();
    TcpOptions {
        keepalive: network.tcp_keepalive,
        keepalive_idle: or_zero(network.tcp_keepidle),
        keepalive_interval: or_zero(network.tcp_keepintvl),
        keepalive_count: network.tcp_keepcnt,
        user_timeout: or_zero(network.tcp_user_timeout),
        buffer_bytes: network.tcp_socket_buffer.to_usize(),
    }
}
