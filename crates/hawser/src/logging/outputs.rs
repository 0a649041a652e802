//! Where lines of the log go: standard error, a file, syslog.
//!
//! # Model       a line is collected, and written to each output by one write
//! # Invariants  an output that fails costs its line there and nothing else: there is no place left to
//!               say so but the other outputs

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hawser_sys::process::Account;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{LogStartSettings, StartConfig};
use crate::lock::locked;
use crate::process::account_to_become;

/// Where syslog listens.
const SYSLOG_SOCKET: &str = "/dev/log";
/// A longer line is cut for syslog: what a datagram of rsyslog's default holds.
const SYSLOG_BYTES_MAX: usize = 8 * 1024;

/// All outputs.
#[derive(Clone, Debug)]
pub struct Outputs {
    /// Whether standard error is one.
    pub stderr: bool,
    file: Option<Arc<LogFile>>,
    syslog: Option<Arc<Syslog>>,
}

#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    mode: u32,
    file: Mutex<File>,
}

#[derive(Debug)]
struct Syslog {
    socket: UnixDatagram,
    at: PathBuf,
    /// The facility's code, RFC 5424 section 6.2.1.
    facility: u8,
    ident: String,
}

fn open(path: &Path, mode: u32) -> io::Result<File> {
    File::options().append(true).create(true).mode(mode).open(path)
}

/// The same, while the process is still root: a file that is made is given to the user that it becomes.
/// An existing one keeps its owner, because it may be a link to any file.
fn open_for(path: &Path, mode: u32, owner: Option<&Account>) -> io::Result<File> {
    if let Some(owner) = owner {
        match File::options().append(true).create_new(true).mode(mode).open(path) {
            Ok(file) => {
                fchown(&file, Some(owner.uid), Some(owner.gid))?;
                return Ok(file);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    open(path, mode)
}

/// Whose files are that are made, if the process becomes another user.
fn owner(start: &StartConfig) -> Result<Option<Account>, String> {
    account_to_become(start.process.user.as_deref()).map_err(|error| error.to_string())
}

impl Default for Outputs {
    fn default() -> Self {
        Self { stderr: true, file: None, syslog: None }
    }
}

impl Outputs {
    /// As the configuration has them.
    ///
    /// # Errors
    /// The file cannot be opened, there is no syslog, or no user to give the file to.
    pub fn of(start: &StartConfig, stderr: bool) -> Result<Self, String> {
        let (file, syslog) = (start.log.logfile.as_deref(), start.log.syslog);
        let outputs = Self::for_owner(&start.log, file, 0o666, syslog, owner(start)?.as_ref())?;
        Ok(Self { stderr, ..outputs })
    }

    /// Those of the audit. What it has is not for everybody.
    ///
    /// # Errors
    /// The same.
    pub(super) fn of_audit(start: &StartConfig) -> Result<Self, String> {
        let (file, syslog) = (start.log.audit_file.as_deref(), start.log.audit_syslog);
        Self::for_owner(&start.log, file, 0o640, syslog, owner(start)?.as_ref())
    }

    fn for_owner(
        settings: &LogStartSettings,
        file: Option<&Path>,
        mode: u32,
        syslog: bool,
        owner: Option<&Account>,
    ) -> Result<Self, String> {
        let file = match file {
            None => None,
            Some(path) => {
                let file = open_for(path, mode, owner)
                    .map_err(|e| format!("cannot open {}: {e}", path.display()))?;
                let (path, file) = (path.to_owned(), Mutex::new(file));
                Some(Arc::new(LogFile { path, mode, file }))
            }
        };
        let syslog = syslog.then(|| Syslog::at(Path::new(SYSLOG_SOCKET), settings));
        let syslog = syslog.transpose().map_err(|error| format!("syslog: {error}"))?;
        Ok(Self { stderr: false, file, syslog: syslog.map(Arc::new) })
    }

    /// Whether a line goes anywhere.
    pub fn any(&self) -> bool {
        self.stderr || self.beside_stderr()
    }

    /// Whether a line goes elsewhere than to standard error.
    pub fn beside_stderr(&self) -> bool {
        self.file.is_some() || self.syslog.is_some()
    }

    /// Opens the file again, for those that have moved it away.
    ///
    /// # Errors
    /// It cannot be opened: the old one stays.
    pub fn reopen(&self) -> Result<(), String> {
        let Some(log) = &self.file else { return Ok(()) };
        let new = open(&log.path, log.mode)
            .map_err(|e| format!("cannot open {}: {e}", log.path.display()))?;
        *locked(&log.file) = new;
        Ok(())
    }

    /// Writes a line to all.
    ///
    /// # Errors
    /// Of one that has not taken it.
    pub(super) fn write(&self, severity: u8, line: &[u8]) -> io::Result<()> {
        let to_stderr = self.stderr.then(|| io::stderr().lock().write_all(line));
        let to_file = self.file.as_ref().map(|log| locked(&log.file).write_all(line));
        let to_syslog = self.syslog.as_ref().map(|syslog| syslog.write(severity, line));
        [to_stderr, to_file, to_syslog].into_iter().flatten().collect()
    }

    #[cfg(test)]
    pub(super) fn of_file(path: &str, file: File) -> Self {
        let file = LogFile { path: path.into(), mode: 0o640, file: Mutex::new(file) };
        Self { stderr: false, file: Some(Arc::new(file)), syslog: None }
    }
}

impl Syslog {
    fn at(path: &Path, settings: &LogStartSettings) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect(path)?;
        Ok(Self {
            socket,
            at: path.to_owned(),
            facility: settings.syslog_facility.facility(),
            ident: settings.syslog_ident.clone(),
        })
    }

    fn write(&self, severity: u8, line: &[u8]) -> io::Result<()> {
        let priority = self.facility * 8 + severity;
        let mut datagram =
            format!("<{priority}>{}[{}]: ", self.ident, std::process::id()).into_bytes();
        datagram.extend_from_slice(line.trim_ascii());
        datagram.truncate(SYSLOG_BYTES_MAX);
        if self.socket.send(&datagram).is_err() {
            self.socket.connect(&self.at)?; // it has been restarted since
            self.socket.send(&datagram)?;
        }
        Ok(())
    }
}

/// A line that is being written.
#[derive(Debug)]
pub struct Line<'a> {
    outputs: &'a Outputs,
    severity: u8,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            let _ = self.outputs.write(self.severity, &self.text);
        }
    }
}

impl<'a> MakeWriter<'a> for Outputs {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { outputs: self, severity: 6, text: Vec::new() }
    }

    fn make_writer_for(&'a self, of: &Metadata<'_>) -> Line<'a> {
        // RFC 5424: error, warning, informational, debug.
        let severity = match *of.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        Line { outputs: self, severity, text: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn settings(log: &str) -> LogStartSettings {
        let text = format!(
            "[[database]]\nname = \"a\"\nservers = \"a\"\n[auth]\nusers_file = \"u\"\n[log]\n{log}"
        );
        Config::from_str(&text, "/t/x.toml").unwrap().start.log.clone()
    }

    #[test]
    fn syslog_has_priority_name_and_process_and_survives_its_restart() {
        let directory = tempfile_directory("syslog");
        let path = directory.join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        let settings = settings("syslog_facility = \"local3\"\nsyslog_ident = \"pooler\"\n");
        let syslog = Syslog::at(&path, &settings).unwrap();
        let outputs = Outputs { stderr: false, file: None, syslog: Some(Arc::new(syslog)) };
        let mut buffer = [0; 64 * 1024];
        let mut received = |daemon: &UnixDatagram| {
            let length = daemon.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        outputs.write(4, b"WARNING something\n").unwrap();
        let process = std::process::id();
        // local3 is 19, warning 4.
        assert_eq!(received(&daemon), format!("<156>pooler[{process}]: WARNING something"));
        drop(daemon);
        std::fs::remove_file(&path).unwrap();
        let daemon = UnixDatagram::bind(&path).unwrap();
        outputs.write(6, &[b'x'; 100_000]).unwrap();
        assert_eq!(received(&daemon).len(), SYSLOG_BYTES_MAX);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_logfile_is_appended_to_and_opened_again() {
        let directory = tempfile_directory("logfile");
        let path = directory.join("x.log");
        std::fs::write(&path, "before\n").unwrap();
        let settings = settings("");
        let outputs = Outputs::for_owner(&settings, Some(&path), 0o640, false, None).unwrap();
        outputs.write(6, b"one\n").unwrap();
        std::fs::rename(&path, directory.join("old")).unwrap();
        outputs.write(6, b"two\n").unwrap();
        outputs.reopen().unwrap();
        outputs.write(6, b"three\n").unwrap();
        assert_eq!(std::fs::read_to_string(directory.join("old")).unwrap(), "before\none\ntwo\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
        std::fs::remove_dir_all(directory).unwrap();
        assert!(outputs.reopen().is_err());
        let refused = Outputs::for_owner(&settings, Some(&path), 0o640, false, None);
        assert!(refused.unwrap_err().contains("x.log"));
    }

    /// As root's it could not be opened again after logrotate had moved it away.
    #[test]
    fn a_logfile_that_is_made_is_given_to_the_user_and_one_that_is_there_is_not() {
        let Ok(Some(nobody)) = hawser_sys::process::account_by_name("nobody") else { return };
        if !hawser_sys::process::is_superuser() {
            return; // only root gives files away
        }
        let directory = tempfile_directory("owner");
        let (made, there) = (directory.join("made"), directory.join("there"));
        std::fs::write(&there, "").unwrap();
        std::os::unix::fs::symlink(&there, directory.join("link")).unwrap();
        for path in [&made, &directory.join("link")] {
            Outputs::for_owner(&settings(""), Some(path), 0o666, false, Some(&nobody)).unwrap();
        }
        let owner = |path| std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(path).unwrap());
        assert_eq!((owner(&made), owner(&there)), (nobody.uid, 0));
        std::fs::remove_dir_all(directory).unwrap();
    }

    fn tempfile_directory(name: &str) -> PathBuf {
        let number = crate::process::random_u64();
        let path = std::env::temp_dir().join(format!("hawser-{name}-{number:x}"));
        std::fs::create_dir(&path).unwrap();
        path
    }
}
