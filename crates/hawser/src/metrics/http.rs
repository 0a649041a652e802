//! The HTTP server of the pages.
//!
//! # Model
//! A connection waits for its client twice: for the request's head, and for the answer to be taken.
//! Between the two it is answered at once. Those that wait are listed; beyond [`WAITING_MAX`] one of
//! them is closed for each that comes, as for logins (see [`crate::limits::half_open`]): of the
//! address that has most of them the one that has waited longest. So one that sends its request at
//! once (a liveness probe) is answered, however many others are slow.
//!
//! # Invariants
//! * at most [`WAITING_MAX`] connections and the one that has just come
//! * a connection lives [`CONNECTION_MAX`] at most, and serves one request: who is slow is cut off
//! * of each kind one page is made at a time, and a bounded number is kept for slow readers: see
//!   [`super::unsent`]; `/healthz` does not wait for them
//! * running out of descriptors is one event, as is its end; it never spins
//! * GET and HEAD only; nothing that a client sends is kept
//! * a page is shown under a name that no stranger can point here: see [`super::host`]

use crate::lock::locked;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
use tokio::sync::{Notify, oneshot};

use super::Pages;
use super::format::Format;
use super::host::Hosts;
use super::unsent::{Kind, Unsent};

/// Connections at one time.
pub const WAITING_MAX: usize = 128;
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

/// Those that wait for their clients, oldest first.
#[derive(Default)]
struct Waiting {
    all: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
    last_number: u64,
}

impl Waiting {
    /// Lists one. What is returned ends when it is to be closed.
    fn list(&mut self, address: IpAddr) -> (u64, oneshot::Receiver<()>) {
        let (stay, closed) = oneshot::channel();
        self.last_number += 1;
        self.all.insert(self.last_number, (address, stay));
        (self.last_number, closed)
    }

    /// Closes one: see above. It looks at all, of which there are few.
    fn shed(&mut self) -> bool {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (address, _) in self.all.values() {
            *counts.entry(*address).or_default() += 1;
        }
        let Some(most) = counts.values().max().copied() else { return false };
        let of_most = |(address, _): &(IpAddr, oneshot::Sender<()>)| counts[address] == most;
        let next = self.all.iter().find(|(_, one)| of_most(one)).map(|(number, _)| *number);
        next.is_some_and(|number| self.all.remove(&number).is_some())
    }
}

/// Strikes a connection from the list when it ends.
struct Listed {
    waiting: Arc<Mutex<Waiting>>,
    number: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        locked(&self.waiting).all.remove(&self.number);
    }
}

/// What all connections share.
struct Shared {
    pages: Arc<Pages>,
    hosts: Hosts,
    unsent: Unsent,
    open_metrics: Kind,
    text: Kind,
    status: Kind,
}

/// Serves the pages until the future is dropped.
pub async fn run(listener: TcpListener, pages: Arc<Pages>, hosts: Hosts) {
    let shared = Arc::new(Shared {
        pages,
        hosts,
        unsent: Unsent::default(),
        open_metrics: Kind::default(),
        text: Kind::default(),
        status: Kind::default(),
    });
    let waiting: Arc<Mutex<Waiting>> = Arc::default();
    let mut complained = false;
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                if std::mem::take(&mut complained) {
                    tracing::info!("connections on http_address can be accepted again");
                }
                admit(&shared, &waiting, stream, from);
                // What has come with it is read before the next one can take its place.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                if !std::mem::replace(&mut complained, true) {
                    tracing::warn!(%error, "no connection on http_address can be accepted");
                }
                // Its descriptor is what the next one needs.
                locked(&waiting).shed();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn admit(shared: &Arc<Shared>, waiting: &Arc<Mutex<Waiting>>, stream: TcpStream, from: SocketAddr) {
    let (number, closed) = {
        let mut waiting = locked(waiting);
        if waiting.all.len() >= WAITING_MAX {
            waiting.shed();
        }
        waiting.list(from.ip().to_canonical())
    };
    let listed = Listed { waiting: waiting.clone(), number };
    let shared = shared.clone();
    tokio::spawn(async move {
        let _listed = listed;
        // A client that breaks off or is cut off is no event.
        tokio::select! {
            biased;
            _ = tokio::time::timeout(CONNECTION_MAX, serve(stream, shared)) => {}
            _ = closed => {}
        }
    });
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) -> hyper::Result<()> {
    // One that cannot be bounded is served as well.
    let _ = set_send_buffer(&stream, SEND_BUFFER_BYTES);
    let withdrawn = Arc::new(Notify::new());
    let closed = withdrawn.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, closed) = (shared.clone(), closed.clone());
        async move { Ok::<_, Infallible>(shared.answer(&request, &closed).await) }
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
        () = withdrawn.notified() => Ok(()),
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

impl Shared {
    async fn answer(
        &self,
        request: &Request<Incoming>,
        closed: &Arc<Notify>,
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
                let page = kind.page(&self.unsent, closed, self.pages.metrics(format)).await;
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
                let page = self.status.page(&self.unsent, closed, self.pages.status()).await;
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
    use super::*;

    #[test]
    fn who_has_most_loses_the_oldest() {
        let mut waiting = Waiting::default();
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let (probe, mut probe_closed) = waiting.list(address(1));
        let floods: Vec<_> = (0..3).map(|_| waiting.list(address(2))).collect();
        for _ in 0..2 {
            assert!(waiting.shed());
        }
        let left: Vec<u64> = waiting.all.keys().copied().collect();
        assert_eq!(left, [probe, floods[2].0], "and the newest of the flood");
        assert!(probe_closed.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Empty));
        assert!(waiting.shed() && waiting.shed() && !waiting.shed());
    }
}
