//! What a COPY FROM STDIN does to the books: the server reads and ignores the Syncs within it.

use super::super::Socket;
use super::super::expect::Expect;
use super::Relay;

impl<S: Socket> Relay<'_, S> {
    /// The server wants copy data. A Sync that has been sent already is read and ignored while it
    /// does (trap 15), so no answer to it will come. What has been sent up to the end of this
    /// copy is struck from the books; what follows is for what follows.
    pub(super) fn copy_in(&mut self) {
        let backend = &mut *self.backend;
        backend.copying_in = true;
        backend.copy_foreseen = false;
        backend.syncs_in_copy = 0;
        // A text may be answered in several parts.
        let behind = 1 + backend.expected.iter().take_while(|next| next.is_within_query()).count();
        while let Some(next) = backend.expected.get(behind).copied() {
            match next {
                Expect::Sync => {
                    backend.syncs_outstanding -= 1;
                    backend.syncs_in_copy += 1;
                }
                Expect::CopyInput { ends } => backend.copying_in = !ends,
                _ => break,
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
    pub(super) fn copy_ended(&mut self) {
        self.backend.copying_in = false;
        self.backend.syncs_in_copy = 0;
    }
}
