//! Messages of ports that were given back.
//!
//! # Model       a program may send and leave: what it has sent goes on its way. (Linux drops it:
//!               rds_send_drop_to, net/rds/send.c.) All of that together has a bound; a port that is
//!               given back beyond it takes with it what no connection has begun to carry. What is for a
//!               peer that has not been there for long is dropped
//! # Why not     no bound: a program that binds, sends to a host that is down, and leaves, again and
//!               again, would take all memory

mod steps;

use std::collections::BTreeMap;

/// What ports that were given back may have queued in all.
pub const LEAVING_BYTES_MAX: usize = 64 << 20;

/// What such ports have queued, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    of: BTreeMap<u16, usize>,
    bytes: usize,
}

impl Leaving {
    /// The port is taken again: what it has queued is its new owner's to wait for.
    pub(super) fn take(&mut self, port: u16) -> usize {
        let bytes = self.of.remove(&port).unwrap_or(0);
        self.bytes -= bytes;
        bytes
    }

    /// So much of it is gone.
    pub(super) fn freed(&mut self, port: u16, bytes: usize) {
        if let Some(left) = self.of.get_mut(&port) {
            let gone = bytes.min(*left);
            *left -= gone;
            self.bytes -= gone;
            if *left == 0 {
                self.of.remove(&port);
            }
        }
    }
}
