//! What a running endpoint is doing, as JSON and as a table.

use serde::Serialize;
use serde_json::Value;

use crate::proto::node::report::Report;

/// What `hawser rds info` gets: counts since the start, of each peer and lane, of each port.
#[derive(Debug, Serialize)]
pub struct Info {
    /// Where the endpoint listens.
    pub tcp_port: u16,
    /// Its state.
    #[serde(flatten)]
    pub report: Report,
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// One field, as text.
fn field(value: &Value, key: &str) -> String {
    match &value[key] {
        Value::String(text) => text.clone(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        other => other.to_string(),
    }
}

/// Columns of a table: the heading, the key in JSON, the width.
type Columns<'a> = &'a [(&'a str, &'a str, usize)];

const LANES: Columns<'_> = &[
    ("lane", "lane", 4),
    ("state", "state", 9),
    ("queued", "queued", 7),
    ("bytes", "queued_bytes", 10),
    ("unacknowledged", "unacknowledged_bytes", 14),
    ("next tx", "next_sequence", 16),
    ("next rx", "expected_sequence", 16),
    ("retrans", "retransmitted", 8),
    ("dups", "duplicates", 6),
    ("dropped", "dropped", 7),
    ("conns", "connections", 5),
];
const PORTS: Columns<'_> = &[
    ("port", "port", 5),
    ("queued", "queued", 7),
    ("bytes", "queued_bytes", 10),
    ("unacknowledged", "unacknowledged_bytes", 14),
    ("received", "received", 10),
    ("sent", "sent", 10),
    ("congested", "congested", 9),
];

/// The cells of a row, each to the right of its column.
fn row(columns: Columns<'_>, cell: impl Fn(&str, &str) -> String) -> String {
    let cells = columns.iter().map(|(head, key, width)| format!("{:>width$}", cell(head, key)));
    cells.collect::<Vec<_>>().join(" ") + "\n"
}

fn table(columns: Columns<'_>, rows: &[Value]) -> String {
    let rows = rows.iter().map(|of| row(columns, |_, key| field(of, key)));
    rows.fold(row(columns, |head, _| head.to_owned()), |text, row| text + &row)
}

/// The JSON of [`Info`], as tables.
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
        let (address, congested) = (field(peer, "address"), field(peer, "congested_ports"));
        text += &format!("\npeer {address}: {lanes}, {who}, {congested} ports congested\n");
        text += &table(LANES, list(peer, "lanes"));
    }
    if !list(value, "ports").is_empty() {
        text += "\n";
        text += &table(PORTS, list(value, "ports"));
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
        let info = Info { tcp_port: 16_385, report: node.report() };
        let json = serde_json::to_value(info).unwrap();
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
