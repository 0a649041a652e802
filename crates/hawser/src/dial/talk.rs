//! A connection to a server on which the control side itself uses the protocol: message by message,
//! one question at a time.
//!
//! # Invariants
//! * a message of more than [`MESSAGE_BYTES_MAX`] or an answer of more than [`ANSWER_ROWS_MAX`]
//!   rows ends the conversation: no answer to the control side is that large, except after
//!   [`Talk::expect_much`]
//! * after an error other than the server's own ErrorResponse the connection is of no more use

use std::io;

use hawser_pooler::wire::error::{ClientError, Severity, SqlState, field};
use hawser_pooler::wire::frame::{self, Framed, HEADER_BYTES, take_string, take_u16, take_u32};
use hawser_pooler::wire::startup::Pair;
use hawser_pooler::wire::{TransactionStatus, backend, build};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::socket::stream::Stream;

/// The largest message that a server may send to the control side.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;
/// Rows of an answer.
pub const ANSWER_ROWS_MAX: usize = 10_000;
/// Messages that a server may send before it is ready for the first query.
pub const LOGIN_MESSAGES_MAX: usize = 1_000;
/// The same where much is expected.
const MUCH: (usize, usize) = (17 << 20, 500_000);
const READ_BYTES: usize = 4096;
/// At most this much taken input stays before the rest.
const TAKEN_BYTES_MAX: usize = 64 * 1024;

/// Why a conversation ended, or a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum TalkError {
    /// The connection broke.
    #[error("{0}")]
    Io(io::Error),
    /// The server closed it.
    #[error("server closed the connection unexpectedly")]
    Closed,
    /// The server broke the protocol, in this way.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// The server's ErrorResponse. After one to a query the conversation continues.
    #[error("{} ({})", .0.message, .0.code.as_str())]
    Server(Box<ClientError>),
}

impl TalkError {
    /// Why a server has sent this after ReadyForQuery: it ends the session, or breaks the protocol.
    pub fn of_unasked(bytes: &[u8]) -> Self {
        match frame::header(bytes) {
            Framed::Header(header)
                if header.kind == backend::ERROR && bytes.len() >= header.total() =>
            {
                Self::Server(server_error(&bytes[HEADER_BYTES..header.total()]).into())
            }
            _ => Self::Protocol("messages after ReadyForQuery".to_owned()),
        }
    }
}

impl From<io::Error> for TalkError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Closed } else { Self::Io(error) }
    }
}

/// The server's ErrorResponse, as an error for a client.
pub fn server_error(body: &[u8]) -> ClientError {
    let text = |tag| field(body, tag).map(|text| String::from_utf8_lossy(text).into_owned());
    let code = field(body, b'C').and_then(|code| <[u8; 5]>::try_from(code).ok());
    let severity = match field(body, b'V').or_else(|| field(body, b'S')) {
        Some(b"ERROR") => Severity::Error,
        _ => Severity::Fatal,
    };
    ClientError {
        severity,
        code: code.map_or(SqlState::INTERNAL_ERROR, SqlState),
        message: text(b'M').unwrap_or_else(|| "the server gave no reason".to_owned()),
        detail: text(b'D'),
        hint: text(b'H'),
        of_server: true,
    }
}

/// A value of a row; `None` is NULL.
pub type Value = Option<Box<[u8]>>;

/// The answer to a question.
#[derive(Debug, Default)]
pub struct Answer {
    /// The rows, values as text.
    pub rows: Vec<Vec<Value>>,
    /// Settings that the server reported while it answered.
    pub reported: Vec<Pair>,
}

impl Answer {
    /// The only value of the only row, if there is exactly one and it is not NULL.
    pub fn single(&self) -> Option<&[u8]> {
        match self.rows.as_slice() {
            [row] => row.first()?.as_deref(),
            _ => None,
        }
    }
}

/// The result of a query, once the server is ready for the next.
#[derive(Debug)]
pub struct Ended {
    /// What the server answered, up to an error.
    pub answer: Answer,
    /// The error, if there was one.
    pub error: Option<Box<ClientError>>,
    /// Whether it has left a transaction open.
    pub status: TransactionStatus,
}

impl Ended {
    /// The answer, or the error of a statement.
    ///
    /// # Errors
    /// [`TalkError::Server`]
    pub fn into_answer(self) -> Result<Answer, TalkError> {
        self.error.map_or(Ok(self.answer), |error| Err(TalkError::Server(error)))
    }
}

/// A conversation with a server.
#[derive(Debug)]
pub struct Talk {
    stream: Stream,
    input: Vec<u8>,
    /// How much of it has been taken.
    taken: usize,
    output: Vec<u8>,
    message_bytes_max: usize,
    answer_rows_max: usize,
}

impl Talk {
    /// On a connection on which nothing has been sent yet.
    pub fn new(stream: Stream) -> Self {
        Self {
            stream,
            input: Vec::new(),
            taken: 0,
            output: Vec::new(),
            message_bytes_max: MESSAGE_BYTES_MAX,
            answer_rows_max: ANSWER_ROWS_MAX,
        }
    }

    /// Whether the next answers may be large: the sources of a database's functions are.
    pub fn expect_much(&mut self, much: bool) {
        let usual = (MESSAGE_BYTES_MAX, ANSWER_ROWS_MAX);
        (self.message_bytes_max, self.answer_rows_max) = if much { MUCH } else { usual };
    }

    /// The connection.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The connection back, and what was read from it and not used.
    pub fn into_stream(mut self) -> (Stream, Vec<u8>) {
        self.input.drain(..self.taken);
        (self.stream, self.input)
    }

    /// The output of the next [`Talk::send`].
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Sends what is in [`Talk::out`].
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn send(&mut self) -> Result<(), TalkError> {
        self.stream.write_all(&self.output).await?;
        self.stream.flush().await?;
        self.output.clear();
        Ok(())
    }

    /// The next message: its kind and body.
    ///
    /// # Errors
    /// The connection is broken, or what comes is no message.
    pub async fn receive(&mut self) -> Result<(u8, Vec<u8>), TalkError> {
        loop {
            let input = &self.input[self.taken..];
            match frame::header(input) {
                Framed::BadLength { kind, length } => {
                    return Err(TalkError::Protocol(format!(
                        "message of kind 0x{kind:02x} with length {length}"
                    )));
                }
                Framed::Header(header) if header.body > self.message_bytes_max => {
                    return Err(TalkError::Protocol(format!(
                        "message of kind 0x{:02x} with {} bytes, more than the {} expected",
                        header.kind, header.body, self.message_bytes_max
                    )));
                }
                Framed::Header(header) if input.len() >= header.total() => {
                    let body = input[HEADER_BYTES..header.total()].to_vec();
                    self.taken += header.total();
                    if self.taken == self.input.len()
                        || self.taken > TAKEN_BYTES_MAX.max(self.input.len() / 2)
                    {
                        self.input.drain(..self.taken);
                        self.taken = 0;
                    }
                    return Ok((header.kind, body));
                }
                Framed::Header(_) | Framed::Short => {}
            }
            self.input.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(TalkError::Closed);
            }
        }
    }

    /// Runs a simple query to its end.
    ///
    /// # Errors
    /// [`TalkError::Server`]: the query failed, and the conversation goes on.
    pub async fn query(&mut self, sql: &str) -> Result<Answer, TalkError> {
        self.run(sql).await?.into_answer()
    }

    /// Runs a foreign simple query to its end, whatever state it leaves.
    ///
    /// # Errors
    /// The conversation is over: the connection broke, or the server has ended the session.
    pub async fn run(&mut self, sql: &str) -> Result<Ended, TalkError> {
        build::query(&mut self.output, sql.as_bytes());
        self.send().await?;
        self.end(&[]).await
    }

    /// Runs a query with parameters, as text, to its end.
    ///
    /// # Errors
    /// [`TalkError::Server`]: the query failed, and the conversation goes on.
    pub async fn query_with(&mut self, sql: &str, values: &[&[u8]]) -> Result<Answer, TalkError> {
        let out = &mut self.output;
        let mut text = sql.as_bytes().to_vec();
        text.extend_from_slice(&[0, 0, 0]); // NUL; no parameter types
        build::parse(out, b"", &text);
        build::bind_texts(out, b"", values.iter().map(|value| Some(*value)));
        build::execute(out, b"");
        out.extend_from_slice(&build::SYNC);
        self.send().await?;
        self.end(&build::SYNC).await?.into_answer()
    }

    /// Reads the answer, up to ReadyForQuery. `after_copy` follows the CopyFail that ends a COPY FROM STDIN: a Sync in a
    /// pipeline, whose own Sync that COPY has passed over. After a simple query one would have an answer of its own, and
    /// each later question, a client's too, would get the answer to the one before.
    pub async fn end(&mut self, after_copy: &[u8]) -> Result<Ended, TalkError> {
        let mut answer = Answer::default();
        let mut error = None;
        loop {
            let (kind, body) = self.receive().await?;
            match kind {
                backend::READY_FOR_QUERY => {
                    let status = match *body.as_slice() {
                        [status] => TransactionStatus::from_byte(status),
                        _ => None,
                    };
                    let status = status
                        .ok_or_else(|| TalkError::Protocol("malformed ReadyForQuery".to_owned()))?;
                    return Ok(Ended { answer, error, status });
                }
                backend::ERROR => {
                    let said = server_error(&body);
                    if said.severity == Severity::Fatal {
                        return Err(TalkError::Server(said.into()));
                    }
                    error = Some(said.into());
                }
                backend::DATA_ROW => {
                    if answer.rows.len() >= self.answer_rows_max {
                        return Err(TalkError::Protocol(format!(
                            "more than {} rows",
                            self.answer_rows_max
                        )));
                    }
                    let row = parse_row(&body)
                        .ok_or_else(|| TalkError::Protocol("malformed DataRow".to_owned()))?;
                    answer.rows.push(row);
                }
                backend::PARAMETER_STATUS => answer.reported.push(parse_status(&body)?),
                backend::COPY_IN => {
                    build::copy_fail(&mut self.output, "no COPY is expected here");
                    self.output.extend_from_slice(after_copy);
                    self.send().await?;
                }
                _ => {}
            }
        }
    }

    /// Says goodbye. The connection is closed when `self` is dropped.
    pub async fn terminate(mut self) {
        self.output.extend_from_slice(&build::TERMINATE);
        // The server notices the end of the connection, too.
        let _ = self.send().await;
    }
}

/// Name and value of a ParameterStatus.
///
/// # Errors
/// It is malformed.
pub fn parse_status(body: &[u8]) -> Result<Pair, TalkError> {
    let parsed = take_string(body).and_then(|(name, rest)| {
        let (value, rest) = take_string(rest)?;
        rest.is_empty().then_some((name.into(), value.into()))
    });
    parsed.ok_or_else(|| TalkError::Protocol("malformed ParameterStatus".to_owned()))
}

fn parse_row(body: &[u8]) -> Option<Vec<Value>> {
    let (count, mut rest) = take_u16(body)?;
    let mut row = Vec::with_capacity(usize::from(count).min(body.len() / 4));
    for _ in 0..count {
        let (length, after) = take_u32(rest)?;
        if length == u32::MAX {
            row.push(None);
            rest = after;
        } else {
            let (value, after) = after.split_at_checked(length as usize)?;
            row.push(Some(value.into()));
            rest = after;
        }
    }
    rest.is_empty().then_some(row)
}
