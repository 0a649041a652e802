//! The command line of `hawser link`.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use hawser_link::drive::keys::{Key, PublicKey};
use hawser_link::drive::report;
use hawser_link::drive::resolving::{split, with_port};
use hawser_link::drive::worker::{Far, Forward, Near, Options, Role, Within, Worker};
use hawser_link::proto::compression::Compression;
use hawser_link::proto::session::{PATHS_MAX, Paths};
use hawser_sys::process::raise_descriptor_limit;

use super::top;
use crate::cli::print;
use crate::config::{Congestion, LINK_PORT_DEFAULT, LinkCompression, LogFormat, LogLevel};
use crate::logging;

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 69 no running link.";
const ABSENT: u8 = 69;

/// `hawser link`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct Link {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a key for this end, and print its public key for the other end.
    Keygen(Keygen),
    /// Run the far end: accept near ends, and connect them to the allowed targets.
    Accept(Accept),
    /// Run the near end: listen for programs, and carry their connections to the far end.
    Dial(Dial),
    /// Print what a running link does: paths and streams.
    Status(Status),
    /// Watch a running link in the terminal: paths, streams, what each carries.
    Top(Top),
}

#[derive(Debug, Args)]
struct Keygen {
    /// The new file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print the public key of an existing file.
    #[arg(long)]
    show: bool,
}

#[derive(Debug, Args)]
struct Common {
    /// This end's key: a file of `hawser link keygen`.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The other end's public key; may be repeated, so that keys can be changed.
    #[arg(long, value_name = "KEY", value_parser = PublicKey::parse)]
    peer: Vec<PublicKey>,
    /// A file of further public keys, one a line; SIGHUP reads it again.
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// How long connections wait while no path works, as in 20s.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = seconds)]
    grace: Duration,
    /// Congestion control of paths: default, auto, or an algorithm's name.
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = congestion)]
    congestion: Congestion,
    /// Compression of what this end sends: none, or auto, for bulk that shrinks where paths are the limit.
    #[arg(long, value_name = "WHEN", default_value = "none", value_parser = compression)]
    compression: Compression,
    /// A unix socket for `hawser link status` and `top`.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Accept {
    /// Where near ends connect: address:port; may be repeated.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:6433", value_parser = address)]
    listen: Vec<SocketAddr>,
    /// A target that near ends may reach, host:port; may be repeated. All others are refused.
    #[arg(long, value_name = "HOST:PORT", required = true, value_parser = target)]
    allow: Vec<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Dial {
    /// Where the far end listens: host, or host:port; may be repeated, for several lines.
    #[arg(long, value_name = "HOST", required = true, value_parser = far)]
    far: Vec<String>,
    /// An address of this machine to dial from; may be repeated, for several lines.
    #[arg(long, value_name = "ADDR")]
    from: Vec<IpAddr>,
    /// TCP connections: 1 to 64, or auto, which finds out how many carry more than one.
    #[arg(long, value_name = "N", default_value = "auto", value_parser = paths)]
    paths: Paths,
    /// Where programs connect: address:port; as often as --to.
    #[arg(long, value_name = "ADDR", required = true, value_parser = address)]
    listen: Vec<SocketAddr>,
    /// Where the far end connects them: host:port, one of the far end's --allow.
    #[arg(long, value_name = "HOST:PORT", required = true, value_parser = target)]
    to: Vec<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Status {
    /// The socket of a running link.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Top {
    /// The socket of a running link.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Time between two looks, as in 1s.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse().ok();
    let time = number.and_then(|number| Duration::try_from_secs_f64(number).ok());
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3600);
    time.filter(|time| allowed.contains(time))
        .ok_or_else(|| "seconds, as in 1s: 0.1s to 1h".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    let wrong = || "seconds, as in 20s: 1s to 1h".to_owned();
    let time = number.parse().ok().and_then(|number| Duration::try_from_secs_f64(number).ok());
    let allowed = Duration::from_secs(1)..=Duration::from_secs(3600);
    time.filter(|time| allowed.contains(time)).ok_or_else(wrong)
}

fn congestion(text: &str) -> Result<Congestion, String> {
    Congestion::from_word(text)
        .ok_or_else(|| "default, auto, or an algorithm, as in bbr".to_owned())
}

fn compression(text: &str) -> Result<Compression, String> {
    let choice = LinkCompression::from_word(text).map(Compression::from);
    choice.ok_or_else(|| "none or auto".to_owned())
}

fn paths(text: &str) -> Result<Paths, String> {
    let number = text.parse().ok().filter(|number| (1..=PATHS_MAX).contains(number));
    match (text, number) {
        ("auto", _) => Ok(Paths::Auto),
        (_, Some(number)) => Ok(Paths::Fixed(number)),
        _ => Err(format!("1 to {PATHS_MAX}, or auto")),
    }
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| "an address and a port, as in 127.0.0.1:3306".to_owned())
}

pub(crate) fn target(text: &str) -> Result<String, String> {
    match split(text) {
        Some(_) => Ok(text.to_ascii_lowercase()),
        None => Err("a host and a port, as in db:5432".to_owned()),
    }
}

fn far(text: &str) -> Result<String, String> {
    with_port(text, LINK_PORT_DEFAULT).ok_or_else(|| "a host, or host:port".to_owned())
}

impl Link {
    /// Runs it.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let result = match self.command {
            Command::Keygen(arguments) => keygen(&arguments),
            Command::Status(arguments) => return status(&arguments),
            Command::Top(arguments) => return top(&arguments),
            Command::Accept(arguments) => accept(arguments),
            Command::Dial(arguments) => dial(arguments),
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("hawser link: {message}");
                ExitCode::FAILURE
            }
        }
    }
}

fn keygen(arguments: &Keygen) -> Result<(), String> {
    let Keygen { file, show } = arguments;
    let key = if *show { Key::load(file) } else { Key::generate(file) };
    print(&format!("{}\n", key.map_err(|error| error.to_string())?.public()));
    Ok(())
}

fn status(arguments: &Status) -> ExitCode {
    match report::ask(&arguments.socket) {
        Ok(report) if arguments.json => {
            let json = serde_json::to_string_pretty(&report).unwrap_or_default();
            print(&(json + "\n"));
            ExitCode::SUCCESS
        }
        Ok(report) => {
            print(&report.to_text(usize::MAX));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hawser link: no link answers at {}: {error}", arguments.socket.display());
            ExitCode::from(ABSENT)
        }
    }
}

fn top(arguments: &Top) -> ExitCode {
    match top::run(&arguments.socket, arguments.interval) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hawser link: no link is shown from {}: {error}", arguments.socket.display());
            ExitCode::from(ABSENT)
        }
    }
}

impl Common {
    fn options(self, name: &str, role: Role) -> Options {
        Options {
            name: name.to_owned(),
            key: self.key,
            peers: self.peer,
            peers_file: self.peers,
            grace: self.grace,
            congestion: self.congestion,
            compression: self.compression,
            socket: self.socket,
            role,
        }
    }
}

fn accept(arguments: Accept) -> Result<(), String> {
    let role = Role::Far(Far { listen: arguments.listen, allow: arguments.allow });
    run(arguments.common.options("accept", role))
}

fn dial(arguments: Dial) -> Result<(), String> {
    let Dial { far, from, paths, listen, to, common } = arguments;
    if listen.len() != to.len() {
        return Err("give --listen as often as --to: each leads to one target".to_owned());
    }
    let pairs = listen.into_iter().zip(to);
    let forwards = pairs.map(|(listen, target)| Forward { listen, target }).collect();
    let role = Role::Near(Near { to: far, from, paths, forwards });
    run(common.options("dial", role))
}

fn run(options: Options) -> Result<(), String> {
    logging::begin(LogFormat::Text, LogLevel::Info);
    // Each connection has a descriptor at each end.
    if let Err(error) = raise_descriptor_limit() {
        tracing::warn!("the limit on open files stays as it is: {error}");
    }
    let mut worker = Worker::open(options, Within::Process)?;
    for address in worker.addresses() {
        print(&format!("listens on {address}\n"));
    }
    worker.run().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_what_they_say() {
        assert_eq!(far("db.example"), Ok("db.example:6433".to_owned()));
        assert_eq!(far("db.example:7"), Ok("db.example:7".to_owned()));
        assert_eq!(far("[fd77::2]"), Ok("[fd77::2]:6433".to_owned()));
        assert!(far("fd77::2").is_err() && target("db").is_err());
        assert_eq!(target("DB:5432"), Ok("db:5432".to_owned()));
        assert_eq!(seconds("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!((paths("auto"), paths("64")), (Ok(Paths::Auto), Ok(Paths::Fixed(64))));
        assert!(paths("0").is_err() && paths("65").is_err() && paths("many").is_err());
        assert_eq!(compression("auto"), Ok(Compression::Auto));
        assert!(compression("zstd").is_err());
        assert!(seconds("0").is_err() && seconds("x").is_err() && seconds("1e9").is_err());
    }
}
