//! All links of a description, and what is on its way through them.
//!
//! # Model
//! A packet enters at a [`Port`], one end of a link. The link picks one of its paths by a hash of
//! the flow (ECMP) and the path's [`Direction`] its fate; what arrives waits in a heap until its
//! time, and comes out at the port at the other end.
//!
//! # Invariants
//! - arrivals come out in order of time, and of entry where times are equal
//! - at most [`ON_THE_WAY_MAX`] packets are held; one more is dropped and counted as overflow,
//!   which the laboratory takes for unfaithful
//!
//! # Why not     flows kept on a path by a table: routers hash, and two directions of a flow may
//!               take different paths, as they do there

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use super::description::Description;
use super::direction::{Counts, Direction, Fate};
use super::flow::Flow;
use crate::rng::Rng;

/// Packets held at most: 10 Gbit/s of full packets for 150 ms.
pub const ON_THE_WAY_MAX: usize = 1 << 17;

/// Which end of a link: the first that the description names, or the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// The first: what enters here goes forward.
    First,
    /// The second: what enters here goes backward.
    Second,
}

impl End {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::First, Self::Second];

    /// The other end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// Where a packet enters or leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port {
    /// Which link, in the order of the description.
    pub link: usize,
    /// Which end of it.
    pub end: End,
}

/// A packet that has come out.
#[derive(Debug)]
pub struct Arrival<T> {
    /// When.
    pub at: Duration,
    /// Where.
    pub port: Port,
    /// The packet itself.
    pub packet: T,
}

/// What one direction of one path has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathCounts {
    /// Which link, and at which end packets enter.
    pub from: Port,
    /// Which of the link's paths.
    pub path: usize,
    /// What it has carried.
    pub counts: Counts,
}

#[derive(Debug)]
struct Path {
    weight: u32,
    directions: [Direction; 2],
}

#[derive(Debug)]
struct Link {
    paths: Vec<Path>,
    /// For the choice of a path, by direction.
    seeds: [u64; 2],
}

#[derive(Debug)]
struct Flight<T> {
    at: Duration,
    number: u64,
    port: Port,
    packet: T,
}

/// The links, with packets of any kind on their way.
#[derive(Debug)]
pub struct Network<T> {
    links: Vec<Link>,
    flights: BinaryHeap<Reverse<Flight<T>>>,
    entered: u64,
    overflows: u64,
}

impl<T> Network<T> {
    /// The links of a description, with nothing on its way. Everything that is left to chance
    /// follows from `seed`.
    #[must_use]
    pub fn new(description: &Description, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut links = Vec::new();
        for link in &description.links {
            let mut of_link = rng.fork();
            let seeds = [of_link.next_u64(), of_link.next_u64()];
            let mut paths = Vec::new();
            for path in &link.paths {
                let mut direction =
                    |end: End| Direction::new(path.wire(end).clone(), of_link.next_u64());
                let directions = End::BOTH.map(&mut direction);
                paths.push(Path { weight: path.weight, directions });
            }
            links.push(Link { paths, seeds });
        }
        Self { links, flights: BinaryHeap::new(), entered: 0, overflows: 0 }
    }

    /// A packet of `bytes` enters at `port`. `now` must not go backwards.
    ///
    /// # Panics
    /// Where the description has no such link.
    pub fn enter(&mut self, now: Duration, port: Port, flow: Flow, bytes: u64, packet: T) -> Fate {
        let link = &mut self.links[port.link];
        let path = link.path_of(flow, port.end);
        let fate = link.paths[path].directions[port.end as usize].offer(now, flow, bytes);
        if let Fate::Arrives(at) = fate {
            if self.flights.len() >= ON_THE_WAY_MAX {
                self.overflows += 1;
                return fate;
            }
            let port = Port { end: port.end.other(), ..port };
            self.flights.push(Reverse(Flight { at, number: self.entered, port, packet }));
            self.entered += 1;
        }
        fate
    }

    /// When the next packet comes out.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Duration> {
        self.flights.peek().map(|Reverse(flight)| flight.at)
    }

    /// The next packet that has come out by `now`.
    pub fn take_arrival(&mut self, now: Duration) -> Option<Arrival<T>> {
        if self.next_arrival()? > now {
            return None;
        }
        let Reverse(Flight { at, port, packet, .. }) = self.flights.pop()?;
        Some(Arrival { at, port, packet })
    }

    /// Packets on their way.
    #[must_use]
    pub fn on_the_way(&self) -> usize {
        self.flights.len()
    }

    /// Packets that were dropped for [`ON_THE_WAY_MAX`] alone.
    #[must_use]
    pub fn overflows(&self) -> u64 {
        self.overflows
    }

    /// What each direction of each path has carried.
    pub fn counts(&self) -> impl Iterator<Item = PathCounts> + '_ {
        self.links.iter().enumerate().flat_map(|(link, of_link)| {
            of_link.paths.iter().enumerate().flat_map(move |(path, of_path)| {
                End::BOTH.map(|end| PathCounts {
                    from: Port { link, end },
                    path,
                    counts: of_path.directions[end as usize].counts(),
                })
            })
        })
    }

    /// Which path of the link a flow takes, and its class there if flows have limits.
    ///
    /// # Panics
    /// Where the description has no such link.
    #[must_use]
    pub fn place_of(&self, port: Port, flow: Flow) -> (usize, Option<usize>) {
        let link = &self.links[port.link];
        let path = link.path_of(flow, port.end);
        (path, link.paths[path].directions[port.end as usize].class_of(flow))
    }
}

impl Link {
    fn path_of(&self, flow: Flow, end: End) -> usize {
        if self.paths.len() == 1 {
            return 0;
        }
        let weights: u32 = self.paths.iter().map(|path| path.weight).sum();
        let mut left = flow.index(self.seeds[end as usize], weights as usize);
        for (index, path) in self.paths.iter().enumerate() {
            let weight = path.weight as usize;
            if left < weight {
                return index;
            }
            left -= weight;
        }
        self.paths.len() - 1
    }
}

// By time, then by entry. The packet has no part in it.
impl<T> Ord for Flight<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<T> PartialOrd for Flight<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Flight<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Flight<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wan::parse::parse;

    fn network(toml: &str) -> Network<u32> {
        Network::new(&parse("test", toml).unwrap(), 1)
    }

    fn flow(port: u16) -> Flow {
        Flow::udp([10, 0, 0, 1].into(), port, [10, 0, 0, 2].into(), 2)
    }

    const FORWARD: Port = Port { link: 0, end: End::First };

    #[test]
    fn arrivals_come_in_order_of_time_at_the_other_end() {
        let mut network = network("[[link]]\ndelay = \"10ms\"\n[link.backward]\ndelay = \"3ms\"");
        let ms = Duration::from_millis;
        network.enter(ms(0), FORWARD, flow(1), 100, 1);
        network.enter(ms(0), FORWARD, flow(1), 100, 2);
        network.enter(ms(1), Port { end: End::Second, ..FORWARD }, flow(1), 100, 3);
        assert_eq!(network.next_arrival(), Some(ms(4)));
        assert!(network.take_arrival(ms(3)).is_none());
        let mut order = Vec::new();
        while let Some(arrival) = network.take_arrival(ms(100)) {
            order.push((arrival.packet, arrival.at, arrival.port.end));
        }
        assert_eq!(
            order,
            [(3, ms(4), End::First), (1, ms(10), End::Second), (2, ms(10), End::Second)]
        );
    }

    #[test]
    fn flows_are_spread_over_paths_by_weight() {
        let network = network(
            "[[link]]\n[[link.path]]\nweight = 3\ndelay = \"10ms\"\n[[link.path]]\ndelay = \"50ms\"",
        );
        let first = (0..4_000).filter(|&p| network.place_of(FORWARD, flow(p)).0 == 0).count();
        assert!((2_900..3_100).contains(&first), "{first}");
        let stays = |p| network.place_of(FORWARD, flow(p)) == network.place_of(FORWARD, flow(p));
        assert!((0..100).all(stays));
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut network = network("[[link]]\ndelay = \"10s\"");
        for _ in 0..=ON_THE_WAY_MAX {
            network.enter(Duration::ZERO, FORWARD, flow(1), 100, 0);
        }
        assert_eq!((network.on_the_way(), network.overflows()), (ON_THE_WAY_MAX, 1));
    }
}
