//! One value of pgbouncer.ini -> one line of the output.
//!
//! # Invariants   a value is read as PgBouncer reads it (numbers as C does, words in any case), and one
//!               that either of both refuses is an error with its place

use super::error::ImportError;
use super::ini::{Entry, Section};
use crate::config::document::accepts;
use crate::config::setting::{Form, Setting, Unit};

/// Whether a setting takes one of a few words.
pub(super) fn is_word(setting: &Setting) -> bool {
    setting.kind.starts_with("one of ")
}

/// Times of `[pgbouncer]` that PgBouncer reads as it reads counts (CF_INT of its main.c).
const WHOLE_TIMES: &[&str] =
    &["query_wait_notify", "stats_period", "tcp_keepidle", "tcp_keepintvl", "tcp_user_timeout"];

/// A whole number as PgBouncer reads it: in `[pgbouncer]` as C's strtol with base 0 does (octal after
/// `0`, hexadecimal after `0x`); elsewhere as atoi does, which is decimal. (atoi also takes what merely
/// begins with digits.)
pub(super) fn number(entry: &Entry, value: &str) -> Result<i64, ImportError> {
    let (sign, digits) = match value.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, value.strip_prefix('+').unwrap_or(value)),
    };
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (digits, base) = match (entry.section, hexadecimal, digits.strip_prefix('0')) {
        (Section::Databases | Section::Users | Section::Peers, _, _) => (digits, 10),
        (_, Some(digits), _) => (digits, 16),
        (_, None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (digits, 10),
    };
    let read = i64::from_str_radix(digits, base).ok().filter(|_| !digits.starts_with(['-', '+']));
    read.map(|number| sign * number)
        .ok_or_else(|| entry.refuse(format!("`{value}` is not a number")))
}

/// A port, as PgBouncer reads it there.
pub(super) fn port(entry: &Entry, value: &str) -> Result<u16, String> {
    let number = number(entry, value).ok().and_then(|number| u16::try_from(number).ok());
    number.filter(|port| *port > 0).ok_or_else(|| format!("`{value}` is not a port"))
}

/// A time in the unit of `key`, as PgBouncer reads it: by strtod, or as a whole number.
pub(super) fn amount(entry: &Entry, key: &str, value: &str) -> Result<f64, ImportError> {
    let has_base = value.starts_with("0x") || value.starts_with("0X");
    if entry.section != Section::PgBouncer || WHOLE_TIMES.contains(&key) || has_base {
        return number(entry, value).map(|whole| whole as f64);
    }
    value.parse().map_err(|_| entry.refuse(format!("`{value}` is not a number")))
}

/// `name = value` of the output.
pub(super) fn assignment(
    setting: &'static Setting,
    entry: &Entry,
    value: &str,
) -> Result<String, ImportError> {
    let name = setting.name;
    if value.is_empty() && is_word(setting) {
        return Err(entry.refuse(format!("it is empty: allowed is {}", setting.kind)));
    }
    // PgBouncer knows pools without a limit; the largest size is as good as none.
    if name == "pool_size" && number(entry, value)? == 0 {
        let max = setting.range.end();
        return Ok(format!("pool_size = {max} # 0 in PgBouncer, which is no limit"));
    }
    // The value of the output, and the same as SET would have it.
    let (text, plain) = match setting.form {
        Form::Boolean => {
            let value = number(entry, value)? != 0;
            (value.to_string(), value.to_string())
        }
        Form::Number => {
            let number = number(entry, value)?.to_string();
            (number.clone(), number)
        }
        Form::Duration => {
            let amount = amount(entry, name, value)?;
            let unit = if setting.unit == Unit::Milliseconds { "ms" } else { "s" };
            let plain = format!("{amount}{unit}");
            (if amount == 0.0 { "0".to_owned() } else { quote(&plain) }, plain)
        }
        Form::List => (list(value), value.to_owned()),
        Form::String if name == "unix_socket_mode" => {
            let octal = format!("{:04o}", number(entry, value)?);
            (quote(&octal), octal)
        }
        // The one word that PgBouncer compares by case, and in place of which it takes its default.
        Form::String if name == "syslog_facility" => {
            if accepts(setting, value).is_err() {
                return Ok(comment(&format!("{name} = {value}: daemon, as PgBouncer takes it")));
            }
            (quote(value), value.to_owned())
        }
        Form::String if is_word(setting) => {
            let word = value.to_ascii_lowercase();
            (quote(&word), word)
        }
        Form::String => (quote(value), value.to_owned()),
    };
    match accepts(setting, &plain) {
        Ok(()) => Ok(format!("{name} = {text}")),
        Err(message) => Err(entry.refuse(message)),
    }
}

/// `name = value` for a setting of ours, which is written as SET takes it.
pub(super) fn own_assignment(
    setting: &'static Setting,
    entry: &Entry,
    value: &str,
) -> Result<String, ImportError> {
    let lowercase = value.to_ascii_lowercase();
    let value = if is_word(setting) { lowercase.as_str() } else { value };
    accepts(setting, value).map_err(|message| entry.refuse(message))?;
    let text = match setting.form {
        Form::Boolean | Form::Number | Form::Duration if value.is_empty() => {
            return Err(entry.refuse(format!("it is empty: expected {}", setting.kind)));
        }
        Form::Boolean => matches!(value, "1" | "true" | "on" | "yes").to_string(),
        // TOML knows fewer spellings of a number than SET; sizes have units.
        Form::Number => {
            value.trim().parse::<i64>().map_or_else(|_| quote(value), |number| number.to_string())
        }
        Form::List => list(value),
        Form::Duration | Form::String => quote(value),
    };
    Ok(format!("{} = {text}", setting.name))
}

/// The TLS versions that a `*_tls_protocols` allows, in our words, and whether older ones are among
/// them. As `tls_config_parse_protocols` of PgBouncer's library: words in any case, `!` takes away.
pub(super) fn protocols(entry: &Entry) -> Result<(&'static str, bool), ImportError> {
    const OLDER: u8 = 1;
    const V1_2: u8 = 2;
    const V1_3: u8 = 4;
    let mut allowed = 0;
    for word in entry.value.split([',', ':']) {
        let word = word.trim().to_ascii_lowercase();
        let (negated, name) = match word.strip_prefix('!') {
            Some(name) => (true, name),
            None => (false, word.as_str()),
        };
        let meant = match name {
            "all" | "tlsv1" => OLDER | V1_2 | V1_3,
            "default" | "secure" => V1_2 | V1_3,
            "tlsv1.0" | "tlsv1.1" => OLDER,
            "tlsv1.2" => V1_2,
            "tlsv1.3" => V1_3,
            _ => {
                let message = format!(
                    "`{name}` is no TLS version: allowed is all, secure, tlsv1.2, tlsv1.3, with \
                     commas between"
                );
                return Err(entry.refuse(message));
            }
        };
        if negated && allowed == 0 {
            allowed = OLDER | V1_2 | V1_3;
        }
        allowed = if negated { allowed & !meant } else { allowed | meant };
    }
    let ours = match (allowed & V1_2 != 0, allowed & V1_3 != 0) {
        (true, false) => "tlsv1.2",
        (false, true) => "tlsv1.3",
        // If only older ones are allowed, newer ones are stricter than what is asked for.
        (true, true) | (false, false) => "secure",
    };
    Ok((ours, allowed & OLDER != 0))
}

/// A note on an auth_query that reads from something without its schema: PgBouncer leaves the
/// search_path to the role, Hawser does not.
pub(super) fn without_schema(query: &str) -> Option<String> {
    let words: Vec<_> = query
        .split(|c: char| c.is_whitespace() || "(),;".contains(c))
        .filter(|word| !word.is_empty())
        .collect();
    let is = |word: &str, names: &[&str]| names.iter().any(|name| word.eq_ignore_ascii_case(name));
    let read = words.windows(2).find(|pair| {
        is(pair[0], &["from", "join"])
            && !pair[1].contains('.')
            && !pair[1].to_ascii_lowercase().starts_with("pg_")
            && !is(pair[1], &["select", "lateral", "only", "values"])
    })?;
    Some(format!(
        "auth_query reads from {}: that is looked for in pg_catalog and public alone, whatever the \
         search_path of its user is; write its schema before it if it is in another one",
        read[1]
    ))
}

/// PgBouncer's lists have commas or spaces between (its `strlist_contains`).
fn list(value: &str) -> String {
    let between = |c: char| c == ',' || c.is_ascii_whitespace();
    let items = value.split(between).filter(|item| !item.is_empty());
    format!("[{}]", items.map(quote).collect::<Vec<_>>().join(", "))
}

/// A TOML string.
pub(super) fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A comment of one line, whatever `text` holds.
pub(super) fn comment(text: &str) -> String {
    format!("# {}", text.replace(char::is_control, " "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::ini::Place;

    fn entry(value: &str) -> Entry {
        let (key, value) = ("k".to_owned(), value.to_owned());
        Entry { section: Section::PgBouncer, key, value, place: Place::default() }
    }

    #[test]
    fn numbers_are_read_as_c_does() {
        for (text, expected) in
            [("12", 12), ("010", 8), ("0x1F", 31), ("-3", -3), ("+7", 7), ("0", 0)]
        {
            assert_eq!(number(&entry(""), text), Ok(expected), "{text}");
        }
        for text in ["", "-", "08", "1.5", "--1", "0x", "many"] {
            assert!(number(&entry(""), text).is_err(), "{text}");
        }
        let of_database = Entry { section: Section::Databases, ..entry("") };
        for (text, expected) in [("020", Some(20)), ("08", Some(8)), ("0x10", None), ("5s", None)] {
            assert_eq!(number(&of_database, text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn tls_versions_are_those_of_pgbouncers_library() {
        for (text, expected) in [
            ("TLSv1.3", Some(("tlsv1.3", false))),
            ("secure", Some(("secure", false))),
            ("all", Some(("secure", true))),
            ("tlsv1.1:TLSV1.2", Some(("tlsv1.2", true))),
            ("!tlsv1.3", Some(("tlsv1.2", true))),
            ("all,!tlsv1.0,!tlsv1.2", Some(("tlsv1.3", false))),
            ("tlsv1.0", Some(("secure", true))),
            ("tlsv1.4", None),
            ("tlsv1.2,", None),
        ] {
            assert_eq!(protocols(&entry(text)).ok(), expected, "{text}");
        }
    }

    #[test]
    fn an_auth_query_without_a_schema_is_noticed() {
        for (query, named) in [
            ("SELECT uname, phash FROM user_lookup($1)", Some("user_lookup")),
            ("select * from auth.lookup($1)", None),
            ("SELECT usename, passwd FROM pg_shadow WHERE usename=$1", None),
            ("SELECT * FROM (SELECT a, b FROM pg_authid JOIN others USING (x)) q", Some("others")),
        ] {
            let note = without_schema(query);
            assert_eq!(note.is_some(), named.is_some(), "{query}");
            assert!(note.is_none_or(|note| note.contains(named.unwrap_or_default())), "{query}");
        }
    }
}
