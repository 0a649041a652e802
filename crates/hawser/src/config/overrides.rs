//! What the command line puts on top of a file: `--listen`, `--server`, `--pool-size`.
//!
//! # Model
//! They are put on the document before it is checked, at the start and at each reload alike: so
//! they stay, and are checked together with the rest.

use std::path::Path;

use super::choice::TlsMode;
use super::database::ANY_DATABASE;
use super::document::Document;
use super::error::{ConfigError, Position, Rejected};
use super::registry::{self, DatabaseEntry, UserEntry};
use super::server_url::ServerUrl;
use super::setting::Setting;
use super::suggest;
use super::value::{Context, Raw};

/// What the command line puts on top of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// In place of `address` of `[listen]`, with commas.
    pub listen: Option<String>,
    /// Where all databases are, and one user more.
    pub server: Option<ServerUrl>,
    /// In place of every `pool_size`.
    pub pool_size: Option<u32>,
    /// In place of `user` of `[process]`.
    pub user: Option<String>,
    /// In place of `level` of `[log]`.
    pub level: Option<&'static str>,
    /// In place of `format` of `[log]`.
    pub format: Option<&'static str>,
    /// Lines `name = value`, as in a section `[hawser]` of a pgbouncer.ini: see [`SETTINGS_VARIABLE`].
    pub settings: Option<String>,
}

/// The environment variable with settings for a pgbouncer.ini that something else writes, as an operator
/// of Kubernetes does: the file cannot have a section of ours there.
pub const SETTINGS_VARIABLE: &str = "HAWSER_SETTINGS";

/// What is wrong with an option.
pub(super) fn wrong(option: &str, message: String) -> ConfigError {
    ConfigError::new(Path::new(option), Position::default(), message)
}

impl Overrides {
    pub(super) fn put_on(
        &self,
        document: &mut Document,
        errors: &mut Vec<ConfigError>,
        warnings: &mut Vec<ConfigError>,
    ) {
        if let Some(url) = &self.server {
            warnings.extend(url.ignored.iter().map(|name| {
                wrong("--server", format!("{name} of the URL means nothing to a pooler: ignored"))
            }));
            if let (Some(mode @ (TlsMode::VerifyCa | TlsMode::VerifyFull)), None) =
                (url.tls_mode, &url.tls_ca_file)
            {
                let message = format!("sslmode={mode} needs sslrootcert=FILE, the authorities");
                errors.push(wrong("--server", message));
            }
            document.put_server(url);
        }
        for (option, name, value) in [
            ("--listen", "address", self.listen.clone()),
            ("--pool-size", "pool_size", self.pool_size.map(|size| size.to_string())),
            ("--user", "user", self.user.clone()),
            ("--verbose", "level", self.level.map(str::to_owned)),
            ("--format", "format", self.format.map(str::to_owned)),
        ] {
            let setting = registry::find_by_name(name);
            if let (Some(setting), Some(value)) = (setting, value)
                && let Err(rejected) = assign(document, setting, &value)
            {
                errors.push(wrong(option, rejected.message));
            }
        }
        for line in self.settings.iter().flat_map(|text| text.lines()) {
            if let Err(message) = put_line(document, line.trim()) {
                errors.push(wrong(SETTINGS_VARIABLE, message));
            }
        }
        if self.pool_size.is_some() {
            document.databases.iter_mut().for_each(|database| database.pool_size = None);
            document.users.iter_mut().for_each(|user| user.pool_size = None);
        }
    }
}

/// Puts a line of [`SETTINGS_VARIABLE`] on the document: empty, a comment, or `name = value`.
fn put_line(document: &mut Document, line: &str) -> Result<(), String> {
    if line.is_empty() || line.starts_with(['#', ';']) {
        return Ok(());
    }
    let (name, value) = line
        .split_once('=')
        .map(|(name, value)| (name.trim(), value.trim()))
        .ok_or_else(|| format!("`{line}` is not `name = value`"))?;
    let setting = registry::find_alone(name).ok_or_else(|| suggest::unknown_setting(name))?;
    assign(document, setting, value).map_err(|rejected| format!("{name}: {}", rejected.message))
}

/// Puts a value, as text, in place of what the document has.
fn assign(document: &mut Document, setting: &'static Setting, value: &str) -> Result<(), Rejected> {
    let context = Context { setting, base: Path::new("") };
    document.assign(setting.table, 0, &Raw::Text(value), context)
}

impl Document {
    /// All databases are on this server, and its user is one; without a database, there is one for
    /// all that the server has.
    fn put_server(&mut self, url: &ServerUrl) {
        if let Some(timeout) = url.connect_timeout {
            self.reload.servers.server_connect_timeout = timeout;
        }
        if self.databases.is_empty() {
            let mut any = DatabaseEntry::defaults();
            any.name = Some(ANY_DATABASE.to_owned());
            self.databases.push(any);
        }
        for database in &mut self.databases {
            database.servers.clone_from(&url.servers);
            if let Some(attrs) = url.target_session_attrs {
                database.target_session_attrs = attrs;
            }
            // What the URL does not say goes by [tls], as the server of the file is not in use.
            database.server_tls_sslmode = url.tls_mode;
            database.server_tls_negotiation = url.tls_negotiation;
            database.server_tls_ca_file.clone_from(&url.tls_ca_file);
            database.server_tls_cert_file.clone_from(&url.tls_cert_file);
            database.server_tls_key_file.clone_from(&url.tls_key_file);
        }
        // libpq would take the name of the system's user; a variable says the same without a lookup.
        let name = url.user.clone().unwrap_or_else(|| {
            let name = std::env::var("USER").ok().filter(|user| !user.is_empty());
            name.unwrap_or_else(|| "postgres".to_owned())
        });
        match self.users.iter_mut().find(|user| user.name.as_deref() == Some(&name)) {
            Some(user) => {
                if url.password.is_some() {
                    user.password.clone_from(&url.password);
                }
            }
            None => {
                let mut user = UserEntry::defaults();
                user.name = Some(name);
                user.password.clone_from(&url.password);
                self.users.push(user);
            }
        }
    }
}
