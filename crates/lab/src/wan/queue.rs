//! A queue that is served at a fixed rate, without a queue.
//!
//! # Model
//! Of a first-in first-out server only one number matters: when it will be free. A packet of `s`
//! bits that comes at `now` leaves at `max(now, free) + s / rate`, which is the new `free`; what
//! waits, with what is being sent, is `(free - now) * rate`. Drop-tail is a bound on that.
//!
//! # Invariants
//! - departures are in the order of arrivals, and never closer than a packet's time at the rate
//! - a late caller changes no rate and no drop: times come from arrivals, not from wake-ups
//!
//! # Why not     packets in a list, and a timer for each departure: what a late timer delays is
//!               then lost to the rate, and the emulator runs below what was asked
//! # Limits      first in first out only; a rate does not change with time

use std::collections::VecDeque;
use std::time::Duration;

use super::quantity::Rate;

const PICOSECONDS: u128 = 1_000_000_000_000;

/// How much may wait, the packet that is being sent included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// This many packets.
    Packets(u32),
    /// This many bytes.
    Bytes(u64),
    /// As much as leaves within this time.
    Time(Duration),
}

impl Default for Bound {
    /// What Linux gives an Ethernet device (`txqueuelen`).
    fn default() -> Self {
        Self::Packets(1000)
    }
}

/// A server at a fixed rate.
#[derive(Clone, Debug)]
pub struct Queue {
    rate: Rate,
    bound: Bound,
    /// Picoseconds: at 95 Mbit/s, whole nanoseconds would be off by 5 parts in a million.
    free_ps: u128,
    /// Departures still to come, where packets are counted.
    departures: VecDeque<Duration>,
}

impl Queue {
    /// An idle server.
    #[must_use]
    pub fn new(rate: Rate, bound: Bound) -> Self {
        Self { rate, bound, free_ps: 0, departures: VecDeque::new() }
    }

    /// When a packet of `bytes` that comes at `now` has left; `None` where there is no room for it.
    /// Times must not go backwards.
    pub fn offer(&mut self, now: Duration, bytes: u64) -> Option<Duration> {
        let now_ps = now.as_nanos() * 1000;
        let begin_ps = self.free_ps.max(now_ps);
        let service_ps =
            u128::from(bytes) * 8 * PICOSECONDS / u128::from(self.rate.bits_per_second());
        let leaves_ps = begin_ps + service_ps;
        let wait_ps = begin_ps - now_ps;
        let fits = match self.bound {
            Bound::Time(longest) => wait_ps <= longest.as_nanos() * 1000,
            Bound::Bytes(most) => {
                let waiting = wait_ps * u128::from(self.rate.bits_per_second()) / 8 / PICOSECONDS;
                waiting + u128::from(bytes) <= u128::from(most)
            }
            Bound::Packets(most) => {
                while self.departures.front().is_some_and(|&departure| departure <= now) {
                    self.departures.pop_front();
                }
                self.departures.len() < most as usize
            }
        };
        if !fits {
            return None;
        }
        self.free_ps = leaves_ps;
        let nanoseconds = u64::try_from(leaves_ps / 1000).unwrap_or(u64::MAX);
        let leaves = Duration::from_nanos(nanoseconds);
        if matches!(self.bound, Bound::Packets(_)) {
            self.departures.push_back(leaves);
        }
        Some(leaves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(bits: u64) -> Rate {
        Rate::from_bits_per_second(bits).unwrap()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn packets_leave_one_after_the_other() {
        let mut queue = Queue::new(rate(8_000), Bound::Packets(3)); // a byte in a millisecond
        assert_eq!(queue.offer(ms(0), 10), Some(ms(10)));
        assert_eq!(queue.offer(ms(5), 10), Some(ms(20)));
        assert_eq!(queue.offer(ms(50), 10), Some(ms(60)), "idle time is not saved up");
    }

    #[test]
    fn a_bound_in_packets_counts_the_one_that_is_being_sent() {
        let mut queue = Queue::new(rate(8_000), Bound::Packets(2));
        assert!(queue.offer(ms(0), 10).is_some());
        assert!(queue.offer(ms(0), 10).is_some());
        assert_eq!(queue.offer(ms(9), 10), None);
        assert_eq!(queue.offer(ms(10), 10), Some(ms(30)), "the first has left");
    }

    #[test]
    fn a_bound_in_bytes_counts_what_has_not_left() {
        let mut queue = Queue::new(rate(8_000), Bound::Bytes(20));
        assert!(queue.offer(ms(0), 20).is_some());
        assert_eq!(queue.offer(ms(9), 10), None, "11 bytes are still there");
        assert_eq!(queue.offer(ms(10), 10), Some(ms(30)));
        assert_eq!(queue.offer(ms(100), 21), None, "longer than the queue");
    }

    #[test]
    fn a_bound_in_time_is_the_longest_wait() {
        let mut queue = Queue::new(rate(8_000), Bound::Time(ms(10)));
        assert!(queue.offer(ms(0), 11).is_some());
        assert_eq!(queue.offer(ms(0), 1), None);
        assert_eq!(queue.offer(ms(1), 1), Some(ms(12)));
    }

    #[test]
    fn a_million_packets_leave_at_the_rate() {
        let mut queue = Queue::new(rate(95_000_000), Bound::Packets(u32::MAX));
        let last = (0..1_000_000).filter_map(|_| queue.offer(ms(0), 1514)).last().unwrap();
        let wanted = 1e6 * 1514.0 * 8.0 / 95e6;
        assert!((last.as_secs_f64() / wanted - 1.0).abs() < 1e-8, "{last:?}");
    }
}
