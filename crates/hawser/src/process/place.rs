//! Where a process without a configured directory has its control socket, and where `hawser status`
//! looks for it: outside of systemd, in a container, in a shell of `su`.
//!
//! # Invariants  the directory is this user's own and no link: in /tmp any user may have made one
//!               of that name

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// For root, as the unit's RuntimeDirectory.
const OF_ROOT: &str = "/run/hawser";

/// Where the directory may be, the best first, for the user with this id.
pub fn candidates(uid: u32) -> Vec<PathBuf> {
    if uid == 0 {
        return vec![OF_ROOT.into()];
    }
    vec![format!("/run/user/{uid}").into(), format!("/tmp/hawser-{uid}").into()]
}

/// The directory of this process's user; made if need be.
///
/// # Errors
/// None of them can be had: why not the last.
pub fn directory() -> io::Result<PathBuf> {
    let uid = hawser_sys::process::effective_uid();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for path in candidates(uid) {
        match own(&path, uid) {
            Ok(()) => return Ok(path),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn own(path: &Path, uid: u32) -> io::Result<()> {
    // (/run/user belongs to root, who alone makes directories there.)
    let mode = if uid == 0 { 0o755 } else { 0o700 };
    match std::fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = std::fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
        let path = path.display();
        return Err(io::Error::other(format!("{path} is not a directory of this user alone")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_is_made_once_and_another_users_or_a_link_is_refused() {
        let uid = hawser_sys::process::effective_uid();
        let base = std::env::temp_dir().join(format!("hawser-place-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let path = base.join("own");
        own(&path, uid).unwrap();
        own(&path, uid).unwrap();
        assert!(own(&path, uid + 1).is_err(), "another user's");
        std::os::unix::fs::symlink(&path, base.join("link")).unwrap();
        assert!(own(&base.join("link"), uid).is_err());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(own(&path, uid).is_err(), "all may write there");
        std::fs::remove_dir_all(base).unwrap();
        assert_eq!(candidates(0), [PathBuf::from("/run/hawser")]);
        assert_eq!(candidates(7).last().unwrap(), Path::new("/tmp/hawser-7"));
    }
}
