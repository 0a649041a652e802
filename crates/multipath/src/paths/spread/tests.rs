//! Lanes in a network of limits whose rates follow from who shares them, at once.

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
        let lane = Lane { is_up: true, held_up: true, settled: true, ..Lane::default() };
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
            let same = |other: &usize| self.lanes[*other].is_up && self.of[*other] == self.of[at];
            let all: f64 = (0..8).filter(same).map(|other| weights[other]).sum();
            let rate = self.limits[self.of[at]] * 125_000.0 * weights[at] / all;
            self.lanes[at].bytes += (rate * TICK.as_secs_f64()) as u64;
            self.lanes[at].busy += TICK;
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

/// One that has dialled a lane again because all of them carried the same.
fn tried() -> Spread {
    Spread { tried: true, ..Spread::default() }
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
    let mut times: Vec<f64> = (0..200).filter_map(|seed| search(seed, [10.0; 8], 300).0).collect();
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
    let mut spread = tried();
    for _ in 0..2000 {
        network.pass();
        assert_eq!(spread.look(network.now, &network.lanes).slow, [0_usize; 0]);
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
    let mut spread = tried();
    for step in 0..2000 {
        let before = network.lanes[3].bytes;
        network.pass();
        // 1.5 s of each minute without a byte, once the lanes are watched.
        if step % 1200 > 1170 {
            network.lanes[3].bytes = before;
        }
        assert_eq!(spread.look(network.now, &network.lanes).slow, [0_usize; 0], "{step}");
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
    let mut spread = tried();
    for _ in 0..1000 {
        network.pass();
        assert_eq!(spread.look(network.now, &network.lanes).slow, [0_usize; 0]);
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
    let lane = Lane { is_up: true, held_up: true, settled: true, rtt: RTT_MAX, ..Lane::default() };
    let mut lanes = [lane; 8];
    let mut spread = tried();
    let mut now = Time::ZERO;
    // Lane 0 doubles in each round trip, to the others' rate in seven.
    for step in 0..400_u32 {
        now = now.after(TICK);
        let round_trips = TICK.as_secs_f64() * f64::from(step) / RTT_MAX.as_secs_f64();
        for (at, lane) in lanes.iter_mut().enumerate() {
            let part = if at == 0 { 2.0_f64.powf(round_trips - 7.0).min(1.0) } else { 1.0 };
            lane.bytes += (62_500.0 * part) as u64;
            lane.busy += TICK;
            lane.at = now;
        }
        assert_eq!(spread.look(now, &lanes).slow, [0_usize; 0], "after {round_trips} round trips");
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

/// Lanes with limits in both directions, of which each end judges the one that it sends by.
struct Both {
    ways: [Network; 2],
    spreads: [Spread; 2],
    /// Of a lane that is dialled: what is left of its quick dials.
    tries: [u8; 8],
}

impl Both {
    fn new(seed: u64) -> Self {
        let network = |seed| Network::new(seed, &[10.0; 8]);
        let ways = [network(2 * seed), network(2 * seed + 1)];
        Self { ways, spreads: Default::default(), tries: [0; 8] }
    }

    fn pass(&mut self) {
        for way in &mut self.ways {
            way.pass();
        }
        let now = self.ways[0].now;
        for at in 0..8 {
            // Both directions have come up together: with a full queue in one of them the handshake was slow.
            let is_new = self.tries[at] > 0 && self.ways.iter().all(|way| way.lanes[at].is_up);
            let shares = |way: &Network| {
                (0..8).any(|other| {
                    other != at && way.lanes[other].is_up && way.of[other] == way.of[at]
                })
            };
            if is_new && self.ways.iter().any(shares) {
                self.tries[at] -= 1;
                for way in self.ways.iter_mut().filter(|_| self.tries[at] > 0) {
                    way.down[at] = Some(now.after(TICK));
                    way.lanes[at].is_up = false;
                }
            } else if is_new {
                self.tries[at] = 0;
            }
        }
        for end in 0..2 {
            let seen = self.spreads[end].look(now, &self.ways[end].lanes);
            for lane in &seen.slow {
                self.tries[*lane] = quick_dials(Duration::from_millis(20));
            }
            for way in &mut self.ways {
                way.dial(&seen);
            }
        }
    }
}

#[test]
fn lanes_find_all_limits_of_both_directions() {
    let (mut all, mut dials) = (Vec::new(), 0);
    for seed in 1..101 {
        let mut both = Both::new(seed);
        let mut carried = [0.0; 2];
        for step in 0..1200 {
            both.pass();
            for (way, carried) in both.ways.iter().zip(&mut carried) {
                // The second half of a minute.
                *carried += if step < 600 { 0.0 } else { way.carried() / 600.0 };
            }
        }
        dials += both.ways[0].dials;
        all.push(carried[0].min(carried[1]));
    }
    all.sort_unstable_by(f64::total_cmp);
    println!("worst {:.1}, 10 % {:.1}, median {:.1}, {dials} dials", all[0], all[10], all[50]);
    assert!(all[0] > 0.95 * 80.0, "{all:.1?}");
}
