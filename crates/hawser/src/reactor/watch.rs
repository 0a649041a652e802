//! How loops wait: by epoll(7), each with a set of its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use hawser_pooler::ids::LoopId;
use hawser_pooler::relay::Token;
use hawser_sys::epoll::{Epoll, Event, Events};
use hawser_sys::eventfd::EventFd;

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

/// The set of each loop: a loop that takes a backend takes it out of another's set.
pub(super) struct Watches(Box<[Epoll]>);

impl Watches {
    /// One set for each loop, which its eventfd wakes.
    pub(super) fn new(wakes: &[&EventFd]) -> io::Result<Self> {
        let set = |wake: &&EventFd| {
            let epoll = Epoll::new()?;
            epoll.add_readable(wake, WAKE)?;
            Ok(epoll)
        };
        wakes.iter().map(set).collect::<io::Result<_>>().map(Self)
    }

    fn of(&self, id: LoopId) -> &Epoll {
        &self.0[usize::from(id.0)]
    }

    pub(super) fn watch(&self, socket: impl AsFd, token: Token, id: LoopId) -> io::Result<()> {
        match token {
            Token::Client(_) => self.of(id).add(socket, token.to_bits()),
            // Usually nothing is left to write here: see `watch_for_room`.
            Token::Backend(_) => self.of(id).add_to_read(socket, token.to_bits()),
        }
    }

    pub(super) fn unwatch(&self, socket: impl AsFd, home: LoopId) {
        let Some(epoll) = self.0.get(usize::from(home.0)) else { return };
        if let Err(error) = epoll.delete(socket) {
            // It is not watched there, as wanted; but it should have been.
            tracing::warn!(event_loop = home.0, %error, "a connection was not watched");
        }
    }

    /// All loops watch the listening socket at this place of their list from now on.
    pub(super) fn watch_listener(&self, fd: BorrowedFd<'_>, at: usize) -> io::Result<()> {
        self.0.iter().try_for_each(|epoll| epoll.add_shared_listener(fd, LISTENERS + at as u64))
    }

    /// None does any more.
    pub(super) fn unwatch_listener(&self, fd: BorrowedFd<'_>) {
        for epoll in &self.0 {
            let _ = epoll.delete(fd); // (it may not have been added everywhere)
        }
    }

    /// A server's connection has not taken all: room is reported from now on.
    pub(super) fn tell_of_room(
        &self,
        socket: impl AsFd,
        token: Token,
        id: LoopId,
    ) -> io::Result<()> {
        self.of(id).tell_of_room(socket, token.to_bits())
    }
}

/// A loop's events.
pub(super) struct Poller {
    events: Events,
    /// The next to handle.
    next: usize,
}

impl Poller {
    pub(super) fn new() -> Self {
        Self { events: Events::with_capacity(EVENTS_A_TURN), next: 0 }
    }

    pub(super) fn wait(
        &mut self,
        watches: &Watches,
        id: LoopId,
        timeout: Duration,
    ) -> io::Result<()> {
        self.next = 0;
        watches.of(id).wait(&mut self.events, timeout)
    }

    /// The next event of a connection or a listening socket.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Event> {
        loop {
            let event = self.events.get(self.next)?;
            self.next += 1;
            if event.data != WAKE {
                return Some(event);
            }
        }
    }
}
