//! Access tokens that are signed: JSON Web Tokens (RFC 7519) by the keys of their issuer (RFC 7517).
//!
//! # Model
//! ```text
//!   header.claims.signature ─► key by `kid` and kind ─► signature ─► iss, exp, nbf, aud, scope ─► identity
//! ```
//! # Invariants
//! * an algorithm is taken only with a key of its own kind: never `none`, never an HMAC (RFC 8725, 2.1 and 3.1)
//! * nothing of the claims is looked at before the signature has been verified
//! * a token without an end (`exp`), another audience or another scope opens nothing
//!
//! # Why not a crate
//! What is left of RFC 7519 without algorithms that are refused is a table for ring, which is here already;
//! jsonwebtoken brings a second big-integer library and HMACs that must be kept away from public keys.
//!
//! # Limits
//! `crit` headers, encrypted tokens and certificates in keys (`x5c`) are refused or ignored.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature;
use serde_json::Value;

/// Keys of one issuer.
const KEYS_MAX: usize = 100;
/// How much of a token's content is shown. Anyone can send a header: without a bound, a stranger
/// could write 64 KiB into the log.
const SHOWN_CHARS_MAX: usize = 100;
/// What clocks may differ.
const LEEWAY: Duration = Duration::from_secs(30);

/// The keys of an issuer.
#[derive(Debug, Clone, Default)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Debug, Clone)]
struct Key {
    id: Option<String>,
    algorithm: Option<String>,
    public: PublicKey,
}

#[derive(Debug, Clone)]
enum PublicKey {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// Uncompressed points.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

impl KeySet {
    /// Reads a JWK set. Keys of kinds that sign no tokens here are passed over, as RFC 7517 asks.
    ///
    /// # Errors
    /// It is none, or has no key that can be used.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let set: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or("it has no list \"keys\"")?;
        let keys: Vec<_> = keys.iter().take(KEYS_MAX).filter_map(Key::read).collect();
        if keys.is_empty() {
            return Err("it has no key that signs tokens (RSA, P-256, P-384, Ed25519)".to_owned());
        }
        Ok(Self { keys })
    }
}

impl Key {
    fn read(key: &Value) -> Option<Self> {
        let text = |name| key.get(name).and_then(Value::as_str);
        if text("use").is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let point = |length: usize| {
            let (x, y) = (bytes(text("x")?)?, bytes(text("y")?)?);
            let fits = x.len() == length && y.len() == length;
            fits.then(|| [&[4][..], &x, &y].concat())
        };
        let public = match (text("kty")?, text("crv")) {
            ("RSA", _) => PublicKey::Rsa { n: bytes(text("n")?)?, e: bytes(text("e")?)? },
            ("EC", Some("P-256")) => PublicKey::P256(point(32)?),
            ("EC", Some("P-384")) => PublicKey::P384(point(48)?),
            ("OKP", Some("Ed25519")) => PublicKey::Ed25519(bytes(text("x")?)?),
            _ => return None,
        };
        let owned = |name| text(name).map(str::to_owned);
        Some(Self { id: owned("kid"), algorithm: owned("alg"), public })
    }

    /// Whether it may be the one that a header names.
    fn fits(&self, header: &Header) -> bool {
        let same =
            |own: &Option<String>, named: &str| own.as_deref().is_none_or(|own| own == named);
        same(&self.algorithm, &header.algorithm)
            && header.key.as_deref().is_none_or(|named| self.id.as_deref() == Some(named))
    }

    /// Whether it has made the signature; `None`: it does not sign by this algorithm.
    fn verify(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> Option<bool> {
        let plain = |parameters: &'static dyn signature::VerificationAlgorithm, key: &Vec<u8>| {
            signature::UnparsedPublicKey::new(parameters, key).verify(message, signature).is_ok()
        };
        Some(match (&self.public, algorithm) {
            (PublicKey::Rsa { n, e }, algorithm) => {
                let parameters = match algorithm {
                    "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
                    "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
                    "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
                    _ => return None,
                };
                let key = signature::RsaPublicKeyComponents { n, e };
                key.verify(parameters, message, signature).is_ok()
            }
            (PublicKey::P256(key), "ES256") => plain(&signature::ECDSA_P256_SHA256_FIXED, key),
            (PublicKey::P384(key), "ES384") => plain(&signature::ECDSA_P384_SHA384_FIXED, key),
            (PublicKey::Ed25519(key), "EdDSA" | "Ed25519") => plain(&signature::ED25519, key),
            _ => return None,
        })
    }
}

struct Header {
    algorithm: String,
    key: Option<String>,
}

impl Header {
    fn read(text: &str) -> Result<Self, TokenError> {
        let header = bytes(text).and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let header = header.ok_or(TokenError::NotAToken)?;
        if header.get("crit").is_some() {
            return Err(TokenError::Critical);
        }
        let text = |name| header.get(name).and_then(Value::as_str).map(str::to_owned);
        let algorithm = text("alg").ok_or(TokenError::NotAToken)?;
        Ok(Self { algorithm, key: text("kid") })
    }
}

/// What a token must say.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// `iss`.
    pub issuer: &'a str,
    /// One of `aud`.
    pub audience: &'a str,
    /// Words that must be among its scopes, between spaces.
    pub scope: &'a str,
    /// The claim that names who it is.
    pub identity: &'a str,
}

/// Why a token opens nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is no signed JWT.
    #[error("the token is no signed JWT")]
    NotAToken,
    /// It has headers that must be understood.
    #[error("the token has critical headers, which are not understood")]
    Critical,
    /// None of the issuer's keys is the one that it names. The issuer may have new ones.
    #[error("the issuer has no key {named}")]
    UnknownKey {
        /// The key and algorithm that it names.
        named: String,
    },
    /// It was not signed by the issuer.
    #[error("the token's signature is not its issuer's")]
    Signature,
    /// A claim is missing, or another than what is expected.
    #[error("the token's \"{name}\" is not what the rule asks for: {found}")]
    Claim {
        /// Which.
        name: String,
        /// What it is.
        found: String,
    },
    /// It has run out.
    #[error("the token has expired")]
    Expired,
    /// It is not valid yet.
    #[error("the token is not valid yet")]
    NotYetValid,
}

/// Verifies a token; `now` is since 1970. Returns the identity that it states.
///
/// # Errors
/// See [`TokenError`].
pub fn verify(
    token: &str,
    keys: &KeySet,
    expected: &Expected<'_>,
    now: Duration,
) -> Result<String, TokenError> {
    let (message, signed) = token.rsplit_once('.').ok_or(TokenError::NotAToken)?;
    let (header, claims) = message.split_once('.').ok_or(TokenError::NotAToken)?;
    let header = Header::read(header)?;
    let signed = bytes(signed).ok_or(TokenError::NotAToken)?;
    let candidates = keys.keys.iter().filter(|key| key.fits(&header));
    let verdicts: Vec<bool> = candidates
        .filter_map(|key| key.verify(&header.algorithm, message.as_bytes(), &signed))
        .collect();
    if verdicts.is_empty() {
        let id = header.key.as_deref().map_or_else(|| "without an id".to_owned(), shown);
        let named = format!("{id} for algorithm {}", shown(&header.algorithm));
        return Err(TokenError::UnknownKey { named });
    }
    if !verdicts.contains(&true) {
        return Err(TokenError::Signature);
    }
    let claims = bytes(claims).and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    check(&claims.ok_or(TokenError::NotAToken)?, expected, now)
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

/// Checks the claims of a token that is its issuer's.
fn check(claims: &Value, expected: &Expected<'_>, now: Duration) -> Result<String, TokenError> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let wrong = |name: &str| {
        let found = claims.get(name).map(Value::to_string);
        let found = found.map_or_else(|| "missing".to_owned(), |found| shown(&found));
        TokenError::Claim { name: name.to_owned(), found }
    };
    if text("iss") != Some(expected.issuer) {
        return Err(wrong("iss"));
    }
    let seconds = |name: &str| claims.get(name).and_then(Value::as_f64);
    let (now, leeway) = (now.as_secs_f64(), LEEWAY.as_secs_f64());
    if seconds("exp").ok_or_else(|| wrong("exp"))? <= now - leeway {
        return Err(TokenError::Expired);
    }
    if claims.get("nbf").is_some() && seconds("nbf").ok_or_else(|| wrong("nbf"))? > now + leeway {
        return Err(TokenError::NotYetValid);
    }
    if !words(claims.get("aud"), false).contains(&expected.audience) {
        return Err(wrong("aud"));
    }
    // RFC 8693's name, or that of Microsoft and Okta.
    let name = if claims.get("scope").is_some() { "scope" } else { "scp" };
    let granted = words(claims.get(name), true);
    if !expected.scope.split_whitespace().all(|scope| granted.contains(&scope)) {
        return Err(wrong(name));
    }
    let identity = text(expected.identity).filter(|identity| !identity.is_empty());
    identity.map(str::to_owned).ok_or_else(|| wrong(expected.identity))
}

/// A claim that is one text or a list of them; a text may hold several `split` by spaces.
fn words(claim: Option<&Value>, split: bool) -> Vec<&str> {
    match claim {
        Some(Value::String(text)) if split => text.split_whitespace().collect(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    const EXPECTED: Expected<'_> = Expected {
        issuer: "https://issuer.example",
        audience: "db",
        scope: "openid pg",
        identity: "sub",
    };
    const NOW: Duration = Duration::from_secs(1_000_000);

    struct Issuer {
        pair: EcdsaKeyPair,
        random: SystemRandom,
    }

    impl Issuer {
        fn new() -> Self {
            let random = SystemRandom::new();
            let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
            let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap();
            Self { pair, random }
        }

        fn keys(&self) -> KeySet {
            let point = self.pair.public_key().as_ref();
            let (x, y) =
                (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..]));
            let key = json!({"kty": "EC", "crv": "P-256", "kid": "one", "x": x, "y": y});
            let other = json!({"kty": "oct", "kid": "secret", "k": "AAAA"});
            KeySet::parse(json!({"keys": [other, key]}).to_string().as_bytes()).unwrap()
        }

        fn sign(&self, header: &Value, claims: &Value) -> String {
            let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
            let message = format!("{}.{}", part(header), part(claims));
            let signed = self.pair.sign(&self.random, message.as_bytes()).unwrap();
            format!("{message}.{}", URL_SAFE_NO_PAD.encode(signed))
        }
    }

    fn claims() -> Value {
        json!({"iss": "https://issuer.example", "aud": ["x", "db"], "scope": "openid pg more",
               "sub": "ann", "exp": 1_000_100})
    }

    fn header() -> Value {
        json!({"alg": "ES256", "kid": "one"})
    }

    #[test]
    fn a_token_of_the_issuer_names_whom_it_is_about() {
        let issuer = Issuer::new();
        let token = issuer.sign(&header(), &claims());
        assert_eq!(verify(&token, &issuer.keys(), &EXPECTED, NOW), Ok("ann".to_owned()));
        let without_id = issuer.sign(&json!({"alg": "ES256"}), &claims());
        assert_eq!(verify(&without_id, &issuer.keys(), &EXPECTED, NOW), Ok("ann".to_owned()));
        let strange = verify(&token, &Issuer::new().keys(), &EXPECTED, NOW);
        assert_eq!(strange, Err(TokenError::Signature));
        let (message, _) = token.rsplit_once('.').unwrap();
        let unsigned = verify(&format!("{message}."), &issuer.keys(), &EXPECTED, NOW);
        assert_eq!(unsigned, Err(TokenError::Signature));
    }

    #[test]
    fn algorithms_that_are_not_the_keys_are_refused() {
        let issuer = Issuer::new();
        for algorithm in ["none", "None", "HS256", "RS256", "ES384", "EdDSA"] {
            for header in [json!({"alg": algorithm}), json!({"alg": algorithm, "kid": "one"})] {
                let token = issuer.sign(&header, &claims());
                let refused = verify(&token, &issuer.keys(), &EXPECTED, NOW);
                assert!(matches!(refused, Err(TokenError::UnknownKey { .. })), "{refused:?}");
            }
        }
        let other = issuer.sign(&json!({"alg": "ES256", "kid": "two"}), &claims());
        let refused = verify(&other, &issuer.keys(), &EXPECTED, NOW);
        assert!(matches!(refused, Err(TokenError::UnknownKey { .. })), "{refused:?}");
        let critical = json!({"alg": "ES256", "kid": "one", "crit": ["b64"], "b64": false});
        let refused = verify(&issuer.sign(&critical, &claims()), &issuer.keys(), &EXPECTED, NOW);
        assert_eq!(refused, Err(TokenError::Critical));
        for text in ["", ".", "..", "a.b.c", "a"] {
            assert_eq!(verify(text, &issuer.keys(), &EXPECTED, NOW), Err(TokenError::NotAToken));
        }
    }

    #[test]
    fn of_what_a_stranger_writes_a_little_is_said() {
        let issuer = Issuer::new();
        let long = "\u{e4}".repeat(30_000);
        let longest =
            |error: Result<String, TokenError>| error.unwrap_err().to_string().chars().count();
        let named = json!({"alg": long, "kid": long});
        let refused = verify(&issuer.sign(&named, &claims()), &issuer.keys(), &EXPECTED, NOW);
        assert!(longest(refused) < 300);
        let mut claims = claims();
        claims["aud"] = json!(long);
        let refused = verify(&issuer.sign(&header(), &claims), &issuer.keys(), &EXPECTED, NOW);
        assert!(longest(refused) < 300);
    }

    #[test]
    fn every_claim_is_what_the_rule_asks_for() {
        let issuer = Issuer::new();
        let with = |name: &str, value: Value| {
            let mut claims = claims();
            claims[name] = value;
            verify(&issuer.sign(&header(), &claims), &issuer.keys(), &EXPECTED, NOW)
        };
        let (past, edge) = (1_000_000 - 30, 1_000_000 - 29);
        assert_eq!(with("exp", json!(past)), Err(TokenError::Expired));
        assert!(with("exp", json!(edge)).is_ok());
        assert_eq!(with("nbf", json!(1_000_031)), Err(TokenError::NotYetValid));
        assert!(with("nbf", json!(1_000_030)).is_ok());
        for (name, value) in [
            ("exp", Value::Null),
            ("exp", json!("never")),
            ("nbf", json!("soon")),
            ("iss", json!("https://issuer.example/")),
            ("aud", json!("dbx")),
            ("aud", json!("x db")),
            ("aud", Value::Null),
            ("scope", json!("openid")),
            ("scope", json!("openid pgx")),
            ("scope", Value::Null),
            ("sub", json!("")),
            ("sub", json!(7)),
        ] {
            let refused = with(name, value.clone());
            let named =
                matches!(&refused, Err(TokenError::Claim { name: found, .. }) if found == name);
            assert!(named, "{name} {value}: {refused:?}");
        }
        assert!(with("aud", json!("db")).is_ok());
        let mut other = claims();
        other["scp"] = json!(["pg", "openid"]);
        other.as_object_mut().unwrap().remove("scope");
        let token = issuer.sign(&header(), &other);
        assert!(verify(&token, &issuer.keys(), &EXPECTED, NOW).is_ok());
    }
}
