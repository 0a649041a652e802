//! Counters of pools, and their averages as PgBouncer makes them.
//!
//! # Model
//! Every `stats_period` the counters are noted, and the note before the last is kept. An average is
//! the difference between now and that older note, over the time since then: one to two periods.
//! Counts are averaged by second; times by the count that they belong to (PgBouncer's stats.c).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hawser_pooler::ids::PoolId;
use hawser_pooler::lending::PoolStats;

/// The counters that SHOW STATS shows. Times in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Times that a client was given a backend.
    pub assignments: u64,
    /// Transactions ended.
    pub transactions: u64,
    /// Queries ended.
    pub queries: u64,
    /// Bytes from clients.
    pub received: u64,
    /// Bytes to clients.
    pub sent: u64,
    /// Time in transactions.
    pub transaction_us: u64,
    /// Time in queries.
    pub query_us: u64,
    /// Time that clients waited for a backend.
    pub wait_us: u64,
    /// Parse messages from clients.
    pub client_parses: u64,
    /// Parse messages to servers.
    pub server_parses: u64,
    /// Bind messages.
    pub binds: u64,
    /// Logins of clients.
    pub logins: u64,
}

impl Totals {
    /// Names of SHOW TOTALS and places of the values in [`Totals::values`].
    pub const NAMES: [&'static str; 12] = [
        "server_assignment_count",
        "xact_count",
        "query_count",
        "client_bytes",
        "server_bytes",
        "xact_time",
        "query_time",
        "wait_time",
        "ps_client_parse_count",
        "ps_server_parse_count",
        "ps_bind_count",
        "client_login_count",
    ];

    /// The counters of a pool, over all loops.
    pub fn of(stats: &PoolStats) -> Self {
        let mut totals = Self::default();
        for stats in stats.iter() {
            totals.assignments += stats.assignments.get();
            totals.transactions += stats.transactions.get();
            totals.queries += stats.queries.get();
            totals.received += stats.received.get();
            totals.sent += stats.sent.get();
            totals.transaction_us += stats.transaction.sum_us();
            totals.query_us += stats.query.sum_us();
            totals.wait_us += stats.wait.sum_us();
            totals.client_parses += stats.client_parses.get();
            totals.server_parses += stats.server_parses.get();
            totals.binds += stats.binds.get();
        }
        totals
    }

    /// In the order of [`Totals::NAMES`].
    pub fn values(self) -> [u64; 12] {
        [
            self.assignments,
            self.transactions,
            self.queries,
            self.received,
            self.sent,
            self.transaction_us,
            self.query_us,
            self.wait_us,
            self.client_parses,
            self.server_parses,
            self.binds,
            self.logins,
        ]
    }

    fn zip(self, other: Self, mut with: impl FnMut(u64, u64) -> u64) -> Self {
        let (a, b) = (self.values(), other.values());
        let [
            assignments,
            transactions,
            queries,
            received,
            sent,
            transaction_us,
            query_us,
            wait_us,
            client_parses,
            server_parses,
            binds,
            logins,
        ] = std::array::from_fn(|at| with(a[at], b[at]));
        Self {
            assignments,
            transactions,
            queries,
            received,
            sent,
            transaction_us,
            query_us,
            wait_us,
            client_parses,
            server_parses,
            binds,
            logins,
        }
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// The averages of what was counted since `older`, `elapsed` ago.
    #[must_use]
    pub fn averages_since(self, older: Self, elapsed: Duration) -> Self {
        let micros = elapsed.as_micros();
        if micros == 0 {
            return Self::default();
        }
        let counted = self.zip(older, u64::saturating_sub);
        let second =
            |count: u64| u64::try_from(u128::from(count) * 1_000_000 / micros).unwrap_or(u64::MAX);
        let each = |micros: u64, count: u64| micros.checked_div(count).unwrap_or(0);
        Self {
            assignments: second(counted.assignments),
            transactions: second(counted.transactions),
            queries: second(counted.queries),
            received: second(counted.received),
            sent: second(counted.sent),
            transaction_us: each(counted.transaction_us, counted.transactions),
            query_us: each(counted.query_us, counted.queries),
            wait_us: each(counted.wait_us, counted.assignments),
            client_parses: second(counted.client_parses),
            server_parses: second(counted.server_parses),
            binds: second(counted.binds),
            logins: second(counted.logins),
        }
    }
}

/// The notes from which averages are made.
#[derive(Debug)]
pub struct Notes {
    older: HashMap<PoolId, Totals>,
    newer: HashMap<PoolId, Totals>,
    older_at: Instant,
    newer_at: Instant,
}

impl Notes {
    /// None yet: averages are over the time since `now`.
    pub fn new(now: Instant) -> Self {
        Self { older: HashMap::new(), newer: HashMap::new(), older_at: now, newer_at: now }
    }

    /// A period has ended with these counters.
    pub fn note(&mut self, now: Instant, totals: HashMap<PoolId, Totals>) {
        self.older = std::mem::replace(&mut self.newer, totals);
        self.older_at = std::mem::replace(&mut self.newer_at, now);
    }

    /// The counters of a pool in the older note; zero if it was not there yet.
    pub fn older(&self, pool: PoolId) -> Totals {
        self.older.get(&pool).copied().unwrap_or_default()
    }

    /// How long ago the older note was made.
    pub fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.older_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_averaged_by_second_and_times_by_their_count() {
        let older = Totals { queries: 100, query_us: 1_000, assignments: 1, ..Totals::default() };
        let newer = Totals {
            queries: 300,
            query_us: 11_000,
            assignments: 11,
            wait_us: 50,
            received: 4_000,
            ..Totals::default()
        };
        let averages = newer.averages_since(older, Duration::from_secs(2));
        assert_eq!(
            averages,
            Totals {
                queries: 100,
                query_us: 50,
                assignments: 5,
                wait_us: 5,
                received: 2_000,
                ..Totals::default()
            }
        );
        assert_eq!(newer.averages_since(older, Duration::ZERO), Totals::default());
        assert_eq!(newer.averages_since(newer, Duration::from_secs(1)), Totals::default());
    }

    #[test]
    fn an_average_reaches_back_to_the_note_before_the_last() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let pool = PoolId(1);
        let with = |queries| HashMap::from([(pool, Totals { queries, ..Totals::default() })]);
        let mut notes = Notes::new(start);
        assert_eq!(notes.elapsed(start + second), second);
        notes.note(start + 10 * second, with(5));
        assert_eq!(notes.older(pool).queries, 0);
        assert_eq!(notes.elapsed(start + 11 * second), 11 * second);
        notes.note(start + 20 * second, with(9));
        assert_eq!(notes.older(pool).queries, 5);
        assert_eq!(notes.elapsed(start + 25 * second), 15 * second);
    }

    #[test]
    fn every_counter_of_a_pool_is_read() {
        let stats = PoolStats::new(2);
        for (at, block) in stats.iter().enumerate() {
            let factor = at as u64 + 1;
            for (counter, n) in [
                (&block.assignments, 1),
                (&block.transactions, 2),
                (&block.queries, 3),
                (&block.received, 4),
                (&block.sent, 5),
                (&block.client_parses, 9),
                (&block.server_parses, 10),
                (&block.binds, 11),
            ] {
                counter.add(n * factor);
            }
            block.transaction.record(6 * factor);
            block.query.record(7 * factor);
            block.wait.record(8 * factor);
        }
        // Logins are counted beside it.
        let expected: Vec<u64> = (1..=11).map(|n| n * 3).chain([0]).collect();
        assert_eq!(Totals::of(&stats).values().to_vec(), expected);
    }
}
