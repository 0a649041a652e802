//! `[databases]` and `[users]` of pgbouncer.ini -> `[[database]]` and `[[user]]`.

use super::ini::{self, Entry};
use super::value::{assignment, comment, quote, without_schema};
use super::{Entries, ImportError, Reason, unknown_key};
use crate::config::registry::{self, Table};
use crate::config::{ADMIN_DATABASES, Peer, SERVER_PORT_DEFAULT, ServerAddress, suggest};

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

fn pairs(entry: &Entry) -> Result<Vec<(String, String)>, ImportError> {
    ini::pairs(&entry.value).ok_or_else(|| entry.place.error(Reason::Pairs(entry.key.clone())))
}

/// The line for one pair whose key the registry has under the same name in `table`.
fn pair_line(
    table: Table,
    entry: &Entry,
    key: &str,
    value: &str,
    unknown: &mut Vec<String>,
) -> Result<String, ImportError> {
    if ZERO_IS_INHERITED.contains(&key) && value == "0" {
        return Ok(comment(&format!("{key} = 0: what holds for all")));
    }
    if key == "query_wait_timeout" && value == "-1" {
        return Ok(comment("query_wait_timeout = -1: what holds for all"));
    }
    let pair = Entry { key: key.to_owned(), ..entry.clone() };
    match (registry::find(table, key), suggest::without_equivalent(key)) {
        (Some(setting), _) => assignment(setting, &pair, value),
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

/// `[[database]]` of one entry; a comment where there can be none.
pub(super) fn database(
    entry: &Entry,
    all: &Entries,
    socket_dir: &str,
    unknown: &mut Vec<String>,
) -> Result<String, ImportError> {
    let name = &entry.key;
    if name == "pgbouncer" {
        let message = "the name is reserved for the admin console".to_owned();
        return Err(entry.place.error(Reason::Value { key: name.clone(), message }));
    }
    let pairs = pairs(entry)?;
    if ADMIN_DATABASES.contains(&name.as_str()) {
        let note = format!("database {name} was left out: the name is the admin database's");
        return Ok(format!("\n{}\n", comment(&note)));
    }
    let find = |key| pairs.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
    let refuse = |key: &str, message: String| {
        entry.place.error(Reason::Value { key: format!("{key} of {name}"), message })
    };
    let port = match find("port") {
        None => SERVER_PORT_DEFAULT,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| refuse("port", format!("`{port}` is not a port")))?,
    };
    let mut lines = vec![format!("name = {}", quote(name))];
    let mut servers = Vec::new();
    for host in find("host").unwrap_or(socket_dir).split(',').map(str::trim) {
        if host.starts_with('@') {
            lines.push(comment(&format!("host {host}: abstract sockets are not supported")));
            continue;
        }
        let server = ServerAddress::new(host, port).map_err(|message| refuse("host", message))?;
        let text = match server {
            ServerAddress::Unix(_) if port == SERVER_PORT_DEFAULT => host.to_owned(),
            ServerAddress::Unix(_) => format!("{host}:{port}"),
            other @ (ServerAddress::Tcp { .. } | ServerAddress::Link { .. }) => other.to_string(),
        };
        if !servers.contains(&text) {
            servers.push(text);
        }
    }
    if servers.is_empty() {
        let note = format!("database {name} was left out: no server that can be reached is left");
        return Ok(format!("\n{}\n", comment(&note)));
    }
    let list: Vec<_> = servers.iter().map(|server| quote(server)).collect();
    lines.push(format!("servers = [{}]", list.join(", ")));
    if servers.len() > 1 && find("load_balance_hosts").is_none() {
        lines.push("load_balance_hosts = \"round-robin\" # PgBouncer's default".to_owned());
    }
    let mut seen = Vec::new();
    for (key, _) in &pairs {
        // PgBouncer takes the last value of a key.
        let (true, Some(value)) = (!seen.contains(&key), find(key)) else { continue };
        seen.push(key);
        match key.as_str() {
            "host" | "port" => {}
            "password" if find("user").is_none() => {
                lines.push(comment("password was left out: without user= it is never used"));
            }
            "auth_dbname" if !all.serve(value) => {
                lines.push(comment(&format!("auth_dbname = {value}: there is no such database")));
            }
            "auth_query" => {
                lines.extend(without_schema(value).as_deref().map(comment));
                lines.push(pair_line(Table::Database, entry, key, value, unknown)?);
            }
            "reserve_pool" if find("reserve_pool_size").is_some() => {}
            "reserve_pool" => {
                lines.push(pair_line(Table::Database, entry, "reserve_pool_size", value, unknown)?);
            }
            _ => lines.push(pair_line(Table::Database, entry, key, value, unknown)?),
        }
    }
    Ok(format!("\n[[database]]\n{}\n", lines.join("\n")))
}

/// `[[user]]` of one entry.
pub(super) fn user(entry: &Entry, unknown: &mut Vec<String>) -> Result<String, ImportError> {
    let pairs = pairs(entry)?;
    let mut lines = vec![format!("name = {}", quote(&entry.key))];
    let mut seen = Vec::new();
    for (key, _) in &pairs {
        let last = pairs.iter().rev().find(|(k, _)| k == key);
        let (true, Some((_, value))) = (!seen.contains(&key), last) else { continue };
        seen.push(key);
        if matches!(key.as_str(), "name" | "password") {
            return Err(entry.place.error(Reason::UnknownKey(key.clone())));
        }
        lines.push(pair_line(Table::User, entry, key, value, unknown)?);
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
    let find = |key| pairs.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
    let port = find("port").map_or(Ok(PEER_PORT_DEFAULT), str::parse);
    let port = port.map_err(|_| refuse("port", "it is not a port".to_owned()))?;
    let host = find("host").ok_or_else(|| refuse("host", "it is required".to_owned()))?;
    let address = ServerAddress::new(host, port).map_err(|message| refuse("host", message))?;
    let text = format!("{}={address}", entry.key);
    match Peer::parse(&text) {
        Ok(_) => Ok(quote(&text)),
        Err(message) => Err(refuse("number", message)),
    }
}

/// What PgBouncer has of a peer. (`pool_size` is a bound that Hawser has for all peers together.)
const PEER_KEYS: [&str; 3] = ["host", "port", "pool_size"];
