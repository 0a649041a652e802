//! What one expression of a row gives, and does.

use hawser_pooler::session::part::Part;

use crate::model::cluster::Cluster;
use crate::model::error::PgError;
use crate::model::plan::unknown_setting;
use crate::model::portal::Datum;
use crate::model::session::Session;
use crate::model::settings;
use crate::model::sql::{Hidden, Scalar};

impl Session {
    pub(super) fn scalar(
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
            Scalar::IsNull(of) => truth(self.scalar(cluster, of, params, notices)?.is_none()),
            Scalar::CurrentSetting(name, missing_ok) => match self.setting(name) {
                Some(value) => Some(value.to_owned()),
                None if *missing_ok => None,
                None => return Err(unknown_setting(name)),
            },
            Scalar::Nextval(_) | Scalar::Currval(_) | Scalar::Lastval => {
                Some(self.sequence_value(cluster, scalar)?.to_string())
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
                // By its source: also where the value is the one that RESET would give.
                let set = self.now.settings.is_set_in_session(name);
                self.setting(name).filter(|_| set).map(str::to_owned)
            }
            Scalar::Statements(names) => self.shown_statements(names),
            Scalar::Holds(part) => truth(self.holds(cluster, *part)),
            Scalar::NoNumber(_) => unreachable!("planning has failed"),
            Scalar::Sleep(_) => nothing,
            Scalar::CurrentUser => Some(self.current_user().to_owned()),
            Scalar::BackendPid => Some(self.process.0.to_string()),
            Scalar::EpochOfTimestamp(_) | Scalar::EpochOfInterval(_) | Scalar::DaysBetween(..) => {
                unreachable!("folded by the analysis")
            }
        })
    }

    /// What nextval(), currval() and lastval() give.
    fn sequence_value(&mut self, cluster: &mut Cluster, scalar: &Scalar) -> Result<i64, PgError> {
        let undefined =
            |of: &str| PgError::error("55000", format!("{of} is not yet defined in this session"));
        match scalar {
            Scalar::Nextval(name) => {
                self.writes("nextval()")?;
                let database = cluster.databases.get_mut(&self.database);
                let sequence = database.and_then(|database| database.sequences.get_mut(name));
                let last = sequence.expect("checked by the analysis; sequences stay");
                *last += 1;
                self.sequences.insert(name.clone(), *last);
                self.last_sequence = Some(name.clone());
                Ok(*last)
            }
            Scalar::Currval(name) => {
                let value = self.sequences.get(name).copied();
                value.ok_or_else(|| undefined(&format!("currval of sequence \"{name}\"")))
            }
            Scalar::Lastval => {
                let last = self.last_sequence.as_ref().and_then(|name| self.sequences.get(name));
                last.copied().ok_or_else(|| undefined("lastval"))
            }
            _ => unreachable!("functions of sequences alone"),
        }
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

    /// Names, texts and types of the statements of SQL's PREPARE, and of those of these names, as an
    /// array of arrays.
    fn shown_statements(&self, names: &[String]) -> Datum {
        let quoted = |text: &str| {
            let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
            format!("\"{escaped}\"")
        };
        let mut all: Vec<_> = self
            .statements
            .iter()
            .filter(|(name, prepared)| prepared.from_sql || names.contains(name))
            .collect();
        all.sort_by_key(|(_, prepared)| prepared.sent.0);
        let rows: Vec<String> = all
            .iter()
            .map(|(name, prepared)| {
                let text = &prepared.sent.1;
                let types: Vec<&str> = prepared.params.iter().map(|kind| kind.name()).collect();
                format!("{{{},{},{}}}", quoted(name), quoted(text), quoted(&types.join(",")))
            })
            .collect();
        (!rows.is_empty()).then(|| format!("{{{}}}", rows.join(",")))
    }

    /// Whether the session has any of this part.
    fn holds(&self, cluster: &Cluster, part: Part) -> bool {
        match part {
            Part::TemporaryObject => !self.now.temp.is_empty(),
            Part::HeldCursor => self.portals.values().any(|portal| portal.hold),
            Part::AdvisoryLock => cluster.locks.values().any(|(holder, _)| *holder == self.process),
            other => unreachable!("nobody asks for {other}"),
        }
    }
}
