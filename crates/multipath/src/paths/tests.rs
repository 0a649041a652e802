//! The chooser against networks in which rates are shared by formula: many seeds, fast. Real kernels
//! between namespaces are in `tests/integration/test_paths.py`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hawser_time::Time;

use super::action::{Action, Flow, FlowId, Look, PairId, Reason, Role, State, Unacked};
use super::chooser::{BATCH_FIRST, Chooser};
use network::{Network, PAIR, Strand, TICK, WANTED, mbit, reach};

mod network;

/// A piece of the whole that waits for its acknowledgement.
fn waits(from: u64) -> Option<Unacked> {
    Some(Unacked { from, bytes: 1 << 20, resent: 0 })
}

#[test]
fn flows_hashed_to_eight_limits_come_to_use_all_of_them() {
    let reached = reach(60, &[9.4125; 8], |_| ());
    assert!(reached.worst >= WANTED, "{} in the worst run", reached.worst);
    assert!(reached.median_seconds() <= 12, "{:?}", reached.seconds);
    assert!(reached.flows <= 9, "{} flows are kept", reached.flows);
}

/// If shares cost little, all limits are in use soon, in every run; flows that share are ended
/// later, and the rate meanwhile is steady.
#[test]
fn where_shares_cost_little_all_limits_are_met_soon_and_kept() {
    for noise in [0.02, 0.25] {
        for seed in 0..60 {
            let mut network = Network::new(&[9.4125; 8], seed);
            (network.noise, network.chooser) = (noise, Chooser::wide(Role::Dials, seed));
            network.run(15);
            let rate = network.rate(30);
            let events = &network.events;
            assert!(rate >= 71.0 || network.met.len() < 8, "seed {seed}: {rate}, {events:?}");
            network.run(15);
            let flows = network.carrying();
            assert!(
                flows <= 12,
                "seed {seed}: {flows} flows are kept, {events:?}",
                events = network.events
            );
        }
    }
    for seed in 0..10 {
        let mut network = Network::new(&[50.0], seed);
        network.chooser = Chooser::wide(Role::Dials, seed);
        network.until_settled();
        assert_eq!((network.flows.len(), network.dials), (1, 10), "seed {seed}");
    }
}

/// What the program gets of a minute's copy, with what searches cost.
#[test]
fn the_second_half_of_a_minute_is_steady() {
    for (noise, most) in [(0.1, 2), (0.25, 10)] {
        let mut slow = Vec::new();
        for seed in 0..100 {
            let mut network = Network::new(&[9.4125; 8], seed);
            (network.costly, network.noise) = (true, noise);
            network.run(28);
            let before = network.got;
            network.run(28);
            let rate = (network.got - before) * 8.0 / 1e6 / 28.0;
            if rate < 71.0 {
                slow.push((seed, rate));
            }
        }
        assert!(slow.len() <= most, "noise of {noise}: {slow:?}");
    }
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

/// Hosts are the bottleneck there: each further flow costs, and two say as much as ten.
#[test]
fn beside_a_fast_flow_two_are_tried_and_closed() {
    for seed in 0..30 {
        let mut network = Network::new(&[2_000.0], seed);
        let took = network.until_settled();
        assert!(took < Duration::from_secs(4), "seed {seed}: {took:?}");
        assert_eq!((network.flows.len(), network.dials), (1, 2), "seed {seed}");
    }
    // If they gain, the search goes on; if both meet the same limit, a later search does.
    for seed in 0..10 {
        let mut network = Network::new(&[1_000.0; 4], seed);
        network.run(300);
        let rate = network.rate(10);
        assert!(rate > 4_000.0 * WANTED, "seed {seed}: {rate}");
    }
}

#[test]
fn a_bottleneck_shared_with_others_is_not_taken_from_them() {
    for seed in 0..30 {
        // With more foreign flows, one more of ours shows less.
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

/// A flow of CUBIC carries all of a long path in its first seconds, and hardly anything once it has lost a few
/// segments: what was found before says nothing any more.
#[test]
fn where_shares_cost_little_a_whole_that_collapses_is_searched_around_at_once() {
    for seed in 0..10 {
        let mut network = Network::new(&[72.0], seed);
        network.chooser = Chooser::wide(Role::Dials, seed);
        network.until_settled();
        assert_eq!(network.flows.len(), 1, "seed {seed}");
        (network.rates, network.foreign) = (vec![mbit(9.0); 8], vec![0.0; 8]);
        network.classes = BTreeMap::from([(PAIR, 0..8)]);
        network.run(15);
        let rate = network.rate(5);
        assert!(rate > 45.0, "seed {seed}: {rate}, {:?}", network.events);
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
        // The fibre is cut: the sender has ended its flows, and no dial is answered there for 5 s.
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

/// Two lines, of which the first is cut for five seconds while a flow rests on it and the chooser is at
/// this; then three more seconds. `None`: it never came to that.
fn cut_where_a_flow_rests(seed: u64, at: State) -> Option<Network> {
    let (fibre, dsl) = (PairId(0), PairId(1));
    let mut network = Network::new(&[48.0, 9.5], seed);
    network.classes = BTreeMap::from([(fibre, 0..1), (dsl, 1..2)]);
    network.flows.values_mut().next().unwrap().class = 0;
    network.round_trips.insert(dsl, Duration::from_millis(80));
    network.noise = 0.25;
    let rests = |network: &Network| {
        let of_fibre = |s: &Strand| s.pair == fibre && s.paused;
        network.chooser.state() == at && network.flows.values().any(of_fibre)
    };
    for _ in 0..300 {
        if rests(&network) {
            break;
        }
        network.tick();
    }
    if !rests(&network) {
        return None;
    }
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
    Some(network)
}

/// What rests on a line that is cut is open for minutes: nothing is sent over it.
#[test]
fn a_line_on_which_flows_rest_is_dialled_again_when_it_returns() {
    for seed in 0..15 {
        let network = cut_where_a_flow_rests(seed, State::Settled);
        let mut network = network.unwrap_or_else(|| panic!("seed {seed}: nothing rested"));
        let rate = network.rate(2);
        assert!(rate > 0.85 * 57.5, "seed {seed}: {rate} after its return, {:?}", network.events);
    }
}

/// What a trial has paused is all that the line has then: it waited for the trial's end, ten seconds.
#[test]
fn a_line_that_is_cut_in_a_trial_is_dialled_again_when_it_returns() {
    let mut tried = 0;
    for seed in 0..15 {
        let Some(mut network) = cut_where_a_flow_rests(seed, State::Pruning) else { continue };
        tried += 1;
        let rate = network.rate(2);
        assert!(rate > 0.85 * 57.5, "seed {seed}: {rate} after its return, {:?}", network.events);
    }
    assert!(tried >= 8, "{tried}");
}

/// On a busy machine no handshake on the second line was answered in time; the search ended without it,
/// and when the first line was cut nothing was dialled until it was back.
#[test]
fn a_line_that_did_not_answer_in_the_search_comes_to_have_a_flow() {
    let (fibre, dsl) = (PairId(0), PairId(1));
    for seed in 0..15 {
        let mut network = Network::new(&[48.0, 9.5], seed);
        network.classes = BTreeMap::from([(fibre, 0..1), (dsl, 1..2)]);
        network.flows.values_mut().next().unwrap().class = 0;
        let has_flow = |network: &Network| {
            network.flows.values().any(|s| s.pair == dsl && s.opens <= network.now && !s.paused)
        };
        for _ in 0..100 {
            network.tick();
            network.flows.values_mut().filter(|s| s.pair == dsl).for_each(|s| {
                s.opens = Time::from_micros(u64::MAX);
            });
        }
        assert_eq!(network.chooser.state(), State::Settled, "seed {seed}: {:?}", network.events);
        assert!(!has_flow(&network));
        // It answers from now on. The search looks again after half a minute.
        network.run(8);
        assert!(has_flow(&network), "seed {seed}: {:?}", network.events);
        network.run(15);
        let rate = network.rate(5);
        assert!(rate > 0.9 * 57.5, "seed {seed}: {rate}");
    }
}

/// A host with two lines and a peer with two addresses: two pairs of addresses share the slow line, each
/// keeps a flow there, and the second of these is no limit to search for others beside.
#[test]
fn a_flow_that_is_kept_for_its_addresses_is_no_limit_of_its_own() {
    let pairs = [PairId(0), PairId(1), PairId(2)];
    for seed in 0..15 {
        let mut network = Network::new(&[48.0, 9.5], seed);
        network.classes = pairs.into_iter().zip([0..1, 1..2, 1..2]).collect();
        network.flows.values_mut().next().unwrap().class = 0;
        let took = network.until_settled();
        assert!(network.dials <= BATCH_FIRST, "seed {seed}: {} dials", network.dials);
        assert!(took < Duration::from_secs(10), "seed {seed}: {took:?}");
        for pair in pairs {
            let carries = |s: &Strand| s.pair == pair && !s.paused;
            assert!(network.flows.values().any(carries), "seed {seed}: {pair:?} has no flow");
        }
        let rate = network.rate(5);
        assert!(rate > 0.9 * 57.5, "seed {seed}: {rate}");
    }
}

/// What a cut line had not delivered is sent again over the other one. Flows that a search dialled there
/// in these seconds took their share of it: a stall of one second became one of two and a half.
#[test]
fn a_search_waits_while_what_a_cut_line_had_is_sent_again() {
    let (fibre, dsl) = (PairId(0), PairId(1));
    // With eight limits on the second line the search is long.
    let rates = [&[48.0][..], &[9.5; 8]].concat();
    for cut_after in 8..120 {
        let mut network = Network::new(&rates, cut_after);
        network.classes = BTreeMap::from([(fibre, 0..1), (dsl, 1..9)]);
        network.flows.values_mut().next().unwrap().class = 0;
        for _ in 0..cut_after {
            network.tick();
        }
        network.rates[0] = 0.0;
        let cut = network.now;
        // The end of a flow has all sent again that was not acknowledged.
        let shares = |network: &Network| {
            network.closed.iter().filter(|(_, why)| *why == Reason::Shares).count()
        };
        let shared = shares(&network);
        let dead_after = Duration::from_secs(3);
        let mut died = None;
        while died.is_none_or(|at| network.now.since(at) < Duration::from_secs(4)) {
            network.tick();
            // No dial is answered there.
            network.flows.values_mut().filter(|s| s.pair == fibre && s.began > cut).for_each(|s| {
                s.opens = Time::from_micros(u64::MAX);
            });
            if died.is_none() && network.closed.iter().any(|(_, why)| *why == Reason::Dead) {
                died = Some(network.now);
            }
            let gone = network.now.since(cut);
            assert!(died.is_some() || gone < dead_after, "{cut_after}: {:?}", network.events);
            let first = cut.after(Duration::from_millis(600));
            let late = |s: &&Strand| s.pair == dsl && s.began > first;
            let late = network.flows.values().filter(late).count();
            assert_eq!(late, 0, "cut at {cut_after}, {gone:?} later: {:?}", network.events);
            assert_eq!(shares(&network), shared, "cut at {cut_after}, {gone:?} later");
        }
    }
}

/// Nothing moves, and there is a line that has no flow: what the search has found does not count.
#[test]
fn where_nothing_moves_every_line_without_a_flow_is_dialled() {
    let (fibre, dsl) = (PairId(0), PairId(1));
    for seed in 0..15 {
        let mut network = Network::new(&[48.0, 9.5], seed);
        network.classes = BTreeMap::from([(fibre, 0..1), (dsl, 1..2)]);
        network.flows.values_mut().next().unwrap().class = 0;
        for _ in 0..250 {
            network.tick();
            network.flows.values_mut().filter(|s| s.pair == dsl).for_each(|s| {
                s.opens = Time::from_micros(u64::MAX);
            });
        }
        // The first line is cut: what is open there carries nothing more.
        network.rates[0] = 0.0;
        let cut = network.now;
        network.flows.retain(|_, s| s.pair == fibre);
        let carries = |s: &Strand| s.pair == dsl && s.rate > 0.0;
        while !network.flows.values().any(carries) {
            network.tick();
            let stalled = network.now.since(cut);
            assert!(stalled < Duration::from_secs(2), "seed {seed}: {:?}", network.events);
        }
    }
}

/// Handshakes on the second line are not answered; the first carries for `seconds`.
fn beside_a_dead_line(network: &mut Network, seconds: u64) {
    for _ in 0..seconds * 10 {
        network.tick();
        network.flows.values_mut().filter(|s| s.pair == PairId(1)).for_each(|s| {
            s.opens = Time::from_micros(u64::MAX);
        });
    }
}

/// A connection that was idle dialled a line that does not answer each second, for days.
#[test]
fn an_idle_connection_dials_a_line_that_does_not_answer_ever_less() {
    for seed in 0..15 {
        let mut network = Network::new(&[48.0, 9.5], seed);
        network.classes = BTreeMap::from([(PairId(0), 0..1), (PairId(1), 1..2)]);
        network.flows.values_mut().next().unwrap().class = 0;
        beside_a_dead_line(&mut network, 25);
        // The program pauses.
        network.offered = 0.0;
        let before = network.dials;
        beside_a_dead_line(&mut network, 300);
        let dials = network.dials - before;
        assert!((1..=14).contains(&dials), "seed {seed}: {dials} dials in five minutes");
    }
}

/// A pair of addresses that had a flow and has none any more (the peer has lost that address) ended
/// all further searches among those that are left.
#[test]
fn a_line_that_stays_away_does_not_end_all_searches() {
    for seed in 0..10 {
        let mut network = Network::new(&[9.4, 9.4, 9.4, 9.4, 9.5], seed);
        network.classes = BTreeMap::from([(PairId(0), 0..4), (PairId(1), 4..5)]);
        network.flows.values_mut().next().unwrap().class = 0;
        network.until_settled();
        network.flows.retain(|_, strand| strand.pair == PairId(0));
        let before = network.events.len();
        beside_a_dead_line(&mut network, 115);
        let mut after = network.events[before..].iter();
        assert!(after.all(|event| event.to != State::Dialling), "seed {seed}: it may come back");
        let before = network.events.len();
        beside_a_dead_line(&mut network, 60);
        let mut after = network.events[before..].iter();
        assert!(
            after.any(|event| event.to == State::Dialling),
            "seed {seed}: {:?}",
            network.events
        );
    }
}

/// The kernel has sent again over the first line and got no answer, the second carries: all flows of the
/// first are ended at once, and not before.
#[test]
fn a_line_that_is_cut_is_given_up_whole() {
    for (timeouts, ends_at) in [(1, 4..7), (0, 10..13)] {
        let mut chooser = Chooser::new(Role::Accepts, 1);
        let mut ended = Vec::new();
        for tick in 1..30u64 {
            let now = Time::ZERO.after(TICK * tick as u32);
            let flow = |id, pair, bytes, timeouts| Flow {
                id: FlowId(id),
                pair: PairId(pair),
                open: true,
                bytes,
                acked: bytes,
                unacked: true,
                timeouts,
                held: 0,
                backup: false,
                rtt: Duration::from_millis(20),
            };
            // One of the first line's flows has not timed out yet.
            let flows =
                [flow(1, 0, 1_000, timeouts), flow(2, 0, 1_000, 0), flow(3, 1, 1_000 * tick, 0)];
            let pairs = [PairId(0), PairId(1)];
            let look = Look { now, flows: &flows, pairs: &pairs, unacked: waits(tick) };
            ended.extend(chooser.look(&look).into_iter().map(|action| (tick, action)));
        }
        let dead = |id| Action::Close(FlowId(id), Reason::Dead);
        let actions: Vec<Action> = ended.iter().map(|(_, action)| *action).collect();
        assert_eq!(actions, [dead(1), dead(2)], "{timeouts} timeouts: {ended:?}");
        assert!(ended.iter().all(|(tick, _)| ends_at.contains(tick)), "{ended:?}");
    }
}

#[test]
fn a_sender_ends_a_dead_flow_over_a_living_one_and_never_the_last() {
    let flow = |id, bytes, unacked| Flow {
        id: FlowId(id),
        pair: PAIR,
        open: true,
        bytes,
        acked: bytes,
        unacked,
        timeouts: 0,
        held: 0,
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
            acked: 5_000,
            unacked,
            timeouts: 0,
            held: 0,
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

/// A connection over flows that have carried 5 kB each, the first of them resting.
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
            acked: 5_000,
            unacked: *id == 7 && resent > 0 && tick % 3 == 0,
            timeouts: 0,
            held: 0,
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

/// Eight flows of 9.4 Mbit/s that hold 400 KB each, of which the first delivers what it held within
/// `drains` ticks, and a ninth that rests.
fn waiting(ticks: u64, drains: u64, from: impl Fn(u64) -> u64) -> Vec<(u64, Action)> {
    both_ways(ticks, drains, from, false)
}

/// The same; or all that they carry comes from the peer.
fn both_ways(
    ticks: u64,
    drains: u64,
    from: impl Fn(u64) -> u64,
    from_peer: bool,
) -> Vec<(u64, Action)> {
    let mut chooser = Chooser::new(Role::Accepts, 1);
    let mut ended = Vec::new();
    for tick in 0..ticks {
        let flow = |id: u64| {
            let slow = id == 0 && tick < drains;
            let bytes = if slow { 1_000_000 + tick } else { 1_000_000 + tick * 117_500 };
            let (bytes, held) = if id == 8 { (5_000, 0) } else { (bytes, 400_000) };
            let rtt = Duration::from_millis(20);
            let (unacked, backup) = (held > 0, id == 8);
            let acked = if from_peer { 1_000_000 } else { bytes };
            let (id, pair, open) = (FlowId(id), PAIR, true);
            Flow { id, pair, open, bytes, acked, unacked, timeouts: 0, held, backup, rtt }
        };
        let flows: Vec<Flow> = (0..9).map(flow).collect();
        let unacked = Some(Unacked { from: from(tick), bytes: 4 << 20, resent: 0 });
        let now = Time::ZERO.after(TICK * (tick + 1) as u32);
        let look = Look { now, flows: &flows, pairs: &[], unacked };
        ended.extend(chooser.look(&look).into_iter().map(|action| (tick, action)));
        if !ended.is_empty() {
            break;
        }
    }
    ended
}

/// As between real kernels: it took two seconds until the window was full, and another until it crawled.
#[test]
fn bytes_that_no_flow_has_are_sent_again_before_the_window_is_full() {
    let ended = waiting(40, 0, |_| 7);
    assert_eq!(ended, [(4, Action::Close(FlowId(8), Reason::Crawls))]);
    // Pieces that the kernel sends again after timeouts are no progress.
    let ended = waiting(40, 0, |tick| tick / 3 * 8_192);
    assert!(matches!(ended[..], [(4, _)]), "{ended:?}");
    // The first flow may hold what is missing, as long as it has not delivered what it held.
    let ended = waiting(40, 8, |_| 7);
    assert!(matches!(ended[..], [(8, _)]), "{ended:?}");
    // What the peer sends meanwhile is no sign of what it has taken.
    assert_eq!(both_ways(100, 0, |_| 7, true), []);
    // What goes on is left alone.
    assert_eq!(waiting(100, 0, |tick| tick * 8 * 117_500), []);
    assert_eq!(waiting(100, 0, |tick| tick / 4 * 4 * 8 * 117_500), []);
}
