//! Names of servers to addresses, believed for `dns_max_ttl`.
//!
//! # Invariants
//! * one question at a time for a name: all who ask meanwhile get its answer
//! * when name service fails, the addresses that were good last are used on
//!
//! # Why not the TTL of the answer
//! getaddrinfo(3) does not give it, and asking past it (/etc/hosts, nsswitch) is wrong on many hosts.

pub mod clients;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Mutex as AsyncMutex;

/// Names that are remembered; above it, those not asked for lately are forgotten.
const NAMES_MAX: usize = 10_000;

#[derive(Debug, Default)]
struct Entry {
    addresses: Vec<IpAddr>,
    resolved: Option<Instant>,
}

/// A name in SHOW DNS_HOSTS.
#[derive(Debug, Clone)]
pub struct HostRow {
    /// The name.
    pub name: String,
    /// How long ago it was resolved.
    pub age: Duration,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// Remembers what names mean.
#[derive(Debug, Default)]
pub struct Resolver {
    names: Mutex<HashMap<String, Arc<AsyncMutex<Entry>>>>,
}

impl Resolver {
    /// The addresses of `host`, at least one. An address is its own.
    ///
    /// # Errors
    /// As getaddrinfo(3), if there is no earlier answer.
    pub async fn lookup(
        &self,
        host: &str,
        port: u16,
        ttl: Duration,
    ) -> io::Result<Vec<SocketAddr>> {
        let with_port = |addresses: &[IpAddr]| {
            addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect::<Vec<_>>()
        };
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(with_port(&[address]));
        }
        let entry = self.entry(host);
        let mut entry = entry.lock().await;
        if entry.resolved.is_none_or(|resolved| resolved.elapsed() >= ttl) {
            match tokio::net::lookup_host((host, port)).await {
                Ok(found) => {
                    let mut addresses: Vec<IpAddr> = Vec::new();
                    for address in found {
                        if !addresses.contains(&address.ip()) {
                            addresses.push(address.ip());
                        }
                    }
                    if addresses.is_empty() {
                        return Err(io::Error::new(
                            io::ErrorKind::NotFound,
                            "the name has no address",
                        ));
                    }
                    if !entry.addresses.is_empty() && entry.addresses != addresses {
                        tracing::info!(host, ?addresses, "the name has other addresses now");
                    }
                    entry.addresses = addresses;
                    entry.resolved = Some(Instant::now());
                }
                Err(error) if entry.addresses.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(host, %error, "name service fails; the last addresses are used on");
                    entry.resolved = Some(Instant::now());
                }
            }
        }
        Ok(with_port(&entry.addresses))
    }

    fn entry(&self, host: &str) -> Arc<AsyncMutex<Entry>> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = names.get(host) {
            return entry.clone();
        }
        if names.len() >= NAMES_MAX {
            // Those in use are held by whoever asks.
            names.retain(|_, entry| Arc::strong_count(entry) > 1);
        }
        names.entry(host.to_owned()).or_default().clone()
    }

    /// Each name that is remembered, for SHOW DNS_HOSTS.
    pub fn hosts(&self) -> Vec<HostRow> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<HostRow> = names
            .iter()
            .filter_map(|(name, entry)| {
                let entry = entry.try_lock().ok()?;
                let age = entry.resolved?.elapsed();
                Some(HostRow { name: name.clone(), age, addresses: entry.addresses.clone() })
            })
            .collect();
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        rows
    }

    /// Forgets everything (SIGHUP, RECONNECT).
    pub fn forget(&self) {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_needs_no_name_service() {
        let resolver = Resolver::default();
        let found = resolver.lookup("::1", 7, Duration::ZERO).await.unwrap();
        assert_eq!(found, ["[::1]:7".parse().unwrap()]);
        assert!(resolver.hosts().is_empty());
    }

    #[tokio::test]
    async fn a_name_is_remembered() {
        let resolver = Resolver::default();
        let found = resolver.lookup("localhost", 7, Duration::from_secs(9)).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7));
        assert_eq!(resolver.hosts().len(), 1);
        resolver.forget();
        assert!(resolver.hosts().is_empty());
    }
}
