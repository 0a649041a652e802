//! Addresses of names, on threads that may wait for them.
//!
//! # Limits
//! [`LOOKUPS_MAX`] at a time; further ones fail at once. glibc bounds each of them (resolv.conf(5):
//! `timeout`, `attempts`).

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use hawser_sys::eventfd::EventFd;

/// Lookups at a time.
pub const LOOKUPS_MAX: usize = 32;

/// What asks for an address: which session and which of its streams or paths.
pub type Asker = u64;

/// Looks names up.
pub struct Resolving {
    sender: Sender<(Asker, Vec<SocketAddr>)>,
    receiver: Receiver<(Asker, Vec<SocketAddr>)>,
    wake: Arc<EventFd>,
    running: Arc<AtomicUsize>,
}

/// Host and port of `host:port` or `[v6]:port`.
#[must_use]
pub fn split(target: &str) -> Option<(&str, u16)> {
    let (host, port) = target.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let host = match host.strip_prefix('[') {
        Some(v6) => v6.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    (!host.is_empty()).then_some((host, port))
}

/// `host` with this port, or `host:port` as it is; `None` if it is neither.
#[must_use]
pub fn with_port(text: &str, port: u16) -> Option<String> {
    let with_port = format!("{text}:{port}");
    let found = [text, &with_port].into_iter().find(|text| split(text).is_some());
    found.map(str::to_owned)
}

impl Resolving {
    /// With no lookups yet.
    ///
    /// # Errors
    /// As eventfd(2).
    pub fn new() -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let wake = Arc::new(EventFd::new()?);
        Ok(Self { sender, receiver, wake, running: Arc::default() })
    }

    /// What epoll is to watch.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Asks for the addresses of `host:port`. `Some`: they are known at once; empty: there are none.
    pub fn ask(&self, asker: Asker, target: &str) -> Option<Vec<SocketAddr>> {
        let Some((host, port)) = split(target) else { return Some(Vec::new()) };
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Some(vec![SocketAddr::new(ip, port)]);
        }
        if self.running.fetch_add(1, Ordering::Relaxed) >= LOOKUPS_MAX {
            self.running.fetch_sub(1, Ordering::Relaxed);
            return Some(Vec::new());
        }
        let (host, sender) = (host.to_owned(), self.sender.clone());
        let (wake, running) = (self.wake.clone(), self.running.clone());
        let started = std::thread::Builder::new().name("link-lookup".to_owned()).spawn(move || {
            let found = (host.as_str(), port).to_socket_addrs();
            let found = found.map(Iterator::collect).unwrap_or_default();
            running.fetch_sub(1, Ordering::Relaxed);
            // The link may have ended meanwhile.
            let _ = sender.send((asker, found));
            let _ = wake.signal();
        });
        if started.is_err() {
            self.running.fetch_sub(1, Ordering::Relaxed);
            return Some(Vec::new());
        }
        None
    }

    /// The next answer that has come.
    pub fn next(&self) -> Option<(Asker, Vec<SocketAddr>)> {
        self.receiver.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_a_host_and_a_port() {
        assert_eq!(split("db:5432"), Some(("db", 5432)));
        assert_eq!(split("[fd77::2]:22"), Some(("fd77::2", 22)));
        for wrong in ["db", "db:", "db:0", "db:70000", ":5432", "fd77::2:22", "[fd77::2:22", ""] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
    }
}
