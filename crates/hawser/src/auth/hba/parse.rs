//! Makes a rule of a record of `pg_hba.conf`, or says which token cannot be one and what is allowed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    Address, ClientCert, ClientName, ConnectionType, DatabasePattern, Method, Options, PamRule,
    Rule, UserPattern,
};
use crate::auth::ldap::LdapOptions;
use crate::auth::oauth::OauthOptions;
use crate::auth::pattern::NamePattern;
use crate::auth::records::{Field, FileError, Record, Token};

const CONNECTION_TYPES: &str = "local, host, hostssl, hostnossl, hostgssenc or hostnogssenc";
const METHODS: &str = "trust, reject, password, md5, scram-sha-256, cert, peer, ldap, pam or oauth";
const OPTIONS: &str =
    "map, clientcert or clientname, one that begins with ldap or pam, or one of oauth";

/// The columns of a record, from left to right.
struct Columns<'a> {
    record: &'a Record,
    next: usize,
}

impl<'a> Columns<'a> {
    fn field(&mut self, what: &str) -> Result<&'a Field, FileError> {
        let field = self.record.fields.get(self.next).ok_or_else(|| FileError {
            location: self.record.end.clone(),
            message: format!("end-of-line before {what}"),
        })?;
        self.next += 1;
        Ok(field)
    }

    fn rest(&self) -> impl Iterator<Item = &'a Token> {
        self.record.fields[self.next..].iter().flat_map(Field::tokens)
    }
}

pub(super) fn rule(record: &Record) -> Result<Rule, FileError> {
    let mut columns = Columns { record, next: 0 };
    let connection = connection_type(columns.field("connection type")?.single("connection type")?)?;
    let databases = columns.field("database specification")?.tokens();
    let databases = databases.iter().map(database).collect::<Result<_, _>>()?;
    let users = columns.field("role specification")?.tokens();
    let users = users.iter().map(user).collect::<Result<_, _>>()?;
    let address = match connection {
        ConnectionType::Local => Address::All,
        _ => address(&mut columns)?,
    };
    let method_token = columns.field("authentication method")?.single("authentication type")?;
    let method = method(method_token, connection)?;
    let mut options = Options::default();
    let (mut ldap, mut oauth) = (LdapOptions::default(), OauthOptions::default());
    let mut pam = PamRule::default();
    for token in columns.rest() {
        let (name, value) = pair(token)?;
        let of_method = match method {
            Method::Ldap => ldap.set(name, value),
            Method::Oauth => oauth.set(name, value),
            Method::Pam => set_pam(&mut pam, name, value),
            _ => Err(None),
        };
        match of_method {
            Ok(()) => {}
            Err(Some(message)) => return Err(token.error(message)),
            Err(None) => option(token, (name, value), connection, method, &mut options)?,
        }
    }
    let refused = |message| FileError { location: method_token.location.clone(), message };
    match method {
        Method::Cert => options.client_cert = ClientCert::VerifyFull,
        Method::Ldap => options.ldap = Some(ldap.finish().map_err(refused)?),
        Method::Pam => options.pam = Some(pam),
        Method::Oauth => options.oauth = Some(oauth.finish().map_err(refused)?),
        _ => {}
    }
    let location = record.start.clone();
    Ok(Rule { location, connection, method, options, databases, users, address })
}

fn connection_type(token: &Token) -> Result<ConnectionType, FileError> {
    Ok(match token.text.as_str() {
        "local" => ConnectionType::Local,
        "host" => ConnectionType::Host,
        "hostssl" => ConnectionType::HostSsl,
        "hostnossl" => ConnectionType::HostNoSsl,
        "hostgssenc" => ConnectionType::HostGssEnc,
        "hostnogssenc" => ConnectionType::HostNoGssEnc,
        other => {
            return Err(token.error(format!(
                "invalid connection type \"{other}\": it must be {CONNECTION_TYPES}, \
                 or include, include_if_exists or include_dir with one name"
            )));
        }
    })
}

fn database(token: &Token) -> Result<DatabasePattern, FileError> {
    Ok(if token.is_keyword("all") {
        DatabasePattern::Name(NamePattern::All)
    } else if token.is_keyword("sameuser") {
        DatabasePattern::SameUser
    } else if token.is_keyword("samerole") || token.is_keyword("samegroup") {
        DatabasePattern::SameRole
    } else if token.is_keyword("replication") {
        DatabasePattern::Replication
    } else {
        DatabasePattern::Name(NamePattern::of(token)?)
    })
}

fn user(token: &Token) -> Result<UserPattern, FileError> {
    match token.text.strip_prefix('+') {
        Some(role) if !token.quoted => Ok(UserPattern::Members(role.to_owned())),
        _ => NamePattern::of_user(token).map(UserPattern::Name),
    }
}

fn address(columns: &mut Columns<'_>) -> Result<Address, FileError> {
    let token = columns.field("IP address specification")?.single("host address")?;
    if token.is_keyword("all") {
        return Ok(Address::All);
    } else if token.is_keyword("samehost") {
        return Ok(Address::SameHost);
    } else if token.is_keyword("samenet") {
        return Ok(Address::SameNet);
    }
    let (host, prefix) = match token.text.split_once('/') {
        Some((host, prefix)) => (host, Some(prefix)),
        None => (token.text.as_str(), None),
    };
    let Ok(addr) = host.parse::<IpAddr>() else {
        return host_name(token, host, prefix);
    };
    if let Some(prefix) = prefix {
        let mask = prefix_mask(addr, prefix).ok_or_else(|| {
            let bits = if addr.is_ipv4() { 32 } else { 128 };
            token.error(format!(
                "invalid CIDR mask in address \"{}\": it must be 0 to {bits}",
                token.text
            ))
        })?;
        return Ok(Address::Network { addr, mask });
    }
    let mask_token = columns
        .field(
            "netmask specification: specify an address range in CIDR notation, or provide a separate netmask",
        )?
        .single("netmask")?;
    let mask = mask_token
        .text
        .parse::<IpAddr>()
        .map_err(|_| mask_token.error(format!("invalid IP mask \"{}\"", mask_token.text)))?;
    if addr.is_ipv4() != mask.is_ipv4() {
        return Err(mask_token.error("IP address and mask do not match"));
    }
    Ok(Address::Network { addr, mask })
}

fn host_name(token: &Token, host: &str, prefix: Option<&str>) -> Result<Address, FileError> {
    // The resolver would take "127.1" or "::1%lo" for an address; a name they are not.
    let numeric = host.chars().all(|c| c.is_ascii_digit() || c == '.');
    if numeric || host.contains(':') {
        return Err(
            token.error(format!("invalid IP address \"{host}\": write all of it, without a zone"))
        );
    }
    if prefix.is_some() {
        let text = &token.text;
        return Err(
            token.error(format!("specifying both host name and CIDR mask is invalid: \"{text}\""))
        );
    }
    Ok(Address::HostName(host.to_owned()))
}

fn prefix_mask(addr: IpAddr, prefix: &str) -> Option<IpAddr> {
    if !prefix.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let bits: u32 = prefix.parse().ok()?;
    Some(match addr {
        IpAddr::V4(_) => {
            let host_bits = 32_u32.checked_sub(bits)?;
            Ipv4Addr::from_bits(u32::MAX.checked_shl(host_bits).unwrap_or(0)).into()
        }
        IpAddr::V6(_) => {
            let host_bits = 128_u32.checked_sub(bits)?;
            Ipv6Addr::from_bits(u128::MAX.checked_shl(host_bits).unwrap_or(0)).into()
        }
    })
}

fn method(token: &Token, connection: ConnectionType) -> Result<Method, FileError> {
    let local = connection == ConnectionType::Local;
    let method = match token.text.as_str() {
        "trust" => Method::Trust,
        "reject" => Method::Reject,
        "password" => Method::Password,
        "md5" => Method::Md5,
        "scram-sha-256" => Method::ScramSha256,
        "cert" => Method::Cert,
        "peer" => Method::Peer,
        "ident" if local => Method::Peer,
        "ldap" => Method::Ldap,
        "oauth" => Method::Oauth,
        "pam" => Method::Pam,
        known @ ("ident" | "gss" | "sspi" | "radius" | "bsd") => {
            return Err(token.error(format!(
                "authentication method \"{known}\" is not supported: it must be {METHODS}"
            )));
        }
        other => {
            return Err(token.error(format!(
                "invalid authentication method \"{other}\": it must be {METHODS}"
            )));
        }
    };
    match method {
        Method::Peer if !local => {
            Err(token.error("peer authentication is only supported on local sockets"))
        }
        Method::Cert if connection != ConnectionType::HostSsl => {
            Err(token.error("cert authentication is only supported on hostssl connections"))
        }
        _ => Ok(method),
    }
}

/// As PostgreSQL: whatever is not 1 is off.
fn set_pam(rule: &mut PamRule, name: &str, value: &str) -> Result<(), Option<String>> {
    match name {
        // It is a file's name in /etc/pam.d, and nothing above.
        "pamservice" if value.is_empty() || value.contains(['/', '\0']) => {
            return Err(Some(format!("invalid pamservice: \"{value}\"")));
        }
        "pamservice" => rule.service = value.to_owned(),
        "pam_use_hostname" => rule.use_host_name = value == "1",
        _ => return Err(None),
    }
    Ok(())
}

fn pair(token: &Token) -> Result<(&str, &str), FileError> {
    token.text.split_once('=').ok_or_else(|| {
        let text = &token.text;
        token.error(format!("authentication option not in name=value format: {text}"))
    })
}

fn option(
    token: &Token,
    (name, value): (&str, &str),
    connection: ConnectionType,
    method: Method,
    options: &mut Options,
) -> Result<(), FileError> {
    if matches!(name, "clientcert" | "clientname") && connection != ConnectionType::HostSsl {
        return Err(token.error(format!("{name} can only be configured for \"hostssl\" rows")));
    }
    match (name, value) {
        ("map", _) if !matches!(method, Method::Cert | Method::Peer | Method::Oauth) => Err(token
            .error(
                "authentication option \"map\" is only valid for authentication methods peer, cert \
                 and oauth",
            )),
        ("map", _) => {
            options.map = Some(value.to_owned());
            Ok(())
        }
        ("clientcert", "verify-full") => {
            options.client_cert = ClientCert::VerifyFull;
            Ok(())
        }
        ("clientcert", "verify-ca") if method == Method::Cert => Err(token
            .error("clientcert only accepts \"verify-full\" when using \"cert\" authentication")),
        ("clientcert", "verify-ca") => {
            options.client_cert = ClientCert::VerifyCa;
            Ok(())
        }
        ("clientcert", _) => Err(token.error(format!(
            "invalid value for clientcert: \"{value}\": it must be verify-ca or verify-full"
        ))),
        ("clientname", "CN") => {
            options.client_name = ClientName::Cn;
            Ok(())
        }
        ("clientname", "DN") => {
            options.client_name = ClientName::Dn;
            Ok(())
        }
        ("clientname", _) => {
            Err(token
                .error(format!("invalid value for clientname: \"{value}\": it must be CN or DN")))
        }
        _ if name.starts_with("ldap") => Err(token.error(format!(
            "authentication option \"{name}\" is only valid for authentication method ldap"
        ))),
        _ if name.starts_with("pam") => Err(token.error(format!(
            "authentication option \"{name}\" is only valid for authentication method pam"
        ))),
        ("issuer" | "scope" | "validator" | "audience" | "claim" | "jwks", _) => {
            Err(token.error(format!(
                "authentication option \"{name}\" is only valid for authentication method oauth"
            )))
        }
        _ => Err(token.error(format!(
            "unrecognized authentication option name: \"{name}\": it must be {OPTIONS}"
        ))),
    }
}
