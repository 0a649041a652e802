//! Asks the server which roles a user is a member of, for `+group` and `samerole` in pg_hba.conf.
//!
//! # Model
//! As PostgreSQL's `is_member` in src/backend/libpq/hba.c: a role is a member of itself and of the
//! roles that it has been granted, directly or indirectly, whether it inherits or not. A superuser
//! is not a member by its rights.
//!
//! # Why not pg_has_role()
//! It is true for a superuser, which in pg_hba.conf is not a member of a group by that.
//!
//! # Limits
//! A change is seen at most [`PERIOD`] later. Roles belong to the cluster: if a client asks for no
//! configured database (the admin console, an unknown name), the first `[[database]]` that can be
//! asked is asked.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_pooler::session::options::Replication;
use hawser_pooler::wire::error::{ClientError, SqlState};

use super::enquiry::{Enquiries, look_up_path};
use super::{Pools, locked};
use crate::auth::roles::{Asker, place};
use crate::config::{Config, DatabaseConfig};
use crate::dial::Login;
use crate::logging::Seldom;
use crate::shared::Shared;

/// How long an answer is used.
const PERIOD: Duration = Duration::from_secs(2);
/// Users whose answer is remembered.
const USERS_MAX: usize = 10_000;

/// $1 is the user. No row: there is no such role.
const QUESTION: &str = "WITH RECURSIVE member(oid) AS (\
     SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) $1 \
     UNION SELECT m.roleid FROM pg_catalog.pg_auth_members m, member \
     WHERE m.member OPERATOR(pg_catalog.=) member.oid) \
     SELECT r.rolname FROM pg_catalog.pg_roles r, member \
     WHERE r.oid OPERATOR(pg_catalog.=) member.oid";

/// The roles of which a user is a member.
pub type Roles = Arc<HashSet<String>>;

/// The roles of users, as servers have answered lately.
pub struct Memberships {
    shared: Arc<Shared>,
    pools: Arc<Pools>,
    enquiries: Arc<Enquiries>,
    /// By `[[database]]` and user.
    answers: Mutex<HashMap<(String, String), (Instant, Roles)>>,
}

impl Memberships {
    /// No server has been asked yet.
    pub fn new(shared: Arc<Shared>, pools: Arc<Pools>, enquiries: Arc<Enquiries>) -> Self {
        Self { shared, pools, enquiries, answers: Mutex::default() }
    }

    /// Forgets all answers: the configuration has changed.
    pub fn forget(&self) {
        locked(&self.answers).clear();
    }

    fn get(&self, key: &(String, String)) -> Option<Roles> {
        let all = locked(&self.answers);
        let (asked, roles) = all.get(key)?;
        (asked.elapsed() < PERIOD).then(|| roles.clone())
    }

    fn put(&self, key: (String, String), roles: Roles) {
        let mut all = locked(&self.answers);
        if all.len() >= USERS_MAX {
            all.clear();
        }
        all.insert(key, (Instant::now(), roles));
    }

    /// The roles of which `user` is a member.
    ///
    /// # Errors
    /// The server could not be asked. The reason goes to the log.
    pub async fn roles_of(
        &self,
        config: &Config,
        database: Option<&DatabaseConfig>,
        user: &str,
    ) -> Result<Roles, ClientError> {
        let failed = |reason: &dyn std::fmt::Display| {
            static SAID: Seldom = Seldom::new();
            if let Some(left_out) = SAID.may(&reason.to_string()) {
                tracing::warn!(user, %reason, left_out, "the user's roles, which hba_file asks for, are not known");
            }
            ClientError::fatal(SqlState::CONNECTION_FAILURE, "the user could not be looked up")
                .detail("The server was not asked for the user's roles; see the log of the pooler.")
        };
        let place = match database {
            Some(database) => place(config, database),
            None => config.databases().iter().find_map(|database| place(config, database)),
        };
        // (Refused when the files were loaded.)
        let place =
            place.ok_or_else(|| failed(&"there is neither auth_user nor user to ask as"))?;
        let key = (place.entry.name.clone(), user.to_owned());
        if let Some(roles) = self.get(&key) {
            return Ok(roles);
        }
        let access = self.shared.access.load();
        let (asker, credentials) = match place.asker {
            Asker::AuthUser(name) => (name, access.credentials(name)),
            Asker::Forced(forced) => {
                (forced.name.as_str(), access.credentials_of(forced, &place.entry.name)?)
            }
        };
        let login = Login {
            user: asker.to_owned(),
            database: place.dbname.to_owned(),
            replication: Replication::None,
            parameters: vec![look_up_path()],
            start: Vec::new(),
            credentials,
        };
        let route = self.pools.route(config, place.entry, asker, login);
        let patience = route.target.connect_timeout;
        let asked = self.enquiries.ask(&route, patience, QUESTION, &[user.as_bytes()]).await;
        let answer = asked.map_err(|error| failed(&error))?;
        let name = |row: Vec<Option<Box<[u8]>>>| {
            let name = row.into_iter().next().flatten()?;
            String::from_utf8(name.into_vec()).ok()
        };
        let roles: Roles = Arc::new(answer.rows.into_iter().filter_map(name).collect());
        self.put(key, roles.clone());
        Ok(roles)
    }
}
