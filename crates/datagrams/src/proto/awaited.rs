//! What a kernel sends by its first lane before it knows the number of lanes.
//!
//! # Model
//! A kernel that does not know how many lanes a host has puts all messages on its first lane
//! (rds_send_mprds_hash, net/rds/send.c, for a socket that does not block). Once it knows, a port's next
//! message may go by another lane, and overtake those. It learns the number by the probe of this host, or
//! by the answer to its own, and its answer to a probe goes by the same lane, after those messages:
//! ```text
//!   first lane   map, early messages of any port, answer to the probe, messages of its own ports
//!   others                                                             messages of their ports
//! ```
//! So until the answer has come by a probed connection, messages of ports are not taken from
//! younger connections; maps, pings and probes are.
//!
//! # Limits
//! A kernel with `net.rds.ping_enable` = 0 answers nothing: after [`ANSWERS_WITHIN`] in which nothing
//! comes by the probed connection, and after [`TIMES_MAX`] times that in all, the others are taken. If
//! the probed connection ends before the answer came, and it cannot be known which one takes its place,
//! they are taken after [`TAKEN_AFTER`]. The kernel queues its answer just before it notes the number
//! (rds_recv_incoming, net/rds/recv.c): what a program sends in between goes by the first lane, after the
//! answer.

use std::time::Duration;

use hawser_time::Time;

use super::header::{Header, PROBE_PORT};
use super::lane::Connection;

/// An answer is awaited as long as its connection brings something within each such time.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// How many times at most.
pub(crate) const TIMES_MAX: u8 = 6;
/// After the end of a probed connection that any other may replace, others are taken after this
/// time.
pub(crate) const TAKEN_AFTER: Duration = Duration::from_secs(1);

/// An answer that has not come yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    /// The connection that was probed.
    by: Connection,
    /// It has ended, and its replacement is not known.
    is_gone: bool,
    until: Time,
    times: u8,
    /// Bytes that had come by it at the last check.
    came: u64,
}

impl Awaited {
    pub(crate) fn new(by: Connection, came: u64, now: Time) -> Self {
        Self { by, is_gone: false, until: now.after(ANSWERS_WITHIN), times: 1, came }
    }

    /// When to check it next.
    pub(crate) fn until(&self) -> Time {
        self.until
    }

    /// The connection that was probed.
    pub(crate) fn by(&self) -> Connection {
        self.by
    }

    /// Whether a connection may bring messages that must wait.
    pub(crate) fn holds(&self, connection: Connection) -> bool {
        connection > self.by
    }

    /// Whether a message of such a connection must wait.
    pub(crate) fn holds_message(header: &Header) -> bool {
        header.from > PROBE_PORT && !header.is_map()
    }

    /// The probed connection has ended, and its replacement is not known.
    pub(crate) fn ended(&mut self, now: Time) {
        self.is_gone = true;
        self.until = self.until.min(now.after(TAKEN_AFTER));
    }

    /// Whether to go on waiting, now that the time has passed. `came`: all bytes that have come by
    /// the connection; `paused`: whether it is not read for now.
    pub(crate) fn goes_on(&mut self, came: u64, paused: bool, now: Time) -> bool {
        let goes_on = !self.is_gone && self.times < TIMES_MAX && (paused || came > self.came);
        if goes_on {
            (self.until, self.came) = (now.after(ANSWERS_WITHIN), came);
            self.times += 1;
        }
        goes_on
    }
}
