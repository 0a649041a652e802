//! MPTCP sockets of this process.
//!
//! # Limits
//! Linux 5.6 opens them; [`info`] and [`subflows`] need 5.16. An MPTCP socket refuses
//! TCP_USER_TIMEOUT, TCP_QUICKACK, TCP_SYNCNT, TCP_LINGER2, TCP_WINDOW_CLAMP and IP_TTL (6.18,
//! net/mptcp/sockopt.c).

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::information::MptcpInfo;
use crate::netlink::attribute::u32_at;
use crate::stream::get_option;
use crate::tcp_info::TcpInfo;

/// `SOL_MPTCP` (include/linux/socket.h).
const SOL_MPTCP: libc::c_int = 284;
/// `MPTCP_INFO`, `MPTCP_TCPINFO`, `MPTCP_SUBFLOW_ADDRS`, `MPTCP_FULL_INFO` (6.5).
const MPTCP_INFO: libc::c_int = 1;
const MPTCP_TCPINFO: libc::c_int = 2;
const MPTCP_SUBFLOW_ADDRS: libc::c_int = 3;
const MPTCP_FULL_INFO: libc::c_int = 4;
/// `TCP_IS_MPTCP` (include/uapi/linux/tcp.h; 5.16).
const TCP_IS_MPTCP: libc::c_int = 43;
/// `struct mptcp_subflow_data`.
const DATA_HEADER_BYTES: usize = 16;
/// What is asked of `struct tcp_info`: later kernels cut it to this, older ones fill less.
const TCP_INFO_BYTES: usize = 256;
/// `struct mptcp_subflow_addrs`: two of `struct sockaddr_storage`.
const ADDRESS_BYTES: usize = 128;
const ADDRESSES_BYTES: usize = 2 * ADDRESS_BYTES;
/// `struct mptcp_subflow_info`: an id, 4 bytes of nothing, the addresses.
const SUBFLOW_INFO_BYTES: usize = 8 + ADDRESSES_BYTES;
/// `struct mptcp_full_info` before its `struct mptcp_info`.
const FULL_HEADER_BYTES: usize = 40;
/// Room for `struct mptcp_info`.
const INFO_BYTES: usize = 128;
/// Subflows of one connection that are shown; the kernel's own path manager has at most 9 (65 from
/// 6.19 on).
const SUBFLOWS_MAX: usize = 80;

/// Why there are no MPTCP sockets here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The kernel has none: older than 5.6, or built without CONFIG_MPTCP.
    #[error("this kernel has no MPTCP (Linux 5.6 and CONFIG_MPTCP are needed)")]
    Kernel,
    /// `net.mptcp.enabled` is 0.
    #[error("MPTCP is off here (sysctl net.mptcp.enabled = 0)")]
    Disabled,
    /// Something forbids it: seccomp, SELinux, a container.
    #[error("MPTCP sockets are forbidden here (seccomp, SELinux?)")]
    Denied,
    /// Another error number.
    #[error("no MPTCP socket: {}", io::Error::from_raw_os_error(*.0))]
    Other(i32),
}

impl Unsupported {
    /// What an error of socket(2) means; `None` if it says nothing of MPTCP (EMFILE, ENOMEM).
    pub fn of(error: &io::Error) -> Option<Self> {
        match error.raw_os_error()? {
            libc::EPROTONOSUPPORT | libc::EINVAL | libc::ESOCKTNOSUPPORT => Some(Self::Kernel),
            libc::ENOPROTOOPT => Some(Self::Disabled),
            libc::EPERM | libc::EACCES => Some(Self::Denied),
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS => None,
            other => Some(Self::Other(other)),
        }
    }
}

/// An MPTCP socket that does not block and is closed by exec.
///
/// # Errors
/// As socket(2); [`Unsupported::of`] says what it means.
pub fn open(ipv6: bool) -> io::Result<OwnedFd> {
    open_as(ipv6, true)
}

/// An MPTCP socket that is closed by exec, and blocks unless `nonblocking`.
///
/// # Errors
/// As [`open`].
pub fn open_as(ipv6: bool, nonblocking: bool) -> io::Result<OwnedFd> {
    let family = if ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, nonblocking);
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::MPTCP))?)
}

/// Whether MPTCP sockets can be opened here and now.
///
/// # Errors
/// Why not.
pub fn probe() -> Result<(), Unsupported> {
    match open(false) {
        Ok(_) => Ok(()),
        Err(error) => Err(Unsupported::of(&error)
            .unwrap_or(Unsupported::Other(error.raw_os_error().unwrap_or(0)))),
    }
}

/// Listens for MPTCP, and for plain TCP; otherwise as [`crate::listen::listen_tcp`].
///
/// # Errors
/// As socket(2), bind(2) and listen(2).
pub fn listen(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    crate::listen::listen_with(open(address.is_ipv6())?, address, backlog)
}

/// Whether a socket was made as MPTCP, or accepted as such (SO_PROTOCOL). A connection that fell back
/// still is; what an MPTCP listener accepts from a peer with plain TCP is not.
///
/// # Errors
/// As getsockopt(2).
pub fn is_mptcp(fd: impl AsFd) -> io::Result<bool> {
    Ok(sockopt::socket_protocol(fd)? == Some(ipproto::MPTCP))
}

/// Whether data goes over MPTCP now (TCP_IS_MPTCP): not if it fell back. Linux 5.16.
///
/// # Errors
/// As getsockopt(2).
pub fn speaks_mptcp(fd: impl AsFd) -> io::Result<bool> {
    let mut value = [0; 4];
    let length = get_option(&fd, libc::IPPROTO_TCP, TCP_IS_MPTCP, &mut value)?;
    Ok(value[..length].iter().any(|byte| *byte != 0))
}

/// What the kernel says of a connection.
///
/// # Errors
/// As getsockopt(2): EOPNOTSUPP on a socket that is not MPTCP, or before Linux 5.16.
pub fn info(fd: impl AsFd) -> io::Result<MptcpInfo> {
    let mut bytes = [0; INFO_BYTES];
    let length = get_option(&fd, SOL_MPTCP, MPTCP_INFO, &mut bytes)?;
    MptcpInfo::decode(&bytes[..length]).ok_or_else(|| malformed("MPTCP_INFO is short"))
}

/// A subflow of a socket of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubflowOf {
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// What the kernel says of it.
    pub info: TcpInfo,
}

/// The subflows of a connection. One call from Linux 6.5 on; before, two, between which a subflow
/// may come or go: then those are given that both have.
///
/// # Errors
/// As [`info`].
pub fn subflows(fd: impl AsFd) -> io::Result<Vec<SubflowOf>> {
    match full(&fd) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        other => return other,
    }
    let infos = array(&fd, MPTCP_TCPINFO, TCP_INFO_BYTES)?;
    let addresses = array(&fd, MPTCP_SUBFLOW_ADDRS, ADDRESSES_BYTES)?;
    Ok(infos
        .chunks_exact(TCP_INFO_BYTES)
        .zip(addresses.chunks_exact(ADDRESSES_BYTES))
        .filter_map(|(info, addresses)| subflow(addresses, info))
        .collect())
}

fn subflow(addresses: &[u8], info: &[u8]) -> Option<SubflowOf> {
    let (local, remote) = addresses.split_at(ADDRESS_BYTES);
    Some(SubflowOf {
        local: address(local)?,
        remote: address(remote)?,
        info: TcpInfo::decode(info)?,
    })
}

/// `MPTCP_FULL_INFO`: `struct mptcp_full_info` says where to put the arrays.
///
/// ```text
///   0 size_tcpinfo_kernel  4 size_tcpinfo_user  8 size_sfinfo_kernel  12 size_sfinfo_user
///  16 num_subflows        20 size_arrays_user  24 subflow_info       32 tcp_info   40 mptcp_info
/// ```
fn full(fd: &impl AsFd) -> io::Result<Vec<SubflowOf>> {
    let mut infos = vec![0u8; SUBFLOWS_MAX * TCP_INFO_BYTES];
    let mut addresses = vec![0u8; SUBFLOWS_MAX * SUBFLOW_INFO_BYTES];
    let mut bytes = [0u8; FULL_HEADER_BYTES + INFO_BYTES];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(4, &(TCP_INFO_BYTES as u32).to_ne_bytes());
    put(12, &(SUBFLOW_INFO_BYTES as u32).to_ne_bytes());
    put(20, &(SUBFLOWS_MAX as u32).to_ne_bytes());
    // The kernel writes at most `size_arrays_user` elements of the sizes given to each, and both
    // vectors have that many and live through the call.
    put(24, &(addresses.as_mut_ptr().expose_provenance() as u64).to_ne_bytes());
    put(32, &(infos.as_mut_ptr().expose_provenance() as u64).to_ne_bytes());
    get_option(fd, SOL_MPTCP, MPTCP_FULL_INFO, &mut bytes)?;
    let count = u32_at(&bytes, 16).unwrap_or(0) as usize;
    Ok(addresses
        .chunks_exact(SUBFLOW_INFO_BYTES)
        .zip(infos.chunks_exact(TCP_INFO_BYTES))
        .take(count)
        .filter_map(|(entry, info)| subflow(&entry[8..], info))
        .collect())
}

/// The elements after `struct mptcp_subflow_data`, each of `size` bytes.
fn array(fd: &impl AsFd, option: libc::c_int, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; DATA_HEADER_BYTES + SUBFLOWS_MAX * size];
    bytes[..4].copy_from_slice(&(DATA_HEADER_BYTES as u32).to_ne_bytes());
    bytes[12..16].copy_from_slice(&(size as u32).to_ne_bytes());
    get_option(fd, SOL_MPTCP, option, &mut bytes)?;
    let count = u32_at(&bytes, 4).unwrap_or(0) as usize;
    let end = DATA_HEADER_BYTES + count.min(SUBFLOWS_MAX) * size;
    Ok(bytes[DATA_HEADER_BYTES..end].to_vec())
}

/// `struct sockaddr_in` or `sockaddr_in6`.
fn address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let ip: IpAddr = match i32::from(family) {
        libc::AF_INET => Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into(),
        libc::AF_INET6 => {
            IpAddr::from(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

const _: () = assert!(size_of::<libc::sockaddr_storage>() == ADDRESS_BYTES);

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn listener() -> Option<TcpListener> {
        match probe() {
            Ok(()) => Some(listen((Ipv4Addr::LOCALHOST, 0).into(), 4).unwrap()),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    #[test]
    fn a_listener_accepts_and_distinguishes_mptcp_and_plain_tcp() {
        let Some(listener) = listener() else { return };
        listener.set_nonblocking(false).unwrap();
        let address = listener.local_addr().unwrap();
        let plain = TcpStream::connect(address).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(!is_mptcp(&accepted).unwrap() && !is_mptcp(&plain).unwrap());
        assert!(!speaks_mptcp(&accepted).unwrap());
        assert!(info(&accepted).is_err());

        let multi = open(false).unwrap();
        let _ = rustix::net::connect(&multi, &address);
        let (accepted, _) = listener.accept().unwrap();
        assert!(is_mptcp(&accepted).unwrap() && speaks_mptcp(&accepted).unwrap());
        assert!(!info(&accepted).unwrap().is_fallback());
        let flows = subflows(&accepted).unwrap();
        assert_eq!(flows.len(), 1, "{flows:?}");
        assert_eq!(flows[0].local, address);
        assert!(flows[0].info.window > 0);
    }

    #[test]
    fn the_arrays_of_older_kernels_say_the_same() {
        let Some(listener) = listener() else { return };
        let multi = open(false).unwrap();
        let address = listener.local_addr().unwrap();
        let _ = rustix::net::connect(&multi, &address);
        listener.set_nonblocking(false).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let addresses = array(&accepted, MPTCP_SUBFLOW_ADDRS, ADDRESSES_BYTES).unwrap();
        let infos = array(&accepted, MPTCP_TCPINFO, TCP_INFO_BYTES).unwrap();
        let flow = subflow(&addresses, &infos).unwrap();
        assert_eq!(flow.local, address);
    }

    #[test]
    fn a_peer_without_mptcp_is_a_fallback() {
        let Some(_) = listener() else { return };
        let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let multi = open(false).unwrap();
        rustix::io::ioctl_fionbio(&multi, false).unwrap();
        rustix::net::connect(&multi, &plain.local_addr().unwrap()).unwrap();
        let _accepted = plain.accept().unwrap();
        assert!(is_mptcp(&multi).unwrap());
        assert!(!speaks_mptcp(&multi).unwrap());
        assert!(info(&multi).map_or(true, |info| info.is_fallback()));
    }
}
