//! What each command does.
//!
//! # PAUSE
//! A paused pool lends nothing; what is idle is closed at once, what comes back while PAUSE waits is
//! closed too, and PAUSE is answered when no server connection is left. In session mode that is when
//! the clients have left. If the operator gives up (disconnects), the pause stays.
//! # Why RESUME opens new connections for those who wait
//! PAUSE has closed the old ones: it is for servers that are restarted.

use std::collections::{BTreeSet, HashMap};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use hawser_pooler::ids::{ClientId, PoolId};
use hawser_pooler::relay::ToLoop;
use hawser_pooler::relay::message::{BackendRow, Listed};
use hawser_pooler::wire::error::{ClientError, SqlState};

use super::command::{Command, Shutdown};
use super::pooler::Pooler;
use super::show::client_number;
use crate::config::{ADMIN_DATABASES, Config, RuleEntry, SetError};
use crate::gates::By;
use crate::loops::Pool;
use crate::loops::pages::Pages;

/// Time between looks at pools that a command waits for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The same where every loop has to be asked.
const ASK_LOOPS_EVERY: Duration = Duration::from_millis(250);

/// What clients read after KILL.
const KILLED: &str = "terminating connection due to administrator command";

/// What is answered: the tag of CommandComplete.
pub type Tag = String;

fn error(code: SqlState, message: impl Into<String>) -> ClientError {
    ClientError::error(code, message)
}

/// Runs a command that changes something.
///
/// # Errors
/// What the operator reads. Nothing has been done then.
pub async fn execute(pooler: &dyn Pooler, command: &Command) -> Result<Tag, ClientError> {
    let mut here = pin!(execute_here(pooler, command, By::Operator));
    // What is wrong with a command is known at once, and what is wrong is not passed on. PAUSE waits at both
    // places at a time.
    let first = poll_fn(|context| Poll::Ready(here.as_mut().poll(context))).await;
    let (tag, there) = match first {
        Poll::Ready(done) => (done?, pooler.pass_on(command).await),
        Poll::Pending => {
            let (done, there) = tokio::join!(here, pooler.pass_on(command));
            (done?, there)
        }
    };
    there.map(|()| tag)
}

/// The same, of this process alone.
///
/// # Errors
/// See [`execute`].
pub async fn execute_here(
    pooler: &dyn Pooler,
    command: &Command,
    by: By,
) -> Result<Tag, ClientError> {
    match command {
        Command::Set { name, value } => set(pooler, name, value).await,
        Command::Pause(database) => pause(pooler, database.as_deref(), by).await,
        Command::Resume(database) => resume(pooler, database.as_deref()),
        Command::Disable(database) => {
            let database = known(pooler, database, "disable")?;
            pooler.gates().disable(database, by)?;
            tracing::info!(database, "disabled by an administrator: new clients are refused");
            Ok("DISABLE".to_owned())
        }
        Command::Enable(database) => {
            let database = known(pooler, database, "enable")?;
            pooler.gates().enable(database);
            tracing::info!(database, "enabled by an administrator");
            Ok("ENABLE".to_owned())
        }
        Command::Reconnect(database) => {
            for pool in pools_of(pooler, database.as_deref(), "reconnect")? {
                pooler.reconnect(&pool);
            }
            Ok("RECONNECT".to_owned())
        }
        Command::Kill(database) => kill(pooler, database.as_deref(), by),
        Command::CloseIdle(database) => close_idle(pooler, database.as_deref()),
        Command::KillClient(id) => kill_client(pooler, id).await,
        Command::WaitClose(database) => wait_close(pooler, database.as_deref()).await,
        Command::RuleAdd { name, words, lasts, force } => {
            rule_add(pooler, name, words, *lasts, *force)
        }
        Command::RuleDrop(name) => {
            if !pooler.rules().drop_one(name, pooler.loops()) {
                let message = format!("there is no rule \"{name}\"");
                return Err(error(SqlState::UNDEFINED_OBJECT, message)
                    .hint("SHOW RULES lists all of them."));
            }
            Ok("RULE DROP".to_owned())
        }
        Command::Reload => match pooler.reload().await {
            Ok(_) => Ok("RELOAD".to_owned()),
            Err(reason) => Err(error(
                SqlState::CONFIG_FILE_ERROR,
                "RELOAD failed, the old configuration stays",
            )
            .detail(reason)
            .hint(format!("{} says the same without a reload.", pooler.config().check_command()))),
        },
        Command::Suspend => Err(error(
            SqlState::FEATURE_NOT_SUPPORTED,
            "SUSPEND is not supported: its only use is to hand sockets to a new process",
        )
        .hint("PAUSE waits until no server connection is in use.")),
        Command::Shutdown(how) => {
            pooler.gates().serve_here()?;
            match how {
                Shutdown::Immediate => tracing::info!("SHUTDOWN by an administrator"),
                how => tracing::info!(?how, "SHUTDOWN by an administrator"),
            }
            pooler.shutdown(*how);
            Ok("SHUTDOWN".to_owned())
        }
        Command::Show(_)
        | Command::Switchover(_) // a session's, for it goes on when that has ended
        | Command::ShowExtended(_)
        | Command::ShowSession(..)
        | Command::SetSession
        | Command::Transaction(_)
        | Command::Clean(_) => Ok(String::new()),
    }
}

fn rule_add(
    pooler: &dyn Pooler,
    name: &str,
    words: &[(String, String)],
    lasts: Option<Duration>,
    force: bool,
) -> Result<Tag, ClientError> {
    let wrong = |message: String| {
        error(SqlState::INVALID_PARAMETER_VALUE, message)
            .hint("docs/rules.md has what a rule can be.")
    };
    let mut entry = RuleEntry::from_words(name, words).map_err(wrong)?;
    entry.force |= force;
    if let Some((_, message)) = pooler.config().never_matches(&entry).filter(|_| !entry.force) {
        return Err(error(SqlState::INVALID_PARAMETER_VALUE, message)
            .hint("FORCE at the end of the command adds it all the same."));
    }
    pooler.rules().add(&entry, lasts, pooler.loops())?;
    let (when, does) = entry.in_words();
    tracing::info!(rule = name, when, does, ?lasts, "rule added by an administrator");
    Ok("RULE ADD".to_owned())
}

async fn set(pooler: &dyn Pooler, name: &str, value: &str) -> Result<Tag, ClientError> {
    let mut config = Config::clone(&pooler.config());
    config.set(name, value).map_err(|refused| {
        let code = match refused {
            SetError::Unknown(_) => SqlState::UNDEFINED_OBJECT,
            SetError::NotChangeable(_) => SqlState::CANT_CHANGE_RUNTIME_PARAM,
            SetError::Refused(_) => SqlState::INVALID_PARAMETER_VALUE,
        };
        error(code, refused.to_string()).hint("SHOW CONFIG lists all settings.")
    })?;
    let changes = pooler.config().changes(&config).join("; ");
    pooler
        .put_config(config)
        .await
        .map_err(|reason| error(SqlState::INVALID_PARAMETER_VALUE, reason))?;
    tracing::info!(setting = name, changes, "changed by an administrator until the next reload");
    Ok(format!("SET {name}={value}"))
}

/// The database, if there is such an entry or pool, and it is not the console itself.
pub(super) fn known<'a>(
    pooler: &dyn Pooler,
    database: &'a str,
    verb: &'static str,
) -> Result<&'a str, ClientError> {
    if ADMIN_DATABASES.contains(&database) {
        let message = format!("cannot {verb} admin db: {database}");
        return Err(error(SqlState::FEATURE_NOT_SUPPORTED, message));
    }
    let config = pooler.config();
    let has_entry = config.databases().iter().any(|entry| entry.name == database);
    if has_entry || config.database(database).is_some() {
        return Ok(database);
    }
    Err(error(SqlState::INVALID_CATALOG_NAME, format!("no such database: {database}"))
        .hint("SHOW DATABASES lists them."))
}

/// The field `databases` of a line of the log that has no `database`.
fn all_if(database: Option<&str>) -> Option<&'static str> {
    database.is_none().then_some("all")
}

/// The pools of a database, or all; whether or not it is known.
fn list(pooler: &dyn Pooler, database: Option<&str>) -> Vec<Pool> {
    let wanted = |pool: &Pool| database.is_none_or(|name| pool.database == name);
    pooler.pools().into_iter().map(|entry| entry.pool).filter(wanted).collect()
}

/// The pools of a database that is known, or all.
fn pools_of(
    pooler: &dyn Pooler,
    database: Option<&str>,
    verb: &'static str,
) -> Result<Vec<Pool>, ClientError> {
    if let Some(database) = database {
        known(pooler, database, verb)?;
    }
    Ok(list(pooler, database))
}

fn already_paused() -> ClientError {
    error(SqlState::CANNOT_CONNECT_NOW, "already suspended/paused").hint("RESUME ends the pause.")
}

async fn pause(pooler: &dyn Pooler, database: Option<&str>, by: By) -> Result<Tag, ClientError> {
    // Errors first: a pause of a database that there is not would stay for ever.
    pools_of(pooler, database, "pause")?;
    if pooler.gates().all_paused() {
        return Err(already_paused());
    }
    pooler.gates().pause(database, by)?;
    tracing::info!(database, databases = all_if(database), "paused by an administrator");
    loop {
        // Asked again each time: a pool may be made meanwhile.
        let mut left = 0;
        for pool in pools_of(pooler, database, "pause")? {
            pooler.gates().pause_pool(&pool.database, || pool.lock().pause());
            pooler.close_idle(&pool);
            left += pool.lock().total() + u32::from(pooler.serves_inside(&pool));
        }
        pooler.close_lines(database); // on which servers are asked what they are
        if !is_paused(pooler, database) {
            return Err(error(
                SqlState::QUERY_CANCELED,
                "RESUME came before the pause was complete",
            ));
        }
        if left == 0 {
            return Ok("PAUSE".to_owned());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn is_paused(pooler: &dyn Pooler, database: Option<&str>) -> bool {
    match database {
        Some(database) => pooler.gates().is_paused(database),
        None => pooler.gates().all_paused(),
    }
}

fn resume(pooler: &dyn Pooler, database: Option<&str>) -> Result<Tag, ClientError> {
    if let Some(database) = database {
        known(pooler, database, "resume")?;
    }
    // The gate first, the list after it: a pool that is made in between is on the list, or finds the gate open.
    if !pooler.gates().resume(database) {
        let message = match database {
            Some(database) => format!("database {database} is not paused"),
            None => "pooler is not paused/suspended".to_owned(),
        };
        return Err(error(SqlState::CANNOT_CONNECT_NOW, message));
    }
    tracing::info!(database, databases = all_if(database), "resumed by an administrator");
    for pool in list(pooler, database) {
        // A pool that the other kind of pause still holds is not resumed.
        if pooler.gates().is_paused(&pool.database) {
            continue;
        }
        let due = loop {
            // A backend that is handed over must be taken out of its loop's epoll set, which only
            // loops do: so there is none idle at this moment.
            pooler.close_idle(&pool);
            let mut queue = pool.lock();
            if queue.idle_count() == 0 {
                let (handed, due) = queue.resume(pooler.loops().now());
                debug_assert!(handed.is_empty(), "nothing was idle");
                break due;
            }
        };
        for _ in 0..due {
            pooler.open(&pool, pooler.loops().least_loaded());
        }
    }
    Ok("RESUME".to_owned())
}

fn kill(pooler: &dyn Pooler, database: Option<&str>, by: By) -> Result<Tag, ClientError> {
    let pools = pools_of(pooler, database, "kill")?;
    if pooler.gates().all_paused() {
        return Err(already_paused());
    }
    match database {
        Some(_) => drop(pooler.gates().pause(database, by)?),
        // Each by itself, as PgBouncer does: so RESUME of one of them lets that one go on.
        None => {
            for pool in &pools {
                pooler.gates().pause(Some(&pool.database), by)?;
            }
        }
    }
    tracing::warn!(
        database,
        databases = all_if(database),
        "killed by an administrator: clients and servers are cut off"
    );
    let said = ClientError::fatal(SqlState::ADMIN_SHUTDOWN, KILLED);
    for pool in pools {
        pooler.gates().pause_pool(&pool.database, || pool.lock().pause());
        pooler.close_idle(&pool);
        // What its clients have comes back to a new epoch, and is closed.
        pooler.reconnect(&pool);
        pooler
            .loops()
            .send_all(|| ToLoop::KillAll { pool: Some(pool.clone()), error: said.clone() });
    }
    Ok("KILL".to_owned())
}

/// Closes what no client has: for DROP DATABASE and the like where it does not come through Hawser.
fn close_idle(pooler: &dyn Pooler, database: Option<&str>) -> Result<Tag, ClientError> {
    for pool in pools_of(pooler, database, "close the idle connections of")? {
        pooler.close_idle(&pool);
        pooler.loops().send_all(|| ToLoop::EndUnusedListener(pool.clone()));
    }
    pooler.close_lines(database);
    tracing::info!(
        database,
        databases = all_if(database),
        "idle server connections closed by an administrator"
    );
    Ok("CLOSE IDLE".to_owned())
}

async fn kill_client(pooler: &dyn Pooler, id: &str) -> Result<Tag, ClientError> {
    let not_found = || {
        error(SqlState::UNDEFINED_OBJECT, "client not found")
            .hint("SHOW CLIENTS has the ids, in its columns id and ptr.")
    };
    let loops = pooler.loops().count();
    let number: Option<u32> = id.parse().ok();
    if number.is_none() && !id.starts_with('c') {
        return Err(error(SqlState::INVALID_PARAMETER_VALUE, "invalid client pointer supplied")
            .hint("SHOW CLIENTS has the ids, in its columns id and ptr."));
    }
    let is_it = |client: &ClientId| match number {
        Some(number) => client_number(*client, loops) == number,
        None => client.to_string() == id,
    };
    let mut found = BTreeSet::new();
    let mut pages = Pages::new(pooler.loops(), Listed::Clients, false);
    while let Some(page) = pages.next().await? {
        found.extend(page.clients.iter().map(|client| client.id).filter(is_it));
    }
    let mut found = found.into_iter();
    let client = found.next().ok_or_else(not_found)?;
    if found.next().is_some() {
        return Err(error(SqlState::INVALID_PARAMETER_VALUE, "several clients have this id")
            .hint("Name the client by its ptr."));
    }
    tracing::info!(%client, "cut off by an administrator");
    let said = ClientError::fatal(SqlState::ADMIN_SHUTDOWN, "admin forced disconnect");
    pooler.loops().send(client.home, ToLoop::Kill { client, error: said });
    Ok("KILL_CLIENT".to_owned())
}

/// Waits until no backend of an older epoch is left.
async fn wait_close(pooler: &dyn Pooler, database: Option<&str>) -> Result<Tag, ClientError> {
    loop {
        let epochs: HashMap<PoolId, u32> = pools_of(pooler, database, "wait in")?
            .into_iter()
            .map(|pool| (pool.id, pool.epoch()))
            .collect();
        let is_old = |pool: PoolId, epoch: u32| epochs.get(&pool).is_some_and(|now| *now != epoch);
        let mut left = 0;
        let mut pages = Pages::new(pooler.loops(), Listed::Backends, false);
        while let Some(page) = pages.next().await? {
            let old = |backend: &&BackendRow| is_old(backend.pool, backend.epoch);
            left += page.backends.iter().filter(old).count();
        }
        for entry in pooler.pools() {
            let queue = entry.pool.lock();
            left += queue
                .idle_backends()
                .filter(|(_, backend)| is_old(entry.pool.id, backend.epoch()))
                .count();
        }
        if left == 0 {
            return Ok("WAIT_CLOSE".to_owned());
        }
        tokio::time::sleep(ASK_LOOPS_EVERY).await;
    }
}
