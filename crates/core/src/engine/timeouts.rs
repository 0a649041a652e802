//! A statement_timeout so short that statements of ours could run into it.
//!
//! # Why
//! What a client has set counts for what brings settings, too. Where that is cut off, the next client's
//! settings are not there, and it has nothing to do with it.
//!
//! # Model
//! A timeout below [`limits::TIMEOUT_MS_MIN`] is the last that goes before its client's message, by
//! itself, and the first that is taken off before another's. To take it off is a statement under it: of
//! a server that gets no time of its processor for as long as it lasts that is cut off. Then nothing has
//! changed, and it is tried again; so the client's message, and all else that goes before it, wait for
//! the outcome. (A round trip between here and the server.)
//!
//! A timer that runs out just as its statement ends cuts off the next message, whatever it is: a cancel is
//! then pending that is only looked for after that (`finish_xact_command`, `PostgresMain`, postgres.c).
//! So the same goes twice, in one write. Where the first is carried out, the second finds no timer, and
//! takes what the first one's has left.
//!
//! A client that finds its own timeout there waits for nothing, unless something goes before its first
//! message in a query of ours. So is a question about a session asked again that is cut off
//! ([`super::doubt`]); settings that are brought within the client's pipeline ([`super::within`]) fail
//! with it.
//!
//! # Limits
//! A transaction_timeout ends the connection: a short one is not brought to another. What is sent in the
//! midst of a client's transaction or pipeline (DEALLOCATE ALL, LISTEN), or to end what it has left open,
//! runs under its own timeout.

use super::backend::Backend;
use super::from_client::Halt;
use super::from_client::client_message::ClientMessage;
use super::host::Host;
use super::limits;
use super::request_queue::Request;
use super::socket::Socket;
use super::table::Engine;
use crate::ids::Slot;
use crate::session::settings::{Settings, SettingsBuilder, write_set_query};
use crate::time::Time;
use crate::wire::TransactionStatus;
use crate::wire::build;
use crate::wire::error::{SqlState, field};

const NAME: &[u8] = b"statement_timeout";
const OF_TRANSACTION: &[u8] = b"transaction_timeout";

/// What a backend has where the first of the two was cut off and the second may not have been: short, and
/// no client's.
const EITHER: &[u8] = b"0ms";

/// Whether a timeout, as the server shows it, is below a second.
fn is_short(settings: &Settings, name: &[u8]) -> bool {
    let ms = settings.get(name).and_then(|value| value.strip_suffix(b"ms"));
    let ms = ms.and_then(|ms| std::str::from_utf8(ms).ok()).and_then(|ms| ms.parse().ok());
    ms.is_some_and(|ms: u64| ms < limits::TIMEOUT_MS_MIN)
}

/// Whether what takes a timeout off for the next client could end the connection.
pub(super) fn ends_transactions_soon(settings: &Settings) -> bool {
    is_short(settings, OF_TRANSACTION)
}

/// Whether an error says that a statement has taken too long, or has been cancelled.
pub(super) fn is_cut_off(error: &[u8]) -> bool {
    field(error, b'C') == Some(&SqlState::QUERY_CANCELED.0[..])
}

/// What is brought first: all but a short timeout.
pub(super) fn without_short_timeout(settings: &Settings) -> Settings {
    if !is_short(settings, NAME) {
        return settings.clone();
    }
    let mut others = SettingsBuilder::from(settings);
    others.remove(NAME);
    others.build()
}

/// The settings for a Parse of ours, with the timeout that is in force: it reads none, and another's
/// could cut off what stands after it.
pub(super) fn with_timeout_of(settings: &Settings, in_force: &Settings) -> Settings {
    if settings.get(NAME) == in_force.get(NAME) {
        return settings.clone();
    }
    let mut others = SettingsBuilder::from(settings);
    match in_force.get(NAME) {
        Some(value) => others.set(NAME, value),
        None => others.remove(NAME),
    };
    others.build()
}

/// Tries to take a short timeout off a server connection.
#[derive(Debug, Default)]
pub(super) struct Lifts {
    /// How many have failed, one after the other.
    failed: u8,
    /// The last one has been cut off.
    cut_off: bool,
}

impl<S: Socket> Backend<S> {
    /// Whether it has a short timeout, and this client has not the same.
    #[inline]
    pub(super) fn must_lift_for(&self, desired: &Settings) -> bool {
        self.applied != *desired
            && is_short(&self.applied, NAME)
            && self.applied.get(NAME) != desired.get(NAME)
    }

    /// Appends what takes off a short timeout. Whether there is one.
    fn lift_timeout(&mut self, out: &mut Vec<u8>) -> bool {
        if !is_short(&self.applied, NAME) {
            return false;
        }
        for _ in ["it", "what its own timer leaves"] {
            build::query(out, b"SET statement_timeout TO 0");
            self.request(Request::InjectedLift);
        }
        self.unnamed.taken_by_query();
        self.ahead.begin();
        true
    }

    /// Whether a short timeout is being taken off.
    pub(super) fn is_lifting(&self) -> bool {
        self.requests.back() == Some(Request::InjectedLift)
    }

    /// Its client has just got it: takes off a short timeout. `true` if that is under way.
    pub(super) fn lift_alone(&mut self) -> Result<bool, Halt> {
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

    /// One of the two has failed. Whether that does no harm.
    pub(super) fn lift_failed(&mut self, error: &[u8]) -> bool {
        if self.requests.second() == Some(Request::InjectedLift) {
            self.lifts.failed = self.lifts.failed.saturating_add(1);
            self.lifts.cut_off = true;
        }
        is_cut_off(error) && self.lifts.failed < limits::LIFTS_MAX
    }

    /// One of the two has come to its end. Whether it was the second.
    pub(super) fn lift_ended(&mut self) -> bool {
        if self.requests.front() == Some(Request::InjectedLift) {
            return false;
        }
        let value = if std::mem::take(&mut self.lifts.cut_off) {
            EITHER
        } else {
            self.lifts.failed = 0;
            b"0"
        };
        let mut applied = SettingsBuilder::from(&self.applied);
        applied.set(NAME, value);
        self.applied = self.pool.interner().share(applied.build());
        true
    }

    /// Appends what is left to be brought: a short timeout. No statement of ours follows.
    pub(super) fn apply_timeout(&mut self, desired: &Settings, out: &mut Vec<u8>) {
        if self.applied == *desired {
            return;
        }
        debug_assert!(without_short_timeout(desired) == self.applied, "all else is there");
        let before = std::mem::replace(&mut self.applied, desired.clone());
        let mut text = Vec::new();
        write_set_query(before.diff(desired), &mut text);
        self.inject_query(&text, out);
    }
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// A query of ours goes before a client's transaction: not under a short timeout.
    pub(super) fn lift_first(&mut self) -> Result<(), Halt> {
        if self.backend.status != TransactionStatus::Idle || self.client.is_session_mode() {
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
    /// A client that is to be greeted has waited for a short timeout to be taken off. Whether its
    /// session begins with a hand-over.
    pub(super) fn begin_behind_lift<H: Host<S>>(
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

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(name: &str, value: &str) -> Settings {
        let mut builder = SettingsBuilder::new();
        builder.set(name.as_bytes(), value.as_bytes());
        builder.build()
    }

    #[test]
    fn short_is_what_is_below_a_second() {
        for (value, short) in
            [("999ms", true), ("1ms", true), ("1500ms", false), ("1s", false), ("0", false)]
        {
            let set = settings("statement_timeout", value);
            assert_eq!(is_short(&set, NAME), short, "{value}");
            assert_eq!(without_short_timeout(&set).is_empty(), short, "{value}");
            assert!(!ends_transactions_soon(&set));
            assert_eq!(ends_transactions_soon(&settings("transaction_timeout", value)), short);
        }
    }

    #[test]
    fn a_parse_has_the_timeout_that_is_in_force() {
        let (path, short) = (settings("search_path", "a"), settings("statement_timeout", "1ms"));
        assert!(with_timeout_of(&short, &path).is_empty());
        let both = with_timeout_of(&path, &short);
        assert_eq!(both.get(NAME), Some(&b"1ms"[..]));
        assert_eq!(both.get(b"search_path"), Some(&b"a"[..]));
    }
}
