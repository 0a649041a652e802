//! Waking up at the right moment.
//!
//! # Model
//! ppoll(2) counts nanoseconds. The kernel adds a thread's *timer slack* (50 us by default) and
//! then the time until the thread gets a processor; real-time priority makes that short.
//!
//! # Limits      priority: CAP_SYS_NICE or RLIMIT_RTPRIO. The kernel throttles real-time threads at
//!               95 % of a processor (`kernel.sched_rt_runtime_us`), so a bug here cannot hang a host

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

/// Puts the calling thread before all that have no real-time priority; what it starts does not
/// inherit it.
///
/// # Errors
/// EPERM without the right.
pub fn set_first_in_line() -> io::Result<()> {
    // SAFETY: sched_param is plain data, for which zeroes are valid.
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = 1;
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is this thread, and the parameter lives through the call.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Descriptors of which any can wake a thread.
#[derive(Debug)]
pub struct Readable<'a>(Vec<PollFd<'a>>);

impl<'a> Readable<'a> {
    /// Waits for these to be readable.
    pub fn new<F: AsFd>(of: impl IntoIterator<Item = &'a F>) -> Self
    where
        F: 'a,
    {
        Self(of.into_iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect())
    }

    /// Waits until one is readable, `timeout` has passed (`None` is never), or a signal came. Says
    /// whether any is readable; [`Readable::is_readable`] says which.
    ///
    /// # Errors
    /// As poll(2).
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().min(1 << 30).cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        });
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
