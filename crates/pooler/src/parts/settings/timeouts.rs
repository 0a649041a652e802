//! A statement_timeout so short that statements of Hawser's could run into it.
//!
//! # Why
//! A client's timeout applies also to the query that sets another client's settings. If that is cut
//! off, the next client, which did not set the timeout, does not get its settings.
//!
//! # Model
//! A timeout below [`limits::TIMEOUT_MS_MIN`] is set last before its client's message, in a query
//! of its own, and lifted first before another's. The statement that lifts it runs under it: if the
//! server gets no processor time for that long, the statement is cut off. Then nothing has changed,
//! and it is tried again; so the client's message, and everything else before it, wait for the
//! outcome. (A round trip between Hawser and the server.)
//!
//! A timer that expires just as its statement ends cuts off the next message, whatever it is: a
//! cancel is then pending that is only checked after that (`finish_xact_command`, `PostgresMain`,
//! postgres.c). So the statement is sent twice, in one write. If the first succeeds, the second
//! runs without a timer, and takes the pending cancel.
//!
//! A client that finds its own timeout on its backend does not wait, unless a query of Hawser's
//! precedes its first message. A question about a session that is cut off is asked again as well
//! ([`crate::parts::pins::unverified`]); settings within the client's pipeline ([`crate::parts::settings::within_pipeline`]) fail with it.
//!
//! # Limits
//! A transaction_timeout ends the connection: a short one is not set on another. What is sent in
//! the middle of a client's transaction or pipeline (DEALLOCATE ALL, LISTEN), or to end what it has
//! left open, runs under its own timeout.

mod steps;

use crate::relay::limits;
use crate::session::settings::{Settings, SettingsBuilder};
use crate::wire::error::{SqlState, field};

const NAME: &[u8] = b"statement_timeout";
const OF_TRANSACTION: &[u8] = b"transaction_timeout";

/// The value of a backend if the first of the two was cut off and the second may not have been:
/// short, and no client's.
const EITHER: &[u8] = b"0ms";

/// Whether a timeout, as the server shows it, is below a second.
fn is_short(settings: &Settings, name: &[u8]) -> bool {
    let ms = settings.get(name).and_then(|value| value.strip_suffix(b"ms"));
    let ms = ms.and_then(|ms| std::str::from_utf8(ms).ok()).and_then(|ms| ms.parse().ok());
    ms.is_some_and(|ms: u64| ms < limits::TIMEOUT_MS_MIN)
}

/// Whether lifting the timeout for the next client could end the connection.
pub(crate) fn ends_transactions_soon(settings: &Settings) -> bool {
    is_short(settings, OF_TRANSACTION)
}

/// Whether an error means that a statement has taken too long, or has been cancelled.
pub(crate) fn is_cut_off(error: &[u8]) -> bool {
    field(error, b'C') == Some(&SqlState::QUERY_CANCELED.0[..])
}

/// The settings that are set first: all but a short timeout.
pub(crate) fn without_short_timeout(settings: &Settings) -> Settings {
    if !is_short(settings, NAME) {
        return settings.clone();
    }
    let mut others = SettingsBuilder::from(settings);
    others.remove(NAME);
    others.build()
}

/// The settings for a Parse of Hawser's, with the timeout in force: the Parse reads none, and
/// another's could cut off the following messages.
pub(crate) fn with_timeout_of(settings: &Settings, in_force: &Settings) -> Settings {
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

/// Attempts to lift a short timeout of a server connection.
#[derive(Debug, Default)]
pub(crate) struct Lifts {
    /// How many have failed in a row.
    failed: u8,
    /// The last one has been cut off.
    cut_off: bool,
}

impl Lifts {
    /// The first statement of an attempt has been cut off.
    fn fail(&mut self) {
        self.failed = self.failed.saturating_add(1);
        self.cut_off = true;
    }

    /// Whether another attempt may be made.
    fn may_go_on(&self) -> bool {
        self.failed < limits::LIFTS_MAX
    }

    /// An attempt has ended. Returns the current timeout.
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
