//! What a link is doing: for `hawser link status` and `top`, `hawser status` and metrics.
//!
//! # Model
//! The worker makes a [`Report`] of its sessions; all else is made of that: lines of text ([`Report::lines`])
//! for those that read, JSON for programs, gauges and counters for metrics.

#[doc(hidden)]
pub mod example;

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use hawser_sys::terminal::without_control;
use hawser_time::Time;
use serde::{Deserialize, Serialize};

use super::carrier::Carrier;
use crate::proto::PathId;
pub use crate::proto::report::{PathReport, StreamReport, Totals};

/// Streams that a report lists, the busiest first; it counts all.
const STREAMS_LISTED_MAX: usize = 100;
/// The longest report that is read.
const REPORT_BYTES_MAX: u64 = 4 << 20;
const READ_WAIT: Duration = Duration::from_secs(5);
/// A stream of which the other end takes nothing for so long is worth a word.
const STALL_S: f64 = 1.0;

/// A link.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// Hawser's version.
    pub version: String,
    /// For how long it has run.
    pub uptime_s: u64,
    /// Since it runs, sessions that have ended included.
    #[serde(default)]
    pub totals: Totals,
    /// What does not work on this host, and what is done instead.
    #[serde(default)]
    pub fallbacks: Vec<String>,
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
    /// For how long none has.
    #[serde(default)]
    pub down_s: Option<f64>,
    /// For how long streams wait then.
    #[serde(default)]
    pub grace_s: f64,
    /// Streams that are open.
    pub streams_open: usize,
    /// Counters.
    #[serde(flatten)]
    pub totals: Totals,
    /// Its paths.
    pub paths: Vec<PathReport>,
    /// The last that have ended, the newest first.
    #[serde(default)]
    pub past: Vec<PastReport>,
    /// The busiest of its streams.
    pub streams: Vec<StreamReport>,
}

/// A path that has ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PastReport {
    /// Its number at this end; of dials that failed, the last one's.
    pub path: u64,
    /// Between which addresses, as far as they were known.
    pub addresses: Option<(IpAddr, SocketAddr)>,
    /// Why it was there.
    pub why: String,
    /// Why it has ended.
    pub end: String,
    /// How long ago.
    pub ago_s: f64,
    /// For how long it was there.
    pub lived_s: f64,
    /// Dials that have failed one after the other.
    pub times: u32,
}

/// What a line of a report is, for those that show it in colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Of a link, or of columns.
    Head,
    /// Something is as it should be.
    Fine,
    /// Something that is over.
    Past,
    /// Something does not go on.
    Wrong,
}

impl Report {
    /// Of these sessions; `past`: what those have counted that have ended.
    pub(super) fn of<'a>(
        name: &str,
        past: Totals,
        carriers: impl Iterator<Item = &'a Carrier>,
        uptime: Duration,
        now: Time,
    ) -> Self {
        let mut totals = past;
        let sessions = carriers.map(|carrier| {
            totals = totals.plus(carrier.session().counts());
            SessionReport::of(carrier, now)
        });
        let sessions = sessions.collect();
        Self {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: uptime.as_secs(),
            totals,
            fallbacks: Vec::new(),
            sessions,
        }
    }

    /// For reading; of each session at most so many streams.
    #[must_use]
    pub fn to_text(&self, streams_max: usize) -> String {
        self.lines(streams_max).into_iter().map(|(_, line)| line + "\n").collect()
    }

    /// The same, line by line.
    #[must_use]
    pub fn lines(&self, streams_max: usize) -> Vec<(Kind, String)> {
        let head = format!("link {}, for {} s", without_control(&self.name), self.uptime_s);
        let mut lines = vec![(Kind::Head, head)];
        let fallbacks = self.fallbacks.iter().map(|text| without_control(text));
        lines.extend(fallbacks.map(|text| (Kind::Wrong, format!("fallback: {text}"))));
        if self.sessions.is_empty() {
            lines.push((Kind::Fine, "no session: no near end is here".to_owned()));
        }
        for session in &self.sessions {
            session.add_lines(streams_max, &mut lines);
        }
        lines
    }
}

/// `1.2 and 10.0.0.2:6433`, for reading.
fn between(addresses: Option<(IpAddr, SocketAddr)>) -> String {
    addresses.map_or_else(String::new, |(own, peer)| format!("{own} and {peer}"))
}

fn megabits(bytes: u64) -> f64 {
    bytes as f64 * 8.0 / 1e6
}

impl PathReport {
    /// The part of all segments that was sent again, percent.
    #[must_use]
    pub fn loss_percent(&self) -> f64 {
        100.0 * f64::from(self.segments_again) / f64::from(self.segments_sent.max(1))
    }

    fn line(&self) -> String {
        format!(
            "  {:>5} {:<8} {:>9.1} {:>8.2} {:>9.1} {:>9.1} {:>6.2} {:<8} {}, {}",
            self.path,
            if self.rests { "rests" } else { &self.stage },
            self.age_s,
            f64::from(self.rtt_us) / 1e3,
            megabits(self.rate),
            megabits(self.carries),
            self.loss_percent(),
            self.congestion,
            between(self.addresses),
            self.why,
        )
    }
}

impl PastReport {
    fn line(&self) -> String {
        let Self { path, ago_s, lived_s, why, end, times, .. } = self;
        let between = match between(self.addresses) {
            known if known.is_empty() => String::new(),
            known => format!(" between {known}"),
        };
        let times = if *times > 1 { format!(", {times} times") } else { String::new() };
        format!(
            "  {ago_s:.0} s ago path {path}{between} ended ({why}, for {lived_s:.1} s): {end}{times}"
        )
    }
}

impl StreamReport {
    fn line(&self) -> String {
        let stalls = match self.waits_s {
            Some(waits) if waits >= STALL_S => {
                format!(", the other end has taken nothing for {waits:.0} s")
            }
            _ => String::new(),
        };
        let compressed = self.compressed_percent;
        let compressed = compressed.map_or_else(String::new, |part| format!(", sent as {part} %"));
        format!(
            "  stream {} to {}: {:.1} s, sends {:.1} Mbit/s ({} bytes), receives {:.1} ({}), {} held{}{compressed}{stalls}",
            self.stream,
            // A peer has written it.
            without_control(&self.target),
            self.age_s,
            megabits(self.sent_rate),
            self.sent_bytes,
            megabits(self.received_rate),
            self.received_bytes,
            self.held_bytes,
            if self.bulk { ", on all paths" } else { "" }
        )
    }

    fn stalls(&self) -> bool {
        self.waits_s.is_some_and(|waits| waits >= STALL_S)
    }
}

impl SessionReport {
    fn of(carrier: &Carrier, now: Time) -> Self {
        let session = carrier.session();
        let paths = session.path_reports(now).into_iter().map(|path| PathReport {
            addresses: carrier.addresses(PathId(path.path)),
            congestion: carrier.congestion(PathId(path.path)).unwrap_or_default(),
            ..path
        });
        let past = session.past_paths().map(|past| PastReport {
            path: past.id.0,
            addresses: carrier.addresses(past.id),
            why: past.origin.to_string(),
            end: past.end.to_string(),
            ago_s: now.since(past.ended).as_secs_f64(),
            lived_s: past.lived.as_secs_f64(),
            times: past.times,
        });
        let mut past: Vec<_> = past.collect();
        past.reverse();
        Self {
            name: carrier.name().to_owned(),
            up: session.is_up(),
            down_s: session.down_for(now).map(|down| down.as_secs_f64()),
            grace_s: session.grace().as_secs_f64(),
            streams_open: session.stream_count(),
            totals: session.counts(),
            paths: paths.collect(),
            past,
            streams: session.stream_reports(STREAMS_LISTED_MAX, now),
        }
    }

    fn add_lines(&self, streams_max: usize, lines: &mut Vec<(Kind, String)>) {
        let name = without_control(&self.name);
        let state = match self.down_s {
            None => "up".to_owned(),
            Some(down) if self.streams_open == 0 => format!("no path works, for {down:.0} s"),
            Some(down) => {
                let left = (self.grace_s - down).max(0.0);
                format!("no path works, for {down:.0} s; connections are reset in {left:.0} s")
            }
        };
        let kind = if self.up { Kind::Fine } else { Kind::Wrong };
        let (streams, totals) = (self.streams_open, &self.totals);
        lines.push((
            kind,
            format!(
                "session {name}: {state}, {streams} streams, {} paths lost, {} bytes sent again",
                totals.paths_lost, totals.again_bytes
            ),
        ));
        if !self.paths.is_empty() {
            let head = format!(
                "  {:>5} {:<8} {:>9} {:>8} {:>9} {:>9} {:>6} {:<8} between, why",
                "path", "stage", "age s", "rtt ms", "Mbit/s", "carries", "loss %", "control"
            );
            lines.push((Kind::Head, head));
        }
        for path in &self.paths {
            let kind = if path.stage == "up" { Kind::Fine } else { Kind::Past };
            lines.push((kind, path.line()));
        }
        lines.extend(self.past.iter().map(|past| (Kind::Past, past.line())));
        for stream in self.streams.iter().take(streams_max) {
            let kind = if stream.stalls() { Kind::Wrong } else { Kind::Fine };
            lines.push((kind, stream.line()));
        }
        let more = self.streams_open.saturating_sub(self.streams.len().min(streams_max));
        if more > 0 && streams_max > 0 {
            lines.push((Kind::Fine, format!("  and {more} streams that carry less")));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_their_reasons_and_what_stalls_can_be_read() {
        let mut report = example::busy();
        let text = report.to_text(8);
        for part in [
            "session main: up, 3 streams, 1 paths lost",
            "20.50      10.0       8.0   1.50 bbr      10.0.0.1 and 10.0.0.2:6433, always wanted",
            "3 s ago path 2 between 10.0.0.1 and 10.0.0.2:6433 ended (dialled to find out what it \
             adds, for 8.0 s): it shared the limit of another one",
            "receives 1.0 (8), 9 held, on all paths, sent as 31 %, the other end has taken nothing for 4 s",
            "and 2 streams that carry less",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains('\x1b'));
        let session = &mut report.sessions[0];
        (session.up, session.down_s) = (false, Some(6.0));
        let (kind, line) = report.lines(0)[1].clone();
        assert_eq!(kind, Kind::Wrong);
        assert!(line.contains("no path works, for 6 s; connections are reset in 14 s"), "{line}");
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
