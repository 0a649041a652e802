//! Messages of ports that were given back.
//!
//! # Model       a program may send and leave: what it has sent goes on its way. (Linux drops it:
//!               rds_send_drop_to, net/rds/send.c.) All of that together has a bound; a port that is
//!               given back beyond it takes with it what no connection has begun to carry. What is for a
//!               peer that has not been there for long is dropped
//! # Why not     no bound: a program that binds, sends to a host that is down, and leaves, again and
//!               again, would take all memory

use std::collections::BTreeMap;

use super::{GIVE_UP, Node, Time};
use crate::rds::lane::is_of_no_port;

/// What ports that were given back may have queued in all.
pub const LEAVING_BYTES_MAX: usize = 64 << 20;

/// What such ports have queued, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    of: BTreeMap<u16, usize>,
    bytes: usize,
}

impl Leaving {
    /// The port is taken again: what it has queued is its new owner's to wait for.
    pub(super) fn take(&mut self, port: u16) -> usize {
        let bytes = self.of.remove(&port).unwrap_or(0);
        self.bytes -= bytes;
        bytes
    }

    /// So much of it is gone.
    pub(super) fn freed(&mut self, port: u16, bytes: usize) {
        if let Some(left) = self.of.get_mut(&port) {
            let gone = bytes.min(*left);
            *left -= gone;
            self.bytes -= gone;
            if *left == 0 {
                self.of.remove(&port);
            }
        }
    }
}

impl Node {
    /// A port was given back, with so much queued.
    pub(super) fn leave(&mut self, port: u16, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.leaving.of.insert(port, bytes);
        self.leaving.bytes += bytes;
        if self.leaving.bytes > LEAVING_BYTES_MAX {
            let lanes = self.peers.values_mut().flat_map(|peer| &mut peer.lanes);
            for lane in lanes.filter(|lane| !lane.has_nothing_of_ports()) {
                lane.drop_queued(&mut self.freed, |from, _| from == port);
            }
            self.totals.left_behind += self.freed.len() as u64;
            self.give_room();
        }
    }

    /// A peer that has not been there for long gets no answers to its pings any more, and nothing of
    /// ports that nobody has.
    pub(super) fn drop_what_nobody_waits_for(&mut self, at: u32, now: Time) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if !peer.is_unreachable() || now.since(peer.used) < GIVE_UP {
            return;
        }
        for lane in peer.lanes.iter_mut().filter(|lane| !lane.is_empty()) {
            lane.drop_queued(&mut self.freed, |from, _| {
                from == 0 || (!is_of_no_port(from) && !self.ports.contains_key(&from))
            });
        }
        let of_ports = self.freed.iter().filter(|(from, _)| *from != 0).count();
        self.totals.left_behind += of_ports as u64;
        self.give_room();
    }

    /// Bytes that ports which were given back have queued.
    #[must_use]
    pub fn leaving_bytes(&self) -> usize {
        self.leaving.bytes
    }
}
