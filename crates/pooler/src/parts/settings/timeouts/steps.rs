//! Short timeouts: taken off for statements of Hawser's own, and given back.

use crate::ids::Slot;
use crate::parts::settings::timeouts::{NAME, is_cut_off, is_short, without_short_timeout};
use crate::relay::backend::Backend;
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::halt::Halt;
use crate::relay::host::Host;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::session::settings::{Settings, SettingsBuilder, write_set_query};
use crate::time::Time;
use crate::wire::{TransactionStatus, build};

impl<S: Socket> Backend<S> {
    /// Whether it has a short timeout that this client does not have.
    #[inline]
    pub(crate) fn must_lift_for(&self, desired: &Settings) -> bool {
        self.session.applied != *desired
            && is_short(&self.session.applied, NAME)
            && self.session.applied.get(NAME) != desired.get(NAME)
    }

    /// Appends the statement that lifts a short timeout. Returns whether there is one.
    fn lift_timeout(&mut self, out: &mut Vec<u8>) -> bool {
        if !is_short(&self.session.applied, NAME) {
            return false;
        }
        for _ in ["it", "what its own timer leaves"] {
            build::query(out, b"SET statement_timeout TO 0");
            self.request(Request::InjectedLift);
        }
        self.prepared.unnamed.taken_by_query();
        self.ahead.begin();
        true
    }

    /// Whether a short timeout is being lifted.
    pub(crate) fn is_lifting(&self) -> bool {
        self.requests.back() == Some(Request::InjectedLift)
    }

    /// Its client has just got it: lifts a short timeout. `true` if that is in flight.
    pub(crate) fn lift_alone(&mut self) -> Result<bool, Halt> {
        if self.is_lifting() {
            return Ok(true);
        }
        if self.requests.is_empty() {
            self.ahead.end();
        }
        let mut out = Vec::new();
        if !self.is_at_rest() || !self.lift_timeout(&mut out) {
            return Ok(false);
        }
        self.send(&out)?;
        Ok(true)
    }

    /// One of the two has failed. Returns whether that is harmless.
    pub(crate) fn lift_failed(&mut self, error: &[u8]) -> bool {
        if self.requests.second() == Some(Request::InjectedLift) {
            self.session.lifts.fail();
        }
        is_cut_off(error) && self.session.lifts.may_go_on()
    }

    /// One of the two has ended. Returns whether it was the second.
    pub(crate) fn lift_ended(&mut self) -> bool {
        if self.requests.front() == Some(Request::InjectedLift) {
            return false;
        }
        let value = self.session.lifts.end();
        let mut applied = SettingsBuilder::from(&self.session.applied);
        applied.set(NAME, value);
        self.session.applied = self.pool.interner().share(applied.build());
        true
    }

    /// Appends the setting that is still missing: a short timeout. No statement of Hawser's
    /// follows.
    pub(crate) fn apply_timeout(&mut self, desired: &Settings, out: &mut Vec<u8>) {
        if self.session.applied == *desired {
            return;
        }
        debug_assert!(without_short_timeout(desired) == self.session.applied, "all else is there");
        let before = std::mem::replace(&mut self.session.applied, desired.clone());
        let mut text = Vec::new();
        write_set_query(before.diff(desired), &mut text);
        self.inject_query(&text, out);
    }
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// A query of Hawser's precedes a client's transaction: not under a short timeout.
    pub(crate) fn lift_first(&mut self) -> Result<(), Halt> {
        if self.backend.from_server.status() != TransactionStatus::Idle
            || self.client.is_session_mode()
        {
            return Ok(());
        }
        self.passage.cut(self.backend)?;
        if self.backend.lift_timeout(&mut self.passage.out) {
            return self.wait();
        }
        Ok(())
    }
}

impl<S: Socket> Engine<S> {
    /// A client that is to be greeted has waited until a short timeout was lifted. Returns whether
    /// its session begins with a hand-over.
    pub(crate) fn begin_after_lift<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        now: Time,
    ) -> bool {
        if self.introduce(host, slot, now) {
            return true;
        }
        self.greet_late(host, slot, now);
        false
    }
}
