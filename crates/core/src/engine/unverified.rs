//! What is not known of a session until its server is asked, and the asking.
//!
//! # Model
//! A statement whose text may have made state that does not move pins its client, and leaves a
//! [`Unverified`]: whether there is any is for the server to say. So does one that may have ended what
//! pins. When the transaction is over, and the backend would be given back but for the pin, the
//! server is asked ([`crate::session::question`]); what it says is gone pins no more.
//!
//! # Order
//! The question goes out before the client gets the answer that ends its transaction, and delays
//! nothing but the client's own next message, which waits for the server's word.
//!
//! # Invariants
//! * only the server's own answer ends a pin; an error, or what is no answer, leaves it
//! * a client whose statements neither made nor ended anything since is not asked for again
//! * who is pinned to the end, or by what nobody can ask for, is not asked for
//! * a question is not under way while a cancel may hit it: it is asked, then, when that has been sent,
//!   and before what the client sends next

mod steps;

use std::sync::Arc;

use crate::pool::statement::{Statement, same_parse_settings};
use crate::session::part::{Part, PartSet};
use crate::session::question::{Answer, NAMES_MAX, Question};
use crate::session::settings::{Settings, can_move};

/// Parts that end with the transaction: they need no question.
pub(super) const PASSING: PartSet = PartSet::of(&[Part::SessionCatalog]);

/// What is to be found out of a backend's session.
#[derive(Debug, Default)]
pub(super) struct Unverified {
    parts: PartSet,
    /// Settings that may have other values than is known.
    names: Vec<Box<[u8]>>,
    /// Custom names among them that a function or a block of code may have reset: then they are empty.
    resets: Vec<Box<[u8]>>,
    /// The first pipeline that may have changed them.
    since: u64,
    /// Settings of which the names are not known, or more than can be asked for.
    vague: bool,
    /// Some of them may have been reset, or undone by a rollback.
    exact: bool,
    /// Statements of PREPARE.
    noted: Noted,
    /// The transactions of the backend when the server was last asked.
    tried: Option<u64>,
    /// How often it was cut off.
    cut_off: u8,
    /// A DISCARD ALL has come since: what its settings are on the server now is what a RESET gives there.
    discarded: bool,
    /// Its client's settings went within the pipeline that put them in doubt, and have been taken back with all
    /// that it did: what the server has now is what was there before, perhaps another client's.
    reverted: bool,
    /// The question that is under way.
    question: Option<Question>,
    answer: Option<Answer>,
}

/// What texts have shown of statements of PREPARE since the server was asked.
#[derive(Debug, Default)]
pub(super) struct Noted {
    prepared: Vec<NotedPrepare>,
    /// Some may have been taken away.
    ended: bool,
}

#[derive(Debug)]
struct NotedPrepare {
    name: Box<[u8]>,
    /// What is known of the settings in force before its text.
    settings: Settings,
    /// They may have been others.
    doubtful: bool,
    /// And may be so although they are the same after the transaction.
    unknown: bool,
    /// What Parses give this name; of several, one has it at most.
    parsed: Vec<Arc<Statement>>,
}

impl Noted {
    fn add(&mut self, noted: NotedPrepare) {
        let known = self.prepared.iter_mut().find(|known| known.name == noted.name);
        if let Some(known) = known {
            // One of them has failed, or another has been taken away in between.
            known.doubtful |=
                noted.doubtful || !same_parse_settings(&known.settings, &noted.settings);
            known.unknown |= noted.unknown;
            let is_new =
                |one: &Arc<Statement>| !known.parsed.iter().any(|old| Arc::ptr_eq(one, old));
            let new: Vec<_> = noted.parsed.into_iter().filter(is_new).collect();
            known.parsed.extend(new);
        } else if self.prepared.len() < NAMES_MAX || !noted.parsed.is_empty() {
            self.prepared.push(noted); // beyond, it is not known
        }
    }

    fn of(&self, name: &[u8]) -> Option<&NotedPrepare> {
        self.prepared.iter().find(|known| *known.name == *name)
    }

    /// What the protocol may have prepared under this name.
    pub(super) fn parsed(&self, name: &[u8]) -> &[Arc<Statement>] {
        self.of(name).map_or(&[], |noted| &noted.parsed)
    }

    /// The names that the protocol may have given.
    fn parsed_names(&self) -> impl Iterator<Item = &Box<[u8]>> {
        self.prepared.iter().filter(|noted| !noted.parsed.is_empty()).map(|noted| &noted.name)
    }

    /// Whether there are such names.
    pub(super) fn has_parsed(&self) -> bool {
        self.parsed_names().next().is_some()
    }

    /// Whether one that was there before may be another by now.
    pub(super) fn is_prepared_anew(&self, name: &[u8]) -> bool {
        self.ended && self.of(name).is_some()
    }

    /// The settings under which a statement was prepared; `now` are those in force. `None` if they
    /// are not known for certain. `all_told`: what no text has shown is the client's all the same.
    pub(super) fn settings_of(
        &self,
        name: &[u8],
        now: &Settings,
        all_told: bool,
    ) -> Option<Settings> {
        let Some(known) = self.of(name) else { return all_told.then(|| now.clone()) };
        let doubtful = known.doubtful && !same_parse_settings(&known.settings, now);
        (!doubtful && !known.unknown).then(|| known.settings.clone())
    }
}

impl Unverified {
    /// What is noted of statements of PREPARE.
    pub(super) fn noted(&self) -> &Noted {
        &self.noted
    }

    /// The same, taken out.
    pub(super) fn take_noted(&mut self) -> Noted {
        std::mem::take(&mut self.noted)
    }

    /// Something has failed that may have undone what it was about.
    pub(super) fn undone(&mut self) {
        self.exact = true;
    }

    /// A DISCARD ALL has worked. Its client's start values are known, and no SET has brought them back yet.
    pub(super) fn discarded(&mut self) {
        self.discarded = !self.names.is_empty();
    }

    /// The pipeline that put settings in doubt has failed, and with it those of the client that went within.
    pub(super) fn reverted(&mut self) {
        self.reverted = true;
    }

    /// The parts that it is about.
    pub(super) fn parts(&self) -> PartSet {
        self.parts
    }

    /// The settings that it is about.
    pub(super) fn names(&self) -> &[Box<[u8]>] {
        &self.names
    }

    /// Settings are in doubt again, by what has come after a DISCARD ALL.
    fn begin_anew_if_discarded(&mut self) {
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
