//! What a database, and a user in it, come to: the user's own settings over the database's over `[pool]`,
//! `[auth]` and `[tls]`, as in PgBouncer.
//!
//! # Model       the declaration of an entry's setting names the group that it stands `over`; the entries
//!               are put on the general settings one after the other

use std::sync::Arc;

use super::registry::{
    AuthSettings, Group, LimitSettings, PoolSettings, ServerSettings, ServerTlsSettings,
    TimeoutSettings, UserEntry,
};
use super::value::Limit;

/// The settings that an entry may have for itself. Entries that say nothing share them.
#[derive(Clone, Debug, PartialEq)]
pub struct Inherited {
    /// How users are looked up.
    pub auth: Arc<AuthSettings>,
    /// TLS with the servers. Unix sockets never use TLS.
    pub tls: Arc<ServerTlsSettings>,
    /// The shape of the pool.
    pub pool: Arc<PoolSettings>,
    /// How many connections there may be.
    pub limits: Arc<LimitSettings>,
    /// The life of a server connection.
    pub servers: Arc<ServerSettings>,
    /// How long anything may take.
    pub timeouts: Arc<TimeoutSettings>,
}

impl Inherited {
    /// The same with what `entry` says for itself.
    #[must_use]
    pub(super) fn with(&self, entry: &impl Group) -> Self {
        let mut with = self.clone();
        entry.put_on(&mut with);
        if with.pool.min_pool_size > with.pool.pool_size {
            let pool = Arc::make_mut(&mut with.pool);
            pool.min_pool_size = pool.pool_size;
        }
        with
    }

    /// How many may be idle in a transaction beyond `pool_size`.
    #[must_use]
    pub fn idle_transaction_reserve(&self) -> u32 {
        self.pool.idle_transaction_reserve.unwrap_or(self.pool.pool_size)
    }

    /// How many clients may keep between transactions; `None`: any number.
    #[must_use]
    pub fn max_pinned(&self) -> Option<u32> {
        let size = self.pool.pool_size.saturating_add(self.idle_transaction_reserve());
        self.pool.max_pinned.map_or(Some(size.saturating_sub(1).max(1)), Limit::get)
    }
}

impl UserEntry {
    /// The name, which every entry has that was checked.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Whether it may have other servers than the other users of a database.
    #[must_use]
    pub fn has_own_servers(&self) -> bool {
        self.target_session_attrs.is_some() || self.max_replica_lag.is_some()
    }
}
