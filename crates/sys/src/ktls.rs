//! kTLS: the kernel makes and reads the TLS records of a TCP connection (Linux's
//! Documentation/networking/tls.rst, linux/tls.h).
//!
//! # Model
//! [`attach`] changes nothing yet, except that the socket takes [`Keys`]: from those on send(2) takes, and recv(2)
//! gives, what is in the records. A record that has no data (an alert, a message of the handshake) ends a
//! recv(2) before it, and the next one fails with [`NOT_DATA`]: [`receive_record`] gives it.
//!
//! # Limits
//! Not MPTCP. TLS 1.2 since Linux 4.13 (to send) and 4.17 (to receive), TLS 1.3 since 5.1, ChaCha20-Poly1305 since
//! 5.11. The module `tls` is loaded for a process with CAP_NET_ADMIN. Keys cannot change before 6.14.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use crate::stream::set_option;

/// What recv(2) fails with where the next record has no data.
pub const NOT_DATA: i32 = libc::EIO;

/// The type of a record (RFC 8446, section 5.1).
pub type RecordType = u8;

/// Bytes of a nonce, of all [`Cipher`]s.
pub const NONCE_BYTES: usize = 12;
/// Bytes of the nonce that are a salt, where the cipher has one.
const SALT_BYTES: usize = 4;

/// An algorithm that keys are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cipher {
    /// Key of 16 bytes.
    Aes128Gcm,
    /// Key of 32 bytes.
    Aes256Gcm,
    /// Key of 32 bytes.
    ChaCha20Poly1305,
}

/// The records that keys are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Those that are sent.
    Out,
    /// Those that are received.
    In,
}

/// The keys of one way.
pub struct Keys<'a> {
    /// As in records: 0x0303 for TLS 1.2, 0x0304 for TLS 1.3.
    pub version: u16,
    /// What encrypts.
    pub cipher: Cipher,
    /// Its key.
    pub key: &'a [u8],
    /// What the nonce of each record is made of.
    pub nonce: &'a [u8; NONCE_BYTES],
    /// The number of the next record.
    pub sequence: u64,
}

impl Keys<'_> {
    /// As `struct tls12_crypto_info_...`: bytes alone after two numbers, without gaps.
    fn to_bytes(&self) -> Vec<u8> {
        let (number, salt_bytes) = match self.cipher {
            Cipher::Aes128Gcm => (libc::TLS_CIPHER_AES_GCM_128, SALT_BYTES),
            Cipher::Aes256Gcm => (libc::TLS_CIPHER_AES_GCM_256, SALT_BYTES),
            Cipher::ChaCha20Poly1305 => (libc::TLS_CIPHER_CHACHA20_POLY1305, 0),
        };
        let (salt, iv) = self.nonce.split_at(salt_bytes);
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&self.version.to_ne_bytes());
        bytes.extend_from_slice(&number.to_ne_bytes());
        for part in [iv, self.key, salt, &self.sequence.to_be_bytes()] {
            bytes.extend_from_slice(part);
        }
        bytes
    }
}

/// Makes a socket one that takes keys.
///
/// # Errors
/// ENOENT: this kernel has no kTLS, or its module is not loaded. ENOTCONN: it has, and the socket is not connected.
/// ENOPROTOOPT, EOPNOTSUPP: the socket is no TCP socket.
pub fn attach(socket: impl AsFd) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls")
}

/// Sets the keys of one way, once.
///
/// # Errors
/// EINVAL, ENOENT: the kernel does not have the cipher, or not of this version.
pub fn set_keys(socket: impl AsFd, way: Way, keys: &Keys<'_>) -> io::Result<()> {
    let option = match way {
        Way::Out => libc::TLS_TX,
        Way::In => libc::TLS_RX,
    };
    set_option(socket, libc::SOL_TLS, option, &keys.to_bytes())
}

/// Space for the type of a record, aligned as a header must be.
#[repr(C)]
union Control {
    _align: libc::cmsghdr,
    bytes: [u8; 32], // CMSG_SPACE(1) is 24
}

/// Reads what is there of the next record, whatever its type, without waiting. Its type, and how many bytes.
///
/// # Errors
/// As recvmsg(2); [`io::ErrorKind::WouldBlock`] when there is nothing, [`io::ErrorKind::UnexpectedEof`] at the end;
/// EBADMSG: it cannot be decrypted.
pub fn receive_record(socket: impl AsFd, buf: &mut [u8]) -> io::Result<(RecordType, usize)> {
    let mut control = MaybeUninit::<Control>::zeroed();
    let mut part = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: a msghdr of zeros is valid: it has no address, no parts and no control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of::<Control>() as _;
    let raw = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open; `message` points to `part`, which is `buf`, and to `control`, with their
    // lengths, and both live through the call.
    let read = unsafe { libc::recvmsg(raw, &raw mut message, libc::MSG_DONTWAIT) };
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `message` is as the kernel has left it: its control data are in `control`, as long as it says.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if first.is_null() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: CMSG_FIRSTHDR gives a whole, aligned header within `control`, or null.
    let header = unsafe { &*first };
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_TLS, libc::TLS_GET_RECORD_TYPE) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: that kind of control data is one byte (put_cmsg() in net/tls/tls_sw.c).
    let kind = unsafe { *libc::CMSG_DATA(first) };
    Ok((kind, read as usize))
}

/// Sends a record of this type, without waiting.
///
/// # Errors
/// As sendmsg(2); [`io::ErrorKind::WouldBlock`] when nothing fits.
pub fn send_record(socket: impl AsFd, kind: RecordType, bytes: &[u8]) -> io::Result<usize> {
    let mut control = MaybeUninit::<Control>::zeroed();
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a msghdr of zeros is valid: it has no address, no parts and no control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: it only computes.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(1) } as _;
    // SAFETY: `control` is aligned for a header, and has room for CMSG_SPACE(1) bytes: one header and one byte.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        (*first).cmsg_level = libc::SOL_TLS;
        (*first).cmsg_type = libc::TLS_SET_RECORD_TYPE;
        (*first).cmsg_len = libc::CMSG_LEN(1) as _;
        ptr::write(libc::CMSG_DATA(first), kind);
    }
    let raw = socket.as_fd().as_raw_fd();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the descriptor is open; `message` points to `part`, which is `bytes` and only read, and to
    // `control`, with their lengths, and both live through the call.
    let sent = unsafe { libc::sendmsg(raw, &raw const message, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn keys_are_laid_out_as_the_kernel_reads_them() {
        let nonce = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let keys = |cipher, key| Keys { version: 0x0304, cipher, key, nonce, sequence: 0x0102 };
        let aes = keys(Cipher::Aes128Gcm, &[7; 16]).to_bytes();
        assert_eq!(aes.len(), mem::size_of::<libc::tls12_crypto_info_aes_gcm_128>());
        assert_eq!(&aes[..4], [0x0304u16.to_ne_bytes(), 51u16.to_ne_bytes()].concat());
        assert_eq!(&aes[4..12], [5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(&aes[12..28], [7; 16]);
        assert_eq!(&aes[28..], [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 1, 2]);
        let long = keys(Cipher::Aes256Gcm, &[7; 32]).to_bytes();
        assert_eq!(long.len(), mem::size_of::<libc::tls12_crypto_info_aes_gcm_256>());
        let chacha = keys(Cipher::ChaCha20Poly1305, &[7; 32]).to_bytes();
        assert_eq!(chacha.len(), mem::size_of::<libc::tls12_crypto_info_chacha20_poly1305>());
        assert_eq!(&chacha[4..16], nonce);
    }

    /// One end has another's keys: what it sends, by the kernel, the other one reads.
    #[test]
    fn records_of_each_type_cross_a_connection_where_the_kernel_has_ktls() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        if let Err(error) = attach(&near) {
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}");
            eprintln!("skipped: this kernel has no kTLS");
            return;
        }
        attach(&far).unwrap();
        let (key, nonce) = (&[9; 16], &[3; NONCE_BYTES]);
        let keys = Keys { version: 0x0304, cipher: Cipher::Aes128Gcm, key, nonce, sequence: 5 };
        set_keys(&near, Way::Out, &keys).unwrap();
        set_keys(&far, Way::In, &keys).unwrap();
        assert_eq!(crate::stream::send(&near, b"data").unwrap(), 4);
        assert_eq!(send_record(&near, 21, &[1, 0]).unwrap(), 2);
        let mut buf = [0; 16];
        assert_eq!(crate::stream::recv(&far, &mut buf).unwrap(), 4);
        let refused = crate::stream::recv(&far, &mut buf).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(NOT_DATA));
        assert_eq!(receive_record(&far, &mut buf).unwrap(), (21, 2));
        assert_eq!(&buf[..2], [1, 0]);
        drop(near);
        let end = receive_record(&far, &mut buf).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }
}
