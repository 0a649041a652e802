//! A peer's announcement of what it is, and of its restarts.

use super::{
    Announcement, BTreeMap, Connection, LANES_MAX, Node, Notice, NoticeKind, Place, Request, State,
    Time,
};
use crate::proto::peer::{By, Here, Learnt, Peer};

/// Messages that were dropped because a peer has restarted.
fn dropped(peer: &Peer) -> u64 {
    peer.lanes.iter().map(|lane| lane.counts.dropped).sum()
}

impl Node {
    /// Applies a change to a peer that may drop messages for its last start. Gives notice if it
    /// did, or if the peer has restarted.
    fn with_start<T>(
        &mut self,
        at: u32,
        now: Time,
        change: impl FnOnce(&mut Peer, &Here<'_>, &mut crate::proto::lane::Freed) -> (T, bool),
    ) -> Option<T> {
        let ports = &self.ports;
        let here = Here {
            lanes: self.config.lanes,
            #[cfg(test)]
            is_a_kernel: self.config.is_a_kernel,
            lane_of: &|sent| {
                let port = ports.get(&sent.from)?;
                (port.binding == sent.binding).then_some(port.lane)
            },
        };
        let peer = self.peers.get_mut(&at)?;
        let before = dropped(peer);
        let (done, restarted) = change(peer, &here, &mut self.freed);
        let dropped = dropped(peer) - before;
        if (restarted || dropped > 0) && peer.may_report_restart(now) {
            self.requests.push_back(Request::Notice(Notice::Restarted(peer.address, dropped)));
        }
        self.give_room(at);
        Some(done)
    }

    /// Whether a connection names one start only. One that names another is reset: each probe could be of
    /// another start, with another number of lanes, and all that is queued would change its lane.
    pub(super) fn names_one_start(
        &mut self,
        at: u32,
        by: By,
        said: Announcement,
        now: Time,
    ) -> bool {
        let peer = self.peers.get_mut(&at);
        if peer.is_none_or(|peer| peer.may_name(by.lane, said.generation, by.in_map)) {
            return true;
        }
        self.notice(at, NoticeKind::TwoStarts, Notice::TwoStarts);
        self.shut_out(by.connection, now);
        false
    }

    pub(super) fn learn(&mut self, at: u32, by: By, said: Announcement, now: Time) {
        if let Some(lanes) = said.lanes.filter(|lanes| !(1..=LANES_MAX as u16).contains(lanes)) {
            self.notice(at, NoticeKind::Announced, |address| Notice::Announced(address, lanes));
        }
        let learnt = self.with_start(at, now, |peer, here, freed| {
            let learnt = peer.learn(said, by, here, freed);
            (learnt, learnt.restarted)
        });
        let has_restarted = learnt.is_some_and(|learnt| learnt.restarted);
        if self.peers.get(&at).is_some_and(|peer| peer.announces_in_maps) {
            self.await_no_answer(at); // a Hawser has nothing on another lane than its port's
        }
        self.end_those_that_go_first(at);
        if let Some(own) = self.peers.get(&at).and_then(|peer| peer.own_place(by)) {
            self.with_start(at, now, |peer, _, freed| {
                (peer.change_places(by.lane, own, freed), false)
            });
            if let Some(peer) = self.peers.get(&at) {
                Self::note_places(&mut self.connections, at, peer);
                self.requests.push_back(Request::Vacant(peer.address));
            }
            self.drain(at, by.lane);
        }
        if matches!(learnt, Some(Learnt { paths: true, .. })) {
            self.has_other_lanes(at, now);
        }
        if self.peers.get(&at).is_some_and(|peer| has_restarted && peer.mixes_up()) {
            // (Its answer says that it knows of them.)
            self.probe(at, by.lane);
        }
        if has_restarted && self.peers.get_mut(&at).is_some_and(|peer| !peer.may_restart(now)) {
            self.shut_out(by.connection, now);
        }
    }

    /// A peer has become another program, of which nothing is known: it begins with lane 0.
    pub(super) fn forget_start(&mut self, at: u32, by: By, now: Time) {
        self.with_start(at, now, |peer, here, freed| (peer.forget_start(by, here, freed), true));
        let Some(peer) = self.peers.get_mut(&at) else { return };
        let lanes = peer.lanes.len();
        // What is dialled would be taken for any lane, or be reset.
        for lane in peer.lanes.iter_mut().filter(|lane| lane.link.state == State::Dialling) {
            let dialled = lane.link.connection;
            lane.rewind();
            if let Some(dialled) = dialled {
                self.connections.remove(&dialled);
                self.requests.push_back(Request::Close(dialled));
            }
        }
        let Some(peer) = self.peers.get_mut(&at) else { return };
        Self::note_places(&mut self.connections, at, peer);
        self.requests.push_back(Request::Vacant(peer.address));
        // (What its own lane has begun to give to it, lane 0 could not go on with.)
        let stays = peer.lanes[0].link.connection == Some(by.connection);
        (1..lanes).for_each(|lane| self.drain(at, lane));
        if stays {
            self.ask(at, 0, now);
        } else {
            self.set_dial_time(at, 0, now);
        }
    }

    /// Connections of a peer have other places.
    fn note_places(places: &mut BTreeMap<Connection, Place>, at: u32, peer: &Peer) {
        for (lane, this) in peer.lanes.iter().enumerate() {
            if let Some(connection) = this.link.connection {
                places.insert(connection, Place { peer: at, lane: lane as u8 });
            }
        }
    }

    /// Connections that have carried messages to one that had not named its start yet end.
    fn end_those_that_go_first(&mut self, at: u32) {
        let lanes = self.peers.get(&at).map_or(0, |peer| peer.lanes.len());
        for lane in 0..lanes {
            if self.peers.get(&at).is_some_and(|peer| peer.lanes[lane].link.goes_first) {
                self.drain(at, lane);
            }
        }
    }

    /// A lane has no connection any more.
    pub(super) fn end_last_start(&mut self, at: u32, lane: usize, now: Time) {
        self.with_start(at, now, |peer, here, freed| {
            (peer.end_last_start(lane, here, freed), false)
        });
    }

    fn has_other_lanes(&mut self, at: u32, now: Time) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        self.requests.push_back(Request::Vacant(peer.address));
        for lane in peer.paths..peer.lanes.len() {
            self.drain(at, lane);
        }
        self.dial_all(at, now);
        let Some(peer) = self.peers.get_mut(&at) else { return };
        for lane in &mut peer.lanes {
            Self::ask_to_write(&mut self.requests, lane);
        }
    }
}
