//! Opens server connections: selects the server, connects, encrypts, logs in, and checks that it is
//! suitable.
//!
//! # Model
//! ```text
//!   servers in order ─► addresses of the name ─► without / with TLS ─► login ─► target_session_attrs
//!        ▲ next on failure, those that failed lately last                          │ will not do: next
//!        └──────────────────────────────────────────────────────────────────────────┘
//! ```
//! An error that waiting does not help (wrong password, no such database) ends the search at once;
//! see [`DialError::ends_the_search`].
//!
//! # Invariants
//! * each attempt takes at most `server_connect_timeout`
//! * a [`ServerAddressId`] names one address, never a name with several: a cancel request must go
//!   to the very server that runs the query

pub mod announce;
pub mod enter;
pub mod hand_over;
pub mod password;
pub mod reach;
pub mod server_row;
pub mod standing;
pub mod state_kept;
pub mod talk;
#[cfg(test)]
pub(crate) mod tests;
pub mod unencrypted;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_congestion::cc::usage::CongestionUsage;
use hawser_pooler::ids::ServerAddressId;
use hawser_pooler::parts::report::text;
use hawser_pooler::session::options::{Asked, Replication};
use hawser_pooler::wire::error::{ClientError, SqlState};
use hawser_pooler::wire::startup::{self, Pair};
use hawser_sys::mptcp::watch::{Watch, look_again};
use hawser_sys::stream::TcpOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::bypass::usage::BypassUsage;
use crate::config::{
    LoadBalanceHosts, MptcpUse, ProxyProtocol, ServerAddress, TargetSessionAttrs, TlsMode,
    host_and_port,
};
use crate::limits::{AddressPermit, Full};
use crate::link::links::Links;
use crate::lock::locked;
use crate::mptcp::usage::{MptcpUsage, Transport};
use crate::process::{pooler_number, random_u64};
use crate::resolve::Resolver;
use crate::socket::stream::Link;
use crate::tls::connect::Connecting;
use enter::{Credentials, EnterError, Entered, enter};
use password::{PasswordError, PasswordSource, Passwords};
use reach::{Encryption, Endpoint};
use talk::{Talk, TalkError};
use unencrypted::Unencrypted;

/// The first pause after a server has failed; each further one doubles, up to the target's bound.
const RETRY_AFTER_FIRST: Duration = Duration::from_millis(100);

/// The hint for clients on errors that concern only the pooler's host.
const SEE_THE_LOG: &str = "Ask the pooler's administrator: its log has the reason.";

/// The servers of a database, and how to reach them.
#[derive(Clone, Debug)]
pub struct Target {
    /// At least one.
    pub servers: Vec<ServerAddress>,
    /// Which of them are suitable.
    pub session_attrs: TargetSessionAttrs,
    /// How much a standby may lag.
    pub max_replica_lag: Option<Duration>,
    /// Which is tried first.
    pub balance: Balance,
    /// How connections are encrypted.
    pub tls: Arc<Connecting>,
    /// The time limit of one attempt.
    pub connect_timeout: Duration,
    /// How long the server's machine may leave a connect unanswered.
    pub lost_timeout: Option<Duration>,
    /// How long addresses of names are used.
    pub dns_max_ttl: Duration,
    /// The longest pause before a failed server is tried before others again.
    pub retry_after_max: Duration,
    /// After how long without an answer of any server clients no longer wait; `None`: they wait.
    pub down_after: Option<Duration>,
    /// For TCP.
    pub tcp: TcpOptions,
    /// Whether servers are asked to report what their sessions hold.
    pub reports: bool,
    /// Whether servers are asked for the data that a hand-over of sessions needs.
    pub hands_over: bool,
    /// The header that they get first.
    pub proxy: ProxyProtocol,
    /// The source of their user's password, if it is not in the configuration.
    pub password: Option<PasswordSource>,
}

/// Which of several servers is tried first.
#[derive(Clone, Debug)]
pub enum Balance {
    /// The first one.
    InOrder,
    /// Each in turn. Each pool has its own count: with a common one, pools that open connections
    /// alternately would get one server each.
    InTurn(Arc<AtomicUsize>),
}

impl Balance {
    /// The setting, for one pool. It starts at a random server: otherwise the first connections of
    /// all pools would go to the first server.
    pub fn new(setting: LoadBalanceHosts) -> Self {
        match setting {
            LoadBalanceHosts::Disable => Self::InOrder,
            LoadBalanceHosts::RoundRobin => {
                let begin = random_u64() >> 32; // so that it does not overflow
                Self::InTurn(Arc::new(AtomicUsize::new(usize::try_from(begin).unwrap_or(0))))
            }
        }
    }

    /// Puts servers in the order of this attempt.
    fn rotate(&self, servers: &mut [ServerAddress]) {
        match self {
            Self::InOrder => {}
            Self::InTurn(_) if servers.is_empty() => {}
            Self::InTurn(count) => {
                servers.rotate_left(count.fetch_add(1, Ordering::Relaxed) % servers.len());
            }
        }
    }
}

/// The user and the database to log in to.
#[derive(Clone, Debug)]
pub struct Login {
    /// The role.
    pub user: String,
    /// The database on the server.
    pub database: String,
    /// `replication`.
    pub replication: Replication,
    /// Settings that only a connect can set.
    pub parameters: Vec<Asked>,
    /// Names and values with which sessions begin, from the configuration.
    pub start: Vec<Pair>,
    /// The proof.
    pub credentials: Arc<Credentials>,
}

/// An open, idle server connection.
#[derive(Debug)]
pub struct Dialled {
    /// The connection.
    pub talk: Talk,
    /// What the server said at login.
    pub entered: Entered,
    /// Which server it is.
    pub server: ServerAddressId,
    /// Its place under the limit of that server.
    pub place: AddressPermit,
    /// Keeps the place that `server` names.
    pub known: Known,
}

/// As long as this exists, the [`Place`] can be found by its id.
#[derive(Clone, Debug)]
pub struct Known(Arc<()>);

/// Gives a connection to a server its place under that server's limit.
pub type Gate<'a> = &'a (dyn Fn(&ServerAddress) -> Result<AddressPermit, Full> + Sync);

/// Why a server has not handled a cancel request.
#[derive(Debug)]
pub struct CancelError {
    /// The error.
    pub error: DialError,
    /// The server may still handle it.
    pub was_sent: bool,
}

/// Why no server connection could be opened.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// A name has no address.
    #[error("could not translate host name \"{host}\" to address: {source}")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// No connection to this server.
    #[error("connection to server at {server} failed: {source}")]
    Connect {
        /// The server.
        server: String,
        /// Why.
        source: io::Error,
    },
    /// No TLS with this server.
    #[error("TLS with server at {server} failed: {reason}")]
    Tls {
        /// The server.
        server: String,
        /// Why.
        reason: String,
        /// It fails until an administrator changes something.
        lasts: bool,
    },
    /// The server took longer than `server_connect_timeout`.
    #[error("server at {server} did not let us in within {} s", .after.as_secs_f32())]
    Timeout {
        /// The server.
        server: String,
        /// The bound.
        after: Duration,
    },
    /// The server's own ErrorResponse.
    #[error("server at {server} refused the connection: {}", .error.message)]
    Refused {
        /// The server.
        server: String,
        /// Its error.
        error: Box<ClientError>,
    },
    /// The server asks for a secret that is not known, or did not accept or give a proof.
    #[error("could not log in to server at {server} as user \"{user}\": {reason}")]
    Authentication {
        /// The server.
        server: String,
        /// The role.
        user: String,
        /// Why.
        reason: String,
    },
    /// The password is not available now.
    #[error("no password for user \"{user}\": {source}")]
    Password {
        /// Whose.
        user: String,
        /// Why.
        source: Arc<PasswordError>,
    },
    /// The conversation broke off.
    #[error("connection to server at {server} failed: {source}")]
    Talk {
        /// The server.
        server: String,
        /// Why.
        source: TalkError,
    },
    /// The login succeeded, but `connect_query` or a hand-over has left no usable session.
    #[error("{reason}")]
    Unready {
        /// Whether another attempt can help.
        trouble: Trouble,
        /// What went wrong, with which server, and what to do.
        reason: String,
    },
    /// Users must share it, and it cannot be handed over to them.
    #[error("server connections cannot be handed over to clients: {reason}")]
    NotHandedOver {
        /// Why.
        reason: String,
    },
    /// There may be no more connections.
    #[error("{}", .0.to_client_error().detail.as_deref().unwrap_or("full"))]
    Full(Full),
    /// The limit has room, but is shared by etcd, which does not answer.
    #[error("{}", cut_off(.0))]
    CutOff(Full),
    /// A standby lags too much.
    #[error(
        "server at {server} lags by {:.1} s, max_replica_lag is {} s",
        .lag.as_secs_f32(),
        .most.as_secs_f32()
    )]
    Lagging {
        /// The server.
        server: String,
        /// Its lag.
        lag: Duration,
        /// The allowed lag.
        most: Duration,
    },
    /// Servers were reached, and none is what `target_session_attrs` asks for.
    #[error("server at {server} is not what target_session_attrs = \"{wanted}\" asks for")]
    Unsuitable {
        /// The last server that was asked.
        server: String,
        /// What is asked for.
        wanted: TargetSessionAttrs,
    },
}

/// Whether another attempt may make a session ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// It may.
    Passing,
    /// This one took longer than `server_connect_timeout`.
    Silence,
    /// The result would be the same.
    Lasting,
}

fn cut_off(full: &Full) -> String {
    let error = full.to_cut_off_error();
    format!("{}. {}", error.message, error.detail.as_deref().unwrap_or_default())
}

impl DialError {
    /// Whether the server has taken longer than `server_connect_timeout`.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Unready { trouble: Trouble::Silence, .. })
    }

    /// Whether waiting does not help: clients that wait get the error at once.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Refused { error, .. } => {
                matches!(
                    &error.code.0,
                    [b'2', b'8', ..] | b"3D000" | b"42501" | b"42704" | b"22023" | b"55000"
                )
            }
            Self::Authentication { .. } | Self::NotHandedOver { .. } => true,
            Self::Unready { trouble, .. } => *trouble == Trouble::Lasting,
            Self::Tls { lasts, .. } => *lasts,
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::Timeout { .. }
            | Self::Talk { .. }
            | Self::Password { .. }
            | Self::Full(_)
            | Self::CutOff(_)
            | Self::Lagging { .. }
            | Self::Unsuitable { .. } => false,
        }
    }

    /// Whether other servers would say the same: they are not tried.
    fn ends_the_search(&self) -> bool {
        self.is_fatal() && !matches!(self, Self::Tls { .. })
    }

    /// Whether the server has no database of this name: a client's mistake, if clients name databases.
    pub fn is_no_such_database(&self) -> bool {
        matches!(self, Self::Refused { error, .. } if error.code == SqlState::INVALID_CATALOG_NAME)
    }

    /// Whether the server is up, and has no more connections for this user, database or at all.
    pub fn is_without_room(&self) -> bool {
        matches!(self, Self::Refused { error, .. } if error.code == SqlState::TOO_MANY_CONNECTIONS)
    }

    /// The error of several attempts for clients: this one, unless waiting helps only with the other, or the
    /// other says that a server is full, which explains more than that another is down.
    fn unless(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if self.is_fatal() && !other.is_fatal() => other,
            Some(other) if other.is_without_room() && !self.is_without_room() => other,
            _ => self,
        }
    }

    /// Whether no server has answered, or none that takes sessions.
    pub fn is_without_server(&self) -> bool {
        match self {
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::Tls { .. }
            | Self::Timeout { .. }
            | Self::Talk { .. }
            | Self::Unsuitable { .. } => true,
            Self::Refused { error, .. } => error.code == SqlState::CANNOT_CONNECT_NOW,
            Self::Authentication { .. }
            | Self::Password { .. }
            | Self::Unready { .. }
            | Self::NotHandedOver { .. }
            | Self::Full(_)
            | Self::CutOff(_)
            | Self::Lagging { .. } => false,
        }
    }

    /// The error for clients: the server's own words if there are any, and nothing about files and
    /// settings of this host.
    pub fn to_client_error(&self) -> ClientError {
        match self {
            Self::Refused { error, .. } if self.is_fatal() => ClientError {
                severity: hawser_pooler::wire::error::Severity::Fatal,
                ..(**error).clone()
            },
            Self::Full(full) => full.to_client_error(),
            Self::CutOff(full) => full.to_cut_off_error(),
            Self::Authentication { .. } => {
                ClientError::fatal(SqlState::INVALID_AUTHORIZATION, self.to_string())
            }
            _ => match self.message_for_clients() {
                Some(told) => {
                    ClientError::fatal(SqlState::CONNECTION_FAILURE, told).hint(SEE_THE_LOG)
                }
                None => ClientError::fatal(SqlState::CONNECTION_FAILURE, self.to_string()),
            },
        }
    }

    /// The full error for operators, if clients get less.
    pub fn unsaid(&self) -> Option<String> {
        self.message_for_clients().map(|_| self.to_string())
    }

    /// The message for clients in place of one that concerns only this host.
    fn message_for_clients(&self) -> Option<&'static str> {
        match self {
            Self::Password { .. } => Some("the pooler has no password for its server connections"),
            Self::NotHandedOver { .. } => {
                Some("the pooler's server connections cannot be handed over to clients")
            }
            Self::Authentication { .. }
            | Self::Full(_)
            | Self::CutOff(_)
            | Self::Refused { .. }
            | Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::Tls { .. }
            | Self::Timeout { .. }
            | Self::Talk { .. }
            | Self::Lagging { .. }
            | Self::Unready { .. }
            | Self::Unsuitable { .. } => None,
        }
    }

    /// Whether the server has refused the password.
    fn is_about_the_password(&self) -> bool {
        match self {
            Self::Refused { error, .. } => matches!(&error.code.0, b"28P01" | b"28000"),
            _ => false,
        }
    }

    /// Whether the server does not take a parameter that is for its extension.
    fn is_about_reports(&self) -> bool {
        let names = [text::ASKING, text::CONNECTION].map(String::from_utf8_lossy);
        match self {
            Self::Refused { error, .. } => names.iter().any(|name| error.message.contains(&**name)),
            _ => false,
        }
    }

    /// Whether another attempt with more or less encryption may do better.
    fn may_depend_on_encryption(&self) -> bool {
        match self {
            // pg_hba.conf has rules for connections with and without TLS.
            Self::Refused { error, .. } => error.code == SqlState::INVALID_AUTHORIZATION,
            Self::Tls { .. } => true,
            _ => false,
        }
    }
}

/// A server address that has been connected to.
#[derive(Clone, Debug)]
pub struct Place {
    /// As it was configured.
    pub configured: ServerAddress,
    /// The exact address.
    pub endpoint: Endpoint,
    /// The header that it got first, at the last connect.
    proxy: ProxyProtocol,
    /// Whether the connection was encrypted.
    pub encrypted: bool,
    /// Its transport.
    pub transport: Transport,
    /// How, at the last connect.
    tls: Arc<Connecting>,
    /// For TCP, at the last connect.
    tcp: TcpOptions,
}

/// The most places that are kept without a connection: above it those are forgotten. A name may
/// have another address at each lookup.
const PLACES_UNUSED_MAX: usize = 64;

/// All places, by their ids. Ids are never used again.
#[derive(Debug, Default)]
struct Places {
    by_id: HashMap<ServerAddressId, (Place, Known)>,
    ids: HashMap<(ServerAddress, Endpoint, bool, Transport), ServerAddressId>,
    next: u32,
    /// The number of places at which the next search for unused ones starts.
    look_at: usize,
}

impl Places {
    /// Forgets those without a connection, if they may be many.
    fn make_room(&mut self) {
        if self.by_id.len() < self.look_at.max(PLACES_UNUSED_MAX) {
            return;
        }
        self.by_id.retain(|_, (_, known)| Arc::strong_count(&known.0) > 1);
        let by_id = &self.by_id;
        self.ids.retain(|_, id| by_id.contains_key(id));
        self.look_at = 2 * self.by_id.len();
    }
}

/// How the last attempt to connect to a configured server ended.
#[derive(Debug)]
enum Fare {
    Reached,
    Failing {
        /// Attempts in a row.
        times: u32,
        until: Instant,
        reason: String,
    },
}

/// Opens server connections, and remembers which servers fail.
#[derive(Debug, Default)]
pub struct Dialler {
    /// Names of servers.
    pub resolver: Resolver,
    /// The transports of connections, and fallbacks.
    pub mptcp: MptcpUsage,
    /// Connections of this host that bypass TCP.
    pub bypass: BypassUsage,
    /// Servers with which TLS has failed.
    pub unencrypted: Unencrypted,
    /// Congestion control of connections, on both sides.
    pub congestion: CongestionUsage,
    /// Ends of links that this process runs.
    pub links: Links,
    /// Connections to be given up when their servers' machines stay silent: `server_lost_timeout`.
    watch: Arc<Watch>,
    /// Passwords that are not in the configuration.
    passwords: Arc<Passwords>,
    places: Mutex<Places>,
    fares: Mutex<HashMap<ServerAddress, Fare>>,
    /// Servers that are looked at.
    looks: Mutex<standing::Looks>,
    /// Servers that are not the leader of their cluster.
    deposed: Mutex<HashSet<ServerAddress>>,
    /// Servers that refuse a request for reports, as other poolers do.
    reportless: Mutex<HashSet<ServerAddress>>,
    /// Number of the next attempt to connect, from 1 on: the number of its server connection.
    attempts: AtomicU64,
}

type Reached = (Talk, Entered, (ServerAddressId, Known));

impl Dialler {
    /// Opens a connection to a suitable server of `target`.
    ///
    /// # Errors
    /// The error of the last server that was tried.
    pub async fn dial(
        &self,
        target: &Target,
        login: &Login,
        gate: Gate<'_>,
    ) -> Result<Dialled, DialError> {
        let Some(source) = target.password.as_ref().filter(|source| source.user == login.user)
        else {
            return self.dial_as(target, login, gate).await;
        };
        let within = target.connect_timeout;
        let failed = |source| DialError::Password { user: login.user.clone(), source };
        let first = self.passwords.get(source, None, within).await.map_err(failed)?;
        let login_with = |credentials| Login { credentials, ..login.clone() };
        match self.dial_as(target, &login_with(first.clone()), gate).await {
            Err(error) if error.is_about_the_password() => {
                // The password may have expired: another is asked for, once.
                let second = self.passwords.get(source, Some(&first), within).await;
                let second = second.map_err(failed)?;
                if Arc::ptr_eq(&first, &second) {
                    return Err(error);
                }
                self.dial_as(target, &login_with(second), gate).await
            }
            result => result,
        }
    }

    async fn dial_as(
        &self,
        target: &Target,
        login: &Login,
        gate: Gate<'_>,
    ) -> Result<Dialled, DialError> {
        let wanted = target.session_attrs;
        let passes: &[TargetSessionAttrs] = match wanted {
            TargetSessionAttrs::PreferStandby => {
                &[TargetSessionAttrs::Standby, TargetSessionAttrs::Any]
            }
            _ => std::slice::from_ref(&wanted),
        };
        let mut last = None;
        for pass in passes {
            for server in self.in_order(target) {
                if let Some(error) = self.lags_too_much(&server, target) {
                    last = Some(error);
                    continue;
                }
                let place = match gate(&server) {
                    Ok(place) => place,
                    Err(full) => {
                        last = Some(DialError::Full(full));
                        continue;
                    }
                };
                match self.dial_server(&server, target, login, *pass).await {
                    Ok((talk, entered, (server, known))) => {
                        return Ok(Dialled { talk, entered, server, place, known });
                    }
                    Err(error) if error.ends_the_search() => return Err(error),
                    Err(error) => last = Some(error.unless(last)),
                }
            }
        }
        Err(last.unwrap_or_else(|| DialError::Resolve {
            host: login.database.clone(),
            source: io::Error::new(io::ErrorKind::NotFound, "no server is configured"),
        }))
    }

    /// The servers in the order of attempts: last those that do not answer, or did not lately, and
    /// before these the ones that the last look found unfit.
    ///
    /// None is left out: a look ends sooner than an attempt may, and its finding may be old.
    fn in_order(&self, target: &Target) -> Vec<ServerAddress> {
        #[derive(PartialEq, Eq, PartialOrd, Ord)]
        enum Hope {
            Good,
            Unfit,
            Silent,
        }
        let mut servers = target.servers.clone();
        target.balance.rotate(&mut servers);
        let now = Instant::now();
        let (fares, looks) = (locked(&self.fares), locked(&self.looks));
        let unfit = standing::unfit(&target.wants(), &looks);
        let hope = |server: &ServerAddress| {
            let failed =
                matches!(fares.get(server), Some(Fare::Failing { until, .. }) if *until > now);
            match looks.get(server) {
                _ if failed => Hope::Silent,
                Some(look) if look.silent => Hope::Silent,
                _ if unfit.iter().any(|(one, _)| one == server) => Hope::Unfit,
                _ => Hope::Good,
            }
        };
        servers.sort_by_key(hope);
        servers
    }

    fn note_reached(&self, server: &ServerAddress) {
        let before = locked(&self.fares).insert(server.clone(), Fare::Reached);
        if matches!(before, Some(Fare::Failing { .. })) {
            tracing::info!(%server, "the server can be reached again");
        }
    }

    fn note_failed(&self, server: &ServerAddress, target: &Target, error: &DialError) {
        let mut fares = locked(&self.fares);
        let before = match fares.get(server) {
            Some(Fare::Failing { times, .. }) => *times,
            Some(Fare::Reached) | None => 0,
        };
        // One that is silent holds each attempt up: others go first for long.
        let pause = match error.is_silence() {
            true => target.retry_after_max,
            false => RETRY_AFTER_FIRST.saturating_mul(1 << before.min(16)),
        };
        let until = Instant::now() + pause.min(target.retry_after_max);
        let failing = Fare::Failing { times: before + 1, until, reason: error.to_string() };
        fares.insert(server.clone(), failing);
    }

    async fn dial_server(
        &self,
        server: &ServerAddress,
        target: &Target,
        login: &Login,
        attrs: TargetSessionAttrs,
    ) -> Result<Reached, DialError> {
        let endpoints = match self.endpoints(server, target).await {
            Ok(endpoints) => endpoints,
            Err(error) => {
                self.note_failed(server, target, &error);
                return Err(error);
            }
        };
        let mut last = None;
        for endpoint in endpoints {
            match self.dial_endpoint(server, &endpoint, target, login, attrs).await {
                Ok(reached) => {
                    self.note_reached(server);
                    return Ok(reached);
                }
                Err(error) if error.ends_the_search() => {
                    self.note_reached(server); // it is there, and refuses
                    return Err(error);
                }
                // One of the addresses may not be in use: `localhost` has two.
                Err(_) if last.as_ref().is_some_and(DialError::is_fatal) => {}
                Err(error) => last = Some(error),
            }
        }
        let error = last.unwrap_or_else(|| DialError::Resolve {
            host: server.to_string(),
            source: io::ErrorKind::NotFound.into(),
        });
        // A healthy server of the wrong kind may change at any time, and one that is full has room again.
        match error {
            DialError::Unsuitable { .. } => self.note_reached(server),
            _ if error.is_without_room() => self.note_reached(server),
            _ => self.note_failed(server, target, &error),
        }
        Err(error)
    }

    async fn endpoints(
        &self,
        server: &ServerAddress,
        target: &Target,
    ) -> Result<Vec<Endpoint>, DialError> {
        match server {
            ServerAddress::Unix(path) => Ok(vec![Endpoint::Unix(path.clone())]),
            ServerAddress::Link { link, host, port } => {
                let target = host_and_port(host, *port);
                Ok(vec![Endpoint::Link { link: link.clone(), host: host.clone(), target }])
            }
            ServerAddress::Tcp { host, port, .. } => {
                let within = target.connect_timeout;
                let found = self.resolver.lookup(host, *port, target.dns_max_ttl, within).await;
                let found =
                    found.map_err(|source| DialError::Resolve { host: host.clone(), source })?;
                Ok(found
                    .into_iter()
                    .map(|address| Endpoint::Tcp { host: host.clone(), address })
                    .collect())
            }
        }
    }

    async fn dial_endpoint(
        &self,
        server: &ServerAddress,
        endpoint: &Endpoint,
        target: &Target,
        login: &Login,
        attrs: TargetSessionAttrs,
    ) -> Result<Reached, DialError> {
        let mut first_error: Option<DialError> = None;
        for encryption in reach::attempts(target.tls.mode, endpoint) {
            let attempts = async {
                let one = || attempt((server, endpoint), self, *encryption, target, login, attrs);
                match one().await {
                    Err(error) if error.is_about_reports() && self.asks_for_reports(server) => {
                        self.stop_asking_for_reports(server);
                        one().await
                    }
                    result => result,
                }
            };
            let result = match timeout(target.connect_timeout, attempts).await {
                Ok(result) => result,
                Err(_) => Err(DialError::Timeout {
                    server: endpoint.to_string(),
                    after: target.connect_timeout,
                }),
            };
            match result {
                Ok((talk, entered)) => {
                    let encrypted = talk.stream().is_encrypted();
                    match (&first_error, target.tls.mode) {
                        (Some(DialError::Tls { reason, .. }), TlsMode::Prefer) => {
                            self.unencrypted.falls_back(server, reason);
                        }
                        (None, TlsMode::Prefer) if encrypted => self.unencrypted.encrypted(server),
                        _ => {}
                    }
                    let transport = match (server.mptcp(), endpoint) {
                        (_, Endpoint::Unix(_) | Endpoint::Link { .. }) => Transport::Unix,
                        (MptcpUse::Off, Endpoint::Tcp { .. }) => Transport::Tcp,
                        _ => Transport::of(talk.stream()),
                    };
                    self.mptcp.dialled(server, transport);
                    let server = self.place_id(server, endpoint, encrypted, transport, target);
                    return Ok((talk, entered, server));
                }
                Err(error) => {
                    let go_on = error.may_depend_on_encryption();
                    // The error of the preferred attempt explains more.
                    let error = match first_error.take() {
                        Some(first) => first.unless(Some(error)),
                        None => error,
                    };
                    if !go_on {
                        return Err(error);
                    }
                    first_error = Some(error);
                }
            }
        }
        Err(first_error.unwrap_or_else(|| DialError::Connect {
            server: endpoint.to_string(),
            source: io::ErrorKind::Unsupported.into(),
        }))
    }

    fn place_id(
        &self,
        configured: &ServerAddress,
        endpoint: &Endpoint,
        encrypted: bool,
        transport: Transport,
        target: &Target,
    ) -> (ServerAddressId, Known) {
        let mut places = locked(&self.places);
        let key = (configured.clone(), endpoint.clone(), encrypted, transport);
        if let Some(id) = places.ids.get(&key).copied()
            && let Some((place, known)) = places.by_id.get_mut(&id)
        {
            place.tls = target.tls.clone();
            place.tcp = target.tcp;
            place.proxy = target.proxy;
            return (id, known.clone());
        }
        places.make_room();
        let id = ServerAddressId(places.next);
        places.next += 1;
        let known = Known(Arc::new(()));
        let place = Place {
            configured: configured.clone(),
            endpoint: endpoint.clone(),
            proxy: target.proxy,
            encrypted,
            transport,
            tls: target.tls.clone(),
            tcp: target.tcp,
        };
        places.by_id.insert(id, (place, known.clone()));
        places.ids.insert(key, id);
        (id, known)
    }

    /// Ends connections to servers that have been silent for `timeout` since something was sent to
    /// them. Never ends; asks for `timeout` again and again.
    pub async fn end_lost(&self, timeout: impl Fn() -> Option<Duration>) {
        loop {
            let timeout = timeout();
            tokio::time::sleep(look_again(timeout)).await;
            let Some(timeout) = timeout else { continue };
            let ended = self.watch.end_dead(timeout, Instant::now());
            if ended > 0 {
                tracing::warn!(
                    ended,
                    "server connections ended: their servers acknowledged nothing for \
                     server_lost_timeout"
                );
            }
        }
    }

    fn asks_for_reports(&self, server: &ServerAddress) -> bool {
        !locked(&self.reportless).contains(server)
    }

    fn stop_asking_for_reports(&self, server: &ServerAddress) {
        if locked(&self.reportless).insert(server.clone()) {
            tracing::warn!(
                %server,
                "the server does not take the startup parameter hawser.report: it is not asked for \
                 any more what sessions hold; extension = \"off\" keeps from asking"
            );
        }
    }

    /// The place of an id.
    pub fn place(&self, id: ServerAddressId) -> Option<Place> {
        locked(&self.places).by_id.get(&id).map(|(place, _)| place.clone())
    }

    /// Sends a cancel request, and waits until the server has closed that connection: it has then
    /// signalled the backend.
    ///
    /// # Errors
    /// [`CancelError`]: the server could not be reached, or `within` has passed.
    pub async fn cancel(
        &self,
        id: ServerAddressId,
        process: u32,
        key: &[u8],
        within: Duration,
    ) -> Result<(), CancelError> {
        let Some(place) = self.place(id) else { return Ok(()) };
        let server = place.endpoint.to_string();
        let was_sent = AtomicBool::new(false);
        let send = async {
            let encryption = if place.encrypted { Encryption::Must } else { Encryption::No };
            // Plain TCP, whatever the other connection uses: it lives for one round trip.
            let broken = |source| DialError::Connect { server: server.clone(), source };
            let link = reach::connect(&place.endpoint, &place.tcp, &self.links).await;
            let mut link = link.map_err(broken)?;
            announce::announce(&mut link, &place.endpoint, place.proxy).await.map_err(broken)?;
            let mut stream = reach::open(link, &place.endpoint, &place.tls, encryption).await?;
            let mut request = Vec::with_capacity(16 + key.len());
            startup::write_cancel(&mut request, process, key);
            // The server does not accept a partial request.
            stream.write_all(&request).await.map_err(broken)?;
            was_sent.store(true, Ordering::Relaxed);
            stream.flush().await.map_err(broken)?;
            // The server sends nothing; an error here is the end as well.
            let _ = stream.read(&mut [0; 16]).await;
            Ok(())
        };
        let error = match timeout(within, send).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => DialError::Timeout { server: server.clone(), after: within },
        };
        Err(CancelError { error, was_sent: was_sent.into_inner() })
    }
}

/// Connects by the transport that is configured.
async fn connect(
    configured: &ServerAddress,
    endpoint: &Endpoint,
    dialler: &Dialler,
    target: &Target,
) -> Result<Link, DialError> {
    let connect = async {
        match (configured.mptcp(), endpoint) {
            (wanted @ (MptcpUse::Prefer | MptcpUse::Require), Endpoint::Tcp { address, .. }) => {
                dialler.mptcp.connect(*address, wanted, &target.tcp).await
            }
            _ => match dialler.bypass.connect(endpoint, &target.tcp).await.transpose() {
                Some(past) => past,
                None => reach::connect(endpoint, &target.tcp, &dialler.links).await,
            },
        }
    };
    let server = || endpoint.to_string();
    let link = match target.lost_timeout {
        Some(after) => timeout(after, connect)
            .await
            .map_err(|_| DialError::Timeout { server: server(), after })?,
        None => connect.await,
    };
    link.map_err(|source| DialError::Connect { server: server(), source })
}

async fn attempt(
    (configured, endpoint): (&ServerAddress, &Endpoint),
    dialler: &Dialler,
    encryption: Encryption,
    target: &Target,
    login: &Login,
    attrs: TargetSessionAttrs,
) -> Result<(Talk, Entered), DialError> {
    let broken = |source| DialError::Connect { server: endpoint.to_string(), source };
    let mut link = connect(configured, endpoint, dialler, target).await?;
    if matches!(endpoint, Endpoint::Tcp { .. }) {
        link.watch_server(dialler.watch.clone());
    }
    dialler.congestion.apply(&mut link, configured.congestion(), configured);
    announce::announce(&mut link, endpoint, target.proxy).await.map_err(broken)?;
    let mut talk = Talk::new(reach::open(link, endpoint, &target.tls, encryption).await?);
    let mut parameters: Vec<(&[u8], &[u8])> = Vec::with_capacity(8 + login.parameters.len());
    match login.replication {
        Replication::None => {}
        Replication::Physical => parameters.push((b"replication", b"true")),
        Replication::Database => parameters.push((b"replication", b"database")),
    }
    if login.replication != Replication::Physical {
        parameters.push((b"database", login.database.as_bytes()));
    }
    parameters.extend(login.start.iter().map(|(name, value)| (&**name, &**value)));
    parameters.extend(login.parameters.iter().map(|asked| (&*asked.name, &*asked.value)));
    let number = 1 + dialler.attempts.fetch_add(1, Ordering::Relaxed);
    let name = format!("{:016x}/{number}", pooler_number());
    if target.reports
        && login.replication == Replication::None
        && dialler.asks_for_reports(configured)
    {
        parameters.push((text::ASKING, b"on"));
        parameters.push((text::CONNECTION, name.as_bytes()));
    }
    if target.hands_over && login.replication == Replication::None {
        parameters.push((hawser_pooler::parts::identity::hand_over::ASKING, b"on"));
    }

    let server = || endpoint.to_string();
    let entered = enter(&mut talk, &login.user, &parameters, &login.credentials).await;
    let entered =
        entered.map(|entered| Entered { number, ..entered }).map_err(|error| match error {
            EnterError::Talk(TalkError::Server(error)) => {
                DialError::Refused { server: server(), error }
            }
            EnterError::Talk(source) => DialError::Talk { server: server(), source },
            EnterError::NoSecret(what) => DialError::Authentication {
                server: server(),
                user: login.user.clone(),
                reason: format!("the server asks for {what}, which is not known here"),
            },
            EnterError::Proof(reason) => {
                DialError::Authentication { server: server(), user: login.user.clone(), reason }
            }
        })?;
    let suitable = is_suitable(&mut talk, &entered, attrs).await;
    match suitable.map_err(|source| DialError::Talk { server: server(), source })? {
        true => Ok((talk, entered)),
        false => {
            talk.terminate().await;
            Err(DialError::Unsuitable { server: server(), wanted: target.session_attrs })
        }
    }
}

/// Whether a server is what `target_session_attrs` asks for. Servers from 14 on report it; others
/// are asked.
async fn is_suitable(
    talk: &mut Talk,
    entered: &Entered,
    attrs: TargetSessionAttrs,
) -> Result<bool, TalkError> {
    let reported = |name: &[u8]| entered.parameters.get(name).map(|value| value == b"on");
    Ok(match attrs {
        TargetSessionAttrs::Any | TargetSessionAttrs::PreferStandby => true,
        TargetSessionAttrs::Primary | TargetSessionAttrs::Standby => {
            let in_recovery = match reported(b"in_hot_standby") {
                Some(in_recovery) => in_recovery,
                None => {
                    let answer = talk.query("SELECT pg_catalog.pg_is_in_recovery()").await?;
                    answer.single() == Some(b"t")
                }
            };
            in_recovery == (attrs == TargetSessionAttrs::Standby)
        }
        TargetSessionAttrs::ReadWrite | TargetSessionAttrs::ReadOnly => {
            let both = (reported(b"default_transaction_read_only"), reported(b"in_hot_standby"));
            let read_only = match both {
                (Some(read_only), Some(in_recovery)) => read_only || in_recovery,
                _ => {
                    let answer = talk.query("SHOW transaction_read_only").await?;
                    answer.single() == Some(b"on")
                }
            };
            read_only == (attrs == TargetSessionAttrs::ReadOnly)
        }
    })
}
