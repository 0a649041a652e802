//! The laboratory in this kernel: short forms of what `hawser lab selftest` proves at length, and
//! what hosts can reach. Skipped, and said so, where this user may have no namespaces.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a panic is the report")]

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use hawser_lab::namespaces::{Laboratory, UpError, probe};
use hawser_lab::wan::Description;
use hawser_lab::wan::flow::Flow;
use hawser_lab::wan::network::{End, Port};
use hawser_lab::wan::parse::parse;
use hawser_lab::wan::traffic::Pattern;
use hawser_lab::wan::virtual_time::{self, Traffic};
use hawser_sys::namespace;

fn description(toml: &str) -> Description {
    parse("test", toml).unwrap_or_else(|error| panic!("{error}"))
}

/// A laboratory, or `None` (said aloud) where this user may not have one.
fn up(toml: &str, seed: u64) -> Option<Laboratory> {
    match Laboratory::up(description(toml), seed) {
        Ok(laboratory) => Some(laboratory),
        Err(error @ (UpError::Rights { .. } | UpError::Device { .. })) => {
            eprintln!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// How long a TCP connection takes from `host` to `address`, and that bytes come back by it.
fn echo(laboratory: &Laboratory, host: usize, there: usize, address: IpAddr) -> Duration {
    let listener = namespace::within(laboratory.host(there), || TcpListener::bind((address, 0)));
    let listener = listener.unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let begin = Instant::now();
    let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5));
    let stream = namespace::within(laboratory.host(host), connect).unwrap();
    let mut stream = stream.unwrap_or_else(|error| panic!("{to}: {error}"));
    let took = begin.elapsed();
    // The kernel has accepted it already: nothing below can wait for ever.
    let (mut accepted, _) = listener.accept().unwrap();
    let mut bytes = [0; 5];
    for stream in [&stream, &accepted] {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    stream.write_all(b"hello").unwrap();
    accepted.read_exact(&mut bytes).unwrap();
    accepted.write_all(&bytes).unwrap();
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    took
}

#[test]
fn hosts_reach_each_other_by_both_families_and_over_hosts_between() {
    let toml = r#"
        host = [{ name = "a" }, { name = "b" }, { name = "c" }]
        [[link]]
        name = "ab"
        between = ["a", "b"]
        rtt = "20ms"
        [[link]]
        name = "bc"
        between = ["b", "c"]
    "#;
    let Some(laboratory) = up(toml, 1) else { return };
    let addresses = laboratory.addresses(2);
    assert_eq!(addresses.len(), 2);
    for address in addresses {
        let took = echo(&laboratory, 0, 2, address);
        assert!(took >= Duration::from_millis(20), "{address}: {took:?}");
    }
    let snapshot = laboratory.snapshot().unwrap();
    let carried: Vec<&str> = snapshot.paths.iter().map(|p| p.carried_by.as_str()).collect();
    assert_eq!(carried, ["kernel", "kernel", "emulator", "emulator"]);
}

#[test]
fn what_has_the_address_of_a_line_leaves_by_that_line() {
    let toml = "[[link]]\nname = \"one\"\nrtt = \"10ms\"\n[[link]]\nname = \"two\"\nrtt = \"80ms\"";
    let Some(laboratory) = up(toml, 1) else { return };
    let own = laboratory.addresses(0)[2]; // IPv4 of the second line
    let there = laboratory.addresses(1)[0]; // IPv4 of the first
    let receiver = namespace::within(laboratory.host(1), || UdpSocket::bind((there, 0)));
    let receiver = receiver.unwrap().unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let to = receiver.local_addr().unwrap();
    let sender = namespace::within(laboratory.host(0), || UdpSocket::bind((own, 0)));
    let begin = Instant::now();
    sender.unwrap().unwrap().send_to(b"x", to).unwrap();
    receiver.recv(&mut [0; 9]).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(40), "it took the other line");
}

#[test]
fn the_packets_that_are_lost_are_those_that_virtual_time_loses() {
    let toml = "[[link]]\nrtt = \"10ms\"\nloss = { good_to_bad = \"2%\", bad_to_good = \"25%\" }";
    let Some(laboratory) = up(toml, 7) else { return };
    let traffic = Traffic {
        from: Port { link: 0, end: End::First },
        flow: Flow::udp([10, 77, 0, 1].into(), 4000, [10, 77, 0, 2].into(), 4000),
        pattern: Pattern::Paced { interval: Duration::from_millis(1) },
        payload_bytes: 100,
        answer_bytes: 16,
        begin: Duration::ZERO,
        lasts: Duration::from_secs(1),
    };
    let here = probe::run(&laboratory, &[traffic]).unwrap();
    let (there, _) = virtual_time::run(&description(toml), 7, &[traffic]);
    let lost = there[0].received.missing(1000);
    assert!(lost.len() > 20, "{lost:?}");
    assert_eq!((here[0].sent, here[0].received.missing(1000)), (1000, lost));
}

#[test]
fn a_setting_that_the_kernel_refuses_is_named() {
    let toml = r#"
        host = [{ name = "a", sysctl = { "net.ipv4.no_such_thing" = 1 } }, { name = "b" }]
        [[link]]
    "#;
    match Laboratory::up(description(toml), 1) {
        Err(error @ (UpError::Rights { .. } | UpError::Device { .. })) => {
            eprintln!("SKIPPED: {error}");
        }
        Err(UpError::Setting { host, name, .. }) => {
            assert_eq!((host.as_str(), name.as_str()), ("a", "net.ipv4.no_such_thing"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_device_that_is_deleted_inside_ends_the_emulation_and_is_reported() {
    let Some(laboratory) = up("[[link]]\nrtt = \"10ms\"", 1) else { return };
    let cut = namespace::within(laboratory.host(0), || {
        Command::new("ip").args(["link", "delete", "link0"]).status()
    });
    match cut.unwrap() {
        Ok(status) => assert!(status.success()),
        Err(error) => return eprintln!("SKIPPED: no `ip`: {error}"),
    }
    let end = Instant::now() + Duration::from_secs(5);
    while laboratory.snapshot().unwrap().unfaithful().is_none() {
        assert!(Instant::now() < end, "nobody is told");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nothing_is_left_when_it_is_dropped() {
    let Some(laboratory) = up("[[link]]\nrtt = \"10ms\"", 1) else { return };
    let inside = namespace::within(laboratory.host(0), namespace::own_network).unwrap().unwrap();
    drop(laboratory);
    // The namespace is still held here; the device of the other end of its link is gone with the
    // emulator.
    let text = namespace::within(&inside, || std::fs::read_to_string("/proc/thread-self/net/dev"));
    let text = text.unwrap().unwrap();
    assert!(!text.contains("link0") && text.contains("lo:"), "{text}");
}
