//! The answers that a server owes, in the order in which they will come.
//!
//! Every message sent to a backend leaves an entry here, also those that Hawser made itself, and
//! so do messages that Hawser answers in the server's place: such an answer keeps its place
//! among the real ones (traps 4 and 5). What comes from the server completes the first entry;
//! anything that does not fit it means that framing or order is lost, and the connection is
//! closed (trap 14).

/// What is owed for one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expect {
    /// The client's Query: anything, then ReadyForQuery.
    Query,
    /// So many statements of the client's Query, ahead of `MadeStatement`s: see
    /// [`super::restore`].
    Statements(u32),
    /// A statement of ours in the text of the client's Query: one completion to be swallowed, with
    /// the rows ahead of it.
    MadeStatement,
    /// The client's FunctionCall: FunctionCallResponse or ErrorResponse, then ReadyForQuery.
    Call,
    /// Sync: ReadyForQuery.
    Sync,
    /// The client's Parse.
    Parse {
        /// See [`super::client::ClientStatement::serial`]; 0 where nothing is noted by it.
        serial: u32,
        /// Id of the shared statement that the server gets; 0 for any other.
        statement: u64,
    },
    /// A Parse that was not sent because the server has the statement: ParseComplete is ours.
    ParseKnown,
    /// A Parse or Bind made to fail in place of one that is due another error: see [`Change::Refuses`].
    Refused,
    /// Bind.
    Bind {
        /// Id of the shared statement that it names; 0 for any other.
        statement: u64,
    },
    /// Describe of a statement: ParameterDescription, then RowDescription or NoData.
    DescribeStatement {
        /// Id of the shared statement that it names; 0 for any other.
        statement: u64,
    },
    /// Describe of a portal: RowDescription or NoData.
    DescribePortal,
    /// Execute.
    Execute,
    /// Close.
    Close,
    /// A Close that was not sent, or a DEALLOCATE in another's place.
    CloseKnown {
        /// CloseComplete is ours to give.
        told: bool,
    },
    /// A Query behind what is not answered yet takes the unnamed statement away, if it is not skipped: no
    /// answer of its own.
    Unnaming {
        /// Finds out whether anything came behind it.
        serial: u32,
    },
    /// CopyData, CopyDone or CopyFail in an extended-protocol copy: no answer of its own, but it
    /// separates a Sync that the server will ignore from one that it will answer (trap 15).
    CopyInput {
        /// Whether it ends the copy.
        ends: bool,
    },
    /// Made by us, one completion to be swallowed: Bind, Execute or Close around a statement that
    /// is prepared again.
    Made,
    /// Made by us: a Parse of a shared statement, whose id is taken off the backend if it fails.
    MadeParse {
        /// Id of the statement; 0 for any other Parse of ours.
        statement: u64,
    },
    /// Made by us: a simple query (settings, ROLLBACK, reset), swallowed up to ReadyForQuery.
    MadeQuery,
    /// Made by us: a simple query that takes off a timeout, and may run into that itself (see
    /// [`super::timeouts`]).
    MadeLift,
    /// Made by us: a simple query about the session, whose row is read (see [`super::doubt`]).
    MadeQuestion,
    /// Made by us: the call that hands the session over, swallowed up to ReadyForQuery (see
    /// [`super::hand_over`]).
    HandOver,
    /// Made by us: the call that tells whose the session is, swallowed up to ReadyForQuery (see
    /// [`super::told`]).
    Told,
    /// Made by us: a simple query that prepares a statement of SQL's PREPARE or takes one away,
    /// which the server may refuse (see [`super::sql_statement`]).
    MadePrepare,
    /// Made by us: a ROLLBACK with which the client's Query begins that waits for it (see
    /// [`super::turn`]).
    MadeRollback,
    /// Made by us: Bind and Execute of a statement that brings settings within the client's pipeline
    /// (see [`super::within`]).
    MadeSettings {
        /// Id of the statement.
        statement: u64,
    },
    /// Made by us: Describe of a statement.
    MadeDescribe {
        /// Id of the shared statement; 0 for the unnamed one.
        statement: u64,
    },
    /// Made by us: a Sync, e.g. after an error, ahead of the client's own.
    MadeSync,
}

impl Expect {
    /// Whether it is a Parse of the client's unnamed statement, or takes that away.
    pub(super) fn displaces_unnamed(self) -> bool {
        matches!(self, Self::Unnaming { .. })
            || matches!(self, Self::Parse { serial, statement: 0 } if serial != 0)
    }

    /// Whether it may do something to the server's unnamed statement.
    pub(super) fn touches_unnamed(self) -> bool {
        self.displaces_unnamed()
            || matches!(
                self,
                Self::MadeParse { statement: 0 } | Self::Made | Self::Close | Self::Query
            )
    }

    /// Whether it ends with ReadyForQuery.
    pub(super) fn ends_with_ready(self) -> bool {
        self.is_query_of_ours()
            || matches!(self, Self::Query | Self::Call | Self::Sync | Self::MadeSync)
    }

    /// Whether the server reads on behind it what it would have ignored behind an error.
    pub(super) fn ends_ignoring(self) -> bool {
        matches!(self, Self::Sync | Self::MadeSync)
    }

    /// Whether it is a simple query, or a call, that no client has asked for.
    pub(super) fn is_query_of_ours(self) -> bool {
        matches!(
            self,
            Self::MadeQuery
                | Self::MadeQuestion
                | Self::MadeLift
                | Self::MadePrepare
                | Self::MadeRollback
                | Self::HandOver
                | Self::Told
        )
    }

    /// Whether it is a text of a simple query, or the first part of one: no ReadyForQuery comes for
    /// it before anything else has.
    pub(super) fn is_text(self) -> bool {
        self.is_query_of_ours() || self.is_within_query() || self == Self::Query
    }

    /// Whether what answers it is swallowed.
    pub(super) fn is_made(self) -> bool {
        matches!(
            self,
            Self::Made
                | Self::MadeStatement
                | Self::MadeParse { .. }
                | Self::MadeQuery
                | Self::MadeQuestion
                | Self::MadeLift
                | Self::HandOver
                | Self::Told
                | Self::MadePrepare
                | Self::MadeRollback
                | Self::MadeSettings { .. }
                | Self::MadeDescribe { .. }
                | Self::MadeSync
        )
    }

    /// Whether it is part of a Query, whose end is a later entry.
    pub(super) fn is_within_query(self) -> bool {
        matches!(self, Self::Statements(_) | Self::MadeStatement)
    }

    /// Whether the server answers it only outside the state in which it ignores all up to Sync.
    pub(super) fn is_ours_to_answer(self) -> bool {
        matches!(self, Self::ParseKnown | Self::CloseKnown { .. } | Self::Unnaming { .. })
    }
}
