//! SHOW: what there is, as tables.
//!
//! # Model       PgBouncer's columns first, in its order and with its types (src/admin.c,
//!               src/stats.c); ours after them, which [`dialect`] leaves out on database `pgbouncer`
//! # Invariants  [`columns`] knows a topic's columns without looking at anything: Describe costs
//!               nothing, and a test compares them with a fixed list
//! # Limits      SHOW CLIENTS, SERVERS, SOCKETS, PINS and FDS ask every loop and cost in proportion
//!               to clients, POOLS to server connections; all others in proportion to pools

pub mod dialect;
mod pools;
mod process;
mod sockets;
mod stats;

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use hawser_core::engine::ToLoop;
use hawser_core::engine::message::{Scope, Snapshot};
use hawser_core::ids::PoolId;
use hawser_core::session::options::Replication;
use hawser_core::wire::error::{ClientError, SqlState};
use tokio::sync::oneshot;

use super::Console;
use super::clock::Clock;
use super::command::Topic;
use super::pooler::Pooler;
use super::table::{Column, Columns, Table};
use dialect::Dialect;
pub use sockets::client_number;

/// How long a loop may take to tell what it holds.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(5);

/// The columns of a topic in a dialect; HELP has none, it is a notice.
pub fn columns(topic: Topic, dialect: Dialect) -> Cow<'static, [Column]> {
    dialect.columns(topic, all_columns(topic))
}

fn all_columns(topic: Topic) -> Columns {
    match topic {
        Topic::Clients | Topic::Servers => sockets::COLUMNS,
        Topic::Sockets | Topic::ActiveSockets => sockets::LOW_LEVEL_COLUMNS,
        Topic::Fds => sockets::FDS_COLUMNS,
        Topic::Pins => sockets::PINS_COLUMNS,
        Topic::Pools => pools::POOLS_COLUMNS,
        Topic::Databases => pools::DATABASES_COLUMNS,
        Topic::Users => pools::USERS_COLUMNS,
        Topic::Lists => pools::LISTS_COLUMNS,
        Topic::Peers => {
            super::table::columns![Int4 "peer_id", Text "host", Int4 "port", Int4 "pool_size"]
        }
        Topic::PeerPools => super::table::columns![
            Int4 "peer_id", Int4 "cl_active_cancel_req", Int4 "cl_waiting_cancel_req",
            Int4 "sv_active_cancel", Int4 "sv_login",
        ],
        Topic::Stats => stats::STATS_COLUMNS,
        Topic::StatsTotals => stats::TOTALS_COLUMNS,
        Topic::StatsAverages => stats::AVERAGES_COLUMNS,
        Topic::Totals => stats::SUM_COLUMNS,
        Topic::Config => process::CONFIG_COLUMNS,
        Topic::Mem => process::MEM_COLUMNS,
        Topic::Version => process::VERSION_COLUMNS,
        Topic::State => process::STATE_COLUMNS,
        Topic::DnsHosts => process::DNS_HOSTS_COLUMNS,
        Topic::Hosts => process::HOSTS_COLUMNS,
        Topic::Limits => process::LIMITS_COLUMNS,
        Topic::DnsZones => super::table::columns![Text "zonename", Int8 "serial", Int4 "count"],
        Topic::Help => &[],
    }
}

/// What a topic shows now.
///
/// # Errors
/// A loop did not answer.
pub async fn show(
    pooler: &dyn Pooler,
    console: &Console,
    topic: Topic,
    dialect: Dialect,
) -> Result<Table, ClientError> {
    let all = all_columns(topic);
    let table = Table::new(all);
    let as_pgbouncer = matches!(dialect, Dialect::PgBouncer(_));
    let mut table = match topic {
        Topic::Clients | Topic::Servers | Topic::Sockets | Topic::ActiveSockets | Topic::Fds => {
            let scope = if topic == Topic::Fds { Scope::Clients } else { Scope::Addresses };
            sockets::fill(table, topic, &everything(pooler, scope).await?)
        }
        Topic::Pins => sockets::pins(table, &everything(pooler, Scope::Clients).await?),
        Topic::Pools => pools::pools(table, pooler, &snapshots(pooler, Scope::Backends).await?),
        Topic::Databases => pools::databases(table, pooler, as_pgbouncer),
        Topic::Users => pools::users(table, pooler),
        Topic::Lists => pools::lists(table, pooler, as_pgbouncer),
        Topic::Stats | Topic::StatsTotals | Topic::StatsAverages => {
            let of_console = as_pgbouncer.then(|| console.operators.totals());
            stats::by_database(table, topic, pooler, console, of_console)
        }
        Topic::Totals => stats::sum(table, pooler, console),
        Topic::Config => process::config(table, &pooler.config()),
        Topic::Mem => process::memory(table, pooler),
        Topic::Version => process::version(table, dialect),
        Topic::State => process::state(table, pooler, dialect),
        Topic::DnsHosts => process::dns_hosts(table, pooler),
        Topic::Hosts => process::hosts(table, pooler),
        Topic::Limits => process::limits(table, pooler),
        Topic::Peers => process::peers(table, &pooler.config()),
        Topic::PeerPools => process::peer_pools(table, pooler),
        Topic::DnsZones | Topic::Help => table,
    };
    if as_pgbouncer {
        console.operators.append(topic, pooler, &mut table);
    }
    Ok(dialect.shown(topic, all, table))
}

/// What all loops and pools hold.
struct Everything<'a> {
    pooler: &'a dyn Pooler,
    clock: Clock,
    snapshots: Vec<Snapshot>,
    /// What each pool replicates, if it does.
    replication: HashMap<PoolId, Replication>,
}

async fn everything(pooler: &dyn Pooler, scope: Scope) -> Result<Everything<'_>, ClientError> {
    let snapshots = snapshots(pooler, scope).await?;
    let clock = Clock { now: pooler.loops().now(), wall: SystemTime::now() };
    let replication = pooler.pools().iter().map(|e| (e.pool.id, e.replication)).collect();
    Ok(Everything { pooler, clock, snapshots, replication })
}

/// What each loop holds.
///
/// # Errors
/// A loop did not answer within [`SNAPSHOT_WAIT`].
pub async fn snapshots(pooler: &dyn Pooler, scope: Scope) -> Result<Vec<Snapshot>, ClientError> {
    let mut answers = Vec::new();
    for home in pooler.loops().ids() {
        let (sender, receiver) = oneshot::channel();
        let reply = move |snapshot| {
            // The client that asked may have left.
            let _ = sender.send(snapshot);
        };
        pooler.loops().send(home, ToLoop::Snapshot(scope, Box::new(reply)));
        answers.push((home, receiver));
    }
    let until = tokio::time::Instant::from_std(Instant::now() + SNAPSHOT_WAIT);
    let mut snapshots = Vec::with_capacity(answers.len());
    for (home, answer) in answers {
        match tokio::time::timeout_at(until, answer).await {
            Ok(Ok(snapshot)) => snapshots.push(snapshot),
            Ok(Err(_)) | Err(_) => {
                return Err(ClientError::error(
                    SqlState::SYSTEM_ERROR,
                    format!("event loop {home} does not answer"),
                )
                .hint("The other SHOW commands do not ask the loops. Try again."));
            }
        }
    }
    Ok(snapshots)
}

#[cfg(test)]
mod tests;
