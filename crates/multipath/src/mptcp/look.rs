//! Reads all that there is of MPTCP in this network namespace, once.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use hawser_sys::mptcp::diagnosis::{self, Dump};
use hawser_sys::mptcp::endpoint::{Endpoint, Limits, PathManager};
use hawser_sys::mptcp::kernel::{self, Sysctls};
use hawser_sys::mptcp::{event, socket};
use hawser_sys::netlink::NetlinkError;

use super::others::{self, Other};
use super::programs::{self, Program};

/// All that there is.
#[derive(Debug)]
pub struct Look {
    /// When it was read.
    pub at: Instant,
    /// The kernel's release.
    pub release: String,
    /// Why there are no MPTCP sockets.
    pub unsupported: Option<socket::Unsupported>,
    /// Settings.
    pub sysctls: Sysctls,
    /// Endpoints and limits, or why they cannot be read.
    pub manager: Result<(Vec<Endpoint>, Limits), NetlinkError>,
    /// Whether any program listens to events, if that can be found.
    pub has_listener: Option<bool>,
    /// Other programs that manage here.
    pub others: Vec<Other>,
    /// Connections and subflows, or why they cannot be read.
    pub sockets: Result<Dump, NetlinkError>,
    /// The programs that have them, by inode.
    pub programs: BTreeMap<u32, Program>,
}

/// Reads it.
pub fn look() -> Look {
    let manager = PathManager::open().and_then(|mut manager| {
        let endpoints = manager.endpoints()?;
        Ok((endpoints, manager.limits()?))
    });
    let sockets = diagnosis::dump();
    let at = Instant::now();
    let inodes: HashSet<u32> = sockets.as_ref().map_or_else(
        |_| HashSet::new(),
        |dump| {
            let connections = dump.connections.iter().map(|connection| connection.socket.inode);
            let listeners = dump.listeners.iter().map(|listener| listener.inode);
            connections.chain(listeners).filter(|inode| *inode != 0).collect()
        },
    );
    Look {
        at,
        release: kernel::release(),
        unsupported: socket::probe().err(),
        sysctls: kernel::sysctls(),
        manager,
        has_listener: event::is_listened_to(),
        others: others::running(),
        programs: programs::find(&inodes),
        sockets,
    }
}
