//! Servers that report what their sessions hold: the report, and what follows from it.
//!
//! # Model
//! A server with the extension sends `hawser.state` before the ReadyForQuery of a transaction that
//! has changed it ([`crate::session::report`]). When the backend has come to rest after its client's
//! transaction, the last report is the truth about all parts that it covers: what it does not name
//! pins no more, what it names pins or moves, whatever the texts have shown. Only values that it
//! leaves out are asked for (see [`super::unverified`]).
//!
//! # Invariants
//! * a report never reaches a client
//! * a transaction that is not over changes nothing here: reports are of sessions at rest
//! * what a server connection has before its first client, or is left with on purpose
//!   (`connect_query`, `server_reset_query`), is nobody's: of such parts nothing is believed
//! * a report that cannot be read ends all this for the connection; its client keeps it to the end
//! * what a client may perhaps not set itself (a SECURITY DEFINER function has set it) does not move
//!
//! # The books are compared
//! Nobody but Hawser has changed anything between the end of its own queries and the client's first
//! message, nor in a transaction that has failed as a whole, nor where no report has come: there the
//! report must say what the books say ([`super::Backend::disagrees`]). Where it does not, the server
//! connection serves nobody any more, and that is counted. Compared are custom names and the role, whose
//! values are spelt in one way only.
//!
//! # Costs
//! No report, no pin, no doubt: the test of a pointer and a few bits. With one: its text is read and
//! compared with what the backend is known to have.
//!
//! # currval and lastval
//! `drawn_by` says whose value they would give. Anybody else's is discarded before a client's first
//! message. A client that draws keeps its backend until it asks: for as long as it likes if it has
//! asked before, else within the bounds of [`crate::pool::Asking`], also in a pool that has never
//! asked.

mod steps;

use crate::ids::ClientId;
use crate::pool::Reporting;
use crate::session::part::{Part, PartSet};
use crate::session::report::{COVERED, Report};
use crate::session::settings::{Settings, is_custom};

/// What a server has reported of a session.
#[derive(Debug)]
pub(super) struct SessionReport {
    /// The last report that has come.
    report: Report,
    /// It has come since it was last looked at.
    fresh: bool,
    /// What of it is no client's.
    unowned: Report,
    /// The custom names of which the backend's books know already.
    noted: Vec<Box<[u8]>>,
    /// The first pipeline that the report before did not tell of.
    since: u64,
    /// Something is set that does not move.
    stays: bool,
    /// There are settings without their values in the report, which may change unseen.
    untold: bool,
    /// Who has the backend, or had it last.
    holder: Option<ClientId>,
    /// Settings that the server reports, which have changed in this transaction.
    changed: Vec<Changed>,
    /// The books that agree with the report.
    compared: Settings,
    /// Whose value currval and lastval would give.
    drawn_by: Option<ClientId>,
    /// In this transaction they are asked for.
    asks: bool,
    /// They have been asked for since they were drawn.
    asked: bool,
    /// The client has kept the backend for that in vain since the last report.
    unasked: bool,
    _counted: Reporting,
}

/// A setting whose value the server has reported.
#[derive(Debug)]
struct Changed {
    name: Box<[u8]>,
    /// It had the server's own value before the transaction.
    was_own: bool,
    /// It has that now.
    is_own: bool,
}

impl Changed {
    /// It has come to the server's own value: by a RESET, or by a SET that the report tells of. What had
    /// that before has come back to it with the end of a LOCAL value, or a ROLLBACK.
    fn came_to_own(&self) -> bool {
        self.is_own && !self.was_own
    }
}

impl SessionReport {
    /// Of a server connection that reports this before its first client.
    pub(super) fn new(report: Report, counted: Reporting) -> Self {
        Self {
            report,
            fresh: true,
            unowned: Report::default(),
            noted: Vec::new(),
            since: 0,
            stays: false,
            untold: false,
            holder: None,
            changed: Vec::new(),
            compared: Settings::EMPTY,
            drawn_by: None,
            asks: false,
            asked: false,
            unasked: false,
            _counted: counted,
        }
    }

    /// The parts of which all is known.
    fn covered(&self) -> PartSet {
        COVERED.minus(self.unowned.parts)
    }

    fn may_draw(&self) -> bool {
        self.report.parts.contains(Part::SequenceValue)
    }

    /// Whether what currval and lastval answer is the client's own that has it.
    pub(super) fn is_drawn_by_holder(&self) -> bool {
        self.drawn_by.is_some() && self.drawn_by == self.holder
    }
}

/// What no command takes off, and of which a report tells that it has ended.
const TOLD_TO_END: PartSet = PartSet::of(&[Part::BackupInProgress, Part::ReplicationOrigin]);

/// What a report tells of beside the settings that the backend is known to have.
fn beside(report: &Report, applied: &Settings) -> Report {
    let mut beside = report.clone();
    beside.parts.remove(Part::SequenceValue); // that is known to be a client's
    beside.settings.retain(|set| applied.get(&set.name).is_none());
    beside.names.retain(|name| applied.get(name).is_none());
    beside
}

/// What must not be another client's, and has one spelling.
fn is_compared(name: &[u8]) -> bool {
    is_custom(name) || name == b"role"
}

/// A custom name that has been reset stays with an empty value, and no role is `none`.
fn significant(name: &[u8], value: Option<&[u8]>) -> Option<Vec<u8>> {
    let none: &[u8] = if name == b"role" { b"none" } else { b"" };
    value.filter(|value| !value.is_empty() && *value != none).map(Into::into)
}
