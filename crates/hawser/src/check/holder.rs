//! Which process has a TCP address, by /proc.
//!
//! # Limits      processes of other users are seen by root alone

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `st` of /proc/net/tcp: listening.
const LISTENS: &str = "0A";
/// Processes that are looked at.
const PROCESSES_MAX: usize = 100_000;

/// Its number and name, as "process 7 (nginx)"; `None`: it cannot be known.
pub(super) fn of(address: SocketAddr) -> Option<String> {
    let table = if address.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
    let table = fs::read_to_string(table).ok()?;
    let inode = inode(&table, address.port())?;
    let socket = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let has = |path: &PathBuf| {
        if path
            .file_name()
            .is_none_or(|name| !name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
        {
            return false; // self among them
        }
        let Ok(files) = fs::read_dir(path.join("fd")) else { return false };
        let mut files = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
        files.any(|target| target.as_os_str() == socket.as_str())
    };
    let path = processes.take(PROCESSES_MAX).find(has)?;
    let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
    Some(format!("process {} ({})", path.file_name()?.to_str()?, name.trim_end()))
}

/// That of the first socket that listens on `port`.
fn inode(table: &str, port: u16) -> Option<&str> {
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let listens = fields.get(1)?.ends_with(&suffix) && *fields.get(3)? == LISTENS;
        listens.then(|| fields.get(9).copied()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_listens_is_this_one() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(address) else { continue };
            let address = listener.local_addr().unwrap();
            let found = of(address).unwrap();
            assert!(found.starts_with(&format!("process {} (", std::process::id())), "{found}");
            drop(listener);
            assert_eq!(of(address), None);
        }
    }
}
