//! How a client proves who it is: which method, and the exchange itself.
//!
//! # Invariants
//! * a user that does not exist goes through the same messages, by the same steps, as a wrong
//!   password
//! * a certificate, or the user of a process, proves only a name: it admits no unknown user
//! * hashing runs on blocking threads, never where other logins are served
//! * AuthenticationOk is not sent here: it belongs to the greeting

use std::sync::{Arc, OnceLock};

use hawser_pooler::session::options::Replication;
use hawser_pooler::wire::error::{ClientError, SqlState};

use super::origin::Origin;
use super::wire::{Stop, password_message, send};
use crate::auth::access::Access;
use crate::auth::certificate::Subject;
use crate::auth::hba::{
    ClientCert, ClientName, ConnInfo, ConnKind, HbaRules, Interface, Match, Method, Options,
    PeerName, Refused, UserRoles,
};
use crate::auth::message::{
    self, PASSWORD_MESSAGE_LENGTH_MAX, SASL_MESSAGE_LENGTH_MAX, SaslInitialResponse,
};
use crate::auth::scram::server::{ServerBinding, ServerError, ServerExchange, ServerStep};
use crate::auth::scram::{Account, MockNonce, Nonce, ScramKeys};
use crate::auth::secret::{Challenge, Secret};
use crate::config::{ADMIN_DATABASES, AuthType, Config, DatabaseConfig};
use crate::limits::half_open::Awaited;
use crate::pools::membership::Memberships;
use crate::process::random_bytes;
use crate::resolve::clients::ClientNames;
use crate::shared::Shared;
use crate::socket::stream::Stream;

/// The reason for the log if a user is unknown.
const UNKNOWN_USER: &str =
    "no such user: neither in users_file, nor in [[user]], nor by auth_query";

/// How a client must prove who it is, and its error if it does not.
#[derive(Debug, Clone)]
pub struct Rule {
    /// The method.
    pub method: Method,
    /// Further requirements.
    pub options: Options,
    /// Whether the user must be known here.
    pub must_be_known: bool,
    refusal: Refused,
}

fn refused(refused: Refused) -> ClientError {
    let code =
        refused.sqlstate.as_bytes().try_into().map_or(SqlState::INVALID_AUTHORIZATION, SqlState);
    ClientError::fatal(code, refused.message)
}

impl Rule {
    /// The error for a client that fails.
    pub fn refusal(&self) -> ClientError {
        refused(self.refusal.clone())
    }
}

/// The addresses of this machine, for `samehost` and `samenet`.
fn interfaces() -> Vec<Interface> {
    match hawser_sys::interfaces::all() {
        Ok(all) => {
            all.into_iter().map(|one| Interface { addr: one.address, mask: one.mask }).collect()
        }
        Err(error) => {
            tracing::warn!(%error, "cannot read the addresses of this host: samehost and samenet of hba_file match no client");
            Vec::new()
        }
    }
}

/// What clients prove themselves to.
pub struct Prover {
    /// The configuration, the limits and the threads.
    pub shared: Arc<Shared>,
    /// Secret of this process from which salts of unknown users are made.
    pub mock: MockNonce,
    /// Names of clients' addresses.
    pub client_names: Arc<ClientNames>,
    /// The roles of users.
    pub memberships: Arc<Memberships>,
}

impl Prover {
    /// The rule for a client. Looks its name up if that decides, and the user's roles.
    ///
    /// # Errors
    /// No rule lets it try, or a lookup that decides has failed.
    pub async fn rule(
        &self,
        config: &Config,
        access: &Access,
        conn: &ConnInfo<'_>,
        database: Option<&DatabaseConfig>,
    ) -> Result<Rule, ClientError> {
        let auth_type = config.auth_type();
        if auth_type == AuthType::Hba {
            let Some(rules) = &access.hba else {
                return Err(refused(Refused::no_entry(conn)));
            };
            return self.rule_of_file(config, rules, conn, database).await;
        }
        let method = match auth_type {
            AuthType::Trust | AuthType::Any => Method::Trust,
            AuthType::Md5 => Method::Md5,
            AuthType::ScramSha256 | AuthType::Hba => Method::ScramSha256,
            AuthType::Cert => Method::Cert,
            AuthType::Plain => Method::Password,
        };
        let mut options = Options::default();
        let refusal = match method {
            Method::Cert => {
                options.client_cert = ClientCert::VerifyFull;
                Refused {
                    sqlstate: "28000",
                    message: format!(
                        "certificate authentication failed for user \"{}\"",
                        conn.user
                    ),
                }
            }
            Method::Trust => Refused {
                sqlstate: "28000",
                message: format!("role \"{}\" does not exist", conn.user),
            },
            _ => Refused {
                sqlstate: "28P01",
                message: format!("password authentication failed for user \"{}\"", conn.user),
            },
        };
        let must_be_known = match auth_type {
            AuthType::Trust => true,
            AuthType::Cert => !has_other_users(conn, database),
            AuthType::Any
            | AuthType::Md5
            | AuthType::ScramSha256
            | AuthType::Hba
            | AuthType::Plain => false,
        };
        Ok(Rule { method, options, must_be_known, refusal })
    }

    async fn rule_of_file(
        &self,
        config: &Config,
        rules: &HbaRules,
        conn: &ConnInfo<'_>,
        database: Option<&DatabaseConfig>,
    ) -> Result<Rule, ClientError> {
        let interfaces = if rules.needs_interfaces() { interfaces() } else { Vec::new() };
        let (peer_name, roles) = (OnceLock::new(), OnceLock::new());
        let mut known = *conn;
        loop {
            match rules.matches(&known, &interfaces) {
                Match::Rule(rule) if rule.method == Method::Reject => {
                    return Err(refused(rule.refusal(conn)));
                }
                Match::Rule(rule) => {
                    return Ok(Rule {
                        method: rule.method,
                        options: rule.options.clone(),
                        must_be_known: looks_at_no_list(rule.method)
                            && !has_other_users(conn, database),
                        refusal: rule.refusal(conn),
                    });
                }
                Match::NeedsPeerName => {
                    let ConnKind::Tcp { addr, tls, .. } = known.kind else {
                        return Err(refused(Refused::no_entry(conn)));
                    };
                    let max_ttl = config.reload.servers.dns_max_ttl;
                    let looked_up = Box::pin(self.client_names.name_of(addr, max_ttl)).await;
                    let name = peer_name.get_or_init(|| looked_up).as_deref();
                    let name = name.map_or(PeerName::Unknown, PeerName::Verified);
                    known.kind = ConnKind::Tcp { addr, tls, name };
                }
                Match::NeedsRoles => {
                    let roles_of = self.memberships.roles_of(config, database, conn.user);
                    let looked_up = Box::pin(roles_of).await?;
                    known.roles = UserRoles::Known(roles.get_or_init(|| looked_up));
                }
                Match::NoEntry => return Err(refused(Refused::no_entry(conn))),
            }
        }
    }
}

/// Whether a method proves a name without a list of users. A password belongs to a listed user; an
/// LDAP server, PAM (as in PgBouncer) and an issuer are lists themselves.
fn looks_at_no_list(method: Method) -> bool {
    match method {
        Method::Trust | Method::Cert | Method::Peer => true,
        Method::Reject
        | Method::Password
        | Method::Md5
        | Method::ScramSha256
        | Method::Ldap
        | Method::Pam
        | Method::Oauth => false,
    }
}

/// Whether there are users beyond those known here: for the console its lists of users, for a
/// database whose server learns of each client that server's users. A rule says how, not who.
fn has_other_users(conn: &ConnInfo<'_>, database: Option<&DatabaseConfig>) -> bool {
    ADMIN_DATABASES.contains(&conn.database)
        || database.is_some_and(|database| database.hand_over_secret_file.is_some())
}

impl From<Replication> for crate::auth::hba::Replication {
    fn from(asked: Replication) -> Self {
        match asked {
            Replication::None => Self::Off,
            Replication::Physical => Self::Physical,
            Replication::Database => Self::Logical,
        }
    }
}

/// Who a client says it is, for the rules.
pub fn conn_info<'a>(
    origin: &Origin,
    tls: bool,
    database: &'a str,
    user: &'a str,
    replication: crate::auth::hba::Replication,
) -> ConnInfo<'a> {
    let kind = match origin {
        Origin::Unix { .. } => ConnKind::Local,
        Origin::Tcp(address) => {
            ConnKind::Tcp { addr: address.ip().to_canonical(), tls, name: PeerName::NotLookedUp }
        }
    };
    ConnInfo { kind, database, user, replication, roles: UserRoles::NotLookedUp }
}

/// A proof that is broken off with these words.
pub(super) fn broken_off(sqlstate: &str, message: String, detail: Option<&str>) -> Stop {
    let code = sqlstate.as_bytes().try_into();
    let error = ClientError::fatal(code.map_or(SqlState::PROTOCOL_VIOLATION, SqlState), message);
    match detail {
        Some(detail) => error.detail(detail).into(),
        None => error.into(),
    }
}

/// The results of a proof.
#[derive(Debug, Default)]
pub struct Proved {
    /// The keys of the user, to log in to servers with the same verifier.
    pub keys: Option<ScramKeys>,
    /// The password that the user has sent in clear text, and that was right.
    pub password: Option<Box<[u8]>>,
    /// Whether Hawser has checked it against the stored secret of the user, and not an LDAP server
    /// or PAM, whose password may differ from PostgreSQL's.
    pub fits_stored: bool,
    /// The message to send before AuthenticationOk.
    pub last_message: Vec<u8>,
}

/// A proof that is under way.
pub struct Proving<'a> {
    /// The connection.
    pub stream: &'a mut Stream,
    /// Everything else.
    pub prover: &'a Prover,
    /// Who may log in.
    pub access: &'a Arc<Access>,
    /// The user's name.
    pub user: &'a str,
    /// The user's secret; `None` if there is no such user.
    pub secret: Option<Secret>,
    /// Where the client is.
    pub origin: &'a Origin,
    /// The hash of our certificate, if the connection is encrypted.
    pub end_point: Option<Vec<u8>>,
    /// How it is listed while it waits for the client.
    pub awaited: Awaited,
    /// Why the proof is refused: for the log, never for the client.
    pub reason: Option<String>,
    /// What judges the proof has not done so.
    pub could_not_be_asked: bool,
}

impl Proving<'_> {
    /// The client gets the rule's error, whatever the reason is.
    pub(super) fn refuse<T>(&mut self, rule: &Rule, reason: impl Into<String>) -> Result<T, Stop> {
        self.reason = Some(reason.into());
        Err(rule.refusal().into())
    }

    /// Whether the proof is right; `None`: it was not judged.
    pub(super) fn is_right(&self, rule: &Rule, result: &Result<Proved, Stop>) -> Option<bool> {
        match result {
            Ok(_) => Some(true),
            Err(Stop::Refuse(error)) if **error == rule.refusal() && !self.could_not_be_asked => {
                Some(false)
            }
            Err(_) => None,
        }
    }

    /// Why a password does not fit, or a proof of one.
    fn password_reason(&self, shown: Method) -> &'static str {
        match &self.secret {
            None => UNKNOWN_USER,
            Some(Secret::None) => "no password is known of the user",
            Some(Secret::Md5(_)) if shown == Method::ScramSha256 => {
                "the user's stored secret is of md5: it cannot be checked by SCRAM"
            }
            Some(Secret::Scram(_)) if shown == Method::Md5 => {
                "the user's stored secret is of SCRAM: it cannot be checked by md5"
            }
            Some(Secret::Plain(_) | Secret::Md5(_) | Secret::Scram(_)) => "wrong password",
        }
    }

    /// Asks for the proof and checks it.
    pub async fn run(&mut self, rule: &Rule) -> Result<Proved, Stop> {
        self.check_certificate(rule)?;
        let secret = self.secret.clone().unwrap_or(Secret::None);
        match rule.method {
            Method::Trust | Method::Cert => self.known(rule),
            Method::Reject => self.refuse(rule, "the rule says reject"),
            Method::Peer => {
                self.check_peer(rule).await?;
                self.known(rule)
            }
            Method::Ldap => match &rule.options.ldap {
                Some(ldap) => Box::pin(self.ldap(rule, ldap)).await,
                None => self.refuse(rule, "the rule names no LDAP server"),
            },
            Method::Pam => match &rule.options.pam {
                Some(pam) => Box::pin(self.pam(rule, pam)).await,
                None => self.refuse(rule, "the rule names no PAM service"),
            },
            Method::Oauth => match &rule.options.oauth {
                Some(oauth) => Box::pin(self.bearer(rule, oauth)).await,
                None => self.refuse(rule, "the rule names no issuer"),
            },
            Method::Password | Method::Md5 | Method::ScramSha256 => {
                match Challenge::of(rule.method, &secret, self.access.password_encryption()) {
                    Some(Challenge::Cleartext) => Box::pin(self.cleartext(rule, secret)).await,
                    Some(Challenge::Md5) => Box::pin(self.md5(rule, &secret)).await,
                    Some(Challenge::Scram) => Box::pin(self.scram(rule, secret)).await,
                    None => self.refuse(rule, "the method asks for no password"),
                }
            }
        }
    }

    /// Accepts a proof of a user that need not be in any list, unless the rule asks for that.
    fn known(&mut self, rule: &Rule) -> Result<Proved, Stop> {
        if rule.must_be_known && self.secret.is_none() {
            return self.refuse(rule, UNKNOWN_USER);
        }
        Ok(Proved::default())
    }

    fn check_certificate(&mut self, rule: &Rule) -> Result<(), Stop> {
        let wanted = if rule.method == Method::Cert {
            ClientCert::VerifyFull
        } else {
            rule.options.client_cert
        };
        if wanted == ClientCert::NotRequired {
            return Ok(());
        }
        // rustls has verified it: one that no known authority signed does not get this far.
        let certificate = self
            .stream
            .tls()
            .and_then(|tls| tls.peer_certificates())
            .and_then(|chain| chain.first());
        let Some(certificate) = certificate else {
            self.reason = Some("the client has shown no certificate".to_owned());
            return Err(refused(Refused::needs_certificate()).into());
        };
        if wanted == ClientCert::VerifyCa {
            return Ok(());
        }
        let subject = Subject::of(certificate).map_err(|_| Stop::from(rule.refusal()))?;
        let name = match rule.options.client_name {
            ClientName::Cn => subject.common_name,
            ClientName::Dn => Some(subject.distinguished_name),
        };
        match name {
            Some(name) if self.is_mapped(rule, &name) => Ok(()),
            Some(name) => self.refuse(rule, format!("the certificate is that of \"{name}\"")),
            None => self.refuse(rule, "the certificate has no name"),
        }
    }

    pub(super) fn is_mapped(&self, rule: &Rule, system_user: &str) -> bool {
        let map = rule.options.map.as_deref();
        match (&self.access.ident, map) {
            (Some(ident), _) => ident.allows(map, system_user, self.user),
            (None, None) => system_user == self.user,
            (None, Some(_)) => false,
        }
    }

    async fn check_peer(&mut self, rule: &Rule) -> Result<(), Stop> {
        let Origin::Unix { uid } = self.origin else {
            return self.refuse(rule, "peer is for unix sockets");
        };
        let Some(uid) = *uid else {
            return self.refuse(rule, "the user of the client's process is not known");
        };
        // The name may come from a directory elsewhere, by NSS: not on a thread that serves others.
        let looked_up = move || hawser_sys::process::account_by_id(uid).ok().flatten();
        match off_thread(self.prover, looked_up).await? {
            Some(account) if self.is_mapped(rule, &account.name) => Ok(()),
            Some(account) => {
                self.refuse(rule, format!("the client's process is of user \"{}\"", account.name))
            }
            None => self.refuse(rule, "the user of the client's process is not known"),
        }
    }

    pub(super) async fn answer(&mut self, request: &[u8]) -> Result<Vec<u8>, Stop> {
        send(self.stream, request).await?;
        self.receive(PASSWORD_MESSAGE_LENGTH_MAX).await
    }

    pub(super) async fn receive(&mut self, length_max: usize) -> Result<Vec<u8>, Stop> {
        let message = password_message(self.stream, length_max);
        self.prover.shared.limits.wait(self.awaited, self.origin.network(), message).await
    }

    async fn cleartext(&mut self, rule: &Rule, secret: Secret) -> Result<Proved, Stop> {
        let body = self.answer(&message::cleartext_password()).await?;
        let password: Box<[u8]> = message::password(&body).map_err(malformed)?.into();
        let (user, mock) = (self.user.to_owned(), self.prover.mock.clone());
        let check = move || {
            let right = secret.accepts_password(&user, &password, &mock);
            right.then_some(password)
        };
        let reason = self.password_reason(Method::Password);
        match off_thread(self.prover, check).await? {
            Some(password) => {
                let password = Some(password);
                Ok(Proved { password, fits_stored: true, ..Proved::default() })
            }
            None => self.refuse(rule, reason),
        }
    }

    async fn md5(&mut self, rule: &Rule, secret: &Secret) -> Result<Proved, Stop> {
        let mut salt = [0; 4];
        random_bytes(&mut salt);
        let body = self.answer(&message::md5_password(salt)).await?;
        let answer = message::password(&body).map_err(malformed)?;
        if secret.accepts_md5(self.user, salt, answer) {
            Ok(Proved::default())
        } else {
            self.refuse(rule, self.password_reason(Method::Md5))
        }
    }

    async fn scram(&mut self, rule: &Rule, secret: Secret) -> Result<Proved, Stop> {
        let account = self.account(secret).await?;
        let result = self.scram_exchange(rule, account).await;
        // Other errors are the fault of the client's program, which gets them.
        if self.is_right(rule, &result) == Some(false) {
            self.reason = Some(self.password_reason(Method::ScramSha256).to_owned());
        }
        result
    }

    async fn scram_exchange(&mut self, rule: &Rule, account: Account) -> Result<Proved, Stop> {
        let binding = match self.end_point.clone() {
            Some(hash) => ServerBinding::EndPoint(hash),
            None => ServerBinding::Unavailable,
        };
        send(self.stream, &message::sasl(binding.mechanisms())).await?;
        let body = self.receive(SASL_MESSAGE_LENGTH_MAX).await?;
        let initial = SaslInitialResponse::parse(&body).map_err(malformed)?;
        let failed = |error: ServerError| -> Stop {
            if error == ServerError::WrongProof {
                return rule.refusal().into();
            }
            broken_off(error.sqlstate(), error.to_string(), error.detail())
        };
        let mut exchange = ServerExchange::start(
            account,
            binding,
            initial.mechanism_name(),
            Nonce::generate(random_bytes),
        )
        .map_err(failed)?;
        let mut step = exchange.step(initial.data).map_err(failed)?;
        loop {
            match step {
                ServerStep::Continue(data) => {
                    send(self.stream, &message::sasl_continue(&data)).await?;
                    let body = self.receive(SASL_MESSAGE_LENGTH_MAX).await?;
                    let data = message::sasl_response(&body).map_err(malformed)?;
                    step = exchange.step(Some(data)).map_err(failed)?;
                }
                ServerStep::Done { message, keys } => {
                    return Ok(Proved {
                        keys: Some(keys),
                        last_message: message::sasl_final(&message),
                        ..Proved::default()
                    });
                }
            }
        }
    }

    async fn account(&self, secret: Secret) -> Result<Account, Stop> {
        let (access, mock) = (self.access.clone(), self.prover.mock.clone());
        let user = self.user.to_owned();
        if let Some(account) = access.account_at_hand(&user, &secret, &mock) {
            return Ok(account);
        }
        off_thread(self.prover, move || access.account(&user, &secret, &mock)).await
    }
}

async fn off_thread<T: Send + 'static>(
    prover: &Prover,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stop> {
    prover.shared.threads.login.spawn_blocking(work).await.map_err(|_| {
        ClientError::fatal(SqlState::INTERNAL_ERROR, "the proof could not be checked").into()
    })
}

pub(super) fn malformed(error: message::MessageError) -> Stop {
    let code = error.sqlstate().as_bytes().try_into();
    let code = code.map_or(SqlState::PROTOCOL_VIOLATION, SqlState);
    ClientError::fatal(code, error.to_string()).into()
}
