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

mod steps;

use super::effects::Unusual;
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
