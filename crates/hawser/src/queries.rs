//! What the loops have counted of queries, put together.
//!
//! # Model   each loop counts for itself ([`hawser_pooler::queries`]); who shows it asks all of them, and
//!           adds up the rows of a statement of a database and user.
//! # Limits  a loop has a bounded number of statements, so the sum has as many for each loop at most

pub mod order;

use std::collections::HashMap;
use std::sync::Arc;

use hawser_pooler::queries::digest::Digest;
use hawser_pooler::queries::table::{QueryCounts, QueryRow};
use hawser_pooler::relay::message::Listed;
use serde::{Deserialize, Serialize};

use crate::loops::Loops;
use crate::loops::pages::{LoopSilent, Pages};
use order::Order;

/// Statements that other programs are given: `hawser status` and `hawser top`.
const REPORTED_MAX: usize = 300;
/// Bytes of a text that they are given.
const REPORTED_BYTES_MAX: usize = 400;

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Queries {
    /// Statements, each of a database and user. The address is the one with the most votes in a loop.
    pub all: Vec<QueryRow>,
    /// What was counted for others.
    pub other: QueryCounts,
    /// Statements that were forgotten: a loop counts a bounded number.
    pub forgotten: u64,
}

type Key = (Digest, Arc<str>, Arc<str>);

impl Queries {
    /// Asks all loops.
    ///
    /// # Errors
    /// A loop did not answer.
    pub async fn gather(loops: &Loops) -> Result<Self, LoopSilent> {
        let mut gathered = Self::default();
        let mut places = HashMap::<Key, usize>::new();
        let mut pages = Pages::new(loops, Listed::Queries, false);
        while let Some(page) = pages.next().await? {
            for row in page.queries {
                gathered.add(&mut places, row);
            }
            if let Some(other) = page.other_queries {
                gathered.other.add(&other.0);
                gathered.forgotten += other.1;
            }
        }
        Ok(gathered)
    }

    fn add(&mut self, places: &mut HashMap<Key, usize>, row: QueryRow) {
        let key = (row.digest, row.database.clone(), row.user.clone());
        let place = *places.entry(key).or_insert(self.all.len());
        let Some(sum) = self.all.get_mut(place) else {
            self.all.push(row);
            return;
        };
        sum.counts.add(&row.counts);
        sum.last_seen = sum.last_seen.max(row.last_seen);
        if row.address.1 > sum.address.1 {
            sum.address = row.address;
        }
        if sum.example.is_none() {
            sum.example = row.example;
        }
    }

    /// Sorts the statements: what has the most of it comes first.
    pub fn sort(&mut self, order: Order) {
        self.all.sort_by(|one, other| {
            let by = |row: &QueryRow| (order.of(row), row.counts.calls);
            by(other).cmp(&by(one)).then_with(|| one.text.cmp(&other.text))
        });
    }

    /// What other programs are given: the statements that have taken the most time.
    pub fn report(mut self) -> Vec<QueryStatus> {
        self.sort(Order::Time);
        self.all.iter().take(REPORTED_MAX).map(QueryStatus::of).collect()
    }
}

/// A statement in the answer of the control socket. Times in microseconds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueryStatus {
    /// Its digest.
    pub digest: String,
    /// Its database.
    pub database: String,
    /// Its user.
    pub user: String,
    /// The start of its normalised text.
    pub query: String,
    /// Executions that have ended.
    pub calls: u64,
    /// Those of them with an error.
    pub errors: u64,
    /// Rows returned or changed.
    pub rows: u64,
    /// The sum of their times.
    pub time_us: u64,
    /// The time that 99 of 100 do not exceed.
    pub p99_us: u64,
    /// The sum of the waits before them.
    pub wait_us: u64,
}

impl QueryStatus {
    fn of(row: &QueryRow) -> Self {
        let text = &row.text;
        Self {
            digest: row.digest.to_string(),
            database: row.database.to_string(),
            user: row.user.to_string(),
            query: text[..text.floor_char_boundary(REPORTED_BYTES_MAX)].to_owned(),
            calls: row.counts.calls,
            errors: row.counts.errors,
            rows: row.counts.rows,
            time_us: row.counts.time_us,
            p99_us: row.counts.times.per_mille(990),
            wait_us: row.counts.wait_us,
        }
    }
}

/// A row, for tests.
#[cfg(test)]
pub(crate) fn row(text: &str, user: &str, calls: u64, time_us: u64) -> QueryRow {
    let (digest, normal) = hawser_pooler::queries::digest::digest(text.as_bytes());
    let mut counts = QueryCounts { calls, time_us, rows: 2 * calls, ..QueryCounts::default() };
    for _ in 0..calls {
        counts.times.record(time_us / calls);
    }
    QueryRow {
        digest,
        database: "app".into(),
        user: user.into(),
        text: normal.into(),
        example: Some(text.into()),
        counts,
        last_seen: hawser_pooler::time::Time::ZERO,
        address: (Some([10, 0, 0, 1].into()), 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_several_loops_are_one_for_each_statement_and_user() {
        let (mut all, mut places) = (Queries::default(), HashMap::new());
        let votes = QueryRow { address: (None, 7), ..row("SELECT 2", "ann", 3, 60) };
        for row in [row("SELECT 1", "ann", 1, 100), row("SELECT 1", "bob", 9, 90), votes] {
            all.add(&mut places, row);
        }
        all.sort(Order::Time);
        let shown: Vec<_> = all
            .all
            .iter()
            .map(|row| (&*row.user, row.counts.calls, row.counts.mean_us(), row.address.0))
            .collect();
        assert_eq!(
            shown,
            [("ann", 4, 40, None), ("bob", 9, 10, Some([10, 0, 0, 1].into()))],
            "the address with the most votes"
        );
        all.sort(Order::Calls);
        assert_eq!(&*all.all[0].user, "bob");
        let reported = all.report();
        assert_eq!((reported.len(), &*reported[0].query), (2, "select ?"));
    }
}
