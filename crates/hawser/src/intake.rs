//! What a loop's io_uring has received for connections that the engine has not read yet.
//!
//! # Model
//! ```text
//!   ring ─► completions ─► chains of buffers, one a connection ─► event ─► engine reads ─► settle
//!                                                                            │ what it leaves is
//!                                                                            ▼ copied: kept
//!   receiving of a connection:
//!     Off ──watch, or a read finds the socket empty──► On ──its last completion──► Off
//!                                                      On ──too much is kept──► Stopping ──► Off
//!     Arriving ──the other loop has let go of it──► Off
//! ```
//! While receiving is Off the engine's reads read the socket itself, as with epoll, and the one that
//! finds it empty turns receiving On. So bytes keep their order: at any time either the ring reads a
//! socket, or the engine does.
//!
//! # Invariants
//! * after an event no connection holds a buffer: what the engine leaves unread is copied
//! * a connection that is not read keeps at most [`KEPT_BYTES_MAX`], and what the kernel delivers
//!   before receiving stops: one turn's worth
//! * an idle connection holds nothing but its [`table::Entry`]
//! * the end of receiving of a connection is always an event for the engine, whose next read
//!   continues: a request is never made for a closed descriptor, and the kernel gets it at once:
//!   the number may be another connection's by the end of the turn
//! * a completion names the generation of its place: one for a reused place only gives its buffer
//!   back
//!
//! # How a server connection changes its loop
//! ```text
//!   a loop gives one away:    unwatch ─► cancel, collect ─► message Lend ─► watch: On
//!   a loop takes an idle one: unwatch ─► Release ─► its home: cancel, collect
//!                             watch: Arriving ◄─ Arrived, with what its home had received ◄─┘
//! ```
//! It may be written to meanwhile: what the server answers comes to its home's ring, and from there
//! with [`Crossing::Arrived`], or to the new one. A third loop may take it from a place where it
//! has not arrived, if it was given back unused there: then that place sends `Arrived` on. A loop
//! that gives one away in that state breaks it, because no message says where it goes.
//!
//! # Why sends are direct
//! See docs/decisions/0010-two-hosts.md.

mod inlet;
mod table;

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use hawser_core::engine::{Socket, Token};
use hawser_core::ids::LoopId;
use hawser_sys::epoll::Event;
use hawser_sys::eventfd::EventFd;
use hawser_sys::ring::Ring;
use hawser_sys::stream as sys;

pub use inlet::{Inlet, Place, Wire};
pub use table::{Ended, KEPT_BYTES_MAX, Received};
use table::{Intake, Taken};

thread_local! {
    /// This thread's, if it is a loop on io_uring. Connections reach it from within the engine.
    static INTAKE: RefCell<Option<Intake<Ring>>> = const { RefCell::new(None) };
}

/// A connection that a loop can watch.
pub trait Watchable: Socket + AsFd {
    /// Its descriptor.
    fn wire(&self) -> &Wire;
}

/// Messages between loops about connections that change rings.
#[derive(Debug)]
pub enum Crossing {
    /// To a connection's home: let go of it, and send what was received.
    Release {
        /// Its place there.
        place: Place,
        /// Where [`Crossing::Arrived`] goes.
        to: LoopId,
        /// The passage to name there.
        passage: u32,
    },
    /// Its home has let go of it.
    Arrived {
        /// Of [`Crossing::Release`].
        passage: u32,
        /// What its home's ring had received.
        received: Received,
    },
}

/// Starts the intake of this thread's loop.
///
/// # Errors
/// The ring cannot be enabled.
pub fn begin(id: LoopId, mut ring: Ring, wake: &EventFd) -> io::Result<()> {
    ring.enable()?;
    let mut intake = Intake::new(id, ring);
    intake.watch_wake(wake);
    INTAKE.set(Some(intake));
    Ok(())
}

/// Ends it, after all connections of the loop.
pub fn end() {
    INTAKE.set(None);
}

fn with<T>(then: impl FnOnce(&mut Intake<Ring>) -> T) -> Option<T> {
    // A connection may be dropped while the thread ends.
    INTAKE.try_with(|intake| intake.borrow_mut().as_mut().map(then)).ok().flatten()
}

/// Waits for events, unless there are some.
///
/// # Errors
/// As io_uring_enter(2).
pub fn wait(timeout: Duration, wake: &EventFd) -> io::Result<()> {
    with(|intake| intake.wait(timeout, wake)).unwrap_or(Ok(()))
}

/// The next event.
pub fn next() -> Option<Event> {
    with(Intake::next)?
}

/// The engine has handled an event of this connection.
pub fn settle(token: Token) {
    with(|intake| intake.settle(token));
}

/// How often a ring had no buffer left.
pub fn dry() -> u64 {
    with(|intake| intake.dry()).unwrap_or(0)
}

/// Receives from a connection from now on.
///
/// # Errors
/// Its descriptor cannot be used.
pub fn watch(wire: &Wire, token: Token) -> io::Result<()> {
    wire.inlet().watch(wire.as_fd(), token)
}

/// Stops receiving from a connection, whose home is this loop or another. Returns the message for
/// the home.
pub fn unwatch(wire: &Wire) -> Option<(LoopId, Crossing)> {
    wire.inlet().unwatch()
}

/// Handles a message of another loop. Returns the message for that one.
pub fn cross(crossing: Crossing) -> Option<(LoopId, Crossing)> {
    match crossing {
        Crossing::Release { place, to, passage } => {
            let released = with(|intake| intake.release(place, to, passage));
            let nothing =
                || Some((to, Crossing::Arrived { passage, received: Received::default() }));
            released.unwrap_or_else(nothing)
        }
        Crossing::Arrived { passage, received } => {
            with(|intake| intake.arrived(passage, received)).flatten()
        }
    }
}

/// Reads from a connection that this loop watches.
fn read(place: Place, fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    with(|intake| {
        let filled = match intake.take(place, buf) {
            Taken::Bytes(filled) => return Ok(filled),
            Taken::Nothing => return Err(io::ErrorKind::WouldBlock.into()),
            Taken::Ended(ended) => return ended.into_result(),
            Taken::Direct(filled) => filled,
        };
        match sys::recv(fd, &mut buf[filled..]) {
            Ok(0) if filled > 0 => intake.note_end(place, Ended::Closed),
            Ok(0) => return Ok(0),
            Ok(read) if filled + read < buf.len() => {
                intake.receive(place, fd);
                return Ok(filled + read);
            }
            Ok(read) => return Ok(filled + read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                intake.receive(place, fd);
                if filled == 0 {
                    return Err(error);
                }
            }
            Err(error) if filled == 0 => return Err(error),
            Err(error) => intake.note_end(place, Ended::of(&error)),
        }
        Ok(filled)
    })
    .unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
}

#[cfg(test)]
mod tests;
