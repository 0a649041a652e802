//! The chooser against networks in which rates are shared by formula: many seeds, fast. Real kernels
//! between namespaces are in `tests/integration/test_paths.py`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::action::{Action, Event, Flow, FlowId, Look, PairId, Reason, Role, State};
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

    fn tick(&mut self) {
        self.now = self.now.after(TICK);
        let now = self.now;
        let mut demand = vec![0.0; self.rates.len()];
        let carries = |s: &Strand| !s.paused && s.opens <= now;
        for strand in self.flows.values().filter(|s| carries(s)) {
            demand[strand.class] += strand.weight;
        }
        let mut capacity = 0.0;
        for (class, demand) in demand.iter().enumerate() {
            if *demand > 0.0 {
                capacity += self.rates[class] * demand / (demand + self.foreign[class]);
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
                let bytes = self.rates[class] * strand.weight / whole * use_of * factor * 0.1;
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
            rtt: Duration::from_millis(20),
        };
        let flows: Vec<Flow> = self.flows.iter().map(flow).collect();
        let pairs: Vec<PairId> = self.classes.keys().copied().collect();
        let look = Look { now: self.now, flows: &flows, pairs: &pairs, unacked_from: None };
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

#[test]
fn flows_hashed_to_eight_limits_come_to_use_all_of_them() {
    let (mut all, mut fast) = (0, 0);
    for seed in 0..40 {
        let mut network = Network::new(&[9.4; 8], seed);
        network.run(11);
        fast += u32::from(network.rate(1) > 8.0 * 9.4 * 0.95);
        network.until_settled();
        let rate = network.rate(5);
        all += u32::from(rate > 8.0 * 9.4 * 0.95);
        assert!(rate > 7.0 * 9.4 * 0.95, "seed {seed}: {rate}");
        assert!(network.flows.len() <= 10, "seed {seed}: {} flows are kept", network.flows.len());
    }
    assert!(all >= 34, "all eight in {all} of 40");
    assert!(fast >= 30, "within 12 s in {fast} of 40");
}

#[test]
fn unequal_limits_are_all_used_that_matter() {
    let limits = [20.0, 10.0, 5.0, 2.0];
    let mut most = 0;
    for seed in 0..40 {
        let mut network = Network::new(&limits, seed);
        network.until_settled();
        let rate = network.rate(5);
        most += u32::from(rate > 34.0);
        assert!(network.flows.len() <= 12, "seed {seed}: {} flows", network.flows.len());
    }
    assert!(most >= 35, "{most} of 40");
}

#[test]
fn a_shared_bottleneck_gets_no_further_flows_and_says_so() {
    for seed in 0..20 {
        for foreign in [0.0, 1.0] {
            let mut network = Network::new(&[50.0], seed);
            network.foreign = vec![foreign];
            let took = network.until_settled();
            // Beside a foreign flow, two more may stay.
            let kept = if foreign > 0.0 { 3 } else { 1 };
            assert!(network.flows.len() <= kept, "seed {seed}: {} kept", network.flows.len());
            if foreign == 0.0 {
                assert!(took < Duration::from_secs(5), "seed {seed}: {took:?}");
                assert_eq!(network.flows.len(), 1);
                assert_eq!(network.dials, 7);
                let said = network.events.last().unwrap().to_string();
                assert!(said.contains("share one bottleneck"), "{said}");
            }
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
    assert!(network.flows.len() <= 6, "{}", network.flows.len());
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
        assert!(network.flows.len() <= 4, "{}", network.flows.len());
        network.run(3);
        let rate = network.rate(3);
        assert!(rate > 53.0, "seed {seed}: {rate} after its return, {:?}", network.events);
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
        rtt: Duration::from_millis(20),
    };
    for role in [Role::Accepts, Role::Dials] {
        let mut chooser = Chooser::new(role, 1);
        let mut ended = None;
        for tick in 0..30u64 {
            let now = Time::ZERO.after(TICK * (tick + 1) as u32);
            let flows = [flow(1, 1_000, true), flow(2, 1_000 * tick, true)];
            let look = Look { now, flows: &flows, pairs: &[PAIR], unacked_from: Some(tick) };
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
            let look = Look { now, flows: &flows, pairs: &[PAIR], unacked_from: Some(7) };
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
            rtt: Duration::from_millis(20),
        };
        // One has bytes under way, the other would carry more, were there room at the receiver.
        let flows = [flow(1, true), flow(2, false)];
        let look = Look { now, flows: &flows, pairs: &[], unacked_from: Some(7) };
        ended.extend(chooser.look(&look));
        if !ended.is_empty() {
            break;
        }
    }
    assert_eq!(ended, [Action::Close(FlowId(1), Reason::HoldsGap)]);
}
