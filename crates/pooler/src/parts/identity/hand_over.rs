//! Backends that users share: each is handed over to a client before any message of that client's
//! is sent to it.
//!
//! # Model
//! Such backends are logged in as the pooler's own role. `hawser.hand_over()` of the server's
//! extension makes the session another user's: rights, settings of ALTER ROLE, address. It is
//! called by a FunctionCall message; extension/README.md, "The hand-over", has its format.
//! ```text
//!   lent ─► RESET ALL, if the user changes ─► hand-over ─► answered ─► the client's settings and messages
//!                                                └ refused: the client gets the error, and leaves
//! ```
//! A client that logs in gets its hand-over before it is greeted, so it learns of the server's
//! refusal, and of its session's first values, at the same time as without a pooler. If it would
//! have to wait for a backend for that, it is greeted with the values that its user's sessions
//! began with before (or the pooler's own), and leaves the queue: its session begins with its first
//! query, when it gets the differences (ParameterStatus), or the refusal.
//!
//! # Invariants
//! * no message of a client's is sent to a backend of such a pool unless the last hand-over there
//!   that was answered was to that very client, for its user: see [`crate::relay::Backend::hand_over_to`]
//! * the server itself has reported, by `session_authorization`, whose session it is
//! * statements are shared by clients of one user only: each user has another
//!   [`crate::parts::start_values::basis::Basis`] for the values that a session began with
//! * a client that cannot be told apart is rejected
//!
//! # Why the answer is waited for
//! The extension ends the session if a hand-over fails, so messages after it in the same write
//! would not run. But if the function no longer exists (DROP EXTENSION), or may not be called, the
//! extension cannot do that: the server goes on with an ERROR, and would run what follows as the
//! client before. The price is a round trip between Hawser and the server; it is not paid if a
//! client gets the backend that it had last.
//!
//! # Why RESET ALL
//! A client that has SET a setting to the value that it already had has changed nothing that is
//! reported, and yet that value would stay where the next user's own is another.

mod steps;

use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use siphasher::sip::SipHasher24;

use crate::ids::ClientId;
use crate::lending::SharedPool;
use crate::parts::start_values::basis::Basis;
use crate::parts::start_values::parameters::{Parameter, ServerParameters};
use crate::relay::client_info::{ClientAbout, PeerAddress};
use crate::relay::socket::Mptcp;
use crate::wire::error::ClientError;
use crate::wire::{build, frontend};

/// The startup parameter that asks a server for its challenge.
pub const ASKING: &[u8] = b"hawser.hand_over";
/// The parameter that contains the challenge. Clients never see it.
pub const CHALLENGE: &[u8] = b"hawser.challenge";

const VERSION: u8 = 1;
const FLAG_USER: u8 = 1;
const FLAG_TLS: u8 = 2;
const FLAG_ALONE: u8 = 4;
const FLAG_TRANSPORT: u8 = 8;
/// The values after [`FLAG_TRANSPORT`].
const OVER_MPTCP: u8 = 1;
const FELL_BACK: u8 = 2;
/// The longest text in a message (NAMEDATALEN - 1).
const TEXT_BYTES_MAX: usize = 63;
/// How long after its turn a client waits for its backend before it is checked again.
const ON_THE_WAY: Duration = Duration::from_millis(100);
/// Settings that a server may report for one hand-over.
const REPORTED_MAX: usize = 100;

/// What is needed to hand a server connection over.
#[derive(Clone)]
pub struct HandOverKey {
    /// Derived from the secret and the server's challenge.
    pub key: [u8; 16],
    /// The oid of the function in this database.
    pub function: u32,
    /// The number of this process.
    pub pooler: u64,
    /// Messages that have been sent.
    pub sent: u64,
    /// Whether the extension takes the client's transport: earlier versions do not.
    pub takes_transport: bool,
}

impl std::fmt::Debug for HandOverKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HandOverKey(..)")
    }
}

/// Appends a text of the message, cut at the longest that is allowed.
fn text(out: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl HandOverKey {
    /// The signature after a message, which shows the server that the pooler has sent it.
    pub fn sign(&self, message: &[u8]) -> [u8; 8] {
        let mut hash = SipHasher24::new_with_key(&self.key);
        hash.write(message);
        hash.finish().to_le_bytes()
    }

    /// Appends the message that hands a session over to no client: it is the pooler's own. The
    /// server disconnects a sender that does not have the secret.
    pub fn write_without_client(&mut self, out: &mut Vec<u8>) {
        self.write(FLAG_ALONE, 0, None, |_| {}, out);
    }

    fn write(
        &mut self,
        flags: u8,
        client: u32,
        peer: Option<&PeerAddress>,
        rest: impl FnOnce(&mut Vec<u8>),
        out: &mut Vec<u8>,
    ) {
        self.sent += 1;
        let mut message = Vec::with_capacity(128);
        message.extend_from_slice(&[VERSION, flags]);
        message.extend_from_slice(&self.sent.to_be_bytes());
        message.extend_from_slice(&self.pooler.to_be_bytes());
        message.extend_from_slice(&client.to_be_bytes());
        let port = peer.map_or(0, PeerAddress::port).to_be_bytes();
        let mut address = |family: u8, bytes: &[u8]| {
            message.push(family);
            message.extend_from_slice(&port);
            message.extend_from_slice(bytes);
        };
        match peer {
            None => address(0, &[]),
            Some(PeerAddress::Unix) => address(1, &[]),
            Some(PeerAddress::V4(peer)) => address(4, &peer.ip().octets()),
            Some(PeerAddress::V6(peer)) => address(6, &peer.ip().octets()),
        }
        rest(&mut message);
        let sign = self.sign(&message);
        message.extend_from_slice(&sign);
        build::message(out, frontend::FUNCTION_CALL, |out| {
            out.extend_from_slice(&self.function.to_be_bytes());
            // One argument, binary; so is the result.
            out.extend_from_slice(&[0, 1, 0, 1, 0, 1]);
            out.extend_from_slice(&(message.len() as u32).to_be_bytes());
            out.extend_from_slice(&message);
            out.extend_from_slice(&[0, 1]);
        });
    }

    /// Appends the message that hands the session over to a client: as `user`, with nothing after
    /// it before the answer; or as the role that has logged in.
    pub(crate) fn write_to(
        &mut self,
        process: u32,
        user: Option<&str>,
        about: &ClientAbout,
        mptcp: Option<Mptcp>,
        out: &mut Vec<u8>,
    ) {
        let tls = about.tls();
        let takes_transport = self.takes_transport;
        let flags = if user.is_some() { FLAG_USER | FLAG_ALONE } else { 0 };
        let flags = flags | if tls.is_empty() { 0 } else { FLAG_TLS };
        let flags = flags | if takes_transport { FLAG_TRANSPORT } else { 0 };
        let rest = |out: &mut Vec<u8>| {
            if let Some(user) = user {
                text(out, user);
            }
            if let Some((version, cipher)) = tls.split_once('/') {
                let bits: u16 = if cipher.contains("128") { 128 } else { 256 };
                out.extend_from_slice(&bits.to_be_bytes());
                text(out, version);
                text(out, cipher);
                // Subject, serial number and issuer of a certificate are not kept.
                out.extend_from_slice(&[0; 6]);
            }
            if takes_transport {
                let kind = mptcp
                    .map_or(0, |mptcp| OVER_MPTCP | if mptcp.fell_back { FELL_BACK } else { 0 });
                out.extend_from_slice(&[kind, mptcp.map_or(0, |mptcp| mptcp.subflows)]);
                let token = mptcp.map_or(0, |mptcp| mptcp.token);
                out.extend_from_slice(&token.to_be_bytes());
            }
        };
        self.write(flags, process, Some(&about.peer), rest, out);
    }
}

/// A hand-over in flight.
#[derive(Debug)]
struct UnderWay {
    client: ClientId,
    user: Box<str>,
    /// The function has ended.
    answered: bool,
    refused: Option<ClientError>,
    /// What the server has reported: the user's own values, where they differ from those before.
    reported: Vec<Parameter>,
}

/// The client and user that a backend belongs to.
#[derive(Debug)]
pub(crate) struct HandOver {
    key: HandOverKey,
    /// `None` before the first.
    client: Option<ClientId>,
    /// The user; at first the role that has logged in.
    user: Box<str>,
    /// What the server reports of the user.
    authorization: Box<[u8]>,
    is_superuser: Box<[u8]>,
    under_way: Option<Box<UnderWay>>,
}

impl HandOver {
    pub(crate) fn new(key: HandOverKey, login: &str, parameters: &ServerParameters) -> Self {
        let said = |name: &[u8]| parameters.get(name).unwrap_or_default().into();
        Self {
            key,
            client: None,
            user: login.into(),
            authorization: said(b"session_authorization"),
            is_superuser: said(b"is_superuser"),
            under_way: None,
        }
    }
}

/// The basis of these own values of a session.
pub(crate) fn basis_of<B>(
    pool: &SharedPool<B>,
    hand_over: Option<&HandOver>,
    parameters: &Arc<ServerParameters>,
) -> Basis {
    match hand_over {
        Some(hand_over) => pool.basis_of_user(&hand_over.user, parameters),
        None => pool.basis_of(parameters),
    }
}

/// The outcome of a hand-over.
pub(crate) type Outcome = Result<(), ClientError>;
