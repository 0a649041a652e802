//! What the fuzzer's clients send, and how what they read is judged.
//!
//! # Model
//! Each client has a reference [`Session`] that gets the same bytes. What the client reads must be
//! a prefix of what the reference says, and in the end all that the reference has flushed. Errors
//! are compared by severity and SQLSTATE, reported settings by what the client believes at each
//! ReadyForQuery, notifications not at all.
//!
//! # Once that cannot hold any more
//! A client that sends nonsense, is cancelled, or whose server misbehaves is [`Excuse`]d: then it
//! only must never read another client's token (unless its server lied).

use std::collections::{BTreeMap, VecDeque};

use hawser_pooler::wire::build;
use hawser_pooler::wire::error::field;
use hawser_pooler::wire::frame::{Framed, header, take_string};

use super::server::Session;

/// Why a client's answers may differ from the reference's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Excuse {
    /// It broke the protocol, was cancelled, cut off for cause, or its server died.
    Cut,
    /// Its server lied: there is nothing to compare with.
    LiedTo,
}

/// How many entries [`messages`] has.
pub(crate) const MESSAGES: u8 = 58;

fn query(out: &mut Vec<u8>, text: &str) {
    build::query(out, text.as_bytes());
}

fn parse(out: &mut Vec<u8>, name: &str, text: &str) {
    build::parse(out, name.as_bytes(), &[text.as_bytes(), &[0, 0, 0]].concat());
}

fn bind(out: &mut Vec<u8>, portal: &str, name: &str, token: &str) {
    build::message(out, b'B', |out| {
        build::string(out, portal.as_bytes());
        build::string(out, name.as_bytes());
        out.extend_from_slice(&[0, 0, 0, 1]);
        out.extend_from_slice(&(token.len() as u32).to_be_bytes());
        out.extend_from_slice(token.as_bytes());
        out.extend_from_slice(&[0, 0]);
    });
}

fn about(out: &mut Vec<u8>, kind: u8, what: u8, name: &str) {
    build::message(out, kind, |out| {
        out.push(what);
        build::string(out, name.as_bytes());
    });
}

fn execute(out: &mut Vec<u8>, portal: &str, limit: u32) {
    build::message(out, b'E', |out| {
        build::string(out, portal.as_bytes());
        out.extend_from_slice(&limit.to_be_bytes());
    });
}

/// Parse, Bind, Execute of the unnamed statement.
fn unnamed(out: &mut Vec<u8>, text: &str, token: &str) {
    parse(out, "", text);
    bind(out, "", "", token);
    execute(out, "", 0);
}

/// Whether the token of entry `which` of [`messages`] is bound as a parameter.
pub(crate) fn is_bound(which: u8) -> bool {
    split(&messages(which, "")).0.iter().any(|(kind, _)| *kind == b'B')
}

/// The messages of entry `which`, as an application could send them. `token` comes back in rows.
pub(crate) fn messages(which: u8, token: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let out = &mut bytes;
    let sync = |out: &mut Vec<u8>| out.extend_from_slice(&build::SYNC);
    let own = format!("SELECT {token}");
    match which % MESSAGES {
        0 => query(out, &own),
        1 => query(out, "BEGIN"),
        2 => query(out, "COMMIT"),
        3 => query(out, "ROLLBACK"),
        4 => {
            parse(out, "", "SELECT $1");
            bind(out, "", "", token);
            about(out, b'D', b'P', "");
            execute(out, "", 0);
            sync(out);
        }
        5 => {
            parse(out, "s", "SELECT $1");
            sync(out);
        }
        6 => {
            bind(out, "", "s", token);
            execute(out, "", 0);
            sync(out);
        }
        7 => {
            about(out, b'D', b'S', "s");
            sync(out);
        }
        8 => {
            about(out, b'C', b'S', "s");
            sync(out);
        }
        9 => {
            for _ in 0..3 {
                unnamed(out, "SELECT $1", token);
                sync(out);
            }
        }
        10 => {
            parse(out, "", &own);
            build::message(out, b'H', |_| ());
        }
        11 => {
            execute(out, "", 0);
            sync(out);
        }
        12 => sync(out),
        13 => build::message(out, b'H', |_| ()),
        14 => query(out, "SELEC"),
        15 => query(out, "SELECT 1/0"),
        16 => {
            parse(out, "s", "SELEC");
            sync(out);
        }
        17 => {
            bind(out, "", "missing", token);
            execute(out, "", 0);
            sync(out);
        }
        18 => query(out, "COPY t FROM STDIN"),
        19 => build::message(out, b'd', |out| out.extend_from_slice(b"1\n")),
        20 => build::message(out, b'c', |_| ()),
        21 => build::copy_fail(out, "no"),
        22 => {
            unnamed(out, "COPY t FROM STDIN", token);
            sync(out);
        }
        23 => query(out, "COPY t TO STDOUT"),
        24 => query(out, "SET TimeZone TO 'A'"),
        25 => query(out, "SET TimeZone TO 'B'"),
        26 => query(out, "SET application_name TO 'app'"),
        27 => query(out, "SET statement_timeout TO 7"),
        28 => query(out, "RESET TimeZone"),
        29 => query(out, "RESET ALL"),
        30 => query(out, "DISCARD ALL"),
        31 => query(out, "DEALLOCATE ALL"),
        32 => query(out, "LISTEN news"),
        33 => query(out, "UNLISTEN *"),
        34 => query(out, "CREATE TEMP TABLE t (i int)"),
        35 => build::message(out, b'F', |out| out.extend_from_slice(&[0; 12])),
        36 => query(out, "SET TimeZone TO 'C'; SELECT 1/0"),
        37 => query(out, "BEGIN; SET LOCAL TimeZone TO 'D'"),
        38 => query(out, ""),
        39 => query(out, &format!("{own} {}", "x".repeat(20_000))),
        40 => {
            parse(out, "", "SELECT $1");
            bind(out, "p", "", token);
            execute(out, "p", 1);
            build::message(out, b'H', |_| ());
        }
        41 => {
            execute(out, "p", 1);
            sync(out);
        }
        42 => {
            // (With one parameter, as all that is bound: the model does not count them.)
            parse(out, "long", &format!("SELECT $1, {}", "y".repeat(20_000)));
            sync(out);
        }
        43 => {
            bind(out, "", "long", token);
            execute(out, "", 0);
            sync(out);
        }
        44 => query(out, "PREPARE q AS SELECT 2"),
        45 => query(out, "EXECUTE q"),
        46 => query(out, "DEALLOCATE s"),
        47 => parse(out, "t", "SELECT $1"),
        48 => {
            bind(out, "", "t", token);
            execute(out, "", 0);
        }
        49 => about(out, b'C', b'S', "t"),
        50 => about(out, b'D', b'S', "t"),
        51 => {
            unnamed(out, "BEGIN", token);
            unnamed(out, "SELECT $1", token);
            sync(out);
        }
        52 => {
            unnamed(out, "COMMIT", token);
            sync(out);
        }
        53 => {
            unnamed(out, "SELECT 1/0", token);
            unnamed(out, "SELECT $1", token);
            sync(out);
        }
        54 => {
            parse(out, "zone", "SET TimeZone TO 'E'");
            bind(out, "", "zone", token);
            execute(out, "", 0);
            sync(out);
        }
        55 => {
            bind(out, "", "", token);
            execute(out, "", 0);
            sync(out);
        }
        56 => build::message(out, b'd', |out| out.resize(out.len() + 20_000, b'z')),
        _ => out.extend_from_slice(&build::TERMINATE),
    }
    bytes
}

/// A client as the judge sees it.
pub(crate) struct Judge {
    number: usize,
    reference: Session,
    /// What the reference says, and how many messages of it are flushed.
    expected: VecDeque<(u8, Vec<u8>)>,
    flushed: usize,
    /// The start of a message that has not been read whole.
    partial: Vec<u8>,
    believed: BTreeMap<Vec<u8>, Vec<u8>>,
    due: BTreeMap<Vec<u8>, Vec<u8>>,
    greeted: bool,
    listened: bool,
    /// Process id in its BackendKeyData.
    pub(crate) process: Option<u32>,
    /// Why it is not held to the reference any more.
    pub(crate) excuse: Option<Excuse>,
    tokens: u32,
}

impl Judge {
    /// Of client `number`, which asked for these start values.
    pub(crate) fn new(number: usize, start: &[(&str, &str)]) -> Self {
        let mut believed = BTreeMap::new();
        for (name, value) in start {
            believed.insert(name.as_bytes().to_vec(), value.as_bytes().to_vec());
        }
        Self {
            number,
            reference: Session::new(start),
            expected: VecDeque::from([(b'Z', b"I".to_vec())]),
            flushed: 1,
            partial: Vec::new(),
            due: believed.clone(),
            believed,
            greeted: false,
            listened: false,
            process: None,
            excuse: None,
            tokens: 0,
        }
    }

    /// A token of its own.
    pub(crate) fn token(&mut self) -> String {
        self.tokens += 1;
        format!("tok{}.{}.", self.number, self.tokens)
    }

    /// Excuses it, for the gravest of the reasons.
    pub(crate) fn excuse(&mut self, excuse: Excuse) {
        if self.excuse != Some(Excuse::LiedTo) {
            self.excuse = Some(excuse);
        }
    }

    /// Whether an application would send this now.
    pub(crate) fn may_send(&self, bytes: &[u8]) -> bool {
        let reference = &self.reference;
        // Known: the unnamed statement is gone when a later Parse of it was skipped.
        let loses_unnamed = reference.has_skipped_unnamed() && bytes.starts_with(b"B");
        // Known: a Close that the server skips after an error takes the name away, and a
        // DEALLOCATE in the middle of a pipeline does not find it.
        let loses_name = reference.is_in_pipeline()
            && (bytes.starts_with(b"C") || bytes.ends_with(b"DEALLOCATE s\0"));
        // Anything else in the middle of a copy ends the connection.
        let copies = bytes.first().is_some_and(|kind| b"dcfHS".contains(kind));
        let fits = copies || !reference.is_copying();
        fits && !reference.is_ended() && !loses_unnamed && !loses_name
    }

    /// It will send these whole messages.
    pub(crate) fn sends(&mut self, bytes: &[u8]) {
        for (kind, body) in split(bytes).0 {
            self.reference.feed(kind, &body);
            self.listened |= self.reference.is_listening();
        }
        let (said, flushed) = self.reference.take_all();
        if flushed > 0 {
            self.flushed = self.expected.len() + split(&said[..flushed]).0.len();
        }
        self.expected.extend(split(&said).0);
    }

    /// Whether its connection should have been closed by its own wish.
    pub(crate) fn is_over(&self) -> bool {
        self.reference.is_ended()
    }

    /// Whether it has read all that a server would have sent.
    pub(crate) fn is_satisfied(&self) -> bool {
        self.flushed == 0
    }

    /// What it still waits for.
    pub(crate) fn awaited(&self) -> String {
        let next: Vec<String> = self.expected.iter().take(3).map(|m| show(m.0, &m.1)).collect();
        format!("{} more messages: {}", self.flushed, next.join(", "))
    }

    /// It has read these bytes.
    pub(crate) fn reads(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.partial.extend_from_slice(bytes);
        let (messages, rest) = split(&self.partial);
        self.partial = rest;
        for (kind, body) in messages {
            if let Err(wrong) = self.read(kind, &body) {
                return Err(format!("client {}: {wrong}", self.number));
            }
        }
        Ok(())
    }

    fn read(&mut self, kind: u8, body: &[u8]) -> Result<(), String> {
        if kind == b'K' && !self.greeted {
            self.greeted = true;
            self.process = body.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
            return Ok(());
        }
        if self.excuse == Some(Excuse::LiedTo) {
            return Ok(());
        }
        if kind == b'D' {
            self.check_tokens(body)?;
        }
        if self.excuse.is_some() {
            return Ok(());
        }
        match kind {
            b'A' if self.listened => return Ok(()),
            b'A' => return Err("a notification for which it never listened".to_owned()),
            b'S' => {
                put(&mut self.believed, body);
                return Ok(());
            }
            _ => {}
        }
        while let Some((b'S', status)) = self.expected.front() {
            put(&mut self.due, status);
            self.expected.pop_front();
            self.flushed = self.flushed.saturating_sub(1);
        }
        let Some((due, due_body)) = self.expected.pop_front() else {
            return Err(format!("read {} and is due nothing", show(kind, body)));
        };
        self.flushed = self.flushed.saturating_sub(1);
        let same = due == kind
            && match kind {
                b'E' => [b'V', b'C'].iter().all(|f| {
                    let (read, due) = (field(body, *f), field(&due_body, *f));
                    // Known: a name that exists is refused before the text is looked at.
                    let first = read == Some(b"42P05") && *f == b'C';
                    read == due
                        || first && [b"42601", b"25P02"].map(|c| Some(&c[..])).contains(&due)
                }),
                _ => body == due_body,
            };
        if !same {
            return Err(format!("read {} and is due {}", show(kind, body), show(due, &due_body)));
        }
        if kind == b'Z' && self.believed != self.due {
            return Err(format!(
                "believes {} where the server has {}",
                show_map(&self.believed),
                show_map(&self.due)
            ));
        }
        Ok(())
    }

    /// Nothing of another client may be in a row.
    fn check_tokens(&self, body: &[u8]) -> Result<(), String> {
        let text = String::from_utf8_lossy(body);
        for part in text.split("tok").skip(1) {
            if !part.starts_with(&format!("{}.", self.number)) {
                return Err(format!("read a row of another: {}", show(b'D', body)));
            }
        }
        Ok(())
    }
}

fn put(map: &mut BTreeMap<Vec<u8>, Vec<u8>>, body: &[u8]) {
    if let Some((name, rest)) = take_string(body)
        && let Some((value, _)) = take_string(rest)
    {
        let default = super::server::SETTINGS
            .iter()
            .any(|(known, own)| known.as_bytes() == name && own.as_bytes() == value);
        if default {
            map.remove(name);
        } else {
            map.insert(name.to_vec(), value.to_vec());
        }
    }
}

fn show_map(map: &BTreeMap<Vec<u8>, Vec<u8>>) -> String {
    let pairs: Vec<String> =
        map.iter().map(|(n, v)| format!("{}={}", n.escape_ascii(), v.escape_ascii())).collect();
    format!("{{{}}}", pairs.join(", "))
}

fn show(kind: u8, body: &[u8]) -> String {
    let part = &body[..body.len().min(120)];
    format!("{}\"{}\"", kind.escape_ascii(), part.escape_ascii())
}

/// Whole messages at the start of some bytes, and the rest. Bytes that are no message end it.
pub(crate) fn split(mut bytes: &[u8]) -> (Vec<(u8, Vec<u8>)>, Vec<u8>) {
    let mut messages = Vec::new();
    while let Framed::Header(header) = header(bytes) {
        let Some(body) = bytes.get(5..header.total()) else { break };
        messages.push((header.kind, body.to_vec()));
        bytes = &bytes[header.total()..];
    }
    (messages, bytes.to_vec())
}
