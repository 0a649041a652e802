//! Connections that have more to say than one event may take.
//!
//! # Model
//! Readiness comes edge-triggered: of bytes that are left unread, nothing is heard again. Whoever is
//! not read to the end, because [`limits::READS_AN_EVENT_MAX`] reads have been made on account of
//! one event, is noted here, and seen to in the next turn as if the event had come once more. So a
//! client that sends without a pause, or a server, costs the others that many reads a turn.
//!
//! # Invariants
//! * a connection is noted at most once
//! * while any is noted the host does not sleep: [`super::Engine::next_tick`] is nothing
//! * one that is not read because its other side takes nothing is not noted here: an event comes
//!   when that takes something

mod steps;

use std::collections::VecDeque;

use super::limits;
use super::socket::{Readiness, Token};

/// Connections to be seen to again.
#[derive(Default, Debug)]
pub(super) struct Again {
    /// In the order in which they came.
    noted: VecDeque<(Token, Readiness)>,
    /// What is seen to now, in case of a panic.
    at: Option<Token>,
    /// Reads that the event at hand may still lead to.
    reads_left: u32,
}

impl Again {
    /// An event, or a message, is seen to from now on.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.reads_left = limits::READS_AN_EVENT_MAX;
    }

    /// Whether one more read may be made; if not, the connection is noted.
    #[inline]
    pub(super) fn may_read(&mut self, token: Token) -> bool {
        if self.reads_left == 0 {
            self.note(token);
            return false;
        }
        self.reads_left -= 1;
        true
    }

    fn note(&mut self, token: Token) {
        if !self.noted.iter().any(|(noted, _)| *noted == token) {
            self.noted.push_back((token, Readiness { readable: true, ..Readiness::default() }));
        }
    }

    /// The connection has been closed by its other side. Whether it is noted, and what stands ahead
    /// of that end still to be read.
    pub(super) fn hangs_up(&mut self, token: Token) -> bool {
        let noted = self.noted.iter_mut().find(|(noted, _)| *noted == token);
        noted.map(|(_, ready)| ready.hangup = true).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.noted.is_empty()
    }

    /// What was being seen to when a panic came.
    pub(super) fn take_at(&mut self) -> Option<Token> {
        self.at.take()
    }
}
