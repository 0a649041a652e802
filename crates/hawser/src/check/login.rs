//! Whether servers let in a user whose password is known, and have places for what the pools may open.
//!
//! # Model       one login a database, at the first of its servers that can be used. Places: each pool at its
//!               largest, of one user a database, for those with the same list of servers; the settings that
//!               bound them count
//! # Limits      other users, and what else uses the server, are not known: what is said is the least

use hawser_pooler::wire::error::SqlState;
use tokio::time::timeout;

use super::asker::{Asker, Asking, Found};
use super::{Grade, SERVER_WAIT};
use crate::auth::access::Access;
use crate::config::{Config, DatabaseConfig, Limit, ServerAddress};
use crate::dial::DialError;
use crate::pools::Connectings;

/// What a server has for the user who asks: places in all, those that are kept for others, and the role's own limit.
const PLACES: &str = r"
    SELECT pg_catalog.current_setting('max_connections'),
           pg_catalog.current_setting('superuser_reserved_connections')::pg_catalog.int4
               OPERATOR(pg_catalog.+) COALESCE(pg_catalog.current_setting('reserved_connections', true)::pg_catalog.int4, 0),
           (SELECT rolconnlimit FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) CURRENT_USER)";

/// Logs in to a database; false: it lets the user not in. The places of each list of servers are
/// counted once: those of `counted` are done.
pub(super) async fn look<'a>(
    asking: &Asking<'a>,
    database: &'a DatabaseConfig,
    counted: &mut Vec<&'a [ServerAddress]>,
    found: &mut Vec<Found>,
) -> bool {
    let Some(asker) = Asker::any(asking, database) else { return true };
    let (name, user) = (&database.name, asker.user());
    match timeout(SERVER_WAIT, places(&asker)).await {
        Ok(Ok((server, places))) => {
            found.push((Grade::Ok, format!("user \"{user}\" can log in to {server}")));
            let Some(places) = places else { return true };
            found.extend(places.of_role(database, user));
            if !counted.contains(&&*database.servers) {
                counted.push(&database.servers);
                found.extend(places.of_server(asking.config, &database.servers, &server));
            }
        }
        Ok(Err(error)) => {
            if let Some(reason) = reason(&error) {
                let text = format!("database \"{name}\": user \"{user}\" cannot log in: {reason}");
                found.push((Grade::Warning, text));
                return false;
            }
        }
        // A server that does not answer is named elsewhere.
        Err(_) => {}
    }
    true
}

/// Says in the log why the server of a URL lets its user not in, or does not answer.
pub(crate) fn warn(config: &Config) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (Ok(runtime), Ok(access)) = (runtime, Access::load(config)) else { return };
    let Ok(connectings) = Connectings::load(config) else { return };
    let asking = Asking { config, access: &access, connectings: &connectings };
    for database in config.databases() {
        let Some(asker) = Asker::any(&asking, database) else { continue };
        let user = asker.user();
        let trying = async { timeout(SERVER_WAIT, places(&asker)).await };
        let tried = runtime.block_on(trying);
        if let Ok(Err(error)) = tried {
            let reason = reason(&error).unwrap_or_else(|| error.to_string());
            tracing::warn!(
                user,
                "the server cannot be used, and clients will get errors: {reason}"
            );
        }
    }
}

/// The server that has let the user in, and its places, unless they cannot be asked for.
async fn places(asker: &Asker) -> Result<(String, Option<Places>), DialError> {
    let mut dialled = match asker.dial().await {
        Ok(dialled) => dialled,
        // The password has been taken: what follows is another database's affair, or a privilege's.
        Err(DialError::Refused { server, error })
            if matches!(&error.code.0, b"3D000" | b"42501") =>
        {
            return Ok((server, None));
        }
        Err(error) => return Err(error),
    };
    let server = asker.server(&dialled);
    let answer = dialled.talk.query(PLACES).await.ok();
    dialled.talk.terminate().await;
    let number = |at: usize| {
        let text = answer.as_ref()?.rows.first()?.get(at)?.as_deref()?;
        std::str::from_utf8(text).ok()?.parse::<i64>().ok()
    };
    let found = || {
        let (all, kept) = (number(0)?, number(1)?);
        Some(Places { all, kept, role: number(2).filter(|limit| *limit >= 0) })
    };
    Ok((server, found()))
}

/// Why a user was not let in, and what to do; `None`: the server was not reached.
pub(super) fn reason(error: &DialError) -> Option<String> {
    let advice = match error {
        DialError::Refused { error, .. } if error.code == SqlState(*b"28P01") => {
            "the password is wrong, or there is no such role"
        }
        DialError::Refused { error, .. } if error.code == SqlState::INVALID_AUTHORIZATION => {
            let message = error.message.to_lowercase();
            if message.contains("pg_hba.conf") {
                "no line of the server's pg_hba.conf admits it from this address"
            } else if message.contains("peer") || message.contains("ident") {
                "not a wrong password: the server's pg_hba.conf has `peer` or `ident` for this address, \
                 which compares the operating system's user. Set servers = [\"127.0.0.1:5432\"], or \
                 put a line with scram-sha-256 before that line"
            } else {
                "the role does not exist, or may not log in"
            }
        }
        DialError::Refused { .. } | DialError::Authentication { .. } => "see the server's log",
        DialError::Password { .. } => "give the user a password",
        DialError::Tls { .. } => {
            "server_tls_sslmode asks for TLS that this server does not give: see docs/security.md, TLS"
        }
        _ => return None,
    };
    Some(format!("{error} ({advice})"))
}

/// Connections of a server.
struct Places {
    all: i64,
    /// For superusers and the like.
    kept: i64,
    /// Of the role that asks.
    role: Option<i64>,
}

impl Places {
    fn of_server(&self, config: &Config, servers: &[ServerAddress], server: &str) -> Option<Found> {
        let limits = &config.reload.limits;
        let same = config.databases().iter().filter(|database| database.servers == servers);
        let pools: i64 = same.map(largest).sum();
        let bounds = [limits.max_server_connections, limits.max_server_connections_per_server];
        let pools = bounds.into_iter().filter_map(Limit::get).map(i64::from).fold(pools, i64::min);
        let (all, kept) = (self.all, self.kept);
        let text = format!(
            "server {server} has max_connections = {all}, of which {kept} are reserved, and the pools may open \
             {pools} with one user for each database, reserves and Hawser's own connections included"
        );
        Some(if pools > all - kept {
            let advice = "set max_server_connections_per_server, or smaller pools";
            (Grade::Warning, format!("{text}: {advice}"))
        } else {
            (Grade::Ok, text)
        })
    }

    fn of_role(&self, database: &DatabaseConfig, user: &str) -> Option<Found> {
        let limit = self.role.filter(|limit| *limit < largest(database))?;
        let (name, pools) = (&database.name, largest(database));
        let text = format!(
            "database \"{name}\": role \"{user}\" may have {limit} connections (CONNECTION LIMIT), and \
             its pool may open {pools}, reserves and Hawser's own connection included"
        );
        Some((Grade::Warning, text))
    }
}

/// Asks for each pool whether functions and start values have changed: docs/decisions/0018.
const QUESTIONS: u32 = 1;

/// What one user's pool may open.
fn largest(database: &DatabaseConfig) -> i64 {
    let (pool, idle) = (&database.inherited.pool, database.inherited.idle_transaction_reserve());
    let parts = [pool.pool_size, pool.reserve_pool_size, idle, pool.lock_wait_reserve, QUESTIONS];
    let sum = parts.into_iter().map(i64::from).sum();
    database.inherited.limits.max_db_connections.get().map_or(sum, |most| sum.min(most.into()))
}
