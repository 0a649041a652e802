//! The statements that the server has.

use crate::parts::settings::restore::LongerTexts;
use crate::parts::sql_prepare::BackendSql;
use crate::parts::statements::description::Seen;
use crate::parts::statements::prepared_on_server::BackendStatements;
use crate::parts::statements::replay::Replay;
use crate::parts::statements::unnamed::ServerUnnamed;

/// The statements that the server has.
pub(crate) struct PreparedThere {
    statements: BackendStatements,
    unnamed: ServerUnnamed,
    replay: Replay,
    longer: LongerTexts,
    by_sql: Option<Box<BackendSql>>,
    has_empty: bool,
    retries_sql: bool,
    uncertain: bool,
}

impl PreparedThere {
    /// None yet; `keep`: how many shared ones are kept.
    pub(crate) fn new(keep: usize) -> Self {
        Self {
            statements: BackendStatements::new(keep),
            unnamed: ServerUnnamed::default(),
            replay: Replay::default(),
            longer: LongerTexts::default(),
            by_sql: None,
            has_empty: false,
            retries_sql: true,
            uncertain: false,
        }
    }

    /// Shared prepared statements that the server has.
    #[inline]
    pub(crate) fn statements(&self) -> &BackendStatements {
        &self.statements
    }

    #[inline]
    pub(crate) fn statements_mut(&mut self) -> &mut BackendStatements {
        &mut self.statements
    }

    /// The server has described a portal of the statement that the client has bound last: it gives these rows.
    pub(crate) fn note_rows(&mut self, seen: &Seen, rows: u64) {
        self.statements.described_portal(seen.bound(), rows);
        seen.rows(rows);
    }

    /// The unnamed statement that the server has.
    #[inline]
    pub(crate) fn unnamed(&self) -> &ServerUnnamed {
        &self.unnamed
    }

    #[inline]
    pub(crate) fn unnamed_mut(&mut self) -> &mut ServerUnnamed {
        &mut self.unnamed
    }

    /// The pipeline in flight, in case it must be sent again.
    #[inline]
    pub(crate) fn replay(&self) -> &Replay {
        &self.replay
    }

    #[inline]
    pub(crate) fn replay_mut(&mut self) -> &mut Replay {
        &mut self.replay
    }

    /// It is not sent again: an answer came, or the client left.
    #[inline]
    pub(crate) fn forget_replay(&mut self) {
        self.replay.forget();
    }

    /// Where texts in flight are longer than their client sent them.
    #[inline]
    pub(crate) fn longer(&self) -> &LongerTexts {
        &self.longer
    }

    #[inline]
    pub(crate) fn longer_mut(&mut self) -> &mut LongerTexts {
        &mut self.longer
    }

    /// Statements of SQL's PREPARE that the server has and that move.
    #[inline]
    pub(crate) fn by_sql(&self) -> Option<&BackendSql> {
        self.by_sql.as_deref()
    }

    pub(crate) fn by_sql_mut(&mut self) -> Option<&mut BackendSql> {
        self.by_sql.as_deref_mut()
    }

    pub(crate) fn take_by_sql(&mut self) -> Option<Box<BackendSql>> {
        self.by_sql.take()
    }

    /// The server has these, and no others.
    pub(crate) fn set_by_sql(&mut self, there: Box<BackendSql>) {
        self.by_sql = Some(there);
    }

    pub(crate) fn forget_by_sql(&mut self) {
        self.by_sql = None;
    }

    /// Statements of SQL's PREPARE that could not be prepared are tried again, for a table may
    /// exist now.
    #[inline]
    pub(crate) fn retry_sql(&mut self) {
        self.retries_sql = true;
    }

    /// Whether they have not been tried since its client's last transaction.
    pub(crate) fn take_retry_of_sql(&mut self) -> bool {
        std::mem::take(&mut self.retries_sql)
    }

    /// Whether the server may have the empty statement (see
    /// [`crate::parts::statements::aborted`]).
    pub(crate) fn may_have_empty(&mut self, has: bool) {
        self.has_empty = has;
    }

    pub(crate) fn has_empty(&self) -> bool {
        self.has_empty
    }

    /// Whether the server may have shared statements, or others of Hawser's.
    pub(crate) fn may_have_any(&self) -> bool {
        self.uncertain || self.has_empty || !self.statements.is_empty()
    }

    /// A DISCARD ALL or DEALLOCATE ALL has been sent, or a Close has been ignored: each statement
    /// is closed before it is prepared.
    pub(crate) fn doubt(&mut self) {
        self.uncertain = true;
    }

    /// As [`Self::doubt`], for all shared statements.
    pub(crate) fn doubt_all(&mut self) {
        self.statements.clear_in_doubt();
        self.uncertain = true;
    }

    /// Whether the server may have statements that are not known.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.uncertain
    }

    /// The statements in doubt have been closed.
    pub(crate) fn is_certain(&mut self) {
        self.uncertain = false;
    }

    /// The statements in doubt are gone.
    pub(crate) fn all_went(&mut self) {
        self.uncertain = false;
        self.statements.settle();
    }

    /// All are certainly gone.
    pub(crate) fn forget_all(&mut self) {
        self.statements.clear();
        self.by_sql = None;
        self.uncertain = false;
    }
}
