//! The addresses of this machine's network interfaces, and the network namespace that they are in.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

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
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `first` is a valid place for the result.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: getifaddrs made this list, and it is freed only below.
        let entry = unsafe { &*next };
        // SAFETY: both pointers are null or of the list.
        let pair = unsafe { (address(entry.ifa_addr), address(entry.ifa_netmask)) };
        if let (Some(address), Some(mask)) = pair
            && address.is_ipv4() == mask.is_ipv4()
        {
            // SAFETY: the name is a NUL-terminated string of the list.
            let interface = unsafe { libc::if_nametoindex(entry.ifa_name) };
            let up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
            found.push(InterfaceAddress { address, mask, interface, up });
        }
        next = entry.ifa_next;
    }
    // SAFETY: `first` comes from getifaddrs, and nothing borrows from it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
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
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: the name is NUL-terminated and lives through the call.
    let number = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (number != 0).then_some(number)
}

/// A number that no other network namespace has had since the machine started (SO_NETNS_COOKIE,
/// Linux 5.14), of the calling thread's.
///
/// # Errors
/// As socket(2) and getsockopt(2): ENOPROTOOPT on older kernels.
pub fn namespace_cookie() -> io::Result<u64> {
    use std::os::fd::AsRawFd;
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` is writable for `length` bytes through the call.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if code == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// include/uapi/asm-generic/socket.h.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// # Safety
/// `at` is null, or points to a socket address of the size that its family has.
unsafe fn address(at: *const libc::sockaddr) -> Option<IpAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; unaligned reads make no demand on where it lies.
    unsafe {
        match i32::from(ptr::read_unaligned(at).sa_family) {
            libc::AF_INET => {
                let v4 = ptr::read_unaligned(at.cast::<libc::sockaddr_in>());
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let v6 = ptr::read_unaligned(at.cast::<libc::sockaddr_in6>());
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
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
