//! SWITCHOVER: a pause of a database that ends by itself when another server is its primary.
//!
//! # Model
//! ```text
//!   PAUSE ──no transaction is open──► answered ──the primary is no longer one, and another is──► RESUME
//! ```
//! A cluster manager runs it before it stops the primary, and waits for the answer (Patroni's
//! `before_stop`). It holds up neither the manager nor the clients for ever: both waits are bounded.
//! Servers are looked at more often meanwhile ([`Gates::begin_switchover`](crate::gates::Gates::begin_switchover)).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hawser_pooler::wire::error::{ClientError, SqlState};
use tokio::time::{Instant, sleep, timeout};

use super::command::Command;
use super::execute::{Tag, execute, known};
use super::pooler::Pooler;
use crate::config::TargetSessionAttrs;
use crate::dial::server_row::ServerRole;

/// How long open transactions are waited for.
const TRANSACTIONS_MAX: Duration = Duration::from_secs(10);
/// How long clients wait for another primary, if `query_wait_timeout` does not end it earlier.
const CLIENTS_MAX: Duration = Duration::from_secs(60);
/// How often it is asked which server is the primary.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Runs the command. Returns when no transaction is open; clients go on by a task of its own.
///
/// # Errors
/// There is no such database, it is paused, or its servers are not looked at: nothing has changed.
/// Transactions are still open: clients go on when another server is the primary all the same.
pub async fn switchover(pooler: &Arc<dyn Pooler>, database: &str) -> Result<Tag, ClientError> {
    known(pooler.as_ref(), database, "switch over")?;
    let Some(within) = bound(pooler.as_ref(), database) else {
        let message = format!("the servers of database {database} are not watched for a primary");
        return Err(ClientError::error(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message).hint(
            "Set target_session_attrs to primary or read-write and server_probe_interval to a time, \
             or use PAUSE and RESUME.",
        ));
    };
    if pooler.gates().is_paused(database) {
        let message = format!("database {database} is paused already");
        return Err(ClientError::error(SqlState::CANNOT_CONNECT_NOW, message)
            .hint("RESUME ends the pause."));
    }
    let old = primary(pooler.as_ref(), database);
    let pause = Command::Pause(Some(database.to_owned()));
    let mut paused = pin!(execute(pooler.as_ref(), &pause));
    // Its first step refuses what is wrong, or pauses: from there on the pause has an end.
    let first = timeout(Duration::ZERO, &mut paused).await;
    if let Ok(Err(refused)) = first {
        return Err(refused);
    }
    tokio::spawn(resume_when_over(pooler.clone(), database.to_owned(), old, within));
    let done = match first {
        Ok(done) => Ok(done),
        Err(_) => timeout(TRANSACTIONS_MAX.min(within), paused).await,
    };
    let Ok(done) = done else {
        let message = format!("transactions of database {database} are still open");
        return Err(ClientError::error(SqlState::OBJECT_IN_USE, message)
            .detail("They fail when the server stops. All other clients wait for the new primary.")
            .hint("SHOW CLIENTS and SHOW PINS name the clients that have a server connection."));
    };
    done.map(|_| "SWITCHOVER".to_owned())
}

/// How long clients may wait for another primary; `None`: the servers are not looked at.
fn bound(pooler: &dyn Pooler, database: &str) -> Option<Duration> {
    let config = pooler.config();
    let settings = config.database(database)?;
    let wants = settings.target_session_attrs;
    let looked_at = config.reload.servers.server_probe_interval.get().is_some()
        && matches!(wants, TargetSessionAttrs::Primary | TargetSessionAttrs::ReadWrite);
    // Half: those that waited before get their turn before they are refused.
    let patience =
        settings.inherited.timeouts.query_wait_timeout.get().map_or(CLIENTS_MAX, |all| all / 2);
    looked_at.then(|| patience.min(CLIENTS_MAX))
}

/// The server that takes writes, by what was seen last.
fn primary(pooler: &dyn Pooler, database: &str) -> Option<String> {
    let config = pooler.config();
    let entry = &config.database(database)?.name; // "*" stands for many
    let rows = pooler.servers().into_iter().filter(|row| row.database == *entry);
    let mut primaries =
        rows.filter(|row| row.role == Some(ServerRole::Primary) && row.state.is_up() == Some(true));
    primaries.next().map(|row| row.server)
}

/// Resumes the database when a server has become its primary after `old` has ceased to be, or after
/// `within`.
async fn resume_when_over(
    pooler: Arc<dyn Pooler>,
    database: String,
    old: Option<String>,
    within: Duration,
) {
    let _looked_at_often = pooler.gates().begin_switchover();
    let begun = Instant::now();
    let mut gone = old.is_none();
    let new = loop {
        sleep(LOOK_EVERY).await;
        if !pooler.gates().is_paused(&database) {
            return; // an operator has ended it
        }
        let now = primary(pooler.as_ref(), &database);
        gone |= now != old;
        match now {
            Some(server) if gone => break Some(server),
            _ if begun.elapsed() >= within => break None,
            _ => {}
        }
    };
    let seconds = begun.elapsed().as_secs_f32();
    match &new {
        Some(server) => tracing::info!(database, %server, seconds, "switchover: clients continue"),
        None => tracing::warn!(
            database,
            seconds,
            "switchover: no other server has become the primary; clients continue"
        ),
    }
    let resume = Command::Resume(Some(database.clone()));
    if let Err(error) = execute(pooler.as_ref(), &resume).await {
        tracing::warn!(database, error = error.message, "switchover: RESUME failed");
    }
}
