//! The kernel's path manager is userspace while one runs here, and what it was when none does.
//!
//! So is `net.ipv4.tcp_notsent_lowat`: what a sender has given to one subflow it cannot take back, and
//! without a bound that is megabytes, for which the whole waits when the subflow becomes slow.
//! It is 128 KiB while a manager runs, where it was the kernel's default (no bound).
//!
//! # Model
//! ```text
//!   manager: lock · setting · watchdog (a process of its own, deaf to signals)
//!     ends ──► puts the setting back             killed ──► the watchdog takes the lock, and does it
//! ```
//! # Invariants
//! * one manager in a network namespace: the lock is its, and a watchdog that finds it taken does
//!   nothing
//! * the lock's file is removed by who holds it, after the setting is put back
//! * a setting that another program has changed meanwhile is left, and so is a bound that this
//!   manager did not set, even an equal one

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Stdio;

use hawser_sys::mptcp::event;
use hawser_sys::mptcp::kernel;
use hawser_sys::process::{descriptor_of_process, wait_for, withdraw};

use crate::mptcp::{others, record};

/// Where the bound is, what the kernel has (tcp(7): no bound), and what a manager sets.
const UNSENT: &str = "/proc/sys/net/ipv4/tcp_notsent_lowat";
const UNSENT_DEFAULT: &str = "4294967295";
const UNSENT_MANAGED: &str = "131072";
const USERSPACE: &str = "userspace";
const KERNEL: &str = "kernel";

/// The setting, for as long as this lives.
#[derive(Debug)]
pub struct Guard {
    before: Before,
    _lock: Lock,
}

/// What is put back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Before {
    /// The path manager.
    pub path_manager: String,
    /// Whether [`UNSENT`] was the kernel's default, which this manager replaces.
    pub unsent: bool,
}

/// The lock. Its file goes with it, while it is held.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // What cannot be removed is locked again by the next manager.
        let _ = fs::remove_file(&self.path);
    }
}

/// Why it is not ours.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// Another `hawser` manages here.
    #[error(
        "another `hawser mptcp manage` (or `hawser serve`) manages in this network namespace: \
             it has {0}"
    )]
    Taken(PathBuf),
    /// Another program does.
    #[error(
        "the path manager is in userspace already, and {0} listens to its events: one \
             program can manage; end that one first"
    )]
    Other(String),
    /// Another program would, once the path manager is in userspace.
    #[error(
        "{0} runs here, and would open and close the subflows of the same connections once \
             the path manager is in userspace: one program can manage; end that one first"
    )]
    Rival(&'static str),
    /// It cannot be read or written.
    #[error(
        "{step}: {source}{}",
        if .source.kind() == io::ErrorKind::PermissionDenied { ". It needs root" } else { "" }
    )]
    File {
        /// What was to be done.
        step: String,
        /// Why.
        source: io::Error,
    },
}

fn file(step: impl Into<String>) -> impl FnOnce(io::Error) -> GuardError {
    let step = step.into();
    move |source| GuardError::File { step, source }
}

impl Guard {
    /// Takes the lock, starts the watchdog, and changes the setting.
    ///
    /// # Errors
    /// See [`GuardError`]; then nothing has been changed.
    pub fn set() -> Result<Self, GuardError> {
        let path = record::lock_path().map_err(file("finding this network namespace"))?;
        fs::create_dir_all(record::DIRECTORY)
            .map_err(file(format!("making {}", record::DIRECTORY)))?;
        let lock = record::lock(&path).map_err(file(format!("locking {}", path.display())))?;
        let lock = lock.ok_or_else(|| GuardError::Taken(path.clone()))?;
        let lock = Lock { path, _file: lock };
        let found = setting();
        let is_userspace = found.as_deref() == Some(USERSPACE);
        if is_userspace && event::listeners() > Some(1) {
            return Err(GuardError::Other(others::who()));
        }
        if let Some(rival) = others::rival() {
            return Err(GuardError::Rival(rival));
        }
        // Userspace without a manager: left by a manager that was killed with its watchdog.
        let path_manager = found.filter(|_| !is_userspace).unwrap_or_else(|| KERNEL.to_owned());
        let unsent = fs::read_to_string(UNSENT).is_ok_and(|text| text.trim() == UNSENT_DEFAULT);
        let before = Before { path_manager, unsent };
        start_watchdog(&before).map_err(file("starting the watchdog"))?;
        put(USERSPACE).map_err(file("setting net.mptcp.path_manager = userspace"))?;
        // Without it all works, with longer waits.
        if before.unsent {
            let _ = change(UNSENT, UNSENT_DEFAULT, UNSENT_MANAGED);
        }
        Ok(Self { before, _lock: lock })
    }

    /// What it was.
    pub fn before(&self) -> &str {
        &self.before.path_manager
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        put_back(&self.before);
    }
}

fn setting() -> Option<String> {
    kernel::sysctls().path_manager
}

/// `path_manager` where the kernel has it (6.16), `pm_type` before.
fn put(value: &str) -> io::Result<()> {
    match kernel::set_sysctl("path_manager", value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            kernel::set_sysctl("pm_type", if value == USERSPACE { "1" } else { "0" })
        }
        other => other,
    }
}

/// Sets a file that holds `from` to `to`.
fn change(path: &str, from: &str, to: &str) -> io::Result<()> {
    if fs::read_to_string(path)?.trim() == from { fs::write(path, to) } else { Ok(()) }
}

fn put_back(before: &Before) {
    if before.unsent {
        let _ = change(UNSENT, UNSENT_MANAGED, UNSENT_DEFAULT);
    }
    if setting().as_deref() == Some(USERSPACE) {
        // No one is left to notify; `status` reports userspace without a manager.
        let _ = put(&before.path_manager);
    }
}

/// Starts the process that puts the setting back when this one ends in whatever way.
fn start_watchdog(before: &Before) -> io::Result<()> {
    // It outlives this process, which does not wait for it.
    let pid = std::process::id().to_string();
    let mut words = vec!["mptcp", "watchdog", &pid, &before.path_manager];
    words.extend(before.unsent.then_some("--unsent"));
    let mut command = hawser_sys::process::command(std::env::current_exe()?);
    command.args(words).stdin(Stdio::null()).spawn().map(drop)
}

/// Waits until the manager `pid` has ended, and puts the setting back to `before`, unless another
/// manager is there by then.
///
/// # Errors
/// As pidfd_open(2), poll(2), open(2) and flock(2).
pub fn watchdog(pid: u32, before: &Before) -> io::Result<()> {
    withdraw()?;
    // An error: it has ended already.
    if let Ok(manager) = descriptor_of_process(pid) {
        wait_for(&[manager.as_fd()])?;
    }
    let path = record::lock_path()?;
    if !path.exists() {
        // The manager has ended by itself.
        return Ok(());
    }
    if let Some(file) = record::lock(&path)? {
        let _lock = Lock { path, _file: file };
        put_back(before);
    }
    Ok(())
}
