//! Listening sockets, which go from one process to its successor.
//!
//! # Invariants
//! * a socket is the same in both processes: the end of neither loses connections that wait in its
//!   queue
//! * the file of a unix socket is removed by the process that serves it, and by no other

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use hawser_sys::listen::{BoundPath, SocketFile};
use hawser_sys::stream::shutdown_both;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::phase::Standing;

/// What a listening socket is for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "purpose")]
pub enum Purpose {
    /// Clients, at this address of the configuration.
    Clients {
        /// As it is shown.
        address: String,
    },
    /// Clients, at a socket that the service manager has passed.
    Passed {
        /// Its name there.
        name: String,
    },
    /// Metrics, health and the status page.
    Pages {
        /// Its address.
        address: String,
    },
    /// `hawser status`.
    Control {
        /// Its path.
        path: PathBuf,
    },
    /// What the server's extension asks.
    Extension {
        /// Its path.
        path: PathBuf,
    },
    /// Server connections that serve clients inside.
    Inside {
        /// Its path.
        path: PathBuf,
    },
    /// What a successor asks.
    Takeover {
        /// Its path.
        path: PathBuf,
    },
    /// A purpose that this version does not know.
    #[serde(other)]
    Unknown,
}

/// The file of a unix socket.
#[derive(Debug)]
pub enum SocketPath {
    /// The service manager's, which keeps it.
    Kept,
    /// This process's: removed when this is dropped.
    Own(BoundPath),
    /// The predecessor's, until that has given it, and what it will be then.
    Predecessors(PathBuf, SocketFile),
}

impl SocketPath {
    /// The predecessor has given it.
    pub fn is_given(&mut self) {
        if let Self::Predecessors(path, file) = self {
            if let Err(error) = file.apply(path) {
                let path = path.display();
                tracing::warn!(
                    %path, %error,
                    "the socket keeps the permissions and owners that the predecessor gave it"
                );
            }
            // One that no longer exists need not be removed.
            *self = BoundPath::of(path).map_or(Self::Kept, Self::Own);
        }
    }

    /// The successor's from here on.
    pub fn leave(self) {
        if let Self::Own(path) = self {
            path.leave();
        }
    }
}

/// The sockets of a predecessor that have not been taken yet.
#[derive(Debug, Default)]
pub struct Inherited(Vec<(Purpose, OwnedFd)>);

impl Inherited {
    /// From what came with the welcome.
    pub fn new(purposes: Vec<Purpose>, fds: Vec<OwnedFd>) -> Self {
        Self(purposes.into_iter().zip(fds).collect())
    }

    /// The socket of this purpose, if there is one.
    pub fn take(&mut self, purpose: &Purpose) -> Option<OwnedFd> {
        let at = self.0.iter().position(|(known, _)| known == purpose)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Those that the service manager had passed to the predecessor.
    pub fn take_passed(&mut self) -> Vec<(Purpose, OwnedFd)> {
        let all = std::mem::take(&mut self.0);
        let (passed, rest) =
            all.into_iter().partition(|(purpose, _)| matches!(purpose, Purpose::Passed { .. }));
        self.0 = rest;
        passed
    }

    /// Ends those that are left: this process does not listen there, and no client must wait to be
    /// accepted. (As one socket of both processes it ends in both.)
    pub fn end(&mut self) {
        for (purpose, fd) in self.0.drain(..).filter(|(purpose, _)| *purpose != Purpose::Unknown) {
            tracing::info!(
                ?purpose,
                "the predecessor's socket is not in this configuration: it is closed"
            );
            let _ = shutdown_both(&fd); // it listens, or has ended already
        }
    }

    /// Whether clients connect to it at one of these addresses, or by the service manager.
    pub fn serves_any(&self, addresses: &[String]) -> bool {
        self.0.iter().any(|(purpose, _)| match purpose {
            Purpose::Clients { address } => addresses.contains(address),
            Purpose::Passed { .. } => true,
            _ => false,
        })
    }
}

/// Does the work of a listening socket as long as this process is the one that serves it: `work`
/// starts again whenever that begins.
pub async fn while_serving<W: Future<Output = ()>>(
    mut standing: watch::Receiver<Standing>,
    mut work: impl FnMut() -> io::Result<W>,
) {
    loop {
        if standing.wait_for(Standing::serves).await.is_err() {
            return;
        }
        let work = match work() {
            Ok(work) => work,
            Err(error) => return tracing::error!(%error, "a listening socket cannot be served"),
        };
        tokio::select! {
            () = work => return,
            _ = standing.wait_for(|standing| !standing.serves()) => {}
        }
    }
}
