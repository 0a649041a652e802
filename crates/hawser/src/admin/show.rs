//! SHOW: what there is, as tables.
//!
//! # Model       PgBouncer's columns first, in its order and with its types (src/admin.c,
//!               src/stats.c); ours after them, which [`dialect`] leaves out on database `pgbouncer`
//! # Invariants  [`columns`] knows a topic's columns without looking at anything: Describe costs
//!               nothing, and a test compares them with a fixed list
//! # Limits      SHOW CLIENTS, SOCKETS, PINS and FDS cost in proportion to clients, and SERVERS and
//!               POOLS to server connections, a page at a time ([`crate::loops::pages`]): no more than
//!               a page of rows is held. QUERIES costs in proportion to statements, whose number is
//!               bounded. All others cost in proportion to pools

pub mod dialect;
mod pools;
mod process;
mod queries;
mod sockets;
mod stats;

use std::borrow::Cow;

use hawser_pooler::wire::error::ClientError;

use super::Console;
use super::command::Topic;
use super::pooler::Pooler;
use super::table::{Column, Columns, Table};
use dialect::Dialect;
use sockets::Connections;
pub use sockets::client_number;

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
        Topic::Queries(_) => queries::COLUMNS,
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
        Topic::Rules => process::RULES_COLUMNS,
        Topic::DnsZones => super::table::columns![Text "zonename", Int8 "serial", Int4 "count"],
        Topic::Help => &[],
    }
}

/// What a topic shows, some rows at a time: tables of its columns.
pub struct Show<'a> {
    pooler: &'a dyn Pooler,
    console: &'a Console,
    topic: Topic,
    dialect: Dialect,
    /// Connections still to be shown.
    connections: Option<Connections<'a>>,
    is_over: bool,
}

impl<'a> Show<'a> {
    /// Nothing has been looked at yet.
    pub fn new(
        pooler: &'a dyn Pooler,
        console: &'a Console,
        topic: Topic,
        dialect: Dialect,
    ) -> Self {
        let connections = Connections::of(topic, pooler);
        Self { pooler, console, topic, dialect, connections, is_over: false }
    }

    /// The next rows; `None` after the last.
    ///
    /// # Errors
    /// A loop did not answer.
    pub async fn next(&mut self) -> Result<Option<Table>, ClientError> {
        let all = all_columns(self.topic);
        let mut table = Table::new(all);
        if let Some(connections) = &mut self.connections
            && connections.next(&mut table).await?
        {
            return Ok(Some(self.dialect.shown(self.topic, all, table)));
        }
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(None);
        }
        if self.connections.take().is_none() {
            table = self.whole(table).await?;
        }
        if matches!(self.dialect, Dialect::PgBouncer(_)) {
            self.console.operators.append(self.topic, self.pooler, &mut table);
        }
        Ok(Some(self.dialect.shown(self.topic, all, table)))
    }

    /// A topic whose rows are in proportion to pools.
    async fn whole(&self, table: Table) -> Result<Table, ClientError> {
        let Self { pooler, console, topic, dialect, .. } = *self;
        let as_pgbouncer = matches!(dialect, Dialect::PgBouncer(_));
        Ok(match topic {
            Topic::Pools => pools::pools(table, pooler).await?,
            Topic::Databases => pools::databases(table, pooler, as_pgbouncer),
            Topic::Users => pools::users(table, pooler),
            Topic::Lists => pools::lists(table, pooler, as_pgbouncer),
            Topic::Stats | Topic::StatsTotals | Topic::StatsAverages => {
                let of_console = as_pgbouncer.then(|| console.operators.totals());
                stats::by_database(table, topic, pooler, console, of_console)
            }
            Topic::Queries(order) => queries::queries(table, pooler, order).await?,
            Topic::Totals => stats::sum(table, pooler, console),
            Topic::Config => process::config(table, &pooler.config()),
            Topic::Mem => process::memory(table, pooler),
            Topic::Version => process::version(table, dialect),
            Topic::State => process::state(table, pooler, dialect),
            Topic::DnsHosts => process::dns_hosts(table, pooler),
            Topic::Hosts => process::hosts(table, pooler),
            Topic::Limits => process::limits(table, pooler),
            Topic::Rules => process::rules(table, pooler),
            Topic::Peers => process::peers(table, &pooler.config()),
            Topic::PeerPools => process::peer_pools(table, pooler),
            Topic::Clients
            | Topic::Servers
            | Topic::Sockets
            | Topic::ActiveSockets
            | Topic::Fds
            | Topic::Pins
            | Topic::DnsZones
            | Topic::Help => table,
        })
    }
}

#[cfg(test)]
mod tests;
