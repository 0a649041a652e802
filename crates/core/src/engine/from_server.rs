//! What a server sends: matched with what it owes, and passed on.
//!
//! # Model
//! Each message completes, or belongs to, the first entry of [`super::expect`]. Rows and copy
//! data are passed without a look; a run of messages that all pass is written to the client from
//! where it was read.
//!
//! # Invariants
//! * a message that fits no entry means that order or framing is lost: the connection is closed
//! * what answers Hawser's own messages never reaches a client
//! * ReadyForQuery is where books are closed: settings, names, pins, the release of the backend

mod failure;
mod reading;
mod report;
mod settle;

use super::backend::Backend;
use super::client::Client;
use super::limits;
use super::replay::{hash_of_parameters, hash_of_rows};
use super::request_queue::{Change, Request};
use super::socket::Socket;
use super::statement::Shape;
use crate::listen::Notification;
use crate::session::part::Part;
use crate::session::report::ReportError;
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::frame::{self, Framed, HEADER_BYTES};
use crate::wire::{TransactionStatus, backend as kind};

/// The longest message that is looked at whole (a setting with a long value, for example).
const LOOKED_AT_BYTES_MAX: usize = 1024 * 1024;

/// What has become of bytes from a server.
#[derive(Debug, Default)]
pub(super) struct Relayed {
    /// What is left of the last run, to be written from where it was read.
    pub(super) run: std::ops::Range<usize>,
    /// Bytes dealt with; the rest is the start of a message.
    pub(super) consumed: usize,
    /// Why the connection cannot be trusted any more.
    pub(super) broken: Option<&'static str>,
    /// What the client is told, if it is to be told goodbye.
    pub(super) goodbye: Option<Box<ClientError>>,
    /// The message at hand is all here.
    whole: bool,
    /// Something else has come than what comes most often.
    has_unusual: bool,
    /// A query of ours failed.
    pub(super) injected_query_failed: bool,
    /// Queries of the client that ended.
    pub(super) queries: u64,
    /// New sessions may start with other values from now on.
    pub(super) start_values_changed: bool,
    /// Its report of the session cannot be relied on.
    pub(super) unreadable_report: Option<ReportError>,
    /// The books and the server's report of its session disagree.
    pub(super) settings_mismatch: bool,
    /// A refusal of the server's is being healed, and the next step is due.
    pub(super) heal: bool,
    /// What has come of a hand-over to the client.
    pub(super) handed_over: Option<Box<super::hand_over::Outcome>>,
    /// An attempt to take a short timeout off has come to its end.
    pub(super) lifted: bool,
    /// Transactions of the client that ended.
    pub(super) transactions: u64,
    /// One of a client that listens has ended, and is not answered yet.
    pub(super) listens: bool,
    last: report::Last,
}

impl Relayed {
    /// Whether these bytes were what usual pipelines are answered with, up to the end of one, and
    /// nothing else.
    #[inline]
    fn is_plain_end(&self, read: usize) -> bool {
        self.queries > 0 && !self.has_unusual && self.consumed == read
    }
}

/// Bytes on their way from a backend to its client, if it has one.
pub(super) struct Relay<'a, S: Socket> {
    pub(super) backend: &'a mut Backend<S>,
    pub(super) client: Option<&'a mut Client<S>>,
    pub(super) bytes: &'a [u8],
    /// What goes to the client before the run.
    pub(super) out: &'a mut Vec<u8>,
    /// The longest message that is let through.
    pub(super) message_bytes_max: usize,
    /// The process id by which the client knows itself.
    pub(super) own_process: u32,
    /// See [`super::plain`].
    pub(super) has_plain_lane: bool,
}

/// What is done with a message.
enum Fate {
    Pass,
    Skip,
    Replace(Box<[u8]>),
}

impl<S: Socket> Relay<'_, S> {
    pub(super) fn run(mut self, now: Time) -> Relayed {
        let mut relayed = Relayed::default();
        self.take_up_reports(&mut relayed);
        let mut at = self.pass_plain_answer();
        let mut run = 0;
        while at < self.bytes.len() {
            let rest = &self.bytes[at..];
            if self.backend.receiving_rest > 0 {
                let part = self.backend.receiving_rest.min(rest.len());
                self.backend.receiving_rest -= part;
                at += part;
                continue;
            }
            let header = match frame::header(rest) {
                Framed::Short => break,
                Framed::Header(header) => header,
                Framed::BadLength { .. } => {
                    relayed.broken = Some("the server sent a message of impossible length");
                    break;
                }
            };
            let total = header.total();
            if total > self.message_bytes_max {
                relayed.broken = Some("the server sent a message longer than max_packet_size");
                break;
            }
            if header.kind == kind::DATA_ROW || header.kind == kind::COPY_DATA {
                match self.backend.requests.front() {
                    Some(Request::Query | Request::Execute | Request::Statements(_)) => {}
                    Some(Request::InjectedQuestion) => {
                        if total > rest.len() && rest.len() < LOOKED_AT_BYTES_MAX {
                            break;
                        }
                        if total > rest.len() {
                            relayed.broken = Some("the server sent a row too long to be looked at");
                            break;
                        }
                        self.backend.take_answer(&rest[HEADER_BYTES..total]);
                        self.cut(&mut run, at);
                        at += total;
                        run = at;
                        continue;
                    }
                    // A setting that is a list is set by a SELECT.
                    Some(
                        Request::InjectedQuery
                        | Request::Injected
                        | Request::InjectedStatement
                        | Request::InjectedSettings { .. }
                        | Request::InjectedPrepare,
                    ) => {
                        if total > LOOKED_AT_BYTES_MAX {
                            relayed.broken = Some("the server sent a row that no setting gives");
                            break;
                        }
                        if total > rest.len() {
                            break;
                        }
                        if let Some(client) = &mut self.client
                            && client.listens()
                        {
                            client.note_row(&rest[HEADER_BYTES..total]);
                        }
                        self.cut(&mut run, at);
                        at += total;
                        run = at;
                        continue;
                    }
                    _ => {
                        self.give_own_answers(&mut run, at);
                        let owed = self.backend.requests.front();
                        if !matches!(
                            owed,
                            Some(Request::Query | Request::Execute | Request::Statements(_))
                        ) {
                            relayed.broken = Some("the server sent rows that nobody asked for");
                            break;
                        }
                    }
                }
                let part = total.min(rest.len());
                self.backend.receiving_rest = total - part;
                at += part;
                continue;
            }
            if total > rest.len() {
                let looked_at = match header.kind {
                    kind::PARAMETER_STATUS | kind::READY_FOR_QUERY => true,
                    kind::ROW_DESCRIPTION | kind::PARAMETER_DESCRIPTION => {
                        self.backend.requests.looks_at_description()
                    }
                    _ => false,
                };
                if total <= limits::WHOLE_MESSAGE_BYTES
                    || rest.len() < limits::ERROR_START_BYTES
                    || (looked_at && total <= LOOKED_AT_BYTES_MAX)
                {
                    break;
                }
                if looked_at {
                    relayed.broken = Some("the server sent a message too long to be looked at");
                    break;
                }
            }
            if total <= rest.len() {
                let body = &rest[HEADER_BYTES..total];
                let usual = match header.kind {
                    kind::READY_FOR_QUERY => self.ready_as_usual(body, now, &mut relayed),
                    kind => self.is_usual(kind, body),
                };
                if usual {
                    at += total;
                    continue;
                }
            }
            relayed.whole = total <= rest.len();
            relayed.has_unusual = true;
            let body = &self.bytes[at + HEADER_BYTES..at + total.min(rest.len())];
            let fate = match self.message(header.kind, body, &mut run, at, now, &mut relayed) {
                Ok(fate) => fate,
                Err(reason) => {
                    relayed.broken = Some(reason);
                    break;
                }
            };
            let part = total.min(rest.len());
            match fate {
                Fate::Pass => {
                    self.backend.receiving_rest = total - part;
                }
                Fate::Skip | Fate::Replace(_) if part < total => {
                    relayed.broken = Some("the server sent an answer of unexpected length");
                    break;
                }
                Fate::Skip => {
                    self.cut(&mut run, at);
                    run = at + part;
                }
                Fate::Replace(other) => {
                    self.cut(&mut run, at);
                    self.out.extend_from_slice(&other);
                    run = at + part;
                }
            }
            at += part;
            if relayed.goodbye.is_some() {
                break;
            }
        }
        if relayed.broken.is_none() && self.backend.receiving_rest == 0 {
            // Nothing more may come from the server before the client has seen them.
            self.give_own_answers(&mut run, at);
        }
        self.settle_reports(at, &mut relayed);
        debug_assert!(
            !self.backend.requests.is_empty()
                || self.client.as_ref().is_none_or(|client| client.names_are_settled()),
            "a change of names has no entry left"
        );
        relayed.run = run..at;
        relayed.consumed = at;
        relayed
    }

    /// Ends the run before `at`, so that something can be put after it.
    fn cut(&mut self, run: &mut usize, at: usize) {
        if self.client.is_some() {
            self.out.extend_from_slice(&self.bytes[*run..at]);
        }
        *run = at;
    }

    /// Gives the answers of ours whose turn has come.
    fn give_own_answers(&mut self, run: &mut usize, at: usize) {
        loop {
            let Some(answer) = self.backend.requests.take_own_answer() else {
                if self.backend.requests.take_copy_input() {
                    continue;
                }
                return;
            };
            if let Some(client) = &mut self.client {
                client.confirm(answer.change.as_ref());
            }
            if !answer.bytes.is_empty() {
                self.cut(run, at);
                self.out.extend_from_slice(answer.bytes);
            }
        }
    }

    /// Deals with what comes most often and is passed on. Whether it was that; anything else is for
    /// [`Self::message`], which does the same with it.
    #[inline]
    fn is_usual(&mut self, message: u8, body: &[u8]) -> bool {
        let backend = &mut *self.backend;
        let Some(owed) =
            backend.requests.front().filter(|_| !backend.requests.has_syncs_in_doubt())
        else {
            return false;
        };
        let completes = match (message, owed) {
            (kind::PARSE_COMPLETE, Request::Parse { statement: 0, serial }) if serial != 0 => true,
            (kind::BIND_COMPLETE, Request::Bind { .. }) => true,
            (kind::ROW_DESCRIPTION, Request::DescribePortal) => {
                self.note_description(owed, message, body);
                true
            }
            (kind::ROW_DESCRIPTION, Request::Query) => false,
            (kind::COMMAND_COMPLETE, Request::Query | Request::Execute)
                if !backend.at_stake.has_start_values() && !body.starts_with(b"D") =>
            {
                let completes = owed == Request::Execute;
                self.backend.requests.copy_ended();
                completes
            }
            _ => return false,
        };
        self.backend.replay.forget();
        if completes {
            self.backend.requests.complete();
        }
        true
    }

    #[inline] // once for each message of the server
    fn message(
        &mut self,
        message: u8,
        body: &[u8],
        run: &mut usize,
        at: usize,
        now: Time,
        relayed: &mut Relayed,
    ) -> Result<Fate, &'static str> {
        const OUT_OF_TURN: &str = "the server sent an answer out of turn";
        match message {
            // These come at any time.
            kind::PARAMETER_STATUS => {
                self.give_own_answers(run, at);
                let fate = self.parameter(body, relayed)?;
                return Ok(self.place_report(fate, at, body, run, relayed));
            }
            kind::NOTICE => {
                self.give_own_answers(run, at);
                if let Some(Request::Parse { statement, .. }) = self.backend.requests.front() {
                    self.backend.statements.note(statement);
                }
                let ours = self.backend.requests.front().is_some_and(Request::is_injected);
                return Ok(if ours { Fate::Skip } else { Fate::Pass });
            }
            kind::NOTIFICATION => {
                self.give_own_answers(run, at);
                let process = self.backend.process;
                let Some(client) = &mut self.client else { return Ok(Fate::Skip) };
                if client.is_session_mode() {
                    return Ok(Fate::Pass);
                }
                if client.overhears(body, process) || !client.pins.contains(Part::Listen) {
                    return Ok(Fate::Skip);
                }
                // Its own are known to it by the process id that it was given.
                return Ok(match Notification::read(body) {
                    Some(own) if own.process == process && relayed.whole => {
                        Fate::Replace(own.message_from(self.own_process).as_ref().into())
                    }
                    _ => Fate::Pass,
                });
            }
            _ => {}
        }
        if self
            .backend
            .requests
            .front()
            .is_some_and(|e| e.is_answered_here() || matches!(e, Request::CopyInput { .. }))
        {
            self.give_own_answers(run, at);
        }
        let Some(owed) = self.backend.requests.front() else {
            if message == kind::ERROR && is_fatal(body) {
                // Out of the blue: the connection ends.
                self.backend.gone = true;
                return Ok(Fate::Pass);
            }
            if message == kind::READY_FOR_QUERY && self.backend.requests.take_ready_in_doubt() {
                if let [status] = body
                    && let Some(status) = TransactionStatus::from_byte(*status)
                {
                    self.backend.status = status;
                }
                return Ok(Fate::Pass);
            }
            return Err(OUT_OF_TURN);
        };
        if message == kind::ERROR {
            if is_fatal(body) {
                // Whatever it answers, it is the last that the client hears.
                self.backend.gone = true;
                return Ok(Fate::Pass);
            }
            let fate = self.error(owed, body, relayed)?;
            return Ok(self.in_place_of_stand_in(owed, body, fate, relayed));
        }
        if message == kind::READY_FOR_QUERY {
            let status = match body {
                [status] => TransactionStatus::from_byte(*status),
                _ => None,
            };
            let Some(status) = status else {
                return Err("the server reported an unknown transaction status");
            };
            if self.backend.requests.take_ready_in_doubt() {
                return Ok(if self.client.is_none() { Fate::Skip } else { Fate::Pass });
            }
            return self.ready(owed, status, run, at, now, relayed);
        }
        self.backend.requests.pass_fence();
        let (completes, fate) = match (owed, message) {
            (Request::InjectedRollback, kind::COMMAND_COMPLETE) => (false, Fate::Skip),
            (
                Request::InjectedQuery,
                kind::COMMAND_COMPLETE | kind::ROW_DESCRIPTION | kind::EMPTY_QUERY,
            ) => (false, Fate::Skip),
            (Request::InjectedLift, kind::COMMAND_COMPLETE) => (false, Fate::Skip),
            (Request::InjectedQuestion, kind::COMMAND_COMPLETE | kind::ROW_DESCRIPTION)
            | (
                Request::InjectedPrepare,
                kind::COMMAND_COMPLETE | kind::PARSE_COMPLETE | kind::ROW_DESCRIPTION,
            ) => (false, Fate::Skip),
            (Request::TellIdentity, kind::FUNCTION_RESULT) => (false, Fate::Skip),
            (Request::HandOver, kind::FUNCTION_RESULT) => {
                self.backend.hand_over_answered();
                (false, Fate::Skip)
            }
            (Request::Parse { .. }, kind::PARSE_COMPLETE)
            | (Request::Bind { .. }, kind::BIND_COMPLETE)
            | (Request::Close, kind::CLOSE_COMPLETE)
            | (
                Request::DescribeStatement { .. } | Request::DescribePortal,
                kind::ROW_DESCRIPTION | kind::NO_DATA,
            )
            | (
                Request::Execute,
                kind::COMMAND_COMPLETE | kind::EMPTY_QUERY | kind::PORTAL_SUSPENDED,
            ) => (true, Fate::Pass),
            (Request::Statements(_), kind::COMMAND_COMPLETE) => {
                (self.backend.requests.complete_statement(), Fate::Pass)
            }
            (Request::InjectedStatement, kind::ROW_DESCRIPTION) => (false, Fate::Skip),
            (Request::InjectedStatement, kind::COMMAND_COMPLETE) => (true, Fate::Skip),
            (Request::InjectedParse { .. }, kind::PARSE_COMPLETE)
            | (
                Request::Injected,
                kind::BIND_COMPLETE | kind::COMMAND_COMPLETE | kind::CLOSE_COMPLETE,
            )
            | (Request::InjectedSettings { .. }, kind::BIND_COMPLETE | kind::COMMAND_COMPLETE) => {
                (true, Fate::Skip)
            }
            (Request::InjectedDescribe { statement }, kind::PARAMETER_DESCRIPTION) => {
                self.described(statement, Shape { parameters: hash_of_parameters(body), rows: 0 });
                (false, Fate::Skip)
            }
            (Request::InjectedDescribe { statement }, kind::ROW_DESCRIPTION | kind::NO_DATA) => {
                let rows = hash_of_rows((message == kind::ROW_DESCRIPTION).then_some(body));
                self.described(statement, Shape { parameters: 0, rows });
                relayed.goodbye = self.compare_unnamed(statement);
                (true, Fate::Skip)
            }
            (Request::DescribeStatement { .. }, kind::PARAMETER_DESCRIPTION)
            | (
                Request::Query | Request::Statements(_),
                kind::ROW_DESCRIPTION
                | kind::COMMAND_COMPLETE
                | kind::EMPTY_QUERY
                | kind::COPY_OUT
                | kind::COPY_BOTH
                | kind::COPY_DONE,
            )
            | (Request::Execute, kind::COPY_OUT | kind::COPY_BOTH | kind::COPY_DONE)
            | (Request::Call, kind::FUNCTION_RESULT) => (false, Fate::Pass),
            (Request::Query | Request::Execute | Request::Statements(_), kind::COPY_IN) => {
                self.backend.requests.copy_begins();
                (false, Fate::Pass)
            }
            _ => return Err(OUT_OF_TURN),
        };
        if message == kind::COMMAND_COMPLETE {
            self.backend.requests.copy_ended();
            if self.backend.at_stake.has_start_values() && changes_start_values(body) {
                self.backend.at_stake.start_values_changed();
            }
            if !owed.is_injected() && (body == b"DISCARD ALL\0" || body == b"DEALLOCATE ALL\0") {
                self.forgotten_for_good(body);
            }
        }
        if !owed.is_injected() {
            self.backend.replay.forget();
        }
        if let Request::DescribeStatement { .. } | Request::DescribePortal = owed {
            self.note_description(owed, message, body);
        }
        if completes {
            if let Some(client) = &mut self.client {
                client.confirm(self.backend.requests.front_change());
            }
            self.backend.requests.complete();
            if let Request::Parse { statement, .. } | Request::InjectedParse { statement } = owed {
                self.backend.statements.prove(statement);
            }
        }
        Ok(fate)
    }

    /// The client is told what a statement takes and gives.
    pub(super) fn note_description(&mut self, owed: Request, message: u8, body: &[u8]) {
        let backend = &mut *self.backend;
        let Some(Change::Describes(seen)) = backend.requests.front_change() else { return };
        let shape = if message == kind::PARAMETER_DESCRIPTION {
            Shape { parameters: hash_of_parameters(body), rows: 0 }
        } else {
            let rows = (message == kind::ROW_DESCRIPTION).then_some(body);
            Shape { parameters: 0, rows: hash_of_rows(rows) }
        };
        match owed {
            Request::DescribeStatement { statement } => {
                backend.statements.described(statement, shape);
            }
            _ => backend.statements.described_portal(seen.bound(), shape.rows),
        }
        if message == kind::PARAMETER_DESCRIPTION {
            seen.parameters(body);
        } else {
            seen.rows(shape.rows);
        }
    }

    /// The server describes a statement that was prepared for Hawser to look at.
    fn described(&mut self, statement: u64, shape: Shape) {
        self.backend.replay.now(shape);
        if statement != 0 {
            self.backend.statements.described(statement, shape);
        } else if let Some(Change::Compares(comparing)) = self.backend.requests.front_change_mut() {
            let Shape { parameters, rows } = &mut comparing.shape;
            (*parameters, *rows) = (*parameters | shape.parameters, *rows | shape.rows);
        }
    }

    /// The client's unnamed statement has been prepared anew, and described. If it is another, and the
    /// client's message has not waited for that, its rows must not reach the client.
    fn compare_unnamed(&mut self, statement: u64) -> Option<Box<ClientError>> {
        if statement != 0 {
            return None;
        }
        let Some(Change::Compares(comparing)) = self.backend.requests.front_change() else {
            return None;
        };
        let (fits, waits) = (comparing.shape.fits(comparing.seen.told()), comparing.waits);
        if fits || self.client.is_none() {
            return None;
        }
        self.backend.unnamed.note_change(waits);
        (!waits).then(|| {
            let error = ClientError::fatal(
                SqlState::FEATURE_NOT_SUPPORTED,
                "cached plan must not change result type",
            );
            Box::new(error.detail("The schema changed between the Parse and the Bind."))
        })
    }
}

/// Whether this is the tag of a statement after which new sessions may start with other values.
fn changes_start_values(tag: &[u8]) -> bool {
    let tag = tag.strip_suffix(b"\0").unwrap_or(tag);
    let mut words = tag.split(|byte| *byte == b' ');
    matches!(words.next(), Some(b"ALTER" | b"CREATE" | b"DROP"))
        && matches!(words.next(), Some(b"ROLE" | b"DATABASE"))
}

/// Whether the server closes the connection after this error.
fn is_fatal(body: &[u8]) -> bool {
    crate::wire::error::field(body, b'V').is_some_and(|severity| severity != b"ERROR")
}
