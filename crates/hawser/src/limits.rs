//! How many connections there may be: permits that free their place when they are dropped.
//!
//! # Model
//! A client holds one place in all, and after its login one of its database and one of its user. A
//! server connection holds one place in all, of its database, of its user and of its server's
//! address. Bounds come from the configuration at each request: a reload needs no change here, and
//! nobody who is in is thrown out by a lower bound.
//!
//! # Invariant
//! Every count is the number of permits that exist.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_core::wire::error::{ClientError, SqlState};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::config::{Limit, ServerAddress};

/// Clients beyond `max_client_conn` that may be on their way in: half-open logins, cancel requests
/// and those who are about to be told that there are too many.
pub const LOGINS_BEYOND: usize = 1_000;

#[derive(Debug, Default)]
struct Counts {
    connected: usize,
    clients: usize,
    clients_by_database: HashMap<Arc<str>, usize>,
    clients_by_user: HashMap<Arc<str>, usize>,
    servers: usize,
    servers_by_database: HashMap<Arc<str>, usize>,
    servers_by_user: HashMap<Arc<str>, usize>,
    servers_by_address: HashMap<ServerAddress, usize>,
}

fn count_of<K, Q>(counts: &HashMap<K, usize>, key: &Q) -> usize
where
    K: Hash + Eq + Borrow<Q>,
    Q: Hash + Eq + ?Sized,
{
    counts.get(key).copied().unwrap_or(0)
}

fn add(counts: &mut HashMap<Arc<str>, usize>, key: &str) -> Arc<str> {
    let name = match counts.get_key_value(key) {
        Some((name, _)) => name.clone(),
        None => key.into(),
    };
    *counts.entry(name.clone()).or_default() += 1;
    name
}

fn remove<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// Counts everything that is limited.
#[derive(Debug, Default)]
pub struct Limits {
    counts: Mutex<Counts>,
    server_freed: Notify,
}

/// Bounds on server connections.
#[derive(Clone, Copy, Debug)]
pub struct ServerBounds {
    /// In all.
    pub total: Limit,
    /// Of one database.
    pub database: Limit,
    /// Of one user.
    pub user: Limit,
}

/// Which bound leaves no room.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Full {
    /// `max_server_connections`.
    Total,
    /// `max_db_connections`.
    Database,
    /// `max_user_connections`.
    User,
    /// `max_server_connections_per_server`.
    Server(ServerAddress),
}

impl Full {
    /// What a client that waits in vain is told.
    pub fn to_client_error(&self) -> ClientError {
        let what = match self {
            Self::Total => "max_server_connections is reached".to_owned(),
            Self::Database => "max_db_connections of the database is reached".to_owned(),
            Self::User => "max_user_connections of the user is reached".to_owned(),
            Self::Server(server) => {
                format!("max_server_connections_per_server is reached at {server}")
            }
        };
        ClientError::fatal(SqlState::TOO_MANY_CONNECTIONS, "no more server connections allowed")
            .detail(what)
    }
}

impl Limits {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection that has just been accepted. `None`: close it at once.
    pub fn connect(self: &Arc<Self>, max_client_conn: u32) -> Option<ConnectionPermit> {
        let mut counts = self.lock();
        if counts.connected >= max_client_conn as usize + LOGINS_BEYOND {
            return None;
        }
        counts.connected += 1;
        Some(ConnectionPermit { limits: self.clone(), client: false, database: None, user: None })
    }

    /// Clients that hold a place.
    pub fn client_count(&self) -> usize {
        self.lock().clients
    }

    /// Clients of a database that hold a place.
    pub fn database_client_count(&self, database: &str) -> usize {
        count_of(&self.lock().clients_by_database, database)
    }

    /// Clients of a user that hold a place.
    pub fn user_client_count(&self, user: &str) -> usize {
        count_of(&self.lock().clients_by_user, user)
    }

    /// Server connections that hold a place.
    pub fn server_count(&self) -> usize {
        self.lock().servers
    }

    /// A place for a server connection of this database and user.
    ///
    /// # Errors
    /// Which bound leaves no room.
    pub fn server(
        self: &Arc<Self>,
        database: &str,
        user: &str,
        bounds: &ServerBounds,
    ) -> Result<ServerPermit, Full> {
        let mut counts = self.lock();
        if !bounds.total.admits_one_more(counts.servers) {
            return Err(Full::Total);
        }
        if !bounds.database.admits_one_more(count_of(&counts.servers_by_database, database)) {
            return Err(Full::Database);
        }
        if !bounds.user.admits_one_more(count_of(&counts.servers_by_user, user)) {
            return Err(Full::User);
        }
        counts.servers += 1;
        let database = add(&mut counts.servers_by_database, database);
        let user = add(&mut counts.servers_by_user, user);
        Ok(ServerPermit { limits: self.clone(), database, user })
    }

    /// A place for a connection to this server.
    ///
    /// # Errors
    /// [`Full::Server`].
    pub fn address(
        self: &Arc<Self>,
        server: &ServerAddress,
        bound: Limit,
    ) -> Result<AddressPermit, Full> {
        let mut counts = self.lock();
        if !bound.admits_one_more(count_of(&counts.servers_by_address, server)) {
            return Err(Full::Server(server.clone()));
        }
        *counts.servers_by_address.entry(server.clone()).or_default() += 1;
        Ok(AddressPermit { limits: self.clone(), server: server.clone() })
    }

    /// Completes when a place of a server connection has become free after this call.
    pub fn server_freed(&self) -> Notified<'_> {
        self.server_freed.notified()
    }
}

/// The place of a client's connection.
#[derive(Debug)]
pub struct ConnectionPermit {
    limits: Arc<Limits>,
    client: bool,
    database: Option<Arc<str>>,
    user: Option<Arc<str>>,
}

impl ConnectionPermit {
    /// Counts the connection as a client. To be called once its startup packet has come.
    ///
    /// # Errors
    /// `max_client_conn` is reached: PostgreSQL's words.
    pub fn admit(&mut self, max_client_conn: u32) -> Result<(), ClientError> {
        let mut counts = self.limits.lock();
        if counts.clients >= max_client_conn as usize {
            return Err(ClientError::fatal(
                SqlState::TOO_MANY_CONNECTIONS,
                "sorry, too many clients already",
            )
            .detail("max_client_conn is reached."));
        }
        counts.clients += 1;
        self.client = true;
        Ok(())
    }

    /// Counts the client under its database and user. To be called once it has logged in.
    ///
    /// # Errors
    /// A limit is reached: PostgreSQL's words.
    pub fn enter(
        &mut self,
        database: &str,
        user: &str,
        by_database: Limit,
        by_user: Limit,
    ) -> Result<(), ClientError> {
        let mut counts = self.limits.lock();
        if !by_database.admits_one_more(count_of(&counts.clients_by_database, database)) {
            return Err(ClientError::fatal(
                SqlState::TOO_MANY_CONNECTIONS,
                format!("too many connections for database \"{database}\""),
            )
            .detail("max_db_client_connections is reached."));
        }
        if !by_user.admits_one_more(count_of(&counts.clients_by_user, user)) {
            return Err(ClientError::fatal(
                SqlState::TOO_MANY_CONNECTIONS,
                format!("too many connections for role \"{user}\""),
            )
            .detail("max_user_client_connections is reached."));
        }
        self.database = Some(add(&mut counts.clients_by_database, database));
        self.user = Some(add(&mut counts.clients_by_user, user));
        Ok(())
    }
}

impl ConnectionPermit {
    /// Gives all places back but that of the connection itself: it is about to be closed.
    pub fn dismiss(&mut self) {
        let mut counts = self.limits.lock();
        if std::mem::take(&mut self.client) {
            counts.clients -= 1;
        }
        if let Some(database) = self.database.take() {
            remove(&mut counts.clients_by_database, &database);
        }
        if let Some(user) = self.user.take() {
            remove(&mut counts.clients_by_user, &user);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.dismiss();
        self.limits.lock().connected -= 1;
    }
}

/// The place of a server connection.
#[derive(Debug)]
pub struct ServerPermit {
    limits: Arc<Limits>,
    database: Arc<str>,
    user: Arc<str>,
}

impl Drop for ServerPermit {
    fn drop(&mut self) {
        let mut counts = self.limits.lock();
        counts.servers -= 1;
        remove(&mut counts.servers_by_database, &self.database);
        remove(&mut counts.servers_by_user, &self.user);
        drop(counts);
        self.limits.server_freed.notify_waiters();
    }
}

/// The place of a connection to one server.
#[derive(Debug)]
pub struct AddressPermit {
    limits: Arc<Limits>,
    server: ServerAddress,
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        remove(&mut self.limits.lock().servers_by_address, &self.server);
        self.limits.server_freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_after_the_last_is_told_53300_and_a_free_place_is_used_again() {
        let limits = Arc::new(Limits::default());
        let mut first = limits.connect(1).unwrap();
        let mut second = limits.connect(1).unwrap();
        first.admit(1).unwrap();
        let error = second.admit(1).unwrap_err();
        assert_eq!(error.code, SqlState::TOO_MANY_CONNECTIONS);
        assert_eq!(error.message, "sorry, too many clients already");
        drop(first);
        second.admit(1).unwrap();
        assert_eq!(limits.client_count(), 1);
    }

    #[test]
    fn half_open_logins_are_bounded_on_their_own() {
        let limits = Arc::new(Limits::default());
        let open: Vec<_> = (0..LOGINS_BEYOND + 2).filter_map(|_| limits.connect(2)).collect();
        assert_eq!(open.len(), LOGINS_BEYOND + 2);
        assert!(limits.connect(2).is_none());
        drop(open);
        assert!(limits.connect(2).is_some());
    }

    #[test]
    fn databases_and_users_have_limits_of_their_own() {
        let limits = Arc::new(Limits::default());
        let two = Limit::new(2);
        let mut held = Vec::new();
        for (database, user, admitted) in [
            ("a", "u", true),
            ("a", "v", true),
            ("a", "w", false),
            ("b", "u", true),
            ("c", "u", false),
        ] {
            let mut permit = limits.connect(100).unwrap();
            let result = permit.enter(database, user, two, two);
            assert_eq!(result.is_ok(), admitted, "{database} {user}");
            if admitted {
                held.push(permit);
            }
        }
        assert_eq!(limits.database_client_count("a"), 2);
        held.clear();
        assert_eq!(limits.database_client_count("a"), 0);
        assert!(limits.lock().clients_by_user.is_empty(), "nothing is left behind");
    }

    #[tokio::test]
    async fn a_freed_server_place_wakes_who_waits_for_one() {
        let limits = Arc::new(Limits::default());
        let bounds =
            ServerBounds { total: Limit::new(1), database: Limit::NONE, user: Limit::NONE };
        let permit = limits.server("d", "u", &bounds).unwrap();
        assert_eq!(limits.server("d", "u", &bounds).unwrap_err(), Full::Total);
        let freed = limits.server_freed();
        drop(permit);
        freed.await;
        limits.server("d", "u", &bounds).unwrap();
    }
}
