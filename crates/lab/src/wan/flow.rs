//! Which flow a packet belongs to.
//!
//! # Model       the 5-tuple: protocol, addresses and ports, as routers hash it for ECMP and limits
//! # Invariants  a packet of any bytes has a flow or is no IP; nothing panics
//! # Limits      fragments count without ports, because the later ones carry none: all of a
//!               datagram's fragments stay together. IPv6 extension headers are not walked

use std::net::IpAddr;

use crate::rng::Rng;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A 5-tuple. Where a protocol has no ports they are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    protocol: u8,
    from: (u128, u16),
    to: (u128, u16),
}

impl Flow {
    /// A flow of UDP datagrams.
    #[must_use]
    pub fn udp(from: IpAddr, from_port: u16, to: IpAddr, to_port: u16) -> Self {
        Self { protocol: UDP, from: (number(from), from_port), to: (number(to), to_port) }
    }

    /// One direction of a TCP connection.
    #[must_use]
    pub fn tcp(from: IpAddr, from_port: u16, to: IpAddr, to_port: u16) -> Self {
        Self { protocol: TCP, from: (number(from), from_port), to: (number(to), to_port) }
    }

    /// The flow of an IP packet; `None` where `packet` is none, or is multicast or link-local: what
    /// a kernel says of itself to a new device belongs to no experiment.
    #[must_use]
    pub fn of(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::of_v4(packet),
            6 => Self::of_v6(packet),
            _ => None,
        }
    }

    fn of_v4(packet: &[u8]) -> Option<Self> {
        let header_bytes = usize::from(packet[0] & 15) * 4;
        let header = packet.get(..header_bytes.max(20))?;
        let address = |at: usize| header[at..at + 4].try_into().map(u32::from_be_bytes);
        let (from, to) = (address(12).ok()?, address(16).ok()?);
        if to >> 28 == 14 || to == u32::MAX {
            return None;
        }
        // RFC 791: more fragments, or an offset.
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3FFF != 0;
        let rest = if fragment { &[] } else { packet.get(header_bytes..)? };
        Some(Self::with_ports(header[9], u128::from(from), u128::from(to), rest))
    }

    fn of_v6(packet: &[u8]) -> Option<Self> {
        let header = packet.get(..40)?;
        let address = |at: usize| header[at..at + 16].try_into().map(u128::from_be_bytes);
        let (from, to) = (address(8).ok()?, address(24).ok()?);
        if to >> 120 == 0xFF || to >> 118 == 0xFE80 >> 6 {
            return None;
        }
        Some(Self::with_ports(header[6], from, to, &packet[40..]))
    }

    fn with_ports(protocol: u8, from: u128, to: u128, rest: &[u8]) -> Self {
        let (from_port, to_port) = match (protocol, rest) {
            (TCP | UDP, [a, b, c, d, ..]) => {
                (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]))
            }
            _ => (0, 0),
        };
        Self { protocol, from: (from, from_port), to: (to, to_port) }
    }

    /// The ports, from and to.
    #[must_use]
    pub fn ports(self) -> (u16, u16) {
        (self.from.1, self.to.1)
    }

    /// The flow of the answers.
    #[must_use]
    pub fn reverse(self) -> Self {
        Self { protocol: self.protocol, from: self.to, to: self.from }
    }

    /// A number that follows from the flow and the seed, spread evenly.
    #[must_use]
    pub fn hash(self, seed: u64) -> u64 {
        let ports = u64::from(self.from.1) << 32 | u64::from(self.to.1) << 16;
        let words = [self.from.0, self.to.0].into_iter().flat_map(halves);
        let mix = |state: u64, word: u64| Rng::new(state ^ word).next_u64();
        words.fold(mix(seed, ports | u64::from(self.protocol)), mix)
    }

    /// One of `count`, all as likely.
    #[must_use]
    pub fn index(self, seed: u64, count: usize) -> usize {
        let scaled = (u128::from(self.hash(seed)) * count as u128) >> 64;
        usize::try_from(scaled).expect("below count, which is a usize")
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, (number & u128::from(u64::MAX)) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(rest);
        packet
    }

    #[test]
    fn ports_make_flows() {
        let (near, far) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        assert_eq!(Flow::of(&v4(17, 0, &[0, 5, 0, 9])), Some(Flow::udp(near, 5, far, 9)));
        assert_eq!(Flow::of(&v4(6, 0x4000, &[0, 5, 0, 9])), Some(Flow::tcp(near, 5, far, 9)));
        assert_eq!(Flow::of(&v4(6, 0x2000, &[0, 5, 0, 9])), Some(Flow::tcp(near, 0, far, 0)));
        assert_eq!(Flow::of(&v4(6, 0, &[0, 5])), Some(Flow::tcp(near, 0, far, 0)));
    }

    #[test]
    fn a_version_6_packet_has_a_flow() {
        let mut packet = vec![0x60, 0, 0, 0, 0, 4, 17, 64];
        let near: IpAddr = "fd77::1".parse().unwrap();
        let far: IpAddr = "fd77::2".parse().unwrap();
        packet.extend(number(near).to_be_bytes());
        packet.extend(number(far).to_be_bytes());
        packet.extend([0, 5, 0, 9]);
        assert_eq!(Flow::of(&packet), Some(Flow::udp(near, 5, far, 9)));
        packet[24] = 0xFF;
        assert_eq!(Flow::of(&packet), None, "multicast");
        packet[24..26].copy_from_slice(&[0xFE, 0x80]);
        assert_eq!(Flow::of(&packet), None, "link-local");
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut rng = Rng::new(5);
        for length in 0..80 {
            for first in [0x40, 0x45, 0x4F, 0x60, 0x00, 0xFF] {
                let mut packet: Vec<u8> = (0..length).map(|_| rng.next_u64() as u8).collect();
                if let Some(byte) = packet.first_mut() {
                    *byte = first;
                }
                let _ = Flow::of(&packet);
            }
        }
    }

    #[test]
    fn flows_are_spread_evenly() {
        let mut counts = [0; 8];
        for port in 0..8_000 {
            counts
                [Flow::tcp([10, 0, 0, 1].into(), port, [10, 0, 0, 2].into(), 5432).index(1, 8)] +=
                1;
        }
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
    }
}
