//! What a scraper and a stranger see.

use std::collections::BTreeMap;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::format::Format;
use super::host::Hosts;
use super::*;
use crate::admin::tests::fake;

/// What a sample of a family may be called, by the family's type.
fn endings(kind: &str, format: Format) -> Result<&'static [&'static str], String> {
    Ok(match (kind, format) {
        ("gauge", _) | ("counter", Format::Text) => &[""],
        ("counter", Format::OpenMetrics) => &["_total"],
        ("info", Format::OpenMetrics) => &["_info"],
        ("histogram", _) => &["_bucket", "_count", "_sum"],
        _ => return Err(format!("no type here: {kind}")),
    })
}

/// Name and labels of a series; the labels are well-formed and none is there twice.
fn series(text: &str) -> Result<(&str, BTreeMap<String, String>), String> {
    let mut labels = BTreeMap::new();
    let Some((name, rest)) = text.split_once('{') else { return Ok((text, labels)) };
    let mut rest = rest.strip_suffix('}').ok_or(text)?;
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").ok_or(text)?;
        let (value, after) = after.split_once('"').ok_or(text)?; // no test has one within
        if labels.insert(label.to_owned(), value.to_owned()).is_some() {
            return Err(format!("a label twice: {text}"));
        }
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    Ok((name, labels))
}

/// A text of metrics as name (with labels) and value, or what is wrong with it: as strict as
/// `promtool check metrics`, and as OpenMetrics' own rules for the other format.
fn parse(text: &str, format: Format) -> Result<BTreeMap<String, f64>, String> {
    let mut values = BTreeMap::new();
    let mut families = BTreeMap::new();
    let (mut family, mut help) = ("", "");
    let mut ended = false;
    for line in text.lines() {
        if ended {
            return Err(format!("after the end: {line}"));
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            (help, _) = rest.split_once(' ').filter(|(_, help)| help.len() > 3).ok_or(line)?;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or(line)?;
            family = name;
            if help != name {
                return Err(format!("{name} has no help"));
            }
            if !name.starts_with("hawser_") || families.insert(name, kind).is_some() {
                return Err(format!("{name} is another's name, or there twice"));
            }
            if kind == "counter" && name.ends_with("_total") != (format == Format::Text) {
                return Err(format!("a counter called {name}"));
            }
            endings(kind, format)?;
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            let (name, unit) = rest.split_once(' ').ok_or(line)?;
            if format == Format::Text || name != family || !name.ends_with(unit) {
                return Err(line.to_owned());
            }
        } else if line == "# EOF" {
            ended = true;
        } else if line.starts_with('#') || line.is_empty() {
            return Err(format!("neither help, type nor sample: {line}"));
        } else {
            let (name, value) = line.rsplit_once(' ').ok_or(line)?;
            let (metric, labels) = series(name)?;
            let ending = metric.strip_prefix(family).ok_or(line)?;
            let kind = *families.get(family).ok_or(line)?;
            if !endings(kind, format)?.contains(&ending) {
                return Err(format!("{metric} stands under {family}, which is a {kind}"));
            }
            if (ending == "_bucket") != labels.contains_key("le") {
                return Err(format!("only buckets have bounds: {line}"));
            }
            let value = value.parse().map_err(|_| format!("no number: {line}"))?;
            if values.insert(name.to_owned(), value).is_some() {
                return Err(format!("twice: {name}"));
            }
        }
    }
    if ended != (format == Format::OpenMetrics) || !text.ends_with('\n') {
        return Err("it does not end, or twice".to_owned());
    }
    Ok(values)
}

#[tokio::test]
async fn both_formats_can_be_parsed_strictly_and_show_the_pools_counters() {
    let pages = Pages::new(fake());
    let mut names = Vec::new();
    for format in [Format::OpenMetrics, Format::Text] {
        let text = pages.metrics(format).await;
        let values = parse(&text, format).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
        let labels = "{database=\"app\",user=\"app_owner\"}";
        assert_eq!(values[&format!("hawser_server_is_pooler{labels}")], 1.0);
        assert_eq!(values[&format!("hawser_transactions_total{labels}")], 10.0);
        assert_eq!(values[&format!("hawser_received_bytes_total{labels}")], 1_000.0);
        assert_eq!(values[&format!("hawser_query_seconds_count{labels}")], 2.0);
        let slow =
            values.iter().find(|(name, _)| name.starts_with("hawser_query_time_seconds_total"));
        assert_eq!(slow.map(|(_, value)| *value), Some(0.0009));
        assert_eq!(values["hawser_other_query_calls_total"], 5.0);
        let bucket = |bound: &str| {
            values[&format!(
                "hawser_query_seconds_bucket{{le=\"{bound}\",database=\"app\",user=\"app_owner\"}}"
            )]
        };
        assert_eq!(bucket("0.00005"), 0.0);
        assert_eq!(bucket("0.0001"), 1.0);
        assert_eq!(bucket("26.2144"), 1.0);
        assert_eq!(bucket("+Inf"), 2.0);
        let session = "link=\"main\",session=\"main\"";
        let line = format!("{{{session},own=\"10.0.0.1\",peer=\"10.0.0.2\"}}");
        assert_eq!(values["hawser_link_streams_opened_total{link=\"main\"}"], 4.0);
        assert_eq!(values[&format!("hawser_link_paths{{{session},state=\"up\"}}")], 1.0);
        assert_eq!(values[&format!("hawser_link_paths{{{session},state=\"resting\"}}")], 0.0);
        assert_eq!(values[&format!("hawser_link_stall_seconds{{{session}}}")], 4.2);
        assert_eq!(values[&format!("hawser_link_line_carries_bytes{line}")], 1e6);
        assert_eq!(values[&format!("hawser_link_line_round_trip_seconds{line}")], 0.0205);
        assert_eq!(values[&format!("hawser_link_line_sent_again_ratio{line}")], 0.015);
        let state = |state: &str| {
            let labels = format!("database=\"app\",user=\"app_owner\",state=\"{state}\"");
            values[&format!("hawser_clients{{{labels}}}")]
        };
        assert_eq!(state("idle") + state("active") + state("waiting"), 3.0);
        assert_eq!(values["hawser_ready"], 1.0);
        assert!(values["hawser_process_open_fds"] > 2.0);
        names.push(values.into_keys().collect::<Vec<_>>());
    }
    assert_eq!(names[0], names[1], "the same samples in both");
}

#[tokio::test]
async fn a_scraper_gets_the_format_that_it_accepts() {
    let (address, _) = served().await;
    for (accept, kind) in [
        ("", "text/plain; version=0.0.4"),
        ("\r\nAccept: */*", "text/plain; version=0.0.4"),
        ("\r\naccept: application/openmetrics-text;version=1.0.0", "application/openmetrics-text"),
    ] {
        let answer = request(address, &format!("GET /metrics HTTP/1.1{accept}")).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-type: {kind}")), "{accept}: {head}");
        assert!(head.contains("vary: Accept"), "{head}");
        assert_eq!(body.ends_with("# EOF\n"), kind.starts_with("app"), "{accept}");
    }
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
    for _ in 0..2 * http::CONNECTIONS_MAX {
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
