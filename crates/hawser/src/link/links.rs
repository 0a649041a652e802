//! The ends of links that `hawser serve` runs, each on a thread of its own.
//!
//! # Model
//! ```text
//!   pool ─► Links::open(NAME, target) ─► one end of a socketpair ─► the worker of NAME: a stream of the link
//!        ◄─ the other end of it
//! ```
//! A pool's connection is a local socket of the link like any other; what it carries is what a TCP connection
//! to the server would, TLS included.
//!
//! # Invariants
//! * a reload that changes keys of the other end alone ends no connection but those of keys that are gone
//! * what a reload leaves as it is goes on

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tracing::{error, info};

use super::control::{Control, Order};
use super::keys::{Key, read_peers};
use super::worker::{Far, Near, Options, Role, Worker};
use crate::config::{LinkConfig, LinkRole};

/// The ends of links of this process.
#[derive(Clone, Debug, Default)]
pub struct Links(Arc<Mutex<BTreeMap<String, Running>>>);

#[derive(Debug)]
struct Running {
    config: LinkConfig,
    control: Arc<Control>,
    thread: JoinHandle<()>,
}

impl Running {
    fn start(config: &LinkConfig) -> Result<Self, String> {
        let of = |message: String| format!("[link.{}]: {message}", config.name);
        let worker = Worker::open(options(config).map_err(of)?, false).map_err(of)?;
        for address in worker.addresses() {
            info!(link = config.name, %address, "a link listens");
        }
        let control = worker.control();
        let name = config.name.clone();
        let run = move || {
            let mut worker = worker;
            if let Err(error) = worker.run() {
                error!(link = name, %error, "a link has ended");
            }
        };
        let thread = std::thread::Builder::new().name("link".to_owned()).spawn(run);
        let thread = thread.map_err(|error| of(error.to_string()))?;
        Ok(Self { config: config.clone(), control, thread })
    }

    fn end(self) {
        let _ = self.control.give(Order::End); // it has ended already
        let _ = self.thread.join();
    }

    /// Whether `config` has other keys of the other end, and nothing else.
    fn differs_by_peers(&self, config: &LinkConfig) -> bool {
        let (peers, peers_file) = (config.peers.clone(), config.peers_file.clone());
        LinkConfig { peers, peers_file, ..self.config.clone() } == *config
    }
}

fn options(config: &LinkConfig) -> Result<Options, String> {
    let key = Key::load(&config.key).map_err(|error| error.to_string())?;
    let role = match config.role.clone() {
        LinkRole::Near { far, from, paths } => {
            Role::Near(Near { to: far, from, paths, forwards: Vec::new() })
        }
        LinkRole::Far { listen, allow } => Role::Far(Far { listen, allow }),
    };
    Ok(Options {
        name: config.name.clone(),
        key,
        peers: config.peers.clone(),
        peers_file: config.peers_file.clone(),
        grace: config.grace,
        socket: config.socket.clone(),
        role,
    })
}

/// What is wrong with the files that `config` names.
fn check(config: &LinkConfig) -> Option<String> {
    let key = Key::load(&config.key).err().map(|error| error.to_string());
    let wrong =
        key.or_else(|| config.peers_file.as_deref().and_then(|file| read_peers(file).err()));
    wrong.map(|message| format!("[link.{}]: {message}", config.name))
}

impl Links {
    fn running(&self) -> MutexGuard<'_, BTreeMap<String, Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts, changes and ends links, so that these run.
    ///
    /// # Errors
    /// What is wrong with files that they name: all stays as it was. And what cannot be listened on: the
    /// others run.
    pub fn put_in_force(&self, wanted: &[LinkConfig]) -> Result<(), Vec<String>> {
        let wrong: Vec<String> = wanted.iter().filter_map(check).collect();
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let mut running = self.running();
        let mut before = std::mem::take(&mut *running);
        let mut start = Vec::new();
        for config in wanted {
            let Some(mut one) = before.remove(&config.name) else {
                start.push(config);
                continue;
            };
            if one.differs_by_peers(config) {
                // Also where nothing differs: the file is read again.
                let (fixed, file) = (config.peers.clone(), config.peers_file.clone());
                let _ = one.control.give(Order::Peers { fixed, file });
                one.config = config.clone();
                running.insert(config.name.clone(), one);
            } else {
                one.end(); // what it listens on is free then
                start.push(config);
            }
        }
        before.into_values().for_each(Running::end);
        let mut wrong = Vec::new();
        for config in start {
            match Running::start(config) {
                Ok(one) => drop(running.insert(config.name.clone(), one)),
                Err(error) => wrong.push(error),
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// A connection over the link `name` to `target`, `host:port`. That the far end reaches it shows when
    /// something comes back.
    ///
    /// # Errors
    /// There is no such link, or no descriptor.
    pub fn open(&self, name: &str, target: &str) -> io::Result<UnixStream> {
        let running = self.running();
        let Some(one) = running.get(name) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no link {name} runs")));
        };
        let (own, carried) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        carried.set_nonblocking(true)?;
        one.control.give(Order::Open(carried, target.to_owned()))?;
        Ok(own)
    }

    /// Ends all.
    pub fn end(&self) {
        std::mem::take(&mut *self.running()).into_values().for_each(Running::end);
    }
}
