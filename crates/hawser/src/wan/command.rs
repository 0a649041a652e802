//! The command line of `hawser wan`.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command as Program, ExitCode};
use std::time::Duration;

use clap::{Args, Subcommand};
use hawser_congestion::cc::apply::{self, Root, System};
use hawser_congestion::cc::look::{Look, look};
use hawser_congestion::cc::report;
use hawser_congestion::cc::wire::Token;
use hawser_link::drive::keys::PublicKey;
use hawser_link::drive::resolving::{split, with_port};
use hawser_sys::process::{Account, account_by_name};
use hawser_sys::unit::is_machines_network;

use super::half::{
    FarHalf, Half, Host, Role, buffer_bytes, check_host, check_name, congestion, new_key,
};
use super::line::{Line, measured, round_trip};
use super::written::{File, below, refuse_existing, write_all};
use super::{check, written};
use crate::cc::command::{TOKEN_VARIABLE, rate, span};
use crate::cli::print;
use crate::config::{Config, LINK_PORT_DEFAULT};
use crate::link::command::{address, target};

/// It is there where systemd runs (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";
/// The user of packages' `hawser serve`.
const SERVICE_USER: &str = "hawser";

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed (why is on standard error), 2 wrong usage.";

/// `hawser wan`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct Wan {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// On the replica's or application's host: measure the line to HOST, set up this end of a link, and
    /// write a file with the other end.
    Setup(Setup),
    /// On the primary's host: set up the other end from that file.
    Accept(Accept),
    /// Check whether the link works, and if not, why.
    Check(check::Check),
}

#[derive(Debug, Args)]
struct Setup {
    /// The primary's host, or host:port: where this end connects (port 6433).
    #[arg(value_name = "HOST")]
    host: String,
    /// The rate of the line, as in 95Mbit/s. Without, `hawser cc serve` has to run on HOST, its token in
    /// HAWSER_CC_TOKEN: then the line is measured.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<u64>,
    /// Its round trip, as in 217ms [default: measured].
    #[arg(long, value_name = "TIME", value_parser = span, requires = "rate")]
    rtt: Option<Duration>,
    /// What programs here are to reach: host:port, as HOST sees it.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:5432", value_parser = target)]
    to: String,
    /// Where programs connect here: address:port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:5433", value_parser = address)]
    listen: SocketAddr,
    #[command(flatten)]
    end: End,
    /// The link's name: of its files, and of its service hawser-link@NAME.
    #[arg(long, default_value = "wan", value_parser = name)]
    name: String,
}

#[derive(Debug, Args)]
struct Accept {
    /// The file of `hawser wan setup`.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where the near end connects [default: all IPv4 addresses, the port of FILE].
    #[arg(long, value_name = "ADDR", value_parser = address)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    end: End,
}

/// What both ends may be asked for.
#[derive(Debug, Args)]
struct End {
    /// Have `hawser serve` with this configuration run this end: adds a section to it, and no service.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only print what would be written.
    #[arg(long)]
    dry_run: bool,
    /// Write below this directory, and start nothing: for tests, and images.
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

fn name(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_owned())
}

impl Wan {
    /// Runs it.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let result = match &self.command {
            Command::Setup(arguments) => setup(arguments),
            Command::Accept(arguments) => accept(arguments),
            Command::Check(arguments) => return check::run(arguments),
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("hawser wan: {message}");
                ExitCode::FAILURE
            }
        }
    }
}

impl End {
    fn host(&self) -> Host {
        self.config.clone().map_or(Host::Service, Host::Serve)
    }

    fn root(&self) -> &Path {
        self.root.as_deref().unwrap_or(Path::new("/"))
    }

    /// Writes files, raises buffers, starts the service; or says what would be done.
    fn put(
        &self,
        half: &Half,
        more: Option<File>,
        line: report::Path,
        look: &Look,
    ) -> Result<(), String> {
        let host = self.host();
        let program = std::env::current_exe().map_err(|error| format!("its own path: {error}"))?;
        let mut files: Vec<File> = more.into_iter().collect();
        files.extend(half.files(self.root(), &host, &program)?);
        refuse_existing(&files)?;
        if !self.dry_run {
            // Before anything is written: what cannot be run then need not be there.
            is_free(half, &host)?;
            write_all(&files, self.owner(&host)?.as_ref())?;
        }
        for file in &files {
            match (self.dry_run, file.adds) {
                (true, _) => print(&format!("would write {}", file.to_text())),
                (false, true) => print(&format!("added to   {}\n", file.path.display())),
                (false, false) => print(&format!("wrote      {}\n", file.path.display())),
            }
        }
        if let Host::Serve(config) = &host
            && !self.dry_run
            && let Err(errors) = Config::load(config)
        {
            written::take_back(&files);
            return Err(format!(
                "\"{}\" is as it was, because with the section of this link it is refused:\n{errors}",
                config.display()
            ));
        }
        self.raise_buffers(look, line);
        match host {
            Host::Service => self.start(half),
            Host::Serve(config) => {
                print(&format!("next       hawser reload -c {}\n", config.display()));
                Ok(())
            }
        }
    }

    /// Whose the files are: the service's, where it is there.
    fn owner(&self, host: &Host) -> Result<Option<Account>, String> {
        let root = hawser_sys::process::is_superuser();
        match host {
            Host::Serve(_) if root && self.root.is_none() => account_by_name(SERVICE_USER)
                .map_err(|error| format!("the user \"{SERVICE_USER}\": {error}")),
            _ => Ok(None),
        }
    }

    fn raise_buffers(&self, look: &Look, line: report::Path) {
        let Some(bytes) = buffer_bytes(look, line).filter(|_| self.root.is_none()) else { return };
        let persist = is_machines_network();
        let wanted = System { algorithm: None, buffer_bytes: Some(bytes), persist };
        match apply::system(&wanted, &Root::default(), self.dry_run) {
            Ok(lines) => {
                let what = if self.dry_run { "would set " } else { "set       " };
                lines.iter().for_each(|line| print(&format!("{what} {line}\n")));
            }
            // The link works without, only slower.
            Err(error) => eprintln!(
                "hawser wan: buffers stay as they are, and may limit a connection; this machine's \
                 administrator can set net.ipv4.tcp_rmem and tcp_wmem to {bytes}: {error}"
            ),
        }
    }

    fn start(&self, half: &Half) -> Result<(), String> {
        let Half { name, .. } = half;
        let unit = format!("hawser-link@{name}");
        let steps: [&[&str]; 2] = [&["daemon-reload"], &["enable", "--now", &unit]];
        if self.dry_run || self.root.is_some() {
            let shown = steps.map(|step| format!("systemctl {}", step.join(" "))).join("; ");
            print(&format!("would run  {shown}\n"));
            return Ok(());
        }
        if !Path::new(SYSTEMD).exists() {
            let run = format!("/run/hawser-link-{name}");
            print(&format!(
                "start it   mkdir -p {run}; hawser link {} --socket {run}/socket\n           (systemd does \
                 not run here: have it started with the machine)\n",
                half.arguments()
            ));
            return Ok(());
        }
        for step in steps {
            let done = Program::new("systemctl").args(step).status();
            if !done.as_ref().is_ok_and(std::process::ExitStatus::success) {
                return Err(format!(
                    "the files are written, and {unit} does not run: `systemctl {}` failed. `journalctl -u \
                     {unit}` says why",
                    step.join(" ")
                ));
            }
        }
        print(&format!("started    {unit}\n"));
        Ok(())
    }
}

/// Refuses an address at which this end would listen and another program does.
fn is_free(half: &Half, host: &Host) -> Result<(), String> {
    let (Role::Near { listen, .. } | Role::Far { listen, .. }) = &half.role;
    if matches!((&half.role, host), (Role::Near { .. }, Host::Serve(_))) {
        return Ok(()); // programs connect to the pooler
    }
    TcpListener::bind(listen).map(drop).map_err(|error| {
        let other = match half.role {
            Role::Near { .. } => "give another address by --listen",
            Role::Far { .. } => {
                "another link may have it (`ss -tlnp`): run `hawser wan setup HOST:PORT` on the other \
                 host again, with another port and --name"
            }
        };
        format!("{listen} cannot be listened at, and nothing was written: {error}; {other}")
    })
}

fn setup(arguments: &Setup) -> Result<(), String> {
    let Setup { host, to, listen, name, end, .. } = arguments;
    let far = with_port(host, LINK_PORT_DEFAULT);
    let far = far.ok_or_else(|| format!("\"{host}\" is neither a host nor host:port"))?;
    check_host(&far)?;
    check_host(to)?;
    let Some((host, port)) = split(&far) else { return Err(format!("\"{far}\" has no port")) };
    let line = line(arguments, host, port)?;
    print(&format!("line       {}\n", line.to_text()));
    let look = look();
    let (near_key, near_public) = new_key()?;
    let (far_key, far_public) = new_key()?;
    let half = Half {
        name: name.clone(),
        role: Role::Near { far: far.clone(), listen: *listen, target: to.clone() },
        key: near_key,
        peer: far_public,
        congestion: congestion(&look, &end.host()),
    };
    let far_half = FarHalf {
        name: name.clone(),
        port,
        target: to.clone(),
        peer: near_public.to_string(),
        bits_per_second: line.path.bits_per_second,
        rtt_us: line.path.rtt_us,
        key: far_key,
    };
    let path = below(end.root(), &format!("/etc/hawser/link-{name}.far"));
    end.put(&half, Some(File::secret(&path, far_half.to_text())), line.path, &look)?;
    if end.dry_run {
        return Ok(());
    }
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    print(&format!(
        "next       scp {} root@{host}:\n           and on {host}, as root: hawser wan accept {file}\n\
         then       hawser wan check{}\n",
        path.display(),
        if name == "wan" { String::new() } else { format!(" --name {name}") }
    ));
    Ok(())
}

/// The line to the host: measured, or as it was given.
fn line(arguments: &Setup, host: &str, port: u16) -> Result<Line, String> {
    let token = std::env::var(TOKEN_VARIABLE).ok();
    let Some(bits_per_second) = arguments.rate else {
        let Some(token) = token else {
            return Err(format!(
                "the line's rate is not known: give what you pay for, as in --rate 95Mbit/s; or run `hawser \
                 cc serve` on {host}, and give its token in {TOKEN_VARIABLE}: then the line is measured"
            ));
        };
        let token = Token::new(&token)
            .ok_or_else(|| format!("{TOKEN_VARIABLE}: a token has at least 16 characters"))?;
        return measured(host, token);
    };
    let (rtt, known) = match arguments.rtt {
        Some(rtt) => (rtt, "as given"),
        None => (round_trip(host, port)?, "the rate as given, the round trip measured"),
    };
    let rtt_us = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX).max(1);
    Ok(Line { path: report::Path { bits_per_second, rtt_us }, known: known.to_owned() })
}

fn accept(arguments: &Accept) -> Result<(), String> {
    let Accept { file, listen, end } = arguments;
    let given = FarHalf::load(file)?;
    let wrong = |error| format!("\"{}\": {error}", file.display());
    let look = look();
    let half = Half {
        name: given.name.clone(),
        role: Role::Far {
            listen: listen.unwrap_or_else(|| ([0, 0, 0, 0], given.port).into()),
            target: given.target.clone(),
        },
        key: given.key.clone(),
        peer: PublicKey::parse(&given.peer).map_err(wrong)?,
        congestion: congestion(&look, &end.host()),
    };
    hawser_link::drive::keys::Key::of_pem(given.key.as_bytes()).map_err(wrong)?;
    let line = report::Path { bits_per_second: given.bits_per_second, rtt_us: given.rtt_us };
    print(&format!("allows     {} to the near end, and nothing else\n", given.target));
    end.put(&half, None, line, &look)?;
    if end.dry_run {
        return Ok(());
    }
    print(&format!(
        "next       rm {}, which has this end's key; open TCP port {} to the near end;\n           on the \
         other host: hawser wan check\n",
        file.display(),
        given.port
    ));
    Ok(())
}
