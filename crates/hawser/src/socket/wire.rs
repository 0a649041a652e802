//! A connection's descriptor, which a loop reads and writes.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use hawser_sys::mptcp::watch::Watched;
use hawser_sys::stream as sys;

/// The descriptor of a loop's connection.
#[derive(Debug, derive_more::From)]
#[from(Watched, OwnedFd)]
pub struct Wire(Watched);

impl Wire {
    /// Whether it is a watched MPTCP socket.
    pub fn is_watched_mptcp(&self) -> bool {
        self.0.is_watched()
    }

    /// The descriptor for another user as well: see [`Watched::share`].
    pub fn share(&mut self) -> Arc<OwnedFd> {
        self.0.share()
    }

    /// Whether it may bypass TCP.
    pub fn comes_back(&self) -> bool {
        self.0.comes_back()
    }

    /// Reads what is there, without waiting: as [`sys::recv`].
    ///
    /// # Errors
    /// As recv(2); [`io::ErrorKind::TimedOut`] also if it was ended because its server was silent.
    #[inline]
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let read =
            if self.0.comes_back() { sys::recv_all(&self.0, buf) } else { sys::recv(&self.0, buf) };
        match read {
            Ok(0) if self.0.is_lost() => Err(io::ErrorKind::TimedOut.into()),
            read => read,
        }
    }

    /// Writes what fits, without waiting.
    ///
    /// # Errors
    /// As send(2).
    #[inline]
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        sys::send(&self.0, buf).inspect_err(note_blocked)
    }

    /// Writes what fits of several buffers, without waiting.
    ///
    /// # Errors
    /// As sendmsg(2).
    #[inline]
    pub fn send_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match bufs {
            [one] => sys::send(&self.0, one),
            _ => sys::send_vectored(&self.0, bufs),
        }
        .inspect_err(note_blocked)
    }
}

/// Makes sure that an event comes when there is room again.
#[cold]
fn note_blocked(error: &io::Error) {
    if error.kind() == io::ErrorKind::WouldBlock {
        super::note_blocked();
    }
}

impl AsFd for Wire {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
