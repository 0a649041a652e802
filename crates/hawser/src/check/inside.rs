//! Whether a database's server can serve clients itself, where the configuration has that.
//!
//! # Limits      `hawser.control_sockets` can be read by superusers only: what is wrong there the log of
//!               `serve` says. Limits of single users are not looked at

use tokio::time::timeout;

use super::asker::{Asker, Asking, Found, silent};
use super::{Grade, SERVER_WAIT};
use crate::config::{Config, DatabaseConfig};

/// Why not, by the server; NULL: nothing is against it.
const WHY_NOT: &str = r"
    SELECT CASE
        WHEN pg_catalog.current_setting('hawser.inside', true) IS NULL
            THEN 'the server has no hawser in shared_preload_libraries'
        WHEN NOT pg_catalog.current_setting('hawser.inside')::pg_catalog.bool
            THEN 'the server has hawser.inside = off'
        WHEN pg_catalog.to_regprocedure('hawser.serve_inside(pg_catalog.text, pg_catalog.text)') IS NULL
            THEN 'the database has no extension: CREATE EXTENSION hawser'
        WHEN pg_catalog.current_setting('idle_session_timeout') OPERATOR(pg_catalog.<>) '0'
            THEN 'the role has an idle_session_timeout, which would end sessions that serve clients: set it to 0'
    END";

/// Asks it.
pub(super) async fn look(asking: &Asking<'_>, database: &DatabaseConfig) -> Option<Found> {
    if database.inside_size == 0 {
        return None;
    }
    if database.is_any() {
        let text = "database \"*\": not checked whether servers can serve clients themselves: \
                    that depends on the database";
        return Some((Grade::Note, text.to_owned()));
    }
    let name = &database.name;
    let against = by_configuration(asking.config, database);
    let asked = async {
        match against {
            Some(reason) => Some(reason),
            None => by_server(asking, database).await,
        }
    };
    Some(match timeout(SERVER_WAIT, asked).await {
        Ok(None) => {
            (Grade::Ok, format!("database \"{name}\": its server can serve clients itself"))
        }
        Ok(Some(reason)) => {
            let text = format!("database \"{name}\": clients are not served inside: {reason}");
            (Grade::Warning, text)
        }
        Err(_) => silent(database),
    })
}

/// What this configuration has against it.
fn by_configuration(config: &Config, database: &DatabaseConfig) -> Option<String> {
    let limits = &config.reload.timeouts;
    let times = [
        ("client_idle_timeout", limits.client_idle_timeout),
        ("idle_transaction_timeout", limits.idle_transaction_timeout),
        ("pin_timeout", limits.pin_timeout),
        ("transaction_timeout", limits.transaction_timeout),
        ("query_timeout", limits.query_timeout),
        ("log_min_duration", config.reload.log.log_min_duration),
    ];
    let set = times.into_iter().find(|(_, time)| time.get().is_some());
    if let Some((setting, _)) = set {
        return Some(format!("`{setting}` is for clients outside only: set it to 0"));
    }
    database.is_shared_by_users().then(|| "users share its server connections".to_owned())
}

async fn by_server(asking: &Asking<'_>, database: &DatabaseConfig) -> Option<String> {
    let Some(asker) = Asker::any(asking, database) else {
        return Some("no user has a password to try it with".to_owned());
    };
    let mut talk = match asker.dial().await {
        Ok(dialled) => dialled.talk,
        Err(error) => return Some(error.to_string()),
    };
    let answer = talk.query(WHY_NOT).await;
    talk.terminate().await;
    match answer {
        Ok(answer) => {
            let reason = answer.rows.first()?.first()?.as_deref()?;
            Some(String::from_utf8_lossy(reason).into_owned())
        }
        Err(error) => Some(error.to_string()),
    }
}
