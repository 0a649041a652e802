//! What remains to be read from, and written to, a client's socket.

/// What remains at a client's socket.
#[derive(Default)]
pub(in crate::engine) struct AtSocket {
    unread: bool,
    hung_up: bool,
    late: bool,
}

impl AtSocket {
    /// Whether there may be bytes that have not been read.
    #[inline]
    pub(in crate::engine) fn is_unread(&self) -> bool {
        self.unread
    }

    /// Sets whether there may be more to read.
    #[inline]
    pub(in crate::engine) fn leave_unread(&mut self, unread: bool) {
        self.unread = unread;
    }

    /// It has closed its side: the end stands after what has not been read, and no event reports it again.
    pub(in crate::engine) fn hangs_up(&mut self) {
        self.hung_up = true;
    }

    #[inline]
    pub(in crate::engine) fn has_hung_up(&self) -> bool {
        self.hung_up
    }

    /// Whether its output has not been tried yet: see [`crate::engine::answer`].
    #[inline]
    pub(in crate::engine) fn is_late(&self) -> bool {
        self.late
    }

    /// Its output is to be tried at the end of the turn. Returns whether that is new.
    #[inline]
    pub(in crate::engine) fn becomes_late(&mut self) -> bool {
        !std::mem::replace(&mut self.late, true)
    }

    /// It is tried now. Returns whether it was to be tried.
    #[inline]
    pub(in crate::engine) fn take_late(&mut self) -> bool {
        std::mem::take(&mut self.late)
    }

    /// Whether nothing would be lost with its socket.
    pub(in crate::engine) fn may_move(&self) -> bool {
        let Self {
            unread: _, // it is in the kernel, which reports it when the socket is watched again
            hung_up,
            late,
        } = self;
        !(*hung_up || *late)
    }
}
