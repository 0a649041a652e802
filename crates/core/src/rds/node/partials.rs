//! Memory of messages that are not whole yet, of all connections together.
//!
//! # Model       each connection has one such message at most; the one that began first is given up
//!               where all of them are too much: what came of it is read to its end, and if it is not
//!               whole then, the connection is reset. Its sender has the whole message still
//! # Invariants
//! * one that is not read because of a full port is not given up: what TCP has acknowledged of it is
//!   unread, and its sender would take it for delivered. It does not grow meanwhile
//! # Why not     to refuse the newest: peers that send a beginning and no more would shut out all others.
//!               The peer that has most: one with eight busy lanes has more than each of many that send
//!               a beginning by one, and would be reset again and again

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
    is: Is,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Is {
    Read,
    /// A port is full.
    Paused,
    /// It counts no more.
    GivenUp,
}

/// Of which connections there is a message that is not whole.
#[derive(Debug, Default)]
pub(super) struct Partials {
    of: BTreeMap<Connection, Partial>,
    bytes: usize,
}

impl Partials {
    /// A connection has so much of one. `is_another` is that it began just now.
    pub(super) fn has(
        &mut self,
        of: Connection,
        bytes: usize,
        is_another: bool,
        paused: bool,
        now: Time,
    ) {
        let same = self.of.get(&of).copied().filter(|_| !is_another);
        self.forget(of);
        if bytes > 0 {
            let (began, before) = same.map_or((now, Is::Read), |same| (same.began, same.is));
            let is = match before {
                _ if paused => Is::Paused,
                Is::GivenUp => Is::GivenUp,
                _ => Is::Read,
            };
            self.of.insert(of, Partial { bytes, began, is });
            self.bytes += if is == Is::GivenUp { 0 } else { bytes };
        }
    }

    /// A connection is not read for now, or is again.
    pub(super) fn set_paused(&mut self, of: Connection, paused: bool) {
        if let Some(partial) = self.of.get_mut(&of) {
            if partial.is == Is::GivenUp {
                self.bytes += partial.bytes;
            }
            partial.is = if paused { Is::Paused } else { Is::Read };
        }
    }

    /// A connection has none.
    pub(super) fn forget(&mut self, of: Connection) {
        if let Some(gone) = self.of.remove(&of)
            && gone.is != Is::GivenUp
        {
            self.bytes -= gone.bytes;
        }
    }

    /// The one to be given up, if all are more than `most`.
    pub(super) fn surplus(&mut self, most: usize) -> Option<Connection> {
        if self.bytes <= most {
            return None;
        }
        let may_go = self.of.iter_mut().filter(|(_, partial)| partial.is == Is::Read);
        let (at, first) = may_go.min_by_key(|(at, partial)| (partial.began, **at))?;
        first.is = Is::GivenUp;
        self.bytes -= first.bytes;
        Some(*at)
    }

    /// Whether it was given up, and its message is not whole yet.
    pub(super) fn is_given_up(&self, of: Connection) -> bool {
        self.of.get(&of).is_some_and(|partial| partial.is == Is::GivenUp)
    }
}
