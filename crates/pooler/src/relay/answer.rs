//! What is sent to a client, and when.
//!
//! # Model
//! A large answer is written at once, from the buffer it was read into. A small one waits in the
//! client's output until the end of the turn, when all waiting answers are written, after the
//! servers have got their next work.
//!
//! # Why small answers wait
//! Each write wakes its reader, and on a busy machine the reader may preempt this loop. If that
//! happens in the middle of a turn, the servers of the remaining events stay idle; at the end of a
//! turn, the readers find several answers at once. Measured on two cores with 100 clients: up to a
//! seventh more transactions a second, and never fewer.
//!
//! # Invariants
//! * a client's bytes keep their order: everything is written after what already waits
//! * while an answer waits the host does not sleep, whether a message or a timer caused the answer
//! * an answer waits for at most [`limits::EVENTS_BEFORE_ANSWERS_MAX`] further events of its turn
//! * at most [`limits::LATE_BYTES_MAX`] bytes of a client wait without an attempt to write them;
//!   [`limits::READ_BYTES`] if its backend goes to a waiter

use std::io;
use std::time::Duration;

use crate::ids::Slot;
use crate::relay::client::Client;
use crate::relay::client_info::ClientState;
use crate::relay::host::Host;
use crate::relay::limits;
use crate::relay::pending_bytes::Spare;
use crate::relay::socket::{Socket, write_kept, write_or_keep};
use crate::relay::table::Engine;
use crate::time::Time;

/// How long after its last answer a client gets the reason for which it is disconnected. By then
/// most have read that answer.
pub(crate) const LAST_WORDS_AFTER: Duration = Duration::from_millis(30);

impl<S: Socket> Client<S> {
    /// Sends the client a message of Hawser's, where no message of a server's can be in progress. A
    /// small one waits for the end of the turn, together with the other results of the same read:
    /// the caller must then add the client to [`Engine::late`], or push it out.
    pub(crate) fn reply(&mut self, bytes: &[u8]) {
        let untried = self.at_socket.is_late() || self.output.is_empty();
        if untried && self.output.len() + bytes.len() <= limits::LATE_BYTES_MAX {
            self.output.extend_from_slice(bytes);
            self.at_socket.becomes_late();
            return;
        }
        // A broken connection is noticed at its next event.
        let _ = self.push_out(&mut Spare::for_answers());
        let _ = write_or_keep(&mut self.socket, &mut self.output, bytes);
    }

    /// Whether everything for it has been written.
    pub(crate) fn has_taken_all(&self) -> bool {
        self.output.is_empty() && !self.socket.has_unsent()
    }

    /// Whether it is being disconnected, and has got all that it is to get.
    pub(crate) fn has_its_last_words(&self) -> bool {
        self.serving.state == ClientState::Closing
            && !self.awaits_last_words()
            && self.has_taken_all()
    }

    /// Whether it is being disconnected, and gets the reason later.
    pub(crate) fn awaits_last_words(&self) -> bool {
        self.pending_session.as_ref().is_some_and(|extra| extra.last_words.is_some())
    }

    /// Whether it may not have read its last answer yet, and waits for no other.
    pub(crate) fn may_have_just_been_answered(&self, now: Time) -> bool {
        let since = match (&self.backend, self.serving.state) {
            (None, ClientState::Idle) => self.times.since(),
            (Some(backend), ClientState::Active)
                if !backend.requests.owes_beside_ours()
                    && !backend.requests.is_in_pipeline()
                    && !backend.requests.is_copying_in() =>
            {
                backend.lending.since
            }
            _ => return false,
        };
        !self.is_to_be_greeted()
            && !self.serving.held
            && self.input.is_empty()
            && (now.since(since) < LAST_WORDS_AFTER || !self.has_taken_all())
    }

    /// Whether there may be work once its socket takes bytes: pending output, or input left unread
    /// because of it.
    #[inline]
    pub(crate) fn waits_to_write(&self) -> bool {
        self.at_socket.unread.is_any()
            || self.serving.state == ClientState::Closing
            || self.pending_session.is_some()
            || !self.has_taken_all()
            || self.backend.as_ref().is_some_and(|backend| backend.from_server.unread.is_any())
    }

    /// Writes the output that has waited for the end of the turn. Returns how many bytes the socket
    /// took.
    pub(crate) fn push_out(&mut self, spare: &mut Spare) -> io::Result<usize> {
        if !self.at_socket.take_late() {
            return Ok(0);
        }
        let written = self.socket.write(&self.output);
        if written.as_ref().is_ok_and(|&written| written == self.output.len()) {
            self.output.clear_into(spare);
            return written;
        }
        match written {
            Ok(written) => {
                self.output.forget_first(written);
                Ok(written + write_kept(&mut self.socket, &mut self.output)?)
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => Ok(0), // an event comes when it takes more
                io::ErrorKind::Interrupted => write_kept(&mut self.socket, &mut self.output),
                _ => Err(error),
            },
        }
    }
}

impl<S: Socket> Engine<S> {
    /// Sends a client a message that did not come from a server.
    pub(crate) fn say<H: Host<S>>(&mut self, host: &mut H, slot: Slot, message: &[u8], now: Time) {
        debug_assert!(
            message.is_empty()
                || !self.clients.get(slot).is_some_and(|client| {
                    client.backend.as_ref().is_some_and(|backend| backend.is_in_mid_answer())
                }),
            "a message of ours goes into the middle of a server's"
        );
        self.answer(host, slot, message, &[], now);
    }

    /// Sends a client `ahead` and then `run`; at the end of the turn if they are small.
    pub(crate) fn answer<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        ahead: &[u8],
        run: &[u8],
        now: Time,
    ) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let bytes = ahead.len() + run.len();
        if bytes == 0 {
            return;
        }
        let untried = client.at_socket.is_late() || client.output.is_empty();
        // If there is a next waiter, its message is written first: the server is the slowest part.
        let most = if self.work.is_empty() { limits::LATE_BYTES_MAX } else { limits::READ_BYTES };
        if untried && client.output.len() + bytes <= most {
            client.output.extend_in(ahead, &mut self.spare);
            client.output.extend_in(run, &mut self.spare);
            if client.at_socket.becomes_late() {
                self.late.push(slot);
            }
            return;
        }
        let written = client.push_out(&mut self.spare).and_then(|waited| {
            let ahead = write_or_keep(&mut client.socket, &mut client.output, ahead)?;
            let run = write_or_keep(&mut client.socket, &mut client.output, run)?;
            Ok(waited + ahead + run)
        });
        self.answered(host, slot, &written, untried, now);
    }

    /// Writes the answers that have waited. To be called at the end of each turn, after
    /// [`Engine::tick`] and before the loop sleeps, and after each
    /// [`limits::EVENTS_BEFORE_ANSWERS_MAX`] events of a turn.
    pub fn flush<H: Host<S>>(&mut self, host: &mut H, now: Time) {
        // Clients stay in the list until all are done: a panic at one must not lose the others.
        let mut next = 0;
        while let Some(&slot) = self.late.get(next) {
            next += 1;
            let Some(client) = self.clients.get_mut(slot) else { continue };
            let written = client.push_out(&mut self.spare);
            let gone = client.has_its_last_words();
            self.answered(host, slot, &written, true, now);
            if gone {
                self.close_client(host, slot, "closed after its final error", now);
            }
        }
        self.late.clear();
        self.work_off(host, now); // a broken connection may have freed a backend for a waiter
        if self.clients_leave() {
            self.give_those_at_rest(host);
            self.send_those_at_rest_inside(host, now);
        }
    }

    /// Output was written to a client. `untried`: none of it was left from before, so what the
    /// socket has not taken waits from now on.
    fn answered<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        written: &io::Result<usize>,
        untried: bool,
        now: Time,
    ) {
        match written {
            Ok(0) if !untried => {}
            Ok(_) => {
                if let Some(client) = self.clients.get_mut(slot)
                    && let Some(backend) = &mut client.backend
                {
                    backend.gets_on(now);
                }
            }
            Err(_) => self.close_client(host, slot, "client's connection broke", now),
        }
    }
}
