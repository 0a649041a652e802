//! What is not known of a session until its server is asked, and the question.
//!
//! # Model
//! A statement whose text may have made state that does not move pins its client, and leaves an
//! [`Unverified`]: only the server knows whether there is such state. So does one that may have
//! ended state that pins. When the transaction is over, and the backend would be given back but for
//! the pin, the server is asked ([`crate::parts::pins::question`]); state that it reports as gone pins
//! no more.
//!
//! # Order
//! The question is sent before the client gets the answer that ends its transaction, and delays
//! only the client's next message, which waits for the server's answer.
//!
//! # Invariants
//! * only the server's own answer ends a pin; an error, or an unreadable answer, leaves it
//! * the server is not asked again if the client's statements have neither made nor ended anything
//!   since
//! * the server is not asked for a client that is pinned to the end, or by state that no question
//!   covers
//! * no question is in flight while a cancel may hit it: it is sent after that, before the client's
//!   next message

mod steps;

use std::sync::Arc;

use crate::parts::pins::question::{Answer, NAMES_MAX, Question};
use crate::parts::statements::shared::{Statement, same_parse_settings};
use crate::session::part::{Part, PartSet};
use crate::session::settings::{Settings, can_move};

/// Parts that end with the transaction: they need no question.
pub(crate) const PASSING: PartSet = PartSet::of(&[Part::SessionCatalog]);

/// What must be found out about a backend's session.
#[derive(Debug, Default)]
pub(crate) struct Unverified {
    parts: PartSet,
    /// Settings that may have other values than the books.
    names: Vec<Box<[u8]>>,
    /// Custom names and the role, if they may have been reset where no SET could follow: within a
    /// function, say.
    resets: Vec<Box<[u8]>>,
    /// The first pipeline that may have changed them.
    since: u64,
    /// Settings whose names are not known, or too many for a question.
    vague: bool,
    /// Some of them may have been reset, or undone by a rollback.
    exact: bool,
    /// Statements of PREPARE.
    noted: Noted,
    /// The number of the backend's transactions when the server was last asked.
    tried: Option<u64>,
    /// How often the question was cut off.
    cut_off: u8,
    /// A DISCARD ALL has come since: the server has its settings at the values that a RESET gives
    /// there.
    discarded: bool,
    /// Its client's settings were sent within the pipeline that put them in doubt, and have been
    /// rolled back with it: the server has the earlier values again, maybe another client's.
    reverted: bool,
    /// The question in flight.
    question: Option<Question>,
    answer: Option<Answer>,
}

/// What texts have shown of statements of PREPARE since the server was asked.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    prepared: Vec<NotedPrepare>,
    /// Some may have been removed.
    ended: bool,
}

#[derive(Debug)]
struct NotedPrepare {
    name: Box<[u8]>,
    /// The known settings in force before its text.
    settings: Settings,
    /// Other settings may have been in force.
    doubtful: bool,
    /// The same, even if they are unchanged after the transaction.
    unknown: bool,
    /// Statements to which Parses give this name; at most one of several has it.
    parsed: Vec<Arc<Statement>>,
}

impl Noted {
    fn add(&mut self, noted: NotedPrepare) {
        let known = self.prepared.iter_mut().find(|known| known.name == noted.name);
        if let Some(known) = known {
            // One of them has failed, or another has been removed in between.
            known.doubtful |=
                noted.doubtful || !same_parse_settings(&known.settings, &noted.settings);
            known.unknown |= noted.unknown;
            let is_new =
                |one: &Arc<Statement>| !known.parsed.iter().any(|old| Arc::ptr_eq(one, old));
            let new: Vec<_> = noted.parsed.into_iter().filter(is_new).collect();
            known.parsed.extend(new);
        } else if self.prepared.len() < NAMES_MAX || !noted.parsed.is_empty() {
            self.prepared.push(noted); // beyond that, it is not known
        }
    }

    fn of(&self, name: &[u8]) -> Option<&NotedPrepare> {
        self.prepared.iter().find(|known| *known.name == *name)
    }

    /// What the protocol may have prepared under this name.
    pub(crate) fn parsed(&self, name: &[u8]) -> &[Arc<Statement>] {
        self.of(name).map_or(&[], |noted| &noted.parsed)
    }

    /// The names that the protocol may have given.
    fn parsed_names(&self) -> impl Iterator<Item = &Box<[u8]>> {
        self.prepared.iter().filter(|noted| !noted.parsed.is_empty()).map(|noted| &noted.name)
    }

    /// Whether there are such names.
    pub(crate) fn has_parsed(&self) -> bool {
        self.parsed_names().next().is_some()
    }

    /// Whether a statement that existed before may be another one now.
    pub(crate) fn is_prepared_again(&self, name: &[u8]) -> bool {
        self.ended && self.of(name).is_some()
    }

    /// The settings under which a statement was prepared; `now` are those in force. `None` if they
    /// are not certain. `all_reported`: what no text has shown is the client's as well.
    pub(crate) fn settings_of(
        &self,
        name: &[u8],
        now: &Settings,
        all_reported: bool,
    ) -> Option<Settings> {
        let Some(known) = self.of(name) else { return all_reported.then(|| now.clone()) };
        let doubtful = known.doubtful && !same_parse_settings(&known.settings, now);
        (!doubtful && !known.unknown).then(|| known.settings.clone())
    }
}

impl Unverified {
    /// What is noted of statements of PREPARE.
    pub(crate) fn noted(&self) -> &Noted {
        &self.noted
    }

    /// Takes it out.
    pub(crate) fn take_noted(&mut self) -> Noted {
        std::mem::take(&mut self.noted)
    }

    /// Something has failed that may have undone the changes in question.
    pub(crate) fn undone(&mut self) {
        self.exact = true;
    }

    /// A DISCARD ALL has succeeded. Its client's start values are known, and no SET has restored
    /// them yet.
    pub(crate) fn discarded(&mut self) {
        self.discarded = !self.names.is_empty();
    }

    /// The pipeline that put settings in doubt has failed, and the client's settings within it have
    /// been rolled back.
    pub(crate) fn reverted(&mut self) {
        self.reverted = true;
    }

    /// The parts in question.
    pub(crate) fn parts(&self) -> PartSet {
        self.parts
    }

    /// Whether settings are in question.
    pub(crate) fn doubts_settings(&self) -> bool {
        self.vague || !self.names.is_empty()
    }

    /// Settings may have been changed and have the values again that they had before.
    pub(crate) fn may_be_undone(&self) -> bool {
        self.exact && !self.reverted && !self.discarded && self.doubts_settings()
    }

    /// The settings in question.
    pub(crate) fn names(&self) -> &[Box<[u8]>] {
        &self.names
    }

    /// Settings are in doubt again, because of what has followed a DISCARD ALL.
    fn begin_again_if_discarded(&mut self) {
        if std::mem::take(&mut self.discarded) {
            self.names.clear();
            self.resets.clear();
        }
    }

    fn add_name(&mut self, name: &[u8]) {
        if self.names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            return;
        }
        if self.names.len() < NAMES_MAX && can_move(name) {
            self.names.push(name.to_ascii_lowercase().into());
        } else {
            self.vague = true;
        }
    }
}
