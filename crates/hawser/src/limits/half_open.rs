//! Logins that wait for their client, and the choice of the one that gives way when places run out.
//!
//! # Model
//! A login waits for its client several times: for its first packet, for its part of the TLS
//! handshake, for its proof, and, after a refusal, for its end. For as long as it waits it is
//! listed here, by what it waits for and by the network that it came from. When there is no place
//! for one more, one of these gives its own up:
//!
//! ```text
//!   waits for        gives way
//!   its leaving      at once
//!   a first packet   at once
//!   TLS, a proof     when it has waited for PATIENCE, or its network has at least two more of them
//!                    than the newcomer's: places go from who has most to who has fewer
//! ```
//!
//! Within each kind the network with the most logins loses first, and of its logins the one that
//! has waited longest. [`Network`] defines a network.
//!
//! # Invariants
//! * a login that waits for us (a password hash, a server, its turn on the login threads before its
//!   handshake) is not listed, and never gives way
//! * finding the next one takes logarithmic time, however many wait
//! * at most [`GOING_MAX`] have given way and are not gone yet: the number of connections may
//!   exceed its bound only by that
//!
//! # Why not the oldest of all
//! A flood from one address would throw out every client that is slower than the flood.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// How long a login that has begun keeps its place while it waits for its client's next message:
/// longer than any round trip, and than a full login queue takes.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Logins that have given way and are not gone yet.
pub const GOING_MAX: usize = 128;

/// What a login waits for. The first ones give way before the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Awaited {
    /// The end of a refused client.
    Leaving,
    /// A first packet.
    FirstPacket,
    /// The client's part of the TLS handshake, or its next packet if it has asked for encryption.
    Encryption,
    /// A proof. The login holds a client's place.
    Proof,
    /// The same for the admin console: it holds none.
    AdminProof,
}

impl Awaited {
    const ALL: [Self; 5] =
        [Self::Leaving, Self::FirstPacket, Self::Encryption, Self::Proof, Self::AdminProof];

    /// Whether the client has sent nothing yet, or nothing more is expected.
    fn is_expendable(self) -> bool {
        matches!(self, Self::Leaving | Self::FirstPacket)
    }
}

/// Clients that are counted together: an IPv4 address, the 64 bits of IPv6 that one host has for
/// itself, and all on unix sockets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Network {
    /// This host, by a unix socket.
    Unix,
    /// An address.
    V4(u32),
    /// The upper half of an address.
    V6(u64),
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}

/// One that waits.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    /// Dropped when it gives way.
    _stay: oneshot::Sender<()>,
}

/// A network's rank: the last one loses first.
type Rank = (usize, Reverse<u64>, Network);

/// All logins that wait for the same thing.
#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<(Network, u64), Waiting>,
    count_of: HashMap<Network, usize>,
    ranks: BTreeSet<Rank>,
}

impl Queue {
    fn count_of(&self, network: Network) -> usize {
        self.count_of.get(&network).copied().unwrap_or(0)
    }

    fn rank(&self, network: Network) -> Option<Rank> {
        let (&(_, oldest), _) = self.waiting.range((network, 0)..=(network, u64::MAX)).next()?;
        Some((self.count_of(network), Reverse(oldest), network))
    }

    /// Changes a network's entries, and with them its rank.
    fn change<T>(&mut self, network: Network, change: impl FnOnce(&mut Self) -> T) -> T {
        if let Some(rank) = self.rank(network) {
            self.ranks.remove(&rank);
        }
        let done = change(self);
        self.ranks.extend(self.rank(network));
        done
    }

    fn insert(&mut self, network: Network, number: u64, waiting: Waiting) {
        self.change(network, |queue| {
            queue.waiting.insert((network, number), waiting);
            *queue.count_of.entry(network).or_default() += 1;
        });
    }

    /// `false`: it has been taken out before.
    fn remove(&mut self, network: Network, number: u64) -> bool {
        self.change(network, |queue| {
            let was_there = queue.waiting.remove(&(network, number)).is_some();
            if was_there && let Some(count) = queue.count_of.get_mut(&network) {
                *count -= 1;
                if *count == 0 {
                    queue.count_of.remove(&network);
                }
            }
            was_there
        })
    }

    /// The login that must give way to a newcomer.
    fn next(
        &self,
        newcomer: Option<Network>,
        is_expendable: bool,
        now: Instant,
    ) -> Option<(Network, u64)> {
        let &(count, Reverse(oldest), network) = self.ranks.last()?;
        let key = (network, oldest);
        let has_waited = |waiting: &Waiting| now.duration_since(waiting.since) >= PATIENCE;
        let gives = is_expendable
            || self.waiting.get(&key).is_some_and(has_waited)
            || newcomer.is_some_and(|newcomer| count >= self.count_of(newcomer) + 2);
        gives.then_some(key)
    }
}

/// All logins that wait for their client.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    queues: [Queue; Awaited::ALL.len()],
    /// How many have given way and are not gone yet, by what they waited for.
    going: [usize; Awaited::ALL.len()],
    last_number: u64,
}

/// Where a login is listed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    awaited: Awaited,
    network: Network,
    number: u64,
}

impl HalfOpen {
    /// Lists a login. The returned receiver ends when it must give way.
    pub(super) fn list(
        &mut self,
        awaited: Awaited,
        network: Network,
        since: Instant,
    ) -> (Entry, oneshot::Receiver<()>) {
        let (stay, gives_way) = oneshot::channel();
        self.last_number += 1;
        let number = self.last_number;
        self.queues[awaited as usize].insert(network, number, Waiting { since, _stay: stay });
        (Entry { awaited, network, number }, gives_way)
    }

    /// Removes a login that waits no more, or has gone.
    pub(super) fn strike(&mut self, entry: Entry) {
        let Entry { awaited, network, number } = entry;
        if !self.queues[awaited as usize].remove(network, number) {
            self.going[awaited as usize] -= 1;
        }
    }

    /// How many wait for this.
    pub(super) fn count(&self, awaited: Awaited) -> usize {
        self.queues[awaited as usize].waiting.len()
    }

    /// How many have given way and still hold their places.
    pub(super) fn going(&self) -> usize {
        self.going.iter().sum()
    }

    /// The same for those that hold a client's place.
    pub(super) fn going_clients(&self) -> usize {
        self.going[Awaited::Proof as usize]
    }

    /// Makes one of these give way.
    pub(super) fn make_room(
        &mut self,
        of: &[Awaited],
        newcomer: Option<Network>,
        now: Instant,
    ) -> bool {
        if self.going() >= GOING_MAX {
            return false;
        }
        for &awaited in of {
            let queue = &mut self.queues[awaited as usize];
            if let Some((network, number)) = queue.next(newcomer, awaited.is_expendable(), now) {
                queue.remove(network, number);
                self.going[awaited as usize] += 1;
                return true;
            }
        }
        false
    }

    /// The same, among all.
    pub(super) fn make_room_of_any(&mut self, newcomer: Option<Network>, now: Instant) -> bool {
        self.make_room(&Awaited::ALL, newcomer, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOD: Network = Network::V4(1);
    const OTHER: Network = Network::V4(2);

    struct World {
        half_open: HalfOpen,
        now: Instant,
        listed: Vec<(&'static str, Entry, oneshot::Receiver<()>)>,
    }

    impl World {
        fn new() -> Self {
            Self { half_open: HalfOpen::default(), now: Instant::now(), listed: Vec::new() }
        }

        fn list(&mut self, name: &'static str, awaited: Awaited, network: Network) {
            let (entry, gives_way) = self.half_open.list(awaited, network, self.now);
            self.listed.push((name, entry, gives_way));
        }

        /// The login that gives way to a newcomer, and goes.
        fn room_for(&mut self, newcomer: Network) -> Option<&'static str> {
            if !self.half_open.make_room_of_any(Some(newcomer), self.now) {
                return None;
            }
            let told = |(_, _, gives_way): &mut (_, _, oneshot::Receiver<()>)| {
                gives_way.try_recv() == Err(oneshot::error::TryRecvError::Closed)
            };
            let at = self.listed.iter_mut().position(told).expect("one is told");
            assert_eq!(self.half_open.going(), 1);
            let (name, entry, _) = self.listed.remove(at);
            self.half_open.strike(entry);
            assert_eq!(self.half_open.going(), 0);
            Some(name)
        }
    }

    #[test]
    fn the_silent_give_way_first_and_of_them_the_oldest_of_who_has_most() {
        let mut world = World::new();
        world.list("other, proving", Awaited::Proof, OTHER);
        world.list("other", Awaited::FirstPacket, OTHER);
        world.list("first", Awaited::FirstPacket, FLOOD);
        world.list("second", Awaited::FirstPacket, FLOOD);
        world.list("refused", Awaited::Leaving, OTHER);
        assert_eq!(world.room_for(FLOOD), Some("refused"));
        assert_eq!(world.room_for(FLOOD), Some("first"));
        // One each: the one that came first.
        assert_eq!(world.room_for(FLOOD), Some("other"));
        assert_eq!(world.room_for(FLOOD), Some("second"));
        assert_eq!(world.room_for(FLOOD), None, "who proves itself does not give way to its equal");
    }

    #[test]
    fn who_has_begun_gives_way_after_a_while_or_to_a_network_that_has_fewer() {
        let mut world = World::new();
        world.list("first", Awaited::Proof, FLOOD);
        world.list("second", Awaited::Proof, FLOOD);
        assert_eq!(world.room_for(FLOOD), None);
        assert_eq!(world.room_for(OTHER), Some("first"));
        assert_eq!(world.room_for(OTHER), None, "one each would be the other way round");
        world.now += PATIENCE - Duration::from_millis(1);
        assert_eq!(world.room_for(FLOOD), None);
        world.now += Duration::from_millis(1);
        assert_eq!(world.room_for(FLOOD), Some("second"));
    }

    #[test]
    fn who_goes_is_bounded() {
        let mut world = World::new();
        for _ in 0..GOING_MAX + 1 {
            world.list("", Awaited::FirstPacket, FLOOD);
        }
        for _ in 0..GOING_MAX {
            assert!(world.half_open.make_room_of_any(None, world.now));
        }
        assert!(!world.half_open.make_room_of_any(None, world.now));
        world.half_open.strike(world.listed[0].1);
        assert!(world.half_open.make_room_of_any(None, world.now));
    }

    #[test]
    fn nothing_is_left_of_who_does_not_wait_any_more() {
        let mut world = World::new();
        for number in 0..10 {
            world.list("", Awaited::Encryption, Network::V4(number % 3));
        }
        world.listed.drain(..).for_each(|(_, entry, _)| world.half_open.strike(entry));
        let queue = &world.half_open.queues[Awaited::Encryption as usize];
        assert!(queue.waiting.is_empty() && queue.count_of.is_empty() && queue.ranks.is_empty());
        assert_eq!(world.half_open.going(), 0);
    }

    #[test]
    fn a_host_has_64_bits_of_ipv6_and_ipv4_is_one_in_whatever_clothes() {
        let network = |text: &str| Network::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
    }
}
