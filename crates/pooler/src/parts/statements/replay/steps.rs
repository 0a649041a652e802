//! Sending a pipeline again.

use crate::ids::Slot;
use crate::parts::statements::client_names::ClientStatement;
use crate::parts::statements::replay::Healing;
use crate::relay::host::Host;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::time::Time;
use crate::wire::{TransactionStatus, build, frontend};

impl<S: Socket> Engine<S> {
    /// The server is ready for the next step of the healing.
    pub(crate) fn heal<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let Some(backend) = &mut client.backend else { return };
        // The changes of the refused pipeline have been dropped: the name exists.
        let serial = backend.prepared.replay.serial;
        let named = client
            .prepared
            .statements
            .as_deref()
            .and_then(|names| names.names().pairs().find(|(_, named)| named.serial == serial))
            .map(|(_, named)| named.clone());
        match (backend.prepared.replay.healing, named) {
            (Healing::Swallowing, Some(ClientStatement { statement, .. })) => {
                let mut out = Vec::new();
                backend.prepared.replay.healing = Healing::Checking;
                backend.prepare(&statement, &mut out);
                build::message(&mut out, frontend::DESCRIBE, |out| {
                    out.push(b'S');
                    build::string(out, &statement.name);
                });
                out.extend_from_slice(&build::SYNC);
                backend.request(Request::InjectedDescribe { statement: statement.id });
                backend.request(Request::InjectedSync);
                self.write_to_backend(slot, &out);
            }
            (Healing::Checking, Some(named)) if backend.prepared.replay.is_as_seen(&named.seen) => {
                let bytes = std::mem::take(&mut backend.prepared.replay.bytes);
                backend.prepared.replay.forget();
                backend.prepared.replay.again = true;
                let unread = client.input.take();
                self.take_in(host, slot, &bytes, now);
                if let Some(client) = self.clients.get_mut(slot) {
                    client.input.extend_from_slice(&unread);
                    if let Some(backend) = &mut client.backend {
                        backend.prepared.replay.again = false;
                        backend.prepared.replay.bytes = bytes;
                    }
                }
            }
            _ => {
                let mut answer = std::mem::take(&mut backend.prepared.replay.refusal);
                backend.prepared.replay.forget();
                client.take_cancel(); // this is its answer
                build::ready_for_query(&mut answer, TransactionStatus::Idle);
                self.say(host, slot, &answer, now);
                self.give_back_if_unused(host, slot, now);
            }
        }
    }
}
