//! The log: text or JSON on standard error, one event a change of state.
//!
//! # Invariants
//! * no secret and no statement text is an argument of an event, at any level
//! * libraries are heard from warnings on: below, they speak of bytes
//!
//! # Limits      one log a process: what begins it second changes the level only

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::config::{LogFormat, LogLevel};

type Handle = reload::Handle<Targets, Registry>;

static LEVEL: OnceLock<Handle> = OnceLock::new();

fn filter(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("hawser", level)
        .with_target("hawser_core", level)
        .with_target("hawser_sys", level)
}

/// Begins the log.
pub fn begin(format: LogFormat, level: LogLevel) {
    if LEVEL.get().is_some() {
        set_level(level);
        return;
    }
    let (filter, handle) = reload::Layer::new(filter(level));
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // Somebody else's log (a test's) stays.
    if Registry::default().with(lines.with_filter(filter)).try_init().is_ok() {
        let _ = LEVEL.set(handle);
    }
}

/// Changes the level, after a reload or SET.
pub fn set_level(level: LogLevel) {
    if let Some(handle) = LEVEL.get() {
        // It fails only if the log is gone.
        let _ = handle.reload(filter(level));
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn libraries_are_quiet_whatever_the_level() {
        let debug = filter(LogLevel::Debug);
        assert!(debug.would_enable("hawser::serve", &Level::DEBUG));
        assert!(debug.would_enable("rustls", &Level::WARN));
        assert!(!debug.would_enable("rustls", &Level::DEBUG));
        let error = filter(LogLevel::Error);
        assert!(!error.would_enable("rustls", &Level::WARN));
        assert!(!error.would_enable("hawser", &Level::WARN));
    }
}
