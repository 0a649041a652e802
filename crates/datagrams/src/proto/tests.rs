//! Nodes against scripted peers, and against each other in virtual time.

mod back_off;
mod early;
mod handshakes;
mod leaving;
mod limits;
mod mixed_up;
mod refused;
mod renumbered;
mod restarts;
mod simulated;

use core::net::IpAddr;

use hawser_time::Time;

use super::header::{HEADER_BYTES, Header};
use super::node::{Config, Connection, Node, Progress, Request};

const SMALL: &str = "10.0.0.1";
const LARGE: &str = "10.0.0.2";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at_ms(ms: u64) -> Time {
    Time::from_micros(ms * 1000)
}

fn node(text: &str) -> Node {
    Node::new(Config::new(address(text), 7, 1))
}

/// All requests of a node.
fn requests(node: &mut Node) -> Vec<Request> {
    std::iter::from_fn(|| node.poll()).collect()
}

/// What a connection has to write, all of it, as messages.
fn written(node: &mut Node, connection: Connection) -> Vec<(Header, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        let count = {
            let parts = node.to_write(connection);
            bytes.extend_from_slice(parts[0]);
            bytes.extend_from_slice(parts[1]);
            parts[0].len() + parts[1].len()
        };
        if count == 0 {
            break;
        }
        node.wrote(connection, count);
    }
    let mut found = Vec::new();
    let mut rest = &bytes[..];
    while let Some((header, after)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let header = Header::parse(header);
        let (body, next) = after.split_at(header.length as usize);
        found.push((header, body.to_vec()));
        rest = next;
    }
    assert!(rest.is_empty());
    found
}

/// TCP has acknowledged so much, and has nothing left to send.
fn progress(acknowledged: u64) -> Progress {
    Progress { acknowledged, ..Progress::default() }
}

/// A message as it goes over the wire.
fn message(sequence: u64, from: u16, to: u16, flags: u8, body: &[u8]) -> Vec<u8> {
    let length = body.len() as u32;
    let header = Header { sequence, length, from, to, flags, ..Header::default() };
    [&header.encode()[..], body].concat()
}

/// An empty congestion map, as a kernel's first message.
fn kernel_map() -> Vec<u8> {
    message(0, 0, 0, super::header::FLAG_MAP, &[0; 8192])
}

/// A kernel's probe or its answer.
fn probe(sequence: u64, from: u16, to: u16, extensions: &[u8]) -> Vec<u8> {
    let mut header = Header { sequence, from, to, ..Header::default() };
    header.extensions[..extensions.len()].copy_from_slice(extensions);
    header.encode().to_vec()
}

/// A node that has dialled one with the larger address, over lane 0.
fn dialled(now: Time) -> (Node, Connection, u16) {
    let mut node = node(SMALL);
    let port = node.bind(0).unwrap();
    node.send(port, (address(LARGE), 9), b"first", now).unwrap();
    let Some(Request::Dial { connection, port_remainder: 0, .. }) = node.poll() else {
        panic!("it does not dial")
    };
    node.connected(connection, now);
    (node, connection, port)
}
