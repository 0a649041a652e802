//! Which custom names (`my.x`) a server connection knows, and a client has.
//!
//! # The trap
//! A custom name can never be removed from a server connection: after RESET and DISCARD ALL
//! `current_setting('my.x', true)` gives an empty string there, and NULL where the name was never
//! used; row policies depend on that.
//!
//! # Model
//! The names that a pool has seen are numbered, and a set of them is one word. A backend goes only
//! to clients that have all names that it knows.
//!
//! # Limits
//! `NAMES_MAX` names for each pool; a backend that knows another one serves one client.

use std::sync::{Mutex, PoisonError};

use crate::session::settings::{Settings, is_custom};

/// Custom names that one pool distinguishes.
const NAMES_MAX: usize = 63;

/// A set of custom names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CustomNames(u64);

impl CustomNames {
    /// No name.
    pub const NONE: CustomNames = CustomNames(0);

    /// A name without a number of its own: no other set counts as having it.
    const ONE_TOO_MANY: CustomNames = CustomNames(1 << NAMES_MAX);

    /// All that are in either.
    #[must_use]
    pub fn and(self, other: CustomNames) -> CustomNames {
        CustomNames(self.0 | other.0)
    }

    /// Whether a client that has `had` may get a backend that knows these.
    #[inline]
    pub fn fit(self, had: CustomNames) -> bool {
        self.0 & !had.0 == 0
    }

    /// Whether a name without a number is among them.
    pub fn are_too_many(self) -> bool {
        self.0 & Self::ONE_TOO_MANY.0 != 0
    }
}

/// The names that a pool has seen.
#[derive(Debug, Default)]
pub(crate) struct KnownNames(Mutex<Vec<Box<[u8]>>>);

impl KnownNames {
    /// The set of this one name, in lower case.
    pub(crate) fn of(&self, name: &[u8]) -> CustomNames {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.iter().position(|known| **known == *name).unwrap_or_else(|| {
            if known.len() < NAMES_MAX {
                known.push(name.into());
                known.len() - 1
            } else {
                NAMES_MAX
            }
        });
        CustomNames(1 << at)
    }

    /// Those among settings that a client has: a name without a number is none.
    pub(crate) fn among(&self, settings: &Settings) -> CustomNames {
        CustomNames(self.all_among(settings).0 & !CustomNames::ONE_TOO_MANY.0)
    }

    /// Those among settings that a backend knows once it has them.
    pub(crate) fn all_among(&self, settings: &Settings) -> CustomNames {
        let names = settings.iter().filter(|(name, _)| is_custom(name));
        names.fold(CustomNames::NONE, |all, (name, _)| all.and(self.of(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_fits_a_client_that_has_all_its_names() {
        let known = KnownNames::default();
        let (a, b) = (known.of(b"my.a"), known.of(b"my.b"));
        assert_eq!(known.of(b"my.a"), a);
        assert!(CustomNames::NONE.fit(CustomNames::NONE) && CustomNames::NONE.fit(a));
        assert!(a.fit(a) && a.fit(a.and(b)));
        assert!(!a.fit(b) && !a.and(b).fit(a) && !a.fit(CustomNames::NONE));
    }

    #[test]
    fn a_name_without_a_number_fits_no_client() {
        let known = KnownNames::default();
        for n in 0..NAMES_MAX {
            assert!(!known.of(format!("my.n{n}").as_bytes()).are_too_many());
        }
        let more = known.of(b"my.other");
        assert!(more.are_too_many() && !more.fit(CustomNames(u64::MAX >> 1)));
    }
}
