//! Limits on connections: permits that free their place when they are dropped.
//!
//! # Model
//! A client holds one place in all, and after its login one of its database and one of its user. A
//! server connection holds one place in all, of its database, of its user and of its server's
//! address. Bounds come from the configuration at each request: a reload needs no change here, and
//! a lower bound disconnects no client that is in. A client that is not in yet, and keeps others
//! waiting, may be disconnected: see [`half_open`].
//!
//! If limits on server connections are shared with other poolers, this one's part of each also
//! bounds them: [`shared`].
//!
//! # Invariant
//! Every count is the number of permits that exist. Permits of logins that gave way and are not
//! gone yet do not count.

pub mod failed_logins;
pub mod half_open;
pub mod shared;

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use failed_logins::FailedLogins;
use half_open::{Awaited, HalfOpen, Network};
use hawser_pooler::wire::error::{ClientError, SqlState};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::config::{Limit, ServerAddress};
use crate::lock::locked;

/// Clients beyond `max_client_conn` that may be on their way in: half-open logins, cancel requests,
/// and those about to get the error that there are too many.
pub const LOGINS_BEYOND: usize = 1_000;
/// Of these, how many are reserved for connections without TLS handshakes, which are slow to make
/// room.
pub const LOGINS_BEYOND_PLAIN: usize = 500;

/// The time between two reports that logins give way.
const NEWS_INTERVAL: Duration = Duration::from_secs(60);

/// A login has given its place to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GaveWay;

#[derive(Debug, Default)]
struct Counts {
    connected: usize,
    clients: usize,
    half_open: HalfOpen,
    news_at: Option<Instant>,
    clients_by_database: ByName,
    clients_by_user: ByName,
    /// The account of all connections that have not logged in.
    connected_account: Weak<Account>,
    admitted_account: Weak<Account>,
    /// Accounts of those that have, by their database and user.
    entered_accounts: HashMap<(Arc<str>, Arc<str>), Weak<Account>>,
    servers: usize,
    servers_by_database: ByName,
    servers_by_user: ByName,
    servers_by_address: HashMap<ServerAddress, usize>,
    /// The parts of shared limits, if limits are shared.
    shares: Option<shared::Shares>,
}

impl Counts {
    /// Server connections under a limit.
    fn used(&self, full: &Full) -> usize {
        match full {
            Full::Total => self.servers,
            Full::Database(name) => self.servers_by_database.count_of(name),
            Full::User(name) => self.servers_by_user.count_of(name),
            Full::Server(server) => self.servers_by_address.get(server).copied().unwrap_or(0),
        }
    }

    /// Whether there may be one more server connection under each of these.
    fn admit(&mut self, wanted: &[(Limit, Full)]) -> Result<(), Full> {
        if let Some(shares) = &mut self.shares {
            wanted.iter().for_each(|(bound, full)| shares.ask(full, *bound));
        }
        let is_full = |(bound, full): &&(Limit, Full)| {
            let used = self.used(full);
            let has_share = |shares: &shared::Shares| shares.admits_one_more(full, used);
            !bound.admits_one_more(used)
                || (bound.get().is_some() && !self.shares.as_ref().is_none_or(has_share))
        };
        wanted.iter().find(is_full).map_or(Ok(()), |(_, full)| Err(full.clone()))
    }
}

/// Counts by name: one look-up for each change, under the lock that all logins take.
#[derive(Debug, Default)]
struct ByName(HashMap<Arc<str>, (Arc<str>, usize)>);

impl ByName {
    fn count_of(&self, name: &str) -> usize {
        self.0.get(name).map_or(0, |(_, count)| *count)
    }

    /// Counts one more. Returns the shared name.
    fn add(&mut self, name: &str) -> Arc<str> {
        if let Some((name, count)) = self.0.get_mut(name) {
            *count += 1;
            return name.clone();
        }
        let name: Arc<str> = name.into();
        self.0.insert(name.clone(), (name.clone(), 1));
        name
    }

    /// One less.
    fn remove(&mut self, name: &str) {
        if let Some((_, count)) = self.0.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(name);
            }
        }
    }
}

/// Counts everything that is limited.
#[derive(Debug, Default)]
pub struct Limits {
    /// Addresses whose logins have failed.
    pub failed_logins: FailedLogins,
    counts: Mutex<Counts>,
    server_freed: Notify,
    /// A place under a shared limit is wanted, or one has been taken.
    lacking: Notify,
    /// This pooler's part has become smaller.
    lowered: Notify,
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

/// The bound that leaves no room.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Full {
    /// `max_server_connections`.
    Total,
    /// `max_db_connections`, of this database.
    Database(Box<str>),
    /// `max_user_connections`, of this user.
    User(Box<str>),
    /// `max_server_connections_per_server`.
    Server(ServerAddress),
}

impl Full {
    /// The error for a client whose wait failed because the limit is shared and its store does not
    /// answer.
    pub fn to_cut_off_error(&self) -> ClientError {
        let what = match self {
            Self::Total => "max_server_connections".to_owned(),
            Self::Database(_) => "max_db_connections of the database".to_owned(),
            Self::User(_) => "max_user_connections of the user".to_owned(),
            Self::Server(server) => format!("max_server_connections_per_server of {server}"),
        };
        cut_off_error().detail(format!(
            "{what} is shared with other poolers, and this one has no more places of it."
        ))
    }

    /// The error for a client whose wait failed.
    pub fn to_client_error(&self) -> ClientError {
        let what = match self {
            Self::Total => "max_server_connections is reached".to_owned(),
            Self::Database(_) => "max_db_connections of the database is reached".to_owned(),
            Self::User(_) => "max_user_connections of the user is reached".to_owned(),
            Self::Server(server) => {
                format!("max_server_connections_per_server is reached at {server}")
            }
        };
        ClientError::fatal(SqlState::TOO_MANY_CONNECTIONS, "no more server connections allowed")
            .detail(what)
    }
}

/// The error for a client that needs a place of a shared limit while its store does not answer.
pub fn cut_off_error() -> ClientError {
    ClientError::fatal(
        SqlState::TOO_MANY_CONNECTIONS,
        "no more server connections can be opened: limits are shared by etcd, which does not answer",
    )
    .hint("An administrator should read the pooler's log.")
}

impl Limits {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        locked(&self.counts)
    }

    /// A place for a connection that has just been accepted from this network: a login that waits for
    /// its client may lose its own. `None`: close it at once.
    pub fn connect(
        self: &Arc<Self>,
        max_client_conn: u32,
        network: Network,
    ) -> Option<ConnectionPermit> {
        let mut counts = self.lock();
        let connected = counts.connected - counts.half_open.going();
        if connected >= max_client_conn as usize + LOGINS_BEYOND
            && !counts.half_open.make_room_of_any(Some(network), Instant::now())
        {
            return None;
        }
        counts.connected += 1;
        Some(ConnectionPermit(self.account(&mut counts, Stage::Connected)))
    }

    /// A place for a predecessor's client, whatever the bounds are.
    pub fn take_over(self: &Arc<Self>, database: &str, user: &str) -> ConnectionPermit {
        let mut counts = self.lock();
        counts.connected += 1;
        counts.clients += 1;
        let database = counts.clients_by_database.add(database);
        let user = counts.clients_by_user.add(user);
        ConnectionPermit(self.account(&mut counts, Stage::Entered { database, user }))
    }

    /// Connections that hold a place: clients, logins under way, and consoles.
    pub fn connection_count(&self) -> usize {
        self.lock().connected
    }

    /// Makes a login that waits for its client give up its descriptor. `false`: there is none.
    pub fn free_descriptor(&self) -> bool {
        self.lock().half_open.make_room_of_any(None, Instant::now())
    }

    /// Waits for the client of a login until another takes its place.
    ///
    /// # Errors
    /// Those of `work`, and [`GaveWay`]: the connection is to be closed without delay.
    pub async fn wait<T, E: From<GaveWay>>(
        self: &Arc<Self>,
        awaited: Awaited,
        network: Network,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut work = pin!(work);
        // Work that is ready at once is not listed.
        if let Poll::Ready(done) = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await
        {
            return done;
        }
        let (entry, mut gives_way) = self.lock().half_open.list(awaited, network, Instant::now());
        let _listed = Listed { limits: self, entry };
        tokio::select! {
            biased;
            _ = &mut gives_way => Err(GaveWay.into()),
            done = work => done,
        }
    }

    /// Whether to log that a login has given way: seldom in a flood.
    pub fn is_news(&self) -> bool {
        let now = Instant::now();
        let mut counts = self.lock();
        let is_news = counts.news_at.is_none_or(|last| now.duration_since(last) >= NEWS_INTERVAL);
        if is_news {
            counts.news_at = Some(now);
        }
        is_news
    }

    /// The account that all connections at this stage share.
    fn account(self: &Arc<Self>, counts: &mut Counts, stage: Stage) -> Arc<Account> {
        let known = match &stage {
            Stage::Connected => &mut counts.connected_account,
            Stage::Admitted => &mut counts.admitted_account,
            Stage::Entered { database, user } => {
                counts.entered_accounts.entry((database.clone(), user.clone())).or_default()
            }
        };
        known.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Account { limits: self.clone(), stage });
            *known = Arc::downgrade(&new);
            new
        })
    }

    /// Clients that hold a place.
    pub fn client_count(&self) -> usize {
        self.lock().clients
    }

    /// Clients of a database that hold a place.
    pub fn database_client_count(&self, database: &str) -> usize {
        self.lock().clients_by_database.count_of(database)
    }

    /// Clients of a user that hold a place.
    pub fn user_client_count(&self, user: &str) -> usize {
        self.lock().clients_by_user.count_of(user)
    }

    /// Server connections that hold a place.
    pub fn server_count(&self) -> usize {
        self.lock().servers
    }

    /// A place for a server connection of this database and user.
    ///
    /// # Errors
    /// The bound that leaves no room.
    pub fn server(
        self: &Arc<Self>,
        database: &str,
        user: &str,
        bounds: &ServerBounds,
    ) -> Result<ServerPermit, Full> {
        let wanted = [
            (bounds.total, Full::Total),
            (bounds.database, Full::Database(database.into())),
            (bounds.user, Full::User(user.into())),
        ];
        let mut counts = self.lock();
        self.tell_sharing(&counts);
        counts.admit(&wanted)?;
        counts.servers += 1;
        let database = counts.servers_by_database.add(database);
        let user = counts.servers_by_user.add(user);
        Ok(ServerPermit { limits: self.clone(), database, user, wakes: true })
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
        self.tell_sharing(&counts);
        counts.admit(&[(bound, Full::Server(server.clone()))])?;
        *counts.servers_by_address.entry(server.clone()).or_default() += 1;
        Ok(AddressPermit { limits: self.clone(), server: server.clone() })
    }

    /// A place is wanted under limits that may be shared.
    fn tell_sharing(&self, counts: &Counts) {
        if counts.shares.is_some() {
            self.lacking.notify_one();
        }
    }

    /// Completes when a place of a server connection has become free after this call.
    pub fn server_freed(&self) -> Notified<'_> {
        self.server_freed.notified()
    }
}

/// The stage of a connection, which decides the places that it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Stage {
    /// It counts as a connection only.
    Connected,
    /// It has sent its startup packet, and counts as a client.
    Admitted,
    /// It has logged in.
    Entered { database: Arc<str>, user: Arc<str> },
}

/// The state that all connections at the same stage share, so that each costs a pointer.
#[derive(Debug)]
struct Account {
    limits: Arc<Limits>,
    stage: Stage,
}

/// A login that waits for its client; dropping this removes it from the list.
struct Listed<'a> {
    limits: &'a Limits,
    entry: half_open::Entry,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.limits.lock().half_open.strike(self.entry);
    }
}

/// The place of a client's connection.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<Account>);

impl ConnectionPermit {
    /// Whether the connection may begin TLS. To be called before the handshake.
    ///
    /// # Errors
    /// So many logins are under way that the rest is reserved for those without TLS.
    pub fn may_encrypt(&self, max_client_conn: u32, newcomer: Network) -> Result<(), ClientError> {
        let most = max_client_conn as usize + LOGINS_BEYOND - LOGINS_BEYOND_PLAIN;
        let mut counts = self.0.limits.lock();
        let half_open = &counts.half_open;
        // Clients that have sent nothing make room for newcomers.
        let expendable = half_open.going()
            + half_open.count(Awaited::FirstPacket)
            + half_open.count(Awaited::Leaving);
        if counts.connected - expendable <= most
            || counts.half_open.make_room(&[Awaited::Encryption], Some(newcomer), Instant::now())
        {
            return Ok(());
        }
        Err(ClientError::fatal(SqlState::TOO_MANY_CONNECTIONS, "sorry, too many clients already")
            .detail("Too many connections are about to log in."))
    }

    /// Counts the connection as a client. To be called once its startup packet has come. One that
    /// has not proved itself yet may lose its place.
    ///
    /// # Errors
    /// `max_client_conn` is reached: PostgreSQL's words.
    pub fn admit(&mut self, max_client_conn: u32, newcomer: Network) -> Result<(), ClientError> {
        let limits = self.0.limits.clone();
        let mut counts = limits.lock();
        let clients = counts.clients - counts.half_open.going_clients();
        if clients >= max_client_conn as usize
            && !counts.half_open.make_room(&[Awaited::Proof], Some(newcomer), Instant::now())
        {
            return Err(ClientError::fatal(
                SqlState::TOO_MANY_CONNECTIONS,
                "sorry, too many clients already",
            )
            .detail("max_client_conn is reached."));
        }
        counts.clients += 1;
        let account = limits.account(&mut counts, Stage::Admitted);
        self.change_to(&mut counts, account);
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
        debug_assert_eq!(self.0.stage, Stage::Admitted, "who logs in is counted already");
        let limits = self.0.limits.clone();
        let mut counts = limits.lock();
        let is_full = |bound: Limit, counts: &ByName, name: &str| {
            bound.get().is_some() && !bound.admits_one_more(counts.count_of(name))
        };
        if is_full(by_database, &counts.clients_by_database, database) {
            return Err(ClientError::fatal(
                SqlState::TOO_MANY_CONNECTIONS,
                format!("too many connections for database \"{database}\""),
            )
            .detail("max_db_client_connections is reached."));
        }
        if is_full(by_user, &counts.clients_by_user, user) {
            return Err(ClientError::fatal(
                SqlState::TOO_MANY_CONNECTIONS,
                format!("too many connections for role \"{user}\""),
            )
            .detail("max_user_client_connections is reached."));
        }
        let database = counts.clients_by_database.add(database);
        let user = counts.clients_by_user.add(user);
        let account = limits.account(&mut counts, Stage::Entered { database, user });
        self.change_to(&mut counts, account);
        Ok(())
    }

    /// Gives back all places except that of the connection itself, which is about to be closed.
    pub fn dismiss(&mut self) {
        let limits = self.0.limits.clone();
        let mut counts = limits.lock();
        match &self.0.stage {
            Stage::Connected => return,
            Stage::Admitted => {}
            Stage::Entered { database, user } => {
                counts.clients_by_database.remove(database);
                counts.clients_by_user.remove(user);
            }
        }
        counts.clients -= 1;
        let account = limits.account(&mut counts, Stage::Connected);
        self.change_to(&mut counts, account);
    }

    /// Takes another account. The old one is forgotten if it has no other holder; the lock on the
    /// counts is held, so that it cannot get one meanwhile.
    fn change_to(&mut self, counts: &mut Counts, account: Arc<Account>) {
        if let Some(last) = Arc::into_inner(std::mem::replace(&mut self.0, account))
            && let Stage::Entered { database, user } = last.stage
        {
            counts.entered_accounts.remove(&(database, user));
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.dismiss();
        self.0.limits.lock().connected -= 1;
    }
}

/// The place of a server connection.
#[derive(Debug)]
pub struct ServerPermit {
    limits: Arc<Limits>,
    database: Arc<str>,
    user: Arc<str>,
    /// Those that wait for a place are woken when this one is free.
    wakes: bool,
}

impl ServerPermit {
    /// Gives a place back for which there was no server. This wakes no waiter: one that waits for a
    /// server would wake itself, again and again without a pause.
    pub fn give_back_unused(mut self) {
        self.wakes = false;
    }
}

impl Drop for ServerPermit {
    fn drop(&mut self) {
        let mut counts = self.limits.lock();
        counts.servers -= 1;
        counts.servers_by_database.remove(&self.database);
        counts.servers_by_user.remove(&self.user);
        drop(counts);
        if self.wakes {
            self.limits.server_freed.notify_waiters();
        }
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
        let mut counts = self.limits.lock();
        if let Some(count) = counts.servers_by_address.get_mut(&self.server) {
            *count -= 1;
            if *count == 0 {
                counts.servers_by_address.remove(&self.server);
            }
        }
        drop(counts);
        self.limits.server_freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::task::{Context, Waker};

    use super::*;

    const HERE: Network = Network::Unix;
    const ELSEWHERE: Network = Network::V4(1);

    #[test]
    fn the_client_after_the_last_gets_53300_and_a_free_place_is_used_again() {
        let limits = Arc::new(Limits::default());
        let mut first = limits.connect(1, HERE).unwrap();
        let mut second = limits.connect(1, HERE).unwrap();
        first.admit(1, HERE).unwrap();
        let error = second.admit(1, HERE).unwrap_err();
        assert_eq!(error.code, SqlState::TOO_MANY_CONNECTIONS);
        assert_eq!(error.message, "sorry, too many clients already");
        drop(first);
        second.admit(1, HERE).unwrap();
        assert_eq!(limits.client_count(), 1);
    }

    #[test]
    fn half_open_logins_are_bounded_on_their_own() {
        let limits = Arc::new(Limits::default());
        let open: Vec<_> = (0..LOGINS_BEYOND + 2).filter_map(|_| limits.connect(2, HERE)).collect();
        assert_eq!(open.len(), LOGINS_BEYOND + 2);
        assert!(limits.connect(2, HERE).is_none());
        drop(open);
        assert!(limits.connect(2, HERE).is_some());
    }

    #[test]
    fn tls_handshakes_leave_places_for_logins_without() {
        let limits = Arc::new(Limits::default());
        let beyond = LOGINS_BEYOND - LOGINS_BEYOND_PLAIN;
        let mut open: Vec<_> = (0..2 + beyond).filter_map(|_| limits.connect(2, HERE)).collect();
        let mut next = limits.connect(2, HERE).unwrap();
        assert_eq!(next.may_encrypt(2, HERE).unwrap_err().code, SqlState::TOO_MANY_CONNECTIONS);
        next.admit(2, HERE).unwrap();
        open.pop();
        next.may_encrypt(2, HERE).unwrap();
    }

    /// A login that waits for its client.
    fn waiting(
        limits: &Arc<Limits>,
        awaited: Awaited,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<(), GaveWay>> + '_>> {
        let mut wait = Box::pin(limits.wait(awaited, HERE, pending()));
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        wait
    }

    #[test]
    fn a_silent_connection_gives_its_place_to_the_next_one() {
        let limits = Arc::new(Limits::default());
        let mut open: Vec<_> =
            (0..LOGINS_BEYOND + 2).filter_map(|_| limits.connect(2, HERE)).collect();
        let mut silent = waiting(&limits, Awaited::FirstPacket);
        open.push(limits.connect(2, HERE).unwrap());
        assert!(limits.connect(2, HERE).is_none(), "one place, one newcomer");
        let told = silent.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(told, Poll::Ready(Err(GaveWay)));
        drop(silent);
        open.pop();
        assert!(limits.connect(2, HERE).is_none(), "there are no more than before");
        open.pop();
        limits.connect(2, HERE).unwrap();
    }

    #[test]
    fn silent_connections_keep_no_client_from_tls() {
        let limits = Arc::new(Limits::default());
        let open: Vec<_> = (0..LOGINS_BEYOND + 2).filter_map(|_| limits.connect(2, HERE)).collect();
        let silent: Vec<_> =
            (0..LOGINS_BEYOND_PLAIN).map(|_| waiting(&limits, Awaited::FirstPacket)).collect();
        open[0].may_encrypt(2, HERE).unwrap();
        drop(silent);
        assert!(open[0].may_encrypt(2, HERE).is_err());
    }

    #[test]
    fn who_does_not_prove_itself_gives_its_clients_place_to_another_network() {
        let limits = Arc::new(Limits::default());
        let mut permits: Vec<_> = (0..3).filter_map(|_| limits.connect(2, HERE)).collect();
        for permit in &mut permits[..2] {
            permit.admit(2, HERE).unwrap();
        }
        let _half: Vec<_> = (0..2).map(|_| waiting(&limits, Awaited::Proof)).collect();
        assert!(permits[2].admit(2, HERE).is_err());
        permits[2].admit(2, ELSEWHERE).unwrap();
        let mut next = limits.connect(2, ELSEWHERE).unwrap();
        assert!(next.admit(2, ELSEWHERE).is_err());
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
            let mut permit = limits.connect(100, HERE).unwrap();
            permit.admit(100, HERE).unwrap();
            let result = permit.enter(database, user, two, two);
            assert_eq!(result.is_ok(), admitted, "{database} {user}");
            if admitted {
                held.push(permit);
            }
        }
        assert_eq!(limits.database_client_count("a"), 2);
        held.clear();
        assert_eq!(limits.database_client_count("a"), 0);
        let counts = limits.lock();
        assert_eq!((counts.connected, counts.clients), (0, 0));
        assert!(counts.clients_by_user.0.is_empty() && counts.entered_accounts.is_empty());
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

    #[test]
    fn a_place_without_a_server_is_free_again_and_wakes_no_waiter() {
        let limits = Arc::new(Limits::default());
        let bounds =
            ServerBounds { total: Limit::new(1), database: Limit::NONE, user: Limit::NONE };
        let permit = limits.server("d", "u", &bounds).unwrap();
        let mut freed = std::pin::pin!(limits.server_freed());
        let mut context = Context::from_waker(Waker::noop());
        permit.give_back_unused();
        assert!(freed.as_mut().poll(&mut context).is_pending());
        drop(limits.server("d", "u", &bounds).unwrap());
        assert!(freed.as_mut().poll(&mut context).is_ready());
    }
}
