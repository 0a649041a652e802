//! Lanes for which the peer takes no connection, and the lanes that stand in for them.
//!
//! # Why
//! Linux up to 6.18 may take one of its lanes for up although its connection has ended: one that
//! was reset before the kernel had taken it in (`rds_tcp_accept_one`, net/rds/tcp_listen.c, does
//! not see a reset that came before `rds_tcp_set_callbacks`). It notices when it sends by that
//! lane, which may be never. Until then it has one lane less than it has said, and resets what is
//! dialled for the last one: what waits there would wait for ever.
//!
//! # Model
//! A lane that was refused for [`REFUSED_MAX`] has its messages moved to another, renumbered. Those
//! that a connection has seen go too, so they may come twice. It is dialled again every [`DIALLED_AGAIN`],
//! and used again once it is up and the other has nothing queued.
//!
//! # Invariants
//! * messages of a port are on one lane at a time, in order

use std::time::Duration;

use hawser_time::Time;

use super::header::LANES_MAX;

/// A lane whose connections have been reset for so long, each at once, is stood in for.
pub const REFUSED_MAX: Duration = Duration::from_secs(5);
/// The wait before such a lane is dialled again.
pub const DIALLED_AGAIN: Duration = Duration::from_secs(60);

/// Of one peer.
#[derive(Debug, Default)]
pub(crate) struct StandIns {
    /// The lane that was refused last, and since when.
    refused: Option<(u8, Time)>,
    /// A bit for each lane that another stands in for.
    lanes: u8,
}

const _: () = assert!(LANES_MAX <= u8::BITS as usize);

impl StandIns {
    /// A connection of a lane was reset before anything came by it. `true`: another lane is to stand in.
    pub(crate) fn refused(&mut self, lane: usize, now: Time) -> bool {
        let since = match self.refused {
            Some((of, since)) if usize::from(of) == lane => since,
            _ => now,
        };
        self.refused = Some((lane as u8, since));
        // Lane 0 is what the peer is known by.
        let gives_up = lane > 0 && !self.has(lane) && now.since(since) >= REFUSED_MAX;
        if gives_up {
            self.lanes |= 1 << lane;
        }
        gives_up
    }

    /// The peer has taken a connection of a lane.
    pub(crate) fn taken(&mut self, lane: usize) {
        self.refused = self.refused.filter(|(of, _)| usize::from(*of) != lane);
    }

    /// A lane is used again.
    pub(crate) fn end(&mut self, lane: usize) {
        self.lanes &= !(1 << lane);
    }

    /// Whether another lane stands in for this one.
    pub(crate) fn has(&self, lane: usize) -> bool {
        self.lanes & 1 << lane != 0
    }

    /// The lane that carries what belongs to this one: the same as of a peer with half as many.
    pub(crate) fn carrier(&self, mut lane: usize) -> usize {
        while self.has(lane) && lane > 0 {
            lane ^= 1 << lane.ilog2();
        }
        lane
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_lane_is_stood_in_for_once_it_was_refused_for_long_and_lane_0_never() {
        let mut stand_ins = StandIns::default();
        assert!(!stand_ins.refused(7, at(10)));
        assert!(!stand_ins.refused(7, at(14)));
        assert_eq!(stand_ins.carrier(7), 7);
        assert!(stand_ins.refused(7, at(15)));
        assert!(!stand_ins.refused(7, at(16)), "once");
        assert_eq!((stand_ins.carrier(7), stand_ins.carrier(6)), (3, 6));
        stand_ins.end(7);
        assert_eq!(stand_ins.carrier(7), 7);
        assert!(!stand_ins.refused(0, at(20)));
        assert!(!stand_ins.refused(0, at(90)));
    }

    #[test]
    fn a_taken_connection_or_another_lanes_refusal_restarts_the_time() {
        let mut stand_ins = StandIns::default();
        stand_ins.refused(6, at(0));
        stand_ins.taken(6);
        assert!(!stand_ins.refused(6, at(9)));
        assert!(!stand_ins.refused(5, at(10)));
        assert!(!stand_ins.refused(6, at(14)));
        assert!(stand_ins.refused(6, at(19)));
    }

    #[test]
    fn lanes_that_stand_in_are_stood_in_for_themselves() {
        let stand_ins = StandIns { refused: None, lanes: 1 << 7 | 1 << 3 | 1 << 1 };
        assert_eq!([7, 3, 5, 1, 0].map(|lane| stand_ins.carrier(lane)), [0, 0, 5, 0, 0]);
    }
}
