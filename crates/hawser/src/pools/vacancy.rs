//! Databases that must have no connections for a while: for DROP DATABASE, CREATE DATABASE of a
//! copy and the like, which the server refuses (55006) as long as there is another.
//!
//! # Model
//! ```text
//!   a client sends one ─► its clients have left? ─► its idle connections are closed, none is opened
//!                            │ no, after LEAVING                        │ all have gone, or after CLOSING
//!                            ▼                                          ▼
//!                      the statement goes to the server, which waits 5 s for others to go; one that leaves
//!                      meanwhile is closed as above; all ends with the server's answer, or after VACANT_MAX
//! ```
//!
//! # Invariants
//! * as long as clients are connected here to a database, their connections stay: the server
//!   answers as it would without a pooler
//! * every connection opened for a database, for whatever purpose, goes through
//!   [`Vacancies::admitted`]
//!
//! # Limits
//! Servers are the same if one of their configured addresses is. A server connection whose client
//! leaves in mid-transaction is closed once it has been tidied.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_pooler::ids::{ClientId, PoolId};
use hawser_pooler::relay::ToLoop;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use super::lines::Lines;
use super::{PoolEntry, Pools, Route, idle, locked};
use crate::config::ServerAddress;
use crate::shared::Shared;

/// How long a statement waits here for clients of the database that are about to leave.
const LEAVING: Duration = Duration::from_millis(100);
/// How long it waits for server connections that are being opened, tidied or asked. The server waits
/// 5 s itself (`CountOtherDBBackends`, procarray.c).
const CLOSING: Duration = Duration::from_secs(1);
/// The longest time without openings. The server has locked the database by then.
const VACANT_MAX: Duration = Duration::from_secs(60);
/// Time between looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The databases, each with its servers.
pub struct Vacancies {
    shared: Arc<Shared>,
    pools: Arc<Pools>,
    lines: Arc<Lines>,
    closed: Mutex<Vec<(u64, Wanted)>>,
    next: AtomicU64,
    changed: Notify,
}

/// A database that a client wants for itself.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Wanted {
    servers: Vec<ServerAddress>,
    database: String,
}

impl Wanted {
    fn is(&self, route: &Route) -> bool {
        route.login.database == self.database
            && route.target.servers.iter().any(|server| self.servers.contains(server))
    }
}

impl Vacancies {
    /// None yet.
    pub fn new(shared: Arc<Shared>, pools: Arc<Pools>, lines: Arc<Lines>) -> Self {
        let (closed, next, changed) = Default::default();
        Self { shared, pools, lines, closed, next, changed }
    }

    /// Whether connections may be opened by this route.
    pub fn admits(&self, route: &Route) -> bool {
        !locked(&self.closed).iter().any(|(_, wanted)| wanted.is(route))
    }

    /// Waits until they may.
    pub async fn admitted(&self, route: &Route) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.admits(route) {
                return;
            }
            changed.await;
        }
    }
}

/// A database to which no connection is opened until this is dropped.
struct Closed<'a> {
    vacancies: &'a Vacancies,
    id: u64,
    pools: Vec<Arc<PoolEntry>>,
}

impl<'a> Closed<'a> {
    fn begin(vacancies: &'a Vacancies, wanted: &Wanted) -> Self {
        let id = vacancies.next.fetch_add(1, Ordering::Relaxed);
        locked(&vacancies.closed).push((id, wanted.clone()));
        let pools = vacancies.pools_of(wanted);
        for entry in &pools {
            entry.pool.lock().begin_vacancy();
        }
        Self { vacancies, id, pools }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let Vacancies { shared, closed, changed, .. } = self.vacancies;
        locked(closed).retain(|(id, _)| *id != self.id);
        changed.notify_waiters();
        for entry in &self.pools {
            // The name may mean another database by now.
            entry.renew(&shared.loops);
            let due = loop {
                // Only loops can take a connection out of their epoll set.
                idle::close_idle(&shared.loops, &entry.pool, |_, _| true);
                let mut pool = entry.pool.lock();
                if pool.idle_count() == 0 {
                    break pool.end_vacancy(shared.loops.now()).1;
                }
            };
            shared.open(&entry.pool, due);
        }
    }
}

impl Vacancies {
    fn pools_of(&self, wanted: &Wanted) -> Vec<Arc<PoolEntry>> {
        let mut pools = self.pools.all();
        pools.retain(|entry| wanted.is(&entry.route.load()));
        pools
    }

    /// Closes idle connections. Returns how many are left beside the asking client's own.
    fn close(&self, wanted: &Wanted, asking: PoolId) -> u32 {
        let mut left = 0;
        for entry in self.pools_of(wanted) {
            idle::close_idle(&self.shared.loops, &entry.pool, |_, _| true);
            left += entry.pool.lock().total().saturating_sub(u32::from(entry.pool.id == asking));
            let listens = &entry.pool.stats.listen.connections;
            if listens.load(Ordering::Relaxed) > 0 {
                left += 1;
                self.shared.loops.send_all(|| ToLoop::EndUnusedListener(entry.pool.clone()));
            }
        }
        left + self.lines.close(|servers, database| {
            *database == wanted.database && servers.iter().any(|one| wanted.servers.contains(one))
        })
    }

    /// Whether a client is connected there beside the one that asks.
    fn is_used(&self, wanted: &Wanted, asking: PoolId) -> bool {
        let used = |entry: &PoolEntry| entry.client_count() > usize::from(entry.pool.id == asking);
        self.pools_of(wanted).iter().any(|entry| used(entry))
    }

    /// Closes the idle connections to a database for a client's statement, tells its loop, and lets none be
    /// opened until the server has answered.
    pub async fn vacate(&self, pool: PoolId, database: &[u8], client: ClientId) {
        let (kept, answered) = oneshot::channel::<()>();
        let tell = |kept: oneshot::Sender<()>| {
            let kept = Arc::new(kept);
            self.shared.loops.send(client.home, ToLoop::Vacated { client, kept });
        };
        let entry = self.pools.by_id(pool);
        let (Some(entry), Ok(database)) = (entry, std::str::from_utf8(database)) else {
            return tell(kept);
        };
        let servers = entry.route.load().target.servers.clone();
        let wanted = Wanted { servers, database: database.to_owned() };
        drop(entry);
        let begun = Instant::now();
        let (mut kept, mut answered) = (Some(kept), answered);
        let mut closed: Option<Closed<'_>> = None;
        while begun.elapsed() < VACANT_MAX {
            if closed.is_none() && !self.is_used(&wanted, pool) {
                closed = Some(Closed::begin(self, &wanted));
            }
            let ready = match &closed {
                Some(_) => self.close(&wanted, pool) == 0 || begun.elapsed() >= CLOSING,
                None => begun.elapsed() >= LEAVING,
            };
            if let Some(kept) = kept.take_if(|_| ready) {
                tracing::info!(
                    database,
                    closed = closed.is_some(),
                    "a statement wants a database for itself: idle server connections to it are closed, \
                 and none is opened before it has been answered"
                );
                tell(kept);
            }
            tokio::select! {
                _ = &mut answered => return,
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }
}
