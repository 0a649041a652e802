//! What an idle peer of reliable datagrams takes of a proxy's memory, as the kernel counts it.
//!
//! In a program of its own: the memory of a proxy that serves real peers over loopback, eight lanes to
//! each, and that nothing else is running in. The kernel's `VmRSS` is inexact by some hundred kilobytes
//! (it sums up counters that each processor keeps); `smaps_rollup` counts pages.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hawser_datagrams::endpoint::{Endpoint, Options};
use hawser_datagrams::proto::header::LANES_MAX;
use hawser_sys::process::raise_descriptor_limit;

/// Peers that are there before it is measured: what the first ones take is the program's own.
const FIRST: u8 = 20;
/// Peers that are measured: in groups, each on a network of its own.
const GROUPS: u8 = 2;
const GROUP: u8 = 190;
/// What docs/datagrams.md promises: the proxy's own count, and what the allocator and half-filled nodes
/// of its maps take.
const BYTES_MAX: usize = 4 * 1024;

/// Then the proxy has given back what it does not need.
const QUIET: Duration = Duration::from_secs(6);
/// The same on a busy host, where the last lanes may still be pinging.
const GIVEN_BACK: Duration = Duration::from_secs(30);

/// The proxy, ended with the test.
struct Proxy(Child, PathBuf);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_file(&self.1);
    }
}

impl Proxy {
    fn start(address: IpAddr, tcp_port: u16) -> Self {
        let socket = std::env::temp_dir().join(format!("hawser-rds-{tcp_port}.sock"));
        let child = Command::new(env!("CARGO_BIN_EXE_hawser"))
            .args(["rds", "proxy", "--address", &address.to_string()])
            .args(["--tcp-port", &tcp_port.to_string(), "--socket"])
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn();
        let proxy = Self(child.unwrap(), socket);
        let end = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect((address, tcp_port)).is_err() {
            assert!(Instant::now() < end, "the proxy does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        proxy
    }

    fn answers_info(&self) {
        let info = Command::new(env!("CARGO_BIN_EXE_hawser"))
            .args(["rds", "info", "--json", "--socket"])
            .arg(&self.1)
            .output()
            .unwrap();
        assert!(info.status.success(), "{info:?}");
    }

    /// Bytes in pages that no file backs.
    fn anonymous(&self) -> usize {
        let path = format!("/proc/{}/smaps_rollup", self.0.id());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
    }
}

/// Opens peers, which ping the proxy, and returns when all their lanes are up.
fn join(peers: &mut Vec<Endpoint>, count: u8, proxy: IpAddr, network: u8, tcp_port: u16) {
    for number in 1..=count {
        let address = Ipv4Addr::new(127, 1, network, number);
        let options = Options { tcp_port, ..Options::new(address.into()) };
        let mut peer = Endpoint::open(options).unwrap();
        let port = peer.bind(0).unwrap();
        peer.send(port, (proxy, 0), b"").unwrap();
        peers.push(peer);
    }
    let is_up = |peer: &Endpoint| {
        let report = peer.report();
        let lanes = report.peers.first().map_or(&[][..], |proxy| &proxy.lanes);
        lanes.iter().filter(|lane| lane.state == "up").count() == LANES_MAX
    };
    let end = Instant::now() + Duration::from_secs(60);
    while !peers.iter().all(is_up) {
        assert!(Instant::now() < end, "{:#?}", peers.iter().find(|p| !is_up(p)).unwrap().report());
        turn(peers, Duration::from_millis(20));
    }
}

fn turn(peers: &mut [Endpoint], time: Duration) {
    let end = Instant::now() + time;
    loop {
        for peer in &mut *peers {
            peer.turn(Duration::ZERO).unwrap();
        }
        if Instant::now() >= end {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_idle_peer_takes_less_than_4_kib_of_resident_memory() {
    raise_descriptor_limit().unwrap();
    // The proxy dials if its address is the smaller one, and is dialled if it is not.
    for address in [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 250, 0, 1)] {
        let tcp_port = TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
        let address = IpAddr::V4(address);
        let proxy = Proxy::start(address, tcp_port);
        let mut peers = Vec::new();
        join(&mut peers, FIRST, address, 1, tcp_port);
        proxy.answers_info();
        turn(&mut peers, QUIET);
        let before = proxy.anonymous();
        for group in 0..GROUPS {
            join(&mut peers, GROUP, address, 2 + group, tcp_port);
        }
        // It holds the peers in memory as text for a moment.
        proxy.answers_info();
        let end = Instant::now() + GIVEN_BACK;
        let each = loop {
            turn(&mut peers, QUIET);
            let taken = proxy.anonymous().saturating_sub(before);
            let each = taken / (usize::from(GROUP) * usize::from(GROUPS));
            println!("{address}: {each} bytes");
            if each < BYTES_MAX || Instant::now() > end {
                break each;
            }
        };
        assert!(each < BYTES_MAX, "{each} bytes for each idle peer of a proxy at {address}");
    }
}
