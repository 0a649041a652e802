//! What answers outside of the PostgreSQL protocol: `/metrics`, `/healthz`, `/readyz` and `/`.
//!
//! # Model
//! [`collect`] reads the pools at each scrape; nothing is kept twice but what the plots of `/` show
//! ([`history`]). [`http`] is a small server on
//! the control side; it can hold up neither queries nor logins.
//!
//! # Pins
//! Why clients are pinned is known to the loops alone, and to ask them costs in proportion to
//! clients. So they are asked at most every [`PINS_EVERY`].
//!
//! # Queries
//! The same holds for what the loops have counted of statements, whose number is bounded: at most
//! every [`QUERIES_EVERY`].

pub mod collect;
pub mod format;
mod history;
pub mod host;
pub mod http;
mod links;
mod markup;
mod page;
pub mod process;
mod queries;

use hawser_pooler::relay::message::Listed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use tokio::time::MissedTickBehavior;

use crate::admin::pooler::Pooler;
use crate::loops::pages;
use crate::queries::Queries;
use crate::queries::order::Order;
use collect::{Collect, Pins};
use format::Format;
use history::History;

/// The shortest time between two questions to the loops.
const PINS_EVERY: Duration = Duration::from_secs(30);

/// The same for the statements that they have counted.
const QUERIES_EVERY: Duration = Duration::from_secs(3);

/// Makes the pages.
#[derive(derive_more::Debug)]
#[debug("Pages {{ .. }}")]
pub struct Pages {
    pooler: Arc<dyn Pooler>,
    registry: Registry,
    pins: Arc<Mutex<Option<Pins>>>,
    pins_asked: tokio::sync::Mutex<Option<Instant>>,
    queries: Arc<Mutex<Queries>>,
    queries_asked: tokio::sync::Mutex<Option<Instant>>,
    history: Mutex<History>,
}

impl Pages {
    /// The pages of a pooler.
    pub fn new(pooler: Arc<dyn Pooler>) -> Self {
        let (pins, queries) = (Arc::default(), Arc::default());
        let mut registry = Registry::with_prefix("hawser");
        let collect = Collect {
            pooler: pooler.clone(),
            pins: Arc::clone(&pins),
            queries: Arc::clone(&queries),
        };
        registry.register_collector(Box::new(collect));
        let history = Mutex::new(History::new(Instant::now()));
        let (pins_asked, queries_asked) = (tokio::sync::Mutex::new(None), Default::default());
        Self { pooler, registry, pins, pins_asked, queries, queries_asked, history }
    }

    /// `/metrics`.
    pub async fn metrics(&self, format: Format) -> String {
        self.look_at_pins().await;
        self.look_at_queries().await;
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        format.write(text)
    }

    async fn look_at_queries(&self) {
        let mut asked = self.queries_asked.lock().await;
        if asked.is_some_and(|asked| asked.elapsed() < QUERIES_EVERY) {
            return;
        }
        *asked = Some(Instant::now());
        // A loop that does not answer is no reason to show nothing.
        let Ok(mut queries) = Queries::gather(self.pooler.loops()).await else { return };
        queries.sort(Order::Time);
        queries.all.truncate(queries::SHOWN_MAX);
        *self.queries.lock().unwrap_or_else(PoisonError::into_inner) = queries;
    }

    async fn look_at_pins(&self) {
        let mut asked = self.pins_asked.lock().await;
        if asked.is_some_and(|asked| asked.elapsed() < PINS_EVERY) {
            return;
        }
        *asked = Some(Instant::now());
        let mut pins = Pins::new();
        let loops = self.pooler.loops();
        let mut pages = pages::Pages::new(loops, Listed::Clients, false);
        loop {
            // A loop that does not answer is no reason to show nothing.
            let Ok(page) = pages.next().await else { return };
            let Some(page) = page else { break };
            let now = loops.now();
            for client in &page.clients {
                let age = client.pinned_since.map_or(0, |since| now.since(since).as_secs());
                for part in client.pins.iter() {
                    let (count, oldest) = pins.entry(part.name()).or_default();
                    *count += 1;
                    *oldest = age.max(*oldest);
                }
            }
        }
        *self.pins.lock().unwrap_or_else(PoisonError::into_inner) = Some(pins);
    }

    /// `/readyz`.
    ///
    /// # Errors
    /// Why new clients are not served.
    pub fn ready(&self) -> Result<(), String> {
        self.pooler.ready()
    }

    /// `/`.
    pub async fn status(&self) -> String {
        self.look_at_pins().await;
        self.look_at_queries().await;
        let queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let pins = pins.unwrap_or_default();
        page::status(self.pooler.as_ref(), &self.history(), &pins, &queries)
    }

    /// Keeps what the plots of `/` show. Never ends.
    pub async fn keep_history(&self) {
        let mut tick = tokio::time::interval(history::EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.history().note(Instant::now(), self.pooler.as_ref());
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
