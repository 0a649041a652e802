//! The command line: what scripts rely on.
//!
//! # Exit codes
//! 0 it is done; 1 it failed, and why is on standard error; 2 the command line is wrong. `lab` has
//! more.

mod lab;
mod manual;
mod pgbouncer;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use tokio::signal::unix::SignalKind;

use crate::check::Checked;
use crate::config::{Config, Overrides, SETTINGS_VARIABLE, ServerUrl};
use crate::process::path_of;
use crate::serve::{Begins, Manner};
use crate::{
    bypass, cc, check, demo, doctor, import, link, logging, login, mptcp, rds, serve, status, top,
    wan,
};
pub(crate) use hawser_sys::terminal::print;

/// Where `serve` looks for a configuration when it is given none.
const FILES: [&str; 2] = ["hawser.toml", "/etc/hawser/hawser.toml"];
/// The configuration, unless -c names one.
const CONFIG_VARIABLE: &str = "HAWSER_CONFIG";
/// The server's URL, if its password must not show in the list of processes.
const SERVER_URL_VARIABLE: &str = "HAWSER_SERVER_URL";
/// How long `hawser reload` waits for the outcome, and how often it looks.
const RELOAD_WAIT: Duration = Duration::from_secs(30);
const RELOAD_LOOK: Duration = Duration::from_millis(50);

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed (why is on standard error), 2 wrong usage.";

/// Connection accelerator for PostgreSQL: thousands of sessions on few server connections.
#[derive(Debug, Parser)]
#[command(name = "hawser", version, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run Hawser. SIGHUP reloads; SIGTERM ends it when open transactions have finished.
    Serve(Serve),
    /// Take over from the running Hawser without a dropped connection: for an upgrade.
    Takeover(Serve),
    /// Check a configuration, and what works on this host.
    Check(Check),
    /// Have the running Hawser read its configuration again, as SIGHUP does, and wait for the result.
    Reload(Running),
    /// End the running Hawser, as SIGTERM does: open transactions may finish.
    Stop(Running),
    /// Print what the running Hawser does.
    Status(Status),
    /// Watch the running Hawser in the terminal: pools, waits, pins, errors.
    Top(Top),
    /// Say why the running Hawser is slow, and what to change first. Exit code 1 if there is something.
    Doctor(Doctor),
    /// Run a demonstration: a throw-away PostgreSQL, Hawser in front of it, and a load.
    Demo(Demo),
    /// Print a hawser.toml that does the same as a pgbouncer.ini.
    Import(Import),
    /// Multipath TCP on this machine: status, set-up, path manager.
    Mptcp(mptcp::command::Mptcp),
    /// Local connections past the TCP/IP stack, by BPF: off by default.
    Bypass(bypass::command::BypassCommand),
    /// Congestion control: list the algorithms, compare them to a host, set one.
    Cc(cc::command::Cc),
    /// The link: TCP services of another host, over several connections.
    Link(link::command::Link),
    /// Set up a link to a host that is far away: for a slow replica.
    Wan(wan::command::Wan),
    /// Reliable datagrams (RDS over TCP), without the kernel's module and without root.
    Rds(rds::command::Rds),
    /// Print completions for a shell.
    Completions(manual::Completions),
    /// Write the manual pages: for packages.
    #[command(hide = true)]
    Man(manual::Man),
    /// Ask PAM about a password: what `serve` runs for each login by method `pam`.
    #[command(name = login::pam::COMMAND, hide = true)]
    PamCheck,
    /// Simulate a WAN on this machine: rate, delay, loss, queues, limits per flow.
    Lab(lab::Lab),
}

#[derive(Debug, Args)]
struct Serve {
    /// The configuration [default: hawser.toml here, then /etc/hawser/hawser.toml].
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A pgbouncer.ini instead, as it is; each reload reads it again.
    #[arg(long, value_name = "FILE.ini", conflicts_with = "config")]
    pgbouncer: Option<PathBuf>,
    /// Where clients connect: host:port, or a directory for a unix socket; several with commas. It
    /// overrides the configuration, after a reload too.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The server: postgres://user:password@host:port. Without -c, Hawser serves every database of
    /// that server; with -c, it is the server of all databases of the file, and the URL's user can
    /// log in, too. Without -c, the environment variable HAWSER_SERVER_URL does the same and keeps
    /// the password out of the list of processes.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Server connections for each user and database; overrides every pool_size.
    #[arg(long, value_name = "N")]
    pool_size: Option<u32>,
}

#[derive(Debug, Args)]
struct Check {
    /// The configuration [default: hawser.toml here, then /etc/hawser/hawser.toml].
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A pgbouncer.ini instead, as `serve --pgbouncer` runs it.
    #[arg(long, value_name = "FILE.ini", conflicts_with = "config")]
    pgbouncer: Option<PathBuf>,
    /// A server instead, as `serve --server` uses it.
    #[arg(long, value_name = "URL", conflicts_with_all = ["config", "pgbouncer"])]
    server: Option<String>,
    /// Check with the rights of this user, as whom the service runs: needs root.
    #[arg(long = "as", value_name = "USER")]
    user: Option<String>,
    /// Fail on a warning, too.
    #[arg(long)]
    strict: bool,
}

/// Which one is meant.
#[derive(Debug, Args)]
struct Running {
    /// The configuration of the running Hawser, which names its control socket.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Its control socket.
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Status {
    #[command(flatten)]
    running: Running,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Top {
    #[command(flatten)]
    running: Running,
    /// Seconds between updates.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

#[derive(Debug, Args)]
struct Doctor {
    #[command(flatten)]
    running: Running,
    /// Seconds to watch.
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Demo {
    /// Number of clients.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    clients: u32,
    /// Seconds to run; 0 is until Ctrl-C.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seconds: u64,
    /// Number of server connections.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=500))]
    pool_size: u32,
    /// Show a bad query, a rule that limits it, and a failover: in 40 seconds, or --seconds.
    #[arg(long)]
    trouble: bool,
}

#[derive(Debug, Args)]
struct Import {
    /// The pgbouncer.ini.
    #[arg(value_name = "PGBOUNCER.INI")]
    file: PathBuf,
}

/// Runs the command that `arguments` name; the first of them is the program.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if pgbouncer::is_asked_for(&arguments) {
        return pgbouncer::run(&arguments[1..]);
    }
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // A message that cannot be printed is lost.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let result = match arguments.command {
        Command::Serve(arguments) => serve_(&arguments, Begins::asked(Begins::Alone)),
        Command::Takeover(arguments) => serve_(&arguments, Begins::AsSuccessor),
        Command::Check(arguments) => match check_(&arguments) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Reload(arguments) => reload_(&arguments),
        Command::Stop(arguments) => signal(&arguments, SignalKind::terminate()).map(drop),
        Command::Lab(arguments) => return lab::run(&arguments),
        Command::PamCheck => return login::pam::answer(),
        Command::Bypass(arguments) => return arguments.run(),
        Command::Cc(arguments) => return arguments.run(),
        Command::Link(arguments) => return arguments.run(),
        Command::Wan(arguments) => return arguments.run(),
        Command::Rds(arguments) => return arguments.run(),
        Command::Status(arguments) => status_(&arguments),
        Command::Top(arguments) => top_(&arguments),
        Command::Doctor(arguments) => match doctor_(&arguments) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Demo(Demo { clients, seconds, pool_size, trouble }) => {
            demo::run(&demo::Options { clients, seconds, pool_size, trouble })
                .map_err(|error| error.to_string())
        }
        Command::Import(arguments) => import_(&arguments),
        Command::Mptcp(arguments) => arguments.run(),
        Command::Completions(arguments) => {
            arguments.print();
            Ok(())
        }
        Command::Man(arguments) => arguments.write(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("hawser: {message}");
            ExitCode::FAILURE
        }
    }
}

fn serve_(arguments: &Serve, begins: Begins) -> Result<(), String> {
    let config = configuration(arguments, |name| std::env::var(name).ok())?;
    let outputs = logging::Outputs::of(&config.start, true)?;
    logging::begin_to(outputs, config.start.log.format, config.reload.log.level);
    if config.file().is_none() {
        let tried = config.clone();
        std::thread::spawn(move || check::login::warn(&tried));
    }
    serve::serve(config, Manner::Hawser, begins, |_| ()).map_err(|error| error.to_string())
}

fn check_(Check { config, pgbouncer, server, user, strict }: &Check) -> Result<ExitCode, String> {
    let standard;
    let checked = match (server, pgbouncer, config) {
        (Some(url), _, _) => Checked::Url(url),
        (None, Some(ini), _) => Checked::PgBouncer(ini),
        (None, None, Some(path)) => Checked::Own(path),
        (None, None, None) => {
            standard = standard_file("")?;
            Checked::Own(&standard)
        }
    };
    check::run(checked, user.as_deref(), *strict)
}

/// Signals the running process. Returns its control socket, and what it was before.
fn signal(arguments: &Running, kind: SignalKind) -> Result<(PathBuf, status::Status), String> {
    let found = running(arguments)?;
    let pid = found.1.pid;
    hawser_sys::process::send_signal(pid, kind.as_raw_value())
        .map_err(|error| format!("process {pid} cannot be signalled: {error}"))?;
    Ok(found)
}

/// Waits for the outcome: a reload that was refused is a failure.
fn reload_(arguments: &Running) -> Result<(), String> {
    let (socket, before) = signal(arguments, SignalKind::hangup())?;
    let Some(last) = before.last_reload else { return Ok(()) }; // an older version does not say
    let given_up = Instant::now() + RELOAD_WAIT;
    while Instant::now() < given_up {
        let status = status::ask(&socket).map_err(|error| format!("reload: {error}"))?;
        match status.last_reload {
            Some(reload) if reload.at_us != last.at_us => {
                if let Some(reason) = reload.refused {
                    let kept = "reload refused, the old configuration stays in force";
                    return Err(format!("{kept}:\n{reason}"));
                }
                if !reload.restart.is_empty() {
                    let settings = reload.restart.join(", ");
                    eprintln!("hawser: reloaded, except for what needs a restart: {settings}");
                }
                return Ok(());
            }
            _ => std::thread::sleep(RELOAD_LOOK),
        }
    }
    Err(format!("process {} has not reloaded within {RELOAD_WAIT:?}: see its log", before.pid))
}

/// The text is printed whatever was in the file; keys that PgBouncer does not have are a failure, for
/// something may have been meant by them.
fn import_(arguments: &Import) -> Result<(), String> {
    let file = &arguments.file;
    let imported = import::import_file(file).map_err(|errors| {
        let lines: Vec<_> = errors.iter().map(|error| error.in_file(file)).collect();
        lines.join("\n")
    })?;
    print(&imported.toml);
    let kept =
        imported.toml.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '[']));
    let (kept, notes) = (kept.count(), imported.notes().count());
    let notes = match notes {
        0 => "nothing was left out".to_owned(),
        1 => "1 comment says what was left out or differs".to_owned(),
        _ => format!("{notes} comments say what was left out or differs"),
    };
    eprintln!("hawser: {} became {kept} settings; {notes}", file.display());
    if imported.unknown.is_empty() { Ok(()) } else { Err(imported.unknown.join("\n")) }
}

fn configuration(
    arguments: &Serve,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Config, String> {
    let overrides = || -> Result<Overrides, String> {
        let server = arguments.server.as_deref().map(ServerUrl::parse).transpose();
        Ok(Overrides {
            listen: arguments.listen.clone(),
            server: server.map_err(|error| format!("--server: {error}"))?,
            pool_size: arguments.pool_size,
            ..Overrides::default()
        })
    };
    let load =
        |path: &Path| Config::load_with(path, &overrides()?).map_err(|errors| errors.to_string());
    if let Some(ini) = &arguments.pgbouncer {
        let overrides = Overrides { settings: environment(SETTINGS_VARIABLE), ..overrides()? };
        return Config::load_pgbouncer(ini, &overrides).map_err(|errors| errors.to_string());
    }
    if let Some(path) = &arguments.config {
        return load(path);
    }
    let from_environment = || environment(SERVER_URL_VARIABLE).filter(|url| !url.is_empty());
    if let Some(url) = arguments.server.clone().or_else(from_environment) {
        return Config::from_server_url(&url, arguments.listen.as_deref(), arguments.pool_size)
            .map_err(|errors| errors.to_string());
    }
    load(&standard_file(" or --server URL")?)
}

/// Where the configuration is looked for unless it is named. `or` is what may be given in its place.
fn standard_file(or: &str) -> Result<PathBuf, String> {
    if let Some(path) = path_of(CONFIG_VARIABLE) {
        return Ok(path);
    }
    FILES.iter().map(PathBuf::from).find(|path| path.exists()).ok_or_else(|| {
        format!(
            "there is no configuration: give -c FILE{or}, or create one of {}",
            FILES.join(", ")
        )
    })
}

fn status_(arguments: &Status) -> Result<(), String> {
    let (_, status) = running(&arguments.running)?;
    print_as(arguments.json, &status, status::Status::to_text)
}

/// Prints an answer as JSON, or for reading.
fn print_as<T: Serialize>(
    json: bool,
    answer: &T,
    text: impl Fn(&T) -> String,
) -> Result<(), String> {
    let text = match json {
        true => serde_json::to_string_pretty(answer).map_err(|error| error.to_string())? + "\n",
        false => text(answer),
    };
    print(&text);
    Ok(())
}

fn doctor_(arguments: &Doctor) -> Result<ExitCode, String> {
    let (socket, _) = running(&arguments.running)?;
    let report = doctor::Report::of(&socket, Duration::from_secs(arguments.seconds))
        .map_err(|error| format!("{}: {error}", socket.display()))?;
    print_as(arguments.json, &report, doctor::Report::to_text)?;
    Ok(ExitCode::from(u8::from(!report.findings.is_empty())))
}

fn top_(arguments: &Top) -> Result<(), String> {
    let (socket, _) = running(&arguments.running)?;
    let interval = Duration::from_secs(arguments.interval);
    top::run(&socket, interval).map_err(|error| error.to_string())
}

/// The control socket of a running process, and its first answer.
fn running(which: &Running) -> Result<(PathBuf, status::Status), String> {
    let sockets = match &which.socket {
        Some(path) => vec![path.clone()],
        None => {
            let path = which.config.clone().or_else(|| path_of(CONFIG_VARIABLE));
            let config = path.map(|path| Config::load(&path)).transpose();
            status::control_sockets(config.map_err(|errors| errors.to_string())?.as_ref())
        }
    };
    let mut failures = Vec::new();
    for socket in sockets {
        match status::ask(&socket) {
            Ok(status) => return Ok((socket, status)),
            Err(error) => failures.push((socket, error)),
        }
    }
    // Another user's process does not hide this user's own.
    let denied = |(_, error): &&(_, io::Error)| error.kind() == io::ErrorKind::PermissionDenied;
    if let Some((socket, _)) = failures.iter().find(denied) {
        return Err(format!("this user may not open the socket {}; use sudo", socket.display()));
    }
    let failures: Vec<_> =
        failures.iter().map(|(socket, error)| format!("{}: {error}", socket.display())).collect();
    Err(format!(
        "no running Hawser answers ({}). Start it (`systemctl start hawser`), or give its configuration by -c \
         or its control socket (control_socket in [admin]) by --socket",
        failures.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn serve(line: &str) -> Serve {
        match Arguments::try_parse_from(line.split(' ')).unwrap().command {
            Command::Serve(serve) => serve,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_server_may_come_from_the_environment_and_the_option_goes_first() {
        let environment = |_: &str| Some("postgres://env:secret@db:5432".to_owned());
        let found = configuration(&serve("hawser serve --pool-size 7"), environment).unwrap();
        assert_eq!(found.databases()[0].inherited.pool.pool_size, 7);
        assert_eq!(found.users()[0].name(), "env");
        let line = "hawser serve --server postgres://option:secret@db";
        let found = configuration(&serve(line), environment).unwrap();
        assert_eq!(found.users()[0].name(), "option");
    }

    #[test]
    fn options_are_put_on_top_of_a_file_and_the_environment_is_not() {
        let path = std::env::temp_dir().join(format!("hawser-cli-{}.toml", std::process::id()));
        let text =
            "[[database]]\nname = \"app\"\nservers = \"file:1\"\n[auth]\nusers_file = \"u\"\n";
        std::fs::write(&path, text).unwrap();
        let environment = |_: &str| Some("postgres://env:secret@db:5432".to_owned());
        let line = format!("hawser serve -c {} --pool-size 7", path.display());
        let found = configuration(&serve(&line), environment).unwrap();
        assert_eq!(found.databases()[0].servers[0].to_string(), "file:1");
        assert_eq!(found.databases()[0].inherited.pool.pool_size, 7);
        let found = configuration(&serve(&format!("{line} --server postgres://u@h:2")), |_| None);
        assert_eq!(found.unwrap().databases()[0].servers[0].to_string(), "h:2");
        std::fs::remove_file(&path).unwrap();
        assert!(Arguments::try_parse_from(["hawser", "frob"]).is_err());
    }

    #[test]
    fn no_error_repeats_the_password_of_a_url() {
        let line = "hawser serve --server postgres://u:s3cret@db:notaport";
        let error = configuration(&serve(line), |_| None).unwrap_err();
        assert!(!error.contains("s3cret"), "{error}");
    }
}
