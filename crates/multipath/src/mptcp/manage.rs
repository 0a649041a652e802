//! `hawser mptcp manage`: the path manager of a network namespace.
//!
//! # Model
//! ```text
//!   sock_diag: connections, subflows ──► crate::paths::Chooser of each ──► mptcp_pm: dial, pause, end
//!   mptcp_pm_events: addresses of peers ──┘          10 times a second while anything is sent
//! ```
//! * [`announced`]: addresses that peers have announced, and taken back
//! * [`connection`]: one connection: its addresses, its looks, its actions
//! * [`guard`]: the kernel's setting while this runs, put back whatever ends it
//!
//! # Invariants
//! * nothing is remembered that sock_diag does not say, but for announced addresses: a manager that
//!   is started again goes on with the connections that there are
//! * a connection is never closed; of its subflows, never the last
//!
//! # Limits
//! Linux 6.5, for the bytes of whole connections, is advised; 5.19 is needed. Connections that began
//! under the kernel's own path manager keep it. Each look walks every TCP socket of the namespace.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hawser_sys::mptcp::Token;
use hawser_sys::mptcp::diagnosis::{self, Dump, Subflow, TcpState};
use hawser_sys::mptcp::event::{Event, Events, Kind};
use hawser_sys::mptcp::kernel::{self, Version};
use hawser_sys::mptcp::socket::{self, Unsupported};
use hawser_sys::mptcp::subflow::Manager;
use hawser_sys::netlink::NetlinkError;
use hawser_sys::precision::{Priority, come_before_ordinary};
use hawser_sys::process::{
    catch_signals, descriptor_of_process, next_signal, set_thread_nice, wait_at_most,
};
use hawser_time::Time;

use super::{others, programs};
use crate::paths::action::{Role, State};
use announced::Announced;
use connection::{Managed, Refused};
use guard::{Guard, GuardError};

pub mod announced;
pub mod connection;
pub mod guard;

/// Between two looks while anything is sent.
const LOOK_APART: Duration = Duration::from_millis(100);
/// Between two looks while nothing is.
const LOOK_APART_IDLE: Duration = Duration::from_millis(500);
/// The manager's priority where it cannot have a real-time one (nice). It needs a few parts in a
/// thousand of a processor, but at its time: a late look makes a measurement of half a second one of
/// several, and finds a cut late.
const NICE: i32 = -15;
/// A look that took longer than this says nothing: its first figures are older than its last.
const LOOK_TAKES_MAX: Duration = Duration::from_millis(30);
/// So often it is taken again.
const LOOKS_AGAIN: u32 = 3;
/// Connections that are managed at a time; those beyond keep what they have.
pub const CONNECTIONS_MAX: usize = 1_000;
/// SIGHUP, SIGINT, SIGTERM.
const ENDED_BY: [i32; 3] = [1, 2, 15];

/// How.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where each look goes, as JSON, one a line.
    pub trace: Option<PathBuf>,
    /// The process with which it ends.
    pub with: Option<u32>,
    /// Whether it ends when standard input is closed, and not by signals.
    pub attached: bool,
}

/// Why nothing is managed.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// There is no MPTCP.
    #[error("{0}")]
    Unsupported(#[source] Unsupported),
    /// The kernel has no path manager for userspace.
    #[error(
        "Linux {0} has no path manager for userspace (5.19): endpoints do what can be \
             done there, `hawser mptcp setup`"
    )]
    Old(String),
    /// Another program manages, or the setting cannot be changed.
    #[error("{0}")]
    Guard(#[source] GuardError),
    /// The kernel refuses.
    #[error(
        "{step}: {source}{}",
        if .source.is_denied() { ". It needs root (CAP_NET_ADMIN)" } else { "" }
    )]
    Netlink {
        /// What was to be done.
        step: &'static str,
        /// Why.
        source: NetlinkError,
    },
    /// A system call failed.
    #[error("{step}: {source}")]
    System {
        /// What was to be done.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Manages until a signal ends it, or the process that it is to end with. To be called while this
/// process has one thread.
///
/// # Errors
/// See [`ManageError`]; then nothing has been changed.
pub fn manage(options: &Options) -> Result<(), ManageError> {
    let system = |step| move |source| ManageError::System { step, source };
    let netlink = |step| move |source| ManageError::Netlink { step, source };
    socket::probe().map_err(ManageError::Unsupported)?;
    if kernel::sysctls().path_manager.is_none() {
        return Err(ManageError::Old(kernel::release()));
    }
    let events = Events::open().map_err(netlink("listening to the kernel's events"))?;
    let manager = Manager::open().map_err(netlink("asking the path manager"))?;
    let trace = options.trace.as_ref().map(File::create).transpose();
    let trace = trace.map_err(system("opening the file of --trace"))?;
    let signals = catch_signals(&ENDED_BY).map_err(system("catching signals"))?;
    let with = options.with.map(descriptor_of_process).transpose();
    let with = with.map_err(system("finding the process of --with"))?;
    let input = io::stdin();
    let guard = Guard::set().map_err(ManageError::Guard)?;
    for line in notes(&guard) {
        say(&line);
    }
    // After the watchdog was started, which needs none.
    if come_before_ordinary() == Priority::Ordinary
        && let Err(error) = set_thread_nice(NICE)
    {
        say(&format!(
            "its priority stays as it is ({error}): on a busy machine it may look too late"
        ));
    }
    let mut work = Work {
        manager,
        began: Instant::now(),
        managed: HashMap::new(),
        announced: HashMap::new(),
        trace,
        passed_over: false,
    };
    let mut events = events;
    let mut next = Instant::now();
    loop {
        let pause = next.saturating_duration_since(Instant::now());
        let mut fds = vec![signals.as_fd(), events.as_fd()];
        fds.extend(with.as_ref().map(AsFd::as_fd));
        fds.extend(options.attached.then_some(input.as_fd()));
        let ready = wait_at_most(&fds, pause).map_err(system("waiting"))?;
        // A service manager sends signals to all processes of a service, whose end may take a while.
        let signalled = next_signal(&signals).is_ok() && !options.attached;
        if signalled || ready[2..].iter().any(|(readable, gone)| *readable || *gone) {
            break;
        }
        if ready[1].0 {
            // Lost events are found by the next look; addresses of peers that were among them are not.
            for event in events.receive().unwrap_or_default() {
                work.heard(&event);
            }
        }
        if Instant::now() >= next {
            let lively = work.look();
            next = Instant::now() + if lively { LOOK_APART } else { LOOK_APART_IDLE };
        }
    }
    drop(guard);
    say("ended; connections keep their subflows");
    Ok(())
}

fn notes(guard: &Guard) -> Vec<String> {
    let mut lines = vec![format!(
        "managing connections that begin from now on (path manager: userspace, {} before)",
        guard.before()
    )];
    if Version::parse(&kernel::release()).is_some_and(|version| version < Version(6, 5)) {
        lines.push(format!(
            "Linux {} does not say what a connection as a whole has carried (6.5): a stalled one is \
             not mended",
            kernel::release()
        ));
    }
    lines.extend(others::notes());
    lines
}

/// One line for the program that started it; a closed output does not stop it.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush());
}

struct Work {
    manager: Manager,
    began: Instant,
    /// By the cookie of the MPTCP socket.
    managed: HashMap<u64, Managed>,
    /// What peers have announced, by connection.
    announced: HashMap<Token, Announced>,
    trace: Option<File>,
    /// Whether it was said that there are too many.
    passed_over: bool,
}

impl Work {
    fn heard(&mut self, event: &Event) {
        let Some(token) = event.token else { return };
        match (event.kind, event.id_remote, event.remote) {
            (Kind::Announced, Some(number), Some(address)) => {
                self.announced.entry(token).or_default().add(number, address);
            }
            (Kind::Removed, Some(number), _) => {
                self.announced.entry(token).or_default().remove(number);
            }
            (Kind::Closed, ..) => drop(self.announced.remove(&token)),
            _ => {}
        }
    }

    /// Looks at everything once; whether anything is sent.
    fn look(&mut self) -> bool {
        let Some((dump, at)) = self.dump() else { return false };
        let now = Time::ZERO.after(at);
        let mut by_token: BTreeMap<Token, Vec<&Subflow>> = BTreeMap::new();
        for subflow in &dump.subflows {
            by_token.entry(subflow.token).or_default().push(subflow);
        }
        self.take_in(&dump, &by_token);
        self.announced.retain(|token, _| by_token.contains_key(token));
        let mut lively = false;
        let none = Announced::default();
        for connection in &dump.connections {
            let Some(managed) = self.managed.get_mut(&connection.socket.cookie) else { continue };
            let subflows = by_token.get(&connection.info.token).map_or(&[][..], Vec::as_slice);
            let announced = self.announced.get(&connection.info.token).unwrap_or(&none);
            let looked = managed.look(&mut self.manager, now, connection, subflows, announced);
            lively |= looked.lively;
            for line in looked.lines {
                say(&format!("{:.1} s  {line}", now.since(Time::ZERO).as_secs_f64()));
            }
            if let Some(trace) = &mut self.trace {
                let _ = writeln!(trace, "{}", managed.traced(now, connection, subflows));
            }
        }
        lively
    }

    /// The answer of sock_diag, and its time: the middle of the call, because a busy machine may
    /// delay this process on either side. One that took long is taken again.
    fn dump(&self) -> Option<(Dump, Duration)> {
        for again in 0..=LOOKS_AGAIN {
            let before = self.began.elapsed();
            let dump = diagnosis::dump().ok()?;
            let after = self.began.elapsed();
            if after - before <= LOOK_TAKES_MAX || again == LOOKS_AGAIN {
                return Some((dump, (before + after) / 2));
            }
        }
        None
    }

    /// Connections that are new come in, those that have ended go.
    fn take_in(&mut self, dump: &Dump, by_token: &BTreeMap<Token, Vec<&Subflow>>) {
        let here: std::collections::HashSet<u64> =
            dump.connections.iter().map(|connection| connection.socket.cookie).collect();
        self.managed.retain(|cookie, _| here.contains(cookie));
        let fresh: Vec<_> = dump
            .connections
            .iter()
            .filter(|connection| {
                connection.socket.state == TcpState::Established
                    && !connection.info.is_fallback()
                    && !self.managed.contains_key(&connection.socket.cookie)
            })
            .collect();
        if fresh.is_empty() {
            return;
        }
        let inodes = fresh.iter().map(|connection| connection.socket.inode).collect();
        let names = programs::find(&inodes);
        for connection in fresh {
            if self.managed.len() >= CONNECTIONS_MAX {
                if !std::mem::replace(&mut self.passed_over, true) {
                    say(&format!("more than {CONNECTIONS_MAX} connections: some are left alone"));
                }
                return;
            }
            let subflows = by_token.get(&connection.info.token).map_or(&[][..], Vec::as_slice);
            let Some(role) = role(subflows) else { continue };
            let program = names.get(&connection.socket.inode);
            let managed = Managed::new(role, connection, program);
            self.managed.insert(connection.socket.cookie, managed);
        }
    }
}

/// Which end dialled: the first subflow says it, and so does each that joined.
fn role(subflows: &[&Subflow]) -> Option<Role> {
    subflows.iter().find_map(|subflow| {
        let dialled = if subflow.flags.joined() {
            subflow.flags.dialled_join()
        } else if subflow.flags.capable() {
            subflow.flags.asked()
        } else {
            return None;
        };
        Some(if dialled { Role::Dials } else { Role::Accepts })
    })
}

/// Whether a refusal says that a connection began under the kernel's own path manager.
fn is_of_kernel(error: &NetlinkError) -> bool {
    matches!(error, NetlinkError::Refused { words: Some(words), .. } if words.contains("PM not selected"))
}

impl From<&NetlinkError> for Refused {
    fn from(error: &NetlinkError) -> Self {
        if is_of_kernel(error) { Self::Connection } else { Self::Address }
    }
}

/// The name of a state, for the trace.
fn state_name(state: State) -> &'static str {
    state.name()
}
