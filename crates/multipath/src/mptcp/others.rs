//! Other programs that manage MPTCP in this network namespace, by name.
//!
//! # Model
//! Where the path manager is the kernel's, all of them make endpoints: those of several programs stand
//! beside each other, and each takes away its own. If it is in userspace, mptcpd opens and closes
//! the subflows of every connection (its plugin sspi closes all but one of an interface), so two
//! such programs undo each other's work; and mptcpd listens from its start, whatever the setting
//! is.
//!
//! # Limits      known by the names of their processes; of one in another mount of /proc nothing is known

use std::fs;

use hawser_sys::mptcp::endpoint::PathManager;

/// A program that is known to manage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its name.
    pub name: &'static str,
    /// What it does, in words.
    pub does: &'static str,
    /// Whether it manages where the path manager is in userspace.
    pub in_userspace: bool,
}

const KNOWN: [Other; 2] = [
    Other {
        name: "mptcpd",
        does: "it makes endpoints, and opens and closes subflows where the path manager is in userspace",
        in_userspace: true,
    },
    Other {
        name: "NetworkManager",
        does: "it makes a subflow endpoint of each address that it sets",
        in_userspace: false,
    },
];

/// Those that run here.
pub fn running() -> Vec<Other> {
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
    known(&names)
}

fn known(names: &[String]) -> Vec<Other> {
    // The kernel cuts names to 15 bytes (TASK_COMM_LEN).
    let is_there =
        |other: &Other| names.iter().any(|name| *name == other.name[..other.name.len().min(15)]);
    KNOWN.into_iter().filter(is_there).collect()
}

/// Who would manage the same connections.
pub fn rival() -> Option<&'static str> {
    running().into_iter().find(|other| other.in_userspace).map(|other| other.name)
}

/// The program that listens to the kernel's events, if it can be found.
pub fn who() -> String {
    rival().unwrap_or("some program").to_owned()
}

/// A line for each.
pub fn lines(others: &[Other]) -> Vec<String> {
    others.iter().map(|Other { name, does, .. }| format!("{name} runs here: {does}")).collect()
}

/// What is to be known of the others while `manage` runs, in words.
pub fn notes() -> Vec<String> {
    let mut notes: Vec<String> =
        lines(&running()).into_iter().map(|line| format!("note: {line}")).collect();
    let endpoints = PathManager::open().and_then(|mut manager| manager.endpoints());
    if let Ok(endpoints) = endpoints
        && !endpoints.is_empty()
    {
        notes.push(format!(
            "note: {} endpoints are there for the kernel's path manager: connections that begin while \
             this runs do not use them",
            endpoints.len()
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_known_by_their_names() {
        let names = ["sh", "mptcpd", "NetworkManager"].map(str::to_owned);
        assert_eq!(known(&names), KNOWN);
        assert_eq!(known(&names[..1]), []);
        let lines = lines(&known(&names[2..]));
        assert!(lines[0].starts_with("NetworkManager runs here: "), "{lines:?}");
    }
}
