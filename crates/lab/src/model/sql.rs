//! The statements that the model understands: a small, real subset of PostgreSQL's SQL.
//!
//! Every text that the parser accepts means the same to a real server that was prepared with
//! [`setup_sql`](super::catalog::setup_sql); that is what lets one script run against both.
//!
//! # Limits      one column type for tables (`v integer`), no expressions beyond those of [`Scalar`]

pub mod lexer;
pub mod parser;
mod question;

use std::time::Duration;

use hawser_pooler::session::part::Part;

pub use parser::parse;

/// A column's or parameter's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `boolean`
    Bool,
    /// `bigint`
    Int8,
    /// `name`
    Name,
    /// `integer`
    Int4,
    /// `text`
    Text,
    /// What functions return that return nothing.
    Void,
}

impl Type {
    /// The type's number in pg_type.
    #[must_use]
    pub fn oid(self) -> i32 {
        match self {
            Self::Bool => 16,
            Self::Name => 19,
            Self::Int8 => 20,
            Self::Int4 => 23,
            Self::Text => 25,
            Self::Void => 2278,
        }
    }

    /// The type's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "boolean",
            Self::Name => "name",
            Self::Int8 => "bigint",
            Self::Int4 => "integer",
            Self::Text => "text",
            Self::Void => "void",
        }
    }

    /// The type of that number, where the model has it.
    #[must_use]
    pub fn from_oid(oid: i32) -> Option<Self> {
        [Self::Bool, Self::Name, Self::Int8, Self::Int4, Self::Text, Self::Void]
            .into_iter()
            .find(|kind| kind.oid() == oid)
    }

    /// pg_type.typlen: bytes, or -1 where it varies.
    #[must_use]
    pub fn length(self) -> usize {
        match self {
            Self::Bool => 1,
            Self::Name => 64,
            Self::Int8 => 8,
            Self::Int4 | Self::Void => 4,
            Self::Text => 0xffff,
        }
    }
}

/// One value of a select list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scalar {
    /// `'text'`
    Text(String),
    /// `42`
    Int(i32),
    /// `NULL`, as an argument.
    Null,
    /// `$1`, by its number.
    Param(usize),
    /// `$1::int4`, which also names the column.
    Cast(usize, Type),
    /// `set_config(name, value, is_local)`
    SetConfig(Box<Scalar>, Box<Scalar>, bool),
    /// `set_config(...) IS NULL`
    IsNull(Box<Scalar>),
    /// `current_setting(name, missing_ok)`
    CurrentSetting(String, bool),
    /// `nextval('name')`
    Nextval(String),
    /// `currval('name')`
    Currval(String),
    /// `lastval()`
    Lastval,
    /// `pg_advisory_lock(key)`
    Lock(i64),
    /// `pg_try_advisory_lock(key)`
    TryLock(i64),
    /// `pg_advisory_unlock(key)`
    Unlock(i64),
    /// `pg_advisory_unlock_all()`
    UnlockAll,
    /// `pg_sleep(seconds)`
    Sleep(Duration),
    /// `current_user`
    CurrentUser,
    /// `pg_backend_pid()`
    BackendPid,
    /// `extract(epoch from '...'::timestamptz)::int8`: keeps the TimeZone of its analysis
    EpochOfTimestamp(String),
    /// `extract(epoch from '...'::interval)::int8`: keeps the IntervalStyle of its analysis
    EpochOfInterval(String),
    /// `'...'::date - '...'::date`: keeps the DateStyle of its analysis
    DaysBetween(String, String),
    /// Whether any of a part of the session is there, in the words in which a pooler asks.
    Holds(Part),
    /// The statements of SQL's PREPARE, and those of these names.
    Statements(Vec<String>),
    /// A setting's value, if it is another than the one that RESET gives.
    SetInSession(String),
    /// A function whose name and arguments do not show what it does to the session.
    Hidden(Hidden),
    /// `1/0`: fails when it is planned, not when it is parsed
    Divide(i32, i32),
    /// `int4in('...')` of what is no number: fails in the same way
    NoNumber(String),
}

/// What functions do without a word of it in the query that calls them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hidden {
    /// `hides_setting(name, value)`: `set_config(name, value, false)`
    Set(String, String),
    /// `hides_reset(name)`: `RESET name`
    Reset(String),
    /// `hides_lock(key)`: `pg_advisory_lock(key)`
    Lock(i64),
    /// `hides_unlock(key)`: `pg_advisory_unlock(key)`
    Unlock(i64),
    /// `hides_temp(name)`: `CREATE TEMP TABLE name (v int)`
    Temp(String),
}

/// How many rows a series has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Written in the statement.
    Fixed(i32),
    /// A parameter, by its number.
    Param(usize),
}

/// A query that returns rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// One row of values.
    Row(Vec<Scalar>),
    /// `lpad(g::text, width, '.') FROM generate_series(1, count) g`
    Series {
        /// Rows.
        count: Count,
        /// Bytes of each.
        width: i32,
    },
    /// `dividend/(fails_at - g) FROM generate_series(1, count) g`: fails in the middle of its rows
    Failing {
        /// What is divided.
        dividend: i32,
        /// The row, from 1, that divides by zero.
        fails_at: i32,
        /// Rows.
        count: Count,
    },
    /// `count(*), sum(v) FROM table`
    Totals(String),
    /// `pg_listening_channels()`
    Channels,
    /// `v FROM table`, for the tables that exist once in each schema.
    Values(String),
}

/// What DISCARD throws away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discard {
    /// All session state.
    All,
    /// Plans, not statements.
    Plans,
    /// What currval and lastval know.
    Sequences,
    /// Temporary tables.
    Temp,
}

/// A statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// BEGIN or START TRANSACTION, with READ ONLY or READ WRITE where given; and the tag, which
    /// tells the two apart.
    Begin(Option<bool>, &'static str),
    /// COMMIT or END
    Commit,
    /// ROLLBACK
    Rollback,
    /// SAVEPOINT
    Savepoint(String),
    /// ROLLBACK TO
    RollbackTo(String),
    /// RELEASE
    Release(String),
    /// SET, SET LOCAL and RESET of one name; no value is DEFAULT.
    Set {
        /// Ends with the transaction.
        local: bool,
        /// As written, but in lower case.
        name: String,
        /// The elements of the list; `None` restores the session's start value.
        value: Option<Vec<String>>,
        /// The command's tag is RESET.
        reset: bool,
    },
    /// RESET ALL
    ResetAll,
    /// SHOW
    Show(String),
    /// DISCARD
    Discard(Discard),
    /// PREPARE
    Prepare {
        /// The statement's name, shared with the protocol's Parse.
        name: String,
        /// Declared parameter types.
        types: Vec<Type>,
        /// The statement and its parameters.
        body: Box<Parsed>,
        /// The whole text in which it stands.
        text: String,
    },
    /// EXECUTE
    Execute(String, Vec<Scalar>),
    /// DEALLOCATE; `None` is ALL.
    Deallocate(Option<String>),
    /// LISTEN
    Listen(String),
    /// UNLISTEN; `None` is *.
    Unlisten(Option<String>),
    /// NOTIFY channel, payload
    Notify(String, String),
    /// CREATE TEMP TABLE name (v int), with ON COMMIT DROP or without.
    CreateTemp(String, bool),
    /// DROP TABLE
    Drop(String),
    /// DECLARE name CURSOR
    Declare {
        /// The cursor's name, shared with the protocol's portals.
        name: String,
        /// WITH HOLD
        hold: bool,
        /// What it reads.
        query: Select,
    },
    /// FETCH count FROM name
    Fetch(i32, String),
    /// CLOSE; `None` is ALL.
    Close(Option<String>),
    /// COPY table FROM STDIN
    CopyIn(String),
    /// COPY (SELECT v FROM table ORDER BY v) TO STDOUT
    CopyOut(String),
    /// INSERT INTO table VALUES (value) [RETURNING v]
    Insert {
        /// The table.
        table: String,
        /// An integer or a parameter.
        value: Scalar,
        /// RETURNING v
        returning: bool,
    },
    /// UPDATE table SET v = v + delta
    Update(String, i32),
    /// DELETE FROM table
    Delete(String),
    /// SELECT
    Select(Select),
}

impl Statement {
    /// The statements that a failed transaction still obeys.
    #[must_use]
    pub fn ends_transaction(&self) -> bool {
        matches!(self, Self::Commit | Self::Rollback | Self::RollbackTo(_))
    }

    /// Any statement that controls transactions.
    #[must_use]
    pub fn controls_transaction(&self) -> bool {
        self.ends_transaction()
            || matches!(self, Self::Begin(..) | Self::Savepoint(_) | Self::Release(_))
    }

    /// The statements that may be prepared by SQL's PREPARE and have a plan.
    #[must_use]
    pub fn is_query(&self) -> bool {
        matches!(self, Self::Select(_) | Self::Insert { .. } | Self::Update(..) | Self::Delete(_))
    }
}

/// A statement and the types of its parameters, `None` where nothing tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// What is to be done.
    pub statement: Statement,
    /// By number, from `$1`.
    pub params: Vec<Option<Type>>,
    /// The literal's text said `\` while standard_conforming_strings was off.
    pub nonstandard_escape: bool,
}
