//! What a client asks for in its startup message.
//!
//! # Model   parameters become a user, a database, a replication mode, and settings. `options`
//!           has settings as well (`-c NAME=VALUE`, `--NAME=VALUE`; no other switch of the
//!           `postgres` program), which come before those that have parameters of their own, so
//!           that these win.
//! # Source  ProcessStartupPacket (src/backend/tcop/backend_startup.c, postmaster.c up to 16),
//!           pg_split_opts and process_postgres_switches (postinit.c, postgres.c); messages
//!           compared with a PostgreSQL 15.
//! # Limits  [`SETTINGS_MAX`] settings.

use std::fmt;

use super::settings::current_name;

/// The most settings that one startup message can ask for.
pub const SETTINGS_MAX: usize = 256;

/// Settings that a server takes only while a connection starts (contexts `backend` and
/// `superuser-backend` of pg_settings on PostgreSQL 14 to 18, and libraries that are loaded then).
pub const CONNECT_ONLY: [&str; 8] = [
    "ignore_system_indexes",
    "jit_debugging_support",
    "jit_profiling_support",
    "local_preload_libraries",
    "log_connections",
    "log_disconnections",
    "post_auth_delay",
    "session_preload_libraries",
];

/// Whether the setting (its name in any case) needs a backend that is opened with it.
pub fn is_connect_only(name: &[u8]) -> bool {
    CONNECT_ONLY.iter().any(|only| only.as_bytes().eq_ignore_ascii_case(name))
}

/// How much of an argument an error quotes: the whole may be as long as a startup packet, and goes
/// to the log.
const SHOWN_CHARS_MAX: usize = 100;

/// What a client may ask of the server's extension on a connection of its own, which it does not
/// have here.
const IGNORED: [&str; 3] = ["hawser.report", "hawser.hand_over", "hawser.connection"];

/// What kind of connection it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replication {
    /// An ordinary one.
    #[default]
    None,
    /// `replication=true`: the replication protocol, without a database.
    Physical,
    /// `replication=database`: the replication protocol and SQL.
    Database,
}

/// A setting that a client asks for, as it wrote it.
#[derive(Clone, PartialEq, Eq)]
pub struct Asked {
    /// The name in lower case, with `_` where `options` had `-`.
    pub name: Box<[u8]>,
    /// The value as given: not yet what the server would show.
    pub value: Box<[u8]>,
}

/// The name only: a value may be a secret of the application.
impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.name.escape_ascii())
    }
}

/// A startup message's parameters, sorted out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Startup {
    /// The user that logs in.
    pub user: Box<[u8]>,
    /// The database; the user's name if none was given. The physical replication protocol has none,
    /// and a pooler finds the server by it.
    pub database: Box<[u8]>,
    /// The kind of connection.
    pub replication: Replication,
    /// Settings in the order in which they take effect; a later one of the same name wins.
    pub settings: Vec<Asked>,
    /// Those that need a backend opened with them, likewise.
    pub connect_only: Vec<Asked>,
    /// Protocol options (`_pq_.` and a name), for NegotiateProtocolVersion.
    pub protocol_options: Vec<Box<[u8]>>,
}

/// Why a server would refuse a startup message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartupError {
    /// No user, or an empty one.
    NoUser,
    /// `replication` is neither a Boolean nor `database`.
    Replication {
        /// What it is.
        value: Box<[u8]>,
    },
    /// `options` has something other than `-c NAME=VALUE` and `--NAME=VALUE`.
    Switch {
        /// The argument, as the server's message names it.
        argument: Box<[u8]>,
    },
    /// `-c NAME` or `--NAME` without a value.
    NoValue {
        /// `-c NAME` or `--NAME`.
        argument: Box<[u8]>,
    },
    /// More than [`SETTINGS_MAX`] settings.
    TooMany,
}

impl StartupError {
    /// The code of the error as the server gives it.
    pub fn sqlstate(&self) -> &'static str {
        match self {
            StartupError::NoUser => "28000",
            StartupError::Replication { .. } => "22023",
            StartupError::Switch { .. } | StartupError::NoValue { .. } => "42601",
            StartupError::TooMany => "54000",
        }
    }

    /// The hint that the server adds.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            StartupError::Replication { .. } => {
                Some("Valid values are: \"false\", 0, \"true\", 1, \"database\".")
            }
            StartupError::Switch { .. } => {
                Some("\"options\" may have -c NAME=VALUE and --NAME=VALUE.")
            }
            _ => None,
        }
    }
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(SHOWN_CHARS_MAX).collect()
}

/// The server's own wording, with the beginning of the argument.
impl fmt::Display for StartupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartupError::NoUser => {
                f.write_str("no PostgreSQL user name specified in startup packet")
            }
            StartupError::Replication { value } => {
                let value = shown(value);
                write!(f, "invalid value for parameter \"replication\": \"{value}\"")
            }
            StartupError::Switch { argument } => {
                let argument = shown(argument);
                write!(f, "invalid command-line argument for server process: {argument}")
            }
            StartupError::NoValue { argument } => {
                write!(f, "{} requires a value", shown(argument))
            }
            StartupError::TooMany => {
                write!(f, "more than {SETTINGS_MAX} settings in startup packet")
            }
        }
    }
}

impl std::error::Error for StartupError {}

/// Sorts out the parameters of a startup message, names and values in their order.
pub fn parse<'a>(
    parameters: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<Startup, StartupError> {
    let mut startup = Startup::default();
    let mut own = Vec::new();
    let mut options: &[u8] = b"";
    for (name, value) in parameters {
        match name {
            b"user" => startup.user = value.into(),
            b"database" => startup.database = value.into(),
            b"options" => options = value,
            b"replication" => startup.replication = replication(value)?,
            _ if name.starts_with(b"_pq_.") => startup.protocol_options.push(name.into()),
            _ => own.push((name, value)),
        }
    }
    if startup.user.is_empty() {
        return Err(StartupError::NoUser);
    }
    if startup.database.is_empty() {
        startup.database = startup.user.clone();
    }
    for asked in parse_options(options)? {
        startup.add(asked)?;
    }
    for (name, value) in own {
        startup.add(asked(name, value))?;
    }
    Ok(startup)
}

impl Startup {
    fn add(&mut self, asked: Asked) -> Result<(), StartupError> {
        if self.settings.len() + self.connect_only.len() == SETTINGS_MAX {
            return Err(StartupError::TooMany);
        }
        if IGNORED.iter().any(|name| name.as_bytes() == &*asked.name) {
            return Ok(());
        }
        let list =
            if is_connect_only(&asked.name) { &mut self.connect_only } else { &mut self.settings };
        list.push(asked);
        Ok(())
    }
}

fn asked(name: &[u8], value: &[u8]) -> Asked {
    Asked { name: current_name(&name.to_ascii_lowercase()).into(), value: value.into() }
}

fn replication(value: &[u8]) -> Result<Replication, StartupError> {
    if value == b"database" {
        return Ok(Replication::Database);
    }
    match super::canonical::boolean(value) {
        Some(true) => Ok(Replication::Physical),
        Some(false) => Ok(Replication::None),
        None => Err(StartupError::Replication { value: value.into() }),
    }
}

/// The settings that a text of switches asks for, in their order: `-c NAME=VALUE` and
/// `--NAME=VALUE`. All others are refused.
pub fn parse_options(options: &[u8]) -> Result<Vec<Asked>, StartupError> {
    let mut arguments = split(options).into_iter();
    let mut settings = Vec::new();
    while let Some(argument) = arguments.next() {
        let invalid = || StartupError::Switch { argument: argument.as_slice().into() };
        let (prefix, setting) = match argument.as_slice() {
            // It ends the switches; arguments of other kinds are refused.
            b"--" => match arguments.next() {
                Some(next) => return Err(StartupError::Switch { argument: next.into() }),
                None => break,
            },
            b"-c" => ("-c ", arguments.next().ok_or_else(invalid)?),
            [b'-', b'c', setting @ ..] => ("-c ", setting.to_vec()),
            [b'-', b'-', setting @ ..] => ("--", setting.to_vec()),
            _ => return Err(invalid()),
        };
        let Some(equals) = setting.iter().position(|&byte| byte == b'=') else {
            let argument = [prefix.as_bytes(), &setting].concat().into();
            return Err(StartupError::NoValue { argument });
        };
        let mut name = setting[..equals].to_vec();
        name.iter_mut().filter(|byte| **byte == b'-').for_each(|byte| *byte = b'_');
        settings.push(asked(&name, &setting[equals + 1..]));
    }
    Ok(settings)
}

/// Splits at white space, which a backslash makes ordinary.
fn split(options: &[u8]) -> Vec<Vec<u8>> {
    let mut arguments = Vec::new();
    let mut current: Option<Vec<u8>> = None;
    let mut bytes = options.iter();
    while let Some(&byte) = bytes.next() {
        if byte.is_ascii_whitespace() || byte == 0x0b {
            arguments.extend(current.take());
            continue;
        }
        let argument = current.get_or_insert_default();
        // A backslash at the very end has no effect.
        argument.extend(if byte == b'\\' { bytes.next() } else { Some(&byte) });
    }
    arguments.extend(current);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(settings: &[Asked]) -> String {
        let shown: Vec<String> = settings
            .iter()
            .map(|asked| {
                let name = String::from_utf8_lossy(&asked.name);
                format!("{name}={}", String::from_utf8_lossy(&asked.value))
            })
            .collect();
        shown.join("|")
    }

    #[test]
    fn switches_become_settings() {
        for (options, expected) in [
            ("", ""),
            ("  \t\n", ""),
            ("-c work_mem=1MB", "work_mem=1MB"),
            ("-cWork-Mem=1MB", "work_mem=1MB"),
            ("--work-mem=2MB  -c a.b=", "work_mem=2MB|a.b="),
            ("-c application_name=a\\ b\\\\c", "application_name=a b\\c"),
            ("-c search_path=a,b -c search_path=c=d", "search_path=a,b|search_path=c=d"),
            ("-c a=b --", "a=b"),
            ("-c sort_mem=1MB -c VACUUM_mem=2MB", "work_mem=1MB|maintenance_work_mem=2MB"),
            ("-c a=b\\", "a=b"),
        ] {
            let settings = parse_options(options.as_bytes());
            assert_eq!(shown(&settings.expect(options)), expected, "{options}");
        }
    }

    #[test]
    fn refusals_are_worded_as_the_server_words_them() {
        let invalid = "invalid command-line argument for server process: ";
        for (options, code, message) in [
            ("-Z", "42601", format!("{invalid}-Z")),
            ("-eZ", "42601", format!("{invalid}-eZ")),
            ("bar", "42601", format!("{invalid}bar")),
            ("-", "42601", format!("{invalid}-")),
            ("-f s", "42601", format!("{invalid}-f")),
            ("-c", "42601", format!("{invalid}-c")),
            ("-- -c a=b", "42601", format!("{invalid}-c")),
            ("-c foo", "42601", "-c foo requires a value".into()),
            ("--foo", "42601", "--foo requires a value".into()),
            ("-S 4096", "42601", format!("{invalid}-S")),
            ("-ecx=1", "42601", format!("{invalid}-ecx=1")),
            ("-B 10", "42601", format!("{invalid}-B")),
        ] {
            let error = parse_options(options.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert_eq!(error.sqlstate(), code);
        }
    }

    fn startup(parameters: &[(&str, &str)]) -> Result<Startup, StartupError> {
        parse(parameters.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }

    #[test]
    fn parameters_of_their_own_come_after_options() {
        let found = startup(&[
            ("TimeZone", "UTC"),
            ("user", "u"),
            ("options", "-c timezone=PST8PDT -c log_connections=on"),
            ("_pq_.x", "1"),
            ("application_name", "a"),
        ])
        .unwrap();
        assert_eq!(shown(&found.settings), "timezone=PST8PDT|timezone=UTC|application_name=a");
        assert_eq!(shown(&found.connect_only), "log_connections=on");
        assert_eq!((&*found.user, &*found.database), (&b"u"[..], &b"u"[..]));
        assert_eq!(found.protocol_options, [Box::from(&b"_pq_.x"[..])]);
        assert_eq!(found.replication, Replication::None);
    }

    /// Such an error goes to the log, from an unauthenticated client.
    #[test]
    fn a_refusal_has_the_beginning_of_what_it_is_about() {
        let long = "\u{e4}".repeat(5_000);
        for (name, value) in [
            ("options", long.clone()),
            ("options", format!("-c {long}")),
            ("options", format!("--{long}")),
            ("replication", long.clone()),
        ] {
            let error = startup(&[("user", "u"), (name, &value)]).unwrap_err().to_string();
            assert!((100..200).contains(&error.chars().count()), "{name}: {error}");
        }
    }

    #[test]
    fn replication_is_a_boolean_or_database() {
        for (value, expected) in [
            ("database", Replication::Database),
            ("true", Replication::Physical),
            ("1", Replication::Physical),
            ("ON", Replication::Physical),
            ("f", Replication::None),
            ("off", Replication::None),
        ] {
            let found = startup(&[("user", "u"), ("replication", value)]).unwrap();
            assert_eq!(found.replication, expected);
            assert_eq!(&*found.database, b"u");
        }
        // The protocol has no database; a pooler finds the server by what the client names.
        let named = [("user", "u"), ("replication", "true"), ("database", "app")];
        assert_eq!(&*startup(&named).unwrap().database, b"app");
        let error = startup(&[("user", "u"), ("replication", "maybe")]).unwrap_err();
        assert_eq!(error.sqlstate(), "22023");
        assert_eq!(error.to_string(), "invalid value for parameter \"replication\": \"maybe\"");
        assert!(error.hint().is_some());
    }

    #[test]
    fn a_user_is_required_and_settings_are_bounded() {
        assert_eq!(startup(&[("database", "d")]), Err(StartupError::NoUser));
        assert_eq!(startup(&[("user", "")]), Err(StartupError::NoUser));
        let many = "-c a=b ".repeat(SETTINGS_MAX);
        assert!(startup(&[("user", "u"), ("options", &many)]).is_ok());
        let found = startup(&[("user", "u"), ("options", &many), ("a", "b")]);
        assert_eq!(found, Err(StartupError::TooMany));
    }

    #[test]
    fn debug_shows_no_values() {
        let found = startup(&[("user", "u"), ("options", "-c my.token=hunter2")]).unwrap();
        assert!(!format!("{found:?}").contains("hunter2"));
    }
}
