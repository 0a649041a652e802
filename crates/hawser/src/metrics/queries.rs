//! The statements that have taken the most time: in `/metrics` and on `/`.
//!
//! # Limits  [`SHOWN_MAX`] statements: a series for each would be more than a Prometheus wants. Their
//!           counters end when others have taken more time.

use std::fmt;

use hawser_pooler::queries::table::QueryRow;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::families::{counts, gauges};
use super::markup::{self, escape};
use crate::queries::Queries;
use crate::units;

/// Statements that are shown.
pub(super) const SHOWN_MAX: usize = 20;
/// Bytes of a text in a label.
const LABEL_BYTES_MAX: usize = 120;
/// Characters of a text on the page.
const TEXT_MAX: usize = 400;
const MICROSECONDS: f64 = 1e6;

/// The families of `/metrics`, of statements sorted by their time.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, queries: &Queries) -> fmt::Result {
    let shown: Vec<_> = queries.all.iter().take(SHOWN_MAX).collect();
    let digests: Vec<String> = shown.iter().map(|row| row.digest.to_string()).collect();
    let rows = || {
        shown.iter().zip(&digests).map(|(row, digest)| {
            let labels = [
                ("digest", digest.as_str()),
                ("database", &*row.database),
                ("user", &*row.user),
                ("query", label(row)),
            ];
            (labels, row)
        })
    };
    let help = "Executions of the statements that have taken the most time (SHOW QUERIES)";
    counts(encoder, "query_calls", help, None, rows().map(|(of, row)| (of, row.counts.calls)))?;
    let help = "Executions of the statements of SHOW QUERIES that ended with an error";
    counts(encoder, "query_errors", help, None, rows().map(|(of, row)| (of, row.counts.errors)))?;
    let help = "Rows that the statements of SHOW QUERIES have returned or changed";
    counts(encoder, "query_rows", help, None, rows().map(|(of, row)| (of, row.counts.rows)))?;
    let seconds = Some(&Unit::Seconds);
    let in_seconds = |micros: u64| micros as f64 / MICROSECONDS;
    let help = "Time that the statements of SHOW QUERIES have taken at the server";
    let times = rows().map(|(of, row)| (of, in_seconds(row.counts.time_us)));
    counts(encoder, "query_time", help, seconds, times)?;
    let help = "Time for which clients waited for a server connection before the statements of SHOW QUERIES";
    let waits = rows().map(|(of, row)| (of, in_seconds(row.counts.wait_us)));
    counts(encoder, "query_wait_time", help, seconds, waits)?;
    let help = "Time that 99 of 100 executions of a statement of SHOW QUERIES do not exceed";
    let times = rows().map(|(of, row)| (of, in_seconds(row.counts.times.per_mille(990))));
    gauges(encoder, "query_p99", help, seconds, times)?;
    let help = "Executions of statements that SHOW QUERIES counts as other";
    counts(encoder, "other_query_calls", help, None, [([], queries.other.calls)])?;
    let help = "Statements that SHOW QUERIES has forgotten";
    counts(encoder, "forgotten_queries", help, None, [([], queries.forgotten)])
}

/// As much of a statement as is shown.
fn label(row: &QueryRow) -> &str {
    &row.text[..row.text.floor_char_boundary(LABEL_BYTES_MAX)]
}

const COLUMNS: [&str; 9] =
    ["query", "database", "user", "calls", "errors", "total time", "mean", "p99", "total wait"];

/// The table of `/`.
pub(super) fn table(html: &mut String, queries: &Queries) -> fmt::Result {
    if queries.all.is_empty() {
        return Ok(());
    }
    html.push_str("<h2>Queries that have taken the most time</h2>\n");
    markup::table(html, &COLUMNS)?;
    for row in queries.all.iter().take(SHOWN_MAX) {
        let cells = [
            escape(&units::short(&row.text, TEXT_MAX)),
            escape(&row.database),
            escape(&row.user),
            units::grouped(row.counts.calls),
            units::grouped(row.counts.errors),
            units::time(row.counts.time_us),
            units::time(row.counts.mean_us()),
            units::time(row.counts.times.per_mille(990)),
            units::time(row.counts.wait_us),
        ];
        markup::row(html, &COLUMNS, &cells)?;
    }
    html.push_str(
        "</table>\n<p class=\"dim\">Since the start. p99: 99 of 100 calls took no longer, within an eighth. Total wait: \
         for a server connection, before these calls. All queries: SHOW QUERIES.</p>\n",
    );
    Ok(())
}
