//! A client's names for prepared statements, counted as what they cost.
//!
//! # Invariant
//! What is counted in [`StatementMemory`] is what the names in all these maps cost.
//!
//! # Why names are counted apart from texts
//! Names push texts out that nobody needs. Texts must not make a statement that all share
//! unnameable: only names that alone exceed the bound do.

use std::collections::HashMap;
use std::sync::Arc;

use super::client::ClientStatement;
use super::statement::StatementMemory;
use crate::hash::Keyed;

/// A statement's name, as much of it as counts.
type Name = Box<[u8]>;

/// What a name costs beside its bytes: its place in the map and what it shares with nobody.
const NAME_OVERHEAD_BYTES: usize = size_of::<(Name, ClientStatement)>() + 32;

/// So many names are compared one after the other: the keyed hash costs as much as eight comparisons.
const SEARCHED_MAX: usize = 8;

fn cost(name: &[u8]) -> usize {
    name.len() + NAME_OVERHEAD_BYTES
}

/// A client's names for prepared statements.
#[derive(Debug)]
pub(super) struct ClientStatements {
    names: HashMap<Name, ClientStatement, Keyed>,
    memory: Arc<StatementMemory>,
}

impl ClientStatements {
    pub(super) fn new(hash_key: Keyed, memory: Arc<StatementMemory>) -> Self {
        Self { names: HashMap::with_hasher(hash_key), memory }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    #[inline]
    pub(super) fn get(&self, name: &[u8]) -> Option<&ClientStatement> {
        if self.names.len() <= SEARCHED_MAX {
            return self.names.iter().find(|(own, _)| ***own == *name).map(|(_, named)| named);
        }
        self.names.get(name)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Name> {
        self.names.keys()
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (&Name, &ClientStatement)> {
        self.names.iter()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &ClientStatement> {
        self.names.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut ClientStatement> {
        self.names.values_mut()
    }

    pub(super) fn get_mut(&mut self, name: &[u8]) -> Option<&mut ClientStatement> {
        self.names.get_mut(name)
    }

    pub(super) fn insert(&mut self, name: Name, statement: ClientStatement) {
        let cost = cost(&name);
        if self.names.insert(name, statement).is_none() {
            self.memory.name(cost);
        }
    }

    pub(super) fn remove_entry(&mut self, name: &[u8]) -> Option<(Name, ClientStatement)> {
        let entry = self.names.remove_entry(name)?;
        self.memory.unname(cost(name));
        Some(entry)
    }

    /// Takes in those of another, which go before its own.
    pub(super) fn extend(&mut self, mut other: Self) {
        for (name, statement) in other.names.drain() {
            other.memory.unname(cost(&name));
            self.insert(name, statement);
        }
    }
}

impl Drop for ClientStatements {
    fn drop(&mut self) {
        self.memory.unname(self.names.keys().map(|name| cost(name)).sum());
    }
}
