//! What the kernel does to packets that leave by an interface: queueing disciplines (tc(8)).
//!
//! # Model
//! ```text
//!   arrive at an interface ──► redirected ──► leave by another: token bucket (tbf), or delay and
//!                                             chance (netem) ──► its peer
//! ```
//! # Invariants  speaks to the namespace of its [`Routing`]; a discipline that is there is replaced
//! # Why not     HTB: a bucket is needed and no classes, which tbf is in one message
//! # Limits      a kind that the kernel lacks is ENOENT; modules are loaded by the kernel itself.
//!               netem counts in nanoseconds since Linux 4.16, takes a seed since 6.6

use std::io;
use std::time::Duration;

use super::{Interface, Routing};
use crate::netlink::attribute::{Attributes, Writer, u32_at, u64_at};
use crate::netlink::{ACK, DUMP, Question};

/// `TC_H_ROOT`.
const ROOT: u32 = u32::MAX;
/// `TC_H_INGRESS`: where [`Routing::redirect`] puts its discipline, whose handle is [`INGRESS`].
const INGRESS_PARENT: u32 = 0xFFFF_FFF1;
const INGRESS: u32 = 0xFFFF_0000;
/// The handle of every discipline at a root here, and of the only one below it.
const HANDLE: u32 = 0x0001_0000;
const CHILD: u32 = 0x0002_0000;
/// `struct tcmsg`: family and padding, interface, handle, parent, info.
const FIXED_BYTES: usize = 20;
/// `NET_SCHED`'s clock: a tick is 64 ns since Linux 2.6.31 (`PSCHED_SHIFT`).
const TICK_NS: u64 = 64;
/// `TC_LINKLAYER_ETHERNET`: packets are not rounded up to cells.
const ETHERNET: u8 = 1;
/// netem orders packets of varying delay only where it has a rate, too: one that is none.
const ENDLESS_BYTES_PER_SECOND: u64 = 1 << 40;
/// `NETEM_DIST_MAX`: entries of a table of delays.
const TABLE_MAX: usize = 16_384;
/// `NETEM_DIST_SCALE`: what one standard deviation is in such a table.
const TABLE_ONE: i16 = 8192;
/// Packets on their way through netem; beyond them it would drop.
const ON_THE_WAY_MAX: u32 = 1_000_000;

/// A server at a fixed rate, and what may wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Bytes in a second.
    pub bytes_per_second: u64,
    /// Counted for each packet beside its bytes with the Ethernet header.
    pub overhead_bytes: u16,
    /// What may leave at once after a pause.
    pub burst_bytes: u32,
    /// What may wait.
    pub queue: QueueBound,
}

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBound {
    /// This many packets.
    Packets(u32),
    /// This many bytes, Ethernet headers included.
    Bytes(u32),
}

/// Delay and chance: netem.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Emulation {
    /// Of every packet.
    pub delay: Duration,
    /// How delays vary.
    pub varies: Variation,
    /// What is lost.
    pub loss: Chance,
    /// What chance follows from, where the kernel lets say so.
    pub seed: u64,
}

/// How delays vary.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Variation {
    /// Not at all.
    #[default]
    Constant,
    /// Evenly, by up to so much to both sides; packets stay in order.
    Even(Duration),
    /// A share of packets takes longer by so much, and is overtaken.
    HeldBack {
        /// 0 to 1.
        share: f64,
        /// Beyond the delay.
        by: Duration,
    },
}

/// What is lost. Shares are 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Chance {
    /// Each packet with this probability.
    Independent(f64),
    /// By a chain of two states (Gilbert and Elliott).
    Chain {
        /// From the good state to the bad one, with each packet.
        good_to_bad: f64,
        /// Back.
        bad_to_good: f64,
        /// Loss in the bad state.
        loss_in_bad: f64,
        /// Loss in the good state.
        loss_in_good: f64,
    },
}

impl Default for Chance {
    fn default() -> Self {
        Self::Independent(0.0)
    }
}

/// What a discipline has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Packets that left.
    pub left: u64,
    /// Packets that it dropped.
    pub dropped: u64,
    /// Packets that wait.
    pub waiting: u64,
}

/// The entries of the best table for a share: how many in all, how many of them are held back.
/// `None` for a share that no table has to within half a percent of it.
#[must_use]
pub fn table_of(share: f64) -> Option<(usize, usize)> {
    #[expect(clippy::cast_precision_loss, reason = "both are small")]
    let error = |all: usize, held: usize| (held as f64 / all as f64 / share - 1.0).abs();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to TABLE_MAX")]
    let held = |all: usize| (all as f64 * share).round() as usize;
    let sizes = (1..=TABLE_MAX).rev().map(|all| (all, held(all)));
    let best = sizes.min_by(|a, b| error(a.0, a.1).total_cmp(&error(b.0, b.1)))?;
    (error(best.0, best.1) < 0.005).then_some(best)
}

impl Routing {
    /// Lets what leaves by an interface wait for its turn at a rate.
    ///
    /// # Errors
    /// ENOENT in a kernel without tbf or pfifo, EPERM.
    pub fn set_token_bucket(&mut self, on: Interface, bucket: &TokenBucket) -> io::Result<()> {
        let (TokenBucket { bytes_per_second, overhead_bytes, burst_bytes, queue }, mut options) =
            (*bucket, Writer::default());
        let small_rate = u32::try_from(bytes_per_second).unwrap_or(u32::MAX);
        // tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate
        let mut parameters = vec![0, ETHERNET];
        parameters.extend_from_slice(&overhead_bytes.to_ne_bytes());
        parameters.extend_from_slice(&[0; 4]);
        parameters.extend_from_slice(&small_rate.to_ne_bytes());
        // tc_tbf_qopt: rate, peak rate (none), limit in bytes, buffer and mtu (by TCA_TBF_BURST)
        parameters.extend_from_slice(&[0; 12]);
        let limit = match queue {
            QueueBound::Packets(_) => u32::MAX,
            QueueBound::Bytes(bytes) => bytes,
        };
        parameters.extend_from_slice(&[limit, burst_bytes, 0].map(u32::to_ne_bytes).concat());
        const TCA_TBF_PARMS: u16 = 1;
        const TCA_TBF_RATE64: u16 = 4;
        const TCA_TBF_BURST: u16 = 6;
        options.bytes(TCA_TBF_PARMS, &parameters);
        options.u32(TCA_TBF_BURST, burst_bytes);
        if bytes_per_second > u64::from(u32::MAX) {
            options.bytes(TCA_TBF_RATE64, &bytes_per_second.to_ne_bytes());
        }
        self.set_discipline(on, (HANDLE, ROOT), "tbf", options.as_bytes())?;
        if let QueueBound::Packets(packets) = queue {
            // In place of the queue of bytes that it came with.
            self.set_discipline(on, (CHILD, HANDLE), "pfifo", &packets.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Delays and loses what leaves by an interface.
    ///
    /// # Errors
    /// ENOENT in a kernel without netem, EPERM; EINVAL for a share that no table has.
    pub fn set_emulation(&mut self, on: Interface, emulation: &Emulation) -> io::Result<()> {
        let Emulation { delay, varies, loss, seed } = *emulation;
        let ticks = |time: Duration| u32::try_from(nanoseconds(time) / TICK_NS).unwrap_or(u32::MAX);
        let jitter = match varies {
            Variation::Constant => Duration::ZERO,
            Variation::Even(jitter) => jitter,
            Variation::HeldBack { by, .. } => by,
        };
        let independent = match loss {
            Chance::Independent(share) => probability(share),
            Chance::Chain { .. } => 0,
        };
        // tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter
        let fixed = [ticks(delay), ON_THE_WAY_MAX, independent, 0, 0, ticks(jitter)];
        const TCA_NETEM_DELAY_DIST: u16 = 2;
        const TCA_NETEM_LOSS: u16 = 5;
        const TCA_NETEM_RATE: u16 = 6;
        const TCA_NETEM_RATE64: u16 = 8;
        const TCA_NETEM_LATENCY64: u16 = 10;
        const TCA_NETEM_JITTER64: u16 = 11;
        const NETEM_LOSS_GE: u16 = 2;
        let mut attributes = Writer::default();
        attributes.bytes(TCA_NETEM_LATENCY64, &nanoseconds(delay).to_ne_bytes());
        attributes.bytes(TCA_NETEM_JITTER64, &nanoseconds(jitter).to_ne_bytes());
        if let Chance::Chain { good_to_bad, bad_to_good, loss_in_bad, loss_in_good } = loss {
            // tc_netem_gemodel: p, r, h (what the bad state spares), 1-k
            let chain = [good_to_bad, bad_to_good, 1.0 - loss_in_bad, loss_in_good];
            let mut inner = Writer::default();
            inner.bytes(NETEM_LOSS_GE, &chain.map(|p| probability(p).to_ne_bytes()).concat());
            attributes.nested(TCA_NETEM_LOSS, &inner);
        }
        match varies {
            Variation::Constant => {}
            Variation::Even(_) => {
                // tc_netem_rate: rate, packet overhead, cell size, cell overhead
                attributes
                    .bytes(TCA_NETEM_RATE, &[u32::MAX, 0, 0, 0].map(u32::to_ne_bytes).concat());
                attributes.bytes(TCA_NETEM_RATE64, &ENDLESS_BYTES_PER_SECOND.to_ne_bytes());
            }
            Variation::HeldBack { share, .. } => {
                let (all, held) = table_of(share).ok_or(io::ErrorKind::InvalidInput)?;
                let entries = (0..all).map(|n| if n < held { TABLE_ONE } else { 0 });
                let table: Vec<u8> = entries.flat_map(i16::to_ne_bytes).collect();
                attributes.bytes(TCA_NETEM_DELAY_DIST, &table);
            }
        }
        attributes.bytes(TCA_NETEM_PRNG_SEED, &seed.to_ne_bytes());
        let options = [fixed.map(u32::to_ne_bytes).concat(), attributes.as_bytes().to_vec()];
        self.set_discipline(on, (HANDLE, ROOT), "netem", &options.concat())
    }

    /// Whether the netem of an interface has taken its seed.
    ///
    /// # Errors
    /// As netlink(7).
    pub fn has_seed(&mut self, on: Interface) -> io::Result<bool> {
        let mut is_seeded = false;
        self.root_of(on, |kind, value| {
            // tc_netem_qopt comes first, of 24 bytes.
            if kind == TCA_OPTIONS
                && let Some(attributes) = value.get(24..)
            {
                is_seeded = Attributes::new(attributes).any(|a| a.kind == TCA_NETEM_PRNG_SEED);
            }
        })?;
        Ok(is_seeded)
    }

    /// What the discipline at the root of an interface has done; nothing where there is none.
    ///
    /// # Errors
    /// As netlink(7).
    pub fn queue_counts(&mut self, of: Interface) -> io::Result<QueueCounts> {
        let mut counts = QueueCounts::default();
        self.root_of(of, |kind, value| {
            if kind != TCA_STATS2 {
                return;
            }
            const TCA_STATS_BASIC: u16 = 1;
            const TCA_STATS_QUEUE: u16 = 3;
            const TCA_STATS_PKT64: u16 = 8;
            for statistic in Attributes::new(value) {
                match statistic.kind {
                    // gnet_stats_basic: bytes, packets
                    TCA_STATS_BASIC => {
                        counts.left = u32_at(statistic.value, 8).unwrap_or(0).into();
                    }
                    // gnet_stats_queue: qlen, backlog, drops, requeues, overlimits
                    TCA_STATS_QUEUE => {
                        counts.waiting = u32_at(statistic.value, 0).unwrap_or(0).into();
                        counts.dropped = u32_at(statistic.value, 8).unwrap_or(0).into();
                    }
                    TCA_STATS_PKT64 => {
                        counts.left = u64_at(statistic.value, 0).unwrap_or(counts.left);
                    }
                    _ => {}
                }
            }
        })?;
        Ok(counts)
    }

    /// What arrives at an interface leaves by another, and this host does not see it. It no longer
    /// belongs to the socket that sent it, on whichever interface of this machine that was: else
    /// what waits here would fill that socket's buffer, and TCP would send no more (its small
    /// queues).
    ///
    /// # Errors
    /// ENOENT in a kernel without ingress, u32 or mirred; EPERM; EEXIST where it is so already.
    pub fn redirect(&mut self, from: Interface, to: Interface) -> io::Result<()> {
        // tc_u32_sel with one key that any packet has: flags, offshift, nkeys; then of the key mask,
        // value, offset, offset's mask
        const TC_U32_TERMINAL: u8 = 1;
        let selector = [vec![TC_U32_TERMINAL, 0, 1, 0], vec![0; 12], vec![0; 16]].concat();
        // tc_mirred: index, capab, action, refcnt, bindcnt; what to do, where
        const TC_ACT_SHOT: u32 = 2;
        // Not TCA_EGRESS_REDIR, which sends on the packet itself: a copy has no owner. The bytes are
        // not copied.
        const TCA_EGRESS_MIRROR: u32 = 2;
        let mirred = [0, 0, TC_ACT_SHOT, 0, 0, TCA_EGRESS_MIRROR, to.0].map(u32::to_ne_bytes);
        const TCA_MIRRED_PARMS: u16 = 2;
        const TCA_ACT_KIND: u16 = 1;
        const TCA_ACT_OPTIONS: u16 = 2;
        const TCA_U32_SEL: u16 = 5;
        const TCA_U32_ACT: u16 = 7;
        let mut parameters = Writer::default();
        parameters.bytes(TCA_MIRRED_PARMS, &mirred.concat());
        let mut action = Writer::default();
        action.bytes(TCA_ACT_KIND, b"mirred\0");
        action.nested(TCA_ACT_OPTIONS, &parameters);
        let mut actions = Writer::default();
        actions.nested(1, &action);
        let mut options = Writer::default();
        options.bytes(TCA_U32_SEL, &selector);
        options.nested(TCA_U32_ACT, &actions);
        let mut filter = Writer::default();
        filter.bytes(TCA_KIND, b"u32\0");
        filter.nested(TCA_OPTIONS, &options);
        self.set_discipline(from, (INGRESS, INGRESS_PARENT), "ingress", &[])?;
        let place = traffic(from, 0, INGRESS, FILTER_PLACE);
        self.ask(libc::RTM_NEWTFILTER, super::NEW, &place, &filter)
    }

    /// Ends what [`Self::redirect`] began: this host does not take packets that arrive for another.
    ///
    /// # Errors
    /// ENOENT where it was not so, EPERM.
    pub fn end_redirect(&mut self, from: Interface) -> io::Result<()> {
        let place = traffic(from, 0, INGRESS, FILTER_PLACE);
        self.ask(libc::RTM_DELTFILTER, 0, &place, &Writer::default())
    }

    fn set_discipline(
        &mut self,
        on: Interface,
        (handle, parent): (u32, u32),
        kind: &str,
        options: &[u8],
    ) -> io::Result<()> {
        let mut attributes = Writer::default();
        attributes.bytes(TCA_KIND, &[kind.as_bytes(), &[0]].concat());
        if !options.is_empty() {
            attributes.bytes(TCA_OPTIONS, options);
        }
        let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        self.ask(libc::RTM_NEWQDISC, flags, &traffic(on, handle, parent, 0), &attributes)
    }

    /// Shows each attribute of the discipline at the root of an interface.
    fn root_of(&mut self, of: Interface, mut show: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let fixed = traffic(of, 0, 0, 0);
        let answers = self.0.ask(&Question::new(libc::RTM_GETQDISC, DUMP | ACK, &fixed))?;
        for answer in answers {
            // The kernel gives those of all interfaces, whichever is asked for.
            let (index, parent) = (u32_at(&answer.payload, 4), u32_at(&answer.payload, 12));
            if index == Some(of.0) && parent == Some(ROOT) {
                let attributes = answer.payload.get(FIXED_BYTES..).unwrap_or_default();
                Attributes::new(attributes).for_each(|a| show(a.kind, a.value));
            }
        }
        Ok(())
    }
}

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_NETEM_PRNG_SEED: u16 = 14;
/// The priority of the only filter, and the protocols that it is for: all (`ETH_P_ALL`).
const FILTER_PLACE: u32 = 1 << 16 | 0x0003_u16.to_be() as u32;

/// `struct tcmsg`.
fn traffic(interface: Interface, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    [0, interface.0, handle, parent, info].map(u32::to_ne_bytes).concat()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// As netem has it: of 2^32 - 1.
fn probability(share: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1")]
    let of_all = (share.clamp(0.0, 1.0) * f64::from(u32::MAX)).round() as u32;
    of_all
}

#[cfg(test)]
mod tests;
