//! Whether another pooler stands between Hawser and a database's server.
//!
//! # Model       a server's BackendKeyData names the process that `pg_backend_pid()` gives. Where they
//!               differ, a pooler invented the first. A second connection then holds a transaction while
//!               the first asks again: a connection that changes its process, or shares it with the
//!               other one, is in transaction mode for certain
//! # Limits      a pooler in transaction mode with many idle server connections may give each of the two
//!               its own: session mode is never concluded, so the finding stays a warning. `"*"` and
//!               databases without a user to ask as are not looked into

use std::sync::Arc;

use hawser_core::session::options::Replication;

use super::census::{Found, user_of};
use super::{Grade, SERVER_WAIT};
use crate::config::{Config, DatabaseConfig, Fidelity, Limit, ServerAddress};
use crate::dial::talk::Talk;
use crate::dial::{Dialler, Login};
use crate::limits::Limits;
use crate::login::access::Access;
use crate::pools::{self, Connectings};

/// Says of each database that keeps session state whether a pooler was found before it.
pub(super) async fn take(config: &Config, access: &Access) -> Vec<Found> {
    let Ok(connectings) = Connectings::load(config) else { return Vec::new() };
    let mut found = Vec::new();
    for database in config.databases() {
        if database.is_any() || database.fidelity == Fidelity::Classic {
            continue;
        }
        let asked =
            tokio::time::timeout(SERVER_WAIT, ask(config, database, access, &connectings)).await;
        let name = &database.name;
        match asked {
            Ok(Ok(Some(true))) => found.push((
                Grade::Warning,
                format!(
                    "database \"{name}\": its server is another pooler in transaction mode, where \
                     clients get each other's session state: give `servers` the direct endpoint, or \
                     one in session mode, or set fidelity = \"classic\""
                ),
            )),
            Ok(Ok(Some(false))) => found.push((
                Grade::Warning,
                format!(
                    "database \"{name}\": its server is another pooler: make sure that it is in \
                     session mode. In transaction mode clients get each other's session state: give \
                     `servers` the direct endpoint then, or set fidelity = \"classic\""
                ),
            )),
            // Why a server cannot be asked is said with the census.
            Ok(Ok(None) | Err(_)) | Err(_) => {}
        }
    }
    found
}

/// `None`: no pooler, or no user to ask as. `Some(true)`: one in transaction mode.
async fn ask(
    config: &Config,
    database: &DatabaseConfig,
    access: &Access,
    connectings: &Connectings,
) -> Result<Option<bool>, String> {
    let Some((user, credentials)) = user_of(config, database, access) else { return Ok(None) };
    let login = Login {
        user,
        database: database.dbname_for(&database.name).to_owned(),
        replication: Replication::None,
        parameters: Vec::new(),
        start: Vec::new(),
        credentials,
    };
    let target = pools::target(config, database, &login.user, connectings);
    let limits = Arc::new(Limits::default());
    let gate = |server: &ServerAddress| limits.address(server, Limit::NONE);
    let dialler = Dialler::default();
    let text = |error: crate::dial::DialError| error.to_string();
    let first = dialler.dial(&target, &login, &gate).await.map_err(text)?;
    let (announced, mut first) = (first.entered.process, first.talk);
    let process = process_of(&mut first).await?;
    if process == announced.to_string() {
        first.terminate().await;
        return Ok(None);
    }
    // A pooler with a single place lets no second connection in: that it is one is known all the same.
    let second = dialler.dial(&target, &login, &gate);
    let second = tokio::time::timeout(SERVER_WAIT / 4, second).await;
    let Ok(Ok(second)) = second else { return Ok(Some(false)) };
    let mut second = second.talk;
    let shares = tokio::time::timeout(SERVER_WAIT / 4, async {
        second.run("BEGIN").await.map_err(|error| error.to_string())?;
        let other = process_of(&mut second).await?;
        Ok::<_, String>(other == process || process_of(&mut first).await? != process)
    });
    let shares = shares.await.is_ok_and(|shares| shares == Ok(true));
    first.terminate().await;
    second.terminate().await;
    Ok(Some(shares))
}

/// The process that serves the next transaction of the connection.
async fn process_of(talk: &mut Talk) -> Result<String, String> {
    let answer = talk.query("SELECT pg_catalog.pg_backend_pid()").await;
    let answer = answer.map_err(|error| error.to_string())?;
    let process = answer.single().ok_or("no answer to pg_backend_pid()")?;
    Ok(String::from_utf8_lossy(process).into_owned())
}
