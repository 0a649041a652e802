//! What can be made to go wrong with one connection.

use super::error::PgError;

/// A fault, which takes effect when it is injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks, as when the host goes away.
    Reset,
    /// FATAL 57P01, then the end: `pg_terminate_backend`, a shutdown.
    Terminate,
    /// The server sends these bytes, whatever it was about to say.
    Garbage(Vec<u8>),
    /// The server does nothing any more, and says nothing.
    Stall,
    /// The end of [`Stall`](Self::Stall) and [`Slow`](Self::Slow).
    Resume,
    /// At most this many bytes are handed out at a time.
    Slow {
        /// At least 1.
        bytes: usize,
    },
    /// After so many more messages, the next one is answered by this error.
    ErrorAt {
        /// Messages that still pass.
        messages: usize,
        /// What the next one gets.
        error: PgError,
    },
}
