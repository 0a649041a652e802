//! SIGUSR2: a process starts its own successor.
//!
//! # Model  the program that was started, in its present version on disk, with the same arguments,
//!          directory and environment; [`VARIABLE`] marks it as the successor
//!
//! # Why by the old process
//! Its child is in its control group, its namespaces and under its limits: so a service manager
//! still knows its unit.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Succession;

/// Set for a process that must take the place of the one that started it.
pub const VARIABLE: &str = "HAWSER_TAKEOVER";

/// Whether the process that started this one wants to be replaced.
pub fn is_asked_for() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// The path that started this process: searched in PATH if it had no directory, and not resolved
/// further, because a link may lead to another version by now.
fn program(name: &OsStr, path: Option<&OsStr>) -> PathBuf {
    let given = Path::new(name);
    if given.components().count() > 1 {
        return given.to_owned();
    }
    let directories = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>());
    let places = directories.into_iter().flatten().map(|directory| directory.join(name));
    let mut there = places.filter(|place| place.is_file());
    there.next().unwrap_or_else(|| given.to_owned())
}

/// Starts the successor, and logs an error if it does not become ready.
pub fn successor(succession: &Arc<Succession>) {
    if !succession.serves() {
        tracing::warn!("SIGUSR2: this process has a successor already, or is about to start");
        return;
    }
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| OsString::from("hawser"));
    let arguments: Vec<OsString> = arguments.collect();
    let program = program(&name, std::env::var_os("PATH").as_deref());
    match spawn(&program, &name, &arguments) {
        Ok(child) => {
            let pid = child.id();
            tracing::info!(pid, program = %program.display(), "a successor has been started");
            tokio::spawn(wait(child, succession.clone()));
        }
        Err(error) => tracing::error!(
            program = %program.display(), %error,
            "could not start a successor: this process continues"
        ),
    }
}

fn spawn(
    program: &Path,
    name: &OsStr,
    arguments: &[OsString],
) -> io::Result<tokio::process::Child> {
    let mut command = std::process::Command::new(program);
    command.arg0(name).args(arguments).env(VARIABLE, "1");
    // They name descriptors that are not passed on in this way.
    for variable in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        command.env_remove(variable);
    }
    command.env_remove(crate::process::BACKGROUND_VARIABLE);
    tokio::process::Command::from(command).spawn()
}

/// Nothing else does.
async fn wait(mut child: tokio::process::Child, succession: Arc<Succession>) {
    let pid = child.id();
    let ended = child.wait().await;
    if !succession.is_given() {
        let status = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        tracing::error!(pid, status, "the successor has ended: this process continues");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_as_the_shell_found_it() {
        let found = |name: &str, path: &str| program(name.as_ref(), Some(path.as_ref()));
        assert_eq!(found("/opt/h/hawser", "/bin"), Path::new("/opt/h/hawser"));
        assert_eq!(found("./hawser", "/bin"), Path::new("./hawser"));
        assert_eq!(found("sh", "/nowhere:/bin"), Path::new("/bin/sh"));
        assert_eq!(found("no-such-program", "/bin"), Path::new("no-such-program"));
    }
}
