//! TCP's data about a path.

/// TCP's data about a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Smoothed round trip, microseconds; 0 before there is any.
    pub rtt_us: u32,
    /// Its variance.
    pub rtt_variance_us: u32,
    /// The least round trip of late; 0: not known.
    pub rtt_min_us: u32,
    /// Bytes a second.
    pub delivery_rate: u64,
    /// Whether lack of data limited that.
    pub is_application_limited: bool,
    /// Bytes that the peer's TCP has acknowledged, ever.
    pub acked_bytes: u64,
    /// Bytes that wait in the kernel or are under way; not those that are acknowledged selectively.
    pub outstanding_bytes: u64,
    /// Of these, those that TCP has not sent yet.
    pub unsent_bytes: u64,
    /// The congestion window, in bytes; 0: not known.
    pub window_bytes: u64,
    /// Segments that were sent again, ever.
    pub segments_again: u32,
    /// Segments with data that were sent, again or not, ever; 0: not known.
    pub segments_sent: u32,
    /// How often in a row TCP has retransmitted after a timeout.
    pub timeouts: u32,
}
