//! What this kernel can do of MPTCP, and its settings (Documentation/networking/mptcp-sysctl.rst).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the settings of the calling thread's network namespace are.
const DIRECTORY: &str = "/proc/sys/net/mptcp";

/// A kernel's version, without what the distribution adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

/// What came after the first MPTCP (5.6), oldest first.
const FEATURES: [(Version, &str); 9] = [
    (Version(5, 6), "MPTCP sockets"),
    (Version(5, 7), "more than one subflow: endpoints and limits"),
    (Version(5, 12), "endpoints with a port, events"),
    (Version(5, 14), "`run`: sockets that a supervisor gives to a program"),
    (Version(5, 16), "MPTCP_INFO on sockets: whether a connection fell back"),
    (Version(5, 19), "the userspace path manager, listeners in `status`"),
    (Version(6, 1), "most socket options, TCP Fast Open among them"),
    (Version(6, 5), "bytes of whole connections, MPTCP_FULL_INFO"),
    (Version(6, 6), "programs turned to MPTCP by BPF (update_socket_protocol)"),
];

/// What a command needs of the kernel beyond MPTCP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Endpoints and limits.
    Endpoints,
    /// Endpoints with a port.
    Ports,
    /// Sockets that a supervisor gives to a program (SECCOMP_ADDFD_FLAG_SEND).
    Supervisor,
}

impl Need {
    /// Since when there is that, what it is, and what becomes of it without.
    fn terms(self) -> (Version, &'static str, &'static str) {
        match self {
            Self::Endpoints => {
                (Version(5, 7), "endpoints and limits", "each connection keeps its one subflow")
            }
            Self::Ports => {
                (Version(5, 12), "endpoints with a port", "clients do not learn the ports")
            }
            Self::Supervisor => {
                (Version(5, 14), "sockets that a supervisor gives to a program", "they stay TCP")
            }
        }
    }
}

impl Version {
    /// What to say before something is done that this version may not do. A warning and no error:
    /// distributions add to old kernels what came later.
    pub fn warning(self, need: Need) -> Option<String> {
        let (since, what, without) = need.terms();
        (self < since).then(|| {
            let Self(major, minor) = self;
            format!(
                "warning: Linux {major}.{minor} is older than {what} ({}.{}): unless the \
                 distribution has added them, {without}",
                since.0, since.1
            )
        })
    }

    /// Reads `6.18.4-generic`.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some(Self(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }

    /// What of MPTCP it lacks, by its version alone: distributions may have added some.
    pub fn lacks(self) -> Vec<String> {
        FEATURES
            .iter()
            .filter(|(since, _)| self < *since)
            .map(|(since, what)| format!("{what} (Linux {}.{})", since.0, since.1))
            .collect()
    }
}

/// The kernel's release, as `uname -r` prints it.
pub fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Settings of a network namespace. What a kernel does not have is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Sysctls {
    /// Whether sockets can be made.
    pub enabled: Option<bool>,
    /// `kernel` or `userspace` (`path_manager`, before that `pm_type`; 5.19).
    pub path_manager: Option<String>,
    /// Which subflow carries the next segment (6.10); `default` is the only one of the kernel's own.
    pub scheduler: Option<String>,
    /// Checksums against middleboxes that change data (5.14).
    pub checksum_enabled: Option<bool>,
    /// Timeouts after which a subflow carries nothing new (5.15).
    pub stale_loss_cnt: Option<u32>,
    /// Whether peers may open subflows to the address and port of the first (5.16).
    pub allow_join_initial_addr_port: Option<bool>,
    /// Seconds after which an announcement is repeated.
    pub add_addr_timeout: Option<u32>,
}

/// Reads the settings.
pub fn sysctls() -> Sysctls {
    let text = |name: &str| {
        fs::read_to_string(Path::new(DIRECTORY).join(name)).ok().map(|text| text.trim().to_owned())
    };
    let number = |name: &str| text(name)?.parse::<u32>().ok();
    let switch = |name: &str| number(name).map(|number| number != 0);
    let manager = || {
        text("path_manager").or_else(|| {
            Some(if number("pm_type")? == 0 { "kernel" } else { "userspace" }.to_owned())
        })
    };
    Sysctls {
        enabled: switch("enabled"),
        path_manager: manager(),
        scheduler: text("scheduler"),
        checksum_enabled: switch("checksum_enabled"),
        stale_loss_cnt: number("stale_loss_cnt"),
        allow_join_initial_addr_port: switch("allow_join_initial_addr_port"),
        add_addr_timeout: number("add_addr_timeout"),
    }
}

/// Sets `net.mptcp.NAME`.
///
/// # Errors
/// As open(2) and write(2).
pub fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    fs::write(PathBuf::from(DIRECTORY).join(name), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_whatever_a_distribution_adds() {
        assert_eq!(Version::parse("6.18.44-fc-v657"), Some(Version(6, 18)));
        assert_eq!(Version::parse("5.15.0-91-generic"), Some(Version(5, 15)));
        assert_eq!(Version::parse("6.1-rc3"), Some(Version(6, 1)));
        assert_eq!(Version::parse("linux"), None);
    }

    #[test]
    fn each_version_lacks_what_came_later() {
        assert!(Version(6, 6).lacks().is_empty());
        assert_eq!(Version(5, 15).lacks().len(), 5);
        assert_eq!(Version(5, 16).lacks().len(), 4);
        assert_eq!(Version(6, 1).lacks().len(), 2);
        let lacks = |major, minor| Version(major, minor).lacks().join("; ");
        assert!(lacks(5, 5).contains("MPTCP sockets") && !lacks(5, 6).contains("MPTCP sockets"));
        assert!(lacks(5, 15).contains("fell back") && !lacks(5, 16).contains("fell back"));
        assert!(lacks(6, 0).contains("socket options") && !lacks(6, 1).contains("socket options"));
        assert_eq!(Version(5, 4).lacks().len(), FEATURES.len());
    }

    #[test]
    fn what_a_command_needs_is_said_below_the_version_that_has_it_and_not_from_there_on() {
        for (need, since) in [
            (Need::Endpoints, Version(5, 7)),
            (Need::Ports, Version(5, 12)),
            (Need::Supervisor, Version(5, 14)),
        ] {
            assert_eq!(since.warning(need), None);
            let older = Version(since.0, since.1 - 1);
            let said = older.warning(need).unwrap();
            assert!(said.contains(&format!("Linux {}.{}", older.0, older.1)), "{said}");
            assert!(said.contains(&format!("({}.{})", since.0, since.1)), "{said}");
        }
    }
}
