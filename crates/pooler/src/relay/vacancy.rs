//! Statements that require that no other connection to a database exists: DROP DATABASE and the
//! like.
//!
//! # Model
//! ```text
//!   the message comes ─► Wanted ─► Host::vacate ─► Asked ─► ToLoop::Vacated ─► Given ─► it is sent
//!                                                                                        │
//!        connections may be opened again ◄─ what was given is dropped ◄─ all is answered ┘
//! ```
//! The server counts connections, not clients: idle ones in a pool would make it fail (55006). The
//! message waits until they have been closed, and none is opened before the server has answered.
//! The host checks whether clients are connected there as well.
//!
//! # Limits
//! A statement that was prepared under its own name on a connection that is not shared is not
//! examined when it is executed: it waits when it is parsed.

mod steps;

use std::any::Any;
use std::sync::Arc;

/// What keeps connections from being opened.
pub(crate) type Hold = Arc<dyn Any + Send + Sync>;

/// How far a database has been emptied of connections.
pub(crate) enum Vacancy {
    /// It is to be emptied.
    Wanted(Box<[u8]>),
    /// The host has been asked.
    Asked,
    /// It is empty, as long as this is kept.
    Given(Hold),
}
