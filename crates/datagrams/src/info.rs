//! What a running endpoint is doing, as JSON and as a table.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::proto::node::report::Report;

/// A report as JSON: counts since the start, of each peer and lane, of each port.
#[must_use]
pub fn to_json(report: &Report, tcp_port: u16) -> Value {
    let peers = report.peers.iter().map(|peer| {
        let lanes = peer.lanes.iter().enumerate().map(|(at, lane)| {
            let counts = &lane.counts;
            json!({
                "lane": at,
                "state": lane.state,
                "queued": lane.queued,
                "queued_bytes": lane.queued_bytes,
                "unacknowledged_bytes": lane.unacknowledged_bytes,
                "next_sequence": lane.next_sequence,
                "expected_sequence": lane.expected,
                "sent": counts.sent,
                "received": counts.received,
                "retransmitted": counts.again,
                "duplicates": counts.duplicates,
                "dropped": counts.dropped,
                "connections": counts.connections,
                "bytes_sent": counts.bytes_sent,
                "bytes_received": counts.bytes_received,
            })
        });
        json!({
            "address": peer.address,
            "dials": peer.dials,
            "paths": peer.paths,
            "generation": peer.generation,
            "ports_name_lanes": peer.port_is_lane,
            "congested_ports": peer.congested_ports,
            "memory_bytes": peer.memory,
            "lanes": lanes.collect::<Vec<_>>(),
        })
    });
    let ports = report.ports.iter().map(|port| {
        json!({
            "port": port.port,
            "queued": port.queued,
            "queued_bytes": port.queued_bytes,
            "unacknowledged_bytes": port.sent_bytes,
            "congested": port.congested,
            "received": port.received,
            "sent": port.sent,
        })
    });
    let totals = &report.totals;
    json!({
        "address": report.address,
        "tcp_port": tcp_port,
        "generation": report.generation,
        "messages_to_no_port": totals.no_port,
        "pings": totals.pings,
        "pings_unanswered": totals.pings_unanswered,
        "maps_received": totals.maps_received,
        "maps_sent": totals.maps_sent,
        "connections_refused": totals.refused,
        "left_behind": totals.left_behind,
        "peers": peers.collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
    })
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// One field, as text.
fn field(value: &Value, key: &str) -> String {
    match &value[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What [`to_json`] has made, as tables.
#[must_use]
pub fn to_text(value: &Value) -> String {
    let mut text = format!(
        "{} TCP port {}, generation {}\n",
        field(value, "address"),
        field(value, "tcp_port"),
        field(value, "generation")
    );
    for peer in list(value, "peers") {
        let lanes = match peer["paths"].as_u64() {
            Some(0) | None => "lanes not known yet".to_owned(),
            Some(count) => format!("{count} lanes"),
        };
        let who = if peer["dials"].as_bool() == Some(true) { "dialled" } else { "dials" };
        let congested = field(peer, "congested_ports");
        let _ = writeln!(
            text,
            "\npeer {}: {lanes}, {who}, {congested} ports congested",
            field(peer, "address")
        );
        let _ = writeln!(
            text,
            "{:>4} {:>9} {:>7} {:>10} {:>14} {:>16} {:>16} {:>8} {:>6} {:>7} {:>5}",
            "lane",
            "state",
            "queued",
            "bytes",
            "unacknowledged",
            "next tx",
            "next rx",
            "retrans",
            "dups",
            "dropped",
            "conns"
        );
        for lane in list(peer, "lanes") {
            let _ = writeln!(
                text,
                "{:>4} {:>9} {:>7} {:>10} {:>14} {:>16} {:>16} {:>8} {:>6} {:>7} {:>5}",
                field(lane, "lane"),
                field(lane, "state"),
                field(lane, "queued"),
                field(lane, "queued_bytes"),
                field(lane, "unacknowledged_bytes"),
                field(lane, "next_sequence"),
                field(lane, "expected_sequence"),
                field(lane, "retransmitted"),
                field(lane, "duplicates"),
                field(lane, "dropped"),
                field(lane, "connections")
            );
        }
    }
    if !list(value, "ports").is_empty() {
        let _ = writeln!(
            text,
            "\n{:>5} {:>7} {:>10} {:>14} {:>10} {:>10} congested",
            "port", "queued", "bytes", "unacknowledged", "received", "sent"
        );
    }
    for port in list(value, "ports") {
        let congested = if port["congested"].as_bool() == Some(true) { "yes" } else { "no" };
        let _ = writeln!(
            text,
            "{:>5} {:>7} {:>10} {:>14} {:>10} {:>10} {congested}",
            field(port, "port"),
            field(port, "queued"),
            field(port, "queued_bytes"),
            field(port, "unacknowledged_bytes"),
            field(port, "received"),
            field(port, "sent")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::proto::node::{Config, Node};
    use hawser_time::Time;

    use super::*;

    #[test]
    fn every_lane_and_port_has_a_line() {
        let mut node = Node::new(Config::new([127, 0, 0, 1].into(), 5, 1));
        let port = node.bind(4001).unwrap();
        node.send(port, ([127, 0, 0, 2].into(), 9), b"hello", Time::ZERO).unwrap();
        let json = to_json(&node.report(), 16_385);
        let of_lanes = |key: &str| -> u64 {
            list(&json["peers"][0], "lanes").iter().filter_map(|lane| lane[key].as_u64()).sum()
        };
        assert_eq!((of_lanes("queued_bytes"), of_lanes("unacknowledged_bytes")), (5 + 48, 0));
        assert_eq!(json["peers"][0]["address"], "127.0.0.2");
        assert_eq!(json["ports"][0]["unacknowledged_bytes"], 5 + 48);
        let text = to_text(&json);
        assert!(text.contains("peer 127.0.0.2: lanes not known yet, dialled"), "{text}");
        assert!(text.contains("dialling"), "{text}");
        assert!(text.lines().any(|line| line.trim_start().starts_with("4001")), "{text}");
    }
}
