//! Called by the name `pgbouncer`: PgBouncer's arguments, log lines and signals.
//!
//! # Model       `hawser serve --pgbouncer FILE.ini`, with PgBouncer's manner of everything else: an
//!               image or a unit that runs PgBouncer runs this by a link of that name
//! # Limits      -d goes to the background by a second process without a terminal, once that one has
//!               read its configuration. SIGUSR2 is RESUME here: -R takes the place of a running process

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;

use crate::admin::show::dialect::release;
use crate::config::{Config, ConsoleVersion, Overrides, SETTINGS_VARIABLE};
use crate::logging::{self, Outputs};
use crate::process::BACKGROUND_VARIABLE;
use crate::serve;
use crate::serve::{Begins, Manner};

/// By which name the program is PgBouncer.
const NAME: &str = "pgbouncer";

/// Connection pooler for PostgreSQL, with PgBouncer's arguments.
#[derive(Debug, Parser)]
#[command(name = "pgbouncer", disable_version_flag = true)]
struct Arguments {
    /// Run in the background.
    #[arg(short, long)]
    daemon: bool,
    /// Take the place of the running process, without a dropped connection.
    #[arg(short = 'R', long)]
    reboot: bool,
    /// Do not log to standard error.
    #[arg(short, long)]
    quiet: bool,
    /// Log more.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Assume the identity of this user.
    #[arg(short, long, value_name = "USERNAME")]
    user: Option<String>,
    /// Show the version.
    #[arg(short = 'V', long)]
    version: bool,
    /// The configuration.
    #[arg(value_name = "CONFIG_FILE", required_unless_present = "version")]
    file: Option<PathBuf>,
}

/// Whether the program was called by PgBouncer's name.
pub(super) fn is_asked_for(arguments: &[OsString]) -> bool {
    let called = arguments.first().map(Path::new).and_then(Path::file_name);
    called.is_some_and(|name| name == NAME)
}

/// What PgBouncer says of itself, and who it is here.
fn version() -> String {
    let release = release(ConsoleVersion::V1_26);
    format!("PgBouncer {release}\nHawser {}\n", env!("CARGO_PKG_VERSION"))
}

fn configuration(arguments: &Arguments, file: &Path) -> Result<Config, String> {
    let level = (arguments.verbose > 0).then_some("debug");
    let overrides = Overrides {
        user: arguments.user.clone(),
        level,
        format: Some("pgbouncer"),
        settings: std::env::var(SETTINGS_VARIABLE).ok(),
        ..Overrides::default()
    };
    Config::load_pgbouncer(file, &overrides).map_err(|errors| errors.to_string())
}

pub(super) fn run(arguments: &[OsString]) -> ExitCode {
    let with_name = std::iter::once(OsString::from(NAME)).chain(arguments.iter().cloned());
    let parsed = match Arguments::try_parse_from(with_name) {
        Ok(parsed) => parsed,
        Err(error) => {
            // A message that cannot be printed is lost.
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    let file = match &parsed.file {
        Some(file) if !parsed.version => file,
        _ => {
            super::print(&version());
            return ExitCode::SUCCESS;
        }
    };
    let background = std::env::var_os(BACKGROUND_VARIABLE).is_some();
    let result = configuration(&parsed, file).and_then(|config| {
        let outputs = Outputs::of(&config.start, !(parsed.quiet || background))?;
        if parsed.daemon && !background {
            return go_to_background(arguments, &outputs);
        }
        logging::begin_to(outputs, config.start.log.format, config.reload.log.level);
        let begins = if parsed.reboot { Begins::AsSuccessorOrAlone } else { Begins::Alone };
        serve::serve(config, Manner::PgBouncer, begins, |_| ()).map_err(|error| {
            let error = error.to_string();
            tracing::error!("{error}"); // standard error may not be visible
            error
        })
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            if background {
                // Standard error is closed: to the process that waits, which passes it on.
                super::print(&format!("{message}\n"));
            }
            eprintln!("{NAME}: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the same in a group of its own, and waits until it serves or has ended.
fn go_to_background(arguments: &[OsString], outputs: &Outputs) -> Result<(), String> {
    if !outputs.beside_stderr() {
        eprintln!("{NAME}: neither logfile nor syslog: nothing is logged in the background");
    }
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .arg0(NAME)
        .args(arguments)
        .env(BACKGROUND_VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("could not go to the background: {error}"))?;
    // It says that it serves by a line that begins with this word, or why it does not, and ends.
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        let mut out = BufReader::new(out);
        let _ = out.read_line(&mut said);
        if !said.starts_with("ready ") {
            let _ = out.read_to_string(&mut said);
        }
    }
    if said.starts_with("ready ") {
        return Ok(());
    }
    let ended = child.wait().map_or_else(|error| error.to_string(), |code| code.to_string());
    match said.trim_end() {
        "" => Err(format!("did not start: {ended}")),
        said => Err(format!("did not start: {said}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_pgbouncers() {
        Arguments::command().debug_assert();
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        let all = parse("pgbouncer -d -R -q -v -v -u postgres /etc/p.ini").unwrap();
        assert!(all.daemon && all.reboot && all.quiet && all.verbose == 2);
        assert_eq!(all.user.as_deref(), Some("postgres"));
        assert_eq!(all.file.as_deref(), Some(Path::new("/etc/p.ini")));
        assert!(parse("pgbouncer -V").unwrap().version);
        assert!(parse("pgbouncer").is_err() && parse("pgbouncer a b").is_err());
        assert!(version().starts_with("PgBouncer 1."));
        let called = |name: &str| is_asked_for(&[OsString::from(name)]);
        assert!(called("pgbouncer") && called("/usr/bin/pgbouncer"));
        assert!(!called("/opt/pgbouncer/hawser") && !is_asked_for(&[]));
    }
}
