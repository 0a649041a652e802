//! What the values of sessions are differences from.
//!
//! # Model
//! A client's settings are kept as they differ from its server's own. Two servers of a pool may have
//! other values of their own, and one server's change (ALTER DATABASE, ALTER ROLE, a failover): a
//! [`Basis`] is the number of one such set of values. What differs from one basis is reckoned anew
//! where the server connection has another ([`crate::engine`], `rebase`).
//!
//! # Why numbers
//! They are compared at each lending, and clients keep one each.

use std::sync::{Arc, Mutex, PoisonError};

use super::shared::ServerParameters;

/// Sets of values that one pool tells apart; any further are taken for unknown.
pub const BASES_MAX: usize = 256;

/// One set of a server's own values, by its number within the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Basis(u16);

impl Basis {
    /// No server has said yet.
    pub const UNKNOWN: Basis = Basis(u16::MAX);
}

/// All that a pool has seen.
#[derive(Debug, Default)]
pub(super) struct Bases(Mutex<Vec<Arc<ServerParameters>>>);

impl Bases {
    /// The number of these values; of what nobody can set, none counts.
    pub(super) fn of(&self, parameters: &Arc<ServerParameters>) -> Basis {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.iter().position(|known| {
            Arc::ptr_eq(known, parameters)
                || (known.settable().all(|(name, value)| parameters.get(name) == Some(value))
                    && parameters.settable().all(|(name, _)| known.get(name).is_some()))
        });
        let at = at.unwrap_or_else(|| {
            if known.len() < BASES_MAX {
                known.push(parameters.clone());
                known.len() - 1
            } else {
                usize::MAX
            }
        });
        u16::try_from(at).map_or(Basis::UNKNOWN, Basis)
    }

    /// The values of that number.
    pub(super) fn get(&self, basis: Basis) -> Option<Arc<ServerParameters>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(usize::from(basis.0)).cloned()
    }
}
