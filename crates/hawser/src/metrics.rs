//! What answers outside of the PostgreSQL protocol: `/metrics`, `/healthz`, `/readyz` and `/`.
//!
//! # Model
//! [`collect`] reads the pools at each scrape; nothing is kept twice but what the plots of `/` show
//! ([`history`]). [`http`] is a small server on
//! the control side; it can hold up neither queries nor logins.
//!
//! # What the loops alone know
//! Who has a server connection, why clients are pinned, and what was counted of statements: the loops are
//! asked at most every [`LOOK_EVERY`]. What the page says first is of two such looks ([`doctor`]).

pub mod collect;
mod families;
pub mod format;
mod history;
pub mod host;
pub mod http;
mod links;
mod markup;
mod page;
pub mod process;
mod queries;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use tokio::time::MissedTickBehavior;

use crate::admin::pooler::Pooler;
use crate::doctor::{self, finding::Finding};
use crate::holders::Holders;
use crate::lock::locked;
use crate::queries::Queries;
use crate::queries::order::Order;
use crate::status::Status;
use collect::{Collect, Looked};
use format::Format;
use history::History;

/// The shortest time between two questions to the loops.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// What was judged last, and when.
#[derive(Debug)]
struct Judged {
    at: Instant,
    status: Status,
    first: Option<Finding>,
}

/// Makes the pages.
#[derive(derive_more::Debug)]
#[debug("Pages {{ .. }}")]
pub struct Pages {
    pooler: Arc<dyn Pooler>,
    registry: Registry,
    looked: Arc<Mutex<Looked>>,
    asked: tokio::sync::Mutex<Option<Instant>>,
    judged: Mutex<Option<Judged>>,
    history: Mutex<History>,
}

impl Pages {
    /// The pages of a pooler.
    pub fn new(pooler: Arc<dyn Pooler>) -> Self {
        let looked = Arc::default();
        let mut registry = Registry::with_prefix("hawser");
        let collect = Collect { pooler: pooler.clone(), looked: Arc::clone(&looked) };
        registry.register_collector(Box::new(collect));
        let history = Mutex::new(History::new(Instant::now()));
        let (asked, judged) = (tokio::sync::Mutex::new(None), Mutex::default());
        Self { pooler, registry, looked, asked, judged, history }
    }

    /// `/metrics`.
    pub async fn metrics(&self, format: Format) -> String {
        self.look().await;
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        format.write(text)
    }

    async fn look(&self) {
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|asked| asked.elapsed() < LOOK_EVERY) {
            return;
        }
        *asked = Some(Instant::now());
        // A loop that does not answer is no reason to show nothing.
        let Ok(mut queries) = Queries::gather(self.pooler.loops()).await else { return };
        queries.sort(Order::Time);
        queries.all.truncate(queries::SHOWN_MAX);
        let Ok(holders) = Holders::gather(self.pooler.as_ref(), false).await else { return };
        *locked(&self.looked) = Looked { pins: Some(holders.pins), queries };
    }

    /// What to change first.
    async fn first_finding(&self, looked: &Looked) -> Option<Finding> {
        if let Some(last) = &*locked(&self.judged)
            && last.at.elapsed() < LOOK_EVERY
        {
            return last.first.clone();
        }
        let pooler = self.pooler.as_ref();
        let holders = Holders::gather(pooler, true).await.unwrap_or_default();
        let status = Status::with(pooler, looked.queries.clone(), holders);
        let mut judged = locked(&self.judged);
        let before = judged.as_ref().map(|last| (&last.status, last.at.elapsed().as_secs_f64()));
        let first = doctor::judge::judge(before, &status).into_iter().next();
        *judged = Some(Judged { at: Instant::now(), status, first: first.clone() });
        first
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
        self.look().await;
        let looked = locked(&self.looked).clone();
        let finding = self.first_finding(&looked).await;
        page::status(self.pooler.as_ref(), &self.history(), &looked, finding.as_ref())
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
        locked(&self.history)
    }
}

#[cfg(test)]
mod tests;
