//! The places under limits that a pool's server connections hold.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::locked;
use crate::limits::ServerPermit;

/// A pool's limited places, and since when it has them.
#[derive(Debug)]
pub struct Share {
    /// Places that its server connections hold, also those that are being opened.
    held: Arc<AtomicU32>,
    times: Mutex<Times>,
}

#[derive(Debug)]
struct Times {
    /// When it last got one.
    served: Instant,
    /// Since when it has wanted one and had none.
    starving: Option<Instant>,
}

impl Default for Share {
    fn default() -> Self {
        let times = Times { served: Instant::now(), starving: None };
        Self { held: Arc::default(), times: Mutex::new(times) }
    }
}

/// One of the places that a pool holds.
#[derive(Debug)]
pub struct Held(Arc<AtomicU32>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Share {
    /// How many it holds.
    pub fn held(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }

    /// One more, until what is returned is dropped.
    pub fn hold(&self) -> Held {
        self.held.fetch_add(1, Ordering::Relaxed);
        Held(self.held.clone())
    }

    /// A server connection has been opened.
    pub fn serve(&self) {
        *locked(&self.times) = Times { served: Instant::now(), starving: None };
    }

    /// Since when it has had none; starts now if it had one before.
    pub fn starving_since(&self) -> Instant {
        *locked(&self.times).starving.get_or_insert_with(Instant::now)
    }

    /// For how long it has had the last one.
    pub fn had_for(&self) -> Duration {
        locked(&self.times).served.elapsed()
    }
}

/// Place under all limits but that of the server's address.
#[derive(Debug)]
pub struct Place {
    _server: ServerPermit,
    _held: Option<Held>,
}

impl Place {
    /// Under the limits on all, on a database and on a user, and perhaps one of a pool's.
    pub fn new(server: ServerPermit, held: Option<Held>) -> Self {
        Self { _server: server, _held: held }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_got_none_yet_keeps_its_time_and_loses_it_when_served() {
        let share = Share::default();
        let since = share.starving_since();
        assert_eq!(share.starving_since(), since);
        let held = share.hold();
        assert_eq!(share.held(), 1);
        share.serve();
        drop(held);
        assert_eq!(share.held(), 0);
        assert!(share.starving_since() >= since && share.had_for() < Duration::from_millis(250));
    }
}
