//! A plain TCP socket in place of an MPTCP one that has not been used yet.
//!
//! # Limits
//! What a socket was set to is copied as far as options can be read back (the list below); an epoll
//! set that has the old socket does not get the new one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::stream::{get_option, set_option};

/// `TCP_CLOSE`: not connected, not listening.
const UNUSED: u8 = 7;

/// Options that are copied, by level and name.
const COPIED: [(libc::c_int, libc::c_int); 27] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
    (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT),
];
/// Longer than any of them.
const OPTION_BYTES_MAX: usize = 64;

/// Whether an MPTCP socket has neither been connected nor bound nor made to listen.
///
/// # Errors
/// As getsockopt(2) and getsockname(2).
pub fn is_unused(fd: impl AsFd) -> io::Result<bool> {
    let state = get(&fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let bound = rustix::net::getsockname(&fd)?;
    let port = std::net::SocketAddr::try_from(bound).map_or(0, |address| address.port());
    Ok(state.first() == Some(&UNUSED) && port == 0)
}

/// A plain TCP socket that is set as `old` is.
///
/// # Errors
/// As socket(2).
pub fn plain_like(old: impl AsFd) -> io::Result<OwnedFd> {
    let family = sockopt::socket_domain(&old)?;
    let family = if family == AddressFamily::INET6 { family } else { AddressFamily::INET };
    let new = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for (level, name) in COPIED {
        // Options of the other family, and those of later kernels, cannot be read: not set either.
        let (Ok(wanted), Ok(has)) = (get(&old, level, name), get(&new, level, name)) else {
            continue;
        };
        if wanted != has {
            let _ = set_option(&new, level, name, &wanted);
        }
    }
    let fresh = super::socket::open(family == AddressFamily::INET6)?;
    for name in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        let size = |bytes: Vec<u8>| bytes.first_chunk().copied().map(i32::from_ne_bytes);
        let of = |fd: &OwnedFd| get(fd, libc::SOL_SOCKET, name).ok().and_then(size);
        let wanted = get(&old, libc::SOL_SOCKET, name).ok().and_then(size);
        // A program that sets none has it tuned; what is read is twice what was set (socket(7)).
        if let Some(wanted) = wanted
            && Some(wanted) != of(&fresh)
        {
            let _ = set_option(&new, libc::SOL_SOCKET, name, &(wanted / 2).to_ne_bytes());
        }
    }
    rustix::fs::fcntl_setfl(&new, rustix::fs::fcntl_getfl(&old)?)?;
    Ok(new)
}

fn get(fd: &impl AsFd, level: libc::c_int, name: libc::c_int) -> io::Result<Vec<u8>> {
    let mut value = vec![0u8; OPTION_BYTES_MAX];
    let length = get_option(fd, level, name, &mut value)?;
    value.truncate(length);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_socket_is_set_as_the_other_was() {
        let old = match super::super::socket::open(false) {
            Ok(old) => old,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        assert!(is_unused(&old).unwrap());
        sockopt::set_socket_reuseaddr(&old, true).unwrap();
        sockopt::set_socket_keepalive(&old, true).unwrap();
        sockopt::set_tcp_nodelay(&old, true).unwrap();
        sockopt::set_socket_recv_buffer_size(&old, 50_000).unwrap();
        let new = plain_like(&old).unwrap();
        assert!(!super::super::socket::is_mptcp(&new).unwrap());
        assert!(sockopt::socket_reuseaddr(&new).unwrap());
        assert!(sockopt::socket_keepalive(&new).unwrap());
        assert!(sockopt::tcp_nodelay(&new).unwrap());
        assert_eq!(sockopt::socket_recv_buffer_size(&new).unwrap(), 100_000);
        let flags = rustix::fs::fcntl_getfl(&new).unwrap();
        assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
        rustix::net::bind(&old, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        assert!(!is_unused(&old).unwrap());
    }
}
