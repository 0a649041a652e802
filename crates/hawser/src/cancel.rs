//! Cancel requests: from clients to the loop that serves them, and from loops to servers.
//!
//! # Model
//! A client's loop makes its process id, above every process id of Linux, and the id names the loop
//! ([`OwnProcessIds::loop_of`]), which checks the key. In session mode clients have the server's
//! own process id, which is below: all loops are asked. Requests for a client of another pooler go
//! there ([`crate::peers`]).
//!
//! # Invariants
//! * at most [`FROM_CLIENTS_MAX`] requests of clients are on their way to loops at a time, and so in
//!   one turn of a loop; others wait in their logins, whose number is limited, and which
//!   `client_login_timeout` ends
//! * the connection is closed once the loop has handled the request, as PostgreSQL does after it has
//!   signalled. A client that waits for that knows that a later query is not hit: the loop sends no
//!   query to a server connection while a request for it is under way, and inside the server a backend
//!   waits for the signal first ([`crate::inside`])

pub mod servers;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hawser_pooler::relay::{CancelKey, ToLoop};
use tokio::sync::{Semaphore, mpsc};

use crate::loops::Loops;
use crate::peers::{Received, ToPeers, own_process_ids};
use crate::shared::Shared;
use crate::takeover::Succession;

/// Requests of clients that loops have not handled yet.
pub const FROM_CLIENTS_MAX: usize = 64;
/// How long a cancel request may take if the configuration sets no bound.
pub const WAIT_DEFAULT: std::time::Duration = std::time::Duration::from_secs(10);

/// Bounds clients' cancel requests in flight.
#[derive(Debug)]
pub struct CancelGate {
    from_clients: Arc<Semaphore>,
    /// Requests on their way to other poolers.
    pub to_peers: ToPeers,
    /// A misdirected request of another pooler has been logged.
    said_astray: AtomicBool,
}

impl Default for CancelGate {
    fn default() -> Self {
        Self {
            from_clients: Arc::new(Semaphore::new(FROM_CLIENTS_MAX)),
            to_peers: ToPeers::default(),
            said_astray: AtomicBool::new(false),
        }
    }
}

impl CancelGate {
    /// Passes a client's cancel request to the loop, or the loops, that it may be for, once there
    /// is a place for it. `peer_id`: this pooler's own number, 0 if it has no peers. What is returned
    /// is closed once they have handled it.
    pub async fn hand_over(
        &self,
        loops: &Loops,
        request: &Received<'_>,
        peer_id: u32,
    ) -> Option<mpsc::Receiver<Infallible>> {
        if !request.may_be_for(peer_id) {
            return None;
        }
        // The semaphore is never closed.
        let place = self.from_clients.clone().acquire_owned().await.ok()?;
        let process = request.process;
        let (held, handled) = mpsc::channel::<Infallible>(1);
        let key = CancelKey::holding(request.key, Arc::new((place, held)));
        let message = || ToLoop::Cancel { process, key: key.clone() };
        let count = u16::try_from(loops.count()).unwrap_or(u16::MAX);
        match own_process_ids(peer_id, 0).loop_of(process, count) {
            Some(home) => loops.send(home, message()),
            None => loops.send_all(message),
        }
        Some(handled)
    }
}

/// Cancel requests of clients.
pub struct Cancels {
    /// The loops, and what counts requests.
    pub shared: Arc<Shared>,
    /// The predecessor may have the client.
    pub succession: Arc<Succession>,
    /// Bounds them.
    pub gate: CancelGate,
}

impl Cancels {
    /// Handles a cancel request from a client, or sent on by a peer.
    pub async fn received(&self, process: u32, key: &[u8]) {
        self.shared.tally.cancel_requests.increment();
        let config = self.shared.config.load();
        let own = config.start.process.peer_id;
        let request = Received::new(process, key);
        let astray = request.sent_on && (own == 0 || !request.may_be_for(own));
        // Once: anyone can send such a request.
        if astray && !self.gate.said_astray.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a peer sent a cancel request here that is for another (this is peer {own}): check `peers` and \
             `peer_id` in [process]"
            );
        }
        let within = config.reload.timeouts.cancel_wait_timeout.get().unwrap_or(WAIT_DEFAULT);
        let peers = &config.reload.peers.peers;
        let (sent_on, ()) = tokio::join!(
            self.gate.to_peers.send_on(&request, peers, own, within),
            self.in_this_service(&request),
        );
        self.shared.tally.cancel_requests_sent_on.add(sent_on as u64);
    }

    /// Handles a cancel request for a client of this process, or of its predecessor.
    pub async fn in_this_service(&self, request: &Received<'_>) {
        let config = self.shared.config.load();
        let own = config.start.process.peer_id;
        let within = config.reload.timeouts.cancel_wait_timeout.get().unwrap_or(WAIT_DEFAULT);
        let in_predecessor = async {
            if let Some(predecessor) = self.succession.predecessor() {
                predecessor.cancel(request.process, request.key, within).await;
            }
        };
        let here = async {
            if let Some(mut handled) = self.gate.hand_over(&self.shared.loops, request, own).await {
                handled.recv().await;
            }
        };
        tokio::join!(in_predecessor, here);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use hawser_pooler::parts::identity::process_ids::PROCESS_ID_FIRST;

    use super::*;
    use crate::loops::tests::{mailboxes, take_count};

    #[tokio::test]
    async fn a_cancel_goes_to_one_loop_or_for_a_servers_own_id_to_all() {
        let mailboxes = mailboxes(3);
        let loops = Loops::new(mailboxes.clone(), Instant::now());
        let taken = || -> Vec<usize> { mailboxes.iter().map(take_count).collect() };
        let gate = CancelGate::default();
        gate.hand_over(&loops, &Received::new(PROCESS_ID_FIRST + 4, b"key"), 0).await;
        assert_eq!(taken(), [0, 1, 0]);
        gate.hand_over(&loops, &Received::new(1234, b"key"), 0).await;
        assert_eq!(taken(), [1, 1, 1]);
    }

    #[tokio::test]
    async fn requests_not_yet_handled_are_bounded_and_later_ones_wait() {
        let mailboxes = mailboxes(2);
        let loops = Loops::new(mailboxes.clone(), Instant::now());
        let gate = CancelGate::default();
        for _ in 0..FROM_CLIENTS_MAX {
            gate.hand_over(&loops, &Received::new(1234, b"key"), 0).await;
        }
        let request = Received::new(1234, b"key");
        let late = gate.hand_over(&loops, &request, 0);
        tokio::pin!(late);
        let soon = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, &mut late).await.is_err(), "the loops are not overrun");
        assert_eq!(take_count(&mailboxes[0]), FROM_CLIENTS_MAX);
        assert!(
            tokio::time::timeout(soon, &mut late).await.is_err(),
            "the other has not seen them"
        );
        assert_eq!(take_count(&mailboxes[1]), FROM_CLIENTS_MAX);
        late.await;
        assert_eq!(take_count(&mailboxes[0]), 1);
    }
}
