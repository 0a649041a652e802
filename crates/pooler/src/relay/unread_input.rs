//! Connections with more to read than one event may take.
//!
//! # Model
//! Edge-triggered epoll does not report leftover bytes again. A connection that has not been read
//! to the end, because one event has used up its [`limits::READS_AN_EVENT_MAX`] reads, is noted
//! here, and the next turn handles it as if the event had come again. A client or server that sends
//! without a pause thus costs the others at most that many reads a turn.
//!
//! # Invariants
//! * a connection is noted at most once
//! * while any is noted the host does not sleep: [`crate::relay::Engine::next_tick`] is nothing
//! * a connection that is not read because its peer takes no bytes is not noted here: an event
//!   comes when the peer takes some

mod steps;

use std::collections::VecDeque;

use crate::relay::limits;
use crate::relay::socket::{Readiness, Token};
use crate::wire::frontend;

/// Connections to read again in the next turn.
#[derive(Default, Debug)]
pub(crate) struct Again {
    /// In the order in which they were noted.
    noted: VecDeque<(Token, Readiness)>,
    /// The connection being handled now, in case of a panic.
    at: Option<Token>,
    /// Reads that the current event may still cause.
    reads_left: u32,
    /// Work on messages that has not counted as a read yet.
    work: usize,
}

impl Again {
    /// The handling of an event or a message begins.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.reads_left = limits::READS_AN_EVENT_MAX;
        self.work = 0;
    }

    /// A client's message takes the full lane: one read may bring thousands of small ones, or texts that take
    /// longer to look at than to read.
    #[inline]
    pub(crate) fn handle_message(&mut self, kind: u8, bytes: usize) {
        let is_text = matches!(kind, frontend::PARSE | frontend::QUERY);
        self.work += 1 + if is_text { bytes / limits::TEXT_BYTES_OF_WORK } else { 0 };
        let reads = self.work / limits::WORK_A_READ;
        self.work %= limits::WORK_A_READ;
        self.reads_left = self.reads_left.saturating_sub(u32::try_from(reads).unwrap_or(u32::MAX));
    }

    /// Whether one more read may be made; if not, the connection is noted.
    #[inline]
    pub(crate) fn may_read(&mut self, token: Token) -> bool {
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

    /// The peer has closed the connection. Returns whether it is noted: then bytes before that end
    /// are still to be read.
    pub(crate) fn hangs_up(&mut self, token: Token) -> bool {
        let noted = self.noted.iter_mut().find(|(noted, _)| *noted == token);
        noted.map(|(_, ready)| ready.hangup = true).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.noted.is_empty()
    }

    /// The connection that was being handled when a panic came.
    pub(crate) fn take_at(&mut self) -> Option<Token> {
        self.at.take()
    }
}
