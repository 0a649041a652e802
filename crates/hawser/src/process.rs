//! The process itself: randomness, descriptors, the pid file, becoming another user.

pub mod group;
pub mod place;

use std::cell::RefCell;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hawser_sys::process as sys;

pub use hawser_sys::random::{random_bytes, random_u64};

/// Random bytes that are fetched from the kernel at once.
const RANDOM_AHEAD_BYTES: usize = 512;

/// As [`random_bytes`], for a few bytes that are wanted often (keys of cancel requests): one system call
/// for many. Each byte is given out once, and not kept.
///
/// # Panics
/// As [`random_bytes`].
pub fn few_random_bytes(bytes: &mut [u8]) {
    thread_local! {
        static AHEAD: RefCell<([u8; RANDOM_AHEAD_BYTES], usize)> =
            const { RefCell::new(([0; RANDOM_AHEAD_BYTES], 0)) };
    }
    if bytes.len() > RANDOM_AHEAD_BYTES / 4 {
        return random_bytes(bytes);
    }
    AHEAD.with_borrow_mut(|(ahead, left)| {
        if *left < bytes.len() {
            random_bytes(ahead);
            *left = ahead.len();
        }
        *left -= bytes.len();
        let taken = &mut ahead[*left..*left + bytes.len()];
        bytes.copy_from_slice(taken);
        taken.fill(0);
    });
}

/// The path in a variable of the environment, unless it is empty.
pub fn path_of(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The number by which servers tell this process from other poolers: one for all its life.
pub fn pooler_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(random_u64)
}

/// Descriptors that the process needs beside those of connections: logs, epoll, listeners, files
/// that are read, connections on which clients are still logging in.
pub const DESCRIPTORS_BESIDE: u64 = 256;

/// Why the process cannot be what the configuration asks for.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There are fewer descriptors than configured connections need.
    #[error(
        "the process may have {limit} open files and the configured connections need {needed}: raise the limit \
         (LimitNOFILE= in systemd, ulimit -Hn) or lower max_client_conn"
    )]
    Descriptors {
        /// The limit in force.
        limit: u64,
        /// What is needed.
        needed: u64,
    },
    /// A system call failed.
    #[error("could not {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// There is no such user on this host.
    #[error("there is no user \"{0}\" on this host")]
    NoUser(String),
    /// Another process has the pid file.
    #[error("process {pid} runs already, says \"{pidfile}\"; if that is not so, remove the file")]
    AlreadyRunning {
        /// The pid file.
        pidfile: PathBuf,
        /// The process.
        pid: u32,
    },
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> ProcessError {
    let what = what.into();
    move |source| ProcessError::System { what, source }
}

/// Raises the limit on open files as far as the system lets it, and checks it against `needed`
/// connections. Returns the limit.
///
/// # Errors
/// [`ProcessError::Descriptors`] if it is too low.
pub fn ensure_descriptors(connections: u64) -> Result<u64, ProcessError> {
    let limit = sys::raise_descriptor_limit().map_err(system("raise the limit on open files"))?;
    let needed = connections.saturating_add(DESCRIPTORS_BESIDE);
    if limit < needed { Err(ProcessError::Descriptors { limit, needed }) } else { Ok(limit) }
}

/// The user that the configuration names, if the process is root and so can become it.
///
/// # Errors
/// There is no such user, or the system does not say.
pub fn account_to_become(name: Option<&str>) -> Result<Option<sys::Account>, ProcessError> {
    let Some(name) = name else { return Ok(None) };
    let account = sys::account_by_name(name).map_err(system(format!("look up user \"{name}\"")))?;
    let account = account.ok_or_else(|| ProcessError::NoUser(name.to_owned()))?;
    Ok(sys::is_superuser().then_some(account))
}

/// Becomes the user that the configuration names, if the process is root.
///
/// # Errors
/// There is no such user, or the system refuses: the process must not go on as root.
pub fn become_user(name: Option<&str>) -> Result<(), ProcessError> {
    match account_to_become(name)? {
        Some(account) => sys::become_account(&account)
            .map_err(system(format!("become user \"{}\"", account.name))),
        None => {
            if let Some(user) = name {
                tracing::info!(user, "not root: keeps the user that started it");
            }
            Ok(())
        }
    }
}

/// Becomes this user, or is it.
///
/// # Errors
/// There is no such user, or this process is neither root nor that user's.
pub fn become_user_for_good(name: &str) -> Result<(), ProcessError> {
    let doing = || format!("become user \"{name}\"");
    let account = sys::account_by_name(name).map_err(system(doing()))?;
    let account = account.ok_or_else(|| ProcessError::NoUser(name.to_owned()))?;
    if !sys::is_superuser() && account.uid == sys::effective_uid() {
        return Ok(());
    }
    sys::become_account(&account).map_err(system(doing()))
}

/// Keeps the process's memory to itself, unless core dumps are wanted.
pub fn set_dumpable(core_dumps: bool) {
    if let Err(error) = sys::set_dumpable(core_dumps) {
        tracing::warn!(%error, "core_dumps is not in force");
    }
}

/// The file with the process id; removed when this is dropped.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file, and gives it to the user that this process, still root, becomes. One whose
    /// process is gone is replaced.
    ///
    /// # Errors
    /// Another process has it, or it cannot be written.
    pub fn create(path: &Path, owner: Option<&sys::Account>) -> Result<Self, ProcessError> {
        if let Some(pid) = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok())
            && pid != std::process::id()
            && Path::new(&format!("/proc/{pid}")).exists()
        {
            return Err(ProcessError::AlreadyRunning { pidfile: path.to_owned(), pid });
        }
        Self::write(path, owner).map_err(system(format!("write \"{}\"", path.display())))?;
        Ok(Self(path.to_owned()))
    }

    /// The same where the process has it whose place this one is about to take: written by
    /// [`PidFile::take`].
    ///
    /// # Errors
    /// Another process has it, or it cannot be written.
    pub fn expect(path: &Path, predecessor: u32) -> Result<(), ProcessError> {
        let pid = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = pid
            && pid != predecessor
            && Path::new(&format!("/proc/{pid}")).exists()
        {
            return Err(ProcessError::AlreadyRunning { pidfile: path.to_owned(), pid });
        }
        let open = fs::File::options().append(true).create(pid.is_none()).open(path);
        open.map(drop).map_err(system(format!("write \"{}\"", path.display())))
    }

    /// Writes this process's id in place of its predecessor's.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn take(path: &Path) -> Result<Self, ProcessError> {
        Self::write(path, None).map_err(system(format!("write \"{}\"", path.display())))?;
        Ok(Self(path.to_owned()))
    }

    /// Writes the file whole, with its owner, before it has its name: what waits for the file finds
    /// neither an empty one nor one of root's.
    fn write(path: &Path, owner: Option<&sys::Account>) -> io::Result<()> {
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}", std::process::id()));
        let new = PathBuf::from(new);
        let written = Self::write_new(&new, owner).and_then(|()| fs::rename(&new, path));
        if written.is_err() {
            let _ = fs::remove_file(&new);
            if owner.is_none() {
                // The file may be the user's in a directory that is not.
                return fs::write(path, Self::line());
            }
        }
        written
    }

    fn write_new(path: &Path, owner: Option<&sys::Account>) -> io::Result<()> {
        // Of a process that had this id and died here.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // A new file, so that what is given away is this one, and none that a link leads to.
        let mut file = fs::File::options().write(true).create_new(true).open(path)?;
        file.write_all(Self::line().as_bytes())?;
        owner.map_or(Ok(()), |owner| fchown(&file, Some(owner.uid), Some(owner.gid)))
    }

    fn line() -> String {
        format!("{}\n", std::process::id())
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A successor may have put its own id there.
        let own = std::process::id().to_string();
        if fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == own) {
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// Private memory (RssAnon) of a process of this host, in bytes; `None` if it cannot be read.
pub fn private_memory(pid: u32) -> Option<u64> {
    parse_private_memory(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse_private_memory(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Set where `pgbouncer -d` waits until this process serves.
pub const BACKGROUND_VARIABLE: &str = "HAWSER_IN_BACKGROUND";

/// Tells the service manager about the process.
pub(crate) fn notify(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn too_few_descriptors_are_an_error_that_says_what_to_do() {
        let error = ensure_descriptors(u64::MAX).unwrap_err();
        assert!(matches!(error, ProcessError::Descriptors { .. }));
        assert!(error.to_string().contains("max_client_conn"), "{error}");
        ensure_descriptors(1).unwrap();
    }

    #[test]
    fn no_random_bytes_are_given_out_twice() {
        let mut given = std::collections::HashSet::new();
        // More than are fetched at once, of a length that does not divide it.
        for _ in 0..RANDOM_AHEAD_BYTES {
            let mut bytes = [0; 12];
            few_random_bytes(&mut bytes);
            assert!(given.insert(bytes));
        }
        let mut long = [0; RANDOM_AHEAD_BYTES];
        few_random_bytes(&mut long);
        assert!(long.iter().any(|&byte| byte != 0));
    }

    #[test]
    fn a_pid_file_is_for_one_process() {
        let directory = std::env::temp_dir().join(format!("hawser-pid-{}", random_u64()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("pid");
        fs::write(&path, "1\n").unwrap();
        assert!(matches!(
            PidFile::create(&path, None),
            Err(ProcessError::AlreadyRunning { pid: 1, .. })
        ));
        fs::write(&path, "4194305\n").unwrap(); // above every pid_max
        let owner = sys::account_by_name("nobody").unwrap().filter(|_| sys::is_superuser());
        let file = PidFile::create(&path, owner.as_ref()).unwrap();
        if let Some(owner) = owner {
            let uid = MetadataExt::uid(&fs::metadata(&path).unwrap());
            assert_eq!(uid, owner.uid, "it is given to the user");
        }
        assert_eq!(fs::read_to_string(&path).unwrap().trim(), std::process::id().to_string());
        drop(file);
        assert!(!path.exists());
        fs::remove_dir(&directory).unwrap();
    }

    /// The file was empty, and then root's, for a moment after it had appeared.
    #[test]
    fn a_pid_file_appears_whole_and_with_its_owner() {
        let directory = std::env::temp_dir().join(format!("hawser-pid-{}", random_u64()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("pid");
        let owner = sys::account_by_name("nobody").unwrap().filter(|_| sys::is_superuser());
        let (ended, started) = (AtomicBool::new(false), Barrier::new(2));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                started.wait();
                let mut found = BTreeSet::new();
                while !ended.load(Ordering::Relaxed) {
                    let Ok(mut file) = fs::File::open(&path) else { continue };
                    let uid = MetadataExt::uid(&file.metadata().unwrap());
                    let mut text = String::new();
                    file.read_to_string(&mut text).unwrap();
                    found.insert((uid, text));
                }
                found
            });
            started.wait();
            for _ in 0..2_000 {
                drop(PidFile::create(&path, owner.as_ref()).unwrap());
            }
            ended.store(true, Ordering::Relaxed);
            let own = MetadataExt::uid(&fs::metadata(&directory).unwrap());
            let expected = (owner.map_or(own, |owner| owner.uid), PidFile::line());
            let found = reader.join().unwrap();
            assert!(found.iter().all(|each| *each == expected), "{found:?}");
        });
        fs::remove_dir(&directory).unwrap();
    }

    /// Where the user may write the file and not its directory: as in /run.
    #[test]
    fn a_pid_file_that_cannot_be_replaced_is_written_in_place() {
        let directory = std::env::temp_dir().join(format!("hawser-pid-{}", random_u64()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("pid");
        // As root every directory can be written to: one that has the new file's name stands in its way.
        fs::create_dir(path.with_file_name(format!("pid.{}", std::process::id()))).unwrap();
        fs::write(&path, "4194305\n").unwrap();
        drop(PidFile::create(&path, None).unwrap());
        assert!(!path.exists());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn private_memory_is_the_anonymous_part_of_the_resident_set() {
        assert_eq!(
            parse_private_memory("VmRSS:\t  900 kB\nRssAnon:\t     123 kB\nRssFile:\t 1 kB\n"),
            Some(123 * 1024)
        );
        assert_eq!(parse_private_memory("VmRSS: 1 kB"), None);
        assert!(private_memory(std::process::id()).is_some());
    }
}
