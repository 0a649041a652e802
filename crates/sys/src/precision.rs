//! Waking up at the right moment.
//!
//! # Model
//! ppoll(2) counts nanoseconds. The kernel adds a thread's *timer slack* (50 us by default) and
//! then the time until the thread gets a processor; real-time priority makes that short.
//!
//! # Limits      priority: CAP_SYS_NICE, or RLIMIT_RTPRIO for SCHED_FIFO. The kernel keeps a share of
//!               each processor for ordinary threads, so a bug here cannot hang a host

use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// Wakes the calling thread without slack.
///
/// # Errors
/// As prctl(2).
pub fn drop_timer_slack() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?)
}

/// How a thread comes before others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// As all do.
    Ordinary,
    /// SCHED_FIFO: before all ordinary threads, but for the share that the kernel keeps for them.
    Fifo,
    /// SCHED_DEADLINE: before SCHED_FIFO, for a share of the processor.
    Deadline,
}

/// `struct sched_attr` of linux/sched/types.h, in its first version.
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

const SCHED_OTHER: u32 = 0;
const SCHED_FIFO: u32 = 1;
const SCHED_DEADLINE: u32 = 6;
const FLAG_RESET_ON_FORK: u64 = 1;
const FLAG_RECLAIM: u64 = 2; // more than its share if no other thread wants it

/// What a deadline thread may use: this much of each [`DEADLINE_PERIOD_NS`].
const DEADLINE_RUNTIME_NS: u64 = 600_000;
/// Shorter than what the kernel grants ordinary threads (a share of each second, since Linux 6.12),
/// and so before them.
const DEADLINE_PERIOD_NS: u64 = 1_000_000;

/// Puts the calling thread before all ordinary ones. What it starts does not inherit it.
///
/// SCHED_DEADLINE is tried first: since Linux 6.12 a SCHED_FIFO thread on a busy processor waits up
/// to 50 ms in each second for ordinary ones. It is refused where other such threads have taken the
/// processors' time already.
pub fn come_first() -> Priority {
    let (runtime_ns, period_ns) = (DEADLINE_RUNTIME_NS, DEADLINE_PERIOD_NS);
    let flags = FLAG_RESET_ON_FORK | FLAG_RECLAIM;
    let none = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: SCHED_DEADLINE,
        flags,
        nice: 0,
        priority: 0,
        runtime_ns,
        deadline_ns: period_ns,
        period_ns,
    };
    if set_attributes(&none).is_ok() { Priority::Deadline } else { come_before_ordinary() }
}

/// As [`come_first`], by SCHED_FIFO at its lowest priority.
pub fn come_before_ordinary() -> Priority {
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: SCHED_FIFO,
        flags: FLAG_RESET_ON_FORK,
        nice: 0,
        priority: 1,
        runtime_ns: 0,
        deadline_ns: 0,
        period_ns: 0,
    };
    if set_attributes(&attributes).is_ok() { Priority::Fifo } else { Priority::Ordinary }
}

/// Asks for processor time in short slices for the calling thread, which stays an ordinary one: it
/// gets no more of it, but sooner after it wakes up, because the thread with the earliest deadline
/// runs first. A thread of ordinary priority gets `nice`, where it may have it; another priority
/// that it was given stays.
///
/// # Errors
/// As sched_setattr(2). A negative `nice` needs CAP_SYS_NICE or RLIMIT_NICE; that there is neither is no error.
/// Kernels before Linux 6.12 take `slice` and ignore it.
pub fn ask_for_short_slices(slice: Duration, nice: i32) -> io::Result<()> {
    let given = rustix::process::getpriority_process(Some(rustix::thread::gettid()))?;
    let with = |nice| Attributes {
        size: size_of::<Attributes>() as u32,
        policy: SCHED_OTHER,
        flags: FLAG_RESET_ON_FORK,
        nice,
        priority: 0,
        runtime_ns: u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX),
        deadline_ns: 0,
        period_ns: 0,
    };
    if given == 0 && set_attributes(&with(nice)).is_ok() {
        return Ok(());
    }
    set_attributes(&with(given))
}

fn set_attributes(attributes: &Attributes) -> io::Result<()> {
    // SAFETY: 0 is this thread, and the structure, which says its own size, lives through the call.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Descriptors of which any can wake a thread.
#[derive(Debug)]
pub struct Readable<'a>(Vec<PollFd<'a>>);

impl<'a> Readable<'a> {
    /// Waits for these to be readable.
    pub fn new<F: AsFd + 'a>(of: impl IntoIterator<Item = &'a F>) -> Self {
        Self(of.into_iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect())
    }

    /// Waits until one is readable, `timeout` has passed (`None` is never), or a signal came. Says
    /// whether any is readable; [`Readable::is_readable`] says which.
    ///
    /// # Errors
    /// As poll(2).
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        // (So long that it is none.)
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match rustix::event::poll(&mut self.0, timeout.as_ref()) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the descriptor at this place was readable, or broken, after the last wait.
    pub fn is_readable(&self, at: usize) -> bool {
        self.0.get(at).is_some_and(|fd| !fd.revents().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    #[test]
    fn short_slices_leave_a_priority_that_was_given() {
        let nice = || rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap();
        let of = |given: i32| {
            let thread = move || {
                crate::process::set_thread_nice(given).unwrap();
                ask_for_short_slices(Duration::from_micros(500), -10).unwrap();
                nice()
            };
            std::thread::spawn(thread).join().unwrap()
        };
        assert_eq!(of(7.max(nice())), 7.max(nice()));
        if nice() == 0 {
            assert!([0, -10].contains(&of(0)), "-10 where it is allowed");
        }
    }

    #[test]
    fn it_waits_for_time_or_for_bytes() {
        drop_timer_slack().unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        let sockets = [near];
        let mut readable = Readable::new(&sockets);
        let (before, time) = (Instant::now(), Duration::from_micros(300));
        assert!(!readable.wait(Some(time)).unwrap());
        assert!(before.elapsed() >= time);
        far.write_all(b"x").unwrap();
        assert!(readable.wait(None).unwrap());
        assert!(readable.is_readable(0) && !readable.is_readable(1));
    }
}
