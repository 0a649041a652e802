//! The chooser over simulated paths. Every failure names its seed.

use std::time::Duration;

use hawser_time::Time;

use super::algorithm::Algorithm;
use super::chooser::{Chooser, DESTINATIONS_MAX, FLOWS_MAX};
use super::event::Decision;
use super::path::{LONG_FAT, Path, Room, World};
use super::sample::FlowId;

const FAR: &str = "203.0.113.9";
const SEEDS: std::ops::Range<u64> = 0..20;

fn algorithm(name: &str) -> Algorithm {
    Algorithm::new(name).unwrap()
}

fn auto() -> Chooser {
    Chooser::new(algorithm("cubic"), vec![algorithm("bbr")])
}

/// `auto` where there is nothing to choose: what the default does.
fn none() -> Chooser {
    Chooser::new(algorithm("cubic"), Vec::new())
}

fn open(world: &mut World, flows: std::ops::Range<u32>) {
    for _ in flows {
        world.open(FAR);
    }
}

fn is_bbr(world: &World, at: usize) -> bool {
    world.senders[at].algorithm == algorithm("bbr")
}

#[test]
fn the_model_of_cubic_is_as_slow_as_cubic_is() {
    let mut total = 0.0;
    for seed in SEEDS {
        let mut world = World::new(seed, LONG_FAT, none());
        world.open(FAR);
        world.run(20);
        total += world.run(60)[0];
    }
    let mean = total / SEEDS.end as f64;
    assert!((5.0..11.0).contains(&mean), "{mean} Mbit/s, 7.7 were measured, 7.1 are the formula's");
}

#[test]
fn on_the_long_fat_path_one_flow_comes_to_bbr() {
    let mut late = 0;
    for seed in SEEDS {
        let mut world = World::new(seed, LONG_FAT, auto());
        let flow = world.open(FAR);
        world.run(10);
        late += u32::from(!is_bbr(&world, flow));
        world.run(30);
        assert_eq!(world.decisions(), ["try", "keep"], "seed {seed}: {:?}", world.events);
        assert!(is_bbr(&world, flow), "seed {seed}");
        let rate = world.run(20)[0];
        assert!(rate > 0.97 * 0.9 * LONG_FAT.mbit, "seed {seed}: {rate}");
    }
    // Two losses are needed, and how soon they come is chance.
    assert!(late <= 4, "{late} of 20 needed more than 10 s");
}

#[test]
fn the_more_is_lost_the_sooner_it_is_tried() {
    for loss in [0.003, 0.01, 0.03] {
        for seed in SEEDS {
            let mut world = World::new(seed, Path { loss, ..LONG_FAT }, auto());
            let flow = world.open(FAR);
            world.run(10);
            assert!(is_bbr(&world, flow), "{loss}, seed {seed}: {:?}", world.events);
        }
    }
}

#[test]
fn of_several_flows_half_try_and_then_all_change() {
    for seed in SEEDS {
        let mut world = World::new(seed, LONG_FAT, auto());
        open(&mut world, 0..4);
        while world.events.is_empty() {
            world.run(1);
            assert!(world.now() < Time::ZERO.after(Duration::from_secs(60)), "seed {seed}");
        }
        let Decision::Try { changed, beside, .. } = world.events[0].1.decision else {
            panic!("seed {seed}: {:?}", world.events)
        };
        assert_eq!(changed, (changed + beside).div_ceil(2), "seed {seed}: {beside} beside");
        world.run(30);
        assert_eq!(world.decisions(), ["try", "keep"], "seed {seed}: {:?}", world.events);
        assert!((0..4).all(|flow| is_bbr(&world, flow)), "seed {seed}");
    }
}

#[test]
fn what_was_learnt_is_given_to_the_next_flow_at_once_and_forgotten_in_an_hour() {
    let mut world = World::new(1, LONG_FAT, auto());
    world.open(FAR);
    world.run(40);
    world.close(0);
    let next = world.open("203.0.113.200");
    assert!(is_bbr(&world, next), "the same prefix");
    let other = world.open("203.0.114.9");
    assert!(!is_bbr(&world, other), "another prefix");
    assert_eq!(world.chooser.remembered().count(), 1);
    let hour = world.now().after(Duration::from_secs(3600));
    world.chooser.tick(hour);
    assert_eq!(world.chooser.next_event().unwrap().decision, Decision::Forget);
    assert_eq!(world.chooser.remembered().count(), 0);
}

#[test]
fn without_loss_by_chance_the_default_stays() {
    for seed in SEEDS {
        let mut world = World::new(seed, Path { loss: 0.0, ..LONG_FAT }, auto());
        world.open(FAR);
        world.run(120);
        assert_eq!(world.decisions(), [""; 0], "seed {seed}: {:?}", world.events);
    }
}

#[test]
fn on_a_queue_that_is_shared_the_default_stays() {
    for seed in SEEDS {
        let mut world = World::new(seed, Path { loss: 0.0, ..LONG_FAT }, auto());
        world.open_neighbour();
        world.run(30);
        world.open(FAR);
        world.open(FAR);
        world.run(120);
        assert_eq!(world.decisions(), [""; 0], "seed {seed}: {:?}", world.events);
    }
}

#[test]
fn short_and_local_paths_are_left_alone() {
    for seed in SEEDS {
        let near = Path { rtt_ms: 9, mbit: 900.0, queue_segments: 500.0, loss: 0.001 };
        let mut world = World::new(seed, near, auto());
        world.open(FAR);
        world.run(30);
        assert_eq!(world.decisions(), [""; 0], "seed {seed}: {:?}", world.events);
    }
    let mut world = World::new(1, LONG_FAT, auto());
    let flow = world.open("127.0.0.1");
    assert!(!world.senders[flow].is_sampled);
}

#[test]
fn what_the_program_receiver_or_buffer_limits_is_left_alone() {
    for seed in SEEDS {
        for room in [Room::Receiver, Room::Buffer] {
            let mut world = World::new(seed, LONG_FAT, auto());
            let flow = world.open(FAR);
            // Less than what loss allows: 134 segments.
            world.senders[flow].room = Some((30.0, room));
            world.run(120);
            assert_eq!(world.decisions(), [""; 0], "seed {seed}: {:?}", world.events);
        }
        let mut world = World::new(seed, LONG_FAT, auto());
        let flow = world.open(FAR);
        world.senders[flow].application = 100.0;
        world.run(120);
        assert_eq!(world.decisions(), [""; 0], "seed {seed}: {:?}", world.events);
    }
}

#[test]
fn a_candidate_that_gains_nothing_goes_and_the_next_is_tried() {
    for seed in SEEDS {
        // In the model all that is not BBR is cubic: "illinois" cannot gain.
        let chooser =
            Chooser::new(algorithm("cubic"), vec![algorithm("illinois"), algorithm("bbr")]);
        let mut world = World::new(seed, LONG_FAT, chooser);
        open(&mut world, 0..2);
        world.run(400);
        let decisions = world.decisions();
        let tries = decisions.iter().filter(|decision| **decision == "try").count();
        assert!(tries >= 2, "seed {seed}: {decisions:?}");
        assert_eq!(decisions.last(), Some(&"keep"), "seed {seed}: {decisions:?}");
        assert_eq!(world.events.last().unwrap().1.to, algorithm("bbr"), "seed {seed}");
    }
}

#[test]
fn a_flow_that_ends_in_its_trial_leaves_no_choice() {
    let mut world = World::new(3, LONG_FAT, auto());
    let flow = world.open(FAR);
    while world.events.is_empty() {
        world.run(1);
    }
    world.close(flow);
    assert_eq!(world.decisions(), ["try", "undecided"]);
    let next = world.open(FAR);
    assert!(!is_bbr(&world, next));
}

/// Flows that were open when the choice was forgotten have kept it. They were taken for the default's side of
/// the next trial: one measured bbr against bbr, lost, and took bbr from all of them.
#[test]
fn flows_that_keep_what_was_forgotten_are_in_no_trial_and_keep_it() {
    for seed in 0..3 {
        let mut world = World::new(seed, LONG_FAT, auto());
        open(&mut world, 0..4);
        world.run(60);
        assert_eq!(world.decisions(), ["try", "keep"], "seed {seed}");
        // They pause meanwhile, and leave room for a flow that comes later.
        world.skip(3601);
        assert_eq!(world.decisions(), ["try", "keep", "forget"], "seed {seed}");
        for sender in &mut world.senders {
            sender.application = 1_000.0;
        }
        world.open(FAR);
        world.run(120);
        assert!((0..4).all(|flow| is_bbr(&world, flow)), "seed {seed}: {:?}", world.events);
        for (_, event) in &world.events[3..] {
            if let Decision::Try { changed, beside, .. } = event.decision {
                assert_eq!((changed, beside), (1, 0), "seed {seed}: {event}");
            }
        }
    }
}

#[test]
fn a_refusal_makes_no_destination_skip_a_candidate() {
    let [first, second] = ["illinois", "hybla"].map(algorithm);
    let chooser = Chooser::new(algorithm("cubic"), vec![first, second, algorithm("bbr")]);
    let tried = |world: &World| -> Vec<Algorithm> {
        let tries = world.events.iter().map(|(_, event)| event);
        let tries = tries.filter(|event| event.decision.name() == "try");
        tries.map(|event| event.to).collect()
    };
    let mut lost = 0;
    for seed in SEEDS {
        let mut world = World::new(seed, LONG_FAT, chooser.clone());
        open(&mut world, 0..2);
        world.run(75);
        // In the model all that is not BBR is cubic: the first loses, as a rule.
        if world.decisions() != ["try", "revert"] {
            continue;
        }
        lost += 1;
        // Another destination's flow was refused it.
        let now = world.now();
        world.chooser.refused(first, now);
        world.run(120);
        let tried = tried(&world);
        assert!(tried.len() > 1 && tried[1] == second, "seed {seed}: {:?}", world.events);
    }
    assert!(lost > 0);
}

#[test]
fn an_algorithm_that_the_kernel_refuses_is_taken_back_and_tried_no_more() {
    let mut world = World::new(3, LONG_FAT, auto());
    let flow = world.open(FAR);
    while world.events.is_empty() {
        world.run(1);
    }
    let now = world.now();
    world.chooser.refused(algorithm("bbr"), now);
    world.run(60);
    assert_eq!(world.decisions(), ["try", "refused"]);
    assert!(!is_bbr(&world, flow) && !world.chooser.has_choice());
}

#[test]
fn each_event_says_what_and_why_with_figures() {
    let mut world = World::new(1, LONG_FAT, auto());
    world.open(FAR);
    world.run(40);
    let lines: Vec<String> = world.events.iter().map(|(_, event)| event.to_string()).collect();
    assert!(
        lines[0].starts_with(
            "203.0.113.0/24: bbr is tried on 1 of 1 flows in place of cubic: loss without a queue; "
        ),
        "{lines:?}"
    );
    assert!(lines[0].contains(" cuts of the window at a round trip of 217.0 ms"), "{lines:?}");
    assert!(lines[1].starts_with("203.0.113.0/24: bbr in place of cubic: "), "{lines:?}");
}

#[test]
fn a_run_repeats() {
    let run = || {
        let mut world = World::new(7, LONG_FAT, auto());
        open(&mut world, 0..3);
        let rates = world.run(60);
        (format!("{:?}", world.events), rates)
    };
    assert_eq!(run(), run());
}

#[test]
fn flows_and_destinations_are_bounded_and_idle_ones_make_room() {
    let mut chooser = auto();
    let address =
        |n: u32| core::net::IpAddr::from(core::net::Ipv4Addr::from_bits(n << 8 | 0x0b00_0001));
    for n in 0..DESTINATIONS_MAX as u32 {
        assert!(chooser.open(
            FlowId(n.into()),
            address(n),
            algorithm("cubic"),
            Time::from_micros(n.into())
        ));
    }
    let late = Time::from_micros(1 << 30);
    assert!(
        !chooser.open(FlowId(1 << 40), address(1 << 15), algorithm("cubic"), late),
        "all have flows"
    );
    chooser.close(FlowId(5), late);
    assert!(chooser.open(FlowId(1 << 40), address(1 << 15), algorithm("cubic"), late));
    for n in DESTINATIONS_MAX..FLOWS_MAX {
        assert!(chooser.open(FlowId(n as u64), address(1), algorithm("cubic"), late), "{n}");
    }
    assert!(!chooser.open(FlowId(1 << 41), address(1), algorithm("cubic"), late));
}

/// `hawser cc apply --to` makes routes with an algorithm: connections over them began with it, and `auto`
/// took it for the machine's default.
#[test]
fn a_flow_for_which_a_route_has_chosen_is_left_alone() {
    let mut chooser = auto();
    let peer = FAR.parse().unwrap();
    assert!(!chooser.open(FlowId(1), peer, algorithm("bbr"), Time::ZERO));
    assert!(!chooser.open(FlowId(2), peer, algorithm("reno"), Time::ZERO));
    assert!(chooser.open(FlowId(3), peer, algorithm("cubic"), Time::ZERO));
    assert_eq!(chooser.next_change(), None);
}
