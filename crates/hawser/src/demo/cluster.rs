//! A throw-away PostgreSQL, and its end.
//!
//! # Model       initdb into a new directory, postgres on a unix socket in it, nothing on TCP. Without
//!               fsync: it is not to survive anything. A standby is a copy of its files
//! # Invariants  what [`Cluster::start`] has made is gone when the [`Cluster`] is dropped, also if the
//!               start failed half-way
//! # Why root becomes another user  initdb and postgres refuse to run as root

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hawser_sys::process::{Account, account_by_name, is_superuser};

use crate::process::random_u64;

/// How long the server may take to start.
const START_WAIT: Duration = Duration::from_secs(60);
/// How long it may take to stop before it is killed.
const STOP_WAIT: Duration = Duration::from_secs(10);
/// Users that a server of root runs as, the first that there is.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// Its port is only the name of its socket.
const PORT: u16 = 5432;
/// A unix socket's path may have 107 bytes (unix(7)); `/.s.PGSQL.5432.lock` follows the directory.
const DIRECTORY_BYTES_MAX: usize = 80;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No PostgreSQL is installed.
    #[error(
        "no PostgreSQL server is installed here (looked for initdb in PG_BIN, PATH, /usr/lib/postgresql, \
         /usr/pgsql-* and /usr/local): apt-get install postgresql, or dnf install postgresql-server"
    )]
    NoBinaries,
    /// Root has no other user to run it as.
    #[error("PostgreSQL does not run as root, and there is none of the users {}", USERS.join(", "))]
    NoUser,
    /// A directory or program of this host.
    #[error("could not {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// One of its programs failed.
    #[error("{program} failed: {said}")]
    Failed {
        /// Which.
        program: &'static str,
        /// What it said.
        said: String,
    },
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> ClusterError {
    let what = what.into();
    move |source| ClusterError::System { what, source }
}

/// A running server; stopped and removed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    binaries: PathBuf,
    /// The account it runs as, if we are root.
    account: Option<Account>,
    directory: PathBuf,
    version: String,
    postmaster: Option<Child>,
}

impl Cluster {
    /// Makes and starts a server for this many connections. Takes seconds.
    ///
    /// # Errors
    /// See [`ClusterError`]; nothing remains.
    pub fn start(connections: u32) -> Result<Self, ClusterError> {
        let mut cluster = Self::make()?;
        cluster.launch(connections, &[])?;
        Ok(cluster)
    }

    /// The same, and a standby of it, which a promotion makes a primary.
    ///
    /// # Errors
    /// See [`ClusterError`]; nothing remains.
    pub fn start_with_standby(connections: u32) -> Result<(Self, Self), ClusterError> {
        let mut primary = Self::make()?;
        // A copy before the first start needs no pg_basebackup, which not every installation has.
        let mut standby = Self::empty(primary.binaries.clone())?;
        standby.version.clone_from(&primary.version);
        let (from, to) = (primary.data().display().to_string(), standby.data());
        let (to, signal) = (to.display().to_string(), to.join("standby.signal"));
        standby.output("/bin/cp", &["-R", "-p", &from, &to])?;
        standby.output("/bin/touch", &[&signal.display().to_string()])?;
        primary.launch(connections, &[])?;
        let host = primary.directory.display();
        let follows = format!("primary_conninfo=host={host} port={PORT} user=postgres");
        // No fewer than initdb had when it wrote the files.
        standby.launch(connections.max(100), &[follows])?;
        Ok((primary, standby))
    }

    /// One that has been made and not started.
    fn make() -> Result<Self, ClusterError> {
        // From here on, dropping it cleans up.
        let mut cluster = Self::empty(find_binaries().ok_or(ClusterError::NoBinaries)?)?;
        cluster.initialise()?;
        Ok(cluster)
    }

    /// A directory for one.
    fn empty(binaries: PathBuf) -> Result<Self, ClusterError> {
        let account = account()?;
        let directory = make_directory(account.as_ref())?;
        Ok(Self { binaries, account, directory, version: String::new(), postmaster: None })
    }

    /// Where its socket is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The number in its socket's name.
    pub fn port(&self) -> u16 {
        PORT
    }

    /// `PostgreSQL 15.4`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Stops it, as `pg_ctl stop -m fast` does.
    ///
    /// # Errors
    /// It does not stop.
    pub fn stop_fast(&mut self) -> Result<(), ClusterError> {
        let data = self.data().display().to_string();
        self.output("pg_ctl", &["stop", "--pgdata", &data, "--mode", "fast", "--silent"])?;
        if let Some(mut child) = self.postmaster.take() {
            let _ = child.wait();
        }
        Ok(())
    }

    /// Makes a standby the primary, as `pg_ctl promote` does.
    ///
    /// # Errors
    /// It stays a standby.
    pub fn promote(&self) -> Result<(), ClusterError> {
        let data = self.data().display().to_string();
        self.output("pg_ctl", &["promote", "--pgdata", &data, "--silent"]).map(drop)
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Whether it takes connections, by the last line of its file (src/include/utils/pidfile.h).
    fn is_ready(&self) -> bool {
        let state = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        state.lines().nth(7).is_some_and(|line| ["ready", "standby"].contains(&line.trim()))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.binaries.join(program));
        if let Some(account) = &self.account {
            // It also drops our supplementary groups.
            command.uid(account.uid).gid(account.gid);
        }
        command
            .current_dir(&self.directory)
            .env("LC_ALL", "C")
            .env("HOME", &self.directory)
            // Ctrl-C is for us: the server is stopped in its turn.
            .process_group(0)
            .stdin(Stdio::null());
        command
    }

    fn output(&self, program: &'static str, arguments: &[&str]) -> Result<Output, ClusterError> {
        let output = self
            .command(program)
            .args(arguments)
            .output()
            .map_err(system(format!("run {program}")))?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(ClusterError::Failed { program, said })
    }

    fn initialise(&mut self) -> Result<(), ClusterError> {
        let said = self.output("postgres", &["--version"])?.stdout;
        let said = String::from_utf8_lossy(&said);
        let number = said.split_whitespace().find(|word| word.starts_with(char::is_numeric));
        self.version = format!("PostgreSQL {}", number.unwrap_or("of an unknown version"));
        let data = self.data().display().to_string();
        let arguments = [
            "--pgdata",
            &data,
            "--username",
            "postgres",
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
            "--locale",
            "C",
            "--no-sync",
            "--no-instructions",
        ];
        self.output("initdb", &arguments).map(drop)
    }

    /// Starts it, on its unix socket alone.
    fn launch(&mut self, connections: u32, more: &[String]) -> Result<(), ClusterError> {
        let log = fs::File::create(self.log()).map_err(system("make the server's log"))?;
        let settings = [
            "listen_addresses=".to_owned(),
            format!("unix_socket_directories={}", self.directory.display()),
            format!("port={PORT}"),
            format!("max_connections={connections}"),
            "fsync=off".to_owned(),
            "synchronous_commit=off".to_owned(),
            "full_page_writes=off".to_owned(),
            "shared_buffers=64MB".to_owned(),
        ];
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data());
        for setting in settings.iter().chain(more) {
            command.arg("-c").arg(setting);
        }
        let out = log.try_clone().map_err(system("make the server's log"))?;
        let child = command.stdout(out).stderr(log).spawn().map_err(system("run postgres"))?;
        self.postmaster = Some(child);
        let began = Instant::now();
        loop {
            if self.is_ready() {
                return Ok(());
            }
            let ended = self
                .postmaster
                .as_mut()
                .is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_some()));
            if ended || began.elapsed() > START_WAIT {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                let said = log.lines().rev().take(3).collect::<Vec<_>>().join("; ");
                return Err(ClusterError::Failed { program: "postgres", said });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut child) = self.postmaster.take() {
            let data = self.data().display().to_string();
            let wait = STOP_WAIT.as_secs().to_string();
            let stop =
                ["stop", "--pgdata", &data, "--mode", "immediate", "--timeout", &wait, "--silent"];
            if self.output("pg_ctl", &stop).is_err() {
                // Its children see it go, and end.
                let _ = child.kill();
            }
            let _ = child.wait();
        }
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            let directory = self.directory.display();
            eprintln!("hawser: could not remove {directory}: {error}");
        }
    }
}

/// The account the server runs as; `None`: our own.
fn account() -> Result<Option<Account>, ClusterError> {
    if !is_superuser() {
        return Ok(None);
    }
    for name in USERS {
        let found = account_by_name(name).map_err(system(format!("look up user \"{name}\"")))?;
        if let Some(account) = found
            && account.uid != 0
        {
            return Ok(Some(account));
        }
    }
    Err(ClusterError::NoUser)
}

fn make_directory(account: Option<&Account>) -> Result<PathBuf, ClusterError> {
    let name = format!("hawser-demo-{:016x}", random_u64());
    let mut directory = std::env::temp_dir().join(&name);
    if directory.as_os_str().len() > DIRECTORY_BYTES_MAX {
        directory = Path::new("/tmp").join(&name);
    }
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&directory)
        .map_err(system(format!("make {}", directory.display())))?;
    if let Some(account) = account {
        let given = chown(&directory, Some(account.uid), Some(account.gid));
        if let Err(source) = given {
            let _ = fs::remove_dir(&directory);
            return Err(ClusterError::System {
                what: "give the directory away".to_owned(),
                source,
            });
        }
    }
    Ok(directory)
}

/// The directory of PostgreSQL's server programs: PG_BIN, or that of PATH, or of several versions the
/// newest.
fn find_binaries() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let asked = std::env::var_os("PG_BIN").map(PathBuf::from);
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for (parent, prefix, rest) in [
        ("/usr/lib/postgresql", "", "bin"),
        ("/usr", "pgsql-", "bin"),
        ("/opt", "postgresql-", "bin"),
    ] {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let version = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse().ok());
            if let Some(version) = version {
                versions.push((version, entry.path().join(rest)));
            }
        }
    }
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    let known = versions.into_iter().map(|(_, directory)| directory);
    let more = ["/usr/local/pgsql/bin", "/usr/local/bin"].map(PathBuf::from);
    let named = asked.into_iter().chain(std::env::split_paths(&path));
    named.chain(known).chain(more).find(|directory| {
        ["initdb", "postgres", "pg_ctl"].iter().all(|program| is_program(&directory.join(program)))
    })
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_start_leaves_nothing() {
        let directory = make_directory(None).unwrap();
        let cluster = Cluster {
            binaries: PathBuf::from("/bin"),
            account: None,
            directory: directory.clone(),
            version: String::new(),
            postmaster: None,
        };
        fs::write(cluster.log(), "x").unwrap();
        assert!(matches!(cluster.output("false", &[]), Err(ClusterError::Failed { .. })));
        drop(cluster);
        assert!(!directory.exists());
    }

    #[test]
    fn only_what_can_be_run_is_a_program() {
        assert!(is_program(Path::new("/bin/sh")));
        assert!(!is_program(Path::new("/etc/passwd")));
        assert!(!is_program(Path::new("/bin")));
    }
}
