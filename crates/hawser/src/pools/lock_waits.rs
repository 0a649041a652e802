//! How many backends of a pool wait for heavyweight locks: for the hint to clients that wait for
//! the pool, and for `lock_wait_reserve`.
//!
//! # Model
//! The server is asked by [`super::upkeep`], once a second, while a client has waited for
//! [`WAITED`] or the reserve is in use: how many processes of the pool's backends wait for locks.
//! What follows from it is decided in [`hawser_pooler::lending::Pool::set_lock_waits`].
//!
//! # Limits
//! The question gets no place that a pool would have to give up for it: where limits are reached,
//! the number stays unknown, and the hint is the usual one. Of a pool with several servers, the
//! server that is asked knows its own processes only: the number is too low, and the reserve is
//! opened only if all wait on that one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::PoolEntry;
use super::enquiry::Enquiries;
use crate::dial::DialError;
use crate::shared::Shared;

/// How long a client must have waited.
const WAITED: Duration = Duration::from_secs(1);

/// The extension shows clients' process ids in place of the server's, unless it is told.
const SHOW_PROCESSES: &str = "SELECT pg_catalog.set_config('hawser.client_pids', 'off', false)";

/// $1 are process ids. (pg_locks is for all to read; in pg_stat_activity the wait of a
/// session that was handed over to another user is hidden from the pool's.)
const QUESTION: &str = "SELECT pg_catalog.count(DISTINCT l.pid) FROM pg_catalog.pg_locks l \
     WHERE NOT l.granted AND l.pid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.int4[])";

/// Has the server asked if it is time. To be called once a second.
pub(super) fn look(shared: &Arc<Shared>, enquiries: &Arc<Enquiries>, entry: &Arc<PoolEntry>) {
    let now = shared.loops.now();
    let (is_due, is_known) = {
        let pool = entry.pool.lock();
        (pool.asks_for_lock_waits(WAITED, now), pool.lock_waits() > 0)
    };
    if !is_due {
        if is_known {
            tell(shared, entry, 0); // it is outdated
        }
        return;
    }
    if entry.lock_waits.asking.swap(true, Ordering::Relaxed) {
        return;
    }
    let (shared, enquiries, entry) = (shared.clone(), enquiries.clone(), entry.clone());
    tokio::spawn(async move {
        // Unknown is none: what waits counts against the size again.
        let waits = count(&enquiries, &entry).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "could not ask which server connections wait for locks");
            0
        });
        entry.lock_waits.asking.store(false, Ordering::Relaxed);
        tell(&shared, &entry, waits);
    });
}

async fn count(enquiries: &Enquiries, entry: &PoolEntry) -> Result<u32, DialError> {
    let route = entry.route.load_full();
    // It can wait for another time: no pool gives up a place for it.
    let none = Duration::ZERO;
    enquiries.ask(&route, none, SHOW_PROCESSES, &[]).await?;
    let processes = entry.lock_waits.array();
    let answer = enquiries.ask(&route, none, QUESTION, &[processes.as_bytes()]).await?;
    let number = answer.single().and_then(|number| std::str::from_utf8(number).ok());
    Ok(number.and_then(|number| number.parse().ok()).unwrap_or(0))
}

fn tell(shared: &Shared, entry: &PoolEntry, waits: u32) {
    let (due, all) = {
        let mut pool = entry.pool.lock();
        let due = pool.set_lock_waits(waits, shared.loops.now());
        (due, pool.all_wait_for_locks())
    };
    shared.open(&entry.pool, due);
    if all && !entry.lock_waits.said.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            database = entry.key.database,
            user = entry.key.user,
            waits,
            "clients wait for a pool whose server connections all wait for locks"
        );
    } else if waits == 0 {
        entry.lock_waits.said.store(false, Ordering::Relaxed);
    }
}
