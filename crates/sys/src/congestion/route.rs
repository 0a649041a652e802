//! Routes with a congestion control of their own: rtnetlink(7), RTAX_CC_ALGO and RTAX_INITCWND.
//!
//! # Model
//! A route to a prefix that goes where packets to it go already, and says besides what connections
//! over it begin with. It is a copy of the route that has these packets now: interface, neighbour, source
//! address, realm and metrics (MTU and the like). It has a protocol number of its own, [`PROTOCOL`]: by
//! that it is known again, and nothing else is ever removed.
//!
//! # Invariants
//! * a way is never that of a route of ours: a copy of a copy would keep a neighbour that has gone
//!
//! # Limits
//! Linux 4.0; CAP_NET_ADMIN. What a program sets on its socket goes before what the route says. A
//! route that goes by several ways (multipath), to an IPv4 prefix by an IPv6 neighbour, or into a tunnel
//! that it describes itself (`encap`), is not copied. Before Linux 4.13 (4.15 for IPv6) the kernel does not
//! say which metrics are the route's: they are not copied.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::attribute::{Attribute, Attributes, Writer, u32_at};
use crate::netlink::{ACK, DUMP, Netlink, NetlinkError, Protocol, Question};

/// Who has made a route (`rtm_protocol`); a number that no other program uses (rt_protos of
/// iproute2).
pub const PROTOCOL: u8 = 72;

/// `struct rtmsg`.
const FIXED_BYTES: usize = 12;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
/// include/uapi/linux/rtnetlink.h.
const RTAX_LOCK: u16 = 1;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;
const RTAX_INITCWND: u16 = 11;
const RTAX_CC_ALGO: u16 = 16;
const RTA_VIA: u16 = 18;
const RTA_MULTIPATH: u16 = 9;
const RTA_ENCAP: u16 = 22;
/// Of `rtm_flags`: the neighbour is on the link, whatever its address.
const RTNH_F_ONLINK: u32 = 4;
/// Of `rtm_flags`: the way is not used now (RTNH_F_DEAD, RTNH_F_LINKDOWN).
const RTNH_F_UNUSED: u32 = 1 | 16;
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

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Where packets go, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// The number of the interface.
    pub interface: u32,
    /// The neighbour that forwards them, if it is not the destination itself.
    pub via: Option<IpAddr>,
    /// Whether that neighbour is on the link although no prefix of the interface has its address.
    pub on_link: bool,
    /// The address that they are sent from, if the route says it.
    pub source: Option<IpAddr>,
    /// The realm (RTA_FLOW), if it has one.
    pub realm: Option<u32>,
    /// What connections over it begin with.
    pub metrics: Metrics,
}

/// What a route says of connections over it (RTA_METRICS).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Their algorithm.
    pub algorithm: Option<String>,
    /// Segments that they begin with.
    pub initial_window: Option<u32>,
    /// All others by their number (RTAX_*), as the kernel has them.
    others: BTreeMap<u16, u32>,
}

impl Metrics {
    fn read(attribute: &Attribute<'_>) -> Self {
        let mut metrics = Self::default();
        for metric in attribute.nested() {
            match metric.kind {
                RTAX_CC_ALGO => metrics.algorithm = metric.text(),
                RTAX_INITCWND => metrics.initial_window = metric.u32(),
                kind => metrics.others.extend(metric.u32().map(|value| (kind, value))),
            }
        }
        metrics
    }

    fn write(&self) -> Writer {
        let mut metrics = Writer::default();
        for (kind, value) in &self.others {
            metrics.u32(*kind, *value);
        }
        if let Some(window) = self.initial_window {
            metrics.u32(RTAX_INITCWND, window);
        }
        if let Some(name) = &self.algorithm {
            metrics.bytes(RTAX_CC_ALGO, name.as_bytes());
        }
        metrics
    }
}

impl fmt::Display for Way {
    /// As `ip route` has it, without the interface, of which this has the number alone. Metrics that have
    /// nothing to do with sizes are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.on_link {
            f.write_str(" onlink")?;
        }
        if let Some(source) = self.source {
            write!(f, " src {source}")?;
        }
        let Metrics { algorithm, initial_window, others } = &self.metrics;
        let is_locked =
            |kind: u16| others.get(&RTAX_LOCK).is_some_and(|locked| locked & 1 << kind != 0);
        for (name, kind) in [("mtu", RTAX_MTU), ("advmss", RTAX_ADVMSS)] {
            if let Some(value) = others.get(&kind) {
                let lock = if is_locked(kind) { " lock" } else { "" };
                write!(f, " {name}{lock} {value}")?;
            }
        }
        if let Some(algorithm) = algorithm {
            write!(f, " congctl {algorithm}")?;
        }
        if let Some(window) = initial_window {
            write!(f, " initcwnd {window}")?;
        }
        Ok(())
    }
}

/// Why a way cannot be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCopy {
    /// Packets stay on this host, or are refused.
    Nowhere,
    /// They go by several ways, or by a neighbour of the other family.
    Several,
    /// They go into a tunnel that the route itself describes (`encap`).
    Tunnel,
}

/// The way of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where packets to it go.
    pub way: Way,
    /// The prefix of that route. None: the kernel does not give it (before Linux 4.13; 4.15 for
    /// IPv6).
    pub of: Option<Prefix>,
}

/// A route of the main table that Hawser has not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Where to.
    pub to: Prefix,
    /// How.
    pub way: Result<Way, NoCopy>,
    /// Of several to one prefix the one with the least goes first.
    priority: u32,
    /// Whether its interface or neighbour is there.
    is_used: bool,
}

/// A route of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to.
    pub to: Prefix,
    /// How, and what connections over it begin with.
    pub way: Way,
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

    /// Where packets to an address go now, or would without routes of ours.
    ///
    /// # Errors
    /// ENETUNREACH where there is no route.
    pub fn way(&mut self, to: IpAddr) -> Result<Result<Found, NoCopy>, NetlinkError> {
        let mut attributes = Writer::default();
        put_address(&mut attributes, libc::RTA_DST, to);
        let mut fixed = fixed(to, if to.is_ipv4() { 32 } else { 128 }, 0);
        fixed[8..].copy_from_slice(&RTM_F_FIB_MATCH.to_ne_bytes());
        let question = Question::new(libc::RTM_GETROUTE, ACK, &fixed).with(&attributes);
        let answers = self.0.ask(&question)?;
        let Some(payload) = answers.first().map(|answer| &answer.payload) else {
            return Ok(Err(NoCopy::Nowhere));
        };
        if payload.get(5) == Some(&PROTOCOL) {
            return without_ours(&self.others()?, to);
        }
        let of = destination(payload).filter(|_| !is_clone(payload));
        Ok(way(payload).map(|way| Found { way, of }))
    }

    /// The routes of the main table that are not ours.
    ///
    /// # Errors
    /// See [`NetlinkError`].
    pub fn others(&mut self) -> Result<Vec<Other>, NetlinkError> {
        Ok(self.dump()?.iter().filter_map(|payload| other(payload)).collect())
    }

    /// Adds a route.
    ///
    /// # Errors
    /// EEXIST where there is one to this very prefix; EINVAL for an algorithm that the kernel has
    /// not got; EPERM.
    pub fn add(&mut self, route: &Route) -> Result<(), NetlinkError> {
        let mut attributes = Writer::default();
        put_address(&mut attributes, libc::RTA_DST, route.to.address);
        let Way { interface, via, on_link, source, realm, metrics } = &route.way;
        attributes.u32(libc::RTA_OIF, *interface);
        if let Some(via) = via {
            put_address(&mut attributes, libc::RTA_GATEWAY, *via);
        }
        if let Some(source) = source {
            put_address(&mut attributes, libc::RTA_PREFSRC, *source);
        }
        if let Some(realm) = realm {
            attributes.u32(libc::RTA_FLOW, *realm);
        }
        attributes.nested(libc::RTA_METRICS, &metrics.write());
        let scope = if via.is_some() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
        let mut fixed = fixed(route.to.address, route.to.bits, scope);
        if *on_link {
            fixed[8..].copy_from_slice(&RTNH_F_ONLINK.to_ne_bytes());
        }
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

    /// Our routes in the main table, of both families.
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

/// The way of a route.
fn way(payload: &[u8]) -> Result<Way, NoCopy> {
    let fixed = payload.get(..FIXED_BYTES).ok_or(NoCopy::Nowhere)?;
    if fixed[7] != libc::RTN_UNICAST {
        return Err(NoCopy::Nowhere);
    }
    let is_v4 = is_v4(fixed);
    let on_link = u32_at(fixed, 8).is_some_and(|flags| flags & RTNH_F_ONLINK != 0);
    let mut way = Way { on_link, ..Way::default() };
    for attribute in Attributes::new(&payload[FIXED_BYTES..]) {
        match attribute.kind {
            libc::RTA_OIF => way.interface = attribute.u32().unwrap_or(0),
            libc::RTA_GATEWAY => way.via = read_address(attribute.value, is_v4),
            libc::RTA_PREFSRC => way.source = read_address(attribute.value, is_v4),
            libc::RTA_FLOW => way.realm = attribute.u32(),
            // Those of a clone may be what was learnt of the path, for a time.
            libc::RTA_METRICS if !is_clone(payload) => way.metrics = Metrics::read(&attribute),
            RTA_VIA | RTA_MULTIPATH => return Err(NoCopy::Several),
            RTA_ENCAP => return Err(NoCopy::Tunnel),
            _ => {}
        }
    }
    // Without an interface it has several, by nexthops of their own (RTA_NH_ID).
    if way.interface == 0 { Err(NoCopy::Several) } else { Ok(way) }
}

/// The way of an address by the routes that are not ours: the longest prefix, of these the least priority.
/// If several are left, the kernel would choose by its knowledge of the neighbours.
fn without_ours(others: &[Other], to: IpAddr) -> Result<Result<Found, NoCopy>, NetlinkError> {
    let order = |other: &Other| (std::cmp::Reverse(other.to.bits), other.priority);
    let has_it = |other: &&Other| other.is_used && other.to.contains(to);
    let Some(first) = others.iter().filter(has_it).map(order).min() else {
        let source = io::Error::from_raw_os_error(libc::ENETUNREACH);
        return Err(NetlinkError::Refused { source, words: None });
    };
    let mut found = others.iter().filter(has_it).filter(|other| order(other) == first);
    let (Some(other), None) = (found.next(), found.next()) else {
        return Ok(Err(NoCopy::Several));
    };
    Ok(other.way.clone().map(|way| Found { way, of: Some(other.to) }))
}

fn is_v4(fixed: &[u8]) -> bool {
    i32::from(fixed[0]) == libc::AF_INET
}

fn is_clone(payload: &[u8]) -> bool {
    u32_at(payload, 8).is_some_and(|flags| flags & RTM_F_CLONED != 0)
}

/// The prefix of a route; that of the default route is not said.
fn destination(payload: &[u8]) -> Option<Prefix> {
    let fixed = payload.get(..FIXED_BYTES)?;
    let is_v4 = is_v4(fixed);
    let mut attributes = Attributes::new(&payload[FIXED_BYTES..]);
    let to = attributes.find(|attribute| attribute.kind == libc::RTA_DST);
    let any = || if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let address = to.map_or_else(|| Some(any()), |to| read_address(to.value, is_v4))?;
    Prefix::new(address, fixed[1])
}

/// `rtm_protocol` of a route of the main table; `None` of those of other tables, and of copies that the
/// kernel makes.
fn protocol_in_main(payload: &[u8]) -> Option<u8> {
    let fixed = payload.get(..FIXED_BYTES)?;
    (fixed[4] == libc::RT_TABLE_MAIN && !is_clone(payload)).then_some(fixed[5])
}

fn ours(payload: &[u8]) -> Option<Route> {
    protocol_in_main(payload).filter(|protocol| *protocol == PROTOCOL)?;
    Some(Route { to: destination(payload)?, way: way(payload).ok()? })
}

fn other(payload: &[u8]) -> Option<Other> {
    protocol_in_main(payload).filter(|protocol| *protocol != PROTOCOL)?;
    let mut attributes = Attributes::new(&payload[FIXED_BYTES..]);
    let priority = attributes.find(|attribute| attribute.kind == libc::RTA_PRIORITY);
    Some(Other {
        to: destination(payload)?,
        way: way(payload),
        priority: priority.and_then(|attribute| attribute.u32()).unwrap_or(0),
        is_used: u32_at(payload, 8).is_some_and(|flags| flags & RTNH_F_UNUSED == 0),
    })
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
        assert_eq!(routes.way(Ipv4Addr::LOCALHOST.into()).unwrap(), Err(NoCopy::Nowhere));
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
                let way = Way { interface: number(interface), ..Way::default() };
                Ok(Found { way, of: Prefix::parse(of) })
            };
            for (to, expected) in [
                ("10.78.0.0", found("right", "10.78.0.0/24")),
                ("10.78.1.0", found("left", "0.0.0.0/0")),
                ("2001:db8::1", found("left", "::/0")),
            ] {
                assert_eq!(routes.way(to.parse().unwrap()).unwrap(), expected, "{to}");
            }
            let all = routes.others().unwrap();
            let part = all.iter().find(|other| other.to == Prefix::parse("10.78.0.0/24").unwrap());
            assert_eq!(part.unwrap().way, found("right", "::").map(|found| found.way), "{all:?}");
            // One of ours is never taken for a way, whether it is longer or shorter.
            for to in ["10.78.0.0/25", "10.0.0.0/8"] {
                let way = Way { interface: number("left"), ..Way::default() };
                routes.add(&Route { to: Prefix::parse(to).unwrap(), way }).unwrap();
            }
            for (to, expected) in [
                ("10.78.0.0", found("right", "10.78.0.0/24")),
                ("10.79.0.0", found("left", "0.0.0.0/0")),
            ] {
                assert_eq!(routes.way(to.parse().unwrap()).unwrap(), expected, "{to}");
            }
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
            let metrics = Metrics {
                algorithm: Some(algorithm.clone()),
                initial_window: Some(20),
                others: BTreeMap::from([(RTAX_LOCK, 1 << RTAX_MTU), (RTAX_MTU, 1400)]),
            };
            let route = Route {
                to,
                way: Way {
                    interface: 1,
                    via: Some(Ipv4Addr::new(172, 31, 1, 1).into()),
                    on_link: true,
                    source: Some(Ipv4Addr::LOCALHOST.into()),
                    realm: None,
                    metrics,
                },
            };
            let shown = " onlink src 127.0.0.1 mtu lock 1400 congctl";
            assert_eq!(route.way.to_string(), format!("{shown} {algorithm} initcwnd 20"));
            routes.add(&route).unwrap();
            assert_eq!(routes.ours().unwrap(), std::slice::from_ref(&route));
            let again = routes.add(&route).unwrap_err();
            assert_eq!(again.errno(), Some(libc::EEXIST));
            // There is no answer, but the socket has its route once it has begun to connect.
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
        assert_eq!((way(&[0; 3]), other(&[0; 3])), (Err(NoCopy::Nowhere), None));
    }

    /// A route of this table and protocol, as the kernel says it.
    fn said(table: u8, protocol: u8, more: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut fixed = fixed(Ipv4Addr::new(192, 0, 2, 0).into(), 24, 0);
        (fixed[4], fixed[5]) = (table, protocol);
        let mut attributes = Writer::default();
        attributes.bytes(libc::RTA_DST, &[192, 0, 2, 0]);
        attributes.u32(libc::RTA_OIF, 7);
        more(&mut attributes);
        [&fixed[..], attributes.as_bytes()].concat()
    }

    /// `undo` stopped at one in a table of its own.
    #[test]
    fn routes_of_ours_are_those_of_the_main_table() {
        assert!(ours(&said(libc::RT_TABLE_MAIN, PROTOCOL, |_| ())).is_some());
        assert_eq!(ours(&said(77, PROTOCOL, |_| ())), None);
        assert_eq!(ours(&said(libc::RT_TABLE_MAIN, 3, |_| ())), None);
        assert_eq!(other(&said(libc::RT_TABLE_MAIN, PROTOCOL, |_| ())), None);
        assert!(other(&said(libc::RT_TABLE_MAIN, 3, |_| ())).is_some());
    }

    /// A copy without it would go beside the tunnel.
    #[test]
    fn a_route_into_a_tunnel_of_its_own_is_not_copied() {
        let plain = said(libc::RT_TABLE_MAIN, 3, |_| ());
        let into = |kind| said(libc::RT_TABLE_MAIN, 3, |attributes| attributes.u32(kind, 1));
        assert_eq!(way(&plain).unwrap().interface, 7);
        assert_eq!(way(&into(RTA_ENCAP)), Err(NoCopy::Tunnel));
        for kind in [RTA_VIA, RTA_MULTIPATH] {
            assert_eq!(way(&into(kind)), Err(NoCopy::Several), "{kind}");
        }
    }

    #[test]
    fn without_ours_the_longest_prefix_and_then_the_least_priority_has_an_address() {
        let other = |to: &str, interface: u32, priority: u32, is_used: bool| Other {
            to: Prefix::parse(to).unwrap(),
            way: Ok(Way { interface, ..Way::default() }),
            priority,
            is_used,
        };
        let others = [
            other("0.0.0.0/0", 1, 100, true),
            other("0.0.0.0/0", 2, 50, true),
            other("10.0.0.0/8", 3, 0, true),
            other("10.1.0.0/16", 4, 0, false),
            other("10.2.0.0/16", 5, 0, true),
            other("10.2.0.0/16", 6, 0, true),
            Other { way: Err(NoCopy::Nowhere), ..other("10.3.0.0/16", 0, 0, true) },
            other("2001:db8::/32", 7, 1024, true),
        ];
        let of = |to: &str| without_ours(&others, to.parse().unwrap());
        for (to, interface) in [
            ("192.0.2.1", Ok(2)),
            ("10.9.0.1", Ok(3)),
            ("10.1.0.1", Ok(3)),
            ("10.2.0.1", Err(NoCopy::Several)),
            ("10.3.0.1", Err(NoCopy::Nowhere)),
            ("2001:db8::1", Ok(7)),
        ] {
            let found = of(to).unwrap().map(|found| found.way.interface);
            assert_eq!(found, interface, "{to}");
        }
        assert_eq!(of("2001:db9::1").unwrap_err().errno(), Some(libc::ENETUNREACH));
    }
}
