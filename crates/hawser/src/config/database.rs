//! `[[database]]`: what clients ask for, and which servers have it.

use std::path::PathBuf;
use std::time::Duration;

use super::address::ServerAddress;
use super::choice::{
    ExtensionUse, Fidelity, HandOver, LoadBalanceHosts, PoolMode, ProxyProtocol,
    TargetSessionAttrs, TlsMode, TlsNegotiation, TlsVersions,
};
use super::ciphers::{Tls13Ciphers, TlsCiphers};
use super::group::ReloadConfig;
use super::registry::DatabaseEntry;
use super::value::{Functions, InPlans, Limit, Password, Timeout};

/// The entry whose name matches what no other entry does.
pub const ANY_DATABASE: &str = "*";
/// The admin database under our name and under the one that tools for PgBouncer ask for.
pub const ADMIN_DATABASES: [&str; 2] = ["hawser", "pgbouncer"];
/// The console's database, user and pool in PgBouncer's tables.
pub const CONSOLE: &str = "pgbouncer";

/// The one user as which Hawser logs in to a database's servers for all clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ForcedUser {
    /// The name.
    pub name: String,
    /// The password; `None`: the one that `users_file` or `[[user]]` has for that name.
    pub password: Option<Password>,
}

/// TLS with the servers of one database.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerTls {
    /// libpq's sslmode. Unix sockets never use TLS.
    pub mode: TlsMode,
    /// Authorities; present where `mode` verifies.
    pub ca_file: Option<PathBuf>,
    /// Our certificate; present together with `key_file`.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// Versions that may be used.
    pub protocols: TlsVersions,
    /// Ciphers that may be used, of TLS 1.2.
    pub ciphers: TlsCiphers,
    /// The same of TLS 1.3.
    pub ciphers_13: Tls13Ciphers,
    /// How TLS begins.
    pub negotiation: TlsNegotiation,
}

/// One database with all that it inherits from `[pool]`, `[tls]` and `[auth]`.
#[derive(Clone, Debug, PartialEq)]
pub struct DatabaseConfig {
    /// What clients ask for; [`ANY_DATABASE`] matches the rest.
    pub name: String,
    /// The database on the server; `None`: the name that the client asks for. See
    /// [`DatabaseConfig::dbname_for`].
    pub dbname: Option<String>,
    /// At least one.
    pub servers: Vec<ServerAddress>,
    /// Which of them will do.
    pub target_session_attrs: TargetSessionAttrs,
    /// How much a standby may lag.
    pub max_replica_lag: Timeout,
    /// Which of them is tried first.
    pub load_balance_hosts: LoadBalanceHosts,
    /// The one user towards the server, if there is one.
    pub forced_user: Option<ForcedUser>,
    /// The file with that user's password.
    pub password_file: Option<PathBuf>,
    /// The command that prints it, with its arguments; empty: there is none.
    pub password_command: Vec<String>,
    /// How long its output is used.
    pub password_max_age: Duration,
    /// What servers are sent first.
    pub proxy_protocol: ProxyProtocol,
    /// Who runs `auth_query`; `None`: there are no looked-up users.
    pub auth_user: Option<String>,
    /// Looks up users; `$1` is the name.
    pub auth_query: String,
    /// The `[[database]]` in which `auth_query` runs; `None`: this one.
    pub auth_dbname: Option<String>,
    /// When a server connection goes back.
    pub mode: PoolMode,
    /// `pool_mode`, where it is this entry's own.
    pub own_mode: Option<PoolMode>,
    /// What becomes of session state that does not move.
    pub fidelity: Fidelity,
    /// Functions that keep something in variables of their language.
    pub stateful_functions: Functions,
    /// Whether plans may depend on custom settings.
    pub custom_settings_in_plans: InPlans,
    /// Whether the functions of the database are looked into.
    pub function_census: bool,
    /// Whether servers are asked to report what sessions hold.
    pub extension: ExtensionUse,
    /// Server connections for each user.
    pub pool_size: u32,
    /// Kept open; at most `pool_size`.
    pub min_pool_size: u32,
    /// Beyond `pool_size`, for those who have waited.
    pub reserve_pool_size: u32,
    /// How long they wait for that.
    pub reserve_pool_timeout: Timeout,
    /// Idle in a transaction beyond `pool_size`; `None`: as many as the pool's size.
    pub idle_transaction_reserve: Option<u32>,
    /// Beyond `pool_size`, in place of those that wait for locks.
    pub lock_wait_reserve: u32,
    /// Kept by clients between transactions; `None`: all that the pool may have but one.
    pub max_pinned: Option<Limit>,
    /// Server connections of all users.
    pub max_db_connections: Limit,
    /// Clients of all users.
    pub max_db_client_connections: Limit,
    /// Age at which a free server connection is closed; zero: each is used once.
    pub server_lifetime: Duration,
    /// How long a client waits for a server connection.
    pub query_wait_timeout: Timeout,
    /// How long no server may have answered before clients do not wait any more.
    pub server_down_timeout: Timeout,
    /// With what server connections begin, where that is not the server's own: names and values.
    pub start_values: Vec<(&'static str, String)>,
    /// Sent on each new server connection.
    pub connect_query: Option<String>,
    /// The secret with which server connections are handed over.
    pub hand_over_secret_file: Option<PathBuf>,
    /// What for.
    pub hand_over: HandOver,
    /// Server connections that serve clients inside, for each user.
    pub inside_size: u32,
    /// How many of them look for work at once; 0: as many as there are cores.
    pub inside_places: u32,
    /// TLS with the servers.
    pub tls: ServerTls,
}

impl DatabaseConfig {
    /// The database on the server for a client that asks for `requested`.
    #[must_use]
    pub fn dbname_for<'a>(&'a self, requested: &'a str) -> &'a str {
        self.dbname.as_deref().unwrap_or(requested)
    }

    /// Whether clients of all users share one pool, each with its own user's session.
    #[must_use]
    pub fn is_shared_by_users(&self) -> bool {
        self.hand_over_secret_file.is_some() && self.hand_over == HandOver::Users
    }

    /// Whether this is the entry for names that have none.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.name == ANY_DATABASE
    }

    /// `entry` over what `general` says for all; `entry` has been checked.
    pub(super) fn inherit(entry: &DatabaseEntry, general: &ReloadConfig) -> Self {
        let (pool, tls, auth) = (&general.pool, &general.server_tls, &general.auth);
        let pool_size = entry.pool_size.unwrap_or(pool.pool_size);
        // Certificate and key belong together: an entry with its own has both of its own.
        let own_certificate = entry.server_tls_cert_file.is_some();
        let (cert_file, key_file) = if own_certificate {
            (&entry.server_tls_cert_file, &entry.server_tls_key_file)
        } else {
            (&tls.server_tls_cert_file, &tls.server_tls_key_file)
        };
        Self {
            name: entry.name.clone().unwrap_or_default(),
            dbname: entry.dbname.clone(),
            servers: entry.servers.clone(),
            target_session_attrs: entry.target_session_attrs,
            max_replica_lag: entry.max_replica_lag,
            load_balance_hosts: entry.load_balance_hosts,
            forced_user: entry
                .user
                .clone()
                .map(|name| ForcedUser { name, password: entry.password.clone() }),
            password_file: entry.password_file.clone(),
            password_command: entry.password_command.clone(),
            password_max_age: entry.password_max_age,
            proxy_protocol: entry.proxy_protocol,
            auth_user: entry.auth_user.clone().or_else(|| auth.auth_user.clone()),
            auth_query: entry.auth_query.clone().unwrap_or_else(|| auth.auth_query.clone()),
            auth_dbname: entry.auth_dbname.clone().or_else(|| auth.auth_dbname.clone()),
            mode: entry.pool_mode.unwrap_or(pool.pool_mode),
            own_mode: entry.pool_mode,
            fidelity: entry.fidelity.unwrap_or(pool.fidelity),
            stateful_functions: entry
                .stateful_functions
                .clone()
                .unwrap_or_else(|| pool.stateful_functions.clone()),
            custom_settings_in_plans: entry
                .custom_settings_in_plans
                .unwrap_or(pool.custom_settings_in_plans),
            function_census: entry.function_census.unwrap_or(pool.function_census),
            extension: entry.extension.unwrap_or(pool.extension),
            pool_size,
            min_pool_size: entry.min_pool_size.unwrap_or(pool.min_pool_size).min(pool_size),
            reserve_pool_size: entry.reserve_pool_size.unwrap_or(pool.reserve_pool_size),
            reserve_pool_timeout: entry.reserve_pool_timeout.unwrap_or(pool.reserve_pool_timeout),
            idle_transaction_reserve: entry
                .idle_transaction_reserve
                .or(pool.idle_transaction_reserve),
            lock_wait_reserve: entry.lock_wait_reserve.unwrap_or(pool.lock_wait_reserve),
            max_pinned: entry.max_pinned.or(pool.max_pinned),
            max_db_connections: entry
                .max_db_connections
                .unwrap_or(general.limits.max_db_connections),
            max_db_client_connections: entry
                .max_db_client_connections
                .unwrap_or(general.limits.max_db_client_connections),
            server_lifetime: entry.server_lifetime.unwrap_or(general.servers.server_lifetime),
            query_wait_timeout: entry
                .query_wait_timeout
                .unwrap_or(general.timeouts.query_wait_timeout),
            server_down_timeout: entry
                .server_down_timeout
                .unwrap_or(general.servers.server_down_timeout),
            start_values: start_values(entry),
            connect_query: entry.connect_query.clone(),
            hand_over_secret_file: entry.hand_over_secret_file.clone(),
            hand_over: entry.hand_over,
            inside_size: entry.inside_size,
            inside_places: entry.inside_places,
            tls: ServerTls {
                mode: entry.server_tls_sslmode.unwrap_or(tls.server_tls_sslmode),
                ca_file: entry
                    .server_tls_ca_file
                    .clone()
                    .or_else(|| tls.server_tls_ca_file.clone()),
                cert_file: cert_file.clone(),
                key_file: key_file.clone(),
                ciphers: tls.server_tls_ciphers.clone(),
                ciphers_13: tls.server_tls13_ciphers.clone(),
                protocols: entry.server_tls_protocols.unwrap_or(tls.server_tls_protocols),
                negotiation: entry.server_tls_negotiation.unwrap_or(tls.server_tls_negotiation),
            },
        }
    }
}

fn start_values(entry: &DatabaseEntry) -> Vec<(&'static str, String)> {
    let values = [
        ("client_encoding", &entry.client_encoding),
        ("DateStyle", &entry.datestyle),
        ("TimeZone", &entry.timezone),
        ("application_name", &entry.application_name),
    ];
    let set = |(name, value): (&'static str, &Option<String>)| {
        value.clone().filter(|value| !value.is_empty()).map(|value| (name, value))
    };
    values.into_iter().filter_map(set).collect()
}
