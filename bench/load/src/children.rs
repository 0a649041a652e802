//! More connections than one process may have descriptors: several processes of this program.
//!
//! The parent starts a child for each share, waits until all are ready, starts them together, and
//! adds their counts. Parent and children speak the lines of [`crate::report`].

use std::io::{self, BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Resource, Rlimit};

use crate::histogram::Histogram;
use crate::report::{Event, Figures};

/// Descriptors that a process needs for other things than connections.
const DESCRIPTORS_ASIDE: u64 = 200;

/// Raises this process's limit of descriptors as far as it goes; returns the connections it allows.
pub(crate) fn connections_allowed() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match rustix::process::setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    current.map_or(usize::MAX, |current| current.saturating_sub(DESCRIPTORS_ASIDE) as usize)
}

/// The processes of one run.
pub(crate) struct Children {
    all: Vec<(Child, BufReader<ChildStdout>)>,
}

impl Children {
    /// Starts `count` children with this program's own arguments and `--share I/COUNT`.
    ///
    /// # Errors
    /// That of starting a process.
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let mut all = Vec::with_capacity(count);
        for index in 0..count {
            let mut command = Command::new(&program);
            command
                .args(std::env::args_os().skip(1))
                .arg("--share")
                .arg(format!("{index}/{count}"));
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let out =
                child.stdout.take().ok_or_else(|| io::Error::other("a child has no output"))?;
            all.push((child, BufReader::new(out)));
        }
        Ok(Self { all })
    }

    /// Sends a line to every child.
    ///
    /// # Errors
    /// Where a child has ended.
    pub(crate) fn tell(&mut self, line: &str) -> io::Result<()> {
        for (child, _) in &mut self.all {
            if let Some(input) = &mut child.stdin {
                writeln!(input, "{line}")?;
            }
        }
        Ok(())
    }

    /// Takes the next line of every child; the last of those that only mark a moment counts.
    ///
    /// # Errors
    /// Where a child has ended or says nonsense.
    pub(crate) fn hear(&mut self) -> io::Result<Event> {
        let (mut connected, mut login_errors, mut login_error) = (0, 0, None);
        let (mut figures, mut latencies, mut touched) =
            (Figures::default(), Histogram::default(), 0);
        let mut last = None;
        for (_, out) in &mut self.all {
            let mut line = String::new();
            out.read_line(&mut line)?;
            let event = serde_json::from_str(&line)?;
            match &event {
                Event::Ready { connected: some, errors, first_error } => {
                    connected += some;
                    login_errors += errors;
                    login_error = login_error.or_else(|| first_error.clone());
                }
                Event::Result(child) => figures.add_child(child, &mut latencies),
                Event::Touched { done } => touched += done,
                Event::Start | Event::End => {}
            }
            last = Some(event);
        }
        Ok(match last {
            Some(Event::Ready { .. }) => {
                Event::Ready { connected, errors: login_errors, first_error: login_error }
            }
            Some(Event::Result(_)) => {
                figures.complete(&latencies);
                Event::Result(figures)
            }
            Some(Event::Touched { .. }) => Event::Touched { done: touched },
            Some(event) => event,
            None => return Err(io::Error::other("no child was started")),
        })
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for (child, _) in &mut self.all {
            drop(child.stdin.take()); // the end of their input ends them
            // One that is gone already needs no wait.
            let _status = child.wait();
        }
    }
}
