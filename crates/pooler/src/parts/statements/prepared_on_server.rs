//! The shared statements that one backend has.
//!
//! # Model
//! A statement that is prepared while the session may see objects that no other session sees, or no
//! longer sees what others see, proves nothing for other sessions: see [`Sight`]. The server then
//! answers each Parse, and what it prepares is not proven for other clients, and is prepared again
//! once that is over.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::hash::IdMap;
use crate::parts::statements::description::Shape;
use crate::parts::statements::schema_epoch::SchemaEpoch;
use crate::parts::statements::shared::Statement;

/// A shared statement as one backend has it.
#[derive(Debug)]
pub(crate) struct Prepared {
    statement: Arc<Statement>,
    used: u64,
    /// The backend's pipeline that prepared it: ignored if something failed before it.
    pub(crate) pipeline: u64,
    /// It exists but is useless: it must be closed before it is prepared again.
    stale: bool,
    /// It was parsed or planned in this transaction, under settings that are not all known, and
    /// serves only this one. `None`: it serves all.
    pub(crate) only_in: Option<NonZeroU64>,
    /// Its pipeline, which has not ended, may have changed settings before it: it may have been prepared
    /// under others than are known.
    after_setter: bool,
    /// The epoch of the schema when its Parse was sent.
    pub(crate) epoch: SchemaEpoch,
    /// When that was, by the clock of [`BackendStatements`].
    pub(crate) since: u64,
    /// How many of its Parses are not answered yet: descriptions until then belong to an earlier
    /// one.
    unanswered: u32,
    /// The server's description of it.
    pub(crate) shape: Shape,
    /// The pipeline in which the description was requested.
    pub(crate) asked_in: Option<u64>,
}

/// The shared statements that a backend has.
#[derive(Debug)]
pub(crate) struct BackendStatements {
    by_id: IdMap<u64, Prepared>,
    clock: u64,
    /// Some are [`Prepared::after_setter`].
    any_after_setter: bool,
    sight: Sight,
    keep: usize,
    /// Names of those that may still exist: their removal may have failed.
    left: BTreeSet<Box<[u8]>>,
    /// More of these may exist than `left` names.
    more_left: bool,
}

/// Which objects a session's statements may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Sight {
    /// Those that all sessions see.
    #[default]
    Common,
    /// Since this time also what its transaction has changed.
    Transactions { since: u64 },
    /// Since this time also its client's temporary objects.
    Clients { since: u64 },
}

impl Sight {
    fn since(self) -> Option<u64> {
        match self {
            Self::Common => None,
            Self::Transactions { since } | Self::Clients { since } => Some(since),
        }
    }
}

/// Names kept of statements that may still exist.
const LEFT_MAX: usize = 4 * 1024;

impl BackendStatements {
    /// An empty set, of at most `keep` statements.
    pub(crate) fn new(keep: usize) -> Self {
        Self {
            by_id: IdMap::default(),
            clock: 0,
            any_after_setter: false,
            sight: Sight::Common,
            keep,
            left: BTreeSet::new(),
            more_left: false,
        }
    }

    /// Whether statements are not kept.
    pub(crate) fn keeps_none(&self) -> bool {
        self.keep == 0
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Whether the backend has it; if so, marks it as the most recently used.
    #[inline]
    pub(crate) fn touch(&mut self, id: u64) -> bool {
        self.clock += 1;
        match self.by_id.get_mut(&id) {
            Some(prepared) if !prepared.stale => {
                prepared.used = self.clock;
                true
            }
            _ => false,
        }
    }

    /// Marks one as used now, if the backend has it, not stale, and `so` holds. Returns since when
    /// it exists.
    #[inline]
    pub(crate) fn use_if(&mut self, id: u64, so: impl FnOnce(&Prepared) -> bool) -> Option<u64> {
        let prepared = self.by_id.get_mut(&id)?;
        if prepared.stale || !so(prepared) {
            return None;
        }
        self.clock += 1;
        prepared.used = self.clock;
        Some(prepared.since)
    }

    /// Whether the backend has it.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.by_id.get(&id).is_some_and(|prepared| !prepared.stale)
    }

    /// As the backend has it, if it does.
    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<&Prepared> {
        self.by_id.get(&id).filter(|prepared| !prepared.stale)
    }

    /// The text of one that the backend has.
    pub(crate) fn text(&self, id: u64) -> Option<&[u8]> {
        self.get(id).map(|prepared| prepared.statement.text())
    }

    /// Whether a client's Parse in this epoch may be answered with the existing one.
    pub(crate) fn is_new_enough(&self, id: u64, epoch: SchemaEpoch) -> bool {
        self.sight == Sight::Common && self.get(id).is_some_and(|one| one.epoch >= epoch)
    }

    /// Its transaction changes what statements mean from here on.
    pub(crate) fn transaction_sees_its_own(&mut self) {
        if self.sight == Sight::Common {
            self.sight = Sight::Transactions { since: self.clock };
        }
    }

    /// Its client has, or may have, temporary objects from here on.
    pub(crate) fn client_sees_its_own(&mut self) {
        self.sight = Sight::Clients { since: self.sight.since().unwrap_or(self.clock) };
    }

    /// A transaction that has changed what statements mean has ended. `more`: outstanding requests
    /// may contain another.
    pub(crate) fn transaction_ended(&mut self, more: bool) {
        if let Sight::Transactions { since } = self.sight {
            self.mark_stale_after(since);
            if !more {
                self.sight = Sight::Common;
            }
        }
    }

    /// Its client leaves, with all that only that client sees.
    pub(crate) fn leave_client(&mut self) {
        if let Some(since) = std::mem::take(&mut self.sight).since() {
            self.mark_stale_after(since);
        }
    }

    fn mark_stale_after(&mut self, since: u64) {
        for prepared in self.by_id.values_mut().filter(|prepared| prepared.since > since) {
            prepared.stale = true;
        }
    }

    /// This pipeline asks the server for its description.
    pub(crate) fn ask(&mut self, id: u64, pipeline: u64) {
        if let Some(prepared) = self.by_id.get_mut(&id) {
            prepared.asked_in = Some(pipeline);
        }
    }

    /// The server has described it; 0 stands for a part that it has not described.
    pub(crate) fn described(&mut self, id: u64, shape: Shape) {
        if let Some(prepared) = self.by_id.get_mut(&id).filter(|one| one.unanswered == 0) {
            if shape.parameters != 0 {
                prepared.shape.parameters = shape.parameters;
            }
            if shape.rows != 0 {
                prepared.shape.rows = shape.rows;
            }
        }
    }

    /// The server has described a portal of the one that was there then.
    pub(crate) fn described_portal(&mut self, (id, since): (u64, u64), rows: u64) {
        if let Some(one) = self.by_id.get_mut(&id)
            && !one.stale
            && one.since == since
            && one.unanswered == 0
            && rows != 0
        {
            one.shape.rows = rows;
        }
    }

    /// The backend's pipeline that prepared it.
    pub(crate) fn prepared_in(&self, id: u64) -> Option<u64> {
        self.by_id.get(&id).map(|prepared| prepared.pipeline)
    }

    /// Marks it as existing, but not runnable.
    pub(crate) fn mark_stale(&mut self, id: u64) {
        if let Some(prepared) = self.by_id.get_mut(&id) {
            prepared.stale = true;
        }
    }

    /// Marks those of which this is true as stale.
    pub(crate) fn mark_stale_if(&mut self, is_one: impl Fn(&Statement) -> bool) {
        for prepared in self.by_id.values_mut().filter(|prepared| is_one(&prepared.statement)) {
            prepared.stale = true;
        }
    }

    /// Restricts one that has just been prepared to this transaction, if there is one.
    pub(crate) fn keep_for(&mut self, id: u64, transaction: Option<NonZeroU64>) {
        if let Some(prepared) = self.by_id.get_mut(&id) {
            prepared.only_in = transaction;
        }
    }

    /// Whether an existing one cannot be used now: it serves another transaction; or it serves all,
    /// and `transaction`, in which settings are not all known, would make it useless for others.
    pub(crate) fn is_for_others(&self, id: u64, transaction: Option<NonZeroU64>) -> bool {
        self.get(id).is_some_and(|prepared| prepared.only_in != transaction)
    }

    /// Notes that the pipeline in which it has just been prepared may have changed settings before.
    pub(crate) fn is_after_setter(&mut self, id: u64) {
        if let Some(prepared) = self.by_id.get_mut(&id) {
            prepared.after_setter = true;
            self.any_after_setter = true;
        }
    }

    /// Pipelines up to `pipeline` have ended. `takes_back`: settings may have been rolled back,
    /// while statements prepared under them still exist.
    #[inline]
    pub(crate) fn pipeline_ended(&mut self, pipeline: u64, takes_back: bool) {
        if !self.any_after_setter {
            return;
        }
        self.any_after_setter = false;
        for prepared in self.by_id.values_mut().filter(|prepared| prepared.after_setter) {
            if prepared.pipeline <= pipeline {
                prepared.after_setter = false;
                prepared.stale |= takes_back;
            } else {
                self.any_after_setter = true;
            }
        }
    }

    /// Marks as stale what `pipeline` prepared: the settings in force were not those that were
    /// assumed.
    pub(crate) fn mark_stale_of(&mut self, pipeline: u64) {
        for prepared in self.by_id.values_mut().filter(|prepared| prepared.pipeline == pipeline) {
            prepared.stale = true;
        }
    }

    /// The same of `pipeline` and all later ones.
    pub(crate) fn mark_stale_since(&mut self, pipeline: u64) {
        for prepared in self.by_id.values_mut().filter(|prepared| prepared.pipeline >= pipeline) {
            prepared.stale = true;
        }
    }

    /// Whether it must be closed before it is prepared.
    pub(crate) fn is_stale(&self, id: u64) -> bool {
        self.by_id.get(&id).is_some_and(|prepared| prepared.stale)
    }

    /// Records that the backend has it, once the messages of `pipeline` are carried out. Returns
    /// the name of one to close.
    pub(crate) fn insert(
        &mut self,
        statement: &Arc<Statement>,
        pipeline: u64,
        epoch: SchemaEpoch,
    ) -> Option<Box<[u8]>> {
        let mut evicted = None;
        if self.by_id.len() >= self.keep
            && !self.by_id.contains_key(&statement.id)
            && let Some(oldest) = self.by_id.iter().min_by_key(|(_, p)| p.used).map(|(id, _)| *id)
        {
            evicted = self.by_id.remove(&oldest).map(|prepared| prepared.statement.name.clone());
            // The server may ignore its Close.
            self.leave(evicted.clone());
        }
        self.clock += 1;
        let prepared = Prepared {
            statement: statement.clone(),
            used: self.clock,
            pipeline,
            stale: false,
            only_in: None,
            after_setter: false,
            epoch,
            since: self.clock,
            unanswered: 1 + self.by_id.get(&statement.id).map_or(0, |before| before.unanswered),
            shape: Shape::default(),
            asked_in: None,
        };
        self.by_id.insert(statement.id, prepared);
        evicted
    }

    /// Records that `pipeline` did not prepare it; a later one may.
    pub(crate) fn remove(&mut self, id: u64, pipeline: u64) {
        if self.prepared_in(id).is_some_and(|prepared| prepared <= pipeline) {
            self.by_id.remove(&id);
        } else if let Some(prepared) = self.by_id.get_mut(&id) {
            prepared.unanswered = prepared.unanswered.saturating_sub(1);
        }
    }

    /// The server has sent a notice while it prepares it.
    pub(crate) fn note(&mut self, id: u64) {
        if let Some(prepared) = self.by_id.get(&id) {
            prepared.statement.note();
        }
    }

    /// The server has prepared it: clients that see what this session saw need not ask a server
    /// whether it can be prepared.
    pub(crate) fn prove(&mut self, id: u64) {
        let sees_its_own = self.sight.since();
        if let Some(prepared) = self.by_id.get_mut(&id) {
            prepared.unanswered = prepared.unanswered.saturating_sub(1);
            if sees_its_own.is_none_or(|since| prepared.since <= since) {
                prepared.statement.prove(prepared.epoch);
            }
        }
    }

    /// All names, including those that may still exist, sorted. `None` if not all are known.
    pub(crate) fn names(&self) -> Option<BTreeSet<Box<[u8]>>> {
        let mut names = self.left.clone();
        names.extend(self.by_id.values().map(|prepared| prepared.statement.name.clone()));
        (!self.more_left).then_some(names)
    }

    /// Records that the backend has none any more.
    pub(crate) fn clear(&mut self) {
        self.by_id.clear();
        self.settle();
    }

    /// Records that the backend either has none any more, or still has all.
    pub(crate) fn clear_in_doubt(&mut self) {
        let names: Vec<_> = self.by_id.values().map(|p| p.statement.name.clone()).collect();
        self.by_id.clear();
        self.leave(names);
    }

    /// The recorded ones are all that exist.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if !self.left.is_empty() {
            self.left.clear();
        }
        self.more_left = false;
    }

    fn leave(&mut self, names: impl IntoIterator<Item = Box<[u8]>>) {
        self.left.extend(names);
        if self.left.len() > LEFT_MAX {
            self.left.clear();
            self.more_left = true;
        }
    }
}
