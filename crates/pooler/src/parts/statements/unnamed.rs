//! The unnamed statement: the server's, and its client's with the changes in flight.
//!
//! # Model
//! ```text
//!                              give, take                     confirm
//!   Parse, Close, Query ───────────────────────► in flight ─────────────► the client's
//!                                                    │ ignore
//!                                                    └──► dropped
//! ```
//! As for names (see [`crate::parts::statements::journal`]), each change in flight has an entry in the queue of
//! requests, in the same order. A message sent while nothing is outstanding cannot be ignored: it
//! changes the client's at once. The client's unnamed statement is what the newest change in flight
//! says, else what is confirmed.
//!
//! # Invariant
//! While nothing is outstanding no change is in flight.

mod steps;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::parts::statements::shared::Unnamed;

/// The position of a Parse.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed {
    pipeline: u64,
    /// Something was executed before it in that pipeline, and may have changed the settings.
    after_setter: bool,
}

impl Parsed {
    /// Whether the settings at the end of this pipeline, which has changed them, may be those of
    /// the Parse.
    pub(crate) fn may_follow(self, ended: u64) -> bool {
        ended < self.pipeline || (ended == self.pipeline && self.after_setter)
    }
}

/// A change of the client's unnamed statement that the server has not answered yet.
#[derive(Debug)]
struct InFlight {
    /// The statement after it.
    makes: Option<Arc<Unnamed>>,
    /// Where that is parsed; `None` if Hawser prepares it.
    parsed: Option<Parsed>,
    /// Only the server knows the statement after it, so the client is pinned.
    native: bool,
}

/// The unnamed statement of a server connection, and since when it has that.
#[derive(Default, Debug)]
pub(crate) struct ServerUnnamed {
    /// Compared with its client's by identity.
    statement: Option<Arc<Unnamed>>,
    /// The pipeline that last changed it.
    since: u64,
    /// Changes of its client's that are in flight, the oldest first.
    in_flight: VecDeque<InFlight>,
    /// No confirmed change pins the client for its unnamed statement: one in flight does.
    pins_in_flight: bool,
    /// Where its client's confirmed one was parsed; `None` if Hawser prepared it.
    parsed: Option<Parsed>,
    /// Prepared again, it differs from its description to the client, whose message has waited for
    /// that.
    has_changed: bool,
}

impl ServerUnnamed {
    /// Its client, which has nothing outstanding, parses one in this pipeline.
    #[inline]
    pub(crate) fn parsed_alone(&mut self, statement: Arc<Unnamed>, pipeline: u64) {
        self.statement = Some(statement);
        self.since = pipeline;
        self.parsed = Some(Parsed { pipeline, after_setter: false });
    }

    /// Its client's own is prepared, or removed if the client has none, in this pipeline.
    pub(crate) fn brought(&mut self, statement: Option<Arc<Unnamed>>, pipeline: u64) {
        self.statement = statement;
        self.since = pipeline;
        *self.newest_parsed_mut() = None;
    }

    /// A Close, or a statement that is not examined, replaces it in this pipeline.
    pub(crate) fn closed(&mut self, pipeline: u64) {
        self.statement = None;
        self.since = pipeline;
    }

    /// A simple query removes it (`exec_simple_query`, postgres.c).
    pub(crate) fn taken_by_query(&mut self) {
        self.statement = None;
    }

    /// The pipeline that last changed it decides what an error means for it.
    pub(crate) fn changes_in(&mut self, pipeline: u64) {
        self.since = pipeline;
    }

    /// It is not known any more: the next use prepares or closes it first.
    pub(crate) fn forget(&mut self) {
        self.statement = Some(Unnamed::unknown());
    }

    /// Whether it is this one, or none if this is none.
    pub(crate) fn is(&self, other: Option<&Arc<Unnamed>>) -> bool {
        match (&self.statement, other) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The pipeline that last changed it.
    #[inline]
    pub(crate) fn since(&self) -> u64 {
        self.since
    }

    /// It has been prepared again, and differs from its description to the client.
    pub(crate) fn note_change(&mut self, waits: bool) {
        self.has_changed = waits;
    }

    #[inline]
    pub(crate) fn has_changed(&self) -> bool {
        self.has_changed
    }

    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }
}

/// Changes in flight.
impl ServerUnnamed {
    /// The client's, for a message that is sent now. `confirmed`: the confirmed one.
    #[inline]
    pub(crate) fn of_client<'a>(
        &'a self,
        confirmed: Option<&'a Arc<Unnamed>>,
    ) -> Option<&'a Arc<Unnamed>> {
        match self.in_flight.back() {
            Some(newest) => newest.makes.as_ref(),
            None => confirmed,
        }
    }

    /// The client's same statement is known under other settings, or by another body.
    pub(crate) fn restate(&mut self, confirmed: &mut Option<Arc<Unnamed>>, again: Arc<Unnamed>) {
        match self.in_flight.back_mut() {
            Some(newest) => newest.makes = Some(again),
            None => *confirmed = Some(again),
        }
    }

    fn newest_parsed_mut(&mut self) -> &mut Option<Parsed> {
        match self.in_flight.back_mut() {
            Some(newest) => &mut newest.parsed,
            None => &mut self.parsed,
        }
    }

    /// A pipeline that has ended has changed settings: `again` replaces each statement that may
    /// have been parsed after that.
    fn restate_after(
        &mut self,
        confirmed: &mut Option<Arc<Unnamed>>,
        ended: u64,
        again: impl Fn(&Unnamed) -> Arc<Unnamed>,
    ) {
        let Self { statement, in_flight, parsed, .. } = self;
        let in_flight = in_flight.iter_mut().map(|change| (&mut change.makes, change.parsed));
        let may_follow = |parsed: Option<Parsed>| parsed.is_some_and(|one| one.may_follow(ended));
        for (known, _) in
            [(confirmed, *parsed)].into_iter().chain(in_flight).filter(|(_, at)| may_follow(*at))
        {
            let Some(before) = known.take() else { continue };
            let after = again(&before);
            if statement.as_ref().is_some_and(|there| Arc::ptr_eq(there, &before)) {
                *statement = Some(after.clone());
            }
            *known = Some(after);
        }
    }

    /// The server has answered the oldest change.
    pub(crate) fn confirm(&mut self, confirmed: &mut Option<Arc<Unnamed>>) {
        debug_assert!(!self.in_flight.is_empty(), "an entry of the queue is of no change");
        if let Some(InFlight { makes, parsed, native }) = self.in_flight.pop_front() {
            (*confirmed, self.parsed) = (makes, parsed);
            self.pins_in_flight &= !native;
        }
    }

    /// The server has refused or ignored the message of the oldest change. Returns whether the
    /// client is not pinned any more.
    pub(crate) fn ignore(&mut self) -> bool {
        debug_assert!(!self.in_flight.is_empty(), "an entry of the queue is of no change");
        self.in_flight.pop_front();
        let unpins = self.pins_in_flight && !self.in_flight.iter().any(|change| change.native);
        self.pins_in_flight &= !unpins;
        unpins
    }

    /// The client has left: the outcome of its changes does not matter.
    #[inline]
    pub(crate) fn leave_client(&mut self) {
        if self.in_flight.capacity() > 0 {
            self.in_flight = VecDeque::new();
        }
        self.pins_in_flight = false;
        self.parsed = None;
        self.has_changed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::statements::schema_epoch::SchemaEpoch;
    use crate::seeded::Random;
    use crate::session::settings::Settings;

    fn statement(text: &str) -> Arc<Unnamed> {
        Unnamed::new(text.as_bytes(), Settings::EMPTY, None, SchemaEpoch::NEVER)
    }

    /// Compared with a list of all changes, of which those count that were not ignored.
    #[test]
    fn the_clients_is_what_is_confirmed_with_what_is_in_flight() {
        for seed in 0..200 {
            let mut random = Random::of_seed(seed);
            let (mut server, mut confirmed) = (ServerUnnamed::default(), None);
            let mut expected: (Option<Arc<Unnamed>>, VecDeque<_>) = (None, VecDeque::new());
            for number in 0..100 {
                match random.below(6) {
                    0..=2 => {
                        let makes = (random.below(3) > 0).then(|| statement(&number.to_string()));
                        let change = InFlight { makes: makes.clone(), parsed: None, native: false };
                        server.in_flight.push_back(change);
                        expected.1.push_back(makes);
                    }
                    3 | 4 => {
                        if let Some(done) = expected.1.pop_front() {
                            server.confirm(&mut confirmed);
                            expected.0 = done;
                        }
                    }
                    _ => {
                        if expected.1.pop_front().is_some() {
                            server.ignore();
                        }
                    }
                }
                let newest = expected.1.back().unwrap_or(&expected.0);
                assert_eq!(
                    server.of_client(confirmed.as_ref()).map(|one| &one.body),
                    newest.as_ref().map(|one| &one.body)
                );
            }
        }
    }

    #[test]
    fn what_was_parsed_after_a_change_of_settings_is_known_by_the_new_ones() {
        let of = |pipeline, after_setter| Some(Parsed { pipeline, after_setter });
        let old = statement("old");
        let mut server = ServerUnnamed { parsed: of(1, false), ..ServerUnnamed::default() };
        let mut confirmed = Some(old.clone());
        for (text, parsed) in
            [("same", of(2, false)), ("after", of(2, true)), ("later", of(3, false))]
        {
            let makes = Some(statement(text));
            server.in_flight.push_back(InFlight { makes, parsed, native: false });
        }
        server.statement = server.in_flight[2].makes.clone();
        server.restate_after(&mut confirmed, 2, |before| {
            statement(&format!("{} again", before.text().escape_ascii()))
        });
        let text = |one: &Option<Arc<Unnamed>>| one.as_ref().map(|one| one.text().to_vec());
        assert!(Arc::ptr_eq(confirmed.as_ref().expect("one"), &old));
        assert_eq!(text(&server.in_flight[0].makes).as_deref(), Some(&b"same"[..]));
        assert_eq!(text(&server.in_flight[1].makes).as_deref(), Some(&b"after again"[..]));
        assert!(server.is(server.in_flight[2].makes.as_ref()), "the server's is the same one");
    }
}
