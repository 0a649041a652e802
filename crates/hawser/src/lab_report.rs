//! `hawser lab run NAME --report` without a command: what programs get over a network by plain TCP, by
//! the kernel's path manager and by `manage`, as a table and plots.
//!
//! # Model
//! ```text
//!   round · case · way ── a network of its own, its seed by the round
//!       far:  postgres, or rsync's daemon, or a sender of ours, under `mptcp run`
//!       near: psql, pg_basebackup, rsync, or a receiver of ours; counted as it arrives
//! ```
//! * [`case`]: what is compared, and what is asked of it
//! * [`network`]: a network, what manages it, programs inside; [`carry`]: sender and receiver of ours
//! * [`measured`]: the figures of a run; [`rates`]: the rate of each subflow, of what the manager and `status` write
//! * [`page`]: the table for people, and the page with the plots
//!
//! # Limits
//! Streaming replication, and `pgbench -S` through a pooler, are measured by bench/.

pub mod carry;
pub mod case;
pub mod measured;
pub mod network;
pub mod page;
pub mod rates;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use hawser_sys::mptcp::socket::{self, Unsupported};
use hawser_sys::process::catch_signals;
use serde::Serialize;

use crate::cli::print;
use crate::demo::cluster::{Cluster, ClusterError};
use crate::process::{random_bytes, random_u64};
use case::{Case, Figures, Measure, Way};
use measured::measured;
use network::{Network, Points, children_processor};
use rates::Rates;

/// COPY of the reference's table: 49.8 MB of rows.
const ROWS: u64 = 498_000;
const ROW_BYTES: u64 = 100;
/// Of the reference's base backup.
const PGBENCH_SCALE: u64 = 5;
const RSYNC_BYTES: u64 = 100 << 20;
/// Of servers inside: nothing else is there.
const PORT: u16 = 5432;
const CONNECTIONS: u32 = 20;
/// SIGHUP, SIGINT, SIGTERM.
const ENDED_BY: [i32; 3] = [1, 2, 15];

const NOT_NEEDED: &str = "not needed";

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The description's name, as the user gave it.
    pub name: String,
    /// Where it is.
    pub source: String,
    /// What is compared.
    pub cases: Vec<Case>,
    /// How often.
    pub rounds: u32,
    /// Of the work, in percent.
    pub share: u64,
    /// Of the first round; the next has the next.
    pub seed: u64,
}

/// Why there is no report.
#[derive(Debug)]
pub enum ReportError {
    /// There is no MPTCP.
    Unsupported(Unsupported),
    /// Who is not root can set no path manager up.
    NotRoot,
    /// The network did not come up.
    Up {
        /// As `lab up` ends.
        code: u8,
        /// Why.
        said: String,
    },
    /// A signal ended it.
    Interrupted,
    /// Something of this host.
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(reason) => reason.fmt(f),
            Self::NotRoot => f.write_str(
                "the comparison needs root: it sets the kernel's path manager and `hawser mptcp manage` up",
            ),
            Self::Up { said, .. } => f.write_str(said),
            Self::Interrupted => f.write_str("interrupted: nothing was written"),
            Self::System { what, source } => write!(f, "could not {what}: {source}"),
        }
    }
}

impl std::error::Error for ReportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unsupported(error) => Some(error),
            Self::System { source, .. } => Some(source),
            Self::NotRoot | Self::Up { .. } | Self::Interrupted => None,
        }
    }
}

/// Why a run gave no figures.
#[derive(Debug)]
pub enum Broken {
    /// All end with it.
    All(ReportError),
    /// This run alone.
    Failed(String),
    /// As [`ReportError::Up`].
    Up {
        /// As `lab up` ends.
        code: u8,
        /// Why.
        said: String,
    },
    /// As [`ReportError::Interrupted`].
    Interrupted,
}

impl Broken {
    fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::All(ReportError::System { what, source })
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// What was done.
    pub case: Case,
    /// How.
    pub way: Way,
    /// From 1.
    pub round: u32,
    /// What came of it; a time that never came is `null`.
    pub figures: Vec<(Measure, f64)>,
    /// Why they are worth nothing, if so.
    pub unfaithful: Option<String>,
    /// Why there are none.
    pub failed: Option<String>,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The description's name.
    pub name: String,
    /// The server, or that there is none.
    pub server: String,
    /// The kernel's release.
    pub kernel: String,
    /// Processors.
    pub processors: usize,
    /// Rounds.
    pub rounds: u32,
    /// Of the work, in percent.
    pub share: u64,
    /// All runs, as they were.
    pub runs: Vec<Run>,
    /// The rates of subflows in the first run of each that lasted long enough to have them.
    #[serde(skip)]
    pub rates: Vec<(Case, Way, Rates)>,
}

impl Report {
    /// The figures of a measure.
    #[must_use]
    pub fn figures(&self, case: Case, measure: Measure) -> Figures {
        let mut figures = Figures::default();
        for run in self.runs.iter().filter(|run| run.case == case) {
            let values = run.figures.iter().filter(|(of, _)| *of == measure).map(|(_, v)| *v);
            match run.way {
                Way::Plain => figures.plain.extend(values),
                Way::Kernel => figures.kernel.extend(values),
                Way::Manage => figures.manage.extend(values),
            }
        }
        figures
    }

    /// Runs whose figures are worth nothing.
    pub fn unfaithful(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.unfaithful.is_some())
    }
}

/// Runs everything; what comes of each run is said on standard error. To be called while this process
/// has one thread.
///
/// # Errors
/// See [`ReportError`]; a run that fails is in the report.
pub fn run(options: &Options) -> Result<Report, ReportError> {
    socket::probe().map_err(ReportError::Unsupported)?;
    if !hawser_sys::process::is_superuser() {
        return Err(ReportError::NotRoot);
    }
    let system = |what| move |source| ReportError::System { what, source };
    let signals = catch_signals(&ENDED_BY).map_err(system("wait for signals"))?;
    let work = Work::new(options, signals)?;
    let result = work.all();
    let Work { directory, .. } = &work;
    if let Err(error) = fs::remove_dir_all(directory) {
        eprintln!("hawser lab: could not remove {}: {error}", directory.display());
    }
    result
}

struct Work<'a> {
    options: &'a Options,
    signals: OwnedFd,
    directory: PathBuf,
    /// With the table; and with pgbench's. Or why there are none.
    bulk: Result<Cluster, String>,
    pgbench: Result<Cluster, String>,
    has_rsync: bool,
}

impl<'a> Work<'a> {
    fn new(options: &'a Options, signals: OwnedFd) -> Result<Self, ReportError> {
        let directory = std::env::temp_dir().join(format!("hawser-report-{:016x}", random_u64()));
        let made = fs::create_dir(&directory);
        made.map_err(|source| ReportError::System { what: "make a directory", source })?;
        let is_asked = |case| options.cases.contains(&case);
        let of_bulk = [Case::CopyOut, Case::Steady, Case::CopyIn, Case::Outage, Case::Lan];
        let mut work = Self {
            options,
            signals,
            directory,
            bulk: Err(NOT_NEEDED.to_owned()),
            pgbench: Err(NOT_NEEDED.to_owned()),
            has_rsync: is_installed("rsync"),
        };
        if of_bulk.into_iter().any(is_asked) {
            work.bulk = work.cluster(Self::fill_bulk);
        }
        if is_asked(Case::BaseBackup) {
            work.pgbench = work.cluster(Self::fill_pgbench);
        }
        Ok(work)
    }

    fn rows(&self) -> u64 {
        ROWS * self.options.share / 100
    }

    fn cluster(
        &self,
        fill: impl Fn(&Self, &Cluster) -> Result<(), ClusterError>,
    ) -> Result<Cluster, String> {
        let make = || {
            let mut cluster = Cluster::new()?;
            cluster.launch(
                CONNECTIONS,
                &["wal_level=replica", "max_wal_senders=4", "max_wal_size=2GB"],
            )?;
            fill(self, &cluster)?;
            cluster.stop("fast");
            let rules = cluster.data().join("pg_hba.conf");
            let trust = "host all all all trust\nhost replication all all trust\n";
            let added = fs::File::options().append(true).open(rules);
            added
                .and_then(|mut rules| rules.write_all(trust.as_bytes()))
                .map_err(|source| ClusterError::System { what: "let clients in".into(), source })?;
            Ok(cluster)
        };
        make().map_err(|error: ClusterError| {
            eprintln!("{error}");
            error.to_string()
        })
    }

    fn ask(cluster: &Cluster, statement: &str) -> Result<(), ClusterError> {
        let directory = cluster.directory().display().to_string();
        let port = cluster.port().to_string();
        let words =
            ["-XqAt", "-h", &directory, "-p", &port, "-U", "postgres", "-v", "ON_ERROR_STOP=1"];
        cluster.output("psql", &[&words[..], &["-c", statement, "postgres"]].concat()).map(drop)
    }

    fn fill_bulk(&self, cluster: &Cluster) -> Result<(), ClusterError> {
        let (rows, width) = (self.rows(), ROW_BYTES - 1);
        let make = format!(
            "create table bulk as select lpad(g::text, {width}, 'x') t from generate_series(1, {rows}) g"
        );
        Self::ask(cluster, &make)?;
        Self::ask(cluster, "create table taken (t text)")?;
        Self::ask(cluster, "checkpoint")
    }

    fn fill_pgbench(&self, cluster: &Cluster) -> Result<(), ClusterError> {
        let directory = cluster.directory().display().to_string();
        let scale = (PGBENCH_SCALE * self.options.share / 100).max(1).to_string();
        let port = cluster.port().to_string();
        let words = ["-h", &directory, "-p", &port, "-U", "postgres", "-i", "-q", "-s", &scale];
        cluster.output("pgbench", &[&words[..], &["postgres"]].concat())?;
        Self::ask(cluster, "checkpoint")
    }

    /// What serves, in words.
    fn server(&self) -> String {
        match (&self.bulk, &self.pgbench) {
            (Ok(cluster), _) | (_, Ok(cluster)) => cluster.version().to_owned(),
            (Err(why), _) => format!("a sender of Hawser's own in place of PostgreSQL ({why})"),
        }
    }

    fn all(&self) -> Result<Report, ReportError> {
        let Options { name, cases, rounds, share, .. } = self.options;
        let mut report = Report {
            name: name.clone(),
            server: self.server(),
            kernel: hawser_sys::mptcp::kernel::release(),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            rounds: *rounds,
            share: *share,
            runs: Vec::new(),
            rates: Vec::new(),
        };
        for &case in cases {
            for round in 1..=*rounds {
                for &way in case.ways() {
                    let mut run = Run {
                        case,
                        way,
                        round,
                        figures: Vec::new(),
                        unfaithful: None,
                        failed: None,
                    };
                    match self.one(&mut run) {
                        Ok(rates) => {
                            let known =
                                |(of, by, _): &(Case, Way, Rates)| *of == case && *by == way;
                            if rates.highest() > 0.0 && !report.rates.iter().any(known) {
                                report.rates.push((case, way, rates));
                            }
                        }
                        Err(Broken::Failed(why)) => run.failed = Some(why),
                        Err(Broken::All(error)) => return Err(error),
                        Err(Broken::Up { code, said }) => {
                            return Err(ReportError::Up { code, said });
                        }
                        Err(Broken::Interrupted) => return Err(ReportError::Interrupted),
                    }
                    eprintln!("{}", page::line(&run));
                    report.runs.push(run);
                }
            }
        }
        Ok(report)
    }

    /// Does one, and gives the rates of its subflows.
    fn one(&self, run: &mut Run) -> Result<Rates, Broken> {
        let Run { case, way, round, .. } = *run;
        if case == Case::Rsync && !self.has_rsync {
            return Err(Broken::Failed("rsync is not installed".to_owned()));
        }
        let needed = match case {
            Case::BaseBackup => Some(&self.pgbench),
            Case::CopyIn => Some(&self.bulk),
            _ => None,
        };
        if let Some(Err(why)) = needed {
            return Err(Broken::Failed(why.clone()));
        }
        let source = case.network().unwrap_or(&self.options.source);
        let seed = self.options.seed + u64::from(round - 1);
        let mut network = Network::up(source, seed, way, &self.directory, &self.signals)?;
        let (served, result) = match case {
            Case::Rsync => (None, self.rsync(&mut network)),
            _ => self.postgres(&mut network, case, way),
        };
        if let Some(cluster) = served {
            // It may not have come up.
            let _ = cluster.end("immediate");
        }
        let Done { points, processor, unfaithful } = result?;
        let offset = (points.1 - network.up).as_secs_f64();
        run.figures = measured(case, &points.0, offset, processor);
        run.unfaithful = unfaithful;
        Ok(network.rates())
    }

    fn postgres<'b>(
        &'b self,
        network: &mut Network<'_>,
        case: Case,
        way: Way,
    ) -> (Option<&'b Cluster>, Result<Done, Broken>) {
        let cluster = if case == Case::BaseBackup { &self.pgbench } else { &self.bulk };
        match cluster {
            Ok(cluster) => (Some(cluster), self.by_server(network, cluster, case, way)),
            Err(_) => (None, self.by_own_sender(network, case, way)),
        }
    }

    fn by_server(
        &self,
        network: &mut Network<'_>,
        cluster: &Cluster,
        case: Case,
        way: Way,
    ) -> Result<Done, Broken> {
        // Of an earlier run.
        let _ = fs::remove_file(cluster.data().join("postmaster.pid"));
        let mut words = cluster.words();
        let directory = cluster.directory().display();
        for setting in [
            "listen_addresses=*".to_owned(),
            format!("unix_socket_directories={directory}"),
            format!("port={PORT}"),
            "fsync=off".to_owned(),
            "shared_buffers=128MB".to_owned(),
            "max_wal_size=2GB".to_owned(),
            "autovacuum=off".to_owned(),
        ] {
            words.extend(["-c".into(), setting.into()]);
        }
        network.serve(&words)?;
        network.wait("postgres does not start", |_| cluster.is_ready())?;
        let pid = fs::read_to_string(cluster.data().join("postmaster.pid")).unwrap_or_default();
        let postmaster = pid.lines().next().and_then(|pid| pid.trim().parse().ok());
        let conninfo = format!("host={} port={PORT} user=postgres sslmode=disable", network.far());
        let (words, input) = self.client(cluster, &conninfo, case, way)?;
        let done = timed(network, &words, input.as_deref(), postmaster)?;
        let bytes = done.points.0.last().map_or(0, |(_, bytes)| *bytes);
        let expected = self.rows() * ROW_BYTES * case.times(way);
        match case {
            Case::BaseBackup => Ok(done),
            Case::CopyIn => {
                let count = format!("select 1/(count(*) = {})::int from taken", self.rows());
                let counted =
                    Self::ask(cluster, &count).and_then(|()| Self::ask(cluster, "truncate taken"));
                counted.map_err(|error| Broken::Failed(error.to_string()))?;
                Ok(done)
            }
            _ if bytes == expected => Ok(done),
            _ => Err(Broken::Failed(format!("{bytes} bytes came of {expected}"))),
        }
    }

    /// The client's words, and what it reads.
    fn client(
        &self,
        cluster: &Cluster,
        conninfo: &str,
        case: Case,
        way: Way,
    ) -> Result<(Vec<OsString>, Option<PathBuf>), Broken> {
        let words = |program: &str, words: &[&str]| {
            let program = cluster.program(program).into_os_string();
            [program].into_iter().chain(words.iter().map(OsString::from)).collect::<Vec<_>>()
        };
        if case == Case::BaseBackup {
            let how = ["-d", conninfo, "-D", "-", "-Ft", "-X", "fetch", "-c", "fast"];
            return Ok((words("pg_basebackup", &how), None));
        }
        let conninfo = format!("{conninfo} dbname=postgres");
        if case == Case::CopyIn {
            let input = self.directory.join("rows");
            if !input.exists() {
                let row = [vec![b'x'; ROW_BYTES as usize - 1], vec![b'\n']].concat();
                let rows = row.repeat(usize::try_from(self.rows()).unwrap_or(usize::MAX));
                fs::write(&input, rows).map_err(Broken::system("write what is to be copied"))?;
            }
            let statement = "copy taken from stdin";
            return Ok((words("psql", &["-Xq", &conninfo, "-c", statement]), Some(input)));
        }
        let times = case.times(way);
        let statement = format!("copy (select t from bulk, generate_series(1, {times})) to stdout");
        Ok((words("psql", &["-Xq", &conninfo, "-c", &statement]), None))
    }

    /// Without PostgreSQL.
    fn by_own_sender(
        &self,
        network: &mut Network<'_>,
        case: Case,
        way: Way,
    ) -> Result<Done, Broken> {
        let bytes = (self.rows() * ROW_BYTES * case.times(way)).to_string();
        let port = PORT.to_string();
        network.serve(&Network::own(&["lab", "send", &port, &bytes])?)?;
        let from = format!("{}:{PORT}", network.far());
        // The listener is there a moment later; nothing shows that from outside.
        std::thread::sleep(std::time::Duration::from_millis(500));
        let done = timed(network, &Network::own(&["lab", "take", &from])?, None, None)?;
        let came = done.points.0.last().map_or(0, |(_, bytes)| *bytes);
        if came.to_string() != bytes {
            return Err(Broken::Failed(format!("{came} bytes came of {bytes}")));
        }
        Ok(done)
    }

    fn rsync(&self, network: &mut Network<'_>) -> Result<Done, Broken> {
        let (source, target) = (self.directory.join("source"), self.directory.join("copy"));
        let written = || -> io::Result<()> {
            fs::create_dir_all(&source)?;
            if !source.join("file").exists() {
                // It does not compress, and no block of it is another's.
                let mut bytes =
                    vec![0; usize::try_from(RSYNC_BYTES * self.options.share / 100).unwrap_or(0)];
                random_bytes(&mut bytes);
                fs::write(source.join("file"), bytes)?;
            }
            let identity =
                if hawser_sys::process::is_superuser() { "uid = 0\ngid = 0\n" } else { "" };
            let path = source.display();
            let conf =
                format!("use chroot = no\n{identity}reverse lookup = no\n[data]\npath = {path}\n");
            fs::write(self.directory.join("rsyncd.conf"), conf)
        };
        written().map_err(Broken::system("write what is to be copied"))?;
        let conf = format!("--config={}", self.directory.join("rsyncd.conf").display());
        let port = format!("--port={PORT}");
        let words = ["rsync", "--daemon", "--no-detach", &conf, &port];
        network.serve(&words.map(OsString::from))?;
        std::thread::sleep(std::time::Duration::from_secs(1));
        let from = format!("rsync://{}:{PORT}/data/file", network.far());
        let words = ["rsync".into(), "--whole-file".into(), from.into(), target.clone().into()];
        let done = timed(network, &words, None, None)?;
        let same =
            || -> io::Result<bool> { Ok(fs::read(&target)? == fs::read(source.join("file"))?) };
        let same = same().map_err(Broken::system("read what was copied"))?;
        fs::remove_file(&target).map_err(Broken::system("remove what was copied"))?;
        if same {
            Ok(done)
        } else {
            Err(Broken::Failed("what came is not what was sent".to_owned()))
        }
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// What a client's run gave.
struct Done {
    /// What came, and when the client began.
    points: (Points, std::time::Instant),
    processor: f64,
    unfaithful: Option<String>,
}

fn timed(
    network: &Network<'_>,
    words: &[OsString],
    input: Option<&Path>,
    server: Option<u32>,
) -> Result<Done, Broken> {
    let used = || {
        let own = children_processor(None).unwrap_or(0.0);
        own + server.map_or(0.0, |pid| children_processor(Some(pid)).unwrap_or(0.0))
    };
    let (before, used_before, began) = (network.report()?, used(), std::time::Instant::now());
    let points = network.client(words, input)?;
    // Until the server has waited for its process.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let processor = used() - used_before;
    let unfaithful = network.report()?.since(&before).unfaithful();
    Ok(Done { points: (points, began), processor, unfaithful })
}

/// Writes the page, and the runs as JSON where that is asked for; the table goes to standard output.
///
/// # Errors
/// A file could not be written, and which.
pub fn write(report: &Report, file: &Path, json: Option<&Path>) -> Result<(), String> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("{path}: {error}")
    };
    // First what needs no file: it has taken long to measure.
    print(&page::table(report));
    fs::write(file, page::page(report)).map_err(failed(file))?;
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(report).map_err(|error| error.to_string())? + "\n";
        fs::write(path, text).map_err(failed(path))?;
    }
    Ok(())
}
