//! Kernels that send by their first lane until they know of others.

use super::handshakes::{NEW, OLD};
use super::*;
use crate::rds::header::PROBE_PORT;

/// What was received by the port, as text.
fn got(node: &mut Node, port: u16) -> String {
    let bodies = std::iter::from_fn(|| node.receive(port)).map(|datagram| datagram.body);
    bodies.map(|body| String::from_utf8(body).unwrap() + " ").collect()
}

/// Takes of some bytes what may be taken, and returns the rest.
fn read<'a>(node: &mut Node, connection: Connection, bytes: &'a [u8], now: Time) -> &'a [u8] {
    let count = if node.must_ask(connection, now) {
        node.may_take(connection, bytes, now)
    } else {
        bytes.len()
    };
    node.received(connection, &bytes[..count], now);
    &bytes[count..]
}

/// A kernel that has dialled two lanes. By the first one it has said who it is, and no more of it has come
/// yet; by the second one a message has come that it has sent last of all.
fn overtaken(extensions: &[u8]) -> (Node, u16, [Connection; 2]) {
    let now = Time::ZERO;
    let mut node = node(LARGE);
    let port = node.bind(9).unwrap();
    let first = node.accept(address(SMALL), 40_000, now).unwrap();
    let known = [kernel_map(), probe(1, PROBE_PORT, 0, extensions)].concat();
    assert!(read(&mut node, first, &known, now).is_empty());
    let second = node.accept(address(SMALL), 40_001, now).unwrap();
    let rest = [kernel_map(), message(1, 4001, 9, 0, b"two")].concat();
    let left = read(&mut node, second, &rest, now);
    assert_eq!((got(&mut node, port), left.len()), (String::new(), HEADER_BYTES + 3));
    assert!(requests(&mut node).contains(&Request::Pause(second)));
    (node, port, [first, second])
}

#[test]
fn what_a_kernel_sent_before_it_knew_of_lanes_comes_before_what_it_sends_by_others() {
    for extensions in [OLD, NEW] {
        let now = at_ms(10);
        let (mut node, port, [first, second]) = overtaken(extensions);
        let early = message(2, 4001, 9, 0, b"one");
        assert!(read(&mut node, first, &early, now).is_empty());
        assert!(!requests(&mut node).contains(&Request::Resume(second)));
        assert!(read(&mut node, first, &probe(3, 0, PROBE_PORT, extensions), now).is_empty());
        assert!(requests(&mut node).contains(&Request::Resume(second)));
        assert!(read(&mut node, second, &message(1, 4001, 9, 0, b"two"), now).is_empty());
        assert_eq!(got(&mut node, port), "one two ");
    }
}

#[test]
fn a_kernel_that_answers_no_probe_is_waited_for_as_long_as_its_first_lane_brings_something() {
    let (mut node, port, [first, second]) = overtaken(OLD);
    node.tick(at_ms(4_999));
    assert!(!requests(&mut node).contains(&Request::Resume(second)));
    node.received(first, &message(2, 4001, 9, 0, b"one"), at_ms(4_999));
    node.tick(at_ms(5_000));
    assert!(!requests(&mut node).contains(&Request::Resume(second)));
    node.tick(at_ms(10_000));
    assert!(requests(&mut node).contains(&Request::Resume(second)));
    assert!(read(&mut node, second, &message(1, 4001, 9, 0, b"two"), at_ms(10_000)).is_empty());
    assert_eq!(got(&mut node, port), "one two ");
    // Of one whose first lane always brings something, others wait for half a minute.
    let (mut node, _, [first, second]) = overtaken(OLD);
    for second_of_it in 1..30 {
        node.received(
            first,
            &message(1 + second_of_it, 4001, 9, 0, b"x"),
            at_ms(second_of_it * 1000),
        );
        node.tick(at_ms(second_of_it * 1000));
        assert!(!requests(&mut node).contains(&Request::Resume(second)), "{second_of_it}");
    }
    node.tick(at_ms(30_000));
    assert!(requests(&mut node).contains(&Request::Resume(second)));
}

#[test]
fn others_wait_for_a_second_where_the_first_connection_has_ended_without_an_answer() {
    let (mut node, port, [first, second]) = overtaken(OLD);
    node.closed(first, at_ms(10));
    node.tick(at_ms(1_009));
    assert!(!requests(&mut node).contains(&Request::Resume(second)));
    node.tick(at_ms(1_010));
    assert!(requests(&mut node).contains(&Request::Resume(second)));
    assert!(read(&mut node, second, &message(1, 4001, 9, 0, b"two"), at_ms(1_010)).is_empty());
    assert_eq!(got(&mut node, port), "two ");
}

#[test]
fn a_kernel_that_asks_again_how_many_lanes_there_are_has_started_anew_and_is_asked_too() {
    let now = at_ms(10);
    let (mut node, port, [first, second]) = overtaken(OLD);
    node.received(first, &probe(2, 0, PROBE_PORT, OLD), now);
    written(&mut node, first);
    for connection in [first, second] {
        node.closed(connection, now);
    }
    // (Nothing else says that it is another start.)
    let first = node.accept(address(SMALL), 40_003, now).unwrap();
    let known = [kernel_map(), probe(1, PROBE_PORT, 0, OLD)].concat();
    assert!(read(&mut node, first, &known, now).is_empty());
    let asks = written(&mut node, first);
    assert!(asks.iter().any(|(header, _)| header.from == PROBE_PORT));
    let second = node.accept(address(SMALL), 40_004, now).unwrap();
    let rest = [kernel_map(), message(1, 4001, 9, 0, b"two")].concat();
    assert!(!read(&mut node, second, &rest, now).is_empty());
    let early = [message(2, 4001, 9, 0, b"one"), probe(3, 0, PROBE_PORT, OLD)].concat();
    assert!(read(&mut node, first, &early, now).is_empty());
    assert!(requests(&mut node).contains(&Request::Resume(second)));
    // (Its ports are those that named lanes of the last start: this one is taken for the first again.)
    assert!(!read(&mut node, second, &message(1, 4001, 9, 0, b"two"), now).is_empty());
    assert!(requests(&mut node).contains(&Request::Drain(first)));
    node.closed(first, now);
    assert!(read(&mut node, second, &message(1, 4001, 9, 0, b"two"), now).is_empty());
    assert_eq!(got(&mut node, port), "one two ");
}
