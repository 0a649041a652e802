//! What the server's extension asks of a Hawser on its host: who its clients are, and to cancel or
//! to end what one of them does (`hawser_sessions`, `pg_cancel_backend`, `pg_terminate_backend`).
//!
//! # Model
//! A socket beside the control socket, for the process's own user and root. One question a
//! connection, one line; the answer opens with `hawser 1 POOLER` and closes with `end`:
//!
//! ```text
//! clients | client ID    lines of id, address, port, database, user, application_name, state, the
//!                        server's process id (0: none), port of ours (0: a unix socket) and
//!                        whether it goes over MPTCP (1, 0), with tabs between
//! cancel ID USER         `done` if there is such a client
//! terminate ID USER      likewise
//! lent | lent NUMBER     lines of number of the server connection, the server's process id, and that
//!                        of the client that has it now
//! start NUMBER           lines of name and value of the settings that the client began with that
//!                        has this server connection now; bytes in hexadecimal digits
//! ```
//! A server connection's number was sent to the server at its start (`hawser.connection`).
//! `extension/local.c` is the other side. POOLER is a random number of this process: ids of clients
//! are unique within it.
//!
//! # Invariants
//! * the server decides who may do it, by the user that it knows; so an order names the user too,
//!   and is refused if another client has the id by now
//! * `user` is the role that the client works as on the server
//!
//! # Why not the control socket
//! A client that connects there reads at once and sends nothing: there is no place for a question.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hawser_pooler::ids::PoolId;
use hawser_pooler::relay::ToLoop;
use hawser_pooler::relay::client_info::{ClientState, PeerAddress};
use hawser_pooler::relay::message::{BackendRow, ClientRow, Listed, Page};
use hawser_pooler::wire::error::{ClientError, SqlState};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::admin::pooler::Pooler;
use crate::loops::Pool;
use crate::loops::pages::Pages;
use crate::process::pooler_number;

/// What follows the control socket's path.
const SUFFIX: &str = ".server";
/// The longest question: an order and a name of 63 bytes.
const QUESTION_BYTES_MAX: u64 = 256;
/// How long one question and its answer may take.
const CONVERSATION_WAIT: Duration = Duration::from_secs(10);
/// A pause after an error of accept(2).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What a client reads that is ended: the server's own words.
const TERMINATED: &str = "terminating connection due to administrator command";

/// Where the extension asks, given the control socket.
pub fn socket_path(control_socket: &Path) -> PathBuf {
    let mut path = control_socket.as_os_str().to_owned();
    path.push(SUFFIX);
    path.into()
}

/// Answers connections, one at a time. Never ends.
pub async fn answer(listener: UnixListener, pooler: Arc<dyn Pooler>) {
    let number = pooler_number();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let conversation = converse(stream, number, pooler.as_ref());
                // A client may break off: no error.
                let _ = tokio::time::timeout(CONVERSATION_WAIT, conversation).await;
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection of the server's extension");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, number: u64, pooler: &dyn Pooler) -> io::Result<()> {
    let mut stream = BufReader::new(stream.take(QUESTION_BYTES_MAX));
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line).await?;
    let mut stream = stream.into_inner().into_inner();
    let question = line
        .strip_suffix(b"\n")
        .and_then(|line| std::str::from_utf8(line).ok())
        .and_then(Question::parse);
    stream.write_all(format!("hawser 1 {number:016x}\n").as_bytes()).await?;
    // Without `end` the other side knows that something is missing.
    if let Some(question) = question
        && question.answer(pooler, &mut stream).await.is_ok()
    {
        stream.write_all(b"end\n").await?;
    }
    stream.shutdown().await
}

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Question<'a> {
    /// All clients, or the one with this process id.
    Clients(Option<u32>),
    /// To cancel what the client with this process id does.
    Cancel(u32, &'a str),
    /// To disconnect it.
    Terminate(u32, &'a str),
    /// Which client has which server connection: all, or the one of this number.
    Lent(Option<u64>),
    /// What the client began with that has the server connection of this number.
    Start(u64),
}

impl<'a> Question<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        // A name may have spaces.
        let order = || rest.split_once(' ').and_then(|(id, user)| Some((id.parse().ok()?, user)));
        match word {
            "clients" if rest.is_empty() => Some(Self::Clients(None)),
            "client" => Some(Self::Clients(Some(rest.parse().ok()?))),
            "cancel" => order().map(|(id, user)| Self::Cancel(id, user)),
            "lent" if rest.is_empty() => Some(Self::Lent(None)),
            "lent" => Some(Self::Lent(Some(rest.parse().ok()?))),
            "start" => Some(Self::Start(rest.parse().ok()?)),
            "terminate" => order().map(|(id, user)| Self::Terminate(id, user)),
            _ => None,
        }
    }

    /// Writes the answer a page at a time.
    async fn answer(self, pooler: &dyn Pooler, stream: &mut UnixStream) -> io::Result<()> {
        let listed = match self {
            Self::Lent(_) | Self::Start(_) => Listed::Backends,
            _ => Listed::Clients,
        };
        let pools: HashMap<_, _> =
            pooler.pools().into_iter().map(|entry| (entry.pool.id, entry.pool)).collect();
        let mut pages = Pages::new(pooler.loops(), listed, false);
        while let Some(page) = pages.next().await.map_err(io::Error::other)? {
            let mut out = String::new();
            let done = self.answer_from(&page, &pools, pooler, &mut out);
            stream.write_all(out.as_bytes()).await?;
            if done {
                break;
            }
        }
        Ok(())
    }

    /// What this page has of the answer. True: it is complete.
    fn answer_from(
        self,
        page: &Page,
        pools: &HashMap<PoolId, Pool>,
        pooler: &dyn Pooler,
        out: &mut String,
    ) -> bool {
        let role = |client: &ClientRow| -> String {
            match pools.get(&client.pool) {
                Some(pool) if pool.is_shared_by_users() => client.user.clone(),
                Some(pool) => pool.user.clone(),
                None => String::new(),
            }
        };
        match self {
            Self::Clients(id) => {
                let asked = |client: &&ClientRow| id.is_none_or(|id| client.process == id);
                for client in page.clients.iter().filter(asked) {
                    write_client(out, client, &role(client));
                }
            }
            Self::Lent(number) => {
                let asked = |backend: &&BackendRow| {
                    backend.client.is_some() && number.is_none_or(|number| backend.id.0 == number)
                };
                for backend in page.backends.iter().filter(asked) {
                    let (number, process) = (backend.id.0, backend.process);
                    let _ = writeln!(out, "{number}\t{process}\t{}", backend.client_process);
                }
            }
            Self::Start(number) => {
                let is_it = |row: &&BackendRow| row.client.is_some() && row.id.0 == number;
                let Some(lent) = page.backends.iter().find(is_it) else { return false };
                for (name, value) in lent.client_start.iter() {
                    let _ = writeln!(out, "{}\t{}", hex(name), hex(value));
                }
                return true;
            }
            Self::Cancel(id, user) | Self::Terminate(id, user) => {
                let is_it = |client: &&ClientRow| client.process == id && role(client) == user;
                let Some(client) = page.clients.iter().find(is_it) else { return false };
                let client = client.id;
                let order = if let Self::Cancel(..) = self {
                    ToLoop::CancelClient(client)
                } else {
                    tracing::info!(%client, "cut off by pg_terminate_backend()");
                    let error = ClientError::fatal(SqlState::ADMIN_SHUTDOWN, TERMINATED);
                    ToLoop::Kill { client, error }
                };
                pooler.loops().send(client.home, order);
                out.push_str("done\n");
                return true;
            }
        }
        false
    }
}

fn write_client(out: &mut String, client: &ClientRow, role: &str) {
    let state = match client.state {
        ClientState::Idle => "idle",
        ClientState::Waiting => "waiting",
        // (Which backend serves it, and whether one does, changes with each transaction.)
        ClientState::Active | ClientState::Inside => "active",
        ClientState::Closing => "closing",
    };
    let address = match &client.about.peer {
        PeerAddress::Unix => String::new(),
        peer => peer.to_string(),
    };
    // Writing to a string does not fail.
    let _ = write!(out, "{}\t{address}\t{}", client.process, client.about.peer.port());
    for field in [&client.database, role, &client.application_name] {
        out.push('\t');
        escape(out, field);
    }
    let own_port = client.local.as_ref().map_or(0, |(_, port)| *port);
    let (backend, mptcp) = (client.backend_process, u8::from(client.about.mptcp()));
    let _ = writeln!(out, "\t{state}\t{backend}\t{own_port}\t{mptcp}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Tabs and ends of lines within a field, as COPY has them.
fn escape(out: &mut String, field: &str) {
    for c in field.chars() {
        match c {
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\\' => out.push_str("\\\\"),
            '\0' => {}
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_a_word_and_what_belongs_to_it() {
        assert_eq!(Question::parse("clients"), Some(Question::Clients(None)));
        assert_eq!(Question::parse("lent"), Some(Question::Lent(None)));
        assert_eq!(Question::parse("lent 7"), Some(Question::Lent(Some(7))));
        assert_eq!(Question::parse("start 7"), Some(Question::Start(7)));
        assert_eq!(Question::parse("client 7"), Some(Question::Clients(Some(7))));
        assert_eq!(Question::parse("cancel 7 a b"), Some(Question::Cancel(7, "a b")));
        assert_eq!(Question::parse("terminate 7 a"), Some(Question::Terminate(7, "a")));
        for wrong in [
            "",
            "start",
            "start x",
            "clients 7",
            "client",
            "client x",
            "cancel 7",
            "cancel",
            "kill 7 a",
            "lent x",
        ] {
            assert_eq!(Question::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_field_stays_within_its_place() {
        let mut out = String::new();
        escape(&mut out, "a\tb\nc\\d\0e");
        assert_eq!(out, "a\\tb\\nc\\\\de");
    }

    #[test]
    fn the_socket_is_beside_the_control_socket() {
        let path = socket_path(Path::new("/run/hawser/control.sock"));
        assert_eq!(path, Path::new("/run/hawser/control.sock.server"));
    }
}
