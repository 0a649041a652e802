//! Whose connections begin with a header of the PROXY protocol.
//!
//! # Model       `NETWORK` or `NETWORK@PORT`: an address, a network as `10.0.0.0/8`, or `unix` for all
//!               that come by unix sockets; with a port, only where Hawser listens on that port
//! # Invariants  an empty list trusts no address

use std::fmt;
use std::net::IpAddr;

use super::error::Rejected;
use super::setting::{Form, Setting};
use super::value::{Context, Raw, SettingType, items};

/// Addresses that may announce the client for which they connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxySources(Vec<ProxySource>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct ProxySource {
    network: Network,
    /// Where Hawser listens; `None`: everywhere.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Network {
    Unix,
    Ip { address: IpAddr, bits: u8 },
}

impl ProxySources {
    /// Whether a connection from `address` (`None`: by a unix socket) to the listener of this port
    /// begins with a header.
    #[must_use]
    pub fn trust(&self, address: Option<IpAddr>, port: Option<u16>) -> bool {
        self.0.iter().any(|source| {
            (source.port.is_none() || source.port == port) && source.network.has(address)
        })
    }
}

impl Network {
    fn has(&self, address: Option<IpAddr>) -> bool {
        match (self, address.map(|address| address.to_canonical())) {
            (Self::Unix, None) => true,
            (Self::Ip { address: IpAddr::V4(network), bits }, Some(IpAddr::V4(address))) => {
                let outside = 32 - u32::from(*bits);
                (u64::from(network.to_bits()) ^ u64::from(address.to_bits())) >> outside == 0
            }
            (Self::Ip { address: IpAddr::V6(network), bits }, Some(IpAddr::V6(address))) => {
                let different = network.to_bits() ^ address.to_bits();
                different.leading_zeros() >= u32::from(*bits)
            }
            _ => false,
        }
    }
}

impl ProxySource {
    fn parse(text: &str) -> Result<Self, String> {
        let (network, port) = match text.split_once('@') {
            Some((network, port)) => {
                let number = port.parse().ok().filter(|port| *port > 0);
                (network, Some(number.ok_or_else(|| format!("`{port}` is not a port"))?))
            }
            None => (text, None),
        };
        let not_one = || {
            format!(
                "`{text}` is no source of PROXY headers: write an address, a network \
                 (10.0.0.0/8), or unix; @6432 after it is for the listener of that port alone"
            )
        };
        if network == "unix" {
            return Ok(Self { network: Network::Unix, port });
        }
        let (address, bits) = network.split_once('/').unwrap_or((network, ""));
        let address: IpAddr = address.parse().map_err(|_| not_one())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match (network.contains('/'), bits.parse()) {
            (false, _) => most,
            (true, Ok(bits)) if bits <= most => bits,
            (true, _) => return Err(not_one()),
        };
        Ok(Self { network: Network::Ip { address, bits }, port })
    }
}

impl fmt::Display for ProxySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.network {
            Network::Unix => f.write_str("unix")?,
            Network::Ip { address, bits } => write!(f, "{address}/{bits}")?,
        }
        match self.port {
            Some(port) => write!(f, "@{port}"),
            None => Ok(()),
        }
    }
}

impl SettingType for ProxySources {
    const KIND: &'static str = "a network or a list of them";
    const FORM: Form = Form::List;

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        let (items, mut refusals) = items::<Self>(raw)?;
        let mut sources = Vec::new();
        for (item, at) in items {
            sources.extend(refusals.keep(ProxySource::parse(item), &at));
        }
        refusals.or(Self(sources))
    }

    fn show(&self, _: &Setting) -> String {
        self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(texts: &[&str]) -> ProxySources {
        ProxySources(texts.iter().map(|text| ProxySource::parse(text).unwrap()).collect())
    }

    #[test]
    fn a_source_is_a_network_and_maybe_a_port() {
        let ip = |text: &str| Some(text.parse().unwrap());
        let some = sources(&["10.1.0.0/16", "192.0.2.7", "2001:db8::/32@7000", "unix@7001"]);
        for (address, port, trusted) in [
            (ip("10.1.255.255"), Some(1), true),
            (ip("::ffff:10.1.0.1"), Some(1), true),
            (ip("10.2.0.0"), Some(1), false),
            (ip("10.0.255.255"), Some(1), false),
            (ip("192.0.2.7"), None, true),
            (ip("192.0.2.6"), None, false),
            (ip("2001:db8:ffff::1"), Some(7000), true),
            (ip("2001:db8:ffff::1"), Some(7001), false),
            (ip("2001:db9::"), Some(7000), false),
            (None, Some(7001), true),
            (None, Some(7000), false),
        ] {
            assert_eq!(some.trust(address, port), trusted, "{address:?} {port:?}");
        }
        let all = sources(&["0.0.0.0/0"]);
        assert!(all.trust(ip("255.0.0.1"), None) && !all.trust(ip("::1"), None));
        assert!(!all.trust(None, None) && !ProxySources::default().trust(ip("::1"), None));
        assert!(sources(&["::/0"]).trust(ip("ffff::"), None));
    }

    #[test]
    fn what_is_no_source_is_refused() {
        for text in ["", "*", "host", "10.0.0.0/33", "10.0.0.0/", "::/129", "::1@0", "unix@x"] {
            assert!(ProxySource::parse(text).is_err(), "{text}");
        }
    }
}
