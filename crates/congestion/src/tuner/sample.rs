//! What the kernel says of a flow at one moment (TCP_INFO), and the difference of two.

use std::time::Duration;

use hawser_time::Time;

/// A connection. The caller, who samples it, gives the number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowId(pub u64);

/// One look at a flow. Counters are since it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// When.
    pub at: Time,
    /// Payload of a segment (`tcpi_snd_mss`).
    pub segment_bytes: u32,
    /// Smoothed round trip (`tcpi_rtt`).
    pub rtt_us: u32,
    /// The least round trip of late (`tcpi_min_rtt`).
    pub rtt_min_us: u32,
    /// The congestion window in segments.
    pub window: u32,
    /// Where slow start ends, in segments (`tcpi_snd_ssthresh`): set again at each cut of the window.
    pub threshold: u32,
    /// Bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Segments with data that were sent, again or not (`tcpi_data_segs_out`).
    pub segments_sent: u64,
    /// Segments that were sent again (`tcpi_total_retrans`).
    pub segments_again: u64,
    /// Time with data to send or under way (`tcpi_busy_time`).
    pub busy_us: u64,
    /// Of that, time in which the receiver's window had no room (`tcpi_rwnd_limited`).
    pub receiver_limited_us: u64,
    /// Of that, time in which the send buffer had no more (`tcpi_sndbuf_limited`).
    pub buffer_limited_us: u64,
    /// What arrived of late in bytes a second (`tcpi_delivery_rate`).
    pub delivery_rate: u64,
    /// Whether that was so little because there was no more to send.
    pub is_application_limited: bool,
}

impl Sample {
    /// What was between an earlier sample of the same flow and this one.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Span {
        Span {
            lasted: self.at.since(earlier.at),
            bytes_acked: self.bytes_acked.saturating_sub(earlier.bytes_acked),
            segments_sent: self.segments_sent.saturating_sub(earlier.segments_sent),
            segments_again: self.segments_again.saturating_sub(earlier.segments_again),
            busy: micros(self.busy_us, earlier.busy_us),
            receiver_limited: micros(self.receiver_limited_us, earlier.receiver_limited_us),
            buffer_limited: micros(self.buffer_limited_us, earlier.buffer_limited_us),
        }
    }
}

fn micros(now: u64, then: u64) -> Duration {
    Duration::from_micros(now.saturating_sub(then))
}

/// What happened between two samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// How long it was.
    pub lasted: Duration,
    /// See [`Sample`].
    pub bytes_acked: u64,
    /// See [`Sample`].
    pub segments_sent: u64,
    /// See [`Sample`].
    pub segments_again: u64,
    /// See [`Sample`].
    pub busy: Duration,
    /// See [`Sample`].
    pub receiver_limited: Duration,
    /// See [`Sample`].
    pub buffer_limited: Duration,
}

impl Span {
    /// Acknowledged bytes a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let seconds = self.lasted.as_secs_f64();
        if seconds > 0.0 { self.bytes_acked as f64 / seconds } else { 0.0 }
    }

    /// The share of segments that had to be sent again.
    #[must_use]
    pub fn loss(&self) -> f64 {
        if self.segments_sent == 0 {
            return 0.0;
        }
        self.segments_again as f64 / self.segments_sent as f64
    }

    /// `part` as a share of the whole, 0 to 1.
    #[must_use]
    pub fn share(part: Duration, whole: Duration) -> f64 {
        if whole.is_zero() { 0.0 } else { (part.as_secs_f64() / whole.as_secs_f64()).min(1.0) }
    }
}
