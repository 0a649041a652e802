//! `hawser cc apply` and `undo`: an algorithm for this machine, or for one destination.
//!
//! # Model
//! ```text
//!   --system    net.ipv4.tcp_congestion_control, tcp_rmem and tcp_wmem; with --persist also a file
//!               in /etc/sysctl.d and one in /etc/modules-load.d
//!   --to        a route that goes where packets go already, with RTAX_CC_ALGO and RTAX_INITCWND;
//!               with --persist also a systemd unit that does the same at each start
//! ```
//! What was set is kept in /run until the machine stops, with what was there before.
//!
//! # Invariants
//! * the record is on disk before anything is changed
//! * `undo` puts back what is still as it was set, removes files that bear our mark and routes that
//!   bear our protocol number, and nothing else
//! * with `dry_run` nothing is written
//!
//! # Why not
//! Changing `default` routes: every connection would follow, which is what --system is for.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

use hawser_core::tuner::algorithm::Algorithm;
use hawser_sys::congestion::route::{Prefix, Route, Routes, Way, interface_name};
use hawser_sys::congestion::{SetError, probe};
use hawser_sys::interfaces::namespace_cookie;
use hawser_sys::netlink::NetlinkError;
use serde::{Deserialize, Serialize};

use crate::unit::{self, Unit};

/// Where records are: see `mptcp::record` for why it is not /run/hawser.
const RECORDS: &str = "/run/hawser-cc";
/// Where settings are.
const SETTINGS: &str = "/proc/sys";
const SYSCTL_FILE: &str = "/etc/sysctl.d/90-hawser-congestion.conf";
const MODULES_FILE: &str = "/etc/modules-load.d/hawser-congestion.conf";
const UNIT_PREFIX: &str = "hawser-congestion-";
/// By its first line a file of ours is known.
const MARK: &str = "# Written by `hawser cc apply --persist`; removed by `hawser cc undo`.";
const DEFAULT: &str = "net.ipv4.tcp_congestion_control";
const ALLOWED: &str = "tcp_allowed_congestion_control";
/// Of a route: the kernel looks at it when a connection begins.
const EXISTING: &str =
    "connections that exist keep their algorithm: this is for those that begin from now on";
/// Routes that an error names.
const PARTS_NAMED_MAX: usize = 5;
/// `EEXIST`, `ENETUNREACH`.
const EEXIST: i32 = 17;
const ENETUNREACH: i32 = 101;

/// Why it was not done.
#[derive(Debug)]
pub enum ApplyError {
    /// The kernel has not got it, or not for us.
    Algorithm(SetError),
    /// A network namespace may not have it as its default.
    NotAllowed(Algorithm),
    /// Packets to there go nowhere.
    NoRoute(Prefix),
    /// They stay here, or go by several ways.
    NoWay(Prefix),
    /// Parts of it go elsewhere, by these routes.
    Parts(Prefix, Vec<String>),
    /// There is a route to this very prefix, which is somebody else's.
    Taken(Prefix),
    /// The kernel refuses.
    Netlink {
        /// What was to be done.
        step: String,
        /// Why not.
        source: NetlinkError,
    },
    /// A file or setting cannot be read or written.
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is there that is not ours.
    NotOurs(PathBuf),
}

impl ApplyError {
    /// As sysexits.h has them.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Algorithm(SetError::Unknown(_)) => 78,
            Self::Algorithm(_) | Self::NotAllowed(_) => 77,
            Self::NoRoute(_) | Self::NoWay(_) | Self::Parts(..) => 68,
            Self::Taken(_) | Self::NotOurs(_) => 73,
            Self::Netlink { source, .. } if source.is_denied() => 77,
            Self::File { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => 77,
            Self::Netlink { .. } | Self::File { .. } => 1,
        }
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Algorithm(error) => error.fmt(f),
            Self::NotAllowed(algorithm) => write!(
                f,
                "{algorithm} is not in net.ipv4.{ALLOWED}: a network namespace other than the first can \
                 have no other algorithm as its default. Add it there, in the first one; or give it to \
                 destinations (`hawser cc apply --to`)"
            ),
            Self::NoRoute(to) => write!(f, "there is no route to {to}"),
            Self::NoWay(to) => write!(
                f,
                "{to} is on this machine, or is reached by several ways at once: a route beside them \
                 would change where packets go"
            ),
            Self::Parts(to, routes) => write!(
                f,
                "parts of {to} have a way of their own ({}), and one route to all of it could change \
                 where packets go: give `--to` the prefixes that go one way",
                routes.join("; ")
            ),
            Self::Taken(to) => write!(
                f,
                "there is a route to {to} that is not ours; `ip route change {to} ... congctl NAME` \
                 changes it, or a part of the prefix can have one"
            ),
            Self::Netlink { step, source } if source.is_denied() => {
                write!(f, "{step}: {source}. It needs root (CAP_NET_ADMIN)")
            }
            Self::Netlink { step, source } => write!(f, "{step}: {source}"),
            Self::File { path, source } if source.kind() == io::ErrorKind::PermissionDenied => {
                write!(f, "{}: {source}. It needs root", path.display())
            }
            Self::File { path, source } => write!(f, "{}: {source}", path.display()),
            Self::NotOurs(path) => {
                write!(f, "{} is there and not ours: it is left alone", path.display())
            }
        }
    }
}

impl std::error::Error for ApplyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Algorithm(error) => Some(error),
            Self::Netlink { source, .. } => Some(source),
            Self::File { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> ApplyError {
    let path = path.into();
    move |source| ApplyError::File { path, source }
}

fn netlink(step: impl Into<String>) -> impl FnOnce(NetlinkError) -> ApplyError {
    let step = step.into();
    move |source| ApplyError::Netlink { step, source }
}

/// A setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Changed {
    name: String,
    before: String,
    set: String,
}

/// What was changed in this network namespace, until the machine stops.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    settings: Vec<Changed>,
}

impl Record {
    /// With a change; what was there before the first one stays so.
    fn with(mut self, change: Changed) -> Self {
        match self.settings.iter_mut().find(|one| one.name == change.name) {
            Some(earlier) => earlier.set = change.set,
            None => self.settings.push(change),
        }
        self
    }
}

/// Where this is done: the machine, or in a test a directory.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self("/".into())
    }
}

impl Root {
    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    fn setting(&self, name: &str) -> PathBuf {
        self.at(SETTINGS).join(name.replace('.', "/"))
    }

    fn read(&self, name: &str) -> Result<String, ApplyError> {
        let path = self.setting(name);
        let text = fs::read_to_string(&path).map_err(file(path))?;
        Ok(text.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn record(&self) -> Result<PathBuf, ApplyError> {
        let name = match namespace_cookie() {
            Ok(cookie) => cookie.to_string(),
            // Before Linux 5.14 a namespace has none.
            Err(_) => "only".to_owned(),
        };
        Ok(self.at(RECORDS).join(format!("system-{name}.json")))
    }

    fn load(&self) -> Result<Record, ApplyError> {
        let path = self.record()?;
        match fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(io::Error::other).map_err(file(path))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Record::default()),
            Err(error) => Err(file(path)(error)),
        }
    }

    fn save(&self, record: &Record) -> Result<(), ApplyError> {
        let path = self.record()?;
        let write = || {
            fs::create_dir_all(self.at(RECORDS))?;
            let new = path.with_extension("new");
            fs::write(&new, serde_json::to_vec_pretty(record).map_err(io::Error::other)?)?;
            fs::rename(&new, &path)
        };
        write().map_err(file(path.clone()))
    }

    fn forget(&self) -> Result<(), ApplyError> {
        let path = self.record()?;
        fs::remove_file(&path).map_err(file(path))
    }

    /// Whether any network namespace may have it as its default.
    fn allows(&self, algorithm: Algorithm) -> bool {
        let allowed = self.read(&format!("net.ipv4.{ALLOWED}"));
        allowed.is_ok_and(|names| names.split(' ').any(|name| name == algorithm.as_str()))
    }

    /// Whether a file is ours, or not there.
    fn is_ours(&self, path: &str) -> Result<bool, ApplyError> {
        let path = self.at(path);
        unit::is_ours_or_absent(&path, MARK).map_err(file(path))
    }

    /// The settings of our file in /etc/sysctl.d, in its order.
    fn persistent_settings(&self) -> Result<Vec<(String, String)>, ApplyError> {
        let path = self.at(SYSCTL_FILE);
        if !self.is_ours(SYSCTL_FILE)? {
            return Err(ApplyError::NotOurs(path));
        }
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.map_err(file(path))?,
        };
        let setting = |line: &str| {
            let (name, value) = line.split_once('=')?;
            Some((name.trim().to_owned(), value.trim().to_owned()))
        };
        Ok(text.lines().filter_map(setting).collect())
    }
}

/// A setting that is to be written.
struct Setting<'a> {
    name: &'a str,
    set: &'a str,
    before: String,
}

/// What the machine is to have.
#[derive(Clone, Debug, Default)]
pub struct System {
    /// Its default.
    pub algorithm: Option<Algorithm>,
    /// The third number of tcp_rmem and tcp_wmem.
    pub buffer_bytes: Option<u64>,
    /// Also after a restart.
    pub persist: bool,
}

/// Sets the machine's default; gives what was done, or with `dry_run` what would be.
///
/// # Errors
/// See [`ApplyError`].
pub fn system(wanted: &System, root: &Root, dry_run: bool) -> Result<Vec<String>, ApplyError> {
    let mut changes = Vec::new();
    if let Some(algorithm) = wanted.algorithm {
        probe(algorithm.as_str()).map_err(ApplyError::Algorithm)?;
        changes.push((DEFAULT.to_owned(), algorithm.to_string()));
    }
    if let Some(bytes) = wanted.buffer_bytes {
        for name in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
            let before = root.read(name)?;
            let first_two: Vec<&str> = before.split(' ').take(2).collect();
            changes.push((name.to_owned(), format!("{} {bytes}", first_two.join(" "))));
        }
    }
    let mut lines = Vec::new();
    let mut record = root.load()?;
    let mut to_write = Vec::new();
    for (name, set) in &changes {
        let before = root.read(name)?;
        if before == *set {
            lines.push(format!("{name} is {set} already"));
            continue;
        }
        lines.push(format!("{name}: {before} -> {set}"));
        let change = Changed { name: name.clone(), before: before.clone(), set: set.clone() };
        record = record.with(change);
        to_write.push(Setting { name, set, before });
    }
    let files =
        if wanted.persist { persistent(&changes, wanted.algorithm, root)? } else { Vec::new() };
    for (path, text) in &files {
        lines.push(format!("{path}:\n{}", indented(text)));
    }
    if dry_run {
        return Ok(lines);
    }
    if !to_write.is_empty() {
        let earlier = root.load()?;
        root.save(&record)?;
        if let Err(error) = write_all(&to_write, root) {
            // The first error says what is wrong.
            let _ = if earlier.settings.is_empty() { root.forget() } else { root.save(&earlier) };
            return Err(error);
        }
    }
    for (path, text) in files {
        let path = root.at(path);
        let write = || {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(&path, text)
        };
        write().map_err(file(path.clone()))?;
    }
    Ok(lines)
}

/// Writes settings, all or none: where one is refused, those before it are put back.
fn write_all(settings: &[Setting<'_>], root: &Root) -> Result<(), ApplyError> {
    for (at, setting) in settings.iter().enumerate() {
        let path = root.setting(setting.name);
        let Err(error) = fs::write(&path, setting.set) else { continue };
        for earlier in &settings[..at] {
            let _ = fs::write(root.setting(earlier.name), &earlier.before);
        }
        return Err(match Algorithm::new(setting.set) {
            // net/ipv4/tcp_cong.c, tcp_set_default_congestion_control()
            Some(algorithm)
                if setting.name == DEFAULT
                    && error.kind() == io::ErrorKind::PermissionDenied
                    && !root.allows(algorithm) =>
            {
                ApplyError::NotAllowed(algorithm)
            }
            _ => file(path)(error),
        });
    }
    Ok(())
}

/// The files that do the same at each start, with what earlier calls have put there.
fn persistent(
    changes: &[(String, String)],
    algorithm: Option<Algorithm>,
    root: &Root,
) -> Result<Vec<(&'static str, String)>, ApplyError> {
    let mut settings = root.persistent_settings()?;
    for (name, set) in changes {
        match settings.iter_mut().find(|(earlier, _)| earlier == name) {
            Some((_, value)) => value.clone_from(set),
            None => settings.push((name.clone(), set.clone())),
        }
    }
    let settings: String = settings.iter().map(|(name, set)| format!("{name} = {set}\n")).collect();
    let mut files = vec![(SYSCTL_FILE, format!("{MARK}\n{settings}"))];
    if let Some(algorithm) = algorithm {
        if !root.is_ours(MODULES_FILE)? {
            return Err(ApplyError::NotOurs(root.at(MODULES_FILE)));
        }
        // Built in or not: what is not there is not loaded, and said in the journal.
        files.push((MODULES_FILE, format!("{MARK}\ntcp_{algorithm}\n")));
    }
    Ok(files)
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

/// What connections to a destination are to have.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// Which.
    pub to: Prefix,
    /// Their algorithm.
    pub algorithm: Algorithm,
    /// Segments that they begin with.
    pub initial_window: Option<u32>,
    /// Also after a restart.
    pub persist: bool,
}

/// Gives connections to a destination an algorithm of their own, by a route.
///
/// # Errors
/// See [`ApplyError`]; then nothing has been changed, but for a route whose unit cannot be written.
pub fn destination(
    wanted: Destination,
    root: &Root,
    dry_run: bool,
) -> Result<Vec<String>, ApplyError> {
    let Destination { to, algorithm, initial_window, persist } = wanted;
    probe(algorithm.as_str()).map_err(ApplyError::Algorithm)?;
    let mut routes = Routes::open().map_err(netlink("asking for routes"))?;
    let way = one_way(&mut routes, to)?;
    let route = Route { to, way, algorithm: Some(algorithm.to_string()), initial_window };
    let earlier = routes.ours().map_err(netlink("reading routes"))?;
    let earlier = earlier.into_iter().find(|one| one.to == to);
    let mut lines = Vec::new();
    if let Some(earlier) = &earlier {
        lines.push(format!("in place of: {}", said(earlier)));
    }
    lines.push(said(&route));
    lines.push(EXISTING.to_owned());
    let unit = match persist {
        true => Some((unit_of(wanted), std::env::current_exe().map_err(file("/proc/self/exe"))?)),
        false => None,
    };
    if let Some((unit, program)) = &unit {
        let path = unit.path(&root.0);
        if !unit::is_ours_or_absent(&path, MARK).map_err(file(&path))? {
            return Err(ApplyError::NotOurs(path));
        }
        lines.push(format!("{}:\n{}", path.display(), indented(&unit.text(program))));
    }
    if dry_run {
        return Ok(lines);
    }
    if let Some(earlier) = &earlier {
        routes.remove(earlier).map_err(netlink(format!("removing the route to {to}")))?;
    }
    match routes.add(&route) {
        Ok(()) => {
            if let Some((unit, program)) = unit {
                unit.enable(&root.0, &program).map_err(file(unit.path(&root.0)))?;
            }
            Ok(lines)
        }
        Err(error) => {
            if let Some(earlier) = &earlier {
                // As it was; if that fails too, the first error says what is wrong.
                let _ = routes.add(earlier);
            }
            Err(match error.errno() {
                Some(EEXIST) => ApplyError::Taken(to),
                _ => netlink(format!("adding a route to {to}"))(error),
            })
        }
    }
}

/// The way to all of a prefix.
fn one_way(routes: &mut Routes, to: Prefix) -> Result<Way, ApplyError> {
    let step = format!("asking for the way to {to}");
    let found = match routes.way(to.address()) {
        Ok(found) => found.ok_or(ApplyError::NoWay(to))?,
        Err(error) if error.errno() == Some(ENETUNREACH) => return Err(ApplyError::NoRoute(to)),
        Err(error) => return Err(netlink(step)(error)),
    };
    // The way of the first address is that of all only if its route is to all of it.
    let is_part = |prefix: &Prefix| prefix.bits() > to.bits() && to.contains(prefix.address());
    let mut parts: Vec<(Prefix, Option<Way>)> = Vec::new();
    parts.extend(found.of.filter(is_part).map(|prefix| (prefix, Some(found.way))));
    for (prefix, way) in routes.all().map_err(netlink(step))? {
        if is_part(&prefix) && way != Some(found.way) {
            parts.push((prefix, way));
        }
    }
    if parts.is_empty() {
        return Ok(found.way);
    }
    let said = parts.iter().take(PARTS_NAMED_MAX).map(|(to, way)| match way {
        Some(way) => way_said(*to, *way),
        None => format!("{to}, by several ways"),
    });
    let mut said: Vec<String> = said.collect();
    if parts.len() > PARTS_NAMED_MAX {
        said.push(format!("{} more", parts.len() - PARTS_NAMED_MAX));
    }
    Err(ApplyError::Parts(to, said))
}

/// The unit that does the same for a destination at each start.
fn unit_of(wanted: Destination) -> Unit {
    let Destination { to, algorithm, initial_window, .. } = wanted;
    let mut arguments: Vec<String> = ["cc", "apply", "--to"].map(str::to_owned).into();
    arguments.push(to.to_string());
    arguments.extend(["--algorithm".to_owned(), algorithm.to_string()]);
    if let Some(window) = initial_window {
        arguments.extend(["--initial-window".to_owned(), window.to_string()]);
    }
    Unit {
        name: format!("{UNIT_PREFIX}{}.service", to.to_string().replace(['/', ':'], "-")),
        description: format!("Congestion control {algorithm} towards {to} (Hawser)"),
        mark: MARK,
        arguments,
        capabilities: "CAP_NET_ADMIN CAP_SYS_MODULE",
    }
}

/// As `ip route` would have it.
fn said(route: &Route) -> String {
    let Route { to, way, algorithm, initial_window } = route;
    let mut text = format!("route {}", way_said(*to, *way));
    if let Some(algorithm) = algorithm {
        text += &format!(" congctl {algorithm}");
    }
    if let Some(window) = initial_window {
        text += &format!(" initcwnd {window}");
    }
    text
}

fn way_said(to: Prefix, way: Way) -> String {
    let via = way.via.map(|via| format!(" via {via}")).unwrap_or_default();
    let name = interface_name(way.interface).unwrap_or_else(|_| way.interface.to_string());
    format!("{to}{via} dev {name}")
}

/// Takes back what `apply` has done; gives what was done, or with `dry_run` what would be.
///
/// # Errors
/// See [`ApplyError`].
pub fn undo(root: &Root, dry_run: bool) -> Result<Vec<String>, ApplyError> {
    let mut lines = Vec::new();
    let record = root.load()?;
    for Changed { name, before, set } in &record.settings {
        let now = root.read(name)?;
        if now == *before {
            continue;
        }
        if now != *set {
            lines.push(format!("{name} is {now}, which somebody else has set: it stays"));
            continue;
        }
        lines.push(format!("{name}: {set} -> {before}"));
        if !dry_run {
            let path = root.setting(name);
            fs::write(&path, before).map_err(file(path))?;
        }
    }
    if !dry_run && !record.settings.is_empty() {
        root.forget()?;
    }
    for path in [SYSCTL_FILE, MODULES_FILE] {
        let at = root.at(path);
        if at.exists() && root.is_ours(path)? {
            lines.push(format!("{path} is removed"));
            if !dry_run {
                fs::remove_file(&at).map_err(file(at))?;
            }
        }
    }
    for path in unit::ours(&root.0, UNIT_PREFIX, MARK).map_err(file("units"))? {
        lines.push(format!("{} is removed", path.display()));
        if !dry_run {
            unit::remove(&root.0, &path).map_err(file(path))?;
        }
    }
    lines.extend(undo_routes(dry_run)?);
    if lines.is_empty() {
        lines.push("there is nothing to undo".to_owned());
    }
    Ok(lines)
}

fn undo_routes(dry_run: bool) -> Result<Vec<String>, ApplyError> {
    let mut routes = Routes::open().map_err(netlink("asking for routes"))?;
    let ours = routes.ours().map_err(netlink("reading routes"))?;
    let mut lines = Vec::new();
    for route in &ours {
        if !dry_run {
            routes.remove(route).map_err(netlink(format!("removing the route to {}", route.to)))?;
        }
        lines.push(format!("removed: {}", said(route)));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine in a directory, which is removed with it.
    struct Machine(Root);

    impl Machine {
        fn new() -> Self {
            let name = format!("hawser-apply-{}", crate::process::random_u64());
            let root = Root(std::env::temp_dir().join(name));
            let machine = Self(root);
            machine.set(DEFAULT, "cubic\n");
            machine.set("net.ipv4.tcp_rmem", "4096\t131072\t6291456\n");
            machine.set("net.ipv4.tcp_wmem", "4096\t16384\t4194304\n");
            machine
        }

        fn set(&self, name: &str, value: &str) {
            let path = self.0.setting(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.0);
        }
    }

    #[test]
    fn a_destinations_unit_does_what_was_asked_and_undo_removes_it() {
        let machine = Machine::new();
        let wanted = Destination {
            to: Prefix::parse("2001:db8::/32").unwrap(),
            algorithm: here(),
            initial_window: Some(20),
            persist: true,
        };
        let unit = unit_of(wanted);
        assert_eq!(unit.name, "hawser-congestion-2001-db8---32.service");
        let words =
            format!("cc apply --to 2001:db8::/32 --algorithm {} --initial-window 20", here());
        assert_eq!(unit.arguments.join(" "), words);
        unit.enable(&machine.0.0, "/usr/bin/hawser".as_ref()).unwrap();
        let path = unit.path(&machine.0.0);
        let line = format!("{} is removed", path.display());
        assert!(undo(&machine.0, true).unwrap().contains(&line));
        assert!(path.exists());
        assert!(undo(&machine.0, false).unwrap().contains(&line));
        assert!(!path.exists());
    }

    /// What this kernel gives everybody.
    fn here() -> Algorithm {
        let found = hawser_sys::congestion::algorithms().unwrap();
        Algorithm::new(&found.default).unwrap()
    }

    fn wanted() -> System {
        System { algorithm: Some(here()), buffer_bytes: Some(32 << 20), persist: true }
    }

    #[test]
    fn a_dry_run_says_it_and_writes_nothing() {
        let machine = Machine::new();
        machine.set(DEFAULT, "other\n");
        let lines = system(&wanted(), &machine.0, true).unwrap();
        let text = lines.join("\n");
        assert!(text.contains(&format!("{DEFAULT}: other -> {}", here())), "{text}");
        assert!(
            text.contains("net.ipv4.tcp_wmem: 4096 16384 4194304 -> 4096 16384 33554432"),
            "{text}"
        );
        assert!(text.contains(SYSCTL_FILE) && text.contains(MODULES_FILE), "{text}");
        assert_eq!(machine.0.read(DEFAULT).unwrap(), "other");
        assert!(!machine.0.at("/etc").exists() && !machine.0.at("/run").exists());
    }

    #[test]
    fn what_is_applied_is_undone_and_what_others_have_changed_since_stays() {
        let machine = Machine::new();
        machine.set(DEFAULT, "other\n");
        system(&wanted(), &machine.0, false).unwrap();
        assert_eq!(machine.0.read(DEFAULT).unwrap(), here().as_str());
        let text = fs::read_to_string(machine.0.at(SYSCTL_FILE)).unwrap();
        assert!(text.contains("net.ipv4.tcp_rmem = 4096 131072 33554432\n"), "{text}");
        machine.set("net.ipv4.tcp_rmem", "1 2 3\n");
        // A second time changes nothing about what was there first.
        system(&wanted(), &machine.0, false).unwrap();
        machine.set("net.ipv4.tcp_rmem", "1 2 3\n");
        let lines = undo(&machine.0, false).unwrap().join("\n");
        assert_eq!(machine.0.read(DEFAULT).unwrap(), "other", "{lines}");
        assert_eq!(machine.0.read("net.ipv4.tcp_wmem").unwrap(), "4096 16384 4194304");
        assert_eq!(machine.0.read("net.ipv4.tcp_rmem").unwrap(), "1 2 3", "{lines}");
        assert!(!machine.0.at(SYSCTL_FILE).exists() && !machine.0.at(MODULES_FILE).exists());
        assert_eq!(undo(&machine.0, true).unwrap(), ["there is nothing to undo"]);
    }

    #[test]
    fn what_is_to_last_is_what_all_calls_have_asked_for() {
        let machine = Machine::new();
        let first = System { buffer_bytes: None, ..wanted() };
        system(&first, &machine.0, false).unwrap();
        let second = System { algorithm: None, ..wanted() };
        system(&second, &machine.0, false).unwrap();
        let third = System { buffer_bytes: Some(64 << 20), ..second };
        system(&third, &machine.0, false).unwrap();
        let text = fs::read_to_string(machine.0.at(SYSCTL_FILE)).unwrap();
        let settings = format!(
            "{DEFAULT} = {}\nnet.ipv4.tcp_rmem = 4096 131072 67108864\n\
             net.ipv4.tcp_wmem = 4096 16384 67108864\n",
            here()
        );
        assert_eq!(text, format!("{MARK}\n{settings}"));
        let module = fs::read_to_string(machine.0.at(MODULES_FILE)).unwrap();
        assert_eq!(module, format!("{MARK}\ntcp_{}\n", here()));
    }

    #[test]
    fn a_prefix_of_which_parts_go_elsewhere_is_refused_and_they_are_named() {
        let made = std::thread::spawn(|| {
            if let Err(error) = hawser_sys::namespace::unshare_network() {
                eprintln!("SKIPPED: no network namespace: {error}");
                return;
            }
            let own = hawser_sys::namespace::own_network().unwrap();
            let mut routing = hawser_sys::rtnetlink::Routing::open().unwrap();
            routing.add_pair(c"wan", c"lan", &own).unwrap();
            let main = hawser_sys::rtnetlink::MAIN_TABLE;
            for (name, to, bits) in [("wan", [0; 4], 0), ("lan", [10, 78, 0, 0], 24)] {
                let interface = routing.interface(name).unwrap();
                routing.set_up(interface).unwrap();
                routing.add_route((to.into(), bits), interface, None, main).unwrap();
            }
            let apply = |to: &str| {
                let to = Prefix::parse(to).unwrap();
                let wanted =
                    Destination { to, algorithm: here(), initial_window: None, persist: false };
                destination(wanted, &Root::default(), true)
            };
            // The first address of the one is in the part, that of the other is not.
            for to in ["10.78.0.0/16", "10.0.0.0/8"] {
                let error = apply(to).unwrap_err();
                assert_eq!(error.exit_code(), 68);
                assert!(error.to_string().contains("10.78.0.0/24 dev lan"), "{error}");
            }
            for (to, device) in
                [("10.78.0.0/24", "lan"), ("10.78.0.9", "lan"), ("10.79.0.0/16", "wan")]
            {
                let lines = apply(to).unwrap();
                assert!(lines[0].contains(&format!("dev {device} ")), "{lines:?}");
            }
        });
        made.join().unwrap();
    }

    /// In a network namespace the kernel refused the algorithm; `undo` then said that somebody else had
    /// set what was never changed.
    #[test]
    fn a_setting_that_is_refused_leaves_nothing_to_undo() {
        let machine = Machine::new();
        machine.set(DEFAULT, "other\n");
        // The second is a directory.
        let settings = [
            Setting { name: DEFAULT, set: "cubic", before: "other".to_owned() },
            Setting { name: "net.ipv4", set: "1 2 3", before: String::new() },
        ];
        assert!(write_all(&settings, &machine.0).is_err());
        assert_eq!(machine.0.read(DEFAULT).unwrap(), "other");
        let change =
            Changed { name: DEFAULT.to_owned(), before: "other".into(), set: "cubic".into() };
        machine.0.save(&Record::default().with(change)).unwrap();
        let lines = undo(&machine.0, false).unwrap();
        assert_eq!(lines, ["there is nothing to undo"]);
        assert!(!machine.0.record().unwrap().exists());
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        let machine = Machine::new();
        let path = machine.0.at(SYSCTL_FILE);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "net.ipv4.tcp_congestion_control = reno\n").unwrap();
        let error = system(&wanted(), &machine.0, false).unwrap_err();
        assert_eq!(error.exit_code(), 73, "{error}");
        undo(&machine.0, false).unwrap();
        assert!(path.exists());
    }

    #[test]
    fn an_algorithm_that_is_not_there_changes_nothing() {
        let machine = Machine::new();
        let wanted = System { algorithm: Algorithm::new("nosuchthing"), ..System::default() };
        let error = system(&wanted, &machine.0, false).unwrap_err();
        assert!(matches!(error, ApplyError::Algorithm(_)), "{error}");
        assert_eq!(machine.0.read(DEFAULT).unwrap(), "cubic");
        let to = Prefix::parse("127.0.0.1").unwrap();
        let wanted = Destination { to, algorithm: here(), initial_window: None, persist: false };
        let error = destination(wanted, &Root::default(), true).unwrap_err();
        assert_eq!(error.exit_code(), 68, "{error}");
    }
}
