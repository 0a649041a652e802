//! Which program has a socket: /proc/PID/fd names sockets by their inodes (proc(5)).
//!
//! # Limits
//! Processes of other users are seen by root alone (CAP_SYS_PTRACE), those of other pid namespaces
//! not at all.

use std::collections::{BTreeMap, HashSet};
use std::fs;

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
    let mut found: BTreeMap<u32, Program> = BTreeMap::new();
    if inodes.is_empty() {
        return found;
    }
    let Ok(processes) = fs::read_dir("/proc") else { return found };
    let mut pids: Vec<u32> =
        processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    for pid in pids {
        // A process that has ended meanwhile, or is another's.
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for descriptor in descriptors.filter_map(Result::ok) {
            let inode = fs::read_link(descriptor.path())
                .ok()
                .and_then(|link| inode_of(link.to_str()?))
                .filter(|inode| inodes.contains(inode));
            if let Some(inode) = inode {
                found.entry(inode).or_insert_with(|| Program { pid, name: name_of(pid) });
            }
        }
        if found.len() == inodes.len() {
            break;
        }
    }
    found
}

fn inode_of(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .map(|name| name.trim_end().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::os::linux::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_program_of_a_socket_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let path = format!("/proc/self/fd/{}", listener.as_raw_fd());
        let inode = fs::metadata(path).unwrap().st_ino() as u32;
        let found = find(&HashSet::from([inode, u32::MAX]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[&inode].pid, std::process::id());
        assert!(!found[&inode].name.is_empty());
    }

    #[test]
    fn only_sockets_are_sockets() {
        assert_eq!(inode_of("socket:[42]"), Some(42));
        for link in ["pipe:[42]", "socket:[x]", "/dev/null", "socket:42"] {
            assert_eq!(inode_of(link), None);
        }
    }
}
