//! SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677, channel binding tls-server-end-point of RFC 5929).
//!
//! # Model
//! ```text
//!   client                                   server
//!     gs2-header n=,r=CNONCE ────────────────►
//!     ◄──────────────── r=CNONCE SNONCE,s=SALT,i=ITERATIONS
//!     c=BINDING,r=CNONCE SNONCE,p=PROOF ─────►
//!     ◄──────────────── v=SIGNATURE
//!
//!   SaltedPassword = PBKDF2(password, SALT, ITERATIONS)     the expensive step: 1.5 to 4 ms at 4096
//!   ClientKey = HMAC(SaltedPassword, "Client Key")          StoredKey = SHA256(ClientKey)
//!   ServerKey = HMAC(SaltedPassword, "Server Key")          AuthMessage = the three messages, joined by ","
//!   PROOF = ClientKey XOR HMAC(StoredKey, AuthMessage)      SIGNATURE = HMAC(ServerKey, AuthMessage)
//! ```
//! A verifier is what PostgreSQL stores: SALT, ITERATIONS, StoredKey, ServerKey. It checks a client but cannot log in.
//! A client that logs in reveals its ClientKey to the holder of the verifier, who can then log that
//! user in to every server that stores the same verifier ([`ScramKeys`]).
//!
//! # Invariants
//! - Only [`Derivation::run`] and [`verify_password`] are expensive; the caller runs them off the event loops.
//! - A user without a verifier goes through every step with a made-up one and fails at the end, as a wrong password does.
//! - Secrets are compared in constant time and never printed.
//!
//! # Why not
//! An authorization identity, mandatory extensions and other channel bindings: PostgreSQL has none of them.

pub mod client;
pub mod server;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::{digest, hmac, pbkdf2};
use subtle::ConstantTimeEq;

use super::secret::Secret;

/// The mechanism without channel binding.
pub const SCRAM_SHA_256: &str = "SCRAM-SHA-256";
/// The mechanism with channel binding.
pub const SCRAM_SHA_256_PLUS: &str = "SCRAM-SHA-256-PLUS";

/// The iterations of verifiers that we make, and of made-up ones: PostgreSQL's default.
pub const ITERATIONS_DEFAULT: NonZeroU32 = NonZeroU32::new(4096).expect("not zero");

/// The most iterations that a server may ask of us: about half a second. A hostile one asks for two thousand million.
pub const ITERATIONS_MAX: u32 = 1_000_000;

/// The longest salt that a server may send, in bytes.
pub const SALT_LENGTH_MAX: usize = 1024;

const KEY_LENGTH: usize = 32;
const SALT_LENGTH: usize = 16;
const NONCE_LENGTH: usize = 18;
const BINDING_TYPE: &str = "tls-server-end-point";

/// A key of 32 bytes, compared in constant time and never printed.
#[derive(Clone, Copy, derive_more::Debug)]
#[debug("Key(..)")]
pub struct Key([u8; KEY_LENGTH]);

impl Key {
    fn hmac(key: &[u8], parts: &[&[u8]]) -> Self {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
        for part in parts {
            context.update(part);
        }
        Self::of(context.sign().as_ref())
    }

    /// The output of a function that yields 32 bytes.
    fn of(bytes: &[u8]) -> Self {
        let mut key = [0; KEY_LENGTH];
        key.copy_from_slice(bytes);
        Self(key)
    }

    fn decode(text: &str) -> Option<Self> {
        BASE64.decode(text).ok()?.try_into().ok().map(Self)
    }

    fn sha256(&self) -> Self {
        Self::of(digest::digest(&digest::SHA256, &self.0).as_ref())
    }

    fn xor(&self, other: &Self) -> Self {
        let mut key = self.0;
        for (byte, other) in key.iter_mut().zip(other.0) {
            *byte ^= other;
        }
        Self(key)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Key {}

/// What PostgreSQL stores of a password: enough to check a client, not enough to log in.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("ScramVerifier(iterations: {iterations}, ..)")]
pub struct ScramVerifier {
    iterations: NonZeroU32,
    salt: Box<[u8]>,
    stored_key: Key,
    server_key: Key,
}

impl ScramVerifier {
    /// Reads `SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (iterations, rest) = text.strip_prefix("SCRAM-SHA-256$")?.split_once(':')?;
        let (salt, keys) = rest.split_once('$')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        if salt.is_empty() || !iterations.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Self {
            // PostgreSQL keeps the count in an int.
            iterations: iterations.parse::<i32>().ok()?.unsigned_abs().try_into().ok()?,
            salt: BASE64.decode(salt).ok()?.into(),
            stored_key: Key::decode(stored_key)?,
            server_key: Key::decode(server_key)?,
        })
    }

    /// The form that PostgreSQL stores: a secret, for a file or for ALTER ROLE, never for a log.
    pub fn to_stored(&self) -> String {
        format!(
            "{SCRAM_SHA_256}${}:{}${}:{}",
            self.iterations,
            BASE64.encode(&self.salt),
            BASE64.encode(self.stored_key.0),
            BASE64.encode(self.server_key.0)
        )
    }

    /// The salt.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// The number of iterations.
    pub fn iterations(&self) -> NonZeroU32 {
        self.iterations
    }
}

/// All that it takes to log in with SCRAM, and to check others who do: a verifier and the ClientKey that fits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScramKeys {
    verifier: ScramVerifier,
    client_key: Key,
}

impl ScramKeys {
    /// The verifier that the keys belong to.
    pub fn verifier(&self) -> &ScramVerifier {
        &self.verifier
    }

    /// The verifier and the ClientKey as texts: a secret, for another process of this user's alone.
    pub fn to_texts(&self) -> (String, String) {
        (self.verifier.to_stored(), BASE64.encode(self.client_key.0))
    }

    /// From these texts; `None` if they are none, or do not belong together.
    pub fn of_texts(verifier: &str, client_key: &str) -> Option<Self> {
        let verifier = ScramVerifier::parse(verifier)?;
        let client_key = Key::decode(client_key)?;
        (client_key.sha256() == verifier.stored_key).then_some(Self { verifier, client_key })
    }

    /// Whether a server that sends `salt` and `iterations` may store the same verifier.
    fn fits(&self, salt: &[u8], iterations: NonZeroU32) -> bool {
        *self.verifier.salt == *salt && self.verifier.iterations == iterations
    }
}

/// The expensive step of SCRAM, not yet done: PBKDF2 of a password.
#[derive(Clone, derive_more::Debug)]
#[debug("Derivation(iterations: {iterations}, ..)")]
pub struct Derivation {
    password: Box<[u8]>,
    salt: Box<[u8]>,
    iterations: NonZeroU32,
}

impl Derivation {
    /// The derivation of `password` with this salt and number of iterations.
    pub fn new(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> Self {
        Self { password: password.into(), salt: salt.into(), iterations }
    }

    /// Runs it: milliseconds for thousands of iterations. Not on an event loop.
    pub fn run(&self) -> ScramKeys {
        derive(&self.password, &self.salt, self.iterations)
    }
}

/// The keys of a password. Expensive: see [`Derivation::run`].
pub fn derive(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> ScramKeys {
    let mut salted = [0; KEY_LENGTH];
    let prepared = prepare_password(password);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, &prepared, &mut salted);
    let client_key = Key::hmac(&salted, &[b"Client Key"]);
    let server_key = Key::hmac(&salted, &[b"Server Key"]);
    let stored_key = client_key.sha256();
    let verifier = ScramVerifier { iterations, salt: salt.into(), stored_key, server_key };
    ScramKeys { verifier, client_key }
}

/// SASLprep (RFC 4013); where that fails, or leaves nothing, the bytes as they are: PostgreSQL does the same, since it
/// cannot know the encoding of a password.
fn prepare_password(password: &[u8]) -> Vec<u8> {
    let prepared =
        std::str::from_utf8(password).ok().and_then(|text| stringprep::saslprep(text).ok());
    match prepared {
        Some(prepared) if !prepared.is_empty() => prepared.into_owned().into_bytes(),
        _ => password.to_vec(),
    }
}

/// The random part of one end's nonce: printable characters without a comma.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nonce(String);

impl Nonce {
    /// A nonce of 18 bytes that `fill` makes: PostgreSQL's length. They must be unpredictable.
    pub fn generate(fill: impl FnOnce(&mut [u8])) -> Self {
        let mut bytes = [0; NONCE_LENGTH];
        fill(&mut bytes);
        Self(BASE64.encode(bytes))
    }

    /// This very nonce; `None` where a character is not allowed. For tests with published exchanges.
    pub fn literal(text: &str) -> Option<Self> {
        (!text.is_empty() && is_printable(text.as_bytes())).then(|| Self(text.to_owned()))
    }
}

/// RFC 5802: `printable = %x21-2B / %x2D-7E`
fn is_printable(text: &[u8]) -> bool {
    text.iter().all(|&byte| matches!(byte, 0x21..=0x2b | 0x2d..=0x7e))
}

/// The secret of this process from which it makes up salts for users that have none.
///
/// A user's made-up salt stays the same while the process lives, as a real one would; PostgreSQL keeps its nonce in the
/// control file for the same reason.
#[derive(Clone, derive_more::Debug)]
#[debug("MockNonce(..)")]
pub struct MockNonce(Key);

impl MockNonce {
    /// A nonce of 32 bytes that `fill` makes. They must be unpredictable; once for a process is enough.
    pub fn generate(fill: impl FnOnce(&mut [u8])) -> Self {
        let mut bytes = [0; KEY_LENGTH];
        fill(&mut bytes);
        Self(Key(bytes))
    }

    fn salt(&self, user: &str) -> [u8; SALT_LENGTH] {
        let mut salt = [0; SALT_LENGTH];
        salt.copy_from_slice(&Key::hmac(&self.0.0, &[user.as_bytes()]).0[..SALT_LENGTH]);
        salt
    }

    fn verifier(&self, user: &str) -> ScramVerifier {
        ScramVerifier {
            iterations: ITERATIONS_DEFAULT,
            salt: self.salt(user).into(),
            stored_key: Key([0; KEY_LENGTH]),
            server_key: Key([0; KEY_LENGTH]),
        }
    }
}

/// A user as SCRAM sees one: with a verifier, real or made up. A client cannot distinguish the two.
#[derive(Clone, derive_more::Debug)]
#[debug("Account(..)")]
pub struct Account {
    verifier: ScramVerifier,
    /// The verifier is made up: whatever the client proves, it is wrong.
    doomed: bool,
}

/// How to come by an [`Account`].
#[derive(Debug, Clone)]
pub enum Preparation {
    /// Nothing is left to do.
    Ready(Account),
    /// The password is known in plain text. Run this, keep the keys for the user's next logins (they also log in to
    /// servers that ask for the same salt) and go on with [`Account::known`].
    ///
    /// Do so when the secret is loaded or changes, not in the middle of a login: a first login that
    /// takes milliseconds longer than the next one tells that the user exists.
    Derive(Derivation),
}

impl Account {
    /// The account of `user`, whose secret may be of any kind. One without a usable secret can only fail.
    pub fn prepare(user: &str, secret: &Secret, mock: &MockNonce) -> Preparation {
        match secret {
            Secret::Scram(verifier) => Preparation::Ready(Self::known(verifier.clone())),
            // The made-up salt: a user with a plain password is then like one that does not exist, to a client
            // without the password, and keeps the salt for as long as the process lives.
            Secret::Plain(password) => Preparation::Derive(Derivation::new(
                password.as_bytes(),
                &mock.salt(user),
                ITERATIONS_DEFAULT,
            )),
            Secret::Md5(_) | Secret::None => Preparation::Ready(Self::unknown(user, mock)),
        }
    }

    /// A user with this verifier.
    pub fn known(verifier: ScramVerifier) -> Self {
        Self { verifier, doomed: false }
    }

    /// A user that does not exist, has no secret or may not log in (VALID UNTIL has passed).
    pub fn unknown(user: &str, mock: &MockNonce) -> Self {
        Self { verifier: mock.verifier(user), doomed: true }
    }

    /// The same account, which now can only fail: for a password whose time has passed, with its own salt.
    pub fn expired(self) -> Self {
        Self { doomed: true, ..self }
    }
}

/// Checks a password that the client sent in clear text. As expensive as [`Derivation::run`], for every account: the time
/// does not tell whether the user exists. The keys log in to servers with the same verifier.
pub fn verify_password(account: &Account, password: &[u8]) -> Option<ScramKeys> {
    let keys = derive(password, &account.verifier.salt, account.verifier.iterations);
    let right = keys.verifier.server_key == account.verifier.server_key;
    (right & !account.doomed).then_some(keys)
}

/// The three messages that both ends sign.
struct AuthMessage {
    client_first_bare: Vec<u8>,
    server_first: Vec<u8>,
    client_final_without_proof: Vec<u8>,
}

impl AuthMessage {
    fn sign(&self, key: &Key) -> Key {
        Key::hmac(
            &key.0,
            &[
                &self.client_first_bare,
                b",",
                &self.server_first,
                b",",
                &self.client_final_without_proof,
            ],
        )
    }
}
