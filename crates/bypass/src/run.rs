//! `hawser bypass run -- COMMAND`: a program, and what it starts, in a control group of its own.
//!
//! # Model
//! Hawser enters the control group, so that the program is in it from its first instruction, waits,
//! passes signals on, and goes back. If Hawser is killed, the program goes on as before, and what was
//! pinned stays until the next `run`, or `off`.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, Command};

use hawser_sys::process::{
    self, catch_signals_to_pass_on, descriptor_of_process, pass_signals_on, wait_for,
};

use crate::kernel::Place;
use crate::place::{self, Entered, Error};

/// Runs it, at [`Place::Programs`] or [`Place::Blocking`]. Gives its exit code, as a shell has it.
///
/// # Errors
/// See [`Error`]; then the program was not started, and nothing is left.
pub fn run(place: Place, command: &[OsString]) -> Result<u8, Error> {
    let Some((name, arguments)) = command.split_first() else { return Ok(0) };
    let root = place::root()?;
    let lock = place::lock()?;
    place::tidy(&root);
    let _bypass = place::ready(&root, place)?;
    let group = place::group(&root, place).join(format!("run-{}", std::process::id()));
    let entered = match Entered::make(&root, group) {
        Ok(entered) => entered,
        Err(error) => {
            place::tidy(&root);
            return Err(error);
        }
    };
    drop(lock);
    let started = Command::new(name).args(arguments).spawn();
    let ended = started
        .map_err(|source| Error::Program { name: name.to_string_lossy().into_owned(), source })
        .and_then(|child| supervise(child).map_err(place::file("waiting for the program")));
    if !entered.leave() {
        eprintln!("hawser: programs that it has started continue, past TCP as before");
    }
    // Another one that is at it tidies up as well.
    if let Ok(_lock) = place::lock() {
        place::tidy(&root);
    }
    ended
}

fn supervise(mut child: Child) -> io::Result<u8> {
    let signals = catch_signals_to_pass_on()?;
    let ended = descriptor_of_process(child.id())?;
    loop {
        let ready = wait_for(&[ended.as_fd(), signals.as_fd()])?;
        // The descriptor of signals does not wait.
        pass_signals_on(&signals, child.id());
        if ready[0].0 {
            return Ok(process::exit_code(child.wait()?));
        }
    }
}

/// As env(1) and timeout(1) have them.
#[must_use]
pub fn exit_code(error: &Error) -> u8 {
    match error {
        Error::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
        Error::Program { .. } => 126,
        _ => 125,
    }
}
