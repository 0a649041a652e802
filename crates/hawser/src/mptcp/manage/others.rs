//! Other programs that manage MPTCP on this machine, by name.

use std::fs;

use hawser_sys::mptcp::endpoint::PathManager;

/// Programs that are known to manage, and how.
const KNOWN: [(&str, &str); 2] = [
    ("mptcpd", "a path manager in userspace"),
    ("NetworkManager", "it makes endpoints for the kernel's path manager"),
];

/// Those that run, by their names.
fn running() -> Vec<(&'static str, &'static str)> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let own = fs::read_link("/proc/self/ns/net").ok();
    let names: Vec<String> = processes
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = fs::read_to_string(path.join("comm")).ok()?;
            let same = fs::read_link(path.join("ns/net")).ok() == own;
            same.then(|| name.trim_end().to_owned())
        })
        .collect();
    // The kernel cuts names to 15 bytes (TASK_COMM_LEN).
    KNOWN
        .into_iter()
        .filter(|(known, _)| names.iter().any(|name| *name == known[..known.len().min(15)]))
        .collect()
}

/// Who listens to the kernel's events, as far as it can be told.
pub fn who() -> String {
    match running().as_slice() {
        [] => "some program".to_owned(),
        [(name, _), ..] => (*name).to_owned(),
    }
}

/// What is to be known of the others, in words.
pub fn notes() -> Vec<String> {
    let mut lines: Vec<String> = running()
        .into_iter()
        .map(|(name, what)| format!("note: {name} runs here ({what})"))
        .collect();
    let endpoints = PathManager::open().and_then(|mut manager| manager.endpoints());
    if let Ok(endpoints) = endpoints
        && !endpoints.is_empty()
    {
        lines.push(format!(
            "note: {} endpoints are there for the kernel's path manager: connections that begin while \
             this runs do not use them",
            endpoints.len()
        ));
    }
    lines
}
