//! What remains to be read from, and written to, a client's socket.

use crate::relay::socket::Unread;

/// What remains at a client's socket.
#[derive(Default)]
pub(crate) struct AtSocket {
    pub(crate) unread: Unread,
    late: bool,
}

impl AtSocket {
    /// Whether its output has not been tried yet: see [`crate::relay::answer`].
    #[inline]
    pub(crate) fn is_late(&self) -> bool {
        self.late
    }

    /// Its output is to be tried at the end of the turn. Returns whether that is new.
    #[inline]
    pub(crate) fn becomes_late(&mut self) -> bool {
        !std::mem::replace(&mut self.late, true)
    }

    /// It is tried now. Returns whether it was to be tried.
    #[inline]
    pub(crate) fn take_late(&mut self) -> bool {
        std::mem::take(&mut self.late)
    }

    /// Whether nothing would be lost with its socket.
    pub(crate) fn may_move(&self) -> bool {
        let Self { unread, late } = self;
        // (Unread bytes are in the kernel, which reports them when the socket is watched again.)
        !(unread.has_hung_up() || *late)
    }
}
