//! Programs that are run for an answer, each in a process group of its own.
//!
//! # Invariant  one that is dropped before its end has been waited for is killed with all that it has
//!              started: a shell's children would go on otherwise

use std::io;
use std::process::ExitStatus;

use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// A program under way.
#[derive(Debug)]
pub struct ProcessGroup(Option<Child>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // As long as it has not been waited for, no other process has its number.
        if let Some(group) = self.0.as_ref().and_then(Child::id) {
            let _ = hawser_sys::process::kill_group(group); // it may have ended
        }
    }
}

impl ProcessGroup {
    /// Starts it.
    ///
    /// # Errors
    /// As spawn.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        Ok(Self(Some(command.kill_on_drop(true).process_group(0).spawn()?)))
    }

    /// The ends of its standard input and output, if they are pipes: once.
    pub fn pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>) {
        self.0.as_mut().map_or((None, None), |child| (child.stdin.take(), child.stdout.take()))
    }

    /// The end of its standard error, if it is a pipe: once.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.0.as_mut().and_then(|child| child.stderr.take())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// As wait.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let child = self.0.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let status = child.wait().await?;
        self.0 = None;
        Ok(status)
    }
}
