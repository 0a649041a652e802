//! `hawser mptcp cgroup`: MPTCP for all programs of a control group, long-lived servers above all,
//! by the kernel itself.
//!
//! # Model
//! ```text
//!   add PATH ──► (cgroup, this network namespace) ──► the map of hawser_sys::mptcp::cgroup
//!   remove   ──► out of it; the program goes with the last
//! ```
//! Nothing of Hawser runs meanwhile. What was added for a cgroup that has gone (systemd makes a new
//! one at each start of a service) is dropped at the next change.
//!
//! # Limits
//! As [`hawser_sys::mptcp::cgroup`]. An option that MPTCP refuses is refused to the program.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hawser_sys::cgroup;
use hawser_sys::exclusive;
use hawser_sys::interfaces::namespace_cookie;
use hawser_sys::mptcp::cgroup::{CgroupError, CgroupId, Conversion, Entry};
use hawser_sys::mptcp::socket::{self, Unsupported};
use serde::Serialize;

use super::record;

/// Where the pins are. systemd mounts bpffs there, and nothing mounts it elsewhere.
const PINS: &str = "/sys/fs/bpf/hawser-mptcp";
/// Held during a change.
const LOCK: &str = "cgroup.lock";
/// Cgroups that are looked at to find those that are listed. A busy machine has some thousands.
const LOOKED_AT_MAX: usize = 100_000;
/// The number of the first cgroup, by which it is known that all can be seen.
const ROOT: CgroupId = CgroupId(1);

/// Why it was not done.
#[derive(Debug)]
pub enum Error {
    /// There are no MPTCP sockets here: programs would get none at all.
    Unsupported(Unsupported),
    /// No cgroup v2 is mounted.
    NoHierarchy,
    /// There is no such cgroup.
    NoCgroup(PathBuf, io::Error),
    /// Another one changes something.
    Busy(PathBuf),
    /// A file cannot be read or written.
    File {
        /// What was to be done.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not do it.
    Kernel(CgroupError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(reason) => reason.fmt(f),
            Self::NoHierarchy => f.write_str(
                "no cgroup v2 is mounted here: `mount -t cgroup2 none /sys/fs/cgroup`, or start the \
                 machine with systemd.unified_cgroup_hierarchy=1",
            ),
            Self::NoCgroup(path, source) => write!(f, "cgroup {}: {source}", path.display()),
            Self::Busy(path) => {
                write!(f, "another hawser is at it ({} is locked); try again", path.display())
            }
            Self::File { step, source } if source.kind() == io::ErrorKind::PermissionDenied => {
                write!(f, "{step}: {source}. It needs root (CAP_BPF and CAP_PERFMON)")
            }
            Self::File { step, source } => write!(f, "{step}: {source}"),
            Self::Kernel(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unsupported(error) => Some(error),
            Self::NoCgroup(_, source) | Self::File { source, .. } => Some(source),
            Self::Kernel(error) => Some(error),
            Self::NoHierarchy | Self::Busy(_) => None,
        }
    }
}

impl From<CgroupError> for Error {
    fn from(error: CgroupError) -> Self {
        Self::Kernel(error)
    }
}

fn file(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { step, source }
}

/// The control groups that can be seen here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy(PathBuf);

impl Hierarchy {
    fn find() -> Result<Self, Error> {
        let mount = cgroup::mount().map_err(file("reading /proc/thread-self/mountinfo"))?;
        mount.map(Self).ok_or(Error::NoHierarchy)
    }

    /// The cgroup with this name (`system.slice/ssh.service`, with or without a slash before it) or
    /// directory, or this process's own; and its number.
    fn cgroup(&self, wanted: Option<&Path>) -> Result<(PathBuf, CgroupId), Error> {
        let wanted = match wanted {
            Some(path) => path.to_owned(),
            None => cgroup::own().map_err(file("reading /proc/self/cgroup"))?,
        };
        let directory = if wanted.starts_with(&self.0) {
            wanted
        } else {
            self.0.join(wanted.strip_prefix("/").unwrap_or(&wanted))
        };
        let missing = |error| Error::NoCgroup(directory.clone(), error);
        let found = fs::canonicalize(&directory).map_err(missing)?;
        let inode = fs::metadata(&found).map_err(missing)?;
        if !found.starts_with(&self.0) || !inode.is_dir() {
            return Err(missing(io::Error::other("that is no cgroup")));
        }
        Ok((self.name(&found), CgroupId(inode.ino())))
    }

    /// As in /proc/PID/cgroup.
    fn name(&self, directory: &Path) -> PathBuf {
        Path::new("/").join(directory.strip_prefix(&self.0).unwrap_or(directory))
    }

    /// The names of cgroups by their numbers; `None` if more than these may exist.
    fn all(&self) -> Option<BTreeMap<CgroupId, PathBuf>> {
        let mut found = BTreeMap::new();
        let mut rest = vec![self.0.clone()];
        while let Some(directory) = rest.pop() {
            let Ok(inode) = fs::symlink_metadata(&directory) else { continue };
            found.insert(CgroupId(inode.ino()), self.name(&directory));
            if found.len() > LOOKED_AT_MAX {
                return None;
            }
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return None,
                // It has gone meanwhile.
                Err(_) => continue,
            };
            let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|t| t.is_dir());
            rest.extend(entries.filter_map(Result::ok).filter(is_directory).map(|e| e.path()));
        }
        found.contains_key(&ROOT).then_some(found)
    }
}

/// Holds the lock.
fn lock() -> Result<File, Error> {
    let path = Path::new(record::DIRECTORY).join(LOCK);
    let lock = exclusive::lock(&path).map_err(file("making the lock in /run/hawser-mptcp"))?;
    lock.ok_or(Error::Busy(path))
}

fn namespace() -> Result<u64, Error> {
    namespace_cookie().map_err(file("finding this network namespace"))
}

/// Has the programs of a cgroup, this process's own if none is named, ask for MPTCP where they ask
/// for TCP. Gives what was done.
///
/// # Errors
/// See [`Error`]; then nothing has been changed.
pub fn add(wanted: Option<&Path>) -> Result<Vec<String>, Error> {
    socket::probe().map_err(Error::Unsupported)?;
    let hierarchy = Hierarchy::find()?;
    let (name, cgroup) = hierarchy.cgroup(wanted)?;
    let namespace = namespace()?;
    let _lock = lock()?;
    let conversion = Conversion::find_or_attach(Path::new(PINS))?;
    let added = conversion.add(cgroup, namespace);
    // One that was attached for this alone goes again if this has failed.
    let mut lines = tidy(&hierarchy, conversion)?;
    let name = name.display();
    lines.insert(
        0,
        if added? {
            format!(
                "cgroup {name}: TCP sockets that its programs make from now on, in this network \
                 namespace, are MPTCP ones; those that they have stay as they are"
            )
        } else {
            format!("cgroup {name}: nothing to do, it was added before")
        },
    );
    Ok(lines)
}

/// Takes a cgroup out, this process's own if none is named. Gives what was done.
///
/// # Errors
/// See [`Error`].
pub fn remove(wanted: Option<&Path>) -> Result<Vec<String>, Error> {
    let hierarchy = Hierarchy::find()?;
    let (name, cgroup) = hierarchy.cgroup(wanted)?;
    let namespace = namespace()?;
    let _lock = lock()?;
    let name = name.display();
    let Some(conversion) = Conversion::find(Path::new(PINS))? else {
        return Ok(vec![format!("cgroup {name}: nothing to do, it was not added")]);
    };
    let done = if conversion.remove(cgroup, namespace)? {
        format!("cgroup {name}: TCP sockets that its programs make from now on are TCP ones")
    } else {
        format!("cgroup {name}: nothing to do, it was not added in this network namespace")
    };
    let mut lines = vec![done];
    lines.extend(tidy(&hierarchy, conversion)?);
    Ok(lines)
}

/// Takes all out, of all network namespaces, and the program with them. Gives what was done.
///
/// # Errors
/// See [`Error`].
pub fn remove_all() -> Result<Vec<String>, Error> {
    let _lock = lock()?;
    let Some(conversion) = Conversion::find(Path::new(PINS))? else {
        return Ok(vec!["nothing to do: no cgroup was added".to_owned()]);
    };
    let count = conversion.entries()?.len();
    conversion.detach()?;
    Ok(vec![format!("{count} cgroup(s) removed; the BPF program is gone")])
}

/// Drops cgroups that have gone, and the program if none is left.
fn tidy(hierarchy: &Hierarchy, conversion: Conversion) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    let mut left = conversion.entries()?;
    if let Some(all) = hierarchy.all() {
        for gone in left.iter().filter(|entry| !all.contains_key(&entry.cgroup)) {
            conversion.remove(gone.cgroup, gone.namespace)?;
            lines.push(format!("cgroup number {} has gone and is dropped", gone.cgroup.0));
        }
        left.retain(|entry| all.contains_key(&entry.cgroup));
    }
    if left.is_empty() {
        conversion.detach()?;
        lines.push("no cgroup is left: the BPF program is gone".to_owned());
    }
    Ok(lines)
}

/// A cgroup, for `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Its name; none if it has gone, or cannot be seen from here.
    pub path: Option<PathBuf>,
    /// Its number.
    pub id: u64,
    /// Whether it is for this network namespace.
    pub here: bool,
    /// Sockets that its programs have asked for since.
    pub sockets: u64,
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}", path.display())?,
            None => write!(f, "number {}, which is not to be seen from here", self.id)?,
        }
        write!(f, " {} socket(s) made MPTCP ones", self.sockets)?;
        if self.here { Ok(()) } else { f.write_str(", in another network namespace") }
    }
}

/// All cgroups that were added.
///
/// # Errors
/// No rights.
pub fn list() -> Result<Vec<Listed>, Error> {
    let Some(conversion) = Conversion::find(Path::new(PINS))? else { return Ok(Vec::new()) };
    let entries = conversion.entries()?;
    let names = Hierarchy::find().ok().and_then(|hierarchy| hierarchy.all()).unwrap_or_default();
    let here = namespace()?;
    let listed = |entry: &Entry| Listed {
        path: names.get(&entry.cgroup).cloned(),
        id: entry.cgroup.0,
        here: entry.namespace == here,
        sockets: entry.sockets,
    };
    Ok(entries.iter().map(listed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (PathBuf, Hierarchy) {
        let root = std::env::temp_dir()
            .join(format!("hawser-cgroup-{}", hawser_sys::random::random_u64()));
        fs::create_dir_all(root.join("system.slice/a.service")).unwrap();
        fs::write(root.join("cgroup.procs"), "").unwrap();
        let root = fs::canonicalize(root).unwrap();
        (root.clone(), Hierarchy(root))
    }

    #[test]
    fn a_cgroup_is_named_as_proc_names_it_or_by_its_directory() {
        let (root, hierarchy) = tree();
        let directory = root.join("system.slice/a.service");
        let number = CgroupId(fs::metadata(&directory).unwrap().ino());
        let name = Path::new("/system.slice/a.service");
        for wanted in [name, Path::new("system.slice/a.service"), &directory] {
            assert_eq!(hierarchy.cgroup(Some(wanted)).unwrap(), (name.to_owned(), number));
        }
        for wrong in ["/b.service", "../..", "cgroup.procs"] {
            let error = hierarchy.cgroup(Some(Path::new(wrong))).unwrap_err();
            assert!(matches!(error, Error::NoCgroup(..)), "{error}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn nothing_is_taken_for_gone_where_not_all_can_be_seen() {
        let (root, hierarchy) = tree();
        assert_eq!(hierarchy.all(), None);
        fs::remove_dir_all(root).unwrap();
    }
}
