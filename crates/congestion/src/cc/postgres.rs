//! `hawser cc bench --postgres`: what PostgreSQL's own programs get over a path with each algorithm.
//!
//! # Model
//! psql and pg_basebackup, as they are installed here, connect to a relay on loopback, which goes on over
//! the path (`relay`). What they do is timed there, at this end of the path:
//! ```text
//!   COPY out, base backup   bytes that arrived a second, without the first 5 s
//!   COPY in                 bytes sent / time until the server has said that it has them all
//!   20 small queries        from the first question to the last answer, one after the other
//!   first row               from connect(2) to the answer of the first query, login and TLS included
//! ```
//! COPY out and base backup are ended when their time is over.
//!
//! # Limits
//! COPY in needs the right to make a temporary table, the base backup that to replicate; what is refused
//! is left out, and why is said once. The time in which psql itself starts is in none of the figures.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hawser_sys::congestion;
use serde::{Deserialize, Serialize};

use super::bench::{BenchError, Far};
use super::figures::median;
use super::relay::{Way, both_ways};
use super::transfer::Received;

/// A row of what is copied: a kibibyte, and not always the same one. The series stands in the list: in
/// FROM, all of it would be put into a file first.
const COPY_OUT: &str = "COPY (SELECT pg_catalog.repeat(pg_catalog.md5(\
     pg_catalog.generate_series(1, 2000000000)::pg_catalog.text), 32)) TO STDOUT";
const COPY_IN: [&str; 2] =
    ["CREATE TEMPORARY TABLE hawser_cc (line text)", "COPY hawser_cc FROM STDIN"];
const QUERY: &str = "SELECT 1";
const QUERIES: usize = 20;
/// Pieces after the last answer: Terminate, and TLS's own end.
const GOODBYE_PIECES_MAX: usize = 4;
/// A piece of this size is data: logins and queries come in smaller ones.
const DATA_BYTES: usize = 4 << 10;
/// How long a program has beyond its work: logins over a slow path.
const GRACE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// COPY TO STDOUT.
    #[display("COPY out")]
    CopyOut,
    /// COPY FROM STDIN.
    #[display("COPY in")]
    CopyIn,
    /// pg_basebackup.
    #[display("base backup")]
    BaseBackup,
    /// Small queries.
    #[display("20 queries")]
    Queries,
    /// A connection's first row.
    #[display("first row")]
    FirstRow,
}

impl Work {
    /// All, in the order of the table.
    pub const ALL: [Self; 5] =
        [Self::CopyOut, Self::CopyIn, Self::BaseBackup, Self::Queries, Self::FirstRow];

    fn program(self) -> &'static str {
        if self == Self::BaseBackup { "pg_basebackup" } else { "psql" }
    }

    fn arguments(self, conninfo: &str) -> Vec<String> {
        let mut words: Vec<&str> = match self {
            Self::BaseBackup => {
                vec!["-D", "-", "-F", "tar", "-X", "none", "-c", "fast", "--no-manifest", "-w"]
            }
            _ => vec!["-X", "-q", "-A", "-t", "-w", "-v", "ON_ERROR_STOP=1"],
        };
        words.extend(["-d", conninfo]);
        let queries: &[&str] = match self {
            Self::BaseBackup => &[],
            Self::CopyOut => &[COPY_OUT],
            Self::CopyIn => &COPY_IN,
            Self::Queries => &[QUERY; QUERIES],
            Self::FirstRow => &[QUERY],
        };
        for query in queries {
            words.extend(["-c", query]);
        }
        words.into_iter().map(str::to_owned).collect()
    }

    /// Whether it goes on until it is ended.
    fn is_endless(self) -> bool {
        matches!(self, Self::CopyOut | Self::BaseBackup)
    }
}

/// What came of one work with one algorithm. Its JSON is a contract.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PostgresOutcome {
    /// On both ends of the path.
    pub algorithm: String,
    /// What was done.
    pub work: Work,
    /// Median of the runs: bits a second, or milliseconds of queries and rows.
    pub figure: f64,
    /// Each run.
    pub runs: Vec<f64>,
}

/// What the relay has seen of a connection.
#[derive(Clone, Debug)]
struct Seen {
    connected: Instant,
    /// Pieces towards the server, the last ones.
    asked: VecDeque<Instant>,
    data_there: Option<Instant>,
    bytes_there: u64,
    first_back: Option<Instant>,
    last_back: Option<Instant>,
    back: Received,
}

impl Seen {
    fn new(connected: Instant) -> Self {
        Self {
            connected,
            asked: VecDeque::new(),
            data_there: None,
            bytes_there: 0,
            first_back: None,
            last_back: None,
            back: Received::default(),
        }
    }

    fn count(&mut self, now: Instant, way: Way, bytes: usize) {
        match way {
            Way::There => {
                self.asked.push_back(now);
                if self.asked.len() > QUERIES + GOODBYE_PIECES_MAX {
                    self.asked.pop_front();
                }
                if bytes >= DATA_BYTES {
                    self.data_there.get_or_insert(now);
                }
                if self.data_there.is_some() {
                    self.bytes_there += bytes as u64;
                }
            }
            Way::Back => {
                self.last_back = Some(now);
                // What comes before the data is a login.
                if bytes >= DATA_BYTES || self.first_back.is_some() {
                    let first = *self.first_back.get_or_insert(now);
                    self.back.count(now - first, bytes);
                }
            }
        }
    }

    /// From connect(2) to the last answer.
    fn lasted(&self) -> Option<Duration> {
        Some(self.last_back? - self.connected)
    }

    /// From the question that was the first of the last [`QUERIES`] to the last answer. What
    /// follows that answer is a goodbye.
    fn queries(&self) -> Option<Duration> {
        let last = self.last_back?;
        let asked = self.asked.iter().rev().filter(|at| **at <= last);
        Some(last - *asked.take(QUERIES).last()?)
    }

    fn figure(&self, work: Work) -> Option<f64> {
        match work {
            Work::CopyOut | Work::BaseBackup => self.back.settled(),
            Work::CopyIn => {
                let lasted = self.last_back?.checked_duration_since(self.data_there?)?;
                let seconds = lasted.as_secs_f64();
                (seconds > 0.0).then(|| self.bytes_there as f64 * 8.0 / seconds)
            }
            Work::Queries => Some(self.queries()?.as_secs_f64() * 1e3),
            Work::FirstRow => Some(self.lasted()?.as_secs_f64() * 1e3),
        }
    }
}

/// A conninfo that leads to the relay: `hostaddr` says where, so that certificates and passwords are
/// still looked for by the host's name.
fn through(url: &str, relay: SocketAddr) -> String {
    let (ip, port) = (relay.ip(), relay.port());
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        let sign = if url.contains('?') { '&' } else { '?' };
        format!("{url}{sign}hostaddr={ip}&port={port}")
    } else {
        format!("{url} hostaddr={ip} port={port}")
    }
}

/// Programs through a relay.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The far end.
    pub far: &'a Far,
    /// The database, as the far end reaches its server: the address in it is not used.
    pub url: &'a str,
    /// Seconds of what is endless, and of COPY in.
    pub seconds: u32,
}

impl Bench<'_> {
    /// Does it once. `Ok(Err(_))`: it is refused, and in which words.
    ///
    /// # Errors
    /// The far end does not relay, or is gone.
    pub fn run(&self, algorithm: &str, work: Work) -> Result<Result<f64, String>, BenchError> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let relay = listener.local_addr()?;
        let mut child = match self.start(work, relay) {
            Ok(child) => child,
            Err(error) => return Ok(Err(format!("{}: {error}", work.program()))),
        };
        let seen = Mutex::new(None);
        let outcome = std::thread::scope(|scope| {
            let relaying = scope.spawn(|| self.relay(&listener, algorithm, &seen));
            let said = self.attend(&mut child, work);
            // One that never connected is still waited for.
            let _ = std::net::TcpStream::connect(relay);
            match relaying.join() {
                Ok(Ok(())) => said.map_err(BenchError::from),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(io::Error::other("a relay has panicked").into()),
            }
        })?;
        if let Err(words) = outcome {
            return Ok(Err(words));
        }
        let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        let figure = seen.as_ref().and_then(|seen: &Seen| seen.figure(work));
        Ok(figure.ok_or_else(|| format!("{work}: nothing came over the path")))
    }

    fn start(&self, work: Work, relay: SocketAddr) -> io::Result<Child> {
        Command::new(work.program())
            .args(work.arguments(&through(self.url, relay)))
            .env("PGCONNECT_TIMEOUT", GRACE.as_secs().to_string())
            .stdin(if work == Work::CopyIn { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
    }

    /// One connection over the path.
    fn relay(
        &self,
        listener: &TcpListener,
        algorithm: &str,
        seen: &Mutex<Option<Seen>>,
    ) -> Result<(), BenchError> {
        let (near, _) = listener.accept()?;
        let put = |new| *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
        put(Seen::new(Instant::now()));
        let far = self.far.relay(algorithm)?;
        congestion::set_algorithm(&far, algorithm).map_err(io::Error::other)?;
        both_ways(&near, &far, self.seconds, |way, bytes| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(seen) = &mut *seen {
                seen.count(Instant::now(), way, bytes);
            }
        })?;
        Ok(())
    }

    /// Feeds a program and ends it when its time is over; what it said if it failed.
    fn attend(&self, child: &mut Child, work: Work) -> io::Result<Result<(), String>> {
        let began = Instant::now();
        let lasts = Duration::from_secs(self.seconds.into());
        if let Some(stdin) = child.stdin.take() {
            feed(stdin, lasts);
        }
        let bound = if work.is_endless() { lasts } else { lasts + GRACE };
        let mut ended_by_us = false;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if began.elapsed() >= bound {
                ended_by_us = true;
                child.kill()?;
            }
            std::thread::sleep(LOOK);
        };
        let mut words = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            let _ = stderr.read_to_string(&mut words);
        }
        Ok(match status.success() || (ended_by_us && work.is_endless()) {
            true => Ok(()),
            false if ended_by_us => Err(format!("{work} has not ended within {bound:?}")),
            false => Err(format!("{work}: {}", words.trim())),
        })
    }
}

/// Lines for COPY in, until the time is over or the program does not read on.
fn feed(mut stdin: impl Write, lasts: Duration) {
    let began = Instant::now();
    let mut number = 0_u64;
    while began.elapsed() < lasts {
        let word = format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        number += 1;
        // An error of the program is in its own words.
        if stdin.write_all((word.repeat(63) + "\n").as_bytes()).is_err() {
            return;
        }
    }
}

/// Everything with each algorithm, in rounds, until an error, which is given with what there is then;
/// `say` gets each figure and each refusal.
pub fn compare(
    bench: &Bench<'_>,
    algorithms: &[String],
    rounds: u32,
    mut say: impl FnMut(String),
) -> (Vec<PostgresOutcome>, Option<BenchError>) {
    let mut outcomes: Vec<PostgresOutcome> = Vec::new();
    let mut refused: Vec<Work> = Vec::new();
    let mut ended = None;
    'all: for round in 0..rounds as usize {
        for place in 0..algorithms.len() {
            let algorithm = &algorithms[(place + round) % algorithms.len()];
            for work in Work::ALL {
                if refused.contains(&work) {
                    continue;
                }
                match bench.run(algorithm, work) {
                    Ok(Ok(figure)) => {
                        say(format!("{algorithm}, {work}: {}", shown(work, figure)));
                        let found = outcomes
                            .iter_mut()
                            .find(|one| one.algorithm == *algorithm && one.work == work);
                        match found {
                            Some(outcome) => outcome.runs.push(figure),
                            None => outcomes.push(PostgresOutcome {
                                algorithm: algorithm.clone(),
                                work,
                                figure: 0.0,
                                runs: vec![figure],
                            }),
                        }
                    }
                    Ok(Err(words)) => {
                        say(format!("left out: {words}"));
                        refused.push(work);
                    }
                    Err(error) => {
                        ended = Some(error);
                        break 'all;
                    }
                }
            }
        }
    }
    for outcome in &mut outcomes {
        outcome.figure = median(outcome.runs.clone()).unwrap_or_default();
    }
    (outcomes, ended)
}

/// A figure with its unit.
#[must_use]
fn shown(work: Work, figure: f64) -> String {
    match work {
        Work::Queries | Work::FirstRow => format!("{figure:.1} ms"),
        _ => format!("{:.2} Mbit/s", figure / 1e6),
    }
}

/// The algorithms, each once, as they came.
#[must_use]
pub fn algorithms(outcomes: &[PostgresOutcome]) -> Vec<&str> {
    let mut algorithms: Vec<&str> = Vec::new();
    for one in outcomes {
        if !algorithms.contains(&one.algorithm.as_str()) {
            algorithms.push(&one.algorithm);
        }
    }
    algorithms
}

fn find<'a>(
    outcomes: &'a [PostgresOutcome],
    algorithm: &str,
    work: Work,
) -> Option<&'a PostgresOutcome> {
    outcomes.iter().find(|one| one.algorithm == algorithm && one.work == work)
}

/// What stands in a table: a figure with its unit, or that there is none.
#[must_use]
pub fn cell(outcomes: &[PostgresOutcome], algorithm: &str, work: Work) -> String {
    find(outcomes, algorithm, work).map_or("-".to_owned(), |one| shown(work, one.figure))
}

/// A table for people: a line for each algorithm, the fastest at COPY out first.
#[must_use]
pub fn table(outcomes: &[PostgresOutcome]) -> String {
    let mut text = format!("{:<12}", "PostgreSQL");
    for work in Work::ALL {
        text += &format!(" {:>15}", work.to_string());
    }
    text.push('\n');
    let mut algorithms = algorithms(outcomes);
    algorithms.sort_by(|a, b| {
        let out = |name| find(outcomes, name, Work::CopyOut).map_or(0.0, |one| one.figure);
        out(b).total_cmp(&out(a))
    });
    for algorithm in algorithms {
        text += &format!("{algorithm:<12}");
        for work in Work::ALL {
            text += &format!(" {:>15}", cell(outcomes, algorithm, work));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_relay_is_reached_by_address_and_the_hosts_name_stays() {
        let relay = "127.0.0.1:4711".parse().unwrap();
        for (url, led) in [
            (
                "postgres://u@db.example/app",
                "postgres://u@db.example/app?hostaddr=127.0.0.1&port=4711",
            ),
            (
                "postgresql://db.example/app?sslmode=verify-full",
                "postgresql://db.example/app?sslmode=verify-full&hostaddr=127.0.0.1&port=4711",
            ),
            ("host=db user=u", "host=db user=u hostaddr=127.0.0.1 port=4711"),
        ] {
            assert_eq!(through(url, relay), led);
        }
    }

    #[test]
    fn a_login_is_no_data_and_an_end_is_the_servers_word() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut seen = Seen::new(start);
        seen.count(at(10), Way::There, 100);
        seen.count(at(20), Way::Back, 400);
        assert_eq!(seen.figure(Work::FirstRow), Some(20.0));
        assert_eq!((seen.figure(Work::CopyOut), seen.figure(Work::CopyIn)), (None, None));
        seen.count(at(1_000), Way::There, 8_192);
        seen.count(at(1_500), Way::There, 1_808);
        seen.count(at(2_000), Way::Back, 20);
        assert_eq!(seen.figure(Work::CopyIn), Some(80_000.0));
    }

    #[test]
    fn queries_are_timed_without_the_login_and_the_goodbye() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut seen = Seen::new(start);
        for ms in [0, 100, 200] {
            seen.count(at(ms), Way::There, 50);
            seen.count(at(ms + 50), Way::Back, 50);
        }
        for query in 0..QUERIES as u64 {
            seen.count(at(1_000 + query * 10), Way::There, 14);
            seen.count(at(1_005 + query * 10), Way::Back, 60);
        }
        seen.count(at(1_300), Way::There, 5);
        seen.count(at(1_301), Way::There, 24);
        assert_eq!(seen.figure(Work::Queries), Some(195.0));
        assert_eq!(seen.figure(Work::FirstRow), Some(1_195.0));
    }

    #[test]
    fn arguments_ask_for_no_password_and_read_no_startup_file() {
        let words = Work::Queries.arguments("dbname=x");
        assert_eq!(words.iter().filter(|word| *word == QUERY).count(), QUERIES);
        assert!(words.contains(&"-X".to_owned()) && words.contains(&"-w".to_owned()));
    }
}
