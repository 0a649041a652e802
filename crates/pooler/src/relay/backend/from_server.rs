//! The state of the stream of messages from a server.

use std::cell::Cell;

use crate::relay::socket::Unread;
use crate::wire::TransactionStatus;

/// The state of the stream of messages from the server.
pub(crate) struct FromServer {
    status: TransactionStatus,
    /// The start of a message that is not complete yet.
    kept: Vec<u8>,
    /// Bytes still to come of a message that has been passed on in part.
    rest: usize,
    pub(crate) unread: Unread,
    gone: bool,
    new_reports: u32,
    awaits_room: Cell<bool>,
}

impl FromServer {
    pub(super) fn new() -> Self {
        Self {
            status: TransactionStatus::Idle,
            kept: Vec::new(),
            rest: 0,
            unread: Unread::default(),
            gone: false,
            new_reports: 0,
            awaits_room: Cell::new(false),
        }
    }

    /// The status in the last ReadyForQuery.
    #[inline]
    pub(crate) fn status(&self) -> TransactionStatus {
        self.status
    }

    /// The server is ready for a query.
    #[inline]
    pub(crate) fn is_ready(&mut self, status: TransactionStatus) {
        (self.status, self.new_reports) = (status, 0);
    }

    /// The bytes of a message that is not complete yet.
    #[inline]
    pub(crate) fn kept(&self) -> &[u8] {
        &self.kept
    }

    /// Keeps these bytes, and no others.
    #[inline]
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        self.kept.clear();
        self.kept.extend_from_slice(bytes);
    }

    #[inline]
    pub(crate) fn forget_kept(&mut self) {
        self.kept.clear();
    }

    pub(crate) fn take_kept(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.kept)
    }

    /// Whether a message has been passed on in part.
    #[inline]
    pub(crate) fn is_in_mid_message(&self) -> bool {
        self.rest > 0
    }

    /// A message is passed on of which this many bytes are still to come.
    #[inline]
    pub(crate) fn leave_rest(&mut self, bytes: usize) {
        self.rest = bytes;
    }

    /// Of `come` bytes that have come, returns how many belong to the message that has been passed
    /// on in part.
    #[inline]
    pub(crate) fn take_of_rest(&mut self, come: usize) -> usize {
        let part = self.rest.min(come);
        self.rest -= part;
        part
    }

    /// The server has sent its last message (FATAL, PANIC), or the connection has ended.
    pub(crate) fn goes(&mut self) {
        self.gone = true;
    }

    #[inline]
    pub(crate) fn has_gone(&self) -> bool {
        self.gone
    }

    /// The server reports a setting that it had not reported before. Returns how many of these
    /// there are since it was last ready.
    pub(crate) fn reports_one_more(&mut self) -> u32 {
        self.new_reports += 1;
        self.new_reports
    }

    /// Asks for an event when the socket takes bytes again. Returns whether that is new.
    pub(crate) fn await_room(&self) -> bool {
        !self.awaits_room.replace(true)
    }

    /// Another loop watches the socket, and has not been asked for that event.
    pub(crate) fn stop_awaiting_room(&self) {
        self.awaits_room.set(false);
    }
}
