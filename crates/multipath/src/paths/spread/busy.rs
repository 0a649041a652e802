//! Lanes as TCP has them, in a network of limits, on hosts whose processors are busy.
//!
//! # Model
//! A limit serves packets at its rate from a queue of 100, and drops what finds it full. A connection has
//! a congestion window: slow start, until packets are lost or the round trip grows (HyStart), then cubic.
//! Programs run for a moment, and then not for a while: only when they run are sockets filled, looks
//! taken and connections made. Acknowledgements come late and together when the network's own thread
//! does not run.
//!
//! # Limits
//! One way only; what is lost is found after a round trip, and in no other way.

use std::collections::VecDeque;
use std::time::Duration;

use hawser_time::Time;
use hawser_time::seeded::Random;

use super::{Lane, QUICK_DIALS, Spread};

const TICK_US: u64 = 2000;
const QUEUE: usize = 100;
const PACKET: u64 = 1448;
/// 10 Mbit/s of packets with their headers, a tick.
const SERVED: f64 = 10e6 / 8.0 / 1500.0 * TICK_US as f64 / 1e6;
const SERVED_MILLI: u64 = (SERVED * 1000.0) as u64;
const ONE_WAY_US: u64 = 10_000;
/// How long a handshake is waited for: [`super::slowest`].
const QUICK_US: u64 = 2 * ONE_WAY_US * 3 / 2 + 5000;
/// What a socket holds beyond its window.
const UNSENT: u32 = 90;
const LANES: usize = 8;
/// Mbit/s of payload, if every limit is used all the time.
const ALL: f64 = 8.0 * 10.0 * 1448.0 / 1500.0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// What it has is acknowledged before it ends.
    Draining(u64),
    /// Until the next one is established.
    Dialling(u64),
    /// Until the peer has said who it is.
    Held(u64),
    Open,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    lane: usize,
    connection: u32,
    sent: u64,
}

#[derive(Clone, Debug)]
struct Tcp {
    state: State,
    connection: u32,
    tries: u8,
    limit: usize,
    window: f64,
    threshold: f64,
    /// Where the window was when something was lost last, and when that was.
    most: f64,
    lost_at: u64,
    rtt_min: u64,
    srtt: f64,
    late: u32,
    in_flight: u32,
    unsent: u32,
    again: u32,
    lost: VecDeque<u64>,
    acked_at: u64,
    /// Since it is there.
    acked: u64,
    sent_again: u64,
    busy: u64,
    /// Of all connections, as the program saw it last.
    seen: Lane,
    before: u64,
    busy_before: u64,
}

impl Tcp {
    fn new(limit: usize, connection: u32, now: u64) -> Self {
        Self {
            state: State::Open,
            connection,
            tries: 0,
            limit,
            window: 10.0,
            threshold: f64::MAX,
            most: 0.0,
            lost_at: now,
            rtt_min: u64::MAX,
            srtt: 2.0 * ONE_WAY_US as f64,
            late: 0,
            in_flight: 0,
            unsent: 0,
            again: 0,
            lost: VecDeque::new(),
            acked_at: now,
            acked: 0,
            sent_again: 0,
            busy: 0,
            seen: Lane::default(),
            before: 0,
            busy_before: 0,
        }
    }

    fn is_up(&self) -> bool {
        matches!(self.state, State::Open | State::Held(_))
    }

    fn decrease(&mut self, now: u64, to: f64) {
        (self.most, self.lost_at) = (self.window, now);
        self.threshold = (self.window * 0.7).max(2.0);
        self.window = to.min(self.threshold);
    }

    fn acknowledged(&mut self, packet: Packet, now: u64) {
        let rtt = now - packet.sent;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.acked += 1;
        self.acked_at = now;
        self.rtt_min = self.rtt_min.min(rtt);
        self.srtt += (rtt as f64 - self.srtt) / 8.0;
        if self.window < self.threshold {
            self.window += 1.0;
            let grown = rtt > self.rtt_min + (self.rtt_min / 8).clamp(4000, 16_000);
            self.late = if grown { self.late + 1 } else { 0 };
            if self.window >= 16.0 && self.late >= 8 {
                (self.threshold, self.most, self.lost_at) = (self.window, self.window, now);
            }
            return;
        }
        let time = (now - self.lost_at) as f64 / 1e6;
        let back = (self.most * 0.3 / 0.4).cbrt();
        let wanted = 0.4 * (time + self.srtt / 1e6 - back).powi(3) + self.most;
        let cubic = ((wanted - self.window) / self.window).clamp(0.0, 0.5);
        self.window += cubic.max(0.5 / self.window);
    }

    /// Finds what was lost.
    fn find_losses(&mut self, now: u64) {
        while self.lost.front().is_some_and(|then| *then <= now) {
            self.lost.pop_front();
            self.in_flight = self.in_flight.saturating_sub(1);
            self.again += 1;
            self.sent_again += 1;
            if now > self.lost_at + self.srtt as u64 || self.threshold == f64::MAX {
                self.decrease(now, f64::MAX);
            }
        }
        let silent = now - self.acked_at > 200_000.max(3 * self.srtt as u64);
        if silent && self.in_flight > 0 {
            self.again += self.in_flight;
            self.in_flight = 0;
            self.lost.clear();
            self.decrease(now, 1.0);
            self.acked_at = now;
        }
    }
}

#[derive(Clone, Copy)]
struct Host {
    /// Between two moments in which a program runs, on average; none of it where nothing else does.
    away_us: usize,
    /// So often the network's thread does not run, and for so long on average.
    stall_us: usize,
}

const QUIET: Host = Host { away_us: 2000, stall_us: 0 };
const BUSY: Host = Host { away_us: 60_000, stall_us: 40_000 };
const VERY_BUSY: Host = Host { away_us: 120_000, stall_us: 80_000 };

struct World {
    random: Random,
    host: Host,
    now: u64,
    runs_at: u64,
    stalled_until: u64,
    lanes: Vec<Tcp>,
    queues: Vec<VecDeque<Packet>>,
    credit: Vec<f64>,
    acks: VecDeque<(u64, Packet)>,
    spread: Spread,
    dials: u32,
    is_fixed: bool,
    delivered: u64,
}

impl World {
    fn new(seed: u64, host: Host) -> Self {
        let mut random = Random::of_seed(seed);
        random.below(9);
        let lanes = (0..LANES).map(|_| Tcp::new(random.below(LANES), 0, 0)).collect();
        Self {
            random,
            host,
            now: 0,
            runs_at: 0,
            stalled_until: 0,
            lanes,
            queues: vec![VecDeque::new(); LANES],
            credit: vec![0.0; LANES],
            acks: VecDeque::new(),
            spread: Spread::default(),
            dials: 0,
            is_fixed: false,
            delivered: 0,
        }
    }

    /// A wait with this mean; a tenth of them are five times as long.
    fn wait(&mut self, mean: usize) -> u64 {
        let long = if self.random.one_in(10) { 5 } else { 1 };
        (self.random.below(2 * mean + 1) * long) as u64 * 10 / 14
    }

    fn network(&mut self) {
        for limit in 0..LANES {
            self.credit[limit] = (self.credit[limit] + SERVED).min(SERVED + 1.0);
            while self.credit[limit] >= 1.0
                && let Some(packet) = self.queues[limit].pop_front()
            {
                self.credit[limit] -= 1.0;
                self.acks.push_back((self.now + 2 * ONE_WAY_US, packet));
            }
        }
        if self.now < self.stalled_until {
            return;
        }
        if self.host.stall_us > 0 && self.random.one_in(100) {
            self.stalled_until = self.now + self.wait(self.host.stall_us);
        }
        while let Some((_, packet)) = self.acks.front().filter(|(then, _)| *then <= self.now) {
            let packet = *packet;
            self.acks.pop_front();
            let lane = &mut self.lanes[packet.lane];
            self.delivered += 1;
            if lane.connection == packet.connection {
                lane.acknowledged(packet, self.now);
            }
        }
    }

    fn send(&mut self) {
        // In another order each time, so that no lane finds the last place in a queue always.
        let first = self.random.below(LANES);
        for at in (first..LANES).chain(0..first) {
            let lane = &mut self.lanes[at];
            lane.find_losses(self.now);
            if lane.in_flight + lane.unsent + lane.again > 0 {
                lane.busy += TICK_US;
            }
            if !matches!(lane.state, State::Open | State::Draining(_)) {
                continue;
            }
            while f64::from(lane.in_flight) < lane.window && lane.unsent + lane.again > 0 {
                if lane.again > 0 {
                    lane.again -= 1;
                } else {
                    lane.unsent -= 1;
                }
                if lane.in_flight == 0 {
                    lane.acked_at = self.now;
                }
                lane.in_flight += 1;
                let packet = Packet { lane: at, connection: lane.connection, sent: self.now };
                if self.queues[lane.limit].len() < QUEUE {
                    self.queues[lane.limit].push_back(packet);
                } else {
                    lane.lost.push_back(self.now + lane.srtt as u64);
                }
            }
        }
    }

    /// Both programs run.
    fn program(&mut self) {
        let now = self.now;
        let far = self.wait(self.host.away_us);
        for at in 0..LANES {
            let empty = {
                let lane = &self.lanes[at];
                lane.in_flight + lane.unsent + lane.again == 0
            };
            match self.lanes[at].state {
                State::Draining(until) if empty || now >= until => {
                    self.lanes[at].state = State::Dialling(now + 2 * ONE_WAY_US + far);
                    self.lanes[at].tries = QUICK_DIALS;
                }
                State::Dialling(until) if now >= until => {
                    let limit = self.random.below(LANES);
                    let waits = self.queues[limit].len() as u64 * TICK_US * 1000 / SERVED_MILLI;
                    if self.lanes[at].tries > 0 && waits > QUICK_US - 2 * ONE_WAY_US {
                        self.lanes[at].tries -= 1;
                        self.lanes[at].state = State::Dialling(now + QUICK_US);
                        continue;
                    }
                    let before = &self.lanes[at];
                    let mut next = Tcp::new(limit, before.connection + 1, now);
                    next.before = before.before + before.acked;
                    next.busy_before = before.busy_before + before.busy;
                    next.state = State::Held(now + 2 * ONE_WAY_US + far);
                    self.lanes[at] = next;
                }
                State::Held(until) if now >= until => {
                    self.lanes[at].state = State::Open;
                    self.lanes[at].acked_at = now;
                }
                _ => {}
            }
            let lane = &mut self.lanes[at];
            if lane.state == State::Open {
                lane.unsent = UNSENT;
            }
            lane.seen = lane.look(now);
        }
        let looks: Vec<Lane> = self.lanes.iter().map(|lane| lane.seen).collect();
        let seen = self.spread.look(Time::from_micros(now), &looks);
        for at in seen.slow.into_iter().filter(|_| !self.is_fixed) {
            self.dials += 1;
            let until = now + 1_000_000;
            self.lanes[at].state = State::Draining(until);
        }
    }

    fn pass(&mut self) {
        self.now += TICK_US;
        self.network();
        if self.now >= self.runs_at {
            self.program();
            self.runs_at = self.now + self.wait(self.host.away_us);
        }
        self.send();
    }

    /// Mbit/s of that time.
    fn run(&mut self, time: Duration) -> f64 {
        let (until, before) = (self.now + time.as_micros() as u64, self.delivered);
        while self.now < until {
            self.pass();
        }
        (self.delivered - before) as f64 * PACKET as f64 * 8.0 / time.as_secs_f64() / 1e6
    }

    fn limits_in_use(&self) -> usize {
        let used = |limit: &usize| self.lanes.iter().any(|lane| lane.limit == *limit);
        (0..LANES).filter(used).count()
    }
}

impl Tcp {
    fn look(&self, now: u64) -> Lane {
        Lane {
            bytes: (self.before + self.acked) * PACKET,
            at: Time::from_micros(now),
            is_up: self.is_up(),
            held_up: self.is_up(),
            busy: Duration::from_micros(self.busy_before + self.busy),
            held_by_peer: Duration::ZERO,
            settled: self.threshold < f64::MAX || self.busy > 5_000_000,
            rtt: Duration::from_micros(if self.rtt_min == u64::MAX { 0 } else { self.rtt_min }),
        }
    }
}

/// Each lane with a limit of its own, from the start.
fn ideal(seed: u64, host: Host) -> f64 {
    let mut world = World::new(seed, host);
    for at in 0..LANES {
        world.lanes[at].limit = at;
    }
    world.is_fixed = true;
    world.run(Duration::from_secs(30));
    world.run(Duration::from_secs(30))
}

/// Of each seed: Mbit/s in the second half of a minute, and dials in all of it.
fn minutes(seeds: std::ops::Range<u64>, host: Host) -> Vec<(f64, u32)> {
    let minute = |seed| {
        let mut world = World::new(seed, host);
        world.run(Duration::from_secs(30));
        let rate = world.run(Duration::from_secs(30));
        println!(
            "seed {seed}: {rate:.1} Mbit/s, {} limits, {} dials",
            world.limits_in_use(),
            world.dials
        );
        (rate, world.dials)
    };
    seeds.map(minute).collect()
}

#[test]
fn lanes_of_quiet_hosts_find_all_limits_in_half_a_minute() {
    for (rate, dials) in minutes(0..12, QUIET) {
        assert!(rate > 0.95 * ALL && dials <= 30, "{rate:.1} Mbit/s of {ALL:.1}, {dials} dials");
    }
}

/// Lanes were dialled again each second before they were as fast as they can be, because their hosts did
/// not run.
#[test]
fn lanes_of_busy_hosts_find_all_limits_and_keep_them() {
    for (host, part) in [(BUSY, 0.8), (VERY_BUSY, 0.7)] {
        let ideal: f64 = (0..4).map(|seed| ideal(seed, host)).sum::<f64>() / 4.0;
        for (rate, dials) in minutes(0..8, host) {
            assert!(rate > part * ideal && dials <= 45, "{rate:.1} of {ideal:.1}, {dials} dials");
        }
    }
}
