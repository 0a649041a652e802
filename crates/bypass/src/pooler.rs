//! A pooler's own sockets past TCP.
//!
//! # Model
//! ```text
//!   begin ──► self-test ──► programs at the root of control groups
//!   clients   connect to a port that is wanted          both ends are taken in
//!   servers   the cookie of a socket that is about to connect is wanted
//! ```
//! Clients and servers are in other control groups than the pooler, so the programs stand at the root,
//! and take in what is wanted alone. [Why](../../../docs/decisions/0011-past-tcp-from-the-root.md).
//!
//! # Invariants
//! * what was wanted by this process is forgotten when it ends, and the programs go with the last
//!
//! # Limits
//! A process that gives up root cannot remove the programs at its end: they stay, take no connection in,
//! and go with `hawser bypass off` or the next start.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use hawser_sys::interfaces::namespace_cookie;

use crate::kernel::{Bypass, BypassError, Place, Standing};
use crate::place::{self, Error};

/// What a pooler has had taken in.
#[derive(Debug)]
pub struct Pooler {
    bypass: Bypass,
    namespace: u64,
    ports: Vec<u16>,
}

/// A socket that is wanted, until it is connected or given up: those of other hosts are not taken.
#[derive(Debug)]
pub struct Named<'a> {
    bypass: &'a Bypass,
    cookie: io::Result<u64>,
}

impl Pooler {
    /// Begins, for connections to these ports of this network namespace: takes up to the time of the
    /// self-test.
    ///
    /// # Errors
    /// See [`Error`]; then nothing is left.
    pub fn begin(ports: impl IntoIterator<Item = u16>) -> Result<Self, Error> {
        let root = place::root()?;
        let namespace =
            namespace_cookie().map_err(place::file("finding this network namespace"))?;
        let _lock: File = place::lock()?;
        place::tidy(&root);
        let bypass = place::ready(&root, Place::Pooler)?;
        let mut begun = Self { bypass, namespace, ports: Vec::new() };
        for port in ports {
            if let Err(error) = begun.bypass.want_port(namespace, port, std::process::id()) {
                begun.forget_ports();
                place::tidy(&root);
                return Err(place::file("writing the BPF map")(error));
            }
            begun.ports.push(port);
        }
        Ok(begun)
    }

    /// How it stands: of all on this machine, programs of `run` among them.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn standing(&self) -> Result<Standing, BypassError> {
        self.bypass.standing()
    }

    /// Has the connection that a socket is about to make taken in. If that fails, it goes over TCP.
    pub fn connecting(&self, socket: impl AsFd) -> Named<'_> {
        Named { bypass: &self.bypass, cookie: self.bypass.want_socket(socket) }
    }

    /// Says of a socket that this process has accepted that it reads until there is nothing. If that fails,
    /// what it is sent stays with TCP.
    pub fn accepted(&self, socket: impl AsFd) {
        let _ = self.bypass.reads_all(self.namespace, socket);
    }

    /// Ends it: no connection is taken in for this process any more.
    pub fn end(&self) {
        self.forget_ports();
        if !self.bypass.wants_ports().unwrap_or(true) {
            place::end_pooler();
        }
    }

    fn forget_ports(&self) {
        for port in &self.ports {
            let _ = self.bypass.forget_port(self.namespace, *port, std::process::id());
        }
    }
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if let Ok(cookie) = self.cookie {
            let _ = self.bypass.forget_socket(cookie);
        }
    }
}
