//! How the value of one setting is read and shown.
//!
//! # Model
//! TOML value, or text of `SET` and of a default -> [`Raw`] -> a valid type.
//!
//! # Invariants
//! A value that exists is within its setting's range; what `show` prints, `SET` reads.
//!
//! # Why not
//! Serde's derive: it stops at the first error, and its messages know neither the
//! unit nor the range of a setting.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hawser_pooler::parts::functions::variables::FunctionNames;

use super::error::{Refusals, Rejected};
use super::setting::{Form, Setting, Unit};

/// No duration in a configuration is longer: keeps every sum of times far from overflow.
pub const DURATION_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// A value as it was written.
#[derive(Clone, Debug)]
pub(super) enum Raw<'a> {
    /// From `SET` or a default: the setting decides its type.
    Text(&'a str),
    /// A TOML string.
    String(&'a str),
    /// A TOML integer, with the base in which it was written.
    Integer(i64, u32),
    /// A TOML float.
    Float(f64),
    /// A TOML boolean.
    Boolean(bool),
    /// A TOML array; each item with its bytes of the file.
    List(Vec<(Raw<'a>, Range<usize>)>),
    /// A TOML value that no setting takes: its type's name.
    Other(&'static str),
}

impl Raw<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Raw::Text(_) | Raw::String(_) => "a string",
            Raw::Integer(..) => "an integer",
            Raw::Float(_) => "a float",
            Raw::Boolean(_) => "a boolean",
            Raw::List(_) => "an array",
            Raw::Other(kind) => kind,
        }
    }

    /// Refused for its type alone; the value is not repeated, because it may be a password.
    pub(super) fn instead_of<T: SettingType>(&self) -> Rejected {
        Rejected::new(format!("expected {}, found {}", T::KIND, self.kind()))
    }
}

/// What a value is read for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    /// The setting: unit and range are its.
    pub setting: &'a Setting,
    /// The directory that relative paths start from.
    pub base: &'a Path,
}

/// A type that a setting can have.
pub(super) trait SettingType: Sized {
    /// For messages and the reference: "a whole number".
    const KIND: &'static str;
    /// Whether `""` means "not set" for `Option<Self>`, as it does in PgBouncer.
    const EMPTY_IS_UNSET: bool = false;
    /// Whether the range of the setting is part of its description.
    const HAS_RANGE: bool = false;
    /// Whether the default is said in words ("not set") and not as a value.
    const DEFAULT_IN_WORDS: bool = false;
    /// How it is written in TOML.
    const FORM: Form = Form::String;

    /// Reads a value.
    ///
    /// # Errors
    /// The value has another type or lies outside of what the setting allows.
    fn parse(raw: &Raw<'_>, context: Context<'_>) -> Result<Self, Rejected>;

    /// As `SHOW CONFIG` prints it: PgBouncer's format.
    fn show(&self, setting: &Setting) -> String;

    /// The value of a setting that is not set.
    fn default_of(setting: &Setting) -> Self {
        let context = Context { setting, base: Path::new("") };
        match Self::parse(&Raw::Text(setting.default), context) {
            Ok(value) => value,
            // Every default is parsed by a test.
            Err(error) => panic!("default of {}: {error}", setting.name),
        }
    }
}

impl<T: SettingType> SettingType for Option<T> {
    const KIND: &'static str = T::KIND;
    const HAS_RANGE: bool = T::HAS_RANGE;
    const DEFAULT_IN_WORDS: bool = true;
    const FORM: Form = T::FORM;

    fn parse(raw: &Raw<'_>, context: Context<'_>) -> Result<Self, Rejected> {
        match raw {
            Raw::Text("") => Ok(None),
            Raw::String("") if T::EMPTY_IS_UNSET => Ok(None),
            _ => T::parse(raw, context).map(Some),
        }
    }

    fn show(&self, setting: &Setting) -> String {
        self.as_ref().map_or_else(String::new, |value| value.show(setting))
    }

    fn default_of(_: &Setting) -> Self {
        None
    }
}

impl SettingType for bool {
    const KIND: &'static str = "true or false";
    const FORM: Form = Form::Boolean;

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        match raw {
            Raw::Boolean(value) => Ok(*value),
            Raw::Text("1" | "true" | "on" | "yes") => Ok(true),
            Raw::Text("0" | "false" | "off" | "no") => Ok(false),
            _ => Err(raw.instead_of::<Self>()),
        }
    }

    fn show(&self, _: &Setting) -> String {
        u8::from(*self).to_string()
    }
}

fn whole_number<T: SettingType>(raw: &Raw<'_>, setting: &Setting) -> Result<u32, Rejected> {
    let value = match raw {
        Raw::Integer(value, _) => *value,
        Raw::Text(text) => text.trim().parse().map_err(|_| raw.instead_of::<T>())?,
        _ => return Err(raw.instead_of::<T>()),
    };
    match u32::try_from(value) {
        Ok(value) if setting.range.contains(&u64::from(value)) => Ok(value),
        _ => Err(Rejected::new(format!(
            "{value} is out of range: {} to {} is allowed",
            setting.range.start(),
            setting.range.end()
        ))),
    }
}

impl SettingType for u32 {
    const KIND: &'static str = "a whole number";
    const FORM: Form = Form::Number;
    const HAS_RANGE: bool = true;

    fn parse(raw: &Raw<'_>, context: Context<'_>) -> Result<Self, Rejected> {
        whole_number::<Self>(raw, context.setting)
    }

    fn show(&self, _: &Setting) -> String {
        self.to_string()
    }
}

/// A number of connections that may not be exceeded; 0 in the file is "no limit".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Limit(Option<NonZeroU32>);

impl Limit {
    /// No limit.
    pub const NONE: Self = Self(None);

    /// A limit of `count`; 0 is none.
    #[must_use]
    pub fn new(count: u32) -> Self {
        Self(NonZeroU32::new(count))
    }

    /// The limit, if there is one.
    #[must_use]
    pub fn get(self) -> Option<u32> {
        self.0.map(NonZeroU32::get)
    }

    /// Whether one more fits where there are `count`.
    #[must_use]
    pub fn admits_one_more(self, count: usize) -> bool {
        self.0.is_none_or(|limit| count < limit.get() as usize)
    }
}

impl SettingType for Limit {
    const KIND: &'static str = "a whole number (0: no limit)";
    const FORM: Form = Form::Number;

    fn parse(raw: &Raw<'_>, context: Context<'_>) -> Result<Self, Rejected> {
        whole_number::<Self>(raw, context.setting).map(Self::new)
    }

    fn show(&self, _: &Setting) -> String {
        self.get().unwrap_or(0).to_string()
    }
}

impl SettingType for Duration {
    const KIND: &'static str = "a duration such as \"30s\", \"1500ms\" or \"2min\"";
    const FORM: Form = Form::Duration;

    fn parse(raw: &Raw<'_>, context: Context<'_>) -> Result<Self, Rejected> {
        let unit = context.setting.unit;
        let value = match raw {
            Raw::Integer(value, _) => duration_of(*value as f64, unit),
            Raw::Float(value) => duration_of(*value, unit),
            Raw::String(text) | Raw::Text(text) => duration_from_text(text, unit)?,
            _ => return Err(raw.instead_of::<Self>()),
        };
        match value {
            Some(value) if context.setting.min_duration <= value => Ok(value),
            _ => Err(Rejected::new(format!(
                "duration out of range: {} to {} days is allowed",
                plain_duration(context.setting.min_duration),
                DURATION_MAX.as_secs() / (24 * 3600)
            ))),
        }
    }

    fn show(&self, setting: &Setting) -> String {
        let value = match setting.unit {
            Unit::Milliseconds => self.as_secs_f64() * 1e3,
            Unit::Seconds | Unit::Bytes | Unit::None => self.as_secs_f64(),
        };
        value.to_string()
    }
}

fn plain_duration(value: Duration) -> String {
    if value.is_zero() { "0".to_owned() } else { format!("{}s", value.as_secs_f64()) }
}

fn duration_of(value: f64, unit: Unit) -> Option<Duration> {
    let seconds = match unit {
        Unit::Milliseconds => value / 1e3,
        Unit::Seconds | Unit::Bytes | Unit::None => value,
    };
    in_microseconds(seconds)
}

/// Whole microseconds, so that what is shown reads back as the same value.
fn in_microseconds(seconds: f64) -> Option<Duration> {
    (0.0..=DURATION_MAX.as_secs_f64())
        .contains(&seconds)
        .then(|| Duration::from_micros((seconds * 1e6).round() as u64))
}

fn duration_from_text(text: &str, bare: Unit) -> Result<Option<Duration>, Rejected> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim());
    let malformed = || {
        Rejected::new(format!(
            "`{text}` is not a duration: write a number and one of us, ms, s, min, h, d, as in \"30s\""
        ))
    };
    let number: f64 = number.parse().map_err(|_| malformed())?;
    Ok(match unit {
        "" => duration_of(number, bare),
        "us" => in_microseconds(number / 1e6),
        "ms" => in_microseconds(number / 1e3),
        "s" => in_microseconds(number),
        "min" => in_microseconds(number * 60.0),
        "h" => in_microseconds(number * 3600.0),
        "d" => in_microseconds(number * 86400.0),
        "m" => return Err(Rejected::new(format!("`{text}`: write min for minutes"))),
        _ => return Err(malformed()),
    })
}

/// A duration of the console; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let value = duration_from_text(text, Unit::Seconds).map_err(|rejected| rejected.to_string())?;
    value.ok_or_else(|| format!("`{text}` is out of range"))
}

/// A duration of which 0 means "never".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timeout(Option<Duration>);

impl Timeout {
    /// Never.
    pub const NEVER: Self = Self(None);

    /// After `duration`; zero is never.
    #[must_use]
    pub fn after(duration: Duration) -> Self {
        Self((!duration.is_zero()).then_some(duration))
    }

    /// The time, unless it is never.
    #[must_use]
    pub fn get(self) -> Option<Duration> {
        self.0
    }
}

impl SettingType for Timeout {
    const KIND: &'static str = "a duration such as \"30s\" (0: off)";
    const FORM: Form = Form::Duration;

    fn parse(raw: &Raw<'_>, context: Context<'_>) -> Result<Self, Rejected> {
        Duration::parse(raw, context).map(Self::after)
    }

    fn show(&self, setting: &Setting) -> String {
        self.0.unwrap_or_default().show(setting)
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Size(u64);

impl Size {
    /// In bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// In bytes, as far as this machine can address them.
    #[must_use]
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// The size, unless it is 0, which turns many settings off.
    #[must_use]
    pub fn nonzero(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }
}

impl SettingType for Size {
    const KIND: &'static str = "a size such as \"64MiB\"";
    const FORM: Form = Form::Number;
    const HAS_RANGE: bool = true;

    fn parse(raw: &Raw<'_>, context: Context<'_>) -> Result<Self, Rejected> {
        let bytes = match raw {
            Raw::Integer(value, _) => u64::try_from(*value).ok(),
            Raw::String(text) | Raw::Text(text) => size_from_text(text)?,
            _ => return Err(raw.instead_of::<Self>()),
        };
        let range = &context.setting.range;
        match bytes {
            Some(bytes) if range.contains(&bytes) => Ok(Self(bytes)),
            _ => Err(Rejected::new(format!(
                "size out of range: {} to {} bytes is allowed",
                range.start(),
                range.end()
            ))),
        }
    }

    fn show(&self, _: &Setting) -> String {
        self.0.to_string()
    }
}

fn size_from_text(text: &str) -> Result<Option<u64>, Rejected> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim());
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => {
            return Err(Rejected::new(format!(
                "`{text}` is not a size: write a whole number and one of B, KiB, MiB, GiB, TiB, \
                 as in \"64MiB\""
            )));
        }
    };
    if number.is_empty() {
        return Err(Rejected::new(format!("`{text}` is not a size: there is no number")));
    }
    Ok(number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)))
}

impl SettingType for String {
    const KIND: &'static str = "a string";
    const EMPTY_IS_UNSET: bool = true;

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        match raw {
            Raw::String(text) | Raw::Text(text) if text.contains('\0') => {
                Err(Rejected::new("a NUL character is not allowed"))
            }
            Raw::String(text) | Raw::Text(text) => Ok((*text).to_owned()),
            _ => Err(raw.instead_of::<Self>()),
        }
    }

    fn show(&self, _: &Setting) -> String {
        self.clone()
    }
}

impl SettingType for PathBuf {
    const KIND: &'static str = "a path";
    const EMPTY_IS_UNSET: bool = true;

    fn parse(raw: &Raw<'_>, context: Context<'_>) -> Result<Self, Rejected> {
        match raw {
            Raw::String(text) | Raw::Text(text) if text.contains('\0') => {
                Err(Rejected::new("a NUL character is not allowed"))
            }
            Raw::String(text) | Raw::Text(text) if !text.is_empty() => Ok(context.base.join(text)),
            _ => Err(raw.instead_of::<Self>()),
        }
    }

    fn show(&self, _: &Setting) -> String {
        self.display().to_string()
    }
}

/// The address of a service that can be turned off by `""`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionalAddress {
    /// The service is turned off.
    Off,
    /// The configuration names this address: without it, the process does not start.
    Asked(SocketAddr),
    /// This is the default: without it, the process goes on.
    Default(SocketAddr),
}

impl OptionalAddress {
    /// The address, if the service is not turned off.
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::Asked(address) | Self::Default(address) => Some(address),
        }
    }
}

impl SettingType for OptionalAddress {
    const KIND: &'static str = "an address and port (\"\": off)";

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        match raw {
            Raw::String("") | Raw::Text("") => Ok(Self::Off),
            Raw::String(text) | Raw::Text(text) => {
                let made = if matches!(raw, Raw::Text(_)) { Self::Default } else { Self::Asked };
                text.parse().map(made).map_err(|_| {
                Rejected::new(format!(
                    "`{text}` is not an address and port, as in \"127.0.0.1:9632\" or \"[::1]:9632\""
                ))
            })
            }
            _ => Err(raw.instead_of::<Self>()),
        }
    }

    fn show(&self, _: &Setting) -> String {
        self.address().map_or_else(String::new, |address| address.to_string())
    }
}

/// Permission bits of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl SettingType for FileMode {
    const KIND: &'static str = "permission bits such as \"0777\"";

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        let bits = match raw {
            Raw::Integer(value, 8) => u32::try_from(*value).ok(),
            // 770 without the 0o would be other bits than the reader sees.
            Raw::Integer(..) => {
                return Err(Rejected::new("write permission bits as \"0770\" or 0o770"));
            }
            Raw::String(text) | Raw::Text(text) => {
                u32::from_str_radix(text.trim_start_matches("0o"), 8).ok()
            }
            _ => return Err(raw.instead_of::<Self>()),
        };
        match bits {
            Some(bits) if bits <= 0o777 => Ok(Self(bits)),
            _ => Err(Rejected::new("permission bits are \"0000\" to \"0777\"")),
        }
    }

    fn show(&self, _: &Setting) -> String {
        format!("{:04o}", self.0)
    }
}

/// A password or a stored secret of one, in any format that PgBouncer's userlist has. `Debug` and
/// every message leave it out.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("Password(...)")]
pub struct Password(String);

impl Password {
    /// A password, or `md5...`, or `SCRAM-SHA-256$...`.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself; it belongs in no log and no message.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl SettingType for Password {
    const KIND: &'static str = "a string";

    fn parse(raw: &Raw<'_>, context: Context<'_>) -> Result<Self, Rejected> {
        String::parse(raw, context).map(Self)
    }

    fn show(&self, _: &Setting) -> String {
        "***".to_owned()
    }
}

/// An item of a list, with its bytes of the file if it has its own.
pub(super) type Item<'a> = (&'a str, Option<Range<usize>>);

/// The items of a list (an array, a single string, or text with commas), and what is wrong with
/// others.
pub(super) fn items<'a, T: SettingType>(
    raw: &Raw<'a>,
) -> Result<(Vec<Item<'a>>, Refusals), Rejected> {
    let mut refusals = Refusals::default();
    let mut found = Vec::new();
    match raw {
        // PgBouncer writes lists with commas: both ways mean the same.
        Raw::String(text) | Raw::Text(text) => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            found.extend(items.map(|item| (item, None)));
        }
        Raw::List(items) => {
            for (item, at) in items {
                let text = match item {
                    Raw::String(text) => Ok(text.trim()),
                    other => Err(format!("expected a string, found {}", other.kind())),
                };
                let at = Some(at.clone());
                found.extend(refusals.keep(text, &at).map(|text| (text, at)));
            }
        }
        _ => return Err(raw.instead_of::<T>()),
    }
    Ok((found, refusals))
}

impl SettingType for Vec<String> {
    const KIND: &'static str = "a list of strings";
    const FORM: Form = Form::List;

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        let (items, refusals) = items::<Self>(raw)?;
        refusals.or(items.into_iter().map(|(item, _)| item.to_owned()).collect())
    }

    fn show(&self, _: &Setting) -> String {
        self.join(",")
    }
}

/// Names of functions, as they were written and as texts are searched for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Functions {
    written: Vec<String>,
    /// For the engine.
    pub names: Arc<FunctionNames>,
}

/// Whether plans may depend on custom settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum InPlans {
    /// As the census of functions says.
    #[default]
    Auto,
    /// As the configuration says.
    Promised(bool),
}

impl InPlans {
    /// What the configuration says, if it does.
    #[must_use]
    pub fn promised(self) -> Option<bool> {
        match self {
            Self::Auto => None,
            Self::Promised(value) => Some(value),
        }
    }
}

impl SettingType for InPlans {
    const KIND: &'static str = "true, false or \"auto\"";

    fn parse(raw: &Raw<'_>, context: Context<'_>) -> Result<Self, Rejected> {
        match raw {
            Raw::String("auto") | Raw::Text("auto") => Ok(Self::Auto),
            Raw::Boolean(_) | Raw::Text(_) => {
                bool::parse(raw, context).map(Self::Promised).map_err(|_| raw.instead_of::<Self>())
            }
            _ => Err(raw.instead_of::<Self>()),
        }
    }

    fn show(&self, setting: &Setting) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Promised(value) => value.show(setting),
        }
    }
}

impl SettingType for Functions {
    const KIND: &'static str = "a list of functions";
    const FORM: Form = Form::List;

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        let (items, mut refusals) = items::<Self>(raw)?;
        for (item, at) in &items {
            let refused = FunctionNames::read([*item]).map(drop).map_err(|name| {
                format!(
                    "`{name}` is not the name of a function: write it without parentheses and \
                     arguments, as in \"app.counts\""
                )
            });
            refusals.keep(refused, at);
        }
        let written: Vec<String> = items.into_iter().map(|(item, _)| item.to_owned()).collect();
        let names = FunctionNames::read(written.iter().map(String::as_str)).unwrap_or_default();
        refusals.or(Self { names: Arc::new(names), written })
    }

    fn show(&self, _: &Setting) -> String {
        self.written.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::registry;

    fn parse<T: SettingType>(name: &str, raw: &Raw<'_>) -> Result<T, String> {
        let setting = registry::find_by_name(name).unwrap();
        T::parse(raw, Context { setting, base: Path::new("/etc/hawser") }).map_err(|e| e.message)
    }

    #[test]
    fn durations_take_units_and_bare_numbers_are_the_settings_unit() {
        for (text, expected) in [
            ("30s", Duration::from_secs(30)),
            ("1500ms", Duration::from_millis(1500)),
            ("2min", Duration::from_secs(120)),
            ("1.5h", Duration::from_secs(5400)),
            ("10 us", Duration::from_micros(10)),
            ("1d", Duration::from_secs(86400)),
            ("0", Duration::ZERO),
            ("7", Duration::from_secs(7)),
        ] {
            assert_eq!(
                parse::<Duration>("query_timeout", &Raw::String(text)),
                Ok(expected),
                "{text}"
            );
        }
        assert_eq!(parse("query_timeout", &Raw::Integer(120, 10)), Ok(Duration::from_secs(120)));
        assert_eq!(parse("query_timeout", &Raw::Float(0.5)), Ok(Duration::from_millis(500)));
        assert_eq!(
            parse("tcp_user_timeout", &Raw::Integer(120, 10)),
            Ok(Duration::from_millis(120))
        );
    }

    #[test]
    fn durations_that_are_none_are_refused_with_what_is_allowed() {
        for text in ["", "s", "-1s", "5m", "1h30min", "1e3s", "1..5s", "99999999d", "ß"] {
            assert!(parse::<Duration>("query_timeout", &Raw::String(text)).is_err(), "{text}");
        }
        for raw in [Raw::Float(f64::NAN), Raw::Float(f64::INFINITY), Raw::Integer(-1, 10)] {
            assert!(parse::<Duration>("query_timeout", &raw).is_err(), "{raw:?}");
        }
        let message = parse::<Duration>("query_timeout", &Raw::String("5m")).unwrap_err();
        assert!(message.contains("min"), "{message}");
    }

    #[test]
    fn an_address_by_default_is_not_one_that_was_asked_for() {
        let address: SocketAddr = "127.0.0.1:9632".parse().unwrap();
        let by = |raw| parse::<OptionalAddress>("http_address", &raw);
        assert_eq!(by(Raw::Text("127.0.0.1:9632")), Ok(OptionalAddress::Default(address)));
        assert_eq!(by(Raw::String("127.0.0.1:9632")), Ok(OptionalAddress::Asked(address)));
        assert_eq!(by(Raw::String("")), Ok(OptionalAddress::Off));
    }

    #[test]
    fn sizes_are_binary_and_other_units_are_refused() {
        assert_eq!(parse("server_max_memory", &Raw::String("64MiB")), Ok(Size(64 << 20)));
        assert_eq!(parse("server_max_memory", &Raw::Integer(512, 10)), Ok(Size(512)));
        for text in ["64MB", "64mb", "MiB", "1.5GiB", "99999999TiB", "-1", ""] {
            assert!(parse::<Size>("server_max_memory", &Raw::String(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn decimal_permission_bits_are_refused_rather_than_misread() {
        assert_eq!(parse("unix_socket_mode", &Raw::Integer(0o770, 8)), Ok(FileMode(0o770)));
        assert_eq!(parse("unix_socket_mode", &Raw::String("0700")), Ok(FileMode(0o700)));
        assert!(parse::<FileMode>("unix_socket_mode", &Raw::Integer(400, 10)).is_err());
        assert!(parse::<FileMode>("unix_socket_mode", &Raw::String("1777")).is_err());
    }

    #[test]
    fn relative_paths_start_at_the_configuration_file() {
        let path: PathBuf = parse("hba_file", &Raw::String("pg_hba.conf")).unwrap();
        assert_eq!(path, Path::new("/etc/hawser/pg_hba.conf"));
        let path: PathBuf = parse("hba_file", &Raw::String("/x/pg_hba.conf")).unwrap();
        assert_eq!(path, Path::new("/x/pg_hba.conf"));
    }

    #[test]
    fn a_password_of_the_wrong_type_is_not_repeated() {
        let message = parse::<Password>("password", &Raw::Integer(271_828, 10)).unwrap_err();
        assert!(!message.contains("271828"), "{message}");
        assert_eq!(format!("{:?}", Password::new("hunter2")), "Password(...)");
    }
}
