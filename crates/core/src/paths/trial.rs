//! Flows that are paused together, to see whether the whole needs them.
//!
//! # Model
//! ```text
//!   loss = total before - total while they are paused
//!   needless  if loss < max(4 % of the total, 0.6 x the slowest of them)
//!   needed    otherwise: half of them are tried next, until it is one
//! ```
//! Of flows with limits of their own the loss is the sum of their rates. Flows of one limit take up
//! what the paused ones leave. Where others use the limit too, n flows of n + m give (n + m) to the
//! whole, so pausing one of two beside one foreign flow costs half of its rate: 0.6 takes that for
//! crowding, and closes it.

use super::action::FlowId;
use super::meter::Rates;

/// What a measurement of the whole can be off.
pub const NOISE: f64 = 0.04;
/// A flow whose loss costs less than this share of its rate crowds out others.
pub const CROWDING: f64 = 0.6;
/// A flow with less than this share of the fastest one's rate may share.
pub const CANDIDATE: f64 = 0.75;
/// Less of the whole than this, and nobody sends.
pub const IDLE: f64 = 0.2;

/// What is paused, and what was before.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Which are paused.
    pub paused: Vec<FlowId>,
    /// Rates before.
    pub before: Rates,
}

/// What a trial says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The whole does as well without them.
    Needless,
    /// It does not.
    Needed,
    /// Nobody sends any more.
    Idle,
}

impl Trial {
    /// What the rates while they were paused say.
    #[must_use]
    pub fn verdict(&self, after: &Rates) -> Verdict {
        let (before, now) = (self.before.total(), after.total());
        if now < before * IDLE {
            return Verdict::Idle;
        }
        let slowest = self.paused.iter().map(|flow| self.before.of(*flow)).fold(f64::MAX, f64::min);
        if before - now < (before * NOISE).max(slowest * CROWDING) {
            Verdict::Needless
        } else {
            Verdict::Needed
        }
    }
}

/// Numbers that follow from a seed (SplitMix64): which flows are paused together must not depend on
/// the order of their rates, or all of one limit would be.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Numbers of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
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
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}
