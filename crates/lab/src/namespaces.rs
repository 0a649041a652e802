//! The laboratory: a described network between network namespaces of this machine.
//!
//! # Model
//! Each host is a network namespace. A link that does nothing to packets is a pair of interfaces
//! (veth). Any other is a TUN device at each end, and one thread, the [`emulator`], between all of
//! them, which does to packets what [`crate::wan::Network`] says.
//!
//! # Invariants
//! - nothing has a name outside: namespaces, devices and routes are gone with the descriptors of
//!   this process, however it ends
//! - no setting, route or device outside its own namespaces is touched
//!
//! # Why not     the kernel's own queues (netem): they lose other packets than the emulator and
//!               virtual time do for the same seed, and cannot say how late each of them left. See
//!               docs/decisions/0002
//! # Limits      needs the rights of [`crate::namespaces::setup`]; one thread carries all links

pub mod control;
pub mod emulator;
pub mod errand;
pub mod lateness;
pub mod probe;
pub mod report;
pub mod selftest;
pub mod setup;

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::emulator::Emulator;
use self::report::Snapshot;
pub use self::setup::UpError;
use crate::wan::Description;

/// A network that is up. It is gone when this is dropped, and when the process ends.
#[derive(Debug)]
pub struct Laboratory {
    description: Arc<Description>,
    seed: u64,
    hosts: Vec<OwnedFd>,
    emulator: Option<Emulator>,
    began: Instant,
}

impl Laboratory {
    /// Makes the namespaces and what joins them, and starts to emulate.
    ///
    /// # Errors
    /// What is missing here, or what the kernel refused.
    pub fn up(description: Description, seed: u64) -> Result<Self, UpError> {
        let description = Arc::new(description);
        let (hosts, devices) = setup::build(&description)?;
        let began = Instant::now();
        let emulator = if devices.is_empty() {
            None
        } else {
            let started = Emulator::start(&description, seed, devices, began);
            Some(started.map_err(setup::at("starting the emulator"))?)
        };
        Ok(Self { description, seed, hosts, emulator, began })
    }

    /// What it is of.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// What its chance follows from.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The network namespace of a host.
    ///
    /// # Panics
    /// Where there is no such host.
    #[must_use]
    pub fn host(&self, host: usize) -> BorrowedFd<'_> {
        self.hosts[host].as_fd()
    }

    /// The addresses of a host, in the order of its links; for each link IPv4 and then IPv6.
    #[must_use]
    pub fn addresses(&self, host: usize) -> Vec<IpAddr> {
        let pairs = self.description.ports(host).map(|port| self.description.addresses(port));
        pairs.flat_map(|(v4, v6)| [v4.into(), v6.into()]).collect()
    }

    /// The congestion control algorithm that sockets of a host get by default.
    ///
    /// # Errors
    /// The host's settings could not be read.
    ///
    /// # Panics
    /// Where there is no such host.
    pub fn congestion_control(&self, host: usize) -> std::io::Result<String> {
        setup::congestion_control(&self.hosts[host])
    }

    /// The time that outages and the emulator count by.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// What has happened so far.
    ///
    /// # Errors
    /// The kernel's counts could not be read.
    pub fn snapshot(&self) -> std::io::Result<Snapshot> {
        report::snapshot(self)
    }
}
