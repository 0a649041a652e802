//! The kernel's events of MPTCP connections.
//!
//! Source: `enum mptcp_event_type` and `mptcp_event_attr`, include/uapi/linux/mptcp_pm.h;
//! net/mptcp/pm_netlink.c. Linux 5.12.
//!
//! # Limits
//! Receiving them needs CAP_NET_ADMIN. A slow reader loses some (ENOBUFS), and must look at
//! everything again ([`super::diagnosis::dump`]). Under the userspace path manager an end that
//! accepts takes no join while no process listens for events.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use super::Token;
use super::endpoint::{FAMILY, VERSION};
use crate::netlink::attribute::Attribute;
use crate::netlink::generic::{Family, parts};
use crate::netlink::{Answer, Netlink, NetlinkError};

/// `MPTCP_PM_EV_GRP_NAME`.
const GROUP: &str = "mptcp_pm_events";

/// `enum mptcp_event_attr`.
mod attr {
    pub(super) const TOKEN: u16 = 1;
    pub(super) const LOCAL_ID: u16 = 3;
    pub(super) const REMOTE_ID: u16 = 4;
    pub(super) const SOURCE4: u16 = 5;
    pub(super) const SOURCE6: u16 = 6;
    pub(super) const DESTINATION4: u16 = 7;
    pub(super) const DESTINATION6: u16 = 8;
    pub(super) const SOURCE_PORT: u16 = 9;
    pub(super) const DESTINATION_PORT: u16 = 10;
    pub(super) const BACKUP: u16 = 11;
    pub(super) const ERROR: u16 = 12;
    pub(super) const RESET_REASON: u16 = 16;
    pub(super) const SERVER_SIDE: u16 = 18;
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A connection begins.
    Created,
    /// A connection can have further subflows.
    Established,
    /// A connection has ended.
    Closed,
    /// The peer has announced an address.
    Announced,
    /// The peer has taken an address back.
    Removed,
    /// A subflow has been opened.
    SubflowEstablished,
    /// A subflow has ended.
    SubflowClosed,
    /// A subflow has become backup, or no longer is.
    SubflowPriority,
    /// The kernel listens on an endpoint's port.
    ListenerCreated,
    /// It no longer does.
    ListenerClosed,
}

/// An event, with what the kernel says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub kind: Kind,
    /// Of which connection; none for listeners.
    pub token: Option<Token>,
    /// This end, of the subflow or of the connection's first.
    pub local: Option<SocketAddr>,
    /// The other end; of an announcement, the address.
    pub remote: Option<SocketAddr>,
    /// The number of this end's address.
    pub id_local: Option<u8>,
    /// The number of the other end's.
    pub id_remote: Option<u8>,
    /// Whether this end accepted the connection.
    pub accepted: Option<bool>,
    /// Whether the subflow is backup.
    pub backup: Option<bool>,
    /// Why the subflow ended, an errno.
    pub error: Option<u8>,
    /// Why the peer reset it (RFC 8684 section 3.6).
    pub reset_reason: Option<u32>,
}

/// A listener for events of the calling thread's network namespace.
#[derive(Debug)]
pub struct Events(Netlink);

impl Events {
    /// Begins to listen.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN; [`NetlinkError::NoFamily`] without MPTCP.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self(Family::find(FAMILY, VERSION)?.listen(GROUP)?))
    }

    /// The next events; none if there are none for some seconds.
    ///
    /// # Errors
    /// ENOBUFS: some were lost.
    pub fn receive(&mut self) -> Result<Vec<Event>, NetlinkError> {
        Ok(self.0.receive()?.iter().filter_map(decode).collect())
    }
}

/// Whether some process listens for events: without one, the userspace path manager manages
/// nothing. `None` if that cannot be found.
pub fn is_listened_to() -> Option<bool> {
    listeners().map(|count| count > 0)
}

/// How many sockets listen for events. `None` if that cannot be found.
pub fn listeners() -> Option<usize> {
    let group = Family::find(FAMILY, VERSION).ok()?.group(GROUP)?;
    let bit = 1u32.checked_shl(group.checked_sub(1)?)?;
    let table = std::fs::read_to_string("/proc/thread-self/net/netlink").ok()?;
    Some(table.lines().filter(|line| listens(line, bit)).count())
}

/// A line of /proc/net/netlink: address, protocol, port, the first 32 groups in hexadecimal.
fn listens(line: &str, bit: u32) -> bool {
    let mut words = line.split_ascii_whitespace().skip(1);
    let generic = words.next() == Some("16");
    let groups = words.nth(1).and_then(|word| u32::from_str_radix(word, 16).ok());
    generic && groups.is_some_and(|groups| groups & bit != 0)
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `None` for an event of a later kernel.
pub(super) fn decode(answer: &Answer) -> Option<Event> {
    let (command, attributes) = parts(&answer.payload)?;
    let kind = match command {
        1 => Kind::Created,
        2 => Kind::Established,
        3 => Kind::Closed,
        6 => Kind::Announced,
        7 => Kind::Removed,
        10 => Kind::SubflowEstablished,
        11 => Kind::SubflowClosed,
        13 => Kind::SubflowPriority,
        15 => Kind::ListenerCreated,
        16 => Kind::ListenerClosed,
        _ => return None,
    };
    let find = |kind| attributes.clone().find(|a: &Attribute<'_>| a.kind == kind);
    let byte = |kind| find(kind).and_then(|a| a.u8());
    let address = |v4, v6, port| {
        let ip: IpAddr = match (find(v4), find(v6)) {
            (Some(a), _) => Ipv4Addr::from(<[u8; 4]>::try_from(a.value).ok()?).into(),
            (_, Some(a)) => Ipv6Addr::from(<[u8; 16]>::try_from(a.value).ok()?).into(),
            _ => return None,
        };
        // Ports of events are in the network's byte order, unlike those of endpoints.
        Some(SocketAddr::new(ip, find(port).and_then(|a| a.u16_be()).unwrap_or(0)))
    };
    Some(Event {
        kind,
        token: find(attr::TOKEN).and_then(|a| a.u32()).map(Token),
        local: address(attr::SOURCE4, attr::SOURCE6, attr::SOURCE_PORT),
        remote: address(attr::DESTINATION4, attr::DESTINATION6, attr::DESTINATION_PORT),
        id_local: byte(attr::LOCAL_ID),
        id_remote: byte(attr::REMOTE_ID),
        accepted: byte(attr::SERVER_SIDE).map(|side| side != 0),
        backup: byte(attr::BACKUP).map(|backup| backup != 0),
        error: byte(attr::ERROR),
        reset_reason: find(attr::RESET_REASON).and_then(|a| a.u32()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute::Writer;

    fn answer(command: u8, attributes: &Writer) -> Answer {
        let payload = [&[command, 1, 0, 0], attributes.as_bytes()].concat();
        Answer { kind: 0x20, payload }
    }

    #[test]
    fn a_closed_subflow_says_which_and_why() {
        let mut attributes = Writer::default();
        attributes.u32(attr::TOKEN, 7);
        attributes.bytes(attr::SOURCE4, &[10, 0, 0, 1]);
        attributes.bytes(attr::DESTINATION4, &[10, 0, 0, 2]);
        attributes.u16(attr::SOURCE_PORT, 40000u16.to_be());
        attributes.u16(attr::DESTINATION_PORT, 5433u16.to_be());
        attributes.u8(attr::BACKUP, 0);
        attributes.u8(attr::ERROR, 110);
        attributes.u8(99, 1);
        let event = decode(&answer(11, &attributes)).unwrap();
        assert_eq!(event.kind, Kind::SubflowClosed);
        assert_eq!(event.token, Some(Token(7)));
        assert_eq!(event.remote, Some("10.0.0.2:5433".parse().unwrap()));
        assert_eq!((event.error, event.backup, event.accepted), (Some(110), Some(false), None));
    }

    #[test]
    fn a_listener_for_events_is_seen() {
        let line = "ffff0000 16  1203   00000410 0        0        0     2        0   31";
        assert!(listens(line, 1 << 10) && !listens(line, 1 << 11));
        assert!(!listens(&line.replace(" 16 ", " 15 "), 1 << 10));
        assert!(!listens("sk Eth Pid Groups", 1));
        match Events::open() {
            // Groups beyond the 32nd are not shown.
            Ok(_events) => assert!(is_listened_to().unwrap_or(true)),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }

    #[test]
    fn events_of_later_kernels_are_passed_over() {
        assert_eq!(decode(&answer(200, &Writer::default())), None);
        assert_eq!(decode(&Answer { kind: 1, payload: vec![1] }), None);
    }
}
