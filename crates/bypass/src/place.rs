//! Where it is: control groups, pins, the lock; and why it cannot be had.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hawser_sys::bpf::is_file_system;
use hawser_sys::cgroup;
use hawser_sys::exclusive;
use hawser_sys::interfaces::namespace_cookie;

use crate::kernel::{Bypass, BypassError, Place, remove_left};

/// systemd mounts bpffs there, and nothing mounts it elsewhere.
pub(crate) const BPF_FILE_SYSTEM: &str = "/sys/fs/bpf";
/// The pins of all `run` and `serve`.
const PINS: &str = "/sys/fs/bpf/hawser-bypass";
/// The control groups of all `run`, below the root of cgroup v2, and what they are attached for.
const GROUPS: [(Place, &str); 2] =
    [(Place::Programs, "hawser-bypass"), (Place::Blocking, "hawser-bypass-blocking")];
/// The pins, and the control group, of a self-test; its process's number follows.
pub(crate) const SELFTEST: &str = "hawser-selftest-";
/// Held during a change.
const LOCK_DIRECTORY: &str = "/run/hawser-bypass";
const LOCK: &str = "lock";

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No cgroup v2 is mounted.
    #[error(
        "no cgroup v2 is mounted here (v1 alone does not do): `mount -t cgroup2 none \
             /sys/fs/cgroup`, or start the machine with systemd.unified_cgroup_hierarchy=1"
    )]
    NoHierarchy,
    /// Another one changes something.
    #[error("another hawser is at it ({0} is locked); try again")]
    Busy(PathBuf),
    /// A file cannot be read or written.
    #[error(
        "{step}: {source}{}",
        if .source.kind() == io::ErrorKind::PermissionDenied { ". It needs root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN" } else { "" }
    )]
    File {
        /// What was to be done.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not do it.
    #[error("{0}")]
    Kernel(#[from] BypassError),
    /// It does it wrong: what was found.
    #[error("the self-test has failed: {0}. `hawser bypass selftest` shows all of it")]
    SelfTest(String),
    /// The program could not be started.
    #[error("{name}: {source}")]
    Program {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// Of `status`, `off` and `selftest`: 3 this machine cannot, 4 no rights, 5 the self-test has
    /// failed, 6 another one is at it, 1 the rest.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Kernel(BypassError::Denied { .. }) => 4,
            Self::File { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => 4,
            Self::NoHierarchy | Self::Kernel(_) => 3,
            Self::SelfTest(_) => 5,
            Self::Busy(_) => 6,
            Self::File { .. } | Self::Program { .. } => 1,
        }
    }
}

pub(crate) fn file(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { step, source }
}

/// The directory of the root of control groups.
pub(crate) fn root() -> Result<PathBuf, Error> {
    cgroup::mount().ok().flatten().ok_or(Error::NoHierarchy)
}

/// The pins of all.
pub(crate) fn pins() -> &'static Path {
    Path::new(PINS)
}

/// The control group in which connections are taken in for this place.
pub(crate) fn group(root: &Path, place: Place) -> PathBuf {
    let name = GROUPS.iter().find(|(of, _)| *of == place).map_or("", |(_, name)| name);
    root.join(name)
}

/// A control group that this process has entered, until it is left.
#[derive(Debug)]
pub(crate) struct Entered {
    before: PathBuf,
    now: PathBuf,
}

const PROCESSES: &str = "cgroup.procs";
/// How long the kernel may take to see that a control group is empty.
const LEAVE_TRIED_MAX: u32 = 20;
const LEAVE_PAUSE: Duration = Duration::from_millis(10);

impl Entered {
    /// Makes it and goes there; sockets made from now on, and those of children, are of it.
    pub(crate) fn make(root: &Path, group: PathBuf) -> Result<Self, Error> {
        let own = cgroup::own().map_err(file("reading /proc/self/cgroup"))?;
        let before = root.join(own.strip_prefix("/").unwrap_or(&own));
        fs::create_dir_all(&group).map_err(file("making a control group"))?;
        let entered = Self { before, now: group };
        match fs::write(entered.now.join(PROCESSES), "0") {
            Ok(()) => Ok(entered),
            Err(error) => {
                let _ = fs::remove_dir(&entered.now);
                Err(file("entering a control group")(error))
            }
        }
    }

    /// Goes back, and removes it; gives whether it was empty.
    pub(crate) fn leave(self) -> bool {
        let _ = fs::write(self.before.join(PROCESSES), "0");
        for _ in 0..LEAVE_TRIED_MAX {
            if fs::remove_dir(&self.now).is_ok() {
                return true;
            }
            std::thread::sleep(LEAVE_PAUSE);
        }
        false
    }
}

/// Holds the lock.
pub(crate) fn lock() -> Result<File, Error> {
    let path = Path::new(LOCK_DIRECTORY).join(LOCK);
    let lock = exclusive::lock(&path).map_err(file("making the lock in /run/hawser-bypass"))?;
    lock.ok_or(Error::Busy(path))
}

/// What is pinned.
///
/// # Errors
/// No rights.
pub fn find() -> Result<Option<Bypass>, Error> {
    // Without the file system there is nothing; reading a pin needs rights, seeing it does not.
    if !is_file_system(Path::new(BPF_FILE_SYSTEM)).unwrap_or(false) {
        return Ok(None);
    }
    Ok(Bypass::find(pins())?)
}

/// What is pinned, or a new one after its self-test, with connections taken in for this place.
/// Under the lock.
pub(crate) fn ready(root: &Path, place: Place) -> Result<Bypass, Error> {
    let found = find()?.filter(|bypass| bypass.standing().is_ok_and(|standing| standing.on));
    let bypass = match found {
        Some(bypass) => bypass,
        None => {
            // A switched-off one is from an `off` that did not finish.
            clear()?;
            crate::selftest::in_a_process_of_its_own()?;
            Bypass::find_or_load(pins())?
        }
    };
    let attached = || -> Result<(), Error> {
        let group = group(root, place);
        fs::create_dir_all(&group).map_err(file("making a control group"))?;
        Ok(bypass.attach(place, &group)?)
    };
    let done = attached();
    if let Err(error) = done {
        tidy(root);
        return Err(error);
    }
    Ok(bypass)
}

/// Removes all that is pinned.
fn clear() -> Result<(), Error> {
    match find()? {
        Some(bypass) => Ok(bypass.remove()?),
        None => Ok(()),
    }
}

/// Removes control groups in which no program is left, and the pins if no program and no pooler
/// needs them. Under the lock.
pub(crate) fn tidy(root: &Path) {
    remove_selftests(root);
    let left = remove_empty(root);
    let programs = !left.is_empty();
    if let Ok(Some(bypass)) = find() {
        for (place, _) in GROUPS.iter().filter(|(place, _)| !left.contains(place)) {
            let _ = bypass.detach(*place);
        }
        // A pooler that was killed has forgotten nothing.
        if let Ok(namespace) = namespace_cookie() {
            let _ = bypass.forget_dead(namespace);
        }
        let _ = bypass.forget_closed();
        let wanted = bypass.wants_ports().unwrap_or(true);
        if !wanted {
            let _ = bypass.detach(Place::Pooler);
        }
        if !programs && !wanted {
            let _ = bypass.remove();
        }
    }
}

/// At the end of the last pooler.
pub(crate) fn end_pooler() {
    if let (Ok(root), Ok(_lock)) = (root(), lock()) {
        tidy(&root);
    }
}

/// Removes what self-tests have left whose processes were killed.
pub(crate) fn remove_selftests(root: &Path) {
    let left = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| {
            let process = name.strip_prefix(SELFTEST).and_then(|id| id.parse::<u32>().ok());
            process.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists())
        })
    };
    for name in left(root) {
        let _ = fs::remove_dir(root.join(name));
    }
    for name in left(Path::new(BPF_FILE_SYSTEM)) {
        // One whose control group refuses to go lives where its number is another one.
        if !root.join(&name).exists() {
            let _ = remove_left(&Path::new(BPF_FILE_SYSTEM).join(name));
        }
    }
}

/// Gives the places where programs are left.
fn remove_empty(root: &Path) -> Vec<Place> {
    // One with programs refuses.
    let remains = |path: &Path| fs::remove_dir(path).is_err() && path.exists();
    for (_, path) in runs(root) {
        let _ = remains(&path);
    }
    let left = GROUPS.iter().filter(|(_, name)| remains(&root.join(name)));
    left.map(|(place, _)| *place).collect()
}

/// The control group of each `run`, with its name.
fn runs(root: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let groups = GROUPS.map(|(_, name)| fs::read_dir(root.join(name)));
    let entries = groups.into_iter().flatten().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
}

/// Takes it all away. Gives how many connections go on over TCP.
///
/// # Errors
/// See [`Error`].
pub fn off() -> Result<Option<u64>, Error> {
    let found = find()?;
    // At once, also while another process holds the lock.
    found.as_ref().map_or(Ok(()), |bypass| bypass.switch(false))?;
    if let Ok(root) = root() {
        remove_selftests(&root);
    }
    let lock = lock();
    let sockets = match found {
        Some(bypass) => {
            let sockets = bypass.standing().map_or(0, |standing| standing.sockets);
            bypass.remove()?;
            Some(sockets)
        }
        None => None,
    };
    if let (Ok(root), Ok(_)) = (root(), lock) {
        remove_empty(&root);
    }
    Ok(sockets)
}

/// The control groups of programs, and how many processes each has.
pub fn programs() -> Vec<(String, usize)> {
    let Ok(root) = root() else { return Vec::new() };
    let mut found: Vec<(String, usize)> = runs(&root)
        .map(|(name, path)| {
            let listed = fs::read_to_string(path.join(PROCESSES)).unwrap_or_default();
            (name, listed.lines().count())
        })
        .collect();
    found.sort_unstable();
    found
}
