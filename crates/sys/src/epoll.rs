//! epoll(7): which of many descriptors can be read or written.
//!
//! # Model
//! Each descriptor is added once, edge-triggered, for everything, or at first for what concerns
//! reading. An event says what has become possible since the last one, so its receiver must read
//! and write until [`std::io::ErrorKind::WouldBlock`].
//!
//! # Threads
//! One thread waits. Any thread may add and delete meanwhile: the kernel takes its own lock. An
//! event that the waiting thread has already been given may still name a descriptor that another
//! thread has deleted since: its `data` must tell.
//!
//! # Limits
//! Linux 2.6.27 (`epoll_create1`). `/proc/sys/fs/epoll/max_user_watches` bounds what one user may
//! add (1/25 of memory since Linux 5.12, about 160 bytes each): [`Epoll::add`] then gives ENOSPC.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// A set of descriptors.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// What has happened to a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What it was added with.
    pub data: u64,
    /// There may be something to read (also the end of the stream, or an error).
    pub readable: bool,
    /// There may be room to write.
    pub writable: bool,
    /// The other side has closed at least its sending half, or the connection is broken.
    pub hangup: bool,
    /// The connection is broken in both directions: `EPOLLERR` or `EPOLLHUP`.
    pub broken: bool,
}

/// For other processes, which wait in the same set.
impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Where [`Epoll::wait`] puts events. Its memory is used again and again.
pub struct Events {
    place: Box<[MaybeUninit<epoll::Event>]>,
    filled: usize,
}

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// As epoll_create1(2).
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds a descriptor, edge-triggered, for everything. What is possible already is reported.
    ///
    /// # Errors
    /// As epoll_ctl(2) with EPOLL_CTL_ADD.
    pub fn add(&self, fd: impl AsFd, data: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.0, fd, EventData::new_u64(data), flags)?)
    }

    /// As [`Epoll::add`], but without room to write: a unix socket reports that each time that its
    /// peer has read something. [`Epoll::tell_of_room`] adds it.
    ///
    /// # Errors
    /// As epoll_ctl(2) with EPOLL_CTL_ADD.
    pub fn add_to_read(&self, fd: impl AsFd, data: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.0, fd, EventData::new_u64(data), flags)?)
    }

    /// Reports all events from now on of a descriptor that was added with [`Epoll::add_to_read`].
    /// What is possible already is reported.
    ///
    /// # Errors
    /// As epoll_ctl(2) with EPOLL_CTL_MOD: ENOENT if it is not in this set.
    pub fn tell_of_room(&self, fd: impl AsFd, data: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::modify(&self.0, fd, EventData::new_u64(data), flags)?)
    }

    /// As [`Epoll::add`], but readability only.
    ///
    /// # Errors
    /// As epoll_ctl(2) with EPOLL_CTL_ADD.
    pub fn add_readable(&self, fd: impl AsFd, data: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::ET;
        Ok(epoll::add(&self.0, fd, EventData::new_u64(data), flags)?)
    }

    /// Adds a listening socket that is in other sets, too: of those that wait, one is woken for a connection.
    /// Level-triggered, so that connections that are left are reported again, here or there.
    ///
    /// # Errors
    /// As epoll_ctl(2) with EPOLL_CTL_ADD and EPOLLEXCLUSIVE (Linux 4.5).
    pub fn add_shared_listener(&self, fd: impl AsFd, data: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
        Ok(epoll::add(&self.0, fd, EventData::new_u64(data), flags)?)
    }

    /// Takes a descriptor out.
    ///
    /// # Errors
    /// As epoll_ctl(2) with EPOLL_CTL_DEL: ENOENT if it is not in this set.
    pub fn delete(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, fd)?)
    }

    /// Waits until something happens or `timeout` has passed, and puts what has happened into
    /// `events`. A signal ends the wait with no events. The kernel counts milliseconds here; a
    /// timeout between two of them is rounded up, so that the caller never wakes too early and
    /// waits again for nothing.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub fn wait(&self, events: &mut Events, timeout: Duration) -> io::Result<()> {
        // In 64 bits: `as_nanos` counts in 128, and this is done at each wait.
        let beyond = u64::from(timeout.subsec_nanos().div_ceil(1_000_000));
        let millis = timeout.as_secs().saturating_mul(1000).saturating_add(beyond);
        let millis = millis.min(i32::MAX as u64);
        let timeout = Timespec {
            tv_sec: (millis / 1000).cast_signed(),
            tv_nsec: ((millis % 1000) * 1_000_000).cast_signed(),
        };
        events.filled = 0;
        match epoll::wait(&self.0, &mut *events.place, Some(&timeout)) {
            Ok((filled, _)) => events.filled = filled.len(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

impl Events {
    /// Room for `count` events; more that have happened come with the next wait.
    pub fn with_capacity(count: usize) -> Self {
        Self { place: Box::new_uninit_slice(count), filled: 0 }
    }

    /// How many the last wait gave.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether the last wait gave none.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// One of what the last wait gave.
    #[inline]
    pub fn get(&self, at: usize) -> Option<Event> {
        if at >= self.filled {
            return None;
        }
        // SAFETY: the last wait initialised the first `filled` places, and `at` is one of them.
        let event = unsafe { self.place[at].assume_init() };
        let (flags, data) = (event.flags, event.data.u64());
        let broken = EventFlags::HUP | EventFlags::ERR;
        Some(Event {
            data,
            readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP | broken),
            writable: flags.intersects(EventFlags::OUT | broken),
            hangup: flags.intersects(EventFlags::RDHUP | broken),
            broken: flags.intersects(broken),
        })
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries((0..self.filled).filter_map(|at| self.get(at))).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    fn next(epoll: &Epoll, timeout: Duration) -> Vec<Event> {
        let mut events = Events::with_capacity(4);
        epoll.wait(&mut events, timeout).unwrap();
        (0..events.len()).filter_map(|at| events.get(at)).collect()
    }

    #[test]
    fn each_change_is_reported_once() {
        let epoll = Epoll::new().unwrap();
        let (mut near, mut far) = UnixStream::pair().unwrap();
        epoll.add(&near, 7).unwrap();
        let writable =
            Event { data: 7, readable: false, writable: true, hangup: false, broken: false };
        assert_eq!(next(&epoll, SOON), [writable]);
        assert_eq!(next(&epoll, Duration::ZERO), [], "told once");
        far.write_all(b"a").unwrap();
        assert_eq!(next(&epoll, SOON), [Event { readable: true, ..writable }]);
        assert_eq!(next(&epoll, Duration::ZERO), [], "told once although nobody has read");
        far.write_all(b"b").unwrap();
        assert_eq!(next(&epoll, SOON).len(), 1, "more bytes are another change");
        near.read_exact(&mut [0; 2]).unwrap();
    }

    #[test]
    fn a_closed_peer_is_a_hangup() {
        let epoll = Epoll::new().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        epoll.add(&near, 1).unwrap();
        far.shutdown(std::net::Shutdown::Write).unwrap();
        let events = next(&epoll, SOON);
        assert!(events[0].hangup && events[0].readable, "{events:?}");
        drop(far);
        assert!(next(&epoll, SOON)[0].hangup);
    }

    #[test]
    fn room_to_write_is_reported_once_it_is_asked_for() {
        let epoll = Epoll::new().unwrap();
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        epoll.add_to_read(&near, 7).unwrap();
        near.write_all(b"a").unwrap();
        far.read_exact(&mut [0]).unwrap();
        assert_eq!(next(&epoll, Duration::ZERO), []);
        far.write_all(b"b").unwrap();
        let seen = next(&epoll, SOON);
        assert!(seen.len() == 1 && seen[0].readable && !seen[0].writable, "{seen:?}");
        near.read_exact(&mut [0]).unwrap();
        let mut sent = 0;
        while let Ok(taken) = near.write(&[0; 4096]) {
            sent += taken;
        }
        epoll.tell_of_room(&near, 7).unwrap();
        assert_eq!(next(&epoll, Duration::ZERO), [], "it is full");
        far.read_exact(&mut vec![0; sent]).unwrap();
        let seen = next(&epoll, SOON);
        assert!(seen.len() == 1 && seen[0].writable, "{seen:?}");
        // What is possible already is reported as well.
        epoll.delete(&near).unwrap();
        epoll.add_to_read(&near, 7).unwrap();
        epoll.tell_of_room(&near, 7).unwrap();
        assert!(next(&epoll, SOON)[0].writable);
    }

    #[test]
    fn another_thread_may_delete() {
        let epoll = std::sync::Arc::new(Epoll::new().unwrap());
        let (near, mut far) = UnixStream::pair().unwrap();
        epoll.add(&near, 1).unwrap();
        next(&epoll, SOON);
        let other = epoll.clone();
        let near = std::thread::spawn(move || {
            other.delete(&near).unwrap();
            near
        });
        let near = near.join().unwrap();
        far.write_all(b"x").unwrap();
        assert_eq!(next(&epoll, Duration::ZERO), []);
        assert_eq!(epoll.delete(&near).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn a_wait_is_never_shorter_than_asked() {
        let epoll = Epoll::new().unwrap();
        let timeout = Duration::from_micros(1_500);
        let before = Instant::now();
        assert_eq!(next(&epoll, timeout), []);
        assert!(before.elapsed() >= timeout);
    }

    #[test]
    fn what_does_not_fit_comes_next() {
        let epoll = Epoll::new().unwrap();
        let pairs: Vec<_> = (0..6).map(|_| UnixStream::pair().unwrap()).collect();
        for (at, (near, _)) in pairs.iter().enumerate() {
            epoll.add(near, at as u64).unwrap();
        }
        let mut seen: Vec<u64> = next(&epoll, SOON).iter().map(|event| event.data).collect();
        assert_eq!(seen.len(), 4);
        seen.extend(next(&epoll, SOON).iter().map(|event| event.data));
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
    }
}
