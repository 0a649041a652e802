//! What an entry carries besides what answers it.

use std::sync::Arc;

use super::super::from_client::client_message::Comparing;
use super::super::replay::Seen;
use super::super::server_unnamed::Parsed;
use super::super::sql_statement::SqlStatement;
use super::super::statement::Unnamed;
use super::{Request, RequestQueue};
use crate::wire::error::SqlState;

/// What is done with the answer, or what was before the message and comes back if the server ignores it.
#[derive(Debug)]
pub(in crate::engine) enum Change {
    /// What the answer tells the client of a statement is noted there.
    Describes(Arc<Seen>),
    /// An unnamed statement that has been prepared anew is compared with what its client knows of it.
    Compares(Box<Comparing>),
    /// The oldest change to the client's names for statements that is under way: see
    /// [`super::super::names`].
    Names,
    /// The client's unnamed statement that something takes the place of: it comes back if that is
    /// ignored. What was sent while nothing was outstanding cannot be, and has no such change.
    Displaces(Box<Displaced>),
    /// The oldest change under way of what is noted of the client's names that the server knows, too: see
    /// [`super::super::noted`].
    Notes,
    /// The error that the client is due in place of the server's.
    Refuses(Box<Refusal>),
    /// A statement of SQL's PREPARE, which the server may refuse.
    Prepares(Arc<SqlStatement>),
    /// One is deallocated.
    Deallocates,
}

/// A client's unnamed statement whose place something has taken that may yet fail.
#[derive(Debug, Default)]
pub(in crate::engine) struct Displaced {
    pub(in crate::engine) unnamed: Option<Arc<Unnamed>>,
    /// Of its Parse.
    pub(in crate::engine) serial: u32,
    /// Where it was parsed.
    pub(in crate::engine) parsed: Option<Parsed>,
}

/// An error that a client is due for a message that is made to fail.
#[derive(Debug)]
pub(in crate::engine) struct Refusal {
    /// ErrorResponse, and what precedes it.
    pub(in crate::engine) answer: Box<[u8]>,
    /// In place of this error alone: any other of the text's comes first on the server, too.
    pub(in crate::engine) of: Option<SqlState>,
}

impl Refusal {
    /// In place of any error.
    pub(in crate::engine) fn of_all(answer: Vec<u8>) -> Change {
        Change::Refuses(Box::new(Self { answer: answer.into(), of: None }))
    }
}

/// The changes that are under way.
impl RequestQueue {
    fn changes(&self) -> impl DoubleEndedIterator<Item = &Change> {
        self.entries.iter().filter_map(|entry| entry.change.as_ref())
    }

    fn changes_mut(&mut self) -> impl Iterator<Item = &mut Change> {
        self.entries.iter_mut().filter_map(|entry| entry.change.as_mut())
    }

    /// That of the first entry.
    pub(in crate::engine) fn front_change(&self) -> Option<&Change> {
        self.entries.front()?.change.as_ref()
    }

    /// Whether the description that answers the first entry is looked at. (A server's longest has 1,664 columns:
    /// 136 kB.)
    pub(in crate::engine) fn looks_at_description(&self) -> bool {
        self.entries.front().is_some_and(|entry| {
            matches!(entry.owed, Request::InjectedDescribe { .. })
                || matches!(entry.change, Some(Change::Describes(_)))
        })
    }

    /// The same, which learns from a part of the answer.
    pub(in crate::engine) fn front_change_mut(&mut self) -> Option<&mut Change> {
        self.entries.front_mut()?.change.as_mut()
    }

    /// The unnamed statements that may come back, the oldest first.
    pub(in crate::engine) fn displaced_mut(&mut self) -> impl Iterator<Item = &mut Displaced> {
        self.changes_mut().filter_map(|change| match change {
            Change::Displaces(displaced) => Some(&mut **displaced),
            _ => None,
        })
    }

    /// Whether statements of SQL's PREPARE are being prepared or deallocated.
    pub(in crate::engine) fn has_sql_under_way(&self) -> bool {
        self.changes().any(|change| matches!(change, Change::Prepares(_) | Change::Deallocates))
    }
}
