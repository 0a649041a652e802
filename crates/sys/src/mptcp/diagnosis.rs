//! Every MPTCP connection of a network namespace, and every subflow, over sock_diag.
//!
//! # Model
//! The kernel is asked twice a family: for MPTCP sockets (`INET_DIAG_REQ_PROTOCOL` 262, because the
//! number does not fit the request's byte) and for TCP sockets; of the latter those are subflows
//! that have `INET_ULP_INFO_MPTCP`. The token joins both. Source: include/uapi/linux/inet_diag.h,
//! net/mptcp/mptcp_diag.c, net/mptcp/diag.c.
//!
//! # Limits
//! MPTCP sockets: Linux 5.9. Sockets that listen: 5.19. Every TCP socket is walked for the subflows,
//! as `ss` does: some microseconds each, in the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::information::MptcpInfo;
use super::{PROTOCOL, Token};
use crate::netlink::attribute::{Attribute, Attributes, Writer, u32_at, u64_at};
use crate::netlink::{DUMP, Netlink, NetlinkError, Protocol, Question};
use crate::tcp_info::TcpInfo;

/// `SOCK_DIAG_BY_FAMILY` (include/uapi/linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
/// `struct inet_diag_req_v2`, `struct inet_diag_msg`.
const REQUEST_BYTES: usize = 56;
const MESSAGE_BYTES: usize = 72;
/// `INET_DIAG_REQ_PROTOCOL`.
const REQUEST_PROTOCOL: u16 = 3;
/// `INET_DIAG_INFO`, `INET_DIAG_CONG`, `INET_DIAG_ULP_INFO`.
const INFO: u16 = 2;
const CONGESTION: u16 = 4;
const ULP_INFO: u16 = 19;
/// `INET_ULP_INFO_MPTCP`.
const ULP_MPTCP: u16 = 3;
/// `MPTCP_SUBFLOW_ATTR_*`.
const TOKEN_REMOTE: u16 = 1;
const TOKEN_LOCAL: u16 = 2;
const FLAGS: u16 = 8;
const ID_REMOTE: u16 = 9;
const ID_LOCAL: u16 = 10;
/// All states of TCP but LISTEN: those have no peer.
const STATES_CONNECTED: u32 = 0xfff & !(1 << TcpState::Listen as u32);

/// A state of TCP (include/net/tcp_states.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TcpState {
    /// It carries data both ways.
    Established = 1,
    /// It waits for the peer's answer.
    SynSent = 2,
    /// It waits for the last word of the handshake.
    SynReceived = 3,
    /// This end has ended.
    FinWait1 = 4,
    /// This end has ended, and the peer knows.
    FinWait2 = 5,
    /// Both have ended.
    TimeWait = 6,
    /// There is none.
    Close = 7,
    /// The peer has ended.
    CloseWait = 8,
    /// The peer has ended, then this end.
    LastAck = 9,
    /// It waits for connections.
    Listen = 10,
    /// Both ended at once.
    Closing = 11,
}

impl TcpState {
    fn new(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Established,
            2 => Self::SynSent,
            3 | 12 => Self::SynReceived,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Close,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            _ => return None,
        })
    }

    /// As `ss` has it, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Established => "established",
            Self::SynSent => "syn-sent",
            Self::SynReceived => "syn-received",
            Self::FinWait1 => "fin-wait-1",
            Self::FinWait2 => "fin-wait-2",
            Self::TimeWait => "time-wait",
            Self::Close => "close",
            Self::CloseWait => "close-wait",
            Self::LastAck => "last-ack",
            Self::Listen => "listen",
            Self::Closing => "closing",
        }
    }
}

/// What any socket has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its state.
    pub state: TcpState,
    /// This end. An IPv4 address in an IPv6 socket is an IPv4 address.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// The inode of its descriptor in /proc/PID/fd; 0 if no process has it.
    pub inode: u32,
    /// Who made it.
    pub uid: u32,
    /// A number that no other socket has had since the machine started.
    pub cookie: u64,
    /// Bytes that the program has not read.
    pub unread: u32,
    /// Bytes that the peer has not acknowledged.
    pub unacked: u32,
}

/// An MPTCP connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its socket.
    pub socket: Socket,
    /// What the kernel says of it.
    pub info: MptcpInfo,
}

/// A TCP connection that is part of an MPTCP connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subflow {
    /// Its socket.
    pub socket: Socket,
    /// What the kernel says of it.
    pub info: TcpInfo,
    /// Its congestion control.
    pub congestion: Option<String>,
    /// The connection, at this end.
    pub token: Token,
    /// The connection, at the other end.
    pub token_remote: Token,
    /// See [`SubflowFlags`].
    pub flags: SubflowFlags,
    /// The number of this end's address.
    pub id_local: u8,
    /// The number of the other end's.
    pub id_remote: u8,
}

impl Subflow {
    /// Bytes that were received, and bytes that the peer has acknowledged.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.info.bytes_received.unwrap_or(0), self.info.bytes_acked.unwrap_or(0))
    }
}

/// `MPTCP_SUBFLOW_FLAG_*` (include/uapi/linux/mptcp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SubflowFlags(pub u32);

impl SubflowFlags {
    fn has(self, bit: u32) -> bool {
        self.0 & 1 << bit != 0
    }

    /// Whether this end asked for MPTCP: it dialled the connection.
    #[must_use]
    pub fn asked(self) -> bool {
        self.has(1)
    }

    /// Whether the handshake ended with MPTCP.
    #[must_use]
    pub fn capable(self) -> bool {
        self.has(0)
    }

    /// Whether it joined an existing connection, whichever end dialled it.
    #[must_use]
    pub fn joined(self) -> bool {
        self.has(2) || self.has(3)
    }

    /// Whether this end dialled it to join.
    #[must_use]
    pub fn dialled_join(self) -> bool {
        self.has(3)
    }

    /// Whether either end wants it kept for when there is no other.
    #[must_use]
    pub fn backup(self) -> bool {
        self.has(4) || self.has(5)
    }

    /// Whether the handshake is over at both ends.
    #[must_use]
    pub fn established(self) -> bool {
        self.has(6)
    }
}

/// All that there is.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    /// Connections.
    pub connections: Vec<Connection>,
    /// MPTCP sockets that listen (5.19).
    pub listeners: Vec<Socket>,
    /// Subflows, of connections that were there when these were asked for or are new.
    pub subflows: Vec<Subflow>,
}

/// All MPTCP connections, listeners and subflows of the calling thread's network namespace.
///
/// # Errors
/// ENOENT or EINVAL of the kernel if it has no `mptcp_diag`; see [`NetlinkError`].
pub fn dump() -> Result<Dump, NetlinkError> {
    let mut netlink = Netlink::open(Protocol::SocketDiagnosis)?;
    let mut dump = Dump::default();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let question = question(family as u8, PROTOCOL as u32, u32::MAX);
        for answer in netlink.ask(&question)? {
            let Some((socket, mut attributes)) = decode(&answer.payload) else { continue };
            if socket.state == TcpState::Listen {
                dump.listeners.push(socket);
                continue;
            }
            let info = attributes.find(|a| a.kind == INFO).and_then(|a| MptcpInfo::decode(a.value));
            dump.connections.extend(info.map(|info| Connection { socket, info }));
        }
    }
    for family in [libc::AF_INET, libc::AF_INET6] {
        let question = question(family as u8, libc::IPPROTO_TCP as u32, STATES_CONNECTED);
        for answer in netlink.ask(&question)? {
            dump.subflows.extend(decode_subflow(&answer.payload));
        }
    }
    Ok(dump)
}

fn question(family: u8, protocol: u32, states: u32) -> Question {
    let mut request = [0u8; REQUEST_BYTES];
    request[0] = family;
    // 0 where the attribute says it: a kernel that does not know the attribute refuses, instead of
    // giving the sockets of protocol 262 & 0xff, which is TCP.
    request[1] = if protocol == libc::IPPROTO_TCP as u32 { protocol as u8 } else { 0 };
    request[2] = 1 << (INFO - 1) | 1 << (CONGESTION - 1);
    request[4..8].copy_from_slice(&states.to_ne_bytes());
    let mut attributes = Writer::default();
    if protocol != libc::IPPROTO_TCP as u32 {
        attributes.u32(REQUEST_PROTOCOL, protocol);
    }
    Question::new(BY_FAMILY, DUMP, &request).with(&attributes)
}

/// `struct inet_diag_msg` and the attributes after it.
fn decode(payload: &[u8]) -> Option<(Socket, Attributes<'_>)> {
    let message = payload.get(..MESSAGE_BYTES)?;
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = message.get(at..at + 16)?.try_into().ok()?;
        Some(match i32::from(message[0]) {
            libc::AF_INET => Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into(),
            libc::AF_INET6 => IpAddr::from(Ipv6Addr::from(octets)).to_canonical(),
            _ => return None,
        })
    };
    let port = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
    let number = |at: usize| u32_at(message, at).unwrap_or(0);
    let socket = Socket {
        state: TcpState::new(message[1])?,
        local: SocketAddr::new(address(8)?, port(4)),
        remote: SocketAddr::new(address(24)?, port(6)),
        cookie: u64_at(message, 44).unwrap_or(0),
        unread: number(56),
        unacked: number(60),
        uid: number(64),
        inode: number(68),
    };
    Some((socket, Attributes::new(&payload[MESSAGE_BYTES..])))
}

pub(super) fn decode_subflow(payload: &[u8]) -> Option<Subflow> {
    let (socket, attributes) = decode(payload)?;
    let find = |kind| attributes.clone().find(|a: &Attribute<'_>| a.kind == kind);
    let mptcp = find(ULP_INFO)?.nested().find(|a| a.kind == ULP_MPTCP)?.nested();
    let of = |kind| mptcp.clone().find(|a| a.kind == kind);
    Some(Subflow {
        socket,
        info: find(INFO).and_then(|a| TcpInfo::decode(a.value)).unwrap_or_default(),
        congestion: find(CONGESTION).and_then(|a| a.text()),
        token: Token(of(TOKEN_LOCAL)?.u32()?),
        token_remote: Token(of(TOKEN_REMOTE)?.u32()?),
        flags: SubflowFlags(of(FLAGS).and_then(|a| a.u32()).unwrap_or(0)),
        id_local: of(ID_LOCAL).and_then(|a| a.u8()).unwrap_or(0),
        id_remote: of(ID_REMOTE).and_then(|a| a.u8()).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(family: i32, state: u8) -> Vec<u8> {
        let mut bytes = vec![0u8; MESSAGE_BYTES];
        bytes[0] = family as u8;
        bytes[1] = state;
        bytes[4..8].copy_from_slice(&[0x15, 0x38, 0xc0, 0x01]);
        bytes[8..12].copy_from_slice(&[10, 0, 0, 1]);
        bytes[24..28].copy_from_slice(&[10, 0, 0, 2]);
        bytes[68..72].copy_from_slice(&4711u32.to_ne_bytes());
        bytes
    }

    fn ulp(tokens: bool) -> Writer {
        let mut inner = Writer::default();
        if tokens {
            inner.u32(TOKEN_REMOTE, 1);
            inner.u32(TOKEN_LOCAL, 2);
            inner.u32(FLAGS, 1 << 3 | 1 << 5);
            inner.u8(ID_LOCAL, 4);
        }
        let mut middle = Writer::default();
        middle.bytes(1, b"mptcp\0");
        middle.nested(ULP_MPTCP, &inner);
        let mut outer = Writer::default();
        outer.bytes(CONGESTION, b"bbr\0");
        outer.nested(ULP_INFO, &middle);
        outer
    }

    #[test]
    fn a_subflow_is_a_tcp_socket_with_tokens() {
        let mut bytes = message(libc::AF_INET, 1);
        assert_eq!(decode_subflow(&bytes), None);
        bytes.extend_from_slice(ulp(true).as_bytes());
        let subflow = decode_subflow(&bytes).unwrap();
        assert_eq!(subflow.socket.local, "10.0.0.1:5432".parse().unwrap());
        assert_eq!(subflow.socket.remote, "10.0.0.2:49153".parse().unwrap());
        assert_eq!((subflow.token, subflow.token_remote), (Token(2), Token(1)));
        assert!(subflow.flags.dialled_join() && subflow.flags.backup());
        assert_eq!(subflow.congestion.as_deref(), Some("bbr"));
        assert_eq!((subflow.id_local, subflow.socket.inode), (4, 4711));
        let mut without = message(libc::AF_INET, 1);
        without.extend_from_slice(ulp(false).as_bytes());
        assert_eq!(decode_subflow(&without), None);
    }

    #[test]
    fn a_mapped_address_is_shown_as_what_it_is() {
        let mut bytes = message(libc::AF_INET6, 1);
        bytes[8..24].copy_from_slice(&Ipv4Addr::new(10, 0, 0, 9).to_ipv6_mapped().octets());
        let (socket, _) = decode(&bytes).unwrap();
        assert_eq!(socket.local, "10.0.0.9:5432".parse().unwrap());
    }

    #[test]
    fn what_is_cut_or_unknown_is_passed_over() {
        let whole = message(libc::AF_INET, 1);
        for length in 0..whole.len() {
            assert!(decode(&whole[..length]).is_none());
        }
        assert!(decode(&message(libc::AF_INET, 77)).is_none());
        assert!(decode(&message(libc::AF_UNIX, 1)).is_none());
    }

    #[test]
    fn an_mptcp_socket_of_this_process_is_found() {
        use std::os::fd::AsRawFd;
        use std::os::linux::fs::MetadataExt;
        let listener = match crate::mptcp::socket::listen("127.0.0.1:0".parse().unwrap(), 4) {
            Ok(listener) => listener,
            Err(error) => return eprintln!("skipped: no MPTCP here: {error}"),
        };
        let address = listener.local_addr().unwrap();
        let own = crate::mptcp::socket::open(false).unwrap();
        rustix::io::ioctl_fionbio(&own, false).unwrap();
        rustix::net::connect(&own, &address).unwrap();
        let dump = match dump() {
            Ok(dump) => dump,
            Err(error) => return eprintln!("skipped: no mptcp_diag here: {error}"),
        };
        let path = format!("/proc/self/fd/{}", own.as_raw_fd());
        let inode = std::fs::metadata(path).unwrap().st_ino();
        let found = dump.connections.iter().find(|c| u64::from(c.socket.inode) == inode).unwrap();
        assert_eq!(found.socket.remote, address);
        let info = crate::mptcp::socket::info(&own).unwrap();
        assert_eq!(found.info.token, info.token);
        let subflow = dump.subflows.iter().find(|s| s.token == info.token).unwrap();
        assert!(subflow.flags.asked(), "{subflow:?}");
    }
}
