//! What pools count.

use std::collections::BTreeMap;
use std::time::Duration;

use hawser_pooler::lending::PoolStats;

/// The counters, with their names in SHOW TOTALS.
macro_rules! totals {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// The counters that SHOW STATS shows. Times in microseconds.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Totals {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Totals {
            /// Names of SHOW TOTALS and places of the values in [`Totals::values`].
            pub const NAMES: [&'static str; COUNT] = [$($name),*];

            /// In the order of [`Totals::NAMES`].
            pub fn values(self) -> [u64; COUNT] {
                [$(self.$field),*]
            }

            fn zip(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
                Self { $($field: with(self.$field, other.$field)),* }
            }
        }
    };
}

const COUNT: usize = 12;

totals! {
    /// Times that a client was given a backend.
    assignments = "server_assignment_count",
    /// Transactions ended.
    transactions = "xact_count",
    /// Queries ended.
    queries = "query_count",
    /// Bytes from clients.
    received = "client_bytes",
    /// Bytes to clients.
    sent = "server_bytes",
    /// Time in transactions.
    transaction_us = "xact_time",
    /// Time in queries.
    query_us = "query_time",
    /// Time that clients waited for a backend.
    wait_us = "wait_time",
    /// Parse messages from clients.
    client_parses = "ps_client_parse_count",
    /// Parse messages to servers.
    server_parses = "ps_server_parse_count",
    /// Bind messages.
    binds = "ps_bind_count",
    /// Logins of clients.
    logins = "client_login_count",
}

impl Totals {
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
            transaction_us: each(counted.transaction_us, counted.transactions),
            query_us: each(counted.query_us, counted.queries),
            wait_us: each(counted.wait_us, counted.assignments),
            ..counted.zip(counted, |count, _| second(count))
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn every_counter_of_a_pool_is_read() {
        let stats = PoolStats::new(1); // of a loop, and of what runs inside
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
