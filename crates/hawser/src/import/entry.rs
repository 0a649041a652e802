//! `[databases]` and `[users]` of pgbouncer.ini -> `[[database]]` and `[[user]]`.

use super::error::{ImportError, Reason};
use super::ini::{self, Entry, Section};
use super::value::{
    amount, assignment, comment, number, own_assignment, port, quote, without_schema,
};
use super::{Entries, unknown_key};
use crate::config::setting::Table;
use crate::config::{
    ADMIN_DATABASES, Peer, SERVER_PORT_DEFAULT, ServerAddress, is_unix, registry, suggest,
};

/// Limits of which PgBouncer takes 0, for one database or user, as "what holds for all".
const ZERO_IS_INHERITED: &[&str] = &[
    "max_db_connections",
    "max_db_client_connections",
    "max_user_connections",
    "max_user_client_connections",
    "server_lifetime",
    "query_timeout",
    "idle_transaction_timeout",
    "transaction_timeout",
    "client_idle_timeout",
];

/// What the entries of databases and users depend on.
pub(super) struct Rest<'a> {
    pub(super) databases: &'a Entries,
    /// The directory in which servers without a host are looked for, if PgBouncer has one.
    pub(super) socket_dir: Option<&'a str>,
    /// `query_timeout` of `[pgbouncer]` in seconds; 0 is never.
    pub(super) query_timeout: f64,
}

/// The pairs of an entry, each key once with its last value, which is the one that PgBouncer takes.
fn pairs(entry: &Entry) -> Result<Vec<(String, String)>, ImportError> {
    let all = ini::pairs(&entry.value)
        .ok_or_else(|| entry.place.error(Reason::Pairs(entry.key.clone())))?;
    let mut pairs: Vec<(String, String)> = Vec::with_capacity(all.len());
    for (mut key, value) in all {
        // Its older name.
        if key == "reserve_pool" && entry.section == Section::Databases {
            key = "reserve_pool_size".to_owned();
        }
        match pairs.iter_mut().find(|(known, _)| *known == key) {
            Some(known) => known.1 = value,
            None => pairs.push((key, value)),
        }
    }
    Ok(pairs)
}

fn refuse(entry: &Entry, key: &str, message: String) -> ImportError {
    entry.place.error(Reason::Value { key: format!("{key} of {}", entry.key), message })
}

/// The line for one pair whose key the registry has under the same name in `table`.
fn pair_line(
    table: Table,
    entry: &Entry,
    (key, value): (&str, &str),
    rest: &Rest<'_>,
    unknown: &mut Vec<String>,
) -> Result<String, ImportError> {
    let pair = Entry { key: format!("{key} of {}", entry.key), ..entry.clone() };
    if ZERO_IS_INHERITED.contains(&key) && number(&pair, value)? == 0 {
        return Ok(comment(&format!("{key} = 0: what holds for all")));
    }
    if key == "query_wait_timeout" {
        if number(&pair, value)? == -1 {
            return Ok(comment("query_wait_timeout = -1: what holds for all"));
        }
        if let Some(line) = waits_no_longer(rest.query_timeout, amount(&pair, key, value)?) {
            return Ok(line);
        }
    }
    match (registry::find(table, key), suggest::without_equivalent(key)) {
        (Some(setting), _) if setting.pgbouncer.is_some() => assignment(setting, &pair, value),
        (Some(setting), _) => own_assignment(setting, &pair, value),
        (None, Some(reason)) => {
            Ok(comment(&format!("{key} = {value} has no equivalent: {reason}")))
        }
        // With a password in the string, an unknown key may be a piece of it.
        (None, None) if entry.value.contains("password") => {
            Err(entry.place.error(Reason::Pairs(entry.key.clone())))
        }
        (None, None) => Ok(unknown_key(entry, key, Some(table), unknown)),
    }
}

/// The `query_wait_timeout` of clients whose own is `wait` (in seconds; 0 is never), if `query_timeout`
/// of all clients is the lesser: in PgBouncer's `pool_client_maint` it bounds the wait as well. (That of
/// a user does not.)
pub(super) fn waits_no_longer(query_timeout: f64, wait: f64) -> Option<String> {
    const MICROSECOND: f64 = 1e-6; // less is 0 for both of them
    let is_lesser = query_timeout >= MICROSECOND && (wait == 0.0 || query_timeout < wait);
    is_lesser.then(|| {
        format!(
            "query_wait_timeout = \"{query_timeout}s\" # query_timeout of all clients bounds the wait, \
             too"
        )
    })
}

/// The `servers` of a database.
fn servers(
    entry: &Entry,
    pairs: &[(String, String)],
    socket_dir: Option<&str>,
) -> Result<Vec<String>, ImportError> {
    let find = |key| pairs.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
    let port = find("port").map_or(Ok(SERVER_PORT_DEFAULT), |text| port(entry, text));
    let port = port.map_err(|message| refuse(entry, "port", message))?;
    // Not a directory that PgBouncer does not look into: whose sockets are there is not known.
    let hosts = find("host").or(socket_dir).ok_or_else(|| {
        let message = "it is missing, and unix_socket_dir is empty: write the server's host, or its \
                       directory of sockets";
        refuse(entry, "host", message.to_owned())
    })?;
    let mut servers = Vec::new();
    for host in hosts.split(',').map(str::trim) {
        let text = if is_unix(host) {
            socket_text(host, port, SERVER_PORT_DEFAULT)
        } else {
            let server = ServerAddress::new(host, port);
            server.map_err(|message| refuse(entry, "host", message))?.to_string()
        };
        ServerAddress::parse(&text).map_err(|message| refuse(entry, "host", message))?;
        if !servers.contains(&text) {
            servers.push(text);
        }
    }
    Ok(servers)
}

/// The socket of `port` in `directory`, as `servers` and `address` have it. Digits after a colon at the
/// end of a directory would be a port.
pub(super) fn socket_text(directory: &str, port: u16, default: u16) -> String {
    let ends_as_a_port = directory
        .rsplit_once(':')
        .is_some_and(|(_, end)| !end.is_empty() && end.bytes().all(|b| b.is_ascii_digit()));
    match (ends_as_a_port, port == default) {
        (true, _) => format!("{directory}/.s.PGSQL.{port}"),
        (false, true) => directory.to_owned(),
        (false, false) => format!("{directory}:{port}"),
    }
}

/// `[[database]]` of one entry; a comment where there can be none.
pub(super) fn database(
    entry: &Entry,
    rest: &Rest<'_>,
    unknown: &mut Vec<String>,
) -> Result<String, ImportError> {
    let name = &entry.key;
    if name == "pgbouncer" {
        return Err(entry.refuse("the name is reserved for the admin console"));
    }
    let mut pairs = pairs(entry)?;
    if ADMIN_DATABASES.contains(&name.as_str()) {
        let note = format!("database {name} was left out: the name is the admin database's");
        return Ok(format!("\n{}\n", comment(&note)));
    }
    let servers = servers(entry, &pairs, rest.socket_dir)?;
    let mut lines = vec![format!("name = {}", quote(name))];
    let list: Vec<_> = servers.iter().map(|server| quote(server)).collect();
    lines.push(format!("servers = [{}]", list.join(", ")));
    let has = |key| pairs.iter().any(|(k, _)| k == key);
    if servers.len() > 1 && !has("load_balance_hosts") {
        lines.push("load_balance_hosts = \"round-robin\" # PgBouncer's default".to_owned());
    }
    let is_forced = has("user");
    pairs.retain(|(key, _)| !matches!(key.as_str(), "host" | "port"));
    for (key, value) in &pairs {
        match key.as_str() {
            // Of ours, and made of `host` and of the name of the entry.
            "name" | "servers" => {
                return Err(entry.place.error(Reason::UnknownKey(key.clone())));
            }
            "password" if !is_forced => {
                lines.push(comment("password was left out: without user= it is never used"));
                continue;
            }
            "auth_dbname" => auth_dbname(value, rest.databases)
                .map_err(|message| refuse(entry, "auth_dbname", message))?,
            "auth_query" => lines.extend(without_schema(value).as_deref().map(comment)),
            _ => {}
        }
        lines.push(pair_line(Table::Database, entry, (key, value), rest, unknown)?);
    }
    Ok(format!("\n[[database]]\n{}\n", lines.join("\n")))
}

/// Whether `auth_query` can run on `name`. PgBouncer refuses such logins later; without auth_dbname the
/// query would run on the client's database, where its owner may have defined what it reads from.
pub(super) fn auth_dbname(name: &str, databases: &Entries) -> Result<(), String> {
    if ADMIN_DATABASES.contains(&name) || !databases.serve(name) {
        return Err(format!("[databases] has no `{name}` on which auth_query could run"));
    }
    Ok(())
}

/// `[[user]]` of one entry.
pub(super) fn user(
    entry: &Entry,
    rest: &Rest<'_>,
    unknown: &mut Vec<String>,
) -> Result<String, ImportError> {
    let mut lines = vec![format!("name = {}", quote(&entry.key))];
    for (key, value) in &pairs(entry)? {
        if matches!(key.as_str(), "name" | "password") {
            return Err(entry.place.error(Reason::UnknownKey(key.clone())));
        }
        lines.push(pair_line(Table::User, entry, (key, value), rest, unknown)?);
    }
    Ok(format!("\n[[user]]\n{}\n", lines.join("\n")))
}

/// The port of a peer that gives none: PgBouncer's.
const PEER_PORT_DEFAULT: u16 = 6432;

/// One of `[peers]`, as `peers` has it.
pub(super) fn peer(entry: &Entry) -> Result<String, ImportError> {
    let pairs = pairs(entry)?;
    let refuse = |key: &str, message: String| {
        entry.place.error(Reason::Value { key: format!("{key} of peer {}", entry.key), message })
    };
    if let Some((key, _)) = pairs.iter().find(|(key, _)| !PEER_KEYS.contains(&key.as_str())) {
        return Err(entry.place.error(Reason::UnknownKey(key.clone())));
    }
    let find = |key| pairs.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
    let port = find("port").map_or(Ok(PEER_PORT_DEFAULT), |text| port(entry, text));
    let port = port.map_err(|message| refuse("port", message))?;
    let host = find("host").ok_or_else(|| refuse("host", "it is required".to_owned()))?;
    let address = match is_unix(host) {
        true => ServerAddress::parse(&socket_text(host, port, SERVER_PORT_DEFAULT)),
        false => ServerAddress::new(host, port),
    };
    let address = address.map_err(|message| refuse("host", message))?;
    let text = format!("{}={address}", entry.key);
    match Peer::parse(&text) {
        Ok(_) => Ok(quote(&text)),
        Err(message) => Err(refuse("number", message)),
    }
}

/// What PgBouncer has of a peer. (`pool_size` is a bound that Hawser has for all peers together.)
const PEER_KEYS: [&str; 3] = ["host", "port", "pool_size"];
