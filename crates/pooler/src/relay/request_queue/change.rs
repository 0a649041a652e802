//! What an entry carries besides the kind of its answer.

mod under_way;

use std::sync::Arc;

use crate::parts::sql_prepare::SqlStatement;
use crate::parts::statements::description::{Seen, Shape};
use crate::wire::error::SqlState;

/// An unnamed statement that has been prepared again, and its client's description of it.
#[derive(Debug)]
pub(crate) struct Comparing {
    pub(crate) seen: Arc<Seen>,
    /// The client's message waits for the comparison.
    pub(crate) waits: bool,
    /// The server's description.
    pub(crate) shape: Shape,
}

/// A client's statement in whose place one of Hawser's is bound.
#[derive(Debug)]
pub(crate) struct StoodInFor {
    /// The client's name for it.
    pub(crate) name: Box<[u8]>,
}

/// What is done with the answer, and the change that it confirms.
#[derive(Debug)]
pub(crate) enum Change {
    /// The description that the client gets of a statement is noted there.
    Describes(Arc<Seen>),
    /// An unnamed statement that has been prepared again is compared with its client's description.
    Compares(Box<Comparing>),
    /// The oldest change in flight to the client's names for statements: see
    /// [`crate::parts::statements::client_names`].
    Names,
    /// The oldest change in flight to the client's unnamed statement: see
    /// [`crate::parts::statements::unnamed`].
    Unnamed,
    /// The oldest change in flight to the notes for client's names that the server knows, too: see
    /// [`crate::parts::statements::own_named`].
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
pub(crate) struct Refusal {
    /// ErrorResponse, and what precedes it.
    pub(crate) answer: Box<[u8]>,
    /// In place of this error only: any other error of the text comes first on the server, too.
    pub(crate) of: Option<SqlState>,
}

impl Refusal {
    /// In place of any error.
    pub(crate) fn of_all(answer: Vec<u8>) -> Change {
        Change::Refuses(Box::new(Self { answer: answer.into(), of: None }))
    }
}
