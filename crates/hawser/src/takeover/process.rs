//! The process at the other end of a conversation, watched until it ends.
//!
//! # Why
//! A conversation may break while both processes live (no descriptor left, a message that cannot be
//! read). Only the end of a process shows that it serves no client any more.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hawser_sys::process::{descriptor_of_process, peer_process, wait_at_most};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A process.
#[derive(Debug)]
pub struct OtherProcess {
    /// Its process id.
    pub pid: u32,
    fd: AsyncFd<OwnedFd>,
}

impl OtherProcess {
    /// The process that has connected by `socket`, which says that it is `pid`. Within a runtime.
    ///
    /// # Errors
    /// It cannot be watched: see pidfd_open(2). Linux 5.3.
    pub fn connected(pid: u32, socket: impl AsFd) -> io::Result<Self> {
        Self::watched(pid, peer_process(socket)?)
    }

    /// The process with this id, which has just answered. Within a runtime.
    ///
    /// # Errors
    /// As [`Self::connected`].
    pub fn by_id(pid: u32) -> io::Result<Self> {
        Self::watched(pid, descriptor_of_process(pid)?)
    }

    #[expect(deprecated, reason = "the descriptor stays open until the watch is dropped")]
    fn watched(pid: u32, fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { pid, fd: AsyncFd::with_interest(fd, Interest::READABLE)? })
    }

    /// Returns once it has ended.
    pub async fn ended(&self) {
        if self.fd.readable().await.is_err() {
            std::future::pending::<()>().await; // the runtime ends
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let looked = wait_at_most(&[self.fd.get_ref().as_fd()], Duration::ZERO);
        looked.is_ok_and(|found| found.iter().any(|(readable, _)| *readable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_is_there_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = OtherProcess::by_id(child.id()).unwrap();
        assert!(!process.has_ended());
        let waited = tokio::time::timeout(Duration::from_millis(20), process.ended());
        assert!(waited.await.is_err());
        child.kill().unwrap();
        tokio::time::timeout(Duration::from_secs(10), process.ended()).await.unwrap();
        assert!(process.has_ended());
        child.wait().unwrap();
    }
}
