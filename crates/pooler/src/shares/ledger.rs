//! What a node knows of one limit: the places that it holds, what others hold, and what follows from it.
//!
//! # Model
//! ```text
//!   held ──► leaving ──► (the store has it no more)
//!   kept: connections without a place, since the lease has ended, until it is known what is free
//!   bound = allowed + kept        allowed <= held
//! ```
//! While no node lacks places, each holds what it needs and a spare, so that an opening seldom
//! waits for the store, and gives back what it has not needed for [`UNNEEDED`]. While a node lacks
//! places, each holds what it uses or waits for, at most its share, and keeps idle connections as
//! far as the others leave places.
//!
//! Limits of nodes differ while a new configuration comes to one after the other: a place beyond a node's limit is of
//! no use to it. So low numbers are given up first, and while others lack places, low ones are exchanged for free
//! ones that are higher.
//!
//! # Invariants
//! * a place is given back only if `used` fits into the rest, and into the bound that was in force when `used`
//!   was counted: no opening can slip in between

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::allot::{Claim, share};
use super::ask::{Need, Taken, Want};
use super::scope::{LeaseId, Place, Revision, Scope};
use crate::time::Time;

/// How long places must have been more than a node needs before it gives them back.
pub(super) const UNNEEDED: Duration = Duration::from_secs(3);
/// How long a node keeps its only place from one that has none, if both need one.
pub(super) const TURN: Duration = Duration::from_secs(1);
/// How long a place counts as lacking that was: an opening that waits for places of several limits gets one
/// after the other.
const LACKING_FOR: Duration = Duration::from_secs(1);
/// How long a connection counts as in use that was. Longer than wants outlast the need: else nodes that have
/// all come to rest would close their connections for each other.
const BUSY_FOR: Duration = Duration::from_secs(3);
/// One look in so many may lead to an exchange.
const EXCHANGED: u32 = 4;
/// The spare of a node is this part of the limit, at least 1.
const SPARE_PART: u32 = 16;

/// What the last look has shown of a limit.
#[derive(Debug)]
pub(super) enum Seen {
    /// Nothing that still counts.
    Nothing,
    /// It has not been acted on.
    New(View),
    /// It has.
    Acted(View),
}

/// Places that are taken.
#[derive(Debug, Default)]
pub(super) struct View {
    numbers: BTreeSet<u32>,
    /// How many, and since when, each other node has.
    others: BTreeMap<LeaseId, (u32, Revision)>,
}

impl Seen {
    fn view(&self) -> Option<&View> {
        match self {
            Self::Nothing => None,
            Self::New(view) | Self::Acted(view) => Some(view),
        }
    }
}

/// The most of something for some time after it was.
#[derive(Clone, Copy, Debug)]
struct Recent {
    most: u32,
    at: Time,
    lasts: Duration,
}

impl Recent {
    fn new(lasts: Duration) -> Self {
        Self { most: 0, at: Time::ZERO, lasts }
    }

    fn note(&mut self, now: Time, count: u32) {
        if count >= self.most || now.since(self.at) >= self.lasts {
            (self.most, self.at) = (count, now);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ledger {
    need: Need,
    /// Places that are in use or waited for.
    wanting: Recent,
    /// The same, for longer.
    busy: Recent,
    held: BTreeMap<u32, Revision>,
    held_since: Time,
    leaving: BTreeMap<u32, Revision>,
    kept: u32,
    /// As many places as it had connections when the lease ended: see [`Node`](super::Node).
    had: u32,
    pub(super) seen: Seen,
    pub(super) looked: Time,
    /// How many places it should hold.
    goal: u32,
    allowed: u32,
    /// What the bound was when it was last asked for.
    in_force: u32,
    /// More than the goal: how many all the time, and since when.
    surplus: Option<(u32, Time)>,
    /// At the last look there were fewer free than it should have.
    is_spent: bool,
    /// Others lack places.
    is_contested: bool,
    wanted: u32,
    /// It has had its turn: its want is to be newer than those of others.
    rejoins: bool,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            need: Need::default(),
            wanting: Recent::new(LACKING_FOR),
            busy: Recent::new(BUSY_FOR),
            held: BTreeMap::new(),
            held_since: Time::ZERO,
            leaving: BTreeMap::new(),
            kept: 0,
            had: 0,
            seen: Seen::Nothing,
            looked: Time::ZERO,
            goal: 0,
            allowed: 0,
            in_force: 0,
            surplus: None,
            is_spent: false,
            is_contested: false,
            wanted: 0,
            rejoins: false,
        }
    }
}

impl Ledger {
    pub(super) fn need(&mut self, now: Time, need: Need) {
        self.need = need;
        let busy = need.used.saturating_sub(need.idle).saturating_add(need.waiting);
        self.wanting.note(now, busy);
        self.busy.note(now, busy);
    }

    /// It has and needs nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.need == Need::default()
            && self.held.is_empty()
            && self.leaving.is_empty()
            && self.kept == 0
    }

    /// Places that count: after a limit was lowered, those beyond it do not.
    fn usable(&self) -> u32 {
        count(self.held.range(..self.need.limit).count())
    }

    /// How many places it has use for: idle connections keep theirs.
    fn of_use(&self) -> u32 {
        let all = self.need.used.saturating_add(self.need.waiting);
        all.max(self.wanting.most).min(self.need.limit)
    }

    /// How many it lacks: an opening that waits gets the place of an idle connection first.
    fn lack(&self) -> u32 {
        self.wanting.most.min(self.need.limit).saturating_sub(self.usable())
    }

    /// How many it holds and needs.
    fn needed(&self) -> u32 {
        self.busy.most.min(self.usable())
    }

    /// Connections that there may be. It is in force from now on.
    pub(super) fn bound(&mut self) -> u32 {
        self.in_force = self.allowed.saturating_add(self.kept);
        self.in_force
    }

    pub(super) fn held(&self) -> u32 {
        count(self.held.len())
    }

    /// Connections without a place that it goes on with.
    pub(super) fn kept(&self) -> u32 {
        self.kept
    }

    /// Connections without a place.
    pub(super) fn without(&self) -> u32 {
        self.kept.max(self.need.used.saturating_sub(self.held()))
    }

    /// Whether more cannot be had without others' giving up.
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent || self.is_contested || self.wanted > 0
    }

    /// Places that it has said are lacking.
    pub(super) fn wanted(&self) -> u32 {
        self.wanted
    }

    /// Whether it is to be looked at without delay.
    pub(super) fn hurries(&self, others_want: bool) -> bool {
        let short = self.usable() < self.goal;
        let unsaid = self.lack() > 0 && self.wanted == 0;
        (short && (!self.is_spent || unsaid)) || (others_want && matches!(self.seen, Seen::Nothing))
    }

    /// Whether a look at it may change anything.
    pub(super) fn is_of_interest(&self) -> bool {
        self.usable() < self.goal || self.kept > 0 || matches!(self.seen, Seen::Nothing)
    }

    /// What follows from what is needed and from what was seen.
    /// `is_back`: others may still have connections whose places have gone with their leases.
    pub(super) fn settle(&mut self, now: Time, own: LeaseId, wants: &[Want], is_back: bool) {
        let usable = self.usable();
        self.wanted = self.wanted.min(self.lack());
        self.is_contested = wants.iter().any(|want| want.owner != own);
        match self.seen.view().filter(|_| self.is_contested) {
            Some(view) => {
                let claims = self.claims(view, own, wants);
                let mut most = share(self.need.limit, &claims, own);
                if most == 0 && usable > 0 && now.since(self.held_since) < TURN {
                    most = 1;
                }
                self.goal = most;
                if most == self.needed() + self.lack() {
                    let idle = self.need.used.min(usable).saturating_sub(most);
                    self.goal += idle.min(self.left_by(&claims, own));
                }
                self.allowed = self.goal.min(usable);
                self.surplus = None;
            }
            None => {
                let spare = (self.need.limit / SPARE_PART).max(1);
                self.goal = self.of_use().saturating_add(spare).min(self.need.limit);
                self.allowed = usable - self.unneeded(now, usable.saturating_sub(self.goal));
            }
        }
        if is_back {
            self.goal = self.goal.min(self.had);
        }
        let rest = self.need.used.max(self.in_force).max(self.allowed);
        while self.held() > rest {
            let Some((number, since)) = self.of_least_use() else { break };
            self.held.remove(&number);
            self.leaving.insert(number, since);
            self.rejoins |= self.held.is_empty();
        }
    }

    /// The place that goes first: one beyond the limit, else the lowest, which is of use to nodes with a lower limit,
    /// too.
    fn of_least_use(&self) -> Option<(u32, Revision)> {
        let beyond = self.held.range(self.need.limit..).next_back();
        beyond.or(self.held.first_key_value()).map(|(number, since)| (*number, *since))
    }

    /// A free place to take in exchange for the lowest that it holds, which a node whose limit is lower may lack.
    fn better(&self, free: &[u32]) -> Option<u32> {
        let lowest = self.held.keys().next()?;
        free.iter().max().copied().filter(|number| self.is_contested && number > lowest)
    }

    /// How many of `surplus` places have been too many for so long that they go.
    fn unneeded(&mut self, now: Time, surplus: u32) -> u32 {
        if surplus == 0 {
            self.surplus = None;
            return 0;
        }
        let (least, since) = self.surplus.get_or_insert((surplus, now));
        *least = surplus.min(*least);
        if now.since(*since) < UNNEEDED { 0 } else { *least }
    }

    /// How many places are left when it has what it needs, and all others what they ask for.
    fn left_by(&self, claims: &[Claim], own: LeaseId) -> u32 {
        let asked = claims.iter().filter(|claim| claim.owner != own);
        let asked = asked.map(|claim| claim.held.saturating_add(claim.lacking));
        let taken = asked.fold(self.needed() + self.lack(), u32::saturating_add);
        self.need.limit.saturating_sub(taken)
    }

    /// What it and all others ask for.
    fn claims(&self, view: &View, own: LeaseId, wants: &[Want]) -> Vec<Claim> {
        let claim = |owner, held, since| {
            let want = wants.iter().find(|want| want.owner == owner);
            Claim {
                owner,
                held,
                since,
                lacking: want.map_or(0, |want| want.count),
                lacking_since: want.map_or(Revision::NEVER, |want| want.since),
            }
        };
        let since = self.held.values().min().copied().unwrap_or(Revision::NEVER);
        let mut mine = claim(own, self.needed(), since);
        mine.lacking = self.lack();
        if self.rejoins {
            mine.lacking_since = Revision::NEVER;
        }
        let mut claims = vec![mine];
        claims
            .extend(view.others.iter().map(|(owner, (held, since))| claim(*owner, *held, *since)));
        let without =
            wants.iter().filter(|want| want.owner != own && !view.others.contains_key(&want.owner));
        claims.extend(without.map(|want| claim(want.owner, 0, Revision::NEVER)));
        claims
    }

    /// Acts on a look that is new: which places to take, `most` at most, from a random one on.
    pub(super) fn plan(&mut self, most: usize, mut draw: impl FnMut(u32) -> u32) -> Vec<u32> {
        let view = match std::mem::replace(&mut self.seen, Seen::Nothing) {
            Seen::New(view) => view,
            other => {
                self.seen = other;
                return Vec::new();
            }
        };
        let short = self.goal.saturating_sub(self.usable());
        let mut take: Vec<u32> =
            (0..self.need.limit).filter(|number| !view.numbers.contains(number)).collect();
        // (Now and then: if all did so at a time, they would be in each other's way.)
        let exchanged =
            self.better(&take).filter(|_| short == 0 && most > 0 && draw(EXCHANGED) == 0);
        if !take.is_empty() {
            let start = draw(count(take.len())) as usize;
            take.rotate_left(start);
        }
        take.truncate((short as usize).min(most));
        let taking = count(take.len());
        if take.len() < most {
            self.is_spent = taking < short;
            self.wanted = self.lack().saturating_sub(taking);
        }
        if take.is_empty() {
            self.kept = 0;
        }
        take.extend(exchanged);
        self.seen = Seen::Acted(view);
        take
    }

    /// A look has shown who has which places.
    pub(super) fn show(&mut self, now: Time, own: LeaseId, taken: &[&Taken]) {
        let mut view = View::default();
        let mut mine = BTreeMap::new();
        for Taken { place, owner, since } in taken {
            view.numbers.insert(place.number);
            if *owner == own {
                mine.insert(place.number, *since);
            } else {
                let (held, oldest) = view.others.entry(*owner).or_insert((0, *since));
                (*held, *oldest) = (*held + 1, *since.min(oldest));
            }
        }
        // A place that an operator has removed is no longer held. A place that a request without an
        // answer took is held.
        self.held.retain(|number, since| mine.get(number) == Some(since));
        self.leaving.retain(|number, since| mine.get(number) == Some(since));
        let known =
            |number: &u32| self.held.contains_key(number) || self.leaving.contains_key(number);
        mine.retain(|number, _| !known(number));
        for (number, since) in mine {
            self.kept = self.kept.saturating_sub(1);
            self.hold(now, number, since);
        }
        self.allowed = self.allowed.min(self.usable());
        self.seen = Seen::New(view);
        self.looked = now;
    }

    fn hold(&mut self, now: Time, number: u32, since: Revision) {
        if self.held.is_empty() {
            self.held_since = now;
            self.rejoins = false;
        }
        self.held.insert(number, since);
        self.allowed += 1;
        if self.is_contested {
            self.allowed = self.allowed.min(self.goal); // one goes in exchange
        }
    }

    /// It has taken a place, or another was first.
    pub(super) fn taken(&mut self, now: Time, number: u32, by_us: Option<Revision>) {
        self.kept = 0;
        if let Some(since) = by_us {
            self.hold(now, number, since);
        }
    }

    /// A place is the store's again.
    pub(super) fn left(&mut self, number: u32, since: Revision) {
        if self.leaving.get(&number) == Some(&since) {
            self.leaving.remove(&number);
        }
    }

    /// Places to give back.
    pub(super) fn leaving(&self, scope: &Scope) -> Vec<(Place, Revision)> {
        let place = |number: u32| Place { scope: scope.clone(), number };
        self.leaving.iter().map(|(number, since)| (place(*number), *since)).collect()
    }

    /// What its want should be, where one of `said` is there: `None` if that does.
    pub(super) fn want(&mut self, said: u32) -> Option<u32> {
        if said > 0 && std::mem::take(&mut self.rejoins) {
            return Some(0);
        }
        let does = match self.wanted {
            0 => said == 0,
            wanted => wanted <= said && wanted >= said / 2,
        };
        (!does).then_some(self.wanted)
    }

    /// The lease has ended, and all places with it. `keeps`: connections stay as long as it takes to find out
    /// what is free.
    pub(super) fn lose(&mut self, keeps: bool) {
        let kept = if keeps { self.allowed + self.kept } else { 0 };
        let (wanting, busy) = (self.wanting, self.busy);
        *self = Self { need: self.need, wanting, busy, kept, had: kept, ..Self::default() };
    }
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
