//! Names of addresses, as the system's resolver knows them.

use std::ffi::CStr;
use std::io;
use std::mem::size_of_val;
use std::net::IpAddr;

/// Bytes for a name with its NUL (NI_MAXHOST of netdb.h).
const NAME_BYTES_MAX: usize = 1025;

/// What this host calls itself; `None` where that is not text.
pub fn own_host() -> Option<String> {
    let name = rustix::system::uname();
    name.nodename().to_str().ok().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The name of an address; `None` if it has none. Asks name service: it may take seconds.
///
/// # Errors
/// As getnameinfo(3): name service fails.
pub fn name_of(address: IpAddr) -> io::Result<Option<String>> {
    match address {
        IpAddr::V4(address) => {
            // SAFETY: all fields of sockaddr_in are plain numbers, for which zero is a value.
            let mut socket: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            socket.sin_family = libc::AF_INET as libc::sa_family_t;
            socket.sin_addr.s_addr = u32::from(address).to_be();
            look_up(&socket)
        }
        IpAddr::V6(address) => {
            // SAFETY: as above.
            let mut socket: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            socket.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            socket.sin6_addr.s6_addr = address.octets();
            look_up(&socket)
        }
    }
}

/// `socket` is a socket address of the family that it names.
fn look_up<T>(socket: &T) -> io::Result<Option<String>> {
    let mut name: [libc::c_char; NAME_BYTES_MAX] = [0; NAME_BYTES_MAX];
    // SAFETY: both pointers are valid for the call, each with its length; no service is asked for.
    let code = unsafe {
        libc::getnameinfo(
            std::ptr::from_ref(socket).cast(),
            size_of_val(socket) as libc::socklen_t,
            name.as_mut_ptr(),
            NAME_BYTES_MAX as libc::socklen_t,
            std::ptr::null_mut(),
            0,
            libc::NI_NAMEREQD,
        )
    };
    match code {
        // SAFETY: on success it is NUL-terminated within its length, and lives until the end.
        0 => Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().ok().map(str::to_owned)),
        libc::EAI_NONAME => Ok(None),
        libc::EAI_SYSTEM => Err(io::Error::last_os_error()),
        code => {
            // SAFETY: gai_strerror gives a static string for every number.
            let text = unsafe { CStr::from_ptr(libc::gai_strerror(code)) };
            Err(io::Error::other(text.to_string_lossy()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, ToSocketAddrs};

    use super::*;

    #[test]
    fn the_name_of_loopback_leads_back_to_it() {
        let name = name_of(Ipv4Addr::LOCALHOST.into()).unwrap().expect("/etc/hosts has one");
        let back: Vec<_> = (name.as_str(), 0).to_socket_addrs().unwrap().map(|a| a.ip()).collect();
        assert!(back.contains(&Ipv4Addr::LOCALHOST.into()), "{name}: {back:?}");
    }
}
