//! When clients and server connections are checked next.

use crate::ids::Slot;
use crate::time::Time;

/// Microseconds of a tick.
pub(super) const TICK_US: u64 = 50_000;

/// Ticks that the wheel spans; later ones wait in the last class.
pub(super) const SPAN: u32 = 1024;

/// The wheel of deadlines.
#[derive(Debug)]
pub(super) struct Wheel {
    buckets: Vec<Vec<(Slot, u32)>>,
    /// The tick up to which everything is done.
    pub(super) done: u32,
    pub(super) armed: usize,
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self { buckets: (0..SPAN).map(|_| Vec::new()).collect(), done: 0, armed: 0 }
    }

    /// The tick of this moment; never 0.
    pub(super) fn tick(now: Time) -> u32 {
        u32::try_from(now.as_micros() / TICK_US + 1).unwrap_or(u32::MAX)
    }

    /// Inserts a client for a tick, or for the latest that the wheel spans. Returns the tick.
    pub(super) fn arm(&mut self, slot: Slot, tick: u32) -> u32 {
        let tick = tick.clamp(self.done + 1, self.done + SPAN - 1);
        self.buckets[(tick % SPAN) as usize].push((slot, tick));
        self.armed += 1;
        tick
    }

    /// Takes what is due up to this tick.
    pub(super) fn take_due(&mut self, upto: u32) -> Vec<(Slot, u32)> {
        let mut due = Vec::new();
        while self.done < upto {
            self.done += 1;
            due.append(&mut self.buckets[(self.done % SPAN) as usize]);
            if self.armed == due.len() {
                self.done = upto;
            }
        }
        self.armed -= due.len();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(index: u32) -> Slot {
        Slot { index, generation: 0 }
    }

    #[test]
    fn the_wheel_gives_each_back_in_its_tick_and_late_ones_at_its_end() {
        let mut wheel = Wheel::new();
        assert_eq!(wheel.arm(slot(1), 3), 3);
        assert_eq!(wheel.arm(slot(2), 3), 3);
        assert_eq!(wheel.arm(slot(3), 100_000), SPAN - 1);
        assert_eq!(wheel.arm(slot(4), 0), 1);
        assert_eq!(wheel.take_due(1), [(slot(4), 1)]);
        assert_eq!(wheel.take_due(2), []);
        assert_eq!(wheel.take_due(3), [(slot(1), 3), (slot(2), 3)]);
        assert_eq!(wheel.take_due(SPAN + 5), [(slot(3), SPAN - 1)]);
        assert_eq!(wheel.take_due(10_000_000), []);
        assert_eq!(wheel.arm(slot(5), 10_000_001), 10_000_001);
        assert_eq!(wheel.take_due(10_000_001), [(slot(5), 10_000_001)]);
    }
}
