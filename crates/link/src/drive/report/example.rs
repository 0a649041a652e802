//! A report for tests of what shows one.

use super::*;

/// A near end with a path, one that has ended, and a stream that waits.
#[expect(clippy::unwrap_used, reason = "literals")]
pub fn busy() -> Report {
    let addresses = Some(("10.0.0.1".parse().unwrap(), "10.0.0.2:6433".parse().unwrap()));
    let path = PathReport {
        path: 1,
        why: "always wanted".to_owned(),
        stage: "up".to_owned(),
        addresses,
        rests: false,
        age_s: 60.0,
        sent_bytes: 5,
        received_bytes: 6,
        rtt_us: 20_500,
        rtt_min_us: 20_000,
        congestion: "bbr".to_owned(),
        rate: 1_250_000,
        carries: 1_000_000,
        segments_sent: 1000,
        segments_again: 15,
    };
    let past = PastReport {
        path: 2,
        addresses,
        why: "dialled to find out what it adds".to_owned(),
        end: "it shared the limit of another one".to_owned(),
        ago_s: 3.0,
        lived_s: 8.0,
        times: 1,
    };
    let stream = StreamReport {
        stream: 4,
        target: "db:5432\x1b[2J".to_owned(),
        age_s: 12.0,
        sent_bytes: 7,
        received_bytes: 8,
        sent_rate: 0,
        received_rate: 125_000,
        waits_s: Some(4.2),
        held_bytes: 9,
        bulk: true,
        compressed_percent: Some(31),
    };
    let totals = Totals { streams_opened: 4, paths_lost: 1, ..Totals::default() };
    let session = SessionReport {
        name: "main".to_owned(),
        up: true,
        down_s: None,
        grace_s: 20.0,
        streams_open: 3,
        totals,
        paths: vec![path],
        past: vec![past],
        streams: vec![stream],
    };
    Report {
        name: "main".to_owned(),
        version: "0".to_owned(),
        uptime_s: 90,
        totals,
        fallbacks: Vec::new(),
        sessions: vec![session],
    }
}
