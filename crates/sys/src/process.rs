//! The process and its threads: descriptors, priority, identity.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::unistd::{Gid, Group, Uid, User, initgroups, setgid, setuid};
use rustix::process::{Resource, Rlimit};

use crate::stream::get_option;

/// Raises the soft limit on open descriptors to the hard one. Returns the limit now in force.
///
/// # Errors
/// As setrlimit(2).
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        rustix::process::setrlimit(
            Resource::Nofile,
            Rlimit { current: limit.maximum, maximum: limit.maximum },
        )?;
    }
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// Sets the priority of the calling thread alone (Linux has one for each thread, although POSIX has
/// one for each process: sched(7), "The nice value").
///
/// # Errors
/// As setpriority(2).
pub fn set_thread_nice(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(Some(rustix::thread::gettid()), nice)?)
}

/// Lowers the priority of the calling thread alone: its nice value becomes `by` more, 19 at most.
///
/// # Errors
/// As setpriority(2).
pub fn lower_thread_priority(by: i32) -> io::Result<()> {
    let nice = rustix::process::getpriority_process(Some(rustix::thread::gettid()))?;
    set_thread_nice((nice + by).min(19))
}

/// Whether other processes of the same user may read this one's memory (ptrace(2), /proc/PID/mem), and
/// the kernel writes it to a file when it crashes. To be said again after the user has changed: that
/// sets it to `fs.suid_dumpable`.
///
/// # Errors
/// As prctl(2), PR_SET_DUMPABLE.
pub fn set_dumpable(dumpable: bool) -> io::Result<()> {
    use rustix::process::DumpableBehavior::{Dumpable, NotDumpable};
    Ok(rustix::process::set_dumpable_behavior(if dumpable { Dumpable } else { NotDumpable })?)
}

/// Kills all processes of a group (SIGKILL), by the number of the process that leads it. That process
/// must be a child that has not been waited for: else another may have the number.
///
/// # Errors
/// As kill(2); [`io::ErrorKind::InvalidInput`] if there is no such number.
pub fn kill_group(leader: u32) -> io::Result<()> {
    let leader = i32::try_from(leader).ok().and_then(rustix::process::Pid::from_raw);
    let leader = leader.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::kill_process_group(leader, rustix::process::Signal::KILL)?)
}

/// Whether this process may become another user.
pub fn is_superuser() -> bool {
    rustix::process::geteuid().is_root()
}

/// What [`fork`] gives to each of the two.
#[derive(Debug)]
pub enum Forked {
    /// To the process that was there: the other's descriptor (pidfd_open(2)), readable when it ends.
    Parent(OwnedFd),
    /// To the new one: the descriptor of the one that was there.
    Child(OwnedFd),
}

/// Makes a second process of this one, which goes on from here.
///
/// # Errors
/// As fork(2) and pidfd_open(2); [`io::ErrorKind::Unsupported`] if this process has several threads:
/// locks that the others hold would never be released in the new one.
pub fn fork() -> io::Result<Forked> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let open = |pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    let before = open(rustix::process::getpid())?;
    // SAFETY: there is one thread, so no lock is held by another, and all memory is consistent.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child(before)),
        pid => {
            let pid = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
            Ok(Forked::Parent(open(pid)?))
        }
    }
}

/// Leaves the terminal and its signals: a session of its own, the signals by which users and service
/// managers end programs ignored, nothing read or written.
///
/// # Errors
/// As setsid(2), open(2) and dup2(2).
pub fn withdraw() -> io::Result<()> {
    rustix::process::setsid()?;
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGPIPE] {
        // SAFETY: SIG_IGN is a valid disposition, and no handler is installed that it replaces.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Signals that are passed on, as a descriptor that is readable when one has come; they do not act on
/// this process any more. Children that [`std::process::Command`] starts after this have them
/// blocked, too.
///
/// # Errors
/// As sigprocmask(2) and signalfd(2).
pub fn catch_signals(signals: &[i32]) -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset makes the set valid before anything else uses it.
    let fd = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: signalfd has made it, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The next signal of [`catch_signals`].
///
/// # Errors
/// As read(2): [`io::ErrorKind::WouldBlock`] when there is none.
pub fn next_signal(signals: impl AsFd) -> io::Result<i32> {
    next_signal_and_code(signals).map(|(signal, _)| signal)
}

/// A signal's number and its si_code (sigaction(2)).
fn next_signal_and_code(signals: impl AsFd) -> io::Result<(i32, i32)> {
    // `struct signalfd_siginfo` (signalfd(2)) has 128 bytes and begins with number, errno and code.
    let mut bytes = [0u8; 128];
    if rustix::io::read(signals, &mut bytes)? < 12 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let number = |at: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
    Ok((number(0), number(8)))
}

/// Catches, as [`catch_signals`], all that [`pass_signals_on`] can pass on. Not among them are SIGKILL and
/// SIGSTOP, which cannot be caught; other stop signals, by which a terminal stops this process as well; those
/// by which the kernel says what this process has done; and glibc's own two, 32 and 33.
///
/// # Errors
/// As there.
pub fn catch_signals_to_pass_on() -> io::Result<OwnedFd> {
    const OWN: [i32; 15] = [
        libc::SIGKILL,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGCHLD,
        libc::SIGPIPE,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGSYS,
        32,
        33,
    ];
    let all = (1..=libc::SIGRTMAX()).filter(|signal| !OWN.contains(signal));
    catch_signals(&all.collect::<Vec<i32>>())
}

/// Sends what [`catch_signals_to_pass_on`] has caught to a program that this process has started. A terminal
/// sends SIGINT, SIGQUIT and SIGWINCH to the program as well (and the kernel, not kill(2), to this process).
pub fn pass_signals_on(signals: impl AsFd, program: u32) {
    const OF_TERMINALS: [i32; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGWINCH];
    while let Ok((signal, code)) = next_signal_and_code(&signals) {
        if code != libc::SI_KERNEL || !OF_TERMINALS.contains(&signal) {
            // It may have ended a moment ago.
            let _ = send_signal(program, signal);
        }
    }
}

/// Sends a signal to a process.
///
/// # Errors
/// As kill(2).
pub fn send_signal(pid: u32, signal: i32) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: kill(2) takes no pointers.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A descriptor of a process, readable when it ends (pidfd_open(2)). Linux 5.3.
///
/// # Errors
/// As pidfd_open(2).
pub fn descriptor_of_process(process: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
}

/// A descriptor of the process that has connected a unix socket, as [`descriptor_of_process`] gives it.
///
/// # Errors
/// As getsockopt(2) with SO_PEERPIDFD; before Linux 6.5, as pidfd_open(2).
pub fn peer_process(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut fd = [0; size_of::<RawFd>()];
    match get_option(&socket, libc::SOL_SOCKET, libc::SO_PEERPIDFD, &mut fd) {
        // SAFETY: the kernel has just made this descriptor, and it has no other owner.
        Ok(_) => return Ok(unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(fd)) }),
        Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => return Err(error),
        Err(_) => {}
    }
    let peer = rustix::net::sockopt::socket_peercred(socket)?;
    Ok(rustix::process::pidfd_open(peer.pid, rustix::process::PidfdFlags::empty())?)
}

/// A program's exit code as shells have it: 128 and the number of the signal that ended it.
#[must_use]
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(125)
}

/// A duplicate of another process's descriptor. Linux 5.6.
///
/// # Errors
/// As pidfd_getfd(2): EPERM without the right to trace the process (ptrace(2),
/// PTRACE_MODE_ATTACH_REALCREDS; Yama's ptrace_scope = 1 gives it for descendants alone).
pub fn descriptor_of(process: u32, fd: i32) -> io::Result<OwnedFd> {
    let process = descriptor_of_process(process)?;
    let flags = rustix::process::PidfdGetfdFlags::empty();
    Ok(rustix::process::pidfd_getfd(process, fd, flags)?)
}

/// Waits until at least one of the descriptors is readable or has been hung up. Gives for each
/// whether it is readable, and whether it was hung up.
///
/// # Errors
/// As poll(2), but for EINTR.
pub fn wait_for(fds: &[std::os::fd::BorrowedFd<'_>]) -> io::Result<Vec<(bool, bool)>> {
    wait(fds, None)
}

/// As [`wait_for`], but no longer than `pause`.
///
/// # Errors
/// As [`wait_for`].
pub fn wait_at_most(
    fds: &[std::os::fd::BorrowedFd<'_>],
    pause: std::time::Duration,
) -> io::Result<Vec<(bool, bool)>> {
    wait(fds, Some(pause))
}

fn wait(
    fds: &[std::os::fd::BorrowedFd<'_>],
    pause: Option<std::time::Duration>,
) -> io::Result<Vec<(bool, bool)>> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let pause = pause.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
    rustix::io::retry_on_intr(|| poll(&mut polled, pause.as_ref()))?;
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    Ok(polled
        .iter()
        .map(|fd| (fd.revents().contains(PollFlags::IN), fd.revents().intersects(gone)))
        .collect())
}

/// Locks a file for this process, until it is closed. False if another has it.
///
/// # Errors
/// As flock(2), but for EWOULDBLOCK.
pub fn lock_file(file: impl AsFd) -> io::Result<bool> {
    match rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A user of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its id.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
}

impl From<User> for Account {
    fn from(user: User) -> Self {
        Self { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw() }
    }
}

/// The user with this name, if there is one.
///
/// # Errors
/// As getpwnam_r(3).
pub fn account_by_name(name: &str) -> io::Result<Option<Account>> {
    Ok(User::from_name(name)?.map(Account::from))
}

/// The user with this id, if there is one.
///
/// # Errors
/// The effective user of this process.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// As getpwuid_r(3).
pub fn account_by_id(uid: u32) -> io::Result<Option<Account>> {
    Ok(User::from_uid(Uid::from_raw(uid))?.map(Account::from))
}

/// Whether this process may write a file, or make files in a directory.
///
/// # Errors
/// As faccessat(2): it may not, or there is none.
pub fn may_write(path: impl AsRef<std::path::Path>) -> io::Result<()> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    Ok(accessat(CWD, path.as_ref(), Access::WRITE_OK, AtFlags::EACCESS)?)
}

/// The id of the group with this name, if there is one.
///
/// # Errors
/// As getgrnam_r(3).
pub fn group_by_name(name: &str) -> io::Result<Option<u32>> {
    Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
}

/// Becomes another user irrevocably: groups, group, then user, in all threads.
///
/// # Errors
/// As initgroups(3), setgid(2), setuid(2). After an error the identity is half changed: exit.
pub fn become_account(account: &Account) -> io::Result<()> {
    let group = Gid::from_raw(account.gid);
    initgroups(&CString::new(account.name.as_str())?, group)?;
    setgid(group)?;
    setuid(Uid::from_raw(account.uid))?;
    if account.uid != 0 && rustix::process::geteuid().is_root() {
        return Err(io::Error::other("still root after setuid"));
    }
    Ok(())
}

/// What a service manager says to the process that it starts, and to no child of that (sd_listen_fds(3),
/// sd_notify(3), sd_watchdog_enabled(3)).
const OF_SERVICE_MANAGER: [&str; 6] = [
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
];

/// A command without the service manager's variables of this process: with them it could pass for
/// this process.
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    for name in OF_SERVICE_MANAGER {
        command.env_remove(name);
    }
    command
}

/// Takes over a descriptor that the service manager has passed to this process (sd_listen_fds(3)),
/// as a duplicate. The original stays open, and does not get into children.
///
/// # Errors
/// As fcntl(2): the number is no open descriptor.
pub fn duplicate_passed(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes a number and touches no memory; an invalid one gives EBADF.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and it has no other owner.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    // SAFETY: F_SETFD takes a number and flags, and touches no memory.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(copy)
}

/// What kind of listening socket a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketFamily {
    /// IPv4 or IPv6.
    Internet,
    /// A unix socket.
    Unix,
    /// Something else.
    Other,
}

/// The family of a socket.
///
/// # Errors
/// As getsockopt(2): it is no socket.
pub fn socket_family(fd: impl AsFd) -> io::Result<SocketFamily> {
    use rustix::net::AddressFamily;
    Ok(match rustix::net::sockopt::socket_domain(fd)? {
        AddressFamily::INET | AddressFamily::INET6 => SocketFamily::Internet,
        AddressFamily::UNIX => SocketFamily::Unix,
        _ => SocketFamily::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_user_zero_by_name_and_id() {
        let root = account_by_name("root").unwrap().unwrap();
        assert_eq!(root.uid, 0);
        assert_eq!(account_by_id(0).unwrap(), Some(root));
        assert_eq!(account_by_name("no such user here").unwrap(), None);
        assert_eq!(account_by_name("nul\0").unwrap(), None);
        assert_eq!(group_by_name("root").unwrap(), Some(0));
        assert_eq!(group_by_name("no such group here").unwrap(), None);
    }

    #[test]
    fn the_descriptor_limit_is_the_hard_one() {
        let limit = raise_descriptor_limit().unwrap();
        let now = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert_eq!(now, limit);
    }

    #[test]
    fn only_the_calling_thread_becomes_nicer() {
        let nice = || rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap();
        let before = nice();
        std::thread::spawn(move || {
            lower_thread_priority(3).unwrap();
            assert_eq!(nice(), (before + 3).min(19));
            lower_thread_priority(30).unwrap();
            assert_eq!(nice(), 19);
        })
        .join()
        .unwrap();
        assert_eq!(nice(), before);
    }

    #[test]
    fn a_descriptor_that_was_passed_gets_into_no_child() {
        use std::os::fd::{AsRawFd, IntoRawFd};
        let (passed, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let number = passed.as_raw_fd();
        // SAFETY: F_SETFD takes a number and flags, and touches no memory.
        assert_eq!(unsafe { libc::fcntl(number, libc::F_SETFD, 0) }, 0);
        let copy = duplicate_passed(number).unwrap().into_raw_fd();
        let mut ls = command("ls");
        ls.args([format!("/proc/self/fd/{number}"), format!("/proc/self/fd/{copy}")]);
        let found = ls.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    }

    #[test]
    fn a_child_gets_no_variables_of_the_service_manager() {
        let removed: Vec<_> = command("true").get_envs().map(|(name, _)| name.to_owned()).collect();
        for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET"] {
            assert!(removed.iter().any(|one| one == name), "{name}");
        }
    }

    #[test]
    fn a_number_that_is_no_descriptor_is_refused() {
        assert!(duplicate_passed(1_000_000).is_err());
    }

    #[test]
    fn exit_codes_are_those_of_shells() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
