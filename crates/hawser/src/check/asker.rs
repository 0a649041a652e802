//! How `check` logs in to the servers of a database: as a user whose password is known, and under no limits.

use std::sync::Arc;

use hawser_pooler::session::options::Replication;

use crate::auth::access::Access;
use crate::auth::secret::Secret;
use crate::config::{Config, DatabaseConfig, Limit, ServerAddress};
use crate::dial::enter::Credentials;
use crate::dial::{DialError, Dialled, Dialler, Login, Target};
use crate::limits::Limits;
use crate::pools::{self, Connectings};

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
    pub(super) fn of(
        config: &Config,
        database: &DatabaseConfig,
        access: &Access,
        connectings: &Connectings,
    ) -> Option<Self> {
        let (user, credentials) = user_of(config, database, access)?;
        Some(Self::new(config, database, connectings, user, credentials))
    }

    /// The same, or else the first user, by name, whose password is known.
    pub(super) fn any(
        config: &Config,
        database: &DatabaseConfig,
        access: &Access,
        connectings: &Connectings,
    ) -> Option<Self> {
        if let Some(asker) = Self::of(config, database, access, connectings) {
            return Some(asker);
        }
        let known = |user: &&str| matches!(access.secret(user), Some(Secret::Plain(_)));
        let user = access.names().filter(known).min()?;
        let credentials = access.credentials(user);
        Some(Self::new(config, database, connectings, user.to_owned(), credentials))
    }

    fn new(
        config: &Config,
        database: &DatabaseConfig,
        connectings: &Connectings,
        user: String,
        credentials: Arc<Credentials>,
    ) -> Self {
        let target = pools::target(config, database, &user, connectings);
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

    /// The user.
    pub(super) fn user(&self) -> &str {
        &self.login.user
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

fn user_of(
    config: &Config,
    database: &DatabaseConfig,
    access: &Access,
) -> Option<(String, Arc<Credentials>)> {
    if let Some(forced) = &database.forced_user {
        return Some((forced.name.clone(), access.credentials_of(forced, &database.name).ok()?));
    }
    if let Some(user) = &database.auth_user {
        return Some((user.clone(), access.credentials(user)));
    }
    let [user] = config.users() else { return None };
    match access.secret(&user.name) {
        Some(Secret::Plain(_) | Secret::Md5(_)) => {
            Some((user.name.clone(), access.credentials(&user.name)))
        }
        _ => None,
    }
}
