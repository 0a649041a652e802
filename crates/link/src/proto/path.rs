//! One path: its stage, its speed, and whether it is alive.
//!
//! # Model
//! ```text
//!   completion = max((unsent + unacked) / rate, srtt) - least rtt / 2: the next frame goes where this is
//!                least. A window that keeps the path below its rate (after a loss, or where BBR
//!                looks for the least round trip) is its rate for what TCP has not sent dead =
//!                something is unanswered, and nothing has come and nothing was acknowledged for
//!                max(3 RTO, 2 s), RTO = srtt + 4 var (RFC 6298)
//! ```
//! # States
//! ```text
//!   near   Dialling ─ dialled() ─► Ready ─ Hello ─► Greeting ─ Welcome ─► Up
//!   far                                                       join() ─► Up
//! ```

use std::time::Duration;

use hawser_multipath::paths::action::{Flow, FlowId, PairId, Reason};
use hawser_time::Time;

use super::frame::{Assembly, VERSION_MIN};
use super::rate::Rate;
use super::recent::Recent;
use super::sample::Sample;
use super::{PathId, StreamId};

/// The assumed round trip of a path without one yet, in microseconds.
const RTT_UNKNOWN_US: u64 = 100_000;
/// A path is not dead sooner.
pub const DEAD_MIN: Duration = Duration::from_secs(2);
/// A Hello without an answer for so long has failed: it takes one round trip, on a path that has
/// just carried TLS's. Short, because an unanswered greeting delays all that waits for a path.
pub const HELLO_MAX: Duration = Duration::from_secs(4);
/// A newcomer's TLS and Hello take no longer.
pub const GREETING_MAX: Duration = Duration::from_secs(10);
/// Pings while there are streams, and while there are none: NATs forget after 30 s and more.
pub const PING_EACH: Duration = Duration::from_secs(1);
/// See [`PING_EACH`].
pub const PING_EACH_IDLE: Duration = Duration::from_secs(5);

/// The most last messages that are remembered: usually more than a path has under way.
const LAST_WORDS_MAX: usize = 1024;

/// The stage of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// TCP and TLS are on their way.
    Dialling,
    /// Both ends are authenticated; the session has no Welcome yet, and another path asks for it.
    Ready,
    /// Hello was sent.
    Greeting,
    /// It carries streams.
    Up,
}

/// Why a path was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, derive_more::Display)]
pub enum Origin {
    /// For the minimum of paths, whatever is carried.
    #[display("always wanted")]
    Wanted,
    /// To test whether it adds to the total rate.
    #[display("dialled to find out what it adds")]
    Search,
    /// For small messages beside bulk.
    #[display("for small messages beside bulk")]
    Small,
    /// The near end has dialled it.
    #[display("dialled by the near end")]
    Accepted,
}

/// Why a path has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathEnd {
    /// It could not be established.
    NotDialled,
    /// TCP has closed it.
    Closed,
    /// TCP has closed it before the peer's greeting.
    NotGreeted,
    /// Nothing has come back for too long.
    Silent,
    /// A stream has more gaps than are kept, and a frame by this path made another: its bytes come
    /// again by others.
    Gaps,
    /// It carried an invalid frame, or one that may not come now.
    Wrong(&'static str),
    /// The far end has refused it.
    Refused(&'static str),
    /// The chooser has ended it.
    Chosen(Reason),
}

impl std::fmt::Display for PathEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotDialled => f.write_str("it could not be established"),
            Self::Closed => f.write_str("the connection was closed or broke"),
            Self::NotGreeted => f.write_str(
                "the far end closed it before its greeting, as it does if it does not know this end's key: its \
                 log names the key that it refused",
            ),
            Self::Silent => f.write_str("nothing has come back for too long"),
            Self::Gaps => f.write_str("a stream has more gaps than can be kept"),
            Self::Wrong(what) => write!(f, "the peer broke the protocol: {what}"),
            Self::Refused(why) => write!(f, "the far end refused it: {why}"),
            Self::Chosen(Reason::Shares) => f.write_str("it shared the limit of another one"),
            Self::Chosen(Reason::Unanswered) => f.write_str("nothing answers there"),
            Self::Chosen(_) => f.write_str("nothing gets through while others carry"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Path {
    pub(super) id: PathId,
    /// Its pair of addresses.
    pub(super) pair: PairId,
    pub(super) origin: Origin,
    pub(super) stage: Stage,
    /// The agreed version of the protocol.
    pub(super) version: u8,
    /// It carries streams only if no other path does.
    pub(super) rests: bool,
    pub(super) assembly: Assembly,
    /// Frames of the path itself, to be written first.
    pub(super) own: Vec<u8>,
    /// Streams whose last message went by this path: it is repeated if the path dies.
    pub(super) last_words: Vec<StreamId>,
    /// The socket takes nothing now.
    pub(super) full: bool,
    /// A request to write is on its way to the host.
    pub(super) asked: bool,
    pub(super) since: Time,
    pub(super) sample: Sample,
    rate: Rate,
    /// The least round trip between its addresses.
    pub(super) least_of_pair_us: Option<u64>,
    /// Given to the host since the last sample.
    given: u64,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    carries: Recent,
    /// When something last came from it.
    alive: Time,
    /// Since when something is unanswered.
    waits: Option<Time>,
    /// The ping that is not answered, and when it was sent.
    ping: Option<(u64, Time)>,
    pings: u64,
}

impl Path {
    /// `is_further`: there is another path between these addresses.
    pub(super) fn new(
        id: PathId,
        (pair, origin): (PairId, Origin),
        stage: Stage,
        is_further: bool,
        now: Time,
    ) -> Self {
        Self {
            id,
            pair,
            origin,
            stage,
            version: VERSION_MIN,
            rests: false,
            assembly: Assembly::default(),
            own: Vec::new(),
            last_words: Vec::new(),
            full: false,
            asked: false,
            since: now,
            sample: Sample::default(),
            rate: Rate::new(is_further, now),
            least_of_pair_us: None,
            given: 0,
            sent_bytes: 0,
            received_bytes: 0,
            carries: Recent::new(now),
            alive: now,
            waits: None,
            ping: None,
            pings: 0,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.stage == Stage::Up
    }

    /// Round trip, microseconds.
    pub(super) fn rtt_us(&self) -> u64 {
        match self.sample.rtt_us {
            0 => RTT_UNKNOWN_US,
            rtt => rtt.into(),
        }
    }

    /// RTO of RFC 6298, microseconds.
    pub(super) fn rto_us(&self) -> u64 {
        self.rtt_us() + 4 * u64::from(self.sample.rtt_variance_us)
    }

    /// Bytes a second.
    pub(super) fn rate(&self) -> u64 {
        self.rate.bytes_a_second(self.rtt_us())
    }

    /// How much bulk streams may have in it; `beside`: small ones are open.
    pub(super) fn bound(&self, beside: bool, now: Time) -> u64 {
        self.rate.bound(beside, self.rtt_us(), self.least_us(), now)
    }

    /// Its own least round trip, microseconds.
    pub(super) fn rtt_least_us(&self) -> u64 {
        match self.sample.rtt_min_us {
            0 => self.rtt_us(),
            least => least.into(),
        }
    }

    /// The least round trip without a queue: a path that was dialled into a queue estimates it from
    /// others between the same addresses, which may take other routes, up to a quarter longer.
    fn least_us(&self) -> u64 {
        let of_pair = self.least_of_pair_us.map_or(u64::MAX, |least| least + least / 4);
        self.rtt_least_us().min(of_pair)
    }

    /// Its state for the chooser.
    pub(super) fn flow(&self) -> Flow {
        let acked = self.sample.acked_bytes;
        let held = self.queued();
        Flow {
            id: FlowId(self.id.0),
            pair: self.pair,
            open: self.is_up(),
            bytes: self.carried(),
            acked,
            unacked: held > 0,
            timeouts: self.sample.timeouts,
            held,
            backup: self.rests,
            rtt: Duration::from_micros(self.rtt_least_us()),
        }
    }

    /// Bytes that are in it.
    pub(super) fn queued(&self) -> u64 {
        self.sample.outstanding_bytes + self.given + self.own.len() as u64
    }

    /// When `more` bytes would be at the peer, in microseconds from now.
    pub(super) fn completion_us(&self, more: u64) -> u64 {
        let micros = |bytes: u64, rate: u64| {
            u64::try_from(u128::from(bytes) * 1_000_000 / u128::from(rate.max(1)))
                .unwrap_or(u64::MAX)
        };
        let rate = self.rate();
        let drained = micros(self.queued() + more, rate);
        let windows = self.sample.window_bytes.saturating_mul(1_000_000) / self.rtt_us();
        let held = match windows {
            1.. if windows < rate => micros(self.sample.unsent_bytes, windows) + self.rtt_us(),
            _ => 0,
        };
        drained.max(held).max(self.rtt_us()).saturating_sub(self.least_us() / 2)
    }

    /// The host has taken `bytes` to send.
    pub(super) fn gave(&mut self, bytes: usize, now: Time) {
        if bytes > 0 {
            self.given += bytes as u64;
            self.sent_bytes += bytes as u64;
            self.waits.get_or_insert(now);
        }
    }

    /// The last message of a stream goes by this path.
    pub(super) fn said_last(&mut self, stream: StreamId) {
        if self.last_words.len() >= LAST_WORDS_MAX {
            self.last_words.drain(..LAST_WORDS_MAX / 2);
        }
        self.last_words.push(stream);
    }

    pub(super) fn came(&mut self, bytes: usize, now: Time) {
        self.received_bytes += bytes as u64;
        self.carries.note(self.carried(), now);
        self.alive = now;
    }

    /// `beside`: small streams are open.
    pub(super) fn sampled(&mut self, sample: Sample, beside: bool, now: Time) {
        if sample.acked_bytes > self.sample.acked_bytes {
            self.alive = now;
        }
        let bound = (self.bound(beside, now), beside);
        self.given = 0;
        let least_us = self.least_us();
        self.rate.sampled(&sample, bound, least_us, now);
        self.sample = sample;
        self.carries.note(self.carried(), now);
        if sample.outstanding_bytes == 0 && self.ping.is_none() {
            self.waits = None;
        }
    }

    /// Bytes that have reached this end and the peer's TCP.
    fn carried(&self) -> u64 {
        self.received_bytes + self.sample.acked_bytes
    }

    /// Bytes a second of late, in both directions.
    pub(super) fn carries(&self, now: Time) -> u64 {
        self.carries.rate(self.carried(), now)
    }

    /// Whether something is on its way without an answer: then it must be sampled.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits.is_some()
    }

    fn patience(&self) -> Duration {
        match self.stage {
            Stage::Up => DEAD_MIN.max(Duration::from_micros(3 * self.rto_us())),
            _ => HELLO_MAX,
        }
    }

    /// When it is dead, unless something comes first.
    pub(super) fn dies(&self) -> Option<Time> {
        match self.stage {
            // A sign of life from before the sending does not count.
            Stage::Up => self.waits.map(|since| since.max(self.alive).after(self.patience())),
            // The host bounds a dial; this bounds the host.
            Stage::Dialling => Some(self.since.after(3 * GREETING_MAX)),
            Stage::Ready => None,
            Stage::Greeting => Some(self.since.after(HELLO_MAX)),
        }
    }

    /// When it is pinged next.
    pub(super) fn pings_at(&self, each: Duration) -> Option<Time> {
        (self.is_up() && self.ping.is_none()).then(|| self.alive.after(each))
    }

    pub(super) fn next_ping(&mut self, now: Time) -> u64 {
        self.pings += 1;
        self.ping = Some((self.pings, now));
        self.waits.get_or_insert(now);
        self.pings
    }

    /// An answer came. An unsolicited one is not counted.
    pub(super) fn pong(&mut self, number: u64) {
        if self.ping.is_some_and(|(asked, _)| asked == number) {
            self.ping = None;
        }
    }
}
