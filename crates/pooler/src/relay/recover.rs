//! What remains to be done when a panic has ended the work on a connection.
//!
//! # Model
//! A panic is a defect of Hawser's. It ends the connections that it concerns, and no others: their
//! state is not trusted, so a client's backend is closed with it, not tidied. Steps that the event
//! has queued for others ([`crate::relay::work`]) continue at the next event or tick.
//!
//! # Limits
//! A backend that was being moved when the panic came (taken out of the pool, or on its way back)
//! has been closed by the unwinding, and its pool still counts it, unless it was a client's.

use crate::ids::Slot;
use crate::relay::host::Host;
use crate::relay::limits;
use crate::relay::socket::{Socket, Token};
use crate::relay::table::{Engine, Holder, buffer};
use crate::time::Time;

const REASON: &str = "internal error";

impl<S: Socket> Engine<S> {
    /// Brings the engine into a usable state after one of its calls has panicked. `about` is the
    /// connection of that call.
    pub fn recover<H: Host<S>>(&mut self, host: &mut H, about: Option<Token>, now: Time) {
        // The call may have taken them: an empty one would read as the end of every stream.
        for buffer_of in [&mut self.server_input, &mut self.client_input] {
            if buffer_of.len() != limits::READ_BYTES {
                *buffer_of = buffer();
            }
        }
        self.to_server.clear();
        self.to_client.clear();
        let seen_again = self.again.take_at();
        let about = self.work.take_at().or(about).or(seen_again);
        self.end_all_about(host, about, now);
    }

    /// Ends the connections of an event, or of a step that it led to.
    fn end_all_about<H: Host<S>>(&mut self, host: &mut H, about: Option<Token>, now: Time) {
        match about {
            None => {}
            Some(Token::Client(slot)) => self.end_client(host, slot, now),
            Some(Token::Backend(place)) => {
                let Some(resident) = self.resident.get_mut(place) else { return };
                match std::mem::replace(&mut resident.holder, Holder::Pool) {
                    Holder::Client(slot) => {
                        resident.holder = Holder::Client(slot);
                        self.end_client(host, slot, now);
                    }
                    Holder::Engine(backend) => self.close_backend(host, backend, REASON, now),
                    Holder::Listener(listener) => {
                        resident.holder = Holder::Listener(listener);
                        self.listener_ends(host, place, REASON, now);
                    }
                    Holder::Pool => {}
                }
            }
        }
    }

    /// Ends a client and any backend that it had.
    fn end_client<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let own = self.clients.get_mut(slot).and_then(|client| client.backend.take());
        for backend in self.work.take_lent(slot).into_iter().chain(own) {
            self.close_backend(host, backend, REASON, now);
        }
        // Backends of the client's that the panic has closed.
        let lost: Vec<Slot> = self
            .resident
            .iter()
            .filter(|(_, resident)| matches!(resident.holder, Holder::Client(of) if of == slot))
            .map(|(place, _)| place)
            .collect();
        for place in lost {
            let Some(resident) = self.resident.remove(place) else { continue };
            let pool = self.pools[resident.pool as usize].pool.clone();
            let open = pool.lock().lost(self.id, now);
            for _ in 0..open {
                host.open(&pool, self.id);
            }
        }
        self.close_client(host, slot, REASON, now);
    }
}
