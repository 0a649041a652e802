//! The addresses of this machine's network interfaces.

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
            found.push(InterfaceAddress { address, mask });
        }
        next = entry.ifa_next;
    }
    // SAFETY: `first` comes from getifaddrs, and nothing borrows from it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

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
        let loopback = InterfaceAddress {
            address: Ipv4Addr::LOCALHOST.into(),
            mask: Ipv4Addr::new(255, 0, 0, 0).into(),
        };
        assert!(all().unwrap().contains(&loopback));
    }
}
