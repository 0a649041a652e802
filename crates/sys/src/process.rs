//! The process and its threads: descriptors, priority, identity.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::{Resource, Rlimit};

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

/// Lowers the priority of the calling thread alone (Linux gives every thread its own, although
/// POSIX speaks of processes: sched(7), "The nice value").
///
/// # Errors
/// As setpriority(2).
pub fn set_thread_nice(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(Some(rustix::thread::gettid()), nice)?)
}

/// Whether this process may become another user.
pub fn is_superuser() -> bool {
    rustix::process::geteuid().is_root()
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

/// Bytes for the strings of a user's or group's entry; longer ones are taken for missing.
const ENTRY_BYTES_MAX: usize = 64 * 1024;

type Lookup<'a> =
    dyn FnMut(*mut libc::passwd, &mut [libc::c_char], *mut *mut libc::passwd) -> i32 + 'a;

fn account(lookup: &mut Lookup<'_>) -> io::Result<Option<Account>> {
    let mut strings = vec![0; ENTRY_BYTES_MAX];
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    let code = lookup(entry.as_mut_ptr(), &mut strings, &mut found);
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code));
    }
    if found.is_null() {
        return Ok(None);
    }
    // SAFETY: getpw*_r returned 0 and a non-null result, so `entry` is filled and its strings lie
    // NUL-terminated in `strings`, which is still alive.
    let (name, uid, gid) = unsafe {
        let entry = entry.assume_init_ref();
        (CStr::from_ptr(entry.pw_name).to_owned(), entry.pw_uid, entry.pw_gid)
    };
    Ok(Some(Account { name: name.to_string_lossy().into_owned(), uid, gid }))
}

/// The user with this name, if there is one.
///
/// # Errors
/// As getpwnam_r(3).
pub fn account_by_name(name: &str) -> io::Result<Option<Account>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    account(&mut |entry, strings, found| {
        // SAFETY: all pointers are valid for the call, and the length is that of `strings`.
        unsafe {
            libc::getpwnam_r(name.as_ptr(), entry, strings.as_mut_ptr(), strings.len(), found)
        }
    })
}

/// The user with this id, if there is one.
///
/// # Errors
/// As getpwuid_r(3).
pub fn account_by_id(uid: u32) -> io::Result<Option<Account>> {
    account(&mut |entry, strings, found| {
        // SAFETY: all pointers are valid for the call, and the length is that of `strings`.
        unsafe { libc::getpwuid_r(uid, entry, strings.as_mut_ptr(), strings.len(), found) }
    })
}

/// The id of the group with this name, if there is one.
///
/// # Errors
/// As getgrnam_r(3).
pub fn group_by_name(name: &str) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut strings: Vec<libc::c_char> = vec![0; ENTRY_BYTES_MAX];
    let mut entry = MaybeUninit::<libc::group>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are valid for the call, and the length is that of `strings`.
    let code = unsafe {
        libc::getgrnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            strings.as_mut_ptr(),
            strings.len(),
            &mut found,
        )
    };
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code));
    }
    if found.is_null() {
        return Ok(None);
    }
    // SAFETY: getgrnam_r returned 0 and a non-null result, so `entry` is filled.
    Ok(Some(unsafe { entry.assume_init_ref() }.gr_gid))
}

/// Becomes another user for good: groups, group, then user, in all threads.
///
/// # Errors
/// As initgroups(3), setgid(2), setuid(2). After an error the identity is half changed: exit.
pub fn become_account(account: &Account) -> io::Result<()> {
    let name = CString::new(account.name.as_str())?;
    // SAFETY: `name` is a C string; libc's setgid and setuid take effect in every thread.
    unsafe {
        if libc::initgroups(name.as_ptr(), account.gid) != 0
            || libc::setgid(account.gid) != 0
            || libc::setuid(account.uid) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    if account.uid != 0 && rustix::process::geteuid().is_root() {
        return Err(io::Error::other("still root after setuid"));
    }
    Ok(())
}

/// Takes over a descriptor that the service manager has passed to this process (sd_listen_fds(3)),
/// as a duplicate: the original stays as it is.
///
/// # Errors
/// As fcntl(2): the number is no open descriptor.
pub fn duplicate_passed(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes a number and touches no memory; an invalid one gives EBADF.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
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
            set_thread_nice(15).unwrap();
            assert_eq!(nice(), 15);
        })
        .join()
        .unwrap();
        assert_eq!(nice(), before);
    }

    #[test]
    fn a_number_that_is_no_descriptor_is_refused() {
        assert!(duplicate_passed(1_000_000).is_err());
    }
}
