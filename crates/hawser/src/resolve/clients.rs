//! Names of clients' addresses, for rules of pg_hba.conf that name hosts.
//!
//! # Model
//! As PostgreSQL does it (`check_hostname`, src/backend/libpq/hba.c): the address is looked up, and
//! the name that comes of it must have that address among its own. The owner of an address's
//! reverse zone may give any name; only the name's own zone confirms it.
//!
//! # Invariants
//! * one question at a time for an address; all who come from it meanwhile get its answer
//! * at most [`LOOKUPS_MAX`] questions at a time: name service that hangs leaves threads to others,
//!   which hash passwords on the same ones
//! * an answer is believed for `dns_max_ttl`; that there is none, for as long

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as AsyncMutex, Semaphore};

use crate::lock::locked;

/// Questions to name service at a time.
const LOOKUPS_MAX: usize = 4;
/// Addresses that are remembered; above it, all without a pending question are forgotten.
const ADDRESSES_MAX: usize = 10_000;

type Known = Option<(Instant, Option<Arc<str>>)>;

/// Remembers which names clients' addresses have.
#[derive(Debug)]
pub struct ClientNames {
    known: Mutex<HashMap<IpAddr, Arc<AsyncMutex<Known>>>>,
    places: Semaphore,
}

impl Default for ClientNames {
    fn default() -> Self {
        Self { known: Mutex::default(), places: Semaphore::new(LOOKUPS_MAX) }
    }
}

impl ClientNames {
    /// The name of `address`, if it has one that has that address.
    pub async fn name_of(&self, address: IpAddr, ttl: Duration) -> Option<Arc<str>> {
        self.name_by(address, ttl, verified_name).await
    }

    async fn name_by(
        &self,
        address: IpAddr,
        ttl: Duration,
        look_up: fn(IpAddr) -> Option<String>,
    ) -> Option<Arc<str>> {
        let entry = self.entry(address);
        let mut known = entry.lock().await;
        if let Some((asked, name)) = &*known
            && asked.elapsed() < ttl
        {
            return name.clone();
        }
        let _place = self.places.acquire().await.ok()?;
        let found = tokio::task::spawn_blocking(move || look_up(address)).await;
        // A panic in there has been reported by the runtime.
        let name: Option<Arc<str>> = found.unwrap_or_default().map(Into::into);
        *known = Some((Instant::now(), name.clone()));
        name
    }

    fn entry(&self, address: IpAddr) -> Arc<AsyncMutex<Known>> {
        let mut known = locked(&self.known);
        if known.len() >= ADDRESSES_MAX && !known.contains_key(&address) {
            // Those in use have other holders.
            known.retain(|_, entry| Arc::strong_count(entry) > 1);
        }
        known.entry(address).or_default().clone()
    }

    /// Forgets everything (SIGHUP).
    pub fn forget(&self) {
        locked(&self.known).clear();
    }
}

/// Asks name service both ways. Takes as long as that does.
fn verified_name(address: IpAddr) -> Option<String> {
    let name = match hawser_sys::names::name_of(address) {
        Ok(name) => name?,
        Err(error) => {
            tracing::warn!(%address, %error, "cannot resolve a client's host name: rules of hba_file with host names do not match it");
            return None;
        }
    };
    let leads_back = (name.as_str(), 0)
        .to_socket_addrs()
        .map(|mut back| back.any(|found| found.ip().to_canonical() == address));
    match leads_back {
        Ok(true) => Some(name),
        Ok(false) => {
            tracing::warn!(%address, name, "a client's host name does not resolve to its address");
            None
        }
        Err(error) => {
            tracing::warn!(%address, name, %error, "a client's host name does not resolve to an address");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn who_comes_from_one_address_shares_one_question() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        fn look_up(address: IpAddr) -> Option<String> {
            std::thread::sleep(Duration::from_millis(20));
            ASKED.fetch_add(1, Ordering::Relaxed);
            (address == Ipv4Addr::new(192, 0, 2, 1)).then(|| "a.example".to_owned())
        }
        let names = ClientNames::default();
        let (one, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let (a, b, c) = tokio::join!(
            names.name_by(one, TTL, look_up),
            names.name_by(one, TTL, look_up),
            names.name_by(other, TTL, look_up)
        );
        assert_eq!((a.as_deref(), b.as_deref(), c), (Some("a.example"), Some("a.example"), None));
        assert_eq!(names.name_by(other, TTL, look_up).await, None);
        assert_eq!(ASKED.load(Ordering::Relaxed), 2, "none is an answer, too");
        names.name_by(one, Duration::ZERO, look_up).await;
        names.forget();
        names.name_by(one, TTL, look_up).await;
        assert_eq!(ASKED.load(Ordering::Relaxed), 4);
    }

    #[tokio::test]
    async fn loopback_has_a_name_that_leads_back() {
        let names = ClientNames::default();
        assert!(names.name_of(Ipv4Addr::LOCALHOST.into(), TTL).await.is_some());
        // TEST-NET-2 (RFC 5737): never assigned.
        assert_eq!(names.name_of([198, 51, 100, 7].into(), TTL).await, None);
    }
}
