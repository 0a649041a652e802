//! Messages between loops, delayed at will.
//!
//! # Invariants
//! What one loop sends another arrives once, in the order sent; between different pairs of loops
//! there is no order.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::Owner;
use crate::rng::Rng;

/// The queues between all pairs of loops.
#[derive(Debug)]
pub struct Mailbox<M> {
    queues: BTreeMap<(Owner, Owner), VecDeque<(Duration, M)>>,
    delay_max: Duration,
    rng: Rng,
}

impl<M> Mailbox<M> {
    /// Each message is delayed by up to `delay_max`.
    #[must_use]
    pub fn new(seed: u64, delay_max: Duration) -> Self {
        Self { queues: BTreeMap::new(), delay_max, rng: Rng::new(seed) }
    }

    /// Sends a message.
    pub fn send(&mut self, now: Duration, from: Owner, to: Owner, message: M) {
        let nanos = u64::try_from(self.delay_max.as_nanos()).unwrap_or(u64::MAX);
        let due = now + Duration::from_nanos(self.rng.below(nanos));
        let queue = self.queues.entry((from, to)).or_default();
        let due = queue.back().map_or(due, |(last, _)| due.max(*last));
        queue.push_back((due, message));
    }

    /// When the next message arrives anywhere.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Duration> {
        self.queues.values().filter_map(|queue| queue.front().map(|(due, _)| *due)).min()
    }

    /// What is on its way: sender, receiver and message.
    pub fn iter(&self) -> impl Iterator<Item = (Owner, Owner, &M)> {
        self.queues
            .iter()
            .flat_map(|((from, to), queue)| queue.iter().map(|(_, message)| (*from, *to, message)))
    }

    /// What has arrived for a loop, each message with its sender; senders in random order.
    pub fn take(&mut self, now: Duration, to: Owner) -> Vec<(Owner, M)> {
        let mut senders: Vec<Owner> = self
            .queues
            .keys()
            .filter(|(_, receiver)| *receiver == to)
            .map(|(from, _)| *from)
            .collect();
        for last in (1..senders.len()).rev() {
            let other = self.rng.index(last + 1);
            senders.swap(last, other);
        }
        let mut taken = Vec::new();
        for from in senders {
            let Some(queue) = self.queues.get_mut(&(from, to)) else { continue };
            while queue.front().is_some_and(|(due, _)| *due <= now) {
                taken.extend(queue.pop_front().map(|(_, message)| (from, message)));
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_keeps_its_order_whatever_the_delays() {
        let mut mailbox = Mailbox::new(7, Duration::from_millis(5));
        for number in 0..100 {
            mailbox.send(Duration::from_micros(number), Owner(0), Owner(2), number);
            mailbox.send(Duration::from_micros(number), Owner(1), Owner(2), 1000 + number);
        }
        let mut received = Vec::new();
        while let Some(due) = mailbox.next_arrival() {
            received.extend(mailbox.take(due, Owner(2)));
        }
        for sender in 0..2 {
            let from: Vec<u64> = received
                .iter()
                .filter(|(from, _)| *from == Owner(sender))
                .map(|(_, n)| *n)
                .collect();
            assert_eq!(from.len(), 100);
            assert!(from.is_sorted(), "from {sender}: {from:?}");
        }
    }
}
