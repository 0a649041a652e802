//! Asks an LDAP server whether a password is a user's.
//!
//! # Invariants
//! * never with an empty password
//! * the whole takes at most the bound that the caller gives
//!
//! # Limits  one connection, or two with a search, for each login: nothing is kept open

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ldap3::{Ldap, LdapConnAsync, LdapConnSettings, LdapError, Scope, SearchEntry, SearchResult};
use rustls::ClientConfig;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::auth::ldap::{LdapRule, LdapScope, LdapSearch, LdapWay, bind_name};
use crate::config::Password;

/// The time is divided among this many servers.
const SERVERS_TRIED: u32 = 3;

/// A connection and the task that drives it, which ends with it.
struct Session {
    ldap: Ldap,
    drive: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.drive.abort();
    }
}

/// Checks a password. The outer error is that of the servers, the inner one says why it is refused:
/// both are for the log.
///
/// # Errors
/// No LDAP server could be asked.
pub(super) async fn check(
    rule: &LdapRule,
    tls: Arc<ClientConfig>,
    user: &str,
    password: &str,
    within: Duration,
) -> Result<Result<(), String>, String> {
    if password.is_empty() {
        return Ok(Err("the password is empty".to_owned()));
    }
    let asking = Asking { rule, tls, within };
    let asked = timeout(within, asking.ask(user, password));
    asked.await.unwrap_or_else(|_| Err(format!("no answer within {} s", within.as_secs_f32())))
}

/// A question to the servers of a rule.
struct Asking<'a> {
    rule: &'a LdapRule,
    tls: Arc<ClientConfig>,
    within: Duration,
}

impl Asking<'_> {
    async fn ask(&self, user: &str, password: &str) -> Result<Result<(), String>, String> {
        let name = match &self.rule.way {
            LdapWay::Simple { prefix, suffix } => match bind_name(prefix, user, suffix) {
                Ok(name) => name,
                Err(reason) => return Ok(Err(reason)),
            },
            LdapWay::Search(search) => match self.find(search, user).await? {
                Ok(name) => name,
                Err(reason) => return Ok(Err(reason)),
            },
        };
        // A connection of its own, as in PostgreSQL: the first one's bind does not count.
        let mut session = self.connect().await?;
        let bound =
            session.ldap.simple_bind(&name, password).await.map_err(|error| text_of(&error))?;
        let _ = session.ldap.unbind().await;
        Ok(match bound.rc {
            0 => Ok(()),
            code => Err(format!("LDAP login failed for \"{name}\": result {code} {}", bound.text)),
        })
    }

    /// The name of the user's entry.
    async fn find(
        &self,
        search: &LdapSearch,
        user: &str,
    ) -> Result<Result<String, String>, String> {
        let filter = match search.filter(user) {
            Ok(filter) => filter,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut session = self.connect().await?;
        let (dn, bind_password) = (&search.bind_dn, search.bind_password.as_ref());
        let bind_password = bind_password.map_or("", Password::expose);
        let bound =
            session.ldap.simple_bind(dn, bind_password).await.map_err(|error| text_of(&error))?;
        if bound.rc != 0 {
            return Err(format!(
                "initial LDAP bind for ldapbinddn \"{dn}\" failed: result {}",
                bound.rc
            ));
        }
        let scope = match search.scope {
            LdapScope::Base => Scope::Base,
            LdapScope::One => Scope::OneLevel,
            LdapScope::Subtree => Scope::Subtree,
        };
        // 1.1: no attributes, by RFC 4511.
        let found = session.ldap.search(&search.base, scope, &filter, ["1.1"]).await;
        let (mut entries, _) =
            found.and_then(SearchResult::success).map_err(|error| text_of(&error))?;
        let _ = session.ldap.unbind().await;
        Ok(match (entries.len(), entries.pop()) {
            (1, Some(entry)) => Ok(SearchEntry::construct(entry).dn),
            (0, _) => Err(format!("LDAP user \"{user}\" does not exist: no entry for {filter}")),
            (count, _) => Err(format!("LDAP user \"{user}\" is not unique: {count} for {filter}")),
        })
    }

    /// A connection to the first server that can be reached.
    async fn connect(&self) -> Result<Session, String> {
        let mut last = String::new();
        for url in &self.rule.urls {
            let settings = LdapConnSettings::new()
                .set_config(self.tls.clone())
                .set_starttls(self.rule.start_tls)
                .set_conn_timeout(self.within / SERVERS_TRIED);
            match LdapConnAsync::with_settings(settings, url).await {
                Ok((connection, ldap)) => {
                    let drive = tokio::spawn(async move {
                        // The waiter for an answer gets its error.
                        let _ = connection.drive().await;
                    });
                    return Ok(Session { ldap, drive });
                }
                Err(error) => last = format!("{url}: {}", text_of(&error)),
            }
        }
        Err(last)
    }
}

fn text_of(error: &LdapError) -> String {
    match error {
        LdapError::Io { source } if source.kind() == io::ErrorKind::UnexpectedEof => {
            "the LDAP server closed the connection".to_owned()
        }
        error => error.to_string(),
    }
}
