//! The pooler's own sockets past TCP: `[bypass] enable`. What it does is [`hawser_bypass::pooler`].
//!
//! # Invariants
//! * with `off` nothing is looked at, and nothing costs anything
//! * with `auto` whatever fails leaves everything with TCP, and is said once

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use hawser_bypass::kernel::Standing;
use hawser_bypass::place::Error;
use hawser_bypass::pooler::Pooler;
use hawser_sys::stream::{LocalAddress, TcpOptions, local_address, set_tcp_options};
use tokio::net::TcpSocket;

use crate::config::{BypassUse, ListenAddress};
use crate::dial::reach::Endpoint;
use crate::socket::stream::Link;

/// What became of the setting.
#[derive(Debug)]
enum State {
    /// It was to be, and is not.
    Without(String),
    /// It is.
    Past(Pooler),
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
        let state = match Pooler::begin(listen.iter().filter_map(port)) {
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

    fn past(&self) -> Option<&Pooler> {
        match self.0.get() {
            Some(State::Past(pooler)) => Some(pooler),
            _ => None,
        }
    }

    /// How it stands, if it is used: of all on this machine, programs of `run` among them.
    pub fn standing(&self) -> Option<Standing> {
        self.past()?.standing().ok()
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
            Some(State::Past(pooler)) if pooler.standing().is_ok_and(|now| !now.on) => {
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
        let (Endpoint::Tcp { address, .. }, Some(pooler)) = (endpoint, self.past()) else {
            return Ok(None);
        };
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        let named = pooler.connecting(&socket);
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
        let Some(pooler) = self.past() else { return };
        if client.to_canonical().is_loopback() || own_address(link) == Some(client) {
            link.come_back();
            pooler.accepted(&*link);
        }
    }

    /// Ends it: no connection is taken in for this process any more.
    pub fn end(&self) {
        if let Some(pooler) = self.past() {
            pooler.end();
        }
    }
}

fn own_address(link: &Link) -> Option<IpAddr> {
    match local_address(link).ok()? {
        LocalAddress::Internet(address) => Some(address.ip()),
        LocalAddress::Unix(_) => None,
    }
}

fn port(address: &ListenAddress) -> Option<u16> {
    match address {
        ListenAddress::Tcp(address) => Some(SocketAddr::port(address)),
        ListenAddress::Unix(_) => None,
    }
}
