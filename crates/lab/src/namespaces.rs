//! The laboratory: a described network between network namespaces of this machine.
//!
//! # Model
//! Each host is a network namespace. A link that does nothing to packets is a pair of interfaces
//! (veth). Any other is a TUN device at each end, and one thread, the [`emulator`], between all of
//! them, which does to packets what [`crate::wan::Network`] says; or it is the kernel's own queues,
//! in a namespace between the hosts' ([`wires`]), where the description or the user says so, and
//! where the emulator may be too slow.
//!
//! # Invariants
//! - nothing has a name outside: namespaces, devices and routes are gone with the descriptors of
//!   this process, however it ends
//! - no setting, route or device outside its own namespaces is touched
//!
//! # Why not     netem wherever the kernel has it: it loses other packets than the emulator and
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
pub mod wires;

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::emulator::Emulator;
use self::report::Snapshot;
use self::setup::Built;
pub use self::setup::UpError;
use self::wires::{Carrier, Wires};
use crate::wan::Description;

/// A network that is up. It is gone when this is dropped, and when the process ends.
#[derive(Debug)]
pub struct Laboratory {
    description: Arc<Description>,
    seed: u64,
    hosts: Vec<OwnedFd>,
    carriers: Vec<Carrier>,
    emulator: Option<Emulator>,
    wires: Option<Wires>,
    began: Instant,
}

impl Laboratory {
    /// Makes the namespaces and what joins them, and starts to emulate.
    ///
    /// # Errors
    /// What is missing here, or what the kernel refused.
    pub fn up(description: Description, seed: u64) -> Result<Self, UpError> {
        let description = Arc::new(description);
        let carriers = wires::choose(&description)?;
        let Built { hosts, devices, mut wires } = setup::build(&description, &carriers, seed)?;
        let began = Instant::now();
        if let Some(wires) = &mut wires {
            wires.begin(&description, began).map_err(setup::at("beginning the outages"))?;
        }
        let emulator = if devices.is_empty() {
            None
        } else {
            let started = Emulator::start(&description, seed, devices, began);
            Some(started.map_err(setup::at("starting the emulator"))?)
        };
        Ok(Self { description, seed, hosts, carriers, emulator, wires, began })
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

    /// Who carries a link.
    ///
    /// # Panics
    /// Where there is no such link.
    #[must_use]
    pub fn carrier(&self, link: usize) -> Carrier {
        self.carriers[link]
    }

    /// Whether chance by the kernel follows from the seed; `None` where it has no chance to do.
    #[must_use]
    pub fn kernel_is_seeded(&self) -> Option<bool> {
        self.wires.as_ref().and_then(|wires| wires.is_seeded)
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
