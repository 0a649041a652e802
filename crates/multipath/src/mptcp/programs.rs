//! Which program has a socket: see [`hawser_sys::programs`].

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

/// A program that has a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Its process id; the smallest where several share the socket.
    pub pid: u32,
    /// Its name (/proc/PID/comm).
    pub name: String,
}

/// The programs that have the sockets with these inodes.
pub fn find(inodes: &HashSet<u32>) -> BTreeMap<u32, Program> {
    let found = hawser_sys::programs::find(inodes).into_iter();
    found.map(|(inode, (pid, name))| (inode, Program { pid, name })).collect()
}
