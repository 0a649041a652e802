//! Routes with a congestion control of their own: rtnetlink(7), RTAX_CC_ALGO and RTAX_INITCWND.
//!
//! # Model
//! A route to a prefix that goes where packets to it go already, and says besides what connections
//! over it begin with. It bears a protocol number of its own, [`PROTOCOL`]: by that it is known
//! again, and nothing else is ever removed.
//!
//! # Limits
//! Linux 4.0; CAP_NET_ADMIN. What a program sets on its socket goes before what the route says. A
//! route that goes by several ways (multipath), or to an IPv4 prefix by an IPv6 neighbour, is not
//! copied.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::attribute::{Attributes, Writer, u32_at};
use crate::netlink::{ACK, DUMP, Netlink, NetlinkError, Protocol, Question};

/// Who has made a route (`rtm_protocol`); a number that no other program uses (rt_protos of
/// iproute2).
pub const PROTOCOL: u8 = 72;

/// `struct rtmsg`.
const FIXED_BYTES: usize = 12;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
/// include/uapi/linux/rtnetlink.h.
const RTAX_INITCWND: u16 = 11;
const RTAX_CC_ALGO: u16 = 16;
const RTA_VIA: u16 = 18;
const RTA_MULTIPATH: u16 = 9;

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// The prefix of `bits` bits of an address; what comes after them is cut off. `None` if an
    /// address has not so many.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        let cut = u32::from(bits);
        let address: IpAddr = match address {
            IpAddr::V4(v4) if cut <= 32 => {
                Ipv4Addr::from_bits(v4.to_bits() & u32::MAX.checked_shl(32 - cut).unwrap_or(0))
                    .into()
            }
            IpAddr::V6(v6) if cut <= 128 => {
                Ipv6Addr::from_bits(v6.to_bits() & u128::MAX.checked_shl(128 - cut).unwrap_or(0))
                    .into()
            }
            _ => return None,
        };
        Some(Self { address, bits })
    }

    /// Reads `203.0.113.0/24`, or an address alone, which is a prefix of all of its bits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        Self::new(address, bits.unwrap_or(if address.is_ipv4() { 32 } else { 128 }))
    }

    /// Its first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The number of the interface.
    pub interface: u32,
    /// The neighbour that forwards them, if it is not the destination itself.
    pub via: Option<IpAddr>,
}

/// A route of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to.
    pub to: Prefix,
    /// How.
    pub way: Way,
    /// What connections over it use.
    pub algorithm: Option<String>,
    /// Segments that they begin with.
    pub initial_window: Option<u32>,
}

/// The routes of the calling thread's network namespace.
#[derive(Debug)]
pub struct Routes(Netlink);

impl Routes {
    /// Speaks to the kernel.
    ///
    /// # Errors
    /// See [`NetlinkError`].
    pub fn open() -> Result<Self, NetlinkError> {
        Netlink::open(Protocol::Route).map(Self)
    }

    /// Where packets to an address go now. `None` where they stay on this host or are refused, or
    /// where the way cannot be copied.
    ///
    /// # Errors
    /// ENETUNREACH where there is no route.
    pub fn way(&mut self, to: IpAddr) -> Result<Option<Way>, NetlinkError> {
        let mut attributes = Writer::default();
        put_address(&mut attributes, libc::RTA_DST, to);
        let fixed = fixed(to, if to.is_ipv4() { 32 } else { 128 }, 0);
        let question = Question::new(libc::RTM_GETROUTE, ACK, &fixed).with(&attributes);
        let answers = self.0.ask(&question)?;
        Ok(answers.first().and_then(|answer| way(&answer.payload, to.is_ipv4())))
    }

    /// Adds a route.
    ///
    /// # Errors
    /// EEXIST where there is one to this very prefix; EINVAL for an algorithm that the kernel has
    /// not got; EPERM.
    pub fn add(&mut self, route: &Route) -> Result<(), NetlinkError> {
        let mut attributes = Writer::default();
        put_address(&mut attributes, libc::RTA_DST, route.to.address);
        attributes.u32(libc::RTA_OIF, route.way.interface);
        if let Some(via) = route.way.via {
            put_address(&mut attributes, libc::RTA_GATEWAY, via);
        }
        let mut metrics = Writer::default();
        if let Some(window) = route.initial_window {
            metrics.u32(RTAX_INITCWND, window);
        }
        if let Some(name) = &route.algorithm {
            metrics.bytes(RTAX_CC_ALGO, name.as_bytes());
        }
        attributes.nested(libc::RTA_METRICS, &metrics);
        let scope =
            if route.way.via.is_some() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
        let fixed = fixed(route.to.address, route.to.bits, scope);
        let flags = ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.0.ask(&Question::new(libc::RTM_NEWROUTE, flags, &fixed).with(&attributes))?;
        Ok(())
    }

    /// Removes a route of ours.
    ///
    /// # Errors
    /// ESRCH where there is none, EPERM.
    pub fn remove(&mut self, route: &Route) -> Result<(), NetlinkError> {
        let mut attributes = Writer::default();
        put_address(&mut attributes, libc::RTA_DST, route.to.address);
        attributes.u32(libc::RTA_OIF, route.way.interface);
        // RT_SCOPE_NOWHERE is any scope to fib_table_delete() (net/ipv4/fib_trie.c).
        let fixed = fixed(route.to.address, route.to.bits, libc::RT_SCOPE_NOWHERE);
        self.0.ask(&Question::new(libc::RTM_DELROUTE, ACK, &fixed).with(&attributes))?;
        Ok(())
    }

    /// Our routes, of both families.
    ///
    /// # Errors
    /// See [`NetlinkError`].
    pub fn ours(&mut self) -> Result<Vec<Route>, NetlinkError> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut fixed = [0; FIXED_BYTES];
            fixed[0] = u8::try_from(family).unwrap_or(0);
            let answers = self.0.ask(&Question::new(libc::RTM_GETROUTE, DUMP, &fixed))?;
            found.extend(answers.iter().filter_map(|answer| ours(&answer.payload)));
        }
        Ok(found)
    }
}

/// The name of an interface.
///
/// # Errors
/// ENODEV if it has gone.
pub fn interface_name(number: u32) -> io::Result<String> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    Ok(rustix::net::netdevice::index_to_name(&socket, number)?)
}

/// `struct rtmsg` of a unicast route of ours in the main table.
fn fixed(to: IpAddr, bits: u8, scope: u8) -> [u8; FIXED_BYTES] {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let family = u8::try_from(family).unwrap_or(0);
    let table = libc::RT_TABLE_MAIN;
    [family, bits, 0, 0, table, PROTOCOL, scope, libc::RTN_UNICAST, 0, 0, 0, 0]
}

fn put_address(attributes: &mut Writer, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => attributes.bytes(kind, &address.octets()),
        IpAddr::V6(address) => attributes.bytes(kind, &address.octets()),
    }
}

fn read_address(bytes: &[u8], is_v4: bool) -> Option<IpAddr> {
    if is_v4 {
        bytes.first_chunk::<4>().map(|octets| IpAddr::from(*octets))
    } else {
        bytes.first_chunk::<16>().map(|octets| IpAddr::from(*octets))
    }
}

fn way(payload: &[u8], is_v4: bool) -> Option<Way> {
    if *payload.get(7)? != libc::RTN_UNICAST {
        return None;
    }
    let (mut interface, mut via) = (None, None);
    for attribute in Attributes::new(payload.get(FIXED_BYTES..)?) {
        match attribute.kind {
            libc::RTA_OIF => interface = attribute.u32(),
            libc::RTA_GATEWAY => via = read_address(attribute.value, is_v4),
            RTA_VIA | RTA_MULTIPATH => return None,
            _ => {}
        }
    }
    Some(Way { interface: interface?, via })
}

fn ours(payload: &[u8]) -> Option<Route> {
    let fixed = payload.get(..FIXED_BYTES)?;
    // Copies that the kernel makes for single destinations (RTM_F_CLONED) are none.
    let is_clone = u32_at(fixed, 8)? & 0x200 != 0;
    if fixed[5] != PROTOCOL || is_clone {
        return None;
    }
    let is_v4 = i32::from(fixed[0]) == libc::AF_INET;
    let (mut to, mut algorithm, mut initial_window) = (None, None, None);
    for attribute in Attributes::new(&payload[FIXED_BYTES..]) {
        match attribute.kind {
            libc::RTA_DST => to = read_address(attribute.value, is_v4),
            libc::RTA_METRICS => {
                for metric in attribute.nested() {
                    match metric.kind {
                        RTAX_CC_ALGO => algorithm = metric.text(),
                        RTAX_INITCWND => initial_window = metric.u32(),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let to = Prefix::new(to?, fixed[1])?;
    Some(Route { to, way: way(payload, is_v4)?, algorithm, initial_window })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_and_cut() {
        for (text, shown) in [
            ("203.0.113.7/24", "203.0.113.0/24"),
            ("203.0.113.7", "203.0.113.7/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:db8::1/32", "2001:db8::/32"),
            ("::1", "::1/128"),
        ] {
            assert_eq!(Prefix::parse(text).unwrap().to_string(), shown);
        }
        for text in ["203.0.113.7/33", "::/129", "host", "1.2.3.4/", "1.2.3.4/-1"] {
            assert_eq!(Prefix::parse(text), None, "{text}");
        }
    }

    #[test]
    fn loopback_has_no_way_that_could_be_copied() {
        let mut routes = Routes::open().unwrap();
        assert_eq!(routes.way(Ipv4Addr::LOCALHOST.into()).unwrap(), None);
    }

    /// In a namespace of its own, where this process may have one.
    #[test]
    fn a_route_gives_connections_their_algorithm_and_is_found_and_removed_again() {
        let made = std::thread::spawn(|| {
            if let Err(error) = crate::namespace::unshare_network() {
                eprintln!("SKIPPED: no network namespace: {error}");
                return;
            }
            let Some(algorithm) = crate::congestion::algorithms()
                .ok()
                .and_then(|found| found.allowed.into_iter().find(|name| *name != found.default))
            else {
                eprintln!("SKIPPED: no second algorithm is allowed here");
                return;
            };
            let mut routing = crate::rtnetlink::Routing::open().unwrap();
            let lo = routing.interface("lo").unwrap();
            routing.set_up(lo).unwrap();
            let mut routes = Routes::open().unwrap();
            let to = Prefix::parse("192.0.2.0/24").unwrap();
            let route = Route {
                to,
                way: Way { interface: 1, via: None },
                algorithm: Some(algorithm.clone()),
                initial_window: Some(20),
            };
            routes.add(&route).unwrap();
            assert_eq!(routes.ours().unwrap(), std::slice::from_ref(&route));
            let again = routes.add(&route).unwrap_err();
            assert_eq!(again.errno(), Some(libc::EEXIST));
            // Nobody answers, but the socket has its route once it has begun to connect.
            let default = crate::congestion::algorithms().unwrap().default;
            let socket = rustix::net::socket_with(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::STREAM,
                rustix::net::SocketFlags::NONBLOCK,
                None,
            )
            .unwrap();
            assert_eq!(crate::congestion::algorithm(&socket).unwrap(), default);
            let far = std::net::SocketAddr::from(([192, 0, 2, 1], 9));
            assert_eq!(rustix::net::connect(&socket, &far), Err(rustix::io::Errno::INPROGRESS));
            assert_eq!(crate::congestion::algorithm(&socket).unwrap(), algorithm);
            routes.remove(&route).unwrap();
            assert!(routes.ours().unwrap().is_empty());
            assert!(routes.remove(&route).is_err());
        });
        made.join().unwrap();
    }

    #[test]
    fn what_is_cut_off_is_no_route() {
        assert_eq!(ours(&[0; FIXED_BYTES - 1]), None);
        assert_eq!(way(&[0; 3], true), None);
    }
}
