//! A simulated client that knows what it must receive.
//!
//! # Model
//! A [`Generator`] draws what to do, an [`Oracle`] says what must come back, a [`SimSocket`]
//! carries both. A client writes in pieces of any size, reads when it likes, and after it has
//! vanished comes back as a new session with objects of its own that no earlier one has touched.
//!
//! # Invariants
//! A run that ends without [`Mismatch`] has received every message that a private server would have
//! sent it, in that order, and no other.

mod generator;
mod oracle;
mod statement;

use std::time::Duration;

pub use generator::{Action, Behaviour, Generator};
pub use oracle::{Comparison, Mismatch, Oracle, describe_backend, describe_frontend, error_field};
pub use statement::Mix;

use super::cluster::ServerConfig;
use super::{catalog, frontend};
use crate::net::SimSocket;
use crate::rng::Rng;

/// Bytes read at a time.
const READ_BYTES: usize = 2048;

/// What a client is.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Decides all that it does.
    pub seed: u64,
    /// Its slots: objects `ledger_N` and so on for N in this range; one a session.
    pub slots: std::ops::Range<usize>,
    /// How it behaves.
    pub behaviour: Behaviour,
    /// Its user.
    pub user: &'static str,
    /// Startup parameters besides user and database.
    pub startup: Vec<(String, String)>,
    /// Which differences are none.
    pub comparison: Comparison,
    /// Longest piece that is written at a time, 0 for no limit.
    pub write_bytes_max: u64,
    /// How many of a hundred chances to read are passed over for [`PAUSE`].
    pub pause_percent: u64,
    /// The server's end may go away with a FATAL error or without a word: then a new session
    /// begins. Where it is false that is a mismatch.
    pub tolerates_loss: bool,
}

/// How long a client that does not read waits.
pub const PAUSE: Duration = Duration::from_millis(2);

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            slots: 0..1,
            behaviour: Behaviour::default(),
            user: catalog::LOGIN_ROLE,
            startup: Vec::new(),
            comparison: Comparison::ExactWithNotifier,
            write_bytes_max: 0,
            pause_percent: 0,
            tolerates_loss: false,
        }
    }
}

#[derive(Debug)]
struct Live {
    socket: SimSocket,
    oracle: Oracle,
    generator: Generator,
    unsent: Vec<u8>,
    awaiting: bool,
    leaving: bool,
    vanishing: bool,
}

/// A simulated client.
#[derive(Debug)]
pub struct ModelClient {
    config: ClientConfig,
    rng: Rng,
    live: Option<Live>,
    next_slot: usize,
    quiet_until: Duration,
    /// Connections of cancel requests, kept until the other end closes them.
    cancels: Vec<(SimSocket, Vec<u8>)>,
    sessions_lost: u64,
    messages: u64,
    /// Tables whose rows at the end are known, with those rows.
    settled: Vec<(String, Vec<i32>)>,
}

impl ModelClient {
    /// A client that has not connected yet.
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        Self {
            rng: Rng::new(config.seed),
            next_slot: config.slots.start,
            config,
            live: None,
            quiet_until: Duration::ZERO,
            cancels: Vec::new(),
            sessions_lost: 0,
            messages: 0,
            settled: Vec::new(),
        }
    }

    /// All its sessions are over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.live.is_none() && self.next_slot >= self.config.slots.end && self.cancels.is_empty()
    }

    /// When it wants to act without having received anything.
    #[must_use]
    pub fn wakes_at(&self, now: Duration) -> Option<Duration> {
        (!self.is_done() && self.quiet_until > now).then_some(self.quiet_until)
    }

    /// Sessions that the server's end has ended.
    #[must_use]
    pub fn sessions_lost(&self) -> u64 {
        self.sessions_lost
    }

    /// Messages sent so far.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// The tables of sessions that ended in order, with the rows that they must now hold.
    #[must_use]
    pub fn settled(&self) -> &[(String, Vec<i32>)] {
        &self.settled
    }

    /// The socket of the session, to register it.
    #[must_use]
    pub fn socket(&self) -> Option<&SimSocket> {
        self.live.as_ref().map(|live| &live.socket)
    }

    /// What it waits for, for reports on clients that hang.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.live {
            None => format!("slot {}: not connected", self.next_slot),
            Some(live) => format!(
                "slot {}: waits for {} with {} bytes unsent;\n{}",
                self.next_slot,
                live.oracle.waits_for(),
                live.unsent.len(),
                live.oracle.history().join("\n")
            ),
        }
    }

    /// Reads, judges and writes what it can now. `dial` opens a connection.
    ///
    /// # Errors
    /// [`Mismatch`] if it receives what it must not.
    pub fn run(
        &mut self,
        now: Duration,
        dial: &mut dyn FnMut() -> SimSocket,
    ) -> Result<(), Mismatch> {
        self.run_cancels();
        if now < self.quiet_until {
            return Ok(());
        }
        if self.live.is_none() {
            if self.next_slot >= self.config.slots.end {
                return Ok(());
            }
            self.connect(dial());
        }
        if self.rng.percent(self.config.pause_percent) {
            self.quiet_until = now + PAUSE;
            return Ok(());
        }
        loop {
            self.write();
            let heard = self.read()?;
            let acted = self.act_at_once(now, dial);
            if (!heard && !acted) || self.live.is_none() || now < self.quiet_until {
                return Ok(());
            }
        }
    }

    fn connect(&mut self, socket: SimSocket) {
        let config = ServerConfig {
            slots: self.config.slots.clone(),
            seed: self.rng.next_u64(),
            ..ServerConfig::default()
        };
        let mut oracle = Oracle::new(config, self.config.comparison);
        let mut parameters = vec![("user", self.config.user), ("database", catalog::DATABASE)];
        parameters.extend(self.config.startup.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        let startup = frontend::startup(frontend::PROTOCOL_3_0, &parameters);
        oracle.send(&startup);
        let generator =
            Generator::new(self.rng.next_u64(), self.config.behaviour.clone(), self.next_slot);
        self.live = Some(Live {
            socket,
            oracle,
            generator,
            unsent: startup.encode(),
            awaiting: true,
            leaving: false,
            vanishing: false,
        });
    }

    fn write(&mut self) {
        let Some(live) = &mut self.live else { return };
        while !live.unsent.is_empty() {
            let most = match self.config.write_bytes_max {
                0 => live.unsent.len(),
                most => usize::try_from(self.rng.between(1, most)).unwrap_or(usize::MAX),
            };
            let piece = most.min(live.unsent.len());
            match live.socket.write(&live.unsent[..piece]) {
                Ok(sent) => drop(live.unsent.drain(..sent)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // What broke it is seen by reading.
                Err(_) => live.unsent.clear(),
            }
        }
    }

    fn read(&mut self) -> Result<bool, Mismatch> {
        let Some(live) = &mut self.live else { return Ok(false) };
        let mut buffer = [0; READ_BYTES];
        match live.socket.read(&mut buffer) {
            Ok(0) => self.lost("the connection was closed"),
            Ok(read) => {
                live.oracle.receive(&buffer[..read])?;
                match live.oracle.farewell() {
                    Some(farewell) if !self.config.tolerates_loss => Err(Mismatch {
                        what: format!("the session was ended: {farewell}"),
                        history: live.oracle.history(),
                    }),
                    _ => Ok(true),
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(_) => self.lost("the connection was reset"),
        }
    }

    fn lost(&mut self, how: &str) -> Result<bool, Mismatch> {
        let Some(live) = self.live.take() else { return Ok(false) };
        if live.leaving && live.oracle.is_silent() {
            self.settle(&live);
        } else if self.config.tolerates_loss {
            self.sessions_lost += 1;
        } else {
            let what = format!("{how}, while waiting for {}", live.oracle.waits_for());
            return Err(Mismatch { what, history: live.oracle.history() });
        }
        self.next_slot += 1;
        Ok(false)
    }

    fn settle(&mut self, live: &Live) {
        let table = catalog::ledger(self.next_slot);
        if let Some(mut rows) = live.oracle.server().rows(&table) {
            rows.sort_unstable();
            self.settled.push((table, rows));
        }
    }

    /// One action, or a pipeline of them up to its Sync, which is written at once then.
    fn act_at_once(&mut self, now: Duration, dial: &mut dyn FnMut() -> SimSocket) -> bool {
        let acted = self.act(now, dial);
        while acted
            && self.config.behaviour.bursts
            && self.live.as_ref().is_some_and(|live| live.generator.is_in_pipeline())
            && self.act(now, dial)
        {}
        acted
    }

    fn act(&mut self, now: Duration, dial: &mut dyn FnMut() -> SimSocket) -> bool {
        let Some(live) = &mut self.live else { return false };
        if live.oracle.farewell().is_some() || live.leaving {
            return false;
        }
        if live.vanishing {
            // In the middle of a message, if the pipe or the drawn length says so.
            self.live = None;
            self.next_slot += 1;
            return true;
        }
        if live.awaiting {
            if !live.oracle.is_answered() {
                return false;
            }
            live.awaiting = false;
        }
        let Some(action) = live.generator.next_action(live.oracle.reference()) else {
            return false;
        };
        match action {
            Action::Send(message) => {
                self.messages += 1;
                live.oracle.send(&message);
                live.unsent.extend(message.encode());
            }
            Action::Await => live.awaiting = true,
            Action::Think(pause) => self.quiet_until = now + pause,
            Action::Cancel => {
                if let Some((process, secret)) = live.oracle.key().cloned() {
                    live.oracle.send_cancel();
                    let request = frontend::cancel(process, &secret).encode();
                    self.cancels.push((dial(), request));
                }
            }
            Action::Vanish => {
                let kept = self.rng.index(live.unsent.len() + 1);
                live.unsent.truncate(kept);
                live.vanishing = true;
            }
            Action::Leave => {
                let terminate = frontend::terminate();
                live.oracle.send(&terminate);
                live.unsent.extend(terminate.encode());
                live.leaving = true;
            }
        }
        true
    }

    fn run_cancels(&mut self) {
        self.cancels.retain_mut(|(socket, request)| {
            if !request.is_empty() {
                match socket.write(request) {
                    Ok(sent) => drop(request.drain(..sent)),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(_) => return false,
                }
            }
            matches!(socket.read(&mut [0; 16]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        });
    }
}
