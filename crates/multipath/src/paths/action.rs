//! The chooser's input, its actions, and its report.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hawser_time::Time;

/// A subflow, named by the observer, which never uses a name twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowId(pub u64);

/// A pair of addresses between which subflows can be dialled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PairId(pub u32);

/// What this end does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It dialled the connection, and dials further subflows.
    Dials,
    /// It accepted, and ends subflows over which nothing gets through any more.
    Accepts,
}

/// A subflow at one moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Flow {
    /// Which.
    pub id: FlowId,
    /// Between which addresses.
    pub pair: PairId,
    /// Whether its handshake is over.
    pub open: bool,
    /// Bytes received, and bytes sent that the peer has acknowledged.
    pub bytes: u64,
    /// Bytes sent alone that the peer has acknowledged.
    pub acked: u64,
    /// Whether bytes are under way that the peer has not acknowledged.
    pub unacked: bool,
    /// How often in a row the kernel has retransmitted after a timeout (RFC 6298, section 5.5), a
    /// handshake's first segment too. The kernel counts on while the host is too busy to look.
    pub timeouts: u32,
    /// Bytes that it was given and the peer has not acknowledged, sent or not.
    pub held: u64,
    /// Whether it is to carry data only where no other does.
    pub backup: bool,
    /// Its smallest round trip of late.
    pub rtt: Duration,
}

/// A connection at one moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Look<'a> {
    /// The moment.
    pub now: Time,
    /// Its subflows.
    pub flows: &'a [Flow],
    /// Between which addresses subflows can be dialled.
    pub pairs: &'a [PairId],
    /// What of the whole the peer has not acknowledged, if there is anything.
    pub unacked: Option<Unacked>,
}

impl Look<'_> {
    /// The smallest round trip of each pair's flows, and the largest of these: an end that receives has
    /// measured its round trips at handshakes, some of them after a full queue.
    pub(super) fn round_trip(&self) -> Duration {
        let mut of: BTreeMap<PairId, Duration> = BTreeMap::new();
        for flow in self.flows.iter().filter(|flow| flow.open) {
            let smallest = of.entry(flow.pair).or_insert(flow.rtt);
            *smallest = flow.rtt.min(*smallest);
        }
        of.into_values().max().unwrap_or_default()
    }
}

/// What was written and the peer has not acknowledged, in the numbers of the whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unacked {
    /// Its first byte.
    pub from: u64,
    /// How much there is of it, sent or not.
    pub bytes: u64,
    /// What was sent over a second flow, ever (Linux 6.5, 0 before).
    pub resent: u64,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Dial a subflow.
    Dial(PairId),
    /// Have it carry nothing while there are others.
    Pause(FlowId),
    /// Have it carry data again.
    Resume(FlowId),
    /// End it.
    Close(FlowId, Reason),
}

/// Why a subflow is ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Without it the whole carried as much.
    Shares,
    /// Nothing gets through, while others carry data.
    Dead,
    /// Its handshake gets no answer.
    Unanswered,
    /// The whole waits, and it is the one that has waited longest.
    HoldsGap,
    /// The whole waits for bytes that no flow has any more: the end of any flow has all sent again.
    Crawls,
}

impl Reason {
    /// One word, for logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shares => "shares",
            Self::Dead => "dead",
            Self::Unanswered => "unanswered",
            Self::HoldsGap => "holds-gap",
            Self::Crawls => "crawls",
        }
    }
}

/// A state of the chooser's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Too little has been sent to be worth it, or nothing is.
    Watching,
    /// Further subflows are tried.
    Dialling,
    /// Those that share another's limit are sought.
    Pruning,
    /// What is there is kept.
    Settled,
}

impl State {
    /// One word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Watching => "watching",
            Self::Dialling => "dialling",
            Self::Pruning => "pruning",
            Self::Settled => "settled",
        }
    }
}

/// A change of state, with what led to it. Rates are bytes a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Event {
    /// What it was.
    pub from: State,
    /// What it is.
    pub to: State,
    /// What the whole carries.
    pub rate: f64,
    /// What it carried over one flow, before any was dialled.
    pub rate_alone: f64,
    /// Limits that are known, as far as can be measured.
    pub limits: u32,
    /// Subflows that carry data.
    pub flows: u32,
    /// Dials since the search began.
    pub dials: u32,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mbit = |rate: f64| rate * 8.0 / 1e6;
        write!(
            f,
            "{} -> {}: {:.1} Mbit/s over {} subflows, {} limits found by {} dials",
            self.from.name(),
            self.to.name(),
            mbit(self.rate),
            self.flows,
            self.limits,
            self.dials
        )?;
        if self.to == State::Settled && self.limits <= 1 {
            write!(
                f,
                "; one flow carries {:.1}: they share one bottleneck, and further ones do not pay",
                mbit(self.rate_alone)
            )?;
        }
        Ok(())
    }
}
