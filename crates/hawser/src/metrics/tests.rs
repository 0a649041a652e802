//! What a scraper and a stranger see.

use std::collections::BTreeMap;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::host::Hosts;
use super::*;
use crate::admin::tests::fake;

/// A text of metrics as name (with labels) and value, or what is wrong with it.
fn parse(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let mut values = BTreeMap::new();
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            if let Some(rest) = rest.strip_prefix("TYPE ") {
                let (name, _) = rest.split_once(' ').ok_or(line)?;
                family = name.to_owned();
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').ok_or(line)?;
        if !name.starts_with(&family) || !name.starts_with("hawser_") {
            return Err(format!("{name} stands under {family}"));
        }
        let value = value.parse().map_err(|_| format!("no number: {line}"))?;
        if values.insert(name.to_owned(), value).is_some() {
            return Err(format!("twice: {name}"));
        }
    }
    if !text.ends_with("# EOF\n") {
        return Err("it does not end".to_owned());
    }
    Ok(values)
}

#[tokio::test]
async fn metrics_can_be_parsed_and_show_the_pools_counters() {
    let pages = Pages::new(fake());
    let values = parse(&pages.metrics().await).unwrap();
    let labels = "{database=\"app\",user=\"app_owner\"}";
    assert_eq!(values[&format!("hawser_transactions_total{labels}")], 10.0);
    assert_eq!(values[&format!("hawser_received_bytes_total{labels}")], 1_000.0);
    assert_eq!(values[&format!("hawser_query_seconds_count{labels}")], 2.0);
    let bucket = |bound: &str| {
        values[&format!(
            "hawser_query_seconds_bucket{{le=\"{bound}\",database=\"app\",user=\"app_owner\"}}"
        )]
    };
    assert_eq!(bucket("0.00005"), 0.0);
    assert_eq!(bucket("0.0001"), 1.0);
    assert_eq!(bucket("26.2144"), 1.0);
    assert_eq!(bucket("+Inf"), 2.0);
    let state = |state: &str| {
        values[&format!("hawser_clients{{database=\"app\",user=\"app_owner\",state=\"{state}\"}}")]
    };
    assert_eq!(state("idle") + state("active") + state("waiting"), 3.0);
    assert_eq!(values["hawser_ready"], 1.0);
    assert!(values["hawser_process_open_fds"] > 2.0);
}

async fn served() -> (std::net::SocketAddr, Arc<crate::admin::tests::Fake>) {
    let fake = fake();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let hosts = Hosts::new(&[], None);
    tokio::spawn(http::run(listener, Arc::new(Pages::new(fake.clone())), hosts));
    (address, fake)
}

async fn request(address: std::net::SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn pages_answer_get_and_head_and_nothing_else() {
    let (address, fake) = served().await;
    for (head, status) in [
        ("GET / HTTP/1.1", "200"),
        ("GET /metrics HTTP/1.1", "200"),
        ("GET /metrics?a=b HTTP/1.1", "200"),
        ("GET /healthz HTTP/1.1", "200"),
        ("GET /readyz HTTP/1.0", "200"),
        ("GET /etc/passwd HTTP/1.1", "404"),
        ("POST /metrics HTTP/1.1", "405"),
        ("DELETE / HTTP/1.1", "405"),
        ("NONSENSE", "400"),
    ] {
        let answer = request(address, head).await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{head}: {answer}");
    }
    let head = request(address, "HEAD / HTTP/1.1").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    *fake.ready.lock().unwrap() = Err("draining".to_owned());
    let answer = request(address, "GET /readyz HTTP/1.1").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("draining\n"), "{answer}");
}

#[tokio::test]
async fn a_head_beyond_the_bound_is_refused() {
    let (address, _) = served().await;
    let long = format!("GET /{} HTTP/1.1", "x".repeat(64 * 1024));
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may close before it has read everything.
    let _ = stream.write_all(format!("{long}\r\n\r\n").as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn who_holds_connections_without_a_word_is_cut_off_for_one_that_speaks() {
    let (address, _) = served().await;
    let mut silent = Vec::new();
    for _ in 0..2 * http::WAITING_MAX {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    // Far less than a head may take.
    let answer =
        tokio::time::timeout(Duration::from_secs(4), request(address, "GET /healthz HTTP/1.1"));
    assert!(answer.await.unwrap().starts_with("HTTP/1.1 200"));
    // The oldest gave way, the newest are still there.
    assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap(), 0);
    let newest = silent.last_mut().unwrap();
    let mut byte = [0; 1];
    let read = tokio::time::timeout(Duration::from_millis(50), newest.read(&mut byte));
    assert!(read.await.is_err(), "it waits for its head");
}

#[tokio::test]
async fn under_a_strangers_name_only_health_is_shown() {
    let (address, _) = served().await;
    let under = async |name: &str, path: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    for path in ["/", "/metrics", "/readyz", "/other"] {
        assert_eq!(under("rebound.example", path).await, "421", "{path}");
        assert_ne!(under("127.0.0.1:9632", path).await, "421", "{path}");
    }
    assert_eq!(under("rebound.example", "/healthz").await, "200");
}
