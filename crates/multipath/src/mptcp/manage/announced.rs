//! Addresses that a peer has announced, and those that this end has.
//!
//! # Model
//! An address has a number in its connection. ADD_ADDR says it with its number, REMOVE_ADDR the number alone
//! (RFC 8684, sections 3.4.1 and 3.4.2); 0 is the address at which the connection was dialled. A number in
//! use names no other address.
//!
//! # Invariants
//! * at most [`REMOTES_MAX`] addresses of a peer are kept: one that it takes back makes room for another

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// Addresses of a peer that are kept; it may announce hundreds.
pub const REMOTES_MAX: usize = 8;

/// What a peer has announced, and not taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// With their numbers, in the order in which they came.
    addresses: Vec<(u8, SocketAddr)>,
    first: First,
}

/// The address at which the connection was dialled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum First {
    #[default]
    Usable,
    Removed,
}

impl Announced {
    /// It has announced an address; port 0 is the port of the connection.
    pub fn add(&mut self, number: u8, address: SocketAddr) {
        let in_use = self.addresses.iter().any(|(used, _)| *used == number);
        if !in_use && self.addresses.len() < REMOTES_MAX {
            self.addresses.push((number, address));
        }
    }

    /// It has taken back the address of this number.
    pub fn remove(&mut self, number: u8) {
        if number == 0 {
            self.first = First::Removed;
        }
        self.addresses.retain(|(used, _)| *used != number);
    }

    /// Where subflows of a connection may be dialled that was dialled at `first`.
    #[must_use]
    pub fn remotes(&self, first: SocketAddr) -> Vec<SocketAddr> {
        let mut remotes = Vec::new();
        if self.first == First::Usable {
            remotes.push(first);
        }
        for (_, address) in &self.addresses {
            let port = if address.port() == 0 { first.port() } else { address.port() };
            let address = SocketAddr::new(address.ip().to_canonical(), port);
            let special = address.ip().is_loopback() && !first.ip().is_loopback();
            if !special && !remotes.contains(&address) && remotes.len() < REMOTES_MAX {
                remotes.push(address);
            }
        }
        remotes
    }
}

/// What to announce to the peer about an address of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It can be dialled.
    Announce(IpAddr),
    /// It has gone.
    Withdraw(IpAddr),
}

/// Addresses of this machine that were announced to a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advertised(BTreeSet<IpAddr>);

impl Advertised {
    /// What has changed, where `usable` can be dialled and `here` are all addresses of this machine: one
    /// that is here and not usable any more (its default route has gone) still carries what it carries.
    /// `None`: they cannot be read, so none is known to have gone.
    pub fn update(&mut self, usable: &[IpAddr], here: Option<&BTreeSet<IpAddr>>) -> Vec<Change> {
        let mut changes = Vec::new();
        if let Some(here) = here {
            changes.extend(self.0.difference(here).map(|gone| Change::Withdraw(*gone)));
            self.0.retain(|address| here.contains(address));
        }
        let new = usable.iter().filter(|address| self.0.insert(**address));
        changes.extend(new.map(|address| Change::Announce(*address)));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_that_was_taken_back_is_dialled_no_more() {
        let first = socket("10.0.0.1:5432");
        let mut announced = Announced::default();
        announced.add(3, socket("10.0.1.1:0"));
        announced.add(4, socket("10.0.0.1:6433"));
        // The number is in use.
        announced.add(3, socket("10.0.9.9:0"));
        let all = [first, socket("10.0.1.1:5432"), socket("10.0.0.1:6433")];
        assert_eq!(announced.remotes(first), all);
        announced.remove(3);
        assert_eq!(announced.remotes(first), [first, socket("10.0.0.1:6433")]);
        announced.remove(0);
        assert_eq!(announced.remotes(first), [socket("10.0.0.1:6433")]);
        announced.add(3, socket("10.0.1.2:0"));
        let two = [socket("10.0.0.1:6433"), socket("10.0.1.2:5432")];
        assert_eq!(announced.remotes(first), two);
    }

    #[test]
    fn addresses_that_were_taken_back_leave_room_for_others() {
        let mut announced = Announced::default();
        for number in 1..=200u8 {
            announced.add(number, SocketAddr::from(([10, 0, number, 1], 0)));
        }
        let first = socket("10.0.0.1:5432");
        assert_eq!(announced.remotes(first).len(), REMOTES_MAX);
        for number in 1..=8u8 {
            announced.remove(number);
        }
        announced.add(201, socket("10.1.0.1:0"));
        assert_eq!(announced.remotes(first), [first, socket("10.1.0.1:5432")]);
    }

    #[test]
    fn addresses_are_announced_and_removed_once() {
        let [a, b] = ["10.0.1.1", "10.0.2.1"].map(|text| text.parse().unwrap());
        let mut advertised = Advertised::default();
        let both = BTreeSet::from([a, b]);
        assert_eq!(
            advertised.update(&[a, b], Some(&both)),
            [Change::Announce(a), Change::Announce(b)]
        );
        assert_eq!(advertised.update(&[a, b], Some(&both)), []);
        // Its default route has gone, or addresses cannot be read: it carries what it carries.
        assert_eq!(advertised.update(&[a], Some(&both)), []);
        assert_eq!(advertised.update(&[], None), []);
        let one = BTreeSet::from([a]);
        assert_eq!(advertised.update(&[a], Some(&one)), [Change::Withdraw(b)]);
        assert_eq!(advertised.update(&[a], Some(&one)), []);
        assert_eq!(advertised.update(&[a, b], Some(&both)), [Change::Announce(b)]);
    }
}
