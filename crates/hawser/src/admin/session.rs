//! One operator's connection: the PostgreSQL protocol over the console's commands.
//!
//! # Model
//! PgBouncer's console speaks the simple protocol only. Drivers that know nothing else than the
//! extended one (asyncpg, pgjdbc, Go's sql package) work here too: Parse reads the command,
//! Describe gives its columns, Execute runs it. Transactions are accepted and mean nothing.
//!
//! # Invariants
//! * after an error in the extended protocol everything up to the next Sync is ignored
//! * a command that waits (PAUSE, WAIT_CLOSE) ends when its operator leaves
//! * what one operator makes us hold is bounded: a message, its statements and portals
//!
//! # Limits      no parameters in statements; a row limit of Execute is ignored, as results are small

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hawser_pooler::wire::error::{ClientError, SqlState};
use hawser_pooler::wire::frame::{self, Framed};
use hawser_pooler::wire::{TransactionStatus, backend, build, frontend};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::Console;
use super::command::{self, Command, CommandError, Topic, Transaction};
use super::execute::execute;
use super::operators::{Listing, Operator};
use super::pooler::Pooler;
use super::show::dialect::{Dialect, release};
use super::show::{self, Show};
use super::switchover::switchover;
use super::table::{Column, Format, Table, columns, data_row, row_description};
use crate::config::CONSOLE;
use crate::login::admin::AdminRole;

/// The largest message that an operator may send.
const MESSAGE_BYTES_MAX: usize = 2 * command::TEXT_BYTES_MAX;
/// Statements and portals that one operator may name.
const NAMES_MAX: usize = 1_000;
/// How long the error that ends a session waits.
const LAST_WORDS_AFTER: Duration = Duration::from_millis(30);
/// What is collected before it is written.
const OUTPUT_BYTES: usize = 64 * 1024;

/// What SHOW HELP says; the first part is PgBouncer's.
const USAGE: &str = "\n\tSHOW HELP|CONFIG|DATABASES|POOLS|CLIENTS|SERVERS|USERS|VERSION\n\
    \tSHOW PEERS|PEER_POOLS\n\
    \tSHOW FDS|SOCKETS|ACTIVE_SOCKETS|LISTS|MEM|STATE\n\
    \tSHOW DNS_HOSTS|DNS_ZONES\n\
    \tSHOW STATS|STATS_TOTALS|STATS_AVERAGES|TOTALS\n\
    \tSHOW PINS|HOSTS|LIMITS|RULES\n\
    \tSHOW QUERIES [ORDER BY time|calls|errors|rows|bytes|wait|mean|p99|last_seen]\n\
    \tSHOW ... EXTENDED\n\
    \tSET key = arg\n\
    \tRELOAD\n\
    \tRULE ADD <name> <what>|DROP <name>|SHOW\n\
    \tPAUSE [<db>]\n\
    \tRESUME [<db>]\n\
    \tSWITCHOVER <db>\n\
    \tDISABLE <db>\n\
    \tENABLE <db>\n\
    \tRECONNECT [<db>]\n\
    \tKILL [<db>]\n\
    \tKILL_CLIENT <client_id>\n\
    \tCLOSE IDLE [<db>]\n\
    \tSHUTDOWN\n\
    \tSHUTDOWN WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS\n\
    \tWAIT_CLOSE [<db>]";

/// One of several statements that Parse has named; `None` is the empty one.
type Parsed = Option<Command>;

struct Portal {
    parsed: Parsed,
    formats: Vec<Format>,
}

/// Serves one operator until he leaves. Nothing may have been sent to him after AuthenticationOk.
///
/// # Errors
/// The connection broke.
pub async fn serve<S>(
    stream: S,
    operator: Operator,
    console: &Console,
    pooler: Arc<dyn Pooler>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut session = Session {
        stream,
        role: operator.role,
        as_pgbouncer: operator.database == CONSOLE,
        listing: console.operators.enter(operator),
        console,
        pooler,
        input: Vec::new(),
        output: Vec::new(),
        status: TransactionStatus::Idle,
        ignoring: false,
        statements: HashMap::new(),
        portals: HashMap::new(),
    };
    session.greet();
    session.run().await
}

struct Session<'a, S> {
    stream: S,
    role: AdminRole,
    /// Whether it is the console of PgBouncer, with nothing of ours.
    as_pgbouncer: bool,
    listing: Listing<'a>,
    console: &'a Console,
    pooler: Arc<dyn Pooler>,
    input: Vec<u8>,
    output: Vec<u8>,
    status: TransactionStatus,
    /// An error in the extended protocol: nothing counts until Sync.
    ignoring: bool,
    statements: HashMap<Vec<u8>, Parsed>,
    portals: HashMap<Vec<u8>, Portal>,
}

/// Whether the conversation goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Message,
    End,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<'_, S> {
    /// What SHOW shows here.
    fn dialect(&self) -> Dialect {
        if self.as_pgbouncer {
            Dialect::PgBouncer(self.pooler.config().reload.console.console_version)
        } else {
            Dialect::Hawser
        }
    }

    /// The version of a server that speaks like this: PgBouncer's own form of it.
    fn server_version(&self) -> String {
        match self.dialect() {
            Dialect::Hawser => concat!(env!("CARGO_PKG_VERSION"), "/hawser").to_owned(),
            Dialect::PgBouncer(version) => format!("{}/bouncer", release(version)),
        }
    }

    fn greet(&mut self) {
        let version = self.server_version();
        for (name, value) in [
            ("server_version", version.as_str()),
            ("client_encoding", "UTF8"),
            ("server_encoding", "UTF8"),
            ("DateStyle", "ISO"),
            ("IntervalStyle", "postgres"),
            ("TimeZone", "GMT"),
            ("integer_datetimes", "on"),
            ("standard_conforming_strings", "on"),
            ("is_superuser", "on"),
        ] {
            build::parameter_status(&mut self.output, name.as_bytes(), value.as_bytes());
        }
        // Nothing here can be cancelled: a command that waits ends when its connection does.
        build::backend_key_data(&mut self.output, std::process::id(), &[0; 4]);
        build::ready_for_query(&mut self.output, self.status);
    }

    async fn run(&mut self) -> io::Result<()> {
        loop {
            self.flush().await?;
            let next = match self.message().await? {
                Some((kind, body)) => self.handle(kind, &body).await?,
                None => Next::End,
            };
            if next == Next::End {
                self.flush().await?;
                return self.stream.shutdown().await;
            }
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            let output = std::mem::take(&mut self.output);
            self.stream.write_all(&output).await?;
            self.stream.flush().await?;
        }
        Ok(())
    }

    /// The next message; `None` at the end of the stream.
    async fn message(&mut self) -> io::Result<Option<(u8, Vec<u8>)>> {
        loop {
            match frame::header(&self.input) {
                Framed::Header(header) if header.body <= MESSAGE_BYTES_MAX => {
                    if self.input.len() >= header.total() {
                        let body = self.input[frame::HEADER_BYTES..header.total()].to_vec();
                        self.input.drain(..header.total());
                        return Ok(Some((header.kind, body)));
                    }
                }
                Framed::Short => {}
                Framed::Header(_) | Framed::BadLength { .. } => {
                    self.last_words("invalid message length").await?;
                    return Ok(None);
                }
            }
            if self.read_more().await? == 0 {
                return Ok(None);
            }
        }
    }

    async fn read_more(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 8 * 1024];
        let count = self.stream.read(&mut buffer).await?;
        self.input.extend_from_slice(&buffer[..count]);
        Ok(count)
    }

    /// The operator has broken the protocol: says so, some time after what came before, because
    /// libpq drops an error that it reads together with a ReadyForQuery.
    async fn last_words(&mut self, message: impl Into<String>) -> io::Result<()> {
        self.flush().await?;
        tokio::time::sleep(LAST_WORDS_AFTER).await;
        ClientError::fatal(SqlState::PROTOCOL_VIOLATION, message).write(&mut self.output);
        self.flush().await
    }

    async fn handle(&mut self, kind: u8, body: &[u8]) -> io::Result<Next> {
        match kind {
            frontend::TERMINATE => return Ok(Next::End),
            frontend::SYNC => {
                self.ignoring = false;
                self.portals.clear();
                build::ready_for_query(&mut self.output, self.status);
                return Ok(Next::Message);
            }
            _ if self.ignoring => return Ok(Next::Message),
            frontend::QUERY => {
                let text = text_of(body);
                if let Err(error) = self.simple(&text).await? {
                    self.failed(&error);
                }
                build::ready_for_query(&mut self.output, self.status);
                return Ok(Next::Message);
            }
            frontend::FLUSH => return Ok(Next::Message),
            _ => {}
        }
        let result = match kind {
            frontend::PARSE => self.parse(body),
            frontend::BIND => self.bind(body),
            frontend::DESCRIBE => self.describe(body),
            frontend::EXECUTE => self.execute(body).await?,
            frontend::CLOSE => self.close(body),
            _ => {
                self.last_words(format!("invalid frontend message type {kind}")).await?;
                return Ok(Next::End);
            }
        };
        if let Err(error) = result {
            self.failed(&error);
            self.ignoring = true;
        }
        Ok(Next::Message)
    }

    fn failed(&mut self, error: &ClientError) {
        if self.status == TransactionStatus::InTransaction {
            self.status = TransactionStatus::Failed;
        }
        error.write(&mut self.output);
    }

    async fn simple(&mut self, text: &str) -> io::Result<Result<(), ClientError>> {
        let commands = match command::parse(text) {
            Ok(commands) => commands,
            Err(error) => return Ok(Err(syntax_error(&error))),
        };
        if commands.is_empty() {
            build::message(&mut self.output, backend::EMPTY_QUERY, |_| {});
        }
        for command in commands {
            if let Err(error) = self.command(&command, &[], true).await? {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    /// Runs a command and writes its result; `describe`: with its RowDescription.
    async fn command(
        &mut self,
        command: &Command,
        formats: &[Format],
        describe: bool,
    ) -> io::Result<Result<(), ClientError>> {
        self.listing.query();
        if let Err(error) = self.allowed(command) {
            return Ok(Err(error));
        }
        let tag = match command {
            Command::Show(Topic::Help) | Command::ShowExtended(Topic::Help) => {
                self.notice("Console usage", Some(USAGE));
                "SHOW".to_owned()
            }
            Command::Show(topic) | Command::ShowExtended(topic) => {
                let (pooler, dialect) = (self.pooler.clone(), self.dialect_of(command));
                if describe {
                    let columns = show::columns(*topic, dialect);
                    row_description(&mut self.output, &columns, formats);
                }
                let mut show = Show::new(pooler.as_ref(), self.console, *topic, dialect);
                loop {
                    match show.next().await {
                        Ok(Some(table)) => self.rows(&table, formats).await?,
                        Ok(None) => break,
                        Err(error) => return Ok(Err(error)),
                    }
                }
                "SHOW".to_owned()
            }
            Command::ShowSession(name, value) => {
                let version = self.server_version();
                let value = if *name == "server_version" { version.as_str() } else { *value };
                self.session_setting(name, value, formats, describe);
                "SHOW".to_owned()
            }
            Command::SetSession => {
                self.notice("SET ignored", None);
                "SET".to_owned()
            }
            Command::Clean(tag) => (*tag).to_owned(),
            Command::Transaction(transaction) => self.transaction(*transaction),
            command => {
                let pooler = self.pooler.clone();
                let running = async {
                    match command {
                        Command::Switchover(database) => switchover(&pooler, database).await,
                        command => execute(pooler.as_ref(), command).await,
                    }
                };
                tokio::pin!(running);
                // What the operator sends meanwhile stays for later; if he leaves, it ends.
                let result = loop {
                    let mut buffer = [0; 1024];
                    tokio::select! {
                        biased;
                        result = &mut running => break result,
                        read = self.stream.read(&mut buffer), if self.input.len() < MESSAGE_BYTES_MAX => {
                            match read? {
                                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                                count => self.input.extend_from_slice(&buffer[..count]),
                            }
                        }
                    }
                };
                match result {
                    Ok(tag) => tag,
                    Err(error) => return Ok(Err(error)),
                }
            }
        };
        build::command_complete(&mut self.output, tag.as_bytes());
        Ok(Ok(()))
    }

    fn dialect_of(&self, command: &Command) -> Dialect {
        if matches!(command, Command::ShowExtended(_)) { Dialect::Hawser } else { self.dialect() }
    }

    fn allowed(&self, command: &Command) -> Result<(), ClientError> {
        if self.status == TransactionStatus::Failed && !matches!(command, Command::Transaction(_)) {
            return Err(ClientError::error(
                SqlState::IN_FAILED_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            ));
        }
        let harmless = match command {
            // Whose connections there are is for administrators, as in PgBouncer.
            Command::Show(topic) | Command::ShowExtended(topic) => *topic != Topic::Fds,
            Command::ShowSession(..)
            | Command::SetSession
            | Command::Transaction(_)
            | Command::Clean(_) => true,
            _ => false,
        };
        if harmless || self.role == AdminRole::Admin {
            return Ok(());
        }
        Err(ClientError::error(SqlState::INSUFFICIENT_PRIVILEGE, "admin access needed")
            .hint("This needs a user of admin_users; stats_users may only SHOW."))
    }

    fn transaction(&mut self, transaction: Transaction) -> String {
        let (status, tag) = match (transaction, self.status) {
            (Transaction::Begin, _) => (TransactionStatus::InTransaction, "BEGIN"),
            (Transaction::Commit, TransactionStatus::Failed) | (Transaction::Rollback, _) => {
                (TransactionStatus::Idle, "ROLLBACK")
            }
            (Transaction::Commit, _) => (TransactionStatus::Idle, "COMMIT"),
        };
        self.status = status;
        tag.to_owned()
    }

    fn notice(&mut self, message: &str, detail: Option<&str>) {
        let detail = detail.map(str::to_owned);
        ClientError { detail, ..ClientError::notice(message) }.write(&mut self.output);
    }

    async fn rows(&mut self, table: &Table, formats: &[Format]) -> io::Result<()> {
        for row in &table.rows {
            data_row(&mut self.output, &table.columns, row, formats);
            if self.output.len() >= OUTPUT_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    fn session_setting(
        &mut self,
        name: &'static str,
        value: &str,
        formats: &[Format],
        describe: bool,
    ) {
        let columns = session_columns(name);
        if describe {
            row_description(&mut self.output, &columns, formats);
        }
        data_row(&mut self.output, &columns, &[value.into()], formats);
    }

    fn parse(&mut self, body: &[u8]) -> Result<(), ClientError> {
        let (name, rest) = frame::take_string(body).ok_or_else(malformed)?;
        let (text, rest) = frame::take_string(rest).ok_or_else(malformed)?;
        frame::take_u16(rest).ok_or_else(malformed)?;
        let text = String::from_utf8_lossy(text);
        let mut commands = command::parse(&text).map_err(|error| syntax_error(&error))?;
        if commands.len() > 1 {
            return Err(ClientError::error(
                SqlState::SYNTAX_ERROR,
                "cannot insert multiple commands into a prepared statement",
            ));
        }
        if !name.is_empty() && self.statements.contains_key(name) {
            return Err(ClientError::error(
                SqlState::DUPLICATE_PREPARED_STATEMENT,
                format!("prepared statement \"{}\" already exists", String::from_utf8_lossy(name)),
            ));
        }
        if self.statements.len() >= NAMES_MAX {
            return Err(ClientError::error(
                SqlState::CONFIGURATION_LIMIT_EXCEEDED,
                format!("the console keeps no more than {NAMES_MAX} prepared statements"),
            ));
        }
        self.statements.insert(name.to_vec(), commands.pop());
        self.output.extend_from_slice(&build::PARSE_COMPLETE);
        Ok(())
    }

    fn statement(&self, name: &[u8]) -> Result<&Parsed, ClientError> {
        self.statements.get(name).ok_or_else(|| {
            ClientError::error(
                SqlState::INVALID_STATEMENT_NAME,
                format!("prepared statement \"{}\" does not exist", String::from_utf8_lossy(name)),
            )
        })
    }

    fn portal(&self, name: &[u8]) -> Result<&Portal, ClientError> {
        self.portals.get(name).ok_or_else(|| {
            ClientError::error(
                SqlState::INVALID_CURSOR_NAME,
                format!("portal \"{}\" does not exist", String::from_utf8_lossy(name)),
            )
        })
    }

    fn bind(&mut self, body: &[u8]) -> Result<(), ClientError> {
        let (portal, rest) = frame::take_string(body).ok_or_else(malformed)?;
        let (statement, rest) = frame::take_string(rest).ok_or_else(malformed)?;
        let (_, rest) = take_words(rest)?;
        let (parameters, rest) = frame::take_u16(rest).ok_or_else(malformed)?;
        if parameters != 0 {
            return Err(ClientError::error(
                SqlState::PROTOCOL_VIOLATION,
                format!("bind message supplies {parameters} parameters, but commands have none"),
            ));
        }
        let (codes, _) = take_words(rest)?;
        let formats = codes
            .into_iter()
            .map(|code| match code {
                0 => Ok(Format::Text),
                1 => Ok(Format::Binary),
                other => Err(ClientError::error(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("unsupported format code: {other}"),
                )),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let parsed = self.statement(statement)?.clone();
        if self.portals.len() >= NAMES_MAX {
            return Err(ClientError::error(
                SqlState::CONFIGURATION_LIMIT_EXCEEDED,
                format!("the console keeps no more than {NAMES_MAX} portals"),
            ));
        }
        self.portals.insert(portal.to_vec(), Portal { parsed, formats });
        build::message(&mut self.output, backend::BIND_COMPLETE, |_| {});
        Ok(())
    }

    fn describe(&mut self, body: &[u8]) -> Result<(), ClientError> {
        let (what, name) = target(body)?;
        let (parsed, formats) = match what {
            b'S' => {
                let parsed = self.statement(name)?.clone();
                build::message(&mut self.output, backend::PARAMETER_DESCRIPTION, |out| {
                    out.extend_from_slice(&[0; 2]);
                });
                (parsed, Vec::new())
            }
            _ => {
                let portal = self.portal(name)?;
                (portal.parsed.clone(), portal.formats.clone())
            }
        };
        match parsed {
            Some(ref command @ (Command::Show(topic) | Command::ShowExtended(topic)))
                if topic != Topic::Help =>
            {
                let columns = show::columns(topic, self.dialect_of(command));
                row_description(&mut self.output, &columns, &formats);
            }
            Some(Command::ShowSession(name, _)) => {
                row_description(&mut self.output, &session_columns(name), &formats);
            }
            _ => build::message(&mut self.output, backend::NO_DATA, |_| {}),
        }
        Ok(())
    }

    async fn execute(&mut self, body: &[u8]) -> io::Result<Result<(), ClientError>> {
        let Some((name, _)) = frame::take_string(body) else { return Ok(Err(malformed())) };
        let (command, formats) = match self.portal(name) {
            Ok(portal) => (portal.parsed.clone(), portal.formats.clone()),
            Err(error) => return Ok(Err(error)),
        };
        match command {
            Some(command) => self.command(&command, &formats, false).await,
            None => {
                build::message(&mut self.output, backend::EMPTY_QUERY, |_| {});
                Ok(Ok(()))
            }
        }
    }

    fn close(&mut self, body: &[u8]) -> Result<(), ClientError> {
        let (what, name) = target(body)?;
        if what == b'S' {
            self.statements.remove(name);
        } else {
            self.portals.remove(name);
        }
        self.output.extend_from_slice(&build::CLOSE_COMPLETE);
        Ok(())
    }
}

fn session_columns(name: &'static str) -> [Column; 1] {
    let [column] = columns![Text "value"];
    [Column { name, ..*column }]
}

/// `S` or `P`, and the name, of Describe and Close.
fn target(body: &[u8]) -> Result<(u8, &[u8]), ClientError> {
    match body.split_first() {
        Some((what @ (b'S' | b'P'), rest)) => {
            let (name, _) = frame::take_string(rest).ok_or_else(malformed)?;
            Ok((*what, name))
        }
        _ => Err(malformed()),
    }
}

/// A count and that many 16-bit words.
fn take_words(bytes: &[u8]) -> Result<(Vec<u16>, &[u8]), ClientError> {
    let (count, mut rest) = frame::take_u16(bytes).ok_or_else(malformed)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (word, after) = frame::take_u16(rest).ok_or_else(malformed)?;
        words.push(word);
        rest = after;
    }
    Ok((words, rest))
}

fn text_of(body: &[u8]) -> String {
    let text = body.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn malformed() -> ClientError {
    ClientError::error(SqlState::PROTOCOL_VIOLATION, "invalid message format")
}

fn syntax_error(error: &CommandError) -> ClientError {
    ClientError::error(SqlState::SYNTAX_ERROR, error.to_string()).hint(error.hint())
}
