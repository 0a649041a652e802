//! Which program has a socket: /proc/PID/fd names sockets by their inodes (proc(5)).
//!
//! # Limits
//! Processes of other users are seen by root alone (CAP_SYS_PTRACE), those of other pid namespaces
//! not at all.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::net::SocketAddr;

/// The processes that have the sockets with these inodes, each with its name (/proc/PID/comm): the one with
/// the smallest id where several share a socket.
pub fn find(inodes: &HashSet<u32>) -> BTreeMap<u32, (u32, String)> {
    let mut found: BTreeMap<u32, (u32, String)> = BTreeMap::new();
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
                found.entry(inode).or_insert_with(|| (pid, name_of(pid)));
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

/// Who listens on which TCP port, as far as this process saw it when it looked.
#[derive(Debug)]
pub struct Listeners(BTreeMap<u16, (u32, String)>);

impl Listeners {
    /// Looks, with the rights that this process has now.
    #[must_use]
    pub fn read() -> Self {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter();
        let tables: Vec<_> = tables.filter_map(|table| fs::read_to_string(table).ok()).collect();
        let ports: BTreeMap<u32, u16> = tables.iter().flat_map(|table| listening(table)).collect();
        let found = find(&ports.keys().copied().collect()).into_iter();
        Self(found.map(|(inode, program)| (ports[&inode], program)).collect())
    }

    /// Who listens on an address that is taken, in words.
    #[must_use]
    pub fn of(&self, address: SocketAddr) -> String {
        match self.0.get(&address.port()) {
            Some((pid, name)) => format!("{name} (process {pid})"),
            None => {
                "a process that this user cannot see (another user's or container's, a running Hawser), or by an \
                 MPTCP endpoint with this port (`hawser mptcp status`)"
                    .to_owned()
            }
        }
    }
}

/// The sockets in a table of the kernel's (proc_net_tcp.rst) that listen: their inodes and ports.
fn listening(table: &str) -> impl Iterator<Item = (u32, u16)> {
    const LISTEN: &str = "0A";
    table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let inode = fields.get(9).filter(|_| fields[3] == LISTEN)?;
        let (_, port) = fields[1].rsplit_once(':')?;
        Some((inode.parse().ok()?, u16::from_str_radix(port, 16).ok()?))
    })
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
        assert_eq!(found[&inode].0, std::process::id());
        assert!(!found[&inode].1.is_empty());
        let said = Listeners::read().of(listener.local_addr().unwrap());
        assert!(said.ends_with(&format!(" (process {})", std::process::id())), "{said}");
    }

    #[test]
    fn only_sockets_are_sockets() {
        assert_eq!(inode_of("socket:[42]"), Some(42));
        for link in ["pipe:[42]", "socket:[x]", "/dev/null", "socket:42"] {
            assert_eq!(inode_of(link), None);
        }
    }
}
