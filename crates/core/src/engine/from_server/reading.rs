//! Reads from backends, for a client and for nobody.

use super::super::backend::Backend;
use super::super::message::ClientState;
use super::super::table::{Engine, Holder};
use super::super::{Host, Socket, limits};
use super::{LOOKED_AT_BYTES_MAX, Relay};
use crate::ids::Slot;
use crate::time::Time;

impl<S: Socket> Engine<S> {
    /// Reads from a client's backend as long as it has something and the client takes it.
    pub(in crate::engine) fn read_backend<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        now: Time,
    ) {
        let mut buffer = std::mem::take(&mut self.server_input);
        if buffer.is_empty() {
            buffer = vec![0; limits::READ_BYTES].into_boxed_slice();
        }
        let mut out = std::mem::take(&mut self.to_client);
        while self.read_backend_once(host, slot, &mut buffer, &mut out, now) {}
        out.clear();
        if out.capacity() > 4 * limits::READ_BYTES {
            out = Vec::new();
        }
        self.to_client = out;
        self.server_input = buffer;
    }

    /// One read from a client's backend. Whether another may follow.
    fn read_backend_once<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
        now: Time,
    ) -> bool {
        let Some(client) = self.clients.get_mut(slot) else { return false };
        let Some(mut backend) = client.backend.take() else { return false };
        if client.output.len() > limits::OUTPUT_HIGH_BYTES {
            backend.readable = true;
            client.backend = Some(backend);
            return false;
        }
        let kept = backend.input.len();
        if kept + 4096 > buffer.len() {
            return self.read_long_message(host, slot, backend, now);
        }
        buffer[..kept].copy_from_slice(&backend.input);
        let read = match backend.socket.read(&mut buffer[kept..]) {
            Ok(read) if read > 0 => read,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                backend.readable = false;
                client.backend = Some(backend);
                return false;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                client.backend = Some(backend);
                return true;
            }
            Ok(_) | Err(_) => {
                client.backend = Some(backend);
                self.backend_failed(host, slot, "server closed the connection", now);
                return false;
            }
        };
        backend.input.clear();
        // A short read says that there are no more bytes, not that the end is not behind them.
        let drained = kept + read < buffer.len() && !backend.hung_up;
        backend.readable = !drained;
        out.clear();
        let was_full = backend.is_full() || client.held;
        let relayed = Relay {
            backend: &mut backend,
            client: Some(client),
            bytes: &buffer[..kept + read],
            out,
        }
        .run(now);
        backend.input.extend_from_slice(&buffer[relayed.consumed..kept + read]);
        let pool = client.pool;
        let stats = self.pools[pool as usize].pool.stats.of(self.id);
        stats.sent.add(read as u64);
        if relayed.queries > 0 {
            stats.queries.add(relayed.queries);
            stats.query.record(now.micros_since(client.since));
            if relayed.transactions > 0 {
                stats.transactions.add(relayed.transactions);
                stats.transaction.record(now.micros_since(client.transaction_since));
                client.transaction_since = now;
            }
            // What is outstanding behind it begins now, if anything is.
            client.since = now;
        }
        let quiet = backend.expected.is_empty();
        if quiet {
            backend.since = now;
        }
        backend.cancel_if_due(host, self.id);
        let done = relayed.broken.is_none()
            && relayed.goodbye.is_none()
            && backend.is_at_rest()
            && !client.is_pinned();
        if done {
            // The next waiter first: the server is the slowest of all.
            client.state = ClientState::Idle;
            client.since = now;
            self.give_back(host, backend, now);
        } else {
            client.backend = Some(backend);
        }
        self.answer(host, slot, out, &buffer[relayed.run.clone()], now);
        if let Some(reason) = relayed.broken {
            self.backend_failed(host, slot, reason, now);
            return false;
        }
        if let Some(error) = relayed.goodbye {
            self.say_goodbye(host, slot, &error, now);
            return false;
        }
        if self.clients.get(slot).is_some_and(|client| {
            // A copy waits for data, and one that has read a Sync has ignored it: nothing comes.
            client.is_leaving()
                && client.backend.as_ref().is_none_or(|b| b.syncs_outstanding == 0 || b.copying_in)
        }) {
            self.close_client(host, slot, "client said goodbye", now);
            return false;
        }
        if relayed.heal {
            self.heal(host, slot, now);
        }
        if self.draining.is_some() {
            self.drain_if_idle(host, slot, now);
        }
        if done || was_full {
            self.after_answer(host, slot, now);
        }
        if quiet || relayed.queries > 0 {
            self.rearm_if_limited(slot, now);
        }
        !done && !drained
    }

    /// A message to be looked at whole is longer than the shared buffer: it is read into its own.
    fn read_long_message<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        backend: Box<Backend<S>>,
        now: Time,
    ) -> bool {
        let mut long = vec![0; LOOKED_AT_BYTES_MAX + 2 * limits::READ_BYTES];
        if let Some(client) = self.clients.get_mut(slot) {
            client.backend = Some(backend);
        }
        let mut out = Vec::new();
        self.read_backend_once(host, slot, &mut long, &mut out, now)
    }

    /// Goes on with a client whose answers have come.
    fn after_answer<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        if let Some(client) = self.clients.get(slot)
            && client.state != ClientState::Closing
            && (client.readable || !client.input.is_empty())
        {
            self.resume_client(host, slot, now);
        }
    }

    /// Reads from a backend that has no client.
    pub(in crate::engine) fn read_tidied<H: Host<S>>(
        &mut self,
        host: &mut H,
        place: Slot,
        now: Time,
    ) {
        let Some(resident) = self.resident.get_mut(place) else { return };
        let Holder::Engine(_) = &resident.holder else { return };
        let Holder::Engine(mut backend) = std::mem::replace(&mut resident.holder, Holder::Pool)
        else {
            return;
        };
        let mut buffer = vec![0; limits::READ_BYTES + LOOKED_AT_BYTES_MAX];
        let mut out = Vec::new();
        // What its client has not been given comes first.
        let mut filled = backend.input.len();
        buffer[..filled].copy_from_slice(&backend.input);
        loop {
            let bytes = &buffer[..filled];
            let relayed =
                Relay { backend: &mut backend, client: None, bytes, out: &mut out }.run(now);
            backend.input.clear();
            backend.input.extend_from_slice(&buffer[relayed.consumed..filled]);
            if let Some(reason) = relayed.broken {
                self.close_backend(host, backend, reason, now);
                return;
            }
            if relayed.made_query_failed {
                self.close_backend(host, backend, "it could not be tidied", now);
                return;
            }
            let kept = backend.input.len();
            buffer.copy_within(relayed.consumed..filled, 0);
            let read = match backend.socket.read(&mut buffer[kept..]) {
                Ok(read) if read > 0 => read,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => 0,
                Ok(_) | Err(_) => {
                    backend.gone = true;
                    self.close_backend(host, backend, "server closed the connection", now);
                    return;
                }
            };
            filled = kept + read;
        }
        backend.readable = false;
        backend.cancel_if_due(host, self.id);
        if backend.copying_in && backend.fail_copy().is_err() {
            self.close_backend(host, backend, "server closed the connection", now);
            return;
        }
        self.tidy_on(host, backend, now);
    }
}
