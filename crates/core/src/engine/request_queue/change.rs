//! What an entry carries besides what answers it.

use std::sync::Arc;

use super::super::client::{ClientStatement, significant};
use super::super::from_client::client_message::Comparing;
use super::super::noted::Renoted;
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
    /// The client's name for a shared statement: taken back if the Parse fails or is ignored.
    Names(Box<Naming>),
    /// The client's name that is taken away: it comes back if the Close is ignored.
    Closes(Box<Closed>),
    /// The client's unnamed statement that something takes the place of: it comes back if that is
    /// ignored. What was sent while nothing was outstanding cannot be, and has no such change.
    Displaces(Box<Displaced>),
    /// What was noted before of a name that the server knows, too: it comes back if the message fails or
    /// is ignored.
    Notes(Box<Renoted>),
    /// The error that the client is due in place of the server's.
    Refuses(Box<Refusal>),
    /// A statement of SQL's PREPARE, which the server may refuse.
    Prepares(Arc<SqlStatement>),
    /// One is deallocated.
    Deallocates,
}

/// A name that a Parse gives a shared statement.
#[derive(Debug)]
pub(in crate::engine) struct Naming {
    pub(in crate::engine) name: Box<[u8]>,
    /// See [`ClientStatement::serial`].
    pub(in crate::engine) serial: u32,
}

/// A client's name that a Close has taken away, and what it stood for.
#[derive(Debug)]
pub(in crate::engine) struct Closed {
    pub(in crate::engine) name: Box<[u8]>,
    /// Its serial is 0 where the Parse of it has failed: then it stood for nothing.
    pub(in crate::engine) statement: ClientStatement,
}

impl Closed {
    /// By something in this pipeline.
    pub(in crate::engine) fn in_pipeline(
        taken: (Box<[u8]>, ClientStatement),
        pipeline: u64,
    ) -> Change {
        let (name, mut statement) = taken;
        statement.pipeline = pipeline;
        Change::Closes(Box::new(Self { name, statement }))
    }
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

    /// The pipeline that changed what this name means, if a Close of it is not answered yet.
    pub(in crate::engine) fn closing_since(&self, name: &[u8]) -> Option<u64> {
        let name = significant(name);
        let closed = self.closed().rfind(|closed| *closed.name == *name)?;
        Some(closed.statement.pipeline)
    }

    /// The names that are being taken away, the oldest first.
    pub(in crate::engine) fn closed(&self) -> impl DoubleEndedIterator<Item = &Closed> {
        self.changes().filter_map(|change| match change {
            Change::Closes(closed) => Some(&**closed),
            _ => None,
        })
    }

    /// The same, to be corrected.
    pub(in crate::engine) fn closed_mut(&mut self) -> impl Iterator<Item = &mut Closed> {
        self.changes_mut().filter_map(|change| match change {
            Change::Closes(closed) => Some(&mut **closed),
            _ => None,
        })
    }

    /// The unnamed statements that may come back, the oldest first.
    pub(in crate::engine) fn displaced_mut(&mut self) -> impl Iterator<Item = &mut Displaced> {
        self.changes_mut().filter_map(|change| match change {
            Change::Displaces(displaced) => Some(&mut **displaced),
            _ => None,
        })
    }

    /// What was noted of names that are being changed, the oldest first.
    pub(in crate::engine) fn renoted(&self) -> impl DoubleEndedIterator<Item = &Renoted> {
        self.changes().filter_map(|change| match change {
            Change::Notes(renoted) => Some(&**renoted),
            _ => None,
        })
    }

    /// The same, to be corrected.
    pub(in crate::engine) fn renoted_mut(&mut self) -> impl Iterator<Item = &mut Renoted> {
        self.changes_mut().filter_map(|change| match change {
            Change::Notes(renoted) => Some(&mut **renoted),
            _ => None,
        })
    }

    /// Whether statements of SQL's PREPARE are being prepared or deallocated.
    pub(in crate::engine) fn has_sql_under_way(&self) -> bool {
        self.changes().any(|change| matches!(change, Change::Prepares(_) | Change::Deallocates))
    }
}
