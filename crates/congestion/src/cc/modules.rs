//! Algorithms that are loaded for a comparison, and unloaded after it.
//!
//! # Invariants
//! * what was loaded before stays loaded; what a socket still uses stays too, which is said
//! * Ctrl-C and SIGTERM unload as the end does; `kill -9` leaves the modules, which `modprobe -r` takes
//!   out
//!
//! # Limits
//! The kernel loads a module when root asks for its algorithm (net/ipv4/tcp_cong.c,
//! `tcp_ca_find_autoload`): not in a container, and not where loading has been locked.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use hawser_sys::congestion;
use tokio::signal::unix::{SignalKind, signal};

/// What a shell says of a process that SIGINT has ended.
const EXIT_INTERRUPTED: i32 = 130;

/// Modules that are ours to unload; dropping it does so.
#[derive(Debug)]
pub struct Loaded(Arc<Mutex<Vec<String>>>);

impl Loaded {
    /// Loads every algorithm that this kernel has as a module. `say` gets a line for each, and the
    /// reason if one cannot be loaded.
    ///
    /// # Errors
    /// Signals cannot be waited for, or /proc cannot be read.
    pub fn all(say: impl Fn(String)) -> io::Result<Self> {
        let before = congestion::algorithms()?;
        let ours = Arc::new(Mutex::new(Vec::new()));
        unload_on_signals(ours.clone())?;
        let loaded = Self(ours);
        if before.loadable.is_empty() {
            say("there is no module to load: none of this kernel's is on this file system"
                .to_owned());
        }
        for name in before.loadable {
            match congestion::probe(&name) {
                Ok(()) => {
                    say(format!("tcp_{name} is loaded"));
                    loaded.0.lock().unwrap_or_else(PoisonError::into_inner).push(name);
                }
                Err(error) => say(format!("tcp_{name} is not loaded: {error}")),
            }
        }
        Ok(loaded)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        unload(&self.0);
    }
}

fn unload(ours: &Mutex<Vec<String>>) {
    let names = std::mem::take(&mut *ours.lock().unwrap_or_else(PoisonError::into_inner));
    for name in names {
        match congestion::unload(&name) {
            Ok(()) => eprintln!("tcp_{name} is unloaded"),
            Err(error) => eprintln!("tcp_{name} stays loaded: {error}"),
        }
    }
}

fn unload_on_signals(ours: Arc<Mutex<Vec<String>>>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _within = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        unload(&ours);
        std::process::exit(EXIT_INTERRUPTED)
    })?;
    Ok(())
}
