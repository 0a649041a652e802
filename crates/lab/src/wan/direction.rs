//! What one direction of a path does to a packet.
//!
//! # Model
//! ```text
//! outage ──► rate and queue ──► limits per flow ──► loss ──► delay, jitter, reordering ──► out
//! ```
//! All of it is computed when the packet enters: it is dropped, or its arrival is known. A packet
//! that is lost by chance has taken its time at the rate first, as on a real wire.
//!
//! # Invariants
//! - packets leave in order but for those that `reorder` holds back
//! - chance is drawn by the packet's number: see [`super::loss`]
//!
//! # Why not     limits before the rate: packets of several classes would come to the rate's queue
//!               out of order of time, and times could no longer be computed at once
//! # Limits      with jitter, order is kept by waiting for the packet before: the mean delay of
//!               dense traffic is then above `delay`, by at most `jitter`

use std::time::Duration;

use super::flow::Flow;
use super::limit::{Classes, Limit};
use super::loss::{Loss, Lottery};
use super::outage::Outage;
use super::quantity::{Rate, Share};
use super::queue::{Bound, Queue};
use crate::rng::Rng;

/// Bytes around a packet on an Ethernet, without preamble and checksum: what Linux's tc counts.
pub const ETHERNET_OVERHEAD_BYTES: u64 = 14;

/// What a description says of one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Wire {
    /// `None` is as fast as the machine.
    pub rate: Option<Rate>,
    /// What may wait for the rate.
    pub queue: Bound,
    /// Limits per flow.
    pub limit: Option<Limit>,
    /// Loss by chance.
    pub loss: Loss,
    /// From the end of the queue to the other host.
    pub delay: Duration,
    /// The delay varies by up to this much, evenly, to both sides.
    pub jitter: Duration,
    /// Packets that others overtake.
    pub reorder: Option<Reorder>,
    /// When it is down.
    pub outages: Vec<Outage>,
    /// What the rate counts for each packet beside the packet itself.
    pub overhead_bytes: u64,
}

/// A share of packets is held back for a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reorder {
    /// Which share.
    pub share: Share,
    /// For how long.
    pub by: Duration,
}

impl Default for Wire {
    fn default() -> Self {
        Self {
            rate: None,
            queue: Bound::default(),
            limit: None,
            loss: Loss::default(),
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            reorder: None,
            outages: Vec::new(),
            overhead_bytes: ETHERNET_OVERHEAD_BYTES,
        }
    }
}

impl Wire {
    /// Whether it does nothing to packets, so that the kernel alone can carry them.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let Self { rate, queue: _, limit, loss, delay, jitter, reorder, outages, .. } = self;
        rate.is_none()
            && limit.is_none()
            && loss.is_none()
            && (delay.is_zero() && jitter.is_zero())
            && reorder.is_none()
            && outages.is_empty()
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It comes out at this time.
    Arrives(Duration),
    /// It does not.
    Dropped(Cause),
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The path was down.
    Outage,
    /// The queue was full.
    Queue,
    /// The flow's class was too busy.
    Limit,
    /// Chance.
    Loss,
}

impl Cause {
    /// All of them, in the order of [`Counts::dropped`].
    pub const ALL: [Self; 4] = [Self::Outage, Self::Queue, Self::Limit, Self::Loss];
}

/// What has gone through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that came.
    pub packets: u64,
    /// Their bytes, without overhead.
    pub bytes: u64,
    /// Packets that were dropped, by [`Cause`].
    pub dropped: [u64; Cause::ALL.len()],
}

/// One direction as it goes on.
#[derive(Clone, Debug)]
pub struct Direction {
    wire: Wire,
    seed: u64,
    queue: Option<Queue>,
    classes: Option<Classes>,
    lottery: Lottery,
    counts: Counts,
    last_arrival: Duration,
}

impl Direction {
    /// Before the first packet.
    #[must_use]
    pub fn new(wire: Wire, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self {
            queue: wire.rate.map(|rate| Queue::new(rate, wire.queue)),
            classes: wire.limit.as_ref().map(|limit| Classes::new(limit, rng.next_u64())),
            lottery: Lottery::new(wire.loss),
            seed: rng.next_u64(),
            counts: Counts::default(),
            last_arrival: Duration::ZERO,
            wire,
        }
    }

    /// What has gone through.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The class of the limits per flow that a flow falls into, where there are any.
    #[must_use]
    pub fn class_of(&self, flow: Flow) -> Option<usize> {
        self.classes.as_ref().map(|classes| classes.class_of(flow))
    }

    /// A packet of `bytes` enters. `now` must not go backwards.
    pub fn offer(&mut self, now: Duration, flow: Flow, bytes: u64) -> Fate {
        let number = self.counts.packets;
        self.counts.packets += 1;
        self.counts.bytes += bytes;
        let fate = self.fate(number, now, flow, bytes);
        if let Fate::Dropped(cause) = fate {
            self.counts.dropped[cause as usize] += 1;
        }
        fate
    }

    fn fate(&mut self, number: u64, now: Duration, flow: Flow, bytes: u64) -> Fate {
        let mut draws = Rng::new(self.seed ^ Rng::new(number).next_u64());
        // Drawn for every packet, so that other drops do not shift it.
        let lost = self.lottery.next([draws.next_u64(), draws.next_u64()]);
        if self.wire.outages.iter().any(|outage| outage.covers(now)) {
            return Fate::Dropped(Cause::Outage);
        }
        let size = bytes + self.wire.overhead_bytes;
        let mut leaves = now;
        if let Some(queue) = &mut self.queue {
            match queue.offer(leaves, size) {
                Some(at) => leaves = at,
                None => return Fate::Dropped(Cause::Queue),
            }
        }
        if let Some(classes) = &mut self.classes {
            match classes.offer(leaves, flow, size) {
                Some(at) => leaves = at,
                None => return Fate::Dropped(Cause::Limit),
            }
        }
        if lost {
            return Fate::Dropped(Cause::Loss);
        }
        Fate::Arrives(self.arrival(leaves, &mut draws))
    }

    fn arrival(&mut self, leaves: Duration, draws: &mut Rng) -> Duration {
        let mut at = leaves + self.wire.delay;
        if !self.wire.jitter.is_zero() {
            let jitter = u64::try_from(self.wire.jitter.as_nanos()).unwrap_or(u64::MAX / 4);
            let shift = draws.between(0, 2 * jitter);
            at = (at + Duration::from_nanos(shift)).saturating_sub(self.wire.jitter).max(leaves);
            // Classes of a limit have queues of their own: between them there is no order to keep.
            if self.classes.is_none() {
                at = at.max(self.last_arrival);
                self.last_arrival = at;
            }
        }
        match self.wire.reorder {
            Some(Reorder { share, by }) if share.includes(draws.next_u64()) => at + by,
            _ => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn flow() -> Flow {
        Flow::udp([10, 0, 0, 1].into(), 1, [10, 0, 0, 2].into(), 2)
    }

    fn share(share: f64) -> Share {
        Share::new(share).unwrap()
    }

    /// Fates of `count` packets, one each millisecond.
    fn fates(wire: Wire, seed: u64, count: u64) -> Vec<Fate> {
        let mut direction = Direction::new(wire, seed);
        (0..count).map(|n| direction.offer(ms(n), flow(), 1000)).collect()
    }

    fn lost(fates: &[Fate]) -> Vec<usize> {
        let is = |fate: &Fate| *fate == Fate::Dropped(Cause::Loss);
        fates.iter().enumerate().filter(|(_, fate)| is(fate)).map(|(n, _)| n).collect()
    }

    #[test]
    fn an_empty_wire_is_plain_and_changes_nothing() {
        assert!(Wire::default().is_plain());
        assert!(!Wire { delay: ms(1), ..Wire::default() }.is_plain());
        let fates = fates(Wire::default(), 1, 3);
        assert_eq!(fates, [0, 1, 2].map(|n| Fate::Arrives(ms(n))));
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let wire = Wire { loss: Loss::Independent(share(0.1)), ..Wire::default() };
        let first = lost(&fates(wire.clone(), 1, 1000));
        assert!((60..140).contains(&first.len()));
        assert_eq!(first, lost(&fates(wire.clone(), 1, 1000)));
        assert_ne!(first, lost(&fates(wire, 2, 1000)));
    }

    #[test]
    fn chance_is_not_shifted_by_other_drops() {
        let loss = Loss::Independent(share(0.1));
        let wire = Wire { loss, ..Wire::default() };
        let outages = vec![Outage { at: ms(100), lasts: ms(300), every: None }];
        let with_outage = lost(&fates(Wire { outages, ..wire.clone() }, 1, 1000));
        let mut without = lost(&fates(wire, 1, 1000));
        without.retain(|n| !(100..400).contains(n));
        assert_eq!(with_outage, without);
    }

    #[test]
    fn jitter_keeps_order_and_bounds() {
        let wire = Wire { delay: ms(50), jitter: ms(20), ..Wire::default() };
        let mut before = Duration::ZERO;
        let mut seen = (ms(1000), ms(0));
        for (n, fate) in fates(wire, 1, 1000).into_iter().enumerate() {
            let Fate::Arrives(at) = fate else { panic!("nothing is lost") };
            let delay = at - ms(n as u64);
            assert!(at >= before && delay >= ms(30) && delay <= ms(70), "{n}: {delay:?}");
            (before, seen) = (at, (seen.0.min(delay), seen.1.max(delay)));
        }
        assert!(seen.1 > ms(65), "{seen:?}");
    }

    #[test]
    fn held_back_packets_are_overtaken() {
        let reorder = Some(Reorder { share: share(0.1), by: ms(5) });
        let late = fates(Wire { delay: ms(10), reorder, ..Wire::default() }, 1, 1000)
            .into_iter()
            .enumerate()
            .filter(|(n, fate)| *fate == Fate::Arrives(ms(*n as u64 + 15)))
            .count();
        assert!((60..140).contains(&late), "{late}");
    }

    #[test]
    fn every_packet_is_counted_once() {
        let rate = Rate::from_bits_per_second(4_000_000); // half of what comes
        let wire = Wire {
            rate,
            queue: Bound::Packets(10),
            loss: Loss::Independent(share(0.1)),
            ..Wire::default()
        };
        let mut direction = Direction::new(wire, 1);
        let mut arrived = 0;
        for n in 0..10_000 {
            let fate = direction.offer(ms(n), flow(), 1000);
            arrived += u64::from(matches!(fate, Fate::Arrives(_)));
        }
        let counts = direction.counts();
        assert_eq!(counts.packets, arrived + counts.dropped.iter().sum::<u64>());
        assert_eq!(counts.bytes, 10_000_000);
        assert!(counts.dropped[Cause::Queue as usize] > 4_900, "{counts:?}");
    }
}
