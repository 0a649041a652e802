//! `peers`: other poolers to which the same clients connect.

use hawser_core::engine::PEERS_MAX;

use super::address::ServerAddress;
use super::error::Rejected;
use super::registry::Setting;
use super::value::{Context, Raw, SettingType, items};

/// Another pooler, or this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number, from 1 on.
    pub id: u8,
    /// Where it listens: by TCP, or on a unix socket.
    pub address: ServerAddress,
}

impl Peer {
    /// Reads `NUMBER=host:port`.
    ///
    /// # Errors
    /// What is wrong with it, and what is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (id, address) = text.split_once('=').ok_or_else(|| {
            format!("`{text}`: a peer is NUMBER=host:port, as in 2=10.0.0.2:6432")
        })?;
        let id = id.trim().parse().ok().filter(|id| (1..=PEERS_MAX).contains(id));
        let id = id.ok_or_else(|| format!("`{text}`: the number of a peer is 1 to {PEERS_MAX}"))?;
        let address = ServerAddress::parse(address.trim())?;
        if matches!(address, ServerAddress::Link { .. }) {
            return Err(format!(
                "`{text}`: a peer is reached by TCP or a unix socket, not by a link"
            ));
        }
        Ok(Self { id, address })
    }
}

impl SettingType for Vec<Peer> {
    const KIND: &'static str = "a list of peers, each NUMBER=host:port";

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        let (items, mut refusals) = items::<Self>(raw)?;
        let mut peers = Self::new();
        for (item, at) in items {
            let Some(peer) = refusals.keep(Peer::parse(item), &at) else { continue };
            if peers.iter().any(|known: &Peer| known.id == peer.id) {
                refusals.add(Rejected::new(format!("peer {} is given twice", peer.id)).at(at));
                continue;
            }
            peers.push(peer);
        }
        refusals.or(peers)
    }

    fn show(&self, _: &Setting) -> String {
        let peers: Vec<_> =
            self.iter().map(|peer| format!("{}={}", peer.id, peer.address)).collect();
        peers.join(",")
    }
}
