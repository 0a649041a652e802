//! One connection: looks in, actions and events out.
//!
//! # Model
//! Worth it is a connection that has carried [`BULK_BYTES`] without a pause: what has gone on for a
//! while goes on for as long again, and a search costs a second or two. Then
//! ```text
//!   limits known = total / fastest flow ever seen in this search     (while none was paused)
//!   dial a batch of min(enough(limits) - dials, 6), the first of 7, settle, measure
//!   pause the slowest, flows - limits of them; needless ones are closed; half of them, drawn, where not
//!   whoever is left has a limit of its own, and is known: limits = flows; dial again if that asks for more
//!   of later batches, what adds nothing is paused at once; flows with a whole limit's rate are known;
//!   where the gain is more than theirs, the others are weighed as above
//! ```
//! What is needless stays paused until the search ends, and is closed then, all at once: a sender that
//! loses a subflow sends again all that the peer has not acknowledged (net/mptcp/protocol.c,
//! __mptcp_retransmit_pending_data()).
//!
//! Of two flows that share a limit one has less than half of it, and the other more: so the slowest
//! are one of each pair. More flows at once than that find limits sooner, but each that shares loses
//! segments, and all wait for those: 30 flows into 8 limits were slower than 12.
//!
//! # Invariants
//! * at most [`FLOWS_MAX`] flows, [`BATCH_MAX`] of them being dialled
//! * of each pair of addresses one flow carries data: when a line fails, nothing need be dialled first
//! * what comes out depends on what went in and its order alone

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::action::{Action, Event, Flow, FlowId, Look, PairId, Reason, Role, State};
use super::draws::enough;
use super::health::Health;
use super::meter::{Mark, Rates};
use super::trial::{CANDIDATE, Draw, IDLE, Trial, Verdict};
use crate::time::Time;

/// Subflows of a connection.
pub const FLOWS_MAX: usize = 64;
/// Dials at once.
pub const BATCH_MAX: u32 = 6;
/// Dials at once where there is one flow yet: as many as tell whether there is one limit.
pub const BATCH_FIRST: u32 = 7;
/// Flows beyond the limits that are known, with which more are dialled before these are weighed.
const SURPLUS_MAX: usize = 1;
/// A connection that has carried so much without a pause is bulky.
pub const BULK_BYTES: u64 = 512 << 10;
/// So long it must have been busy.
const BUSY_MIN: Duration = Duration::from_millis(400);
/// What new flows must add to the whole to be worth a trial.
const GAIN: f64 = 0.06;
/// Less than this between two looks is a pause.
const BUSY_BYTES_S: u64 = 80 << 10;
/// So long a search waits for the next one that nothing but time has caused, at first and at last.
const SEARCH_AGAIN: Duration = Duration::from_secs(30);
const SEARCH_AGAIN_MAX: Duration = Duration::from_secs(300);
/// Dials of a search that time has caused, at most.
const SEARCH_DIALS: u32 = 2 * BATCH_MAX;
/// What is left when a third of the rate is lost.
const LOST: f64 = 0.67;
/// So many slices in a row must have lost it.
const LOW_SLICES: u32 = 4;
/// Between two looks at the rate of what is settled.
const SLICE: Duration = Duration::from_secs(1);
/// Between two dials of a pair that is lost, at first and after [`LOST_LONG`].
const REDIAL: Duration = Duration::from_secs(1);
const REDIAL_SLOW: Duration = Duration::from_secs(10);
const LOST_LONG: Duration = Duration::from_secs(120);
/// So long the whole waits before flows are ended for it, and they wait; 8 round trips at least.
const GAP: Duration = Duration::from_millis(1_200);
/// So long nothing comes over a flow whose line carries others before it is given up.
const STARVED: Duration = Duration::from_secs(4);
/// A pair on which nobody answers is left alone for so long.
const UNANSWERED: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
enum Phase {
    Watching(Mark),
    /// Flows are being opened; then they are measured.
    Dialling(Time),
    Gauging(Mark, Time, Again),
    /// Some are paused; then the rest is measured.
    Trying(Trial, Time),
    Weighing(Trial, Mark, Time, Again),
    Settled {
        mark: Mark,
        low: u32,
    },
}

/// How often a measurement was made again: one in which half of the rate was missing is, for a
/// connection waits as a whole for what is lost on one flow.
type Again = u32;
const AGAIN_MAX: Again = 4;

/// What is left when a measurement is made again.
const STALLED: f64 = 0.5;

#[derive(Clone, Copy, Debug)]
struct LostPair {
    since: Time,
    dialled: Time,
}

/// Chooses for one connection.
#[derive(Clone, Debug)]
pub struct Chooser {
    role: Role,
    draw: Draw,
    health: Health,
    phase: Phase,
    events: Vec<Event>,
    /// Rate over what there was before the search.
    alone: f64,
    /// The fastest flow of the search.
    top: f64,
    /// The total before the last dials.
    before: f64,
    dials: u32,
    limits: u32,
    /// What is paused in the next trial, where the last was too much.
    half: Option<Vec<FlowId>>,
    /// Flows without which the whole is slower.
    needed: BTreeSet<FlowId>,
    /// Flows that are being closed: they count no more.
    closing: BTreeSet<FlowId>,
    /// Flows with a limit of their own, and what they carried together when only they did.
    known: BTreeSet<FlowId>,
    known_rate: f64,
    /// Flows that are needless, and paused until the search ends.
    retired: BTreeSet<FlowId>,
    /// The rate of what is settled.
    settled: f64,
    settled_at: Time,
    /// Whether a known flow has gone since.
    lost_limit: bool,
    searched: bool,
    search_at: Time,
    search_again: Duration,
    had: BTreeSet<PairId>,
    lost: BTreeMap<PairId, LostPair>,
    avoided: BTreeMap<PairId, Time>,
    stuck: Option<(u64, Time)>,
    last: Option<Time>,
}

impl Chooser {
    /// For a connection that begins to be looked at; `seed` is for draws.
    #[must_use]
    pub fn new(role: Role, seed: u64) -> Self {
        Self {
            role,
            draw: Draw::new(seed),
            health: Health::default(),
            phase: Phase::Watching(Mark::new(&Look {
                now: Time::ZERO,
                flows: &[],
                pairs: &[],
                unacked_from: None,
            })),
            events: Vec::new(),
            alone: 0.0,
            top: 0.0,
            before: 0.0,
            dials: 0,
            limits: 1,
            half: None,
            needed: BTreeSet::new(),
            closing: BTreeSet::new(),
            known: BTreeSet::new(),
            known_rate: 0.0,
            retired: BTreeSet::new(),
            settled: 0.0,
            settled_at: Time::ZERO,
            lost_limit: false,
            searched: false,
            search_at: Time::ZERO,
            search_again: SEARCH_AGAIN,
            had: BTreeSet::new(),
            lost: BTreeMap::new(),
            avoided: BTreeMap::new(),
            stuck: None,
            last: None,
        }
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Watching(_) => State::Watching,
            Phase::Dialling(_) | Phase::Gauging(..) => State::Dialling,
            Phase::Trying(..) | Phase::Weighing(..) => State::Pruning,
            Phase::Settled { .. } => State::Settled,
        }
    }

    /// Limits that are known, as far as can be told.
    #[must_use]
    pub fn limits(&self) -> u32 {
        self.limits
    }

    /// What has happened since it was last asked.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// A subflow could not be dialled: not for some seconds.
    pub fn refused(&mut self, pair: PairId, now: Time) {
        self.avoided.insert(pair, now.after(UNANSWERED));
    }

    /// Takes a look in; says what is to be done. To be called ten times a second while anything is
    /// sent.
    pub fn look(&mut self, look: &Look<'_>) -> Vec<Action> {
        let here = |flow: &FlowId| look.flows.iter().any(|f| f.id == *flow);
        self.needed.retain(here);
        self.retired.retain(here);
        if !self.known.iter().all(here) {
            // What they carried together is not known any more, and a limit may have been lost.
            self.known.clear();
            self.lost_limit = true;
        }
        self.closing.retain(here);
        let stays = |flow: &&Flow| !self.closing.contains(&flow.id);
        let flows: Vec<Flow> = look.flows.iter().filter(stays).copied().collect();
        let look = &Look { flows: &flows, ..*look };
        self.health.look(look);
        let mut actions = Vec::new();
        if self.last.is_none() {
            self.phase = Phase::Watching(Mark::new(look));
        }
        self.end_what_is_dead(look, &mut actions);
        if self.role == Role::Dials {
            self.dial_what_is_lost(look, &mut actions);
            let from = self.state();
            self.step(look, &mut actions);
            self.tell(from, look);
        }
        self.last = Some(look.now);
        let goes_on = |action: &Action| match action {
            Action::Pause(flow) | Action::Resume(flow) => !self.closing.contains(flow),
            Action::Dial(_) | Action::Close(..) => true,
        };
        actions.retain(goes_on);
        actions
    }

    fn tell(&mut self, from: State, look: &Look<'_>) {
        let to = self.state();
        if from == to {
            return;
        }
        let rate = if to == State::Settled { self.settled } else { self.before };
        let flows = self.active(look).count() as u32;
        let (limits, dials) = (self.limits, self.dials);
        let rate_alone = self.alone;
        self.events.push(Event { from, to, rate, rate_alone, limits, flows, dials });
    }

    /// Open flows that are to carry data.
    fn active<'a>(&'a self, look: &Look<'a>) -> impl Iterator<Item = &'a Flow> + use<'a> {
        look.flows.iter().filter(|flow| flow.open && !self.rests(flow.id))
    }

    /// Whether it is to carry nothing.
    fn rests(&self, flow: FlowId) -> bool {
        [&self.retired, &self.closing].iter().any(|set| set.contains(&flow))
    }

    fn step(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        let now = look.now;
        let phase = std::mem::replace(&mut self.phase, Phase::Dialling(now));
        self.phase = match phase {
            Phase::Watching(mark) => return self.watch(mark, look, actions),
            Phase::Dialling(until) if now >= until => {
                Phase::Gauging(Mark::new(look), now.after(measure(look)), 0)
            }
            Phase::Gauging(mark, until, again) if now >= until => {
                let rates = mark.rates(look);
                if again < AGAIN_MAX && rates.total() < self.before * STALLED {
                    Phase::Gauging(Mark::new(look), now.after(measure(look)), again + 1)
                } else if rates.total() < self.before * IDLE {
                    Phase::Watching(Mark::new(look))
                } else {
                    return self.gauged(&rates, look, actions);
                }
            }
            Phase::Trying(trial, until) if now >= until => {
                Phase::Weighing(trial, Mark::new(look), now.after(measure(look)), 0)
            }
            Phase::Weighing(trial, mark, until, again) if now >= until => {
                let rates = mark.rates(look);
                if again < AGAIN_MAX && rates.total() < trial.before.total() * STALLED {
                    let until = now.after(measure(look));
                    Phase::Weighing(trial, Mark::new(look), until, again + 1)
                } else {
                    return self.weighed(&trial, &rates, look, actions);
                }
            }
            Phase::Settled { mark, low } => return self.settled(mark, low, look, actions),
            waiting => waiting,
        };
    }

    /// The mark moves on as long as there are pauses.
    fn watch(&mut self, mark: Mark, look: &Look<'_>, actions: &mut Vec<Action>) {
        let now = look.now;
        let gone = now.since(mark.at);
        let rates = mark.rates(look);
        let total = rates.total();
        let bytes = total * gone.as_secs_f64();
        if total < BUSY_BYTES_S as f64 && gone > Duration::ZERO {
            self.phase = Phase::Watching(Mark::new(look));
            return;
        }
        if gone < BUSY_MIN || bytes < BULK_BYTES as f64 {
            self.phase = Phase::Watching(mark);
            return;
        }
        if self.searched && (now < self.search_at || !self.lost.is_empty()) {
            self.settled = total;
            self.phase = Phase::Settled { mark: Mark::new(look), low: 0 };
            return;
        }
        self.search(0, &rates, look, actions);
    }

    /// Begins to search, as if `dials` had been made.
    fn search(&mut self, dials: u32, rates: &Rates, look: &Look<'_>, actions: &mut Vec<Action>) {
        self.dials = dials;
        self.alone = rates.total();
        self.top = rates.top();
        self.half = None;
        self.needed.clear();
        self.known.clear();
        self.gauged(rates, look, actions);
    }

    /// After a measurement in which nothing was paused.
    fn gauged(&mut self, rates: &Rates, look: &Look<'_>, actions: &mut Vec<Action>) {
        self.top = self.top.max(rates.top());
        self.before = rates.total();
        let by_rate = (rates.total() / self.top.max(1.0)).round() as u32;
        self.limits = by_rate.max(self.needed.len() as u32).max(1);
        if !self.known.is_empty() {
            return self.judge_new(rates, look, actions);
        }
        let surplus = self.active(look).count().saturating_sub(self.limits as usize);
        if surplus > SURPLUS_MAX || !self.dial(look, actions) {
            self.prune(rates, look, actions);
        }
    }

    /// Flows beside those that are known: what they add.
    fn judge_new(&mut self, rates: &Rates, look: &Look<'_>, actions: &mut Vec<Action>) {
        let new: Vec<FlowId> =
            self.active(look).map(|flow| flow.id).filter(|id| !self.known.contains(id)).collect();
        let unit = self.known_rate / self.known.len() as f64;
        let gain = rates.total() - self.known_rate;
        let (alone, others): (Vec<FlowId>, Vec<FlowId>) =
            new.into_iter().partition(|flow| rates.of(*flow) >= unit * CANDIDATE);
        let explained: f64 = alone.iter().map(|flow| rates.of(*flow)).sum();
        let adds = gain >= rates.total() * GAIN;
        if adds && gain - explained >= unit * 0.5 {
            // Some of the others have a limit of their own between them.
            self.limits = self.known.len() as u32 + (gain / unit).round().max(1.0) as u32;
            return self.prune(rates, look, actions);
        }
        if adds {
            self.known_rate += explained.min(gain);
            self.known.extend(alone);
        } else {
            self.retire(&alone, rates, look, actions);
        }
        self.retire(&others, rates, look, actions);
        self.search_on(look, actions);
    }

    /// What is known stays; more is dialled, if it is worth it.
    fn search_on(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        self.limits = self.known.len().max(1) as u32;
        self.before = self.known_rate;
        if !self.dial(look, actions) {
            self.settle(self.known_rate, look, actions);
        }
    }

    fn retire(
        &mut self,
        flows: &[FlowId],
        rates: &Rates,
        look: &Look<'_>,
        actions: &mut Vec<Action>,
    ) {
        let needed = self.fastest_of_pairs(rates, look);
        for flow in flows.iter().filter(|flow| !needed.contains(flow)) {
            self.retired.insert(*flow);
            actions.push(Action::Pause(*flow));
        }
    }

    /// Dials the next batch, if more dials are worth it and there is room.
    fn dial(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) -> bool {
        let room = FLOWS_MAX.saturating_sub(look.flows.len()) as u32;
        let batch = if look.flows.len() <= 1 { BATCH_FIRST } else { BATCH_MAX };
        let count = enough(self.limits).saturating_sub(self.dials).min(batch).min(room);
        let now = look.now;
        self.avoided.retain(|_, until| *until > now);
        let avoided =
            |pair: &PairId| self.avoided.contains_key(pair) || self.lost.contains_key(pair);
        let mut of: BTreeMap<PairId, usize> =
            look.pairs.iter().filter(|pair| !avoided(pair)).map(|pair| (*pair, 0)).collect();
        for flow in look.flows {
            if let Some(count) = of.get_mut(&flow.pair) {
                *count += 1;
            }
        }
        for _ in 0..count {
            // The pair with the fewest, the first of these.
            let Some((pair, flows)) = of.iter_mut().min_by_key(|(pair, flows)| (**flows, **pair))
            else {
                return false;
            };
            *flows += 1;
            actions.push(Action::Dial(*pair));
        }
        self.dials += count;
        if count > 0 {
            self.phase = Phase::Dialling(now.after(settle_dials(look)));
        }
        count > 0
    }

    /// Pauses some of those that may share another's limit; settles where there are none.
    fn prune(&mut self, rates: &Rates, look: &Look<'_>, actions: &mut Vec<Action>) {
        let active: Vec<FlowId> = self.active(look).map(|flow| flow.id).collect();
        let fastest = self.fastest_of_pairs(rates, look);
        let may_share = |flow: &FlowId| {
            !fastest.contains(flow)
                && !self.needed.contains(flow)
                && !self.known.contains(flow)
                && rates.of(*flow) < self.top * CANDIDATE
        };
        let candidates: Vec<FlowId> = active.iter().copied().filter(may_share).collect();
        if candidates.is_empty() {
            self.known = active.into_iter().collect();
            self.known_rate = rates.total();
            self.search_on(look, actions);
            return;
        }
        let paused = match self.half.take() {
            Some(half) => half.into_iter().filter(|flow| candidates.contains(flow)).collect(),
            None => {
                let mut slowest = candidates.clone();
                slowest.sort_by(|a, b| rates.of(*a).total_cmp(&rates.of(*b)));
                let surplus = active.len().saturating_sub(self.limits as usize);
                slowest.truncate(surplus.clamp(1, candidates.len()));
                slowest
            }
        };
        let paused: Vec<FlowId> = if paused.is_empty() { vec![candidates[0]] } else { paused };
        actions.extend(paused.iter().map(|flow| Action::Pause(*flow)));
        let trial = Trial { paused, before: rates.clone() };
        self.phase = Phase::Trying(trial, look.now.after(settle_pause(look)));
    }

    /// Of each pair the flow that carries most.
    fn fastest_of_pairs(&self, rates: &Rates, look: &Look<'_>) -> BTreeSet<FlowId> {
        let mut of: BTreeMap<PairId, FlowId> = BTreeMap::new();
        for flow in self.active(look) {
            let fastest = of.entry(flow.pair).or_insert(flow.id);
            if rates.of(flow.id) > rates.of(*fastest) {
                *fastest = flow.id;
            }
        }
        of.into_values().collect()
    }

    fn weighed(
        &mut self,
        trial: &Trial,
        after: &Rates,
        look: &Look<'_>,
        actions: &mut Vec<Action>,
    ) {
        let verdict = trial.verdict(after);
        if verdict == Verdict::Needless {
            self.retired.extend(&trial.paused);
            self.before = after.total();
            self.prune(after, look, actions);
            return;
        }
        actions.extend(trial.paused.iter().map(|flow| Action::Resume(*flow)));
        if verdict == Verdict::Idle {
            self.phase = Phase::Watching(Mark::new(look));
            return;
        }
        match trial.paused.as_slice() {
            [alone] => drop(self.needed.insert(*alone)),
            several => self.half = Some(self.draw.some(several, several.len() / 2)),
        }
        // What is measured next is what the next trial is compared with.
        self.phase = Phase::Dialling(look.now.after(settle_pause(look)));
    }

    fn close_retired(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        let mut of: BTreeMap<PairId, usize> = BTreeMap::new();
        for flow in look.flows.iter().filter(|f| f.open && !self.closing.contains(&f.id)) {
            *of.entry(flow.pair).or_default() += 1;
        }
        let retired = std::mem::take(&mut self.retired);
        for flow in look.flows.iter().filter(|flow| retired.contains(&flow.id)) {
            let left = of.entry(flow.pair).or_default();
            if *left > 1 {
                *left -= 1;
                self.closing.insert(flow.id);
                actions.push(Action::Close(flow.id, Reason::Shares));
            } else {
                actions.push(Action::Resume(flow.id));
            }
        }
    }

    fn settle(&mut self, rate: f64, look: &Look<'_>, actions: &mut Vec<Action>) {
        self.close_retired(look, actions);
        let gained = self.settled == 0.0 || rate > self.settled * 1.1;
        self.search_again = match (self.searched, gained) {
            (false, _) | (true, true) => SEARCH_AGAIN,
            (true, false) => (self.search_again * 2).min(SEARCH_AGAIN_MAX),
        };
        self.searched = true;
        self.settled_at = look.now;
        self.lost_limit = false;
        self.settled = rate;
        self.search_at = look.now.after(self.search_again);
        self.phase = Phase::Settled { mark: Mark::new(look), low: 0 };
    }

    fn settled(&mut self, mark: Mark, low: u32, look: &Look<'_>, actions: &mut Vec<Action>) {
        if look.now.since(mark.at) < SLICE {
            self.phase = Phase::Settled { mark, low };
            return;
        }
        let rates = mark.rates(look);
        let rate = rates.total();
        let low = if rate < self.settled * LOST { low + 1 } else { 0 };
        let searched_lately = look.now.since(self.settled_at) < SEARCH_AGAIN;
        if low >= 2 && rate < (self.settled * IDLE).max(BUSY_BYTES_S as f64) {
            self.phase = Phase::Watching(Mark::new(look));
        } else if low >= LOW_SLICES && !searched_lately && self.lost.is_empty() {
            self.search(0, &rates, look, actions);
        } else if (look.now >= self.search_at || self.lost_limit) && self.lost.is_empty() {
            self.lost_limit = false;
            self.dials = enough(self.limits).saturating_sub(SEARCH_DIALS);
            self.alone = rate;
            self.known = self.active(look).map(|flow| flow.id).collect();
            self.known_rate = rate;
            self.search_on(look, actions);
        } else {
            self.phase = Phase::Settled { mark: Mark::new(look), low };
        }
    }

    fn end_what_is_dead(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        let now = look.now;
        let mut open = look.flows.iter().filter(|flow| flow.open).count();
        let mut closing = BTreeSet::new();
        let mut close = |flow: &Flow, reason: Reason, actions: &mut Vec<Action>| {
            if flow.open && open <= 1 {
                return false;
            }
            open -= usize::from(flow.open);
            closing.insert(flow.id);
            actions.push(Action::Close(flow.id, reason));
            true
        };
        let mut died = false;
        for flow in look.flows {
            if self.health.is_dead(flow, now) {
                died |= close(flow, Reason::Dead, actions);
            } else if self.role == Role::Dials && self.health.is_unanswered(flow, now) {
                close(flow, Reason::Unanswered, actions);
                let pair_works = look.flows.iter().any(|f| f.open && f.pair == flow.pair);
                if !pair_works && !self.lost.contains_key(&flow.pair) {
                    self.avoided.insert(flow.pair, now.after(UNANSWERED));
                }
            } else if self.is_doubtful(flow, look) {
                died |= close(flow, Reason::Dead, actions);
            }
        }
        if !died {
            for flow in self.hold_gap(look) {
                close(flow, Reason::HoldsGap, actions);
            }
        }
        self.closing.extend(closing);
    }

    /// At the end that receives: nothing comes over it, and it is to carry data.
    fn is_doubtful(&self, flow: &Flow, look: &Look<'_>) -> bool {
        let now = look.now;
        let paused = match &self.phase {
            Phase::Trying(trial, _) | Phase::Weighing(trial, ..) => trial.paused.contains(&flow.id),
            _ => false,
        };
        self.role == Role::Dials
            && self.state() != State::Watching
            && !paused
            && !self.rests(flow.id)
            && self.health.is_silent(flow, now)
            && (!self.pair_carries(flow, look) || self.health.silent_for(flow.id, now) >= STARVED)
    }

    /// Whether another flow of the same pair has carried data of late: the line is there.
    fn pair_carries(&self, flow: &Flow, look: &Look<'_>) -> bool {
        look.flows.iter().any(|other| {
            let lively = self.health.silent_for(other.id, look.now) < Duration::from_millis(500);
            other.id != flow.id && other.pair == flow.pair && other.open && lively
        })
    }

    /// The whole waits for a peer's acknowledgement, and flows have bytes under way for long that
    /// nobody acknowledges, while another has none: it would carry more, were there room at the
    /// peer. Such a flow sends again after twice the time each time (RFC 6298, section 5.5).
    fn hold_gap<'a>(&mut self, look: &Look<'a>) -> Vec<&'a Flow> {
        let now = look.now;
        let Some(from) = look.unacked_from else { return Vec::new() };
        let since = match self.stuck {
            Some((at, since)) if at == from => since,
            _ => {
                self.stuck = Some((from, now));
                return Vec::new();
            }
        };
        let idle = look.flows.iter().any(|flow| flow.open && !flow.unacked);
        let gap = GAP.max(round_trip(look) * 8);
        if now.since(since) < gap || !idle {
            return Vec::new();
        }
        let waits =
            |flow: &&Flow| flow.open && flow.unacked && self.health.silent_for(flow.id, now) >= gap;
        look.flows.iter().filter(waits).collect()
    }

    /// Pairs of addresses that had a flow and have none are dialled until they have one again.
    fn dial_what_is_lost(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Watching(_)) && self.lost.is_empty() && !self.searched {
            return;
        }
        let now = look.now;
        let open: BTreeSet<PairId> = look
            .flows
            .iter()
            .filter(|flow| flow.open && !self.closing.contains(&flow.id))
            .map(|flow| flow.pair)
            .collect();
        self.had.extend(&open);
        self.had.retain(|pair| look.pairs.contains(pair));
        self.lost.retain(|pair, _| look.pairs.contains(pair) && !open.contains(pair));
        for pair in self.had.difference(&open) {
            let lost =
                self.lost.entry(*pair).or_insert(LostPair { since: now, dialled: Time::ZERO });
            let pause = if now.since(lost.since) < LOST_LONG { REDIAL } else { REDIAL_SLOW };
            if lost.dialled == Time::ZERO || now.since(lost.dialled) >= pause {
                lost.dialled = now;
                actions.push(Action::Dial(*pair));
            }
        }
    }
}

/// Of each pair the smallest round trip of its flows, and of those the largest: an end that receives
/// has measured its round trips at handshakes, some of them behind a full queue.
fn round_trip(look: &Look<'_>) -> Duration {
    let mut of: BTreeMap<PairId, Duration> = BTreeMap::new();
    for flow in look.flows.iter().filter(|flow| flow.open) {
        let smallest = of.entry(flow.pair).or_insert(flow.rtt);
        *smallest = flow.rtt.min(*smallest);
    }
    of.into_values().max().unwrap_or_default()
}

/// Until new flows carry what they can: slow start doubles each round trip.
fn settle_dials(look: &Look<'_>) -> Duration {
    Duration::from_millis(300) + round_trip(look) * 8
}

/// Until what was under way on paused flows has come, and the others have taken up what they left:
/// BBR raises its rate by a quarter in 8 round trips, so it doubles in 25.
fn settle_pause(look: &Look<'_>) -> Duration {
    Duration::from_millis(300) + round_trip(look) * 25
}

/// How long is measured.
fn measure(look: &Look<'_>) -> Duration {
    Duration::from_millis(500) + round_trip(look) * 4
}
