//! The command line of `hawser cc`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};
use hawser_congestion::cc::apply::{self, Root};
use hawser_congestion::cc::bench::{self, Far, Plan};
use hawser_congestion::cc::look::look;
use hawser_congestion::cc::modules::Loaded;
use hawser_congestion::cc::report::{Path, RATE_DEFAULT, RTT_DEFAULT, Report};
use hawser_congestion::cc::transfer::Direction;
use hawser_congestion::cc::wire::Token;
use hawser_congestion::cc::{datagrams, figures, page, postgres, serve};
use hawser_congestion::tuner::algorithm::Algorithm;
use hawser_lab::wan::quantity::{Rate, Span};
use hawser_multipath::mptcp::run::run_with_congestion;
use hawser_sys::congestion::route::Prefix;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error as ValueError;

use crate::cli::print;
use crate::process::random_bytes;

/// The token, if it must not show in the list of processes.
pub(crate) const TOKEN_VARIABLE: &str = "HAWSER_CC_TOKEN";

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 68 unknown host or no route, 69 no \
    answer, or the far end died, 73 a file or route that Hawser has not made is in the way, 74 the far end \
    died later and what was measured until then is shown, 76 another program answers, 77 rights are missing \
    or the token is wrong, 78 the algorithm is missing or the far end refuses.";

/// The far end went away in the middle: EX_IOERR of sysexits.h.
const INCOMPLETE: u8 = 74;

const RUN_EXIT_CODES: &str = "Exit codes: the program's own; 125 hawser failed, 126 the program cannot be \
run, 127 it is not found, 128 + N signal N ended it.";

/// `hawser cc`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct Cc {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List algorithms, buffers and settings, and what limits connections.
    List(List),
    /// Run the far end of `bench`: sends and receives for clients that have its token.
    Serve(Serve),
    /// Compare the algorithms by transfers to and from a host where `hawser cc serve` runs.
    Bench(Bench),
    /// Run a program, and all that it starts, with another congestion control.
    #[command(after_help = RUN_EXIT_CODES)]
    Run(Run),
    /// Set the algorithm of this machine, or of connections to one destination.
    Apply(Apply),
    /// Undo `apply`, and nothing else.
    Undo(Undo),
}

#[derive(Debug, Args)]
struct Run {
    /// The algorithm.
    #[arg(long, value_name = "NAME")]
    algorithm: String,
    /// Say at the end what became of the program's sockets.
    #[arg(long)]
    verbose: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Apply {
    /// Set it for all connections of this machine.
    #[arg(long, required_unless_present = "to", conflicts_with = "to")]
    system: bool,
    /// Set it for connections to this prefix, as in 203.0.113.0/24: a route.
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    to: Option<Prefix>,
    /// The algorithm.
    #[arg(long, value_name = "NAME", default_value = "bbr", value_parser = algorithm)]
    algorithm: Algorithm,
    /// Segments that connections to the prefix begin with [default: the kernel's, 10].
    #[arg(long, value_name = "N", requires = "to", value_parser = clap::value_parser!(u32).range(1..=1000))]
    initial_window: Option<u32>,
    /// With --system: what tcp_rmem and tcp_wmem give a connection at most, in bytes.
    #[arg(long, value_name = "BYTES", requires = "system",
          value_parser = clap::value_parser!(u64).range(65_536..=1 << 30))]
    buffers: Option<u64>,
    /// Also after a restart of the machine: by files in sysctl.d and modules-load.d, or by a systemd unit.
    #[arg(long)]
    persist: bool,
    /// Only print what would be done.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
struct Undo {
    /// Only print what would be done.
    #[arg(long)]
    dry_run: bool,
}

fn prefix(text: &str) -> Result<Prefix, String> {
    Prefix::parse(text).ok_or_else(|| "an address, or as in 203.0.113.0/24".to_owned())
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    Algorithm::new(text).ok_or_else(|| "no kernel has an algorithm of this name".to_owned())
}

#[derive(Debug, Args)]
struct Serve {
    /// Where it listens [default: all addresses, port 6480].
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Token that clients must give, at least 16 characters; in the environment as HAWSER_CC_TOKEN it is not
    /// seen in the list of processes [default: one is made, and printed].
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Connections at a time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    /// Seconds of a transfer at most.
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=300))]
    seconds: u32,
    /// Bytes of a transfer at most.
    #[arg(long, value_name = "N", default_value_t = 16 << 30)]
    bytes: u64,
    /// The PostgreSQL server, host:port, to which those with the token may be relayed for `bench
    /// --postgres`; it asks for its own passwords.
    #[arg(long, value_name = "HOST:PORT")]
    postgres: Option<String>,
    /// Load the modules of all algorithms that the kernel has, as root, and unload them after.
    #[arg(long)]
    load: bool,
    /// End after this time, as in 600s.
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    lasts: Option<Duration>,
}

#[derive(Debug, Args)]
struct Bench {
    /// Where `hawser cc serve` runs: host or host:port [port: 6480].
    host: String,
    /// Its token; also in HAWSER_CC_TOKEN.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Algorithms to compare, with commas [default: all that the sending end may use].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    algorithms: Vec<String>,
    /// Connections at a time, with commas.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1],
          value_parser = clap::value_parser!(u32).range(1..=32))]
    flows: Vec<u32>,
    /// Only one direction: `down` (the far end sends) or `up`.
    #[arg(long, value_name = "down|up", value_parser = direction)]
    only: Option<Direction>,
    /// Seconds of each transfer, of which the first 5 are its start-up.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(6..=300))]
    seconds: u32,
    /// Bytes of each connection at most.
    #[arg(long, value_name = "N", default_value_t = 4 << 30)]
    bytes: u64,
    /// Rounds; medians of them are shown.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Measure also what each algorithm leaves to a cubic connection beside it.
    #[arg(long)]
    fairness: bool,
    /// Do not measure the path by datagrams.
    #[arg(long)]
    no_udp: bool,
    /// Also COPY out and in, pg_basebackup, small queries and a first row with this database: a URL as
    /// psql takes it, without its address, which is that of the far end's --postgres.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// Load the modules of all algorithms that this kernel has, as root, and unload them after.
    #[arg(long)]
    load: bool,
    /// As JSON, with each run and second.
    #[arg(long)]
    json: bool,
    /// Also as a page with plots, in one file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn direction(text: &str) -> Result<Direction, String> {
    match text {
        "down" => Ok(Direction::Down),
        "up" => Ok(Direction::Up),
        _ => Err("down or up".to_owned()),
    }
}

/// The message for the user, and the exit code.
struct Failure(u8, String);

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure(1, error.to_string())
}

#[derive(Debug, Args)]
struct List {
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// Rate of the path to compare buffers with, as in 95Mbit/s [default: 100Mbit/s].
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<u64>,
    /// Its round trip, as in 217ms [default: 100ms].
    #[arg(long, value_name = "TIME", value_parser = span)]
    rtt: Option<Duration>,
}

pub(crate) fn rate(text: &str) -> Result<u64, ValueError> {
    Rate::deserialize(text.into_deserializer()).map(Rate::bits_per_second)
}

pub(crate) fn span(text: &str) -> Result<Duration, ValueError> {
    Span::deserialize(text.into_deserializer()).map(|Span(duration)| duration)
}

impl Cc {
    /// Runs it.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let result = match &self.command {
            Command::List(arguments) => list(arguments),
            Command::Serve(arguments) => serve_(arguments),
            Command::Bench(arguments) => bench_(arguments),
            Command::Run(Run { algorithm, verbose, command }) => {
                let code = run_with_congestion(command, algorithm, *verbose);
                return ExitCode::from(code.unwrap_or_else(|error| {
                    eprintln!("hawser cc: {error}");
                    error.exit_code()
                }));
            }
            Command::Apply(arguments) => apply_(arguments),
            Command::Undo(Undo { dry_run }) => told(apply::undo(&Root::default(), *dry_run)),
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(Failure(code, message)) => {
                eprintln!("hawser cc: {message}");
                ExitCode::from(code)
            }
        }
    }
}

fn list(arguments: &List) -> Result<(), Failure> {
    let rtt = arguments.rtt.unwrap_or(RTT_DEFAULT);
    let path = Path {
        bits_per_second: arguments.rate.unwrap_or(RATE_DEFAULT),
        rtt_us: u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX),
    };
    let report = Report::new(&look(), path);
    if arguments.json {
        print(&(serde_json::to_string_pretty(&report).map_err(failed)? + "\n"));
    } else {
        print(&report.to_text());
    }
    Ok(())
}

fn apply_(arguments: &Apply) -> Result<(), Failure> {
    let Apply { to, algorithm, initial_window, buffers, persist, dry_run, .. } = arguments;
    told(match to {
        Some(to) => {
            let wanted = apply::Destination {
                to: *to,
                algorithm: *algorithm,
                initial_window: *initial_window,
                persist: *persist,
            };
            apply::destination(wanted, &Root::default(), *dry_run)
        }
        None => {
            let wanted = apply::System {
                algorithm: Some(*algorithm),
                buffer_bytes: *buffers,
                persist: *persist,
            };
            apply::system(&wanted, &Root::default(), *dry_run)
        }
    })
}

fn told(done: Result<Vec<String>, apply::ApplyError>) -> Result<(), Failure> {
    let lines = done.map_err(|error| Failure(error.exit_code(), error.to_string()))?;
    for line in lines {
        print(&format!("{line}\n"));
    }
    Ok(())
}

/// The token that was given, by option or in the environment.
fn token(given: Option<&String>) -> Result<Option<Token>, Failure> {
    let text = given.cloned().or_else(|| std::env::var(TOKEN_VARIABLE).ok());
    let short = || Failure(2, "a token has at least 16 characters".to_owned());
    text.map(|text| Token::new(&text).ok_or_else(short)).transpose()
}

/// What is loaded until the end, if that was asked for.
fn loaded(asked: bool) -> Result<Option<Loaded>, Failure> {
    let all = || Loaded::all(|line| eprintln!("{line}")).map_err(failed);
    asked.then(all).transpose()
}

fn serve_(arguments: &Serve) -> Result<(), Failure> {
    let token = match token(arguments.token.as_ref())? {
        Some(token) => token,
        None => {
            let mut bytes = [0; 18];
            random_bytes(&mut bytes);
            let text = URL_SAFE_NO_PAD.encode(bytes);
            print(&format!("token: {text}\n"));
            Token::new(&text).ok_or_else(|| failed("the token that was made is short"))?
        }
    };
    let listener = serve::listen(arguments.listen)
        .map_err(|error| Failure(69, format!("it cannot listen: {error}")))?;
    print(&format!("listening on {}\n", listener.local_addr().map_err(failed)?));
    let loaded = Mutex::new(loaded(arguments.load)?);
    let limits = serve::Limits {
        postgres: arguments.postgres.clone(),
        clients: arguments.clients,
        seconds: arguments.seconds,
        bytes: arguments.bytes,
    };
    let serving = || serve::serve(&listener, &token, &limits, |line| eprintln!("{line}"));
    std::thread::scope(|scope| {
        if let Some(lasts) = arguments.lasts {
            let loaded = &loaded;
            scope.spawn(move || {
                std::thread::sleep(lasts);
                // What was loaded is unloaded, which an exit alone would not do.
                drop(loaded.lock().map(|mut loaded| loaded.take()));
                std::process::exit(0)
            });
        }
        serving().map_err(failed)
    })
}

fn bench_(arguments: &Bench) -> Result<(), Failure> {
    let missing = || {
        let message =
            format!("the token that `hawser cc serve` has printed: --token or {TOKEN_VARIABLE}");
        Failure(2, message)
    };
    let token = token(arguments.token.as_ref())?.ok_or_else(missing)?;
    let plan = Plan {
        directions: match arguments.only {
            Some(direction) => vec![direction],
            None => vec![Direction::Down, Direction::Up],
        },
        algorithms: arguments.algorithms.clone(),
        flows: arguments.flows.clone(),
        seconds: arguments.seconds,
        bytes_max: arguments.bytes,
        rounds: arguments.rounds,
        fairness: arguments.fairness,
        datagrams: !arguments.no_udp,
        postgres: arguments.postgres.clone(),
    };
    let _loaded = loaded(arguments.load)?;
    let failed_there = |error: bench::BenchError| Failure(error.exit_code(), error.to_string());
    let host = with_port(&arguments.host);
    let far = Far::find(&host, token).map_err(failed_there)?;
    let compared = bench::compare(&host, &far, &plan).map_err(failed_there)?;
    if let Some(path) = &arguments.html {
        std::fs::write(path, page::page(&compared))
            .map_err(|error| failed(format!("{}: {error}", path.display())))?;
    }
    if arguments.json {
        print(&(serde_json::to_string_pretty(&compared).map_err(failed)? + "\n"));
    } else {
        if let Some(why) = &compared.incomplete {
            print(&format!("INCOMPLETE {why}\n"));
        }
        print(&datagrams::table(&compared.path));
        print(&figures::table(&compared.outcomes));
        if let Some(caveat) = compared.caveat() {
            print(&format!("\nnote: {caveat}.\n"));
        }
        if !compared.postgres.is_empty() {
            print(&format!("\n{}", postgres::table(&compared.postgres)));
        }
    }
    match compared.incomplete {
        None => Ok(()),
        Some(why) => Err(Failure(
            INCOMPLETE,
            format!("incomplete, {why}; what was measured until then is shown"),
        )),
    }
}

/// `host`, `host:port`, `[v6]`, `[v6]:port` or a bare v6 address, with a port in any case.
fn with_port(host: &str) -> String {
    let port = serve::PORT_DEFAULT;
    if host.parse::<std::net::Ipv6Addr>().is_ok() {
        format!("[{host}]:{port}")
    } else if host.ends_with(']') || !host.contains(':') {
        format!("{host}:{port}")
    } else {
        host.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_port() {
        for (given, whole) in [
            ("db.example", "db.example:6480"),
            ("db.example:7", "db.example:7"),
            ("192.0.2.1", "192.0.2.1:6480"),
            ("fd00::1", "[fd00::1]:6480"),
            ("[fd00::1]", "[fd00::1]:6480"),
            ("[fd00::1]:7", "[fd00::1]:7"),
        ] {
            assert_eq!(with_port(given), whole);
        }
    }

    #[test]
    fn rates_and_times_have_units() {
        assert_eq!(rate("95Mbit/s").unwrap(), 95_000_000);
        assert_eq!(span("217ms").unwrap(), Duration::from_millis(217));
        assert!(rate("95").is_err() && span("217").is_err());
    }
}
