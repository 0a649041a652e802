use std::net::TcpListener as StdListener;

use super::*;

const SOON: Duration = Duration::from_secs(20);

/// A TCP port that is free on all of 127/8 just now.
fn free_port() -> u16 {
    StdListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

fn pair(lanes: usize) -> (Endpoint, Endpoint) {
    let tcp_port = free_port();
    let open = |address: &str| {
        let options = Options { tcp_port, lanes, ..Options::new(address.parse().unwrap()) };
        Endpoint::open(options).unwrap()
    };
    (open("127.0.0.1"), open("127.0.0.2"))
}

fn address(endpoint: &Endpoint) -> IpAddr {
    endpoint.options().address
}

/// Both take turns until `done`.
fn until(
    one: &mut Endpoint,
    other: &mut Endpoint,
    mut done: impl FnMut(&mut Endpoint, &mut Endpoint) -> bool,
) {
    let end = now().after(SOON);
    while !done(one, other) {
        assert!(now() < end, "{:#?}\n{:#?}", one.report(), other.report());
        one.turn(Duration::from_millis(1)).unwrap();
        other.turn(Duration::from_millis(1)).unwrap();
    }
}

#[test]
fn messages_of_all_sizes_go_both_ways_and_in_order() {
    for lanes in [1, 8] {
        let (mut one, mut other) = pair(lanes);
        let (here, there) = (one.bind(4001).unwrap(), other.bind(0).unwrap());
        let sizes = [0, 1, 48, 70_000, 1 << 20, 5];
        for (from, to) in [(here, there), (there, here)] {
            let (sender, receiver) =
                if from == here { (&mut one, &mut other) } else { (&mut other, &mut one) };
            let mut got = Vec::new();
            let mut next = 0;
            until(sender, receiver, |sender, receiver| {
                if next < sizes.len() {
                    let body = vec![next as u8; sizes[next]];
                    let to = (address(receiver), to);
                    next += usize::from(sender.send(from, to, &body).is_ok());
                }
                while let Some(datagram) = receiver.receive(to) {
                    assert_eq!((datagram.from, datagram.port), (address(sender), from));
                    assert!(datagram.body.iter().all(|byte| *byte == got.len() as u8));
                    got.push(datagram.body.len());
                }
                got.len() == sizes.len()
            });
            assert_eq!(got, sizes);
        }
    }
}

#[test]
fn an_unread_port_stops_its_senders_and_no_others() {
    let (mut one, mut other) = pair(8);
    let (from, full, free) = (one.bind(0).unwrap(), other.bind(5).unwrap(), other.bind(6).unwrap());
    let to = address(&other);
    let body = vec![1; 100_000];
    let mut sent = 0;
    until(&mut one, &mut other, |one, _| match one.send(from, (to, full), &body) {
        Err(SendError::Congested) => true,
        result => {
            sent += usize::from(result.is_ok());
            false
        }
    });
    assert!(sent < 100, "{sent} messages of 100 kB before it is congested");
    until(&mut one, &mut other, |one, _| one.send(from, (to, free), b"free").is_ok());
    until(&mut one, &mut other, |_, other| other.receive(free).is_some());
    let mut got = 0;
    until(&mut one, &mut other, |one, other| {
        got += usize::from(other.receive(full).is_some());
        one.send(from, (to, full), b"again").is_ok()
    });
    until(&mut one, &mut other, |_, other| match other.receive(full) {
        Some(datagram) if datagram.body == b"again" => true,
        Some(_) => {
            got += 1;
            false
        }
        None => false,
    });
    assert_eq!(got, sent);
}

#[test]
fn all_lanes_come_up_and_each_from_a_port_that_names_it() {
    let (mut one, mut other) = pair(8);
    let from = one.bind(0).unwrap();
    one.send(from, (address(&other), 9), b"x").unwrap();
    until(&mut one, &mut other, |one, other| {
        [one, other].iter().all(|endpoint| {
            let report = endpoint.report();
            report.peers.first().is_some_and(|peer| {
                peer.lanes.len() == 8 && peer.lanes.iter().all(|lane| lane.state == "up")
            })
        })
    });
    let mut remainders: Vec<u16> = one.sockets.values().map(local_port).map(|p| p % 8).collect();
    remainders.sort_unstable();
    assert_eq!(remainders, [0, 1, 2, 3, 4, 5, 6, 7]);
    let peer = &other.report().peers[0];
    assert!(peer.port_is_lane && !peer.dials && peer.memory < 40_000);
}

fn local_port(socket: &Socket) -> u16 {
    match hawser_sys::stream::local_address(&socket.fd).unwrap() {
        hawser_sys::stream::LocalAddress::Internet(address) => address.port(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_that_is_not_there_yet_gets_what_was_sent_once_it_is() {
    let tcp_port = free_port();
    let options = |address: &str| Options { tcp_port, ..Options::new(address.parse().unwrap()) };
    for (first, second) in [("127.0.0.1", "127.0.0.2"), ("127.0.0.2", "127.0.0.1")] {
        let mut early = Endpoint::open(options(first)).unwrap();
        let from = early.bind(0).unwrap();
        early.send(from, (second.parse().unwrap(), 7), b"early").unwrap();
        for _ in 0..20 {
            early.turn(Duration::from_millis(5)).unwrap();
        }
        let mut late = Endpoint::open(options(second)).unwrap();
        let port = late.bind(7).unwrap();
        until(&mut early, &mut late, |_, late| {
            late.receive(port).is_some_and(|datagram| datagram.body == b"early")
        });
    }
}

#[test]
fn what_was_not_acknowledged_comes_once_after_a_reset() {
    let (mut one, mut other) = pair(1);
    let (from, to) = (one.bind(0).unwrap(), other.bind(9).unwrap());
    let there = address(&other);
    let (mut next, mut got) = (0u32, Vec::new());
    let mut resets = 0;
    until(&mut one, &mut other, |one, other| {
        if next < 400
            && one.send(from, (there, to), &vec![next as u8; 5000 + next as usize]).is_ok()
        {
            next += 1;
        }
        if next % 50 == 49 && resets < next / 50 {
            // Both notice it, in the middle of whatever is under way.
            resets += 1;
            for socket in one.sockets.values() {
                let _ = shutdown_sending(&socket.fd);
            }
        }
        while let Some(datagram) = other.receive(to) {
            got.push(datagram.body.len() as u32 - 5000);
        }
        got.len() == 400
    });
    assert_eq!(got, (0..400).collect::<Vec<u32>>());
    assert!(one.report().peers[0].lanes[0].counts.connections > 3);
}

#[test]
fn peers_that_have_many_connections_wait_shut_out_no_peer_that_has_one() {
    let file = || std::fs::File::open("/dev/null").unwrap();
    let one_of = |number: u32| Waiting {
        connection: Connection(0),
        from: IpAddr::V4(std::net::Ipv4Addr::from_bits(number)),
        port: 1,
        fd: file().into(),
    };
    let _ = raise_descriptor_limit();
    let greedy = (WAITING_ALL_MAX / WAITING_MAX) as u32;
    let mut waiting: Vec<_> =
        (0..WAITING_ALL_MAX as u32).map(|number| one_of(number % greedy)).collect();
    assert_eq!(one_too_many(&waiting, waiting[0].from), None);
    // Of a peer of its own, and all after it, until each has the same.
    for number in 0..100 {
        waiting.push(one_of(1000 + number));
        let from = waiting[WAITING_ALL_MAX].from;
        let (at, too_many) = one_too_many(&waiting, from).unwrap();
        let reset = waiting.remove(at);
        assert_eq!(too_many, TooManyWait::OfAll);
        assert!(reset.from < one_of(greedy).from, "one of those that have many");
    }
    // One more than a peer may have.
    let mut waiting: Vec<_> = (0..=WAITING_MAX).map(|_| one_of(7)).collect();
    waiting.push(one_of(8));
    assert_eq!(one_too_many(&waiting, one_of(8).from), None);
    assert_eq!(one_too_many(&waiting, one_of(7).from), Some((WAITING_MAX, TooManyWait::OfPeer)));
}

#[test]
fn each_connection_is_the_first_to_be_read_in_its_turn() {
    let all = || [3, 5, 9].map(Connection).into_iter().collect::<BTreeSet<_>>();
    let mut first = Connection(0);
    let firsts = [(); 4].map(|()| in_turn(all(), &mut first)[0].0);
    assert_eq!(firsts, [3, 5, 9, 3]);
    assert_eq!(in_turn(all(), &mut first), [5, 9, 3].map(Connection));
    assert!(in_turn(BTreeSet::new(), &mut first).is_empty());
}

#[test]
fn tcp_is_asked_ever_later_while_it_acknowledges_nothing() {
    let mut asking = Asking { after: ACKNOWLEDGED_AFTER, ..Asking::default() };
    let mut waited = |acknowledged| {
        asking.again(acknowledged, Time::ZERO);
        asking.at.unwrap().since(Time::ZERO)
    };
    let most = (0..20).map(|number| waited(number * 10)).max();
    assert_eq!(most, Some(ACKNOWLEDGED_AFTER_MAX));
    assert_eq!((0..20).map(|_| waited(190)).max(), Some(UNACKNOWLEDGED_AFTER_MAX));
    assert_eq!(waited(191), ACKNOWLEDGED_AFTER_MAX);
}

#[test]
fn an_endpoint_that_is_closed_waits_until_what_it_has_sent_is_acknowledged() {
    let tcp_port = free_port();
    let options = |address: &str| Options { tcp_port, ..Options::new(address.parse().unwrap()) };
    let here = options("127.0.0.1");
    let closing = std::thread::spawn(move || {
        let mut early = Endpoint::open(here).unwrap();
        let from = early.bind(0).unwrap();
        for number in 0..20u8 {
            early.send(from, ("127.0.0.2".parse().unwrap(), 7), &vec![number; 50_000]).unwrap();
        }
        assert_eq!(early.unacknowledged(), 20);
        early.close(SOON).unwrap()
    });
    // The other end is not there yet: within a second nothing could be acknowledged.
    std::thread::sleep(Duration::from_millis(1300));
    let mut late = Endpoint::open(options("127.0.0.2")).unwrap();
    let port = late.bind(7).unwrap();
    for number in 0..20 {
        let end = now().after(SOON);
        let datagram = loop {
            assert!(now() < end);
            match late.receive(port) {
                Some(datagram) => break datagram,
                None => late.turn(SOON).unwrap(),
            }
        };
        assert_eq!(datagram.body, vec![number; 50_000]);
    }
    assert_eq!(closing.join().unwrap(), 0);
}

#[test]
fn an_endpoint_that_is_closed_says_what_was_not_acknowledged_in_time() {
    let mut alone = Endpoint::open(Options {
        tcp_port: free_port(),
        ..Options::new("127.0.0.1".parse().unwrap())
    })
    .unwrap();
    let from = alone.bind(0).unwrap();
    alone.send(from, ("127.0.0.2".parse().unwrap(), 7), b"lost").unwrap();
    let began = std::time::Instant::now();
    assert_eq!(alone.close(Duration::from_millis(200)).unwrap(), 1);
    assert!(began.elapsed() >= Duration::from_millis(200));
}

/// It was ended a second after its peer had sent something last, whatever that had acknowledged.
#[test]
fn a_connection_that_is_ended_stays_while_its_peer_acknowledges_what_it_carries() {
    use std::io::{Read, Write};
    let tcp_port = free_port();
    let peer = StdListener::bind(("127.0.0.2", tcp_port)).unwrap();
    let options = Options { tcp_port, lanes: 1, ..Options::new("127.0.0.1".parse().unwrap()) };
    let mut endpoint = Endpoint::open(options).unwrap();
    let from = endpoint.bind(0).unwrap();
    for _ in 0..20 {
        endpoint.send(from, ("127.0.0.2".parse().unwrap(), 7), &[1; 100_000]).unwrap();
    }
    endpoint.turn(Duration::ZERO).unwrap();
    let (mut stream, _) = peer.accept().unwrap();
    let mut map = [0; 48 + 8192];
    (map[18], map[24]) = (0x20, 1); // 8,192 bytes, a congestion map
    stream.write_all(&map).unwrap();
    while !endpoint.node.has_unacknowledged(Connection(1)) {
        endpoint.turn(Duration::from_millis(10)).unwrap();
    }
    endpoint.turn(Duration::from_millis(10)).unwrap();
    endpoint.drain(Connection(1), now());
    let until = now().after(2 * DRAIN_MAX);
    let mut bytes = [0; 4096];
    while now() < until {
        // So little each time that there is some left after all of them.
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "it has ended");
        std::thread::sleep(Duration::from_millis(60));
        endpoint.turn(Duration::ZERO).unwrap();
        assert!(endpoint.sockets.contains_key(&Connection(1)));
    }
    std::thread::sleep(DRAIN_MAX);
    endpoint.turn(Duration::ZERO).unwrap();
    std::thread::sleep(DRAIN_MAX);
    endpoint.turn(Duration::ZERO).unwrap();
    assert!(!endpoint.sockets.contains_key(&Connection(1)), "it acknowledges nothing more");
}
