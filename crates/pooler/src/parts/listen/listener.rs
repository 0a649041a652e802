//! The listening connections of the pools whose hubs are on this loop.
//!
//! # Model
//! A pool's hub lives on one loop, chosen by the pool's number; all loops, also that one, reach it
//! by messages. The connection is opened when a client listens, outside of the pool's size and
//! inside of all other limits, and closed a while after the last client has stopped listening.
//! Notifications come on it, and answers to one query at a time.
//!
//! # Invariants
//! * it is never lent: no client's statement runs on it
//! * a query that is not answered within [`ANSWER_US`] ends it: no wait for it is endless
//!
//! # Limits
//! RECONNECT and `server_lifetime` do not replace it: that would lose what is notified meanwhile.
//! It ends with its server process, as a client's own connection would, and if the pool has left
//! its server: notifications on another server never come.

mod steps;

use crate::ids::{BackendId, ServerAddressId, Slot};
use crate::parts::listen::{Channel, Hub, Notification};
use crate::parts::start_values::parameters::ServerParameters;
use crate::relay::backend::PoolRef;
use crate::relay::limits;
use crate::relay::message::{BackendRow, BackendState};
use crate::relay::pending_bytes::PendingBytes;
use crate::relay::socket::{Socket, write_or_keep};
use crate::session::settings::Settings;
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::frame::{Framed, HEADER_BYTES};
use crate::wire::{backend as kind, build, error, frame};

/// Microseconds within which the server must answer a query.
const ANSWER_US: u64 = 30_000_000;
/// Microseconds for which the connection stays without listening clients.
const UNUSED_US: u64 = 30_000_000;
/// Microseconds between attempts to open it.
const RETRY_US: u64 = 1_000_000;

/// A connection that listens.
pub(crate) struct Listener<S: Socket> {
    id: BackendId,
    socket: S,
    pool: PoolRef<S>,
    process: u32,
    server: ServerAddressId,
    epoch: u32,
    opened: Time,
    input: Vec<u8>,
    output: PendingBytes,
    /// It listens on the channel of markers: the first query has been answered.
    ready: bool,
    /// When the query in flight was sent.
    asked: Time,
    /// The server's last message before it closed the connection, or an error of a query of
    /// Hawser's.
    error: Option<ClientError>,
    _permit: Box<dyn std::any::Any + Send>,
}

/// A pool's hub, and its connection.
pub(crate) struct PoolHub<S: Socket> {
    hub: Hub,
    pool: PoolRef<S>,
    place: Option<Slot>,
    /// When it was last needed.
    wanted: Time,
    /// No attempt to open it before this time.
    not_before: Time,
}

impl<S: Socket> PoolHub<S> {
    /// Whether its connection is needed and does not exist.
    pub(crate) fn is_to_be_opened(&self) -> bool {
        self.place.is_none() && self.hub.is_needed()
    }
}

/// What has come on a listening connection.
enum Received {
    Notified(Notification),
    Ready,
}

impl<S: Socket> Listener<S> {
    /// The channel on which only this connection receives markers.
    fn marker(&self) -> Channel {
        Channel::new(format!("hawser_{}_{}", self.process, self.id.0).as_bytes())
    }

    /// Whether it does not receive what the pool's clients notify: the pool has left its server.
    fn is_left(&self) -> bool {
        self.pool.left().has(self.server, self.opened)
            || self.pool.has_moved_from(self.server, self.epoch)
    }

    /// The query that makes a new connection ready. It sits idle when a client's own connection
    /// would not, so the server must not end it for that.
    fn first_query(&self, server: &ServerParameters) -> Vec<u8> {
        const IDLE_SESSION_TIMEOUT_SINCE: u32 = 14;
        let mut text = Vec::new();
        if server.major_version() >= IDLE_SESSION_TIMEOUT_SINCE {
            text.extend_from_slice(b"SET idle_session_timeout TO 0;");
        }
        text.extend_from_slice(b"LISTEN ");
        self.marker().write_quoted(&mut text);
        text
    }

    /// See [`crate::relay::Engine::watch_for_room`].
    pub(crate) fn watch_for_room(&self, watch: impl FnOnce(&S)) {
        if !self.output.is_empty() || self.socket.has_unsent() {
            watch(&self.socket);
        }
    }

    fn send(&mut self, text: &[u8], now: Time) -> std::io::Result<()> {
        let mut out = Vec::new();
        build::query(&mut out, text);
        self.asked = now;
        write_or_keep(&mut self.socket, &mut self.output, &out).map(drop)
    }

    /// As a row of SHOW SERVERS.
    pub(crate) fn row(&self) -> BackendRow {
        BackendRow {
            id: self.id,
            pool: self.pool.id,
            local: None,
            cancels: 0,
            cancel_waits: false,
            epoch: self.epoch,
            database: self.pool.database.clone(),
            user: self.pool.user.clone(),
            state: BackendState::Listening,
            server: self.server,
            process: self.process,
            connected: self.opened,
            parked: false,
            client: None,
            client_process: 0,
            client_start: Settings::EMPTY,
            statements: 0,
            application_name: String::new(),
            encrypted: self.socket.is_encrypted(),
            kept_in: self.input.len(),
            kept_out: self.output.len(),
            line: None,
        }
    }

    pub(crate) fn socket(&self) -> &S {
        &self.socket
    }
}

impl<S: Socket> Listener<S> {
    /// Takes the whole messages that have come, and why the connection must end, if it must.
    fn take_received(&mut self) -> (Vec<Received>, Option<&'static str>) {
        let mut received = Vec::new();
        let mut at = 0;
        let ended = loop {
            let rest = &self.input[at..];
            let header = match frame::header(rest) {
                Framed::Short => break None,
                Framed::Header(header) => header,
                Framed::BadLength { .. } => {
                    break Some("the server sent a message of impossible length");
                }
            };
            if header.total() > limits::READ_BYTES {
                break Some("the server sent a message too long to be looked at");
            }
            if rest.len() < header.total() {
                break None;
            }
            let body = &rest[HEADER_BYTES..header.total()];
            match header.kind {
                kind::NOTIFICATION => match Notification::read(body) {
                    Some(notification) => received.push(Received::Notified(notification)),
                    None => break Some("the server sent a malformed notification"),
                },
                kind::READY_FOR_QUERY => received.push(Received::Ready),
                kind::COMMAND_COMPLETE
                | kind::EMPTY_QUERY
                | kind::NOTICE
                | kind::PARAMETER_STATUS => {}
                kind::ERROR => {
                    let text = |field| {
                        let text = error::field(body, field).unwrap_or_default();
                        String::from_utf8_lossy(text).into_owned()
                    };
                    let code = error::field(body, b'C').and_then(|code| code.try_into().ok());
                    let code = code.map_or(SqlState::CONNECTION_FAILURE, SqlState);
                    let mut error = ClientError::fatal(code, text(b'M'));
                    error.of_server = true;
                    self.error = Some(error);
                    if error::field(body, b'V') == Some(b"ERROR") {
                        break Some("the server refused to listen");
                    }
                }
                _ => break Some("the server sent an answer out of turn"),
            }
            at += header.total();
        };
        self.input.drain(..at);
        if self.input.is_empty() {
            self.input = Vec::new();
        }
        (received, ended)
    }
}
