//! `listen_addr`, `listen_port` and `unix_socket_dir` of pgbouncer.ini -> `address`.
//!
//! # Limits      of an address of IPv6 that has a zone, the zone is lost

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::entry::socket_text;
use super::error::ImportError;
use super::ini::Entry;
use super::value::{comment, port, quote};
use crate::config::document::accepts;
use crate::config::setting::Table;
use crate::config::{LISTEN_PORT_DEFAULT, host_and_port, is_unix, registry};

/// PgBouncer's directory of unix sockets where none is named.
const UNIX_SOCKET_DIR_DEFAULT: &str = "/tmp";

/// Finds the addresses of a name.
pub(super) type Resolve<'a> = &'a mut dyn FnMut(&str) -> std::io::Result<Vec<IpAddr>>;

/// What becomes of the three settings.
pub(super) struct Listen {
    /// Lines of `[listen]`.
    pub(super) lines: Vec<String>,
    /// The directory in which servers without a host are looked for, if there is one.
    pub(super) socket_dir: Option<String>,
}

/// Takes them out of `settings`. With an `address` of its own in `[hawser]` (`is_own`) there is no line.
pub(super) fn listen(
    settings: &mut BTreeMap<String, Entry>,
    is_own: bool,
    resolve: Resolve<'_>,
) -> Result<Listen, ImportError> {
    let port = match settings.remove("listen_port") {
        None => LISTEN_PORT_DEFAULT,
        Some(entry) => port(&entry, &entry.value).map_err(|message| entry.refuse(message))?,
    };
    let hosts = settings.remove("listen_addr");
    let named = settings.remove("unix_socket_dir");
    let directory = named.as_ref().map_or(UNIX_SOCKET_DIR_DEFAULT, |entry| &entry.value);
    let directory = (!directory.is_empty()).then_some(directory);
    let socket_dir = directory.map(str::to_owned);
    if is_own {
        return Ok(Listen { lines: Vec::new(), socket_dir });
    }
    let mut lines = Vec::new();
    let (mut addresses, mut names) = (Vec::new(), Vec::new());
    if let Some(entry) = &hosts {
        (addresses, names) = tcp(&entry.value, port, resolve).map_err(|m| entry.refuse(m))?;
    }
    if let Some(directory) = directory {
        // Only a directory that no TCP address gives its port to needs one of its own.
        let default = if addresses.is_empty() { LISTEN_PORT_DEFAULT } else { port };
        let text = socket_text(directory, port, default);
        if let Some(entry) = &named {
            if !is_unix(directory) {
                let message = format!("`{directory}` is not absolute: write the whole path");
                return Err(entry.refuse(message));
            }
            is_address(&text).map_err(|message| entry.refuse(message))?;
        }
        addresses.push(text);
    }
    match (&named, addresses.as_slice()) {
        // A default would be a place that the file does not name.
        (Some(entry), []) => {
            let message = "there is no unix socket by it, and no listen_addr: name one of both";
            Err(entry.refuse(message))
        }
        _ => {
            let list: Vec<_> = addresses.iter().map(|address| quote(address)).collect();
            let names = names.join(", ");
            let said = match names.as_str() {
                "" => String::new(),
                names => format!(" {}", comment(&format!("what {names} is at the import"))),
            };
            lines.push(format!("address = [{}]{said}", list.join(", ")));
            Ok(Listen { lines, socket_dir })
        }
    }
}

fn is_address(text: &str) -> Result<(), String> {
    registry::find(Table::Listen, "address").map_or(Ok(()), |setting| accepts(setting, text))
}

/// The addresses of `hosts`, and the names among them, which PgBouncer looks up when it starts.
fn tcp(hosts: &str, port: u16, resolve: Resolve<'_>) -> Result<(Vec<String>, Vec<String>), String> {
    let (mut addresses, mut names) = (Vec::new(), Vec::new());
    let mut add = |address| {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    };
    for host in hosts.split(',').map(str::trim).filter(|host| !host.is_empty()) {
        let host = host.trim_matches(['[', ']']);
        let address = host_and_port(host, port);
        if is_address(&address).is_ok() {
            add(address);
            continue;
        }
        let found = match resolve(host) {
            Ok(found) if !found.is_empty() => found,
            Ok(_) => return Err(format!("`{host}` has no address")),
            Err(error) => {
                return Err(format!(
                    "`{host}` is not an address, and as a name it cannot be looked up: {error}"
                ));
            }
        };
        found.iter().for_each(|ip| add(host_and_port(&ip.to_string(), port)));
        names.push(host.to_owned());
    }
    Ok((addresses, names))
}
