//! `oauth` in pg_hba.conf, and the SASL mechanism OAUTHBEARER (RFC 7628).
//!
//! # Model
//! ```text
//!   client                          here
//!   n,,^Aauth=Bearer TOKEN^A^A  ──► the token is good: AuthenticationOk
//!                               ──► it is not, or there is none: {"status":"invalid_token", where to get one}
//!   ^A                          ──► the login is refused
//! ```
//! A client without a token sends an empty `auth` first, gets the issuer and the scope, and comes
//! again. The reference is PostgreSQL 18's src/backend/libpq/auth-oauth.c.
//!
//! # Limits
//! The validator is built in ([`super::jwt`]): tokens that are not JWTs take an introspection endpoint, which
//! is not asked. `delegate_ident_mapping` is refused.

use std::path::PathBuf;

use serde_json::json;

/// The mechanism's name.
pub const OAUTHBEARER: &str = "OAUTHBEARER";
/// The key under which a token is sent.
const AUTH: &str = "auth";
/// Between the parts of a message, and at its end.
const SEPARATOR: char = '\x01';
/// What the client answers to an error.
pub const ACKNOWLEDGED: &[u8] = b"\x01";
const SCHEME: &str = "bearer";
const WELL_KNOWN: &str = "/.well-known/";
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Which tokens open what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OauthRule {
    /// `issuer`, as the record has it: an issuer, or the address of its discovery document.
    issuer: String,
    /// What tokens must be for: words between spaces.
    pub scope: String,
    /// The audience that tokens must have.
    pub audience: String,
    /// The claim that names the user.
    pub identity: String,
    /// Where the issuer's keys are.
    pub keys: KeySource,
}

/// Where an issuer's keys are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, derive_more::Display)]
pub enum KeySource {
    /// A file on this host.
    #[display("{}", _0.display())]
    File(PathBuf),
    /// A JWK set at this address.
    Url(String),
    /// The issuer's discovery document at this address names it.
    Discovery(String),
}

impl OauthRule {
    /// What tokens name as `iss`.
    pub fn issuer(&self) -> &str {
        self.issuer.split_once(WELL_KNOWN).map_or(&self.issuer, |(issuer, _)| issuer)
    }

    /// The answer to a client without a valid token: where to get one.
    pub fn error_status(&self) -> Vec<u8> {
        json!({
            "status": "invalid_token",
            "openid-configuration": discovery(&self.issuer),
            "scope": self.scope,
        })
        .to_string()
        .into_bytes()
    }
}

fn discovery(issuer: &str) -> String {
    match issuer.contains(WELL_KNOWN) {
        true => issuer.to_owned(),
        false => format!("{issuer}{DISCOVERY}"),
    }
}

/// The options of a record as they come.
#[derive(Debug, Default)]
pub(crate) struct OauthOptions {
    issuer: Option<String>,
    scope: Option<String>,
    audience: Option<String>,
    identity: Option<String>,
    keys: Option<KeySource>,
}

impl OauthOptions {
    /// Takes `name=value`.
    ///
    /// # Errors
    /// What is wrong with it; `None`: there is no such option.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), Option<String>> {
        let text = || (!value.is_empty()).then(|| value.to_owned());
        match name {
            "issuer" => self.issuer = text(),
            "scope" => self.scope = text(),
            "audience" => self.audience = text(),
            "claim" => self.identity = text(),
            "jwks" => {
                self.keys = Some(match value.starts_with('/') {
                    true => KeySource::File(value.into()),
                    false => KeySource::Url(url(value).map_err(Some)?),
                });
            }
            "validator" if value == "jwt" => {}
            "validator" => {
                return Err(Some(format!(
                    "validator \"{value}\" is not permitted: the only one here is jwt, which is built in"
                )));
            }
            "delegate_ident_mapping" if value != "1" => {}
            "delegate_ident_mapping" => {
                return Err(Some(
                    "delegate_ident_mapping is not supported: use map, or claim".to_owned(),
                ));
            }
            _ => return Err(None),
        }
        Ok(())
    }

    /// The rule.
    ///
    /// # Errors
    /// What is missing: PostgreSQL's words.
    pub(crate) fn finish(self) -> Result<OauthRule, String> {
        let missing = |name| {
            format!("authentication method \"oauth\" requires argument \"{name}\" to be set")
        };
        let issuer = self.issuer.ok_or_else(|| missing("issuer"))?;
        let keys = match self.keys {
            Some(keys) => keys,
            None => KeySource::Discovery(url(&discovery(&issuer))?),
        };
        Ok(OauthRule {
            scope: self.scope.ok_or_else(|| missing("scope"))?,
            // Without it a token for any other service of the issuer would open this one (RFC 8725, 3.9).
            audience: self.audience.ok_or_else(|| missing("audience"))?,
            identity: self.identity.unwrap_or_else(|| "sub".to_owned()),
            issuer,
            keys,
        })
    }
}

/// An address from which keys may be fetched: they must not be changed on the way.
pub(crate) fn url(text: &str) -> Result<String, String> {
    let local = ["http://127.0.0.1", "http://[::1]", "http://localhost"];
    let is_local = local.iter().any(|local| {
        let rest = text.strip_prefix(local);
        rest.is_some_and(|rest| {
            // (What stands before an @ is no host.)
            rest.starts_with([':', '/']) && !rest.split('/').next().unwrap_or(rest).contains('@')
        })
    });
    match text.starts_with("https://") || is_local {
        true => Ok(text.to_owned()),
        false => Err(format!("\"{text}\" is neither an absolute path nor an https:// address")),
    }
}

/// What is wrong with a client's message; always 08P01 but for an authorization identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BearerError {
    /// With channel binding, which tokens do not have.
    #[error("malformed OAUTHBEARER message")]
    ChannelBinding,
    /// `a=`: for another user than the one who logs in.
    #[error("client uses authorization identity, but it is not supported")]
    AuthorizationIdentity,
    /// Anything else.
    #[error("malformed OAUTHBEARER message")]
    Malformed,
}

impl BearerError {
    /// The SQLSTATE that PostgreSQL gives.
    pub fn sqlstate(self) -> &'static str {
        match self {
            Self::AuthorizationIdentity => "0A000",
            Self::ChannelBinding | Self::Malformed => "08P01",
        }
    }

    /// PostgreSQL's detail.
    pub fn detail(self) -> Option<&'static str> {
        match self {
            Self::AuthorizationIdentity | Self::Malformed => None,
            Self::ChannelBinding => Some(
                "The server does not support channel binding for OAuth, but the client message \
                 includes channel binding data.",
            ),
        }
    }
}

/// Reads a client's first message: the token, or `None` where it asks where to get one.
///
/// # Errors
/// See [`BearerError`].
pub fn token(message: &[u8]) -> Result<Option<&str>, BearerError> {
    use BearerError::Malformed;
    let text = std::str::from_utf8(message).map_err(|_| Malformed)?;
    let rest = match text.as_bytes().first() {
        Some(b'p') => return Err(BearerError::ChannelBinding),
        Some(b'n' | b'y') => &text[1..],
        _ => return Err(Malformed),
    };
    let rest = rest.strip_prefix(',').ok_or(Malformed)?;
    if rest.starts_with('a') {
        return Err(BearerError::AuthorizationIdentity);
    }
    let mut rest =
        rest.strip_prefix(',').and_then(|it| it.strip_prefix(SEPARATOR)).ok_or(Malformed)?;
    let mut found = None;
    while !rest.starts_with(SEPARATOR) {
        let (pair, after) = rest.split_once(SEPARATOR).ok_or(Malformed)?;
        let (key, value) = pair.split_once('=').ok_or(Malformed)?;
        let fits = |byte: u8| matches!(byte, b'\t' | b'\r' | b'\n' | b' '..=b'~');
        if key.is_empty()
            || !key.bytes().all(|byte| byte.is_ascii_alphabetic())
            || !value.bytes().all(fits)
            || key == AUTH && found.replace(value).is_some()
        {
            return Err(Malformed);
        }
        rest = after;
    }
    // Nothing may follow the terminator.
    match found {
        Some(auth) if rest.len() == SEPARATOR.len_utf8() => Ok(bearer(auth)),
        _ => Err(Malformed),
    }
}

/// The token of `Bearer TOKEN` (RFC 6750); what is none is no token, as in PostgreSQL.
fn bearer(auth: &str) -> Option<&str> {
    let (scheme, rest) = auth.split_once(' ')?;
    let token = rest.trim_start_matches(' ');
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let good =
        scheme.eq_ignore_ascii_case(SCHEME) && !token.is_empty() && token.bytes().all(is_token);
    good.then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_stands_after_bearer() {
        assert_eq!(token(b"n,,\x01auth=Bearer a.b-c_d~e+f/g=\x01\x01"), Ok(Some("a.b-c_d~e+f/g=")));
        let with_more = b"y,,\x01host=db\x01auth=bEARER   t\x01port=5432\x01\x01";
        assert_eq!(token(with_more), Ok(Some("t")));
        for none in ["", "Bearer", "Bearer ", "Basic abc", "Bearer a b", "Bearer a,b"] {
            assert_eq!(token(format!("n,,\x01auth={none}\x01\x01").as_bytes()), Ok(None), "{none}");
        }
    }

    #[test]
    fn messages_that_rfc_7628_does_not_know_are_malformed() {
        assert_eq!(token(b"p=tls-exporter,,\x01auth=\x01\x01"), Err(BearerError::ChannelBinding));
        assert_eq!(token(b"n,a=ann,\x01auth=\x01\x01"), Err(BearerError::AuthorizationIdentity));
        for message in [
            &b""[..],
            b"x,,\x01auth=\x01\x01",
            b"n",
            b"n,b",
            b"n,,auth=\x01\x01",
            b"n,,\x01auth=Bearer t\x01",
            b"n,,\x01auth=Bearer t",
            b"n,,\x01auth=\x01\x01x",
            b"n,,\x01auth\x01\x01",
            b"n,,\x01a1=\x01\x01",
            b"n,,\x01host=\x02\x01\x01",
            b"n,,\x01auth=\x01auth=\x01\x01",
            b"n,,\x01host=a\x01\x01",
            b"n,,\x01\x01",
            b"n,,\x01auth=\0\x01\x01",
            b"n,,\x01auth=\xff\x01\x01",
        ] {
            assert_eq!(token(message), Err(BearerError::Malformed), "{message:?}");
        }
        assert_eq!(BearerError::Malformed.sqlstate(), "08P01");
    }

    fn rule(options: &[(&str, &str)]) -> Result<OauthRule, String> {
        let mut all = OauthOptions::default();
        for (name, value) in options {
            all.set(name, value).map_err(Option::unwrap_or_default)?;
        }
        all.finish()
    }

    #[test]
    fn a_rule_says_where_tokens_and_keys_are_to_be_had() {
        let (issuer, scope, audience) =
            (("issuer", "https://i.example/x"), ("scope", "openid"), ("audience", "db"));
        let found = rule(&[issuer, scope, audience]).unwrap();
        let document = "https://i.example/x/.well-known/openid-configuration";
        assert_eq!(found.keys, KeySource::Discovery(document.to_owned()));
        assert_eq!(found.identity, "sub");
        let status: serde_json::Value = serde_json::from_slice(&found.error_status()).unwrap();
        assert_eq!(
            status,
            json!({"status": "invalid_token", "openid-configuration": document, "scope": "openid"})
        );
        let by_document = rule(&[("issuer", document), scope, audience]).unwrap();
        assert_eq!(
            (by_document.issuer(), found.issuer()),
            ("https://i.example/x", by_document.issuer())
        );
        let local = rule(&[issuer, scope, audience, ("jwks", "http://127.0.0.1:80/keys")]).unwrap();
        assert_eq!(local.keys, KeySource::Url("http://127.0.0.1:80/keys".to_owned()));
        for (options, words) in [
            (&[scope, audience][..], "\"issuer\""),
            (&[issuer, audience], "\"scope\""),
            (&[issuer, scope], "\"audience\""),
            (&[issuer, scope, audience, ("jwks", "http://i.example/keys")], "https://"),
            (&[issuer, scope, audience, ("jwks", "http://127.0.0.1.evil/keys")], "https://"),
            (&[("issuer", "http://i.example"), scope, audience], "https://"),
            (&[issuer, scope, audience, ("validator", "other")], "jwt"),
            (&[issuer, scope, audience, ("delegate_ident_mapping", "1")], "not supported"),
        ] {
            let error = rule(options).unwrap_err();
            assert!(error.contains(words), "{options:?}: {error}");
        }
    }
}
