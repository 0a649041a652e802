//! `hawser status`: what a running process does, over its control socket.
//!
//! # Model
//! A client that connects to the socket reads one JSON object and the end of the stream. It sends
//! nothing, so there is nothing to parse and nothing to abuse; the socket's permissions (0600)
//! restrict it.
//!
//! # Why not the admin database
//! It needs a user, a password and TLS settings; the socket needs a path, and works while logins do
//! not.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use hawser_link::drive::report::Report;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

use crate::admin::pooler::Pooler;
use crate::bypass::usage::BypassUsage;
use crate::config::Config;
use crate::dial::server_row::{ServerRole, ServerRow};
use crate::holders::{Holders, KeepingStatus, LineStatus};
use crate::limits::shared::SharedLimit;
use crate::metrics::process::ProcessFigures;
use crate::process::{self, path_of};
use crate::queries::{Queries, QueryStatus};
use crate::rules::InForce;
use crate::shared::LastReload;
use crate::takeover::predecessor::PredecessorStatus;
use crate::totals::Totals;

/// Where service managers put the control socket.
const SERVICE_SOCKET: &str = "/run/hawser/hawser.sock";
/// How long one reader may take.
const READ_WAIT: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Streams of a link's session that are written out; `--json` has more.
const LINK_STREAMS_MAX: usize = 8;
/// A pause after an error of accept(2).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where the control socket of a running process may be, the likeliest first.
pub(crate) fn control_sockets(config: Option<&Config>) -> Vec<PathBuf> {
    let mut sockets = Vec::new();
    if let Some(config) = config {
        sockets.extend(config.start.admin.control_socket_path(path_of));
    } else {
        for variable in ["RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"] {
            sockets.extend(path_of(variable).map(|directory| directory.join("hawser.sock")));
        }
    }
    sockets.push(PathBuf::from(SERVICE_SOCKET));
    let places = process::place::candidates(hawser_sys::process::effective_uid());
    sockets.extend(places.into_iter().map(|directory| directory.join("hawser.sock")));
    let mut seen = HashSet::new();
    sockets.retain(|socket| seen.insert(socket.clone()));
    sockets
}

/// What a process does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// `ready`, `paused`, or why new clients are not served.
    pub state: String,
    /// How long it has served.
    pub uptime_s: u64,
    /// Where clients connect.
    pub listeners: Vec<String>,
    /// Where the pages are.
    pub http: Option<String>,
    /// Event loops.
    pub loops: usize,
    /// Clients that count towards `clients_max`, those that are logging in among them.
    pub clients: usize,
    /// Clients that there may be: `max_client_conn`.
    pub clients_max: u32,
    /// Descriptors in use.
    pub descriptors: u64,
    /// Descriptors that there may be.
    pub descriptors_max: u64,
    /// Memory of the process alone.
    pub private_bytes: u64,
    /// Its pools.
    pub pools: Vec<PoolStatus>,
    /// The statements that have taken the most time.
    #[serde(default)]
    pub queries: Vec<QueryStatus>,
    /// Clients that keep a server connection without work for it, the longest first.
    #[serde(default)]
    pub keeping: Vec<KeepingStatus>,
    /// What TCP has measured of the paths to servers and clients.
    #[serde(default)]
    pub lines: Vec<LineStatus>,
    /// The rules in force.
    #[serde(default)]
    pub rules: Vec<RuleStatus>,
    /// The servers of its databases.
    #[serde(default)]
    pub servers: Vec<ServerStatus>,
    /// Hawser's own errors that clients got, by the first two letters of their SQLSTATE.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
    /// What `mptcp_manage` has come to.
    #[serde(default)]
    pub mptcp_manager: Option<String>,
    /// What `[bypass] enable` has come to.
    #[serde(default)]
    pub bypass: Option<String>,
    /// Its links.
    #[serde(default)]
    pub links: Vec<Report>,
    /// Limits that it shares with other poolers.
    #[serde(default)]
    pub shared_limits: Vec<SharedLimitStatus>,
    /// What does not work on this host, and what is done instead.
    pub fallbacks: Vec<String>,
    /// The process whose place this one has taken, while it still has clients.
    #[serde(default)]
    pub predecessor: Option<PredecessorStatus>,
    /// The result of the last reload, or of the start.
    #[serde(default)]
    pub last_reload: Option<ReloadStatus>,
}

/// The result of a reload.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReloadStatus {
    /// When: microseconds since 1970.
    pub at_us: u64,
    /// Why the previous configuration is still in force, if it is.
    pub refused: Option<String>,
    /// Settings that have changed in the file, and keep their values until a restart.
    #[serde(default)]
    pub restart: Vec<String>,
}

impl From<LastReload> for ReloadStatus {
    fn from(reload: LastReload) -> Self {
        let since = reload.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            at_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
            refused: reload.refused,
            restart: reload.restart.into_iter().map(str::to_owned).collect(),
        }
    }
}

/// A limit that several poolers share: a row of SHOW LIMITS.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SharedLimitStatus {
    /// The setting, and what it is for: `max_db_connections of app`.
    pub limit: String,
    /// The limit of all poolers together.
    pub most: u32,
    /// Server connections of this one.
    pub used: u32,
    /// Places that this one holds.
    pub held: u32,
    /// Places that this one lacks.
    pub wanted: u32,
    /// Server connections of this one whose places others may hold.
    pub unsure: u32,
}

/// A rule: a row of SHOW RULES.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RuleStatus {
    /// Its name.
    pub name: String,
    /// By RULE ADD, not by the file.
    pub by_hand: bool,
    /// Statements that it matched.
    pub matches: u64,
    /// Those that it refused.
    pub refused: u64,
}

impl RuleStatus {
    fn of(known: &InForce) -> Self {
        let counts = &known.rule.counts;
        Self {
            name: known.rule.name.to_string(),
            by_hand: known.by_hand,
            matches: counts.matches(),
            refused: counts.refused(),
        }
    }
}

/// A server of a database: a row of SHOW HOSTS.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The `[[database]]` entry.
    pub database: String,
    /// The server as it is configured.
    pub server: String,
    /// `up`, `left`, `down` or `unknown`.
    pub state: String,
    /// `primary` or `standby`, where servers are looked at.
    pub role: Option<String>,
    /// How much a standby lags.
    pub lag_ms: Option<u64>,
    /// Why it is not up.
    pub reason: Option<String>,
}

/// A pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PoolStatus {
    /// The database that clients ask for.
    pub database: String,
    /// The role towards the server.
    pub user: String,
    /// Clients that work with it.
    pub clients: usize,
    /// Those that wait.
    pub waiting: u32,
    /// How long the first of them has waited.
    pub oldest_wait_us: u64,
    /// Server connections in use.
    pub servers_active: u32,
    /// Server connections not in use.
    pub servers_idle: u32,
    /// Server connections that are being opened.
    pub servers_opening: u32,
    /// Channels on which a further one listens for clients.
    pub channels: u32,
    /// Server connections that clients keep between transactions.
    #[serde(default)]
    pub pinned: u32,
    /// For how long one of them has been kept, at most.
    #[serde(default)]
    pub oldest_pin_seconds: u64,
    /// Server connections whose server tells exactly what their sessions hold: the extension's.
    #[serde(default)]
    pub exact: u32,
    /// Server connections whose client waits for a lock at the server, where that was asked.
    #[serde(default)]
    pub lock_waits: u32,
    /// `pool_size`.
    pub size: u32,
    /// Whether it is paused.
    pub paused: bool,
    /// Transactions since the start.
    pub transactions: u64,
    /// Queries since the start.
    pub queries: u64,
    /// Time in transactions since the start.
    #[serde(default)]
    pub transaction_us: u64,
    /// Time that clients waited for a server connection since the start.
    #[serde(default)]
    pub wait_us: u64,
    /// Whether its server was found to be another pooler.
    #[serde(default)]
    pub server_is_pooler: bool,
    /// Why no server connection can be opened.
    pub last_error: Option<String>,
}

impl PoolStatus {
    /// All server connections, those that are being opened too.
    pub fn servers(&self) -> u32 {
        self.servers_active + self.servers_idle + self.servers_opening
    }
}

impl Status {
    /// What `pooler` does now, with what its loops know of it.
    pub async fn whole(pooler: &dyn Pooler) -> Self {
        // A loop that does not answer is no reason to say nothing.
        let queries = Queries::gather(pooler.loops()).await.unwrap_or_default();
        Self::with(pooler, queries, Holders::gather(pooler, true).await.unwrap_or_default())
    }

    /// The same, with what they have said before.
    pub fn with(pooler: &dyn Pooler, queries: Queries, holders: Holders) -> Self {
        let Holders { keeping, lines, .. } = holders;
        Self { queries: queries.report(), keeping, lines, ..Self::of(pooler) }
    }

    /// What `pooler` does now.
    pub fn of(pooler: &dyn Pooler) -> Self {
        let config = pooler.config();
        let figures = ProcessFigures::read();
        let state = match pooler.ready() {
            Ok(()) if pooler.gates().all_paused() => "paused".to_owned(),
            Ok(()) => "ready".to_owned(),
            Err(reason) => reason,
        };
        let uptime = SystemTime::now().duration_since(pooler.started()).unwrap_or_default();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            state,
            uptime_s: uptime.as_secs(),
            listeners: pooler.listeners(),
            http: pooler.pages().map(|address| format!("http://{address}/")),
            loops: pooler.loops().count(),
            clients: pooler.limits().client_count(),
            clients_max: config.reload.limits.max_client_conn,
            descriptors: figures.descriptors,
            descriptors_max: figures.descriptors_max,
            private_bytes: figures.private_bytes,
            pools: pools(pooler),
            queries: Vec::new(),
            keeping: Vec::new(),
            lines: Vec::new(),
            rules: pooler.rules().all().iter().map(RuleStatus::of).collect(),
            servers: pooler.servers().into_iter().map(server).collect(),
            errors: pooler.tally().errors.by_class(),
            mptcp_manager: pooler.mptcp().and_then(|mptcp| mptcp.manager.standing().in_words()),
            bypass: pooler.bypass().and_then(BypassUsage::in_words),
            links: pooler.links().iter().map(|report| Report::clone(report)).collect(),
            shared_limits: shared_limits(pooler),
            fallbacks: pooler.fallbacks(),
            predecessor: pooler.predecessor(),
            last_reload: Some(pooler.last_reload().into()),
        }
    }

    /// For reading.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_text(&mut text);
        text
    }

    fn write_shared_limits(&self, out: &mut String) -> std::fmt::Result {
        for limit in &self.shared_limits {
            let SharedLimitStatus { limit, most, used, held, wanted, unsure } = limit;
            let limit = crate::logging::without_control(limit);
            write!(out, "  shares       {limit}: holds {held} of {most}, uses {used}")?;
            if *wanted > 0 {
                write!(out, ", lacks {wanted}")?;
            }
            if *unsure > 0 {
                write!(out, ", may have lost {unsure}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "hawser {}, process {}: {}", self.version, self.pid, self.state)?;
        writeln!(out, "  serving for  {} s, {} event loops", self.uptime_s, self.loops)?;
        for listener in &self.listeners {
            writeln!(out, "  listens on   {listener}")?;
        }
        if let Some(http) = &self.http {
            writeln!(out, "  pages        {http}")?;
        }
        writeln!(out, "  clients      {} of {}", self.clients, self.clients_max)?;
        writeln!(out, "  descriptors  {} of {}", self.descriptors, self.descriptors_max)?;
        writeln!(out, "  memory       {}", crate::units::memory(self.private_bytes))?;
        if let Some(manager) = &self.mptcp_manager {
            writeln!(out, "  path manager {manager}")?;
        }
        if let Some(bypass) = &self.bypass {
            writeln!(out, "  bypass       {bypass}")?;
        }
        self.predecessor.iter().try_for_each(|one| writeln!(out, "  predecessor  {one}"))?;
        for fallback in &self.fallbacks {
            writeln!(out, "  fallback     {fallback}")?;
        }
        let shown = crate::logging::without_control;
        self.write_shared_limits(out)?;
        for row in &self.servers {
            // Those that are well are not worth a line each.
            let Some(reason) = &row.reason else { continue };
            let (server, database) = (shown(&row.server), shown(&row.database));
            writeln!(
                out,
                "  server       {server} of {database} is {}: {}",
                row.state,
                shown(reason)
            )?;
        }
        for link in &self.links {
            write!(out, "{}", link.to_text(LINK_STREAMS_MAX))?;
        }
        if self.pools.is_empty() {
            return writeln!(out, "no pool yet: no client has logged in");
        }
        // Names are a client's, errors a server's.
        let width = |least: usize, of: fn(&PoolStatus) -> &str| {
            let names = self.pools.iter().map(|pool| shown(of(pool)).chars().count());
            names.max().unwrap_or(0).max(least)
        };
        let (databases, users) = (width(20, |pool| &pool.database), width(16, |pool| &pool.user));
        writeln!(
            out,
            "{:<databases$} {:<users$} {:>8} {:>8} {:>8} {:>6} {:>6} {:>14}",
            "database", "user", "clients", "waiting", "servers", "idle", "size", "transactions"
        )?;
        for pool in &self.pools {
            let note = match &pool.last_error {
                Some(error) => format!("  {}", shown(error)),
                None if pool.paused => "  paused".to_owned(),
                None if pool.server_is_pooler => "  its server is another pooler".to_owned(),
                None if pool.channels > 0 => format!("  listens on {} channels", pool.channels),
                None if pool.pinned > 0 => {
                    format!("  {} pinned, for up to {} s", pool.pinned, pool.oldest_pin_seconds)
                }
                None if pool.exact > 0 => "  session state reported by the extension".to_owned(),
                None => String::new(),
            };
            writeln!(
                out,
                "{:<databases$} {:<users$} {:>8} {:>8} {:>8} {:>6} {:>6} {:>14}{note}",
                shown(&pool.database),
                shown(&pool.user),
                pool.clients,
                pool.waiting,
                pool.servers(),
                pool.servers_idle,
                pool.size,
                pool.transactions,
            )?;
        }
        Ok(())
    }
}

fn shared_limits(pooler: &dyn Pooler) -> Vec<SharedLimitStatus> {
    let shared = pooler.limits().sharing().map_or_else(Vec::new, |(_, shared)| shared);
    let of = |SharedLimit { scope, limit, used, bound }| SharedLimitStatus {
        limit: crate::shares::in_words(&scope),
        most: limit,
        used,
        held: bound.held,
        wanted: bound.wanted,
        unsure: bound.unsure,
    };
    shared.into_iter().map(of).collect()
}

fn server(row: ServerRow) -> ServerStatus {
    let lag = row.role.and_then(ServerRole::lag);
    ServerStatus {
        database: row.database,
        server: row.server,
        state: row.state.name().to_owned(),
        role: row.role.map(|role| role.name().to_owned()),
        lag_ms: lag.map(|lag| u64::try_from(lag.as_millis()).unwrap_or(u64::MAX)),
        reason: row.state.reason().map(str::to_owned),
    }
}

fn pools(pooler: &dyn Pooler) -> Vec<PoolStatus> {
    let now = pooler.loops().now();
    let status = |entry: crate::admin::pooler::PoolEntry| {
        let totals = Totals::of(&entry.pool.stats);
        let last_error = entry.last_error();
        let pins = &entry.pool.pins;
        let oldest_pin = pins.oldest().map_or(0, |since| now.since(since).as_secs());
        let queue = entry.pool.lock();
        PoolStatus {
            database: entry.pool.database.clone(),
            user: entry.pool.user.clone(),
            clients: entry.clients,
            waiting: entry.waiting(&queue),
            oldest_wait_us: entry.oldest_wait_us(&queue, now),
            servers_active: queue.lent_count(),
            servers_idle: queue.idle_count(),
            servers_opening: queue.opening_count(),
            channels: entry.pool.stats.listen.channels.load(Ordering::Relaxed),
            pinned: pins.get(),
            oldest_pin_seconds: oldest_pin,
            exact: entry.pool.reporting.get(),
            lock_waits: queue.lock_waits(),
            size: queue.limits().size,
            paused: queue.is_paused(),
            transactions: totals.transactions,
            queries: totals.queries,
            transaction_us: totals.transaction_us,
            wait_us: totals.wait_us,
            server_is_pooler: entry.is_before_pooler,
            last_error,
        }
    };
    pooler.pools().into_iter().map(status).collect()
}

/// Answers connections to the control socket, one at a time. Never ends.
pub async fn answer(listener: UnixListener, pooler: Arc<dyn Pooler>) {
    loop {
        match listener.accept().await {
            Ok((mut stream, _)) => {
                let status = Status::whole(pooler.as_ref()).await;
                // Maps with names as keys: it cannot fail.
                let status = serde_json::to_vec(&status).unwrap_or_default();
                let write = async {
                    stream.write_all(&status).await?;
                    stream.shutdown().await
                };
                // A client may break off: no error.
                let _ = tokio::time::timeout(READ_WAIT, write).await;
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection on the control socket");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Asks the process behind a control socket.
///
/// # Errors
/// There is no listener, or what answers is not Hawser.
pub fn ask(path: &Path) -> io::Result<Status> {
    let stream = std::os::unix::net::UnixStream::connect(path)?;
    stream.set_read_timeout(Some(READ_WAIT))?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    serde_json::from_slice(&answer).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tests::fake;

    #[tokio::test]
    async fn a_status_survives_the_socket_and_can_be_read() {
        let path =
            std::env::temp_dir().join(format!("hawser-status-{}.sock", process::random_u64()));
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(answer(listener, fake()));
        let asked = path.clone();
        let status = tokio::task::spawn_blocking(move || ask(&asked)).await.unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(status.state, "ready");
        assert_eq!(status.pools[0].clients, 3);
        assert_eq!(status.pools[0].transactions, 10);
        let mut hostile = status.clone();
        hostile.pools[0].database = "a\nready \x1b[2J".to_owned();
        hostile.pools[0].last_error = Some("b\x1b]0;x\x07".to_owned());
        let lines = (status.to_text().lines().count(), hostile.to_text().lines().count());
        assert_eq!(lines.0, lines.1);
        assert!(!hostile.to_text().contains(['\x1b', '\x07']));
        let mut long = status.clone();
        long.pools[0].database = "d".repeat(63);
        long.pools[0].user = "u".repeat(63);
        long.pools.push(status.pools[0].clone());
        let text = long.to_text();
        let lines: Vec<_> = text.lines().rev().take(3).collect();
        let end = |line: &str| line.rfind(|c: char| !c.is_whitespace());
        assert_eq!(end(lines[2]), lines[1].find(" 10").map(|at| at + 2), "{text}");
        assert_eq!(lines[1].find(" 10"), lines[0].find(" 10"), "{text}");
        let text = status.to_text();
        assert!(text.contains("listens on   127.0.0.1:6432"), "{text}");
        assert!(text.contains("server       db1:5432 of app is left: it <lags>"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("app ")), "{text}");
        assert!(ask(&path).is_err());
    }
}
