//! Where a client is.

use std::net::SocketAddr;

use hawser_pooler::relay::PeerAddress;

use crate::limits::failed_logins::Place;
use crate::limits::half_open::Network;

/// The longest name that PostgreSQL keeps (NAMEDATALEN - 1); longer ones are cut, as it does.
pub(super) const NAME_BYTES_MAX: usize = 63;

/// Where a client is.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Its address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix {
        /// The user of its process, if the kernel gives it and the process is the client's own, not
        /// a load balancer.
        uid: Option<u32>,
    },
}

impl Origin {
    /// As loops and the log name it.
    pub(super) fn peer(&self) -> PeerAddress {
        match self {
            Self::Tcp(address) => (*address).into(),
            Self::Unix { .. } => PeerAddress::Unix,
        }
    }

    /// The network with which it shares the places for half-open logins.
    pub fn network(&self) -> Network {
        match self {
            Self::Tcp(address) => address.ip().into(),
            Self::Unix { .. } => Network::Unix,
        }
    }

    /// With whom it fails to log in.
    pub(super) fn place(&self) -> Place {
        let uid = match self {
            Self::Tcp(_) => None,
            Self::Unix { uid } => *uid,
        };
        (self.network(), uid)
    }
}
