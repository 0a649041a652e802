//! Peers that accept a connection and end it: the pauses between dials grow, and the log says so
//! once.

use std::time::Duration;

use super::handshakes::dials;
use super::*;
use crate::proto::lane::SOUND_AFTER;
use crate::proto::node::Notice;

/// Dials for so long, and does with each connection what `then` does. Returns how many there were, and
/// what was said.
fn pass(
    node: &mut Node,
    now: &mut Time,
    time: Duration,
    mut then: impl FnMut(&mut Node, Connection, Time),
) -> (usize, Vec<Notice>) {
    let (end, mut count, mut said) = (now.after(time), 0, Vec::new());
    while *now < end {
        *now = now.after(Duration::from_micros(500));
        node.tick(*now);
        for request in requests(node) {
            match request {
                Request::Dial { connection, .. } => {
                    count += 1;
                    then(node, connection, *now);
                }
                Request::Notice(notice) => said.push(notice),
                _ => {}
            }
        }
    }
    (count, said)
}

fn with_a_message() -> Node {
    let mut node = node(SMALL);
    let port = node.bind(0).unwrap();
    node.send(port, (address(LARGE), 9), b"x", Time::ZERO).unwrap();
    node
}

#[test]
fn a_peer_that_accepts_and_resets_is_dialled_ever_later_and_that_is_said_once() {
    let (mut node, mut now) = (with_a_message(), Time::ZERO);
    let (count, said) = pass(&mut node, &mut now, Duration::from_secs(30), |node, at, now| {
        node.connected(at, now);
        node.closed(at, now);
    });
    assert!((20..120).contains(&count), "{count} dials in 30 s");
    let wanted = Notice::Unreachable(address(LARGE), "it ends each connection soon".to_owned());
    assert_eq!(said, [wanted]);
}

#[test]
fn one_that_says_something_first_is_too() {
    let (mut node, mut now) = (with_a_message(), Time::ZERO);
    let (count, said) = pass(&mut node, &mut now, Duration::from_secs(30), |node, at, now| {
        node.connected(at, now);
        node.received(at, &kernel_map(), now);
        node.closed(at, now);
    });
    assert!((20..120).contains(&count), "{count} dials in 30 s");
    assert_eq!(said.len(), 1, "{said:?}");
}

#[test]
fn one_that_is_refused_and_reset_in_turn_is_said_once() {
    let (mut node, mut now, mut turn) = (with_a_message(), Time::ZERO, 0);
    let (_, said) = pass(&mut node, &mut now, Duration::from_secs(30), |node, at, now| {
        turn += 1;
        if turn % 2 == 0 {
            return node.failed(at, "refused", now);
        }
        node.connected(at, now);
        node.closed(at, now);
    });
    assert_eq!(said, [Notice::Unreachable(address(LARGE), "refused".to_owned())]);
}

#[test]
fn a_connection_that_was_up_for_a_while_is_dialled_again_at_once_and_its_next_failure_is_said() {
    let (mut node, mut now) = (with_a_message(), Time::ZERO);
    let mut last = None;
    pass(&mut node, &mut now, Duration::from_secs(20), |node, at, now| {
        last = Some(at);
        if now < at_ms(10_000) {
            return node.failed(at, "refused", now);
        }
        node.connected(at, now);
        node.received(at, &kernel_map(), now);
    });
    now = now.after(SOUND_AFTER);
    node.closed(last.unwrap(), now);
    node.tick(now);
    let again = dials(&mut node);
    assert_eq!(again.len(), 1, "at once");
    node.failed(again[0].0, "refused", now);
    assert!(requests(&mut node).iter().any(|request| matches!(request, Request::Notice(_))));
}
