//! The client's end: we log in to a server.

use std::fmt;
use std::num::NonZeroU32;

use base64::Engine as _;

use super::{
    AuthMessage, BASE64, BINDING_TYPE, Derivation, ITERATIONS_MAX, Key, Nonce, SALT_LENGTH_MAX,
    SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramKeys, is_printable,
};

/// What we can prove to the server.
#[derive(Clone)]
pub enum ClientCredentials {
    /// A password, and the keys that came of it in an earlier login: where they fit, PBKDF2 is spared.
    Password {
        /// The password in plain text.
        password: Box<[u8]>,
        /// The keys of this very password.
        known: Option<ScramKeys>,
    },
    /// Keys of a client that has logged in to us. They fit only a server that stores the same verifier as we.
    Keys(ScramKeys),
}

/// What this connection has to bind to: libpq's `channel_binding`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientBinding {
    /// No TLS.
    NoTls,
    /// TLS, but its certificate has no tls-server-end-point hash, or channel binding is not wanted.
    Unsupported,
    /// The hash of the server's certificate: use it if the server offers SCRAM-SHA-256-PLUS.
    Prefer(Vec<u8>),
    /// Log in with channel binding or not at all.
    Require(Vec<u8>),
}

/// Which of our mechanisms the server offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerOffer {
    plain: bool,
    plus: bool,
}

impl ServerOffer {
    /// Reads the names of an AuthenticationSASL message; unknown ones are ignored.
    pub fn of<'a>(mechanisms: impl IntoIterator<Item = &'a str>) -> Self {
        let mut offer = Self { plain: false, plus: false };
        for name in mechanisms {
            offer.plain |= name == SCRAM_SHA_256;
            offer.plus |= name == SCRAM_SHA_256_PLUS;
        }
        offer
    }
}

/// Why a login to a server fails. But for `KeysDoNotFit` the server is at fault, or our configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The server offers no mechanism that we have.
    #[error("none of the server's SASL authentication mechanisms are supported")]
    NoMechanism,
    /// The server offers channel binding where there is nothing to bind to: someone stands in between.
    #[error("server offered SCRAM-SHA-256-PLUS authentication over a non-SSL connection")]
    PlusWithoutTls,
    /// Channel binding is required and the server does not offer it.
    #[error(
        "channel binding is required, but server did not offer an authentication method that supports \
         channel binding"
    )]
    BindingRequired,
    /// A message breaks the protocol: which part of it.
    #[error("malformed SCRAM message ({0})")]
    Malformed(&'static str),
    /// The server's nonce does not begin with ours.
    #[error("invalid SCRAM response (nonce mismatch)")]
    NonceMismatch,
    /// The server asks for more work than [`ITERATIONS_MAX`].
    #[error("the server asks for {0} SCRAM iterations, more than the {ITERATIONS_MAX} allowed")]
    TooManyIterations(u64),
    /// The server stores another verifier than the one that our keys are from.
    #[error(
        "the server's SCRAM secret has another salt or iteration count than the secret that the client \
         logged in with: give the pooler this user's password, or the verifier of this server"
    )]
    KeysDoNotFit,
    /// The server ends the exchange: its reason, of printable characters.
    #[error("error received from server in SCRAM exchange: {0}")]
    Server(String),
    /// The server does not know the password itself: it is not the server that it says it is.
    #[error("incorrect server signature")]
    WrongSignature,
    /// A message at a time when none is expected.
    #[error("invalid SCRAM exchange state")]
    OutOfOrder,
}

/// What to do after the server's first message.
#[derive(Debug)]
pub enum ClientStep {
    /// Send this as a SASLResponse.
    Respond(Vec<u8>),
    /// Run this away from the event loops and go on with [`ClientExchange::respond_with`].
    Derive(Derivation),
}

/// One login to one server.
///
/// ```text
///   start ─► Started ──server_first──► Challenged ──respond_with──► Responded ──server_final──► Finished
///                          └──────────── keys at hand ─────────────────┘
/// ```
pub struct ClientExchange {
    credentials: ClientCredentials,
    header: String,
    /// The header and the hash of the server's certificate, in base64.
    binding: String,
    plus: bool,
    nonce: Nonce,
    state: State,
}

enum State {
    Started,
    Challenged(Challenge),
    Responded { message: AuthMessage, server_key: Key },
    Finished,
}

struct Challenge {
    text: Vec<u8>,
    nonce: Vec<u8>,
    salt: Vec<u8>,
    iterations: NonZeroU32,
}

impl ClientExchange {
    /// Chooses the mechanism. `nonce` must be new.
    pub fn start(
        credentials: ClientCredentials,
        offer: ServerOffer,
        binding: &ClientBinding,
        nonce: Nonce,
    ) -> Result<Self, ClientError> {
        if offer.plus && *binding == ClientBinding::NoTls {
            return Err(ClientError::PlusWithoutTls);
        }
        let (header, end_point) = match (offer, binding) {
            (
                ServerOffer { plus: true, .. },
                ClientBinding::Prefer(hash) | ClientBinding::Require(hash),
            ) => (format!("p={BINDING_TYPE},,"), Some(hash)),
            (_, ClientBinding::Require(_)) => return Err(ClientError::BindingRequired),
            (ServerOffer { plain: false, .. }, _) => return Err(ClientError::NoMechanism),
            // We could; the server, so it says, could not. If it did offer it, it now knows that someone took it out.
            (_, ClientBinding::Prefer(_)) => ("y,,".to_owned(), None),
            (_, ClientBinding::NoTls | ClientBinding::Unsupported) => ("n,,".to_owned(), None),
        };
        let mut input = header.clone().into_bytes();
        input.extend(end_point.into_iter().flatten());
        let plus = end_point.is_some();
        let binding = BASE64.encode(input);
        Ok(Self { credentials, header, binding, plus, nonce, state: State::Started })
    }

    /// The mechanism for the SASLInitialResponse.
    pub fn mechanism(&self) -> &'static str {
        if self.plus { SCRAM_SHA_256_PLUS } else { SCRAM_SHA_256 }
    }

    /// The data for the SASLInitialResponse. The user's name is that of the start-up message.
    pub fn initial(&self) -> Vec<u8> {
        format!("{}{}", self.header, self.first_bare()).into_bytes()
    }

    fn first_bare(&self) -> String {
        format!("n=,r={}", self.nonce.0)
    }

    /// Takes the data of AuthenticationSASLContinue.
    pub fn server_first(&mut self, input: &[u8]) -> Result<ClientStep, ClientError> {
        let State::Started = std::mem::replace(&mut self.state, State::Finished) else {
            return Err(ClientError::OutOfOrder);
        };
        let challenge = Challenge::parse(input, &self.nonce)?;
        let fits = |keys: &ScramKeys| keys.fits(&challenge.salt, challenge.iterations);
        let keys = match &self.credentials {
            ClientCredentials::Keys(keys) if fits(keys) => keys.clone(),
            ClientCredentials::Keys(_) => return Err(ClientError::KeysDoNotFit),
            ClientCredentials::Password { known: Some(keys), .. } if fits(keys) => keys.clone(),
            ClientCredentials::Password { password, .. } => {
                let derivation = Derivation::new(password, &challenge.salt, challenge.iterations);
                self.state = State::Challenged(challenge);
                return Ok(ClientStep::Derive(derivation));
            }
        };
        Ok(ClientStep::Respond(self.respond(challenge, &keys)))
    }

    /// Goes on with the keys of the derivation that `server_first` asked for: the data of the SASLResponse.
    pub fn respond_with(&mut self, keys: &ScramKeys) -> Result<Vec<u8>, ClientError> {
        let State::Challenged(challenge) = std::mem::replace(&mut self.state, State::Finished)
        else {
            return Err(ClientError::OutOfOrder);
        };
        if !keys.fits(&challenge.salt, challenge.iterations) {
            return Err(ClientError::KeysDoNotFit);
        }
        Ok(self.respond(challenge, keys))
    }

    fn respond(&mut self, challenge: Challenge, keys: &ScramKeys) -> Vec<u8> {
        let mut response = format!("c={},r=", self.binding).into_bytes();
        response.extend_from_slice(&challenge.nonce);
        let message = AuthMessage {
            client_first_bare: self.first_bare().into_bytes(),
            server_first: challenge.text,
            client_final_without_proof: response.clone(),
        };
        let proof = keys.client_key.xor(&message.sign(&keys.verifier.stored_key));
        response.extend_from_slice(b",p=");
        response.extend_from_slice(BASE64.encode(proof.0).as_bytes());
        self.state = State::Responded { message, server_key: keys.verifier.server_key };
        response
    }

    /// Takes the data of AuthenticationSASLFinal. Only after this is the server known to be the right one; an
    /// AuthenticationOk without it must be refused ([`Self::is_finished`]).
    pub fn server_final(&mut self, input: &[u8]) -> Result<(), ClientError> {
        let State::Responded { message, server_key } = &self.state else {
            return Err(ClientError::OutOfOrder);
        };
        let result = check_final(input, &message.sign(server_key));
        if result.is_ok() {
            self.state = State::Finished;
        }
        result
    }

    /// Whether the server has proved that it knows the password.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished)
    }
}

impl fmt::Debug for ClientExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientExchange")
            .field("mechanism", &self.mechanism())
            .finish_non_exhaustive()
    }
}

fn attribute<'a>(part: Option<&'a [u8]>, name: &[u8; 2]) -> Option<&'a [u8]> {
    part?.strip_prefix(name)
}

impl Challenge {
    /// `r=NONCE,s=SALT,i=ITERATIONS[,extensions]`
    fn parse(input: &[u8], ours: &Nonce) -> Result<Self, ClientError> {
        let mut parts = input.split(|&byte| byte == b',');
        let nonce = attribute(parts.next(), b"r=").ok_or(ClientError::Malformed("nonce"))?;
        let theirs = nonce.strip_prefix(ours.0.as_bytes()).ok_or(ClientError::NonceMismatch)?;
        if theirs.is_empty() {
            return Err(ClientError::NonceMismatch);
        }
        if !is_printable(theirs) {
            return Err(ClientError::Malformed("nonce"));
        }
        let salt = attribute(parts.next(), b"s=")
            .and_then(|salt| BASE64.decode(salt).ok())
            .filter(|salt| !salt.is_empty() && salt.len() <= SALT_LENGTH_MAX)
            .ok_or(ClientError::Malformed("salt"))?;
        let iterations = attribute(parts.next(), b"i=")
            .filter(|digits| digits.iter().all(u8::is_ascii_digit))
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok())
            .ok_or(ClientError::Malformed("iteration count"))?;
        let iterations = match u32::try_from(iterations) {
            Ok(count) if count <= ITERATIONS_MAX => {
                NonZeroU32::new(count).ok_or(ClientError::Malformed("iteration count"))?
            }
            _ => return Err(ClientError::TooManyIterations(iterations)),
        };
        Ok(Self { text: input.to_vec(), nonce: nonce.to_vec(), salt, iterations })
    }
}

/// `v=SIGNATURE[,extensions]` or `e=REASON`
fn check_final(input: &[u8], expected: &Key) -> Result<(), ClientError> {
    let mut parts = input.split(|&byte| byte == b',');
    let first = parts.next();
    if let Some(reason) = attribute(first, b"e=") {
        const REASON_LENGTH_MAX: usize = 100;
        let reason = reason.iter().take(REASON_LENGTH_MAX);
        return Err(ClientError::Server(
            reason
                .map(|&byte| if is_printable(&[byte]) { char::from(byte) } else { '?' })
                .collect(),
        ));
    }
    let signature = attribute(first, b"v=")
        .and_then(|signature| Key::decode(std::str::from_utf8(signature).ok()?))
        .ok_or(ClientError::Malformed("server signature"))?;
    if signature == *expected { Ok(()) } else { Err(ClientError::WrongSignature) }
}
