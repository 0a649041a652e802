//! SHOW QUERIES.

use std::time::SystemTime;

use hawser_pooler::queries::table::{QueryCounts, QueryRow};
use hawser_pooler::wire::error::ClientError;

use crate::admin::clock::Clock;
use crate::admin::pooler::Pooler;
use crate::admin::table::{Cell, Columns, Table, columns};
use crate::queries::Queries;
use crate::queries::order::Order;

/// Times in microseconds.
pub(super) const COLUMNS: Columns = columns![
    Text "digest", Text "database", Text "user", Numeric "calls", Numeric "errors", Numeric "rows",
    Numeric "bytes", Numeric "time", Numeric "mean", Numeric "p50", Numeric "p95", Numeric "p99",
    Numeric "wait", Text "last_seen", Text "addr", Text "query", Text "example",
];

/// The query of the last row, if statements were forgotten.
const OTHER: &str = "other";

/// The statements in this order; then what was counted for statements that were forgotten.
pub(super) async fn queries(
    mut table: Table,
    pooler: &dyn Pooler,
    order: Order,
) -> Result<Table, ClientError> {
    let mut queries = Queries::gather(pooler.loops()).await?;
    queries.sort(order);
    let clock = Clock { now: pooler.loops().now(), wall: SystemTime::now() };
    for row in &queries.all {
        let QueryRow { digest, database, user, text, example, counts, last_seen, address } = row;
        let mut row: Vec<Cell> =
            vec![digest.to_string().into(), (**database).into(), (**user).into()];
        row.extend(figures(counts));
        row.push(clock.date(*last_seen).into());
        row.push(address.0.map_or_else(|| "unix".to_owned(), |ip| ip.to_string()).into());
        row.extend([(**text).into(), example.as_deref().map(str::to_owned).into()]);
        table.push(row);
    }
    if queries.other.calls > 0 {
        let mut row = vec![Cell::Null; 3];
        row.extend(figures(&queries.other));
        row.extend([Cell::Null, Cell::Null, OTHER.into()]);
        row.push(format!("{} statements that were forgotten", queries.forgotten).into());
        table.push(row);
    }
    Ok(table)
}

fn figures(counts: &QueryCounts) -> [Cell; 10] {
    let [p50, p95, p99] = [500, 950, 990].map(|part| counts.times.per_mille(part));
    [
        counts.calls,
        counts.errors,
        counts.rows,
        counts.bytes,
        counts.time_us,
        counts.mean_us(),
        p50,
        p95,
        p99,
        counts.wait_us,
    ]
    .map(Cell::Number)
}
