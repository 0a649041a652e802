//! `hawser check`: is the configuration right, and what works on this host.
//!
//! # Model       a line a finding, `ok`, `note`, `warn` or `error`. Errors are what `serve` would refuse; what
//!               depends on the moment (a server that is down) is a warning, so that a check on a
//!               machine that builds images does not fail; a note is what was not checked
//! # Exit codes  0 without an error (with `--strict`: nor a warning), else 1

mod asker;
mod census;
pub(crate) mod exposed;
mod inside;
pub(crate) mod login;
mod lookup;
mod places;
mod pooler;
mod shared;

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use hawser_congestion::cc::usage;
use hawser_pooler::wire::startup::write_ssl_request;
use hawser_sys::programs::Listeners;
use hawser_sys::terminal::print;
use ratatui::crossterm::style::Stylize as _;
use ratatui::crossterm::terminal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use asker::Asking;

use crate::auth::access::Access;
use crate::auth::secret::Secret;
use crate::config::{
    AuthType, BypassUse, CONSOLE, Config, Congestion, ListenAddress, MptcpUse, OptionalAddress,
    Overrides, SETTINGS_VARIABLE, ServerAddress,
};
use crate::pools::Connectings;
use crate::shares::etcd::Etcd;
use crate::socket::stream::connect_unix;
use crate::tls::accept::Accepting;
use crate::tls::kernel;
use crate::tls::weaknesses;
use crate::{process, serve, status};

/// How long a server may take to answer.
const SERVER_WAIT: Duration = Duration::from_secs(5);

/// How grave a finding is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grade {
    /// As it should be.
    Ok,
    /// It was not checked.
    Note,
    /// It works, but perhaps not as meant, or not now.
    Warning,
    /// `serve` would refuse it.
    Error,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How grave it is.
    pub grade: Grade,
    /// To what, and what; with file, line and column where there is one.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grade = match self.grade {
            Grade::Ok => "ok   ",
            Grade::Note => "note ",
            Grade::Warning => "warn ",
            Grade::Error => "error",
        };
        write!(f, "{grade}  {}", self.text)
    }
}

/// Which file is checked.
#[derive(Clone, Copy, Debug)]
pub enum Checked<'a> {
    /// A hawser.toml.
    Own(&'a Path),
    /// A pgbouncer.ini.
    PgBouncer(&'a Path),
    /// None: what `serve --server URL` would run.
    Url(&'a str),
}

/// Checks the file, with the rights of `user` if there is one, and prints what was found. `strict`: a warning
/// is a failure, too.
///
/// # Errors
/// The process cannot become that user.
pub fn run(checked: Checked<'_>, user: Option<&str>, strict: bool) -> Result<ExitCode, String> {
    let listeners = Listeners::read(); // before: root sees the processes of all users
    if let Some(user) = user {
        process::become_user_for_good(user).map_err(|error| format!("--as: {error}"))?;
    }
    let findings = findings(checked, &listeners);
    let columns = io::stdout()
        .is_terminal()
        .then(|| terminal::size().map_or(COLUMNS_DEFAULT, |(columns, _)| usize::from(columns)));
    let mut text = String::new();
    for finding in &findings {
        // Errors of servers and names in databases may hold anything.
        for line in finding.to_string().lines() {
            let line = crate::logging::without_control(line);
            match columns {
                Some(columns) => text += &coloured(finding.grade, &wrapped(&line, columns)),
                None => text += &line,
            }
            text.push('\n');
        }
    }
    let counted = |grade, what: &str| {
        let count = findings.iter().filter(|finding| finding.grade == grade).count();
        (count, format!("{count} {what}{}", if count == 1 { "" } else { "s" }))
    };
    let (errors, in_words) = counted(Grade::Error, "error");
    let (warnings, and) = counted(Grade::Warning, "warning");
    print(&format!("{text}{in_words}, {and}\n"));
    let failed = errors > 0 || strict && warnings > 0;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Of a terminal that does not say.
const COLUMNS_DEFAULT: usize = 80;

/// `line` broken between words; what follows stands below the text after the grade.
fn wrapped(line: &str, columns: usize) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in line.split_inclusive(' ') {
        let width = word.trim_end().chars().count();
        if column > INDENT.len() && column + width > columns {
            text.truncate(text.trim_end().len());
            text = text + "\n" + INDENT;
            column = INDENT.len();
        }
        text += word;
        column += word.chars().count();
    }
    text
}

/// As wide as a grade and the spaces after it.
const INDENT: &str = "       ";

fn coloured(grade: Grade, text: &str) -> String {
    match (grade, text.split_once(' ')) {
        (Grade::Ok, Some((word, rest))) => format!("{} {rest}", word.green()),
        (Grade::Warning, Some((word, rest))) => format!("{} {rest}", word.yellow()),
        (Grade::Error, Some((word, rest))) => format!("{} {rest}", word.red()),
        (Grade::Note, _) | (_, None) => text.to_owned(),
    }
}

/// All findings about the file and this host.
fn findings(checked: Checked<'_>, listeners: &Listeners) -> Vec<Finding> {
    let mut report = Report::default();
    let (path, loaded) = match checked {
        Checked::Own(path) => (path, Config::load(path)),
        Checked::PgBouncer(path) => {
            let settings = std::env::var(SETTINGS_VARIABLE).ok();
            let overrides = Overrides { settings, ..Overrides::default() };
            (path, Config::load_pgbouncer(path, &overrides))
        }
        Checked::Url(url) => (Path::new("--server"), Config::from_server_url(url, None, None)),
    };
    let config = match loaded {
        Ok(config) => config,
        Err(errors) => {
            for error in errors.as_slice() {
                report.fail(error.to_string());
            }
            return report.0;
        }
    };
    report.ok(format!("{}: every setting is valid", path.display()));
    for warning in config.warnings() {
        report.warn(warning.to_string());
    }
    let access = report.files(&config);
    for text in exposed::files(&config) {
        report.warn(text);
    }
    let operators = access.iter().flat_map(|access| operators_unknown(&config, access));
    let operators = operators.map(|text| (Grade::Warning, text));
    for (grade, text) in places::take(&config).into_iter().chain(operators.collect::<Vec<_>>()) {
        report.add(grade, text);
    }
    report.descriptors(&config);
    report.mptcp(&config);
    report.congestion(&config);
    report.bypass(&config);
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(async {
            report.listeners(&config, listeners).await;
            report.servers(&config).await;
            report.etcd(&config).await;
            if let Some(access) = &access {
                report.databases(&config, access).await;
            }
        }),
        Err(error) => report.fail(format!("cannot test connections: {error}")),
    }
    report.0
}

/// How long `check` waits for each member of etcd.
const ETCD_WITHIN: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Report(Vec<Finding>);

impl Report {
    fn add(&mut self, grade: Grade, text: impl Into<String>) {
        self.0.push(Finding { grade, text: text.into() });
    }

    fn ok(&mut self, text: impl Into<String>) {
        self.add(Grade::Ok, text);
    }

    fn warn(&mut self, text: impl Into<String>) {
        self.add(Grade::Warning, text);
    }

    fn fail(&mut self, text: impl Into<String>) {
        self.add(Grade::Error, text);
    }

    fn bypass(&mut self, config: &Config) {
        let wanted = config.start.bypass.enable;
        if wanted == BypassUse::Off {
            return;
        }
        let (grade, text) = match hawser_bypass::selftest::in_a_process_of_its_own() {
            Ok(()) => {
                (Grade::Ok, "local connections can bypass TCP: the self-test has passed".to_owned())
            }
            Err(error) if wanted == BypassUse::On => {
                (Grade::Error, format!("[bypass] enable = \"on\": {error}"))
            }
            Err(error) => (Grade::Warning, format!("local connections stay with TCP: {error}")),
        };
        self.add(grade, text);
    }

    fn mptcp(&mut self, config: &Config) {
        let servers = || config.databases().iter().flat_map(|database| &database.servers);
        let wanted = |wanted: MptcpUse| servers().any(|server| server.mptcp() == wanted);
        let required = wanted(MptcpUse::Require);
        if !(config.start.listen.mptcp || required || wanted(MptcpUse::Prefer)) {
            return;
        }
        match hawser_sys::mptcp::socket::probe() {
            Ok(()) => self.ok("MPTCP: this kernel has it; see `hawser mptcp status`"),
            Err(reason) if required => {
                self.fail(format!("a server requires MPTCP, and {reason}"));
            }
            Err(reason) => self.warn(format!("plain TCP will be used: {reason}")),
        }
    }

    fn congestion(&mut self, config: &Config) {
        let servers = config.databases().iter().flat_map(|database| &database.servers);
        let listed = servers.map(ServerAddress::congestion);
        let mut wanted: Vec<Congestion> = Vec::new();
        for one in std::iter::once(config.reload.network.congestion).chain(listed) {
            if !wanted.contains(&one) {
                wanted.push(one);
            }
        }
        for one in wanted {
            let (grade, text) = match one {
                Congestion::Default => continue,
                Congestion::Auto => match usage::choice() {
                    Ok(choice) => (Grade::Ok, format!("congestion = auto: {choice}")),
                    Err(why) => (Grade::Warning, format!("congestion = auto has no effect: {why}")),
                },
                Congestion::Fixed(name) => match hawser_sys::congestion::probe(name.as_str()) {
                    Ok(()) => (Grade::Ok, format!("this kernel has the congestion control {name}")),
                    Err(why) => {
                        (Grade::Warning, format!("the kernel's default will be used: {why}"))
                    }
                },
            };
            self.add(grade, text);
        }
    }

    /// What the files say, unless one cannot be read.
    fn files(&mut self, config: &Config) -> Option<Access> {
        let access = match Access::load(config) {
            Ok(access) => {
                let auth = &config.reload.auth;
                let named = [&auth.hba_file, &auth.ident_file, &auth.users_file];
                for file in named.into_iter().flatten() {
                    self.ok(format!("{} can be read", file.display()));
                }
                self.ready_connections(config, &access);
                let mut databases = config.databases().iter();
                let looks_up =
                    databases.any(|database| database.inherited.auth.auth_user.is_some());
                if let Some(file) = &auth.users_file
                    && access.names().next().is_none()
                    && !looks_up
                {
                    let text = format!(
                        "{} has no user: no client with a password can log in",
                        file.display()
                    );
                    self.warn(text);
                }
                Some(access)
            }
            Err(errors) => {
                // One of a file may be several, a line each.
                errors.iter().flat_map(|error| error.lines()).for_each(|line| self.fail(line));
                None
            }
        };
        match Accepting::load(&config.reload.client_tls) {
            Ok(Some(_)) => {
                let moves = match kernel::why_not() {
                    None => "clients in TLS can go inside, and to a new process".to_owned(),
                    Some(reason) => {
                        format!("clients in TLS do not go inside, nor to a new process: {reason}")
                    }
                };
                self.ok(format!("TLS for clients: certificate and key match; {moves}"));
            }
            Ok(None) => self.ok("TLS for clients is off"),
            Err(error) => self.fail(format!("TLS for clients: {error}")),
        }
        let files =
            config.databases().iter().map(|database| &database.inherited.tls.server_tls_ca_file);
        let others =
            [&config.reload.client_tls.client_tls_ca_file, &config.reload.auth.auth_ca_file];
        let files = files.chain(others).flatten();
        for text in files.collect::<BTreeSet<_>>().into_iter().flat_map(|path| weaknesses(path)) {
            self.warn(text);
        }
        if let Err(errors) = Connectings::load(config) {
            for error in errors {
                self.fail(error);
            }
        }
        access
    }

    /// `min_pool_size` needs a user that can log in to the server before any client has.
    fn ready_connections(&mut self, config: &Config, access: &Access) {
        for database in
            config.databases().iter().filter(|database| database.inherited.pool.min_pool_size > 0)
        {
            let name = &database.name;
            match &database.forced_user {
                None => self.warn(format!(
                    "database \"{name}\": min_pool_size takes effect for a user when a client of \
                         that user has logged in; to open these connections at the start, give the \
                         database a user and a password"
                )),
                Some(user) if user.password.is_none() => {
                    if let Some(Secret::Scram(_)) = access.secret(&user.name) {
                        self.warn(format!(
                            "database \"{name}\": Hawser has only a SCRAM verifier of user \"{}\", \
                                 and cannot log in to the server before a client of that user \
                                 has logged in",
                            user.name
                        ));
                    }
                }
                Some(_) => {}
            }
        }
    }

    fn descriptors(&mut self, config: &Config) {
        let connections = serve::descriptors(config);
        match process::ensure_descriptors(connections) {
            Ok(limit) => {
                self.ok(format!("{limit} open files are enough for {connections} connections"));
            }
            Err(error) => self.fail(error.to_string()),
        }
    }

    /// Whether etcd answers, where limits are shared.
    async fn etcd(&mut self, config: &Config) {
        let settings = &config.start.etcd;
        match Etcd::load(settings, String::new()) {
            Ok(None) => {}
            Ok(Some(mut etcd)) => match etcd.try_out(ETCD_WITHIN).await {
                Ok(endpoint) => {
                    let prefix = &settings.etcd_prefix;
                    self.ok(format!("etcd at {endpoint}: keys under {prefix} can be read"));
                }
                Err(error) => self.fail(format!(
                    "{error}: without etcd, no server connection under a shared limit is opened"
                )),
            },
            Err(error) => self.fail(error),
        }
    }

    /// What the servers of each database say to a user whose password is known.
    async fn databases(&mut self, config: &Config, access: &Access) {
        // What is wrong with its files is said above.
        let Ok(connectings) = Connectings::load(config) else { return };
        let asking = Asking { config, access, connectings: &connectings };
        let (mut found, mut counted) = (Vec::new(), Vec::new());
        for database in config.databases() {
            if login::look(&asking, database, &mut counted, &mut found).await {
                found.extend(lookup::look(&asking, database).await);
                found.extend(census::look(&asking, database).await);
            }
            found.extend(pooler::look(&asking, database).await);
            found.extend(shared::look(&asking, database).await);
            found.extend(inside::look(&asking, database).await);
        }
        // Several databases may have the same server.
        let mut seen = BTreeSet::new();
        found.retain(|(_, text)| seen.insert(text.clone()));
        for (grade, text) in found {
            self.add(grade, text);
        }
    }

    async fn listeners(&mut self, config: &Config, listeners: &Listeners) {
        let running = status::control_sockets(Some(config))
            .iter()
            .find_map(|socket| status::ask(socket).ok());
        // What the running one has, it has after a reload as well.
        let has = |address: SocketAddr| {
            let running = running.as_ref()?;
            let pages =
                running.http.as_ref().is_some_and(|http| *http == format!("http://{address}/"));
            let has = pages || running.listeners.contains(&address.to_string());
            has.then(|| format!("{address} is the running Hawser's (process {})", running.pid))
        };
        for address in config.listen() {
            let ListenAddress::Tcp(address) = address else { continue };
            match TcpListener::bind(address).await {
                Ok(_) => self.ok(format!("can listen on {address}")),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => match has(*address) {
                    Some(text) => self.ok(text),
                    None => {
                        let text = format!("{address} is in use by {}", listeners.of(*address));
                        self.warn(text);
                    }
                },
                Err(error) => {
                    self.fail(format!("cannot listen on {address}: {error}"));
                }
            }
        }
        let http = config.start.admin.http_address;
        let Some(address) = http.address() else { return };
        if let Some(text) = has(address) {
            self.ok(format!("http_address {text}"));
            return;
        }
        match (TcpListener::bind(address).await, http) {
            (Ok(_), _) => self.ok(format!("can listen on {address} (http_address)")),
            (Err(error), OptionalAddress::Asked(_)) if error.kind() != io::ErrorKind::AddrInUse => {
                self.fail(format!("cannot listen on {address} (http_address): {error}"));
            }
            (Err(error), _) => self.warn(format!(
                "cannot listen on {address} (http_address): metrics, health and the dashboard will be off: \
                 {error} (by {})",
                listeners.of(address)
            )),
        }
    }

    async fn servers(&mut self, config: &Config) {
        let mut servers: Vec<&ServerAddress> = Vec::new();
        for server in config.databases().iter().flat_map(|database| &database.servers) {
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
        let mut asked = Vec::new();
        for server in servers {
            let asking = server.clone();
            let answer = async move { tokio::time::timeout(SERVER_WAIT, probe(&asking)).await };
            asked.push((server, tokio::spawn(answer)));
        }
        for (server, answer) in asked {
            match answer.await {
                Ok(Ok(Ok(offer))) => {
                    self.ok(format!("server {server} answers, {offer}"));
                }
                Ok(Ok(Err(error))) => {
                    self.warn(format!("server {server} cannot be reached: {error}"));
                }
                _ => self.warn(format!(
                    "server {server} did not answer within {} s",
                    SERVER_WAIT.as_secs()
                )),
            }
        }
    }
}

/// Users of the console that cannot log in: they cannot be looked up, and no rule lets in unknown
/// ones.
fn operators_unknown(config: &Config, access: &Access) -> Vec<String> {
    let methods = [AuthType::ScramSha256, AuthType::Md5, AuthType::Plain];
    if !methods.contains(&config.auth_type()) {
        return Vec::new();
    }
    let auth = &config.reload.auth;
    let named = auth.admin_users.iter().map(|user| ("admin_users", user));
    let named = named.chain(auth.stats_users.iter().map(|user| ("stats_users", user)));
    let unknown = named.filter(|(_, user)| {
        *user != CONSOLE && matches!(access.secret(user), None | Some(Secret::None))
    });
    unknown
        .map(|(setting, user)| {
            format!(
                "{setting}: user \"{user}\" cannot log in: users_file and [[user]] have no password for it, \
                 and auth_query does not look up users of the console"
            )
        })
        .collect()
}

/// Asks a server whether it does TLS, which only PostgreSQL answers by one letter.
async fn probe(server: &ServerAddress) -> io::Result<&'static str> {
    match server {
        ServerAddress::Tcp { host, port, .. } => {
            ask(TcpStream::connect((host.as_str(), *port)).await?).await
        }
        ServerAddress::Unix(path) => ask(connect_unix(path).await?).await,
        ServerAddress::Link { .. } => Err(io::Error::other("a link is up only while Hawser runs")),
    }
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<&'static str> {
    let mut request = Vec::new();
    write_ssl_request(&mut request);
    stream.write_all(&request).await?;
    match stream.read_u8().await? {
        b'S' => Ok("with TLS"),
        b'N' => Ok("without TLS"),
        other => Err(io::Error::other(format!("not a PostgreSQL server: it answered {other:#x}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Vec<String> {
        let name = format!("hawser-check-{}.toml", process::random_u64());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        let lines = findings(Checked::Own(&path), &Listeners::read())
            .iter()
            .map(|finding| finding.to_string().replace(&path.display().to_string(), "FILE"))
            .collect();
        std::fs::remove_file(&path).unwrap();
        lines
    }

    #[test]
    fn lines_are_broken_between_words() {
        let line = "warn   one two three four";
        assert_eq!(wrapped(line, 80), line);
        assert_eq!(wrapped(line, 15), "warn   one two\n       three\n       four");
        assert_eq!(wrapped("ok     longer_than_that", 9), "ok     longer_than_that");
        assert_eq!(coloured(Grade::Ok, "ok     a"), format!("{}     a", "ok".green()));
    }

    #[test]
    fn an_error_has_its_line_and_column_and_says_what_is_allowed() {
        let lines = check("[listen]\nbacklog = 5\n[pool]\npool_mode = \"frob\"\n");
        assert!(
            lines.iter().any(|line| line.starts_with("error  FILE:4:13: pool_mode")
                && line.contains("transaction")),
            "{lines:?}"
        );
    }

    #[test]
    fn each_error_of_a_rules_file_is_a_finding() {
        let name = format!("hawser-check-{}.hba", process::random_u64());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "local all all gss\nhostx all all all trust\n").unwrap();
        let lines = check(&format!(
            "[[database]]\nname = \"a\"\nservers = \"/nowhere\"\n[[user]]\nname = \"u\"\n\
             password = \"p\"\n[auth]\nhba_file = \"{}\"\n",
            path.display()
        ));
        std::fs::remove_file(&path).unwrap();
        for place in [":1:15: authentication", ":2:1: invalid"] {
            let found = lines.iter().any(|line| line.starts_with("error") && line.contains(place));
            assert!(found, "{place}: {lines:?}");
        }
    }

    #[test]
    fn a_server_that_is_down_is_a_warning_and_a_missing_file_an_error() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let lines = check(&format!(
            "[[database]]\nname = \"a\"\nservers = \"{free}\"\n\
             [auth]\nusers_file = \"/no/such/list\"\n[pool]\nmax_client_conn = 10\n"
        ));
        let with = |start: &str, part: &str| {
            lines.iter().any(|line| line.starts_with(start) && line.contains(part))
        };
        assert!(with("warn", "cannot be reached"), "{lines:?}");
        assert!(with("error", "/no/such/list"), "{lines:?}");
        assert!(with("ok", "open files are enough"), "{lines:?}");
    }

    #[test]
    fn users_of_the_console_that_cannot_log_in_are_named() {
        let lines = check(
            "[[database]]\nname = \"a\"\nservers = \"/nowhere\"\n[[user]]\nname = \"u\"\n\
             password = \"p\"\n[auth]\nadmin_users = [\"u\", \"ghost\"]\n\
             stats_users = \"pgbouncer\"\n",
        );
        let named: Vec<_> = lines.iter().filter(|line| line.contains("cannot log in")).collect();
        assert!(named.len() == 1 && named[0].contains("admin_users: user \"ghost\""), "{lines:?}");
    }

    #[test]
    fn a_pgbouncer_ini_is_checked_with_what_is_not_carried_over() {
        let name = format!("hawser-check-{}.ini", process::random_u64());
        let path = std::env::temp_dir().join(name);
        let ini = "[databases]\na = host=/nowhere user=u password=p\n[pgbouncer]\nauth_user = u\nfoo = 1\n";
        std::fs::write(&path, ini).unwrap();
        let found = findings(Checked::PgBouncer(&path), &Listeners::read());
        let has = |grade, text: &str| {
            found.iter().any(|finding| finding.grade == grade && finding.text.contains(text))
        };
        assert!(has(Grade::Warning, "PgBouncer has no setting `foo`"), "{found:?}");
        std::fs::write(&path, "[pgbouncer]\npool_mode = foo\n").unwrap();
        let found = findings(Checked::PgBouncer(&path), &Listeners::read());
        std::fs::remove_file(&path).unwrap();
        assert!(found[0].grade == Grade::Error && found[0].text.contains("line 2"), "{found:?}");
    }

    #[test]
    fn something_else_than_postgresql_is_seen() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for (answer, expected) in
                [(b"S", Some("with TLS")), (b"N", Some("without TLS")), (b"H", None)]
            {
                let (client, mut server) = tokio::io::duplex(64);
                server.write_all(answer).await.unwrap();
                assert_eq!(ask(client).await.ok(), expected);
                let mut request = [0; 8];
                server.read_exact(&mut request).await.unwrap();
                assert_eq!(request, [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]);
            }
        });
    }
}
