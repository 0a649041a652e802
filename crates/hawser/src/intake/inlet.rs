//! A connection's descriptor, and its place with a ring.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use hawser_core::engine::Token;
use hawser_core::ids::{LoopId, Slot};
use hawser_sys::mptcp::watch::Watched;
use hawser_sys::stream as sys;

use super::table::Received;
use super::{Crossing, with};

/// A connection's place with a loop's ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The loop.
    pub home: LoopId,
    /// The engine's token for it, with only the lower 16 bits of the generation.
    pub token: Token,
}

/// Where a ring watches a connection, in 8 bytes: there are tens of thousands.
pub struct Inlet(Cell<u64>);

/// The same, unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// No ring has had it yet.
    Nowhere,
    /// A ring has had it: its descriptor blocks.
    Left,
    /// A ring receives for it.
    Place(Place),
    /// Its home has been asked to let go of it, for this passage of this thread's loop.
    Passage(u32),
    /// A ring has released it and had received bytes: under this number in [`LEFT_OVER`].
    LeftOver(u64),
}

/// What was received for connections that are on their way to another loop. Mostly empty: a server
/// connection on its way is idle.
static LEFT_OVER: LazyLock<Mutex<HashMap<u64, Received>>> = LazyLock::new(Mutex::default);

fn left_over() -> MutexGuard<'static, HashMap<u64, Received>> {
    LEFT_OVER.lock().unwrap_or_else(PoisonError::into_inner)
}

const KIND_SHIFT: u32 = 62;
const LOOP_SHIFT: u32 = 48;
const GENERATION_SHIFT: u32 = 32;
const BACKEND: u64 = 1 << 61;
const LOOP_MASK: u64 = 0x1fff;
const PASSAGE: u64 = 1;
const LEFT: u64 = 2;
const NOWHERE: u64 = 3;
/// Enough for all loops (`loops` is at most 1,024).
const _: () = assert!(LOOP_MASK >= 1024);

impl Inlet {
    fn at(&self) -> At {
        let bits = self.0.get();
        let value = bits & ((1 << KIND_SHIFT) - 1);
        match bits >> KIND_SHIFT {
            NOWHERE => At::Nowhere,
            LEFT if value == 0 => At::Left,
            LEFT => At::LeftOver(value),
            PASSAGE => At::Passage(value as u32),
            _ => {
                let generation = u32::from((value >> GENERATION_SHIFT) as u16);
                let slot = Slot { index: value as u32, generation };
                let token = match bits & BACKEND {
                    0 => Token::Client(slot),
                    _ => Token::Backend(slot),
                };
                let home = LoopId((bits >> LOOP_SHIFT & LOOP_MASK) as u16);
                At::Place(Place { home, token })
            }
        }
    }

    fn set(&self, at: At) {
        self.0.set(match at {
            At::Nowhere => NOWHERE << KIND_SHIFT,
            At::Left => LEFT << KIND_SHIFT,
            At::LeftOver(number) => LEFT << KIND_SHIFT | number,
            At::Passage(passage) => PASSAGE << KIND_SHIFT | u64::from(passage),
            At::Place(place) => {
                let (slot, backend) = match place.token {
                    Token::Client(slot) => (slot, 0),
                    Token::Backend(slot) => (slot, BACKEND),
                };
                backend
                    | (u64::from(place.home.0) & LOOP_MASK) << LOOP_SHIFT
                    | u64::from(slot.generation as u16) << GENERATION_SHIFT
                    | u64::from(slot.index)
            }
        });
    }

    pub(super) fn watch(&self, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        let place = match self.at() {
            At::Nowhere => {
                sys::let_wait(fd)?;
                with(|intake| intake.watch(fd, token))
            }
            At::Left | At::Place(_) => with(|intake| intake.watch(fd, token)),
            At::Passage(passage) => with(|intake| intake.expect(fd, token, passage)),
            At::LeftOver(number) => {
                let received = left_over().remove(&number).unwrap_or_default();
                if received.is_broken() {
                    // Detected before anything is written: its client can get another.
                    self.set(At::Left);
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                with(|intake| intake.watch_with(fd, token, received))
            }
        };
        let place = place.ok_or(io::ErrorKind::NotConnected)?;
        self.set(At::Place(place));
        Ok(())
    }

    pub(super) fn unwatch(&self) -> Option<(LoopId, Crossing)> {
        let At::Place(place) = self.at() else { return None };
        let here = with(|intake| match intake.id() == place.home {
            true => Ok(intake.detach(place)),
            false => Err((intake.id(), intake.passage())),
        })?;
        match here {
            Ok(received) if received.is_empty() => self.set(At::Left),
            Ok(received) => {
                static NUMBERS: AtomicU64 = AtomicU64::new(1);
                let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
                left_over().insert(number, received);
                self.set(At::LeftOver(number));
            }
            Err((to, passage)) => {
                self.set(At::Passage(passage));
                return Some((place.home, Crossing::Release { place, to, passage }));
            }
        }
        None
    }
}

/// A connection's descriptor, which a loop reads and writes, by epoll or by its ring.
#[derive(Debug)]
pub struct Wire {
    // First: it is dropped with the wire before the descriptor is closed.
    inlet: Inlet,
    fd: Watched,
}

impl Wire {
    pub(super) fn inlet(&self) -> &Inlet {
        &self.inlet
    }

    /// Whether it is a watched MPTCP socket.
    pub fn is_watched_mptcp(&self) -> bool {
        self.fd.is_watched()
    }

    /// Whether it may bypass TCP.
    pub fn comes_back(&self) -> bool {
        self.fd.comes_back()
    }

    /// Whether a ring that has released it had received bytes.
    pub fn holds_input(&self) -> bool {
        matches!(self.inlet.at(), At::LeftOver(_))
    }

    /// Reads what is there, without waiting: as [`sys::recv`].
    ///
    /// # Errors
    /// As recv(2).
    #[inline]
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self.inlet.at() {
            At::Place(place) => super::read(place, self.fd.as_fd(), buf),
            _ if self.fd.comes_back() => sys::recv_all(&self.fd, buf),
            _ => sys::recv(&self.fd, buf),
        }
    }

    /// Writes what fits, without waiting.
    ///
    /// # Errors
    /// As send(2).
    #[inline]
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        sys::send(&self.fd, buf).inspect_err(|error| self.note_blocked(error))
    }

    /// Writes what fits of several buffers, without waiting.
    ///
    /// # Errors
    /// As sendmsg(2).
    #[inline]
    pub fn send_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match bufs {
            [one] => sys::send(&self.fd, one),
            _ => sys::send_vectored(&self.fd, bufs),
        }
        .inspect_err(|error| self.note_blocked(error))
    }

    /// Makes sure that an event comes when there is room again.
    #[cold]
    fn note_blocked(&self, error: &io::Error) {
        if error.kind() != io::ErrorKind::WouldBlock {
            return;
        }
        match self.inlet.at() {
            At::Place(place) => {
                with(|intake| intake.await_room(place));
            }
            _ => crate::socket::note_blocked(),
        }
    }
}

impl From<Watched> for Wire {
    fn from(fd: Watched) -> Self {
        let inlet = Inlet(Cell::new(0));
        inlet.set(At::Nowhere);
        Self { inlet, fd }
    }
}

impl From<OwnedFd> for Wire {
    fn from(fd: OwnedFd) -> Self {
        Watched::from(fd).into()
    }
}

impl AsFd for Wire {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        match self.inlet.at() {
            At::Nowhere | At::Left => return,
            At::LeftOver(number) => {
                left_over().remove(&number);
                return;
            }
            At::Place(place) => {
                with(|intake| intake.forget(place));
            }
            At::Passage(_) => {}
        }
        // The ring's request keeps the connection open beyond the descriptor. This ends both: the
        // peer sees the end now, and the request completes. (ENOTCONN: it has ended.)
        let _ = sys::shutdown_both(&self.fd);
    }
}

impl std::fmt::Debug for Inlet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.at().fmt(f)
    }
}

#[cfg(test)]
pub(super) fn packed_and_unpacked(place: Place) -> Option<Place> {
    let inlet = Inlet(Cell::new(0));
    inlet.set(At::Place(place));
    match inlet.at() {
        At::Place(place) => Some(place),
        _ => None,
    }
}
