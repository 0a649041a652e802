//! The rows of statements that return rows, and of tables.

use std::collections::VecDeque;

use super::{Rows, no_cursor};
use crate::model::catalog::has_role;
use crate::model::cluster::Cluster;
use crate::model::error::PgError;
use crate::model::plan::{count, unknown_setting};
use crate::model::portal::{Datum, Portal, Progress, Relation};
use crate::model::session::Session;
use crate::model::sql::{Select, Statement};

impl Session {
    /// The rows of a statement that returns rows.
    pub(in crate::model) fn rows(
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

    pub(super) fn readable(&self, relation: Option<&Relation>) -> Result<(), PgError> {
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
    pub(in crate::model) fn table(&self, cluster: &Cluster, relation: &Relation) -> Vec<i32> {
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
}
