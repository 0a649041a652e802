//! MPTCP of the pooler itself: sockets that listen, connections to servers, and what fell back.
//!
//! # Model
//! ```text
//!   wanted   kernel has it   the other end speaks it   goes over
//!   off      -               -                         TCP
//!   prefer   no              -                         TCP, said once
//!   prefer   yes             no                        TCP, said once for each server
//!   require  no | yes        - | no                    nothing: the connection is refused
//!   any but off    yes       yes                       MPTCP
//! ```
//!
//! # Invariants
//! * nothing falls back in silence: [`MptcpUsage::fallbacks`] has it as long as it lasts
//! * a server that requires MPTCP gets no byte of a login over plain TCP
//!
//! # Limits
//! Whether a dialled connection fell back is known from Linux 5.16 on; before, `require` refuses.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_multipath::mptcp::keeper::Keeper;
use hawser_sys::mptcp::socket;
use hawser_sys::mptcp::watch::{Watch, look_again};
use hawser_sys::stream::{TcpOptions, set_tcp_options};
use tokio::net::TcpSocket;

use crate::config::{MptcpUse, ServerAddress};
use crate::lock::locked;
use crate::socket::stream::Link;

/// What a connection goes over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// A unix socket.
    Unix,
    /// TCP.
    Tcp,
    /// MPTCP.
    Mptcp,
    /// TCP, although it was opened as MPTCP.
    Fallback,
}

impl Transport {
    /// What a socket goes over now.
    pub fn of(socket: &impl AsFd) -> Self {
        use hawser_sys::process::{SocketFamily, socket_family};
        match socket_family(socket) {
            Ok(SocketFamily::Unix) => Self::Unix,
            _ if !socket::is_mptcp(socket).unwrap_or(false) => Self::Tcp,
            _ if socket::speaks_mptcp(socket).unwrap_or(false) => Self::Mptcp,
            _ => Self::Fallback,
        }
    }

    /// For SHOW.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unix => "unix",
            Self::Tcp => "tcp",
            Self::Mptcp => "mptcp",
            Self::Fallback => "tcp (mptcp fell back)",
        }
    }
}

/// How many connections there were, on sides where MPTCP was wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Clients over MPTCP.
    pub accepted: u64,
    /// Clients over plain TCP.
    pub accepted_plain: u64,
    /// Server connections over MPTCP.
    pub dialled: u64,
    /// Server connections over plain TCP.
    pub dialled_plain: u64,
}

/// What of MPTCP is used, and what is done without.
#[derive(Debug, Default)]
pub struct MptcpUsage {
    accepted: AtomicU64,
    accepted_plain: AtomicU64,
    dialled: AtomicU64,
    dialled_plain: AtomicU64,
    /// By what it is about; bounded by listeners and configured servers.
    fallbacks: Mutex<BTreeMap<String, String>>,
    watch: Arc<Watch>,
    /// The path manager of this network namespace, where this process is to have one.
    pub manager: Keeper,
}

impl MptcpUsage {
    /// How many connections there were.
    pub fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            accepted: read(&self.accepted),
            accepted_plain: read(&self.accepted_plain),
            dialled: read(&self.dialled),
            dialled_plain: read(&self.dialled_plain),
        }
    }

    /// What was to be MPTCP and is not, and why.
    pub fn fallbacks(&self) -> Vec<String> {
        let fallbacks = locked(&self.fallbacks);
        let of_sockets = fallbacks.iter().map(|(what, why)| format!("{what}: {why}"));
        of_sockets.chain(self.manager.fallback()).collect()
    }

    fn falls_back(&self, what: String, why: &str) {
        let mut fallbacks = locked(&self.fallbacks);
        if fallbacks.get(&what).map(String::as_str) != Some(why) {
            tracing::warn!(what, why, "plain TCP in place of MPTCP");
            fallbacks.insert(what, why.to_owned());
        }
    }

    fn speaks(&self, what: &str) {
        let mut fallbacks = locked(&self.fallbacks);
        if fallbacks.remove(what).is_some() {
            tracing::info!(what, "MPTCP again");
        }
    }

    /// A socket listens that was to take MPTCP.
    pub fn listens(&self, listener: &TcpListener) {
        let address = listener.local_addr().map(|address| address.to_string());
        let what = format!("listener {}", address.unwrap_or_default());
        if socket::is_mptcp(listener).unwrap_or(false) {
            return self.speaks(&what);
        }
        match socket::probe() {
            Err(reason) => self.falls_back(what, &reason.to_string()),
            Ok(()) => self.falls_back(
                what,
                "the service manager has passed a TCP socket; in its unit: SocketProtocol=mptcp",
            ),
        }
    }

    /// A client has connected to a socket that takes MPTCP.
    pub fn accepted(&self, link: &mut Link) {
        let counter = match Transport::of(link) {
            Transport::Mptcp => {
                link.watch(self.watch.clone());
                &self.accepted
            }
            _ => &self.accepted_plain,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends connections whose peer is gone, `timeout` after the first byte that it did not
    /// acknowledge (`tcp_user_timeout`). Never ends; asks for `timeout` again and again.
    pub async fn end_dead(&self, timeout: impl Fn() -> Option<Duration>) {
        loop {
            let timeout = timeout();
            tokio::time::sleep(look_again(timeout)).await;
            let Some(timeout) = timeout else { continue };
            let ended = self.watch.end_dead(timeout, Instant::now());
            if ended > 0 {
                tracing::info!(ended, "MPTCP connections ended: their peers did not answer");
            }
        }
    }

    /// A connection to `server` has been opened.
    pub fn dialled(&self, server: &ServerAddress, transport: Transport) {
        if server.mptcp() == MptcpUse::Off {
            return;
        }
        let what = format!("server {server}");
        match transport {
            Transport::Mptcp => {
                self.dialled.fetch_add(1, Ordering::Relaxed);
                self.speaks(&what);
            }
            Transport::Fallback => {
                self.dialled_plain.fetch_add(1, Ordering::Relaxed);
                self.falls_back(what, NOT_SPOKEN);
            }
            Transport::Tcp | Transport::Unix => {
                self.dialled_plain.fetch_add(1, Ordering::Relaxed);
                let reason = socket::probe().err().map(|reason| reason.to_string());
                self.falls_back(what, reason.as_deref().unwrap_or("no MPTCP socket could be made"));
            }
        }
    }

    /// Connects by MPTCP, or by TCP if that is not available and `wanted` allows it.
    ///
    /// # Errors
    /// As connect(2); [`io::ErrorKind::Unsupported`] if it is required and not available.
    pub async fn connect(
        &self,
        address: SocketAddr,
        wanted: MptcpUse,
        options: &TcpOptions,
    ) -> io::Result<Link> {
        let socket = match socket::open(address.is_ipv6()) {
            Ok(socket) => TcpSocket::from_std_stream(socket.into()),
            Err(error) => {
                // EMFILE and the like say nothing of MPTCP.
                let reason = socket::Unsupported::of(&error).ok_or(error)?;
                if wanted == MptcpUse::Require {
                    return Err(refused(&reason.to_string()));
                }
                if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? }
            }
        };
        let stream = socket.connect(address).await?;
        if wanted == MptcpUse::Require && Transport::of(&stream) != Transport::Mptcp {
            return Err(refused(NOT_SPOKEN));
        }
        set_tcp_options(&stream, options)?;
        let is_mptcp = Transport::of(&stream) != Transport::Tcp;
        let mut link = Link::from(stream);
        if is_mptcp {
            link.watch(self.watch.clone());
        }
        Ok(link)
    }
}

const NOT_SPOKEN: &str = "the server, or something between, does not speak MPTCP";

fn refused(reason: &str) -> io::Error {
    let text = format!("mptcp=require, and {reason}");
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// Listens for MPTCP and TCP; `None` where there is no MPTCP.
///
/// # Errors
/// As socket(2), bind(2) and listen(2).
pub fn listen(address: SocketAddr, backlog: i32) -> io::Result<Option<TcpListener>> {
    match socket::probe() {
        Ok(()) => socket::listen(address, backlog).map(Some),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(wanted: &str) -> ServerAddress {
        ServerAddress::parse(&format!("127.0.0.1:1?mptcp={wanted}")).unwrap()
    }

    #[test]
    fn a_fallback_is_shown_until_it_ends() {
        let usage = MptcpUsage::default();
        usage.dialled(&server("prefer"), Transport::Fallback);
        usage.dialled(&server("prefer"), Transport::Fallback);
        assert_eq!(usage.fallbacks().len(), 1);
        assert!(usage.fallbacks()[0].contains("127.0.0.1:1"), "{:?}", usage.fallbacks());
        usage.dialled(&server("prefer"), Transport::Mptcp);
        assert!(usage.fallbacks().is_empty());
        assert_eq!(usage.counts(), Counts { dialled: 1, dialled_plain: 2, ..Counts::default() });
        usage.dialled(&server("off"), Transport::Tcp);
        assert_eq!(usage.counts().dialled_plain, 2);
    }

    #[tokio::test]
    async fn preferred_it_falls_back_and_required_it_refuses() {
        if let Err(reason) = socket::probe() {
            return eprintln!("skipped: {reason}");
        }
        let usage = MptcpUsage::default();
        let options = TcpOptions {
            keepalive: true,
            keepalive_idle: Duration::from_secs(60),
            user_timeout: Duration::from_secs(30),
            ..TcpOptions::default()
        };
        let plain = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = plain.local_addr().unwrap();
        let link = usage.connect(address, MptcpUse::Prefer, &options).await.unwrap();
        assert_eq!(Transport::of(&link), Transport::Fallback);
        let error = usage.connect(address, MptcpUse::Require, &options).await.unwrap_err();
        assert!(error.to_string().contains("mptcp=require"), "{error}");

        let both = listen("127.0.0.1:0".parse().unwrap(), 4).unwrap().unwrap();
        usage.listens(&both);
        let address = both.local_addr().unwrap();
        let link = usage.connect(address, MptcpUse::Require, &options).await.unwrap();
        assert_eq!(Transport::of(&link), Transport::Mptcp);
        let (accepted, _) = both.accept().unwrap();
        assert_eq!(Transport::of(&accepted), Transport::Mptcp);
        assert!(usage.fallbacks().is_empty());
        usage.listens(&plain);
        assert!(usage.fallbacks()[0].contains("SocketProtocol=mptcp"));
    }
}
