//! Bounds, and what a peer may do wrong.

use std::time::Duration;

use super::restarts::hawser_map;
use super::*;
use crate::proto::congestion::Map;
use crate::proto::header::{FLAG_AGAIN, FLAG_MAP, LANES_MAX, MESSAGE_BYTES_MAX, PROBE_PORT};
use crate::proto::lane::ANSWERS_MAX;
use crate::proto::node::{
    BindError, NotTaken, Notice, OVERRUN_BYTES, PARTIAL_BYTES_MAX, PEERS_MAX, SHUT_OUT, SendError,
    TooManyWait, UNANSWERED_MAX,
};

fn notices(node: &mut Node) -> Vec<Notice> {
    let notice = |request| match request {
        Request::Notice(notice) => Some(notice),
        _ => None,
    };
    requests(node).into_iter().filter_map(notice).collect()
}

/// A node that one with the smaller address has dialled.
fn accepted(receive_buffer: usize) -> (Node, Connection) {
    let mut config = Config::new(address(LARGE), 7, 1);
    config.receive_buffer = receive_buffer;
    let mut node = Node::new(config);
    let connection = node.accept(address(SMALL), 40_000, Time::ZERO).unwrap();
    node.received(connection, &kernel_map(), Time::ZERO);
    written(&mut node, connection);
    requests(&mut node);
    (node, connection)
}

#[test]
fn a_message_of_the_most_goes_and_one_byte_more_does_not() {
    let (mut node, _, port) = dialled(Time::ZERO);
    let to = (address(LARGE), 9);
    let body = vec![0; MESSAGE_BYTES_MAX + 1];
    assert_eq!(node.send(port, to, &body, Time::ZERO), Err(SendError::TooLong));
    assert_eq!(node.send(port, to, &body[1..], Time::ZERO), Ok(()));
    let mut config = Config::new(address(SMALL), 1, 1);
    config.send_buffer = 1000;
    let mut node = Node::new(config);
    let port = node.bind(0).unwrap();
    assert_eq!(node.send(port, to, &[0; 1001], Time::ZERO), Err(SendError::TooLong));
    assert_eq!(node.send(port, to, &[0; 1000], Time::ZERO), Ok(()));
    assert_eq!(node.send(port, to, &[0; 1], Time::ZERO), Err(SendError::Full));
}

#[test]
fn room_is_reported_once_tcp_has_acknowledged() {
    let now = Time::ZERO;
    let mut config = Config::new(address(SMALL), 1, 1);
    (config.send_buffer, config.lanes) = (1000, 1);
    let mut node = Node::new(config);
    let port = node.bind(0).unwrap();
    let to = (address(LARGE), 9);
    node.send(port, to, &[1; 1000], now).unwrap();
    assert_eq!(node.send(port, to, &[2; 10], now), Err(SendError::Full));
    let Some(Request::Dial { connection, .. }) = node.poll() else { panic!() };
    node.connected(connection, now);
    node.received(connection, &kernel_map(), now);
    written(&mut node, connection);
    let all = 48 + 8192 + 1048; // and then the probe
    node.acknowledged(connection, progress(all - 1), now);
    assert!(!requests(&mut node).contains(&Request::Room(port)), "one byte is missing");
    node.acknowledged(connection, progress(all), now);
    assert!(requests(&mut node).contains(&Request::Room(port)));
    assert_eq!(node.send(port, to, &[2; 10], now), Ok(()));
}

#[test]
fn a_length_beyond_the_most_resets_the_lane_and_shuts_the_peer_out_for_a_while() {
    let (mut node, connection) = accepted(1000);
    let header = Header { length: 1 << 30, to: 5, ..Header::default() }.encode();
    node.received(connection, &header, Time::ZERO);
    let asked = requests(&mut node);
    assert!(asked.contains(&Request::Close(connection)), "{asked:?}");
    let said = Notice::TooLong(address(SMALL), 1 << 30);
    assert!(asked.contains(&Request::Notice(said)));
    assert_eq!(node.accept(address(SMALL), 1, Time::ZERO), Err(NotTaken::Refuse));
    let later = Time::ZERO.after(SHUT_OUT);
    let again = node.accept(address(SMALL), 1, later).unwrap();
    node.received(again, &header, later);
    assert!(notices(&mut node).is_empty(), "said once");
    // Others are not concerned.
    assert!(node.accept(address("10.0.0.0"), 8, later).is_ok());
}

#[test]
fn a_number_below_the_expected_one_is_dropped_only_if_flagged() {
    let (mut node, connection) = accepted(100_000);
    let port = node.bind(5).unwrap();
    for (sequence, flags) in
        [(1, 0), (2, 0), (2, FLAG_AGAIN), (9, 0), (3, 0), (u64::MAX, 0), (1, 0)]
    {
        node.received(connection, &message(sequence, 4, 5, flags, &[sequence as u8]), Time::ZERO);
    }
    let got: Vec<u8> = std::iter::from_fn(|| node.receive(port)).map(|d| d.body[0]).collect();
    assert_eq!(got, [1, 2, 9, 3, 255, 1]);
    assert_eq!(node.report().peers[0].lanes[0].counts.duplicates, 1);
}

#[test]
fn what_was_not_acknowledged_is_sent_again_from_its_first_byte_with_its_number() {
    let mut now = Time::ZERO;
    let (mut node, connection, port) = dialled(now);
    node.received(connection, &kernel_map(), now);
    let count = node.to_write(connection)[0].len();
    node.wrote(connection, count);
    let all = 48 + 48 + 5;
    node.wrote(connection, all);
    node.received(connection, &probe(1, 0, 1, &[5, 0, 1]), now);
    for part in [b"two", b"thr"] {
        node.send(port, (address(LARGE), 9), part, now).unwrap();
    }
    // The map, the probe and "first" are acknowledged; "two" was written in part, "thr" not at all.
    node.wrote(connection, 48 + 1);
    node.acknowledged(connection, progress((count + all) as u64), now);
    node.closed(connection, now);
    now = now.after(Duration::from_millis(2));
    node.tick(now);
    let again = requests(&mut node).into_iter().find_map(|request| match request {
        Request::Dial { connection, .. } => Some(connection),
        _ => None,
    });
    let again = again.unwrap();
    node.connected(again, now);
    let sent = written(&mut node, again);
    let seen: Vec<_> =
        sent.iter().map(|(h, body)| (h.sequence, h.flags, body.len(), body.first())).collect();
    assert_eq!(seen[0].1, FLAG_MAP);
    assert_eq!(seen[1..], [(3, FLAG_AGAIN, 3, Some(&b't')), (4, 0, 3, Some(&b't'))]);
}

#[test]
fn a_full_queue_is_congested_until_half_of_it_is_taken() {
    let (mut node, connection) = accepted(1000);
    let port = node.bind(4001).unwrap();
    node.received(connection, &message(1, 4, 4001, 0, &[0; 900]), Time::ZERO);
    assert!(written(&mut node, connection).is_empty());
    node.received(connection, &message(2, 4, 4001, 0, &[0; 100]), Time::ZERO);
    let map = written(&mut node, connection);
    assert_eq!((map[0].0.flags, map[0].0.sequence, map[0].1[4001 / 8]), (FLAG_MAP, 2, 2));
    node.receive(port).unwrap();
    let map = written(&mut node, connection);
    assert_eq!(map[0].1[4001 / 8], 0);
}

/// Reads from a connection as its driver does. Returns how much was taken.
fn read(node: &mut Node, connection: Connection, bytes: &[u8], now: Time) -> usize {
    let must_ask = node.must_ask(connection, now);
    let count = if must_ask { node.may_take(connection, bytes, now) } else { bytes.len() };
    node.received(connection, &bytes[..count], now);
    count
}

#[test]
fn a_queue_that_overruns_stops_the_reading_until_it_is_taken() {
    let (mut node, connection) = accepted(1000);
    let (port, other) = (node.bind(4001).unwrap(), node.bind(4002).unwrap());
    let whole = message(1, 4, port, 0, &vec![0; MESSAGE_BYTES_MAX]);
    let now = at_ms(7);
    let mut count = 0;
    while read(&mut node, connection, &whole, now) > 0 {
        count += 1;
    }
    assert_eq!(count, OVERRUN_BYTES / MESSAGE_BYTES_MAX + 1);
    assert!(requests(&mut node).contains(&Request::Pause(connection)));
    assert_eq!(node.stopping().collect::<Vec<_>>(), [(port, now)]);
    // A quarter of it is enough, whatever it is congested by; and less is not.
    (0..2).for_each(|_| drop(node.receive(port)));
    assert!(!requests(&mut node).contains(&Request::Resume(connection)));
    node.receive(port);
    assert!(requests(&mut node).contains(&Request::Resume(connection)));
    assert_eq!((node.stopping().count(), node.must_ask(connection, now)), (0, false));
    // What is for others comes, up to a message for the one that is full.
    while !node.must_ask(connection, now) {
        read(&mut node, connection, &whole, now);
    }
    let both = [&message(1, 4, other, 0, b"x")[..], &message(1, 4, 9, 0, b"y")].concat();
    assert_eq!(read(&mut node, connection, &[&both[..], &whole].concat(), now), both.len());
    assert_eq!(node.receive(other).unwrap().body, b"x");
    assert!(requests(&mut node).contains(&Request::Pause(connection)));
    // And when the port is given back instead.
    node.unbind(port);
    assert!(requests(&mut node).contains(&Request::Resume(connection)));
    assert!(!node.must_ask(connection, now));
}

/// Each connection brought one more message: of 200 peers that was 200 MiB.
#[test]
fn many_peers_bring_no_more_to_a_full_port_than_one() {
    let mut node = node("255.0.0.1");
    let port = node.bind(5).unwrap();
    let whole = message(1, 4, 5, 0, &vec![7; MESSAGE_BYTES_MAX]);
    for number in 0..200 {
        let from = IpAddr::V4(core::net::Ipv4Addr::from_bits(0x0a00_0000 + number));
        let connection = node.accept(from, 8, Time::ZERO).unwrap();
        // Its first half is there before the port is full, or not.
        let stream = [kernel_map(), whole.clone()].concat();
        for part in stream.chunks(256 << 10) {
            if read(&mut node, connection, part, Time::ZERO) < part.len() {
                break;
            }
        }
    }
    let queued = node.report().ports[0].queued_bytes;
    let most = node.config().receive_buffer + OVERRUN_BYTES + MESSAGE_BYTES_MAX + 1000;
    assert!(queued <= most, "{queued} of {most}");
    assert_eq!(node.receive(port).unwrap().body.len(), MESSAGE_BYTES_MAX);
}

#[test]
fn a_congested_port_is_not_sent_to() {
    let now = Time::ZERO;
    let (mut node, connection, port) = dialled(now);
    let mut bits = [0; 8192];
    bits[9 / 8] = 1 << (9 % 8);
    node.received(connection, &message(0, 0, 0, FLAG_MAP, &bits), now);
    let to = address(LARGE);
    assert_eq!(node.send(port, (to, 9), b"x", now), Err(SendError::Congested));
    assert_eq!(node.send(port, (to, 10), b"x", now), Ok(()));
    requests(&mut node);
    node.received(connection, &kernel_map(), now);
    assert!(requests(&mut node).contains(&Request::Room(port)));
    assert_eq!(node.send(port, (to, 9), b"x", now), Ok(()));
    // A map of another length is no map.
    node.received(connection, &message(0, 0, 0, FLAG_MAP, &bits[1..]), now);
    assert_eq!(notices(&mut node), [Notice::BadMap(to)]);
    assert_eq!(node.send(port, (to, 9), b"x", now), Ok(()));
}

#[test]
fn of_two_maps_by_different_lanes_the_newer_one_counts_whichever_comes_first() {
    let now = Time::ZERO;
    let (mut small, first, port) = dialled(now);
    let said = [5, 0, 8, 6, 0, 0, 0, 9, 8, 0];
    let map = |generation: u8, number: u64, bits: u8| {
        let mut bytes = message(number, 0, 0, FLAG_MAP, &[bits; 8192]);
        bytes[32..42].copy_from_slice(&said);
        bytes[39] = generation;
        bytes
    };
    small.received(first, &map(9, 1, 0), now);
    let Some(second) = requests(&mut small).into_iter().find_map(|request| match request {
        Request::Dial { connection, .. } => Some(connection),
        _ => None,
    }) else {
        panic!("no second lane")
    };
    small.connected(second, now);
    // It was congested for a moment: that it is not any more comes first.
    small.received(second, &map(9, 3, 0), now);
    small.received(first, &map(9, 2, 255), now);
    let to = (address(LARGE), 9);
    assert_eq!(small.send(port, to, b"x", now), Ok(()));
    small.received(first, &map(9, 4, 255), now);
    assert_eq!(small.send(port, to, b"x", now), Err(SendError::Congested));
    // Another start counts from 1 again, and a kernel does not count.
    let again = |small: &mut Node, last: Connection| {
        requests(small);
        small.closed(last, now);
        small.tick(at_ms(2000));
        let dial = requests(small).into_iter().find_map(|request| match request {
            Request::Dial { connection, .. } => Some(connection),
            _ => None,
        });
        small.connected(dial.unwrap(), at_ms(2000));
        dial.unwrap()
    };
    let third = again(&mut small, second);
    small.received(third, &map(10, 1, 0), now);
    assert_eq!(small.send(port, to, b"x", now), Ok(()));
    let fourth = again(&mut small, third);
    small.received(fourth, &message(0, 0, 0, FLAG_MAP, &[255; 8192]), now);
    assert_eq!(small.send(port, to, b"x", now), Err(SendError::Congested));
}

/// All ports of a peer are congested.
fn full_map() -> Vec<u8> {
    message(0, 0, 0, FLAG_MAP, &[255; 8192])
}

#[test]
fn congestion_of_a_peer_that_is_gone_stops_no_sender() {
    // One that dials, and that nothing here would dial again.
    let (mut node, connection) = accepted(1000);
    let port = node.bind(0).unwrap();
    let to = (address(SMALL), 9);
    node.acknowledged(connection, progress(1 << 20), Time::ZERO);
    node.received(connection, &full_map(), Time::ZERO);
    assert_eq!(node.send(port, to, b"x", Time::ZERO), Err(SendError::Congested));
    requests(&mut node);
    node.closed(connection, Time::ZERO);
    assert!(requests(&mut node).contains(&Request::Room(port)));
    assert_eq!(node.send(port, to, b"x", at_ms(2000)), Ok(()));
    let knocks = |request: &Request| matches!(request, Request::Dial { .. });
    assert!(requests(&mut node).iter().any(knocks));
}

#[test]
fn a_peer_that_is_given_up_is_dialled_again_for_what_waited_for_its_congestion() {
    let (mut node, connection, port) = dialled(Time::ZERO);
    let to = (address(LARGE), 9);
    node.received(connection, &full_map(), Time::ZERO);
    node.received(connection, &probe(1, 0, 1, &[5, 0, 1]), Time::ZERO);
    written(&mut node, connection);
    node.acknowledged(connection, progress(1 << 20), Time::ZERO);
    assert_eq!(node.send(port, to, b"x", Time::ZERO), Err(SendError::Congested));
    node.closed(connection, Time::ZERO);
    let mut room_at = None;
    for second in 0..200 {
        let now = at_ms(1000 * second);
        node.tick(now);
        for request in requests(&mut node) {
            match request {
                Request::Dial { connection, .. } => node.failed(connection, "refused", now),
                Request::Room(of) if of == port => room_at = room_at.or(Some(second)),
                _ => {}
            }
        }
    }
    assert!(room_at.is_some_and(|second| (60..70).contains(&second)), "{room_at:?}");
    assert_eq!(node.send(port, to, b"x", at_ms(201_000)), Ok(()));
    assert!(matches!(node.poll(), Some(Request::Dial { .. })));
}

#[test]
fn a_peer_that_restarts_on_each_connection_is_reported_a_few_times_and_let_in_once_a_second() {
    let (mut node, first) = accepted(1000);
    node.closed(first, Time::ZERO);
    let mut taken = 0;
    let mut start = |node: &mut Node, generation: u32, now: Time| {
        let [a, b, c, d] = generation.to_be_bytes();
        let said = probe(generation.into(), 1, 0, &[5, 0, 8, 6, a, b, c, d, 8, 0]);
        let Ok(connection) = node.accept(address(SMALL), 40_000, now) else { return 0 };
        taken += 1;
        node.received(connection, &said, now);
        node.closed(connection, now);
        let is_restart = |notice: &Notice| matches!(notice, Notice::Restarted(..));
        notices(node).iter().filter(|notice| is_restart(notice)).count()
    };
    let said: usize = (1..=1000).map(|n| start(&mut node, n, at_ms(n.into()))).sum();
    assert_eq!(said, LANES_MAX);
    let later: usize = (1..=1000).map(|n| start(&mut node, 5000 + n, at_ms(70_000))).sum();
    assert_eq!(later, LANES_MAX);
    assert!(taken < 3 * LANES_MAX, "{taken} of 2000 are taken");
}

/// One reading held 5,461 probes, each of another start with another number of lanes: for each of them all
/// that was queued was copied.
#[test]
fn a_connection_that_names_another_start_is_reset() {
    for second in [&[5, 0, 1, 6, 0, 0, 0, 2, 8, 0][..], &[5, 0, 1]] {
        let (mut node, connection) = accepted(1000);
        let one = probe(1, 1, 0, &[5, 0, 8, 6, 0, 0, 0, 1, 8, 0]);
        node.received(connection, &[one, probe(2, 1, 0, second)].concat(), Time::ZERO);
        let asked = requests(&mut node);
        assert!(asked.contains(&Request::Close(connection)), "{asked:?}");
        assert!(asked.contains(&Request::Notice(Notice::TwoStarts(address(SMALL)))));
        let peer = &node.report().peers[0];
        assert_eq!((peer.paths, peer.generation), (8, 1));
        assert_eq!(node.accept(address(SMALL), 40_000, Time::ZERO), Err(NotTaken::Refuse));
    }
}

/// One that ignored congestion filled the port again each time, and the time started again.
#[test]
fn a_connection_waits_for_a_full_port_since_its_message_came_though_others_are_taken_before_it() {
    let (mut node, first) = accepted(1000);
    let port = node.bind(4001).unwrap();
    let second = node.accept(address("10.0.0.0"), 40_000, Time::ZERO).unwrap();
    node.received(second, &kernel_map(), Time::ZERO);
    let whole = message(1, 4, port, 0, &vec![0; MESSAGE_BYTES_MAX]);
    while read(&mut node, first, &whole, at_ms(7)) > 0 {}
    assert_eq!(read(&mut node, second, &whole, at_ms(9)), 0);
    for round in 1..4 {
        (0..3).for_each(|_| drop(node.receive(port)));
        while read(&mut node, first, &whole, at_ms(1000 * round)) > 0 {}
        assert_eq!(read(&mut node, second, &whole, at_ms(1000 * round)), 0);
        assert_eq!(node.stopping().collect::<Vec<_>>(), [(port, at_ms(9))]);
    }
    // Its message is taken.
    (0..3).for_each(|_| drop(node.receive(port)));
    assert_eq!(read(&mut node, second, &whole, at_ms(5000)), whole.len());
    while read(&mut node, second, &whole, at_ms(5001)) > 0 {}
    while read(&mut node, first, &whole, at_ms(5002)) > 0 {}
    assert!(node.stopping().all(|(_, since)| since >= at_ms(3000)));
}

#[test]
fn pings_to_itself_of_a_port_that_does_not_read_are_bounded() {
    let mut config = Config::new(address(SMALL), 1, 1);
    config.receive_buffer = 1000;
    let mut node = Node::new(config);
    let port = node.bind(0).unwrap();
    let mut ping = || node.send(port, (address(SMALL), 0), b"", Time::ZERO);
    let taken = (0..1000).take_while(|_| ping() == Ok(())).count();
    assert!((1..30).contains(&taken), "{taken}");
    assert_eq!(ping(), Err(SendError::Congested));
    while node.receive(port).is_some() {}
    assert!(requests(&mut node).contains(&Request::Room(port)));
}

#[test]
fn that_a_port_which_pings_is_congested_does_not_mean_that_its_host_reads_no_answers() {
    let (mut node, connection) = accepted(1000);
    let mut map = Map::default();
    map.set(99, true);
    let mut bits = [0; 8192];
    map.write(&mut bits);
    node.received(connection, &message(0, 0, 0, FLAG_MAP, &bits), Time::ZERO);
    node.received(connection, &message(1, 99, 0, 0, b""), Time::ZERO);
    assert_eq!(node.report().totals.pings_unanswered, 1);
    assert_eq!(notices(&mut node), []);
}

#[test]
fn pings_of_a_peer_that_does_not_read_are_bounded() {
    let (mut node, connection) = accepted(1000);
    for sequence in 0..3 * ANSWERS_MAX as u64 {
        node.received(connection, &message(sequence, 99, 0, 0, b""), Time::ZERO);
    }
    let lane = &node.report().peers[0].lanes[0];
    assert!(lane.queued <= ANSWERS_MAX + 1, "{}", lane.queued);
    assert_eq!(notices(&mut node), [Notice::Answers(address(SMALL))]);
}

#[test]
fn messages_to_an_unbound_port_are_dropped_and_reported_once() {
    let (mut node, connection) = accepted(1000);
    for sequence in 1..100 {
        node.received(
            connection,
            &message(sequence, 4, sequence as u16 + 100, 0, b"x"),
            Time::ZERO,
        );
    }
    assert_eq!(notices(&mut node), [Notice::NoPort(address(SMALL), 101)]);
    assert_eq!(node.report().totals.no_port, 99);
}

#[test]
fn extensions_that_lie_are_ignored_and_said_once() {
    let (mut node, connection) = accepted(1000);
    // 77 is unknown; a number of lanes that begins in the last byte is cut off.
    for (sequence, extensions) in [(1, [77; 16]), (2, [77; 16])] {
        node.received(connection, &probe(sequence, 1, 0, &extensions), Time::ZERO);
    }
    assert_eq!(notices(&mut node), [Notice::Extension(address(SMALL), 77)]);
    assert_eq!(node.report().peers[0].paths, 1, "it has said nothing of lanes");
    for (lanes, paths) in [(0, 1), (3, 3), (9, 8), (u16::MAX, 8)] {
        let (mut node, connection) = accepted(1000);
        let [high, low] = u16::to_be_bytes(lanes);
        node.received(connection, &probe(1, 1, 0, &[5, high, low]), Time::ZERO);
        assert_eq!(node.report().peers[0].paths, paths, "{lanes} lanes");
    }
}

#[test]
fn connections_beyond_the_lanes_wait_and_what_was_reset_is_said_once() {
    let (mut node, _) = accepted(1000);
    for port in 0..20 {
        assert_eq!(node.accept(address(SMALL), port, Time::ZERO), Err(NotTaken::Wait));
    }
    assert!(notices(&mut node).is_empty(), "they may have a lane later");
    for _ in 0..5 {
        node.refused_to_wait(address(SMALL), TooManyWait::OfPeer);
        node.refused_to_wait(address(SMALL), TooManyWait::OfAll);
    }
    let said =
        [TooManyWait::OfPeer, TooManyWait::OfAll].map(|it| Notice::Lanes(address(SMALL), it));
    assert_eq!(notices(&mut node), said);
    let [of_peer, of_all] = said.map(|notice| notice.to_string());
    assert!(of_peer.contains(": 8 of them wait") && of_all.contains("1024 wait in all"));
    assert_eq!(node.report().totals.refused, 10);
}

#[test]
fn of_a_peer_that_never_reads_no_more_is_kept_than_the_send_buffer_and_others_get_theirs() {
    let now = Time::ZERO;
    let mut config = Config::new(address(SMALL), 7, 1);
    (config.send_buffer, config.lanes) = (100_000, 1);
    let mut node = Node::new(config);
    let (port, other_port) = (node.bind(0).unwrap(), node.bind(0).unwrap());
    let (deaf, other) = (address(LARGE), address("10.0.0.3"));
    node.send(port, (deaf, 9), b"x", now).unwrap();
    let Some(Request::Dial { connection, .. }) = node.poll() else { panic!() };
    node.connected(connection, now);
    node.received(connection, &kernel_map(), now);
    written(&mut node, connection);
    let sent = (0..1000).filter(|_| node.send(port, (deaf, 9), &[0; 9952], now).is_ok()).count();
    assert_eq!(sent, 10, "10,000 bytes each with their headers, and the first message");
    assert_eq!(node.send(port, (deaf, 9), b"x", now), Err(SendError::Full));
    assert!(node.report().peers[0].lanes[0].queued_bytes < 110_200);
    assert_eq!(node.send(other_port, (other, 9), b"x", now), Ok(()));
}

#[test]
fn peers_are_bounded_and_the_idle_ones_forgotten() {
    let mut node = node("255.0.0.1");
    let at = |number: u32| IpAddr::V4(core::net::Ipv4Addr::from_bits(0x0a00_0000 + number));
    for number in 0..PEERS_MAX as u32 {
        node.accept(at(number), 8, Time::ZERO).unwrap();
    }
    requests(&mut node);
    let one_more = at(PEERS_MAX as u32);
    assert_eq!(node.accept(one_more, 8, Time::ZERO), Err(NotTaken::Refuse));
    let another = at(PEERS_MAX as u32 + 1);
    assert_eq!(node.accept(another, 8, Time::ZERO), Err(NotTaken::Refuse));
    assert_eq!(notices(&mut node), [Notice::Peers(one_more)], "once for all peers");
    assert_eq!(node.report().totals.refused, 2);
}

/// One program sent to 4,200 hosts that are not there, and no new peer was taken any more.
#[test]
fn hosts_that_never_answer_shut_no_others_out() {
    let now = Time::ZERO;
    let mut node = node("255.0.0.1");
    let at = |number: u32| IpAddr::V4(core::net::Ipv4Addr::from_bits(0x0a00_0000 + number));
    let mut next = 0;
    let mut send_to_new = |node: &mut Node, port| {
        next += 1;
        node.send(port, (at(next), 9), b"x", now)
    };
    let greedy = node.bind(0).unwrap();
    let sent = (0..1000).filter(|_| send_to_new(&mut node, greedy).is_ok()).count();
    assert_eq!(sent, UNANSWERED_MAX);
    assert_eq!(send_to_new(&mut node, greedy), Err(SendError::Unanswered));
    // Many ports, or one that is given back and taken again, can hold all places.
    let others: Vec<u16> = (0..30).map(|_| node.bind(0).unwrap()).collect();
    for number in 0..PEERS_MAX - UNANSWERED_MAX {
        send_to_new(&mut node, others[number / UNANSWERED_MAX]).unwrap();
    }
    assert_eq!(node.report().peers.len(), PEERS_MAX);
    requests(&mut node);
    let outside = address("11.0.0.1");
    let connection = node.accept(outside, 8, now).unwrap();
    node.received(connection, &kernel_map(), now);
    let displaced = |request: &Request| matches!(request, Request::Notice(Notice::Displaced(_)));
    assert_eq!(requests(&mut node).iter().filter(|request| displaced(request)).count(), 1);
    let quiet = node.bind(0).unwrap();
    assert_eq!(send_to_new(&mut node, quiet), Ok(()));
    assert_eq!(node.send(quiet, (outside, 9), b"x", now), Ok(()));
    assert_eq!(node.report().peers.len(), PEERS_MAX);
    // Once they answer they count no more.
    let dialled = node.bind(0).unwrap();
    let mut small = super::node(SMALL);
    small.bind(dialled).unwrap();
    for number in 0..2 * UNANSWERED_MAX as u32 {
        let to = IpAddr::V4(core::net::Ipv4Addr::from_bits(0x0b00_0000 + number));
        small.send(dialled, (to, 9), b"x", now).unwrap();
        let connection = requests(&mut small).into_iter().find_map(|request| match request {
            Request::Dial { connection, .. } => Some(connection),
            _ => None,
        });
        small.connected(connection.unwrap(), now);
        small.received(connection.unwrap(), &kernel_map(), now);
    }
}

#[test]
fn beginnings_of_messages_are_bounded_and_the_oldest_is_given_up() {
    let mut node = node("255.0.0.1");
    let port = node.bind(5).unwrap();
    let at = |number: u32| IpAddr::V4(core::net::Ipv4Addr::from_bits(0x0a00_0000 + number));
    let whole = message(1, 4, 5, 0, &vec![7; MESSAGE_BYTES_MAX]);
    let (mut closed, mut last) = (Vec::new(), None);
    let peers = (PARTIAL_BYTES_MAX / MESSAGE_BYTES_MAX) as u32 + 40;
    for number in 0..peers {
        let now = at_ms(number.into());
        let connection = node.accept(at(number), 8, now).unwrap();
        node.received(connection, &kernel_map(), now);
        node.received(connection, &whole[..whole.len() - 1], now);
        for request in requests_and_given_up(&mut node, now) {
            match request {
                Request::Close(of) => closed.push(of),
                Request::Notice(notice) => assert!(matches!(notice, Notice::Partial(_))),
                _ => {}
            }
        }
        last = Some(connection);
    }
    // (Memory is taken in steps, so somewhat more than messages have bytes.)
    assert!((40..200).contains(&closed.len()), "{}", closed.len());
    assert!(closed.is_sorted(), "in the order in which they began: {closed:?}");
    let memory: usize = node.report().peers.iter().map(|peer| peer.memory).sum();
    assert!(memory < PARTIAL_BYTES_MAX + (2 << 20), "{memory}");
    // The last one is unharmed, and the first one's message comes by another connection.
    node.received(last.unwrap(), &whole[whole.len() - 1..], at_ms(9000));
    assert_eq!(node.receive(port).unwrap().body.len(), MESSAGE_BYTES_MAX);
    let again = node.accept(at(0), 8, at_ms(9000)).unwrap();
    node.received(again, &message(1, 4, 5, FLAG_AGAIN, b"again"), at_ms(9000));
    assert_eq!(node.receive(port).unwrap().body, b"again");
}

/// What is asked for, where nothing more has come by connections that are given up.
fn requests_and_given_up(node: &mut Node, now: Time) -> Vec<Request> {
    let mut all = Vec::new();
    while let Some(request) = node.poll() {
        if let Request::GiveUp(connection) = request {
            node.give_up(connection, now);
        }
        all.push(request);
    }
    all
}

/// Counts of its lane said whether a message had become whole. A map is in none, and a connection may get
/// another lane by it.
#[test]
fn a_beginning_that_follows_the_rest_of_a_map_began_with_that() {
    for port in [40_000, 40_003] {
        let mut config = Config::new(address("255.0.0.1"), 7, 1);
        config.partials = 100_000;
        let mut node = Node::new(config);
        let map = hawser_map(1, 8);
        let begun = message(1, 9, 9, 0, &[7; 60_000]);
        let connect = |node: &mut Node, from: &str, port, at| {
            let connection = node.accept(address(from), port, at_ms(at)).unwrap();
            node.received(connection, &map[..4000], at_ms(at));
            connection
        };
        let first = connect(&mut node, "10.0.0.1", port, 0);
        let second = connect(&mut node, "10.0.0.2", port, 1);
        let go_on = [&map[4000..], &begun[..35_000]].concat();
        node.received(second, &go_on, at_ms(2));
        node.received(first, &go_on, at_ms(3));
        let asked = requests(&mut node);
        assert!(asked.contains(&Request::GiveUp(second)), "{asked:?}");
        assert!(!asked.contains(&Request::GiveUp(first)), "{asked:?}");
    }
}

#[test]
fn a_beginning_whose_port_is_full_is_not_given_up_and_one_whose_rest_had_come_stays() {
    let now = Time::ZERO;
    let mut config = Config::new(address("255.0.0.1"), 7, 1);
    (config.receive_buffer, config.overrun, config.partials) = (1000, 1000, 100_000);
    let mut node = Node::new(config);
    let (full, free) = (node.bind(5).unwrap(), node.bind(6).unwrap());
    let mut number = 0;
    let mut begin = |node: &mut Node, to| {
        number += 1;
        let from = IpAddr::V4(core::net::Ipv4Addr::from_bits(0x0a00_0000 + number));
        let connection = node.accept(from, 8, now).unwrap();
        let whole = message(1, 4, to, 0, &[7; 40_000]);
        node.received(connection, &kernel_map(), now);
        read(node, connection, &whole[..30_000], now);
        (connection, whole[30_000..].to_vec())
    };
    // The oldest waits for a port that is full.
    let (waits, rest) = begin(&mut node, full);
    let (filler, filling) = begin(&mut node, full);
    read(&mut node, filler, &filling, now);
    assert_eq!(read(&mut node, waits, &rest, now), 0);
    let (comes, rest_of_that) = begin(&mut node, free);
    let (stays_away, _) = begin(&mut node, free);
    requests(&mut node);
    begin(&mut node, free);
    // The next one's rest is there when it is read to its end: the one after it is given up then.
    let asked = requests(&mut node);
    assert_eq!(asked.iter().filter(|r| matches!(r, Request::GiveUp(_))).count(), 1);
    assert!(asked.contains(&Request::GiveUp(comes)), "{asked:?}");
    node.received(comes, &rest_of_that, now);
    node.give_up(comes, now);
    let closed = |asked: &[Request], of| asked.contains(&Request::Close(of));
    assert!(!closed(&requests(&mut node), comes));
    assert_eq!(node.receive(free).unwrap().body.len(), 40_000);
    begin(&mut node, free);
    let asked = requests_and_given_up(&mut node, now);
    assert!(closed(&asked, stays_away) && !closed(&asked, waits), "{asked:?}");
    while node.receive(full).is_some() {}
    node.received(waits, &rest, now);
    assert_eq!(node.receive(full).unwrap().body.len(), 40_000);
}

#[test]
fn an_idle_peer_takes_less_than_4_kib() {
    let now = Time::ZERO;
    let mut large = node(LARGE);
    let port = large.bind(4001).unwrap();
    let first = large.accept(address(SMALL), 40_000, now).unwrap();
    large.received(first, &kernel_map(), now);
    let new = [5, 0, 8, 6, 0, 0, 0, 1, 8, 0];
    large.received(first, &probe(1, 1, 0, &new), now);
    let mut lanes = vec![first];
    lanes.extend((1..8).map(|at| large.accept(address(SMALL), 40_000 + at, now).unwrap()));
    for _ in 0..100 {
        large.send(port, (address(SMALL), 9), &[0; 5000], now).unwrap();
    }
    for lane in &lanes {
        large.received(*lane, &message(1, 5, 4001, 0, &[1; 9000])[..4000], now);
        large.received(*lane, &message(1, 5, 4001, 0, &[1; 9000])[4000..], now);
        written(&mut large, *lane);
        large.acknowledged(*lane, progress(u64::MAX), now);
    }
    assert!(large.report().peers[0].memory > 4096);
    large.tick(at_ms(5000));
    let memory = large.report().peers[0].memory;
    assert!(memory < 4096, "{memory} bytes with eight lanes");
}

#[test]
fn ports() {
    let mut node = node(SMALL);
    assert_eq!(node.bind(1), Err(BindError::Reserved));
    assert_eq!(node.bind(4001), Ok(4001));
    assert_eq!(node.bind(4001), Err(BindError::InUse));
    let any = node.bind(0).unwrap();
    assert!(any > 1 && any != 4001);
    node.unbind(4001);
    assert_eq!(node.bind(4001), Ok(4001));
    let now = Time::ZERO;
    for wrong in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "::1"] {
        let sent = node.send(4001, (address(wrong), 9), b"x", now);
        assert_eq!(sent, Err(SendError::Address), "{wrong}");
    }
    assert_eq!(node.send(9, (address(LARGE), 9), b"x", now), Err(SendError::NotBound));
}

#[test]
fn what_is_sent_to_itself_needs_no_connection() {
    let mut node = node(SMALL);
    let (one, other) = (node.bind(10).unwrap(), node.bind(11).unwrap());
    node.send(one, (address(SMALL), other), b"x", Time::ZERO).unwrap();
    node.send(one, (address(SMALL), 0), b"", Time::ZERO).unwrap();
    assert_eq!(requests(&mut node), [Request::Readable(other), Request::Readable(one)]);
    assert_eq!(node.receive(other).unwrap().port, one);
    assert_eq!(node.receive(one).unwrap().port, 0, "the answer to a ping");
}

proptest::proptest! {
    /// What is random here is likely: headers with small numbers in them, cut anywhere.
    #[test]
    fn any_bytes_do_no_harm(
        parts in proptest::collection::vec((0u64..9, 0u16..3, 0u16..3, 0u8..8, 0u32..200), 0..30),
        tail: Vec<u8>,
        cut in 1usize..120,
    ) {
        let (mut node, mut connection) = accepted(1000);
        node.bind(2).unwrap();
        let mut bytes = Vec::new();
        for (sequence, from, to, flags, length) in parts {
            let mut header = Header { sequence, length, from, to, flags, ..Header::default() };
            header.extensions[..3].copy_from_slice(&[5, 0, length as u8]);
            bytes.extend(header.encode());
            bytes.resize(bytes.len() + length as usize, 7);
        }
        bytes.extend(tail);
        let mut now = Time::ZERO;
        for here in bytes.chunks(cut) {
            node.received(connection, here, now);
            if requests(&mut node).contains(&Request::Close(connection)) {
                now = now.after(2 * SHUT_OUT);
                connection = node.accept(address(SMALL), 40_000, now).unwrap();
            }
            written(&mut node, connection);
            node.tick(now);
        }
        let report = node.report();
        proptest::prop_assert!(report.ports[0].queued_bytes < 200 * 250);
        proptest::prop_assert!(report.peers[0].lanes.len() <= 8);
    }
}

#[test]
fn lanes_that_cannot_be_and_a_window_that_is_full_for_long_are_said_once() {
    let now = Time::ZERO;
    for (lanes, paths) in [(0, 1), (99, 8)] {
        let (mut node, connection, _) = dialled(now);
        node.received(connection, &kernel_map(), now);
        requests(&mut node);
        for sequence in 1..3 {
            node.received(connection, &probe(sequence, 0, PROBE_PORT, &[5, 0, lanes]), now);
        }
        let said = Notice::Announced(address(LARGE), lanes.into());
        assert_eq!(notices(&mut node), [said]);
        assert_eq!(node.report().peers[0].paths, paths);
        for seconds in [9, 10, 11] {
            let held_by_peer = Duration::from_secs(seconds);
            node.acknowledged(connection, Progress { held_by_peer, ..progress(0) }, now);
            let said: &[Notice] = if seconds == 10 { &[Notice::Slow(address(LARGE))] } else { &[] };
            assert_eq!(notices(&mut node), said);
        }
    }
}
