//! What a client is sent, and when.
//!
//! # Model
//! A large answer is written at once, from where it was read. A small one waits in the client's
//! output for the end of the turn, when all that wait are written in one go, after the servers have
//! got their next work.
//!
//! # Why small answers wait
//! Each write wakes its reader, and where processors are scarce the reader may take the one that this
//! loop runs on. Written in the middle of a turn, the rest of the events wait with their servers idle;
//! written at its end, the readers find several answers at once. Measured on two cores with 100
//! clients: up to a seventh more transactions a second, and never fewer.
//!
//! # Invariants
//! * a client's bytes keep their order: whatever is written goes after what waits
//! * while an answer waits the host does not sleep, whatever the answer came of: a message, time
//! * an answer waits for at most [`limits::EVENTS_BEFORE_ANSWERS_MAX`] further events of its turn
//! * at most [`limits::LATE_BYTES_MAX`] of a client's bytes wait that have not been tried; of one whose
//!   backend goes to a waiter, [`limits::READ_BYTES`]

use std::io;

use super::about::ClientState;
use super::client::Client;
use super::host::Host;
use super::limits;
use super::pending_bytes::Spare;
use super::socket::{Socket, write_kept, write_or_keep};
use super::table::Engine;
use crate::ids::Slot;
use crate::time::Time;

impl<S: Socket> Client<S> {
    /// Sends the client something of ours, where nothing of a server's can be under way: at the
    /// end of the turn if it is small, with all else that one read of it leads to. Whoever calls
    /// this sees to it that the client is among [`Engine::late`] then, or pushes it out.
    pub(super) fn reply(&mut self, bytes: &[u8]) {
        let untried = self.late || self.output.is_empty();
        if untried && self.output.len() + bytes.len() <= limits::LATE_BYTES_MAX {
            self.output.extend_from_slice(bytes);
            self.late = true;
            return;
        }
        // A broken connection shows in its next event.
        let _ = self.push_out(&mut Spare::for_answers());
        let _ = write_or_keep(&mut self.socket, &mut self.output, bytes);
    }

    /// Whether all that was meant for it has gone out.
    pub(super) fn has_taken_all(&self) -> bool {
        self.output.is_empty() && !self.socket.has_unsent()
    }

    /// Whether anything may be due now that its socket takes bytes: some of its own, or what was left
    /// unread because it took none.
    #[inline]
    pub(super) fn waits_to_write(&self) -> bool {
        self.readable
            || self.state == ClientState::Closing
            || self.pending_session.is_some()
            || !self.has_taken_all()
            || self.backend.as_ref().is_some_and(|backend| backend.from_server.is_unread())
    }

    /// Writes what has waited for the end of the turn. Returns how many bytes the socket took.
    pub(super) fn push_out(&mut self, spare: &mut Spare) -> io::Result<usize> {
        if !std::mem::take(&mut self.late) {
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
    /// Sends a client what no server has said.
    pub(super) fn say<H: Host<S>>(&mut self, host: &mut H, slot: Slot, message: &[u8], now: Time) {
        debug_assert!(
            message.is_empty()
                || !self.clients.get(slot).is_some_and(|client| {
                    client.backend.as_ref().is_some_and(|backend| backend.is_in_mid_answer())
                }),
            "a message of ours goes into the middle of a server's"
        );
        self.answer(host, slot, message, &[], now);
    }

    /// Sends a client what came for it, at the end of the turn if it is small: `ahead`, and `run`
    /// after it.
    pub(super) fn answer<H: Host<S>>(
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
        let untried = client.late || client.output.is_empty();
        // The next waiter, if there is one, has its message written first: the server is the slowest.
        let most = if self.work.is_empty() { limits::LATE_BYTES_MAX } else { limits::READ_BYTES };
        if untried && client.output.len() + bytes <= most {
            client.output.extend_in(ahead, &mut self.spare);
            client.output.extend_in(run, &mut self.spare);
            if !std::mem::replace(&mut client.late, true) {
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

    /// Writes the answers that have waited. To be called at the end of each turn, behind
    /// [`Engine::tick`] and before the loop sleeps, and after [`limits::EVENTS_BEFORE_ANSWERS_MAX`] events of one.
    pub fn flush<H: Host<S>>(&mut self, host: &mut H, now: Time) {
        // Each stays in the list until all are through: a panic on the way must not lose one.
        let mut next = 0;
        while let Some(&slot) = self.late.get(next) {
            next += 1;
            let Some(client) = self.clients.get_mut(slot) else { continue };
            let written = client.push_out(&mut self.spare);
            let gone = client.state == ClientState::Closing && client.has_taken_all();
            self.answered(host, slot, &written, true, now);
            if gone {
                self.close_client(host, slot, "it has been told goodbye", now);
            }
        }
        self.late.clear();
        self.work_off(host, now); // a connection that broke leaves a backend to the next
        if self.clients_leave() {
            self.give_those_at_rest(host);
        }
    }

    /// A client has been written to. `untried`: nothing of its answers was left from before, so that
    /// what it has not taken waits from now on.
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
