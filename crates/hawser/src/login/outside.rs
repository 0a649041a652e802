//! Proofs that another program judges: an LDAP server, the system's PAM, the issuer of a token.
//!
//! # Invariants
//! * the client waits at most `server_connect_timeout` for them, and gets no more than that it is
//!   refused

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hawser_pooler::wire::error::{ClientError, SqlState};

use super::ldap;
use super::origin::Origin;
use super::pam::{self, Question};
use super::prove::{Proved, Proving, Rule, broken_off, malformed};
use super::wire::{Stop, send};
use crate::auth::hba::PamRule;
use crate::auth::jwt::{self, Expected, TokenError};
use crate::auth::key_sets::Fetching;
use crate::auth::ldap::LdapRule;
use crate::auth::message::{self, PASSWORD_MESSAGE_LENGTH_MAX, SaslInitialResponse};
use crate::auth::oauth::{self, ACKNOWLEDGED, BearerError, OAUTHBEARER, OauthRule};
use crate::logging::Seldom;

/// How much of the name in a token is logged.
const IDENTITY_CHARS_MAX: usize = 100;
/// Warnings that another program could not be asked.
static NOT_ASKED: Seldom = Seldom::new();

impl Proving<'_> {
    /// Asks for the password, and an LDAP server whether it is right.
    pub(super) async fn ldap(&mut self, rule: &Rule, ldap: &LdapRule) -> Result<Proved, Stop> {
        let body = self.answer(&message::cleartext_password()).await?;
        let password: Box<[u8]> = message::password(&body).map_err(malformed)?.into();
        let Ok(text) = std::str::from_utf8(&password).map(str::to_owned) else {
            return self.refuse(rule, "the password is not UTF-8");
        };
        let fetching = self.fetching()?;
        let (server, user) = (ldap.clone(), self.user.to_owned());
        // With TLS this includes a handshake.
        let asked = self.prover.shared.threads.heavy(async move {
            ldap::check(&server, fetching.tls, &user, &text, fetching.within).await
        });
        let asked = async { asked.await.unwrap_or_else(|| Err("the process ends".to_owned())) };
        match self.while_others_wait(asked).await? {
            Ok(Ok(())) => Ok(Proved { password: Some(password), ..Proved::default() }),
            Ok(Err(reason)) => self.refuse(rule, reason),
            Err(reason) => {
                if let Some(left_out) = NOT_ASKED.may(&reason) {
                    let user = self.user;
                    tracing::warn!(user, %reason, left_out, "no LDAP server could be asked");
                }
                self.could_not_be_asked = true;
                self.refuse(rule, reason)
            }
        }
    }

    /// Asks for the password, and PAM whether it is right.
    pub(super) async fn pam(&mut self, rule: &Rule, pam: &PamRule) -> Result<Proved, Stop> {
        let body = self.answer(&message::cleartext_password()).await?;
        let password: Box<[u8]> = message::password(&body).map_err(malformed)?.into();
        let config = self.prover.shared.config.load_full();
        let question = Question {
            service: pam.service.clone(),
            user: self.user.to_owned(),
            host: self.host(pam.use_host_name, config.reload.servers.dns_max_ttl).await,
            password: password.clone(),
        };
        let within = config.reload.servers.server_connect_timeout;
        match self.while_others_wait(pam::check(&question, within)).await? {
            Ok(Ok(())) => Ok(Proved { password: Some(password), ..Proved::default() }),
            Ok(Err(reason)) => self.refuse(rule, reason),
            Err(reason) => {
                if let Some(left_out) = NOT_ASKED.may(&reason) {
                    tracing::warn!(user = self.user, %reason, left_out, "PAM could not be asked");
                }
                self.could_not_be_asked = true;
                self.refuse(rule, reason)
            }
        }
    }

    /// Waits for the other program; if places for logins run short, it gives way like one whose
    /// client still has to prove itself.
    async fn while_others_wait<T>(&self, asked: impl Future<Output = T>) -> Result<T, Stop> {
        let asked = async { Ok::<T, Stop>(asked.await) };
        self.prover.shared.limits.wait(self.awaited, self.origin.network(), asked).await
    }

    /// The client's address or name; empty for a unix socket.
    async fn host(&self, by_name: bool, max_ttl: Duration) -> String {
        let Origin::Tcp(address) = self.origin else { return String::new() };
        let address = address.ip().to_canonical();
        let name = match by_name {
            true => self.prover.client_names.name_of(address, max_ttl).await,
            false => None,
        };
        name.as_deref().map_or_else(|| address.to_string(), str::to_owned)
    }

    /// Asks for a token of the rule's issuer (RFC 7628).
    pub(super) async fn bearer(&mut self, rule: &Rule, oauth: &OauthRule) -> Result<Proved, Stop> {
        send(self.stream, &message::sasl(&[OAUTHBEARER])).await?;
        let body = self.receive(PASSWORD_MESSAGE_LENGTH_MAX).await?;
        let initial = SaslInitialResponse::parse_up_to(&body, PASSWORD_MESSAGE_LENGTH_MAX);
        let initial = initial.map_err(malformed)?;
        if initial.mechanism_name() != OAUTHBEARER {
            return Err(ClientError::fatal(
                SqlState::PROTOCOL_VIOLATION,
                "client selected an invalid SASL authentication mechanism",
            )
            .into());
        }
        let first = match initial.data {
            Some(data) => data.to_vec(),
            None => {
                send(self.stream, &message::sasl_continue(b"")).await?;
                self.receive(PASSWORD_MESSAGE_LENGTH_MAX).await?
            }
        };
        let reason = match oauth::token(&first).map_err(malformed_bearer)? {
            // It asks where to get a token.
            None => "the client has shown no token".to_owned(),
            Some(token) => match self.while_others_wait(self.identity(oauth, token)).await? {
                Ok(identity) if self.is_mapped(rule, &identity) => return Ok(Proved::default()),
                Ok(identity) => {
                    let shown: String = identity.chars().take(IDENTITY_CHARS_MAX).collect();
                    format!("the token is that of \"{shown}\"")
                }
                Err(reason) => reason,
            },
        };
        send(self.stream, &message::sasl_continue(&oauth.error_status())).await?;
        let last = self.receive(PASSWORD_MESSAGE_LENGTH_MAX).await?;
        if last != ACKNOWLEDGED {
            return Err(malformed_bearer(BearerError::Malformed));
        }
        self.refuse(rule, reason)
    }

    /// The identity that a token states.
    async fn identity(&self, oauth: &OauthRule, token: &str) -> Result<String, String> {
        let fetching = self.fetching().map_err(|_| "no TLS towards the issuer".to_owned())?;
        let expected = Expected {
            issuer: oauth.issuer(),
            audience: &oauth.audience,
            scope: &oauth.scope,
            identity: &oauth.identity,
        };
        let verify = |keys| jwt::verify(token, keys, &expected, since_1970());
        let sets = &self.access.key_sets;
        let keys = sets.get(&oauth.keys, false, &fetching).await?;
        let verified = match verify(&keys) {
            Err(TokenError::UnknownKey { .. }) => {
                let keys = sets.get(&oauth.keys, true, &fetching).await?;
                verify(&keys)
            }
            verified => verified,
        };
        verified.map_err(|error| error.to_string())
    }

    fn fetching(&self) -> Result<Fetching, Stop> {
        let within = self.prover.shared.config.load().reload.servers.server_connect_timeout;
        let tls = self.access.outward_tls().ok_or_else(|| {
            ClientError::fatal(SqlState::INTERNAL_ERROR, "the proof could not be checked")
        })?;
        Ok(Fetching { tls, within })
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn malformed_bearer(error: BearerError) -> Stop {
    broken_off(error.sqlstate(), error.to_string(), error.detail())
}
