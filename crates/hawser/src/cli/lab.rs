//! `hawser lab`: a WAN between network namespaces on this machine.
//!
//! # Exit codes
//! Beside those of all commands, so that a script can tell "try again" from "mend this": `run` ends
//! as its command did; 65 the description is wrong, 69 there is no such laboratory or it ended,
//! 73 one of that name is up, 75 the run was not faithful and its figures are worth nothing, 77 the
//! rights are missing. They are those of sysexits.h.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::{Args, Subcommand};
use hawser_lab::namespaces::control::{self, About, Client, ControlError};
use hawser_lab::namespaces::errand::{self, ErrandError};
use hawser_lab::namespaces::report::Snapshot;
use hawser_lab::namespaces::selftest::{self, SelftestError};
use hawser_lab::namespaces::{Laboratory, UpError, setup};
use hawser_lab::wan::Description;
use hawser_lab::wan::named::{NAMED, named};
use hawser_lab::wan::parse::parse;

use super::print;

const DESCRIPTION_WRONG: u8 = 65;
const ABSENT: u8 = 69;
const TAKEN: u8 = 73;
const UNFAITHFUL: u8 = 75;
const NO_RIGHTS: u8 = 77;

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 65 wrong description, 69 no such laboratory \
                          or it ended, 73 the name is taken, 75 the run was not faithful, 77 rights are missing; \
                          `run` ends as its command did.";

/// A description's longest file: a mistyped name of a large file is refused, not read.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct Lab {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Bring a network up, in the background, until `down`.
    Up(Up),
    /// Run a command inside: HAWSER_LAB_FAR in its environment is the far host's address.
    Run(Run),
    /// End a network, and what runs inside.
    Down(Down),
    /// List networks that are up, and descriptions that come with the program.
    List(Format),
    /// Print what a network has done since it is up.
    Report(Report),
    /// Print a description that comes with the program.
    Show(Show),
    /// Check rate, delay, loss and limits on this machine, within 2 %.
    Selftest(Selftest),
}

#[derive(Debug, Args)]
struct Up {
    /// A description: a file, or the name of one that comes with the program.
    #[arg(value_name = "FILE|NAME")]
    description: String,
    /// Name of the network [default: the description's].
    #[arg(long)]
    name: Option<String>,
    /// Seed of all random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stay in the foreground: the network is up until this process ends.
    #[arg(long)]
    foreground: bool,
    /// Say on standard output, as JSON, when it is up.
    #[arg(long, hide = true)]
    tell: bool,
}

#[derive(Debug, Args)]
struct Run {
    /// The network.
    name: String,
    /// Host on which it runs [default: the first].
    #[arg(long, value_name = "HOST")]
    on: Option<String>,
    /// Print on standard error, or write to FILE, what the network did meanwhile.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    report: Option<Option<PathBuf>>,
    /// Write the same to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    report_json: Option<PathBuf>,
    /// Only warn where packets left too late.
    #[arg(long)]
    accept_unfaithful: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Down {
    /// The network.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<String>,
    /// All networks of this user.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
struct Format {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Report {
    /// The network.
    name: String,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Args)]
struct Selftest {
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Args)]
struct Show {
    /// Its name.
    name: String,
}

/// The message for the user, and the exit code.
#[derive(Debug)]
struct Failure(u8, String);

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        let code = match error {
            ControlError::Name(_) => 2,
            ControlError::Taken(_) => TAKEN,
            ControlError::Absent(_) | ControlError::Lost { .. } => ABSENT,
        };
        Self(code, error.to_string())
    }
}

impl From<UpError> for Failure {
    fn from(error: UpError) -> Self {
        let code = match error {
            UpError::Rights { .. } | UpError::Device { .. } => NO_RIGHTS,
            UpError::Setting { .. } => DESCRIPTION_WRONG,
            UpError::Kernel { .. } => 1,
        };
        Self(code, error.to_string())
    }
}

impl From<ErrandError> for Failure {
    fn from(error: ErrandError) -> Self {
        match error {
            ErrandError::Control(error) => error.into(),
            ErrandError::Host { .. } => Self(2, error.to_string()),
            // As shells: 127 is a command that is not there, 126 one that may not be run.
            ErrandError::Start { ref source, .. }
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Self(127, error.to_string())
            }
            ErrandError::Start { .. } => Self(126, error.to_string()),
            ErrandError::Enter(_) => Self(NO_RIGHTS, error.to_string()),
        }
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure(1, error.to_string())
}

pub(super) fn run(arguments: &Lab) -> ExitCode {
    let result = match &arguments.command {
        LabCommand::Up(arguments) if arguments.foreground => up_here(arguments),
        LabCommand::Up(arguments) => up(arguments),
        LabCommand::Run(arguments) => return run_inside(arguments),
        LabCommand::Down(arguments) => down(arguments),
        LabCommand::List(format) => list(format.json),
        LabCommand::Report(arguments) => report(arguments),
        LabCommand::Show(arguments) => show(&arguments.name),
        LabCommand::Selftest(arguments) => self_test(arguments.format.json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => say(&failure),
    }
}

fn say(Failure(code, message): &Failure) -> ExitCode {
    eprintln!("hawser lab: {message}");
    ExitCode::from(*code)
}

/// The description, its own name, and where it is from.
fn description(of: &str) -> Result<(Description, String, String), Failure> {
    let wrong =
        |error: hawser_lab::wan::parse::Invalid| Failure(DESCRIPTION_WRONG, error.to_string());
    if let Some(named) = named(of) {
        return Ok((parse(of, named.toml).map_err(wrong)?, of.to_owned(), of.to_owned()));
    }
    let path = Path::new(of);
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
        .map_err(|error| unread(of, &error))?;
    let description = parse(of, &text).map_err(wrong)?;
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let absolute = std::path::absolute(path).map_err(|error| unread(of, &error))?;
    Ok((description, name.unwrap_or_default(), absolute.to_string_lossy().into_owned()))
}

fn unread(of: &str, error: &std::io::Error) -> Failure {
    let names: Vec<&str> = NAMED.iter().map(|named| named.name).collect();
    let names = names.join(", ");
    Failure(DESCRIPTION_WRONG, format!("{of}: {error}; a file is needed, or one of {names}"))
}

fn up(arguments: &Up) -> Result<(), Failure> {
    let (_, own_name, source) = description(&arguments.description)?;
    let name = arguments.name.clone().unwrap_or(own_name);
    let seed = arguments.seed.to_string();
    let mut child = Command::new("/proc/self/exe")
        .args(["lab", "up", "--foreground", "--tell", "--seed", &seed, "--name", &name])
        .arg("--")
        .arg(&source)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
    }
    if let Ok(about) = serde_json::from_str::<About>(&line) {
        print(&text_of(&about));
        return Ok(());
    }
    let mut message = String::new();
    if let Some(mut errors) = child.stderr.take() {
        errors.read_to_string(&mut message).map_err(failed)?;
    }
    let code = child.wait().map_err(failed)?.code().and_then(|code| u8::try_from(code).ok());
    let message = message.trim().trim_start_matches("hawser lab: ").to_owned();
    Err(Failure(code.unwrap_or(1), message))
}

fn up_here(arguments: &Up) -> Result<(), Failure> {
    let (description, own_name, source) = description(&arguments.description)?;
    let claim = control::claim(arguments.name.as_deref().unwrap_or(&own_name))?;
    if arguments.tell {
        hawser_sys::namespace::leave_terminal().map_err(failed)?;
    }
    let in_user_namespace = setup::obtain_rights()?;
    let laboratory = Laboratory::up(description, arguments.seed)?;
    let about = claim.about(&laboratory, &source, in_user_namespace).map_err(failed)?;
    if arguments.tell {
        let line = serde_json::to_string(&about).map_err(failed)? + "\n";
        // No program waits for it: none will look for it.
        std::io::stdout().write_all(line.as_bytes()).map_err(failed)?;
    } else {
        print(&text_of(&about));
    }
    claim.serve(laboratory, about).map_err(failed)
}

fn text_of(about: &About) -> String {
    let About { name, source, seed, pid, up_s, hosts, .. } = about;
    let mut text = format!("{name}: {source}, seed {seed}, pid {pid}, up for {up_s} s\n");
    for host in hosts {
        let addresses: Vec<String> = host.addresses.iter().map(ToString::to_string).collect();
        let (addresses, algorithm) = (addresses.join(" "), &host.congestion_control);
        text += &format!("  {:<12} {addresses} ({algorithm})\n", host.name);
    }
    text
}

fn run_inside(arguments: &Run) -> ExitCode {
    let Run { name, on, report, report_json, accept_unfaithful, command } = arguments;
    let ended = match errand::run(name, on.as_deref(), command) {
        Ok(ended) => ended,
        Err(error) => return say(&error.into()),
    };
    match report {
        None => {}
        Some(None) => eprint!("{}", ended.report),
        Some(Some(path)) => {
            if let Err(error) = std::fs::write(path, ended.report.to_string()) {
                return say(&failed(format!("{}: {error}", path.display())));
            }
        }
    }
    if let Some(path) = report_json
        && let Err(error) = write_json(path, &ended.report)
    {
        return say(&failed(format!("{}: {error}", path.display())));
    }
    match ended.report.unfaithful() {
        Some(reason) if *accept_unfaithful => eprintln!("hawser lab: not faithful: {reason}"),
        Some(reason) => {
            return say(&Failure(
                UNFAITHFUL,
                format!(
                    "the run was not faithful, its figures are worth nothing: {reason}. A quieter \
                     machine, a larger lateness_max in the description, or --accept-unfaithful"
                ),
            ));
        }
        None => {}
    }
    ExitCode::from(ended.code)
}

fn write_json(path: &Path, report: &Snapshot) -> std::io::Result<()> {
    std::fs::write(path, serde_json::to_string_pretty(report)? + "\n")
}

fn down(arguments: &Down) -> Result<(), Failure> {
    let names = match &arguments.name {
        Some(name) => vec![name.clone()],
        None => control::names().map_err(failed)?,
    };
    for name in names {
        let down = Client::connect(&name)?.down()?;
        print(&match down.ended {
            0 => format!("{name}: down\n"),
            ended => format!("{name}: down, {ended} processes inside were ended\n"),
        });
    }
    Ok(())
}

fn list(json: bool) -> Result<(), Failure> {
    let mut found = Vec::new();
    for name in control::names().map_err(failed)? {
        // One that has ended since is none.
        if let Ok(about) = Client::connect(&name).and_then(|mut client| client.about()) {
            found.push(about);
        }
    }
    if json {
        print(&(serde_json::to_string_pretty(&found).map_err(failed)? + "\n"));
        return Ok(());
    }
    if found.is_empty() {
        print("no laboratory is up\n");
    }
    found.iter().for_each(|about| print(&text_of(about)));
    print("descriptions that come with the program:\n");
    for named in NAMED {
        print(&format!("  {:<12} {}\n", named.name, named.summary));
    }
    Ok(())
}

fn report(arguments: &Report) -> Result<(), Failure> {
    let report = Client::connect(&arguments.name)?.report()?;
    if arguments.format.json {
        print(&(serde_json::to_string_pretty(&report).map_err(failed)? + "\n"));
        return Ok(());
    }
    print(&report.to_string());
    if let Some(reason) = report.unfaithful() {
        print(&format!("not faithful: {reason}\n"));
    }
    Ok(())
}

fn show(name: &str) -> Result<(), Failure> {
    let Some(named) = named(name) else {
        let names: Vec<&str> = NAMED.iter().map(|named| named.name).collect();
        return Err(Failure(2, format!("no description `{name}`: there are {}", names.join(", "))));
    };
    print(named.toml);
    Ok(())
}

fn self_test(json: bool) -> Result<(), Failure> {
    setup::obtain_rights()?;
    let findings = selftest::run(|check| {
        if !json {
            print(&format!("{check}\n"));
        }
    });
    let findings = findings.map_err(|error| match error {
        SelftestError::Up(error) => error.into(),
        error => failed(error),
    })?;
    let wrong = findings.checks.iter().filter(|check| !check.is_right).count();
    if json {
        print(&(serde_json::to_string_pretty(&findings).map_err(failed)? + "\n"));
    } else {
        let right = findings.checks.len() - wrong;
        let (refused, lateness) = (findings.refused.len(), findings.lateness_us);
        print(&format!(
            "{right} right, {wrong} wrong, {refused} refused; 99.9 % of packets within {lateness} us of their time\n"
        ));
    }
    if wrong > 0 {
        return Err(failed(format!("{wrong} figures are off by more than 2 %")));
    }
    if !findings.refused.is_empty() {
        let reasons = findings.refused.join("; ");
        return Err(Failure(UNFAITHFUL, format!("this machine was too busy to tell: {reasons}")));
    }
    Ok(())
}
