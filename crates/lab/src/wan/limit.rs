//! Limits that hold for flows and not for the whole.
//!
//! # Model       a hash of the 5-tuple puts each flow into one of N classes, and each class has a
//!               rate of its own: a shaper (what comes too fast waits in the class's queue) or a
//!               policer (it is dropped at once)
//! # Invariants  one flow meets one class for life; the same seed puts the same flow into the same
//!               class, in the emulator and in virtual time
//! # Why not     a limit for each flow: real devices have a table of fixed size, and that flows
//!               meet in it is what makes more flows than classes worth the trouble
//! # Limits      a policer is the queue with the burst as its bound whose packets do not wait,
//!               which is the token bucket in its other form (GCRA, ITU-T I.371, annex A)

use std::time::Duration;

use super::flow::Flow;
use super::quantity::Rate;
use super::queue::{Bound, Queue};

/// What a description says of limits per flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The rate of each class; their number is the number of classes, at least one.
    pub rates: Vec<Rate>,
    /// What happens to what is too fast.
    pub excess: Excess,
}

/// What happens to what is too fast for its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// It waits, up to this much.
    Waits(Bound),
    /// It is dropped, after a burst of this many bytes.
    Dropped {
        /// Bytes that may come at once.
        burst_bytes: u64,
    },
}

/// Limits as they go on.
#[derive(Clone, Debug)]
pub struct Classes {
    classes: Vec<Queue>,
    waits: bool,
    seed: u64,
}

impl Classes {
    /// All idle.
    #[must_use]
    pub fn new(limit: &Limit, seed: u64) -> Self {
        let (bound, waits) = match limit.excess {
            Excess::Waits(bound) => (bound, true),
            Excess::Dropped { burst_bytes } => (Bound::Bytes(burst_bytes), false),
        };
        let classes = limit.rates.iter().map(|&rate| Queue::new(rate, bound)).collect();
        Self { classes, waits, seed }
    }

    /// The class of a flow.
    #[must_use]
    pub fn class_of(&self, flow: Flow) -> usize {
        flow.index(self.seed, self.classes.len())
    }

    /// When the packet goes on; `None` where it is dropped.
    pub fn offer(&mut self, now: Duration, flow: Flow, bytes: u64) -> Option<Duration> {
        let class = self.class_of(flow);
        let leaves = self.classes[class].offer(now, bytes)?;
        Some(if self.waits { leaves } else { now })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(bits: u64) -> Rate {
        Rate::from_bits_per_second(bits).unwrap()
    }

    fn flow(port: u16) -> Flow {
        Flow::udp([10, 0, 0, 1].into(), port, [10, 0, 0, 2].into(), 9)
    }

    #[test]
    fn classes_do_not_disturb_each_other() {
        let excess = Excess::Waits(Bound::Packets(10));
        let mut classes = Classes::new(&Limit { rates: vec![rate(8_000); 4], excess }, 3);
        let other = (2..100).find(|&p| classes.class_of(flow(p)) != classes.class_of(flow(1)));
        let ms = Duration::from_millis;
        assert_eq!(classes.offer(ms(0), flow(1), 10), Some(ms(10)));
        assert_eq!(classes.offer(ms(0), flow(1), 10), Some(ms(20)));
        assert_eq!(classes.offer(ms(0), flow(other.unwrap()), 10), Some(ms(10)));
    }

    #[test]
    fn a_policer_lets_the_rate_and_a_burst_pass_without_delay() {
        let excess = Excess::Dropped { burst_bytes: 5_000 };
        let mut policer = Classes::new(&Limit { rates: vec![rate(8_000_000)], excess }, 3);
        let mut passed = 0;
        // Twice the rate for a second: 2,000 packets of 1,000 bytes.
        for n in 0..2_000 {
            let now = Duration::from_micros(500 * n);
            let fate = policer.offer(now, flow(1), 1_000);
            assert!(fate.is_none_or(|at| at == now));
            passed += u32::from(fate.is_some());
        }
        assert!(
            (1_003..=1_006).contains(&passed),
            "1,000 by the rate and 5 by the burst: {passed}"
        );
    }
}
