//! Where Hawser listens, and where servers are.
//!
//! # Model
//! A path that starts with `/` is a unix socket: `/dir` is the directory, the socket in it is
//! `.s.PGSQL.PORT` as libpq has it; `/dir:PORT` names the port; `/dir/.s.PGSQL.PORT` is the socket.
//! With `@` in place of the first `/` the same is an abstract socket, which has no file.
//! All else is `host:port`, `host`, `[v6]:port`, `[v6]` or a bare v6 address; of a server,
//! `?mptcp=prefer` or `?mptcp=require`, and `?congestion=auto` or an algorithm, may follow, joined
//! by `&`. `link://NAME/host:port` is a server that the far end of a link reaches.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use super::choice::MptcpUse;
use super::congestion::Congestion;
use super::error::Rejected;
use super::setting::Setting;
use super::value::{Context, Raw, SettingType, items};

/// PgBouncer's port, and ours.
pub const LISTEN_PORT_DEFAULT: u16 = 6432;
/// PostgreSQL's port.
pub const SERVER_PORT_DEFAULT: u16 = 5432;
/// `sun_path` of Linux holds 108 bytes with its NUL (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// One place where clients connect.
///
/// `*` becomes `0.0.0.0` and `[::]`: the second is opened with IPV6_V6ONLY, and left out if the
/// host has no IPv6.
#[derive(Clone, Debug, PartialEq, Eq, Hash, derive_more::Display)]
pub enum ListenAddress {
    /// An address and port.
    Tcp(SocketAddr),
    /// The whole path of the socket, as in `/run/postgresql/.s.PGSQL.6432`, or the name of an abstract one, as in
    /// `@hawser/.s.PGSQL.6432`.
    #[display("{}", _0.display())]
    Unix(PathBuf),
}

impl ListenAddress {
    /// Whether only this host can reach it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

/// One place where a PostgreSQL server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    /// A host name or an address (without brackets), resolved at each connect.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
        /// Whether over several paths.
        mptcp: MptcpUse,
        /// What sends on this side.
        congestion: Congestion,
    },
    /// The whole path of the socket, as in `/run/postgresql/.s.PGSQL.5432`.
    Unix(PathBuf),
    /// `link://NAME/host:port`: what the far end of a link reaches.
    Link {
        /// The link's name.
        link: String,
        /// Name or address, for the far end.
        host: String,
        /// Port.
        port: u16,
    },
}

impl ServerAddress {
    /// The server at `host` (a name, an address or a directory of sockets) and `port`.
    ///
    /// # Errors
    /// What is wrong with the host.
    pub fn new(host: &str, port: u16) -> Result<Self, String> {
        if is_unix(host) {
            return unix_path(host, port).map(Self::Unix);
        }
        check_host(host)?;
        let (mptcp, congestion) = (MptcpUse::Off, Congestion::Default);
        Ok(Self::Tcp { host: host.to_owned(), port, mptcp, congestion })
    }

    /// Parses one entry of `servers`.
    ///
    /// # Errors
    /// What is wrong with it, and what is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        if is_unix(text) {
            return unix_path(text, SERVER_PORT_DEFAULT).map(Self::Unix);
        }
        if let Some(rest) = text.strip_prefix("link://") {
            return Self::parse_link(rest);
        }
        if text.contains("://") || text.contains('@') {
            // Not repeated: it may hold a password.
            return Err("a server is host:port or /socket/dir, not a URL: its user and password \
                        belong in `user` and `password`"
                .to_owned());
        }
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut mptcp, mut congestion) = (MptcpUse::Off, Congestion::Default);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let unknown =
                |name, word, kind| format!("{name}=`{word}` is not known: allowed is {kind}");
            match option.split_once('=') {
                Some((name @ "mptcp", word)) => {
                    let wanted = MptcpUse::from_word(word);
                    mptcp = wanted.ok_or_else(|| unknown(name, word, MptcpUse::KIND))?;
                }
                Some((name @ "congestion", word)) => {
                    let wanted = Congestion::from_word(word);
                    congestion = wanted.ok_or_else(|| unknown(name, word, Congestion::KIND))?;
                }
                _ => {
                    return Err(format!(
                        "`?{option}` is not known: only ?mptcp=... and ?congestion=... may follow"
                    ));
                }
            }
        }
        let (host, port) = split_port(place)?;
        check_host(host)?;
        let port = port.unwrap_or(SERVER_PORT_DEFAULT);
        Ok(Self::Tcp { host: host.to_owned(), port, mptcp, congestion })
    }

    fn parse_link(text: &str) -> Result<Self, String> {
        let (link, place) = text.split_once('/').unwrap_or((text, ""));
        if link.is_empty() || place.is_empty() {
            return Err("a server over a link is link://NAME/host:port".to_owned());
        }
        let (host, port) = split_port(place)?;
        check_host(host)?;
        let port = port.unwrap_or(SERVER_PORT_DEFAULT);
        Ok(Self::Link { link: link.to_owned(), host: host.to_ascii_lowercase(), port })
    }

    /// Whether it is the server at this host, by the same name or address, and port.
    #[must_use]
    pub fn is_at(&self, at: &str, its: u16) -> bool {
        match self {
            Self::Tcp { host, port, .. } | Self::Link { host, port, .. } => {
                host == at && *port == its
            }
            Self::Unix(_) => false,
        }
    }

    /// The name of the link that it is reached by.
    #[must_use]
    pub fn link(&self) -> Option<&str> {
        match self {
            Self::Link { link, .. } => Some(link),
            Self::Tcp { .. } | Self::Unix(_) => None,
        }
    }

    /// Whether connections to it are to be MPTCP.
    #[must_use]
    pub fn mptcp(&self) -> MptcpUse {
        match self {
            Self::Tcp { mptcp, .. } => *mptcp,
            Self::Unix(_) | Self::Link { .. } => MptcpUse::Off,
        }
    }

    /// Which congestion control connections to it have on this side.
    #[must_use]
    pub fn congestion(&self) -> Congestion {
        match self {
            Self::Tcp { congestion, .. } => *congestion,
            Self::Unix(_) | Self::Link { .. } => Congestion::Default,
        }
    }

    /// Whether the server is on this host: its sockets are, and loopback addresses.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp { host, .. } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
            Self::Unix(_) => true,
            Self::Link { .. } => false,
        }
    }
}

/// `host:port`, or `[v6]:port`.
pub fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } => f.write_str(&host_and_port(host, *port))?,
            Self::Unix(path) => path.display().fmt(f)?,
            Self::Link { link, host, port } => {
                write!(f, "link://{link}/{}", host_and_port(host, *port))?;
            }
        }
        let mut mark = '?';
        if self.mptcp() != MptcpUse::Off {
            write!(f, "{mark}mptcp={}", self.mptcp())?;
            mark = '&';
        }
        match self.congestion() {
            Congestion::Default => Ok(()),
            wanted => write!(f, "{mark}congestion={wanted}"),
        }
    }
}

fn check_host(host: &str) -> Result<(), String> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || "/[]@?#,\"'".contains(c);
    if host.is_empty() {
        return Err("the host is missing: write host:port, [v6]:port or /socket/dir".to_owned());
    }
    if host.contains(bad) || (host.contains(':') && host.parse::<Ipv6Addr>().is_err()) {
        return Err(format!("`{host}` is neither a host name nor an address"));
    }
    Ok(())
}

fn port_number(text: &str) -> Result<u16, String> {
    text.parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("`{text}` is not a port: 1 to 65535 is allowed"))
}

/// Host and port of `host:port`, `[v6]:port`, `[v6]`, `host` or a bare v6 address.
fn split_port(text: &str) -> Result<(&str, Option<u16>), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) =
            rest.split_once(']').ok_or_else(|| format!("`{text}`: the ] is missing"))?;
        return match after.strip_prefix(':') {
            Some(port) => Ok((host, Some(port_number(port)?))),
            None if after.is_empty() => Ok((host, None)),
            None => Err(format!("`{text}`: after ] only :port may follow")),
        };
    }
    match text.rsplit_once(':') {
        Some((host, _)) if host.contains(':') => Ok((text, None)),
        Some((host, port)) => Ok((host, Some(port_number(port)?))),
        None => Ok((text, None)),
    }
}

/// Whether `text` names a unix socket, and not a host.
pub fn is_unix(text: &str) -> bool {
    text.starts_with(['/', '@'])
}

/// The socket that `text` names: see the model above.
fn unix_path(text: &str, port: u16) -> Result<PathBuf, String> {
    if text.contains('\0') {
        return Err("a NUL character is not allowed in a path".to_owned());
    }
    let is_socket = Path::new(text)
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with(".s.PGSQL."));
    let path = if is_socket {
        PathBuf::from(text)
    } else {
        // Directories may hold colons (/cloudsql/project:region:name): only digits are a port.
        let (directory, port) = match text.rsplit_once(':') {
            Some((directory, digits))
                if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) =>
            {
                (directory, port_number(digits)?)
            }
            _ => (text, port),
        };
        Path::new(directory).join(format!(".s.PGSQL.{port}"))
    };
    if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        return Err(format!(
            "`{}` is too long for a unix socket: at most {SOCKET_PATH_BYTES_MAX} bytes are allowed",
            path.display()
        ));
    }
    Ok(path)
}

/// The TCP addresses that one entry of `address` names.
fn listen_tcp(text: &str) -> Result<Vec<SocketAddr>, String> {
    let (host, port) = split_port(text)?;
    let port = port.unwrap_or(LISTEN_PORT_DEFAULT);
    let ips: Vec<IpAddr> = match host {
        "*" => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
        "localhost" => vec![Ipv4Addr::LOCALHOST.into()],
        _ => vec![host.parse().map_err(|_| {
            format!(
                "`{text}` is not an address to listen on: write a number (127.0.0.1:6432, \
                 [::1]:6432), *:6432 for all, localhost:6432, or /directory for a unix socket"
            )
        })?],
    };
    Ok(ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
}

impl SettingType for Vec<ListenAddress> {
    const KIND: &'static str = "an address or a list of them";

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        let (items, mut refusals) = items::<Self>(raw)?;
        let mut tcp = Vec::new();
        for (item, at) in items.iter().filter(|(item, _)| !is_unix(item)) {
            tcp.extend(refusals.keep(listen_tcp(item), at).map(|addresses| (*item, addresses)));
        }
        // As in PgBouncer, sockets bear the port of the TCP side.
        let port = tcp
            .first()
            .and_then(|(_, addresses)| addresses.first())
            .map_or(LISTEN_PORT_DEFAULT, SocketAddr::port);
        let mut result: Self = Vec::new();
        for (item, at) in items {
            let new: Vec<_> = if is_unix(item) {
                refusals
                    .keep(unix_path(item, port), &at)
                    .map(ListenAddress::Unix)
                    .into_iter()
                    .collect()
            } else {
                let addresses = tcp.iter().find(|(text, _)| *text == item);
                addresses
                    .map(|(_, addresses)| {
                        addresses.iter().copied().map(ListenAddress::Tcp).collect()
                    })
                    .unwrap_or_default()
            };
            for address in new {
                if result.contains(&address) {
                    refusals.add(Rejected::new(format!("`{item}` is given twice")).at(at.clone()));
                    break;
                }
                result.push(address);
            }
        }
        refusals.or(())?;
        if result.is_empty() {
            return Err(Rejected::new("no address to listen on, as in \"127.0.0.1:6432\""));
        }
        Ok(result)
    }

    fn show(&self, _: &Setting) -> String {
        self.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

impl SettingType for Vec<ServerAddress> {
    const KIND: &'static str = "a server or a list of them";
    const DEFAULT_IN_WORDS: bool = true;

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        let mut servers = Self::new();
        let (items, mut refusals) = items::<Self>(raw)?;
        for (item, at) in items {
            let Some(server) = refusals.keep(ServerAddress::parse(item), &at) else { continue };
            if servers.contains(&server) {
                refusals.add(Rejected::new(format!("`{server}` is given twice")).at(at));
                continue;
            }
            servers.push(server);
        }
        refusals.or(servers)
    }

    fn default_of(_: &Setting) -> Self {
        Self::new()
    }

    fn show(&self, _: &Setting) -> String {
        self.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Result<ServerAddress, String> {
        ServerAddress::new(host, port)
    }

    fn unix(path: &str) -> Result<ServerAddress, String> {
        Ok(ServerAddress::Unix(path.into()))
    }

    #[test]
    fn servers_are_hosts_v6_addresses_directories_and_sockets() {
        assert_eq!(ServerAddress::parse("db.example:5433"), tcp("db.example", 5433));
        assert_eq!(ServerAddress::parse("db.example"), tcp("db.example", 5432));
        assert_eq!(ServerAddress::parse("[::1]:5433"), tcp("::1", 5433));
        assert_eq!(ServerAddress::parse("::1"), tcp("::1", 5432));
        assert_eq!(ServerAddress::parse("/run/pg"), unix("/run/pg/.s.PGSQL.5432"));
        assert_eq!(ServerAddress::parse("/run/pg:5433"), unix("/run/pg/.s.PGSQL.5433"));
        assert_eq!(ServerAddress::parse("/run/pg/.s.PGSQL.7"), unix("/run/pg/.s.PGSQL.7"));
        assert_eq!(ServerAddress::parse("/sql/a:b:c"), unix("/sql/a:b:c/.s.PGSQL.5432"));
        assert_eq!(tcp("::1", 5433).unwrap().to_string(), "[::1]:5433");
    }

    #[test]
    fn a_server_may_have_a_congestion_control_of_its_own() {
        for text in
            ["db:1?congestion=auto", "db:1?congestion=bbr", "db:1?mptcp=prefer&congestion=bbr"]
        {
            assert_eq!(ServerAddress::parse(text).unwrap().to_string(), text);
        }
        let plain = ServerAddress::parse("db:1?congestion=default").unwrap();
        assert_eq!(plain, ServerAddress::parse("db:1").unwrap());
        let other = ServerAddress::parse("db:1?congestion=bbr&mptcp=require").unwrap();
        assert_eq!(other.to_string(), "db:1?mptcp=require&congestion=bbr");
        let message = ServerAddress::parse("db:1?congestion=b%r").unwrap_err();
        assert!(message.contains("auto, or the name"), "{message}");
    }

    #[test]
    fn a_server_may_be_reached_over_several_paths() {
        for (text, wanted) in [
            ("db:5433?mptcp=prefer", MptcpUse::Prefer),
            ("[::1]:5433?mptcp=require", MptcpUse::Require),
        ] {
            let server = ServerAddress::parse(text).unwrap();
            assert_eq!(server.mptcp(), wanted);
            assert_eq!(server.to_string(), text);
        }
        let off = ServerAddress::parse("db:1?mptcp=off").unwrap();
        assert_eq!(off, ServerAddress::parse("db:1").unwrap());
        let message = ServerAddress::parse("db:1?mptcp=on").unwrap_err();
        assert!(message.contains("off, prefer, require"), "{message}");
        assert!(ServerAddress::parse("db:1?mpctp=prefer").is_err());
        assert!(ServerAddress::parse("db:1?mptcp").is_err());
    }

    #[test]
    fn a_server_may_be_what_the_far_end_of_a_link_reaches() {
        for (text, host) in [("link://main/db:5433", "db"), ("link://main/[::1]:5433", "::1")] {
            let server = ServerAddress::parse(text).unwrap();
            let (link, host) = ("main".to_owned(), host.to_owned());
            assert_eq!(server, ServerAddress::Link { link, host, port: 5433 });
            assert_eq!(server.to_string(), text);
        }
        for text in ["link://", "link://main", "link:///db:1", "link://main/", "link://main/db:0"] {
            assert!(ServerAddress::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_server_is_refused_and_a_url_is_not_repeated() {
        for text in
            ["", ":5432", "a:0", "a:65536", "[::1", "[::1]5432", "a b", "http://x/h:1", "x:y:z"]
        {
            assert!(ServerAddress::parse(text).is_err(), "{text}");
        }
        let message = ServerAddress::parse("postgres://u:hunter2@h/db").unwrap_err();
        assert!(!message.contains("hunter2"), "{message}");
        assert!(ServerAddress::parse(&format!("/{}", "x".repeat(200))).is_err());
    }

    fn listen(text: &str) -> Result<Vec<String>, String> {
        let setting = crate::config::registry::find_by_name("address").unwrap();
        let context = Context { setting, base: Path::new("") };
        Vec::<ListenAddress>::parse(&Raw::String(text), context)
            .map(|list| list.iter().map(ToString::to_string).collect())
            .map_err(|error| error.message)
    }

    #[test]
    fn a_socket_directory_bears_the_port_of_the_tcp_side() {
        assert_eq!(
            listen("/run/a, 127.0.0.1:7000, [::1]:7001").unwrap(),
            ["/run/a/.s.PGSQL.7000", "127.0.0.1:7000", "[::1]:7001"]
        );
        assert_eq!(listen("/run/a").unwrap(), ["/run/a/.s.PGSQL.6432"]);
        assert_eq!(listen("*:7000").unwrap(), ["0.0.0.0:7000", "[::]:7000"]);
        assert_eq!(listen("localhost").unwrap(), ["127.0.0.1:6432"]);
    }

    #[test]
    fn listen_addresses_that_are_none_are_refused() {
        for text in ["", "db.example:6432", "127.0.0.1:0", "127.0.0.1,127.0.0.1:6432", "[::1"] {
            assert!(listen(text).is_err(), "{text}");
        }
    }
}
