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
/// Of `rtm_flags`: answer with the route itself, not with what it makes of one address.
const RTM_F_FIB_MATCH: u32 = 0x2000;
/// A copy that the kernel makes for a single destination.
const RTM_F_CLONED: u32 = 0x200;

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

    /// How many bits its addresses have in common.
    #[must_use]
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether an address is one of its.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && Self::new(address, self.bits) == Some(*self)
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

/// The way of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where packets to it go.
    pub way: Way,
    /// The prefix of the route that says so. None: the kernel does not tell (before Linux 4.13; 4.15 for
    /// IPv6).
    pub of: Option<Prefix>,
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
    pub fn way(&mut self, to: IpAddr) -> Result<Option<Found>, NetlinkError> {
        let mut attributes = Writer::default();
        put_address(&mut attributes, libc::RTA_DST, to);
        let mut fixed = fixed(to, if to.is_ipv4() { 32 } else { 128 }, 0);
        fixed[8..].copy_from_slice(&RTM_F_FIB_MATCH.to_ne_bytes());
        let question = Question::new(libc::RTM_GETROUTE, ACK, &fixed).with(&attributes);
        let answers = self.0.ask(&question)?;
        let found = |payload: &[u8]| {
            let way = way(payload, to.is_ipv4())?;
            let of = destination(payload).filter(|_| !is_clone(payload));
            Some(Found { way, of })
        };
        Ok(answers.first().and_then(|answer| found(&answer.payload)))
    }

    /// The routes of the main table to other hosts, and the way of each; none where there are several.
    ///
    /// # Errors
    /// See [`NetlinkError`].
    pub fn all(&mut self) -> Result<Vec<(Prefix, Option<Way>)>, NetlinkError> {
        let one = |payload: &[u8]| {
            let fixed = payload.get(..FIXED_BYTES)?;
            let is_one = fixed[4] == libc::RT_TABLE_MAIN && fixed[7] == libc::RTN_UNICAST;
            let is_v4 = i32::from(fixed[0]) == libc::AF_INET;
            let to = destination(payload).filter(|_| is_one && !is_clone(payload))?;
            Some((to, way(payload, is_v4)))
        };
        Ok(self.dump()?.iter().filter_map(|payload| one(payload)).collect())
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
        Ok(self.dump()?.iter().filter_map(|payload| ours(payload)).collect())
    }

    fn dump(&mut self) -> Result<Vec<Vec<u8>>, NetlinkError> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut fixed = [0; FIXED_BYTES];
            fixed[0] = u8::try_from(family).unwrap_or(0);
            let answers = self.0.ask(&Question::new(libc::RTM_GETROUTE, DUMP, &fixed))?;
            found.extend(answers.into_iter().map(|answer| answer.payload));
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

fn is_clone(payload: &[u8]) -> bool {
    u32_at(payload, 8).is_some_and(|flags| flags & RTM_F_CLONED != 0)
}

/// The prefix of a route; that of the default route is not said.
fn destination(payload: &[u8]) -> Option<Prefix> {
    let fixed = payload.get(..FIXED_BYTES)?;
    let is_v4 = i32::from(fixed[0]) == libc::AF_INET;
    let mut attributes = Attributes::new(&payload[FIXED_BYTES..]);
    let to = attributes.find(|attribute| attribute.kind == libc::RTA_DST);
    let any = || if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let address = to.map_or_else(|| Some(any()), |to| read_address(to.value, is_v4))?;
    Prefix::new(address, fixed[1])
}

fn ours(payload: &[u8]) -> Option<Route> {
    let fixed = payload.get(..FIXED_BYTES)?;
    if fixed[5] != PROTOCOL || is_clone(payload) {
        return None;
    }
    let is_v4 = i32::from(fixed[0]) == libc::AF_INET;
    let (mut algorithm, mut initial_window) = (None, None);
    let metrics = Attributes::new(&payload[FIXED_BYTES..])
        .filter(|attribute| attribute.kind == libc::RTA_METRICS);
    for metric in metrics.flat_map(|attribute| attribute.nested()) {
        match metric.kind {
            RTAX_CC_ALGO => algorithm = metric.text(),
            RTAX_INITCWND => initial_window = metric.u32(),
            _ => {}
        }
    }
    let to = destination(payload)?;
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

    #[test]
    fn the_route_that_has_an_address_is_found_with_its_prefix() {
        let made = std::thread::spawn(|| {
            if let Err(error) = crate::namespace::unshare_network() {
                eprintln!("SKIPPED: no network namespace: {error}");
                return;
            }
            let own = crate::namespace::own_network().unwrap();
            let mut routing = crate::rtnetlink::Routing::open().unwrap();
            routing.add_pair(c"left", c"right", &own).unwrap();
            let [left, right] = ["left", "right"].map(|name| {
                let interface = routing.interface(name).unwrap();
                routing.set_up(interface).unwrap();
                interface
            });
            let main = crate::rtnetlink::MAIN_TABLE;
            let any = (Ipv4Addr::UNSPECIFIED.into(), 0);
            routing.add_route(any, left, None, main).unwrap();
            routing.add_route(([10, 78, 0, 0].into(), 24), right, None, main).unwrap();
            routing.add_route((Ipv6Addr::UNSPECIFIED.into(), 0), left, None, main).unwrap();
            let mut routes = Routes::open().unwrap();
            let number = |name: &str| {
                let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
                rustix::net::netdevice::name_to_index(&socket, name).unwrap()
            };
            let found = |interface: &str, of: &str| {
                let way = Way { interface: number(interface), via: None };
                Some(Found { way, of: Prefix::parse(of) })
            };
            for (to, expected) in [
                ("10.78.0.0", found("right", "10.78.0.0/24")),
                ("10.78.1.0", found("left", "0.0.0.0/0")),
                ("2001:db8::1", found("left", "::/0")),
            ] {
                assert_eq!(routes.way(to.parse().unwrap()).unwrap(), expected, "{to}");
            }
            let all = routes.all().unwrap();
            let part =
                (Prefix::parse("10.78.0.0/24").unwrap(), found("right", "::").map(|f| f.way));
            assert!(all.contains(&part), "{all:?}");
        });
        made.join().unwrap();
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
