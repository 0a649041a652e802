//! As whom, and in which database, a server is asked for the roles of users: for `+group` and `samerole`
//! in pg_hba.conf.

use crate::config::{Config, DatabaseConfig, ForcedUser};

/// The user as which a server is asked, and where.
pub struct Place<'a> {
    /// The entry of the configuration.
    pub entry: &'a DatabaseConfig,
    /// The database's name at the server.
    pub dbname: &'a str,
    /// The user.
    pub asker: Asker<'a>,
}

/// The user as which a server is asked.
pub enum Asker<'a> {
    /// `auth_user`.
    AuthUser(&'a str),
    /// The database's own.
    Forced(&'a ForcedUser),
}

/// Where to ask for the members of roles of a database, if anywhere: as `auth_user`, or as the
/// database's own `user`. Never in a database that a client has named.
pub fn place<'a>(config: &'a Config, database: &'a DatabaseConfig) -> Option<Place<'a>> {
    if let Some(auth_user) = &database.inherited.auth.auth_user {
        let (entry, dbname) = look_up_in(config, database)?;
        return Some(Place { entry, dbname: dbname?, asker: Asker::AuthUser(auth_user) });
    }
    let asker = Asker::Forced(database.forced_user.as_ref()?);
    Some(Place { entry: database, dbname: named(database)?, asker })
}

/// Where `auth_user` asks: the entry, and the database's name at the server, or `None` for the database that each client
/// asks for. Nowhere, if `auth_dbname` names no entry.
pub fn look_up_in<'a>(
    config: &'a Config,
    database: &'a DatabaseConfig,
) -> Option<(&'a DatabaseConfig, Option<&'a str>)> {
    let Some(name) = &database.inherited.auth.auth_dbname else {
        return Some((database, named(database)));
    };
    let entry = config.database(name)?;
    Some((entry, Some(entry.dbname_for(name))))
}

fn named(entry: &DatabaseConfig) -> Option<&str> {
    entry.dbname.as_deref().or_else(|| (!entry.is_any()).then_some(entry.name.as_str()))
}
