//! Whether another pooler stands between Hawser and a database's server.
//!
//! # Model       [`crate::dial::state_kept`], as `serve` looks before a pool's first server connection
//! # Limits      session mode is never proved, so the finding stays a warning then. `"*"` and databases
//!               without a user to ask as are not looked into

use super::asker::Asker;
use super::census::Found;
use super::{Grade, SERVER_WAIT};
use crate::auth::access::Access;
use crate::config::{Config, DatabaseConfig, Fidelity};
use crate::dial::state_kept;
use crate::dial::talk::TalkError;
use crate::pools::Connectings;

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
                Grade::Error,
                format!(
                    "database \"{name}\": its server is another pooler in transaction mode, where \
                     clients get each other's session state, and `serve` refuses it: give `servers` the direct endpoint, or \
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
    let Some(asker) = Asker::of(config, database, access, connectings) else { return Ok(None) };
    let first = asker.dial().await.map_err(|error| error.to_string())?;
    let (announced, mut first) = (first.entered.process, first.talk);
    let kept = async {
        let process = state_kept::process_of(&mut first).await?;
        if process.is_none_or(|process| process == announced) {
            return Ok(None);
        }
        // A pooler with a single place lets no second connection in: that it is one is known all the same.
        let second = tokio::time::timeout(SERVER_WAIT / 4, asker.dial()).await;
        let Ok(Ok(second)) = second else { return Ok(Some(false)) };
        let mut second = second.talk;
        let kept = state_kept::is_state_kept(&mut first, &mut second).await?;
        second.terminate().await;
        Ok::<_, TalkError>(Some(!kept))
    };
    let mixes = kept.await.map_err(|error| error.to_string())?;
    first.terminate().await;
    Ok(mixes)
}
