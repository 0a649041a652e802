//! How `check` logs in to the servers of a database: as a user whose password is known, and under no limits.

use std::sync::Arc;

use hawser_pooler::session::options::Replication;

use super::{Grade, SERVER_WAIT};
use crate::auth::access::Access;
use crate::auth::roles::look_up_in;
use crate::auth::secret::Secret;
use crate::config::{Config, DatabaseConfig, Limit, ServerAddress};
use crate::dial::enter::Credentials;
use crate::dial::{DialError, Dialled, Dialler, Login, Target};
use crate::limits::Limits;
use crate::pools::enquiry::look_up_path;
use crate::pools::{self, Connectings};

/// What was found of one database: how grave it is, and what.
pub(super) type Found = (Grade, String);

/// What logins need beside the database.
pub(super) struct Asking<'a> {
    pub(super) config: &'a Config,
    pub(super) access: &'a Access,
    pub(super) connectings: &'a Connectings,
}

/// That a database's server has not answered in time.
pub(super) fn silent(database: &DatabaseConfig) -> Found {
    let (name, seconds) = (&database.name, SERVER_WAIT.as_secs());
    (Grade::Warning, format!("database \"{name}\" did not answer within {seconds} s"))
}

/// Logs in to one database.
pub(super) struct Asker {
    dialler: Dialler,
    limits: Arc<Limits>,
    target: Target,
    login: Login,
}

impl Asker {
    /// As the database's own user, its auth_user or, where there is but one, the only user whose password is known;
    /// `None`: there is none of them.
    pub(super) fn of(asking: &Asking<'_>, database: &DatabaseConfig) -> Option<Self> {
        let (user, credentials) = user_of(asking, database)?;
        Some(Self::new(asking, database, user, credentials))
    }

    /// The same, or else the first user, by name, whose password is known.
    pub(super) fn any(asking: &Asking<'_>, database: &DatabaseConfig) -> Option<Self> {
        if let Some(asker) = Self::of(asking, database) {
            return Some(asker);
        }
        let access = asking.access;
        let known = |user: &&str| matches!(access.secret(user), Some(Secret::Plain(_)));
        let user = access.names().filter(known).min()?;
        let credentials = access.credentials(user);
        Some(Self::new(asking, database, user.to_owned(), credentials))
    }

    /// As the auth_user of a database, where its `auth_query` runs: in another database, if `auth_dbname` names
    /// one. `None`: users are not looked up.
    pub(super) fn looking_up(asking: &Asking<'_>, database: &DatabaseConfig) -> Option<Self> {
        let user = database.inherited.auth.auth_user.clone()?;
        let credentials = asking.access.credentials(&user);
        let (asked_in, dbname) = look_up_in(asking.config, database)?;
        let mut asker = Self::new(asking, asked_in, user, credentials);
        if let Some(dbname) = dbname {
            asker.login.database = dbname.to_owned();
        }
        asker.login.parameters.push(look_up_path());
        Some(asker)
    }

    fn new(
        asking: &Asking<'_>,
        database: &DatabaseConfig,
        user: String,
        credentials: Arc<Credentials>,
    ) -> Self {
        let target = pools::target(asking.config, database, &user, asking.connectings);
        // One that every server has; that there is none is said after the password was taken.
        let asked = if database.is_any() { "postgres" } else { &database.name };
        let login = Login {
            user,
            database: database.dbname_for(asked).to_owned(),
            replication: Replication::None,
            parameters: Vec::new(),
            start: Vec::new(),
            credentials,
        };
        let (dialler, limits) = (Dialler::default(), Arc::new(Limits::default()));
        Self { dialler, limits, target, login }
    }

    /// The database, by the server's name.
    pub(super) fn database(&self) -> &str {
        &self.login.database
    }

    /// The user.
    pub(super) fn user(&self) -> &str {
        &self.login.user
    }

    /// The server of a connection, as it was configured.
    pub(super) fn server(&self, dialled: &Dialled) -> String {
        let place = self.dialler.place(dialled.server);
        place.map_or_else(String::new, |place| place.configured.to_string())
    }

    /// A connection of its own.
    ///
    /// # Errors
    /// There is none to be had.
    pub(super) async fn dial(&self) -> Result<Dialled, DialError> {
        let gate = |server: &ServerAddress| self.limits.address(server, Limit::NONE);
        self.dialler.dial(&self.target, &self.login, &gate).await
    }
}

fn user_of(asking: &Asking<'_>, database: &DatabaseConfig) -> Option<(String, Arc<Credentials>)> {
    let access = asking.access;
    if let Some(forced) = &database.forced_user {
        return Some((forced.name.clone(), access.credentials_of(forced, &database.name).ok()?));
    }
    if let Some(user) = &database.inherited.auth.auth_user {
        return Some((user.clone(), access.credentials(user)));
    }
    let [user] = asking.config.users() else { return None };
    match access.secret(user.name()) {
        Some(Secret::Plain(_) | Secret::Md5(_)) => {
            Some((user.name().to_owned(), access.credentials(user.name())))
        }
        _ => None,
    }
}
