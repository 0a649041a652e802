//! Server connections of the control side itself: `auth_query`, and whether new sessions would
//! start with other values than those known (ALTER ROLE or DATABASE ... SET).
//!
//! # Model
//! A *line* is one connection to the servers of one database as one role, kept while it is used. A
//! line has one question at a time.
//!
//! # The search_path of lookups
//! The role of `auth_query` often has many rights, and the owner of the database may have set
//! another search_path there (ALTER DATABASE ... SET). Names that the query does not qualify would
//! be that owner's functions and operators, run with these rights. So the start packet of that
//! connection sets a search_path of ours. All other questions of Hawser's own qualify every name.
//!
//! # Why a fingerprint for each pool
//! Of pg_db_role_setting, which is small and readable by all, the rows for a pool's database and
//! role show that its sessions would start with other values; the next backend reports which. Every
//! user may change the settings of the own role: if that counted for others, anyone could make all
//! server connections be replaced at any time. The fingerprint includes the role itself, which may
//! have been made again, or may not log in any more.
//!
//! # Limits
//! Clients that come [`SETTINGS_PERIOD`] after a change that bypasses Hawser see it; over a link,
//! where no login waits a round trip for the answer, those after them. Settings in postgresql.conf
//! are re-read by the server's own backends, which report them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use hawser_core::ids::PoolId;
use hawser_core::session::options::Asked;
use hawser_core::wire::error::{ClientError, SqlState};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

use super::membership::Memberships;
use super::place::Asker;
use super::session::Session;
use super::strangers::{Stranger, Strangers};
use super::{PoolEntry, Route, locked, route};
use crate::auth::secret::{Secret, ValidUntil};
use crate::config::{Config, DatabaseConfig};
use crate::dial::talk::{Answer, TalkError};
use crate::dial::{DialError, Login, Trouble};
use crate::logging::Seldom;
use crate::service::Service;

/// How long an unused line is kept: long enough for a stream of logins to share it.
const LINE_IDLE: Duration = Duration::from_secs(5);
/// How long the answer of `auth_query` about a user is used.
const SECRET_PERIOD: Duration = Duration::from_secs(2);
/// Users whose answer is remembered.
const SECRETS_MAX: usize = 10_000;
/// How often a server is asked for changed start values, at most.
const SETTINGS_PERIOD: Duration = Duration::from_millis(50);
/// How long a login waits for that answer. After one that was late, no login waits until an answer
/// has come: a server that hangs would delay each of them by as much.
const SETTINGS_WAIT: Duration = Duration::from_millis(500);

/// The search_path for unqualified names in `auth_query`.
pub(super) const LOOK_UP_PATH: &[u8] = b"pg_catalog, public";
/// How long a login whose user has a secret here waits for the answer about that user, which it does not
/// use: the server is asked so that timing does not reveal which users have one.
const UNUSED_WAIT: Duration = Duration::from_secs(1);

/// $1 is the role. NULL if there is none.
const FINGERPRINT: &str = "SELECT pg_catalog.concat(r.oid, r.rolcanlogin, (\
     SELECT pg_catalog.md5(pg_catalog.string_agg(s::pg_catalog.text, ',' ORDER BY s::pg_catalog.text)) \
     FROM pg_catalog.pg_db_role_setting s \
     WHERE (s.setrole OPERATOR(pg_catalog.=) 0 OR s.setrole OPERATOR(pg_catalog.=) r.oid) \
     AND (s.setdatabase OPERATOR(pg_catalog.=) 0 OR s.setdatabase OPERATOR(pg_catalog.=) (\
     SELECT d.oid FROM pg_catalog.pg_database d \
     WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())))) \
     FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) $1";

struct Line {
    open: Option<Session>,
    used: Instant,
    /// When a question last got no answer in time, and which server it was.
    unanswered: Option<(Instant, String)>,
}

/// What a line is connected to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct LineKey {
    servers: Vec<crate::config::ServerAddress>,
    database: String,
    user: String,
    /// For `auth_query`.
    looks_up: bool,
}

/// A server's answers about a pool's start values.
#[derive(Default, Debug)]
pub(super) struct Seen {
    asking: Mutex<Asking>,
    /// Warnings that it does not answer.
    silences: Seldom,
    fingerprint: AsyncMutex<Option<Vec<u8>>>,
}

#[derive(Default, Debug)]
struct Asking {
    /// When it was last asked, answered or not.
    asked: Option<Instant>,
    /// Questions under way.
    under_way: usize,
    /// The last one was not answered in time.
    unanswered: bool,
}

/// Whether a login waits for the answer to its question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waiting {
    Awaited,
    NotAwaited,
}

impl Seen {
    /// Whether the caller must ask now, and whether it waits for the answer: over a link only if a
    /// change is expected.
    fn begin(&self, is_over_link: bool) -> Option<Waiting> {
        let mut asking = locked(&self.asking);
        let due = asking.asked.is_none_or(|asked| asked.elapsed() >= SETTINGS_PERIOD);
        if !due || (asking.unanswered && asking.under_way > 0) {
            return None;
        }
        let is_routine = asking.asked.replace(Instant::now()).is_some();
        asking.under_way += 1;
        let waits = !(asking.unanswered || is_over_link && is_routine);
        Some(if waits { Waiting::Awaited } else { Waiting::NotAwaited })
    }

    /// A question has ended; `answered`: the server is no longer silent.
    fn end(&self, answered: bool) {
        let mut asking = locked(&self.asking);
        asking.under_way -= 1;
        asking.unanswered &= !answered;
    }
}

type Secrets = HashMap<(String, String), (Instant, Option<Secret>)>;

/// The lines, and their recent answers.
#[derive(Default)]
pub struct Enquiries {
    lines: Mutex<HashMap<LineKey, Arc<AsyncMutex<Line>>>>,
    secrets: Mutex<Secrets>,
    strangers: Strangers,
    /// The roles of which users are members.
    pub(super) memberships: Memberships,
}

/// Why a user could not be looked up.
#[derive(Debug)]
pub enum NotLookedUp {
    /// The server does not let `auth_user` into the database, or there is none of that name.
    NoEntry,
    /// Anything else: the error for the client.
    Failed(ClientError),
}

impl From<ClientError> for NotLookedUp {
    fn from(error: ClientError) -> Self {
        Self::Failed(error)
    }
}

/// Whether an error concerns only the database, and is not temporary.
fn is_no_entry(error: &DialError) -> bool {
    let DialError::Refused { error, .. } = error else { return false };
    matches!(&error.code.0, [b'3', b'D', ..] | [b'2', b'8', ..] | [b'4', b'2', ..] | b"55000")
}

impl Enquiries {
    fn line(&self, route: &Route) -> Arc<AsyncMutex<Line>> {
        let key = LineKey {
            servers: route.target.servers.clone(),
            database: route.login.database.clone(),
            user: route.login.user.clone(),
            looks_up: route.login.parameters.iter().any(|asked| *asked.name == *b"search_path"),
        };
        let new = || {
            Arc::new(AsyncMutex::new(Line { open: None, used: Instant::now(), unanswered: None }))
        };
        locked(&self.lines).entry(key).or_insert_with(new).clone()
    }

    /// Closes lines that have not been used lately.
    pub fn close_idle(&self) {
        locked(&self.lines).retain(|_, line| {
            // A line in use cannot be locked, and stays.
            line.try_lock().map_or(true, |line| line.used.elapsed() < LINE_IDLE)
        });
    }

    /// Closes the least recently used line, so that its place is free. False if all are in use.
    pub fn close_one(&self) -> bool {
        let lines = locked(&self.lines);
        let idle = lines.values().filter_map(|line| line.try_lock().ok());
        let oldest = idle.filter(|line| line.open.is_some()).min_by_key(|line| line.used);
        oldest.is_some_and(|mut line| line.open.take().is_some())
    }

    /// Closes the lines that lead there. Returns how many are in use, and so stay.
    pub fn close_lines(
        &self,
        there: impl Fn(&[crate::config::ServerAddress], &str) -> bool,
    ) -> u32 {
        let lines = locked(&self.lines);
        let there = lines.iter().filter(|(key, _)| there(&key.servers, &key.database));
        let mut left = 0;
        for (_, line) in there {
            match line.try_lock() {
                Ok(mut line) => line.open = None,
                Err(_) => left += 1,
            }
        }
        left
    }

    /// Forgets all answers and lines: the configuration has changed.
    pub fn forget(&self) {
        locked(&self.lines).clear();
        locked(&self.secrets).clear();
        self.strangers.forget();
        self.memberships.forget();
    }

    /// Forgets what is known of one user: its proof was wrong, perhaps because the password has
    /// just changed.
    pub fn forget_user(&self, database: &str, user: &str) {
        locked(&self.secrets).remove(&(database.to_owned(), user.to_owned()));
    }
}

/// Asks on a line; opens it if it is not open, and once more if it has broken or the question was
/// cancelled. If no more server connections are allowed it waits for a place, up to its patience.
pub(super) async fn ask(
    service: &Arc<Service>,
    route: &Route,
    patience: Duration,
    sql: &str,
    values: &[&[u8]],
) -> Result<Answer, DialError> {
    ask_for(service, route, patience, sql, values, false).await
}

/// The same; the answer may be `much`.
pub(super) async fn ask_for(
    service: &Arc<Service>,
    route: &Route,
    patience: Duration,
    sql: &str,
    values: &[&[u8]],
    much: bool,
) -> Result<Answer, DialError> {
    let begun = Instant::now();
    let line = service.enquiries.line(route);
    let mut line = line.lock().await;
    let within = route.target.connect_timeout;
    if let Some((at, server)) = &line.unanswered
        && *at > begun
    {
        // It has waited for another question that got no answer, which counts for both.
        return Err(unanswered(server, within));
    }
    let mut cancelled = false;
    loop {
        let fresh = line.open.is_none();
        // Taken out while in use: if this task is dropped meanwhile, so is the connection with its
        // outstanding answer.
        let mut session = match line.open.take() {
            Some(open) => open,
            None => match open_line(service, route, patience).await {
                Err(DialError::Timeout { server, after }) => {
                    line.unanswered = Some((Instant::now(), server.clone()));
                    return Err(DialError::Timeout { server, after });
                }
                opened => opened?,
            },
        };
        let talk = session.ask();
        talk.expect_much(much);
        let result = timeout(within, talk.query_with(sql, values)).await;
        line.used = Instant::now();
        if result.is_ok() {
            session.answered();
        }
        let failed = |source| DialError::Talk { server: session.server().to_owned(), source };
        match result {
            Ok(Ok(answer)) => {
                line.open = Some(session);
                return Ok(answer);
            }
            // Another session's pg_cancel_backend(), perhaps for all processes: once more.
            Ok(Err(TalkError::Server(error)))
                if error.code == SqlState::QUERY_CANCELED && !cancelled =>
            {
                cancelled = true;
                line.open = Some(session);
            }
            Ok(Err(TalkError::Server(error))) => {
                let ends = error.severity == hawser_core::wire::error::Severity::Fatal;
                let failed = failed(TalkError::Server(error));
                if !ends {
                    line.open = Some(session);
                    return Err(failed);
                }
                if fresh {
                    return Err(failed);
                }
            }
            Ok(Err(error)) if fresh => return Err(failed(error)),
            Ok(Err(_)) => {} // it had been idle, and the server has closed it since
            Err(_) => {
                line.unanswered = Some((Instant::now(), session.server().to_owned()));
                return Err(unanswered(session.server(), within));
            }
        }
    }
}

fn unanswered(server: &str, within: Duration) -> DialError {
    let reason = format!(
        "server at {server} did not answer a question within server_connect_timeout, {} s",
        within.as_secs_f32()
    );
    DialError::Unready { trouble: Trouble::Silence, reason }
}

async fn open_line(
    service: &Arc<Service>,
    route: &Route,
    patience: Duration,
) -> Result<Session, DialError> {
    // Shown in pg_stat_activity: this is no client's connection.
    let mut login = route.login.clone();
    login
        .parameters
        .push(Asked { name: b"application_name"[..].into(), value: b"hawser"[..].into() });
    let (database, user) = (&route.login.database, &route.login.user);
    let asker =
        Asker { entry: None, database, user, route, login: &login, login_waits: true, patience };
    Session::dial(service, &asker).await
}

/// The secret of a user by `auth_query`; `Ok(None)` if that does not find the user.
///
/// # Errors
/// The lookup failed. The reason goes to the log.
pub async fn look_up(
    service: &Arc<Service>,
    config: &Config,
    database: &DatabaseConfig,
    requested: &str,
    user: &str,
) -> Result<Option<Secret>, NotLookedUp> {
    let Some(auth_user) = &database.auth_user else { return Ok(None) };
    let key = (requested.to_owned(), user.to_owned());
    let remembered = locked(&service.enquiries.secrets).get(&key).cloned();
    if let Some((asked, secret)) = remembered
        && asked.elapsed() < SECRET_PERIOD
    {
        return Ok(secret);
    }
    let failed = |reason: &dyn std::fmt::Display| {
        static SAID: Seldom = Seldom::new();
        if let Some(left_out) = SAID.may(&format!("{requested}: {reason}")) {
            tracing::warn!(database = requested, user, %reason, left_out, "auth_query failed");
        }
        ClientError::fatal(SqlState::CONNECTION_FAILURE, "the user could not be looked up")
            .detail("auth_query failed; see the log of the pooler.")
    };
    let (name, asked_in) = match &database.auth_dbname {
        Some(name) => (name.as_str(), config.database(name)),
        None => (requested, Some(database)),
    };
    let asked_in = asked_in.ok_or_else(|| failed(&format!("auth_dbname \"{name}\" is unknown")))?;
    let dbname = asked_in.dbname_for(name);
    // Any client can name databases at any rate before it has proven anything.
    let stranger = match database.auth_dbname.is_none() && asked_in.is_any() {
        true => service.enquiries.strangers.admit(dbname).await?,
        false => None,
    };
    if stranger.as_ref().is_some_and(Stranger::has_waited_in_vain) {
        return Err(failed(&"the server has not answered in time").into());
    }
    let path = Asked { name: b"search_path"[..].into(), value: LOOK_UP_PATH.into() };
    let login = Login {
        user: auth_user.clone(),
        database: dbname.to_owned(),
        replication: hawser_core::session::options::Replication::None,
        parameters: vec![path],
        start: Vec::new(),
        credentials: service.access.load().credentials(auth_user),
    };
    let route = route(config, asked_in, auth_user, login, &locked(&service.pools.connectings));
    let patience = route.target.connect_timeout;
    let answer =
        match ask(service, &route, patience, &database.auth_query, &[user.as_bytes()]).await {
            Ok(answer) => answer,
            Err(error) if is_no_entry(&error) => {
                let is_none = matches!(&error, DialError::Refused { error, .. }
                if error.code == SqlState::INVALID_CATALOG_NAME);
                if stranger.is_none() || !is_none {
                    failed(&error); // for the operator: no client gets it
                }
                if let Some(stranger) = stranger {
                    stranger.missing();
                }
                return Err(NotLookedUp::NoEntry);
            }
            Err(error) => {
                if let Some(stranger) = stranger.filter(|_| error.is_silence()) {
                    stranger.unanswered();
                }
                return Err(failed(&error).into());
            }
        };
    if let Some(stranger) = stranger {
        stranger.exists();
    }
    let secret = read_secret(&answer, user).map_err(|reason| failed(&reason))?;
    let mut secrets = locked(&service.enquiries.secrets);
    if secrets.len() >= SECRETS_MAX {
        secrets.clear();
    }
    secrets.insert(key, (Instant::now(), secret.clone()));
    Ok(secret)
}

/// Looks up a user that has a secret here, to take as long as for others: the answer is not used.
pub async fn look_up_unused(
    service: &Arc<Service>,
    config: &Config,
    database: &DatabaseConfig,
    requested: &str,
    user: &str,
) {
    let look = look_up(service, config, database, requested, user);
    // Without an answer in time the login continues: it does not need it.
    let _ = timeout(UNUSED_WAIT, look).await;
}

/// Reads the answer of `auth_query`: name, secret, and perhaps VALID UNTIL.
fn read_secret(answer: &Answer, user: &str) -> Result<Option<Secret>, String> {
    let row = match answer.rows.as_slice() {
        [] => return Ok(None),
        [row] => row,
        rows => return Err(format!("it gives {} rows for one user", rows.len())),
    };
    let (Some(name), Some(secret)) = (row.first(), row.get(1)) else {
        return Err("it must give two columns: name and secret".to_owned());
    };
    // Another user's secret must not admit this one.
    if name.as_deref() != Some(user.as_bytes()) {
        return Err("it gives another user than the one it was asked for".to_owned());
    }
    let text = |value: &Option<Box<[u8]>>| -> Result<Option<String>, String> {
        let text = value.as_deref().map(|text| String::from_utf8(text.to_vec()));
        text.transpose().map_err(|_| "it gives text that is not UTF-8".to_owned())
    };
    if let Some(until) = row.get(2) {
        let until =
            ValidUntil::parse(text(until)?.as_deref()).map_err(|error| error.to_string())?;
        if until.has_passed(SystemTime::now()) {
            return Ok(Some(Secret::None));
        }
    }
    let secret = Secret::parse(text(secret)?.as_deref()).map_err(|error| error.to_string())?;
    Ok(Some(secret))
}

/// A statement on this pool's servers may have changed the values with which new sessions start:
/// the next client of one of their pools asks, even if one asked just before.
pub fn expect_change(service: &Service, pool: PoolId) {
    let Some(entry) = service.pools.by_id(pool) else { return };
    let route = entry.route.load();
    for other in service.pools.all() {
        if other.route.load().target.servers == route.target.servers {
            locked(&other.seen.asking).asked = None;
        }
    }
}

/// Begins a new epoch of a pool if its sessions would start with other values now. To be called for
/// each new client; asks the server at most once a [`SETTINGS_PERIOD`].
pub async fn notice_changed_settings(service: &Arc<Service>, entry: &Arc<PoolEntry>) {
    // Most logins end here: a fleet that comes back asks once in a period, and no login waits for
    // another's question.
    let is_over_link =
        entry.route.load().target.servers.iter().any(|server| server.link().is_some());
    let Some(waiting) = entry.seen.begin(is_over_link) else { return };
    let (asking, asked) = (service.clone(), entry.clone());
    // It continues if this login stops waiting: its answer ends the server's silence.
    let question = tokio::spawn(async move { look(&asking, &asked).await });
    // Without an answer in time the login continues with the known values.
    if waiting == Waiting::Awaited && timeout(SETTINGS_WAIT, question).await.is_err() {
        locked(&entry.seen.asking).unanswered = true;
        if let Some(left_out) = entry.seen.silences.may("") {
            tracing::warn!(
                database = entry.key.database,
                user = entry.key.user,
                left_out,
                "the server does not say whether start values have changed: logins do not wait for it \
                 until it answers"
            );
        }
    }
}

/// Asks for the fingerprint of a pool's start values, and begins a new epoch if it is another.
async fn look(service: &Arc<Service>, entry: &PoolEntry) {
    let route = entry.route.load_full();
    let mut fingerprint = entry.seen.fingerprint.lock().await;
    // It can wait for another time: no pool gives up a place for it.
    let none = Duration::ZERO;
    let role = route.login.user.as_bytes();
    let answer = ask(service, &route, none, FINGERPRINT, &[role]).await;
    entry.seen.end(answer.is_ok());
    let answer = match answer {
        Ok(answer) => answer.single().unwrap_or_default().to_vec(),
        Err(error) => {
            tracing::debug!(%error, "could not ask for changed start values");
            return;
        }
    };
    let before = fingerprint.replace(answer.clone());
    if before.is_some_and(|before| before != answer) {
        tracing::info!(
            database = entry.key.database,
            user = entry.key.user,
            "ALTER ROLE or DATABASE ... SET: server connections are replaced as they become free"
        );
        super::upkeep::renew(service, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unanswered_question_is_not_awaited_again_until_one_is_answered() {
        let seen = Seen::default();
        assert_eq!(seen.begin(false), Some(Waiting::Awaited));
        assert_eq!(seen.begin(false), None, "it was asked just now");
        let later = |seen: &Seen| locked(&seen.asking).asked = None;
        later(&seen);
        assert_eq!(seen.begin(false), Some(Waiting::Awaited), "a change is expected: asked anew");
        seen.end(false); // it could not be asked, which took no time
        later(&seen);
        assert_eq!(seen.begin(false), Some(Waiting::Awaited));
        seen.end(true);
        locked(&seen.asking).unanswered = true;
        later(&seen);
        assert_eq!(seen.begin(false), None, "one is under way still");
        seen.end(false);
        assert_eq!(seen.begin(false), Some(Waiting::NotAwaited));
        seen.end(true);
        later(&seen);
        assert_eq!(seen.begin(false), Some(Waiting::Awaited));
    }

    #[test]
    fn over_a_link_a_login_waits_only_where_a_change_is_expected() {
        let seen = Seen::default();
        assert_eq!(seen.begin(true), Some(Waiting::Awaited), "nothing is known yet");
        seen.end(true);
        let long_ago = Instant::now().checked_sub(2 * SETTINGS_PERIOD);
        locked(&seen.asking).asked = long_ago;
        assert_eq!(seen.begin(true), Some(Waiting::NotAwaited));
        seen.end(true);
        locked(&seen.asking).asked = long_ago;
        assert_eq!(seen.begin(false), Some(Waiting::Awaited));
        seen.end(true);
        locked(&seen.asking).asked = None; // a statement that may change them has succeeded
        assert_eq!(seen.begin(true), Some(Waiting::Awaited));
    }

    fn answer(rows: &[&[Option<&str>]]) -> Answer {
        let value = |value: &Option<&str>| value.map(|text| text.as_bytes().into());
        let rows = rows.iter().map(|row| row.iter().map(value).collect()).collect();
        Answer { rows, reported: Vec::new() }
    }

    #[test]
    fn auth_query_answers_about_the_very_user() {
        let read = |rows: &[&[Option<&str>]]| read_secret(&answer(rows), "ann");
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[&[Some("ann"), None]]), Ok(Some(Secret::None)));
        assert_eq!(read(&[&[Some("ann"), Some("pw")]]), Ok(Some(Secret::Plain("pw".into()))));
        assert!(read(&[&[Some("bob"), Some("pw")]]).is_err());
        assert!(read(&[&[None, Some("pw")]]).is_err());
        assert!(read(&[&[Some("ann")]]).is_err());
        assert!(read(&[&[Some("ann"), Some("a")], &[Some("ann"), Some("b")]]).is_err());
    }

    #[test]
    fn an_expired_secret_lets_no_user_in() {
        let read = |until| read_secret(&answer(&[&[Some("ann"), Some("pw"), until]]), "ann");
        assert_eq!(read(Some("2001-01-01 00:00:00+00")), Ok(Some(Secret::None)));
        assert_eq!(read(Some("infinity")), Ok(Some(Secret::Plain("pw".into()))));
        assert_eq!(read(None), Ok(Some(Secret::Plain("pw".into()))));
        assert!(read(Some("some day")).is_err());
    }
}
