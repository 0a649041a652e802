//! Whether users can share the server connections of the databases that are configured so.

use std::sync::Arc;

use hawser_core::session::options::Replication;

use super::{Grade, SERVER_WAIT};
use crate::config::{Config, DatabaseConfig, Limit, ServerAddress};
use crate::dial::hand_over::{NotHandedOver, begin};
use crate::dial::{Dialler, Login};
use crate::limits::Limits;
use crate::login::access::Access;
use crate::pools::{self, Connectings};

use super::census::Found;

/// Tries each of them.
pub(super) async fn take(config: &Config, access: &Access) -> Vec<Found> {
    let Ok(connectings) = Connectings::load(config) else { return Vec::new() };
    let mut found = Vec::new();
    for database in config.databases().iter().filter(|database| database.is_shared_by_users()) {
        let name = &database.name;
        if database.is_any() {
            let text = "database \"*\": whether users can share server connections depends on the \
                        database, and was not tried";
            found.push((Grade::Ok, text.to_owned()));
            continue;
        }
        let tried =
            tokio::time::timeout(SERVER_WAIT, try_it(config, database, access, &connectings));
        found.push(match tried.await {
            Ok(Ok(())) => {
                (Grade::Ok, format!("database \"{name}\": users share its server connections"))
            }
            Ok(Err(reason)) => (
                Grade::Warning,
                format!("database \"{name}\": users cannot share server connections: {reason}"),
            ),
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
    let (Some(forced), Some(secret)) = (&database.forced_user, connectings.secret_of(database))
    else {
        return Err("it has no user".to_owned());
    };
    let login = Login {
        user: forced.name.clone(),
        database: database.dbname_for(&database.name).to_owned(),
        replication: Replication::None,
        parameters: Vec::new(),
        credentials: access.credentials_of(forced).map_err(|error| error.message)?,
    };
    let target = pools::target(config, database, connectings);
    let limits = Arc::new(Limits::default());
    let gate = |server: &ServerAddress| limits.address(server, Limit::NONE);
    let dialler = Dialler::default();
    let mut dialled =
        dialler.dial(&target, &login, &gate).await.map_err(|error| error.to_string())?;
    match begin(&mut dialled.talk, &dialled.entered, &login.user, &secret).await {
        Ok(_) => {
            dialled.talk.terminate().await;
            Ok(())
        }
        Err(NotHandedOver::Because(reason)) => Err(reason),
        Err(NotHandedOver::Talk(error)) => Err(error.to_string()),
    }
}
