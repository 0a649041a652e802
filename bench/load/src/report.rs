//! What the program says, a JSON object a line: to `run.py`, or from a child to its parent.

use std::io::{self, Write as _};

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::worker::Tally;

/// A line of output.
#[derive(Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// All connections are open; a line on standard input starts the work.
    Ready { connected: usize, errors: u64, first_error: Option<String> },
    /// The window that counts begins.
    Start,
    /// The window that counts has ended.
    End,
    /// Every held connection has run one transaction.
    Touched { done: u64 },
    /// The figures of the window.
    Result(Figures),
}

/// The figures of one window.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) seconds: f64,
    /// Transactions, logins or transfers that ended within the window.
    pub(crate) done: u64,
    pub(crate) per_second: f64,
    /// Transactions that the server answered with an error.
    pub(crate) errors: u64,
    /// Connections that broke.
    pub(crate) lost: u64,
    pub(crate) first_error: Option<String>,
    /// Latency in microseconds; absent without a sample.
    pub(crate) p50_us: Option<f64>,
    pub(crate) p95_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p999_us: Option<f64>,
    /// CPU seconds of this program in the window.
    pub(crate) cpu_seconds: f64,
    /// Only `bulk`: bytes on the wire, and the rate of each transfer in MB/s (10^6 bytes).
    pub(crate) bytes: u64,
    pub(crate) mb_per_second: Vec<f64>,
    /// Only between child and parent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) histogram: Vec<(usize, u64)>,
}

impl Figures {
    /// Adds a worker's counts.
    pub(crate) fn add(&mut self, tally: &Tally, all: &mut Histogram) {
        self.done += tally.done;
        self.errors += tally.errors;
        self.lost += tally.lost;
        all.merge(&tally.latencies.sparse());
        if self.first_error.is_none() {
            self.first_error.clone_from(&tally.first_error);
        }
    }

    /// Adds a child's counts.
    pub(crate) fn add_child(&mut self, child: &Self, all: &mut Histogram) {
        self.done += child.done;
        self.errors += child.errors;
        self.lost += child.lost;
        self.cpu_seconds += child.cpu_seconds;
        self.seconds = self.seconds.max(child.seconds);
        all.merge(&child.histogram);
        if self.first_error.is_none() {
            self.first_error.clone_from(&child.first_error);
        }
    }

    /// Fills in what follows from the counts.
    pub(crate) fn complete(&mut self, all: &Histogram) {
        self.per_second = if self.seconds > 0.0 { self.done as f64 / self.seconds } else { 0.0 };
        self.p50_us = all.quantile_us(0.5);
        self.p95_us = all.quantile_us(0.95);
        self.p99_us = all.quantile_us(0.99);
        self.p999_us = all.quantile_us(0.999);
    }
}

/// Writes one line.
///
/// # Errors
/// That of standard output.
pub(crate) fn say(event: &Event) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, event)?;
    out.write_all(b"\n")?;
    out.flush()
}
