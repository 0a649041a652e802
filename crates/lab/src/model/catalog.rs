//! What exists in a new cluster, for the model and for a real server alike.

use std::collections::{BTreeMap, BTreeSet};

/// Roles that may log in: plain ones and a superuser.
pub const LOGIN_ROLE: &str = "app";
/// Another that may log in, with settings of its own.
pub const SECOND_ROLE: &str = "app2";
/// The role by which users share server connections.
pub const POOLER_ROLE: &str = "pooler";
/// The number of the function that hands a session over.
pub const HAND_OVER: u32 = 70_000;
/// The superuser.
pub const SUPERUSER: &str = "postgres";
/// Roles that [`LOGIN_ROLE`] and [`SECOND_ROLE`] are members of.
pub const MEMBER_ROLES: [&str; 2] = ["reader", "writer"];
/// A role that [`LOGIN_ROLE`] is no member of.
pub const FOREIGN_ROLE: &str = "stranger";
/// The database.
pub const DATABASE: &str = "app";
/// Schemas that each hold a table `probe` with one row, and that row's value.
pub const PROBES: [(&str, &str); 4] = [("public", "0"), ("s1", "1"), ("s2", "2"), ("s3", "three")];

/// The table that belongs to one client alone.
#[must_use]
pub fn ledger(client: usize) -> String {
    format!("ledger_{client}")
}

/// The sequence that belongs to one client alone.
#[must_use]
pub fn sequence(client: usize) -> String {
    format!("seq_{client}")
}

/// One database: its tables' rows and its sequences' last values.
#[derive(Debug, Clone, Default)]
pub struct Database {
    /// Committed rows of each table.
    pub tables: BTreeMap<String, Vec<i32>>,
    /// The last value of each sequence, 0 before the first.
    pub sequences: BTreeMap<String, i64>,
}

/// A database with a table and a sequence for each of `slots`.
#[must_use]
pub fn database(slots: std::ops::Range<usize>) -> Database {
    let mut database = Database::default();
    for client in slots {
        database.tables.insert(ledger(client), Vec::new());
        database.sequences.insert(sequence(client), 0);
    }
    database
}

/// Roles of a new cluster, and which of them are superusers.
#[must_use]
pub fn roles() -> BTreeMap<String, bool> {
    [LOGIN_ROLE, SECOND_ROLE, POOLER_ROLE, FOREIGN_ROLE]
        .into_iter()
        .chain(MEMBER_ROLES)
        .map(|role| (role.to_owned(), false))
        .chain([(SUPERUSER.to_owned(), true)])
        .collect()
}

/// Whether `role` has the rights of `other`.
#[must_use]
pub fn has_role(role: &str, other: &str) -> bool {
    let is_member = || [LOGIN_ROLE, SECOND_ROLE].contains(&role) && MEMBER_ROLES.contains(&other);
    role == other || role == SUPERUSER || is_member()
}

/// What ALTER ROLE has set for a role's sessions, in the server's own form.
#[must_use]
pub fn role_settings(role: &str) -> &'static [(&'static str, &'static str)] {
    match role {
        SECOND_ROLE => &[("datestyle", "German, DMY"), ("statement_timeout", "80s")],
        _ => &[],
    }
}

/// Schemas of a new cluster.
#[must_use]
pub fn schemas() -> BTreeSet<String> {
    PROBES.iter().map(|(schema, _)| (*schema).to_owned()).collect()
}

/// The statements that make a real server's database equal to [`database`]: first those for the
/// database `postgres`, then those for [`DATABASE`]. Each element is one simple query.
#[must_use]
pub fn setup_sql(clients: usize) -> (Vec<String>, Vec<String>) {
    let mut cluster: Vec<String> = [LOGIN_ROLE, SECOND_ROLE, POOLER_ROLE]
        .map(|role| format!("CREATE ROLE {role} LOGIN"))
        .to_vec();
    for (name, value) in role_settings(SECOND_ROLE) {
        cluster.push(format!("ALTER ROLE {SECOND_ROLE} SET {name} TO '{value}'"));
    }
    cluster.push(format!("CREATE ROLE {FOREIGN_ROLE}"));
    for role in MEMBER_ROLES {
        cluster.push(format!("CREATE ROLE {role} ROLE {LOGIN_ROLE}, {SECOND_ROLE}"));
    }
    cluster.push(format!("CREATE DATABASE {DATABASE}"));
    let mut database = Vec::new();
    for (schema, value) in PROBES {
        let kind = if value.parse::<i32>().is_ok() { "int" } else { "text" };
        database.push(format!(
            "CREATE SCHEMA IF NOT EXISTS {schema}; GRANT USAGE ON SCHEMA {schema} TO PUBLIC; \
             CREATE TABLE {schema}.probe (v {kind}); INSERT INTO {schema}.probe VALUES ('{value}'); \
             GRANT SELECT ON {schema}.probe TO PUBLIC"
        ));
    }
    for (function, returns, body) in [
        ("hides_setting(name text, value text)", "text", "RETURN set_config(name, value, false)"),
        ("hides_reset(name text)", "void", "EXECUTE 'RESET ' || name"),
        ("hides_lock(key bigint)", "void", "PERFORM pg_advisory_lock(key)"),
        ("hides_unlock(key bigint)", "bool", "RETURN pg_advisory_unlock(key)"),
        ("hides_temp(name text)", "void", "EXECUTE format('CREATE TEMP TABLE %I (v int)', name)"),
    ] {
        database.push(format!(
            "CREATE FUNCTION public.{function} RETURNS {returns} LANGUAGE plpgsql \
             AS $$ BEGIN {body}; END $$"
        ));
    }
    for client in 0..clients {
        let (ledger, sequence) = (ledger(client), sequence(client));
        database.push(format!(
            "CREATE TABLE public.{ledger} (v int); GRANT ALL ON public.{ledger} TO PUBLIC; \
             CREATE SEQUENCE public.{sequence}; GRANT ALL ON SEQUENCE public.{sequence} TO PUBLIC"
        ));
    }
    (cluster, database)
}
