//! The choice of paths: data for [`hawser_multipath::paths::chooser`], and its requests.
//!
//! # Model
//! ```text
//!   near, auto    one path for each pair of addresses (upkeep); the chooser dials more for bulk streams, has
//!                 paths rest to see whether the whole needs them, ends those that share another's limit
//!   near, fixed   the chooser ends what is dead over what carries; upkeep dials again
//!   far           the same, and what the near end has rest rests here too ([`Frame::Rest`])
//! ```
//! Beside these, one path may carry small messages alone: the chooser does not know of it.
//!
//! A path is taken for dead sooner here than by its pings ([`crate::proto::path::DEAD_MIN`]): where others
//! carry, so that a stream does not wait for what a line that was cut had under way.
//!
//! # Invariants
//! * the last path is never ended here, because the chooser never ends the last open flow

use std::collections::BTreeMap;
use std::time::Duration;

use hawser_multipath::paths::action::{Action, FlowId, Look, PairId};
use hawser_time::Time;

use super::{Frame, Notice, PATHS_MAX, PathEnd, PathId, Paths, Request, Role, Session};
use crate::proto::path::Origin;

/// Between two looks while something is carried.
const LOOK_EACH: Duration = Duration::from_millis(100);
/// ... and while nothing is.
const LOOK_EACH_IDLE: Duration = Duration::from_secs(1);
/// From this round trip on small messages beside bulk have a path of their own, in microseconds.
const LONG_US: u64 = 50_000;
/// This many bytes since the last look make the next one come soon.
const MOVED_BYTES: u64 = 64 << 10;

impl Session {
    /// Bytes have come or are sent.
    pub(super) fn moved(&mut self, bytes: usize, now: Time) {
        self.moved += bytes as u64;
        if self.moved >= MOVED_BYTES {
            self.look_at = self.look_at.min(now.after(LOOK_EACH));
        }
    }

    /// Whether the recent rate is high.
    pub(super) fn is_bulky(&self) -> bool {
        self.bulky || self.moved >= MOVED_BYTES
    }

    /// Lets the chooser look, and carries out its requests.
    pub(super) fn choose(&mut self, now: Time) {
        if now < self.look_at {
            return;
        }
        self.bulky = self.moved >= MOVED_BYTES;
        self.beside = self.streams.values().any(|stream| stream.is_small(now));
        self.compare_round_trips();
        self.look_at = now.after(if self.bulky { LOOK_EACH } else { LOOK_EACH_IDLE });
        self.moved = 0;
        self.dial_for_small(now);
        let chosen = self.paths.values().filter(|path| path.origin != Origin::Small);
        let flows: Vec<_> = chosen.map(super::Path::flow).collect();
        let pairs: Vec<PairId> = match &self.role {
            Role::Near { .. } => (0..self.config.pairs).map(PairId).collect(),
            Role::Far { .. } => Vec::new(),
        };
        let look = Look { now, flows: &flows, pairs: &pairs, unacked: None };
        let actions = self.chooser.look(&look);
        for event in self.chooser.take_events() {
            self.requests.push_back(Request::Notice(Notice::Search(event)));
        }
        for action in actions {
            match action {
                Action::Dial(pair) => self.dial_further(pair, now),
                Action::Pause(flow) => self.rest(flow, true),
                Action::Resume(flow) => self.rest(flow, false),
                Action::Close(FlowId(path), reason) => {
                    self.lost(PathId(path), PathEnd::Chosen(reason), now);
                }
            }
        }
    }

    /// Gives each path the least round trip between its addresses.
    fn compare_round_trips(&mut self) {
        let mut least: BTreeMap<PairId, u64> = BTreeMap::new();
        for path in self.paths.values().filter(|path| path.sample.rtt_min_us > 0) {
            let of_pair = least.entry(path.pair).or_insert(u64::MAX);
            *of_pair = path.rtt_least_us().min(*of_pair);
        }
        for path in self.paths.values_mut() {
            path.least_of_pair_us = least.get(&path.pair).copied();
        }
    }

    /// Dials one more path of a pair; where none of it is up, one dial at a time is enough.
    fn dial_further(&mut self, pair: PairId, now: Time) {
        let mut there = self.paths.values().filter(|path| path.pair == pair).peekable();
        if there.peek().is_some() && !there.any(super::Path::is_up) {
            return;
        }
        if self.paths.len() < PATHS_MAX {
            self.dial_one(pair, Origin::Search, now);
        }
    }

    /// Has a path for small messages beside bulk that goes by one long path: there a lost segment holds up all that
    /// follows it for a round trip, and at 90 Mbit/s and one loss in 3,000 that is every second message.
    fn dial_for_small(&mut self, now: Time) {
        let Role::Near { pairs, .. } = &self.role else { return };
        let mut carrying = self.paths.values().filter(|path| path.is_up() && !path.rests);
        let (Some(path), None) = (carrying.next(), carrying.next()) else { return };
        let is_there = self.paths.values().any(|path| path.origin == Origin::Small);
        let may_dial = pairs.get(path.pair.0 as usize).is_some_and(|dials| dials.dial_at <= now);
        if self.config.paths == Paths::Auto
            && self.beside
            && self.bulky
            && path.rtt_least_us() >= LONG_US
            && may_dial
            && !is_there
        {
            self.dial_one(path.pair, Origin::Small, now);
        }
    }

    /// Makes a path rest, or carry again, at both ends.
    pub(super) fn rest(&mut self, FlowId(path): FlowId, rests: bool) {
        let Some(path) = self.paths.get_mut(&PathId(path)).filter(|path| path.is_up()) else {
            return;
        };
        path.rests = rests;
        Frame::Rest { rests }.write(&mut path.own);
        self.wake_all();
    }
}
