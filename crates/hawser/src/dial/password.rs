//! Passwords to servers that are not in the configuration: from a file or from a command, and read
//! again. For tokens of clouds, which are valid for minutes.
//!
//! # Model
//! ```text
//!   file       read at each opening of a server connection
//!   command run when its last output is older than `password_max_age`, or when a server has
//!              refused it: once for each refusal, and once for all that wait for it
//! ```
//! # Invariants
//! * a command takes no longer than `server_connect_timeout`, then it is killed with its children
//!   that have not left its process group
//! * no output of a command is in an error or in the log: it may be the password

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

use super::enter::Credentials;
use crate::auth::secret::Secret;
use crate::lock::locked;
use crate::process::group::ProcessGroup;

/// Tokens have some kilobytes at most.
const PASSWORD_BYTES_MAX: u64 = 64 * 1024;
/// How long a failure counts: the source of the password must not be asked at each attempt.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// How much of a command's error output is logged.
const COMPLAINT_CHARS_MAX: usize = 300;

/// The source of a user's password.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PasswordSource {
    /// The user.
    pub user: String,
    /// Its place.
    pub place: Place,
}

/// A file or a command.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// Its content.
    File(PathBuf),
    /// Its output.
    Command {
        /// The program and its arguments.
        words: Vec<String>,
        /// How long its output is used.
        max_age: Duration,
    },
}

/// Why there is no password.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    /// The file cannot be read.
    #[error("password_file \"{0}\": {1}")]
    File(PathBuf, io::Error),
    /// The command cannot be run.
    #[error("password_command \"{0}\": {1}")]
    Run(String, io::Error),
    /// It has failed with this output, which only the log gets.
    #[error("password_command \"{0}\" ended with {1}")]
    Status(String, std::process::ExitStatus, String),
    /// It took longer than `server_connect_timeout`.
    #[error("\"{name}\" gave no password within {} s", .1.as_secs_f32(), name = .0)]
    Timeout(String, Duration),
    /// It is empty, too long, or not text.
    #[error("\"{0}\" gives no password: one line of text")]
    NoPassword(String),
}

/// The last password of a source.
struct Held {
    text: String,
    since: Instant,
    credentials: Arc<Credentials>,
}

/// The state of a source.
#[derive(Default)]
enum State {
    #[default]
    Unread,
    Held(Held),
    /// It failed then, for this reason. A login that has waited since before that need not try as
    /// well.
    Failed(Instant, Arc<PasswordError>),
}

type Slot = Arc<tokio::sync::Mutex<State>>;

/// The passwords in use. Those of the configuration, and of earlier ones.
#[derive(Default, derive_more::Debug)]
#[debug("Passwords(..)")]
pub struct Passwords(Mutex<HashMap<PasswordSource, Slot>>);

impl Passwords {
    /// The present password, for a caller that waits no longer than `patience`. A command may take
    /// longer: it continues, and the next caller gets its output.
    pub async fn get_soon(
        self: &Arc<Self>,
        source: &PasswordSource,
        within: Duration,
        patience: Duration,
    ) -> Option<Arc<Credentials>> {
        let get = async {
            drop(self.slot(source).lock().await); // while another asks, none starts: few wait
            let (this, source) = (self.clone(), source.clone());
            let get = tokio::spawn(async move { this.get(&source, None, within).await });
            get.await.ok()?.ok() // a failure, or a panic, is in the log
        };
        timeout(patience, get).await.ok().flatten()
    }

    fn slot(&self, source: &PasswordSource) -> Slot {
        let mut all = locked(&self.0);
        all.entry(source.clone()).or_default().clone()
    }

    /// The present password. `refused`: these were refused, and others are wanted if there are any.
    /// `within`: the bound on a command.
    ///
    /// # Errors
    /// See [`PasswordError`].
    pub async fn get(
        &self,
        source: &PasswordSource,
        refused: Option<&Arc<Credentials>>,
        within: Duration,
    ) -> Result<Arc<Credentials>, Arc<PasswordError>> {
        let slot = self.slot(source);
        let begun = Instant::now();
        // Others that come meanwhile wait here, and use this one's result.
        let mut state = slot.lock().await;
        match (&*state, &source.place) {
            (State::Held(held), Place::Command { max_age, .. }) => {
                let is_refused =
                    refused.is_some_and(|refused| Arc::ptr_eq(refused, &held.credentials));
                if !is_refused && held.since.elapsed() < *max_age {
                    return Ok(held.credentials.clone());
                }
            }
            (State::Failed(at, error), _) if *at >= begun || at.elapsed() < FAILED_FOR => {
                return Err(error.clone());
            }
            _ => {}
        }
        let read = match timeout(within, read(source)).await {
            Ok(read) => read,
            Err(_) => Err(PasswordError::Timeout(source.place.name(), within)),
        };
        let since = Instant::now();
        let text = match read {
            Ok(text) => text,
            Err(error) => {
                if !matches!(*state, State::Failed(..)) {
                    let stderr = match &error {
                        PasswordError::Status(_, _, complaint) => complaint.as_str(),
                        _ => "",
                    };
                    tracing::warn!(user = source.user, %error, stderr, "no password for servers");
                }
                let error = Arc::new(error);
                *state = State::Failed(since, error.clone());
                return Err(error);
            }
        };
        if let State::Held(held) = &mut *state
            && held.text == text
        {
            held.since = since;
            return Ok(held.credentials.clone()); // with the keys that were derived
        }
        let secret = Secret::Plain(text.as_str().into());
        let credentials = Arc::new(Credentials::new(&secret, None));
        *state = State::Held(Held { text, since, credentials: credentials.clone() });
        Ok(credentials)
    }
}

impl Place {
    fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Command { words, .. } => words.first().cloned().unwrap_or_default(),
        }
    }
}

async fn read(source: &PasswordSource) -> Result<String, PasswordError> {
    let bytes = match &source.place {
        Place::File(path) => {
            let failed = |error| PasswordError::File(path.clone(), error);
            let path = path.clone();
            let read = tokio::task::spawn_blocking(move || {
                let mut bytes = Vec::new();
                let file = std::fs::File::open(path)?;
                io::Read::read_to_end(&mut io::Read::take(file, PASSWORD_BYTES_MAX), &mut bytes)?;
                Ok(bytes)
            });
            read.await.map_err(io::Error::other).and_then(|read| read).map_err(failed)?
        }
        Place::Command { words, .. } => run(words, &source.user).await?,
    };
    let text = String::from_utf8(bytes).ok();
    let text = text.as_deref().map(|text| text.trim_end_matches(['\r', '\n']));
    match text {
        Some(text) if !text.is_empty() && !text.contains(['\0', '\n']) => Ok(text.to_owned()),
        _ => Err(PasswordError::NoPassword(source.place.name())),
    }
}

/// The output of a command, which is killed if this is dropped.
async fn run(words: &[String], user: &str) -> Result<Vec<u8>, PasswordError> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(PasswordError::NoPassword(String::new()));
    };
    let failed = |error| PasswordError::Run(program.clone(), error);
    let mut command = Command::from(hawser_sys::process::command(program));
    command
        .args(arguments)
        .env("PGUSER", user)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = ProcessGroup::start(&mut command).map_err(failed)?;
    let ((_, Some(stdout)), Some(stderr)) = (running.pipes(), running.stderr()) else {
        return Err(failed(io::ErrorKind::BrokenPipe.into()));
    };
    let (mut printed, mut complaint) = (Vec::new(), Vec::new());
    let (mut stdout, mut stderr) =
        (stdout.take(PASSWORD_BYTES_MAX), stderr.take(PASSWORD_BYTES_MAX));
    let read = tokio::join!(stdout.read_to_end(&mut printed), stderr.read_to_end(&mut complaint));
    read.0.and(read.1).map_err(failed)?;
    drop((stdout, stderr)); // a command that prints more ends by that
    let status = running.wait().await.map_err(failed)?;
    if status.success() {
        return Ok(printed);
    }
    let complaint = String::from_utf8_lossy(&complaint);
    let complaint: String = complaint.trim().chars().take(COMPLAINT_CHARS_MAX).collect();
    Err(PasswordError::Status(program.clone(), status, complaint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, max_age: Duration) -> PasswordSource {
        let words = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        PasswordSource { user: "ann".to_owned(), place: Place::Command { words, max_age } }
    }

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_command_is_run_again_when_its_output_is_old_or_refused_and_not_before() {
        let directory =
            std::env::temp_dir().join(format!("hawser-password-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let runs = directory.join("runs");
        let _ = std::fs::remove_file(&runs);
        let script = format!("echo x >> {0}; echo \"$PGUSER $(wc -l < {0})\"", runs.display());
        let count = || std::fs::read_to_string(&runs).unwrap().lines().count();
        let (passwords, source) = (Passwords::default(), shell(&script, LONG));
        let all = tokio::join!(
            passwords.get(&source, None, LONG),
            passwords.get(&source, None, LONG),
            passwords.get(&source, None, LONG)
        );
        let first = all.0.unwrap();
        assert!(Arc::ptr_eq(&first, &all.1.unwrap()) && Arc::ptr_eq(&first, &all.2.unwrap()));
        assert!(first.cover(&Secret::Plain("ann 1".into())), "PGUSER is the user");
        assert_eq!(count(), 1);
        let second = passwords.get(&source, Some(&first), LONG).await.unwrap();
        assert!(second.cover(&Secret::Plain("ann 2".into())));
        let again = passwords.get(&source, Some(&first), LONG).await.unwrap();
        assert!(Arc::ptr_eq(&second, &again), "these others have not been refused");
        assert_eq!(count(), 2);
        let short_lived = shell(&script, Duration::ZERO);
        for _ in 0..2 {
            passwords.get(&short_lived, None, LONG).await.unwrap();
        }
        assert_eq!(count(), 4);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[tokio::test]
    async fn a_command_that_fails_hangs_or_prints_no_line_is_an_error_without_its_output() {
        let passwords = Passwords::default();
        for (script, within, expected) in [
            ("echo geheim; exit 3", LONG, "ended with exit status: 3"),
            ("exec sleep 100", Duration::from_millis(50), "gave no password within 0.05 s"),
            ("true", LONG, "gives no password"),
            ("printf 'geheim\\nx'", LONG, "gives no password"),
            ("printf 'geheim\\0'", LONG, "gives no password"),
        ] {
            let error = passwords.get(&shell(script, LONG), None, within).await.map(|_| ());
            let error = error.unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("geheim"), "{error}");
        }
        let words = vec!["/nonexistent/token".to_owned()];
        let place = Place::Command { words, max_age: LONG };
        let source = PasswordSource { user: "ann".to_owned(), place };
        let error = passwords.get(&source, None, LONG).await.map(|_| ()).unwrap_err();
        assert!(matches!(*error, PasswordError::Run(..)), "{error}");
    }

    #[tokio::test]
    async fn one_that_waits_no_longer_leaves_the_command_running() {
        let path = std::env::temp_dir().join(format!("hawser-slow-token-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let script = format!("echo x >> {}; sleep 1; echo slow", path.display());
        let (passwords, source) = (Arc::new(Passwords::default()), shell(&script, LONG));
        let soon = passwords.get_soon(&source, LONG, Duration::from_millis(50)).await;
        assert!(soon.is_none(), "it has not waited");
        let begun = Instant::now();
        while passwords.get_soon(&source, LONG, Duration::from_millis(50)).await.is_none() {
            assert!(begun.elapsed() < LONG);
        }
        let runs = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(runs.lines().count(), 1, "the first run's password is taken");
    }

    #[tokio::test]
    async fn what_a_command_has_started_is_killed_with_it() {
        let path = std::env::temp_dir().join(format!("hawser-group-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        // The shell waits for a child, which is what hangs.
        let script = format!("sleep 100 & echo $! > {0}.new; mv {0}.new {0}; wait", path.display());
        let within = Duration::from_secs(2);
        let error = Passwords::default().get(&shell(&script, LONG), None, within).await.map(|_| ());
        assert!(matches!(*error.unwrap_err(), PasswordError::Timeout(..)));
        let child = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // It is gone, or waits for its new parent to notice that.
        let is_there = || {
            std::fs::read_to_string(format!("/proc/{}/stat", child.trim()))
                .is_ok_and(|stat| stat.contains("(sleep)") && !stat.contains(") Z "))
        };
        let begun = Instant::now();
        while is_there() {
            assert!(begun.elapsed() < LONG, "the command's child goes on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_file_is_read_each_time_and_keeps_its_keys_while_it_is_the_same() {
        let path = std::env::temp_dir().join(format!("hawser-token-{}", std::process::id()));
        let place = Place::File(path.clone());
        let source = PasswordSource { user: "ann".to_owned(), place };
        let passwords = Passwords::default();
        std::fs::write(&path, "one\n").unwrap();
        let one = passwords.get(&source, None, LONG).await.unwrap();
        let same = passwords.get(&source, None, LONG).await.unwrap();
        assert!(Arc::ptr_eq(&one, &same));
        std::fs::write(&path, "two").unwrap();
        let two = passwords.get(&source, None, LONG).await.unwrap();
        assert!(two.cover(&Secret::Plain("two".into())));
        std::fs::remove_file(&path).unwrap();
        let error = passwords.get(&source, None, LONG).await.map(|_| ()).unwrap_err();
        assert!(matches!(*error, PasswordError::File(..)), "{error}");
    }
}
