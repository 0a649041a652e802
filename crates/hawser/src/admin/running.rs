//! The console of a running process: what `serve` runs, as a [`Pooler`].
//!
//! # Model       [`Administration`] begins once everything else stands: it then opens the pages' and the
//!               control socket, and serves operators

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use hawser_congestion::cc::usage::CongestionUsage;
use hawser_link::drive::report::Report;
use hawser_pooler::ids::{LoopId, ServerAddressId};
use hawser_pooler::relay::ToLoop;
use hawser_pooler::shares::Standing as Sharing;
use hawser_pooler::wire::error::{ClientError, SqlState};
use hawser_sys::listen::{SocketFile, listen_tcp, listen_unix};
use tokio::net::{TcpListener, UnixListener};

use super::Console;
use super::command::{Command, Shutdown};
use super::execute::{execute, execute_here};
use super::operators::Operator;
use super::pooler::{Answer, PoolEntry, Pooler};
use super::{patroni, session};
use crate::bypass::usage::BypassUsage;
use crate::config::{Config, DatabaseConfig, OptionalAddress, UserEntry};
use crate::dial::Place;
use crate::dial::server_row::ServerRow;
use crate::dial::standing::Wants;
use crate::gates::{By, Gates};
use crate::limits::Limits;
use crate::listeners::{Purpose, SocketPath, while_serving};
use crate::lock::locked;
use crate::login::admin::AdminClient;
use crate::loops::{Loops, Pool};
use crate::metrics::host::Hosts;
use crate::metrics::{Pages, http};
use crate::mptcp::usage::MptcpUsage;
use crate::phase::{Phase, Standing};
use crate::pools::idle;
use crate::process::{account_to_become, path_of, place};
use crate::resolve::HostRow;
use crate::rules::Rules;
use crate::service::Service;
use crate::shared::LastReload;
use crate::takeover::giving::{self, Giver};
use crate::takeover::order::Order;
use crate::takeover::predecessor::PredecessorStatus;
use crate::takeover::{self, Succession};
use crate::tally::Tally;
use crate::totals::Forgotten;
use crate::{extension, inside, status};

/// How often the end of the last client is looked for (SHUTDOWN WAIT_FOR_CLIENTS).
const DRAIN_POLL: Duration = Duration::from_millis(100);

/// Administers a process that serves.
pub struct Administration {
    console: Arc<Console>,
    running: Arc<Running>,
}

/// A service as administration sees it.
struct Running {
    service: Arc<Service>,
    started: SystemTime,
    fallbacks: Mutex<Vec<String>>,
    pages: OnceLock<SocketAddr>,
}

impl Administration {
    /// Of this service.
    pub fn of(service: Arc<Service>) -> Arc<Self> {
        let running = Running {
            service,
            started: SystemTime::now(),
            fallbacks: Mutex::default(),
            pages: OnceLock::new(),
        };
        Arc::new(Self { console: Arc::default(), running: Arc::new(running) })
    }

    /// Something does not work here: it has been said once, and is shown from now on.
    fn fall_back(&self, what: String) {
        let fallbacks = &self.running.fallbacks;
        locked(fallbacks).push(what);
    }

    fn begin_pages(&self, pooler: &Arc<dyn Pooler>) -> Result<(), String> {
        let service = &self.running.service;
        let config = service.shared.config.load_full();
        let http = config.start.admin.http_address;
        let Some(address) = http.address() else { return Ok(()) };
        match pages_socket(&service.succession, address, config.start.listen.backlog) {
            Ok((fd, address)) => {
                let pages = Arc::new(Pages::new(pooler.clone()));
                let names = config.start.admin.http_hosts.clone();
                let serve = move || {
                    let listener = TcpListener::from_std(fd.try_clone()?.into())?;
                    let hosts = Hosts::new(&names, hawser_sys::names::own_host());
                    let pages = pages.clone();
                    Ok(async move {
                        tokio::join!(
                            http::run(listener, pages.clone(), hosts),
                            pages.keep_history()
                        );
                    })
                };
                tokio::spawn(while_serving(service.succession.standing.subscribe(), serve));
                let _ = self.running.pages.set(address); // it is set once: here
                tracing::info!(%address, "metrics, health and status page");
                Ok(())
            }
            // Asked for, it must be there; a second process on this host goes on without the default.
            Err(error) if matches!(http, OptionalAddress::Default(_)) => {
                tracing::warn!(%address, %error, "cannot bind http_address; metrics are off");
                self.fall_back(format!("no metrics, no health, no page at {address}: {error}"));
                Ok(())
            }
            Err(error) => Err(format!("could not listen on http_address {address}: {error}")),
        }
    }

    fn begin_control(
        self: &Arc<Self>,
        pooler: &Arc<dyn Pooler>,
    ) -> Result<Vec<SocketPath>, String> {
        let service = &self.running.service;
        let succession = &service.succession;
        let config = service.shared.config.load_full();
        let control_socket = config.start.admin.control_socket_path(path_of);
        let control_socket = control_socket.or_else(|| match place::directory() {
            Ok(directory) => Some(directory.join("hawser.sock")),
            Err(error) => {
                tracing::warn!(%error, "hawser status will not work: no place for a control socket");
                self.fall_back(format!("no control socket: {error}"));
                None
            }
        });
        let Some(control) = control_socket else { return Ok(Vec::new()) };
        // The process is still root: what it leaves to root, neither it nor the server's extension,
        // which runs as that user as well, could open afterwards.
        let owner = account_to_become(config.start.process.user.as_deref())
            .map_err(|error| error.to_string())?
            .map(|account| account.uid);
        let local = |purpose: Purpose, path: &Path| local_socket(succession, purpose, path, owner);
        let mut paths = Vec::new();
        match local(Purpose::Control { path: control.clone() }, &control) {
            Ok((fd, path)) => {
                paths.push(path);
                let pooler = pooler.clone();
                serve_local(succession, fd, move |listener| {
                    status::answer(listener, pooler.clone())
                });
            }
            // Asked for, it must be there; by default it is a convenience.
            Err(error) if config.start.admin.control_socket.is_some() => {
                let path = control.display();
                return Err(format!("could not listen on control_socket \"{path}\": {error}"));
            }
            Err(error) => {
                let path = control.display();
                tracing::warn!(%path, %error, "hawser status will not work: no control socket");
                self.fall_back(format!("no control socket at {path}: {error}"));
                return Ok(paths);
            }
        }
        let path = extension::socket_path(&control);
        match local(Purpose::Extension { path: path.clone() }, &path) {
            Ok((fd, path)) => {
                paths.push(path);
                let pooler = pooler.clone();
                serve_local(succession, fd, move |listener| {
                    extension::answer(listener, pooler.clone())
                });
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "the server's extension cannot ask here");
                self.fall_back(format!("no socket for the extension at {path}: {error}"));
            }
        }
        paths.extend(self.begin_inside(&control, owner));
        let path = takeover::socket_path(&control);
        match local(Purpose::Takeover { path: path.clone() }, &path) {
            Ok((fd, path)) => {
                paths.push(path);
                let giver = self.giver();
                serve_local(succession, fd, move |listener| {
                    giving::answer(listener, giver.clone())
                });
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "no process can take over from this one");
                self.fall_back(format!("no takeover: no socket at {path}: {error}"));
            }
        }
        Ok(paths)
    }

    /// Lets backends join that serve clients inside, if a database asks for any.
    fn begin_inside(&self, control: &Path, owner: Option<u32>) -> Option<SocketPath> {
        let Service { shared, inside, succession, .. } = &*self.running.service;
        if shared.config.load().databases().iter().all(|database| database.inside_size == 0) {
            return None;
        }
        let path = inside::socket_path(control);
        match local_socket(succession, Purpose::Inside { path: path.clone() }, &path, owner) {
            Ok((fd, path)) => {
                inside.listens_beside(control);
                let inside = inside.clone();
                serve_local(succession, fd, move |listener| inside.clone().listen(listener));
                Some(path)
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "no server can serve clients inside");
                self.fall_back(format!("no clients inside: no socket at {path}: {error}"));
                None
            }
        }
    }

    /// What this process has for a successor.
    fn giver(self: &Arc<Self>) -> Arc<Giver> {
        let (service, obeying) = (&self.running.service, self.clone());
        Arc::new(Giver {
            shared: service.shared.clone(),
            pools: service.pools.clone(),
            cancels: service.cancels.clone(),
            succession: service.succession.clone(),
            obey: Box::new(move |order| obeying.obey(order)),
        })
    }

    /// The process is about to serve: opens the other ways of administration. Called within the
    /// runtime. Returns the files of its unix sockets: they are removed when the process ends.
    ///
    /// # Errors
    /// A socket cannot be listened on; the process does not serve then.
    pub fn begin(self: &Arc<Self>) -> Result<Vec<SocketPath>, String> {
        let pooler: Arc<dyn Pooler> = self.running.clone();
        self.begin_pages(&pooler)?;
        let paths = self.begin_control(&pooler)?;
        let console = self.console.clone();
        tokio::spawn(patroni::run(pooler.clone(), self.running.service.dialler.clone()));
        tokio::spawn(async move { console.take_notes(pooler).await });
        Ok(paths)
    }

    /// Runs a command of the console for a signal: nothing waits for its end.
    pub fn command(&self, command: Command) {
        let pooler = self.running.clone();
        // A signal is for this process, whichever clients connect to.
        if let Command::Shutdown(how) = command {
            return pooler.shutdown(how);
        }
        tokio::spawn(async move {
            if let Err(error) = execute(pooler.as_ref(), &command).await {
                tracing::warn!(?command, error = error.message, "the signal's command failed");
            }
        });
    }

    /// Carries out what the successor passes on for the clients of this process; an error says why it
    /// has not been done.
    fn obey(&self, order: Order) -> Answer<'static, Result<(), String>> {
        let pooler = self.running.clone();
        Box::pin(async move {
            let Some(command) = command_of(order) else {
                return Err("its version does not know the command".to_owned());
            };
            match execute_here(pooler.as_ref(), &command, By::Successor).await {
                Ok(_) => Ok(()),
                // What there is not here, and what is not paused here, is in order.
                Err(error) if error.code == SqlState::INVALID_CATALOG_NAME => Ok(()),
                Err(_) if matches!(command, Command::Resume(_)) => Ok(()),
                Err(ClientError { message, detail: Some(detail), .. }) => {
                    Err(format!("{message}: {detail}"))
                }
                Err(error) => Err(error.message),
            }
        })
    }

    /// Serves a client of the admin database until it leaves.
    pub fn serve(&self, client: AdminClient) -> Answer<'static, ()> {
        let pooler = self.running.clone();
        let shared = pooler.service.shared.clone();
        let console = self.console.clone();
        Box::pin(async move {
            let AdminClient { stream, user, role, database, about, application_name, permit } =
                client;
            let operator = Operator {
                role,
                database,
                user: user.clone(),
                address: about.peer.to_string(),
                port: about.peer.port(),
                tls: about.tls().to_owned(),
                application_name,
            };
            if shared.config.load().reload.log.log_connections {
                tracing::info!(
                    address = operator.address,
                    port = operator.port,
                    database = operator.database,
                    user,
                    tls = operator.tls,
                    ?role,
                    "an operator has logged in to the admin console"
                );
            }
            let mut phase = shared.phase.subscribe();
            tokio::select! {
                served = session::serve(stream, operator, &console, pooler) => {
                    if let Err(error) = served {
                        tracing::debug!(user, %error, "an operator's connection broke");
                    }
                }
                _ = phase.wait_for(|phase| *phase == Phase::Ending) => {}
            }
            drop(permit);
        })
    }
}

/// The socket of the pages, the predecessor's or a new one, and its address.
fn pages_socket(
    succession: &Succession,
    address: SocketAddr,
    backlog: u32,
) -> io::Result<(Arc<OwnedFd>, SocketAddr)> {
    let purpose = Purpose::Pages { address: address.to_string() };
    let listener = match succession.inherit(&purpose) {
        Some(fd) => std::net::TcpListener::from(fd),
        None => listen_tcp(address, i32::try_from(backlog).unwrap_or(i32::MAX))?,
    };
    let own = listener.local_addr().unwrap_or(address);
    let fd = Arc::new(OwnedFd::from(listener));
    succession.listens(purpose, fd.clone());
    Ok((fd, own))
}

/// Connections to the control socket that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A unix socket for the process's own user, which later may be `owner`: the predecessor's, or a
/// new one in place of one without a listener.
fn local_socket(
    succession: &Succession,
    purpose: Purpose,
    path: &Path,
    owner: Option<u32>,
) -> io::Result<(Arc<OwnedFd>, SocketPath)> {
    let file = SocketFile { mode: Some(0o600), owner, group: None };
    let (fd, path) = match succession.inherit(&purpose) {
        Some(fd) => (fd, SocketPath::Predecessors(path.to_owned(), SocketFile::default())),
        None => {
            let (listener, bound) = listen_unix(path, file, BACKLOG)?;
            (listener.into(), SocketPath::Own(bound))
        }
    };
    let fd = Arc::new(fd);
    succession.listens(purpose, fd.clone());
    Ok((fd, path))
}

/// Answers on a unix socket as long as this process is the one that serves.
fn serve_local<W: Future<Output = ()> + Send + 'static>(
    succession: &Succession,
    fd: Arc<OwnedFd>,
    answer: impl Fn(UnixListener) -> W + Send + 'static,
) {
    let serve = move || {
        let listener = std::os::unix::net::UnixListener::from(fd.try_clone()?);
        Ok(answer(UnixListener::from_std(listener)?))
    };
    tokio::spawn(while_serving(succession.standing.subscribe(), serve));
}

impl Running {
    fn entry(&self, pool: &Pool) -> Option<Arc<crate::pools::PoolEntry>> {
        self.service.pools.by_id(pool.id)
    }
}

/// So long a server that was not found keeps new clients away.
const NOT_READY: Duration = Duration::from_secs(15);

impl Running {
    /// Not ready: an opening has found no server lately, and no pool has a server connection. (If
    /// no client comes because of this answer, no opening shows that the server is back.) Also not
    /// ready if limits are shared, there is no lease, and no pool has a server connection: none can
    /// be opened.
    fn some_server_answers(&self) -> Result<(), String> {
        let pools = self.service.pools.all();
        let connected = |pool: &Pool| {
            let pool = pool.lock();
            pool.idle_count() + pool.lent_count() > 0
        };
        let sharing = self.service.shared.limits.sharing().map(|(state, _)| state);
        if let Some(state) =
            sharing.filter(|state| !state.is_ready() && state.standing != Sharing::Unsure)
            && self.service.shared.config.load().all_are_limited()
            && !pools.iter().any(|entry| connected(&entry.pool))
        {
            let why = state.failure.unwrap_or_else(|| "it has not answered yet".to_owned());
            return Err(format!("limits are shared, and this pooler has no place: {why}"));
        }
        match pools.iter().find_map(|entry| entry.without_server(NOT_READY)) {
            Some(why) if !pools.iter().any(|entry| connected(&entry.pool)) => {
                Err(format!("no server answers: {why}"))
            }
            _ => Ok(()),
        }
    }
}

impl Pooler for Running {
    fn config(&self) -> Arc<Config> {
        self.service.shared.config.load_full()
    }

    fn put_config(&self, config: Config) -> Answer<'_, Result<(), String>> {
        let service = self.service.clone();
        Box::pin(async move {
            let put =
                move || service.put_in_force(config).map(drop).map_err(|error| error.to_string());
            tokio::task::spawn_blocking(put).await.unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    fn reload(&self) -> Answer<'_, Result<Vec<String>, String>> {
        let service = self.service.clone();
        Box::pin(async move {
            let reload = move || {
                crate::logging::reopen_log();
                service.reload().map_err(|error| error.to_string())?;
                Ok(Vec::new())
            };
            tokio::task::spawn_blocking(reload).await.unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    fn last_reload(&self) -> LastReload {
        LastReload::clone(&self.service.last_reload.load())
    }

    fn cancels_to_peer(&self, id: u8) -> u32 {
        self.service.cancels.gate.to_peers.in_flight(id)
    }

    fn loops(&self) -> &Loops {
        &self.service.shared.loops
    }

    fn pools(&self) -> Vec<PoolEntry> {
        let entries = self.service.pools.all();
        entries
            .iter()
            .map(|entry| {
                let (waiting_at_login, wait_at_login) = entry.waiting_at_login();
                PoolEntry {
                    pool: entry.pool.clone(),
                    clients: entry.client_count(),
                    waiting_at_login,
                    wait_at_login,
                    logins: entry.login_count(),
                    replication: entry.route.load().login.replication,
                    unsaid: entry.unsaid(),
                    is_before_pooler: entry.is_before_pooler(),
                    asking: self.service.lines.open_count(&entry.route.load()),
                }
            })
            .collect()
    }

    fn open(&self, pool: &Pool, home: LoopId) {
        self.service.shared.control.open(pool.clone(), home);
    }

    fn close_idle(&self, pool: &Pool) {
        idle::close_idle(&self.service.shared.loops, pool, |_, _| true);
    }

    fn close_lines(&self, database: Option<&str>) {
        let pools = self.service.pools.all();
        let named: Vec<_> = pools
            .iter()
            .filter(|entry| database.is_none_or(|name| entry.key.database == name))
            .map(|entry| entry.route.load().login.database.clone())
            .collect();
        let wanted = |there: &str| {
            database.is_none_or(|name| name == there) || named.iter().any(|name| name == there)
        };
        self.service.lines.close(|_, there| wanted(there));
    }

    fn serves_inside(&self, pool: &Pool) -> bool {
        self.service.inside.serves(pool.id)
    }

    fn reconnect(&self, pool: &Pool) {
        self.service.shared.loops.send_all(|| ToLoop::EndUnusedListener(pool.clone()));
        match self.entry(pool) {
            Some(entry) => entry.renew(&self.service.shared.loops),
            None => pool.begin_epoch(),
        }
    }

    fn place(&self, server: ServerAddressId) -> Option<Place> {
        self.service.dialler.place(server)
    }

    fn hosts(&self) -> Vec<HostRow> {
        self.service.dialler.resolver.hosts()
    }

    fn servers(&self) -> Vec<ServerRow> {
        let config = self.service.shared.config.load();
        let rows = |database: &DatabaseConfig| {
            let of = |user: Option<&UserEntry>| Wants {
                servers: &database.servers,
                session_attrs: user
                    .and_then(|user| user.target_session_attrs)
                    .unwrap_or(database.target_session_attrs),
                max_replica_lag: user
                    .and_then(|user| user.max_replica_lag)
                    .unwrap_or(database.max_replica_lag)
                    .get(),
            };
            let users = config.users().iter().filter(|user| user.has_own_servers());
            let wants: Vec<_> =
                std::iter::once(of(None)).chain(users.map(|u| of(Some(u)))).collect();
            self.service.dialler.server_rows(&database.name, &wants)
        };
        config.databases().iter().flat_map(rows).collect()
    }

    fn limits(&self) -> &Arc<Limits> {
        &self.service.shared.limits
    }

    fn rules(&self) -> &Arc<Rules> {
        &self.service.shared.rules
    }

    fn gates(&self) -> &Gates {
        &self.service.shared.gates
    }

    fn tally(&self) -> &Tally {
        &self.service.shared.tally
    }

    fn listeners(&self) -> Vec<String> {
        self.config().listen().iter().map(ToString::to_string).collect()
    }

    fn known_users(&self) -> Vec<String> {
        self.service.shared.access.load().names().map(str::to_owned).collect()
    }

    fn forgotten(&self) -> Forgotten {
        self.service.pools.forgotten()
    }

    fn pages(&self) -> Option<SocketAddr> {
        self.pages.get().copied()
    }

    fn fallbacks(&self) -> Vec<String> {
        let mut all = locked(&self.fallbacks).clone();
        all.extend(self.service.dialler.mptcp.fallbacks());
        all.extend(self.service.dialler.bypass.fallbacks());
        all.extend(self.service.dialler.congestion.fallbacks());
        let config = self.service.shared.config.load();
        for link in self.service.dialler.links.reports() {
            all.extend(link.fallbacks.iter().map(|what| format!("link {}: {what}", link.name)));
        }
        all.extend(self.service.dialler.unencrypted.fallbacks(&config));
        let sharing = self.service.shared.limits.sharing();
        all.extend(sharing.and_then(|(state, _)| crate::shares::fallback(&state)));
        if let Some(reason) = self.last_reload().refused {
            let reason = reason.replace('\n', "; ");
            all.push(format!(
                "the last reload was refused, the old configuration is in force: {reason}"
            ));
        }
        all
    }

    fn mptcp(&self) -> Option<&MptcpUsage> {
        Some(&self.service.dialler.mptcp)
    }

    fn bypass(&self) -> Option<&BypassUsage> {
        Some(&self.service.dialler.bypass)
    }

    fn congestion(&self) -> Option<&CongestionUsage> {
        Some(&self.service.dialler.congestion)
    }

    fn links(&self) -> Vec<Arc<Report>> {
        self.service.dialler.links.reports()
    }

    fn started(&self) -> SystemTime {
        self.started
    }

    fn predecessor(&self) -> Option<PredecessorStatus> {
        Some(self.service.succession.predecessor()?.status())
    }

    fn pass_on(&self, command: &Command) -> Answer<'_, Result<(), ClientError>> {
        let order = order_of(command);
        Box::pin(async move {
            let Some(order) = order else { return Ok(()) };
            self.service.succession.pass_on(order).await.map_err(|reason| {
                ClientError::error(SqlState::CANNOT_CONNECT_NOW, reason)
                    .hint("hawser status shows that process; ending it ends its clients.")
            })
        })
    }

    fn ready(&self) -> Result<(), String> {
        match self.service.shared.phase() {
            Phase::Serving => match *self.service.succession.standing.borrow() {
                Standing::Starting => Err("starting: a predecessor serves".to_owned()),
                Standing::Serving => self.some_server_answers(),
                Standing::Given(pid) => Err(format!("process {pid} has taken this one's place")),
            },
            Phase::Draining => Err("shutting down: open transactions end".to_owned()),
            Phase::Ending => Err("shutting down".to_owned()),
        }
    }

    fn shutdown(&self, how: Shutdown) {
        let shared = self.service.shared.clone();
        match how {
            Shutdown::Immediate => {
                let _ = shared.phase.send(Phase::Ending);
            }
            Shutdown::WaitForServers => {
                shared.phase.send_if_modified(|phase| {
                    let before = *phase;
                    *phase = before.max(Phase::Draining);
                    *phase != before
                });
            }
            Shutdown::WaitForClients => {
                shared.gates.close_door();
                let succession = self.service.succession.clone();
                // (Consoles are not among the clients; those that a predecessor still has are.)
                tokio::spawn(async move {
                    while shared.limits.client_count() > 0 || succession.predecessor().is_some() {
                        tokio::time::sleep(DRAIN_POLL).await;
                    }
                    let _ = shared.phase.send(Phase::Ending);
                });
            }
        }
    }
}

/// The order to pass on for a command; `None`: it concerns one process.
fn order_of(command: &Command) -> Option<Order> {
    Some(match command.clone() {
        Command::Pause(database) => Order::Pause { database },
        Command::Resume(database) => Order::Resume { database },
        Command::Disable(database) => Order::Disable { database },
        Command::Enable(database) => Order::Enable { database },
        Command::Kill(database) => Order::Kill { database },
        Command::Reload => Order::Reload,
        _ => return None,
    })
}

/// The command; `None`: this version does not know it.
fn command_of(order: Order) -> Option<Command> {
    Some(match order {
        Order::Pause { database } => Command::Pause(database),
        Order::Resume { database } => Command::Resume(database),
        Order::Disable { database } => Command::Disable(database),
        Order::Enable { database } => Command::Enable(database),
        Order::Kill { database } => Command::Kill(database),
        Order::Reload => Command::Reload,
        Order::Unknown => return None,
    })
}
