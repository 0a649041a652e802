//! RESET, and the error positions of texts that are longer than their client's own.

use crate::parts::settings::restore::{
    Insertion, Longer, Replacement, characters, lengthened, statements_after,
};
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::effects::Unusual;
use crate::relay::halt::TooManyPortals;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::wire::build;

impl<S: Socket> Backend<S> {
    /// Records what a Query with insertions owes.
    pub(crate) fn request_with_insertions(
        &mut self,
        text: &[u8],
        insertions: &[Insertion],
        utf8: bool,
    ) {
        self.prepared.longer.query_ended();
        for insertion in insertions {
            self.request(Request::Statements(insertion.statements_before));
            for _ in &insertion.statements {
                self.request(Request::InjectedStatement);
            }
            let by = insertion.statements.iter().map(|made| 1 + characters(made, utf8)).sum();
            let at = characters(&text[..insertion.at], utf8);
            self.prepared.longer.extend([Longer { at, by }]);
        }
        self.request(Request::Query);
    }

    /// Notes the replacements of NULLs in that Query.
    pub(crate) fn note_replaced(&mut self, text: &[u8], replaced: &[Replacement], utf8: bool) {
        self.prepared.longer.extend(lengthened(text, replaced, utf8));
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
