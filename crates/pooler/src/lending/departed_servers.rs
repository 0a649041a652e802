//! Servers that a pool is leaving for its other servers.
//!
//! # Model
//! A server that no longer is what its database asks for (demoted, lagging too much, about to stop)
//! is named here. A backend of it serves its client up to the end of the transaction and is then
//! closed.
//!
//! # Why not of those opened since
//! What a server is was asked for at their own opening, after the look that has it named here: a standby
//! that has just been promoted would lose each new backend until the next look.
//!
//! # Why not an epoch
//! An epoch would replace the backends of the other servers, too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::ids::ServerAddressId;
use crate::time::Time;

/// Those servers.
#[derive(Debug, Default)]
pub struct DepartedServers {
    /// A hint that spares each release the lock.
    any: AtomicBool,
    /// Each with the moment at which the look began that has shown it.
    servers: RwLock<Box<[(ServerAddressId, Time)]>>,
}

impl DepartedServers {
    /// Whether a backend of this server, opened then, is to be closed.
    #[inline]
    pub fn has(&self, server: ServerAddressId, opened: Time) -> bool {
        self.any.load(Ordering::Acquire) && {
            let left = self.servers.read().unwrap_or_else(PoisonError::into_inner);
            left.iter().any(|(one, looked)| *one == server && opened < *looked)
        }
    }

    /// Names all of them, each with the moment at which the look began that has shown it.
    pub fn set(&self, servers: &[(ServerAddressId, Time)]) {
        let mut left = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        *left = servers.into();
        self.any.store(!servers.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_left_until_it_is_named_no_more() {
        let [one, two, three] = [1, 2, 3].map(ServerAddressId);
        let (before, looked, after) = (Time::ZERO, Time::from_micros(5), Time::from_micros(9));
        let left = DepartedServers::default();
        assert!(!left.has(one, before));
        left.set(&[(one, looked), (three, looked)]);
        assert_eq!([one, two, three].map(|server| left.has(server, before)), [true, false, true]);
        assert!(!left.has(one, looked) && !left.has(one, after), "it was asked itself since");
        left.set(&[]);
        assert!(!left.has(one, before));
    }
}
