//! Why a flow is as slow as it is.
//!
//! # Model
//! The first that holds, over the time that was watched:
//! ```text
//!   application      busy < 80 % of the time: the program had nothing to send
//!   receiver window  limited by it for >= 30 % of the busy time
//!   send buffer      limited by it for >= 30 % of the busy time
//!   queue            most cuts of the window came with srtt > min_rtt + max(min_rtt / 10, 3 ms)
//!   loss             at least two cuts, most of them with srtt below that: nothing had queued
//!   none             else: it grows, or goes by another measure than loss
//! ```
//! A cut is a new slow start threshold together with segments sent again, at most one a round trip.
//! (HyStart sets a threshold without a loss: no cut.) One that ends slow start with a queue is not
//! counted: slow start sends its window in bursts, which queue on a path that is all but idle. The
//! srtt is the larger of those just before and just after: a queue that has overflowed was full
//! before.
//!
//! # Limits
//! Cuts between two samples count as one: sample at least twice a round trip. A queue shorter than
//! a tenth of the path's own delay is not seen; its drops count as chance, which they nearly are.

use std::time::Duration;

use super::response;
use super::sample::{Sample, Span};

/// Less than this share of the time busy: the program limits.
const BUSY_MIN: f64 = 0.8;
/// More than this share of the busy time limited by a window or buffer: that limits.
const LIMITED_MIN: f64 = 0.3;
/// Cuts before they say something.
pub const CUTS_MIN: u32 = 2;
/// A queue is a tenth of the least round trip, ...
const QUEUE_DIVISOR: u32 = 10;
/// ... but no less than this: timers and wake-ups take as long.
const QUEUE_US_MIN: u32 = 3_000;
/// Shorter watches say nothing, whatever they saw.
const WATCH_MIN: Duration = Duration::from_millis(500);

/// What holds a flow back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, derive_more::Display)]
pub enum Limit {
    /// Nothing is known yet.
    #[display("not known yet")]
    Unknown,
    /// The program has no more to send.
    #[display("the application sends no more")]
    Application,
    /// The receiver reads no faster, or its buffer (tcp_rmem) is too small for the path.
    #[display("the receiver's window is full")]
    ReceiverWindow,
    /// This end's buffer (tcp_wmem) is too small for the path.
    #[display("the send buffer is full")]
    SendBuffer,
    /// Losses that come with a queue: the path is full.
    #[display("a queue on the path is full")]
    Queue,
    /// Losses without a queue: the algorithm takes chance for congestion.
    #[display("loss without a queue")]
    Loss,
    /// None of these.
    #[display("nothing that shows")]
    None,
}

/// A flow over some time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Diagnosis {
    /// What holds it back.
    pub limit: Limit,
    /// What was between first and last sample.
    pub span: Span,
    /// Cuts of the window without a queue.
    pub cuts_clear: u32,
    /// Cuts of the window with one.
    pub cuts_queued: u32,
    /// Smoothed round trip at the end.
    pub rtt_us: u32,
    /// The least.
    pub rtt_min_us: u32,
    /// What [`response`] says for this loss and round trip, in bytes a second.
    pub predicted: Option<f64>,
}

/// A flow that is watched.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Watch {
    first: Sample,
    last: Sample,
    cuts_clear: u32,
    cuts_queued: u32,
    /// The end of the recovery that the last cut began, more or less.
    last_cut: Option<Sample>,
    first_clear: Option<Sample>,
}

impl Watch {
    /// Watches from this sample on.
    #[must_use]
    pub fn new(sample: Sample) -> Self {
        Self {
            first: sample,
            last: sample,
            cuts_clear: 0,
            cuts_queued: 0,
            last_cut: None,
            first_clear: None,
        }
    }

    /// The next sample; gives what was since the one before.
    pub fn add(&mut self, sample: Sample) -> Span {
        let before = self.last;
        self.last = sample;
        let span = sample.since(&before);
        let in_recovery =
            self.last_cut.is_some_and(|cut| sample.at.micros_since(cut.at) < u64::from(cut.rtt_us));
        if sample.threshold != before.threshold && span.segments_again > 0 && !in_recovery {
            self.last_cut = Some(sample);
            let was_slow_start = before.window < before.threshold;
            if is_queued(before.rtt_us.max(sample.rtt_us), sample.rtt_min_us) {
                self.cuts_queued += u32::from(!was_slow_start);
            } else {
                self.cuts_clear += 1;
                self.first_clear.get_or_insert(sample);
            }
        }
        span
    }

    /// The last sample.
    #[must_use]
    pub fn last(&self) -> &Sample {
        &self.last
    }

    /// How long it has been watched.
    #[must_use]
    pub fn lasted(&self) -> Duration {
        self.last.at.since(self.first.at)
    }

    /// What was since the first cut without a queue: the flow as its algorithm has it, without its
    /// start.
    #[must_use]
    pub fn since_first_cut(&self) -> Option<Span> {
        self.first_clear.map(|first| self.last.since(&first))
    }

    /// Why it is as slow as it is.
    #[must_use]
    pub fn diagnosis(&self) -> Diagnosis {
        let span = self.last.since(&self.first);
        let rtt_s = f64::from(self.last.rtt_us) / 1e6;
        Diagnosis {
            limit: self.limit(&span),
            span,
            cuts_clear: self.cuts_clear,
            cuts_queued: self.cuts_queued,
            rtt_us: self.last.rtt_us,
            rtt_min_us: self.last.rtt_min_us,
            predicted: response::cubic_rate(span.loss(), rtt_s, self.last.segment_bytes),
        }
    }

    fn limit(&self, span: &Span) -> Limit {
        let cuts = self.cuts_clear + self.cuts_queued;
        if span.lasted < WATCH_MIN {
            Limit::Unknown
        } else if Span::share(span.busy, span.lasted) < BUSY_MIN {
            Limit::Application
        } else if Span::share(span.receiver_limited, span.busy) >= LIMITED_MIN {
            Limit::ReceiverWindow
        } else if Span::share(span.buffer_limited, span.busy) >= LIMITED_MIN {
            Limit::SendBuffer
        } else if cuts > 0 && self.cuts_queued >= self.cuts_clear {
            Limit::Queue
        } else if self.cuts_clear >= CUTS_MIN {
            Limit::Loss
        } else {
            Limit::None
        }
    }
}

/// Whether so long a round trip has a queue in it.
#[must_use]
pub fn is_queued(rtt_us: u32, rtt_min_us: u32) -> bool {
    rtt_us.saturating_sub(rtt_min_us) > (rtt_min_us / QUEUE_DIVISOR).max(QUEUE_US_MIN)
}

/// Whether the program had something to send in all of this time, more or less.
#[must_use]
pub fn is_busy(span: &Span) -> bool {
    Span::share(span.busy, span.lasted) >= BUSY_MIN
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_time::Time;

    /// A flow of 200 ms, looked at every 100 ms, busy, at 1 MB/s.
    fn flow(looks: u64, change: impl Fn(u64, &mut Sample)) -> Diagnosis {
        let sample = |look: u64| {
            let mut sample = Sample {
                at: Time::from_micros(look * 100_000),
                segment_bytes: 1448,
                rtt_us: 201_000,
                rtt_min_us: 200_000,
                window: 1200,
                threshold: u32::MAX >> 1,
                bytes_acked: look * 100_000,
                segments_sent: look * 70,
                busy_us: look * 100_000,
                ..Sample::default()
            };
            change(look, &mut sample);
            sample
        };
        let mut watch = Watch::new(sample(0));
        for look in 1..looks {
            watch.add(sample(look));
        }
        watch.diagnosis()
    }

    fn cut_every(looks: u64) -> impl Fn(u64, &mut Sample) {
        move |look, sample| {
            sample.threshold = 1000 - (look / looks) as u32;
            sample.segments_again = look / looks;
        }
    }

    #[test]
    fn cuts_without_a_queue_are_loss_and_with_one_a_full_path() {
        assert_eq!(flow(100, cut_every(30)).limit, Limit::Loss);
        let queued = flow(100, |look, sample| {
            cut_every(30)(look, sample);
            sample.rtt_us = 230_000;
        });
        assert_eq!((queued.limit, queued.cuts_queued), (Limit::Queue, 3));
        // Half and half is not enough to blame chance.
        let mixed = flow(70, |look, sample| {
            cut_every(30)(look, sample);
            sample.rtt_us = if look < 40 { 200_000 } else { 230_000 };
        });
        assert_eq!((mixed.cuts_clear, mixed.cuts_queued, mixed.limit), (1, 1, Limit::Queue));
    }

    #[test]
    fn a_queue_begins_above_a_tenth_of_the_round_trip_and_three_milliseconds() {
        assert!(!is_queued(220_000, 200_000) && is_queued(220_001, 200_000));
        assert!(!is_queued(13_000, 10_000) && is_queued(13_001, 10_000));
        assert!(!is_queued(9_000, 10_000));
    }

    #[test]
    fn one_cut_says_nothing_and_two_do() {
        assert_eq!(flow(60, cut_every(30)).limit, Limit::None);
        assert_eq!(flow(61, cut_every(30)).limit, Limit::Loss);
    }

    #[test]
    fn a_threshold_without_a_loss_and_a_loss_without_a_threshold_are_no_cuts() {
        let hystart = flow(100, |look, sample| sample.threshold = (look / 20) as u32);
        assert_eq!((hystart.cuts_clear, hystart.limit), (0, Limit::None));
        let bbr = flow(100, |look, sample| sample.segments_again = look);
        assert_eq!((bbr.cuts_clear, bbr.limit), (0, Limit::None));
    }

    #[test]
    fn a_queue_at_the_end_of_slow_start_says_nothing_and_a_loss_without_one_does() {
        let start = |rtt_us| {
            flow(61, move |look, sample| {
                cut_every(30)(look, sample);
                if look < 30 {
                    sample.threshold = u32::MAX >> 1;
                    sample.rtt_us = rtt_us;
                }
            })
        };
        assert_eq!((start(260_000).cuts_queued, start(260_000).cuts_clear), (0, 1));
        assert_eq!((start(200_000).cuts_queued, start(200_000).cuts_clear), (0, 2));
    }

    #[test]
    fn one_recovery_is_one_cut() {
        let burst = flow(10, |look, sample| {
            sample.threshold = 1000 - (look / 5) as u32 * 5 - u32::from(look == 6);
            sample.segments_again = if look < 5 { 0 } else { look };
        });
        assert_eq!(burst.cuts_clear, 1);
    }

    #[test]
    fn what_is_not_the_path_goes_before_loss() {
        let application = flow(100, |look, sample| {
            cut_every(30)(look, sample);
            sample.busy_us /= 2;
        });
        assert_eq!(application.limit, Limit::Application);
        let receiver = flow(100, |look, sample| {
            cut_every(30)(look, sample);
            sample.receiver_limited_us = look * 31_000;
        });
        assert_eq!(receiver.limit, Limit::ReceiverWindow);
        let buffer = flow(100, |look, sample| {
            cut_every(30)(look, sample);
            sample.buffer_limited_us = look * 31_000;
        });
        assert_eq!(buffer.limit, Limit::SendBuffer);
        let little = flow(100, |look, sample| {
            cut_every(30)(look, sample);
            sample.buffer_limited_us = look * 29_000;
        });
        assert_eq!(little.limit, Limit::Loss);
    }

    #[test]
    fn a_short_watch_says_nothing_and_figures_are_of_the_whole() {
        assert_eq!(flow(4, cut_every(2)).limit, Limit::Unknown);
        let whole = flow(101, cut_every(30));
        assert!((whole.span.rate() - 1e6).abs() < 1.0);
        let loss = whole.span.loss();
        assert!((loss - 3.0 / 7000.0).abs() < 1e-6, "{loss}");
        assert!((whole.predicted.unwrap() / 765_000.0 - 1.0).abs() < 0.02, "{:?}", whole.predicted);
    }
}
