//! A client's names for prepared statements, counted by their cost.
//!
//! # Invariant
//! [`StatementMemory`] counts exactly what the names in all these maps cost, including those in
//! flight.
//!
//! # Why names are counted apart from texts
//! Names displace texts that no client needs. Texts must not make a shared statement unnameable:
//! only names that alone exceed the bound do.

use std::sync::Arc;

use crate::hash::Keyed;
use crate::ids::BackendId;
use crate::parts::statements::description::Seen;
use crate::parts::statements::journal::{Journal, Name, Text};
use crate::parts::statements::schema_epoch::SchemaEpoch;
use crate::parts::statements::shared::{Statement, StatementMemory};
use crate::relay::limits;
use crate::session::settings::Settings;

/// What a name costs in addition to its bytes: its place in the map and what it does not share.
const NAME_OVERHEAD_BYTES: usize = size_of::<(Name, ClientStatement)>() + 32;

/// A statement under the name that a client gave it.
#[derive(Clone, Debug)]
pub(crate) struct ClientStatement {
    pub(crate) statement: Arc<Statement>,
    /// Identifies it in the answer to its Parse. Never 0.
    pub(crate) serial: u32,
    /// The backend that prepared it for this client, if one did, and the number of the pipeline
    /// there: each backend has its own numbers.
    pub(crate) prepared_in: Option<(BackendId, u64)>,
    /// Something was executed before it in that pipeline, and may have changed the settings.
    pub(crate) after_setter: bool,
    /// How it was described to the client.
    pub(crate) seen: Arc<Seen>,
    /// The epoch of the schema when the client parsed it.
    pub(crate) epoch: SchemaEpoch,
    /// The client's settings for which it was last checked that this statement may be run under
    /// them; `None` if that must be checked.
    pub(crate) fits: Option<Settings>,
    /// The server has refused it the last time that the client listed its statements.
    pub(crate) unlisted: bool,
}

impl ClientStatement {
    /// One that the client prepares under these settings.
    pub(crate) fn new(
        statement: Arc<Statement>,
        serial: u32,
        epoch: SchemaEpoch,
        settings: &Settings,
    ) -> Self {
        Self {
            statement,
            serial,
            prepared_in: None,
            after_setter: false,
            seen: Arc::default(),
            epoch,
            fits: Some(settings.clone()),
            unlisted: false,
        }
    }

    /// Another statement of the same text; it is not known under which settings it may be run.
    pub(crate) fn replace(&mut self, statement: Arc<Statement>) {
        self.statement = statement;
        self.fits = None;
    }

    /// This one, or the one in its place, may be run under these settings.
    pub(crate) fn fits_to(&mut self, settings: &Settings) {
        self.fits = Some(settings.clone());
    }

    /// Whether it is known that it may be run under these settings.
    #[inline]
    pub(crate) fn is_known_to_fit(&self, settings: &Settings) -> bool {
        self.fits.as_ref().is_some_and(|fits| fits.is_shared_with(settings))
    }

    /// Whether this backend's pipeline `since`, or a later one, has prepared it.
    pub(crate) fn is_prepared_since(&self, backend: BackendId, since: u64) -> bool {
        self.prepared_in.is_some_and(|(known, pipeline)| known == backend && pipeline >= since)
    }
}

impl Text for ClientStatement {
    /// Without the types of parameters, which the one in its place may give where this one does not.
    fn text_bytes(&self) -> usize {
        self.statement.text().len()
    }
}

/// Which statements of the protocol a DEALLOCATE removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deallocated {
    /// The one of this name.
    One(Box<[u8]>),
    /// All of the client's.
    All,
}

/// The significant bytes of a statement's or portal's name.
pub(crate) fn significant(name: &[u8]) -> &[u8] {
    &name[..name.len().min(limits::NAME_BYTES_MAX)]
}

/// A client's names for prepared statements.
#[derive(Debug)]
pub(crate) struct ClientStatements {
    names: Journal<ClientStatement>,
    memory: Arc<StatementMemory>,
    /// The cost that is counted there.
    counted: usize,
}

impl ClientStatements {
    pub(crate) fn new(hash_key: Keyed, memory: Arc<StatementMemory>) -> Self {
        Self { names: Journal::new(hash_key), memory, counted: 0 }
    }

    /// What the names stand for.
    #[inline]
    pub(crate) fn names(&self) -> &Journal<ClientStatement> {
        &self.names
    }

    /// What a name stands for, for a message that is sent now.
    #[inline]
    pub(crate) fn get(&self, name: &[u8]) -> Option<&ClientStatement> {
        self.names.get(name)
    }

    /// As [`Self::get`].
    pub(crate) fn get_mut(&mut self, name: &[u8]) -> Option<&mut ClientStatement> {
        self.names.get_mut(name)
    }

    /// What the names stand for, or will when the changes in flight are answered.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut ClientStatement> {
        self.names.values_mut()
    }

    /// Whether it may name one more statement, whose text has so many bytes. If not, that statement is not
    /// shared, and its client keeps the server connection that has it.
    pub(crate) fn has_room(&self, text_bytes: usize) -> bool {
        let bytes = self.counted + self.names.text_bytes() + text_bytes;
        self.names.standing() < limits::CLIENT_STATEMENTS_MAX
            && bytes <= self.memory.share_of_client()
    }

    /// Changes names.
    pub(crate) fn change<R>(
        &mut self,
        change: impl FnOnce(&mut Journal<ClientStatement>) -> R,
    ) -> R {
        let result = change(&mut self.names);
        self.count(self.names.kept() * NAME_OVERHEAD_BYTES + self.names.name_bytes());
        result
    }

    fn count(&mut self, now: usize) {
        let before = std::mem::replace(&mut self.counted, now);
        if now > before {
            self.memory.name(now - before);
        } else {
            self.memory.unname(before - now);
        }
    }
}

impl Drop for ClientStatements {
    fn drop(&mut self) {
        self.count(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::start_values::basis::Basis;
    use crate::parts::statements::shared::StatementTable;
    use crate::relay::effects::Effects;

    /// What was taken off was more than what had been counted.
    #[test]
    fn a_statement_whose_types_are_given_later_leaves_no_bytes_behind() {
        let memory = Arc::new(StatementMemory::new(usize::MAX));
        let table = StatementTable::new(1, memory.clone());
        let intern =
            |body: &[u8]| table.intern(body, Basis::UNKNOWN, &Settings::EMPTY, Effects::default);
        let mut names = ClientStatements::new(Keyed(1), memory);
        let first = intern(b"SELECT $1\0\0\0");
        let first = ClientStatement::new(first, 1, SchemaEpoch::default(), &Settings::EMPTY);
        names.change(|names| names.insert(b"s"[..].into(), first));
        let named = names.get_mut(b"s").expect("it has just been given");
        named.statement = intern(b"SELECT $1\0\0\x01\0\0\0\x17");
        names.change(|names| names.remove(b"s"));
        assert_eq!(names.names().text_bytes(), 0);
    }
}
