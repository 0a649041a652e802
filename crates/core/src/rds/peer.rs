//! A host and the lanes to it.
//!
//! # Model
//! Until the peer has said how many lanes it has, only lane 0 has a connection; what belongs to others
//! waits on them. Then messages of lanes that there are not go to those that there are, before any of
//! them was sent.
//!
//! # Invariants
//! * all messages of a port are on one lane, in order
//! * lanes from 1 on are dialled only while lane 0 is up
//!
//! # Limits
//! A peer that does not name its lanes by source ports (Linux up to 6.18) takes a connection for the
//! first of its lanes that is down: to such a one lanes are dialled one after the other, after a while in
//! which its own may come down. It may take them for other lanes than before all the same (one of its own
//! that knocks is not down): what comes is compared as [`super::received`] says. A connection for which
//! it has no lane is reset, though TCP has acknowledged what went by it: nothing does at first.

use core::net::IpAddr;
use std::time::Duration;

use super::congestion::Map;
use super::header::{Announcement, FLAG_AGAIN, Header, LANES_MAX, PROBE_PORT};
use super::lane::{Freed, Lane, State};
use super::received::Received;
use super::spread::Spread;
use super::stand_in::StandIns;
use crate::time::Time;

/// A lane waits so long for the peer to say who it is before it sends anything again.
pub const HELD_MAX: Duration = Duration::from_secs(1);

/// To a peer that may take a connection for any of its lanes nothing is sent on a new one for so long,
/// unless it has said something on it: it may reset it, though TCP has acknowledged what was sent. For
/// longer, up to [`HELD_MAX`], where it has taken long of late to say something, or to reset one.
pub const HELD_BRIEFLY: Duration = Duration::from_millis(100);

/// In this time it is said of a peer at most [`ANEW_MAX`] times, once for each lane, that it has started
/// anew.
pub(crate) const ANEW_EACH: Duration = Duration::from_secs(60);
/// See [`ANEW_EACH`].
pub(crate) const ANEW_MAX: u8 = LANES_MAX as u8;

/// Things that are said once of each peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Told {
    TooLong,
    NoPort,
    Answers,
    Map,
    Extension,
    Lanes,
    Partial,
    Refused,
    Announced,
    Slow,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// Whether this end dials: its address is smaller.
    pub(crate) dials: bool,
    /// How many lanes are used; 0 until the peer has said.
    pub(crate) paths: usize,
    pub(crate) port_is_lane: bool,
    /// Its generation; 0 if it has not said.
    pub(crate) generation: u32,
    /// It announces itself in maps: a Hawser.
    pub(crate) announces_in_maps: bool,
    pub(crate) probed: bool,
    pub(crate) lanes: Vec<Lane>,
    /// Of a peer that may take a new connection for another lane than before.
    received: Option<Box<Received>>,
    /// It has answered a probe: it knows how many lanes there are, and sends by the right ones.
    answered: bool,
    pub(crate) congested: Map,
    /// Of which start that was, and its number among that one's maps; 0 if it has none.
    map_of: (u32, u64),
    pub(crate) spread: Spread,
    /// Lanes that it takes no connection for.
    pub(crate) stand_ins: StandIns,
    /// How long it took of late, at most, from a connection's coming up to its first message, or to its
    /// end where there was none.
    answers_after: Duration,
    /// The least round trip that was ever seen; zero if none was.
    pub(crate) rtt: Duration,
    pub(crate) shut_out_until: Time,
    /// When something was last done.
    pub(crate) used: Time,
    told: u16,
    /// Since when it was said that it has started anew, and how often.
    said_anew: (Time, u8),
}

/// Why a connection has no lane yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Busy {
    /// The peer dials a lane again, so it has given up the connection that this lane has.
    GivenUp(usize),
    /// All lanes that are known of have one.
    All,
}

/// What became of an announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Learnt {
    /// It has started anew.
    pub(crate) anew: bool,
    /// The number of lanes is another one.
    pub(crate) paths: bool,
}

impl Peer {
    pub(crate) fn new(address: IpAddr, dials: bool, now: Time) -> Self {
        Self {
            address,
            dials,
            paths: 0,
            port_is_lane: false,
            generation: 0,
            announces_in_maps: false,
            probed: false,
            lanes: vec![Lane::default()],
            received: None,
            answered: false,
            congested: Map::default(),
            map_of: (0, 0),
            spread: Spread::default(),
            stand_ins: StandIns::default(),
            answers_after: Duration::ZERO,
            rtt: Duration::ZERO,
            shut_out_until: Time::ZERO,
            used: now,
            told: 0,
            said_anew: (Time::ZERO, 0),
        }
    }

    /// A lane, which is made if there is none yet.
    pub(crate) fn lane(&mut self, at: usize) -> &mut Lane {
        debug_assert!(at < LANES_MAX);
        if self.lanes.len() <= at {
            self.lanes.resize_with(at + 1, Lane::default);
        }
        &mut self.lanes[at]
    }

    /// Whether nothing of a port's is queued to it.
    pub(crate) fn is_idle(&self) -> bool {
        self.lanes.iter().all(Lane::has_nothing_of_ports)
    }

    /// Whether no lane has a connection.
    pub(crate) fn is_down(&self) -> bool {
        self.lanes.iter().all(|lane| lane.link.state == State::Down)
    }

    /// Whether no connection of its carries anything, nor will one that is known of.
    pub(crate) fn is_unreachable(&self) -> bool {
        let carries = |lane: &Lane| matches!(lane.link.state, State::Up | State::Draining);
        !self.lanes.iter().any(carries)
    }

    /// Whether a new connection's round trip can be compared with others', and another one may be taken in
    /// its place: no data has gone by it, and its source port says which lane it is.
    pub(crate) fn can_compare(&self) -> bool {
        let rtt_is_known = !self.rtt.is_zero();
        rtt_is_known && self.dials && self.port_is_lane && self.lanes.iter().any(Lane::is_up)
    }

    /// Whether it may take a new connection for any of several lanes.
    pub(crate) fn mixes_up(&self) -> bool {
        self.paths > 1 && !self.port_is_lane
    }

    /// The lane that carries now what belongs to this one.
    pub(crate) fn carrier(&mut self, lane: usize) -> usize {
        let carrier = self.stand_ins.carrier(lane);
        if carrier != lane {
            let link = &self.lane(lane).link;
            let is_taken = link.state == State::Up && link.held.is_none();
            if is_taken && self.lane(carrier).is_empty() {
                self.stand_ins.end(lane);
                return lane;
            }
        }
        carrier
    }

    /// Whether all lanes before this one are up that the peer takes connections for.
    pub(crate) fn are_up_before(&self, lane: usize) -> bool {
        let mut before = self.lanes[..lane].iter().enumerate();
        before.all(|(at, lane)| lane.is_up() || self.stand_ins.has(at))
    }

    /// Whether a connection of a lane that ends was never taken: the peer has no lane for it.
    pub(crate) fn is_refused(&self, lane: usize) -> bool {
        let link = &self.lanes[lane].link;
        let was_new = link.state == State::Up && link.held.is_some() && !link.has_spoken;
        self.dials && self.mixes_up() && was_new
    }

    /// Gives the messages of a lane that is refused to the one that stands in for it, which is returned.
    pub(crate) fn move_to_carrier(&mut self, lane: usize) -> usize {
        let carrier = self.stand_ins.carrier(lane);
        let (below, these) = self.lanes.split_at_mut(lane);
        these[0].move_all_to(&mut below[carrier]);
        carrier
    }

    /// Whether a message that came by a lane is new; it is counted as the lane's last one then.
    pub(crate) fn is_new(&mut self, lane: usize, header: &Header) -> bool {
        self.begin_to_remember(lane);
        self.answered |= (header.from, header.to) == (0, PROBE_PORT);
        let this = &mut self.lanes[lane];
        let is_new = match &mut self.received {
            Some(received) => received.is_new(lane, header),
            None => header.sequence >= this.expected || header.flags & FLAG_AGAIN == 0,
        };
        if is_new {
            this.expected = header.sequence.wrapping_add(1);
        }
        is_new
    }

    /// Remembers from now on what comes by which lane. Before, a kernel's ports send by lane 0, whichever
    /// theirs is.
    fn begin_to_remember(&mut self, lane: usize) {
        if self.received.is_none() && self.mixes_up() && (self.answered || lane > 0) {
            let expected = |at: usize| self.lanes.get(at).map_or(0, |lane| lane.expected);
            self.received = Some(Box::new(Received::new(expected)));
        }
    }

    /// Whether a map says what is now. By two lanes an older one may come after a newer one; and for a port
    /// that is congested by mistake its senders would wait for good.
    pub(crate) fn is_newest_map(&mut self, generation: u32, number: u64) -> bool {
        if generation != 0 && self.map_of.0 == generation && number < self.map_of.1 {
            return false;
        }
        self.map_of = (generation, number);
        true
    }

    /// A lane's connection has said something for the first time, or has ended.
    pub(crate) fn answered_after(&mut self, lane: usize, now: Time) {
        let link = &mut self.lanes[lane].link;
        if !std::mem::replace(&mut link.has_spoken, true) && link.state != State::Dialling {
            let took = now.since(link.up_at);
            self.answers_after = took.max(self.answers_after / 8 * 7);
        }
    }

    /// How long nothing is sent by a new connection of one that may reset it, and is as slow as it has
    /// been of late.
    pub(crate) fn held_briefly(&self) -> Duration {
        (2 * self.answers_after).clamp(HELD_BRIEFLY, HELD_MAX)
    }

    /// The connection of a lane is gone: what it may not have carried is sent again.
    pub(crate) fn lane_ended(&mut self, lane: usize) {
        self.lanes[lane].rewind();
        self.begin_to_remember(lane);
        if let Some(received) = &mut self.received {
            received.ended(lane);
        }
    }

    /// Whether this was not said before.
    pub(crate) fn tell_once(&mut self, what: Told) -> bool {
        let bit = 1 << what as u8;
        let first = self.told & bit == 0;
        self.told |= bit;
        first
    }

    /// Whether one more start of it is to be said: a peer could name another generation in each probe.
    pub(crate) fn may_say_anew(&mut self, now: Time) -> bool {
        let (since, count) = &mut self.said_anew;
        if *count == 0 || now.since(*since) >= ANEW_EACH {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        // It stays at one more than the most until the time is over.
        *count = (*count).min(ANEW_MAX + 1);
        *count <= ANEW_MAX
    }

    /// The peer has said what it is, on a lane, in a map or in a probe.
    pub(crate) fn learn(
        &mut self,
        said: Announcement,
        lane: usize,
        in_map: bool,
        lanes_here: usize,
        freed: &mut Freed,
    ) -> Learnt {
        let mut learnt = Learnt::default();
        let generation = said.generation;
        if generation != 0 {
            learnt.anew = self.generation != 0 && self.generation != generation;
            self.generation = generation;
        }
        if in_map {
            self.announces_in_maps = true;
            if generation != 0 && self.lanes[lane].generation != generation {
                self.start_lane_anew(lane, generation, freed);
            }
        } else if learnt.anew && !self.announces_in_maps {
            // As rds_conn_peer_gen_update (net/rds/recv.c): a kernel says it on one lane for all.
            for at in 0..self.lanes.len() {
                self.lanes[at].expected = 0;
                self.lanes[at].drop_tried(freed);
            }
            self.received = None;
        }
        if in_map && said.lanes.is_none() {
            return learnt;
        }
        self.port_is_lane = said.port_is_lane;
        if learnt.anew {
            self.stand_ins = StandIns::default();
        }
        let paths = usize::from(said.lanes.unwrap_or(1)).clamp(1, lanes_here);
        // Another number only of one that has started anew: ports would have to change lanes.
        if self.paths == 0 || (paths != self.paths && learnt.anew) {
            learnt.paths = true;
            self.paths = paths;
            self.move_beyond(paths, freed);
        }
        if !self.mixes_up() {
            self.received = None;
        }
        learnt
    }

    fn start_lane_anew(&mut self, at: usize, generation: u32, freed: &mut Freed) {
        let lane = &mut self.lanes[at];
        if lane.generation != 0 {
            lane.drop_tried(freed);
            lane.expected = 0;
        }
        lane.generation = generation;
    }

    /// What waits on lanes that there are not goes to those that there are.
    fn move_beyond(&mut self, paths: usize, freed: &mut Freed) {
        for at in (paths..self.lanes.len()).rev() {
            let (below, these) = self.lanes.split_at_mut(at);
            let lane = &mut these[0];
            let to = &mut below[at & (paths - 1)];
            lane.move_to(to);
            lane.drop_tried(freed);
        }
    }

    /// Which lane a connection is that the peer has dialled. It must wait if there is none free: a peer
    /// that was turned away after TCP has acknowledged its messages would take them for delivered.
    pub(crate) fn lane_for(&mut self, source_port: u16) -> Result<usize, Busy> {
        let is_free = |lane: &Lane| matches!(lane.link.state, State::Down | State::Dialling);
        let paths = self.paths.max(1);
        if self.paths > 0 && self.port_is_lane {
            let at = usize::from(source_port) % paths;
            return if is_free(self.lane(at)) { Ok(at) } else { Err(Busy::GivenUp(at)) };
        }
        // (A kernel may remember more lanes than there are now, and dial them.)
        (0..paths).find(|at| is_free(self.lane(*at))).ok_or(Busy::All)
    }

    /// Bytes of memory, itself included.
    pub(crate) fn memory(&self) -> usize {
        let unused = (self.lanes.capacity() - self.lanes.len()) * size_of::<Lane>();
        let map = if self.congested.count() > 0 { super::congestion::MAP_BYTES } else { 0 };
        let lanes: usize = self.lanes.iter().map(Lane::memory).sum();
        let received = self.received.as_ref().map_or(0, |received| received.memory());
        size_of::<Self>() + unused + map + received + self.spread.memory() + lanes
    }
}
