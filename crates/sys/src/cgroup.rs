//! Control groups, version 2: where they are mounted, and the one of this process.

use std::fs;
use std::io;
use std::path::PathBuf;

/// Where cgroup v2 is mounted; `None`: it is not.
///
/// # Errors
/// /proc cannot be read.
pub fn mount() -> io::Result<Option<PathBuf>> {
    Ok(mount_among(&fs::read_to_string("/proc/thread-self/mountinfo")?))
}

/// proc(5): ... the fifth field is where, after " - " comes what.
fn mount_among(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, what) = line.split_once(" - ")?;
        let place = mount.split(' ').nth(4)?;
        (what.split(' ').next()? == "cgroup2").then(|| unescaped(place).into())
    })
}

/// A place in mountinfo: spaces and the like are octal (proc(5)).
fn unescaped(place: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(place.to_owned(), |text, (code, character)| text.replace(code, character))
}

/// The cgroup of this process: the line of number 0 is v2's (cgroups(7)).
///
/// # Errors
/// /proc cannot be read, or the process is in none of version 2.
pub fn own() -> io::Result<PathBuf> {
    let lines = fs::read_to_string("/proc/self/cgroup")?;
    let line = lines.lines().find_map(|line| line.strip_prefix("0::"));
    line.map(PathBuf::from).ok_or_else(|| io::Error::other("it has none of cgroup v2"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_found_whatever_else_is_mounted() {
        let mounts = "\
22 1 0:20 / /proc rw shared:5 - proc proc rw
30 22 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
31 22 0:26 / /sys/fs/cgroup/with\\040space rw,nosuid shared:9 master:1 - cgroup2 cgroup2 rw
";
        assert_eq!(mount_among(mounts), Some("/sys/fs/cgroup/with space".into()));
        assert_eq!(mount_among("22 1 0:20 / /proc rw - proc proc rw\n\nx - y"), None);
    }
}
