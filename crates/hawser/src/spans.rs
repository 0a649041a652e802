//! Slow transactions as spans of OpenTelemetry (`otlp_endpoint`), beside their lines in the log.
//!
//! # Model
//! ```text
//!   loops ─► a queue of QUEUE_MAX ─► every PERIOD, one request for all of it ─► collector (OTLP over HTTP)
//! ```
//! The span `transaction`, and within it `wait for a server connection`: a trace of their own, or within the
//! span that the client has named ([`TraceParent`]). Names of attributes are those of the semantic conventions
//! for databases, where these have one.
//!
//! # Limits
//! Nothing waits for the collector: what finds the queue full, or is in a request that fails, is lost, and the
//! log says so once a [`SAID_AGAIN`]. The end of the process waits for the last request, for a short time. No TLS: a collector stands on this host or in a network of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use hawser_pooler::queries::trace_parent::TraceParent;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use crate::lock::locked;
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
    /// The span that it belongs to.
    pub parent: Option<TraceParent>,
}

/// Where loops leave them; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Spans(Option<Arc<Queue>>);

#[derive(Debug)]
struct Queue {
    sender: mpsc::Sender<Slow>,
    lost: AtomicU64,
    /// Nothing more comes: what is there is to be sent at once.
    ends: Notify,
    sending: Mutex<Option<JoinHandle<()>>>,
}

impl Queue {
    fn new(sender: mpsc::Sender<Slow>) -> Arc<Self> {
        let (lost, ends) = (AtomicU64::new(0), Notify::new());
        Arc::new(Self { sender, lost, ends, sending: Mutex::default() })
    }
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
        let queue = Queue::new(sender);
        let sending = tokio::spawn(send(exporter, endpoint.to_owned(), receiver, queue.clone()));
        *locked(&queue.sending) = Some(sending);
        Ok(Self(Some(queue)))
    }

    /// Whether a collector is configured.
    pub fn are_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Leaves one to be sent.
    pub fn leave(&self, slow: Slow) {
        if let Some(queue) = &self.0
            && queue.sender.try_send(slow).is_err()
        {
            queue.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many were lost since the start; `None`: no collector is configured.
    pub fn lost(&self) -> Option<u64> {
        self.0.as_ref().map(|queue| queue.lost.load(Ordering::Relaxed))
    }

    /// Sends what is there, `within` at most. What comes after this is lost.
    pub async fn end(&self, within: Duration) {
        let Some(queue) = &self.0 else { return };
        let Some(sending) = locked(&queue.sending).take() else { return };
        queue.ends.notify_one();
        if tokio::time::timeout(within, sending).await.is_err() {
            tracing::warn!(
                "the collector of otlp_endpoint does not answer: the last spans are lost"
            );
        }
    }
}

async fn send(
    exporter: SpanExporter,
    endpoint: String,
    mut receiver: mpsc::Receiver<Slow>,
    queue: Arc<Queue>,
) {
    let (mut said, mut said_lost, mut ends) = (None::<Instant>, 0, false);
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            count = receiver.recv_many(&mut batch, QUEUE_MAX) => if count == 0 { return },
            () = queue.ends.notified(), if !ends => {
                ends = true;
                receiver.close(); // what is there still comes
                continue;
            }
        }
        let count = batch.len() as u64;
        let result = exporter.export(batch.into_iter().flat_map(spans_of).collect()).await;
        let error = result.err().map(|error| error.to_string());
        if error.is_some() {
            queue.lost.fetch_add(count, Ordering::Relaxed);
        }
        let is_due = said.is_none_or(|at| at.elapsed() >= SAID_AGAIN);
        let all = queue.lost.load(Ordering::Relaxed);
        let lost = all - said_lost;
        if lost > 0 && is_due {
            (said, said_lost) = (Some(Instant::now()), all);
            let reason = error.as_deref().unwrap_or("it does not keep up");
            tracing::warn!(endpoint, lost, reason, "spans of slow transactions are lost");
        }
        if !ends && tokio::time::timeout(PERIOD, queue.ends.notified()).await.is_ok() {
            ends = true;
            receiver.close();
        }
    }
}

fn spans_of(slow: Slow) -> [SpanData; 2] {
    let own = || (u128::from(random_u64()) << 64) | u128::from(random_u64());
    let trace = slow.parent.map_or_else(own, |parent| parent.trace);
    let trace = TraceId::from_bytes(trace.to_be_bytes());
    let parent = slow.parent.map_or(SpanId::INVALID, |parent| SpanId::from(parent.span));
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
        parent_span_is_remote: parent != outer && parent != SpanId::INVALID,
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
        span("transaction", outer, parent, begun, slow.ended, attributes),
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
            parent: None,
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
        assert_eq!(transaction.parent_span_id, SpanId::INVALID);
        let [other, _] = spans_of(slow(ended));
        assert_ne!(other.span_context.trace_id(), transaction.span_context.trace_id());
    }

    #[test]
    fn a_transaction_is_within_the_span_that_its_client_has_named() {
        let parent = Some(TraceParent { trace: 7, span: 9 });
        let [transaction, wait] = spans_of(Slow { parent, ..slow(SystemTime::now()) });
        assert_eq!(transaction.span_context.trace_id(), TraceId::from(7u128));
        assert_eq!(wait.span_context.trace_id(), TraceId::from(7u128));
        assert_eq!(transaction.parent_span_id, SpanId::from(9u64));
        assert_eq!(wait.parent_span_id, transaction.span_context.span_id());
        assert!(transaction.parent_span_is_remote && !wait.parent_span_is_remote);
    }

    #[tokio::test]
    async fn the_end_sends_what_is_there() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let spans = Spans::start(&format!("http://{}/v1/traces", listener.local_addr().unwrap()));
        let spans = spans.unwrap();
        let collector = tokio::spawn(async move {
            let mut requests = 0;
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 65_536];
                let _ = stream.read(&mut request).await.unwrap();
                requests += 1;
                let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
                if requests == 2 {
                    return;
                }
            }
        });
        spans.leave(slow(SystemTime::now()));
        tokio::time::sleep(Duration::from_millis(300)).await; // it is sent
        spans.leave(slow(SystemTime::now())); // in the pause between two requests
        let begun = Instant::now();
        spans.end(Duration::from_secs(5)).await;
        assert!(begun.elapsed() < PERIOD + PERIOD / 2, "the end waits for no further period");
        tokio::time::timeout(Duration::from_secs(1), collector).await.unwrap().unwrap();
        assert_eq!(spans.lost(), Some(0));
    }

    #[tokio::test]
    async fn what_finds_the_queue_full_is_counted_and_nothing_waits() {
        let (sender, _receiver) = mpsc::channel(1);
        let spans = Spans(Some(Queue::new(sender)));
        for _ in 0..3 {
            spans.leave(slow(SystemTime::now()));
        }
        assert_eq!(spans.lost(), Some(2));
        assert!(!Spans::default().are_wanted());
    }
}
