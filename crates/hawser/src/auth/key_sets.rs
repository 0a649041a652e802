//! The keys of issuers of tokens, from files and addresses: kept, and read again.
//!
//! # Model
//! ```text
//!   a token names a key ─► known: used, and read again every KEPT
//!                      └─► not known: read again, at most once every AGAIN
//! ```
//! # Invariants
//! * one reading at a time for each source: a login without keys waits for it and uses its result,
//!   one with keys continues with these
//! * after a failed reading no login waits for another within [`AFTER_FAILURE`], or [`AGAIN`] where there are
//!   keys
//! * keys that cannot be read again are used for [`STALE_MAX`] at most, so that withdrawn keys
//!   expire
//!
//! # Limits  no redirects, no proxies; HTTP/1.1

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::auth::jwt::KeySet;
use crate::auth::oauth::KeySource;
use crate::lock::locked;
use crate::tls::connect::server_name;

/// How long keys are used before they are read again.
const KEPT: Duration = Duration::from_secs(300);
/// Between two readings for an unknown key: anyone can name one.
const AGAIN: Duration = Duration::from_secs(10);
/// The same of a file.
const FILE_AGAIN: Duration = Duration::from_secs(1);
const AFTER_FAILURE: Duration = Duration::from_secs(1);
const STALE_MAX: Duration = Duration::from_secs(3_600);
/// The longest document.
const DOCUMENT_BYTES_MAX: usize = 1 << 20;

/// The keys of all issuers.
#[derive(Debug, Default)]
pub struct KeySets(Mutex<HashMap<KeySource, Arc<Held>>>);

/// The keys of one issuer.
#[derive(Debug, Default)]
struct Held {
    kept: Mutex<Option<Kept>>,
    /// Held by the reader: when and why the last reading failed, if it did.
    reading: AsyncMutex<Option<(Instant, String)>>,
}

/// Keys that have been read.
#[derive(Debug, Clone)]
struct Kept {
    /// When.
    read: Instant,
    /// They must be read again however new they are, because the configuration was reloaded.
    is_due: bool,
    keys: Arc<KeySet>,
}

impl Held {
    fn kept(&self) -> Option<Kept> {
        locked(&self.kept).clone()
    }
}

/// How documents are fetched.
#[derive(Debug, Clone)]
pub struct Fetching {
    /// For https.
    pub tls: Arc<ClientConfig>,
    /// How long a reading may take.
    pub within: Duration,
}

impl KeySets {
    /// Takes over the keys of issuers: they are read again when they are next needed, and used if that fails.
    pub fn keep_from(&self, old: &Self) {
        let old = locked(&old.0);
        let mut all = locked(&self.0);
        for (source, held) in old.iter().filter(|(source, _)| !matches!(source, KeySource::File(_)))
        {
            let due = held.kept().map(|kept| Kept { is_due: true, ..kept });
            let kept = Mutex::new(due);
            all.insert(source.clone(), Arc::new(Held { kept, ..Held::default() }));
        }
    }

    /// The keys of a source; `anew`: the kept ones did not suffice.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn get(
        &self,
        source: &KeySource,
        anew: bool,
        fetching: &Fetching,
    ) -> Result<Arc<KeySet>, String> {
        let held = {
            let mut all = locked(&self.0);
            all.entry(source.clone()).or_default().clone()
        };
        let again = match source {
            KeySource::File(_) => FILE_AGAIN,
            KeySource::Url(_) | KeySource::Discovery(_) => AGAIN,
        };
        let enough = if anew { again } else { KEPT };
        let fresh = |held: &Held| {
            let kept = held.kept().filter(|kept| !kept.is_due && kept.read.elapsed() < enough);
            kept.map(|kept| kept.keys)
        };
        if let Some(keys) = fresh(&held) {
            return Ok(keys);
        }
        let usable = held.kept().filter(|kept| kept.read.elapsed() < STALE_MAX);
        let fallback = usable.map(|kept| kept.keys);
        let mut failed = match (&fallback, held.reading.try_lock()) {
            (_, Ok(failed)) => failed,
            (Some(keys), Err(_)) => return Ok(keys.clone()),
            (None, Err(_)) => held.reading.lock().await,
        };
        if let Some(keys) = fresh(&held) {
            return Ok(keys); // another login has read them
        }
        let pause = if fallback.is_some() { again } else { AFTER_FAILURE };
        if let Some((when, reason)) = &*failed
            && when.elapsed() < pause
        {
            return fallback.ok_or_else(|| reason.clone());
        }
        let read = timeout(fetching.within, read(source, fetching)).await;
        let read = read.unwrap_or_else(|_| {
            Err(format!("{source}: no answer within {} s", fetching.within.as_secs_f32()))
        });
        match read {
            Ok(keys) => {
                let keys = Arc::new(keys);
                let kept = Kept { read: Instant::now(), is_due: false, keys: keys.clone() };
                *locked(&held.kept) = Some(kept);
                *failed = None;
                Ok(keys)
            }
            Err(reason) => {
                tracing::warn!(%reason, "the keys of an issuer of tokens cannot be read");
                *failed = Some((Instant::now(), reason.clone()));
                fallback.ok_or(reason)
            }
        }
    }
}

async fn read(source: &KeySource, fetching: &Fetching) -> Result<KeySet, String> {
    let failed = |reason: String| format!("{source}: {reason}");
    let document = match source {
        KeySource::File(path) => read_file(path).await,
        KeySource::Url(url) => fetch(url, &fetching.tls).await,
        KeySource::Discovery(url) => {
            let document = fetch(url, &fetching.tls).await.map_err(failed)?;
            let url = address_of_keys(&document).map_err(failed)?;
            fetch(&url, &fetching.tls).await
        }
    };
    document.and_then(|document| KeySet::parse(&document)).map_err(failed)
}

async fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
    read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

/// `jwks_uri` of a discovery document, which must not lead to an address that can be eavesdropped on.
fn address_of_keys(document: &[u8]) -> Result<String, String> {
    let document: serde_json::Value =
        serde_json::from_slice(document).map_err(|error| error.to_string())?;
    let url = document.get("jwks_uri").and_then(serde_json::Value::as_str);
    crate::auth::oauth::url(url.ok_or("it names no jwks_uri")?)
}

/// The body of the answer to a GET.
///
/// # Errors
/// There is none, or it is not 200.
pub async fn fetch(url: &str, tls: &Arc<ClientConfig>) -> Result<Vec<u8>, String> {
    let uri: Uri = url.parse().map_err(|_| "it is no address".to_owned())?;
    let host = uri.host().ok_or("it names no host")?.trim_matches(['[', ']']).to_owned();
    let encrypted = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
    let text_of = |error: &dyn std::fmt::Display| error.to_string();
    let stream =
        TcpStream::connect((host.as_str(), port)).await.map_err(|error| text_of(&error))?;
    if !encrypted {
        return get(stream, &uri).await;
    }
    let connector = TlsConnector::from(tls.clone());
    let stream = connector.connect(server_name(&host)?, stream).await;
    get(stream.map_err(|error| text_of(&error))?, &uri).await
}

async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    uri: &Uri,
) -> Result<Vec<u8>, String> {
    let text_of = |error: hyper::Error| error.to_string();
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path)
        .header(header::HOST, authority)
        .header(header::ACCEPT, "application/json")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(text_of)?;
    let asked = async {
        let answer = sender.send_request(request).await.map_err(text_of)?;
        if answer.status() != StatusCode::OK {
            return Err(format!("HTTP status {}", answer.status().as_u16()));
        }
        let body = Limited::new(answer.into_body(), DOCUMENT_BYTES_MAX).collect().await;
        body.map(|body| body.to_bytes().to_vec()).map_err(|error| error.to_string())
    };
    // Polled together: the connection makes progress only while it is polled.
    tokio::pin!(asked);
    tokio::select! {
        result = &mut asked => result,
        ended = connection => match ended {
            Ok(()) => asked.await,
            Err(error) => Err(error.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each reload took five minutes off the hour: after a dozen, all logins failed while the
    /// issuer did not answer.
    #[test]
    fn reloads_make_keys_due_and_no_older() {
        let source = KeySource::Url("https://issuer.example/keys".to_owned());
        let read = Instant::now();
        let kept = Kept { read, is_due: false, keys: Arc::default() };
        let mut sets = KeySets::default();
        let held = Held { kept: Mutex::new(Some(kept)), ..Held::default() };
        sets.0.get_mut().unwrap().insert(source.clone(), Arc::new(held));
        for _ in 0..20 {
            let new = KeySets::default();
            new.keep_from(&sets);
            sets = new;
        }
        let kept = sets.0.lock().unwrap()[&source].kept().unwrap();
        assert!(kept.is_due);
        assert_eq!(kept.read, read);
    }
}
