//! A host and the lanes to it.
//!
//! # Model
//! Until the peer has said how many lanes it has, only lane 0 has a connection; messages of other
//! lanes wait there. When the number is known, these move to the lane of their port, before any of
//! them was sent. A different number is accepted only from a peer that has restarted, perhaps as
//! another program:
//! ```text
//!   a Hawser       names its start in the map that is the first message of each connection: each lane
//!                  restarts with its own map, or when its connection of the last start ends
//!   a later kernel names it in probes, for all lanes
//!   an old kernel  names none. That it is one in place of a Hawser is known by its map: what was known
//!                  is forgotten, and only lane 0 is left. In place of another kernel it is known by
//!                  another number of lanes
//! ```
//! A connection of a new start may have been taken for another lane than its own before it said so. It
//! changes places with the one that its lane has.
//!
//! A kernel is sent messages before it has said anything by a connection. If a Hawser has taken its place,
//! these have gone by what may not be their lane, and their ports may have another lane now. So a
//! connection that has carried messages before its peer named its start ends. What the peer has sent by it
//! is read first, as its own lane's, and nothing goes by others until it has ended.
//!
//! What a connection of the last start reads late is no news: it was made before the one that said first
//! that there is another start.
//!
//! # Invariants
//! * all messages of a port are on one lane, in order. Only those that the last start may have got can be
//!   on another, until its connection ends and they are dropped
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

use hawser_multipath::paths::spread::Spread;
use hawser_time::Time;

use super::awaited::Awaited;
use super::congestion::Map;
use super::hash::among;
use super::header::{Announcement, LANES_MAX};
use super::lane::{Connection, Freed, Held, Lane, Sent, State};
use super::numbers::Numbers;
use super::received::Came;
use super::stand_in::StandIns;

mod came;

/// Lane 0 of a peer that is not known yet waits so long for it to say who it is. (A kernel with several
/// lanes that knows this host sends its map by any of them, and nothing by the others.) A lane of a peer
/// that names its start on each connection waits for that, however long it takes.
pub const HELD_MAX: Duration = Duration::from_secs(1);

/// To a peer that may take a connection for any of its lanes nothing is sent on a new one for so long,
/// unless it has said something on it: it may reset it, though TCP has acknowledged what was sent. For
/// longer, up to [`HELD_MAX`], where it has taken long of late to say something, or to reset one.
pub const HELD_BRIEFLY: Duration = Duration::from_millis(100);

/// The period in which at most [`RESTARTS_MAX`] notices of a peer's restart are given, one for each
/// lane.
pub(crate) const RESTARTS_PERIOD: Duration = Duration::from_secs(60);
/// See [`RESTARTS_PERIOD`].
pub(crate) const RESTARTS_MAX: u8 = LANES_MAX as u8;

/// See [`numbered_after`].
const NUMBERS_EACH_MS: u64 = 1024;

/// Earlier starts of a peer that are remembered: connections of theirs may be read late.
const PAST_MAX: usize = 4;

/// Notices that are given once for each peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum NoticeKind {
    TooLong,
    NoPort,
    Answers,
    Map,
    Extension,
    Lanes,
    LanesOfAll,
    Partial,
    Refused,
    Announced,
    Slow,
    Unreachable,
    TwoStarts,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// Whether this end dials: its address is smaller.
    pub(crate) dials: bool,
    /// The port that has sent to it first, if it has not connected before.
    asked_by: Option<u16>,
    /// How many lanes are used; 0 until the peer has said.
    pub(crate) paths: usize,
    pub(crate) port_is_lane: bool,
    /// Its generation; 0 if it has not said.
    pub(crate) generation: u32,
    /// Which connection has said so first, or how many lanes there are. What an older one says is of an
    /// earlier start.
    said_by: Connection,
    /// Generations that it had before, the last one first.
    past: [u32; PAST_MAX],
    /// It announces itself in maps: a Hawser.
    pub(crate) announces_in_maps: bool,
    /// Something has come from it that was no announcement: what it is then is no Hawser.
    pub(crate) has_spoken: bool,
    pub(crate) lanes: Vec<Lane>,
    /// See [`numbered_after`].
    numbered_after: u64,
    /// What has come by connections that may be any lane's.
    came: Came,
    /// The same of the kernel whose place this Hawser has taken, while there are connections of that one still.
    came_before: Option<Box<Came>>,
    /// Until it has, what comes by other connections than the probed one waits.
    pub(crate) awaited: Option<Box<Awaited>>,
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
    given: u16,
    /// Start of the period of [`RESTARTS_PERIOD`], and the notices of restarts in it.
    restarts_reported: (Time, u8),
    /// Start of the period of [`RESTARTS_PERIOD`], and the restarts in it.
    started: (Time, u8),
}

/// Why a connection has no lane yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Busy {
    /// The peer dials a lane again, so it has given up the connection that this lane has.
    GivenUp(usize),
    /// All lanes that are known of have one.
    All,
}

/// Who has said something of itself.
#[derive(Clone, Copy)]
pub(crate) struct By {
    pub(crate) lane: usize,
    pub(crate) connection: Connection,
    /// In a map; else in a probe.
    pub(crate) in_map: bool,
}

/// This host's configuration.
pub(crate) struct Here<'a> {
    /// Lanes to each peer at most.
    pub(crate) lanes: usize,
    /// See [`super::node::Config`].
    #[cfg(test)]
    pub(crate) is_a_kernel: bool,
    /// Of [`LANES_MAX`] lanes, the one of the port that has sent a message, if it was not given back since.
    pub(crate) lane_of: &'a dyn Fn(Sent) -> Option<usize>,
}

/// The effect of an announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Learnt {
    /// It has restarted.
    pub(crate) restarted: bool,
    /// The number of lanes is another one.
    pub(crate) paths: bool,
}

/// The number before the first one to a host of which nothing is known. It may know this host, of the last
/// start or of before it was forgotten here, and drop what is flagged with a lower number than it expects:
/// so a number has come before only if a lane carries more than [`NUMBERS_EACH_MS`] messages a millisecond.
/// Gaps are legal, and 2^53 is not reached for 200 years: numbers are shown as JSON.
fn numbered_after(clock_ms: u64, now: Time) -> u64 {
    clock_ms.wrapping_add(now.as_micros() / 1000).wrapping_mul(NUMBERS_EACH_MS)
}

/// Counts an event that may happen [`RESTARTS_MAX`] times in [`RESTARTS_PERIOD`]. False: too often.
fn is_one_of_few((since, count): &mut (Time, u8), now: Time) -> bool {
    if *count == 0 || now.since(*since) >= RESTARTS_PERIOD {
        (*since, *count) = (now, 0);
    }
    // It stays at one more than the most until the time is over.
    *count = (*count + 1).min(RESTARTS_MAX + 1);
    *count <= RESTARTS_MAX
}

impl Peer {
    pub(crate) fn new(
        address: IpAddr,
        dials: bool,
        asked_by: Option<u16>,
        clock_ms: u64,
        now: Time,
    ) -> Self {
        let numbered_after = numbered_after(clock_ms, now);
        Self {
            address,
            dials,
            asked_by,
            paths: 0,
            port_is_lane: false,
            generation: 0,
            said_by: Connection(0),
            past: [0; PAST_MAX],
            announces_in_maps: false,
            has_spoken: false,
            lanes: vec![Lane::numbered_after(numbered_after)],
            numbered_after,
            came: Came::default(),
            came_before: None,
            awaited: None,
            congested: Map::default(),
            map_of: (0, 0),
            spread: Spread::default(),
            stand_ins: StandIns::default(),
            answers_after: Duration::ZERO,
            rtt: Duration::ZERO,
            shut_out_until: Time::ZERO,
            used: now,
            given: 0,
            restarts_reported: (Time::ZERO, 0),
            started: (Time::ZERO, 0),
        }
    }

    /// A lane, which is made if there is none yet.
    pub(crate) fn lane(&mut self, at: usize) -> &mut Lane {
        debug_assert!(at < LANES_MAX);
        if self.lanes.len() <= at {
            let numbered_after = self.numbered_after;
            self.lanes.resize_with(at + 1, || Lane::numbered_after(numbered_after));
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

    /// The port that has sent to it, if it has never answered, and something waits for it.
    pub(crate) fn unanswered_by(&self) -> Option<u16> {
        let has_said = self.paths > 0 || self.has_spoken || self.generation != 0;
        self.asked_by.filter(|_| !has_said && self.is_unreachable() && !self.is_idle())
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

    /// Whether a connection may be any lane's, as it may until the number of lanes is known.
    fn may_be_any(&self) -> bool {
        self.paths != 1 && !self.port_is_lane
    }

    /// The lane of a port, which has this one of [`LANES_MAX`]; `most` is how many there may be, while the
    /// peer has not said how many there are.
    pub(crate) fn lane_of(&self, of_port: usize, most: usize) -> usize {
        among(of_port, if self.paths == 0 { most } else { self.paths })
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

    /// Whether its only lane is any connection's that says nothing of itself: an old kernel has it. One that
    /// was dialled for another lane, when a Hawser was there, may have been taken for it.
    fn has_one_lane_for_all(&self) -> bool {
        self.paths <= 1 && !self.port_is_lane && !self.announces_in_maps
    }

    /// A lane's connection is probed: what others bring waits for the answer, unless an older one is waited
    /// for already. (A Hawser has no message on another lane than its port's.) Returns when that is to be
    /// looked at.
    pub(crate) fn await_answer(&mut self, lane: usize, now: Time) -> Option<Time> {
        let Lane { link, counts, .. } = &mut self.lanes[lane];
        link.was_probed = true;
        let connection = link.connection.filter(|_| self.awaited.is_none())?;
        if self.announces_in_maps {
            return None;
        }
        let awaited = Awaited::new(connection, counts.bytes_received, now);
        Some(self.awaited.insert(Box::new(awaited)).until())
    }

    /// A connection has ended. If it was the probed one, the first lane's next one takes its place: of a kernel
    /// that dials and does not name its lanes that may be any. Returns when that is to be looked at.
    pub(crate) fn probed_ended(&mut self, ended: Connection, now: Time) -> Option<Time> {
        let is_known = self.dials || self.port_is_lane;
        let awaited = self.awaited.as_mut().filter(|it| it.by() == ended && !is_known)?;
        awaited.ended(now);
        Some(awaited.until())
    }

    /// Whether the first lane's new connection is to be probed: the number of lanes is not known, or the
    /// answer did not come by its last one.
    pub(crate) fn is_to_be_probed(&mut self, lane: usize) -> bool {
        let by = self.awaited.as_ref().map(|awaited| awaited.by());
        let is_there = |by| self.lanes.iter().any(|lane| lane.link.connection == Some(by));
        let is_gone = by.is_some_and(|by| !is_there(by));
        let takes_its_place = self.paths == 0 || (lane == 0 && (self.dials || self.port_is_lane));
        if is_gone && takes_its_place {
            self.awaited = None;
        }
        self.paths == 0 || (is_gone && takes_its_place)
    }

    /// Whether an answer is waited for before messages of a lane's connection.
    pub(crate) fn awaits_before(&self, lane: usize) -> bool {
        let connection = self.lanes[lane].link.connection;
        let awaited = self.awaited.as_deref().zip(connection);
        awaited.is_some_and(|(awaited, connection)| awaited.holds(connection))
    }

    /// It has come, or is waited for no longer. Returns the connections that waited.
    pub(crate) fn await_no_answer(&mut self) -> Vec<Connection> {
        self.awaited = None;
        let links = self.lanes.iter_mut().map(|lane| &mut lane.link);
        let waited = links.filter_map(|link| {
            std::mem::take(&mut link.waits_for_answer).then_some(link.connection)?
        });
        waited.collect()
    }

    /// Whether the answer that is waited for is waited for no longer.
    pub(crate) fn has_awaited_for_long(&mut self, now: Time) -> bool {
        let Some(awaited) = self.awaited.as_mut().filter(|it| it.until() <= now) else {
            return false;
        };
        let by = |lane: &&Lane| lane.link.connection == Some(awaited.by());
        let (came, paused) = match self.lanes.iter().find(by) {
            Some(lane) => (lane.counts.bytes_received, lane.link.paused),
            None => (0, false),
        };
        !awaited.goes_on(came, paused, now)
    }

    /// Whether a map is the newest. An older one may come after a newer one by another lane, and if
    /// a port were marked as congested by mistake, its senders would wait for ever.
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
        let is_of_kernel_before = self.is_of_kernel_before(lane);
        let has_probed = self.lanes[lane].link.has_probed;
        self.lanes[lane].rewind();
        let came = match &mut self.came_before {
            Some(before) if is_of_kernel_before => &mut **before,
            _ => &mut self.came,
        };
        came.ended(lane, has_probed);
        self.forget_kernel_before();
    }

    /// Whether this notice was not given before.
    pub(crate) fn give_once(&mut self, what: NoticeKind) -> bool {
        let bit = 1 << what as u8;
        let first = self.given & bit == 0;
        self.given |= bit;
        first
    }

    /// A lane's connection was no failure, though it has ended.
    pub(crate) fn forget_failures(&mut self, lane: usize) {
        self.lanes[lane].forget_failures();
        self.given &= !(1 << NoticeKind::Unreachable as u8);
    }

    /// Whether one more restart of it may be reported: a peer could name another generation in each
    /// probe.
    pub(crate) fn may_report_restart(&mut self, now: Time) -> bool {
        is_one_of_few(&mut self.restarts_reported, now)
    }

    /// Counts a restart. `false`: too often. At each restart, what is queued to it may have to move
    /// to other lanes.
    pub(crate) fn may_restart(&mut self, now: Time) -> bool {
        is_one_of_few(&mut self.started, now)
    }

    /// Whether it may say by this lane's connection that this is its start: there is one for each connection.
    /// (A kernel's map says nothing of it, before or after a probe that does.)
    pub(crate) fn may_name(&mut self, lane: usize, generation: u32, in_map: bool) -> bool {
        let says_nothing = in_map && generation == 0 && !self.announces_in_maps;
        let named = &mut self.lanes[lane].link.named;
        if *named == 0 {
            *named = generation;
        }
        says_nothing || *named == generation
    }

    /// The peer has said what it is.
    pub(crate) fn learn(
        &mut self,
        said: Announcement,
        by: By,
        here: &Here<'_>,
        freed: &mut Freed,
    ) -> Learnt {
        let mut learnt = Learnt::default();
        // (A kernel's probe comes after its map, and says more of the same start.)
        let was_known = self.paths > 0 || (by.in_map && self.has_spoken);
        if by.in_map && said.generation != 0 && self.lanes[by.lane].generation != said.generation {
            if was_known {
                self.lanes[by.lane].stop_if_it_has_carried();
                self.lanes[by.lane].drop_tried(freed);
                self.lanes[by.lane].numbers = Numbers::default();
            }
            self.lanes[by.lane].generation = said.generation;
        }
        if self.is_of_the_past(said.generation, by.connection) {
            return learnt;
        }
        let begins_to_announce = by.in_map && !self.announces_in_maps;
        self.announces_in_maps |= by.in_map;
        let paths = usize::from(said.lanes.unwrap_or(1)).clamp(1, here.lanes);
        let is_another_kernel = self.is_another_kernel(said, by, paths);
        let is_another = said.generation != self.generation || is_another_kernel;
        if is_another {
            self.set_generation(said.generation, by.connection);
        }
        if by.in_map && said.lanes.is_none() {
            return learnt;
        }
        learnt.restarted = was_known && is_another;
        let may_be_any = self.may_be_any();
        self.port_is_lane = said.port_is_lane;
        if learnt.restarted {
            self.stand_ins = StandIns::default();
            let before = std::mem::take(&mut self.came);
            if is_another_kernel {
                self.came = before.of_another_kernel(by.lane, self.mark(by.lane));
            } else if begins_to_announce && may_be_any {
                self.came_before = Some(Box::new(before));
                self.forget_kernel_before();
            }
            self.restart_lanes(!by.in_map && !self.announces_in_maps, Some(by.lane), freed);
            if begins_to_announce {
                self.have_others_say_who_they_are(by.lane);
            }
        }
        // A different number is accepted only after a restart: ports would have to change lanes.
        if self.paths == 0 || (paths != self.paths && learnt.restarted) {
            learnt.paths = true;
            (self.paths, self.said_by) = (paths, self.said_by.max(by.connection));
            self.put_in_place(here);
        }
        if !self.mixes_up() {
            self.came = Came::default();
        }
        learnt
    }

    /// A Hawser has taken a kernel's place: what goes by other connections than this one goes to the kernel,
    /// or to a Hawser that has not said so by them yet.
    fn have_others_say_who_they_are(&mut self, but: usize) {
        let others = self.lanes.iter_mut().enumerate().filter(|(at, _)| *at != but);
        for (_, lane) in others.filter(|(_, lane)| lane.is_up()) {
            lane.stop_if_it_has_carried();
            lane.link.held = Some(Held::UntilItSpeaks);
        }
    }

    /// Whether a connection goes first of those that there are.
    pub(crate) fn has_one_that_goes_first(&self) -> bool {
        self.lanes.iter().any(|lane| lane.link.goes_first)
    }

    /// Whether an old kernel has taken the place of another one: each start of one has the same number of
    /// lanes for as long as it lasts, and neither names itself.
    fn is_another_kernel(&self, said: Announcement, by: By, paths: usize) -> bool {
        let names_none = said.generation == 0 && self.generation == 0 && !by.in_map;
        names_none && self.paths > 0 && self.paths != paths && by.connection > self.said_by
    }

    /// Whether an announcement is an earlier start's.
    pub(crate) fn is_of_the_past(&self, generation: u32, connection: Connection) -> bool {
        let was_before = generation != 0 && self.past.contains(&generation);
        generation != self.generation && (was_before || connection < self.said_by)
    }

    fn set_generation(&mut self, generation: u32, said_by: Connection) {
        if self.generation != 0 {
            self.past.rotate_right(1);
            self.past[0] = self.generation;
        }
        (self.generation, self.said_by) = (generation, said_by);
    }

    /// A map has come that announces nothing, from one that did so in each: another program is there now.
    pub(crate) fn forget_start(&mut self, by: By, here: &Here<'_>, freed: &mut Freed) {
        self.set_generation(0, by.connection);
        (self.announces_in_maps, self.port_is_lane, self.paths) = (false, false, 0);
        (self.came, self.came_before) = (Came::default(), None);
        self.stand_ins = StandIns::default();
        self.spread = Spread::default();
        self.restart_lane(by.lane, freed);
        self.restart_lanes(false, None, freed);
        if by.lane > 0 && self.lanes[by.lane].carries_nothing() {
            self.change_places(by.lane, 0, freed);
        }
        self.put_in_place(here);
    }

    /// A new start's connection was taken for another lane than its own, which has none, or one of the last
    /// start. They change places: what is read of that one still is the last start's.
    pub(crate) fn change_places(&mut self, at: usize, own: usize, freed: &mut Freed) {
        let mut last = Lane::default();
        let lane = self.lane(own);
        std::mem::swap(&mut lane.link, &mut last.link);
        (last.numbers, last.generation) = (lane.numbers, lane.generation);
        lane.rewind();
        lane.dial_at = None;
        if last.generation != self.generation {
            self.restart_lane(own, freed);
        }
        if let Some(before) = &mut self.came_before {
            before.change_places(at, own);
        }
        let that = &mut self.lanes[at];
        std::mem::swap(&mut that.link, &mut last.link);
        (that.numbers, that.generation) = (last.numbers, last.generation);
        self.lanes[own].link = last.link;
    }

    /// The lane that a connection is of, if it was taken for another one and can go to its own.
    pub(crate) fn own_place(&self, by: By) -> Option<usize> {
        let link = &self.lanes[by.lane].link;
        let own = self.lane_of_port(link.accepted_from.filter(|_| self.port_is_lane)?);
        let may_have =
            |lane: &Lane| lane.link.state == State::Down || lane.generation != self.generation;
        let is_another = own != by.lane && self.lanes.get(own).is_none_or(may_have);
        let is_first = by.in_map && self.lanes[by.lane].carries_nothing();
        (is_another && is_first && own < self.paths).then_some(own)
    }

    /// The lanes whose connections are gone, or all, restart. (A later kernel announces it on one
    /// lane for all: rds_conn_peer_gen_update, net/rds/recv.c. What came before by that one was of
    /// this start.)
    fn restart_lanes(&mut self, all: bool, said_by: Option<usize>, freed: &mut Freed) {
        for at in 0..self.lanes.len() {
            let lane = &self.lanes[at];
            let is_gone = matches!(lane.link.state, State::Down | State::Dialling);
            let numbers = lane.numbers;
            if all || is_gone {
                self.restart_lane(at, freed);
            }
            if said_by == Some(at) {
                self.lanes[at].numbers = numbers;
            }
        }
    }

    /// Messages that may have reached a lane's last start are not for this one, whose numbers start
    /// again.
    fn restart_lane(&mut self, at: usize, freed: &mut Freed) {
        let lane = &mut self.lanes[at];
        lane.drop_tried(freed);
        lane.numbers = Numbers::default();
        lane.generation = if self.announces_in_maps { self.generation } else { 0 };
    }

    /// A lane has no connection any more. If that was the last start's, so was what it has tried to send;
    /// and a lane that this start has not is never dialled again.
    pub(crate) fn end_last_start(&mut self, at: usize, here: &Here<'_>, freed: &mut Freed) {
        let of = self.lanes[at].generation;
        let is_another = of != self.generation && (self.announces_in_maps || of != 0);
        let is_beyond = self.paths > 0 && at >= self.paths;
        if is_another || is_beyond {
            self.restart_lane(at, freed);
        }
        if is_beyond && !self.lanes[at].is_empty() {
            self.put_in_place(here);
        }
    }

    /// What no connection has seen goes to the lane of its port, among those that there are.
    fn put_in_place(&mut self, here: &Here<'_>) {
        let paths = if self.paths == 0 { here.lanes } else { self.paths };
        // The remaining messages of a closed port stay together.
        let place = |at: usize, sent: Sent| among((here.lane_of)(sent).unwrap_or(at), paths);
        #[cfg(test)]
        let place =
            |at: usize, sent: Sent| if here.is_a_kernel && at == 0 { 0 } else { place(at, sent) };
        let mut all = Vec::new();
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            if lane.has_untried(|sent| place(at, sent) != at) {
                let taken = lane.take_untried().into_iter();
                all.extend(taken.map(|taken| (place(at, taken.sent), taken)));
            }
        }
        for (to, taken) in all {
            self.lane(to).put(taken);
        }
    }

    /// The lane that a source port names: a kernel leaves it as the remainder of the lanes that there are,
    /// a Hawser of the most that there may be.
    pub(crate) fn lane_of_port(&self, source_port: u16) -> usize {
        let lanes = if self.announces_in_maps { LANES_MAX } else { self.paths.max(1) };
        usize::from(source_port) % lanes
    }

    /// Which lane a connection is that the peer has dialled. It must wait if there is none free: a peer
    /// that was turned away after TCP has acknowledged its messages would take them for delivered.
    pub(crate) fn lane_for(&mut self, source_port: u16) -> Result<usize, Busy> {
        let is_free = |lane: &Lane| matches!(lane.link.state, State::Down | State::Dialling);
        let paths = self.paths.max(1);
        if self.paths > 0 && self.port_is_lane {
            let at = self.lane_of_port(source_port);
            if at >= paths {
                // It does not know yet how many there are, and gives up none that there is.
                return Err(Busy::All);
            }
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
        let before = |before: &Came| size_of::<Came>() + before.memory();
        let came = self.came.memory() + self.came_before.as_deref().map_or(0, before);
        size_of::<Self>() + unused + map + came + self.spread.memory() + lanes
    }
}
