//! What is noted of statements that a server knows by their client's own names.
//!
//! Those of session mode, and of a client whose statements are not shared: they are not looked at
//! again when they are bound, and of those that take start values that must be known (see
//! [`super::restore`]).
//!
//! # Invariants
//! A Parse that fails, or that the server ignores after an error, leaves the name as it was, and so
//! does a Close that is ignored: each that changes what is noted of a name has an entry in
//! the queue of requests with [`Change::Notes`], by which that is taken back. (Where the Parse of an unnamed statement fails
//! itself there is none any more, and nothing to be bound.)
//!
//! # Limits
//! DEALLOCATE takes nothing away here: what is noted of a statement that is gone does no harm, unless a
//! PREPARE gives the same name to another.

use super::backend::Backend;
use super::client::{Client, TooManyPortals, significant};
use super::effects::Unusual;
use super::limits;
use super::request_queue::{Change, Request};
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

    fn is_nothing(&self) -> bool {
        self.unusual.is_none() && self.given.is_empty()
    }
}

/// What was noted of a name before the message that has changed it.
#[derive(Debug)]
pub(super) struct Renoted {
    name: Box<[u8]>,
    before: Option<NotedStatement>,
    /// The pipeline of that message.
    pipeline: u64,
}

impl Renoted {
    fn new(name: &[u8], before: Option<NotedStatement>) -> Self {
        Self { name: name.into(), before, pipeline: 0 }
    }
}

impl<S: Socket> Client<S> {
    /// What is noted of a statement.
    pub(super) fn noted(&self, name: &[u8]) -> Option<&NotedStatement> {
        self.pending_session.as_ref()?.noted.get(significant(name))
    }

    /// A Parse or Close of this name is on its way. What was noted before, if that changes.
    pub(super) fn note(
        &mut self,
        name: &[u8],
        now: NotedStatement,
    ) -> Result<Option<Renoted>, TooManyPortals> {
        let name = significant(name);
        if now.is_nothing() {
            let before = self.pending_session.as_mut().and_then(|extra| extra.noted.remove(name));
            return Ok(before.map(|before| Renoted::new(name, Some(before))));
        }
        let noted = &mut self.pending_session().noted;
        let before = noted.remove(name);
        if noted.len() < limits::UNUSUAL_PORTALS_MAX {
            noted.insert(name.into(), now);
        } else if now.unusual.is_some() {
            return Err(TooManyPortals);
        } // (What more of them give to set_config() is settled after the transaction.)
        Ok(Some(Renoted::new(name, before)))
    }

    fn take_back(&mut self, Renoted { name, before, .. }: Renoted) {
        match before {
            Some(before) => drop(self.pending_session().noted.insert(name, before)),
            None => drop(self.pending_session.as_mut().map(|extra| extra.noted.remove(&name))),
        }
    }
}

impl<S: Socket> Backend<S> {
    /// Notes what a Parse or Close owes that goes to the server under its client's own name.
    pub(super) fn request_noted(&mut self, renoted: Option<Renoted>, owed: Request) {
        let pipeline = self.requests.pipeline();
        let change =
            renoted.map(|renoted| Change::Notes(Box::new(Renoted { pipeline, ..renoted })));
        self.request_with(owed, change);
    }

    /// Whether it is still open what is noted of a name, for a message of the pipeline under way. (Where
    /// a Parse of its own is ignored, so is what stands after that.)
    pub(super) fn is_being_noted(&self, name: &[u8]) -> bool {
        let name = significant(name);
        let last = self.requests.renoted().rfind(|renoted| *renoted.name == *name);
        last.is_some_and(|renoted| renoted.pipeline != self.requests.pipeline())
    }

    /// The server has failed or ignored these Parses and Closes.
    pub(super) fn take_back_noted(
        &mut self,
        client: Option<&mut Client<S>>,
        ignored: Vec<Renoted>,
    ) {
        let Some(client) = client else { return };
        // The last one first: what was there before all of them is there again.
        for renoted in ignored.into_iter().rev() {
            match self.requests.renoted_mut().find(|later| later.name == renoted.name) {
                Some(later) => later.before = renoted.before,
                None => client.take_back(renoted),
            }
        }
    }
}
