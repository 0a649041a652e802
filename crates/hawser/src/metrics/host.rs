//! Under which host names the pages are shown.
//!
//! # Why      A browser that runs a stranger's script lets it read whatever answers under the stranger's
//!            own name, and the stranger may have that name lead to 127.0.0.1 or to an address of this
//!            network (DNS rebinding). The request says by which name it came.
//! # Model    Allowed is what no stranger can have: an IP address, `localhost`, a name without a dot
//!            (found by search lists and hosts files: `hawser` in a compose file), the name of this
//!            host, and what the configuration names. No Host at all is HTTP/1.0, and no browser.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The names that are allowed beside those that always are.
#[derive(Debug, Default)]
pub struct Hosts {
    names: Vec<String>,
    all: bool,
}

impl Hosts {
    /// These of the configuration (`*` is every name, `.example.org` all names below it), and the name
    /// of this host.
    pub fn new(configured: &[String], own: Option<String>) -> Self {
        let names = configured.iter().cloned().chain(own);
        Self {
            names: names.map(|name| name.trim_end_matches('.').to_ascii_lowercase()).collect(),
            all: configured.iter().any(|name| name == "*"),
        }
    }

    /// Whether pages are shown under this value of `Host`.
    pub fn allow(&self, host: &[u8]) -> bool {
        let Ok(host) = std::str::from_utf8(host) else { return false };
        let Some(name) = without_port(host) else { return false };
        if let Some(v6) = name.strip_prefix('[') {
            // A zone (`%eth0`) is not sent by who keeps to RFC 6874; the address is one all the same.
            let address = v6.trim_end_matches(']').split('%').next().unwrap_or_default();
            return address.parse::<Ipv6Addr>().is_ok();
        }
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        self.all
            || name.parse::<Ipv4Addr>().is_ok()
            || name.ends_with(".localhost")
            || is_single(&name)
            || self.names.iter().any(|known| match known.strip_prefix('.') {
                Some(domain) => name.strip_suffix(domain).is_some_and(|sub| sub.ends_with('.')),
                None => *known == name,
            })
    }
}

/// A name of one part. (A number is an address to some: 2130706433 is 127.0.0.1.)
fn is_single(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !name.is_empty() && name.bytes().all(fits)
}

/// `name`, `name:port`, `[v6]`, `[v6]:port`. `None`: it is none of these.
fn without_port(host: &str) -> Option<&str> {
    let end = match host.strip_prefix('[') {
        Some(v6) => v6.find(']')? + 2,
        None => host.find(':').unwrap_or(host.len()),
    };
    let (name, port) = host.split_at_checked(end)?;
    let port_fits = match port.strip_prefix(':') {
        Some(port) => port.bytes().all(|byte| byte.is_ascii_digit()),
        None => port.is_empty(),
    };
    (port_fits && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_that_no_stranger_can_have_are_allowed() {
        let hosts = Hosts::new(
            &["Metrics.example.org".to_owned(), ".svc.cluster.local".to_owned()],
            Some("db1.example.net".to_owned()),
        );
        for allowed in [
            "127.0.0.1",
            "10.0.3.7:9632",
            "[::1]",
            "[fe80::1%eth0]:9632",
            "localhost",
            "LOCALHOST:9632",
            "localhost.",
            "a.localhost",
            "hawser:9632",
            "metrics.example.org",
            "metrics.example.org.:9632",
            "db1.example.net",
            "hawser.app.svc.cluster.local:9632",
        ] {
            assert!(hosts.allow(allowed.as_bytes()), "{allowed}");
        }
        for refused in [
            "evil.example",
            "evil.example:9632",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "evil.example:80:80",
            "[::1].evil.example",
            "[evil.example]",
            "[::1",
            "",
            ":9632",
            "a@b",
            "svc.cluster.local",
            "xsvc.cluster.local",
            "evil.example:",
            "x.metrics.example.org",
        ] {
            assert!(!hosts.allow(refused.as_bytes()), "{refused}");
        }
        assert!(!hosts.allow(b"caf\xe9"));
        assert!(Hosts::new(&["*".to_owned()], None).allow(b"evil.example"));
    }
}
