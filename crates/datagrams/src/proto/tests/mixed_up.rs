//! A kernel up to 6.18 with eight lanes whose connections are all reset, again and again.
//!
//! # Model
//! Each of its lanes has a queue; a new connection is that of any lane. A reset comes after any byte, and
//! of what has arrived the kernel knows of a part only: the rest is sent again, flagged.
//!
//! # Invariants
//! * each message arrives once, and those of one port in order, whichever end dials

use std::collections::VecDeque;
use std::time::Duration;

use hawser_time::seeded::Random;

use super::*;
use crate::proto::header::{FLAG_AGAIN, LANES_MAX, PROBE_PORT};

const PORTS: u16 = 40;
const TO: u16 = 9;
const ROUNDS: usize = 30;

/// A lane of the kernel's: what it has not seen acknowledged, and whether it was sent already.
#[derive(Default)]
struct Queue {
    sequence: u64,
    waits: VecDeque<(Vec<u8>, bool)>,
}

struct Kernel {
    random: Random,
    lanes: Vec<Queue>,
    /// What each port has sent.
    sent: Vec<u32>,
}

impl Kernel {
    fn new(seed: u64) -> Self {
        let lanes = (0..LANES_MAX).map(|_| Queue::default()).collect();
        Self { random: Random::of_seed(seed), lanes, sent: vec![0; usize::from(PORTS)] }
    }

    fn send(&mut self) {
        let port = self.random.below(usize::from(PORTS));
        let lane = &mut self.lanes[port % LANES_MAX];
        lane.sequence += 1;
        let number = self.sent[port];
        self.sent[port] += 1;
        let from = 4001 + port as u16;
        let mut body = number.to_be_bytes().to_vec();
        body.resize(4 + self.random.below(200), 7);
        lane.waits.push_back((message(lane.sequence, from, TO, 0, &body), false));
    }

    /// A connection of a lane: a map, and all messages or a beginning of them, cut anywhere.
    fn connection(&mut self, lane: usize, whole: bool) -> Vec<u8> {
        let mut bytes = kernel_map();
        for (message, tried) in &mut self.lanes[lane].waits {
            if std::mem::replace(tried, true) {
                message[crate::proto::header::FLAGS_AT] |= FLAG_AGAIN;
            }
            bytes.extend_from_slice(message);
        }
        let most = if whole { bytes.len() } else { self.random.below(bytes.len() + 1) };
        // Acknowledged is as much, or less.
        let known = if whole { most } else { self.random.below(most + 1) };
        let mut end = kernel_map().len();
        while let Some((message, _)) = self.lanes[lane].waits.front()
            && end + message.len() <= known
        {
            end += message.len();
            self.lanes[lane].waits.pop_front();
        }
        bytes.truncate(most);
        bytes
    }

    fn shuffled(&mut self) -> Vec<usize> {
        let mut lanes: Vec<usize> = (0..LANES_MAX).collect();
        for at in 1..lanes.len() {
            lanes.swap(at, self.random.below(at + 1));
        }
        lanes
    }
}

/// The connections that the node takes or makes next, as many as there are lanes.
fn connections(node: &mut Node, node_dials: bool, now: &mut Time) -> Vec<Connection> {
    let mut found = Vec::new();
    for _ in 0..LANES_MAX {
        if !node_dials {
            found.push(node.accept(address(SMALL), 50_001, *now).unwrap());
            continue;
        }
        *now = now.after(Duration::from_secs(1));
        node.tick(*now);
        let dial = requests(node).into_iter().find_map(|request| match request {
            Request::Dial { connection, .. } => Some(connection),
            _ => None,
        });
        node.connected(dial.unwrap(), *now);
        found.push(dial.unwrap());
    }
    found
}

fn play(seed: u64, node_dials: bool) -> u64 {
    let mut kernel = Kernel::new(seed);
    let mut now = Time::ZERO;
    let (mut node, first) = if node_dials {
        let (node, first, _) = dialled(now);
        (node, first)
    } else {
        let mut node = node(LARGE);
        let first = node.accept(address(SMALL), 50_000, now).unwrap();
        (node, first)
    };
    node.bind(TO).unwrap();
    // The handshake is by the kernel's first lane.
    kernel.lanes[0].sequence = 1;
    node.received(first, &kernel_map(), now);
    written(&mut node, first);
    node.received(first, &probe(1, 0, PROBE_PORT, &[5, 0, 8]), now);
    node.closed(first, now);
    for request in requests(&mut node) {
        if let Request::Dial { connection, .. } = request {
            node.failed(connection, "refused", now);
        }
    }
    let mut next = vec![0; usize::from(PORTS)];
    for round in 0..=ROUNDS {
        let count = kernel.random.below(300);
        (0..count).for_each(|_| kernel.send());
        let lanes = kernel.shuffled();
        let taken = connections(&mut node, node_dials, &mut now);
        for (lane, connection) in lanes.iter().zip(&taken) {
            let bytes = kernel.connection(*lane, round == ROUNDS);
            node.received(*connection, &bytes, now);
        }
        while let Some(datagram) = node.receive(TO) {
            let number = u32::from_be_bytes(datagram.body[..4].try_into().unwrap());
            let port = usize::from(datagram.port - 4001);
            assert_eq!(number, next[port], "of port {port}, seed {seed}, round {round}");
            next[port] += 1;
        }
        taken.iter().for_each(|connection| node.closed(*connection, now));
        requests(&mut node);
    }
    assert_eq!(next, kernel.sent, "seed {seed}");
    node.report().peers[0].lanes.iter().map(|lane| lane.counts.duplicates).sum()
}

#[test]
fn messages_of_a_kernel_that_mixes_up_its_lanes_come_once_and_in_order() {
    for node_dials in [false, true] {
        let duplicates: u64 = (0..60).map(|seed| play(seed, node_dials)).sum();
        assert!(duplicates > 1000, "{duplicates} came again");
    }
}

/// A node with the larger address that an old kernel has dialled eight times.
pub(super) fn dialled_by_a_kernel(mut node: Node) -> (Node, Vec<Connection>) {
    node.bind(TO).unwrap();
    let first = node.accept(address(SMALL), 50_000, Time::ZERO).unwrap();
    node.received(first, &kernel_map(), Time::ZERO);
    written(&mut node, first);
    node.received(first, &probe(1, PROBE_PORT, 0, &[5, 0, 8]), Time::ZERO);
    node.received(first, &probe(2, 0, PROBE_PORT, &[5, 0, 8]), Time::ZERO);
    let mut lanes = vec![first];
    lanes.extend((1..8).map(|_| node.accept(address(SMALL), 50_001, Time::ZERO).unwrap()));
    requests(&mut node);
    (node, lanes)
}

/// Reads from a connection as its driver does. Returns how much was taken.
fn read(node: &mut Node, connection: Connection, bytes: &[u8]) -> usize {
    let must_ask = node.must_ask(connection, Time::ZERO);
    let count = if must_ask { node.may_take(connection, bytes, Time::ZERO) } else { bytes.len() };
    node.received(connection, &bytes[..count], Time::ZERO);
    count
}

fn numbers(node: &mut Node) -> Vec<u8> {
    std::iter::from_fn(|| node.receive(TO)).map(|datagram| datagram.body[0]).collect()
}

#[test]
fn what_a_lane_dialled_again_brings_waits_for_what_its_last_connection_has_not_brought_yet() {
    let (mut node, lanes) = dialled_by_a_kernel(node(LARGE));
    read(&mut node, lanes[1], &[kernel_map(), message(7, 4002, TO, 0, &[0])].concat());
    read(&mut node, lanes[2], &[kernel_map(), message(1, 4001, TO, 0, &[1])].concat());
    assert_eq!(numbers(&mut node), [0, 1]);
    // Both break. The second one has something left to read, and its lane is dialled again.
    let unread = message(2, 4001, TO, 0, &[2]);
    node.closed(lanes[1], Time::ZERO);
    let again = node.accept(address(SMALL), 50_002, Time::ZERO).unwrap();
    requests(&mut node);
    let (twice, next) = (message(2, 4001, TO, FLAG_AGAIN, &[2]), message(3, 4001, TO, 0, &[3]));
    let bytes = [kernel_map(), twice, next].concat();
    let taken = read(&mut node, again, &bytes);
    assert_eq!(taken, kernel_map().len());
    let asked = requests(&mut node);
    assert!(asked.contains(&Request::Pause(again)), "{asked:?}");
    assert!(asked.contains(&Request::Drain(lanes[2])), "{asked:?}");
    read(&mut node, lanes[2], &unread);
    assert!(!requests(&mut node).contains(&Request::Resume(again)));
    node.closed(lanes[2], Time::ZERO);
    assert!(requests(&mut node).contains(&Request::Resume(again)));
    assert_eq!(read(&mut node, again, &bytes[taken..]), bytes.len() - taken);
    assert_eq!(numbers(&mut node), [2, 3]);
}

#[test]
fn what_came_before_a_kernel_knew_of_lanes_comes_once() {
    let now = Time::ZERO;
    let mut node = node(LARGE);
    node.bind(TO).unwrap();
    let first = node.accept(address(SMALL), 50_000, now).unwrap();
    let begin = [kernel_map(), probe(1, PROBE_PORT, 0, &[5, 0, 8]), message(2, 4001, TO, 0, &[1])];
    node.received(first, &begin.concat(), now);
    written(&mut node, first);
    node.received(first, &probe(3, 0, PROBE_PORT, &[5, 0, 8]), now);
    // That it came is not known there when the connection is cut.
    node.closed(first, now);
    let second = node.accept(address(SMALL), 50_001, now).unwrap();
    let again = [message(2, 4001, TO, FLAG_AGAIN, &[1]), message(4, 4001, TO, 0, &[2])];
    node.received(second, &again.concat(), now);
    assert_eq!(numbers(&mut node), [1, 2]);
}

/// What comes by a new connection of a kernel, after its map.
fn connect(node: &mut Node, messages: &[Vec<u8>]) -> Connection {
    let connection = node.accept(address(SMALL), 50_000, Time::ZERO).unwrap();
    node.received(connection, &[kernel_map(), messages.concat()].concat(), Time::ZERO);
    connection
}

fn of(port: u16, sequence: u64, flags: u8, number: u8) -> Vec<u8> {
    message(sequence, port, TO, flags, &[number])
}

fn bound() -> Node {
    let mut node = node(LARGE);
    node.bind(TO).unwrap();
    node
}

#[test]
fn what_came_early_comes_once_though_its_port_has_brought_more_since() {
    let mut node = bound();
    let asks = probe(1, PROBE_PORT, 0, &[5, 0, 8]);
    let answers = probe(4, 0, PROBE_PORT, &[5, 0, 8]);
    let early = [asks, of(4001, 2, 0, 1), of(4001, 3, 0, 2), answers];
    let first = connect(&mut node, &early);
    node.closed(first, Time::ZERO);
    let again = |last| [of(4001, 2, FLAG_AGAIN, 1), of(4001, 3, FLAG_AGAIN, 2), last];
    let second = connect(&mut node, &again(of(4001, 5, 0, 3)));
    node.closed(second, Time::ZERO);
    connect(&mut node, &again(of(4001, 5, FLAG_AGAIN, 3)));
    assert_eq!(numbers(&mut node), [1, 2, 3]);
}

#[test]
fn numbers_of_a_connection_that_has_ended_are_not_those_of_the_next_one_in_its_place() {
    let mut node = bound();
    let asks = probe(1, PROBE_PORT, 0, &[5, 0, 8]);
    let first = connect(&mut node, &[asks, of(4001, 2, 0, 1), of(4001, 3, 0, 2)]);
    node.closed(first, Time::ZERO);
    let silent = connect(&mut node, &[]);
    let second = node.accept(address(SMALL), 50_001, Time::ZERO).unwrap();
    node.closed(silent, Time::ZERO);
    node.received(second, &of(4002, 1, 0, 3), Time::ZERO);
    connect(&mut node, &[of(4003, 2, FLAG_AGAIN, 4), of(4003, 3, FLAG_AGAIN, 5)]);
    assert_eq!(numbers(&mut node), [1, 2, 3, 4, 5]);
}

#[test]
fn what_comes_again_by_its_own_lane_is_not_taken_for_what_came_early() {
    let mut node = bound();
    let asks = probe(1, PROBE_PORT, 0, &[5, 0, 8]);
    let answers = probe(9, 0, PROBE_PORT, &[5, 0, 8]);
    connect(&mut node, &[asks, of(4001, 3, 0, 1), of(4001, 8, 0, 2), answers]);
    let lost = connect(&mut node, &[]);
    node.closed(lost, Time::ZERO);
    connect(&mut node, &[of(4002, 1, FLAG_AGAIN, 3), of(4001, 6, FLAG_AGAIN, 4)]);
    assert_eq!(numbers(&mut node), [1, 2, 3, 4]);
}

/// A kernel that knows this address of its last start uses all its lanes at once.
#[test]
fn a_connection_may_be_of_any_lane_before_the_number_of_lanes_is_known() {
    let mut node = bound();
    let first = connect(&mut node, &[of(4001, 10, 0, 1), of(4001, 11, 0, 2)]);
    node.closed(first, Time::ZERO);
    let other = [of(4002, 10, FLAG_AGAIN, 3), of(4002, 11, FLAG_AGAIN, 4)];
    let second = connect(&mut node, &other);
    node.closed(second, Time::ZERO);
    let again = [of(4001, 10, FLAG_AGAIN, 1), of(4001, 11, FLAG_AGAIN, 2), of(4001, 12, 0, 5)];
    connect(&mut node, &again);
    assert_eq!(numbers(&mut node), [1, 2, 3, 4, 5]);
}

#[test]
fn a_new_connection_waits_for_one_that_a_full_port_keeps_from_being_read() {
    const FULL: u16 = 8;
    let mut config = Config::new(address(LARGE), 7, 1);
    (config.receive_buffer, config.overrun) = (100, 100);
    let (mut node, lanes) = dialled_by_a_kernel(Node::new(config));
    node.bind(FULL).unwrap();
    read(&mut node, lanes[1], &[kernel_map(), message(1, 4002, FULL, 0, &[0; 300])].concat());
    read(&mut node, lanes[2], &kernel_map());
    let unread = [message(1, 4001, FULL, 0, &[0]), of(4001, 2, 0, 1)].concat();
    assert_eq!(read(&mut node, lanes[2], &unread), 0);
    // Its lane is dialled again, while the place of another one is free.
    node.closed(lanes[3], Time::ZERO);
    let again = node.accept(address(SMALL), 50_002, Time::ZERO).unwrap();
    let before = node.read_before(again, Time::ZERO);
    assert!(before.is_sorted() && before.len() == 6 && !before.contains(&lanes[2]), "{before:?}");
    requests(&mut node);
    let bytes = [kernel_map(), of(4001, 2, FLAG_AGAIN, 1), of(4001, 3, 0, 2)].concat();
    let taken = read(&mut node, again, &bytes);
    assert_eq!(taken, kernel_map().len());
    let asked = requests(&mut node);
    assert!(asked.contains(&Request::Pause(again)), "{asked:?}");
    assert!(asked.contains(&Request::Drain(lanes[2])), "{asked:?}");
    node.receive(FULL).unwrap();
    assert_eq!(read(&mut node, lanes[2], &unread), unread.len());
    node.closed(lanes[2], Time::ZERO);
    assert_eq!(read(&mut node, again, &bytes[taken..]), bytes.len() - taken);
    assert_eq!(numbers(&mut node), [1, 2]);
    assert!(node.read_before(again, Time::ZERO).is_empty());
}
