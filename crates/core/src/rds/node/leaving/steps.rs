//! What a node does with what such ports have queued.

use super::LEAVING_BYTES_MAX;
use crate::rds::node::{GIVE_UP, Node};
use crate::time::Time;

impl Node {
    /// A port was given back, with so much queued.
    pub(in crate::rds::node) fn leave(&mut self, port: u16, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.leaving_bytes += bytes;
        let is_too_much = self.leaving_bytes > LEAVING_BYTES_MAX;
        let lanes = self.peers.values_mut().flat_map(|peer| &mut peer.lanes);
        for lane in lanes.filter(|lane| !lane.has_nothing_of_ports()) {
            lane.leave(port);
            if is_too_much {
                lane.drop_queued(&mut self.freed, |sent| sent.from == port);
            }
        }
        if is_too_much {
            self.totals.left_behind += self.freed.len() as u64;
            self.give_room();
        }
    }

    /// A peer that has not been there for long gets no answers to its pings any more, and nothing of
    /// ports that nobody has.
    pub(in crate::rds::node) fn drop_what_nobody_waits_for(&mut self, at: u32, now: Time) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if !peer.is_unreachable() || now.since(peer.used) < GIVE_UP {
            return;
        }
        for lane in peer.lanes.iter_mut().filter(|lane| !lane.is_empty()) {
            lane.drop_queued(&mut self.freed, |sent| sent.from == 0 || sent.left);
        }
        let of_ports = self.freed.iter().filter(|(sent, _)| sent.from != 0).count();
        self.totals.left_behind += of_ports as u64;
        self.give_room();
    }

    /// Bytes that ports which were given back have queued.
    #[must_use]
    pub fn leaving_bytes(&self) -> usize {
        self.leaving_bytes
    }
}
