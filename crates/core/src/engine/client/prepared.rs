//! The statements that a client has prepared.

use std::sync::Arc;

use crate::engine::names::{ClientStatement, ClientStatements};
use crate::engine::server_unnamed::ConfirmedUnnamed;
use crate::hash::Keyed;
use crate::pool::description::Seen;
use crate::pool::statement::{StatementMemory, Unnamed};

/// The statements that a client has prepared.
#[derive(Default)]
pub(in crate::engine) struct ClientPrepared {
    statements: Option<Box<ClientStatements>>,
    unnamed: ConfirmedUnnamed,
    bound: Option<Arc<Seen>>,
}

impl ClientPrepared {
    /// These, and the unnamed one.
    pub(in crate::engine) fn new(
        statements: Option<Box<ClientStatements>>,
        unnamed: Option<Arc<Unnamed>>,
    ) -> Self {
        Self { statements, unnamed: ConfirmedUnnamed::from(unnamed), bound: None }
    }

    /// Those that have names. `None`: it has given no name.
    #[inline]
    pub(in crate::engine) fn statements(&self) -> Option<&ClientStatements> {
        self.statements.as_deref()
    }

    #[inline]
    pub(in crate::engine) fn statements_mut(&mut self) -> Option<&mut ClientStatements> {
        self.statements.as_deref_mut()
    }

    /// What the names stand for, or will when the changes in flight are answered.
    pub(in crate::engine) fn all_named_mut(
        &mut self,
    ) -> impl Iterator<Item = &mut ClientStatement> {
        self.statements.iter_mut().flat_map(|names| names.values_mut())
    }

    /// Its names, to give one.
    pub(in crate::engine) fn names(
        &mut self,
        hash_key: Keyed,
        memory: &Arc<StatementMemory>,
    ) -> &mut ClientStatements {
        let new = || Box::new(ClientStatements::new(hash_key, memory.clone()));
        self.statements.get_or_insert_with(new)
    }

    /// It has none any more, or not while these are looked at.
    #[inline]
    pub(in crate::engine) fn take_statements(&mut self) -> Option<Box<ClientStatements>> {
        self.statements.take()
    }

    /// It has these.
    #[inline]
    pub(in crate::engine) fn set_statements(&mut self, statements: Option<Box<ClientStatements>>) {
        self.statements = statements;
    }

    /// The unnamed one, as far as it is confirmed.
    #[inline]
    pub(in crate::engine) fn unnamed(&self) -> Option<&Arc<Unnamed>> {
        self.unnamed.get()
    }

    #[inline]
    pub(in crate::engine) fn unnamed_mut(&mut self) -> &mut ConfirmedUnnamed {
        &mut self.unnamed
    }

    /// What its record has of them: those that have names, and the unnamed one.
    pub(in crate::engine) fn for_record(
        &self,
    ) -> (Option<&ClientStatements>, Option<&Arc<Unnamed>>) {
        let Self {
            statements,
            unnamed,
            bound: _, // its portal has ended with the transaction
        } = self;
        (statements.as_deref(), unnamed.get())
    }

    /// The description that it has of the statement that it bound last to the unnamed portal.
    #[inline]
    pub(in crate::engine) fn bound(&self) -> Option<&Arc<Seen>> {
        self.bound.as_ref()
    }

    /// It binds the statement of which it has this description.
    #[inline]
    pub(in crate::engine) fn bind(&mut self, seen: &Arc<Seen>) {
        if !self.bound.as_ref().is_some_and(|bound| Arc::ptr_eq(bound, seen)) {
            self.bound = Some(seen.clone());
        }
    }

    /// It binds one of which nothing is kept.
    #[inline]
    pub(in crate::engine) fn bind_other(&mut self) {
        self.bound = None;
    }
}
