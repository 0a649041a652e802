//! Clients that keep their backends between transactions: how many may, and for how long.
//!
//! # Model
//! A client whose backend is at rest, and that keeps it for state that does not move, is counted in
//! its pool ([`crate::parts::pins::count::PinCount`]) until it gives the backend back. Whether it keeps it is
//! known once the server has answered the question about that state, if there is one.
//!
//! # Invariants
//! * at most `max_pinned` backends of a pool are kept in this way: one client more gets an error
//!   and is disconnected. While a server is asked about another of them, whose client has its
//!   answer and may know that it has ended the state, the one more stays until the next tick
//! * a client in a transaction, or of session mode, is never added to the count
//!
//! # Why not refuse the statement
//! A text does not show whether its state lasts: a temporary table may be dropped at COMMIT, an
//! advisory lock released by the next statement.

pub(crate) mod count;
pub mod question;
pub(crate) mod unverified;

use crate::ids::Slot;
use crate::relay::client::Client;
use crate::relay::host::Host;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::session::part::{Part, PartSet};
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};

/// How to avoid keeping a server connection.
const HINT: &str = "End this state in the transaction that makes it (ON COMMIT DROP, \
                    pg_advisory_xact_lock, DEALLOCATE, CLOSE), give users that need it \
                    pool_mode = \"session\", or raise ";

impl<S: Socket> Engine<S> {
    /// A client's backend may be at rest, and kept by it: counts it, or disconnects the client if
    /// there are too many. Returns whether it is disconnected.
    pub(crate) fn count_pinned<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) -> bool {
        self.count_pinned_at(host, slot, false, now)
    }

    /// The same at a tick, for a client that was allowed to stay before.
    pub(crate) fn count_pinned_again<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        self.count_pinned_at(host, slot, true, now);
    }

    fn count_pinned_at<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        again: bool,
        now: Time,
    ) -> bool {
        let Some(client) = self.clients.get_mut(slot) else { return false };
        if client.session.pins.is_empty() || client.is_session_mode() || client.is_unsettled() {
            return false;
        }
        let bounded = client.keeps_to_ask();
        let Some(backend) = &mut client.backend else { return false };
        if bounded {
            backend.lending.pinned = None; // not for long: it does not count
            return false;
        }
        let weighed =
            backend.lending.cancels_in_flight == 0 && !backend.requests.has_syncs_in_doubt();
        if !backend.is_at_rest() || !weighed {
            return false;
        }
        if let Some(pinned) = backend.lending.pinned.as_deref_mut() {
            pinned.question(false);
            return false;
        }
        let max = self.pools[client.pool as usize].settings.max_pinned;
        if let Some(pinned) = backend.pool.pins.pin(max, now) {
            backend.lending.pinned = Some(Box::new(pinned));
            return false;
        }
        if !again && backend.pool.pins.has_in_question() {
            return false;
        }
        if client.session.pins == PartSet::of(&[Part::SequenceValue]) {
            // It loses only an answer, and gets the server's own error in its place.
            client.session.pins = PartSet::EMPTY;
            self.give_back_if_unused(host, slot, now);
            return false;
        }
        let error = ClientError::fatal(
            SqlState::CONFIGURATION_LIMIT_EXCEEDED,
            format!(
                "too many sessions keep a server connection of database \"{}\" and user \"{}\"",
                backend.pool.database, backend.pool.user
            ),
        )
        .detail(format!(
            "{max} of the pool may be kept between transactions (max_pinned). This session would \
             keep one, too, for: {}.",
            client.session.pins
        ))
        .hint(format!("{HINT}max_pinned."));
        self.say_goodbye(host, slot, &error, now);
        true
    }

    /// The error for a client that has kept its backend idle for too long.
    pub(crate) fn pinned_for_too_long(
        client: &Client<S>,
        timeout: std::time::Duration,
    ) -> ClientError {
        ClientError::fatal(
            SqlState::IDLE_SESSION_TIMEOUT,
            format!(
                "session kept a server connection and sat idle longer than pin_timeout ({timeout:?})"
            ),
        )
        .detail(format!("It is kept for: {}.", client.session.pins))
        .hint(format!("{HINT}pin_timeout."))
    }
}
