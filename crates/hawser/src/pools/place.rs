//! Places for server connections under the limits that pools share: which pool gets one, and which
//! gives one up.
//!
//! # Model
//! An opening that finds a bound reached queues. First come those of pools that have no server
//! connection, by how long they have had none; then the others; last those that no client waits
//! for (`min_pool_size`), which do not wait either. One that waits for a server keeps later ones
//! only from that server: those that have another one try that. Only the first at a bound makes
//! room:
//! ```text
//!   an idle server connection of another pool? ─► it is closed
//!   else a pool that has two more than this one ─► it closes the next that its client gives back
//!   else, if this one has none, of the pools with one that have had it for a TURN, the longest
//! ```
//! A question of the control side makes room in the same way where it is the server that has no more connections for
//! its role: CONNECTION LIMIT, max_connections.
//! If limits are shared with other poolers, the first makes room once no more of the limit is
//! available; what this pooler must give up for others ([`Places::give_up_for_others`]) is found in the
//! same way.
//!
//! # Invariants
//! * no busy pool starves: if there are more than places, each place changes hands once a [`TURN`]
//!   and goes to the pool that has waited longest
//! * what is opened for `min_pool_size` takes nothing from a pool's `min_pool_size`: else two pools
//!   would take turns without any client to serve
//!
//! # Why turns and not a smaller share for each
//! A server connection belongs to one role and database: two pools cannot share one. A new one costs
//! the server a process, some 2 ms: one in 250 ms.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use hawser_pooler::ids::PoolId;
use hawser_pooler::time::Time;
use tokio::time::{sleep, timeout};

use super::lines::Lines;
use super::session::Session;
use super::share::Place;
use super::vacancy::Vacancies;
use super::{PoolEntry, Pools, Route, idle, locked};
use crate::cancel::servers::ToServers;
use crate::config::ServerAddress;
use crate::dial::{DialError, Dialled, Dialler, Login};
use crate::limits::Full;
use crate::shared::Shared;

/// How long an opening waits for a place before it gives up for now.
pub(super) const PLACE_WAIT: Duration = Duration::from_secs(2);
/// How long a request to a pool to give up a backend lasts; it is repeated every
/// [`EVICTION_PERIOD`] while it is needed.
const GIVE_UP_WAIT: Duration = Duration::from_millis(100);
/// How often an opening looks for an idle backend to close in favour of its own.
const EVICTION_PERIOD: Duration = Duration::from_millis(20);
/// How often this looks for server connections beyond this pooler's part of shared limits: a lease
/// that ends wakes no task.
const LOOK_FOR_OVER: Duration = Duration::from_millis(200);
/// How long a pool keeps its only backend from one that has none, if both are busy.
const TURN: Duration = Duration::from_millis(250);

/// What a place is wanted for.
pub(super) struct Asker<'a> {
    /// The pool; `None` for the control side's own questions to servers.
    pub(super) entry: Option<&'a PoolEntry>,
    /// What counts against the bound of a database.
    pub(super) database: &'a str,
    /// What counts against the bound of a user.
    pub(super) user: &'a str,
    /// The route.
    pub(super) route: &'a Route,
    /// The user to log in as.
    pub(super) login: &'a Login,
    /// A login waits for it; if not, clients in the pool's queue may.
    pub(super) login_waits: bool,
    /// How long it waits for a place.
    pub(super) patience: Duration,
}

/// The order of openings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Class {
    /// It has none.
    Starving,
    /// It has some, and clients wait for more.
    Wanting,
    /// Nothing waits for it.
    Unwanted,
}

/// A place in the queue: by class, then by time, then by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rank {
    class: Class,
    since: Instant,
    number: u64,
}

/// Openings that wait for a place.
#[derive(Default, Debug)]
pub struct Queue {
    waiting: Mutex<BTreeMap<Rank, Waiting>>,
    next: AtomicU64,
}

/// What an opening waits for.
#[derive(Debug)]
struct Waiting {
    /// The bound that leaves no room.
    full: Full,
    /// All bounds under which it needs a place, if limits are shared.
    under: Arc<[Full]>,
}

/// One that waits; it leaves when this is dropped.
struct Queued<'a> {
    queue: &'a Queue,
    rank: Option<Rank>,
}

/// What earlier openings wait for.
#[derive(PartialEq, Eq, Debug)]
enum Ahead {
    /// A bound that also applies to this one: it waits.
    Bound(Full),
    /// Only these servers, which this one leaves to them.
    Servers(Vec<ServerAddress>),
}

impl Queue {
    /// What openings before this one wait for. `is_bound_by`: whether a bound also applies to this
    /// one.
    fn ahead(
        &self,
        rank: Rank,
        servers: &[ServerAddress],
        is_bound_by: impl Fn(&Full) -> bool,
    ) -> Ahead {
        let waiting = locked(&self.waiting);
        let mut claimed = Vec::new();
        for (_, Waiting { full, .. }) in
            waiting.range(..rank).filter(|(_, one)| is_bound_by(&one.full))
        {
            match full {
                Full::Server(server) if !claimed.contains(server) => claimed.push(server.clone()),
                Full::Server(_) => {}
                Full::Total | Full::Database(_) | Full::User(_) => {
                    return Ahead::Bound(full.clone());
                }
            }
        }
        match claimed.last() {
            Some(last) if servers.iter().all(|server| claimed.contains(server)) => {
                Ahead::Bound(Full::Server(last.clone()))
            }
            _ => Ahead::Servers(claimed),
        }
    }

    /// How many wait for a place under each limit that is shared.
    pub fn waiting_under(&self) -> HashMap<Full, u32> {
        let mut counts = HashMap::new();
        for one in locked(&self.waiting).values() {
            for full in &*one.under {
                *counts.entry(full.clone()).or_default() += 1;
            }
            if !one.under.contains(&one.full) {
                *counts.entry(one.full.clone()).or_default() += u32::from(!one.under.is_empty());
            }
        }
        counts
    }
}

impl Queued<'_> {
    fn stand(&mut self, rank: Rank, waits: Waiting) {
        let mut waiting = locked(&self.queue.waiting);
        if let Some(before) = self.rank.replace(rank) {
            waiting.remove(&before);
        }
        waiting.insert(rank, waits);
    }

    fn leave(&mut self) {
        if let Some(rank) = self.rank.take() {
            locked(&self.queue.waiting).remove(&rank);
        }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Asker<'_> {
    /// The pool, unless no backend of it is wanted: its own may then make room.
    fn own(&self) -> Option<PoolId> {
        self.entry.filter(|_| !self.login_waits).map(|entry| entry.pool.id)
    }

    fn class(&self) -> Class {
        let Some(entry) = self.entry else { return Class::Starving };
        let wanted = self.login_waits
            || entry.pool.lock().waiting_count() > 0
            // The first clients of a pool wait in their logins.
            || (entry.pool.parameters().is_none() && entry.client_count() > 0);
        match entry.share.held() {
            _ if !wanted => Class::Unwanted,
            0 => Class::Starving,
            _ => Class::Wanting,
        }
    }

    fn is_bound_by(&self, full: &Full) -> bool {
        is_bound_by(full, self.database, self.user, self.route)
    }

    /// Limits that apply to it, whichever server it gets.
    fn under(&self) -> Arc<[Full]> {
        let Route { bounds, per_server, target, .. } = self.route;
        let server = match &*target.servers {
            [server] => Some((*per_server, Full::Server(server.clone()))),
            _ => None,
        };
        let always = [
            (bounds.total, Full::Total),
            (bounds.database, Full::Database(self.database.into())),
            (bounds.user, Full::User(self.user.into())),
        ];
        let all = always.into_iter().chain(server);
        all.filter(|(bound, _)| bound.get().is_some()).map(|(_, full)| full).collect()
    }
}

fn is_bound_by(full: &Full, database: &str, user: &str, route: &Route) -> bool {
    match full {
        Full::Total => true,
        Full::Database(name) => **name == *database,
        Full::User(name) => **name == *user,
        Full::Server(server) => route.target.servers.contains(server),
    }
}

/// Opens server connections under all limits.
pub struct Places {
    /// The loops and the limits.
    pub(crate) shared: Arc<Shared>,
    pub(crate) pools: Arc<Pools>,
    pub(crate) dialler: Arc<Dialler>,
    pub(crate) lines: Arc<Lines>,
    pub(crate) vacancies: Arc<Vacancies>,
    pub(crate) cancels: Arc<ToServers>,
    /// Openings that wait.
    pub(crate) queue: Queue,
}

impl Places {
    /// How many openings wait for a place under each limit that is shared with other poolers.
    pub fn waiting_under(&self) -> HashMap<Full, u32> {
        self.queue.waiting_under()
    }

    /// Dials, once there is a place.
    pub(super) async fn dial(&self, asker: &Asker<'_>) -> Result<Session, DialError> {
        let (dialled, place) = self.place_and_dial(asker).await?;
        let known = self.dialler.place(dialled.server);
        let server = known.map_or_else(String::new, |place| place.endpoint.to_string());
        Ok(Session::new(self.cancels.clone(), (dialled, place), server))
    }

    /// Dials under the limits: makes room by closing idle backends of other pools, or waits for its turn.
    async fn place_and_dial(&self, asker: &Asker<'_>) -> Result<(Dialled, Place), DialError> {
        let begun = Instant::now();
        let (limits, queue) = (&self.shared.limits, &self.queue);
        let number = queue.next.fetch_add(1, Ordering::Relaxed);
        let mut queued = Queued { queue, rank: None };
        let under = if limits.are_shared() { asker.under() } else { Arc::default() };
        loop {
            if !self.vacancies.admits(asker.route) {
                queued.leave(); // this one needs nothing that others wait for meanwhile
                self.vacancies.admitted(asker.route).await;
            }
            let freed = limits.server_freed();
            let class = asker.class();
            let since = match (class, asker.entry) {
                (Class::Starving, Some(entry)) => entry.share.starving_since(),
                _ => begun,
            };
            let rank = Rank { class, since, number };
            let servers = &asker.route.target.servers;
            let mut refusal = None;
            let (full, is_first) = match queue.ahead(rank, servers, |full| asker.is_bound_by(full))
            {
                Ahead::Bound(full) => (full, false),
                Ahead::Servers(claimed) => match self.open(asker, &claimed).await {
                    Err(DialError::Full(Full::Server(server))) => {
                        let is_first = !claimed.contains(&server);
                        (Full::Server(server), is_first)
                    }
                    Err(DialError::Full(full)) => (full, true),
                    // The server's own limits leave no room for a question of the control side.
                    Err(error) if asker.entry.is_none() && error.is_without_room() => {
                        refusal = Some(error);
                        (Full::User(asker.user.into()), true)
                    }
                    result => return result,
                },
            };
            let waits = class != Class::Unwanted && begun.elapsed() < asker.patience;
            if waits {
                queued.stand(rank, Waiting { full: full.clone(), under: under.clone() });
            }
            if is_first && !asker.patience.is_zero() && !limits.awaits_share(&full) {
                if !self.evict(asker.own(), class, &full) {
                    self.ask_to_give_up(asker, class, &full);
                } else if refusal.is_none() {
                    continue; // the place is free; a server's is once its process has ended
                }
            }
            if !waits {
                return Err(refusal.unwrap_or_else(|| match limits.is_cut_off_from(&full) {
                    true => DialError::CutOff(full),
                    false => DialError::Full(full),
                }));
            }
            let _ = timeout(EVICTION_PERIOD, freed).await;
        }
    }

    /// Dials the servers that are not claimed. [`Full::Server`] names one of these, if one was tried.
    async fn open(
        &self,
        asker: &Asker<'_>,
        claimed: &[ServerAddress],
    ) -> Result<(Dialled, Place), DialError> {
        let (limits, route) = (&self.shared.limits, asker.route);
        let permit = limits.server(asker.database, asker.user, &route.bounds);
        let permit = permit.map_err(DialError::Full)?;
        let held = asker.entry.map(|entry| entry.share.hold());
        let (own_bound, has_tried) = (OnceLock::new(), AtomicBool::new(false));
        let gate = |server: &ServerAddress| {
            if claimed.contains(server) {
                return Err(Full::Server(server.clone()));
            }
            let place = limits.address(server, route.per_server);
            match &place {
                Ok(_) => has_tried.store(true, Ordering::Relaxed),
                Err(full) => drop(own_bound.set(full.clone())), // the first one counts
            }
            place
        };
        let dialled = match self.dialler.dial(&route.target, asker.login, &gate).await {
            Ok(dialled) => dialled,
            Err(error) => {
                if !has_tried.into_inner() {
                    permit.give_back_unused();
                }
                return Err(match error {
                    DialError::Full(full) => {
                        DialError::Full(own_bound.into_inner().unwrap_or(full))
                    }
                    error => error,
                });
            }
        };
        if let Some(entry) = asker.entry {
            entry.share.serve();
        }
        Ok((dialled, Place::new(permit, held)))
    }

    /// Closes one idle backend that is in the way: the longest idle one of the pool that has most to
    /// spare. False if there was none.
    fn evict(&self, own: Option<PoolId>, class: Class, full: &Full) -> bool {
        let now = self.shared.loops.now();
        let spare = |other: &Arc<PoolEntry>| {
            let pool = other.pool.lock();
            let spare = pool.idle_count().saturating_sub(pool.limits().min_size);
            let may_go = spare > 0 || class != Class::Unwanted;
            (pool.waiting_count() == 0 && pool.idle_count() > 0 && may_go)
                .then(|| (spare, pool.longest_idle(now)))
        };
        let victim = self
            .in_the_way(own, full)
            .filter_map(|other| spare(&other).map(|spare| (spare, other)))
            .max_by_key(|(spare, _)| *spare);
        // The control side's lines serve clients, and are closed last.
        let Some((_, victim)) = victim else { return self.lines.close_one() };
        let mut left = 1;
        let oldest = victim.pool.lock().longest_idle(now).unwrap_or_default();
        idle::close_idle(&self.shared.loops, &victim.pool, |_, idle| {
            let this = left > 0 && idle >= oldest;
            left -= u32::from(this);
            this
        }) > 0
    }

    /// Other pools under the same bound.
    fn in_the_way(&self, own: Option<PoolId>, full: &Full) -> impl Iterator<Item = Arc<PoolEntry>> {
        let all = self.pools.all().into_iter();
        all.filter(move |other| Some(other.pool.id) != own).filter(|other| {
            is_bound_by(full, &other.key.database, &other.key.user, &other.route.load())
        })
    }

    /// No pool has an idle backend: one gives up the next that its client gives back. So busy pools end
    /// with about equal numbers, and take turns if there is not one for each.
    fn ask_to_give_up(&self, asker: &Asker<'_>, class: Class, full: &Full) {
        let own = asker.entry.map_or(0, |entry| entry.share.held());
        if class == Class::Unwanted {
            return;
        }
        let now = self.shared.loops.now();
        // Pools that were asked already may not have given one back yet: others are asked as well.
        let busy = self.busy(asker.own(), full, now);
        let (rich, poor): (Vec<_>, Vec<_>) = busy.partition(|(lent, _)| *lent > own + 1);
        let chosen = match rich.into_iter().max_by_key(|(lent, _)| *lent) {
            None if class == Class::Starving => {
                let had = poor.into_iter().map(|(_, other)| (other.share.had_for(), other));
                had.filter(|(had, _)| *had >= TURN)
                    .max_by_key(|(had, _)| *had)
                    .map(|(_, other)| other)
            }
            richest => richest.map(|(_, other)| other),
        };
        if let Some(other) = chosen {
            other.pool.lock().give_up_one(now.after(GIVE_UP_WAIT));
        }
    }

    /// Other pools under the same bound that have lent server connections, and how many; without those
    /// that have been asked for one already.
    fn busy(
        &self,
        own: Option<PoolId>,
        full: &Full,
        now: Time,
    ) -> impl Iterator<Item = (u32, Arc<PoolEntry>)> {
        self.in_the_way(own, full).filter_map(move |other| {
            let pool = other.pool.lock();
            let lent = pool.lent_count();
            let may_give = lent > 0 && !pool.gives_up(now);
            drop(pool);
            may_give.then_some((lent, other))
        })
    }

    /// Closes server connections beyond this pooler's part of shared limits: idle ones at once, others
    /// when their clients give them back. Runs until the process ends.
    pub async fn give_up_for_others(self: Arc<Self>) {
        loop {
            let over = self.shared.limits.over_their_share();
            if over.is_empty() {
                let _ = timeout(LOOK_FOR_OVER, self.shared.limits.share_lowered()).await;
                continue;
            }
            for (full, count) in over {
                for _ in 0..count {
                    if !self.evict(None, Class::Wanting, &full) && !self.ask_any(&full) {
                        break;
                    }
                }
            }
            sleep(EVICTION_PERIOD).await;
        }
    }

    /// Makes the pool that has lent most give up one. False if all have been asked already.
    fn ask_any(&self, full: &Full) -> bool {
        let now = self.shared.loops.now();
        let most = self.busy(None, full, now).max_by_key(|(lent, _)| *lent);
        if let Some((_, other)) = &most {
            other.pool.lock().give_up_one(now.after(GIVE_UP_WAIT));
        }
        most.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(full: Full) -> Waiting {
        Waiting { full, under: Arc::default() }
    }

    #[test]
    fn who_has_none_goes_first_and_the_longest_of_those() {
        let (queue, start) = (Queue::default(), Instant::now());
        let rank = |class, after, number| Rank {
            class,
            since: start + Duration::from_millis(after),
            number,
        };
        let early = rank(Class::Starving, 1, 3);
        let late = rank(Class::Starving, 2, 1);
        let wanting = rank(Class::Wanting, 0, 2);
        let mut queued: Vec<_> = (0..3).map(|_| Queued { queue: &queue, rank: None }).collect();
        for (queued, rank) in queued.iter_mut().zip([wanting, late, early]) {
            queued.stand(rank, waits(Full::Total));
        }
        let ahead = |rank| queue.ahead(rank, &[], |_| true) == Ahead::Bound(Full::Total);
        assert_eq!([early, late, wanting].map(ahead), [false, true, true]);
        queued.pop();
        assert_eq!([late, wanting].map(ahead), [false, true]);
        // A newcomer does not get in first, unless the others wait only for another bound.
        let newcomer = rank(Class::Starving, 3, 4);
        assert!(ahead(newcomer));
        assert_eq!(queue.ahead(newcomer, &[], |_| false), Ahead::Servers(Vec::new()));
    }

    #[test]
    fn who_waits_for_a_server_keeps_others_from_that_one_alone() {
        let (queue, start) = (Queue::default(), Instant::now());
        let rank = |number| Rank { class: Class::Starving, since: start, number };
        let [a, b] = ["/a", "/b"].map(|path| ServerAddress::Unix(path.into()));
        let stand = |number, server: &ServerAddress| {
            let mut queued = Queued { queue: &queue, rank: None };
            queued.stand(rank(number), waits(Full::Server(server.clone())));
            queued
        };
        let ahead = |servers: &[&ServerAddress]| {
            let servers: Vec<_> = servers.iter().map(|server| (*server).clone()).collect();
            queue.ahead(rank(9), &servers, |full| match full {
                Full::Server(server) => servers.contains(server),
                _ => true,
            })
        };
        let (claims, bound) =
            (|server: &ServerAddress| Ahead::Servers(vec![server.clone()]), Ahead::Bound);
        let _waiting = [stand(1, &a), stand(2, &a)];
        assert_eq!(ahead(&[&a]), bound(Full::Server(a.clone())));
        assert_eq!(ahead(&[&a, &b]), claims(&a));
        assert_eq!(ahead(&[&b]), Ahead::Servers(Vec::new()));
        let other = stand(3, &b);
        assert!(matches!(ahead(&[&a, &b]), Ahead::Bound(Full::Server(_))));
        drop(other);
        assert_eq!(ahead(&[&b, &a]), claims(&a));
    }
}
