//! Refuses logins from addresses whose logins have failed: see [`crate::limits::failed_logins`].
//!
//! # Model
//! The address is judged before the proof, which costs a login thread time, and again after it: guesses
//! that run side by side get no answer once one of them has failed too often.

use std::time::{Duration, Instant};

use hawser_pooler::wire::error::{ClientError, SqlState};

use super::Login;
use super::prove::Rule;
use super::wire::Stop;
use crate::auth::hba::Method;
use crate::logging::Seldom;

/// Warnings that logins of an address are refused.
static REFUSED: Seldom = Seldom::new();

/// Whether a client can guess what a method asks for.
fn asks_for_a_password(method: Method) -> bool {
    match method {
        Method::Password | Method::Md5 | Method::ScramSha256 | Method::Ldap | Method::Pam => true,
        Method::Trust | Method::Reject | Method::Cert | Method::Peer | Method::Oauth => false,
    }
}

impl Login {
    /// The longest delay, if failures of this method count.
    fn delay_max(&self, rule: &Rule) -> Option<Duration> {
        let most = self.config.reload.auth.failed_login_delay_max.get();
        most.filter(|_| asks_for_a_password(rule.method))
    }

    /// Whether a login from here may be tried now.
    ///
    /// # Errors
    /// Too many have failed.
    pub(super) fn may_try(&self, rule: &Rule, user: &str) -> Result<(), Stop> {
        if self.delay_max(rule).is_none() {
            return Ok(());
        }
        let shared = &self.entrance.shared;
        let failed = &shared.limits.failed_logins;
        match failed.refused_for(self.origin.place(), user, Instant::now()) {
            None => Ok(()),
            Some(left) => {
                shared.tally.throttled.increment();
                // No code that says to connect again later: pg_isready would take Hawser for down.
                let message = "too many failed logins from this address";
                Err(ClientError::fatal(SqlState::INVALID_AUTHORIZATION, message)
                    .hint(format!("Log in again in {} s.", left.as_secs() + 1))
                    .into())
            }
        }
    }

    /// A proof was `right` or not, or was not judged.
    ///
    /// # Errors
    /// Meanwhile too many others have failed.
    pub(super) fn has_tried(
        &self,
        rule: &Rule,
        user: &str,
        right: Option<bool>,
    ) -> Result<(), Stop> {
        let (Some(most), Some(right)) = (self.delay_max(rule), right) else { return Ok(()) };
        self.may_try(rule, user)?;
        let (failed, place) = (&self.entrance.shared.limits.failed_logins, self.origin.place());
        if right {
            failed.succeeded(place, user);
        } else if let Some(delay) = failed.failed(place, user, most, Instant::now()) {
            self.warn_of_failures(user, delay);
        }
        Ok(())
    }

    fn warn_of_failures(&self, user: &str, delay: Duration) {
        let address = self.origin.peer().to_string();
        if let Some(left_out) = REFUSED.may(&address) {
            tracing::warn!(
                address,
                user,
                delay_s = delay.as_secs_f32(),
                left_out,
                "logins from this address have failed too often: after each further failure they are \
                 refused for a while, up to failed_login_delay_max; hawser_logins_throttled_total \
                 counts them"
            );
        }
    }
}
