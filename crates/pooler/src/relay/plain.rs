//! The plain lane: a query or pipeline, when neither the client's session nor the server connection
//! is unusual.
//!
//! # Model
//! ```text
//!   Bind Describe Execute Sync          of a named statement that the server has
//!   Parse Bind Describe Execute Sync    of the unnamed statement, whose text is plain
//!   Query                               whose text is plain: see `session::scan::is_plain`
//!        │ all here, nothing outstanding, and all checks passed?  no ──► the full lane (`from_client`),
//!        ▼                                                              from the first byte
//!   a named statement gets its shared name; one entry in the queue of requests for each message; one write
//!
//!   ReadyForQuery, and nothing else outstanding  ──►  the books of one transaction, no more
//! ```
//! Most transactions of most applications are of these kinds. The checks change nothing, so the
//! full lane starts from the same state.
//!
//! # Invariant
//! For the same bytes both lanes write the same bytes and leave the same books: the simulation runs
//! seeds with and without the lane, and compares.

mod answer;

use crate::ids::Slot;
use crate::parts::statements::client_names::{ClientStatement, significant};
use crate::parts::statements::description::Shape;
use crate::parts::statements::shared::Unnamed;
use crate::queries::counting::Tracker;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::from_client::passage::Passage;
use crate::relay::from_server::Relay;
use crate::relay::halt::Halt;
use crate::relay::host::Host;
use crate::relay::limits;
use crate::relay::request_queue::{Change, Describes, PlainPipeline};
use crate::relay::socket::Socket;
use crate::relay::start_again::{READ_ONLY, is_kept};
use crate::relay::statistics::Ended;
use crate::relay::table::Engine;
use crate::session::commands::{draws_nothing, inserts};
use crate::session::scan::ScanOptions;
use crate::time::Time;
use crate::wire::frame::{Framed, HEADER_BYTES};
use crate::wire::{TransactionStatus, build, frame, frontend};

/// A Describe of the unnamed portal.
const DESCRIBE_PORTAL: [u8; 7] = [frontend::DESCRIBE, 0, 0, 0, 6, b'P', 0];
/// The start of an Execute of the unnamed portal; its row limit follows.
const EXECUTE_PORTAL: [u8; 6] = [frontend::EXECUTE, 0, 0, 0, 9, 0];
const EXECUTE_BYTES: usize = EXECUTE_PORTAL.len() + 4;

/// What runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Runs<'a> {
    /// The named statement that a Bind names; the Bind ends there.
    Named { name: &'a [u8], bind_end: usize },
    /// The unnamed statement of a Parse: its text, and the body, which has the types of its
    /// parameters after the text.
    Unnamed { text: &'a [u8], body: &'a [u8] },
    /// The text of a Query.
    Query { text: &'a [u8] },
}

/// A whole Query, or a whole pipeline of one statement, which is bound to the unnamed portal, maybe
/// described, and executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pipeline<'a> {
    runs: Runs<'a>,
    bytes: &'a [u8],
    /// The length of its longest message.
    longest: usize,
    /// Whether the portal is described.
    describes: bool,
}

/// The length of the message at the start of these bytes, if it is of this kind, complete, and so
/// short that it never streams.
#[inline]
fn whole(bytes: &[u8], kind: u8) -> Option<usize> {
    let Framed::Header(header) = frame::header(bytes) else { return None };
    let fits = header.kind == kind && header.total() <= limits::WHOLE_MESSAGE_BYTES;
    (fits && bytes.len() >= header.total()).then(|| header.total())
}

/// Whether a message of this kind with this body needs a server in any case.
#[inline]
fn needs_server(kind: u8, body: &[u8]) -> bool {
    match kind {
        frontend::BIND => true,
        // One with a name may be prepared already.
        frontend::PARSE => body.first() == Some(&0),
        // DEALLOCATE may be answered here.
        frontend::QUERY => !matches!(body.trim_ascii_start().first(), None | Some(b'd' | b'D')),
        _ => false,
    }
}

/// The length of Describe, Execute and Sync at the start of these bytes, if there is exactly that,
/// and whether it begins with a Describe.
#[inline]
fn tail(rest: &[u8]) -> Option<(usize, bool)> {
    let describes = rest.starts_with(&DESCRIBE_PORTAL);
    let before = if describes { DESCRIBE_PORTAL.len() } else { 0 };
    let execute = rest.get(before..)?;
    let ends = execute.starts_with(&EXECUTE_PORTAL)
        && execute.get(EXECUTE_BYTES..)?.get(..build::SYNC.len()) == Some(&build::SYNC[..]);
    ends.then_some((before + EXECUTE_BYTES + build::SYNC.len(), describes))
}

impl<'a> Pipeline<'a> {
    /// The pipeline at the start of these bytes, if there is exactly one.
    #[inline]
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        match *bytes.first()? {
            frontend::BIND => Self::of_named(bytes),
            frontend::PARSE => Self::of_unnamed(bytes),
            frontend::QUERY => Self::of_query(bytes),
            _ => None,
        }
    }

    fn of_named(bytes: &'a [u8]) -> Option<Self> {
        let bind_end = whole(bytes, frontend::BIND)?;
        let (rest, describes) = tail(&bytes[bind_end..])?;
        let name = bytes[HEADER_BYTES..bind_end].strip_prefix(&[0])?;
        let (name, _) = frame::take_string(name)?;
        // It must be kept as a whole, in case the server has lost the statement.
        if name.is_empty() || bind_end > limits::REPLAY_BYTES / 2 {
            return None;
        }
        let runs = Runs::Named { name, bind_end };
        Some(Self { runs, bytes: &bytes[..bind_end + rest], longest: bind_end, describes })
    }

    fn of_unnamed(bytes: &'a [u8]) -> Option<Self> {
        let parse_end = whole(bytes, frontend::PARSE)?;
        let bind = whole(&bytes[parse_end..], frontend::BIND)?;
        let bind_end = parse_end + bind;
        let (rest, describes) = tail(&bytes[bind_end..])?;
        let body = bytes[HEADER_BYTES..parse_end].strip_prefix(&[0])?;
        let (text, types) = frame::take_string(body)?;
        let (count, types) = frame::take_u16(types)?;
        if types.len() != usize::from(count) * 4
            || !bytes[parse_end + HEADER_BYTES..bind_end].starts_with(&[0, 0])
        {
            return None;
        }
        let runs = Runs::Unnamed { text, body };
        let longest = parse_end.max(bind);
        Some(Self { runs, bytes: &bytes[..bind_end + rest], longest, describes })
    }

    fn of_query(bytes: &'a [u8]) -> Option<Self> {
        let end = whole(bytes, frontend::QUERY)?;
        let (text, []) = frame::take_string(&bytes[HEADER_BYTES..end])? else { return None };
        let runs = Runs::Query { text };
        Some(Self { runs, bytes: &bytes[..end], longest: end, describes: false })
    }

    /// The text, if it has not been examined yet.
    fn text(&self) -> Option<&'a [u8]> {
        match self.runs {
            Runs::Named { .. } => None,
            Runs::Unnamed { text, .. } | Runs::Query { text } => Some(text),
        }
    }
}

/// The outcome for a pipeline.
pub(crate) enum Passed {
    /// It has been sent.
    Plain,
    /// It is for the full lane.
    Unusual,
}

impl<S: Socket> Client<S> {
    /// Whether nothing of its session is unusual.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.pending_session.is_none() && self.session.is_usual() && self.serving.is_usual()
    }
}

impl<S: Socket> Backend<S> {
    /// Whether nothing of it is unusual. Each of its parts lists all that it has, so that what is
    /// new there is decided here, too.
    #[inline]
    fn is_usual(&self) -> bool {
        self.session.is_usual()
            && self.prepared.is_usual()
            && self.lending.is_usual()
            && self.known.is_usual()
    }

    /// Whether nothing of it is unusual, and nothing is outstanding: then the messages of a client
    /// with a plain session need nothing before them.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_usual()
            && self.requests.is_plain()
            && !self.to_server.is_open()
            && self.owner.is_untold()
            && self.known.is_up_to_date(&self.pool)
            && !self.pool.asking().has_asked()
    }

    /// The server's copy of a client's statement, as the time since which it exists, if a Bind
    /// needs neither a Parse nor a check of it. It counts as used then.
    #[inline]
    fn bind_as_it_is(&mut self, named: &ClientStatement) -> Option<u64> {
        let statement = &named.statement;
        // (Its client's settings are in force.)
        let fits = named.is_known_to_fit(&self.session.applied);
        if statement.is_superseded() || !statement.is_plain || !fits {
            return None;
        }
        let described = named.seen.described();
        let only_in = self.sole_transaction();
        self.prepared.statements.use_if(statement.id, |copy| {
            copy.only_in == only_in
                && match described == Shape::default() {
                    true => copy.epoch >= named.epoch,
                    false => copy.shape.is_known_for(described) && copy.shape.fits(described),
                }
        })
    }

    /// Whether a plain text has no effect on the session here either: it is read in the usual way,
    /// and calls no function that has effects.
    fn takes_as_plain(&self, client: &Client<S>, text: &[u8]) -> bool {
        client.scan_options(self.session.own.reading) == ScanOptions::default()
            && !(inserts(text) && self.pool.asking().tries())
            && self.effects_of_functions(text).is_none_or(|effects| effects.is_none())
    }

    /// Appends the bytes for the server, and records what it owes. Returns whether the pipeline is
    /// for the plain lane; if not, nothing has changed.
    #[inline]
    fn take_plain(
        &mut self,
        client: &mut Client<S>,
        pipeline: &Pipeline<'_>,
        passage: &mut Passage<'_>,
        serial: u32,
        queries: Option<Tracker<'_>>,
        now: Time,
    ) -> Result<Passed, Halt> {
        let may_run = matches!(
            self.from_server.status(),
            TransactionStatus::Idle | TransactionStatus::InTransaction
        );
        if !may_run
            || !self.is_plain()
            || !self.session.applied.is_shared_with(&client.session.desired)
        {
            return Ok(Passed::Unusual);
        }
        if self.from_server.status() == TransactionStatus::Idle
            && !self.has_function_plans_of(&client.session.desired)
        {
            return Ok(Passed::Unusual);
        }
        match pipeline.runs {
            Runs::Named { name, bind_end } => {
                // (Taken out of the client, so that both can be used.)
                let names = client.prepared.statements.take();
                let named = names.as_ref().and_then(|names| names.get(significant(name)));
                let taken = match named {
                    Some(named) => self.take_named(client, named, pipeline, passage, now),
                    None => Ok(false),
                };
                let query = queries.zip(named).filter(|_| matches!(taken, Ok(true)));
                let query = query.map(|(mut queries, named)| {
                    queries.of_statement(client, &self.pool, &named.statement)
                });
                self.requests.count_plain(query);
                let own = named.map(|named| &*named.statement.name).unwrap_or_default();
                if let Ok(true) = taken {
                    let out = &mut passage.out;
                    let parameters = &pipeline.bytes[HEADER_BYTES + 1 + name.len() + 1..bind_end];
                    let length = 4 + 1 + own.len() + 1 + parameters.len();
                    out.push(frontend::BIND);
                    // (The bytes of a pipeline are bounded, and so is a name of Hawser's.)
                    let length = u32::try_from(length).unwrap_or(u32::MAX);
                    out.extend_from_slice(&length.to_be_bytes());
                    out.push(0);
                    build::string(out, own);
                    out.extend_from_slice(parameters);
                    out.extend_from_slice(&pipeline.bytes[bind_end..]);
                    passage.skip(pipeline.bytes.len());
                }
                client.prepared.statements = names;
                return Ok(if taken? { Passed::Plain } else { Passed::Unusual });
            }
            Runs::Unnamed { text, .. } | Runs::Query { text }
                if self.prepared.unnamed.has_changed() || !self.takes_as_plain(client, text) =>
            {
                return Ok(Passed::Unusual);
            }
            Runs::Unnamed { text, body } => {
                self.begin_plain(client, now);
                self.take_unnamed(client, body, serial, pipeline.describes, now);
                let query = queries.map(|mut queries| queries.of_text(client, &self.pool, text));
                self.requests.count_plain(query);
            }
            Runs::Query { text } => {
                self.begin_plain(client, now);
                self.known.drawn.note(!draws_nothing(text));
                self.prepared.unnamed.taken_by_query();
                client.prepared.unnamed = None;
                self.requests.push_plain(PlainPipeline::Query);
                let query = queries.map(|mut queries| queries.of_text(client, &self.pool, text));
                self.requests.count_plain(query);
            }
        }
        passage.pass(pipeline.bytes.len());
        Ok(Passed::Plain)
    }

    /// Keeps a pipeline that begins a transaction, in case its server has become read-only.
    fn keep_first(&mut self, client: &Client<S>, pipeline: &Pipeline<'_>) {
        let text = match pipeline.runs {
            Runs::Named { name, .. } => client.statement(name).map(|named| &*named.statement.body),
            Runs::Unnamed { text, .. } | Runs::Query { text } => Some(text),
        };
        if self.from_server.status() == TransactionStatus::Idle
            && text.is_some_and(is_kept)
            && !client.is_pinned()
            && client.session.desired.get(READ_ONLY).is_none()
        {
            self.prepared.replay.keep_first(pipeline.bytes);
        }
    }

    /// Begins as any message does that is sent while nothing is outstanding.
    fn begin_plain(&mut self, client: &mut Client<S>, now: Time) {
        client.serving.held = false;
        client.times.begin(now);
        self.counting.begin();
        self.unpark();
        self.ahead.end();
        if self.from_server.status() == TransactionStatus::Idle {
            client.times.begin_transaction(now);
        }
    }

    /// Records the pipeline of a named statement. Returns whether it is for the plain lane; if not,
    /// nothing has changed.
    fn take_named(
        &mut self,
        client: &mut Client<S>,
        named: &ClientStatement,
        pipeline: &Pipeline<'_>,
        passage: &mut Passage<'_>,
        now: Time,
    ) -> Result<bool, Halt> {
        if named.statement.inserts && self.pool.asking().tries() {
            return Ok(false); // its client may ask for what it draws
        }
        let Some(since) = self.bind_as_it_is(named) else { return Ok(false) };
        let ClientStatement { statement, seen, serial, .. } = named;
        self.begin_plain(client, now);
        if self.from_server.status() == TransactionStatus::Idle {
            self.prepared.replay.begin_whole(pipeline.bytes, *serial);
        }
        seen.binds(statement.id, since);
        self.note_setter(|| statement.sets_nothing());
        self.known.drawn.note(!statement.draws_nothing);
        client.prepared.bind(seen);
        // (This copy gives what was described to the client, or it would not be bound as it is.)
        let is_known = seen.described().rows != 0 && !statement.redescribes_rows;
        let describes = match pipeline.describes {
            false => Describes::No,
            true if is_known => Describes::Known,
            true => Describes::Noted(Change::Describes(seen.clone())),
        };
        self.requests.push_plain(PlainPipeline::Named { statement: statement.id, describes });
        passage.cut(self)?;
        Ok(true)
    }

    /// What is bound may change settings. In a transaction block a later pipeline may execute its portal again;
    /// otherwise that ends with its own.
    #[inline]
    fn note_setter(&mut self, sets_nothing: impl FnOnce() -> bool) {
        if self.from_server.status() == TransactionStatus::InTransaction && !sets_nothing() {
            self.requests.bind_setter();
        }
    }

    /// Records the pipeline of the unnamed statement. `body`: of its Parse, after the name.
    fn take_unnamed(
        &mut self,
        client: &mut Client<S>,
        body: &[u8],
        serial: u32,
        describes: bool,
        now: Time,
    ) {
        let epoch = self.pool.schema_epoch_at(now);
        let unnamed = Unnamed::new(body, client.session.desired.clone(), None, epoch);
        self.known.drawn.note(!unnamed.draws_nothing);
        self.note_setter(|| unnamed.sets_nothing());
        // (It is not ignored, for nothing precedes it: the earlier statement does not come back.)
        client.prepared.unnamed = Some(unnamed.clone());
        self.prepared.unnamed.parsed_alone(unnamed, self.requests.pipeline());
        client.prepared.bound = None;
        self.requests.push_plain(PlainPipeline::Unnamed { serial, describes });
    }
}

impl<S: Socket> Relay<'_, S> {
    /// Closes the books of a pipeline that ends in the usual way: nothing else is outstanding, and
    /// neither side is unusual. Returns whether it is one; if not, nothing has changed, and
    /// [`Relay::ready`] does the same and more.
    #[inline]
    pub(crate) fn ready_as_usual(&mut self, status: &[u8], now: Time, ended: &mut Ended) -> bool {
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
            || !backend.requests.owes_one_end()
            || client.serving.failed
            || !client.is_plain()
            || !backend.is_usual()
            || !client.session.desired.is_shared_with(&backend.session.applied)
        {
            return false;
        }
        let query = backend.requests.complete_one_end();
        backend.from_server.is_ready(status);
        // (It may have gone by the full lane, with a Parse after what may have changed settings.)
        let pipeline = backend.requests.answered_pipeline().saturating_sub(1);
        backend.prepared.statements.pipeline_ended(pipeline, false);
        backend.lending.since = now;
        if status == TransactionStatus::Idle {
            let backend = &mut *self.backend;
            backend.requests.forget_portals();
            backend.session.settle_texts();
            backend.prepared.retries_sql = true; // a table may exist now
            backend.lending.transactions += 1;
        }
        ended.note(status == TransactionStatus::Idle);
        self.query_ended(query, false);
        true
    }
}

impl<S: Socket> Engine<S> {
    /// Passes on what was read from a client, if that is exactly one plain pipeline. `None`: it is
    /// not, or it is for the full lane.
    #[inline]
    pub(crate) fn pass_plain_alone<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        passage: &mut Passage<'_>,
        now: Time,
    ) -> Option<Result<(), Halt>> {
        if !self.has_plain_lane {
            return None;
        }
        if let Err(halt) = self.attach_at_once(host, slot, passage.rest(), now) {
            return Some(Err(halt));
        }
        let pipeline = Pipeline::read(passage.rest())?;
        if pipeline.bytes.len() != passage.rest().len() {
            return None;
        }
        let client = self.clients.get(slot)?;
        if client.backend.as_ref().is_some_and(|backend| backend.to_server.is_open()) {
            return None;
        }
        match self.pass_plain(host, slot, &pipeline, passage, now) {
            Ok(Passed::Plain) => Some(Ok(())),
            Ok(Passed::Unusual) => None,
            Err(halt) => Some(Err(halt)),
        }
    }

    /// Gets the client a server connection if its message needs one in any case, before the message
    /// is read: most clients must wait for one, and their messages are read when they have it. (The
    /// full lane does the same, later.)
    #[inline]
    fn attach_at_once<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        bytes: &[u8],
        now: Time,
    ) -> Result<(), Halt> {
        let Some(client) = self.clients.get(slot) else { return Ok(()) };
        if client.backend.is_some() || !client.is_plain() {
            return Ok(());
        }
        let Framed::Header(header) = frame::header(bytes) else { return Ok(()) };
        let total = header.total();
        if total > limits::PACKET_BYTES_MIN || total > bytes.len() {
            return Ok(());
        }
        let body = &bytes[HEADER_BYTES..total];
        if !needs_server(header.kind, body) {
            return Ok(());
        }
        let wish = self.wish(slot, header, body);
        self.attach(host, slot, wish, now)
    }

    /// Passes on what a client with a plain session has sent, if its server connection is plain,
    /// too. The client gets a connection, if it has none.
    #[inline]
    pub(crate) fn pass_plain<H: Host<S>>(
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
        if pipeline.longest > limits::PACKET_BYTES_MIN
            && pipeline.longest > view.settings.max_packet_size
        {
            return Ok(Passed::Unusual);
        }
        if pipeline.text().is_some_and(|text| !self.known.is_plain(text)) {
            return Ok(Passed::Unusual);
        }
        if client.backend.is_none() {
            let Framed::Header(header) = frame::header(pipeline.bytes) else {
                return Ok(Passed::Unusual);
            };
            let wish = self.wish(slot, header, &pipeline.bytes[HEADER_BYTES..header.total()]);
            self.attach(host, slot, wish, now)?;
        }
        let serial = self.next_serial;
        let Some(client) = self.clients.get_mut(slot) else { return Ok(Passed::Unusual) };
        let Some(mut backend) = client.backend.take() else { return Ok(Passed::Unusual) };
        // (It may have other start values, which makes the client unusual.)
        let tracking = self.pools[client.pool as usize].settings.tracking;
        let queries = tracking.is_on.then_some(Tracker {
            queries: &mut self.queries,
            known: &mut self.known,
            tracking,
            hash_key: self.hash_key,
            now,
        });
        if tracking.has_spans
            && let Some(text) = pipeline.text()
        {
            backend.lending.belongs_to_span_in(text);
        }
        let passed = match client.is_plain() {
            true => backend.take_plain(client, pipeline, passage, serial, queries, now),
            false => Ok(Passed::Unusual),
        };
        let view = &self.pools[client.pool as usize];
        if view.settings.wants_writable && matches!(passed, Ok(Passed::Plain)) {
            backend.keep_first(client, pipeline);
        }
        client.backend = Some(backend);
        if let Ok(Passed::Plain) = passed {
            self.next_serial = if serial == u32::MAX { 1 } else { serial + 1 };
            let stats = view.pool.stats.of(self.id);
            match pipeline.runs {
                Runs::Named { .. } => stats.binds.add(1),
                Runs::Unnamed { .. } => {
                    stats.client_parses.add(1);
                    stats.server_parses.add(1);
                    stats.binds.add(1);
                }
                Runs::Query { .. } => {}
            }
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

    fn parse(name: &[u8], text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        build::parse(&mut out, name, &[text, &[0, 0, 1, 0, 0, 0, 23]].concat());
        out
    }

    #[test]
    fn a_whole_pipeline_of_one_bind_is_read_and_no_other() {
        let first = bind(b"", b"s");
        let whole = [&first[..], &DESCRIBE_PORTAL, &EXECUTE, &build::SYNC].concat();
        let read = Pipeline::read(&whole).expect("one");
        assert_eq!(read.runs, Runs::Named { name: b"s", bind_end: first.len() });
        assert!(read.describes);
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

    #[test]
    fn a_whole_pipeline_of_the_unnamed_statement_is_read_and_no_other() {
        let first = parse(b"", b"SELECT $1");
        let whole =
            [&first[..], &bind(b"", b""), &DESCRIBE_PORTAL, &EXECUTE, &build::SYNC].concat();
        let read = Pipeline::read(&whole).expect("one");
        let body = &first[HEADER_BYTES + 1..];
        assert_eq!(read.runs, Runs::Unnamed { text: b"SELECT $1", body });
        assert_eq!((read.bytes, read.describes), (&whole[..], true));
        for end in 0..whole.len() {
            assert_eq!(Pipeline::read(&whole[..end]), None, "{end}");
        }
        let mut lies = first.clone();
        lies[HEADER_BYTES + 1 + 10 + 1] = 2; // two types are said, one is there
        for other in [
            [&parse(b"s", b"SELECT $1")[..], &bind(b"", b""), &EXECUTE, &build::SYNC].concat(),
            [&first[..], &bind(b"", b"s"), &EXECUTE, &build::SYNC].concat(),
            [&first[..], &bind(b"p", b""), &EXECUTE, &build::SYNC].concat(),
            [&first[..], &EXECUTE, &build::SYNC].concat(),
            [&first[..], &build::SYNC].concat(),
            [&lies[..], &bind(b"", b""), &EXECUTE, &build::SYNC].concat(),
        ] {
            assert_eq!(Pipeline::read(&other), None);
        }
    }

    #[test]
    fn a_whole_query_is_read_and_no_other() {
        let mut whole = Vec::new();
        build::message(&mut whole, frontend::QUERY, |out| build::string(out, b"SELECT 1"));
        let read = Pipeline::read(&whole).expect("one");
        assert_eq!(read.runs, Runs::Query { text: b"SELECT 1" });
        for end in 0..whole.len() {
            assert_eq!(Pipeline::read(&whole[..end]), None, "{end}");
        }
        for body in [&b"SELECT 1"[..], b"SELECT 1\0;\0", b""] {
            let mut other = Vec::new();
            build::message(&mut other, frontend::QUERY, |out| out.extend_from_slice(body));
            assert_eq!(Pipeline::read(&other), None);
        }
    }
}
