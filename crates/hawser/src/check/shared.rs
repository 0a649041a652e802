//! Whether server connections can be handed over to clients, where the configuration has that: of all
//! users, who share them, or of their own one.

use super::asker::Asker;
use super::census::Found;
use super::{Grade, SERVER_WAIT};
use crate::auth::access::Access;
use crate::config::{Config, DatabaseConfig};
use crate::dial::hand_over::{NotHandedOver, begin};
use crate::pools::Connectings;

/// Tries each of them.
pub(super) async fn take(config: &Config, access: &Access) -> Vec<Found> {
    let Ok(connectings) = Connectings::load(config) else { return Vec::new() };
    let mut found = Vec::new();
    for database in config.databases() {
        if database.hand_over_secret_file.is_none() {
            continue;
        }
        let name = &database.name;
        let (can, cannot) = if database.is_shared_by_users() {
            ("users share its server connections", "users cannot share server connections")
        } else {
            ("its server is told of each client", "the server cannot be told of clients")
        };
        if database.is_any() {
            let text = "database \"*\": whether server connections can be handed over to clients \
                        depends on the database, and was not tried";
            found.push((Grade::Ok, text.to_owned()));
            continue;
        }
        let tried =
            tokio::time::timeout(SERVER_WAIT, try_it(config, database, access, &connectings));
        found.push(match tried.await {
            Ok(Ok(())) => (Grade::Ok, format!("database \"{name}\": {can}")),
            Ok(Err(reason)) => (Grade::Warning, format!("database \"{name}\": {cannot}: {reason}")),
            Err(_) => (
                Grade::Warning,
                format!("database \"{name}\" did not answer within {} s", SERVER_WAIT.as_secs()),
            ),
        });
    }
    found
}

async fn try_it(
    config: &Config,
    database: &DatabaseConfig,
    access: &Access,
    connectings: &Connectings,
) -> Result<(), String> {
    let Some(secret) = connectings.secret_of(database) else {
        return Err("it has no secret".to_owned());
    };
    let Some(asker) = Asker::of(config, database, access, connectings) else {
        return Err("there is no `user` or `auth_user` to try it as".to_owned());
    };
    let mut dialled = asker.dial().await.map_err(|error| error.to_string())?;
    let user = database.is_shared_by_users().then_some(asker.user());
    match begin(&mut dialled.talk, &dialled.entered, user, &secret).await {
        Ok(_) => {
            dialled.talk.terminate().await;
            Ok(())
        }
        Err(NotHandedOver::Because(reason)) => Err(reason),
        Err(NotHandedOver::Talk(error)) => Err(error.to_string()),
    }
}
