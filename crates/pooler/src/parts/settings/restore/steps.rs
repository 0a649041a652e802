//! RESET, and the error positions of texts that are longer than their client's own.

use crate::parts::settings::restore::{Edit, longer, statements_after};
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::effects::Unusual;
use crate::relay::halt::TooManyPortals;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::wire::build;

impl<S: Socket> Backend<S> {
    /// Records what a Query owes into whose text these are written, in its order.
    pub(crate) fn request_edited(&mut self, text: &[u8], edits: &[Edit], utf8: bool) {
        let mut before = 0;
        for &(number, made) in edits.iter().filter_map(|edit| edit.follows.as_ref()) {
            let own = number - std::mem::replace(&mut before, number);
            self.request(Request::Statements(own));
            (0..made).for_each(|_| self.request(Request::InjectedStatement));
        }
        self.prepared.longer.query = longer(text, edits, utf8);
        self.request(Request::Query);
    }
}

impl<S: Socket> Client<S> {
    /// Whether its start values differ from those of the server connections that it gets.
    pub(crate) fn has_start_values(&self) -> bool {
        !self.record.start.is_empty() && !self.serving.is_exclusive()
    }

    /// A portal has been made of a statement.
    pub(crate) fn note_portal(
        &mut self,
        portal: &[u8],
        unusual: Option<&Unusual>,
    ) -> Result<(), TooManyPortals> {
        if let Some(extra) = &mut self.pending_session {
            extra.portals.made_ordinary(portal);
        }
        match unusual.filter(|unusual| {
            unusual.deallocates.is_some()
                || unusual.forgets_statements
                || self.is_restored_after(unusual)
        }) {
            Some(unusual) => self.pending_session().portals.made_unusual(portal, unusual),
            None => Ok(()),
        }
    }

    /// Whether something must follow the Execute of a statement with these effects.
    pub(crate) fn is_restored_after(&self, unusual: &Unusual) -> bool {
        (self.has_start_values() && unusual.takes_start_values()) || unusual.unlistens()
    }

    /// What was noted for a portal.
    pub(crate) fn portal(&self, portal: &[u8]) -> Option<Box<Unusual>> {
        self.pending_session.as_ref()?.portals.unusual(portal).map(|of| Box::new(of.clone()))
    }

    /// Appends the messages that set the start values again after an Execute.
    pub(crate) fn restore_after(
        &self,
        unusual: &Unusual,
        backend: &mut Backend<S>,
        out: &mut Vec<u8>,
    ) {
        if unusual.discards_all {
            // (Commands that need a transaction of their own are committed at once.)
            backend.requests.let_sync_end_pipeline();
            out.extend_from_slice(&build::SYNC);
            backend.request(Request::InjectedSync);
            return;
        }
        for text in statements_after(&self.record.start, unusual) {
            backend.run_within_pipeline(text, out);
        }
    }
}
