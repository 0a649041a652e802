//! Servers that are used without encryption because TLS with them has failed.
//!
//! # Model
//! ```text
//!   server_tls_sslmode = "prefer"
//!     the server says that it has no TLS                    as meant
//!     TLS with it fails, and it lets us in without          said once, and shown as long as it lasts
//!     TLS with it works again                               said once
//! ```
//! That is libpq's order, too, which cannot say so.
//!
//! # Invariants
//! * bounded by the configured servers, and shown only for these

use std::collections::HashMap;
use std::sync::Mutex;

use crate::config::{Config, DatabaseConfig, ServerAddress, TlsMode};
use crate::lock::locked;

/// Why TLS has failed, by server.
#[derive(Debug, Default)]
pub struct Unencrypted(Mutex<HashMap<ServerAddress, String>>);

impl Unencrypted {
    /// A connection without TLS has been opened after one with TLS had failed.
    pub(super) fn falls_back(&self, server: &ServerAddress, reason: &str) {
        let mut all = locked(&self.0);
        if all.get(server).map(String::as_str) != Some(reason) {
            tracing::warn!(
                %server,
                reason,
                "no encryption towards the server: TLS with it fails, and server_tls_sslmode is \
                 \"prefer\"; with \"require\" nothing is sent unencrypted"
            );
            all.insert(server.clone(), reason.to_owned());
        }
    }

    /// A connection with TLS has been opened.
    pub(super) fn encrypted(&self, server: &ServerAddress) {
        let mut all = locked(&self.0);
        if all.remove(server).is_some() {
            tracing::info!(%server, "the server is used with TLS again");
        }
    }

    /// A line for each server, as far as the configuration still prefers TLS with it.
    pub fn fallbacks(&self, config: &Config) -> Vec<String> {
        let all = locked(&self.0);
        let prefers =
            |one: &&DatabaseConfig| one.inherited.tls.server_tls_sslmode == TlsMode::Prefer;
        let preferring = config.databases().iter().filter(prefers);
        let mut servers: Vec<_> = preferring.flat_map(|one| &one.servers).collect();
        servers.sort_by_key(ToString::to_string);
        servers.dedup();
        let line = |server: &ServerAddress| {
            Some(format!("server {server}: no encryption, TLS fails: {}", all.get(server)?))
        };
        servers.into_iter().filter_map(line).collect()
    }
}
