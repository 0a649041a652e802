//! The unnamed statement that a server has.

use std::sync::Arc;

use crate::pool::statement::Unnamed;

/// The place of a Parse.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parsed {
    pipeline: u64,
    /// Something of that pipeline was executed before it, and may have changed the settings.
    behind: bool,
}

impl Parsed {
    /// Whether the settings at the end of this pipeline, which has changed them, may be those under which it
    /// was parsed.
    pub(super) fn may_follow(self, ended: u64) -> bool {
        ended < self.pipeline || (ended == self.pipeline && self.behind)
    }
}

/// The unnamed statement of a server connection, and since when it is that.
#[derive(Default, Debug)]
pub(super) struct ServerUnnamed {
    /// Compared with its client's by identity.
    statement: Option<Arc<Unnamed>>,
    /// The pipeline that last changed it.
    since: u64,
    /// Where it was parsed; `None` if it was brought.
    parsed: Option<Parsed>,
    /// Prepared anew, it is another than its client has been told, whose message has waited for that.
    has_changed: bool,
}

impl ServerUnnamed {
    /// Its client parses one, in this pipeline.
    pub(super) fn parsed(&mut self, statement: Arc<Unnamed>, pipeline: u64, behind: bool) {
        self.statement = Some(statement);
        self.since = pipeline;
        self.parsed = Some(Parsed { pipeline, behind });
    }

    /// Its client's own is brought, or taken away where that has none, in this pipeline.
    pub(super) fn brought(&mut self, statement: Option<Arc<Unnamed>>, pipeline: u64) {
        self.statement = statement;
        (self.since, self.parsed) = (pipeline, None);
    }

    /// Something else takes its place in this pipeline: a Close, or a statement that is not looked at.
    pub(super) fn closed(&mut self, pipeline: u64) {
        self.statement = None;
        self.since = pipeline;
    }

    /// A simple query takes it away (`exec_simple_query`, postgres.c).
    pub(super) fn taken_by_query(&mut self) {
        self.statement = None;
    }

    /// Whether it was changed last in this pipeline decides what an error means for it.
    pub(super) fn changes_in(&mut self, pipeline: u64) {
        self.since = pipeline;
    }

    /// It is not known any more: whoever uses it next prepares or closes it first.
    pub(super) fn forget(&mut self) {
        self.statement = Some(Unnamed::unknown());
    }

    /// It is known by other settings now.
    pub(super) fn restate(&mut self, statement: Arc<Unnamed>) {
        self.statement = Some(statement);
    }

    /// Whether it is this one, or none where this is none.
    pub(super) fn is(&self, other: Option<&Arc<Unnamed>>) -> bool {
        match (&self.statement, other) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The pipeline that last changed it.
    #[inline]
    pub(super) fn since(&self) -> u64 {
        self.since
    }

    /// Where its client parsed it.
    #[inline]
    pub(super) fn parsed_in(&self) -> Option<Parsed> {
        self.parsed
    }

    /// It has been prepared anew, and is another than its client has been told.
    pub(super) fn note_change(&mut self, waits: bool) {
        self.has_changed = waits;
    }

    #[inline]
    pub(super) fn has_changed(&self) -> bool {
        self.has_changed
    }

    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }
}
