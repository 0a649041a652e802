//! Opens backends for pools, for event loops and for waiting logins.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hawser_pooler::ids::{BackendId, LoopId, ServerAddressId};
use hawser_pooler::lending::{Fidelity, OpenOne};
use hawser_pooler::parts::identity::hand_over::HandOverKey;
use hawser_pooler::parts::report::text::{Report, ReportError};
use hawser_pooler::parts::start_values::parameters::ServerParameters;
use hawser_pooler::relay::{BackendSeed, ToLoop};
use hawser_pooler::wire::TransactionStatus;
use hawser_pooler::wire::error::{ClientError, Severity, SqlState};
use tokio::time::{sleep, timeout};

use super::census::Censuses;
use super::enquiry::Enquiries;
use super::failures::RETRY_AFTER_FIRST;
use super::place::{Asker, PLACE_WAIT, Places};
use super::processes::OwnProcess;
use super::session::Session;
use super::share::Place;
use super::{PoolEntry, Pools, Route, locked};
use crate::dial::hand_over::{self, NotHandedOver, Secret};
use crate::dial::talk::{Ended, TalkError};
use crate::dial::{DialError, Dialled, Known, Trouble, state_kept};
use crate::limits::{AddressPermit, cut_off_error};
use crate::loops::{Loops, Pool};
use crate::phase::Phase;
use crate::shared::Shared;
use crate::socket::Conn;

/// The longest pause while a returned server would be used at once: clients are served within half
/// a second after it is ready.
const RETRY_REACHABLE: Duration = Duration::from_millis(400);
/// Each pool that fails adds this to the pauses of all: together they make 50 attempts a second.
const RETRY_EACH_POOL: Duration = Duration::from_millis(20);
/// How long a login that found the pool busy waits before it asks the server itself.
const PARAMETERS_POLL: Duration = Duration::from_millis(100);

/// A place under all limits on server connections.
#[derive(Debug)]
pub struct Permit {
    _place: Place,
    _address: AddressPermit,
    _known: Known,
    _process: Option<OwnProcess>,
}

/// Opens backends.
pub struct Openings {
    /// The loops, the limits, and what is counted.
    pub shared: Arc<Shared>,
    /// Those to open for.
    pub pools: Arc<Pools>,
    /// Dials under the limits.
    pub places: Arc<Places>,
    /// Asks about start values.
    pub enquiries: Arc<Enquiries>,
    /// What functions do.
    pub censuses: Arc<Censuses>,
}

impl Openings {
    /// Opens a backend, which the pool already counts as opening, and sends it to loop `home`.
    pub async fn open_for(self: &Arc<Self>, pool: Pool, home: LoopId) {
        let opening =
            Opening { loops: &self.shared.loops, pool: pool.clone(), home, is_answered: false };
        let Some(entry) = self.pools.by_id(pool.id) else {
            let error =
                ClientError::fatal(SqlState::CONNECTION_FAILURE, "the pool has been removed");
            let retry_after = Duration::ZERO;
            return opening.tell(ToLoop::OpenFailed { pool, error, fatal: true, retry_after });
        };
        let epoch = pool.epoch();
        let begun = Instant::now();
        match self.open(&entry, false).await {
            Ok((socket, parameters, opened)) => {
                let parameters = pool.keep_parameters(epoch, Arc::new(parameters));
                self.note_success(&entry);
                let seed = self.seed(pool, epoch, socket, parameters, opened);
                opening.tell(ToLoop::Opened(seed));
            }
            Err(error) => {
                let (error, fatal, retry_after) = self.note_failure(&entry, begun, &error);
                opening.tell(ToLoop::OpenFailed { pool, error, fatal, retry_after });
                if entry.is_down() {
                    // No client waits, so none causes an attempt.
                    self.learn(&entry, retry_after);
                }
            }
        }
        entry.changed.notify_waiters();
    }

    /// An attempt of a pool has succeeded.
    fn note_success(&self, entry: &PoolEntry) {
        if entry.failures.end() {
            tracing::info!(
                database = entry.key.database,
                user = entry.key.user,
                "server connections can be opened again"
            );
            self.retry_others(entry);
        }
        entry.pool.lock().set_down(None);
        *locked(&entry.refusal) = None;
        *locked(&entry.unsaid) = None;
        *locked(&entry.unanswered) = None;
        *locked(&entry.without_server) = None;
        entry.pool.set_last_error(None);
        self.shared.tally.server_logins.increment();
    }

    /// An attempt of a pool has failed that began then. Takes the error for clients, whether waiting
    /// does not help, and when the next attempt is due.
    fn note_failure(
        &self,
        entry: &PoolEntry,
        begun: Instant,
        error: &DialError,
    ) -> (ClientError, bool, Duration) {
        self.shared.tally.server_login_failures.increment();
        let pool = &entry.pool;
        let fatal = error.is_fatal();
        let route = entry.route.load();
        // A limit that is reached says nothing about the server: the next attempt waits in its turn.
        let is_full = matches!(error, DialError::Full(_) | DialError::CutOff(_));
        let without_server = error.is_without_server().then(|| (Instant::now(), error.to_string()));
        *locked(&entry.without_server) = without_server;
        // No client waits for what is opened for `min_pool_size`: no room for it is no news.
        let is_news = !is_full || pool.anybody_waits() || pool.parameters().is_none();
        let before = if is_news { entry.failures.add(begun) } else { None };
        let longest = route.target.retry_after_max;
        let retry_after = match (is_full, fatal) {
            (true, _) => RETRY_AFTER_FIRST.min(longest),
            (false, true) => entry.failures.pause(longest), // waiting does not help
            (false, false) => entry.failures.pause(longest.min(self.reachable_pause())),
        };
        if before == Some(0) {
            tracing::warn!(
                database = entry.key.database, user = entry.key.user, %error,
                "no server connection can be opened"
            );
        }
        let is_silence = error.is_silence();
        *locked(&entry.unsaid) = error.unsaid();
        let is_without_server = error.is_without_server();
        let mut error = error.to_client_error();
        let lasts = entry.failures.lasts();
        let is_down =
            is_without_server && route.target.down_after.is_some_and(|after| lasts >= after);
        if is_down {
            error = down_error(&entry.key.database, error, lasts);
        }
        let fatal = fatal || is_down;
        pool.lock().set_down(is_down.then(|| error.clone()));
        pool.set_last_error(Some(error.clone()));
        *locked(&entry.refusal) = fatal.then(|| error.clone());
        *locked(&entry.unanswered) = is_silence.then(|| (begun, error.clone()));
        (error, fatal, retry_after)
    }

    /// The longest pause before another attempt at a server that cannot be reached, or is not ready. It
    /// grows with the number of pools that try, because they all try the same few servers.
    fn reachable_pause(&self) -> Duration {
        let failing = self.pools.all().iter().filter(|entry| entry.failures.is_failing()).count();
        let failing = u32::try_from(failing).unwrap_or(u32::MAX);
        RETRY_EACH_POOL.saturating_mul(failing).max(RETRY_REACHABLE)
    }

    /// A server can be reached again: its other pools that wait for the end of a pause try at once.
    fn retry_others(&self, recovered: &PoolEntry) {
        let route = recovered.route.load();
        for entry in self.pools.all() {
            if entry.failures.is_failing()
                && entry.route.load().target.servers == route.target.servers
            {
                entry.pool.lock().try_now();
                self.shared
                    .loops
                    .send(self.shared.loops.least_loaded(), ToLoop::Poke(entry.pool.clone()));
            }
        }
    }

    /// Opens a connection that listens for a pool's clients, and sends it to loop `home`. The pool does
    /// not count it; all limits on server connections do.
    pub async fn open_listener_for(&self, pool: Pool, home: LoopId) {
        let failed = |pool, error| ToLoop::ListenerFailed { pool, error };
        let Some(entry) = self.pools.by_id(pool.id) else {
            let error =
                ClientError::fatal(SqlState::CONNECTION_FAILURE, "the pool has been removed");
            self.shared.loops.send(home, failed(pool, error));
            return;
        };
        let epoch = pool.epoch();
        match self.open(&entry, true).await {
            Ok((socket, parameters, opened)) => {
                self.shared.tally.server_logins.increment();
                let parameters = pool.keep_parameters(epoch, Arc::new(parameters));
                let seed = self.seed(pool, epoch, socket, parameters, opened);
                self.shared.loops.send(home, ToLoop::ListenerOpened(seed));
            }
            Err(error) => {
                self.shared.tally.server_login_failures.increment();
                tracing::warn!(
                    database = entry.key.database, user = entry.key.user, %error,
                    "no connection can be opened that listens for clients: they keep their own"
                );
                self.shared.loops.send(home, failed(pool, error.to_client_error()));
            }
        }
    }

    /// The data of an opened connection for an event loop.
    fn seed(
        &self,
        pool: Pool,
        epoch: u32,
        socket: Conn,
        parameters: Arc<ServerParameters>,
        Opened { number, process, key, server, permit, report, hand_over }: Opened,
    ) -> Box<BackendSeed<Conn>> {
        let report = report.and_then(|text| read_report(&pool, &text));
        Box::new(BackendSeed {
            id: BackendId(number),
            socket,
            pool,
            parameters,
            report,
            hand_over,
            process,
            key,
            server,
            epoch,
            opened: self.shared.loops.now(),
            permit: Box::new(permit),
        })
    }

    async fn open(
        &self,
        entry: &PoolEntry,
        listens: bool,
    ) -> Result<(Conn, ServerParameters, Opened), DialError> {
        let mut route = entry.route.load_full();
        if listens && route.target.reports {
            Arc::make_mut(&mut route).target.reports = false; // there is no session on it
        }
        let mut session = self.dial_ready(entry, &route, false).await?;
        let hands_over = entry.key.shared || route.target.hands_over;
        let hand_over =
            match (hands_over && !listens && entry.key.replication.is_none(), &route.secret) {
                (false, _) => None,
                (true, Some(secret)) => {
                    Some(begin(&mut session, &route, secret, entry.key.shared).await?)
                }
                (true, None) => {
                    let reason =
                        "hand_over_secret_file is no longer in the configuration".to_owned();
                    return Err(DialError::NotHandedOver { reason });
                }
            };
        Self::take_apart(entry, session, listens, hand_over)
    }

    /// A connection of the control side goes to a loop, after answers to all that it was asked.
    ///
    /// # Errors
    /// It is broken.
    pub fn to_seed(
        &self,
        entry: &PoolEntry,
        session: Session,
    ) -> Result<BackendSeed<Conn>, DialError> {
        let (pool, epoch) = (entry.pool.clone(), entry.pool.epoch());
        let (socket, said, opened) = Self::take_apart(entry, session, false, None)?;
        let kept = pool.parameters().filter(|kept| **kept == said);
        let parameters = kept.unwrap_or_else(|| Arc::new(said));
        Ok(*self.seed(pool, epoch, socket, parameters, opened))
    }

    fn take_apart(
        entry: &PoolEntry,
        session: Session,
        listens: bool,
        hand_over: Option<HandOverKey>,
    ) -> Result<(Conn, ServerParameters, Opened), DialError> {
        let name = session.server().to_owned();
        let (Dialled { talk, entered, server, place, known }, server_permit) = session.into_parts();
        let broken = |what: &str| DialError::Talk {
            server: name.clone(),
            source: TalkError::Protocol(what.to_owned()),
        };
        let (stream, unread) = talk.into_stream();
        let (conn, early) = stream
            .into_conn()
            .map_err(|error| broken(&format!("the connection was lost: {error}")))?;
        // Between the first ReadyForQuery and the first query only the word can come with which a server ends
        // the session (pg_terminate_backend(), a shutdown, idle_session_timeout): such a connection is useless.
        let unasked = [unread, early].concat();
        if !unasked.is_empty() {
            return Err(DialError::Talk { server: name, source: TalkError::of_unasked(&unasked) });
        }
        let process = (!listens).then(|| entry.lock_waits.own(entered.process));
        let permit =
            Permit { _place: server_permit, _address: place, _known: known, _process: process };
        let opened = Opened {
            number: entered.number,
            process: entered.process,
            key: entered.key,
            server,
            permit,
            report: entered.report,
            hand_over,
        };
        Ok((conn, entered.parameters, opened))
    }

    /// Dials for a pool, once there is a place for it, and runs `connect_query`: what the server has
    /// reported by then is what its sessions begin with.
    pub async fn dial_ready(
        &self,
        entry: &PoolEntry,
        route: &Route,
        login_waits: bool,
    ) -> Result<Session, DialError> {
        let mut session = self.dial(entry, route, login_waits).await?;
        if let Some(query) = &route.connect_query {
            let within = route.target.connect_timeout;
            let ran = timeout(within, session.ask().run(query)).await;
            if ran.is_ok() {
                session.answered();
            }
            after_connect_query(&mut session, &entry.key.database, within, ran.ok())?;
        }
        self.look_for_other_pooler(entry, route, &mut session).await?;
        self.enquiries.notice_values_of_opened(entry.pool.id);
        Ok(session)
    }

    /// Refuses a pool's first connection where another pooler does not keep the state of sessions on it.
    async fn look_for_other_pooler(
        &self,
        entry: &PoolEntry,
        route: &Route,
        session: &mut Session,
    ) -> Result<(), DialError> {
        let servers = &route.target.servers;
        let is_full = entry.pool.settings().fidelity == Fidelity::Full;
        if !is_full || entry.key.replication.is_some() || *locked(&entry.keeps_state) == *servers {
            return Ok(());
        }
        let announced = session.dialled().entered.process;
        let server = session.server().to_owned();
        let silent = |_| DialError::Unready {
            trouble: Trouble::Silence,
            reason: format!("server at {server} did not answer pg_backend_pid() in time"),
        };
        let failed = |source| DialError::Talk { server: server.clone(), source };
        let within = route.target.connect_timeout;
        let question = state_kept::is_served_by_another(session.ask(), announced);
        let answer = timeout(within, question).await.map_err(silent)?;
        session.answered();
        let by_another = match answer {
            Err(TalkError::Server(error)) if error.severity == Severity::Error => false,
            Err(TalkError::Server(_)) => return Ok(()), // the session's end: the next one is asked
            answer => answer.map_err(failed)?,
        };
        if !by_another {
            entry.is_before_pooler.store(false, Ordering::Relaxed);
            locked(&entry.keeps_state).clone_from(servers);
            return Ok(());
        }
        entry.is_before_pooler.store(true, Ordering::Relaxed);
        // Without a second place it is looked at with the next connection.
        let Ok(mut second) = self.dial(entry, route, false).await else { return Ok(()) };
        let kept = state_kept::is_state_kept(session.ask(), second.ask());
        let kept = timeout(within, kept).await.map_err(silent)?.map_err(failed)?;
        session.answered();
        second.answered();
        second.terminate().await;
        if !kept {
            let reason = format!(
                "server at {server} is another pooler in transaction mode, where clients would get each \
             other's settings: give `servers` of database \"{}\" the direct endpoint, or one in session \
             mode, or set fidelity = \"classic\"",
                entry.key.database
            );
            return Err(DialError::Unready { trouble: Trouble::Lasting, reason });
        }
        tracing::warn!(
            database = entry.key.database,
            server,
            "the server is another pooler: sessions are right only if it is in session mode"
        );
        locked(&entry.keeps_state).clone_from(servers);
        Ok(())
    }

    /// Dials for a pool, once there is a place for it.
    async fn dial(
        &self,
        entry: &PoolEntry,
        route: &Route,
        login_waits: bool,
    ) -> Result<Session, DialError> {
        let asker = Asker {
            entry: Some(entry),
            database: &entry.key.database,
            user: &entry.key.user,
            route,
            login: &route.login,
            login_waits,
            patience: PLACE_WAIT,
        };
        self.places.dial(&asker).await
    }

    /// Asks for the server's parameters, for all logins of a pool that wait for them while backends of
    /// an older epoch take all places of the pool. One asks at a time, and after a failure the next
    /// waits for the same pause as openings.
    ///
    /// The first attempt comes `after` a pause. While the server is down, others follow until one
    /// succeeds: no client waits for it, so none causes an attempt.
    fn learn(self: &Arc<Self>, entry: &Arc<PoolEntry>, after: Duration) {
        /// Others may ask when this is dropped.
        struct Learning(Arc<PoolEntry>);

        impl Drop for Learning {
            fn drop(&mut self) {
                self.0.learning.store(false, Ordering::Relaxed);
                self.0.changed.notify_waiters();
            }
        }

        if entry.learning.swap(true, Ordering::Relaxed) {
            return;
        }
        let (openings, learning) = (self.clone(), Learning(entry.clone()));
        if !entry.is_down() {
            *locked(&entry.refusal) = None;
        }
        tokio::spawn(async move {
            let entry = &learning.0;
            sleep(after).await;
            loop {
                let pause = openings.learn_once(entry).await;
                sleep(pause).await;
                let is_wanted = openings.pools.by_id(entry.pool.id).is_some();
                if !entry.is_down() || !is_wanted || openings.shared.phase() != Phase::Serving {
                    return;
                }
            }
        });
    }

    /// One attempt of [`learn`]. Returns the pause before the next.
    async fn learn_once(&self, entry: &Arc<PoolEntry>) -> Duration {
        let (epoch, begun, route) = (entry.pool.epoch(), Instant::now(), entry.route.load_full());
        match self.dial_ready(entry, &route, true).await {
            Ok(mut session) => {
                let parameters = std::mem::take(&mut session.dialled().entered.parameters);
                entry.pool.keep_parameters(epoch, Arc::new(parameters));
                self.note_success(entry);
                entry.changed.notify_waiters();
                session.terminate().await;
                Duration::ZERO
            }
            Err(error) => {
                let (_, _, retry_after) = self.note_failure(entry, begun, &error);
                entry.changed.notify_waiters();
                retry_after
            }
        }
    }

    /// The server's parameters in the current epoch: waits for the first backend to be opened if there
    /// was none yet.
    ///
    /// # Errors
    /// The error for the client: the server's own refusal, or that there is no server.
    async fn parameters(
        self: &Arc<Self>,
        entry: &Arc<PoolEntry>,
    ) -> Result<Arc<ServerParameters>, ClientError> {
        if let Some(parameters) = entry.pool.parameters() {
            return Ok(parameters);
        }
        let wait = entry.pool.settings().query_wait_timeout;
        let since = Instant::now();
        let learnt = async {
            loop {
                let changed = entry.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(parameters) = entry.pool.parameters() {
                    return Ok(parameters);
                }
                if let Some(error) = entry.down(&self.shared.gates) {
                    return Err(error);
                }
                let asked = entry.pool.lock().open_one(self.shared.loops.now());
                match asked {
                    OpenOne::Begun => {
                        *locked(&entry.refusal) = None;
                        self.shared
                            .control
                            .open(entry.pool.clone(), self.shared.loops.least_loaded());
                    }
                    OpenOne::Full => self.learn(entry, Duration::ZERO),
                    OpenOne::NotNow => {}
                }
                let _ = timeout(PARAMETERS_POLL, changed).await;
                if entry.pool.parameters().is_none()
                    && let Some(error) = entry.refusal().or_else(|| entry.unanswered_since(since))
                {
                    return Err(error);
                }
            }
        };
        if wait.is_zero() {
            return learnt.await;
        }
        match timeout(wait, learnt).await {
            Ok(result) => result,
            Err(_) => Err(self.waited_in_vain(entry, "query_wait_timeout")),
        }
    }

    /// What a pool's server reported at connect, after its functions and changed settings of the client's
    /// user are known as far as possible: the server is asked if it has not been.
    pub async fn server_parameters(
        self: &Arc<Self>,
        entry: &Arc<PoolEntry>,
        user: &str,
    ) -> Result<Arc<ServerParameters>, ClientError> {
        self.censuses.wait(entry).await;
        // (While its database is paused, nothing is opened to ask.)
        if entry.key.replication.is_none() && !self.shared.gates.is_paused(&entry.key.database) {
            if entry.pool.parameters().is_some() {
                self.enquiries.notice_changed_settings(entry, user).await;
            } else {
                let (enquiries, entry, user) =
                    (self.enquiries.clone(), entry.clone(), user.to_owned());
                tokio::spawn(async move {
                    enquiries.notice_changed_settings(&entry, &user).await;
                });
            }
        }
        if let Some(parameters) = entry.pool.parameters() {
            return Ok(parameters);
        }
        let parameters = Box::pin(self.parameters(entry)).await?;
        // The server may not have been reachable before.
        self.censuses.wait(entry).await;
        Ok(parameters)
    }

    /// The error for a login that has waited for a server as long as this setting allows.
    pub fn waited_in_vain(&self, entry: &PoolEntry, setting: &str) -> ClientError {
        let database = &entry.key.database;
        if self.shared.gates.is_paused(database) {
            let message = format!("database \"{database}\" is paused");
            return ClientError::fatal(SqlState::CANNOT_CONNECT_NOW, message)
                .detail(format!("{setting} has passed."))
                .hint("Connect again when an administrator has resumed it.");
        }
        entry.pool.last_error().unwrap_or_else(|| {
            let error = match self.shared.limits.are_cut_off() {
                true => cut_off_error(),
                false => ClientError::fatal(
                    SqlState::TOO_MANY_CONNECTIONS,
                    "no server connection became free",
                ),
            };
            error.detail(format!("{setting} has passed."))
        })
    }

    /// A connection for questions to the pool's server; it does not become a backend.
    ///
    /// # Errors
    /// The error for the client for which it is asked.
    pub async fn ask_line(&self, entry: &Arc<PoolEntry>) -> Result<Session, ClientError> {
        let route = entry.route.load_full();
        self.dial(entry, &route, true).await.map_err(|error| error.to_client_error())
    }
}

/// A backend that the pool counts as opening: loop `home` gets the outcome, also of a panic.
/// (Logins that wait for the pool look again by themselves.)
struct Opening<'a> {
    loops: &'a Loops,
    pool: Pool,
    home: LoopId,
    is_answered: bool,
}

impl Opening<'_> {
    fn tell(mut self, what: ToLoop<Conn>) {
        self.is_answered = true;
        self.loops.send(self.home, what);
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            let error = ClientError::fatal(
                SqlState::INTERNAL_ERROR,
                "an internal error kept a server connection from being opened",
            );
            let (pool, retry_after) = (self.pool.clone(), RETRY_AFTER_FIRST);
            let failed = ToLoop::OpenFailed { pool, error, fatal: false, retry_after };
            self.loops.send(self.home, failed);
        }
    }
}

/// The error for clients that do not wait for a server which has not answered for so long.
fn down_error(database: &str, why: ClientError, lasts: Duration) -> ClientError {
    let detail = why.detail.as_deref().map_or_else(String::new, |detail| format!(" ({detail})"));
    ClientError {
        message: format!("the server of database \"{database}\" is down: {}{detail}", why.message),
        ..why
    }
    .detail(format!(
        "It has not answered for {:.1} s: server_down_timeout has passed.",
        lasts.as_secs_f64()
    ))
    .hint("Clients are refused until it answers again; try again later.")
}

/// A server's report of a session, if it can be relied on.
fn read_report(pool: &Pool, text: &[u8]) -> Option<Report> {
    match Report::read(text) {
        Ok(report) => Some(report),
        Err(error) => {
            if pool.distrust_reports() {
                say_unreadable(&pool.database, &pool.user, error);
            }
            None
        }
    }
}

/// To be logged once for each pool.
pub fn say_unreadable(database: &str, user: &str, error: ReportError) {
    tracing::warn!(
        database, user, %error,
        "the reports of the server's extension are not used: sessions are served as without it"
    );
}

/// What identifies an opened server connection.
struct Opened {
    /// The number by which the server's extension also knows it.
    number: u64,
    process: u32,
    key: Box<[u8]>,
    server: ServerAddressId,
    permit: Permit,
    report: Option<Box<[u8]>>,
    hand_over: Option<HandOverKey>,
}

/// Checks what `connect_query` has left on a connection; `None`: it has not ended in time.
fn after_connect_query(
    session: &mut Session,
    database: &str,
    within: Duration,
    ran: Option<Result<Ended, TalkError>>,
) -> Result<(), DialError> {
    let server = session.server();
    let ended = match ran {
        Some(Ok(ended)) => ended,
        Some(Err(error)) => {
            let reason = format!(
                "connection to server at {server} ended in connect_query of database \"{database}\": {error}"
            );
            return Err(DialError::Unready { trouble: Trouble::Passing, reason });
        }
        None => {
            let reason = format!(
                "connect_query of database \"{database}\" took longer on server at {server} than \
                 server_connect_timeout, {} s",
                within.as_secs_f32()
            );
            return Err(DialError::Unready { trouble: Trouble::Silence, reason });
        }
    };
    if ended.status != TransactionStatus::Idle {
        // Otherwise the first client would be in a transaction that it has not begun.
        let why = ended.error.map_or_else(String::new, |error| format!(" ({})", error.message));
        let reason = format!(
            "connect_query of database \"{database}\" leaves a transaction open on server at \
             {server}{why}: it must end with COMMIT or ROLLBACK"
        );
        return Err(DialError::Unready { trouble: Trouble::Lasting, reason });
    }
    if let Some(error) = &ended.error {
        tracing::warn!(database, server, error = error.message, "connect_query failed");
    }
    let entered = &mut session.dialled().entered;
    ended.answer.reported.into_iter().for_each(|reported| entered.learn(reported));
    if ended.error.is_some() {
        entered.report = None; // its effects are not known
    }
    Ok(())
}

/// Finds what is needed to hand a connection over.
async fn begin(
    session: &mut Session,
    route: &Route,
    secret: &Secret,
    shared: bool,
) -> Result<HandOverKey, DialError> {
    let within = route.target.connect_timeout;
    let user = shared.then_some(route.login.user.as_str());
    session.ask();
    let Dialled { talk, entered, .. } = session.dialled();
    let begun = timeout(within, hand_over::begin(talk, entered, user, secret)).await;
    if begun.is_ok() {
        session.answered();
    }
    let server = session.server().to_owned();
    match begun {
        Ok(Ok(key)) => Ok(key),
        Ok(Err(NotHandedOver::Because(reason))) => Err(DialError::NotHandedOver { reason }),
        Ok(Err(NotHandedOver::Talk(source))) => Err(DialError::Talk { server, source }),
        Err(_) => {
            let reason = format!(
                "server at {server} did not answer within server_connect_timeout, {} s, whether its \
                 connections can be handed over",
                within.as_secs_f32()
            );
            Err(DialError::Unready { trouble: Trouble::Silence, reason })
        }
    }
}
