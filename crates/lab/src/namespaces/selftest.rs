//! Does the laboratory do what is asked of it, here and now?
//!
//! # Model
//! Each check brings a network up, sends through it, and compares what the receiver saw with what
//! the description asks, or with what virtual time says of the same description, seed and traffic.
//! A run whose packets left late is no proof of anything: it is refused, not failed.
//!
//! # Limits      waking the emulator and the receiver adds 0.05 to 0.3 ms to a delay, which no
//!               description asks for: below 15 ms of delay, 2 % cannot be proved everywhere
//!
//! # Why not     shares of lost packets measured in seconds: by chance alone they are off by more
//!               than 2 %. The packets that are lost are the very ones that the model loses, and
//!               the model is measured over a million

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::report::Snapshot;
use super::{Laboratory, UpError, probe};
use crate::wan::description::Description;
use crate::wan::direction::{Direction, Fate};
use crate::wan::flow::Flow;
use crate::wan::network::{End, Network, Port};
use crate::wan::parse::{Invalid, parse};
use crate::wan::traffic::Pattern;
use crate::wan::virtual_time::{self, Outcome, Traffic};

/// How far a figure may be from what was asked.
pub const TOLERANCE: f64 = 0.02;
/// How often a run that was not faithful is tried again.
const TRIES: u32 = 3;
const SEED: u64 = 20_241;
const FORWARD: Port = Port { link: 0, end: End::First };

/// One comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    /// What was measured.
    pub what: String,
    /// What it should be.
    pub asked: f64,
    /// What it was.
    pub found: f64,
    /// Of both.
    pub unit: Cow<'static, str>,
    /// Whether it is near enough.
    pub is_right: bool,
}

impl Check {
    fn new(what: impl Into<String>, asked: f64, found: f64, unit: &'static str) -> Self {
        let is_right = (found - asked).abs() <= asked.abs() * TOLERANCE;
        Self { what: what.into(), asked, found, unit: unit.into(), is_right }
    }

    /// Of numbers that must be the same.
    fn same(what: impl Into<String>, asked: &[u64], found: &[u64]) -> Self {
        let differing = asked.iter().filter(|n| !found.contains(n)).count()
            + found.iter().filter(|n| !asked.contains(n)).count();
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let (asked, differing) = (asked.len() as f64, differing as f64);
        let is_right = differing == 0.0 && asked > 0.0;
        Self {
            what: what.into(),
            asked,
            found: asked - differing,
            unit: "packets".into(),
            is_right,
        }
    }

    /// The deviation, of what was asked.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        if self.asked == 0.0 { self.found } else { self.found / self.asked - 1.0 }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, asked, found, unit, is_right } = self;
        let verdict = if *is_right { "ok" } else { "WRONG" };
        let deviation = self.deviation() * 100.0;
        write!(f, "{what:<58} {asked:>10.3} {found:>10.3} {unit:<7} {deviation:>+7.2} % {verdict}")
    }
}

/// All that was found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Findings {
    /// In the order of the run.
    pub checks: Vec<Check>,
    /// Why a check proved nothing, each with its name.
    pub refused: Vec<String>,
    /// Worst of the lateness figures of all faithful runs: 99.9 % of packets left within this,
    /// in microseconds.
    pub lateness_us: u128,
}

/// Why there are no findings.
#[derive(Debug, thiserror::Error)]
pub enum SelftestError {
    /// No laboratory could be brought up.
    #[error("{0}")]
    Up(#[source] UpError),
    /// Its sockets failed.
    #[error("sending through the laboratory: {0}")]
    Traffic(#[source] io::Error),
    /// One of its descriptions is wrong: a bug.
    #[error("{0}")]
    Description(#[source] Invalid),
}

/// Brings up what it needs, and compares.
type Measure = fn(&mut Bench) -> Measured;
type Measured = Result<Vec<Check>, SelftestError>;

/// In the order of the run.
const CHECKS: [(&str, Measure); 9] = [
    ("rate", rate),
    ("delay", delay),
    ("loss", loss),
    ("bursts", bursts),
    ("classes", classes),
    ("policer", policer),
    ("paths", paths),
    ("outage", outage),
    ("virtual time", agreement),
];

/// Runs all checks; `tell` gets each as it is made.
///
/// # Errors
/// There is no laboratory to check.
pub fn run(mut tell: impl FnMut(&Check)) -> Result<Findings, SelftestError> {
    let mut findings = Findings::default();
    for (name, check) in CHECKS {
        let mut reason = None;
        for _ in 0..TRIES {
            let mut bench = Bench::default();
            let found = check(&mut bench)?;
            reason = bench.unfaithful;
            if reason.is_none() {
                found.iter().for_each(&mut tell);
                findings.checks.extend(found);
                findings.lateness_us = findings.lateness_us.max(bench.lateness.as_micros());
                break;
            }
        }
        findings.refused.extend(reason.map(|reason| format!("{name}: {reason}")));
    }
    Ok(findings)
}

/// Brings networks up and watches how they do.
#[derive(Default)]
struct Bench {
    unfaithful: Option<String>,
    lateness: Duration,
}

impl Bench {
    fn run(
        &mut self,
        toml: &str,
        seed: u64,
        traffic: &[Traffic],
    ) -> Result<(Vec<Outcome>, Snapshot), SelftestError> {
        let laboratory = Laboratory::up(parsed(toml)?, seed).map_err(SelftestError::Up)?;
        let outcomes = probe::run(&laboratory, traffic).map_err(SelftestError::Traffic)?;
        let snapshot = laboratory.snapshot().map_err(SelftestError::Traffic)?;
        self.unfaithful = self.unfaithful.take().or(snapshot.unfaithful());
        self.lateness = self.lateness.max(snapshot.lateness.quantile(0.999));
        Ok((outcomes, snapshot))
    }
}

fn parsed(toml: &str) -> Result<Description, SelftestError> {
    parse("selftest", toml).map_err(SelftestError::Description)
}

/// UDP forward over the first link from this port, `per_second` packets for as long as `lasts`.
fn paced(port: u16, per_second: u32, lasts: Duration) -> Traffic {
    Traffic {
        from: FORWARD,
        flow: flow(port),
        pattern: Pattern::Paced { interval: Duration::from_secs(1) / per_second },
        payload_bytes: 1000,
        answer_bytes: 16,
        begin: Duration::ZERO,
        lasts,
    }
}

fn flow(port: u16) -> Flow {
    Flow::udp([10, 77, 0, 1].into(), port, [10, 77, 0, 2].into(), port)
}

/// What of a rate in Mbit/s is payload, in packets of 1,000 bytes of it.
fn payload_share(megabits: f64) -> f64 {
    megabits * 1000.0 / (1000.0 + 28.0 + 14.0)
}

fn megabits(outcome: &Outcome) -> f64 {
    outcome.received.goodput_bits_per_second() / 1e6
}

fn milliseconds(outcome: &Outcome) -> f64 {
    outcome.received.median_delay().as_secs_f64() * 1e3
}

const SECONDS: Duration = Duration::from_secs(1);

fn rate(bench: &mut Bench) -> Measured {
    let toml = "[[link]]\nrate = \"20Mbit/s\"\nqueue = \"50packets\"\nrtt = \"10ms\"\n\
                [link.backward]\nrate = \"5Mbit/s\"";
    let back = Traffic { from: Port { end: End::Second, ..FORWARD }, ..paced(2, 800, 3 * SECONDS) };
    let (outcomes, _) = bench.run(toml, SEED, &[paced(1, 3000, 3 * SECONDS), back])?;
    Ok(vec![
        Check::new(
            "rate, 20 Mbit/s forward, payload",
            payload_share(20.0),
            megabits(&outcomes[0]),
            "Mbit/s",
        ),
        Check::new(
            "rate, 5 Mbit/s backward, payload",
            payload_share(5.0),
            megabits(&outcomes[1]),
            "Mbit/s",
        ),
    ])
}

fn delay(bench: &mut Bench) -> Measured {
    let toml = "[[link]]\n[link.forward]\ndelay = \"108.5ms\"\n[link.backward]\ndelay = \"15ms\"";
    let back = Traffic { from: Port { end: End::Second, ..FORWARD }, ..paced(2, 200, 2 * SECONDS) };
    let (outcomes, _) = bench.run(toml, SEED, &[paced(1, 200, 2 * SECONDS), back])?;
    Ok(vec![
        Check::new("delay, 108.5 ms forward, median", 108.5, milliseconds(&outcomes[0]), "ms"),
        Check::new("delay, 15 ms backward, median", 15.0, milliseconds(&outcomes[1]), "ms"),
    ])
}

/// Mean loss of a million packets by the model alone, in percent.
fn modelled_loss(toml: &str) -> Result<(f64, f64), SelftestError> {
    let description = parsed(toml)?;
    let wire = description.links[0].paths[0].forward.clone();
    let asked = wire.loss.mean() * 100.0;
    let mut direction = Direction::new(wire, SEED);
    let mut lost = 0.0;
    for n in 0..1_000_000 {
        let fate = direction.offer(Duration::from_micros(n), flow(1), 1000);
        lost += f64::from(u8::from(matches!(fate, Fate::Dropped(_))));
    }
    Ok((asked, lost / 1e4))
}

/// The numbers of lost packets, here and in virtual time.
fn lost(
    bench: &mut Bench,
    toml: &str,
    seed: u64,
    traffic: Traffic,
) -> Result<(Vec<u64>, Vec<u64>), SelftestError> {
    let (outcomes, _) = bench.run(toml, seed, &[traffic])?;
    let description = parsed(toml)?;
    let (modelled, _) = virtual_time::run(&description, seed, &[traffic]);
    let missing = |outcome: &Outcome| outcome.received.missing(outcome.sent);
    Ok((missing(&outcomes[0]), missing(&modelled[0])))
}

fn loss(bench: &mut Bench) -> Measured {
    let toml = "[[link]]\nrtt = \"10ms\"\nloss = \"3%\"";
    let traffic = paced(1, 4000, 2 * SECONDS);
    let (first, modelled) = lost(bench, toml, SEED, traffic)?;
    let (again, _) = lost(bench, toml, SEED, traffic)?;
    let (other, _) = lost(bench, toml, SEED + 1, traffic)?;
    let (asked, found) = modelled_loss(toml)?;
    let other_chance = first.iter().filter(|n| !other.contains(n)).count();
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let (all, differing) = (first.len() as f64, other_chance as f64);
    Ok(vec![
        Check::new("loss, 3 %, the model over a million packets", asked, found, "%"),
        Check::same("loss, the very packets that the model loses", &modelled, &first),
        Check::same("loss, the same seed loses the same packets", &first, &again),
        Check::new("loss, of these another seed spares 97 %", all * 0.97, differing, "packets"),
    ])
}

fn bursts(bench: &mut Bench) -> Measured {
    let toml = "[[link]]\nrtt = \"10ms\"\nloss = { good_to_bad = \"2%\", bad_to_good = \"25%\" }";
    let (here, modelled) = lost(bench, toml, SEED, paced(1, 4000, 2 * SECONDS))?;
    let (asked, found) = modelled_loss(toml)?;
    Ok(vec![
        Check::new("loss in bursts, the model over a million packets", asked, found, "%"),
        Check::same("loss in bursts, the very packets that the model loses", &modelled, &here),
    ])
}

/// A port for each of `count` classes.
fn ports_by_class(toml: &str, count: usize) -> Result<Vec<u16>, SelftestError> {
    let description = parsed(toml)?;
    let network: Network<()> = Network::new(&description, SEED);
    let port = |class| (1000..).find(|&p| network.place_of(FORWARD, flow(p)).1 == Some(class));
    Ok((0..count).filter_map(port).collect())
}

fn classes(bench: &mut Bench) -> Measured {
    let toml = "[[link]]\nrtt = \"10ms\"\nlimit = { classes = 8, rate = \"2Mbit/s\", queue = \"20packets\" }";
    let ports = ports_by_class(toml, 8)?;
    let flows: Vec<Traffic> = ports.iter().map(|&p| paced(p, 350, 3 * SECONDS)).collect();
    let (outcomes, _) = bench.run(toml, SEED, &flows)?;
    let one = payload_share(2.0);
    let found: Vec<f64> = outcomes.iter().map(megabits).collect();
    let of = |pick: fn(f64, f64) -> f64, from: f64| found.iter().copied().fold(from, pick);
    let (slowest, fastest) = (of(f64::min, f64::MAX), of(f64::max, 0.0));
    let total = found.iter().sum();
    let (alone, _) = bench.run(toml, SEED, &[paced(ports[0], 1000, 3 * SECONDS)])?;
    Ok(vec![
        Check::new(
            "limits, 8 classes of 2 Mbit/s, one flow alone",
            one,
            megabits(&alone[0]),
            "Mbit/s",
        ),
        Check::new("limits, 8 flows in 8 classes, the slowest", one, slowest, "Mbit/s"),
        Check::new("limits, 8 flows in 8 classes, the fastest", one, fastest, "Mbit/s"),
        Check::new("limits, 8 flows in 8 classes, all", 8.0 * one, total, "Mbit/s"),
    ])
}

fn policer(bench: &mut Bench) -> Measured {
    let toml =
        "[[link]]\nrtt = \"60ms\"\nlimit = { classes = 1, rate = \"4Mbit/s\", burst = \"8KiB\" }";
    let (outcomes, _) = bench.run(toml, SEED, &[paced(1, 800, 3 * SECONDS)])?;
    Ok(vec![
        Check::new(
            "policer, 4 Mbit/s, payload",
            payload_share(4.0),
            megabits(&outcomes[0]),
            "Mbit/s",
        ),
        Check::new(
            "policer, nothing waits: the delay of 30 ms",
            30.0,
            milliseconds(&outcomes[0]),
            "ms",
        ),
    ])
}

fn paths(bench: &mut Bench) -> Measured {
    let toml = "[[link]]\n[[link.path]]\nrtt = \"40ms\"\n[[link.path]]\nrtt = \"120ms\"";
    let description = parsed(toml)?;
    let network: Network<()> = Network::new(&description, SEED);
    let port = |path| (1000..).find(|&p| network.place_of(FORWARD, flow(p)).0 == path);
    let flows: Vec<Traffic> = (0..2).filter_map(port).map(|p| paced(p, 200, 2 * SECONDS)).collect();
    let (outcomes, _) = bench.run(toml, SEED, &flows)?;
    Ok(vec![
        Check::new("ECMP, a flow on the path of 20 ms", 20.0, milliseconds(&outcomes[0]), "ms"),
        Check::new("ECMP, a flow on the path of 60 ms", 60.0, milliseconds(&outcomes[1]), "ms"),
    ])
}

fn outage(bench: &mut Bench) -> Measured {
    let toml =
        "[[link]]\nrtt = \"10ms\"\noutages = [{ at = \"1s\", lasts = \"500ms\", every = \"1s\" }]";
    // Ends between the third outage and the fourth.
    let traffic = paced(1, 1000, 3_700 * SECONDS / 1000);
    let (outcomes, snapshot) = bench.run(toml, SEED, &[traffic])?;
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let missing = outcomes[0].received.missing(outcomes[0].sent).len() as f64;
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let counted = snapshot.paths[0].dropped_by_outage as f64;
    Ok(vec![
        Check::new(
            "outages of 500 ms each second: packets lost in three",
            1500.0,
            missing,
            "packets",
        ),
        Check::new("outages, the laboratory's own count", missing, counted, "packets"),
    ])
}

/// The same description, seed and traffic, here and in virtual time.
fn agreement(bench: &mut Bench) -> Measured {
    let toml = "[[link]]\nrate = \"10Mbit/s\"\nqueue = \"128KiB\"\nrtt = \"50ms\"\njitter = \"5ms\"\n\
                loss = \"3%\"\nreorder = { share = \"1%\", by = \"3ms\" }";
    let window = Pattern::Window { window: 100, timeout: Duration::from_millis(300) };
    let mut checks = Vec::new();
    for (name, traffic) in [
        ("paced at 1.25 x the rate", paced(1, 1500, 4 * SECONDS)),
        ("a window of 100 packets", Traffic { pattern: window, ..paced(1, 1, 4 * SECONDS) }),
    ] {
        let (here, _) = bench.run(toml, SEED, &[traffic])?;
        let description = parsed(toml)?;
        let (there, _) = virtual_time::run(&description, SEED, &[traffic]);
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let dropped = |o: &Outcome| o.received.missing(o.sent).len() as f64;
        let (here, there) = (&here[0], &there[0]);
        checks.extend([
            Check::new(
                format!("virtual time, {name}: goodput"),
                megabits(there),
                megabits(here),
                "Mbit/s",
            ),
            Check::new(
                format!("virtual time, {name}: delay"),
                milliseconds(there),
                milliseconds(here),
                "ms",
            ),
            Check::new(
                format!("virtual time, {name}: drops"),
                dropped(there),
                dropped(here),
                "packets",
            ),
        ]);
    }
    Ok(checks)
}
