//! Server connections for the control side's own questions, kept while they are used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Mutex as AsyncMutex;

use super::session::Session;
use super::{Route, locked};
use crate::config::ServerAddress;

/// How long an unused line is kept: long enough for a stream of logins to share it.
const LINE_IDLE: Duration = Duration::from_secs(5);

/// One connection to the servers of one database as one role. It has one question at a time.
pub(super) struct Line {
    pub(super) open: Option<Session>,
    pub(super) used: Instant,
    /// When a question last got no answer in time, and which server it was.
    pub(super) unanswered: Option<(Instant, String)>,
}

/// What a line is connected to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct LineKey {
    servers: Vec<ServerAddress>,
    database: String,
    user: String,
    /// For `auth_query`.
    looks_up: bool,
}

/// All lines.
#[derive(Default)]
pub struct Lines(Mutex<HashMap<LineKey, Arc<AsyncMutex<Line>>>>);

impl LineKey {
    fn of(route: &Route) -> Self {
        Self {
            servers: route.target.servers.clone(),
            database: route.login.database.clone(),
            user: route.login.user.clone(),
            looks_up: route.login.parameters.iter().any(|asked| *asked.name == *b"search_path"),
        }
    }
}

impl Lines {
    /// How many connections are open for this route: one at most.
    pub fn open_count(&self, route: &Route) -> u32 {
        let lines = locked(&self.0);
        let line = lines.get(&LineKey::of(route));
        // A line in use cannot be locked.
        let is_open =
            line.is_some_and(|line| line.try_lock().map_or(true, |line| line.open.is_some()));
        is_open.into()
    }

    /// The line for this route.
    pub(super) fn line(&self, route: &Route) -> Arc<AsyncMutex<Line>> {
        let key = LineKey::of(route);
        let new = || {
            Arc::new(AsyncMutex::new(Line { open: None, used: Instant::now(), unanswered: None }))
        };
        locked(&self.0).entry(key).or_insert_with(new).clone()
    }

    /// Closes lines that have not been used lately.
    pub fn close_idle(&self) {
        locked(&self.0).retain(|_, line| {
            // A line in use cannot be locked, and stays.
            line.try_lock().map_or(true, |line| line.used.elapsed() < LINE_IDLE)
        });
    }

    /// Closes the least recently used line, so that its place is free. False if all are in use.
    pub fn close_one(&self) -> bool {
        let lines = locked(&self.0);
        let idle = lines.values().filter_map(|line| line.try_lock().ok());
        let oldest = idle.filter(|line| line.open.is_some()).min_by_key(|line| line.used);
        oldest.is_some_and(|mut line| line.open.take().is_some())
    }

    /// Closes the lines that lead there. Returns how many are in use, and so stay.
    pub fn close(&self, there: impl Fn(&[ServerAddress], &str) -> bool) -> u32 {
        let lines = locked(&self.0);
        let there = lines.iter().filter(|(key, _)| there(&key.servers, &key.database));
        let mut left = 0;
        for (_, line) in there {
            match line.try_lock() {
                Ok(mut line) => line.open = None,
                Err(_) => left += 1,
            }
        }
        left
    }

    /// Forgets all: the configuration has changed.
    pub fn forget(&self) {
        locked(&self.0).clear();
    }
}
