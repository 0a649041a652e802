//! Does what is planned, or says it: `setup`, `undo`.
//!
//! # Invariants
//! * the record is on disk before anything is made
//! * a step that fails takes back those before it: nothing is left half done

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;

use hawser_sys::interfaces;
use hawser_sys::mptcp::endpoint::{Endpoint, Limits, PathManager};
use hawser_sys::mptcp::kernel::{self, Need, Version};
use hawser_sys::mptcp::socket::{self, Unsupported};
use hawser_sys::netlink::NetlinkError;
use hawser_sys::unit::{self, Unit};

use super::others;
use super::plan::{self, Address, Plan, PlanError};
use super::record::{self, Record};

/// What `setup server` announces where there is one address, unless --ports says otherwise: with
/// the first subflow, five flows.
pub const PORTS_DEFAULT: u16 = 4;

/// The unit that --persist writes.
const UNIT: &str = "hawser-mptcp.service";
/// By its first line a unit of ours is known.
const UNIT_MARK: &str =
    "# Written by `hawser mptcp setup --persist`; removed by `hawser mptcp undo`.";
/// Ports that are looked at for as many free ones as are wanted.
const PORTS_TRIED_MAX: u16 = 256;

/// Which end this machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// It accepts.
    Server {
        /// Further ports of each address.
        ports: Option<u16>,
        /// The first of them.
        first_port: u16,
    },
    /// It dials.
    Client {
        /// Addresses to use last.
        backup: Vec<IpAddr>,
    },
}

/// How.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The addresses to use; none is all that can be.
    pub addresses: Vec<IpAddr>,
    /// Only say it.
    pub dry_run: bool,
    /// Also at each start of the machine.
    pub persist: bool,
}

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// There is no MPTCP.
    #[error("{0}")]
    Unsupported(#[source] Unsupported),
    /// The path manager is in userspace: endpoints would have no effect. Who manages, if that is known.
    #[error("{}", userspace(*.0))]
    Userspace(Option<&'static str>),
    /// An address is none of this machine's.
    #[error("{0} is no address of this machine that is up")]
    NotOurs(IpAddr),
    /// It cannot be planned.
    #[error("{0}")]
    Plan(#[source] PlanError),
    /// The kernel refuses.
    #[error(
        "{step}: {source}{}",
        if .source.is_denied() { ". It needs root (CAP_NET_ADMIN)" } else { "" }
    )]
    Netlink {
        /// What was to be done.
        step: String,
        /// Why.
        source: NetlinkError,
    },
    /// A file cannot be read or written.
    #[error(
        "{step}: {source}{}",
        if .source.kind() == io::ErrorKind::PermissionDenied { ". It needs root" } else { "" }
    )]
    File {
        /// What was to be done.
        step: String,
        /// Why.
        source: io::Error,
    },
    /// What is to last is the machine's, and this is another network namespace.
    #[error("{}", unit::PERSIST_ELSEWHERE)]
    NotMachines,
}

fn userspace(manager: Option<&str>) -> String {
    let (who, remedy) = match manager {
        Some(who) => (format!(", and {who} manages"), "End that one, and"),
        None => (
            " (`hawser mptcp manage` or another program manages, or has managed)".to_owned(),
            "Where none does any more,",
        ),
    };
    format!(
        "the path manager is in userspace{who}: endpoints have no effect then. {remedy} sysctl \
         net.mptcp.path_manager = kernel puts it back"
    )
}

fn netlink(step: impl Into<String>) -> impl FnOnce(NetlinkError) -> ApplyError {
    let step = step.into();
    move |source| ApplyError::Netlink { step, source }
}

fn file(step: impl Into<String>) -> impl FnOnce(io::Error) -> ApplyError {
    let step = step.into();
    move |source| ApplyError::File { step, source }
}

/// Plans and does it. Gives what was done, or with `dry_run` what would be, in words.
///
/// # Errors
/// See [`ApplyError`]; then nothing has been changed.
pub fn setup(request: &Request, options: &Options) -> Result<Vec<String>, ApplyError> {
    if options.persist && !unit::is_machines_network() {
        return Err(ApplyError::NotMachines);
    }
    let enabled = match socket::probe() {
        Ok(()) => true,
        Err(Unsupported::Disabled) => false,
        Err(other) => return Err(ApplyError::Unsupported(other)),
    };
    if kernel::sysctls().path_manager.as_deref() == Some("userspace") {
        return Err(ApplyError::Userspace(others::rival()));
    }
    let mut manager = PathManager::open().map_err(netlink("asking the path manager"))?;
    let endpoints = manager.endpoints().map_err(netlink("reading endpoints"))?;
    let limits = manager.limits().map_err(netlink("reading limits"))?;
    let path = record::path().map_err(file("finding this network namespace"))?;
    let step = || format!("reading {}", path.display());
    let earlier = Record::load(&path).map_err(|source| file(step())(source))?;

    let (addresses, mut lines) = addresses(&options.addresses)?;
    let version = Version::parse(&kernel::release());
    let warning = |need| version.and_then(|version| version.warning(need));
    lines.extend(warning(Need::Endpoints));
    lines.extend(others::lines(&others::running()));
    let wish = match request {
        Request::Server { ports, first_port } => {
            let ports = ports.unwrap_or_else(|| default_ports(&addresses));
            let ports = free_ports(&addresses, ports, *first_port, &endpoints);
            if !ports.is_empty() {
                lines.extend(warning(Need::Ports));
                let list: Vec<String> = ports.iter().map(ToString::to_string).collect();
                lines.push(format!(
                    "clients must be able to reach TCP port {}: open them in the firewall",
                    list.join(", ")
                ));
            }
            plan::server(&addresses, &ports)
        }
        Request::Client { backup } => {
            for address in backup {
                if !addresses.iter().any(|known| known.address == *address) {
                    return Err(ApplyError::NotOurs(*address));
                }
            }
            let fullmesh = version.is_none_or(|version| version >= Version(5, 15));
            plan::client(&addresses, backup, fullmesh)
        }
    };
    let plan = plan::plan(&wish, &endpoints, limits, enabled, earlier.as_ref())
        .map_err(ApplyError::Plan)?;
    lines.splice(0..0, plan.lines(limits));
    if options.persist {
        lines.push(format!(
            "write {}, and enable it",
            unit_of(request, options).path(root()).display()
        ));
    }
    if options.dry_run {
        lines.push("nothing was changed (--dry-run)".to_owned());
        return Ok(lines);
    }
    let record = Record::new(&plan, limits, earlier.as_ref());
    if !plan.is_empty() || earlier.is_some() {
        let step = format!("writing {}", path.display());
        record.save(&path).map_err(file(step))?;
    }
    if let Err(error) = apply(&mut manager, &plan, limits) {
        match &earlier {
            // It was written a moment ago; `undo` finds nothing else to take away.
            Some(earlier) => drop(earlier.save(&path)),
            None => drop(fs::remove_file(&path)),
        }
        return Err(error);
    }
    if options.persist {
        persist(request, options)?;
    }
    if !plan.is_empty() || options.persist {
        lines.push("done; `hawser mptcp undo` takes it back".to_owned());
    }
    Ok(lines)
}

fn apply(manager: &mut PathManager, plan: &Plan, limits: Limits) -> Result<(), ApplyError> {
    if plan.enable {
        kernel::set_sysctl("enabled", "1").map_err(file("turning MPTCP on"))?;
    }
    let mut done: Vec<Step<'_>> = Vec::new();
    let result = steps(manager, plan, &mut done);
    if result.is_err() {
        // What cannot be taken back either is found by `status`.
        for step in done.iter().rev() {
            let _ = match step {
                Step::Removed(endpoint) => manager.add(endpoint),
                Step::Added(endpoint) => manager.remove(endpoint.id),
                Step::Limited => manager.set_limits(limits),
            };
        }
        if plan.enable {
            let _ = kernel::set_sysctl("enabled", "0");
        }
    }
    result
}

enum Step<'a> {
    Removed(&'a Endpoint),
    Added(&'a Endpoint),
    Limited,
}

fn steps<'a>(
    manager: &mut PathManager,
    plan: &'a Plan,
    done: &mut Vec<Step<'a>>,
) -> Result<(), ApplyError> {
    if let Some(limits) = plan.limits {
        manager.set_limits(limits).map_err(netlink("setting limits"))?;
        done.push(Step::Limited);
    }
    for endpoint in &plan.remove {
        let step = format!("taking away endpoint {}", endpoint.id.0);
        manager.remove(endpoint.id).map_err(netlink(step))?;
        done.push(Step::Removed(endpoint));
    }
    for endpoint in &plan.add {
        manager.add(endpoint).map_err(netlink(format!("making endpoint {endpoint}")))?;
        done.push(Step::Added(endpoint));
    }
    Ok(())
}

/// Takes back what `setup` has made. Gives what was done, or with `dry_run` what would be.
///
/// # Errors
/// See [`ApplyError`].
pub fn undo(dry_run: bool) -> Result<Vec<String>, ApplyError> {
    let path = record::path().map_err(file("finding this network namespace"))?;
    let step = || format!("reading {}", path.display());
    let record = Record::load(&path).map_err(|source| file(step())(source))?;
    let units = unit::ours(root(), UNIT, UNIT_MARK).map_err(file("looking for units"))?;
    let mut lines = Vec::new();
    match &record {
        None => lines.push(format!("nothing was set up here ({} is missing)", path.display())),
        Some(record) => lines.extend(undo_record(record, &path, dry_run)?),
    }
    for unit in &units {
        if !unit::is_machines_network() {
            lines.push(format!("{} {}", unit.display(), unit::STAYS));
            continue;
        }
        let step = format!("remove {}", unit.display());
        if !dry_run {
            unit::remove(root(), unit).map_err(file(step.clone()))?;
        }
        lines.push(step);
    }
    if dry_run {
        lines.push("nothing was changed (--dry-run)".to_owned());
    }
    Ok(lines)
}

fn undo_record(record: &Record, path: &Path, dry_run: bool) -> Result<Vec<String>, ApplyError> {
    let mut manager = PathManager::open().map_err(netlink("asking the path manager"))?;
    let endpoints = manager.endpoints().map_err(netlink("reading endpoints"))?;
    let limits = manager.limits().map_err(netlink("reading limits"))?;
    let undo = plan::undo(record, &endpoints, limits);
    if !dry_run {
        for endpoint in &undo.remove {
            let step = format!("taking away endpoint {}", endpoint.id.0);
            manager.remove(endpoint.id).map_err(netlink(step))?;
        }
        if let Some(limits) = undo.limits {
            manager.set_limits(limits).map_err(netlink("setting limits"))?;
        }
        if undo.disable {
            kernel::set_sysctl("enabled", "0").map_err(file("turning MPTCP off"))?;
        }
        fs::remove_file(path).map_err(file(format!("removing {}", path.display())))?;
    }
    Ok(undo.lines())
}

/// The addresses that connections can use, as `setup` would take them; none if they cannot be read.
pub fn usable_addresses() -> Vec<Address> {
    addresses(&[]).map(|(usable, _)| usable).unwrap_or_default()
}

/// All addresses of interfaces that are up. `None` if they cannot be read.
pub fn addresses_here() -> Option<BTreeSet<IpAddr>> {
    let all = interfaces::all().ok()?;
    Some(all.into_iter().filter(|entry| entry.up).map(|entry| entry.address).collect())
}

/// The addresses to use, and what is said of those that are left out.
fn addresses(asked: &[IpAddr]) -> Result<(Vec<Address>, Vec<String>), ApplyError> {
    let all = interfaces::all().map_err(file("reading the addresses of this machine"))?;
    let up = |entry: &&interfaces::InterfaceAddress| entry.up && is_usable(entry.address);
    let address = |entry: &interfaces::InterfaceAddress| Address {
        address: entry.address,
        interface: entry.interface,
    };
    if !asked.is_empty() {
        let find = |wanted: &IpAddr| {
            let found = all.iter().find(|entry| entry.up && entry.address == *wanted);
            found.map(address).ok_or(ApplyError::NotOurs(*wanted))
        };
        return Ok((asked.iter().map(find).collect::<Result<_, _>>()?, Vec::new()));
    }
    let routed = interfaces::with_default_route();
    let mut lines = Vec::new();
    let mut usable: Vec<Address> = Vec::new();
    for entry in all.iter().filter(up) {
        if !routed.is_empty() && !routed.contains(&entry.interface) {
            lines.push(format!(
                "{} is left out: there is no default route over its interface; --address takes it",
                entry.address
            ));
        } else if !usable.iter().any(|known| known.address == entry.address) {
            usable.push(address(entry));
        }
    }
    if usable.is_empty() {
        Err(ApplyError::Plan(PlanError::NoAddress))
    } else {
        Ok((usable, lines))
    }
}

/// Neither of this machine or link alone, nor of a group.
fn is_usable(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local)
}

/// Several addresses of a family are several paths; one alone is made several by ports.
fn default_ports(addresses: &[Address]) -> u16 {
    let count = |v4: bool| addresses.iter().filter(|a| a.address.is_ipv4() == v4).count();
    if count(true) > 1 || count(false) > 1 { 0 } else { PORTS_DEFAULT }
}

/// The next `count` ports from `first` without a listener at any of the addresses, or with
/// endpoints already.
fn free_ports(addresses: &[Address], count: u16, first: u16, endpoints: &[Endpoint]) -> Vec<u16> {
    let free = |port: &u16| {
        addresses.iter().all(|address| {
            endpoints.iter().any(|e| e.address == address.address && e.port == *port)
                || TcpListener::bind(SocketAddr::new(address.address, *port)).is_ok()
        })
    };
    (first..=first.saturating_add(PORTS_TRIED_MAX)).filter(free).take(count.into()).collect()
}

/// Where units are written.
fn root() -> &'static Path {
    Path::new("/")
}

fn persist(request: &Request, options: &Options) -> Result<(), ApplyError> {
    let unit = unit_of(request, options);
    let step = format!("writing {}", unit.path(root()).display());
    let write = || unit.enable(root(), &std::env::current_exe()?);
    write().map_err(file(step))
}

/// A unit that does the same at each start.
fn unit_of(request: &Request, options: &Options) -> Unit {
    let mut words: Vec<String> = ["mptcp", "setup"].map(str::to_owned).into();
    match request {
        Request::Server { ports, first_port } => {
            words.push("server".to_owned());
            words.extend(ports.map(|ports| format!("--ports={ports}")));
            words.push(format!("--first-port={first_port}"));
        }
        Request::Client { backup } => {
            words.push("client".to_owned());
            words.extend(backup.iter().map(|address| format!("--backup={address}")));
        }
    }
    words.extend(options.addresses.iter().map(|address| format!("--address={address}")));
    Unit {
        name: UNIT.to_owned(),
        description: "MPTCP endpoints and limits (Hawser)".to_owned(),
        mark: UNIT_MARK,
        arguments: words,
        capabilities: "CAP_NET_ADMIN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_repeats_the_command() {
        let request = Request::Server { ports: Some(3), first_port: 7000 };
        let options =
            Options { addresses: vec!["10.0.0.1".parse().unwrap()], dry_run: false, persist: true };
        let words = unit_of(&request, &options).arguments.join(" ");
        assert_eq!(words, "mptcp setup server --ports=3 --first-port=7000 --address=10.0.0.1");
    }

    #[test]
    fn addresses_of_the_link_and_the_machine_are_not_used() {
        for address in ["127.0.0.1", "169.254.1.1", "fe80::1", "::1", "224.0.0.1", "0.0.0.0"] {
            assert!(!is_usable(address.parse().unwrap()), "{address}");
        }
        for address in ["10.0.0.1", "192.0.2.1", "fd00::1"] {
            assert!(is_usable(address.parse().unwrap()), "{address}");
        }
        let other = "192.0.2.200".parse().unwrap();
        assert!(matches!(addresses(&[other]), Err(ApplyError::NotOurs(_))));
    }

    #[test]
    fn one_address_gets_ports_and_several_are_paths_themselves() {
        let address = |text: &str| Address { address: text.parse().unwrap(), interface: 1 };
        let (a, b, c) = (address("10.0.0.1"), address("10.0.1.1"), address("fd00::1"));
        assert_eq!(default_ports(&[a, c]), PORTS_DEFAULT);
        assert_eq!(default_ports(&[a, b]), 0);
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let address = Address { address: "127.0.0.1".parse().unwrap(), interface: 1 };
        let found = free_ports(&[address], 1, port, &[]);
        assert!(found.first().is_some_and(|free| *free > port), "{found:?}");
    }
}
