//! What is noted for statements that a server knows by their client's own names.
//!
//! Those of session mode, and of a client whose statements are not shared: they are not examined
//! again when they are bound, which must be known of those that reset settings to start values (see
//! [`crate::parts::settings::restore`]).
//!
//! Changes by messages are in a [`Journal`](crate::parts::statements::journal::Journal), with
//! [`Change::Notes`](crate::relay::request_queue::Change) in the queue of requests. (If the Parse of an
//! unnamed statement fails there is none any more, and nothing can be bound.)
//!
//! # Limits
//! DEALLOCATE removes no notes: the note for a missing statement is harmless, unless a PREPARE
//! gives the same name to another.

mod steps;

use crate::parts::statements::journal::Text;
use crate::relay::effects::Unusual;
use crate::session::calls::Given;

/// What is noted for one statement.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotedStatement {
    /// Its effects, if it takes start values.
    pub(crate) unusual: Option<Box<Unusual>>,
    /// What it gives to set_config(), if these are parameters.
    pub(crate) given: Box<[Given]>,
}

impl NotedStatement {
    /// `unusual`: the effects of the statement's text.
    pub(crate) fn new(unusual: Option<&Unusual>, given: Vec<Given>) -> Self {
        let unusual = unusual.filter(|unusual| unusual.takes_start_values());
        Self { unusual: unusual.cloned().map(Box::new), given: given.into() }
    }

    /// Whether nothing is noted.
    pub(crate) fn is_nothing(&self) -> bool {
        self.unusual.is_none() && self.given.is_empty()
    }
}

impl Text for NotedStatement {
    /// Its text is not kept.
    fn text_bytes(&self) -> usize {
        0
    }
}
