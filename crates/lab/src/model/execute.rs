//! What each statement does to a session and its server.
//!
//! # Model
//! Statements that return rows compute all of them when they are first run; what is sent of them
//! and when is the caller's affair. A statement that would wait (a sleep, a lock) says so before
//! it has changed anything, and is simply tried again.

use std::collections::VecDeque;
use std::time::Duration;

use hawser_core::session::part::Part;

use super::catalog::{SUPERUSER, has_role};
use super::cluster::{Change, Cluster};
use super::error::PgError;
use super::plan::{
    self, Analysis, Column, Datum, Portal, Prepared, Progress, Relation, count, unknown_setting,
};
use super::session::{Block, Listening, Session, TempTable};
use super::settings;
use super::sql::{Discard, Hidden, Scalar, Select, Statement};

/// Rows, the error that ends them early, and the first word of the tag.
type Rows = (VecDeque<Vec<Datum>>, Option<PgError>, &'static str);

/// What a statement waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Until this long after its start.
    Sleep(Duration),
    /// Until another process gives up a lock.
    Lock,
}

impl Session {
    /// What planning finds wrong, before anything is executed.
    pub(super) fn plan(statement: &Statement) -> Result<(), PgError> {
        if let Statement::Select(Select::Row(row)) = statement
            && row.iter().any(|scalar| matches!(scalar, Scalar::Divide(_, 0)))
        {
            return Err(PgError::error("22012", "division by zero"));
        }
        Ok(())
    }

    /// Whether the statement has to wait before it can run.
    pub(super) fn wait(&self, cluster: &Cluster, statement: &Statement) -> Option<Wait> {
        let row = match statement {
            Statement::Select(Select::Row(row)) => row,
            Statement::Execute(name, _) => {
                let prepared = self.statements.get(name)?;
                return self.wait(cluster, &prepared.parsed.as_ref()?.statement);
            }
            _ => return None,
        };
        row.iter().find_map(|scalar| match scalar {
            Scalar::Sleep(duration) => Some(Wait::Sleep(*duration)),
            Scalar::Lock(key) | Scalar::Hidden(Hidden::Lock(key)) => {
                let holder = cluster.locks.get(&(self.database.clone(), *key));
                holder.is_some_and(|(holder, _)| *holder != self.process).then_some(Wait::Lock)
            }
            _ => None,
        })
    }

    /// Runs a statement that returns no rows, other than COPY; gives its tag.
    pub(super) fn run(
        &mut self,
        cluster: &mut Cluster,
        statement: &Statement,
        portal: &Portal,
        notices: &mut Vec<PgError>,
    ) -> Result<String, PgError> {
        match statement {
            Statement::Begin(..)
            | Statement::Commit
            | Statement::Rollback
            | Statement::Savepoint(_)
            | Statement::RollbackTo(_)
            | Statement::Release(_) => self.control(cluster, statement, notices),
            Statement::Set { local, name, value, reset } => {
                if *local && !self.in_block() {
                    notices.push(PgError::warning(
                        "25P01",
                        "SET LOCAL can only be used in transaction blocks",
                    ));
                }
                self.set(cluster, name, value.as_deref(), *local)?;
                Ok(if *reset { "RESET" } else { "SET" }.to_owned())
            }
            Statement::ResetAll => {
                self.now.settings.reset_all();
                Ok("RESET".to_owned())
            }
            Statement::Discard(what) => self.discard(cluster, *what),
            Statement::Prepare { name, types, body } => {
                let declared: Vec<_> = types.iter().copied().map(Some).collect();
                let mut prepared = Prepared::new(self, Some((**body).clone()), &declared)?;
                prepared.from_sql = true;
                self.add_statement(name, prepared)?;
                Ok("PREPARE".to_owned())
            }
            Statement::Execute(name, arguments) => {
                let (prepared, params) = self.execution(name, arguments)?;
                let body = prepared.parsed.expect("execution() takes queries only").statement;
                let analysis = prepared.analysis;
                let inner = Portal { params, analysis, ..portal.clone() };
                self.run(cluster, &body, &inner, notices)
            }
            Statement::Deallocate(Some(name)) => {
                self.statements.remove(name).ok_or_else(|| no_statement(name))?;
                Ok("DEALLOCATE".to_owned())
            }
            Statement::Deallocate(None) => {
                self.statements.retain(|name, _| name.is_empty());
                Ok("DEALLOCATE ALL".to_owned())
            }
            Statement::Listen(channel) => {
                self.now.listening.push(Listening::Listen(channel.clone()));
                Ok("LISTEN".to_owned())
            }
            Statement::Unlisten(channel) => {
                self.now.listening.push(match channel {
                    Some(channel) => Listening::Unlisten(channel.clone()),
                    None => Listening::UnlistenAll,
                });
                Ok("UNLISTEN".to_owned())
            }
            Statement::Notify(channel, payload) => {
                self.now.notifications.push((channel.clone(), payload.clone()));
                Ok("NOTIFY".to_owned())
            }
            Statement::CreateTemp(name, drop_on_commit) => {
                self.create_temp(name, *drop_on_commit)?;
                Ok("CREATE TABLE".to_owned())
            }
            Statement::Drop(name) => self.drop_table(name),
            Statement::Declare { name, hold, query } => self.declare(name, *hold, query),
            Statement::Close(Some(name)) => {
                self.portals.remove(name).ok_or_else(|| no_cursor(name))?;
                Ok("CLOSE CURSOR".to_owned())
            }
            Statement::Close(None) => {
                self.portals.clear();
                Ok("CLOSE CURSOR ALL".to_owned())
            }
            Statement::Insert { .. } | Statement::Update(..) | Statement::Delete(_) => {
                let (_, affected) = self.write(cluster, statement, portal)?;
                Ok(match statement {
                    Statement::Insert { .. } => format!("INSERT 0 {affected}"),
                    Statement::Update(..) => format!("UPDATE {affected}"),
                    _ => format!("DELETE {affected}"),
                })
            }
            // Had the cursor existed, it would have columns.
            Statement::Fetch(_, name) => Err(no_cursor(name)),
            Statement::Select(_)
            | Statement::Show(_)
            | Statement::CopyIn(_)
            | Statement::CopyOut(_) => unreachable!("these have ways of their own"),
        }
    }

    fn control(
        &mut self,
        cluster: &mut Cluster,
        statement: &Statement,
        notices: &mut Vec<PgError>,
    ) -> Result<String, PgError> {
        let only_in_block = |what: &str| {
            PgError::error("25P01", format!("{what} can only be used in transaction blocks"))
        };
        let nowhere = || PgError::warning("25P01", "there is no transaction in progress");
        let open = matches!(self.block, Block::Explicit | Block::Failed);
        match statement {
            Statement::Begin(read_only, tag) => {
                if self.block == Block::Explicit {
                    let message = "there is already a transaction in progress";
                    notices.push(PgError::warning("25001", message));
                }
                self.block = Block::Explicit;
                self.read_only = read_only.unwrap_or(self.read_only);
                Ok((*tag).to_owned())
            }
            Statement::Commit => {
                if self.block == Block::Failed {
                    self.abort();
                    return Ok("ROLLBACK".to_owned());
                }
                if !open {
                    notices.push(nowhere());
                }
                self.commit_to(cluster);
                Ok("COMMIT".to_owned())
            }
            Statement::Rollback => {
                if !open {
                    notices.push(nowhere());
                }
                self.abort();
                Ok("ROLLBACK".to_owned())
            }
            Statement::Savepoint(name) => {
                if !open {
                    return Err(only_in_block("SAVEPOINT"));
                }
                self.savepoint(name.clone());
                Ok("SAVEPOINT".to_owned())
            }
            Statement::RollbackTo(name) | Statement::Release(name) => {
                let back = matches!(statement, Statement::RollbackTo(_));
                if !open {
                    let what = if back { "ROLLBACK TO SAVEPOINT" } else { "RELEASE SAVEPOINT" };
                    return Err(only_in_block(what));
                }
                let depth = self.find_savepoint(name).ok_or_else(|| {
                    PgError::error("3B001", format!("savepoint \"{name}\" does not exist"))
                })?;
                if back {
                    self.roll_back_to(depth);
                    Ok("ROLLBACK".to_owned())
                } else {
                    self.release(depth);
                    Ok("RELEASE".to_owned())
                }
            }
            _ => unreachable!("only statements that control transactions come here"),
        }
    }

    /// Ends a transaction well and makes its effects everyone's.
    pub(super) fn commit_to(&mut self, cluster: &mut Cluster) {
        let done = self.commit();
        if let Some(database) = cluster.databases.get_mut(&self.database) {
            for (table, change) in done.changes {
                if let Some(rows) = database.tables.get_mut(&table) {
                    change.apply(rows);
                }
            }
        }
        let process = cluster.processes.get_mut(&self.process);
        let listens = &mut process.expect("a session's process is in the cluster").listens;
        // PostgreSQL registers before it sends, so a LISTEN hears its own transaction's NOTIFY;
        // an UNLISTEN stops it hearing, since reading comes after the commit.
        for change in done.listening {
            match change {
                Listening::Listen(channel) => {
                    listens.insert(channel);
                }
                Listening::Unlisten(channel) => {
                    listens.remove(&channel);
                }
                Listening::UnlistenAll => listens.clear(),
            }
        }
        for notification in done.notifications {
            cluster.notify(&self.database, &notification);
        }
    }

    pub(super) fn set(
        &mut self,
        cluster: &Cluster,
        name: &str,
        value: Option<&[String]>,
        local: bool,
    ) -> Result<(), PgError> {
        let value = value.map(|value| settings::canonical(name, value)).transpose()?;
        if name == "role" {
            self.check_role(cluster, value.as_deref())?;
        } else if name == "session_authorization" {
            let other = value.as_deref().filter(|role| *role != self.user);
            if let Some(role) = other.filter(|_| self.user != SUPERUSER) {
                let message = format!("permission denied to set session authorization \"{role}\"");
                return Err(PgError::error("42501", message));
            }
            self.now.settings.set(&self.defaults, "role", None, local);
        } else if self.defaults.get(name).is_none() && !name.contains('.') {
            return Err(unknown_setting(name));
        }
        self.defaults.mention(name);
        self.now.settings.set(&self.defaults, name, value, local);
        Ok(())
    }

    fn check_role(&self, cluster: &Cluster, role: Option<&str>) -> Result<(), PgError> {
        let Some(role) = role.filter(|role| *role != "none") else { return Ok(()) };
        if !cluster.roles.contains_key(role) {
            return Err(PgError::error("22023", format!("role \"{role}\" does not exist")));
        }
        if !has_role(&self.user, role) {
            return Err(PgError::error(
                "42501",
                format!("permission denied to set role \"{role}\""),
            ));
        }
        Ok(())
    }

    fn discard(&mut self, cluster: &mut Cluster, what: Discard) -> Result<String, PgError> {
        match what {
            Discard::Plans => {
                self.plan_epoch += 1;
                Ok("DISCARD PLANS".to_owned())
            }
            Discard::Sequences => {
                self.forget_sequences();
                Ok("DISCARD SEQUENCES".to_owned())
            }
            Discard::Temp => {
                self.drop_all_temp()?;
                Ok("DISCARD TEMP".to_owned())
            }
            Discard::All => {
                if self.in_block() {
                    let message = "DISCARD ALL cannot run inside a transaction block";
                    return Err(PgError::error("25001", message));
                }
                if self.pipelining {
                    let message = "DISCARD ALL cannot be executed within a pipeline";
                    return Err(PgError::error("25001", message));
                }
                self.portals.clear();
                for name in ["session_authorization", "role"] {
                    self.now.settings.set(&self.defaults, name, None, false);
                }
                self.now.settings.reset_all();
                self.statements.retain(|name, _| name.is_empty());
                self.now.listening.push(Listening::UnlistenAll);
                cluster.unlock_all(self.process);
                self.plan_epoch += 1;
                self.drop_all_temp()?;
                self.forget_sequences();
                Ok("DISCARD ALL".to_owned())
            }
        }
    }

    fn create_temp(&mut self, name: &str, drop_on_commit: bool) -> Result<(), PgError> {
        self.writes("CREATE TABLE")?;
        self.now.temp_schema = true;
        if self.now.temp.contains_key(name) {
            let message = format!("relation \"{name}\" already exists");
            return Err(PgError::error("42P07", message));
        }
        let owner = self.current_user().to_owned();
        let table = TempTable { rows: Vec::new(), owner, drop_on_commit };
        self.now.temp.insert(name.to_owned(), table);
        Ok(())
    }

    fn forget_sequences(&mut self) {
        self.sequences.clear();
        self.last_sequence = None;
    }

    fn in_use(&self, table: &str) -> Result<(), PgError> {
        let relation = Relation::Temp(table.to_owned());
        // A cursor keeps its table open until it is closed, even when all of it has been read.
        let open = self.portals.values().any(|portal| {
            portal.created_at.is_some()
                && matches!(portal.statement, Some(Statement::Select(_)))
                && portal.analysis.relation.as_ref() == Some(&relation)
        });
        if open {
            let message = format!(
                "cannot DROP TABLE \"{table}\" because it is being used by active queries in this session"
            );
            return Err(PgError::error("55006", message));
        }
        Ok(())
    }

    fn drop_all_temp(&mut self) -> Result<(), PgError> {
        for name in self.now.temp.keys() {
            self.in_use(name)?;
        }
        self.now.temp.clear();
        Ok(())
    }

    fn drop_table(&mut self, name: &str) -> Result<String, PgError> {
        self.writes("DROP TABLE")?;
        match self.now.temp.get(name) {
            Some(table) if !has_role(self.current_user(), &table.owner) => {
                Err(PgError::error("42501", format!("must be owner of table {name}")))
            }
            Some(_) => {
                self.in_use(name)?;
                self.now.temp.remove(name);
                Ok("DROP TABLE".to_owned())
            }
            None if plan::relation(self, name).is_ok() => {
                Err(PgError::error("42501", format!("must be owner of table {name}")))
            }
            None => Err(PgError::error("42P01", format!("table \"{name}\" does not exist"))),
        }
    }

    fn declare(&mut self, name: &str, hold: bool, query: &Select) -> Result<String, PgError> {
        if !hold && !self.in_block() {
            let message = "DECLARE CURSOR can only be used in transaction blocks";
            return Err(PgError::error("25P01", message));
        }
        let statement = Statement::Select(query.clone());
        let analysis = Analysis::of(self, Some(&statement), &[])?;
        Self::plan(&statement)?;
        if self.portals.contains_key(name) {
            return Err(cursor_exists(name));
        }
        let portal = Portal {
            statement: Some(statement),
            analysis,
            params: Vec::new(),
            formats: Vec::new(),
            progress: Progress::New,
            created_at: Some(self.depth()),
            hold,
        };
        self.portals.insert(name.to_owned(), portal);
        Ok("DECLARE CURSOR".to_owned())
    }

    pub(super) fn add_statement(&mut self, name: &str, prepared: Prepared) -> Result<(), PgError> {
        if !name.is_empty() && self.statements.contains_key(name) {
            return Err(PgError::error(
                "42P05",
                format!("prepared statement \"{name}\" already exists"),
            ));
        }
        self.statements.insert(name.to_owned(), prepared);
        Ok(())
    }

    /// The statement that EXECUTE names, analysed for now, and its parameters' values.
    fn execution(
        &mut self,
        name: &str,
        arguments: &[Scalar],
    ) -> Result<(Prepared, Vec<Datum>), PgError> {
        let mut prepared = self.statements.get(name).cloned().ok_or_else(|| no_statement(name))?;
        if prepared.params.len() != arguments.len() {
            return Err(PgError::error(
                "42601",
                format!("wrong number of parameters for prepared statement \"{name}\""),
            ));
        }
        let Some(parsed) = prepared.parsed.as_ref().filter(|parsed| parsed.statement.is_query())
        else {
            let message = "the model executes prepared queries only";
            return Err(PgError::error("0A000", message));
        };
        let statement = parsed.statement.clone();
        prepared.revalidate(self)?;
        Self::plan(&statement)?;
        self.statements.insert(name.to_owned(), prepared.clone());
        let params = arguments
            .iter()
            .map(|argument| match argument {
                Scalar::Text(text) => Some(text.clone()),
                Scalar::Int(number) => Some(number.to_string()),
                _ => None,
            })
            .collect();
        Ok((prepared, params))
    }

    /// The rows of a statement that returns rows.
    pub(super) fn rows(
        &mut self,
        cluster: &mut Cluster,
        statement: &Statement,
        portal: &Portal,
        notices: &mut Vec<PgError>,
    ) -> Result<Rows, PgError> {
        match statement {
            Statement::Select(select) => {
                self.readable(portal.analysis.relation.as_ref())?;
                self.select(cluster, select, portal, notices)
            }
            Statement::Show(name) => {
                let value = self.setting(name).ok_or_else(|| unknown_setting(name))?;
                Ok((VecDeque::from([vec![Some(value.to_owned())]]), None, "SHOW"))
            }
            Statement::Insert { .. } => {
                let (value, _) = self.write(cluster, statement, portal)?;
                Ok((VecDeque::from([vec![value]]), None, "INSERT 0"))
            }
            Statement::Execute(name, arguments) => {
                let (prepared, params) = self.execution(name, arguments)?;
                let body = prepared.parsed.expect("execution() takes queries only").statement;
                let inner = Portal { params, analysis: prepared.analysis, ..portal.clone() };
                let (rows, error, tag) = self.rows(cluster, &body, &inner, notices)?;
                match error {
                    // Collected whole before any of it is sent, unlike a plain SELECT.
                    Some(error) => Err(error),
                    None => Ok((rows, None, tag)),
                }
            }
            Statement::Fetch(count, name) => {
                let mut cursor = self.portals.remove(name).ok_or_else(|| no_cursor(name))?;
                let fetched = self.fetch(cluster, &mut cursor, *count, notices);
                self.portals.insert(name.clone(), cursor);
                Ok((fetched?, None, "FETCH"))
            }
            _ => unreachable!("returns no rows"),
        }
    }

    fn fetch(
        &mut self,
        cluster: &mut Cluster,
        cursor: &mut Portal,
        count: i32,
        notices: &mut Vec<PgError>,
    ) -> Result<VecDeque<Vec<Datum>>, PgError> {
        if let (Progress::New, Some(statement)) = (&cursor.progress, &cursor.statement) {
            let (rows, error, tag) = self.rows(cluster, &statement.clone(), cursor, notices)?;
            cursor.progress = Progress::Rows(rows, error, tag);
        }
        let Progress::Rows(rows, _, _) = &mut cursor.progress else { return Ok(VecDeque::new()) };
        let count = rows.len().min(usize::try_from(count).unwrap_or(0));
        Ok(rows.drain(..count).collect())
    }

    fn readable(&self, relation: Option<&Relation>) -> Result<(), PgError> {
        if let Some(Relation::Temp(name)) = relation
            && let Some(table) = self.now.temp.get(name)
            && !has_role(self.current_user(), &table.owner)
        {
            return Err(PgError::error("42501", format!("permission denied for table {name}")));
        }
        Ok(())
    }

    fn select(
        &mut self,
        cluster: &mut Cluster,
        select: &Select,
        portal: &Portal,
        notices: &mut Vec<PgError>,
    ) -> Result<Rows, PgError> {
        let mut rows = VecDeque::new();
        match select {
            Select::Row(row) => {
                let mut values = Vec::new();
                for (index, scalar) in row.iter().enumerate() {
                    let folded = portal.analysis.folded.get(index).cloned().flatten();
                    values.push(match folded {
                        Some(value) => Some(value),
                        None => self.scalar(cluster, scalar, &portal.params, notices)?,
                    });
                }
                rows.push_back(values);
            }
            Select::Channels => {
                let process = cluster.processes.get(&self.process);
                let listens = process.into_iter().flat_map(|process| &process.listens);
                rows.extend(listens.map(|channel| vec![Some(channel.clone())]));
            }
            Select::Series { count: limit, width } => {
                let width = usize::try_from(*width).unwrap_or(0);
                for row in 1..=count(*limit, &portal.params) {
                    let mut text = format!("{row:.>width$}");
                    text.truncate(width);
                    rows.push_back(vec![Some(text)]);
                }
            }
            Select::Failing { dividend, fails_at, count: limit } => {
                for row in 1..=count(*limit, &portal.params) {
                    match dividend.checked_div(fails_at - row) {
                        Some(value) => rows.push_back(vec![Some(value.to_string())]),
                        None => {
                            let error = PgError::error("22012", "division by zero");
                            return Ok((rows, Some(error), "SELECT"));
                        }
                    }
                }
            }
            Select::Totals(_) | Select::Values(_) => match &portal.analysis.relation {
                Some(Relation::Probe(value)) => rows.push_back(vec![Some((*value).to_owned())]),
                Some(relation) => {
                    let values = self.table(cluster, relation);
                    if matches!(select, Select::Values(_)) {
                        rows.extend(values.iter().map(|value| vec![Some(value.to_string())]));
                    } else {
                        let sum: i64 = values.iter().map(|&value| i64::from(value)).sum();
                        let sum = (!values.is_empty()).then(|| sum.to_string());
                        rows.push_back(vec![Some(values.len().to_string()), sum]);
                    }
                }
                None => {}
            },
        }
        Ok((rows, None, "SELECT"))
    }

    /// A table's rows as this transaction sees them.
    pub(super) fn table(&self, cluster: &Cluster, relation: &Relation) -> Vec<i32> {
        match relation {
            Relation::Temp(name) => {
                self.now.temp.get(name).map(|table| table.rows.clone()).unwrap_or_default()
            }
            Relation::Table(name) => {
                let database = cluster.databases.get(&self.database);
                let committed = database.and_then(|database| database.tables.get(name));
                let mut rows = committed.cloned().unwrap_or_default();
                for (table, change) in &self.now.changes {
                    if table == name {
                        change.apply(&mut rows);
                    }
                }
                rows
            }
            Relation::Probe(_) => Vec::new(),
        }
    }

    fn scalar(
        &mut self,
        cluster: &mut Cluster,
        scalar: &Scalar,
        params: &[Datum],
        notices: &mut Vec<PgError>,
    ) -> Result<Datum, PgError> {
        let truth = |value: bool| Some(if value { "t" } else { "f" }.to_owned());
        let nothing = Some(String::new());
        Ok(match scalar {
            Scalar::Text(text) => Some(text.clone()),
            Scalar::Int(number) => Some(number.to_string()),
            Scalar::Null => None,
            Scalar::Param(number) | Scalar::Cast(number, _) => {
                params.get(number - 1).cloned().flatten()
            }
            Scalar::Divide(dividend, divisor) => Some((dividend / divisor).to_string()),
            Scalar::SetConfig(name, value, local) => {
                let name = self
                    .scalar(cluster, name, params, notices)?
                    .ok_or_else(|| PgError::error("22004", "SET requires parameter name"))?
                    .to_lowercase();
                let value = self.scalar(cluster, value, params, notices)?;
                let value = value.map(|value| match name.as_str() {
                    "search_path" => settings::path_names(&value),
                    _ => vec![value],
                });
                self.set(cluster, &name, value.as_deref(), *local)?;
                self.setting(&name).map(str::to_owned)
            }
            Scalar::CurrentSetting(name, missing_ok) => match self.setting(name) {
                Some(value) => Some(value.to_owned()),
                None if *missing_ok => None,
                None => return Err(unknown_setting(name)),
            },
            Scalar::Nextval(name) => {
                self.writes("nextval()")?;
                let database = cluster.databases.get_mut(&self.database);
                let sequence = database.and_then(|database| database.sequences.get_mut(name));
                let last = sequence.expect("checked by the analysis; sequences stay");
                *last += 1;
                self.sequences.insert(name.clone(), *last);
                self.last_sequence = Some(name.clone());
                Some(last.to_string())
            }
            Scalar::Currval(name) => match self.sequences.get(name) {
                Some(value) => Some(value.to_string()),
                None => {
                    let message = format!(
                        "currval of sequence \"{name}\" is not yet defined in this session"
                    );
                    return Err(PgError::error("55000", message));
                }
            },
            Scalar::Lastval => {
                let last = self.last_sequence.as_ref().and_then(|name| self.sequences.get(name));
                let message = "lastval is not yet defined in this session";
                Some(last.ok_or_else(|| PgError::error("55000", message))?.to_string())
            }
            Scalar::Lock(key) => {
                let taken = cluster.lock(self.process, &self.database, *key);
                debug_assert!(taken, "the wait came before");
                nothing
            }
            Scalar::TryLock(key) => truth(cluster.lock(self.process, &self.database, *key)),
            Scalar::Unlock(key) => {
                let held = cluster.unlock(self.process, &self.database, *key);
                if !held {
                    notices.push(PgError::warning(
                        "01000",
                        "you don't own a lock of type ExclusiveLock",
                    ));
                }
                truth(held)
            }
            Scalar::Hidden(hidden) => self.hidden(cluster, hidden, notices)?,
            Scalar::UnlockAll => {
                cluster.unlock_all(self.process);
                nothing
            }
            Scalar::SetInSession(name) => {
                let own = self.defaults.get(name);
                self.setting(name).filter(|value| own != Some(value)).map(str::to_owned)
            }
            Scalar::Holds(part) => truth(self.holds(cluster, *part)),
            Scalar::Sleep(_) => nothing,
            Scalar::CurrentUser => Some(self.current_user().to_owned()),
            Scalar::BackendPid => Some(self.process.0.to_string()),
            Scalar::EpochOfTimestamp(_) | Scalar::EpochOfInterval(_) | Scalar::DaysBetween(..) => {
                unreachable!("folded by the analysis")
            }
        })
    }

    /// What a function does.
    fn hidden(
        &mut self,
        cluster: &mut Cluster,
        hidden: &Hidden,
        notices: &mut Vec<PgError>,
    ) -> Result<Datum, PgError> {
        let plain = match hidden {
            Hidden::Set(name, value) => {
                let text = |text: &String| Box::new(Scalar::Text(text.clone()));
                Scalar::SetConfig(text(name), text(value), false)
            }
            Hidden::Reset(name) => {
                self.set(cluster, name, None, false)?;
                return Ok(Some(String::new()));
            }
            Hidden::Lock(key) => Scalar::Lock(*key),
            Hidden::Unlock(key) => Scalar::Unlock(*key),
            Hidden::Temp(name) => {
                self.create_temp(name, false)?;
                return Ok(Some(String::new()));
            }
        };
        self.scalar(cluster, &plain, &[], notices)
    }

    /// Whether the session has any of this part. Statements of the protocol are not among those of
    /// SQL: a pooler gives them names of its own.
    fn holds(&self, cluster: &Cluster, part: Part) -> bool {
        match part {
            Part::TemporaryObject => !self.now.temp.is_empty(),
            Part::HeldCursor => self.portals.values().any(|portal| portal.hold),
            Part::AdvisoryLock => cluster.locks.values().any(|(holder, _)| *holder == self.process),
            Part::SqlStatement => {
                self.statements.keys().any(|name| !name.is_empty() && !name.starts_with("hw"))
            }
            other => unreachable!("nobody asks for {other}"),
        }
    }

    fn writes(&self, what: &str) -> Result<(), PgError> {
        if self.read_only {
            let message = format!("cannot execute {what} in a read-only transaction");
            return Err(PgError::error("25006", message));
        }
        Ok(())
    }

    fn write(
        &mut self,
        cluster: &Cluster,
        statement: &Statement,
        portal: &Portal,
    ) -> Result<(Datum, usize), PgError> {
        let relation = portal.analysis.relation.clone().expect("the analysis has found a table");
        self.readable(Some(&relation))?;
        let (change, word, value) = match statement {
            Statement::Insert { value, .. } => {
                let value = match value {
                    Scalar::Int(value) => *value,
                    Scalar::Param(number) => {
                        let value = portal.params.get(number - 1).cloned().flatten();
                        value.and_then(|value| value.parse().ok()).unwrap_or(0)
                    }
                    _ => unreachable!("the parser takes no other"),
                };
                (Change::Insert(value), "INSERT", Some(value.to_string()))
            }
            Statement::Update(_, delta) => (Change::AddToAll(*delta), "UPDATE", None),
            _ => (Change::DeleteAll, "DELETE", None),
        };
        let affected = match change {
            Change::Insert(_) => 1,
            _ => self.table(cluster, &relation).len(),
        };
        self.change(&relation, change, word)?;
        Ok((value, affected))
    }

    /// Changes a table within this transaction.
    pub(super) fn change(
        &mut self,
        relation: &Relation,
        change: Change,
        word: &str,
    ) -> Result<(), PgError> {
        match relation {
            Relation::Temp(name) => {
                if let Some(table) = self.now.temp.get_mut(name) {
                    change.apply(&mut table.rows);
                }
            }
            Relation::Table(name) => {
                self.writes(word)?;
                self.now.changes.push((name.clone(), change));
            }
            Relation::Probe(_) => {
                return Err(PgError::error("42501", "permission denied for table probe"));
            }
        }
        Ok(())
    }

    /// The table that COPY FROM writes.
    pub(super) fn copy_target(&self, name: &str) -> Result<Relation, PgError> {
        let relation = plan::relation(self, name)?;
        self.readable(Some(&relation))?;
        if matches!(relation, Relation::Table(_)) {
            self.writes("COPY FROM")?;
        }
        Ok(relation)
    }

    /// The columns of what COPY and other utility statements do not describe.
    pub(super) fn copy_source(&self, cluster: &Cluster, name: &str) -> Result<Vec<i32>, PgError> {
        let relation = plan::relation(self, name)?;
        self.readable(Some(&relation))?;
        let mut rows = self.table(cluster, &relation);
        rows.sort_unstable();
        Ok(rows)
    }
}

pub(super) fn no_statement(name: &str) -> PgError {
    if name.is_empty() {
        return PgError::error("26000", "unnamed prepared statement does not exist");
    }
    PgError::error("26000", format!("prepared statement \"{name}\" does not exist"))
}

pub(super) fn cursor_exists(name: &str) -> PgError {
    PgError::error("42P03", format!("cursor \"{name}\" already exists"))
}

fn no_cursor(name: &str) -> PgError {
    PgError::error("34000", format!("cursor \"{name}\" does not exist"))
}

/// A value as it goes over the wire in text or binary.
pub(super) fn encode(value: &str, column: &Column, binary: bool) -> Vec<u8> {
    use super::sql::Type;
    let text = || value.as_bytes().to_vec();
    if !binary {
        return text();
    }
    match column.kind {
        Type::Int4 => value.parse::<i32>().map_or_else(|_| text(), |n| n.to_be_bytes().to_vec()),
        Type::Int8 => value.parse::<i64>().map_or_else(|_| text(), |n| n.to_be_bytes().to_vec()),
        Type::Bool => vec![u8::from(value == "t")],
        Type::Text | Type::Name | Type::Void => text(),
    }
}

/// The reverse of [`encode`], with the server's complaints.
pub(super) fn decode(
    value: &[u8],
    kind: super::sql::Type,
    binary: bool,
    number: usize,
) -> Result<String, PgError> {
    use super::sql::Type;
    let integer = |name: &str, text: &str| {
        PgError::error("22P02", format!("invalid input syntax for type {name}: \"{text}\""))
    };
    if binary {
        let wrong = || {
            let message = format!("incorrect binary data format in bind parameter {number}");
            PgError::error("22P03", message)
        };
        return match kind {
            Type::Int4 => {
                let bytes = value.try_into().map_err(|_| wrong())?;
                Ok(i32::from_be_bytes(bytes).to_string())
            }
            Type::Int8 => {
                let bytes = value.try_into().map_err(|_| wrong())?;
                Ok(i64::from_be_bytes(bytes).to_string())
            }
            _ => String::from_utf8(value.to_vec()).map_err(|_| wrong()),
        };
    }
    let text = String::from_utf8(value.to_vec())
        .map_err(|_| PgError::error("22021", "invalid byte sequence for encoding \"UTF8\""))?;
    match kind {
        Type::Int4 => {
            text.trim().parse::<i32>().map(|n| n.to_string()).map_err(|_| integer("integer", &text))
        }
        Type::Int8 => {
            text.trim().parse::<i64>().map(|n| n.to_string()).map_err(|_| integer("bigint", &text))
        }
        _ => Ok(text),
    }
}
