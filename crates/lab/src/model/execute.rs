//! What each statement does to a session and its server.
//!
//! # Model
//! Statements that return rows compute all of them when they are first run; what is sent of them
//! and when is the caller's affair. A statement that would wait (a sleep, a lock) says so before
//! it has changed anything, and is simply tried again.

mod rows;
mod scalar;
mod state;
mod transaction;
mod write;

use std::collections::VecDeque;
use std::time::Duration;

use super::cluster::Cluster;
use super::error::PgError;
use super::plan;
use super::portal::{Datum, Portal, Prepared, Progress};
use super::session::{Listening, Session};
use super::sql::{Hidden, Scalar, Select, Statement};

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
        if let Statement::Select(Select::Row(row)) = statement
            && let Some(text) = row.iter().find_map(|scalar| match scalar {
                Scalar::NoNumber(text) => Some(text),
                _ => None,
            })
        {
            let message = format!("invalid input syntax for type integer: \"{text}\"");
            return Err(PgError::error("22P02", message));
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
            Statement::Prepare { .. } | Statement::Execute(..) | Statement::Deallocate(_) => {
                self.run_prepared(cluster, statement, portal, notices)
            }
            Statement::Listen(_) | Statement::Unlisten(_) | Statement::Notify(..) => {
                Ok(self.listen(statement).to_owned())
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

    /// PREPARE, EXECUTE and DEALLOCATE.
    fn run_prepared(
        &mut self,
        cluster: &mut Cluster,
        statement: &Statement,
        portal: &Portal,
        notices: &mut Vec<PgError>,
    ) -> Result<String, PgError> {
        match statement {
            Statement::Prepare { name, types, body, text } => {
                let declared: Vec<_> = types.iter().copied().map(Some).collect();
                let mut prepared = plan::prepare(self, Some((**body).clone()), &declared)?;
                self.prepared += 1;
                (prepared.sent, prepared.from_sql) = ((self.prepared, text.clone()), true);
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
            _ => unreachable!("statements of PREPARE alone"),
        }
    }

    /// LISTEN, UNLISTEN and NOTIFY, which take effect at the end of the transaction; gives the tag.
    fn listen(&mut self, statement: &Statement) -> &'static str {
        match statement {
            Statement::Listen(channel) => {
                self.now.listening.push(Listening::Listen(channel.clone()));
                "LISTEN"
            }
            Statement::Unlisten(channel) => {
                self.now.listening.push(match channel {
                    Some(channel) => Listening::Unlisten(channel.clone()),
                    None => Listening::UnlistenAll,
                });
                "UNLISTEN"
            }
            Statement::Notify(channel, payload) => {
                self.now.notifications.push((channel.clone(), payload.clone()));
                "NOTIFY"
            }
            _ => unreachable!("statements about channels alone"),
        }
    }

    fn declare(&mut self, name: &str, hold: bool, query: &Select) -> Result<String, PgError> {
        if !hold && !self.in_block() {
            let message = "DECLARE CURSOR can only be used in transaction blocks";
            return Err(PgError::error("25P01", message));
        }
        let statement = Statement::Select(query.clone());
        let analysis = plan::analyse(self, Some(&statement), &[])?;
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
        plan::revalidate(&mut prepared, self)?;
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
