//! Compares a candidate with the algorithm in use, on real traffic to one destination.
//!
//! # Model
//! An arm is the flows with one algorithm: bytes that were acknowledged to them, and the time in
//! which each had something to send, added up. Its rate is that of a flow in the mean.
//! ```text
//!   several flows   half of them get the candidate; both arms are measured at the same time
//!   one flow        the incumbent's arm is what it did from its first cut on; then it changes
//!   wins            rate(candidate) >= 1.5 rate(incumbent) after max(20 round trips, 3 s),
//!                   >= 1.2 after a minute: cubic's own rate varies by a quarter over ten losses
//!   loses           rate(candidate) <= rate(incumbent) / 1.5 then, < 1.2 after a minute
//!   harm            most cuts of the incumbent's flows came with a queue meanwhile
//! ```
//! A flow counts from max(8 round trips, 1 s) after its start or change on: BBR has filled the pipe
//! by then.
//!
//! # Why not
//! The kernel's delivery_rate: it is a flow's best moment, and a candidate that delivers in bursts
//! and then repairs looks good by it. Bytes that were sent: they count what was lost.

use std::collections::BTreeMap;
use std::time::Duration;

use hawser_time::Time;

use super::algorithm::Algorithm;
use super::limit::{self, Watch};
use super::sample::{FlowId, Sample, Span};

/// What a candidate must deliver of what the incumbent does. Less is within chance, and not worth a
/// change.
pub const GAIN_MIN: f64 = 1.2;
/// More than this, or less than its inverse, is not chance after a few seconds either.
const CLEAR_GAIN: f64 = 1.5;
/// Measured at least this long ...
const MEASURE_MIN: Duration = Duration::from_secs(3);
/// ... and as many round trips.
const MEASURE_ROUND_TRIPS: u32 = 20;
/// A flow's start is not measured: this long ...
const SETTLE_MIN: Duration = Duration::from_secs(1);
/// ... and as many round trips.
const SETTLE_ROUND_TRIPS: u32 = 8;
/// By then a trial is decided, or has had too little traffic.
const TRIAL_MAX: Duration = Duration::from_secs(60);

/// Bytes and time of flows with one algorithm.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Arm {
    /// Acknowledged bytes.
    pub bytes: u64,
    /// Flow time, added up.
    pub time: Duration,
    /// Cuts of the window without a queue.
    pub cuts_clear: u32,
    /// Cuts of the window with one.
    pub cuts_queued: u32,
}

impl Arm {
    /// Bytes a second of a flow in the mean.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 / seconds } else { 0.0 }
    }

    fn add(&mut self, span: &Span) {
        self.bytes += span.bytes_acked;
        self.time += span.lasted;
    }
}

impl From<Span> for Arm {
    fn from(span: Span) -> Self {
        Self { bytes: span.bytes_acked, time: span.lasted, ..Self::default() }
    }
}

/// On which side of a trial a flow is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// It keeps what it has.
    Incumbent,
    /// It has the candidate.
    Candidate,
}

/// One flow in a trial.
#[derive(Clone, Copy, Debug)]
struct Member {
    side: Side,
    /// From here on it counts.
    settled_at: Time,
    watch: Option<Watch>,
}

/// How a trial stands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    /// It goes on.
    Open,
    /// The candidate delivers so much more.
    Wins,
    /// It does not.
    Loses,
    /// It fills a queue on which others wait.
    Harms,
    /// Too little was sent.
    Undecided,
}

/// A trial of one candidate.
#[derive(Clone, Debug)]
pub struct Trial {
    /// What is tried.
    pub candidate: Algorithm,
    /// When it began.
    pub began: Time,
    incumbent: Arm,
    challenger: Arm,
    members: BTreeMap<FlowId, Member>,
    /// Whether the incumbent's arm was measured before the trial.
    is_before_and_after: bool,
    rtt: Duration,
    joined: u32,
}

impl Trial {
    /// A trial on the flows to a destination, of which `flow` has shown that it is worth it. Gives
    /// the flows that change.
    ///
    /// `before` is what `flow` did since its first cut, which counts if it is alone.
    #[must_use]
    pub fn begin(
        candidate: Algorithm,
        now: Time,
        rtt: Duration,
        flow: FlowId,
        before: Span,
        others: &[FlowId],
    ) -> (Self, Vec<FlowId>) {
        let is_before_and_after = others.is_empty();
        let mut trial = Self {
            candidate,
            began: now,
            incumbent: if is_before_and_after { before.into() } else { Arm::default() },
            challenger: Arm::default(),
            members: BTreeMap::new(),
            is_before_and_after,
            rtt,
            joined: 0,
        };
        let members = std::iter::once(flow).chain(others.iter().copied());
        let changed = members.filter(|flow| trial.join(*flow, now) == Some(Side::Candidate));
        let changed = changed.collect();
        (trial, changed)
    }

    /// A flow to this destination; by turns the sides get one. `None` if the flow stays outside.
    pub fn join(&mut self, flow: FlowId, now: Time) -> Option<Side> {
        if self.is_before_and_after && self.joined > 0 {
            return None;
        }
        let side = if self.joined.is_multiple_of(2) { Side::Candidate } else { Side::Incumbent };
        self.joined += 1;
        let settled_at = now.after(self.settle());
        self.members.insert(flow, Member { side, settled_at, watch: None });
        Some(side)
    }

    fn settle(&self) -> Duration {
        SETTLE_MIN.max(self.rtt * SETTLE_ROUND_TRIPS)
    }

    /// Flows on one side.
    pub fn flows(&self, side: Side) -> impl Iterator<Item = FlowId> {
        self.members.iter().filter(move |(_, member)| member.side == side).map(|(flow, _)| *flow)
    }

    /// Whether a flow takes part.
    #[must_use]
    pub fn has(&self, flow: FlowId) -> bool {
        self.members.contains_key(&flow)
    }

    /// A flow has ended; what it did counts.
    pub fn leave(&mut self, flow: FlowId) {
        self.members.remove(&flow);
    }

    /// A sample of a flow.
    pub fn add(&mut self, flow: FlowId, sample: Sample) {
        let Some(member) = self.members.get_mut(&flow) else { return };
        if sample.at < member.settled_at {
            return;
        }
        let Some(watch) = &mut member.watch else {
            member.watch = Some(Watch::new(sample));
            return;
        };
        let cuts = (watch.diagnosis().cuts_clear, watch.diagnosis().cuts_queued);
        let span = watch.add(sample);
        let diagnosis = watch.diagnosis();
        let arm = match member.side {
            Side::Incumbent => &mut self.incumbent,
            Side::Candidate => &mut self.challenger,
        };
        arm.cuts_clear += diagnosis.cuts_clear - cuts.0;
        arm.cuts_queued += diagnosis.cuts_queued - cuts.1;
        // A pause of the program is no fault of the algorithm.
        if limit::is_busy(&span) {
            arm.add(&span);
        }
    }

    /// What the sides have done.
    #[must_use]
    pub fn arms(&self) -> (Arm, Arm) {
        (self.incumbent, self.challenger)
    }

    /// How it stands.
    #[must_use]
    pub fn verdict(&self, now: Time) -> Verdict {
        let enough = MEASURE_MIN.max(self.rtt * MEASURE_ROUND_TRIPS);
        let lasted = now.since(self.began);
        // After a minute, or when no flow is left to try it, the trial ends.
        let is_over = lasted >= TRIAL_MAX || self.flows(Side::Candidate).next().is_none();
        // What was before the trial cannot grow; it has two cuts in it, whatever time that took.
        let incumbent_done = self.is_before_and_after || self.incumbent.time >= enough;
        if !incumbent_done || self.challenger.time < enough || lasted < self.settle() + enough {
            return if is_over { Verdict::Undecided } else { Verdict::Open };
        }
        let incumbent = &self.incumbent;
        if incumbent.cuts_queued > incumbent.cuts_clear {
            return Verdict::Harms;
        }
        let (rate, before) = (self.challenger.rate(), incumbent.rate());
        let needed = if is_over { GAIN_MIN } else { CLEAR_GAIN };
        if rate >= needed * before {
            Verdict::Wins
        } else if is_over || rate * CLEAR_GAIN <= before {
            Verdict::Loses
        } else {
            Verdict::Open
        }
    }
}
