//! Which numbers have come by a lane.
//!
//! # Model
//! A message that is flagged as sent again came before if its number is one of those that did. Others are
//! new, whatever their numbers, as for a kernel (rds_recv_incoming, net/rds/recv.c).
//! ```text
//!   first ............ expected ............
//!         came before            new
//! ```
//! A number below `first` is of another numbering, which begins there: Linux up to 6.18 numbers its
//! messages from 1 again once it learns of a restart of this host (rds_conn_peer_gen_update,
//! net/rds/recv.c), and what it has sent until then has higher numbers. It learns of it by the
//! probe, so the answer to that is the last message with an old number, and is not counted.
//!
//! # Limits
//! Where the messages before that had low numbers themselves, those that come with the same ones, flagged,
//! are taken for them.

use super::header::{FLAG_AGAIN, Header, PROBE_PORT};

/// Those that have come: none while both are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Numbers {
    first: u64,
    expected: u64,
}

impl Numbers {
    /// The number after the last one that came.
    pub(crate) fn expected(self) -> u64 {
        self.expected
    }

    /// Whether none has come.
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Whether a message came before.
    pub(crate) fn had(self, header: &Header) -> bool {
        let came = self.first <= header.sequence && header.sequence < self.expected;
        came && header.flags & FLAG_AGAIN != 0
    }

    /// Counts a message that is new. `true`: another numbering begins with it.
    pub(crate) fn take(&mut self, header: &Header) -> bool {
        if (header.from, header.to) == (0, PROBE_PORT) {
            return false;
        }
        let is_first = self.is_empty();
        let is_another = !is_first && header.sequence < self.expected;
        if is_first || is_another {
            self.first = header.sequence;
        }
        self.expected = header.sequence.wrapping_add(1);
        is_another
    }

    /// All from this number on has come.
    pub(crate) fn came_since(&mut self, first: u64) {
        self.first = self.first.min(first);
    }

    /// The first one.
    pub(crate) fn first(self) -> Option<u64> {
        (!self.is_empty()).then_some(self.first)
    }

    /// These go on with those of an earlier connection, unless they are of another numbering.
    pub(crate) fn go_on_with(&mut self, before: Self) {
        if self.is_empty() {
            *self = before;
        } else if !before.is_empty() && self.expected > before.first {
            self.first = self.first.min(before.first);
            self.expected = self.expected.max(before.expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(numbers: &mut Numbers, sequence: u64, flags: u8) -> bool {
        let header = Header { sequence, flags, from: 4001, to: 9, ..Header::default() };
        let is_new = !numbers.had(&header);
        if is_new {
            numbers.take(&header);
        }
        is_new
    }

    #[test]
    fn numbers_below_the_first_one_are_of_another_numbering() {
        let mut numbers = Numbers::default();
        assert!(take(&mut numbers, 50, 0) && take(&mut numbers, 53, 0));
        assert!(!take(&mut numbers, 50, FLAG_AGAIN) && !take(&mut numbers, 53, FLAG_AGAIN));
        for sequence in 1..60 {
            assert!(take(&mut numbers, sequence, FLAG_AGAIN), "{sequence}");
        }
        assert!(!take(&mut numbers, 1, FLAG_AGAIN) && !take(&mut numbers, 59, FLAG_AGAIN));
        assert!(take(&mut numbers, 60, FLAG_AGAIN));
        // Not flagged: it is new, and so is what follows.
        assert!(take(&mut numbers, 1, 0) && take(&mut numbers, 2, FLAG_AGAIN));
    }

    #[test]
    fn the_answer_to_a_probe_is_not_counted() {
        let mut numbers = Numbers::default();
        let answer = Header { sequence: 1, to: PROBE_PORT, ..Header::default() };
        numbers.take(&answer);
        assert!(numbers.is_empty() && take(&mut numbers, 1, FLAG_AGAIN));
    }

    #[test]
    fn those_of_an_earlier_connection_are_gone_on_with_if_they_are_of_the_same_numbering() {
        let went_on = |first, expected, since| {
            let mut numbers = Numbers { first: since, expected: since + 1 };
            numbers.go_on_with(Numbers { first, expected });
            (numbers.first, numbers.expected)
        };
        assert_eq!(went_on(10, 20, 15), (10, 20));
        assert_eq!(went_on(10, 20, 25), (10, 26));
        assert_eq!(went_on(10, 20, 1), (1, 2));
    }
}
