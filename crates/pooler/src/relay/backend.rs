//! A server connection and what has been applied to it.

mod cancelling;
mod from_server;
mod identity;
mod known;
mod lending;

use std::sync::Arc;

pub(crate) use self::lending::{Reset, Tidying};
use crate::ids::{BackendId, LoopId, ServerAddressId, Slot};
use crate::lending::{Fidelity, SharedPool};
use crate::parts::identity::hand_over::HandOverKey;
use crate::parts::identity::ownership::Ownership;
use crate::parts::report::SessionReport;
use crate::parts::report::text::Report;
use crate::parts::settings::applied::{AppliedSession, FunctionPlans};
use crate::parts::start_values::parameters::ServerParameters;
use crate::parts::statements::of_server::PreparedThere;
use crate::queries::counting::Counting;
use crate::relay::backend::from_server::FromServer;
use crate::relay::backend::identity::Identity;
use crate::relay::backend::known::Known;
use crate::relay::backend::lending::Lending;
use crate::relay::effects::{Effect, Effects};
use crate::relay::request_queue::RequestQueue;
use crate::relay::sent_before::Ahead;
use crate::relay::socket::Socket;
use crate::relay::to_server::ToServer;
use crate::session::settings::Settings;
use crate::time::Time;
use crate::wire::TransactionStatus;

/// A pool of backends over sockets of kind `S`.
pub type PoolRef<S> = Arc<SharedPool<Box<Backend<S>>>>;

/// A server connection that has just been opened and logged in, idle.
pub struct BackendSeed<S: Socket> {
    /// Its id.
    pub id: BackendId,
    /// Its connection.
    pub socket: S,
    /// The pool it is for.
    pub pool: PoolRef<S>,
    /// What the server reported at connect.
    pub parameters: Arc<ServerParameters>,
    /// What the server has reported of its session, if it reports. It includes what was done since
    /// the connection was opened.
    pub report: Option<Report>,
    /// The key that hands it over to its clients, in a pool that users share.
    pub hand_over: Option<HandOverKey>,
    /// Process id from BackendKeyData.
    pub process: u32,
    /// Key from BackendKeyData.
    pub key: Box<[u8]>,
    /// The index among the configured server addresses.
    pub server: ServerAddressId,
    /// The pool's epoch when the opening began.
    pub epoch: u32,
    /// When it was opened.
    pub opened: Time,
    /// Frees its place under the limits on server connections when it is dropped.
    pub permit: Box<dyn std::any::Any + Send>,
}

/// A server connection and what has been applied to it.
pub struct Backend<S: Socket> {
    pub(crate) socket: S,
    pub(crate) pool: PoolRef<S>,
    /// What it has not answered yet.
    pub(crate) requests: RequestQueue,
    /// What is written to the server.
    pub(crate) to_server: ToServer,
    /// What has been sent for the current message, which waits.
    pub(crate) ahead: Ahead,
    identity: Identity,
    pub(crate) from_server: FromServer,
    pub(crate) session: AppliedSession,
    pub(crate) prepared: PreparedThere,
    pub(crate) lending: Lending,
    pub(crate) counting: Counting,
    pub(crate) known: Known,
    pub(crate) owner: Ownership,
}

impl<S: Socket> Backend<S> {
    /// From what the dialler gives.
    pub(crate) fn new(seed: BackendSeed<S>, home: LoopId, place: Slot) -> Self {
        let keep = seed.pool.settings().max_prepared_statements as usize;
        seed.pool.note_opened(seed.server, seed.epoch);
        let report = seed.report.filter(|_| seed.pool.trusts_reports());
        let of_report = |report| Box::new(SessionReport::new(report, seed.pool.reporting.one()));
        let known = Known::new(&seed.pool, report.map(of_report));
        let owner = Ownership::new(&seed.pool, seed.hand_over, &seed.parameters);
        let basis = owner.basis_of(&seed.pool, &seed.parameters);
        let mut backend = Self {
            socket: seed.socket,
            pool: seed.pool,
            requests: RequestQueue::default(),
            to_server: ToServer::default(),
            ahead: Ahead::default(),
            identity: Identity {
                id: seed.id,
                process: seed.process,
                key: seed.key,
                server: seed.server,
                epoch: seed.epoch,
                opened: seed.opened,
                place,
                home,
                _permit: seed.permit,
            },
            from_server: FromServer::new(),
            session: AppliedSession::new(seed.parameters, basis),
            prepared: PreparedThere::new(keep),
            lending: Lending::new(seed.opened),
            counting: Counting::default(),
            known,
            owner,
        };
        backend.leave_unowned(true);
        backend
    }

    /// Its id.
    pub fn id(&self) -> BackendId {
        self.identity.id
    }

    /// Its connection, e.g. for its socket's statistics.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// Its connection, to send Terminate to the server.
    pub fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// The server's process id.
    pub fn process(&self) -> u32 {
        self.identity.process
    }

    #[cfg(test)]
    pub(crate) fn set_process(&mut self, process: u32) {
        self.identity.process = process;
    }

    /// The index among the configured server addresses.
    pub fn server(&self) -> ServerAddressId {
        self.identity.server
    }

    /// When it was opened.
    pub fn opened(&self) -> Time {
        self.identity.opened
    }

    /// The epoch of its pool in which its opening began.
    pub fn epoch(&self) -> u32 {
        self.identity.epoch
    }

    /// The settings in force, as they differ from the server's own.
    pub fn applied(&self) -> &Settings {
        &self.session.applied
    }

    /// Its place in its home loop's table.
    pub fn place(&self) -> Slot {
        self.identity.place
    }

    /// The loop that watches it.
    pub(crate) fn home(&self) -> LoopId {
        self.identity.home
    }

    /// Another loop watches it from now on, at this place of its table.
    pub(crate) fn move_to(&mut self, home: LoopId, place: Slot) {
        (self.identity.home, self.identity.place) = (home, place);
    }

    /// The server's own values have changed.
    pub(crate) fn take_parameters(&mut self, parameters: Arc<ServerParameters>) {
        let basis = self.owner.basis_of(&self.pool, &parameters);
        self.session.take_parameters(parameters, basis);
    }

    /// Whether a message of the server's has been passed on in part: the client would read anything
    /// sent now as the rest of it.
    #[inline]
    pub(crate) fn is_in_mid_answer(&self) -> bool {
        self.from_server.is_in_mid_message()
    }

    /// Whether the server owes nothing and is in no transaction, no message is half sent, and
    /// nothing was sent for a message that still waits.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.from_server.has_gone()
            && !self.ahead.waits()
            && !self.prepared.replay.is_healing()
            && self.requests.is_at_rest()
            && self.from_server.status() == TransactionStatus::Idle
            && !self.to_server.is_open()
            && !self.is_in_mid_answer()
            && self.from_server.kept().is_empty()
            && self.to_server.is_empty()
    }

    /// Whether no transaction is open, nothing is outstanding, and no pipeline has begun.
    pub(crate) fn is_between_transactions(&self) -> bool {
        self.from_server.status() == TransactionStatus::Idle
            && self.requests.is_empty()
            && !self.requests.is_in_pipeline()
    }

    /// Whether its transaction has failed, or may have: what the client sends after a COPY may go to a
    /// server that has refused the data.
    pub(crate) fn may_have_failed(&self) -> bool {
        self.from_server.status() == TransactionStatus::Failed || self.requests.is_copying_in()
    }

    /// A client may leave state that only the end of the connection removes.
    pub(crate) fn spoil_for_good(&mut self) {
        self.lending.spoil("a client may have changed what cannot be undone");
    }

    /// Whether a simple query in a pipeline that a Sync ends later makes the server's next
    /// statement fail, whichever client sends it (XX000, "StartTransactionCommand: unexpected state
    /// STARTED"). PostgreSQL 18 does that; 15 and 17 do not.
    pub(crate) fn is_left_started_by_mixed_pipelines(&self) -> bool {
        self.session.own.parameters.major_version() >= 18
    }

    /// The effects of a text, together with those of the functions that it may call.
    #[inline]
    pub(crate) fn with_functions(&self, text: &[u8], effects: Effects) -> Effects {
        match self.known.functions.as_deref() {
            None => effects,
            Some(functions) => {
                let reported = self.known.session_report.is_some();
                let mut effects = functions.add_to(effects, text, reported);
                if effects.may(Effect::ExecutesStrings) {
                    let mut all = effects.clone();
                    all.and_of_executed_strings(text, |name| self.reports(name));
                    effects = self.as_far_as_unreported(&effects, all);
                }
                effects
            }
        }
    }

    /// What a statement with these effects does if it executes one of these values. `None`: nothing more.
    pub(crate) fn effects_of_values<'a>(
        &self,
        effects: &Effects,
        values: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<Effects> {
        if !effects.may(Effect::ExecutesStrings) {
            return None;
        }
        let mut all = effects.clone();
        let more = all.and_of_executed_values(values, |name| self.reports(name));
        more.then(|| self.as_far_as_unreported(effects, all))
    }

    /// `all`, or, of a server that reports, what it does not report of them, beside `effects`.
    fn as_far_as_unreported(&self, effects: &Effects, all: Effects) -> Effects {
        if self.known.session_report.is_none() {
            return all;
        }
        let mut unreported = effects.clone();
        unreported.absorb(&all.unreported());
        unreported
    }

    /// Whether the server reports this setting, given in lower case.
    fn reports(&self, name: &[u8]) -> bool {
        self.session.own.parameters.get(name).is_some()
    }

    /// The effects of the functions that a text may call, where the text itself has none. `None`:
    /// there are none.
    #[inline]
    pub(crate) fn effects_of_functions(&self, text: &[u8]) -> Option<Effects> {
        let functions = self.known.functions.as_deref()?;
        (!functions.say_nothing_of(text)).then(|| self.with_functions(text, Effects::default()))
    }

    /// Whether the plans of functions that the process keeps are its client's own, or were made
    /// under these settings. (Where no function keeps plans, this is neither checked nor tracked.)
    #[inline]
    pub(crate) fn has_function_plans_of(&mut self, settings: &Settings) -> bool {
        if !self.known.keeps_plans || self.session.function_plans_are_own {
            return true;
        }
        match &self.session.function_plans {
            FunctionPlans::Under(basis, known) if *basis == self.session.own.basis => {
                if known.is_shared_with(settings) {
                    return true;
                }
                if !self.pool.statements.give_alike(known, settings) {
                    return false;
                }
            }
            FunctionPlans::None if self.lending.transactions == 0 => {
                self.session.function_plans_are_own = true;
            }
            _ => return false,
        }
        self.session.plan_functions_under(settings);
        true
    }

    /// A text with these effects is sent: later texts may call what it makes.
    pub(crate) fn foresee(&mut self, text: &[u8], effects: &Effects) {
        if !effects.may(Effect::ChangesCatalog) {
            return;
        }
        let reported = |name: &[u8]| self.session.own.parameters.get(name).is_some();
        if let Some(foreseen) = self.pool.foresee(text, reported) {
            self.known.side_effects.foresee(foreseen);
            self.known.learn_functions(&self.pool);
        }
    }

    /// Whether its clients lose state that does not move. (Takes a lock: not for each message.)
    pub(crate) fn is_classic(&self) -> bool {
        self.pool.settings().fidelity == Fidelity::Classic
    }

    /// Whether each client has its own statements of the protocol (max_prepared_statements = 0).
    pub(crate) fn shares_nothing(&self) -> bool {
        self.prepared.statements.keeps_none()
    }

    /// The application_name in force.
    pub(crate) fn application_name(&self) -> String {
        let value = match self.session.applied.get(b"application_name") {
            Some(value) => value,
            None => self.session.own.parameters.get(b"application_name").unwrap_or_default(),
        };
        String::from_utf8_lossy(value).into_owned()
    }
}
