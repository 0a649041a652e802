//! The Syncs of a queue with a COPY FROM STDIN.

use crate::relay::limits;
use crate::relay::request_queue::copy_in::CopyIn;
use crate::relay::request_queue::{Position, Request, RequestQueue};

impl RequestQueue {
    /// Whether the server has asked for copy data, and the client has not ended it.
    #[inline]
    pub(crate) fn is_copying_in(&self) -> bool {
        self.copy_in.wants_data()
    }

    /// CopyInResponse has come: the server wants data. It reads and ignores Syncs that have been
    /// sent already, so these will get no answer. Removes the messages that this copy reads from
    /// the queue; the rest belongs to later requests.
    pub(crate) fn copy_begins(&mut self) {
        self.copy_in = CopyIn::Reading { syncs_in_copy: 0, syncs_after_data: 0 };
        // A text may be answered in several parts.
        let after_query = 1 + self.owed().take_while(|next| next.is_within_query()).count();
        while let (Some(next), CopyIn::Reading { syncs_in_copy, syncs_after_data }) =
            (self.entries.apart().get(after_query).map(|entry| entry.owed), &mut self.copy_in)
        {
            match next {
                Request::Sync => {
                    self.syncs_outstanding -= 1;
                    *syncs_after_data += 1;
                }
                Request::CopyInput { ends } => self.copy_in.take_data(ends),
                Request::MalformedFlush => {}
                _ => {
                    // A copy that waits for data would end the connection at this.
                    let (syncs_in_copy, syncs) = (*syncs_in_copy, *syncs_after_data);
                    self.copy_in = CopyIn::TakenAsFailed { syncs_in_copy, followed: true };
                    for _ in 0..syncs {
                        self.syncs_outstanding += 1;
                        self.entries.apart().insert(after_query, Request::Sync.into());
                    }
                    break;
                }
            }
            self.entries.apart().remove(after_query);
        }
        // The last Sync may be among the removed ones.
        let last = self.owed().rev().find(|owed| !matches!(owed, Request::CopyInput { .. }));
        self.position = match last {
            Some(last) if last.ends_with_ready() => Position::Between,
            _ => Position::InPipeline,
        };
    }

    /// CopyData, or the end of it, is sent.
    pub(crate) fn push_copy_input(&mut self, ends: bool) {
        if let CopyIn::Reading { .. } = self.copy_in {
            // The server is known to read copy data: nothing needs to be found out later.
            self.copy_in.take_data(ends);
            return;
        }
        let marker = Request::CopyInput { ends };
        if self.back() != Some(marker) {
            self.entries.push(marker.into());
        }
    }

    /// A Sync is sent. Returns whether a copy reads and ignores it (trap 15), unless the server has
    /// refused the data: then it has no entry.
    #[inline]
    pub(crate) fn is_sync_of_copy(&mut self) -> bool {
        match &mut self.copy_in {
            CopyIn::Reading { syncs_after_data, .. } => {
                *syncs_after_data += 1;
                true
            }
            _ => false,
        }
    }

    /// Whether a copy reads the next message, as far as is known.
    pub(crate) fn is_read_by_copy(&self) -> bool {
        matches!(self.copy_in, CopyIn::Reading { .. })
    }

    /// A message is about to be sent that no copy reads: its client assumes that the server has
    /// refused the data of the current copy, or else the connection ends. Syncs that the copy has
    /// not read are answered.
    pub(crate) fn take_copy_as_failed(&mut self) {
        if let CopyIn::Reading { syncs_in_copy, syncs_after_data } = self.copy_in {
            self.copy_in = CopyIn::TakenAsFailed { syncs_in_copy, followed: false };
            self.push_syncs_after_data(syncs_after_data);
        }
    }

    /// That message has been sent.
    pub(crate) fn follow_copy(&mut self) {
        if let CopyIn::TakenAsFailed { followed, .. } = &mut self.copy_in {
            *followed = true;
        }
    }

    /// Its client leaves: a CopyFail ends its data. `false`: no copy wants any.
    pub(crate) fn end_copy(&mut self) -> bool {
        if !self.is_copying_in() {
            return false;
        }
        self.copy_in.take_data(false);
        self.copy_in = CopyIn::Ended { syncs_in_copy: self.copy_in.syncs_in_copy() };
        true
    }

    /// The current copy has succeeded: the Syncs within it were ignored.
    #[inline]
    pub(crate) fn copy_ended(&mut self) {
        self.copy_in = CopyIn::No;
    }

    /// An error has come: the current copy, if any, has failed.
    pub(crate) fn copy_failed(&mut self) {
        let copy = std::mem::replace(&mut self.copy_in, CopyIn::No);
        if let CopyIn::Reading { syncs_after_data, .. } = copy {
            self.push_syncs_after_data(syncs_after_data);
        }
        self.doubt_syncs(copy.syncs_in_copy());
        self.pass_fence();
    }

    pub(in crate::relay::request_queue) fn push_syncs_after_data(&mut self, syncs: u32) {
        let certain = syncs.min(limits::SYNCS_OUTSTANDING_MAX);
        for _ in 0..certain {
            self.push(Request::Sync.into());
        }
        self.doubt_syncs(syncs - certain); // the queue has a bound
    }
}
