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

use super::header::{Header, PROBE_PORT};
use super::lane::Connection;
use crate::time::Time;

/// A probe is waited for as long as something comes by its connection each time that this has passed.
pub(crate) const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// So many times.
pub(crate) const TIMES_MAX: u8 = 6;
/// Others are taken so long after the end of a probed connection in whose place any may come.
pub(crate) const TAKEN_AFTER: Duration = Duration::from_secs(1);

/// An answer that has not come yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    /// The connection that was probed.
    by: Connection,
    /// It has ended, and which one takes its place is not known.
    is_gone: bool,
    until: Time,
    times: u8,
    /// Bytes that had come by it when this was looked at last.
    came: u64,
}

impl Awaited {
    pub(crate) fn new(by: Connection, came: u64, now: Time) -> Self {
        Self { by, is_gone: false, until: now.after(ANSWERS_WITHIN), times: 1, came }
    }

    /// When it is to be looked at.
    pub(crate) fn until(&self) -> Time {
        self.until
    }

    /// The connection that was probed.
    pub(crate) fn by(&self) -> Connection {
        self.by
    }

    /// Whether a connection may bring what is to wait.
    pub(crate) fn holds(&self, connection: Connection) -> bool {
        connection > self.by
    }

    /// Whether a message of such a connection is to wait.
    pub(crate) fn holds_message(header: &Header) -> bool {
        header.from > PROBE_PORT && !header.is_map()
    }

    /// The probed connection has ended, and which one takes its place is not known.
    pub(crate) fn ended(&mut self, now: Time) {
        self.is_gone = true;
        self.until = self.until.min(now.after(TAKEN_AFTER));
    }

    /// Whether it is waited for on, now that its time has come. `came` is what has come by the connection
    /// in all, and `paused` whether that is not read for now.
    pub(crate) fn goes_on(&mut self, came: u64, paused: bool, now: Time) -> bool {
        let goes_on = !self.is_gone && self.times < TIMES_MAX && (paused || came > self.came);
        if goes_on {
            (self.until, self.came) = (now.after(ANSWERS_WITHIN), came);
            self.times += 1;
        }
        goes_on
    }
}
