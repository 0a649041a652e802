//! Flows that are dead, unanswered or hold the whole up are ended; pairs that have lost theirs are
//! dialled again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hawser_time::Time;

use super::super::action::{Action, Flow, FlowId, Look, PairId, Reason, Role, State};
use super::crawl::PROGRESS;
use super::{Chooser, FLOWS_MAX, LostPair, Phase, RECOVERY, UNEASY, UNEASY_PAUSE, settle_pause};

/// Between two dials of a pair that is lost, at first and after [`LOST_LONG`].
const REDIAL: Duration = Duration::from_secs(1);
const REDIAL_SLOW: Duration = Duration::from_secs(10);
const LOST_LONG: Duration = Duration::from_secs(120);
/// The longest pause between two dials of a pair that has never had a flow.
const REDIAL_NEVER: Duration = Duration::from_secs(60);
/// So long nothing moves on any flow before all pairs are dialled that have none; 8 round trips at least.
const STALLS: Duration = Duration::from_millis(500);
/// So long the whole waits before flows are ended for it, and they wait; 8 round trips at least.
const GAP: Duration = Duration::from_millis(1_200);
/// So long nothing comes over a flow whose line carries others before it is given up.
const STARVED: Duration = Duration::from_secs(4);
impl Chooser {
    pub(super) fn end_what_is_dead(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        let now = look.now;
        let mut open = look.flows.iter().filter(|flow| flow.open).count();
        let mut closing = BTreeSet::new();
        let mut close = |flow: &Flow, reason: Reason, actions: &mut Vec<Action>| {
            if flow.open && open <= 1 {
                return false;
            }
            open -= usize::from(flow.open);
            closing.insert(flow.id);
            actions.push(Action::Close(flow.id, reason));
            true
        };
        let mut died = false;
        let pairs: BTreeSet<PairId> = look.flows.iter().map(|flow| flow.pair).collect();
        let cut: BTreeSet<PairId> =
            pairs.into_iter().filter(|pair| self.health.is_cut(*pair, look)).collect();
        for flow in look.flows {
            let in_cut = flow.open && cut.contains(&flow.pair);
            if in_cut || self.health.is_dead(flow, now) {
                died |= close(flow, Reason::Dead, actions);
            } else if self.role == Role::Dials && self.health.is_unanswered(flow, now) {
                close(flow, Reason::Unanswered, actions);
                let pair_works = look.flows.iter().any(|f| f.open && f.pair == flow.pair);
                if !pair_works && !self.lost.contains_key(&flow.pair) {
                    self.avoided.insert(flow.pair, now.after(super::UNANSWERED));
                }
            } else if self.is_doubtful(flow, look) {
                died |= close(flow, Reason::Dead, actions);
            }
        }
        if !died {
            for flow in self.hold_gap(look) {
                died |= close(flow, Reason::HoldsGap, actions);
            }
        }
        if died {
            self.recovers = now.after(RECOVERY);
        }
        if !died && let Some(flow) = self.crawl.look(look) {
            close(flow, Reason::Crawls, actions);
        }
        self.closing.extend(closing);
    }

    /// Until when nothing is searched, if so: a line has been cut, or that may be.
    pub(super) fn must_recover(&self, look: &Look<'_>) -> Option<Time> {
        let now = look.now;
        if now < self.recovers {
            return Some(self.recovers);
        }
        let mut silent: BTreeMap<PairId, Duration> = BTreeMap::new();
        for flow in self.active(look) {
            let here = self.health.silent_for(flow.id, now);
            let least = silent.entry(flow.pair).or_insert(here);
            *least = here.min(*least);
        }
        let uneasy = silent.into_values().any(|silent| UNEASY.contains(&silent));
        uneasy.then(|| now.after(UNEASY_PAUSE))
    }

    /// A flow has gone since a trial began: its measurement says nothing, and what is paused may be all
    /// that a pair of addresses has left.
    pub(super) fn abandon_trial(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        let (Phase::Trying(trial, _) | Phase::Weighing(trial, ..)) = &self.phase else { return };
        let here =
            |id: FlowId| look.flows.iter().any(|flow| flow.id == id) && !self.closing.contains(&id);
        if trial.before.flows().all(here) {
            return;
        }
        let left = trial.paused.iter().filter(|flow| here(**flow));
        actions.extend(left.map(|flow| Action::Resume(*flow)));
        self.half = None;
        self.phase = Phase::Dialling(look.now.after(settle_pause(look)));
    }

    /// At the end that receives: nothing comes over it, and it is to carry data.
    fn is_doubtful(&self, flow: &Flow, look: &Look<'_>) -> bool {
        let now = look.now;
        let paused = match &self.phase {
            Phase::Trying(trial, _) | Phase::Weighing(trial, ..) => trial.paused.contains(&flow.id),
            _ => false,
        };
        self.role == Role::Dials
            && self.state() != State::Watching
            && !paused
            && !self.rests(flow.id)
            && self.health.is_silent(flow, now)
            && (!self.pair_carries(flow, look) || self.health.silent_for(flow.id, now) >= STARVED)
    }

    /// Whether another flow of the same pair has carried data of late: the line is there.
    fn pair_carries(&self, flow: &Flow, look: &Look<'_>) -> bool {
        look.flows.iter().any(|other| {
            let lively = self.health.silent_for(other.id, look.now) < Duration::from_millis(500);
            other.id != flow.id && other.pair == flow.pair && other.open && lively
        })
    }

    /// The whole waits for a peer's acknowledgement: some flows have bytes under way that stay
    /// unacknowledged for long, while another has none and would carry more if the peer had room.
    /// Such a flow doubles its timeout at each retransmission (RFC 6298, section 5.5).
    fn hold_gap<'a>(&mut self, look: &Look<'a>) -> Vec<&'a Flow> {
        let now = look.now;
        let Some(unacked) = look.unacked else { return Vec::new() };
        let since = match self.stuck {
            // What comes piece by piece, after timeouts, is no progress.
            Some((first, since)) if unacked.from.wrapping_sub(first.from) < PROGRESS => since,
            _ => {
                self.stuck = Some((unacked, now));
                return Vec::new();
            }
        };
        let idle = look.flows.iter().any(|flow| flow.open && !flow.unacked);
        let gap = GAP.max(look.round_trip() * 8);
        if now.since(since) < gap || !idle {
            return Vec::new();
        }
        let waits =
            |flow: &&Flow| flow.open && flow.unacked && self.health.silent_for(flow.id, now) >= gap;
        look.flows.iter().filter(waits).collect()
    }

    /// Whether nothing has moved for a while that was moving, or that waits for the peer. What is silent
    /// because the program is has no need of a further line, and may be silent for days.
    fn stalls(&self, look: &Look<'_>) -> bool {
        let silent = self.health.all_silent_for(look.now);
        let waits = look.unacked.is_some() || look.flows.iter().any(|flow| flow.unacked);
        // The end that receives has nothing under way; a pause of the program is taken for one after two
        // seconds.
        let carried = !matches!(self.phase, Phase::Watching(_));
        (STALLS.max(look.round_trip() * 8)..LOST_LONG).contains(&silent) && (waits || carried)
    }

    /// Pairs of addresses that have no flow are dialled until they have one, whatever a search has come
    /// to: each second where there was one; where there never was, in pauses that double, but each
    /// second again while the whole stalls. A flow that rests is none: nothing is sent over it, so
    /// nothing says that its line is cut.
    pub(super) fn dial_what_is_lost(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        let now = look.now;
        let stalls = self.stalls(look);
        let watches = matches!(self.phase, Phase::Watching(_)) && !self.searched;
        if watches && self.lost.is_empty() && !stalls {
            return;
        }
        let open: BTreeSet<PairId> = look
            .flows
            .iter()
            .filter(|flow| flow.open && !self.rests(flow.id))
            .map(|flow| flow.pair)
            .collect();
        // A line that there was no flow over has limits that no search has seen.
        self.limits_changed |= open.iter().any(|pair| self.lost.get(pair).is_some_and(|l| !l.had));
        self.had.extend(&open);
        self.had.retain(|pair| look.pairs.contains(pair));
        self.lost.retain(|pair, _| look.pairs.contains(pair) && !open.contains(pair));
        let dialled: BTreeSet<PairId> = look
            .flows
            .iter()
            .filter(|flow| !flow.open && !self.closing.contains(&flow.id))
            .map(|flow| flow.pair)
            .collect();
        let mut room = FLOWS_MAX.saturating_sub(look.flows.len());
        for pair in look.pairs.iter().filter(|pair| !open.contains(pair)) {
            let had = self.had.contains(pair);
            for flow in look.flows.iter().filter(|flow| flow.pair == *pair) {
                if self.retired.remove(&flow.id) {
                    self.closing.insert(flow.id);
                    actions.push(Action::Close(flow.id, Reason::Dead));
                }
            }
            let lost = self.lost.entry(*pair).or_insert(LostPair {
                since: now,
                dialled: Time::ZERO,
                had,
                pause: REDIAL,
            });
            // The search dials it first.
            if !had && !stalls && (dialled.contains(pair) || lost.dialled == Time::ZERO) {
                lost.dialled = now;
                continue;
            }
            let is_long = now.since(lost.since) >= LOST_LONG;
            let pause = match had {
                true if is_long => REDIAL_SLOW,
                false if !stalls => lost.pause,
                true | false => REDIAL,
            };
            if room > 0 && (lost.dialled == Time::ZERO || now.since(lost.dialled) >= pause) {
                lost.dialled = now;
                lost.pause = if stalls { REDIAL } else { (lost.pause * 2).min(REDIAL_NEVER) };
                room -= 1;
                actions.push(Action::Dial(*pair));
            }
        }
    }

    /// Whether a pair of addresses has no flow that has had one of late. One that stays away is no reason to
    /// search nothing among those that are left.
    pub(super) fn has_lost(&self, now: Time) -> bool {
        self.lost.values().any(|lost| lost.had && now.since(lost.since) < LOST_LONG)
    }
}
