//! Averages of pools' counters as PgBouncer makes them.
//!
//! # Model
//! Every `stats_period` the counters are noted, and the note before the last is kept. An average is
//! the difference between now and that older note, over the time since then: one to two periods.
//! Counts are averaged by second; times by the count that they belong to (PgBouncer's stats.c).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hawser_pooler::ids::PoolId;

use crate::totals::Totals;

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
}
