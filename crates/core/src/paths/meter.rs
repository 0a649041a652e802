//! Rates of flows between two looks.

use std::collections::BTreeMap;

use super::action::{Flow, FlowId, Look};
use crate::time::Time;

/// What the flows had carried at one moment.
#[derive(Clone, Debug)]
pub struct Mark {
    /// When.
    pub at: Time,
    bytes: BTreeMap<FlowId, u64>,
}

/// What each flow carried between two looks, in bytes a second.
#[derive(Clone, Debug, Default)]
pub struct Rates(BTreeMap<FlowId, f64>);

impl Mark {
    /// Of a look.
    #[must_use]
    pub fn new(look: &Look<'_>) -> Self {
        let of = |flow: &Flow| (flow.id, flow.bytes);
        Self { at: look.now, bytes: look.flows.iter().map(of).collect() }
    }

    /// Rates since. A flow that has come meanwhile is counted from nothing; one that has gone is not.
    #[must_use]
    pub fn rates(&self, look: &Look<'_>) -> Rates {
        let seconds = look.now.since(self.at).as_secs_f64().max(1e-6);
        let of = |flow: &Flow| {
            let before = self.bytes.get(&flow.id).copied().unwrap_or(0);
            #[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
            let bytes = flow.bytes.saturating_sub(before) as f64;
            (flow.id, bytes / seconds)
        };
        Rates(look.flows.iter().filter(|flow| flow.open).map(of).collect())
    }
}

impl Rates {
    /// Of all together.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.0.values().sum()
    }

    /// Of one; nothing where it was not there.
    #[must_use]
    pub fn of(&self, flow: FlowId) -> f64 {
        self.0.get(&flow).copied().unwrap_or(0.0)
    }

    /// Of the fastest.
    #[must_use]
    pub fn top(&self) -> f64 {
        self.0.values().copied().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::action::PairId;
    use super::*;

    #[test]
    fn rates_are_differences() {
        let flow = |id, bytes| Flow {
            id: FlowId(id),
            pair: PairId(0),
            open: true,
            bytes,
            unacked: false,
            rtt: Duration::ZERO,
        };
        let look = |micros, flows| Look {
            now: Time::from_micros(micros),
            flows,
            pairs: &[],
            unacked_from: None,
        };
        let (before, now) = ([flow(1, 100), flow(2, 50)], [flow(1, 300), flow(3, 10)]);
        let rates = Mark::new(&look(0, &before)).rates(&look(500_000, &now));
        assert_eq!(rates.of(FlowId(1)), 400.0);
        assert_eq!(rates.of(FlowId(2)), 0.0);
        assert_eq!((rates.total(), rates.top()), (420.0, 400.0));
    }
}
