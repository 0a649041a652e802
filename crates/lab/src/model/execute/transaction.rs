//! Statements that begin and end transactions, and what a commit makes everyone's.

use crate::model::cluster::Cluster;
use crate::model::error::PgError;
use crate::model::session::{Block, Listening, Session};
use crate::model::sql::Statement;

impl Session {
    pub(super) fn control(
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
    pub(in crate::model) fn commit_to(&mut self, cluster: &mut Cluster) {
        let done = self.commit();
        if let Some(database) = cluster.databases.get_mut(&self.database) {
            for (table, change) in done.changes {
                if let Some(rows) = database.tables.get_mut(&table) {
                    change.apply(rows);
                }
            }
        }
        let process = cluster.processes.get_mut(&self.process);
        let process = process.expect("a session's process is in the cluster");
        let listens = &mut process.listens;
        // PostgreSQL registers before it sends, so a LISTEN gets its own transaction's NOTIFY;
        // after an UNLISTEN it does not, since reading comes after the commit.
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
        if listens.is_empty() {
            process.inbox.clear(); // its place in the queue is given up (`asyncQueueUnregister`)
        }
        for notification in done.notifications {
            cluster.notify(&self.database, &notification);
        }
    }
}
