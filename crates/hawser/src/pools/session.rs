//! A server connection that the control side uses: to prepare it for clients, or for questions to
//! its server.
//!
//! # Invariants
//! * it holds its places under all limits until the server's process is gone, also if nothing waits
//!   any more for the answer to a question: the question is cancelled then. Only a server that has
//!   not ended it within `cancel_wait_timeout` may have a process that no limit counts

use std::sync::Arc;

use hawser_pooler::wire::build;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::share::Place;
use crate::cancel::servers::{self, ToServers};
use crate::dial::Dialled;
use crate::dial::talk::Talk;

/// A server connection of the control side.
pub struct Session {
    cancels: Arc<ToServers>,
    /// `None` only at its end.
    open: Option<(Dialled, Place)>,
    /// The server's name, for messages.
    server: String,
    /// A question has no answer yet.
    asks: bool,
}

impl Session {
    /// Of a connection that has just been opened.
    pub(super) fn new(cancels: Arc<ToServers>, open: (Dialled, Place), server: String) -> Self {
        Self { cancels, open: Some(open), server, asks: false }
    }

    /// The server's name, for messages.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The connection, and the server's reports at login.
    pub fn dialled(&mut self) -> &mut Dialled {
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
            && let Ok(runtime) = Handle::try_current()
        {
            let (cancels, server) = (self.cancels.clone(), std::mem::take(&mut self.server));
            runtime.spawn(async move { end(&cancels, dialled, place, &server).await });
        }
    }
}

/// Ends a session in the middle of a question, and gives its places back.
async fn end(cancels: &ToServers, dialled: Dialled, _place: Place, server: &str) {
    let within = cancels.within();
    let Dialled { mut talk, entered, server: id, .. } = dialled;
    let end = async {
        // The server's process ends after the question, and the connection with it.
        talk.out().clear();
        talk.out().extend_from_slice(&build::TERMINATE);
        talk.send().await.ok()?;
        if let Err(failed) = cancels.cancel(id, entered.process, &entered.key, within).await? {
            servers::warn_not_reached(&failed.error);
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
