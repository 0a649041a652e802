//! Memory of messages that are not whole yet, of all connections together.
//!
//! # Model       each connection has one such message at most; the one that began first is given up
//!               where all of them are too much
//! # Why not     to refuse the newest: peers that send a beginning and no more would shut out all others

use std::collections::BTreeMap;

use crate::rds::lane::Connection;
use crate::time::Time;

/// What all connections may have of messages that are not whole yet. Of more, the one that has waited for
/// its rest for longest is reset: its sender has the whole message still, and sends it again.
pub const PARTIAL_BYTES_MAX: usize = 256 << 20;

#[derive(Clone, Copy, Debug)]
struct Partial {
    bytes: usize,
    began: Time,
}

/// Of which connections there is a message that is not whole.
#[derive(Debug, Default)]
pub(super) struct Partials {
    of: BTreeMap<Connection, Partial>,
    bytes: usize,
}

impl Partials {
    /// A connection has so much of one. `is_another` is that it began just now.
    pub(super) fn has(&mut self, of: Connection, bytes: usize, is_another: bool, now: Time) {
        let before = self.of.get(&of).copied();
        self.forget(of);
        if bytes > 0 {
            let began = before.filter(|_| !is_another).map_or(now, |before| before.began);
            self.of.insert(of, Partial { bytes, began });
            self.bytes += bytes;
        }
    }

    /// A connection has none.
    pub(super) fn forget(&mut self, of: Connection) {
        if let Some(gone) = self.of.remove(&of) {
            self.bytes -= gone.bytes;
        }
    }

    /// The one to be given up, if all are too much.
    pub(super) fn surplus(&self) -> Option<Connection> {
        if self.bytes <= PARTIAL_BYTES_MAX {
            return None;
        }
        let first = self.of.iter().min_by_key(|(at, partial)| (partial.began, **at));
        first.map(|(at, _)| *at)
    }
}
