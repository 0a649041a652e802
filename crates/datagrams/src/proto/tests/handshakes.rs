//! Kernels of both generations, byte by byte.

use std::time::Duration;

use hawser_multipath::paths::spread::QUICK_DIALS;

use super::*;
use crate::proto::header::{Announcement, FLAG_AGAIN, PROBE_PORT};
use crate::proto::node::{COMES_DOWN, NotTaken};
use crate::proto::peer::HELD_BRIEFLY;

pub(super) const OLD: &[u8] = &[5, 0, 8];
pub(super) const NEW: &[u8] = &[5, 0, 8, 6, 0, 0, 0, 1, 8, 0];
const NEW_AGAIN: &[u8] = &[5, 0, 8, 6, 0, 0, 0, 2, 8, 0];

/// What is to be dialled, by which source port, and how long its handshake may take.
fn dials_of(node: &mut Node) -> impl Iterator<Item = (Connection, u16, Option<Duration>)> {
    requests(node).into_iter().filter_map(|request| match request {
        Request::Dial { connection, port_remainder, within, .. } => {
            Some((connection, port_remainder, within))
        }
        _ => None,
    })
}

pub(super) fn dials(node: &mut Node) -> Vec<(Connection, u16)> {
    dials_of(node).map(|(connection, port_remainder, _)| (connection, port_remainder)).collect()
}

fn dials_within(node: &mut Node) -> Vec<(Connection, Option<Duration>)> {
    dials_of(node).map(|(connection, _, within)| (connection, within)).collect()
}

#[test]
fn a_map_goes_first_and_then_the_probe() {
    let now = Time::ZERO;
    let (mut node, connection, _) = dialled(now);
    let first = written(&mut node, connection);
    assert_eq!(first.len(), 1, "messages wait until the peer has said something");
    assert!(first[0].0.is_map() && first[0].1.len() == 8192);
    node.received(connection, &kernel_map(), now);
    let next = written(&mut node, connection);
    let probe = next.iter().find(|(header, _)| header.from == PROBE_PORT).unwrap();
    let said = Announcement::read(&probe.0.extensions);
    assert_eq!((said.lanes, said.generation, said.port_is_lane), (Some(8), 7, true));
}

/// What Linux 6.12 has said first, in one of the two roles; see the file.
fn captured(role: &str) -> Vec<Vec<u8>> {
    let lines = include_str!("linux_6_12.txt").lines();
    let lines = lines.filter_map(|line| line.strip_prefix(role)?.strip_prefix(' '));
    let byte = |at: usize, line: &str| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
    let message = |line: &str| {
        let mut bytes: Vec<u8> = (0..line.len()).step_by(2).map(|at| byte(at, line)).collect();
        let header = Header::parse(bytes.first_chunk().unwrap());
        bytes.resize(HEADER_BYTES + header.length as usize, 0);
        bytes
    };
    lines.map(message).collect()
}

#[test]
fn what_linux_6_12_says_when_it_is_dialled_is_understood_and_said_alike() {
    let now = Time::ZERO;
    let (mut node, connection, _) = dialled(now);
    let [map, probe, answer] = &captured("accepts")[..] else { panic!() };
    node.received(connection, &[&map[..], probe, answer].concat(), now);
    let sent = written(&mut node, connection);
    let probe_here = sent.iter().find(|(header, _)| header.from == PROBE_PORT).unwrap();
    let answer_here = sent.iter().find(|(header, _)| header.to == PROBE_PORT).unwrap();
    for ((here, body), captured) in [(probe_here, probe), (answer_here, answer)] {
        // But for its number, and that this end says a generation and what its ports mean.
        let mut like = *here;
        like.sequence = Header::parse(captured.first_chunk().unwrap()).sequence;
        let said = Announcement {
            generation: 0,
            port_is_lane: false,
            ..Announcement::read(&here.extensions)
        };
        like.extensions = said.write();
        assert_eq!((&like.encode()[..], body.len()), (&captured[..], 0));
    }
    assert_eq!(node.report().peers[0].paths, 8);
    assert_eq!(dials(&mut node).len(), 1, "lanes one after the other");
}

#[test]
fn what_linux_6_12_says_when_it_dials_is_understood() {
    let now = Time::ZERO;
    let mut node = node(LARGE);
    let port = node.bind(5000).unwrap();
    let connection = node.accept(address(SMALL), 40_000, now).unwrap();
    let captured = captured("dials");
    assert_eq!(captured.len(), 4, "a map, a probe, a message to port 5000, an answer");
    node.received(connection, &captured.concat(), now);
    let datagram = node.receive(port).unwrap();
    assert_eq!((datagram.from, datagram.port, datagram.body), (address(SMALL), 4001, Vec::new()));
    let peer = &node.report().peers[0];
    assert_eq!((peer.paths, peer.port_is_lane, peer.generation), (8, false, 0));
    let map = written(&mut node, connection).remove(0);
    // A kernel reads a map by these fields; the extensions of one it does not look at.
    // (Nor at its number.)
    let like = Header { extensions: [0; 16], sequence: 0, ..map.0 };
    assert_eq!((&like.encode()[..], map.1), (&captured[0][..HEADER_BYTES], vec![0; 8192]));
}

#[test]
fn lanes_of_an_old_kernel_are_dialled_one_after_the_other() {
    let now = Time::ZERO;
    let (mut node, connection, _) = dialled(now);
    node.received(connection, &kernel_map(), now);
    written(&mut node, connection);
    assert!(dials(&mut node).is_empty(), "no lane before the handshake");
    node.received(connection, &probe(1, 0, PROBE_PORT, OLD), now);
    for lane in 1..8 {
        let dialled = dials(&mut node);
        assert_eq!(dialled.len(), 1, "lane {lane}");
        node.connected(dialled[0].0, now);
    }
    assert!(dials(&mut node).is_empty());
}

#[test]
fn lanes_of_a_later_kernel_are_dialled_at_once_from_ports_that_name_them() {
    let now = Time::ZERO;
    let (mut node, connection, _) = dialled(now);
    node.received(connection, &kernel_map(), now);
    node.received(connection, &probe(1, 0, PROBE_PORT, NEW), now);
    let remainders: Vec<u16> = dials(&mut node).into_iter().map(|(_, port)| port).collect();
    assert_eq!(remainders, [1, 2, 3, 4, 5, 6, 7]);
}

/// A node that has dialled all lanes of an old kernel.
pub(super) fn with_an_old_kernel(now: Time) -> (Node, Vec<Connection>, u16) {
    let (mut node, first, port) = dialled(now);
    node.received(first, &kernel_map(), now);
    node.received(first, &probe(1, 0, PROBE_PORT, OLD), now);
    let mut lanes = vec![first];
    for _ in 1..8 {
        let next = dials(&mut node)[0].0;
        node.connected(next, now);
        lanes.push(next);
    }
    (node, lanes, port)
}

#[test]
fn lanes_of_an_old_kernel_that_break_are_dialled_again_in_order_and_no_others() {
    let mut now = Time::ZERO;
    let (mut node, lanes, _) = with_an_old_kernel(now);
    requests(&mut node);
    for broken in [5, 0, 3] {
        node.closed(lanes[broken], now);
    }
    now = now.after(COMES_DOWN - Duration::from_micros(1));
    node.tick(now);
    assert!(dials(&mut node).is_empty(), "the kernel's may not be down yet");
    now = now.after(COMES_DOWN);
    for lane in [0, 3, 5] {
        node.tick(now);
        let dialled = dials(&mut node);
        assert_eq!(dialled.iter().map(|(_, port)| *port).collect::<Vec<_>>(), [lane]);
        node.connected(dialled[0].0, now);
    }
    assert!(
        !requests(&mut node).iter().any(|r| matches!(r, Request::Drain(_) | Request::Dial { .. }))
    );
}

#[test]
fn nothing_goes_by_a_lane_that_an_old_kernel_may_reset_at_once() {
    let now = Time::ZERO;
    let (mut node, lanes, _) = with_an_old_kernel(now);
    for _ in 0..40 {
        let port = node.bind(0).unwrap();
        node.send(port, (address(LARGE), 9), b"x", now).unwrap();
    }
    // By lane 2 the kernel has said something; by lane 3 nothing yet.
    node.received(lanes[2], &message(1, 4, 5, 0, b""), now);
    assert!(written(&mut node, lanes[2]).len() > 1);
    assert_eq!(written(&mut node, lanes[3]).len(), 1, "its map");
    node.tick(now.after(HELD_BRIEFLY));
    assert!(written(&mut node, lanes[3]).len() > 1);
}

/// In an emulator on a busy machine it took such a kernel longer than 100 ms to take a connection, or to
/// reset it: what TCP had acknowledged meanwhile was lost, each time.
#[test]
fn nothing_goes_by_a_lane_for_longer_where_an_old_kernel_has_been_slow() {
    let now = Time::ZERO;
    let (mut node, lanes, _) = with_an_old_kernel(now);
    for _ in 0..40 {
        let port = node.bind(0).unwrap();
        node.send(port, (address(LARGE), 9), b"x", now).unwrap();
    }
    // Nothing was known of it: what goes after 100 ms is reset after 300.
    node.tick(now.after(HELD_BRIEFLY));
    let mut now = at_ms(300);
    node.closed(lanes[7], now);
    for _ in 0..3 {
        now = now.after(Duration::from_secs(1));
        node.tick(now);
        let again = dials(&mut node)[0].0;
        node.connected(again, now);
        node.tick(now.after(Duration::from_millis(400)));
        let sent = written(&mut node, again);
        assert!(sent.iter().all(|(header, _)| header.is_map()), "{} messages", sent.len());
        now = now.after(Duration::from_millis(450));
        node.closed(again, now);
    }
    // It says something at once from now on: after some of that, it is as before.
    for _ in 0..30 {
        now = now.after(Duration::from_secs(2));
        node.tick(now);
        let again = dials(&mut node)[0].0;
        node.connected(again, now);
        node.received(again, &kernel_map(), now);
        node.closed(again, now);
    }
    now = now.after(Duration::from_secs(2));
    node.tick(now);
    let again = dials(&mut node)[0].0;
    node.connected(again, now);
    node.tick(now.after(HELD_BRIEFLY));
    assert!(written(&mut node, again).len() > 1);
}

#[test]
fn a_lane_that_an_old_kernel_resets_at_once_is_dialled_ever_later() {
    let mut now = Time::ZERO;
    let (mut node, lanes, _) = with_an_old_kernel(now);
    requests(&mut node);
    let (mut last, mut longest) = (lanes[7], 0);
    for _ in 0..60 {
        node.closed(last, now);
        let mut waited = 0;
        last = loop {
            now = now.after(Duration::from_millis(10));
            waited += 10;
            node.tick(now);
            if let Some((dialled, 7)) = dials(&mut node).first() {
                break *dialled;
            }
        };
        node.connected(last, now);
        longest = waited.max(longest);
    }
    assert!(longest > 500, "at most {longest} ms");
}

#[test]
fn a_port_that_sent_before_a_kernel_knew_of_lanes_names_none() {
    let now = Time::ZERO;
    let mut large = node(LARGE);
    let port = large.bind(9).unwrap();
    let first = large.accept(address(SMALL), 50_001, now).unwrap();
    // Its lane is the fourth, but it was sent before the answer to the probe here: by the first.
    let begin = message(2, 4001, 9, 0, b"begin");
    large.received(first, &[kernel_map(), probe(1, PROBE_PORT, 0, OLD), begin].concat(), now);
    large.received(first, &probe(3, 0, PROBE_PORT, OLD), now);
    large.received(first, &message(4, 4002, 9, 0, b"4002"), now);
    large.closed(first, now);
    let next = large.accept(address(SMALL), 50_002, now).unwrap();
    large.received(next, &message(1, 4001, 9, FLAG_AGAIN, b"next"), now);
    let got: Vec<Vec<u8>> = std::iter::from_fn(|| large.receive(port)).map(|d| d.body).collect();
    assert_eq!(got, [&b"begin"[..], b"4002", b"next"]);
}

#[test]
fn a_lane_of_an_old_kernel_that_comes_up_after_one_before_it_broke_is_dialled_again_in_order() {
    let mut now = Time::ZERO;
    let (mut node, first, _) = dialled(now);
    node.received(first, &kernel_map(), now);
    node.received(first, &probe(1, 0, PROBE_PORT, OLD), now);
    let second = dials(&mut node)[0].0;
    node.closed(first, now);
    node.connected(second, now);
    assert!(requests(&mut node).contains(&Request::Drain(second)));
    node.closed(second, now);
    now = now.after(COMES_DOWN);
    node.tick(now);
    let dialled = dials(&mut node);
    assert_eq!(dialled.iter().map(|(_, port)| *port).collect::<Vec<_>>(), [0]);
}

#[test]
fn a_kernel_without_lanes_gets_one() {
    let now = Time::ZERO;
    let (mut node, connection, _) = dialled(now);
    node.received(connection, &kernel_map(), now);
    node.received(connection, &probe(1, 0, PROBE_PORT, &[]), now);
    assert!(dials(&mut node).is_empty());
    assert_eq!(node.report().peers[0].paths, 1);
    // What waited on other lanes goes by the only one.
    for _ in 0..20 {
        let port = node.bind(0).unwrap();
        node.send(port, (address(LARGE), 9), b"x", now).unwrap();
    }
    assert_eq!(written(&mut node, connection).len(), 1 + 1 + 1 + 20, "map, probe, first, others");
}

#[test]
fn what_waits_before_the_handshake_is_moved_and_renumbered() {
    let now = Time::ZERO;
    let mut node = node(SMALL);
    let ports: Vec<u16> = (0..40).map(|_| node.bind(0).unwrap()).collect();
    for port in &ports {
        for part in [b"one", b"two"] {
            node.send(*port, (address(LARGE), 9), part, now).unwrap();
        }
    }
    let connection = dials(&mut node)[0].0;
    node.connected(connection, now);
    node.received(connection, &kernel_map(), now);
    node.received(connection, &probe(1, 0, PROBE_PORT, &[5, 0, 1]), now);
    let sent = written(&mut node, connection);
    let numbers: Vec<u64> =
        sent.iter().filter(|(header, _)| !header.is_map()).map(|(h, _)| h.sequence).collect();
    assert_eq!(numbers, (1..=81).collect::<Vec<u64>>());
    for port in ports {
        let of_port: Vec<&[u8]> = sent
            .iter()
            .filter(|(header, _)| header.from == port)
            .map(|(_, body)| &body[..])
            .collect();
        assert_eq!(of_port, [b"one", b"two"]);
    }
}

#[test]
fn a_larger_address_knocks_and_is_dialled_back() {
    let now = Time::ZERO;
    let mut large = node(LARGE);
    let port = large.bind(0).unwrap();
    large.send(port, (address(SMALL), 9), b"hello", now).unwrap();
    let knock = dials(&mut large)[0].0;
    let mut small = node(SMALL);
    assert_eq!(small.accept(address(LARGE), 40_000, now), Err(NotTaken::Refuse));
    assert_eq!(dials(&mut small).len(), 1, "it dials back");
    large.connected(knock, now);
    assert!(requests(&mut large).contains(&Request::Close(knock)), "nothing is sent on a knock");
    let accepted = large.accept(address(SMALL), 40_000, now).unwrap();
    large.received(accepted, &kernel_map(), now);
    let sent = written(&mut large, accepted);
    // Probe and message; the port may belong to another lane, which waits for the handshake.
    assert!(sent.iter().any(|(header, _)| header.from == PROBE_PORT));
}

#[test]
fn both_dial_at_once_and_one_connection_is_left() {
    let now = Time::ZERO;
    let (mut small, mut large) = (node(SMALL), node(LARGE));
    for (node, to) in [(&mut small, LARGE), (&mut large, SMALL)] {
        let port = node.bind(0).unwrap();
        node.send(port, (address(to), 9), b"hello", now).unwrap();
    }
    let (dial, knock) = (dials(&mut small)[0].0, dials(&mut large)[0].0);
    assert_eq!(small.accept(address(LARGE), 40_000, now), Err(NotTaken::Refuse));
    assert!(dials(&mut small).is_empty(), "it dials already");
    let accepted = large.accept(address(SMALL), 40_000, now).unwrap();
    assert!(requests(&mut large).contains(&Request::Close(knock)));
    large.failed(knock, "refused", now);
    small.connected(dial, now);
    assert!(written(&mut small, dial)[0].0.is_map());
    assert!(written(&mut large, accepted)[0].0.is_map());
}

#[test]
fn an_acceptor_takes_lanes_of_a_later_kernel_by_their_ports() {
    let now = Time::ZERO;
    let mut large = node(LARGE);
    let first = large.accept(address(SMALL), 40_000, now).unwrap();
    large.received(first, &kernel_map(), now);
    assert_eq!(large.accept(address(SMALL), 40_003, now), Err(NotTaken::Wait));
    large.received(first, &probe(1, PROBE_PORT, 0, NEW), now);
    assert!(requests(&mut large).contains(&Request::Vacant(address(SMALL))));
    let third = large.accept(address(SMALL), 40_003, now).unwrap();
    large.received(third, &message(1, 4000, 4001, 0, b"x"), now);
    let report = large.report();
    assert_eq!(report.peers[0].lanes[3].expected, 2);
    // Dialled again before this end knows that it has broken: the old one is read to its end.
    assert_eq!(large.accept(address(SMALL), 40_011, now), Err(NotTaken::Wait));
    assert!(requests(&mut large).contains(&Request::Drain(third)));
    large.closed(third, now);
    assert!(large.accept(address(SMALL), 40_011, now).is_ok());
}

#[test]
fn an_acceptor_takes_lanes_of_an_old_kernel_in_order() {
    let now = Time::ZERO;
    let mut large = node(LARGE);
    let first = large.accept(address(SMALL), 50_001, now).unwrap();
    large.received(first, &kernel_map(), now);
    large.received(first, &probe(1, PROBE_PORT, 0, OLD), now);
    for at in 1..8 {
        let next = large.accept(address(SMALL), 50_001 + at * 5, now).unwrap();
        large.received(next, &message(u64::from(at) * 10, 4000, 4001, 0, b"x"), now);
    }
    assert_eq!(large.accept(address(SMALL), 50_099, now), Err(NotTaken::Wait));
    let expected: Vec<u64> = large.report().peers[0].lanes.iter().map(|l| l.expected).collect();
    assert_eq!(expected, [2, 11, 21, 31, 41, 51, 61, 71]);
}

#[test]
fn a_kernel_that_remembers_more_lanes_than_there_are_breaks_none() {
    let now = Time::ZERO;
    let mut config = Config::new(address(LARGE), 7, 1);
    config.lanes = 1;
    let mut large = Node::new(config);
    let first = large.accept(address(SMALL), 50_001, now).unwrap();
    large.received(first, &kernel_map(), now);
    large.received(first, &probe(1, PROBE_PORT, 0, OLD), now);
    requests(&mut large);
    for port in 50_002..50_009 {
        assert_eq!(large.accept(address(SMALL), port, now), Err(NotTaken::Wait));
    }
    assert!(!requests(&mut large).contains(&Request::Drain(first)));
    assert_eq!(large.report().peers[0].lanes[0].state, "up");
}

#[test]
fn a_lane_that_comes_before_its_peer_is_known_finds_its_place() {
    let now = Time::ZERO;
    let (mut small, mut large) = (node(SMALL), node(LARGE));
    let port = small.bind(0).unwrap();
    small.send(port, (address(LARGE), 9), b"x", now).unwrap();
    let dial = dials(&mut small)[0].0;
    small.connected(dial, now);
    let announced = written(&mut small, dial).remove(0);
    let bytes = [&announced.0.encode()[..], &announced.1].concat();
    // Of a Hawser, which says in its first message that 40,005 is lane 5.
    let accepted = large.accept(address(SMALL), 40_005, now).unwrap();
    large.received(accepted, &[bytes, message(3, 4, 5, 0, b"")].concat(), now);
    let lanes = &large.report().peers[0].lanes;
    assert_eq!((lanes[0].state, lanes[5].state, lanes[5].expected), ("down", "up", 4));
}

#[test]
fn a_restarted_kernel_gets_nothing_twice() {
    let mut now = Time::ZERO;
    let (mut node, connection, _) = dialled(now);
    node.received(connection, &kernel_map(), now);
    node.received(connection, &probe(1, 0, PROBE_PORT, NEW), now);
    written(&mut node, connection);
    node.received(connection, &message(9, 3, 4, 0, b""), now);
    node.closed(connection, now);
    now = now.after(Duration::from_millis(2));
    node.tick(now);
    let again = dials(&mut node).into_iter().find(|(_, port)| *port == 0).unwrap().0;
    node.connected(again, now);
    node.received(again, &probe(1, PROBE_PORT, 0, NEW_AGAIN), now);
    // A number below the last start's, flagged: it is this start's own.
    node.received(again, &message(2, 3, 4, FLAG_AGAIN, b""), now);
    let lane = &node.report().peers[0].lanes[0];
    assert_eq!((lane.counts.duplicates, lane.expected), (0, 3));
}

#[test]
fn pings_are_answered_and_from_port_0_not() {
    let now = Time::ZERO;
    let mut large = node(LARGE);
    let connection = large.accept(address(SMALL), 40_000, now).unwrap();
    large.received(connection, &kernel_map(), now);
    written(&mut large, connection);
    large.received(connection, &message(5, 777, 0, 0, b""), now);
    large.received(connection, &message(6, 0, 0, 0, b""), now);
    let sent = written(&mut large, connection);
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].0.from, sent[0].0.to, sent[0].0.length), (0, 777, 0));
}

#[test]
fn after_a_failure_it_is_dialled_at_once_and_then_ever_later() {
    let mut now = Time::ZERO;
    let mut node = node(SMALL);
    let port = node.bind(0).unwrap();
    node.send(port, (address(LARGE), 9), b"x", now).unwrap();
    let mut longest = 0;
    for round in 0..40 {
        let dialled = dials(&mut node);
        assert_eq!(dialled.len(), 1, "round {round}");
        node.failed(dialled[0].0, "refused", now);
        let wait = node.until_tick(now).unwrap();
        if round == 0 {
            assert!(wait.is_zero());
        }
        let most = 1u64 << (round as u32).saturating_sub(1).min(10);
        assert!(wait.as_millis() as u64 <= most.min(1000), "round {round}: {wait:?}");
        longest = longest.max(wait.as_millis());
        now = now.after(wait);
        node.tick(now);
    }
    assert!(longest > 300, "it does back off: {longest} ms");
}

#[test]
fn a_lane_that_is_dialled_again_looks_for_a_way_with_an_empty_queue() {
    let now = Time::ZERO;
    let (mut node, first, _) = dialled(now);
    node.received(first, &kernel_map(), now);
    node.received(first, &probe(1, 0, PROBE_PORT, NEW), now);
    let lanes = dials_within(&mut node);
    assert_eq!(lanes.len(), 7);
    assert!(lanes.iter().all(|(_, within)| within.is_none()), "nothing to compare with: {lanes:?}");
    lanes.iter().for_each(|(lane, _)| node.connected(*lane, now));
    written(&mut node, first);
    let rtt = Duration::from_millis(20);
    node.acknowledged(first, Progress { acknowledged: 100, rtt, ..Progress::default() }, now);
    requests(&mut node);
    node.closed(lanes[2].0, now);
    node.tick(now);
    let mut dials = dials_within(&mut node);
    for number in 0..QUICK_DIALS {
        assert_eq!(dials.len(), 1);
        assert_eq!(dials[0].1, Some(Duration::from_millis(35)), "dial {number}");
        node.slow(dials[0].0, now);
        let asked = requests(&mut node);
        assert!(asked.contains(&Request::Close(dials[0].0)), "{asked:?}");
        dials = asked
            .into_iter()
            .filter_map(|request| match request {
                Request::Dial { connection, within, port_remainder: 3, .. } => {
                    Some((connection, within))
                }
                _ => None,
            })
            .collect();
    }
    assert_eq!(dials[0].1, None, "the last one may take its time");
    node.connected(dials[0].0, now);
    assert!(node.report().peers[0].lanes.iter().all(|lane| lane.state == "up"));
    // One that is given up already changes nothing.
    node.slow(lanes[2].0, now);
    assert!(node.report().peers[0].lanes.iter().all(|lane| lane.state == "up"));
    // Where all lanes are down there is nothing to compare with.
    node.closed(first, now);
    lanes.iter().filter(|lane| lane.0 != lanes[2].0).for_each(|lane| node.closed(lane.0, now));
    node.closed(dials[0].0, now);
    node.tick(now);
    assert_eq!(dials_within(&mut node).first().map(|dial| dial.1), Some(None));
}
