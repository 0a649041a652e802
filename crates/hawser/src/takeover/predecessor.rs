//! The process before this one, while it still has clients, as the rest of this process sees it.

use crate::lock::locked;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::order::Order;
use super::wire::Message;

/// How long it has to answer.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// What is left of a predecessor, for `hawser status`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, derive_more::Display)]
#[display("process {pid}, hawser {version}, still has {clients} clients")]
pub struct PredecessorStatus {
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Clients that it still has.
    pub clients: usize,
}

/// A predecessor that still has clients, as the rest of this process sees it.
#[derive(Debug)]
pub struct Predecessor {
    pub(super) pid: u32,
    version: String,
    clients: AtomicUsize,
    next: AtomicU64,
    asks: mpsc::UnboundedSender<Message>,
    asked: Mutex<HashMap<u64, oneshot::Sender<Option<String>>>>,
}

impl Predecessor {
    /// It has so many clients, and answers what is sent there.
    pub(super) fn new(
        pid: u32,
        version: String,
        clients: usize,
        asks: mpsc::UnboundedSender<Message>,
    ) -> Self {
        let (next, asked) = (AtomicU64::new(1), Mutex::default());
        Self { pid, version, clients: AtomicUsize::new(clients), next, asks, asked }
    }

    /// It has so many clients by now.
    pub(super) fn has(&self, clients: usize) {
        self.clients.store(clients, Ordering::Relaxed);
    }

    /// It has answered a question.
    pub(super) fn answered(&self, number: u64, error: Option<String>) {
        if let Some(done) = locked(&self.asked).remove(&number) {
            let _ = done.send(error); // the waiter may have gone
        }
    }

    /// It answers no more.
    pub(super) fn forget_all(&self) {
        locked(&self.asked).clear();
    }

    /// For `hawser status`.
    pub fn status(&self) -> PredecessorStatus {
        PredecessorStatus {
            pid: self.pid,
            version: self.version.clone(),
            clients: self.clients.load(Ordering::Relaxed),
        }
    }

    /// Passes on a cancel request that may be for a client there, and returns once it has been
    /// handled, or `within` has passed.
    pub async fn cancel(&self, process: u32, key: &[u8], within: Duration) {
        let key = key.into();
        // If this ends sooner, the process and its clients have gone.
        let asked = self.ask(|number| Message::Cancel { number, process, key });
        let _ = tokio::time::timeout(within, asked).await;
    }

    /// Passes a command on: see [`Succession::pass_on`](super::Succession::pass_on).
    pub(super) async fn obey(
        &self,
        order: Order,
        has_gone: impl Fn() -> bool,
    ) -> Result<(), String> {
        let (pid, clients) = (self.pid, self.clients.load(Ordering::Relaxed));
        let waits = matches!(order, Order::Pause { .. }); // until transactions have ended
        let asked = self.ask(|number| Message::Command { number, order });
        let answer = match waits {
            true => Ok(asked.await),
            false => tokio::time::timeout(ANSWER_WAIT, asked).await,
        };
        let why = match answer {
            Ok(Some(None)) => return Ok(()),
            Ok(Some(Some(reason))) => reason,
            Ok(None) if has_gone() => return Ok(()),
            Ok(None) => "the conversation with it has broken off".to_owned(),
            Err(_) => format!("it has not answered within {} s", ANSWER_WAIT.as_secs()),
        };
        Err(format!(
            "the command has been done here, and not in process {pid}, whose place this one has taken, and \
             which still has {clients} clients: {why}"
        ))
    }

    /// Asks, and waits for the answer: the error, if there was one. `None`: the conversation has
    /// ended.
    async fn ask(&self, message: impl FnOnce(u64) -> Message) -> Option<Option<String>> {
        let (done, answered) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        locked(&self.asked).insert(number, done);
        let _forgets = Forgets { predecessor: self, number };
        self.asks.send(message(number)).ok()?;
        answered.await.ok()
    }
}

/// Nothing waits for this answer any more.
struct Forgets<'a> {
    predecessor: &'a Predecessor,
    number: u64,
}

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        locked(&self.predecessor.asked).remove(&self.number);
    }
}
