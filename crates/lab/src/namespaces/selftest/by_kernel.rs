//! What is proved of links that the kernel carries.
//!
//! # Model
//! netem draws other packets than the model does, so shares are counted: of a seed, where the kernel
//! takes one, always the same. They are large ones, for by chance alone a loss of 3 % is off by more
//! than 2 % of it for 80,000 packets. What is not by chance is held against virtual time.

use std::time::Duration;

use super::{Bench, Check, FORWARD, Measure, Measured, SECONDS, SEED, SelftestError};
use super::{delay, megabits, milliseconds, outage, paced, parsed, rate};
use crate::wan::network::{End, Port};
use crate::wan::virtual_time::{self, Outcome, Traffic};

/// In the order of the run.
pub(super) const CHECKS: [(&str, Measure); 8] = [
    ("rate", rate),
    ("queue", queue),
    ("delay", delay),
    ("jitter", jitter),
    ("reordering", reordering),
    ("loss", loss),
    ("bursts", bursts),
    ("outage", outage),
];

#[expect(clippy::cast_precision_loss, reason = "small")]
fn number(count: usize) -> f64 {
    count as f64
}

/// A queue in bytes and one in packets, against virtual time.
fn queue(bench: &mut Bench) -> Measured {
    let mut checks = Vec::new();
    for bound in ["128KiB", "60packets"] {
        let toml = format!("[[link]]\nrate = \"10Mbit/s\"\nqueue = \"{bound}\"\nrtt = \"50ms\"");
        let traffic = paced(1, 1500, 4 * SECONDS);
        let (here, _) = bench.run(&toml, SEED, &[traffic])?;
        let (there, _) = virtual_time::run(&parsed(&toml)?, SEED, &[traffic]);
        let (here, there) = (&here[0], &there[0]);
        let dropped = |o: &Outcome| number(o.received.missing(o.sent).len());
        let name = |what: &str| format!("queue of {bound}, as in virtual time: {what}");
        checks.extend([
            Check::new(name("goodput"), megabits(there), megabits(here), "Mbit/s"),
            Check::new(name("delay"), milliseconds(there), milliseconds(here), "ms"),
            Check::new(name("drops"), dropped(there), dropped(here), "packets"),
        ]);
    }
    Ok(checks)
}

fn jitter(bench: &mut Bench) -> Measured {
    let toml = "[[link]]\ndelay = \"100ms\"\njitter = \"20ms\"";
    // So far apart that none meets another.
    let (sparse, _) = bench.run(toml, SEED, &[paced(1, 25, 12 * SECONDS)])?;
    let delays = sparse[0].received.delays();
    let ms = |delay: Option<&Duration>| delay.map_or(0.0, |delay| delay.as_secs_f64() * 1e3);
    let (dense, _) = bench.run(toml, SEED, &[paced(1, 1000, 2 * SECONDS)])?;
    let numbers = dense[0].received.numbers();
    let swapped = numbers.windows(2).filter(|pair| pair[0] > pair[1]).count();
    Ok(vec![
        Check::new("jitter, 100 ms ± 20: the shortest delay", 80.0, ms(delays.iter().min()), "ms"),
        Check::new("jitter, 100 ms ± 20: the longest delay", 120.0, ms(delays.iter().max()), "ms"),
        Check::new("jitter, packets out of order", 0.0, number(swapped), "packets"),
    ])
}

fn reordering(bench: &mut Bench) -> Measured {
    let toml = "[[link]]\ndelay = \"20ms\"\nreorder = { share = \"50%\", by = \"30ms\" }";
    let (outcomes, _) = bench.run(toml, SEED, &[paced(1, 4000, 5 * SECONDS)])?;
    let delays = outcomes[0].received.delays();
    let held = delays.iter().filter(|delay| **delay > Duration::from_millis(35)).count();
    let share = number(held) / number(delays.len().max(1)) * 100.0;
    Ok(vec![Check::new("reordering, packets that are held back", 50.0, share, "%")])
}

/// The packets that did not arrive, of so many a second for so long.
fn lost(
    bench: &mut Bench,
    toml: &str,
    seed: u64,
    (per_second, lasts): (u32, Duration),
) -> Result<(Vec<u64>, f64), SelftestError> {
    let traffic =
        Traffic { from: Port { end: End::First, ..FORWARD }, ..paced(1, per_second, lasts) };
    let (outcomes, snapshot) = bench.run(toml, seed, &[traffic])?;
    bench.kernel_is_seeded = snapshot.kernel_is_seeded == Some(true);
    let Outcome { sent, received } = &outcomes[0];
    let missing = received.missing(*sent);
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let share = number(missing.len()) / (*sent).max(1) as f64 * 100.0;
    Ok((missing, share))
}

fn loss(bench: &mut Bench) -> Measured {
    let many = "[[link]]\nrtt = \"10ms\"\nloss = \"30%\"";
    let (_, share) = lost(bench, many, SEED, (10_000, 7 * SECONDS))?;
    let mut checks = vec![Check::new("loss, 30 % over 70,000 packets", 30.0, share, "%")];
    if bench.kernel_is_seeded {
        let few = "[[link]]\nrtt = \"10ms\"\nloss = \"3%\"";
        let pace = (4000, 2 * SECONDS);
        let (first, _) = lost(bench, few, SEED, pace)?;
        let (again, _) = lost(bench, few, SEED, pace)?;
        let (other, _) = lost(bench, few, SEED + 1, pace)?;
        let spared = number(first.iter().filter(|n| !other.contains(n)).count());
        let all = number(first.len());
        checks.extend([
            Check::same("loss, the same seed loses the same packets", &first, &again),
            Check::new("loss, of these another seed spares 97 %", all * 0.97, spared, "packets"),
        ]);
    }
    Ok(checks)
}

fn bursts(bench: &mut Bench) -> Measured {
    let toml = "[[link]]\nrtt = \"10ms\"\nloss = { good_to_bad = \"20%\", bad_to_good = \"25%\" }";
    let (missing, share) = lost(bench, toml, SEED, (10_000, 10 * SECONDS))?;
    let goes_on = missing.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
    let length = number(missing.len()) / number((missing.len() - goes_on).max(1));
    let asked = 100.0 * 0.2 / 0.45;
    Ok(vec![
        Check::new("loss in bursts, over 100,000 packets", asked, share, "%"),
        Check::new("loss in bursts, the mean burst", 4.0, length, "packets"),
    ])
}
