//! Links that the kernel carries: its own queues between the hosts.
//!
//! # Model
//! ```text
//!   host            the wires' own namespace                              host
//!   wan ══ a ─► [c: rate, queue] ══ d ─► [b: loss, delay, jitter, reorder] ══ wan
//!   wan ══ [a: loss, delay ...] ◄─ c ══ [d: rate, queue] ◄─ b ══ wan
//! ```
//! `══` is a pair of interfaces (veth), `─►` a redirection of all that arrives, which is taken away
//! while an outage lasts ([`timetable`]). So a packet meets what [`crate::wan::direction`] says, in
//! that order. Rates are by tbf, the rest by netem.
//!
//! # Invariants
//! - a sender sees no queue of its own machine: its packets have left it when they come to one
//! - both ends of a link have one hardware address, and no address is asked for across it
//!
//! # Why not
//! - netem alone, on the senders: its queue counts what is under way with what waits, a sender's TCP
//!   sees its drops, and it acts on segments of 64 KiB
//! - a bridge: it learns and floods, which a line does not
//!
//! # Limits
//! - no limits per flow, no ECMP, no `overhead` below Ethernet's, no jitter with reordering
//! - another loss for the same seed than the emulator and virtual time; before Linux 6.6, another
//!   one each time
//! - how late the kernel is cannot be seen of its packets: [`probes`] are sent beside them
//! - datagrams of UDP_SEGMENT meet the queues before they are cut
//! - with several processors, neighbouring packets may swap places by some microseconds

mod probes;
mod timetable;

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hawser_sys::namespace;
use hawser_sys::rtnetlink::queueing::{
    Chance, Emulation, QueueBound, TokenBucket, Variation, table_of,
};
use hawser_sys::rtnetlink::{Interface, Routing};

use self::probes::Probes;
use self::timetable::TimeTable;
use super::lateness::LatenessCounts;
use super::setup::{DEVICE_QUEUE_PACKETS, UpError, at, inside};
use crate::rng::Rng;
use crate::wan::Description;
use crate::wan::description::{By, Link};
use crate::wan::direction::{Cause, Counts, ETHERNET_OVERHEAD_BYTES, Reorder, Wire};
use crate::wan::loss::{GilbertElliott, Loss};
use crate::wan::network::{End, Port};
use crate::wan::queue::Bound;

/// What may leave at once: a timer that is late by no more than this costs no rate.
const BURST: Duration = Duration::from_millis(2);
/// From here on `auto` takes the kernel: the emulator carries some 3 Gbit/s.
const FAST_BITS_PER_SECOND: u64 = 2_000_000_000;

/// Who carries a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A pair of interfaces alone: it does nothing to packets.
    Pair,
    /// The kernel's queues.
    Kernel,
    /// The thread between TUN devices.
    Emulator,
}

/// A part of the kernel that it may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Delay and chance.
    Netem,
    /// Rates.
    TokenBucket,
    /// From one interface to another.
    Redirection,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Netem => "netem (CONFIG_NET_SCH_NETEM, module sch_netem)",
            Self::TokenBucket => "tbf (CONFIG_NET_SCH_TBF, module sch_tbf)",
            Self::Redirection => {
                "redirection (CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_U32 and CONFIG_NET_ACT_MIRRED; \
                 modules sch_ingress, cls_u32 and act_mirred)"
            }
        })
    }
}

/// Who carries each link.
///
/// # Errors
/// The kernel must carry a link, and cannot.
pub(super) fn choose(description: &Description) -> Result<Vec<Carrier>, UpError> {
    description.links.iter().map(choose_one).collect()
}

fn choose_one(link: &Link) -> Result<Carrier, UpError> {
    if link.is_plain() {
        return Ok(Carrier::Pair);
    }
    let lacks = || needs(link).into_iter().find_map(|part| missing(part).transpose()).transpose();
    match link.by {
        By::Emulator => Ok(Carrier::Emulator),
        By::Kernel => {
            let name = || link.name.clone();
            if let Some(why) = obstacle(link) {
                return Err(UpError::Beyond { link: name(), why });
            }
            match lacks()? {
                Some(part) => Err(UpError::Lacks { link: name(), part }),
                None => Ok(Carrier::Kernel),
            }
        }
        By::Auto if is_fast_and_certain(link) && obstacle(link).is_none() && lacks()?.is_none() => {
            Ok(Carrier::Kernel)
        }
        By::Auto => Ok(Carrier::Emulator),
    }
}

fn wires(link: &Link) -> impl Iterator<Item = &Wire> {
    link.paths.iter().flat_map(|path| [&path.forward, &path.backward])
}

/// What is asked of a link that the kernel cannot do.
fn obstacle(link: &Link) -> Option<&'static str> {
    if link.paths.len() > 1 {
        return Some("several paths (ECMP)");
    }
    wires(link).find_map(|wire| {
        let of_table = |share: f64| share == 0.0 || table_of(share).is_some();
        if wire.limit.is_some() {
            Some("limits per flow")
        } else if wire.rate.is_some() && wire.overhead_bytes < ETHERNET_OVERHEAD_BYTES {
            Some("an `overhead` below 14B")
        } else if wire.reorder.is_some() && !wire.jitter.is_zero() {
            Some("both `jitter` and `reorder`")
        } else if wire.reorder.is_some_and(|reorder| !of_table(reorder.share.get())) {
            Some("a `reorder` of so small a share")
        } else {
            None
        }
    })
}

/// Whether the emulator may be too slow for it, and the kernel does the same to the same packets.
fn is_fast_and_certain(link: &Link) -> bool {
    let is_fast =
        |wire: &Wire| wire.rate.is_none_or(|rate| rate.bits_per_second() >= FAST_BITS_PER_SECOND);
    wires(link).all(|wire| {
        is_fast(wire) && wire.loss.is_none() && wire.jitter.is_zero() && wire.reorder.is_none()
    })
}

fn needs_netem(wire: &Wire) -> bool {
    !wire.delay.is_zero() || !wire.loss.is_none() || wire.reorder.is_some()
}

/// The parts of the kernel that a link needs; the bucket in any case, for probes.
fn needs(link: &Link) -> Vec<Part> {
    let mut parts = vec![Part::Redirection, Part::TokenBucket];
    if wires(link).any(needs_netem) {
        parts.push(Part::Netem);
    }
    parts
}

/// The part, where the kernel lacks it: asked for in a namespace of its own, on its loopback.
fn missing(part: Part) -> Result<Option<Part>, UpError> {
    let network = super::setup::namespace("the kernel's test")?;
    let ask = || {
        let mut routing = Routing::open()?;
        let loopback = routing.interface("lo")?;
        match part {
            Part::Netem => routing.set_emulation(loopback, &Emulation::default()),
            Part::TokenBucket => routing.set_token_bucket(
                loopback,
                &TokenBucket {
                    bytes_per_second: 1_000_000,
                    overhead_bytes: 0,
                    burst_bytes: 100_000, // loopback's largest packet is of 64 KiB
                    queue: QueueBound::Packets(1),
                },
            ),
            Part::Redirection => routing.redirect(loopback, loopback),
        }
    };
    let asked = namespace::within(&network, ask).map_err(at("entering a namespace"))?;
    match asked {
        Ok(()) => Ok(None),
        // Unknown kinds are ENOENT; ENOTSUP and EINVAL are older or smaller kernels' ways.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(UpError::Rights { source: error })
        }
        Err(_) => Ok(Some(part)),
    }
}

/// The links of a laboratory that the kernel carries. They are gone with this.
#[derive(Debug)]
pub(super) struct Wires {
    network: OwnedFd,
    lines: Vec<Line>,
    /// Whether its chance follows from the seed; `None` where there is no chance.
    pub(super) is_seeded: Option<bool>,
    probes: Probes,
    _timetable: Option<TimeTable>,
}

/// What has happened so far.
#[derive(Debug)]
pub(super) struct Counted {
    /// By each direction.
    pub(super) ways: Vec<(Port, Counts)>,
    /// Packets that interfaces have dropped for want of room.
    pub(super) drops: u64,
    /// An interface was deleted inside, and with it its other end here.
    pub(super) is_over: bool,
}

/// A link's interfaces in the wires' namespace.
#[derive(Clone, Copy, Debug)]
struct Line {
    link: usize,
    /// The other ends of the hosts' interfaces: a and b.
    ends: [Interface; 2],
    /// The pair between them: c and d.
    middle: [Interface; 2],
}

/// Interfaces of a line, as they are called: a, b, c or d with the link's number.
fn name(letter: char, link: usize) -> String {
    format!("{letter}{link}")
}

const ENDS: [char; 2] = ['a', 'b'];
const MIDDLE: [char; 2] = ['c', 'd'];

/// The hardware address of both ends of a link: a locally administered one.
pub(super) fn hardware(link: usize) -> [u8; 6] {
    [0x02, 0x77, 0, 0, 0, u8::try_from(link).expect("LINKS_MAX fits")]
}

impl Wires {
    /// Makes the links that the kernel must carry; `None` if there are none.
    pub(super) fn lay(
        description: &Description,
        carriers: &[Carrier],
        hosts: &[OwnedFd],
        seed: u64,
    ) -> Result<Option<Self>, UpError> {
        let links: Vec<usize> =
            (0..carriers.len()).filter(|&link| carriers[link] == Carrier::Kernel).collect();
        if links.is_empty() {
            return Ok(None);
        }
        let network = super::setup::namespace("the wires")?;
        let lay_all = || {
            // No packets but those of the experiment; a kernel without IPv6 has none.
            let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            let mut lines = Vec::new();
            let mut is_seeded = None;
            for &link in &links {
                let of_link = &description.links[link];
                let both = of_link.between.map(|host| &hosts[host]);
                let line = lay(of_link, link, both).and_then(|line| {
                    let seeded = shape(of_link, &line, seed)?;
                    is_seeded = is_seeded.or(seeded);
                    Ok(line)
                });
                lines.push(line.map_err(at(format!("laying link `{}`", of_link.name)))?);
            }
            Ok((lines, is_seeded))
        };
        let (lines, is_seeded) = inside(&network, lay_all)?;
        let probes = Probes::start().map_err(at("probing how late the kernel is"))?;
        Ok(Some(Self { network, lines, is_seeded, probes, _timetable: None }))
    }

    /// Begins the outages; times count from `began`.
    pub(super) fn begin(&mut self, description: &Description, began: Instant) -> io::Result<()> {
        let network = self.network.try_clone()?;
        let ways = self.lines.iter().flat_map(|line| {
            let path = &description.links[line.link].paths[0];
            End::BOTH.map(|end| timetable::Way {
                from: line.ends[end as usize],
                to: line.middle[end as usize],
                outages: path.wire(end).outages.clone(),
            })
        });
        let ways = ways.filter(|way| !way.outages.is_empty()).collect();
        self._timetable = TimeTable::start(network, ways, began)?;
        Ok(())
    }

    /// How late probes left.
    pub(super) fn lateness(&self) -> LatenessCounts {
        self.probes.lateness()
    }

    /// What has happened so far.
    pub(super) fn counts(&self, description: &Description) -> io::Result<Counted> {
        namespace::within(&self.network, || {
            let mut routing = Routing::open()?;
            let interfaces = std::fs::read_to_string("/proc/thread-self/net/dev")?;
            let drops = send_drops(&interfaces);
            let mut all = Counted { ways: Vec::new(), drops, is_over: false };
            for line in &self.lines {
                for end in End::BOTH {
                    let wire = description.links[line.link].paths[0].wire(end);
                    let counts = line.counts(&mut routing, &interfaces, end, wire)?;
                    all.is_over |= counts.is_none();
                    let counts = counts.unwrap_or_default();
                    all.ways.push((Port { link: line.link, end }, counts));
                }
            }
            Ok(all)
        })?
    }
}

impl Line {
    /// `None` where its interfaces are gone.
    fn counts(
        &self,
        routing: &mut Routing,
        interfaces: &str,
        end: End,
        wire: &Wire,
    ) -> io::Result<Option<Counts>> {
        let arrived = received(interfaces, &name(ENDS[end as usize], self.link));
        let passed = received(interfaces, &name(MIDDLE[end.other() as usize], self.link));
        let (Some(arrived), Some(passed)) = (arrived, passed) else { return Ok(None) };
        let mut counts = Counts { packets: arrived.packets, ..Counts::default() };
        counts.bytes =
            arrived.bytes.saturating_sub(ETHERNET_OVERHEAD_BYTES.saturating_mul(arrived.packets));
        let queue = routing.queue_counts(self.middle[end as usize])?;
        if wire.rate.is_some() {
            counts.dropped[Cause::Queue as usize] = queue.dropped;
        }
        if !wire.outages.is_empty() {
            // What came and did not go on; some may be on their way from one to the other.
            let held = if wire.rate.is_some() { queue.dropped + queue.waiting } else { 0 };
            counts.dropped[Cause::Outage as usize] =
                arrived.packets.saturating_sub(passed.packets + held);
        }
        if needs_netem(wire) {
            let chance = routing.queue_counts(self.ends[end.other() as usize])?;
            counts.dropped[Cause::Loss as usize] = chance.dropped;
        }
        Ok(Some(counts))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Arrived {
    packets: u64,
    bytes: u64,
}

/// What an interface has received, by `/proc/net/dev`: the first two figures of its line.
fn received(text: &str, interface: &str) -> Option<Arrived> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, figures) = lines.find(|(name, _)| name.trim() == interface)?;
    let mut figures = figures.split_whitespace().map(|figure| figure.parse().unwrap_or(0));
    Some(Arrived { bytes: figures.next().unwrap_or(0), packets: figures.next().unwrap_or(0) })
}

/// Makes a link's interfaces, and joins them.
fn lay(link: &Link, number: usize, hosts: [&OwnedFd; 2]) -> io::Result<Line> {
    let mut routing = Routing::open()?;
    let text = |name: String| CString::new(name).expect("names have no NUL");
    for (letter, host) in ENDS.into_iter().zip(hosts) {
        routing.add_pair(&text(name(letter, number)), &text(link.name.clone()), host)?;
    }
    let here = namespace::own_network()?;
    let [c, d] = MIDDLE.map(|letter| text(name(letter, number)));
    routing.add_pair(&c, &d, &here)?;
    let mut all = Vec::new();
    for letter in ENDS.into_iter().chain(MIDDLE) {
        let interface = routing.interface(&name(letter, number))?;
        routing.set_sizes(interface, link.mtu_bytes, DEVICE_QUEUE_PACKETS)?;
        routing.set_up(interface)?;
        all.push(interface);
    }
    let line = Line { link: number, ends: [all[0], all[1]], middle: [all[2], all[3]] };
    for end in [0, 1] {
        routing.redirect(line.ends[end], line.middle[end])?;
        routing.redirect(line.middle[end], line.ends[end])?;
    }
    Ok(line)
}

/// Gives each direction what is asked of it. Says whether the seed was taken, where there is chance.
fn shape(link: &Link, line: &Line, seed: u64) -> io::Result<Option<bool>> {
    let mut routing = Routing::open()?;
    let mut is_seeded = None;
    for end in End::BOTH {
        let wire = link.paths[0].wire(end);
        if let Some(bucket) = bucket(wire, link.mtu_bytes) {
            routing.set_token_bucket(line.middle[end as usize], &bucket)?;
        }
        if needs_netem(wire) {
            let number = (line.link * 2 + end as usize) as u64;
            let own_seed = seed ^ Rng::new(number).next_u64();
            let by = line.ends[end.other() as usize];
            routing.set_emulation(by, &emulation(wire, own_seed))?;
            if !wire.loss.is_none() || !wire.jitter.is_zero() || wire.reorder.is_some() {
                is_seeded = Some(routing.has_seed(by)? && is_seeded != Some(false));
            }
        }
    }
    Ok(is_seeded)
}

fn bucket(wire: &Wire, mtu_bytes: u32) -> Option<TokenBucket> {
    let bytes_per_second = (wire.rate?.bits_per_second() / 8).max(1);
    let within = |time: Duration| u128::from(bytes_per_second) * time.as_nanos() / 1_000_000_000;
    let small = |bytes: u128| u32::try_from(bytes).unwrap_or(u32::MAX);
    let overhead = wire.overhead_bytes.saturating_sub(ETHERNET_OVERHEAD_BYTES);
    let largest = u128::from(mtu_bytes) + u128::from(ETHERNET_OVERHEAD_BYTES + overhead);
    let queue = match wire.queue {
        Bound::Packets(packets) => QueueBound::Packets(packets),
        Bound::Bytes(bytes) => QueueBound::Bytes(small(bytes.into())),
        Bound::Time(time) => QueueBound::Bytes(small(within(time) + largest)),
    };
    Some(TokenBucket {
        bytes_per_second,
        overhead_bytes: u16::try_from(overhead).unwrap_or(u16::MAX),
        burst_bytes: small(within(BURST).max(largest)),
        queue,
    })
}

fn emulation(wire: &Wire, seed: u64) -> Emulation {
    let varies = match wire.reorder {
        Some(Reorder { share, by }) => Variation::HeldBack { share: share.get(), by },
        None if wire.jitter.is_zero() => Variation::Constant,
        None => Variation::Even(wire.jitter),
    };
    let loss = match wire.loss {
        Loss::Independent(share) => Chance::Independent(share.get()),
        Loss::GilbertElliott(GilbertElliott {
            good_to_bad,
            bad_to_good,
            loss_in_bad,
            loss_in_good,
        }) => Chance::Chain {
            good_to_bad: good_to_bad.get(),
            bad_to_good: bad_to_good.get(),
            loss_in_bad: loss_in_bad.get(),
            loss_in_good: loss_in_good.get(),
        },
    };
    Emulation { delay: wire.delay, varies, loss, seed }
}

/// Packets that interfaces dropped when sending, by `/proc/net/dev`: the 12th figure of a line.
pub(super) fn send_drops(text: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let figures = lines.filter(|(name, _)| name.trim() != "lo").map(|(_, figures)| figures);
    figures.filter_map(|f| f.split_whitespace().nth(11)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests;
