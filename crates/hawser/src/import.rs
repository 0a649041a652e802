//! `hawser import pgbouncer.ini`: a hawser.toml that does the same.
//!
//! # Model
//! ```text
//! pgbouncer.ini --ini--> entries --by the registry's PgBouncer names--> tables of TOML, commented
//! ```
//! Where PgBouncer's default differs from ours (`pool_mode`, `max_client_conn`, `auth_type` ...) the
//! output says PgBouncer's, so that it does the same. What has no equivalent becomes a comment that
//! says why.
//!
//! # Invariants
//! - No value is dropped in silence: it is a setting of the output or a comment in it.
//! - Passwords go nowhere but into `password`.
//!
//! # Limits
//! Files that are named (auth_file, certificates) are not read; PgBouncer takes relative
//! names from its working directory, Hawser from the directory of hawser.toml.

mod entry;
mod ini;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;

use crate::config::registry::{self, Form, Setting, Table, Unit};
use crate::config::{ANY_DATABASE, LISTEN_PORT_DEFAULT, accepts, host_and_port, suggest};
use ini::Entry;

/// PgBouncer's directory of unix sockets where none is named.
const UNIX_SOCKET_DIR_DEFAULT: &str = "/tmp";
/// The system's authorities, which OpenSSL takes by itself where no file is named.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// PgBouncer's defaults that are not ours. (See also `idle_transaction_reserve`, which it has not.)
const OTHER_DEFAULTS: &[(&str, &str)] = &[
    ("pool_mode", "session"),
    ("max_client_conn", "100"),
    ("auth_type", "md5"),
    ("listen_backlog", "128"),
    ("syslog_ident", "pgbouncer"),
    ("pool_idle_timeout", "0"),
    ("autodb_idle_timeout", "3600"),
];

/// What was wrong with a pgbouncer.ini, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportError {
    /// The included file; `None` is the file itself.
    pub file: Option<String>,
    /// From 1; 0 where a file could not be read at all.
    pub line: usize,
    /// What was wrong.
    pub reason: Reason,
}

/// See [`ImportError`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Neither a section, nor `key = value`, nor a comment.
    Syntax,
    /// A key before any section.
    OutsideOfSections,
    /// A section that PgBouncer does not have.
    UnknownSection(String),
    /// A key that PgBouncer does not have.
    UnknownKey(String),
    /// A connection string or the settings of a user that PgBouncer would refuse.
    Pairs(String),
    /// A value that is none of what its key takes.
    Value {
        /// The key.
        key: String,
        /// Why.
        message: String,
    },
    /// A file of `%include` could not be read.
    Include {
        /// Its name.
        file: String,
        /// Why.
        error: String,
    },
    /// Files that include each other.
    IncludedTooDeep,
    /// The file itself could not be read.
    Unreadable(String),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), line) => write!(f, "{file}:{line}: ")?,
            (None, 0) => {}
            (None, line) => write!(f, "line {line}: ")?,
        }
        match &self.reason {
            Reason::Syntax => f.write_str("expected [section], key = value, or a comment"),
            Reason::OutsideOfSections => f.write_str("a key before any [section]"),
            Reason::UnknownSection(name) => write!(
                f,
                "unknown section [{name}]: allowed is [databases], [users], [peers], [pgbouncer]"
            ),
            Reason::UnknownKey(name) => write!(f, "PgBouncer has no setting `{name}`"),
            Reason::Pairs(name) => {
                write!(
                    f,
                    "the settings of `{name}` are not key=value with spaces between, or a key is unknown"
                )
            }
            Reason::Value { key, message } => write!(f, "{key}: {message}"),
            Reason::Include { file, error } => write!(f, "%include {file}: {error}"),
            Reason::IncludedTooDeep => f.write_str("%include nested too deep"),
            Reason::Unreadable(error) => write!(f, "cannot be read: {error}"),
        }
    }
}

impl std::error::Error for ImportError {}

/// The hawser.toml that does what `text`, a pgbouncer.ini, does. `%include` is refused: see
/// [`import_file`].
///
/// # Errors
/// What PgBouncer itself would refuse.
pub fn import(text: &str) -> Result<Imported, ImportError> {
    import_with(text, &mut |_| {
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "only files can include files"))
    })
}

/// What a pgbouncer.ini becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The hawser.toml.
    pub toml: String,
    /// Keys that PgBouncer does not have, with place and nearest name, a line each.
    pub unknown: Vec<String>,
}

impl Imported {
    /// What of the file is not carried over, or means something else here: its comments, a line each.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        let notes = self.toml.lines().filter_map(|line| line.strip_prefix("# "));
        notes.filter(|note| *note != MADE_FROM && *note != NOT_CARRIED_OVER)
    }
}

/// The first line of the output.
const MADE_FROM: &str =
    "Made from a pgbouncer.ini. Relative file names start at the directory of this file.";
/// The heading of the notes on what belongs to no table.
const NOT_CARRIED_OVER: &str = "Not carried over:";

/// The same for the file at `path` and all that it includes, by names that start at the working
/// directory, as in PgBouncer.
///
/// # Errors
/// What PgBouncer itself would refuse, or a file that cannot be read.
pub fn import_file(path: &Path) -> Result<Imported, ImportError> {
    let text = std::fs::read_to_string(path).map_err(|error| ImportError {
        file: None,
        line: 0,
        reason: Reason::Unreadable(format!("{}: {error}", path.display())),
    })?;
    import_with(&text, &mut |name| std::fs::read_to_string(name))
}

fn import_with(text: &str, read: ini::ReadFile<'_>) -> Result<Imported, ImportError> {
    let mut import = Import::default();
    for entry in ini::entries(text, read)? {
        match entry.section.as_str() {
            "pgbouncer" => {
                import.settings.insert(entry.key.clone(), entry);
            }
            "databases" => import.databases.add(entry),
            "users" => import.users.add(entry),
            _ => import.peers.add(entry),
        }
    }
    import.has_peer_id = import.settings.get("peer_id").is_some_and(|entry| entry.value != "0");
    import.listen()?;
    import.authentication()?;
    import.tls()?;
    import.other_settings()?;
    import.output()
}

/// Entries by name, in the order of the file. PgBouncer takes the last of a name.
#[derive(Default)]
struct Entries {
    list: Vec<Entry>,
    index: HashMap<String, usize>,
}

impl Entries {
    fn add(&mut self, new: Entry) {
        match self.index.get(&new.key) {
            Some(at) => self.list[*at] = new,
            None => {
                self.index.insert(new.key.clone(), self.list.len());
                self.list.push(new);
            }
        }
    }

    /// Whether a client that asks for `name` finds an entry.
    fn serve(&self, name: &str) -> bool {
        self.index.contains_key(name) || self.index.contains_key(ANY_DATABASE)
    }
}

#[derive(Default)]
struct Import {
    /// Those of `[pgbouncer]` that nothing has been made of yet.
    settings: BTreeMap<String, Entry>,
    databases: Entries,
    users: Entries,
    peers: Entries,
    /// The process has a number among them.
    has_peer_id: bool,
    /// Lines of the output, by table.
    tables: BTreeMap<Table, Vec<String>>,
    /// Comments on what belongs to no table of ours.
    notes: Vec<String>,
    /// Keys that PgBouncer does not have.
    unknown: Vec<String>,
    /// The directory in which servers without a host are looked for.
    socket_dir: String,
}

impl Import {
    fn line(&mut self, table: Table, line: String) {
        self.tables.entry(table).or_default().push(line);
    }

    fn note(&mut self, table: Table, note: &str) {
        self.line(table, comment(note));
    }

    fn take(&mut self, key: &str) -> Option<Entry> {
        self.settings.remove(key)
    }

    /// The value of `key`, unless it is empty, which PgBouncer takes as not set.
    fn take_text(&mut self, key: &str) -> Option<String> {
        self.take(key).map(|entry| entry.value).filter(|value| !value.is_empty())
    }

    fn listen(&mut self) -> Result<(), ImportError> {
        let port = match self.take("listen_port") {
            None => LISTEN_PORT_DEFAULT,
            Some(entry) => entry.value.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
                let message = format!("`{}` is not a port", entry.value);
                entry.place.error(Reason::Value { key: entry.key.clone(), message })
            })?,
        };
        let mut addresses = Vec::new();
        for host in self.take_text("listen_addr").unwrap_or_default().split(',') {
            let host = host.trim().trim_matches(['[', ']']);
            let address = host_and_port(host, port);
            match registry::find(Table::Listen, "address").map(|s| accepts(s, &address)) {
                _ if host.is_empty() => {}
                Some(Ok(())) => addresses.push(address),
                _ => self.note(
                    Table::Listen,
                    &format!("listen_addr {host}: write its address, names are not resolved here"),
                ),
            }
        }
        let directory = match self.take("unix_socket_dir").map(|entry| entry.value) {
            None => Some(UNIX_SOCKET_DIR_DEFAULT.to_owned()),
            Some(directory) if directory.is_empty() => None,
            Some(directory) if directory.starts_with('@') => {
                self.note(Table::Listen, "unix_socket_dir: abstract sockets are not supported");
                None
            }
            Some(directory) => Some(directory),
        };
        self.socket_dir = directory.clone().unwrap_or_else(|| UNIX_SOCKET_DIR_DEFAULT.to_owned());
        // Only a directory that no TCP address gives its port to needs one of its own.
        let suffix = if addresses.is_empty() && port != LISTEN_PORT_DEFAULT {
            format!(":{port}")
        } else {
            String::new()
        };
        addresses.extend(directory.map(|directory| format!("{directory}{suffix}")));
        if addresses.is_empty() {
            self.note(Table::Listen, "nothing to listen on was left: this is a default");
            addresses.push(format!("127.0.0.1:{port}"));
        }
        let list: Vec<_> = addresses.iter().map(|address| quote(address)).collect();
        self.line(Table::Listen, format!("address = [{}]", list.join(", ")));
        Ok(())
    }

    fn authentication(&mut self) -> Result<(), ImportError> {
        let table = Table::Auth;
        let method = self.settings.get("auth_type").map(|entry| entry.value.clone());
        let uses_rules = method.as_deref() == Some("hba");
        if let Some(method @ ("ldap" | "pam")) = method.as_deref() {
            self.take("auth_type");
            self.take("auth_ldap_options");
            let instead = match method {
                "ldap" => {
                    "in a file that hba_file names, write `host all all all ldap OPTIONS` with those \
                     of auth_ldap_options; until then "
                }
                _ => {
                    "in a file that hba_file names, write `host all all all pam \
                     pamservice=pgbouncer`; until then "
                }
            };
            self.note(
                table,
                &format!(
                    "auth_type = {method} is not supported: {instead}users log in by scram-sha-256, \
                     from users_file, [[user]] or auth_query"
                ),
            );
            self.line(table, "auth_type = \"scram-sha-256\"".to_owned());
        } else if method.is_none() {
            self.other_default("auth_type")?;
        }
        if !uses_rules {
            for key in ["auth_hba_file", "auth_ident_file"] {
                if let Some(file) = self.take_text(key) {
                    self.note(table, &format!("{key} = {file}: only auth_type = hba reads it"));
                }
            }
        }
        let has_users =
            ["auth_file", "auth_user"].iter().any(|key| self.settings.contains_key(*key))
                || self.databases.list.iter().any(|entry| entry.value.contains("auth_user"));
        if !has_users && !matches!(method.as_deref(), Some("any" | "hba")) {
            self.note(
                table,
                "There was neither auth_file nor auth_user: give users_file, or [[user]] entries \
                 with a password, or auth_user",
            );
        }
        if let Some(name) = self.take_text("auth_dbname") {
            if self.databases.serve(&name) {
                self.line(table, format!("auth_dbname = {}", quote(&name)));
            } else {
                self.note(table, &format!("auth_dbname = {name}: there is no such [[database]]"));
            }
        }
        Ok(())
    }

    fn tls(&mut self) -> Result<(), ImportError> {
        for side in ["client", "server"] {
            let mode = format!("{side}_tls_sslmode");
            let mode = self.settings.get(&mode).map(|e| e.value.clone()).unwrap_or_default();
            let authorities = format!("{side}_tls_ca_file");
            let named = self.settings.get(&authorities).is_some_and(|e| !e.value.is_empty());
            if mode.starts_with("verify") && !named {
                self.take(&authorities);
                self.note(
                    Table::Tls,
                    &format!("{authorities}: the system's own, as Debian has them"),
                );
                self.line(Table::Tls, format!("{authorities} = {}", quote(SYSTEM_AUTHORITIES)));
            }
            let protocols = format!("{side}_tls_protocols");
            if let Some(wanted) = self.take_text(&protocols) {
                let kept: Vec<_> = wanted
                    .split([',', ':', ' '])
                    .map(str::trim)
                    .filter(|word| ["secure", "tlsv1.2", "tlsv1.3"].contains(word))
                    .collect();
                let kept = if kept.is_empty() { "secure".to_owned() } else { kept.join(",") };
                if kept != wanted {
                    let note = format!("{protocols} = {wanted}: TLS 1.0 and 1.1 are not offered");
                    self.note(Table::Tls, &note);
                }
                self.line(Table::Tls, format!("{protocols} = {}", quote(&kept)));
            }
        }
        Ok(())
    }

    /// All that has the same name and meaning in the registry, and what has no equivalent.
    fn other_settings(&mut self) -> Result<(), ImportError> {
        for (key, _) in OTHER_DEFAULTS {
            if *key != "auth_type" && !self.settings.contains_key(*key) {
                self.other_default(key)?;
            }
        }
        // PgBouncer's bounds hold for server connections in open transactions, too.
        let bound = "idle_transaction_reserve = 0 # PgBouncer has none: pool_size bounds all";
        self.line(Table::Pool, bound.to_owned());
        let verbose = self.take("verbose").is_some_and(|entry| entry.value != "0");
        if verbose {
            self.line(Table::Log, "level = \"debug\"".to_owned());
        }
        for (key, entry) in std::mem::take(&mut self.settings) {
            // An empty value is one that is not set; an empty query is a query that is not sent.
            if entry.value.is_empty() && key != "server_reset_query" {
                continue;
            }
            let setting =
                registry::all().find(|s| !s.table.is_array() && s.pgbouncer == Some(key.as_str()));
            match (setting, suggest::without_equivalent(&key)) {
                (Some(setting), _) => {
                    let line = assignment(setting, &entry, &entry.value)?;
                    self.line(setting.table, line);
                }
                (None, Some(reason)) => {
                    let note = format!("{key} = {} has no equivalent: {reason}", entry.value);
                    self.notes.push(comment(&note));
                }
                (None, None) => {
                    let note = unknown_key(&entry, &key, None, &mut self.unknown);
                    self.notes.push(note);
                }
            }
        }
        Ok(())
    }

    fn other_default(&mut self, key: &str) -> Result<(), ImportError> {
        let default = OTHER_DEFAULTS.iter().find(|(known, _)| *known == key);
        let setting = registry::all().find(|s| !s.table.is_array() && s.pgbouncer == Some(key));
        if let (Some((_, value)), Some(setting)) = (default, setting) {
            let entry = Entry {
                section: "pgbouncer".to_owned(),
                key: key.to_owned(),
                value: (*value).to_owned(),
                place: ini::Place::default(),
            };
            let line = assignment(setting, &entry, value)?;
            self.line(setting.table, format!("{line} # PgBouncer's default"));
        }
        Ok(())
    }

    /// `[peers]`, which is one setting here.
    fn peers(&mut self) -> Result<(), ImportError> {
        let peers = std::mem::take(&mut self.peers);
        if !self.has_peer_id {
            for peer in &peers.list {
                let note = format!("[peers] {}: without peer_id nothing is sent on", peer.key);
                self.notes.push(comment(&note));
            }
        } else if !peers.list.is_empty() {
            let list = peers.list.iter().map(entry::peer).collect::<Result<Vec<_>, _>>()?;
            self.line(Table::Process, format!("peers = [{}]", list.join(", ")));
        }
        Ok(())
    }

    fn output(mut self) -> Result<Imported, ImportError> {
        let mut output = format!("# {MADE_FROM}\n");
        let mut unknown = std::mem::take(&mut self.unknown);
        if self.databases.list.is_empty() {
            output += "# There was no [databases]: add a [[database]] with name and servers.\n";
        }
        let databases = std::mem::take(&mut self.databases);
        let users = std::mem::take(&mut self.users);
        self.peers()?;
        for table in Table::ALL {
            match table {
                Table::Database => {
                    for entry in &databases.list {
                        output +=
                            &entry::database(entry, &databases, &self.socket_dir, &mut unknown)?;
                    }
                }
                Table::User => {
                    for entry in &users.list {
                        output += &entry::user(entry, &mut unknown)?;
                    }
                }
                _ => {
                    if let Some(lines) = self.tables.get(&table) {
                        output += &format!("\n{table}\n{}\n", lines.join("\n"));
                    }
                }
            }
        }
        if !self.notes.is_empty() {
            output += &format!("\n# {NOT_CARRIED_OVER}\n{}\n", self.notes.join("\n"));
        }
        Ok(Imported { toml: output, unknown })
    }
}

/// The comment for a key that PgBouncer does not have; `unknown` gets it with its place. Of a connection
/// string no value is shown: it may be a piece of a password.
fn unknown_key(
    entry: &Entry,
    key: &str,
    table: Option<Table>,
    unknown: &mut Vec<String>,
) -> String {
    let near = suggest::nearest_of_pgbouncer(table, key);
    let hint = near.map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
    let of = table.map_or_else(String::new, |_| format!(" (of {})", entry.key));
    let text = format!("PgBouncer has no setting `{key}`{of}: left out{hint}");
    let file = entry.place.file.as_ref().map_or_else(String::new, |file| format!("{file}:"));
    unknown.push(format!("{file}{}: {text}", entry.place.line).replace(char::is_control, " "));
    comment(&text)
}

/// `name = value` of the output, or a comment where Hawser does not take that value.
fn assignment(
    setting: &'static Setting,
    entry: &Entry,
    value: &str,
) -> Result<String, ImportError> {
    let refuse =
        |message: String| entry.place.error(Reason::Value { key: entry.key.clone(), message });
    let name = setting.name;
    let number = || value.parse::<i64>().map_err(|_| refuse(format!("`{value}` is not a number")));
    // PgBouncer knows pools without a limit; the largest size is as good as none.
    if name == "pool_size" && value == "0" {
        let max = setting.range.end();
        return Ok(format!("pool_size = {max} # 0 in PgBouncer, which is no limit"));
    }
    // The value of the output, and the same as SET would have it.
    let (text, plain) = match setting.form {
        Form::Boolean => {
            let value = number()? != 0;
            (value.to_string(), value.to_string())
        }
        Form::Number => (number()?.to_string(), value.to_owned()),
        Form::Duration => {
            let amount: f64 =
                value.parse().map_err(|_| refuse(format!("`{value}` is not a number")))?;
            let unit = if setting.unit == Unit::Milliseconds { "ms" } else { "s" };
            let plain = format!("{amount}{unit}");
            (if amount == 0.0 { "0".to_owned() } else { quote(&plain) }, plain)
        }
        Form::List => {
            let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
            (format!("[{}]", items.map(quote).collect::<Vec<_>>().join(", ")), value.to_owned())
        }
        // PgBouncer reads it as C does: octal with a leading 0, else decimal.
        Form::String if name == "unix_socket_mode" && !value.starts_with('0') => {
            let octal = format!("{:04o}", number()?);
            (quote(&octal), octal)
        }
        Form::String => (quote(value), value.to_owned()),
    };
    Ok(match accepts(setting, &plain) {
        Ok(()) => format!("{name} = {text}"),
        // A password is not repeated, not even in a comment.
        Err(message) if name == "password" => comment(&format!("password was left out: {message}")),
        Err(message) => comment(&format!("{} = {value} was left out: {message}", entry.key)),
    })
}

/// A TOML string.
fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A comment of one line, whatever `text` holds.
fn comment(text: &str) -> String {
    format!("# {}", text.replace(char::is_control, " "))
}
