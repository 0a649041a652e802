//! Pins: files of bpffs that keep programs and maps while no process has them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::is_file_system;

/// Whether there was nothing.
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Where bpffs must be mounted for a directory of pins, if it is not.
///
/// # Errors
/// No rights to look.
pub fn missing_file_system(directory: &Path) -> io::Result<Option<PathBuf>> {
    let mount = directory.parent().unwrap_or(Path::new("/"));
    match is_file_system(mount) {
        Ok(true) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(Some(mount.to_owned())),
    }
}

/// Removes these of a directory, in this order, and the directory.
///
/// # Errors
/// The first that cannot be removed; all are tried.
pub fn remove(directory: &Path, names: impl IntoIterator<Item = &'static str>) -> io::Result<()> {
    let files = remove_files(directory, names);
    let removed = fs::remove_dir(directory);
    files.and(removed.or_else(|error| if is_absent(&error) { Ok(()) } else { Err(error) }))
}

/// The same, but for the directory.
///
/// # Errors
/// As [`remove`].
pub fn remove_files(
    directory: &Path,
    names: impl IntoIterator<Item = &'static str>,
) -> io::Result<()> {
    let removed = names.into_iter().map(|name| fs::remove_file(directory.join(name)));
    // All are tried.
    let failures: Vec<io::Error> =
        removed.filter_map(Result::err).filter(|error| !is_absent(error)).collect();
    failures.into_iter().next().map_or(Ok(()), Err)
}
