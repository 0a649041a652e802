//! What all subsystems share.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::auth::access::Access;
use crate::config::Config;
use crate::gates::Gates;
use crate::limits::Limits;
use crate::loops::{Control, Loops, Pool};
use crate::phase::Phase;
use crate::rules::Rules;
use crate::tally::Tally;
use crate::threads::Threads;

/// The result of the last reload, or of the start.
#[derive(Clone, Debug)]
pub struct LastReload {
    /// When.
    pub at: SystemTime,
    /// Why the previous configuration is still in force, if it is.
    pub refused: Option<String>,
    /// Settings that have changed in the file, and keep their values until a restart.
    pub restart: Vec<&'static str>,
}

impl Default for LastReload {
    fn default() -> Self {
        Self { at: SystemTime::now(), refused: None, restart: Vec::new() }
    }
}

/// What all subsystems share.
pub struct Shared {
    /// The configuration in force.
    pub config: ArcSwap<Config>,
    /// The rules and users in force.
    pub access: ArcSwap<Access>,
    /// The event loops.
    pub loops: Loops,
    /// Orders to the control side.
    pub control: Control,
    /// All counts that are limited.
    pub limits: Arc<Limits>,
    /// The operator's rules.
    pub rules: Arc<Rules>,
    /// Which databases are paused or disabled.
    pub gates: Gates,
    /// Counters outside of pools.
    pub tally: Tally,
    /// The threads of the control side.
    pub threads: Threads,
    /// The phase of the process.
    pub phase: watch::Sender<Phase>,
}

impl Shared {
    /// The phase of the process.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Has so many backends opened for a pool, which counts them as opening already.
    pub fn open(&self, pool: &Pool, count: u32) {
        for _ in 0..count {
            self.control.open(pool.clone(), self.loops.least_loaded());
        }
    }
}
