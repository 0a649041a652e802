//! All flows and destinations: samples in, changes and their reasons out.
//!
//! # Invariants
//! * a flow has its destination's algorithm, or a trial's candidate, or what it has kept from a choice that
//!   was forgotten
//! * a trial compares flows that have the destination's algorithm when it begins, and what it reverts is
//!   what it has changed
//! * at most [`FLOWS_MAX`] flows are watched, [`DESTINATIONS_MAX`] destinations remembered; those
//!   beyond get what the kernel's default is
//! * what comes out depends on what went in and its order alone

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hawser_time::Time;

use super::algorithm::Algorithm;
use super::destination::{Destination, Prefix, State};
use super::event::{Decision, Event, Figures};
use super::limit::{Limit, Watch};
use super::sample::{FlowId, Sample};
use super::trial::{Side, Trial, Verdict};

/// Flows that are watched at a time.
pub const FLOWS_MAX: usize = 10_000;
/// Destinations that are remembered.
pub const DESTINATIONS_MAX: usize = 4_096;
/// Round trips below this are short: no algorithm gains enough there.
pub const RTT_MIN_US: u32 = 10_000;
/// A flow that has sent less is short: it ends before it has gained.
const BYTES_MIN: u64 = 1 << 20;
/// One that keeps losing need not have sent as much: over 217 ms with 3 % lost, a mebibyte takes half
/// a minute.
const BYTES_MIN_LOSING: u64 = 64 << 10;
/// So many cuts without a queue are no chance.
const CUTS_LOSING: u32 = 4;
/// From its first cut on a flow is watched for so many round trips: what it still had of its slow
/// start is no measure of what comes.
const EVIDENCE_ROUND_TRIPS: u32 = 16;
/// A watch without an end forgets its beginning after so long.
const WATCH_MAX: Duration = Duration::from_secs(60);

/// A flow is to have another algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Which.
    pub flow: FlowId,
    /// What it is to have.
    pub algorithm: Algorithm,
}

#[derive(Clone, Debug)]
struct Flow {
    to: Prefix,
    algorithm: Algorithm,
    watch: Option<Watch>,
}

/// Chooses.
#[derive(Clone, Debug)]
pub struct Chooser {
    default: Algorithm,
    candidates: Vec<Algorithm>,
    flows: BTreeMap<FlowId, Flow>,
    destinations: BTreeMap<Prefix, Destination>,
    changes: VecDeque<Change>,
    events: VecDeque<Event>,
}

impl Chooser {
    /// Chooses between `default`, which flows have to begin with, and `candidates`, best first.
    #[must_use]
    pub fn new(default: Algorithm, candidates: Vec<Algorithm>) -> Self {
        Self {
            default,
            candidates,
            flows: BTreeMap::new(),
            destinations: BTreeMap::new(),
            changes: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Whether there is anything to choose between: if not, no flow need be sampled.
    #[must_use]
    pub fn has_choice(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// A connection was opened, which `has` this algorithm. False if it must not be sampled: its
    /// peer is local, there are too many, or it does not have the default because a route's
    /// `congctl` or its socket already chose another.
    pub fn open(&mut self, flow: FlowId, peer: IpAddr, has: Algorithm, now: Time) -> bool {
        let Some(to) = Prefix::of(peer).filter(|_| self.has_choice()) else { return false };
        if has != self.default {
            return false;
        }
        if self.flows.len() >= FLOWS_MAX {
            return false;
        }
        if !self.destinations.contains_key(&to) && !self.make_room() {
            return false;
        }
        self.forget_if_stale(to, now);
        let default = self.default;
        let destination =
            self.destinations.entry(to).or_insert_with(|| Destination::new(default, now));
        destination.used = now;
        destination.flows += 1;
        let mut wanted = destination.algorithm;
        if let State::Trying(trial) = &mut destination.state
            && trial.join(flow, now) == Some(Side::Candidate)
        {
            wanted = trial.candidate;
        }
        self.flows.insert(flow, Flow { to, algorithm: default, watch: None });
        self.set(flow, wanted);
        true
    }

    /// A connection was closed.
    pub fn close(&mut self, flow: FlowId, now: Time) {
        let Some(Flow { to, .. }) = self.flows.remove(&flow) else { return };
        self.changes.retain(|change| change.flow != flow);
        let Some(destination) = self.destinations.get_mut(&to) else { return };
        destination.flows = destination.flows.saturating_sub(1);
        destination.used = now;
        if let State::Trying(trial) = &mut destination.state {
            trial.leave(flow);
        }
        self.judge(to, now);
    }

    /// What the kernel says of a flow now. Four times a round trip is often enough, but no more
    /// than once in 50 ms. False if the flow is none of those that were opened: it need not be sampled.
    pub fn sample(&mut self, id: FlowId, sample: Sample) -> bool {
        let Some(flow) = self.flows.get_mut(&id) else { return false };
        let (to, has) = (flow.to, flow.algorithm);
        let watch = match &mut flow.watch {
            None => *flow.watch.insert(Watch::new(sample)),
            Some(watch) => {
                watch.add(sample);
                *watch
            }
        };
        let Some(destination) = self.destinations.get_mut(&to) else { return false };
        match &mut destination.state {
            State::Trying(trial) => {
                trial.add(id, sample);
                self.judge(to, sample.at);
            }
            State::Watching { not_before } if *not_before <= sample.at => {
                if has == destination.algorithm && is_worth_a_trial(&watch) {
                    self.begin_trial(to, id, sample.at);
                }
            }
            State::Watching { .. } | State::Settled { .. } => {}
        }
        // What a flow was long ago is not what it is.
        if let Some(Flow { watch: Some(watch), .. }) = self.flows.get_mut(&id)
            && watch.lasted() >= WATCH_MAX
        {
            *watch = Watch::new(sample);
        }
        true
    }

    /// The kernel does not let this process use `algorithm` on a flow: it is tried no more.
    pub fn refused(&mut self, algorithm: Algorithm, now: Time) {
        self.candidates.retain(|candidate| *candidate != algorithm);
        let tried = |destination: &Destination| match &destination.state {
            State::Trying(trial) => trial.candidate == algorithm,
            _ => destination.algorithm == algorithm,
        };
        let concerned: Vec<Prefix> = self
            .destinations
            .iter()
            .filter(|(_, destination)| tried(destination))
            .map(|(to, _)| *to)
            .collect();
        for to in concerned {
            let Some(destination) = self.destinations.get_mut(&to) else { continue };
            if destination.algorithm == algorithm {
                destination.algorithm = self.default;
            }
            destination.tried.clear();
            destination.settle(now, false);
            let from = destination.algorithm;
            let had = self.flows_to(to, |flow| flow.algorithm == algorithm);
            self.set_each(&had, from);
            let decision = Decision::Refused;
            self.events.push_back(Event { destination: to, from, to: algorithm, decision });
        }
    }

    /// Looks after trials that get no samples. Once a second is often enough.
    pub fn tick(&mut self, now: Time) {
        let all: Vec<Prefix> = self.destinations.keys().copied().collect();
        for to in all {
            self.judge(to, now);
            self.forget_if_stale(to, now);
        }
    }

    /// The next flow that is to have another algorithm.
    pub fn next_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// The next thing to log.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What flows to a destination begin with, where that is not the default.
    pub fn remembered(&self) -> impl Iterator<Item = (Prefix, Algorithm)> {
        let differs = |destination: &&Destination| destination.algorithm != self.default;
        let remembered = self.destinations.iter();
        remembered.filter(move |(_, d)| differs(d)).map(|(to, d)| (*to, d.algorithm))
    }

    fn begin_trial(&mut self, to: Prefix, id: FlowId, now: Time) {
        let Some(watch) = self.flows.get(&id).and_then(|flow| flow.watch) else { return };
        let why = watch.diagnosis();
        let Some(destination) = self.destinations.get_mut(&to) else { return };
        let incumbent = destination.algorithm;
        let Some(candidate) = destination.next_candidate(&self.candidates) else {
            destination.settle(now, incumbent != self.default);
            return;
        };
        let is_worth =
            |flow: &Flow| flow.algorithm == incumbent && flow.watch.as_ref().is_some_and(is_long);
        let mut others = self.flows_to(to, is_worth);
        others.retain(|other| *other != id);
        let before = watch.since_first_cut().unwrap_or_default();
        let rtt = Duration::from_micros(why.rtt_us.into());
        let (trial, changed) = Trial::begin(candidate, now, rtt, id, before, &others);
        if let Some(destination) = self.destinations.get_mut(&to) {
            destination.state = State::Trying(Box::new(trial));
        }
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        self.events.push_back(Event {
            destination: to,
            from: incumbent,
            to: candidate,
            decision: Decision::Try {
                why,
                changed: count(changed.len()),
                beside: count(others.len() + 1 - changed.len()),
            },
        });
        self.set_each(&changed, candidate);
    }

    /// Ends a trial that is decided.
    fn judge(&mut self, to: Prefix, now: Time) {
        let Some(destination) = self.destinations.get_mut(&to) else { return };
        let State::Trying(trial) = &destination.state else { return };
        let verdict = trial.verdict(now);
        if verdict == Verdict::Open {
            return;
        }
        let (incumbent, candidate) = trial.arms();
        let figures = Figures { incumbent, candidate, lasted: now.since(trial.began) };
        let (from, tried) = (destination.algorithm, trial.candidate);
        let tries_it: Vec<FlowId> = trial.flows(Side::Candidate).collect();
        if verdict == Verdict::Wins {
            destination.algorithm = tried;
        }
        if verdict != Verdict::Undecided {
            destination.tried.insert(tried);
        }
        match destination.next_candidate(&self.candidates) {
            Some(_) => destination.pause(now),
            None => destination.settle(now, destination.algorithm != self.default),
        }
        let decision = match verdict {
            Verdict::Wins => Decision::Keep(figures),
            Verdict::Harms => Decision::Harm(figures),
            Verdict::Loses => Decision::Revert(figures),
            Verdict::Undecided | Verdict::Open => Decision::Undecided(figures),
        };
        self.events.push_back(Event { destination: to, from, to: tried, decision });
        if verdict == Verdict::Wins {
            let all = self.flows_to(to, |_| true);
            self.set_each(&all, tried);
        } else {
            // Flows outside of the trial may have the same from a choice that was right, and forgotten.
            self.set_each(&tries_it, from);
        }
    }

    fn forget_if_stale(&mut self, to: Prefix, now: Time) {
        let Some(destination) = self.destinations.get_mut(&to) else { return };
        if !destination.is_stale(now) {
            return;
        }
        let from = destination.algorithm;
        destination.algorithm = self.default;
        destination.tried.clear();
        destination.state = State::Watching { not_before: now };
        if from != self.default {
            let (destination, decision) = (to, Decision::Forget);
            self.events.push_back(Event { destination, from, to: self.default, decision });
        }
    }

    /// A place for one more destination: that of the one without flows that was used longest ago.
    fn make_room(&mut self) -> bool {
        if self.destinations.len() < DESTINATIONS_MAX {
            return true;
        }
        let idle = self.destinations.iter().filter(|(_, destination)| destination.flows == 0);
        let Some(oldest) = idle.min_by_key(|(_, destination)| destination.used) else {
            return false;
        };
        let oldest = *oldest.0;
        self.destinations.remove(&oldest);
        true
    }

    /// Flows to a destination of which `is_one` holds.
    fn flows_to(&self, to: Prefix, is_one: impl Fn(&Flow) -> bool) -> Vec<FlowId> {
        let flows = self.flows.iter().filter(|(_, flow)| flow.to == to && is_one(flow));
        flows.map(|(id, _)| *id).collect()
    }

    fn set_each(&mut self, flows: &[FlowId], algorithm: Algorithm) {
        for flow in flows {
            self.set(*flow, algorithm);
        }
    }

    /// Has a flow changed, and watched again: what it did was another algorithm's doing.
    fn set(&mut self, id: FlowId, algorithm: Algorithm) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if flow.algorithm == algorithm {
            return;
        }
        flow.algorithm = algorithm;
        flow.watch = None;
        self.changes.retain(|change| change.flow != id);
        self.changes.push_back(Change { flow: id, algorithm });
    }
}

/// Long enough, far enough, and held back by loss alone.
fn is_worth_a_trial(watch: &Watch) -> bool {
    let sample = watch.last();
    let since_cut = watch.since_first_cut().unwrap_or_default().lasted;
    watch.diagnosis().limit == Limit::Loss
        && since_cut >= Duration::from_micros(sample.rtt_us.into()) * EVIDENCE_ROUND_TRIPS
        && sample.rtt_min_us >= RTT_MIN_US
        && is_long(watch)
}

/// Whether it has sent enough to gain by another algorithm.
fn is_long(watch: &Watch) -> bool {
    let enough = match watch.diagnosis().cuts_clear {
        0..CUTS_LOSING => BYTES_MIN,
        CUTS_LOSING.. => BYTES_MIN_LOSING,
    };
    watch.last().bytes_acked >= enough
}
