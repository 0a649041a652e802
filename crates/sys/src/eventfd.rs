//! eventfd(2): how one thread wakes another that waits in epoll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, retry_on_intr};

/// Wakes a thread. Linux 2.6.27.
///
/// In an edge-triggered epoll set it never needs to be drained: every write to it is an event,
/// whether or not the counter was zero (fs/eventfd.c: `eventfd_write` wakes its waiters each time).
/// This saves the woken thread a system call.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new one, with its counter at zero.
    ///
    /// # Errors
    /// As eventfd(2).
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes the waiter.
    ///
    /// # Errors
    /// As write(2), except those that this handles itself.
    pub fn signal(&self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // The counter is full, after 2^64 - 2 undrained signals.
                Err(Errno::AGAIN) => {
                    self.drain()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sets the counter to zero; returns how many signals it had counted.
    ///
    /// # Errors
    /// As read(2).
    pub fn drain(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        match retry_on_intr(|| rustix::io::read(&self.0, &mut count)) {
            Ok(_) => Ok(u64::from_ne_bytes(count)),
            Err(Errno::AGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::epoll::{Epoll, Events};

    #[test]
    fn signals_are_counted_until_drained() {
        let wake = EventFd::new().unwrap();
        assert_eq!(wake.drain().unwrap(), 0);
        wake.signal().unwrap();
        wake.signal().unwrap();
        assert_eq!(wake.drain().unwrap(), 2);
        assert_eq!(wake.drain().unwrap(), 0);
    }

    #[test]
    fn a_full_counter_still_takes_a_signal() {
        let wake = EventFd::new().unwrap();
        rustix::io::write(&wake, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        wake.signal().unwrap();
        assert_eq!(wake.drain().unwrap(), 1);
    }

    #[test]
    fn every_signal_is_an_edge_without_draining() {
        let (epoll, wake) = (Epoll::new().unwrap(), EventFd::new().unwrap());
        epoll.add_readable(&wake, 9).unwrap();
        let mut events = Events::with_capacity(1);
        for _ in 0..3 {
            wake.signal().unwrap();
            epoll.wait(&mut events, Duration::from_secs(5)).unwrap();
            assert_eq!(events.get(0).map(|event| event.data), Some(9));
            epoll.wait(&mut events, Duration::ZERO).unwrap();
            assert!(events.is_empty());
        }
    }
}
