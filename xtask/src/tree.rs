//! The repository's files, read once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

/// What is built, logged or installed: not part of the repository, whatever `.gitignore` says.
const OUTPUT_DIRECTORIES: [&str; 12] = [
    ".git",
    ".run",
    "target",
    "node_modules",
    ".venv",
    "__pycache__",
    ".packages",
    "tests/drivers/pgjdbc/lib",
    "tests/drivers/pgx/bin",
    "bench/out",
    "fuzz/corpus",
    "fuzz/artifacts",
];

/// A file larger than this is data, and no check reads it.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Paths from the root with `/`, and the text of those that are UTF-8.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    texts: BTreeMap<String, String>,
    /// Everything that a link may name: files that are not text, and directories.
    others: BTreeSet<String>,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let mut tree = Self::default();
        tree.descend(root, "").map_err(|error| format!("{}: {error}", root.display()))?;
        Ok(tree)
    }

    /// A tree that a test writes down.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.texts.insert((*path).into(), (*text).into());
            for (end, _) in path.match_indices('/') {
                tree.others.insert(path[..end].into());
            }
        }
        tree
    }

    /// Every text file whose name ends with `suffix`, by path.
    pub(crate) fn ending<'a>(
        &'a self,
        suffix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let all = self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        all.filter(move |(path, _)| path.ends_with(suffix))
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Whether the path names a file or a directory; the root is the empty path.
    pub(crate) fn has(&self, path: &str) -> bool {
        path.is_empty() || self.texts.contains_key(path) || self.others.contains(path)
    }

    fn descend(&mut self, directory: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            // A name that is not UTF-8 cannot be linked to, and is not ours.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
            if OUTPUT_DIRECTORIES.iter().any(|skipped| *skipped == name || *skipped == path) {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.descend(&entry.path(), &path)?;
                self.others.insert(path);
            } else if kind.is_file() && entry.metadata()?.len() <= FILE_BYTES_MAX {
                match fs::read_to_string(entry.path()) {
                    Ok(text) => drop(self.texts.insert(path, text)),
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        self.others.insert(path);
                    }
                    Err(error) => return Err(error),
                }
            } else {
                self.others.insert(path);
            }
        }
        Ok(())
    }
}
