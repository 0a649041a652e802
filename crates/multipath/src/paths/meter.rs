//! Rates of flows between two looks.

use std::collections::BTreeMap;
use std::time::Duration;

use hawser_time::Time;

use super::action::{Flow, FlowId, Look};

/// What the flows had carried at one moment.
#[derive(Clone, Debug)]
pub struct Mark {
    /// When.
    pub at: Time,
    bytes: BTreeMap<FlowId, u64>,
}

/// The halves of a measurement may differ, over flows and time, by at most this share of the whole.
const UNSTEADY: f64 = 0.08;
/// How often a measurement is made twice as long because it is.
const LENGTHENED_MAX: u32 = 2;

/// A measurement that takes as long as rates need to say something: twice as long where its second half
/// differs from the first, and again.
#[derive(Clone, Debug)]
pub struct Measurement {
    from: Mark,
    middle: Option<Mark>,
    until: Time,
    lengthened: u32,
}

impl Measurement {
    /// Begins with a look, and takes so long at least.
    #[must_use]
    pub fn new(look: &Look<'_>, least: Duration) -> Self {
        let until = look.now.after(least);
        Self { from: Mark::new(look), middle: None, until, lengthened: 0 }
    }

    /// It is made longer once at most.
    #[must_use]
    pub fn lengthened_once(mut self) -> Self {
        self.lengthened = LENGTHENED_MAX - 1;
        self
    }

    /// It is never made longer.
    #[must_use]
    pub fn never_lengthened(mut self) -> Self {
        self.lengthened = LENGTHENED_MAX;
        self
    }

    /// Takes a look in; the rates, once it is over.
    pub fn look(&mut self, look: &Look<'_>) -> Option<Rates> {
        let now = look.now;
        if now < self.until {
            let is_half = now.since(self.from.at) >= self.until.since(now);
            if is_half && self.middle.is_none() {
                self.middle = Some(Mark::new(look));
            }
            return None;
        }
        let rates = self.from.rates(look);
        if self.lengthened < LENGTHENED_MAX && self.is_unsteady(look) {
            self.lengthened += 1;
            self.middle = Some(Mark::new(look));
            self.until = now.after(now.since(self.from.at));
            return None;
        }
        Some(rates)
    }

    fn is_unsteady(&self, look: &Look<'_>) -> bool {
        let Some(middle) = &self.middle else { return false };
        let (first, second) = (self.from.rates_until(middle), middle.rates(look));
        let apart: f64 = second.0.keys().map(|f| (first.of(*f) - second.of(*f)).abs()).sum();
        apart > (first.total() + second.total()) / 2.0 * UNSTEADY
    }
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

    fn rates_until(&self, later: &Self) -> Rates {
        let seconds = later.at.since(self.at).as_secs_f64().max(1e-6);
        let of = |(flow, bytes): (&FlowId, &u64)| {
            let before = self.bytes.get(flow).copied().unwrap_or(0);
            #[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
            let carried = bytes.saturating_sub(before) as f64;
            (*flow, carried / seconds)
        };
        Rates(later.bytes.iter().map(of).collect())
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

    /// Whose.
    pub fn flows(&self) -> impl Iterator<Item = FlowId> + '_ {
        self.0.keys().copied()
    }

    /// Takes in what `flow` carries.
    pub fn set(&mut self, flow: FlowId, rate: f64) {
        self.0.insert(flow, rate);
    }

    /// Leaves those that `stays` is true of.
    pub fn retain(&mut self, stays: impl Fn(FlowId) -> bool) {
        self.0.retain(|flow, _| stays(*flow));
    }

    /// Of the fastest.
    #[must_use]
    pub fn top(&self) -> f64 {
        self.0.values().copied().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::super::action::PairId;
    use super::*;

    #[test]
    fn rates_are_differences() {
        let flow = |id, bytes| Flow {
            id: FlowId(id),
            pair: PairId(0),
            open: true,
            bytes,
            acked: bytes,
            unacked: false,
            timeouts: 0,
            held: 0,
            backup: false,
            rtt: Duration::ZERO,
        };
        let look = |micros, flows| Look {
            now: Time::from_micros(micros),
            flows,
            pairs: &[],
            unacked: None,
        };
        let (before, now) = ([flow(1, 100), flow(2, 50)], [flow(1, 300), flow(3, 10)]);
        let rates = Mark::new(&look(0, &before)).rates(&look(500_000, &now));
        assert_eq!(rates.of(FlowId(1)), 400.0);
        assert_eq!(rates.of(FlowId(2)), 0.0);
        assert_eq!((rates.total(), rates.top()), (420.0, 400.0));
    }
}
