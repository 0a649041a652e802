//! etcd by its JSON gateway: what [`hawser_pooler::shares`] asks for, as HTTP.
//!
//! # Model
//! ```text
//!   Grant      /v3/lease/grant           KeepAlive  /v3/lease/keepalive (a stream of one)
//!   Look       /v3/kv/txn of ranges: what they show is of one moment
//!   Change     /v3/kv/txn of a txn for each change, which has its own condition
//! ```
//! Keys and values are base64, numbers of 64 bits are strings. One connection at a time, to one member; after
//! each failure the next member is tried.
//!
//! # Why not  a crate with gRPC: decision 15

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hawser_pooler::shares::{
    Answer, Change, Failure, Key, LeaseId, Look, Request, Revision, Taken, Want,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Uri, header};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::config::EtcdSettings;
use crate::tls::connect::{self, server_name};

/// The longest answer: 100 limits with a thousand places each.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// How much is shown of what a member says that is no good, in characters.
const SHOWN_MAX: usize = 200;
/// gRPC's codes.
const NOT_FOUND: i64 = 5;
const UNAUTHENTICATED: i64 = 16;
/// What etcd says, with the code of an invalid argument, of a token that is older than its users and roles.
const OLD_TOKEN: &str = "revision of auth store is old";

/// Why etcd has not done what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("etcd at {endpoint}: {reason}")]
pub struct EtcdError {
    endpoint: String,
    reason: String,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    LeaseEnded,
    NotLoggedIn,
    Other,
}

impl EtcdError {
    /// What that means for who has asked.
    pub fn failure(&self) -> Failure {
        match self.kind {
            Kind::LeaseEnded => Failure::LeaseEnded,
            Kind::NotLoggedIn | Kind::Other => Failure::Unknown,
        }
    }
}

/// An etcd cluster.
#[derive(derive_more::Debug)]
#[debug("Etcd {{ endpoints: {endpoints:?}, .. }}")]
pub struct Etcd {
    endpoints: Vec<String>,
    prefix: String,
    lease: Duration,
    /// What is written into places, for people.
    name: String,
    tls: Option<Arc<ClientConfig>>,
    user: Option<(String, PathBuf)>,
    at: usize,
    connection: Option<SendRequest<Full<Bytes>>>,
    token: Option<String>,
}

impl Etcd {
    /// The cluster of the configuration; `None`: it names none. `name` says who has a place.
    ///
    /// # Errors
    /// A file of certificates is no good.
    pub fn load(settings: &EtcdSettings, name: String) -> Result<Option<Self>, String> {
        if settings.etcd.is_empty() {
            return Ok(None);
        }
        let encrypted = settings.etcd.iter().any(|endpoint| endpoint.starts_with("https:"));
        let own = settings.etcd_cert_file.as_deref().zip(settings.etcd_key_file.as_deref());
        let tls = encrypted.then(|| connect::to_etcd(settings.etcd_ca_file.as_deref(), own));
        let tls = tls.transpose().map_err(|error| format!("TLS to etcd: {error}"))?;
        Ok(Some(Self {
            endpoints: settings.etcd.clone(),
            prefix: settings.etcd_prefix.clone(),
            lease: settings.etcd_lease,
            name,
            tls,
            user: settings.etcd_user.clone().zip(settings.etcd_password_file.clone()),
            at: 0,
            connection: None,
            token: None,
        }))
    }

    /// Asks, and waits for the answer up to `within`.
    ///
    /// # Errors
    /// There is none, or it is an error.
    pub async fn ask(&mut self, request: &Request, within: Duration) -> Result<Answer, EtcdError> {
        let (path, body) = self.written(request);
        let answer = self.call(path, &body, within).await?;
        read(request, &answer, &self.prefix).ok_or_else(|| {
            let error = self.error(format!("it answers what is not etcd's: {answer}"));
            self.try_next_member();
            error
        })
    }

    /// Gives everything back that is attached to the lease.
    ///
    /// # Errors
    /// As [`Etcd::ask`].
    pub async fn revoke(&mut self, lease: LeaseId, within: Duration) -> Result<(), EtcdError> {
        let body = json!({ "ID": lease.0.to_string() });
        self.call("/v3/lease/revoke", &body, within).await.map(drop)
    }

    /// Whether keys under the prefix can be read. Which member has answered.
    ///
    /// # Errors
    /// As [`Etcd::ask`]; of the last member that was tried.
    pub async fn try_out(&mut self, within: Duration) -> Result<String, EtcdError> {
        let mut last = None;
        for _ in 0..self.endpoints.len() {
            match self.ask(&Request::Look(Vec::new()), within).await {
                Ok(_) => return Ok(self.endpoint().to_owned()),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| self.error("there is no endpoint".to_owned())))
    }

    fn endpoint(&self) -> &str {
        self.endpoints.get(self.at % self.endpoints.len().max(1)).map_or("", String::as_str)
    }

    fn error(&self, mut reason: String) -> EtcdError {
        if let Some((end, _)) = reason.char_indices().nth(SHOWN_MAX) {
            reason.truncate(end);
        }
        EtcdError { endpoint: self.endpoint().to_owned(), reason, kind: Kind::Other }
    }

    async fn call(
        &mut self,
        path: &str,
        body: &Value,
        within: Duration,
    ) -> Result<Value, EtcdError> {
        let asked = tokio::time::timeout(within, self.logged_in(path, body)).await;
        let result = asked.unwrap_or_else(|_| {
            Err(self.error(format!("no answer within {} ms", within.as_millis())))
        });
        if result.as_ref().is_err_and(|error| error.kind != Kind::LeaseEnded) {
            self.try_next_member();
        }
        result
    }

    fn try_next_member(&mut self) {
        self.connection = None;
        self.at = self.at.wrapping_add(1);
    }

    /// The same, with a token where etcd wants one; a new one if the old one is no good any more.
    async fn logged_in(&mut self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        if self.user.is_some() && self.token.is_none() {
            self.log_in().await?;
        }
        match self.post(path, body).await {
            Err(error) if error.kind == Kind::NotLoggedIn && self.user.is_some() => {
                self.log_in().await?;
                self.post(path, body).await
            }
            result => result,
        }
    }

    async fn log_in(&mut self) -> Result<(), EtcdError> {
        self.token = None;
        let Some((user, file)) = self.user.clone() else { return Ok(()) };
        let read = tokio::task::spawn_blocking({
            let file = file.clone();
            move || std::fs::read_to_string(file)
        });
        let text = match read.await {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => return Err(self.error(format!("{}: {error}", file.display()))),
            Err(error) => return Err(self.error(error.to_string())),
        };
        let password = text.lines().next().unwrap_or_default();
        let body = json!({ "name": user, "password": password });
        let answer = self.post("/v3/auth/authenticate", &body).await?;
        self.token = answer.get("token").and_then(Value::as_str).map(str::to_owned);
        Ok(())
    }

    async fn post(&mut self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        let mut sender = match self.connection.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => self.connect().await?,
        };
        let uri: Uri = self.endpoint().parse().unwrap_or_default();
        let mut request = hyper::Request::post(path)
            .header(header::HOST, uri.authority().map_or("", hyper::http::uri::Authority::as_str))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let told = |error: &dyn fmt::Display| self.error(error.to_string());
        let request =
            request.body(Full::new(Bytes::from(body.to_string()))).map_err(|error| told(&error))?;
        sender.ready().await.map_err(|error| told(&error))?;
        let response = sender.send_request(request).await.map_err(|error| told(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| told(&error))?.to_bytes();
        let answer = first_value(&body)
            .ok_or_else(|| self.error(format!("HTTP status {}, no JSON", status.as_u16())))?;
        self.connection = Some(sender);
        match refusal(&answer) {
            None if status.is_success() => Ok(answer),
            None => Err(self.error(format!("HTTP status {}", status.as_u16()))),
            Some((code, message)) => {
                let kind = match code {
                    NOT_FOUND if message.contains("lease not found") => Kind::LeaseEnded,
                    UNAUTHENTICATED => Kind::NotLoggedIn,
                    // (Users or roles have changed since the token was given.)
                    _ if message.contains(OLD_TOKEN) => Kind::NotLoggedIn,
                    _ => Kind::Other,
                };
                Err(EtcdError { kind, ..self.error(message) })
            }
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, EtcdError> {
        let told = |error: &dyn fmt::Display| self.error(error.to_string());
        let uri: Uri = self.endpoint().parse().map_err(|error| told(&error))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(2379);
        let stream = TcpStream::connect((host.as_str(), port)).await;
        let stream = stream.map_err(|error| told(&error))?;
        let _ = stream.set_nodelay(true); // without it, it is only slower
        match self.tls.as_ref().filter(|_| uri.scheme_str() == Some("https")) {
            None => speak(stream).await.map_err(|error| told(&error)),
            Some(tls) => {
                let name = server_name(&host).map_err(|error| told(&error))?;
                let stream = TlsConnector::from(tls.clone()).connect(name, stream).await;
                speak(stream.map_err(|error| told(&error))?).await.map_err(|error| told(&error))
            }
        }
    }

    /// The path and body of a request.
    fn written(&self, request: &Request) -> (&'static str, Value) {
        match request {
            Request::Grant => {
                let seconds = self.lease.as_secs() + u64::from(self.lease.subsec_nanos() > 0);
                ("/v3/lease/grant", json!({ "TTL": seconds.to_string() }))
            }
            Request::KeepAlive(lease) => {
                ("/v3/lease/keepalive", json!({ "ID": lease.0.to_string() }))
            }
            Request::Look(scopes) => {
                let wants = self.range(Key::WANTS, false);
                let places = scopes.iter().map(|scope| self.range(&scope.places(), true));
                let all: Vec<_> = std::iter::once(wants).chain(places).collect();
                ("/v3/kv/txn", json!({ "success": all }))
            }
            Request::Change(lease, changes) => {
                let all: Vec<_> =
                    changes.iter().map(|change| self.change(*lease, change)).collect();
                ("/v3/kv/txn", json!({ "success": all }))
            }
        }
    }

    fn key(&self, key: &str) -> String {
        STANDARD.encode(format!("{}{key}", self.prefix))
    }

    fn range(&self, beginning: &str, keys_only: bool) -> Value {
        let key = format!("{}{beginning}", self.prefix);
        let mut end = key.clone().into_bytes();
        if let Some(last) = end.last_mut() {
            *last += 1; // '/', as all beginnings end
        }
        json!({ "requestRange": {
            "key": STANDARD.encode(&key), "range_end": STANDARD.encode(end), "keys_only": keys_only,
        }})
    }

    fn change(&self, lease: LeaseId, change: &Change) -> Value {
        let put = |key: &str, value: String| {
            json!({ "requestPut": {
                "key": key, "value": STANDARD.encode(value), "lease": lease.0.to_string(),
            }})
        };
        let only_if = |key: &str, created: i64, then: Value| {
            json!({ "requestTxn": {
                "compare": [{
                    "key": key, "target": "CREATE", "result": "EQUAL",
                    "create_revision": created.to_string(),
                }],
                "success": [then],
            }})
        };
        match change {
            Change::Take(place) => {
                let key = self.key(&Key::of_place(place));
                only_if(&key, 0, put(&key, self.name.clone()))
            }
            Change::GiveBack(place, since) => {
                let key = self.key(&Key::of_place(place));
                only_if(&key, since.0, json!({ "requestDeleteRange": { "key": key } }))
            }
            Change::Want(scope, count) => {
                put(&self.key(&Key::of_want(scope, lease)), count.to_string())
            }
            Change::WantNoMore(scope) => {
                let key = self.key(&Key::of_want(scope, lease));
                json!({ "requestDeleteRange": { "key": key } })
            }
        }
    }
}

async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, hyper::Error> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the sender, or with an error that the sender has, too.
    tokio::spawn(connection);
    Ok(sender)
}

/// The first value of an answer: a stream is one value a line.
fn first_value(body: &[u8]) -> Option<Value> {
    serde_json::Deserializer::from_slice(body).into_iter().next()?.ok()
}

/// Code and message of an error answer.
fn refusal(answer: &Value) -> Option<(i64, String)> {
    let error = answer.get("error")?;
    // Of a stream it is an object of its own.
    let said = if error.is_object() { error } else { answer };
    let code = said.get("code").or(said.get("grpc_code")).and_then(Value::as_i64).unwrap_or(0);
    let message = said.get("message").or(said.get("error")).and_then(Value::as_str);
    Some((code, message.unwrap_or("an error without a message").to_owned()))
}

/// A number of 64 bits: a string, left out where it is 0.
fn number(value: &Value, name: &str) -> Option<i64> {
    match value.get(name) {
        None => Some(0),
        Some(Value::String(text)) => text.parse().ok(),
        Some(other) => other.as_i64(),
    }
}

fn seconds(value: &Value) -> Option<Duration> {
    number(value, "TTL")?.try_into().ok().map(Duration::from_secs)
}

/// What an answer says; `None`: it does not answer the request.
fn read(request: &Request, answer: &Value, prefix: &str) -> Option<Answer> {
    match request {
        Request::Grant => {
            let id = number(answer, "ID").filter(|id| *id != 0)?;
            Some(Answer::Granted(LeaseId(id), seconds(answer)?))
        }
        Request::KeepAlive(lease) => {
            let result = answer.get("result")?;
            // (One without an id would pass for a lease that has ended.)
            number(result, "ID").filter(|id| *id == lease.0)?;
            seconds(result).map(Answer::KeptAlive)
        }
        Request::Look(scopes) => {
            let ranges = answer.get("responses")?.as_array()?;
            if ranges.len() != scopes.len() + 1 {
                return None;
            }
            let mut look = Look::default();
            ranges.iter().try_for_each(|range| read_range(range, prefix, &mut look))?;
            Some(Answer::Seen(look))
        }
        Request::Change(_, changes) => {
            let revision = Revision(number(answer.get("header")?, "revision")?);
            let made = answer.get("responses")?.as_array()?;
            let is_made = |response: &Value| match response.get("response_txn") {
                Some(txn) => txn.get("succeeded") == Some(&Value::Bool(true)),
                None => true,
            };
            let made: Vec<_> = made.iter().map(is_made).collect();
            (made.len() == changes.len()).then_some(Answer::Changed(revision, made))
        }
    }
}

fn read_range(range: &Value, prefix: &str, look: &mut Look) -> Option<()> {
    let Some(found) = range.get("response_range")?.get("kvs") else { return Some(()) };
    for one in found.as_array()? {
        let key = STANDARD.decode(one.get("key")?.as_str()?).ok()?;
        let key = String::from_utf8_lossy(&key).into_owned();
        let (owner, since) =
            (LeaseId(number(one, "lease")?), Revision(number(one, "create_revision")?));
        match key.strip_prefix(prefix).and_then(Key::parse) {
            Some(Key::Place(place)) => look.taken.push(Taken { place, owner, since }),
            Some(Key::Want(scope)) => {
                let count = one.get("value").and_then(Value::as_str).unwrap_or_default();
                let count = STANDARD.decode(count).ok()?;
                // What is no number was not written by a pooler.
                let Ok(count) = String::from_utf8_lossy(&count).parse() else { continue };
                look.wants.push(Want { scope, owner, count, since });
            }
            None => {}
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use hawser_pooler::shares::{Kind as Limited, Place, Scope};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

    fn scope() -> Scope {
        Scope { kind: Limited::Database, name: "app".into() }
    }

    // The answers are those of etcd 3.4.23.

    #[test]
    fn leases_are_read_and_one_that_has_ended_has_no_time_left() {
        let granted = r#"{"header":{"revision":"1"},"ID":"7587899184294522629","TTL":"10"}"#;
        let granted = read(&Request::Grant, &first_value(granted.as_bytes()).unwrap(), "/h/");
        let lasts = Duration::from_secs(10);
        assert_eq!(granted, Some(Answer::Granted(LeaseId(7_587_899_184_294_522_629), lasts)));
        let request = Request::KeepAlive(LeaseId(5));
        for (answer, lasts) in [
            ("{\"result\":{\"header\":{},\"ID\":\"5\",\"TTL\":\"10\"}}\n\n", lasts),
            ("{\"result\":{\"header\":{},\"ID\":\"5\"}}\n\n", Duration::ZERO),
        ] {
            let answer = read(&request, &first_value(answer.as_bytes()).unwrap(), "/h/");
            assert_eq!(answer, Some(Answer::KeptAlive(lasts)));
        }
        let other = json!({ "result": {} });
        assert_eq!(read(&request, &other, "/h/"), None, "it is not of this lease");
    }

    #[test]
    fn changes_are_read_each_for_itself() {
        let place = |number| Place { scope: scope(), number };
        let changes =
            vec![Change::Take(place(1)), Change::Take(place(2)), Change::Want(scope(), 3)];
        let answer = r#"{"header":{"revision":"7"},"succeeded":true,"responses":[
            {"response_txn":{"header":{},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"7"}}}]}},
            {"response_txn":{"header":{}}}, {"response_put":{"header":{"revision":"7"}}}]}"#;
        let answer = first_value(answer.as_bytes()).unwrap();
        let request = Request::Change(LeaseId(5), changes);
        let read = read(&request, &answer, "/h/");
        assert_eq!(read, Some(Answer::Changed(Revision(7), vec![true, false, true])));
    }

    #[test]
    fn looks_are_read_and_keys_of_others_are_left_alone() {
        let key = |key: &str| STANDARD.encode(key);
        let answer = json!({ "header": {}, "succeeded": true, "responses": [
            { "response_range": { "header": {}, "kvs": [
                { "key": key("/h/wants/database/app/5"), "create_revision": "9", "value": key("4"), "lease": "5" },
            ]}},
            { "response_range": { "header": {}, "kvs": [
                { "key": key("/h/limits/database/app/17"), "create_revision": "8", "lease": "6" },
                { "key": key("/h/limits/database/app/x"), "create_revision": "8" },
            ]}},
        ]});
        let Some(Answer::Seen(look)) = read(&Request::Look(vec![scope()]), &answer, "/h/") else {
            panic!("{answer}")
        };
        assert_eq!(
            look.taken,
            [Taken {
                place: Place { scope: scope(), number: 17 },
                owner: LeaseId(6),
                since: Revision(8)
            }]
        );
        assert_eq!(
            look.wants,
            [Want { scope: scope(), owner: LeaseId(5), count: 4, since: Revision(9) }]
        );
        assert_eq!(read(&Request::Look(vec![scope(), scope()]), &answer, "/h/"), None);
    }

    /// A member that answers each request on its first connection with one of these, and what it was asked for.
    async fn member(answers: &'static [&'static str]) -> (String, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            for answer in answers {
                let mut request = vec![0; 4096];
                let read = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..read]).into_owned();
                asked.push(request.lines().next().unwrap_or_default().to_owned());
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
                stream.write_all((head + answer).as_bytes()).await.unwrap();
            }
            asked
        });
        (endpoint, served)
    }

    fn etcd(endpoints: Vec<String>) -> Etcd {
        Etcd {
            endpoints,
            prefix: "/h/".to_owned(),
            lease: WITHIN,
            name: "node".to_owned(),
            tls: None,
            user: None,
            at: 0,
            connection: None,
            token: None,
        }
    }

    const WITHIN: Duration = Duration::from_secs(5);
    const GRANTED: &str = r#"{"header":{},"ID":"7","TTL":"10"}"#;

    #[tokio::test]
    async fn after_a_member_that_answers_what_is_not_etcds_the_next_one_is_asked() {
        const OTHER: &str = concat!(
            r#"{"page": "0123456789012345678901234567890123456789012345678901234567890123456789"#,
            r#"012345678901234567890123456789012345678901234567890123456789012345678901234567"#,
            r#"012345678901234567890123456789012345678901234567890123456789012345678901234567"}"#,
        );
        let (wrong, _) = member(&[OTHER]).await;
        let (right, _) = member(&[GRANTED]).await;
        let mut etcd = etcd(vec![wrong, right]);
        let error = etcd.ask(&Request::Grant, WITHIN).await.unwrap_err();
        assert_eq!(error.failure(), Failure::Unknown);
        assert!(error.to_string().contains("not etcd's: {\"page\""), "{error}");
        assert!(error.to_string().len() < 260, "{error}");
        let granted = Answer::Granted(LeaseId(7), Duration::from_secs(10));
        assert_eq!(etcd.ask(&Request::Grant, WITHIN).await.unwrap(), granted);
    }

    #[tokio::test]
    async fn a_token_that_is_older_than_etcds_users_leads_to_a_new_login() {
        const TOKEN: &str = r#"{"header":{},"token":"t"}"#;
        const OLD: &str = r#"{"error":"etcdserver: revision of auth store is old","code":3,"message":"etcdserver: revision of auth store is old"}"#;
        let (endpoint, asked) = member(&[TOKEN, OLD, TOKEN, GRANTED]).await;
        let password = std::env::temp_dir().join(format!("hawser-etcd-{}", std::process::id()));
        std::fs::write(&password, "secret\n").unwrap();
        let user = Some(("hawser".to_owned(), password.clone()));
        let mut etcd = Etcd { user, ..etcd(vec![endpoint]) };
        let granted = etcd.ask(&Request::Grant, WITHIN).await;
        std::fs::remove_file(&password).unwrap();
        assert!(granted.is_ok(), "{granted:?}");
        let of = |path| format!("POST {path} HTTP/1.1");
        let (login, grant) = (of("/v3/auth/authenticate"), of("/v3/lease/grant"));
        assert_eq!(asked.await.unwrap(), [login.clone(), grant.clone(), login, grant]);
    }

    #[test]
    fn refusals_have_their_code_and_words_also_in_streams() {
        let plain = r#"{"error":"etcdserver: requested lease not found","message":"etcdserver: requested lease not found","code":5}"#;
        let streamed = r#"{"error":{"grpc_code":16,"http_code":401,"message":"etcdserver: invalid auth token","http_status":"Unauthorized"}}"#;
        let of = |text: &str| refusal(&first_value(text.as_bytes()).unwrap());
        assert_eq!(of(plain), Some((5, "etcdserver: requested lease not found".to_owned())));
        assert_eq!(of(streamed), Some((16, "etcdserver: invalid auth token".to_owned())));
        assert_eq!(of(r#"{"header":{}}"#), None);
    }
}
