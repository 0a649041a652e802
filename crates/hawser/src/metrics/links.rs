//! Links -> Prometheus's families of metrics; nothing where none runs.
//!
//! # Model
//! Counters are a link's, over all its sessions. Gauges are a session's, and a *line*'s: what goes between
//! the same two addresses, for paths come and go, each with a number of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use hawser_link::drive::report::{PathReport, Report, SessionReport, Totals};

use super::families::{counts, gauges};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

/// What goes between two addresses.
#[derive(Default)]
struct Line {
    up: u64,
    carries: u64,
    segments_sent: u64,
    segments_again: u64,
    /// The least smoothed round trip of its paths.
    rtt_us: Option<u32>,
}

/// Link, session, own address, peer's address.
type Lines = BTreeMap<(String, String, String, String), Line>;

fn sessions(
    reports: &[Arc<Report>],
) -> impl Iterator<Item = ([(&'static str, &str); 2], &SessionReport)> {
    reports.iter().flat_map(|report| {
        report.sessions.iter().map(|session| {
            ([("link", report.name.as_str()), ("session", session.name.as_str())], session)
        })
    })
}

fn lines(reports: &[Arc<Report>]) -> Lines {
    let mut lines = Lines::new();
    for (labels, session) in sessions(reports) {
        for path in session.paths.iter().filter(|path| path.stage == "up") {
            let Some((own, peer)) = path.addresses else { continue };
            let [(_, link), (_, session)] = labels;
            let key = (link.to_owned(), session.to_owned(), own.to_string(), peer.ip().to_string());
            let line = lines.entry(key).or_default();
            line.up += 1;
            line.carries += path.carries;
            line.segments_sent += u64::from(path.segments_sent);
            line.segments_again += u64::from(path.segments_again);
            if path.rtt_us > 0 {
                line.rtt_us = Some(line.rtt_us.map_or(path.rtt_us, |least| least.min(path.rtt_us)));
            }
        }
    }
    lines
}

fn state_of(path: &PathReport) -> &'static str {
    match path.stage.as_str() {
        "up" if path.rests => "resting",
        "up" => "up",
        _ => "dialling",
    }
}

/// Of all links.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, reports: &[Arc<Report>]) -> fmt::Result {
    if reports.is_empty() {
        return Ok(());
    }
    totals(encoder, reports)?;
    let help = "1 where a path of a link's session works, 0 while its connections wait for one";
    let up = sessions(reports).map(|(labels, session)| (labels, u64::from(session.up)));
    gauges(encoder, "link_up", help, None, up)?;
    let help = "Connections that a link's session carries";
    let open = sessions(reports).map(|(labels, session)| (labels, session.streams_open as u64));
    gauges(encoder, "link_streams", help, None, open)?;
    let help = "Paths of a link's session: up carries, resting carries only where no other does, \
                dialling is on its way";
    let states = sessions(reports).flat_map(|([link, name], session)| {
        ["up", "resting", "dialling"].map(|state| {
            let count = session.paths.iter().filter(|path| state_of(path) == state).count();
            ([link, name, ("state", state)], count as u64)
        })
    });
    gauges(encoder, "link_paths", help, None, states)?;
    let help = "For how long a stream of a link's session has waited that the other end takes \
                something, at most";
    let stalls = sessions(reports).map(|(labels, session)| {
        let waits = session.streams.iter().filter_map(|stream| stream.waits_s);
        (labels, waits.fold(0.0, f64::max))
    });
    gauges(encoder, "link_stall", help, Some(&Unit::Seconds), stalls)?;
    of_lines(encoder, &lines(reports))
}

fn totals(encoder: &mut DescriptorEncoder<'_>, reports: &[Arc<Report>]) -> fmt::Result {
    type Read = fn(&Totals) -> u64;
    let all: [(&str, &str, Option<Unit>, Read); 8] = [
        ("link_streams_opened", "Connections that links have carried", None, |t| t.streams_opened),
        (
            "link_streams_reset",
            "Connections carried by links that either end has reset",
            None,
            |t| t.streams_reset,
        ),
        ("link_taken", "Bytes from local connections of links", Some(Unit::Bytes), |t| {
            t.taken_bytes
        }),
        ("link_delivered", "Bytes to local connections of links", Some(Unit::Bytes), |t| {
            t.delivered_bytes
        }),
        (
            "link_again",
            "Bytes that links have sent again by another path",
            Some(Unit::Bytes),
            |t| t.again_bytes,
        ),
        ("link_paths_lost", "Paths that carried connections of links and have ended", None, |t| {
            t.paths_lost
        }),
        ("link_compressed_from", "Bytes that links have compressed", Some(Unit::Bytes), |t| {
            t.compressed_from_bytes
        }),
        ("link_compressed_to", "Compressed bytes that links have sent", Some(Unit::Bytes), |t| {
            t.compressed_to_bytes
        }),
    ];
    for (name, help, unit, read) in all {
        let of = |report: &'_ Arc<Report>| read(&report.totals);
        let values = reports.iter().map(|report| ([("link", report.name.as_str())], of(report)));
        counts(encoder, name, help, unit.as_ref(), values)?;
    }
    Ok(())
}

fn of_lines(encoder: &mut DescriptorEncoder<'_>, lines: &Lines) -> fmt::Result {
    type Read = fn(&Line) -> Option<f64>;
    let all: [(&str, &str, Option<Unit>, Read); 4] = [
        ("link_line_paths", "Paths of a link between two addresses", None, |line| {
            Some(line.up as f64)
        }),
        (
            "link_line_carries",
            "Bytes a second that the paths of a link between two addresses carry now, both ways",
            Some(Unit::Bytes),
            |line| Some(line.carries as f64),
        ),
        (
            "link_line_round_trip",
            "The least round trip of a link's paths between two addresses",
            Some(Unit::Seconds),
            |line| line.rtt_us.map(|us| f64::from(us) / 1e6),
        ),
        (
            "link_line_sent_again",
            "Share of segments that TCP has retransmitted on a link's paths between two addresses",
            Some(Unit::Other("ratio".to_owned())),
            |line| Some(line.segments_again as f64 / (line.segments_sent as f64).max(1.0)),
        ),
    ];
    for (name, help, unit, read) in all {
        let values = lines.iter().filter_map(|((link, session, own, peer), line)| {
            let labels = [("link", link), ("session", session), ("own", own), ("peer", peer)];
            Some((labels.map(|(name, value)| (name, value.as_str())), read(line)?))
        });
        gauges(encoder, name, help, unit.as_ref(), values)?;
    }
    Ok(())
}
