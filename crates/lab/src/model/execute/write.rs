//! What a transaction changes in tables.

use crate::model::cluster::Cluster;
use crate::model::commit::Change;
use crate::model::error::PgError;
use crate::model::plan;
use crate::model::portal::{Datum, Portal, Relation};
use crate::model::session::Session;
use crate::model::sql::{Scalar, Statement};

impl Session {
    pub(super) fn writes(&self, what: &str) -> Result<(), PgError> {
        if self.read_only {
            let message = format!("cannot execute {what} in a read-only transaction");
            return Err(PgError::error("25006", message));
        }
        Ok(())
    }

    pub(super) fn write(
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
    pub(in crate::model) fn change(
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
    pub(in crate::model) fn copy_target(&self, name: &str) -> Result<Relation, PgError> {
        let relation = plan::relation(self, name)?;
        self.readable(Some(&relation))?;
        if matches!(relation, Relation::Table(_)) {
            self.writes("COPY FROM")?;
        }
        Ok(relation)
    }

    /// The columns of what COPY and other utility statements do not describe.
    pub(in crate::model) fn copy_source(
        &self,
        cluster: &Cluster,
        name: &str,
    ) -> Result<Vec<i32>, PgError> {
        let relation = plan::relation(self, name)?;
        self.readable(Some(&relation))?;
        let mut rows = self.table(cluster, &relation);
        rows.sort_unstable();
        Ok(rows)
    }
}
