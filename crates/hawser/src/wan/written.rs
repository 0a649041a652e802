//! Files that are written, all or none.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

use hawser_sys::process::Account;

/// A file that is to be there.
#[derive(Clone, Debug)]
pub struct File {
    /// Where.
    pub path: PathBuf,
    /// What is in it.
    pub text: String,
    /// It is for its user alone, and is not shown.
    pub secret: bool,
    /// The text is added to a file that is there.
    pub adds: bool,
}

impl File {
    /// A new one that all may read.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, text: String) -> Self {
        Self { path: path.into(), text, secret: false, adds: false }
    }

    /// A new one for its user alone.
    #[must_use]
    pub fn secret(path: impl Into<PathBuf>, text: String) -> Self {
        Self { secret: true, ..Self::new(path, text) }
    }

    /// As a dry run shows it.
    #[must_use]
    pub fn to_text(&self) -> String {
        let text = match self.secret {
            true => "    (secret: for its user alone)\n".to_owned(),
            false => self.text.lines().map(|line| format!("    {line}\n")).collect(),
        };
        format!("{}:\n{text}", self.path.display())
    }

    fn write(&self, owner: Option<&Account>) -> std::io::Result<()> {
        if self.adds {
            return self.add();
        }
        if let Some(directory) = self.path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mode = if self.secret { 0o600 } else { 0o644 };
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(&self.path)?;
        file.write_all(self.text.as_bytes()).and_then(|()| file.sync_all())?;
        owner.map_or(Ok(()), |owner| chown(&self.path, Some(owner.uid), Some(owner.gid)))
    }

    /// The end of the file is what was added to it.
    fn cut_off(&self) -> std::io::Result<()> {
        let file = OpenOptions::new().write(true).open(&self.path)?;
        let length = file.metadata()?.len();
        file.set_len(length.saturating_sub(self.text.len() as u64))
    }

    fn add(&self) -> std::io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(&self.path)?;
        let before = file.metadata()?.len();
        let added = file.write_all(self.text.as_bytes()).and_then(|()| file.sync_all());
        if added.is_err() {
            file.set_len(before)?;
        }
        added
    }
}

/// Refuses what is there already.
///
/// # Errors
/// All such files.
pub fn refuse_existing(files: &[File]) -> Result<(), String> {
    let there = files.iter().filter(|file| !file.adds && file.path.symlink_metadata().is_ok());
    let there: Vec<String> = there.map(|file| format!("\"{}\"", file.path.display())).collect();
    if there.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} is there already, and nothing was written: give this link another name by --name, or move \
         the old one's files away",
        there.join(", ")
    ))
}

/// Writes them, for this owner where there is one; those that were new go again where a later one fails.
///
/// # Errors
/// The file, and why.
pub fn write_all(files: &[File], owner: Option<&Account>) -> Result<(), String> {
    for (at, file) in files.iter().enumerate() {
        if let Err(error) = file.write(owner) {
            take_back(&files[..at]);
            let root = match error.kind() {
                std::io::ErrorKind::PermissionDenied => ". It needs root",
                _ => "",
            };
            return Err(format!(
                "\"{}\" is not written: {error}{root}. Nothing is left of what was written before it",
                file.path.display()
            ));
        }
    }
    Ok(())
}

/// Takes new files away again, and what was added to others.
pub fn take_back(files: &[File]) {
    for file in files {
        // What cannot be taken back is named when the command is run again.
        let _ = match file.adds {
            true => file.cut_off(),
            false => fs::remove_file(&file.path),
        };
    }
}

/// `path` below `root`.
#[must_use]
pub fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
