//! Listening sockets, and accepting from them.
//!
//! # Model
//! ```text
//!   accept(2) ─► first poll of the login ─► it has ended: the client is the loop's
//!   on a loop                            └► it waits: a task of the control side goes on with it
//! ```
//!
//! # Invariants
//! * a lack of descriptors or memory never causes a spin: the listener pauses for [`ACCEPT_PAUSE`],
//!   and continues as soon as there are some again; a login that waits for its client gives up its
//!   own
//! * a loop begins at most [`LOGINS_A_LOOPS_TURN`] logins of one event before it returns to queries
//! * a process that a successor has replaced accepts nothing
//! * a unix socket's file has its mode and owner before the first client can connect

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use hawser_pooler::ids::LoopId;

use hawser_sys::listen::{
    Passed, SocketFile, abstract_name, accept_tcp, accept_unix, is_of_one_connection,
    listen_abstract, listen_tcp, listen_unix, passed_descriptors, set_backlog, set_defer_accept,
};
use hawser_sys::process::{self, SocketFamily};
use hawser_sys::stream::{
    LocalAddress, TcpDefaults, TcpOptions, local_address, peer_uid, set_inherited_tcp_options,
    set_tcp_options,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::origin::Origin;
use super::{Entrance, Place};
use crate::config::{ListenAddress, ListenSettings};
use crate::dial::Dialler;
use crate::limits::ConnectionPermit;
use crate::listeners::{Purpose, SocketPath};
use crate::lock::locked;
use crate::mptcp::usage;
use crate::phase::Phase;
use crate::reactor::{Accept, Listeners};
use crate::socket::options::tcp_options;
use crate::socket::stream::{Family, Link};
use crate::takeover::Succession;

/// How long a listener waits after accept(2) has failed.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// The same, if a login that waits for its client gives its descriptor up.
const ACCEPT_RETRY: Duration = Duration::from_millis(1);
/// Logins that begin before the loops are woken, once for all of them: at 20 us each, the first
/// waits for less than a millisecond.
const LOGINS_A_TURN: usize = 32;
/// The same of a loop, whose queries wait meanwhile.
const LOGINS_A_LOOPS_TURN: usize = 8;
/// When the control side also checks for waiting connections, after a loop has begun to watch a
/// listener: the predecessor may have been woken for a connection (EPOLLEXCLUSIVE wakes only one),
/// and no longer accepts.
const LOOKS_AT_FIRST: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1500)];
/// How long the kernel holds back a client that says nothing (`tcp_defer_accept`): the minimum, so
/// that `client_login_timeout` soon applies to it.
const DEFER_ACCEPT: Duration = Duration::from_secs(1);

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A system call failed.
    #[error("could not listen on {address}: {source}")]
    Bind {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Another process listens on the unix socket, or the file is no socket.
    #[error("\"{0}\" is in use by another process, or is no socket")]
    Taken(PathBuf),
    /// The owner of unix sockets is no user of this host.
    #[error("there is no user \"{0}\" on this host")]
    NoUser(String),
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    purpose: Purpose,
    /// The file of a unix socket, which goes first.
    path: SocketPath,
    socket: Socket,
}

/// It does not block.
#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Socket {
    /// The next connection, which the runtime does not know yet: see [`Link::accepted`].
    fn accept(&self) -> io::Result<(Link, Origin)> {
        match self {
            Self::Tcp(listener) => {
                let (fd, address) = accept_tcp(listener)?;
                Ok((Link::accepted(fd, Family::Tcp), Origin::Tcp(address)))
            }
            Self::Unix(listener) => {
                let fd = accept_unix(listener)?;
                let uid = peer_uid(&fd).ok();
                Ok((Link::accepted(fd, Family::Unix), Origin::Unix { uid }))
            }
        }
    }

    /// The port; for a unix socket, the one in its name.
    fn port(&self) -> Option<u16> {
        match local_address(self).ok()? {
            LocalAddress::Internet(own) => Some(own.port()),
            LocalAddress::Unix(path) => path?.extension()?.to_str()?.parse().ok(),
        }
    }
}

impl Listener {
    /// What it is, and a duplicate, for a successor.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn to_give(&self) -> io::Result<(Purpose, OwnedFd)> {
        Ok((self.purpose.clone(), self.socket.as_fd().try_clone_to_owned()?))
    }

    /// The predecessor has given it: its file is this process's to remove.
    pub fn is_given(&mut self) {
        self.path.is_given();
    }
}

/// Opens all sockets of the configuration, or takes those that a predecessor listens on, or that the service
/// manager has passed. Within a runtime.
///
/// # Errors
/// See [`ListenError`].
pub fn open_all(
    settings: &ListenSettings,
    succession: &Succession,
) -> Result<Vec<Listener>, ListenError> {
    let passed = passed(succession)?;
    if !passed.is_empty() {
        tracing::info!(
            count = passed.len(),
            "listens on the sockets that the service manager has passed"
        );
        return Ok(passed);
    }
    let mut listeners = Vec::new();
    for address in &settings.address {
        match open(address, settings, succession) {
            Ok(listener) => {
                tracing::info!(%address, "listening");
                listeners.push(listener);
            }
            // `*` asks for both families if the host has both.
            Err(ListenError::Bind { source, .. })
                if is_any_v6(address)
                    && source.raw_os_error() == Some(97 /* EAFNOSUPPORT */)
                    && settings.address.len() > 1 =>
            {
                tracing::info!(%address, "this host has no IPv6: continuing without it");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(listeners)
}

fn is_any_v6(address: &ListenAddress) -> bool {
    matches!(address, ListenAddress::Tcp(SocketAddr::V6(v6)) if v6.ip().is_unspecified())
}

fn passed(succession: &Succession) -> Result<Vec<Listener>, ListenError> {
    let inherited = succession.inherit_passed().into_iter();
    let inherited: Result<Vec<Listener>, ListenError> = inherited
        .map(|(purpose, fd)| {
            let address = "a socket that the service manager has passed".to_owned();
            from_fd(purpose, fd, SocketPath::Kept)
                .map_err(|source| ListenError::Bind { address, source })
        })
        .collect();
    let inherited = inherited?;
    if !inherited.is_empty() {
        return Ok(inherited);
    }
    let passed = passed_descriptors(std::process::id(), |name| std::env::var(name).ok())
        .map_err(|source| ListenError::Bind { address: "passed sockets".to_owned(), source })?;
    let listener = |passed: Passed| {
        let address = format!("the passed socket \"{}\"", passed.name);
        let purpose = Purpose::Passed { name: passed.name };
        // Its file is the service manager's, who keeps the socket for the next process.
        from_fd(purpose, passed.fd, SocketPath::Kept)
            .map_err(|source| ListenError::Bind { address, source })
    };
    passed.into_iter().map(listener).collect()
}

fn from_fd(purpose: Purpose, fd: OwnedFd, path: SocketPath) -> io::Result<Listener> {
    let socket = match process::socket_family(&fd)? {
        SocketFamily::Internet => {
            let listener = TcpListener::from(fd);
            listener.set_nonblocking(true)?;
            Socket::Tcp(listener)
        }
        SocketFamily::Unix => {
            let listener = UnixListener::from(fd);
            listener.set_nonblocking(true)?;
            Socket::Unix(listener)
        }
        SocketFamily::Other => {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "neither TCP nor unix"));
        }
    };
    Ok(Listener { purpose, path, socket })
}

fn open(
    address: &ListenAddress,
    settings: &ListenSettings,
    succession: &Succession,
) -> Result<Listener, ListenError> {
    let failed = |source| ListenError::Bind { address: address.to_string(), source };
    let purpose = Purpose::Clients { address: address.to_string() };
    let backlog = i32::try_from(settings.backlog).unwrap_or(i32::MAX);
    if let Some(fd) = succession.inherit(&purpose) {
        set_backlog(&fd, backlog).map_err(failed)?;
        let path = match address {
            ListenAddress::Unix(path) if abstract_name(path).is_some() => SocketPath::Kept,
            ListenAddress::Unix(path) => {
                SocketPath::Predecessors(path.clone(), socket_file(settings)?)
            }
            ListenAddress::Tcp(_) => {
                let wait = if settings.tcp_defer_accept { DEFER_ACCEPT } else { Duration::ZERO };
                if !settings.mptcp {
                    set_defer_accept(&fd, wait).map_err(failed)?;
                }
                SocketPath::Kept
            }
        };
        return from_fd(purpose, fd, path).map_err(failed);
    }
    match address {
        ListenAddress::Tcp(address) => {
            let listener = match settings.mptcp {
                true => usage::listen(*address, backlog).map_err(failed)?,
                false => None,
            };
            // Not for MPTCP: a subflow joins by a bare ACK, the third of its handshake, and that is what
            // the kernel then drops, so that no connection would come to have a second subflow.
            let defers = settings.tcp_defer_accept && listener.is_none();
            let listener = match listener {
                Some(listener) => listener,
                None => listen_tcp(*address, backlog).map_err(failed)?,
            };
            if defers {
                set_defer_accept(&listener, DEFER_ACCEPT).map_err(failed)?;
            }
            Ok(Listener { purpose, path: SocketPath::Kept, socket: Socket::Tcp(listener) })
        }
        ListenAddress::Unix(path) => {
            let unless_taken = |source: io::Error| match source.kind() {
                io::ErrorKind::AddrInUse => ListenError::Taken(path.clone()),
                _ => failed(source),
            };
            let (listener, path) = match abstract_name(path) {
                Some(name) => {
                    (listen_abstract(name, backlog).map_err(unless_taken)?, SocketPath::Kept)
                }
                None => {
                    let file = socket_file(settings)?;
                    let listened = listen_unix(path, file, backlog).map_err(unless_taken)?;
                    (listened.0, SocketPath::Own(listened.1))
                }
            };
            Ok(Listener { purpose, path, socket: Socket::Unix(listener) })
        }
    }
}

/// Who may connect to unix sockets.
fn socket_file(settings: &ListenSettings) -> Result<SocketFile, ListenError> {
    fn id(
        name: Option<&String>,
        look_up: impl Fn(&str) -> io::Result<Option<u32>>,
    ) -> Result<Option<u32>, ListenError> {
        let Some(name) = name else { return Ok(None) };
        match look_up(name) {
            Ok(Some(id)) => Ok(Some(id)),
            Ok(None) => Err(ListenError::NoUser(name.clone())),
            Err(source) => Err(ListenError::Bind { address: format!("\"{name}\""), source }),
        }
    }
    let owner = |name: &str| Ok(process::account_by_name(name)?.map(|account| account.uid));
    Ok(SocketFile {
        mode: Some(settings.unix_socket_mode.0),
        owner: id(settings.unix_socket_owner.as_ref(), owner)?,
        group: id(settings.unix_socket_group.as_ref(), process::group_by_name)?,
    })
}

/// What accepts, and where clients go.
#[derive(Clone)]
pub struct Inside {
    /// Begins their logins.
    pub entrance: Arc<Entrance>,
    /// Sets up their sockets.
    pub dialler: Arc<Dialler>,
    /// Whether clients come here.
    pub succession: Arc<Succession>,
}

/// Accepts clients until the process begins to end, except while a successor does, on the loops' own
/// threads.
pub async fn accept(at: Inside, listener: Listener, loops: Listeners) {
    let succession = at.succession.clone();
    let mut phase = at.entrance.shared.phase.subscribe();
    let mut standing = succession.standing.subscribe();
    let Listener { path, socket, .. } = listener;
    let acceptor = Arc::new(Acceptor::new(at, socket, super::serve));
    loop {
        let accepted = async {
            loop {
                let failed = acceptor.clone().accepted_by(&loops).await;
                acceptor.pause(&failed).await;
            }
        };
        tokio::select! {
            () = accepted, if succession.serves() => {}
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => {
                if succession.is_given() {
                    path.leave();
                }
                return;
            }
            _ = standing.changed() => {}
        }
    }
}

/// Polls a login for the first time. `false`: it waits, and is polled again elsewhere.
///
/// A panic ends only this login, as it would in a task.
fn ends_at_once<F: Future<Output = ()>>(login: &mut Room<F>) -> bool {
    let Some(future) = login.as_mut().as_pin_mut() else { return true };
    let mut context = Context::from_waker(Waker::noop());
    // Its contents are dropped unpolled, as with a task.
    let polled = catch_unwind(AssertUnwindSafe(|| future.poll(&mut context).is_ready()));
    let ended = polled.unwrap_or(true);
    if ended {
        login.set(None);
    }
    ended
}

async fn go_on<F: Future<Output = ()>>(mut login: Room<F>) {
    if let Some(login) = login.as_mut().as_pin_mut() {
        login.await;
    }
}

/// The next thing from a listener.
enum Next {
    Nobody,
    /// A connection that is closed already.
    Closed,
    Client(Link, Origin, ConnectionPermit),
}

/// How a login begins: [`super::serve`].
type Begin<F> = fn(Arc<Entrance>, Link, Place, ConnectionPermit) -> F;
/// Memory for a login, whose future is several kilobytes long.
type Room<F> = Pin<Box<Option<F>>>;

/// A listener, and what is known of it. Several loops accept from it at the same time.
struct Acceptor<F> {
    at: Inside,
    begin: Begin<F>,
    /// Memory of logins that have ended at once: at most one for each accepting thread.
    rooms: Mutex<Vec<Room<F>>>,
    /// Where waiting logins continue.
    control: Handle,
    socket: Socket,
    port: Option<u16>,
    /// Its connections may be MPTCP.
    mptcp: bool,
    options: Mutex<Inherited>,
    complained: AtomicBool,
    /// Why a loop could not accept: none tries again until that has been dealt with.
    failed: Mutex<Option<io::Error>>,
    failure: Notify,
}

/// The options of connections that a TCP listener gives to them.
#[derive(Default)]
struct Inherited {
    defaults: Option<TcpDefaults>,
    set: Option<TcpOptions>,
    /// How often they have been set.
    times_set: u64,
    /// Connections that came before may still wait to be accepted: they have others.
    older: bool,
}

impl Inherited {
    /// Sets the wanted options, if they differ from before.
    fn want(&mut self, socket: &Socket, wanted: &TcpOptions) {
        let (Socket::Tcp(listener), Some(defaults)) = (socket, &self.defaults) else { return };
        if self.set.as_ref() != Some(wanted) {
            let set = set_inherited_tcp_options(listener, wanted, defaults);
            self.set = set.is_ok().then_some(*wanted);
            self.times_set += 1;
            self.older = true;
        }
    }

    /// Whether a connection that has just been accepted has them all.
    fn has(&self, wanted: &TcpOptions) -> bool {
        wanted.buffer_bytes == 0 && !self.older && self.set.as_ref() == Some(wanted)
    }

    /// No connection waits that came before the options were set this many times.
    fn none_waits(&mut self, times_set: u64) {
        self.older &= self.times_set != times_set;
    }
}

impl<F: Future<Output = ()> + Send + 'static> Acceptor<F> {
    fn new(at: Inside, socket: Socket, begin: Begin<F>) -> Self {
        let mptcp = at.entrance.shared.config.load().start.listen.mptcp;
        let mut options = Inherited::default();
        match &socket {
            // Connections of MPTCP have options of their own (`mptcp_sockopt_sync_locked`).
            Socket::Tcp(listener) if mptcp => at.dialler.mptcp.listens(listener),
            Socket::Tcp(listener) => options.defaults = TcpDefaults::of(listener).ok(),
            Socket::Unix(_) => {}
        }
        Self {
            at,
            begin,
            rooms: Mutex::default(),
            control: Handle::current(),
            port: socket.port(),
            socket,
            mptcp,
            options: Mutex::new(options),
            complained: AtomicBool::new(false),
            failed: Mutex::default(),
            failure: Notify::new(),
        }
    }

    /// Lets the loops accept, until accept(2) fails.
    async fn accepted_by(self: Arc<Self>, loops: &Listeners) -> io::Error {
        let _watched = match loops.watch(self.clone()) {
            Ok(watched) => watched,
            Err(error) => return error,
        };
        let mut looks = LOOKS_AT_FIRST.into_iter();
        loop {
            let look = looks.next();
            tokio::select! {
                () = self.failure.notified() => {
                    if let Some(error) = locked(&self.failed).take() {
                        return error;
                    }
                }
                () = tokio::time::sleep(look.unwrap_or_default()), if look.is_some() => {
                    if let Err(error) = self.begin_logins(None, LOGINS_A_TURN) {
                        return error;
                    }
                }
            }
        }
    }

    /// Accepts at most `most` connections and begins their logins. `false`: no more of them wait.
    fn begin_logins(&self, home: Option<LoopId>, most: usize) -> io::Result<bool> {
        let loops = &self.at.entrance.shared.loops;
        // A login whose packets are there, and that needs no proof, ends at its first poll: it
        // needs no task, and the next one reuses its memory.
        let mut login = locked(&self.rooms).pop().unwrap_or_else(|| Box::pin(None));
        let mut more = Ok(true);
        for _ in 0..most {
            let (link, origin, permit) = match self.next() {
                Ok(Next::Nobody) => {
                    more = Ok(false);
                    break;
                }
                Ok(Next::Closed) => continue,
                Ok(Next::Client(link, origin, permit)) => (link, origin, permit),
                Err(error) => {
                    more = Err(error);
                    break;
                }
            };
            let place = Place { origin, port: self.port, near: home };
            login.set(Some((self.begin)(self.at.entrance.clone(), link, place, permit)));
            if !ends_at_once(&mut login) {
                let login = std::mem::replace(&mut login, Box::pin(None));
                let loops = loops.clone();
                self.control.spawn(async move {
                    go_on(login).await;
                    loops.wake();
                });
            }
        }
        locked(&self.rooms).push(login);
        // Once for all of them.
        loops.wake();
        more
    }

    /// Accepts a connection, if one waits.
    fn next(&self) -> io::Result<Next> {
        let Inside { entrance, dialler, .. } = &self.at;
        let shared = &entrance.shared;
        let config = shared.config.load();
        let wanted = tcp_options(&config.reload.network);
        let (has_options, times_set) = {
            let mut options = locked(&self.options);
            options.want(&self.socket, &wanted);
            (options.has(&wanted), options.times_set)
        };
        let (mut link, origin) = match self.socket.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                locked(&self.options).none_waits(times_set);
                return Ok(Next::Nobody);
            }
            Err(error) if is_of_one_connection(&error) => return Ok(Next::Closed),
            Err(error) => return Err(error),
        };
        if self.complained.load(Ordering::Relaxed) && self.complained.swap(false, Ordering::Relaxed)
        {
            tracing::info!("connections can be accepted again");
        }
        if let Origin::Tcp(_) = origin
            && !has_options
            && let Err(error) = set_tcp_options(link.as_fd(), &wanted)
        {
            tracing::debug!(%error, "a connection ended before it began");
            return Ok(Next::Closed);
        }
        // Beyond the number that gets an error: it is closed.
        let max_client_conn = config.reload.limits.max_client_conn;
        let permit = shared.limits.connect(max_client_conn, origin.network());
        let Some(permit) = permit else { return Ok(Next::Closed) };
        shared.tally.connections.increment();
        if let Origin::Tcp(client) = origin {
            dialler.bypass.accepted(&mut link, client.ip());
            let wanted = config.reload.network.congestion;
            dialler.congestion.apply(&mut link, wanted, &"clients");
            if self.mptcp {
                dialler.mptcp.accepted(&mut link);
            }
        }
        Ok(Next::Client(link, origin, permit))
    }

    /// Waits after accept(2) has failed.
    async fn pause(&self, error: &io::Error) {
        let shared = &self.at.entrance.shared;
        shared.tally.accept_failures.increment();
        if !self.complained.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "no connection can be accepted");
        }
        let pause = if shared.limits.free_descriptor() { ACCEPT_RETRY } else { ACCEPT_PAUSE };
        tokio::time::sleep(pause).await;
    }
}

impl<F: Future<Output = ()> + Send + 'static> Accept for Acceptor<F> {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn accept(&self, home: LoopId) {
        // A process that is giving up its place, or has run out of descriptors, is about to end the
        // watch.
        if !self.at.succession.serves() || locked(&self.failed).is_some() {
            return;
        }
        let _runtime = self.control.enter();
        if let Err(error) = self.begin_logins(Some(home), LOGINS_A_LOOPS_TURN) {
            *locked(&self.failed) = Some(error);
            self.failure.notify_one();
        }
    }
}
