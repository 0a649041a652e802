//! Hosts and the links between them.
//!
//! # Invariants  a `Description` is valid: names are unique and fit the kernel, links join hosts
//!               that exist, every host can be reached; [`super::parse`] makes no other

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::direction::Wire;
use super::network::{End, Port};

/// Hosts at most: each is a network namespace, which takes the kernel some milliseconds.
pub const HOSTS_MAX: usize = 32;
/// Links at most: each has an address range, 10.77.N.0/24.
pub const LINKS_MAX: usize = 64;
/// Paths of a link at most.
pub const PATHS_MAX: usize = 64;
/// Classes of a limit at most.
pub const CLASSES_MAX: usize = 4096;

/// A network.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// The first is the near host, the last is the far one.
    pub hosts: Vec<Host>,
    /// In the order of the file.
    pub links: Vec<Link>,
    /// A packet that leaves later than this is late: see the laboratory's report.
    pub lateness_max: Duration,
}

/// A machine of its own, as far as its network goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Kernel settings of its namespace: names as in sysctl(8), all below `net.`.
    pub sysctl: Vec<(String, String)>,
}

/// What joins two hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// The name of its interface on both hosts.
    pub name: String,
    /// Indexes into [`Description::hosts`].
    pub between: [usize; 2],
    /// Largest packet.
    pub mtu_bytes: u32,
    /// At least one; more are chosen from by a hash of the flow.
    pub paths: Vec<Path>,
}

/// One way through a link.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// Its share of the flows, against the weights of the others.
    pub weight: u32,
    /// From the first host of the link to the second.
    pub forward: Wire,
    /// From the second to the first.
    pub backward: Wire,
}

impl Path {
    /// The direction of what enters at `end`.
    #[must_use]
    pub fn wire(&self, end: End) -> &Wire {
        match end {
            End::First => &self.forward,
            End::Second => &self.backward,
        }
    }
}

impl Link {
    /// Whether it does nothing to packets.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.paths.iter().all(|path| path.forward.is_plain() && path.backward.is_plain())
    }

    /// Which host is at an end.
    #[must_use]
    pub fn host(&self, end: End) -> usize {
        self.between[end as usize]
    }
}

impl Description {
    /// The index of a host.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }

    /// The addresses of one end of a link: 10.77.LINK.1 and .2, fd77:0:0:LINK::1 and ::2.
    #[must_use]
    pub fn addresses(&self, port: Port) -> (Ipv4Addr, Ipv6Addr) {
        let link = u8::try_from(port.link).expect("LINKS_MAX fits");
        let end = port.end as u8 + 1;
        let v6 = Ipv6Addr::new(0xFD77, 0, 0, u16::from(link), 0, 0, 0, u16::from(end));
        (Ipv4Addr::new(10, 77, link, end), v6)
    }

    /// The ports of a host, in the order of links.
    pub fn ports(&self, host: usize) -> impl Iterator<Item = Port> + '_ {
        self.links.iter().enumerate().flat_map(move |(link, of_link)| {
            let ends = End::BOTH.into_iter().filter(move |&end| of_link.host(end) == host);
            ends.map(move |end| Port { link, end })
        })
    }

    /// Where a host sends what is for a link that it is not at: the port by which to leave, on a
    /// way of the fewest links.
    #[must_use]
    pub fn next_port(&self, host: usize, link: usize) -> Option<Port> {
        let mut first: Vec<Option<Port>> = vec![None; self.hosts.len()];
        let mut queue = VecDeque::from([host]);
        while let Some(at) = queue.pop_front() {
            if self.links[link].between.contains(&at) {
                return first[at];
            }
            for port in self.ports(at) {
                let there = self.links[port.link].host(port.end.other());
                if there != host && first[there].is_none() {
                    first[there] = first[at].or(Some(port));
                    queue.push_back(there);
                }
            }
        }
        None
    }

    /// The first host that cannot be reached from the near one.
    #[must_use]
    pub fn unreachable(&self) -> Option<usize> {
        let mut seen = vec![false; self.hosts.len()];
        let mut queue = vec![0];
        while let Some(at) = queue.pop() {
            if !std::mem::replace(&mut seen[at], true) {
                queue.extend(self.ports(at).map(|p| self.links[p.link].host(p.end.other())));
            }
        }
        seen.iter().position(|seen| !seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wan::parse::parse;

    #[test]
    fn routes_lead_over_the_fewest_links() {
        let description = parse(
            "test",
            "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n[[host]]\nname = \"c\"\n\
             [[link]]\nname = \"ab\"\nbetween = [\"a\", \"b\"]\n\
             [[link]]\nname = \"bc\"\nbetween = [\"b\", \"c\"]\n",
        )
        .unwrap();
        assert_eq!(description.next_port(0, 0), None, "it is at that link itself");
        assert_eq!(description.next_port(0, 1), Some(Port { link: 0, end: End::First }));
        assert_eq!(description.next_port(2, 0), Some(Port { link: 1, end: End::Second }));
    }
}
