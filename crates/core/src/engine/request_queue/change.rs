//! What an entry carries besides the kind of its answer.

mod under_way;

use std::sync::Arc;

use crate::engine::sql_statement::SqlStatement;
use crate::pool::description::{Seen, Shape};
use crate::wire::error::SqlState;

/// An unnamed statement that has been prepared again, and its client's description of it.
#[derive(Debug)]
pub(in crate::engine) struct Comparing {
    pub(in crate::engine) seen: Arc<Seen>,
    /// The client's message waits for the comparison.
    pub(in crate::engine) waits: bool,
    /// The server's description.
    pub(in crate::engine) shape: Shape,
}

/// A client's statement in whose place one of Hawser's is bound.
#[derive(Debug)]
pub(in crate::engine) struct StoodInFor {
    /// The client's name for it.
    pub(in crate::engine) name: Box<[u8]>,
}

/// What is done with the answer, and the change that it confirms.
#[derive(Debug)]
pub(in crate::engine) enum Change {
    /// The description that the client gets of a statement is noted there.
    Describes(Arc<Seen>),
    /// An unnamed statement that has been prepared again is compared with its client's description.
    Compares(Box<Comparing>),
    /// The oldest change in flight to the client's names for statements: see
    /// [`super::super::names`].
    Names,
    /// The oldest change in flight to the client's unnamed statement: see
    /// [`super::super::server_unnamed`].
    Unnamed,
    /// The oldest change in flight to the notes for client's names that the server knows, too: see
    /// [`super::super::noted`].
    Notes,
    /// The error that the client is due in place of the server's.
    Refuses(Box<Refusal>),
    /// A statement of Hawser's is bound in place of the client's.
    StandsInFor(Box<StoodInFor>),
    /// A statement of SQL's PREPARE, which the server may refuse.
    Prepares(Arc<SqlStatement>),
    /// One is deallocated.
    Deallocates,
}

/// The error that a client is due for a message that is made to fail.
#[derive(Debug)]
pub(in crate::engine) struct Refusal {
    /// ErrorResponse, and what precedes it.
    pub(in crate::engine) answer: Box<[u8]>,
    /// In place of this error only: any other error of the text comes first on the server, too.
    pub(in crate::engine) of: Option<SqlState>,
}

impl Refusal {
    /// In place of any error.
    pub(in crate::engine) fn of_all(answer: Vec<u8>) -> Change {
        Change::Refuses(Box::new(Self { answer: answer.into(), of: None }))
    }
}
