//! Unix sockets of type SOCK_SEQPACKET: connections on which messages keep their boundaries.
//!
//! # Limits
//! A message that is longer than the send buffer (`/proc/sys/net/core/wmem_max` bounds it for
//! ordinary users) is refused with EMSGSIZE: protocols on these cut theirs.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, recvmsg,
};

use crate::listen::{BoundPath, SocketFile, listen_unix_with};

/// Listens, not blocking, as [`crate::listen::listen_unix`] does for streams.
///
/// # Errors
/// See there.
pub fn listen(path: &Path, file: SocketFile, backlog: i32) -> io::Result<(OwnedFd, BoundPath)> {
    listen_unix_with(SocketType::SEQPACKET, path, file, backlog)
}

/// Accepts a connection, not blocking.
///
/// # Errors
/// As accept(2); [`io::ErrorKind::WouldBlock`] when there is none.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
}

/// Connects, and waits.
///
/// # Errors
/// As socket(2) and connect(2).
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

/// Sends one message of several parts; `wait` says whether it waits for room.
///
/// # Errors
/// As sendmsg(2); [`io::ErrorKind::WouldBlock`] when there is no room.
pub fn send(fd: impl AsFd, parts: &[IoSlice<'_>], wait: bool) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | if wait { SendFlags::empty() } else { SendFlags::DONTWAIT };
    let mut control = SendAncillaryBuffer::default();
    retry_on_intr(|| rustix::net::sendmsg(&fd, parts, &mut control, flags))?;
    Ok(())
}

/// Receives one message. `Ok(0)` is the end (or a message of no bytes, which is none here).
///
/// # Errors
/// As recvmsg(2); [`io::ErrorKind::WouldBlock`] when there is none; [`io::ErrorKind::InvalidData`]
/// for one that is longer than `buf`.
pub fn recv(fd: impl AsFd, buf: &mut [u8], wait: bool) -> io::Result<usize> {
    let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    let mut control = rustix::net::RecvAncillaryBuffer::default();
    let mut parts = [io::IoSliceMut::new(buf)];
    let got = retry_on_intr(|| recvmsg(&fd, &mut parts, &mut control, flags))?;
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
    }
    Ok(got.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_kept_and_what_is_too_long_is_no_message() {
        let name = format!("hawser-packets-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let (listener, _bound) = listen(&path, SocketFile::default(), 4).unwrap();
        assert_eq!(accept(&listener).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let near = connect(&path).unwrap();
        let far = accept(&listener).unwrap();
        send(&near, &[IoSlice::new(b"a"), IoSlice::new(b"bc")], true).unwrap();
        send(&near, &[IoSlice::new(b"defgh")], true).unwrap();
        send(&near, &[IoSlice::new(b"i")], true).unwrap();
        let mut buf = [0; 4];
        assert_eq!(recv(&far, &mut buf, false).unwrap(), 3);
        assert_eq!(&buf[..3], b"abc");
        assert_eq!(recv(&far, &mut buf, false).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(recv(&far, &mut buf, false).unwrap(), 1);
        assert_eq!(recv(&far, &mut buf, false).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(near);
        assert_eq!(recv(&far, &mut buf, false).unwrap(), 0);
    }
}
