//! What all pools of one database know about it.

use super::asking::Asking;
use super::functions::KnownFunctions;
use super::notifiers::Notifiers;
use super::schema::Schema;

/// A database, for clients of all users.
#[derive(Debug, Default)]
pub struct Database {
    pub(super) schema: Schema,
    pub(super) notifiers: Notifiers,
    /// Whether its clients ask for what they draw from sequences.
    pub asking: Asking,
    /// What its functions do to sessions.
    pub functions: KnownFunctions,
}
