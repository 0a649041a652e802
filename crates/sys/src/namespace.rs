//! Network namespaces: a network stack of one's own, for a thread or a command.
//!
//! # Model
//! A namespace has no name here. It lives while a descriptor, a thread or a process is in it, and
//! is gone with the last of them, however that one ended: nothing is left to clean up.
//!
//! # Limits      CAP_SYS_ADMIN, or user namespaces for ordinary users (`user.max_user_namespaces`;
//!               some distributions restrict them by AppArmor or `kernel.unprivileged_userns_clone`)

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// The network namespace of the calling thread.
///
/// # Errors
/// As open(2).
pub fn own_network() -> io::Result<OwnedFd> {
    Ok(fs::File::open("/proc/thread-self/ns/net")?.into())
}

/// Moves the calling thread into a new network namespace. The rest of the process stays.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: unsafe for CLONE_FILES alone, which is not asked for.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Moves the process into a new user namespace, in which its user is the same and has every
/// capability.
///
/// # Errors
/// EINVAL where the process has more than one thread; EPERM, ENOSPC where the host does not allow it.
pub fn unshare_user() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    // SAFETY: unsafe for CLONE_FILES alone, which is not asked for.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }?;
    // user_namespaces(7): an ordinary user may map its groups only after giving up setgroups.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    Ok(())
}

/// Runs `work` on a thread of its own inside a network namespace. Sockets that it makes stay there.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN; what spawning a thread gives.
///
/// # Panics
/// Where `work` does.
pub fn within<R: Send>(
    network: impl AsFd + Sync,
    work: impl FnOnce() -> R + Send,
) -> io::Result<R> {
    std::thread::scope(|scope| {
        let run = || {
            enter(&network)?;
            Ok(work())
        };
        let thread =
            std::thread::Builder::new().name("namespace".into()).spawn_scoped(scope, run)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Moves the calling thread into a network namespace.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN.
pub fn enter(network: impl AsFd) -> io::Result<()> {
    let kind = Some(LinkNameSpaceType::Network);
    Ok(rustix::thread::move_into_link_name_space(network.as_fd(), kind)?)
}

/// Makes `command` run inside a network namespace, and inside its user namespace where it has one;
/// to be killed when the calling thread ends; with the default action for SIGINT and SIGQUIT.
pub fn run_within(command: &mut Command, user: Option<OwnedFd>, network: OwnedFd) {
    let parent = rustix::process::getpid();
    let enter = move || {
        // SAFETY: signal(2) with SIG_DFL has no memory to be wrong about.
        unsafe {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            libc::signal(libc::SIGQUIT, libc::SIG_DFL);
        }
        let set = |fd: &OwnedFd, kind: i32| {
            // SAFETY: setns(2) takes a descriptor and a number.
            match unsafe { libc::setns(fd.as_raw_fd(), kind) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        if let Some(user) = &user {
            set(user, libc::CLONE_NEWUSER)?;
        }
        set(&network, libc::CLONE_NEWNET)?;
        // After setns: entering a user namespace changes credentials, which clears the signal.
        let signal = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(signal)?;
        if rustix::process::getppid() != Some(parent) {
            return Err(io::ErrorKind::Interrupted.into()); // the parent died before it was watched
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made; no memory is allocated, no lock taken.
    unsafe {
        command.pre_exec(enter);
    }
}

/// Lets the terminal's interrupt and quit keys reach the command that is run, and not end this
/// process before it.
pub fn ignore_interrupts() {
    // SAFETY: signal(2) with SIG_IGN has no memory to be wrong about.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGQUIT, libc::SIG_IGN);
    }
}

/// Asks a process to end (SIGTERM), or ends it (SIGKILL), if `is_it` still says so once its number
/// can no longer pass to another process.
///
/// # Errors
/// ESRCH where there is none, EPERM; ENOSYS before Linux 5.3.
pub fn end_process(number: u32, at_once: bool, is_it: impl FnOnce() -> bool) -> io::Result<()> {
    use rustix::process::{Pid, PidfdFlags, Signal};
    let number = Pid::from_raw(number.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    let process = rustix::process::pidfd_open(number, PidfdFlags::empty())?;
    if is_it() {
        let signal = if at_once { Signal::KILL } else { Signal::TERM };
        rustix::process::pidfd_send_signal(&process, signal)?;
    }
    Ok(())
}

/// Makes this process the leader of a session of its own, without a terminal.
///
/// # Errors
/// EPERM where it leads a group of processes.
pub fn leave_terminal() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn identity(network: &OwnedFd) -> u64 {
        let file = fs::File::from(network.try_clone().unwrap());
        file.metadata().unwrap().ino()
    }

    /// A new namespace, or `None` (said aloud) where this process may not have one.
    fn new() -> Option<OwnedFd> {
        let made = std::thread::spawn(|| unshare_network().and_then(|()| own_network()));
        match made.join().unwrap() {
            Ok(network) => Some(network),
            Err(error) => {
                eprintln!("SKIPPED: no network namespace: {error}");
                None
            }
        }
    }

    #[test]
    fn a_thread_is_inside_and_the_process_outside() {
        let Some(network) = new() else { return };
        let before = identity(&own_network().unwrap());
        let inside = within(&network, || identity(&own_network().unwrap())).unwrap();
        assert_eq!(inside, identity(&network));
        assert_ne!(inside, before);
        assert_eq!(identity(&own_network().unwrap()), before);
    }

    #[test]
    fn a_command_is_inside() {
        let Some(network) = new() else { return };
        let mut command = Command::new("readlink");
        command.arg("/proc/self/ns/net");
        let inode = identity(&network);
        run_within(&mut command, None, network);
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert_eq!(said.trim(), format!("net:[{inode}]"));
    }
}
