//! Connections of this process whose congestion control may change while others use them.
//!
//! # Invariants
//! * a descriptor is asked or changed only while it is open: an [`Entry`] leaves the list before the
//!   descriptor is closed
//! * the list's lock is held over one question to the kernel, which waits for nothing
//!
//! # Why not
//! A duplicate of each descriptor: a connection would stay open until both are closed, and a
//! process would need twice as many.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{SetError, set_algorithm};
use crate::tcp_info::{TcpInfo, tcp_info};

/// The connections.
#[derive(Debug, Default)]
pub struct Flows(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    open: BTreeMap<u64, RawFd>,
    next: u64,
}

/// A connection's place in the list, for as long as this lives.
#[derive(Debug)]
pub struct Entry {
    flows: Arc<Flows>,
    number: u64,
}

impl Entry {
    /// Its number, which no other has.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.flows.lock().open.remove(&self.number);
    }
}

impl Flows {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a connection on the list. The owner of the descriptor drops the entry before it closes
    /// the descriptor.
    #[must_use]
    pub fn enter(self: &Arc<Self>, fd: impl AsFd) -> Entry {
        let mut list = self.lock();
        let number = list.next;
        list.next += 1;
        list.open.insert(number, fd.as_fd().as_raw_fd());
        Entry { flows: self.clone(), number }
    }

    /// Those that are open and have this number or a later one, the oldest first.
    #[must_use]
    pub fn since(&self, number: u64) -> Vec<u64> {
        self.lock().open.range(number..).map(|(number, _)| *number).collect()
    }

    /// Where the other end of one is. `None` if it has been closed, or is not TCP over IP.
    #[must_use]
    pub fn peer(&self, number: u64) -> Option<SocketAddr> {
        let peer = self.with(number, |fd| rustix::net::getpeername(fd))?.ok()??;
        SocketAddr::try_from(peer).ok()
    }

    /// Whether one is still open.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        self.lock().open.contains_key(&number)
    }

    /// What the kernel says of one. `None` if it has been closed.
    pub fn info(&self, number: u64) -> Option<io::Result<TcpInfo>> {
        self.with(number, |fd| tcp_info(fd))
    }

    /// Which algorithm one has. `None` if it has been closed.
    pub fn algorithm(&self, number: u64) -> Option<io::Result<String>> {
        self.with(number, |fd| super::algorithm(fd))
    }

    /// Gives one another algorithm. `None` if it has been closed.
    pub fn set_algorithm(&self, number: u64, name: &str) -> Option<Result<(), SetError>> {
        self.with(number, |fd| set_algorithm(fd, name))
    }

    fn with<R>(&self, number: u64, ask: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
        let list = self.lock();
        let fd = *list.open.get(&number)?;
        // SAFETY: the entry is in the list, so it has not been dropped, and cannot be while the lock
        // is held: the descriptor is open, and the same.
        Some(ask(unsafe { BorrowedFd::borrow_raw(fd) }))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_is_known_while_its_entry_lives() {
        let flows = Arc::new(Flows::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let entry = flows.enter(&stream);
        let number = entry.number();
        assert_eq!(flows.since(0), [number]);
        assert!(flows.since(number + 1).is_empty());
        assert_eq!(flows.peer(number), Some(listener.local_addr().unwrap()));
        assert!(flows.info(number).unwrap().unwrap().window > 0);
        let has = crate::congestion::algorithm(&stream).unwrap();
        assert_eq!(flows.algorithm(number).unwrap().unwrap(), has);
        flows.set_algorithm(number, &has).unwrap().unwrap();
        assert!(flows.set_algorithm(number, "nosuchthing").unwrap().is_err());
        drop(entry);
        assert!(!flows.has(number) && flows.info(number).is_none());
        assert_ne!(flows.enter(&stream).number(), number);
    }
}
