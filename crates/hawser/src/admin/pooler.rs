//! What administration reads of the running pooler and asks of it.
//!
//! # Model       `serve` gives access to everything by one object that implements [`Pooler`]; the
//!               console, the metrics and `status` use nothing else. Tests put a small one in its
//!               place.
//! # Invariants  no method waits: work that takes time is a future, or an order whose completion
//!               shows in the pools

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hawser_congestion::cc::usage::CongestionUsage;
use hawser_link::drive::report::Report;
use hawser_pooler::ids::{LoopId, ServerAddressId};
use hawser_pooler::lending::Pool as Queue;
use hawser_pooler::session::options::Replication;
use hawser_pooler::time::Time;
use hawser_pooler::wire::error::ClientError;

use super::command::{Command, Shutdown};
use crate::bypass::usage::BypassUsage;
use crate::config::Config;
use crate::dial::Place;
use crate::dial::server_row::ServerRow;
use crate::gates::Gates;
use crate::limits::Limits;
use crate::loops::{Loops, Pool};
use crate::mptcp::usage::MptcpUsage;
use crate::resolve::HostRow;
use crate::rules::Rules;
use crate::shared::LastReload;
use crate::takeover::predecessor::PredecessorStatus;
use crate::tally::Tally;
use crate::totals::{Forgotten, Totals};

/// A future of a trait's method.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

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
    /// Server connections on which Hawser asks for it.
    pub asking: u32,
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

    /// Whether the server has clients of this pool inside.
    fn serves_inside(&self, _: &Pool) -> bool {
        false
    }

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

    /// The operator's rules.
    fn rules(&self) -> &Arc<Rules>;

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
