//! Why a client's bytes are not read on.

use super::limits;
use crate::wire::error::{ClientError, SqlState};

/// Why a client's bytes are not read on.
#[derive(Debug)]
pub(super) enum Halt {
    /// All that is complete has been passed on.
    Dry,
    /// It waits for a backend.
    Waiting,
    /// Enough is outstanding: on when answers have come.
    Full,
    /// It has said goodbye.
    Terminate,
    /// It broke the protocol, or a limit.
    Refused(ClientError),
    /// The backend's connection failed.
    BackendLost(&'static str),
}

/// A client has made more portals or statements than it may of those that are noted.
#[derive(Debug)]
pub(super) struct TooManyPortals;

impl From<TooManyPortals> for Halt {
    fn from(_: TooManyPortals) -> Self {
        let error = ClientError::fatal(
            SqlState::CONFIGURATION_LIMIT_EXCEEDED,
            format!(
                "more than {} portals of RESET, DISCARD or DEALLOCATE in one transaction",
                limits::UNUSUAL_PORTALS_MAX
            ),
        );
        Self::Refused(error)
    }
}

/// A client has named more statements than it may.
#[derive(Debug)]
pub(super) struct TooManyStatements;

impl From<TooManyStatements> for Halt {
    fn from(_: TooManyStatements) -> Self {
        let error = ClientError::fatal(
            SqlState::CONFIGURATION_LIMIT_EXCEEDED,
            format!(
                "more than {} prepared statements in one session",
                limits::CLIENT_STATEMENTS_MAX
            ),
        );
        Self::Refused(error.hint("Close the statements that are no longer needed."))
    }
}
