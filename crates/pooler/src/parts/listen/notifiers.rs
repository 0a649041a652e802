//! Which client has sent a notification: the server knows only its own process, which serves many.
//!
//! # Model
//! A client whose text has a NOTIFY, or `pg_notify()`, or reaches a function or trigger that has, as the census
//! knows them, is noted for its server connection before the text
//! is sent. What is heard of that process is its own until another client gets the connection, and for
//! [`RECEIVED_WITHIN`] at most after it has given the connection back. No other client gets it before the
//! pool's listening connection has heard all of that (`parts::listen::clients::fence`).
//!
//! What other clients have notified by that connection before may still be
//! on its way then, by what the census does not know. So where clients of the pool listen, and another client
//! has had the connection since something was last heard out on it, the text waits until their
//! listening connection has
//! heard all of that. For who else hears it, and where the text could not wait (it stands in a pipeline after
//! other messages), what others have notified has come [`RECEIVED_WITHIN`] after they had the connection.
//!
//! # Invariant
//! No client is named that may not be the sender: a notification that may be another's keeps the
//! server's process id.
//!
//! # Limits
//! A server, or another pool's listening connection, that is late by more than [`RECEIVED_WITHIN`]. What
//! functions in C notify, and dynamic SQL that comes from elsewhere than the text, has the server's process id.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::hash::IdMap;
use crate::ids::PoolId;
use crate::lending::lock::unpoisoned;
use crate::time::Time;

/// The longest time between the end of a client's transaction and the moment in which what it has notified
/// is heard.
pub(crate) const RECEIVED_WITHIN: Duration = Duration::from_secs(1);

/// From this many entries on, useless ones are removed.
const SWEPT_AT: usize = 256;

/// The client that has notified by a server connection.
#[derive(Clone, Copy, Debug)]
struct OfProcess {
    /// The client that has it, or had it last.
    client: u32,
    /// When another client has given the server connection back before.
    others_left: Time,
    /// The listening connection of this pool had received all notifications of others by then.
    heard_by: Option<PoolId>,
    /// When it gave the server connection back.
    left: Option<Time>,
}

impl OfProcess {
    /// Whether notifications of it may still arrive.
    fn is_of_use(&self, now: Time) -> bool {
        self.left.is_none_or(|left| now.since(left) < RECEIVED_WITHIN)
    }
}

/// The clients that have notified by the processes of a database's server.
#[derive(Debug, Default)]
pub struct Notifiers(Mutex<IdMap<u32, OfProcess>>);

impl Notifiers {
    fn known(&self) -> MutexGuard<'_, IdMap<u32, OfProcess>> {
        unpoisoned(self.0.lock())
    }

    /// A client sends something that may notify. `process`: that of its server connection.
    /// `heard_by`: the listening connection of this pool has received all that others have notified
    /// by it. `others_left`: when they had it last.
    pub fn notifies(
        &self,
        process: u32,
        client: u32,
        heard_by: Option<PoolId>,
        others_left: Time,
        now: Time,
    ) {
        let mut known = self.known();
        if known.len() >= SWEPT_AT {
            known.retain(|_, of| of.is_of_use(now));
        }
        match known.get_mut(&process) {
            Some(of) if of.client == client => of.left = None,
            _ => {
                known.insert(process, OfProcess { client, others_left, heard_by, left: None });
            }
        }
    }

    /// The client gives that server connection back.
    pub fn leaves(&self, process: u32, now: Time) {
        if let Some(of) = self.known().get_mut(&process) {
            of.left = Some(now);
        }
    }

    /// A client gets that server connection. True if it is the one that has notified by it.
    pub fn lent(&self, process: u32, client: u32) -> bool {
        let mut known = self.known();
        let same = known.get(&process).is_some_and(|of| of.client == client);
        if !same {
            known.remove(&process);
        }
        same
    }

    /// That server connection has ended.
    pub fn ended(&self, process: u32) {
        self.known().remove(&process);
    }

    /// The client that has sent a notification that arrives now from this process, if it is known.
    /// `hears`: the pool whose listening connection receives it, unless it is a client's own.
    pub fn of(&self, process: u32, hears: Option<PoolId>, now: Time) -> Option<u32> {
        let of = *self.known().get(&process)?;
        let heard_before = of.heard_by.is_some() && of.heard_by == hears;
        let is_alone = heard_before || now.since(of.others_left) >= RECEIVED_WITHIN;
        (is_alone && of.is_of_use(now)).then_some(of.client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: Option<PoolId> = Some(PoolId(1));

    fn at(ms: u64) -> Time {
        Time::from_micros(ms * 1000)
    }

    #[test]
    fn a_notification_belongs_to_the_client_that_has_notified() {
        let notifiers = Notifiers::default();
        assert_eq!(notifiers.of(1, POOL, at(0)), None);
        notifiers.notifies(1, 7, POOL, at(0), at(0));
        assert_eq!(notifiers.of(1, POOL, at(1)), Some(7));
        assert_eq!(notifiers.of(1, POOL, at(5_000)), Some(7), "its transaction goes on");
        notifiers.leaves(1, at(5_000));
        assert_eq!(notifiers.of(1, POOL, at(5_999)), Some(7));
        assert!(notifiers.lent(1, 7));
        assert_eq!(notifiers.of(1, POOL, at(5_999)), Some(7), "no other client has had it");
        assert_eq!(notifiers.of(1, POOL, at(6_000)), None, "it notified long ago");
        notifiers.notifies(1, 7, None, at(7_000), at(7_000));
        assert_eq!(notifiers.of(1, POOL, at(7_000)), Some(7), "no other client has had it");
        assert_eq!(notifiers.of(2, POOL, at(5_000)), None);
        notifiers.ended(1);
        assert_eq!(notifiers.of(1, POOL, at(7_001)), None);
    }

    #[test]
    fn what_others_notified_before_has_no_sender() {
        let notifiers = Notifiers::default();
        notifiers.notifies(1, 7, None, at(5_000), at(5_000));
        assert_eq!(notifiers.of(1, POOL, at(5_999)), None, "it may be a trigger's of another");
        assert_eq!(notifiers.of(1, POOL, at(6_000)), Some(7), "that has come long ago");
        notifiers.notifies(2, 7, POOL, at(5_000), at(5_000));
        for hears in [Some(PoolId(2)), None] {
            assert_eq!(
                notifiers.of(2, hears, at(5_999)),
                None,
                "that one may not have received all"
            );
            assert_eq!(notifiers.of(2, hears, at(6_000)), Some(7));
        }
    }

    #[test]
    fn what_comes_while_another_has_the_connection_has_no_sender() {
        let notifiers = Notifiers::default();
        notifiers.notifies(1, 7, POOL, at(0), at(0));
        notifiers.leaves(1, at(1));
        assert!(!notifiers.lent(1, 8));
        assert_eq!(
            notifiers.of(1, POOL, at(2)),
            None,
            "a trigger's of the other, or the first one's"
        );
        notifiers.notifies(1, 8, POOL, at(3), at(3));
        assert_eq!(notifiers.of(1, POOL, at(4)), Some(8), "all of the first one's have arrived");
        notifiers.leaves(1, at(1_500));
        assert!(!notifiers.lent(1, 7));
        assert_eq!(
            notifiers.of(1, POOL, at(5_000)),
            None,
            "the first one does not notify by it now"
        );
    }

    #[test]
    fn those_that_are_of_no_use_do_not_stay() {
        let notifiers = Notifiers::default();
        for process in 0..2_000 {
            let now = at(u64::from(process) * 10);
            notifiers.notifies(process, 7, POOL, now, now);
            notifiers.leaves(process, now);
        }
        assert!(notifiers.known().len() <= SWEPT_AT);
    }
}
