//! What a process gives others when it commits: changes to tables, and notifications.

/// A backend's process id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub i32);

/// A change to a table that is not committed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Insert(i32),
    AddToAll(i32),
    DeleteAll,
}

impl Change {
    pub(super) fn apply(&self, rows: &mut Vec<i32>) {
        match self {
            Self::Insert(value) => rows.push(*value),
            Self::AddToAll(delta) => rows.iter_mut().for_each(|row| *row += delta),
            Self::DeleteAll => rows.clear(),
        }
    }
}

/// A notification on its way to one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notification {
    pub(super) sender: ProcessId,
    pub(super) channel: String,
    pub(super) payload: String,
}
