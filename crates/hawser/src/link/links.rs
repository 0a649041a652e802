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
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use hawser_link::drive::control::{Control, Order};
use hawser_link::drive::keys::Key;
use hawser_link::drive::report::Report;
use hawser_link::drive::worker::{Within, Worker, peers_of};
use tracing::{error, info};

use crate::config::LinkConfig;
use crate::lock::locked;

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
        let worker = Worker::open(config.clone(), Within::Serve).map_err(of)?;
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

/// What is wrong with the files that `config` names.
fn check(config: &LinkConfig) -> Option<String> {
    let key = Key::load(&config.key).err().map(|error| error.to_string());
    // (A file without a key is right: the last one may have been revoked.)
    let wrong = key.or_else(|| peers_of(&config.peers, config.peers_file.as_deref()).err());
    wrong.map(|message| format!("[link.{}]: {message}", config.name))
}

impl Links {
    fn running(&self) -> MutexGuard<'_, BTreeMap<String, Running>> {
        locked(&self.0)
    }

    /// Starts, changes and ends links, so that these run.
    ///
    /// # Errors
    /// What is wrong with files that they name, and what cannot be listened on: those run that ran before.
    pub fn put_in_force(&self, wanted: &[LinkConfig]) -> Result<(), Vec<String>> {
        let wrong: Vec<String> = wanted.iter().filter_map(check).collect();
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let (ended, start) = self.sort(wanted);
        // (Without the lock: dials wait for that.)
        let before: Vec<LinkConfig> = ended.iter().map(|one| one.config.clone()).collect();
        ended.into_iter().for_each(Running::end); // what they listen on is free then
        let (mut started, mut wrong) = (Vec::new(), Vec::new());
        for config in &start {
            match Running::start(config) {
                Ok(one) => started.push(one),
                Err(error) => wrong.push(error),
            }
        }
        if !wrong.is_empty() {
            started.drain(..).for_each(Running::end);
            for config in &before {
                match Running::start(config) {
                    Ok(one) => started.push(one),
                    Err(error) => {
                        error!("cannot restart a link with its old configuration: {error}");
                    }
                }
            }
        }
        self.running().extend(started.into_iter().map(|one| (one.config.name.clone(), one)));
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// Takes out the links to end, and returns those to start. Links that go on get their new keys.
    fn sort(&self, wanted: &[LinkConfig]) -> (Vec<Running>, Vec<LinkConfig>) {
        let mut running = self.running();
        let mut before = std::mem::take(&mut *running);
        let (mut ended, mut start) = (Vec::new(), Vec::new());
        for config in wanted {
            match before.remove(&config.name) {
                Some(mut one) if one.differs_by_peers(config) && !one.thread.is_finished() => {
                    // Also where nothing differs: the file is read again.
                    let (fixed, file) = (config.peers.clone(), config.peers_file.clone());
                    let _ = one.control.give(Order::Peers { fixed, file });
                    one.config = config.clone();
                    running.insert(config.name.clone(), one);
                }
                other => {
                    ended.extend(other);
                    start.push(config.clone());
                }
            }
        }
        ended.extend(before.into_values());
        (ended, start)
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
        if one.thread.is_finished() {
            let message = format!("the link {name} has ended; RELOAD starts it again");
            return Err(io::Error::new(io::ErrorKind::NotConnected, message));
        }
        let (own, carried) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        carried.set_nonblocking(true)?;
        one.control.give(Order::Open(carried, target.to_owned()))?;
        Ok(own)
    }

    /// What they do, as of a second ago at most, by their names. One whose thread has ended has no
    /// report: its end is in the log.
    #[must_use]
    pub fn reports(&self) -> Vec<Arc<Report>> {
        let running = self.running();
        let live = running.values().filter(|one| !one.thread.is_finished());
        live.filter_map(|one| one.control.report()).collect()
    }

    /// Ends all.
    pub fn end(&self) {
        std::mem::take(&mut *self.running()).into_values().for_each(Running::end);
    }
}
