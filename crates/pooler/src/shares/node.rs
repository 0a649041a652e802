//! One node: its lease, and what it asks of the store next.
//!
//! # States
//! ```text
//!             granted                    until has passed                 renewed after all
//!   Without ──────────► Sure ─────────────────────────────► Unsure ────────────────────► Sure
//!      ▲                  │  the store does not know it        │
//!      └──────────────────┴────────────────────────────────────┘
//! ```
//! # Invariants
//! * one request is under way at a time; the lease is renewed before all else
//! * places are taken and given back only while the lease is sure

use std::collections::BTreeMap;
use std::time::Duration;

use super::ask::{Answer, Change, Failure, Look, Lost, Need, Request, Taken, Want};
use super::ledger::{Ledger, Seen};
use super::scope::{LeaseId, Place, Revision, Scope};
use crate::time::Time;

/// A lease is renewed when this part of it has passed.
const RENEWED_AFTER: u32 = 3;
/// With [`Lost::Close`], connections are closed when this part of the lease is left.
const CLOSED_BEFORE: u32 = 3;
/// Time between looks while nodes lack places.
const LOOK_BUSY: Duration = Duration::from_millis(250);
/// The same while none does.
const LOOK_QUIET: Duration = Duration::from_secs(1);
/// Time between two looks at the same limit, whatever happens: a lost answer may have left a place.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Between two looks, however much one hurries.
const LOOK_APART: Duration = Duration::from_millis(20);
/// For how long a node whose lease had ended takes no more places than it has connections. After
/// the store was unreachable for all, all return within this time: none takes what another still
/// uses.
const COMES_BACK: Duration = Duration::from_secs(3);
/// After a request that failed.
const RETRY: Duration = Duration::from_millis(300);
/// Changes of one request: etcd takes 128 by default.
const CHANGES_MAX: usize = 100;
/// Limits of one look: the same bound counts.
const LOOKED_AT_MAX: usize = 100;

/// How a node behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What becomes of connections once the lease may have ended.
    pub lost: Lost,
    /// For the numbers of places: nodes should differ.
    pub seed: u64,
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send this, and come back with what has become of it.
    Send(Request),
    /// Come back then, or when an opening lacks a place.
    Wait(Time),
}

/// How sure the node is of what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It has no lease.
    Without,
    /// Its lease lasts.
    Sure,
    /// Its lease may have ended.
    Unsure,
}

/// What connections of a limit are bounded by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bound {
    /// How many there may be.
    pub most: u32,
    /// More cannot be had soon: it is of use to make room here.
    pub is_spent: bool,
    /// Places held.
    pub held: u32,
    /// Missing places, as announced to the others.
    pub wanted: u32,
    /// Connections without a place, which others may have taken.
    pub unsure: u32,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: LeaseId,
    lasts: Duration,
    renew_at: Time,
    /// Up to then it is sure.
    until: Time,
}

impl Lease {
    fn new(id: LeaseId, sent: Time, lasts: Duration) -> Self {
        Self { id, lasts, renew_at: sent.after(lasts / RENEWED_AFTER), until: sent.after(lasts) }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    options: Options,
    drawn: u64,
    lease: Option<Lease>,
    /// Up to then it takes no more than it had.
    back_until: Time,
    ledgers: BTreeMap<Scope, Ledger>,
    wants: BTreeMap<Scope, Vec<Want>>,
    under_way: Option<(Request, Time)>,
    looked: Time,
    not_before: Time,
}

impl Node {
    /// One that holds nothing.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            drawn: 0,
            lease: None,
            back_until: Time::ZERO,
            ledgers: BTreeMap::new(),
            wants: BTreeMap::new(),
            under_way: None,
            looked: Time::ZERO,
            not_before: Time::ZERO,
        }
    }

    /// Its lease.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        self.lease.map(|lease| lease.id)
    }

    /// How sure it is of what it holds.
    #[must_use]
    pub fn standing(&self, now: Time) -> Standing {
        match self.lease {
            Some(lease) if now < lease.until => Standing::Sure,
            Some(_) => Standing::Unsure,
            None if self.ledgers.values().any(|ledger| ledger.kept() > 0) => Standing::Unsure,
            None => Standing::Without,
        }
    }

    /// Up to when bounds hold; with [`Lost::Keep`] they always do.
    #[must_use]
    pub fn bounds_until(&self) -> Option<Time> {
        match (self.options.lost, self.lease) {
            (Lost::Keep, _) => None,
            (Lost::Close, None) => Some(Time::ZERO),
            (Lost::Close, Some(lease)) => Some(
                lease
                    .renew_at
                    .after(lease.lasts - lease.lasts / RENEWED_AFTER - lease.lasts / CLOSED_BEFORE),
            ),
        }
    }

    /// How many connections of each limit there may be. To be put in force before `used` is counted for
    /// [`Node::next`].
    pub fn bounds(&mut self, now: Time) -> BTreeMap<Scope, Bound> {
        let is_over = self.bounds_until().is_some_and(|until| now >= until);
        let is_sure = self.standing(now) == Standing::Sure;
        let bound = |ledger: &mut Ledger| {
            let most = ledger.bound();
            let (held, without) = (ledger.held(), ledger.without());
            Bound {
                most: if is_over { 0 } else { most },
                is_spent: !is_sure || ledger.is_spent(),
                held,
                wanted: ledger.wanted(),
                unsure: if is_sure { without } else { held + without },
            }
        };
        self.ledgers.iter_mut().map(|(scope, ledger)| (scope.clone(), bound(ledger))).collect()
    }

    /// What to do next. `needs`: every limit that counts, as of now.
    ///
    /// # Panics
    /// In debug builds, if a request is under way.
    pub fn next(&mut self, now: Time, needs: &BTreeMap<Scope, Need>) -> Step {
        debug_assert!(self.under_way.is_none(), "one request at a time is under way");
        for (scope, need) in needs {
            self.ledgers.entry(scope.clone()).or_default().need(now, *need);
        }
        for (scope, ledger) in &mut self.ledgers {
            if !needs.contains_key(scope) {
                ledger.need(now, Need::default());
            }
        }
        if now < self.not_before {
            return Step::Wait(self.not_before);
        }
        let Some(lease) = self.lease else { return self.send(now, Request::Grant) };
        if now >= lease.renew_at {
            return self.send(now, Request::KeepAlive(lease.id));
        }
        for (scope, ledger) in &mut self.ledgers {
            let wants = self.wants.get(scope).map_or(&[][..], Vec::as_slice);
            ledger.settle(now, lease.id, wants, now < self.back_until);
        }
        let changes = self.changes(lease.id);
        if !changes.is_empty() {
            return self.send(now, Request::Change(lease.id, changes));
        }
        self.ledgers.retain(|_, ledger| !ledger.is_empty());
        let due = self.look_due(lease.id);
        if now >= due {
            let scopes = self.to_look_at(now);
            return self.send(now, Request::Look(scopes));
        }
        Step::Wait(due.min(lease.renew_at))
    }

    fn send(&mut self, now: Time, request: Request) -> Step {
        self.under_way = Some((request.clone(), now));
        Step::Send(request)
    }

    /// What is to be changed in the store.
    fn changes(&mut self, own: LeaseId) -> Vec<Change> {
        let Self { ledgers, wants, options, drawn, .. } = self;
        let mut changes = Vec::new();
        for (scope, ledger) in ledgers.iter_mut() {
            let room = CHANGES_MAX.saturating_sub(changes.len() + 1);
            if room == 0 {
                break;
            }
            let back = ledger.leaving(scope).into_iter().take(room);
            changes.extend(back.map(|(place, since)| Change::GiveBack(place, since)));
            let room = CHANGES_MAX.saturating_sub(changes.len() + 1);
            if room > 0 {
                let draw = |below| draw(options.seed, drawn, below);
                let take = ledger.plan(room, draw).into_iter();
                let place = |number| Place { scope: scope.clone(), number };
                changes.extend(take.map(|number| Change::Take(place(number))));
            }
            let said = wants.get(scope).and_then(|wants| wants.iter().find(|w| w.owner == own));
            match ledger.want(said.map_or(0, |want| want.count)) {
                None => {}
                Some(0) => changes.push(Change::WantNoMore(scope.clone())),
                Some(count) => changes.push(Change::Want(scope.clone(), count)),
            }
        }
        // A late one, of a limit that no longer counts.
        let stale = wants.iter().filter(|(scope, wants)| {
            !ledgers.contains_key(scope) && wants.iter().any(|want| want.owner == own)
        });
        let room = CHANGES_MAX.saturating_sub(changes.len());
        changes.extend(stale.map(|(scope, _)| Change::WantNoMore(scope.clone())).take(room));
        changes
    }

    fn others_want(&self, scope: &Scope) -> bool {
        let own = self.lease();
        let mut wants = self.wants.get(scope).into_iter().flatten();
        wants.any(|want| Some(want.owner) != own)
    }

    fn look_due(&self, own: LeaseId) -> Time {
        let hurries =
            self.ledgers.iter().any(|(scope, ledger)| ledger.hurries(self.others_want(scope)));
        let is_busy = self.wants.iter().any(|(scope, wants)| {
            self.ledgers.contains_key(scope) || wants.iter().any(|want| want.owner == own)
        });
        self.looked.after(match (hurries, is_busy) {
            (true, _) => LOOK_APART,
            (_, true) => LOOK_BUSY,
            _ => LOOK_QUIET,
        })
    }

    /// Those of which something may follow; those first that were looked at longest ago.
    fn to_look_at(&self, now: Time) -> Vec<Scope> {
        let mut scopes: Vec<_> = self
            .ledgers
            .iter()
            .filter(|(scope, ledger)| {
                ledger.is_of_interest()
                    || self.wants.contains_key(scope)
                    || now.since(ledger.looked) >= LOOK_AGAIN
            })
            .map(|(scope, ledger)| (ledger.looked, scope))
            .collect();
        scopes.sort_unstable();
        scopes.into_iter().take(LOOKED_AT_MAX).map(|(_, scope)| scope.clone()).collect()
    }

    /// An answer has come.
    pub fn answered(&mut self, now: Time, answer: Answer) {
        let Some((request, sent)) = self.under_way.take() else { return };
        self.not_before = now;
        match (request, answer) {
            (Request::Grant, Answer::Granted(id, lasts)) => {
                if self.standing(now) == Standing::Unsure {
                    self.back_until = now.after(COMES_BACK);
                }
                self.lease = Some(Lease::new(id, sent, lasts));
                self.looked = Time::ZERO;
            }
            (Request::KeepAlive(_), Answer::KeptAlive(Duration::ZERO)) => self.lose(),
            (Request::KeepAlive(id), Answer::KeptAlive(lasts)) => {
                self.lease = Some(Lease::new(id, sent, lasts));
            }
            (Request::Look(scopes), Answer::Seen(look)) => self.show(now, &scopes, look),
            (Request::Change(own, changes), Answer::Changed(revision, made)) => {
                for (change, made) in changes.into_iter().zip(made) {
                    self.changed(now, own, change, made.then_some(revision));
                }
            }
            _ => self.not_before = now.after(RETRY), // no answer to what was asked
        }
    }

    /// There will be no answer.
    pub fn failed(&mut self, now: Time, failure: Failure) {
        let request = self.under_way.take();
        self.not_before = now.after(RETRY);
        match (failure, request) {
            (Failure::LeaseEnded, _) => self.lose(),
            (Failure::Unknown, Some((Request::Change(_, changes), _))) => {
                // What it has changed, if anything, a look will show.
                for change in changes {
                    if let Change::Take(Place { scope, .. }) | Change::Want(scope, _) = change
                        && let Some(ledger) = self.ledgers.get_mut(&scope)
                    {
                        ledger.seen = Seen::Nothing;
                    }
                }
                self.looked = Time::ZERO;
            }
            (Failure::Unknown, _) => {}
        }
    }

    fn lose(&mut self) {
        self.lease = None;
        self.wants.clear();
        for ledger in self.ledgers.values_mut() {
            ledger.lose(self.options.lost == Lost::Keep);
        }
    }

    fn show(&mut self, now: Time, scopes: &[Scope], look: Look) {
        let Some(own) = self.lease() else { return };
        self.looked = now;
        self.wants.clear();
        for want in look.wants {
            self.wants.entry(want.scope.clone()).or_default().push(want);
        }
        let mut taken: BTreeMap<&Scope, Vec<&Taken>> = BTreeMap::new();
        for place in &look.taken {
            taken.entry(&place.place.scope).or_default().push(place);
        }
        for (scope, ledger) in &mut self.ledgers {
            if scopes.contains(scope) {
                ledger.show(now, own, taken.get(scope).map_or(&[], Vec::as_slice));
            } else if self.wants.contains_key(scope) {
                ledger.seen = Seen::Nothing; // older than what is wanted
            }
        }
    }

    fn changed(&mut self, now: Time, own: LeaseId, change: Change, made: Option<Revision>) {
        match change {
            Change::Take(Place { scope, number }) => {
                if let Some(ledger) = self.ledgers.get_mut(&scope) {
                    ledger.taken(now, number, made);
                }
            }
            Change::GiveBack(Place { scope, number }, since) => {
                if let Some(ledger) = self.ledgers.get_mut(&scope) {
                    ledger.left(number, since);
                }
            }
            Change::Want(scope, count) => {
                let Some(written) = made else { return };
                let wants = self.wants.entry(scope.clone()).or_default();
                match wants.iter_mut().find(|want| want.owner == own) {
                    Some(want) => want.count = count,
                    None => wants.push(Want { scope, owner: own, count, since: written }),
                }
            }
            Change::WantNoMore(scope) => {
                if let Some(wants) = self.wants.get_mut(&scope) {
                    wants.retain(|want| want.owner != own);
                    if wants.is_empty() {
                        self.wants.remove(&scope);
                    }
                }
            }
        }
    }
}

/// A number below `below`, another one each time: splitmix64.
fn draw(seed: u64, drawn: &mut u64, below: u32) -> u32 {
    *drawn = drawn.wrapping_add(1);
    let mut z = seed.wrapping_add(drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) % u64::from(below.max(1))) as u32
}
