//! Names of servers to addresses, believed for `dns_max_ttl`.
//!
//! # Invariants
//! * one question at a time for a name: all who ask meanwhile get its answer
//! * when name service fails or does not answer in time, the addresses that were good last are used on
//! * questions that hang take at most [`QUESTIONS_MAX`] threads
//!
//! # Why not the TTL of the answer
//! getaddrinfo(3) does not give it, and asking past it (/etc/hosts, nsswitch) is wrong on many hosts.

pub mod clients;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::timeout_at;

use crate::lock::locked;

/// Names that are remembered; above it, those not asked for lately are forgotten.
const NAMES_MAX: usize = 10_000;

/// Questions to the name service that may be under way.
const QUESTIONS_MAX: usize = 4;

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
#[derive(Debug)]
pub struct Resolver {
    names: Mutex<HashMap<String, Arc<AsyncMutex<Entry>>>>,
    /// Free places for questions: each takes a thread of those that hash passwords, too.
    questions: Arc<Semaphore>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self { names: Mutex::default(), questions: Arc::new(Semaphore::new(QUESTIONS_MAX)) }
    }
}

impl Resolver {
    /// The addresses of `host`, at least one, within this time. An address is its own.
    ///
    /// # Errors
    /// As getaddrinfo(3), or [`io::ErrorKind::TimedOut`], if there is no earlier answer.
    pub async fn lookup(
        &self,
        host: &str,
        port: u16,
        ttl: Duration,
        within: Duration,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let name = host.to_owned();
        let question = async move {
            let found = tokio::net::lookup_host((name.as_str(), port)).await?;
            Ok(found.map(|address| address.ip()).collect())
        };
        let known = self.known(host, ttl, within, question).await?;
        Ok(known.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
    }

    /// What is known of a name, once `question` has been asked if that is due.
    async fn known(
        &self,
        host: &str,
        ttl: Duration,
        within: Duration,
        question: impl Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    ) -> io::Result<Vec<IpAddr>> {
        let ends = tokio::time::Instant::now() + within;
        let entry = self.entry(host);
        let Ok(mut entry) = timeout_at(ends, entry.lock()).await else {
            return Err(io::ErrorKind::TimedOut.into());
        };
        if entry.resolved.is_some_and(|resolved| resolved.elapsed() < ttl) {
            return Ok(entry.addresses.clone());
        }
        match self.ask(ends, question).await {
            Ok(found) => {
                let mut addresses: Vec<IpAddr> = Vec::new();
                for address in found {
                    if !addresses.contains(&address) {
                        addresses.push(address);
                    }
                }
                if addresses.is_empty() {
                    return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
                }
                if !entry.addresses.is_empty() && entry.addresses != addresses {
                    tracing::info!(host, ?addresses, "the name has other addresses now");
                }
                entry.addresses = addresses;
            }
            Err(error) if entry.addresses.is_empty() => return Err(error),
            Err(error) => {
                tracing::warn!(host, %error, "DNS failed; keeping the last addresses");
            }
        }
        entry.resolved = Some(Instant::now());
        Ok(entry.addresses.clone())
    }

    /// Asks, in a task of its own: getaddrinfo(3) cannot be stopped, and keeps its place among the
    /// questions under way until it returns, however late.
    async fn ask(
        &self,
        ends: tokio::time::Instant,
        question: impl Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    ) -> io::Result<Vec<IpAddr>> {
        let places = self.questions.clone();
        let asking = tokio::spawn(async move {
            let Ok(place) = timeout_at(ends, places.acquire_owned()).await else {
                return Err(io::ErrorKind::TimedOut.into());
            };
            let _place = place.map_err(io::Error::other)?; // the semaphore is never closed
            question.await
        });
        match timeout_at(ends, asking).await {
            Ok(answer) => answer.map_err(io::Error::other)?,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn entry(&self, host: &str) -> Arc<AsyncMutex<Entry>> {
        let mut names = locked(&self.names);
        if let Some(entry) = names.get(host) {
            return entry.clone();
        }
        if names.len() >= NAMES_MAX {
            // Those in use have other holders.
            names.retain(|_, entry| Arc::strong_count(entry) > 1);
        }
        names.entry(host.to_owned()).or_default().clone()
    }

    /// Each name that is remembered, for SHOW DNS_HOSTS.
    pub fn hosts(&self) -> Vec<HostRow> {
        let names = locked(&self.names);
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

    /// All names are asked for again when they are next needed (SIGHUP, RECONNECT). What they meant last is used on
    /// where name service fails.
    pub fn ask_again(&self) {
        let names = locked(&self.names);
        for entry in names.values() {
            // One that is being asked for at the moment gets an answer of now.
            if let Ok(mut entry) = entry.try_lock() {
                entry.resolved = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_name_service_that_hangs_costs_nothing_that_was_known() {
        let resolver = Resolver::default();
        let address = IpAddr::from([10, 0, 0, 1]);
        let answers = std::future::ready(Ok(vec![address, address]));
        let found = resolver.known("db", Duration::ZERO, SOON, answers).await;
        assert_eq!(found.unwrap(), [address]);
        let hangs = || std::future::pending::<io::Result<Vec<IpAddr>>>();
        let within = Duration::from_millis(5);
        for _ in 0..2 * QUESTIONS_MAX {
            let found = resolver.known("db", Duration::ZERO, within, hangs()).await;
            assert_eq!(found.unwrap(), [address]);
        }
        let other = resolver.known("other", Duration::ZERO, within, hangs()).await.unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn an_address_needs_no_name_service() {
        let resolver = Resolver::default();
        let found = resolver.lookup("::1", 7, Duration::ZERO, SOON).await.unwrap();
        assert_eq!(found, ["[::1]:7".parse().unwrap()]);
        assert!(resolver.hosts().is_empty());
    }

    #[tokio::test]
    async fn a_name_is_remembered() {
        let resolver = Resolver::default();
        let found = resolver.lookup("localhost", 7, Duration::from_secs(9), SOON).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7));
        assert_eq!(resolver.hosts().len(), 1);
        resolver.ask_again();
        assert!(resolver.hosts().is_empty());
        let away = async { Err(io::Error::other("away")) };
        let ttl = Duration::from_secs(9);
        let known = resolver.known("localhost", ttl, SOON, away).await.unwrap();
        assert!(!known.is_empty(), "what it meant last is used on");
    }
}
