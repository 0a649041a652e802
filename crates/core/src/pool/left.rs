//! Servers that a pool leaves while others of its servers serve it.
//!
//! # Model
//! A server that no longer is what its database asks for (demoted, too far behind, about to stop) is
//! named here. A backend of it serves its client up to the end of the transaction and is then closed.
//!
//! # Why not an epoch
//! An epoch would replace the backends of the other servers, too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::ids::ServerAddressId;

/// Those servers.
#[derive(Debug, Default)]
pub struct LeftServers {
    /// A hint that spares each release the lock.
    any: AtomicBool,
    servers: RwLock<Box<[ServerAddressId]>>,
}

impl LeftServers {
    /// Whether backends of this server are to be closed.
    #[inline]
    pub fn has(&self, server: ServerAddressId) -> bool {
        self.any.load(Ordering::Acquire)
            && self.servers.read().unwrap_or_else(PoisonError::into_inner).contains(&server)
    }

    /// Names all of them.
    pub fn set(&self, servers: &[ServerAddressId]) {
        *self.servers.write().unwrap_or_else(PoisonError::into_inner) = servers.into();
        self.any.store(!servers.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_left_until_it_is_named_no_more() {
        let [one, two, three] = [1, 2, 3].map(ServerAddressId);
        let left = LeftServers::default();
        assert!(!left.has(one));
        left.set(&[one, three]);
        assert_eq!([one, two, three].map(|server| left.has(server)), [true, false, true]);
        left.set(&[]);
        assert!(!left.has(one));
    }
}
