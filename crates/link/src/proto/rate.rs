//! How much a path carries, and how much bulk streams may have in it.
//!
//! # Model
//! ```text
//!   window    what was acknowledged in two round trips or more, while there was always something to send
//!   rate      the largest of the last [`WINDOWS`] windows; while it still grows, also TCP's delivery rate;
//!             before there is either, what a first window of TCP carries: 10 segments a round trip (RFC 6928)
//!   in flight = rate * least round trip
//!
//!   alone     max(2.5 * in flight, in flight + rate / 25)   2 is what BBR needs, slow start doubles; and what
//!             32 KiB at least, a gentle one 8 segments      goes out while the host is late, by 40 ms
//!   beside    2 * in flight + 10 segments                   while it grows
//!             1.25 * in flight + 1 segment                  then; of the quarter at most what goes out in 31 ms
//! ```
//! *Beside* is where small streams are open. What is in a path beyond `in flight` waits in the queue of
//! its narrowest link, and a small message waits for it: a quarter of a round trip. The segment lets
//! each of many paths of one limit grow and, together, wait for half a round trip.
//!
//! A path that begins to grow when others between the same addresses are there begins with 2 segments
//! and grows by a quarter in a window: dials of a search come ten at a time, and the limits that they
//! meet are those of the paths that carry small messages.
//!
//! What is in a path alone is what the first query waits for that comes: a tenth of a second's worth, and 32 KiB
//! in each of fifty paths of a search, were a tenth of a second and more.
//!
//! A queue that does not shrink although this path puts little into it belongs to others: a path
//! that yielded to it would carry nothing. Then the bound is that of a path alone, for
//! [`YIELDS_NOT`]. A queue while no small stream is open is the path's own, and no sign of others.
//!
//! # Why not
//! TCP's delivery rate alone: acknowledgements that come in bunches make it larger than the path, by a
//! third on a busy host, and a value that was limited by lack of data is never corrected downwards.

use std::collections::VecDeque;
use std::time::Duration;

use hawser_time::Time;

use crate::proto::sample::Sample;

const WINDOWS: usize = 8;
const TCP_RATES: usize = 10;
/// What may queue beside small streams goes out in this part of a second: longer than an end is late, and TCP is
/// asked each 20 ms. A quarter of 217 ms would be needless.
const BESIDE_MAX_PART: u64 = 32;
/// A window takes at least this long, ends with this many bytes, and at the latest then.
const WINDOW_MIN: Duration = Duration::from_millis(40);
const WINDOW_BYTES: u64 = 16 * SEGMENT_BYTES;
const WINDOW_MAX: Duration = Duration::from_millis(250);
const SEGMENT_BYTES: u64 = 1448;
const FIRST_WINDOW_BYTES: u64 = 10 * SEGMENT_BYTES;
/// The first window of a path that must not disturb others.
const GENTLE_BYTES: u64 = 2 * SEGMENT_BYTES;
/// A path grows no more when so many windows in a row have not brought a quarter.
const FLAT_WINDOWS: u32 = 3;
const ALONE_MIN: u64 = 32 << 10;
const ALONE_GENTLE_MIN: u64 = 8 * SEGMENT_BYTES;
/// For how long others' queues are not yielded to.
const YIELDS_NOT: Duration = Duration::from_secs(10);

/// Of one path.
#[derive(Debug)]
pub(super) struct Rate {
    windows: VecDeque<u64>,
    tcp: VecDeque<u64>,
    /// The largest of those that count; 0: there is none.
    largest: u64,
    since: Time,
    acked: u64,
    /// At times there was nothing to send in this window.
    starved: bool,
    grows: bool,
    gentle: bool,
    flat: u32,
    /// Windows in a row in which the round trip was always long, though small streams were open.
    long: u32,
    /// In a part of this window none was.
    alone: bool,
    rtt_low_us: u64,
    yields_not_until: Time,
}

impl Rate {
    /// `gentle`: there are other paths between the same addresses.
    pub(super) fn new(gentle: bool, now: Time) -> Self {
        Self {
            windows: VecDeque::new(),
            tcp: VecDeque::new(),
            largest: 0,
            since: now,
            acked: 0,
            starved: true,
            grows: !gentle,
            gentle,
            flat: 0,
            long: 0,
            alone: true,
            rtt_low_us: u64::MAX,
            yields_not_until: Time::ZERO,
        }
    }

    /// Bytes a second; `rtt_us` is the smoothed round trip.
    pub(super) fn bytes_a_second(&self, rtt_us: u64) -> u64 {
        let first = (FIRST_WINDOW_BYTES * 1_000_000 / rtt_us.max(1)).max(1);
        if self.windows.is_empty() { self.largest.max(first) } else { self.largest }
    }

    fn measured(&mut self) {
        let largest = |rates: &VecDeque<u64>| rates.iter().copied().max().unwrap_or(0);
        self.largest = largest(&self.windows);
        if self.grows {
            self.largest = self.largest.max(largest(&self.tcp));
        }
    }

    /// What bulk streams may have in it.
    pub(super) fn bound(&self, beside: bool, rtt_us: u64, least_us: u64, now: Time) -> u64 {
        let rate = self.bytes_a_second(rtt_us);
        let in_flight = rate.saturating_mul(least_us) / 1_000_000;
        let between = rate / 250;
        if !beside || now < self.yields_not_until {
            let least = if self.gentle { ALONE_GENTLE_MIN } else { ALONE_MIN };
            (5 * in_flight / 2).max(in_flight + rate / 25).max(least)
        } else if self.grows {
            in_flight + in_flight.max(between) + FIRST_WINDOW_BYTES
        } else if self.windows.is_empty() {
            GENTLE_BYTES
        } else {
            let queue = (in_flight / 4).min(rate / BESIDE_MAX_PART).max(between);
            (in_flight + queue + SEGMENT_BYTES).max(GENTLE_BYTES)
        }
    }

    /// TCP was asked; `bound`: what there might have been in the path; `beside` as in [`Rate::bound`].
    pub(super) fn sampled(
        &mut self,
        sample: &Sample,
        (bound, beside): (u64, bool),
        least_us: u64,
        now: Time,
    ) {
        // There was less to send than the path takes.
        let starved = 4 * sample.outstanding_bytes < bound;
        let rtt_us = u64::from(sample.rtt_us);
        let known = self.bytes_a_second(rtt_us);
        // A value limited by lack of data still shows that so much is possible.
        let rate = sample.delivery_rate;
        if self.grows && rate > 0 && (!sample.is_application_limited || rate > known) {
            if self.tcp.len() == TCP_RATES {
                self.tcp.pop_front();
            }
            self.tcp.push_back(rate);
            self.measured();
        }
        self.starved |= starved;
        self.alone |= !beside;
        self.rtt_low_us = self.rtt_low_us.min(rtt_us);
        let took = now.since(self.since);
        let bytes = sample.acked_bytes.saturating_sub(self.acked);
        let is_over = took >= WINDOW_MIN.max(Duration::from_micros(2 * rtt_us))
            && (bytes >= WINDOW_BYTES || took >= WINDOW_MAX);
        if is_over {
            let micros = took.as_micros().max(1);
            let rate = u64::try_from(u128::from(bytes) * 1_000_000 / micros).unwrap_or(u64::MAX);
            // The first of a gentle path says at least that it may have more than it begins with.
            let first = self.windows.is_empty() && !self.grows && bytes > GENTLE_BYTES;
            if !self.starved || rate > known || first {
                self.window(rate, least_us, now);
            } else {
                self.long = 0;
            }
            (self.since, self.acked, self.starved) = (now, sample.acked_bytes, starved);
            self.alone = !beside;
            self.rtt_low_us = rtt_us;
        }
    }

    fn window(&mut self, rate: u64, least_us: u64, now: Time) {
        let before = self.windows.iter().copied().max().unwrap_or(0);
        if self.windows.len() == WINDOWS {
            self.windows.pop_front();
        }
        self.windows.push_back(rate.max(1));
        self.flat = if rate < before + before / 4 { self.flat + 1 } else { 0 };
        if self.flat >= FLAT_WINDOWS || self.rtt_low_us > least_us + (least_us / 4).max(2000) {
            self.grows = false;
        }
        self.measured();
        let is_long = self.rtt_low_us > 2 * least_us + 5000;
        let is_others = is_long && !self.grows && !self.alone;
        self.long = if is_others { self.long + 1 } else { 0 };
        if self.long > WINDOWS as u32 && now >= self.yields_not_until {
            self.yields_not_until = now.after(YIELDS_NOT);
            self.long = 0;
        }
    }
}
