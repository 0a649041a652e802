//! Destinations: prefixes of addresses, and what is remembered of one.
//!
//! # Limits
//! A prefix stands for a path: /24 of IPv4, /48 of IPv6, which is what a site is given (RFC 6177).
//! Hosts of one prefix that are far from each other share what is learnt.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeSet;
use std::time::Duration;

use hawser_time::Time;

use super::algorithm::Algorithm;
use super::trial::Trial;

/// Bits of an IPv4 address that name a destination.
const BITS_V4: u32 = 24;
/// Bits of an IPv6 address that do.
const BITS_V6: u32 = 48;
/// For how long a choice holds that was better.
const KEPT_FOR: Duration = Duration::from_secs(3600);
/// For how long nothing is tried where nothing was better.
const LEFT_FOR: Duration = Duration::from_secs(900);
/// How soon a trial without result is tried again.
const PAUSE: Duration = Duration::from_secs(60);

/// The addresses of a destination.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, derive_more::Display)]
#[display("{network}/{bits}")]
pub struct Prefix {
    network: IpAddr,
    bits: u32,
}

impl Prefix {
    /// The destination of an address. `None` for those that are of this host or link: there is no
    /// path to choose for.
    #[must_use]
    pub fn of(address: IpAddr) -> Option<Self> {
        match address.to_canonical() {
            IpAddr::V4(v4) => {
                let is_local = v4.is_loopback() || v4.is_link_local() || v4.is_unspecified();
                let network = Ipv4Addr::from_bits(v4.to_bits() & (u32::MAX << (32 - BITS_V4)));
                (!is_local).then_some(Self { network: network.into(), bits: BITS_V4 })
            }
            IpAddr::V6(v6) => {
                let is_local =
                    v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified();
                let network = Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << (128 - BITS_V6)));
                (!is_local).then_some(Self { network: network.into(), bits: BITS_V6 })
            }
        }
    }
}

/// Where a destination stands.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// Its flows are watched; nothing is tried before.
    Watching { not_before: Time },
    /// A candidate is tried.
    Trying(Box<Trial>),
    /// What it has is right until then.
    Settled { until: Time },
}

/// What is known of a destination.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    /// What its flows have.
    pub(super) algorithm: Algorithm,
    pub(super) state: State,
    /// The candidates that have been tried since what was learnt was forgotten.
    pub(super) tried: BTreeSet<Algorithm>,
    pub(super) used: Time,
    /// Flows that are open and watched.
    pub(super) flows: u32,
}

impl Destination {
    pub(super) fn new(default: Algorithm, now: Time) -> Self {
        Self {
            algorithm: default,
            state: State::Watching { not_before: now },
            tried: BTreeSet::new(),
            used: now,
            flows: 0,
        }
    }

    /// The best of the candidates that has not been tried yet.
    pub(super) fn next_candidate(&self, candidates: &[Algorithm]) -> Option<Algorithm> {
        let is_new = |one: &&Algorithm| **one != self.algorithm && !self.tried.contains(*one);
        candidates.iter().find(is_new).copied()
    }

    /// Nothing was learnt: it is watched, after a pause.
    pub(super) fn pause(&mut self, now: Time) {
        self.state = State::Watching { not_before: now.after(PAUSE) };
    }

    /// All candidates have been tried: `has_changed` if one of them was better.
    pub(super) fn settle(&mut self, now: Time, has_changed: bool) {
        let hold = if has_changed { KEPT_FOR } else { LEFT_FOR };
        self.state = State::Settled { until: now.after(hold) };
    }

    /// Whether what was learnt is too old.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        matches!(self.state, State::Settled { until } if until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(address: &str) -> Option<String> {
        Prefix::of(address.parse().unwrap()).map(|prefix| prefix.to_string())
    }

    #[test]
    fn a_destination_is_a_site() {
        assert_eq!(prefix("203.0.113.77").as_deref(), Some("203.0.113.0/24"));
        assert_eq!(prefix("::ffff:203.0.113.7").as_deref(), Some("203.0.113.0/24"));
        assert_eq!(prefix("2001:db8:1:2::3").as_deref(), Some("2001:db8:1::/48"));
    }

    #[test]
    fn this_host_and_its_links_are_none() {
        for address in ["127.0.0.1", "::1", "169.254.1.1", "fe80::1", "::ffff:127.0.0.1"] {
            assert_eq!(prefix(address), None, "{address}");
        }
    }
}
