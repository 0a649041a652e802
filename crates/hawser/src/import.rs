//! `hawser import pgbouncer.ini`: a hawser.toml that does the same.
//!
//! # Model
//! ```text
//! pgbouncer.ini --ini--> entries --by the registry's PgBouncer names--> tables of TOML, commented
//! ```
//! Where PgBouncer's default differs from ours (`pool_mode`, `max_client_conn`, `auth_type` ...) the
//! output says PgBouncer's, so that it does the same; where Hawser has limits of its own, that
//! PgBouncer's clients have never met, it says that there are none. What has no equivalent becomes a
//! comment that says why. `[hawser]` is a section of ours, for what no pgbouncer.ini can say.
//!
//! # Invariants
//! - No value is dropped in silence: it is a setting of the output or a comment in it.
//! - A value that PgBouncer or Hawser refuses is an error: what it restricts must not fall back to a
//!   default that is weaker.
//! - Passwords go nowhere but into `password`.
//! - A database that has no server that Hawser can reach is an error: left out, its clients would get the
//!   database `*`.
//!
//! # Limits
//! Files that are named (auth_file, certificates) are not read; PgBouncer takes relative
//! names from its working directory, Hawser from the directory of hawser.toml.

mod entry;
mod error;
mod ini;
mod listen;
#[cfg(test)]
mod tests;
mod value;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use crate::config::setting::{Form, Setting, Table};
use crate::config::{ANY_DATABASE, FILE_BYTES_MAX, registry, suggest};
pub use error::{ImportError, ImportErrors, Reason};
use ini::{Entry, Item, Place, Section};
use value::{amount, assignment, comment, number, own_assignment, protocols, quote};

/// The system's authorities, which OpenSSL takes by itself where no file is named.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// PgBouncer's defaults that are not ours.
const OTHER_DEFAULTS: &[(&str, &str)] = &[
    ("pool_mode", "session"),
    ("max_client_conn", "100"),
    ("auth_type", "md5"),
    ("listen_backlog", "128"),
    ("syslog_ident", "pgbouncer"),
    ("pool_idle_timeout", "0"),
    ("autodb_idle_timeout", "3600"),
    ("query_wait_notify", "5"),
    ("max_prepared_statements", "200"),
];
/// Settings of `[pgbouncer]` without a default there (NULL in `bouncer_params` of its main.c): a second
/// `[pgbouncer]` does not set them back.
const WITHOUT_DEFAULT: &[&str] = &[
    "auth_dbname",
    "auth_file",
    "auth_ident_file",
    "auth_ldap_options",
    "auth_user",
    "client_tls13_ciphers",
    "conffile",
    "server_tls13_ciphers",
    "service_name",
    "user",
    "verbose",
];
/// PgBouncer's own, in seconds.
const QUERY_WAIT_TIMEOUT_DEFAULT: f64 = 120.0;
/// Limits of ours that PgBouncer has not, as its clients expect them.
const OWN_LIMITS: &[(Table, &str)] = &[
    (Table::Pool, "idle_transaction_reserve = 0 # PgBouncer has none: pool_size bounds all"),
    (Table::Pool, "client_write_timeout = 0 # PgBouncer waits for clients that read nothing"),
    (Table::Pool, "client_read_timeout = 0 # PgBouncer waits for clients that send slowly"),
    // Not off: a server that is lost without a word is found by this alone.
    (Table::Pool, "server_lost_timeout = \"30s\" # in place of server_check_query"),
    (Table::Process, "shutdown_timeout = 0 # PgBouncer waits for open transactions"),
];

/// What a pgbouncer.ini becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The hawser.toml.
    pub toml: String,
    /// Keys that PgBouncer does not have, with place and nearest name, a line each.
    pub unknown: Vec<String>,
    /// The files that were read.
    pub files: Vec<PathBuf>,
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

/// The hawser.toml that does what the pgbouncer.ini at `path` does, with all that it includes, by names that start at the working
/// directory, as in PgBouncer.
///
/// # Errors
/// What PgBouncer itself would refuse, values that Hawser has no equivalent of, and files that cannot be read.
pub fn import_file(path: &Path) -> Result<Imported, ImportErrors> {
    let mut left = FILE_BYTES_MAX;
    let mut files = Vec::new();
    let mut read = |path: &Path| -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        File::open(path)?.take(left + 1).read_to_end(&mut text)?;
        left = left.checked_sub(text.len() as u64).ok_or_else(|| {
            let message = format!("with what is included it is over {FILE_BYTES_MAX} bytes");
            io::Error::new(io::ErrorKind::FileTooLarge, message)
        })?;
        files.push(path.to_owned());
        Ok(text)
    };
    let text = read(path).map_err(|error| ImportError {
        file: None,
        line: 0,
        reason: Reason::Unreadable(format!("{}: {error}", path.display())),
    })?;
    let mut resolve = |name: &str| {
        let found = (name, 0).to_socket_addrs()?;
        Ok(found.map(|address| address.ip()).collect::<Vec<IpAddr>>())
    };
    let imported = import_with(&text, &mut |name| read(Path::new(name)), &mut resolve)?;
    Ok(Imported { files, ..imported })
}

fn import_with(
    text: &[u8],
    read: ini::ReadFile<'_>,
    resolve: listen::Resolve<'_>,
) -> Result<Imported, ImportErrors> {
    let mut items = ini::items(text, read)?;
    let mut errors = ImportErrors::default();
    loop {
        let mut error = match import_items(items.clone(), resolve) {
            Ok(imported) if errors.is_empty() => return Ok(imported),
            Ok(_) => return Err(errors),
            Err(error) => error,
        };
        // What else is wrong shows without what is wrong here.
        let (wrong, others): (Vec<_>, Vec<_>) =
            items.into_iter().partition(|item| item.has(&error));
        items = others;
        if wrong.iter().any(Item::seems_commented) {
            error.reason = Reason::WithComment(Box::new(error.reason));
        }
        errors.add(error);
        if wrong.is_empty() || errors.are_many() {
            return Err(errors);
        }
    }
}

fn import_items(items: Vec<Item>, resolve: listen::Resolve<'_>) -> Result<Imported, ImportError> {
    let mut import = Import::default();
    let mut main = MainSection::default();
    for item in items {
        match item {
            Item::Section(Section::PgBouncer, place) => main.begin(&place),
            Item::Section(..) => {}
            Item::Entry(entry) => match entry.section {
                Section::PgBouncer => main.add(entry),
                Section::Databases => import.database(entry),
                Section::Users => import.users.add(entry),
                Section::Peers => import.peers.add(entry),
                Section::Hawser => {
                    import.own.insert(entry.key.clone(), entry);
                }
            },
        }
    }
    let has_main_section = main.begun;
    import.settings = main.settings()?;
    if let Some(entry) = import.settings.get("peer_id") {
        import.has_peer_id = number(entry, &entry.value)? != 0;
    }
    import.query_timeout()?;
    import.listen(resolve)?;
    import.authentication()?;
    import.tls()?;
    import.other_settings()?;
    import.peers()?;
    import.own_settings()?;
    let imported = import.output()?;
    // PgBouncer refuses it as well. Last, so that other errors are said with their lines.
    if has_main_section { Ok(imported) } else { Err(Place::default().error(Reason::NoMainSection)) }
}

/// `[pgbouncer]`, which may begin more than once.
#[derive(Default)]
struct MainSection {
    begun: bool,
    settings: BTreeMap<String, Entry>,
    /// What PgBouncer has set back to its defaults, by key, with the header that did it.
    set_back: BTreeMap<String, Place>,
}

impl MainSection {
    fn begin(&mut self, place: &Place) {
        self.begun = true;
        let keys = self.settings.keys().filter(|key| !WITHOUT_DEFAULT.contains(&key.as_str()));
        self.set_back.extend(keys.map(|key| (key.clone(), place.clone())));
    }

    fn add(&mut self, entry: Entry) {
        self.set_back.remove(&entry.key);
        self.settings.insert(entry.key.clone(), entry);
    }

    /// All of it. Neither PgBouncer's default nor the value that it ignores may be put in force in
    /// silence: the first is not what the file seems to say, the second not what has been in force.
    fn settings(self) -> Result<BTreeMap<String, Entry>, ImportError> {
        if let Some(place) = self.set_back.values().next() {
            let of_place = self.set_back.iter().filter(|(_, of)| *of == place);
            let keys = of_place.map(|(key, _)| key.clone()).collect();
            return Err(place.error(Reason::SetBack(keys)));
        }
        Ok(self.settings)
    }
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

    fn has(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// Whether a client that asks for `name` finds an entry.
    fn serve(&self, name: &str) -> bool {
        self.has(name) || self.has(ANY_DATABASE)
    }
}

#[derive(Default)]
struct Import {
    /// Those of `[pgbouncer]` that nothing has been made of yet.
    settings: BTreeMap<String, Entry>,
    databases: Entries,
    users: Entries,
    peers: Entries,
    /// Those of `[hawser]`.
    own: BTreeMap<String, Entry>,
    /// The process has a number among them.
    has_peer_id: bool,
    /// Lines of the output, by table.
    tables: BTreeMap<Table, Vec<String>>,
    /// Comments on what belongs to no table of ours.
    notes: Vec<String>,
    /// Keys that PgBouncer does not have.
    unknown: Vec<String>,
    /// The directory in which servers without a host are looked for, if there is one.
    socket_dir: Option<String>,
    /// `query_timeout` in seconds; 0 is never.
    query_timeout: f64,
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

    /// The word that `key` has, in small letters: PgBouncer's words are so in any.
    fn word(&self, key: &str) -> Option<String> {
        self.settings.get(key).map(|entry| entry.value.to_ascii_lowercase())
    }

    /// The value of `key`, unless it is empty, which PgBouncer takes as not set.
    fn take_text(&mut self, key: &str) -> Option<String> {
        self.take(key).map(|entry| entry.value).filter(|value| !value.is_empty())
    }

    /// Whether `[hawser]` has the setting that has one of `names`.
    fn is_own(&self, names: [&str; 2]) -> bool {
        names.iter().any(|name| self.own.contains_key(*name))
    }

    fn database(&mut self, entry: Entry) {
        if self.databases.has(&entry.key) {
            let note = format!(
                "database {} is there twice: the later entry holds (PgBouncer keeps the earlier one's \
                 user, if the later one has none)",
                entry.key
            );
            self.notes.push(comment(&note));
        }
        self.databases.add(entry);
    }

    /// PgBouncer's also bounds how long clients wait for a server connection; ours begins after that.
    fn query_timeout(&mut self) -> Result<(), ImportError> {
        let seconds = |key: &str, default: f64| match self.settings.get(key) {
            Some(entry) => amount(entry, key, &entry.value),
            None => Ok(default),
        };
        if self.is_own(["query_timeout"; 2]) {
            return Ok(());
        }
        self.query_timeout = seconds("query_timeout", 0.0)?;
        let wait = seconds("query_wait_timeout", QUERY_WAIT_TIMEOUT_DEFAULT)?;
        if let Some(line) = entry::waits_no_longer(self.query_timeout, wait) {
            self.take("query_wait_timeout");
            self.line(Table::Pool, line);
        }
        Ok(())
    }

    fn listen(&mut self, resolve: listen::Resolve<'_>) -> Result<(), ImportError> {
        let is_own = self.is_own(["address", "listen_addr"]);
        let listen = listen::listen(&mut self.settings, is_own, resolve)?;
        self.tables.entry(Table::Listen).or_default().extend(listen.lines);
        self.socket_dir = listen.socket_dir;
        Ok(())
    }

    fn authentication(&mut self) -> Result<(), ImportError> {
        let table = Table::Auth;
        let method = self.word("auth_type");
        let uses_rules = method.as_deref() == Some("hba");
        let has_own_rules = self.is_own(["hba_file", "auth_hba_file"]);
        let unsupported = method.as_deref().filter(|method| matches!(*method, "ldap" | "pam"));
        if unsupported.is_some() {
            self.take("auth_type");
            self.take("auth_ldap_options");
        }
        match (unsupported, &method) {
            // They say the methods.
            (Some(_), _) | (None, None) if has_own_rules => {}
            (Some(method), _) => self.unsupported_method(method),
            (None, None) => self.other_default("auth_type")?,
            (None, Some(_)) => {}
        }
        if !uses_rules {
            for key in ["auth_hba_file", "auth_ident_file"] {
                if let Some(file) = self.take_text(key) {
                    self.note(table, &format!("{key} = {file}: only auth_type = hba reads it"));
                }
            }
        }
        if let Some(entry) = self.settings.get("auth_query") {
            // PgBouncer sends it, and it lets no user in; Hawser's default would let users in.
            if entry.value.is_empty() {
                return Err(entry.refuse("it is empty: leave it out for the default query"));
            }
            if let Some(note) = value::without_schema(&entry.value) {
                self.note(table, &note);
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
        if let Some(entry) = self.take("auth_dbname") {
            entry::auth_dbname(&entry.value, &self.databases).map_err(|m| entry.refuse(m))?;
            self.line(table, format!("auth_dbname = {}", quote(&entry.value)));
        }
        Ok(())
    }

    fn unsupported_method(&mut self, method: &str) {
        let line = match method {
            "ldap" => "ldap OPTIONS` with those of auth_ldap_options",
            _ => "pam pamservice=pgbouncer`",
        };
        let note = format!(
            "auth_type = {method} is not supported: in a file that hba_file of [hawser] names, write \
             `host all all all {line}; until then users log in by scram-sha-256, from users_file, \
             [[user]] or auth_query"
        );
        self.note(Table::Auth, &note);
        self.line(Table::Auth, "auth_type = \"scram-sha-256\"".to_owned());
    }

    fn tls(&mut self) -> Result<(), ImportError> {
        for side in ["client", "server"] {
            let mode = self.word(&format!("{side}_tls_sslmode")).unwrap_or_default();
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
            let key = format!("{side}_tls_protocols");
            if let Some(entry) = self.take(&key).filter(|entry| !entry.value.is_empty()) {
                let (kept, has_older) = protocols(&entry)?;
                if has_older {
                    let note = format!("{key} = {}: TLS 1.0 and 1.1 are not offered", entry.value);
                    self.note(Table::Tls, &note);
                }
                self.line(Table::Tls, format!("{key} = {}", quote(kept)));
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
        for (table, line) in OWN_LIMITS {
            self.line(*table, (*line).to_owned());
        }
        if let Some(entry) = self.take("verbose")
            && number(&entry, &entry.value)? != 0
        {
            self.line(Table::Log, "level = \"debug\"".to_owned());
        }
        for (key, entry) in std::mem::take(&mut self.settings) {
            let setting = of_pgbouncer(&key);
            // An empty text is one that is not set; an empty query is a query that is not sent. An
            // empty number or word is refused below, as by PgBouncer.
            let is_text = setting.is_none_or(|setting| {
                matches!(setting.form, Form::String | Form::List) && !value::is_word(setting)
            });
            if entry.value.is_empty() && is_text && key != "server_reset_query" {
                continue;
            }
            match (setting, suggest::without_equivalent(&key)) {
                (Some(setting), _) => {
                    let line = assignment(setting, &entry, &entry.value)?;
                    self.line(setting.table, line);
                }
                (None, Some(reason)) => {
                    // It may hold ldapbindpasswd.
                    let value = match key.as_str() {
                        "auth_ldap_options" => "...",
                        _ => entry.value.as_str(),
                    };
                    let note = format!("{key} = {value} has no equivalent: {reason}");
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
        if let (Some((_, value)), Some(setting)) = (default, of_pgbouncer(key)) {
            let entry = Entry {
                section: Section::PgBouncer,
                key: key.to_owned(),
                value: (*value).to_owned(),
                place: Place::default(),
            };
            let line = assignment(setting, &entry, value)?;
            self.line(setting.table, format!("{line} # PgBouncer's default"));
        }
        Ok(())
    }

    /// `[hawser]`: settings of ours, in place of what has been made of PgBouncer's.
    fn own_settings(&mut self) -> Result<(), ImportError> {
        for (key, entry) in std::mem::take(&mut self.own) {
            let setting = registry::find_alone(&key).ok_or_else(|| {
                entry.place.error(Reason::UnknownOwn(suggest::unknown_setting(&key)))
            })?;
            let line = own_assignment(setting, &entry, &entry.value)?;
            let replaced = format!("{} = ", setting.name);
            let lines = self.tables.entry(setting.table).or_default();
            lines.retain(|line| !line.starts_with(&replaced));
            lines.push(line);
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
        let rest = entry::Rest {
            databases: &databases,
            socket_dir: self.socket_dir.as_deref(),
            query_timeout: self.query_timeout,
        };
        let users = std::mem::take(&mut self.users);
        for table in Table::ALL {
            match table {
                Table::Database => {
                    for entry in &databases.list {
                        output += &entry::database(entry, &rest, &mut unknown)?;
                    }
                }
                Table::User => {
                    for entry in &users.list {
                        output += &entry::user(entry, &rest, &mut unknown)?;
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
        Ok(Imported { toml: output, unknown, files: Vec::new() })
    }
}

/// The setting that `[pgbouncer]` calls so.
fn of_pgbouncer(key: &str) -> Option<&'static Setting> {
    registry::all().find(|setting| !setting.table.is_array() && setting.pgbouncer == Some(key))
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
