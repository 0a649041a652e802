//! Counts the backends of a pool that clients keep between transactions.
//!
//! # Why counted here
//! The clients of a pool are on all loops, and the bound is the pool's. It is touched when a client
//! begins to keep its backend and when it ends that, not for each transaction.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::time::Time;

/// The count of a pool: those that are kept, in no order.
#[derive(Clone, Debug, Default)]
pub struct PinCount(Arc<Mutex<Vec<Kept>>>);

/// One that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kept {
    since: Time,
    /// The server is asked whether it still is.
    in_question: bool,
}

/// One of those that are counted, until it is dropped.
#[derive(Debug)]
pub struct Pinned {
    count: PinCount,
    /// Since when its client keeps it.
    pub since: Time,
    in_question: bool,
}

impl PinCount {
    fn all(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub fn get(&self) -> u32 {
        u32::try_from(self.all().len()).unwrap_or(u32::MAX)
    }

    /// Since when the oldest one is kept.
    pub fn oldest(&self) -> Option<Time> {
        self.all().iter().map(|kept| kept.since).min()
    }

    /// Whether the server is asked about any: the client has its answer, and may have ended what it is
    /// kept for.
    pub fn has_in_question(&self) -> bool {
        self.all().iter().any(|kept| kept.in_question)
    }

    /// One more, unless there are `max`.
    pub fn pin(&self, max: u32, since: Time) -> Option<Pinned> {
        let mut all = self.all();
        if all.len() >= max as usize {
            return None;
        }
        all.push(Kept { since, in_question: false });
        Some(Pinned { count: self.clone(), since, in_question: false })
    }
}

impl Pinned {
    /// The server is asked whether it is still kept, or has answered that it is.
    pub fn question(&mut self, in_question: bool) {
        let before = Kept { since: self.since, in_question: self.in_question };
        if let Some(kept) = self.count.all().iter_mut().find(|kept| **kept == before) {
            kept.in_question = in_question;
        }
        self.in_question = in_question;
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let own = Kept { since: self.since, in_question: self.in_question };
        let mut all = self.count.all();
        if let Some(at) = all.iter().position(|kept| *kept == own) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_bound_are_pinned_and_who_ends_makes_room() {
        let count = PinCount::default();
        let one = count.pin(2, Time::from_micros(7)).unwrap();
        let _other = count.pin(2, Time::from_micros(8)).unwrap();
        assert_eq!(count.oldest(), Some(Time::from_micros(7)));
        assert!(count.pin(2, Time::ZERO).is_none());
        assert_eq!(count.get(), 2, "who is refused is not counted");
        drop(one);
        assert_eq!(count.oldest(), Some(Time::from_micros(8)));
        assert!(count.pin(2, Time::ZERO).is_some());
        assert_eq!(count.get(), 1);
        assert!(PinCount::default().pin(0, Time::ZERO).is_none());
    }

    #[test]
    fn it_is_known_whether_one_is_in_question() {
        let count = PinCount::default();
        let mut one = count.pin(2, Time::from_micros(7)).unwrap();
        let other = count.pin(2, Time::from_micros(7)).unwrap();
        one.question(true);
        assert!(count.has_in_question());
        drop(other);
        assert!(count.has_in_question(), "it was the other that went");
        one.question(false);
        assert!(!count.has_in_question());
        one.question(true);
        drop(one);
        assert_eq!((count.get(), count.has_in_question()), (0, false));
    }
}
