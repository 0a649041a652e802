//! A PostgreSQL session, as far as the fuzzer's clients speak with it.
//!
//! # Model
//! Messages go in one by one, answers come out; nothing depends on time. So the same type is the
//! server behind the engine and, fed with a client's own bytes, the *reference*: what the client
//! would read if there were no pooler. The statements that it knows are those of
//! [`super::clients`] and those that Hawser makes itself; any other text is a syntax error.
//! A row shows which text ran, with which parameter, and all session state that could leak.
//!
//! # Limits
//! Written after PostgreSQL 15's `src/backend/tcop/postgres.c`; one notice or detail more or less
//! does not matter, since errors are compared by severity and SQLSTATE.

use std::collections::{BTreeMap, VecDeque};

use hawser_pooler::parts::pins::question;
use hawser_pooler::session::part::Part;
use hawser_pooler::wire::build;
use hawser_pooler::wire::frame::{take_string, take_u16};

/// Settings that the model has, with the values of a session in which no client has set anything.
/// The first [`REPORTED`] of them are reported to the client.
pub(crate) const SETTINGS: [(&str, &str); 3] =
    [("TimeZone", "UTC"), ("application_name", ""), ("statement_timeout", "0")];

/// How many of [`SETTINGS`] the server reports.
pub(crate) const REPORTED: usize = 2;

type Values = [String; SETTINGS.len()];

#[derive(Clone, Debug, PartialEq)]
struct State {
    values: Values,
    listening: bool,
    temporary: bool,
}

#[derive(Clone, Debug)]
struct Prepared {
    text: String,
    /// What parse analysis read of the settings.
    parsed_under: String,
    by_sql: bool,
}

#[derive(Clone, Debug)]
struct Portal {
    statement: Prepared,
    parameter: String,
    /// What a statement of the pooler's sets: names and values, NULL for the session's own.
    sets: Vec<(String, Option<String>)>,
    rows_sent: u32,
    done: bool,
}

/// Rows that a SELECT gives.
const ROWS: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copying {
    Simple,
    Extended,
}

/// One session.
pub(crate) struct Session {
    start: Values,
    state: State,
    /// Values of SET LOCAL.
    local: [Option<String>; SETTINGS.len()],
    /// What was in force around a Parse.
    kept: BTreeMap<String, String>,
    /// The state to which an error or a ROLLBACK goes back.
    saved: Option<State>,
    reported: Vec<String>,
    status: u8,
    statements: BTreeMap<Vec<u8>, Prepared>,
    portals: BTreeMap<Vec<u8>, Portal>,
    /// An error has come in a pipeline: everything is ignored up to Sync.
    skipping: bool,
    copying: Option<Copying>,
    /// Statements of a Query still to be run.
    pending: VecDeque<String>,
    /// A cancel request has hit.
    interrupted: bool,
    skipped_unnamed: bool,
    out: Vec<u8>,
    /// How much of `out` the server has sent without being asked again.
    flushed: usize,
    ended: bool,
}

struct Failure {
    code: &'static str,
}

fn fail<T>(code: &'static str) -> Result<T, Failure> {
    Err(Failure { code })
}

const BAD_MESSAGE: &str = "08P01";

/// Begins the statement by which the pooler sets what is bound to it.
const BOUND_SETTINGS: &str = "SELECT pg_catalog.set_config($1,$2,false)";

impl Session {
    /// A session whose client asked for these start values.
    pub(crate) fn new(asked: &[(&str, &str)]) -> Self {
        let mut start = SETTINGS.map(|(_, value)| value.to_owned());
        for (name, value) in asked {
            if let Some(at) = place(name) {
                start[at] = (*value).to_owned();
            }
        }
        Self {
            reported: start[..REPORTED].to_vec(),
            state: State { values: start.clone(), listening: false, temporary: false },
            start,
            local: Default::default(),
            kept: BTreeMap::new(),
            saved: None,
            status: b'I',
            statements: BTreeMap::new(),
            portals: BTreeMap::new(),
            skipping: false,
            copying: None,
            pending: VecDeque::new(),
            interrupted: false,
            skipped_unnamed: false,
            out: Vec::new(),
            flushed: 0,
            ended: false,
        }
    }

    /// The server has closed the connection.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Copy data are wanted: any message but those of copying would end the connection.
    pub(crate) fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    /// Messages of the extended protocol have come that no Sync has followed, or a transaction is
    /// open.
    pub(crate) fn is_in_pipeline(&self) -> bool {
        self.saved.is_some() || self.skipping
    }

    /// A Parse of the unnamed statement was ignored after an error, and the one before it is still
    /// there.
    pub(crate) fn has_skipped_unnamed(&self) -> bool {
        self.skipped_unnamed
    }

    /// NOTIFY reaches this session.
    pub(crate) fn is_listening(&self) -> bool {
        self.state.listening
    }

    /// Whether nothing of a client is left but what the books know of: settings, and statements of PREPARE. The reason
    /// if not.
    pub(crate) fn leftover(&self) -> Option<String> {
        let timeout = &self.state.values[2];
        let clean = self.status == b'I'
            && !self.state.listening
            && !self.state.temporary
            && !self.skipping
            && self.copying.is_none()
            && self.saved.is_none()
            && *timeout == self.start[2];
        (!clean).then(|| {
            format!(
                "status {}, {:?}, skipping {}, copying {:?}, in pipeline {}",
                char::from(self.status),
                self.state,
                self.skipping,
                self.copying,
                self.saved.is_some(),
            )
        })
    }

    /// What the server has sent since the last look, as far as it is flushed.
    pub(crate) fn take_flushed(&mut self) -> Vec<u8> {
        let rest = self.out.split_off(self.flushed);
        self.flushed = 0;
        std::mem::replace(&mut self.out, rest)
    }

    /// All that the server has to say, flushed or not; and how much is flushed.
    pub(crate) fn take_all(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.out), std::mem::take(&mut self.flushed))
    }

    /// A cancel request hits what runs now; `running`: a query is on its way in.
    pub(crate) fn cancel(&mut self, running: bool) {
        if let Some(copying) = self.copying.take() {
            self.raise("57014", copying == Copying::Extended);
        } else if running {
            self.interrupted = true;
        }
    }

    /// Something was notified.
    pub(crate) fn notify(&mut self) {
        if self.state.listening && self.status == b'I' && self.saved.is_none() {
            self.message(b'A', |out| out.extend_from_slice(b"\0\0\0\x01news\0\0"));
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.flushed = self.out.len();
    }

    fn message(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
        build::message(&mut self.out, kind, body);
    }

    fn fatal(&mut self, code: &str) {
        self.error("FATAL", code);
        self.flush();
        self.ended = true;
    }

    fn error(&mut self, severity: &str, code: &str) {
        self.message(b'E', |out| {
            for (tag, text) in [(b'S', severity), (b'V', severity), (b'C', code), (b'M', "no")] {
                out.push(tag);
                build::string(out, text.as_bytes());
            }
            out.push(0);
        });
        self.flush();
    }

    /// An error: the transaction is aborted.
    fn raise(&mut self, code: &str, extended: bool) {
        self.error("ERROR", code);
        if let Some(saved) = self.saved.clone() {
            self.state = saved;
        }
        self.local = Default::default();
        self.pending.clear();
        if self.status == b'T' {
            self.status = b'E';
        } else if self.status == b'I' {
            self.end_transaction();
        }
        if extended {
            self.skipping = true;
        } else {
            self.ready();
        }
    }

    fn end_transaction(&mut self) {
        self.saved = None;
        self.local = Default::default();
        self.portals.clear();
        self.status = b'I';
    }

    fn value(&self, at: usize) -> &str {
        self.local[at].as_ref().unwrap_or(&self.state.values[at])
    }

    fn ready(&mut self) {
        if self.status == b'I' {
            self.end_transaction();
        }
        for (at, (name, _)) in SETTINGS.iter().enumerate().take(REPORTED) {
            let value = self.value(at).to_owned();
            if self.reported[at] != value {
                build::parameter_status(&mut self.out, name.as_bytes(), value.as_bytes());
                self.reported[at] = value;
            }
        }
        let status = self.status;
        self.message(b'Z', |out| out.push(status));
        self.interrupted = false;
        self.flush();
    }

    /// One whole message of the client.
    pub(crate) fn feed(&mut self, kind: u8, body: &[u8]) {
        if self.ended {
            return;
        }
        if let Some(copying) = self.copying {
            match kind {
                b'd' | b'H' | b'S' => return,
                b'c' => {
                    self.copying = None;
                    build::command_complete(&mut self.out, b"COPY 1");
                    if copying == Copying::Simple {
                        self.run_pending();
                    }
                }
                b'f' => {
                    self.copying = None;
                    self.raise("57014", copying == Copying::Extended);
                }
                _ => self.fatal(BAD_MESSAGE),
            }
            return;
        }
        if kind == b'S' {
            self.skipping = false;
            if !body.is_empty() {
                self.raise(BAD_MESSAGE, false);
                return;
            }
            self.ready();
            return;
        }
        if kind == b'X' {
            self.ended = true;
            return;
        }
        if !b"QPBDECHFdcf".contains(&kind) {
            self.fatal(BAD_MESSAGE);
            return;
        }
        if self.skipping {
            self.skipped_unnamed |= kind == b'P' && body.first() == Some(&0);
            return;
        }
        if kind == b'Q' || (kind == b'P' && body.first() == Some(&0)) {
            self.skipped_unnamed = false;
        }
        match kind {
            b'Q' => self.query(body),
            b'F' => self.call(body),
            b'H' => self.flush(),
            b'd' | b'c' | b'f' => {}
            _ => {
                if self.status == b'I' && self.saved.is_none() {
                    self.saved = Some(self.state.clone());
                }
                let done = match kind {
                    b'P' => self.parse(body),
                    b'B' => self.bind(body),
                    b'D' => self.describe(body),
                    b'E' => self.execute(body),
                    _ => self.close(body),
                };
                if let Err(failure) = done {
                    self.raise(failure.code, true);
                }
            }
        }
    }

    fn call(&mut self, body: &[u8]) {
        if self.status == b'E' {
            self.raise("25P02", false);
        } else if body.len() < 4 {
            self.raise(BAD_MESSAGE, false);
        } else {
            self.message(b'V', |out| out.extend_from_slice(&[0xff; 4]));
            self.ready();
        }
    }

    fn query(&mut self, body: &[u8]) {
        self.statements.remove(&b""[..]);
        self.portals.remove(&b""[..]);
        let Some((text, [])) = take_string(body) else {
            self.raise(BAD_MESSAGE, false);
            return;
        };
        if std::mem::take(&mut self.interrupted) {
            self.raise("57014", false);
            return;
        }
        let text = String::from_utf8_lossy(text).into_owned();
        if let Some(asked) = text.strip_prefix(question::COMMENT) {
            self.question(asked);
            return;
        }
        let statements: VecDeque<String> =
            text.split(';').map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect();
        if statements.iter().any(|statement| !is_known(statement)) {
            self.raise("42601", false);
            return;
        }
        if statements.is_empty() {
            self.message(b'I', |_| ());
            self.ready();
            return;
        }
        self.pending = statements;
        self.run_pending();
    }

    /// What is left of the session, of what the pooler asks for here; anything else fails.
    fn question(&mut self, mut asked: &str) {
        if self.status == b'E' {
            self.raise("25P02", false);
            return;
        }
        let mut columns = Vec::new();
        while let Some((part, text)) =
            question::PARTS.iter().find(|(_, text)| asked.starts_with(text))
        {
            asked = asked[text.len()..].trim_start_matches([',', ' ']);
            columns.push(match part {
                Part::TemporaryObject => {
                    Some(if self.state.temporary { "t" } else { "f" }.to_owned())
                }
                Part::SqlStatement => self.sql_statements(),
                _ => Some("f".to_owned()),
            });
        }
        if columns.is_empty() || !asked.is_empty() {
            self.raise("42601", false);
            return;
        }
        self.message(b'T', |out| out.extend_from_slice(&[0, 0]));
        self.message(b'D', |out| {
            out.extend_from_slice(&(columns.len() as u16).to_be_bytes());
            for column in &columns {
                let Some(value) = column else {
                    out.extend_from_slice(&[0xff; 4]);
                    continue;
                };
                out.extend_from_slice(&(value.len() as u32).to_be_bytes());
                out.extend_from_slice(value.as_bytes());
            }
        });
        build::command_complete(&mut self.out, b"SELECT 1");
        self.ready();
    }

    /// As an array of names, texts and types of parameters.
    fn sql_statements(&self) -> Option<String> {
        let shown = |(name, prepared): (&Vec<u8>, &Prepared)| {
            let name = String::from_utf8_lossy(name).into_owned();
            prepared
                .by_sql
                .then(|| format!("{{{name},\"PREPARE {name} AS {}\",\"\"}}", prepared.text))
        };
        let all: Vec<String> = self.statements.iter().filter_map(shown).collect();
        (!all.is_empty()).then(|| format!("{{{}}}", all.join(",")))
    }

    fn run_pending(&mut self) {
        let alone = self.pending.len() <= 1;
        while let Some(text) = self.pending.pop_front() {
            if self.status == b'I' && self.saved.is_none() {
                self.saved = Some(self.state.clone());
            }
            let statement =
                Prepared { text, parsed_under: self.value(0).to_owned(), by_sql: false };
            match self.run(&statement, "", true, alone) {
                Ok(()) if self.copying.is_some() => {
                    self.copying = Some(Copying::Simple);
                    self.flush();
                    return;
                }
                Ok(()) => {}
                Err(failure) => {
                    self.raise(failure.code, false);
                    return;
                }
            }
        }
        self.ready();
    }

    fn row(&mut self, statement: &Prepared, parameter: &str) {
        let text = format!(
            "{}|{parameter}|{:?}|{}|{}|{}",
            statement.text,
            [self.value(0), self.value(1), self.value(2)],
            statement.parsed_under,
            self.state.listening,
            self.state.temporary,
        );
        self.message(b'D', |out| {
            out.extend_from_slice(&1u16.to_be_bytes());
            out.extend_from_slice(&(text.len() as u32).to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        });
    }

    /// Runs a statement. `whole`: with its row description, and all its rows.
    fn run(
        &mut self,
        statement: &Prepared,
        parameter: &str,
        whole: bool,
        alone: bool,
    ) -> Result<(), Failure> {
        let text = statement.text.clone();
        let words: Vec<&str> = text.split_whitespace().collect();
        let first = words[0].to_ascii_uppercase();
        if self.status == b'E' && first != "COMMIT" && first != "ROLLBACK" {
            return fail("25P02");
        }
        let mut tag = first.clone();
        match first.as_str() {
            "SELECT" if text.contains("1/0") => return fail("22012"),
            "SELECT" if text == "SELECT pg_catalog.pg_listening_channels()" => {
                self.message(b'T', |out| out.extend_from_slice(&[0, 0]));
                if self.state.listening {
                    self.message(b'D', |out| out.extend_from_slice(b"\0\x01\0\0\0\x04news"));
                }
                tag = format!("SELECT {}", u8::from(self.state.listening));
            }
            "SELECT" => {
                for call in
                    text.split("pg_catalog.set_config(").skip(1).filter(|c| c.starts_with('\''))
                {
                    self.set_config(call)?;
                }
                if whole {
                    self.message(b'T', |out| out.extend_from_slice(&[0, 0]));
                    for _ in 0..ROWS {
                        self.row(statement, parameter);
                    }
                }
                tag = format!("SELECT {ROWS}");
            }
            "BEGIN" => {
                if self.saved.is_none() {
                    self.saved = Some(self.state.clone());
                }
                self.status = b'T';
            }
            "COMMIT" if self.status == b'E' => {
                self.end_transaction();
                "ROLLBACK".clone_into(&mut tag);
            }
            "COMMIT" => self.end_transaction(),
            "ROLLBACK" => {
                if let Some(saved) = self.saved.take() {
                    self.state = saved;
                }
                self.end_transaction();
            }
            "SET" => {
                let (at, local) = if words[1] == "LOCAL" { (2, true) } else { (1, false) };
                self.set(words[at], words[at + 2], local)?;
            }
            "RESET" if words[1] == "ALL" => self.reset_all(),
            "RESET" => {
                let Some(at) = place(words[1]) else { return fail("42704") };
                self.state.values[at] = self.start[at].clone();
                self.local[at] = None;
            }
            "DISCARD" if words[1] == "ALL" => {
                if self.status != b'I' || !alone {
                    return fail("25001");
                }
                self.reset_all();
                let unnamed = self.statements.remove(&b""[..]);
                self.statements.clear();
                if let Some(unnamed) = unnamed {
                    self.statements.insert(Vec::new(), unnamed);
                }
                self.state.listening = false;
                self.state.temporary = false;
                self.saved = Some(self.state.clone());
                "DISCARD ALL".clone_into(&mut tag);
            }
            "DISCARD" => "DISCARD SEQUENCES".clone_into(&mut tag),
            "DEALLOCATE" if words[1] == "ALL" => {
                self.statements.retain(|name, _| name.is_empty());
                "DEALLOCATE ALL".clone_into(&mut tag);
            }
            "DEALLOCATE" => {
                if self.statements.remove(words[1].trim_matches('"').as_bytes()).is_none() {
                    return fail("26000");
                }
            }
            "PREPARE" => {
                let inner = text.split_once(" AS ").map_or("", |(_, inner)| inner);
                let parsed_under = self.value(0).to_owned();
                let prepared = Prepared { text: inner.to_owned(), parsed_under, by_sql: true };
                if self.statements.contains_key(words[1].as_bytes()) {
                    return fail("42P05");
                }
                self.statements.insert(words[1].as_bytes().to_vec(), prepared);
            }
            "EXECUTE" => {
                let Some(prepared) = self.statements.get(words[1].as_bytes()).cloned() else {
                    return fail("26000");
                };
                if !is_select(&prepared.text) {
                    return fail("0A000");
                }
                return self.run(&prepared, parameter, whole, alone);
            }
            "LISTEN" => self.state.listening = true,
            "UNLISTEN" => self.state.listening = false,
            "CREATE" => {
                self.state.temporary = true;
                "CREATE TABLE".clone_into(&mut tag);
            }
            "COPY" if words[2] == "TO" => {
                self.message(b'H', |out| out.extend_from_slice(&[0, 0, 0]));
                self.message(b'd', |out| out.extend_from_slice(b"1\n"));
                self.message(b'd', |out| out.extend_from_slice(b"2\n"));
                self.message(b'c', |_| ());
                "COPY 2".clone_into(&mut tag);
            }
            "COPY" => {
                self.copying = Some(Copying::Extended);
                self.message(b'G', |out| out.extend_from_slice(&[0, 0, 0]));
                self.flush();
                return Ok(());
            }
            _ => return fail("42601"),
        }
        build::command_complete(&mut self.out, tag.as_bytes());
        Ok(())
    }

    fn reset_all(&mut self) {
        self.state.values = self.start.clone();
        self.local = Default::default();
    }

    fn set(&mut self, name: &str, value: &str, local: bool) -> Result<(), Failure> {
        let Some(at) = place(name) else { return fail("42704") };
        let value = match value {
            "DEFAULT" => self.start[at].clone(),
            value => value.trim_matches('\'').to_owned(),
        };
        if local {
            // Outside a transaction block it has no effect beyond its own statement.
            self.local[at] = Some(value);
        } else {
            self.state.values[at] = value;
            self.local[at] = None;
        }
        Ok(())
    }

    /// `'name','value',true)`, or with the value of another setting, or NULL.
    fn set_config(&mut self, call: &str) -> Result<(), Failure> {
        let local = call.contains(",true)");
        let mut quoted = call.split('\'');
        let (name, value) = (quoted.nth(1).unwrap_or(""), quoted.nth(1).unwrap_or(""));
        let call = call.split(" IS NULL").next().unwrap_or(call);
        let value = if call.contains("current_setting(") {
            match place(value) {
                Some(at) => self.value(at).to_owned(),
                None => self.kept.get(value).cloned().unwrap_or_default(),
            }
        } else if call.contains(",NULL") {
            "DEFAULT".to_owned()
        } else {
            value.to_owned()
        };
        if name.starts_with("hawser_before.") {
            self.kept.insert(name.to_owned(), value);
            return Ok(());
        }
        self.set(name, &value, local)
    }

    fn parse(&mut self, body: &[u8]) -> Result<(), Failure> {
        let Some((name, rest)) = take_string(body) else { return fail(BAD_MESSAGE) };
        let Some((text, types)) = take_string(rest) else { return fail(BAD_MESSAGE) };
        match take_u16(types) {
            Some((count, types)) if types.len() == usize::from(count) * 4 => {}
            _ => return fail(BAD_MESSAGE),
        }
        if name.is_empty() {
            self.statements.remove(name);
        }
        let text = String::from_utf8_lossy(text).trim().to_owned();
        if !text.is_empty() && !is_known(&text) {
            return fail("42601");
        }
        // (An empty text can be prepared in a failed transaction, too: `exec_parse_message`.)
        if self.status == b'E' && !text.is_empty() && !ends_transaction(&text) {
            return fail("25P02");
        }
        if !name.is_empty() && self.statements.contains_key(name) {
            return fail("42P05");
        }
        let parsed_under = self.value(0).to_owned();
        self.statements.insert(name.to_vec(), Prepared { text, parsed_under, by_sql: false });
        self.message(b'1', |_| ());
        Ok(())
    }

    fn bind(&mut self, body: &[u8]) -> Result<(), Failure> {
        let Some((portal, rest)) = take_string(body) else { return fail(BAD_MESSAGE) };
        let Some((name, rest)) = take_string(rest) else { return fail(BAD_MESSAGE) };
        let Some(statement) = self.statements.get(name).cloned() else { return fail("26000") };
        let Some(parameter) = bound_parameter(rest) else { return fail(BAD_MESSAGE) };
        if self.status == b'E' && !ends_transaction(&statement.text) {
            return fail("25P02");
        }
        if !portal.is_empty() && self.portals.contains_key(portal) {
            return fail("42P03");
        }
        let sets =
            if statement.text.starts_with(BOUND_SETTINGS) { bound_pairs(rest) } else { Vec::new() };
        let new = Portal { statement, parameter, sets, rows_sent: 0, done: false };
        self.portals.insert(portal.to_vec(), new);
        self.message(b'2', |_| ());
        Ok(())
    }

    fn describe(&mut self, body: &[u8]) -> Result<(), Failure> {
        let Some((&what, rest)) = body.split_first() else { return fail(BAD_MESSAGE) };
        let Some((name, [])) = take_string(rest) else { return fail(BAD_MESSAGE) };
        let text = match what {
            b'S' => match self.statements.get(name) {
                Some(statement) => statement.text.clone(),
                None => return fail("26000"),
            },
            b'P' => match self.portals.get(name) {
                Some(portal) => portal.statement.text.clone(),
                None => return fail("34000"),
            },
            _ => return fail(BAD_MESSAGE),
        };
        if self.status == b'E' && is_select(&text) {
            return fail("25P02");
        }
        if what == b'S' {
            self.message(b't', |out| out.extend_from_slice(&[0, 0]));
        }
        if is_select(&text) {
            self.message(b'T', |out| out.extend_from_slice(&[0, 0]));
        } else {
            self.message(b'n', |_| ());
        }
        Ok(())
    }

    fn execute(&mut self, body: &[u8]) -> Result<(), Failure> {
        let Some((name, rest)) = take_string(body) else { return fail(BAD_MESSAGE) };
        let Ok(limit) = <[u8; 4]>::try_from(rest) else { return fail(BAD_MESSAGE) };
        let limit = u32::from_be_bytes(limit);
        let Some(portal) = self.portals.get(name).cloned() else { return fail("34000") };
        if std::mem::take(&mut self.interrupted) {
            return fail("57014");
        }
        let Portal { statement, parameter, sets, rows_sent, done } = portal;
        for (name, value) in sets {
            self.set(&name, value.as_deref().unwrap_or("DEFAULT"), false)?;
        }
        if statement.text.is_empty() {
            self.message(b'I', |_| ());
            return Ok(());
        }
        if self.status == b'E' && !ends_transaction(&statement.text) {
            return fail("25P02");
        }
        let sets = statement.text.contains("pg_catalog.set_config('");
        if is_select(&statement.text) && !statement.text.contains("1/0") && !sets {
            let left = ROWS - rows_sent;
            let now = if limit == 0 { left } else { left.min(limit) };
            for _ in 0..now {
                self.row(&statement, &parameter);
            }
            if limit != 0 && now == limit {
                self.message(b's', |_| ());
            } else {
                build::command_complete(&mut self.out, format!("SELECT {now}").as_bytes());
            }
            if let Some(portal) = self.portals.get_mut(name) {
                portal.rows_sent += now;
            }
            return Ok(());
        }
        if done {
            return fail("55000");
        }
        if let Some(portal) = self.portals.get_mut(name) {
            portal.done = true;
        }
        self.run(&statement, &parameter, false, true)
    }

    fn close(&mut self, body: &[u8]) -> Result<(), Failure> {
        let Some((&what, rest)) = body.split_first() else { return fail(BAD_MESSAGE) };
        let Some((name, [])) = take_string(rest) else { return fail(BAD_MESSAGE) };
        match what {
            b'S' => drop(self.statements.remove(name)),
            b'P' => drop(self.portals.remove(name)),
            _ => return fail(BAD_MESSAGE),
        }
        self.message(b'3', |_| ());
        Ok(())
    }
}

/// Place of a setting, whatever its case and quotes.
fn place(name: &str) -> Option<usize> {
    let name = name.trim_matches('"');
    SETTINGS.iter().position(|(known, _)| known.eq_ignore_ascii_case(name))
}

fn is_select(text: &str) -> bool {
    text.starts_with("SELECT")
}

fn ends_transaction(text: &str) -> bool {
    matches!(text, "COMMIT" | "ROLLBACK")
}

/// Whether the text is a statement that the model can run.
fn is_known(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        ["SELECT", ..]
        | ["BEGIN" | "COMMIT" | "ROLLBACK"]
        | ["SET", "LOCAL", _, "TO", _]
        | ["RESET", _]
        | ["DISCARD", "ALL" | "SEQUENCES"]
        | ["DEALLOCATE", _]
        | ["EXECUTE", _]
        | ["LISTEN", _]
        | ["UNLISTEN", "*"]
        | ["CREATE", "TEMP", "TABLE", _, "(i", "int)"]
        | ["COPY", _, "FROM", "STDIN"]
        | ["COPY", _, "TO", "STDOUT"]
        | ["PREPARE", _, "AS", "SELECT", ..] => true,
        ["SET", _, "TO", value] => *value != "DEFAULT",
        _ => false,
    }
}

/// Pairs of parameters after the names in a Bind.
fn bound_pairs(body: &[u8]) -> Vec<(String, Option<String>)> {
    let Some((formats, rest)) = take_u16(body) else { return Vec::new() };
    let Some((count, mut rest)) = rest.get(2 * usize::from(formats)..).and_then(take_u16) else {
        return Vec::new();
    };
    let mut values = Vec::new();
    for _ in 0..count {
        let Some((length, after)) = rest.split_first_chunk() else { return Vec::new() };
        let length = usize::try_from(i32::from_be_bytes(*length)).ok();
        let Some((value, after)) = after.split_at_checked(length.unwrap_or(0)) else {
            return Vec::new();
        };
        values.push(length.map(|_| String::from_utf8_lossy(value).into_owned()));
        rest = after;
    }
    values.chunks(2).map(|pair| (pair[0].clone().unwrap_or_default(), pair[1].clone())).collect()
}

/// The first parameter of a Bind, text or empty; `None` if the message is malformed.
fn bound_parameter(rest: &[u8]) -> Option<String> {
    let (formats, rest) = take_u16(rest)?;
    let rest = rest.get(usize::from(formats) * 2..)?;
    let (count, mut rest) = take_u16(rest)?;
    let mut first = None;
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = i32::from_be_bytes(*length);
        let length = if length == -1 { 0 } else { usize::try_from(length).ok()? };
        first.get_or_insert_with(|| after.get(..length).map(<[u8]>::to_vec));
        rest = after.get(length..)?;
    }
    let (formats, rest) = take_u16(rest)?;
    if rest.len() != usize::from(formats) * 2 {
        return None;
    }
    Some(String::from_utf8_lossy(&first.flatten().unwrap_or_default()).into_owned())
}
