//! The search: which flows have a limit of their own.
//!
//! # Model
//! ```text
//!   known       flows of which no two share a limit, and what they carried when only they did
//!   unknown     the others that carry data: those dialled last
//!   depressed   known flows that carry less than they did: another flow shares their limit
//!
//!   dialled, measured:  an unknown one that carries a whole limit's rate is known, if none is depressed,
//!                       or known ones are alike and what they have lost is what the other unknown carry
//!                       no gain for the whole       all unknown ones rest
//!                       otherwise                   some of the unknown are paused (super::super::trial):
//!                                                   those that together carry what the depressed have
//!                                                   lost, and of the others those that together with a
//!                                                   faster one carry what a limit lets through
//!   weighed:            needless                    they rest until the search ends
//!                       needed                      those not paused may become known, as above
//!                       needed, one                 it is known: no other flow uses its limit
//!                       needed, several             half of them, drawn, is paused next, or others are,
//!                                                   if one of them has become known
//! ```
//! The gain is what the unknown carry less what the depressed have lost. A loss that all known
//! flows have alike counts for no one: while flows share limits, all wait now and then for what
//! those hold. Limits may be unequal, and used by other programs, so no rate is that of "one
//! limit": what counts is who is depressed by whom. Nothing else is concluded from rates but which
//! flows to try first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::action::{Action, Flow, FlowId, Look, PairId};
use super::super::meter::{Mark, Rates};
use super::super::trial::{CANDIDATE, DEPRESSED, Trial, Verdict};
use super::{Chooser, FLOWS_MAX, KNOWN_MANY, Phase, WIDE_MAX, enough, settle_dials, settle_pause};

/// A flow shares with none that has lost less than its rate divided by this.
const LOST_TO: f64 = 1.5;
/// Below so many known flows the rates of others say nothing while one is depressed.
const KNOWN_TO_TELL: usize = 3;
/// Known flows are alike of which each carries so much of what the fastest does.
const ALIKE: f64 = 0.8;
/// If no two known flows keep this share, foreign flows may be the reason.
const ALL_SLOWER: f64 = 0.92;
/// What at least is left of a rate when the whole stutters.
const STUTTERS: f64 = 0.8;
/// What may be left of what is sought, and how much more a flow may carry than is sought.
const FILLED: f64 = 0.2;
const FITS: f64 = 1.35;
/// How much of what was measured last is taken into what a known flow carries.
const REFRESHED: f64 = 0.3;
/// So many rest at most before they are closed.
const RESTING_MAX: usize = 48;
/// Trials that are compared with one measurement.
const TRIALS_OF_ONE: u32 = 4;
/// What is paused at once of the flows that are too many, where shares cost little: one part in so many.
const WIDE_PART: f64 = 4.0;
/// So many trials in a row may say nothing.
const UNCLEAR_MAX: u32 = 3;

impl Chooser {
    /// Begins to search, as if `dials` had been made.
    pub(super) fn search(
        &mut self,
        dials: u32,
        rates: &Rates,
        look: &Look<'_>,
        actions: &mut Vec<Action>,
    ) {
        self.dials = dials;
        self.alone = rates.total();
        self.top = rates.top();
        self.half = None;
        self.unclear = 0;
        self.kept.clear();
        self.known = self.fastest_of_pairs(rates, look);
        self.set_base(rates);
        self.prune(rates, 0, look, actions);
    }

    /// Begins to search beside what is there, as if `dials` had been made.
    pub(super) fn search_beside(
        &mut self,
        dials: u32,
        rates: &Rates,
        look: &Look<'_>,
        actions: &mut Vec<Action>,
    ) {
        self.dials = dials;
        self.alone = rates.total();
        self.known = self.active(look).map(|flow| flow.id).collect();
        let known = &self.known;
        self.kept.retain(|flow| known.contains(flow));
        self.set_base(rates);
        self.search_on(look, actions);
    }

    fn set_base(&mut self, rates: &Rates) {
        self.base = rates.clone();
        let known = &self.known;
        self.base.retain(|flow| known.contains(&flow));
    }

    /// After a measurement in which nothing was paused but what rests.
    pub(super) fn gauged(&mut self, rates: &Rates, look: &Look<'_>, actions: &mut Vec<Action>) {
        self.top = self.top.max(rates.top());
        self.keep_one_of_pairs(rates, look);
        self.refresh_base(rates);
        let known = self.known.len();
        self.accept(rates, look);
        let found = self.known.len() > known;
        let new: f64 = self.unknown(look).into_iter().map(|flow| rates.of(flow)).sum();
        let lost: f64 = self.depressed(rates).into_iter().map(|(_, lost)| lost).sum();
        let gain = new - lost;
        let gains = gain >= rates.total() * self.least_gain();
        if gains && !found && known >= KNOWN_MANY && !self.confirmed {
            self.confirmed = true;
            self.phase = Phase::Gauging(self.gauge(look), 0);
            return;
        }
        if gains && self.widen(rates, look, actions) {
            return;
        }
        if gains {
            return self.prune(rates, 0, look, actions);
        }
        for flow in self.unknown(look) {
            self.retired.insert(flow);
            actions.push(Action::Pause(flow));
        }
        self.rest(settle_pause(look), look, actions);
    }

    /// Dials as many more as meet all limits, by what the whole carries of the fastest flow's rate, before
    /// any share is sought; whether it does.
    fn widen(&mut self, rates: &Rates, look: &Look<'_>, actions: &mut Vec<Action>) -> bool {
        let limits = (rates.total() / self.top.max(1.0)).round() as u32;
        let room = WIDE_MAX.saturating_sub(look.flows.len()) as u32;
        let wanted = enough(limits).saturating_sub(self.dials).min(room);
        if !self.wide || limits < 2 || wanted == 0 {
            return false;
        }
        self.limits = limits;
        self.before = rates.total();
        self.dial_so_many(wanted, look, actions)
    }

    /// One flow of each pair carries data, whatever it adds.
    fn keep_one_of_pairs(&mut self, rates: &Rates, look: &Look<'_>) {
        let pair_of: BTreeMap<FlowId, PairId> =
            look.flows.iter().map(|flow| (flow.id, flow.pair)).collect();
        for flow in self.fastest_of_pairs(rates, look) {
            if !self.known.iter().any(|known| pair_of.get(known) == pair_of.get(&flow)) {
                self.known.insert(flow);
                self.base.set(flow, rates.of(flow));
                if rates.of(flow) < self.top * CANDIDATE {
                    self.kept.insert(flow);
                }
            }
        }
    }

    /// Only known flows have carried data for a while.
    pub(super) fn rested(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        if self.retired.len() >= RESTING_MAX {
            self.close_retired(look, actions);
            self.phase = Phase::Resting(look.now.after(settle_pause(look)));
            return;
        }
        self.search_on(look, actions);
    }

    /// Known flows that are not depressed are measured with each batch: noise of one measurement
    /// does not stay, and limits may change.
    fn refresh_base(&mut self, rates: &Rates) {
        let depressed: BTreeSet<FlowId> =
            self.depressed(rates).into_iter().map(|(flow, _)| flow).collect();
        let stutter = self.stutter(rates);
        for flow in self.known.difference(&depressed) {
            let (old, new) = (self.base.of(*flow), rates.of(*flow) / stutter);
            self.base.set(*flow, old + (new - old) * REFRESHED);
        }
    }

    fn unknown(&self, look: &Look<'_>) -> Vec<FlowId> {
        self.active(look).map(|flow| flow.id).filter(|id| !self.known.contains(id)).collect()
    }

    /// What is known stays; more is dialled, if it is worth it.
    pub(super) fn search_on(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        if let Some(until) = self.must_recover(look) {
            self.phase = Phase::Resting(until);
            return;
        }
        self.limits = self.limits_known();
        self.before = self.base.total();
        if !self.dial(look, actions) {
            let total = self.base.total();
            self.settle(total, look, actions);
        }
    }

    /// Dials the next batch, if more dials are worth it and there is room.
    fn dial(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) -> bool {
        let wanted = self.enough().saturating_sub(self.dials).min(self.batch(look));
        if wanted as usize + look.flows.len() > FLOWS_MAX {
            self.close_retired(look, actions);
        }
        self.dial_so_many(wanted, look, actions)
    }

    /// Dials so many, as far as there is room.
    fn dial_so_many(&mut self, wanted: u32, look: &Look<'_>, actions: &mut Vec<Action>) -> bool {
        let flows: Vec<&Flow> =
            look.flows.iter().filter(|flow| !self.closing.contains(&flow.id)).collect();
        let count = wanted.min(FLOWS_MAX.saturating_sub(flows.len()) as u32);
        let now = look.now;
        self.avoided.retain(|_, until| *until > now);
        let avoided =
            |pair: &PairId| self.avoided.contains_key(pair) || self.lost.contains_key(pair);
        let mut of: BTreeMap<PairId, usize> =
            look.pairs.iter().filter(|pair| !avoided(pair)).map(|pair| (*pair, 0)).collect();
        for flow in flows {
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
        self.confirmed = false;
        if count > 0 {
            self.phase = Phase::Dialling(now.after(settle_dials(look)));
        }
        count > 0
    }

    /// Pauses some of those that may share another's limit; goes on where there are none. `age` is how
    /// many trials were compared with `rates`.
    fn prune(&mut self, rates: &Rates, age: u32, look: &Look<'_>, actions: &mut Vec<Action>) {
        self.keep_one_of_pairs(rates, look);
        self.accept(rates, look);
        let depressed = self.depressed(rates);
        let unknown = self.unknown(look);
        let by_rate = (rates.total() / self.top.max(1.0)).round() as usize;
        self.limits = (by_rate as u32).max(self.limits_known());
        if unknown.is_empty() {
            self.half = None;
            self.set_base(rates);
            return self.rest(Duration::ZERO, look, actions);
        }
        let half: Vec<FlowId> = self.half.take().unwrap_or_default();
        let half: Vec<FlowId> = half.into_iter().filter(|flow| unknown.contains(flow)).collect();
        let paused = if half.is_empty() { self.suspects(rates, &depressed, unknown) } else { half };
        actions.extend(paused.iter().map(|flow| Action::Pause(*flow)));
        let trial = Trial { paused, before: rates.clone(), age };
        self.phase = Phase::Trying(trial, look.now.after(settle_pause(look)));
    }

    /// An unknown flow with a whole limit's rate becomes known if no flow is depressed; also if
    /// known flows are alike, none has lost as much, and the others carry what was lost. Beside
    /// foreign flows, one that shares takes more than known ones lose, and those are not alike.
    fn accept(&mut self, rates: &Rates, look: &Look<'_>) {
        let depressed = self.depressed(rates);
        let most = depressed.first().map_or(0.0, |(_, loss)| *loss);
        let lost: f64 = depressed.iter().map(|(_, loss)| loss).sum();
        let whole = (self.top * CANDIDATE).max(most * LOST_TO);
        let (fast, slow): (Vec<_>, Vec<_>) =
            self.unknown(look).into_iter().partition(|flow| rates.of(*flow) >= whole);
        let slow: f64 = slow.into_iter().map(|flow| rates.of(flow)).sum();
        let explained = slow <= lost * FITS && slow >= lost / FITS;
        let alike = self.known.iter().all(|flow| self.base.of(*flow) >= self.top * ALIKE);
        let tells = self.known.len() >= KNOWN_TO_TELL && alike;
        if self.stutter(rates) < ALL_SLOWER || lost > 0.0 && !(tells && explained) {
            return;
        }
        for flow in fast {
            self.known.insert(flow);
            self.base.set(flow, rates.of(flow));
        }
    }

    /// What is left of the rates of known flows that are not depressed: while some flows share
    /// limits, all wait for what they hold now and then.
    fn stutter(&self, rates: &Rates) -> f64 {
        let share = |flow: &FlowId| rates.of(*flow) / self.base.of(*flow).max(1.0);
        let mut shares: Vec<f64> = self.known.iter().map(share).collect();
        shares.sort_by(|a, b| b.total_cmp(a));
        if shares.len() >= KNOWN_TO_TELL { shares[1].clamp(STUTTERS, 1.0) } else { 1.0 }
    }

    /// Known flows that carry less than they did, and how much less; who has lost most comes first.
    fn depressed(&self, rates: &Rates) -> Vec<(FlowId, f64)> {
        let stutter = self.stutter(rates);
        let loss = |flow: &FlowId| (*flow, self.base.of(*flow) * stutter - rates.of(*flow));
        let is_depressed = |(flow, loss): &(FlowId, f64)| *loss > self.base.of(*flow) * DEPRESSED;
        let mut depressed: Vec<_> = self.known.iter().map(loss).filter(is_depressed).collect();
        depressed.sort_by(|a, b| b.1.total_cmp(&a.1));
        depressed
    }

    /// The unknown flows that are tried first: those that together carry what the depressed have
    /// lost; of the others, those that together with a faster one carry what a limit lets through.
    fn suspects(
        &mut self,
        rates: &Rates,
        depressed: &[(FlowId, f64)],
        mut unknown: Vec<FlowId>,
    ) -> Vec<FlowId> {
        unknown.sort_by(|a, b| rates.of(*b).total_cmp(&rates.of(*a)));
        if self.wide {
            return self.some_of_slow(rates, &unknown);
        }
        let slowest = unknown.last().copied();
        let mut suspects = Vec::new();
        for (_, loss) in depressed {
            suspects.extend(that_carry(*loss, &mut unknown, rates));
        }
        while !unknown.is_empty() {
            let kept = unknown.remove(0);
            suspects.extend(that_carry(self.top - rates.of(kept), &mut unknown, rates));
        }
        if suspects.is_empty() { slowest.into_iter().collect() } else { suspects }
    }

    /// A quarter of the surplus among the unknown flows, drawn from the slow ones.
    fn some_of_slow(&mut self, rates: &Rates, unknown: &[FlowId]) -> Vec<FlowId> {
        let slow = |flow: &&FlowId| rates.of(**flow) < self.top * CANDIDATE;
        let slow: Vec<FlowId> = unknown.iter().filter(slow).copied().collect();
        let flows = (unknown.len() + self.known.len()) as f64;
        let beyond = flows - rates.total() / self.top.max(1.0);
        let count = ((beyond / WIDE_PART).round() as usize).max(1);
        match slow.as_slice() {
            [] => unknown.last().copied().into_iter().collect(),
            slow => self.draw.some(slow, count),
        }
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

    /// After a measurement while some were paused.
    pub(super) fn weighed(
        &mut self,
        trial: &Trial,
        after: &Rates,
        look: &Look<'_>,
        actions: &mut Vec<Action>,
    ) {
        let verdict = trial.verdict(after, &self.known);
        if verdict == Verdict::Needless {
            self.unclear = 0;
            self.retired.extend(&trial.paused);
            self.top = self.top.max(after.top());
            self.before = after.total();
            return self.prune(after, 0, look, actions);
        }
        actions.extend(trial.paused.iter().map(|flow| Action::Resume(*flow)));
        if verdict == Verdict::Idle {
            self.phase = Phase::Watching(Mark::new(look));
            return;
        }
        if verdict == Verdict::Unclear && self.unclear < UNCLEAR_MAX {
            self.unclear += 1;
            self.half = Some(trial.paused.clone());
            self.phase = Phase::Dialling(look.now.after(settle_pause(look)));
            return;
        }
        let known = self.known.len();
        if known >= KNOWN_TO_TELL {
            self.accept(after, look);
        }
        let accepted = self.known.len() > known;
        match trial.paused.as_slice() {
            [alone] => {
                self.known.insert(*alone);
                self.base.set(*alone, trial.before.of(*alone));
            }
            // Some who were not paused are known now: that says more.
            _ if accepted => {}
            several => self.half = Some(self.draw.some(several, several.len() / 2)),
        }
        if trial.age + 1 < TRIALS_OF_ONE {
            self.prune(&trial.before, trial.age + 1, look, actions);
        } else {
            self.phase = Phase::Dialling(look.now.after(settle_pause(look)));
        }
    }
}

/// Takes those out of `flows` that together carry `wanted`, as nearly as one after another tells.
fn that_carry(wanted: f64, flows: &mut Vec<FlowId>, rates: &Rates) -> Vec<FlowId> {
    let (mut left, mut taken) = (wanted, Vec::new());
    while left > wanted * FILLED {
        let off = |flow: &FlowId| (rates.of(*flow) - left).abs();
        let fits = |at: &usize| rates.of(flows[*at]) <= left * FITS;
        let nearest = (0..flows.len())
            .filter(fits)
            .min_by(|a, b| off(&flows[*a]).total_cmp(&off(&flows[*b])));
        let Some(at) = nearest else { break };
        left -= rates.of(flows[at]);
        taken.push(flows.remove(at));
    }
    taken
}
