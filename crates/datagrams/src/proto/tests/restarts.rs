//! A peer that restarts: with another number of lanes, as another program, or saying nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::handshakes::{dials, with_an_old_kernel};
use super::mixed_up::dialled_by_a_kernel;
use super::*;
use crate::proto::header::{FLAG_AGAIN, FLAG_MAP, PROBE_PORT};
use crate::proto::node::{GIVE_UP, NotTaken};

/// What a Hawser says of itself.
fn said(generation: u8, lanes: u8) -> [u8; 10] {
    [5, 0, lanes, 6, 0, 0, 0, generation, 8, 0]
}

/// The map of a Hawser, which is the first message of each of its connections.
pub(super) fn hawser_map(generation: u8, lanes: u8) -> Vec<u8> {
    let mut bytes = message(1, 0, 0, FLAG_MAP, &[0; 8192]);
    bytes[32..42].copy_from_slice(&said(generation, lanes));
    bytes
}

/// The peer, which takes what is dialled.
#[derive(Default)]
struct Far {
    /// By lane.
    connections: BTreeMap<u16, Connection>,
    /// What came of each port, in the order in which it was read.
    got: BTreeMap<u16, Vec<u8>>,
    closed: usize,
    dialled: usize,
}

impl Far {
    /// Takes connections for so long, and says `first` by each of them.
    fn pass(&mut self, node: &mut Node, now: &mut Time, ms: u64, first: &[u8]) {
        let end = now.after(Duration::from_millis(ms));
        while *now < end {
            *now = now.after(Duration::from_millis(1));
            node.tick(*now);
            for request in requests(node) {
                match request {
                    Request::Dial { connection, port_remainder, .. } => {
                        self.dialled += 1;
                        self.connections.insert(port_remainder, connection);
                        node.connected(connection, *now);
                        node.received(connection, first, *now);
                    }
                    Request::Drain(at) | Request::Close(at) => {
                        self.closed += 1;
                        self.connections.retain(|_, other| *other != at);
                        node.closed(at, *now);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Reads what there is, and acknowledges it.
    fn read(&mut self, node: &mut Node, now: Time) {
        for connection in self.connections.values() {
            for (header, body) in written(node, *connection) {
                if header.from > PROBE_PORT {
                    self.got.entry(header.from).or_default().push(body[0]);
                }
            }
            node.acknowledged(*connection, progress(u64::MAX), now);
        }
    }

    /// All connections break.
    fn die(&mut self, node: &mut Node, now: Time) {
        for connection in std::mem::take(&mut self.connections).into_values() {
            node.closed(connection, now);
        }
    }
}

/// A node with many ports, connected to a Hawser with so many lanes, which has read all.
fn with_a_hawser(lanes: u8, now: &mut Time) -> (Node, Far, Vec<u16>) {
    let (mut node, first, _) = dialled(*now);
    let mut far = Far { connections: [(0, first)].into(), ..Far::default() };
    node.received(first, &hawser_map(1, lanes), *now);
    far.pass(&mut node, now, 20, &hawser_map(1, lanes));
    far.read(&mut node, *now);
    assert_eq!(far.connections.len(), usize::from(lanes));
    far.got.clear();
    let ports = (0..16).map(|_| node.bind(0).unwrap()).collect();
    (node, far, ports)
}

fn send(node: &mut Node, ports: &[u16], number: u8, now: Time) {
    for port in ports {
        node.send(*port, (address(LARGE), 9), &[number], now).unwrap();
    }
}

#[test]
fn order_holds_when_a_peer_restarts_with_more_lanes() {
    let mut now = Time::ZERO;
    let (mut node, mut far, ports) = with_a_hawser(1, &mut now);
    far.die(&mut node, now);
    (1..4).for_each(|number| send(&mut node, &ports, number, now));
    far.pass(&mut node, &mut now, 20, &hawser_map(2, 8));
    (4..6).for_each(|number| send(&mut node, &ports, number, now));
    assert_eq!(far.connections.len(), 8);
    // The lanes beyond the first are read first.
    let first = far.connections.remove(&0).unwrap();
    far.read(&mut node, now);
    assert!(!far.got.is_empty(), "all go by the first lane");
    far.connections.insert(0, first);
    far.read(&mut node, now);
    for port in &ports {
        assert_eq!(far.got[port], [1, 2, 3, 4, 5], "of port {port}");
    }
}

#[test]
fn nothing_is_stuck_when_a_peer_restarts_with_fewer_lanes_while_connections_of_others_live() {
    let mut now = Time::ZERO;
    let (mut node, mut far, ports) = with_a_hawser(8, &mut now);
    // All is given to connections, and what comes then waits for room in these.
    send(&mut node, &ports, 1, now);
    let old = std::mem::take(&mut far.connections);
    for connection in old.values() {
        written(&mut node, *connection);
    }
    send(&mut node, &ports, 2, now);
    node.closed(old[&0], now);
    far.pass(&mut node, &mut now, 20, &hawser_map(2, 1));
    // What the last start may have got is dropped when its connections end, and the rest has come.
    for connection in old.values() {
        node.closed(*connection, now);
    }
    far.pass(&mut node, &mut now, 20, &hawser_map(2, 1));
    far.read(&mut node, now);
    for port in &ports {
        assert_eq!(far.got[port], [2], "of port {port}");
    }
    assert!(node.report().ports.iter().all(|port| port.sent_bytes == 0));
    assert_eq!(far.connections.len(), 1, "other lanes are not dialled again");
}

#[test]
fn a_hawser_with_fewer_lanes_takes_the_place_of_an_old_kernel() {
    let mut now = Time::ZERO;
    let (mut node, lanes, _) = with_an_old_kernel(now);
    let ports: Vec<u16> = (0..16).map(|_| node.bind(0).unwrap()).collect();
    lanes.iter().for_each(|lane| node.closed(*lane, now));
    send(&mut node, &ports, 1, now);
    let mut far = Far::default();
    far.pass(&mut node, &mut now, 500, &hawser_map(2, 1));
    assert_eq!(node.report().peers[0].paths, 1);
    far.read(&mut node, now);
    assert!(ports.iter().all(|port| far.got[port] == [1]), "{:?}", far.got);
    let before = far.dialled;
    far.pass(&mut node, &mut now, 10_000, &hawser_map(2, 1));
    assert_eq!(far.dialled - before, 0, "dials of lanes that there are not");
}

#[test]
fn an_old_kernel_with_one_lane_takes_the_place_of_a_hawser() {
    for lane_that_is_taken in [0, 5] {
        let mut now = Time::ZERO;
        let (mut node, mut far, ports) = with_a_hawser(8, &mut now);
        send(&mut node, &ports, 1, now);
        far.connections.values().for_each(|connection| drop(written(&mut node, *connection)));
        far.die(&mut node, now);
        send(&mut node, &ports, 2, now);
        // It has one lane, takes one connection for it, and resets the others.
        let mut taken = None;
        for _ in 0..3000 {
            now = now.after(Duration::from_millis(1));
            node.tick(now);
            for request in requests(&mut node) {
                match request {
                    Request::Dial { connection, port_remainder, .. } => {
                        node.connected(connection, now);
                        if taken.is_none() && (port_remainder == lane_that_is_taken) {
                            taken = Some(connection);
                            node.received(connection, &kernel_map(), now);
                            node.received(connection, &probe(1, 0, PROBE_PORT, &[]), now);
                        } else {
                            node.closed(connection, now);
                        }
                    }
                    Request::Drain(connection) => {
                        taken = taken.filter(|at| *at != connection);
                        node.closed(connection, now);
                    }
                    _ => {}
                }
            }
        }
        let report = node.report();
        assert_eq!((report.peers[0].paths, report.peers[0].generation), (1, 0));
        far.connections.insert(0, taken.unwrap());
        far.read(&mut node, now);
        for port in &ports {
            assert_eq!(far.got[port], [2], "of port {port}, by lane {lane_that_is_taken}");
        }
    }
}

#[test]
fn a_connection_of_a_lane_that_there_is_not_gives_up_none_that_there_is() {
    let mut config = Config::new(address(LARGE), 7, 1);
    config.lanes = 1;
    let mut node = Node::new(config);
    let first = node.accept(address(SMALL), 40_000, Time::ZERO).unwrap();
    node.received(first, &hawser_map(1, 8), Time::ZERO);
    requests(&mut node);
    for port in 40_001..40_008 {
        assert_eq!(node.accept(address(SMALL), port, Time::ZERO), Err(NotTaken::Wait));
    }
    let asked = requests(&mut node);
    assert!(!asked.contains(&Request::Drain(first)), "{asked:?}");
}

#[test]
fn a_new_start_that_says_nothing_gets_nothing_however_long_that_takes() {
    for (generation, wanted) in [(1, &[1, 2][..]), (2, &[2])] {
        let mut now = Time::ZERO;
        let (mut node, mut far, ports) = with_a_hawser(1, &mut now);
        send(&mut node, &ports[..1], 1, now);
        written(&mut node, far.connections[&0]);
        far.die(&mut node, now);
        send(&mut node, &ports[..1], 2, now);
        far.pass(&mut node, &mut now, 5000, &[]);
        far.read(&mut node, now);
        assert!(far.got.is_empty(), "{:?}", far.got);
        node.received(far.connections[&0], &hawser_map(generation, 1), now);
        far.read(&mut node, now);
        assert_eq!(far.got[&ports[0]], wanted);
    }
}

#[test]
fn what_a_connection_of_the_last_start_says_late_changes_nothing() {
    let now = Time::ZERO;
    let mut large = node(LARGE);
    let port = large.bind(9).unwrap();
    let accept = |large: &mut Node, from| large.accept(address(SMALL), from, now).unwrap();
    let first = accept(&mut large, 40_000);
    large.received(first, &hawser_map(1, 8), now);
    let late = accept(&mut large, 40_001);
    large.closed(first, now);
    let second = accept(&mut large, 40_008);
    large.received(second, &hawser_map(2, 2), now);
    let full = message(7, 0, 0, FLAG_MAP, &[255; 8192]);
    let mut full_map = hawser_map(1, 8);
    full_map[48..].copy_from_slice(&full[48..]);
    large.received(late, &[full_map, message(3, 5, 9, 0, b"late")].concat(), now);
    assert_eq!(large.receive(port).unwrap().body, b"late");
    let report = large.report();
    let peer = &report.peers[0];
    assert_eq!((peer.paths, peer.generation, peer.congested_ports), (2, 2, 0));
    // Its lane's numbers start again with the next connection.
    large.closed(late, now);
    let next = accept(&mut large, 40_009);
    large.received(next, &[hawser_map(2, 2), message(2, 5, 9, FLAG_AGAIN, b"next")].concat(), now);
    assert_eq!(large.receive(port).unwrap().body, b"next");
}

#[test]
fn a_forgotten_peer_gets_congestion_by_the_number_of_its_maps() {
    let now = Time::ZERO;
    let mut config = Config::new(address(LARGE), 7, 1);
    config.receive_buffer = 100;
    let mut large = Node::new(config);
    let port = large.bind(9).unwrap();
    let first = large.accept(address(SMALL), 40_000, now).unwrap();
    let number = |large: &mut Node, at| {
        let maps = written(large, at).into_iter().filter(|(header, _)| header.is_map());
        maps.map(|(header, _)| header.sequence).next_back().unwrap()
    };
    let before = number(&mut large, first);
    large.received(first, &message(1, 5, port, 0, &[0; 200]), now);
    assert_eq!(number(&mut large, first), before + 1);
    // As one that has just come, of which nothing is known.
    let other = large.accept(address("10.0.0.0"), 40_000, now).unwrap();
    assert_eq!(number(&mut large, other), before + 1);
    assert!(dials(&mut large).is_empty() && GIVE_UP > Duration::ZERO);
}

/// Accepts from a source port, and reads what is said by it.
fn accepts(node: &mut Node, port: u16, said: &[Vec<u8>]) -> Connection {
    let connection = node.accept(address(SMALL), port, Time::ZERO).unwrap();
    node.received(connection, &said.concat(), Time::ZERO);
    connection
}

fn bodies(node: &mut Node) -> Vec<u8> {
    std::iter::from_fn(|| node.receive(9)).map(|datagram| datagram.body[0]).collect()
}

#[test]
fn a_kernel_with_another_number_of_lanes_is_another_one() {
    let mut node = node(LARGE);
    node.bind(9).unwrap();
    let lanes = |node: &Node| node.report().peers[0].paths;
    let last = [kernel_map(), probe(1, 0, PROBE_PORT, &[5, 0, 4])];
    let first = accepts(&mut node, 50_000, &last[..1]);
    written(&mut node, first);
    node.received(first, &last[1], Time::ZERO);
    let late = accepts(&mut node, 50_001, &[]);
    assert_eq!(lanes(&node), 4);
    node.closed(first, Time::ZERO);
    let asks = probe(2, PROBE_PORT, 0, &[5, 0, 2]);
    let new = [kernel_map(), message(1, 4001, 9, 0, &[1]), asks];
    let second = accepts(&mut node, 50_002, &new);
    assert_eq!(lanes(&node), 2);
    node.received(late, &last.concat(), Time::ZERO);
    assert_eq!(lanes(&node), 2, "what the last start says late is no news");
    // What came by the new one before it said so came once.
    node.closed(second, Time::ZERO);
    let again = [kernel_map(), message(1, 4001, 9, FLAG_AGAIN, &[1]), message(3, 4001, 9, 0, &[2])];
    accepts(&mut node, 50_003, &again);
    assert_eq!(bodies(&mut node), [1, 2]);
}

#[test]
fn what_a_kernel_sends_by_a_connection_in_the_place_of_a_hawser_s_lane_comes_once() {
    let mut node = node(LARGE);
    node.bind(9).unwrap();
    let first = accepts(&mut node, 40_000, &[hawser_map(1, 8)]);
    let new = accepts(&mut node, 40_004, &[kernel_map(), message(1, 4001, 9, 0, &[1])]);
    node.closed(first, Time::ZERO);
    node.closed(new, Time::ZERO);
    let again = [kernel_map(), message(1, 4001, 9, FLAG_AGAIN, &[1]), message(2, 4001, 9, 0, &[2])];
    accepts(&mut node, 40_008, &again);
    assert_eq!(bodies(&mut node), [1, 2]);
}

#[test]
fn what_a_hawser_sends_by_a_connection_in_the_place_of_a_kernel_s_lane_comes_once() {
    for is_free in [false, true] {
        let (mut node, lanes) = dialled_by_a_kernel(node(LARGE));
        node.closed(lanes[3], Time::ZERO);
        let connection = node.accept(address(SMALL), 40_000, Time::ZERO).unwrap();
        if is_free {
            node.closed(lanes[0], Time::ZERO);
        }
        let begin = [hawser_map(9, 2), message(2000, 4001, 9, 0, &[1])];
        node.received(connection, &begin.concat(), Time::ZERO);
        node.closed(connection, Time::ZERO);
        lanes.iter().for_each(|lane| node.closed(*lane, Time::ZERO));
        let (twice, next) =
            (message(2000, 4001, 9, FLAG_AGAIN, &[1]), message(2001, 4001, 9, 0, &[2]));
        accepts(&mut node, 40_000, &[hawser_map(9, 2), twice, next]);
        assert_eq!(bodies(&mut node), [1, 2]);
    }
}

/// It was compared with what the kernel's lanes had brought, of which none had brought these.
#[test]
fn what_a_connection_of_the_last_start_brings_late_is_compared_with_what_that_one_brought() {
    let mut node = node(LARGE);
    node.bind(9).unwrap();
    let first = accepts(&mut node, 40_000, &[hawser_map(1, 8)]);
    let message_of = |flags, number| message(10 + u64::from(number), 4001, 9, flags, &[number]);
    let before = accepts(&mut node, 40_005, &[hawser_map(1, 8), message_of(0, 1)]);
    node.closed(before, Time::ZERO);
    let late = accepts(&mut node, 40_005, &[hawser_map(1, 8)]);
    node.closed(first, Time::ZERO);
    let asks = probe(1, PROBE_PORT, 0, &[5, 0, 8]);
    accepts(&mut node, 50_000, &[kernel_map(), asks, probe(2, 0, PROBE_PORT, &[5, 0, 8])]);
    assert_eq!((node.report().peers[0].generation, bodies(&mut node)), (0, vec![1]));
    let unread = [message_of(FLAG_AGAIN, 1), message_of(FLAG_AGAIN, 2)];
    node.received(late, &unread.concat(), Time::ZERO);
    assert_eq!(bodies(&mut node), [2]);
}

/// A kernel with one lane had taken for it what was dialled for a Hawser's second one.
#[test]
fn what_a_kernel_with_one_lane_sends_by_any_connection_comes_once() {
    let mut now = Time::ZERO;
    let (mut node, mut far, _) = with_a_hawser(8, &mut now);
    node.bind(9).unwrap();
    far.die(&mut node, now);
    let dials_next = |node: &mut Node, now: &mut Time, wanted: u16| loop {
        *now = now.after(Duration::from_millis(1));
        node.tick(*now);
        for request in requests(node) {
            if let Request::Dial { connection, port_remainder, .. } = request {
                node.connected(connection, *now);
                if port_remainder == wanted {
                    return connection;
                }
            }
        }
    };
    let lane_0 = dials_next(&mut node, &mut now, 0);
    let lane_1 = dials_next(&mut node, &mut now, 1);
    node.received(lane_0, &[kernel_map(), probe(1, 0, PROBE_PORT, &[])].concat(), now);
    assert_eq!(node.report().peers[0].paths, 1);
    node.closed(lane_0, now);
    let again = dials_next(&mut node, &mut now, 0);
    // What is left unread of it is read before the next one.
    assert_eq!(node.read_before(again, now), [lane_1]);
    let sent = |flags| message(2, 4001, 9, flags, &[1]);
    node.received(lane_1, &[kernel_map(), sent(0)].concat(), now);
    node.closed(lane_1, now);
    let next = message(3, 4001, 9, 0, &[2]);
    node.received(again, &[kernel_map(), sent(FLAG_AGAIN), next].concat(), now);
    assert_eq!(bodies(&mut node), [1, 2]);
}

/// What had begun to go by it went on, so it stayed the lane that it was taken for, and what came by it
/// came once more by its own.
#[test]
fn what_a_hawser_sends_by_a_connection_that_has_carried_messages_to_a_kernel_comes_once() {
    let cut_short = kernel_map().len() + 20;
    for (cut, is_free) in [(cut_short, false), (cut_short, true), (usize::MAX, true)] {
        let now = Time::ZERO;
        let (mut node, lanes) = dialled_by_a_kernel(node(LARGE));
        node.closed(lanes[3], now);
        let ports: Vec<u16> = (0..16).map(|_| node.bind(0).unwrap()).collect();
        for port in &ports {
            node.send(*port, (address(SMALL), 9), &[1; 500], now).unwrap();
        }
        let connection = node.accept(address(SMALL), 40_000, now).unwrap();
        let carried = write_some(&mut node, connection, cut);
        assert!(carried > kernel_map().len());
        if is_free {
            node.closed(lanes[0], now);
        }
        requests(&mut node);
        node.received(connection, &hawser_map(9, 2), now);
        let asked = requests(&mut node);
        assert!(asked.contains(&Request::Drain(connection)), "{asked:?}");
        // What it has sent is read before a new connection of that lane.
        assert_eq!(node.accept(address(SMALL), 40_008, now), Err(NotTaken::Wait));
        node.received(connection, &message(2000, 4001, 9, 0, &[1]), now);
        node.closed(connection, now);
        lanes.iter().for_each(|lane| node.closed(*lane, now));
        let again = [
            hawser_map(9, 2),
            message(2000, 4001, 9, FLAG_AGAIN, &[1]),
            message(2001, 4001, 9, 0, &[2]),
        ];
        accepts(&mut node, 40_008, &again);
        assert_eq!(bodies(&mut node), [1, 2], "cut at {cut}, its lane is free: {is_free}");
    }
}

/// Writes up to so many bytes.
fn write_some(node: &mut Node, connection: Connection, most: usize) -> usize {
    let mut all = 0;
    loop {
        let count = node.to_write(connection).map(<[u8]>::len).iter().sum::<usize>();
        let count = count.min(most - all);
        if count == 0 {
            return all;
        }
        node.wrote(connection, count);
        all += count;
    }
}

/// What had gone to it by its first lane, when it was taken for a kernel, came after what its ports sent
/// later by other lanes.
#[test]
fn order_holds_where_a_hawser_with_more_lanes_has_been_taken_for_a_kernel() {
    let mut now = Time::ZERO;
    let mut node = node(LARGE);
    let ports: Vec<u16> = (0..16).map(|_| node.bind(0).unwrap()).collect();
    let send = |node: &mut Node, number: u8| {
        for port in &ports {
            node.send(*port, (address(SMALL), 9), &[number], Time::ZERO).unwrap();
        }
    };
    let kernel = [kernel_map(), probe(1, PROBE_PORT, 0, &[]), probe(2, 0, PROBE_PORT, &[])];
    let last = accepts(&mut node, 50_000, &kernel);
    node.closed(last, now);
    send(&mut node, 1);
    let first = node.accept(address(SMALL), 40_000, now).unwrap();
    let carried = written(&mut node, first);
    assert_eq!(carried.iter().filter(|(header, _)| header.from > PROBE_PORT).count(), 16);
    send(&mut node, 2);
    node.received(first, &hawser_map(2, 8), now);
    send(&mut node, 3);
    let others: Vec<Connection> =
        (40_001..40_008).map(|port| accepts(&mut node, port, &[hawser_map(2, 8)])).collect();
    now = now.after(Duration::from_secs(5));
    node.tick(now);
    for other in &others {
        node.received(*other, &message(1, 0, 99, 0, b""), now);
        assert!(written(&mut node, *other).iter().all(|(header, _)| header.is_map()));
    }
    assert!(written(&mut node, first).is_empty(), "the rest of it goes by other lanes");
    requests(&mut node);
    node.closed(first, now);
    let asked = requests(&mut node);
    let to_write = asked.iter().filter(|request| matches!(request, Request::Write(_)));
    assert_eq!(to_write.count(), 7, "{asked:?}");
    let lane_0 = accepts(&mut node, 40_008, &[hawser_map(2, 8)]);
    let mut got = BTreeMap::<u16, Vec<u8>>::new();
    for connection in others.iter().chain([&lane_0]) {
        for (header, body) in written(&mut node, *connection) {
            if header.from > PROBE_PORT {
                got.entry(header.from).or_default().push(body[0]);
            }
        }
    }
    assert!(ports.iter().all(|port| got[port] == [2, 3]), "{got:?}");
}

#[test]
fn what_a_new_start_does_not_get_does_not_count_as_sent_again() {
    for (generation, wanted) in [(2, 0), (1, 16)] {
        let mut now = Time::ZERO;
        let (mut node, mut far, ports) = with_a_hawser(1, &mut now);
        send(&mut node, &ports, 1, now);
        far.connections.values().for_each(|at| drop(written(&mut node, *at)));
        far.die(&mut node, now);
        far.pass(&mut node, &mut now, 20, &hawser_map(generation, 1));
        let connection = *far.connections.values().next().unwrap();
        // In parts, which begin and end in the middle of one.
        loop {
            let count = node.to_write(connection).map(<[u8]>::len).iter().sum::<usize>().min(30);
            if count == 0 {
                break;
            }
            node.wrote(connection, count);
        }
        assert_eq!(node.report().peers[0].lanes[0].counts.again, wanted);
    }
}

#[test]
fn a_connection_of_the_last_start_that_waited_is_no_news_when_it_is_taken_last() {
    let now = Time::ZERO;
    let mut large = node(LARGE);
    let first = large.accept(address(SMALL), 40_000, now).unwrap();
    large.received(first, &hawser_map(2, 2), now);
    let lane = large.accept(address(SMALL), 40_001, now).unwrap();
    large.received(lane, &hawser_map(2, 2), now);
    // Another start has dialled a lane and is gone; the one after that has dialled the first.
    let waits = large.arrived();
    let accepted = large.accept_arrived(waits, address(SMALL), 40_009, now);
    assert_eq!(accepted, Err(NotTaken::Wait));
    large.closed(first, now);
    let newest = large.accept(address(SMALL), 40_016, now).unwrap();
    large.received(newest, &hawser_map(4, 2), now);
    large.closed(lane, now);
    large.accept_arrived(waits, address(SMALL), 40_009, now).unwrap();
    large.received(waits, &hawser_map(3, 2), now);
    assert_eq!(large.report().peers[0].generation, 4);
}

#[test]
fn what_a_kernel_has_left_unread_comes_once_though_a_hawser_has_its_place() {
    let (mut node, lanes) = dialled_by_a_kernel(node(LARGE));
    let now = Time::ZERO;
    let of = |port, sequence, flags, number| message(sequence, port, 9, flags, &[number]);
    node.received(lanes[3], &[kernel_map(), of(4001, 1, 0, 1)].concat(), now);
    node.received(lanes[5], &[kernel_map(), of(4002, 100, 0, 2)].concat(), now);
    // The second of these lanes is dialled again, and taken for the first one.
    node.closed(lanes[3], now);
    node.closed(lanes[5], now);
    let again = node.accept(address(SMALL), 50_001, now).unwrap();
    node.closed(lanes[0], now);
    accepts(&mut node, 40_000, &[hawser_map(9, 8)]);
    let unread = [kernel_map(), of(4002, 100, FLAG_AGAIN, 2), of(4002, 101, 0, 3)];
    node.received(again, &unread.concat(), now);
    assert_eq!(bodies(&mut node), [1, 2, 3]);
}

#[test]
fn all_that_a_kernel_has_left_unread_comes_once_though_a_hawser_has_its_place() {
    let (mut node, lanes) = dialled_by_a_kernel(node(LARGE));
    let now = Time::ZERO;
    node.closed(lanes[0], now);
    accepts(&mut node, 40_000, &[hawser_map(9, 8)]);
    // Its lane was dialled twice, and nothing was read.
    node.received(lanes[3], &[kernel_map(), message(1, 4001, 9, 0, &[1])].concat(), now);
    node.closed(lanes[3], now);
    let unread =
        [kernel_map(), message(1, 4001, 9, FLAG_AGAIN, &[1]), message(2, 4001, 9, 0, &[2])];
    node.received(lanes[5], &unread.concat(), now);
    assert_eq!(bodies(&mut node), [1, 2]);
}
