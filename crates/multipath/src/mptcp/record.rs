//! What `setup` has made, kept until the machine stops, so that `undo` takes away that and no more.
//!
//! # Model
//! One file for each network namespace, named by its cookie, which no other has until the machine
//! starts again; then /run is empty, and so are the endpoints. It is written before anything is
//! made: what was not made after all is not found by `undo`, and that is no error.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hawser_sys::interfaces::namespace_cookie;
use hawser_sys::mptcp::endpoint::{Endpoint, EndpointId, Flags, Limits};
use hawser_sys::process::lock_file;
use serde::{Deserialize, Serialize};

use super::plan::Plan;

/// Where records are. Not /run/hawser: that is the pooler's user's, who could have root write
/// through a symbolic link there.
pub const DIRECTORY: &str = "/run/hawser-mptcp";

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    made: Vec<Made>,
    before: Bounds,
    set: Bounds,
    /// Whether `setup` has turned MPTCP on.
    pub enabled_mptcp: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Made {
    id: u8,
    address: IpAddr,
    port: u16,
    flags: u32,
    interface: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Bounds {
    add_addr_accepted: u32,
    subflows: u32,
}

impl From<Limits> for Bounds {
    fn from(limits: Limits) -> Self {
        Self { add_addr_accepted: limits.add_addr_accepted, subflows: limits.subflows }
    }
}

impl From<Bounds> for Limits {
    fn from(bounds: Bounds) -> Self {
        Self { add_addr_accepted: bounds.add_addr_accepted, subflows: bounds.subflows }
    }
}

impl Record {
    /// What will have been made after `plan`, where `limits` are in force and `earlier` was made
    /// before.
    pub fn new(plan: &Plan, limits: Limits, earlier: Option<&Self>) -> Self {
        let kept = earlier.map(Self::endpoints).unwrap_or_default();
        let kept = kept.into_iter().filter(|made| plan.keep.iter().any(|e| e.id == made.id));
        let made = kept.chain(plan.add.iter().cloned()).map(|endpoint| Made {
            id: endpoint.id.0,
            address: endpoint.address,
            port: endpoint.port,
            flags: endpoint.flags.0,
            interface: endpoint.interface,
        });
        let in_force: Bounds = limits.into();
        let (before, set) = match (plan.limits, earlier) {
            // Those in force may be another program's by now: what is not ours must not be undone.
            (None, Some(earlier)) => (earlier.before, earlier.set),
            (Some(set), Some(earlier)) if earlier.set == in_force => (earlier.before, set.into()),
            (set, _) => (in_force, set.unwrap_or(limits).into()),
        };
        Self {
            made: made.collect(),
            before,
            set,
            enabled_mptcp: plan.enable || earlier.is_some_and(|earlier| earlier.enabled_mptcp),
        }
    }

    /// The endpoints.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let endpoint = |made: &Made| Endpoint {
            id: EndpointId(made.id),
            address: made.address,
            port: made.port,
            flags: Flags(made.flags),
            interface: made.interface,
        };
        self.made.iter().map(endpoint).collect()
    }

    /// The last limits that another program had set before `setup` did.
    pub fn limits_before(&self) -> Limits {
        self.before.into()
    }

    /// The limits that the last one has set.
    pub fn limits_set(&self) -> Limits {
        self.set.into()
    }

    /// The record of this network namespace, if there is one.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn load(path: &Path) -> io::Result<Option<Self>> {
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// As open(2), write(2), rename(2).
    pub fn save(&self, path: &Path) -> io::Result<()> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_vec_pretty(self).map_err(io::Error::other)?)?;
        fs::rename(&new, path)
    }
}

/// Where the record of this network namespace is.
///
/// Before Linux 5.14 a namespace has no cookie: it is known by its inode, which a later one may get
/// once it has gone. `undo` compares what it finds with the record in any case.
///
/// # Errors
/// /proc cannot be read.
pub fn path() -> io::Result<PathBuf> {
    Ok(Path::new(DIRECTORY).join(format!("mptcp-{}.json", namespace()?)))
}

/// The file that the path manager of this network namespace has locked.
///
/// # Errors
/// As [`path`].
pub fn lock_path() -> io::Result<PathBuf> {
    Ok(Path::new(DIRECTORY).join(format!("manage-{}.lock", namespace()?)))
}

/// Makes a file and locks it, for this process until it is closed. `None` if another has it.
///
/// The holder of the lock may remove the file, so a file that was removed before it was locked is
/// no lock: another process may have made it again.
///
/// # Errors
/// As open(2), flock(2) and stat(2).
pub fn lock(path: &Path) -> io::Result<Option<File>> {
    loop {
        let lock = File::options().create(true).truncate(false).write(true).open(path)?;
        if !lock_file(&lock)? {
            return Ok(None);
        }
        if is_at(&lock, path)? {
            return Ok(Some(lock));
        }
    }
}

/// Whether a file is still what its path names.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn namespace() -> io::Result<String> {
    Ok(match namespace_cookie() {
        Ok(cookie) => cookie.to_string(),
        Err(_) => format!("i{}", fs::metadata("/proc/thread-self/ns/net")?.ino()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_whose_file_was_removed_is_none() {
        let directory =
            std::env::temp_dir().join(format!("hawser-lock-{}", hawser_sys::random::random_u64()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("manage.lock");
        let first = lock(&path).unwrap().unwrap();
        assert!(lock(&path).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        assert!(!is_at(&first, &path).unwrap());
        let second = lock(&path).unwrap().unwrap();
        assert!(is_at(&second, &path).unwrap() && !is_at(&first, &path).unwrap());
        fs::remove_dir_all(directory).unwrap();
    }

    /// `setup` a second time recorded limits that the administrator had set as its own, and `undo` lowered
    /// them to what there was before the first `setup`.
    #[test]
    fn foreign_limits_are_not_taken_for_those_of_setup() {
        let limits = |subflows| Limits { add_addr_accepted: 0, subflows };
        let plan = |limits| Plan {
            enable: false,
            remove: Vec::new(),
            keep: Vec::new(),
            add: Vec::new(),
            limits,
        };
        let first = Record::new(&plan(Some(limits(4))), limits(2), None);
        let again = Record::new(&plan(None), limits(4), Some(&first));
        assert_eq!((again.limits_before(), again.limits_set()), (limits(2), limits(4)));
        // Raised by another: they are enough, and stay.
        let raised = Record::new(&plan(None), limits(8), Some(&first));
        assert_eq!((raised.limits_before(), raised.limits_set()), (limits(2), limits(4)));
        assert_eq!(crate::mptcp::plan::undo(&raised, &[], limits(8)).limits, None);
        // Lowered by another: those are what there was before.
        let lowered = Record::new(&plan(Some(limits(4))), limits(1), Some(&first));
        assert_eq!((lowered.limits_before(), lowered.limits_set()), (limits(1), limits(4)));
        // Ours, raised again.
        let more = Record::new(&plan(Some(limits(6))), limits(4), Some(&first));
        assert_eq!((more.limits_before(), more.limits_set()), (limits(2), limits(6)));
        // None of ours: nothing is to be put back.
        let none = Record::new(&plan(None), limits(5), None);
        assert_eq!(none.limits_before(), none.limits_set());
    }

    #[test]
    fn a_record_survives_its_file_and_none_is_no_error() {
        let path = std::env::temp_dir()
            .join(format!("hawser-record-{}", hawser_sys::random::random_u64()))
            .join("mptcp.json");
        assert_eq!(Record::load(&path).unwrap(), None);
        let endpoint = Endpoint {
            id: EndpointId(4),
            address: "fd00::1".parse().unwrap(),
            port: 9,
            flags: Flags::SIGNAL,
            interface: 3,
        };
        let limits = Limits { add_addr_accepted: 1, subflows: 2 };
        let plan = Plan {
            enable: true,
            remove: Vec::new(),
            keep: Vec::new(),
            add: vec![endpoint.clone()],
            limits: None,
        };
        let record = Record::new(&plan, limits, None);
        record.save(&path).unwrap();
        let read = Record::load(&path).unwrap().unwrap();
        assert_eq!(read, record);
        assert_eq!(read.endpoints(), [endpoint]);
        fs::write(&path, "{").unwrap();
        assert!(Record::load(&path).is_err());
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
