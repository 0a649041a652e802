//! What is known of a client from its login on, and what it may be doing.

use core::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6}; // data; std::net is for I/O
use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::time::Time;

/// When a client gives its backend back (PgBouncer's `pool_mode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum PoolMode {
    /// When it leaves.
    Session,
    /// When its transaction ends.
    #[default]
    Transaction,
    /// When its statement ends; transaction blocks are refused.
    Statement,
}

/// What becomes of listening clients when the pool's listening connection is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum ListenLost {
    /// They are disconnected, as they would be with their own.
    #[default]
    Disconnect,
    /// They get a warning, and the pool listens for them again.
    Notice,
}

/// Where a client comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerAddress {
    /// A unix socket.
    Unix,
    /// Address and port.
    V4(SocketAddrV4),
    /// Address and port.
    V6(Box<SocketAddrV6>),
}

impl From<SocketAddr> for PeerAddress {
    /// IPv4 addresses in IPv6 notation become IPv4 addresses.
    fn from(address: SocketAddr) -> Self {
        match (address, address.ip().to_canonical()) {
            (_, IpAddr::V4(ip)) => Self::V4(SocketAddrV4::new(ip, address.port())),
            (SocketAddr::V6(address), _) => Self::V6(Box::new(address)),
            (SocketAddr::V4(address), _) => Self::V4(address),
        }
    }
}

impl fmt::Display for PeerAddress {
    /// The address without its port; `unix` for unix sockets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix => f.write_str("unix"),
            Self::V4(address) => address.ip().fmt(f),
            Self::V6(address) => address.ip().fmt(f),
        }
    }
}

impl PeerAddress {
    /// The port; 0 for unix sockets.
    pub fn port(&self) -> u16 {
        match self {
            Self::Unix => 0,
            Self::V4(address) => address.port(),
            Self::V6(address) => address.port(),
        }
    }

    /// The address; `None` for unix sockets.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Unix => None,
            Self::V4(address) => Some(IpAddr::V4(*address.ip())),
            Self::V6(address) => Some(IpAddr::V6(*address.ip())),
        }
    }
}

/// Who a client is: for SHOW, logs and limits.
#[derive(Clone, Debug)]
pub struct ClientAbout {
    /// Where it comes from.
    pub peer: PeerAddress,
    /// When it connected.
    pub connected: Time,
    details: Option<Box<Details>>, // most clients have none
}

#[derive(Clone, Debug)]
struct Details {
    user: Option<Box<str>>,
    tls: Box<str>,
    mptcp: bool,
}

impl ClientAbout {
    /// `user`: the authenticated user, if it is not the pool's. `tls`: a description of TLS, empty
    /// without TLS.
    pub fn new(peer: PeerAddress, user: Option<&str>, tls: &str, connected: Time) -> Self {
        let details = (user.is_some() || !tls.is_empty()).then(|| {
            Box::new(Details { user: user.map(Into::into), tls: tls.into(), mptcp: false })
        });
        Self { peer, connected, details }
    }

    /// The same client, over MPTCP.
    #[must_use]
    pub fn over_mptcp(mut self) -> Self {
        let none = || Box::new(Details { user: None, tls: "".into(), mptcp: true });
        self.details.get_or_insert_with(none).mptcp = true;
        self
    }

    /// Whether it came over MPTCP.
    pub fn mptcp(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details.mptcp)
    }

    /// The authenticated user, if it is not the pool's.
    pub fn user(&self) -> Option<&str> {
        self.details.as_ref()?.user.as_deref()
    }

    /// Description of TLS, empty without.
    pub fn tls(&self) -> &str {
        self.details.as_ref().map_or("", |details| &details.tls)
    }
}

/// Random bytes that a client's cancel request must show: BackendKeyData's secret key.
#[derive(Clone)]
pub enum ClientSecret {
    /// Protocol 3.0.
    Short([u8; 4]),
    /// Protocol 3.2: up to 256 bytes.
    Long(Box<[u8]>),
}

impl From<&[u8]> for ClientSecret {
    fn from(bytes: &[u8]) -> Self {
        bytes.try_into().map_or_else(|_| Self::Long(bytes.into()), Self::Short)
    }
}

impl PartialEq for ClientSecret {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl std::ops::Deref for ClientSecret {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long(bytes) => bytes,
        }
    }
}

/// The key that a cancel request carries, and what its sender holds until each loop that the
/// request may be for has handled it.
#[derive(Clone)]
pub struct CancelKey {
    bytes: Box<[u8]>,
    _held: Option<Arc<dyn Any + Send + Sync>>,
}

impl CancelKey {
    /// `held` is dropped with the last copy of the request.
    pub fn holding(bytes: &[u8], held: Arc<dyn Any + Send + Sync>) -> Self {
        Self { bytes: bytes.into(), _held: Some(held) }
    }
}

impl<B: Into<Box<[u8]>>> From<B> for CancelKey {
    fn from(bytes: B) -> Self {
        Self { bytes: bytes.into(), _held: None }
    }
}

impl std::ops::Deref for CancelKey {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What a client is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientState {
    /// Has no backend and wants none.
    Idle,
    /// Wants a backend.
    Waiting,
    /// Has a backend.
    Active,
    /// Is served by its server itself: see [`crate::relay::inside`].
    Inside,
    /// Has got its last message; the connection is being closed.
    Closing,
}
