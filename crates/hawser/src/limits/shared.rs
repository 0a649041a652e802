//! Limits that several poolers share: the part of each that this one may use now.
//!
//! # Model
//! A place under a limit needs two things: the limit itself has room, and so has this pooler's part
//! of it, which [`crate::shares`] stores here. It looks in etcd for what has been asked for.
//!
//! # Invariants
//! * a limit without a stored part has no room
//! * once `until` has passed none has: others may hold its places

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use hawser_pooler::shares::{Bound, Kind, LeaseId, Need, Scope, Standing};

use super::{Counts, Full, Limits};
use crate::config::Limit;

/// How long a limit without connections is remembered.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// This pooler's parts of shared limits.
#[derive(Debug, Default)]
pub(super) struct Shares {
    bounds: BTreeMap<Scope, Bound>,
    until: Option<Instant>,
    asked: HashMap<Scope, Asked>,
    state: State,
}

/// A limit under which a place was wanted.
#[derive(Debug)]
struct Asked {
    full: Full,
    limit: u32,
    at: Instant,
}

/// The pools' state under a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnderLimit {
    /// The limit.
    pub limit: Limit,
    /// Server connections under it that are idle.
    pub idle: u32,
}

/// The state of the sharing.
#[derive(Clone, Debug)]
pub struct State {
    /// How certain this pooler is of its places.
    pub standing: Standing,
    /// Its lease.
    pub lease: Option<LeaseId>,
    /// The lease with which it last saw the places of others.
    pub looked_with: Option<LeaseId>,
    /// Why etcd does not answer, if it does not.
    pub failure: Option<String>,
    /// Requests that failed.
    pub failures: u64,
    /// Leases that have ended, or may have.
    pub losses: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            standing: Standing::Without,
            lease: None,
            looked_with: None,
            failure: None,
            failures: 0,
            losses: 0,
        }
    }
}

impl State {
    /// Whether this pooler can take places: its lease lasts, and it has seen the places of others.
    pub fn is_ready(&self) -> bool {
        self.standing == Standing::Sure && self.lease.is_some() && self.looked_with == self.lease
    }
}

/// A shared limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedLimit {
    /// What it counts.
    pub scope: Scope,
    /// The limit of all poolers together.
    pub limit: u32,
    /// Connections of this one.
    pub used: u32,
    /// The places that this one holds and lacks.
    pub bound: Bound,
}

impl Full {
    /// What it counts.
    pub fn scope(&self) -> Scope {
        let scope = |kind, name: String| Scope { kind, name: name.into() };
        match self {
            Self::Total => Scope::total(),
            Self::Database(name) => scope(Kind::Database, name.to_string()),
            Self::User(name) => scope(Kind::User, name.to_string()),
            Self::Server(server) => scope(Kind::Server, server.to_string()),
        }
    }
}

impl Shares {
    fn most(&self, scope: &Scope) -> usize {
        match self.until {
            Some(until) if Instant::now() >= until => 0,
            _ => self.bounds.get(scope).map_or(0, |bound| bound.most as usize),
        }
    }

    pub(super) fn admits_one_more(&self, full: &Full, used: usize) -> bool {
        used < self.most(&full.scope())
    }

    /// A place is wanted under this limit.
    pub(super) fn ask(&mut self, full: &Full, bound: Limit) {
        if let Some(limit) = bound.get() {
            let asked = Asked { full: full.clone(), limit, at: Instant::now() };
            self.asked.insert(full.scope(), asked);
        }
    }
}

impl Limits {
    /// From now on, limits on server connections are shared by several poolers.
    pub fn share(&self) {
        self.lock().shares.get_or_insert_default();
    }

    /// Whether limits on server connections are shared by several poolers.
    pub fn are_shared(&self) -> bool {
        self.lock().shares.is_some()
    }

    /// This pooler's use of shared limits. `pools` has the present state of the configuration and
    /// the pools.
    pub fn shared_needs(&self, pools: &HashMap<Full, UnderLimit>) -> BTreeMap<Scope, Need> {
        let mut counts = self.lock();
        let Counts { shares: Some(_), .. } = &*counts else { return BTreeMap::new() };
        let mut asked = counts.shares.as_mut().map(|shares| std::mem::take(&mut shares.asked));
        let mut needs = BTreeMap::new();
        if let Some(asked) = &mut asked {
            asked.retain(|scope, one| {
                let used = u32::try_from(counts.used(&one.full)).unwrap_or(u32::MAX);
                let UnderLimit { limit, idle } = pools
                    .get(&one.full)
                    .copied()
                    .unwrap_or(UnderLimit { limit: Limit::new(one.limit), idle: 0 });
                let Some(limit) = limit.get() else { return false };
                one.limit = limit;
                let stays = used > 0 || one.at.elapsed() < FORGOTTEN_AFTER;
                if stays {
                    needs.insert(
                        scope.clone(),
                        Need { limit, used, idle: idle.min(used), waiting: 0 },
                    );
                }
                stays
            });
        }
        if let Some(shares) = &mut counts.shares {
            shares.asked = asked.unwrap_or_default();
        }
        needs
    }

    /// Sets this pooler's parts of shared limits, up to `until`. Those that wait for a place are
    /// woken if there is more of one.
    pub fn put_shares(&self, bounds: BTreeMap<Scope, Bound>, until: Option<Instant>) {
        let mut counts = self.lock();
        let Some(shares) = &mut counts.shares else { return };
        let is_more = bounds.iter().any(|(scope, bound)| bound.most as usize > shares.most(scope));
        let is_less = shares
            .bounds
            .iter()
            .any(|(scope, old)| bounds.get(scope).is_none_or(|new| new.most < old.most));
        shares.bounds = bounds;
        shares.until = until;
        drop(counts);
        if is_more {
            self.server_freed.notify_waiters();
        }
        if is_less {
            self.lowered.notify_one();
        }
    }

    /// Limits under which there are more connections than this pooler may have, and how many more.
    pub fn over_their_share(&self) -> Vec<(Full, usize)> {
        let counts = self.lock();
        let Some(shares) = &counts.shares else { return Vec::new() };
        let over = shares.asked.iter().map(|(scope, asked)| {
            (asked.full.clone(), counts.used(&asked.full).saturating_sub(shares.most(scope)))
        });
        over.filter(|(_, over)| *over > 0).collect()
    }

    /// Whether it is this pooler's part of a limit that leaves no room, and more of it may be
    /// available at once.
    pub fn awaits_share(&self, full: &Full) -> bool {
        let counts = self.lock();
        let Some(shares) = &counts.shares else { return false };
        let scope = full.scope();
        let has_room = |asked: &Asked| counts.used(full) < asked.limit as usize;
        let is_spent = shares.bounds.get(&scope).is_some_and(|bound| bound.is_spent);
        !is_spent && shares.asked.get(&scope).is_some_and(has_room)
    }

    /// Completes when a place under a shared limit has been wanted or taken since the last time.
    pub async fn share_lacking(&self) {
        self.lacking.notified().await;
    }

    /// Completes when this pooler may have fewer connections than before.
    pub async fn share_lowered(&self) {
        self.lowered.notified().await;
    }

    /// Records the state of the sharing.
    pub fn note_sharing(&self, note: impl FnOnce(&mut State)) {
        if let Some(shares) = &mut self.lock().shares {
            note(&mut shares.state);
        }
    }

    /// The state of the sharing, and this pooler's places of each limit; `None`: limits are its
    /// own.
    pub fn sharing(&self) -> Option<(State, Vec<SharedLimit>)> {
        let counts = self.lock();
        let shares = counts.shares.as_ref()?;
        let limit = |(scope, asked): (&Scope, &Asked)| SharedLimit {
            scope: scope.clone(),
            limit: asked.limit,
            used: u32::try_from(counts.used(&asked.full)).unwrap_or(u32::MAX),
            bound: shares.bounds.get(scope).copied().unwrap_or_default(),
        };
        let mut limits: Vec<_> = shares.asked.iter().map(limit).collect();
        limits.sort_by(|a, b| a.scope.cmp(&b.scope));
        Some((shares.state.clone(), limits))
    }

    /// Whether no more of shared limits is available because etcd does not answer.
    pub fn are_cut_off(&self) -> bool {
        self.lock().shares.as_ref().is_some_and(|shares| shares.state.failure.is_some())
    }

    /// Whether that is why no more of this limit is available: this pooler has not reached it.
    pub fn is_cut_off_from(&self, full: &Full) -> bool {
        let counts = self.lock();
        let Some(shares) = &counts.shares else { return false };
        let has_room = |asked: &Asked| counts.used(full) < asked.limit as usize;
        shares.state.failure.is_some() && shares.asked.get(&full.scope()).is_some_and(has_room)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::ServerBounds;
    use super::*;

    fn bounds(most: u32, is_spent: bool) -> BTreeMap<Scope, Bound> {
        let scope = Scope { kind: Kind::Database, name: "app".into() };
        BTreeMap::from([(scope, Bound { most, is_spent, ..Bound::default() })])
    }

    const WANTED: ServerBounds =
        ServerBounds { total: Limit::NONE, database: Limit::NONE, user: Limit::NONE };

    #[test]
    fn a_shared_limit_has_as_much_room_as_is_held_of_it() {
        let limits = Arc::new(Limits::default());
        limits.share();
        let wanted = ServerBounds { database: Limit::new(4), ..WANTED };
        let full = Full::Database("app".into());
        assert_eq!(limits.server("app", "u", &wanted).unwrap_err(), full);
        assert!(limits.awaits_share(&full), "more may be had");
        limits.put_shares(bounds(1, false), None);
        let held = limits.server("app", "u", &wanted).unwrap();
        assert_eq!(limits.server("app", "u", &wanted).unwrap_err(), full);
        limits.put_shares(bounds(1, true), None);
        assert!(!limits.awaits_share(&full), "others have all");
        limits.server("other", "u", &WANTED).unwrap();
        let needs = limits.shared_needs(&HashMap::new());
        assert_eq!(
            needs.into_values().collect::<Vec<_>>(),
            [Need { limit: 4, used: 1, ..Need::default() }]
        );
        assert!(limits.over_their_share().is_empty());
        limits.put_shares(bounds(0, true), None);
        assert_eq!(limits.over_their_share(), [(full, 1)]);
        drop(held);
        assert!(limits.over_their_share().is_empty());
    }

    #[test]
    fn a_share_ends_by_the_clock_without_another_word() {
        let limits = Arc::new(Limits::default());
        limits.share();
        let wanted = ServerBounds { database: Limit::new(4), ..WANTED };
        limits.put_shares(bounds(4, false), Some(Instant::now() + Duration::from_millis(50)));
        let _held = limits.server("app", "u", &wanted).unwrap();
        std::thread::sleep(Duration::from_millis(60));
        limits.server("app", "u", &wanted).unwrap_err();
        assert_eq!(limits.over_their_share(), [(Full::Database("app".into()), 1)]);
    }

    #[test]
    fn a_limit_that_the_configuration_has_taken_away_is_shared_no_more() {
        let limits = Arc::new(Limits::default());
        limits.share();
        let wanted = ServerBounds { database: Limit::new(4), ..WANTED };
        limits.server("app", "u", &wanted).unwrap_err();
        let none = HashMap::from([(Full::Database("app".into()), UnderLimit::default())]);
        assert!(limits.shared_needs(&none).is_empty());
        limits.server("app", "u", &WANTED).unwrap();
    }
}
