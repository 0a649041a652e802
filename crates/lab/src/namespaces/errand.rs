//! A command inside a host of a laboratory.
//!
//! # Model
//! The command runs in the host's network namespace and is otherwise where it was started: files,
//! terminal, user. Its environment says where it is ([`environment`]). It does not outlive this
//! process, nor the laboratory: when that ends, all that runs in its namespaces is ended.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hawser_sys::namespace;
use hawser_sys::process::exit_code;

use super::control::{self, About, Client, ControlError};
use super::report::Snapshot;

/// How a command ended, and what the network did meanwhile.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code, or 128 and the number of the signal that ended it, as shells have it.
    pub code: u8,
    /// From its start to its end.
    pub report: Snapshot,
}

/// Why a command did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum ErrandError {
    /// There is no such laboratory, or it ended meanwhile.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// It has no such host.
    #[error("no host `{asked}`: the hosts are {}", .known.join(", "))]
    Host {
        /// Which was asked for.
        asked: String,
        /// Which there are.
        known: Vec<String>,
    },
    /// The command could not be started.
    #[error("{}: {source}", .command.display())]
    Start {
        /// Its name.
        command: OsString,
        /// Why.
        source: io::Error,
    },
    /// Its namespaces could not be reached.
    #[error("entering the laboratory: {0}")]
    Enter(#[source] io::Error),
}

/// What a command finds in its environment: `HAWSER_LAB` (the laboratory's name), `HAWSER_LAB_HOST`
/// (where it runs), `HAWSER_LAB_NEAR` and `HAWSER_LAB_FAR` (the first IPv4 address of the first and
/// of the last host), and for each host `HAWSER_LAB_ADDRESSES_NAME`: all of its addresses, with
/// spaces between; in NAME letters are upper case and hyphens underscores.
#[must_use]
pub fn environment(about: &About, host: usize) -> Vec<(String, String)> {
    let first = |index: usize| about.hosts[index].addresses[0].to_string();
    let mut variables = vec![
        ("HAWSER_LAB".to_owned(), about.name.clone()),
        ("HAWSER_LAB_HOST".to_owned(), about.hosts[host].name.clone()),
        ("HAWSER_LAB_NEAR".to_owned(), first(0)),
        ("HAWSER_LAB_FAR".to_owned(), first(about.hosts.len() - 1)),
    ];
    for host in &about.hosts {
        let name = host.name.to_ascii_uppercase().replace('-', "_");
        let addresses: Vec<String> = host.addresses.iter().map(ToString::to_string).collect();
        variables.push((format!("HAWSER_LAB_ADDRESSES_{name}"), addresses.join(" ")));
    }
    variables
}

/// Runs a command inside a laboratory, on the near host if no other is named. From here on this
/// process does not end by the terminal's interrupt key: the command decides.
///
/// # Errors
/// The laboratory, the host or the command is missing, or the laboratory ended before the command.
///
/// # Panics
/// Where `command` is empty.
pub fn run(name: &str, on: Option<&str>, command: &[OsString]) -> Result<Ended, ErrandError> {
    let mut client = Client::connect(name)?;
    let watch = Client::connect(name)?;
    let about = client.about()?;
    let host = match on {
        None => 0,
        Some(asked) => about.hosts.iter().position(|h| h.name == asked).ok_or_else(|| {
            let known = about.hosts.iter().map(|host| host.name.clone()).collect();
            ErrandError::Host { asked: asked.to_owned(), known }
        })?,
    };
    let open = |path: String| fs::File::open(path).map(OwnedFd::from).map_err(ErrandError::Enter);
    let network = open(format!("/proc/{}/fd/{}", about.pid, about.hosts[host].descriptor))?;
    let user = match about.in_user_namespace {
        true => Some(open(format!("/proc/{}/ns/user", about.pid))?),
        false => None,
    };
    let mut child = Command::new(&command[0]);
    child.args(&command[1..]).envs(environment(&about, host));
    namespace::run_within(&mut child, user, network);
    namespace::ignore_interrupts();
    let before = client.report()?;
    let start = |source| ErrandError::Start { command: command[0].clone(), source };
    let mut child = child.spawn().map_err(start)?;

    // The laboratory's end is the end of everything inside, this command first of all.
    let is_over = Arc::new(AtomicBool::new(false));
    let inodes: Vec<u64> = about.hosts.iter().map(|host| host.inode).collect();
    let watcher = {
        let (is_over, inodes) = (Arc::clone(&is_over), inodes.clone());
        move || {
            watch.wait_for_its_end();
            if !is_over.load(Ordering::Acquire) {
                control::end_inhabitants(&inodes, Duration::ZERO);
            }
        }
    };
    std::thread::Builder::new().name("watch".into()).spawn(watcher).map_err(start)?;

    let status = child.wait().map_err(start)?;
    is_over.store(true, Ordering::Release);
    let after = client.report().inspect_err(|_| {
        // It ended first, and this process is about to: what is inside must not outlive both.
        control::end_inhabitants(&inodes, Duration::ZERO);
    })?;
    Ok(Ended { code: exit_code(status), report: after.since(&before) })
}
