//! Where the process is between its start and its end.

use hawser_pooler::wire::error::{ClientError, SqlState};

/// The phase of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// It takes clients.
    Serving,
    /// It accepts no clients; open transactions end.
    Draining,
    /// It ends now.
    Ending,
}

/// Which process clients connect to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Standing {
    /// The predecessor: this one is about to start.
    Starting,
    /// This one.
    #[default]
    Serving,
    /// The successor, which has this process id.
    Given(u32),
}

impl Standing {
    /// Whether clients connect to this process.
    pub fn serves(&self) -> bool {
        *self == Self::Serving
    }
}

/// The error for clients when the process ends.
pub fn shutdown_error() -> ClientError {
    ClientError::fatal(
        SqlState::ADMIN_SHUTDOWN,
        "terminating connection because the pooler is shutting down",
    )
}
