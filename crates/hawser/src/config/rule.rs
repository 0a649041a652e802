//! `[[rule]]` of the file and RULE ADD of the console -> what a rule matches and does.
//!
//! # Model
//! ```text
//! [[rule]] user = "report", refuse = "later"  ─┐
//!                                              ├─► RuleEntry ─► made ─► When and Does
//! RULE ADD name USER report REFUSE 'later'  ───┘
//! ```
//! A word of the console is a setting of the file, and read in the same way.

use core::net::IpAddr;
use std::path::Path;

use hawser_pooler::lending::Priority;
use hawser_pooler::parts::rules::kind::Kind;
use hawser_pooler::parts::rules::{Does, Network, Pattern, When};
use hawser_pooler::queries::digest::Digest;
use hawser_pooler::wire::error::SqlState;
use regex::bytes::{Regex, RegexBuilder};

use super::choice::{RulePriority, StatementKind};
use super::registry::{self, Group, RuleEntry};
use super::setting::{Form, Table};
use super::value::{Context, Raw, Timeout};

/// A longer pattern is no pattern of statements.
const PATTERN_BYTES_MAX: usize = 4 * 1024;
/// Memory of a compiled pattern.
const PATTERN_MEMORY_BYTES_MAX: usize = 1 << 20;
/// A longer name is no name.
const NAME_BYTES_MAX: usize = 63;

/// The code of a refusal: the operator has stopped the statement, as by a cancel request. No driver
/// takes it for the end of its connection, and none tries again by itself.
const REFUSED: SqlState = SqlState::QUERY_CANCELED;

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongRule {
    /// The setting that is wrong.
    pub(super) setting: &'static str,
    /// What is wrong with it.
    pub message: String,
}

fn wrong(setting: &'static str, message: impl std::fmt::Display) -> WrongRule {
    WrongRule { setting, message: format!("{setting}: {message}") }
}

impl RuleEntry {
    /// From the words of the console: names of settings, each with its value.
    ///
    /// # Errors
    /// What is wrong with a word.
    pub fn from_words(name: &str, words: &[(String, String)]) -> Result<Self, String> {
        let mut entry = Self::defaults();
        entry.name = Some(name.to_owned());
        let mut given: Vec<&str> = Vec::new();
        for (word, value) in words {
            let setting = registry::find(Table::Rule, word).filter(|known| known.name != "name");
            let setting = setting.ok_or_else(|| {
                let known = registry::all().filter(|known| known.table == Table::Rule);
                let known: Vec<_> = known.map(|known| known.name.to_uppercase()).skip(1).collect();
                format!("a rule has no {}: it has {}, FOR", word.to_uppercase(), known.join(", "))
            })?;
            if given.contains(&setting.name) {
                return Err(format!("{} is given twice", setting.name.to_uppercase()));
            }
            given.push(setting.name);
            let context = Context { setting, base: Path::new("") };
            entry
                .assign(&Raw::Text(value), context)
                .map_err(|rejected| format!("{}: {}", setting.name.to_uppercase(), rejected))?;
        }
        Ok(entry)
    }

    /// What it matches, and what it does, in words.
    #[must_use]
    pub fn in_words(&self) -> (String, String) {
        let (mut when, mut does) = (Vec::new(), Vec::new());
        let defaults = Self::defaults().shown();
        for ((setting, value), (_, default)) in self.shown().into_iter().zip(defaults) {
            let of = match setting.name {
                "name" | "force" => continue,
                "user" | "database" | "application_name" | "network" | "kind" | "digest"
                | "text" => &mut when,
                _ => &mut does,
            };
            if matches!(setting.form, Form::Boolean) && value != default {
                of.push(setting.name.to_uppercase());
            } else if value != default {
                let is_text = matches!(setting.form, Form::String);
                let quoted =
                    if is_text { format!("'{}'", value.replace('\'', "''")) } else { value };
                of.push(format!("{} {quoted}", setting.name.to_uppercase()));
            }
        }
        (when.join(" "), does.join(" "))
    }

    /// What it matches and does.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn made(&self) -> Result<(When, Does), WrongRule> {
        let name = self.name.as_deref().unwrap_or_default();
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
            let message = format!("a rule has a name of 1 to {NAME_BYTES_MAX} bytes");
            return Err(wrong("name", message));
        }
        let boxed = |text: &Option<String>| text.as_deref().map(Into::into);
        let network = self.network.as_deref().map(network).transpose();
        let when = When {
            user: boxed(&self.user),
            database: boxed(&self.database),
            application_name: boxed(&self.application_name),
            network: network.map_err(|message| wrong("network", message))?,
            kind: self.kind.map(|kind| match kind {
                StatementKind::Read => Kind::Read,
                StatementKind::Write => Kind::Write,
                StatementKind::Ddl => Kind::Ddl,
            }),
            digest: self.digest.as_deref().map(digest).transpose()?,
            text: self.text.as_deref().map(pattern).transpose()?,
        };
        if when.is_all() && !self.force {
            let message = "the rule matches every statement of every client: say what it is for \
                           (user, database, application_name, network, kind, digest, text), or force";
            return Err(wrong("name", message));
        }
        Ok((when, self.does()?))
    }

    fn does(&self) -> Result<Does, WrongRule> {
        let code = match self.sqlstate.as_deref() {
            None => REFUSED,
            Some(_) if self.refuse.is_none() => {
                return Err(wrong("sqlstate", "it is the code of refuse, which is not there"));
            }
            Some(text) => code(text).ok_or_else(|| {
                wrong(
                    "sqlstate",
                    format!("`{text}` is no SQLSTATE: five digits or capital letters"),
                )
            })?,
        };
        let does = Does {
            refuses: self.refuse.as_deref().map(|message| (message.into(), code)),
            running_max: Some(self.max_running).filter(|most| *most > 0),
            time_max: Timeout::get(self.max_time),
            log_one_of: self.log,
            audits: self.audit,
            priority: self.priority.map(|priority| match priority {
                RulePriority::Low => Priority::Low,
                RulePriority::High => Priority::High,
            }),
        };
        let Does { refuses, running_max, time_max, log_one_of, audits, priority } = &does;
        if refuses.is_none()
            && running_max.is_none()
            && time_max.is_none()
            && *log_one_of == 0
            && !audits
            && priority.is_none()
        {
            return Err(wrong(
                "name",
                "the rule does nothing: it has none of refuse, max_running, max_time, log, audit, \
                 priority",
            ));
        }
        Ok(does)
    }
}

fn network(text: &str) -> Result<Network, String> {
    let not_one = || format!("`{text}` is neither an address nor a network (10.0.0.0/8)");
    let (address, bits) = text.split_once('/').unwrap_or((text, ""));
    let address: IpAddr = address.parse().map_err(|_| not_one())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    match (text.contains('/'), bits.parse()) {
        (false, _) => Ok(Network { address, bits: most }),
        (true, Ok(bits)) if bits <= most => Ok(Network { address, bits }),
        (true, _) => Err(not_one()),
    }
}

fn digest(text: &str) -> Result<Digest, WrongRule> {
    let digest = Some(text).filter(|text| text.len() == 16).and_then(|text| text.parse().ok());
    digest.ok_or_else(|| wrong("digest", format!("`{text}` is not 16 hexadecimal digits")))
}

fn code(text: &str) -> Option<SqlState> {
    let code: [u8; 5] = text.as_bytes().try_into().ok()?;
    let fits = code.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
    // (00, 01 and 02 are no errors.)
    (fits && &code[..2] > b"02".as_slice()).then_some(SqlState(code))
}

fn pattern(text: &str) -> Result<Pattern, WrongRule> {
    if text.len() > PATTERN_BYTES_MAX {
        let message = format!("a regular expression of more than {PATTERN_BYTES_MAX} bytes");
        return Err(wrong("text", message));
    }
    let regex: Regex = RegexBuilder::new(text)
        .size_limit(PATTERN_MEMORY_BYTES_MAX)
        .build()
        .map_err(|error| wrong("text", not_regular(&error)))?;
    Ok(Pattern { written: text.into(), is_in: Box::new(move |text| regex.is_match(text)) })
}

/// What is wrong with a regular expression, and where. (The library's words are for a terminal: the
/// expression, a line with a caret, the error.)
fn not_regular(error: &regex::Error) -> String {
    let text = error.to_string();
    let words = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
    let caret = text.lines().find_map(|line| {
        let at = line.find('^')?;
        line[..at].trim().is_empty().then_some(at)
    });
    const INDENT: usize = 4;
    match caret.and_then(|at| at.checked_sub(INDENT)) {
        Some(at) => format!("not a regular expression, at its character {}: {words}", at + 1),
        None => format!("not a regular expression: {words}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn entry(words: &[(&str, &str)]) -> Result<RuleEntry, String> {
        let words: Vec<_> =
            words.iter().map(|(word, value)| ((*word).to_owned(), (*value).to_owned())).collect();
        RuleEntry::from_words("r", &words)
    }

    #[test]
    fn words_of_the_console_are_settings_of_the_file() {
        let words = [
            ("user", "report"),
            ("text", "(?i)it's"),
            ("refuse", "later"),
            ("max_time", "5s"),
            ("sqlstate", "53000"),
        ];
        let entry = entry(&words).unwrap();
        let (when, does) = entry.made().unwrap();
        assert_eq!(when.user.as_deref(), Some("report"));
        let pattern = when.text.unwrap();
        assert!((pattern.is_in)(b"select 'IT's \xff") && !(pattern.is_in)(b"it"));
        assert_eq!(does.refuses, Some(("later".into(), SqlState(*b"53000"))));
        let (when, does) = entry.in_words();
        assert_eq!(when, "USER 'report' TEXT '(?i)it''s'");
        assert_eq!(does, "REFUSE 'later' SQLSTATE '53000' MAX_TIME 5");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (words, message) in [
            (&[("users", "a")][..], "a rule has no USERS: it has USER, DATABASE"),
            (&[("user", "a"), ("user", "b")], "USER is given twice"),
            (&[("max_running", "many")], "MAX_RUNNING: expected a whole number"),
            (&[("kind", "dml")], "KIND: `dml` is not known: allowed is one of read, write, ddl"),
        ] {
            let error = entry(words).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
        for (words, message) in [
            (&[("log", "1")][..], "every statement of every client"),
            (&[("user", "a")], "the rule does nothing"),
            (
                &[("text", "a(b"), ("log", "1")],
                "text: not a regular expression, at its character 2: unclosed group",
            ),
            (&[("text", "(a{1000}){1000}"), ("log", "1")], "text: not a regular expression"),
            (&[("network", "10.0.0.0/33"), ("log", "1")], "network: `10.0.0.0/33` is neither"),
            (
                &[("user", "a"), ("log", "1"), ("sqlstate", "53000")],
                "sqlstate: it is the code of refuse",
            ),
            (&[("user", "a"), ("refuse", "n"), ("sqlstate", "00000")], "is no SQLSTATE"),
        ] {
            let error = entry(words).unwrap().made().unwrap_err();
            assert!(error.message.contains(message), "{}", error.message);
        }
        assert!(entry(&[("log", "1"), ("force", "true")]).unwrap().made().is_ok());
    }

    const BASE: &str = "[[database]]\nname = \"app\"\nservers = \"h:1\"\n[[user]]\nname = \"u\"\n\
                        password = \"p\"\n[[rule]]\nname = \"r\"\n";

    #[test]
    fn a_file_with_a_wrong_rule_is_refused_with_its_place_and_one_that_matches_nothing_warns() {
        let read = |rule: &str| Config::from_str(&format!("{BASE}{rule}"), "/etc/h.toml");
        for (rule, message) in [
            ("refuse = \"no\"", "h.toml:8:8: name: the rule matches every"),
            ("user = \"u\"\nlog = 1\ntext = \"(\"", "h.toml:11:8: text: not a regular"),
            (
                "user = \"u\"\nlog = 1\n[[rule]]\nname = \"r\"\nuser = \"u\"\nlog = 1",
                "h.toml:12:8: name: `r` is already in line 8",
            ),
        ] {
            let errors = read(rule).unwrap_err().to_string();
            assert!(errors.contains(message), "{errors}");
        }
        for (rule, message) in [
            ("database = \"ap\"\nlog = 1", "no [[database]] serves `ap`"),
            ("user = \"v\"\nlog = 1", "no [[user]] is called `v`"),
        ] {
            let config = read(rule).unwrap();
            assert!(config.warnings()[0].message.contains(message), "{:?}", config.warnings());
        }
        assert!(read("user = \"u\"\ndatabase = \"app\"\nlog = 1").unwrap().warnings().is_empty());
    }
}
