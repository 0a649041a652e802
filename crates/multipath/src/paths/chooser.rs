//! One connection: looks in, actions and events out.
//!
//! # Model
//! Worth it is a connection that has carried [`BULK_BYTES`] without a pause: what has gone on for a
//! while goes on for as long again, and a search costs seconds. Then
//! ```text
//!   dial a batch: 10 at first, then 6, or 4 once a limit was missed with a chance below 1/2;
//!   settle, measure: [`search`]
//!   pause, settle, measure: [`super::trial`]; what is needless rests, who is left is known
//!   limits = known flows; dial again if that asks for more
//! ```
//! What is needless rests, paused. It is closed at the first pause of the program's, after two minutes,
//! or where 48 rest, all at once: a sender that loses a subflow sends again all that the peer has not
//! acknowledged (net/mptcp/protocol.c, __mptcp_retransmit_pending_data()). That is ten megabytes while
//! flows share limits, for then most of what arrives must wait for what the slowest of them hold; it is
//! four when only known flows have carried for a while.
//!
//! More flows at once find limits sooner, but each that shares loses segments, and all wait for those:
//! 30 flows into 8 limits were slower than 12. For the same reason a search rests before each further
//! batch, in which known flows alone carry data, until what has been carried so far makes it worth it:
//! ```text
//!   what a batch costs        0.009 s of the whole for each dial, about
//!   what it brings            1 / limits of the whole, with the chance that a limit was missed times the
//!                             chance that it is met now, for as long as the connection has been bulky:
//!                             what has gone on for a while goes on for as long again
//! ```
//! but 15 s at most, and 0.3 s and 25 round trips at least where a batch has found nothing.
//!
//! A flow that carries 250 Mbit/s is limited by its hosts as a rule: there each further flow costs, and
//! two are tried in place of ten. Hosts that are busy vary: so these must gain a third.
//!
//! Where flows that share a limit do not hold up the whole ([`Chooser::wide`]: the link, which sends what
//! one of them holds by another), limits are met first and shares are sought later: once the first batch
//! has shown that there are several limits, as many flows are dialled at once as find all of them
//! ([`super::draws`]), [`WIDE_MAX`] at most. Then some of the slow ones are paused, drawn, a quarter of
//! those that are too many: each limit has several flows at first, so the whole hardly loses one by it.
//! Such a search begins when the whole has become as fast as it does by itself.
//!
//! # Invariants
//! * at most [`FLOWS_MAX`] flows, [`BATCH_MAX`] of them being dialled
//! * of each pair of addresses one flow carries data: when a line fails, nothing need be dialled first;
//!   a pair that has none is dialled until it has one, whatever a search has found
//! * what comes out depends on what went in and its order alone

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hawser_time::Time;

use super::action::{Action, Event, Flow, FlowId, Look, PairId, Reason, Role, State, Unacked};
use super::draws::{enough, missed};
use super::health::Health;
use super::meter::{Mark, Measurement, Rates};
use super::trial::{Draw, IDLE, Trial};
use crawl::Crawl;

mod crawl;
mod endings;
mod search;

/// Subflows of a connection.
pub const FLOWS_MAX: usize = 64;
/// Flows until shares are sought, where these cost little: 60 draws miss one of eight limits in one case
/// of 400.
pub const WIDE_MAX: usize = 60;
/// Dials at once.
pub const BATCH_MAX: u32 = 6;
/// Dials at once where so many limits are known that most dials meet one of them: what shares a limit
/// holds the whole up.
pub const BATCH_LATE: u32 = 4;
/// Namely where a limit was missed with a smaller chance than this.
const LATE: f64 = 0.5;
/// From so many known flows on a gain that is no new flow's is measured again.
const KNOWN_MANY: usize = 5;
/// One flow that carries so much, in bytes a second, is limited by its hosts as a rule. Then so many
/// dials are enough to say that further ones do not pay: each costs the whole.
const FAST: f64 = 31.25e6;
const DIALS_FAST: u32 = 2;
/// By how much the whole is faster from one look to the next while slow start goes on.
const RISES: f64 = 1.15;
/// What new flows must add to the whole to be worth a trial, and beside a fast one.
const GAIN: f64 = 0.06;
const GAIN_FAST: f64 = 0.33;
/// Dials at once where there is one flow yet: as many as tell whether there is one limit.
pub const BATCH_FIRST: u32 = 10;
/// A connection that has carried so much without a pause is bulky.
pub const BULK_BYTES: u64 = 512 << 10;
/// So long it must have been busy.
const BUSY_MIN: Duration = Duration::from_millis(400);
/// Less than this between two looks is a pause.
const BUSY_BYTES_S: u64 = 80 << 10;
/// So long a search waits for the next one that nothing but time has caused, at first and at last.
const SEARCH_AGAIN: Duration = Duration::from_secs(30);
const SEARCH_AGAIN_MAX: Duration = Duration::from_secs(300);
/// Dials of a search that time has caused, at most.
const SEARCH_DIALS: u32 = 2 * BATCH_MAX;
/// What a dial costs, in seconds of the whole.
const DIAL_COSTS: f64 = 0.009;
/// So long is rested at most: then the rests of a search cost a few parts in a thousand.
const REST_MAX: Duration = Duration::from_secs(15);
/// What rests is closed after so long, or at the first pause.
const CLOSE_AFTER: Duration = Duration::from_secs(120);
/// What is left when a third of the rate is lost.
const LOST: f64 = 0.67;
/// The whole has collapsed if it carries less than this share of what it did after the search.
const COLLAPSED: f64 = 0.5;
/// So many slices in a row must have lost it.
const LOW_SLICES: u32 = 4;
/// Between two looks at the rate of what is settled.
const SLICE: Duration = Duration::from_secs(1);
/// So long a search waits after flows were ended as dead. What they had not delivered is sent again over
/// those that are left: ten seconds' worth of a slow line, and the program waits for all of it. Flows
/// that are dialled then take their share of that line for what comes later. Measured: two dials 1.6 s
/// after a line of 50 Mbit/s was cut and 10 Mbit/s were left made a stall of 0.9 s one of 2.5 s.
const RECOVERY: Duration = Duration::from_secs(5);
/// A pair of addresses on which nothing comes for so long may be cut: until that is known, nothing is
/// dialled. After the longer time it has only been idle.
const UNEASY: std::ops::Range<Duration> = Duration::from_millis(400)..Duration::from_secs(3);
/// Between two looks whether it is.
const UNEASY_PAUSE: Duration = Duration::from_millis(200);
/// A pair that does not answer is left alone for so long.
const UNANSWERED: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
enum Phase {
    Watching(Mark),
    /// Flows are being opened; then they are measured.
    Dialling(Time),
    Gauging(Measurement, Again),
    /// What has been dialled is paused; then more is dialled.
    Resting(Time),
    /// Some are paused; then the rest is measured.
    Trying(Trial, Time),
    Weighing(Trial, Measurement, Again),
    Settled {
        mark: Mark,
        low: u32,
    },
}

/// How often a measurement was repeated. One that misses half of the rate is repeated, because the
/// whole connection waits for what is lost on one flow.
type Again = u32;
const AGAIN_MAX: Again = 4;

/// What is left when a measurement is made again.
const STALLED: f64 = 0.5;

#[derive(Clone, Copy, Debug)]
struct LostPair {
    since: Time,
    dialled: Time,
    /// Whether it has had a flow.
    had: bool,
    /// Until it is dialled again, if it has not.
    pause: Duration,
}

/// Chooses for one connection.
#[derive(Clone, Debug)]
pub struct Chooser {
    role: Role,
    /// Flows that share a limit do not hold up the whole.
    wide: bool,
    draw: Draw,
    health: Health,
    phase: Phase,
    events: Vec<Event>,
    /// Rate over what there was before the search.
    alone: f64,
    /// The fastest flow of the search.
    top: f64,
    /// The total before the last dials.
    before: f64,
    dials: u32,
    limits: u32,
    /// What is paused in the next trial, where the last was too much.
    half: Option<Vec<FlowId>>,
    /// Whether a gain was measured again.
    confirmed: bool,
    /// Trials in a row that have said nothing.
    unclear: u32,
    /// Flows that are being closed: they count no more.
    closing: BTreeSet<FlowId>,
    /// Flows with a limit of their own, and what they carried when only they did.
    known: BTreeSet<FlowId>,
    base: Rates,
    /// Of the known ones, those that are kept as the only flow of their pair of addresses: they may
    /// share a limit, and count as none.
    kept: BTreeSet<FlowId>,
    /// Until when what dead flows had not delivered is sent again, and nothing is searched.
    recovers: Time,
    /// Flows that are needless, and paused.
    retired: BTreeSet<FlowId>,
    /// The rate of what is settled.
    settled: f64,
    settled_at: Time,
    /// When the whole was last found to have collapsed.
    collapsed_at: Option<Time>,
    /// Whether a known flow has gone since, or a line has come.
    limits_changed: bool,
    searched: bool,
    /// Whether what it carries alone is measured after it has begun.
    is_up: bool,
    /// What it carried at the last look of those that say whether it becomes faster.
    rose_to: f64,
    /// Since when it has carried much.
    bulky_at: Time,
    search_at: Time,
    search_again: Duration,
    had: BTreeSet<PairId>,
    lost: BTreeMap<PairId, LostPair>,
    avoided: BTreeMap<PairId, Time>,
    /// What waits for the peer's acknowledgement, and since when it does.
    stuck: Option<(Unacked, Time)>,
    crawl: Crawl,
    last: Option<Time>,
}

impl Chooser {
    /// For a connection that begins to be looked at; `seed` is for draws.
    #[must_use]
    pub fn new(role: Role, seed: u64) -> Self {
        Self {
            role,
            wide: false,
            draw: Draw::new(seed),
            health: Health::default(),
            phase: Phase::Watching(Mark::new(&Look {
                now: Time::ZERO,
                flows: &[],
                pairs: &[],
                unacked: None,
            })),
            events: Vec::new(),
            alone: 0.0,
            top: 0.0,
            before: 0.0,
            dials: 0,
            limits: 1,
            half: None,
            confirmed: false,
            unclear: 0,
            closing: BTreeSet::new(),
            known: BTreeSet::new(),
            base: Rates::default(),
            kept: BTreeSet::new(),
            recovers: Time::ZERO,
            retired: BTreeSet::new(),
            settled: 0.0,
            settled_at: Time::ZERO,
            collapsed_at: None,
            limits_changed: false,
            searched: false,
            is_up: false,
            rose_to: 0.0,
            bulky_at: Time::ZERO,
            search_at: Time::ZERO,
            search_again: SEARCH_AGAIN,
            had: BTreeSet::new(),
            lost: BTreeMap::new(),
            avoided: BTreeMap::new(),
            stuck: None,
            crawl: Crawl::default(),
            last: None,
        }
    }

    /// The same for a connection in which one flow can send what another holds: flows that share a
    /// limit cost the whole little.
    #[must_use]
    pub fn wide(role: Role, seed: u64) -> Self {
        Self { wide: true, ..Self::new(role, seed) }
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Watching(_) => State::Watching,
            Phase::Dialling(_) | Phase::Gauging(..) | Phase::Resting(_) => State::Dialling,
            Phase::Trying(..) | Phase::Weighing(..) => State::Pruning,
            Phase::Settled { .. } => State::Settled,
        }
    }

    /// Limits that are known, as far as can be measured.
    #[must_use]
    pub fn limits(&self) -> u32 {
        self.limits
    }

    /// What has happened since it was last asked.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// A subflow could not be dialled: not for some seconds.
    pub fn refused(&mut self, pair: PairId, now: Time) {
        self.avoided.insert(pair, now.after(UNANSWERED));
    }

    /// Takes a look in; says what is to be done. To be called ten times a second while anything is
    /// sent.
    pub fn look(&mut self, look: &Look<'_>) -> Vec<Action> {
        let here = |flow: &FlowId| look.flows.iter().any(|f| f.id == *flow);
        self.retired.retain(here);
        // With a known flow a limit may have gone.
        let known = self.known.len();
        self.known.retain(here);
        self.kept.retain(here);
        self.limits_changed |= self.known.len() < known;
        self.base.retain(|flow| here(&flow));
        self.closing.retain(here);
        let stays = |flow: &&Flow| !self.closing.contains(&flow.id);
        let flows: Vec<Flow> = look.flows.iter().filter(stays).copied().collect();
        let look = &Look { flows: &flows, ..*look };
        self.health.look(look);
        let mut actions = Vec::new();
        if self.last.is_none() {
            self.phase = Phase::Watching(Mark::new(look));
        }
        self.end_what_is_dead(look, &mut actions);
        if self.role == Role::Dials {
            self.abandon_trial(look, &mut actions);
            self.dial_what_is_lost(look, &mut actions);
            let from = self.state();
            self.step(look, &mut actions);
            self.tell(from, look);
        }
        self.last = Some(look.now);
        // Of a flow that is resumed and paused at once nothing changes.
        let of = |wanted: fn(&Action) -> Option<FlowId>| -> BTreeSet<FlowId> {
            actions.iter().filter_map(wanted).collect()
        };
        let paused = of(|action| match action {
            Action::Pause(flow) => Some(*flow),
            _ => None,
        });
        let resumed = of(|action| match action {
            Action::Resume(flow) => Some(*flow),
            _ => None,
        });
        let goes_on = |action: &Action| match action {
            Action::Pause(flow) => !resumed.contains(flow) && !self.closing.contains(flow),
            Action::Resume(flow) => !paused.contains(flow) && !self.closing.contains(flow),
            Action::Dial(_) | Action::Close(..) => true,
        };
        actions.retain(goes_on);
        actions
    }

    fn tell(&mut self, from: State, look: &Look<'_>) {
        let to = self.state();
        if from == to {
            return;
        }
        let rate = if to == State::Settled { self.settled } else { self.before };
        let flows = self.active(look).count() as u32;
        let (limits, dials) = (self.limits, self.dials);
        let rate_alone = self.alone;
        self.events.push(Event { from, to, rate, rate_alone, limits, flows, dials });
    }

    /// Open flows that are to carry data.
    fn active<'a>(&'a self, look: &Look<'a>) -> impl Iterator<Item = &'a Flow> + use<'a> {
        look.flows.iter().filter(|flow| flow.open && !self.rests(flow.id))
    }

    /// Known flows with a limit of their own, and one at least.
    fn limits_known(&self) -> u32 {
        (self.known.len() - self.kept.len()).max(1) as u32
    }

    /// Whether it is to carry nothing.
    fn rests(&self, flow: FlowId) -> bool {
        [&self.retired, &self.closing].iter().any(|set| set.contains(&flow))
    }

    fn step(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        let now = look.now;
        let phase = std::mem::replace(&mut self.phase, Phase::Dialling(now));
        self.phase = match phase {
            Phase::Watching(mark) => return self.watch(mark, look, actions),
            Phase::Dialling(until) if now >= until => Phase::Gauging(self.gauge(look), 0),
            Phase::Gauging(mut measurement, again) => match measurement.look(look) {
                None => Phase::Gauging(measurement, again),
                Some(rates) if again < AGAIN_MAX && rates.total() < self.before * STALLED => {
                    Phase::Gauging(self.gauge(look), again + 1)
                }
                Some(rates) if rates.total() < self.before * IDLE => {
                    Phase::Watching(Mark::new(look))
                }
                Some(rates) => return self.gauged(&rates, look, actions),
            },
            Phase::Resting(until) if now >= until => return self.rested(look, actions),
            Phase::Trying(trial, until) if now >= until => {
                Phase::Weighing(trial, Measurement::new(look, measure(look)), 0)
            }
            Phase::Weighing(trial, mut measurement, again) => match measurement.look(look) {
                None => Phase::Weighing(trial, measurement, again),
                Some(rates)
                    if again < AGAIN_MAX && rates.total() < trial.before.total() * STALLED =>
                {
                    let measurement = Measurement::new(look, measure(look));
                    Phase::Weighing(trial, measurement, again + 1)
                }
                Some(rates) => return self.weighed(&trial, &rates, look, actions),
            },
            Phase::Settled { mark, low } => return self.settled(mark, low, look, actions),
            waiting => waiting,
        };
    }

    /// What a batch adds. If many limits are known, flows that share them cost more the longer they
    /// do.
    fn gauge(&self, look: &Look<'_>) -> Measurement {
        let measurement = Measurement::new(look, measure(look));
        match self.known.len() {
            ..KNOWN_MANY => measurement.lengthened_once(),
            _ => measurement.never_lengthened(),
        }
    }

    /// Dials after which no more are worth it.
    fn enough(&self) -> u32 {
        if self.limits <= 1 && self.alone >= FAST { DIALS_FAST } else { enough(self.limits) }
    }

    /// What new flows must add to the whole to be worth a trial.
    fn least_gain(&self) -> f64 {
        if self.limits <= 1 && self.alone >= FAST { GAIN_FAST } else { GAIN }
    }

    /// Dials at once.
    fn batch(&self, look: &Look<'_>) -> u32 {
        if look.flows.len() <= 1 {
            BATCH_FIRST
        } else if missed(self.limits, self.dials) < LATE {
            BATCH_LATE
        } else {
            BATCH_MAX
        }
    }

    /// The mark moves on as long as there are pauses.
    fn watch(&mut self, mark: Mark, look: &Look<'_>, actions: &mut Vec<Action>) {
        let now = look.now;
        let gone = now.since(mark.at);
        let rates = mark.rates(look);
        let total = rates.total();
        let bytes = total * gone.as_secs_f64();
        if total < BUSY_BYTES_S as f64 && gone > Duration::ZERO {
            self.close_retired(look, actions);
            self.is_up = false;
            self.rose_to = 0.0;
            self.phase = Phase::Watching(Mark::new(look));
            return;
        }
        if gone < BUSY_MIN || bytes < BULK_BYTES as f64 {
            self.phase = Phase::Watching(mark);
            return;
        }
        self.bulky_at = mark.at;
        // What is fast has begun slowly: what it carries alone is measured once more.
        if total >= FAST && !std::mem::replace(&mut self.is_up, true) {
            self.phase = Phase::Watching(Mark::new(look));
            return;
        }
        if self.wide && self.still_rises(total) {
            self.phase = Phase::Watching(Mark::new(look));
            return;
        }
        if self.searched
            && (self.has_lost(now) || (now < self.search_at && !self.has_collapsed(total, now)))
        {
            self.settled = total;
            self.phase = Phase::Settled { mark: Mark::new(look), low: 0 };
            return;
        }
        self.search(0, &rates, look, actions);
    }

    /// Whether what was found says nothing of now, where a search costs little: a flow that carried all in its
    /// first seconds has lost its window. Once in a while: a program that gives less than there is now and then
    /// looks the same.
    fn has_collapsed(&mut self, rate: f64, now: Time) -> bool {
        let lately = self.collapsed_at.is_some_and(|at| now.since(at) < SEARCH_AGAIN);
        let collapsed = self.wide && !lately && rate < self.settled * COLLAPSED;
        if collapsed {
            self.collapsed_at = Some(now);
        }
        collapsed
    }

    /// Whether the whole becomes faster by itself, as it does until slow start is over: what it gains then is
    /// not the gain of flows that are dialled.
    fn still_rises(&mut self, total: f64) -> bool {
        let rises = total > self.rose_to * RISES;
        self.rose_to = if rises { total } else { 0.0 };
        rises
    }

    fn close_retired(&mut self, look: &Look<'_>, actions: &mut Vec<Action>) {
        let mut of: BTreeMap<PairId, usize> = BTreeMap::new();
        for flow in look.flows.iter().filter(|f| f.open && !self.closing.contains(&f.id)) {
            *of.entry(flow.pair).or_default() += 1;
        }
        let retired = std::mem::take(&mut self.retired);
        for flow in look.flows.iter().filter(|flow| retired.contains(&flow.id)) {
            let left = of.entry(flow.pair).or_default();
            if *left > 1 {
                *left -= 1;
                self.closing.insert(flow.id);
                actions.push(Action::Close(flow.id, Reason::Shares));
            } else {
                actions.push(Action::Resume(flow.id));
            }
        }
    }

    /// The search has ended; what rests is closed where nothing was found, for nothing waits there.
    fn settle(&mut self, rate: f64, look: &Look<'_>, actions: &mut Vec<Action>) {
        if self.known.len() <= 1 || self.wide {
            self.close_retired(look, actions);
        }
        let gained = self.settled == 0.0 || rate > self.settled * 1.1;
        self.search_again = match (self.searched, gained) {
            (false, _) | (true, true) => SEARCH_AGAIN,
            (true, false) => (self.search_again * 2).min(SEARCH_AGAIN_MAX),
        };
        self.searched = true;
        self.settled_at = look.now;
        self.limits_changed = false;
        self.settled = rate;
        self.search_at = look.now.after(self.search_again);
        self.phase = Phase::Settled { mark: Mark::new(look), low: 0 };
    }

    /// Known flows alone carry data for a while: until what has been carried so far is worth as much as
    /// another batch costs.
    fn rest(&mut self, least: Duration, look: &Look<'_>, actions: &mut Vec<Action>) {
        self.limits = self.limits_known();
        let known = self.limits;
        if self.dials == 0 || self.dials >= self.enough() {
            return self.search_on(look, actions);
        }
        let worth = self.bulky_at.after(worth_after(known, self.dials, self.batch(look)));
        let rest = worth.since(look.now).clamp(least, REST_MAX);
        self.phase = Phase::Resting(look.now.after(rest));
    }

    fn settled(&mut self, mark: Mark, low: u32, look: &Look<'_>, actions: &mut Vec<Action>) {
        if look.now.since(mark.at) < SLICE {
            self.phase = Phase::Settled { mark, low };
            return;
        }
        let rates = mark.rates(look);
        let rate = rates.total();
        let low = if rate < self.settled * LOST { low + 1 } else { 0 };
        let searched_lately = look.now.since(self.settled_at) < SEARCH_AGAIN;
        if low >= 2 && rate < (self.settled * IDLE).max(BUSY_BYTES_S as f64) {
            self.phase = Phase::Watching(Mark::new(look));
        } else if low >= LOW_SLICES
            && !self.has_lost(look.now)
            && (!searched_lately || self.has_collapsed(rate, look.now))
        {
            self.search(0, &rates, look, actions);
        } else if (look.now >= self.search_at || self.limits_changed) && !self.has_lost(look.now) {
            let again = self.enough().saturating_sub(SEARCH_DIALS);
            self.limits_changed = false;
            self.search_beside(again, &rates, look, actions);
        } else {
            if look.now.since(self.bulky_at) >= CLOSE_AFTER {
                self.close_retired(look, actions);
            }
            self.phase = Phase::Settled { mark: Mark::new(look), low };
        }
    }
}

/// Until new flows carry what they can: slow start doubles each round trip.
fn settle_dials(look: &Look<'_>) -> Duration {
    Duration::from_millis(300) + look.round_trip() * 8
}

/// How long a connection must have been bulky for a further batch to be worth it: it goes on for as long
/// again, and a limit is a share of it that is lost with the chance that one was missed and is hit now.
fn worth_after(found: u32, dials: u32, batch: u32) -> Duration {
    let found_f = f64::from(found.max(1));
    let missed = missed(found, dials);
    let hit = 1.0 - (found_f / (found_f + 1.0)).powf(f64::from(batch));
    Duration::from_secs_f64(
        DIAL_COSTS * f64::from(batch) * found_f * (1.0 + missed) / (missed * hit),
    )
}

/// Until what was under way on paused flows has come, and the others have taken up what they left:
/// BBR raises its rate by a quarter in 8 round trips, so it doubles in 25.
fn settle_pause(look: &Look<'_>) -> Duration {
    Duration::from_millis(300) + look.round_trip() * 25
}

/// How long is measured.
fn measure(look: &Look<'_>) -> Duration {
    Duration::from_millis(500) + look.round_trip() * 4
}
