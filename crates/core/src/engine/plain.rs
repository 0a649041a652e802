//! The plain lane: a pipeline of a client of whose session nothing is unusual, for a server connection
//! of which nothing is unusual either.
//!
//! # Model
//! ```text
//!   Bind Describe Execute Sync       all here, nothing outstanding
//!        │ is each check passed?  no ──► the full lane (`turn`), from the first byte
//!        ▼
//!   the statement gets its shared name; one entry in `expected` for each message; one write
//!
//!   ReadyForQuery, and nothing else outstanding  ──►  the books of one transaction, no more
//! ```
//! Most transactions of most applications are of this kind. The checks change nothing, so the full lane
//! finds everything as it was.
//!
//! # Invariant
//! For the same bytes both lanes write the same bytes and leave the same books. The tests run each
//! script on both and compare, and the simulation runs seeds with the lane and without.

use std::sync::Arc;

use super::backend::Backend;
use super::client::Client;
use super::expect::Expect;
use super::from_client::{Halt, Passage};
use super::from_server::{Relay, Relayed};
use super::message::PoolMode;
use super::owed::PlainPipeline;
use super::replay::Seen;
use super::statement::{Shape, Statement};
use super::table::Engine;
use super::{Host, Socket, limits};
use crate::ids::Slot;
use crate::pool::Wish;
use crate::time::Time;
use crate::wire::frame::{self, Framed, HEADER_BYTES};
use crate::wire::{TransactionStatus, build, frontend};

/// A Describe of the unnamed portal.
const DESCRIBE_PORTAL: [u8; 7] = [frontend::DESCRIBE, 0, 0, 0, 6, b'P', 0];
/// The start of an Execute of the unnamed portal; the limit of its rows follows.
const EXECUTE_PORTAL: [u8; 6] = [frontend::EXECUTE, 0, 0, 0, 9, 0];
const EXECUTE_BYTES: usize = EXECUTE_PORTAL.len() + 4;

/// A whole pipeline of one Bind: of a named statement to the unnamed portal, which is executed and perhaps
/// described.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pipeline<'a> {
    /// The name that the Bind has for the statement.
    name: &'a [u8],
    /// All bytes.
    bytes: &'a [u8],
    /// Where the Bind ends.
    bind_end: usize,
    /// Whether the portal is described.
    describes: bool,
}

impl<'a> Pipeline<'a> {
    /// The one at the start of these bytes, if that is one.
    #[inline]
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        if bytes.first() != Some(&frontend::BIND) {
            return None;
        }
        let Framed::Header(bind) = frame::header(bytes) else { return None };
        let bind_end = bind.total();
        if bind_end > limits::REPLAY_BYTES / 2 {
            return None;
        }
        let rest = bytes.get(bind_end..)?;
        let describes = rest.starts_with(&DESCRIBE_PORTAL);
        let execute = if describes { &rest[DESCRIBE_PORTAL.len()..] } else { rest };
        if !execute.starts_with(&EXECUTE_PORTAL)
            || execute.get(EXECUTE_BYTES..)?.get(..build::SYNC.len()) != Some(&build::SYNC[..])
        {
            return None;
        }
        let body = bytes[HEADER_BYTES..bind_end].strip_prefix(&[0])?;
        let (name, _) = frame::take_string(body)?;
        if name.is_empty() {
            return None;
        }
        let tail = if describes { DESCRIBE_PORTAL.len() } else { 0 };
        let end = bind_end + tail + EXECUTE_BYTES + build::SYNC.len();
        Some(Self { name, bytes: &bytes[..end], bind_end, describes })
    }

    /// What of the Bind stands after the names.
    fn parameters(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES + 1 + self.name.len() + 1..self.bind_end]
    }

    /// Describe, Execute and Sync.
    fn after_bind(&self) -> &'a [u8] {
        &self.bytes[self.bind_end..]
    }
}

/// What has become of a pipeline.
pub(super) enum Passed {
    /// It has gone.
    Plain,
    /// It is for the full lane.
    Unusual,
}

/// A statement that can be bound as it is on the server.
struct Bound {
    statement: Arc<Statement>,
    seen: Arc<Seen>,
    serial: u32,
    since: u64,
}

impl<S: Socket> Client<S> {
    /// Whether nothing of its session is unusual.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.extra.is_none()
            && self.pins.is_empty()
            && self.mode == PoolMode::Transaction
            && !self.exclusive
            && !self.reads_sequences
    }
}

impl<S: Socket> Backend<S> {
    /// Whether nothing of it is unusual, and nothing is outstanding: what a client without anything
    /// unusual sends needs nothing before it.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.expected.is_empty()
            && !self.unsynced
            && !self.ignoring
            && !self.copying_in
            && !self.to_server.is_open()
            && self.cancels_in_flight == 0
            && self.syncs_in_doubt == 0
            && !self.shared
            && !self.applying
            && !self.parsed_schema_change
            && self.told.is_none()
            && self.exact.is_none()
            && self.within.is_none()
            && self.by_sql.is_none()
            && self.doubt.is_none()
            && self.replay.is_idle()
            && !self.statements.keeps_none()
            && !self.pool.asking.has_asked()
    }

    /// The client's statement of this name as it is here, if a Bind needs neither a Parse nor a look at it.
    #[inline]
    fn bound_as_it_is(&self, client: &Client<S>, pipeline: &Pipeline<'_>) -> Option<Bound> {
        let named = client.statement(pipeline.name)?;
        let statement = &named.statement;
        if statement.is_superseded() || !statement.is_plain {
            return None;
        }
        let copy = self.statements.get(statement.id)?;
        let mut told = named.seen.told();
        if pipeline.describes {
            told.rows = 0; // it is told again
        }
        let fits = match told == Shape::default() {
            true => copy.epoch >= named.epoch,
            false => copy.shape.is_known_for(told) && copy.shape.fits(told),
        };
        fits.then(|| Bound {
            statement: statement.clone(),
            seen: named.seen.clone(),
            serial: named.serial,
            since: copy.since,
        })
    }

    /// Appends the pipeline as the server gets it, and notes what it owes. Whether it is one of the plain
    /// lane; if not, nothing has changed.
    #[inline]
    fn take_plain(
        &mut self,
        client: &mut Client<S>,
        pipeline: &Pipeline<'_>,
        passage: &mut Passage<'_>,
        now: Time,
    ) -> Result<Passed, Halt> {
        let may_run =
            matches!(self.status, TransactionStatus::Idle | TransactionStatus::InTransaction);
        if !may_run || !self.is_plain() || !self.applied.is_shared_with(&client.desired) {
            return Ok(Passed::Unusual);
        }
        let Some(bound) = self.bound_as_it_is(client, pipeline) else {
            return Ok(Passed::Unusual);
        };
        let Bound { statement, seen, serial, since } = bound;
        client.held = false;
        client.since = now;
        self.unpark();
        self.bringing = false;
        if self.status == TransactionStatus::Idle {
            client.transaction_since = now;
            self.replay.begin_whole(pipeline.bytes, serial, pipeline.describes);
        }
        self.statements.touch(statement.id);
        seen.binds(statement.id, since);
        self.drawn |= !statement.draws_nothing;
        passage.cut(self)?;
        let out = &mut passage.out;
        let length = 4 + 1 + statement.name.len() + 1 + pipeline.parameters().len();
        out.push(frontend::BIND);
        // (The bytes of a pipeline are bounded, and so is a name of ours.)
        out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        out.push(0);
        build::string(out, &statement.name);
        out.extend_from_slice(pipeline.parameters());
        out.extend_from_slice(pipeline.after_bind());
        passage.skip(pipeline.bytes.len());
        if pipeline.describes {
            self.describing.push_back(seen.clone());
        }
        client.bound = Some(seen);
        let describes = pipeline.describes;
        self.expect_plain(PlainPipeline { statement: statement.id, describes });
        Ok(Passed::Plain)
    }
}

impl<S: Socket> Relay<'_, S> {
    /// Closes the books of a pipeline that ends as most do: nothing else is outstanding, and nothing of
    /// the session is unusual on either side. Whether it is one; if not, nothing has changed, and
    /// [`Relay::ready`] does the same and more.
    #[inline]
    pub(super) fn ready_as_usual(
        &mut self,
        status: &[u8],
        now: Time,
        relayed: &mut Relayed,
    ) -> bool {
        let backend = &mut *self.backend;
        let Some(client) = self.client.as_deref_mut() else { return false };
        let status = match status {
            [status] => TransactionStatus::from_byte(*status),
            _ => None,
        };
        let Some(status @ (TransactionStatus::Idle | TransactionStatus::InTransaction)) = status
        else {
            return false;
        };
        if !self.has_plain_lane
            || backend.expected.len() != 1
            || backend.expected.front() != Some(&Expect::Sync)
            || backend.unsynced
            || backend.ignoring
            || backend.syncs_in_doubt > 0
            || client.failed
            || !client.is_plain()
            || backend.exact.is_some()
            || backend.within.is_some()
            || backend.doubt.is_some()
            || backend.vacancy.is_some()
            || backend.drawn_to_ask.is_some()
            || !backend.replay.is_idle()
            || (backend.start_values_at_stake | backend.catalog_at_stake | backend.schema_at_stake)
            || !client.desired.is_shared_with(&backend.applied)
        {
            return false;
        }
        backend.expected.pop_front();
        backend.syncs_outstanding -= 1;
        backend.status = status;
        backend.fence_passed = false;
        backend.new_reports = 0;
        backend.since = now;
        relayed.queries += 1;
        self.copy_ended();
        if status == TransactionStatus::Idle {
            let backend = &mut *self.backend;
            backend.rereading = false;
            backend.local_path = false;
            backend.notifies_unheard = true;
            backend.retries_sql = true; // a table may be there now
            backend.transactions += 1;
            relayed.transactions += 1;
        }
        true
    }
}

impl<S: Socket> Engine<S> {
    /// Passes a pipeline of a client on whose session is plain, if its server connection is, too. The client
    /// gets one, if it has none.
    #[inline]
    pub(super) fn pass_plain<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        pipeline: &Pipeline<'_>,
        passage: &mut Passage<'_>,
        now: Time,
    ) -> Result<Passed, Halt> {
        let Some(client) = self.clients.get_mut(slot) else { return Ok(Passed::Unusual) };
        if !client.is_plain() {
            return Ok(Passed::Unusual);
        }
        let view = &self.pools[client.pool as usize];
        if pipeline.bind_end > limits::PACKET_BYTES_MIN
            && pipeline.bind_end > view.settings.max_packet_size
        {
            return Ok(Passed::Unusual);
        }
        if client.backend.is_none() {
            let Some(named) = client.statement(pipeline.name) else { return Ok(Passed::Unusual) };
            // The settings of a client without any are those of most backends where none has any.
            let statement = if client.desired.is_empty() { 0 } else { named.statement.id };
            let wish = Wish { settings: client.desired.mark(), statement, own: false };
            self.attach(host, slot, wish, now)?;
        }
        let Some(client) = self.clients.get_mut(slot) else { return Ok(Passed::Unusual) };
        let Some(mut backend) = client.backend.take() else { return Ok(Passed::Unusual) };
        // (It may have other start values, and the client with it.)
        let passed = match client.is_plain() {
            true => backend.take_plain(client, pipeline, passage, now),
            false => Ok(Passed::Unusual),
        };
        client.backend = Some(backend);
        if let Ok(Passed::Plain) = passed {
            let view = &self.pools[client.pool as usize];
            view.pool.stats.of(self.id).binds.add(1);
            self.plain_pipelines += 1;
            if view.limits_clients {
                self.rearm(slot, now);
            }
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(portal: &[u8], name: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        build::message(&mut out, frontend::BIND, |out| {
            build::string(out, portal);
            build::string(out, name);
            out.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1, b'7', 0, 0]);
        });
        out
    }

    const EXECUTE: [u8; 10] = [frontend::EXECUTE, 0, 0, 0, 9, 0, 0, 0, 0, 0];

    #[test]
    fn a_whole_pipeline_of_one_bind_is_read_and_no_other() {
        let whole = [&bind(b"", b"s")[..], &DESCRIBE_PORTAL, &EXECUTE, &build::SYNC].concat();
        let read = Pipeline::read(&whole).expect("one");
        assert_eq!((read.name, read.describes), (&b"s"[..], true));
        assert_eq!(read.parameters(), [0, 0, 0, 1, 0, 0, 0, 1, b'7', 0, 0]);
        assert_eq!(read.after_bind(), [&DESCRIBE_PORTAL[..], &EXECUTE, &build::SYNC].concat());
        let more = [&whole[..], b"Q"].concat();
        assert_eq!(Pipeline::read(&more).map(|read| read.bytes), Some(&whole[..]));
        for end in 0..whole.len() {
            assert_eq!(Pipeline::read(&whole[..end]), None, "{end}");
        }
        for other in [
            [&bind(b"p", b"s")[..], &EXECUTE, &build::SYNC].concat(),
            [&bind(b"", b"")[..], &EXECUTE, &build::SYNC].concat(),
            [&bind(b"", b"s")[..], &EXECUTE, &EXECUTE, &build::SYNC].concat(),
            [&bind(b"", b"s")[..], &bind(b"", b"s"), &EXECUTE, &build::SYNC].concat(),
            [&bind(b"", b"s")[..], &build::SYNC].concat(),
        ] {
            assert_eq!(Pipeline::read(&other), None);
        }
        let short = [&bind(b"", b"s")[..], &EXECUTE, &build::SYNC].concat();
        assert!(!Pipeline::read(&short).expect("one").describes);
    }
}
