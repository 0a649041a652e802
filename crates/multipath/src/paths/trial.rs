//! Flows that are paused together, to see whether the whole needs them.
//!
//! # Model
//! ```text
//!   loss      = total before - total while they are paused
//!   relieved  = flows that carry 12 % more meanwhile; known ones have limits of their own
//!   needless  if loss < max(4 % of the total, 0.6 x the slowest of them)
//!             or one is paused and any is relieved, or as many known ones are as were paused, where
//!                those carry 0.6 of what was paused more, or 0.3 while the whole loses less than 0.72
//!   unclear   if the loss is more than 1.3 x what they carried, and 4 % of the total: measured again
//!   needed    otherwise: half of them are tried next, until it is one
//! ```
//! For flows with limits of their own the loss is the sum of their rates, and no flow is relieved.
//! Flows of one limit take up what the paused ones leave, all of it if no one else uses the limit.
//! If m foreign flows do, n of ours have n / (n + m) of it, so pausing one costs the whole m / (n -
//! 1 + m) of that one's rate: the loss alone would show nothing. The sign is that a flow is
//! relieved. A paused flow relieves one limit at most, so where as many are relieved as were
//! paused, each of them shared. Beside four or more foreign flows, a surplus flow of ours looks
//! like one that is needed by a program that sends a little more than one flow carries: it is kept.

use std::collections::BTreeSet;

use hawser_time::seeded::SplitMix;

use super::action::FlowId;
use super::meter::Rates;

/// What a measurement of the whole can be off.
pub const NOISE: f64 = 0.04;
/// A flow whose loss costs less than this share of its rate crowds out others.
pub const CROWDING: f64 = 0.6;
/// What a flow must carry more to be relieved, as a share of its rate.
pub const RELIEVED: f64 = 0.12;
/// The share of paused flows' rate that others take up if they shared.
const TAKEN_UP: f64 = 0.3;
/// A flow that loses less of its rate was relieved by another one.
pub const DEPRESSED: f64 = 0.12;
/// If others take up this share, they shared, whatever the whole has lost: real rates stutter.
const TAKEN_UP_SURE: f64 = 0.6;
/// The most that can be lost with them: what they carried, and the error of a measurement.
const LOST_MAX: f64 = 1.3;
/// The share of their rate that is lost when flows with limits of their own are paused.
const LOST_ALONE: f64 = 0.72;
/// A flow with less than this share of the fastest one's rate may share.
pub const CANDIDATE: f64 = 0.75;
/// Below this share of the whole, the program is idle.
pub const IDLE: f64 = 0.2;

/// What is paused, and what was before.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Which are paused.
    pub paused: Vec<FlowId>,
    /// Rates before.
    pub before: Rates,
    /// Trials since `before` was measured.
    pub age: u32,
}

/// What a trial says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The whole does as well without them.
    Needless,
    /// It does not.
    Needed,
    /// More was lost than they carried: the whole stuttered, then or before.
    Unclear,
    /// The program sends no more.
    Idle,
}

impl Trial {
    /// What the rates while they were paused say; `known` have limits of their own, each another.
    #[must_use]
    pub fn verdict(&self, after: &Rates, known: &BTreeSet<FlowId>) -> Verdict {
        let (before, now) = (self.before.total(), after.total());
        if now < before * IDLE {
            return Verdict::Idle;
        }
        let loss = before - now;
        let rates = || self.paused.iter().map(|flow| self.before.of(*flow));
        let (slowest, together) = (rates().fold(f64::MAX, f64::min), rates().sum::<f64>());
        let crowds = loss < (before * NOISE).max(slowest * CROWDING);
        let relieved: Vec<FlowId> = self.relieved(after).collect();
        let mut rises: Vec<f64> = relieved.iter().map(|flow| self.rise(*flow, after)).collect();
        rises.sort_by(|a, b| b.total_cmp(a));
        // A paused flow relieves the limit that it shared, and no other.
        let taken_up: f64 = rises.iter().take(self.paused.len()).sum();
        let of_known = relieved.iter().filter(|flow| known.contains(flow)).count();
        let shared = (self.paused.len() == 1 || of_known >= self.paused.len())
            && (taken_up >= together * TAKEN_UP_SURE
                || (taken_up >= together * TAKEN_UP && loss < together * LOST_ALONE));
        if crowds || shared {
            Verdict::Needless
        } else if loss > together * LOST_MAX + before * NOISE {
            Verdict::Unclear
        } else {
            Verdict::Needed
        }
    }

    fn rise(&self, flow: FlowId, after: &Rates) -> f64 {
        after.of(flow) - self.before.of(flow)
    }

    /// Flows that carry more while those are paused.
    fn relieved<'a>(&'a self, after: &'a Rates) -> impl Iterator<Item = FlowId> + 'a {
        let more = |flow: &FlowId| self.rise(*flow, after) > self.before.of(*flow) * RELIEVED;
        after.flows().filter(move |flow| !self.paused.contains(flow) && more(flow))
    }
}

/// Numbers that follow from a seed (SplitMix64): which flows are paused together must not depend on
/// the order of their rates, or all of one limit would be.
#[derive(Clone, Debug)]
pub struct Draw(SplitMix);

impl Draw {
    /// Numbers of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(SplitMix::of_state(seed))
    }

    /// `count` of `flows`.
    pub fn some(&mut self, flows: &[FlowId], count: usize) -> Vec<FlowId> {
        let mut rest = flows.to_vec();
        let mut drawn = Vec::with_capacity(count);
        while drawn.len() < count && !rest.is_empty() {
            let at = (self.number() % rest.len() as u64) as usize;
            drawn.push(rest.swap_remove(at));
        }
        drawn
    }

    /// The next 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0.number()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(of: &[(u64, f64)]) -> Rates {
        let mut rates = Rates::default();
        for (flow, rate) in of {
            rates.set(FlowId(*flow), *rate);
        }
        rates
    }

    /// Seven limits of 9.4, as between real kernels: the whole is off by more than a flow carries.
    #[test]
    fn a_whole_that_stutters_makes_no_flow_needed() {
        let known = BTreeSet::from([FlowId(1), FlowId(2), FlowId(3)]);
        let before =
            [(1, 9.4), (2, 9.4), (3, 6.5), (4, 2.9), (5, 9.4), (6, 9.4), (7, 9.4), (8, 9.4)];
        let trial = Trial { paused: vec![FlowId(4)], before: rates(&before), age: 0 };
        // The third takes up what the fourth leaves; the others stutter.
        let shared = [(1, 8.0), (2, 8.4), (3, 9.3), (5, 8.2), (6, 8.8), (7, 8.0), (8, 9.4)];
        assert_eq!(trial.verdict(&rates(&shared), &known), Verdict::Needless);
        // More is lost than the fourth carried, and no flow is relieved: that shows nothing about
        // it.
        let stutters = [(1, 8.0), (2, 8.4), (3, 5.5), (5, 8.2), (6, 8.0), (7, 8.0), (8, 9.0)];
        assert_eq!(trial.verdict(&rates(&stutters), &known), Verdict::Unclear);
        let needed = [(1, 9.4), (2, 9.4), (3, 6.5), (5, 9.4), (6, 9.4), (7, 9.4), (8, 9.4)];
        assert_eq!(trial.verdict(&rates(&needed), &known), Verdict::Needed);
    }
}
