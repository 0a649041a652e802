//! A setting as the others see it: where it stands, how it is written, and what a change needs.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A table of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Where clients connect.
    Listen,
    /// Certificates, both ways.
    Tls,
    /// `[[database]]`: what clients ask for, and which servers have it.
    Database,
    /// `[[user]]`: passwords and limits of single users.
    User,
    /// `[[rule]]`: which statements of whom are refused, bounded or logged.
    Rule,
    /// `[link.NAME]`: ends of links.
    Link,
    /// How clients log in.
    Auth,
    /// Sizes, limits and times, for all databases.
    Pool,
    /// Metrics, health and control.
    Admin,
    /// Local connections past TCP.
    Bypass,
    /// What is logged.
    Log,
    /// The process itself.
    Process,
}

impl Table {
    /// Every table, in the order of the reference.
    pub const ALL: [Self; 12] = [
        Self::Listen,
        Self::Database,
        Self::User,
        Self::Rule,
        Self::Link,
        Self::Auth,
        Self::Tls,
        Self::Pool,
        Self::Admin,
        Self::Bypass,
        Self::Log,
        Self::Process,
    ];

    /// Its name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Listen => "listen",
            Self::Tls => "tls",
            Self::Database => "database",
            Self::User => "user",
            Self::Rule => "rule",
            Self::Link => "link",
            Self::Auth => "auth",
            Self::Pool => "pool",
            Self::Admin => "admin",
            Self::Bypass => "bypass",
            Self::Log => "log",
            Self::Process => "process",
        }
    }

    /// Whether there may be several: `[[database]]`, `[link.NAME]`.
    #[must_use]
    pub fn is_array(self) -> bool {
        matches!(self, Self::Database | Self::User | Self::Rule | Self::Link)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::Link {
            f.write_str("[link.NAME]")
        } else if self.is_array() {
            write!(f, "[[{}]]", self.name())
        } else {
            write!(f, "[{}]", self.name())
        }
    }
}

/// What a bare number of a setting means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count, or no number at all.
    None,
    /// Seconds, as most of PgBouncer's times.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Bytes.
    Bytes,
}

/// How a value is written in TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `true` or `false`.
    Boolean,
    /// An integer.
    Number,
    /// A string with a unit, or a number.
    Duration,
    /// An array of strings, or one string with commas.
    List,
    /// A string.
    String,
}

/// What a change of a setting needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// SIGHUP, `RELOAD`, or `SET`.
    Reload,
    /// A new process.
    Restart,
}

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// The table that it stands in.
    pub table: Table,
    /// Its name there.
    pub name: &'static str,
    /// Its type in words.
    pub kind: &'static str,
    /// How it is written.
    pub form: Form,
    /// Its default, as one would write it, or in words ("not set").
    pub default: &'static str,
    /// Whether `default` is words and not a value.
    pub default_in_words: bool,
    /// What a bare number means.
    pub unit: Unit,
    /// Numbers that are allowed.
    pub range: RangeInclusive<u64>,
    /// Whether `range` says something.
    pub has_range: bool,
    /// The shortest duration that is allowed.
    pub min_duration: Duration,
    /// PgBouncer's name of the same setting. It is accepted in the same table, and is the name that
    /// SHOW CONFIG and SET use.
    pub pgbouncer: Option<&'static str>,
    /// What a change needs.
    pub change: Change,
    /// For the reference; the first line is a summary.
    pub doc: &'static str,
    /// A value in TOML that is not the default.
    pub example: &'static str,
}

impl Setting {
    /// The name that SHOW CONFIG and SET use: PgBouncer's where it has one.
    #[must_use]
    pub fn shown_name(&self) -> &'static str {
        self.pgbouncer.unwrap_or(self.name)
    }

    /// The last line of the setting in docs/configuration.md.
    #[must_use]
    pub fn reference(&self) -> String {
        let mut line = self.kind.to_owned();
        if self.has_range {
            let max = *self.range.end();
            line += &if max >= u64::from(u32::MAX) {
                format!(", {} or more", self.range.start())
            } else {
                format!(", {} to {max}", self.range.start())
            };
        }
        if !self.min_duration.is_zero() {
            line += &format!(", at least {}s", self.min_duration.as_secs_f64());
        }
        match self.unit {
            Unit::None => {}
            Unit::Seconds => line += "; a bare number is seconds",
            Unit::Milliseconds => line += "; a bare number is milliseconds",
            Unit::Bytes => line += "; a bare number is bytes",
        }
        line += match self.change {
            Change::Reload => ". Changes on reload",
            Change::Restart => ". Changes on restart",
        };
        if let Some(name) = self.pgbouncer {
            line += &if name == self.name {
                ". As in PgBouncer".to_owned()
            } else {
                format!(". PgBouncer: `{name}`")
            };
        }
        let default = match self.default {
            "" => "empty".to_owned(),
            words if self.default_in_words => words.to_owned(),
            value => format!("`{value}`"),
        };
        let mut line = format!("{line}. Default: {default}");
        line[..1].make_ascii_uppercase();
        line
    }
}
