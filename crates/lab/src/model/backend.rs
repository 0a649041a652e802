//! One connection to the model, from its startup packet to its end.
//!
//! # Model
//! Bytes come in by [`receive`](ModelBackend::receive), answers are taken by
//! [`take_output`](ModelBackend::take_output). Messages are handled one at a time in the order of
//! PostgreSQL's main loop (`PostgresMain`). Answers leave when PostgreSQL would flush: at
//! ReadyForQuery, Flush, an error or notice, the start of COPY FROM, or 8 kB.
//!
//! # Invariants
//! - after an error in the extended protocol nothing is answered before Sync
//! - ParameterStatus comes just before ReadyForQuery, and only for a value not reported before
//! - notifications come outside transactions only
//!
//! # States      Startup ─► Ready ─► ended (closed or reset)

mod copy;
mod extended;
pub mod hand_over;
mod query;
mod startup;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hawser_pooler::parts::report::text;

use super::cluster::ModelServer;
use super::commit::ProcessId;
use super::error::{PgError, Severity};
use super::fault::Fault;
use super::portal::{Portal, Relation};
use super::session::{Block, Listening, Session};
use super::settings;
use super::sql::{Parsed, Type};
use super::wire::{self, Body, Message};

/// PostgreSQL's PqSendBuffer: answers wait here until it is full or flushed.
const SEND_BUFFER_BYTES: usize = 8192;
/// No further message is handled while more than this waits to be taken.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The server has closed it: what it said before still arrives.
    Closed,
    /// The connection is broken.
    Reset,
}

/// A Query whose statements are being run.
#[derive(Debug)]
struct SimpleQuery {
    statements: VecDeque<Parsed>,
    /// There was more than one: they share an implicit transaction block.
    many: bool,
    empty: bool,
    current: Option<Portal>,
}

/// An Execute that is not finished: it waits, or copies.
#[derive(Debug)]
struct Executing {
    portal: String,
    limit: usize,
}

/// A COPY FROM STDIN that waits for data.
#[derive(Debug)]
struct CopyIn {
    relation: Relation,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    rows: usize,
    /// `\.` has come: what follows is ignored.
    ended: bool,
}

impl CopyIn {
    fn new(relation: Relation) -> Self {
        Self { relation, line: Vec::new(), rows: 0, ended: false }
    }
}

/// The server's end of one connection.
#[derive(Debug)]
pub struct ModelBackend {
    server: ModelServer,
    session: Option<Session>,
    input: Vec<u8>,
    unflushed: Vec<u8>,
    /// Messages since the last flush that was not for notifications.
    unasked: usize,
    output: VecDeque<u8>,
    ending: Option<Ending>,
    query: Option<SimpleQuery>,
    executing: Option<Executing>,
    copy: Option<CopyIn>,
    /// When the sleep that is running ends.
    wakes_at: Option<Duration>,
    /// An error of the extended protocol: all is ignored up to Sync.
    skips: bool,
    /// The current message belongs to the extended protocol.
    extended: bool,
    reported: BTreeMap<&'static str, String>,
    /// The report of the session that was sent last, if the session asked for reports.
    state: Option<String>,
    /// Hand-overs of it so far.
    handed_over: u64,
    faults: VecDeque<(usize, PgError)>,
    stalled: bool,
    pace: Option<usize>,
}

impl ModelBackend {
    pub(super) fn new(server: ModelServer) -> Self {
        Self {
            server,
            session: None,
            input: Vec::new(),
            unflushed: Vec::new(),
            unasked: 0,
            output: VecDeque::new(),
            ending: None,
            query: None,
            executing: None,
            copy: None,
            wakes_at: None,
            skips: false,
            extended: false,
            reported: BTreeMap::new(),
            state: None,
            handed_over: 0,
            faults: VecDeque::new(),
            stalled: false,
            pace: None,
        }
    }

    /// Takes bytes from the client and handles what is whole.
    pub fn receive(&mut self, bytes: &[u8]) {
        if self.ending.is_none() {
            self.input.extend_from_slice(bytes);
            self.run();
        }
    }

    /// Goes on after the clock, a lock or another process has changed; harmless at any time.
    pub fn run(&mut self) {
        if self.stalled {
            return;
        }
        self.obey_signals();
        while self.ending.is_none() && self.output.len() < OUTPUT_BYTES_MAX {
            match self.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => self.fail(&error),
            }
        }
        if self.ending.is_none() && self.is_between_statements() && self.deliver_notifications() {
            self.output.extend(self.unflushed.drain(..));
        }
    }

    /// The client has closed its end: the session is over.
    pub fn hang_up(&mut self) {
        self.end(Ending::Closed);
    }

    /// Takes what the server has sent, at most as much as a [`Fault::Slow`] allows at a time.
    pub fn take_output(&mut self) -> Vec<u8> {
        let bytes = self.pace.unwrap_or(usize::MAX).min(self.output.len());
        let taken: Vec<u8> = self.output.drain(..bytes).collect();
        if self.ending.is_none() && !taken.is_empty() {
            self.run();
        }
        taken
    }

    /// Bytes that wait to be taken.
    #[must_use]
    pub fn output_bytes(&self) -> usize {
        self.output.len()
    }

    /// How the connection ended, once it has.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The process behind this connection, once it is logged in.
    #[must_use]
    pub fn process(&self) -> Option<ProcessId> {
        self.session.as_ref().map(|session| session.process)
    }

    /// Where the session stands in a transaction.
    #[must_use]
    pub fn block(&self) -> Block {
        self.session.as_ref().map_or(Block::Idle, |session| session.block)
    }

    /// Its transaction has an UNLISTEN in it.
    #[must_use]
    pub fn unlistens(&self) -> bool {
        let leaves = |one: &Listening| !matches!(one, Listening::Listen(_));
        self.session.as_ref().is_some_and(|session| session.now.listening.iter().any(leaves))
    }

    /// COPY FROM is waiting for data.
    #[must_use]
    pub fn is_copying_in(&self) -> bool {
        self.copy.is_some()
    }

    /// A statement sleeps or waits for a lock.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        (self.query.is_some() || self.executing.is_some()) && self.copy.is_none()
    }

    /// When the statement that sleeps will wake.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Duration> {
        self.wakes_at
    }

    /// Messages are being ignored up to Sync.
    #[must_use]
    pub fn skips_to_sync(&self) -> bool {
        self.skips
    }

    /// Names of prepared statements, the unnamed one as "".
    #[must_use]
    pub fn statements(&self) -> Vec<String> {
        self.session.iter().flat_map(|session| session.statements.keys().cloned()).collect()
    }

    /// The types of a prepared statement's parameters, and how many columns it returns.
    #[must_use]
    pub fn statement(&self, name: &str) -> Option<(Vec<Type>, usize)> {
        let prepared = self.session.as_ref()?.statements.get(name)?;
        let columns = prepared.analysis.columns.as_ref().map_or(0, Vec::len);
        Some((prepared.params.clone(), columns))
    }

    /// Whether a prepared statement is a query, which EXECUTE can run.
    #[must_use]
    pub fn is_query(&self, name: &str) -> bool {
        let prepared = self.session.as_ref().and_then(|session| session.statements.get(name));
        let parsed = prepared.and_then(|prepared| prepared.parsed.as_ref());
        parsed.is_some_and(|parsed| parsed.statement.is_query())
    }

    /// Takes what the server has said but not flushed: a client may see it earlier through
    /// something that answers in the server's place, and later from the server itself.
    pub fn take_unflushed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unflushed)
    }

    /// How many of the last messages are on their way only because the server had nothing to read when
    /// it sent notifications, or not at all: a server that reads the rest of the pipeline first sends
    /// them later.
    #[must_use]
    pub fn unasked_messages(&self) -> usize {
        self.unasked
    }

    /// Whether the message now being answered is of the extended protocol.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        self.extended
    }

    /// Names of the savepoints that are open, the oldest first.
    #[must_use]
    pub fn savepoints(&self) -> Vec<String> {
        self.session.iter().flat_map(Session::savepoint_names).collect()
    }

    /// Names of portals and cursors.
    #[must_use]
    pub fn portals(&self) -> Vec<String> {
        self.session.iter().flat_map(|session| session.portals.keys().cloned()).collect()
    }

    /// Names of temporary tables.
    #[must_use]
    pub fn temporary_tables(&self) -> Vec<String> {
        self.session.iter().flat_map(|session| session.now.temp.keys().cloned()).collect()
    }

    /// A setting's value now, as SHOW would print it.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<String> {
        self.session.as_ref()?.setting(name).map(str::to_owned)
    }

    /// The value that RESET gives a setting.
    #[must_use]
    pub fn own_setting(&self, name: &str) -> Option<String> {
        self.session.as_ref()?.own_setting(name).map(str::to_owned)
    }

    /// Makes something go wrong.
    pub fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::Reset => self.end(Ending::Reset),
            Fault::Terminate => {
                self.send(&PgError::terminated().encode());
                self.flush();
                self.end(Ending::Closed);
            }
            Fault::Garbage(bytes) => self.output.extend(bytes),
            Fault::Stall => self.stalled = true,
            Fault::Resume => {
                self.stalled = false;
                self.pace = None;
                self.run();
            }
            Fault::Slow { bytes } => self.pace = Some(bytes.max(1)),
            Fault::ErrorAt { messages, error } => self.faults.push_back((messages, error)),
        }
    }

    fn obey_signals(&mut self) {
        let Some(process) = self.process() else { return };
        let (terminated, crashed) = match self.server.lock().processes.get(&process) {
            Some(found) => (found.terminated, found.crashed),
            None => return,
        };
        if crashed {
            let message = "terminating connection because of crash of another server process";
            self.send(&PgError::warning("57P02", message).encode());
            self.end(Ending::Closed);
        } else if terminated {
            self.inject(Fault::Terminate);
        }
    }

    fn is_between_statements(&self) -> bool {
        self.query.is_none()
            && self.executing.is_none()
            && self.copy.is_none()
            && self.session.as_ref().is_some_and(|session| session.block == Block::Idle)
    }

    /// Handles one message, or goes on with what the last one began; false where it must wait.
    fn step(&mut self) -> Result<bool, PgError> {
        if self.session.is_none() {
            return self.startup();
        }
        if self.copy.is_some() {
            return self.copy_in();
        }
        if self.executing.is_some() {
            return self.execute();
        }
        if self.query.is_some() {
            return self.simple_query();
        }
        let Some(message) = self.next_message()? else { return Ok(false) };
        self.dispatch(&message)?;
        Ok(true)
    }

    fn next_message(&mut self) -> Result<Option<Message>, PgError> {
        // The type is judged before the rest has arrived, as in SocketBackend().
        if let Some(&tag) = self.input.first()
            && !b"QFXdcfSBCDEHP".contains(&tag)
        {
            let message = format!("invalid frontend message type {tag}");
            return Err(PgError::fatal("08P01", message));
        }
        self.cut(true)
    }

    fn cut(&mut self, tagged: bool) -> Result<Option<Message>, PgError> {
        match wire::cut(&mut self.input, tagged) {
            Ok(message) => Ok(message),
            Err(_) => {
                // "invalid message length" goes to the log only.
                self.end(Ending::Closed);
                Ok(None)
            }
        }
    }

    fn dispatch(&mut self, message: &Message) -> Result<(), PgError> {
        self.extended = b"BCDEHP".contains(&message.tag);
        if matches!(message.tag, b'S' | b'X') {
            self.skips = false;
        }
        // A cancel that comes while nothing runs is forgotten.
        if let Some(process) = self.process()
            && let Some(found) = self.server.lock().processes.get_mut(&process)
        {
            found.cancelled = false;
        }
        if let Some((left, _)) = self.faults.front_mut() {
            if *left == 0 {
                let (_, error) = self.faults.pop_front().expect("its front was seen");
                return Err(error);
            }
            *left -= 1;
        }
        if self.skips {
            return Ok(());
        }
        match message.tag {
            b'Q' => self.begin_query(&message.body),
            b'P' => self.parse(&message.body),
            b'B' => self.bind(&message.body),
            b'D' => self.describe(&message.body),
            b'E' => self.begin_execute(&message.body),
            b'C' => self.close(&message.body),
            b'F' => self.function_call(&message.body),
            b'H' => {
                self.flush();
                Ok(())
            }
            b'S' => {
                self.finish();
                self.ready();
                Ok(())
            }
            b'X' => {
                self.end(Ending::Closed);
                Ok(())
            }
            // CopyData, CopyDone, CopyFail: left over from a COPY that has failed.
            _ => Ok(()),
        }
    }

    fn session(&mut self) -> &mut Session {
        self.session.as_mut().expect("a message is dispatched after login only")
    }

    /// A command ends: a transaction without a block is committed (`finish_xact_command`).
    fn finish(&mut self) {
        let server = self.server.clone();
        let session = self.session();
        if session.block == Block::Started {
            session.commit_to(&mut server.lock());
        }
    }

    fn fail(&mut self, error: &PgError) {
        self.query = None;
        self.executing = None;
        self.copy = None;
        self.wakes_at = None;
        self.send(&error.encode());
        self.flush();
        if error.severity == Severity::Fatal || self.session.is_none() {
            self.end(Ending::Closed);
            return;
        }
        self.session().fail();
        if self.extended {
            self.skips = true;
        } else {
            self.ready();
        }
    }

    fn ready(&mut self) {
        if self.session().block == Block::Idle {
            self.deliver_notifications();
        }
        self.report_settings();
        self.report_state();
        let status = self.session().status();
        self.send(&Body::new().byte(status).message(b'Z'));
        self.flush();
    }

    fn report_settings(&mut self) {
        for name in settings::reported() {
            let value = match (name, self.session().current_user()) {
                ("is_superuser", super::catalog::SUPERUSER) => "on".to_owned(),
                _ => self.session().setting(name).unwrap_or_default().to_owned(),
            };
            if self.reported.get(name) != Some(&value) {
                self.send(&Body::new().text(name).text(&value).message(b'S'));
                self.reported.insert(name, value);
            }
        }
    }

    /// Outside of transactions only, and only what is new.
    fn report_state(&mut self) {
        let Some(session) = self.session.as_ref().filter(|session| session.block == Block::Idle)
        else {
            return;
        };
        let Some(before) = &self.state else { return };
        let now = session.state(&self.server.lock());
        if *before != now {
            self.send_state(now);
        }
    }

    fn send_state(&mut self, state: String) {
        let name = String::from_utf8_lossy(text::NAME);
        self.send(&Body::new().text(&name).text(&state).message(b'S'));
        self.state = Some(state);
    }

    fn deliver_notifications(&mut self) -> bool {
        let Some(process) = self.process() else { return false };
        let inbox = match self.server.lock().processes.get_mut(&process) {
            Some(found) => {
                let inbox = std::mem::take(&mut found.inbox);
                // What it listens on counts when it reads (`asyncQueueProcessPageEntries`, async.c).
                let hears = |channel: &String| found.listens.contains(channel);
                inbox.into_iter().filter(|one| hears(&one.channel)).collect::<Vec<_>>()
            }
            None => return false,
        };
        for notification in &inbox {
            let body = Body::new()
                .int32(notification.sender.0)
                .text(&notification.channel)
                .text(&notification.payload);
            self.send(&body.message(b'A'));
        }
        !inbox.is_empty()
    }

    fn notices(&mut self, notices: Vec<PgError>) {
        for notice in notices {
            self.send(&notice.encode());
            self.flush();
        }
    }

    fn send(&mut self, message: &Message) {
        self.unasked += 1;
        self.unflushed.extend(message.encode());
        let whole = self.unflushed.len() / SEND_BUFFER_BYTES * SEND_BUFFER_BYTES;
        self.output.extend(self.unflushed.drain(..whole));
    }

    fn flush(&mut self) {
        self.unasked = 0;
        self.output.extend(self.unflushed.drain(..));
    }

    fn end(&mut self, ending: Ending) {
        if self.ending.is_some() {
            return;
        }
        self.flush();
        self.ending = Some(ending);
        self.leave();
    }

    fn leave(&mut self) {
        if let Some(session) = self.session.take() {
            self.server.lock().leave(session.process);
        }
    }
}

impl Drop for ModelBackend {
    fn drop(&mut self) {
        self.leave();
    }
}
