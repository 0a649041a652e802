//! The addresses of this machine's network interfaces, and the network namespace that they are in.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;

use crate::stream::get_option;

/// An address of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// The mask of its network, of the same family.
    pub mask: IpAddr,
    /// The interface (`ip link` shows this number); 0 if it has gone meanwhile.
    pub interface: u32,
    /// Whether the interface is up (IFF_UP).
    pub up: bool,
}

/// All addresses of all interfaces.
///
/// # Errors
/// As getifaddrs(3).
pub fn all() -> io::Result<Vec<InterfaceAddress>> {
    let pairs = getifaddrs()?.filter_map(|entry| {
        let (address, mask) = (address(entry.address)?, address(entry.netmask)?);
        let interface = number_of(&entry.interface_name).unwrap_or(0);
        let up = entry.flags.contains(InterfaceFlags::IFF_UP);
        let is_pair = address.is_ipv4() == mask.is_ipv4();
        is_pair.then_some(InterfaceAddress { address, mask, interface, up })
    });
    Ok(pairs.collect())
}

fn address(of: Option<SockaddrStorage>) -> Option<IpAddr> {
    let of = of?;
    let v4 = of.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| of.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

/// The interfaces over which there is a default route, by their numbers.
///
/// Source: /proc/net/route and /proc/net/ipv6_route (main table and others; routes of a namespace).
pub fn with_default_route() -> BTreeSet<u32> {
    let read = |name: &str| {
        fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default()
    };
    let (four, six) = (read("route"), read("ipv6_route"));
    let names = four.lines().filter_map(default4).chain(six.lines().filter_map(default6));
    names.filter_map(number_of).collect()
}

/// Interface, destination, gateway, flags, ..., mask (eighth), in hexadecimal.
fn default4(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let is_default = *words.get(1)? == "00000000" && *words.get(7)? == "00000000";
    is_default.then(|| words[0])
}

/// Destination, its length, ..., interface (last). The kernel's own on `lo` refuses, and is no route.
fn default6(line: &str) -> Option<&str> {
    let mut words = line.split_ascii_whitespace();
    let is_default = words.next()?.bytes().all(|byte| byte == b'0') && words.next()? == "00";
    words.last().filter(|name| is_default && *name != "lo")
}

fn number_of(name: &str) -> Option<u32> {
    if_nametoindex(name).ok()
}

/// A number that no other network namespace has had since the machine started (SO_NETNS_COOKIE,
/// Linux 5.14), of the calling thread's.
///
/// # Errors
/// As socket(2) and getsockopt(2): ENOPROTOOPT on older kernels.
pub fn namespace_cookie() -> io::Result<u64> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    let mut cookie = [0; 8];
    get_option(&socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// include/uapi/asm-generic/socket.h.
const SO_NETNS_COOKIE: libc::c_int = 71;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn loopback_is_among_them_with_its_mask() {
        let all = all().unwrap();
        let loopback = all.iter().find(|entry| entry.address == Ipv4Addr::LOCALHOST).unwrap();
        assert_eq!(loopback.mask, Ipv4Addr::new(255, 0, 0, 0));
        assert!(loopback.up && loopback.interface > 0);
    }

    #[test]
    fn default_routes_are_known_from_others() {
        let four = "eth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0";
        assert_eq!(default4(four), Some("eth0"));
        assert_eq!(default4(&four.replacen("00000000", "0002A8C0", 1)), None);
        assert_eq!(default4("Iface Destination Gateway Flags"), None);
        let zero = "0".repeat(32);
        let six = format!("{zero} 00 {zero} 00 {zero} 00000400 00000001 00000000 00000003 eth1");
        assert_eq!(default6(&six), Some("eth1"));
        assert_eq!(default6(&six.replace("eth1", "lo")), None);
        assert_eq!(default6(&six.replacen(" 00 ", " 40 ", 1)), None);
    }

    #[test]
    fn a_namespace_has_one_cookie() {
        match namespace_cookie() {
            Ok(cookie) => assert_eq!(namespace_cookie().unwrap(), cookie),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT)),
        }
    }
}
