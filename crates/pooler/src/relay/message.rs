//! What comes to a loop from outside: new connections, lent backends, commands of the operator.

use core::any::Any;

use crate::queries::table::{QueryCounts, QueryRow};
use crate::relay::backend::{Backend, BackendSeed, PoolRef};
use crate::relay::client_info::{CancelKey, ClientAbout, ClientSecret, ClientState, PoolMode};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{BackendId, ClientId, LoopId, PoolId, Slot};
use crate::parts::listen::{Ask, FromHub};
use crate::parts::report::text::ReportError;
use crate::parts::rules::RuleSet;
use crate::queries::trace_parent::TraceParent;
use crate::relay::inside::{BackFromInside, PairFromInside};
use crate::relay::socket::{Line, Socket};
use crate::relay::succession::{Arrival, MovedClient};
use crate::session::part::PartSet;
use crate::session::settings::Settings;
use crate::time::Time;
use crate::wire::error::ClientError;

/// A client that has logged in, on its way to the loop that will serve it.
pub struct NewClient<S: Socket> {
    /// Its connection.
    pub socket: S,
    /// The pool it works with.
    pub pool: PoolRef<S>,
    /// When it gives its backend back.
    pub mode: PoolMode,
    /// Its start values that differ from the server's own; RESET goes back to them.
    pub start: Settings,
    /// AuthenticationOk and ParameterStatus messages, not yet sent. The engine sends BackendKeyData
    /// and ReadyForQuery.
    pub greeting: Vec<u8>,
    /// For its cancel requests.
    pub secret: ClientSecret,
    /// Its login.
    pub about: Box<ClientAbout>,
    /// Frees its place under the limits when it is dropped.
    pub permit: S::Permit,
    /// Bytes that came after the login.
    pub early: Vec<u8>,
    /// A replication connection: its backend was opened for it alone and serves no other client.
    pub exclusive: bool,
}

/// A message to a loop.
pub enum ToLoop<S: Socket> {
    /// A client that has logged in.
    Adopt(Box<NewClient<S>>),
    /// A backend for a client of this loop; no loop watches it.
    Lend {
        /// The client that gets it.
        client: ClientId,
        /// The backend.
        backend: Box<Backend<S>>,
    },
    /// A backend that was opened for a pool.
    Opened(Box<BackendSeed<S>>),
    /// A backend could not be opened. `fatal`: waiting would not help (wrong password, no such
    /// database), and waiting clients get the error at once.
    OpenFailed {
        /// The pool.
        pool: PoolRef<S>,
        /// Why.
        error: ClientError,
        /// Whether waiting clients get the error now.
        fatal: bool,
        /// How long no further attempt is made.
        retry_after: Duration,
    },
    /// Clients that wait for this pool get an error.
    Refuse {
        /// The pool.
        pool: PoolRef<S>,
        /// The error.
        error: ClientError,
        /// Only clients that have waited at least this long.
        waited: Duration,
    },
    /// A loop sends a request to the hub of a pool, which is here: see [`crate::parts::listen`].
    ToHub {
        /// The pool.
        pool: PoolRef<S>,
        /// The loop.
        from: LoopId,
        /// The request.
        ask: Ask,
    },
    /// The hub of a pool sends a message.
    FromHub {
        /// The pool.
        pool: PoolRef<S>,
        /// The message.
        said: FromHub,
    },
    /// A connection that is to listen for a pool, whose hub is here.
    ListenerOpened(Box<BackendSeed<S>>),
    /// It could not be opened.
    ListenerFailed {
        /// The pool.
        pool: PoolRef<S>,
        /// Why.
        error: ClientError,
    },
    /// More backends may be opened, or waiters have become due: look at the pool.
    Poke(PoolRef<S>),
    /// A loop has taken an idle backend that was resident here.
    Departed(Slot),
    /// A client's cancel request.
    Cancel {
        /// Process id that the request names.
        process: u32,
        /// Key that the request carries.
        key: CancelKey,
    },
    /// The idle connections to a database have been closed for a statement of this client's.
    Vacated {
        /// The client.
        client: ClientId,
        /// No connection is opened before it is dropped.
        kept: Arc<dyn Any + Send + Sync>,
    },
    /// The connection that listens for this pool ends if no client listens.
    EndUnusedListener(PoolRef<S>),
    /// Cancels a client's query on behalf of a session that may do so (pg_cancel_backend).
    CancelClient(ClientId),
    /// The server has handled a cancel request for a backend resident here.
    CancelDone(Slot),
    /// A cancel request for the backend in this place was sent, and the server has not closed that
    /// connection in time: it may still handle it.
    CancelUnanswered(Slot),
    /// Ends a client's connection (KILL_CLIENT, a dropped database).
    Kill {
        /// The client.
        client: ClientId,
        /// The error that it gets.
        error: ClientError,
    },
    /// Ends all clients (of one pool, or of all) and closes their backends.
    KillAll {
        /// Of this pool only.
        pool: Option<PoolRef<S>>,
        /// The error that they get.
        error: ClientError,
    },
    /// This many more clients may be on their way to the successor: those at rest are given to it
    /// ([`crate::relay::Host::give`]).
    GiveClients(usize),
    /// There is no successor any more: clients stay.
    KeepClients,
    /// A client that was another process's, or comes back from the way there.
    TakeClient(Box<MovedClient<S>>, Arrival),
    /// A client comes back from inside.
    BackFromInside(BackFromInside),
    /// A client comes back from inside, with its backend.
    PairFromInside(Box<PairFromInside<S>>),
    /// No new transactions: clients are disconnected as soon as they are in none.
    Drain(ClientError),
    /// Other rules are in force.
    Rules(Arc<RuleSet>),
    /// Some of this loop's connections, for SHOW: the answer is a bounded piece of work.
    Page(PageRequest, Box<dyn FnOnce(Page) + Send>),
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
            Self::BackFromInside(_) => "BackFromInside",
            Self::PairFromInside(_) => "PairFromInside",
            Self::Drain(_) => "Drain",
            Self::Rules(_) => "Rules",
            Self::Page(..) => "Page",
        };
        f.write_str(name)
    }
}

/// Which of a loop's connections are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed {
    /// Its clients.
    Clients,
    /// The backends that it watches and that are not idle (those are in their pools), and its listening
    /// connections.
    Backends,
    /// Its clients that have a backend, and these backends.
    Holders {
        /// With their lines: a system call for each.
        lines: bool,
    },
    /// The statements that its clients have run.
    Queries,
}

/// A question for some of a loop's connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRequest {
    /// Which.
    pub listed: Listed,
    /// With Hawser's end of each connection: a system call for each. (Of clients over MPTCP it is
    /// there in any case.)
    pub addresses: bool,
    /// The place in the loop's table at which the page begins: 0, or [`Page::next`] of the one before.
    pub from: u32,
}

/// Some of a loop's connections: those in [`limits::PAGE_PLACES`](crate::relay::limits::PAGE_PLACES) places of
/// its table. A connection keeps its place, so pages one after the other have each one once that is
/// there from the first page to the last.
#[derive(Debug, Default)]
pub struct Page {
    /// Clients.
    pub clients: Vec<ClientRow>,
    /// Backends and listening connections.
    pub backends: Vec<BackendRow>,
    /// Statements.
    pub queries: Vec<QueryRow>,
    /// What is counted for statements that were forgotten, and how many these were: on the last page of
    /// statements.
    pub other_queries: Option<Box<(QueryCounts, u64)>>,
    /// Where the next page begins; `None`: this was the last.
    pub next: Option<u32>,
}

/// A client in SHOW CLIENTS.
#[derive(Clone, Debug)]
pub struct ClientRow {
    /// Its id.
    pub id: ClientId,
    /// Its pool.
    pub pool: PoolId,
    /// Hawser's end of its connection.
    pub local: Option<(String, u16)>,
    /// Database that it asked for.
    pub database: String,
    /// Its user.
    pub user: String,
    /// What it is doing.
    pub state: ClientState,
    /// Its login.
    pub about: ClientAbout,
    /// Its application_name.
    pub application_name: String,
    /// When it last sent something.
    pub last_request: Time,
    /// How long it has waited, in microseconds.
    pub wait_us: u64,
    /// The backend it has.
    pub backend: Option<BackendId>,
    /// The process id of that one's server; 0: it has none.
    pub backend_process: u32,
    /// Why it keeps its backend between transactions.
    pub pins: PartSet,
    /// Since when it has kept it between transactions.
    pub pinned_since: Option<Time>,
    /// Channels that another connection than its backend listens on for it.
    pub channels: usize,
    /// Prepared statements that it has named.
    pub statements: usize,
    /// Process id in its BackendKeyData.
    pub process: u32,
    /// Bytes from it that are kept because they cannot be passed on yet.
    pub kept_in: usize,
    /// Bytes for it that its connection has not taken.
    pub kept_out: usize,
    /// Since when its open transaction waits for it.
    pub idle_in_transaction: Option<Time>,
    /// How the path to it does, for [`Listed::Holders`] with lines.
    pub line: Option<Box<Line>>,
}

/// What a backend is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackendState {
    /// With a client.
    Active,
    /// Being tidied after its client has left, or while a cancel request is in flight.
    Tested,
    /// In the pool.
    Idle,
    /// No backend: a listening connection.
    Listening,
}

/// A backend in SHOW SERVERS.
#[derive(Clone, Debug)]
pub struct BackendRow {
    /// Its id.
    pub id: BackendId,
    /// Its pool.
    pub pool: PoolId,
    /// Hawser's end of its connection.
    pub local: Option<(String, u16)>,
    /// Cancel requests for it in flight to its server.
    pub cancels: u32,
    /// A cancel request for it waits until no query of Hawser's precedes its client's.
    pub cancel_waits: bool,
    /// The epoch of its pool in which its opening began.
    pub epoch: u32,
    /// Database of its pool.
    pub database: String,
    /// User of its pool.
    pub user: String,
    /// What it is doing.
    pub state: BackendState,
    /// The index among the configured server addresses.
    pub server: crate::ids::ServerAddressId,
    /// The server's process id.
    pub process: u32,
    /// When it was opened.
    pub connected: Time,
    /// Whether it is idle in a transaction.
    pub parked: bool,
    /// The client that has it.
    pub client: Option<ClientId>,
    /// The process id that this client knows; 0: no client has it.
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
    /// How the path to it does, for [`Listed::Holders`] with lines.
    pub line: Option<Box<Line>>,
}

/// How the reason begins for a client that was refused because `queue_limit` is reached.
pub const QUEUE_FULL: &str = "too many clients wait for a server connection";

/// The reason given for a connection that its server has ended, in a crash or in order.
pub const SERVER_CLOSED: &str = "server closed the connection";

/// The reason given for one whose server's machine answers nothing any more.
pub const SERVER_SILENT: &str =
    "its machine, or the network to it, answers nothing (server_lost_timeout)";

/// An event for the log.
#[derive(Debug)]
pub enum Event<'a> {
    /// A client has logged in.
    ClientEntered {
        /// The client.
        client: ClientId,
        /// Its login.
        about: &'a ClientAbout,
        /// Database of its pool.
        database: &'a str,
        /// User of its pool.
        user: &'a str,
    },
    /// A client's connection has ended.
    ClientClosed {
        /// The client.
        client: ClientId,
        /// Its login.
        about: &'a ClientAbout,
        /// Database of its pool.
        database: &'a str,
        /// User of its pool.
        user: &'a str,
        /// Why.
        reason: &'a str,
    },
    /// A client gets an error of Hawser's own, or of a server where `error` says so.
    ErrorSent {
        /// The error.
        error: &'a ClientError,
    },
    /// A statement has succeeded, and been committed, after which new sessions may start with other
    /// values (ALTER ROLE and the like), or functions may do something else (CREATE FUNCTION and the
    /// like): only the server knows whether they do.
    CatalogChanged {
        /// The pool whose server has run it.
        pool: PoolId,
        /// Whether new sessions may.
        start_values: bool,
    },
    /// A server's report of a session cannot be read: no report is used in this pool any more.
    ReportUnreadable {
        /// Database of its pool.
        database: &'a str,
        /// User of its pool.
        user: &'a str,
        /// What is wrong.
        error: ReportError,
    },
    /// A server reports other settings of a session than the books have: the connection is closed.
    SettingsMismatch {
        /// The backend.
        backend: BackendId,
        /// Database of its pool.
        database: &'a str,
        /// User of its pool.
        user: &'a str,
    },
    /// A transaction, with the wait before it, took `log_min_duration` or longer.
    SlowTransaction {
        /// The client.
        client: ClientId,
        /// Its login.
        about: &'a ClientAbout,
        /// Database of its pool.
        database: &'a str,
        /// User of its pool.
        user: &'a str,
        /// How long the client waited for a server connection, in microseconds.
        wait_us: u64,
        /// From the first message to a server to the end of the transaction, in microseconds.
        duration_us: u64,
        /// The span that it belongs to, if the client has named one.
        parent: Option<TraceParent>,
    },
    /// A rule that logs has matched a statement.
    RuleMatched {
        /// The rule's name.
        rule: &'a str,
        /// It goes to the audit, and not to the log.
        audits: bool,
        /// A rule has refused the statement.
        refused: bool,
        /// The client.
        client: ClientId,
        /// Its login.
        about: &'a ClientAbout,
        /// Database of its pool.
        database: &'a str,
        /// Its user.
        user: &'a str,
        /// Its application_name.
        application_name: &'a [u8],
        /// The statement.
        text: &'a [u8],
    },
    /// A server connection has ended. [`SERVER_CLOSED`] is the reason where the server ended it.
    BackendClosed {
        /// The backend.
        backend: BackendId,
        /// Database of its pool.
        database: &'a str,
        /// User of its pool.
        user: &'a str,
        /// Why.
        reason: &'a str,
    },
}
