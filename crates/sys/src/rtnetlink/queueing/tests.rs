use std::ffi::CStr;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Instant;

use super::*;
use crate::namespace;

const HARDWARE: [u8; 6] = [2, 0x77, 0, 0, 0, 1];

/// Two new namespaces and the devices `a` and `b` of a third, which join them: what comes in at one
/// of them leaves by the other. `None` (said aloud) where this process may not have one.
struct Bridge {
    middle: OwnedFd,
    near: UdpSocket,
    far: UdpSocket,
    hosts: [OwnedFd; 2],
}

fn bridge() -> Option<Bridge> {
    let namespace = || {
        let made = std::thread::spawn(|| {
            namespace::unshare_network()?;
            // No packets but those of the test; a kernel without IPv6 has none.
            let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            namespace::own_network()
        });
        made.join().unwrap()
    };
    let (middle, near, far) = match (namespace(), namespace(), namespace()) {
        (Ok(middle), Ok(near), Ok(far)) => (middle, near, far),
        other => {
            eprintln!("SKIPPED: no network namespace: {:?}", other.0);
            return None;
        }
    };
    let join = |name: &CStr, host: &OwnedFd| {
        let mut routing = Routing::open().unwrap();
        routing.add_pair(name, c"wan", host).unwrap();
        let interface = routing.interface(name.to_str().unwrap()).unwrap();
        routing.set_up(interface).unwrap();
        interface
    };
    namespace::within(&middle, || {
        let (a, b) = (join(c"a", &near), join(c"b", &far));
        let mut routing = Routing::open().unwrap();
        routing.redirect(a, b).unwrap();
        routing.redirect(b, a).unwrap();
    })
    .unwrap();
    let socket = |host: &OwnedFd, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        let open = || {
            let mut routing = Routing::open().unwrap();
            let wan = routing.interface("wan").unwrap();
            routing.set_line("wan", HARDWARE).unwrap();
            routing.add_address(wan, address, 24).unwrap();
            routing.set_up(wan).unwrap();
            UdpSocket::bind((address, 7)).unwrap()
        };
        let socket = namespace::within(host, open).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        socket
    };
    let sockets = (socket(&near, "10.77.0.1"), socket(&far, "10.77.0.2"));
    let bridge = Bridge { middle, near: sockets.0, far: sockets.1, hosts: [near, far] };
    // What is sent before the kernel has noticed that both ends of a pair are up is dropped, and on
    // a busy machine that takes it a while.
    assert!((0..20).any(|_| bridge.passes()), "nothing passes");
    Some(bridge)
}

impl Bridge {
    fn passes(&self) -> bool {
        self.near.send_to(b"x", "10.77.0.2:7").unwrap();
        self.far.recv(&mut [0; 9]).is_ok()
    }

    fn in_the_middle<R: Send>(&self, work: impl FnOnce(&mut Routing, Interface) -> R + Send) -> R {
        let run = || {
            let mut routing = Routing::open().unwrap();
            let b = routing.interface("b").unwrap();
            work(&mut routing, b)
        };
        namespace::within(&self.middle, run).unwrap()
    }
}

#[test]
fn what_is_redirected_passes_without_being_asked_for_until_it_is_ended() {
    let Some(bridge) = bridge() else { return };
    assert!(bridge.passes());
    let end = |routing: &mut Routing, _| {
        let a = routing.interface("a").unwrap();
        routing.end_redirect(a).unwrap();
    };
    bridge.in_the_middle(end);
    assert!(!bridge.passes());
    bridge.in_the_middle(|routing, b| {
        let a = routing.interface("a").unwrap();
        routing.redirect(a, b).unwrap();
    });
    assert!(bridge.passes());
}

#[test]
fn a_bucket_has_its_rate_and_drops_what_has_no_room() {
    let Some(bridge) = bridge() else { return };
    // 142 bytes on the wire in 10 ms each, and room for four of them.
    let bucket = TokenBucket {
        bytes_per_second: 14_200,
        overhead_bytes: 0,
        burst_bytes: 142,
        queue: QueueBound::Packets(4),
    };
    let set = bridge.in_the_middle(|routing, b| routing.set_token_bucket(b, &bucket));
    if set.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT)) {
        return eprintln!("SKIPPED: this kernel has no tbf");
    }
    set.unwrap();
    let begin = Instant::now();
    for _ in 0..10 {
        bridge.near.send_to(&[0; 100], "10.77.0.2:7").unwrap();
    }
    let mut arrivals = Vec::new();
    while bridge.far.recv(&mut [0; 200]).is_ok() {
        arrivals.push(begin.elapsed());
    }
    assert_eq!(arrivals.len(), 5, "one leaves at once, four wait");
    let took = arrivals[4] - arrivals[0];
    assert!((38..80).contains(&took.as_millis()), "{took:?}");
    let counts = bridge.in_the_middle(|routing, b| routing.queue_counts(b).unwrap());
    assert_eq!(counts, QueueCounts { left: 5, dropped: 5, waiting: 0 });
}

#[test]
fn what_waits_is_no_longer_the_senders() {
    let Some(bridge) = bridge() else { return };
    let bucket = TokenBucket {
        bytes_per_second: 100_000,
        overhead_bytes: 0,
        burst_bytes: 1514,
        queue: QueueBound::Packets(1000),
    };
    let set = bridge.in_the_middle(|routing, b| routing.set_token_bucket(b, &bucket));
    if set.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT)) {
        return eprintln!("SKIPPED: this kernel has no tbf");
    }
    set.unwrap();
    bridge.near.set_nonblocking(true).unwrap();
    // More than a socket may have under way (net.core.wmem_default).
    for n in 0..500 {
        let sent = bridge.near.send_to(&[0; 1000], "10.77.0.2:7");
        assert!(sent.is_ok(), "packet {n}: {sent:?}");
    }
}

#[test]
fn what_netem_delays_and_loses_is_what_was_asked() {
    let Some(bridge) = bridge() else { return };
    let delay = Duration::from_millis(50);
    for (varies, loss) in [
        (Variation::Constant, Chance::Independent(0.5)),
        (Variation::Even(Duration::from_millis(5)), Chance::Independent(0.5)),
        (
            Variation::HeldBack { share: 0.001, by: Duration::from_millis(1) },
            Chance::Chain {
                good_to_bad: 0.5,
                bad_to_good: 0.5,
                loss_in_bad: 1.0,
                loss_in_good: 0.0,
            },
        ),
    ] {
        let emulation = Emulation { delay, varies, loss, seed: 7 };
        let set = bridge.in_the_middle(|routing, b| routing.set_emulation(b, &emulation));
        if set.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT)) {
            return eprintln!("SKIPPED: this kernel has no netem");
        }
        set.unwrap();
        let begin = Instant::now();
        for _ in 0..400 {
            bridge.near.send_to(b"x", "10.77.0.2:7").unwrap();
        }
        let mut arrived = 0;
        while bridge.far.recv(&mut [0; 9]).is_ok() {
            arrived += 1;
            assert!(arrived > 1 || begin.elapsed() >= Duration::from_millis(44));
        }
        assert!((140..260).contains(&arrived), "{arrived}: {emulation:?}");
        let counts = bridge.in_the_middle(|routing, b| routing.queue_counts(b).unwrap());
        assert_eq!((counts.left, counts.dropped), (arrived, 400 - arrived));
    }
}

#[test]
fn a_table_is_of_the_share_that_was_asked() {
    for share in [0.001, 0.01, 0.5, 1.0, 0.000_123] {
        let (all, held) = table_of(share).unwrap();
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let of = held as f64 / all as f64;
        assert!((of / share - 1.0).abs() < 0.005 && all <= TABLE_MAX, "{share}: {held} of {all}");
    }
    assert_eq!(table_of(0.000_01), None);
}

#[test]
fn segments_of_tcp_are_packets_when_they_come_to_a_queue() {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    let Some(bridge) = bridge() else { return };
    let bucket = TokenBucket {
        bytes_per_second: 100_000_000,
        overhead_bytes: 0,
        burst_bytes: 200_000,
        queue: QueueBound::Packets(10_000),
    };
    let set = bridge.in_the_middle(|routing, b| routing.set_token_bucket(b, &bucket));
    if set.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT)) {
        return eprintln!("SKIPPED: this kernel has no tbf");
    }
    set.unwrap();
    let listener =
        namespace::within(&bridge.hosts[1], || TcpListener::bind("10.77.0.2:9")).unwrap();
    let listener = listener.unwrap();
    let connect = || TcpStream::connect("10.77.0.2:9");
    let mut near = namespace::within(&bridge.hosts[0], connect).unwrap().unwrap();
    let (mut far, _) = listener.accept().unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()));
    near.write_all(&vec![0; 1_000_000]).unwrap();
    drop(near);
    assert_eq!(reader.join().unwrap().unwrap(), 1_000_000);
    let counts = bridge.in_the_middle(|routing, b| routing.queue_counts(b).unwrap());
    assert!(counts.left >= 1_000_000 / 1460, "{counts:?}");
}
