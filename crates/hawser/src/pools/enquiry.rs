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
//! have been made again, and whether it may still log in and connect to the database, and whether
//! that still accepts connections.
//!
//! # Limits
//! Clients that come [`SETTINGS_PERIOD`] after a change that bypasses Hawser see it; over a link,
//! where no login waits a round trip for the answer, those after them. A change that is taken back
//! before the next login is seen by the question after each opening of a server connection. Where it
//! is taken back within the milliseconds up to that, or the server has no connection left for the
//! question, the connection keeps it. Settings in postgresql.conf are re-read by the server's own
//! backends, which report them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use hawser_pooler::ids::PoolId;
use hawser_pooler::session::options::Asked;
use hawser_pooler::wire::error::{ClientError, SqlState};
use tokio::time::timeout;

use super::lines::Lines;
use super::place::{Asker, Places};
use super::seen::{Seen, Waiting};
use super::session::Session;
pub use super::strangers::NotLookedUp;
use super::strangers::{Stranger, Strangers};
use super::{PoolEntry, Pools, Route, locked};
use crate::auth::roles::look_up_in;
use crate::auth::secret::{Secret, ValidUntil};
use crate::config::{Config, DatabaseConfig};
use crate::dial::talk::{Answer, TalkError};
use crate::dial::{DialError, Login, Trouble};
use crate::logging::Seldom;
use crate::shared::Shared;

/// How long the answer of `auth_query` about a user is used.
const SECRET_PERIOD: Duration = Duration::from_secs(2);
/// Users whose answer is remembered.
const SECRETS_MAX: usize = 10_000;
/// How long a login waits for that answer. After one that was late, no login waits until an answer
/// has come: a server that hangs would delay each of them by as much.
const SETTINGS_WAIT: Duration = Duration::from_millis(500);

/// The search_path for unqualified names in `auth_query`.
const LOOK_UP_PATH: &[u8] = b"pg_catalog, public";
/// How long a login whose user has a secret here waits for the answer about that user, which it does not
/// use: the server is asked so that timing does not reveal which users have one.
const UNUSED_WAIT: Duration = Duration::from_secs(1);

/// Before a question about catalogs. The settings of a role or database are for the statements of clients. And one
/// of many parts may cost so much by the planner's count that the server compiles it, for seconds, and then runs it for
/// milliseconds; servers before PostgreSQL 11 have no such setting. All ends with the Query, and there are no rows.
const UNHINDERED: &str = "SET LOCAL statement_timeout = 0; SET LOCAL work_mem = '16MB'; SELECT FROM (SELECT pg_catalog.set_config(s.name, 'off', true) AS jit \
     FROM pg_catalog.pg_settings s WHERE s.name OPERATOR(pg_catalog.=) 'jit' OFFSET 0) j \
     WHERE j.jit IS NULL; ";

/// $1 and $2 are the roles. NULL if there is none.
const FINGERPRINT: &str = "SELECT pg_catalog.string_agg(pg_catalog.concat(r.oid, r.rolcanlogin, d.datallowconn, \
     pg_catalog.has_database_privilege(r.oid, d.oid, 'CONNECT'), (\
     SELECT pg_catalog.md5(pg_catalog.string_agg(s::pg_catalog.text, ',' ORDER BY s::pg_catalog.text)) \
     FROM pg_catalog.pg_db_role_setting s \
     WHERE (s.setrole OPERATOR(pg_catalog.=) 0 OR s.setrole OPERATOR(pg_catalog.=) r.oid) \
     AND (s.setdatabase OPERATOR(pg_catalog.=) 0 OR s.setdatabase OPERATOR(pg_catalog.=) d.oid))), ' ' ORDER BY r.oid) \
     FROM pg_catalog.pg_roles r, pg_catalog.pg_database d \
     WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() \
     AND (r.rolname OPERATOR(pg_catalog.=) $1 OR r.rolname OPERATOR(pg_catalog.=) $2)";

type Secrets = HashMap<(String, String), (Instant, Option<Secret>)>;

/// Asks servers on lines, and keeps their recent answers.
pub struct Enquiries {
    shared: Arc<Shared>,
    pools: Arc<Pools>,
    lines: Arc<Lines>,
    places: Arc<Places>,
    secrets: Mutex<Secrets>,
    strangers: Strangers,
}

/// The search_path of the connection on which `auth_query` runs.
pub(crate) fn look_up_path() -> Asked {
    Asked { name: b"search_path"[..].into(), value: LOOK_UP_PATH.into() }
}

/// Whether an error concerns only the database, and is not temporary.
fn is_no_entry(error: &DialError) -> bool {
    let DialError::Refused { error, .. } = error else { return false };
    matches!(&error.code.0, [b'3', b'D', ..] | [b'2', b'8', ..] | [b'4', b'2', ..] | b"55000")
}

impl Enquiries {
    /// No server has been asked yet.
    pub fn new(
        shared: Arc<Shared>,
        pools: Arc<Pools>,
        lines: Arc<Lines>,
        places: Arc<Places>,
    ) -> Self {
        let (secrets, strangers) = Default::default();
        Self { shared, pools, lines, places, secrets, strangers }
    }

    /// Forgets all answers: the configuration has changed.
    pub fn forget(&self) {
        locked(&self.secrets).clear();
        self.strangers.forget();
    }

    /// Forgets what is known of one user: its proof was wrong, perhaps because the password has
    /// just changed.
    pub fn forget_user(&self, database: &str, user: &str) {
        locked(&self.secrets).remove(&(database.to_owned(), user.to_owned()));
    }
}

impl Enquiries {
    /// Asks on a line; opens it if it is not open, and once more if it has broken or the question was
    /// cancelled. If no more server connections are allowed it waits for a place, up to its patience.
    pub(super) async fn ask(
        &self,
        route: &Route,
        patience: Duration,
        sql: &str,
        values: &[&[u8]],
    ) -> Result<Answer, DialError> {
        self.ask_on_line(route, patience, sql, Some(values)).await
    }

    /// The same, about the catalogs: the answer may be long.
    pub(super) async fn ask_catalogs(
        &self,
        route: &Route,
        patience: Duration,
        sql: &str,
    ) -> Result<Answer, DialError> {
        self.ask_on_line(route, patience, &[UNHINDERED, sql].concat(), None).await
    }

    /// `values`: of the parameters of a single statement, whose answer is short.
    async fn ask_on_line(
        &self,
        route: &Route,
        patience: Duration,
        sql: &str,
        values: Option<&[&[u8]]>,
    ) -> Result<Answer, DialError> {
        let begun = Instant::now();
        let line = self.lines.line(route);
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
                None => match self.open_line(route, patience).await {
                    Err(DialError::Timeout { server, after }) => {
                        line.unanswered = Some((Instant::now(), server.clone()));
                        return Err(DialError::Timeout { server, after });
                    }
                    opened => opened?,
                },
            };
            let talk = session.ask();
            talk.expect_much(values.is_none());
            let answer = async {
                match values {
                    Some(values) => talk.query_with(sql, values).await,
                    None => talk.run(sql).await?.into_answer(),
                }
            };
            let result = timeout(within, answer).await;
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
                    let ends = error.severity == hawser_pooler::wire::error::Severity::Fatal;
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

    async fn open_line(&self, route: &Route, patience: Duration) -> Result<Session, DialError> {
        // Shown in pg_stat_activity: this is no client's connection.
        let mut login = route.login.clone();
        login
            .parameters
            .push(Asked { name: b"application_name"[..].into(), value: b"hawser"[..].into() });
        let (database, user) = (&route.login.database, &route.login.user);
        let asker = Asker {
            entry: None,
            database,
            user,
            route,
            login: &login,
            login_waits: true,
            patience,
        };
        self.places.dial(&asker).await
    }

    /// The secret of a user by `auth_query`; `Ok(None)` if that does not find the user.
    ///
    /// # Errors
    /// The lookup failed. The reason goes to the log.
    pub async fn look_up(
        &self,
        config: &Config,
        database: &DatabaseConfig,
        requested: &str,
        user: &str,
    ) -> Result<Option<Secret>, NotLookedUp> {
        let auth = &database.inherited.auth;
        let Some(auth_user) = &auth.auth_user else { return Ok(None) };
        let key = (requested.to_owned(), user.to_owned());
        let remembered = locked(&self.secrets).get(&key).cloned();
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
        let (asked_in, dbname) = look_up_in(config, database)
            .ok_or_else(|| failed(&"auth_dbname names no database of the configuration"))?;
        let dbname = dbname.unwrap_or(requested);
        // Any client can name databases at any rate before it has proven anything.
        let stranger = match auth.auth_dbname.is_none() && asked_in.is_any() {
            true => self.strangers.admit(dbname).await?,
            false => None,
        };
        if stranger.as_ref().is_some_and(Stranger::has_waited_in_vain) {
            return Err(failed(&"the server has not answered in time").into());
        }
        let login = Login {
            user: auth_user.clone(),
            database: dbname.to_owned(),
            replication: hawser_pooler::session::options::Replication::None,
            parameters: vec![look_up_path()],
            start: Vec::new(),
            credentials: self.shared.access.load().credentials(auth_user),
        };
        let route = self.pools.route(config, asked_in, auth_user, login);
        let patience = route.target.connect_timeout;
        let answer = match self.ask(&route, patience, &auth.auth_query, &[user.as_bytes()]).await {
            Ok(answer) => answer,
            Err(error) if is_no_entry(&error) => {
                if stranger.is_none() || !error.is_no_such_database() {
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
        let mut secrets = locked(&self.secrets);
        if secrets.len() >= SECRETS_MAX {
            secrets.clear();
        }
        secrets.insert(key, (Instant::now(), secret.clone()));
        Ok(secret)
    }

    /// Looks up a user that has a secret here, to take as long as for others: the answer is not used.
    pub async fn look_up_unused(
        &self,
        config: &Config,
        database: &DatabaseConfig,
        requested: &str,
        user: &str,
    ) {
        let look = self.look_up(config, database, requested, user);
        // Without an answer in time the login continues: it does not need it.
        let _ = timeout(UNUSED_WAIT, look).await;
    }

    /// A statement on this pool's servers may have changed the values with which new sessions start:
    /// the next client of one of their pools asks, even if one asked just before.
    pub fn expect_change(&self, pool: PoolId) {
        let Some(entry) = self.pools.by_id(pool) else { return };
        let route = entry.route.load();
        for other in self.pools.all() {
            if other.route.load().target.servers == route.target.servers {
                other.seen.expect_change();
            }
        }
    }

    /// Begins a new epoch of a pool if its sessions would start with other values now. To be called for
    /// each new client; asks the server now and then for each `user` of the pool.
    pub async fn notice_changed_settings(self: &Arc<Self>, entry: &Arc<PoolEntry>, user: &str) {
        // Most logins end here: a fleet that comes back asks once in a period, and no login waits for
        // another's question.
        let route = entry.route.load_full();
        let is_over_link = route.target.servers.iter().any(|server| server.link().is_some());
        let role = if entry.key.shared { user } else { &route.login.user };
        let seen = entry.seen.role(role);
        let Some(waiting) = seen.begin(is_over_link) else { return };
        let (asking, asked, about, role) =
            (self.clone(), entry.clone(), seen.clone(), role.to_owned());
        // It continues if this login stops waiting: its answer ends the server's silence.
        let question = tokio::spawn(async move { asking.look(&asked, &about, &role, None).await });
        // Without an answer in time the login continues with the known values.
        if waiting == Waiting::Awaited && timeout(SETTINGS_WAIT, question).await.is_err() {
            seen.note_silence();
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

    /// A server connection of a pool has just been opened: asks whether it began with other values than those
    /// known. At the next login it would be too late, where they have been taken back by then.
    pub fn notice_values_of_opened(self: &Arc<Self>, pool: PoolId) {
        let Some(entry) = self.pools.by_id(pool) else { return };
        if entry.key.replication.is_some() {
            return;
        }
        let (asking, opened) = (self.clone(), Instant::now());
        tokio::spawn(async move {
            // In a pool that users share, each takes the settings of its own role at each hand-over.
            let role = entry.route.load().login.user.clone();
            let seen = entry.seen.role(&role);
            seen.begin_unawaited();
            asking.look(&entry, &seen, &role, Some(opened)).await;
        });
    }

    /// Asks for the fingerprint of a role's start values, and begins a new epoch if it is another. Does not ask
    /// if it has been asked for `since` a moment.
    async fn look(&self, entry: &PoolEntry, seen: &Seen, role: &str, since: Option<Instant>) {
        let route = entry.route.load_full();
        let mut fingerprint = seen.fingerprint.lock().await;
        let asked = Instant::now();
        if since.is_some_and(|since| fingerprint.as_ref().is_some_and(|(last, _)| *last >= since)) {
            return seen.end(true);
        }
        // It can wait for another time: no pool gives up a place for it.
        let none = Duration::ZERO;
        let roles = [role.as_bytes(), route.login.user.as_bytes()];
        let answer = self.ask(&route, none, FINGERPRINT, &roles).await;
        seen.end(answer.is_ok());
        let answer = match answer {
            Ok(answer) => answer.single().unwrap_or_default().to_vec(),
            // Without a line of before, the server refuses this one as it would a session.
            Err(error) if is_no_entry(&error) => error.to_string().into_bytes(),
            Err(error) => {
                tracing::debug!(%error, "could not ask for changed start values");
                return;
            }
        };
        let before = fingerprint.replace((asked, answer.clone()));
        if before.is_some_and(|(_, before)| before != answer) {
            tracing::info!(
                database = entry.key.database,
                user = role,
                "ALTER ROLE or DATABASE ... SET: server connections are replaced as they become free"
            );
            entry.renew(&self.shared.loops);
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

/// Reads the answer of `auth_query`: name, secret, and perhaps VALID UNTIL.
///
/// # Errors
/// It is not the answer of an `auth_query` about this user.
pub(crate) fn read_secret(answer: &Answer, user: &str) -> Result<Option<Secret>, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
