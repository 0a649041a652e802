//! What all pools of one database know of it.

use super::notifiers::Notifiers;
use super::schema::Schema;

/// A database, whoever its clients' users are.
#[derive(Debug, Default)]
pub struct Database {
    pub(super) schema: Schema,
    pub(super) notifiers: Notifiers,
}
