//! Connections: dialling, accepting, writing, and their ends.

use hawser_multipath::paths::spread::{self, Seen};

use super::{
    Announcement, Arc, BTreeMap, Busy, COMES_DOWN, Connection, Duration, FLAG_MAP, GIVE_UP, Header,
    IDLE, IpAddr, KNOCK_AGAIN, LANES_MAX, MAP_BYTES, Map, Node, NotTaken, Notice, NoticeKind,
    PEERS_MAX, PROBE_PORT, Peer, Place, Progress, Request, SHUT_OUT, SLOW, SendError, State, Time,
    TooManyWait, UNANSWERED_MAX, VecDeque, as_ipv6, is_a_host,
};
use crate::proto::header::HEADER_BYTES;
use crate::proto::lane::{Binding, Held, Lane, MapMessage};
use crate::proto::peer::HELD_MAX;
use crate::proto::stand_in::DIALLED_AGAIN;

/// Lanes leave their number as the remainder of source ports (RDS_MPATH_WORKERS).
const REMAINDERS: u16 = LANES_MAX as u16;

impl Node {
    /// The peer with this address, which is made if there is none: for what a port sends, or because it has
    /// connected.
    pub(super) fn peer_at(
        &mut self,
        address: IpAddr,
        asked_by: Option<u16>,
        now: Time,
    ) -> Result<u32, SendError> {
        if let Some(at) = self.by_address.get(&address) {
            return Ok(*at);
        }
        if asked_by.is_some_and(|port| self.has_too_many_unanswered(port)) {
            return Err(SendError::Unanswered);
        }
        if self.peers.len() >= PEERS_MAX && !self.forget_one(asked_by) {
            return Err(SendError::Peers);
        }
        let dials = as_ipv6(self.config.address) < as_ipv6(address);
        let at = self.next_peer;
        self.next_peer += 1;
        let peer = Peer::new(address, dials, asked_by, self.config.clock_ms, now);
        self.peers.insert(at, Box::new(peer));
        self.by_address.insert(address, at);
        self.peers_reported = false;
        if let Some(port) = asked_by.and_then(|port| self.ports.get_mut(&port)) {
            port.unanswered += 1;
        }
        Ok(at)
    }

    /// Whether too many hosts to which a port has sent have never answered. They are counted where they may
    /// be too many.
    fn has_too_many_unanswered(&mut self, at: u16) -> bool {
        let Some(port) = self.ports.get_mut(&at) else { return false };
        if port.unanswered >= UNANSWERED_MAX {
            let peers = self.peers.values();
            port.unanswered = peers.filter(|peer| peer.unanswered_by() == Some(at)).count();
        }
        port.unanswered >= UNANSWERED_MAX
    }

    /// The oldest of those that have never answered the port that has most of these, if it has more than
    /// the one that asks for another.
    fn surplus_peer(&self, asked_by: Option<u16>) -> Option<u32> {
        let mut of_ports = BTreeMap::<u16, usize>::new();
        let ports = self.peers.values().filter_map(|peer| peer.unanswered_by());
        ports.for_each(|port| *of_ports.entry(port).or_default() += 1);
        let own = asked_by.and_then(|port| of_ports.get(&port)).copied().unwrap_or(0);
        let (most, _) = of_ports
            .into_iter()
            .filter(|(_, count)| *count > own)
            .max_by_key(|(_, count)| *count)?;
        let of_port = self.peers.iter().filter(|(_, peer)| peer.unanswered_by() == Some(most));
        of_port.min_by_key(|(_, peer)| peer.used).map(|(at, _)| *at)
    }

    fn forget_one(&mut self, asked_by: Option<u16>) -> bool {
        let idle = self.peers.iter().filter(|(_, peer)| peer.is_down() && peer.is_idle());
        let oldest = idle.min_by_key(|(_, peer)| peer.used).map(|(at, _)| *at);
        let Some(at) = oldest.or_else(|| self.surplus_peer(asked_by)) else { return false };
        let Some(mut peer) = self.peers.remove(&at) else { return false };
        let address = peer.address;
        if !peer.is_idle() {
            self.requests.push_back(Request::Notice(Notice::Displaced(address)));
        }
        for lane in &mut peer.lanes {
            if let Some(dialled) = lane.link.connection {
                self.connections.remove(&dialled);
                self.requests.push_back(Request::Close(dialled));
            }
            lane.drop_queued(&mut self.freed, |_| true);
        }
        self.give_room(at);
        self.by_address.remove(&address);
        // A port that waits for one of this peer's would wait for ever.
        self.tell_of_room();
        true
    }

    /// Its peer and lane.
    pub(super) fn place_of(&self, connection: Connection) -> Option<(u32, usize)> {
        self.connections.get(&connection).map(|place| (place.peer, usize::from(place.lane)))
    }

    fn forget_connection(&mut self, connection: Connection) -> Option<(u32, usize)> {
        let place = self.place_of(connection);
        self.connections.remove(&connection);
        self.partials.forget(connection);
        place
    }

    fn new_connection(&mut self, peer: u32, lane: usize) -> Connection {
        let connection = self.arrived();
        self.connections.insert(connection, Place { peer, lane: lane as u8 });
        connection
    }

    /// There may be something to write on a lane, or to dial it for.
    pub(super) fn go_on(&mut self, at: u32, lane: usize, now: Time) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if peer.lane(lane).is_up() {
            return Self::ask_to_write(&mut self.requests, &mut peer.lanes[lane]);
        }
        self.dial(at, 0, now);
        if lane > 0 {
            self.dial(at, lane, now);
        }
    }

    pub(super) fn ask_to_write(requests: &mut VecDeque<Request>, lane: &mut Lane) {
        if let Some(connection) = lane.link.connection
            && !lane.link.asked
            && lane.has_to_write()
        {
            lane.link.asked = true;
            requests.push_back(Request::Write(connection));
        }
    }

    /// Dials a lane if it is down and may be dialled now. Of a larger address it is a knock.
    fn dial(&mut self, at: u32, lane: usize, now: Time) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if peer.lane(lane).link.state != State::Down
            || peer.lanes[lane].dial_at.is_some_and(|then| then > now)
        {
            return;
        }
        if lane > 0 {
            let in_order = peer.port_is_lane || peer.are_up_before(lane);
            if !peer.dials || lane >= peer.paths || !peer.lanes[0].is_up() || !in_order {
                return;
            }
        }
        let to = peer.address;
        let connection = self.new_connection(at, lane);
        let Some(peer) = self.peers.get_mut(&at) else { return };
        let link = &mut peer.lanes[lane].link;
        link.state = State::Dialling;
        link.connection = Some(connection);
        peer.lanes[lane].dial_at = None;
        let port_remainder = lane as u16 % REMAINDERS;
        let within = (peer.lanes[lane].quick_dials > 0 && peer.can_compare())
            .then(|| spread::slowest(peer.rtt));
        self.requests.push_back(Request::Dial { connection, to, port_remainder, within });
    }

    /// A requested connection has not come up within the given time, or has taken longer.
    pub fn slow(&mut self, connection: Connection, now: Time) {
        let Some((at, lane)) = self.place_of(connection) else { return };
        let Some(peer) = self.peers.get_mut(&at) else { return };
        let this = &mut peer.lanes[lane];
        if this.link.state != State::Dialling {
            return;
        }
        this.rewind();
        this.quick_dials = this.quick_dials.saturating_sub(1);
        self.forget_connection(connection);
        self.requests.push_back(Request::Close(connection));
        self.dial(at, lane, now);
    }

    /// Dials all lanes of the peer.
    pub(super) fn dial_all(&mut self, at: u32, now: Time) {
        let Some(peer) = self.peers.get(&at) else { return };
        if peer.dials {
            for lane in 1..peer.paths {
                self.dial(at, lane, now);
            }
        }
    }

    /// A requested connection is established.
    pub fn connected(&mut self, connection: Connection, now: Time) {
        let Some((at, lane)) = self.place_of(connection) else { return };
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if !peer.dials {
            // It was a knock: the smaller address dials back (rds_tcp_state_change,
            // net/rds/tcp_connect.c).
            peer.lanes[lane].rewind();
            self.connections.remove(&connection);
            self.requests.push_back(Request::Close(connection));
            return self.set_dial_time(at, lane, now.after(KNOCK_AGAIN));
        }
        self.up(at, lane, None, now);
        let Some(peer) = self.peers.get(&at) else { return };
        let is_of_no_lane = peer.paths > 0 && lane >= peer.paths; // it has restarted with fewer
        if is_of_no_lane || (!peer.port_is_lane && !peer.are_up_before(lane)) {
            // (Or a lane before it broke meanwhile: the peer takes this one for that.)
            return self.drain(at, lane);
        }
        self.dial_all(at, now);
    }

    /// A requested connection failed, for this reason.
    pub fn failed(&mut self, connection: Connection, why: &str, now: Time) {
        let Some((at, lane)) = self.forget_connection(connection) else { return };
        self.cannot_be_reached(at, why);
        if let Some(peer) = self.peers.get_mut(&at) {
            peer.lanes[lane].rewind();
        }
        self.dial_later(at, lane, now);
    }

    /// As [`Node::accept_arrived`], of one that arrives just now.
    ///
    /// # Errors
    /// As there.
    pub fn accept(&mut self, from: IpAddr, port: u16, now: Time) -> Result<Connection, NotTaken> {
        let connection = self.arrived();
        self.accept_arrived(connection, from, port, now).map(|()| connection)
    }

    /// A peer has connected: [`Node::accept_arrived`] is next.
    pub fn arrived(&mut self) -> Connection {
        let connection = Connection(self.next_connection);
        self.next_connection += 1;
        connection
    }

    /// Takes a connection that a peer has made from `port`. One that is offered again keeps the number that
    /// it had when it arrived: a later one, of another start of the peer's, may be taken before it.
    ///
    /// # Errors
    /// [`NotTaken`]: it waits, or is to be reset.
    pub fn accept_arrived(
        &mut self,
        connection: Connection,
        from: IpAddr,
        port: u16,
        now: Time,
    ) -> Result<(), NotTaken> {
        let taken = self.accept_(connection, from, port, now);
        self.totals.refused += u64::from(taken == Err(NotTaken::Refuse));
        taken
    }

    /// A connection of this peer was reset while it waited for a lane, because there are too many.
    pub fn refused_to_wait(&mut self, from: IpAddr, too_many: TooManyWait) {
        self.totals.refused += 1;
        if let Some(at) = self.by_address.get(&from.to_canonical()).copied() {
            let what = match too_many {
                TooManyWait::OfPeer => NoticeKind::Lanes,
                TooManyWait::OfAll => NoticeKind::LanesOfAll,
            };
            self.notice(at, what, |from| Notice::Lanes(from, too_many));
        }
    }

    fn accept_(
        &mut self,
        connection: Connection,
        from: IpAddr,
        port: u16,
        now: Time,
    ) -> Result<(), NotTaken> {
        let from = from.to_canonical();
        if from == self.config.address || !is_a_host(from) {
            return Err(NotTaken::Refuse);
        }
        let Ok(at) = self.peer_at(from, None, now) else {
            if !std::mem::replace(&mut self.peers_reported, true) {
                self.requests.push_back(Request::Notice(Notice::Peers(from)));
            }
            return Err(NotTaken::Refuse);
        };
        let Some(peer) = self.peers.get_mut(&at) else { return Err(NotTaken::Refuse) };
        if now < peer.shut_out_until {
            return Err(NotTaken::Refuse);
        }
        peer.used = now;
        if peer.dials {
            // A knock: it is there, so whatever wait there was is over. (A kernel that knocks has its
            // lane 0 not down yet.)
            if peer.mixes_up() {
                let then = now.after(COMES_DOWN);
                if peer.lanes[0].dial_at.is_none_or(|at| at > then) {
                    self.set_dial_time(at, 0, then);
                }
                return Err(NotTaken::Refuse);
            }
            peer.lanes[0].dial_at = None;
            self.dial(at, 0, now);
            return Err(NotTaken::Refuse);
        }
        match peer.lane_for(port) {
            Ok(lane) => {
                if let Some(knock) = peer.lanes[lane].link.connection.take() {
                    self.connections.remove(&knock);
                    self.requests.push_back(Request::Close(knock));
                }
                self.connections.insert(connection, Place { peer: at, lane: lane as u8 });
                if let Some(peer) = self.peers.get_mut(&at) {
                    peer.lanes[lane].link.connection = Some(connection);
                }
                self.up(at, lane, Some(port), now);
                Ok(())
            }
            Err(Busy::GivenUp(lane)) => {
                self.drain(at, lane);
                Err(NotTaken::Wait)
            }
            Err(Busy::All) => Err(NotTaken::Wait),
        }
    }

    fn up(&mut self, at: u32, lane: usize, accepted_from: Option<u16>, now: Time) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        let unknown = peer.paths == 0;
        // What was sent to one start of a peer is not for the next: a Hawser says which it is in the
        // first message of each connection. And that says which lane a connection is that has come
        // before the peer has said what its ports mean. (A kernel's first message is a map, too, on
        // lane 0.)
        let held_for = if peer.announces_in_maps {
            None
        } else if unknown {
            Some(HELD_MAX)
        } else {
            (peer.dials && peer.mixes_up()).then(|| peer.held_briefly())
        };
        let waits_for_its_name = peer.announces_in_maps.then_some(Held::UntilItSpeaks);
        let is_to_be_probed = peer.is_to_be_probed(lane);
        let this = &mut peer.lanes[lane];
        this.dial_at = None;
        this.counts.connections += 1;
        this.link.state = State::Up;
        this.link.up_at = now;
        this.link.accepted_from = accepted_from;
        this.link.map_due = true;
        this.link.held = held_for.map(|time| Held::Until(now.after(time))).or(waits_for_its_name);
        Self::ask_to_write(&mut self.requests, this);
        if is_to_be_probed {
            self.ask(at, lane, now);
        }
        // The search for lanes that share a limit goes on once all are up.
        self.timers.insert((now, at));
        if let Some(time) = held_for {
            self.timers.insert((now.after(time), at));
        }
    }

    /// Asks a peer how many lanes it has. What comes by other lanes waits for the answer.
    pub(super) fn ask(&mut self, at: u32, lane: usize, now: Time) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if let Some(then) = peer.await_answer(lane, now) {
            self.timers.insert((then, at));
        }
        self.probe(at, lane);
    }

    /// Asks a peer how many lanes it has, unless it is asked already.
    pub(super) fn probe(&mut self, at: u32, lane: usize) {
        let extensions = self.announcement().write();
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if !peer.lanes[lane].has_probe() {
            let header = Header { from: PROBE_PORT, to: 0, extensions, ..Header::default() };
            peer.lanes[lane].push(Binding::default(), header, &[]);
            Self::ask_to_write(&mut self.requests, &mut peer.lanes[lane]);
        }
    }

    /// The connection's first message has come, and the peer is known as far as it says.
    pub(super) fn release(&mut self, at: u32, lane: usize) -> usize {
        let Some(peer) = self.peers.get_mut(&at) else { return lane };
        if peer.is_of_kernel_before(lane) {
            return lane; // what it brings was left unread, and nothing goes to that kernel
        }
        peer.has_spoken |= !peer.announces_in_maps;
        if matches!(peer.lanes[lane].link.held, None | Some(Held::UntilOthersEnd)) {
            return lane;
        }
        let held = peer.has_one_that_goes_first().then_some(Held::UntilOthersEnd);
        let link = &mut peer.lanes[lane].link;
        link.held = held;
        let Some(port) = link.accepted_from.filter(|_| peer.port_is_lane) else {
            peer.stand_ins.taken(lane);
            Self::ask_to_write(&mut self.requests, &mut peer.lanes[lane]);
            return lane;
        };
        // A connection that came before the peer has said what its ports mean was taken for lane 0.
        let meant = peer.lane_of_port(port);
        if meant >= peer.paths.max(1) {
            // It was dialled for a lane that there is not. Nothing has gone by it in either direction.
            self.drain(at, lane);
            return lane;
        }
        let moves = meant != lane && peer.lane(meant).link.state == State::Down;
        let lane = if moves { self.move_connection(at, lane, meant) } else { lane };
        let Some(peer) = self.peers.get_mut(&at) else { return lane };
        Self::ask_to_write(&mut self.requests, &mut peer.lanes[lane]);
        lane
    }

    /// A connection turns out to be another lane's, which has none. Returns that lane.
    pub(super) fn move_connection(&mut self, at: u32, lane: usize, meant: usize) -> usize {
        let Some(peer) = self.peers.get_mut(&at) else { return lane };
        let link = std::mem::take(&mut peer.lanes[lane].link);
        peer.lane(meant).link = link;
        peer.lanes[meant].generation = if peer.announces_in_maps { peer.generation } else { 0 };
        peer.lanes[meant].dial_at = None;
        if let Some(connection) = peer.lanes[meant].link.connection {
            let place = Place { peer: at, lane: meant as u8 };
            self.connections.insert(connection, place);
        }
        self.requests.push_back(Request::Vacant(peer.address));
        meant
    }

    /// The next bytes to write to a connection, in two parts. Empty if it waits for something.
    pub fn to_write(&mut self, connection: Connection) -> [&[u8]; 2] {
        let Some((at, lane)) = self.place_of(connection) else { return [&[], &[]] };
        let said = self.announcement();
        let number = self.map_number;
        let Some(lane) = self.peers.get_mut(&at).and_then(|peer| peer.lanes.get_mut(lane)) else {
            return [&[], &[]];
        };
        if lane.link.map_due && lane.link.map.is_none() && lane.is_up() {
            self.totals.maps_sent += 1;
            lane.link.map_due = false;
            let mut map: MapMessage = [0; HEADER_BYTES + MAP_BYTES];
            let (header, bits) = map.split_at_mut(HEADER_BYTES);
            #[cfg(test)]
            let said = if said.generation == 0 || self.config.is_a_kernel {
                Announcement::default()
            } else {
                said
            };
            header.copy_from_slice(&map_header(said, number).encode());
            self.congested.write(bits);
            // A map for each lane of each peer would leave holes in the heap between what stays.
            if self.last_map.as_deref() != Some(&map) {
                self.last_map = Some(Arc::new(map));
            }
            lane.link.map = self.last_map.clone();
        }
        if !lane.has_to_write() {
            lane.link.asked = false;
        }
        lane.to_write()
    }

    /// `count` of these bytes were written.
    pub fn wrote(&mut self, connection: Connection, count: usize) {
        if let Some((at, lane)) = self.place_of(connection)
            && let Some(lane) = self.peers.get_mut(&at).and_then(|peer| peer.lanes.get_mut(lane))
        {
            lane.wrote(count);
        }
    }

    /// TCP has acknowledged so many bytes of a connection since it is up.
    pub fn acknowledged(&mut self, connection: Connection, progress: Progress, now: Time) {
        let Some((at, lane)) = self.place_of(connection) else { return };
        let Some(peer) = self.peers.get_mut(&at) else { return };
        peer.lanes[lane].acknowledged(&progress, now, &mut self.freed);
        peer.acknowledged(lane, progress.acknowledged);
        if progress.held_by_peer >= SLOW {
            self.notice(at, NoticeKind::Slow, Notice::Slow);
        }
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if !progress.rtt.is_zero() && (peer.rtt.is_zero() || progress.rtt < peer.rtt) {
            peer.rtt = progress.rtt;
        }
        // On whole seconds, so that a busy lane does not fill the table of timers.
        let second = now.as_micros() / 1_000_000 * 1_000_000;
        self.timers.insert((Time::from_micros(second).after(2 * IDLE), at));
        self.give_room(at);
    }

    /// Whether the connection's acknowledgements matter: something waits for them.
    #[must_use]
    pub fn has_unacknowledged(&self, connection: Connection) -> bool {
        self.place_of(connection).is_some_and(|(at, lane)| {
            self.peers.get(&at).is_some_and(|peer| !peer.lanes[lane].carries_nothing())
        })
    }

    /// A connection has ended, and what had come by it was handed over.
    pub fn closed(&mut self, connection: Connection, now: Time) {
        let Some((at, lane)) = self.forget_connection(connection) else { return };
        let Some(peer) = self.peers.get_mut(&at) else { return };
        let is_refused = peer.is_refused(lane);
        if peer.lanes[lane].is_sound(now) {
            peer.forget_failures(lane);
        }
        peer.answered_after(lane, now);
        peer.lane_ended(lane);
        self.end_waits_for(at, connection, now);
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if is_refused && peer.stand_ins.refused(lane, now) {
            let carrier = peer.move_to_carrier(lane);
            Self::ask_to_write(&mut self.requests, &mut peer.lanes[carrier]);
            self.notice(at, NoticeKind::Refused, |address| Notice::Refused(address, lane));
        }
        self.end_last_start(at, lane, now);
        let Some(peer) = self.peers.get_mut(&at) else { return };
        peer.lanes[lane].quick_dials = spread::quick_dials(peer.rtt);
        peer.used = now;
        self.requests.push_back(Request::Vacant(peer.address));
        let fails = peer.dials && peer.lanes[lane].fails_again_and_again() && !peer.mixes_up();
        if fails && peer.is_unreachable() {
            self.cannot_be_reached(at, "it ends each connection soon");
        }
        self.dial_later(at, lane, now);
    }

    fn cannot_be_reached(&mut self, at: u32, why: &str) {
        self.notice(at, NoticeKind::Unreachable, |address| {
            Notice::Unreachable(address, why.to_owned())
        });
    }

    pub(super) fn drain(&mut self, at: u32, lane: usize) {
        if let Some(link) = self.peers.get_mut(&at).and_then(|peer| peer.lanes.get_mut(lane))
            && link.link.state == State::Up
            && let Some(connection) = link.link.connection
        {
            link.link.state = State::Draining;
            self.requests.push_back(Request::Drain(connection));
        }
    }

    /// The peer of a connection has broken the protocol.
    pub(super) fn shut_out(&mut self, connection: Connection, now: Time) {
        let Some((at, lane)) = self.forget_connection(connection) else { return };
        let Some(peer) = self.peers.get_mut(&at) else { return };
        peer.shut_out_until = now.after(SHUT_OUT);
        peer.lane_ended(lane);
        self.end_waits_for(at, connection, now);
        self.requests.push_back(Request::Close(connection));
        self.set_dial_time(at, lane, now.after(SHUT_OUT));
    }

    /// A lane that has broken, or could not be dialled, is dialled again by the smaller address. A
    /// larger one knocks for what it has to send.
    fn dial_later(&mut self, at: u32, lane: usize, now: Time) {
        let random = self.draw();
        self.drop_unwanted(at, now);
        let Some(peer) = self.peers.get_mut(&at) else { return };
        let is_at_rest = peer.is_idle() && peer.is_down();
        if is_at_rest && !peer.lanes.iter().all(Lane::is_empty) {
            self.timers.insert((peer.used.after(GIVE_UP), at));
        }
        if is_at_rest && (!peer.dials || now.since(peer.used) > GIVE_UP) {
            // Nothing is dialled now until something is sent, and that must not wait for a map that
            // only a connection could bring.
            peer.congested = Map::default();
            self.tell_of_room();
        }
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if !peer.dials {
            return self.set_dial_time(at, 0, now.after(KNOCK_AGAIN));
        }
        if is_at_rest && now.since(peer.used) > GIVE_UP {
            return;
        }
        if peer.stand_ins.has(lane) {
            return self.set_dial_time(at, lane, now.after(DIALLED_AGAIN));
        }
        let least = if peer.mixes_up() { COMES_DOWN } else { Duration::ZERO };
        let wait = peer.lane(lane).back_off(random).max(least);
        self.set_dial_time(at, lane, now.after(wait));
    }

    pub(super) fn set_dial_time(&mut self, at: u32, lane: usize, then: Time) {
        if let Some(peer) = self.peers.get_mut(&at) {
            peer.lane(lane).dial_at = Some(then);
            self.timers.insert((then, at));
        }
    }

    /// When [`Node::tick`] is due.
    #[must_use]
    pub fn next_tick(&self) -> Option<Time> {
        self.timers.first().map(|(then, _)| *then)
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Time) {
        while let Some((then, at)) = self.timers.first().copied().filter(|(then, _)| *then <= now) {
            self.timers.remove(&(then, at));
            self.tick_peer(at, now);
        }
    }

    fn tick_peer(&mut self, at: u32, now: Time) {
        self.drop_unwanted(at, now);
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if peer.has_awaited_for_long(now) {
            self.await_no_answer(at);
        }
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if let Some(awaited) = peer.awaited.as_ref().filter(|awaited| awaited.until() > now) {
            self.timers.insert((awaited.until(), at));
        }
        let wants = peer.dials || !peer.is_idle();
        let mut due = Vec::new();
        for (lane, this) in peer.lanes.iter_mut().enumerate() {
            this.give_back_memory();
            if matches!(this.link.held, Some(Held::Until(then)) if then <= now) {
                this.link.held = None;
                peer.stand_ins.taken(lane);
                Self::ask_to_write(&mut self.requests, this);
            }
            if wants && this.dial_at.is_some_and(|then| then <= now) {
                due.push(lane);
            }
        }
        for lane in due {
            self.dial(at, lane, now);
        }
        self.spread(at, now);
    }

    /// Lanes that share a limit end their connections. The smaller address dials them again, from other
    /// ports.
    fn spread(&mut self, at: u32, now: Time) {
        let Some(peer) = self.peers.get_mut(&at) else { return };
        if !peer.port_is_lane || peer.paths < 2 {
            return;
        }
        let lanes = peer.lanes.iter_mut().take(peer.paths);
        let looks: Vec<spread::Lane> = lanes.map(Lane::look).collect();
        let Seen { slow, next } = peer.spread.look(now, &looks);
        if let Some(next) = next {
            self.timers.insert((next, at));
        }
        for lane in slow {
            self.drain(at, lane);
        }
    }

    /// The wait until something may be done, from `now` on.
    #[must_use]
    pub fn until_tick(&self, now: Time) -> Option<Duration> {
        self.next_tick().map(|then| then.since(now))
    }
}

/// Kernels have no number in a map, and look at none. It is here so that of two maps by different lanes
/// the older one is known, which may come last.
fn map_header(said: Announcement, number: u64) -> Header {
    Header {
        sequence: number,
        length: MAP_BYTES as u32,
        flags: FLAG_MAP,
        extensions: said.write(),
        ..Header::default()
    }
}
