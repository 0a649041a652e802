//! The simple query protocol, and the running of portals that both protocols share.

use super::{CopyIn, ModelBackend, SimpleQuery};
use crate::model::datum::encode;
use crate::model::error::PgError;
use crate::model::execute::Wait;
use crate::model::plan;
use crate::model::portal::{Column, Portal, Progress};
use crate::model::session::{Block, Session};
use crate::model::sql::{Parsed, Statement, parse};
use crate::model::wire::{Body, Reader};

/// What has become of a portal that was run.
#[derive(Debug)]
pub(super) enum Run {
    /// It waits, and has changed nothing.
    Waits,
    /// It waits for the client's data.
    CopiesIn,
    /// The row limit was reached.
    Suspended,
    /// The end, with the tag; `None` for an empty statement.
    Complete(Option<String>),
}

impl ModelBackend {
    pub(super) fn begin_query(&mut self, body: &[u8]) -> Result<(), PgError> {
        let mut reader = Reader::new(body);
        let text = reader.text()?;
        reader.end()?;
        self.session().start();
        self.session().statements.remove("");
        let statements = self.parse_text(&text)?;
        self.query = Some(SimpleQuery {
            many: statements.len() > 1,
            empty: statements.is_empty(),
            statements: statements.into(),
            current: None,
        });
        Ok(())
    }

    pub(super) fn parse_text(&mut self, text: &str) -> Result<Vec<Parsed>, PgError> {
        let conforming = self.session().setting("standard_conforming_strings") != Some("off");
        let parsed = parse(text, conforming)?;
        if parsed.iter().any(|parsed| parsed.nonstandard_escape) {
            let message = "nonstandard use of escape in a string literal";
            self.notices(vec![PgError::warning("22P06", message)]);
        }
        Ok(parsed)
    }

    pub(super) fn simple_query(&mut self) -> Result<bool, PgError> {
        let mut query = self.query.take().expect("the caller has seen it");
        let mut portal = match query.current.take() {
            Some(portal) => portal,
            None => match query.statements.pop_front() {
                Some(parsed) => self.open_simple(parsed, query.many)?,
                None => {
                    self.finish();
                    if query.empty {
                        self.send(&Body::new().message(b'I'));
                    }
                    self.ready();
                    return Ok(true);
                }
            },
        };
        let run = self.run_portal(&mut portal, 0, true)?;
        match run {
            Run::Waits => {
                query.current = Some(portal);
                self.query = Some(query);
                Ok(false)
            }
            Run::CopiesIn => {
                query.current = Some(portal);
                self.query = Some(query);
                Ok(true)
            }
            Run::Complete(tag) => {
                self.complete_simple(query, &portal, tag);
                Ok(true)
            }
            Run::Suspended => unreachable!("there was no limit"),
        }
    }

    fn complete_simple(&mut self, query: SimpleQuery, portal: &Portal, tag: Option<String>) {
        let controls = portal.statement.as_ref().is_some_and(Statement::controls_transaction);
        if query.statements.is_empty() {
            if self.session().block == Block::Implicit {
                self.session().block = Block::Started;
            }
            self.finish();
        } else if controls {
            self.finish();
        }
        self.complete(tag);
        self.query = Some(query);
    }

    /// The data of a COPY FROM in a simple query has all come.
    pub(super) fn resume_simple(&mut self, tag: String) {
        let mut query = self.query.take().expect("the COPY belongs to it");
        let portal = query.current.take().expect("the COPY is its statement");
        self.complete_simple(query, &portal, Some(tag));
    }

    fn open_simple(&mut self, parsed: Parsed, many: bool) -> Result<Portal, PgError> {
        let session = self.session();
        if session.block == Block::Failed && !parsed.statement.ends_transaction() {
            return Err(PgError::aborted());
        }
        session.start();
        if many && session.block == Block::Started {
            session.block = Block::Implicit;
        }
        if !parsed.params.is_empty() {
            return Err(PgError::error("42P02", "there is no parameter $1"));
        }
        let analysis = plan::analyse(session, Some(&parsed.statement), &[])?;
        Session::plan(&parsed.statement)?;
        // A simple query runs in the unnamed portal, and so replaces it.
        session.portals.remove("");
        let portal = Portal {
            statement: Some(parsed.statement),
            analysis,
            params: Vec::new(),
            formats: Vec::new(),
            progress: Progress::New,
            created_at: Some(session.depth()),
            hold: false,
        };
        // A plain SELECT describes its rows before it computes the first; the others after.
        if let (Some(Statement::Select(_)), Some(columns)) =
            (&portal.statement, &portal.analysis.columns)
        {
            let columns = columns.clone();
            self.describe_rows(&columns, &portal);
        }
        Ok(portal)
    }

    pub(super) fn describe_rows(&mut self, columns: &[Column], portal: &Portal) {
        let mut body = Body::new().int16(columns.len());
        for (index, column) in columns.iter().enumerate() {
            body = body
                .text(&column.name)
                .int32(0)
                .int16(0)
                .int32(column.kind.oid())
                .int16(column.kind.length())
                .int32(-1)
                .int16(usize::from(portal.format(index)));
        }
        self.send(&body.message(b'T'));
    }

    /// Runs a portal up to `limit` rows, 0 for all.
    pub(super) fn run_portal(
        &mut self,
        portal: &mut Portal,
        limit: usize,
        simple: bool,
    ) -> Result<Run, PgError> {
        let Some(statement) = portal.statement.clone() else { return Ok(Run::Complete(None)) };
        if matches!(portal.progress, Progress::New) {
            if self.must_wait(&statement)? {
                return Ok(Run::Waits);
            }
            let server = self.server.clone();
            match &statement {
                Statement::CopyIn(table) => {
                    let relation = self.session().copy_target(table)?;
                    self.send(&Body::new().byte(0).int16(1).int16(0).message(b'G'));
                    self.flush();
                    self.copy = Some(CopyIn::new(relation));
                    portal.progress = Progress::Done;
                    return Ok(Run::CopiesIn);
                }
                Statement::CopyOut(table) => {
                    let rows = self.session().copy_source(&server.lock(), table)?;
                    portal.progress = Progress::Done;
                    return Ok(Run::Complete(Some(self.copy_out(&rows))));
                }
                _ => {}
            }
            let mut notices = Vec::new();
            let columns = portal.analysis.columns.clone();
            let done = match &columns {
                None => {
                    let done =
                        self.session().run(&mut server.lock(), &statement, portal, &mut notices);
                    done.map(|tag| {
                        portal.progress = Progress::Done;
                        Some(tag)
                    })
                }
                Some(_) => {
                    let rows =
                        self.session().rows(&mut server.lock(), &statement, portal, &mut notices);
                    rows.map(|(rows, error, tag)| {
                        portal.progress = Progress::Rows(rows, error, tag);
                        None
                    })
                }
            };
            self.notices(notices);
            if let Some(tag) = done? {
                return Ok(Run::Complete(Some(tag)));
            }
            if let (true, Some(columns)) =
                (simple && !matches!(statement, Statement::Select(_)), &columns)
            {
                self.describe_rows(columns, portal);
            }
        }
        self.send_rows(portal, limit)
    }

    fn send_rows(&mut self, portal: &mut Portal, limit: usize) -> Result<Run, PgError> {
        let columns = portal.analysis.columns.clone().unwrap_or_default();
        let mut sent = 0;
        loop {
            if limit > 0 && sent == limit {
                return Ok(Run::Suspended);
            }
            let Progress::Rows(rows, error, tag) = &mut portal.progress else {
                return Err(PgError::error("55000", "portal cannot be run"));
            };
            let Some(row) = rows.pop_front() else {
                if let Some(error) = error.take() {
                    return Err(error);
                }
                let tag = if *tag == "SHOW" { (*tag).to_owned() } else { format!("{tag} {sent}") };
                return Ok(Run::Complete(Some(tag)));
            };
            let mut body = Body::new().int16(row.len());
            for (index, (value, column)) in row.iter().zip(&columns).enumerate() {
                let binary = portal.format(index);
                let value = value.as_ref().map(|value| encode(value, column, binary));
                body = body.value(value.as_deref());
            }
            self.send(&body.message(b'D'));
            sent += 1;
        }
    }

    /// Whether the statement sleeps on, or waits for a lock.
    fn must_wait(&mut self, statement: &Statement) -> Result<bool, PgError> {
        let server = self.server.clone();
        let cluster = &mut *server.lock();
        let session = self.session();
        let Some(wait) = session.wait(cluster, statement) else { return Ok(false) };
        let process = session.process;
        let now = cluster.now;
        let cancelled = cluster.processes.get_mut(&process).map(|found| &mut found.cancelled);
        if cancelled.is_some_and(std::mem::take) {
            return Err(PgError::cancelled());
        }
        Ok(match wait {
            Wait::Lock => true,
            Wait::Sleep(duration) => {
                let wakes_at = *self.wakes_at.get_or_insert(now + duration);
                if now >= wakes_at {
                    self.wakes_at = None;
                }
                now < wakes_at
            }
        })
    }

    pub(super) fn complete(&mut self, tag: Option<String>) {
        match tag {
            Some(tag) => self.send(&Body::new().text(&tag).message(b'C')),
            None => self.send(&Body::new().message(b'I')),
        }
    }
}
