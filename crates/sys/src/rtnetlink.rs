//! Interfaces, addresses, routes and rules of a network namespace: rtnetlink(7).
//!
//! # Model       one question, one acknowledgement: see [`crate::netlink`]
//! # Invariants  speaks to the namespace in which the socket was made
//! # Why not     the `ip` program: one more package, and its messages are for people. A crate for
//!               all of rtnetlink: ten kinds of messages are needed, of several hundred
//! # Limits      Linux 3.10; CAP_NET_ADMIN in the namespace

use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{AddressFamily, SocketType};

use crate::netlink::attribute::Writer;
use crate::netlink::{ACK, Netlink, Protocol, Question};

/// The table of routes that is asked first by default.
pub const MAIN_TABLE: u32 = 254;

/// Flags of what is to be new.
const NEW: i32 = libc::NLM_F_CREATE | libc::NLM_F_EXCL;

const VETH_INFO_PEER: u16 = 1; // linux/veth.h

/// A connection to the kernel's routing.
#[derive(Debug)]
pub struct Routing(Netlink);

/// An interface's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface(u32);

impl Routing {
    /// Speaks to the network namespace of this thread.
    ///
    /// # Errors
    /// As socket(2).
    pub fn open() -> io::Result<Self> {
        Ok(Self(Netlink::open(Protocol::Route)?))
    }

    /// The interface of that name in the namespace of this thread.
    ///
    /// # Errors
    /// ENODEV where there is none.
    pub fn interface(&self, name: &str) -> io::Result<Interface> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        Ok(Interface(rustix::net::netdevice::name_to_index(&socket, name)?))
    }

    /// Makes a pair of interfaces that are joined, here and in another namespace.
    ///
    /// # Errors
    /// EEXIST where a name is taken, EOPNOTSUPP without the driver, EPERM.
    pub fn add_pair(&mut self, name: &CStr, other_name: &CStr, other: impl AsFd) -> io::Result<()> {
        let mut near = Writer::default();
        near.bytes(libc::IFLA_IFNAME, name.to_bytes_with_nul());
        let mut far = Writer::default();
        far.bytes(libc::IFLA_IFNAME, other_name.to_bytes_with_nul());
        far.bytes(libc::IFLA_NET_NS_FD, &other.as_fd().as_raw_fd().to_ne_bytes());
        // What is nested here has no NLA_F_NESTED: so it has been since before there was such a flag.
        let mut data = Writer::default();
        data.bytes(VETH_INFO_PEER, &[&link(0, 0), far.as_bytes()].concat());
        let mut info = Writer::default();
        info.bytes(libc::IFLA_INFO_KIND, b"veth");
        info.bytes(libc::IFLA_INFO_DATA, data.as_bytes());
        near.bytes(libc::IFLA_LINKINFO, info.as_bytes());
        self.ask(libc::RTM_NEWLINK, NEW, &link(0, 0), &near)
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// EINVAL for an MTU that the device cannot have, EPERM.
    pub fn set_up(&mut self, interface: Interface) -> io::Result<()> {
        let up = link(interface.0, libc::IFF_UP.cast_unsigned());
        self.ask(libc::RTM_NEWLINK, 0, &up, &Writer::default())
    }

    /// Sets the largest packet of an interface, and how many wait for its reader.
    ///
    /// # Errors
    /// EINVAL for an MTU that the device cannot have, EPERM.
    pub fn set_sizes(
        &mut self,
        interface: Interface,
        mtu_bytes: u32,
        queue_packets: u32,
    ) -> io::Result<()> {
        let mut sizes = Writer::default();
        sizes.u32(libc::IFLA_MTU, mtu_bytes);
        sizes.u32(libc::IFLA_TXQLEN, queue_packets);
        self.ask(libc::RTM_NEWLINK, 0, &link(interface.0, 0), &sizes)
    }

    /// Gives an interface an address, and by it a route to `prefix_bits` of its neighbours. An IPv6
    /// address is usable at once, without duplicate address detection.
    ///
    /// # Errors
    /// EEXIST where it has it, EPERM.
    pub fn add_address(
        &mut self,
        interface: Interface,
        address: IpAddr,
        prefix_bits: u8,
    ) -> io::Result<()> {
        let flags = if address.is_ipv6() { libc::IFA_F_NODAD } else { 0 };
        let flags = u8::try_from(flags).expect("a flag of 8 bits");
        let scope = libc::RT_SCOPE_UNIVERSE;
        let header = [family(address), prefix_bits, flags, scope]; // ifaddrmsg, before the index
        let mut attributes = Writer::default();
        put_address(&mut attributes, libc::IFA_LOCAL, address);
        put_address(&mut attributes, libc::IFA_ADDRESS, address);
        let fixed = [header, interface.0.to_ne_bytes()].concat();
        self.ask(libc::RTM_NEWADDR, NEW, &fixed, &attributes)
    }

    /// Adds a route: to `to`, by an interface, and by a neighbour where `via` is one.
    ///
    /// # Errors
    /// EEXIST where there is one, ENETUNREACH where the neighbour is none, EPERM.
    pub fn add_route(
        &mut self,
        (to, prefix_bits): (IpAddr, u8),
        by: Interface,
        via: Option<IpAddr>,
        table: u32,
    ) -> io::Result<()> {
        let scope = if via.is_some() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
        let small_table = u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC);
        // rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type, flags
        let route = [small_table, libc::RTPROT_STATIC, scope, libc::RTN_UNICAST];
        let fixed = [[family(to), prefix_bits, 0, 0], route, [0; 4]].concat();
        let mut attributes = Writer::default();
        if prefix_bits > 0 {
            put_address(&mut attributes, libc::RTA_DST, to);
        }
        attributes.u32(libc::RTA_OIF, by.0);
        attributes.u32(libc::RTA_TABLE, table);
        if let Some(via) = via {
            put_address(&mut attributes, libc::RTA_GATEWAY, via);
        }
        self.ask(libc::RTM_NEWROUTE, NEW, &fixed, &attributes)
    }

    /// What has the source address `from` is routed by `table`; `priority` as in ip-rule(8), the
    /// smallest first.
    ///
    /// # Errors
    /// EEXIST, EPERM, EOPNOTSUPP in a kernel without policy routing.
    pub fn add_rule(&mut self, from: IpAddr, table: u32, priority: u32) -> io::Result<()> {
        let bits = if from.is_ipv4() { 32 } else { 128 };
        let small_table = u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC);
        // fib_rule_hdr: as rtmsg, with two reserved bytes and the action
        const FR_ACT_TO_TBL: u8 = 1;
        let fixed =
            [[family(from), 0, bits, 0], [small_table, 0, 0, FR_ACT_TO_TBL], [0; 4]].concat();
        const FRA_SRC: u16 = 2;
        const FRA_PRIORITY: u16 = 6;
        const FRA_TABLE: u16 = 15;
        let mut attributes = Writer::default();
        put_address(&mut attributes, FRA_SRC, from);
        attributes.u32(FRA_PRIORITY, priority);
        attributes.u32(FRA_TABLE, table);
        self.ask(libc::RTM_NEWRULE, NEW, &fixed, &attributes)
    }

    fn ask(&mut self, kind: u16, flags: i32, fixed: &[u8], attributes: &Writer) -> io::Result<()> {
        let flags = u16::try_from(flags).expect("flags are 16 bits");
        self.0.ask(&Question::new(kind, flags | ACK, fixed).with(attributes))?;
        Ok(())
    }
}

/// `ifinfomsg`, setting these flags.
fn link(index: u32, flags: u32) -> Vec<u8> {
    // The last says which of the flags change.
    [0, index, flags, flags].map(u32::to_ne_bytes).concat()
}

fn put_address(attributes: &mut Writer, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => attributes.bytes(kind, &address.octets()),
        IpAddr::V6(address) => attributes.bytes(kind, &address.octets()),
    }
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    u8::try_from(family).expect("both are small")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace;
    use crate::tun::Tun;
    use std::net::{TcpListener, UdpSocket};
    use std::os::fd::OwnedFd;

    /// A new namespace, or `None` (said aloud) where this process may not have one.
    fn namespace() -> Option<OwnedFd> {
        let made = std::thread::spawn(|| {
            namespace::unshare_network().and_then(|()| namespace::own_network())
        });
        match made.join().unwrap() {
            Ok(network) => Some(network),
            Err(error) => {
                eprintln!("SKIPPED: no network namespace: {error}");
                None
            }
        }
    }

    #[test]
    fn a_device_has_addresses_routes_and_rules() {
        let Some(network) = namespace() else { return };
        namespace::within(&network, || {
            let tun = Tun::create("wan").unwrap();
            let mut routing = Routing::open().unwrap();
            let wan = routing.interface("wan").unwrap();
            routing.set_sizes(wan, 1400, 5000).unwrap();
            let own: IpAddr = "10.77.0.1".parse().unwrap();
            let own_v6: IpAddr = "fd77::1".parse().unwrap();
            routing.add_address(wan, own, 24).unwrap();
            routing.add_address(wan, own_v6, 64).unwrap();
            routing.set_up(wan).unwrap();
            let there = ("10.99.0.0".parse().unwrap(), 16);
            let neighbour = "10.77.0.2".parse().unwrap();
            routing.add_route(there, wan, Some(neighbour), MAIN_TABLE).unwrap();
            let again = routing.add_route(there, wan, Some(neighbour), MAIN_TABLE).unwrap_err();
            assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
            routing.add_route(("0.0.0.0".parse().unwrap(), 0), wan, None, 1000).unwrap();
            routing.add_route(("::".parse().unwrap(), 0), wan, None, 1000).unwrap();
            routing.add_rule(own, 1000, 100).unwrap();
            routing.add_rule(own_v6, 1000, 100).unwrap();
            TcpListener::bind((own_v6, 0)).unwrap();

            // What is sent by the route is read from the device.
            let socket = UdpSocket::bind((own, 0)).unwrap();
            socket.send_to(b"hello", "10.99.1.2:9").unwrap();
            let mut packet = [0; 2000];
            let found = (0..20).any(|_| match tun.read(&mut packet) {
                Ok(length) => packet[..length].ends_with(b"hello"),
                Err(_) => false,
            });
            assert!(found);
        })
        .unwrap();
    }

    #[test]
    fn a_pair_joins_two_namespaces() {
        let (Some(near), Some(far)) = (namespace(), namespace()) else { return };
        let prepare = |address: &str| {
            let mut routing = Routing::open().unwrap();
            let wan = routing.interface("wan").unwrap();
            routing.add_address(wan, address.parse().unwrap(), 24).unwrap();
            routing.set_up(wan).unwrap();
        };
        namespace::within(&near, || {
            Routing::open().unwrap().add_pair(c"wan", c"wan", &far).unwrap();
            prepare("10.77.0.1");
        })
        .unwrap();
        let receiver = namespace::within(&far, || {
            prepare("10.77.0.2");
            UdpSocket::bind("10.77.0.2:0").unwrap()
        });
        let receiver = receiver.unwrap();
        let to = receiver.local_addr().unwrap();
        namespace::within(&near, || UdpSocket::bind("10.77.0.1:0").unwrap().send_to(b"x", to))
            .unwrap()
            .unwrap();
        receiver.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        assert_eq!(receiver.recv(&mut [0; 9]).unwrap(), 1);
    }
}
