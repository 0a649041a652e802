//! `watch_files`: a reload when files have changed, without a signal.
//!
//! # Model
//! Every [`PERIOD`] this checks each file that a reload reads, without reading it: its identity,
//! length and time of change; also those that files of rules include. If one differs from the last
//! reload, and none has changed within a period (several files are often changed one after the
//! other), the configuration is read again.
//!
//! # Limits
//! Key sets that an hba_file names are not checked, and are read again with the others. After a
//! refused reload none is tried until a file changes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::reload;
use crate::auth::records;
use crate::config::Config;
use crate::phase::Phase;
use crate::service::Service;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// What a file shows without being read. Symbolic links are followed: Kubernetes replaces the
/// target of a link in its volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Of its content or its permissions: seconds and nanoseconds.
    changed: (i64, i64),
}

/// All files; `None`: it cannot be checked.
type Look = BTreeMap<PathBuf, Option<Seen>>;

fn look<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Look {
    let seen = |path: &Path| {
        let file = fs::metadata(path).ok()?;
        let changed = (file.ctime(), file.ctime_nsec());
        Some(Seen { device: file.dev(), inode: file.ino(), bytes: file.len(), changed })
    };
    paths.into_iter().map(|path| (path.to_owned(), seen(path))).collect()
}

/// The files that files of rules include, and the directories. They are read for that when one of
/// them has changed.
#[derive(Debug, Default)]
struct Included(Look);

impl Included {
    fn look(&mut self, config: &Config) -> Look {
        let auth = &config.reload.auth;
        let roots = || [&auth.hba_file, &auth.ident_file].into_iter().filter_map(Option::as_deref);
        let now = look(roots().chain(self.0.keys().map(PathBuf::as_path)));
        if now != self.0 {
            let paths: Vec<PathBuf> = roots().flat_map(records::files_of).collect();
            self.0 = look(paths.iter().map(PathBuf::as_path));
        }
        self.0.clone()
    }

    fn look_at_all(&mut self, config: &Config) -> Look {
        let mut all = self.look(config);
        all.extend(look(config.files_of_reload()));
        all
    }
}

/// What is known about the files.
#[derive(Debug)]
pub(super) struct Watch {
    /// At the last reload, or at the start.
    read: Look,
    /// At the last look.
    last: Look,
    included: Included,
}

impl Watch {
    /// From the present state, before the files are read. So changes while they are read, and while
    /// a successor waits for its servers, are seen.
    pub(super) fn begin(config: &Config) -> Self {
        let mut included = Included::default();
        let look = included.look_at_all(config);
        Self { included, ..Self::new(look) }
    }

    fn new(look: Look) -> Self {
        Self { last: look.clone(), read: look, included: Included::default() }
    }

    /// The files that differ from those that were read, if none is still changing.
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
pub(super) async fn run(service: Arc<Service>, mut watch: Watch) {
    while service.shared.phase() == Phase::Serving {
        tokio::time::sleep(PERIOD).await;
        // A file system may block a look.
        let config = service.shared.config.load_full();
        let mut included = std::mem::take(&mut watch.included);
        let looking = tokio::task::spawn_blocking(move || {
            let now = included.look_at_all(&config);
            (now, included)
        });
        let Ok((now, included)) = looking.await else { continue };
        watch.included = included;
        let changed = watch.take(now);
        if !changed.is_empty() {
            let files: Vec<_> = changed.iter().map(|path| path.display().to_string()).collect();
            let files = files.join(", ");
            tracing::info!(files, "files have changed: the configuration is read again");
            reload(&service).await;
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
    fn what_files_of_rules_include_is_looked_at() {
        let directory = std::env::temp_dir().join(format!("hawser-watch-{}", std::process::id()));
        fs::create_dir_all(directory.join("d")).unwrap();
        let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
        write(
            "hba",
            "include more\ninclude_if_exists none\ninclude_dir d\nlocal @names all trust\n",
        );
        write("more", "local all all trust\n");
        write("names", "a\n");
        let text = format!(
            "[auth]\nhba_file = \"{}\"\n[listen]\naddress = \"127.0.0.1:1\"\n[[database]]\nname = \"*\"\nservers = [\"h\"]\n",
            directory.join("hba").display()
        );
        let config = Config::from_str(&text, "test.toml").unwrap();
        let mut watch = Watch::begin(&config);
        let mut included = std::mem::take(&mut watch.included);
        let mut changed = || {
            watch.take(included.look_at_all(&config));
            watch.take(included.look_at_all(&config))
        };
        assert!(changed().is_empty());
        write("names", "a\nb\n");
        assert_eq!(changed(), [directory.join("names")]);
        write("none", "local all all trust\n");
        assert_eq!(changed(), [directory.join("none")]);
        write("d/x.conf", "local all all trust\n");
        assert_eq!(changed(), [directory.join("d"), directory.join("d/x.conf")]);
        fs::remove_dir_all(&directory).unwrap();
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
