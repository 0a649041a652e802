//! What must hold between settings that are each valid on their own.

use std::collections::{HashMap, HashSet};

use hawser_link::drive::worker::Role;
use hawser_pooler::parts::rules::RULES_MAX;

use super::Config;
use super::choice::{AuthType, HandOver, TargetSessionAttrs, TlsMode};
use super::database::{ADMIN_DATABASES, ANY_DATABASE};
use super::document::Places;
use super::error::{ConfigError, Position};
use super::link::link_of;
use super::registry::RuleEntry;
use super::setting::Table;

/// Whether this is the address of an HTTP service, without a path.
fn is_endpoint(text: &str) -> bool {
    let host = text.strip_prefix("https://").or(text.strip_prefix("http://"));
    host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@']))
}

/// Collects what is wrong with a configuration, and what is only odd.
pub(super) struct Check<'a> {
    config: &'a Config,
    places: &'a Places,
    errors: Vec<ConfigError>,
    warnings: Vec<ConfigError>,
}

impl<'a> Check<'a> {
    /// Errors, then warnings.
    pub(super) fn run(config: &'a Config) -> (Vec<ConfigError>, Vec<ConfigError>) {
        let mut check =
            Self { config, places: &config.places, errors: Vec::new(), warnings: Vec::new() };
        check.databases();
        check.users();
        check.rules();
        check.links();
        check.peers();
        check.etcd();
        check.patroni();
        check.otlp();
        check.replica_lag();
        check.authentication();
        check.login();
        check.client_tls();
        check.server_tls();
        (check.errors, check.warnings)
    }

    fn at(&self, table: Table, index: usize, name: &'static str, message: String) -> ConfigError {
        let mut place = self.places.find(table, index, name);
        if place == Position::default() && self.config.has_file {
            place = Position { line: 1, column: 1 };
        }
        ConfigError::new(&self.config.file, place, message)
    }

    fn error(
        &mut self,
        table: Table,
        index: usize,
        name: &'static str,
        message: impl Into<String>,
    ) {
        let error = self.at(table, index, name, message.into());
        self.errors.push(error);
    }

    fn warn(&mut self, table: Table, name: &'static str, message: impl Into<String>) {
        let warning = self.at(table, 0, name, message.into());
        self.warnings.push(warning);
    }

    fn databases(&mut self) {
        let (config, places) = (self.config, self.places);
        if config.databases.is_empty() {
            self.error(
                Table::Database,
                0,
                "",
                "no [[database]] (in a pgbouncer.ini: nothing in [databases]): at least one is \
                 needed, with name = \"*\" (any) or the name that clients ask for, and servers = \
                 [\"host:port\"]",
            );
        }
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (index, entry) in config.databases.iter().enumerate() {
            let mut error =
                |name, message: String| self.error(Table::Database, index, name, message);
            match entry.name.as_deref() {
                None => {
                    error("name", "[[database]] without name: write name = \"*\" for any".into());
                }
                Some(name) if ADMIN_DATABASES.contains(&name) => {
                    error("name", format!("name: `{name}` is the admin database"));
                }
                Some(name) => {
                    if let Some(first) = seen.insert(name, index) {
                        let line = places.find(Table::Database, first, "name").line;
                        error("name", format!("name: `{name}` is already in line {line}"));
                    }
                }
            }
            if entry.servers.is_empty() {
                error(
                    "servers",
                    "[[database]] without servers: write servers = [\"host:port\"] or \
                     [\"/socket/directory\"]"
                        .into(),
                );
            }
            if entry.password.is_some() && entry.user.is_none() {
                error("password", "password: without user, whose is it?".into());
            }
            let sources = [
                ("password", entry.password.is_some()),
                ("password_file", entry.password_file.is_some()),
                ("password_command", !entry.password_command.is_empty()),
            ];
            let mut set = sources.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name);
            if let (Some(first), Some(second)) = (set.next(), set.next()) {
                error(second, format!("{second}: there is {first} as well: which one?"));
            }
            if entry.user.is_none() {
                for (name, _) in sources[1..].iter().filter(|(_, is_set)| *is_set) {
                    error(name, format!("{name}: without user, whose password is it?"));
                }
            }
            if entry.hand_over_secret_file.is_none() && entry.hand_over != HandOver::Users {
                error("hand_over", "hand_over: it needs hand_over_secret_file".into());
            }
            if entry.hand_over_secret_file.is_some() && entry.hand_over == HandOver::Users {
                let mut error = |message: &str| {
                    error("hand_over_secret_file", format!("hand_over_secret_file: {message}"));
                };
                if entry.user.is_none() {
                    error("it needs `user`, the server's hawser.pooler_role");
                }
                if entry.connect_query.is_some() {
                    error("what connect_query sets would not outlive a change of users");
                }
                if config.reload.auth.auth_type == Some(AuthType::Any) {
                    error("auth_type = \"any\" does not know who its clients are");
                }
            }
        }
    }

    fn users(&mut self) {
        let config = self.config;
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (index, entry) in config.users.iter().enumerate() {
            match entry.name.as_deref() {
                None => self.error(Table::User, index, "name", "[[user]] without name"),
                Some(name) => {
                    if let Some(first) = seen.insert(name, index) {
                        let line = self.places.find(Table::User, first, "name").line;
                        let message = format!("name: `{name}` is already in line {line}");
                        self.error(Table::User, index, "name", message);
                    }
                }
            }
        }
    }

    fn rules(&mut self) {
        let config = self.config;
        let mut seen: HashMap<&str, usize> = HashMap::new();
        if config.rules.len() > RULES_MAX {
            let message = format!("more than {RULES_MAX} [[rule]]");
            self.error(Table::Rule, RULES_MAX, "", message);
        }
        for (index, entry) in config.rules.iter().enumerate() {
            let name = entry.name.as_deref().unwrap_or_default();
            if let Some(first) = seen.insert(name, index) {
                let line = self.places.find(Table::Rule, first, "name").line;
                let message = format!("name: `{name}` is already in line {line}");
                self.error(Table::Rule, index, "name", message);
            }
            if let Err(wrong) = entry.made() {
                self.error(Table::Rule, index, wrong.setting, wrong.message);
            }
            if let Some((setting, message)) = config.never_matches(entry) {
                let warning = self.at(Table::Rule, index, setting, message);
                self.warnings.push(warning);
            }
        }
    }

    fn peers(&mut self) {
        let (own, peers) = (self.config.start.process.peer_id, &self.config.reload.peers.peers);
        if own == 0 && !peers.is_empty() {
            let message = "peers: without `peer_id`, the number of this pooler among them, no cancel \
                           request is sent on";
            self.warn(Table::Process, "peers", message);
        }
        if own != 0 && peers.iter().all(|peer| u32::from(peer.id) == own) {
            let message = "peer_id: without `peers`, the addresses of the others, no cancel request is \
                           sent on";
            self.warn(Table::Process, "peer_id", message);
        }
    }

    fn etcd(&mut self) {
        let (etcd, limits) = (&self.config.start.etcd, &self.config.reload.limits);
        let mut error = |name, message: String| self.error(Table::Process, 0, name, message);
        for endpoint in &etcd.etcd {
            if !is_endpoint(endpoint) {
                error(
                    "etcd",
                    format!("etcd: `{endpoint}` is not http://host:port or https://host:port"),
                );
            }
        }
        if etcd.etcd_prefix.is_empty() {
            error("etcd_prefix", "etcd_prefix must not be empty".into());
        }
        let together = [
            (
                "etcd_cert_file",
                etcd.etcd_cert_file.is_some(),
                "etcd_key_file",
                etcd.etcd_key_file.is_some(),
            ),
            (
                "etcd_user",
                etcd.etcd_user.is_some(),
                "etcd_password_file",
                etcd.etcd_password_file.is_some(),
            ),
        ];
        for (one, has_one, other, has_other) in together {
            match (has_one, has_other) {
                (true, false) => error(one, format!("{one}: it needs {other}")),
                (false, true) => error(other, format!("{other}: it needs {one}")),
                _ => {}
            }
        }
        let shared = [
            limits.max_server_connections,
            limits.max_server_connections_per_server,
            limits.max_db_connections,
            limits.max_user_connections,
        ];
        let has_limit = shared.iter().any(|limit| limit.get().is_some())
            || self.config.databases.iter().any(|entry| entry.max_db_connections.is_some())
            || self.config.users.iter().any(|entry| entry.max_user_connections.is_some());
        if !etcd.etcd.is_empty() && !has_limit {
            let message = "etcd: there is no limit to share: set max_db_connections, \
                           max_user_connections, max_server_connections or \
                           max_server_connections_per_server";
            self.warn(Table::Process, "etcd", message);
        }
    }

    fn otlp(&mut self) {
        let Some(endpoint) = self.config.start.log.otlp_endpoint.as_deref() else { return };
        let uri: Option<hyper::Uri> = endpoint.parse().ok();
        let is_whole = uri.as_ref().is_some_and(|uri| {
            let authority = uri.authority().map_or("", hyper::http::uri::Authority::as_str);
            let has_host = uri.host().is_some_and(|host| !host.is_empty());
            matches!(uri.scheme_str(), Some("http" | "https"))
                && has_host
                && !authority.contains('@')
                && uri.path() != "/"
        });
        if !is_whole {
            let message = format!(
                "otlp_endpoint: `{endpoint}` is not http://host:port/path: collectors take traces at \
                 http://host:4318/v1/traces"
            );
            self.error(Table::Log, 0, "otlp_endpoint", message);
        } else if uri.is_some_and(|uri| uri.scheme_str() == Some("https")) {
            let message = format!(
                "otlp_endpoint: `{endpoint}`: traces are not sent by TLS: give http:// of a collector \
                 on this host, which can send them on by TLS"
            );
            self.error(Table::Log, 0, "otlp_endpoint", message);
        } else if self.config.reload.log.log_min_duration.get().is_none() {
            let message = "otlp_endpoint: without log_min_duration no transaction is sent";
            self.warn(Table::Log, "otlp_endpoint", message);
        }
    }

    fn patroni(&mut self) {
        use TargetSessionAttrs::{Primary, ReadWrite};
        let config = self.config;
        for (index, database) in config.databases.iter().enumerate() {
            let mut error = |message| self.error(Table::Database, index, "patroni", message);
            if let Some(node) = database.patroni.iter().find(|node| !is_endpoint(node)) {
                error(format!("patroni: `{node}` is not http://host:port or https://host:port"));
            }
            let wants = database.target_session_attrs;
            if !database.patroni.is_empty() && !matches!(wants, Primary | ReadWrite) {
                let message =
                    "patroni: it needs target_session_attrs = \"primary\" or \"read-write\"";
                error(message.to_owned());
            }
        }
    }

    fn replica_lag(&mut self) {
        let mut lone = Vec::new();
        for (index, database) in self.config.databases.iter().enumerate() {
            if database.servers.len() == 1 && database.max_replica_lag.get().is_some() {
                let message = "max_replica_lag: with one server there is no primary to compare it \
                               with, and a standby that is cut off passes for a fresh one: name the \
                               primary in servers, too";
                lone.push(self.at(Table::Database, index, "max_replica_lag", message.to_owned()));
            }
        }
        self.warnings.extend(lone);
    }

    fn links(&mut self) {
        let config = self.config;
        let mut near = HashSet::new();
        for (index, (name, entry)) in config.links.iter().enumerate() {
            match link_of(name, entry) {
                Ok(link) if matches!(link.role, Role::Near(_)) => drop(near.insert(name.as_str())),
                Ok(_) => {}
                Err((setting, message)) => self.error(Table::Link, index, setting, message),
            }
        }
        let wrong: Vec<_> = config.links.iter().map(|(name, _)| name.as_str()).collect();
        for (index, entry) in config.databases.iter().enumerate() {
            for server in &entry.servers {
                let Some(link) = server.link() else { continue };
                if !near.contains(link) {
                    let message = match wrong.contains(&link) {
                        true => format!("servers: the link `{link}` does not dial"),
                        false => format!("servers: there is no [link.{link}]"),
                    };
                    self.error(Table::Database, index, "servers", message);
                }
            }
        }
    }

    fn authentication(&mut self) {
        let config = self.config;
        let auth = &config.reload.auth;
        match (auth.auth_type, &auth.hba_file) {
            (Some(AuthType::Hba), None) => {
                self.error(Table::Auth, 0, "auth_type", "auth_type: hba needs an hba_file");
            }
            (Some(method), Some(_)) if method != AuthType::Hba => {
                let message = format!(
                    "auth_type: with an hba_file its rules decide, and {method} would not be used: \
                     remove one of the two"
                );
                self.error(Table::Auth, 0, "auth_type", message);
            }
            _ => {}
        }
        if auth.ident_file.is_some() && auth.hba_file.is_none() {
            self.error(
                Table::Auth,
                0,
                "ident_file",
                "ident_file: only rules of an hba_file use it",
            );
        }
        let verifies = matches!(
            config.reload.client_tls.client_tls_sslmode,
            TlsMode::VerifyCa | TlsMode::VerifyFull
        );
        if auth.auth_type == Some(AuthType::Cert) && !verifies {
            self.error(
                Table::Auth,
                0,
                "auth_type",
                "auth_type: cert needs client_tls_sslmode = \"verify-full\" in [tls]",
            );
        }
        if auth.auth_type == Some(AuthType::Any) {
            for (index, entry) in config.databases.iter().enumerate() {
                if entry.user.is_none() {
                    self.error(
                        Table::Database,
                        index,
                        "name",
                        "auth_type = \"any\" ignores the client's name: this database needs a user",
                    );
                }
            }
        }
        let open = config.start.listen.address.iter().find(|address| !address.is_local());
        if let (Some(method @ (AuthType::Trust | AuthType::Any)), Some(open)) =
            (auth.auth_type, open)
        {
            let message = format!("auth_type: {method} admits every client that reaches {open}");
            self.warn(Table::Auth, "auth_type", message);
        }
        let names: HashSet<_> = config.databases.iter().filter_map(|e| e.name.as_deref()).collect();
        let general = auth.auth_dbname.iter().map(|name| (Table::Auth, 0, name));
        let own = config.databases.iter().enumerate().filter_map(|(index, entry)| {
            entry.auth_dbname.as_ref().map(|name| (Table::Database, index, name))
        });
        for (table, index, name) in general.chain(own) {
            if !names.contains(name.as_str()) && !names.contains(ANY_DATABASE) {
                let message = format!("auth_dbname: there is no [[database]] `{name}`");
                self.error(table, index, "auth_dbname", message);
            }
        }
    }

    /// A pooler without any way to log in is a mistake of the configuration, not of its clients.
    fn login(&mut self) {
        let config = self.config;
        let auth = &config.reload.auth;
        let with_password = config.users.iter().any(|user| user.password.is_some());
        let looked_up = auth.auth_user.is_some()
            || config.databases.iter().any(|database| database.auth_user.is_some());
        let enough = match config.auth_type() {
            AuthType::Any | AuthType::Hba => true,
            AuthType::Trust | AuthType::Cert => !config.users.is_empty(),
            AuthType::Md5 | AuthType::ScramSha256 | AuthType::Plain => with_password,
        };
        if !(enough || looked_up || auth.users_file.is_some()) {
            self.error(
                Table::Auth,
                0,
                "",
                "no client could log in. Give users in one of three ways: users_file = \
                 \"userlist.txt\" in [auth] (PgBouncer's format); [[user]] entries with name and \
                 password; or auth_user in [auth], who looks users up on the server by auth_query",
            );
        }
    }

    fn client_tls(&mut self) {
        let tls = &self.config.reload.client_tls;
        let mode = tls.client_tls_sslmode;
        let mut error = |name, message: &str| self.error(Table::Tls, 0, name, message);
        if mode != TlsMode::Disable {
            if tls.client_tls_cert_file.is_none() {
                error("client_tls_sslmode", "client_tls_sslmode: needs client_tls_cert_file");
            }
            if tls.client_tls_key_file.is_none() {
                error("client_tls_sslmode", "client_tls_sslmode: needs client_tls_key_file");
            }
        }
        if matches!(mode, TlsMode::VerifyCa | TlsMode::VerifyFull)
            && tls.client_tls_ca_file.is_none()
        {
            error("client_tls_sslmode", "client_tls_sslmode: verifying needs client_tls_ca_file");
        }
        if mode == TlsMode::Disable && tls.client_tls_cert_file.is_some() {
            self.warn(
                Table::Tls,
                "client_tls_cert_file",
                "client_tls_cert_file: not used, for client_tls_sslmode is disable; \"prefer\" \
                 offers TLS, \"require\" insists on it",
            );
        }
    }

    fn server_tls(&mut self) {
        let config = self.config;
        let tls = &config.reload.server_tls;
        let (own, key) = (&tls.server_tls_cert_file, &tls.server_tls_key_file);
        self.server_certificate(Table::Tls, 0, own.is_some(), key.is_some());
        let verifies = |mode| matches!(mode, TlsMode::VerifyCa | TlsMode::VerifyFull);
        let message = "server_tls_sslmode: verifying needs server_tls_ca_file";
        if verifies(tls.server_tls_sslmode) && tls.server_tls_ca_file.is_none() {
            self.error(Table::Tls, 0, "server_tls_sslmode", message);
        }
        for (index, entry) in config.databases.iter().enumerate() {
            let (own, key) = (&entry.server_tls_cert_file, &entry.server_tls_key_file);
            self.server_certificate(Table::Database, index, own.is_some(), key.is_some());
            let ca_file = entry.server_tls_ca_file.as_ref().or(tls.server_tls_ca_file.as_ref());
            if entry.server_tls_sslmode.is_some_and(verifies) && ca_file.is_none() {
                self.error(Table::Database, index, "server_tls_sslmode", message);
            }
            let mode = entry.server_tls_sslmode.unwrap_or(tls.server_tls_sslmode);
            let negotiation = entry.server_tls_negotiation.unwrap_or(tls.server_tls_negotiation);
            // libpq's own rule: a direct start cannot fall back to plain text.
            if negotiation == super::TlsNegotiation::Direct
                && matches!(mode, TlsMode::Disable | TlsMode::Allow | TlsMode::Prefer)
            {
                let table = if entry.server_tls_negotiation.is_some() {
                    Table::Database
                } else {
                    Table::Tls
                };
                let index = if table == Table::Tls { 0 } else { index };
                self.error(
                    table,
                    index,
                    "server_tls_negotiation",
                    format!(
                        "server_tls_negotiation: direct cannot fall back, and server_tls_sslmode is \
                         {mode}: \"require\", \"verify-ca\" or \"verify-full\" is allowed"
                    ),
                );
            }
        }
    }

    fn server_certificate(&mut self, table: Table, index: usize, has_own: bool, has_key: bool) {
        if has_own != has_key {
            let name = if has_own { "server_tls_cert_file" } else { "server_tls_key_file" };
            let message = "server_tls_cert_file and server_tls_key_file need each other";
            self.error(table, index, name, message);
        }
    }
}

impl Config {
    /// Why a rule matches nothing, with the setting that is in the way: it names what there is not.
    #[must_use]
    pub(crate) fn never_matches(&self, rule: &RuleEntry) -> Option<(&'static str, String)> {
        let is_served = |name: &str| {
            let entries = self.databases.iter().filter_map(|entry| entry.name.as_deref());
            entries.into_iter().any(|known| known == ANY_DATABASE || known == name)
        };
        if let Some(name) = rule.database.as_deref().filter(|name| !is_served(name)) {
            let message =
                format!("database: no [[database]] serves `{name}`: the rule matches nothing");
            return Some(("database", message));
        }
        let auth = &self.reload.auth;
        let are_known = auth.users_file.is_none()
            && auth.auth_user.is_none()
            && self.databases.iter().all(|entry| entry.auth_user.is_none())
            && matches!(self.auth_type(), AuthType::ScramSha256 | AuthType::Md5 | AuthType::Plain);
        let is_known =
            |name: &str| self.users.iter().any(|user| user.name.as_deref() == Some(name));
        let name = rule.user.as_deref().filter(|name| are_known && !is_known(name))?;
        Some(("user", format!("user: no [[user]] is called `{name}`: the rule matches nothing")))
    }
}
