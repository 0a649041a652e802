//! Kernels that send by their first lane until they know of others.

use super::handshakes::{NEW, OLD};
use super::*;
use crate::proto::header::{FLAG_AGAIN, PROBE_PORT};

/// What was received by the port, as text.
fn got(node: &mut Node, port: u16) -> String {
    let bodies = std::iter::from_fn(|| node.receive(port)).map(|datagram| datagram.body);
    bodies.map(|body| String::from_utf8(body).unwrap() + " ").collect()
}

/// Takes the bytes that may be taken, and returns the rest.
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
    written(&mut node, first);
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
    // If the first lane of a peer always brings something, its others wait for half a minute.
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
fn a_kernel_that_asks_for_the_lanes_again_has_restarted_and_is_probed() {
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

#[test]
fn an_answer_to_the_last_start_s_probe_is_none() {
    let now = at_ms(10);
    let mut node = node(LARGE);
    node.bind(9).unwrap();
    let first = node.accept(address(SMALL), 40_000, now).unwrap();
    let stale = [kernel_map(), probe(1, 0, PROBE_PORT, OLD)].concat();
    assert!(read(&mut node, first, &stale, now).is_empty());
    let second = node.accept(address(SMALL), 40_001, now).unwrap();
    let rest = [kernel_map(), message(1, 4001, 9, 0, b"two")].concat();
    assert!(!read(&mut node, second, &rest, now).is_empty());
    written(&mut node, first);
    assert!(read(&mut node, first, &probe(2, 0, PROBE_PORT, OLD), now).is_empty());
    assert!(requests(&mut node).contains(&Request::Resume(second)));
}

/// A kernel has sent its first messages by its first lane, and knows the number of lanes now. Its
/// port's lane is another one, whose first messages have the numbers of those.
#[test]
fn what_came_early_is_compared_with_until_the_kernel_knows_that_it_came() {
    for is_acknowledged in [false, true] {
        let now = at_ms(10);
        let mut node = node(LARGE);
        let port = node.bind(9).unwrap();
        let first = node.accept(address(SMALL), 40_000, now).unwrap();
        let early = [message(2, 4001, 9, 0, b"one"), message(3, 4001, 9, 0, b"two")].concat();
        node.received(first, &[kernel_map(), probe(1, PROBE_PORT, 0, OLD)].concat(), now);
        let asked = written(&mut node, first);
        node.received(first, &[early, probe(4, 0, PROBE_PORT, OLD)].concat(), now);
        let asked_again = written(&mut node, first);
        assert!(asked_again.iter().any(|(header, _)| header.from == PROBE_PORT));
        node.received(first, &probe(5, 0, PROBE_PORT, OLD), now);
        assert!(written(&mut node, first).is_empty(), "it is asked no more than that");
        let bytes = |all: &[(Header, Vec<u8>)]| -> usize {
            all.iter().map(|(_, body)| HEADER_BYTES + body.len()).sum()
        };
        let known = bytes(&asked) + usize::from(is_acknowledged) * bytes(&asked_again);
        node.acknowledged(first, progress(known as u64), now);
        // Its own lane has lost its connection before anything came by it.
        let second = node.accept(address(SMALL), 40_001, now).unwrap();
        let again =
            [message(2, 4001, 9, FLAG_AGAIN, b"three"), message(3, 4001, 9, FLAG_AGAIN, b"four")];
        node.closed(first, now);
        node.received(second, &[kernel_map(), again.concat()].concat(), now);
        let wanted = if is_acknowledged { "one two three four " } else { "one two " };
        assert_eq!(got(&mut node, port), wanted);
        // What was taken for what came early comes no second time, though a message came after it.
        node.received(second, &message(4, 4001, 9, 0, b"five"), now);
        node.closed(second, now);
        let third = node.accept(address(SMALL), 40_002, now).unwrap();
        node.received(third, &[kernel_map(), again.concat()].concat(), now);
        assert_eq!(got(&mut node, port), "five ");
    }
}

/// What was acknowledged by the second connection came before the last one of what the first one had brought.
/// (A connection of a kernel that knows the number of lanes may be any lane's.)
#[test]
fn what_has_come_early_and_only_in_part_again_is_compared_with_still() {
    let now = at_ms(10);
    let mut node = node(LARGE);
    let port = node.bind(9).unwrap();
    let early = |flags| [message(2, 4001, 9, flags, b"one"), message(3, 4001, 9, flags, b"two")];
    let first = node.accept(address(SMALL), 40_000, now).unwrap();
    node.received(first, &[kernel_map(), probe(1, PROBE_PORT, 0, OLD)].concat(), now);
    written(&mut node, first);
    node.received(first, &[early(0).concat(), probe(4, 0, PROBE_PORT, OLD)].concat(), now);
    node.closed(first, now);
    let second = node.accept(address(SMALL), 40_001, now).unwrap();
    let [one, two] = early(FLAG_AGAIN);
    node.received(second, &[kernel_map(), one].concat(), now);
    let bytes: usize =
        written(&mut node, second).iter().map(|(_, body)| HEADER_BYTES + body.len()).sum();
    node.acknowledged(second, progress(bytes as u64), now);
    node.received(second, &two, now);
    assert_eq!(got(&mut node, port), "one two ");
}

/// The next connection that a node asks for.
fn dial(node: &mut Node) -> Connection {
    let dial = requests(node).into_iter().find_map(|request| match request {
        Request::Dial { connection, .. } => Some(connection),
        _ => None,
    });
    dial.expect("it dials")
}

/// It resets connections for other lanes until it knows the number of lanes.
#[test]
fn a_kernel_that_has_reset_another_lane_s_connection_sends_by_its_first_one_still() {
    let now = at_ms(10);
    let (mut node, first, _) = dialled(now);
    let port = node.bind(9).unwrap();
    node.received(first, &[kernel_map(), probe(1, PROBE_PORT, 0, OLD)].concat(), now);
    written(&mut node, first);
    let second = dial(&mut node);
    node.connected(second, now);
    node.closed(second, now);
    node.received(first, &message(2, 4001, 9, 0, b"one"), now);
    node.received(
        first,
        &[message(3, 4002, 9, 0, b"two"), probe(4, 0, PROBE_PORT, OLD)].concat(),
        now,
    );
    let (asked, now) = (written(&mut node, first), at_ms(1000));
    assert!(asked.iter().any(|(header, _)| header.from == PROBE_PORT));
    node.acknowledged(first, progress(20_000), now);
    node.tick(now);
    let second = dial(&mut node);
    node.connected(second, now);
    node.closed(first, now);
    node.received(second, &[kernel_map(), message(3, 4001, 9, FLAG_AGAIN, b"three")].concat(), now);
    assert_eq!(got(&mut node, port), "one two three ");
}
