//! `watch_files`: a reload where files have changed and nobody sends a signal.
//!
//! # Model
//! Every [`PERIOD`] each file that a reload reads is looked at, not read: which file it is, how long, when it
//! was changed. Where one is another than at the last reload, and all were the same a period ago (those who
//! change files change several, one after the other), the configuration is read again.
//!
//! # Limits
//! Key sets that an hba_file names are not looked at, and are read again with the others. What an error refuses is not tried again until a file changes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::reload;
use crate::config::Config;
use crate::reactor::Logged;
use crate::service::{Phase, Service};

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// What is seen of a file without reading it. A symbolic link is followed: Kubernetes replaces what a link
/// of its volumes names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Of its content or its permissions: seconds and nanoseconds.
    changed: (i64, i64),
}

/// All files; `None`: it cannot be looked at.
type Look = BTreeMap<PathBuf, Option<Seen>>;

fn look(config: &Config) -> Look {
    let seen = |path: &Path| {
        let file = fs::metadata(path).ok()?;
        let changed = (file.ctime(), file.ctime_nsec());
        Some(Seen { device: file.dev(), inode: file.ino(), bytes: file.len(), changed })
    };
    config.files_of_reload().into_iter().map(|path| (path.to_owned(), seen(path))).collect()
}

/// What is known of the files.
#[derive(Debug)]
struct Watch {
    /// At the last reload, or at the start.
    read: Look,
    /// At the last look.
    last: Look,
}

impl Watch {
    fn new(look: Look) -> Self {
        Self { last: look.clone(), read: look }
    }

    /// The files that are other ones than those that were read, if all have come to rest.
    fn take(&mut self, now: Look) -> Vec<PathBuf> {
        let rests = now == self.last;
        self.last = now;
        if !rests || self.last == self.read {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.read, self.last.clone());
        let is_other = |path: &&PathBuf| before.get(*path) != self.read.get(*path);
        let paths =
            before.keys().chain(self.read.keys().filter(|path| !before.contains_key(*path)));
        paths.filter(is_other).cloned().collect()
    }
}

/// Looks until the process ends.
pub(super) async fn run(service: Arc<Service>, logged: Arc<Logged>) {
    let mut watch = Watch::new(look(&service.config.load()));
    while service.phase() == Phase::Serving {
        tokio::time::sleep(PERIOD).await;
        // A file system may make a look wait.
        let config = service.config.load_full();
        let Ok(now) = tokio::task::spawn_blocking(move || look(&config)).await else { continue };
        let changed = watch.take(now);
        if !changed.is_empty() {
            let files: Vec<_> = changed.iter().map(|path| path.display().to_string()).collect();
            let files = files.join(", ");
            tracing::info!(files, "files have changed: the configuration is read again");
            reload(&service, &logged).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(inode: u64) -> Option<Seen> {
        Some(Seen { device: 1, inode, bytes: 7, changed: (1, 2) })
    }

    fn files(list: &[(&str, Option<Seen>)]) -> Look {
        list.iter().map(|(name, seen)| (PathBuf::from(name), *seen)).collect()
    }

    #[test]
    fn files_are_read_again_once_all_that_changes_has_come_to_rest() {
        let mut watch = Watch::new(files(&[("a", seen(1)), ("b", seen(2))]));
        let mut take = |list: &[_]| watch.take(files(list));
        let none: [PathBuf; 0] = [];
        assert_eq!(take(&[("a", seen(1)), ("b", seen(2))]), none, "nothing has changed");
        assert_eq!(take(&[("a", seen(3)), ("b", seen(2))]), none, "a is changing");
        assert_eq!(take(&[("a", seen(3)), ("b", seen(4))]), none, "b is changing");
        let both = [PathBuf::from("a"), PathBuf::from("b")];
        assert_eq!(take(&[("a", seen(3)), ("b", seen(4))]), both);
        assert_eq!(take(&[("a", seen(3)), ("b", seen(4))]), none, "it has been read");
        assert_eq!(take(&[("a", None), ("b", seen(4))]), none, "a is replaced, say");
        assert_eq!(take(&[("a", seen(3)), ("b", seen(4))]), none);
        assert_eq!(take(&[("a", seen(3)), ("b", seen(4))]), none, "it is what was read");
    }

    #[test]
    fn a_file_that_the_configuration_names_from_now_on_is_looked_at() {
        let mut watch = Watch::new(files(&[("a", seen(1))]));
        let now = files(&[("a", seen(1)), ("new", seen(2))]);
        assert!(watch.take(now.clone()).is_empty());
        assert_eq!(watch.take(now.clone()), [PathBuf::from("new")]);
        assert!(watch.take(now).is_empty());
    }
}
