//! The pooler's own sockets past TCP: `[bypass] enable`.
//!
//! # Model
//! ```text
//!   begin ──► self-test ──► programs at the root of control groups
//!   clients   connect to a port that is wanted          both ends are taken in
//!   servers   the cookie of a socket that is about to connect is wanted
//! ```
//! Clients and servers are in other control groups than Hawser, so the programs stand at the root,
//! and take in what is wanted alone. [Why](../../../../docs/decisions/0011-past-tcp-from-the-root.md).
//!
//! # Invariants
//! * with `off` nothing is looked at, and nothing costs anything
//! * with `auto` whatever fails leaves everything with TCP, and is said once
//! * what was wanted by this process is forgotten when it ends, and the programs go with the last
//!
//! # Limits
//! A process that gives up root (`user`) cannot remove the programs at its end: they stay, take no
//! connection in, and go with `hawser bypass off` or the next start.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use hawser_sys::bypass::{Bypass, Place, Standing};
use hawser_sys::interfaces::namespace_cookie;
use hawser_sys::stream::{LocalAddress, TcpOptions, local_address, set_tcp_options};
use tokio::net::TcpSocket;

use super::place::{self, Error};
use crate::config::{BypassUse, ListenAddress};
use crate::dial::reach::Endpoint;
use crate::socket::stream::Link;

/// What became of the setting.
#[derive(Debug)]
enum State {
    /// It was to be, and is not.
    Without(String),
    /// It is.
    Past(Wanted),
}

#[derive(Debug)]
struct Wanted {
    bypass: Bypass,
    namespace: u64,
    ports: Vec<u16>,
}

/// The pooler's use of it.
#[derive(Debug, Default)]
pub struct BypassUsage(OnceLock<State>);

impl BypassUsage {
    /// Begins, if it is asked for: takes up to the time of the self-test.
    ///
    /// # Errors
    /// With `on`: why it cannot be.
    pub fn begin(&self, wanted: BypassUse, listen: &[ListenAddress]) -> Result<(), Error> {
        if wanted == BypassUse::Off {
            return Ok(());
        }
        let state = match begin(listen) {
            Ok(begun) => {
                tracing::info!("local connections go past TCP: hawser bypass status");
                State::Past(begun)
            }
            Err(error) if wanted == BypassUse::On => return Err(error),
            Err(error) => {
                let why = error.to_string();
                tracing::warn!(why, "local connections stay with TCP");
                State::Without(why)
            }
        };
        // Once for each process.
        let _ = self.0.set(state);
        Ok(())
    }

    fn past(&self) -> Option<&Wanted> {
        match self.0.get() {
            Some(State::Past(wanted)) => Some(wanted),
            _ => None,
        }
    }

    /// How it stands, if it is used: of all on this machine, programs of `run` among them.
    pub fn standing(&self) -> Option<Standing> {
        self.past()?.bypass.standing().ok()
    }

    /// For `status`.
    pub fn in_words(&self) -> Option<String> {
        let Standing { on, pairs, counters, .. } = self.standing()?;
        if !on {
            return Some("switched off by hawser bypass off; a restart turns it on".to_owned());
        }
        let passed = counters.passed_full + counters.passed_unread + counters.passed_other;
        Some(format!(
            "the self-test has passed; {pairs} connections, {} messages past TCP, {passed} through it",
            counters.redirected
        ))
    }

    /// What was to go past TCP and does not.
    pub fn fallbacks(&self) -> Vec<String> {
        match self.0.get() {
            Some(State::Without(why)) => vec![format!("local connections stay with TCP: {why}")],
            Some(State::Past(wanted)) if wanted.bypass.standing().is_ok_and(|now| !now.on) => {
                vec!["local connections stay with TCP: hawser bypass off".to_owned()]
            }
            _ => Vec::new(),
        }
    }

    /// Connects to a server, past TCP if it is of this host and taken in as well. `None`: not by this way.
    ///
    /// # Errors
    /// As connect(2).
    pub async fn connect(
        &self,
        endpoint: &Endpoint,
        options: &TcpOptions,
    ) -> io::Result<Option<Link>> {
        let (Endpoint::Tcp { address, .. }, Some(wanted)) = (endpoint, self.past()) else {
            return Ok(None);
        };
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Without, it goes over TCP.
        let named = Named { bypass: &wanted.bypass, cookie: wanted.bypass.want_socket(&socket) };
        let stream = socket.connect(*address).await;
        drop(named);
        let stream = stream?;
        set_tcp_options(&stream, options)?;
        let mut link = Link::from(stream);
        link.come_back();
        Ok(Some(link))
    }

    /// A client's connection has been accepted: it may be past TCP if it is of this host.
    pub fn accepted(&self, link: &mut Link, client: IpAddr) {
        let Some(wanted) = self.past() else { return };
        if client.to_canonical().is_loopback() || own_address(link) == Some(client) {
            link.come_back();
            // Without, what it is sent stays with TCP.
            let _ = wanted.bypass.reads_all(wanted.namespace, &*link);
        }
    }

    /// Ends it: no connection is taken in for this process any more.
    pub fn end(&self) {
        let Some(wanted) = self.past() else { return };
        wanted.forget_ports();
        if !wanted.bypass.wants_ports().unwrap_or(true) {
            place::end_pooler();
        }
    }
}

impl Wanted {
    fn forget_ports(&self) {
        for port in &self.ports {
            let _ = self.bypass.forget_port(self.namespace, *port, std::process::id());
        }
    }
}

/// A socket that is wanted, until it is connected or given up: those of other hosts are not taken.
struct Named<'a> {
    bypass: &'a Bypass,
    cookie: io::Result<u64>,
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if let Ok(cookie) = self.cookie {
            let _ = self.bypass.forget_socket(cookie);
        }
    }
}

fn own_address(link: &Link) -> Option<IpAddr> {
    match local_address(link).ok()? {
        LocalAddress::Internet(address) => Some(address.ip()),
        LocalAddress::Unix(_) => None,
    }
}

fn begin(listen: &[ListenAddress]) -> Result<Wanted, Error> {
    let root = place::root()?;
    let namespace = namespace_cookie().map_err(place::file("finding this network namespace"))?;
    let _lock: File = place::lock()?;
    place::tidy(&root);
    let bypass = place::ready(&root, Place::Pooler)?;
    let port = |address: &ListenAddress| match address {
        ListenAddress::Tcp(address) => Some(SocketAddr::port(address)),
        ListenAddress::Unix(_) => None,
    };
    let mut wanted = Wanted { bypass, namespace, ports: Vec::new() };
    for port in listen.iter().filter_map(port) {
        if let Err(error) = wanted.bypass.want_port(namespace, port, std::process::id()) {
            wanted.forget_ports();
            place::tidy(&root);
            return Err(place::file("writing the BPF map")(error));
        }
        wanted.ports.push(port);
    }
    Ok(wanted)
}
