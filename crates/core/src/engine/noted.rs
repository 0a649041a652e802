//! What is noted of statements that a server knows by their client's own names.
//!
//! Those of session mode, and of a client whose statements are not shared: they are not looked at
//! again when they are bound, and of those that take start values that must be known (see
//! [`super::restore`]).
//!
//! What messages change of it is in a [`Journal`](super::journal::Journal), with
//! [`Change::Notes`](super::request_queue::Change) in the queue of requests. (Where the Parse of an unnamed
//! statement fails there is none any more, and nothing to be bound.)
//!
//! # Limits
//! DEALLOCATE takes nothing away here: what is noted of a statement that is gone does no harm, unless a
//! PREPARE gives the same name to another.

use super::backend::Backend;
use super::client::{Client, TooManyPortals, significant};
use super::effects::Unusual;
use super::limits;
use super::socket::Socket;
use crate::session::calls::Given;

/// What is noted of one statement.
#[derive(Clone, Debug, Default)]
pub(super) struct NotedStatement {
    /// What it does, if it takes start values.
    pub(super) unusual: Option<Box<Unusual>>,
    /// What it gives to set_config(), if it gives it parameters.
    pub(super) given: Box<[Given]>,
}

impl NotedStatement {
    /// `unusual`: what the statement's text does.
    pub(super) fn new(unusual: Option<&Unusual>, given: Vec<Given>) -> Self {
        let unusual = unusual.filter(|unusual| unusual.takes_start_values());
        Self { unusual: unusual.cloned().map(Box::new), given: given.into() }
    }

    /// Whether nothing has to be known of it.
    pub(super) fn is_nothing(&self) -> bool {
        self.unusual.is_none() && self.given.is_empty()
    }
}

impl<S: Socket> Client<S> {
    /// What is noted of a statement, for a message that is sent now.
    pub(super) fn noted(&self, name: &[u8]) -> Option<&NotedStatement> {
        self.pending_session.as_ref()?.noted.as_ref()?.get(significant(name))
    }

    /// This, where there is room for it. (What more of them give to set_config() is settled after the
    /// transaction.)
    pub(super) fn if_room_to_note(
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
    /// Whether it is still open what is noted of a name, for a message of the pipeline under way. (Where
    /// a Parse of its own is ignored, so is what stands after that.)
    pub(super) fn is_being_noted(&self, client: &Client<S>, name: &[u8]) -> bool {
        let noted = client.pending_session.as_ref().and_then(|extra| extra.noted.as_ref());
        let pipeline = noted.and_then(|noted| noted.changes_in(significant(name)));
        pipeline.is_some_and(|pipeline| pipeline != self.requests.pipeline())
    }
}
