//! What administration reads of the running pooler and asks of it.
//!
//! # Model       `serve` gives access to everything by one object that implements [`Pooler`]; the
//!               console, the metrics and `status` use nothing else. Tests put a small one in its
//!               place.
//! # Invariants  no method waits: work that takes time is a future, or an order whose completion
//!               shows in the pools

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use hawser_congestion::cc::usage::CongestionUsage;
use hawser_link::drive::report::Report;
use hawser_pooler::ids::LoopId;
use hawser_pooler::ids::ServerAddressId;
use hawser_pooler::lending::Pool as Queue;
use hawser_pooler::session::options::Replication;
use hawser_pooler::time::Time;
use hawser_pooler::wire::error::{ClientError, SqlState};

use super::averages::Totals;
use super::command::Command;
use crate::bypass::usage::BypassUsage;
use crate::config::{ADMIN_DATABASES, Config};
use crate::dial::Place;
use crate::dial::server_row::ServerRow;
use crate::limits::Limits;
use crate::loops::{Loops, Pool};
use crate::mptcp::usage::MptcpUsage;
use crate::resolve::HostRow;
use crate::service::LastReload;
use crate::spans::Spans;
use crate::takeover::PredecessorStatus;

/// A future of a trait's method.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How the process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// At once.
    Immediate,
    /// When no client has a backend any more; clients that wait are disconnected. SIGTERM does this
    /// too, for at most `shutdown_timeout`.
    WaitForServers,
    /// When all clients have left.
    WaitForClients,
}

/// A pool and what only its registry knows.
#[derive(Clone)]
pub struct PoolEntry {
    /// The pool.
    pub pool: Pool,
    /// Clients that work with it, whatever they are doing.
    pub clients: usize,
    /// Those of them that wait at their login for a server.
    pub waiting_at_login: u32,
    /// How long the first of these has waited.
    pub wait_at_login: Duration,
    /// Clients that have logged in to it.
    pub logins: u64,
    /// What it replicates.
    pub replication: Replication,
    /// The details, kept from clients, of the last server connection that could not be opened.
    pub unsaid: Option<String>,
    /// Its server was found to be another pooler.
    pub is_before_pooler: bool,
}

impl PoolEntry {
    /// What SHOW STATS counts of it.
    pub fn totals(&self) -> Totals {
        Totals { logins: self.logins, ..Totals::of(&self.pool.stats) }
    }

    /// Why no server connection could be opened lately, for operators.
    pub fn last_error(&self) -> Option<String> {
        let told = self.pool.last_error()?;
        Some(self.unsaid.clone().unwrap_or(told.message))
    }

    /// Clients that wait: in the pool's queue, and at their login.
    pub fn waiting<B>(&self, queue: &Queue<B>) -> u32 {
        queue.waiting_count() + self.waiting_at_login
    }

    /// How long the client has waited that has waited longest.
    pub fn oldest_wait_us<B>(&self, queue: &Queue<B>, now: Time) -> u64 {
        let queued = queue.oldest_waiter().map_or(0, |waiter| now.micros_since(waiter.since));
        queued.max(u64::try_from(self.wait_at_login.as_micros()).unwrap_or(u64::MAX))
    }
}

/// The running pooler.
pub trait Pooler: Send + Sync {
    /// The configuration in force.
    fn config(&self) -> Arc<Config>;

    /// Puts a changed configuration in force (SET), in all pools that exist too.
    ///
    /// # Errors
    /// What is wrong with the files that it names; nothing has changed then.
    fn put_config(&self, config: Config) -> Answer<'_, Result<(), String>>;

    /// Reads the configuration's files again. The words are for the operator: what of it needs a
    /// restart, or everything that is wrong; nothing has changed then.
    fn reload(&self) -> Answer<'_, Result<Vec<String>, String>>;

    /// Cancel requests that are on their way to the peer with this number.
    fn cancels_to_peer(&self, id: u8) -> u32;

    /// The event loops.
    fn loops(&self) -> &Loops;

    /// All pools.
    fn pools(&self) -> Vec<PoolEntry>;

    /// Has a backend opened for a pool; it is counted as opening already.
    fn open(&self, pool: &Pool, home: LoopId);

    /// Closes the idle backends of a pool.
    fn close_idle(&self, pool: &Pool);

    /// Closes the idle connections of the control side itself to a database, or to all.
    fn close_lines(&self, database: Option<&str>);

    /// Has every backend of a pool replaced once it is free.
    fn reconnect(&self, pool: &Pool);

    /// What a server's id stands for.
    fn place(&self, server: ServerAddressId) -> Option<Place>;

    /// Names of servers that have been looked up.
    fn hosts(&self) -> Vec<HostRow>;

    /// How the servers of each `[[database]]` stand.
    fn servers(&self) -> Vec<ServerRow>;

    /// Who holds which place under the limits.
    fn limits(&self) -> &Arc<Limits>;

    /// Which databases are paused or disabled.
    fn gates(&self) -> &Gates;

    /// What has been counted outside of pools.
    fn tally(&self) -> &Tally;

    /// Users that the files and the configuration know.
    fn known_users(&self) -> Vec<String> {
        Vec::new()
    }

    /// What pools have counted that are forgotten.
    fn forgotten(&self) -> Forgotten {
        Forgotten::default()
    }

    /// Where metrics, health and the dashboard are, if they are.
    fn pages(&self) -> Option<SocketAddr> {
        None
    }

    /// Where clients connect: `127.0.0.1:6432`, `/run/hawser/.s.PGSQL.6432`.
    fn listeners(&self) -> Vec<String>;

    /// What does not work on this host and what is done instead, a line each.
    fn fallbacks(&self) -> Vec<String>;

    /// Connections that are MPTCP, and those that were to be.
    fn mptcp(&self) -> Option<&MptcpUsage> {
        None
    }

    /// Local connections past TCP.
    fn bypass(&self) -> Option<&BypassUsage> {
        None
    }

    /// Congestion control of connections, and what `auto` has decided.
    fn congestion(&self) -> Option<&CongestionUsage> {
        None
    }

    /// What the links of this process do.
    fn links(&self) -> Vec<Arc<Report>> {
        Vec::new()
    }

    /// What has come of the last reload, or of the start.
    fn last_reload(&self) -> LastReload {
        LastReload::default()
    }

    /// When the process began to serve.
    fn started(&self) -> SystemTime;

    /// The process whose place this one has taken, while it still has clients.
    fn predecessor(&self) -> Option<PredecessorStatus> {
        None
    }

    /// Has a command hold for the clients of the process whose place this one has taken, too.
    ///
    /// # Errors
    /// It does not.
    fn pass_on(&self, command: &Command) -> Answer<'_, Result<(), ClientError>> {
        let _ = command;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether new clients are served.
    ///
    /// # Errors
    /// Why not: it is starting, or on its way to the end.
    fn ready(&self) -> Result<(), String>;

    /// Begins the end of the process.
    fn shutdown(&self, how: Shutdown);
}

/// Names of databases under which is kept what forgotten pools have counted.
const FORGOTTEN_NAMES_MAX: usize = 1_000;

/// What pools have counted that are forgotten: counters go up alone, whatever becomes of their pools.
#[derive(Clone, Debug, Default)]
pub struct Forgotten {
    /// By database; at most [`FORGOTTEN_NAMES_MAX`], for `*` matches as many as clients can name.
    pub by_database: BTreeMap<String, Totals>,
    /// Of all others together.
    pub others: Totals,
}

impl Forgotten {
    /// A pool of `database` is forgotten that has counted this.
    pub fn add(&mut self, database: &str, totals: Totals) {
        let is_new = !self.by_database.contains_key(database);
        if is_new && self.by_database.len() >= FORGOTTEN_NAMES_MAX {
            self.others = self.others.plus(totals);
        } else {
            let sum = self.by_database.entry(database.to_owned()).or_default();
            *sum = sum.plus(totals);
        }
    }
}

/// Which databases are paused or disabled, by the names that clients ask for.
///
/// The login refuses clients of a disabled database; the registry pauses a new pool of a paused one.
#[derive(Debug, Default)]
pub struct Gates(Mutex<Closed>);

/// Who pauses or disables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// An operator, or a signal: refused once another process serves.
    Operator,
    /// The successor, whose operator means the clients of this process, too.
    Successor,
}

#[derive(Debug, Default)]
struct Closed {
    /// No client gets in any more, because the process ends when all have left.
    door: bool,
    all_paused: bool,
    paused: BTreeSet<String>,
    disabled: BTreeSet<String>,
    /// The process that clients connect to, if it is the successor.
    given_to: Option<u32>,
}

impl Closed {
    fn admits(&self, by: By) -> Result<(), ClientError> {
        match by {
            By::Operator => self.serve_here(),
            By::Successor => Ok(()),
        }
    }

    fn serve_here(&self) -> Result<(), ClientError> {
        let Some(pid) = self.given_to else { return Ok(()) };
        let message =
            format!("process {pid} has taken this process's place: nothing has been changed");
        Err(ClientError::error(SqlState::CANNOT_CONNECT_NOW, message)
            .hint("Connect again: a new console is one of that process."))
    }

    fn is_some_paused(&self) -> bool {
        self.all_paused || !self.paused.is_empty()
    }

    fn pauses(&self, database: &str) -> bool {
        self.all_paused || self.paused.contains(database)
    }
}

impl Gates {
    fn lock(&self) -> MutexGuard<'_, Closed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether clients of `database` wait, whatever is free.
    pub fn is_paused(&self, database: &str) -> bool {
        self.lock().pauses(database)
    }

    /// Pauses a pool of `database` if that is paused. RESUME ends the pause first, and lists and resumes
    /// the pools after that: so none stays paused by itself.
    pub fn pause_pool(&self, database: &str, pause: impl FnOnce()) {
        let closed = self.lock();
        if closed.pauses(database) {
            pause();
        }
    }

    /// Whether everything is paused.
    pub fn all_paused(&self) -> bool {
        self.lock().all_paused
    }

    /// Whether something is paused.
    pub fn some_paused(&self) -> bool {
        self.lock().is_some_paused()
    }

    /// Clients connect to process `pid` from here on: from here on this process refuses all that
    /// would keep them waiting, or out. Returns the databases that let no client in; `None`:
    /// something is paused, and nothing has been changed.
    pub fn give_to(&self, pid: u32) -> Option<Vec<String>> {
        let mut closed = self.lock();
        if closed.is_some_paused() {
            return None;
        }
        closed.given_to = Some(pid);
        Some(closed.disabled.iter().cloned().collect())
    }

    /// Clients connect to this process again.
    pub fn take_back(&self) {
        self.lock().given_to = None;
    }

    /// Whether commands for all clients are for this process.
    ///
    /// # Errors
    /// Another process serves.
    pub fn serve_here(&self) -> Result<(), ClientError> {
        self.lock().serve_here()
    }

    /// Whether `database` lets no client in. Never true for an admin database.
    pub fn is_disabled(&self, database: &str) -> bool {
        !ADMIN_DATABASES.contains(&database) && self.lock().disabled.contains(database)
    }

    /// Pauses a database, or all. False: it was so already.
    ///
    /// # Errors
    /// Another process serves.
    pub fn pause(&self, database: Option<&str>, by: By) -> Result<bool, ClientError> {
        let mut closed = self.lock();
        closed.admits(by)?;
        Ok(match database {
            Some(database) => closed.paused.insert(database.to_owned()),
            None => !std::mem::replace(&mut closed.all_paused, true),
        })
    }

    /// Ends the pause of a database, or of all, also of those that were paused alone. False: there
    /// was none.
    pub fn resume(&self, database: Option<&str>) -> bool {
        let mut closed = self.lock();
        match database {
            Some(database) => closed.paused.remove(database),
            None => {
                let alone = std::mem::take(&mut closed.paused);
                std::mem::replace(&mut closed.all_paused, false) || !alone.is_empty()
            }
        }
    }

    /// Lets no client into any database from now on.
    pub fn close_door(&self) {
        self.lock().door = true;
    }

    /// The error for a client that may not use `database`.
    ///
    /// # Errors
    /// The database is disabled, or the process waits for its last client.
    pub fn admit(&self, database: &str) -> Result<(), ClientError> {
        if self.lock().door {
            return Err(ClientError::fatal(
                SqlState::CANNOT_CONNECT_NOW,
                "the pooler is shutting down",
            ));
        }
        if self.is_disabled(database) {
            return Err(ClientError::fatal(
                SqlState::CANNOT_CONNECT_NOW,
                format!("database \"{database}\" is disabled"),
            )
            .hint("An administrator has run DISABLE; ENABLE ends it."));
        }
        Ok(())
    }

    /// Lets no client into a database from now on.
    ///
    /// # Errors
    /// Another process serves.
    pub fn disable(&self, database: &str, by: By) -> Result<(), ClientError> {
        let mut closed = self.lock();
        closed.admits(by)?;
        closed.disabled.insert(database.to_owned());
        Ok(())
    }

    /// Lets clients into a database again.
    pub fn enable(&self, database: &str) {
        self.lock().disabled.remove(database);
    }
}

/// A number that threads count up. Not for what happens in every transaction: see
/// [`hawser_pooler::lending::Counter`] for that.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more.
    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Errors that are Hawser's own and not a server's, by the first two letters of their SQLSTATE.
///
/// The loops count here, too: without a lock and without memory of its own.
#[derive(Debug)]
pub struct ErrorCounts(Box<[AtomicU64]>);

/// What a SQLSTATE is made of.
const SIGNS: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

impl Default for ErrorCounts {
    fn default() -> Self {
        Self((0..SIGNS.len() * SIGNS.len()).map(|_| AtomicU64::new(0)).collect())
    }
}

impl ErrorCounts {
    /// Counts an error that a client gets.
    pub fn count(&self, error: &ClientError) {
        if !error.of_server {
            let [first, second, ..] = error.code.0;
            let place = |sign| SIGNS.iter().position(|known| *known == sign);
            if let (Some(first), Some(second)) = (place(first), place(second)) {
                self.0[first * SIGNS.len() + second].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// How many there were of each class.
    pub fn by_class(&self) -> BTreeMap<String, u64> {
        let class = |at: usize| {
            let signs = [SIGNS[at / SIGNS.len()], SIGNS[at % SIGNS.len()]];
            signs.map(char::from).iter().collect()
        };
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed)).enumerate();
        counts.filter(|(_, count)| *count > 0).map(|(at, count)| (class(at), count)).collect()
    }
}

/// What PostgreSQL's manual calls a class of SQLSTATEs (Appendix A); of those that Hawser uses.
pub fn class_in_words(class: &str) -> &'static str {
    match class {
        "08" => "connection exception",
        "0A" => "feature not supported",
        "22" => "data exception",
        "25" => "invalid transaction state",
        "26" => "invalid SQL statement name",
        "28" => "invalid authorization specification",
        "34" => "invalid cursor name",
        "3D" => "invalid catalog name",
        "42" => "syntax error or access rule violation",
        "53" => "insufficient resources",
        "54" => "program limit exceeded",
        "55" => "object not in prerequisite state",
        "57" => "operator intervention",
        "58" => "system error",
        "F0" => "configuration file error",
        "XX" => "internal error",
        _ => "other error",
    }
}

/// What is counted outside of pools, since the start of the process.
#[derive(Debug, Default)]
pub struct Tally {
    /// Connections accepted.
    pub connections: Count,
    /// Connections that ended before they were logged in, whatever the reason; cancel requests too.
    pub abandoned: Count,
    /// Clients that have logged in.
    pub logins: Count,
    /// Logins refused for a wrong proof or by a rule (class 28).
    pub authentication_failures: Count,
    /// Logins refused because a limit was reached (53300).
    pub limit_refusals: Count,
    /// Logins that gave their place to another while they waited for their client.
    pub displaced: Count,
    /// TLS handshakes with clients that came to their end.
    pub tls_handshakes: Count,
    /// TLS handshakes with clients that failed.
    pub tls_failures: Count,
    /// Cancel requests from clients.
    pub cancel_requests: Count,
    /// Cancel requests that were sent on to a peer.
    pub cancel_requests_sent_on: Count,
    /// Server connections opened.
    pub server_logins: Count,
    /// Server connections that could not be opened.
    pub server_login_failures: Count,
    /// Times that accept(2) failed for want of descriptors or memory.
    pub accept_failures: Count,
    /// Errors that Hawser itself has sent to clients.
    pub errors: Arc<ErrorCounts>,
    /// Slow transactions for a collector, of which some may be lost.
    pub spans: OnceLock<Spans>,
}

impl Tally {
    /// Connections that are on their way in.
    pub fn logging_in(&self) -> u64 {
        let over = self.abandoned.get() + self.logins.get();
        self.connections.get().saturating_sub(over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resume_of_all_also_ends_single_pauses_and_says_whether_there_was_one() {
        let gates = Gates::default();
        assert!(!gates.resume(None));
        assert!(gates.pause(Some("a"), By::Operator).unwrap());
        assert!(!gates.pause(Some("a"), By::Operator).unwrap());
        assert!(gates.is_paused("a") && !gates.is_paused("b"));
        assert!(gates.resume(None));
        assert!(!gates.is_paused("a"));
        assert!(gates.pause(None, By::Operator).unwrap());
        assert!(gates.is_paused("b"));
        assert!(!gates.resume(Some("b")), "it was not paused alone");
        assert!(gates.resume(None));
    }

    #[test]
    fn what_forgotten_pools_have_counted_is_kept_for_so_many_names() {
        let mut forgotten = Forgotten::default();
        let one = Totals { queries: 1, ..Totals::default() };
        for number in 0..FORGOTTEN_NAMES_MAX + 5 {
            forgotten.add(&number.to_string(), one);
        }
        forgotten.add("0", one);
        assert_eq!(forgotten.by_database["0"].queries, 2);
        assert_eq!(forgotten.others.queries, 5);
    }

    #[test]
    fn only_errors_of_our_own_are_counted() {
        let counts = ErrorCounts::default();
        counts.count(&ClientError::fatal(SqlState::TOO_MANY_CONNECTIONS, "x"));
        counts.count(&ClientError::error(SqlState::CONFIGURATION_LIMIT_EXCEEDED, "x"));
        let said = ClientError::fatal(SqlState::INVALID_CATALOG_NAME, "x");
        counts.count(&ClientError { of_server: true, ..said });
        assert_eq!(counts.by_class(), BTreeMap::from([("53".to_owned(), 2)]));
    }

    #[test]
    fn an_admin_database_cannot_be_disabled() {
        let gates = Gates::default();
        gates.disable("hawser", By::Operator).unwrap();
        gates.disable("app", By::Operator).unwrap();
        assert!(!gates.is_disabled("hawser"));
        assert!(gates.is_disabled("app"));
        gates.enable("app");
        assert!(!gates.is_disabled("app"));
        gates.admit("app").unwrap();
        gates.close_door();
        assert_eq!(gates.admit("app").unwrap_err().code, SqlState::CANNOT_CONNECT_NOW);
    }

    #[test]
    fn what_is_paused_is_not_given_away_and_what_is_given_away_is_not_paused() {
        let gates = Gates::default();
        gates.disable("d", By::Operator).unwrap();
        gates.pause(Some("a"), By::Operator).unwrap();
        assert_eq!(gates.give_to(7), None);
        assert!(gates.resume(Some("a")));
        assert_eq!(gates.give_to(7), Some(vec!["d".to_owned()]));
        for refused in [
            gates.pause(None, By::Operator).err(),
            gates.disable("a", By::Operator).err(),
            gates.serve_here().err(),
        ] {
            assert!(refused.unwrap().message.starts_with("process 7 has taken"));
        }
        assert!(!gates.some_paused() && !gates.is_disabled("a"));
        assert!(gates.pause(Some("a"), By::Successor).unwrap() && gates.is_paused("a"));
        assert!(gates.resume(Some("a")));
        gates.take_back();
        gates.pause(None, By::Operator).unwrap();
    }
}
