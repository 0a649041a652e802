//! How `hawser cc bench` and `hawser cc serve` speak: who may, and messages.
//!
//! # Model
//! ```text
//!   server                                    client
//!   "hawser-cc1" nonce_s (32)            ──►
//!                                        ◄──  nonce_c (32)  HMAC(token, "client" nonce_s nonce_c)
//!   1  HMAC(token, "server" nonce_c nonce_s)  ──►          or 0 and the end: another token
//!                                        ◄──  order (message)
//!   answer (message)                     ──►
//!   the transfer of `transfer`, one way or the other; one order a connection
//! ```
//! HMAC is SHA-256 (RFC 2104). A message is its length in 4 bytes, in the network's order, and JSON.
//!
//! # Invariants
//! * the token is never on the wire, and both ends have shown that they know it before either acts
//! * nothing is sent to an address but in answer to its own handshake: there is nothing to amplify
//!
//! # Limits
//! Figures and transfers are not encrypted: they say nothing but how fast the path is.

use std::io::{self, Read, Write};

use hawser_sys::random::random_bytes;
use ring::hmac;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a server begins with.
const MAGIC: &[u8; 10] = b"hawser-cc1";
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
/// A timeline of 300 s is 30 kB.
const MESSAGE_BYTES_MAX: usize = 128 << 10;
/// Shorter tokens can be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// What both ends know.
#[derive(Clone, derive_more::Debug)]
#[debug("Token(...)")]
pub struct Token(hmac::Key);

impl Token {
    /// From what a user has given. `None` if it is shorter than 16 bytes.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let key = || Self(hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()));
        (text.len() >= TOKEN_BYTES_MIN).then(key)
    }

    fn proof(&self, who: &str, first: &[u8], second: &[u8]) -> hmac::Tag {
        hmac::sign(&self.0, &[who.as_bytes(), first, second].concat())
    }

    fn proves(&self, who: &str, first: &[u8], second: &[u8], proof: &[u8]) -> bool {
        hmac::verify(&self.0, &[who.as_bytes(), first, second].concat(), proof).is_ok()
    }
}

/// Why two ends do not understand each other.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other end is something else, or another version.
    #[error("there is no `hawser cc serve` of this version")]
    Stranger,
    /// It has another token.
    #[error("the token is not that of `hawser cc serve` there")]
    Token,
    /// It refuses, with this reason.
    #[error("the far end refuses: {0}")]
    Refused(String),
    /// What it sends makes no sense.
    #[error("the far end makes no sense: {0}")]
    Malformed(&'static str),
    /// The connection: closed, reset, silent for too long.
    #[error("{}", of_connection(.0))]
    Io(#[from] io::Error),
}

fn of_connection(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the far end has closed the connection".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "the far end is silent (a firewall, or it has died)".to_owned()
        }
        _ => error.to_string(),
    }
}

fn nonce() -> [u8; NONCE_BYTES] {
    let mut bytes = [0; NONCE_BYTES];
    random_bytes(&mut bytes);
    bytes
}

/// The server's half of the beginning.
///
/// # Errors
/// See [`WireError`]; if it was the token, the client got that answer.
pub fn greet(stream: &mut (impl Read + Write), token: &Token) -> Result<(), WireError> {
    let nonce = nonce();
    stream.write_all(&[&MAGIC[..], &nonce].concat())?;
    let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
    stream.read_exact(&mut answer)?;
    let (theirs, proof) = answer.split_at(NONCE_BYTES);
    if !token.proves("client", &nonce, theirs, proof) {
        stream.write_all(&[0])?;
        return Err(WireError::Token);
    }
    let ours = token.proof("server", theirs, &nonce);
    stream.write_all(&[&[1], ours.as_ref()].concat())?;
    Ok(())
}

/// The client's half.
///
/// # Errors
/// See [`WireError`].
pub fn enter(stream: &mut (impl Read + Write), token: &Token) -> Result<(), WireError> {
    let mut hello = [0; MAGIC.len() + NONCE_BYTES];
    stream.read_exact(&mut hello)?;
    let Some(theirs) = hello.strip_prefix(MAGIC) else { return Err(WireError::Stranger) };
    let nonce = nonce();
    let proof = token.proof("client", theirs, &nonce);
    stream.write_all(&[&nonce[..], proof.as_ref()].concat())?;
    let mut verdict = [0];
    stream.read_exact(&mut verdict)?;
    if verdict != [1] {
        return Err(WireError::Token);
    }
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof)?;
    if token.proves("server", &nonce, theirs, &proof) { Ok(()) } else { Err(WireError::Token) }
}

/// Sends a message.
///
/// # Errors
/// As write(2).
pub fn write_message(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&length.to_be_bytes()[..], &body].concat())
}

/// Reads a message.
///
/// # Errors
/// [`WireError::Malformed`] if it is longer than any can be, or not what is expected.
pub fn read_message<T: DeserializeOwned>(stream: &mut impl Read) -> Result<T, WireError> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(WireError::Malformed("a message is too long"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    serde_json::from_slice(&body)
        .map_err(|_| WireError::Malformed("a message is not what it should be"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn token(text: &str) -> Token {
        Token::new(text).unwrap()
    }

    /// Both ends at once, each with a token.
    fn meet(server: &str, client: &str) -> (Result<(), WireError>, Result<(), WireError>) {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let server = token(server);
        let greeting = std::thread::spawn(move || greet(&mut far, &server));
        let entered = enter(&mut near, &token(client));
        drop(near);
        (greeting.join().unwrap(), entered)
    }

    #[test]
    fn two_ends_with_the_same_token_meet_and_others_do_not() {
        let (greeted, entered) = meet("0123456789abcdef", "0123456789abcdef\n");
        assert!(greeted.is_ok() && entered.is_ok());
        let (greeted, entered) = meet("0123456789abcdef", "0123456789abcdeg");
        assert!(matches!(greeted, Err(WireError::Token)), "{greeted:?}");
        assert!(matches!(entered, Err(WireError::Token)), "{entered:?}");
        assert!(Token::new("0123456789abcde").is_none());
    }

    #[test]
    fn something_else_is_known_as_such() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        far.write_all(&[b'x'; 64]).unwrap();
        let entered = enter(&mut near, &token("0123456789abcdef"));
        assert!(matches!(entered, Err(WireError::Stranger)), "{entered:?}");
        drop(far);
        let (mut near, far) = UnixStream::pair().unwrap();
        drop(far);
        let entered = enter(&mut near, &token("0123456789abcdef")).unwrap_err();
        assert_eq!(entered.to_string(), "the far end has closed the connection");
    }

    #[test]
    fn a_proof_is_of_one_side_and_of_one_meeting() {
        let token = token("0123456789abcdef");
        let proof = token.proof("client", b"a", b"b");
        assert!(token.proves("client", b"a", b"b", proof.as_ref()));
        assert!(!token.proves("server", b"a", b"b", proof.as_ref()));
        assert!(!token.proves("client", b"b", b"a", proof.as_ref()));
    }

    #[test]
    fn messages_are_bounded() {
        let mut bytes = Vec::new();
        write_message(&mut bytes, &vec![1, 2, 3]).unwrap();
        assert_eq!(read_message::<Vec<u8>>(&mut &bytes[..]).unwrap(), [1, 2, 3]);
        assert!(matches!(read_message::<String>(&mut &bytes[..]), Err(WireError::Malformed(_))));
        let long = (MESSAGE_BYTES_MAX as u32 + 1).to_be_bytes();
        assert!(matches!(read_message::<String>(&mut &long[..]), Err(WireError::Malformed(_))));
    }
}
