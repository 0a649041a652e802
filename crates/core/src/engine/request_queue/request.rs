//! The kinds of requests: what answers each, and what becomes of the answer.

/// One message to the server, as its answers see it. *Injected* ones are Hawser's own: what answers them
/// goes to no client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum Request {
    /// The client's Query: anything, then ReadyForQuery.
    Query,
    /// So many statements of the client's Query, ahead of `InjectedStatement`s: see
    /// [`super::super::restore`].
    Statements(u32),
    /// A statement of ours in the text of the client's Query: one completion to be swallowed, with
    /// the rows before it.
    InjectedStatement,
    /// The client's FunctionCall: FunctionCallResponse or ErrorResponse, then ReadyForQuery.
    Call,
    /// Sync: ReadyForQuery.
    Sync,
    /// The client's Parse.
    Parse {
        /// See [`super::super::names::ClientStatement::serial`]; 0 where nothing is noted by it.
        serial: u32,
        /// Id of the shared statement that the server gets; 0 for any other.
        statement: u64,
    },
    /// A Parse that was not sent because the server has the statement: ParseComplete is ours.
    ParseKnown,
    /// A Parse or Bind made to fail in place of one that is due another error: see [`super::Change::Refuses`].
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
    /// A Flush with a body: an error alone, or nothing within a copy, which does not look at it
    /// (`CopyGetData`, copyfromparse.c).
    MalformedFlush,
    /// A Close that was not sent, or a DEALLOCATE in another's place.
    CloseKnown {
        /// CloseComplete is ours to give.
        told: bool,
    },
    /// A message after what is not answered yet takes the unnamed statement away, if it is not skipped: no
    /// answer of its own.
    Unnaming,
    /// CopyData, CopyDone or CopyFail in an extended-protocol copy: no answer of its own, but it
    /// separates a Sync that the server will ignore from one that it will answer (trap 15).
    CopyInput {
        /// Whether it ends the copy.
        ends: bool,
    },
    /// Injected: one completion to be swallowed: Bind, Execute or Close around a statement that
    /// is prepared again.
    Injected,
    /// Injected: a Parse of a shared statement, whose id is taken off the backend if it fails.
    InjectedParse {
        /// Id of the statement; 0 for any other Parse of ours.
        statement: u64,
    },
    /// Injected: a simple query (settings, ROLLBACK, reset), swallowed up to ReadyForQuery.
    InjectedQuery,
    /// Injected: a simple query that takes off a timeout, and may run into that itself (see
    /// [`super::super::timeouts`]).
    InjectedLift,
    /// Injected: a simple query about the session, whose row is read (see [`super::super::unverified`]).
    InjectedQuestion,
    /// Injected: the call that hands the session over, swallowed up to ReadyForQuery (see
    /// [`super::super::hand_over`]).
    HandOver,
    /// Injected: the call that tells whose the session is, swallowed up to ReadyForQuery (see
    /// [`super::super::client_identity`]).
    TellIdentity,
    /// Injected: a simple query that prepares a statement of SQL's PREPARE or takes one away,
    /// which the server may refuse (see [`super::super::sql_statement`]).
    InjectedPrepare,
    /// Injected: a ROLLBACK with which the client's Query begins that waits for it (see
    /// [`super::super::from_client::client_message`]).
    InjectedRollback,
    /// Injected: Bind and Execute of a statement that brings settings within the client's pipeline
    /// (see [`super::super::within`]).
    InjectedSettings {
        /// Id of the statement; 0 where they are set before a client's message that waits for it.
        statement: u64,
    },
    /// Injected: Describe of a statement.
    InjectedDescribe {
        /// Id of the shared statement; 0 for the unnamed one.
        statement: u64,
    },
    /// Injected: a Sync, e.g. after an error, before the client's own.
    InjectedSync,
}

impl Request {
    /// Whether it is a Parse of the client's unnamed statement.
    pub(in crate::engine) fn parses_unnamed(self) -> bool {
        matches!(self, Self::Parse { serial, statement: 0 } if serial != 0)
    }

    /// Whether it may do something to the server's unnamed statement.
    pub(in crate::engine) fn touches_unnamed(self) -> bool {
        self.parses_unnamed()
            || matches!(
                self,
                Self::InjectedParse { statement: 0 }
                    | Self::Injected
                    | Self::Unnaming
                    | Self::Close
                    | Self::Query
            )
    }

    /// Whether it ends with ReadyForQuery.
    pub(in crate::engine) fn ends_with_ready(self) -> bool {
        self.is_injected_query()
            || matches!(self, Self::Query | Self::Call | Self::Sync | Self::InjectedSync)
    }

    /// Whether the server reads on after it what it would have ignored after an error.
    pub(in crate::engine) fn ends_ignoring(self) -> bool {
        matches!(self, Self::Sync | Self::InjectedSync)
    }

    /// Whether it is a simple query, or a call, that no client has asked for.
    pub(in crate::engine) fn is_injected_query(self) -> bool {
        matches!(
            self,
            Self::InjectedQuery
                | Self::InjectedQuestion
                | Self::InjectedLift
                | Self::InjectedPrepare
                | Self::InjectedRollback
                | Self::HandOver
                | Self::TellIdentity
        )
    }

    /// Whether what answers it is swallowed.
    pub(in crate::engine) fn is_injected(self) -> bool {
        matches!(
            self,
            Self::Injected
                | Self::InjectedStatement
                | Self::InjectedParse { .. }
                | Self::InjectedQuery
                | Self::InjectedQuestion
                | Self::InjectedLift
                | Self::HandOver
                | Self::TellIdentity
                | Self::InjectedPrepare
                | Self::InjectedRollback
                | Self::InjectedSettings { .. }
                | Self::InjectedDescribe { .. }
                | Self::InjectedSync
        )
    }

    /// Whether it is part of a Query, whose end is a later entry.
    pub(in crate::engine) fn is_within_query(self) -> bool {
        matches!(self, Self::Statements(_) | Self::InjectedStatement)
    }

    /// Whether the server answers it only outside the state in which it ignores all up to Sync.
    pub(in crate::engine) fn is_answered_here(self) -> bool {
        matches!(self, Self::ParseKnown | Self::CloseKnown { .. } | Self::Unnaming)
    }
}
