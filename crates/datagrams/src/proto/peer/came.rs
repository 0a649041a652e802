//! Which messages of a peer are new, and what is to be read before them.
//!
//! # Model       a connection is of this start of the peer, of an earlier one that named itself, or of the
//!               kernel whose place this Hawser has taken: it is compared with what came from that one

use hawser_time::Time;

use super::Peer;
use crate::proto::header::{Header, PROBE_PORT};
use crate::proto::lane::{Connection, Link, State};
use crate::proto::received::{Came, Mark, SETTLED_AFTER};

impl Peer {
    /// Whether a message that came by a lane is new; it is counted as the lane's last one then.
    pub(crate) fn is_new(&mut self, lane: usize, header: &Header) -> bool {
        let named = self.lanes[lane].link.named;
        if named != 0 && named != self.generation {
            // It was left unread by a connection of an earlier start, whatever this one's lanes are.
            let numbers = &mut self.lanes[lane].numbers;
            let is_new = !numbers.had(header);
            if is_new {
                numbers.take(header);
            }
            return is_new;
        }
        let mark = self.mark(lane);
        let is_of_kernel_before = self.is_of_kernel_before(lane);
        let lane = if named == 0 && self.has_one_lane_for_all() { 0 } else { lane };
        if header.from > PROBE_PORT {
            self.begin_to_remember(lane);
        }
        if self.is_answer(lane, header) {
            self.came.note_answer();
        }
        let may_be_any = is_of_kernel_before || self.may_be_any();
        let numbers = &mut self.lanes[lane].numbers;
        let came = match &mut self.came_before {
            Some(before) if is_of_kernel_before => &mut **before,
            _ => &mut self.came,
        };
        let is_new = came.is_new(lane, mark, header, *numbers, may_be_any);
        if is_new {
            numbers.take(header);
        }
        is_new
    }

    /// Whether a message answers a probe of this start of the host. (One that comes before there was any
    /// answers the last start's. It was queued when the peer learned of that one's lanes.)
    pub(crate) fn is_answer(&self, lane: usize, header: &Header) -> bool {
        let has_probed = self.lanes[lane].link.has_probed || self.came.was_probed();
        (header.from, header.to) == (0, PROBE_PORT) && has_probed
    }

    /// The connection of a lane, and how much it was given.
    pub(super) fn mark(&self, lane: usize) -> Option<Mark> {
        let link = &self.lanes[lane].link;
        Some(Mark { by: link.connection?, written: link.written() })
    }

    /// Whether a lane's connection is of the kernel whose place this Hawser has taken: it was made before the
    /// one that said so first, and the first message of each of a Hawser's names its start.
    pub(crate) fn is_of_kernel_before(&self, lane: usize) -> bool {
        let link = &self.lanes[lane].link;
        let is_older = link.connection.is_some_and(|connection| connection < self.said_by);
        self.came_before.is_some() && self.announces_in_maps && link.named == 0 && is_older
    }

    /// Forgets what came from it, once it has no connections any more.
    pub(super) fn forget_kernel_before(&mut self) {
        if !(0..self.lanes.len()).any(|at| self.is_of_kernel_before(at)) {
            self.came_before = None;
        }
    }

    /// What came from the start that a lane's connection is of.
    fn came_by(&self, lane: usize) -> &Came {
        match &self.came_before {
            Some(before) if self.is_of_kernel_before(lane) => before,
            _ => &self.came,
        }
    }

    /// Whether a lane's connection is probed once more now, so that what came by it before its kernel knew of
    /// lanes is known not to come again.
    pub(crate) fn probes_again(&mut self, lane: usize) -> bool {
        let connection = self.lanes[lane].link.connection.filter(|_| self.mixes_up());
        connection.is_some_and(|connection| self.came.probes_again(connection))
    }

    /// TCP has acknowledged so many bytes of a lane's connection.
    pub(crate) fn acknowledged(&mut self, lane: usize, bytes: u64) {
        if let Some(connection) = self.lanes[lane].link.connection {
            self.came.acknowledged(connection, bytes);
        }
    }

    /// A lane's connection, while it may turn out to go on with one that there is still.
    fn may_go_on(&self, lane: usize, now: Time) -> Option<&Link> {
        let link = &self.lanes.get(lane)?.link;
        let is_settled = now.since(link.up_at) >= SETTLED_AFTER;
        let may_be_of_another =
            self.mixes_up() || self.has_one_lane_for_all() || self.is_of_kernel_before(lane);
        let may_go_on = may_be_of_another && !is_settled && self.came_by(lane).may_go_on(lane);
        may_go_on.then_some(link)
    }

    /// Connections that are older than a lane's, which may have brought what that one goes on with.
    fn older(&self, than: usize) -> impl Iterator<Item = (usize, &Link)> {
        let connection = self.lanes[than].link.connection;
        let is_before = self.is_of_kernel_before(than);
        let links = self.lanes.iter().map(|lane| &lane.link).enumerate();
        links.filter(move |(at, link)| {
            link.connection < connection
                && matches!(link.state, State::Up | State::Draining)
                && self.is_of_kernel_before(*at) == is_before
        })
    }

    /// The lane whose connection is to be read to its end before this message, or any, is taken from a newer
    /// one: see [`super::received`].
    pub(crate) fn goes_on_after(
        &self,
        lane: usize,
        header: Option<&Header>,
        now: Time,
    ) -> Option<usize> {
        self.may_go_on(lane, now)?;
        let came = self.came_by(lane);
        // With the first message of a port it is found out what the connection goes on with.
        let is_first = !came.has_brought(lane, None);
        let comes_again = is_first && came.had_early(header);
        let port = header.map(|header| header.from);
        let (at, older) = self.older(lane).find(|(at, older)| {
            (*at == 0 && comes_again) || (is_first && older.paused) || came.has_brought(*at, port)
        })?;
        // It may wait itself, for one that is older still. It is read on first when that one has ended.
        let waits_for = self.lanes.iter().position(|other| {
            older.waits_for.is_some() && other.link.connection == older.waits_for
        });
        Some(waits_for.unwrap_or(at))
    }

    /// The connections that are to be read before one that may go on with any of them, the oldest first.
    pub(crate) fn read_before(&self, lane: usize, now: Time) -> Vec<Connection> {
        if self.may_go_on(lane, now).is_none() || self.came_by(lane).has_brought(lane, None) {
            return Vec::new();
        }
        let older = self.older(lane).filter(|(_, older)| !older.paused);
        let mut older: Vec<Connection> = older.filter_map(|(_, link)| link.connection).collect();
        older.sort_unstable();
        older
    }

    fn begin_to_remember(&mut self, lane: usize) {
        if self.mixes_up() {
            let connection = |at: usize| self.lanes.get(at)?.link.connection;
            self.came.begin_to_remember(lane, connection);
        }
    }
}
