//! TCP connections from a chosen source port, and their ends.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::stream::set_option;

/// Begins to connect, from `local` and one of its ports, without waiting: the socket is writable once
/// [`dial_result`] knows. SO_REUSEADDR, so that a port whose last connection is in TIME_WAIT may be
/// had for another destination.
///
/// # Errors
/// As socket(2), bind(2) and connect(2); [`io::ErrorKind::AddrInUse`] and
/// [`io::ErrorKind::AddrNotAvailable`] if the port cannot be had.
pub fn dial_from(local: IpAddr, port: u16, to: SocketAddr) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddr::new(local, port))?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Binds a TCP socket over IPv4 to an address and leaves the choice of its port to connect(2)
/// (IP_BIND_ADDRESS_NO_PORT): a port is then taken for the pair of addresses, not from all
/// connections of `local`.
///
/// # Errors
/// As setsockopt(2) and bind(2).
pub fn bind_address(fd: impl AsFd, local: Ipv4Addr) -> io::Result<()> {
    set_option(&fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1u32.to_ne_bytes())?;
    rustix::net::bind(fd, &SocketAddr::new(local.into(), 0))?;
    Ok(())
}

/// How a connection that is writable, or broken, was established.
///
/// # Errors
/// As connect(2).
pub fn dial_result(fd: impl AsFd) -> io::Result<()> {
    match sockopt::socket_error(fd)? {
        Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// As [`dial_from`] any port of `local`, but waits until it is established, and reads of it wait.
///
/// # Errors
/// As connect(2); [`io::ErrorKind::TimedOut`] after `most`.
pub fn dial_waiting(local: IpAddr, to: SocketAddr, most: Duration) -> io::Result<TcpStream> {
    let fd = dial_from(local, 0, to)?;
    let most = Timespec::try_from(most).map_err(io::Error::other)?;
    if poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&most))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    dial_result(&fd)?;
    let stream = TcpStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Closes a connection with a reset: what is under way is given up, and there is no TIME_WAIT.
pub fn close_with_reset(fd: OwnedFd) {
    // If it cannot be set, the connection ends the other way.
    let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::process::wait_for;
    use crate::stream;

    fn established(fd: &OwnedFd) -> io::Result<()> {
        poll(&mut [PollFd::new(fd, PollFlags::OUT)], None)?;
        dial_result(fd)
    }

    /// A port that is free just now.
    fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn it_comes_from_the_port_that_was_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free_port();
        let here = "127.0.0.1".parse().unwrap();
        let near = dial_from(here, port, listener.local_addr().unwrap()).unwrap();
        let (far, from) = listener.accept().unwrap();
        established(&near).unwrap();
        assert_eq!(from.port(), port);
        close_with_reset(near);
        wait_for(&[far.as_fd()]).unwrap();
        let error = stream::recv(&far, &mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn an_address_is_bound_before_there_is_a_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let flags = SocketFlags::CLOEXEC;
        let near =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        let local = Ipv4Addr::new(127, 64, 3, 7);
        bind_address(&near, local).unwrap();
        let bound = SocketAddr::try_from(rustix::net::getsockname(&near).unwrap()).unwrap();
        assert_eq!(bound, SocketAddr::new(local.into(), 0));
        rustix::net::connect(&near, &listener.local_addr().unwrap()).unwrap();
        let (_, from) = listener.accept().unwrap();
        assert_eq!(from.ip(), local);
        assert_ne!(from.port(), 0);
    }

    #[test]
    fn an_absent_server_shows_in_the_result() {
        let here = "127.0.0.1".parse().unwrap();
        let to = SocketAddr::new(here, free_port());
        let refused = dial_from(here, 0, to).and_then(|fd| established(&fd)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let refused = dial_waiting(here, to, Duration::from_secs(5)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
