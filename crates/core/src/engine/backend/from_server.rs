//! What has come of a server's messages, and what may come yet.

use std::cell::Cell;

use crate::wire::TransactionStatus;

/// What has come of the server's messages, and what may come yet.
pub(in crate::engine) struct FromServer {
    status: TransactionStatus,
    /// Start of a message that is not complete yet.
    kept: Vec<u8>,
    /// A message is half passed on: bytes of it still to come.
    rest: usize,
    unread: bool,
    hung_up: bool,
    gone: bool,
    new_reports: u32,
    tells_of_room: Cell<bool>,
}

impl FromServer {
    pub(super) fn new() -> Self {
        Self {
            status: TransactionStatus::Idle,
            kept: Vec::new(),
            rest: 0,
            unread: false,
            hung_up: false,
            gone: false,
            new_reports: 0,
            tells_of_room: Cell::new(false),
        }
    }

    /// What it said last with ReadyForQuery.
    #[inline]
    pub(in crate::engine) fn status(&self) -> TransactionStatus {
        self.status
    }

    /// It is ready for a query.
    #[inline]
    pub(in crate::engine) fn is_ready(&mut self, status: TransactionStatus) {
        (self.status, self.new_reports) = (status, 0);
    }

    /// Bytes that have come of a message that is not complete yet.
    #[inline]
    pub(in crate::engine) fn kept(&self) -> &[u8] {
        &self.kept
    }

    /// These bytes are kept, and none else.
    #[inline]
    pub(in crate::engine) fn keep(&mut self, bytes: &[u8]) {
        self.kept.clear();
        self.kept.extend_from_slice(bytes);
    }

    #[inline]
    pub(in crate::engine) fn forget_kept(&mut self) {
        self.kept.clear();
    }

    pub(in crate::engine) fn take_kept(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.kept)
    }

    /// Whether a message has been passed on in part.
    #[inline]
    pub(in crate::engine) fn is_in_mid_message(&self) -> bool {
        self.rest > 0
    }

    /// A message is passed on of which so many bytes are still to come.
    #[inline]
    pub(in crate::engine) fn leave_rest(&mut self, bytes: usize) {
        self.rest = bytes;
    }

    /// Of so many bytes that have come, so many belong to the message that has been passed on in part.
    #[inline]
    pub(in crate::engine) fn take_of_rest(&mut self, come: usize) -> usize {
        let part = self.rest.min(come);
        self.rest -= part;
        part
    }

    /// Whether there may be something that has not been read, for which no event will come.
    #[inline]
    pub(in crate::engine) fn is_unread(&self) -> bool {
        self.unread
    }

    /// Whether there may be something more to read.
    #[inline]
    pub(in crate::engine) fn leave_unread(&mut self, unread: bool) {
        self.unread = unread;
    }

    /// The end of its stream stands after what is still to be read, and no other event comes of it.
    pub(in crate::engine) fn hangs_up(&mut self) {
        self.hung_up = true;
    }

    #[inline]
    pub(in crate::engine) fn has_hung_up(&self) -> bool {
        self.hung_up
    }

    /// It has said goodbye (FATAL, PANIC), or its connection has ended.
    pub(in crate::engine) fn goes(&mut self) {
        self.gone = true;
    }

    #[inline]
    pub(in crate::engine) fn has_gone(&self) -> bool {
        self.gone
    }

    /// It reports a setting that it had not reported before. How many these are since it was last ready.
    pub(in crate::engine) fn reports_one_more(&mut self) -> u32 {
        self.new_reports += 1;
        self.new_reports
    }

    /// Its loop is to be told when its socket takes bytes again. Whether it was not before.
    pub(in crate::engine) fn tell_of_room(&self) -> bool {
        !self.tells_of_room.replace(true)
    }

    /// Another loop watches its socket, which is told nothing of the kind.
    pub(in crate::engine) fn tell_of_no_room(&self) {
        self.tells_of_room.set(false);
    }
}
