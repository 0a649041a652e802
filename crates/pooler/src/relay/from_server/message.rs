//! One message of the server: the entry that it answers, and what becomes of it.

use crate::parts::listen::Notification;
use crate::parts::statements::description::{Shape, hash_of_parameters, hash_of_rows};
use crate::relay::from_server::{Fate, Relay, Relayed};
use crate::relay::request_queue::{Change, Request};
use crate::relay::socket::Socket;
use crate::session::part::Part;
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::{TransactionStatus, backend as kind};

const OUT_OF_TURN: &str = "the server sent an answer out of turn";

/// What a message of the server is to the entry that it answers.
enum Answers {
    /// It is part of the answer, which goes on.
    Part(Fate),
    /// It ends the answer.
    End(Fate),
}

impl<S: Socket> Relay<'_, S> {
    #[inline] // once for each message of the server
    pub(super) fn message(
        &mut self,
        message: u8,
        body: &[u8],
        run: &mut usize,
        at: usize,
        now: Time,
        relayed: &mut Relayed,
    ) -> Result<Fate, &'static str> {
        if matches!(message, kind::PARAMETER_STATUS | kind::NOTICE | kind::NOTIFICATION) {
            self.give_own_answers(run, at);
            return self.at_any_time(message, body, run, at, now, relayed);
        }
        let front = self.backend.requests.front();
        if front.is_some_and(|e| e.is_answered_here() || matches!(e, Request::CopyInput { .. })) {
            self.give_own_answers(run, at);
        }
        let Some(owed) = self.backend.requests.front() else {
            return self.out_of_the_blue(message, body);
        };
        if message == kind::ERROR {
            if is_fatal(body) {
                // Whatever it answers, it is the last message that the client gets.
                self.backend.from_server.goes();
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
        let answers = self.answers(owed, message, body, relayed)?;
        if message == kind::COMMAND_COMPLETE {
            self.completed(owed, body);
        }
        if !owed.is_injected() {
            self.backend.prepared.replay.forget();
        }
        if let Request::DescribeStatement { .. } | Request::DescribePortal = owed {
            self.note_description(owed, message, body);
        }
        match answers {
            Answers::Part(fate) => Ok(fate),
            Answers::End(fate) => {
                self.ended(owed);
                Ok(fate)
            }
        }
    }

    /// Messages that may come at any time, and answer nothing.
    fn at_any_time(
        &mut self,
        message: u8,
        body: &[u8],
        run: &mut usize,
        at: usize,
        now: Time,
        relayed: &mut Relayed,
    ) -> Result<Fate, &'static str> {
        if message == kind::PARAMETER_STATUS {
            let fate = self.parameter(body, relayed)?;
            return Ok(self.place_report(fate, at, body, run, relayed));
        }
        if message == kind::NOTICE {
            if let Some(Request::Parse { statement, .. }) = self.backend.requests.front() {
                self.backend.prepared.statements.note(statement);
            }
            let ours = self.backend.requests.front().is_some_and(Request::is_injected);
            return Ok(if ours { Fate::Skip } else { Fate::Pass });
        }
        Ok(self.notification(body, now, relayed))
    }

    /// A notification on the client's own server connection.
    fn notification(&mut self, body: &[u8], now: Time, relayed: &Relayed) -> Fate {
        let process = self.backend.process();
        let Some(client) = &mut self.client else { return Fate::Skip };
        let named = || {
            let notification = Notification::read(body)?;
            Some(notification.named(self.backend.pool.notifiers(), None, now))
        };
        if !client.is_session_mode()
            && (client.takes_notification(named, process)
                || !client.session.pins.contains(Part::Listen))
        {
            return Fate::Skip;
        }
        // Each client knows itself by the process id that it was given: in session mode the
        // server's.
        let is_session_mode = client.is_session_mode();
        let message = match named().filter(|_| relayed.whole) {
            Some(own) if own.process == process && !is_session_mode => {
                own.message_from(self.own_process)
            }
            Some(anothers) => anothers.message,
            None => return Fate::Pass,
        };
        if client.keeps_native_notification(self.backend.requests.is_empty(), &message) {
            return Fate::Skip;
        }
        Fate::Replace(message.as_ref().into())
    }

    /// A message while nothing is outstanding.
    fn out_of_the_blue(&mut self, message: u8, body: &[u8]) -> Result<Fate, &'static str> {
        if message == kind::ERROR && is_fatal(body) {
            self.backend.from_server.goes(); // the connection ends
            return Ok(Fate::Pass);
        }
        if message == kind::READY_FOR_QUERY && self.backend.requests.take_ready_in_doubt() {
            if let [status] = body
                && let Some(status) = TransactionStatus::from_byte(*status)
            {
                self.backend.from_server.is_ready(status);
            }
            return Ok(Fate::Pass);
        }
        Err(OUT_OF_TURN)
    }

    /// What a message is to the first entry.
    #[inline]
    fn answers(
        &mut self,
        owed: Request,
        message: u8,
        body: &[u8],
        relayed: &mut Relayed,
    ) -> Result<Answers, &'static str> {
        if owed.is_injected() {
            return self.answers_ours(owed, message, body, relayed);
        }
        Ok(match (owed, message) {
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
            ) => Answers::End(Fate::Pass),
            (Request::Statements(_), kind::COMMAND_COMPLETE) => {
                match self.backend.requests.complete_statement() {
                    true => Answers::End(Fate::Pass),
                    false => Answers::Part(Fate::Pass),
                }
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
            | (Request::Call, kind::FUNCTION_RESULT) => Answers::Part(Fate::Pass),
            (Request::Query | Request::Execute | Request::Statements(_), kind::COPY_IN) => {
                self.backend.requests.copy_begins();
                Answers::Part(Fate::Pass)
            }
            _ => return Err(OUT_OF_TURN),
        })
    }

    /// The same for a message of Hawser's: its answer goes to no client.
    fn answers_ours(
        &mut self,
        owed: Request,
        message: u8,
        body: &[u8],
        relayed: &mut Relayed,
    ) -> Result<Answers, &'static str> {
        Ok(match (owed, message) {
            (Request::InjectedQuery, kind::COMMAND_COMPLETE) => {
                if body == b"BEGIN\0" {
                    self.backend.session.block_begun();
                }
                Answers::Part(Fate::Skip)
            }
            (Request::InjectedRollback | Request::InjectedLift, kind::COMMAND_COMPLETE)
            | (
                Request::InjectedQuery,
                kind::PARSE_COMPLETE
                | kind::BIND_COMPLETE
                | kind::ROW_DESCRIPTION
                | kind::EMPTY_QUERY,
            )
            | (Request::InjectedQuestion, kind::COMMAND_COMPLETE | kind::ROW_DESCRIPTION)
            | (
                Request::InjectedPrepare,
                kind::COMMAND_COMPLETE | kind::PARSE_COMPLETE | kind::ROW_DESCRIPTION,
            )
            | (Request::SendIdentity, kind::FUNCTION_RESULT)
            | (Request::InjectedStatement, kind::ROW_DESCRIPTION) => Answers::Part(Fate::Skip),
            (Request::HandOver, kind::FUNCTION_RESULT) => {
                self.backend.hand_over_answered();
                Answers::Part(Fate::Skip)
            }
            (Request::InjectedStatement, kind::COMMAND_COMPLETE)
            | (Request::InjectedParse { .. }, kind::PARSE_COMPLETE)
            | (
                Request::Injected,
                kind::BIND_COMPLETE | kind::COMMAND_COMPLETE | kind::CLOSE_COMPLETE,
            )
            | (Request::InjectedSettings { .. }, kind::BIND_COMPLETE | kind::COMMAND_COMPLETE) => {
                Answers::End(Fate::Skip)
            }
            (Request::InjectedDescribe { statement }, kind::PARAMETER_DESCRIPTION) => {
                self.described(statement, Shape { parameters: hash_of_parameters(body), rows: 0 });
                Answers::Part(Fate::Skip)
            }
            (Request::InjectedDescribe { statement }, kind::ROW_DESCRIPTION | kind::NO_DATA) => {
                let rows = hash_of_rows((message == kind::ROW_DESCRIPTION).then_some(body));
                self.described(statement, Shape { parameters: 0, rows });
                relayed.goodbye = self.compare_unnamed(statement);
                Answers::End(Fate::Skip)
            }
            _ => return Err(OUT_OF_TURN),
        })
    }

    /// A command has been completed, as this tag says.
    fn completed(&mut self, owed: Request, tag: &[u8]) {
        self.backend.requests.copy_ended();
        if !owed.is_injected() {
            self.backend.counting.take_tag(tag);
        }
        if self.backend.known.side_effects.has_start_values() && changes_start_values(tag) {
            self.backend.known.side_effects.start_values_changed();
        }
        if !owed.is_injected() && (tag == b"DISCARD ALL\0" || tag == b"DEALLOCATE ALL\0") {
            self.forgotten_for_good(tag);
        }
    }

    /// The first entry is completely answered.
    fn ended(&mut self, owed: Request) {
        if let Some(client) = &mut self.client {
            client
                .confirm(self.backend.requests.front_change(), &mut self.backend.prepared.unnamed);
        }
        let query = self.backend.requests.complete();
        self.query_ended(query, false);
        if let Request::Parse { statement, .. } | Request::InjectedParse { statement } = owed {
            self.backend.prepared.statements.prove(statement);
        }
    }

    /// The client gets the description of a statement's parameters or rows.
    pub(crate) fn note_description(&mut self, owed: Request, message: u8, body: &[u8]) {
        let backend = &mut *self.backend;
        let Some(Change::Describes(seen)) = backend.requests.front_change() else { return };
        let rows = || hash_of_rows((message == kind::ROW_DESCRIPTION).then_some(body));
        let Request::DescribeStatement { statement } = owed else {
            return backend.prepared.note_rows(seen, rows());
        };
        let statements = &mut backend.prepared.statements;
        if message == kind::PARAMETER_DESCRIPTION {
            let parameters = hash_of_parameters(body);
            statements.described(statement, Shape { parameters, rows: 0 });
            seen.parameters(body);
        } else {
            let rows = rows();
            statements.described(statement, Shape { parameters: 0, rows });
            seen.rows(rows);
        }
    }

    /// The server describes a statement that was prepared so that Hawser sees its description.
    fn described(&mut self, statement: u64, shape: Shape) {
        self.backend.prepared.replay.now(shape);
        if statement != 0 {
            self.backend.prepared.statements.described(statement, shape);
        } else if let Some(Change::Compares(comparing)) = self.backend.requests.front_change_mut() {
            let Shape { parameters, rows } = &mut comparing.shape;
            (*parameters, *rows) = (*parameters | shape.parameters, *rows | shape.rows);
        }
    }

    /// The client's unnamed statement has been prepared again, and described. If it differs, and
    /// the client's message has not waited for that, its rows must not reach the client.
    fn compare_unnamed(&mut self, statement: u64) -> Option<Box<ClientError>> {
        if statement != 0 {
            return None;
        }
        let Some(Change::Compares(comparing)) = self.backend.requests.front_change() else {
            return None;
        };
        let (fits, waits) = (comparing.shape.fits(comparing.seen.described()), comparing.waits);
        if fits || self.client.is_none() {
            return None;
        }
        self.backend.prepared.unnamed.note_change(waits);
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
