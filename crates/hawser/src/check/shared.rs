//! Whether server connections can be handed over to clients, where the configuration has that: of all
//! users, who share them, or of their own one.

use tokio::time::timeout;

use super::asker::{Asker, Asking, Found, silent};
use super::{Grade, SERVER_WAIT};
use crate::config::DatabaseConfig;
use crate::dial::hand_over::{NotHandedOver, begin};

/// Tries it.
pub(super) async fn look(asking: &Asking<'_>, database: &DatabaseConfig) -> Option<Found> {
    database.hand_over_secret_file.as_ref()?;
    if database.is_any() {
        let text = "database \"*\": not checked whether server connections can be handed over to \
                    clients: that depends on the database";
        return Some((Grade::Note, text.to_owned()));
    }
    let name = &database.name;
    let (can, cannot) = if database.is_shared_by_users() {
        ("users share its server connections", "users cannot share server connections")
    } else {
        ("its server learns who each client is", "the server cannot learn who clients are")
    };
    Some(match timeout(SERVER_WAIT, try_it(asking, database)).await {
        Ok(Ok(())) => (Grade::Ok, format!("database \"{name}\": {can}")),
        Ok(Err(reason)) => (Grade::Warning, format!("database \"{name}\": {cannot}: {reason}")),
        Err(_) => silent(database),
    })
}

async fn try_it(asking: &Asking<'_>, database: &DatabaseConfig) -> Result<(), String> {
    let Some(secret) = asking.connectings.secret_of(database) else {
        return Err("there is no secret".to_owned());
    };
    let Some(asker) = Asker::of(asking, database) else {
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
