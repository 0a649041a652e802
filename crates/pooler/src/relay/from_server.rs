//! What a server sends: matched with what it owes, and passed on.
//!
//! # Model
//! Each message completes, or belongs to, the first entry of [`crate::relay::request_queue`]. Rows and
//! copy data are passed unread; a run of messages that all pass is written to the client from the
//! buffer it was read into.
//!
//! # Invariants
//! * a message that fits no entry means that order or framing is lost: the connection is closed
//! * what answers Hawser's own messages never reaches a client
//! * ReadyForQuery is where books are closed: settings, names, pins, the release of the backend

mod failure;
mod message;
mod reading;
mod report;
mod settle;

use crate::parts::report::text::ReportError;
use crate::queries::table::Queries;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::limits;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::relay::statistics::Ended;
use crate::time::Time;
use crate::wire::error::ClientError;
use crate::wire::frame::{Framed, HEADER_BYTES, Header};
use crate::wire::{backend as kind, frame};

/// The longest message that is read whole (a setting with a long value, for example).
const LOOKED_AT_BYTES_MAX: usize = 1024 * 1024;

/// The last reports that have come, for a client that listens: the server sends notifications
/// before the reports of a transaction that has ended (`PostgresMain`, PostgreSQL 14 and later),
/// and those of the listening connection are still to come.
#[derive(Debug, Default)]
pub(crate) struct Last {
    reports: Vec<u8>,
    /// Their place in the other output for the client.
    place: usize,
    /// Where they end in the input.
    end: usize,
}

/// The outcome of processing bytes from a server.
#[derive(Debug, Default)]
pub(crate) struct Relayed {
    /// The rest of the last run, to be written from the buffer it was read into.
    pub(crate) run: std::ops::Range<usize>,
    /// Bytes processed; the rest is the start of a message.
    pub(crate) consumed: usize,
    /// Why the connection cannot be trusted any more.
    pub(crate) broken: Option<&'static str>,
    /// The error that the client gets, if it is to be disconnected.
    pub(crate) goodbye: Option<Box<ClientError>>,
    /// The current message has come whole.
    whole: bool,
    /// Another message has come than the most frequent ones.
    has_unusual: bool,
    /// A query of Hawser's failed.
    pub(crate) injected_query_failed: bool,
    /// Queries and transactions of the client that ended.
    pub(crate) ended: Ended,
    /// New sessions may start with other values.
    pub(crate) start_values_changed: bool,
    /// Functions may do something else.
    pub(crate) functions_changed: bool,
    /// The report of the session cannot be read.
    pub(crate) unreadable_report: Option<ReportError>,
    /// The books and the server's report of its session disagree.
    pub(crate) settings_mismatch: bool,
    /// A refusal of the server's is being healed, and the next step is due.
    pub(crate) heal: bool,
    pub(crate) handed_over: Option<Box<crate::parts::identity::hand_over::Outcome>>,
    /// An attempt to lift a short timeout has ended.
    pub(crate) lifted: bool,
    /// A query of a client that listens has ended, and is not answered yet.
    pub(crate) listens: bool,
    last: Last,
}

impl Relayed {
    /// Whether these bytes were nothing but the usual answers to a pipeline, up to its end.
    #[inline]
    fn is_plain_end(&self, read: usize) -> bool {
        self.ended.queries > 0 && !self.has_unusual && self.consumed == read
    }
}

/// Bytes on their way from a backend to its client, if it has one.
pub(crate) struct Relay<'a, S: Socket> {
    pub(crate) backend: &'a mut Backend<S>,
    pub(crate) client: Option<&'a mut Client<S>>,
    pub(crate) bytes: &'a [u8],
    /// What goes to the client before the run.
    pub(crate) out: &'a mut Vec<u8>,
    /// The longest message that is passed on.
    pub(crate) message_bytes_max: usize,
    /// The process id by which the client knows itself.
    pub(crate) own_process: u32,
    /// See [`crate::relay::plain`].
    pub(crate) has_plain_lane: bool,
    /// Where what is answered is counted.
    pub(crate) queries: &'a mut Queries,
    pub(crate) now: Time,
}

/// What becomes of a message.
enum Fate {
    Pass,
    Skip,
    Replace(Box<[u8]>),
}

impl<S: Socket> Relay<'_, S> {
    /// Processes what has come. `at`: [`Self::pass_plain_answer`] has processed this much of it.
    fn run(mut self, mut at: usize, now: Time) -> Relayed {
        let mut relayed = Relayed::default();
        self.take_up_reports(&mut relayed);
        let mut run = 0;
        while at < self.bytes.len() && relayed.goodbye.is_none() {
            match self.pass_next(&mut run, at, now, &mut relayed) {
                Ok(0) => break,
                Ok(bytes) => {
                    at += bytes;
                    self.backend.counting.take_bytes(bytes);
                }
                Err(reason) => {
                    relayed.broken = Some(reason);
                    break;
                }
            }
        }
        if relayed.broken.is_none() && !self.backend.from_server.is_in_mid_message() {
            // The server may send nothing more before the client has seen them.
            self.give_own_answers(&mut run, at);
        }
        self.settle_reports(at, &mut relayed);
        let says_something = relayed.heal || relayed.handed_over.is_some();
        if says_something && self.backend.is_in_mid_answer() {
            relayed.broken = Some("the server sent an unexpected message after the last answer");
        }
        debug_assert!(
            !self.backend.requests.is_empty()
                || self.client.as_ref().is_none_or(|client| client.names_are_settled()),
            "a change of names has no entry left"
        );
        relayed.run = run..at;
        relayed.consumed = at;
        relayed
    }

    /// Processes the next message, or the part of it that has come. Returns the number of its
    /// bytes; 0: more of it must come first.
    #[inline]
    fn pass_next(
        &mut self,
        run: &mut usize,
        at: usize,
        now: Time,
        relayed: &mut Relayed,
    ) -> Result<usize, &'static str> {
        let rest = &self.bytes[at..];
        if self.backend.from_server.is_in_mid_message() {
            return Ok(self.backend.from_server.take_of_rest(rest.len()));
        }
        let header = match frame::header(rest) {
            Framed::Short => return Ok(0),
            Framed::Header(header) => header,
            Framed::BadLength { .. } => {
                return Err("the server sent a message of impossible length");
            }
        };
        let total = header.total();
        if total > self.message_bytes_max {
            return Err("the server sent a message longer than max_packet_size");
        }
        if header.kind == kind::DATA_ROW || header.kind == kind::COPY_DATA {
            return self.rows(header, run, at);
        }
        if total > rest.len() {
            if self.waits_for_rest(header.kind, total, rest.len())? {
                return Ok(0);
            }
        } else {
            let body = &rest[HEADER_BYTES..total];
            let usual = match header.kind {
                kind::READY_FOR_QUERY => self.ready_as_usual(body, now, &mut relayed.ended),
                kind => self.is_usual(kind, body),
            };
            if usual {
                return Ok(total);
            }
        }
        let part = total.min(rest.len());
        relayed.whole = part == total;
        relayed.has_unusual = true;
        match self.message(header.kind, &rest[HEADER_BYTES..part], run, at, now, relayed)? {
            Fate::Pass => self.backend.from_server.leave_rest(total - part),
            Fate::Skip | Fate::Replace(_) if part < total => {
                return Err("the server sent an answer of unexpected length");
            }
            Fate::Skip => {
                self.cut(run, at);
                *run = at + part;
            }
            Fate::Replace(other) => {
                self.cut(run, at);
                self.out.extend_from_slice(&other);
                *run = at + part;
            }
        }
        Ok(part)
    }

    /// Processes a row, or copy data, with this header, and those after it that pass in the same
    /// way. As [`Self::pass_next`].
    #[inline]
    fn rows(&mut self, first: Header, run: &mut usize, at: usize) -> Result<usize, &'static str> {
        let rest = &self.bytes[at..];
        let total = first.total();
        let is_client_row = |owed: Option<Request>| {
            matches!(owed, Some(Request::Query | Request::Execute | Request::Statements(_)))
        };
        match self.backend.requests.front() {
            owed if is_client_row(owed) => {}
            Some(Request::InjectedQuestion) => {
                if total > rest.len() && rest.len() < LOOKED_AT_BYTES_MAX {
                    return Ok(0);
                }
                if total > rest.len() {
                    return Err("the server sent a row too long to inspect");
                }
                self.backend.take_answer(&rest[HEADER_BYTES..total]);
                self.cut(run, at);
                *run = at + total;
                return Ok(total);
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
                    return Err("the server sent a row that no setting gives");
                }
                if total > rest.len() {
                    return Ok(0);
                }
                if let Some(client) = &mut self.client
                    && client.listens()
                {
                    client.note_row(&rest[HEADER_BYTES..total]);
                }
                self.cut(run, at);
                *run = at + total;
                return Ok(total);
            }
            _ => {
                self.give_own_answers(run, at);
                if !is_client_row(self.backend.requests.front()) {
                    return Err("the server sent an unexpected DataRow");
                }
            }
        }
        let mut end = total;
        while let Some(Framed::Header(next)) = rest.get(end..).map(frame::header)
            && next.kind == first.kind
            && next.total() <= rest.len() - end
            && next.total() <= self.message_bytes_max
        {
            end += next.total();
        }
        let part = end.min(rest.len());
        self.backend.from_server.leave_rest(end - part);
        Ok(part)
    }

    /// Whether a message of this kind waits until more of it is here, or all.
    fn waits_for_rest(&self, kind: u8, total: usize, here: usize) -> Result<bool, &'static str> {
        let looked_at = match kind {
            kind::PARAMETER_STATUS | kind::READY_FOR_QUERY => true,
            kind::ROW_DESCRIPTION | kind::PARAMETER_DESCRIPTION => {
                self.backend.requests.looks_at_description()
            }
            _ => false,
        };
        if total <= limits::WHOLE_MESSAGE_BYTES
            || here < limits::ERROR_START_BYTES
            || (looked_at && total <= LOOKED_AT_BYTES_MAX)
        {
            return Ok(true);
        }
        match looked_at {
            true => Err("the server sent a message too long to inspect"),
            false => Ok(false),
        }
    }

    /// Ends the run before `at`, so that something can be inserted there.
    fn cut(&mut self, run: &mut usize, at: usize) {
        if self.client.is_some() {
            self.out.extend_from_slice(&self.bytes[*run..at]);
        }
        *run = at;
    }

    /// Gives the answers of Hawser's that are due now.
    fn give_own_answers(&mut self, run: &mut usize, at: usize) {
        loop {
            let Some(answer) = self.backend.requests.take_own_answer() else {
                if self.backend.requests.take_copy_input() {
                    continue;
                }
                return;
            };
            if let Some(client) = &mut self.client {
                client.confirm(answer.change.as_ref(), &mut self.backend.prepared.unnamed);
            }
            if !answer.bytes.is_empty() {
                self.cut(run, at);
                self.out.extend_from_slice(answer.bytes);
            }
        }
    }

    /// Processes the most frequent messages, which are passed on. Returns whether it was one of
    /// these; [`Self::message`] processes all others, and these in the same way.
    #[inline]
    fn is_usual(&mut self, message: u8, body: &[u8]) -> bool {
        let backend = &mut *self.backend;
        let Some(owed) =
            backend.requests.front().filter(|_| !backend.requests.has_syncs_in_doubt())
        else {
            return false;
        };
        let completes = match (message, owed) {
            (kind::PARSE_COMPLETE, owed) if owed.parses_unnamed() => {
                backend.prepared.replay.forget();
                self.complete_unnamed_parse();
                return true;
            }
            (kind::BIND_COMPLETE, Request::Bind { .. }) => true,
            (kind::ROW_DESCRIPTION, Request::DescribePortal) => {
                self.note_description(owed, message, body);
                true
            }
            (kind::ROW_DESCRIPTION, Request::Query) => false,
            (kind::COMMAND_COMPLETE, Request::Query | Request::Execute)
                if !backend.known.side_effects.has_start_values() && !body.starts_with(b"D") =>
            {
                let completes = owed == Request::Execute;
                self.backend.requests.copy_ended();
                self.backend.counting.take_tag(body);
                completes
            }
            _ => return false,
        };
        self.backend.prepared.replay.forget();
        if completes {
            let query = self.backend.requests.complete();
            self.query_ended(query, false);
        }
        true
    }
}
