//! A kernel up to 6.18 that knew the last start of this host, and drops what is flagged with a lower number
//! than it expects of that. It learns of this start by the probe, answers that with its old
//! numbers, and then numbers its messages from 1.

use std::time::Duration;

use super::handshakes::dials;
use super::*;
use crate::proto::header::{FLAG_AGAIN, FLAGS_AT, PROBE_PORT};

const TO: u16 = 9;

struct Kernel {
    /// The number of the next message.
    next: u64,
    /// Messages that it does not know to have arrived.
    kept: Vec<Vec<u8>>,
    sent: u8,
}

impl Kernel {
    fn send(&mut self) -> Vec<u8> {
        self.sent += 1;
        let message = message(self.next, 4001, TO, 0, &[self.sent]);
        self.next += 1;
        self.kept.push(message.clone());
        message
    }

    /// Answers the probe of a new start. What it has kept for the last one is dropped.
    fn answer(&mut self, lanes: u8) -> Vec<u8> {
        let answer = probe(self.next, 0, PROBE_PORT, &[5, 0, lanes]);
        self.next = 1;
        self.kept.clear();
        answer
    }

    fn again(&mut self) -> Vec<u8> {
        self.kept.iter_mut().for_each(|message| message[FLAGS_AT] |= FLAG_AGAIN);
        [kernel_map(), self.kept.concat()].concat()
    }
}

fn bodies(node: &mut Node) -> Vec<u8> {
    std::iter::from_fn(|| node.receive(TO)).map(|datagram| datagram.body[0]).collect()
}

#[test]
fn messages_that_a_kernel_numbers_from_1_again_are_no_duplicates() {
    let now = Time::ZERO;
    for (lanes, with_others) in [(1, false), (8, false), (8, true)] {
        for (next, begins) in [(700, 1), (4, 3), (1, 0)] {
            let mut node = node(LARGE);
            node.bind(TO).unwrap();
            let mut kernel = Kernel { next, kept: Vec::new(), sent: 0 };
            let first = node.accept(address(SMALL), 50_000, now).unwrap();
            node.received(first, &kernel_map(), now);
            for _ in 0..begins {
                node.received(first, &kernel.send(), now);
            }
            node.received(first, &kernel.answer(lanes), now);
            if with_others {
                // (Another port of the same lane, with an old number: it was sent beside the answer.)
                node.received(first, &message(next + 100, 4001, TO, 0, &[0]), now);
            }
            let old = bodies(&mut node).len();
            // The connection is cut before the first one is whole.
            let messages: Vec<Vec<u8>> = (0..6).map(|_| kernel.send()).collect();
            node.received(first, &messages[0][..30], now);
            node.closed(first, now);
            let second = node.accept(address(SMALL), 50_001, now).unwrap();
            node.received(second, &kernel.again(), now);
            let wanted = kernel.sent - 6 + 1..=kernel.sent;
            assert_eq!(
                bodies(&mut node),
                wanted.collect::<Vec<u8>>(),
                "{lanes} lanes, {old} before"
            );
            // From repeated messages, the new ones are taken.
            kernel.kept.drain(..3);
            kernel.send();
            node.closed(second, now);
            let third = node.accept(address(SMALL), 50_002, now).unwrap();
            node.received(third, &kernel.again(), now);
            assert_eq!(bodies(&mut node), [kernel.sent]);
        }
    }
}

/// A start of this host that has dialled, and a connection on which the kernel has sent its map.
fn start(clock_ms: u64) -> (Node, Connection) {
    let mut config = Config::new(address(SMALL), clock_ms as u32, 1);
    config.clock_ms = clock_ms;
    let mut node = Node::new(config);
    let port = node.bind(0).unwrap();
    node.send(port, (address(LARGE), TO), b"first", Time::ZERO).unwrap();
    let connection = dials(&mut node)[0].0;
    node.connected(connection, Time::ZERO);
    node.received(connection, &kernel_map(), Time::ZERO);
    (node, connection)
}

/// What is written by the connection, maps left out; it is cut, and the lane dialled again.
fn written_and_cut(
    node: &mut Node,
    connection: Connection,
    acknowledged: u64,
    now: &mut Time,
) -> (Vec<Header>, Connection) {
    let sent = written(node, connection).into_iter().map(|(header, _)| header);
    let sent = sent.filter(|header| !header.is_map()).collect();
    node.acknowledged(connection, progress(acknowledged), *now);
    node.closed(connection, *now);
    *now = now.after(Duration::from_secs(2));
    node.tick(*now);
    let again = dials(node)[0].0;
    node.connected(again, *now);
    node.received(again, &kernel_map(), *now);
    (sent, again)
}

#[test]
fn a_probe_on_a_cut_connection_is_sent_again_until_it_is_answered() {
    let mut now = Time::ZERO;
    // What the kernel expects of the last start, a second before.
    let (mut node, connection) = start(1_000_000);
    let (sent, _) = written_and_cut(&mut node, connection, 0, &mut now);
    let expected = sent.iter().map(|header| header.sequence).max().unwrap() + 1;
    let (mut node, first) = start(1_001_000);
    // None of it comes; then all does, but the answer is lost.
    let (sent, second) = written_and_cut(&mut node, first, 0, &mut now);
    let (again, third) = written_and_cut(&mut node, second, u64::MAX, &mut now);
    let (resent, fourth) = written_and_cut(&mut node, third, u64::MAX, &mut now);
    for sent in [&sent, &again, &resent] {
        let probes = sent.iter().filter(|header| header.from == PROBE_PORT);
        assert_eq!(probes.map(|header| header.flags).collect::<Vec<_>>(), [0], "{sent:?}");
    }
    // What is flagged is none of what the kernel has had, and numbers ascend.
    let all: Vec<u64> = again.iter().chain(&resent).map(|header| header.sequence).collect();
    assert!(all.is_sorted() && all[0] >= expected, "{all:?}, and {expected} is expected");
    node.received(fourth, &probe(1, 0, PROBE_PORT, &[5, 0, 8]), now);
    assert_eq!(node.report().peers[0].paths, 8);
}
