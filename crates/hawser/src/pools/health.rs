//! Checks servers, and makes pools leave those that are not what their database asks for.
//!
//! # Model
//! Each `server_probe_interval`, one short connection to each server of databases with
//! `target_session_attrs` or `max_replica_lag` that have a pool. What it shows holds for all their pools:
//! ```text
//!   idle server connections are closed; lent ones at the end of their transaction; new ones go elsewhere
//! ```
//! Each look is acted on when it ends: a slow one, because of the server or a `password_command`,
//! delays only the knowledge of that server.
//! # Why a new connection for each look
//! A server in a smart shutdown serves those it has and refuses new ones: only a new one shows it.
//! And a permanent one would delay that shutdown.
//!
//! # Limits  a server that gives no answer keeps its place: its own connections show its state

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hawser_pooler::relay::{Backend, ToLoop};
use hawser_pooler::time::Time;
use tokio::task::{Id, JoinError, JoinSet};

use super::lines::Lines;
use super::{PoolEntry, Pools, Route, idle};
use crate::config::{ServerAddress, TargetSessionAttrs};
use crate::dial::Dialler;
use crate::dial::standing::{Lag, Look, Looks, Standing, Unfit, WalHistory, unfit};
use crate::phase::Phase;
use crate::shared::Shared;

/// How often the setting is checked while it is off.
const OFF_PERIOD: Duration = Duration::from_secs(1);
/// How often servers are looked at while clients wait for another primary.
const SWITCHOVER_PERIOD: Duration = Duration::from_millis(100);
/// How many logins are tried in one look at a server.
const LOGINS_A_LOOK: usize = 3;
/// How long a look may take, if the interval is shorter.
const LOOK_AT_LEAST: Duration = Duration::from_secs(1);
/// Looks that end this soon after another are acted on together: those at a primary and its
/// standbys are compared, and each action goes through all pools.
const TOGETHER: Duration = Duration::from_millis(20);

/// What looks at servers, and makes pools leave them.
pub struct Prober {
    /// The configuration, and the loops.
    pub shared: Arc<Shared>,
    /// Their servers are looked at.
    pub pools: Arc<Pools>,
    /// What looks at a server.
    pub dialler: Arc<Dialler>,
    /// The control side's own lines.
    pub lines: Arc<Lines>,
}

/// Looks at servers until the process ends.
pub async fn run(prober: Arc<Prober>) {
    let mut health = Health::default();
    let mut due = tokio::time::Instant::now();
    loop {
        let mut ended = Vec::new();
        tokio::select! {
            () = tokio::time::sleep_until(due) => {
                let interval = interval(&prober);
                due = tokio::time::Instant::now() + interval.unwrap_or(OFF_PERIOD);
                if let Some(interval) = interval {
                    health.begin_looks(&prober, interval);
                }
            }
            Some(look) = health.looks.join_next_with_id() => {
                tokio::time::sleep(TOGETHER).await;
                ended.push(look);
                ended.extend(std::iter::from_fn(|| health.looks.try_join_next_with_id()));
            }
        }
        if prober.shared.phase() == Phase::Ending {
            return;
        }
        let shown = ended.into_iter().filter_map(|look| health.end_look(look)).collect();
        let entries = looked_at(&prober);
        health.take(shown, &entries);
        health.act(&prober, &entries);
    }
}

fn interval(prober: &Prober) -> Option<Duration> {
    let interval = prober.shared.config.load().reload.servers.server_probe_interval.get()?;
    // (The step to this begins with the next look, at most an interval later.)
    let is_switching = prober.shared.gates.is_switching();
    Some(if is_switching { interval.min(SWITCHOVER_PERIOD) } else { interval })
}

/// The pools whose servers are looked at.
fn looked_at(prober: &Prober) -> Vec<Arc<PoolEntry>> {
    match interval(prober) {
        Some(_) => prober.pools.all().into_iter().filter(is_looked_at).collect(),
        None => Vec::new(),
    }
}

fn is_looked_at(entry: &Arc<PoolEntry>) -> bool {
    let target = &entry.route.load().target;
    entry.key.replication.is_none()
        && (target.session_attrs != TargetSessionAttrs::Any || target.max_replica_lag.is_some())
}

/// What a look has shown.
struct Shown {
    server: ServerAddress,
    /// The server's standing; `None` if no login succeeded.
    standing: Option<Standing>,
    /// The pool whose login was used.
    login: Option<Arc<Route>>,
    /// When the look began.
    begun: Time,
}

/// One look at a server, with the login of one of its pools: if that is refused (its password has
/// changed, for example), with others.
async fn look(
    prober: Arc<Prober>,
    server: ServerAddress,
    routes: VecDeque<Arc<Route>>,
    interval: Duration,
) -> Shown {
    let begun = prober.shared.loops.now();
    for route in routes.into_iter().take(LOGINS_A_LOOK) {
        let within = route.target.connect_timeout.min(interval.max(LOOK_AT_LEAST));
        let look = prober.dialler.look_at(&server, &route.target, &route.login, within);
        if let Some(standing) = look.await {
            return Shown { server, standing: Some(standing), login: Some(route), begun };
        }
    }
    Shown { server, standing: None, login: None, begun }
}

/// What earlier looks have shown.
#[derive(Default)]
struct Health {
    /// Looks under way. Each is acted on when it ends, so that none waits for a server that is slow.
    looks: JoinSet<Shown>,
    /// The servers that they look at.
    under_way: HashMap<Id, ServerAddress>,
    /// The pool as whose login each server was last looked at.
    logins: HashMap<ServerAddress, Arc<Route>>,
    /// Servers for which it was logged that no login succeeds.
    refused: HashSet<ServerAddress>,
    /// The history of WAL for each list of servers.
    wal: HashMap<Vec<ServerAddress>, WalHistory>,
    /// Each server's last answer: a look without one changes nothing.
    last: Looks,
    /// Servers that a database has left, or one of its users, and why. In the order of their names, for the
    /// log.
    left: BTreeMap<Departure, Unfit>,
    /// Databases for which it was logged that lag is not known.
    unmeasured: BTreeSet<String>,
}

/// A departure from a server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Departure {
    database: String,
    /// A user that asks for other servers than the database; `None`: all other users.
    user: Option<String>,
    server: String,
}

impl Health {
    /// Begins a look at each server that has none under way.
    fn begin_looks(&mut self, prober: &Arc<Prober>, interval: Duration) {
        // A login that succeeded comes first.
        let mut routes: HashMap<ServerAddress, VecDeque<Arc<Route>>> = HashMap::new();
        for entry in looked_at(prober) {
            let route = entry.route.load_full();
            for server in &route.target.servers {
                let routes = routes.entry(server.clone()).or_default();
                match self.logins.get(server).is_some_and(|last| Arc::ptr_eq(last, &route)) {
                    true => routes.push_front(route.clone()),
                    false => routes.push_back(route.clone()),
                }
            }
        }
        for server in self.under_way.values() {
            routes.remove(server);
        }
        for (server, routes) in routes {
            let look = self.looks.spawn(look(prober.clone(), server.clone(), routes, interval));
            self.under_way.insert(look.id(), server);
        }
    }

    /// The result of an ended look. One that panicked has been logged, and has none.
    fn end_look(&mut self, look: Result<(Id, Shown), JoinError>) -> Option<Shown> {
        let (id, shown) = match look {
            Ok((id, shown)) => (id, Some(shown)),
            Err(error) => (error.id(), None),
        };
        self.under_way.remove(&id);
        shown
    }

    /// Keeps what looks have shown of the servers of these pools, and forgets all other servers.
    fn take(&mut self, shown: Vec<Shown>, entries: &[Arc<PoolEntry>]) {
        let lists: HashSet<_> =
            entries.iter().map(|entry| entry.route.load().target.servers.clone()).collect();
        let servers: HashSet<_> = lists.iter().flatten().collect();
        self.logins.retain(|server, _| servers.contains(server));
        self.refused.retain(|server| servers.contains(server));
        self.last.retain(|server, _| servers.contains(server));
        self.wal.retain(|list, _| lists.contains(list));
        let shown: Vec<_> =
            shown.into_iter().filter(|shown| servers.contains(&shown.server)).collect();
        let mut fresh = HashSet::new();
        for Shown { server, standing, login, begun } in shown {
            self.keep_login(&server, login);
            self.keep_standing(&server, standing, begun);
            if matches!(standing, Some(Standing::Serving(_))) {
                fresh.insert(server);
            }
        }
        let now = Instant::now();
        for list in lists.into_iter().filter(|list| list.iter().any(|one| fresh.contains(one))) {
            let wal = self.wal.entry(list.clone()).or_default();
            measure(wal, &list, &mut self.last, &fresh, now);
        }
    }

    /// Keeps the login that a server accepted.
    fn keep_login(&mut self, server: &ServerAddress, login: Option<Arc<Route>>) {
        match login {
            Some(route) => {
                self.refused.remove(server);
                self.logins.insert(server.clone(), route);
            }
            None => {
                self.logins.remove(server);
                if self.refused.insert(server.clone()) {
                    tracing::warn!(
                        %server,
                        "the server refuses each login of its pools: probes do not see what it is now (SHOW \
                         POOLS EXTENDED has the reason)"
                    );
                }
            }
        }
    }

    /// Keeps what is known about a server: from this look, or, if that got no answer, from the last
    /// one that did.
    fn keep_standing(&mut self, server: &ServerAddress, standing: Option<Standing>, begun: Time) {
        let silent = standing == Some(Standing::Unknown);
        let look = match (standing.unwrap_or(Standing::Unknown), self.last.get(server)) {
            (Standing::Unknown, Some(earlier)) => Look { silent, ..*earlier },
            (standing, _) => {
                let lag = Lag::Unknown { own: Duration::ZERO };
                Look { standing, lag, silent, is_deposed: false, answered: begun }
            }
        };
        self.last.insert(server.clone(), look);
    }

    /// Makes pools leave servers, and return to them, by what is known.
    fn act(&mut self, prober: &Prober, entries: &[Arc<PoolEntry>]) {
        let looks = prober.dialler.set_looks(self.last.clone());
        let before = std::mem::take(&mut self.left);
        self.say_unmeasured(entries);
        for entry in entries {
            let unfit = unfit(&entry.route.load().target.wants(), &looks);
            self.leave(prober, entry, &unfit, &before, &looks);
        }
        for entry in prober.pools.all() {
            if !entries.iter().any(|one| Arc::ptr_eq(one, &entry)) {
                entry.pool.left().set(&[]); // no longer looked at
            }
        }
        for (departure, _) in before {
            if !self.left.contains_key(&departure) {
                let Departure { database, user, server } = departure;
                tracing::info!(database, user, server, "the server is used again");
            }
        }
    }

    /// Logs once for each database with `max_replica_lag` that there is no primary to measure its
    /// standbys against.
    fn say_unmeasured(&mut self, entries: &[Arc<PoolEntry>]) {
        let mut unmeasured = BTreeSet::new();
        for entry in entries {
            let route = entry.route.load();
            if route.target.max_replica_lag.is_none() {
                continue;
            }
            // (All of them: the first look at a primary may end after the one at its standby.)
            let looks = route.target.servers.iter().map(|server| self.last.get(server));
            let Some(looks) = looks.collect::<Option<Vec<_>>>() else { continue };
            let in_recovery = |look: &Look| match look.standing {
                Standing::Serving(state) => Some(state.in_recovery),
                Standing::NotAccepting | Standing::Unknown => None,
            };
            let has_primary = looks.iter().any(|look| in_recovery(look) == Some(false));
            let is_unknown =
                |look: &&Look| in_recovery(look) == Some(true) && look.lag.measured().is_none();
            if !has_primary && looks.iter().any(is_unknown) {
                unmeasured.insert(entry.key.database.clone());
            }
        }
        for database in unmeasured.difference(&self.unmeasured) {
            tracing::warn!(
                database,
                "none of its servers is a primary that answers: how far standbys lag is not known, and \
                 max_replica_lag does not keep out one that is cut off. Name the primary in servers"
            );
        }
        self.unmeasured = unmeasured;
    }

    /// Makes a pool leave these servers.
    fn leave(
        &mut self,
        prober: &Prober,
        entry: &PoolEntry,
        unfit: &[(ServerAddress, Unfit)],
        before: &BTreeMap<Departure, Unfit>,
        looks: &Looks,
    ) {
        let mut ids = Vec::new();
        for (server, _) in unfit.iter().filter(|(_, why)| why.lasts()) {
            // Connections opened since the last answered look have newer knowledge: they were
            // checked themselves.
            let answered = looks.get(server).map_or(Time::ZERO, |look| look.answered);
            ids.extend(prober.dialler.ids_of(&[server]).into_iter().map(|id| (id, answered)));
        }
        let left = entry.pool.left();
        left.set(&ids);
        if !ids.is_empty() {
            let is_left = |backend: &Backend<_>, _| left.has(backend.server(), backend.opened());
            idle::close_idle(&prober.shared.loops, &entry.pool, is_left);
        }
        // The control side's own lines to servers also delay a shutdown.
        let ends = |server| unfit.contains(&(server, Unfit::NotAccepting));
        prober.lines.close(|servers, _| servers.iter().cloned().any(ends));
        let listens = &entry.pool.stats.listen.connections;
        let some_end = unfit.iter().any(|(_, why)| *why == Unfit::NotAccepting);
        if some_end && listens.load(Ordering::Relaxed) > 0 {
            // The listening connection stays for a while after the last client, but not through a
            // shutdown.
            prober.shared.loops.send_all(|| ToLoop::EndUnusedListener(entry.pool.clone()));
        }
        let config = prober.shared.config.load();
        let user = config.user(&entry.key.user).filter(|user| user.has_own_servers());
        let (database, user) = (&entry.key.database, user.and_then(|user| user.name.as_ref()));
        let mut renews = false;
        for (server, why) in unfit {
            let departure = Departure {
                database: database.clone(),
                user: user.cloned(),
                server: server.to_string(),
            };
            let is_news = before.get(&departure) != Some(why);
            renews |= is_news && !why.lasts();
            if self.left.insert(departure, *why).is_some() || !is_news {
                continue;
            }
            // The standby of a pair is as it should be.
            if why.is_of_kind() {
                tracing::info!(database, user, %server, reason = %why, "the server is left");
            } else {
                tracing::warn!(database, user, %server, reason = %why, "the server is left");
            }
        }
        if renews {
            entry.renew(&prober.shared.loops);
        }
    }
}

/// Measures the lag of the standbys of a list that have been looked at now.
fn measure(
    wal: &mut WalHistory,
    list: &[ServerAddress],
    looks: &mut Looks,
    fresh: &HashSet<ServerAddress>,
    now: Instant,
) {
    let serving = |server: &ServerAddress| match looks.get(server) {
        Some(Look { standing: Standing::Serving(state), silent: false, .. }) => {
            Some((server.clone(), *state))
        }
        _ => None,
    };
    let states: Vec<_> = list.iter().filter_map(serving).collect();
    // If there are two primaries, which should not happen, the one that has written more.
    let primary = states.iter().filter(|(_, state)| !state.in_recovery);
    let primary = primary.max_by_key(|(_, state)| state.wal);
    if let Some((primary, state)) = primary.filter(|(primary, _)| fresh.contains(primary)) {
        wal.add(primary, state.wal, now);
    }
    for (server, state) in states {
        if state.in_recovery
            && fresh.contains(&server)
            && let Some(look) = looks.get_mut(&server)
        {
            let own = state.own_lag;
            look.lag = wal.lag(state.wal, now).map_or(Lag::Unknown { own }, Lag::Measured);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::standing::State;

    fn server() -> ServerAddress {
        ServerAddress::Unix("/one".into())
    }

    const STATE: State =
        State { in_recovery: true, read_only: false, wal: 7, own_lag: Duration::from_secs(9) };

    #[test]
    fn a_look_without_an_answer_leaves_what_is_known() {
        let answered = Time::ZERO;
        let mut health = Health::default();
        let mut look = |standing: Option<Standing>| {
            health.keep_standing(&server(), standing, answered);
            let (list, fresh) = ([server()], HashSet::from([server()]));
            measure(&mut WalHistory::default(), &list, &mut health.last, &fresh, Instant::now());
            health.last[&server()]
        };
        let serving = Standing::Serving(STATE);
        let unknown = Look {
            standing: Standing::Unknown,
            lag: Lag::Unknown { own: Duration::ZERO },
            silent: true,
            is_deposed: false,
            answered,
        };
        assert_eq!(look(Some(Standing::Unknown)), unknown);
        let lag = Lag::Unknown { own: STATE.own_lag };
        let lagging = Look { standing: serving, lag, silent: false, is_deposed: false, answered };
        assert_eq!(look(Some(serving)), lagging);
        for _ in 0..2 {
            assert_eq!(look(Some(Standing::Unknown)), Look { silent: true, ..lagging });
        }
        assert_eq!(look(None), lagging, "a refusal is an answer, and shows nothing else");
        assert_eq!(look(Some(Standing::NotAccepting)).standing, Standing::NotAccepting);
    }

    #[test]
    fn lag_is_measured_of_those_that_have_just_been_looked_at() {
        let (standby, primary) = (server(), ServerAddress::Unix("/two".into()));
        let list = [standby.clone(), primary.clone()];
        let (mut wal, mut health, begun) =
            (WalHistory::default(), Health::default(), Instant::now());
        let mut look = |server: &ServerAddress, state: State, seconds| {
            health.keep_standing(server, Some(Standing::Serving(state)), Time::ZERO);
            let (fresh, now) =
                (HashSet::from([server.clone()]), begun + Duration::from_secs(seconds));
            measure(&mut wal, &list, &mut health.last, &fresh, now);
            health.last[&standby].lag
        };
        let written = |wal| State { in_recovery: false, wal, ..STATE };
        let unknown = Lag::Unknown { own: STATE.own_lag };
        assert_eq!(look(&standby, STATE, 0), unknown, "no primary has been seen");
        assert_eq!(look(&primary, written(8), 1), unknown, "only the primary is fresh");
        assert_eq!(look(&standby, STATE, 3), Lag::Measured(Duration::from_secs(2)));
        assert_eq!(look(&standby, State { wal: 8, ..STATE }, 4), Lag::Measured(Duration::ZERO));
    }
}
