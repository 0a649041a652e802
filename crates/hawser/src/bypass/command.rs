//! The command line of `hawser bypass`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use hawser_bypass::kernel::{Bypass, Place, Standing};
use hawser_bypass::place::{self, Error};
use hawser_bypass::{run, selftest};
use serde::Serialize;

use crate::cli::print;

const RUN_EXIT_CODES: &str = "Exit codes: the program's own; 125 hawser failed, 126 the program \
cannot be run, 127 it is not found, 128 + N signal N ended it.";
const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 this machine cannot, 4 no \
rights, 5 the self-test has failed, 6 another hawser is changing it.";

/// `hawser bypass`.
#[derive(Debug, Args)]
pub struct BypassCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program, and all that it starts: its TCP connections to others that were started so,
    /// on this machine, go past TCP.
    #[command(after_help = RUN_EXIT_CODES)]
    Run(Run),
    /// Print what goes past TCP, and what does not and why.
    #[command(after_help = EXIT_CODES)]
    Status(Json),
    /// Turn it off for all programs and poolers, at once: connections continue over TCP.
    #[command(after_help = EXIT_CODES)]
    Off,
    /// Test this kernel. It takes up to 2 s, and leaves nothing.
    #[command(after_help = EXIT_CODES)]
    Selftest(Json),
}

#[derive(Debug, Args)]
struct Run {
    /// The program waits in recv(2), not by poll or epoll (sockperf, redis-cli), and does not ask for
    /// MSG_WAITALL. Its recv(2) may end with EAGAIN when it handles a signal.
    #[arg(long)]
    blocking: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Json {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl BypassCommand {
    /// Runs it.
    pub fn run(&self) -> ExitCode {
        let done = match &self.command {
            Command::Run(run) => {
                let place = if run.blocking { Place::Blocking } else { Place::Programs };
                let code = run::run(place, &run.command).unwrap_or_else(|error| {
                    eprintln!("hawser: {error}");
                    run::exit_code(&error)
                });
                return ExitCode::from(code);
            }
            Command::Status(Json { json }) => status(*json),
            Command::Off => off(),
            Command::Selftest(Json { json }) => selftest_(*json),
        };
        match done {
            Ok(code) => code,
            Err(error) => {
                eprintln!("hawser: {error}");
                ExitCode::from(error.exit_code())
            }
        }
    }
}

/// What `status` shows.
#[derive(Debug, Serialize)]
struct Report {
    /// `on`, `off` (nothing is loaded), `switched off`.
    state: &'static str,
    /// Whether programs of `run` are taken in.
    programs: bool,
    /// Whether poolers' connections are.
    poolers: bool,
    pairs: u64,
    sockets: u64,
    redirected: u64,
    redirected_bytes: u64,
    passed_full: u64,
    passed_unread: u64,
    passed_other: u64,
    not_taken_in: u64,
    /// Processes of each `run`.
    runs: Vec<(String, usize)>,
}

impl Report {
    fn look() -> Result<Self, Error> {
        let found = place::find()?;
        let Standing { on, pairs, sockets, counters } =
            found.as_ref().map(Bypass::standing).transpose()?.unwrap_or_default();
        let attached = |place| found.as_ref().is_some_and(|bypass| bypass.is_attached(place));
        Ok(Self {
            state: match (&found, on) {
                (None, _) => "off",
                (Some(_), true) => "on",
                (Some(_), false) => "switched off",
            },
            programs: attached(Place::Programs) || attached(Place::Blocking),
            poolers: attached(Place::Pooler),
            pairs,
            sockets,
            redirected: counters.redirected,
            redirected_bytes: counters.redirected_bytes,
            passed_full: counters.passed_full,
            passed_unread: counters.passed_unread,
            passed_other: counters.passed_other,
            not_taken_in: counters.not_taken_in,
            runs: place::programs(),
        })
    }

    fn to_text(&self) -> String {
        if self.state == "off" {
            return "local bypass: off\n".to_owned();
        }
        let whom = match (self.programs, self.poolers) {
            (true, true) => "programs of `run`, and poolers",
            (true, false) => "programs of `run`",
            (false, true) => "poolers",
            (false, false) => "no new connections",
        };
        let mut text = format!(
            "local bypass: {}, for {whom}\n  connections      {} (sockets: {})\n  past TCP         {} \
             messages, {} bytes\n  through TCP      {} queue full, {} unread bytes, {} other\n",
            self.state,
            self.pairs,
            self.sockets,
            self.redirected,
            self.redirected_bytes,
            self.passed_full,
            self.passed_unread,
            self.passed_other
        );
        if self.not_taken_in > 0 {
            text += &format!(
                "  not taken in     {} connections of programs that wait in recv(2): `run --blocking` \
                 takes them in\n",
                self.not_taken_in
            );
        }
        for (name, processes) in &self.runs {
            text += &format!("  {name:<16} {processes} process(es)\n");
        }
        text
    }
}

fn to_json(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|error| Error::File { step: "writing JSON", source: error.into() })
}

fn status(json: bool) -> Result<ExitCode, Error> {
    let report = Report::look()?;
    print(&if json { to_json(&report)? } else { report.to_text() });
    Ok(ExitCode::SUCCESS)
}

fn off() -> Result<ExitCode, Error> {
    print(&match place::off()? {
        None => "nothing to do: the local bypass is off\n".to_owned(),
        Some(sockets) => format!(
            "the local bypass is off; {sockets} socket(s) that are open go on over TCP, and what \
             waits past TCP is still read\n"
        ),
    });
    Ok(ExitCode::SUCCESS)
}

fn selftest_(json: bool) -> Result<ExitCode, Error> {
    let parts = selftest::test()?;
    let mut text = String::new();
    for part in &parts {
        let verdict = if part.passed { "ok  " } else { "FAIL" };
        text += &format!("{verdict}  {}: {}\n", part.name, part.found);
    }
    print(&if json { to_json(&parts)? } else { text });
    let passed = parts.iter().all(|part| part.passed);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(5) })
}
