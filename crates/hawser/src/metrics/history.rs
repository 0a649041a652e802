//! What the plots of the status page show: five minutes of figures.
//!
//! # Model
//! Every [`EVERY`] the counters of all pools are noted. A point is the average since the note before
//! the last, so it is smooth; the rates in the table of pools are as of the same notes.
//!
//! # Limits
//! [`POINTS`] points, and two notes of each pool's counters.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use hawser_pooler::ids::PoolId;

use crate::admin::averages::Notes;
use crate::admin::pooler::{PoolEntry, Pooler};
use crate::totals::Totals;

/// The time from one point to the next.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// Points that are kept.
const POINTS: usize = 60;

/// What there was at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    /// Counts by second, times by what they belong to.
    pub(super) averages: Totals,
    /// Clients that wait for a server connection.
    pub(super) waiting: u64,
    /// Server connections with a client.
    pub(super) in_use: u64,
    /// Errors that clients got since the point before.
    pub(super) errors: u64,
}

/// The last five minutes.
#[derive(Debug)]
pub(super) struct History {
    notes: Notes,
    errors: Option<u64>,
    pub(super) points: VecDeque<Point>,
}

impl History {
    pub(super) fn new(now: Instant) -> Self {
        Self { notes: Notes::new(now), errors: None, points: VecDeque::new() }
    }

    /// Adds a point.
    pub(super) fn note(&mut self, now: Instant, pooler: &dyn Pooler) {
        let pools = pooler.pools();
        let (mut newer, mut older) = (Totals::default(), Totals::default());
        let (mut waiting, mut in_use) = (0, 0);
        let mut noted = HashMap::new();
        for entry in &pools {
            let totals = entry.totals();
            newer = newer.plus(totals);
            older = older.plus(self.notes.older(entry.pool.id));
            noted.insert(entry.pool.id, totals);
            let queue = entry.pool.lock();
            waiting += u64::from(entry.waiting(&queue));
            in_use += u64::from(queue.lent_count());
        }
        let averages = newer.averages_since(older, self.notes.elapsed(now));
        self.notes.note(now, noted);
        let errors = pooler.tally().errors.by_class().values().sum();
        let before = self.errors.replace(errors).unwrap_or(errors);
        let errors = errors.saturating_sub(before);
        self.points.push_back(Point { averages, waiting, in_use, errors });
        if self.points.len() > POINTS {
            self.points.pop_front();
        }
    }

    /// The averages of a pool over the last seconds.
    pub(super) fn averages(&self, entry: &PoolEntry, now: Instant) -> Totals {
        let id: PoolId = entry.pool.id;
        entry.totals().averages_since(self.notes.older(id), self.notes.elapsed(now))
    }
}
