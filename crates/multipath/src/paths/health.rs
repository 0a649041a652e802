//! Which flows are dead or silent, from what they have carried.
//!
//! # Model
//! ```text
//!   sends     dead: bytes are under way, and none of them was acknowledged for max(1 s, 5 rtt)
//!             cut, a pair of addresses: so it is with one of its flows for max(0.4 s, 5 rtt), the kernel
//!             has sent again there and got no answer, and nothing has come over any of its flows
//!   receives  silent: nothing came for max(1.5 s, 5 rtt), and it is not paused
//! ```
//! both only while another flow carries data: where nothing moves at all, the peer, the program or
//! every path may be the reason, and whatever is closed then may be the one that comes back first.

use std::collections::BTreeMap;
use std::time::Duration;

use hawser_time::Time;

use super::action::{Flow, FlowId, Look, PairId};

/// So long a sender waits for an acknowledgement.
pub const DEAD_AFTER: Duration = Duration::from_secs(1);
/// So long on a line on which the kernel has retransmitted without an answer, and nothing else has
/// come.
pub const CUT_AFTER: Duration = Duration::from_millis(400);
/// So long nothing comes before a flow is doubted.
pub const SILENT_AFTER: Duration = Duration::from_millis(1500);
/// So long a handshake may take: its first segment is repeated after 1 s (RFC 6298, section 2.1).
pub const ANSWER_MAX: Duration = Duration::from_millis(1400);
/// Another flow carries data if it did within this time.
const LIVELY: Duration = Duration::from_millis(500);
/// At least so many round trips for each of these.
const ROUND_TRIPS: u32 = 5;

#[derive(Clone, Copy, Debug)]
struct Record {
    bytes: u64,
    began: Time,
    /// When it last carried anything.
    moved: Time,
    /// Since when bytes are under way and not acknowledged.
    waits: Option<Time>,
    seen: Time,
}

/// What is known of the flows of a connection.
#[derive(Clone, Debug, Default)]
pub struct Health(BTreeMap<FlowId, Record>);

impl Health {
    /// Takes a look in.
    pub fn look(&mut self, look: &Look<'_>) {
        let now = look.now;
        for flow in look.flows {
            let record = self.0.entry(flow.id).or_insert(Record {
                bytes: flow.bytes,
                began: now,
                moved: now,
                waits: None,
                seen: now,
            });
            record.seen = now;
            let moved = flow.bytes > record.bytes;
            if moved {
                record.bytes = flow.bytes;
                record.moved = now;
            }
            record.waits = match record.waits {
                _ if !flow.unacked => None,
                Some(since) if !moved => Some(since),
                _ => Some(now),
            };
        }
        self.0.retain(|_, record| record.seen == now);
    }

    /// Whether a flow other than `flow` carries data.
    #[must_use]
    pub fn others_carry(&self, flow: FlowId, now: Time) -> bool {
        let lively =
            |record: &Record| record.moved != record.began && now.since(record.moved) < LIVELY;
        self.0.iter().any(|(id, record)| *id != flow && lively(record))
    }

    /// Whether nothing that is sent over it gets through.
    #[must_use]
    pub fn is_dead(&self, flow: &Flow, now: Time) -> bool {
        let waits = self.0.get(&flow.id).and_then(|record| record.waits);
        let bound = DEAD_AFTER.max(flow.rtt * ROUND_TRIPS);
        flow.open
            && waits.is_some_and(|since| now.since(since) >= bound)
            && self.others_carry(flow.id, now)
    }

    /// Whether nothing gets through between the addresses of `pair`, while it does between others.
    #[must_use]
    pub fn is_cut(&self, pair: PairId, look: &Look<'_>) -> bool {
        let (own, others): (Vec<&Flow>, Vec<&Flow>) =
            look.flows.iter().filter(|flow| flow.open).partition(|flow| flow.pair == pair);
        let bound = own.iter().fold(CUT_AFTER, |bound, flow| bound.max(flow.rtt * ROUND_TRIPS));
        let waits = |flow: &&Flow| {
            let since = self.0.get(&flow.id).and_then(|record| record.waits);
            flow.timeouts > 0 && since.is_some_and(|since| look.now.since(since) >= bound)
        };
        own.iter().any(waits)
            && own.iter().all(|flow| self.silent_for(flow.id, look.now) >= bound)
            && others.iter().any(|flow| self.silent_for(flow.id, look.now) < LIVELY)
    }

    /// How long nothing has moved on any flow.
    #[must_use]
    pub fn all_silent_for(&self, now: Time) -> Duration {
        self.0.values().map(|record| now.since(record.moved)).min().unwrap_or_default()
    }

    /// Whether nothing has come over it for long.
    #[must_use]
    pub fn is_silent(&self, flow: &Flow, now: Time) -> bool {
        let bound = SILENT_AFTER.max(flow.rtt * ROUND_TRIPS);
        flow.open && self.silent_for(flow.id, now) >= bound && self.others_carry(flow.id, now)
    }

    /// How long nothing has moved on it.
    #[must_use]
    pub fn silent_for(&self, flow: FlowId, now: Time) -> Duration {
        self.0.get(&flow).map_or(Duration::ZERO, |record| now.since(record.moved))
    }

    /// Whether its handshake is not answered, though the kernel has repeated it.
    #[must_use]
    pub fn is_unanswered(&self, flow: &Flow, now: Time) -> bool {
        let began = self.0.get(&flow.id).map_or(now, |record| record.began);
        !flow.open
            && flow.timeouts > 0
            && now.since(began) >= ANSWER_MAX.max(flow.rtt * ROUND_TRIPS)
    }
}
