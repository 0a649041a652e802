//! Cancel requests to servers.
//!
//! # Invariants
//! * at most [`IN_FLIGHT_MAX`] connections for them at a time; others wait for theirs, for
//!   `cancel_wait_timeout` at most

use std::sync::Arc;
use std::time::Duration;

use hawser_pooler::ids::ServerAddressId;
use hawser_pooler::relay::{CancelRequest, ToLoop};
use tokio::sync::Semaphore;

use super::WAIT_DEFAULT;
use crate::dial::{CancelError, DialError, Dialler};
use crate::logging::Seldom;
use crate::loops::Loops;
use crate::shared::Shared;

/// Cancel requests to servers that are under way at a time.
pub const IN_FLIGHT_MAX: usize = 256;

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

/// Sends cancel requests to servers.
pub struct ToServers {
    shared: Arc<Shared>,
    dialler: Arc<Dialler>,
    places: Semaphore,
}

impl ToServers {
    /// None is under way yet.
    pub fn new(shared: Arc<Shared>, dialler: Arc<Dialler>) -> Self {
        Self { shared, dialler, places: Semaphore::new(IN_FLIGHT_MAX) }
    }

    /// How long a request may take.
    pub fn within(&self) -> Duration {
        let wait = self.shared.config.load().reload.timeouts.cancel_wait_timeout;
        wait.get().unwrap_or(WAIT_DEFAULT)
    }

    /// Cancels what a server's process does, once there is a place for it. `None`: the process ends.
    pub async fn cancel(
        &self,
        server: ServerAddressId,
        process: u32,
        key: &[u8],
        within: Duration,
    ) -> Option<Result<(), CancelError>> {
        let _place = self.places.acquire().await.ok()?;
        Some(self.dialler.cancel(server, process, key, within).await)
    }

    /// Sends a cancel request to a server, and notifies the loop when the server has handled it, or
    /// will not. One that was sent, and whose connection the server has not closed within
    /// `cancel_wait_timeout`, may come later.
    pub async fn send(&self, request: CancelRequest) {
        let mut under_way =
            UnderWay { loops: &self.shared.loops, request: &request, may_come: true };
        let end = tokio::time::Instant::now() + self.within();
        let Ok(_place) = tokio::time::timeout_at(end, self.places.acquire()).await else {
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
        match self.dialler.cancel(request.server, request.process, &request.key, within).await {
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
}

/// Says that a cancel request did not reach a server.
pub fn warn_not_reached(error: &DialError) {
    static SAID: Seldom = Seldom::new();
    if let Some(left_out) = SAID.may("") {
        tracing::warn!(%error, left_out, "a cancel request did not reach the server");
    }
}
