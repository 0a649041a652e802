//! Preparing statements of PREPARE on a client's server connection, and noting which ones a client
//! has.

use std::sync::Arc;

use crate::parts::pins::question::Shown;
use crate::parts::pins::unverified::Noted;
use crate::parts::settings::timeouts::with_timeout_of;
use crate::parts::sql_prepare::{
    BackendSql, ClientSql, ERROR_BYTES_MAX, STANDS_IN, SqlStatement, Standing, There, is_taken,
    only_prepares, prepare_in, stand_in, write_name,
};
use crate::parts::statements::shared::{Statement, same_parse_settings};
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::effects::Effects;
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::halt::Halt;
use crate::relay::request_queue::{Change, Request};
use crate::relay::socket::Socket;
use crate::session::canonical::is_unsafe_encoding;
use crate::session::part::Part;
use crate::session::scan::{ScanOptions, is_plain};
use crate::session::settings::Settings;
use crate::wire::error::{SqlState, field};
use crate::wire::{TransactionStatus, build, frame, frontend};

impl<S: Socket> Backend<S> {
    /// Whether these are the names of the statements that it is known to have.
    pub(crate) fn has_sql_statements(&self, names: &[Box<[u8]>]) -> bool {
        let Some(there) = self.prepared.by_sql.as_deref() else { return names.is_empty() };
        // (A report has none of the protocol's.)
        let by_sql = there.all.iter().filter(|there| there.statement.parsed.is_none());
        let mut known: Vec<_> = by_sql.map(|there| &there.statement.name).collect();
        known.sort_unstable();
        known.len() == names.len() && known.iter().zip(names).all(|(one, other)| *one == other)
    }

    /// Whether it is known to have a statement of this name of its last client, or to have tried to
    /// prepare it: it is removed when another client comes.
    pub fn has_statement_of_last_client(&self, name: &str) -> bool {
        let there = self.prepared.by_sql.as_deref();
        there.is_some_and(|there| {
            there.all.iter().any(|one| *one.statement.name == *name.as_bytes())
        })
    }

    /// Whether it has statements of the protocol under its client's own names, or may have.
    pub(crate) fn has_parsed_statements(&self) -> bool {
        let there = self.prepared.by_sql.as_deref();
        there.is_some_and(|there| there.all.iter().any(|one| one.statement.parsed.is_some()))
            || self.known.unverified.as_deref().is_some_and(|doubt| doubt.noted().has_parsed())
    }

    /// Whether it has the statements of this client.
    pub(crate) fn has_sql_of(&self, wanted: &[Arc<SqlStatement>]) -> bool {
        self.prepared.by_sql.as_deref().is_some_and(|there| there.are_all_there(wanted))
    }

    /// Appends the messages that remove others' statements and, if it `brings`, prepare the
    /// client's. Statements that could not be prepared are tried again, once for each transaction.
    /// Returns whether the client's message has to wait for the outcome.
    fn bring_sql(
        &mut self,
        wanted: &[Arc<SqlStatement>],
        desired: &Settings,
        brings: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        let retry = brings && std::mem::take(&mut self.prepared.retries_sql);
        let mut there = self.prepared.by_sql.take().unwrap_or_default();
        for mut known in std::mem::take(&mut there.all) {
            let is_wanted = wanted.iter().any(|one| Arc::ptr_eq(one, &known.statement));
            match &mut known.standing {
                Standing::Prepared if is_wanted => {
                    there.all.push(known);
                    continue;
                }
                Standing::StandsIn { .. } if is_wanted && !retry => {
                    there.all.push(known);
                    continue;
                }
                Standing::Prepared | Standing::StandsIn { .. } => {}
                Standing::Refused(_) if !is_wanted => continue,
                Standing::Refused(_) if !brings => {
                    there.all.push(known);
                    continue;
                }
                Standing::Refused(error) if !there.freed && is_taken(error) => there.freed = true,
                Standing::Refused(error) => {
                    let number = there.stand_ins;
                    there.stand_ins += 1;
                    self.inject_query(&stand_in(&known.statement, number), out);
                    known.standing = Standing::StandsIn { number, error: std::mem::take(error) };
                    there.all.push(known);
                    continue;
                }
            }
            let mut text = b"DEALLOCATE ".to_vec();
            write_name(&known.statement.name, &mut text);
            self.inject_prepare(&text, Some(Change::Deallocates), out);
        }
        let lacks = |one: &&Arc<SqlStatement>| brings && there.place(one).is_none();
        let missing: Vec<_> = wanted.iter().filter(lacks).cloned().collect();
        for one in &missing {
            if !same_parse_settings(&self.session.applied, &one.settings) {
                let settings = self.settings_for_parse(&one.settings);
                self.apply_settings(&settings, out);
            }
            let change = Some(Change::Prepares(one.clone()));
            match &one.parsed {
                Some(parsed) => self.inject_own_parse(&one.name, &parsed.body, change, out),
                None => self.inject_prepare(&one.text, change, out),
            }
            there.all.push(There { statement: one.clone(), standing: Standing::Prepared });
        }
        if !missing.is_empty() {
            let desired = with_timeout_of(desired, &self.session.applied);
            self.apply_settings(&desired, out);
        }
        let order =
            |there: &There| wanted.iter().position(|one| Arc::ptr_eq(one, &there.statement));
        there.all.sort_by_cached_key(order);
        if !there.all.is_empty() || self.requests.has_sql_under_way() {
            self.prepared.by_sql = Some(there);
        }
        !missing.is_empty()
    }

    /// Appends a PREPARE or DEALLOCATE of Hawser's, or a command around one.
    pub(crate) fn inject_prepare(
        &mut self,
        text: &[u8],
        change: Option<Change>,
        out: &mut Vec<u8>,
    ) {
        build::query(out, text);
        self.request_with(Request::InjectedPrepare, change);
        self.prepared.unnamed.taken_by_query();
    }

    /// Appends a Parse of Hawser's that gives a statement its client's own name.
    pub(crate) fn inject_own_parse(
        &mut self,
        name: &[u8],
        body: &[u8],
        change: Option<Change>,
        out: &mut Vec<u8>,
    ) {
        build::parse(out, name, body);
        out.extend_from_slice(&build::SYNC);
        self.request_with(Request::InjectedPrepare, change);
    }

    /// Whether a DEALLOCATE of Hawser's has failed with this error, and the statement may still
    /// exist. (It does not if a function has removed it.)
    pub(crate) fn leaves_anothers_statement(&self, error: &[u8]) -> bool {
        self.prepared.by_sql.is_some()
            && matches!(self.requests.front_change(), Some(Change::Deallocates))
            && field(error, b'C') != Some(b"26000")
    }

    /// The server has refused a PREPARE of Hawser's, or has no statement to deallocate.
    pub(crate) fn prepare_refused(&mut self, error: &[u8]) {
        let Some(there) = self.prepared.by_sql.as_deref_mut() else { return };
        if let Some(Change::Prepares(statement)) = self.requests.front_change()
            && let Some(at) = there.place(statement)
        {
            let kept = error.len() <= ERROR_BYTES_MAX;
            let error = if kept { error.into() } else { Box::default() };
            there.all[at].standing = Standing::Refused(error);
        }
    }

    /// The server has answered one.
    pub(crate) fn prepare_ended(&mut self) {
        if self.prepared.by_sql.as_deref().is_some_and(|there| there.all.is_empty())
            && !self.requests.has_sql_under_way()
        {
            self.prepared.by_sql = None;
        }
    }

    /// The error of the PREPARE in whose place a stand-in has been executed, which has failed with
    /// `error`.
    pub(crate) fn error_stood_in_for(&self, error: &[u8]) -> Option<&[u8]> {
        let there = self.prepared.by_sql.as_deref()?;
        let message = field(error, b'M')?;
        let at = memchr::memmem::find(message, STANDS_IN.as_bytes())? + STANDS_IN.len();
        let digits = message[at..].split(|byte| *byte == b'.').next()?;
        let digits: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        there.all.iter().find_map(|there| match &there.standing {
            Standing::StandsIn { number, error } if *number == digits && !error.is_empty() => {
                Some(&**error)
            }
            _ => None,
        })
    }
}

/// Whether a name occurs in a text, and not as a part of a longer one.
fn stands_in(name: &[u8], text: &[u8]) -> bool {
    let belongs = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    memchr::memmem::find_iter(text, name).any(|at| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        !before.last().is_some_and(belongs) && !after.first().is_some_and(belongs)
    })
}

impl<S: Socket> Client<S> {
    #[inline]
    pub(crate) fn sql_statements(&self) -> &[Arc<SqlStatement>] {
        let kept = self.pending_session.as_ref().and_then(|extra| extra.by_sql.as_ref());
        kept.map_or(&[], |kept| &kept.all)
    }

    /// The effects of executing its statement of this name, if it has any. Functions that it calls
    /// may behave differently since its PREPARE.
    pub(crate) fn effects_of_sql_statement(
        &self,
        backend: &Backend<S>,
        name: &[u8],
    ) -> Option<Effects> {
        let known = self.sql_statements().iter().find(|known| *known.name == *name)?;
        let effects = known.effects.as_deref().cloned().unwrap_or_default();
        let effects = backend.with_functions(&known.text, effects);
        (!effects.is_none()).then_some(effects)
    }

    /// Whether it has one of this name.
    pub(crate) fn has_sql_statement(&self, name: &[u8]) -> bool {
        self.sql_statements().iter().any(|known| *known.name == *name)
    }

    /// Whether the name of one of its statements occurs in a text, also in a string that a function
    /// executes.
    fn names_sql_statement(&self, text: &[u8]) -> bool {
        let folded = text.to_ascii_lowercase();
        self.sql_statements()
            .iter()
            .any(|known| stands_in(&known.name.to_ascii_lowercase(), &folded))
    }

    /// It has none any more.
    pub(crate) fn forget_sql_statements(&mut self) {
        if let Some(extra) = &mut self.pending_session {
            extra.by_sql = None;
        }
    }

    /// It does not have that one any more; its backend is corrected before its next transaction.
    pub(crate) fn forget_sql_statement(&mut self, name: &[u8]) {
        let Some(kept) = self.pending_session.as_mut().and_then(|extra| extra.by_sql.as_mut())
        else {
            return;
        };
        kept.all.retain(|known| *known.name != *name);
        if kept.all.is_empty() {
            self.forget_sql_statements();
        }
    }

    /// Their settings are computed again.
    pub(crate) fn rebase_sql_statements(&mut self, moved: impl Fn(&Settings) -> Settings) {
        let Some(kept) = self.pending_session.as_mut().and_then(|extra| extra.by_sql.as_mut())
        else {
            return;
        };
        for known in &mut kept.all {
            let settings = moved(&known.settings);
            if settings != known.settings {
                let (name, text) = (known.name.clone(), known.text.clone());
                let (types, memory) = (known.types.clone(), known.memory.clone());
                let (moves, parsed) = (known.moves, known.parsed.clone());
                let effects = known.effects.clone();
                let again =
                    SqlStatement { name, text, parsed, types, settings, moves, effects, memory };
                again.memory.name(again.cost());
                *known = Arc::new(again);
            }
        }
    }

    /// It keeps its backend as long as it has statements: it looks at state that does not move.
    pub(crate) fn watch_sql_statements(&mut self) {
        if !self.sql_statements().is_empty() || self.session.pins.contains(Part::SqlStatement) {
            self.session.pins.insert(Part::SqlStatement);
            self.pending_session().by_sql.get_or_insert_default().watched = true;
        }
    }

    /// An error has come: it may be about a statement that was not prepared, or not under this
    /// name.
    pub(crate) fn note_missed_sql(&mut self, error: &[u8]) {
        if field(error, b'C') != Some(&SqlState::INVALID_STATEMENT_NAME.0[..])
            || self.is_session_mode()
        {
            return;
        }
        let message = field(error, b'M').unwrap_or_default();
        let names =
            self.prepared.statements.as_deref().into_iter().flat_map(|names| names.names().pairs());
        // (Quoting varies: of several names the longest is meant.)
        let missed =
            names.filter(|(name, _)| stands_in(name, message)).max_by_key(|(name, _)| name.len());
        let missed = missed.map(|(name, _)| name.clone());
        if self.sql_statements().is_empty() && missed.is_none() {
            return;
        }
        let kept = self.pending_session().by_sql.get_or_insert_default();
        kept.missed = true;
        kept.missed_names.extend(missed);
    }

    /// Whether statements of the protocol have been missed, and not been prepared since.
    pub(crate) fn has_missed_names(&self) -> bool {
        let kept = self.pending_session.as_ref().and_then(|extra| extra.by_sql.as_ref());
        kept.is_some_and(|kept| !kept.missed_names.is_empty())
    }

    /// Their names.
    pub(crate) fn take_missed_names(&mut self) -> Vec<Box<[u8]>> {
        let kept = self.pending_session.as_mut().and_then(|extra| extra.by_sql.as_mut());
        kept.map(|kept| std::mem::take(&mut kept.missed_names)).unwrap_or_default()
    }

    /// Whether it keeps its backend for its known statements.
    pub(crate) fn keeps_sql_statements(&self) -> bool {
        let kept = self.pending_session.as_ref().and_then(|extra| extra.by_sql.as_ref());
        kept.is_some_and(|kept| {
            !kept.all.is_empty() && (kept.watched || kept.all.iter().any(|known| !known.moves))
        })
    }

    /// The server has reported which ones exist; `None`: more than are kept. Returns whether they
    /// pin.
    pub(crate) fn take_sql_statements(
        &mut self,
        backend: &mut Backend<S>,
        shown: Option<Vec<Shown>>,
        noted: &Noted,
    ) -> bool {
        let there = backend.prepared.by_sql.take();
        let kept =
            self.pending_session.as_mut().and_then(|extra| extra.by_sql.take()).unwrap_or_default();
        let was_parsed = |shown: &Shown| {
            let known = kept.all.iter().find(|known| known.name == shown.name);
            let known = known.and_then(|known| known.parsed.as_ref());
            let mut all = noted.parsed(&shown.name).iter().chain(known);
            all.find(|parsed| parsed.text() == &*shown.text).cloned()
        };
        let Some(shown) = shown else { return true };
        if shown.is_empty() {
            // Those that a function has missed are still to be prepared.
            if !kept.missed_names.is_empty() {
                self.pending_session().by_sql =
                    Some(Box::new(ClientSql { all: Vec::new(), ..*kept }));
            }
            return false;
        }
        let mut now = BackendSql::default();
        let mut all = Vec::with_capacity(shown.len());
        for shown in shown {
            let known = kept.all.iter().find(|known| known.name == shown.name);
            let standing = known
                .zip(there.as_ref())
                .and_then(|(known, there)| Some(&there.all[there.place(known)?].standing));
            let stands_in = match (known, standing) {
                (Some(known), Some(Standing::StandsIn { number, error })) => {
                    let number = *number;
                    (stand_in(known, number) == *shown.text)
                        .then(|| Standing::StandsIn { number, error: error.clone() })
                }
                _ => None,
            };
            let options = self.scan_options(backend.session.own.reading);
            let own = prepare_in(&shown.text, &shown.name, options);
            let parsed = was_parsed(&shown);
            let same = known.filter(|known| {
                let as_known = match &known.parsed {
                    Some(known) => known.text() == &*shown.text,
                    None => own == Some(&*known.text),
                };
                stands_in.is_some() || (as_known && !noted.is_prepared_again(&shown.name))
            });
            let statement = match (same, parsed) {
                (Some(known), _) => known.clone(),
                (None, Some(parsed)) => {
                    Arc::new(self.parsed_statement(backend, shown, parsed, noted))
                }
                (None, None) => {
                    let own: Option<Box<[u8]>> = own.map(Into::into);
                    Arc::new(self.sql_statement(backend, shown, own, noted))
                }
            };
            let standing = stands_in.unwrap_or(Standing::Prepared);
            now.stand_ins = there.as_ref().map_or(0, |there| there.stand_ins);
            now.all.push(There { statement: statement.clone(), standing });
            all.push(statement);
        }
        backend.prepared.by_sql = Some(Box::new(now));
        self.pending_session().by_sql = Some(Box::new(ClientSql { all, ..*kept }));
        self.keeps_sql_statements()
    }

    /// One that the protocol has prepared, and that exists under the client's own name.
    fn parsed_statement(
        &self,
        backend: &Backend<S>,
        shown: Shown,
        parsed: Arc<Statement>,
        noted: &Noted,
    ) -> SqlStatement {
        let memory = backend.pool.statements.memory().clone();
        let settings = noted.settings_of(&shown.name, &backend.session.applied, false);
        let moves = settings.is_some() && shown.types.is_ascii() && memory.has_room_for_names();
        // The effects of executing it by SQL, in a function, are not seen.
        let moves = moves && parsed.effects.is_none();
        let settings = settings.unwrap_or_else(|| backend.settings_for_parse(&parsed.settings));
        let (text, parsed, effects) = (Box::default(), Some(parsed), None); // it has its own
        let Shown { name, types, .. } = shown;
        let statement =
            SqlStatement { name, text, parsed, types, settings, moves, effects, memory };
        statement.memory.name(statement.cost());
        statement
    }

    /// A statement that is new to the client. `own`: its PREPARE, if known.
    fn sql_statement(
        &self,
        backend: &Backend<S>,
        shown: Shown,
        own: Option<Box<[u8]>>,
        noted: &Noted,
    ) -> SqlStatement {
        let memory = backend.pool.statements.memory().clone();
        let now = &backend.session.applied;
        let settings = noted.settings_of(&shown.name, now, backend.reports_all_statements());
        let certain = settings.is_some();
        let settings = settings.unwrap_or_else(|| now.clone());
        let encoding = |settings: &Settings| {
            let own = backend.session.own.parameters.get(b"client_encoding");
            settings.get(b"client_encoding").or(own).map(<[u8]>::to_vec)
        };
        let readable = |text: &[u8]| {
            text.is_ascii()
                || (encoding(&settings) == encoding(now)
                    && encoding(now).is_some_and(|name| !is_unsafe_encoding(&name)))
        };
        let effects = own.as_ref().map(|text| {
            let options = backend.session.own.reading.with(|name| settings.get(name));
            let reported = |name: &[u8]| backend.session.own.parameters.get(name).is_some();
            backend.with_functions(text, Effects::of_text(text, options, reported))
        });
        let moves = certain
            && effects.as_ref().is_some_and(only_prepares)
            && shown.name.is_ascii()
            && shown.types.is_ascii()
            && memory.has_room_for_names()
            && own.as_ref().is_some_and(|text| {
                let options = backend.session.own.reading.with(|name| settings.get(name));
                readable(text) && prepare_in(text, &shown.name, options) == Some(text)
            });
        let effects = effects.filter(|effects| !only_prepares(effects));
        let effects = effects.map(|effects| Box::new(effects.of_executing()));
        // The text of a statement that does not move is not needed.
        let text = own.filter(|_| moves).unwrap_or_default();
        let Shown { name, types, .. } = shown;
        let parsed = None;
        let statement =
            SqlStatement { name, text, parsed, types, settings, moves, effects, memory };
        statement.memory.name(statement.cost());
        statement
    }
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// Makes the backend's statements of SQL's PREPARE the client's, before its transaction.
    #[inline]
    pub(crate) fn open_sql_statements(&mut self) -> Result<(), Halt> {
        if self.backend.prepared.by_sql.is_none() && self.client.sql_statements().is_empty() {
            return Ok(());
        }
        self.bring_sql_statements()
    }

    #[cold]
    fn bring_sql_statements(&mut self) -> Result<(), Halt> {
        let wanted = self.client.sql_statements();
        if self.backend.from_server.status() != TransactionStatus::Idle
            || self.backend.has_sql_of(wanted)
        {
            return Ok(());
        }
        let wanted = wanted.to_vec();
        let brings = !self.does_without_sql_statements();
        if brings || self.backend.prepared.by_sql.is_some() {
            self.lift_first()?;
        }
        self.passage.cut(self.backend)?;
        let desired = &self.client.session.desired;
        if self.backend.bring_sql(&wanted, desired, brings, &mut self.passage.out) {
            self.backend.ahead.begin();
            return self.wait();
        }
        Ok(())
    }

    /// Makes a message wait that needs its statements and follows one that did without, or settings
    /// of Hawser's.
    #[inline]
    pub(crate) fn hold_for_sql_statements(&mut self) -> Result<(), Halt> {
        let wanted = self.client.sql_statements();
        let there = self.backend.prepared.by_sql.as_deref();
        if wanted.is_empty()
            || there.is_some_and(|there| !there.lacks(wanted))
            || self.does_without_sql_statements()
        {
            return Ok(());
        }
        // Before the first message of a pipeline there is nothing that a Sync would end.
        if self.backend.requests.owes_ready()
            && !self.backend.requests.is_in_pipeline()
            && !self.backend.requests.is_copying_in()
        {
            return self.wait();
        }
        Ok(())
    }

    /// Whether the current message, which may begin a transaction, also ends it, and does not
    /// concern prepared statements.
    fn does_without_sql_statements(&self) -> bool {
        if self.header.kind != frontend::QUERY {
            // An Execute, too, has others after it in its pipeline, though it only fails there.
            return match self.header.kind {
                frontend::SYNC | frontend::FLUSH => self.header.body == 0,
                kind => {
                    [frontend::COPY_DATA, frontend::COPY_DONE, frontend::COPY_FAIL].contains(&kind)
                }
            };
        }
        let kept = self.client.pending_session.as_ref().and_then(|extra| extra.by_sql.as_ref());
        let Some((text, [])) = frame::take_string(self.body) else { return false };
        self.scan_options() == ScanOptions::default()
            && kept.is_none_or(|kept| !kept.missed)
            && is_plain(text)
            && !text.windows(5).any(|word| word.eq_ignore_ascii_case(b"begin"))
            && !self.client.names_sql_statement(text)
    }
}
