//! The age of what is known about a database's schema, by which prepared statements grow old.
//!
//! # Model
//! A server resolves the types of a statement's parameters and result once, at its Parse. Clients share
//! statements, so a Parse may be answered with one of the past. Each database therefore has an epoch,
//! which all pools of that database share:
//!
//! ```text
//! epoch = changes of the schema that are known : periods that have passed
//!         (upper half)                           (lower half)
//! ```
//! A statement on a server connection has the epoch that was current when its Parse was sent. A client's
//! Parse takes no statement of an older epoch than the current one; its Bind, none of an older epoch than
//! that of its own Parse.
//!
//! # Invariants  the epoch only grows. It grows after a change has been committed and before Hawser
//!               forwards the commit to any client, so a Parse that was sent before has an older
//!               one.
//! # Why periods  a change that does not pass through Hawser is not seen. A Parse is answered for the
//!               length of a period, `parse_max_age`, without asking the server again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Time;

/// A moment in the life of a schema, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct SchemaEpoch(u64);

/// Bits of the periods.
const PERIOD_BITS: u32 = 40;

impl SchemaEpoch {
    /// Older than any that is current.
    pub const NEVER: Self = Self(0);

    /// As a number that grows with it.
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// How many changes of the schema are known to have come before it.
    pub fn changes(self) -> u64 {
        self.0 >> PERIOD_BITS
    }

    /// Whether no change of the schema is known to have come between these two.
    pub fn has_schema_of(self, other: Self) -> bool {
        self.0 >> PERIOD_BITS == other.0 >> PERIOD_BITS
    }
}

/// The schema of one database.
#[derive(Debug)]
pub(crate) struct Schema {
    epoch: AtomicU64,
    /// When the current period began, in microseconds.
    since: AtomicU64,
}

impl Default for Schema {
    fn default() -> Self {
        Self { epoch: AtomicU64::new(1), since: AtomicU64::new(0) }
    }
}

impl Schema {
    /// The current epoch.
    #[inline]
    pub(crate) fn epoch(&self) -> SchemaEpoch {
        SchemaEpoch(self.epoch.load(Ordering::Acquire))
    }

    /// The same; a new period begins first where this one has lasted for `period`.
    pub(crate) fn epoch_at(&self, now: Time, period: Duration) -> SchemaEpoch {
        let since = self.since.load(Ordering::Acquire);
        let over = now.since(Time::from_micros(since)) >= period;
        // If several loops find it over, one begins the next.
        if over
            && self
                .since
                .compare_exchange(since, now.as_micros(), Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        {
            return SchemaEpoch(self.epoch.fetch_add(1, Ordering::AcqRel) + 1);
        }
        self.epoch()
    }

    /// The schema has changed, or may have.
    pub(crate) fn changed(&self) {
        self.epoch.fetch_add(1 << PERIOD_BITS, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(1);

    #[test]
    fn a_period_lasts_for_its_length_and_no_longer() {
        let schema = Schema::default();
        let first = schema.epoch_at(Time::from_micros(5_000_000), PERIOD);
        assert_eq!(schema.epoch_at(Time::from_micros(5_999_999), PERIOD), first);
        let second = schema.epoch_at(Time::from_micros(6_000_000), PERIOD);
        assert!(second > first && second.has_schema_of(first));
        assert_eq!(schema.epoch(), second);
    }

    #[test]
    fn a_period_of_nothing_is_over_at_once() {
        let schema = Schema::default();
        let first = schema.epoch_at(Time::ZERO, Duration::ZERO);
        assert!(schema.epoch_at(Time::ZERO, Duration::ZERO) > first);
    }

    #[test]
    fn a_change_is_newer_than_all_periods_before_it() {
        let schema = Schema::default();
        let before = schema.epoch_at(Time::from_micros(9_000_000), PERIOD);
        schema.changed();
        assert!(schema.epoch() > before && !schema.epoch().has_schema_of(before));
        assert!(schema.epoch() > SchemaEpoch::NEVER);
    }
}
