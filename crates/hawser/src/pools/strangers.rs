//! Databases that clients name under a `*` in the configuration: which of them exist, and how often
//! a server is asked about others.
//!
//! # Why
//! `auth_query` runs in the database that the client asks for, before the client has proven anything.
//! Each name without a database would cost a server connection as `auth_user`, as fast as a client
//! can send names.
//!
//! # Model
//! ```text
//!   a name that was seen to exist   no limit
//!   one that was not, lately        known for NONE_PERIOD, at no cost
//!   any other                       AT_ONCE at one time, and each place is free again only
//!                                   PAUSE after the server has said that there is none
//! ```
//! # Limits
//! In such an attack a database that no client has named before waits for its turn among the
//! attacker's names, up to client_login_timeout. One with a `[[database]]` of its own does not.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_pooler::wire::error::ClientError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::locked;

/// Why a user could not be looked up.
#[derive(Debug, derive_more::From)]
pub enum NotLookedUp {
    /// The server does not let `auth_user` into the database, or there is none of that name.
    NoEntry,
    /// Anything else: the error for the client.
    #[from]
    Failed(ClientError),
}

/// Names that are asked about at one time.
const AT_ONCE: usize = 2;
/// How long a place is kept after the server has said that there is no such database.
const PAUSE: Duration = Duration::from_millis(100);
/// How long that answer is used.
const NONE_PERIOD: Duration = Duration::from_secs(2);
/// Names of each kind that are remembered.
const NAMES_MAX: usize = 1_000;

#[derive(Default)]
struct Names {
    exist: HashSet<Box<str>>,
    none: HashMap<Box<str>, Instant>,
    /// When a server has last not answered in time.
    unanswered: Option<Instant>,
}

/// What is known about the names.
pub(super) struct Strangers {
    names: Arc<Mutex<Names>>,
    room: Arc<Semaphore>,
}

impl Default for Strangers {
    fn default() -> Self {
        Self { names: Arc::default(), room: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

/// A name that is being asked about, whose result must be reported.
pub(super) struct Stranger {
    names: Arc<Mutex<Names>>,
    name: Box<str>,
    place: OwnedSemaphorePermit,
    /// When it began to wait.
    since: Instant,
}

impl Strangers {
    /// Waits until this name may be asked about. `Ok(None)`: it exists. A login that has waited for
    /// one without an answer need not ask: see [`Stranger::has_waited_in_vain`].
    ///
    /// # Errors
    /// No database had that name a moment ago.
    pub(super) async fn admit(&self, name: &str) -> Result<Option<Stranger>, NotLookedUp> {
        if let Some(known) = self.known(name) {
            return known;
        }
        let since = Instant::now();
        // It is never closed.
        let Ok(place) = self.room.clone().acquire_owned().await else { return Ok(None) };
        // Another login may have asked meanwhile.
        if let Some(known) = self.known(name) {
            return known;
        }
        Ok(Some(Stranger { names: self.names.clone(), name: name.into(), place, since }))
    }

    fn known(&self, name: &str) -> Option<Result<Option<Stranger>, NotLookedUp>> {
        let names = locked(&self.names);
        if names.exist.contains(name) {
            return Some(Ok(None));
        }
        let asked = names.none.get(name)?;
        (asked.elapsed() < NONE_PERIOD).then_some(Err(NotLookedUp::NoEntry))
    }

    /// The configuration has changed.
    pub(super) fn forget(&self) {
        *locked(&self.names) = Names::default();
    }
}

impl Stranger {
    /// Whether a server has left another question unanswered while this one waited, which counts
    /// for both.
    pub(super) fn has_waited_in_vain(&self) -> bool {
        locked(&self.names).unanswered.is_some_and(|at| at > self.since)
    }

    /// The server has not answered in time.
    pub(super) fn unanswered(self) {
        locked(&self.names).unanswered = Some(Instant::now());
    }

    /// There is such a database.
    pub(super) fn exists(self) {
        let mut names = locked(&self.names);
        if names.exist.len() >= NAMES_MAX {
            names.exist.clear();
        }
        names.exist.insert(self.name);
    }

    /// There is none.
    pub(super) fn missing(self) {
        let Self { names, name, place, .. } = self;
        let mut names = locked(&names);
        if names.none.len() >= NAMES_MAX {
            names.none.clear();
        }
        names.none.insert(name, Instant::now());
        drop(names);
        tokio::spawn(async move {
            tokio::time::sleep(PAUSE).await;
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_of_no_database_are_asked_about_slowly_and_others_at_once() {
        let strangers = Strangers::default();
        let real = strangers.admit("real").await.unwrap().unwrap();
        real.exists();
        let began = Instant::now();
        for number in 0..10 {
            strangers.admit(&number.to_string()).await.unwrap().unwrap().missing();
            assert!(strangers.admit("real").await.unwrap().is_none(), "it is known to exist");
        }
        let took = began.elapsed();
        assert!(took >= PAUSE * 4, "two at a time: {took:?}");
        assert!(strangers.admit("9").await.is_err(), "there was none a moment ago");
        strangers.forget();
        assert!(strangers.admit("9").await.unwrap().is_some());
    }

    #[tokio::test]
    async fn who_has_waited_for_one_that_got_no_answer_does_not_wait_again() {
        let strangers = Arc::new(Strangers::default());
        let first = [strangers.admit("a").await, strangers.admit("a").await];
        let waits = strangers.clone();
        let second = tokio::spawn(async move { waits.admit("a").await });
        tokio::time::sleep(Duration::from_millis(10)).await;
        for stranger in first {
            stranger.unwrap().unwrap().unanswered();
        }
        assert!(second.await.unwrap().unwrap().unwrap().has_waited_in_vain());
        assert!(!strangers.admit("a").await.unwrap().unwrap().has_waited_in_vain());
    }
}
