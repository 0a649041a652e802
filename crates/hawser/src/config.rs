//! The configuration: a TOML file, read, checked and resolved into valid types.
//!
//! # Model
//! ```text
//! text --document--> settings with places --check--> no contradictions --inherit--> Config
//! ```
//! [`registry`] declares every setting once. [`StartConfig`] holds what only a restart changes,
//! [`ReloadConfig`] what a reload or `SET` changes; databases and users have all that they inherit.
//!
//! # Invariants
//! - A [`Config`] that exists is whole: at least one address, one database with a server, one way to
//!   log in, and no setting outside of its range.
//! - All errors are found before any is reported, each with file, line and column.
//! - No password is in `Debug`, in an error, or in SHOW CONFIG.
//!
//! # Limits
//! Files that are named here (certificates, hba_file, users_file) are not opened here: their
//! readers report what is wrong in them.

mod address;
mod changes;
mod check;
mod choice;
mod ciphers;
mod congestion;
mod database;
pub(crate) mod document;
mod error;
mod group;
mod inherited;
mod link;
mod overrides;
mod peer;
mod proxy;
pub mod registry;
mod rule;
mod server_url;
pub mod setting;
pub(crate) mod suggest;
#[cfg(test)]
mod tests;
mod value;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::import::{self, ImportError};
pub use address::{
    LISTEN_PORT_DEFAULT, ListenAddress, SERVER_PORT_DEFAULT, ServerAddress, host_and_port, is_unix,
};
pub use choice::{
    AuthType, BypassUse, ConsoleVersion, EtcdLost, ExtensionUse, Fidelity, HandOver,
    LinkCompression, ListenLost, LoadBalanceHosts, LogFormat, LogLevel, MptcpUse, PoolMode,
    ProxyProtocol, SyslogFacility, TargetSessionAttrs, TlsMode, TlsNegotiation, TlsVersions,
    TrackQueries,
};
pub use ciphers::{Tls13Ciphers, TlsCiphers, TlsCurves};
pub use congestion::Congestion;
pub use database::{ADMIN_DATABASES, ANY_DATABASE, CONSOLE, DatabaseConfig, ForcedUser};
pub use error::{ConfigError, ConfigErrors, Rejected};
pub use group::{ReloadConfig, StartConfig};
pub use inherited::Inherited;
pub use link::{LINK_PORT_DEFAULT, LinkConfig};
pub use overrides::{Overrides, SETTINGS_VARIABLE};
pub use peer::Peer;
pub use proxy::ProxySources;
pub use registry::{
    AdminSettings, AuthSettings, BypassSettings, ClientTlsSettings, ConsoleSettings, EtcdSettings,
    LimitSettings, ListenSettings, LogSettings, LogStartSettings, NameSettings, NetworkSettings,
    PoolSettings, ProcessSettings, ServerSettings, ServerTlsSettings, ShutdownSettings,
    TimeoutSettings, UserEntry,
};
pub(crate) use server_url::percent_decoded;
pub use server_url::{ServerUrl, ServerUrlError};
pub use value::{DURATION_MAX, FileMode, InPlans, Limit, OptionalAddress, Password, Size, Timeout};

use check::Check;
use document::{Document, Places};
use error::Position;
use registry::DatabaseEntry;
pub use registry::RuleEntry;
pub use rule::WrongRule;
use setting::Change;
pub(crate) use value::duration;
use value::{Context, Raw};

/// No configuration is larger; a file that is, is another file.
pub(crate) const FILE_BYTES_MAX: u64 = 64 << 20;

/// A whole and valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// What only a restart changes.
    pub start: StartConfig,
    /// What a reload replaces.
    pub reload: ReloadConfig,
    file: PathBuf,
    /// Whether `file` is one, or a word such as `--server`.
    has_file: bool,
    general: Inherited,
    databases: Vec<DatabaseEntry>,
    users: Vec<UserEntry>,
    rules: Vec<RuleEntry>,
    links: Vec<(String, registry::LinkEntry)>,
    places: Places,
    database_index: HashMap<String, usize>,
    user_index: HashMap<String, usize>,
    warnings: Vec<ConfigError>,
    /// What the command line has put on top.
    overrides: Overrides,
    /// The pgbouncer.ini that this came from, if it came from one.
    pgbouncer: Option<PgBouncer>,
}

#[derive(Clone, Debug)]
struct PgBouncer {
    ini: PathBuf,
    /// It and what it includes.
    files: Vec<PathBuf>,
}

/// One line of SHOW CONFIG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownSetting {
    /// PgBouncer's name where it has the setting.
    pub name: &'static str,
    /// The value in force, in PgBouncer's format.
    pub value: String,
    /// The value that it has by default.
    pub default: String,
    /// Whether a reload or SET changes it.
    pub changeable: bool,
}

/// Why SET was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// There is no such setting; the message has a suggestion.
    #[error("{0}")]
    Unknown(String),
    /// The setting belongs to one `[[database]]` or `[[user]]`, or needs a restart.
    #[error("{0}")]
    NotChangeable(String),
    /// The value is not allowed, alone or together with the others.
    #[error("{0}")]
    Refused(String),
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// All that is wrong with it, or the one reason why it cannot be read.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigErrors> {
        Self::load_with(path, &Overrides::default())
    }

    /// The same, with `overrides` on top.
    ///
    /// # Errors
    /// The same, and what is wrong with `overrides`.
    pub fn load_with(path: impl AsRef<Path>, overrides: &Overrides) -> Result<Self, ConfigErrors> {
        let path = path.as_ref();
        let refuse = |message: String| {
            ConfigErrors::single(ConfigError::new(path, Position::default(), message))
        };
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.len() > FILE_BYTES_MAX => {
                return Err(refuse(format!("larger than {FILE_BYTES_MAX} bytes")));
            }
            Ok(_) => {}
            Err(error) => return Err(refuse(format!("cannot be read: {error}"))),
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| refuse(format!("cannot be read: {error}")))?;
        Self::with_overrides(&text, path, overrides)
    }

    /// What the pgbouncer.ini at `path` says, with what the command line puts on top. Relative names in
    /// it start at the working directory, as in PgBouncer. What is not carried over is a warning.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn load_pgbouncer(path: &Path, overrides: &Overrides) -> Result<Self, ConfigErrors> {
        let refuse = |message: String| {
            ConfigErrors::single(ConfigError::new(path, Position::default(), message))
        };
        let imported = import::import_file(path).map_err(|errors| {
            let refused = |error: &ImportError| {
                ConfigError::new(path, Position::default(), error.to_string())
            };
            ConfigErrors::new(errors.iter().map(refused).collect())
        })?;
        let base = std::env::current_dir()
            .map_err(|error| refuse(format!("no working directory: {error}")))?;
        // Names start at its directory; it stands for the ini in what is said of the settings.
        let place = base.join(path.file_name().unwrap_or(path.as_os_str()));
        // Lines of the translation mean nothing to those who wrote the ini.
        let of_ini = |error: &ConfigError| match error.file == place {
            true => ConfigError::new(path, Position::default(), error.message.clone()),
            false => error.clone(),
        };
        let of_ini = |errors: &[ConfigError]| errors.iter().map(of_ini).collect::<Vec<_>>();
        let mut config = Self::with_overrides(&imported.toml, &place, overrides)
            .map_err(|errors| ConfigErrors::new(of_ini(errors.as_slice())))?;
        config.warnings = of_ini(&config.warnings);
        let notes = imported.notes().map(str::to_owned);
        config.warnings.extend(notes.map(|note| ConfigError::new(path, Position::default(), note)));
        config.pgbouncer = Some(PgBouncer { ini: path.to_owned(), files: imported.files });
        Ok(config)
    }

    /// The file that this came from as it is now, with what the command line has put on top. Without
    /// a file, this.
    ///
    /// # Errors
    /// As [`Config::load_with`].
    pub fn read_again(&self) -> Result<Self, ConfigErrors> {
        if let Some(PgBouncer { ini, .. }) = &self.pgbouncer {
            return Self::load_pgbouncer(ini, &self.overrides);
        }
        match self.file() {
            Some(file) => Self::load_with(file, &self.overrides),
            None => Ok(self.clone()),
        }
    }

    /// Reads and checks `text`; relative paths in it start at the directory of `path`, which need
    /// not exist.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn from_str(text: &str, path: impl AsRef<Path>) -> Result<Self, ConfigErrors> {
        Self::with_overrides(text, path.as_ref(), &Overrides::default())
    }

    fn with_overrides(
        text: &str,
        path: &Path,
        overrides: &Overrides,
    ) -> Result<Self, ConfigErrors> {
        let (mut document, mut errors) = Document::read(text, path);
        let mut warnings = Vec::new();
        overrides.put_on(&mut document, &mut errors, &mut warnings);
        let mut config = Self::checked(document, path, true, errors, warnings)?;
        config.overrides = overrides.clone();
        Ok(config)
    }

    /// What `serve --server URL` runs without a file: every database of that server; clients log in
    /// as the URL's user with its password. Without a password there, every client that connects as
    /// that user is trusted, which is refused unless every address in `listen` is local.
    ///
    /// `listen` is as `address` of `[listen]`, with commas; `None` is its default, as for
    /// `pool_size`.
    ///
    /// # Errors
    /// What is wrong with the arguments; never the URL itself, which holds a password.
    pub fn from_server_url(
        url: &str,
        listen: Option<&str>,
        pool_size: Option<u32>,
    ) -> Result<Self, ConfigErrors> {
        let mut errors = Vec::new();
        let mut warnings = Vec::new();
        let mut document = Document::empty();
        let overrides = Overrides {
            listen: listen.map(str::to_owned),
            pool_size,
            server: match ServerUrl::parse(url) {
                Ok(url) => Some(url),
                Err(error) => {
                    errors.push(overrides::wrong("--server", error.to_string()));
                    None
                }
            },
            ..Overrides::default()
        };
        overrides.put_on(&mut document, &mut errors, &mut warnings);
        if let Some(url) = &overrides.server {
            if url.password.is_none() {
                document.reload.auth.auth_type = Some(AuthType::Trust);
            }
            let user = document.users.iter().find_map(|user| user.name.clone());
            document.reload.auth.admin_users.extend(user);
        }
        let trusts = document.reload.auth.auth_type == Some(AuthType::Trust);
        let open = document.start.listen.address.iter().find(|address| !address.is_local());
        if let (true, Some(open)) = (trusts, open) {
            let message = format!(
                "the URL has no password, so whoever reaches {open} would be let in: give it one, \
                 or listen on loopback only"
            );
            errors.push(overrides::wrong("--server", message));
        }
        Self::checked(document, Path::new("--server"), false, errors, warnings)
    }

    /// Checks `document` and lets databases and users inherit.
    fn checked(
        document: Document,
        file: &Path,
        has_file: bool,
        mut errors: Vec<ConfigError>,
        mut warnings: Vec<ConfigError>,
    ) -> Result<Self, ConfigErrors> {
        let Document { start, reload, databases, users, rules, links, places } = document;
        let mut config = Self {
            general: for_all(&reload),
            start,
            reload,
            file: file.to_owned(),
            has_file,
            databases,
            users,
            rules,
            links,
            places,
            database_index: HashMap::new(),
            user_index: HashMap::new(),
            warnings: Vec::new(),
            overrides: Overrides::default(),
            pgbouncer: None,
        };
        // A value that was refused stands at its default here, and would draw false errors.
        if errors.is_empty() {
            let (found, odd) = Check::run(&config);
            errors.extend(found);
            warnings.extend(odd);
        }
        if !errors.is_empty() {
            return Err(ConfigErrors::new(errors));
        }
        config.warnings = warnings;
        config.inherit();
        Ok(config)
    }

    fn inherit(&mut self) {
        self.general = for_all(&self.reload);
        let entries = self.databases.iter();
        let databases: Vec<_> =
            entries.map(|entry| DatabaseConfig::inherit(entry, &self.general)).collect();
        let index = |(at, name): (usize, &str)| (name.to_owned(), at);
        let names = databases.iter().map(|database| database.name.as_str());
        self.database_index = names.enumerate().map(index).collect();
        self.user_index = self.users.iter().map(UserEntry::name).enumerate().map(index).collect();
        self.reload.databases = databases;
        // Those that are wrong are errors already.
        let links = self.links.iter();
        self.reload.links =
            links.filter_map(|(name, entry)| link::link_of(name, entry).ok()).collect();
    }

    /// The files that this was read from.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let included = self.pgbouncer.iter().flat_map(|of| of.files.iter().map(PathBuf::as_path));
        let own = self.file().filter(|_| self.pgbouncer.is_none());
        included.chain(own)
    }

    /// The file that this came from, if it came from one. Of a pgbouncer.ini, its name in the working
    /// directory.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.has_file.then_some(self.file.as_path())
    }

    /// The files that a reload reads: those of [`Self::files`], and those that they name. (Those of
    /// `password_file` are read whenever a server connection is opened.)
    #[must_use]
    pub fn files_of_reload(&self) -> Vec<&Path> {
        let ReloadConfig { auth, client_tls, databases, links, .. } = &self.reload;
        let of_all = [
            auth.users_file.as_deref(),
            auth.hba_file.as_deref(),
            auth.ident_file.as_deref(),
            auth.auth_ca_file.as_deref(),
            client_tls.client_tls_cert_file.as_deref(),
            client_tls.client_tls_key_file.as_deref(),
            client_tls.client_tls_ca_file.as_deref(),
        ];
        let of_databases = databases.iter().flat_map(|database| {
            let (tls, secret) = (&database.inherited.tls, &database.hand_over_secret_file);
            let files =
                [&tls.server_tls_ca_file, &tls.server_tls_cert_file, &tls.server_tls_key_file];
            files.into_iter().chain([secret]).map(Option::as_deref)
        });
        let of_links = links.iter().flat_map(|link| [Some(&*link.key), link.peers_file.as_deref()]);
        let named = of_all.into_iter().chain(of_databases).chain(of_links).flatten();
        let mut files: Vec<_> = self.files().chain(named).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// The command line that checks what this came from.
    #[must_use]
    pub fn check_command(&self) -> String {
        match (&self.pgbouncer, self.file()) {
            (Some(PgBouncer { ini, .. }), _) => {
                format!("hawser check --pgbouncer {}", ini.display())
            }
            (None, file) => format!(
                "hawser check -c {}",
                file.map_or("FILE".into(), |f| f.display().to_string())
            ),
        }
    }

    /// What is allowed but odd; `check` prints it, `serve` logs it once.
    #[must_use]
    pub fn warnings(&self) -> &[ConfigError] {
        &self.warnings
    }

    /// Where clients connect; at least one.
    #[must_use]
    pub fn listen(&self) -> &[ListenAddress] {
        &self.start.listen.address
    }

    /// Every `[[database]]`, in the order of the file.
    #[must_use]
    pub fn databases(&self) -> &[DatabaseConfig] {
        &self.reload.databases
    }

    /// Whether every server connection counts under a limit on server connections (pool_size aside).
    #[must_use]
    pub fn all_are_limited(&self) -> bool {
        let limits = &self.reload.limits;
        let is_set = |limit: Limit| limit.get().is_some();
        is_set(limits.max_server_connections)
            || is_set(limits.max_server_connections_per_server)
            || self
                .databases()
                .iter()
                .all(|database| is_set(database.inherited.limits.max_db_connections))
            || is_set(limits.max_user_connections)
                && self.users.iter().all(|user| user.max_user_connections.is_none_or(is_set))
    }

    /// Every `[[user]]`, in the order of the file.
    #[must_use]
    pub fn users(&self) -> &[UserEntry] {
        &self.users
    }

    /// Every `[[rule]]`, in the order of the file.
    #[must_use]
    pub fn rules(&self) -> &[RuleEntry] {
        &self.rules
    }

    /// The entry for a client that asks for `name`: its own, else that of `*`. The admin databases
    /// are never found: they are no entry.
    #[must_use]
    pub fn database(&self, name: &str) -> Option<&DatabaseConfig> {
        if ADMIN_DATABASES.contains(&name) {
            return None;
        }
        let index = |name| self.database_index.get(name);
        // A client may not ask for the entry "*" by that name.
        let own = if name == ANY_DATABASE { None } else { index(name) };
        own.or_else(|| index(ANY_DATABASE)).map(|at| &self.reload.databases[*at])
    }

    /// The `[[user]]` of that name.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<&UserEntry> {
        self.user_index.get(name).map(|at| &self.users[*at])
    }

    /// What `user` may have in `database`. For the sizes of a pool, `user` is the forced user where
    /// the database has one, as in PgBouncer; for limits and times of a client, the client's own.
    #[must_use]
    pub fn resolve(&self, database: &DatabaseConfig, user: &str) -> Inherited {
        let inherited = &database.inherited;
        self.user(user).map_or_else(|| inherited.clone(), |user| inherited.with(user))
    }

    /// What `user` has whatever the database is.
    #[must_use]
    pub fn general_for(&self, user: &str) -> Inherited {
        self.user(user).map_or_else(|| self.general.clone(), |user| self.general.with(user))
    }

    /// How clients log in: as configured, else `hba` with an hba_file, else `scram-sha-256`.
    #[must_use]
    pub fn auth_type(&self) -> AuthType {
        let auth = &self.reload.auth;
        auth.auth_type.unwrap_or(if auth.hba_file.is_some() {
            AuthType::Hba
        } else {
            AuthType::ScramSha256
        })
    }

    /// Whether `user` may do everything on the admin database.
    #[must_use]
    pub fn is_admin(&self, user: &str) -> bool {
        self.reload.auth.admin_users.iter().any(|name| name == user)
    }

    /// Whether `user` may look at the admin database.
    #[must_use]
    pub fn is_stats_user(&self, user: &str) -> bool {
        self.is_admin(user) || self.reload.auth.stats_users.iter().any(|name| name == user)
    }

    /// SHOW CONFIG: every setting outside of `[[database]]` and `[[user]]`, by name.
    #[must_use]
    pub fn show(&self) -> Vec<ShownSetting> {
        let (start, reload) = (StartConfig::defaults(), ReloadConfig::defaults());
        let defaults = start.shown().into_iter().chain(reload.shown());
        let values = self.start.shown().into_iter().chain(self.reload.shown());
        let mut shown: Vec<_> = values
            .zip(defaults)
            .map(|((setting, value), (_, default))| ShownSetting {
                name: setting.shown_name(),
                value,
                default,
                changeable: setting.change == Change::Reload,
            })
            .collect();
        shown.sort_by_key(|setting| setting.name);
        shown
    }

    /// SET of the admin console: changes one setting until the next reload. Databases and users that
    /// inherit it follow.
    ///
    /// # Errors
    /// See [`SetError`]; the configuration is then as it was.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        let Some(setting) = registry::find_by_name(name) else {
            return Err(SetError::Unknown(suggest::unknown_setting(name)));
        };
        if setting.table.is_array() {
            let message = format!("{name} belongs to one {}: change the file", setting.table);
            return Err(SetError::NotChangeable(message));
        }
        if setting.change == Change::Restart {
            return Err(SetError::NotChangeable(format!("{name} changes by a restart only")));
        }
        let base = self.file.parent().unwrap_or(Path::new(""));
        let mut changed = self.clone();
        changed
            .reload
            .assign(&Raw::Text(value), Context { setting, base })
            .map_err(|rejected| SetError::Refused(format!("{name}: {}", rejected.message)))?;
        let (errors, _) = Check::run(&changed);
        if let Some(error) = errors.first() {
            return Err(SetError::Refused(error.message.clone()));
        }
        changed.inherit();
        *self = changed;
        Ok(())
    }

    /// The settings that differ between `self` and `new` but need a restart, by the names of SHOW
    /// CONFIG: what a reload has to say that it leaves alone.
    #[must_use]
    pub fn diff_restart(&self, new: &Self) -> Vec<&'static str> {
        let pairs = self.start.shown().into_iter().zip(new.start.shown());
        pairs.filter(|(old, new)| old.1 != new.1).map(|(old, _)| old.0.shown_name()).collect()
    }

    /// What `new` changes, a line each, for the log: no secret, and nothing of what needs a
    /// restart.
    #[must_use]
    pub fn changes(&self, new: &Self) -> Vec<String> {
        changes::between(self, new)
    }

    /// `self`, just loaded, for a process that was started with `running`: what needs a restart
    /// stays as it is.
    #[must_use]
    pub fn reloaded_over(mut self, running: &Self) -> Self {
        self.start = running.start.clone();
        self
    }
}

impl AdminSettings {
    /// Where the control socket is: as configured, else `hawser.sock` in `$RUNTIME_DIRECTORY` or
    /// `$XDG_RUNTIME_DIR`, else nowhere. `environment` reads a variable.
    #[must_use]
    pub fn control_socket_path(
        &self,
        environment: impl Fn(&str) -> Option<PathBuf>,
    ) -> Option<PathBuf> {
        self.control_socket.clone().or_else(|| {
            let directory =
                environment("RUNTIME_DIRECTORY").or_else(|| environment("XDG_RUNTIME_DIR"))?;
            Some(directory.join("hawser.sock"))
        })
    }
}

/// What entries inherit.
fn for_all(general: &ReloadConfig) -> Inherited {
    Inherited {
        auth: Arc::new(general.auth.clone()),
        tls: Arc::new(general.server_tls.clone()),
        pool: Arc::new(general.pool.clone()),
        limits: Arc::new(general.limits.clone()),
        servers: Arc::new(general.servers.clone()),
        timeouts: Arc::new(general.timeouts.clone()),
    }
}
