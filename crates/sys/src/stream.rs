//! Stream sockets: reading, writing, and the options that TCP connections of a pooler have.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::sockopt;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix};

/// Reads what is there into `buf`, without waiting. `Ok(0)` is the end of the stream.
///
/// # Errors
/// As recv(2); [`io::ErrorKind::WouldBlock`] when there is nothing.
#[inline]
pub fn recv(fd: impl AsFd, buf: &mut [u8]) -> io::Result<usize> {
    let flags = RecvFlags::DONTWAIT;
    Ok(retry_on_intr(|| rustix::net::recv(&fd, &mut *buf, flags))?.0)
}

/// As [`recv`], but leaves what it gives: the next call gives it again.
///
/// # Errors
/// See there.
pub fn peek(fd: impl AsFd, buf: &mut [u8]) -> io::Result<usize> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    Ok(retry_on_intr(|| rustix::net::recv(&fd, &mut *buf, flags))?.0)
}

/// Reads all that is there, without waiting: fewer bytes than `buf` has room for are the last.
///
/// One recv(2) does that, but not of a socket that is past TCP: see `hawser_bypass::rule`.
///
/// # Errors
/// As [`recv`]. What came before an error is given first.
pub fn recv_all(fd: impl AsFd, buf: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    loop {
        match recv(&fd, &mut buf[filled..]) {
            Ok(0) => return Ok(filled),
            Ok(read) => filled += read,
            Err(_) if filled > 0 => return Ok(filled),
            Err(error) => return Err(error),
        }
        if filled == buf.len() {
            return Ok(filled);
        }
    }
}

/// Writes what fits, without waiting and without SIGPIPE.
///
/// # Errors
/// As send(2); [`io::ErrorKind::WouldBlock`] when nothing fits.
#[inline]
pub fn send(fd: impl AsFd, buf: &[u8]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(retry_on_intr(|| rustix::net::send(&fd, buf, flags))?)
}

/// Writes what fits of several buffers, without waiting and without SIGPIPE.
///
/// # Errors
/// As sendmsg(2); [`io::ErrorKind::WouldBlock`] when nothing fits.
#[inline]
pub fn send_vectored(fd: impl AsFd, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let mut control = SendAncillaryBuffer::default();
    Ok(retry_on_intr(|| rustix::net::sendmsg(&fd, bufs, &mut control, flags))?)
}

/// Ends both sides of the connection: the peer sees it end, and so does whatever reads here.
///
/// # Errors
/// As shutdown(2).
pub fn shutdown_both(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(fd, Shutdown::Both)?)
}

/// Ends the sending side.
///
/// # Errors
/// As shutdown(2).
pub fn shutdown_sending(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(fd, Shutdown::Write)?)
}

/// Whether the peer has ended its sending side, or the connection is broken. There may be bytes of it
/// to read all the same.
pub fn peer_has_left(fd: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // (HUP and ERR are always reported.)
    poll(&mut polled, Some(&now)).is_ok_and(|events| events > 0)
}

/// What TCP connections are set to. Zero: the kernel's own value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// SO_KEEPALIVE.
    pub keepalive: bool,
    /// TCP_KEEPIDLE: silence before the first probe.
    pub keepalive_idle: Duration,
    /// TCP_KEEPINTVL: time between probes.
    pub keepalive_interval: Duration,
    /// TCP_KEEPCNT: unanswered probes after which the connection is dead.
    pub keepalive_count: u32,
    /// TCP_USER_TIMEOUT: time that sent bytes may stay unacknowledged. Milliseconds in the kernel.
    pub user_timeout: Duration,
    /// SO_SNDBUF and SO_RCVBUF, in bytes; the kernel doubles them and cuts them at
    /// `/proc/sys/net/core/wmem_max` and `rmem_max`.
    pub buffer_bytes: usize,
}

/// Bounds what the kernel keeps of what a peer has not taken (SO_SNDBUF; it counts twice that, with its own).
///
/// # Errors
/// As setsockopt(2).
pub fn set_send_buffer(fd: impl AsFd, bytes: usize) -> io::Result<()> {
    Ok(sockopt::set_socket_send_buffer_size(fd, bytes)?)
}

/// Sets TCP_NODELAY and `options` on a TCP socket, or on an MPTCP socket those that it has:
/// TCP_USER_TIMEOUT is none of them, and [`crate::mptcp::watch`] is in its place.
///
/// # Errors
/// As setsockopt(2).
pub fn set_tcp_options(fd: impl AsFd, options: &TcpOptions) -> io::Result<()> {
    sockopt::set_tcp_nodelay(&fd, true)?;
    sockopt::set_socket_keepalive(&fd, options.keepalive)?;
    if options.keepalive {
        // The kernel counts whole seconds, and refuses zero.
        let at_least_a_second = |duration: Duration| duration.max(Duration::from_secs(1));
        if !options.keepalive_idle.is_zero() {
            known(sockopt::set_tcp_keepidle(&fd, at_least_a_second(options.keepalive_idle)))?;
        }
        if !options.keepalive_interval.is_zero() {
            known(sockopt::set_tcp_keepintvl(&fd, at_least_a_second(options.keepalive_interval)))?;
        }
        if options.keepalive_count > 0 {
            known(sockopt::set_tcp_keepcnt(&fd, options.keepalive_count))?;
        }
    }
    if !options.user_timeout.is_zero() {
        let millis = u32::try_from(options.user_timeout.as_millis()).unwrap_or(u32::MAX);
        known(sockopt::set_tcp_user_timeout(&fd, millis))?;
    }
    if options.buffer_bytes > 0 {
        sockopt::set_socket_send_buffer_size(&fd, options.buffer_bytes)?;
        sockopt::set_socket_recv_buffer_size(&fd, options.buffer_bytes)?;
    }
    Ok(())
}

/// What a socket that accepts has of [`TcpOptions`] by itself, or by the system's settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpDefaults {
    keepalive_idle: Duration,
    keepalive_interval: Duration,
    keepalive_count: u32,
    user_timeout_ms: u32,
}

impl TcpDefaults {
    /// Those of this socket. To be asked for before anything is set on it.
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn of(fd: impl AsFd) -> io::Result<Self> {
        Ok(Self {
            keepalive_idle: sockopt::tcp_keepidle(&fd)?,
            keepalive_interval: sockopt::tcp_keepintvl(&fd)?,
            keepalive_count: sockopt::tcp_keepcnt(&fd)?,
            user_timeout_ms: sockopt::tcp_user_timeout(&fd)?,
        })
    }
}

/// Sets TCP_NODELAY and `options` on a TCP socket that listens, so that connections have them that
/// complete their handshake from now on: a clone of the listener is what the kernel makes of them
/// (`inet_csk_clone_lock`). What `options` leave to the system is set to `defaults`, whatever was set
/// before. Sizes of buffers are not set: nothing brings the kernel's own choice back.
///
/// # Errors
/// As setsockopt(2).
pub fn set_inherited_tcp_options(
    listener: impl AsFd,
    options: &TcpOptions,
    defaults: &TcpDefaults,
) -> io::Result<()> {
    let or = |wanted: Duration, default| if wanted.is_zero() { default } else { wanted };
    let count = options.keepalive_count;
    let all = TcpOptions {
        keepalive_idle: or(options.keepalive_idle, defaults.keepalive_idle),
        keepalive_interval: or(options.keepalive_interval, defaults.keepalive_interval),
        keepalive_count: if count == 0 { defaults.keepalive_count } else { count },
        buffer_bytes: 0,
        ..*options
    };
    set_tcp_options(&listener, &all)?;
    if options.user_timeout.is_zero() {
        sockopt::set_tcp_user_timeout(&listener, defaults.user_timeout_ms)?;
    }
    Ok(())
}

/// Has TCP take no more while so many bytes wait to be sent, and say that it is writable again under
/// half of that (TCP_NOTSENT_LOWAT): what is kept outside of it can still be put elsewhere.
///
/// # Errors
/// As setsockopt(2).
pub fn set_unsent_bytes_max(fd: impl AsFd, bytes: u32) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &bytes.to_ne_bytes())
}

/// Sets a socket option whose value is an int.
///
/// # Errors
/// As setsockopt(2).
pub(crate) fn set_option(
    fd: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    let raw = fd.as_fd().as_raw_fd();
    let length = value.len() as libc::socklen_t;
    // SAFETY: the descriptor is open while `fd` is borrowed, and `value` is readable for `length` bytes.
    match unsafe { libc::setsockopt(raw, level, option, value.as_ptr().cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an option that rustix does not have; gives how many bytes of `value` it has filled.
///
/// # Errors
/// As getsockopt(2).
pub(crate) fn get_option(
    fd: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut [u8],
) -> io::Result<usize> {
    let raw = fd.as_fd().as_raw_fd();
    let mut length = value.len() as libc::socklen_t;
    let place = value.as_mut_ptr().cast();
    // SAFETY: the descriptor is open while `fd` is borrowed, and `value` is writable for `length` bytes. Where an
    // option's value holds pointers (MPTCP_FULL_INFO), they are to memory that lives through the call and is as
    // large as it says.
    match unsafe { libc::getsockopt(raw, level, option, place, &raw mut length) } {
        0 => Ok((length as usize).min(value.len())),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets TCP keep up to so many bytes that are not acknowledged, where the process may ask for so much and the
/// kernel's own choice ends below it: with CAP_NET_ADMIN whatever is asked for (SO_SNDBUFFORCE), else up to
/// `net.core.wmem_max`. Never less than the kernel would give by itself (`net.ipv4.tcp_wmem`). Bytes include what
/// the kernel keeps beside each segment, about half as much again.
///
/// # Errors
/// As setsockopt(2).
pub fn raise_send_buffer(fd: impl AsFd, bytes: u32) -> io::Result<()> {
    let fd = fd.as_fd();
    // (The kernel doubles it.)
    let set =
        |option, bytes: u32| set_option(fd, libc::SOL_SOCKET, option, &(bytes / 2).to_ne_bytes());
    let setting = |name: &str| -> Option<u32> {
        let text = std::fs::read_to_string(format!("/proc/sys/net/{name}")).ok()?;
        text.split_whitespace().last()?.parse().ok()
    };
    // A buffer that is set once grows no more.
    let by_itself = setting("ipv4/tcp_wmem").unwrap_or(0);
    if bytes <= by_itself {
        return Ok(());
    }
    let Err(error) = set(libc::SO_SNDBUFFORCE, bytes) else { return Ok(()) };
    let allowed = setting("core/wmem_max").map_or(0, |most| most.saturating_mul(2));
    match bytes.min(allowed) {
        most if most > by_itself => set(libc::SO_SNDBUF, most),
        _ => Err(error),
    }
}

/// MPTCP's answers to options that it does not have, or did not have yet (mptcp_setsockopt(),
/// net/mptcp/sockopt.c); TCP knows all of these.
fn known(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(rustix::io::Errno::NOPROTOOPT | rustix::io::Errno::OPNOTSUPP) => Ok(()),
        other => other,
    }
}

/// This end of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LocalAddress {
    /// IPv4 or IPv6.
    Internet(SocketAddr),
    /// A unix socket: the file that the listener is bound to, or `@` and its abstract name; none at the end that
    /// has connected.
    Unix(Option<PathBuf>),
}

/// This end of a connection.
///
/// # Errors
/// As getsockname(2); [`io::ErrorKind::Unsupported`] for other families.
pub fn local_address(fd: impl AsFd) -> io::Result<LocalAddress> {
    let address = rustix::net::getsockname(fd)?;
    if let Ok(internet) = SocketAddr::try_from(address.clone()) {
        return Ok(LocalAddress::Internet(internet));
    }
    let unix = SocketAddrUnix::try_from(address).map_err(|_| io::ErrorKind::Unsupported)?;
    let path = unix.path().map(|path| PathBuf::from(OsStr::from_bytes(path.to_bytes())));
    let of_abstract =
        |name: &[u8]| PathBuf::from(OsStr::from_bytes(&[b"@".as_slice(), name].concat()));
    // A socket without a name has an empty one here.
    let name = unix.abstract_name().filter(|name| !name.is_empty());
    let path = path.or_else(|| name.map(of_abstract));
    Ok(LocalAddress::Unix(path))
}

/// The other end of a connection over IP.
///
/// # Errors
/// As getpeername(2); [`io::ErrorKind::Unsupported`] for other families.
pub fn peer_address(fd: impl AsFd) -> io::Result<SocketAddr> {
    let address = rustix::net::getpeername(fd)?.ok_or(io::ErrorKind::NotConnected)?;
    SocketAddr::try_from(address).map_err(|_| io::ErrorKind::Unsupported.into())
}

/// The user id of the process at the other end of a unix socket, as it was when it connected.
///
/// # Errors
/// As getsockopt(2) with SO_PEERCRED.
pub fn peer_uid(fd: impl AsFd) -> io::Result<u32> {
    Ok(sockopt::socket_peercred(fd)?.uid.as_raw())
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn reading_never_waits_and_the_end_is_zero() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut buf = [0; 8];
        assert_eq!(recv(&near, &mut buf).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(send(&far, b"abc").unwrap(), 3);
        assert_eq!(recv(&near, &mut buf).unwrap(), 3);
        shutdown_sending(&far).unwrap();
        assert_eq!(recv(&near, &mut buf).unwrap(), 0);
    }

    #[test]
    fn a_send_buffer_is_raised_and_never_lowered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let before = sockopt::socket_send_buffer_size(&near).unwrap();
        raise_send_buffer(&near, 4096).unwrap();
        assert_eq!(sockopt::socket_send_buffer_size(&near).unwrap(), before);
        // Where the process has no right to it, and `wmem_max` is no more than what TCP takes by itself, it stays.
        let raised = raise_send_buffer(&near, 64 << 20).is_ok();
        let after = sockopt::socket_send_buffer_size(&near).unwrap();
        assert!(if raised { after > before } else { after == before }, "{before} {after}");
    }

    #[test]
    fn connections_have_what_is_set_on_their_listener_and_the_systems_values_afterwards() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let defaults = TcpDefaults::of(&listener).unwrap();
        let options = TcpOptions {
            keepalive: true,
            keepalive_idle: Duration::from_secs(77),
            keepalive_interval: Duration::from_secs(7),
            keepalive_count: 3,
            user_timeout: Duration::from_millis(12_345),
            buffer_bytes: 0,
        };
        let accepted = || {
            let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            listener.accept().unwrap().0
        };
        let of = |stream: &TcpStream| {
            let keepalive = sockopt::socket_keepalive(stream).unwrap();
            let nodelay = sockopt::tcp_nodelay(stream).unwrap();
            (nodelay, keepalive, TcpDefaults::of(stream).unwrap())
        };
        let before = accepted();
        set_inherited_tcp_options(&listener, &options, &defaults).unwrap();
        let wanted = TcpDefaults {
            keepalive_idle: options.keepalive_idle,
            keepalive_interval: options.keepalive_interval,
            keepalive_count: 3,
            user_timeout_ms: 12_345,
        };
        assert_eq!(of(&accepted()), (true, true, wanted));
        let plain = TcpOptions { keepalive: true, ..TcpOptions::default() };
        set_inherited_tcp_options(&listener, &plain, &defaults).unwrap();
        assert_eq!(of(&accepted()), (true, true, of(&before).2));
    }

    #[test]
    fn writing_never_waits() {
        let (near, mut far) = UnixStream::pair().unwrap();
        assert_eq!(send_vectored(&near, &[IoSlice::new(b"ab"), IoSlice::new(b"c")]).unwrap(), 3);
        let mut buf = [0; 3];
        far.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"abc");
        let error = loop {
            if let Err(error) = send(&near, &[0; 65536]) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(far);
        assert_eq!(send(&near, b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn options_reach_the_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let options = TcpOptions {
            keepalive: true,
            keepalive_idle: Duration::from_secs(30),
            keepalive_interval: Duration::from_millis(100),
            keepalive_count: 4,
            user_timeout: Duration::from_secs(12),
            buffer_bytes: 20_000,
        };
        set_tcp_options(&stream, &options).unwrap();
        assert!(stream.nodelay().unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), Duration::from_secs(30));
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), Duration::from_secs(1));
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), 4);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 12_000);
        assert_eq!(sockopt::socket_send_buffer_size(&stream).unwrap(), 40_000);
        assert_eq!(sockopt::socket_recv_buffer_size(&stream).unwrap(), 40_000);
    }

    #[test]
    fn the_kernel_takes_no_more_than_may_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_far, _) = listener.accept().unwrap();
        let fill = |stream: &TcpStream| {
            let mut total = 0;
            while let Ok(count) = send(stream, &[0; 4096]) {
                total += count;
            }
            total
        };
        set_unsent_bytes_max(&stream, 1).unwrap();
        let few = fill(&stream);
        set_unsent_bytes_max(&stream, u32::MAX).unwrap();
        assert!(fill(&stream) > 0, "after {few} bytes there was room for more");
    }

    #[test]
    fn each_end_knows_its_own_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let expected = LocalAddress::Internet(stream.local_addr().unwrap());
        assert_eq!(local_address(&stream).unwrap(), expected);
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(local_address(&near).unwrap(), LocalAddress::Unix(None));
        let path = std::env::temp_dir().join(format!("hawser-near-{}", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(local_address(&accepted).unwrap(), LocalAddress::Unix(Some(path)));
        let name = format!("hawser-near-{}", std::process::id());
        let listener = crate::listen::listen_abstract(name.as_bytes(), 1).unwrap();
        let at = Some(PathBuf::from(format!("@{name}")));
        assert_eq!(local_address(&listener).unwrap(), LocalAddress::Unix(at));
    }

    #[test]
    fn the_peer_of_a_unix_socket_is_known() {
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(peer_uid(&near).unwrap(), rustix::process::getuid().as_raw());
    }
}
