//! `hawser wan check`: whether the link works, and if not, why.
//!
//! # Model
//! ```text
//!   an end runs here     its socket answers
//!   the other end        at the near end a path is up; at the far end a near end is here
//!   the target           at the near end: PostgreSQL answers an SSLRequest over the link (S or N)
//! ```

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use hawser_link::drive::report::{self, Report, SessionReport};
use hawser_pooler::wire::startup::write_ssl_request;
use hawser_sys::terminal::without_control;

use super::half::check_name;
use crate::cli::print;

/// What is new gets so long to greet, and a target to answer: ten round trips of a long line.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EACH: Duration = Duration::from_millis(200);

/// `hawser wan check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The link's name.
    #[arg(long, default_value = "wan")]
    name: String,
    /// Its socket [default: that of the service hawser-link@NAME].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Where programs connect here [default: as the service's file has it].
    #[arg(long, value_name = "ADDR", value_parser = crate::link::command::address)]
    listen: Option<SocketAddr>,
}

/// Checks; what is wrong is on standard error, the first of it alone: what follows comes of it.
#[must_use]
pub fn run(arguments: &Check) -> ExitCode {
    match check(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("PROBLEM  {message}");
            ExitCode::FAILURE
        }
    }
}

fn check(arguments: &Check) -> Result<(), String> {
    let Check { name, socket, listen } = arguments;
    check_name(name)?;
    let socket = socket.clone().unwrap_or_else(|| format!("/run/hawser-link-{name}/socket").into());
    let report = with_session(&socket, name)?;
    let conf = PathBuf::from(format!("/etc/hawser/link-{name}.conf"));
    let listen = match listen {
        None if report.name == "accept" => None,
        None => listen_in(&fs::read_to_string(conf).unwrap_or_default()),
        given => *given,
    };
    let Some(session) = report.sessions.iter().max_by_key(|session| session.up) else {
        return Err(format!(
            "no near end has connected to the link {name} yet: on the other host, `hawser wan check` says \
             why. TCP must get through to this host's port"
        ));
    };
    if !session.up {
        return Err(why_down(session, name));
    }
    for path in session.paths.iter().filter(|path| path.stage == "up") {
        let (_, peer) = path.addresses.unzip();
        let peer = peer.map_or_else(String::new, |peer| format!(" with {peer}"));
        print(&format!(
            "ok       path {}{peer}: {:.1} ms, {}\n",
            path.path,
            f64::from(path.rtt_us) / 1e3,
            path.congestion
        ));
    }
    if let Some(listen) = listen {
        print(&format!("ok       {}\n", target_answers(listen, name)?));
    }
    Ok(())
}

/// The report of a running end, once a session is there and up, or after a while as it is.
fn with_session(socket: &Path, name: &str) -> Result<Report, String> {
    let begun = Instant::now();
    loop {
        let report = report::ask(socket).map_err(|error| {
            let root = match error.kind() {
                ErrorKind::PermissionDenied => ": run this as root".to_owned(),
                _ => format!(
                    ": `systemctl status hawser-link@{name}` and `journalctl -u hawser-link@{name}` say why"
                ),
            };
            format!("no link answers at {} ({error}){root}", socket.display())
        })?;
        let is_up = report.sessions.iter().any(|session| session.up);
        if is_up || begun.elapsed() >= PATIENCE {
            return Ok(report);
        }
        std::thread::sleep(LOOK_EACH);
    }
}

fn why_down(session: &SessionReport, name: &str) -> String {
    let last = session.past.first().map_or_else(
        || "no dial has ended yet, so nothing answers: a firewall that drops, or a host that is off".to_owned(),
        |past| without_control(&past.end),
    );
    format!(
        "no path of the link {name} is up: {last}. `journalctl -u hawser-link@{name}` at both ends names \
         addresses and keys; `hawser wan accept` must have run on the other host, and TCP must get \
         through to its port"
    )
}

/// The address after `--listen` in the arguments of a service.
fn listen_in(conf: &str) -> Option<SocketAddr> {
    let mut words = conf.split_whitespace().skip_while(|word| *word != "--listen");
    words.nth(1)?.parse().ok()
}

/// Asks what is at the other end of the link, as a client of PostgreSQL begins.
fn target_answers(listen: SocketAddr, name: &str) -> Result<String, String> {
    let (begun, mut request) = (Instant::now(), Vec::new());
    write_ssl_request(&mut request);
    let asked = TcpStream::connect_timeout(&listen, PATIENCE).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&request)?;
        let mut answer = [0];
        stream.read_exact(&mut answer).map(|()| answer[0])
    });
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    match asked {
        Ok(b'S' | b'N') => Ok(format!("PostgreSQL answers at {listen}, after {ms:.0} ms")),
        Ok(_) => {
            Ok(format!("a program answers at {listen}, after {ms:.0} ms; it is no PostgreSQL"))
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(format!(
                "the target of the link {name} takes connections and says nothing for {} s: is \
                 PostgreSQL there?",
                PATIENCE.as_secs()
            ))
        }
        Err(error) => Err(format!(
            "a connection to {listen} was ended at once ({error}): the far end does not reach its target, \
             or does not allow it. `journalctl -u hawser-link@{name}` on the other host says which"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_programs_is_the_one_that_the_service_has() {
        let conf = "ARGUMENTS=dial --far db:6433 --listen 127.0.0.1:5433 --to 127.0.0.1:5432\n";
        assert_eq!(listen_in(conf), Some(([127, 0, 0, 1], 5433).into()));
        assert_eq!(listen_in("ARGUMENTS=dial --far db"), None);
    }
}
