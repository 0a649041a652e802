//! SHOW STATS and its relatives.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::admin::Console;
use crate::admin::averages::Notes;
use crate::admin::command::Topic;
use crate::admin::pooler::Pooler;
use crate::admin::table::{Cell, Columns, Table, columns};
use crate::config::CONSOLE;
use crate::lock::locked;
use crate::totals::Totals;

pub(super) const STATS_COLUMNS: Columns = columns![
    Text "database", Numeric "total_server_assignment_count", Numeric "total_xact_count",
    Numeric "total_query_count", Numeric "total_received", Numeric "total_sent",
    Numeric "total_xact_time", Numeric "total_query_time", Numeric "total_wait_time",
    Numeric "total_client_parse_count", Numeric "total_server_parse_count",
    Numeric "total_bind_count", Numeric "total_client_login_count",
    Numeric "avg_server_assignment_count", Numeric "avg_xact_count",
    Numeric "avg_query_count", Numeric "avg_recv", Numeric "avg_sent", Numeric "avg_xact_time",
    Numeric "avg_query_time", Numeric "avg_wait_time", Numeric "avg_client_parse_count",
    Numeric "avg_server_parse_count", Numeric "avg_bind_count",
    Numeric "avg_client_login_count",
];

pub(super) const TOTALS_COLUMNS: Columns = columns![
    Text "database", Numeric "server_assignment_count", Numeric "xact_count",
    Numeric "query_count", Numeric "bytes_received", Numeric "bytes_sent", Numeric "xact_time",
    Numeric "query_time", Numeric "wait_time", Numeric "client_parse_count",
    Numeric "server_parse_count", Numeric "bind_count", Numeric "client_login_count",
];

pub(super) const AVERAGES_COLUMNS: Columns = columns![
    Text "database", Numeric "server_assignment_count", Numeric "xact_count",
    Numeric "query_count", Numeric "bytes_received", Numeric "bytes_sent", Numeric "xact_time",
    Numeric "query_time", Numeric "wait_time", Numeric "avg_client_parse_count",
    Numeric "avg_server_parse_count", Numeric "avg_bind_count",
    Numeric "avg_client_login_count",
];

pub(super) const SUM_COLUMNS: Columns = columns![Text "name", Numeric "value"];

/// Counters now and in the older note.
#[derive(Clone, Copy, Default)]
struct Pair {
    now: Totals,
    older: Totals,
}

impl Pair {
    fn plus(self, other: Self) -> Self {
        Self { now: self.now.plus(other.now), older: self.older.plus(other.older) }
    }
}

fn pairs(pooler: &dyn Pooler, notes: &Notes) -> BTreeMap<String, Pair> {
    let mut by_database = BTreeMap::<String, Pair>::new();
    for entry in pooler.pools() {
        let pool = &entry.pool;
        let pair = Pair { now: entry.totals(), older: notes.older(pool.id) };
        let sum = by_database.entry(pool.database.clone()).or_default();
        *sum = sum.plus(pair);
    }
    by_database
}

/// What forgotten pools have counted: nothing of it is of the last period.
fn forgotten(now: Totals) -> Pair {
    Pair { now, older: now }
}

pub(super) fn by_database(
    mut table: Table,
    topic: Topic,
    pooler: &dyn Pooler,
    console: &Console,
    of_console: Option<Totals>,
) -> Table {
    let notes = locked(console.notes());
    let elapsed = notes.elapsed(Instant::now());
    let mut pairs = pairs(pooler, &notes);
    // A database without an entry goes with its last pool, as in PgBouncer.
    let config = pooler.config();
    let listed = |name: &String| config.databases().iter().any(|entry| entry.name == *name);
    for (database, totals) in pooler.forgotten().by_database {
        if listed(&database) || pairs.contains_key(&database) {
            let sum = pairs.entry(database).or_default();
            *sum = sum.plus(forgotten(totals));
        }
    }
    if let Some(now) = of_console {
        pairs.insert(CONSOLE.to_owned(), Pair { now, older: now });
    }
    for (database, pair) in pairs {
        let averages = pair.now.averages_since(pair.older, elapsed);
        let (totals, averages) = match topic {
            Topic::StatsTotals => (Some(pair.now), None),
            Topic::StatsAverages => (None, Some(averages)),
            _ => (Some(pair.now), Some(averages)),
        };
        let numbers = totals.into_iter().chain(averages).flat_map(Totals::values);
        table
            .push(std::iter::once(Cell::Text(database)).chain(numbers.map(Cell::Number)).collect());
    }
    table
}

pub(super) fn sum(mut table: Table, pooler: &dyn Pooler, console: &Console) -> Table {
    let notes = locked(console.notes());
    let gone = pooler.forgotten();
    let gone = gone.by_database.into_values().fold(gone.others, Totals::plus);
    let pair = pairs(pooler, &notes).into_values().fold(forgotten(gone), Pair::plus);
    let averages = pair.now.averages_since(pair.older, notes.elapsed(Instant::now()));
    for (prefix, totals) in [("total", pair.now), ("avg", averages)] {
        for (name, value) in Totals::NAMES.into_iter().zip(totals.values()) {
            table.push(vec![format!("{prefix}_{name}").into(), value.into()]);
        }
    }
    table
}
