//! SWITCHOVER: a pause of a database that ends by itself when another server is its primary.
//!
//! # Model
//! ```text
//!   PAUSE ──no transaction is open──► answered ──the primary is no longer one, and another is──► RESUME
//! ```
//! A cluster manager runs it before it stops the primary, and waits for the answer (Patroni's
//! `before_stop`). It holds up neither the manager nor the clients for ever: both waits are bounded.
//! Servers are looked at more often meanwhile ([`Gates::begin_switchover`](crate::gates::Gates::begin_switchover)).

use std::sync::Arc;
use std::time::Duration;

use hawser_pooler::wire::error::{ClientError, SqlState};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::command::Command;
use super::execute::{Tag, execute, known};
use super::pooler::Pooler;
use crate::config::TargetSessionAttrs;
use crate::dial::server_row::{ServerRole, ServerRow};

/// How long open transactions are waited for.
const TRANSACTIONS_MAX: Duration = Duration::from_secs(10);
/// How long clients wait for another primary, if `query_wait_timeout` does not end it earlier.
const CLIENTS_MAX: Duration = Duration::from_secs(60);
/// How long the primary may give no answer before it counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(1);
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
    let (answer, answered) = oneshot::channel();
    // A task of its own: the pause has an end, even if the console has none of it any more.
    tokio::spawn(pause_until_over(pooler.clone(), database.to_owned(), within, answer));
    match answered.await {
        Ok(Paused::Complete) => Ok("SWITCHOVER".to_owned()),
        Ok(Paused::Refused(error)) => Err(error),
        Ok(Paused::TransactionsOpen) | Err(_) => {
            let message = format!("transactions of database {database} are still open");
            Err(ClientError::error(SqlState::OBJECT_IN_USE, message)
                .detail(
                    "They fail when the server stops. All other clients wait for the new primary.",
                )
                .hint("SHOW CLIENTS and SHOW PINS name the clients that have a server connection."))
        }
    }
}

/// What became of the pause.
enum Paused {
    Complete,
    /// Transactions are open; no other one begins.
    TransactionsOpen,
    /// It is not this command's, or has ended already.
    Refused(ClientError),
}

/// Pauses the database, says so, and resumes it when another server is its primary.
async fn pause_until_over(
    pooler: Arc<dyn Pooler>,
    database: String,
    within: Duration,
    answer: oneshot::Sender<Paused>,
) {
    let begun = Instant::now();
    let _looked_at_often = pooler.gates().begin_switchover();
    let old = last_primary(&rows(pooler.as_ref(), &database));
    let pause = Command::Pause(Some(database.clone()));
    let paused = timeout(TRANSACTIONS_MAX.min(within), execute(pooler.as_ref(), &pause)).await;
    let paused = match paused {
        Ok(Ok(_)) => Paused::Complete,
        Ok(Err(error)) => Paused::Refused(error),
        Err(_) => Paused::TransactionsOpen,
    };
    let is_refused = matches!(paused, Paused::Refused(_));
    let _ = answer.send(paused); // nobody waits for it if the console has gone
    if !is_refused {
        resume_when_over(pooler.as_ref(), &database, old, begun, within).await;
    }
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

/// The servers of the database, as they were seen last.
fn rows(pooler: &dyn Pooler, database: &str) -> Vec<ServerRow> {
    let config = pooler.config();
    let Some(entry) = config.database(database).map(|settings| &settings.name) else {
        return Vec::new();
    };
    // By the entry's name: "*" stands for many databases.
    pooler.servers().into_iter().filter(|row| row.database == *entry).collect()
}

/// The server that takes writes; of several, one that answers.
fn last_primary(rows: &[ServerRow]) -> Option<String> {
    let primaries = rows.iter().filter(|row| row.role == Some(ServerRole::Primary));
    primaries.max_by_key(|row| is_up(row)).map(|row| row.server.clone())
}

fn is_up(row: &ServerRow) -> bool {
    row.state.is_up() == Some(true)
}

/// What has been seen of the server that was the primary.
struct Former {
    server: Option<String>,
    answered: Instant,
    /// It has ceased to be the primary, though it may be one again: another host may have its address.
    ceased: bool,
}

impl Former {
    fn new(server: Option<String>, now: Instant) -> Self {
        Self { ceased: server.is_none(), answered: now, server }
    }

    /// The primary that clients can go on with.
    fn successor(&mut self, rows: &[ServerRow], now: Instant) -> Option<String> {
        let is_former = |row: &&ServerRow| Some(&row.server) == self.server.as_ref();
        let former = rows.iter().find(is_former);
        let former = former.filter(|row| row.role == Some(ServerRole::Primary));
        let answers = former.is_some_and(is_up);
        if answers {
            self.answered = now;
        }
        // One that misses a look or two may just be busy.
        self.ceased |= former.is_none() || now - self.answered >= SILENCE_MAX;
        let mut primaries =
            rows.iter().filter(|row| row.role == Some(ServerRole::Primary) && is_up(row));
        match (self.ceased, answers) {
            (true, _) => primaries.next(),
            (false, true) => None,
            (false, false) => primaries.find(|row| !is_former(row)),
        }
        .map(|row| row.server.clone())
    }
}

/// Resumes the database when a server has become its primary after `old` has ceased to be, or when it has
/// been paused for `within`.
async fn resume_when_over(
    pooler: &dyn Pooler,
    database: &str,
    old: Option<String>,
    begun: Instant,
    within: Duration,
) {
    let mut former = Former::new(old, Instant::now());
    let new = loop {
        sleep(LOOK_EVERY).await;
        if !pooler.gates().is_paused(database) {
            return; // an operator has ended it
        }
        let new = former.successor(&rows(pooler, database), Instant::now());
        if new.is_some() || begun.elapsed() >= within {
            break new;
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
    let resume = Command::Resume(Some(database.to_owned()));
    if let Err(error) = execute(pooler, &resume).await {
        tracing::warn!(database, error = error.message, "switchover: RESUME failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::server_row::ServerState;

    fn row(server: &str, role: Option<ServerRole>, is_up: bool) -> ServerRow {
        let state = match is_up {
            true => ServerState::Up,
            false => ServerState::Down { reason: "it does not answer probes".into(), failures: 0 },
        };
        ServerRow { database: "app".to_owned(), server: server.to_owned(), state, role }
    }

    const PRIMARY: Option<ServerRole> = Some(ServerRole::Primary);
    const STANDBY: Option<ServerRole> = Some(ServerRole::Standby { lag: None });

    #[test]
    fn a_primary_that_misses_looks_is_no_successor_of_its_own() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut former = Former::new(Some("a".to_owned()), start);
        let busy = [row("a", PRIMARY, false), row("b", STANDBY, true)];
        let well = [row("a", PRIMARY, true), row("b", STANDBY, true)];
        for (now, rows) in [(25, &busy), (50, &well), (900, &busy), (925, &well)] {
            assert_eq!(former.successor(rows, at(now)), None, "after {now} ms");
        }
        // It is stopped, and another one takes its address.
        assert_eq!(former.successor(&busy, at(1_950)), None);
        assert_eq!(former.successor(&well, at(2_000)).as_deref(), Some("a"));
        assert_eq!(last_primary(&busy).as_deref(), Some("a"), "a switchover that begins now");
    }

    #[test]
    fn another_server_succeeds_a_primary_that_answers_no_more() {
        let start = Instant::now();
        for (first, second) in [("a", "b"), ("b", "a")] {
            let mut former = Former::new(Some(first.to_owned()), start);
            // Its last look is old: clients would be sent to it.
            let mut rows = [row(first, PRIMARY, true), row(second, PRIMARY, true)];
            rows.sort_by(|a, b| a.server.cmp(&b.server));
            assert_eq!(former.successor(&rows, start), None);
            let mut rows = [row(first, PRIMARY, false), row(second, PRIMARY, true)];
            rows.sort_by(|a, b| a.server.cmp(&b.server));
            assert_eq!(former.successor(&rows, start).as_deref(), Some(second));
        }
    }
}
