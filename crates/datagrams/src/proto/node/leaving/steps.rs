//! How a node treats messages of released ports.

use hawser_time::Time;

use super::LEAVING_BYTES_MAX;
use crate::proto::lane::{Sent, is_of_no_port};
use crate::proto::node::{GIVE_UP, Node, Port};

impl Node {
    /// A port was released. This does not touch what others have queued: a program that binds and
    /// unbinds repeatedly costs them nothing.
    pub(in crate::proto::node) fn leave(&mut self, gone: &Port) {
        self.leaving_bytes += gone.sent_bytes;
        if self.leaving_bytes <= LEAVING_BYTES_MAX {
            return;
        }
        for (at, count) in &gone.sent_to {
            let Some(peer) = self.peers.get_mut(at) else { continue };
            // (On another lane are only those that the peer's last start may have got, which are dropped
            // when its connection ends.)
            let lane = peer.stand_ins.carrier(peer.lane_of(gone.lane, self.config.lanes));
            peer.lane(lane).drop_of_port(gone.binding, *count, &mut self.freed);
            self.totals.left_behind += self.freed.len() as u64;
            self.give_room(*at);
        }
    }

    /// A peer that has been away for long gets no more answers to its pings, and no messages of
    /// unbound ports.
    pub(in crate::proto::node) fn drop_unwanted(&mut self, at: u32, now: Time) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if !peer.is_unreachable() || now.since(peer.used) < GIVE_UP {
            return;
        }
        let ports = &self.ports;
        let is_left = |sent: Sent| {
            let port = ports.get(&sent.from);
            !is_of_no_port(sent.from) && port.is_none_or(|port| port.binding != sent.binding)
        };
        for lane in peer.lanes.iter_mut().filter(|lane| !lane.is_empty()) {
            lane.drop_queued(&mut self.freed, |sent| sent.from == 0 || is_left(sent));
        }
        let of_ports = self.freed.iter().filter(|(sent, _)| sent.from != 0).count();
        self.totals.left_behind += of_ports as u64;
        self.give_room(at);
    }

    /// Messages of ports, also of those that were given back, which TCP has not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        let lanes = self.peers.values().flat_map(|peer| &peer.lanes);
        lanes.map(crate::proto::lane::Lane::of_ports).sum()
    }

    /// Bytes that released ports have queued.
    #[must_use]
    pub fn leaving_bytes(&self) -> usize {
        self.leaving_bytes
    }
}
