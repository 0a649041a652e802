//! What all pools of one database know about it.

use crate::parts::functions::known::KnownFunctions;
use crate::parts::listen::notifiers::Notifiers;
use crate::parts::sequences::asking::Asking;
use crate::parts::statements::schema_epoch::Schema;

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
