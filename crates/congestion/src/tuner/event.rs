//! What the chooser has done, and why, in a line for the log.

use std::fmt;
use std::time::Duration;

use super::algorithm::Algorithm;
use super::destination::Prefix;
use super::limit::Diagnosis;
use super::trial::Arm;

/// One decision about a destination.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Which.
    pub destination: Prefix,
    /// What its flows had.
    pub from: Algorithm,
    /// What is tried, or was.
    pub to: Algorithm,
    /// What was decided.
    pub decision: Decision,
}

/// What was decided, with its figures.
#[derive(Clone, PartialEq, Debug)]
pub enum Decision {
    /// `to` is tried, for what a flow has shown.
    Try {
        /// The flow that has shown it.
        why: Diagnosis,
        /// How many flows have it now.
        changed: u32,
        /// How many keep what they had, beside.
        beside: u32,
    },
    /// `to` delivers more and stays.
    Keep(Figures),
    /// `to` does not deliver enough more: `from` is back.
    Revert(Figures),
    /// `to` fills a queue on which other flows wait: `from` is back.
    Harm(Figures),
    /// Too little was sent to tell: `from` is back.
    Undecided(Figures),
    /// What was learnt is old: the default again, `to`, for new flows.
    Forget,
    /// The kernel refuses `to`: it is tried no more, anywhere.
    Refused,
}

/// What a trial has measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// What was there before.
    pub incumbent: Arm,
    /// What was tried.
    pub candidate: Arm,
    /// How long it took.
    pub lasted: Duration,
}

impl Decision {
    /// One word, as metrics have it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Try { .. } => "try",
            Self::Keep(_) => "keep",
            Self::Revert(_) => "revert",
            Self::Harm(_) => "harm",
            Self::Undecided(_) => "undecided",
            Self::Forget => "forget",
            Self::Refused => "refused",
        }
    }
}

/// Megabits a second of bytes a second.
fn mbit(rate: f64) -> f64 {
    rate * 8.0 / 1e6
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = (mbit(self.incumbent.rate()), mbit(self.candidate.rate()));
        let seconds = self.lasted.as_secs_f64();
        write!(f, "{after:.1} Mbit/s a flow against {before:.1}, after {seconds:.1} s")
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { destination, from, to, decision } = self;
        write!(f, "{destination}: ")?;
        match decision {
            Decision::Try { why, changed, beside } => {
                write!(
                    f,
                    "{to} is tried on {changed} of {} flows in place of {from}: {}; {:.1} Mbit/s, {} cuts \
                     of the window at a round trip of {:.1} ms, whose least is {:.1}, {:.3} % lost",
                    changed + beside,
                    why.limit,
                    mbit(why.span.rate()),
                    why.cuts_clear + why.cuts_queued,
                    f64::from(why.rtt_us) / 1e3,
                    f64::from(why.rtt_min_us) / 1e3,
                    why.span.loss() * 100.0,
                )?;
                match why.predicted {
                    Some(rate) => write!(f, ", for which cubic has {:.1} Mbit/s", mbit(rate)),
                    None => Ok(()),
                }
            }
            Decision::Keep(figures) => write!(f, "{to} in place of {from}: {figures}"),
            Decision::Revert(figures) => write!(f, "{from} again, not {to}: {figures}"),
            Decision::Harm(figures) => {
                write!(
                    f,
                    "{from} again, not {to}, which fills a queue that others share: {figures}"
                )
            }
            Decision::Undecided(figures) => {
                write!(f, "{from} again, {to} is undecided, too little was sent: {figures}")
            }
            Decision::Forget => {
                write!(f, "{to} again for new flows: what {from} gained is long ago")
            }
            Decision::Refused => write!(f, "the kernel refuses {to}; {from} stays"),
        }
    }
}
