//! How loops wait: by epoll, or by io_uring if the kernel supports what it needs.
//!
//! # Model
//! With epoll the engine's reads and writes are system calls. With io_uring the kernel has received
//! before the loop wakes, and reads take those bytes ([`crate::intake`]); writes are system calls
//! with both.
//!
//! # Invariants
//! * all loops of a process have the same host: connections cross between them
//! * a refusal is logged once, and shown by `hawser status` and a metric

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use hawser_core::engine::Token;
use hawser_core::ids::LoopId;
use hawser_sys::epoll::{Epoll, Event, Events};
use hawser_sys::eventfd::EventFd;
use hawser_sys::ring::{self, Refusal, Ring};

use crate::config::Io;
use crate::intake::{self, Crossing, Watchable};

/// The most events that are taken from epoll at once.
const EVENTS_A_TURN: usize = 256;

/// The data of the loop's own eventfd. No connection has it: its index would be the last of 2^32.
const WAKE: u64 = u64::MAX;

/// The data of the first listening socket; others follow. No connection has these either.
const LISTENERS: u64 = u64::MAX - LISTENERS_MAX as u64;
/// Listening sockets that loops can watch.
pub(super) const LISTENERS_MAX: usize = 1 << 16;

/// The listening socket of an event, if it has one.
#[inline]
pub(super) fn listener_of(data: u64) -> Option<usize> {
    (LISTENERS..WAKE).contains(&data).then(|| (data - LISTENERS) as usize)
}

/// The host of the loops, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IoHost {
    /// epoll, as the configuration asks for.
    Epoll,
    /// io_uring.
    IoUring,
    /// epoll, because io_uring cannot be used: the reason.
    NoIoUring(String),
}

impl IoHost {
    /// The host for this configuration on this machine.
    pub fn of(io: Io) -> Self {
        match io {
            Io::Epoll => Self::Epoll,
            Io::Auto | Io::IoUring => match ring::probe() {
                Ok(()) => Self::IoUring,
                Err(refusal) => Self::NoIoUring(refusal.to_string()),
            },
        }
    }

    /// The name, as in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Epoll | Self::NoIoUring(_) => "epoll",
            Self::IoUring => "io_uring",
        }
    }
}

impl fmt::Display for IoHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Epoll => f.write_str("epoll, as configured"),
            Self::IoUring => f.write_str("io_uring"),
            Self::NoIoUring(reason) => write!(f, "epoll, without io_uring: {reason}"),
        }
    }
}

/// What watches connections.
pub(super) enum Watches {
    /// The set of each loop: a loop that takes a backend takes it out of another's set.
    Epoll(Box<[Epoll]>),
    /// Each loop's own, in its thread.
    Intakes,
}

/// What a loop's thread starts with.
pub(super) enum Begin {
    Epoll,
    Ring(Box<Ring>),
}

impl Begin {
    /// In the loop's thread.
    pub(super) fn here(self, id: LoopId, wake: &EventFd) -> io::Result<()> {
        match self {
            Self::Epoll => Ok(()),
            Self::Ring(ring) => intake::begin(id, *ring, wake),
        }
    }
}

/// Makes what the loops need, one for each eventfd.
pub(super) fn choose(io: Io, wakes: &[&EventFd]) -> io::Result<(IoHost, Watches, Vec<Begin>)> {
    let mut host = IoHost::of(io);
    if host == IoHost::IoUring {
        match wakes.iter().map(|_| Ring::new()).collect::<Result<Vec<Ring>, Refusal>>() {
            Ok(rings) => {
                let begin = rings.into_iter().map(|ring| Begin::Ring(Box::new(ring))).collect();
                return Ok((host, Watches::Intakes, begin));
            }
            Err(refusal) => host = IoHost::NoIoUring(refusal.to_string()),
        }
    }
    if let IoHost::NoIoUring(reason) = &host {
        match io {
            Io::IoUring => tracing::warn!(reason, "no io_uring: event loops use epoll"),
            _ => tracing::info!(reason, "no io_uring: event loops use epoll"),
        }
    }
    let mut epolls = Vec::new();
    for wake in wakes {
        let epoll = Epoll::new()?;
        epoll.add_readable(wake, WAKE)?;
        epolls.push(epoll);
    }
    let begin = wakes.iter().map(|_| Begin::Epoll).collect();
    Ok((host, Watches::Epoll(epolls.into()), begin))
}

impl Watches {
    pub(super) fn watch<S: Watchable>(
        &self,
        socket: &S,
        token: Token,
        id: LoopId,
    ) -> io::Result<()> {
        match (self, token) {
            (Self::Intakes, _) => intake::watch(socket.wire(), token),
            (Self::Epoll(epolls), Token::Client(_)) => {
                epolls[usize::from(id.0)].add(socket, token.to_bits())
            }
            // Usually nothing is left to write here: see `watch_for_room`.
            (Self::Epoll(epolls), Token::Backend(_)) => {
                epolls[usize::from(id.0)].add_to_read(socket, token.to_bits())
            }
        }
    }

    /// Returns the message for the connection's home.
    pub(super) fn unwatch<S: Watchable>(
        &self,
        socket: &S,
        home: LoopId,
    ) -> Option<(LoopId, Crossing)> {
        let Self::Epoll(epolls) = self else { return intake::unwatch(socket.wire()) };
        if let Err(error) = epolls.get(usize::from(home.0))?.delete(socket) {
            // It is not watched there, as wanted; but it should have been.
            tracing::warn!(event_loop = home.0, %error, "a connection was not watched");
        }
        None
    }

    /// All loops watch the listening socket at this place of their list from now on. With io_uring
    /// none does.
    pub(super) fn watch_listener(&self, fd: BorrowedFd<'_>, at: usize) -> io::Result<()> {
        let Self::Epoll(epolls) = self else { return Err(io::ErrorKind::Unsupported.into()) };
        epolls.iter().try_for_each(|epoll| epoll.add_shared_listener(fd, LISTENERS + at as u64))
    }

    /// None does any more.
    pub(super) fn unwatch_listener(&self, fd: BorrowedFd<'_>) {
        let Self::Epoll(epolls) = self else { return };
        for epoll in epolls {
            let _ = epoll.delete(fd); // (it may not have been added everywhere)
        }
    }

    /// A server's connection has not taken all: room is reported from now on. (With io_uring this
    /// happens for every connection that has not.)
    pub(super) fn tell_of_room<S: Watchable>(
        &self,
        socket: &S,
        token: Token,
        id: LoopId,
    ) -> io::Result<()> {
        match self {
            Self::Epoll(epolls) => epolls[usize::from(id.0)].tell_of_room(socket, token.to_bits()),
            Self::Intakes => Ok(()),
        }
    }
}

/// A loop's events.
pub(super) enum Poller {
    Epoll {
        events: Events,
        /// The next to handle.
        next: usize,
    },
    Intake,
}

impl Poller {
    pub(super) fn of(watches: &Watches) -> Self {
        match watches {
            Watches::Epoll(_) => {
                Self::Epoll { events: Events::with_capacity(EVENTS_A_TURN), next: 0 }
            }
            Watches::Intakes => Self::Intake,
        }
    }

    pub(super) fn wait(
        &mut self,
        watches: &Watches,
        id: LoopId,
        timeout: Duration,
        wake: &EventFd,
    ) -> io::Result<()> {
        match (self, watches) {
            (Self::Epoll { events, next }, Watches::Epoll(epolls)) => {
                *next = 0;
                epolls[usize::from(id.0)].wait(events, timeout)
            }
            _ => intake::wait(timeout, wake),
        }
    }

    /// The next event of a connection.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Event> {
        let Self::Epoll { events, next } = self else { return intake::next() };
        loop {
            let event = events.get(*next)?;
            *next += 1;
            if event.data != WAKE {
                return Some(event);
            }
        }
    }

    /// The engine has handled an event of this connection.
    #[inline]
    pub(super) fn settle(&mut self, token: Token) {
        if matches!(self, Self::Intake) {
            intake::settle(token);
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if matches!(self, Self::Intake) {
            // Fields of the loop are dropped in their order: its engine, with all connections,
            // before this.
            intake::end();
        }
    }
}
