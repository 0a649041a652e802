//! The statements that a client has prepared.

use std::sync::Arc;

use crate::hash::Keyed;
use crate::parts::statements::client_names::{ClientStatement, ClientStatements};
use crate::parts::statements::description::Seen;
use crate::parts::statements::shared::{StatementMemory, Unnamed};

/// The statements that a client has prepared.
#[derive(Default)]
pub(crate) struct ClientPrepared {
    /// Those that have names. `None`: it has given no name, or they are being looked at.
    pub(crate) statements: Option<Box<ClientStatements>>,
    /// The unnamed one, as far as it is confirmed.
    pub(crate) unnamed: Option<Arc<Unnamed>>,
    /// The description that it has of the statement that it bound last to the unnamed portal.
    pub(crate) bound: Option<Arc<Seen>>,
}

impl ClientPrepared {
    /// These, and the unnamed one.
    pub(crate) fn new(
        statements: Option<Box<ClientStatements>>,
        unnamed: Option<Arc<Unnamed>>,
    ) -> Self {
        Self { statements, unnamed, bound: None }
    }

    /// What a name stands for, or will when the changes in flight are answered.
    pub(crate) fn named_mut(&mut self, name: &[u8]) -> Option<&mut ClientStatement> {
        self.statements.as_deref_mut()?.get_mut(name)
    }

    /// What the names stand for, or will when the changes in flight are answered.
    pub(crate) fn all_named_mut(&mut self) -> impl Iterator<Item = &mut ClientStatement> {
        self.statements.iter_mut().flat_map(|names| names.values_mut())
    }

    /// Its names, to give one.
    pub(crate) fn names(
        &mut self,
        hash_key: Keyed,
        memory: &Arc<StatementMemory>,
    ) -> &mut ClientStatements {
        let new = || Box::new(ClientStatements::new(hash_key, memory.clone()));
        self.statements.get_or_insert_with(new)
    }

    /// What its record has of them: those that have names, and the unnamed one.
    pub(crate) fn for_record(&self) -> (Option<&ClientStatements>, Option<&Arc<Unnamed>>) {
        let Self {
            statements,
            unnamed,
            bound: _, // its portal has ended with the transaction
        } = self;
        (statements.as_deref(), unnamed.as_ref())
    }

    /// It binds the statement of which it has this description.
    #[inline]
    pub(crate) fn bind(&mut self, seen: &Arc<Seen>) {
        if !self.bound.as_ref().is_some_and(|bound| Arc::ptr_eq(bound, seen)) {
            self.bound = Some(seen.clone());
        }
    }
}
