//! What a peer of reliable datagrams does over two lanes: any bytes, cut anywhere, and frames that are
//! nearly right; connections that end, time that passes, a program that sends and receives.
//!
//! Nothing panics, and queues keep their bounds. An operation has three bytes, then what it takes.

use std::time::Duration;

use hawser_core::rds::header::{EXTENSION_BYTES, Header, MESSAGE_BYTES_MAX, PROBE_PORT};
use hawser_core::rds::node::{Config, Connection, Node, Progress};
use hawser_core::time::Time;

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
    let [sequence, from, to, flags, extensions @ ..] = fields;
    let port = |which: u8| match which % 4 {
        0 => 0,
        1 => PROBE_PORT,
        2 => PORT,
        _ => u16::from(which),
    };
    // One in eight announces more than follows, up to beyond what is allowed.
    let announced = u32::from(length) << if flags >= 224 { 6 } else { 0 };
    let header = Header {
        sequence: (sequence % 16).into(),
        length: announced,
        from: port(from),
        to: port(to),
        flags: flags % 8,
        extensions,
    };
    [&header.encode()[..], &vec![7; length.into()]].concat()
}

/// What a full port leaves is lost here: any bytes follow.
fn receive(node: &mut Node, connection: Connection, bytes: &[u8], now: Time) {
    let must_ask = node.must_ask(connection, now);
    let count = if must_ask { node.may_take(connection, bytes, now) } else { bytes.len() };
    node.received(connection, &bytes[..count], now);
}

/// Plays an input.
///
/// # Panics
/// Where an invariant is broken.
pub(crate) fn play(input: &[u8]) {
    let mut input = Input(input);
    let mut config = Config::new([10, 0, 0, 2].into(), 7, 1);
    (config.receive_buffer, config.overrun) = (RECEIVE_BUFFER, OVERRUN);
    let mut node = Node::new(config);
    let mut now = Time::ZERO;
    let peer = [10, 0, 0, 1].into();
    let port = node.bind(PORT).unwrap_or_default();
    let mut lanes: [Option<Connection>; 2] = [node.accept(peer, 40_000, now).ok(), None];
    while let [what, high, low] = *input.take(3) {
        let count = u16::from_be_bytes([high, low]);
        let lane = &mut lanes[usize::from(what >> 7)];
        match (what % 8, *lane) {
            (0, _) => *lane = lane.or_else(|| node.accept(peer, 40_001, now).ok()),
            (1, Some(connection)) => {
                let wrote = node.to_write(connection)[0].len().min(count.into());
                node.wrote(connection, wrote);
                let progress = Progress {
                    acknowledged: wrote as u64,
                    has_unsent: low & 1 == 1,
                    ..Progress::default()
                };
                node.acknowledged(connection, progress, now);
            }
            (2, Some(connection)) => {
                node.closed(connection, now);
                *lane = None;
            }
            (3, _) => {
                now = now.after(Duration::from_millis(count.into()));
                node.tick(now);
            }
            (4, _) => drop(node.receive(port)),
            (5, _) => drop(node.send(port, (peer, count), b"x", now)),
            (6, Some(connection)) => {
                let bytes = input.take(usize::from(count) % 1024);
                receive(&mut node, connection, bytes, now);
            }
            (7, Some(connection)) => {
                let bytes = frame(&mut input, count % 3000);
                let (first, rest) = bytes.split_at(usize::from(low).min(bytes.len()));
                receive(&mut node, connection, first, now);
                receive(&mut node, connection, rest, now);
            }
            _ => {}
        }
        while node.poll().is_some() {}
        for port in node.report().ports {
            assert!(port.queued_bytes <= RECEIVE_BUFFER + OVERRUN + 2 * MESSAGE_BYTES_MAX);
        }
    }
}
