//! `postgres://user:password@host:port/dbname?sslmode=...`, as libpq reads it.
//!
//! # Model
//! Scheme, userinfo, hosts (several with commas), path, query; each part is
//! percent-decoded; a host that begins with `/` once decoded is a directory of sockets;
//! the query may give `host`, `port`, `user`, `password`, `dbname` as well.
//!
//! # Invariants
//! No message repeats the URL or a password.
//!
//! # Limits
//! Parameters that concern a client and not a pooler are collected in `ignored`, for
//! the caller to say.

use std::path::PathBuf;
use std::time::Duration;

use super::address::{SERVER_PORT_DEFAULT, ServerAddress};
use super::choice::{MptcpUse, TargetSessionAttrs, TlsMode, TlsNegotiation};
use super::congestion::Congestion;
use super::value::{Password, SettingType};

/// Where libpq of Debian looks for the server if no host is named.
const SOCKET_DIRECTORY_DEFAULT: &str = "/var/run/postgresql";
/// libpq takes anything; more servers than this are a mistake.
const SERVERS_MAX: usize = 64;

/// A server as `serve --server` takes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerUrl {
    /// The user to log in as.
    pub user: Option<String>,
    /// With which password.
    pub password: Option<Password>,
    /// At least one.
    pub servers: Vec<ServerAddress>,
    /// The database of the URL, if it names one.
    pub dbname: Option<String>,
    /// `sslmode`.
    pub tls_mode: Option<TlsMode>,
    /// `sslrootcert`; the word `system` is refused.
    pub tls_ca_file: Option<PathBuf>,
    /// `sslcert`.
    pub tls_cert_file: Option<PathBuf>,
    /// `sslkey`.
    pub tls_key_file: Option<PathBuf>,
    /// `sslnegotiation`.
    pub tls_negotiation: Option<TlsNegotiation>,
    /// `target_session_attrs`.
    pub target_session_attrs: Option<TargetSessionAttrs>,
    /// `connect_timeout`, from seconds; 0 (for ever, in libpq) is left out.
    pub connect_timeout: Option<Duration>,
    /// Names of parameters that mean nothing to a pooler.
    pub ignored: Vec<String>,
}

/// Why a URL was refused. Never holds its password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    /// It begins with neither `postgres://` nor `postgresql://`.
    #[error("a server URL begins with postgres://, as in postgres://user:password@host:5432/db")]
    Scheme,
    /// A `%` without two hexadecimal digits, or bytes that are not UTF-8.
    #[error("the {part} of the server URL is not percent-encoded UTF-8: a % itself is %25")]
    Escape {
        /// The part of the URL.
        part: &'static str,
    },
    /// A host or port that is none.
    #[error("server URL: {0}")]
    Server(String),
    /// A parameter whose value is not allowed.
    #[error("{name} of the server URL: allowed is {allowed}")]
    Parameter {
        /// Its name.
        name: &'static str,
        /// What is allowed.
        allowed: String,
    },
    /// More than 64 hosts, or not as many ports as hosts.
    #[error(
        "server URL: there must be one port, or one for each host, and at most {SERVERS_MAX} hosts"
    )]
    Hosts,
}

impl ServerUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// See [`ServerUrlError`].
    pub fn parse(url: &str) -> Result<Self, ServerUrlError> {
        let rest = url
            .strip_prefix("postgres://")
            .or_else(|| url.strip_prefix("postgresql://"))
            .ok_or(ServerUrlError::Scheme)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // libpq takes the first @; a password with an unescaped @ is what people write, and a host
        // never has one.
        let (userinfo, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match userinfo.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (userinfo, None),
        };
        let mut found = Parts { hosts: split_hosts(hosts)?, ..Parts::default() };
        found.user = nonempty(decode(user, "user")?);
        found.password = password.map(|p| decode(p, "password")).transpose()?.and_then(nonempty);
        found.dbname = nonempty(decode(path, "database")?);
        let mut url = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name, "query")?;
            let value = decode(value, "query")?;
            url.parameter(&mut found, &name, value)?;
        }
        url.servers = found.servers()?;
        url.user = found.user;
        url.password = found.password.map(Password::new);
        url.dbname = found.dbname;
        Ok(url)
    }

    fn parameter(
        &mut self,
        found: &mut Parts,
        name: &str,
        value: String,
    ) -> Result<(), ServerUrlError> {
        let refuse =
            |name, allowed: &str| ServerUrlError::Parameter { name, allowed: allowed.to_owned() };
        match name {
            "user" => found.user = nonempty(value),
            "password" => found.password = nonempty(value),
            "dbname" => found.dbname = nonempty(value),
            "host" | "hostaddr" => {
                found.hosts = value.split(',').map(|host| (host.to_owned(), None)).collect();
            }
            "mptcp" => {
                let wanted = MptcpUse::from_word(&value);
                found.mptcp = Some(wanted.ok_or_else(|| refuse("mptcp", MptcpUse::KIND))?);
            }
            "congestion" => {
                let wanted = Congestion::from_word(&value);
                found.congestion = wanted.ok_or_else(|| refuse("congestion", Congestion::KIND))?;
            }
            "port" => found.ports = value.split(',').map(str::to_owned).collect(),
            "sslmode" => {
                let mode = TlsMode::from_word(&value);
                self.tls_mode = Some(mode.ok_or_else(|| refuse("sslmode", TlsMode::KIND))?);
            }
            "sslnegotiation" => {
                let negotiation = TlsNegotiation::from_word(&value);
                let refused = || refuse("sslnegotiation", TlsNegotiation::KIND);
                self.tls_negotiation = Some(negotiation.ok_or_else(refused)?);
            }
            "target_session_attrs" => {
                let attrs = TargetSessionAttrs::from_word(&value);
                let refused = || refuse("target_session_attrs", TargetSessionAttrs::KIND);
                self.target_session_attrs = Some(attrs.ok_or_else(refused)?);
            }
            "connect_timeout" => match value.parse::<u32>() {
                Ok(0) => {}
                Ok(seconds) => self.connect_timeout = Some(Duration::from_secs(seconds.into())),
                Err(_) => return Err(refuse("connect_timeout", "a whole number of seconds")),
            },
            "sslrootcert" if value == "system" => return Err(refuse("sslrootcert", "a file")),
            "sslrootcert" => self.tls_ca_file = nonempty(value).map(PathBuf::from),
            "sslcert" => self.tls_cert_file = nonempty(value).map(PathBuf::from),
            "sslkey" => self.tls_key_file = nonempty(value).map(PathBuf::from),
            _ => self.ignored.push(name.to_owned()),
        }
        Ok(())
    }
}

#[derive(Default)]
struct Parts {
    user: Option<String>,
    password: Option<String>,
    dbname: Option<String>,
    /// Each with the port that stands beside it in the authority.
    hosts: Vec<(String, Option<String>)>,
    /// Those of `port=` in the query.
    ports: Vec<String>,
    /// Ours: whether its TCP servers are reached by MPTCP.
    mptcp: Option<MptcpUse>,
    /// Ours: what its TCP connections are sent with.
    congestion: Congestion,
}

impl Parts {
    fn servers(&self) -> Result<Vec<ServerAddress>, ServerUrlError> {
        let (hosts, ports) = (&self.hosts, &self.ports);
        if hosts.len() > SERVERS_MAX || (ports.len() > 1 && ports.len() != hosts.len()) {
            return Err(ServerUrlError::Hosts);
        }
        let mut servers = Vec::with_capacity(hosts.len());
        for (index, (host, own_port)) in hosts.iter().enumerate() {
            let port = own_port.as_ref().or_else(|| ports.get(index)).or_else(|| ports.first());
            let port = match port.map(String::as_str) {
                None | Some("") => SERVER_PORT_DEFAULT,
                Some(port) => port
                    .parse()
                    .ok()
                    .filter(|port| *port > 0)
                    .ok_or_else(|| ServerUrlError::Server("a port is 1 to 65535".to_owned()))?,
            };
            let host = if host.is_empty() { SOCKET_DIRECTORY_DEFAULT } else { host };
            let mut server = ServerAddress::new(host, port).map_err(|_| {
                // The text may be a password that was not percent-encoded.
                ServerUrlError::Server(
                    "the host is neither a name, an address nor a socket directory; a /, ?, # or @ \
                     in a password must be percent-encoded"
                        .to_owned(),
                )
            })?;
            if let ServerAddress::Tcp { mptcp, congestion, .. } = &mut server {
                *mptcp = self.mptcp.unwrap_or(*mptcp);
                *congestion = self.congestion;
            }
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
        Ok(servers)
    }
}

fn nonempty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// The hosts of an authority, each with its port; one empty host if there is none.
fn split_hosts(authority: &str) -> Result<Vec<(String, Option<String>)>, ServerUrlError> {
    authority
        .split(',')
        .map(|host| {
            let malformed = || ServerUrlError::Server("after ] only :port may follow".to_owned());
            let (host, port) = if let Some(rest) = host.strip_prefix('[') {
                let (host, after) = rest.split_once(']').ok_or_else(malformed)?;
                match after.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if after.is_empty() => (host, None),
                    None => return Err(malformed()),
                }
            } else {
                match host.rsplit_once(':') {
                    Some((host, port)) => (host, Some(port)),
                    None => (host, None),
                }
            };
            let port = port.map(|port| decode(port, "port")).transpose()?;
            Ok((decode(host, "host")?, port))
        })
        .collect()
}

fn decode(text: &str, part: &'static str) -> Result<String, ServerUrlError> {
    // No name, password or path can hold a NUL: the protocol ends strings with it.
    let text = percent_decoded(text).filter(|text| !text.contains('\0'));
    text.ok_or(ServerUrlError::Escape { part })
}

/// A part of a URL without its escapes; `None`: one is broken, or it is not UTF-8.
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(url: &str) -> Vec<String> {
        ServerUrl::parse(url).unwrap().servers.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_url_is_read_as_libpq_reads_it() {
        let url = ServerUrl::parse(
            "postgres://al%40ice:p%3Aw%2F@db.example:5433/my%20db?sslmode=verify-full\
             &sslrootcert=/ca.crt&sslnegotiation=direct&target_session_attrs=primary&connect_timeout=7",
        )
        .unwrap();
        assert_eq!(url.user.as_deref(), Some("al@ice"));
        assert_eq!(url.password.unwrap().expose(), "p:w/");
        assert_eq!(url.dbname.as_deref(), Some("my db"));
        assert_eq!(url.servers, [ServerAddress::parse("db.example:5433").unwrap()]);
        assert_eq!(url.tls_mode, Some(TlsMode::VerifyFull));
        assert_eq!(url.tls_ca_file, Some(PathBuf::from("/ca.crt")));
        assert_eq!(url.tls_negotiation, Some(TlsNegotiation::Direct));
        assert_eq!(url.target_session_attrs, Some(TargetSessionAttrs::Primary));
        assert_eq!(url.connect_timeout, Some(Duration::from_secs(7)));
    }

    #[test]
    fn hosts_may_be_sockets_v6_several_or_absent() {
        assert_eq!(servers("postgres://"), ["/var/run/postgresql/.s.PGSQL.5432"]);
        assert_eq!(servers("postgres:///db"), ["/var/run/postgresql/.s.PGSQL.5432"]);
        assert_eq!(servers("postgresql://%2Frun%2Fpg:7/db"), ["/run/pg/.s.PGSQL.7"]);
        assert_eq!(servers("postgres:///db?host=/run/pg&port=8"), ["/run/pg/.s.PGSQL.8"]);
        assert_eq!(servers("postgres://u@[::1]:9/db"), ["[::1]:9"]);
        assert_eq!(servers("postgres://u@a:1,b/db"), ["a:1", "b:5432"]);
        assert_eq!(servers("postgres:///db?host=a,b&port=1,2"), ["a:1", "b:2"]);
        assert_eq!(servers("postgres:///db?host=a,b&port=3"), ["a:3", "b:3"]);
        let both = servers("postgres:///db?host=a,/run/pg&mptcp=prefer");
        assert_eq!(both, ["a:5432?mptcp=prefer", "/run/pg/.s.PGSQL.5432"]);
        assert!(ServerUrl::parse("postgres://u@a/db?mptcp=yes").is_err());
    }

    #[test]
    fn a_password_with_an_at_sign_still_finds_its_host() {
        let url = ServerUrl::parse("postgres://u:p@ss@h/db").unwrap();
        assert_eq!(url.password.unwrap().expose(), "p@ss");
        assert_eq!(url.servers[0].to_string(), "h:5432");
    }

    #[test]
    fn parameters_of_clients_are_named_as_ignored() {
        let url = ServerUrl::parse("postgres://h/db?application_name=x&schema=public").unwrap();
        assert_eq!(url.ignored, ["application_name", "schema"]);
    }

    #[test]
    fn a_url_that_is_refused_is_never_repeated() {
        for url in [
            "mysql://u:hunter2@h/db",
            "postgres://u:hunter2%@h/db",
            "postgres://u:hunter2%zz@h/db",
            "postgres://u:hunter2%ff@h/db",
            "postgres://u:hunter2%00@h/db",
            "postgres://u:hunter2/x@h/db",
            "postgres://u:hunter2#@h:port/db",
            "postgres://u:hunter2@[::1/db",
            "postgres://u:hunter2@h:99999/db",
            "postgres://u:hunter2@h/db?sslmode=hunter2",
            "postgres://u:hunter2@h/db?port=1,2",
        ] {
            let error = ServerUrl::parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}");
        }
        let url = ServerUrl::parse("postgres://u:hunter2@h/db").unwrap();
        assert!(!format!("{url:?}").contains("hunter2"));
    }
}
