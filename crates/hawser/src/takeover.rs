//! A new process takes the place of a running one, without a dropped connection.
//!
//! # Model
//! ```text
//!   predecessor                                successor
//!   serves                                     finds it by its socket, gets its listening sockets
//!   serves                                     starts: configuration, users, TLS, sockets, pools
//!   accepts no more, gives clients at rest ──► serves: accepts, takes clients
//!   serves those that stay, until they leave   passes cancel requests for them on
//!   ends                                       serves
//! ```
//! Nothing changes at the predecessor before the successor can serve: a failed start changes
//! nothing. [`giving`] and [`taking`] have the work of each, [`wire`] their messages, [`record`]
//! the state of a client; [`hawser_pooler::relay::succession`] decides which clients may go.
//!
//! # Invariants
//! * one process accepts at a time; the sockets are the same, so that no waiting connection is lost
//! * a client is served by one process at a time: the predecessor keeps its copy of a client's
//!   socket, unread, until the successor has confirmed that it takes the client
//! * if the successor's process has ended, the predecessor accepts again, and goes on with its
//!   clients. If only the conversation has ended, it accepts no more, and ends when these have left
//! * there are two processes at most: one that still has a predecessor does not give up its place
//!
//! # Why two processes, and not exec
//! The new one may fail to start while the old one serves. An exec could not carry over TLS
//! sessions either where the kernel does not take them: rustls keeps their keys in its memory.

pub mod giving;
pub mod order;
pub mod predecessor;
pub mod process;
pub mod record;
pub mod start;
pub mod taking;
pub mod wire;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hawser_pooler::ids::LoopId;
use hawser_pooler::relay::ToLoop;
use hawser_pooler::relay::succession::{Arrival, MovedClient};
use tokio::sync::{mpsc, watch};

use crate::listeners::{Inherited, Purpose};
use crate::lock::locked;
use crate::loops::Loops;
use crate::phase::Standing;
use crate::socket::Conn;
use order::Order;
use predecessor::Predecessor;
use process::OtherProcess;

/// A client that a loop gives away.
pub type Given = (LoopId, MovedClient<Conn>);

/// The process before this one, and the process after it.
#[derive(Debug, Default)]
pub struct Succession {
    /// Which process clients connect to.
    pub standing: watch::Sender<Standing>,
    inherited: Mutex<Inherited>,
    listening: Mutex<Vec<(Purpose, Arc<OwnedFd>)>>,
    predecessor: Mutex<Option<Arc<Predecessor>>>,
    gives: Mutex<Option<mpsc::UnboundedSender<Given>>>,
    /// The process before this one, until it has announced its end, or has ended.
    before: Mutex<Option<Arc<OtherProcess>>>,
    /// The process that is about to be the successor.
    candidate: Mutex<Option<u32>>,
}

impl Succession {
    /// For a process that takes the place of another, with that one's sockets.
    pub fn of_successor(inherited: Inherited) -> Self {
        Self {
            standing: watch::Sender::new(Standing::Starting),
            inherited: Mutex::new(inherited),
            ..Self::default()
        }
    }

    /// The predecessor's socket for this, if it has one.
    pub fn inherit(&self, purpose: &Purpose) -> Option<OwnedFd> {
        locked(&self.inherited).take(purpose)
    }

    /// The predecessor's sockets that the service manager has passed.
    pub fn inherit_passed(&self) -> Vec<(Purpose, OwnedFd)> {
        locked(&self.inherited).take_passed()
    }

    /// The predecessor has given up its place: closes the sockets on which only it listened.
    pub fn end_unused(&self) {
        locked(&self.inherited).end();
    }

    /// This process listens on a socket, of which this is a duplicate.
    pub fn listens(&self, purpose: Purpose, fd: Arc<OwnedFd>) {
        locked(&self.listening).push((purpose, fd));
    }

    /// All that this process listens on.
    fn listening(&self) -> Vec<(Purpose, Arc<OwnedFd>)> {
        locked(&self.listening).clone()
    }

    /// Whether clients connect to this process.
    pub fn serves(&self) -> bool {
        self.standing.borrow().serves()
    }

    /// Whether clients connect to a successor.
    pub fn is_given(&self) -> bool {
        matches!(*self.standing.borrow(), Standing::Given(_))
    }

    /// A loop gives a client away. `Err`: there is no successor to take it.
    pub fn give(&self, given: Given) -> Result<(), Box<Given>> {
        match &*locked(&self.gives) {
            Some(gives) => gives.send(given).map_err(|error| Box::new(error.0)),
            None => Err(Box::new(given)),
        }
    }

    /// The id of the process before this one, as long as that may accept again.
    fn process_before(&self) -> Option<u32> {
        let before = locked(&self.before);
        before.as_ref().filter(|before| !before.has_ended()).map(|before| before.pid)
    }

    /// Passes a command on to the process before this one, if that still has clients.
    ///
    /// # Errors
    /// The reason why it was not carried out.
    pub async fn pass_on(&self, order: Order) -> Result<(), String> {
        let Some(predecessor) = self.predecessor() else { return Ok(()) };
        let has_gone = || self.process_before().is_none();
        predecessor.obey(order, has_gone).await
    }

    /// The process before this one, while it still has clients.
    pub fn predecessor(&self) -> Option<Arc<Predecessor>> {
        locked(&self.predecessor).clone()
    }
}

/// The socket for a successor, given the control socket.
pub fn socket_path(control_socket: &Path) -> PathBuf {
    let mut path = control_socket.as_os_str().to_owned();
    path.push(".takeover");
    path.into()
}

/// A client does not go over: its loop continues with it.
pub fn give_back(loops: &Loops, home: LoopId, client: MovedClient<Conn>) {
    let arrival = Arrival::BackFromSuccessor;
    loops.send(home, ToLoop::TakeClient(Box::new(client), arrival));
}
