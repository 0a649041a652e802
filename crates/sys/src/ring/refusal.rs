//! Why a machine has no io_uring for us, and a trial of all that is used of it.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{Completion, Ring, Waited};
use crate::eventfd::EventFd;

/// Who may use io_uring: 0 all, 1 a group, 2 none. Linux 6.6.
const SYSCTL: &str = "/proc/sys/kernel/io_uring_disabled";
/// How long the trial waits for what must come at once.
const SOON: Duration = Duration::from_secs(1);

/// Why io_uring cannot be used.
#[derive(Debug)]
pub enum Refusal {
    /// There is no such system call: a kernel without it, or a seccomp filter that says so.
    Missing,
    /// The administrator has switched it off for this process: the value of
    /// `kernel.io_uring_disabled`.
    SwitchedOff(String),
    /// EPERM or EACCES: a seccomp filter, as container runtimes have, or a security module.
    Forbidden,
    /// A kernel before 6.1.
    Old,
    /// RLIMIT_MEMLOCK or memory does not suffice.
    Memory(io::Error),
    /// Another error.
    Failed(io::Error),
    /// It was there, and did not do what it should: what was tried.
    Wrong(&'static str),
}

impl Refusal {
    pub(super) fn of_setup(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOSYS) => Self::Missing,
            Some(libc::EPERM | libc::EACCES) => {
                let disabled = std::fs::read_to_string(SYSCTL).unwrap_or_default();
                match disabled.trim() {
                    "" | "0" => Self::Forbidden,
                    value => Self::SwitchedOff(value.to_owned()),
                }
            }
            // The flags, which older kernels do not know.
            Some(libc::EINVAL) => Self::Old,
            Some(libc::ENOMEM) => Self::Memory(error),
            _ => Self::Failed(error),
        }
    }

    pub(super) fn of_buffers(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOMEM) => Self::Memory(error),
            _ => Self::Failed(error),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => {
                f.write_str("the kernel has no io_uring, or a seccomp filter hides it")
            }
            Self::SwitchedOff(value) => write!(f, "kernel.io_uring_disabled is {value}"),
            Self::Forbidden => {
                f.write_str("io_uring is forbidden to this process, probably by a seccomp filter")
            }
            Self::Old => f.write_str("the kernel is older than 6.1"),
            Self::Memory(error) => {
                write!(f, "no memory for it, see RLIMIT_MEMLOCK (ulimit -l): {error}")
            }
            Self::Failed(error) => write!(f, "the kernel refuses it: {error}"),
            Self::Wrong(what) => write!(f, "it does not work here: {what}"),
        }
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Memory(error) | Self::Failed(error) => Some(error),
            _ => None,
        }
    }
}

/// Tries all that is used of io_uring, on a ring of its own and in a thread of its own, which ends
/// with it. Takes some 100 us.
///
/// # Errors
/// Why it cannot be used.
pub fn probe() -> Result<(), Refusal> {
    let mut ring = Ring::new()?;
    let trial = std::thread::Builder::new().name("io-uring-probe".into());
    let trial = trial.spawn(move || try_all(&mut ring)).map_err(Refusal::Failed)?;
    trial.join().unwrap_or(Err(Refusal::Wrong("the trial has panicked")))
}

fn try_all(ring: &mut Ring) -> Result<(), Refusal> {
    const RECEIVE: u64 = 1;
    const WAKE: u64 = 2;
    const ROOM: u64 = 3;
    ring.enable().map_err(Refusal::Failed)?;
    let (near, mut far) = UnixStream::pair().map_err(Refusal::Failed)?;
    let wake = EventFd::new().map_err(Refusal::Failed)?;
    ring.receive(near.as_fd(), RECEIVE);
    ring.poll_readable(&wake, WAKE);
    for _ in 0..2 {
        far.write_all(b"ab").map_err(Refusal::Failed)?;
        let got = next(ring)?;
        let right = got.data == RECEIVE && got.result == 2 && got.more;
        let bytes = got.buffer.filter(|_| right).map(|buffer| {
            let right = ring.bytes(buffer, 2) == b"ab";
            ring.give_back(buffer);
            right
        });
        if bytes != Some(true) {
            return Err(Refusal::Wrong("multishot receive into provided buffers"));
        }
        wake.signal().map_err(Refusal::Failed)?;
        let got = next(ring)?;
        if got.data != WAKE || !got.more {
            return Err(Refusal::Wrong("multishot poll of an eventfd"));
        }
    }
    ring.poll(near.as_raw_fd(), Waited::Room, ROOM);
    if next(ring)?.data != ROOM {
        return Err(Refusal::Wrong("poll for room to write"));
    }
    ring.cancel(RECEIVE);
    let got = next(ring)?;
    if got.data != RECEIVE || got.more || got.result != -libc::ECANCELED {
        return Err(Refusal::Wrong("cancelling a receive"));
    }
    Ok(())
}

fn next(ring: &mut Ring) -> Result<Completion, Refusal> {
    let mut taken = Vec::new();
    // A signal may end a wait.
    for _ in 0..8 {
        ring.submit_and_wait(SOON).map_err(Refusal::Failed)?;
        ring.take(&mut taken);
        if let Some(first) = taken.first() {
            return match taken.len() {
                1 => Ok(*first),
                _ => Err(Refusal::Wrong("more completions than requests lead to")),
            };
        }
    }
    Err(Refusal::Wrong("a completion does not come"))
}
