//! The values from which the settings of sessions differ.
//!
//! # Model
//! A client's settings are kept as differences from its server's own values. These may differ
//! between servers of a pool, and change on one server (ALTER DATABASE, ALTER ROLE, a failover): a
//! [`Basis`] is the number of one such set of values. The differences are computed again when the
//! server connection has another basis ([`crate::relay`], `rebase`).
//!
//! # Users
//! If users share a pool, each has numbers of its own, even for equal values. A shared statement
//! has one basis, and so belongs to one user.
//!
//! # Clients of another process
//! The basis of a client that comes from a predecessor has a number that no server connection has:
//! so its settings and statements are computed again when it first gets one.
//!
//! # Why numbers
//! They are compared at each lending, and clients keep one each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::hash::Keyed;
use crate::parts::start_values::parameters::ServerParameters;

/// Sets of values that one pool, or one user of a shared one, distinguishes; further ones count as
/// unknown.
pub(crate) const BASES_MAX: usize = 256;
/// The first number for clients of a predecessor.
const OF_PREDECESSORS: u16 = u16::MAX - BASES_MAX as u16;

/// One set of a server's own values, by its number within the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Basis(u16);

impl Basis {
    /// No server has reported yet.
    pub const UNKNOWN: Basis = Basis(u16::MAX);

    pub(crate) fn number(self) -> u16 {
        self.0
    }

    /// Whether it belongs to a client that came from a predecessor and has had no server connection
    /// since.
    pub(crate) fn is_of_predecessor(self) -> bool {
        self.0 >= OF_PREDECESSORS && self != Self::UNKNOWN
    }
}

/// All that a pool has seen.
#[derive(Debug)]
pub(crate) struct Bases(Mutex<Known>);

#[derive(Debug)]
struct Known {
    values: Vec<Arc<ServerParameters>>,
    of_predecessors: Vec<Arc<ServerParameters>>,
    /// Which of them are a user's.
    users: HashMap<Box<str>, Vec<u16>, Keyed>,
}

impl Bases {
    /// An empty table; `hash_key` keys the users.
    pub(crate) fn new(hash_key: u64) -> Self {
        let users = HashMap::with_hasher(Keyed(hash_key));
        Self(Mutex::new(Known { values: Vec::new(), of_predecessors: Vec::new(), users }))
    }

    /// The number of these values. Parameters that no client can set are not compared.
    pub(crate) fn of(&self, parameters: &Arc<ServerParameters>) -> Basis {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.values.iter().position(|known| is_same(known, parameters));
        let at = at.unwrap_or_else(|| {
            if known.values.len() < BASES_MAX {
                known.values.push(parameters.clone());
                known.values.len() - 1
            } else {
                usize::MAX
            }
        });
        u16::try_from(at).map_or(Basis::UNKNOWN, Basis)
    }

    /// The number of these values of one user.
    pub(crate) fn of_user(&self, user: &str, parameters: &Arc<ServerParameters>) -> Basis {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { values, users, .. } = &mut *known;
        let own = users.get(user).map_or(&[][..], |own| own);
        if let Some(at) = own.iter().find(|at| is_same(&values[usize::from(**at)], parameters)) {
            return Basis(*at);
        }
        let Ok(at) = u16::try_from(values.len()) else { return Basis::UNKNOWN };
        if own.len() >= BASES_MAX || at >= OF_PREDECESSORS {
            return Basis::UNKNOWN;
        }
        values.push(parameters.clone());
        users.entry(user.into()).or_default().push(at);
        Basis(at)
    }

    /// The basis of the settings of a client that comes from a predecessor. Unknown if there are
    /// too many.
    pub(crate) fn of_predecessor(&self, parameters: &Arc<ServerParameters>) -> Basis {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = &mut known.of_predecessors;
        let at = all.iter().position(|known| is_same(known, parameters));
        let at = at.unwrap_or_else(|| {
            if all.len() < BASES_MAX {
                all.push(parameters.clone());
            }
            all.len() - 1
        });
        if !is_same(&all[at], parameters) {
            return Basis::UNKNOWN;
        }
        u16::try_from(at).map_or(Basis::UNKNOWN, |at| Basis(OF_PREDECESSORS + at))
    }

    /// The newest set of values with which a user's session was found to begin.
    pub(crate) fn last_of_user(&self, user: &str) -> Option<Arc<ServerParameters>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = *known.users.get(user)?.last()?;
        known.values.get(usize::from(last)).cloned()
    }

    /// The values of that number.
    pub(crate) fn get(&self, basis: Basis) -> Option<Arc<ServerParameters>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match basis.0.checked_sub(OF_PREDECESSORS) {
            Some(at) => known.of_predecessors.get(usize::from(at)).cloned(),
            None => known.values.get(usize::from(basis.0)).cloned(),
        }
    }
}

fn is_same(known: &Arc<ServerParameters>, parameters: &Arc<ServerParameters>) -> bool {
    Arc::ptr_eq(known, parameters)
        || (known.settable().all(|(name, value)| parameters.get(name) == Some(value))
            && parameters.settable().all(|(name, _)| known.get(name).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(zone: &str) -> Arc<ServerParameters> {
        let mut parameters = ServerParameters::default();
        parameters.set(b"TimeZone", zone.as_bytes());
        Arc::new(parameters)
    }

    #[test]
    fn users_never_have_the_same_number() {
        let bases = Bases::new(1);
        let ann = bases.of_user("ann", &own("UTC"));
        assert_eq!(bases.of_user("ann", &own("UTC")), ann);
        assert_ne!(bases.of_user("bob", &own("UTC")), ann);
        assert_ne!(bases.of_user("ann", &own("CET")), ann);
        assert_ne!(bases.of(&own("Asia/Tokyo")), ann);
        assert_eq!(bases.get(ann), Some(own("UTC")));
    }

    #[test]
    fn whose_values_change_without_end_has_no_number_any_more_and_others_have() {
        let bases = Bases::new(1);
        for n in 0..BASES_MAX {
            assert_ne!(bases.of_user("ann", &own(&n.to_string())), Basis::UNKNOWN);
        }
        assert_eq!(bases.of_user("ann", &own("one more")), Basis::UNKNOWN);
        assert_ne!(bases.of_user("bob", &own("one more")), Basis::UNKNOWN);
    }

    #[test]
    fn more_users_than_there_are_numbers_have_none() {
        let bases = Bases::new(1);
        let own = own("UTC");
        for n in 0..OF_PREDECESSORS {
            assert_ne!(bases.of_user(&n.to_string(), &own), Basis::UNKNOWN);
        }
        assert_eq!(bases.of_user("one more", &own), Basis::UNKNOWN);
        assert_ne!(bases.of_user("7", &own), Basis::UNKNOWN);
    }

    #[test]
    fn what_comes_from_a_predecessor_has_a_number_that_no_server_connection_has() {
        let bases = Bases::new(1);
        let here = bases.of(&own("UTC"));
        let moved = bases.of_predecessor(&own("UTC"));
        assert_eq!(bases.of_predecessor(&own("UTC")), moved);
        assert!(moved != here && moved.is_of_predecessor() && !here.is_of_predecessor());
        assert_eq!(bases.get(moved), Some(own("UTC")));
        for n in 1..BASES_MAX {
            let basis = bases.of_predecessor(&own(&n.to_string()));
            assert_eq!(bases.get(basis), Some(own(&n.to_string())));
        }
        assert_eq!(bases.of_predecessor(&own("one more")), Basis::UNKNOWN);
        assert!(!Basis::UNKNOWN.is_of_predecessor() && bases.get(Basis::UNKNOWN).is_none());
    }
}
