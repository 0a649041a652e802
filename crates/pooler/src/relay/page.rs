//! Rows of SHOW, a page at a time: who asks takes the next page when it has use for it, and the loop keeps
//! nothing between two.

use crate::ids::{ClientId, Slot};
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::client_info::ClientState;
use crate::relay::limits;
use crate::relay::message::{BackendRow, BackendState, ClientRow, Listed, Page, PageRequest};
use crate::relay::socket::Socket;
use crate::relay::table::{Engine, Holder, Resident};
use crate::session::settings::Settings;
use crate::time::Time;

impl<S: Socket> Engine<S> {
    /// The connections in the next places of a table.
    pub(crate) fn page(&self, request: PageRequest, now: Time) -> Page {
        let PageRequest { listed, addresses, from } = request;
        let end = match listed {
            Listed::Clients => self.clients.end(),
            Listed::Backends | Listed::Holders { .. } => self.resident.end(),
            Listed::Queries => self.queries.end(),
        };
        let to = from.saturating_add(limits::PAGE_PLACES);
        let places = from..to.min(end);
        let mut page = Page { next: (to < end).then_some(to), ..Page::default() };
        match listed {
            Listed::Clients => {
                let clients = self.clients.range(places);
                page.clients.extend(
                    clients.map(|(slot, client)| self.client_row(slot, client, addresses, now)),
                );
            }
            Listed::Backends => {
                let residents = self.resident.range(places);
                page.backends.extend(
                    residents.filter_map(|(_, resident)| self.backend_row(resident, addresses)),
                );
            }
            Listed::Holders { lines } => {
                let line_of = |socket: &S| if lines { socket.line().map(Box::new) } else { None };
                for (_, resident) in self.resident.range(places) {
                    let Holder::Client(slot) = resident.holder else { continue };
                    let Some(client) = self.clients.get(slot) else { continue };
                    let line = line_of(&client.socket);
                    let row = self.client_row(slot, client, false, now);
                    page.clients.push(ClientRow { line, ..row });
                    let Some(backend) = &client.backend else { continue };
                    let line = line_of(&backend.socket);
                    let row = backend.row(BackendState::Active, Some(self.client_id(slot)));
                    page.backends.push(BackendRow { line, ..row });
                }
            }
            Listed::Queries => {
                page.queries = self.queries.rows(places);
                let (other, forgotten) = self.queries.other();
                let other = || Box::new((other.clone(), forgotten));
                page.other_queries = page.next.is_none().then(other);
            }
        }
        page
    }

    fn client_row(&self, slot: Slot, client: &Client<S>, addresses: bool, now: Time) -> ClientRow {
        let pool = &self.pool_of(client).pool;
        let parameters = pool.parameters();
        let application_name = client
            .session
            .desired
            .get(b"application_name")
            .or_else(|| parameters.as_ref()?.get(b"application_name"))
            .unwrap_or_default();
        let waits = client.serving.state == ClientState::Waiting;
        let backend = client.backend.as_ref();
        // The server's extension finds the subflows of MPTCP clients by both addresses.
        let addresses = addresses || client.record.about.mptcp();
        ClientRow {
            id: self.client_id(slot),
            pool: pool.id,
            local: addresses.then(|| client.socket.local_address()).flatten(),
            database: pool.database.clone(),
            user: client.record.about.user().map_or_else(|| pool.user.clone(), str::to_owned),
            state: client.serving.state,
            about: client.record.about.clone(),
            application_name: String::from_utf8_lossy(application_name).into_owned(),
            last_request: client.times.since(),
            wait_us: if waits { now.micros_since(client.times.since()) } else { 0 },
            backend: backend.map(|backend| backend.id()),
            backend_process: backend.map_or(0, |backend| backend.process()),
            pins: client.session.pins,
            pinned_since: backend
                .and_then(|backend| Some(backend.lending.pinned.as_deref()?.since)),
            channels: client.channel_count(),
            statements: client
                .prepared
                .statements
                .as_deref()
                .map_or(0, |names| names.names().standing()),
            process: self.process_of(slot),
            kept_in: client.input.len(),
            kept_out: client.output.len(),
            idle_in_transaction: client.idle_in_transaction_since(),
            line: None,
        }
    }

    fn backend_row(&self, resident: &Resident<S>, addresses: bool) -> Option<BackendRow> {
        let local = |socket: &S| addresses.then(|| socket.local_address()).flatten();
        match &resident.holder {
            Holder::Client(slot) => {
                let client = self.clients.get(*slot)?;
                let backend = client.backend.as_ref()?;
                Some(BackendRow {
                    local: local(&backend.socket),
                    client_process: self.process_of(*slot),
                    client_start: client.record.start.clone(),
                    ..backend.row(BackendState::Active, Some(self.client_id(*slot)))
                })
            }
            Holder::Engine(backend) => Some(BackendRow {
                local: local(&backend.socket),
                ..backend.row(BackendState::Tested, None)
            }),
            Holder::Listener(listener) => {
                Some(BackendRow { local: local(listener.socket()), ..listener.row() })
            }
            Holder::Pool => None,
        }
    }
}

impl<S: Socket> Backend<S> {
    /// As a row of SHOW SERVERS.
    pub fn row(&self, state: BackendState, client: Option<ClientId>) -> BackendRow {
        BackendRow {
            id: self.id(),
            pool: self.pool.id,
            local: None,
            cancels: self.lending.cancels_in_flight,
            cancel_waits: self.lending.cancel_due.is_some(),
            epoch: self.epoch(),
            database: self.pool.database.clone(),
            user: self.pool.user.clone(),
            state,
            server: self.server(),
            process: self.process(),
            connected: self.opened(),
            parked: self.lending.parked,
            client,
            client_process: 0,
            client_start: Settings::EMPTY,
            statements: self.prepared.statements.len(),
            application_name: self.application_name(),
            encrypted: self.socket.is_encrypted(),
            kept_in: self.from_server.kept().len(),
            kept_out: self.to_server.len(),
            line: None,
        }
    }
}
