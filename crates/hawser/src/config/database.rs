//! `[[database]]`: what clients ask for, and which servers have it.

use std::path::PathBuf;
use std::time::Duration;

use super::address::ServerAddress;
use super::choice::{HandOver, LoadBalanceHosts, PoolMode, ProxyProtocol, TargetSessionAttrs};
use super::inherited::Inherited;
use super::registry::DatabaseEntry;
use super::value::{Password, Timeout};

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
    /// Patroni's REST interface on each node; empty: it is not asked.
    pub patroni: Vec<String>,
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
    /// `pool_mode`, where it is this entry's own.
    pub own_mode: Option<PoolMode>,
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
    /// What `[auth]`, `[pool]` and `[tls]` come to here.
    pub inherited: Inherited,
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

    /// `entry` over what holds for all; `entry` has been checked.
    pub(super) fn inherit(entry: &DatabaseEntry, general: &Inherited) -> Self {
        Self {
            name: entry.name.clone().unwrap_or_default(),
            dbname: entry.dbname.clone(),
            servers: entry.servers.clone(),
            target_session_attrs: entry.target_session_attrs,
            max_replica_lag: entry.max_replica_lag,
            patroni: entry.patroni.clone(),
            load_balance_hosts: entry.load_balance_hosts,
            forced_user: entry
                .user
                .clone()
                .map(|name| ForcedUser { name, password: entry.password.clone() }),
            password_file: entry.password_file.clone(),
            password_command: entry.password_command.clone(),
            password_max_age: entry.password_max_age,
            proxy_protocol: entry.proxy_protocol,
            own_mode: entry.pool_mode,
            start_values: start_values(entry),
            connect_query: entry.connect_query.clone(),
            hand_over_secret_file: entry.hand_over_secret_file.clone(),
            hand_over: entry.hand_over,
            inside_size: entry.inside_size,
            inside_places: entry.inside_places,
            inherited: general.with(entry),
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
