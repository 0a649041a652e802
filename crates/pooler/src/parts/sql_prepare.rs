//! Statements of SQL's PREPARE: kept for their client, prepared on the backend that it gets.
//!
//! # Model
//! After a transaction that may have changed them the server is asked which ones exist
//! ([`crate::parts::pins::unverified`]). Hawser keeps them for the client: name, text, and the settings in force
//! at the PREPARE, which parse analysis reads. Before the first message of a transaction the
//! backend's are made the client's: others' are deallocated, those that it lacks are prepared, each
//! as a simple query of Hawser's under the settings of its own PREPARE. The client's message waits
//! for the outcome.
//!
//! # Why all of them, and not what the message names
//! A Bind can name one, a query can look at the list, and later messages of the transaction are not
//! known. Only a plain simple query that begins no transaction does without (preparing waits for
//! locks on tables, too). A function in it that runs an EXECUTE fails: from then on the client gets
//! its statements before everything.
//!
//! # Where one cannot be prepared (its table is gone, its role has no rights any more)
//! A *stand-in* takes its name, so that DEALLOCATE and another PREPARE find what they would find.
//! It fails when it is executed, and its error is replaced by that of the PREPARE, which is roughly
//! what the client would get without a pooler. It is tried again before a later transaction.
//!
//! # Invariants
//! * a client that gets a backend never finds another client's statements there
//! * a statement that is not completely known (its text, its settings, its effects) pins
//! * texts never reach a log
//!
//! # Limits
//! Plans, and how often a statement was planned, stay with the server connection: a client that
//! looks at these (pg_prepared_statements, EXPLAIN EXECUTE) keeps it.

mod steps;

use std::sync::Arc;

use crate::parts::statements::shared::{Statement, StatementMemory};
use crate::relay::effects::{Effect, Effects};
use crate::session::part::{Part, PartSet};
use crate::session::scan::{ScanOptions, Verb, scan};
use crate::session::settings::Settings;
use crate::session::settings::quoting::write_string;
use crate::wire::error::{SqlState, field};

/// The error of a stand-in that is executed, before its number.
const STANDS_IN: &str = "hawser stands in for a statement that could not be prepared: ";

/// The longest error that is kept.
const ERROR_BYTES_MAX: usize = 4 * 1024;

/// The cost of a statement in addition to its texts.
const OVERHEAD_BYTES: usize = 200;

const THIS_PART: PartSet = PartSet::of(&[Part::SqlStatement]);

/// A statement of a client's.
#[derive(Debug)]
pub(crate) struct SqlStatement {
    pub(crate) name: Box<[u8]>,
    /// Its PREPARE.
    text: Box<[u8]>,
    /// The protocol has prepared it, and SQL has named it since.
    pub(crate) parsed: Option<Arc<Statement>>,
    /// Types of its parameters.
    types: Box<[u8]>,
    /// Settings in force at the PREPARE.
    settings: Settings,
    /// Everything is known that another backend needs for it.
    moves: bool,
    /// The effects of executing it on the session.
    effects: Option<Box<Effects>>,
    /// Where its texts are counted.
    memory: Arc<StatementMemory>,
}

impl SqlStatement {
    /// Its PREPARE.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    fn cost(&self) -> usize {
        self.name.len() + self.text.len() + self.types.len() + OVERHEAD_BYTES
    }
}

impl Drop for SqlStatement {
    fn drop(&mut self) {
        self.memory.unname(self.cost());
    }
}

/// The statements of a client.
#[derive(Default)]
pub(crate) struct ClientSql {
    all: Vec<Arc<SqlStatement>>,
    /// The client has looked at state that does not move.
    watched: bool,
    /// A function has missed one.
    missed: bool,
    /// Names of statements of the protocol that a function has missed, to be prepared under these.
    missed_names: Vec<Box<[u8]>>,
}

/// The state of a client's statement on a backend.
enum Standing {
    /// The backend has it.
    Prepared,
    /// The server has refused it, with this error.
    Refused(Box<[u8]>),
    /// The backend has the stand-in of this number in its place.
    StandsIn { number: u64, error: Box<[u8]> },
}

struct There {
    statement: Arc<SqlStatement>,
    standing: Standing,
}

/// The statements of a backend.
#[derive(Default)]
pub(crate) struct BackendSql {
    all: Vec<There>,
    /// The number of stand-ins so far.
    stand_ins: u64,
    /// A name was taken by a statement that no text had shown, and has been freed.
    freed: bool,
}

/// The PREPARE of this name in a text. The whole text if it has nothing else, for the server shows
/// everything around a statement, too. `None` if that is not certain.
fn prepare_in<'a>(text: &'a [u8], name: &[u8], options: ScanOptions) -> Option<&'a [u8]> {
    let findings = scan(text, options);
    if findings.unsure || findings.truncated {
        return None;
    }
    let is_it = |verb: &Verb| matches!(verb, Verb::Prepare(known) if known.as_bytes() == name);
    let mut found = findings.statements().filter(|statement| is_it(&statement.verb));
    let one = found.next()?;
    let own = if findings.count() == 1 { text } else { &text[one.range.clone()] };
    found.next().is_none().then_some(own)
}

/// Whether executing a statement has no other effect on a session than its PREPARE.
fn only_prepares(effects: &Effects) -> bool {
    effects.pins == THIS_PART
        && effects.ends.is_empty()
        && !effects.may(Effect::Spoils)
        && !effects.may(Effect::ReadsSequences)
        && !effects.may(Effect::Rereads)
        && effects.unusual.is_none()
}

/// Whether the error means that the name is taken.
fn is_taken(error: &[u8]) -> bool {
    field(error, b'C') == Some(&SqlState::DUPLICATE_PREPARED_STATEMENT.0[..])
}

fn write_name(name: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in name {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// The text of a stand-in: the planner folds the call, and fails.
fn stand_in(statement: &SqlStatement, number: u64) -> Vec<u8> {
    let mut text = b"PREPARE ".to_vec();
    write_name(&statement.name, &mut text);
    if !statement.types.is_empty() {
        text.push(b'(');
        text.extend_from_slice(&statement.types);
        text.push(b')');
    }
    text.extend_from_slice(b" AS SELECT pg_catalog.int4in(");
    write_string(format!("{STANDS_IN}{number}.").as_bytes(), &mut text);
    text.push(b')');
    text
}

impl BackendSql {
    fn place(&self, statement: &Arc<SqlStatement>) -> Option<usize> {
        self.all.iter().position(|there| Arc::ptr_eq(&there.statement, statement))
    }

    /// Whether any of these is neither prepared nor stood in for.
    fn lacks(&self, wanted: &[Arc<SqlStatement>]) -> bool {
        !self.are_all_there(wanted) && wanted.iter().any(|one| self.place(one).is_none())
    }

    /// Whether they are there in the desired order, which is checked first: this runs under the
    /// pool's lock.
    fn are_all_there(&self, wanted: &[Arc<SqlStatement>]) -> bool {
        let is_there = |(there, one): (&There, &Arc<SqlStatement>)| {
            Arc::ptr_eq(&there.statement, one) && matches!(there.standing, Standing::Prepared)
        };
        self.all.len() == wanted.len() && self.all.iter().zip(wanted).all(is_there)
    }
}
