//! A systemd unit that repeats a command of this program at each start of the machine.
//!
//! # Invariants
//! * a file that does not bear our mark in its first line is neither written over nor removed
//! * it is enabled by the link that `systemctl enable` would make (systemd.unit(5), `WantedBy=`)
//!
//! # Limits
//! It is neither started nor stopped: what it does at the next start has been done already.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why nothing is written that is to last.
pub const PERSIST_ELSEWHERE: &str = "--persist writes files that hold for the machine's own network namespace at its next start, and \
     this is another one: give it there, or leave it out";
/// Why a file that was is not removed.
pub const STAYS: &str =
    "stays: it is for the machine's own network namespace, and this is another one";

/// Where units are, and what has them started.
const UNITS: &str = "etc/systemd/system";
const WANTED: &str = "etc/systemd/system/multi-user.target.wants";

/// A unit: what it is called, and what it does.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The file's name, with `.service`.
    pub name: String,
    /// `Description=`.
    pub description: String,
    /// The first line of the file, a comment: by it ours are known.
    pub mark: &'static str,
    /// Arguments of this program. None has blanks or quotes.
    pub arguments: Vec<String>,
    /// `CapabilityBoundingSet=`.
    pub capabilities: &'static str,
}

/// Where units are: of the machine, or in a test of a directory.
fn at(root: &Path, directory: &str, name: &str) -> PathBuf {
    root.join(directory).join(name)
}

impl Unit {
    /// Its file.
    #[must_use]
    pub fn path(&self, root: &Path) -> PathBuf {
        at(root, UNITS, &self.name)
    }

    /// Its text. Specifiers and quotes as systemd.syntax(7) has them.
    #[must_use]
    pub fn text(&self, program: &Path) -> String {
        let Self { description, mark, arguments, capabilities, .. } = self;
        let program = program.display().to_string().replace('%', "%%");
        let mut text = format!("{mark}\n[Unit]\nDescription={description}\n");
        text += "Wants=network-online.target\nAfter=network-online.target\n";
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=\"{program}\" {}\n\
             CapabilityBoundingSet={capabilities}\n\n[Install]\nWantedBy=multi-user.target\n",
            arguments.join(" ")
        );
        text
    }

    /// Writes it, and has it started with the machine.
    ///
    /// # Errors
    /// A file is there that is not ours ([`io::ErrorKind::AlreadyExists`]), or it cannot be written.
    pub fn enable(&self, root: &Path, program: &Path) -> io::Result<()> {
        if !is_ours_or_absent(&self.path(root), self.mark)? {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the file exists, and Hawser has not written it",
            ));
        }
        fs::create_dir_all(root.join(WANTED))?;
        fs::write(self.path(root), self.text(program))?;
        let target = Path::new("/").join(UNITS).join(&self.name);
        match std::os::unix::fs::symlink(target, at(root, WANTED, &self.name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }
}

/// Whether this process is in the network namespace of process 1, for which units and settings in /etc are.
/// Also where it may not be known which that is.
#[must_use]
pub fn is_machines_network() -> bool {
    // Each namespace has files of its own in /proc/net. /proc/1/ns/net is for those alone who may trace
    // process 1.
    let of = |process: &str| fs::metadata(format!("/proc/{process}/net/dev"));
    match (of("thread-self"), of("1")) {
        (Ok(own), Ok(machines)) => (own.dev(), own.ino()) == (machines.dev(), machines.ino()),
        _ => true,
    }
}

/// Whether a file has our mark, or is not there.
///
/// # Errors
/// It cannot be read.
pub fn is_ours_or_absent(path: &Path, mark: &str) -> io::Result<bool> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.starts_with(mark)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// The units whose names begin so and that are ours, in their order.
///
/// # Errors
/// The directory or a unit cannot be read.
pub fn ours(root: &Path, prefix: &str, mark: &str) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(root.join(UNITS)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let named = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
        if named && path.is_file() && is_ours_or_absent(&path, mark)? {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Removes a unit, and the link that has it started.
///
/// # Errors
/// It cannot be removed; what is gone already is no error.
pub fn remove(root: &Path, path: &Path) -> io::Result<()> {
    let link = path.file_name().map(|name| root.join(WANTED).join(name));
    for path in link.as_deref().into_iter().chain([path]) {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "# Ours.";

    fn unit() -> Unit {
        Unit {
            name: "hawser-test.service".to_owned(),
            description: "A test".to_owned(),
            mark: MARK,
            arguments: vec!["cc".to_owned(), "apply".to_owned()],
            capabilities: "CAP_NET_ADMIN",
        }
    }

    #[test]
    fn another_network_namespace_is_not_the_machines() {
        if !is_machines_network() {
            return eprintln!("skipped: this is not the network namespace of process 1");
        }
        let other = std::thread::spawn(|| match crate::namespace::unshare_network() {
            Ok(()) => assert!(!is_machines_network()),
            Err(error) => eprintln!("skipped: no network namespace: {error}"),
        });
        other.join().unwrap();
    }

    #[test]
    fn a_unit_repeats_its_command() {
        let text = unit().text(Path::new("/opt/50% off/hawser"));
        assert!(text.starts_with("# Ours.\n[Unit]\nDescription=A test\n"), "{text}");
        assert!(text.contains("\nExecStart=\"/opt/50%% off/hawser\" cc apply\n"), "{text}");
    }

    #[test]
    fn ours_are_written_over_and_removed_and_no_others() {
        let root =
            std::env::temp_dir().join(format!("hawser-unit-{}", crate::random::random_u64()));
        let program = Path::new("/usr/bin/hawser");
        let one = unit();
        assert_eq!(ours(&root, "hawser-", MARK).unwrap(), Vec::<PathBuf>::new());
        one.enable(&root, program).unwrap();
        one.enable(&root, program).unwrap();
        let theirs = Unit { name: "hawser-theirs.service".to_owned(), ..unit() };
        fs::write(theirs.path(&root), "[Unit]\n").unwrap();
        let refused = theirs.enable(&root, program).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(ours(&root, "hawser-", MARK).unwrap(), [one.path(&root)]);
        let link = at(&root, WANTED, &one.name);
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/").join(UNITS).join(&one.name));
        remove(&root, &one.path(&root)).unwrap();
        remove(&root, &one.path(&root)).unwrap();
        assert!(!one.path(&root).exists() && link.symlink_metadata().is_err());
        assert!(theirs.path(&root).exists());
        fs::remove_dir_all(&root).unwrap();
    }
}
