//! Other poolers to which the same clients connect: a cancel request finds the one that serves its client.
//!
//! # Model
//! ```text
//!   client ── load balancer ──► any peer ── by the process id ──► the client's own ──► its loop
//! ```
//! A cancel request comes by a connection of its own, and so, behind a load balancer, to any of the peers.
//! The process id shows whose it is ([`peer_of_process`]). Clients of session mode have the id of a
//! server's process, which does not show it: all peers are asked.
//!
//! # Invariants
//! * a request is sent on only once: its key then ends with [`SENT_ON`], and its receiver keeps it
//! * at most [`IN_FLIGHT_MAX`] are under way to each peer at a time, each for `cancel_wait_timeout` at most;
//!   those that go to all peers, for [`OF_ALL_MAX`]: their sender waits, though its own pooler may
//!   have handled it
//!
//! # Limits
//! It goes in the clear, as clients send cancel requests: key and process id can be read on the network
//! between the peers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use hawser_pooler::parts::identity::process_ids::{OwnProcessIds, peer_of_process};
use hawser_pooler::wire::startup;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::config::{Peer, ServerAddress};
use crate::socket::stream::connect_unix;

/// The end of the key of a request that a peer has sent on. A client's own key has it by chance
/// with a probability of 2^-96.
const SENT_ON: &[u8] = b"\0hawser peer";

/// Requests to a peer that are under way at a time.
pub const IN_FLIGHT_MAX: u32 = 64;
/// How long a request may take that may be for any peer.
const OF_ALL_MAX: Duration = Duration::from_secs(1);

/// The process ids that clients of this pooler get. `peer_id`: 0 if it has no peers.
pub fn own_process_ids(peer_id: u32, start: u32) -> OwnProcessIds {
    match u8::try_from(peer_id) {
        Ok(peer) if peer > 0 => OwnProcessIds::of_peer(peer, start),
        _ => OwnProcessIds::all(start),
    }
}

/// A cancel request, as a client or a peer has sent it.
#[derive(Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// The process id in it.
    pub process: u32,
    /// The key of the client that it is for.
    pub key: &'a [u8],
    /// A peer has sent it on.
    pub sent_on: bool,
}

impl<'a> Received<'a> {
    /// From the packet.
    pub fn new(process: u32, key: &'a [u8]) -> Self {
        match key.strip_suffix(SENT_ON) {
            Some(key) => Self { process, key, sent_on: true },
            None => Self { process, key, sent_on: false },
        }
    }

    /// Whether it may be for a client of the pooler with this number (0: one without peers).
    pub fn may_be_for(&self, peer_id: u32) -> bool {
        peer_id == 0 || peer_of_process(self.process).is_none_or(|peer| u32::from(peer) == peer_id)
    }

    /// Those of `peers` to whose clients it may belong, other than the pooler with the number `own`.
    fn goes_to(&self, peers: &[Peer], own: u32) -> Vec<Peer> {
        if self.sent_on || own == 0 {
            return Vec::new();
        }
        let of = peer_of_process(self.process);
        let others = peers.iter().filter(|peer| u32::from(peer.id) != own);
        others.filter(|peer| of.is_none_or(|of| of == peer.id)).cloned().collect()
    }
}

/// Requests that are on their way to one peer.
#[derive(Debug)]
struct ToPeer {
    places: Semaphore,
    in_flight: AtomicU32,
    /// The last one did not reach it, which has been logged.
    is_away: AtomicBool,
}

/// Requests that are on their way to peers, by the peer's number.
#[derive(Clone, Debug)]
pub struct ToPeers(Arc<[ToPeer]>);

impl Default for ToPeers {
    fn default() -> Self {
        let to_peer = |_| ToPeer {
            places: Semaphore::new(IN_FLIGHT_MAX as usize),
            in_flight: AtomicU32::new(0),
            is_away: AtomicBool::new(false),
        };
        Self((0..=u8::MAX).map(to_peer).collect())
    }
}

/// One that is counted as long as this lives.
struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ToPeers {
    /// How many requests are on their way to the peer with this number.
    pub fn in_flight(&self, id: u8) -> u32 {
        self.0[usize::from(id)].in_flight.load(Ordering::Relaxed)
    }

    /// Sends a request on to the peers that it may be for, and returns once they have handled it,
    /// or `within` has passed. Returns the number of peers.
    pub async fn send_on(
        &self,
        request: &Received<'_>,
        peers: &[Peer],
        own: u32,
        within: Duration,
    ) -> usize {
        let to = request.goes_to(peers, own);
        if to.is_empty() {
            return 0;
        }
        let of_all = peer_of_process(request.process).is_none();
        let within = if of_all { within.min(OF_ALL_MAX) } else { within };
        let mut packet = Vec::new();
        startup::write_cancel(&mut packet, request.process, &[request.key, SENT_ON].concat());
        let packet: Arc<[u8]> = packet.into();
        let mut under_way = JoinSet::new();
        for peer in to {
            under_way.spawn(self.clone().send_to(peer, packet.clone(), within));
        }
        under_way.join_all().await.into_iter().filter(|sent| *sent).count()
    }

    async fn send_to(self, peer: Peer, packet: Arc<[u8]>, within: Duration) -> bool {
        let Peer { id, address } = &peer;
        let to_peer = &self.0[usize::from(*id)];
        let _counted = Counted::new(&to_peer.in_flight);
        let sent = async {
            // Waiting for an unreachable peer would keep connections that others need.
            let place = to_peer.places.try_acquire();
            let _place = match place {
                Ok(place) => place,
                Err(_) if to_peer.is_away.load(Ordering::Relaxed) => {
                    return Err(io::Error::other("it is away, and too many wait for it"));
                }
                Err(_) => to_peer.places.acquire().await.map_err(io::Error::other)?,
            };
            match address {
                ServerAddress::Tcp { host, port, .. } => {
                    say(TcpStream::connect((host.as_str(), *port)).await?, &packet).await
                }
                ServerAddress::Unix(path) => say(connect_unix(path).await?, &packet).await,
                ServerAddress::Link { .. } => Ok(()), // `peers` takes none
            }
        };
        let why = match tokio::time::timeout(within, sent).await {
            Ok(Ok(())) => {
                to_peer.is_away.store(false, Ordering::Relaxed);
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it was not taken within {within:?}"),
        };
        // Once for each time that it is away: anyone can send cancel requests.
        if !to_peer.is_away.swap(true, Ordering::Relaxed) {
            tracing::warn!("a cancel request did not reach peer {id} at {address}: {why}");
        }
        false
    }
}

/// Sends the request and waits until the peer, which sends no answer, closes the connection.
async fn say<S: AsyncRead + AsyncWrite + Unpin>(mut peer: S, packet: &[u8]) -> io::Result<()> {
    peer.write_all(packet).await?;
    peer.flush().await?;
    let _ = peer.read(&mut [0; 16]).await; // an error here is the end as well
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_pooler::parts::identity::process_ids::PROCESS_ID_FIRST;
    use tokio::net::TcpListener;

    fn peer(id: u8, address: &str) -> Peer {
        Peer { id, address: ServerAddress::parse(address).unwrap() }
    }

    fn ids(peers: &[Peer]) -> Vec<u8> {
        peers.iter().map(|peer| peer.id).collect()
    }

    /// The first process id of a peer.
    fn first_of(peer: u8) -> u32 {
        (0..)
            .map(|at| PROCESS_ID_FIRST + at * 1_000_000)
            .find(|id| peer_of_process(*id) == Some(peer))
            .unwrap()
    }

    #[test]
    fn a_request_goes_to_the_peer_that_its_process_id_names_and_is_sent_on_once() {
        let peers = [peer(1, "a:1"), peer(2, "b:1"), peer(3, "c:1")];
        let of = |process| Received::new(process, b"key");
        assert_eq!(ids(&of(first_of(2)).goes_to(&peers, 1)), [2]);
        assert!(!of(first_of(2)).may_be_for(1) && of(first_of(2)).may_be_for(2));
        assert_eq!(ids(&of(first_of(1)).goes_to(&peers, 1)), [0; 0], "it is its own client's");
        assert!(of(first_of(1)).may_be_for(1));
        assert_eq!(ids(&of(first_of(9)).goes_to(&peers, 1)), [0; 0], "no peer that is known");
        assert_eq!(ids(&of(4711).goes_to(&peers, 1)), [2, 3], "a client of session mode, of any");
        assert!(of(4711).may_be_for(1) && of(4711).may_be_for(2));
        assert_eq!(ids(&of(first_of(2)).goes_to(&peers, 0)), [0; 0], "it has no peers");
        assert!(of(first_of(2)).may_be_for(0));
        let sent_on = [b"key", SENT_ON].concat();
        let sent_on = Received::new(first_of(2), &sent_on);
        assert_eq!((sent_on.key, sent_on.sent_on), (&b"key"[..], true));
        assert_eq!(ids(&sent_on.goes_to(&peers, 1)), [0; 0]);
    }

    #[tokio::test]
    async fn a_peer_gets_the_request_with_a_mark_and_ends_it_by_closing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peers = [peer(2, &listener.local_addr().unwrap().to_string())];
        let to_peers = ToPeers::default();
        let request = Received::new(first_of(2), b"some key");
        let wait = Duration::from_secs(5);
        let (sent, got) = tokio::join!(to_peers.send_on(&request, &peers, 1, wait), async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut packet = vec![0; 12 + 8 + SENT_ON.len()];
            stream.read_exact(&mut packet).await.unwrap();
            assert_eq!(to_peers.in_flight(2), 1);
            packet
        });
        assert_eq!((sent, to_peers.in_flight(2)), (1, 0));
        let Ok(startup::Packet::Cancel { process, key }) = startup::parse(&got[4..]) else {
            panic!()
        };
        assert_eq!(Received::new(process, &key), Received { sent_on: true, ..request });
    }

    #[tokio::test]
    async fn a_peer_that_is_away_or_silent_costs_no_more_than_the_time_allowed() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let away = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let peers =
            [peer(2, &silent.local_addr().unwrap().to_string()), peer(3, &away.to_string())];
        let to_peers = ToPeers::default();
        let request = Received::new(4711, b"key");
        let sent = to_peers.send_on(&request, &peers, 1, Duration::from_millis(200)).await;
        assert_eq!((sent, to_peers.in_flight(2), to_peers.in_flight(3)), (0, 0, 0));
    }
}
