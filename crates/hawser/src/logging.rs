//! The log: text or JSON on standard error, in a file, by syslog; one event a change of state. The
//! [`audit`] is beside it.
//!
//! # Invariants
//! * no secret is an argument of an event, at any level, and no statement text but where a rule asks for it
//! * an event is a line of text without control characters, whatever a client or server has sent: what
//!   comes from them can neither begin a line nor move a terminal's cursor
//! * libraries log from warnings on: below, they log bytes
//!
//! # Limits      one log a process: what begins it second changes the level only

pub mod audit;
mod journal;
mod outputs;
mod seldom;

use std::fmt::{Debug, Result as Written, Write};
use std::io::IsTerminal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

pub use hawser_sys::terminal::without_control;
use hawser_sys::terminal::{Escaped, is_control};
use tracing::field::Field;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use journal::WithPriority;
pub use outputs::Outputs;
pub use seldom::Seldom;

use crate::admin::clock::date;
use crate::config::{LogFormat, LogLevel, LogSettings};

type Handle = reload::Handle<Targets, Registry>;

static LEVEL: OnceLock<Handle> = OnceLock::new();
static OUTPUTS: OnceLock<Outputs> = OnceLock::new();
static CONNECTIONS: AtomicBool = AtomicBool::new(true);
static DISCONNECTIONS: AtomicBool = AtomicBool::new(true);

fn filter(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // (Of all crates whose names begin so: hawser_link ...)
    Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("hawser", level)
}

/// Begins the log on standard error.
pub fn begin(format: LogFormat, level: LogLevel) {
    begin_to(Outputs::default(), format, level);
}

/// The log of commands that are no servers.
pub fn begin_quietly() {
    begin(LogFormat::Text, LogLevel::Warn);
}

/// Opens the log's file again, for those that have moved it away.
///
/// # Errors
/// It cannot be opened: the old one stays.
pub fn reopen() -> Result<(), String> {
    OUTPUTS.get().map_or(Ok(()), Outputs::reopen)
}

/// Begins the log.
pub fn begin_to(outputs: Outputs, format: LogFormat, level: LogLevel) {
    if LEVEL.get().is_some() {
        set_level(level);
        return;
    }
    let (filter, handle) = reload::Layer::new(filter(level));
    let goes_elsewhere = outputs.beside_stderr();
    let in_colours = std::io::stderr().is_terminal() && !goes_elsewhere;
    let _ = OUTPUTS.set(outputs.clone());
    let lines = fmt::layer().with_writer(outputs);
    let in_journal = !goes_elsewhere && journal::is_standard_error();
    let lines = match format {
        LogFormat::Text if in_journal => lines
            .with_ansi(false)
            .without_time()
            .fmt_fields(debug_fn(write_field).delimited(" "))
            .map_event_format(WithPriority)
            .boxed(),
        LogFormat::Json if in_journal => lines
            .json()
            .flatten_event(true)
            .map_event_format(|json| WithPriority(AsJson(json)))
            .boxed(),
        LogFormat::Text => {
            lines.with_ansi(in_colours).fmt_fields(debug_fn(write_field).delimited(" ")).boxed()
        }
        LogFormat::Json => lines.json().flatten_event(true).map_event_format(AsJson).boxed(),
        LogFormat::PgBouncer => lines
            .with_ansi(false)
            .fmt_fields(debug_fn(write_field).delimited(" "))
            .event_format(AsPgBouncer)
            .boxed(),
    };
    // A log that is already set up (by a test) stays.
    if Registry::default().with(lines.with_filter(filter)).try_init().is_ok() {
        let _ = LEVEL.set(handle);
    }
}

/// JSON, with escapes also for what serde writes as it is: DEL, the C1 controls and those of direction.
struct AsJson<F>(F);

impl<F, S, N> FormatEvent<S, N> for AsJson<F>
where
    F: FormatEvent<S, N>,
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> Written {
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        write_json(&mut out, &line)
    }
}

/// Such characters stand inside of strings only. (All have four digits, and the controls below a space are
/// escaped, but for the end of the line.)
fn write_json(out: &mut impl Write, line: &str) -> Written {
    let mut from = 0;
    for (at, character) in line.char_indices() {
        if character > ' ' && is_control(character) {
            write!(out, "{}\\u{:04x}", &line[from..at], u32::from(character))?;
            from = at + character.len_utf8();
        }
    }
    out.write_str(&line[from..])
}

/// `2026-11-23 23:52:01.123 UTC [4711] LOG message`, as PgBouncer on standard error.
struct AsPgBouncer;

impl<S, N> FormatEvent<S, N> for AsPgBouncer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> Written {
        let level = match *event.metadata().level() {
            Level::ERROR => "ERROR",
            Level::WARN => "WARNING",
            Level::INFO => "LOG",
            Level::DEBUG => "DEBUG",
            Level::TRACE => "NOISE",
        };
        let now = SystemTime::now();
        let millis = now.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_millis();
        let date = date(now);
        let date = date.strip_suffix(" UTC").unwrap_or(&date);
        write!(out, "{date}.{millis:03} UTC [{}] {level} ", std::process::id())?;
        context.format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}

/// Writes the message, or a field with its name: the one place through which text of clients and
/// servers gets into the text log (for JSON see [`AsJson`]).
fn write_field(out: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> Written {
    if field.name() != "message" {
        let (on, off) = if out.has_ansi_escapes() { ("\x1b[3m", "\x1b[0m") } else { ("", "") };
        write!(out, "{on}{}{off}=", field.name())?;
    }
    write!(Escaped(out), "{value:?}")
}

/// Puts settings in force, at the start and after a reload or SET.
pub fn put_in_force(settings: &LogSettings) {
    set_level(settings.level);
    CONNECTIONS.store(settings.log_connections, Ordering::Relaxed);
    DISCONNECTIONS.store(settings.log_disconnections, Ordering::Relaxed);
}

/// Whether each login, and each end of a connection, is written.
pub fn of_connections() -> (bool, bool) {
    (CONNECTIONS.load(Ordering::Relaxed), DISCONNECTIONS.load(Ordering::Relaxed))
}

fn set_level(level: LogLevel) {
    if let Some(handle) = LEVEL.get() {
        // It fails only if the log is gone.
        let _ = handle.reload(filter(level));
    }
}

/// [`reopen`], for logrotate; an error is logged.
pub fn reopen_log() {
    audit::reopen();
    if let Err(error) = reopen() {
        tracing::warn!(error, "cannot reopen the log; the old file is still written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_by_their_numbers() {
        let mut out = String::new();
        let hostile = "a\nb\r\x1b[2Jc\u{9b}d\u{2028}e\u{202e}f\tg\0h\u{7f} \u{e4}\u{1f600}\"'\\";
        write!(Escaped(&mut out), "{hostile}").unwrap();
        let written = "a\\nb\\r\\u{1b}[2Jc\\u{9b}d\\u{2028}e\\u{202e}f\\tg\\u{0}h\\u{7f} \u{e4}\u{1f600}\"'\\";
        assert_eq!(out, written);
        assert_eq!(without_control(hostile), written);
    }

    #[test]
    fn json_has_them_by_their_numbers_too() {
        let hostile = "a\nb\u{9b}31m\u{2028}\u{202e}\u{7f}\u{e4}\u{1f600}\"\\";
        let line = format!("{}\n", serde_json::json!({ "error": hostile }));
        let mut out = String::new();
        write_json(&mut out, &line).unwrap();
        assert!(!out.trim_end().contains(is_control), "{out}");
        assert!(out.contains(r"\u009b31m\u2028\u202e\u007f"), "{out}");
        let read: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(read["error"], hostile);
    }

    #[test]
    fn libraries_are_quiet_whatever_the_level() {
        let debug = filter(LogLevel::Debug);
        assert!(debug.would_enable("hawser::serve", &Level::DEBUG));
        assert!(debug.would_enable("hawser_link::drive::worker", &Level::DEBUG));
        assert!(debug.would_enable("rustls", &Level::WARN));
        assert!(!debug.would_enable("rustls", &Level::DEBUG));
        let error = filter(LogLevel::Error);
        assert!(!error.would_enable("rustls", &Level::WARN));
        assert!(!error.would_enable("hawser", &Level::WARN));
    }
}
