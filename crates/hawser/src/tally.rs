//! What is counted outside of pools.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use hawser_pooler::wire::error::ClientError;

use crate::spans::Spans;

/// A number that threads count up. Not for what happens in every transaction: see
/// [`hawser_pooler::lending::Counter`] for that.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more.
    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Errors that are Hawser's own and not a server's, by the first two letters of their SQLSTATE.
///
/// The loops count here, too: without a lock and without memory of its own.
#[derive(Debug)]
pub struct ErrorCounts(Box<[AtomicU64]>);

/// What a SQLSTATE is made of.
const SIGNS: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

impl Default for ErrorCounts {
    fn default() -> Self {
        Self((0..SIGNS.len() * SIGNS.len()).map(|_| AtomicU64::new(0)).collect())
    }
}

impl ErrorCounts {
    /// Counts an error that a client gets.
    pub fn count(&self, error: &ClientError) {
        if !error.of_server {
            let [first, second, ..] = error.code.0;
            let place = |sign| SIGNS.iter().position(|known| *known == sign);
            if let (Some(first), Some(second)) = (place(first), place(second)) {
                self.0[first * SIGNS.len() + second].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// How many there were of each class.
    pub fn by_class(&self) -> BTreeMap<String, u64> {
        let class = |at: usize| {
            let signs = [SIGNS[at / SIGNS.len()], SIGNS[at % SIGNS.len()]];
            signs.map(char::from).iter().collect()
        };
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed)).enumerate();
        counts.filter(|(_, count)| *count > 0).map(|(at, count)| (class(at), count)).collect()
    }
}

/// What an error of this class of SQLSTATEs means when Hawser sends it.
pub fn class_in_words(class: &str) -> &'static str {
    match class {
        "08" => "connection failed",
        "0A" => "feature not supported",
        "22" => "invalid value",
        "25" => "invalid transaction state",
        "26" => "unknown prepared statement",
        "28" => "login refused",
        "34" => "unknown cursor",
        "3D" => "unknown database",
        "42" => "syntax error or no permission",
        "53" => "limit reached",
        "54" => "message too long",
        "55" => "not possible now",
        "57" => "cancelled, timed out or shut down",
        "58" => "system error",
        "F0" => "configuration error",
        "XX" => "internal error",
        _ => "other error",
    }
}

/// What is counted outside of pools, since the start of the process.
#[derive(Debug, Default)]
pub struct Tally {
    /// Connections accepted.
    pub connections: Count,
    /// Connections that ended before they were logged in, whatever the reason; cancel requests too.
    pub abandoned: Count,
    /// Clients that have logged in.
    pub logins: Count,
    /// Logins refused for a wrong proof or by a rule (class 28).
    pub authentication_failures: Count,
    /// Logins refused because a limit was reached (53300).
    pub limit_refusals: Count,
    /// Logins refused because others from the same address had failed.
    pub throttled: Count,
    /// Logins that gave their place to another while they waited for their client.
    pub displaced: Count,
    /// TLS handshakes with clients that came to their end.
    pub tls_handshakes: Count,
    /// TLS handshakes with clients that failed.
    pub tls_failures: Count,
    /// Cancel requests from clients.
    pub cancel_requests: Count,
    /// Cancel requests that were sent on to a peer.
    pub cancel_requests_sent_on: Count,
    /// Server connections opened.
    pub server_logins: Count,
    /// Server connections that could not be opened.
    pub server_login_failures: Count,
    /// Times that accept(2) failed for want of descriptors or memory.
    pub accept_failures: Count,
    /// Errors that Hawser itself has sent to clients.
    pub errors: Arc<ErrorCounts>,
    /// Slow transactions for a collector, of which some may be lost.
    pub spans: OnceLock<Spans>,
}

impl Tally {
    /// Connections that are on their way in.
    pub fn logging_in(&self) -> u64 {
        let over = self.abandoned.get() + self.logins.get();
        self.connections.get().saturating_sub(over)
    }
}

#[cfg(test)]
mod tests {
    use hawser_pooler::wire::error::SqlState;

    use super::*;

    #[test]
    fn only_errors_of_our_own_are_counted() {
        let counts = ErrorCounts::default();
        counts.count(&ClientError::fatal(SqlState::TOO_MANY_CONNECTIONS, "x"));
        counts.count(&ClientError::error(SqlState::CONFIGURATION_LIMIT_EXCEEDED, "x"));
        let said = ClientError::fatal(SqlState::INVALID_CATALOG_NAME, "x");
        counts.count(&ClientError { of_server: true, ..said });
        assert_eq!(counts.by_class(), BTreeMap::from([("53".to_owned(), 2)]));
    }
}
