//! Input from peers.

use std::borrow::Cow;

use super::{
    Announcement, Connection, Datagram, Header, MAP_BYTES, Map, Node, Notice, NoticeKind,
    PROBE_PORT, Request, Time,
};
use crate::proto::assembly::Assembly;
use crate::proto::awaited::Awaited;
use crate::proto::lane::{ANSWERS_ALL_MAX, ANSWERS_EACH, ANSWERS_MAX, Binding, Held};
use crate::proto::peer::By;

impl Node {
    /// Takes bytes of a connection. Their messages are in the ports' queues afterwards.
    pub fn received(&mut self, connection: Connection, bytes: &[u8], now: Time) {
        let mut rest = bytes;
        let Some((at, lane)) = self.place_of(connection) else { return };
        let Some(peer) = self.peers.get_mut(&at) else { return };
        peer.used = now;
        peer.answered_after(lane, now);
        let this = &mut peer.lanes[lane];
        this.counts.bytes_received += bytes.len() as u64;
        // Taken out, so that the effects of a message may change the lane.
        let mut assembly = std::mem::take(&mut this.link.assembly);
        if let Some(whole) = self.messages(connection, &mut assembly, &mut rest, now)
            && let Some((at, lane)) = self.place_of(connection)
            && let Some(peer) = self.peers.get_mut(&at)
        {
            let this = &mut peer.lanes[lane];
            // (The lane may be another one than before: its counts say nothing of this connection.)
            let is_another = whole > 0;
            let paused = this.link.paused;
            self.partials.has(connection, assembly.memory(), is_another, paused, now);
            this.link.assembly = assembly;
            while let Some(surplus) = self.partials.surplus(self.config.partials) {
                self.requests.push_back(Request::GiveUp(surplus));
            }
        }
    }

    /// Whether data of a connection may have to wait for a full port, for an older connection, or
    /// for a kernel's answer: before it is taken, [`Node::may_take`] says how much of it may be.
    #[must_use]
    pub fn must_ask(&self, connection: Connection, now: Time) -> bool {
        !self.full.is_empty()
            || self.place_of(connection).is_some_and(|(at, lane)| {
                let peer = self.peers.get(&at);
                peer.is_some_and(|peer| {
                    peer.awaits_before(lane) || peer.goes_on_after(lane, None, now).is_some()
                })
            })
    }

    /// Connections whose bytes are to be read before those of this one, as far as they were there when this
    /// one came: of a peer that may have given one of them up to dial its lane again.
    #[must_use]
    pub fn read_before(&self, connection: Connection, now: Time) -> Vec<Connection> {
        let Some((at, lane)) = self.place_of(connection) else { return Vec::new() };
        self.peers.get(&at).map_or_else(Vec::new, |peer| peer.read_before(lane, now))
    }

    /// How many of these bytes, which have come by a connection, may be taken: those before a message to a
    /// port that is full, or one that comes after what an older connection has brought, or may do so. What
    /// follows is left, and the connection paused.
    pub fn may_take(&mut self, connection: Connection, bytes: &[u8], now: Time) -> usize {
        let Some((at, lane)) = self.place_of(connection) else { return bytes.len() };
        let Some(peer) = self.peers.get(&at) else { return bytes.len() };
        let older = |header: &Header| {
            let is_of_port = header.from > PROBE_PORT;
            is_of_port.then(|| peer.goes_on_after(lane, Some(header), now)).flatten()
        };
        let waits_for_answer = peer.awaits_before(lane);
        let is_early = |header: &Header| waits_for_answer && Awaited::holds_message(header);
        let waits = |header: &Header| {
            is_early(header) || self.full.contains(&header.to) || older(header).is_some()
        };
        let (count, waits) = peer.lanes[lane].link.assembly.before(bytes, waits);
        let Some(header) = waits else { return count };
        if is_early(&header) {
            self.wait_for_answer(connection);
        } else if let Some(older) = older(&header) {
            self.wait_for(connection, older);
        } else {
            self.pause(connection, header.to, now);
        }
        count
    }

    /// A connection is not read on before its peer has answered a probe by another one.
    fn wait_for_answer(&mut self, connection: Connection) {
        let Some((at, lane)) = self.place_of(connection) else { return };
        let Some(peer) = self.peers.get_mut(&at) else { return };
        let link = &mut peer.lanes[lane].link;
        link.waits_for_answer = true;
        if !std::mem::replace(&mut link.paused, true) {
            self.requests.push_back(Request::Pause(connection));
        }
        self.partials.set_paused(connection, true);
    }

    /// The answer has come, or is no longer awaited.
    pub(super) fn await_no_answer(&mut self, at: u32) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        for connection in peer.await_no_answer() {
            self.resume(connection);
        }
    }

    /// A connection is not read on before an older one of its peer, which is ended, was read to its end.
    fn wait_for(&mut self, connection: Connection, older: usize) {
        let Some((at, lane)) = self.place_of(connection) else { return };
        let Some(peer) = self.peers.get_mut(&at) else { return };
        let older_one = peer.lanes[older].link.connection;
        let link = &mut peer.lanes[lane].link;
        link.waits_for = older_one;
        if !std::mem::replace(&mut link.paused, true) {
            self.requests.push_back(Request::Pause(connection));
        }
        self.partials.set_paused(connection, true);
        self.drain(at, older);
    }

    /// A connection has ended: those that wait for it go on.
    pub(super) fn end_waits_for(&mut self, at: u32, ended: Connection, now: Time) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if let Some(then) = peer.probed_ended(ended, now) {
            self.timers.insert((then, at));
        }
        let waiting = peer.lanes.iter_mut().filter(|lane| lane.link.waits_for == Some(ended));
        let waiting = waiting.filter_map(|lane| {
            lane.link.waits_for = None;
            lane.link.connection
        });
        for connection in waiting.collect::<Vec<_>>() {
            self.resume(connection);
        }
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if peer.has_one_that_goes_first() {
            return;
        }
        for lane in &mut peer.lanes {
            if lane.link.held == Some(Held::UntilOthersEnd) {
                lane.link.held = None;
                Self::ask_to_write(&mut self.requests, lane);
            }
        }
    }

    /// Whether a connection was given up, and the message that it brings is not whole yet.
    #[must_use]
    pub fn is_given_up(&self, connection: Connection) -> bool {
        self.partials.is_given_up(connection)
    }

    /// All that had come by a connection that was given up was read. If its message is not whole still, it
    /// is reset: its peer sends it again.
    pub fn give_up(&mut self, connection: Connection, now: Time) {
        if !self.is_given_up(connection) {
            return;
        }
        self.partials.forget(connection);
        if let Some((at, _)) = self.place_of(connection) {
            self.notice(at, NoticeKind::Partial, Notice::Partial);
            self.requests.push_back(Request::Close(connection));
            self.closed(connection, now);
        }
    }

    /// Takes all messages that are whole now, and returns how many these were; `None` if what follows has no
    /// meaning.
    fn messages(
        &mut self,
        connection: Connection,
        assembly: &mut Assembly,
        rest: &mut &[u8],
        now: Time,
    ) -> Option<usize> {
        let mut whole = 0;
        loop {
            match assembly.next(rest) {
                Ok(Some((header, body))) => {
                    whole += 1;
                    self.message(connection, header, body, now);
                }
                Ok(None) => return Some(whole),
                Err(too_long) => {
                    if let Some((at, _)) = self.place_of(connection) {
                        let notice = |from| Notice::TooLong(from, too_long.0);
                        self.notice(at, NoticeKind::TooLong, notice);
                    }
                    self.shut_out(connection, now);
                    return None;
                }
            }
        }
    }

    fn message(&mut self, connection: Connection, header: Header, body: Cow<'_, [u8]>, now: Time) {
        let Some((at, lane)) = self.place_of(connection) else { return };
        if header.is_map() {
            return self.map(connection, &header, &body, now);
        }
        let lane = self.release(at, lane);
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if !peer.is_new(lane, &header) {
            peer.lanes[lane].counts.duplicates += 1;
            return;
        }
        peer.lanes[lane].counts.received += 1;
        let waits = &mut peer.lanes[lane].link.waits;
        *waits = waits.filter(|(port, _)| *port != header.to);
        if header.is_probe() {
            let (said, unreadable) = Announcement::read_checked(&header.extensions);
            if let Some(unreadable) = unreadable {
                let notice = |from| Notice::Extension(from, unreadable.0);
                self.notice(at, NoticeKind::Extension, notice);
            }
            #[cfg(test)]
            let said = self.as_a_kernel_reads(said);
            let by = By { lane, connection, in_map: false };
            if !self.names_one_start(at, by, said, now) {
                return;
            }
            self.learn(at, by, said, now);
            if header.to == PROBE_PORT {
                return self.answered(connection, &header);
            }
        }
        if header.to == 0 {
            self.ping(at, lane, header.from);
            if header.is_probe() {
                self.probe_back(connection, now);
            }
            return;
        }
        let from = peer_address(self, at);
        let datagram = Datagram { from, port: header.from, body: body.into_owned() };
        if !self.deliver(header.to, datagram) {
            self.totals.no_port += 1;
            self.notice(at, NoticeKind::NoPort, |from| Notice::NoPort(from, header.to));
        }
    }

    /// A kernel has answered a probe, and knows the number of lanes now. It resends what it sent
    /// earlier on this connection until that is acknowledged, and the numbers may be those of
    /// another lane. The acknowledgement of a second probe shows that it knows.
    fn answered(&mut self, connection: Connection, header: &Header) {
        let Some((at, lane)) = self.place_of(connection) else { return };
        if !self.peers.get(&at).is_some_and(|peer| peer.is_answer(lane, header)) {
            return;
        }
        self.await_no_answer(at);
        if self.peers.get_mut(&at).is_some_and(|peer| peer.probes_again(lane)) {
            self.probe(at, lane);
        }
    }

    fn map(&mut self, connection: Connection, header: &Header, body: &[u8], now: Time) {
        self.totals.maps_received += 1;
        let said = Announcement::read(&header.extensions);
        #[cfg(test)]
        let said = self.as_a_kernel_reads(if self.config.is_a_kernel {
            Announcement::default()
        } else {
            said
        });
        let Some((at, lane)) = self.place_of(connection) else { return };
        let by = By { lane, connection, in_map: true };
        if !self.names_one_start(at, by, said, now) {
            return;
        }
        let Some(peer) = self.peers.get(&at) else { return };
        let names_its_start = said.generation != 0 || peer.announces_in_maps;
        let is_of_the_past = names_its_start && peer.is_of_the_past(said.generation, connection);
        if said != Announcement::default() {
            self.learn(at, by, said, now);
        } else if peer.announces_in_maps && !is_of_the_past {
            self.forget_start(at, by, now);
        }
        let Some((_, lane)) = self.place_of(connection) else { return };
        self.release(at, lane);
        if is_of_the_past {
            return;
        }
        let (Some(map), Some(peer)) = (Map::read(body), self.peers.get_mut(&at)) else {
            debug_assert_ne!(body.len(), MAP_BYTES);
            return self.notice(at, NoticeKind::Map, Notice::BadMap);
        };
        if peer.is_newest_map(said.generation, header.sequence) {
            peer.congested = map;
            self.tell_of_room();
        }
    }

    /// Answers a ping; a probe with what this host is.
    fn ping(&mut self, at: u32, lane: usize, from: u16) {
        self.totals.pings += 1;
        if from == 0 {
            return;
        }
        let extensions = if from == PROBE_PORT { self.announcement().write() } else { [0; 16] };
        let Some(peer) = self.peers.get_mut(&at) else { return };
        let this = &mut peer.lanes[lane];
        let waiting = this.of_no_port();
        if peer.congested.is_set(from) {
            self.totals.pings_unanswered += 1;
            return;
        }
        if waiting >= ANSWERS_MAX {
            self.totals.pings_unanswered += 1;
            return self.notice(at, NoticeKind::Answers, Notice::Answers);
        }
        if self.answers >= ANSWERS_ALL_MAX && waiting >= ANSWERS_EACH {
            self.totals.pings_unanswered += 1;
            if !std::mem::replace(&mut self.answers_reported, true) {
                self.requests.push_back(Request::Notice(Notice::AnswersOfAll));
            }
            return;
        }
        self.answers += 1;
        let header = Header { from: 0, to: from, extensions, ..Header::default() };
        this.push(Binding::default(), header, &[]);
        Self::ask_to_write(&mut self.requests, this);
    }

    /// A kernel that asks for the number of lanes does not know it, and sends by its first one: it
    /// may have restarted, though nothing else shows that. It is probed, and what comes by other
    /// lanes waits for the answer.
    fn probe_back(&mut self, connection: Connection, now: Time) {
        let Some((at, lane)) = self.place_of(connection) else { return };
        let Some(peer) = self.peers.get_mut(&at) else { return };
        // (Once by each connection: the peer may ask back, too.)
        if !peer.lanes[lane].link.was_probed && !peer.announces_in_maps {
            self.ask(at, lane, now);
        }
    }

    /// The next message of a connection is for a port that is full.
    fn pause(&mut self, connection: Connection, full: u16, now: Time) {
        if let Some((at, lane)) = self.place_of(connection)
            && let Some(peer) = self.peers.get_mut(&at)
            && let Some(port) = self.ports.get_mut(&full)
            && !port.pausing.contains(&connection)
        {
            let waits = &mut peer.lanes[lane].link.waits;
            *waits = waits.filter(|(port, _)| *port == full).or(Some((full, now)));
            port.pausing.push(connection);
            self.partials.set_paused(connection, true);
            if !std::mem::replace(&mut peer.lanes[lane].link.paused, true) {
                self.requests.push_back(Request::Pause(connection));
            }
        }
    }

    /// Whether a full port keeps a connection from being read. (Others pause none.)
    fn is_paused_by_a_port(&self, connection: Connection) -> bool {
        let mut full = self.full.iter().filter_map(|at| self.ports.get(at));
        full.any(|port| port.pausing.contains(&connection))
    }

    pub(super) fn resume(&mut self, connection: Connection) {
        if let Some((at, lane)) = self.place_of(connection)
            && !self.is_paused_by_a_port(connection)
            && let Some(peer) = self.peers.get_mut(&at)
            && peer.lanes[lane].link.waits_for.is_none()
            && !peer.lanes[lane].link.waits_for_answer
        {
            peer.lanes[lane].link.paused = false;
            self.partials.set_paused(connection, false);
            self.requests.push_back(Request::Resume(connection));
        }
    }
}

fn peer_address(node: &Node, at: u32) -> core::net::IpAddr {
    node.peers.get(&at).map_or(node.config.address, |peer| peer.address)
}
