//! `[[user]]`, and the limits that a user and a database come to together.

use std::sync::Arc;
use std::time::Duration;

use hawser_pooler::parts::functions::variables::FunctionNames;

use super::choice::{Fidelity, LoadBalanceHosts, PoolMode, TargetSessionAttrs};
use super::database::DatabaseConfig;
use super::group::ReloadConfig;
use super::registry::UserEntry;
use super::value::{InPlans, Limit, Password, Timeout};

/// One user with what it inherits from `[pool]`.
#[derive(Clone, Debug, PartialEq)]
pub struct UserConfig {
    /// The name.
    pub name: String,
    /// The password or stored secret; `None`: in `users_file`, or looked up.
    pub password: Option<Password>,
    /// Before the database's.
    pub mode: Option<PoolMode>,
    /// Before the database's.
    pub pool_size: Option<u32>,
    /// Before the database's.
    pub reserve_pool_size: Option<u32>,
    /// Before the database's.
    pub idle_transaction_reserve: Option<u32>,
    /// Server connections in all databases.
    pub max_user_connections: Limit,
    /// Clients in all databases.
    pub max_user_client_connections: Limit,
    /// How long it waits for a server connection; before the database's.
    pub query_wait_timeout: Option<Timeout>,
    /// How long a query may run.
    pub query_timeout: Timeout,
    /// How long a client may be idle in a transaction.
    pub idle_transaction_timeout: Timeout,
    /// How long it may be idle while it keeps a server connection.
    pub pin_timeout: Timeout,
    /// How long a transaction may take.
    pub transaction_timeout: Timeout,
    /// How long a client may be idle outside of one.
    pub client_idle_timeout: Timeout,
    /// Which servers will do; before the database's.
    pub target_session_attrs: Option<TargetSessionAttrs>,
    /// How much a standby may lag; takes precedence over the database's.
    pub max_replica_lag: Option<Timeout>,
    /// Which of several servers is tried first; takes precedence over the database's.
    pub load_balance_hosts: Option<LoadBalanceHosts>,
}

impl UserConfig {
    /// Whether it may have other servers than the other users of a database.
    #[must_use]
    pub fn has_own_servers(&self) -> bool {
        self.target_session_attrs.is_some() || self.max_replica_lag.is_some()
    }

    /// `entry` over what `general` says for all.
    pub(super) fn inherit(entry: &UserEntry, general: &ReloadConfig) -> Self {
        let (limits, timeouts) = (&general.limits, &general.timeouts);
        Self {
            name: entry.name.clone().unwrap_or_default(),
            password: entry.password.clone(),
            mode: entry.pool_mode,
            pool_size: entry.pool_size,
            reserve_pool_size: entry.reserve_pool_size,
            idle_transaction_reserve: entry.idle_transaction_reserve,
            max_user_connections: entry.max_user_connections.unwrap_or(limits.max_user_connections),
            max_user_client_connections: entry
                .max_user_client_connections
                .unwrap_or(limits.max_user_client_connections),
            query_wait_timeout: entry.query_wait_timeout,
            query_timeout: entry.query_timeout.unwrap_or(timeouts.query_timeout),
            idle_transaction_timeout: entry
                .idle_transaction_timeout
                .unwrap_or(timeouts.idle_transaction_timeout),
            pin_timeout: entry.pin_timeout.unwrap_or(timeouts.pin_timeout),
            transaction_timeout: entry.transaction_timeout.unwrap_or(timeouts.transaction_timeout),
            client_idle_timeout: entry.client_idle_timeout.unwrap_or(timeouts.client_idle_timeout),
            target_session_attrs: entry.target_session_attrs,
            max_replica_lag: entry.max_replica_lag,
            load_balance_hosts: entry.load_balance_hosts,
        }
    }

    /// A user without an entry.
    pub(super) fn without_entry(general: &ReloadConfig) -> Self {
        Self::inherit(&UserEntry::defaults(), general)
    }
}

/// What one user may have in one database: the user's own entry before the database's before
/// `[pool]`, as in PgBouncer.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolLimits {
    /// When a server connection goes back.
    pub mode: PoolMode,
    /// What becomes of session state that does not move.
    pub fidelity: Fidelity,
    /// Functions after which a session belongs to its client alone.
    pub stateful_functions: Arc<FunctionNames>,
    /// Whether plans may depend on custom settings.
    pub custom_settings_in_plans: InPlans,
    /// See [`DatabaseConfig::function_census`].
    pub function_census: bool,
    /// Server connections.
    pub pool_size: u32,
    /// Kept open; at most `pool_size`.
    pub min_pool_size: u32,
    /// Beyond `pool_size`, for those who have waited.
    pub reserve_pool_size: u32,
    /// How long they wait for that.
    pub reserve_pool_timeout: Timeout,
    /// Idle in a transaction beyond `pool_size`.
    pub idle_transaction_reserve: u32,
    /// Beyond `pool_size`, in place of those that wait for locks.
    pub lock_wait_reserve: u32,
    /// Kept by clients between transactions; `None`: any number.
    pub max_pinned: Option<u32>,
    /// Server connections of this database, all users together.
    pub max_db_connections: Limit,
    /// Clients of this database, all users together.
    pub max_db_client_connections: Limit,
    /// Server connections of this user, all databases together.
    pub max_user_connections: Limit,
    /// Clients of this user, all databases together.
    pub max_user_client_connections: Limit,
    /// Age at which a free server connection is closed; zero: each is used once.
    pub server_lifetime: Duration,
    /// How long a client waits for a server connection.
    pub query_wait_timeout: Timeout,
    /// How long a query may run.
    pub query_timeout: Timeout,
    /// How long a client may be idle in a transaction.
    pub idle_transaction_timeout: Timeout,
    /// How long it may be idle while it keeps a server connection.
    pub pin_timeout: Timeout,
    /// How long a transaction may take.
    pub transaction_timeout: Timeout,
    /// How long a client may be idle outside of one.
    pub client_idle_timeout: Timeout,
}

impl PoolLimits {
    pub(super) fn of(database: &DatabaseConfig, user: &UserConfig) -> Self {
        let pool_size = user.pool_size.unwrap_or(database.pool_size);
        let idle_transaction_reserve = user
            .idle_transaction_reserve
            .or(database.idle_transaction_reserve)
            .unwrap_or(pool_size);
        let all_but_one = pool_size.saturating_add(idle_transaction_reserve).saturating_sub(1);
        Self {
            mode: user.mode.unwrap_or(database.mode),
            fidelity: database.fidelity,
            stateful_functions: database.stateful_functions.names.clone(),
            custom_settings_in_plans: database.custom_settings_in_plans,
            function_census: database.function_census,
            pool_size,
            min_pool_size: database.min_pool_size.min(pool_size),
            reserve_pool_size: user.reserve_pool_size.unwrap_or(database.reserve_pool_size),
            reserve_pool_timeout: database.reserve_pool_timeout,
            idle_transaction_reserve,
            lock_wait_reserve: database.lock_wait_reserve,
            max_pinned: database.max_pinned.map_or(Some(all_but_one.max(1)), Limit::get),
            max_db_connections: database.max_db_connections,
            max_db_client_connections: database.max_db_client_connections,
            max_user_connections: user.max_user_connections,
            max_user_client_connections: user.max_user_client_connections,
            server_lifetime: database.server_lifetime,
            query_wait_timeout: user.query_wait_timeout.unwrap_or(database.query_wait_timeout),
            query_timeout: user.query_timeout,
            idle_transaction_timeout: user.idle_transaction_timeout,
            pin_timeout: user.pin_timeout,
            transaction_timeout: user.transaction_timeout,
            client_idle_timeout: user.client_idle_timeout,
        }
    }
}
