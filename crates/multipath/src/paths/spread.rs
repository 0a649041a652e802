//! Which lanes share a limit with another one, and are dialled again.
//!
//! # Model
//! Routers hash ports to unknown limits: a connection from another source port is another random
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
//! the slowest are one of each.) If no lane is slow beside the fastest of now, but all are beside the
//! fastest of the search, one is dialled again: all lanes may have come to share limits in pairs. So is
//! one, once, where all carry the same from the start. A search ends when no lane is slow, or after as
//! many dials without a gain as [`super::draws`] takes to be enough: lanes whose limits are lower
//! in themselves gain nothing. Then it rests, twice as long each time.
//!
//! Hosts may have no processor for a lane, and that must not count against it. So a rate is bytes in the
//! time in which TCP had something to send or under way; a lane is not judged that was idle for half of
//! the time, or whose peer's window was full for a quarter of it; and a new connection not before it has
//! left slow start, which lasts long where hosts run seldom (`busy` has such hosts).
//!
//! With a long round trip a new connection takes longer to reach its full speed, and all times are
//! longer in proportion ([`SETTLE_RTTS`]).
//!
//! # Why not
//! * [`super::chooser`], which has more flows than it needs and pauses some to find which of them
//!   share: there are at most eight lanes, and what waits for one can go by no other
//!   (docs/decisions/0013)
//! * rates by the clock: four networks on two processors carried 46 to 50 of 75 Mbit/s, for the same three
//!   lanes were dialled again each second
//! * one judgement after 1 s to settle and 1.5 s, half of the slow ones: each round of dials took some
//!   3 s, as looks came on whole seconds
//!
//! # Limits
//! It judges by what this end sends. It needs a peer whose source ports name lanes: otherwise all
//! lanes would have to be dialled again for one.

use std::time::Duration;

use hawser_time::Time;

use super::draws::enough;

/// A lane that is dialled again while others are up is to find a limit that no other lane uses. A
/// limit in use has a full queue, and so a longer handshake than an empty one: so many dials are
/// tried, each from another port, and given up when they have taken 1.5 times the least round trip
/// that was seen; all of them take no longer than [`QUICK_DIALS_TIME`]. The one after them may take
/// its time. (Where both directions have limits, one dial in 64 finds the last that is free in both: with 16
/// dials in 0.6 s a tenth of simulated runs carried less than 0.93 in the second half of a minute.)
pub const QUICK_DIALS: u8 = 64;
/// See [`QUICK_DIALS`].
pub const QUICK_DIALS_TIME: Duration = Duration::from_millis(2400);
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
/// A lane that had something to send for less than this part of the time, or for which the peer's window
/// was full for more than that one, says nothing of the network: a host has no processor for it.
const BUSY: f64 = 0.5;
const HELD_BY_PEER: f64 = 0.25;
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
    /// Time in which its connections had something to send or under way.
    pub busy: Duration,
    /// Of that, time in which the peer's window was full.
    pub held_by_peer: Duration,
    /// Its connection is as fast as it can be, as far as TCP knows: it has left slow start.
    pub settled: bool,
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
    /// All lanes carried the same, and one was dialled again to see whether they share limits.
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

/// The longest time that a handshake takes by a way whose queues are empty.
#[must_use]
pub fn slowest(rtt: Duration) -> Duration {
    rtt + rtt / 2 + Duration::from_millis(5)
}

/// Dials of a lane in which a quick answer is waited for only: see [`QUICK_DIALS`].
#[must_use]
pub fn quick_dials(rtt: Duration) -> u8 {
    let most = QUICK_DIALS_TIME.as_micros() / slowest(rtt).as_micros();
    most.min(QUICK_DIALS.into()) as u8
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
        if was_searching && search.stage != Stage::Searching && !self.tried {
            seen = search.try_last(now, lanes.len());
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
    fn judge(&mut self, now: Time, lanes: &[Lane], steps: u32, rates: &[Rate]) -> Seen {
        let counts = |rate: &&Rate| rate.was_busy;
        let fastest = rates.iter().filter(counts).map(|rate| rate.bytes_s).fold(0.0, f64::max);
        let is_last = match self.stage {
            Stage::Searching => steps as usize >= SLOW.len(),
            Stage::Watching(_) => steps >= WATCH_STEPS,
        };
        if !rates.iter().any(|rate| rate.held_up) || fastest < RATE_MIN {
            self.phase = Phase::Waiting; // nothing to judge by
            return Seen::default();
        }
        if !is_last && self.stage != Stage::Searching {
            return self.look(now, lanes);
        }
        self.fastest = fastest.max(FORGETS * self.fastest);
        let part = SLOW[(steps as usize).clamp(1, SLOW.len()) - 1];
        let below = |most: f64| {
            let is_slow =
                |rate: &Rate| rate.held_up && rate.was_busy && rate.settled && rate.bytes_s < most;
            (0..rates.len()).filter(|at| is_slow(&rates[*at])).collect::<Vec<usize>>()
        };
        let mut slow = below(part * fastest);
        // All lanes are slower than the fastest was: all share limits now, or a host has no processor for
        // them. One dial finds out.
        let all_are = slow.is_empty();
        if all_are {
            slow = below(part * self.fastest);
        }
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
        let total: f64 = rates.iter().map(|rate| rate.bytes_s).sum();
        if total > GAIN * self.best {
            (self.best, self.dials) = (total, 0);
        }
        // (A moment in which most look slow must not end the search.)
        let in_use = (total / self.fastest).round() as u32;
        self.found = self.found.max(in_use).max((rates.len() - slow.len()) as u32);
        if self.dials >= enough(self.found) {
            return self.give_up(now);
        }
        let beyond = rates.len() as f64 - total / self.fastest;
        slow.sort_by(|a, b| rates[*a].bytes_s.total_cmp(&rates[*b].bytes_s));
        slow.truncate(if all_are { 1 } else { (beyond.round() as usize).max(1) });
        self.dials += slow.len() as u32;
        self.phase = Phase::Waiting;
        Seen { slow, next: Some(now.after(WAIT)) }
    }

    fn found(&mut self, now: Time, lanes: &[Lane]) -> Seen {
        let (stage, fastest) = (Stage::Watching(0), self.fastest);
        *self = Self { stage, fastest, ..Self::new(now, lanes) };
        self.measure(now, lanes)
    }

    /// All lanes carry the same, as they do also where all share limits in the same way: the last one is
    /// dialled again, to see.
    fn try_last(&mut self, now: Time, lanes: usize) -> Seen {
        self.stage = Stage::Searching;
        self.phase = Phase::Waiting;
        Seen { slow: vec![lanes - 1], next: Some(now.after(WAIT)) }
    }

    fn give_up(&mut self, now: Time) -> Seen {
        let rest = (self.rest * 2).clamp(REST, REST_MAX);
        self.rest = rest;
        self.phase = Phase::Resting(now.after(rest));
        Seen::default()
    }
}

/// What a lane did in a measurement.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// In the time in which there was something to send or under way.
    bytes_s: f64,
    /// That was most of the time, and it was the network that held it up.
    was_busy: bool,
    held_up: bool,
    settled: bool,
}

fn rates(from: &[Lane], lanes: &[Lane]) -> Vec<Rate> {
    let rate = |(from, lane): (&Lane, &Lane)| {
        let time = lane.at.since(from.at).as_secs_f64();
        let busy = lane.busy.saturating_sub(from.busy).as_secs_f64();
        let held_by_peer = lane.held_by_peer.saturating_sub(from.held_by_peer).as_secs_f64();
        let bytes = lane.bytes.saturating_sub(from.bytes) as f64;
        Rate {
            bytes_s: if busy > 0.0 { bytes / busy } else { 0.0 },
            was_busy: busy > BUSY * time && held_by_peer < HELD_BY_PEER * time,
            held_up: from.held_up,
            settled: lane.settled,
        }
    };
    from.iter().zip(lanes).map(rate).collect()
}

#[cfg(test)]
mod busy;

#[cfg(test)]
mod tests;
