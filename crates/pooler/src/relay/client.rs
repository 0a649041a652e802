//! A client: its desired state, and what is in flight for it.

mod at_socket;
mod serving;
mod session;
mod times;

use std::sync::Arc;

pub(crate) use self::at_socket::AtSocket;
pub(crate) use self::serving::Serving;
pub(crate) use self::session::ClientSession;
pub(crate) use self::times::{ClientTimes, TickCame};
use crate::hash::Keyed;
use crate::parts::settings::pending_reset::PendingReset;
use crate::parts::statements::client_names::{ClientStatement, Deallocated, significant};
use crate::parts::statements::description::Seen;
use crate::parts::statements::of_client::ClientPrepared;
use crate::parts::statements::shared::{Statement, StatementMemory};
use crate::relay::backend::Backend;
use crate::relay::client_info::{ClientAbout, ClientSecret, ClientState, PoolMode};
use crate::relay::limits;
use crate::relay::pending_bytes::PendingBytes;
use crate::relay::pending_session::{Farewell, PendingSession};
use crate::relay::socket::Socket;
use crate::session::part::{Part, PartSet};
use crate::session::scan::names_temporary_schema;
use crate::session::settings::Settings;
use crate::time::Time;
use crate::wire::frame::Framed;
use crate::wire::{TransactionStatus, build, frame};

/// Parts that a session has because of its start values alone, and that stay with a backend.
pub(crate) fn parts_of_start(start: &Settings) -> PartSet {
    let mut parts = PartSet::EMPTY;
    if start.get(b"search_path").is_some_and(names_temporary_schema) {
        parts.insert(Part::TemporaryObject); // a plain CREATE TABLE may create one
    }
    parts
}

/// Rarely needed state of a client, kept apart from what each message needs.
pub(crate) struct Record<S: Socket> {
    pub(crate) about: ClientAbout,
    pub(crate) secret: ClientSecret,
    /// The settings that it started with, as they differ from the server's own.
    pub(crate) start: Settings,
    pub(crate) _permit: S::Permit,
}

pub(crate) struct Client<S: Socket> {
    pub(crate) socket: S,
    pub(crate) backend: Option<Box<Backend<S>>>,
    pub(crate) record: Box<Record<S>>,
    /// Bytes read from it that could not be passed on yet.
    pub(crate) input: PendingBytes,
    /// Bytes for it that its socket did not take, or that wait for the end of the turn.
    pub(crate) output: PendingBytes,
    pub(crate) session: ClientSession,
    pub(crate) prepared: ClientPrepared,
    pub(crate) pending_session: Option<Box<PendingSession>>,
    pub(crate) times: ClientTimes,
    /// Index of its pool's view.
    pub(crate) pool: u32,
    /// How many backends it has had, one after the other: see [`crate::parts::sequences::drawn_values`].
    pub(crate) backends: u32,
    pub(crate) serving: Serving,
    pub(crate) at_socket: AtSocket,
}

impl<S: Socket> Client<S> {
    /// It has no backend and wants none from now on.
    #[inline]
    pub(crate) fn rest(&mut self, now: Time) {
        self.end_ruling();
        self.serving.state = ClientState::Idle;
        self.times.begin(now);
    }

    /// Whether its messages go to the server as they are: one backend serves it for its life.
    pub(crate) fn is_session_mode(&self) -> bool {
        self.serving.mode == PoolMode::Session
    }

    /// Whether it keeps its backend when its transaction ends.
    pub(crate) fn is_pinned(&self) -> bool {
        self.serving.mode == PoolMode::Session
            || !self.session.pins.is_empty()
            || self.reset_under_way().is_some_and(PendingReset::discards_all)
            || self.keeps_backend_to_listen()
    }

    /// Parts that pin it to this backend in any case: because of its own start values, or of the
    /// server's where that reports its search_path (PostgreSQL 18).
    pub(crate) fn lasting_pins(&self, backend: &Backend<S>) -> PartSet {
        if self.is_session_mode() {
            return PartSet::EMPTY;
        }
        let start = &self.record.start;
        let mut parts = parts_of_start(start);
        if backend.session.own.makes_temporary && start.get(b"search_path").is_none() {
            parts.insert(Part::TemporaryObject);
        }
        parts
    }

    /// Whether its backend may have prepared statements that only the server can remove, or ones
    /// that the client was shown there: by SQL, by a Parse that could not be shared, by a look at
    /// the list.
    pub(crate) fn has_statements_of_its_own_there(&self) -> bool {
        const THERE: PartSet = PartSet::of(&[
            Part::SqlStatement,
            Part::ProtocolStatement,
            Part::UnnamedStatement,
            Part::SessionCatalog,
        ]);
        self.is_session_mode()
            || self.session.pins.intersects(THERE)
            || !self.sql_statements().is_empty()
    }

    /// Whether the reading of later messages depends on the outcome of something in flight.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.reset_under_way().is_some()
    }

    /// Takes the reports that it is due at the end of its pipeline, where no server sends that.
    pub(crate) fn take_unreported(&mut self) -> Vec<u8> {
        self.pending_session.as_mut().map_or_else(Vec::new, |extra| extra.unreported.take())
    }

    /// Whether some of the current message has been processed already.
    #[inline]
    pub(crate) fn is_in_mid_message(&self) -> bool {
        self.backend.as_ref().is_some_and(|backend| backend.to_server.is_open())
            || self.pending_session.as_ref().is_some_and(|extra| extra.dropped.is_in_message())
    }

    /// Whether its messages are discarded until its Sync.
    pub(crate) fn is_skipping(&self) -> bool {
        self.pending_session.as_ref().is_some_and(|extra| extra.dropped.is_until_sync())
    }

    /// Whether it has sent Terminate, and only waits for answers.
    pub(crate) fn is_leaving(&self) -> bool {
        self.pending_session.as_ref().is_some_and(|extra| extra.farewell != Farewell::None)
    }

    /// Whether it has sent Terminate during a query, and closed its connection.
    pub(crate) fn has_given_up(&self) -> bool {
        let gave_up = Farewell::Gone { gave_up: true };
        self.pending_session.as_ref().is_some_and(|extra| extra.farewell == gave_up)
    }

    /// Whether it waits for a backend to complete its login.
    pub(crate) fn is_to_be_greeted(&self) -> bool {
        self.pending_session.as_ref().is_some_and(|extra| extra.greeting.is_some())
    }

    pub(crate) fn pending_session(&mut self) -> &mut PendingSession {
        self.pending_session.get_or_insert_with(Box::default)
    }

    /// Drops the pending session, if nothing of it is in flight any more.
    pub(crate) fn settle(&mut self) {
        self.pending_session.take_if(|extra| extra.is_empty());
    }

    /// Whether its next message has come, or as much of a long one as is passed on at once.
    pub(crate) fn has_next_message(&self) -> bool {
        matches!(frame::header(&self.input), Framed::Header(header)
            if self.input.len() >= header.total().min(limits::WHOLE_MESSAGE_BYTES))
    }

    /// Whether a cancel request has come for the current message.
    pub(crate) fn take_cancel(&mut self) -> bool {
        let Some(extra) = &mut self.pending_session else { return false };
        let follows = std::mem::take(&mut extra.cancel_follows);
        if follows {
            self.settle();
        }
        follows
    }

    /// Gives a statement a name, while the client has no server connection.
    pub(crate) fn name_statement(
        &mut self,
        name: &[u8],
        statement: ClientStatement,
        hash_key: Keyed,
        memory: &Arc<StatementMemory>,
    ) {
        let names = self.prepared.names(hash_key, memory);
        names.change(|names| names.insert(significant(name).into(), statement));
    }

    /// The description of a portal of this name will be the first description of the rows of its
    /// statement that the client gets.
    pub(crate) fn note_described(&mut self, portal: &[u8], seen: Arc<Seen>) {
        self.pending_session().portals.note_undescribed(portal, seen);
    }

    /// A portal of this name is bound to a statement: its description does not describe an earlier
    /// one.
    pub(crate) fn rebind(&mut self, portal: &[u8]) {
        if portal.is_empty() {
            self.prepared.bound = None;
        } else if let Some(extra) = &mut self.pending_session {
            extra.portals.forget_undescribed(portal);
        }
    }

    /// Where to note the description of a portal that the client gets.
    pub(crate) fn described_by(&self, portal: &[u8]) -> Option<Arc<Seen>> {
        if portal.is_empty() {
            return self.prepared.bound.as_ref().cloned();
        }
        self.pending_session.as_ref()?.portals.described_by(portal)
    }

    /// A name stands for another statement from now on.
    pub(crate) fn restate(&mut self, name: &[u8], statement: &Arc<Statement>) {
        if let Some(named) = self.prepared.named_mut(significant(name)) {
            named.statement = statement.clone();
        }
    }

    /// Removes a name, while nothing is outstanding. Returns whether it stood for a statement.
    pub(crate) fn forget_statement(&mut self, name: &[u8]) -> bool {
        debug_assert!(self.names_are_settled());
        let names = self.prepared.statements.as_deref_mut();
        names.is_some_and(|names| names.change(|names| names.remove(significant(name))))
    }

    /// Answers a Query that is nothing but a DEALLOCATE, in the server's place.
    pub(crate) fn deallocate(&mut self, deallocated: &Deallocated, status: TransactionStatus) {
        let tag: &[u8] = match deallocated {
            Deallocated::One(name) => {
                if !self.forget_statement(name) {
                    self.forget_sql_statement(name);
                }
                b"DEALLOCATE"
            }
            Deallocated::All => {
                debug_assert!(self.names_are_settled());
                self.prepared.statements = None;
                self.forget_sql_statements();
                b"DEALLOCATE ALL"
            }
        };
        // As any simple query does (`exec_simple_query`, postgres.c).
        self.prepared.unnamed = None;
        self.settle();
        let mut answer = Vec::with_capacity(32);
        build::command_complete(&mut answer, tag);
        build::ready_for_query(&mut answer, status);
        self.reply(&answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As large as what serves in production: a descriptor or a pointer.
    struct Descriptor(#[expect(dead_code, reason = "only its size counts")] Option<u64>);

    impl Socket for Descriptor {
        type Permit = [usize; 3];

        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            unreachable!()
        }
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            unreachable!()
        }
    }

    /// An idle client costs these two. Tens of thousands of clients multiply each byte.
    #[test]
    fn a_client_and_its_record_stay_small() {
        assert!(size_of::<Client<Descriptor>>() <= 136, "{}", size_of::<Client<Descriptor>>());
        assert!(size_of::<Record<Descriptor>>() <= 80, "{}", size_of::<Record<Descriptor>>());
    }
}
