//! What comes to a loop from outside: new connections, lent backends, orders of the operator.

use core::any::Any;

use super::about::{CancelKey, ClientAbout, ClientSecret, ClientState, PoolMode};
use super::backend::PoolRef;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::backend::{Backend, BackendSeed};
use super::socket::Socket;
use super::succession::{Arrival, MovedClient};
use crate::ids::{BackendId, ClientId, LoopId, PoolId, Slot};
use crate::listen::{Ask, FromHub};
use crate::session::part::PartSet;
use crate::session::report::ReportError;
use crate::session::settings::Settings;
use crate::time::Time;
use crate::wire::error::ClientError;

/// A client that has logged in, on its way to the loop that serves it from now on.
pub struct NewClient<S: Socket> {
    /// Its connection.
    pub socket: S,
    /// The pool it works with.
    pub pool: PoolRef<S>,
    /// When it gives its backend back.
    pub mode: PoolMode,
    /// Its start values that differ from the server's own; RESET goes back to them.
    pub start: Settings,
    /// AuthenticationOk and ParameterStatus messages, not yet sent. BackendKeyData and
    /// ReadyForQuery are the engine's to send.
    pub greeting: Vec<u8>,
    /// For its cancel requests.
    pub secret: ClientSecret,
    /// Who it is.
    pub about: Box<ClientAbout>,
    /// Frees its place under the limits when it is dropped.
    pub permit: S::Permit,
    /// Bytes that came after the login.
    pub early: Vec<u8>,
    /// A replication connection: its backend was opened for it alone and serves nobody else.
    pub exclusive: bool,
}

/// A message to a loop.
pub enum ToLoop<S: Socket> {
    /// A client that has logged in.
    Adopt(Box<NewClient<S>>),
    /// A backend for a client of this loop; no loop watches it.
    Lend {
        /// Who is to get it.
        client: ClientId,
        /// The backend.
        backend: Box<Backend<S>>,
    },
    /// A backend that was opened for a pool.
    Opened(Box<BackendSeed<S>>),
    /// A backend could not be opened. `fatal`: the server refused in a way that waiting does
    /// not mend (wrong password, no such database): clients that wait are told at once.
    OpenFailed {
        /// For which pool.
        pool: PoolRef<S>,
        /// Why.
        error: ClientError,
        /// Whether waiting clients are told now.
        fatal: bool,
        /// How long no further attempt is made.
        retry_after: Duration,
    },
    /// Clients that wait for this pool are told that they wait in vain.
    Refuse {
        /// The pool.
        pool: PoolRef<S>,
        /// What they are told.
        error: ClientError,
        /// Those that have waited so long.
        waited: Duration,
    },
    /// A loop asks the hub of a pool, which is here, for something: see [`crate::listen`].
    ToHub {
        /// The pool.
        pool: PoolRef<S>,
        /// Which loop.
        from: LoopId,
        /// For what.
        ask: Ask,
    },
    /// The hub of a pool has something to say.
    FromHub {
        /// The pool.
        pool: PoolRef<S>,
        /// What.
        said: FromHub,
    },
    /// A connection that is to listen for a pool, whose hub is here.
    ListenerOpened(Box<BackendSeed<S>>),
    /// It could not be opened.
    ListenerFailed {
        /// For which pool.
        pool: PoolRef<S>,
        /// Why.
        error: ClientError,
    },
    /// More backends may be opened, or waiters have become due: look at the pool.
    Poke(PoolRef<S>),
    /// A loop has taken an idle backend that was resident here.
    Departed(Slot),
    /// A client asks for its query to be cancelled.
    Cancel {
        /// Process id that the request names.
        process: u32,
        /// Key that the request carries.
        key: CancelKey,
    },
    /// The idle connections to a database have been closed for a statement of this client's.
    Vacated {
        /// Who.
        client: ClientId,
        /// None is opened before it is dropped.
        kept: Arc<dyn Any + Send + Sync>,
    },
    /// The connection that listens for this pool ends if nobody listens.
    EndUnusedListener(PoolRef<S>),
    /// Cancels a client's query at the word of somebody who may (pg_cancel_backend).
    CancelClient(ClientId),
    /// The server has dealt with a cancel request for a backend resident here.
    CancelDone(Slot),
    /// A cancel request for the backend in this place was sent, and the server has not closed that
    /// connection in time: it may still deal with it.
    CancelUnanswered(Slot),
    /// Ends a client's connection (KILL_CLIENT, a dropped database).
    Kill {
        /// Who.
        client: ClientId,
        /// What it is told.
        error: ClientError,
    },
    /// Ends all clients (of one pool, or of all) and closes their backends.
    KillAll {
        /// Of this pool only.
        pool: Option<PoolRef<S>>,
        /// What they are told.
        error: ClientError,
    },
    /// So many more clients may be on their way to the successor: those at rest are given to it
    /// ([`super::Host::give`]).
    GiveClients(usize),
    /// There is no successor any more: clients stay.
    KeepClients,
    /// A client that was another process's, or comes back from the way there.
    TakeClient(Box<MovedClient<S>>, Arrival),
    /// No new transactions: clients are told goodbye as soon as they are in none.
    Drain(ClientError),
    /// What is here, for SHOW.
    Snapshot(Scope, Box<dyn FnOnce(Snapshot) + Send>),
}

impl<S: Socket> fmt::Debug for ToLoop<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Adopt(_) => "Adopt",
            Self::Lend { .. } => "Lend",
            Self::Opened(_) => "Opened",
            Self::OpenFailed { .. } => "OpenFailed",
            Self::Refuse { .. } => "Refuse",
            Self::ToHub { .. } => "ToHub",
            Self::FromHub { .. } => "FromHub",
            Self::ListenerOpened(_) => "ListenerOpened",
            Self::ListenerFailed { .. } => "ListenerFailed",
            Self::Poke(_) => "Poke",
            Self::Departed(_) => "Departed",
            Self::Cancel { .. } => "Cancel",
            Self::Vacated { .. } => "Vacated",
            Self::EndUnusedListener(_) => "EndUnusedListener",
            Self::CancelClient(_) => "CancelClient",
            Self::CancelDone(_) => "CancelDone",
            Self::CancelUnanswered(_) => "CancelUnanswered",
            Self::Kill { .. } => "Kill",
            Self::KillAll { .. } => "KillAll",
            Self::GiveClients(_) => "GiveClients",
            Self::KeepClients => "KeepClients",
            Self::TakeClient(..) => "TakeClient",
            Self::Drain(_) => "Drain",
            Self::Snapshot(..) => "Snapshot",
        };
        f.write_str(name)
    }
}

/// How much of a loop is looked at for a [`Snapshot`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// Its backends: few.
    Backends,
    /// Its clients too, and our ends of those over MPTCP.
    Clients,
    /// And the near ends of all connections: a system call for each.
    Addresses,
}

/// What a loop holds at a moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Its clients.
    pub clients: Vec<ClientRow>,
    /// The backends lent to them (idle ones are in their pools), and what listens for them.
    pub backends: Vec<BackendRow>,
}

/// A client in SHOW CLIENTS.
#[derive(Clone, Debug)]
pub struct ClientRow {
    /// Its id.
    pub id: ClientId,
    /// Its pool.
    pub pool: PoolId,
    /// Our end of its connection.
    pub local: Option<(String, u16)>,
    /// Database that it asked for.
    pub database: String,
    /// Its user.
    pub user: String,
    /// What it is doing.
    pub state: ClientState,
    /// Who it is.
    pub about: ClientAbout,
    /// Its application_name.
    pub application_name: String,
    /// When it last sent something.
    pub last_request: Time,
    /// How long it has waited, in microseconds.
    pub wait_us: u64,
    /// The backend it has.
    pub backend: Option<BackendId>,
    /// Why it keeps its backend between transactions.
    pub pins: PartSet,
    /// Since when it has kept it between transactions.
    pub pinned_since: Option<Time>,
    /// Channels that are listened on for it by another connection than its backend.
    pub channels: usize,
    /// Prepared statements that it has named.
    pub statements: usize,
    /// Process id in its BackendKeyData.
    pub process: u32,
    /// Bytes from it that are kept because they cannot be passed on yet.
    pub kept_in: usize,
    /// Bytes for it that its connection has not taken.
    pub kept_out: usize,
}

/// What a backend is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackendState {
    /// With a client.
    Active,
    /// Being tidied after its client has left, or while a cancel request is under way.
    Tested,
    /// In the pool.
    Idle,
    /// No backend at all: it listens for clients.
    Listening,
}

/// A backend in SHOW SERVERS.
#[derive(Clone, Debug)]
pub struct BackendRow {
    /// Its id.
    pub id: BackendId,
    /// Its pool.
    pub pool: PoolId,
    /// Our end of its connection.
    pub local: Option<(String, u16)>,
    /// Cancel requests for it that are under way to its server.
    pub cancels: u32,
    /// A cancel request for it waits until no query of ours is before its client's.
    pub cancel_waits: bool,
    /// The epoch of its pool in which its opening began.
    pub epoch: u32,
    /// Database of its pool.
    pub database: String,
    /// User of its pool.
    pub user: String,
    /// What it is doing.
    pub state: BackendState,
    /// Which of the configured server addresses.
    pub server: crate::ids::ServerAddressId,
    /// The server's process id.
    pub process: u32,
    /// When it was opened.
    pub connected: Time,
    /// Whether it is idle in a transaction.
    pub parked: bool,
    /// The client that has it.
    pub client: Option<ClientId>,
    /// And the process id that this client knows; 0: no client has it.
    pub client_process: u32,
    /// The settings that this client started with, as they differ from the server's own.
    pub client_start: Settings,
    /// Shared prepared statements on it.
    pub statements: usize,
    /// The application_name that it has.
    pub application_name: String,
    /// Whether its connection is encrypted.
    pub encrypted: bool,
    /// Bytes from it that are kept because a message is not complete yet.
    pub kept_in: usize,
    /// Bytes for it that its connection has not taken.
    pub kept_out: usize,
}

/// The reason of a server connection that its server has ended, by a crash or by its own will.
pub const SERVER_CLOSED: &str = "server closed the connection";

/// An event for the log.
#[derive(Debug)]
pub enum Event<'a> {
    /// A client's connection has ended.
    ClientClosed {
        /// Who.
        client: ClientId,
        /// Who it is.
        about: &'a ClientAbout,
        /// Database of its pool.
        database: &'a str,
        /// User of its pool.
        user: &'a str,
        /// Why.
        reason: &'a str,
    },
    /// A client is told an error that is Hawser's own, or a server's where `error` says so.
    Told {
        /// Which.
        error: &'a ClientError,
    },
    /// A statement has worked, and been committed, after which new sessions may start with other
    /// values (ALTER ROLE and the like): whether they do is for the server to say.
    StartValuesChanged {
        /// The pool on one of whose servers.
        pool: PoolId,
    },
    /// What a server reports of a session cannot be read: no report is believed in this pool any more.
    ReportUnreadable {
        /// Database of its pool.
        database: &'a str,
        /// User of its pool.
        user: &'a str,
        /// What is wrong.
        error: ReportError,
    },
    /// A server reports other settings of a session than this has been given: it is not used on.
    SettingsMismatch {
        /// Which.
        backend: BackendId,
        /// Database of its pool.
        database: &'a str,
        /// User of its pool.
        user: &'a str,
    },
    /// A transaction, with the wait before it, took `log_min_duration` or longer.
    SlowTransaction {
        /// Whose.
        client: ClientId,
        /// Who it is.
        about: &'a ClientAbout,
        /// Database of its pool.
        database: &'a str,
        /// User of its pool.
        user: &'a str,
        /// How long the client waited for a server connection, in microseconds.
        wait_us: u64,
        /// From the first message to a server to the end of the transaction, in microseconds.
        duration_us: u64,
    },
    /// A server connection has ended. [`SERVER_CLOSED`] is the reason where the server ended it.
    BackendClosed {
        /// Which.
        backend: BackendId,
        /// Database of its pool.
        database: &'a str,
        /// User of its pool.
        user: &'a str,
        /// Why.
        reason: &'a str,
    },
}
