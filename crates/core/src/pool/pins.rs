//! How many backends of a pool their clients keep between transactions.
//!
//! # Why counted here
//! The clients of a pool are on all loops, and the bound is the pool's. It is touched when a client
//! begins to keep its backend and when it ends that, not for each transaction.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::time::Time;

/// The count of a pool: since when each of them is kept, in no order.
#[derive(Clone, Debug, Default)]
pub struct PinCount(Arc<Mutex<Vec<Time>>>);

/// One of those that are counted, until it is dropped.
#[derive(Debug)]
pub struct Pinned {
    count: PinCount,
    /// Since when its client keeps it.
    pub since: Time,
}

impl PinCount {
    fn all(&self) -> MutexGuard<'_, Vec<Time>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub fn get(&self) -> u32 {
        u32::try_from(self.all().len()).unwrap_or(u32::MAX)
    }

    /// Since when the one is kept that has been for longest.
    pub fn oldest(&self) -> Option<Time> {
        self.all().iter().min().copied()
    }

    /// One more, unless there are `max`.
    pub fn pin(&self, max: u32, since: Time) -> Option<Pinned> {
        let mut all = self.all();
        if all.len() >= max as usize {
            return None;
        }
        all.push(since);
        Some(Pinned { count: self.clone(), since })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut all = self.count.all();
        if let Some(at) = all.iter().position(|since| *since == self.since) {
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
}
