//! The server as its connections share it: data, locks, channels, processes, the clock.
//!
//! # Invariants
//! - what a transaction writes is seen by others at its commit and not before
//! - an advisory lock has one holder; a process that ends holds none
//! - a notification goes to every process that listened when its sender committed, in commit order
//!
//! # Limits
//! No row locks: concurrent writers of one table never wait for each other (their changes
//! commute). Simulated clients write tables of their own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::backend::ModelBackend;
use super::catalog::{self, Database};
use super::commit::{Notification, ProcessId};
use crate::rng::Rng;

/// What a server is like.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Highest minor version of protocol 3: 0 up to PostgreSQL 17, 2 from 18 on.
    pub protocol_minor: u16,
    /// Tables and sequences `ledger_N`, `seq_N`, for these N.
    pub slots: std::ops::Range<usize>,
    /// It has the extension: sessions that ask for it get reports of what they hold.
    pub reports: bool,
    /// Connections that are accepted at a time; more get 53300.
    pub connections_max: usize,
    /// Decides process ids and secrets.
    pub seed: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self { protocol_minor: 0, slots: 0..16, reports: false, connections_max: 100, seed: 1 }
    }
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) secret: Vec<u8>,
    pub(super) database: String,
    pub(super) listens: BTreeSet<String>,
    pub(super) inbox: VecDeque<Notification>,
    pub(super) cancelled: bool,
    pub(super) terminated: bool,
    pub(super) crashed: bool,
}

#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) config: ServerConfig,
    pub(super) roles: BTreeMap<String, bool>,
    pub(super) databases: BTreeMap<String, Database>,
    /// Holder of each lock, and how often it was taken.
    pub(super) locks: BTreeMap<(String, i64), (ProcessId, u32)>,
    pub(super) processes: BTreeMap<ProcessId, Process>,
    pub(super) now: Duration,
    next_process: i32,
    rng: Rng,
}

impl Cluster {
    /// Admits a connection after its startup packet; `None` where there are too many.
    pub(super) fn admit(&mut self, database: &str, minor: u16) -> Option<ProcessId> {
        if self.processes.len() >= self.config.connections_max {
            return None;
        }
        let process = ProcessId(self.next_process);
        self.next_process += 1;
        let words = if minor >= 2 { 4 } else { 1 };
        let mut secret: Vec<u8> =
            (0..words).flat_map(|_| self.rng.next_u64().to_be_bytes()).collect();
        if words == 1 {
            secret.truncate(4);
        }
        self.processes.insert(
            process,
            Process {
                secret,
                database: database.to_owned(),
                listens: BTreeSet::new(),
                inbox: VecDeque::new(),
                cancelled: false,
                terminated: false,
                crashed: false,
            },
        );
        Some(process)
    }

    /// Takes a lock, or says that another process has it.
    pub(super) fn lock(&mut self, process: ProcessId, database: &str, lock: i64) -> bool {
        let held = self.locks.entry((database.to_owned(), lock)).or_insert((process, 0));
        if held.0 != process {
            return false;
        }
        held.1 += 1;
        true
    }

    /// Gives a lock back once; false where the process does not hold it.
    pub(super) fn unlock(&mut self, process: ProcessId, database: &str, lock: i64) -> bool {
        let key = (database.to_owned(), lock);
        match self.locks.get_mut(&key) {
            Some((holder, count)) if *holder == process => {
                *count -= 1;
                if *count == 0 {
                    self.locks.remove(&key);
                }
                true
            }
            _ => false,
        }
    }

    pub(super) fn unlock_all(&mut self, process: ProcessId) {
        self.locks.retain(|_, (holder, _)| *holder != process);
    }

    /// Who listens on anything has a place in the queue, and looks only when it reads whether it listens
    /// on this (async.c).
    pub(super) fn notify(&mut self, database: &str, notification: &Notification) {
        for process in self.processes.values_mut() {
            if process.database == database && !process.listens.is_empty() {
                process.inbox.push_back(notification.clone());
            }
        }
    }

    pub(super) fn leave(&mut self, process: ProcessId) {
        self.unlock_all(process);
        self.processes.remove(&process);
    }
}

/// A model of a PostgreSQL server. Clones are handles to the same server.
#[derive(Debug, Clone)]
pub struct ModelServer {
    cluster: Arc<Mutex<Cluster>>,
}

impl ModelServer {
    /// A new cluster with the contents of [`catalog`].
    #[must_use]
    pub fn new(config: ServerConfig) -> Self {
        let database = catalog::database(config.slots.clone());
        let mut rng = Rng::new(config.seed);
        let next_process = i32::try_from(rng.between(1000, 30_000)).expect("below i32::MAX");
        let cluster = Cluster {
            roles: catalog::roles(),
            databases: BTreeMap::from([(catalog::DATABASE.to_owned(), database)]),
            locks: BTreeMap::new(),
            processes: BTreeMap::new(),
            now: Duration::ZERO,
            next_process,
            rng,
            config,
        };
        Self { cluster: Arc::new(Mutex::new(cluster)) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Cluster> {
        // A panic of one simulated backend is already the test's failure.
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection, which waits for its startup packet.
    #[must_use]
    pub fn connect(&self) -> ModelBackend {
        ModelBackend::new(self.clone())
    }

    /// Moves the clock. Backends that sleep notice when they next run.
    pub fn advance_to(&self, now: Duration) {
        let mut cluster = self.lock();
        cluster.now = cluster.now.max(now);
    }

    /// Time since the cluster's start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    /// Cancels what the process runs, if the secret is its own; as a CancelRequest does.
    pub fn cancel(&self, process: ProcessId, secret: &[u8]) {
        if let Some(found) = self.lock().processes.get_mut(&process)
            && found.secret == secret
        {
            found.cancelled = true;
        }
    }

    /// Cancels what the process runs, without a secret; as `pg_cancel_backend` does.
    pub fn cancel_process(&self, process: ProcessId) {
        if let Some(found) = self.lock().processes.get_mut(&process) {
            found.cancelled = true;
        }
    }

    /// Ends one process with 57P01, as `pg_terminate_backend` does.
    pub fn terminate(&self, process: ProcessId) {
        if let Some(found) = self.lock().processes.get_mut(&process) {
            found.terminated = true;
        }
    }

    /// One process dies by a signal: the server warns all others with 57P02 and resets them.
    pub fn crash(&self) {
        for process in self.lock().processes.values_mut() {
            process.crashed = true;
        }
    }

    /// Processes that are connected.
    #[must_use]
    pub fn processes(&self) -> Vec<ProcessId> {
        self.lock().processes.keys().copied().collect()
    }

    /// Committed rows of a table, in no particular order; `None` where there is no such table.
    #[must_use]
    pub fn rows(&self, table: &str) -> Option<Vec<i32>> {
        self.lock().databases.get(catalog::DATABASE)?.tables.get(table).cloned()
    }

    /// Session advisory locks in force, with their holders.
    #[must_use]
    pub fn locks(&self) -> Vec<(i64, ProcessId)> {
        self.lock().locks.iter().map(|((_, lock), (holder, _))| (*lock, *holder)).collect()
    }

    /// Channels that some process listens on, with that process.
    #[must_use]
    pub fn listeners(&self) -> Vec<(String, ProcessId)> {
        let cluster = self.lock();
        let listens = cluster.processes.iter().flat_map(|(process, found)| {
            found.listens.iter().map(|channel| (channel.clone(), *process))
        });
        listens.collect()
    }
}
