//! The audit: statements that rules with `audit` match, a line of JSON each, in a file, by syslog.
//!
//! # Model       loops ─► a queue of [`QUEUE_MAX`] ─► a thread of its own ─► `audit_file`, `audit_syslog`
//! # Invariants
//! * no loop waits: a line that finds the queue full is lost, and so is one that cannot be written. Both are
//!   counted, and the log says so once a minute
//! * a line is whole JSON without control characters, and never longer than a datagram of syslog
//!
//! # Limits      one audit a process, as the log. Nothing is forced to the disk

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hawser_pooler::queries::digest::digest;
use serde::Serialize;

use super::{Outputs, Seldom, write_json};
use crate::admin::clock::date;
use crate::config::StartConfig;

/// Lines that wait to be written.
const QUEUE_MAX: usize = 4096;
/// Of each text: what statistics of queries read of it, so that the digest is theirs.
pub const TEXT_BYTES_MAX: usize = 16 * 1024;
/// Of each text in its line: with all of it and of four names as escapes, the line fits a datagram.
const WRITTEN_BYTES_MAX: usize = 1024;
/// How often the end of the process looks whether all is written.
const END_POLL: Duration = Duration::from_millis(5);

static AUDIT: OnceLock<Audit> = OnceLock::new();
static LOST: Seldom = Seldom::new();

/// A statement.
#[derive(Debug)]
pub struct Statement {
    /// When a rule matched it.
    pub at: SystemTime,
    /// The rule's name.
    pub rule: Box<str>,
    /// A rule has refused it.
    pub refused: bool,
    /// The client's user.
    pub user: Box<str>,
    /// The client's database.
    pub database: Box<str>,
    /// The client's address; empty on a unix socket.
    pub address: Box<str>,
    /// The client's port.
    pub port: u16,
    /// The session's application_name.
    pub application_name: Box<[u8]>,
    /// Its text, up to [`TEXT_BYTES_MAX`].
    pub text: Box<[u8]>,
    /// The length of its text.
    pub bytes: usize,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    rule: &'a str,
    refused: bool,
    user: &'a str,
    database: &'a str,
    address: &'a str,
    port: u16,
    application_name: &'a str,
    digest: String,
    bytes: usize,
    text: &'a str,
}

impl Statement {
    fn line(&self) -> String {
        let (date, since) = (date(self.at), self.at.duration_since(UNIX_EPOCH).unwrap_or_default());
        let text = &self.text[..self.text.len().min(WRITTEN_BYTES_MAX)];
        let line = Line {
            time: format!("{}T{}.{:03}Z", &date[..10], &date[11..19], since.subsec_millis()),
            rule: &self.rule,
            refused: self.refused,
            user: &self.user,
            database: &self.database,
            address: &self.address,
            port: self.port,
            application_name: &String::from_utf8_lossy(&self.application_name),
            digest: digest(&self.text).0.to_string(),
            bytes: self.bytes,
            text: &String::from_utf8_lossy(text),
        };
        // (What it is made of has a form in JSON.)
        let json = serde_json::to_string(&line).unwrap_or_default();
        let mut escaped = String::with_capacity(json.len() + 1);
        let _ = write_json(&mut escaped, &json); // (a String takes all)
        escaped.push('\n');
        escaped
    }
}

/// Where loops leave statements.
#[derive(Debug)]
struct Audit {
    sender: SyncSender<Statement>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Left by loops, those lost included.
    all: AtomicU64,
    lost: AtomicU64,
    written: AtomicU64,
    /// The file is to be opened again.
    reopens: AtomicBool,
}

impl Counts {
    fn lose(&self, reason: &str) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        if LOST.may(reason).is_some() {
            let lost = self.lost.load(Ordering::Relaxed);
            tracing::error!(reason, lost, "statements are missing in the audit");
        }
    }

    fn is_all_done(&self) -> bool {
        let done = self.lost.load(Ordering::Relaxed) + self.written.load(Ordering::Relaxed);
        done >= self.all.load(Ordering::Relaxed)
    }
}

impl Audit {
    fn to(outputs: Outputs, queue_max: usize) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(queue_max);
        let counts: Arc<Counts> = Arc::default();
        let of_thread = counts.clone();
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write(&outputs, &receiver, &of_thread))?;
        Ok(Self { sender, counts })
    }

    fn take(&self, statement: Statement) {
        self.counts.all.fetch_add(1, Ordering::Relaxed);
        if self.sender.try_send(statement).is_err() {
            self.counts.lose("its file or syslog does not keep up");
        }
    }
}

fn write(outputs: &Outputs, receiver: &Receiver<Statement>, counts: &Counts) {
    let mut is_torn = false;
    for statement in receiver {
        if counts.reopens.swap(false, Ordering::Relaxed)
            && let Err(error) = outputs.reopen()
        {
            tracing::warn!(error, "cannot reopen the audit; the old file is still written");
        }
        let mut line = statement.line();
        if is_torn {
            line.insert(0, '\n'); // a part of the line before is there
        }
        let written = outputs.write(6, line.as_bytes());
        is_torn = written.is_err();
        match written {
            Ok(()) => _ = counts.written.fetch_add(1, Ordering::Relaxed),
            Err(error) => counts.lose(&error.to_string()),
        }
    }
}

/// Begins the audit, if the configuration has one.
///
/// # Errors
/// Its file cannot be opened, or there is no syslog.
pub fn begin(start: &StartConfig) -> Result<(), String> {
    let outputs = Outputs::of_audit(start)?;
    if outputs.any() {
        let audit = Audit::to(outputs, QUEUE_MAX).map_err(|error| format!("the audit: {error}"))?;
        let _ = AUDIT.set(audit);
    }
    Ok(())
}

/// Has a statement written. `None`: there is no audit.
pub fn take(statement: impl FnOnce() -> Statement) -> Option<()> {
    AUDIT.get().map(|audit| audit.take(statement()))
}

/// How many statements it has got, and how many of these are lost.
pub fn counts() -> Option<(u64, u64)> {
    let counts = &AUDIT.get()?.counts;
    Some((counts.all.load(Ordering::Relaxed), counts.lost.load(Ordering::Relaxed)))
}

/// The file was moved away.
pub(super) fn reopen() {
    if let Some(audit) = AUDIT.get() {
        audit.counts.reopens.store(true, Ordering::Relaxed);
    }
}

/// Waits until all is written, so long at most.
pub fn end(within: Duration) {
    let Some(audit) = AUDIT.get() else { return };
    let begun = Instant::now();
    while !audit.counts.is_all_done() {
        if begun.elapsed() >= within {
            tracing::error!("the audit's file or syslog does not keep up: its last lines are lost");
            return;
        }
        std::thread::sleep(END_POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(text: &[u8]) -> Statement {
        Statement {
            at: UNIX_EPOCH + Duration::from_millis(1_795_273_223_042),
            rule: "ddl".into(),
            refused: true,
            user: "\u{1}".repeat(63).into(),
            database: "\u{9b}".repeat(31).into(),
            address: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".into(),
            port: 65_535,
            application_name: [1; 63].into(),
            text: text.into(),
            bytes: text.len(),
        }
    }

    #[test]
    fn a_line_is_json_and_fits_a_datagram_whatever_is_in_it() {
        for text in [&[1; TEXT_BYTES_MAX][..], &[0xff; TEXT_BYTES_MAX], b"select '\n\xc2\x9b'", b""]
        {
            let line = statement(text).line();
            assert!(line.len() < 8 * 1024 - 100, "{}", line.len());
            assert!(line.ends_with('\n') && !line.trim_end().contains(char::is_control), "{line}");
            let read: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(read["time"], "2026-11-21T15:00:23.042Z");
            assert_eq!((&read["refused"], &read["bytes"]), (&true.into(), &text.len().into()));
        }
    }

    #[test]
    fn an_output_that_takes_nothing_costs_lines_which_are_counted_and_holds_nobody_up() {
        let Ok(full) = std::fs::File::options().append(true).open("/dev/full") else { return };
        let audit = Audit::to(Outputs::of_file("/dev/full", full), 8).unwrap();
        let begun = Instant::now();
        (0..1000).for_each(|_| audit.take(statement(b"select 1")));
        while !audit.counts.is_all_done() {
            assert!(begun.elapsed() < Duration::from_secs(10));
            std::thread::sleep(END_POLL);
        }
        assert_eq!(audit.counts.lost.load(Ordering::Relaxed), 1000);
    }
}
