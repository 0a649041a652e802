//! A statement_timeout so short that statements of ours could run into it.
//!
//! # Why
//! What a client has set counts for what brings settings, too. Where that is cut off, the next client's
//! settings are not there, and it has nothing to do with it.
//!
//! # Model
//! A timeout below [`limits::TIMEOUT_MS_MIN`] is the last that goes before its client's message, by
//! itself, and the first that is taken off before another's. To take it off is a statement under it: of
//! a server that gets no time of its processor for as long as it lasts that is cut off. Then nothing has
//! changed, and it is tried again; so the client's message, and all else that goes before it, wait for
//! the outcome. (A round trip between here and the server.)
//!
//! A timer that runs out just as its statement ends cuts off the next message, whatever it is: a cancel is
//! then pending that is only looked for after that (`finish_xact_command`, `PostgresMain`, postgres.c).
//! So the same goes twice, in one write. Where the first is carried out, the second finds no timer, and
//! takes what the first one's has left.
//!
//! A client that finds its own timeout there waits for nothing, unless something goes before its first
//! message in a query of ours. So is a question about a session asked again that is cut off
//! ([`super::unverified`]); settings that are brought within the client's pipeline ([`super::within`]) fail
//! with it.
//!
//! # Limits
//! A transaction_timeout ends the connection: a short one is not brought to another. What is sent in the
//! midst of a client's transaction or pipeline (DEALLOCATE ALL, LISTEN), or to end what it has left open,
//! runs under its own timeout.

mod steps;

use super::limits;
use crate::session::settings::{Settings, SettingsBuilder};
use crate::wire::error::{SqlState, field};

const NAME: &[u8] = b"statement_timeout";
const OF_TRANSACTION: &[u8] = b"transaction_timeout";

/// What a backend has where the first of the two was cut off and the second may not have been: short, and
/// no client's.
const EITHER: &[u8] = b"0ms";

/// Whether a timeout, as the server shows it, is below a second.
fn is_short(settings: &Settings, name: &[u8]) -> bool {
    let ms = settings.get(name).and_then(|value| value.strip_suffix(b"ms"));
    let ms = ms.and_then(|ms| std::str::from_utf8(ms).ok()).and_then(|ms| ms.parse().ok());
    ms.is_some_and(|ms: u64| ms < limits::TIMEOUT_MS_MIN)
}

/// Whether what takes a timeout off for the next client could end the connection.
pub(super) fn ends_transactions_soon(settings: &Settings) -> bool {
    is_short(settings, OF_TRANSACTION)
}

/// Whether an error says that a statement has taken too long, or has been cancelled.
pub(super) fn is_cut_off(error: &[u8]) -> bool {
    field(error, b'C') == Some(&SqlState::QUERY_CANCELED.0[..])
}

/// What is brought first: all but a short timeout.
pub(super) fn without_short_timeout(settings: &Settings) -> Settings {
    if !is_short(settings, NAME) {
        return settings.clone();
    }
    let mut others = SettingsBuilder::from(settings);
    others.remove(NAME);
    others.build()
}

/// The settings for a Parse of ours, with the timeout that is in force: it reads none, and another's
/// could cut off what stands after it.
pub(super) fn with_timeout_of(settings: &Settings, in_force: &Settings) -> Settings {
    if settings.get(NAME) == in_force.get(NAME) {
        return settings.clone();
    }
    let mut others = SettingsBuilder::from(settings);
    match in_force.get(NAME) {
        Some(value) => others.set(NAME, value),
        None => others.remove(NAME),
    };
    others.build()
}

/// Tries to take a short timeout off a server connection.
#[derive(Debug, Default)]
pub(super) struct Lifts {
    /// How many have failed, one after the other.
    failed: u8,
    /// The last one has been cut off.
    cut_off: bool,
}

impl Lifts {
    /// The first statement of a try has been cut off.
    fn fail(&mut self) {
        self.failed = self.failed.saturating_add(1);
        self.cut_off = true;
    }

    /// Whether one that has been cut off may be tried again.
    fn may_go_on(&self) -> bool {
        self.failed < limits::LIFTS_MAX
    }

    /// A try has come to its end. The timeout that is there now.
    fn end(&mut self) -> &'static [u8] {
        if std::mem::take(&mut self.cut_off) {
            return EITHER;
        }
        self.failed = 0;
        b"0"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(name: &str, value: &str) -> Settings {
        let mut builder = SettingsBuilder::new();
        builder.set(name.as_bytes(), value.as_bytes());
        builder.build()
    }

    #[test]
    fn short_is_what_is_below_a_second() {
        for (value, short) in
            [("999ms", true), ("1ms", true), ("1500ms", false), ("1s", false), ("0", false)]
        {
            let set = settings("statement_timeout", value);
            assert_eq!(is_short(&set, NAME), short, "{value}");
            assert_eq!(without_short_timeout(&set).is_empty(), short, "{value}");
            assert!(!ends_transactions_soon(&set));
            assert_eq!(ends_transactions_soon(&settings("transaction_timeout", value)), short);
        }
    }

    #[test]
    fn a_parse_has_the_timeout_that_is_in_force() {
        let (path, short) = (settings("search_path", "a"), settings("statement_timeout", "1ms"));
        assert!(with_timeout_of(&short, &path).is_empty());
        let both = with_timeout_of(&path, &short);
        assert_eq!(both.get(NAME), Some(&b"1ms"[..]));
        assert_eq!(both.get(b"search_path"), Some(&b"a"[..]));
    }
}
