//! Why reading a client's bytes stops.

use crate::relay::limits;
use crate::wire::error::{ClientError, SqlState};

/// Why reading a client's bytes stops.
#[derive(Debug)]
pub(crate) enum Halt {
    /// Everything that is complete has been passed on.
    Dry,
    /// It waits for a backend.
    Waiting,
    /// It waits for answers: too much is outstanding, or its message depends on them.
    Full,
    /// It has sent Terminate.
    Terminate,
    /// It broke the protocol, or a limit.
    Refused(ClientError),
    /// The backend's connection failed.
    BackendLost(&'static str),
}

/// A client has made more noted portals or statements than it may.
#[derive(Debug)]
pub(crate) struct TooManyPortals;

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
