//! The changes in flight.

use crate::relay::request_queue::change::Change;
use crate::relay::request_queue::{Request, RequestQueue};

impl RequestQueue {
    pub(in crate::relay::request_queue) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.entries.changes()
    }

    /// The change of the first entry.
    pub(crate) fn front_change(&self) -> Option<&Change> {
        self.entries.front_change()
    }

    /// Whether the description that answers the first entry is read. (A server's longest has 1,664
    /// columns: 136 kB.)
    pub(crate) fn looks_at_description(&self) -> bool {
        matches!(self.front(), Some(Request::InjectedDescribe { .. }))
            || matches!(self.front_change(), Some(Change::Describes(_)))
    }

    /// The same, which takes in a part of the answer.
    pub(crate) fn front_change_mut(&mut self) -> Option<&mut Change> {
        self.entries.apart().front_mut()?.change.as_mut()
    }

    /// Whether statements of SQL's PREPARE are being prepared or deallocated.
    pub(crate) fn has_sql_under_way(&self) -> bool {
        self.changes().any(|change| matches!(change, Change::Prepares(_) | Change::Deallocates))
    }
}
