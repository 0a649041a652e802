//! Whether `auth_query` can look users up.
//!
//! # Model       it is asked about `auth_user` itself, which exists
//! # Limits      without `auth_dbname`, an entry "*" has it run in the database that each client asks for: one
//!               that every server has is tried, which need not have the function

use tokio::time::timeout;

use super::asker::{Asker, Asking, Found, silent};
use super::login::reason;
use super::{Grade, SERVER_WAIT};
use crate::config::DatabaseConfig;
use crate::pools::enquiry::read_secret;

/// Tries it.
pub(super) async fn look(asking: &Asking<'_>, database: &DatabaseConfig) -> Option<Found> {
    let asker = Asker::looking_up(asking, database)?;
    let auth = &database.inherited.auth;
    let is_guess = database.is_any() && auth.auth_dbname.is_none();
    let (name, within, user) = (&database.name, asker.database(), asker.user());
    Some(match timeout(SERVER_WAIT, ask(&asker, &auth.auth_query)).await {
        Ok(Ok(())) => {
            let text = format!("auth_query works in database \"{within}\" as user \"{user}\"");
            (Grade::Ok, text)
        }
        Ok(Err(why)) if is_guess => {
            let text = format!(
                "database \"{name}\": auth_query runs in the database that each client asks for, unless \
                 auth_dbname names one; in \"{within}\" it fails: {why}"
            );
            (Grade::Note, text)
        }
        Ok(Err(why)) => {
            let text = format!(
                "database \"{name}\": auth_query fails in database \"{within}\" as user \"{user}\", and users \
                 of the server cannot log in: {why}"
            );
            (Grade::Warning, text)
        }
        Err(_) => silent(database),
    })
}

async fn ask(asker: &Asker, auth_query: &str) -> Result<(), String> {
    let dialled = asker.dial().await;
    let mut talk =
        dialled.map_err(|error| reason(&error).unwrap_or_else(|| error.to_string()))?.talk;
    let answer = talk.query_with(auth_query, &[asker.user().as_bytes()]).await;
    talk.terminate().await;
    read_secret(&answer.map_err(|error| error.to_string())?, asker.user()).map(drop)
}
