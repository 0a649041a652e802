//! A thing to change.

use std::cmp::Reverse;

use serde::Serialize;

use crate::logging::without_control;

/// Where the manual is.
pub const MANUAL: &str = "https://github.com/hawser/hawser/blob/main/docs/";

/// What is wrong, in the order in which it is to be changed: what another one follows from comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A server does not answer.
    ServerDown,
    /// No server connection can be opened.
    NoConnection,
    /// Clients wait for RESUME.
    Paused,
    /// Few more clients are let in.
    Clients,
    /// Few more connections can be opened.
    Descriptors,
    /// Clients sit in transactions.
    IdleInTransaction,
    /// Clients keep server connections between transactions.
    Pinned,
    /// Server connections wait for locks.
    LockWaits,
    /// One statement takes most of the time.
    HeavyStatement,
    /// Transactions take longer than they did.
    SlowServer,
    /// Clients wait although server connections do all they can.
    PoolTooSmall,
    /// A limit of several poolers is used up.
    SharedLimit,
    /// Hawser gives clients errors.
    Errors,
    /// The server gives a statement's clients errors.
    FailingStatement,
    /// A rule refuses statements.
    RuleRefuses,
    /// Segments are lost on a long path.
    LossyLine,
    /// The peer's window is full.
    ReceiverWindow,
    /// The send buffer is full.
    SendBuffer,
    /// A server is far away.
    FarServer,
    /// A server answers, but is not used.
    ServerLeft,
}

impl Kind {
    /// All of them.
    #[cfg(test)]
    pub const ALL: [Self; 20] = [
        Self::ServerDown,
        Self::NoConnection,
        Self::Paused,
        Self::Clients,
        Self::Descriptors,
        Self::IdleInTransaction,
        Self::Pinned,
        Self::LockWaits,
        Self::HeavyStatement,
        Self::SlowServer,
        Self::PoolTooSmall,
        Self::SharedLimit,
        Self::Errors,
        Self::FailingStatement,
        Self::RuleRefuses,
        Self::LossyLine,
        Self::ReceiverWindow,
        Self::SendBuffer,
        Self::FarServer,
        Self::ServerLeft,
    ];

    /// Its page of the manual, and the heading there.
    pub fn page(self) -> &'static str {
        match self {
            Self::ServerDown => "failover.md#what-happens-when-a-server-fails",
            Self::NoConnection => "operations.md#checking-a-configuration",
            Self::Paused => "operations.md#the-admin-console",
            Self::Clients => "sizing.md#clients-descriptors-memory",
            Self::Descriptors => "limits.md#file-descriptors",
            Self::IdleInTransaction | Self::PoolTooSmall => {
                "sizing.md#which-figures-ask-for-a-change"
            }
            Self::Pinned => "session-state.md#what-pins",
            Self::LockWaits => "session-state.md#clients-that-wait-for-a-lock",
            Self::HeavyStatement => "rules.md#see-it-limit-it-remove-it",
            Self::SlowServer | Self::FailingStatement => "queries.md#look",
            Self::SharedLimit => "limits.md#one-limit-for-several-poolers",
            Self::Errors => "metrics.md#what-to-watch",
            Self::RuleRefuses => "rules.md#what-a-rule-does",
            Self::LossyLine => "congestion-control.md#for-the-poolers-connections",
            Self::ReceiverWindow | Self::SendBuffer => {
                "congestion-control.md#for-a-program-a-destination-the-machine"
            }
            Self::FarServer => "wan.md",
            Self::ServerLeft => "failover.md#how-servers-are-watched",
        }
    }
}

/// One thing to change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What it is about.
    pub kind: Kind,
    /// Clients wait or fail for it now.
    pub urgent: bool,
    /// What is wrong: of which object, with its figures.
    pub wrong: String,
    /// What to do.
    pub mend: String,
    /// The page about it.
    pub page: String,
    /// Of two of a kind, the larger one comes first.
    #[serde(skip)]
    weight: u64,
}

impl Finding {
    /// One. Names in its texts may be those of clients.
    pub fn new(kind: Kind, urgent: bool, weight: u64, wrong: &str, mend: &str) -> Self {
        let (wrong, mend) = (without_control(wrong), without_control(mend));
        Self { kind, urgent, wrong, mend, page: format!("{MANUAL}{}", kind.page()), weight }
    }

    /// What sorts findings: the one to change first comes first.
    pub fn rank(&self) -> (bool, Kind, Reverse<u64>) {
        (!self.urgent, self.kind, Reverse(self.weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_and_its_heading_are_there() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
        for kind in Kind::ALL {
            let (file, heading) = kind.page().split_once('#').unwrap_or((kind.page(), ""));
            let text = std::fs::read_to_string(format!("{docs}{file}")).unwrap();
            let slug = |line: &str| {
                let kept = line.trim_start_matches('#').trim().to_lowercase();
                let kept = kept.replace(' ', "-");
                kept.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect::<String>()
            };
            let mut headings = text.lines().filter(|line| line.starts_with('#')).map(slug);
            assert!(heading.is_empty() || headings.any(|one| one == heading), "{kind:?}");
        }
    }
}
