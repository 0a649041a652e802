//! Cancel requests: from clients to the loop that serves them, and from loops to servers.
//!
//! # Model
//! A client's loop makes its process id, above every process id of Linux, and the id names the loop
//! ([`OwnProcessIds::loop_of`]), which checks the key. In session mode clients have the server's
//! own process id, which is below: all loops are asked. Requests for a client of another pooler go
//! there ([`crate::peers`]).
//!
//! # Invariants
//! * at most [`IN_FLIGHT_MAX`] cancel connections to servers at a time; others wait for theirs, for
//!   `cancel_wait_timeout` at most
//! * at most [`FROM_CLIENTS_MAX`] requests of clients are on their way to loops at a time, and so in
//!   one turn of a loop; others wait in their logins, whose number is limited, and which
//!   `client_login_timeout` ends
//! * the connection is closed once the request is with the loop, as PostgreSQL does after it has
//!   signalled. A client that waits for that knows that a later query is not hit: the loop handles
//!   the request before it reads that query, and sends no query to a server connection while a
//!   request for it is under way

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hawser_pooler::relay::{CancelKey, CancelRequest, ToLoop};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::dial::DialError;
use crate::logging::Seldom;
use crate::loops::Loops;
use crate::peers::{Received, ToPeers, own_process_ids};
use crate::service::Service;

/// Cancel requests to servers that are under way at a time.
pub const IN_FLIGHT_MAX: usize = 256;
/// Requests of clients that loops have not handled yet.
pub const FROM_CLIENTS_MAX: usize = 64;
/// How long a cancel request may take if the configuration sets no bound.
pub const WAIT_DEFAULT: std::time::Duration = std::time::Duration::from_secs(10);

/// Bounds cancel requests in flight.
#[derive(Debug)]
pub struct CancelGate {
    to_servers: Arc<Semaphore>,
    from_clients: Arc<Semaphore>,
    /// Requests on their way to other poolers.
    pub to_peers: ToPeers,
    /// A misdirected request of another pooler has been logged.
    said_astray: AtomicBool,
}

impl Default for CancelGate {
    fn default() -> Self {
        Self {
            to_servers: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            from_clients: Arc::new(Semaphore::new(FROM_CLIENTS_MAX)),
            to_peers: ToPeers::default(),
            said_astray: AtomicBool::new(false),
        }
    }
}

impl CancelGate {
    /// A place for a cancel request to a server.
    pub async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        self.to_servers.clone().acquire_owned().await.ok()
    }

    /// Passes a client's cancel request to the loop, or the loops, that it may be for, once there
    /// is a place for it. `peer_id`: this pooler's own number, 0 if it has no peers.
    pub async fn hand_over(&self, loops: &Loops, request: &Received<'_>, peer_id: u32) {
        if !request.may_be_for(peer_id) {
            return;
        }
        // The semaphore is never closed.
        let Ok(place) = self.from_clients.clone().acquire_owned().await else { return };
        let process = request.process;
        let key = CancelKey::holding(request.key, Arc::new(place));
        let message = || ToLoop::Cancel { process, key: key.clone() };
        let count = u16::try_from(loops.count()).unwrap_or(u16::MAX);
        match own_process_ids(peer_id, 0).loop_of(process, count) {
            Some(home) => loops.send(home, message()),
            None => loops.send_all(message),
        }
    }
}

/// Handles a cancel request from a client, or sent on by a peer.
pub async fn received(service: &Service, process: u32, key: &[u8]) {
    service.tally.cancel_requests.increment();
    let config = service.config.load();
    let own = config.start.process.peer_id;
    let request = Received::new(process, key);
    let astray = request.sent_on && (own == 0 || !request.may_be_for(own));
    // Once: anyone can send such a request.
    if astray && !service.cancels.said_astray.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "a peer sent a cancel request here that is for another (this is peer {own}): check `peers` and \
             `peer_id` in [process]"
        );
    }
    let within = config.reload.timeouts.cancel_wait_timeout.get().unwrap_or(WAIT_DEFAULT);
    let peers = &config.reload.peers.peers;
    let (sent_on, ()) = tokio::join!(
        service.cancels.to_peers.send_on(&request, peers, own, within),
        in_this_service(service, &request),
    );
    service.tally.cancel_requests_sent_on.add(sent_on as u64);
}

/// Handles a cancel request for a client of this process, or of its predecessor.
pub async fn in_this_service(service: &Service, request: &Received<'_>) {
    let config = service.config.load();
    let own = config.start.process.peer_id;
    let within = config.reload.timeouts.cancel_wait_timeout.get().unwrap_or(WAIT_DEFAULT);
    let in_predecessor = async {
        if let Some(predecessor) = service.succession.predecessor() {
            predecessor.cancel(request.process, request.key, within).await;
        }
    };
    tokio::join!(in_predecessor, service.cancels.hand_over(&service.loops, request, own));
}

/// A cancel request for a server, under way. Dropping this notifies the loop.
struct UnderWay<'a> {
    loops: &'a Loops,
    request: &'a CancelRequest,
    /// The server may still handle it.
    may_come: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let backend = self.request.backend;
        let told = if self.may_come {
            ToLoop::CancelUnanswered(backend)
        } else {
            ToLoop::CancelDone(backend)
        };
        self.loops.send(self.request.reply_to, told);
    }
}

/// Sends a cancel request to a server, and notifies the loop when the server has handled it, or
/// will not. One that was sent, and whose connection the server has not closed within
/// `cancel_wait_timeout`, may come later.
pub async fn send(service: &Arc<Service>, request: CancelRequest) {
    let mut under_way = UnderWay { loops: &service.loops, request: &request, may_come: true };
    let wait = service.config.load().reload.timeouts.cancel_wait_timeout;
    let end = tokio::time::Instant::now() + wait.get().unwrap_or(WAIT_DEFAULT);
    let Ok(_place) = tokio::time::timeout_at(end, service.cancels.enter()).await else {
        under_way.may_come = false;
        static SAID: Seldom = Seldom::new();
        if let Some(left_out) = SAID.may("") {
            tracing::warn!(
                left_out,
                "a cancel request waited too long for others, and was not sent"
            );
        }
        return;
    };
    let within = end.saturating_duration_since(tokio::time::Instant::now());
    match service.dialler.cancel(request.server, request.process, &request.key, within).await {
        Ok(()) => under_way.may_come = false,
        Err(failed) if failed.was_sent => {
            static SAID: Seldom = Seldom::new();
            if let Some(left_out) = SAID.may("") {
                tracing::warn!(
                    error = %failed.error, left_out,
                    "a server has not answered a cancel request: the server connection is closed after \
                     its client's transaction"
                );
            }
        }
        Err(failed) => {
            under_way.may_come = false;
            warn_not_reached(&failed.error);
        }
    }
}

/// Says that a cancel request did not reach a server.
pub fn warn_not_reached(error: &DialError) {
    static SAID: Seldom = Seldom::new();
    if let Some(left_out) = SAID.may("") {
        tracing::warn!(%error, left_out, "a cancel request did not reach the server");
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
