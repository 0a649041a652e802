//! `hawser cc bench`: real transfers with each algorithm, in rounds.
//!
//! # Model
//! A round has every case once; the next round has them again: what changes on a path over minutes
//! falls on all algorithms alike. The order turns by one each round, so that none always follows the
//! same one. Medians of rounds are compared.
//!
//! A far end that goes away ends the comparison, not its figures: what has been measured until then is
//! given, with [`Comparison::incomplete`].
//!
//! # Limits
//! A kernel that remembers destinations (tcp_no_metrics_save is off) spoils comparisons: `hawser cc
//! list` says so.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use hawser_sys::congestion;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::datagrams::{self, PathFigures};
use super::figures::{Case, Figures, Outcome, Run};
use super::postgres::{self, Bench, PostgresOutcome};
use super::serve::{SILENCE_MAX, usable};
use super::transfer::{Answer, Direction, Order, Received, Sent, Transfer, receive, send};
use super::wire::{Token, WireError, enter, read_message, write_message};

/// How long a connection may take to be there.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// What is taken for a neighbour's, of what the sending end has.
const NEIGHBOURS: [&str; 2] = ["cubic", "reno"];
/// Between two transfers: what is left of the last one leaves the path.
const PAUSE: Duration = Duration::from_millis(500);

/// What is to be compared.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Directions.
    pub directions: Vec<Direction>,
    /// Algorithms; empty for all that the sending end may use.
    pub algorithms: Vec<String>,
    /// Numbers of flows.
    pub flows: Vec<u32>,
    /// Seconds of a transfer.
    pub seconds: u32,
    /// Bytes of a flow at most.
    pub bytes_max: u64,
    /// Rounds.
    pub rounds: u32,
    /// Whether what each algorithm leaves to a neighbour is looked at.
    pub fairness: bool,
    /// Whether the path itself is looked at, by datagrams.
    pub datagrams: bool,
    /// The database that PostgreSQL's programs use over the path.
    pub postgres: Option<String>,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The host's name has no address.
    #[error("{0}: {1}")]
    Resolve(String, #[source] io::Error),
    /// The connection cannot be made.
    #[error("{0}: {1}. `hawser cc serve` has to run there, and its port to be open")]
    Connect(SocketAddr, #[source] io::Error),
    /// The ends do not understand each other.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The sending end has not got an algorithm that was asked for.
    #[error("{end} has no `{name}` that it may use; it has {}", .has.join(", "))]
    Algorithm {
        /// Which end.
        end: &'static str,
        /// What it has not.
        name: String,
        /// What it has.
        has: Vec<String>,
    },
    /// This end's algorithms cannot be read.
    #[error("the algorithms of this machine: {0}")]
    Here(#[source] io::Error),
}

impl BenchError {
    /// As sysexits.h has them.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Resolve(..) => 68,
            Self::Connect(..) | Self::Wire(WireError::Io(_)) => 69,
            Self::Wire(WireError::Stranger | WireError::Malformed(_)) => 76,
            Self::Wire(WireError::Token) => 77,
            Self::Wire(WireError::Refused(_)) | Self::Algorithm { .. } => 78,
            Self::Here(_) => 1,
        }
    }
}

impl From<io::Error> for BenchError {
    fn from(error: io::Error) -> Self {
        Self::Wire(WireError::Io(error))
    }
}

/// What came of it. Its JSON is a contract.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// Why there is not all that was asked for; the far end has gone away, say.
    pub incomplete: Option<String>,
    /// The far end.
    pub host: String,
    /// Its kernel.
    pub far_kernel: String,
    /// What it sends with by default.
    pub far_default: String,
    /// What this end does.
    pub near_default: String,
    /// Seconds of each transfer.
    pub seconds: u32,
    /// Rounds.
    pub rounds: u32,
    /// The path itself, in each direction; empty if datagrams do not get through.
    pub path: Vec<PathFigures>,
    /// Each case, in the order in which they were run first.
    pub outcomes: Vec<Outcome>,
    /// What PostgreSQL's programs got.
    pub postgres: Vec<PostgresOutcome>,
}

/// The far end.
#[derive(Clone, Debug)]
pub struct Far {
    address: SocketAddr,
    token: Token,
}

impl Far {
    /// Finds it; `host` is a name or an address, with a port.
    ///
    /// # Errors
    /// It has no address, or the connection cannot be made.
    pub fn find(host: &str, token: Token) -> Result<Self, BenchError> {
        let resolve = |error| BenchError::Resolve(host.to_owned(), error);
        let mut last = resolve(io::ErrorKind::NotFound.into());
        for address in host.to_socket_addrs().map_err(resolve)? {
            match TcpStream::connect_timeout(&address, CONNECT_MAX) {
                Ok(_) => return Ok(Self { address, token }),
                Err(error) => last = BenchError::Connect(address, error),
            }
        }
        Err(last)
    }

    fn order(&self, order: &Order) -> Result<(TcpStream, Answer), BenchError> {
        let mut stream = TcpStream::connect_timeout(&self.address, CONNECT_MAX)
            .map_err(|error| BenchError::Connect(self.address, error))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        enter(&mut stream, &self.token)?;
        write_message(&mut stream, order)?;
        let answer = read_message(&mut stream)?;
        Ok((stream, answer))
    }

    /// One flow.
    fn transfer(&self, transfer: &Transfer) -> Result<(Received, Sent), BenchError> {
        let (mut stream, answer) = self.order(&Order::Transfer(transfer.clone()))?;
        match answer {
            Answer::Go => {}
            other => return Err(unexpected(other)),
        }
        Ok(match transfer.direction {
            Direction::Down => receive(&mut stream, transfer.bytes_max)?,
            Direction::Up => {
                let sent = send(&mut stream, transfer)?;
                (read_message(&mut stream)?, sent)
            }
        })
    }

    /// A connection to the PostgreSQL server there.
    ///
    /// # Errors
    /// The far end does not relay, or is not there.
    pub fn relay(&self, algorithm: &str) -> Result<TcpStream, BenchError> {
        match self.order(&Order::Relay { algorithm: algorithm.to_owned() })? {
            (stream, Answer::Go) => Ok(stream),
            (_, other) => Err(unexpected(other)),
        }
    }

    /// The path itself. Empty: no datagram gets through.
    ///
    /// # Errors
    /// The far end is not there, or does not measure.
    pub fn path(&self, directions: &[Direction]) -> Result<Vec<PathFigures>, BenchError> {
        match self.order(&Order::Datagrams)? {
            (stream, Answer::Cookie(cookie)) => {
                Ok(datagrams::measure(stream, &cookie, directions)?.unwrap_or_default())
            }
            (_, other) => Err(unexpected(other)),
        }
    }

    /// All flows of a case, at once.
    fn run(&self, case: &Case, plan: &Plan, round: u32) -> Result<Run, BenchError> {
        let with = |algorithm: &String| Transfer {
            direction: case.direction,
            algorithm: algorithm.clone(),
            seconds: plan.seconds,
            bytes_max: plan.bytes_max,
        };
        let transfer = with(&case.algorithm);
        let beside = case.neighbour.as_ref().map(with);
        let panicked = |_| Err(WireError::Malformed("a flow has panicked").into());
        let (flows, neighbour): (Result<Vec<_>, BenchError>, _) = std::thread::scope(|scope| {
            let neighbour = beside.as_ref().map(|beside| scope.spawn(|| self.transfer(beside)));
            let started: Vec<_> =
                (0..case.flows).map(|_| scope.spawn(|| self.transfer(&transfer))).collect();
            let flows = started.into_iter().map(|flow| flow.join().unwrap_or_else(panicked));
            let flows = flows.collect();
            (flows, neighbour.map(|flow| flow.join().unwrap_or_else(panicked)))
        });
        Ok(Run { round, flows: flows?, neighbour: neighbour.transpose()? })
    }
}

/// The error that another answer is than the one that was waited for.
fn unexpected(answer: Answer) -> BenchError {
    match answer {
        Answer::No(reason) => WireError::Refused(reason).into(),
        _ => WireError::Malformed("another answer").into(),
    }
}

/// The cases of a plan, of what the two ends have.
///
/// # Errors
/// An end has not got what was asked for.
pub fn cases(plan: &Plan, far: &[String], near: &[String]) -> Result<Vec<Case>, BenchError> {
    let mut cases = Vec::new();
    for &direction in &plan.directions {
        let (end, has) = match direction {
            Direction::Down => ("the far end", far),
            Direction::Up => ("this end", near),
        };
        let wanted: &[String] = if plan.algorithms.is_empty() { has } else { &plan.algorithms };
        if let Some(name) = wanted.iter().find(|name| !has.contains(name)) {
            return Err(BenchError::Algorithm { end, name: name.clone(), has: has.to_vec() });
        }
        for &flows in &plan.flows {
            let case =
                |name: &String| Case { direction, algorithm: name.clone(), flows, neighbour: None };
            cases.extend(wanted.iter().map(case));
        }
        if plan.fairness {
            // What a neighbour most likely uses; its own kind is what it is held against.
            let Some(neighbour) = NEIGHBOURS.iter().find(|name| has.iter().any(|has| has == *name))
            else {
                continue;
            };
            let neighbour = (*neighbour).to_owned();
            let mut beside = vec![neighbour.clone()];
            beside.extend(wanted.iter().filter(|name| **name != neighbour).cloned());
            let case = |algorithm| Case {
                direction,
                algorithm,
                flows: 1,
                neighbour: Some(neighbour.clone()),
            };
            cases.extend(beside.into_iter().map(case));
        }
    }
    Ok(cases)
}

/// Over round trips from this on, transfers of less than [`LONG_SECONDS`] flatter a loss-based algorithm.
const LONG_RTT_MS: f64 = 100.0;
/// A loss-based flow's window comes down from what slow start had opened by one loss after another, and
/// over a long path with few losses these are seconds apart.
const LONG_SECONDS: u32 = 60;

impl Comparison {
    /// What is to be known of the figures, if anything.
    #[must_use]
    pub fn caveat(&self) -> Option<String> {
        let of = |outcome: &Outcome| outcome.rtt_min_ms;
        let rtt = self.outcomes.iter().map(of).fold(0.0, f64::max);
        (rtt >= LONG_RTT_MS && self.seconds < LONG_SECONDS).then(|| {
            format!(
                "{} s are short over a round trip of {rtt:.0} ms: what slow start had opened is still in \
                 these figures, and cubic and others that heed loss have less in the long run. \
                 `--seconds {LONG_SECONDS}` shows it",
                self.seconds
            )
        })
    }
}

/// Compares. What ends it in the middle is in [`Comparison::incomplete`].
///
/// # Errors
/// See [`BenchError`]; nothing has been measured then.
pub fn compare(host: &str, far: &Far, plan: &Plan) -> Result<Comparison, BenchError> {
    let (_, answer) = far.order(&Order::About)?;
    let Answer::About { default: far_default, allowed, kernel, seconds_max } = answer else {
        return Err(unexpected(answer));
    };
    if plan.seconds > seconds_max {
        let reason = format!("at most {seconds_max} seconds a transfer");
        return Err(WireError::Refused(reason).into());
    }
    let near = congestion::algorithms().map_err(BenchError::Here)?;
    let cases = cases(plan, &allowed, &usable(&near.allowed, &near.available))?;
    let both = usable_at_both_ends(&plan.algorithms, &allowed, &near);
    let both = if plan.postgres.is_some() { both? } else { Vec::new() };
    if let Some(first) = both.first() {
        far.relay(first)?; // what the far end refuses is known before a minute is spent
    }
    let path = if plan.datagrams { look_at_path(far, plan) } else { Vec::new() };
    let (runs, mut ended) = rounds(far, plan, &cases);
    let mut postgres = Vec::new();
    if let (Some(url), None) = (&plan.postgres, &ended) {
        let bench = Bench { far, url, seconds: plan.seconds };
        (postgres, ended) =
            postgres::compare(&bench, &both, plan.rounds, |line| progress_line(&line));
    }
    let done: usize = runs.iter().map(Vec::len).sum();
    let outcomes = cases.iter().zip(runs).filter_map(|(case, runs)| Outcome::of(case, runs));
    let incomplete = match ended {
        None => None,
        Some(error) if done == 0 && path.is_empty() => return Err(error),
        Some(error) => {
            let all = cases.len() * plan.rounds as usize;
            let behind = if done == all { ", in what PostgreSQL's programs do" } else { "" };
            Some(format!("after {done} of {all} transfers{behind}: {error}"))
        }
    };
    Ok(Comparison {
        incomplete,
        host: host.to_owned(),
        far_kernel: kernel,
        far_default,
        near_default: near.default,
        seconds: plan.seconds,
        rounds: plan.rounds,
        path,
        outcomes: outcomes.collect(),
        postgres,
    })
}

/// Every case in every round, until an error: the figures of each case, and the error.
fn rounds(far: &Far, plan: &Plan, cases: &[Case]) -> (Vec<Vec<Figures>>, Option<BenchError>) {
    let total = cases.len() * plan.rounds as usize;
    let progress = Progress::new(total as u64, plan.seconds);
    let mut runs: Vec<Vec<Figures>> = vec![Vec::new(); cases.len()];
    for round in 0..plan.rounds {
        for place in order_of(cases.len(), round) {
            let case = &cases[place];
            let run = match far.run(case, plan, round + 1) {
                Ok(run) => run,
                Err(error) => return (runs, Some(error)),
            };
            let figures = Figures::of(&run, plan.seconds);
            progress.done(&format!(
                "round {} of {}, {} sends, {} x {}{}: {:.2} Mbit/s{}",
                round + 1,
                plan.rounds,
                case.direction.sender(),
                case.flows,
                case.algorithm,
                case.neighbour.as_ref().map(|name| format!(" beside {name}")).unwrap_or_default(),
                figures.steady.unwrap_or(figures.startup) / 1e6,
                if figures.ended_by_bytes { ", ended by --bytes" } else { "" },
            ));
            runs[place].push(figures);
            std::thread::sleep(PAUSE);
        }
    }
    (runs, None)
}

/// Algorithms that a relay can use: those that were asked for, or that both ends have.
fn usable_at_both_ends(
    asked: &[String],
    far: &[String],
    near: &congestion::Algorithms,
) -> Result<Vec<String>, BenchError> {
    let here = usable(&near.allowed, &near.available);
    for name in asked {
        for (end, has) in [("the far end", far), ("this end", &here)] {
            if !has.contains(name) {
                return Err(BenchError::Algorithm { end, name: name.clone(), has: has.to_vec() });
            }
        }
    }
    if asked.is_empty() {
        return Ok(far.iter().filter(|name| here.contains(name)).cloned().collect());
    }
    Ok(asked.to_vec())
}

/// The path by datagrams; without them the comparison goes on.
fn look_at_path(far: &Far, plan: &Plan) -> Vec<PathFigures> {
    progress_line("the path itself, by datagrams");
    match far.path(&plan.directions) {
        Ok(path) if path.is_empty() => {
            progress_line(
                "no datagram gets through: UDP to the port of `hawser cc serve` is dropped on the way",
            );
            path
        }
        Ok(path) => path,
        Err(error) => {
            progress_line(&format!("no figures of datagrams: {error}"));
            Vec::new()
        }
    }
}

/// The places of a round: they turn by one each time.
fn order_of(places: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..places).map(move |place| (place + round as usize) % places)
}

/// To standard error, so that standard output has only the result.
fn progress_line(line: &str) {
    // Standard error may be closed.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// How far it is: a bar on a terminal, lines elsewhere.
struct Progress(ProgressBar);

impl Progress {
    fn new(transfers: u64, seconds: u32) -> Self {
        let bar = ProgressBar::new(transfers);
        if bar.is_hidden() {
            progress_line(&format!(
                "{transfers} transfers of {seconds} s: about {} s",
                transfers * (u64::from(seconds) + 1)
            ));
        }
        // The template is a constant; the default one does as well.
        if let Ok(style) =
            ProgressStyle::with_template("{bar:30} {pos}/{len} transfers, {eta} left  {msg}")
        {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(bar)
    }

    fn done(&self, line: &str) {
        self.0.inc(1);
        self.0.set_message(line.to_owned());
        if self.0.is_hidden() {
            progress_line(line);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::serve::{Limits, serve};
    use std::net::TcpListener;

    const TOKEN: &str = "a token for this test";

    fn plan() -> Plan {
        Plan {
            directions: vec![Direction::Down, Direction::Up],
            algorithms: Vec::new(),
            flows: vec![1],
            seconds: 6,
            bytes_max: 1 << 20,
            rounds: 1,
            fairness: false,
            datagrams: false,
            postgres: None,
        }
    }

    fn words(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// A server; it lives as long as the test's process.
    fn server(limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let token = Token::new(TOKEN).unwrap();
        std::thread::spawn(move || serve(&listener, &token, &limits, |_| ()));
        address
    }

    const LIMITS: Limits = Limits { postgres: None, clients: 4, seconds: 30, bytes: 1 << 30 };

    fn far(address: SocketAddr, token: &str) -> Far {
        Far::find(&address.to_string(), Token::new(token).unwrap()).unwrap()
    }

    #[test]
    fn cases_are_what_the_sending_end_has_or_was_asked_for() {
        let (far, near) = (words(&["cubic", "bbr"]), words(&["reno"]));
        let all = cases(&plan(), &far, &near).unwrap();
        let names: Vec<&str> = all.iter().map(|case| case.algorithm.as_str()).collect();
        assert_eq!(names, ["cubic", "bbr", "reno"]);
        let asked = Plan { algorithms: words(&["bbr"]), ..plan() };
        let error = cases(&asked, &far, &near).unwrap_err();
        assert_eq!(error.to_string(), "this end has no `bbr` that it may use; it has reno");
        assert_eq!(error.exit_code(), 78);
        let several = Plan { flows: vec![1, 4], directions: vec![Direction::Down], ..asked };
        assert_eq!(cases(&several, &far, &near).unwrap().len(), 2);
    }

    #[test]
    fn the_order_turns() {
        assert_eq!(order_of(3, 0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(order_of(3, 4).collect::<Vec<_>>(), [1, 2, 0]);
    }

    #[test]
    fn both_directions_are_measured_at_the_receiver() {
        let far = far(server(LIMITS), TOKEN);
        let algorithms = vec![congestion::algorithms().unwrap().default];
        let compared = compare("here", &far, &Plan { algorithms, ..plan() }).unwrap();
        assert_eq!(compared.outcomes.len(), 2);
        for outcome in &compared.outcomes {
            assert_eq!(outcome.runs[0].each_second.iter().sum::<u64>(), 8 << 20, "{outcome:?}");
            assert!(outcome.sender > 0.0);
        }
    }

    /// Before a server: passes `connections` on, and ends later ones at once.
    fn dies_after(connections: usize, server: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for (number, near) in listener.incoming().enumerate() {
                let near = near.unwrap();
                if number >= connections {
                    continue;
                }
                let far = TcpStream::connect(server).unwrap();
                let (mut from_near, mut to_far) =
                    (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = io::copy(&mut from_near, &mut to_far);
                    let _ = to_far.shutdown(std::net::Shutdown::Write);
                });
                std::thread::spawn(move || {
                    let _ = io::copy(&mut &far, &mut &near);
                    let _ = near.shutdown(std::net::Shutdown::Write);
                });
            }
        });
        address
    }

    #[test]
    fn a_far_end_that_goes_away_costs_no_figure_that_was_there() {
        let algorithms = vec![congestion::algorithms().unwrap().default];
        let directions = vec![Direction::Down];
        let plan = Plan { algorithms, directions, rounds: 3, ..plan() };
        // The first two find whether the server is there, and which algorithms it has.
        let far = |transfers: usize| far(dies_after(2 + transfers, server(LIMITS)), TOKEN);
        let compared = compare("here", &far(2), &plan).unwrap();
        let why = compared.incomplete.unwrap();
        assert!(why.starts_with("after 2 of 3 transfers: the far end has closed"), "{why}");
        assert_eq!(compared.outcomes[0].runs.len(), 2);
        assert_eq!(compare("here", &far(3), &plan).unwrap().incomplete, None);
        // Without any figure there is nothing to show.
        assert_eq!(compare("here", &far(0), &plan).unwrap_err().exit_code(), 69);
    }

    #[test]
    fn what_is_wrong_has_an_exit_code_of_its_own() {
        let address = server(LIMITS);
        let error = compare("here", &far(address, "another token than that"), &plan()).unwrap_err();
        assert_eq!(error.exit_code(), 77, "{error}");
        let long = Plan { seconds: 31, ..plan() };
        let error = compare("here", &far(address, TOKEN), &long).unwrap_err();
        assert_eq!(error.exit_code(), 78, "{error}");
        let full = server(Limits { clients: 0, ..LIMITS });
        let error = compare("here", &far(full, TOKEN), &plan()).unwrap_err();
        assert_eq!(error.exit_code(), 78, "{error}");
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = Far::find(&closed.to_string(), Token::new(TOKEN).unwrap()).unwrap_err();
        assert_eq!(error.exit_code(), 69, "{error}");
    }
}
