//! Memory of incomplete messages, of all connections together.
//!
//! # Model       each connection has one such message at most; the one that began first is given up
//!               where all of them are too much: what came of it is read to its end, and if it is not
//!               whole then, the connection is reset. Its sender has the whole message still
//! # Invariants
//! * one that is paused, for a full port or until an older connection is read, is not given up: what TCP has
//!   acknowledged of it is unread, and its sender would take it for delivered. It does not grow meanwhile,
//!   and counts apart: where these are too much, the full ports are waited for no longer
//!   ([`Node::stopping`](super::Node::stopping))
//! # Why not     to refuse the newest: peers that send a beginning and no more would shut out all others.
//!               The peer that has most: one with eight busy lanes has more than each of many that send
//!               a beginning by one, and would be reset again and again

use std::collections::BTreeMap;

use hawser_time::Time;

use crate::proto::lane::Connection;

/// The most that all connections may hold of incomplete messages. Beyond that, the one that has
/// waited longest for its rest is reset: its sender still has the whole message, and sends it
/// again.
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
    /// A port is full, or an older connection is to be read first.
    Paused,
    /// It no longer counts.
    GivenUp,
}

/// The connections with an incomplete message.
#[derive(Debug, Default)]
pub(super) struct Partials {
    of: BTreeMap<Connection, Partial>,
    /// Of those that are read.
    bytes: usize,
    /// Of those that are paused.
    paused_bytes: usize,
    /// Of those that are given up, and will be reset.
    given_up_bytes: usize,
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
            *self.bytes_of(is) += bytes;
        }
    }

    /// Where its bytes are counted.
    fn bytes_of(&mut self, is: Is) -> &mut usize {
        match is {
            Is::Read => &mut self.bytes,
            Is::Paused => &mut self.paused_bytes,
            Is::GivenUp => &mut self.given_up_bytes,
        }
    }

    fn set(&mut self, of: Connection, is: Is) {
        let Some(partial) = self.of.get_mut(&of) else { return };
        let (before, bytes) = (std::mem::replace(&mut partial.is, is), partial.bytes);
        *self.bytes_of(before) -= bytes;
        *self.bytes_of(is) += bytes;
    }

    /// A connection is not read for now, or is again.
    pub(super) fn set_paused(&mut self, of: Connection, paused: bool) {
        self.set(of, if paused { Is::Paused } else { Is::Read });
    }

    /// A connection has none.
    pub(super) fn forget(&mut self, of: Connection) {
        if let Some(gone) = self.of.remove(&of) {
            *self.bytes_of(gone.is) -= gone.bytes;
        }
    }

    /// Bytes of those that are paused, for whatever reason. Each has one message at most.
    pub(super) fn paused_bytes(&self) -> usize {
        self.paused_bytes
    }

    /// The one to be given up, if all are more than `most`.
    pub(super) fn surplus(&mut self, most: usize) -> Option<Connection> {
        if self.bytes <= most {
            return None;
        }
        let may_go = self.of.iter().filter(|(_, partial)| partial.is == Is::Read);
        let (at, _) = may_go.min_by_key(|(at, partial)| (partial.began, **at))?;
        let at = *at;
        self.set(at, Is::GivenUp);
        Some(at)
    }

    /// Whether it was given up, and its message is not whole yet.
    pub(super) fn is_given_up(&self, of: Connection) -> bool {
        self.of.get(&of).is_some_and(|partial| partial.is == Is::GivenUp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_micros(ms * 1000)
    }

    #[test]
    fn what_waits_for_a_full_port_pushes_nothing_else_out() {
        let mut partials = Partials::default();
        for number in 0..10 {
            partials.has(Connection(number), 100, true, false, at(number));
            partials.set_paused(Connection(number), true);
        }
        partials.has(Connection(20), 100, true, false, at(20));
        assert_eq!((partials.surplus(500), partials.paused_bytes()), (None, 1000));
        for number in 0..5 {
            partials.set_paused(Connection(number), false);
        }
        assert_eq!(partials.surplus(500), Some(Connection(0)), "the oldest of those that are read");
        assert!(partials.is_given_up(Connection(0)));
        assert_eq!((partials.surplus(500), partials.paused_bytes()), (None, 500));
        for number in 0..=20 {
            partials.forget(Connection(number));
        }
        assert_eq!((partials.bytes, partials.paused_bytes, partials.given_up_bytes), (0, 0, 0));
    }
}
