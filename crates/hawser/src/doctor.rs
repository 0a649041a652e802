//! `hawser doctor`: why it is slow, and the one thing to change first.
//!
//! # Model
//! The control socket is asked twice, as by `hawser top`; [`judge`] makes findings of the two answers,
//! without a look at anything else, so that the dashboard has the same and tests need no process.

pub mod finding;
pub mod judge;
mod lines;
mod pool;

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::status::{self, PoolStatus, Status};
use crate::units;
use finding::Finding;

/// What was found, and on what figures.
#[derive(Debug, Serialize)]
pub struct Report {
    /// For how long it was watched.
    pub seconds: f64,
    /// What was looked at, in figures.
    pub looked_at: String,
    /// What to change, the first thing first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Asks the process at `socket` twice.
    ///
    /// # Errors
    /// It does not answer, or another process answers the second time.
    pub fn of(socket: &Path, wait: Duration) -> io::Result<Self> {
        let (before, began) = (status::ask(socket)?, Instant::now());
        std::thread::sleep(wait);
        let now = status::ask(socket)?;
        if before.pid != now.pid {
            let said = format!("process {} has taken the place of {}", now.pid, before.pid);
            return Err(io::Error::other(said));
        }
        let seconds = began.elapsed().as_secs_f64();
        Ok(Self {
            seconds,
            looked_at: looked_at(&before, seconds, &now),
            findings: judge::judge(Some((&before, seconds)), &now),
        })
    }

    /// For reading.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (at, finding) in self.findings.iter().enumerate() {
            let Finding { wrong, mend, page, .. } = finding;
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}. {wrong}\n   {mend}\n   {page}\n", at + 1);
        }
        let begins = if self.findings.is_empty() { "nothing to change: " } else { "" };
        let _ = writeln!(text, "{begins}looked {:.0} s at {}", self.seconds, self.looked_at);
        text
    }
}

fn looked_at(before: &Status, seconds: f64, now: &Status) -> String {
    let sum =
        |status: &Status, of: fn(&PoolStatus) -> u64| status.pools.iter().map(of).sum::<u64>();
    let transactions = |status| sum(status, |pool| pool.transactions);
    let rate = transactions(now).saturating_sub(transactions(before)) as f64 / seconds.max(0.001);
    let errors: u64 = now.errors.values().sum::<u64>().saturating_sub(before.errors.values().sum());
    let number = units::grouped;
    format!(
        "pools: {} ({} transactions/s; server connections: {} of {}; clients waiting: {}), servers: {}, \
         paths: {}, clients: {} of {}, descriptors: {} of {}, rules: {}, errors: {}",
        now.pools.len(),
        number(rate as u64),
        number(sum(now, |pool| pool.servers().into())),
        number(sum(now, |pool| pool.size.into())),
        number(sum(now, |pool| pool.waiting.into())),
        now.servers.len(),
        now.lines.len(),
        number(now.clients as u64),
        number(now.clients_max.into()),
        number(now.descriptors),
        number(now.descriptors_max),
        now.rules.len(),
        number(errors),
    )
}
