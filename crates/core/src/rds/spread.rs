//! Which lanes share a limit with another one, and are dialled again.
//!
//! # Model
//! Routers hash ports to limits that nobody knows: a connection from another source port is another
//! draw. While all lanes have something to send, one that carries much less than the fastest shares its
//! limit.
//! ```text
//!   settle 1 s ─► measure 1.5 s ─► slow lanes: rate < 0.7 * fastest ─► half of them are dialled again
//!      ▲                              │ none                               │
//!      └──────────────────────────────┴────────────────────────────────────┘
//! ```
//! Half, the slowest first, because of two that share a limit one may stay. The fastest is the fastest of
//! the search: all lanes may come to share limits in pairs. A search ends when none is slow, or after as
//! many dials without a gain as [`crate::paths::draws`] takes to be enough: lanes whose limits are lower
//! in themselves gain nothing. Then it rests, twice as long each time.
//!
//! # Why not
//! [`crate::paths::chooser`], which pauses flows to learn who shares with whom: what waits for a lane can
//! go by no other, so a lane cannot be paused.
//!
//! # Limits
//! Lanes that all share limits in the same way at first are taken for equal: of eight lanes and eight
//! limits one draw in a hundred. By what this end sends. Only where the peer's lanes are told by source ports: elsewhere all of them
//! would have to be dialled again for one.

use std::time::Duration;

use crate::paths::draws::enough;
use crate::time::Time;

/// A lane with less than this part of the fastest one's rate shares its limit.
const SLOW: f64 = 0.7;
/// Time to settle after a dial, and time that is measured.
const SETTLE: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_millis(1500);
/// So much more is a gain.
const GAIN: f64 = 1.05;
/// Less than this a second from the fastest is no traffic to judge by.
const RATE_MIN: f64 = 32_768.0;
/// Between two searches, at first and at last.
const REST: Duration = Duration::from_secs(60);
const REST_MAX: Duration = Duration::from_secs(960);

/// A lane at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Bytes that the peer has acknowledged, ever.
    pub bytes: u64,
    /// It is up and has something that is not acknowledged.
    pub busy: bool,
}

/// The search among the lanes of one peer.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    mark: Option<Mark>,
    /// Dials without a gain.
    dials: u32,
    /// The most that one lane, and that all of them have carried in this search.
    fastest: f64,
    best: f64,
    rest: Duration,
    rests_until: Time,
}

#[derive(Clone, Debug)]
struct Mark {
    at: Time,
    bytes: Option<Vec<u64>>,
}

impl Spread {
    /// Looks, and says which lanes are to be dialled again.
    pub fn look(&mut self, now: Time, lanes: &[Lane]) -> Vec<usize> {
        if lanes.len() < 2 || now < self.rests_until || !lanes.iter().all(|lane| lane.busy) {
            self.mark = None;
            return Vec::new();
        }
        let mark = self.mark.get_or_insert(Mark { at: now, bytes: None });
        let Some(before) = &mark.bytes else {
            if now.since(mark.at) >= SETTLE {
                let bytes = Some(lanes.iter().map(|lane| lane.bytes).collect());
                *mark = Mark { at: now, bytes };
            }
            return Vec::new();
        };
        let time = now.since(mark.at);
        if time < WINDOW {
            return Vec::new();
        }
        let rate = |(lane, before): (&Lane, &u64)| {
            lane.bytes.saturating_sub(*before) as f64 / time.as_secs_f64()
        };
        let rates: Vec<f64> = lanes.iter().zip(before).map(rate).collect();
        let is_same = before.len() == lanes.len();
        self.mark = None;
        if is_same { self.choose(now, &rates) } else { Vec::new() }
    }

    fn choose(&mut self, now: Time, rates: &[f64]) -> Vec<usize> {
        self.fastest = rates.iter().copied().fold(self.fastest, f64::max);
        if self.fastest < RATE_MIN {
            return Vec::new();
        }
        let total: f64 = rates.iter().sum();
        if total > GAIN * self.best {
            (self.best, self.dials) = (total, 0);
        }
        let mut slow: Vec<usize> =
            (0..rates.len()).filter(|lane| rates[*lane] < SLOW * self.fastest).collect();
        let found = rates.len() - slow.len();
        let is_found = slow.is_empty();
        if is_found || self.dials >= enough(found as u32) {
            // What the network carries may be another rate by the next search.
            let rest =
                if is_found { Duration::ZERO } else { (self.rest * 2).clamp(REST, REST_MAX) };
            *self = Self { rest, rests_until: now.after(rest), ..Self::default() };
            return Vec::new();
        }
        slow.sort_by(|a, b| rates[*a].total_cmp(&rates[*b]));
        slow.truncate(slow.len().div_ceil(2));
        self.dials += slow.len() as u32;
        slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight limits of 10 Mbit/s; a lane's rate is its part of its limit's. Returns the seconds until
    /// `wanted` Mbit/s are carried, and the dials.
    fn search(seed: u64, rates: [f64; 8], wanted: f64, most_s: u64) -> (Option<u64>, u32) {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 20) as usize % 8
        };
        let mut limit: Vec<usize> = (0..8).map(|_| draw()).collect();
        let mut lanes = [Lane { bytes: 0, busy: true }; 8];
        let (mut spread, mut dials, mut reached) = (Spread::default(), 0, None);
        for second in 0..most_s {
            let share = |at: usize| limit.iter().filter(|other| **other == at).count() as f64;
            let carried: f64 = (0..8).filter(|at| limit.contains(at)).map(|at| rates[at]).sum();
            if carried >= wanted {
                reached.get_or_insert(second);
            }
            for (lane, limit) in lanes.iter_mut().zip(&limit) {
                lane.bytes += (rates[*limit] * 125_000.0 / share(*limit)) as u64;
            }
            for lane in spread.look(Time::from_micros(second * 1_000_000), &lanes) {
                dials += 1;
                limit[lane] = draw();
            }
        }
        (reached, dials)
    }

    #[test]
    fn eight_lanes_find_eight_limits() {
        let mut times: Vec<u64> =
            (0..200).filter_map(|seed| search(seed, [10.0; 8], 80.0, 600).0).collect();
        times.sort_unstable();
        assert!(times.len() >= 194, "{} of 200", times.len());
        assert!(times[100] < 90 && times[180] < 250, "{times:?}");
    }

    #[test]
    fn it_stops_once_all_carry_the_same() {
        let mut lanes = [Lane { bytes: 0, busy: true }; 8];
        let mut spread = Spread::default();
        for second in 0..100 {
            lanes.iter_mut().for_each(|lane| lane.bytes += 1_000_000);
            assert!(spread.look(Time::from_micros(second * 1_000_000), &lanes).is_empty());
        }
    }

    #[test]
    fn limits_that_differ_in_themselves_cost_a_bounded_number_of_dials() {
        let unequal = [10.0, 10.0, 10.0, 10.0, 1.0, 1.0, 1.0, 1.0];
        for seed in 0..20 {
            let (_, in_an_hour) = search(seed, unequal, 100.0, 3600);
            assert!(in_an_hour <= 8 * enough(8), "{in_an_hour}");
        }
    }

    #[test]
    fn nothing_is_dialled_where_a_lane_has_nothing_to_send() {
        let mut lanes = [Lane { bytes: 0, busy: true }; 8];
        lanes[3].busy = false;
        let mut spread = Spread::default();
        for second in 0..60 {
            lanes[0].bytes += 1_000_000;
            assert!(spread.look(Time::from_micros(second * 1_000_000), &lanes).is_empty());
        }
    }
}
