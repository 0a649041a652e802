//! What a session has and can lose: settings, role, temporary tables, and DISCARD of it all.

use crate::model::catalog::{SUPERUSER, has_role};
use crate::model::cluster::Cluster;
use crate::model::error::PgError;
use crate::model::plan::{self, unknown_setting};
use crate::model::portal::Relation;
use crate::model::session::{Listening, Session, TempTable};
use crate::model::settings;
use crate::model::sql::{Discard, Statement};

impl Session {
    pub(in crate::model) fn set(
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

    pub(super) fn discard(
        &mut self,
        cluster: &mut Cluster,
        what: Discard,
    ) -> Result<String, PgError> {
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

    pub(super) fn create_temp(&mut self, name: &str, drop_on_commit: bool) -> Result<(), PgError> {
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

    pub(super) fn drop_table(&mut self, name: &str) -> Result<String, PgError> {
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
}
