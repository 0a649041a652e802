//! Which lanes share a limit with another one, and are dialled again.
//!
//! # Model
//! Routers hash ports to limits that nobody knows: a connection from another source port is another
//! draw. A lane that always has more to send than the network takes, and carries much less than the
//! fastest one, shares its limit.
//! ```text
//!   Searching   settle 0.3 s ─► 0.5, 1, 1.5 s: rate < 0.55, 0.62, 0.7 * fastest ─► dialled again
//!                 ▲  │ none at 1.5 s: found                │
//!                 └──┼─────────────────────────────────────┘
//!                    ▼                                        too many dials without a gain: Resting
//!   Watching    3 s, again and again: the same lane below 0.7 twice ─► Searching
//! ```
//! How many of the slow ones are dialled again, the slowest first: as many as there are lanes beyond the
//! limits in use, which is the sum of all rates by the fastest. (Of two that share a limit the slower
//! one has less than 0.55 of it, so early judgements are safe where they are bold; and of several pairs
//! the slowest are one of each.) The fastest is the fastest of the search: all lanes may come to share
//! limits in pairs. A search ends when no lane is slow, or after as many dials without a gain as
//! [`crate::paths::draws`] takes to be enough: lanes whose limits are lower in themselves gain nothing.
//! Then it rests, twice as long each time.
//!
//! Where the round trip is long, a new connection takes longer to be as fast as it can be, and all times
//! are longer in proportion ([`SETTLE_RTTS`]).
//!
//! # Why not
//! * [`crate::paths::chooser`], which pauses flows to learn who shares with whom: what waits for a lane
//!   can go by no other, so a lane cannot be paused
//! * one judgement after 1 s to settle and 1.5 s, half of the slow ones: each round of dials took some
//!   3 s, as looks came on whole seconds
//!
//! # Limits
//! Lanes that all share limits in the same way at first are taken for equal: of eight lanes and eight
//! limits one draw in a hundred. Of two lanes it is one in eight, so of two that carry the same one is
//! dialled again, once. By what this end sends. Only where the peer's lanes are told by source ports:
//! elsewhere all of them would have to be dialled again for one.

use std::time::Duration;

use crate::paths::draws::enough;
use crate::time::Time;

/// What a lane has after so many steps is judged by so much of the fastest one's rate.
const SLOW: [f64; 3] = [0.55, 0.62, 0.7];
/// Time to settle after a dial, and of a step, at least.
const SETTLE: Duration = Duration::from_millis(300);
const STEP: Duration = Duration::from_millis(500);
/// The same in round trips: slow start comes to a hundred times its first window in seven.
const SETTLE_RTTS: u32 = 15;
const STEP_RTTS: u32 = 8;
/// More is no round trip to wait for.
const RTT_MAX: Duration = Duration::from_millis(500);
/// Between looks at lanes of which one is down, at most.
const WAIT: Duration = Duration::from_secs(1);
/// Steps of one judgement of lanes that are watched.
const WATCH_STEPS: u32 = 6;
/// What the fastest lane was counts so much less at the next judgement: it may have been a burst.
const FORGETS: f64 = 0.9;
/// So much more is a gain.
const GAIN: f64 = 1.05;
/// Less than this a second from the fastest is no traffic to judge by.
const RATE_MIN: f64 = 32_768.0;
/// Between two searches, at first and at last.
const REST: Duration = Duration::from_secs(60);
const REST_MAX: Duration = Duration::from_secs(960);

/// A lane at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Lane {
    /// Bytes that the peer has acknowledged, ever.
    pub bytes: u64,
    /// When that was asked.
    pub at: Time,
    /// It has a connection.
    pub is_up: bool,
    /// Since the last look it had more to send than the network took, always.
    pub held_up: bool,
    /// The least round trip; zero if it is not known.
    pub rtt: Duration,
}

/// What follows from a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// These are to be dialled again.
    pub slow: Vec<usize>,
    /// When to look again, at the latest.
    pub next: Option<Time>,
}

/// The search among the lanes of one peer. Nothing as long as nothing is held up.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    search: Option<Box<Search>>,
    /// Of two lanes that carry the same, one was dialled again to see whether they share a limit.
    tried: bool,
}

#[derive(Clone, Debug)]
struct Search {
    phase: Phase,
    stage: Stage,
    /// The most that one lane, and that all of them have carried in this search.
    fastest: f64,
    best: f64,
    /// Lanes that were not slow, at most: a moment in which more are does not end the search early.
    found: u32,
    /// Dials without a gain.
    dials: u32,
    rest: Duration,
}

#[derive(Clone, Debug)]
enum Phase {
    /// A lane is down: the lanes settle once it is up.
    Waiting,
    /// Until it is over.
    Settling(Time),
    /// From what the lanes had, and which of them were held up ever since.
    Measuring { began: Time, from: Vec<Lane>, steps: u32 },
    /// Nothing is looked at.
    Resting(Time),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Lanes are judged as soon as can be.
    Searching,
    /// All is well; the lanes that did not look so last time, as bits.
    Watching(u8),
}

fn longest_rtt(lanes: &[Lane]) -> Duration {
    lanes.iter().map(|lane| lane.rtt).max().unwrap_or_default().min(RTT_MAX)
}

impl Spread {
    /// Looks at all lanes.
    pub fn look(&mut self, now: Time, lanes: &[Lane]) -> Seen {
        let held_up = lanes.iter().filter(|lane| lane.held_up).count();
        if self.search.is_none() && held_up < 2 {
            return Seen::default();
        }
        let search = self.search.get_or_insert_with(|| Box::new(Search::new(now, lanes)));
        let was_searching = search.stage == Stage::Searching;
        let mut seen = search.look(now, lanes);
        if was_searching && search.stage != Stage::Searching && lanes.len() == 2 && !self.tried {
            seen = search.try_second(now);
        }
        self.tried |= !seen.slow.is_empty();
        // (What it rests for must be remembered.)
        if seen.next.is_none() && search.rest.is_zero() {
            self.search = None;
        }
        seen
    }

    /// Bytes of memory beyond itself.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.search.as_ref().map_or(0, |search| match &search.phase {
            Phase::Measuring { from, .. } => {
                size_of::<Search>() + from.capacity() * size_of::<Lane>()
            }
            _ => size_of::<Search>(),
        })
    }
}

impl Search {
    fn new(now: Time, lanes: &[Lane]) -> Self {
        let settled = now.after(SETTLE.max(SETTLE_RTTS * longest_rtt(lanes)));
        Self {
            phase: Phase::Settling(settled),
            stage: Stage::Searching,
            fastest: 0.0,
            best: 0.0,
            found: 0,
            dials: 0,
            rest: Duration::ZERO,
        }
    }

    fn look(&mut self, now: Time, lanes: &[Lane]) -> Seen {
        if let Phase::Resting(until) = self.phase {
            if now < until {
                return Seen::default();
            }
            *self = Self { rest: self.rest, ..Self::new(now, lanes) };
        }
        // When a lane comes up there is a look.
        if lanes.len() < 2 || !lanes.iter().all(|lane| lane.is_up) {
            self.phase = Phase::Waiting;
            let next = lanes.iter().any(|lane| lane.held_up).then(|| now.after(WAIT));
            return Seen { slow: Vec::new(), next };
        }
        match &mut self.phase {
            Phase::Waiting => self.settle(now, lanes),
            Phase::Settling(until) if now < *until => {
                Seen { next: Some(*until), ..Seen::default() }
            }
            Phase::Measuring { began, from, steps } if from.len() == lanes.len() => {
                for (from, lane) in from.iter_mut().zip(lanes) {
                    from.held_up &= lane.held_up;
                }
                let step = STEP.max(STEP_RTTS * longest_rtt(lanes));
                let next = began.after(step * (*steps + 1));
                if now < next {
                    return Seen { next: Some(next), ..Seen::default() };
                }
                *steps += 1;
                let (steps, rates) = (*steps, rates(from, lanes));
                self.judge(now, lanes, steps, &rates)
            }
            _ => self.measure(now, lanes),
        }
    }

    fn settle(&mut self, now: Time, lanes: &[Lane]) -> Seen {
        let until = now.after(SETTLE.max(SETTLE_RTTS * longest_rtt(lanes)));
        self.phase = Phase::Settling(until);
        Seen { next: Some(until), ..Seen::default() }
    }

    fn measure(&mut self, now: Time, lanes: &[Lane]) -> Seen {
        // What a lane was before this moment does not count.
        let from = lanes.iter().map(|lane| Lane { held_up: true, ..*lane }).collect();
        self.phase = Phase::Measuring { began: now, from, steps: 0 };
        Seen { next: Some(now.after(STEP)), ..Seen::default() }
    }

    /// After so many steps.
    fn judge(&mut self, now: Time, lanes: &[Lane], steps: u32, rates: &[(f64, bool)]) -> Seen {
        let fastest = rates.iter().map(|(rate, _)| *rate).fold(0.0, f64::max);
        let is_last = match self.stage {
            Stage::Searching => steps as usize >= SLOW.len(),
            Stage::Watching(_) => steps >= WATCH_STEPS,
        };
        let held_up = rates.iter().filter(|(_, held_up)| *held_up).count();
        if held_up == 0 || fastest < RATE_MIN {
            self.phase = Phase::Waiting; // nothing to judge by
            return Seen::default();
        }
        if !is_last && self.stage != Stage::Searching {
            return self.look(now, lanes);
        }
        self.fastest = fastest.max(FORGETS * self.fastest);
        let part = SLOW[(steps as usize).clamp(1, SLOW.len()) - 1];
        let slow = |(rate, held_up): &(f64, bool)| *held_up && *rate < part * self.fastest;
        let mut slow: Vec<usize> = (0..rates.len()).filter(|at| slow(&rates[*at])).collect();
        if let Stage::Watching(before) = self.stage {
            let bits = slow.iter().fold(0_u8, |bits, at| bits | 1 << at);
            let again = before & bits != 0;
            self.stage = if again { Stage::Searching } else { Stage::Watching(bits) };
            self.fastest = if again { self.fastest } else { 0.0 };
            return self.measure(now, lanes);
        }
        if slow.is_empty() {
            return if is_last { self.found(now, lanes) } else { self.look(now, lanes) };
        }
        let total: f64 = rates.iter().map(|(rate, _)| rate).sum();
        if total > GAIN * self.best {
            (self.best, self.dials) = (total, 0);
        }
        self.found = self.found.max((rates.len() - slow.len()) as u32);
        if self.dials >= enough(self.found) {
            return self.give_up(now);
        }
        let beyond = rates.len() as f64 - total / self.fastest;
        slow.sort_by(|a, b| rates[*a].0.total_cmp(&rates[*b].0));
        slow.truncate((beyond.round() as usize).max(1));
        self.dials += slow.len() as u32;
        self.phase = Phase::Waiting;
        Seen { slow, next: Some(now.after(WAIT)) }
    }

    fn found(&mut self, now: Time, lanes: &[Lane]) -> Seen {
        let (stage, fastest) = (Stage::Watching(0), self.fastest);
        *self = Self { stage, fastest, ..Self::new(now, lanes) };
        self.measure(now, lanes)
    }

    /// Of two lanes that carry the same, the second is dialled again.
    fn try_second(&mut self, now: Time) -> Seen {
        self.stage = Stage::Searching;
        self.phase = Phase::Waiting;
        Seen { slow: vec![1], next: Some(now.after(WAIT)) }
    }

    fn give_up(&mut self, now: Time) -> Seen {
        let rest = (self.rest * 2).clamp(REST, REST_MAX);
        self.rest = rest;
        self.phase = Phase::Resting(now.after(rest));
        Seen::default()
    }
}

/// Bytes a second of each lane since then, and whether it was held up all the time.
fn rates(from: &[Lane], lanes: &[Lane]) -> Vec<(f64, bool)> {
    let rate = |(from, lane): (&Lane, &Lane)| {
        let time = lane.at.since(from.at).as_secs_f64();
        let bytes = lane.bytes.saturating_sub(from.bytes) as f64;
        (if time > 0.0 { bytes / time } else { 0.0 }, from.held_up)
    };
    from.iter().zip(lanes).map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lanes in a network of limits, in Mbit/s; a lane's rate is its part of its limit's.
    struct Network {
        random: u64,
        limits: Vec<f64>,
        /// Which limit each lane has.
        of: Vec<usize>,
        lanes: Vec<Lane>,
        /// Lanes that are down, and until when.
        down: Vec<Option<Time>>,
        now: Time,
        dials: u32,
    }

    const TICK: Duration = Duration::from_millis(50);
    /// From the end of a connection to the next one's first bytes.
    const DIALLED_AFTER: Duration = Duration::from_millis(300);

    impl Network {
        fn new(seed: u64, limits: &[f64]) -> Self {
            let lane = Lane { is_up: true, held_up: true, ..Lane::default() };
            let mut network = Self {
                random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
                limits: limits.to_vec(),
                of: vec![0; 8],
                lanes: vec![lane; 8],
                down: vec![None; 8],
                now: Time::from_micros(1_000_000),
                dials: 0,
            };
            for at in 0..8 {
                network.of[at] = network.draw(8);
            }
            network
        }

        fn draw(&mut self, below: usize) -> usize {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (self.random >> 20) as usize % below
        }

        fn carried(&self) -> f64 {
            let is_used =
                |limit: &usize| (0..8).any(|at| self.of[at] == *limit && self.lanes[at].is_up);
            (0..self.limits.len()).filter(is_used).map(|limit| self.limits[limit]).sum()
        }

        /// Lanes that share a limit have unequal parts of it, other ones at each moment.
        fn pass(&mut self) {
            let weights: Vec<f64> = (0..8).map(|_| 0.5 + self.draw(100) as f64 / 100.0).collect();
            self.now = self.now.after(TICK);
            for at in 0..8 {
                if self.down[at].is_some_and(|until| until <= self.now) {
                    self.down[at] = None;
                    self.of[at] = self.draw(8);
                }
                self.lanes[at].is_up = self.down[at].is_none();
            }
            for at in 0..8 {
                if !self.lanes[at].is_up {
                    continue;
                }
                let same =
                    |other: &usize| self.lanes[*other].is_up && self.of[*other] == self.of[at];
                let all: f64 = (0..8).filter(same).map(|other| weights[other]).sum();
                let rate = self.limits[self.of[at]] * 125_000.0 * weights[at] / all;
                self.lanes[at].bytes += (rate * TICK.as_secs_f64()) as u64;
                self.lanes[at].at = self.now;
            }
        }

        fn dial(&mut self, seen: &Seen) {
            for lane in &seen.slow {
                self.dials += 1;
                self.down[*lane] = Some(self.now.after(DIALLED_AFTER));
                self.lanes[*lane].is_up = false;
            }
        }
    }

    /// Seconds until all limits were in use for the first time, and the dials of all the time.
    fn search(seed: u64, limits: [f64; 8], most_s: u64) -> (Option<f64>, u32) {
        let mut network = Network::new(seed, &limits);
        let (mut spread, mut reached) = (Spread::default(), None);
        let all: f64 = limits.iter().sum();
        let began = network.now;
        let end = began.after(Duration::from_secs(most_s));
        while network.now < end {
            network.pass();
            let seen = spread.look(network.now, &network.lanes);
            network.dial(&seen);
            if network.carried() >= all {
                reached.get_or_insert(network.now.since(began).as_secs_f64());
            }
        }
        (reached, network.dials)
    }

    #[test]
    fn eight_lanes_find_eight_limits() {
        let mut times: Vec<f64> =
            (0..200).filter_map(|seed| search(seed, [10.0; 8], 300).0).collect();
        times.sort_unstable_by(f64::total_cmp);
        println!("{} found, median {}, 90 % {}", times.len(), times[100], times[180]);
        assert!(times.len() >= 194, "{} of 200", times.len());
        assert!(times[100] < 20.0 && times[180] < 40.0, "{times:?}");
    }

    #[test]
    fn a_burst_does_not_end_the_search_early() {
        // At first much more comes than the limits carry, by few lanes: nothing after that is a gain any
        // more, and all other lanes look slow for a while.
        let found = (0..40).filter(|seed| {
            let mut network = Network::new(*seed, &[10.0; 8]);
            let mut spread = Spread::default();
            for step in 0..1000 {
                let before = network.lanes.clone();
                network.pass();
                if step < 40 {
                    for (lane, before) in network.lanes.iter_mut().zip(&before).take(2) {
                        lane.bytes += lane.bytes - before.bytes;
                    }
                }
                let seen = spread.look(network.now, &network.lanes);
                network.dial(&seen);
            }
            network.carried() >= 80.0
        });
        let found = found.count();
        assert!(found >= 38, "{found} of 40");
    }

    #[test]
    fn it_stops_once_all_carry_the_same() {
        let mut network = Network::new(1, &[10.0; 8]);
        network.of = (0..8).collect();
        let mut spread = Spread::default();
        for _ in 0..2000 {
            network.pass();
            assert_eq!(spread.look(network.now, &network.lanes).slow, []);
        }
    }

    #[test]
    fn two_lanes_that_share_a_limit_from_the_start_are_parted() {
        let mut network = Network::new(5, &[10.0; 8]);
        network.of = vec![0; 8];
        // (The others are not looked at.)
        (2..8).for_each(|at| network.of[at] = 7);
        let mut spread = Spread::default();
        let mut dials = 0;
        for _ in 0..600 {
            network.pass();
            let seen = spread.look(network.now, &network.lanes[..2]);
            dials += seen.slow.len();
            network.dial(&seen);
        }
        assert_ne!(network.of[0], network.of[1]);
        assert!((1..8).contains(&dials), "{dials} dials");
    }

    #[test]
    fn a_lane_that_stands_still_for_a_moment_is_not_dialled_again() {
        let mut network = Network::new(1, &[10.0; 8]);
        network.of = (0..8).collect();
        let mut spread = Spread::default();
        for step in 0..2000 {
            let before = network.lanes[3].bytes;
            network.pass();
            // 1.5 s of each minute without a byte, once the lanes are watched.
            if step % 1200 > 1170 {
                network.lanes[3].bytes = before;
            }
            assert_eq!(spread.look(network.now, &network.lanes).slow, [], "{step}");
        }
    }

    #[test]
    fn a_limit_that_sinks_for_good_is_left() {
        let mut network = Network::new(3, &[10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0]);
        network.of = (0..8).collect();
        let mut spread = Spread::default();
        for step in 0..1000 {
            network.pass();
            if step == 200 {
                network.limits[2] = 1.0;
            }
            let seen = spread.look(network.now, &network.lanes);
            if step > 200 && !seen.slow.is_empty() {
                assert_eq!(seen.slow, [2]);
                assert!(step < 200 + 12 * 20, "after {} s", (step - 200) / 20);
                return;
            }
        }
        panic!("never");
    }

    #[test]
    fn limits_that_differ_in_themselves_cost_a_bounded_number_of_dials() {
        let unequal = [10.0, 10.0, 10.0, 10.0, 1.0, 1.0, 1.0, 1.0];
        for seed in 0..4 {
            let (_, in_an_hour) = search(seed, unequal, 3600);
            assert!(in_an_hour <= 10 * enough(8), "{in_an_hour}");
        }
    }

    #[test]
    fn a_lane_that_has_little_to_send_is_not_dialled_again() {
        let mut network = Network::new(1, &[10.0; 8]);
        network.of = (0..8).collect();
        // Half of the lanes have a tenth of the traffic, as answers have.
        for at in 4..8 {
            network.limits[at] = 1.0;
            network.lanes[at].held_up = false;
        }
        let mut spread = Spread::default();
        for _ in 0..1000 {
            network.pass();
            assert_eq!(spread.look(network.now, &network.lanes).slow, []);
        }
        // They may have none at all: two of the others share a limit.
        network.of[1] = 0;
        let slow = (0..1000).find_map(|_| {
            network.pass();
            let slow = spread.look(network.now, &network.lanes).slow;
            (!slow.is_empty()).then_some(slow)
        });
        assert!(matches!(slow.as_deref(), Some([0 | 1])), "{slow:?}");
    }

    #[test]
    fn a_long_way_is_given_time() {
        let mut lanes = [Lane { is_up: true, held_up: true, rtt: RTT_MAX, ..Lane::default() }; 8];
        let mut spread = Spread::default();
        let mut now = Time::ZERO;
        // Lane 0 doubles in each round trip, to the others' rate in seven.
        for step in 0..400_u32 {
            now = now.after(TICK);
            let round_trips = TICK.as_secs_f64() * f64::from(step) / RTT_MAX.as_secs_f64();
            for (at, lane) in lanes.iter_mut().enumerate() {
                let part = if at == 0 { 2.0_f64.powf(round_trips - 7.0).min(1.0) } else { 1.0 };
                lane.bytes += (62_500.0 * part) as u64;
                lane.at = now;
            }
            assert_eq!(spread.look(now, &lanes).slow, [], "after {round_trips} round trips");
        }
    }

    #[test]
    fn nothing_is_kept_where_nothing_is_held_up() {
        let mut spread = Spread::default();
        let mut lanes = [Lane { is_up: true, held_up: true, ..Lane::default() }; 8];
        assert!(spread.look(Time::ZERO, &lanes).next.is_some());
        assert!(spread.memory() > 0);
        lanes.iter_mut().for_each(|lane| lane.held_up = false);
        for second in 1..4 {
            spread.look(Time::from_micros(second * 1_000_000), &lanes);
        }
        assert_eq!(spread.memory(), 0);
    }
}
