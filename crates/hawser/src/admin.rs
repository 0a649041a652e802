//! The admin console: databases `hawser` and `pgbouncer`.
//!
//! # Model
//! ```text
//!  operator ──session──► command ──► show | execute ──► Pooler (what `serve` runs)
//! ```
//! What PgBouncer's console understands has the same words, columns and types here, so that tools
//! written for it work; what it lacks (the extended protocol, comments, several statements) is
//! there too.
//!
//! # Invariants
//! * `stats_users` change nothing
//! * no secret and no statement text of a client is shown

pub mod averages;
pub mod clock;
pub mod command;
pub mod execute;
pub mod operators;
pub mod patroni;
pub mod pooler;
pub mod running;
pub mod session;
pub mod show;
pub mod switchover;
pub mod table;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::lock::locked;
use crate::totals::Totals;
use averages::Notes;
use pooler::Pooler;

/// What all operators' connections share: the notes from which averages are made.
#[derive(Debug)]
pub struct Console {
    notes: Mutex<Notes>,
    operators: operators::Operators,
}

impl Default for Console {
    fn default() -> Self {
        Self { notes: Mutex::new(Notes::new(Instant::now())), operators: Default::default() }
    }
}

impl Console {
    /// For SHOW STATS and its relatives.
    pub fn notes(&self) -> &Mutex<Notes> {
        &self.notes
    }

    /// Records the counters every `stats_period`, and logs their averages if `log_stats` is on.
    /// Never ends; to be run beside the pooler.
    pub async fn take_notes(&self, pooler: Arc<dyn Pooler>) {
        loop {
            let period = pooler.config().reload.log.stats_period;
            tokio::time::sleep(period).await;
            self.take_note(pooler.as_ref());
        }
    }

    fn take_note(&self, pooler: &dyn Pooler) {
        let now = Instant::now();
        let totals: HashMap<_, _> =
            pooler.pools().iter().map(|entry| (entry.pool.id, entry.totals())).collect();
        let sum =
            |totals: &mut dyn Iterator<Item = Totals>| totals.fold(Totals::default(), Totals::plus);
        let newer = sum(&mut totals.values().copied());
        let mut notes = locked(&self.notes);
        notes.note(now, totals.clone());
        // As PgBouncer: over the period that has just ended.
        let older = sum(&mut totals.keys().map(|pool| notes.older(*pool)));
        let averages = newer.averages_since(older, notes.elapsed(now));
        drop(notes);
        if pooler.config().reload.log.log_stats {
            tracing::info!(
                transactions_per_second = averages.transactions,
                queries_per_second = averages.queries,
                received_bytes_per_second = averages.received,
                sent_bytes_per_second = averages.sent,
                transaction_us = averages.transaction_us,
                query_us = averages.query_us,
                wait_us = averages.wait_us,
                "stats"
            );
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
