//! Waiters with another priority than most, which do not stand in the lines.
//!
//! # Model
//! ```text
//!   high ─► served before all in the lines, but for those that came earlier and have waited PASSED_MAX
//!   low  ─► joins its line, where it would stand by its arrival, once it has waited PASSED_MAX, or where
//!           none of the lines may have the backend
//! ```
//! So a priority moves a client by at most [`PASSED_MAX`] in the order of arrival.
//!
//! # Invariants
//! * none is passed by a later one of a higher priority once it has waited [`PASSED_MAX`]
//! * a backend does not stay idle, nor is it closed, while one waits here that may have it
//! * who joins a line has been overtaken no more often than the next: what passed it before does not count

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::ClientId;
use crate::time::Time;

/// How long those of higher priority may pass a waiter.
pub const PASSED_MAX: Duration = Duration::from_secs(5);

/// A client's place among those that wait for a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Priority {
    /// After the others.
    Low,
    /// In the order of arrival.
    #[default]
    Usual,
    /// Before the others.
    High,
}

/// Since when one waits, and who.
type Key = (Time, ClientId);

/// The waiters `W` that do not stand in the lines.
#[derive(Debug)]
pub(super) struct Aside<W> {
    low: BTreeMap<Key, W>,
    high: BTreeMap<Key, W>,
}

impl<W> Default for Aside<W> {
    fn default() -> Self {
        Self { low: BTreeMap::new(), high: BTreeMap::new() }
    }
}

impl<W> Aside<W> {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.low.len() + self.high.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.low.is_empty() && self.high.is_empty()
    }

    /// The first that came of each priority.
    pub(super) fn firsts(&self) -> impl Iterator<Item = &W> {
        [&self.low, &self.high].into_iter().filter_map(|all| Some(all.first_key_value()?.1))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &W> {
        self.low.values().chain(self.high.values())
    }

    /// Takes a waiter in, or gives it back: it stands in a line.
    pub(super) fn push(&mut self, priority: Priority, key: Key, waiter: W) -> Option<W> {
        match priority {
            Priority::Low => self.low.insert(key, waiter),
            Priority::High => self.high.insert(key, waiter),
            Priority::Usual => return Some(waiter),
        };
        None
    }

    /// Whether this one was here. It is no more.
    pub(super) fn forget(&mut self, key: Key) -> bool {
        self.low.remove(&key).or_else(|| self.high.remove(&key)).is_some()
    }

    /// The next of high priority that fits, if it goes before those in the lines.
    pub(super) fn take_high(
        &mut self,
        fits: impl Fn(&W) -> bool,
        goes: impl FnOnce(&W) -> bool,
    ) -> Option<W> {
        let (key, next) = self.high.iter().find(|(_, waiter)| fits(waiter))?;
        let key = goes(next).then_some(*key)?;
        self.high.remove(&key)
    }

    /// The next of low priority that joins its line by now; `any`: however short it has waited.
    pub(super) fn take_low(&mut self, any: bool, now: Time) -> Option<W> {
        let first = self.low.first_entry()?;
        let joins = any || first.key().0.after(PASSED_MAX) <= now;
        joins.then(|| first.remove())
    }
}
