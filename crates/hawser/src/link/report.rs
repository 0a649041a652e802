//! What a link is doing: for `hawser link status`, `hawser status` and metrics.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use hawser_core::time::Time;
use serde::{Deserialize, Serialize};

use super::carrier::Carrier;

/// Streams that a report lists; it counts all.
const STREAMS_LISTED_MAX: usize = 100;
/// The longest report that is read.
const REPORT_BYTES_MAX: u64 = 4 << 20;
const READ_WAIT: Duration = Duration::from_secs(5);

/// A link.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// Hawser's version.
    pub version: String,
    /// For how long it has run.
    pub uptime_s: u64,
    /// The near end has one; the far end one for each near end.
    pub sessions: Vec<SessionReport>,
}

/// A session.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SessionReport {
    /// The link, or the peer's key.
    pub name: String,
    /// Whether a path works.
    pub up: bool,
    /// Streams that are open.
    pub streams_open: usize,
    /// Streams that were opened, and that were reset by either end.
    pub streams_opened: u64,
    /// See `streams_opened`.
    pub streams_reset: u64,
    /// Bytes from local connections, and bytes that they were given.
    pub taken_bytes: u64,
    /// See `taken_bytes`.
    pub delivered_bytes: u64,
    /// Bytes of streams that were sent again by another path.
    pub again_bytes: u64,
    /// Paths that have carried streams and have ended.
    pub paths_lost: u64,
    /// Its paths.
    pub paths: Vec<PathReport>,
    /// The first of its streams.
    pub streams: Vec<StreamReport>,
}

/// A path.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PathReport {
    /// Its number at this end.
    pub path: u64,
    /// `dialling`, `ready`, `greeting`, `up`.
    pub stage: String,
    /// This end's address and the peer's, once they are known.
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
    /// What it is taken to carry, bytes a second.
    pub rate: u64,
    /// Segments that TCP has sent again.
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
    /// Bytes that are kept for it.
    pub held_bytes: usize,
    /// Whether it uses all paths.
    pub bulk: bool,
}

impl Report {
    /// Of these sessions.
    pub(super) fn of<'a>(
        name: &str,
        carriers: impl Iterator<Item = &'a Carrier>,
        uptime: Duration,
        now: Time,
    ) -> Self {
        Self {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: uptime.as_secs(),
            sessions: carriers.map(|carrier| SessionReport::of(carrier, now)).collect(),
        }
    }

    /// For reading.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let _ = self.write_text(&mut text); // writing to a string does not fail
        text
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "link {}, for {} s", self.name, self.uptime_s)?;
        for session in &self.sessions {
            let state = if session.up { "up" } else { "no path works" };
            writeln!(
                out,
                "session {}: {state}, {} streams, {} paths lost, {} bytes sent again",
                session.name, session.streams_open, session.paths_lost, session.again_bytes
            )?;
            writeln!(
                out,
                "  {:>5} {:<9} {:>9} {:>10} {:>10} {:>14} {:>14} {:>6}  between",
                "path", "stage", "age s", "rtt ms", "Mbit/s", "sent", "received", "again"
            )?;
            for path in &session.paths {
                writeln!(
                    out,
                    "  {:>5} {:<9} {:>9.1} {:>10.2} {:>10.1} {:>14} {:>14} {:>6}  {}",
                    path.path,
                    if path.rests { "rests" } else { &path.stage },
                    path.age_s,
                    f64::from(path.rtt_us) / 1e3,
                    path.rate as f64 * 8.0 / 1e6,
                    path.sent_bytes,
                    path.received_bytes,
                    path.segments_again,
                    path.between()
                )?;
            }
            for stream in &session.streams {
                writeln!(
                    out,
                    "  stream {} to {}: {:.1} s, {} sent, {} received, {} held{}",
                    stream.stream,
                    // A peer has written it.
                    crate::logging::without_control(&stream.target),
                    stream.age_s,
                    stream.sent_bytes,
                    stream.received_bytes,
                    stream.held_bytes,
                    if stream.bulk { ", on all paths" } else { "" }
                )?;
            }
        }
        Ok(())
    }
}

impl PathReport {
    /// Its addresses, for reading.
    #[must_use]
    pub fn between(&self) -> String {
        self.addresses.map_or_else(String::new, |(own, peer)| format!("{own} and {peer}"))
    }
}

impl SessionReport {
    fn of(carrier: &Carrier, now: Time) -> Self {
        let session = carrier.session();
        let counts = session.counts();
        let paths = session.path_reports(now).into_iter().map(|path| PathReport {
            path: path.id.0,
            stage: format!("{:?}", path.stage).to_lowercase(),
            addresses: carrier.addresses(path.id),
            rests: path.rests,
            age_s: path.age.as_secs_f64(),
            sent_bytes: path.bytes.0,
            received_bytes: path.bytes.1,
            rtt_us: path.sample.rtt_us,
            rate: path.rate,
            segments_again: path.sample.segments_again,
        });
        let streams = session.stream_reports(STREAMS_LISTED_MAX, now).into_iter();
        let streams = streams.map(|stream| StreamReport {
            stream: stream.id.0,
            target: stream.target.into(),
            age_s: stream.age.as_secs_f64(),
            sent_bytes: stream.bytes.0,
            received_bytes: stream.bytes.1,
            held_bytes: stream.held,
            bulk: stream.is_bulk,
        });
        Self {
            name: carrier.name().to_owned(),
            up: session.is_up(),
            streams_open: session.stream_count(),
            streams_opened: counts.opened,
            streams_reset: counts.reset,
            taken_bytes: counts.taken_bytes,
            delivered_bytes: counts.delivered_bytes,
            again_bytes: counts.again_bytes,
            paths_lost: counts.paths_lost,
            paths: paths.collect(),
            streams: streams.collect(),
        }
    }
}

/// Asks a running link.
///
/// # Errors
/// Nothing listens at `path`, or what answers is no link.
pub fn ask(path: &Path) -> io::Result<Report> {
    let stream = std::os::unix::net::UnixStream::connect(path)?;
    stream.set_read_timeout(Some(READ_WAIT))?;
    let mut answer = Vec::new();
    stream.take(REPORT_BYTES_MAX).read_to_end(&mut answer)?;
    serde_json::from_slice(&answer).map_err(io::Error::other)
}
