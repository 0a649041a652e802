//! What a session tells operators of itself, as `hawser link status --json` gives it.

use core::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Counters of a link or a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Streams that were opened, and that were reset by either end.
    pub streams_opened: u64,
    /// See `streams_opened`.
    pub streams_reset: u64,
    /// Bytes from local connections, and bytes that they have taken.
    pub taken_bytes: u64,
    /// See `taken_bytes`.
    pub delivered_bytes: u64,
    /// Bytes of streams that were sent again by another path.
    pub again_bytes: u64,
    /// Paths that have carried streams and have ended.
    pub paths_lost: u64,
    /// Bytes of streams that were compressed for a path, and what they came to.
    #[serde(default)]
    pub compressed_from_bytes: u64,
    /// See `compressed_from_bytes`.
    #[serde(default)]
    pub compressed_to_bytes: u64,
}

impl Totals {
    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            streams_opened: self.streams_opened + other.streams_opened,
            streams_reset: self.streams_reset + other.streams_reset,
            taken_bytes: self.taken_bytes + other.taken_bytes,
            delivered_bytes: self.delivered_bytes + other.delivered_bytes,
            again_bytes: self.again_bytes + other.again_bytes,
            paths_lost: self.paths_lost + other.paths_lost,
            compressed_from_bytes: self.compressed_from_bytes + other.compressed_from_bytes,
            compressed_to_bytes: self.compressed_to_bytes + other.compressed_to_bytes,
        }
    }
}

/// A path.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PathReport {
    /// Its number at this end.
    pub path: u64,
    /// Why it is there.
    #[serde(default)]
    pub why: String,
    /// `dialling`, `ready`, `greeting`, `up`.
    pub stage: String,
    /// This end's address and the peer's, once they are known: the host has them.
    pub addresses: Option<(IpAddr, SocketAddr)>,
    /// Whether it carries streams only where no other path does.
    pub rests: bool,
    /// For how long.
    pub age_s: f64,
    /// Bytes to the peer, without TLS's own.
    pub sent_bytes: u64,
    /// Bytes from the peer.
    pub received_bytes: u64,
    /// Smoothed round trip; 0: not known yet.
    pub rtt_us: u32,
    /// The least of late; 0: not known.
    #[serde(default)]
    pub rtt_min_us: u32,
    /// Its congestion control, which the host has.
    #[serde(default)]
    pub congestion: String,
    /// What it is taken to carry, bytes a second.
    pub rate: u64,
    /// What it has carried of late, in both directions, bytes a second: what it adds to the others.
    #[serde(default)]
    pub carries: u64,
    /// Segments that TCP has sent, and those of them that it sent again.
    #[serde(default)]
    pub segments_sent: u32,
    /// See `segments_sent`.
    pub segments_again: u32,
}

/// A stream.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StreamReport {
    /// Its number.
    pub stream: u64,
    /// Where it goes.
    pub target: String,
    /// For how long it has been open.
    pub age_s: f64,
    /// Bytes of the local connection that have arrived.
    pub sent_bytes: u64,
    /// Bytes that the local connection was given.
    pub received_bytes: u64,
    /// The same of late, bytes a second.
    #[serde(default)]
    pub sent_rate: u64,
    /// See `sent_rate`.
    #[serde(default)]
    pub received_rate: u64,
    /// For how long the other end's connection has taken nothing of what was sent; none: it has all.
    #[serde(default)]
    pub waits_s: Option<f64>,
    /// Bytes that are kept for it.
    pub held_bytes: usize,
    /// Whether it uses all paths.
    pub bulk: bool,
    /// What it sends is compressed to so many percent of late; none: it is sent as it is.
    #[serde(default)]
    pub compressed_percent: Option<u64>,
}
