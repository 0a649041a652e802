//! The work of a process that takes the place of another.
//!
//! # Model
//! ```text
//!   find ─► Found ─► (the process starts, with its sockets) ─► ready ─► Taking ─► run
//! ```
//! The predecessor is found as `hawser status` finds it, by a socket beside the control socket. A
//! client that it sends is built here until nothing can fail any more; then the predecessor gets
//! the confirmation, and the client goes into its loop, so that it is never served twice.
//!
//! # Where a client comes to
//! Its process id decides, as for cancel requests: that also works in a process with another number
//! of loops.
//!
//! # Server connections
//! As long as the predecessor has some of a pool, this process opens so many fewer, but at least
//! one; at least half of the pool's size if the predecessor has clients that stay.
//!
//! # Limits
//! `max_client_conn` and the like do not keep out clients of the predecessor. While a database is
//! paused there is no takeover.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser_pooler::ids::LoopId;
use hawser_pooler::lending::Limits;
use hawser_pooler::relay::ToLoop;
use hawser_pooler::relay::succession::{Arrival, MovedClient};
use hawser_pooler::session::options::{Asked, Replication};
use hawser_sys::process::{SocketFamily, effective_uid, socket_family};
use hawser_sys::stream::peer_uid;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::giving::{END_WAIT, SHARED_AFTER};
use super::predecessor::{ANSWER_WAIT, Predecessor};
use super::process::OtherProcess;
use super::record::{Client, NotTaken, Pool};
use super::wire::{FORMAT, Message, Reader, Said, Writer, split};
use super::{Succession, socket_path};
use crate::auth::secret::Secret;
use crate::config::{AuthType, Config};
use crate::dial::Dialler;
use crate::dial::enter::Credentials;
use crate::gates::By;
use crate::listeners::Inherited;
use crate::lock::locked;
use crate::peers::own_process_ids;
use crate::phase::Phase;
use crate::pools::open::Openings;
use crate::pools::{PoolEntry, Pools, Wanted};
use crate::process::{account_to_become, path_of, place};
use crate::shared::Shared;
use crate::shares;
use crate::socket::Conn;
use crate::socket::stream::{Family, Link, Stream};

/// How long etcd has to give a lease and an answer, if limits are shared.
const LEASE_WAIT: Duration = Duration::from_secs(10);
/// How long the servers of needed pools have to report what they do at connect.
const POOLS_WAIT: Duration = Duration::from_secs(5);

/// Why a process cannot take the place of another.
#[derive(Debug, thiserror::Error)]
pub enum NotTakenOver {
    /// No process answers: the sockets that were tried, and the error of the last.
    #[error(
        "no running Hawser answers at {}: {source}. Start one with hawser serve, or give control_socket in [admin] \
         as the running one has it",
        .paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoneAnswers {
        /// The sockets.
        paths: Vec<PathBuf>,
        /// Of the last.
        source: io::Error,
    },
    /// The process belongs to another user.
    #[error("the process that answers at {path} is of user {uid}: run this as the same user")]
    OtherUser {
        /// The socket.
        path: PathBuf,
        /// The user.
        uid: u32,
    },
    /// It refuses to be replaced.
    #[error("the running Hawser is not replaced: {0}")]
    Refused(String),
    /// It listens on none of the configuration's addresses.
    #[error(
        "process {pid}, which answers at {path}, listens on none of this configuration's addresses: it is \
         another service"
    )]
    Another {
        /// Its process id.
        pid: u32,
        /// The socket.
        path: PathBuf,
    },
    /// Limits are shared, and this process has no lease, for this reason: it could not open a
    /// server connection.
    #[error(
        "limits are shared by etcd, which has given this process no lease ({0}): it could open no server \
         connection. The running Hawser goes on; start this again when etcd answers"
    )]
    NoLease(String),
    /// The conversation broke.
    #[error("the running Hawser broke off: {0}. Its log says why")]
    Broken(io::Error),
}

impl NotTakenOver {
    /// Whether no process of this service runs.
    pub fn is_alone(&self) -> bool {
        matches!(self, Self::NoneAnswers { .. } | Self::Another { .. })
    }
}

/// The process whose place this one is about to take.
#[derive(Debug)]
pub struct Found {
    reader: Reader,
    writer: Writer,
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub version: String,
    clients: usize,
    servers: usize,
    pools: Vec<Pool>,
    /// `None`: it cannot be watched, and counts as alive.
    process: Option<Arc<OtherProcess>>,
}

/// Sockets where it may answer.
fn places(config: &Config) -> Vec<PathBuf> {
    let mut sockets = Vec::new();
    sockets.extend(config.start.admin.control_socket_path(path_of));
    if config.start.admin.control_socket.is_none() {
        let user = config.start.process.user.as_deref();
        let account = account_to_become(user).ok().flatten().map(|account| account.uid);
        for uid in [Some(effective_uid()), account].into_iter().flatten() {
            let candidates = place::candidates(uid).into_iter();
            sockets.extend(candidates.map(|directory| directory.join("hawser.sock")));
        }
    }
    let mut paths: Vec<PathBuf> = sockets.iter().map(|socket| socket_path(socket)).collect();
    let mut seen = std::collections::HashSet::new();
    paths.retain(|path| seen.insert(path.clone()));
    paths
}

/// Finds the process that this one replaces, and gets its listening sockets. Within a runtime.
///
/// # Errors
/// See [`NotTakenOver`].
pub async fn find(config: &Config) -> Result<(Found, Inherited), NotTakenOver> {
    let paths = places(config);
    let mut last = io::ErrorKind::NotFound.into();
    for path in &paths {
        match UnixStream::connect(path).await {
            Ok(stream) => return ask(config, path.clone(), stream).await,
            Err(error) => last = error,
        }
    }
    Err(NotTakenOver::NoneAnswers { paths, source: last })
}

async fn ask(
    config: &Config,
    path: PathBuf,
    stream: UnixStream,
) -> Result<(Found, Inherited), NotTakenOver> {
    let uid = peer_uid(&stream).map_err(NotTakenOver::Broken)?;
    let account = account_to_become(config.start.process.user.as_deref()).ok().flatten();
    // (The peer of a connect is the user that called listen(2): root, if a process starts as root
    // and then becomes `user`.)
    if uid != 0 && uid != effective_uid() && Some(uid) != account.map(|account| account.uid) {
        return Err(NotTakenOver::OtherUser { path, uid });
    }
    let (mut reader, writer) = split(stream);
    let hello = Message::Hello {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
    };
    let answer = async {
        writer.send(&hello, &[]).await?;
        reader.next().await
    };
    let answer = tokio::time::timeout(ANSWER_WAIT, answer).await;
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    match answer.map_err(NotTakenOver::Broken)? {
        (Message::Welcome { version, pid, listening, pools, clients, servers }, fds) => {
            if listening.len() != fds.len() {
                let missing = "descriptors were lost: raise the limit of open files (ulimit -n)";
                return Err(NotTakenOver::Broken(io::Error::other(missing)));
            }
            let inherited = Inherited::new(listening, fds);
            let own: Vec<_> = config.listen().iter().map(ToString::to_string).collect();
            if !inherited.serves_any(&own) {
                return Err(NotTakenOver::Another { pid, path });
            }
            tracing::info!(pid, version, "takes the place of a running process");
            let process = OtherProcess::by_id(pid);
            let process = process.inspect_err(|error| {
                tracing::warn!(pid, %error, "the predecessor's process cannot be watched");
            });
            let process = process.ok().map(Arc::new);
            Ok((
                Found { reader, writer, pid, version, clients, servers, pools, process },
                inherited,
            ))
        }
        (Message::Refused { reason }, _) => Err(NotTakenOver::Refused(reason)),
        _ => Err(NotTakenOver::Broken(io::ErrorKind::InvalidData.into())),
    }
}

/// A pool whose clients come.
struct Coming {
    pool: Pool,
    entry: Arc<PoolEntry>,
    /// The predecessor's count of changes of the schema.
    schema_changes: Option<u64>,
}

/// Where the predecessor's clients go.
#[derive(Clone)]
pub struct Taker {
    /// The configuration, the loops and the limits.
    pub shared: Arc<Shared>,
    /// Their pools.
    pub pools: Arc<Pools>,
    /// Asks their servers.
    pub openings: Arc<Openings>,
    /// Sets up their sockets.
    pub dialler: Arc<Dialler>,
    /// Both processes.
    pub succession: Arc<Succession>,
}

impl Taker {
    /// The client's connection, set up like one that was accepted here.
    fn conn(&self, record: &Client, fd: OwnedFd) -> io::Result<Conn> {
        let family = match socket_family(&fd)? {
            SocketFamily::Internet => Family::Tcp,
            SocketFamily::Unix => Family::Unix,
            SocketFamily::Other => return Err(io::ErrorKind::Unsupported.into()),
        };
        let mut link = Link::accepted(fd, family);
        if family == Family::Tcp {
            let config = self.shared.config.load();
            let wanted = config.reload.network.congestion;
            self.dialler.congestion.apply(&mut link, wanted, &"clients");
            if record.is_mptcp() {
                self.dialler.mptcp.accepted(&mut link);
            }
        }
        let (conn, _none_is_early) = Stream::Plain(link).into_conn()?;
        Ok(if record.is_tls() { conn.with_kernels_session() } else { conn })
    }

    /// A pool for the clients of one of the predecessor's pools. `None`: the configuration has none.
    fn make_pool(&self, pool: &Pool) -> Option<Coming> {
        let config = self.shared.config.load_full();
        let found = config.database(&pool.database)?;
        if found.is_shared_by_users()
            || (config.auth_type() == AuthType::Any && found.forced_user.is_none())
        {
            return None;
        }
        let access = self.shared.access.load();
        let credentials = match &found.forced_user {
            Some(forced) => access.credentials_of(forced, &found.name).ok()?,
            None if !matches!(access.secret(&pool.user), None | Some(Secret::None)) => {
                let own = access.credentials(&pool.user);
                own.learn(&pool.credentials);
                own
            }
            None => Arc::new(Credentials::of_record(&pool.credentials)),
        };
        let connect_only: Vec<Asked> = pool
            .connect_only
            .iter()
            .map(|(name, value)| Asked { name: name.0.clone(), value: value.0.clone() })
            .collect();
        let wanted = Wanted {
            database: &pool.database,
            user: &pool.user,
            connect_only: &connect_only,
            replication: Replication::None,
            credentials,
        };
        let entry = self.pools.get_or_create(&self.shared.config, &config, found, &wanted).ok()?;
        if entry.key.user != pool.user {
            return None; // another user is forced upon its clients now
        }
        self.shared.gates.pause_pool(&pool.database, || entry.pool.lock().pause());
        if pool.asks {
            entry.pool.asking().note_question();
        }
        Some(Coming { pool: pool.clone(), entry, schema_changes: None })
    }
}

/// A conversation with the predecessor.
pub struct Taking {
    to: Taker,
    incoming: mpsc::UnboundedReceiver<Said>,
    writer: Writer,
    predecessor: Arc<Predecessor>,
    asks: mpsc::UnboundedReceiver<Message>,
    pools: HashMap<u32, Coming>,
    begun: Instant,
    taken: u64,
    process: Option<Arc<OtherProcess>>,
    /// Clients whose taking could not be confirmed to the predecessor.
    unanswered: Vec<(LoopId, MovedClient<Conn>)>,
}

impl Found {
    /// Announces that this process can serve. When this returns, it does: the predecessor accepts
    /// no more.
    ///
    /// # Errors
    /// The predecessor does not give up its place.
    pub async fn ready(self, to: Taker) -> Result<Taking, NotTakenOver> {
        let Self { reader, writer, pid, version, clients, servers, pools, process } = self;
        if let Err(why) = shares::first_look(&to.shared.limits, LEASE_WAIT).await {
            if servers > 0 || pools.iter().any(|pool| pool.held > 0) {
                return Err(NotTakenOver::NoLease(why));
            }
            tracing::warn!(
                why,
                "takes the place of a process that has no server connection either"
            );
        }
        let (sender, asks) = mpsc::unbounded_channel();
        let predecessor = Arc::new(Predecessor::new(pid, version, clients, sender));
        let mut taking = Taking {
            to,
            incoming: reader.listen(),
            writer,
            predecessor,
            asks,
            pools: HashMap::new(),
            begun: Instant::now(),
            taken: 0,
            process,
            unanswered: Vec::new(),
        };
        let mut asked = JoinSet::new();
        for pool in pools {
            if let Some(entry) = taking.expect(&pool) {
                asked.spawn(ask_server(taking.to.openings.clone(), entry));
            }
        }
        let all_answered = async { while asked.join_next().await.is_some() {} };
        // A client whose server does not answer now is served as without a takeover.
        let _ = tokio::time::timeout(POOLS_WAIT, all_answered).await;
        asked.detach_all();
        let given = async {
            taking.writer.send(&Message::Ready, &[]).await.map_err(NotTakenOver::Broken)?;
            let broken = loop {
                match taking.incoming.recv().await {
                    Some(Ok((Message::Given { disabled }, _))) => return Ok(disabled),
                    Some(Ok((Message::Refused { reason }, _))) => {
                        return Err(NotTakenOver::Refused(reason));
                    }
                    Some(Ok((Message::Unknown, _))) => {}
                    Some(Ok(_)) => break io::ErrorKind::InvalidData.into(),
                    Some(Err(error)) => break error,
                    None => break io::ErrorKind::UnexpectedEof.into(),
                }
            };
            Err(NotTakenOver::Broken(broken))
        };
        let given = tokio::time::timeout(ANSWER_WAIT, given).await;
        let late = |_| Err(NotTakenOver::Broken(io::ErrorKind::TimedOut.into()));
        let disabled = given.unwrap_or_else(late)?;
        for database in disabled {
            // (It is refused if there is a successor.)
            let _ = taking.to.shared.gates.disable(&database, By::Operator);
        }
        let succession = &taking.to.succession;
        *locked(&succession.before) = taking.process.clone();
        *locked(&succession.predecessor) = Some(taking.predecessor.clone());
        Ok(taking)
    }
}

impl Taking {
    /// Takes clients until the predecessor has none.
    pub async fn run(mut self) {
        let Taker { shared, succession, .. } = self.to.clone();
        let mut phase = shared.phase.subscribe();
        let mut ending = false;
        let end = loop {
            let result = tokio::select! {
                message = self.incoming.recv() => match message {
                    Some(Ok((Message::Done, _))) => break Ok(()),
                    Some(Ok((message, fds))) => self.hear(message, fds).await,
                    Some(Err(error)) => Err(error),
                    None => Err(io::ErrorKind::UnexpectedEof.into()),
                },
                Some(message) = self.asks.recv() => self.writer.send(&message, &[]).await,
                () = is_ordered_to_end(&mut phase), if !ending => {
                    ending = true;
                    self.writer.send(&Message::Ending, &[]).await
                }
            };
            if let Err(error) = result {
                break Err(error);
            }
        };
        match &end {
            Ok(()) => *locked(&succession.before) = None,
            Err(error) => self.take_the_rest(error).await,
        }
        self.writer.end();
        self.asks.close();
        self.predecessor.forget_all();
        match (&end, self.process.clone().filter(|process| !process.has_ended())) {
            // The predecessor goes on with its clients.
            (Err(_), Some(process)) => {
                let succession = succession.clone();
                tokio::spawn(async move {
                    process.ended().await;
                    *locked(&succession.predecessor) = None;
                });
            }
            _ => *locked(&succession.predecessor) = None,
        }
        for coming in self.pools.values() {
            limit(&shared, &coming.entry, 0, Least::One);
        }
        let (pid, clients) = (self.predecessor.pid, self.taken);
        if end.is_ok() {
            tracing::info!(pid, clients, "the predecessor has given all clients, and ends");
        }
    }

    /// The conversation has broken off. If the predecessor's process has ended, the clients that it
    /// had sent by then are this process's; if it lives, it goes on with those without an answer.
    async fn take_the_rest(&mut self, error: &io::Error) {
        let (pid, process) = (self.predecessor.pid, self.process.clone());
        let ended = match &process {
            Some(process) => tokio::time::timeout(END_WAIT, process.ended()).await.is_ok(),
            None => false,
        };
        if !ended {
            self.unanswered.clear();
            let clients = self.taken;
            tracing::error!(
                pid, clients, %error,
                "the conversation with the predecessor has broken off, and it lives: it serves the clients \
                 that it has until they leave"
            );
            return;
        }
        for (home, client) in std::mem::take(&mut self.unanswered) {
            self.put(home, client);
        }
        while let Some(said) = self.incoming.recv().await {
            match said {
                Ok((Message::Client { pool, record, .. }, fds)) => {
                    match self.make(pool, &record, fds.into_iter().next()) {
                        Ok((home, client)) => self.put(home, client),
                        Err(reason) => {
                            tracing::warn!(reason, "a client of the predecessor is lost");
                        }
                    }
                }
                Ok((Message::Pool(pool), _)) => self.expect_now(&pool),
                _ => {}
            }
        }
        tracing::warn!(pid, clients = self.taken, %error, "the predecessor has ended");
    }

    /// A client belongs to this process from now on.
    fn put(&mut self, home: LoopId, client: MovedClient<Conn>) {
        self.taken += 1;
        let arrival = Arrival::FromPredecessor;
        self.to.shared.loops.send(home, ToLoop::TakeClient(Box::new(client), arrival));
    }

    /// Makes a pool whose clients will come, if there can be one. Its server has not been asked anything yet.
    fn expect(&mut self, pool: &Pool) -> Option<Arc<PoolEntry>> {
        let number = pool.number;
        let coming = self.to.make_pool(pool)?;
        let entry = coming.entry.clone();
        self.pools.insert(number, coming);
        self.share(number);
        Some(entry)
    }

    /// The same while clients of other pools come, too: a server that does not answer delays none
    /// of them.
    fn expect_now(&mut self, pool: &Pool) {
        if let Some(entry) = self.expect(pool) {
            tokio::spawn(ask_server(self.to.openings.clone(), entry));
        }
    }

    async fn hear(&mut self, message: Message, fds: Vec<OwnedFd>) -> io::Result<()> {
        match message {
            Message::Pool(pool) => {
                if let Some(known) = self.pools.get_mut(&pool.number) {
                    known.pool.held = pool.held;
                    self.share(pool.number);
                } else {
                    self.expect_now(&pool);
                }
            }
            Message::Client { number, pool, record } => {
                let fd = fds.into_iter().next();
                self.take(number, pool, &record, fd).await?;
            }
            Message::Cancelled { number } => {
                self.predecessor.answered(number, None);
            }
            Message::Obeyed { number, error } => self.predecessor.answered(number, error),
            Message::Held { pool, count } => {
                if let Some(known) = self.pools.get_mut(&pool) {
                    known.pool.held = count;
                }
                self.share(pool);
            }
            Message::Rest { clients } => {
                self.predecessor.has(clients);
                // A reload has reset them to the configured bounds.
                self.pools.keys().for_each(|pool| self.share(*pool));
            }
            _ => {}
        }
        Ok(())
    }

    /// Reduces a pool by the server connections that the predecessor has.
    fn share(&self, pool: u32) {
        let least = match self.begun.elapsed() < SHARED_AFTER {
            true => Least::One,
            false => Least::Half,
        };
        if let Some(coming) = self.pools.get(&pool) {
            limit(&self.to.shared, &coming.entry, coming.pool.held, least);
        }
    }

    /// Takes a client, or refuses it with the reason.
    async fn take(
        &mut self,
        number: u64,
        pool: u32,
        record: &Client,
        fd: Option<OwnedFd>,
    ) -> io::Result<()> {
        match self.make(pool, record, fd) {
            Ok((home, client)) => {
                // First: from here on the predecessor does not touch the client.
                if let Err(error) = self.writer.send(&Message::Taken { number }, &[]).await {
                    self.unanswered.push((home, client));
                    return Err(error);
                }
                self.put(home, client);
                Ok(())
            }
            Err(reason) => self.writer.send(&Message::Kept { number, reason }, &[]).await,
        }
    }

    /// The client that a record describes, and its loop.
    fn make(
        &mut self,
        pool: u32,
        record: &Client,
        fd: Option<OwnedFd>,
    ) -> Result<(LoopId, MovedClient<Conn>), String> {
        // A pool without a client for a while is forgotten.
        if let Some(coming) = self.pools.get(&pool)
            && self.to.pools.by_id(coming.entry.pool.id).is_none()
        {
            let known = coming.pool.clone();
            self.expect_now(&known);
        }
        let shared = &self.to.shared;
        let coming = self
            .pools
            .get_mut(&pool)
            .ok_or("its database and user are not in this configuration")?;
        let entry = &coming.entry;
        let moved = record.to_record(shared.loops.now());
        let moved = moved.map_err(|error: NotTaken| error.to_string())?;
        if moved.mode != *locked(&entry.mode) {
            return Err("its database has another pool_mode in this configuration".to_owned());
        }
        let config = shared.config.load();
        let count = u16::try_from(shared.loops.count()).unwrap_or(u16::MAX);
        let own = own_process_ids(config.start.process.peer_id, 0);
        let home = own.loop_of(moved.process, count);
        let home = home.ok_or("its process id is not one of this pooler's (peer_id)")?;
        let fd = fd.ok_or("it came without its socket")?;
        let socket = self.to.conn(record, fd).map_err(|error| error.to_string())?;
        // After a change that the predecessor knows, no older statement may be used.
        if coming.schema_changes != Some(moved.schema_changes) {
            coming.schema_changes = Some(moved.schema_changes);
            entry.pool.schema_changed();
        }
        let user = record.user().unwrap_or(&entry.key.user);
        let permit = (
            shared.limits.take_over(&entry.key.database, user),
            entry.enter(),
            shared.loops.seat_at(home),
        );
        Ok((
            home,
            MovedClient {
                socket,
                pool: entry.pool.clone(),
                permit: Box::new(permit),
                record: moved,
            },
        ))
    }
}

async fn is_ordered_to_end(phase: &mut watch::Receiver<Phase>) {
    let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
}

/// As long as the predecessor has `held` server connections of a pool, this process opens fewer,
/// but at least `least`.
fn limit(shared: &Shared, entry: &PoolEntry, held: u32, least: Least) {
    let limits = entry.pool.settings().limits.clone();
    let floor = match least {
        Least::One => limits.size.min(1),
        Least::Half => limits.size.div_ceil(2),
    };
    let size = limits.size.saturating_sub(held).max(floor);
    entry.set_limits(shared, Limits { size, min_size: limits.min_size.min(size), ..limits });
}

/// The minimum of a pool here, whatever the predecessor has.
#[derive(Clone, Copy)]
enum Least {
    /// One server connection: the rest comes soon.
    One,
    /// Half of its size: the predecessor has clients that stay, and uses at most the other half.
    Half,
}

/// Asks a pool's server for its parameters and the census of functions, which arriving clients
/// need.
async fn ask_server(openings: Arc<Openings>, entry: Arc<PoolEntry>) {
    let (database, user) = (&entry.key.database, &entry.key.user);
    if openings.server_parameters(&entry, user).await.is_err() {
        tracing::warn!(
            database,
            user,
            "its server does not answer yet: clients that come wait for it"
        );
    }
}
