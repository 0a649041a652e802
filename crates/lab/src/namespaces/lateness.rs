//! How late packets left.
//!
//! # Model       counts by lateness, four steps to each doubling: a figure is exact to a quarter
//! # Invariants  counts only grow, so the difference of two is what happened between them

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

const STEPS: usize = 160; // to 2^40 ns, 18 minutes

/// Counts that one thread makes and others read.
#[derive(Debug)]
pub struct Lateness {
    counts: [AtomicU64; STEPS],
    sum_ns: AtomicU64,
}

impl Default for Lateness {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; STEPS], sum_ns: AtomicU64::new(0) }
    }
}

/// Counts as they were at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatenessCounts {
    counts: Vec<u64>,
    sum_ns: u64,
}

/// The step that a time falls into: its highest bit and the two below.
fn step(ns: u64) -> usize {
    let ns = ns.max(4);
    let bit = ns.ilog2();
    let quarter = (ns >> (bit - 2)) & 3;
    (bit as usize * 4 + usize::try_from(quarter).expect("below 4")).min(STEPS - 1)
}

/// The longest time of a step.
fn longest(step: usize) -> Duration {
    let next = step as u64 + 1;
    Duration::from_nanos(((4 + next % 4) << (next / 4)) / 4 - 1)
}

impl Lateness {
    /// A packet left this late. Only one thread may call this.
    pub fn record(&self, late: Duration) {
        let ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        let add = |to: &AtomicU64, n: u64| {
            to.store(to.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.counts[step(ns)], 1);
        add(&self.sum_ns, ns);
    }

    /// The counts now.
    #[must_use]
    pub fn read(&self) -> LatenessCounts {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        LatenessCounts { counts, sum_ns: self.sum_ns.load(Ordering::Relaxed) }
    }
}

impl LatenessCounts {
    /// What happened since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let earlier = before.counts.iter().chain(std::iter::repeat(&0));
        let counts = self.counts.iter().zip(earlier).map(|(now, before)| now - before).collect();
        Self { counts, sum_ns: self.sum_ns.wrapping_sub(before.sum_ns) }
    }

    /// Packets.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Packets that left later than `limit`; those of its own step are not among them.
    #[must_use]
    pub fn later_than(&self, limit: Duration) -> u64 {
        let limit = step(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        self.counts.iter().skip(limit + 1).sum()
    }

    /// The mean.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum_ns / self.packets().max(1))
    }

    /// What all but a share of the packets do not exceed: `quantile(0.999)`. 1 is the worst.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "for a reader")]
        let wanted = self.packets() as f64 * share;
        let mut seen = 0;
        for (step, count) in self.counts.iter().enumerate() {
            seen += count;
            #[expect(clippy::cast_precision_loss, reason = "for a reader")]
            if *count > 0 && seen as f64 >= wanted {
                return longest(step);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_its_step() {
        for ns in (4..10_000).chain([1 << 20, (1 << 30) + 12345]) {
            let bound = u64::try_from(longest(step(ns)).as_nanos()).unwrap();
            assert!(bound >= ns && bound < ns + ns / 4 + 1, "{ns} is in a step up to {bound}");
        }
        assert_eq!(step(0), step(4));
        assert_eq!(step(u64::MAX), STEPS - 1);
    }

    #[test]
    fn figures_are_those_of_the_interval() {
        let lateness = Lateness::default();
        let us = Duration::from_micros;
        lateness.record(us(90_000));
        let before = lateness.read();
        for n in 1..=1000 {
            lateness.record(us(n));
        }
        lateness.record(us(5_000));
        let between = lateness.read().since(&before);
        assert_eq!(between.packets(), 1001);
        assert_eq!(between.later_than(us(2_000)), 1);
        assert!((500..510).contains(&between.mean().as_micros()), "{:?}", between.mean());
        assert!((500..626).contains(&between.quantile(0.5).as_micros()));
        assert!((5_000..6_250).contains(&between.quantile(1.0).as_micros()));
    }
}
