//! Bytes of one direction of a stream without a pause: what tells a transfer from small messages.

use std::time::Duration;

use hawser_time::Time;

/// A stream that has carried so much without a pause is bulk.
const BULK_BYTES: u64 = 256 << 10;
/// A pause.
const PAUSE: Duration = Duration::from_millis(500);
/// A stream over which nothing has gone for so long is idle: what is in the paths need not be short for its sake.
pub(super) const IDLE: Duration = Duration::from_secs(5);

/// Of one direction.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Run {
    bytes: u64,
    last: Time,
}

impl Run {
    /// `waits`: earlier bytes are still to be sent, so time without new ones is no pause.
    pub(super) fn add(&mut self, bytes: usize, waits: bool, now: Time) {
        if !waits && now.since(self.last) > PAUSE {
            self.bytes = 0;
        }
        self.last = now;
        self.bytes += bytes as u64;
    }

    /// Since the last pause.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_bulk(&self) -> bool {
        self.bytes > BULK_BYTES
    }

    pub(super) fn is_idle(&self, now: Time) -> bool {
        now.since(self.last) > IDLE
    }
}
