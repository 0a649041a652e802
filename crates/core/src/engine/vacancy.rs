//! Statements for which nobody else may be connected to a database: DROP DATABASE and the like.
//!
//! # Model
//! ```text
//!   the message comes ─► Wanted ─► Host::vacate ─► Asked ─► ToLoop::Vacated ─► Given ─► it is sent
//!                                                                                        │
//!        connections may be opened again ◄─ what was given is dropped ◄─ all is answered ┘
//! ```
//! The server counts connections, not clients: those that sit idle in a pool would be in its way (55006).
//! The message waits until they have been closed, and none is opened before the server has answered.
//! Whether clients are connected there as well is the host's to see.
//!
//! # Limits
//! A statement that was prepared by its own name on a connection that is not shared is not seen when it
//! is executed: it waits when it is parsed.

mod steps;

use std::any::Any;
use std::sync::Arc;

/// What keeps connections from being opened.
pub(super) type Hold = Arc<dyn Any + Send + Sync>;

/// How far a database has been emptied of connections.
pub(super) enum Vacancy {
    /// It is to be.
    Wanted(Box<[u8]>),
    /// The host sees to it.
    Asked,
    /// It is, as long as this is kept.
    Given(Hold),
}
