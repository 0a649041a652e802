//! Looks at servers, and has pools leave those that are not what their database asks for.
//!
//! # Model
//! Each `server_probe_interval`, one short connection to each server of databases with
//! `target_session_attrs` or `max_replica_lag` that have a pool. What it shows holds for all their pools:
//! ```text
//!   idle server connections are closed; lent ones at the end of their transaction; new ones go elsewhere
//! ```
//! # Why a new connection for each look
//! A server in a smart shutdown serves those it has and refuses new ones: only a new one shows it. And one
//! that stays would keep that shutdown from its end.
//!
//! # Limits  a server that gives no answer keeps its place: its own connections show what it is

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hawser_core::engine::{Backend, ToLoop};
use hawser_core::time::Time;
use tokio::task::JoinSet;

use super::{PoolEntry, Route, upkeep};
use crate::config::{ServerAddress, TargetSessionAttrs};
use crate::dial::standing::{Look, Looks, Standing, Unfit, WalHistory, unfit};
use crate::service::{Phase, Service};

/// How often the setting is looked at while it is off.
const OFF_PERIOD: Duration = Duration::from_secs(1);
/// So many logins are tried in one look at a server.
const LOGINS_A_LOOK: usize = 3;
/// How long a look may take, where the interval is shorter.
const LOOK_AT_LEAST: Duration = Duration::from_secs(1);

/// Looks at servers until the process ends.
pub async fn run(service: Arc<Service>) {
    let mut health = Health::default();
    loop {
        let interval = service.config.load().reload.servers.server_probe_interval.get();
        tokio::time::sleep(interval.unwrap_or(OFF_PERIOD)).await;
        if service.phase() == Phase::Ending {
            return;
        }
        let entries = match interval {
            Some(_) => service.pools.all().into_iter().filter(is_looked_at).collect(),
            None => Vec::new(),
        };
        let looked = service.loops.now();
        let looks = look(&service, &entries, &health.logins, interval.unwrap_or_default()).await;
        let standings = health.take_logins(looks);
        health.act(&service, &entries, standings, looked);
    }
}

fn is_looked_at(entry: &Arc<PoolEntry>) -> bool {
    let target = &entry.route.load().target;
    entry.key.replication.is_none()
        && (target.session_attrs != TargetSessionAttrs::Any || target.max_replica_lag.is_some())
}

/// What a look has shown, and the pool as whose login; `None` if each was refused.
type Shown = (Standing, Option<Arc<Route>>);

/// One look at each server, as one of its pools logs in: where that is refused (its password has changed, say),
/// as others, beginning with the one that last was not.
async fn look(
    service: &Arc<Service>,
    entries: &[Arc<PoolEntry>],
    logins: &HashMap<ServerAddress, Arc<Route>>,
    interval: Duration,
) -> HashMap<ServerAddress, Shown> {
    let mut routes: HashMap<ServerAddress, VecDeque<Arc<Route>>> = HashMap::new();
    for entry in entries {
        let route = entry.route.load_full();
        for server in &route.target.servers {
            let routes = routes.entry(server.clone()).or_default();
            match logins.get(server).is_some_and(|last| Arc::ptr_eq(last, &route)) {
                true => routes.push_front(route.clone()),
                false => routes.push_back(route.clone()),
            }
        }
    }
    let mut looks = JoinSet::new();
    for (server, routes) in routes {
        let service = service.clone();
        looks.spawn(async move {
            for route in routes.into_iter().take(LOGINS_A_LOOK) {
                let within = route.target.connect_timeout.min(interval.max(LOOK_AT_LEAST));
                let look = service.dialler.look_at(&server, &route.target, &route.login, within);
                if let Some(standing) = look.await {
                    return (server, (standing, Some(route)));
                }
            }
            (server, (Standing::Unknown, None))
        });
    }
    let mut shown = HashMap::new();
    while let Some(look) = looks.join_next().await {
        shown.extend(look.ok()); // one that has panicked has said so, and shows nothing
    }
    shown
}

/// What earlier looks have shown.
#[derive(Default)]
struct Health {
    /// The pool as whose login each server was last looked at.
    logins: HashMap<ServerAddress, Arc<Route>>,
    /// Servers of which it has been said that they refuse the logins of all pools.
    refused: HashSet<ServerAddress>,
    /// Of each list of servers.
    wal: HashMap<Vec<ServerAddress>, WalHistory>,
    /// What each server said when it last gave an answer: one look that gets none changes nothing.
    last: Looks,
    /// Servers that a database has left, and why. In the order of their names, for the log.
    left: BTreeMap<(String, String), Unfit>,
}

impl Health {
    /// Keeps as whose login each server could be looked at.
    fn take_logins(
        &mut self,
        looks: HashMap<ServerAddress, Shown>,
    ) -> HashMap<ServerAddress, Standing> {
        self.logins.clear();
        let mut standings = HashMap::new();
        for (server, (standing, login)) in looks {
            let news = match &login {
                Some(_) => !self.refused.remove(&server),
                None => self.refused.insert(server.clone()),
            };
            if login.is_none() && news {
                tracing::warn!(
                    %server,
                    "the server refuses every login that there is for it: what it is now is not known \
                     (SHOW POOLS EXTENDED shows why)"
                );
            }
            self.logins.extend(login.map(|route| (server.clone(), route)));
            standings.insert(server, standing);
        }
        self.refused.retain(|server| standings.contains_key(server));
        standings
    }

    fn act(
        &mut self,
        service: &Service,
        entries: &[Arc<PoolEntry>],
        standings: HashMap<ServerAddress, Standing>,
        looked: Time,
    ) {
        let lists: HashSet<_> =
            entries.iter().map(|entry| entry.route.load().target.servers.clone()).collect();
        self.wal.retain(|list, _| lists.contains(list));
        let now = Instant::now();
        let mut lags: HashMap<ServerAddress, Duration> = HashMap::new();
        for list in lists {
            let wal = self.wal.entry(list.clone()).or_default();
            lags.extend(measure(wal, &list, &standings, now));
        }
        let looks = self.with_earlier(standings, &lags, looked);
        service.dialler.set_looks(looks.clone());
        let before = std::mem::take(&mut self.left);
        for entry in entries {
            let unfit = unfit(&entry.route.load().target.wants(), &looks);
            self.leave(service, entry, &unfit, &before, &looks);
        }
        for entry in service.pools.all() {
            if !entries.iter().any(|one| Arc::ptr_eq(one, &entry)) {
                entry.pool.left().set(&[]); // no longer looked at
            }
        }
        for ((database, server), _) in before {
            if !self.left.contains_key(&(database.clone(), server.clone())) {
                tracing::info!(database, server, "the server is used again");
            }
        }
    }

    /// What is known of the servers now: by this look, or where it has got no answer by the last that has.
    fn with_earlier(
        &mut self,
        standings: HashMap<ServerAddress, Standing>,
        lags: &HashMap<ServerAddress, Duration>,
        looked: Time,
    ) -> Looks {
        let mut looks = Looks::new();
        for (server, standing) in standings {
            let now = match (standing, self.last.remove(&server)) {
                (Standing::Unknown, Some(earlier)) => Look { silent: true, ..earlier },
                _ => Look {
                    standing,
                    lag: lags.get(&server).copied().unwrap_or_default(),
                    silent: standing == Standing::Unknown,
                    answered: looked,
                },
            };
            looks.insert(server, now);
        }
        self.last.clone_from(&looks);
        looks
    }

    /// Has a pool leave these servers.
    fn leave(
        &mut self,
        service: &Service,
        entry: &PoolEntry,
        unfit: &[(ServerAddress, Unfit)],
        before: &BTreeMap<(String, String), Unfit>,
        looks: &Looks,
    ) {
        let database = &entry.key.database;
        let mut ids = Vec::new();
        for (server, _) in unfit.iter().filter(|(_, why)| why.lasts()) {
            // What has been opened since the last look that was answered knows better: it was asked itself.
            let answered = looks.get(server).map_or(Time::ZERO, |look| look.answered);
            ids.extend(service.dialler.ids_of(&[server]).into_iter().map(|id| (id, answered)));
        }
        let left = entry.pool.left();
        left.set(&ids);
        if !ids.is_empty() {
            let is_left = |backend: &Backend<_>, _| left.has(backend.server(), backend.opened());
            upkeep::close_idle(service, &entry.pool, is_left);
        }
        // Lines on which the control side asks servers hold up a shutdown as well.
        let ends = |server| unfit.contains(&(server, Unfit::NotAccepting));
        service.enquiries.close_lines(|servers, _| servers.iter().cloned().any(ends));
        let listens = &entry.pool.stats.listen.connections;
        let some_end = unfit.iter().any(|(_, why)| *why == Unfit::NotAccepting);
        if some_end && listens.load(Ordering::Relaxed) > 0 {
            // It stays for a while after the last client has ended listening: not through a shutdown.
            service.loops.send_all(|| ToLoop::EndUnusedListener(entry.pool.clone()));
        }
        let mut renews = false;
        for (server, why) in unfit {
            let key = (database.clone(), server.to_string());
            let is_news = before.get(&key) != Some(why);
            renews |= is_news && !why.lasts();
            if self.left.insert(key, *why).is_none() && is_news {
                tracing::warn!(database, %server, reason = %why, "the server is left");
            }
        }
        if renews {
            upkeep::renew(service, entry);
        }
    }
}

/// How far the standbys of a list are behind.
fn measure(
    wal: &mut WalHistory,
    list: &[ServerAddress],
    standings: &HashMap<ServerAddress, Standing>,
    now: Instant,
) -> HashMap<ServerAddress, Duration> {
    let serving = |server: &ServerAddress| match standings.get(server) {
        Some(Standing::Serving(state)) => Some((server.clone(), *state)),
        _ => None,
    };
    let states: Vec<_> = list.iter().filter_map(serving).collect();
    // Of two, which should not be, the one that has written more.
    let primary = states.iter().filter(|(_, state)| !state.in_recovery);
    if let Some((primary, state)) = primary.max_by_key(|(_, state)| state.wal) {
        wal.add(primary, state.wal, now);
    }
    let standbys = states.into_iter().filter(|(_, state)| state.in_recovery);
    standbys
        .map(|(server, state)| (server, wal.lag(state.wal, now).unwrap_or(state.own_lag)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::standing::State;

    #[test]
    fn a_look_without_an_answer_leaves_what_is_known() {
        let server = ServerAddress::Unix("/one".into());
        let state = State { in_recovery: true, read_only: false, wal: 7, own_lag: Duration::ZERO };
        let (lag, answered) = (Duration::from_secs(9), Time::ZERO);
        let mut health = Health::default();
        let mut look = |standing: Standing, lag: Option<Duration>| {
            let lags = lag.map(|lag| (server.clone(), lag)).into_iter().collect();
            let looks = HashMap::from([(server.clone(), standing)]);
            health.with_earlier(looks, &lags, answered)[&server]
        };
        let unknown =
            Look { standing: Standing::Unknown, lag: Duration::ZERO, silent: true, answered };
        assert_eq!(look(Standing::Unknown, None), unknown);
        let lagging = Look { standing: Standing::Serving(state), lag, silent: false, answered };
        assert_eq!(look(Standing::Serving(state), Some(lag)), lagging);
        assert_eq!(look(Standing::Unknown, None), Look { silent: true, ..lagging });
        assert_eq!(look(Standing::Unknown, None), Look { silent: true, ..lagging });
        assert_eq!(look(Standing::NotAccepting, None).standing, Standing::NotAccepting);
    }
}
