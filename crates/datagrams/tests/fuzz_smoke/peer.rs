//! What a peer of reliable datagrams does over its lanes, whichever end dials: any bytes, cut anywhere, and
//! frames that are nearly right; connections that end, time that passes, a program that sends and receives.
//!
//! Nothing panics, and queues keep their bounds. The first byte says who dials. An operation has three bytes,
//! then what it takes.

use std::collections::VecDeque;
use std::time::Duration;

use hawser_datagrams::proto::congestion::MAP_BYTES;
use hawser_datagrams::proto::header::{
    Announcement, EXTENSION_BYTES, FLAG_MAP, Header, LANES_MAX, MESSAGE_BYTES_MAX, PROBE_PORT,
};
use hawser_datagrams::proto::node::{Config, Connection, Node, Progress, Request};
use hawser_time::Time;

/// Bytes that a port may have waiting before it is congested.
const RECEIVE_BUFFER: usize = 4096;
/// And beyond that, before connections are paused.
const OVERRUN: usize = 4096;
/// The program's port; an operation may name another.
const PORT: u16 = 0x0101;

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// The next bytes, fewer at the end.
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// A frame with fields out of the input; sequences are close to each other, so that some are in order.
fn frame(input: &mut Input<'_>, length: u16) -> Vec<u8> {
    let mut fields = [0; 4 + EXTENSION_BYTES];
    let taken = input.take(fields.len());
    fields[..taken.len()].copy_from_slice(taken);
    let [sequence, from, to, flags, mut extensions @ ..] = fields;
    let port = |which: u8| match which % 4 {
        0 => 0,
        1 => PROBE_PORT,
        2 => PORT,
        _ => u16::from(which),
    };
    // Three in four are what some peer could say of itself.
    if let [0..192, lanes, generation, ports, ..] = extensions {
        let announced = Announcement {
            lanes: (lanes % 16 > 0).then_some(u16::from(lanes % 16)),
            generation: u32::from(generation % 4),
            port_is_lane: ports & 1 == 1,
        };
        extensions = announced.write();
    }
    // One in eight is a map, and one in eight announces more than follows, up to beyond what is allowed.
    let (length, announced, flags) = match flags {
        192..224 => (MAP_BYTES, MAP_BYTES as u32, FLAG_MAP),
        224.. => (length.into(), u32::from(length) << 6, flags % 8),
        _ => (length.into(), length.into(), flags % 8),
    };
    let header = Header {
        sequence: (sequence % 16).into(),
        length: announced,
        from: port(from),
        to: port(to),
        flags,
        extensions,
    };
    [&header.encode()[..], &vec![7; length]].concat()
}

/// What stands between the node and its peer.
struct World {
    node: Node,
    now: Time,
    /// Those that are up, and what was written to each.
    up: Vec<(Connection, u64)>,
    dialled: VecDeque<Connection>,
}

impl World {
    /// What a full port leaves is lost here: any bytes follow.
    fn receive(&mut self, connection: Connection, bytes: &[u8]) {
        let must_ask = self.node.must_ask(connection, self.now);
        let count =
            if must_ask { self.node.may_take(connection, bytes, self.now) } else { bytes.len() };
        self.node.received(connection, &bytes[..count], self.now);
    }

    /// A connection arrives, or what was dialled is there, or cannot be had.
    fn connect(&mut self, peer: core::net::IpAddr, count: u16) {
        if let Some(dialled) = self.dialled.pop_front() {
            match count % 4 {
                0 => self.node.failed(dialled, "refused", self.now),
                1 => self.node.slow(dialled, self.now),
                _ => {
                    self.up.push((dialled, 0));
                    self.node.connected(dialled, self.now);
                }
            }
        } else if let Ok(connection) = self.node.accept(peer, 40_000 + count % 16, self.now) {
            self.up.push((connection, 0));
        }
    }

    fn requests(&mut self) {
        while let Some(request) = self.node.poll() {
            match request {
                Request::Dial { connection, .. } => self.dialled.push_back(connection),
                Request::Close(closed) => {
                    self.up.retain(|(connection, _)| *connection != closed);
                    self.dialled.retain(|connection| *connection != closed);
                }
                Request::GiveUp(connection) => self.node.give_up(connection, self.now),
                _ => {}
            }
        }
    }

    fn check(&self) {
        let report = self.node.report();
        for port in report.ports {
            assert!(port.queued_bytes <= RECEIVE_BUFFER + OVERRUN + 2 * MESSAGE_BYTES_MAX);
        }
        assert!(report.peers.iter().all(|peer| peer.lanes.len() <= LANES_MAX));
    }
}

/// Plays an input.
///
/// # Panics
/// Where an invariant is broken.
pub(crate) fn play(input: &[u8]) {
    let mut input = Input(input);
    let node_dials = input.take(1).first().is_some_and(|byte| byte & 1 == 1);
    let (own, peer) = if node_dials { (1, 2) } else { (2, 1) };
    let mut config = Config::new([10, 0, 0, own].into(), 7, 1);
    (config.receive_buffer, config.overrun) = (RECEIVE_BUFFER, OVERRUN);
    let peer = [10, 0, 0, peer].into();
    let (now, node) = (Time::ZERO, Node::new(config));
    let mut world = World { node, now, up: Vec::new(), dialled: VecDeque::new() };
    let port = world.node.bind(PORT).unwrap_or_default();
    while let [what, high, low] = *input.take(3) {
        let count = u16::from_be_bytes([high, low]);
        let at = usize::from(what >> 3) % world.up.len().max(1);
        match (what % 8, world.up.get(at).copied()) {
            (0, _) => world.connect(peer, count),
            (1, Some((connection, before))) => {
                let wrote = world.node.to_write(connection)[0].len().min(count.into());
                world.node.wrote(connection, wrote);
                world.up[at].1 = before + wrote as u64;
                let progress = Progress {
                    acknowledged: before + wrote as u64 - u64::from(low % 4 == 0 && wrote > 0),
                    has_unsent: low & 1 == 1,
                    ..Progress::default()
                };
                world.node.acknowledged(connection, progress, world.now);
            }
            (2, Some((connection, _))) => {
                world.node.closed(connection, world.now);
                world.up.swap_remove(at);
            }
            (3, _) => {
                world.now = world.now.after(Duration::from_millis(count.into()));
                world.node.tick(world.now);
            }
            (4, _) => drop(world.node.receive(port)),
            (5, _) => drop(world.node.send(port, (peer, count), b"x", world.now)),
            (6, Some((connection, _))) => {
                let bytes = input.take(usize::from(count) % 1024);
                world.receive(connection, bytes);
            }
            (7, Some((connection, _))) => {
                let bytes = frame(&mut input, count % 3000);
                let (first, rest) = bytes.split_at(usize::from(low).min(bytes.len()));
                world.receive(connection, first);
                world.receive(connection, rest);
            }
            _ => {}
        }
        world.requests();
        world.check();
    }
}
