//! When clients and server connections are checked next.

use std::collections::VecDeque;

use crate::ids::Slot;
use crate::time::Time;

/// Microseconds of a tick.
pub(crate) const TICK_US: u64 = 50_000;

/// Ticks that the wheel spans; later ones wait in the last class.
pub(crate) const SPAN: u32 = 1024;

/// The wheel of deadlines.
#[derive(Debug)]
pub(crate) struct Wheel {
    buckets: Vec<Vec<(Slot, u32)>>,
    /// What is due: many clients may have the same tick.
    due: VecDeque<(Slot, u32)>,
    /// The tick up to which everything is due.
    pub(crate) done: u32,
    /// How many are not due.
    pub(crate) armed: usize,
}

impl Wheel {
    pub(crate) fn new() -> Self {
        let buckets = (0..SPAN).map(|_| Vec::new()).collect();
        Self { buckets, due: VecDeque::new(), done: 0, armed: 0 }
    }

    /// The tick of this moment; never 0.
    pub(crate) fn tick(now: Time) -> u32 {
        u32::try_from(now.as_micros() / TICK_US + 1).unwrap_or(u32::MAX)
    }

    /// Inserts a client for a tick, or for the latest that the wheel spans. Returns the tick.
    pub(crate) fn arm(&mut self, slot: Slot, tick: u32) -> u32 {
        let tick = tick.clamp(self.done + 1, self.done + SPAN - 1);
        self.buckets[(tick % SPAN) as usize].push((slot, tick));
        self.armed += 1;
        tick
    }

    /// What is armed up to this tick is due.
    pub(crate) fn turn_to(&mut self, tick: u32) {
        while self.done < tick {
            if self.armed == 0 {
                self.done = tick;
                return;
            }
            self.done += 1;
            let bucket = std::mem::take(&mut self.buckets[(self.done % SPAN) as usize]);
            self.armed -= bucket.len();
            self.due.extend(bucket);
        }
    }

    /// Takes one that is due.
    pub(crate) fn take_due(&mut self) -> Option<(Slot, u32)> {
        let due = self.due.pop_front();
        if self.due.is_empty() {
            self.due = VecDeque::new();
        }
        due
    }

    /// Whether any is due.
    pub(crate) fn is_behind(&self) -> bool {
        !self.due.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(index: u32) -> Slot {
        Slot { index, generation: 0 }
    }

    fn due_at(wheel: &mut Wheel, tick: u32) -> Vec<(Slot, u32)> {
        wheel.turn_to(tick);
        std::iter::from_fn(|| wheel.take_due()).collect()
    }

    #[test]
    fn the_wheel_gives_each_back_in_its_tick_and_late_ones_at_its_end() {
        let mut wheel = Wheel::new();
        assert_eq!(wheel.arm(slot(1), 3), 3);
        assert_eq!(wheel.arm(slot(2), 3), 3);
        assert_eq!(wheel.arm(slot(3), 100_000), SPAN - 1);
        assert_eq!(wheel.arm(slot(4), 0), 1);
        assert_eq!(due_at(&mut wheel, 1), [(slot(4), 1)]);
        assert_eq!(due_at(&mut wheel, 2), []);
        assert_eq!(due_at(&mut wheel, 3), [(slot(1), 3), (slot(2), 3)]);
        assert_eq!(due_at(&mut wheel, SPAN + 5), [(slot(3), SPAN - 1)]);
        assert_eq!(due_at(&mut wheel, 10_000_000), []);
        assert_eq!(wheel.arm(slot(5), 10_000_001), 10_000_001);
        assert_eq!(due_at(&mut wheel, 10_000_001), [(slot(5), 10_000_001)]);
    }
}
