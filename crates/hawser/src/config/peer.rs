//! `peers`: other poolers to which the same clients connect.

use hawser_pooler::parts::identity::process_ids::PEERS_MAX;

use super::address::{ServerAddress, is_unix};
use super::error::Rejected;
use super::setting::Setting;
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
        let address = address.trim();
        if address.contains("://") || address.contains('?') {
            return Err(format!(
                "`{text}`: a peer is host:port or the path of a unix socket, and nothing more"
            ));
        }
        // (Without one, a server's would be taken.)
        let ends: &[char] = if is_unix(address) { &[':', '.'] } else { &[':'] };
        let port = address.rsplit(ends).next().filter(|port| *port != address);
        if port.is_none_or(|port| port.parse::<u16>().is_err()) {
            return Err(format!("`{text}`: the port is missing, as in {address}:6432"));
        }
        let address = ServerAddress::parse(address)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_a_number_and_a_port() {
        for (text, shown) in [
            ("1=10.0.0.1:6432", "10.0.0.1:6432"),
            (" 255 = h:1", "h:1"),
            ("2=[::1]:6432", "[::1]:6432"),
            ("3=/tmp/x:6432", "/tmp/x/.s.PGSQL.6432"),
            ("3=/tmp/x/.s.PGSQL.6432", "/tmp/x/.s.PGSQL.6432"),
        ] {
            let peer = Peer::parse(text).unwrap();
            assert_eq!(peer.address.to_string(), shown, "{text}");
        }
        for (text, reason) in [
            ("10.0.0.1:6432", "NUMBER=host:port"),
            ("0=h:1", "1 to 255"),
            ("256=h:1", "1 to 255"),
            ("2=10.0.0.2", "the port is missing"),
            ("2=[::1]", "the port is missing"),
            ("2=/tmp/x", "the port is missing"),
            ("2=h:6432?mptcp=require", "nothing more"),
            ("2=link://a/h:1", "nothing more"),
        ] {
            assert!(Peer::parse(text).unwrap_err().contains(reason), "{text}");
        }
    }
}
