//! Which messages came before, for a peer that mixes up its lanes.
//!
//! # Model
//! Linux up to 6.18 takes a new connection for the first of its lanes that is down just then, and dials
//! its lanes in any order from any port: after a reset of several, a connection may carry another one of
//! its lanes than the connection in the same place before. Numbers belong to its lanes, so comparing
//! them with another's takes messages for duplicates that are none, or the other way.
//! ```text
//!   connection ──► remembered: the numbers that came, ports that sent by it
//!       ends   ──► before: until a message of one of these ports comes by another connection, which
//!                  goes on with it
//! ```
//! All messages of a port go by one lane of its host (RDS_MPATH_HASH, net/rds/send.c), so a port names
//! the lane. Of a port that no earlier connection has brought nothing came before.
//!
//! Until a kernel knows how many lanes there are, it sends by the first one whichever the port's is. One
//! that knows it of the last start of this host may use any lane before this end knows the number. What
//! came so is remembered by port and number ([`Early`]), and names no lane. It is remembered as long as the
//! kernel may send it again, which is until TCP has acknowledged it there (rds_tcp_write_space,
//! net/rds/tcp_send.c). Each segment acknowledges what came before it was written:
//! ```text
//!   kernel  early messages ──► answer to the probe ──►             frees the early messages
//!   here              come ──►                  comes, second probe ──►    ──► acknowledged: forgotten
//! ```
//!
//! What a kernel has left unread here when a Hawser takes its place is compared with what that kernel had
//! brought: that is kept until its connections are read to their ends.
//!
//! A connection may bring a port of another one that is there still: the peer has given that one up and
//! dials its lane again, and something that came by it is not read yet. What it brings waits until the
//! older one has been read to its end. (If the port was only bound again, ending the older one is a
//! waste. So this is assumed of a connection for [`SETTLED_AFTER`] only.) What is unread may be the
//! first of its port: older connections are read first, and one that a full port keeps from being
//! read is waited for.
//!
//! # Limits
//! Of a connection by which more than [`PORTS_MAX`] ports have sent, those that did so last are
//! remembered. While what came early is remembered, a message of its port's own lane with such a number
//! that is flagged is taken for it. Such a peer compares what it gets with the numbers of the lane
//! that it takes the connection for: nothing here can correct that.

use std::time::Duration;

use super::header::{Header, LANES_MAX, PROBE_PORT};
use super::lane::Connection;
use super::numbers::Numbers;

/// Ports that are remembered for a connection.
const PORTS_MAX: usize = 64;
/// Connections that have ended and that no later one has been found to go on with; then the oldest is
/// forgotten.
const BEFORE_MAX: usize = 2 * LANES_MAX;
/// Within this time keepalive detects that an older connection has ended (5 s, and 5 probes each 5
/// s).
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(30);

/// A connection by which something came, and how much it had been given of this end by then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) by: Connection,
    pub(crate) written: u64,
}

/// What came from one start of a peer by connections that may be any of its lanes.
#[derive(Debug, Default)]
pub(crate) struct Came {
    /// By which lane, once that can be known.
    by_lanes: Option<Box<Received>>,
    /// What came before that.
    early: Early,
    /// A connection that has ended was given a probe.
    probed: bool,
    /// It has answered a probe: it knows how many lanes there are, and sends by the right ones.
    answered: bool,
    /// The connection by which a second probe was sent last.
    probed_again: Option<Connection>,
}

impl Came {
    /// Whether a message is new; it is counted then. `numbers` are those of the lane, and `may_be_any` says
    /// whether the connection may be another one's.
    pub(crate) fn is_new(
        &mut self,
        lane: usize,
        mark: Option<Mark>,
        header: &Header,
        numbers: Numbers,
        may_be_any: bool,
    ) -> bool {
        let early = &mut self.early;
        match &mut self.by_lanes {
            Some(received) if early.may_have_had(received, lane, header) => {
                received.came_early(lane, header);
                early.came_again(mark, header);
                false
            }
            Some(received) => {
                let is_new = received.is_new(lane, header);
                if is_new && let Some(first) = early.forget(header) {
                    received.came_since(lane, first);
                }
                is_new
            }
            None if may_be_any && !early.is_full() => {
                let is_new = !early.had(header);
                if is_new {
                    early.note(mark, header);
                } else {
                    early.came_again(mark, header);
                }
                is_new
            }
            None => {
                let is_new = !numbers.had(header);
                if is_new && may_be_any {
                    early.note(mark, header);
                }
                is_new
            }
        }
    }

    /// It has answered a probe.
    pub(crate) fn note_answer(&mut self) {
        self.answered = true;
    }

    /// Whether a connection that has ended was given a probe, which may be answered by another one.
    pub(crate) fn was_probed(&self) -> bool {
        self.probed
    }

    /// Remembers from now on what comes by which lane, with what has come by each one's connection. Before, a
    /// kernel's ports send by its first lane, whichever theirs is. (What came by a connection that has ended
    /// since is known by its ports only: any other may have taken its place.)
    pub(crate) fn begin_to_remember(
        &mut self,
        lane: usize,
        connection: impl Fn(usize) -> Option<Connection>,
    ) {
        if self.by_lanes.is_none() && (self.answered || lane > 0) {
            let numbers = |at| match connection(at) {
                Some(connection) => self.early.numbers_of(connection),
                None => Numbers::default(),
            };
            self.by_lanes = Some(Box::new(Received::new(numbers)));
        }
    }

    /// TCP has acknowledged so many bytes of a connection. (Until the peer knows the number of
    /// lanes, nothing can be confused with what came early.)
    pub(crate) fn acknowledged(&mut self, by: Connection, bytes: u64) {
        if self.answered {
            self.early.acknowledged(by, bytes);
        }
    }

    /// Whether a connection is given a second probe now, once for each: its acknowledgement ends the memory
    /// of what came early by it.
    pub(crate) fn probes_again(&mut self, by: Connection) -> bool {
        let is_wanted =
            self.answered && self.probed_again != Some(by) && self.early.has_come_by(by);
        if is_wanted {
            self.probed_again = Some(by);
        }
        is_wanted
    }

    /// What another kernel that has taken the place of this one may send again by a lane: it has sent that
    /// since it took it, and does not know of lanes yet.
    pub(crate) fn of_another_kernel(self, lane: usize, mark: Option<Mark>) -> Self {
        let by_lanes = self.by_lanes.zip(mark);
        let early = by_lanes.map_or_else(Early::default, |(all, mark)| all.as_early(lane, mark));
        Self { early, ..Self::default() }
    }

    /// Whether some of it is known by its port only: all of it, or this message.
    pub(crate) fn had_early(&self, header: Option<&Header>) -> bool {
        header.map_or(!self.early.is_empty(), |it| self.early.had(it))
    }

    /// Whether the connection of this lane may turn out to go on with another one.
    pub(crate) fn may_go_on(&self, lane: usize) -> bool {
        self.by_lanes.as_ref().is_none_or(|received| !received.now[lane].goes_on)
    }

    /// Whether the connection of this lane has brought messages of this port, or of any.
    pub(crate) fn has_brought(&self, lane: usize, port: Option<u16>) -> bool {
        self.by_lanes.as_ref().is_some_and(|received| received.has_brought(lane, port))
    }

    /// The connection of a lane has ended, which was given a probe or not.
    pub(crate) fn ended(&mut self, lane: usize, has_probed: bool) {
        self.probed |= has_probed;
        if let Some(received) = &mut self.by_lanes {
            received.ended(lane);
        }
    }

    /// The connections of two lanes change places.
    pub(crate) fn change_places(&mut self, lane: usize, other: usize) {
        if let Some(received) = &mut self.by_lanes {
            received.now.swap(lane, other);
        }
    }

    /// Bytes of memory beyond itself.
    pub(crate) fn memory(&self) -> usize {
        self.by_lanes.as_ref().map_or(0, |received| received.memory()) + self.early.memory()
    }
}

/// What came before the peer knew that there are several lanes, or before this end did: of each port its
/// numbers, for a peer that has met this host before knows them and may send by any from the beginning.
#[derive(Debug, Default)]
struct Early {
    ports: Vec<EarlyPort>,
    /// All that came by the connection by which something came last.
    by: Option<Connection>,
    last: Numbers,
}

#[derive(Debug)]
struct EarlyPort {
    port: u16,
    numbers: Numbers,
    /// By what its last one came.
    last: Mark,
}

impl Early {
    /// Counts a message that is new.
    fn note(&mut self, mark: Option<Mark>, header: &Header) {
        let Some(mark) = mark else { return };
        if self.by.replace(mark.by) != Some(mark.by) {
            self.last = Numbers::default();
        }
        // On one connection they ascend, until the peer renumbers.
        if self.last.take(header) {
            self.ports.clear();
        }
        if header.from <= PROBE_PORT {
            return;
        }
        let at = self.place_of(header.from).unwrap_or_else(|| {
            if self.ports.len() >= PORTS_MAX {
                self.ports.remove(0);
            }
            let numbers = Numbers::default();
            self.ports.push(EarlyPort { port: header.from, numbers, last: mark });
            self.ports.len() - 1
        });
        self.ports[at].last = mark;
        self.ports[at].numbers.take(header);
    }

    /// A message came that came so before. With the last one of its port all have come again.
    fn came_again(&mut self, mark: Option<Mark>, header: &Header) {
        if let (Some(at), Some(mark)) = (self.place_of(header.from), mark)
            && self.ports[at].numbers.expected() == header.sequence.wrapping_add(1)
        {
            self.ports[at].last = mark;
        }
    }

    /// TCP has acknowledged so many bytes of a connection. With bytes that were written after a message of the
    /// peer's had come, TCP has acknowledged that message: the peer will never send it again, nor one of its
    /// port that came before it.
    fn acknowledged(&mut self, by: Connection, bytes: u64) {
        self.ports.retain(|port| port.last.by != by || port.last.written >= bytes);
    }

    /// Whether the last one of a port came by a connection.
    fn has_come_by(&self, by: Connection) -> bool {
        self.ports.iter().any(|port| port.last.by == by)
    }

    fn place_of(&self, port: u16) -> Option<usize> {
        self.ports.iter().position(|other| other.port == port)
    }

    /// Whether a message came so before.
    fn had(&self, header: &Header) -> bool {
        self.ports.iter().any(|early| early.port == header.from && early.numbers.had(header))
    }

    /// Whether some ports may have been forgotten.
    fn is_full(&self) -> bool {
        self.ports.len() >= PORTS_MAX
    }

    /// What has come by this connection.
    fn numbers_of(&self, connection: Connection) -> Numbers {
        if self.by == Some(connection) { self.last } else { Numbers::default() }
    }

    /// Whether a message that a lane's connection brings came so before. The first lane sends these again
    /// before all else; what comes after another message is another lane's, whose numbers are others.
    fn may_have_had(&self, received: &Received, lane: usize, header: &Header) -> bool {
        !received.has_brought(lane, None) && self.had(header)
    }

    fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// A port goes by its own lane now. If its numbers go on there, that is the first lane, by which all
    /// came from the number on that is returned. (Of another lane, all below came too: it is in order.)
    fn forget(&mut self, header: &Header) -> Option<u64> {
        let EarlyPort { numbers, .. } = self.ports.remove(self.place_of(header.from)?);
        numbers.first().filter(|_| header.sequence >= numbers.expected())
    }

    /// Bytes of memory beyond itself.
    fn memory(&self) -> usize {
        self.ports.capacity() * size_of::<EarlyPort>()
    }
}

/// What came by one lane of the peer's.
#[derive(Debug, Default)]
struct Memory {
    numbers: Numbers,
    /// The one that sent last is the last one.
    ports: Vec<u16>,
    /// It goes on with an earlier connection.
    goes_on: bool,
}

/// What came by all of them.
#[derive(Debug, Default)]
struct Received {
    /// By the connections that there are.
    now: [Memory; LANES_MAX],
    before: Vec<Memory>,
}

impl Received {
    /// With what has come by each lane.
    fn new(numbers: impl Fn(usize) -> Numbers) -> Self {
        let memory = |at| Memory { numbers: numbers(at), ..Memory::default() };
        Self { now: std::array::from_fn(memory), before: Vec::new() }
    }

    /// Whether a message of the connection of this lane is new.
    fn is_new(&mut self, lane: usize, header: &Header) -> bool {
        let memory = &mut self.now[lane];
        // Of answers to pings (port 0) and of probes each lane has some.
        let is_of_port = header.from > PROBE_PORT;
        if is_of_port && !memory.goes_on {
            let before = self.before.iter().position(|other| other.ports.contains(&header.from));
            if let Some(at) = before {
                memory.go_on_with(self.before.remove(at));
            }
        }
        if memory.numbers.had(header) {
            return false;
        }
        memory.numbers.take(header);
        if is_of_port && !memory.remember(header.from) {
            // It may have had another lane before: it was bound again.
            let others = self.now.iter_mut().enumerate().filter(|(at, _)| *at != lane);
            for other in others.map(|(_, other)| other).chain(&mut self.before) {
                other.ports.retain(|port| *port != header.from);
            }
        }
        true
    }

    /// All from this number on up to the last one has come by this lane.
    fn came_since(&mut self, lane: usize, first: u64) {
        self.now[lane].numbers.came_since(first);
    }

    /// A message came by this lane that is taken for one that came early. It is none of another numbering if
    /// it comes once more.
    fn came_early(&mut self, lane: usize, header: &Header) {
        let numbers = &mut self.now[lane].numbers;
        if numbers.is_empty() || header.sequence >= numbers.expected() {
            numbers.take(header);
        }
    }

    /// What the connection of this lane has brought, as what came before the peer knew of lanes.
    fn as_early(&self, lane: usize, last: Mark) -> Early {
        let Memory { numbers, ports, .. } = &self.now[lane];
        let early = |port: &u16| EarlyPort { port: *port, numbers: *numbers, last };
        Early { ports: ports.iter().map(early).collect(), ..Early::default() }
    }

    /// Whether the connection of this lane has brought messages of this port, or of any.
    fn has_brought(&self, lane: usize, port: Option<u16>) -> bool {
        let ports = &self.now[lane].ports;
        port.map_or(!ports.is_empty(), |port| ports.contains(&port))
    }

    /// The connection of a lane has ended.
    fn ended(&mut self, lane: usize) {
        let mut memory = std::mem::take(&mut self.now[lane]);
        if memory.ports.is_empty() {
            return;
        }
        memory.goes_on = false;
        memory.ports.shrink_to_fit();
        if self.before.len() >= BEFORE_MAX {
            self.before.remove(0);
        }
        self.before.push(memory);
    }

    /// Bytes of memory, itself included.
    fn memory(&self) -> usize {
        let ports = |memory: &Memory| memory.ports.capacity() * size_of::<u16>();
        size_of::<Self>()
            + self.before.capacity() * size_of::<Memory>()
            + self.now.iter().chain(&self.before).map(ports).sum::<usize>()
    }
}

impl Memory {
    fn go_on_with(&mut self, before: Self) {
        let since = std::mem::replace(&mut self.ports, before.ports);
        for port in since {
            self.remember(port);
        }
        self.numbers.go_on_with(before.numbers);
        self.goes_on = true;
    }

    /// Whether it was known already.
    fn remember(&mut self, port: u16) -> bool {
        if self.ports.last() == Some(&port) {
            return true;
        }
        let known = self.ports.iter().position(|other| *other == port);
        if let Some(at) = known {
            self.ports.remove(at);
        } else if self.ports.len() >= PORTS_MAX {
            self.ports.remove(0);
        }
        self.ports.push(port);
        known.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::header::FLAG_AGAIN;

    fn header(sequence: u64, from: u16, flags: u8) -> Header {
        Header { sequence, from, to: 9, flags, ..Header::default() }
    }

    #[test]
    fn a_lane_that_comes_by_another_connection_goes_on_with_its_numbers() {
        let mut received = Received::new(|_| Numbers::default());
        for sequence in 1..5 {
            assert!(received.is_new(0, &header(sequence, 4001, 0)));
            assert!(received.is_new(3, &header(100 + sequence, 4002, 0)));
        }
        received.ended(0);
        received.ended(3);
        // Each comes by the other's place: what is lower than the other's number is new, and what came
        // before is not, though it is higher.
        assert!(!received.is_new(0, &header(104, 4002, FLAG_AGAIN)));
        assert!(received.is_new(0, &header(105, 4002, FLAG_AGAIN)));
        assert!(!received.is_new(3, &header(4, 4001, FLAG_AGAIN)));
        assert!(received.is_new(3, &header(5, 4001, FLAG_AGAIN)));
        assert!(received.is_new(3, &header(6, 4003, 0)), "another port of the same lane");
        assert!(!received.is_new(3, &header(6, 4003, FLAG_AGAIN)));
    }

    #[test]
    fn answers_to_pings_name_no_lane() {
        let mut received = Received::new(|_| Numbers::default());
        assert!(received.is_new(0, &header(1, 0, 0)) && received.is_new(0, &header(2, 4001, 0)));
        received.ended(0);
        assert!(received.is_new(5, &header(1, 0, FLAG_AGAIN)));
        assert!(!received.is_new(5, &header(2, 4001, FLAG_AGAIN)));
    }

    #[test]
    fn a_port_that_is_bound_again_keeps_its_last_lane() {
        let mut received = Received::new(|_| Numbers::default());
        assert!(received.is_new(0, &header(50, 4001, 0)));
        assert!(received.is_new(1, &header(7, 4001, 0)));
        received.ended(0);
        received.ended(1);
        assert!(!received.is_new(2, &header(7, 4001, FLAG_AGAIN)));
        assert!(received.is_new(2, &header(8, 4001, FLAG_AGAIN)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut received = Received::new(|_| Numbers::default());
        for connection in 0..300_u16 {
            for port in 0..200 {
                received.is_new(0, &header(1, 2 + connection * 200 + port, 0));
            }
            received.ended(0);
        }
        assert_eq!(received.before.len(), BEFORE_MAX);
        assert!(received.before.iter().all(|memory| memory.ports.len() == PORTS_MAX));
        assert!(received.memory() < 5000, "{}", received.memory());
        // The ports of the last connection are still known.
        assert!(!received.is_new(1, &header(1, 2 + 299 * 200 + 199, FLAG_AGAIN)));
    }
}
