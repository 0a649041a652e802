//! Servers that report the state of their sessions: the report, and what follows from it.
//!
//! # Model
//! A server with the extension sends `hawser.state` before the ReadyForQuery of a transaction that
//! has changed it ([`crate::parts::report::text`]). When the backend has come to rest after its
//! client's transaction, the last report is the truth about all parts that it covers: what it does
//! not name pins no more, what it names pins or moves, whatever the texts have shown. The server is
//! asked only for values that the report leaves out (see [`crate::parts::pins::unverified`]).
//!
//! # Invariants
//! * a report never reaches a client
//! * a transaction that is not over changes nothing here: a report describes a session at rest
//! * what a server connection has before its first client, or is left with on purpose
//!   (`connect_query`, `server_reset_query`), is unowned: reports of such parts are not used
//! * a report that cannot be read ends the use of reports for the connection; its client keeps it
//!   to the end
//! * what a client may not be able to set itself (a SECURITY DEFINER function has set it) does not
//!   move
//!
//! # The books are compared
//! Only Hawser can have changed anything between the end of its own queries and the client's first
//! message, in a transaction that has failed as a whole, and while no report has come: then the
//! report must agree with the books ([`crate::relay::Backend::disagrees`]). If it does not, the server
//! connection serves no further client, and that is counted. Custom names and the role are
//! compared, because their values have only one spelling; where users share backends, the role.
//!
//! # Costs
//! Without a report, a pin or a doubt: the test of a pointer and a few bits. With a report: its
//! text is read and compared with the backend's known state.
//!
//! # currval and lastval
//! `drawn_by` is the client whose value they would return. Another client's is discarded before a
//! client's first message. A client that draws keeps its backend until it asks: without bound if it
//! has asked before, else within the bounds of [`crate::parts::sequences::asking::Asking`], also in a pool that has
//! never asked.

pub(crate) mod count;
mod steps;
pub mod text;

use crate::ids::ClientId;
use crate::parts::report::count::Reporting;
use crate::parts::report::text::{COVERED, Report};
use crate::session::part::{Part, PartSet};
use crate::session::settings::{Settings, is_custom};

/// What a server has reported of a session.
#[derive(Debug)]
pub(crate) struct SessionReport {
    /// The last report that has come.
    report: Report,
    /// It has come since it was last processed.
    fresh: bool,
    /// The part of it that belongs to no client.
    unowned: Report,
    /// The custom names that the backend's books already have.
    noted: Vec<Box<[u8]>>,
    /// The first pipeline that the previous report did not cover.
    since: u64,
    /// A setting is set that does not move.
    stays: bool,
    /// The report has settings without their values, which may change unseen.
    unreported: bool,
    /// The client that has the backend, or had it last.
    holder: Option<ClientId>,
    /// Reported settings that have changed in this transaction.
    changed: Vec<Changed>,
    /// The books that agree with the report.
    compared: Settings,
    /// The client whose value currval and lastval would return.
    drawn_by: Option<ClientId>,
    /// This transaction asks for them.
    asks: bool,
    /// A client has asked for them since they were drawn.
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
    /// It has the server's own value now.
    is_own: bool,
}

impl Changed {
    /// It has got the server's own value: by a RESET, or by a SET that the report shows. A setting
    /// that had it before has got it back at the end of a LOCAL value, or by a ROLLBACK.
    fn came_to_own(&self) -> bool {
        self.is_own && !self.was_own
    }
}

impl SessionReport {
    /// For a server connection that reports this before its first client.
    pub(crate) fn new(report: Report, counted: Reporting) -> Self {
        Self {
            report,
            fresh: true,
            unowned: Report::default(),
            noted: Vec::new(),
            since: 0,
            stays: false,
            unreported: false,
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

    /// The parts that are completely known.
    fn covered(&self) -> PartSet {
        COVERED.minus(self.unowned.parts)
    }

    fn may_draw(&self) -> bool {
        self.report.parts.contains(Part::SequenceValue)
    }

    /// Whether currval and lastval return the current client's own values.
    pub(crate) fn is_drawn_by_holder(&self) -> bool {
        self.drawn_by.is_some() && self.drawn_by == self.holder
    }
}

/// State that no command removes, and whose end a report shows.
const END_IS_REPORTED: PartSet = PartSet::of(&[Part::BackupInProgress, Part::ReplicationOrigin]);

/// What a report contains in addition to the settings that the backend is known to have.
fn beside(report: &Report, applied: &Settings) -> Report {
    let mut beside = report.clone();
    beside.parts.remove(Part::SequenceValue); // that is known to be a client's
    beside.settings.retain(|set| applied.get(&set.name).is_none());
    beside.names.retain(|name| applied.get(name).is_none());
    beside
}

/// Whether this setting must not reach another client, and its values have one spelling each.
fn is_compared(name: &[u8]) -> bool {
    is_custom(name) || name == b"role"
}

/// A custom name that has been reset stays with an empty value, and no role is `none`.
fn significant(name: &[u8], value: Option<&[u8]>) -> Option<Vec<u8>> {
    let none: &[u8] = if name == b"role" { b"none" } else { b"" };
    value.filter(|value| !value.is_empty() && *value != none).map(Into::into)
}
