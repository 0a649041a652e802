//! The statements that a client has prepared.

use std::sync::Arc;

use crate::hash::Keyed;
use crate::parts::statements::client_names::{ClientStatement, ClientStatements};
use crate::parts::statements::description::Seen;
use crate::parts::statements::shared::{StatementMemory, Unnamed};
use crate::parts::statements::unnamed::ConfirmedUnnamed;

/// The statements that a client has prepared.
#[derive(Default)]
pub(crate) struct ClientPrepared {
    statements: Option<Box<ClientStatements>>,
    unnamed: ConfirmedUnnamed,
    bound: Option<Arc<Seen>>,
}

impl ClientPrepared {
    /// These, and the unnamed one.
    pub(crate) fn new(
        statements: Option<Box<ClientStatements>>,
        unnamed: Option<Arc<Unnamed>>,
    ) -> Self {
        Self { statements, unnamed: ConfirmedUnnamed::from(unnamed), bound: None }
    }

    /// Those that have names. `None`: it has given no name.
    #[inline]
    pub(crate) fn statements(&self) -> Option<&ClientStatements> {
        self.statements.as_deref()
    }

    #[inline]
    pub(crate) fn statements_mut(&mut self) -> Option<&mut ClientStatements> {
        self.statements.as_deref_mut()
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

    /// It has none any more, or not while these are looked at.
    #[inline]
    pub(crate) fn take_statements(&mut self) -> Option<Box<ClientStatements>> {
        self.statements.take()
    }

    /// It has these.
    #[inline]
    pub(crate) fn set_statements(&mut self, statements: Option<Box<ClientStatements>>) {
        self.statements = statements;
    }

    /// The unnamed one, as far as it is confirmed.
    #[inline]
    pub(crate) fn unnamed(&self) -> Option<&Arc<Unnamed>> {
        self.unnamed.get()
    }

    #[inline]
    pub(crate) fn unnamed_mut(&mut self) -> &mut ConfirmedUnnamed {
        &mut self.unnamed
    }

    /// What its record has of them: those that have names, and the unnamed one.
    pub(crate) fn for_record(&self) -> (Option<&ClientStatements>, Option<&Arc<Unnamed>>) {
        let Self {
            statements,
            unnamed,
            bound: _, // its portal has ended with the transaction
        } = self;
        (statements.as_deref(), unnamed.get())
    }

    /// The description that it has of the statement that it bound last to the unnamed portal.
    #[inline]
    pub(crate) fn bound(&self) -> Option<&Arc<Seen>> {
        self.bound.as_ref()
    }

    /// It binds the statement of which it has this description.
    #[inline]
    pub(crate) fn bind(&mut self, seen: &Arc<Seen>) {
        if !self.bound.as_ref().is_some_and(|bound| Arc::ptr_eq(bound, seen)) {
            self.bound = Some(seen.clone());
        }
    }

    /// It binds one of which nothing is kept.
    #[inline]
    pub(crate) fn bind_other(&mut self) {
        self.bound = None;
    }
}
