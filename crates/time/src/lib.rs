//! Time as an argument: microseconds since the process (or the simulation) began.
//!
//! All of Hawser's state machines take [`Time`] instead of reading a clock, so each also runs in a
//! simulation; [`seeded`] has numbers that follow from a seed. Nothing else is here: the pooler and the rows
//! beside it share this type, and so need not depend on each other.

use std::time::Duration;

pub mod seeded;

/// A moment, in microseconds since an arbitrary start. Monotonic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The start.
    pub const ZERO: Time = Time(0);

    /// The moment that lies `micros` after the start.
    pub const fn from_micros(micros: u64) -> Time {
        Time(micros)
    }

    /// Microseconds since the start.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero if it is not earlier.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Microseconds since `earlier`; zero if it is not earlier.
    pub const fn micros_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `wait` later.
    #[must_use]
    pub fn after(self, wait: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX)))
    }
}
