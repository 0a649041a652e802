//! How a COPY FROM STDIN affects the queue: the server reads and ignores the Syncs within it.
//!
//! # Which Syncs are answered
//! While a copy wants data, a Sync gets no answer (trap 15); once the server has refused the data,
//! each does. It refuses the data when it processes what it has read last, and reads nothing
//! meanwhile: the copy has not read a Sync after all data, which is certainly answered. For one
//! before other data that cannot be seen.

mod syncs;

/// A copy from the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::relay::request_queue) enum CopyIn {
    /// None that is known.
    No,
    /// The server has asked for data, and the client has not ended it.
    Reading {
        /// Syncs that count as read and ignored: data has followed.
        syncs_in_copy: u32,
        /// Syncs after all of its data.
        syncs_after_data: u32,
    },
    /// The same, and the client has gone on as if the copy had failed.
    TakenAsFailed {
        syncs_in_copy: u32,
        /// A message has been sent that no copy reads: whether the copy has failed will be seen.
        followed: bool,
    },
    /// The client has ended its data. How the copy ends is not known yet.
    Ended { syncs_in_copy: u32 },
}

impl CopyIn {
    /// Whether the server has asked for data, and the client has not ended it.
    #[inline]
    pub(in crate::relay::request_queue) fn wants_data(self) -> bool {
        matches!(self, Self::Reading { .. } | Self::TakenAsFailed { .. })
    }

    /// Whether it ends without further messages of the client.
    pub(in crate::relay::request_queue) fn waits_for_nothing(self) -> bool {
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

    /// Data, or the end of it, is sent.
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
