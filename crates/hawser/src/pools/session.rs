//! A server connection that the control side uses: to prepare it for clients, or for questions to
//! its server.
//!
//! # Invariants
//! * it holds its places under all limits until the server's process is gone, also if nothing waits
//!   any more for the answer to a question: the question is cancelled then. Only a server that has
//!   not ended it within `cancel_wait_timeout` may have a process that no limit counts

use std::sync::{Arc, Weak};

use hawser_pooler::wire::build;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::place::{self, Asker, Place};
use crate::cancel;
use crate::dial::talk::Talk;
use crate::dial::{DialError, Dialled};
use crate::service::Service;

/// A server connection of the control side.
pub struct Session {
    service: Weak<Service>,
    /// `None` only at its end.
    open: Option<(Dialled, Place)>,
    /// The server's name, for messages.
    server: String,
    /// A question has no answer yet.
    asks: bool,
}

impl Session {
    /// Dials under the limits.
    pub(super) async fn dial(service: &Arc<Service>, asker: &Asker<'_>) -> Result<Self, DialError> {
        let (dialled, place) = place::dial(service, asker).await?;
        let known = service.dialler.place(dialled.server);
        let server = known.map_or_else(String::new, |place| place.endpoint.to_string());
        let service = Arc::downgrade(service);
        Ok(Self { service, open: Some((dialled, place)), server, asks: false })
    }

    /// The server's name, for messages.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The connection, and the server's reports at login.
    pub(super) fn dialled(&mut self) -> &mut Dialled {
        &mut self.open.as_mut().expect("it is open until its end").0
    }

    /// The connection, for a question. [`Session::answered`] must follow, or else the question is
    /// cancelled.
    pub fn ask(&mut self) -> &mut Talk {
        self.asks = true;
        &mut self.dialled().talk
    }

    /// The question has been answered, or the connection is broken.
    pub fn answered(&mut self) {
        self.asks = false;
    }

    /// Passes the connection on, with its places.
    pub(super) fn into_parts(mut self) -> (Dialled, Place) {
        self.open.take().expect("it is open until its end")
    }

    /// Says goodbye.
    pub async fn terminate(self) {
        let (dialled, _place) = self.into_parts();
        dialled.talk.terminate().await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.asks
            && let Some((dialled, place)) = self.open.take()
            && let (Some(service), Ok(runtime)) = (self.service.upgrade(), Handle::try_current())
        {
            let server = std::mem::take(&mut self.server);
            runtime.spawn(async move { end(&service, dialled, place, &server).await });
        }
    }
}

/// Ends a session in the middle of a question, and gives its places back.
async fn end(service: &Service, dialled: Dialled, _place: Place, server: &str) {
    let within = service.config.load().reload.timeouts.cancel_wait_timeout;
    let within = within.get().unwrap_or(cancel::WAIT_DEFAULT);
    let Dialled { mut talk, entered, server: id, .. } = dialled;
    let end = async {
        // The server's process ends after the question, and the connection with it.
        talk.out().clear();
        talk.out().extend_from_slice(&build::TERMINATE);
        talk.send().await.ok()?;
        let gate = service.cancels.enter().await?;
        let cancelled = service.dialler.cancel(id, entered.process, &entered.key, within).await;
        drop(gate);
        if let Err(failed) = cancelled {
            cancel::warn_not_reached(&failed.error);
        }
        while talk.receive().await.is_ok() {}
        Some(())
    };
    if timeout(within, end).await.is_err() {
        tracing::warn!(
            server,
            "the server has not ended a query of the pooler's own within cancel_wait_timeout: the \
             connection is closed, and no limit counts what the server still has of it"
        );
    }
}
