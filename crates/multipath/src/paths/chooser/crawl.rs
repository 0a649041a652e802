//! The whole waits for bytes that no flow has any more.
//!
//! # Model
//! A receiver discards what lies beyond the window that it announced last (net/mptcp/protocol.c,
//! mptcp_data_queue_ofo(), counted as MPTcpExtNoDSSInWindow), although the flow that brought it has
//! acknowledged it. That happens when one flow lags, the others fill the receiver's buffer with
//! what cannot be read before, and the sender sends to the window's very edge. The kernel then
//! sends the missing bytes again a piece of some KiB for each timeout, on a flow that has nothing
//! to do (__mptcp_retrans()), and nothing else is sent, because the window is full: 0.2 Mbit/s for
//! seconds. When a flow ends, it sends again all that waits, at once
//! (__mptcp_retransmit_pending_data()).
//! ```text
//!   crawls    for 0.5 s (8 round trips): at least 256 KiB wait, less than 64 KiB of them were
//!             acknowledged, at most one flow has bytes under way at any look, and the connection
//!             has sent again
//!   then      one flow is ended: one that carries nothing anyhow, else the one that has carried least
//!   lost      for 100 ms (4 round trips): less than 64 KiB of what waits was acknowledged, and every flow
//!             has delivered what it held when that began: none has what is missing; 512 KiB at least,
//!             and eight times what was acknowledged
//! ```
//! The second is seen while the window is not full yet, and everything goes on but what is read.
//! A peer whose program does not read may look like this as well. So the pause until the next such ending
//! doubles, from 1 s, and after four of them none follows until 4 MiB have been acknowledged.

use std::collections::BTreeMap;
use std::time::Duration;

use hawser_time::Time;

use super::super::action::{Flow, FlowId, Look, PairId, Unacked};

/// What the peer must acknowledge more for the whole not to wait.
pub(super) const PROGRESS: u64 = 64 << 10;
/// So long it must crawl; 8 round trips at least.
const CRAWLS: Duration = Duration::from_millis(500);
/// So long nothing may come of what waits, where no flow has it; 4 round trips at least.
const LOST: Duration = Duration::from_millis(100);
/// So much flows must carry meanwhile, and eight times what was acknowledged.
const CARRIED_MIN: u64 = 512 << 10;
/// So much must wait.
const WAITING_MIN: u64 = 256 << 10;
/// Until a flow is ended for the same reason again, at first.
const PAUSE: Duration = Duration::from_secs(1);
/// So many are ended until the whole goes on, which is when so much has been acknowledged.
const ENDED_MAX: u32 = 4;
const GOES_ON: u64 = 4 << 20;

/// A moment from which nothing was acknowledged.
#[derive(Clone, Debug)]
struct Waits {
    from: u64,
    since: Time,
    /// What all flows had carried.
    carried: u64,
    /// Flows that have not delivered yet what they held then, and at how many bytes they have.
    holding: BTreeMap<FlowId, u64>,
}

/// What is seen of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Crawl {
    began: Option<(Unacked, Time)>,
    waits: Option<Waits>,
    /// How many flows were ended for it, up to which byte, and until when no other is.
    ended: u32,
    ended_at: u64,
    not_before: Time,
}

impl Crawl {
    /// Takes a look in; which flow is to be ended, if one is.
    pub(super) fn look<'a>(&mut self, look: &Look<'a>) -> Option<&'a Flow> {
        let now = look.now;
        let open = || look.flows.iter().filter(|flow| flow.open);
        let Some(unacked) = look.unacked else {
            (self.began, self.waits) = (None, None);
            return None;
        };
        let is_lost = self.is_lost(look, unacked);
        if unacked.from.wrapping_sub(self.ended_at) >= GOES_ON {
            self.ended = 0;
        }
        let mut began = self.began.filter(|(first, _)| {
            unacked.from.wrapping_sub(first.from) < PROGRESS
                && unacked.bytes >= WAITING_MIN
                && open().filter(|flow| flow.unacked).count() <= 1
        });
        let (first, since) = *began.get_or_insert((unacked, now));
        self.began = began;
        let enough = CRAWLS.max(look.round_trip() * 8);
        let may = now >= self.not_before && self.ended < ENDED_MAX;
        let crawls = now.since(since) >= enough && unacked.resent != first.resent;
        if !(crawls || is_lost) || !may {
            return None;
        }
        (self.began, self.waits) = (None, None);
        self.not_before = now.after(PAUSE * 2u32.pow(self.ended));
        (self.ended, self.ended_at) = (self.ended + 1, unacked.from);
        let mut of: BTreeMap<PairId, usize> = BTreeMap::new();
        for flow in open() {
            *of.entry(flow.pair).or_default() += 1;
        }
        let alone = |flow: &Flow| of.get(&flow.pair).is_none_or(|flows| *flows <= 1);
        open().min_by_key(|flow| (alone(flow), !flow.backup, flow.bytes))
    }

    /// Whether no flow has the first byte that waits. Bytes are sent in order, so where a flow holds any
    /// at all, that byte was given to one.
    fn is_lost(&mut self, look: &Look<'_>, unacked: Unacked) -> bool {
        let now = look.now;
        let stays = |waits: &&mut Waits| unacked.from.wrapping_sub(waits.from) < PROGRESS;
        // What the peer sends says nothing of what it has taken.
        let carried = look.flows.iter().map(|flow| flow.acked).sum();
        let Some(waits) = self.waits.as_mut().filter(stays) else {
            let held = |flow: &Flow| (flow.id, flow.acked + flow.held);
            let holding: BTreeMap<FlowId, u64> =
                look.flows.iter().filter(|flow| flow.held > 0).map(held).collect();
            let waits = Waits { from: unacked.from, since: now, carried, holding };
            self.waits = Some(waits).filter(|waits| !waits.holding.is_empty());
            return false;
        };
        let acked: BTreeMap<FlowId, u64> =
            look.flows.iter().map(|flow| (flow.id, flow.acked)).collect();
        if waits.holding.keys().any(|flow| !acked.contains_key(flow)) {
            // At the end of a flow all is sent again.
            self.waits = None;
            return false;
        }
        waits.holding.retain(|flow, until| acked[flow] < *until);
        let came = unacked.from.wrapping_sub(waits.from);
        waits.holding.is_empty()
            && carried.saturating_sub(waits.carried) >= CARRIED_MIN.max(came * 8)
            && unacked.bytes >= WAITING_MIN
            && now.since(waits.since) >= LOST.max(look.round_trip() * 4)
    }
}
