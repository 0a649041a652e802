//! The search: which flows have a limit of their own.
//!
//! # Model
//! ```text
//!   known       flows of which no two share a limit, and what they carried when only they did
//!   unknown     the others that carry data: those dialled last
//!   depressed   known flows that carry less than they did: somebody shares their limit
//!
//!   dialled, measured:  no gain for the whole       all unknown ones are needless
//!                       nobody is depressed         an unknown one with a whole limit's rate is known
//!                       otherwise                   some of the unknown are paused (super::super::trial):
//!                                                   for each depressed flow the one whose rate is
//!                                                   nearest to what that one lost, otherwise the
//!                                                   slowest, flows - total / fastest of them
//!   weighed:            needless                    they rest until the search ends
//!                       needed, one                 it is known: nobody else uses its limit
//!                       needed, several             half of them, drawn, is paused next
//! ```
//! Limits may be unequal, and used by other programs, so no rate is that of "one limit": what counts
//! is who is depressed by whom. Nothing else is concluded from rates but which flows to try first.

use std::collections::{BTreeMap, BTreeSet};

use super::super::action::{Action, Flow, FlowId, Look, PairId};
use super::super::draws::enough;
use super::super::meter::{Mark, Rates};
use super::super::trial::{CANDIDATE, DEPRESSED, Trial, Verdict};
use super::{BATCH_FIRST, BATCH_MAX, Chooser, FLOWS_MAX, Phase, rest, settle_dials, settle_pause};

/// What new flows must add to the whole to be worth a trial.
const GAIN: f64 = 0.06;
/// How much of what was measured last is taken into what a known flow carries.
const REFRESHED: f64 = 0.3;
/// So many rest at most before they are closed.
const RESTING_MAX: usize = 24;
/// Trials that are compared with one measurement.
const TRIALS_OF_ONE: u32 = 4;
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
        // Of each pair one flow carries data, whatever it adds.
        let pair_of: BTreeMap<FlowId, PairId> =
            look.flows.iter().map(|flow| (flow.id, flow.pair)).collect();
        for flow in self.fastest_of_pairs(rates, look) {
            if !self.known.iter().any(|known| pair_of.get(known) == pair_of.get(&flow)) {
                self.known.insert(flow);
                self.base.set(flow, rates.of(flow));
            }
        }
        self.refresh_base(rates);
        let gain = rates.total() - self.base.total();
        if gain >= rates.total() * GAIN {
            return self.prune(rates, 0, look, actions);
        }
        for flow in self.unknown(look) {
            self.retired.insert(flow);
            actions.push(Action::Pause(flow));
        }
        let known = self.known.len() as u32;
        if known <= 1 && self.dials >= enough(known) {
            return self.search_on(look, actions);
        }
        let until = look.now.after(rest(look, known, self.dials));
        self.phase = Phase::Resting(until);
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

    /// Known flows that nobody depresses are measured with each batch: noise of one measurement does not
    /// stay, and limits may change.
    fn refresh_base(&mut self, rates: &Rates) {
        let depressed: BTreeSet<FlowId> =
            self.depressed(rates).into_iter().map(|(flow, _)| flow).collect();
        for flow in self.known.difference(&depressed) {
            let (old, new) = (self.base.of(*flow), rates.of(*flow));
            self.base.set(*flow, old + (new - old) * REFRESHED);
        }
    }

    fn unknown(&self, look: &Look<'_>) -> Vec<FlowId> {
        self.active(look).map(|flow| flow.id).filter(|id| !self.known.contains(id)).collect()
    }

    /// What is known stays; more is dialled, if it is worth it.
    fn search_on(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        self.limits = self.known.len().max(1) as u32;
        self.before = self.base.total();
        if !self.dial(look, actions) {
            let total = self.base.total();
            self.settle(total, look, actions);
        }
    }

    /// Dials the next batch, if more dials are worth it and there is room.
    fn dial(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) -> bool {
        let batch = if look.flows.len() <= 1 { BATCH_FIRST } else { BATCH_MAX };
        let wanted = enough(self.limits).saturating_sub(self.dials).min(batch);
        if wanted as usize + look.flows.len() > FLOWS_MAX {
            self.close_retired(look, actions);
        }
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
        if count > 0 {
            self.phase = Phase::Dialling(now.after(settle_dials(look)));
        }
        count > 0
    }

    /// Pauses some of those that may share another's limit; goes on where there are none. `age` is how
    /// many trials were compared with `rates`.
    fn prune(&mut self, rates: &Rates, age: u32, look: &Look<'_>, actions: &mut Vec<Action>) {
        let depressed = self.depressed(rates);
        let mut unknown = self.unknown(look);
        if depressed.is_empty() {
            let whole = self.top * CANDIDATE;
            for flow in unknown.extract_if(.., |flow| rates.of(*flow) >= whole) {
                self.known.insert(flow);
                self.base.set(flow, rates.of(flow));
            }
        }
        let by_rate = (rates.total() / self.top.max(1.0)).round() as usize;
        self.limits = by_rate.max(self.known.len()).max(1) as u32;
        if unknown.is_empty() {
            self.half = None;
            self.set_base(rates);
            return self.search_on(look, actions);
        }
        let half: Vec<FlowId> = self.half.take().unwrap_or_default();
        let half: Vec<FlowId> = half.into_iter().filter(|flow| unknown.contains(flow)).collect();
        let paused =
            if half.is_empty() { self.suspects(rates, &depressed, unknown, look) } else { half };
        actions.extend(paused.iter().map(|flow| Action::Pause(*flow)));
        let trial = Trial { paused, before: rates.clone(), age };
        self.phase = Phase::Trying(trial, look.now.after(settle_pause(look)));
    }

    /// Known flows that carry less than they did, and how much less; who has lost most comes first.
    fn depressed(&self, rates: &Rates) -> Vec<(FlowId, f64)> {
        let loss = |flow: &FlowId| (*flow, self.base.of(*flow) - rates.of(*flow));
        let is_depressed = |(flow, loss): &(FlowId, f64)| *loss > self.base.of(*flow) * DEPRESSED;
        let mut depressed: Vec<_> = self.known.iter().map(loss).filter(is_depressed).collect();
        depressed.sort_by(|a, b| b.1.total_cmp(&a.1));
        depressed
    }

    /// Of the unknown flows, those that are tried first.
    fn suspects(
        &self,
        rates: &Rates,
        depressed: &[(FlowId, f64)],
        mut unknown: Vec<FlowId>,
        look: &Look<'_>,
    ) -> Vec<FlowId> {
        let mut suspects = Vec::new();
        for (_, loss) in depressed {
            let off = |flow: &FlowId| (rates.of(*flow) - loss).abs();
            let nearest =
                (0..unknown.len()).min_by(|a, b| off(&unknown[*a]).total_cmp(&off(&unknown[*b])));
            suspects.extend(nearest.map(|at| unknown.remove(at)));
        }
        // Where it is known who is depressed, that says more than the number of limits by rate.
        let first = self.known.len() <= look.pairs.len();
        if first || suspects.is_empty() {
            let by_rate = (rates.total() / self.top.max(1.0)).round() as usize;
            let surplus = self.active(look).count().saturating_sub(by_rate).max(1);
            unknown.sort_by(|a, b| rates.of(*a).total_cmp(&rates.of(*b)));
            suspects.extend(unknown.into_iter().take(surplus.saturating_sub(suspects.len())));
        }
        suspects
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
        match trial.paused.as_slice() {
            [alone] => {
                self.known.insert(*alone);
                self.base.set(*alone, trial.before.of(*alone));
            }
            several => self.half = Some(self.draw.some(several, several.len() / 2)),
        }
        if trial.age + 1 < TRIALS_OF_ONE {
            self.prune(&trial.before, trial.age + 1, look, actions);
        } else {
            self.phase = Phase::Dialling(look.now.after(settle_pause(look)));
        }
    }
}
