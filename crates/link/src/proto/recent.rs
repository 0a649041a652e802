//! The recent growth rate of a counter of bytes, for operators.

use std::time::Duration;

use hawser_time::Time;

/// The shortest time that it covers.
const SPAN: Duration = Duration::from_secs(1);

/// The rate of one counter, whose value is passed each time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent {
    since: Time,
    bytes: u64,
    /// Of the last span that is over.
    rate: Option<u64>,
}

impl Recent {
    pub(super) fn new(now: Time) -> Self {
        Self { since: now, bytes: 0, rate: None }
    }

    /// The counter may have grown.
    pub(super) fn note(&mut self, bytes: u64, now: Time) {
        if now.since(self.since) >= SPAN {
            *self = Self { since: now, bytes, rate: Some(self.since_then(bytes, now)) };
        }
    }

    /// Bytes a second. A counter that has not grown for longer than the span has a rate that falls.
    pub(super) fn rate(&self, bytes: u64, now: Time) -> u64 {
        match self.rate {
            Some(rate) if now.since(self.since) < SPAN => rate,
            _ => self.since_then(bytes, now),
        }
    }

    fn since_then(&self, bytes: u64, now: Time) -> u64 {
        let micros = now.since(self.since).as_micros().max(1);
        let more = u128::from(bytes.saturating_sub(self.bytes));
        u64::try_from(more * 1_000_000 / micros).unwrap_or(u64::MAX)
    }
}
