//! Asks PAM whether a password is a user's.
//!
//! # Model
//! ```text
//!   login ─► hawser pam-check: service, user, host and password on its standard input, each with a NUL
//!         ◄── exit code: ACCEPTED; REFUSED, with the reason on standard output; else it could not be asked
//! ```
//! # Why a process of its own
//! A module may block for any time and keep anything in memory. The process is killed after the
//! bound, with its children that have not left its process group (pam_exec's programs have); a
//! fault in a module ends one login. Costs some milliseconds.
//!
//! # Limits
//! The modules must allow the user of the process to ask: pam_unix as another user than root needs
//! its setuid helper, which NoNewPrivileges of a unit keeps from working. A program without
//! libraries (musl) has no PAM, and says so at each login by it.

use std::ffi::CString;
use std::io::Read;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use hawser_sys::pam::{self, PamError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::process;
use crate::process::group::ProcessGroup;

/// The other end's name on the command line.
pub const COMMAND: &str = "pam-check";
/// Our own program, even if the file has been replaced meanwhile.
const OURSELVES: &str = "/proc/self/exe";
/// Exit code: PAM was asked, and refused.
const REFUSED: u8 = 3;
/// Not 0: a module that ends the process by exit(0) must not let a user in.
const ACCEPTED: u8 = 43;
const QUESTION_BYTES_MAX: u64 = 256 * 1024;
const REASON_BYTES_MAX: u64 = 4096;
/// Processes at one time: a storm of logins waits for its turn, within each one's bound.
const AT_ONCE: usize = 16;
static ROOM: Semaphore = Semaphore::const_new(AT_ONCE);

/// A question to PAM.
#[derive(Clone)]
pub struct Question {
    /// The service, whose file in /etc/pam.d says how.
    pub service: String,
    /// The user.
    pub user: String,
    /// Where the client is; empty for a unix socket.
    pub host: String,
    /// What the client has sent.
    pub password: Box<[u8]>,
}

/// The outer error: PAM was not asked; the inner one: why it refused. Both are for the log.
///
/// # Errors
/// PAM was not asked, or has not answered within the bound.
pub async fn check(question: &Question, within: Duration) -> Result<Result<(), String>, String> {
    let asked = timeout(within, ask(question));
    asked.await.unwrap_or_else(|_| Err(format!("no answer within {} s", within.as_secs_f32())))
}

async fn ask(question: &Question) -> Result<Result<(), String>, String> {
    let failed = |error: std::io::Error| format!("{COMMAND}: {error}");
    // (It is never closed.)
    let _room = ROOM.acquire().await.map_err(|error| error.to_string())?;
    let mut command = Command::new(OURSELVES);
    command
        .arg0("hawser")
        .arg(COMMAND)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut running = ProcessGroup::start(&mut command).map_err(failed)?;
    let (stdin, stdout) = running.pipes();
    let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
        return Err(failed(std::io::ErrorKind::BrokenPipe.into()));
    };
    let parts = [&question.service, &question.user, &question.host].map(String::as_bytes);
    let parts = [parts[0], b"\0", parts[1], b"\0", parts[2], b"\0", &question.password, b"\0"];
    stdin.write_all(&parts.concat()).await.map_err(failed)?;
    drop(stdin);
    let mut reason = Vec::new();
    stdout.take(REASON_BYTES_MAX).read_to_end(&mut reason).await.map_err(failed)?;
    let status = running.wait().await.map_err(failed)?;
    let reason = String::from_utf8_lossy(&reason).trim().to_owned();
    match status.code() {
        Some(code) if code == i32::from(ACCEPTED) => Ok(Ok(())),
        Some(code) if code == i32::from(REFUSED) => Ok(Err(reason)),
        _ => Err(format!("{COMMAND} ended with {status}: {reason}")),
    }
}

/// The other end: `hawser pam-check`.
pub fn answer() -> ExitCode {
    process::set_dumpable(false); // an exec has undone that, and a module may crash
    let mut input = Vec::new();
    let read = std::io::stdin().lock().take(QUESTION_BYTES_MAX).read_to_end(&mut input);
    let mut parts = input.split(|byte| *byte == 0).map(CString::new);
    let mut part = || parts.next().and_then(Result::ok);
    let (Ok(_), Some(service), Some(user), Some(host), Some(password)) =
        (read, part(), part(), part(), part())
    else {
        crate::cli::print("service, user, host and password are read from standard input\n");
        return ExitCode::FAILURE;
    };
    let host = (!host.is_empty()).then_some(host.as_c_str());
    match pam::check(&service, &user, &password, host) {
        Ok(()) => ExitCode::from(ACCEPTED),
        Err(error) => {
            crate::cli::print(&format!("{error}\n"));
            match error {
                PamError::Refused { .. } => ExitCode::from(REFUSED),
                PamError::NoLibrary(_) => ExitCode::FAILURE,
            }
        }
    }
}
