//! Knows every answer: a private server that is sent what the real one is sent.
//!
//! # Model
//! Whatever the client sends goes to a [`ModelBackend`] of its own as well. The client must receive
//! what that backend sends, message by message. It may receive a message earlier than its private
//! server would have flushed it, but nothing else, and nothing in another order.
//!
//! A notification that the private server sends in mid-pipeline (after a COMMIT, while it has
//! nothing more to read) may come as late as that pipeline's end: a server that has received the
//! whole pipeline sends it there, too (`ProcessClientReadInterrupt`, postgres.c).
//!
//! After a cancel request the client cannot know when it takes effect: in the statement that
//! sleeps, or before the whole message was begun, while it waited for a server. The answer tells,
//! and in the second case the private session is played again with that one message refused.
//!
//! # Invariants
//! - every message received equals the next one expected, apart from what [`Comparison`] excuses
//! - a query is cancelled only if this client has asked for it

use std::collections::VecDeque;

use crate::model::backend::ModelBackend;
use crate::model::cluster::{ModelServer, ServerConfig};
use crate::model::error::PgError;
use crate::model::fault::Fault;
use crate::model::wire::{self, Message, Reader};

/// Messages of the past that a [`Mismatch`] shows.
const HISTORY_MESSAGES: usize = 120;

/// Which differences are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// Every byte, apart from BackendKeyData and the process id in notifications.
    Exact,
    /// Also a notification's process id: it must be that of the client's own BackendKeyData.
    ExactWithNotifier,
    /// As a real server and the model may differ: an error's further fields, table numbers in
    /// RowDescription, the server's version.
    RealServer,
}

/// The first message that is not what it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// What was wrong.
    pub what: String,
    /// What was sent and received before, oldest first.
    pub history: Vec<String>,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in &self.history {
            writeln!(f, "  {line}")?;
        }
        write!(f, "{}", self.what)
    }
}

impl std::error::Error for Mismatch {}

/// What the private session has gone through, to play it again.
#[derive(Debug)]
enum Step {
    Message(Message),
    /// The next message is answered by 57014.
    Refused,
    /// The sleep has ended.
    Woken,
    /// The sleep was cancelled.
    Cancelled,
}

/// One session's private server and what it makes the client expect.
#[derive(Debug)]
pub struct Oracle {
    config: ServerConfig,
    server: ModelServer,
    reference: ModelBackend,
    comparison: Comparison,
    steps: Vec<Step>,
    /// The step whose message is being answered by the private server.
    answers: usize,
    /// Each with the step that it answers.
    expected: VecDeque<(usize, Message)>,
    /// Notifications that were expected before what has come, and are due at the pipeline's end.
    late: VecDeque<(usize, Message)>,
    /// Messages received, and the step that the last one answered.
    received: usize,
    answered: Option<usize>,
    /// How many of `expected` will come without the client doing anything more.
    due: usize,
    buffer: Vec<u8>,
    expected_bytes: Vec<u8>,
    cancel_sent: bool,
    key: Option<(i32, Vec<u8>)>,
    farewell: Option<String>,
    history: VecDeque<String>,
}

impl Oracle {
    /// A session on a private cluster that has just been created.
    #[must_use]
    pub fn new(config: ServerConfig, comparison: Comparison) -> Self {
        let server = ModelServer::new(config.clone());
        Self {
            config,
            reference: server.connect(),
            server,
            comparison,
            steps: Vec::new(),
            answers: 0,
            received: 0,
            answered: None,
            expected: VecDeque::new(),
            late: VecDeque::new(),
            due: 0,
            buffer: Vec::new(),
            expected_bytes: Vec::new(),
            cancel_sent: false,
            key: None,
            farewell: None,
            history: VecDeque::new(),
        }
    }

    /// The private server's end, to ask where the session stands.
    #[must_use]
    pub fn reference(&self) -> &ModelBackend {
        &self.reference
    }

    /// The private server.
    #[must_use]
    pub fn server(&self) -> &ModelServer {
        &self.server
    }

    /// Process id and secret as the client was given them.
    #[must_use]
    pub fn key(&self) -> Option<&(i32, Vec<u8>)> {
        self.key.as_ref()
    }

    /// The client sends a message.
    pub fn send(&mut self, message: &Message) {
        self.note(format!("> {}", describe_frontend(message)));
        self.step(Step::Message(message.clone()));
    }

    fn step(&mut self, step: Step) {
        match &step {
            Step::Message(message) => {
                // While a statement sleeps, what comes is its answer, and that of all after it.
                if !self.reference.is_waiting() {
                    self.answers = self.steps.len();
                }
                self.reference.receive(&message.encode());
            }
            Step::Refused => {
                let error = PgError::cancelled();
                self.reference.inject(Fault::ErrorAt { messages: 0, error });
            }
            Step::Woken => {
                if let Some(wakes_at) = self.reference.wakes_at() {
                    self.server.advance_to(wakes_at);
                }
                self.reference.run();
            }
            Step::Cancelled => {
                if let Some(process) = self.reference.process() {
                    self.server.cancel_process(process);
                }
                self.reference.run();
            }
        }
        self.steps.push(step);
        self.collect();
    }

    /// Plays the session again, with one message refused before it is begun.
    fn refuse(&mut self, refused: usize) {
        let steps = std::mem::take(&mut self.steps);
        self.server = ModelServer::new(self.config.clone());
        self.reference = self.server.connect();
        self.due = 0;
        self.expected.clear();
        self.expected_bytes.clear();
        for (index, step) in steps.into_iter().enumerate() {
            if index == refused {
                self.step(Step::Refused);
            }
            self.step(step);
        }
        let passed = self.received + self.late.len();
        self.expected.drain(..passed.min(self.expected.len()));
        self.due = self.due.saturating_sub(passed);
    }

    /// The client asks for its query to be cancelled.
    pub fn send_cancel(&mut self) {
        self.note("> (cancel request)".to_owned());
        self.cancel_sent = true;
    }

    fn note(&mut self, line: String) {
        if self.history.len() == HISTORY_MESSAGES {
            self.history.pop_front();
        }
        self.history.push_back(line);
    }

    fn collect(&mut self) {
        loop {
            let taken = self.reference.take_output();
            if taken.is_empty() {
                break;
            }
            self.expected_bytes.extend(taken);
        }
        self.expected_bytes.extend(self.reference.take_unflushed());
        self.cut_expected();
        self.due = self.expected.len().saturating_sub(self.reference.unasked_messages());
    }

    fn cut_expected(&mut self) {
        while let Some(message) =
            wire::cut(&mut self.expected_bytes, true).expect("the model's own messages are whole")
        {
            self.expected.push_back((self.answers, message));
        }
    }

    /// The message by which the other end has said that it ends the session, unexpectedly: what
    /// comes after it is not judged any more.
    #[must_use]
    pub fn farewell(&self) -> Option<&str> {
        self.farewell.as_deref()
    }

    /// Nothing more will come before the client sends something.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.due == 0 && !self.reference.is_waiting()
    }

    /// Nothing at all is expected any more.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.expected.is_empty() && self.late.is_empty() && self.buffer.is_empty()
    }

    /// What the next message should be, for reports on clients that hang.
    #[must_use]
    pub fn waits_for(&self) -> String {
        let next = self.late.front().or(self.expected.front());
        next.map_or_else(|| "nothing".to_owned(), |(_, next)| describe_backend(next))
    }

    /// What was sent and received last, oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<String> {
        self.history.iter().cloned().collect()
    }

    /// The client receives bytes.
    ///
    /// # Errors
    /// [`Mismatch`] for the first message that is not the next one expected.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Mismatch> {
        self.buffer.extend_from_slice(bytes);
        while self.farewell.is_none() {
            let message = match wire::cut(&mut self.buffer, true) {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.mismatch(format!("not a message: {error:?}"))),
            };
            if is_fatal(&message) || warns_of_crash(&message) {
                self.note(format!("< {}", describe_backend(&message)));
                // After the warning the connection ends, but a pooler's need not.
                if is_fatal(&message) {
                    self.farewell = Some(describe_backend(&message));
                }
                continue;
            }
            self.put_off_notifications(&message);
            self.decide(&message);
            self.note(format!("< {}", describe_backend(&message)));
            let Some((step, expected)) = self.next_expected(&message) else {
                let what = format!("unexpected: {}", describe_backend(&message));
                return Err(self.mismatch(what));
            };
            self.received += 1;
            self.answered = Some(step);
            if !self.equal(&expected, &message) {
                let what = format!(
                    "expected: {}\nreceived: {}",
                    describe_backend(&expected),
                    describe_backend(&message)
                );
                return Err(self.mismatch(what));
            }
            if message.tag == b'K' {
                let mut reader = Reader::new(&message.body);
                self.key = reader.int32().ok().map(|process| (process, reader.rest().to_vec()));
            }
        }
        Ok(())
    }

    /// Notifications may come with the end of their pipeline: before what the server reports there,
    /// and before ReadyForQuery.
    fn put_off_notifications(&mut self, received: &Message) {
        if matches!(received.tag, b'A' | b'S' | b'Z') {
            return;
        }
        while let Some(late) = self.expected.pop_front_if(|(_, next)| next.tag == b'A') {
            self.due = self.due.saturating_sub(1);
            self.late.push_back(late);
        }
    }

    fn next_expected(&mut self, received: &Message) -> Option<(usize, Message)> {
        if matches!(received.tag, b'A' | b'S' | b'Z')
            && let Some(late) = self.late.pop_front()
        {
            return Some(late);
        }
        self.due = self.due.saturating_sub(1);
        self.expected.pop_front()
    }

    /// Lets the private server go on in the way that the message just received tells.
    fn decide(&mut self, message: &Message) {
        let cancelled =
            self.cancel_sent && message.tag == b'E' && error_field(message, b'C') == "57014";
        let sleeps = self.expected.is_empty() && self.reference.is_waiting();
        if cancelled {
            let next = self.expected.front();
            let begun = next.map_or(self.answers, |(step, _)| *step);
            let foreseen = next.is_some_and(|(_, next)| error_field(next, b'C') == "57014");
            if foreseen {
                return;
            }
            self.cancel_sent = false;
            if self.answered == Some(begun) {
                if sleeps {
                    self.step(Step::Cancelled);
                }
            } else {
                self.refuse(begun);
            }
        } else if sleeps {
            self.step(Step::Woken);
        }
    }

    fn mismatch(&self, what: String) -> Mismatch {
        Mismatch { what, history: self.history() }
    }

    fn equal(&self, expected: &Message, received: &Message) -> bool {
        if expected.tag != received.tag {
            return false;
        }
        match (expected.tag, self.comparison) {
            (b'K', _) => true,
            (b'A', Comparison::Exact) => expected.body[4..] == received.body[4..],
            (b'A', _) => {
                let own = self.key.as_ref().map(|(process, _)| *process);
                expected.body[4..] == received.body[4..]
                    && Reader::new(&received.body).int32().ok() == own
            }
            (b'E' | b'N', Comparison::RealServer) => b"VCM"
                .iter()
                .all(|field| error_field(expected, *field) == error_field(received, *field)),
            (b'E' | b'N', _) => {
                without_location(&expected.body).eq(without_location(&received.body))
            }
            (b'T', Comparison::RealServer) => columns(expected) == columns(received),
            (b'S', Comparison::RealServer) if expected.body.starts_with(b"server_version\0") => {
                received.body.starts_with(b"server_version\0")
            }
            _ => expected.body == received.body,
        }
    }
}

/// The session ends, for whatever reason. A private server never does that by itself.
fn is_fatal(message: &Message) -> bool {
    message.tag == b'E' && error_field(message, b'V') == "FATAL"
}

/// The warning of a server that resets itself because a process has died.
fn warns_of_crash(message: &Message) -> bool {
    message.tag == b'N' && error_field(message, b'C') == "57P02"
}

/// The fields of an ErrorResponse or NoticeResponse, but for file, line and routine: where Hawser answers in the
/// server's place, these are its own.
fn without_location(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let of_code = |part: &&[u8]| matches!(part.first(), Some(b'F' | b'L' | b'R'));
    body.split(|&byte| byte == 0).filter(move |part| !of_code(part))
}

/// A field of an ErrorResponse or NoticeResponse, "" where it has none.
#[must_use]
pub fn error_field(message: &Message, field: u8) -> String {
    let found = message
        .body
        .split(|&byte| byte == 0)
        .find(|part| part.first() == Some(&field))
        .map(|part| String::from_utf8_lossy(&part[1..]).into_owned());
    found.unwrap_or_default()
}

/// Name, type, length and format of each column; not the table that it comes from.
fn columns(message: &Message) -> Option<Vec<(String, i32, i16, i16)>> {
    let mut reader = Reader::new(&message.body);
    (0..reader.int16().ok()?)
        .map(|_| {
            let name = reader.text().ok()?;
            reader.bytes(6).ok()?;
            let (kind, length) = (reader.int32().ok()?, reader.int16().ok()?);
            reader.int32().ok()?;
            Some((name, kind, length, reader.int16().ok()?))
        })
        .collect()
}

fn printable(bytes: &[u8]) -> String {
    let shown: String = bytes
        .iter()
        .take(160)
        .map(|&byte| if (32..127).contains(&byte) { char::from(byte) } else { '·' })
        .collect();
    if bytes.len() > 160 { format!("{shown}... ({} bytes)", bytes.len()) } else { shown }
}

/// A client's message in one line.
#[must_use]
pub fn describe_frontend(message: &Message) -> String {
    let name = match message.tag {
        0 => "Startup",
        b'Q' => "Query",
        b'P' => "Parse",
        b'B' => "Bind",
        b'D' => "Describe",
        b'E' => "Execute",
        b'C' => "Close",
        b'S' => "Sync",
        b'H' => "Flush",
        b'X' => "Terminate",
        b'F' => "FunctionCall",
        b'd' => "CopyData",
        b'c' => "CopyDone",
        b'f' => "CopyFail",
        _ => "?",
    };
    format!("{name} {}", printable(&message.body))
}

/// A server's message in one line.
#[must_use]
pub fn describe_backend(message: &Message) -> String {
    let name = match message.tag {
        b'R' => "Authentication",
        b'S' => "ParameterStatus",
        b'K' => "BackendKeyData",
        b'Z' => "ReadyForQuery",
        b'T' => "RowDescription",
        b'D' => "DataRow",
        b'C' => "CommandComplete",
        b'E' => "ErrorResponse",
        b'N' => "NoticeResponse",
        b'A' => "NotificationResponse",
        b'1' => "ParseComplete",
        b'2' => "BindComplete",
        b'3' => "CloseComplete",
        b'n' => "NoData",
        b's' => "PortalSuspended",
        b't' => "ParameterDescription",
        b'I' => "EmptyQueryResponse",
        b'G' => "CopyInResponse",
        b'H' => "CopyOutResponse",
        b'd' => "CopyData",
        b'c' => "CopyDone",
        b'V' => "FunctionCallResponse",
        b'v' => "NegotiateProtocolVersion",
        _ => "?",
    };
    format!("{name} {}", printable(&message.body))
}
