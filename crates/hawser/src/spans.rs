//! Slow transactions as spans of OpenTelemetry (`otlp_endpoint`), beside their lines in the log.
//!
//! # Model
//! ```text
//!   loops ─► a queue of QUEUE_MAX ─► every PERIOD, one request for all of it ─► collector (OTLP over HTTP)
//! ```
//! A trace for each: the span `transaction`, and within it `wait for a server connection`. Names of attributes are
//! those of the semantic conventions for databases, where these have one.
//!
//! # Limits
//! Nothing waits for the collector: what finds the queue full, or is in a request that fails, is lost, and the
//! log says so once a [`SAID_AGAIN`]. No TLS: a collector stands on this host or in a network of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use tokio::sync::mpsc;

use crate::process::random_u64;

/// Transactions that wait to be sent.
const QUEUE_MAX: usize = 1024;
/// Between two requests.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is said that the collector does not take them.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// A transaction that is sent.
#[derive(Debug)]
pub struct Slow {
    /// Of the client; empty with a unix socket's.
    pub address: Box<str>,
    /// Of the client.
    pub port: u16,
    /// Its database.
    pub database: Box<str>,
    /// Its user.
    pub user: Box<str>,
    /// How long it waited for a server connection.
    pub wait: Duration,
    /// How long it had one.
    pub duration: Duration,
    /// When it ended.
    pub ended: SystemTime,
}

/// Where loops leave them; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Spans(Option<Arc<Queue>>);

#[derive(Debug)]
struct Queue {
    sender: mpsc::Sender<Slow>,
    dropped: AtomicU64,
}

impl Spans {
    /// Sends to this address from now on. To be called within a runtime.
    ///
    /// # Errors
    /// Why there cannot be an exporter for the address.
    pub fn start(endpoint: &str) -> Result<Self, String> {
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(endpoint)
            .with_timeout(TIMEOUT)
            .build()
            .map_err(|error| error.to_string())?;
        let about = [
            KeyValue::new("service.name", "hawser"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("process.pid", i64::from(std::process::id())),
        ];
        exporter.set_resource(&Resource::builder_empty().with_attributes(about).build());
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        let queue = Arc::new(Queue { sender, dropped: AtomicU64::new(0) });
        tokio::spawn(send(exporter, endpoint.to_owned(), receiver, queue.clone()));
        Ok(Self(Some(queue)))
    }

    /// Whether anybody wants them.
    pub fn are_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Leaves one to be sent.
    pub fn leave(&self, slow: Slow) {
        if let Some(queue) = &self.0
            && queue.sender.try_send(slow).is_err()
        {
            queue.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn send(
    exporter: SpanExporter,
    endpoint: String,
    mut receiver: mpsc::Receiver<Slow>,
    queue: Arc<Queue>,
) {
    let mut said: Option<Instant> = None;
    loop {
        let mut batch = Vec::new();
        if receiver.recv_many(&mut batch, QUEUE_MAX).await == 0 {
            return;
        }
        let count = batch.len() as u64;
        let result = exporter.export(batch.into_iter().flat_map(spans_of).collect()).await;
        let error = result.err().map(|error| error.to_string());
        if error.is_some() {
            queue.dropped.fetch_add(count, Ordering::Relaxed);
        }
        let is_due = said.is_none_or(|at| at.elapsed() >= SAID_AGAIN);
        let lost = if is_due { queue.dropped.swap(0, Ordering::Relaxed) } else { 0 };
        if lost > 0 {
            said = Some(Instant::now());
            let reason = error.as_deref().unwrap_or("it does not keep up");
            tracing::warn!(endpoint, lost, reason, "spans of slow transactions are lost");
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn spans_of(slow: Slow) -> [SpanData; 2] {
    let trace = TraceId::from_bytes(
        ((u128::from(random_u64()) << 64) | u128::from(random_u64())).to_be_bytes(),
    );
    let (outer, inner) = (new_span_id(), new_span_id());
    let begun = slow.ended.checked_sub(slow.duration + slow.wait).unwrap_or(slow.ended);
    let text = |name, value: Box<str>| KeyValue::new(name, Value::from(String::from(value)));
    let attributes = vec![
        KeyValue::new("db.system.name", "postgresql"),
        text("db.namespace", slow.database),
        text("db.user", slow.user),
        text("client.address", slow.address),
        KeyValue::new("client.port", i64::from(slow.port)),
        KeyValue::new("hawser.wait", slow.wait.as_secs_f64()),
        KeyValue::new("hawser.duration", slow.duration.as_secs_f64()),
    ];
    let span = |name: &'static str, id, parent, start_time, end_time, attributes| SpanData {
        span_context: SpanContext::new(
            trace,
            id,
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: parent,
        parent_span_is_remote: false,
        span_kind: SpanKind::Server,
        name: name.into(),
        start_time,
        end_time,
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("hawser").build(),
    };
    let served = begun + slow.wait;
    [
        span("transaction", outer, SpanId::INVALID, begun, slow.ended, attributes),
        span("wait for a server connection", inner, outer, begun, served, Vec::new()),
    ]
}

fn new_span_id() -> SpanId {
    SpanId::from_bytes(random_u64().max(1).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(ended: SystemTime) -> Slow {
        Slow {
            address: "192.0.2.1".into(),
            port: 7,
            database: "app".into(),
            user: "ann".into(),
            wait: Duration::from_millis(200),
            duration: Duration::from_millis(300),
            ended,
        }
    }

    #[test]
    fn the_wait_is_a_span_within_that_of_the_transaction() {
        let ended = SystemTime::now();
        let [transaction, wait] = spans_of(slow(ended));
        let long = |span: &SpanData| span.end_time.duration_since(span.start_time).unwrap();
        assert_eq!((long(&transaction), transaction.end_time), (Duration::from_millis(500), ended));
        assert_eq!(long(&wait), Duration::from_millis(200));
        assert_eq!(wait.start_time, transaction.start_time);
        assert_eq!(wait.parent_span_id, transaction.span_context.span_id());
        assert_eq!(wait.span_context.trace_id(), transaction.span_context.trace_id());
        assert!(transaction.span_context.is_valid() && wait.span_context.is_valid());
        let has = |name: &str, value: &str| {
            let mut all = transaction.attributes.iter();
            all.any(|one| one.key.as_str() == name && one.value.as_str() == value)
        };
        assert!(has("db.namespace", "app") && has("db.user", "ann"));
        let [other, _] = spans_of(slow(ended));
        assert_ne!(other.span_context.trace_id(), transaction.span_context.trace_id());
    }

    #[tokio::test]
    async fn what_finds_the_queue_full_is_counted_and_nothing_waits() {
        let (sender, _receiver) = mpsc::channel(1);
        let queue = Arc::new(Queue { sender, dropped: AtomicU64::new(0) });
        let spans = Spans(Some(queue.clone()));
        for _ in 0..3 {
            spans.leave(slow(SystemTime::now()));
        }
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 2);
        assert!(!Spans::default().are_wanted());
    }
}
