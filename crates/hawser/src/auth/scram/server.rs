//! The server's end: we authenticate a client.

use std::fmt;

use base64::Engine as _;
use subtle::{Choice, ConstantTimeEq};

use super::{
    Account, AuthMessage, BASE64, BINDING_TYPE, Key, Nonce, SCRAM_SHA_256, SCRAM_SHA_256_PLUS,
    ScramKeys, is_printable,
};

/// What this connection has to bind to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerBinding {
    /// Nothing: no TLS, or a certificate whose signature has no hash. SCRAM-SHA-256-PLUS is not offered.
    Unavailable,
    /// The tls-server-end-point hash of our certificate. SCRAM-SHA-256-PLUS is offered, and a client that says that
    /// it was not has been lied to.
    EndPoint(Vec<u8>),
}

impl ServerBinding {
    /// The mechanisms to offer, the best first.
    pub fn mechanisms(&self) -> &'static [&'static str] {
        match self {
            Self::Unavailable => &[SCRAM_SHA_256],
            Self::EndPoint(_) => &[SCRAM_SHA_256_PLUS, SCRAM_SHA_256],
        }
    }
}

/// What to send next.
#[derive(Debug)]
pub enum ServerStep {
    /// Send this as AuthenticationSASLContinue and wait for a SASLResponse.
    Continue(Vec<u8>),
    /// The client has proved that it knows the password: send this as AuthenticationSASLFinal, then AuthenticationOk.
    Done {
        /// The server's signature.
        message: Vec<u8>,
        /// What it takes to log this user in to servers that store the same verifier.
        keys: ScramKeys,
    },
}

/// Why an exchange ends, in PostgreSQL's words. All but `WrongProof` are faults of the client's program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// The client chose a mechanism that was not offered.
    #[error("client selected an invalid SASL authentication mechanism")]
    InvalidMechanism,
    /// A message breaks the protocol.
    #[error("malformed SCRAM message")]
    Malformed,
    /// A channel binding of another type than tls-server-end-point.
    #[error("unsupported SCRAM channel-binding type \"{0}\"")]
    UnsupportedBindingType(String),
    /// The client was made to believe that channel binding is not offered.
    #[error("SCRAM channel binding negotiation error")]
    Downgraded,
    /// The client sees another certificate than ours.
    #[error("SCRAM channel binding check failed")]
    BindingMismatch,
    /// The repeated header is not the one that was sent.
    #[error("unexpected SCRAM channel-binding attribute in client-final-message")]
    UnexpectedBinding,
    /// The client wants to act as another user.
    #[error("client uses authorization identity, but it is not supported")]
    AuthorizationIdentity,
    /// The client requires an extension.
    #[error("client requires an unsupported SCRAM extension")]
    Extension,
    /// The nonce has characters that are not allowed.
    #[error("non-printable characters in SCRAM nonce")]
    NonceNotPrintable,
    /// The final nonce is not the one agreed on.
    #[error("invalid SCRAM response")]
    NonceMismatch,
    /// A message after the end of the exchange.
    #[error("invalid SCRAM exchange state")]
    Finished,
    /// The password is wrong, or the user cannot log in. The client gets the error of the rule's
    /// method ([`Rule::refusal`](crate::auth::hba::Rule::refusal)).
    #[error("password authentication failed")]
    WrongProof,
}

impl ServerError {
    /// The SQLSTATE that PostgreSQL gives.
    pub fn sqlstate(&self) -> &'static str {
        match self {
            Self::InvalidMechanism
            | Self::Malformed
            | Self::UnsupportedBindingType(_)
            | Self::UnexpectedBinding
            | Self::NonceNotPrintable
            | Self::NonceMismatch
            | Self::Finished => "08P01",
            Self::Downgraded | Self::BindingMismatch => "28000",
            Self::AuthorizationIdentity | Self::Extension => "0A000",
            Self::WrongProof => "28P01",
        }
    }

    /// PostgreSQL's DETAIL, where it has one.
    pub fn detail(&self) -> Option<&'static str> {
        match self {
            Self::Downgraded => Some(
                "The client supports SCRAM channel binding but thinks the server does not.  \
                 However, this server does support channel binding.",
            ),
            Self::NonceMismatch => Some("Nonce does not match."),
            _ => None,
        }
    }
}

/// One login of one client.
///
/// ```text
///   start ──► Init ──client-first──► SaltSent ──client-final──► Finished
///              └─ no data: an empty challenge, once
/// ```
pub struct ServerExchange {
    account: Account,
    binding: ServerBinding,
    plus: bool,
    nonce: Nonce,
    state: State,
}

enum State {
    Init,
    SaltSent { first: ClientFirst, server_first: Vec<u8> },
    Finished,
}

impl ServerExchange {
    /// Begins with the mechanism that the client's SASLInitialResponse names.
    pub fn start(
        account: Account,
        binding: ServerBinding,
        mechanism: &str,
        nonce: Nonce,
    ) -> Result<Self, ServerError> {
        let plus = match (mechanism, &binding) {
            (SCRAM_SHA_256, _) => false,
            (SCRAM_SHA_256_PLUS, ServerBinding::EndPoint(_)) => true,
            _ => return Err(ServerError::InvalidMechanism),
        };
        Ok(Self { account, binding, plus, nonce, state: State::Init })
    }

    /// Takes the data of a SASLInitialResponse (`None` where its length is -1) or of a SASLResponse.
    /// After an error the exchange is over.
    pub fn step(&mut self, input: Option<&[u8]>) -> Result<ServerStep, ServerError> {
        match (std::mem::replace(&mut self.state, State::Finished), input) {
            (State::Init, None) => {
                self.state = State::Init;
                Ok(ServerStep::Continue(Vec::new()))
            }
            (State::Init, Some(input)) => {
                let first = ClientFirst::parse(text(input)?, self.plus, &self.binding)?;
                let verifier = &self.account.verifier;
                let server_first = format!(
                    "r={}{},s={},i={}",
                    first.nonce,
                    self.nonce.0,
                    BASE64.encode(&verifier.salt),
                    verifier.iterations
                );
                let server_first = server_first.into_bytes();
                self.state = State::SaltSent { first, server_first: server_first.clone() };
                Ok(ServerStep::Continue(server_first))
            }
            (State::SaltSent { first, server_first }, Some(input)) => {
                self.finish(text(input)?, first, server_first)
            }
            (State::SaltSent { .. }, None) => Err(ServerError::Malformed),
            (State::Finished, _) => Err(ServerError::Finished),
        }
    }

    fn finish(
        &self,
        input: &[u8],
        first: ClientFirst,
        server_first: Vec<u8>,
    ) -> Result<ServerStep, ServerError> {
        let last = ClientFinal::parse(input)?;
        self.check_binding(last.binding, first.flag)?;
        let nonce = [first.nonce.as_bytes(), self.nonce.0.as_bytes()].concat();
        if last.nonce != nonce {
            return Err(ServerError::NonceMismatch);
        }
        let message = AuthMessage {
            client_first_bare: first.bare,
            server_first,
            client_final_without_proof: last.without_proof.to_vec(),
        };
        let verifier = &self.account.verifier;
        let client_key = last.proof.xor(&message.sign(&verifier.stored_key));
        // All of the work is done before the made-up verifier has its say: the time is that of a wrong password.
        let right = client_key.sha256().0.ct_eq(&verifier.stored_key.0);
        let signature = message.sign(&verifier.server_key);
        if !bool::from(right & Choice::from(u8::from(!self.account.doomed))) {
            return Err(ServerError::WrongProof);
        }
        Ok(ServerStep::Done {
            message: format!("v={}", BASE64.encode(signature.0)).into_bytes(),
            keys: ScramKeys { verifier: verifier.clone(), client_key },
        })
    }

    /// The client repeats its header, followed by what it saw of our certificate.
    fn check_binding(&self, sent: &[u8], flag: Flag) -> Result<(), ServerError> {
        match (flag, &self.binding) {
            (Flag::Bound, ServerBinding::EndPoint(end_point)) => {
                let mut expected = format!("p={BINDING_TYPE},,").into_bytes();
                expected.extend_from_slice(end_point);
                if sent == BASE64.encode(expected).as_bytes() {
                    Ok(())
                } else {
                    Err(ServerError::BindingMismatch)
                }
            }
            // "n,,"
            (Flag::Unsupported, _) if sent == b"biws" => Ok(()),
            // "y,,"
            (Flag::NotOffered, _) if sent == b"eSws" => Ok(()),
            _ => Err(ServerError::UnexpectedBinding),
        }
    }
}

impl fmt::Debug for ServerExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Init => "Init",
            State::SaltSent { .. } => "SaltSent",
            State::Finished => "Finished",
        };
        f.debug_struct("ServerExchange").field("plus", &self.plus).field("state", &state).finish()
    }
}

/// RFC 5802's gs2-cbind-flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flag {
    /// `n`
    Unsupported,
    /// `y`: supported, but the client thinks that we do not offer it.
    NotOffered,
    /// `p`
    Bound,
}

/// A message as PostgreSQL takes it: not empty, and without a NUL, which would end its strings.
fn text(input: &[u8]) -> Result<&[u8], ServerError> {
    if input.is_empty() || input.contains(&0) { Err(ServerError::Malformed) } else { Ok(input) }
}

struct ClientFirst {
    flag: Flag,
    nonce: String,
    bare: Vec<u8>,
}

impl ClientFirst {
    fn parse(input: &[u8], plus: bool, binding: &ServerBinding) -> Result<Self, ServerError> {
        let mut rest = Attributes(input);
        let flag = match input.first() {
            Some(b'n' | b'y') if plus => return Err(ServerError::Malformed),
            Some(b'y') if matches!(binding, ServerBinding::EndPoint(_)) => {
                return Err(ServerError::Downgraded);
            }
            Some(flag @ (b'n' | b'y')) if input.get(1) == Some(&b',') => {
                rest.0 = &input[2..];
                if *flag == b'y' { Flag::NotOffered } else { Flag::Unsupported }
            }
            Some(b'p') if !plus => return Err(ServerError::Malformed),
            Some(b'p') => {
                let name = rest.expect(b'p')?;
                if name != BINDING_TYPE.as_bytes() {
                    let name = name.iter().take(30);
                    return Err(ServerError::UnsupportedBindingType(
                        name.map(|&byte| match byte {
                            0x21..=0x7e => char::from(byte),
                            _ => '?',
                        })
                        .collect(),
                    ));
                }
                Flag::Bound
            }
            _ => return Err(ServerError::Malformed),
        };
        match rest.0.first() {
            Some(b',') => rest.0 = &rest.0[1..],
            Some(b'a') => return Err(ServerError::AuthorizationIdentity),
            _ => return Err(ServerError::Malformed),
        }
        let bare = rest.0.to_vec();
        if rest.0.first() == Some(&b'm') {
            return Err(ServerError::Extension);
        }
        // The name is that of the start-up message; this one is ignored.
        rest.expect(b'n')?;
        let nonce = rest.expect(b'r')?;
        if !is_printable(nonce) {
            return Err(ServerError::NonceNotPrintable);
        }
        let nonce = nonce.iter().map(|&byte| char::from(byte)).collect();
        while !rest.0.is_empty() {
            rest.any()?;
        }
        Ok(Self { flag, nonce, bare })
    }
}

struct ClientFinal<'a> {
    binding: &'a [u8],
    nonce: &'a [u8],
    proof: Key,
    without_proof: &'a [u8],
}

impl<'a> ClientFinal<'a> {
    fn parse(input: &'a [u8]) -> Result<Self, ServerError> {
        let mut rest = Attributes(input);
        let binding = rest.expect(b'c')?;
        let nonce = rest.expect(b'r')?;
        let (without_proof, proof) = loop {
            let before = input.len() - rest.0.len();
            let (name, value) = rest.any()?;
            if name == b'p' {
                // The comma before the attribute is no part of what is signed.
                break (&input[..before - 1], value);
            }
        };
        let proof =
            std::str::from_utf8(proof).ok().and_then(Key::decode).ok_or(ServerError::Malformed)?;
        if !rest.0.is_empty() {
            return Err(ServerError::Malformed);
        }
        Ok(Self { binding, nonce, proof, without_proof })
    }
}

/// What is left of a message: `name=value` pairs, parted by commas.
struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    fn expect(&mut self, name: u8) -> Result<&'a [u8], ServerError> {
        match self.any()? {
            (found, value) if found == name => Ok(value),
            _ => Err(ServerError::Malformed),
        }
    }

    fn any(&mut self) -> Result<(u8, &'a [u8]), ServerError> {
        match self.0 {
            [name, b'=', rest @ ..] if name.is_ascii_alphabetic() => {
                let end = rest.iter().position(|&byte| byte == b',');
                self.0 = end.map_or(&[], |end| &rest[end + 1..]);
                Ok((*name, &rest[..end.unwrap_or(rest.len())]))
            }
            _ => Err(ServerError::Malformed),
        }
    }
}
