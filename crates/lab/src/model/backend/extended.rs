//! The extended query protocol, and the function call beside it.

use super::query::Run;
use super::{Executing, ModelBackend};
use crate::model::catalog;
use crate::model::datum::decode;
use crate::model::error::PgError;
use crate::model::execute::{cursor_exists, no_statement};
use crate::model::plan;
use crate::model::portal::{Portal, Progress};
use crate::model::session::{Block, Session};
use crate::model::sql::{Discard, Statement, Type};
use crate::model::wire::{Body, Reader};

/// `int4pl`, the sum of two integers: the one function that a function call may name.
const INT4_SUM: i32 = 177;

impl ModelBackend {
    pub(super) fn parse(&mut self, body: &[u8]) -> Result<(), PgError> {
        let mut reader = Reader::new(body);
        let (name, text) = (reader.text()?, reader.text()?);
        let declared = (0..reader.int16()?)
            .map(|_| Ok(Type::from_oid(reader.int32()?)))
            .collect::<Result<Vec<_>, PgError>>()?;
        reader.end()?;
        self.session().start();
        if name.is_empty() {
            self.session().statements.remove("");
        }
        let mut statements = self.parse_text(&text)?;
        if statements.len() > 1 {
            let message = "cannot insert multiple commands into a prepared statement";
            return Err(PgError::error("42601", message));
        }
        let parsed = statements.pop();
        let session = self.session();
        if let Some(parsed) = &parsed
            && session.block == Block::Failed
            && !parsed.statement.ends_transaction()
        {
            return Err(PgError::aborted());
        }
        let mut prepared = plan::prepare(session, parsed, &declared)?;
        session.prepared += 1;
        prepared.sent = (session.prepared, text);
        session.add_statement(&name, prepared)?;
        self.send(&Body::new().message(b'1'));
        Ok(())
    }

    pub(super) fn bind(&mut self, body: &[u8]) -> Result<(), PgError> {
        let mut reader = Reader::new(body);
        let (name, statement) = (reader.text()?, reader.text()?);
        let formats = formats(&mut reader)?;
        let values =
            (0..reader.int16()?).map(|_| reader.value()).collect::<Result<Vec<_>, PgError>>()?;
        let result_formats = self::formats(&mut reader)?;
        reader.end()?;
        let session = self.session();
        let found = session.statements.get(&statement).cloned();
        let mut prepared = found.ok_or_else(|| no_statement(&statement))?;
        session.start();
        let (given, wanted) = (values.len(), prepared.params.len());
        if formats.len() > 1 && formats.len() != given {
            let message = format!(
                "bind message has {} parameter formats but {given} parameters",
                formats.len()
            );
            return Err(PgError::error("08P01", message));
        }
        if given != wanted {
            let message = format!(
                "bind message supplies {given} parameters, but prepared statement \"{statement}\" requires {wanted}"
            );
            return Err(PgError::error("08P01", message));
        }
        let ends =
            prepared.parsed.as_ref().is_some_and(|parsed| parsed.statement.ends_transaction());
        if session.block == Block::Failed && (!ends || wanted != 0) {
            return Err(PgError::aborted());
        }
        if name.is_empty() {
            session.portals.remove("");
        } else if session.portals.contains_key(&name) {
            return Err(cursor_exists(&name));
        }
        let params = values
            .iter()
            .zip(&prepared.params)
            .enumerate()
            .map(|(index, (value, kind))| {
                let binary = match formats.as_slice() {
                    [] => false,
                    [all] => *all,
                    each => each[index],
                };
                value.as_ref().map(|value| decode(value, *kind, binary, index + 1)).transpose()
            })
            .collect::<Result<Vec<_>, PgError>>()?;
        plan::revalidate(&mut prepared, session)?;
        if let Some(parsed) = &prepared.parsed {
            Session::plan(&parsed.statement)?;
        }
        let columns = prepared.analysis.columns.as_ref().map_or(0, Vec::len);
        if result_formats.len() > 1 && result_formats.len() != columns {
            let message = format!(
                "bind message has {} result formats but query has {columns} columns",
                result_formats.len()
            );
            return Err(PgError::error("08P01", message));
        }
        let portal = Portal {
            statement: prepared.parsed.as_ref().map(|parsed| parsed.statement.clone()),
            analysis: prepared.analysis.clone(),
            params,
            formats: result_formats,
            progress: Progress::New,
            created_at: Some(session.depth()),
            hold: false,
        };
        session.statements.insert(statement, prepared);
        session.portals.insert(name, portal);
        self.send(&Body::new().message(b'2'));
        Ok(())
    }

    pub(super) fn describe(&mut self, body: &[u8]) -> Result<(), PgError> {
        let mut reader = Reader::new(body);
        let (kind, name) = (reader.byte()?, reader.text()?);
        reader.end()?;
        let session = self.session();
        match kind {
            b'S' => {
                session.start();
                let found = session.statements.get(&name).cloned();
                let mut prepared = found.ok_or_else(|| no_statement(&name))?;
                if session.block == Block::Failed && prepared.analysis.columns.is_some() {
                    return Err(PgError::aborted());
                }
                let body = Body::new().int16(prepared.params.len());
                let body = prepared.params.iter().fold(body, |body, kind| body.int32(kind.oid()));
                self.send(&body.message(b't'));
                // Describing rows makes the server look at the plan again, as Bind does.
                if prepared.analysis.columns.is_some() {
                    plan::revalidate(&mut prepared, self.session())?;
                    self.session().statements.insert(name, prepared.clone());
                }
                let portal = Portal {
                    statement: None,
                    analysis: prepared.analysis,
                    params: Vec::new(),
                    formats: Vec::new(),
                    progress: Progress::New,
                    created_at: None,
                    hold: false,
                };
                self.describe_portal(&portal);
            }
            b'P' => {
                session.start();
                let portal = session.portals.get(&name).cloned();
                let portal = portal.ok_or_else(|| no_portal(&name))?;
                if session.block == Block::Failed && portal.analysis.columns.is_some() {
                    return Err(PgError::aborted());
                }
                self.describe_portal(&portal);
            }
            other => {
                let message = format!("invalid DESCRIBE message subtype {other}");
                return Err(PgError::error("08P01", message));
            }
        }
        Ok(())
    }

    fn describe_portal(&mut self, portal: &Portal) {
        match &portal.analysis.columns {
            Some(columns) => self.describe_rows(columns, portal),
            None => self.send(&Body::new().message(b'n')),
        }
    }

    pub(super) fn begin_execute(&mut self, body: &[u8]) -> Result<(), PgError> {
        let mut reader = Reader::new(body);
        let (portal, limit) = (reader.text()?, reader.int32()?);
        reader.end()?;
        let session = self.session();
        let found = session.portals.get(&portal).ok_or_else(|| no_portal(&portal))?;
        if let Some(statement) = &found.statement {
            if session.block == Block::Failed && !statement.ends_transaction() {
                return Err(PgError::aborted());
            }
            session.start();
        }
        // A negative limit means none.
        self.executing = Some(Executing { portal, limit: usize::try_from(limit).unwrap_or(0) });
        Ok(())
    }

    pub(super) fn execute(&mut self) -> Result<bool, PgError> {
        let executing = self.executing.take().expect("the caller has seen it");
        // Out of the map while it runs: an error, or a COMMIT, may end all portals.
        let portal = self.session().portals.remove(&executing.portal);
        let mut portal = portal.expect("nothing happens between Execute and its run");
        if matches!(portal.progress, Progress::Done) {
            let message = format!("portal \"{}\" cannot be run", executing.portal);
            return Err(PgError::error("55000", message));
        }
        let created_at = portal.created_at;
        match self.run_portal(&mut portal, executing.limit, false)? {
            Run::Waits => {
                self.session().portals.insert(executing.portal.clone(), portal);
                self.executing = Some(executing);
                Ok(false)
            }
            Run::CopiesIn => {
                self.session().portals.insert(executing.portal.clone(), portal);
                self.executing = Some(executing);
                Ok(true)
            }
            Run::Suspended => {
                self.session().portals.insert(executing.portal, portal);
                self.session().pipelining = true;
                self.send(&Body::new().message(b's'));
                Ok(true)
            }
            Run::Complete(tag) => {
                let statement = portal.statement.clone();
                // It goes on existing unless its own statement has ended what it lived in.
                let session = self.session();
                let lives = match &statement {
                    Some(
                        Statement::Commit | Statement::Rollback | Statement::Discard(Discard::All),
                    ) => false,
                    Some(Statement::RollbackTo(_)) => {
                        created_at.is_some_and(|at| at < session.depth())
                    }
                    _ => true,
                };
                if lives {
                    portal.created_at = created_at.map(|at| at.min(session.depth()));
                    session.portals.insert(executing.portal, portal);
                }
                self.complete_execute(statement.as_ref(), tag);
                Ok(true)
            }
        }
    }

    fn complete_execute(&mut self, statement: Option<&Statement>, tag: Option<String>) {
        // Some statements commit at once, or what follows them in the pipeline would undo them.
        let at_once = statement.is_some_and(|statement| {
            statement.controls_transaction()
                || matches!(statement, Statement::Discard(Discard::All))
        });
        if at_once {
            self.finish();
        } else if statement.is_some() {
            self.session().pipelining = true;
        }
        self.complete(tag);
    }

    /// The data of a COPY FROM in an Execute has all come.
    pub(super) fn resume_execute(&mut self, tag: String) {
        self.executing = None;
        self.complete_execute(Some(&Statement::CopyIn(String::new())), Some(tag));
    }

    pub(super) fn close(&mut self, body: &[u8]) -> Result<(), PgError> {
        let mut reader = Reader::new(body);
        let (kind, name) = (reader.byte()?, reader.text()?);
        reader.end()?;
        match kind {
            b'S' => drop(self.session().statements.remove(&name)),
            b'P' => drop(self.session().portals.remove(&name)),
            other => {
                let message = format!("invalid CLOSE message subtype {other}");
                return Err(PgError::error("08P01", message));
            }
        }
        self.send(&Body::new().message(b'3'));
        Ok(())
    }

    pub(super) fn function_call(&mut self, body: &[u8]) -> Result<(), PgError> {
        let mut reader = Reader::new(body);
        let function = reader.int32()?;
        let formats = formats(&mut reader)?;
        let arguments =
            (0..reader.int16()?).map(|_| reader.value()).collect::<Result<Vec<_>, PgError>>()?;
        let binary_result = reader.int16()? == 1;
        reader.end()?;
        self.session().start();
        if self.session().block == Block::Failed {
            return Err(PgError::aborted());
        }
        if u32::try_from(function) == Ok(catalog::HAND_OVER) {
            return self.hand_over(&arguments);
        }
        if function != INT4_SUM {
            let message = format!("function with OID {function} does not exist");
            return Err(PgError::error("42883", message));
        }
        if arguments.len() != 2 {
            let message = format!(
                "function call message contains {} arguments but function requires 2",
                arguments.len()
            );
            return Err(PgError::error("08P01", message));
        }
        let mut sum = Some(0_i32);
        for (index, argument) in arguments.iter().enumerate() {
            let binary = formats.get(index).or(formats.first()).copied().unwrap_or(false);
            let value = argument
                .as_ref()
                .map(|argument| decode(argument, Type::Int4, binary, index + 1))
                .transpose()?;
            sum = sum.zip(value.and_then(|value| value.parse::<i32>().ok())).map(|(a, b)| a + b);
        }
        let text = |sum: i32| {
            if binary_result { sum.to_be_bytes().to_vec() } else { sum.to_string().into_bytes() }
        };
        self.send(&Body::new().value(sum.map(text).as_deref()).message(b'V'));
        self.finish();
        self.ready();
        Ok(())
    }
}

/// Format codes: true is binary.
fn formats(reader: &mut Reader<'_>) -> Result<Vec<bool>, PgError> {
    (0..reader.int16()?)
        .map(|_| match reader.int16()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(PgError::error("22023", format!("unsupported format code: {other}"))),
        })
        .collect()
}

fn no_portal(name: &str) -> PgError {
    PgError::error("34000", format!("portal \"{name}\" does not exist"))
}
