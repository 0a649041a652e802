//! Settings ("GUCs"): names, canonical values, and what a session has set.
//!
//! # Model
//! What a session has set is one [`Settings`] for the transaction's present state. The session
//! keeps copies of it from the transaction's and each savepoint's start and puts one back when
//! that part fails. This gives the same results as PostgreSQL's stack of old values (`guc.c`,
//! `AtEOXact_GUC`), where RELEASE merges a level into its parent: "SET overrides, LOCAL migrates
//! down". A name that was ever mentioned stays known to the connection, whatever is rolled back.

use std::collections::{BTreeMap, BTreeSet};

use super::error::PgError;

/// How a value is read and written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Encoding,
    DateStyle,
    IntervalStyle,
    TimeZone,
    Bool,
    SearchPath,
    Milliseconds,
    Kilobytes,
    Integer,
    /// Checked against the cluster's roles by its setter.
    Role,
    /// Cannot be set by a session.
    Internal,
}

#[derive(Debug)]
struct Definition {
    name: &'static str,
    boot: &'static str,
    reported: bool,
    kind: Kind,
}

const fn define(name: &'static str, boot: &'static str, reported: bool, kind: Kind) -> Definition {
    Definition { name, boot, reported, kind }
}

/// In the order in which PostgreSQL 14 and 15 report them: by name, case ignored.
const DEFINITIONS: [Definition; 22] = [
    define("application_name", "", true, Kind::Text),
    define("client_encoding", "UTF8", true, Kind::Encoding),
    define("DateStyle", "ISO, MDY", true, Kind::DateStyle),
    define("default_transaction_read_only", "off", true, Kind::Bool),
    define("enable_seqscan", "on", false, Kind::Bool),
    define("extra_float_digits", "1", false, Kind::Integer),
    define("idle_session_timeout", "0", false, Kind::Milliseconds),
    define("in_hot_standby", "off", true, Kind::Internal),
    define("integer_datetimes", "on", true, Kind::Internal),
    define("IntervalStyle", "postgres", true, Kind::IntervalStyle),
    define("is_superuser", "off", true, Kind::Internal),
    define("lock_timeout", "0", false, Kind::Milliseconds),
    define("role", "none", false, Kind::Role),
    define("search_path", "\"$user\", public", false, Kind::SearchPath),
    define("server_encoding", "UTF8", true, Kind::Internal),
    define("server_version", "15.18", true, Kind::Internal),
    define("session_authorization", "", true, Kind::Role),
    define("standard_conforming_strings", "on", true, Kind::Bool),
    define("statement_timeout", "0", false, Kind::Milliseconds),
    define("TimeZone", "UTC", true, Kind::TimeZone),
    define("transaction_read_only", "off", false, Kind::Internal),
    define("work_mem", "4MB", false, Kind::Kilobytes),
];

/// Time zones that the model knows, with their seconds east of Greenwich in June.
const ZONES: [(&str, i64); 6] = [
    ("America/New_York", -4 * 3600),
    ("Asia/Kolkata", 5 * 3600 + 1800),
    ("Asia/Tokyo", 9 * 3600),
    ("Etc/GMT+5", -5 * 3600),
    ("Europe/Berlin", 2 * 3600),
    ("UTC", 0),
];

fn definition(name: &str) -> Option<&'static Definition> {
    DEFINITIONS.iter().find(|known| known.name.eq_ignore_ascii_case(name))
}

/// Names that the server reports by ParameterStatus, in the order in which it does.
pub fn reported() -> impl Iterator<Item = &'static str> {
    DEFINITIONS.iter().filter(|known| known.reported).map(|known| known.name)
}

/// Seconds east of Greenwich, in June.
#[must_use]
pub fn zone_seconds(zone: &str) -> i64 {
    ZONES.iter().find(|(name, _)| *name == zone).map_or(0, |(_, seconds)| *seconds)
}

/// The server's spelling of a name: `TimeZone` for `timezone`; custom names as they are.
#[must_use]
pub fn spelling(name: &str) -> &str {
    definition(name).map_or(name, |known| known.name)
}

/// The name as the map's key.
#[must_use]
pub fn key(name: &str) -> String {
    name.to_lowercase()
}

/// Whether RESET ALL leaves it alone.
fn spared_by_reset_all(key: &str) -> bool {
    matches!(key, "role" | "session_authorization")
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    session: String,
    local: Option<String>,
    /// It is the session's own, and not its start value.
    own: bool,
}

/// What a session has set, within its transaction so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<String, Value>,
}

/// What holds for a whole connection, transactions apart.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    /// What RESET restores: boot values, overlaid by the startup packet.
    start: BTreeMap<String, String>,
    /// Custom names that were mentioned; they stay, as ''.
    custom: BTreeSet<String>,
    /// Those of them that the session began with.
    began_with: BTreeSet<String>,
}

impl Defaults {
    /// Sets what RESET restores: startup parameters, the login role.
    pub fn start_with(&mut self, name: &str, value: String) {
        let key = key(name);
        if definition(&key).is_none() {
            self.custom.insert(key.clone());
            self.began_with.insert(key.clone());
        }
        self.start.insert(key, value);
    }

    /// What a role's session begins with.
    pub fn begin_as(&mut self, user: &str) {
        self.start_with("session_authorization", user.to_owned());
        for (name, value) in super::catalog::role_settings(user) {
            self.start_with(name, (*value).to_owned());
        }
    }

    /// The session is this user's now: of the one before nothing is left.
    pub fn hand_over(&mut self, user: &str) {
        self.start.clear();
        self.begin_as(user);
    }

    /// The value that RESET restores; `None` for an unknown name.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        if let Some(value) = self.start.get(key) {
            return Some(value);
        }
        match definition(key) {
            Some(known) => Some(known.boot),
            None => self.custom.contains(key).then_some(""),
        }
    }

    /// Custom names that were not known when the session began.
    pub fn names_made(&self) -> impl Iterator<Item = &str> {
        self.custom.difference(&self.began_with).map(String::as_str)
    }

    /// Makes a custom name known to the connection until its end.
    pub fn mention(&mut self, key: &str) {
        if definition(key).is_none() {
            self.custom.insert(key.to_owned());
        }
    }
}

impl Settings {
    /// The value in force; `None` for an unknown name.
    #[must_use]
    pub fn get<'a>(&'a self, defaults: &'a Defaults, name: &str) -> Option<&'a str> {
        let key = key(name);
        match self.values.get(&key) {
            Some(value) => Some(value.local.as_deref().unwrap_or(&value.session)),
            None => defaults.get(&key),
        }
    }

    /// Sets a canonical value, or with `None` the session's start value.
    pub fn set(&mut self, defaults: &Defaults, name: &str, value: Option<String>, local: bool) {
        let key = key(name);
        let start = defaults.get(&key).unwrap_or_default().to_owned();
        let own = value.is_some();
        let value = value.unwrap_or_else(|| start.clone());
        let new = || Value { session: start, local: None, own: false };
        let entry = self.values.entry(key).or_insert_with(new);
        if local {
            entry.local = Some(value);
        } else {
            *entry = Value { session: value, local: None, own };
        }
    }

    /// What has been set and not been reset, outside of a transaction: names as keys, and values.
    pub fn set_in_session(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = self.values.iter().filter(|(_, value)| value.own);
        own.map(|(key, value)| (key.as_str(), value.session.as_str()))
    }

    /// Whether this has been set and not been reset.
    pub fn is_set_in_session(&self, name: &str) -> bool {
        self.values.get(&key(name)).is_some_and(|value| value.own)
    }

    /// What is SET stays, but for roles; all else is as the session begins.
    pub fn hand_over(&mut self) {
        self.values.retain(|key, value| value.own && !spared_by_reset_all(key));
    }

    /// RESET ALL.
    pub fn reset_all(&mut self) {
        self.values.retain(|key, _| spared_by_reset_all(key));
    }

    /// The transaction has ended well: what was LOCAL ends.
    pub fn end_local(&mut self) {
        for value in self.values.values_mut() {
            value.local = None;
        }
    }
}

/// The canonical form of a value, as SHOW would print it.
///
/// # Errors
/// 42704 for an unknown name, 22023 for a value that is none, 55P02 for what no session may set;
/// each in the server's words.
pub fn canonical(name: &str, values: &[String]) -> Result<String, PgError> {
    let Some(known) = definition(name) else {
        if !name.contains('.') {
            let message = format!("unrecognized configuration parameter \"{name}\"");
            return Err(PgError::error("42704", message));
        }
        return Ok(values.join(", "));
    };
    if known.kind == Kind::SearchPath {
        return Ok(path_text(values));
    }
    if values.len() > 1 && known.kind != Kind::DateStyle {
        return Err(PgError::error("22023", format!("SET {name} takes only one argument")));
    }
    let value = values.join(", ");
    // Check hooks complain by the setting's own name, the generic readers by the name as given.
    let invalid = |name: &str| {
        PgError::error("22023", format!("invalid value for parameter \"{name}\": \"{value}\""))
    };
    match known.kind {
        Kind::Text | Kind::Role | Kind::SearchPath => Ok(value),
        Kind::Encoding => {
            let plain = value.to_lowercase().replace(['-', '_'], "");
            match plain.as_str() {
                "utf8" | "unicode" => Ok("UTF8".to_owned()),
                "latin1" | "iso88591" => Ok("LATIN1".to_owned()),
                "sqlascii" => Ok("SQL_ASCII".to_owned()),
                _ => Err(invalid(known.name)),
            }
        }
        Kind::DateStyle => date_style(&value).ok_or_else(|| invalid(known.name)),
        Kind::IntervalStyle => {
            let style = value.to_lowercase();
            let styles = ["postgres", "postgres_verbose", "sql_standard", "iso_8601"];
            if styles.contains(&style.as_str()) { Ok(style) } else { Err(invalid(name)) }
        }
        Kind::TimeZone => ZONES
            .iter()
            .find(|(zone, _)| zone.eq_ignore_ascii_case(&value))
            .map(|(zone, _)| (*zone).to_owned())
            .ok_or_else(|| invalid(known.name)),
        Kind::Bool => match value.to_lowercase().as_str() {
            "on" | "true" | "yes" | "1" => Ok("on".to_owned()),
            "off" | "false" | "no" | "0" => Ok("off".to_owned()),
            _ => Err(PgError::error(
                "22023",
                format!("parameter \"{name}\" requires a Boolean value"),
            )),
        },
        Kind::Integer => {
            value.parse::<i32>().map(|number| number.to_string()).map_err(|_| invalid(name))
        }
        Kind::Milliseconds => {
            let units = [("min", 60_000), ("ms", 1), ("s", 1000), ("h", 3_600_000), ("", 1)];
            let shown = [("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)];
            quantity(&value, &units, &shown).ok_or_else(|| invalid(name))
        }
        Kind::Kilobytes => {
            let units = [("kB", 1), ("MB", 1024), ("GB", 1024 * 1024), ("", 1)];
            let shown = [("GB", 1024 * 1024), ("MB", 1024), ("kB", 1)];
            quantity(&value, &units, &shown).ok_or_else(|| invalid(name))
        }
        Kind::Internal => {
            Err(PgError::error("55P02", format!("parameter \"{name}\" cannot be changed")))
        }
    }
}

/// A number with a unit, printed in the largest unit that leaves it whole.
fn quantity(value: &str, units: &[(&str, u64)], shown: &[(&str, u64)]) -> Option<String> {
    let (digits, factor) = units.iter().find_map(|(unit, factor)| {
        let digits = value.strip_suffix(unit)?.trim_end();
        digits.parse::<u64>().ok().map(|digits| (digits, factor))
    })?;
    let total = digits * factor;
    if total == 0 {
        return Some("0".to_owned());
    }
    let (unit, factor) = shown.iter().find(|(_, factor)| total.is_multiple_of(*factor))?;
    Some(format!("{}{unit}", total / factor))
}

fn date_style(value: &str) -> Option<String> {
    let (mut style, mut order) = ("ISO", "MDY");
    for word in value.split(',').map(str::trim) {
        match word.to_uppercase().as_str() {
            "ISO" => style = "ISO",
            "SQL" => style = "SQL",
            "GERMAN" => (style, order) = ("German", "DMY"),
            "POSTGRES" => style = "Postgres",
            "MDY" | "US" => order = "MDY",
            "DMY" | "EUROPEAN" => order = "DMY",
            "YMD" => order = "YMD",
            _ => return None,
        }
    }
    Some(format!("{style}, {order}"))
}

/// Schema names as the server writes a list of identifiers.
fn path_text(names: &[String]) -> String {
    let plain = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let quoted: Vec<String> =
        names
            .iter()
            .map(|name| {
                if plain(name) {
                    name.clone()
                } else {
                    format!("\"{}\"", name.replace('"', "\"\""))
                }
            })
            .collect();
    quoted.join(", ")
}

/// The schema names in a value of search_path.
#[must_use]
pub fn path_names(value: &str) -> Vec<String> {
    value
        .split(',')
        .map(|part| part.trim().trim_matches('"').to_owned())
        .filter(|part| !part.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(settings: &mut Settings, defaults: &Defaults, value: &str, local: bool) {
        settings.set(defaults, "my.x", Some(value.to_owned()), local);
    }

    #[test]
    fn local_ends_with_the_transaction_and_set_overrides_it() {
        let (mut defaults, mut settings) = (Defaults::default(), Settings::default());
        defaults.mention("my.x");
        set(&mut settings, &defaults, "session", false);
        set(&mut settings, &defaults, "local", true);
        assert_eq!(settings.get(&defaults, "my.x"), Some("local"));
        settings.end_local();
        assert_eq!(settings.get(&defaults, "my.x"), Some("session"));
        set(&mut settings, &defaults, "local", true);
        set(&mut settings, &defaults, "later", false);
        assert_eq!(settings.get(&defaults, "my.x"), Some("later"));
    }

    #[test]
    fn a_custom_name_is_empty_and_not_unknown_once_mentioned() {
        let (mut defaults, mut settings) = (Defaults::default(), Settings::default());
        assert_eq!(settings.get(&defaults, "my.x"), None);
        defaults.mention("my.x");
        settings.set(&defaults, "my.x", None, false);
        settings.reset_all();
        assert_eq!(settings.get(&defaults, "my.x"), Some(""));
    }

    #[test]
    fn values_are_shown_as_the_server_shows_them() {
        let shown = |name, value: &str| canonical(name, &[value.to_owned()]);
        assert_eq!(shown("datestyle", "dmy").as_deref(), Ok("ISO, DMY"));
        assert_eq!(shown("statement_timeout", "90000").as_deref(), Ok("90s"));
        assert_eq!(shown("work_mem", "8192").as_deref(), Ok("8MB"));
        assert_eq!(shown("search_path", "a, b").as_deref(), Ok("\"a, b\""));
        assert_eq!(shown("timezone", "asia/tokyo").as_deref(), Ok("Asia/Tokyo"));
    }
}
