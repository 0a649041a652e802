//! Logging in to a server: from StartupMessage to the first ReadyForQuery.
//!
//! # Why protocol 3.0
//! 3.2 adds longer cancel keys and nothing else, and servers and poolers before 2018 close the
//! connection instead of negotiating. libpq's own default is 3.0 as well. A longer key from a
//! server is still understood.

use std::sync::Arc;
use std::sync::Mutex;

use hawser_pooler::parts::identity::hand_over;
use hawser_pooler::parts::report::text;
use hawser_pooler::parts::start_values::parameters::ServerParameters;
use hawser_pooler::wire::frame::take_u32;
use hawser_pooler::wire::startup::{CANCEL_KEY_BYTES_MAX, Pair, ProtocolVersion, write_startup};
use hawser_pooler::wire::{TransactionStatus, backend};

use super::talk::{LOGIN_MESSAGES_MAX, Talk, TalkError, parse_status, server_error};
use crate::auth::certificate::end_point_hash;
use crate::auth::md5::Md5Hash;
use crate::auth::message::{self, AuthenticationRequest};
use crate::auth::scram::client::{
    ClientBinding, ClientCredentials, ClientExchange, ClientStep, ServerOffer,
};
use crate::auth::scram::{Nonce, ScramKeys};
use crate::auth::secret::{Password, Secret};
use crate::lock::locked;
use crate::process::random_bytes;
use crate::takeover::record;

/// Credentials for a server. Never printed.
#[derive(derive_more::Debug)]
#[debug("Credentials(..)")]
pub struct Credentials {
    secret: Secret,
    /// The stored form that a password was checked against, if a client has shown it.
    stored: Option<Secret>,
    /// From a client's login, or from an earlier one of our own with the password.
    keys: Mutex<Option<ScramKeys>>,
}

impl Credentials {
    /// From a stored secret, and the keys that a client of this user has shown.
    pub fn new(secret: &Secret, keys: Option<ScramKeys>) -> Self {
        Self { secret: secret.clone(), stored: None, keys: Mutex::new(keys) }
    }

    /// From the password that a client has sent, and the stored form that it fits.
    pub fn shown(sent: &str, stored: &Secret) -> Self {
        let secret = Secret::Plain(sent.into());
        Self { secret, stored: Some(stored.clone()), keys: Mutex::new(None) }
    }

    /// Whether they are made from this secret, or from more than it: the password that it was made
    /// from.
    pub fn cover(&self, secret: &Secret) -> bool {
        self.secret == *secret || self.stored.as_ref() == Some(secret)
    }

    /// For the successor of this process.
    pub fn to_record(&self) -> record::Credentials {
        record::Credentials {
            secret: (&self.secret).into(),
            stored: self.stored.as_ref().map(Into::into),
            keys: self.keys().map(|keys| keys.to_texts()),
        }
    }

    /// From a predecessor's record.
    pub fn of_record(known: &record::Credentials) -> Self {
        let credentials = Self {
            secret: (&known.secret).into(),
            stored: known.stored.as_ref().map(Into::into),
            keys: Mutex::new(None),
        };
        credentials.learn(known);
        credentials
    }

    /// Takes the keys that a predecessor knows, if they belong to this secret.
    pub fn learn(&self, known: &record::Credentials) {
        let keys = known.keys.as_ref();
        let keys = keys.and_then(|(verifier, key)| ScramKeys::of_texts(verifier, key));
        let Some(keys) = keys else { return };
        let fits = match &self.secret {
            Secret::Scram(own) => own == keys.verifier(),
            Secret::Plain(_) | Secret::Md5(_) | Secret::None => false, // found again from the password
        };
        if fits {
            self.keep_keys(keys);
        }
    }

    fn password(&self) -> Option<&Password> {
        match &self.secret {
            Secret::Plain(password) => Some(password),
            _ => None,
        }
    }

    fn md5(&self, user: &str) -> Option<Md5Hash> {
        match &self.secret {
            Secret::Plain(password) => Some(Md5Hash::of_password(user, password.as_bytes())),
            Secret::Md5(hash) => Some(*hash),
            Secret::Scram(_) | Secret::None => None,
        }
    }

    fn keys(&self) -> Option<ScramKeys> {
        locked(&self.keys).clone()
    }

    /// Keeps keys that a server has accepted, or that a client has shown.
    pub fn keep_keys(&self, keys: ScramKeys) {
        *locked(&self.keys) = Some(keys);
    }

    fn for_scram(&self) -> Option<ClientCredentials> {
        match (self.password(), self.keys()) {
            (Some(password), known) => {
                Some(ClientCredentials::Password { password: password.as_bytes().into(), known })
            }
            (None, Some(keys)) => Some(ClientCredentials::Keys(keys)),
            (None, None) => None,
        }
    }
}

/// Why a login failed.
#[derive(Debug)]
pub enum EnterError {
    /// The conversation ended, or the server refused.
    Talk(TalkError),
    /// The server asks for a secret that we do not have.
    NoSecret(&'static str),
    /// The proof failed, for this reason.
    Proof(String),
}

impl<E: Into<TalkError>> From<E> for EnterError {
    fn from(error: E) -> Self {
        Self::Talk(error.into())
    }
}

/// The server's reports at login.
#[derive(Debug)]
pub struct Entered {
    /// The settings that it reports.
    pub parameters: ServerParameters,
    /// Its report of the session, if it sends one.
    pub report: Option<Box<[u8]>>,
    /// The challenge for the key of its hand-overs, if it was asked for.
    pub challenge: Option<Box<[u8]>>,
    /// Process id of BackendKeyData; 0 if there was none.
    pub process: u32,
    /// Key of BackendKeyData; empty if there was none.
    pub key: Box<[u8]>,
    /// The number of the connection.
    pub number: u64,
}

impl Entered {
    /// The server has reported a value.
    pub fn learn(&mut self, (name, value): Pair) {
        if *name == *text::NAME {
            self.report = Some(value);
        } else if *name == *hand_over::CHALLENGE {
            self.challenge = Some(value);
        } else if *name != *text::SCHEMA && *name != *text::PROCESS {
            self.parameters.set(&name, &value);
        }
    }
}

/// Logs in with these startup parameters.
///
/// # Errors
/// See [`EnterError`]; the connection is then of no more use.
pub async fn enter(
    talk: &mut Talk,
    user: &str,
    parameters: &[(&[u8], &[u8])],
    credentials: &Arc<Credentials>,
) -> Result<Entered, EnterError> {
    let all = std::iter::once((&b"user"[..], user.as_bytes())).chain(parameters.iter().copied());
    write_startup(talk.out(), ProtocolVersion::V3_0, all);
    talk.send().await?;
    let mut entered = Entered {
        parameters: ServerParameters::default(),
        report: None,
        challenge: None,
        process: 0,
        key: Box::default(),
        number: 0,
    };
    let mut proof = Proof { user, credentials, scram: None, used_keys: None };
    let mut authenticated = false;
    for _ in 0..LOGIN_MESSAGES_MAX {
        let (kind, body) = talk.receive().await?;
        match kind {
            backend::AUTHENTICATION if !authenticated => {
                authenticated = proof.answer(talk, &body).await?;
            }
            backend::ERROR => return Err(TalkError::Server(server_error(&body).into()).into()),
            backend::NOTICE => {}
            backend::NEGOTIATE_VERSION if !authenticated => {}
            backend::PARAMETER_STATUS if authenticated => {
                entered.learn(parse_status(&body)?);
            }
            backend::BACKEND_KEY_DATA if authenticated => {
                let (process, key) = take_u32(&body)
                    .filter(|(_, key)| !key.is_empty() && key.len() <= CANCEL_KEY_BYTES_MAX)
                    .ok_or_else(|| TalkError::Protocol("malformed BackendKeyData".to_owned()))?;
                entered.process = process;
                entered.key = key.into();
            }
            backend::READY_FOR_QUERY if authenticated => {
                if body != [TransactionStatus::Idle.as_byte()] {
                    return Err(TalkError::Protocol("not idle after login".to_owned()).into());
                }
                return Ok(entered);
            }
            other => {
                let what = format!("message of kind 0x{other:02x} during login");
                return Err(TalkError::Protocol(what).into());
            }
        }
    }
    Err(TalkError::Protocol("no end of the login".to_owned()).into())
}

/// Our proof to the server, under way.
struct Proof<'a> {
    user: &'a str,
    credentials: &'a Arc<Credentials>,
    scram: Option<ClientExchange>,
    used_keys: Option<ScramKeys>,
}

fn refused(error: impl std::fmt::Display) -> EnterError {
    EnterError::Proof(error.to_string())
}

impl Proof<'_> {
    /// Answers an Authentication message. `true` when the server is content.
    async fn answer(&mut self, talk: &mut Talk, body: &[u8]) -> Result<bool, EnterError> {
        let request = AuthenticationRequest::parse(body).map_err(refused)?;
        let reply = match request {
            AuthenticationRequest::Ok => return self.finish(),
            AuthenticationRequest::CleartextPassword => {
                let password = self.credentials.password();
                let password = password.ok_or(EnterError::NoSecret("the password itself"))?;
                message::password_message(password.as_bytes())
            }
            AuthenticationRequest::Md5Password(salt) => {
                let hash = self.credentials.md5(self.user);
                let hash = hash.ok_or(EnterError::NoSecret("the password or its md5 hash"))?;
                message::password_message(&hash.answer(salt))
            }
            AuthenticationRequest::Sasl(mechanisms) => {
                let credentials = self.credentials.for_scram().ok_or(EnterError::NoSecret(
                    "the password, or a client that has logged in with SCRAM",
                ))?;
                let exchange = ClientExchange::start(
                    credentials,
                    ServerOffer::of(mechanisms),
                    &binding(talk),
                    Nonce::generate(random_bytes),
                )
                .map_err(refused)?;
                let reply =
                    message::sasl_initial_response(exchange.mechanism(), &exchange.initial());
                self.scram = Some(exchange);
                reply
            }
            AuthenticationRequest::SaslContinue(data) => self.respond(data).await?,
            AuthenticationRequest::SaslFinal(data) => {
                self.exchange()?.server_final(data).map_err(refused)?;
                return Ok(false);
            }
            AuthenticationRequest::Unsupported(code) => {
                return Err(refused(format!("authentication method {code} is not supported")));
            }
        };
        talk.out().extend_from_slice(&reply);
        talk.send().await?;
        Ok(false)
    }

    fn exchange(&mut self) -> Result<&mut ClientExchange, EnterError> {
        self.scram.as_mut().ok_or_else(|| refused("SASL message without a SASL exchange"))
    }

    async fn respond(&mut self, data: &[u8]) -> Result<Vec<u8>, EnterError> {
        let response = match self.exchange()?.server_first(data).map_err(refused)? {
            ClientStep::Respond(response) => response,
            ClientStep::Derive(derivation) => {
                let keys =
                    tokio::task::spawn_blocking(move || derivation.run()).await.map_err(refused)?;
                let response = self.exchange()?.respond_with(&keys).map_err(refused)?;
                self.used_keys = Some(keys);
                response
            }
        };
        Ok(message::sasl_response_message(&response))
    }

    fn finish(&mut self) -> Result<bool, EnterError> {
        if self.scram.as_ref().is_some_and(|exchange| !exchange.is_finished()) {
            // A man in the middle would do that: it cannot know the server's signature.
            return Err(refused("server did not prove that it knows the password"));
        }
        if let Some(keys) = self.used_keys.take() {
            self.credentials.keep_keys(keys);
        }
        Ok(true)
    }
}

fn binding(talk: &Talk) -> ClientBinding {
    let Some(tls) = talk.stream().tls() else { return ClientBinding::NoTls };
    let certificate = tls.peer_certificates().and_then(|chain| chain.first());
    match certificate.and_then(|certificate| end_point_hash(certificate).ok().flatten()) {
        Some(hash) => ClientBinding::Prefer(hash),
        None => ClientBinding::Unsupported,
    }
}
