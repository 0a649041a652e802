//! A network of one run: its hosts, what manages them, and programs inside.
//!
//! # Invariants
//! * whatever ends this process, the network ends, and all that runs inside: both die with it

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hawser_lab::namespaces::control::{About, Client};
use hawser_lab::namespaces::report::Snapshot;
use hawser_sys::process::{end_with_parent, next_signal, wait_at_most};

use super::Broken;
use super::case::Way;
use super::rates::{self, Rates};

/// How long a manager, a server or the network's end may take.
const START_WAIT: Duration = Duration::from_secs(30);
/// How long a client may take.
const CLIENT_WAIT: Duration = Duration::from_secs(600);
/// Between two points of what has arrived.
const POINTS_APART: Duration = Duration::from_millis(50);
const PIECE_BYTES: usize = 1 << 20;
/// Of what a program has said.
const SAID_BYTES: usize = 500;

/// What a client has written, as it came: seconds since its start, and bytes.
pub type Points = Vec<(f64, u64)>;

/// The network, up.
#[derive(Debug)]
pub struct Network<'a> {
    name: String,
    about: About,
    way: Way,
    directory: &'a Path,
    signals: &'a OwnedFd,
    holder: Child,
    started: Vec<Child>,
    /// When it came up: outages count from here.
    pub up: Instant,
}

/// This program, with these words.
fn this_program() -> Command {
    Command::new("/proc/self/exe")
}

impl<'a> Network<'a> {
    /// Brings it up, with what the way needs on both hosts.
    ///
    /// # Errors
    /// What was refused, and by which program.
    pub fn up(
        source: &str,
        seed: u64,
        way: Way,
        directory: &'a Path,
        signals: &'a OwnedFd,
    ) -> Result<Self, Broken> {
        let name = format!("report-{}-{seed}", std::process::id());
        let mut command = this_program();
        command.args(["lab", "up", "--foreground", "--tell", "--name", &name]);
        command.args(["--seed", &seed.to_string(), "--", source]).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        end_with_parent(&mut command);
        let mut holder = command.spawn().map_err(Broken::system("start a network"))?;
        let mut line = String::new();
        if let Some(output) = holder.stdout.take() {
            let read = BufReader::new(output).read_line(&mut line);
            read.map_err(Broken::system("start a network"))?;
        }
        let Ok(about) = serde_json::from_str::<About>(&line) else {
            let said = said(holder.stderr.take());
            let code = holder.wait().ok().and_then(|status| status.code()).unwrap_or(1);
            let said = said.trim_start_matches("hawser lab: ").to_owned();
            return Err(Broken::Up { code: u8::try_from(code).unwrap_or(1), said });
        };
        let up = Instant::now();
        let started = Vec::new();
        let mut network = Self { name, about, way, directory, signals, holder, started, up };
        network.prepare()?;
        Ok(network)
    }

    fn host(&self, far: bool) -> &str {
        let hosts = &self.about.hosts;
        let host = if far { hosts.last() } else { hosts.first() };
        host.map_or("", |host| host.name.as_str())
    }

    /// The far host's first address.
    pub fn far(&self) -> IpAddr {
        self.about.hosts[self.about.hosts.len() - 1].addresses[0]
    }

    /// A command on a host.
    fn inside(&self, far: bool, words: &[OsString]) -> Command {
        let mut command = this_program();
        command.args([
            "lab",
            "run",
            &self.name,
            "--on",
            self.host(far),
            "--accept-unfaithful",
            "--",
        ]);
        command.args(words).current_dir("/").stdin(Stdio::null());
        end_with_parent(&mut command);
        command
    }

    /// The words of one of this program's own commands, for inside.
    pub fn own(words: &[&str]) -> Result<Vec<OsString>, Broken> {
        let program = std::env::current_exe().map_err(Broken::system("find this program"))?;
        let words = words.iter().map(OsString::from);
        Ok([program.into_os_string()].into_iter().chain(words).collect())
    }

    /// The same under `mptcp run`.
    fn under_run(words: &[OsString]) -> Result<Vec<OsString>, Broken> {
        let mut all = Self::own(&["mptcp", "run", "--"])?;
        all.extend_from_slice(words);
        Ok(all)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Starts what stays until the network ends; what it says is in a file of this name.
    fn start(&mut self, far: bool, words: &[OsString], log: &str) -> Result<(), Broken> {
        let step = Broken::system("write a log");
        let log = File::create(self.file(log)).map_err(step)?;
        let error = log.try_clone().map_err(Broken::system("write a log"))?;
        let mut command = self.inside(far, words);
        let child = command.stdout(log).stderr(error).spawn();
        self.started.push(child.map_err(Broken::system("start a program"))?);
        Ok(())
    }

    /// Starts a server on the far host, under `mptcp run`: what it takes is up to its clients.
    pub fn serve(&mut self, words: &[OsString]) -> Result<(), Broken> {
        self.start(true, &Self::under_run(words)?, "server")
    }

    /// Waits until `is_ready`, as long as the last program that was started lives.
    pub fn wait(&mut self, what: &str, is_ready: impl Fn(&Self) -> bool) -> Result<(), Broken> {
        let began = Instant::now();
        while !is_ready(self) {
            let child = self.started.last_mut();
            let ended = child.is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))));
            if ended || began.elapsed() > START_WAIT {
                let log = fs::read(self.file("server")).unwrap_or_default();
                return Err(Broken::Failed(format!("{what}: {}", end_of(&log))));
            }
            self.pause(Duration::from_millis(20))?;
        }
        Ok(())
    }

    fn pause(&self, time: Duration) -> Result<(), Broken> {
        wait_at_most(&[self.signals.as_fd()], time).map_err(Broken::system("wait"))?;
        self.interrupted()
    }

    fn interrupted(&self) -> Result<(), Broken> {
        if next_signal(self.signals).is_ok() { Err(Broken::Interrupted) } else { Ok(()) }
    }

    fn prepare(&mut self) -> Result<(), Broken> {
        match self.way {
            Way::Plain => Ok(()),
            Way::Kernel => {
                for (far, end) in [(true, "server"), (false, "client")] {
                    let mut command = self.inside(far, &Self::own(&["mptcp", "setup", end])?);
                    let done = command.output().map_err(Broken::system("run mptcp setup"))?;
                    if !done.status.success() {
                        let said = end_of(&done.stderr);
                        return Err(Broken::Failed(format!("mptcp setup {end}: {said}")));
                    }
                }
                let watch = Self::own(&["mptcp", "status", "--json", "--watch"])?;
                self.start(false, &watch, "watch")
            }
            Way::Manage => {
                let trace = self.file("trace");
                // Of an earlier run.
                let _ = fs::remove_file(&trace);
                let far = Self::own(&["mptcp", "manage"])?;
                let near = [far.clone(), vec!["--trace".into(), trace.into()]].concat();
                for (is_far, words, log) in [(true, far, "manage-far"), (false, near, "manage")] {
                    self.start(is_far, &words, log)?;
                    self.managing(log)?;
                }
                Ok(())
            }
        }
    }

    fn managing(&mut self, log: &str) -> Result<(), Broken> {
        let began = Instant::now();
        loop {
            let said = fs::read(self.file(log)).unwrap_or_default();
            if said.windows(8).any(|words| words == b"managing") {
                return Ok(());
            }
            let child = self.started.last_mut();
            let ended = child.is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))));
            if ended || began.elapsed() > START_WAIT {
                return Err(Broken::Failed(format!("mptcp manage: {}", end_of(&said))));
            }
            self.pause(Duration::from_millis(20))?;
        }
    }

    /// Runs a client on the near host, in this way, and counts what it writes.
    pub fn client(&self, words: &[OsString], input: Option<&Path>) -> Result<Points, Broken> {
        let words = match self.way {
            Way::Plain => words.to_vec(),
            Way::Kernel | Way::Manage => Self::under_run(words)?,
        };
        let mut command = self.inside(false, &words);
        if let Some(input) = input {
            let file = File::open(input).map_err(Broken::system("open what is to be copied"))?;
            command.stdin(file);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let began = Instant::now();
        let mut child = command.spawn().map_err(Broken::system("start a client"))?;
        let read = self.count(&mut child, began);
        if read.is_err() {
            let _ = child.kill();
        }
        let errors = child.stderr.take();
        // Its end was waited for by the end of what it writes; or it was ended.
        let points = read.inspect_err(|_| drop(child.wait()))?;
        let said = said(errors);
        let status = child.wait().map_err(Broken::system("wait for a client"))?;
        if status.success() { Ok(points) } else { Err(Broken::Failed(said)) }
    }

    fn count(&self, child: &mut Child, began: Instant) -> Result<Points, Broken> {
        let Some(mut output) = child.stdout.take() else { return Ok(Points::new()) };
        let (mut piece, mut points, mut total) = (vec![0; PIECE_BYTES], vec![(0.0, 0)], 0);
        let mut last = began;
        loop {
            let fds = [output.as_fd(), self.signals.as_fd()];
            let ready =
                wait_at_most(&fds, Duration::from_secs(1)).map_err(Broken::system("wait"))?;
            self.interrupted()?;
            if began.elapsed() > CLIENT_WAIT {
                return Err(Broken::Failed(format!("not done within {CLIENT_WAIT:?}")));
            }
            if ready[0] == (false, false) {
                continue;
            }
            let count = output.read(&mut piece).map_err(Broken::system("read from a client"))?;
            total += count as u64;
            let now = Instant::now();
            if count == 0 || now - last >= POINTS_APART {
                points.push(((now - began).as_secs_f64(), total));
                last = now;
            }
            if count == 0 {
                return Ok(points);
            }
        }
    }

    /// What the network has done so far.
    pub fn report(&self) -> Result<Snapshot, Broken> {
        let report = Client::connect(&self.name).and_then(|mut client| client.report());
        report.map_err(|error| Broken::Failed(error.to_string()))
    }

    /// The rate of each subflow, as far as it was watched.
    pub fn rates(&self) -> Rates {
        let read = |name: &str| fs::read_to_string(self.file(name)).unwrap_or_default();
        match self.way {
            Way::Plain => Rates::default(),
            Way::Kernel => rates::of_status(&read("watch")),
            Way::Manage => rates::of_trace(&read("trace")),
        }
    }
}

impl Drop for Network<'_> {
    fn drop(&mut self) {
        if self.way == Way::Kernel {
            // What was remembered of its namespaces would stay until the machine stops.
            for far in [true, false] {
                if let Ok(words) = Self::own(&["mptcp", "undo"]) {
                    let _ = self.inside(far, &words).output();
                }
            }
        }
        if Client::connect(&self.name).and_then(Client::down).is_err() {
            let _ = self.holder.kill();
        }
        let _ = self.holder.wait();
        for child in &mut self.started {
            let _ = child.wait();
        }
    }
}

fn said(from: Option<impl Read>) -> String {
    let mut said = Vec::new();
    if let Some(mut from) = from {
        let _ = from.read_to_end(&mut said);
    }
    end_of(&said)
}

fn end_of(said: &[u8]) -> String {
    let from = said.len().saturating_sub(SAID_BYTES);
    String::from_utf8_lossy(&said[from..]).trim().replace('\n', "; ")
}

/// What ended children have used of the processor, by `/proc/PID/stat` (proc_pid_stat(5): fields 16
/// and 17), in seconds; `None`: of this process.
///
/// # Errors
/// There is no such process.
pub fn children_processor(process: Option<u32>) -> io::Result<f64> {
    let name = process.map_or("self".to_owned(), |pid| pid.to_string());
    let stat = fs::read_to_string(format!("/proc/{name}/stat"))?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: f64 = fields.split_whitespace().skip(13).take(2).flat_map(str::parse::<f64>).sum();
    // USER_HZ is 100 on every architecture that runs this.
    Ok(ticks / 100.0)
}
