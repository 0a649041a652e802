//! `pg_hba.conf`: which client may log in to which database as which user, and how it proves who it is.
//!
//! # Model
//! Records are tried in the order of the file; the first whose connection type, address, database and user all fit
//! decides, whatever comes of its method. Without such a record the login is refused (28000).
//! The reference is PostgreSQL 18's `src/backend/libpq/hba.c`.
//!
//! # Invariants
//! Whatever this program cannot do exactly as PostgreSQL does is refused when the file is loaded, never skipped:
//! a skipped record would let a later, weaker one decide.
//!
//! # Limits
//! Nothing is encrypted by GSSAPI, so that `hostgssenc` records load and never match.

mod parse;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

use super::ldap::LdapRule;
use super::oauth::OauthRule;
use super::pattern::NamePattern;
use super::records::{self, Disk, FileError, FileErrors, Files, Location};

/// `invalid_authorization_specification`
const INVALID_AUTHORIZATION: &str = "28000";
/// `invalid_password`
const INVALID_PASSWORD: &str = "28P01";

/// The records of a `pg_hba.conf`, at least one.
#[derive(Debug, Clone)]
pub struct HbaRules {
    rules: Vec<Rule>,
}

/// One record.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Where the record stands.
    pub location: Location,
    /// The connections that it is about.
    pub connection: ConnectionType,
    /// How the client proves who it is.
    pub method: Method,
    /// The `name=value` pairs at the end.
    pub options: Options,
    databases: Vec<DatabasePattern>,
    users: Vec<UserPattern>,
    address: Address,
}

/// The first column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionType {
    /// A unix socket.
    Local,
    /// TCP.
    Host,
    /// TCP with TLS.
    HostSsl,
    /// TCP without TLS.
    HostNoSsl,
    /// TCP with GSSAPI encryption, which never happens here.
    HostGssEnc,
    /// TCP without GSSAPI encryption, which is all of it.
    HostNoGssEnc,
}

/// The authentication methods that exist here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum Method {
    /// Nothing is asked.
    #[display("trust")]
    Trust,
    /// No login is allowed.
    #[display("reject")]
    Reject,
    /// The password in clear text.
    #[display("password")]
    Password,
    /// A hash of the password; SCRAM where the stored secret is made for it.
    #[display("md5")]
    Md5,
    /// SCRAM-SHA-256 and SCRAM-SHA-256-PLUS.
    #[display("scram-sha-256")]
    ScramSha256,
    /// The certificate of the TLS client.
    #[display("cert")]
    Cert,
    /// The user of the process at the other end of the unix socket. Local `ident` is this too, as in PostgreSQL.
    #[display("peer")]
    Peer,
    /// The password in clear text, which an LDAP server judges.
    #[display("ldap")]
    Ldap,
    /// A token of an issuer.
    #[display("oauth")]
    Oauth,
    /// The password in clear text, which the system's PAM judges.
    #[display("pam")]
    Pam,
}

/// What follows the method.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// The map of `pg_ident.conf` to use with `cert`, `peer` and `oauth`.
    pub map: Option<String>,
    /// What is asked of the client's certificate, in addition to the method. `VerifyFull` for `cert`.
    pub client_cert: ClientCert,
    /// Which name of the certificate is the user's.
    pub client_name: ClientName,
    /// Which server judges the password: with method `ldap`, always.
    pub ldap: Option<LdapRule>,
    /// Which tokens will do: with method `oauth`, always.
    pub oauth: Option<OauthRule>,
    /// What PAM is asked: with method `pam`, always.
    pub pam: Option<PamRule>,
}

/// What PAM is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PamRule {
    /// `pamservice`
    pub service: String,
    /// `pam_use_hostname`: whether modules are given the client's name in place of its address.
    pub use_host_name: bool,
}

impl Default for PamRule {
    fn default() -> Self {
        // PostgreSQL's: one file in /etc/pam.d does for both.
        Self { service: "postgresql".to_owned(), use_host_name: false }
    }
}

/// `clientcert=`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCert {
    /// No certificate is asked for.
    #[default]
    NotRequired,
    /// A certificate of a trusted authority.
    VerifyCa,
    /// And its name must be, or map to, the user's.
    VerifyFull,
}

/// `clientname=`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientName {
    /// The common name of the subject.
    #[default]
    Cn,
    /// The whole distinguished name of the subject, as RFC 2253 writes it.
    Dn,
}

/// Who wants to log in.
#[derive(Debug, Clone, Copy)]
pub struct ConnInfo<'a> {
    /// How the client is connected.
    pub kind: ConnKind<'a>,
    /// The database asked for.
    pub database: &'a str,
    /// The user asked for.
    pub user: &'a str,
    /// Whether the session is to replicate.
    pub replication: Replication,
    /// What is known of the user's roles.
    pub roles: UserRoles<'a>,
}

/// How a client is connected.
#[derive(Debug, Clone, Copy)]
pub enum ConnKind<'a> {
    /// By a unix socket.
    Local,
    /// By TCP.
    Tcp {
        /// The client's address.
        addr: IpAddr,
        /// Whether TLS is in use.
        tls: bool,
        /// What is known of the client's host name.
        name: PeerName<'a>,
    },
}

/// What name service says of a client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerName<'a> {
    /// It was not asked.
    NotLookedUp,
    /// The address has no name, or the name's addresses do not include it.
    Unknown,
    /// The address has this name, and the name this address: both directions have been looked up.
    Verified(&'a str),
}

/// What the server says of a user's roles.
#[derive(Debug, Clone, Copy, Default)]
pub enum UserRoles<'a> {
    /// It was not asked.
    #[default]
    NotLookedUp,
    /// The user is a member of these, itself among them if there is such a role.
    Known(&'a HashSet<String>),
}

impl UserRoles<'_> {
    /// Whether the user is a member of `role`; `None` where it takes the server to say.
    fn include(self, role: &str) -> Option<bool> {
        match self {
            Self::NotLookedUp => None,
            Self::Known(roles) => Some(roles.contains(role)),
        }
    }
}

/// The `replication` start-up parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replication {
    /// An ordinary session.
    #[default]
    Off,
    /// `replication=true`: only the keyword `replication` matches.
    Physical,
    /// `replication=database`: matched as an ordinary session.
    Logical,
}

/// An address of this machine, for `samehost` and `samenet`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    /// The address.
    pub addr: IpAddr,
    /// The mask of its network, of the same family.
    pub mask: IpAddr,
}

/// The outcome of [`HbaRules::matches`].
#[derive(Debug, Clone, Copy)]
pub enum Match<'r> {
    /// This record decides.
    Rule(&'r Rule),
    /// No record fits: refuse the login with [`Refused::no_entry`].
    NoEntry,
    /// A record with a host name may fit: look up the client's name and ask again.
    /// Never returned when [`PeerName`] is anything but `NotLookedUp`.
    NeedsPeerName,
    /// A record for the members of a role may fit: look up the user's roles and ask again.
    /// Never returned when [`UserRoles`] are known.
    NeedsRoles,
}

impl HbaRules {
    /// Reads the file `path` and what it includes. All errors of the file are returned.
    pub fn load(path: &Path) -> Result<Self, FileErrors> {
        Self::load_from(&Disk, path)
    }

    /// The same from `files`.
    pub fn load_from(files: &dyn Files, path: &Path) -> Result<Self, FileErrors> {
        let mut errors = Vec::new();
        let mut rules = Vec::new();
        for record in records::read(files, path, &mut errors) {
            match parse::rule(&record) {
                Ok(rule) => rules.push(rule),
                Err(error) => errors.push(error),
            }
        }
        if rules.is_empty() && errors.is_empty() {
            let location = Location { file: path.into(), line: 1, column: 1 };
            let message = "the file contains no entries: no client could log in".to_owned();
            errors.push(FileError { location, message });
        }
        FileErrors::unless_any(errors, Self { rules })
    }

    /// The records in order.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// Whether any record needs the machine's addresses; without one, `matches` takes an empty list.
    pub fn needs_interfaces(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.address, Address::SameHost | Address::SameNet))
    }

    /// Whether any record has another server judge the proof.
    pub fn asks_others(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.method, Method::Ldap | Method::Oauth))
    }

    /// The first record that asks for the members of a role, if there is one.
    pub fn asks_for_roles(&self) -> Option<&Location> {
        self.rules.iter().find(|rule| rule.asks_for_roles()).map(|rule| &rule.location)
    }

    /// Records that load but cannot do what they seem to, as lines of text for the log.
    pub fn notices(&self) -> impl Iterator<Item = String> {
        self.rules.iter().filter(|rule| rule.connection == ConnectionType::HostGssEnc).map(|rule| {
            format!(
                "{}: hostgssenc record cannot match because GSSAPI is not supported",
                rule.location
            )
        })
    }

    /// The record that decides about `conn`. `interfaces` are the machine's addresses at this time.
    pub fn matches(&self, conn: &ConnInfo<'_>, interfaces: &[Interface]) -> Match<'_> {
        for rule in &self.rules {
            // The names first: a host name is then only looked up for a record that could decide. Roles
            // last: that takes a question to the server.
            let names = rule.fits_names(conn);
            if names == Some(false) {
                continue;
            }
            match (rule.fits_connection(conn, interfaces), names) {
                (Some(true), Some(_)) => return Match::Rule(rule),
                (Some(true), None) => return Match::NeedsRoles,
                (Some(false), _) => {}
                (None, _) => return Match::NeedsPeerName,
            }
        }
        Match::NoEntry
    }
}

impl Rule {
    /// `None` where it takes the user's roles to say.
    fn fits_names(&self, conn: &ConnInfo<'_>) -> Option<bool> {
        let databases = any(self.databases.iter().map(|database| database.matches(conn)));
        let users = any(self.users.iter().map(|user| user.matches(conn)));
        match (databases, users) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            (None, _) | (_, None) => None,
        }
    }

    fn asks_for_roles(&self) -> bool {
        self.databases.iter().any(|database| matches!(database, DatabasePattern::SameRole))
            || self.users.iter().any(|user| matches!(user, UserPattern::Members(_)))
    }

    /// `None` where it takes the client's host name to say.
    fn fits_connection(&self, conn: &ConnInfo<'_>, interfaces: &[Interface]) -> Option<bool> {
        let (addr, tls, name) = match conn.kind {
            ConnKind::Local => return Some(self.connection == ConnectionType::Local),
            ConnKind::Tcp { addr, tls, name } => (addr, tls, name),
        };
        let type_fits = match self.connection {
            ConnectionType::Local | ConnectionType::HostGssEnc => false,
            ConnectionType::Host | ConnectionType::HostNoGssEnc => true,
            ConnectionType::HostSsl => tls,
            ConnectionType::HostNoSsl => !tls,
        };
        if type_fits { self.address.fits(addr, name, interfaces) } else { Some(false) }
    }

    /// PostgreSQL's refusal of a client that this record let try and that failed, or that it rejects.
    pub fn refusal(&self, conn: &ConnInfo<'_>) -> Refused {
        let user = conn.user;
        let (sqlstate, message) = match self.method {
            Method::Reject => {
                let message = format!("pg_hba.conf rejects {}", describe(conn, "for"));
                (INVALID_AUTHORIZATION, message)
            }
            // It fails for one who is not known (`InitializeSessionUserId`, miscinit.c).
            Method::Trust => (INVALID_AUTHORIZATION, format!("role \"{user}\" does not exist")),
            Method::Password | Method::Md5 | Method::ScramSha256 => {
                (INVALID_PASSWORD, format!("password authentication failed for user \"{user}\""))
            }
            Method::Cert => {
                let message = format!("certificate authentication failed for user \"{user}\"");
                (INVALID_AUTHORIZATION, message)
            }
            Method::Peer => {
                let message = format!("Peer authentication failed for user \"{user}\"");
                (INVALID_AUTHORIZATION, message)
            }
            Method::Ldap => {
                let message = format!("LDAP authentication failed for user \"{user}\"");
                (INVALID_AUTHORIZATION, message)
            }
            Method::Pam => {
                let message = format!("PAM authentication failed for user \"{user}\"");
                (INVALID_AUTHORIZATION, message)
            }
            Method::Oauth => {
                let message = format!("OAuth bearer authentication failed for user \"{user}\"");
                (INVALID_AUTHORIZATION, message)
            }
        };
        Refused { sqlstate, message }
    }
}

/// The error for a refused client: an ErrorResponse of severity FATAL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Five characters.
    pub sqlstate: &'static str,
    /// PostgreSQL's own words.
    pub message: String,
}

impl Refused {
    /// No record fits.
    pub fn no_entry(conn: &ConnInfo<'_>) -> Self {
        let who = describe(conn, "from");
        // An ordinary connection is not named as one in this message.
        let who = who.strip_prefix("connection from ").unwrap_or(&who);
        Self { sqlstate: INVALID_AUTHORIZATION, message: format!("no pg_hba.conf entry for {who}") }
    }

    /// A record asks for a certificate and the client gave none that is valid.
    pub fn needs_certificate() -> Self {
        Self {
            sqlstate: INVALID_AUTHORIZATION,
            message: "connection requires a valid client certificate".to_owned(),
        }
    }
}

/// `connection for host "192.0.2.1", user "u", database "d", no encryption`, in PostgreSQL's words.
fn describe(conn: &ConnInfo<'_>, preposition: &str) -> String {
    let (host, encryption) = match conn.kind {
        ConnKind::Local => ("[local]".to_owned(), "no encryption"),
        ConnKind::Tcp { addr, tls: true, .. } => {
            (addr.to_canonical().to_string(), "SSL encryption")
        }
        ConnKind::Tcp { addr, tls: false, .. } => {
            (addr.to_canonical().to_string(), "no encryption")
        }
    };
    let (kind, database) = match conn.replication {
        Replication::Physical => ("replication connection", String::new()),
        Replication::Off | Replication::Logical => {
            ("connection", format!("database \"{}\", ", conn.database))
        }
    };
    let user = conn.user;
    format!("{kind} {preposition} host \"{host}\", user \"{user}\", {database}{encryption}")
}

/// Whether one fits; `None` where those that are not known decide.
fn any(all: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut unknown = false;
    for one in all {
        match one {
            Some(true) => return Some(true),
            Some(false) => {}
            None => unknown = true,
        }
    }
    (!unknown).then_some(false)
}

#[derive(Debug, Clone)]
enum DatabasePattern {
    SameUser,
    /// The user is a member of the role of that name.
    SameRole,
    Replication,
    Name(NamePattern),
}

impl DatabasePattern {
    fn matches(&self, conn: &ConnInfo<'_>) -> Option<bool> {
        match (self, conn.replication) {
            (Self::Replication, replication) => Some(replication == Replication::Physical),
            (_, Replication::Physical) => Some(false),
            (Self::SameUser, _) => Some(conn.database == conn.user),
            (Self::SameRole, _) => conn.roles.include(conn.database),
            (Self::Name(name), _) => Some(name.matches(conn.database)),
        }
    }
}

#[derive(Debug, Clone)]
enum UserPattern {
    Name(NamePattern),
    /// `+role`
    Members(String),
}

impl UserPattern {
    fn matches(&self, conn: &ConnInfo<'_>) -> Option<bool> {
        match self {
            Self::Name(name) => Some(name.matches(conn.user)),
            Self::Members(role) => conn.roles.include(role),
        }
    }
}

#[derive(Debug, Clone)]
enum Address {
    All,
    Network {
        addr: IpAddr,
        mask: IpAddr,
    },
    SameHost,
    SameNet,
    /// A name, or with a leading dot the end of one.
    HostName(String),
}

impl Address {
    fn fits(&self, client: IpAddr, name: PeerName<'_>, interfaces: &[Interface]) -> Option<bool> {
        // A socket for both families shows IPv4 clients as mapped addresses; rules are written for the real ones.
        let client = client.to_canonical();
        Some(match self {
            Self::All => true,
            Self::Network { addr, mask } => in_network(client, *addr, *mask),
            Self::SameHost => interfaces.iter().any(|own| own.addr.to_canonical() == client),
            Self::SameNet => interfaces.iter().any(|own| in_network(client, own.addr, own.mask)),
            Self::HostName(pattern) => match name {
                PeerName::NotLookedUp => return None,
                PeerName::Unknown => false,
                PeerName::Verified(name) => host_name_matches(pattern, name),
            },
        })
    }
}

/// Masks need not be contiguous, and bits of `network` outside of the mask count for nothing, as in PostgreSQL.
fn in_network(client: IpAddr, network: IpAddr, mask: IpAddr) -> bool {
    match (client, network, mask) {
        (IpAddr::V4(client), IpAddr::V4(network), IpAddr::V4(mask)) => {
            (client.to_bits() ^ network.to_bits()) & mask.to_bits() == 0
        }
        (IpAddr::V6(client), IpAddr::V6(network), IpAddr::V6(mask)) => {
            (client.to_bits() ^ network.to_bits()) & mask.to_bits() == 0
        }
        _ => false,
    }
}

fn host_name_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    if pattern.first() == Some(&b'.') {
        name.len() >= pattern.len()
            && name[name.len() - pattern.len()..].eq_ignore_ascii_case(pattern)
    } else {
        name.eq_ignore_ascii_case(pattern)
    }
}
