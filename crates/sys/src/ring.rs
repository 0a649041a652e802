//! io_uring(7): receives that the kernel has done before the program asks, and one call for each
//! turn of a loop.
//!
//! # Model
//! ```text
//!   receive(fd, data) ─► each time bytes come: Completion { data, bytes in a buffer, more: true }
//!                        at the end, an error, cancel(data), or no free buffer: more: false
//! ```
//! The kernel takes buffers from a ring that all receives of one [`Ring`] share; the program reads
//! one by [`Ring::bytes`] and gives it back. An idle connection so holds no buffer.
//!
//! # Invariants
//! * one thread uses a ring, the one that calls [`Ring::enable`] (SINGLE_ISSUER)
//! * the kernel writes to buffers, and adds completions, only within [`Ring::submit_and_wait`] and
//!   [`Ring::receive`] (DEFER_TASKRUN). A reference from [`Ring::bytes`] therefore never sees a change
//! * a receive is of the socket that the caller held: the kernel has the request before
//!   [`Ring::receive`] returns. A request names a descriptor by its number, which means another socket once
//!   this one is closed, by whatever thread
//!
//! # Limits
//! Linux 6.1, for DEFER_TASKRUN. A descriptor must not be O_NONBLOCK: io_uring then fails a receive
//! with EAGAIN where it would otherwise wait (io_file_get_flags(), io_uring/io_uring.c).

mod buffers;
mod refusal;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};

use buffers::Buffers;
pub use buffers::{BUFFER_BYTES, BUFFERS};
pub use refusal::{Refusal, probe};

/// Requests that fit into one call; further ones cost a call more.
const REQUESTS: u32 = 512;
/// Completions that fit. The kernel keeps more, at a cost (IORING_FEAT_NODROP).
const COMPLETIONS: u32 = 4096;
/// The group of all buffers of a ring.
const GROUP: u16 = 0;
/// The data of completions that no one waits for.
const UNASKED: u64 = u64::MAX;

/// One io_uring with its buffers.
pub struct Ring {
    // First: it is dropped first, and the kernel writes to no buffer after that.
    io: IoUring,
    buffers: Buffers,
    wait_flags: EnterFlags,
}

/// What the kernel says of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// What the request was made with.
    pub data: u64,
    /// Bytes or events; negative: minus the error's number.
    pub result: i32,
    /// The buffer with the bytes; to be given back.
    pub buffer: Option<u16>,
    /// The same request will say more.
    pub more: bool,
}

impl Completion {
    /// Whether no buffer was free.
    pub fn is_dry(&self) -> bool {
        self.result == -libc::ENOBUFS
    }

    /// The number of an error that says something of the connection.
    pub fn failure(&self) -> Option<i32> {
        let passing = [libc::ENOBUFS, libc::ECANCELED, libc::EINTR, libc::EAGAIN];
        (self.result < 0 && !passing.contains(&-self.result)).then_some(-self.result)
    }

    /// Whether a poll says that the connection is broken in both directions.
    pub fn says_broken(&self) -> bool {
        self.result & i32::from(libc::POLLERR | libc::POLLHUP) != 0
    }
}

/// What [`Ring::poll`] waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// Room to write.
    Room,
    /// The other side closes its sending half, or the connection breaks.
    Hangup,
}

impl Ring {
    /// A ring that takes no requests before [`Ring::enable`], with all its buffers.
    ///
    /// # Errors
    /// Why the kernel refuses.
    pub fn new() -> Result<Self, Refusal> {
        // Before the ring: what is declared first is dropped last, should this function end early.
        let buffers = Buffers::new();
        let mut builder = IoUring::builder();
        builder
            .setup_cqsize(COMPLETIONS)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_r_disabled()
            .dontfork();
        let io: IoUring = builder.build(REQUESTS).map_err(Refusal::of_setup)?;
        let params = io.params();
        if !(params.is_feature_nodrop()
            && params.is_feature_ext_arg()
            && params.is_feature_skip_cqe_on_success())
        {
            return Err(Refusal::Old);
        }
        // SAFETY: `buffers` lives as long as `io`: they are fields of one value from here on (or the
        // ring is dropped at the end of this function, before them).
        let registered = unsafe {
            io.submitter().register_buf_ring_with_flags(buffers.address(), BUFFERS, GROUP, 0)
        };
        registered.map_err(Refusal::of_buffers)?;
        // An idle loop would otherwise show as a processor that waits for a disk. Linux 6.15.
        let wait_flags = match io.params().is_feature_no_iowait() {
            true => EnterFlags::NO_IOWAIT,
            false => EnterFlags::empty(),
        };
        Ok(Self { io, buffers, wait_flags })
    }

    /// Lets this thread use the ring, and no other from now on.
    ///
    /// # Errors
    /// As io_uring_register(2) with IORING_REGISTER_ENABLE_RINGS.
    pub fn enable(&mut self) -> io::Result<()> {
        self.io.submitter().register_enable_rings()
    }

    /// Receives from a socket from now on, until a completion says that there is no more. A
    /// descriptor that is closed meanwhile stays open in the kernel until then.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, data: u64) {
        let fd = Fd(socket.as_raw_fd());
        self.push(&opcode::RecvMulti::new(fd, GROUP).build().user_data(data));
        // Without memory for a request (EAGAIN) it goes with the next call.
        let _ = self.io.submit();
    }

    /// Reports once. `socket` is a number only, so that a caller need not hold the socket: if it
    /// means another one by now, the report is about that.
    pub fn poll(&mut self, socket: RawFd, waited: Waited, data: u64) {
        let events = match waited {
            Waited::Room => libc::POLLOUT,
            Waited::Hangup => libc::POLLRDHUP, // HUP and ERR come unasked
        };
        self.push(&opcode::PollAdd::new(Fd(socket), events as u32).build().user_data(data));
    }

    /// Reports each time that a descriptor becomes readable, as edge-triggered epoll does.
    pub fn poll_readable(&mut self, fd: impl AsFd, data: u64) {
        let fd = Fd(fd.as_fd().as_raw_fd());
        self.push(
            &opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build().user_data(data),
        );
    }

    /// Ends the request with this `data`, which says so itself: ECANCELED if nothing else.
    pub fn cancel(&mut self, data: u64) {
        let cancel = opcode::AsyncCancel::new(data).build().user_data(UNASKED);
        self.push(&cancel.flags(squeue::Flags::SKIP_SUCCESS));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: no request names memory of the program: receives take their buffers from the
            // registered ring. A descriptor that is no longer open gives EBADF.
            if unsafe { self.io.submission().push(entry) }.is_ok() {
                return;
            }
            // Full. Requests are taken whatever else this call says.
            let _ = self.io.submit();
        }
    }

    /// Hands over all requests, and waits for a completion for at most `timeout`; a zero one
    /// collects what there is. A signal ends the wait.
    ///
    /// # Errors
    /// As io_uring_enter(2).
    pub fn submit_and_wait(&mut self, timeout: Duration) -> io::Result<()> {
        let done = if timeout.is_zero() {
            let requests = self.io.submission().len() as u32;
            // GETEVENTS runs deferred work, what these requests lead to included; the crate's own
            // calls leave it out where nothing is waited for.
            // SAFETY: no argument is passed, and the flag asks for nothing that names memory.
            unsafe {
                let flags = EnterFlags::GETEVENTS.bits();
                self.io.submitter().enter::<libc::sigset_t>(requests, 0, flags, None)
            }
        } else {
            let timespec = Timespec::from(timeout);
            let args = SubmitArgs::new().timespec(&timespec);
            self.io.submitter().submit_with_args_and_flags(1, &args, self.wait_flags)
        };
        match done {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // EBUSY and EAGAIN: completions are to be taken first.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Takes all completions that have come.
    pub fn take(&mut self, into: &mut Vec<Completion>) {
        for entry in self.io.completion() {
            if entry.user_data() == UNASKED {
                continue;
            }
            let buffer = cqueue::buffer_select(entry.flags());
            if let Some(buffer) = buffer {
                self.buffers.lend(buffer);
            }
            into.push(Completion {
                data: entry.user_data(),
                result: entry.result(),
                buffer,
                more: cqueue::more(entry.flags()),
            });
        }
    }

    /// The first `count` bytes of a buffer.
    ///
    /// # Panics
    /// If there is no such buffer, or it is shorter.
    #[inline]
    pub fn bytes(&self, buffer: u16, count: usize) -> &[u8] {
        self.buffers.bytes(buffer, count)
    }

    /// Lets the kernel use a buffer again.
    #[inline]
    pub fn give_back(&mut self, buffer: u16) {
        self.buffers.give_back(buffer);
    }

    /// Buffers that the program has not given back.
    pub fn lent(&self) -> usize {
        self.buffers.lent()
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("lent", &self.lent()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
