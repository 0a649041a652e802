//! The command line of `hawser mptcp`.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use hawser_multipath::mptcp::apply;
use hawser_multipath::mptcp::look::look;
use hawser_multipath::mptcp::manage;
use hawser_multipath::mptcp::record::{self, Record};
use hawser_multipath::mptcp::report::Report;
use hawser_sys::mptcp::endpoint::EndpointId;

use crate::cli::print;

/// Between the two looks of `status` without --watch, from which rates come.
const LOOK_APART: Duration = Duration::from_millis(250);
/// Clears a terminal and goes to its first line (ECMA-48).
const CLEAR: &str = "\x1b[H\x1b[2J";
/// The first port that is announced: the one after Hawser's own, 6432, and the link's, 6433.
pub const FIRST_PORT_DEFAULT: u16 = 6434;

const RUN_EXIT_CODES: &str = "Exit codes: the program's own; 125 hawser failed, 126 the program \
cannot be run, 127 it is not found, 128 + N signal N ended it.";

/// `hawser mptcp`.
#[derive(Debug, Args)]
pub struct Mptcp {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The kernel, its settings, endpoints, and every MPTCP connection with its subflows.
    Status(Status),
    /// Create the endpoints and limits that this machine needs.
    Setup(SetupCommand),
    /// Open, replace and close the subflows of all connections, by what each carries.
    Manage(Manage),
    /// Puts the path manager's setting back when `manage` is killed; it starts this itself.
    #[command(hide = true)]
    Watchdog(Watchdog),
    /// Undo `setup`, and nothing else.
    Undo(Undo),
    /// Run a program, and all that it starts, with MPTCP in place of TCP.
    #[command(after_help = RUN_EXIT_CODES)]
    Run(Run),
}

#[derive(Debug, Args)]
struct Status {
    /// As JSON; with --watch, one object a line.
    #[arg(long)]
    json: bool,
    /// Repeat every SECONDS.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
}

#[derive(Debug, Args)]
struct SetupCommand {
    #[command(subcommand)]
    end: End,
}

#[derive(Debug, Subcommand)]
enum End {
    /// For programs that accept connections: announce further ports or addresses.
    Server(Server),
    /// For programs that dial: use every address of this machine, follow what servers announce.
    Client(Client),
}

#[derive(Debug, Args)]
struct Server {
    /// Further ports of each address, 0 for none [default: 4 if this machine has one address].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=8))]
    ports: Option<u16>,
    /// The first of them; those in use are passed over.
    #[arg(long, value_name = "PORT", default_value_t = FIRST_PORT_DEFAULT,
          value_parser = clap::value_parser!(u16).range(1..=65_000))]
    first_port: u16,
    #[command(flatten)]
    setup: Setup,
}

#[derive(Debug, Args)]
struct Client {
    /// An address to use only when no other is left: a line that costs by volume.
    #[arg(long, value_name = "ADDR")]
    backup: Vec<IpAddr>,
    #[command(flatten)]
    setup: Setup,
}

#[derive(Debug, Args)]
struct Setup {
    /// Use this address [default: all on interfaces with a default route].
    #[arg(long, value_name = "ADDR")]
    address: Vec<IpAddr>,
    /// Only print what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Repeat it at each start of this machine, by a systemd unit.
    #[arg(long)]
    persist: bool,
}

#[derive(Debug, Args)]
struct Run {
    /// Report at the end what happened to the program's sockets.
    #[arg(long)]
    verbose: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Manage {
    /// Write each observation to this file: JSON, one object a line.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// End when this process does.
    #[arg(long, value_name = "PID")]
    with: Option<u32>,
    /// End when standard input is closed, and by no signal: within `hawser serve`.
    #[arg(long, hide = true)]
    attached: bool,
}

#[derive(Debug, Args)]
struct Watchdog {
    pid: u32,
    before: String,
    /// tcp_notsent_lowat was changed, too.
    #[arg(long)]
    unsent: bool,
}

#[derive(Debug, Args)]
struct Undo {
    /// Only print what would be done.
    #[arg(long)]
    dry_run: bool,
}

impl Mptcp {
    /// Runs it.
    ///
    /// # Errors
    /// What went wrong, for people.
    pub fn run(&self) -> Result<(), String> {
        match &self.command {
            Command::Status(arguments) => status(arguments),
            Command::Setup(setup) => {
                let (request, options) = match &setup.end {
                    End::Server(server) => (
                        apply::Request::Server {
                            ports: server.ports,
                            first_port: server.first_port,
                        },
                        &server.setup,
                    ),
                    End::Client(client) => {
                        (apply::Request::Client { backup: client.backup.clone() }, &client.setup)
                    }
                };
                let done = apply::setup(
                    &request,
                    &apply::Options {
                        addresses: options.address.clone(),
                        dry_run: options.dry_run,
                        persist: options.persist,
                    },
                );
                done.map(|lines| print_lines(&lines)).map_err(|error| error.to_string())
            }
            Command::Manage(manage) => {
                let options = manage::Options {
                    trace: manage.trace.clone(),
                    with: manage.with,
                    attached: manage.attached,
                };
                manage::manage(&options).map_err(|error| error.to_string())
            }
            Command::Watchdog(watchdog) => {
                let path_manager = watchdog.before.clone();
                let before = manage::guard::Before { path_manager, unsent: watchdog.unsent };
                manage::guard::watchdog(watchdog.pid, &before).map_err(|e| e.to_string())
            }
            Command::Undo(undo) => apply::undo(undo.dry_run)
                .map(|lines| print_lines(&lines))
                .map_err(|error| error.to_string()),
            Command::Run(run) => {
                let code = hawser_multipath::mptcp::run::run(&run.command, run.verbose)
                    .unwrap_or_else(|error| {
                        eprintln!("hawser: {error}");
                        error.exit_code()
                    });
                std::process::exit(code.into())
            }
        }
    }
}

fn print_lines(lines: &[String]) {
    for line in lines {
        print(&format!("{line}\n"));
    }
}

fn status(arguments: &Status) -> Result<(), String> {
    let ours: Vec<EndpointId> = record::path()
        .ok()
        .and_then(|path| Record::load(&path).ok()?)
        .map(|record| record.endpoints().iter().map(|endpoint| endpoint.id).collect())
        .unwrap_or_default();
    let mut before = look();
    let pause = arguments.watch.map_or(LOOK_APART, Duration::from_secs);
    if arguments.watch.is_some() {
        // The first picture need not wait.
        show(&Report::new(&before, None, &ours), arguments)?;
    }
    loop {
        std::thread::sleep(pause);
        let now = look();
        show(&Report::new(&now, Some(&before), &ours), arguments)?;
        if arguments.watch.is_none() {
            return Ok(());
        }
        before = now;
    }
}

fn show(report: &Report, arguments: &Status) -> Result<(), String> {
    use std::io::Write;
    let text = match (arguments.json, arguments.watch) {
        (true, None) => serde_json::to_string_pretty(report).map_err(|e| e.to_string())? + "\n",
        (true, Some(_)) => serde_json::to_string(report).map_err(|e| e.to_string())? + "\n",
        (false, Some(_)) if io::stdout().is_terminal() => format!("{CLEAR}{}", report.to_text()),
        (false, _) => report.to_text(),
    };
    match io::stdout().lock().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        // The reader has gone (`| head`): there is no one to watch for.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(error.to_string()),
        Ok(()) => Ok(()),
    }
}
