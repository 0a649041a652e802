//! Which client has sent a notification: the server knows a process of its own, which serves many.
//!
//! # Model
//! A client whose text has a NOTIFY, or `pg_notify()`, is noted for its server connection before the text
//! is sent. What is heard of that process is its own until another client gets the connection, and for
//! [`HEARD_WITHIN`] at most after it has given the connection back.
//!
//! # Invariant
//! No client is named that may not be the sender: what comes within [`HEARD_WITHIN`] of another notifier's
//! time with the connection has the server's process id, and so has what a trigger or a function notifies.
//!
//! # Limits
//! A server or a listening connection that is behind by more than [`HEARD_WITHIN`].

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::lock::unpoisoned;
use crate::hash::IdMap;
use crate::time::Time;

/// The longest time between the end of a client's transaction and the moment in which what it has notified
/// is heard.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// So many are kept before those are looked for that are of no use any more.
const SWEPT_AT: usize = 256;

/// Who has notified by a server connection.
#[derive(Clone, Copy, Debug, Default)]
struct OfProcess {
    /// The client that has it, or had it last.
    client: Option<u32>,
    /// When that gave it back.
    left: Option<Time>,
    /// When another one gave it back that had notified.
    other_left: Option<Time>,
}

impl OfProcess {
    fn is_recent(at: Option<Time>, now: Time) -> bool {
        at.is_some_and(|at| now.since(at) < HEARD_WITHIN)
    }

    /// Whether anything may still be heard of these.
    fn is_of_use(&self, now: Time) -> bool {
        let has_it = self.client.is_some() && self.left.is_none();
        has_it || Self::is_recent(self.left, now) || Self::is_recent(self.other_left, now)
    }
}

/// Who has notified by each process of a database's server.
#[derive(Debug, Default)]
pub struct Notifiers(Mutex<IdMap<u32, OfProcess>>);

impl Notifiers {
    fn known(&self) -> MutexGuard<'_, IdMap<u32, OfProcess>> {
        unpoisoned(self.0.lock())
    }

    /// A client sends something that may notify. `process`: that of its server connection.
    pub fn notifies(&self, process: u32, client: u32, now: Time) {
        let mut known = self.known();
        if known.len() >= SWEPT_AT {
            known.retain(|_, of| of.is_of_use(now));
        }
        let of = known.entry(process).or_default();
        (of.client, of.left) = (Some(client), None);
    }

    /// The client gives that server connection back.
    pub fn leaves(&self, process: u32, now: Time) {
        if let Some(of) = self.known().get_mut(&process) {
            of.left = Some(now);
        }
    }

    /// A client gets that server connection. Whether it is the one that has notified by it.
    pub fn lent(&self, process: u32, client: u32) -> bool {
        let mut known = self.known();
        let Some(of) = known.get_mut(&process) else { return false };
        let same = of.client == Some(client);
        if !same {
            *of = OfProcess { client: None, left: None, other_left: of.left };
        }
        same
    }

    /// That server connection has ended.
    pub fn ended(&self, process: u32) {
        self.known().remove(&process);
    }

    /// The client that has sent what is heard now of this process, if it is known.
    pub fn of(&self, process: u32, now: Time) -> Option<u32> {
        let of = *self.known().get(&process)?;
        let is_heard = of.left.is_none() || OfProcess::is_recent(of.left, now);
        of.client.filter(|_| is_heard && !OfProcess::is_recent(of.other_left, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_micros(ms * 1000)
    }

    #[test]
    fn what_is_heard_is_of_the_client_that_has_notified() {
        let notifiers = Notifiers::default();
        assert_eq!(notifiers.of(1, at(0)), None);
        notifiers.notifies(1, 7, at(0));
        assert_eq!(notifiers.of(1, at(5_000)), Some(7), "its transaction goes on");
        notifiers.leaves(1, at(5_000));
        assert_eq!(notifiers.of(1, at(5_999)), Some(7));
        assert!(notifiers.lent(1, 7));
        assert_eq!(notifiers.of(1, at(5_999)), Some(7), "nobody else has had it");
        assert_eq!(notifiers.of(1, at(6_000)), None, "it notified long ago");
        assert_eq!(notifiers.of(2, at(5_000)), None);
        notifiers.ended(1);
        assert_eq!(notifiers.of(1, at(5_001)), None);
    }

    #[test]
    fn what_comes_while_another_has_the_connection_is_of_nobody() {
        let notifiers = Notifiers::default();
        notifiers.notifies(1, 7, at(0));
        notifiers.leaves(1, at(1));
        assert!(!notifiers.lent(1, 8));
        assert_eq!(notifiers.of(1, at(2)), None, "a trigger's of the other, or the first one's");
        notifiers.notifies(1, 8, at(3));
        notifiers.notifies(1, 8, at(4));
        assert_eq!(notifiers.of(1, at(5)), None, "of one of the two");
        assert_eq!(notifiers.of(1, at(1_001)), Some(8), "the first one's has come long ago");
        notifiers.leaves(1, at(1_500));
        assert!(!notifiers.lent(1, 7));
        assert_eq!(notifiers.of(1, at(5_000)), None, "the first one does not notify by it now");
    }

    #[test]
    fn those_that_are_of_no_use_do_not_stay() {
        let notifiers = Notifiers::default();
        for process in 0..2_000 {
            notifiers.notifies(process, 7, at(u64::from(process) * 10));
            notifiers.leaves(process, at(u64::from(process) * 10));
        }
        assert!(notifiers.known().len() <= SWEPT_AT);
    }
}
