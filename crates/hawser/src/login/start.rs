//! What a client's session starts with: its startup settings, checked and in the server's own form.
//!
//! # Model
//! Values whose form Hawser knows are decided here. The server is asked about others once for each
//! (pool, name, value), on a connection of its own, and the answer is kept: `SET` it, and read what
//! it shows.
//!
//! # Invariants
//! * a session never starts with a value that its server would refuse: the client gets the server's
//!   own error, as FATAL, as it would without a pooler
//! * a server that ends the connection of the question has not answered: the question is repeated
//!   on another one
//! * the server's own values are left out: they need not be applied

use std::sync::Arc;

use hawser_pooler::parts::start_values::parameters::ServerParameters;
use hawser_pooler::session::canonical::{Canonical, Context, canonical};
use hawser_pooler::session::options::Asked;
use hawser_pooler::session::part::Part;
use hawser_pooler::session::settings::{
    Change, Settings, SettingsBuilder, read_hex, write_set_query,
};
use hawser_pooler::wire::error::{ClientError, Severity, SqlState};
use tokio::time::timeout;

use super::origin::{NAME_BYTES_MAX, Origin};
use crate::dial::talk::{Talk, TalkError};
use crate::pools::open::Openings;
use crate::pools::session::Session;
use crate::pools::{CheckedValue, PoolEntry};

/// The server's major version, from its server_version; 14, the oldest maintained version, if it
/// cannot be read.
fn major_version(parameters: &ServerParameters) -> u32 {
    const OLDEST: u32 = 14;
    let text = parameters.get(b"server_version").unwrap_or_default();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let version = digits.fold(0u32, |version, digit| {
        version.saturating_mul(10).saturating_add(u32::from(digit - b'0'))
    });
    if version == 0 { OLDEST } else { version }
}

/// Writes the server's notices about start values that it accepts: that it truncates an
/// application_name, in the words of truncate_identifier (scansup.c). Names that are not UTF-8 are
/// left out: where these are truncated depends on the server's encoding.
pub fn write_notices(asked: &[Asked], ignored: &[String], out: &mut Vec<u8>) {
    let mut wanted = true;
    for asked in asked {
        if asked.name.eq_ignore_ascii_case(b"client_min_messages") {
            let above = |level: &&[u8]| asked.value.eq_ignore_ascii_case(level);
            wanted = ![&b"warning"[..], b"error", b"fatal", b"panic"].iter().any(above);
        }
        if !wanted
            || !asked.name.eq_ignore_ascii_case(b"application_name")
            || ignored.iter().any(|name| name.eq_ignore_ascii_case("application_name"))
        {
            continue;
        }
        let Ok(name) = std::str::from_utf8(&asked.value) else { continue };
        let kept = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
        if kept.len() < name.len() {
            let text = format!("identifier \"{name}\" will be truncated to \"{kept}\"");
            let notice = ClientError::error(SqlState::NAME_TOO_LONG, text);
            ClientError { severity: Severity::Notice, ..notice }.write(out);
        }
    }
}

/// The operator's notice to clients, `login_notify_message`.
pub fn write_welcome(message: &str, out: &mut Vec<u8>) {
    if !message.is_empty() {
        let notice = ClientError::error(SqlState::SUCCESSFUL_COMPLETION, message);
        ClientError { severity: Severity::Notice, ..notice }.write(out);
    }
}

/// Appends the client's address to the name of its program, for `application_name_add_host`: in
/// PgBouncer's form, where a client without a name is `app`. The address must not be truncated.
pub fn add_host(asked: &mut Vec<Asked>, origin: &Origin) {
    let address = match origin {
        Origin::Tcp(address) => {
            std::net::SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
        }
        Origin::Unix { .. } => "unix".to_owned(),
    };
    let is_name = |asked: &Asked| asked.name.eq_ignore_ascii_case(b"application_name");
    let name = asked.iter().rfind(|asked| is_name(asked)).map(|asked| asked.value.to_vec());
    asked.retain(|asked| !is_name(asked));
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| b"app".to_vec());
    let name = String::from_utf8_lossy(&name).into_owned();
    let room = NAME_BYTES_MAX.saturating_sub(address.len() + " - ".len());
    let kept = &name[..name.floor_char_boundary(room)];
    let value = format!("{kept} - {address}").into_bytes().into();
    asked.push(Asked { name: b"application_name".as_slice().into(), value });
}

/// The start values of a client that differ from the server's own.
///
/// # Errors
/// The error for the client: the server's own.
pub async fn settings(
    openings: &Openings,
    entry: &Arc<PoolEntry>,
    parameters: &ServerParameters,
    asked: &[Asked],
) -> Result<Settings, ClientError> {
    let version = major_version(parameters);
    let ignored = &openings.shared.config.load().reload.pool.ignore_startup_parameters;
    let mut builder = SettingsBuilder::new();
    let mut unknown: Vec<&Asked> = Vec::new();
    for asked in asked {
        if ignored.iter().any(|name| name.as_bytes().eq_ignore_ascii_case(&asked.name)) {
            continue;
        }
        unknown.retain(|earlier| earlier.name != asked.name);
        if entry.pool.is_shared_by_users() && asked.name.eq_ignore_ascii_case(b"role") {
            // Not the pooler's role, but the user's may have it: it is set after the hand-over.
            builder.remove(b"role");
            if *asked.value != *b"none" {
                builder.set(b"role", &asked.value);
            }
            continue;
        }
        // The last value of a name counts, but DateStyle builds on the one before.
        let own = parameters.get(&asked.name);
        let base = own.map(|own| builder.get(&asked.name).unwrap_or(own));
        match canonical(&asked.name, &asked.value, Context { version, base }) {
            Canonical::Known(value) => {
                builder.set(&asked.name, &value);
            }
            Canonical::Invalid | Canonical::Ask => unknown.push(asked),
        }
    }
    if !unknown.is_empty() {
        Box::pin(check(openings, entry, &unknown, &mut builder)).await?;
    }
    builder.remove_all(|name, _| has_no_effect(name));
    if entry.pool.is_shared_by_users() {
        return Ok(builder.build()); // its user's own values are not known yet
    }
    // The server's own values need not be applied.
    builder.remove_all(|name, value| parameters.get(name) == Some(value));
    Ok(builder.build())
}

/// Whether the server ignores this start value after it has checked it. It sets a seed only for a
/// SET (check_seed, variable.c), and a connect's own transaction ends before the first query.
fn has_no_effect(name: &[u8]) -> bool {
    matches!(Part::of_setting(name, |_| false), None | Some(Part::Seed))
}

/// The value to send for one that the server shows as `shown`: that one, unless it is a number
/// shown with six digits only.
fn kept(given: &[u8], shown: Box<[u8]>) -> Box<[u8]> {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.trim().parse::<f64>().ok();
    let unit = shown.iter().rev().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let Some((given_number, shown_number)) =
        number(given).zip(number(&shown[..shown.len() - unit]))
    else {
        return shown;
    };
    let digits = given.iter().filter(|byte| byte.is_ascii_digit()).count();
    let is_rounded = match unit {
        0 => (given_number - shown_number).abs() <= given_number.abs() * 1e-5,
        _ => true, // of the setting's own unit or a smaller one
    };
    if digits > DIGITS_SHOWN && is_rounded && (unit > 0 || given_number != shown_number) {
        given.into()
    } else {
        shown
    }
}

/// Asks the server about values, and adds them in its own form.
async fn check(
    openings: &Openings,
    entry: &Arc<PoolEntry>,
    unknown: &[&Asked],
    builder: &mut SettingsBuilder,
) -> Result<(), ClientError> {
    let mut line = None;
    for asked in unknown {
        let answer = match entry.checked(&asked.name, &asked.value) {
            Some(answer) => answer,
            None => {
                let answer = ask(openings, entry, &mut line, asked).await?;
                entry.keep_checked(&asked.name, &asked.value, answer.clone());
                answer
            }
        };
        builder.set(&asked.name, &answer?);
    }
    if let Some(line) = line {
        line.terminate().await;
    }
    Ok(())
}

/// How many server connections are tried for a question if servers end them.
const LINES_MAX: u32 = 3;

/// Whether the server has ended the connection (57P01, for example), which says nothing about the
/// value.
fn has_ended(error: &TalkError) -> bool {
    match error {
        TalkError::Io(_) | TalkError::Closed => true,
        TalkError::Server(error) => error.severity == Severity::Fatal,
        TalkError::Protocol(_) => false,
    }
}

/// Asks the server about a value, on `line` or on one that is opened for it.
///
/// # Errors
/// The error for the client if the server has given no answer.
async fn ask(
    openings: &Openings,
    entry: &Arc<PoolEntry>,
    line: &mut Option<Session>,
    asked: &Asked,
) -> Result<CheckedValue, ClientError> {
    let mut ended = 0;
    loop {
        let mut open = match line.take() {
            Some(open) => open,
            None => openings.ask_line(entry).await?,
        };
        let within = entry.route.load().target.connect_timeout;
        let shown = timeout(within, show_at_last(open.ask(), asked)).await;
        if shown.is_ok() {
            open.answered();
        }
        let answer = match shown {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) if has_ended(&error) => {
                ended += 1;
                if ended == LINES_MAX {
                    return Err(unanswered(&error));
                }
                continue;
            }
            Ok(Err(TalkError::Server(error))) if is_cut_off(&error) => {
                return Err(unanswered(&error.message));
            }
            Ok(Err(TalkError::Server(error))) => {
                Err(ClientError { severity: Severity::Fatal, ..*error })
            }
            Ok(Err(error)) => return Err(unanswered(&error)),
            Err(_) => return Err(unanswered(&"no answer in time")),
        };
        *line = Some(open);
        return Ok(answer);
    }
}

fn unanswered(reason: &dyn std::fmt::Display) -> ClientError {
    ClientError::fatal(
        SqlState::CONNECTION_FAILURE,
        "the server could not be asked about a setting",
    )
    .detail(reason.to_string())
}

/// The server's bytes, whatever the `client_encoding` of its new sessions.
const SHOWN: &str = "SELECT pg_catalog.encode(pg_catalog.convert_to(\
     pg_catalog.current_setting($1), pg_catalog.getdatabaseencoding()), 'hex')";

/// Digits of a number that SHOW gives (`%g` in ShowGUCOption, guc.c).
const DIGITS_SHOWN: usize = 6;

/// How often the question is asked under a timeout that interrupts it.
const TRIES: u32 = 100;

/// Whether the question ran into the `statement_timeout` that it asks about, which says nothing
/// about the value.
fn is_cut_off(error: &ClientError) -> bool {
    error.code == SqlState::QUERY_CANCELED
}

/// The same, asked again if that is interrupted.
async fn show_at_last(talk: &mut Talk, asked: &Asked) -> Result<Box<[u8]>, TalkError> {
    for _ in 1..TRIES {
        match show(talk, asked).await {
            Err(TalkError::Server(error)) if is_cut_off(&error) => {}
            answer => return answer,
        }
    }
    show(talk, asked).await
}

/// Sets a value and reads how the server shows it.
async fn show(talk: &mut Talk, asked: &Asked) -> Result<Box<[u8]>, TalkError> {
    let mut query = Vec::new();
    write_set_query([Change::Set(&asked.name, &asked.value)], &mut query);
    let text = String::from_utf8(query)
        .map_err(|_| TalkError::Protocol("a setting that is not UTF-8".to_owned()))?;
    talk.query(&text).await?;
    let answer = talk.query_with(SHOWN, &[&asked.name]).await?;
    let value = answer.single().and_then(read_hex).map(Into::into);
    value
        .map(|shown| kept(&asked.value, shown))
        .ok_or_else(|| TalkError::Protocol("no value of a setting".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_application_name_has_the_servers_notice() {
        let said = |pairs: &[(&str, &str)], ignored: &[String]| {
            let asked: Vec<Asked> = pairs
                .iter()
                .map(|(name, value)| Asked {
                    name: name.as_bytes().into(),
                    value: value.as_bytes().into(),
                })
                .collect();
            let mut out = Vec::new();
            write_notices(&asked, ignored, &mut out);
            String::from_utf8_lossy(&out).into_owned()
        };
        let (long, fits) = ("a".repeat(64), "a".repeat(63));
        let notice = said(&[("application_name", &long)], &[]);
        assert!(
            notice.starts_with('N') && notice.contains("SNOTICE\0VNOTICE\0C42622\0"),
            "{notice}"
        );
        let text = format!("identifier \"{long}\" will be truncated to \"{fits}\"");
        assert!(notice.contains(&text), "{notice}");
        assert_eq!(said(&[("application_name", &fits), ("work_mem", &long)], &[]), "");
        let quiet = [("client_min_messages", "WARNING"), ("application_name", &long[..])];
        assert_eq!(said(&quiet, &[]), "");
        assert_eq!(said(&[("application_name", &long)], &["Application_Name".to_owned()]), "");
        let wide = said(&[("application_name", &"\u{e9}".repeat(32))], &[]);
        assert!(wide.contains(&format!("truncated to \"{}\"", "\u{e9}".repeat(31))), "{wide}");
    }

    #[test]
    fn numbers_keep_the_digits_that_are_not_shown() {
        for (given, shown, expected) in [
            ("1.23456789", "1.23457", "1.23456789"),
            ("0.1", "0.1", "0.1"),
            ("1e-1", "0.1", "0.1"),
            ("100000.0", "100000", "100000"),
            ("1.23456789", "1.23457ms", "1.23456789"),
            ("0.5", "500us", "500us"),
            ("2048", "16MB", "16MB"),
            ("1234567", "1234567", "1234567"),
            ("-3.50000000", "<-03:30>+03:30", "<-03:30>+03:30"),
            ("1.5000000", "2", "2"),
            ("nan", "nan", "nan"),
            ("ISO", "ISO, MDY", "ISO, MDY"),
            ("", "", ""),
        ] {
            let kept = kept(given.as_bytes(), shown.as_bytes().into());
            assert_eq!(String::from_utf8_lossy(&kept), expected, "{given}");
        }
    }

    #[test]
    fn start_values_that_the_server_takes_no_notice_of_are_known() {
        for name in ["seed", "transaction_isolation", "transaction_read_only"] {
            assert!(has_no_effect(name.as_bytes()), "{name}");
        }
        assert!(!has_no_effect(b"default_transaction_isolation") && !has_no_effect(b"my.seed"));
    }

    #[test]
    fn the_address_follows_the_name_and_is_never_cut() {
        let named = |name: Option<&str>, origin: &Origin| {
            let mut asked: Vec<Asked> = name
                .iter()
                .map(|name| Asked {
                    name: b"application_name".as_slice().into(),
                    value: name.as_bytes().into(),
                })
                .collect();
            add_host(&mut asked, origin);
            assert_eq!(asked.len(), 1);
            String::from_utf8(asked[0].value.to_vec()).unwrap()
        };
        let tcp = |text: &str| Origin::Tcp(text.parse().unwrap());
        assert_eq!(named(Some("psql"), &tcp("10.0.0.7:40123")), "psql - 10.0.0.7:40123");
        assert_eq!(named(None, &tcp("[::ffff:10.0.0.7]:1")), "app - 10.0.0.7:1");
        assert_eq!(named(Some(""), &Origin::Unix { uid: None }), "app - unix");
        let long = named(Some(&"\u{e9}".repeat(60)), &tcp("[2001:db8::1]:65535"));
        assert!(long.len() <= NAME_BYTES_MAX && long.ends_with(" - [2001:db8::1]:65535"), "{long}");
    }

    #[test]
    fn the_major_version_is_the_first_number() {
        let version = |text: &str| {
            let mut parameters = ServerParameters::default();
            parameters.set(b"server_version", text.as_bytes());
            major_version(&parameters)
        };
        assert_eq!(version("15.18 (Debian 15.18-0+deb12u1)"), 15);
        assert_eq!(version("18beta1"), 18);
        assert_eq!(version("?"), 14);
        assert_eq!(major_version(&ServerParameters::default()), 14);
    }
}
