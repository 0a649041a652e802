//! Sockets that listen: on TCP, on unix sockets, or passed on by the service manager.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::process::duplicate_passed;
use crate::programs::Listeners;
use crate::stream::set_option;

/// Listens on a TCP address, not blocking.
///
/// SO_REUSEADDR, so that a restart need not wait for connections in TIME_WAIT; an IPv6 address is
/// IPv6 alone (IPV6_V6ONLY), whatever `/proc/sys/net/ipv6/bindv6only` says, so that `0.0.0.0` and
/// `[::]` can be listened on side by side. `backlog` is cut by `/proc/sys/net/core/somaxconn`.
///
/// # Errors
/// As socket(2), bind(2) and listen(2); [`io::ErrorKind::AddrInUse`] if there is a listener.
pub fn listen_tcp(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    listen_with(
        rustix::net::socket_with(family, SocketType::STREAM, flags, None)?,
        address,
        backlog,
    )
}

/// Listens with a socket of the address's family that has just been made, of TCP or MPTCP.
pub(crate) fn listen_with(
    socket: OwnedFd,
    address: SocketAddr,
    backlog: i32,
) -> io::Result<TcpListener> {
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)
        .and_then(|()| rustix::net::listen(&socket, backlog))
        .map_err(|error| taken(error, address))?;
    Ok(socket.into())
}

fn taken(error: Errno, address: SocketAddr) -> io::Error {
    if error != Errno::ADDRINUSE {
        return error.into();
    }
    let by = Listeners::read().of(address);
    io::Error::new(io::ErrorKind::AddrInUse, format!("Address already in use: by {by}"))
}

/// Accepts a TCP connection, not blocking, and who it is from.
///
/// # Errors
/// As accept(2); [`io::ErrorKind::WouldBlock`] when there is none.
pub fn accept_tcp(listener: &TcpListener) -> io::Result<(OwnedFd, SocketAddr)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (fd, from) = rustix::net::acceptfrom_with(listener, flags)?;
    let from = from.ok_or(io::ErrorKind::ConnectionAborted)?;
    Ok((fd, SocketAddr::try_from(from).map_err(|_| io::ErrorKind::Unsupported)?))
}

/// Whether accept(2) has reported an error of the connection that would have been accepted. Others (EMFILE,
/// ENFILE, ENOBUFS, ENOMEM) would come again at once.
pub fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Accepts a connection of a unix socket, not blocking.
///
/// # Errors
/// As accept(2); [`io::ErrorKind::WouldBlock`] when there is none.
pub fn accept_unix(listener: &UnixListener) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
}

/// Has the kernel keep a connection back until its client has sent something, or has stayed silent
/// for about `wait` (TCP_DEFER_ACCEPT; whole seconds, which the kernel rounds up to the times at
/// which it repeats its SYN-ACK).
///
/// # Errors
/// As setsockopt(2).
pub fn set_defer_accept(listener: impl AsFd, wait: Duration) -> io::Result<()> {
    let most = libc::c_int::MAX.unsigned_abs();
    let seconds = u32::try_from(wait.as_secs()).unwrap_or(most).min(most);
    set_option(listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, &seconds.to_ne_bytes())
}

/// The file of a unix socket that this process has made: removed when this is dropped, unless
/// another has taken its place meanwhile. Drop it before the listener: as long as that is open, no
/// other file has the same inode.
#[derive(Debug)]
pub struct BoundPath {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl BoundPath {
    /// The file that is there, which another process has made and left to this one.
    ///
    /// # Errors
    /// As lstat(2).
    pub fn of(path: &Path) -> io::Result<Self> {
        let file = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), device: file.dev(), inode: file.ino() })
    }

    /// Another process serves it from here on: it stays.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for BoundPath {
    fn drop(&mut self) {
        let is_own = |file: fs::Metadata| (file.dev(), file.ino()) == (self.device, self.inode);
        if fs::symlink_metadata(&self.path).is_ok_and(is_own) {
            // It may be that this process is no longer the user who could: the file then stays,
            // and the next process replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Who may connect to a unix socket: write permission on its file (unix(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SocketFile {
    /// Permission bits, as chmod(2) takes them. `None`: as the umask leaves them.
    pub mode: Option<u32>,
    /// User id of its owner. `None`: this process's.
    pub owner: Option<u32>,
    /// Group id. `None`: this process's.
    pub group: Option<u32>,
}

impl SocketFile {
    /// Gives the file at `path` these permissions and owners.
    ///
    /// # Errors
    /// As chmod(2), chown(2).
    pub fn apply(&self, path: &Path) -> io::Result<()> {
        if self.owner.is_some() || self.group.is_some() {
            chown(path, self.owner, self.group)?;
        }
        match self.mode {
            Some(mode) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
            None => Ok(()),
        }
    }
}

/// Changes how many connections may wait at a socket that listens already.
///
/// # Errors
/// As listen(2).
pub fn set_backlog(listener: impl AsFd, backlog: i32) -> io::Result<()> {
    Ok(rustix::net::listen(listener, backlog)?)
}

/// Listens on a unix socket, not blocking. A file that a dead process has left is replaced; one
/// with a listener is not. `file` is applied before any client can connect.
///
/// # Errors
/// As bind(2), chmod(2), chown(2), listen(2); [`io::ErrorKind::AddrInUse`] if there is a listener,
/// or if the path is a file of another kind.
pub fn listen_unix(
    path: &Path,
    file: SocketFile,
    backlog: i32,
) -> io::Result<(UnixListener, BoundPath)> {
    let (socket, bound) = listen_unix_with(SocketType::STREAM, path, file, backlog)?;
    Ok((socket.into(), bound))
}

/// The name of an abstract unix socket (unix(7)), which has no file: what follows the `@` that stands for its
/// first byte, a NUL. `None` if `path` is that of a file.
pub fn abstract_name(path: &Path) -> Option<&[u8]> {
    path.as_os_str().as_bytes().strip_prefix(b"@")
}

/// Listens on the abstract unix socket of this name, not blocking. Every user in this network namespace can
/// connect to it.
///
/// # Errors
/// As bind(2), listen(2); [`io::ErrorKind::AddrInUse`] if there is a listener.
pub fn listen_abstract(name: &[u8], backlog: i32) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket.into())
}

/// As [`listen_unix`], with a socket of any type that has connections.
pub(crate) fn listen_unix_with(
    kind: SocketType,
    path: &Path,
    file: SocketFile,
    backlog: i32,
) -> io::Result<(OwnedFd, BoundPath)> {
    remove_stale(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(path)?)?;
    // From here on a failure leaves no file.
    let bound = BoundPath::of(path)?;
    // Until listen(2) a connect is refused: no client gets in before the permissions are set.
    file.apply(path)?;
    rustix::net::listen(&socket, backlog)?;
    Ok((socket, bound))
}

/// Removes a unix socket's file if it has no listener.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "there is a file of that name that is no socket",
            ));
        }
        Ok(_) => {}
    }
    // For one of another type connect(2) gives EPROTOTYPE, with or without a listener.
    let connected = UnixStream::connect(path).map(drop).or_else(|error| {
        let other_type = error.raw_os_error() == Some(libc::EPROTOTYPE);
        if other_type { crate::packets::connect(path).map(drop) } else { Err(error) }
    });
    match connected {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// A descriptor that the service manager has passed on.
#[derive(Debug)]
pub struct Passed {
    /// The descriptor, as a duplicate.
    pub fd: OwnedFd,
    /// `FileDescriptorName=` of its unit; `unknown` if there is none.
    pub name: String,
}

/// The first descriptor that is passed on (`SD_LISTEN_FDS_START`, sd_listen_fds(3)).
const PASSED_FIRST: RawFd = 3;
/// The most that are taken.
const PASSED_MAX: i32 = 1024;

/// The descriptors that the service manager has passed to process `pid` (sd_listen_fds(3)).
/// `environment` reads a variable: LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES.
///
/// # Errors
/// LISTEN_FDS is no number up to 1024, or counts a descriptor that is not open.
pub fn passed_descriptors(
    pid: u32,
    environment: impl Fn(&str) -> Option<String>,
) -> io::Result<Vec<Passed>> {
    // Another number means that they were meant for the process that started this one.
    if environment("LISTEN_PID").and_then(|text| text.parse().ok()) != Some(pid) {
        return Ok(Vec::new());
    }
    let Some(count) = environment("LISTEN_FDS") else { return Ok(Vec::new()) };
    let count =
        count.parse::<i32>().ok().filter(|count| (0..=PASSED_MAX).contains(count)).ok_or_else(
            || {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("LISTEN_FDS is \"{count}\", not a number from 0 to {PASSED_MAX}"),
                )
            },
        )?;
    let names = environment("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').filter(|name| !name.is_empty());
    (PASSED_FIRST..PASSED_FIRST + count)
        .map(|number| {
            let name = names.next().unwrap_or("unknown").to_owned();
            Ok(Passed { fd: duplicate_passed(number)?, name })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
    use std::path::PathBuf;

    use super::*;

    /// A directory for one test.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let own = format!("hawser-listen-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(own);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn both_families_share_a_port() {
        let four = listen_tcp((Ipv4Addr::UNSPECIFIED, 0).into(), 16).unwrap();
        let port = four.local_addr().unwrap().port();
        match listen_tcp((Ipv6Addr::UNSPECIFIED, port).into(), 16) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
                eprintln!("skipped: this host has no IPv6");
            }
            Err(error) => panic!("{error}"),
        }
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        four.accept().unwrap();
        assert_eq!(four.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_port_is_listened_on_once() {
        let first = listen_tcp((Ipv4Addr::LOCALHOST, 0).into(), 16).unwrap();
        let error = listen_tcp(first.local_addr().unwrap(), 16).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let who = format!("(process {})", std::process::id());
        assert!(error.to_string().ends_with(&who), "{error}");
    }

    #[test]
    fn a_unix_socket_has_the_permissions_asked_for() {
        let directory = Directory::new("mode");
        let path = directory.0.join("socket");
        let file = SocketFile { mode: Some(0o640), ..SocketFile::default() };
        let (listener, _path) = listen_unix(&path, file, 16).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
        UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn only_a_dead_process_s_socket_is_replaced() {
        let directory = Directory::new("stale");
        let path = directory.0.join("socket");
        let first = listen_unix(&path, SocketFile::default(), 16).unwrap();
        let error = listen_unix(&path, SocketFile::default(), 16).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let (listener, bound) = first;
        std::mem::forget(bound); // as a process that was killed leaves it
        drop(listener);
        drop(listen_unix(&path, SocketFile::default(), 16).unwrap());
        fs::write(&path, "precious").unwrap();
        let error = listen_unix(&path, SocketFile::default(), 16).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn the_file_goes_with_its_listener_unless_it_is_another_s() {
        let directory = Directory::new("removed");
        let path = directory.0.join("socket");
        let (listener, bound) = listen_unix(&path, SocketFile::default(), 16).unwrap();
        drop(bound);
        assert!(!path.exists());
        drop(listener);
        let first = listen_unix(&path, SocketFile::default(), 16).unwrap();
        fs::remove_file(&path).unwrap();
        let second = listen_unix(&path, SocketFile::default(), 16).unwrap();
        drop(first.1);
        assert!(path.exists(), "it is the second's");
        drop(second);
    }

    #[test]
    fn a_deferred_connection_comes_with_its_first_bytes() {
        use std::io::Write as _;
        let listener = listen_tcp((Ipv4Addr::LOCALHOST, 0).into(), 16).unwrap();
        set_defer_accept(&listener, Duration::from_secs(1)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        client.write_all(b"x").unwrap();
        listener.accept().unwrap();
    }

    #[test]
    fn a_failure_leaves_no_file() {
        let directory = Directory::new("fails");
        let path = directory.0.join("socket");
        // Only root may give a file away: bind has succeeded, and chown fails.
        let file = SocketFile { owner: Some(0), group: Some(0), ..SocketFile::default() };
        if rustix::process::geteuid().is_root() {
            listen_unix(&path, file, 16).unwrap();
        } else {
            listen_unix(&path, file, 16).unwrap_err();
            assert!(!path.exists());
        }
    }

    #[test]
    fn descriptors_for_another_process_are_left_alone() {
        let environment = |pid: &'static str, fds: &'static str| {
            move |name: &str| match name {
                "LISTEN_PID" => Some(pid.to_owned()),
                "LISTEN_FDS" => Some(fds.to_owned()),
                _ => None,
            }
        };
        assert!(passed_descriptors(7, |_| None).unwrap().is_empty());
        assert!(passed_descriptors(7, environment("8", "1")).unwrap().is_empty());
        assert!(passed_descriptors(7, environment("7", "0")).unwrap().is_empty());
        for wrong in ["x", "-1", "1025"] {
            let error = passed_descriptors(7, environment("7", wrong)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
