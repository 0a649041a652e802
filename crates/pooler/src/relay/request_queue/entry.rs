//! What stands in the queue: a request, or a plain pipeline of several.

use crate::queries::table::QueryRef;
use crate::relay::request_queue::change::Change;
use crate::relay::request_queue::request::Request;

/// One request. An ordinary Bind, Execute, Query or Sync carries no change.
#[derive(Debug)]
pub(crate) struct Entry {
    /// What answers it, and what becomes of the answer.
    pub(crate) owed: Request,
    /// The change that the answer confirms, and that is dropped without one.
    pub(crate) change: Option<Change>,
    /// What is counted when it is answered.
    pub(crate) query: Option<QueryRef>,
}

impl From<Request> for Entry {
    #[inline]
    fn from(owed: Request) -> Self {
        Self { owed, change: None, query: None }
    }
}

/// What is sent whole while nothing is outstanding: see [`crate::relay::plain`].
#[derive(Debug)]
pub(crate) enum PlainPipeline {
    /// Bind, perhaps Describe, Execute and Sync, of the shared statement with this id.
    Named { statement: u64, describes: Describes },
    /// The same of the unnamed statement, with its Parse. `serial`: as for [`Request::Parse`].
    Unnamed { serial: u32, describes: bool },
    /// A Query.
    Query,
}

/// Whether the portal of a named statement is described, and what becomes of the description.
#[derive(Debug)]
pub(crate) enum Describes {
    No,
    /// It is the one that the client has got before: the server fixes the rows of a statement at
    /// its Parse.
    Known,
    /// It is noted.
    Noted(Change),
}

/// The answer to a plain pipeline or Query, without its end: see `relay::plain::answer`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlainOwed {
    /// ParseComplete.
    pub(crate) parses: bool,
    /// BindComplete; else it is a Query.
    pub(crate) binds: bool,
    /// The description of the portal.
    pub(crate) describes: bool,
}

impl PlainOwed {
    pub(crate) const QUERY: Self = Self { parses: false, binds: false, describes: false };
}
