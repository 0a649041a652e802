//! `hawser cc apply` and `undo`: an algorithm for this machine, or for one destination.
//!
//! # Model
//! ```text
//!   --system    net.ipv4.tcp_congestion_control, tcp_rmem and tcp_wmem; with --persist also a file
//!               in /etc/sysctl.d and one in /etc/modules-load.d
//!   --to        a copy of the route that packets take already, with RTAX_CC_ALGO and RTAX_INITCWND;
//!               with --persist also a systemd unit that does the same at each start
//! ```
//! What was set is kept in /run until the machine stops, with what was there before.
//!
//! # Invariants
//! * the record is on disk before anything is changed
//! * `undo` puts back what is still as it was set, removes files that bear our mark and routes that
//!   bear our protocol number, and nothing else
//! * with `dry_run` nothing is written
//! * files in /etc are the machine's: only in its own network namespace, that of process 1, are they written
//!   or removed
//!
//! # Why not
//! Changing `default` routes: every connection would follow, which is what --system is for.

use std::fs;
use std::io;
use std::path::PathBuf;

use hawser_sys::congestion::route::{NoCopy, Prefix, Route, Routes, Way, interface_name};
use hawser_sys::congestion::{SetError, probe};
use hawser_sys::interfaces::namespace_cookie;
use hawser_sys::netlink::NetlinkError;
use hawser_sys::unit::{self, Unit};
use serde::{Deserialize, Serialize};

use crate::tuner::algorithm::Algorithm;

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
const EXISTING: &str = "connections that exist keep their algorithm: this is for those that begin from now on. The route is a \
     copy of the way there: when that changes, apply it again";
/// Routes that an error names.
const PARTS_NAMED_MAX: usize = 5;
/// `ESRCH`, `EEXIST`, `ENETUNREACH`.
const ESRCH: i32 = 3;
const EEXIST: i32 = 17;
const ENETUNREACH: i32 = 101;

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The kernel has not got it, or not for us.
    #[error("{0}")]
    Algorithm(#[source] SetError),
    /// A network namespace may not have it as its default.
    #[error(
        "{0} is not in net.ipv4.{ALLOWED}: a network namespace other than the first can \
             have no other algorithm as its default. Add it there, in the first one; or give it to \
             destinations (`hawser cc apply --to`)"
    )]
    NotAllowed(Algorithm),
    /// Packets to there go nowhere.
    #[error("there is no route to {0}")]
    NoRoute(Prefix),
    /// There is no way to there that could be copied.
    #[error("{}", no_way(.0, .1))]
    NoWay(Prefix, NoCopy),
    /// Parts of it go elsewhere, by these routes.
    #[error(
        "parts of {to} have a way of their own ({}), and one route to all of it could change where \
         packets go: give `--to` the prefixes that go one way",
        .1.join("; "),
        to = .0
    )]
    Parts(Prefix, Vec<String>),
    /// There is a route to this very prefix that Hawser has not made.
    #[error(
        "there is a route to {0} that is not ours; `ip route change {0} ... congctl NAME` \
             changes it, or a part of the prefix can have one"
    )]
    Taken(Prefix),
    /// The kernel refuses.
    #[error(
        "{step}: {source}{}",
        if .source.is_denied() { ". It needs root (CAP_NET_ADMIN)" } else { "" }
    )]
    Netlink {
        /// What was to be done.
        step: String,
        /// Why not.
        source: NetlinkError,
    },
    /// A file or setting cannot be read or written.
    #[error(
        "{path}: {source}{}",
        if .source.kind() == io::ErrorKind::PermissionDenied { ". It needs root" } else { "" }
    )]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is there that is not ours.
    #[error("{0} is there and not ours: it is left alone")]
    NotOurs(PathBuf),
    /// What is to last is the machine's, and this is another network namespace.
    #[error("{}", unit::PERSIST_ELSEWHERE)]
    NotMachines,
}

fn no_way(to: &Prefix, why: &NoCopy) -> String {
    match why {
        NoCopy::Nowhere => {
            format!("{to} is on this machine, or packets to it are refused: there is no path")
        }
        NoCopy::Several => format!(
            "{to} is reached by several ways at once: one route beside them would change where \
             packets go. `congctl NAME` in the routes that there are does it"
        ),
        NoCopy::Tunnel => format!(
            "the route to {to} puts packets into a tunnel (`encap`), which is not copied: a route \
             beside it would go past the tunnel. `congctl NAME` in that route does it"
        ),
    }
}

impl ApplyError {
    /// As sysexits.h has them.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Algorithm(SetError::Unknown(_)) => 78,
            Self::Algorithm(_) | Self::NotAllowed(_) => 77,
            Self::NoRoute(_) | Self::NoWay(..) | Self::Parts(..) => 68,
            Self::Taken(_) | Self::NotOurs(_) => 73,
            Self::Netlink { source, .. } if source.is_denied() => 77,
            Self::File { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => 77,
            Self::Netlink { .. } | Self::File { .. } | Self::NotMachines => 1,
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
    /// With a change. The value to restore is the last one that Hawser did not set.
    fn with(mut self, change: Changed) -> Self {
        match self.settings.iter_mut().find(|one| one.name == change.name) {
            Some(earlier) if earlier.set == change.before => earlier.set = change.set,
            Some(earlier) => *earlier = change,
            None => self.settings.push(change),
        }
        self
    }
}

/// Where this is done: the machine, or in a test a directory.
#[derive(Clone, Debug)]
pub struct Root {
    directory: PathBuf,
    files: Files,
}

/// Of which network namespace the files in /etc are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Files {
    /// Of this one.
    Own,
    /// Of another: the machine's.
    Machines,
}

impl Default for Root {
    fn default() -> Self {
        let files = if unit::is_machines_network() { Files::Own } else { Files::Machines };
        Self { directory: "/".into(), files }
    }
}

impl Root {
    fn at(&self, path: &str) -> PathBuf {
        self.directory.join(path.trim_start_matches('/'))
    }

    /// What is to last may be written.
    fn may_persist(&self) -> Result<(), ApplyError> {
        match self.files {
            Files::Own => Ok(()),
            Files::Machines => Err(ApplyError::NotMachines),
        }
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
    if wanted.persist {
        root.may_persist()?;
    }
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
    if persist {
        root.may_persist()?;
    }
    probe(algorithm.as_str()).map_err(ApplyError::Algorithm)?;
    let mut routes = Routes::open().map_err(netlink("asking for routes"))?;
    let mut way = one_way(&mut routes, to)?;
    way.metrics.algorithm = Some(algorithm.to_string());
    way.metrics.initial_window = initial_window.or(way.metrics.initial_window);
    let route = Route { to, way };
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
        let path = unit.path(&root.directory);
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
                let path = unit.path(&root.directory);
                unit.enable(&root.directory, &program).map_err(file(path))?;
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
        Ok(found) => found.map_err(|why| ApplyError::NoWay(to, why))?,
        Err(error) if error.errno() == Some(ENETUNREACH) => return Err(ApplyError::NoRoute(to)),
        Err(error) => return Err(netlink(step)(error)),
    };
    // The way of the first address is that of all only if its route is to all of it.
    let is_part = |prefix: &Prefix| prefix.bits() > to.bits() && to.contains(prefix.address());
    let mut parts: Vec<(Prefix, Result<Way, NoCopy>)> = Vec::new();
    parts.extend(found.of.filter(is_part).map(|prefix| (prefix, Ok(found.way.clone()))));
    for other in routes.others().map_err(netlink(step))? {
        let goes_elsewhere = other.way.as_ref() != Ok(&found.way);
        if is_part(&other.to) && goes_elsewhere && other.way != Err(NoCopy::Nowhere) {
            parts.push((other.to, other.way));
        }
    }
    if parts.is_empty() {
        return Ok(found.way);
    }
    let said = parts.iter().take(PARTS_NAMED_MAX).map(|(to, way)| match way {
        Ok(way) => way_said(*to, way),
        Err(NoCopy::Tunnel) => format!("{to}, into a tunnel"),
        Err(NoCopy::Several | NoCopy::Nowhere) => format!("{to}, by several ways"),
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
    format!("route {}", way_said(route.to, &route.way))
}

fn way_said(to: Prefix, way: &Way) -> String {
    let via = way.via.map(|via| format!(" via {via}")).unwrap_or_default();
    let name = interface_name(way.interface).unwrap_or_else(|_| way.interface.to_string());
    format!("{to}{via} dev {name}{way}")
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
    lines.extend(undo_files(root, dry_run)?);
    lines.extend(undo_routes(dry_run)?);
    if lines.is_empty() {
        lines.push("there is nothing to undo".to_owned());
    }
    Ok(lines)
}

/// Removes what was to last. In another network namespace than the machine's it is not this one's to remove.
fn undo_files(root: &Root, dry_run: bool) -> Result<Vec<String>, ApplyError> {
    let mut ours = Vec::new();
    for path in [SYSCTL_FILE, MODULES_FILE] {
        if root.at(path).exists() && root.is_ours(path)? {
            ours.push(root.at(path));
        }
    }
    let units = unit::ours(&root.directory, UNIT_PREFIX, MARK).map_err(file("units"))?;
    ours.extend(units);
    let mut lines = Vec::new();
    for path in ours {
        let shown = path.display();
        match (root.files, dry_run) {
            (Files::Machines, _) => lines.push(format!("{shown} {}", unit::STAYS)),
            (Files::Own, true) => lines.push(format!("to be removed: {shown}")),
            (Files::Own, false) => {
                lines.push(format!("removed: {shown}"));
                // Of a file that is no unit there is no link.
                unit::remove(&root.directory, &path).map_err(file(path))?;
            }
        }
    }
    Ok(lines)
}

fn undo_routes(dry_run: bool) -> Result<Vec<String>, ApplyError> {
    let mut routes = Routes::open().map_err(netlink("asking for routes"))?;
    let ours = routes.ours().map_err(netlink("reading routes"))?;
    let mut lines = Vec::new();
    let (mut failed, done) = (None, if dry_run { "to be removed" } else { "removed" });
    for route in &ours {
        match if dry_run { Ok(()) } else { routes.remove(route) } {
            Ok(()) => lines.push(format!("{done}: {}", said(route))),
            // It has gone meanwhile.
            Err(error) if error.errno() == Some(ESRCH) => {}
            // The others are removed all the same.
            Err(error) => {
                failed.get_or_insert((route.to, error));
            }
        }
    }
    match failed {
        None => Ok(lines),
        Some((to, error)) => Err(netlink(format!("removing the route to {to}"))(error)),
    }
}

#[cfg(test)]
mod tests;
