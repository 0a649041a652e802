//! The state of a node at a moment.

use serde::Serialize;

use super::{Counts, IpAddr, Node, Totals};

/// A lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneReport {
    /// Its number.
    pub lane: usize,
    /// One word.
    pub state: &'static str,
    /// Messages that are kept until TCP has acknowledged them, and their bytes with headers.
    pub queued: usize,
    /// See `queued`.
    pub queued_bytes: usize,
    /// Of these bytes, those that were given to the connection. A message counts until all of it is
    /// acknowledged.
    pub unacknowledged_bytes: usize,
    /// The number of the next message to be sent.
    pub next_sequence: u64,
    /// The least number that is new among those that come.
    #[serde(rename = "expected_sequence")]
    pub expected: u64,
    /// What it has done.
    #[serde(flatten)]
    pub counts: Counts,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerReport {
    /// Its address.
    pub address: IpAddr,
    /// Whether this host dials.
    pub dials: bool,
    /// Lanes that are used; 0 until it has said.
    pub paths: usize,
    /// Its generation; 0 if it has not said.
    pub generation: u32,
    /// Whether its source ports name lanes.
    #[serde(rename = "ports_name_lanes")]
    pub port_is_lane: bool,
    /// Ports of its that take no more.
    pub congested_ports: usize,
    /// Bytes of memory that it takes here, without sockets.
    #[serde(rename = "memory_bytes")]
    pub memory: usize,
    /// Its lanes.
    pub lanes: Vec<LaneReport>,
}

/// A port of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortReport {
    /// Its number.
    pub port: u16,
    /// Messages in its queue, and bytes.
    pub queued: usize,
    /// See `queued`.
    pub queued_bytes: usize,
    /// Bytes that it has sent and no peer has acknowledged.
    #[serde(rename = "unacknowledged_bytes")]
    pub sent_bytes: usize,
    /// Whether the port is announced to peers as congested.
    pub congested: bool,
    /// Messages that came and that were sent, ever.
    pub received: u64,
    /// See `received`.
    pub sent: u64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// This host.
    pub address: IpAddr,
    /// Its generation.
    pub generation: u32,
    /// Counts since its start.
    #[serde(flatten)]
    pub totals: Totals,
    /// By address.
    pub peers: Vec<PeerReport>,
    /// By number.
    pub ports: Vec<PortReport>,
}

impl Node {
    /// Its present state.
    #[must_use]
    pub fn report(&self) -> Report {
        let peers = self.by_address.values().filter_map(|at| self.peers.get(at));
        let peers = peers.map(|peer| PeerReport {
            address: peer.address,
            dials: peer.dials,
            paths: peer.paths,
            generation: peer.generation,
            port_is_lane: peer.port_is_lane,
            congested_ports: peer.congested.count(),
            memory: peer.memory(),
            lanes: peer
                .lanes
                .iter()
                .enumerate()
                .map(|(number, lane)| {
                    let (queued, queued_bytes, next_sequence) = lane.queued();
                    LaneReport {
                        lane: number,
                        state: lane.link.state.name(),
                        queued,
                        queued_bytes,
                        unacknowledged_bytes: lane.unacknowledged(),
                        next_sequence,
                        expected: lane.numbers.expected(),
                        counts: lane.counts,
                    }
                })
                .collect(),
        });
        Report { peers: peers.collect(), ..self.report_of_ports() }
    }

    /// The same without peers: with many that is much less.
    #[must_use]
    pub fn report_of_ports(&self) -> Report {
        let ports = self.ports.iter().map(|(number, port)| PortReport {
            port: *number,
            queued: port.queue.len(),
            queued_bytes: port.queued_bytes,
            sent_bytes: port.sent_bytes,
            congested: port.congested,
            received: port.received,
            sent: port.sent,
        });
        Report {
            address: self.config.address,
            generation: self.config.generation,
            totals: self.totals,
            peers: Vec::new(),
            ports: ports.collect(),
        }
    }
}
