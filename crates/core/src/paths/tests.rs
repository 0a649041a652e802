//! The chooser against networks in which rates are shared by formula: many seeds, fast. Real kernels
//! between namespaces are in `tests/integration/test_paths.py`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::action::{Action, Event, Flow, FlowId, Look, PairId, Reason, Role, State, Unacked};
use super::chooser::{Chooser, FLOWS_MAX};
use super::trial::Draw;
use crate::time::Time;

const TICK: Duration = Duration::from_millis(100);
const PAIR: PairId = PairId(0);

struct Strand {
    pair: PairId,
    class: usize,
    /// Its share within a class, against the others'.
    weight: f64,
    bytes: f64,
    paused: bool,
    opens: Time,
}

/// Classes of flows with a rate each; foreign flows may use them too.
struct Network {
    rates: Vec<f64>,
    foreign: Vec<f64>,
    /// Which classes a pair's flows may be hashed to.
    classes: BTreeMap<PairId, std::ops::Range<usize>>,
    noise: f64,
    /// Round trips of pairs, where they are not 20 ms.
    round_trips: BTreeMap<PairId, Duration>,
    /// What one flow makes of a limit: below a policer, which drops and does not queue, less than two.
    alone: f64,
    /// By how much each limit swings, as a share of itself, and within what time.
    swing: (f64, Duration),
    flows: BTreeMap<FlowId, Strand>,
    draw: Draw,
    next: u64,
    now: Time,
    chooser: Chooser,
    /// What the program gives, at most.
    offered: f64,
    delivered: f64,
    dials: u32,
    most: usize,
    closed: Vec<(FlowId, Reason)>,
    events: Vec<Event>,
}

/// A piece of the whole that waits for its acknowledgement.
fn waits(from: u64) -> Option<Unacked> {
    Some(Unacked { from, bytes: 1 << 20, resent: 0 })
}

fn mbit(rate: f64) -> f64 {
    rate * 1e6 / 8.0
}

impl Network {
    fn new(rates: &[f64], seed: u64) -> Self {
        let mut network = Self {
            rates: rates.iter().map(|rate| mbit(*rate)).collect(),
            foreign: vec![0.0; rates.len()],
            classes: BTreeMap::from([(PAIR, 0..rates.len())]),
            noise: 0.02,
            round_trips: BTreeMap::new(),
            alone: 1.0,
            swing: (0.0, Duration::from_secs(1)),
            flows: BTreeMap::new(),
            draw: Draw::new(seed),
            next: 0,
            now: Time::ZERO.after(TICK),
            chooser: Chooser::new(Role::Dials, seed),
            offered: f64::MAX,
            delivered: 0.0,
            dials: 0,
            most: 0,
            closed: Vec::new(),
            events: Vec::new(),
        };
        network.open(PAIR);
        network
    }

    fn chance(&mut self) -> f64 {
        (self.draw.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn open(&mut self, pair: PairId) {
        let range = self.classes[&pair].clone();
        let class = range.start + (self.chance() * range.len() as f64) as usize;
        let weight = 0.6 + self.chance();
        let opens = self.now.after(Duration::from_millis(40));
        let strand = Strand { pair, class, weight, bytes: 0.0, paused: false, opens };
        self.flows.insert(FlowId(self.next), strand);
        self.next += 1;
    }

    /// What a class carries now for flows of such weights, ours and foreign ones.
    fn limit(&self, class: usize, flows: u32) -> f64 {
        let (share, period) = self.swing;
        let turns = self.now.since(Time::ZERO).as_secs_f64() / period.as_secs_f64();
        let turn = (turns + class as f64 * 0.37) * std::f64::consts::TAU;
        let lost = (1.0 - self.alone) / f64::from(flows.max(1));
        self.rates[class] * (1.0 + share * turn.sin()) * (1.0 - lost)
    }

    fn tick(&mut self) {
        self.now = self.now.after(TICK);
        let now = self.now;
        let mut demand = vec![0.0; self.rates.len()];
        let mut limits = vec![0.0; self.rates.len()];
        let carries = |s: &Strand| !s.paused && s.opens <= now;
        for strand in self.flows.values().filter(|s| carries(s)) {
            demand[strand.class] += strand.weight;
        }
        let mut capacity = 0.0;
        for (class, demand) in demand.iter().enumerate() {
            let flows = self.flows.values().filter(|s| carries(s) && s.class == class).count();
            limits[class] = self.limit(class, flows as u32);
            if *demand > 0.0 {
                capacity += limits[class] * demand / (demand + self.foreign[class]);
            }
        }
        let use_of = (self.offered / capacity.max(1.0)).min(1.0);
        let ids: Vec<FlowId> = self.flows.keys().copied().collect();
        for id in ids {
            let factor = 1.0 + (self.chance() - 0.5) * 2.0 * self.noise;
            let strand = self.flows.get_mut(&id).unwrap();
            if carries(strand) {
                let class = strand.class;
                let whole = demand[class] + self.foreign[class];
                let bytes = limits[class] * strand.weight / whole * use_of * factor * 0.1;
                strand.bytes += bytes;
                self.delivered += bytes;
            }
        }
        self.look();
    }

    fn look(&mut self) {
        let flow = |(id, s): (&FlowId, &Strand)| Flow {
            id: *id,
            pair: s.pair,
            open: s.opens <= self.now,
            bytes: s.bytes as u64,
            unacked: false,
            backup: s.paused,
            rtt: self.round_trips.get(&s.pair).copied().unwrap_or(Duration::from_millis(20)),
        };
        let flows: Vec<Flow> = self.flows.iter().map(flow).collect();
        let pairs: Vec<PairId> = self.classes.keys().copied().collect();
        let look = Look { now: self.now, flows: &flows, pairs: &pairs, unacked: None };
        for action in self.chooser.look(&look) {
            match action {
                Action::Dial(pair) => {
                    self.dials += 1;
                    self.open(pair);
                }
                Action::Pause(flow) => self.flows.get_mut(&flow).unwrap().paused = true,
                Action::Resume(flow) => self.flows.get_mut(&flow).unwrap().paused = false,
                Action::Close(flow, reason) => {
                    self.flows.remove(&flow);
                    self.closed.push((flow, reason));
                }
            }
        }
        assert!(self.flows.values().any(|s| s.opens <= self.now), "a flow is always open");
        self.most = self.most.max(self.flows.len());
        assert!(self.flows.len() <= FLOWS_MAX);
        self.events.extend(self.chooser.take_events());
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.tick();
        }
    }

    /// Flows that do not rest.
    fn carrying(&self) -> usize {
        self.flows.values().filter(|strand| !strand.paused).count()
    }

    /// Mbit/s over so many seconds.
    fn rate(&mut self, seconds: u64) -> f64 {
        let before = self.delivered;
        self.run(seconds);
        (self.delivered - before) * 8.0 / 1e6 / seconds as f64
    }

    fn until_settled(&mut self) -> Duration {
        for _ in 0..1800 {
            self.tick();
            if self.chooser.state() == State::Settled {
                return self.now.since(Time::ZERO);
            }
        }
        panic!("not settled within 120 s: {:?}", self.events);
    }
}

/// What one flow of middling weight in each class would carry together, Mbit/s.
fn within_reach(limits: &[f64], foreign: &[f64]) -> f64 {
    limits.iter().zip(foreign).map(|(limit, foreign)| limit * 1.1 / (1.1 + foreign)).sum()
}

/// What issue 6 wants of the ceiling: 71 of 75.3.
const WANTED: f64 = 71.0 / 75.3;

struct Reached {
    /// Seconds until it carried what is wanted for one second; the runs in order of that.
    seconds: Vec<u64>,
    /// What the worst run carried in the end, as a share of what is within reach.
    worst: f64,
    flows: usize,
}

/// Runs seeds until they have settled.
fn reach(seeds: u64, limits: &[f64], set: impl Fn(&mut Network)) -> Reached {
    let mut reached = Reached { seconds: Vec::new(), worst: f64::MAX, flows: 0 };
    for seed in 0..seeds {
        let mut network = Network::new(limits, seed);
        set(&mut network);
        let foreign = network.foreign.clone();
        let possible = within_reach(limits, &foreign) * network.alone;
        let mut first = None;
        while network.chooser.state() != State::Settled {
            let second = network.now.since(Time::ZERO).as_secs();
            assert!(second < 150, "seed {seed}: not settled, {:?}", network.events);
            if network.rate(1) >= possible * WANTED {
                first.get_or_insert(second + 1);
            }
        }
        let share = network.rate(10) / possible;
        if share < WANTED && foreign.iter().all(|f| *f == 0.0) {
            for event in &network.events {
                eprintln!("seed {seed}: {event}");
            }
        }
        // Which classes a flow came to: weights of flows beside foreign ones are luck.
        let held: BTreeSet<usize> =
            network.flows.values().filter(|s| !s.paused).map(|s| s.class).collect();
        let of = |class: &usize| limits[*class] * 1.1 / (1.1 + foreign[*class]);
        let fair = held.iter().map(of).sum::<f64>() / within_reach(limits, &foreign);
        reached.worst =
            reached.worst.min(fair).min(if foreign.iter().any(|f| *f > 0.0) { 1.0 } else { share });
        reached.flows = reached.flows.max(network.carrying());
        reached.seconds.push(first.unwrap_or(u64::MAX));
    }
    reached.seconds.sort_unstable();
    reached
}

impl Reached {
    fn median_seconds(&self) -> u64 {
        self.seconds[self.seconds.len() / 2]
    }
}

#[test]
fn flows_hashed_to_eight_limits_come_to_use_all_of_them() {
    let reached = reach(60, &[9.4125; 8], |_| ());
    assert!(reached.worst >= WANTED, "{} in the worst run", reached.worst);
    assert!(reached.median_seconds() <= 12, "{:?}", reached.seconds);
    assert!(reached.flows <= 9, "{} flows are kept", reached.flows);
}

#[test]
fn rates_that_jump_cost_time_and_no_limit() {
    // Each flow is off by up to a quarter in each tenth of a second.
    let reached = reach(40, &[9.4125; 8], |network| network.noise = 0.25);
    assert!(reached.worst >= WANTED, "{} in the worst run", reached.worst);
    assert!(reached.median_seconds() <= 20, "{:?}", reached.seconds);
    assert!(reached.flows <= 10, "{} flows are kept", reached.flows);
}

#[test]
fn few_and_many_limits_are_all_found() {
    for count in [2, 3, 5, 12, 16] {
        let reached = reach(16, &vec![9.4; count], |_| ());
        assert!(reached.worst >= WANTED, "{count}: {} in the worst run", reached.worst);
        let median = reached.median_seconds();
        assert!(median <= 2 * count as u64, "{count}: {:?}", reached.seconds);
        assert!(reached.flows <= count + 2, "{count}: {} flows are kept", reached.flows);
    }
}

#[test]
fn limits_that_foreign_flows_use_too_are_all_found_and_not_crowded() {
    for foreign in [
        [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0],
        [2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0],
        [1.0; 8],
    ] {
        let reached = reach(20, &[9.4; 8], |network| network.foreign = foreign.to_vec());
        assert!(reached.worst >= WANTED, "{foreign:?}: {}", reached.worst);
        assert!(reached.flows <= 11, "{foreign:?}: {} flows are kept", reached.flows);
    }
}

#[test]
fn unequal_limits_are_all_used_that_matter() {
    for limits in [&[20.0, 10.0, 5.0, 2.0][..], &[30.0, 20.0, 20.0, 10.0, 10.0, 5.0]] {
        let reached = reach(30, limits, |_| ());
        assert!(reached.worst >= WANTED, "{limits:?}: {} in the worst run", reached.worst);
        assert!(reached.median_seconds() <= 20, "{limits:?}: {:?}", reached.seconds);
        assert!(reached.flows <= 9, "{} flows are kept", reached.flows);
    }
}

#[test]
fn below_policers_a_second_flow_that_gains_a_little_is_not_kept() {
    for alone in [0.9, 0.8] {
        let reached = reach(20, &[9.4; 8], |network| network.alone = alone);
        assert!(reached.worst >= WANTED, "{alone}: {} in the worst run", reached.worst);
        assert!(reached.median_seconds() <= 20, "{alone}: {:?}", reached.seconds);
        assert!(reached.flows <= 10, "{alone}: {} flows are kept", reached.flows);
    }
}

#[test]
fn limits_that_swing_are_all_found() {
    for period in [15, 30] {
        let reached = reach(20, &[9.4; 8], |network| {
            network.swing = (0.15, Duration::from_secs(period));
        });
        assert!(reached.worst >= WANTED, "{period} s: {} in the worst run", reached.worst);
        assert!(reached.median_seconds() <= 20, "{period} s: {:?}", reached.seconds);
        assert!(reached.flows <= 10, "{period} s: {} flows are kept", reached.flows);
    }
}

#[test]
fn a_shared_bottleneck_gets_no_further_flows_and_says_so() {
    for seed in 0..30 {
        let mut network = Network::new(&[50.0], seed);
        let took = network.until_settled();
        assert!(took < Duration::from_secs(4), "seed {seed}: {took:?}");
        assert_eq!((network.flows.len(), network.dials), (1, 10), "seed {seed}");
        let said = network.events.last().unwrap().to_string();
        assert!(said.contains("share one bottleneck"), "{said}");
    }
}

#[test]
fn a_bottleneck_shared_with_others_is_not_taken_from_them() {
    for seed in 0..30 {
        // Where there are more foreign flows, one more of ours is seen less.
        for (foreign, kept) in [(1.0, 1), (2.0, 3), (4.0, 4)] {
            let mut network = Network::new(&[50.0], seed);
            network.foreign = vec![foreign];
            network.until_settled();
            let flows = network.carrying();
            assert!(flows <= kept, "seed {seed}: {flows} kept beside {foreign} foreign ones");
        }
    }
}

#[test]
fn what_is_small_or_pauses_is_left_alone() {
    let mut network = Network::new(&[9.4; 8], 1);
    network.offered = mbit(0.3);
    network.run(60);
    assert_eq!((network.dials, network.chooser.state()), (0, State::Watching));
}

#[test]
fn a_program_that_gives_less_than_there_is_keeps_few_flows() {
    let mut network = Network::new(&[9.4; 8], 3);
    network.offered = mbit(15.0);
    network.run(60);
    assert!(network.carrying() <= 6, "{}", network.carrying());
    assert!(network.rate(5) > 14.0);
}

#[test]
fn a_limit_that_falls_is_searched_around() {
    for seed in 0..10 {
        let mut network = Network::new(&[9.4; 8], seed);
        network.until_settled();
        for rate in &mut network.rates[..4] {
            *rate = mbit(1.0);
        }
        network.run(60);
        let rate = network.rate(5);
        assert!(rate > 37.0, "seed {seed}: {rate}");
    }
}

#[test]
fn what_was_missed_is_found_when_time_has_passed() {
    for seed in 0..10 {
        let mut network = Network::new(&[9.4; 8], seed);
        network.run(240);
        let rate = network.rate(10);
        assert!(rate > 8.0 * 9.4 * 0.93, "seed {seed}: {rate}");
    }
}

#[test]
fn two_lines_are_both_used_and_one_that_returns_is_dialled_again() {
    let fibre = PairId(0);
    let dsl = PairId(1);
    for seed in 0..15 {
        let mut network = Network::new(&[48.0, 9.5], seed);
        network.classes = BTreeMap::from([(fibre, 0..1), (dsl, 1..2)]);
        network.flows.values_mut().next().unwrap().class = 0;
        network.until_settled();
        let rate = network.rate(5);
        assert!(rate > 53.0, "seed {seed}: {rate}");
        // The fibre is cut: the sender has ended its flows, nobody answers there for 5 s.
        let cut = network.now;
        network.flows.retain(|_, strand| strand.pair == dsl);
        while network.now.since(cut) < Duration::from_secs(5) {
            network.tick();
            network.flows.values_mut().filter(|s| s.pair == fibre).for_each(|s| {
                s.opens = Time::from_micros(u64::MAX);
            });
        }
        assert!(network.carrying() <= 4, "{}", network.carrying());
        network.run(3);
        let rate = network.rate(3);
        assert!(rate > 53.0, "seed {seed}: {rate} after its return, {:?}", network.events);
    }
}

/// What rests on a line that is cut is open for minutes: nothing is sent over it.
#[test]
fn a_line_on_which_flows_rest_is_dialled_again_when_it_returns() {
    let (fibre, dsl) = (PairId(0), PairId(1));
    for seed in 0..15 {
        let mut network = Network::new(&[48.0, 9.5], seed);
        network.classes = BTreeMap::from([(fibre, 0..1), (dsl, 1..2)]);
        network.flows.values_mut().next().unwrap().class = 0;
        network.round_trips.insert(dsl, Duration::from_millis(80));
        network.noise = 0.25;
        let rests = |network: &Network| {
            let of_fibre = |s: &Strand| s.pair == fibre && s.paused;
            network.chooser.state() == State::Dialling && network.flows.values().any(of_fibre)
        };
        for _ in 0..300 {
            if rests(&network) {
                break;
            }
            network.tick();
        }
        assert!(rests(&network), "seed {seed}: {:?}", network.events);
        let cut = network.now;
        network.flows.retain(|_, strand| strand.pair == dsl || strand.paused);
        while network.now.since(cut) < Duration::from_secs(5) {
            network.tick();
            let dialled = |s: &&mut Strand| s.pair == fibre && !s.paused;
            network.flows.values_mut().filter(dialled).for_each(|s| {
                s.opens = Time::from_micros(u64::MAX);
            });
        }
        network.run(3);
        let rate = network.rate(2);
        assert!(rate > 0.85 * 57.5, "seed {seed}: {rate} after its return, {:?}", network.events);
    }
}

#[test]
fn a_sender_ends_a_dead_flow_over_a_living_one_and_never_the_last() {
    let flow = |id, bytes, unacked| Flow {
        id: FlowId(id),
        pair: PAIR,
        open: true,
        bytes,
        unacked,
        backup: false,
        rtt: Duration::from_millis(20),
    };
    for role in [Role::Accepts, Role::Dials] {
        let mut chooser = Chooser::new(role, 1);
        let mut ended = None;
        for tick in 0..30u64 {
            let now = Time::ZERO.after(TICK * (tick + 1) as u32);
            let flows = [flow(1, 1_000, true), flow(2, 1_000 * tick, true)];
            let look = Look { now, flows: &flows, pairs: &[PAIR], unacked: waits(tick) };
            let close = |a: &Action| matches!(a, Action::Close(..));
            if let Some(action) = chooser.look(&look).into_iter().find(close) {
                assert_eq!(action, Action::Close(FlowId(1), Reason::Dead));
                ended.get_or_insert(tick);
            }
        }
        assert!(ended.is_some_and(|tick| (10..14).contains(&tick)), "{role:?}: {ended:?}");
        // All are silent: nothing is closed.
        let mut chooser = Chooser::new(role, 1);
        for tick in 0..100u64 {
            let now = Time::ZERO.after(TICK * (tick + 1) as u32);
            let flows = [flow(1, 1_000, true), flow(2, 1_000, true)];
            let look = Look { now, flows: &flows, pairs: &[PAIR], unacked: waits(7) };
            assert_eq!(chooser.look(&look), []);
        }
    }
}

#[test]
fn a_flow_that_holds_the_gap_is_ended() {
    let mut chooser = Chooser::new(Role::Accepts, 1);
    let mut ended = Vec::new();
    for tick in 0..60u64 {
        let now = Time::ZERO.after(TICK * (tick + 1) as u32);
        let flow = |id, unacked| Flow {
            id: FlowId(id),
            pair: PAIR,
            open: true,
            bytes: 5_000,
            unacked,
            backup: false,
            rtt: Duration::from_millis(20),
        };
        // One has bytes under way, the other would carry more, were there room at the receiver.
        let flows = [flow(1, true), flow(2, false)];
        let look = Look { now, flows: &flows, pairs: &[], unacked: waits(7) };
        ended.extend(chooser.look(&look));
        if !ended.is_empty() {
            break;
        }
    }
    assert_eq!(ended, [Action::Close(FlowId(1), Reason::HoldsGap)]);
}

/// A connection over flows of which each has 5 kB behind it, the first of them resting.
fn crawling(chooser: &mut Chooser, ticks: u64, unacked: impl Fn(u64) -> Unacked) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut flows: BTreeSet<u64> = (1..=12).collect();
    for tick in 0..ticks {
        let now = Time::ZERO.after(TICK * (tick + 1) as u32);
        let resent = unacked(tick).resent;
        let flow = |id: &u64| Flow {
            id: FlowId(*id),
            pair: PAIR,
            open: true,
            // Over the seventh a piece is sent again now and then.
            bytes: 5_000 + id + if *id == 7 { resent } else { 0 },
            unacked: *id == 7 && resent > 0 && tick % 3 == 0,
            backup: *id == 9,
            rtt: Duration::from_millis(20),
        };
        let flows_now: Vec<Flow> = flows.iter().map(flow).collect();
        let look = Look { now, flows: &flows_now, pairs: &[], unacked: Some(unacked(tick)) };
        for action in chooser.look(&look) {
            if let Action::Close(FlowId(flow), _) = action {
                flows.remove(&flow);
            }
            actions.push(action);
        }
    }
    actions
}

/// As between real kernels: 10 MB wait, and 8 KiB of them come each third of a second.
#[test]
fn a_whole_that_crawls_is_helped_by_the_end_of_a_flow_that_rests() {
    let crawls =
        |tick: u64| Unacked { from: tick / 3 * 8_192, bytes: 10 << 20, resent: tick / 3 * 8_192 };
    for role in [Role::Accepts, Role::Dials] {
        let mut chooser = Chooser::new(role, 1);
        let ended = crawling(&mut chooser, 9, crawls);
        assert_eq!(ended, [Action::Close(FlowId(9), Reason::Crawls)], "{role:?}");
        // Four flows, then no more until it goes on.
        let mut chooser = Chooser::new(role, 1);
        assert_eq!(crawling(&mut chooser, 600, crawls).len(), 4, "{role:?}");
    }
}

#[test]
fn a_peer_that_does_not_read_loses_no_flow() {
    let full = |_| Unacked { from: 7, bytes: 10 << 20, resent: 0 };
    assert_eq!(crawling(&mut Chooser::new(Role::Accepts, 1), 100, full), []);
    let little = |tick: u64| Unacked { from: 7, bytes: 100 << 10, resent: tick };
    assert_eq!(crawling(&mut Chooser::new(Role::Accepts, 1), 100, little), []);
    // It goes on.
    let slow = |tick: u64| Unacked { from: tick * 20_000, bytes: 1 << 20, resent: tick };
    assert_eq!(crawling(&mut Chooser::new(Role::Accepts, 1), 100, slow), []);
}
