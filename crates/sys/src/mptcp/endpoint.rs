//! The in-kernel path manager's configuration: endpoints and limits of a network namespace.
//!
//! # Model
//! An endpoint is a local address, perhaps with a port. With `signal` it is announced to peers
//! (ADD_ADDR), with `subflow` this end opens subflows from it. Limits bound what a connection does:
//! how many further subflows it may have, and how many of the peer's announcements it follows.
//! Source: include/uapi/linux/mptcp_pm.h, net/mptcp/pm_netlink.c, pm_kernel.c.
//!
//! # Limits
//! Changes need CAP_NET_ADMIN in the user namespace that owns the network namespace. Endpoints with
//! a port: Linux 5.12. `fullmesh`: 5.15. `laminar`: 6.18.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::attribute::{Attribute, Writer};
use crate::netlink::generic::{Family, parts};
use crate::netlink::{ACK, DUMP, NetlinkError};

/// `MPTCP_PM_NAME`, `MPTCP_PM_VER`.
pub(super) const FAMILY: &str = "mptcp_pm";
pub(super) const VERSION: u8 = 1;

/// The most endpoints of a namespace, and the most that a limit can be (`MPTCP_PM_ADDR_MAX`,
/// net/mptcp/protocol.h; 64 from Linux 6.19 on, where the kernel refuses what is beyond its own).
pub const ENDPOINTS_MAX: u32 = 8;

/// `enum mptcp_pm_cmd`.
mod command {
    pub(super) const ADD_ADDR: u8 = 1;
    pub(super) const DEL_ADDR: u8 = 2;
    pub(super) const GET_ADDR: u8 = 3;
    pub(super) const SET_LIMITS: u8 = 5;
    pub(super) const GET_LIMITS: u8 = 6;
}

/// `MPTCP_PM_ATTR_*`.
pub(super) const ADDR: u16 = 1;
const RCV_ADD_ADDRS: u16 = 2;
const SUBFLOWS: u16 = 3;

/// `MPTCP_PM_ADDR_ATTR_*`.
pub(super) mod addr {
    pub(in crate::mptcp) const FAMILY: u16 = 1;
    pub(in crate::mptcp) const ID: u16 = 2;
    pub(in crate::mptcp) const V4: u16 = 3;
    pub(in crate::mptcp) const V6: u16 = 4;
    pub(in crate::mptcp) const PORT: u16 = 5;
    pub(in crate::mptcp) const FLAGS: u16 = 6;
    pub(in crate::mptcp) const INTERFACE: u16 = 7;
}

/// What an endpoint is for (`MPTCP_PM_ADDR_FLAG_*`). Bits of later kernels are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// Announced to peers.
    pub const SIGNAL: Self = Self(1);
    /// Subflows are opened from it.
    pub const SUBFLOW: Self = Self(2);
    /// Its subflows carry data only when there are no others.
    pub const BACKUP: Self = Self(4);
    /// From each such endpoint to each address of the peer.
    pub const FULLMESH: Self = Self(8);
    /// Made by the kernel itself, for a subflow that the peer opened.
    pub const IMPLICIT: Self = Self(16);
    /// Used in answer to announcements, one for each (Linux 6.18).
    pub const LAMINAR: Self = Self(32);

    const NAMES: [(Self, &str); 6] = [
        (Self::SIGNAL, "signal"),
        (Self::SUBFLOW, "subflow"),
        (Self::BACKUP, "backup"),
        (Self::FULLMESH, "fullmesh"),
        (Self::IMPLICIT, "implicit"),
        (Self::LAMINAR, "laminar"),
    ];

    /// Whether all of `other` are set.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Their names; those that are not known as numbers.
    pub fn names(self) -> Vec<String> {
        let mut names = Vec::new();
        let mut rest = self.0;
        for (flag, name) in Self::NAMES {
            if self.has(flag) {
                names.push(name.to_owned());
                rest &= !flag.0;
            }
        }
        if rest != 0 {
            names.push(format!("{rest:#x}"));
        }
        names
    }
}

/// The number of an endpoint, which peers see as the address id (RFC 8684 section 3.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u8);

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its number; 0 lets the kernel choose.
    pub id: EndpointId,
    /// Its address.
    pub address: IpAddr,
    /// Its port: the kernel listens there for joins. 0 is the connection's own.
    pub port: u16,
    /// What it is for.
    pub flags: Flags,
    /// The network interface that its subflows are bound to. 0 is none.
    pub interface: u32,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address, self.port) {
            (address, 0) => write!(f, "{address}")?,
            (IpAddr::V4(address), port) => write!(f, "{address}:{port}")?,
            (IpAddr::V6(address), port) => write!(f, "[{address}]:{port}")?,
        }
        write!(f, " {}", self.flags.names().join(","))
    }
}

/// The family and the address itself, which every address begins with.
pub(super) fn write_ip(writer: &mut Writer, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            writer.u16(addr::FAMILY, libc::AF_INET as u16);
            writer.bytes(addr::V4, &ip.octets());
        }
        IpAddr::V6(ip) => {
            writer.u16(addr::FAMILY, libc::AF_INET6 as u16);
            writer.bytes(addr::V6, &ip.octets());
        }
    }
}

impl Endpoint {
    fn encode(&self) -> Writer {
        let mut writer = Writer::default();
        write_ip(&mut writer, self.address);
        if self.id.0 != 0 {
            writer.u8(addr::ID, self.id.0);
        }
        if self.port != 0 {
            // In the host's byte order, unlike ports elsewhere (mptcp_pm_parse_entry()).
            writer.u16(addr::PORT, self.port);
        }
        writer.u32(addr::FLAGS, self.flags.0);
        if self.interface != 0 {
            writer.u32(addr::INTERFACE, self.interface);
        }
        writer
    }

    /// `None` if it has no address that this version knows.
    fn decode(entry: Attribute<'_>) -> Option<Self> {
        let mut address = None;
        let mut endpoint = Self {
            id: EndpointId(0),
            address: Ipv4Addr::UNSPECIFIED.into(),
            port: 0,
            flags: Flags::default(),
            interface: 0,
        };
        for attribute in entry.nested() {
            match attribute.kind {
                addr::ID => endpoint.id = EndpointId(attribute.u8()?),
                addr::V4 => {
                    let octets: [u8; 4] = attribute.value.try_into().ok()?;
                    address = Some(Ipv4Addr::from(octets).into());
                }
                addr::V6 => {
                    let octets: [u8; 16] = attribute.value.try_into().ok()?;
                    address = Some(Ipv6Addr::from(octets).into());
                }
                addr::PORT => endpoint.port = attribute.u16()?,
                addr::FLAGS => endpoint.flags = Flags(attribute.u32()?),
                addr::INTERFACE => endpoint.interface = attribute.u32()?,
                _ => {}
            }
        }
        endpoint.address = address?;
        Some(endpoint)
    }
}

/// Bounds of each connection, beyond its first subflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many announcements of the peer are followed.
    pub add_addr_accepted: u32,
    /// How many further subflows there may be.
    pub subflows: u32,
}

/// The in-kernel path manager of the calling thread's network namespace.
#[derive(Debug)]
pub struct PathManager(Family);

impl PathManager {
    /// Finds it.
    ///
    /// # Errors
    /// [`NetlinkError::NoFamily`] if the kernel has no MPTCP, or is older than 5.6.
    pub fn open() -> Result<Self, NetlinkError> {
        Family::find(FAMILY, VERSION).map(Self)
    }

    /// All endpoints.
    ///
    /// # Errors
    /// See [`NetlinkError`].
    pub fn endpoints(&mut self) -> Result<Vec<Endpoint>, NetlinkError> {
        let answers = self.0.ask(command::GET_ADDR, DUMP, &Writer::default())?;
        Ok(answers
            .iter()
            .filter_map(|answer| parts(&answer.payload)?.1.find(|a| a.kind == ADDR))
            .filter_map(Endpoint::decode)
            .collect())
    }

    /// One endpoint.
    ///
    /// # Errors
    /// EINVAL if there is none of this number.
    pub fn endpoint(&mut self, id: EndpointId) -> Result<Endpoint, NetlinkError> {
        let mut entry = Writer::default();
        entry.u8(addr::ID, id.0);
        let mut attributes = Writer::default();
        attributes.nested(ADDR, &entry);
        let answers = self.0.ask(command::GET_ADDR, ACK, &attributes)?;
        answers
            .first()
            .and_then(|answer| parts(&answer.payload)?.1.find(|a| a.kind == ADDR))
            .and_then(Endpoint::decode)
            .ok_or(NetlinkError::Malformed("an endpoint without an address"))
    }

    /// Makes an endpoint. With a port, the kernel listens on it from now on.
    ///
    /// # Errors
    /// EEXIST if there is one with this address and port, ENOSPC beyond [`ENDPOINTS_MAX`],
    /// EADDRINUSE if the port has a listener; EADDRNOTAVAIL if the address is none of ours.
    pub fn add(&mut self, endpoint: &Endpoint) -> Result<(), NetlinkError> {
        let mut attributes = Writer::default();
        attributes.nested(ADDR, &endpoint.encode());
        self.0.ask(command::ADD_ADDR, ACK, &attributes).map(drop)
    }

    /// Takes an endpoint away, and the subflows of existing connections that use it with it.
    ///
    /// # Errors
    /// EINVAL if there is none of this number.
    pub fn remove(&mut self, id: EndpointId) -> Result<(), NetlinkError> {
        let mut entry = Writer::default();
        entry.u8(addr::ID, id.0);
        let mut attributes = Writer::default();
        attributes.nested(ADDR, &entry);
        self.0.ask(command::DEL_ADDR, ACK, &attributes).map(drop)
    }

    /// The limits.
    ///
    /// # Errors
    /// See [`NetlinkError`].
    pub fn limits(&mut self) -> Result<Limits, NetlinkError> {
        let answers = self.0.ask(command::GET_LIMITS, ACK, &Writer::default())?;
        answers
            .first()
            .and_then(|answer| {
                let (_, attributes) = parts(&answer.payload)?;
                let find = |kind| attributes.clone().find(|a| a.kind == kind)?.u32();
                Some(Limits { add_addr_accepted: find(RCV_ADD_ADDRS)?, subflows: find(SUBFLOWS)? })
            })
            .ok_or(NetlinkError::Malformed("limits are missing"))
    }

    /// Sets the limits, for connections that begin from now on and those that are.
    ///
    /// # Errors
    /// EINVAL beyond [`ENDPOINTS_MAX`].
    pub fn set_limits(&mut self, limits: Limits) -> Result<(), NetlinkError> {
        let mut attributes = Writer::default();
        attributes.u32(RCV_ADD_ADDRS, limits.add_addr_accepted);
        attributes.u32(SUBFLOWS, limits.subflows);
        self.0.ask(command::SET_LIMITS, ACK, &attributes).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute::Attributes;

    fn round(endpoint: &Endpoint) -> Option<Endpoint> {
        let mut outer = Writer::default();
        outer.nested(ADDR, &endpoint.encode());
        Attributes::new(outer.as_bytes()).next().and_then(Endpoint::decode)
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        for (address, port) in [("10.0.0.1", 0), ("10.0.0.1", 5433), ("fd00::1", 9)] {
            let endpoint = Endpoint {
                id: EndpointId(3),
                address: address.parse().unwrap(),
                port,
                flags: Flags::SIGNAL.and(Flags::BACKUP),
                interface: 2,
            };
            assert_eq!(round(&endpoint).as_ref(), Some(&endpoint));
        }
    }

    /// As Linux 6.18 answers `MPTCP_PM_CMD_GET_ADDR` for
    /// `ip mptcp endpoint add 127.0.0.1 port 5433 signal` with an attribute that is not known yet.
    #[cfg(target_endian = "little")]
    #[test]
    fn a_captured_answer_is_understood_with_an_attribute_of_a_later_kernel() {
        let captured = [
            0x3c, 0, 0x01, 0x80, // MPTCP_PM_ATTR_ADDR, nested
            6, 0, 1, 0, 2, 0, 0, 0, // family
            5, 0, 2, 0, 1, 0, 0, 0, // id
            6, 0, 5, 0, 0x39, 0x15, 0, 0, // port
            8, 0, 6, 0, 1, 0, 0, 0, // flags
            8, 0, 3, 0, 127, 0, 0, 1, // address
            8, 0, 0x55, 0, 1, 2, 3, 4, // unknown
            8, 0, 7, 0, 0, 0, 0, 0, // interface
        ];
        let endpoint = Endpoint::decode(Attributes::new(&captured).next().unwrap()).unwrap();
        assert_eq!(endpoint.to_string(), "127.0.0.1:5433 signal");
        assert_eq!(endpoint.id, EndpointId(1));
    }

    #[test]
    fn an_address_of_the_wrong_length_is_none() {
        let mut entry = Writer::default();
        entry.bytes(addr::V4, &[10, 0, 0]);
        let mut outer = Writer::default();
        outer.nested(ADDR, &entry);
        assert_eq!(Attributes::new(outer.as_bytes()).next().and_then(Endpoint::decode), None);
    }

    #[test]
    fn flags_of_later_kernels_are_shown_as_numbers() {
        assert_eq!(Flags(1 | 1 << 9).names(), ["signal", "0x200"]);
    }

    #[test]
    fn the_path_manager_answers_where_there_is_one() {
        match PathManager::open() {
            Ok(mut manager) => {
                manager.endpoints().unwrap();
                assert!(manager.limits().unwrap().subflows <= 64);
            }
            Err(NetlinkError::NoFamily(_)) => eprintln!("skipped: this kernel has no MPTCP"),
            Err(error) => panic!("{error}"),
        }
    }
}
