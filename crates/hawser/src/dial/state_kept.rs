//! Whether what stands at a server's address keeps the state of a session between transactions, as
//! PostgreSQL does, and a pooler in transaction mode does not.
//!
//! # Model
//! BackendKeyData of a server names the process that `pg_backend_pid()` gives in each transaction.
//! Where they differ, a pooler invented the first, or took it from one of its servers. Then one
//! connection sets a custom setting, and a second one looks for it in a transaction, which keeps the
//! server process that it has got: state is mixed if the second one finds it, and lost if the first
//! one does not.
//!
//! # Limits
//! A pooler in transaction mode that gives each of the two a process of its own each time passes.

use super::talk::{Talk, TalkError};
use crate::process::random_u64;

/// How often the first connection looks again: a pooler may take its servers in turn.
const LOOKS: usize = 5;

/// So many transactions are looked at: a pooler may announce the server that it uses first.
const TRANSACTIONS: usize = 2;

/// Whether another process than the announced one serves one of the connection's next transactions.
/// (0: none was announced, and nothing is known.)
///
/// # Errors
/// The server refuses the question, or the connection ends.
pub async fn is_served_by_another(talk: &mut Talk, announced: u32) -> Result<bool, TalkError> {
    for _ in 0..TRANSACTIONS {
        let answer = talk.query_with("SELECT pg_catalog.pg_backend_pid()", &[]).await?;
        let process = answer.single().and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        if announced != 0 && process.is_some_and(|process: u32| process != announced) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a setting of the `first` connection stays there, and is not the `second` one's.
///
/// # Errors
/// As above.
pub async fn is_state_kept(first: &mut Talk, second: &mut Talk) -> Result<bool, TalkError> {
    const LOOK: &str = "SELECT pg_catalog.current_setting('hawser_probe.of', true)";
    let mark = random_u64().to_string();
    first
        .query(&format!("SELECT pg_catalog.set_config('hawser_probe.of', '{mark}', false)"))
        .await?;
    second.run("BEGIN").await?;
    let sees = |answer: super::talk::Answer| answer.single() == Some(mark.as_bytes());
    let mixed = sees(second.query(LOOK).await?);
    let mut kept = true;
    for _ in 0..LOOKS {
        kept &= sees(first.query(LOOK).await?);
    }
    second.run("ROLLBACK").await?;
    if kept && !mixed {
        first.run("RESET hawser_probe.of").await?;
    }
    Ok(kept && !mixed)
}
