//! What is noted for the statements of a session.

use crate::parts::statements::client_names::significant;
use crate::parts::statements::own_named::NotedStatement;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::halt::TooManyPortals;
use crate::relay::limits;
use crate::relay::socket::Socket;

impl<S: Socket> Client<S> {
    /// What is noted for a statement, for a message that is sent now.
    pub(crate) fn noted(&self, name: &[u8]) -> Option<&NotedStatement> {
        self.pending_session.as_ref()?.noted.as_ref()?.get(significant(name))
    }

    /// The note, if there is room for it. (What further ones give to set_config() is settled after
    /// the transaction.)
    pub(crate) fn if_room_to_note(
        &self,
        now: NotedStatement,
    ) -> Result<NotedStatement, TooManyPortals> {
        let noted = self.pending_session.as_ref().and_then(|extra| extra.noted.as_ref());
        let is_full = noted.is_some_and(|noted| noted.kept() >= limits::UNUSUAL_PORTALS_MAX);
        match (is_full, &now.unusual) {
            (true, Some(_)) => Err(TooManyPortals),
            (true, None) => Ok(NotedStatement::default()),
            (false, _) => Ok(now),
        }
    }
}

impl<S: Socket> Backend<S> {
    /// Whether the note for a name is still undecided, for a message of the current pipeline. (If a
    /// Parse of its own is ignored, so is everything after it.)
    pub(crate) fn is_being_noted(&self, client: &Client<S>, name: &[u8]) -> bool {
        let noted = client.pending_session.as_ref().and_then(|extra| extra.noted.as_ref());
        let pipeline = noted.and_then(|noted| noted.changes_in(significant(name)));
        pipeline.is_some_and(|pipeline| pipeline != self.requests.pipeline())
    }
}
