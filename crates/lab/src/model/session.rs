//! A session's state, with PostgreSQL's rules of what a rollback takes back.
//!
//! # Model
//! What a rollback takes back is one value, [`Undoable`]: settings, temporary tables, changes to
//! tables, LISTEN and NOTIFY not yet in force. It is copied where a transaction or savepoint
//! begins and put back where that part fails. Everything else (statements, sequences' last
//! values, locks, positions of cursors) no rollback touches.
//!
//! # States      (PostgreSQL's names in `xact.c`)
//! ```text
//! Idle ──any command──► Started ──BEGIN──► Explicit ──error──► Failed
//!  ▲                      │  ▲                │                   │
//!  │◄──Sync, end of Query─┘  │many statements │                   │
//!  │                         ▼in one Query    │                   │
//!  │◄───────────────────── Implicit           │                   │
//!  └◄─────────────COMMIT, ROLLBACK────────────┴───────────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::catalog::Database;
use super::commit::{Change, Notification, ProcessId};
use super::portal::{Portal, Prepared};
use super::settings::{self, Defaults, Settings};

/// Where the session stands in a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Block {
    /// Outside (`TBLOCK_DEFAULT`).
    #[default]
    Idle,
    /// In a transaction of a single statement, or of a pipeline up to Sync (`TBLOCK_STARTED`).
    Started,
    /// In the implicit block of a Query of several statements (`TBLOCK_IMPLICIT_INPROGRESS`).
    Implicit,
    /// After BEGIN (`TBLOCK_INPROGRESS`).
    Explicit,
    /// In a block that has failed (`TBLOCK_ABORT`).
    Failed,
}

/// A temporary table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TempTable {
    pub(super) rows: Vec<i32>,
    pub(super) owner: String,
    pub(super) drop_on_commit: bool,
}

/// LISTEN and UNLISTEN, which take effect at commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Listening {
    Listen(String),
    Unlisten(String),
    UnlistenAll,
}

/// What a rollback takes back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Undoable {
    pub(super) settings: Settings,
    pub(super) temp: BTreeMap<String, TempTable>,
    /// The session has had a temporary table: its temporary schema heads the search path.
    pub(super) temp_schema: bool,
    pub(super) changes: Vec<(String, Change)>,
    pub(super) listening: Vec<Listening>,
    pub(super) notifications: Vec<(String, String)>,
}

/// One session on the server.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) process: ProcessId,
    pub(super) database: String,
    pub(super) user: String,
    /// Permanent tables and sequences: none is ever created or dropped.
    pub(super) tables: BTreeSet<String>,
    pub(super) known_sequences: BTreeSet<String>,
    pub(super) defaults: Defaults,
    pub(super) block: Block,
    pub(super) read_only: bool,
    pub(super) now: Undoable,
    base: Undoable,
    savepoints: Vec<(String, Undoable)>,
    pub(super) statements: BTreeMap<String, Prepared>,
    /// How many PREPAREs of SQL it has run.
    pub(super) prepared: u64,
    pub(super) portals: BTreeMap<String, Portal>,
    pub(super) sequences: BTreeMap<String, i64>,
    pub(super) last_sequence: Option<String>,
    /// An Execute of this transaction has been completed before its Sync (XACT_FLAGS_PIPELINING).
    pub(super) pipelining: bool,
    /// Raised when all plans must be analysed again.
    pub(super) plan_epoch: u64,
}

/// What a commit leaves for the cluster to do.
#[derive(Debug, Default)]
pub(super) struct Committed {
    pub(super) changes: Vec<(String, Change)>,
    pub(super) listening: Vec<Listening>,
    pub(super) notifications: Vec<Notification>,
}

impl Session {
    pub(super) fn new(
        process: ProcessId,
        (database, contents): (String, &Database),
        user: String,
        defaults: Defaults,
    ) -> Self {
        Self {
            tables: contents.tables.keys().cloned().collect(),
            known_sequences: contents.sequences.keys().cloned().collect(),
            process,
            database,
            user,
            defaults,
            block: Block::Idle,
            read_only: false,
            now: Undoable::default(),
            base: Undoable::default(),
            savepoints: Vec::new(),
            statements: BTreeMap::new(),
            prepared: 0,
            portals: BTreeMap::new(),
            sequences: BTreeMap::new(),
            last_sequence: None,
            plan_epoch: 0,
            pipelining: false,
        }
    }

    /// It is another user's from now on.
    pub(super) fn hand_over(&mut self, user: String) {
        self.defaults.hand_over(&user);
        self.now.settings.hand_over();
        self.user = user;
    }

    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.now.settings.get(&self.defaults, name)
    }

    pub(super) fn own_setting(&self, name: &str) -> Option<&str> {
        self.defaults.get(&settings::key(name))
    }

    /// The role whose rights count: that of SET ROLE, else the login's.
    pub(super) fn current_user(&self) -> &str {
        match self.setting("role") {
            None | Some("none") => &self.user,
            Some(role) => role,
        }
    }

    /// The schemas in which a name is looked for, without those that do not exist.
    pub(super) fn search_path(&self) -> Vec<String> {
        let known = super::catalog::schemas();
        let mut path = Vec::new();
        if self.now.temp_schema {
            path.push("pg_temp".to_owned());
        }
        for name in settings::path_names(self.setting("search_path").unwrap_or_default()) {
            if known.contains(&name) && !path.contains(&name) {
                path.push(name);
            }
        }
        path
    }

    /// I, T or E, as ReadyForQuery says it.
    pub(super) fn status(&self) -> u8 {
        match self.block {
            Block::Idle | Block::Started => b'I',
            Block::Implicit | Block::Explicit => b'T',
            Block::Failed => b'E',
        }
    }

    pub(super) fn in_block(&self) -> bool {
        matches!(self.block, Block::Implicit | Block::Explicit | Block::Failed)
    }

    /// A command begins (`start_xact_command`).
    pub(super) fn start(&mut self) {
        if self.block == Block::Idle {
            self.block = Block::Started;
            self.pipelining = false;
            self.base = self.now.clone();
            self.read_only = self.setting("default_transaction_read_only") == Some("on");
        }
    }

    pub(super) fn savepoint(&mut self, name: String) {
        self.savepoints.push((name, self.now.clone()));
    }

    pub(super) fn savepoint_names(&self) -> Vec<String> {
        self.savepoints.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The depth of the newest savepoint of that name.
    pub(super) fn find_savepoint(&self, name: &str) -> Option<usize> {
        self.savepoints.iter().rposition(|(known, _)| known == name)
    }

    /// How many savepoints are open: what is created now belongs to the innermost.
    pub(super) fn depth(&self) -> usize {
        self.savepoints.len()
    }

    pub(super) fn release(&mut self, depth: usize) {
        self.savepoints.truncate(depth);
        for portal in self.portals.values_mut() {
            if let Some(created) = &mut portal.created_at {
                *created = (*created).min(depth);
            }
        }
    }

    pub(super) fn roll_back_to(&mut self, depth: usize) {
        self.savepoints.truncate(depth + 1);
        self.now = self.savepoints[depth].1.clone();
        self.portals.retain(|_, portal| portal.created_at.is_none_or(|created| created <= depth));
        self.block = Block::Explicit;
    }

    /// A statement has failed: what its innermost part has done is undone at once, the block
    /// itself waits for its ROLLBACK.
    pub(super) fn fail(&mut self) {
        match self.block {
            Block::Idle => {}
            Block::Started | Block::Implicit => self.abort(),
            Block::Explicit | Block::Failed => {
                let start = self.savepoints.last().map_or(&self.base, |(_, start)| start);
                self.now = start.clone();
                self.block = Block::Failed;
            }
        }
    }

    pub(super) fn abort(&mut self) {
        self.now = std::mem::take(&mut self.base);
        self.portals.retain(|_, portal| portal.created_at.is_none());
        self.savepoints.clear();
        self.block = Block::Idle;
    }

    pub(super) fn commit(&mut self) -> Committed {
        self.savepoints.clear();
        self.block = Block::Idle;
        self.portals.retain(|_, portal| portal.created_at.is_none() || portal.hold);
        for portal in self.portals.values_mut() {
            portal.created_at = None;
        }
        self.now.settings.end_local();
        self.now.temp.retain(|_, table| !table.drop_on_commit);
        let mut seen = BTreeSet::new();
        let notifications = std::mem::take(&mut self.now.notifications)
            .into_iter()
            .filter(|notification| seen.insert(notification.clone()))
            .map(|(channel, payload)| Notification { sender: self.process, channel, payload })
            .collect();
        Committed {
            changes: std::mem::take(&mut self.now.changes),
            listening: std::mem::take(&mut self.now.listening),
            notifications,
        }
    }
}
