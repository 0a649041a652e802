//! Prepared statements and portals, as a session keeps them. [`super::plan`] makes them.

use std::collections::VecDeque;

use super::error::PgError;
use super::sql::{Parsed, Statement, Type};

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: Type,
}

/// A value; `None` is NULL.
pub(super) type Datum = Option<String>;

/// What analysis has fixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Analysis {
    pub(super) columns: Option<Vec<Column>>,
    /// The folded literals of a row, by position.
    pub(super) folded: Vec<Datum>,
    pub(super) relation: Option<Relation>,
    /// The search path and [`plan_epoch`](super::session::Session::plan_epoch) at the time.
    pub(super) path: Vec<String>,
    pub(super) epoch: u64,
}

/// A table that a name has led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Relation {
    Temp(String),
    Table(String),
    /// One of the `probe` tables, by its value.
    Probe(&'static str),
}

/// A prepared statement.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    /// `None` for an empty text.
    pub(super) parsed: Option<Parsed>,
    pub(super) params: Vec<Type>,
    pub(super) analysis: Analysis,
    /// Which of all it is, and its text: that of the PREPARE, if it is SQL's.
    pub(super) sent: (u64, String),
    pub(super) from_sql: bool,
}

/// A portal or cursor.
#[derive(Debug, Clone)]
pub(super) struct Portal {
    pub(super) statement: Option<Statement>,
    pub(super) analysis: Analysis,
    pub(super) params: Vec<Datum>,
    /// Result formats as given: none, one for all, or one for each column.
    pub(super) formats: Vec<bool>,
    pub(super) progress: Progress,
    /// Savepoints that were open at its creation; `None` once its transaction has committed.
    pub(super) created_at: Option<usize>,
    pub(super) hold: bool,
}

/// How far a portal has been run.
#[derive(Debug, Clone)]
pub(super) enum Progress {
    New,
    /// Rows still to be sent, the error that follows them, and the tag for the end.
    Rows(VecDeque<Vec<Datum>>, Option<PgError>, &'static str),
    Done,
}

impl Portal {
    pub(super) fn format(&self, column: usize) -> bool {
        match self.formats.as_slice() {
            [] => false,
            [all] => *all,
            each => each.get(column).copied().unwrap_or(false),
        }
    }
}
