//! The path manager within `hawser serve`: a process of its own, for as long as it is wanted.
//!
//! # Model
//! ```text
//!   Off ── wanted ──► Starts ──► Manages(pid) ── it ends ──► Missing(why) ── 15 s ──► Starts
//!    ▲                                │
//!    └── not wanted: its standard input is closed; it puts the kernel's settings back, and ends
//! ```
//! # Invariants
//! * it ends with this process, however that ends: the kernel closes its standard input then
//! * why it is missing is logged once, and is a fallback as long as it lasts
//!
//! # Why not in this process
//! `serve` gives its rights up when it becomes another user, and opening subflows needs CAP_NET_ADMIN;
//! walking all sockets of the namespace ten times a second is nothing for a thread that serves.
//!
//! # Limits
//! What is turned on by a reload is started with the rights that are left.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two attempts to start it.
const AGAIN: Duration = Duration::from_secs(15);
/// How long its end is waited for.
const END_MAX: Duration = Duration::from_secs(3);

/// What became of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Standing {
    /// It is not wanted.
    #[default]
    Off,
    /// It was started.
    Starts,
    /// It manages.
    Manages {
        /// Its process.
        pid: u32,
    },
    /// It is wanted, and not there.
    Missing {
        /// Why.
        why: String,
    },
}

impl Standing {
    /// For `status` and SHOW STATE; nothing where it is not wanted.
    #[must_use]
    pub fn in_words(&self) -> Option<String> {
        Some(match self {
            Self::Off => return None,
            Self::Starts => "starting".to_owned(),
            Self::Manages { pid } => format!("process {pid}"),
            Self::Missing { .. } => "not running".to_owned(),
        })
    }
}

#[derive(Debug, Default)]
struct Inner {
    wanted: bool,
    standing: Standing,
    /// What it holds on to.
    input: Option<ChildStdin>,
    /// Whether a thread keeps it.
    kept: bool,
}

/// Keeps it, or keeps it away.
#[derive(Clone, Debug, Default)]
pub struct Keeper(Arc<(Mutex<Inner>, Condvar)>);

impl Keeper {
    /// Whether it is wanted, from now on. What is started is started by the calling thread.
    pub fn want(&self, wanted: bool) {
        let mut inner = self.lock();
        if inner.wanted == wanted {
            return;
        }
        inner.wanted = wanted;
        if !wanted {
            drop(inner.input.take());
        } else if !inner.kept {
            inner.kept = true;
            let child = start(&mut inner);
            let keeper = self.clone();
            let work = move || keeper.keep(child);
            // Without a thread nothing reads what it says: it is not kept.
            if std::thread::Builder::new().name("mptcp".to_owned()).spawn(work).is_err() {
                drop(inner.input.take());
                inner.kept = false;
                inner.standing = Standing::Missing { why: "no thread could be started".to_owned() };
            }
        }
        drop(inner);
        self.0.1.notify_all();
    }

    /// Ends it, and waits until it has put the kernel's settings back.
    pub fn end(&self) {
        self.want(false);
        let until = Instant::now() + END_MAX;
        let mut inner = self.lock();
        while inner.kept && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            inner = match self.0.1.wait_timeout(inner, left) {
                Ok((inner, _)) => inner,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// What became of it.
    pub fn standing(&self) -> Standing {
        self.lock().standing.clone()
    }

    /// Why it is not there although it is wanted.
    pub fn fallback(&self) -> Option<String> {
        match self.standing() {
            Standing::Missing { why } => Some(format!(
                "mptcp_manage: {why}; connections keep the subflows that the kernel gives them"
            )),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As long as it is wanted.
    fn keep(&self, first: Result<Child, String>) {
        let mut next = Some(first);
        let mut said = None;
        loop {
            let why = match next.take() {
                Some(Ok(child)) => self.hear(child),
                Some(Err(why)) => why,
                None => {
                    let mut inner = self.lock();
                    next = Some(start(&mut inner));
                    continue;
                }
            };
            let mut inner = self.lock();
            if inner.input.take().is_none() && inner.wanted {
                // It was to end, and is wanted again.
                next = Some(start(&mut inner));
                continue;
            }
            if inner.wanted && said.as_ref() != Some(&why) {
                tracing::error!("the MPTCP path manager (mptcp_manage) does not run: {why}");
                said = Some(why.clone());
            }
            let until = Instant::now() + AGAIN;
            while inner.wanted && Instant::now() < until {
                inner.standing = Standing::Missing { why: why.clone() };
                let left = until.saturating_duration_since(Instant::now());
                inner = match self.0.1.wait_timeout(inner, left) {
                    Ok((inner, _)) => inner,
                    Err(poisoned) => poisoned.into_inner().0,
                };
            }
            if !inner.wanted {
                inner.kept = false;
                inner.standing = Standing::Off;
                drop(inner);
                self.0.1.notify_all();
                return;
            }
        }
    }

    /// Passes on what it says, until it ends; why it did.
    fn hear(&self, mut child: Child) -> String {
        let pid = child.id();
        if let Some(said) = child.stdout.take() {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                if self.lock().standing == Standing::Starts {
                    self.lock().standing = Standing::Manages { pid };
                }
                tracing::info!("MPTCP path manager: {line}");
            }
        }
        let mut error = String::new();
        if let Some(mut said) = child.stderr.take() {
            // What could not be read is left out.
            let _ = said.read_to_string(&mut error);
        }
        let error = error.trim().trim_start_matches("hawser: ").replace('\n', "; ");
        match child.wait() {
            _ if !error.is_empty() => error,
            Ok(status) => format!("its process has ended ({status})"),
            Err(error) => error.to_string(),
        }
    }
}

fn start(inner: &mut Inner) -> Result<Child, String> {
    inner.standing = Standing::Starts;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = hawser_sys::process::command(program);
    command.args(["mptcp", "manage", "--attached"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // What a terminal sends to this process is not for it.
    command.process_group(0);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    inner.input = child.stdin.take();
    Ok(child)
}
