//! `hawser mptcp run`: a program as it is, with MPTCP sockets where it asks for TCP ones; and
//! `hawser cc run`: with TCP sockets that have another congestion control.
//!
//! # Model
//! ```text
//!   hawser (supervisor) ── starts ──► program ── its children ...
//!      ▲  notes socket(), some setsockopt() of all of them, by seccomp
//!      │ each watches the other, and takes its place
//!   hawser (spare), in a session of its own, signals ignored
//! ```
//! The supervisor lives as long as the program and passes its exit code on; the spare takes over
//! when it ends, for children that live on, and both are gone with the last of them.
//!
//! # Invariants
//! * what cannot be MPTCP is TCP: every doubt is answered by letting the kernel do what was asked
//! * one of the two always holds the listener open: a program whose listener is closed gets ENOSYS
//!   from each socket(). That needs both to be killed at once
//! * an option that MPTCP refuses puts a socket that has not been used yet back to plain TCP; later
//!   the kernel's own error stands
//!
//! # Why the supervisor is the program's parent
//! Replacing a descriptor needs the right to trace the process, and Yama gives it to ancestors.
//!
//! # Limits
//! Linux 5.16. Sockets belong to the supervisor: its network namespace (programs in another one get
//! TCP), its user id and its cgroup (as packet filters see them). Programs of another architecture
//! get TCP. Without CAP_SYS_ADMIN the filter needs no_new_privs: setuid programs get no rights.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use hawser_sys::congestion::{self, SetError};
use hawser_sys::mptcp::kernel::{self, Need, Version};
use hawser_sys::mptcp::replace::{is_unused, plain_like};
use hawser_sys::mptcp::socket::{self, Unsupported};
use hawser_sys::process::{
    Forked, catch_signals_to_pass_on, descriptor_of, descriptor_of_process, exit_code, fork,
    is_superuser, pass_signals_on, wait_for, withdraw,
};
use hawser_sys::seccomp::{self, Asked, Call, Listener, Noted, StartError};

/// In the environment, `0` turns MPTCP off for a program; `1` is what `run` sets.
pub const VARIABLE: &str = "PGMPTCP";

/// Options that MPTCP refuses (net/mptcp/sockopt.c of 6.18, each tried): TCP's ...
const TCP_REFUSED: [i32; 13] = [
    7,  // TCP_SYNCNT
    8,  // TCP_LINGER2
    10, // TCP_WINDOW_CLAMP
    12, // TCP_QUICKACK
    14, // TCP_MD5SIG
    16, // TCP_THIN_LINEAR_TIMEOUTS
    17, // TCP_THIN_DUPACK
    18, // TCP_USER_TIMEOUT
    19, // TCP_REPAIR
    27, // TCP_SAVE_SYN
    31, // TCP_ULP
    32, // TCP_MD5SIG_EXT
    37, // TCP_TX_DELAY
];
/// ... IP's ...
const IP_REFUSED: [i32; 4] = [
    2,  // IP_TTL
    4,  // IP_OPTIONS
    10, // IP_MTU_DISCOVER
    21, // IP_MINTTL
];
/// ... and IPv6's.
const IPV6_REFUSED: [i32; 3] = [
    16, // IPV6_UNICAST_HOPS
    23, // IPV6_MTU_DISCOVER
    73, // IPV6_MINHOPCOUNT
];

/// What sockets a program gets in place of plain TCP ones.
#[derive(Clone, Debug)]
enum Kind {
    /// MPTCP.
    Mptcp,
    /// TCP with this congestion control.
    Congestion(String),
}

impl Kind {
    fn open(&self, ipv6: bool, nonblocking: bool) -> Option<OwnedFd> {
        match self {
            Self::Mptcp => socket::open_as(ipv6, nonblocking).ok(),
            Self::Congestion(name) => congestion::open_with(ipv6, nonblocking, name).ok(),
        }
    }
}

/// Why a program was not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no MPTCP.
    #[error("{0}")]
    Unsupported(#[source] Unsupported),
    /// There is no such congestion control.
    #[error("{0}")]
    Congestion(#[source] SetError),
    /// It would not get the rights that it is made for.
    #[error(
        "{0} is setuid or setgid, and would not get its rights here (no_new_privs): run \
             hawser by it instead, as in `sudo hawser ... run -- COMMAND`"
    )]
    Setuid(PathBuf),
    /// Seccomp is refused.
    #[error("{}", filter_refused(.0))]
    Filter(#[source] io::Error),
    /// It cannot be executed.
    #[error("{}: {source}", .name.display())]
    Program {
        /// Its name.
        name: OsString,
        /// Why.
        source: io::Error,
    },
    /// The supervisor cannot do its work.
    #[error("the supervisor cannot work: {0}")]
    Supervisor(#[source] io::Error),
}

fn filter_refused(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(16 /* EBUSY */) => {
            "there is a seccomp supervisor here already (another `hawser ... run`?), \
                                 and the kernel allows one"
                .to_owned()
        }
        _ => format!(
            "the system calls of programs cannot be supervised here (seccomp; containers may forbid \
             it): {error}"
        ),
    }
}

impl RunError {
    /// As env(1) and timeout(1) have them.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Program { .. } => 126,
            _ => 125,
        }
    }
}

/// What became of sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Made as is asked for.
    made: u64,
    /// Left plain: another network namespace, PGMPTCP=0, or no MPTCP socket available.
    plain: u64,
    /// Put back to TCP for an option.
    put_back: u64,
    /// Options that came too late for that, or where it was not possible.
    refused: u64,
}

/// Runs `command`; gives its exit code.
///
/// # Errors
/// See [`RunError`]; then it was not run.
pub fn run(command: &[OsString], verbose: bool) -> Result<u8, RunError> {
    let Some((name, arguments)) = command.split_first() else { return Ok(0) };
    let mut program = Command::new(name);
    program.args(arguments);
    if std::env::var_os(VARIABLE).as_deref() == Some(OsStr::new("0")) {
        return Err(RunError::Program { name: name.clone(), source: program.exec() });
    }
    socket::probe().map_err(RunError::Unsupported)?;
    if let Some(path) = setuid(name) {
        return Err(RunError::Setuid(path));
    }
    let version = Version::parse(&kernel::release());
    if let Some(warning) = version.and_then(|version| version.warning(Need::Supervisor)) {
        eprintln!("hawser: {warning}");
    }
    program.env(VARIABLE, "1");
    let of = |level: i32, names: &[i32]| names.iter().map(|n| (level, *n)).collect::<Vec<_>>();
    let options = [of(6, &TCP_REFUSED), of(0, &IP_REFUSED), of(41, &IPV6_REFUSED)].concat();
    start(name, &mut program, options, &Kind::Mptcp, verbose)
}

/// Runs `command` with another congestion control; gives its exit code.
///
/// # Errors
/// See [`RunError`]; then it was not run.
pub fn run_with_congestion(
    command: &[OsString],
    algorithm: &str,
    verbose: bool,
) -> Result<u8, RunError> {
    let Some((name, arguments)) = command.split_first() else { return Ok(0) };
    congestion::probe(algorithm).map_err(RunError::Congestion)?;
    if let Some(path) = setuid(name) {
        return Err(RunError::Setuid(path));
    }
    let mut program = Command::new(name);
    program.args(arguments);
    start(name, &mut program, Vec::new(), &Kind::Congestion(algorithm.to_owned()), verbose)
}

fn start(
    name: &OsStr,
    program: &mut Command,
    options: Vec<(i32, i32)>,
    kind: &Kind,
    verbose: bool,
) -> Result<u8, RunError> {
    let (child, listener) = seccomp::start(program, &Noted { tcp_sockets: true, options })
        .map_err(|error| match error {
            StartError::Filter(error) => RunError::Filter(error),
            StartError::Program(source) => RunError::Program { name: name.to_owned(), source },
        })?;
    supervise(child, &listener, kind, verbose).map_err(RunError::Supervisor)
}

fn supervise(mut child: Child, listener: &Listener, kind: &Kind, verbose: bool) -> io::Result<u8> {
    let signals = catch_signals_to_pass_on()?;
    let ended = descriptor_of_process(child.id())?;
    let mut spare = begin_spare(listener, kind)?;
    let mut work = Work::new(kind)?;
    loop {
        let fds =
            [listener.as_fd(), ended.as_fd(), signals.as_fd(), watched(spare.as_ref(), listener)];
        let ready = wait_for(&fds)?;
        if ready[0].0 {
            work.answer(listener);
        }
        if ready[2].0 {
            pass_signals_on(&signals, child.id());
        }
        if spare.is_some() && ready[3].0 {
            spare = begin_spare(listener, kind)?;
        }
        if ready[1].0 {
            let status = child.wait()?;
            if verbose {
                eprintln!("hawser: {}", work.counts.said(kind));
            }
            return Ok(exit_code(status));
        }
    }
}

impl Counts {
    fn said(&self, kind: &Kind) -> String {
        let Self { made, plain, put_back, refused } = self;
        match kind {
            Kind::Mptcp => format!(
                "{made} MPTCP sockets, {plain} left plain TCP, {put_back} put back to plain TCP for an \
                 option that MPTCP has not, {refused} such options refused"
            ),
            Kind::Congestion(name) => {
                format!("{made} sockets with {name}, {plain} left with the kernel's default")
            }
        }
    }
}

/// What is polled for the spare's end; where there is none, something that is polled anyway.
fn watched<'a>(spare: Option<&'a OwnedFd>, listener: &'a Listener) -> BorrowedFd<'a> {
    spare.map_or_else(|| listener.as_fd(), AsFd::as_fd)
}

/// Starts the process that takes over when this one ends. `None` if there can be none now: then the
/// program's sockets hang on this process alone.
fn begin_spare(listener: &Listener, kind: &Kind) -> io::Result<Option<OwnedFd>> {
    match fork() {
        Ok(Forked::Parent(spare)) => Ok(Some(spare)),
        Ok(Forked::Child(first)) => {
            // Whatever it returns, this process is the spare, and never goes back to its caller.
            let _ = withdraw();
            stand_by(listener, first, kind);
            std::process::exit(0)
        }
        Err(error) => {
            eprintln!("hawser: no spare supervisor could be started: {error}");
            Ok(None)
        }
    }
}

/// Waits until `first` ends, then does its work, until no program is supervised any more.
fn stand_by(listener: &Listener, mut first: OwnedFd, kind: &Kind) {
    loop {
        match wait_for(&[listener.as_fd(), first.as_fd()]) {
            Ok(ready) if ready[0].1 => return,
            Ok(ready) if ready[1].0 => break,
            Ok(_) => {
                // A call is there that the other will handle: this avoids spinning until then.
                std::thread::sleep(STAND_BY_PAUSE);
            }
            Err(_) => return,
        }
    }
    let Ok(mut work) = Work::new(kind) else { return };
    // Forks again: the new spare watches this process.
    loop {
        match fork() {
            Ok(Forked::Child(before)) => {
                first = before;
                return stand_by(listener, first, kind);
            }
            Ok(Forked::Parent(spare)) => {
                if !work_until_end_of(listener, &mut work, &spare) {
                    return;
                }
            }
            Err(_) => std::thread::sleep(STAND_BY_PAUSE),
        }
    }
}

/// Between two looks of the spare while calls come in.
const STAND_BY_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// Answers calls until the spare ends (true) or no program is supervised any more (false).
fn work_until_end_of(listener: &Listener, work: &mut Work, spare: &OwnedFd) -> bool {
    loop {
        match wait_for(&[listener.as_fd(), spare.as_fd()]) {
            Ok(ready) if ready[0].0 => work.answer(listener),
            Ok(ready) if ready[0].1 => return false,
            Ok(_) => return true,
            Err(_) => return false,
        }
    }
}

/// Answers calls.
struct Work {
    /// /proc/self/ns/net.
    namespace: PathBuf,
    kind: Kind,
    counts: Counts,
}

impl Work {
    fn new(kind: &Kind) -> io::Result<Self> {
        let namespace = fs::read_link("/proc/self/ns/net")?;
        Ok(Self { namespace, kind: kind.clone(), counts: Counts::default() })
    }

    fn answer(&mut self, listener: &Listener) {
        let Ok(Some(call)) = listener.receive() else { return };
        let given = match call.asked {
            Asked::Socket { ipv6, close_on_exec, nonblocking } => {
                self.give(listener, &call, ipv6, close_on_exec, nonblocking)
            }
            Asked::Option { fd, .. } => {
                match self.put_back(listener, &call, fd) {
                    Ok(true) => self.counts.put_back += 1,
                    Ok(false) => {}
                    Err(_) => self.counts.refused += 1,
                }
                false
            }
        };
        if !given {
            // An error means that the thread does not wait any more.
            let _ = listener.go_on(&call);
        }
    }

    fn give(
        &mut self,
        listener: &Listener,
        call: &Call,
        ipv6: bool,
        close_on_exec: bool,
        nonblocking: bool,
    ) -> bool {
        let made = if self.wants(call.thread) { self.kind.open(ipv6, nonblocking) } else { None };
        let given = made.is_some_and(|made| {
            // What goes wrong here (EMFILE) goes wrong in the kernel's hands too, with its errno.
            listener.give(call, made.as_fd(), close_on_exec).is_ok()
        });
        if given {
            self.counts.made += 1;
        } else {
            self.counts.plain += 1;
        }
        given
    }

    /// Whether a thread's sockets are to be others: it is in our network namespace, and its program
    /// was not started with PGMPTCP=0.
    fn wants(&self, thread: u32) -> bool {
        let same = fs::read_link(format!("/proc/{thread}/ns/net"))
            .is_ok_and(|namespace| namespace == self.namespace);
        let off = || {
            matches!(self.kind, Kind::Mptcp)
                && fs::read(format!("/proc/{thread}/environ")).is_ok_and(|bytes| turned_off(&bytes))
        };
        same && !off()
    }

    /// Puts a socket back to plain TCP. `false` if there is nothing to do.
    fn put_back(&self, listener: &Listener, call: &Call, fd: i32) -> io::Result<bool> {
        let status = fs::read_to_string(format!("/proc/{}/status", call.thread))?;
        let process = group_of(&status).ok_or(io::ErrorKind::InvalidData)?;
        let old = descriptor_of(process, fd)?;
        if !socket::is_mptcp(&old).unwrap_or(false) {
            return Ok(false);
        }
        if !is_unused(&old)? {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let new = plain_like(&old)?;
        let about = fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", call.thread))?;
        listener.put(call, new.as_fd(), fd, closes_on_exec(&about))?;
        Ok(true)
    }
}

fn turned_off(environment: &[u8]) -> bool {
    environment.split(|byte| *byte == 0).any(|entry| entry == b"PGMPTCP=0")
}

/// `Tgid:` of /proc/PID/status.
fn group_of(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// `flags:` of /proc/PID/fdinfo/FD, in octal, with O_CLOEXEC among them.
fn closes_on_exec(about: &str) -> bool {
    const O_CLOEXEC: u32 = 0o2_000_000;
    about
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| flags & O_CLOEXEC != 0)
}

/// The program, if it is setuid or setgid and this process is not root (which does not need
/// no_new_privs).
fn setuid(name: &OsStr) -> Option<PathBuf> {
    if is_superuser() {
        return None;
    }
    let found = |path: &Path| {
        let file = fs::metadata(path).ok()?;
        (file.is_file() && file.mode() & 0o111 != 0).then_some(file)
    };
    let path = if Path::new(name).components().count() > 1 {
        PathBuf::from(name)
    } else {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path)
            .map(|directory| directory.join(name))
            .find(|p| found(p).is_some())?
    };
    (found(&path)?.permissions().mode() & 0o6000 != 0).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_can_turn_it_off_for_itself() {
        assert!(turned_off(b"A=1\0PGMPTCP=0\0B=2\0"));
        assert!(!turned_off(b"PGMPTCP=1\0"));
        assert!(!turned_off(b"XPGMPTCP=0\0PGMPTCP=00\0"));
    }

    #[test]
    fn what_proc_says_is_read() {
        assert_eq!(group_of("Name:\tx\nTgid:\t42\nPid:\t43\n"), Some(42));
        assert!(closes_on_exec("pos:\t0\nflags:\t02000002\n"));
        assert!(!closes_on_exec("pos:\t0\nflags:\t04002\n"));
        assert!(!closes_on_exec(""));
    }

    #[test]
    fn exit_codes_are_those_of_env() {
        let of = |kind: io::ErrorKind| {
            RunError::Program { name: "x".into(), source: kind.into() }.exit_code()
        };
        assert_eq!(of(io::ErrorKind::NotFound), 127);
        assert_eq!(of(io::ErrorKind::PermissionDenied), 126);
        assert_eq!(RunError::Unsupported(Unsupported::Kernel).exit_code(), 125);
    }
}
