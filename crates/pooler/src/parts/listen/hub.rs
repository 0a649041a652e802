//! What the listening connection of a pool has to do, and for whom.
//!
//! # States
//! ```text
//!   Closed ── a request comes ──────────► Opening ── opened ──► Idle ── work ──► Busy
//!     ▲                                       │                   ▲                │
//!     └──────────── failed, lost, closed ─────┴───────────────────┴── answered ────┘
//! ```
//! Work that comes while a query is under way goes with the next: however many clients end a
//! transaction at once, they cost one query.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::LoopId;
use crate::parts::listen::channel::Channel;
use crate::parts::listen::ticket::{Ask, Claimant};

/// Channels that one query changes; it stays far below what a server takes.
pub(crate) const CHANNELS_A_QUERY_MAX: usize = 1000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    Closed,
    Opening,
    Idle,
    Busy,
}

#[derive(Debug, Default)]
struct Wanted {
    by: BTreeSet<LoopId>,
    /// The server listens on it, or will do so when all sent queries are answered.
    applied: bool,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The connection is to be opened.
    Open,
    /// This is to be sent to the server; [`Hub::answered`] when it is ready again.
    Query(Vec<u8>),
}

/// What the listening connection of a pool has to do, and for whom.
#[derive(Debug)]
pub(crate) struct Hub {
    line: Line,
    channels: BTreeMap<Channel, Wanted>,
    /// Channels on which the server's state differs from the wanted one.
    differing: BTreeSet<Channel>,
    waiting: Vec<(LoopId, Claimant)>,
    flying: Vec<(LoopId, Claimant)>,
    /// The channel of markers, once the connection is open.
    marker: Option<Channel>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            line: Line::Closed,
            channels: BTreeMap::new(),
            differing: BTreeSet::new(),
            waiting: Vec::new(),
            flying: Vec::new(),
            marker: None,
        }
    }
}

impl Hub {
    /// A request from a loop.
    pub(crate) fn ask(&mut self, from: LoopId, ask: Ask) {
        for channel in ask.listen {
            let wanted = self.channels.entry(channel.clone()).or_default();
            wanted.by.insert(from);
            self.compare(channel);
        }
        for channel in ask.unlisten {
            if let Some(wanted) = self.channels.get_mut(&channel) {
                wanted.by.remove(&from);
                self.compare(channel);
            }
        }
        self.waiting.extend(ask.claimant.map(|claimant| (from, claimant)));
    }

    /// Records whether the server's state of a channel is the wanted one.
    fn compare(&mut self, channel: Channel) {
        let Some(wanted) = self.channels.get(&channel) else { return };
        let is_wanted = !wanted.by.is_empty();
        if is_wanted != wanted.applied {
            self.differing.insert(channel);
            return;
        }
        self.differing.remove(&channel);
        if !is_wanted {
            self.channels.remove(&channel);
        }
    }

    /// The next step, if any. It counts as begun.
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        match self.line {
            Line::Closed if self.is_needed() => {
                self.line = Line::Opening;
                Some(Step::Open)
            }
            Line::Idle if !self.differing.is_empty() || !self.waiting.is_empty() => {
                Some(Step::Query(self.query()))
            }
            _ => None,
        }
    }

    fn query(&mut self) -> Vec<u8> {
        let mut text = Vec::new();
        for _ in 0..CHANNELS_A_QUERY_MAX {
            let Some(channel) = self.differing.pop_first() else { break };
            let Some(wanted) = self.channels.get_mut(&channel) else { continue };
            wanted.applied = !wanted.by.is_empty();
            text.extend_from_slice(if wanted.applied { b"LISTEN " } else { b"UNLISTEN " });
            channel.write_quoted(&mut text);
            text.push(b';');
            if !wanted.applied {
                self.channels.remove(&channel);
            }
        }
        if self.differing.is_empty() {
            self.flying = std::mem::take(&mut self.waiting);
        }
        self.line = Line::Busy;
        text
    }

    /// The connection has been opened, and listens on this channel already.
    pub(crate) fn opened(&mut self, marker: Channel) {
        self.line = Line::Idle;
        self.marker = Some(marker);
    }

    /// The connection could not be opened. Returns those who waited for it.
    pub(crate) fn open_failed(&mut self) -> Vec<(LoopId, Claimant)> {
        self.line = Line::Closed;
        std::mem::take(&mut self.waiting)
    }

    /// The query under way has been answered. Returns those whose wait is over.
    pub(crate) fn answered(&mut self) -> Vec<(LoopId, Claimant)> {
        self.line = Line::Idle;
        std::mem::take(&mut self.flying)
    }

    /// The connection has been lost. With `again`, all requests stay; otherwise they are dropped.
    /// Returns those who waited for it.
    pub(crate) fn lost(&mut self, again: bool) -> Vec<(LoopId, Claimant)> {
        self.line = Line::Closed;
        self.marker = None;
        let mut claimants = std::mem::take(&mut self.flying);
        claimants.append(&mut self.waiting);
        if !again {
            self.channels.clear();
            self.differing.clear();
            return claimants;
        }
        self.channels.retain(|_, wanted| !wanted.by.is_empty());
        for wanted in self.channels.values_mut() {
            wanted.applied = false;
        }
        self.differing = self.channels.keys().cloned().collect();
        claimants
    }

    /// Whether any client needs the connection.
    pub(crate) fn is_needed(&self) -> bool {
        !self.channels.is_empty() || !self.waiting.is_empty() || !self.flying.is_empty()
    }

    /// Whether a query is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.line == Line::Busy
    }

    /// Whether the connection is open.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.line, Line::Idle | Line::Busy)
    }

    /// The loops that have clients on a channel.
    pub(crate) fn loops(&self, channel: &Channel) -> impl Iterator<Item = LoopId> {
        self.channels.get(channel).into_iter().flat_map(|wanted| wanted.by.iter().copied())
    }

    /// All loops that have clients on any.
    pub(crate) fn all_loops(&self) -> BTreeSet<LoopId> {
        self.channels.values().flat_map(|wanted| wanted.by.iter().copied()).collect()
    }

    /// Channels that are listened on for clients.
    pub(crate) fn channel_count(&self) -> usize {
        self.channels.len()
    }
}
