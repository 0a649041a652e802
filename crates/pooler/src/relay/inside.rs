//! Clients that their server serves itself: who may go inside, and what comes of one that comes back.
//!
//! # Model
//! ```text
//!   at rest, and usual ─► Host::go_inside ─► state Inside: no loop watches it, its record stays here
//!                                                 │ it sends what is not plain, it leaves, it is
//!                                                 │ called back, its backend has ended
//!   Idle, read as ever ◄── ToLoop::BackFromInside ┤
//!                                                 │ the same in a transaction, or one has left something
//!   Active, with backend ◄ ToLoop::PairFromInside ┘
//! ```
//! The server's extension runs plain statements of such clients on server connections that the
//! pool does not count among its backends. Whatever else a client sends comes back here, unread.
//!
//! # Invariants
//! * a client is read here or inside, never both
//! * its session changes here only: what a transaction inside leaves behind comes with the backend and the
//!   server's report, before the client is told that it is over
//! * a backend that comes with its client serves no other: it is closed when that client gives it back
//! * a client whose settings, statements or limits the other side cannot honour does not go
//! * all that go have settings under which plans give the same as under those that a session begins with:
//!   a server process there keeps plans of functions, and nothing discards them before the next client.
//!   There a statement is parsed under the settings of the client that first runs it, so it goes only if
//!   those of its Parse mean the same
//!
//! # Why its record stays
//! KILL, SHOW, limits and the takeover then need no second place to look at; it costs the memory that
//! an idle client costs anyway.

mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{ClientId, Slot};
pub use crate::parts::settings::custom_names::CustomNames;
use crate::parts::statements::client_names::{ClientStatement, ClientStatements};
use crate::parts::statements::journal::Journal;
use crate::parts::statements::shared::Statement;
use crate::relay::backend::{BackendSeed, PoolRef};
use crate::relay::client::Client;
use crate::relay::socket::Socket;
use crate::session::settings::{PlanReads, Settings, is_custom};
use crate::wire::error::ClientError;

/// The most statements with which a client goes inside: it looks through their names at each Bind.
const NAMES_MAX: usize = 64;
/// The most transactions that a client that keeps coming back completes here each time.
const OUTSIDE_MAX: u8 = 128;

/// Settings that are applied without a look at a catalog, and decide how statements run, but not what they
/// give, unless a function reads them. Custom ones are, too.
const PLAIN_SETTINGS: [&[u8]; 16] = [
    b"application_name",
    b"enable_hashjoin",
    b"enable_indexscan",
    b"enable_mergejoin",
    b"enable_nestloop",
    b"enable_seqscan",
    b"geqo",
    b"jit",
    b"join_collapse_limit",
    b"lock_timeout",
    b"maintenance_work_mem",
    b"plan_cache_mode",
    b"random_page_cost",
    b"search_path",
    b"statement_timeout",
    b"work_mem",
];

fn is_plain_setting((name, _): (&[u8], &[u8])) -> bool {
    is_custom(name) || PLAIN_SETTINGS.contains(&name)
}

/// A client's session, as far as its server needs it.
pub struct InsideSession<S: Socket> {
    /// Its pool.
    pub pool: PoolRef<S>,
    /// Its settings.
    pub settings: Settings,
    /// What plans depended on when it was found to be alike to others.
    pub reads: PlanReads,
    /// Its prepared statements, by its own names.
    pub statements: Vec<(Box<[u8]>, Arc<Statement>)>,
}

/// A client that comes back from inside.
#[derive(Debug)]
pub struct BackFromInside {
    /// The client.
    pub client: ClientId,
    /// What was read of it and not run.
    pub input: Vec<u8>,
    /// Its unnamed statement, if it has had another there: the body of its Parse after the name; empty: it has
    /// none.
    pub unnamed: Option<Vec<u8>>,
    /// Its connection, or the backend that had it, has ended.
    pub lost: bool,
}

impl BackFromInside {
    /// One of which nothing has been read.
    pub fn at_rest(client: ClientId) -> Self {
        Self { client, input: Vec::new(), unnamed: None, lost: false }
    }
}

/// A client that comes back with the backend that has served it: its transaction is open, or has left something.
pub struct PairFromInside<S: Socket> {
    /// The client.
    pub back: BackFromInside,
    /// Its backend, which has its settings and none of its statements.
    pub backend: BackendSeed<S>,
    /// The client's last message awaits ReadyForQuery; else that has been answered.
    pub owed: bool,
}

/// Clients that go inside.
#[derive(Default)]
pub(crate) struct Inside {
    /// Clients of some pool may.
    open: bool,
    /// Those that may be at rest.
    candidates: BTreeSet<Slot>,
    /// Those that are to be disconnected when they are back.
    goodbyes: BTreeMap<Slot, ClientError>,
    /// Those that have come back.
    returned: BTreeMap<Slot, Returned>,
}

/// Transactions that a client that has come back completes here before it goes again.
struct Returned {
    count: u8,
    left: u8,
}

impl Inside {
    /// A client comes back: it completes twice as many transactions here as the last time.
    fn come_back(&mut self, slot: Slot) {
        let before = self.returned.get(&slot).map_or(0, |returned| returned.count);
        let count = before.saturating_mul(2).clamp(1, OUTSIDE_MAX);
        self.returned.insert(slot, Returned { count, left: count });
    }

    /// A client has completed a transaction here. Whether it may go.
    fn may_go(&mut self, slot: Slot) -> bool {
        let Some(Returned { left, .. }) = self.returned.get_mut(&slot) else { return true };
        *left = left.saturating_sub(1);
        *left == 0
    }

    /// A client leaves. Whether it has been inside: others may have its connection, too.
    pub(crate) fn forget(&mut self, slot: Slot) -> bool {
        self.returned.remove(&slot).is_some()
    }

    /// Whether clients of some pool may go inside.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }
}

impl<S: Socket> Client<S> {
    /// What goes inside with it. `None`: it stays, for now.
    fn to_inside(&self, pool: &PoolRef<S>) -> Option<InsideSession<S>> {
        let is_at_rest = self.serving.may_move()
            && self.at_socket.may_move()
            && self.backend.is_none()
            && self.input.is_empty()
            && self.output.is_empty();
        let settings = &self.session.desired;
        let reads = pool.statements.reads();
        let may = is_at_rest
            && self.is_plain()
            && !pool.is_shared_by_users()
            && self.socket.can_move()
            && self.session.basis == pool.basis()
            && settings.iter().all(is_plain_setting)
            && Settings::EMPTY.give_alike(settings, reads);
        if !may {
            return None;
        }
        let names = self.prepared.statements.as_deref().map(ClientStatements::names);
        let changes = pool.schema_epoch().changes();
        let fits = |named: &ClientStatement| {
            named.epoch.changes() >= changes
                && named.may_run_inside(settings)
                && pool.statements.depend_alike(&named.statement.settings, settings)
        };
        let mut statements = Vec::new();
        for (name, named) in names.into_iter().flat_map(Journal::pairs) {
            // Without one of them a session of its own there would not be the client's.
            if !fits(named) || statements.len() == NAMES_MAX {
                return None;
            }
            statements.push((name.clone(), named.statement.clone()));
        }
        let (pool, settings) = (pool.clone(), settings.clone());
        Some(InsideSession { pool, settings, reads, statements })
    }
}

impl ClientStatement {
    fn may_run_inside(&self, settings: &Settings) -> bool {
        let statement = &self.statement;
        statement.is_plain && !statement.is_superseded() && self.is_known_to_fit(settings)
    }
}
