//! Where clients log in, outside the engines: startup packets and cancel requests.
//!
//! # Limits      all users are trusted; no TLS; start values are asked of the model, as logins do

use std::collections::BTreeMap;
use std::time::Duration;

use hawser_pooler::ids::LoopId;
use hawser_pooler::parts::identity::process_ids::OwnProcessIds;
use hawser_pooler::relay::backend::PoolRef;
use hawser_pooler::relay::{ClientAbout, NewClient, PeerAddress, PoolMode, ToLoop};
use hawser_pooler::session::settings::{Settings, SettingsBuilder};

use super::host::{LOBBY, OUTSIDE, Outside, Stream, delay, moment};
use crate::model::backend::ModelBackend;
use crate::model::wire::{self, Message, Reader};
use crate::model::{ModelServer, ServerConfig, catalog, frontend};
use crate::net::{SimSocket, Token};

const CANCEL_REQUEST: i32 = 80_877_102;

/// The longest startup packet of a simulated client.
const STARTUP_BYTES_MAX: usize = 2048;

/// Where a client belongs, and how it is served.
#[derive(Debug, Clone, Copy)]
pub struct Seat {
    /// Which of the world's pools.
    pub pool: usize,
    /// When it gives its backend back.
    pub mode: PoolMode,
}

struct Visitor {
    socket: SimSocket,
    bytes: Vec<u8>,
    seat: Seat,
}

/// A login that is checked.
struct LoggingIn {
    due: Duration,
    home: LoopId,
    client: Box<NewClient<Stream>>,
}

/// Those who have not logged in.
pub(super) struct Lobby {
    visitors: BTreeMap<u64, Visitor>,
    next: u64,
    logging_in: Vec<LoggingIn>,
    login_max: Duration,
    /// A server of the lobby's own, which is asked about start values.
    server: ModelServer,
    /// What a session shows in which no client has set anything.
    plain: ModelBackend,
}

/// The messages with which a model greets a session with these settings, and its end.
pub(super) fn log_in(
    backend: &mut ModelBackend,
    user: &str,
    asked: &[(String, String)],
) -> Vec<Message> {
    let mut parameters = vec![("user", user), ("database", catalog::DATABASE)];
    parameters.extend(asked.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    backend.receive(&frontend::startup(frontend::PROTOCOL_3_0, &parameters).encode());
    let mut bytes = Vec::new();
    loop {
        let taken = backend.take_output();
        if taken.is_empty() {
            break;
        }
        bytes.extend(taken);
    }
    let mut messages = Vec::new();
    while let Ok(Some(message)) = wire::cut(&mut bytes, true) {
        messages.push(message);
    }
    messages
}

/// Name and value of a ParameterStatus.
pub(super) fn parameter(message: &Message) -> Option<(String, String)> {
    let mut reader = Reader::new(&message.body);
    (message.tag == b'S').then(|| Some((reader.text().ok()?, reader.text().ok()?)))?
}

impl Lobby {
    pub(super) fn new(login_max: Duration) -> Self {
        let server = ModelServer::new(ServerConfig { slots: 0..0, ..ServerConfig::default() });
        let mut plain = server.connect();
        log_in(&mut plain, catalog::LOGIN_ROLE, &[]);
        let logging_in = Vec::new();
        Self { visitors: BTreeMap::new(), next: 0, logging_in, login_max, server, plain }
    }

    /// A client has connected.
    pub(super) fn accept(&mut self, socket: SimSocket, seat: Seat) {
        socket.register(LOBBY, Token(self.next));
        self.visitors.insert(self.next, Visitor { socket, bytes: Vec::new(), seat });
        self.next += 1;
    }

    /// When the next login is through.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.logging_in.iter().map(|login| login.due).min()
    }

    /// Something has come from a visitor.
    pub(super) fn on_event(
        &mut self,
        token: Token,
        pools: &[PoolRef<Stream>],
        loops: u16,
        outside: &mut Outside,
    ) {
        let Some(visitor) = self.visitors.get_mut(&token.0) else { return };
        let mut buffer = [0; STARTUP_BYTES_MAX];
        loop {
            match visitor.socket.read(&mut buffer) {
                Ok(read) if read > 0 => visitor.bytes.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => {
                    self.visitors.remove(&token.0);
                    return;
                }
            }
        }
        let Ok(Some(packet)) = wire::cut(&mut visitor.bytes, false) else { return };
        let Some(visitor) = self.visitors.remove(&token.0) else { return };
        let mut reader = Reader::new(&packet.body);
        let version = reader.int32().unwrap_or_default();
        if version == CANCEL_REQUEST {
            let process = u32::try_from(reader.int32().unwrap_or_default()).unwrap_or_default();
            let key: Box<[u8]> = reader.rest().into();
            let made_by = OwnProcessIds::all(0).loop_of(process, loops);
            for home in
                (0..loops).map(LoopId).filter(|home| made_by.is_none_or(|made| made == *home))
            {
                outside.send(OUTSIDE, home, ToLoop::Cancel { process, key: key.clone().into() });
            }
            return;
        }
        let mut asked = Vec::new();
        let mut user = String::new();
        while let (Ok(name), Ok(value)) = (reader.text(), reader.text()) {
            if name.is_empty() {
                break;
            }
            match &*name {
                "user" => user = value,
                "database" => {}
                _ => asked.push((name, value)),
            }
        }
        let client = self.admit(visitor, (&user, &asked), pools, outside);
        let due = outside.now + delay(&mut outside.rng, self.login_max);
        let home = LoopId(u16::try_from(outside.rng.below(u64::from(loops))).unwrap_or(0));
        self.logging_in.push(LoggingIn { due, home, client });
    }

    fn admit(
        &self,
        visitor: Visitor,
        (user, asked): (&str, &[(String, String)]),
        pools: &[PoolRef<Stream>],
        outside: &mut Outside,
    ) -> Box<NewClient<Stream>> {
        let mut probe = self.server.connect();
        let pool = pools[visitor.seat.pool].clone();
        let shared = pool.is_shared_by_users();
        let greeting: Vec<u8> = log_in(&mut probe, user, asked)
            .iter()
            .filter(|message| message.tag == b'R' || (message.tag == b'S' && !shared))
            .flat_map(Message::encode)
            .collect();
        let mut start = SettingsBuilder::new();
        for (name, _) in asked {
            let shown = probe.setting(name);
            if let Some(value) = shown
                && (shared || self.plain.setting(name).as_ref() != Some(&value))
            {
                start.set(name.as_bytes(), value.as_bytes());
            }
        }
        probe.hang_up();
        let start: Settings = pool.interner().share(start.build());
        Box::new(NewClient {
            socket: Stream(visitor.socket),
            pool,
            mode: visitor.seat.mode,
            start,
            greeting,
            secret: outside.rng.next_u64().to_be_bytes()[..4].into(),
            about: Box::new(ClientAbout::new(
                PeerAddress::Unix,
                shared.then_some(user),
                "",
                moment(outside.now),
            )),
            permit: (),
            early: visitor.bytes,
            exclusive: false,
        })
    }

    /// Hands those whose login is through to their loops.
    pub(super) fn run(&mut self, outside: &mut Outside) {
        let now = outside.now;
        let (due, rest): (Vec<_>, Vec<_>) =
            self.logging_in.drain(..).partition(|login| login.due <= now);
        self.logging_in = rest;
        for login in due {
            // From here on its loop watches it.
            login.client.socket.0.deregister();
            outside.send(OUTSIDE, login.home, ToLoop::Adopt(login.client));
        }
    }
}
