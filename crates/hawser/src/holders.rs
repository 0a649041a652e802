//! Who has a server connection: clients that keep one without work for it, and the lines to both ends.
//!
//! # Model   the loops are asked for the clients that have a server connection. That costs in proportion to
//!           server connections, not to clients; `hawser doctor`, `hawser status` and the pages use it
//! # Limits  lines of connections that are lent or idle at this moment: over time, those at work are there
//!           most often

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use hawser_congestion::tuner::destination::Prefix;
use hawser_pooler::ids::PoolId;
use hawser_pooler::relay::message::{ClientRow, Listed};
use hawser_pooler::relay::{Line, Socket};
use hawser_pooler::time::Time;
use serde::{Deserialize, Serialize};

use crate::admin::pooler::Pooler;
use crate::admin::show::client_number;
use crate::loops::Pool;
use crate::loops::pages::{LoopSilent, Pages};

/// Shorter ones are usual within a transaction.
const IDLE_US_MIN: u64 = 1_000_000;
/// Clients that are named, those that have kept their server connection longest.
const NAMED_MAX: usize = 500;
/// Lines that are told of, those with the most segments.
const LINES_MAX: usize = 100;

/// Pinned clients by reason, and for how many seconds one of them has been pinned, at most.
pub type Pins = BTreeMap<&'static str, (u64, u64)>;

/// What the loops have said.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// Clients that keep a server connection without work for it, the longest first.
    pub keeping: Vec<KeepingStatus>,
    /// Pinned clients.
    pub pins: Pins,
    /// Lines to servers and to networks of clients.
    pub lines: Vec<LineStatus>,
}

/// A client that keeps a server connection: idle in a transaction, or pinned.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KeepingStatus {
    /// The database of its pool.
    pub database: String,
    /// The user of its pool.
    pub pool_user: String,
    /// Its own user.
    pub user: String,
    /// Its address, or `unix`.
    pub address: String,
    /// Its application_name.
    pub application_name: String,
    /// Its number for KILL_CLIENT.
    pub id: u32,
    /// For how long it has been idle in a transaction.
    pub idle_in_transaction_us: Option<u64>,
    /// Why it is pinned.
    pub pins: Vec<String>,
    /// For how long it has been pinned.
    pub pinned_us: u64,
}

impl KeepingStatus {
    fn kept_us(&self) -> u64 {
        self.pinned_us.max(self.idle_in_transaction_us.unwrap_or(0))
    }
}

/// What TCP has measured, over connections that share a path, since each began.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LineStatus {
    /// The server as it is configured, or the network of clients.
    pub peer: String,
    /// Whether the peer is a server.
    pub to_server: bool,
    /// How many connections.
    pub connections: u32,
    /// The longest smoothed round trip.
    pub rtt_us: u32,
    /// The least round trip.
    pub rtt_min_us: u32,
    /// Segments that Hawser has sent.
    pub segments_sent: u64,
    /// Those that it has sent again.
    pub segments_again: u64,
    /// Time with something to send or under way.
    pub busy_us: u64,
    /// Of that, time in which the peer's window was full.
    pub receiver_limited_us: u64,
    /// Of that, time in which Hawser's send buffer was full.
    pub buffer_limited_us: u64,
    /// The congestion control algorithm of the connection that was seen first.
    pub algorithm: String,
}

impl LineStatus {
    fn add(&mut self, line: &Line) {
        if self.connections == 0 {
            (self.rtt_min_us, self.algorithm) = (u32::MAX, line.algorithm.clone());
        }
        self.connections += 1;
        self.rtt_us = self.rtt_us.max(line.rtt_us);
        self.rtt_min_us = self.rtt_min_us.min(line.rtt_min_us);
        self.segments_sent += line.segments_sent;
        self.segments_again += line.segments_again;
        self.busy_us += line.busy_us;
        self.receiver_limited_us += line.receiver_limited_us;
        self.buffer_limited_us += line.buffer_limited_us;
    }
}

/// A path: to a server, or to a network of clients.
type Lines = BTreeMap<(bool, String), LineStatus>;

impl Holders {
    /// Asks all loops. `asks_lines`: for the lines, too, with a system call for each connection.
    ///
    /// # Errors
    /// A loop did not answer.
    pub async fn gather(pooler: &dyn Pooler, asks_lines: bool) -> Result<Self, LoopSilent> {
        let loops = pooler.loops();
        let pools: HashMap<PoolId, Pool> =
            pooler.pools().into_iter().map(|entry| (entry.pool.id, entry.pool)).collect();
        let server = |id| pooler.place(id).map(|place| place.configured.to_string());
        let (mut gathered, mut lines) = (Self::default(), Lines::new());
        let mut pages = Pages::new(loops, Listed::Holders { lines: asks_lines }, false);
        while let Some(page) = pages.next().await? {
            for client in &page.clients {
                gathered.add(client, pools.get(&client.pool), loops.now(), loops.count());
                if let Some(line) = &client.line {
                    add(&mut lines, network(client.about.peer.ip()), false, line);
                }
            }
            for backend in &page.backends {
                if let Some(line) = &backend.line {
                    add(&mut lines, server(backend.server), true, line);
                }
            }
        }
        for pool in pools.values().filter(|_| asks_lines) {
            // As SHOW SERVERS: an idle connection can be asked nowhere else, and waits for nothing.
            let idle: Vec<_> = pool
                .lock()
                .idle_backends()
                .filter_map(|(_, backend)| Some((backend.server(), backend.socket().line()?)))
                .collect();
            for (id, line) in idle {
                add(&mut lines, server(id), true, &line);
            }
        }
        gathered.keeping.sort_by_key(|client| std::cmp::Reverse(client.kept_us()));
        gathered.keeping.truncate(NAMED_MAX);
        gathered.lines = lines.into_values().collect();
        gathered.lines.sort_by_key(|line| std::cmp::Reverse(line.segments_sent));
        gathered.lines.truncate(LINES_MAX);
        Ok(gathered)
    }

    fn add(&mut self, client: &ClientRow, pool: Option<&Pool>, now: Time, loops: usize) {
        let pinned_us = client.pinned_since.map_or(0, |since| now.micros_since(since));
        for part in client.pins.iter() {
            let (count, oldest) = self.pins.entry(part.name()).or_default();
            *count += 1;
            *oldest = (pinned_us / 1_000_000).max(*oldest);
        }
        let idle = client.idle_in_transaction.map(|since| now.micros_since(since));
        let idle = idle.filter(|idle| *idle >= IDLE_US_MIN);
        if idle.is_none() && client.pins.is_empty() {
            return;
        }
        self.keeping.push(KeepingStatus {
            database: client.database.clone(),
            pool_user: pool.map_or_else(|| client.user.clone(), |pool| pool.user.clone()),
            user: client.user.clone(),
            address: client.about.peer.to_string(),
            application_name: client.application_name.clone(),
            id: client_number(client.id, loops),
            idle_in_transaction_us: idle,
            pins: client.pins.iter().map(|part| part.name().to_owned()).collect(),
            pinned_us,
        });
    }
}

fn network(address: Option<IpAddr>) -> Option<String> {
    Prefix::of(address?).map(|network| network.to_string())
}

fn add(lines: &mut Lines, peer: Option<String>, to_server: bool, line: &Line) {
    let Some(peer) = peer else { return };
    let known = lines.entry((to_server, peer)).or_insert_with_key(|(to_server, peer)| LineStatus {
        peer: peer.clone(),
        to_server: *to_server,
        ..LineStatus::default()
    });
    known.add(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_path_are_summed_and_those_of_this_host_left_out() {
        let mut lines = Lines::new();
        let line = |rtt_us, algorithm: &str| Line {
            rtt_us,
            rtt_min_us: rtt_us - 5,
            segments_sent: 10,
            segments_again: 1,
            algorithm: algorithm.to_owned(),
            ..Line::default()
        };
        for (address, rtt_us) in [("192.0.2.1", 20), ("192.0.2.99", 10), ("127.0.0.1", 1_000)] {
            let peer = network(Some(address.parse().unwrap()));
            add(&mut lines, peer, false, &line(rtt_us, "cubic"));
        }
        add(&mut lines, network(None), false, &line(9, "cubic"));
        let of = &lines[&(false, "192.0.2.0/24".to_owned())];
        assert_eq!((lines.len(), of.connections, of.rtt_us, of.rtt_min_us), (1, 2, 20, 5));
        assert_eq!((of.segments_sent, of.segments_again, &*of.algorithm), (20, 2, "cubic"));
    }
}
