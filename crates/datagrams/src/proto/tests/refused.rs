//! An old kernel with eight lanes that holds one of its own for up, and resets what is dialled for it.

use std::time::Duration;

use super::*;
use crate::proto::header::{LANES_MAX, PROBE_PORT};
use crate::proto::node::Notice;
use crate::proto::stand_in::{DIALLED_AGAIN, REFUSED_MAX};

const EACH: Duration = Duration::from_millis(50);

/// The kernel: which connections it has taken, and how many it takes.
struct Kernel {
    taken: Vec<Connection>,
    most: usize,
    notices: Vec<Notice>,
}

impl Kernel {
    /// Takes or resets what is dialled, for so long.
    fn pass(&mut self, node: &mut Node, now: &mut Time, time: Duration) {
        let end = now.after(time);
        while *now < end {
            *now = now.after(EACH);
            node.tick(*now);
            for request in requests(node) {
                match request {
                    Request::Dial { connection, .. } if self.taken.len() < self.most => {
                        node.connected(connection, *now);
                        node.received(connection, &kernel_map(), *now);
                        self.taken.push(connection);
                    }
                    Request::Dial { connection, .. } => {
                        node.connected(connection, *now);
                        node.closed(connection, *now);
                    }
                    Request::Notice(notice) => self.notices.push(notice),
                    _ => {}
                }
            }
        }
    }

    /// The numbers that ports have sent, in the order of each connection.
    fn read(&mut self, node: &mut Node, now: Time) -> Vec<(u16, u8)> {
        let mut found = Vec::new();
        for connection in &self.taken {
            let messages = written(node, *connection);
            let bodies = messages.iter().filter(|(header, _)| header.from > PROBE_PORT);
            found.extend(bodies.map(|(header, body)| (header.from, body[0])));
            node.acknowledged(*connection, progress(u64::MAX), now);
        }
        found
    }
}

/// A node with two ports for each lane, and a kernel with eight lanes that takes so many.
fn with_eight(most: usize, now: &mut Time) -> (Node, Kernel, Vec<u16>) {
    let (mut node, first, _) = dialled(*now);
    node.received(first, &kernel_map(), *now);
    node.received(first, &probe(1, 0, PROBE_PORT, &[5, 0, 8]), *now);
    let ports = (0..2 * LANES_MAX).map(|_| node.bind(0).unwrap()).collect();
    let mut kernel = Kernel { taken: vec![first], most, notices: Vec::new() };
    kernel.pass(&mut node, now, Duration::from_secs(2));
    (node, kernel, ports)
}

#[test]
fn messages_of_a_lane_that_is_refused_go_by_another_in_their_order_until_it_is_taken() {
    let mut now = Time::ZERO;
    let (mut node, mut kernel, ports) = with_eight(LANES_MAX - 1, &mut now);
    assert_eq!(kernel.taken.len(), LANES_MAX - 1);
    kernel.read(&mut node, now);

    let send = |node: &mut Node, number, now| {
        for port in &ports {
            node.send(*port, (address(LARGE), 9), &[number], now).unwrap();
        }
    };
    let whole = |got: &[(u16, u8)], numbers: &[u8]| {
        for port in node_ports(got) {
            let of_port: Vec<u8> =
                got.iter().filter(|(from, _)| *from == port).map(|(_, number)| *number).collect();
            assert_eq!(of_port, numbers, "of port {port}");
        }
        node_ports(got).len()
    };
    send(&mut node, 1, now);
    send(&mut node, 2, now);
    let got = kernel.read(&mut node, now);
    let waiting = ports.len() - whole(&got, &[1, 2]);
    assert!(waiting > 0, "none of the ports has the lane that is refused");
    kernel.pass(&mut node, &mut now, REFUSED_MAX + Duration::from_secs(1));
    send(&mut node, 3, now);
    let got = kernel.read(&mut node, now);
    let late: Vec<(u16, u8)> =
        got.iter().copied().filter(|(port, _)| got.contains(&(*port, 1))).collect();
    assert_eq!(whole(&late, &[1, 2, 3]), waiting);
    assert_eq!(kernel.notices, [Notice::Refused(address(LARGE), 7)]);

    // It is used again once the kernel takes it and nothing is left on the other.
    kernel.most = LANES_MAX;
    kernel.pass(&mut node, &mut now, DIALLED_AGAIN + Duration::from_secs(1));
    assert_eq!(kernel.taken.len(), LANES_MAX);
    // (In this test's second a port of the other would have something queued first.)
    let first = *node_ports(&late).first().unwrap();
    node.send(first, (address(LARGE), 9), &[4], now).unwrap();
    assert_eq!(kernel.read(&mut node, now), [(first, 4)]);
    send(&mut node, 5, now);
    assert_eq!(whole(&kernel.read(&mut node, now), &[5]), ports.len());
    let last = &node.report().peers[0].lanes[7];
    assert_eq!(last.counts.sent, 1 + waiting as u64);
}

fn node_ports(got: &[(u16, u8)]) -> std::collections::BTreeSet<u16> {
    got.iter().map(|(port, _)| *port).collect()
}

#[test]
fn what_a_connection_has_seen_of_it_goes_by_the_other_too() {
    let mut now = Time::ZERO;
    let (mut node, mut kernel, ports) = with_eight(LANES_MAX, &mut now);
    kernel.read(&mut node, now);
    for port in &ports {
        node.send(*port, (address(LARGE), 9), &[1], now).unwrap();
    }
    // All is given to connections, and the last one breaks before anything is acknowledged.
    let last = kernel.taken.pop().unwrap();
    let of_last = written(&mut node, last);
    assert!(!of_last.is_empty());
    kernel.most = LANES_MAX - 1;
    kernel.read(&mut node, now);
    node.closed(last, now);
    kernel.pass(&mut node, &mut now, REFUSED_MAX + Duration::from_secs(1));
    let again = kernel.read(&mut node, now);
    let wanted: Vec<(u16, u8)> =
        of_last.iter().map(|(header, body)| (header.from, body[0])).collect();
    assert_eq!(again, wanted);
}
