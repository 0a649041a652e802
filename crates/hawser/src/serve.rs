//! `hawser serve`: from a configuration to a process that takes clients, and to its end.
//!
//! # Order of the start
//! configuration and its files, descriptors, sockets, another user, event loops, listeners, READY.
//! All errors are found before the first client can connect. A process that takes another's place
//! ([`crate::takeover`]) asks it for its sockets first, and for its place last.
//!
//! # Signals
//! SIGHUP reloads, and so does `watch_files`; a configuration with an error is refused and the old one
//! stays. SIGTERM and SIGINT let open transactions end within `shutdown_timeout`; a second one ends them.
//! SIGUSR2 starts a successor.

mod watch;

use std::future::Future;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hawser_pooler::relay::ToLoop;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::admin::command::{Command, Shutdown};
use crate::admin::running::Administration;
use crate::config::{Config, DatabaseConfig};
use crate::listeners::SocketPath;
use crate::logging::audit;
use crate::login::listen::{self, ListenError};
use crate::loops::{Control, Order};
use crate::phase::{Phase, Standing, shutdown_error};
use crate::pools::health::{self, Prober};
use crate::pools::upkeep::{self, Upkeep};
use crate::process::{self, BACKGROUND_VARIABLE, PidFile, ProcessError, notify, random_u64};
use crate::reactor::{Listeners, Logged, Reactors};
use crate::service::{NotInForce, Service};
use crate::spans::Spans;
use crate::takeover::taking::{self, Found, NotTakenOver, Taker};
use crate::takeover::{self, Succession};
use crate::tally::ErrorCounts;
use crate::threads::Runtimes;
use crate::{peers, shares};
use watch::Watch;

/// How often this checks whether the last client has left.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// How often the service manager gets the state of the process, if that has changed.
const STATUS_PERIOD: Duration = Duration::from_secs(2);
/// How long the end of the process waits for the collector of `otlp_endpoint`.
const LAST_SPANS: Duration = Duration::from_secs(1);
/// How long it waits for the last lines of the audit.
const LAST_LINES: Duration = Duration::from_secs(1);
/// How long event loops have to say goodbye once the time of grace is over.
const GOODBYE: Duration = Duration::from_millis(200);

/// Why the process does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A file that the configuration names, or the process itself, has an error.
    #[error(transparent)]
    NotInForce(NotInForce),
    /// The process cannot do what the configuration asks for.
    #[error(transparent)]
    Process(ProcessError),
    /// A socket cannot be listened on.
    #[error(transparent)]
    Listen(ListenError),
    /// A socket of the administration cannot be listened on.
    #[error("{0}")]
    Admin(String),
    /// The runtime or the event loops could not be started.
    #[error("could not start: {0}")]
    Start(std::io::Error),
    /// `[bypass] enable = "on"`, and that is impossible.
    #[error("[bypass] enable = \"on\": {0}")]
    Bypass(hawser_bypass::place::Error),
    /// The place of the running process cannot be taken.
    #[error(transparent)]
    Takeover(NotTakenOver),
}

/// Whether a process is the first of its service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begins {
    /// None runs before it.
    Alone,
    /// It takes the place of the one that runs.
    AsSuccessor,
    /// The same if one runs, else alone.
    AsSuccessorOrAlone,
}

impl Begins {
    /// As the command line says, unless a running process has started this one to be its successor.
    pub fn asked(own: Self) -> Self {
        if takeover::start::is_asked_for() { Self::AsSuccessor } else { own }
    }
}

/// What signals mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// SIGTERM and SIGINT let open transactions end.
    Hawser,
    /// SIGTERM waits for clients, SIGINT for servers, SIGUSR1 pauses, SIGUSR2 resumes.
    PgBouncer,
}

/// Serves until a signal ends it, with this meaning of signals, and this begin. `began` gets what serves
/// before the first client comes.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(
    config: Config,
    manner: Manner,
    begins: Begins,
    began: impl FnOnce(&Arc<Service>),
) -> Result<(), ServeError> {
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    for warning in crate::check::exposed::files(&config) {
        tracing::warn!("{warning}");
    }
    if let Some(warning) = crate::check::exposed::user(&config) {
        tracing::warn!("{warning}");
    }
    let start = &config.start.process;
    // Before any of the files is read.
    let watch = start.watch_files.then(|| Watch::begin(&config));
    let core_dumps = start.core_dumps;
    // Before files with secrets are read.
    process::set_dumpable(core_dumps);
    process::ensure_descriptors(descriptors(&config)).map_err(ServeError::Process)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let or_cores = |count: u32| if count == 0 { cores } else { count as usize };
    let loop_count = u16::try_from(or_cores(start.loops)).unwrap_or(u16::MAX);
    let login_threads = or_cores(start.login_threads);
    let runtimes = Runtimes::start(login_threads).map_err(ServeError::Start)?;
    let entered = runtimes.control.enter();

    // Before anything listens: a program that sees it answer may send a signal at once.
    let signals = Signals::catch(manner).map_err(ServeError::Start)?;
    let (predecessor, succession) = find_predecessor(&config, begins, &runtimes)?;

    let (control, orders) = Control::new();
    crate::logging::put_in_force(&config.reload.log);
    let errors: Arc<ErrorCounts> = Arc::default();
    let spans = match config.start.log.otlp_endpoint.as_deref() {
        Some(endpoint) => Spans::start(endpoint).map_err(|error| {
            let message = format!("otlp_endpoint `{endpoint}` cannot be sent to: {error}");
            ServeError::NotInForce(NotInForce(vec![message]))
        })?,
        None => Spans::default(),
    };
    let logged = Arc::new(Logged { errors: errors.clone(), spans: spans.clone() });
    let hash_key = random_u64();
    let own = peers::own_process_ids(start.peer_id, (random_u64() >> 32) as u32);
    let reactors = Reactors::start(loop_count, hash_key, own, control.clone(), logged)
        .map_err(ServeError::Start)?;

    audit::begin(&config.start).map_err(|error| ServeError::NotInForce(NotInForce(vec![error])))?;
    // Files of certificates and rules may be readable by root alone: before the change of user.
    let listeners = open_listeners(&config, &succession)?;
    let user = start.user.clone();
    let owner = process::account_to_become(user.as_deref()).map_err(ServeError::Process)?;
    let path = start.pidfile.clone();
    let pidfile = match (path.as_deref(), &predecessor) {
        (None, _) => Ok(None),
        (Some(path), None) => PidFile::create(path, owner.as_ref()).map(Some),
        // (It is the predecessor's up to the last.)
        (Some(path), Some(found)) => PidFile::expect(path, found.pid).map(|()| None),
    };
    let pidfile = pidfile.map_err(ServeError::Process)?;
    let loops = reactors.loops().clone();
    let etcd = shares::load(&config);
    let etcd = etcd.map_err(|error| ServeError::NotInForce(NotInForce(vec![error])))?;
    let threads = runtimes.threads();
    let service = Service::new(config, loops, control, errors, threads, Arc::new(succession))
        .map_err(ServeError::NotInForce)?;
    let administration = Administration::of(service.clone());
    let mut control_sockets = administration.begin().map_err(ServeError::Admin)?;
    began(&service);
    // It keeps the rights that this process gives up.
    let manager = service.dialler.mptcp.manager.clone();
    let links = service.dialler.links.clone();
    manager.want(service.shared.config.load().reload.network.mptcp_manage);
    // As its rights allow, which the user may not have; and before the first client.
    let bypass = &service.dialler.bypass;
    let begun = {
        let config = service.shared.config.load();
        bypass.begin(config.start.bypass.enable, config.listen())
    };
    begun.map_err(ServeError::Bypass)?;
    process::become_user(user.as_deref()).map_err(ServeError::Process)?;
    process::set_dumpable(core_dumps);
    let _ = service.shared.tally.spans.set(spans.clone()); // (it is new)
    let ending = service.clone();
    spawn_upkeep(&service, orders);
    if let Some(etcd) = &etcd {
        tokio::spawn(shares::run(service.shared.clone(), service.places.clone(), etcd.clone()));
    }
    let mut own = Own { listeners, paths: &mut control_sockets, pidfile };
    if let Some(found) = predecessor {
        own.take_place_of(found, &service, &runtimes, path.as_deref())?;
    }
    let Own { listeners, pidfile, .. } = own;
    let accepts = reactors.listeners();
    runtimes.control.block_on(run(service, administration, (listeners, accepts), signals, watch));
    drop(pidfile);
    manager.end();
    links.end();
    drop(reactors);
    runtimes.control.block_on(spans.end(LAST_SPANS));
    audit::end(LAST_LINES);
    if let Some(etcd) = &etcd {
        runtimes.control.block_on(shares::give_back(&ending.shared.limits, etcd));
    }
    end_of_paths(control_sockets, &ending.succession); // while they are still listened on
    drop(entered);
    runtimes.end();
    // After the last connection.
    ending.dialler.bypass.end();
    Ok(())
}

/// The process that this one replaces, and its sockets.
fn find_predecessor(
    config: &Config,
    begins: Begins,
    runtimes: &Runtimes,
) -> Result<(Option<Found>, Succession), ServeError> {
    if begins == Begins::Alone {
        return Ok((None, Succession::default()));
    }
    match runtimes.control.block_on(taking::find(config)) {
        Ok((found, inherited)) => Ok((Some(found), Succession::of_successor(inherited))),
        Err(error) if error.is_alone() && begins == Begins::AsSuccessorOrAlone => {
            tracing::warn!("{error}: starting without a predecessor");
            Ok((None, Succession::default()))
        }
        Err(error) => Err(ServeError::Takeover(error)),
    }
}

/// All sockets for clients, which a successor may get.
fn open_listeners(
    config: &Config,
    succession: &Succession,
) -> Result<Vec<listen::Listener>, ServeError> {
    let listeners =
        listen::open_all(&config.start.listen, succession).map_err(ServeError::Listen)?;
    for listener in &listeners {
        let (purpose, fd) = listener.to_give().map_err(ServeError::Start)?;
        succession.listens(purpose, Arc::new(fd));
    }
    Ok(listeners)
}

/// The sockets of a process that clients connect to.
struct Own<'a> {
    listeners: Vec<listen::Listener>,
    /// Files of unix sockets of the administration.
    paths: &'a mut Vec<SocketPath>,
    pidfile: Option<PidFile>,
}

impl Own<'_> {
    /// Asks the predecessor for its place, and returns when it has given it.
    fn take_place_of(
        &mut self,
        predecessor: Found,
        service: &Arc<Service>,
        runtimes: &Runtimes,
        pidfile: Option<&Path>,
    ) -> Result<(), ServeError> {
        let taker = Taker {
            shared: service.shared.clone(),
            pools: service.pools.clone(),
            openings: service.openings.clone(),
            dialler: service.dialler.clone(),
            succession: service.succession.clone(),
        };
        let taking = runtimes.control.block_on(predecessor.ready(taker));
        let taking = taking.map_err(ServeError::Takeover)?;
        self.listeners.iter_mut().for_each(listen::Listener::is_given);
        self.paths.iter_mut().for_each(SocketPath::is_given);
        match pidfile.map(PidFile::take).transpose() {
            Ok(taken) => self.pidfile = taken,
            // It could be written a moment ago; clients matter more.
            Err(error) => tracing::error!(%error, "the pid file names the predecessor"),
        }
        service.succession.end_unused();
        service.succession.standing.send_replace(Standing::Serving);
        runtimes.control.spawn(taking.run());
        Ok(())
    }
}

/// The files of unix sockets are removed, if they are not a successor's by now.
fn end_of_paths(paths: Vec<SocketPath>, succession: &Succession) {
    if succession.is_given() {
        paths.into_iter().for_each(SocketPath::leave);
    }
}

/// Descriptors that the configured clients and server connections can need, one pool for each entry:
/// the number of users is not known; `max_server_connections` bounds it.
pub(crate) fn descriptors(config: &Config) -> u64 {
    let limits = &config.reload.limits;
    let clients = u64::from(limits.max_client_conn);
    let of_entry = |db: &DatabaseConfig| {
        let pool = &db.inherited.pool;
        let beyond = u64::from(pool.reserve_pool_size) + u64::from(pool.lock_wait_reserve);
        u64::from(pool.pool_size) + beyond + u64::from(db.inherited.idle_transaction_reserve())
    };
    let listed: u64 = config.databases().iter().map(of_entry).sum();
    let servers = limits.max_server_connections.get().map_or(listed, u64::from);
    let needed = clients.saturating_add(servers);
    needed.max(u64::from(config.start.process.max_open_files))
}

/// Starts the tasks that run beside the service from its start to its end.
fn spawn_upkeep(service: &Arc<Service>, orders: mpsc::UnboundedReceiver<Order>) {
    let Service { shared, pools, lines, dialler, .. } = &**service;
    tokio::spawn(service.clone().take_orders(orders));
    tokio::spawn(upkeep::run(Upkeep {
        shared: shared.clone(),
        pools: pools.clone(),
        enquiries: service.enquiries.clone(),
        lines: lines.clone(),
        dialler: dialler.clone(),
        acceptor: service.acceptor.clone(),
        succession: service.succession.clone(),
    }));
    tokio::spawn(service.censuses.clone().run());
    tokio::spawn(service.inside.clone().run());
    tokio::spawn(health::run(Arc::new(Prober {
        shared: shared.clone(),
        pools: pools.clone(),
        dialler: dialler.clone(),
        lines: lines.clone(),
    })));
    let watching = service.clone();
    tokio::spawn(async move {
        let timeout = || watching.shared.config.load().reload.network.tcp_user_timeout.get();
        watching.dialler.mptcp.end_dead(timeout).await;
    });
    let watching = service.clone();
    tokio::spawn(async move {
        let timeout = || watching.shared.config.load().reload.servers.server_lost_timeout.get();
        watching.dialler.end_lost(timeout).await;
    });
}

async fn run(
    service: Arc<Service>,
    administration: Arc<Administration>,
    (listeners, accepts): (Vec<listen::Listener>, Listeners),
    signals: Signals,
    watch: Option<Watch>,
) {
    derive_in_advance(&service);
    let console = administration.clone();
    let inside = listen::Inside {
        entrance: service.entrance(Box::new(move |client| console.serve(client))),
        dialler: service.dialler.clone(),
        succession: service.succession.clone(),
    };
    for listener in listeners {
        tokio::spawn(listen::accept(inside.clone(), listener, accepts.clone()));
    }
    notify(&[sd_notify::NotifyState::Ready]);
    tracing::info!("ready");
    if let Some(word) = std::env::var_os(BACKGROUND_VARIABLE) {
        // The program that started it in the background waits for one line, and reads no more.
        let _ = writeln!(std::io::stdout().lock(), "ready {}", word.display());
    }
    if std::env::var_os("NOTIFY_SOCKET").is_some() {
        tokio::spawn(tell_status(service.clone()));
    }

    if let Some(watch) = watch {
        tokio::spawn(watch::run(service.clone(), watch));
    }
    let reloading = service.clone();
    tokio::spawn(each(signals.reload, move || {
        let service = reloading.clone();
        async move { reload(&service).await }
    }));
    let (endings, mut ended) = mpsc::unbounded_channel();
    for signal in signals.drain {
        let endings = endings.clone();
        tokio::spawn(each(signal, move || {
            let _ = endings.send(());
            std::future::ready(())
        }));
    }
    for (signal, text, command) in signals.commands {
        let (service, administration) = (service.clone(), administration.clone());
        let mut ending = false;
        tokio::spawn(each(signal, move || {
            // As in PgBouncer: the second one ends it at once.
            if matches!(command, Command::Shutdown(_)) && std::mem::replace(&mut ending, true) {
                let _ = service.shared.phase.send(Phase::Ending);
            } else {
                tracing::info!(command = text, "signal received");
                administration.command(command.clone());
            }
            std::future::ready(())
        }));
    }
    let at_once = service.clone();
    tokio::spawn(each(signals.end, move || {
        let _ = at_once.shared.phase.send(Phase::Ending);
        std::future::ready(())
    }));
    let successor = service.clone();
    tokio::spawn(each(signals.replace, move || {
        takeover::start::successor(&successor.succession);
        std::future::ready(())
    }));
    let mut phase = service.shared.phase.subscribe();
    tokio::select! {
        _ = ended.recv() => {}
        // SHUTDOWN of the admin console.
        _ = phase.wait_for(|phase| *phase != Phase::Serving) => {}
    }
    // Not within the arms: there the value is still locked for reading, and this writes it.
    drain(&service);
    tokio::select! {
        () = drained(&service) => tracing::info!("all clients have left"),
        _ = ended.recv() => tracing::info!("a second signal: ends now"),
        _ = phase.wait_for(|phase| *phase == Phase::Ending) => {}
    }
    let _ = service.shared.phase.send(Phase::Ending);
    service.shared.loops.send_all(|| ToLoop::KillAll { pool: None, error: shutdown_error() });
    tokio::time::sleep(GOODBYE).await;
}

/// The signals that an operator or a service manager sends.
struct Signals {
    /// SIGHUP.
    reload: Signal,
    /// SIGTERM, SIGINT.
    drain: Vec<Signal>,
    /// Those that are commands of the console, with the command's text.
    commands: Vec<(Signal, &'static str, Command)>,
    /// SIGQUIT.
    end: Signal,
    /// SIGUSR2, where it starts a successor.
    replace: Option<Signal>,
}

impl Signals {
    /// Catches them: from now on they do not end the process by themselves.
    fn catch(manner: Manner) -> std::io::Result<Self> {
        let (terminate, interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (drain, commands, replace) = match manner {
            Manner::Hawser => {
                let replace = Some(signal(SignalKind::user_defined2())?);
                (vec![terminate, interrupt], Vec::new(), replace)
            }
            Manner::PgBouncer => {
                let pause = signal(SignalKind::user_defined1())?;
                let resume = signal(SignalKind::user_defined2())?;
                let wait_for_clients = Command::Shutdown(Shutdown::WaitForClients);
                let wait_for_servers = Command::Shutdown(Shutdown::WaitForServers);
                let commands = vec![
                    (terminate, "SHUTDOWN WAIT_FOR_CLIENTS", wait_for_clients),
                    (interrupt, "SHUTDOWN WAIT_FOR_SERVERS", wait_for_servers),
                    (pause, "PAUSE", Command::Pause(None)),
                    (resume, "RESUME", Command::Resume(None)),
                ];
                (Vec::new(), commands, None)
            }
        };
        Ok(Self {
            reload: signal(SignalKind::hangup())?,
            drain,
            commands,
            end: signal(SignalKind::quit())?,
            replace,
        })
    }
}

async fn each<F: Future<Output = ()>>(
    signals: impl Into<Option<Signal>>,
    mut act: impl FnMut() -> F,
) {
    let Some(mut signals) = signals.into() else { return };
    while signals.recv().await.is_some() {
        act().await;
    }
}

/// Sends the number of connections, and which settings need a restart, to the service manager, for `systemctl status`.
async fn tell_status(service: Arc<Service>) {
    let mut told = String::new();
    while service.shared.phase() != Phase::Ending {
        if service.succession.is_given() {
            tokio::time::sleep(STATUS_PERIOD).await;
            continue;
        }
        let limits = &service.shared.limits;
        let state = match service.shared.phase() {
            Phase::Serving => "serving",
            Phase::Draining | Phase::Ending => "shutting down",
        };
        let (clients, servers) = (limits.client_count(), limits.server_count());
        let mut status = format!("{state}: {clients} clients, {servers} server connections");
        let restart = &service.last_reload.load().restart;
        if !restart.is_empty() {
            status +=
                &format!("; changed, but only in force after a restart: {}", restart.join(", "));
        }
        if status != told {
            notify(&[sd_notify::NotifyState::Status(&status)]);
            told = status;
        }
        tokio::time::sleep(STATUS_PERIOD).await;
    }
}

/// Reads the configuration again, on a thread that may wait for the disk.
async fn reload(service: &Arc<Service>) {
    crate::logging::reopen_log();
    let reloading = service.clone();
    match tokio::task::spawn_blocking(move || reloading.reload()).await {
        Ok(Ok(())) => {
            derive_in_advance(service);
            if let Err(error) = service.succession.pass_on(takeover::order::Order::Reload).await {
                tracing::warn!(error, "the clients of the predecessor have the old configuration");
            }
        }
        Ok(Err(error)) => {
            tracing::error!("reload refused, the old configuration stays in force:\n{error}");
        }
        Err(error) => tracing::error!(%error, "reload failed: the configuration could not be read"),
    }
}

fn derive_in_advance(service: &Arc<Service>) {
    let (access, mock) = (service.shared.access.load_full(), service.mock.clone());
    // Hashes, for logins to come.
    service.shared.threads.login.spawn_blocking(move || access.derive_in_advance(&mock));
}

/// Accepts no new clients; present ones leave when their transaction ends.
fn drain(service: &Service) {
    tracing::info!(clients = service.shared.limits.client_count(), "shutting down");
    if !service.succession.is_given() {
        notify(&[sd_notify::NotifyState::Stopping]); // (else the successor is the unit's process)
    }
    service.shared.phase.send_if_modified(|phase| {
        let serving = *phase == Phase::Serving;
        *phase = (*phase).max(Phase::Draining);
        serving
    });
    service.shared.loops.send_all(|| ToLoop::Drain(shutdown_error()));
}

/// Waits until no client is left, or the time of grace is over.
async fn drained(service: &Service) {
    let grace = service.shared.config.load().reload.shutdown.shutdown_timeout.get();
    let all_gone = async {
        while service.shared.limits.client_count() > 0 {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    };
    match grace {
        Some(grace) => {
            if tokio::time::timeout(grace, all_gone).await.is_err() {
                let clients = service.shared.limits.client_count();
                tracing::warn!(clients, "shutdown_timeout has passed: the rest is cut off");
            }
        }
        None => all_gone.await,
    }
}
