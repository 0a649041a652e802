//! Messages that are no longer wanted: answers to pings of peers that do not read or have gone, and
//! messages of ports that were closed.

use super::*;
use crate::proto::header::PROBE_PORT;
use crate::proto::lane::{ANSWERS_ALL_MAX, ANSWERS_EACH, ANSWERS_MAX};
use crate::proto::node::{GIVE_UP, LEAVING_BYTES_MAX, Notice};

fn peer(number: u32) -> IpAddr {
    IpAddr::V4(core::net::Ipv4Addr::from_bits(0x0a00_0000 + number))
}

/// One that has connected, and whose map has come.
fn connected(node: &mut Node, number: u32, now: Time) -> Connection {
    let connection = node.accept(peer(number), 40_000, now).unwrap();
    node.received(connection, &kernel_map(), now);
    connection
}

fn ping(node: &mut Node, connection: Connection, count: usize, now: Time) {
    let ping = message(0, 99, 0, 0, b"");
    node.received(connection, &ping.repeat(count), now);
}

fn queued(node: &Node) -> usize {
    let report = node.report();
    report.peers.iter().flat_map(|peer| &peer.lanes).map(|lane| lane.queued).sum()
}

#[test]
fn answers_to_pings_of_many_peers_are_bounded_together() {
    let mut node = node("255.0.0.1");
    let peers = 2 * (ANSWERS_ALL_MAX / ANSWERS_MAX) as u32;
    let lanes: Vec<Connection> = (0..peers)
        .map(|number| {
            let connection = connected(&mut node, number, Time::ZERO);
            ping(&mut node, connection, ANSWERS_MAX, Time::ZERO);
            connection
        })
        .collect();
    let most = ANSWERS_ALL_MAX + peers as usize * (ANSWERS_EACH + 1);
    assert!((ANSWERS_ALL_MAX..most).contains(&queued(&node)), "{}", queued(&node));
    let said = |request: &Request| *request == Request::Notice(Notice::AnswersOfAll);
    assert_eq!(requests(&mut node).iter().filter(|request| said(request)).count(), 1);
    // Those who do no wrong are served still, and new ones find out how many lanes there are.
    let good = connected(&mut node, peers, Time::ZERO);
    node.received(good, &probe(1, PROBE_PORT, 0, &[5, 0, 8]), Time::ZERO);
    ping(&mut node, good, 1, Time::ZERO);
    let answers = written(&mut node, good);
    let to =
        |port| answers.iter().filter(|(header, _)| (header.from, header.to) == (0, port)).count();
    assert_eq!((to(PROBE_PORT), to(99)), (1, 1));
    // Once they are read, all is as before.
    for connection in &lanes {
        written(&mut node, *connection);
        node.acknowledged(*connection, progress(u64::MAX), Time::ZERO);
    }
    ping(&mut node, lanes[0], ANSWERS_MAX, Time::ZERO);
    let report = node.report();
    assert_eq!(report.peers[0].lanes[0].queued, ANSWERS_MAX);
}

#[test]
fn a_peer_that_is_gone_is_not_called_for_answers_to_its_pings_and_they_are_dropped() {
    let mut node = node("255.0.0.1");
    let connection = connected(&mut node, 1, Time::ZERO);
    ping(&mut node, connection, 100, Time::ZERO);
    assert_eq!(queued(&node), 101, "and the probe");
    node.closed(connection, Time::ZERO);
    requests(&mut node);
    let mut now = Time::ZERO;
    while let Some(then) = node.next_tick() {
        assert!(then.since(Time::ZERO) < 2 * GIVE_UP, "it goes on for ever");
        now = then.max(now);
        node.tick(now);
        let asked = requests(&mut node);
        assert!(!asked.iter().any(|request| matches!(request, Request::Dial { .. })), "{asked:?}");
    }
    assert!(now.since(Time::ZERO) >= GIVE_UP && queued(&node) == 1, "{}", queued(&node));
    // It comes back: its probe is answered, and it gets ours.
    let again = connected(&mut node, 1, now);
    node.received(again, &probe(1, PROBE_PORT, 0, &[5, 0, 8]), now);
    assert_eq!(written(&mut node, again).len(), 3, "map, probe and answer");
}

/// A node whose peer does not answer.
fn alone() -> (Node, IpAddr) {
    let mut config = Config::new(address(SMALL), 7, 1);
    config.lanes = 1;
    (Node::new(config), address(LARGE))
}

/// So much time that the peer, which does not answer, is given up.
fn give_up(node: &mut Node, since: Time) {
    let mut now = since;
    while now < since.after(GIVE_UP + GIVE_UP) {
        now = now.after(std::time::Duration::from_millis(500));
        node.tick(now);
        for request in requests(node) {
            if let Request::Dial { connection, .. } = request {
                node.failed(connection, "refused", now);
            }
        }
    }
}

#[test]
fn what_closed_ports_leave_is_bounded() {
    let (mut node, gone) = alone();
    let stays = node.bind(4000).unwrap();
    node.send(stays, (gone, 9), b"first", Time::ZERO).unwrap();
    for number in 0..200_u64 {
        let port = node.bind(0).unwrap();
        while node.send(port, (gone, 9), &vec![1; 1 << 20], at_ms(number)).is_ok() {}
        node.unbind(port);
        assert!(node.leaving_bytes() <= LEAVING_BYTES_MAX, "{}", node.leaving_bytes());
    }
    node.send(stays, (gone, 9), b"last", at_ms(200)).unwrap();
    let report = node.report();
    let bytes = report.peers[0].lanes[0].queued_bytes;
    assert!((LEAVING_BYTES_MAX / 2..LEAVING_BYTES_MAX + 1000).contains(&bytes), "{bytes}");
    assert!(report.totals.left_behind > 100, "{}", report.totals.left_behind);
    // After a while nothing of it is kept, and what the port that is there has sent is.
    give_up(&mut node, at_ms(200));
    assert_eq!((node.leaving_bytes(), queued(&node)), (0, 2));
}

#[test]
fn what_is_dropped_leaves_the_others_whole_and_in_order() {
    let (mut node, there) = alone();
    let (stays, goes) = (node.bind(4000).unwrap(), node.bind(4001).unwrap());
    let body = |number: usize| vec![number as u8; 1 + number * 977 % 5000];
    node.send(goes, (there, 9), &vec![1; 1 << 20], Time::ZERO).unwrap();
    let Some(Request::Dial { connection, .. }) = node.poll() else { panic!() };
    node.connected(connection, Time::ZERO);
    node.received(connection, &kernel_map(), Time::ZERO);
    // A message of the one that goes is begun, and must be whole.
    while node.to_write(connection).iter().map(|part| part.len()).sum::<usize>() < 1 << 20 {
        let count = node.to_write(connection)[0].len();
        node.wrote(connection, count);
    }
    node.wrote(connection, 1000);
    for number in 0..100 {
        node.send(
            if number % 3 == 0 { goes } else { stays },
            (there, 9),
            &body(number),
            Time::ZERO,
        )
        .unwrap();
    }
    // The remaining messages of others fill the room for what this one leaves.
    let mut leave = |messages: usize| {
        let port = node.bind(0).unwrap();
        for _ in 0..messages {
            node.send(port, (there, 9), &vec![1; 1 << 20], Time::ZERO).unwrap();
        }
        node.unbind(port);
    };
    (0..32).for_each(|_| leave(2));
    leave(1);
    node.unbind(goes);
    let left = node.to_write(connection).concat();
    let rest = &left[(1 << 20) + 48 - 1000..];
    let mut found = Vec::new();
    let mut bytes = rest;
    while let Some((header, after)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let header = Header::parse(header);
        let (here, next) = after.split_at(header.length as usize);
        if header.from == stays {
            found.push(here.to_vec());
        }
        assert_ne!(header.from, goes);
        bytes = next;
    }
    let wanted: Vec<Vec<u8>> = (0..100).filter(|number| number % 3 != 0).map(body).collect();
    assert!(bytes.is_empty() && found == wanted, "{} messages", found.len());
}

#[test]
fn a_port_that_is_taken_again_waits_for_nothing_of_its_last_owner_s() {
    let (mut node, gone) = alone();
    node.bind(4000).unwrap();
    while node.send(4000, (gone, 9), &vec![1; 1 << 20], Time::ZERO).is_ok() {}
    node.unbind(4000);
    let left = node.leaving_bytes();
    assert!(left > 1 << 20);
    node.bind(4000).unwrap();
    node.send(4000, (gone, 9), b"x", Time::ZERO).unwrap();
    // What the last owner has sent is dropped after a while, and what this one has sent is not.
    give_up(&mut node, Time::ZERO);
    assert_eq!((node.leaving_bytes(), queued(&node)), (0, 1));
    assert_eq!(node.report().ports[0].sent_bytes, 1 + HEADER_BYTES);
}

/// Each looked through all that others had queued, on all lanes: this took minutes.
#[test]
fn ports_that_are_taken_and_given_back_cost_others_nothing() {
    const OTHERS: usize = 200_000;
    let mut config = Config::new(address(SMALL), 7, 1);
    (config.lanes, config.send_buffer) = (1, 1 << 30);
    let (mut node, gone) = (Node::new(config), address(LARGE));
    let stays = node.bind(4000).unwrap();
    for _ in 0..OTHERS {
        node.send(stays, (gone, 9), b"", Time::ZERO).unwrap();
    }
    let come_and_go = |node: &mut Node| {
        for _ in 0..10_000 {
            let port = node.bind(4001).unwrap();
            node.send(port, (gone, 9), b"x", Time::ZERO).unwrap();
            node.unbind(port);
        }
    };
    come_and_go(&mut node);
    assert_eq!(queued(&node), OTHERS + 10_000);
    // So many messages of closed ports remain that no more are kept.
    let filler = node.bind(4002).unwrap();
    let rest = LEAVING_BYTES_MAX - node.leaving_bytes();
    for _ in 0..rest / (1 << 20) {
        node.send(filler, (gone, 9), &vec![1; (1 << 20) - HEADER_BYTES], Time::ZERO).unwrap();
    }
    let last = rest % (1 << 20) - HEADER_BYTES;
    node.send(filler, (gone, 9), &vec![1; last], Time::ZERO).unwrap();
    node.unbind(filler);
    assert_eq!((node.leaving_bytes(), node.report().totals.left_behind), (LEAVING_BYTES_MAX, 0));
    come_and_go(&mut node);
    assert_eq!(node.report().totals.left_behind, 10_000);
    give_up(&mut node, Time::ZERO);
    assert_eq!((node.leaving_bytes(), queued(&node)), (0, OTHERS));
}
