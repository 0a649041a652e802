//! The statements that the server has.

use crate::parts::settings::restore::LongerTexts;
use crate::parts::sql_prepare::BackendSql;
use crate::parts::statements::description::Seen;
use crate::parts::statements::prepared_on_server::BackendStatements;
use crate::parts::statements::replay::Replay;
use crate::parts::statements::unnamed::ServerUnnamed;

/// The statements that the server has.
pub(crate) struct PreparedThere {
    /// Shared ones.
    pub(crate) statements: BackendStatements,
    pub(crate) unnamed: ServerUnnamed,
    /// The pipeline in flight, in case it must be sent again.
    pub(crate) replay: Replay,
    /// Where texts in flight are longer than their client sent them.
    pub(crate) longer: LongerTexts,
    /// Statements of SQL's PREPARE that move.
    pub(crate) by_sql: Option<Box<BackendSql>>,
    /// The server may have the empty statement (see [`crate::parts::statements::aborted`]).
    pub(crate) has_empty: bool,
    /// Statements of SQL's PREPARE that could not be prepared are tried again, for a table may
    /// exist now.
    pub(crate) retries_sql: bool,
    /// The server may have statements that are not known (a DISCARD ALL or DEALLOCATE ALL has been
    /// sent, or a Close has been ignored): each is closed before it is prepared.
    pub(crate) uncertain: bool,
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

    /// Whether it lets the plain lane run.
    #[inline]
    pub(crate) fn is_usual(&self) -> bool {
        let Self {
            statements,
            unnamed: _, // compared with each Parse
            replay,
            longer,
            by_sql,
            // For statements of SQL's PREPARE, and for the time when it is given back.
            has_empty: _,
            retries_sql: _,
            uncertain: _,
        } = self;
        !statements.keeps_none()
            && replay.is_idle()
            && longer.of_query().is_empty()
            && by_sql.is_none()
    }

    /// The server has described a portal of the statement that the client has bound last: it gives these rows.
    pub(crate) fn note_rows(&mut self, seen: &Seen, rows: u64) {
        self.statements.described_portal(seen.bound(), rows);
        seen.rows(rows);
    }

    /// Whether the server may have shared statements, or others of Hawser's.
    pub(crate) fn may_have_any(&self) -> bool {
        self.uncertain || self.has_empty || !self.statements.is_empty()
    }

    /// As [`Self::doubt`], for all shared statements.
    pub(crate) fn doubt_all(&mut self) {
        self.statements.clear_in_doubt();
        self.uncertain = true;
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
