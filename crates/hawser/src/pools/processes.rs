//! The servers' processes of a pool's backends, and what is known of how many wait for locks.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::locked;

/// What is known of the lock waits of a pool's backends.
#[derive(Default, Debug)]
pub struct LockWaits {
    processes: Arc<Mutex<HashSet<u32>>>,
    /// A question is under way.
    pub asking: AtomicBool,
    /// It has been logged that all wait.
    pub said: AtomicBool,
}

/// The server's process of a backend, from its opening to its end.
#[derive(Debug)]
pub struct OwnProcess {
    processes: Arc<Mutex<HashSet<u32>>>,
    process: u32,
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        locked(&self.processes).remove(&self.process);
    }
}

impl LockWaits {
    /// A backend has been opened.
    pub fn own(&self, process: u32) -> OwnProcess {
        locked(&self.processes).insert(process);
        OwnProcess { processes: self.processes.clone(), process }
    }

    /// The processes as an array of SQL.
    pub fn array(&self) -> String {
        let mut array = String::from("{");
        for process in &*locked(&self.processes) {
            let comma = if array.len() > 1 { "," } else { "" };
            let _ = write!(array, "{comma}{process}");
        }
        array + "}"
    }
}
