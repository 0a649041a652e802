//! Descriptors that go from one process to another over a unix socket, with bytes.
//!
//! # Limits
//! [`DESCRIPTORS_MAX`] at once; the kernel takes up to 253 (SCM_MAX_FD).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors that go with one call, at most.
pub const DESCRIPTORS_MAX: usize = 64;

/// Writes what fits of `bytes`, without waiting; the descriptors go with the first of them. Returns how many
/// bytes.
///
/// # Errors
/// As sendmsg(2); [`io::ErrorKind::WouldBlock`] when nothing fits; [`io::ErrorKind::InvalidInput`] for more
/// than [`DESCRIPTORS_MAX`].
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    // The space has room for two more where the compiler happens to align it: what goes in does not tell.
    if fds.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags))?)
}

/// Reads what is there, without waiting, and takes the descriptors that come with it, which are closed by
/// exec(2). `Ok(0)` is the end. Descriptors for which there is no room (RLIMIT_NOFILE, or more than
/// [`DESCRIPTORS_MAX`]) are lost: the bytes say how many there should be.
///
/// # Errors
/// As recvmsg(2); [`io::ErrorKind::WouldBlock`] when nothing is there.
pub fn receive(socket: impl AsFd, buf: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buf)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = retry_on_intr(|| recvmsg(&socket, &mut parts, &mut control, flags))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_come_with_the_bytes_that_they_were_sent_with() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut one, other) = UnixStream::pair().unwrap();
        assert_eq!(send(&near, b"abc", &[other.as_fd(), other.as_fd()]).unwrap(), 3);
        assert_eq!(send(&near, b"de", &[]).unwrap(), 2);
        drop(other);
        let (mut buf, mut fds) = ([0; 2], Vec::new());
        assert_eq!(receive(&far, &mut buf, &mut fds).unwrap(), 2);
        assert_eq!((&buf, fds.len()), (b"ab", 2));
        let mut rest = [0; 8];
        assert_eq!(receive(&far, &mut rest, &mut fds).unwrap(), 3);
        assert_eq!((&rest[..3], fds.len()), (&b"cde"[..], 2));
        one.write_all(b"x").unwrap();
        let mut passed = UnixStream::from(fds.remove(0));
        passed.read_exact(&mut buf[..1]).unwrap();
        assert_eq!(buf[0], b'x');
        let empty = receive(&far, &mut rest, &mut fds).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        drop(near);
        assert_eq!(receive(&far, &mut rest, &mut fds).unwrap(), 0);
    }

    #[test]
    fn too_many_descriptors_are_refused_before_anything_is_sent() {
        let (near, far) = UnixStream::pair().unwrap();
        let fds = vec![near.as_fd(); DESCRIPTORS_MAX + 1];
        assert_eq!(send(&near, b"a", &fds).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let (mut buf, mut none) = ([0; 1], Vec::new());
        let empty = receive(&far, &mut buf, &mut none).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
    }
}
