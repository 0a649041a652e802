//! What a COPY FROM STDIN does to the books: the server reads and ignores the Syncs within it.
//!
//! # Which Syncs are answered
//! While a copy wants data, a Sync gets no answer (trap 15); once it has refused them, each does. It
//! refuses them as it looks at the last that it has read, and reads nothing meanwhile: a Sync behind
//! all data was not read by the copy, and is answered for certain. Whether one ahead of other data
//! was cannot be seen.

use super::super::Socket;
use super::super::backend::Backend;
use super::super::expect::Expect;
use super::super::limits;
use super::Relay;

impl<S: Socket> Relay<'_, S> {
    /// The server wants copy data. A Sync that has been sent already is read and ignored while it
    /// does, so no answer to it will come. What has been sent up to the end of this copy is struck
    /// from the books; what follows is for what follows.
    pub(super) fn copy_in(&mut self) {
        let backend = &mut *self.backend;
        backend.copying_in = true;
        (backend.copy_foreseen, backend.copy_followed) = (false, false);
        backend.syncs_in_copy = 0;
        backend.syncs_behind_data = 0;
        // A text may be answered in several parts.
        let behind = 1 + backend.expected.iter().take_while(|next| next.is_within_query()).count();
        while let Some(next) = backend.expected.get(behind).copied() {
            match next {
                Expect::Sync => {
                    backend.syncs_outstanding -= 1;
                    backend.syncs_behind_data += 1;
                }
                Expect::CopyInput { ends } => {
                    backend.copying_in = !ends;
                    backend.note_copy_input();
                }
                _ => {
                    // A copy that waits for data would end the connection at this.
                    (backend.copy_foreseen, backend.copy_followed) = (true, true);
                    for _ in 0..std::mem::take(&mut backend.syncs_behind_data) {
                        backend.syncs_outstanding += 1;
                        backend.expected.insert(behind, Expect::Sync);
                    }
                    break;
                }
            }
            backend.expected.remove(behind);
            if !backend.copying_in {
                break;
            }
        }
        // The Sync that ended what has been sent may be among those.
        let last = backend.expected.iter().rev().find(|e| !matches!(e, Expect::CopyInput { .. }));
        backend.unsynced = last.is_none_or(|last| !last.ends_with_ready());
    }

    /// The copy under way has ended well: the Syncs in its middle were ignored.
    #[inline]
    pub(in crate::engine) fn copy_ended(&mut self) {
        self.backend.copying_in = false;
        self.backend.syncs_in_copy = 0;
        self.backend.syncs_behind_data = 0;
    }

    /// The copy under way, if any, has failed.
    pub(super) fn copy_failed(&mut self) {
        self.backend.expect_syncs_behind_data();
        self.backend.copying_in = false;
        self.backend.syncs_in_doubt += std::mem::take(&mut self.backend.syncs_in_copy);
    }
}

impl<S: Socket> Backend<S> {
    /// Data, or their end, are sent to the copy under way.
    pub(in crate::engine) fn note_copy_input(&mut self) {
        self.syncs_in_copy += std::mem::take(&mut self.syncs_behind_data);
    }

    /// The copy under way has refused its data, or else the connection ends: what it has not read
    /// is answered.
    pub(in crate::engine) fn expect_syncs_behind_data(&mut self) {
        let syncs = std::mem::take(&mut self.syncs_behind_data);
        let certain = syncs.min(limits::SYNCS_OUTSTANDING_MAX);
        for _ in 0..certain {
            self.expect(Expect::Sync);
        }
        self.syncs_in_doubt += syncs - certain; // the books have a bound
    }
}
