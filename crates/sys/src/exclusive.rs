//! One process at a time: a file that is locked while something of the machine is changed.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::process::lock_file;

const TRIED_MAX: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Makes the file, and its directory, and locks it until it is closed. `None`: another process has held the
/// lock for five seconds.
///
/// # Errors
/// As mkdir(2), open(2) and flock(2).
pub fn lock(path: &Path) -> io::Result<Option<File>> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let lock = File::options().create(true).truncate(false).write(true).open(path)?;
    for _ in 0..TRIED_MAX {
        if lock_file(&lock)? {
            return Ok(Some(lock));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(None)
}
