//! The HTTP server of the pages.
//!
//! # Invariants
//! * at most [`CONNECTIONS_MAX`] connections; further ones wait in the kernel's queue
//! * a connection lives [`CONNECTION_MAX`] at most, and serves one request: who is slow is cut off
//! * running out of descriptors is one event, as is its end; it never spins
//! * GET and HEAD only; nothing that a client sends is kept

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::Pages;

/// Connections at one time.
pub const CONNECTIONS_MAX: usize = 64;
/// How long a request's head may take.
const HEAD_WAIT: Duration = Duration::from_secs(5);
/// How long a connection may live.
const CONNECTION_MAX: Duration = Duration::from_secs(15);
/// A request's head.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Its lines.
const HEADERS_MAX: usize = 64;
/// A pause after an error of accept(2), so that it does not spin when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the pages until the future is dropped.
pub async fn run(listener: TcpListener, pages: Arc<Pages>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut complained = false;
    loop {
        // The semaphore is never closed.
        let Ok(place) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                if std::mem::take(&mut complained) {
                    tracing::info!("connections on http_address can be accepted again");
                }
                let pages = pages.clone();
                tokio::spawn(async move {
                    // A client that breaks off or is cut off is no event.
                    let _ = tokio::time::timeout(CONNECTION_MAX, serve(stream, pages)).await;
                    drop(place);
                });
            }
            Err(error) => {
                if !std::mem::replace(&mut complained, true) {
                    tracing::warn!(%error, "no connection on http_address can be accepted");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, pages: Arc<Pages>) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let pages = pages.clone();
        async move { Ok::<_, Infallible>(answer(request.method(), request.uri().path(), &pages).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .keep_alive(false)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn answer(method: &Method, path: &str, pages: &Pages) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let mut allow = false;
    let (status, kind, body) = if *method != Method::GET && *method != Method::HEAD {
        allow = true;
        (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned())
    } else {
        match path {
            "/metrics" => (StatusCode::OK, super::CONTENT_TYPE, pages.metrics().await),
            "/healthz" => (StatusCode::OK, TEXT, "ok\n".to_owned()),
            "/readyz" => match pages.ready() {
                Ok(()) => (StatusCode::OK, TEXT, "ready\n".to_owned()),
                Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{reason}\n")),
            },
            "/" => (StatusCode::OK, "text/html; charset=utf-8", pages.status()),
            _ => {
                let body = "there are /, /metrics, /healthz and /readyz\n".to_owned();
                (StatusCode::NOT_FOUND, TEXT, body)
            }
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"),
    );
    if allow {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
