//! Interfaces, addresses, routes and rules of a network namespace: rtnetlink(7).
//!
//! # Model
//! One request, one answer. A request is a header, a structure that depends on its type, and
//! attributes of type, length and value, padded to 4 bytes; the answer is an error number, 0 for
//! done.
//!
//! # Invariants  speaks to the namespace in which the socket was made
//! # Why not     the `ip` program: one more package, and its messages are for people. A crate for
//!               all of rtnetlink: seven kinds of messages are needed, of several hundred
//! # Limits      Linux 3.10; CAP_NET_ADMIN in the namespace

use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The table of routes that is asked first by default.
pub const MAIN_TABLE: u32 = 254;

/// Room for an answer: it repeats the request, which is far smaller.
const ANSWER_BYTES_MAX: usize = 4096;

const VETH_INFO_PEER: u16 = 1; // linux/veth.h

/// A connection to the kernel's routing.
#[derive(Debug)]
pub struct Routing {
    socket: OwnedFd,
    number: u32,
}

/// An interface's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface(u32);

impl Routing {
    /// Speaks to the network namespace of this thread.
    ///
    /// # Errors
    /// As socket(2).
    pub fn open() -> io::Result<Self> {
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::RAW);
        let family = AddressFamily::NETLINK;
        // Protocol 0 is NETLINK_ROUTE.
        let socket = rustix::net::socket_with(family, kind, flags, None)?;
        Ok(Self { socket, number: 0 })
    }

    /// The interface of that name in the namespace of this thread.
    ///
    /// # Errors
    /// ENODEV where there is none.
    pub fn interface(&self, name: &str) -> io::Result<Interface> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        Ok(Interface(rustix::net::netdevice::name_to_index(&socket, name)?))
    }

    /// Makes a pair of interfaces that are joined, here and in another namespace, both of the same
    /// name.
    ///
    /// # Errors
    /// EEXIST where the name is taken, EOPNOTSUPP without the driver, EPERM.
    pub fn add_pair(&mut self, name: &CStr, other: impl AsFd) -> io::Result<()> {
        let mut message = Message::new(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
        message.link(0, 0);
        message.attribute(libc::IFLA_IFNAME, name.to_bytes_with_nul());
        let info = message.begin(libc::IFLA_LINKINFO);
        message.attribute(libc::IFLA_INFO_KIND, b"veth");
        let data = message.begin(libc::IFLA_INFO_DATA);
        let peer = message.begin(VETH_INFO_PEER);
        message.link(0, 0);
        message.attribute(libc::IFLA_IFNAME, name.to_bytes_with_nul());
        let other = other.as_fd().as_raw_fd();
        message.attribute(libc::IFLA_NET_NS_FD, &other.to_ne_bytes());
        message.end(peer);
        message.end(data);
        message.end(info);
        self.ask(message)
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// EINVAL for an MTU that the device cannot have, EPERM.
    pub fn set_up(&mut self, interface: Interface) -> io::Result<()> {
        let mut message = Message::new(libc::RTM_NEWLINK, 0);
        message.link(interface.0, libc::IFF_UP.cast_unsigned());
        self.ask(message)
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
        let mut message = Message::new(libc::RTM_NEWLINK, 0);
        message.link(interface.0, 0);
        message.attribute(libc::IFLA_MTU, &mtu_bytes.to_ne_bytes());
        message.attribute(libc::IFLA_TXQLEN, &queue_packets.to_ne_bytes());
        self.ask(message)
    }

    /// Gives an interface an address, and by it a route to `prefix_bits` of its neighbours. An IPv6
    /// address is usable at once: nobody is asked whether it is taken.
    ///
    /// # Errors
    /// EEXIST where it has it, EPERM.
    pub fn add_address(
        &mut self,
        interface: Interface,
        address: IpAddr,
        prefix_bits: u8,
    ) -> io::Result<()> {
        let mut message = Message::new(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
        let flags = if address.is_ipv6() { libc::IFA_F_NODAD } else { 0 };
        let flags = u8::try_from(flags).expect("a flag of 8 bits");
        message.put(&[family(address), prefix_bits, flags, libc::RT_SCOPE_UNIVERSE]); // ifaddrmsg
        message.put(&interface.0.to_ne_bytes());
        message.address(libc::IFA_LOCAL, address);
        message.address(libc::IFA_ADDRESS, address);
        self.ask(message)
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
        let mut message = Message::new(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
        let scope = if via.is_some() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
        let small_table = u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC);
        // rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type, flags
        message.put(&[family(to), prefix_bits, 0, 0]);
        message.put(&[small_table, libc::RTPROT_STATIC, scope, libc::RTN_UNICAST]);
        message.put(&0u32.to_ne_bytes());
        if prefix_bits > 0 {
            message.address(libc::RTA_DST, to);
        }
        message.attribute(libc::RTA_OIF, &by.0.to_ne_bytes());
        message.attribute(libc::RTA_TABLE, &table.to_ne_bytes());
        if let Some(via) = via {
            message.address(libc::RTA_GATEWAY, via);
        }
        self.ask(message)
    }

    /// What has the source address `from` is routed by `table`; `priority` as in ip-rule(8), the
    /// smallest first.
    ///
    /// # Errors
    /// EEXIST, EPERM, EOPNOTSUPP in a kernel without policy routing.
    pub fn add_rule(&mut self, from: IpAddr, table: u32, priority: u32) -> io::Result<()> {
        let mut message = Message::new(libc::RTM_NEWRULE, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
        let bits = if from.is_ipv4() { 32 } else { 128 };
        let small_table = u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC);
        // fib_rule_hdr: as rtmsg, with two reserved bytes and the action
        const FR_ACT_TO_TBL: u8 = 1;
        message.put(&[family(from), 0, bits, 0, small_table, 0, 0, FR_ACT_TO_TBL]);
        message.put(&0u32.to_ne_bytes());
        const FRA_SRC: u16 = 2;
        const FRA_PRIORITY: u16 = 6;
        const FRA_TABLE: u16 = 15;
        message.address(FRA_SRC, from);
        message.attribute(FRA_PRIORITY, &priority.to_ne_bytes());
        message.attribute(FRA_TABLE, &table.to_ne_bytes());
        self.ask(message)
    }

    fn ask(&mut self, message: Message) -> io::Result<()> {
        self.number += 1;
        let request = message.finish(self.number);
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        let mut answer = [0; ANSWER_BYTES_MAX];
        loop {
            let (length, _) = rustix::net::recv(&self.socket, &mut answer, RecvFlags::empty())?;
            if let Some(verdict) = verdict(&answer[..length.min(ANSWER_BYTES_MAX)], self.number) {
                return verdict;
            }
        }
    }
}

/// What an answer says to the request of that number; `None` where it answers something else.
fn verdict(answer: &[u8], number: u32) -> Option<io::Result<()>> {
    let word = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if i32::from(kind) != libc::NLMSG_ERROR || word(8)? != number {
        return None;
    }
    match word(16)?.cast_signed() {
        0 => Some(Ok(())),
        code => Some(Err(io::Error::from_raw_os_error(code.saturating_neg()))),
    }
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    u8::try_from(family).expect("both are small")
}

/// A request as it grows.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: i32) -> Self {
        let flags = u16::try_from(flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK);
        let flags = flags.expect("flags are 16 bits");
        let mut message = Self(vec![0; 4]); // the length comes last
        message.put(&kind.to_ne_bytes());
        message.put(&flags.to_ne_bytes());
        message.put(&[0; 8]); // the number, and who asks: the kernel knows
        message
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// `ifinfomsg`, setting these flags.
    fn link(&mut self, index: u32, flags: u32) {
        self.put(&[0; 4]);
        self.put(&index.to_ne_bytes());
        self.put(&flags.to_ne_bytes());
        self.put(&flags.to_ne_bytes()); // which of them change
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).expect("values are short");
        self.put(&length.to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn address(&mut self, kind: u16, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.attribute(kind, &address.octets()),
            IpAddr::V6(address) => self.attribute(kind, &address.octets()),
        }
    }

    /// An attribute that holds others, until [`Message::end`].
    fn begin(&mut self, kind: u16) -> usize {
        let at = self.0.len();
        self.put(&[0; 2]);
        self.put(&kind.to_ne_bytes());
        at
    }

    fn end(&mut self, at: usize) {
        let length = u16::try_from(self.0.len() - at).expect("requests are short");
        self.0[at..at + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn finish(mut self, number: u32) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).expect("requests are short");
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0[8..12].copy_from_slice(&number.to_ne_bytes());
        self.0
    }
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
    fn answers_are_read_as_the_kernel_writes_them() {
        let mut answer = vec![0; 20];
        answer[4..6].copy_from_slice(&2u16.to_ne_bytes());
        answer[8..12].copy_from_slice(&7u32.to_ne_bytes());
        assert!(verdict(&answer, 7).unwrap().is_ok());
        assert!(verdict(&answer, 8).is_none(), "another request's");
        answer[16..20].copy_from_slice(&(-17i32).to_ne_bytes());
        assert_eq!(verdict(&answer, 7).unwrap().unwrap_err().raw_os_error(), Some(17));
        for length in 0..20 {
            assert!(verdict(&answer[..length], 7).is_none());
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
            Routing::open().unwrap().add_pair(c"wan", &far).unwrap();
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
