//! Which client has sent a notification: the server knows a process of its own, which serves many.
//!
//! # Model
//! A client whose text has a NOTIFY, or `pg_notify()`, is noted for its server connection before the text
//! is sent. Up to [`HEARD_WITHIN`] after it has given the connection back, what is heard of that process
//! is its own. A second client that notifies meanwhile is believed once something of the first has been
//! heard.
//!
//! # Limits
//! Where two clients notify by one server connection at the same time, and where a trigger or a function
//! notifies, the sender is not known: the notification has the server's process id. What a trigger or a
//! function of another client notifies on the same connection within that time is taken for the first
//! one's.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::hash::IdMap;
use crate::time::Time;

/// The longest time between the end of a client's transaction and the moment in which what it has notified
/// is heard.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// So many are kept before those are looked for that are of no use any more.
const SWEPT_AT: usize = 256;

/// A client, and when it gave the server connection back.
#[derive(Clone, Copy, Debug)]
struct Notifier {
    client: u32,
    left: Option<Time>,
    /// Nothing has been heard since its last text that may notify.
    unheard: bool,
}

impl Notifier {
    fn may_be_heard(&self, now: Time) -> bool {
        self.left.is_none_or(|left| now.since(left) < HEARD_WITHIN)
    }
}

/// The last client that has notified by a server connection, and the one before it.
#[derive(Clone, Copy, Debug)]
struct OfProcess {
    last: Notifier,
    before: Option<Notifier>,
}

/// Who has notified by each process of a database's server.
#[derive(Debug, Default)]
pub struct Notifiers(Mutex<IdMap<u32, OfProcess>>);

impl Notifiers {
    /// A client sends something that may notify. `process`: that of its server connection.
    pub fn notifies(&self, process: u32, client: u32, now: Time) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= SWEPT_AT {
            known.retain(|_, of| of.last.may_be_heard(now));
        }
        let last = Notifier { client, left: None, unheard: true };
        let of = known.entry(process).or_insert(OfProcess { last, before: None });
        if of.last.client != client {
            of.before = Some(of.last);
        }
        of.last = last;
    }

    /// The client gives that server connection back.
    pub fn leaves(&self, process: u32, now: Time) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of) = known.get_mut(&process) {
            of.last.left = Some(now);
        }
    }

    /// The client that has sent what is heard now of this process, if it is known.
    pub fn of(&self, process: u32, now: Time) -> Option<u32> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let OfProcess { last, before } = known.get_mut(&process)?;
        let is_due = |one: &Notifier| one.unheard && one.client != last.client;
        let is_known = last.may_be_heard(now)
            && !before.is_some_and(|before| is_due(&before) && before.may_be_heard(now));
        last.unheard &= !is_known;
        is_known.then_some(last.client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_micros(ms * 1000)
    }

    #[test]
    fn what_is_heard_is_of_the_client_that_has_notified_last() {
        let notifiers = Notifiers::default();
        assert_eq!(notifiers.of(1, at(0)), None);
        notifiers.notifies(1, 7, at(0));
        assert_eq!(notifiers.of(1, at(5_000)), Some(7), "its transaction goes on");
        notifiers.leaves(1, at(5_000));
        assert_eq!(notifiers.of(1, at(5_999)), Some(7));
        assert_eq!(notifiers.of(1, at(6_000)), None, "a trigger's of another client");
        assert_eq!(notifiers.of(2, at(5_000)), None);
    }

    #[test]
    fn of_two_in_a_short_time_it_is_not_known_whose_it_is() {
        let notifiers = Notifiers::default();
        notifiers.notifies(1, 7, at(0));
        notifiers.leaves(1, at(1));
        notifiers.notifies(1, 8, at(2));
        notifiers.notifies(1, 8, at(3));
        assert_eq!(notifiers.of(1, at(4)), None);
        assert_eq!(notifiers.of(1, at(1_001)), Some(8));
        notifiers.leaves(1, at(1_500));
        notifiers.notifies(1, 8, at(1_600));
        assert_eq!(notifiers.of(1, at(1_601)), Some(8), "the same client again");
        notifiers.leaves(1, at(1_602));
        notifiers.notifies(1, 7, at(1_603));
        assert_eq!(notifiers.of(1, at(1_604)), Some(7), "all of the other's has been heard");
    }

    #[test]
    fn those_that_are_of_no_use_do_not_stay() {
        let notifiers = Notifiers::default();
        for process in 0..2_000 {
            notifiers.notifies(process, 7, at(u64::from(process) * 10));
            notifiers.leaves(process, at(u64::from(process) * 10));
        }
        assert!(notifiers.0.lock().unwrap().len() <= SWEPT_AT);
    }
}
