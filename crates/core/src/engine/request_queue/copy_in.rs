//! What a COPY FROM STDIN does to the queue: the server reads and ignores the Syncs within it.
//!
//! # Which Syncs are answered
//! While a copy wants data, a Sync gets no answer (trap 15); once it has refused them, each does. It
//! refuses them as it looks at the last that it has read, and reads nothing meanwhile: a Sync after
//! all data was not read by the copy, and is answered for certain. Whether one before other data
//! was cannot be seen.

mod syncs;

/// A copy from the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine::request_queue) enum CopyIn {
    /// None that is known of.
    No,
    /// The server has asked for data, and the client has not ended them.
    Reading {
        /// Syncs that it is taken to have read and ignored: data have followed.
        syncs_in_copy: u32,
        /// Those after all of its data.
        syncs_after_data: u32,
    },
    /// The same, and the client has gone on as if it had failed.
    TakenAsFailed {
        syncs_in_copy: u32,
        /// Something has been sent that no copy reads: whether it has failed will be seen.
        followed: bool,
    },
    /// The client has ended its data. How the copy ends is not known yet.
    Ended { syncs_in_copy: u32 },
}

impl CopyIn {
    /// Whether the server has asked for data, and the client has not ended them.
    #[inline]
    pub(in crate::engine::request_queue) fn wants_data(self) -> bool {
        matches!(self, Self::Reading { .. } | Self::TakenAsFailed { .. })
    }

    /// Whether its end depends on nothing that the client has not sent.
    pub(in crate::engine::request_queue) fn waits_for_nothing(self) -> bool {
        !self.wants_data() || matches!(self, Self::TakenAsFailed { followed: true, .. })
    }

    fn syncs_in_copy(self) -> u32 {
        match self {
            Self::No => 0,
            Self::Reading { syncs_in_copy, .. }
            | Self::TakenAsFailed { syncs_in_copy, .. }
            | Self::Ended { syncs_in_copy } => syncs_in_copy,
        }
    }

    /// Data, or their end, are sent.
    fn take_data(&mut self, ends: bool) {
        if let Self::Reading { syncs_in_copy, syncs_after_data } = *self {
            let syncs_in_copy = syncs_in_copy + syncs_after_data;
            *self = match ends {
                true => Self::Ended { syncs_in_copy },
                false => Self::Reading { syncs_in_copy, syncs_after_data: 0 },
            };
        }
    }
}
