//! The kinds of requests: what answers each, and what becomes of the answer.

/// One message to the server, by its answers. *Injected* ones are Hawser's own: their answers go to
/// no client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// The client's Query: anything, then ReadyForQuery.
    Query,
    /// This many statements of the client's Query, before `InjectedStatement`s: see
    /// [`crate::parts::settings::restore`].
    Statements(u32),
    /// A statement of Hawser's in the text of the client's Query: one completion that is dropped,
    /// with the rows before it.
    InjectedStatement,
    /// The client's FunctionCall: FunctionCallResponse or ErrorResponse, then ReadyForQuery.
    Call,
    /// Sync: ReadyForQuery.
    Sync,
    /// The client's Parse.
    Parse {
        /// See [`crate::parts::statements::client_names::ClientStatement::serial`]; 0 where nothing is noted by it.
        serial: u32,
        /// Id of the shared statement that the server gets; 0 for any other.
        statement: u64,
    },
    /// A Parse that was not sent because the server has the statement: Hawser gives the
    /// ParseComplete.
    ParseKnown,
    /// A Parse or Bind made to fail, in place of one that is due another error: see
    /// [`crate::relay::request_queue::Change::Refuses`].
    Refused,
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
    Execute,
    Close,
    /// A Flush with a body: only an error, or no answer within a copy, which does not read it
    /// (`CopyGetData`, copyfromparse.c).
    MalformedFlush,
    /// A Close that was not sent, or a DEALLOCATE in place of another.
    CloseKnown {
        /// Hawser gives the CloseComplete.
        answered: bool,
    },
    /// A message after unanswered ones removes the unnamed statement, if it is not skipped: no
    /// answer of its own.
    Unnaming,
    /// CopyData, CopyDone or CopyFail in an extended-protocol copy: no answer of its own, but it
    /// separates a Sync that the server will ignore from one that it will answer (trap 15).
    CopyInput {
        /// Whether it ends the copy.
        ends: bool,
    },
    /// Injected: one completion that is dropped: Bind, Execute or Close around a statement that is
    /// prepared again.
    Injected,
    /// Injected: a Parse of a shared statement, whose id is removed from the backend if it fails.
    InjectedParse {
        /// Id of the statement; 0 for any other Parse of Hawser's.
        statement: u64,
    },
    /// Injected: a simple query (settings, ROLLBACK, reset), dropped up to ReadyForQuery.
    InjectedQuery,
    /// Injected: a simple query that lifts a timeout, and may itself be cut off by it (see
    /// [`crate::parts::settings::timeouts`]).
    InjectedLift,
    /// Injected: a simple query about the session, whose row is read (see [`crate::parts::pins::unverified`]).
    InjectedQuestion,
    /// Injected: the call that hands the session over, dropped up to ReadyForQuery (see
    /// [`crate::parts::identity::hand_over`]).
    HandOver,
    /// Injected: the call that informs the server of its client, dropped up to ReadyForQuery (see
    /// [`crate::parts::identity::client_identity`]).
    SendIdentity,
    /// Injected: a simple query that prepares a statement of SQL's PREPARE or removes one, which
    /// the server may refuse (see [`crate::parts::sql_prepare`]).
    InjectedPrepare,
    /// Injected: the ROLLBACK at the start of the client's Query, which waits for it (see
    /// [`crate::relay::from_client::client_message`]).
    InjectedRollback,
    /// Injected: Bind and Execute of a statement that applies settings within the client's pipeline
    /// (see [`crate::parts::settings::within_pipeline`]).
    InjectedSettings {
        /// Id of the statement; 0 if they are set before a client's message that waits for it.
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
    pub(crate) fn parses_unnamed(self) -> bool {
        matches!(self, Self::Parse { serial, statement: 0 } if serial != 0)
    }

    /// Whether it may affect the server's unnamed statement.
    pub(crate) fn touches_unnamed(self) -> bool {
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
    pub(crate) fn ends_with_ready(self) -> bool {
        self.is_injected_query()
            || matches!(self, Self::Query | Self::Call | Self::Sync | Self::InjectedSync)
    }

    /// Whether the server stops ignoring messages after it.
    pub(crate) fn ends_ignoring(self) -> bool {
        matches!(self, Self::Sync | Self::InjectedSync)
    }

    /// Whether it is a simple query, or a call, that no client has sent.
    pub(crate) fn is_injected_query(self) -> bool {
        matches!(
            self,
            Self::InjectedQuery
                | Self::InjectedQuestion
                | Self::InjectedLift
                | Self::InjectedPrepare
                | Self::InjectedRollback
                | Self::HandOver
                | Self::SendIdentity
        )
    }

    /// Whether its answer is dropped.
    pub(crate) fn is_injected(self) -> bool {
        matches!(
            self,
            Self::Injected
                | Self::InjectedStatement
                | Self::InjectedParse { .. }
                | Self::InjectedQuery
                | Self::InjectedQuestion
                | Self::InjectedLift
                | Self::HandOver
                | Self::SendIdentity
                | Self::InjectedPrepare
                | Self::InjectedRollback
                | Self::InjectedSettings { .. }
                | Self::InjectedDescribe { .. }
                | Self::InjectedSync
        )
    }

    /// Whether it is part of a Query, whose end is a later entry.
    pub(crate) fn is_within_query(self) -> bool {
        matches!(self, Self::Statements(_) | Self::InjectedStatement)
    }

    /// Whether Hawser answers it, in the server's place.
    pub(crate) fn is_answered_here(self) -> bool {
        matches!(self, Self::ParseKnown | Self::CloseKnown { .. } | Self::Unnaming)
    }
}
