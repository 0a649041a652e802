//! Which databases are paused or disabled.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use hawser_pooler::wire::error::{ClientError, SqlState};

use crate::config::ADMIN_DATABASES;
use crate::lock::locked;

/// Which databases are paused or disabled, by the names that clients ask for.
///
/// The login refuses clients of a disabled database; the registry pauses a new pool of a paused one.
#[derive(Debug, Default)]
pub struct Gates {
    closed: Mutex<Closed>,
    switchovers: AtomicU32,
}

/// A switchover that is under way, until it is dropped.
#[derive(Debug)]
pub struct Switchover<'a>(&'a AtomicU32);

impl Drop for Switchover<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Who pauses or disables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// An operator, or a signal: refused once another process serves.
    Operator,
    /// The successor, whose operator means the clients of this process, too.
    Successor,
}

#[derive(Debug, Default)]
struct Closed {
    /// No client gets in any more, because the process ends when all have left.
    door: bool,
    all_paused: bool,
    paused: BTreeSet<String>,
    disabled: BTreeSet<String>,
    /// The process that clients connect to, if it is the successor.
    given_to: Option<u32>,
}

impl Closed {
    fn admits(&self, by: By) -> Result<(), ClientError> {
        match by {
            By::Operator => self.serve_here(),
            By::Successor => Ok(()),
        }
    }

    fn serve_here(&self) -> Result<(), ClientError> {
        let Some(pid) = self.given_to else { return Ok(()) };
        let message =
            format!("process {pid} has taken this process's place: nothing has been changed");
        Err(ClientError::error(SqlState::CANNOT_CONNECT_NOW, message)
            .hint("Connect again: a new console is one of that process."))
    }

    fn is_some_paused(&self) -> bool {
        self.all_paused || !self.paused.is_empty()
    }

    fn pauses(&self, database: &str) -> bool {
        self.all_paused || self.paused.contains(database)
    }
}

impl Gates {
    fn lock(&self) -> MutexGuard<'_, Closed> {
        locked(&self.closed)
    }

    /// Clients of a paused database wait for another primary: servers are looked at more often.
    pub fn begin_switchover(&self) -> Switchover<'_> {
        self.switchovers.fetch_add(1, Ordering::Relaxed);
        Switchover(&self.switchovers)
    }

    /// Whether a switchover is under way.
    pub fn is_switching(&self) -> bool {
        self.switchovers.load(Ordering::Relaxed) > 0
    }

    /// Whether clients of `database` wait, whatever is free.
    pub fn is_paused(&self, database: &str) -> bool {
        self.lock().pauses(database)
    }

    /// Pauses a pool of `database` if that is paused. RESUME ends the pause first, and lists and resumes
    /// the pools after that: so none stays paused by itself.
    pub fn pause_pool(&self, database: &str, pause: impl FnOnce()) {
        let closed = self.lock();
        if closed.pauses(database) {
            pause();
        }
    }

    /// Whether everything is paused.
    pub fn all_paused(&self) -> bool {
        self.lock().all_paused
    }

    /// Whether something is paused.
    pub fn some_paused(&self) -> bool {
        self.lock().is_some_paused()
    }

    /// Clients connect to process `pid` from here on: from here on this process refuses all that
    /// would keep them waiting, or out. Returns the databases that let no client in; `None`:
    /// something is paused, and nothing has been changed.
    pub fn give_to(&self, pid: u32) -> Option<Vec<String>> {
        let mut closed = self.lock();
        if closed.is_some_paused() {
            return None;
        }
        closed.given_to = Some(pid);
        Some(closed.disabled.iter().cloned().collect())
    }

    /// Clients connect to this process again.
    pub fn take_back(&self) {
        self.lock().given_to = None;
    }

    /// Whether commands for all clients are for this process.
    ///
    /// # Errors
    /// Another process serves.
    pub fn serve_here(&self) -> Result<(), ClientError> {
        self.lock().serve_here()
    }

    /// Whether `database` lets no client in. Never true for an admin database.
    pub fn is_disabled(&self, database: &str) -> bool {
        !ADMIN_DATABASES.contains(&database) && self.lock().disabled.contains(database)
    }

    /// Pauses a database, or all. False: it was so already.
    ///
    /// # Errors
    /// Another process serves.
    pub fn pause(&self, database: Option<&str>, by: By) -> Result<bool, ClientError> {
        let mut closed = self.lock();
        closed.admits(by)?;
        Ok(match database {
            Some(database) => closed.paused.insert(database.to_owned()),
            None => !std::mem::replace(&mut closed.all_paused, true),
        })
    }

    /// Ends the pause of a database, or of all, also of those that were paused alone. False: there
    /// was none.
    pub fn resume(&self, database: Option<&str>) -> bool {
        let mut closed = self.lock();
        match database {
            Some(database) => closed.paused.remove(database),
            None => {
                let alone = std::mem::take(&mut closed.paused);
                std::mem::replace(&mut closed.all_paused, false) || !alone.is_empty()
            }
        }
    }

    /// Lets no client into any database from now on.
    pub fn close_door(&self) {
        self.lock().door = true;
    }

    /// The error for a client that may not use `database`.
    ///
    /// # Errors
    /// The database is disabled, or the process waits for its last client.
    pub fn admit(&self, database: &str) -> Result<(), ClientError> {
        if self.lock().door {
            return Err(ClientError::fatal(
                SqlState::CANNOT_CONNECT_NOW,
                "the pooler is shutting down",
            ));
        }
        if self.is_disabled(database) {
            return Err(ClientError::fatal(
                SqlState::CANNOT_CONNECT_NOW,
                format!("database \"{database}\" is disabled"),
            )
            .hint("An administrator has run DISABLE; ENABLE ends it."));
        }
        Ok(())
    }

    /// Lets no client into a database from now on.
    ///
    /// # Errors
    /// Another process serves.
    pub fn disable(&self, database: &str, by: By) -> Result<(), ClientError> {
        let mut closed = self.lock();
        closed.admits(by)?;
        closed.disabled.insert(database.to_owned());
        Ok(())
    }

    /// Lets clients into a database again.
    pub fn enable(&self, database: &str) {
        self.lock().disabled.remove(database);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resume_of_all_also_ends_single_pauses_and_says_whether_there_was_one() {
        let gates = Gates::default();
        assert!(!gates.resume(None));
        assert!(gates.pause(Some("a"), By::Operator).unwrap());
        assert!(!gates.pause(Some("a"), By::Operator).unwrap());
        assert!(gates.is_paused("a") && !gates.is_paused("b"));
        assert!(gates.resume(None));
        assert!(!gates.is_paused("a"));
        assert!(gates.pause(None, By::Operator).unwrap());
        assert!(gates.is_paused("b"));
        assert!(!gates.resume(Some("b")), "it was not paused alone");
        assert!(gates.resume(None));
    }

    #[test]
    fn an_admin_database_cannot_be_disabled() {
        let gates = Gates::default();
        gates.disable("hawser", By::Operator).unwrap();
        gates.disable("app", By::Operator).unwrap();
        assert!(!gates.is_disabled("hawser"));
        assert!(gates.is_disabled("app"));
        gates.enable("app");
        assert!(!gates.is_disabled("app"));
        gates.admit("app").unwrap();
        gates.close_door();
        assert_eq!(gates.admit("app").unwrap_err().code, SqlState::CANNOT_CONNECT_NOW);
    }

    #[test]
    fn what_is_paused_is_not_given_away_and_what_is_given_away_is_not_paused() {
        let gates = Gates::default();
        gates.disable("d", By::Operator).unwrap();
        gates.pause(Some("a"), By::Operator).unwrap();
        assert_eq!(gates.give_to(7), None);
        assert!(gates.resume(Some("a")));
        assert_eq!(gates.give_to(7), Some(vec!["d".to_owned()]));
        for refused in [
            gates.pause(None, By::Operator).err(),
            gates.disable("a", By::Operator).err(),
            gates.serve_here().err(),
        ] {
            assert!(refused.unwrap().message.starts_with("process 7 has taken"));
        }
        assert!(!gates.some_paused() && !gates.is_disabled("a"));
        assert!(gates.pause(Some("a"), By::Successor).unwrap() && gates.is_paused("a"));
        assert!(gates.resume(Some("a")));
        gates.take_back();
        gates.pause(None, By::Operator).unwrap();
    }
}
