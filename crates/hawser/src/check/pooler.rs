//! Whether another pooler stands between Hawser and a database's server.
//!
//! # Model       [`crate::dial::state_kept`], as `serve` looks before a pool's first server connection
//! # Limits      session mode is never proved, so the finding stays a warning then. `"*"` and databases
//!               without a user to ask as are not looked into

use tokio::time::timeout;

use super::asker::{Asker, Asking, Found};
use super::{Grade, SERVER_WAIT};
use crate::config::{DatabaseConfig, Fidelity};
use crate::dial::state_kept;
use crate::dial::talk::TalkError;

/// Whether a pooler was found before a database that keeps session state.
pub(super) async fn look(asking: &Asking<'_>, database: &DatabaseConfig) -> Option<Found> {
    if database.is_any() || database.inherited.pool.fidelity == Fidelity::Classic {
        return None;
    }
    let name = &database.name;
    // Why a server cannot be asked is said with the census.
    match timeout(SERVER_WAIT, ask(asking, database)).await.ok()?.ok()?? {
        true => Some((
            Grade::Error,
            format!(
                "database \"{name}\": its server is another pooler in transaction mode, where \
                 clients get each other's session state, and `serve` refuses it: give `servers` the direct endpoint, or \
                 one in session mode, or set fidelity = \"classic\""
            ),
        )),
        false => Some((
            Grade::Warning,
            format!(
                "database \"{name}\": its server is another pooler: make sure that it is in \
                 session mode. In transaction mode clients get each other's session state: give \
                 `servers` the direct endpoint then, or set fidelity = \"classic\""
            ),
        )),
    }
}

/// `None`: no pooler, or no user to ask as. `Some(true)`: one in transaction mode.
async fn ask(asking: &Asking<'_>, database: &DatabaseConfig) -> Result<Option<bool>, String> {
    let Some(asker) = Asker::of(asking, database) else { return Ok(None) };
    let first = asker.dial().await.map_err(|error| error.to_string())?;
    let (announced, mut first) = (first.entered.process, first.talk);
    let kept = async {
        if !state_kept::is_served_by_another(&mut first, announced).await? {
            return Ok(None);
        }
        // A pooler with a single place lets no second connection in: that it is one is known all the same.
        let second = timeout(SERVER_WAIT / 4, asker.dial()).await;
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
