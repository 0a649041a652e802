//! The HTTP server of the pages.
//!
//! # Model
//! At most [`CONNECTIONS_MAX`] connections are open, and at most [`PAGES_MAX`] of them read a large
//! page. For each further one the oldest is closed, so one that sends its request at once and reads
//! the answer (a liveness probe, a scraper) is served, however many others are slow.
//!
//! # Invariants
//! * a connection lives [`CONNECTION_MAX`] at most, and serves one request: who is slow is cut off
//! * of each kind one page is made at a time, and those who asked before it was begun share it;
//!   `/healthz` does not wait for them
//! * running out of descriptors is one event, as is its end; it never spins
//! * GET and HEAD only; nothing that a client sends is kept
//! * a page is shown under a name that no stranger can point here: see [`super::host`]
//!
//! # Why a bound on pages
//! Each request had its own copy: 120 clients that read nothing held 132 MiB with 400 pools.

use crate::lock::locked;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use hawser_sys::stream::set_send_buffer;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue, VARY,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::Pages;
use super::format::Format;
use super::host::Hosts;

/// Connections at one time.
pub const CONNECTIONS_MAX: usize = 128;
/// Of them, those that read a page whose size grows with the number of pools.
const PAGES_MAX: usize = 16;
/// How long a request's head may take.
const HEAD_WAIT: Duration = Duration::from_secs(5);
/// How long a connection may live.
const CONNECTION_MAX: Duration = Duration::from_secs(15);
/// A request's head.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Its lines.
const HEADERS_MAX: usize = 64;
/// What the kernel may keep of a page that is not read: by itself it takes 4 MiB.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// A pause after an error of accept(2), so that it does not spin when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections by what closes them, oldest first. What has ended is gone.
#[derive(Default)]
struct Open(Mutex<VecDeque<Weak<Notify>>>);

impl Open {
    /// Adds one; if there are `max` already, the oldest is closed.
    fn add(&self, close: &Arc<Notify>, max: usize) {
        let mut all = locked(&self.0);
        if all.len() >= max {
            Self::close_oldest(&mut all, max);
        }
        all.push_back(Arc::downgrade(close));
    }

    /// Closes the oldest if `max` are open.
    fn close_oldest(all: &mut VecDeque<Weak<Notify>>, max: usize) {
        all.retain(|one| one.strong_count() > 0);
        if all.len() >= max
            && let Some(oldest) = all.pop_front().and_then(|one| one.upgrade())
        {
            oldest.notify_one();
        }
    }
}

/// The last page of a kind, and when its making began.
#[derive(Default)]
struct Kind(tokio::sync::Mutex<Option<(Instant, Bytes)>>);

impl Kind {
    async fn page(&self, make: impl Future<Output = String>) -> Bytes {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        match &*last {
            Some((begun, page)) if *begun >= asked => page.clone(),
            _ => {
                let begun = Instant::now();
                let page = Bytes::from(make.await);
                *last = Some((begun, page.clone()));
                page
            }
        }
    }
}

/// What all connections share.
struct Shared {
    pages: Arc<Pages>,
    hosts: Hosts,
    connections: Open,
    readers: Open,
    open_metrics: Kind,
    text: Kind,
    status: Kind,
}

/// Serves the pages until the future is dropped.
pub async fn run(listener: TcpListener, pages: Arc<Pages>, hosts: Hosts) {
    let shared = Arc::new(Shared {
        pages,
        hosts,
        connections: Open::default(),
        readers: Open::default(),
        open_metrics: Kind::default(),
        text: Kind::default(),
        status: Kind::default(),
    });
    let mut complained = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if std::mem::take(&mut complained) {
                    tracing::info!("connections on http_address can be accepted again");
                }
                let close = Arc::new(Notify::new());
                shared.connections.add(&close, CONNECTIONS_MAX);
                // A client that breaks off or is cut off is no event.
                tokio::spawn(tokio::time::timeout(
                    CONNECTION_MAX,
                    serve(stream, shared.clone(), close),
                ));
                // What has come with it is read before the next one can take its place.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                if !std::mem::replace(&mut complained, true) {
                    tracing::warn!(%error, "no connection on http_address can be accepted");
                }
                // Its descriptor is what the next one needs.
                Open::close_oldest(&mut locked(&shared.connections.0), 1);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>, close: Arc<Notify>) -> hyper::Result<()> {
    // One that cannot be bounded is served as well.
    let _ = set_send_buffer(&stream, SEND_BUFFER_BYTES);
    let closed = close.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, close) = (shared.clone(), close.clone());
        async move { Ok::<_, Infallible>(shared.answer(&request, &close).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .keep_alive(false)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        result = connection => result,
        () = closed.notified() => Ok(()),
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

impl Shared {
    async fn answer(
        &self,
        request: &Request<Incoming>,
        close: &Arc<Notify>,
    ) -> Response<Full<Bytes>> {
        let (method, path) = (request.method(), request.uri().path());
        // It says nothing that could be read from here, and a probe must not fail for its header.
        let host = request.headers().get(HOST).filter(|_| path != "/healthz");
        if let Some(host) = host
            && !self.hosts.allow(host.as_bytes())
        {
            let body = "this page is not shown under that host name: ask by IP address, or add the \
                        name to http_hosts in [admin]\n";
            return response(StatusCode::MISDIRECTED_REQUEST, TEXT, body);
        }
        if *method != Method::GET && *method != Method::HEAD {
            let mut response =
                response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match path {
            "/metrics" => {
                let accept = request.headers().get_all(ACCEPT).into_iter();
                let format = Format::wanted(accept.filter_map(|value| value.to_str().ok()));
                let kind = match format {
                    Format::OpenMetrics => &self.open_metrics,
                    Format::Text => &self.text,
                };
                self.readers.add(close, PAGES_MAX);
                let page = kind.page(self.pages.metrics(format)).await;
                let mut response = response(StatusCode::OK, format.content_type(), page);
                response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
                response
            }
            "/healthz" => response(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => match self.pages.ready() {
                Ok(()) => response(StatusCode::OK, TEXT, "ready\n"),
                Err(reason) => {
                    response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{reason}\n"))
                }
            },
            "/" => {
                self.readers.add(close, PAGES_MAX);
                let page = self.status.page(self.pages.status()).await;
                response(StatusCode::OK, "text/html; charset=utf-8", page)
            }
            _ => {
                let body = "there are /, /metrics, /healthz and /readyz\n";
                response(StatusCode::NOT_FOUND, TEXT, body)
            }
        }
    }
}

fn response(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"),
    );
    response
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// One after another, a page each, they would hold the last one up for a minute.
    #[tokio::test]
    async fn for_all_who_ask_while_one_is_made_one_more_is_made() {
        let kind = Kind::default();
        let made = AtomicUsize::new(0);
        let ask = || async {
            let make = async {
                tokio::task::yield_now().await;
                made.fetch_add(1, Ordering::Relaxed).to_string()
            };
            kind.page(make).await.to_vec()
        };
        let pages = tokio::join!(ask(), ask(), ask(), ask());
        assert_eq!(pages, (b"0".to_vec(), b"1".to_vec(), b"1".to_vec(), b"1".to_vec()));
        assert_eq!(ask().await, b"2");
    }

    #[tokio::test]
    async fn of_too_many_the_oldest_that_is_still_open_is_closed() {
        let open = Open::default();
        let mut all: Vec<_> = (0..4).map(|_| Arc::new(Notify::new())).collect();
        for close in &all[..3] {
            open.add(close, 3);
        }
        drop(all.remove(0));
        open.add(&all[2], 3);
        let mut closed = Vec::new();
        open.add(&Arc::new(Notify::new()), 3);
        for close in &all {
            closed.push(tokio::time::timeout(Duration::ZERO, close.notified()).await.is_ok());
        }
        assert_eq!(closed, [true, false, false]);
    }
}
