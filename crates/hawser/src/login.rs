//! From an accepted connection to a client that an event loop serves.
//!
//! # Model
//! ```text
//!   accepted ─► first packets ─► StartupMessage ─► rule ─► proof ─► limits ─► pool ─► greeting ─► loop
//!     │           │ SSLRequest, GSSENCRequest: at most one each
//!     │           └ CancelRequest ─► cancel
//!     └ 0x16: TLS at once
//! ```
//! One task for each connection; the whole takes at most `client_login_timeout`.
//!
//! # Invariants
//! * bytes that came unencrypted are not used after the switch to TLS
//! * a client gets AuthenticationOk only when its session can begin: if the server refuses, the
//!   client gets the server's own error instead
//!
//! # Memory
//! Rare steps of a login are boxed when they begin: a login's future is copied on its way into a
//! task, and that took 83,000 of the 155,000 instructions of a login by trust. A login that need
//! not wait is no task at all: see [`listen`].
//!
//! # Which thread
//! An event loop accepts, and polls a login once. A login that has to wait (for a packet, a proof,
//! a server) continues as a task of the control side. A TLS handshake takes 1 to 4 ms of CPU and
//! PBKDF2 as much: a storm of them would delay every query, so these two run on threads of a lower
//! priority: see [`crate::threads`]. Until its first wait a login therefore does nothing that
//! blocks or takes long.

pub mod admin;
mod ldap;
pub mod listen;
pub mod origin;
mod outside;
pub mod pam;
pub mod prove;
pub mod proxy;
pub mod start;
#[cfg(test)]
mod tests;
mod throttle;
pub mod wire;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use hawser_pooler::ids::LoopId;
use hawser_pooler::parts::start_values::parameters::ServerParameters;
use hawser_pooler::relay::{ClientAbout, NewClient, ToLoop};
use hawser_pooler::session::options::{self, Replication};
use hawser_pooler::session::settings::Settings;
use hawser_pooler::wire::build;
use hawser_pooler::wire::error::{ClientError, SqlState};
use hawser_pooler::wire::startup::{Packet, ProtocolVersion, SSL_REQUEST, Startup, StartupError};
use hawser_sys::stream::peer_has_left;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::auth::secret::Secret;
use crate::cancel::Cancels;
use crate::config::{ADMIN_DATABASES, AuthType, CONSOLE, Config, DatabaseConfig, TlsMode};
use crate::dial::enter::Credentials;
use crate::limits::half_open::Awaited;
use crate::limits::{ConnectionPermit, GaveWay};
use crate::lock::locked;
use crate::phase::Phase;
use crate::pools::enquiry::{Enquiries, NotLookedUp};
use crate::pools::open::Openings;
use crate::pools::{PoolEntry, PoolPlace, Pools, Wanted};
use crate::process::few_random_bytes;
use crate::shared::Shared;
use crate::socket::stream::{Link, Stream};
use crate::tls::ALPN;
use crate::tls::accept::Acceptor;
use admin::{AdminClient, AdminRole, Console};
use origin::{NAME_BYTES_MAX, Origin};
use prove::{Proved, Prover, Proving, Rule};
use proxy::Passed;
use wire::{First, Stop, first_packet, send};

/// How long a refused client has to read the reason and to leave.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// How often a login that waits for a server looks whether its client is still there.
const GONE_PERIOD: Duration = Duration::from_millis(250);
/// How much is read from such a client.
const UNREAD_BYTES_MAX: usize = 64 * 1024;

/// Where a connection has been accepted, and its client.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where its client is.
    pub origin: Origin,
    /// The port on which Hawser listens, if it is known.
    pub port: Option<u16>,
    /// The loop on whose thread it was accepted, if any.
    pub near: Option<LoopId>,
}

/// What logins need of the process.
pub struct Entrance {
    /// The configuration, the loops, and what is counted and limited.
    pub shared: Arc<Shared>,
    /// TLS towards clients.
    pub acceptor: Arc<Acceptor>,
    /// What clients prove themselves to.
    pub prover: Prover,
    /// Where clients go.
    pub pools: Arc<Pools>,
    /// Opens their server connections.
    pub openings: Arc<Openings>,
    /// Looks users up.
    pub enquiries: Arc<Enquiries>,
    /// Where cancel requests go.
    pub cancels: Arc<Cancels>,
    /// Serves the admin database.
    pub console: Console,
}

/// A login that is under way.
struct Login {
    entrance: Arc<Entrance>,
    config: Arc<Config>,
    origin: Origin,
    port: Option<u16>,
    near: Option<LoopId>,
    /// `None` during the TLS handshake.
    stream: Option<Stream>,
    permit: Option<ConnectionPermit>,
    end_point: Option<Vec<u8>>,
    began: Instant,
    /// The pool whose server it waits for.
    waits_for: Option<Arc<PoolEntry>>,
    /// Who it says it is, only for the log.
    user: Option<String>,
    database: Option<String>,
    /// Why a proof was refused, only for the log.
    reason: Option<String>,
}

/// Serves an accepted connection until it is handed to an event loop, or closed. The loop is to be woken then
/// ([`crate::loops::Loops::wake`]).
pub async fn serve(entrance: Arc<Entrance>, link: Link, place: Place, permit: ConnectionPermit) {
    let config = entrance.shared.config.load_full();
    let mut login = Login {
        entrance,
        origin: place.origin,
        port: place.port,
        near: place.near,
        stream: Some(Stream::Plain(link)),
        permit: Some(permit),
        end_point: None,
        began: Instant::now(),
        waits_for: None,
        user: None,
        database: None,
        reason: None,
        config,
    };
    let result = match login.config.reload.timeouts.client_login_timeout.get() {
        Some(bound) => match tokio::time::timeout(bound, login.run()).await {
            Ok(result) => result,
            Err(_) => Err(login.timed_out().into()),
        },
        None => login.run().await,
    };
    let tally = &login.entrance.shared.tally;
    match result {
        // Its place went with the client.
        Ok(()) if login.permit.is_none() => tally.logins.increment(),
        Ok(()) => tally.abandoned.increment(),
        Err(stop) => {
            tally.abandoned.increment();
            Box::pin(login.end(stop)).await;
        }
    }
}

/// Sends a refused client the reason, and waits for it to leave.
///
/// Closing a connection with unread input resets it, and the reset may overtake the error, which
/// the client would not get. So its further input is read and dropped.
async fn say(mut stream: Stream, error: &ClientError) {
    let mut out = Vec::new();
    error.write(&mut out);
    let mut unread = [0; 1024];
    if stream.write_all(&out).await.is_ok() && stream.shutdown().await.is_ok() {
        for _ in 0..UNREAD_BYTES_MAX / unread.len() {
            if !stream.read(&mut unread).await.is_ok_and(|read| read > 0) {
                return;
            }
        }
    }
}

/// A name as the client sent it, cut as PostgreSQL cuts it.
fn name(bytes: &[u8], what: &str) -> Result<String, ClientError> {
    let text = std::str::from_utf8(bytes).map_err(|_| {
        ClientError::fatal(
            SqlState::CHARACTER_NOT_IN_REPERTOIRE,
            format!("invalid byte sequence for encoding \"UTF8\" in the name of the {what}"),
        )
    })?;
    let end = text.floor_char_boundary(NAME_BYTES_MAX);
    Ok(text[..end].to_owned())
}

impl Login {
    fn stream(&mut self) -> Result<&mut Stream, Stop> {
        self.stream.as_mut().ok_or(Stop::Gone)
    }

    /// The error for the client when `client_login_timeout` has passed.
    fn timed_out(&self) -> ClientError {
        match &self.waits_for {
            Some(entry) => self.entrance.openings.waited_in_vain(entry, "client_login_timeout"),
            None => ClientError::fatal(
                SqlState::QUERY_CANCELED,
                "canceling authentication due to timeout",
            ),
        }
    }

    /// Tells the client why, logs it once, and closes the connection.
    async fn end(&mut self, stop: Stop) {
        let (peer, user, database) = (self.origin.peer(), &self.user, &self.database);
        let (address, port) = (peer.to_string(), peer.port());
        match stop {
            Stop::Gone => tracing::debug!(
                address,
                port,
                database,
                user,
                "the client left before it had logged in"
            ),
            Stop::Broken(error) => {
                tracing::info!(address, port, database, user, %error, "login failed");
            }
            Stop::GaveWay => self.give_way().await,
            Stop::Refuse(error) => {
                let tally = &self.entrance.shared.tally;
                tally.errors.count(&error);
                match &error.code.0 {
                    [b'2', b'8', ..] => tally.authentication_failures.increment(),
                    code if *code == SqlState::TOO_MANY_CONNECTIONS.0 => {
                        tally.limit_refusals.increment();
                    }
                    _ => {}
                }
                if self.config.reload.log.log_pooler_errors {
                    tracing::info!(
                        address,
                        port,
                        database,
                        user,
                        code = error.code.as_str(),
                        error = error.message,
                        reason = self.reason,
                        "login refused"
                    );
                }
                if let Some(stream) = self.stream.take() {
                    if let Some(permit) = &mut self.permit {
                        permit.dismiss();
                    }
                    let said = async {
                        say(stream, &error).await;
                        Ok::<(), GaveWay>(())
                    };
                    let limits = &self.entrance.shared.limits;
                    let left = limits.wait(Awaited::Leaving, self.origin.network(), said);
                    // A client that does not read, or does not leave, must not hold this task.
                    let _ = tokio::time::timeout(GOODBYE_MAX, left).await;
                }
            }
        }
    }

    /// Another has its place already: it gets the error if it can be sent at once, and is closed.
    async fn give_way(&mut self) {
        self.entrance.shared.tally.displaced.increment();
        if self.entrance.shared.limits.is_news() {
            tracing::warn!(
                address = %self.origin.peer(),
                "there is no place for one more login: those that wait for their clients give way, \
                 and are told 53300; hawser_logins_displaced_total counts them"
            );
        }
        if let Some(mut stream) = self.stream.take() {
            let error = ClientError::fatal(
                SqlState::TOO_MANY_CONNECTIONS,
                "sorry, too many clients already",
            )
            .detail("The login took longer than those of others that waited for its place.");
            let mut out = Vec::new();
            error.write(&mut out);
            if tokio::time::timeout(Duration::ZERO, stream.write_all(&out)).await.is_ok() {
                self.entrance.shared.tally.errors.count(&error);
            }
        }
    }

    /// Reads the header of a load balancer that names its client, if the connection is one's.
    async fn proxy_header(&mut self) -> Result<(), Stop> {
        let address = match &self.origin {
            Origin::Tcp(address) => Some(address.ip()),
            Origin::Unix { .. } => None,
        };
        if !self.config.reload.network.proxy_protocol_from.trust(address, self.port) {
            return Ok(());
        }
        let (limits, network) = (self.entrance.shared.limits.clone(), self.origin.network());
        let header = proxy::read(self.stream()?);
        match Box::pin(limits.wait(Awaited::FirstPacket, network, header)).await? {
            Passed::For(client) => self.origin = Origin::Tcp(client),
            Passed::Own => {}
            // The connecting process is not the one that logs in.
            Passed::ForUnknown => {
                if let Origin::Unix { uid } = &mut self.origin {
                    *uid = None;
                }
            }
        }
        Ok(())
    }

    async fn run(&mut self) -> Result<(), Stop> {
        self.proxy_header().await?;
        let Some(startup) = self.first_packets().await? else { return Ok(()) };
        let options = options::parse(startup.pairs()).map_err(|error| {
            let code = error.sqlstate().as_bytes().try_into();
            let told = ClientError::fatal(
                code.map_or(SqlState::PROTOCOL_VIOLATION, SqlState),
                error.to_string(),
            );
            match error.hint() {
                Some(hint) => told.hint(hint),
                None => told,
            }
        })?;
        let user = name(&options.user, "user")?;
        let database = name(&options.database, "database")?;
        self.user = Some(user.clone());
        self.database = Some(database.clone());
        self.check_encryption()?;
        if self.entrance.shared.phase() != Phase::Serving {
            return Err(ClientError::fatal(
                SqlState::CANNOT_CONNECT_NOW,
                "the pooler is shutting down",
            )
            .into());
        }
        if ADMIN_DATABASES.contains(&database.as_str()) {
            return Box::pin(self.enter_admin(&startup, &options, database, user)).await;
        }
        let config = self.config.clone();
        let found = entry_of(&config, &database, options.replication);
        let database = match found {
            // A database without an entry of its own or `*`.
            Some(only) if only.name != database && config.database(&database).is_none() => {
                only.name.clone()
            }
            _ => database,
        };
        self.entrance.shared.gates.admit(&database)?;
        let max_client_conn = config.reload.limits.max_client_conn;
        let network = self.origin.network();
        self.permit.as_mut().ok_or(Stop::Gone)?.admit(max_client_conn, network)?;

        let mut phase = self.entrance.shared.phase.subscribe();
        let login = async {
            let proof = self.authenticate(&database, &user, options.replication, found).await?;
            self.enter(&startup, options, (&database, &user), proof).await
        };
        tokio::select! {
            result = login => result,
            // A login that sends no proof, or waits for a server, would delay the end of the
            // process.
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => {
                let message = "the pooler is shutting down";
                Err(ClientError::fatal(SqlState::CANNOT_CONNECT_NOW, message).into())
            }
        }
    }

    /// Reads up to the StartupMessage. `None`: it was something else, and all is done.
    async fn first_packets(&mut self) -> Result<Option<Startup>, Stop> {
        let mut asked_ssl = false;
        let mut asked_gss = false;
        let mut first = true;
        loop {
            let encrypted = self.stream()?.is_encrypted();
            let tls_allowed = first && matches!(self.origin, Origin::Tcp(_));
            let awaited = if first { Awaited::FirstPacket } else { Awaited::Encryption };
            first = false;
            let (limits, network) = (self.entrance.shared.limits.clone(), self.origin.network());
            let packet = first_packet(self.stream()?, tls_allowed);
            match limits.wait(awaited, network, packet).await? {
                First::Tls(bytes) => {
                    asked_ssl = true;
                    Box::pin(self.direct_tls(&bytes)).await?;
                }
                First::Packet(Packet::Startup(startup)) => return Ok(Some(startup)),
                First::Packet(Packet::Cancel { process, key }) => {
                    Box::pin(self.entrance.cancels.received(process, &key)).await;
                    return Ok(None);
                }
                First::Packet(Packet::SslRequest) if !asked_ssl => {
                    asked_ssl = true;
                    self.offer_tls().await?;
                }
                First::Packet(Packet::GssEncRequest) if !asked_gss && !encrypted => {
                    asked_gss = true;
                    self.refuse_unencrypted(
                        "received unencrypted data after GSSAPI encryption request",
                    )?;
                    send(self.stream()?, b"N").await?;
                }
                // As PostgreSQL, which takes a second request for an unknown version.
                First::Packet(Packet::SslRequest | Packet::GssEncRequest) => {
                    return Err(
                        StartupError::Version(ProtocolVersion::from_code(SSL_REQUEST)).into()
                    );
                }
            }
        }
    }

    /// Nothing may have come after a request for encryption: it would be something that the sender
    /// did not mean to encrypt, or an attacker's (CVE-2021-23214).
    fn refuse_unencrypted(&mut self, message: &str) -> Result<(), Stop> {
        if let Stream::Plain(link) = self.stream()?
            && link.has_input()
        {
            return Err(ClientError::fatal(SqlState::PROTOCOL_VIOLATION, message)
                .detail(
                    "This could be either a client-software bug or evidence of an attempted \
                     man-in-the-middle attack.",
                )
                .into());
        }
        Ok(())
    }

    async fn offer_tls(&mut self) -> Result<(), Stop> {
        self.refuse_unencrypted("received unencrypted data after SSL request")?;
        let offered =
            matches!(self.origin, Origin::Tcp(_)) && self.entrance.acceptor.current().is_some();
        if offered {
            self.may_encrypt()?;
        }
        send(self.stream()?, if offered { b"S" } else { b"N" }).await?;
        if offered { Box::pin(self.handshake()).await } else { Ok(()) }
    }

    async fn direct_tls(&mut self, bytes: &[u8; 4]) -> Result<(), Stop> {
        if self.entrance.acceptor.current().is_none() {
            // PostgreSQL closes the connection as well: its peer speaks TLS, which we do not.
            return Err(Stop::Gone);
        }
        if self.may_encrypt().is_err() {
            return Err(Stop::Gone); // there is no way to tell it
        }
        if let Some(Stream::Plain(link)) = &mut self.stream {
            link.put_back(bytes);
        }
        self.handshake().await?;
        let alpn = self.stream()?.tls().and_then(|tls| tls.alpn_protocol());
        if alpn != Some(ALPN) {
            return Err(ClientError::fatal(
                SqlState::PROTOCOL_VIOLATION,
                "received direct SSL connection request without ALPN protocol negotiation extension",
            )
            .into());
        }
        Ok(())
    }

    /// A storm of handshakes leaves places for clients without TLS.
    fn may_encrypt(&self) -> Result<(), Stop> {
        let max_client_conn = self.config.reload.limits.max_client_conn;
        let permit = self.permit.as_ref().ok_or(Stop::Gone)?;
        Ok(permit.may_encrypt(max_client_conn, self.origin.network())?)
    }

    async fn handshake(&mut self) -> Result<(), Stop> {
        let Some(accepting) = self.entrance.acceptor.current() else { return Err(Stop::Gone) };
        self.stream()?.leave_runtime()?;
        let Some(Stream::Plain(mut link)) = self.stream.take() else { return Err(Stop::Gone) };
        let acceptor = accepting.acceptor();
        let (limits, network) = (self.entrance.shared.limits.clone(), self.origin.network());
        let handshake = self.entrance.shared.threads.heavy(async move {
            let hello = async {
                // In a storm it may have given up before its turn comes.
                link.speaks().await?;
                link.begin_records();
                Ok::<_, Stop>(link)
            };
            let link = limits.wait(Awaited::Encryption, network, hello).await?;
            let accepted = async { Ok::<_, Stop>(acceptor.accept(link).await?) };
            let stream = limits.wait(Awaited::Encryption, network, accepted).await?;
            let mut stream = Stream::FromClient(stream.into());
            stream.leave_runtime()?;
            Ok::<_, Stop>(stream)
        });
        let handshake = handshake.await.ok_or(Stop::Gone)?;
        let tally = &self.entrance.shared.tally;
        match &handshake {
            Ok(_) => tally.tls_handshakes.increment(),
            Err(Stop::GaveWay) => {}
            Err(_) => tally.tls_failures.increment(),
        }
        self.stream = Some(handshake?);
        self.end_point = accepting.end_point.clone();
        Ok(())
    }

    fn check_encryption(&mut self) -> Result<(), Stop> {
        let must = match self.config.reload.client_tls.client_tls_sslmode {
            TlsMode::Disable | TlsMode::Allow | TlsMode::Prefer => false,
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => true,
        };
        if must && matches!(self.origin, Origin::Tcp(_)) && !self.stream()?.is_encrypted() {
            return Err(ClientError::fatal(
                SqlState::INVALID_AUTHORIZATION,
                "SSL connection is required",
            )
            .hint("Connect with sslmode=require.")
            .into());
        }
        Ok(())
    }

    /// Makes the client prove who it is. Returns the proof's results, and the user's secret.
    async fn authenticate(
        &mut self,
        database: &str,
        user: &str,
        replication: Replication,
        found: Option<&DatabaseConfig>,
    ) -> Result<(Proved, Secret), Stop> {
        let entrance = self.entrance.clone();
        let (prover, enquiries) = (&entrance.prover, &entrance.enquiries);
        let access = entrance.shared.access.load_full();
        let config = self.config.clone();
        let is_tls = self.stream()?.is_encrypted();
        let awaited =
            if ADMIN_DATABASES.contains(&database) { Awaited::AdminProof } else { Awaited::Proof };
        let conn = prove::conn_info(&self.origin, is_tls, database, user, replication.into());
        let rule: Rule = prover.rule(&config, &access, &conn, found).await?;
        self.may_try(&rule, user)?;
        let mut secret = access.secret(user).cloned();
        // The reason of a failed lookup is sent after the exchange: before it, the answer would
        // distinguish existing users and databases from others.
        let mut not_looked_up = None;
        if let Some((found, auth_user)) =
            found.and_then(|found| Some((found, found.inherited.auth.auth_user.as_deref()?)))
        {
            if !matches!(secret, None | Some(Secret::None)) {
                Box::pin(enquiries.look_up_unused(&config, found, database, user)).await;
            } else if auth_user == user {
                // It looks others up, and is itself not looked up.
                secret = secret.or(Some(Secret::None));
            } else {
                match Box::pin(enquiries.look_up(&config, found, database, user)).await {
                    Ok(looked_up) => {
                        looked_up.iter().for_each(|found| access.count_looked_up(found));
                        secret = looked_up.or(secret);
                    }
                    Err(error) => not_looked_up = Some(error),
                }
            }
        }
        let known = secret.clone().unwrap_or(Secret::None);
        let (origin, end_point) = (self.origin.clone(), self.end_point.clone());
        let mut proving = Proving {
            stream: self.stream()?,
            prover,
            access: &access,
            user,
            secret,
            origin: &origin,
            end_point,
            awaited,
            reason: None,
            could_not_be_asked: false,
        };
        let result = proving.run(&rule).await;
        let looked_up = !matches!(not_looked_up, Some(NotLookedUp::Failed(_)));
        let right = proving.is_right(&rule, &result).filter(|_| looked_up);
        let reason = proving.reason.take();
        self.has_tried(&rule, user, right)?;
        self.reason = match &not_looked_up {
            Some(NotLookedUp::NoEntry) => {
                Some("there is no such database, or auth_user may not connect to it".to_owned())
            }
            Some(NotLookedUp::Failed(_)) => Some("auth_query failed".to_owned()),
            None => reason,
        };
        if matches!(&result, Err(Stop::Refuse(_))) {
            enquiries.forget_user(database, user);
        }
        match (result, not_looked_up) {
            // A wrong proof, or one that cannot be checked: the same words for both.
            (Err(stop), None | Some(NotLookedUp::NoEntry)) => Err(stop),
            (Err(Stop::Refuse(_)) | Ok(_), Some(NotLookedUp::Failed(error))) => Err(error.into()),
            (Err(stop), Some(NotLookedUp::Failed(_))) => Err(stop),
            (Ok(_), Some(NotLookedUp::NoEntry)) => Err(no_database(database).into()),
            (Ok(proved), None) => Ok((proved, known)),
        }
    }

    /// The login has succeeded: finds the pool, and hands the client to a loop.
    async fn enter(
        &mut self,
        startup: &Startup,
        mut options: options::Startup,
        (database, user): (&str, &str),
        (proved, secret): (Proved, Secret),
    ) -> Result<(), Stop> {
        let entrance = self.entrance.clone();
        let shared = &entrance.shared;
        // The configuration may have changed during the proof.
        let config = shared.config.load_full();
        let found = entry_of(&config, database, options.replication)
            .ok_or_else(|| no_database(database))?;
        if config.reload.names.application_name_add_host {
            start::add_host(&mut options.settings, &self.origin);
        }
        let limits = config.resolve(found, user).limits;
        let connection = self.permit.as_mut().ok_or(Stop::Gone)?;
        connection.enter(
            database,
            user,
            limits.max_db_client_connections,
            limits.max_user_client_connections,
        )?;
        if config.auth_type() == AuthType::Any && found.forced_user.is_none() {
            let message = format!("database \"{database}\" has no user to log in to its server as");
            return Err(ClientError::fatal(SqlState::INVALID_AUTHORIZATION, message).into());
        }
        if found.is_shared_by_users() {
            may_share(found, user, &options)?;
        }
        let wanted = Wanted {
            database,
            user,
            connect_only: &options.connect_only,
            replication: options.replication,
            credentials: self.credentials(found, user, &secret, &proved)?,
        };
        let entry = entrance.pools.get_or_create(&shared.config, &config, found, &wanted)?;
        shared.gates.pause_pool(database, || entry.pool.lock().pause());
        let place = entry.enter();
        let begins_with = async {
            let parameters = entrance.openings.server_parameters(&entry, user).await?;
            let start =
                start::settings(&entrance.openings, &entry, &parameters, &options.settings).await?;
            Ok::<_, ClientError>((parameters, start))
        };
        let (parameters, start) = self.while_it_stays(&entry, pin!(begins_with)).await?;

        let mut greeting = proved.last_message;
        greeting.reserve(GREETING_BYTES);
        startup.write_negotiation(&options.protocol_options, &mut greeting);
        greeting.extend_from_slice(&crate::auth::message::ok());
        let ignored = &config.reload.pool.ignore_startup_parameters;
        start::write_notices(&options.settings, ignored, &mut greeting);
        start::write_welcome(&config.reload.names.login_notify_message, &mut greeting);
        // The first values of a user's session are known only once it has one (the engine reports
        // them).
        if !entry.key.shared {
            write_parameters(&parameters, &start, &mut greeting);
        }
        let about = self.about(user, &entry.key.user);
        self.hand_to_loop(&entry, place, startup, about, start, greeting)
    }

    /// Waits for the server as long as the client stays. Only logins that really wait count as
    /// waiting.
    async fn while_it_stays<T>(
        &mut self,
        entry: &Arc<PoolEntry>,
        mut work: Pin<&mut impl Future<Output = Result<T, ClientError>>>,
    ) -> Result<T, Stop> {
        let first = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        if let Poll::Ready(done) = first {
            return Ok(done?);
        }
        self.waits_for = Some(entry.clone());
        let _waits = entry.wait_at_login();
        loop {
            if let Ok(done) = tokio::time::timeout(GONE_PERIOD, work.as_mut()).await {
                self.waits_for = None;
                return Ok(done?);
            }
            // The runtime reports bytes, but not an end that follows unread bytes.
            if peer_has_left(self.stream()?) {
                return Err(Stop::Gone);
            }
        }
    }

    /// Hands the client, which has logged in, to a loop.
    fn hand_to_loop(
        &mut self,
        entry: &Arc<PoolEntry>,
        place: PoolPlace,
        startup: &Startup,
        about: ClientAbout,
        start: Settings,
        greeting: Vec<u8>,
    ) -> Result<(), Stop> {
        let mut secret = vec![0; startup.version().cancel_key_bytes()];
        few_random_bytes(&mut secret);
        let stream = self.stream.take().ok_or(Stop::Gone)?;
        let (socket, early) = stream.into_conn()?;
        let loops = &self.entrance.shared.loops;
        let (home, seat) = loops.seat(self.near);
        let connection = self.permit.take().ok_or(Stop::Gone)?;
        let client = NewClient {
            socket,
            pool: entry.pool.clone(),
            mode: *locked(&entry.mode),
            start: entry.pool.interner().share(start),
            greeting,
            secret: secret.as_slice().into(),
            about: Box::new(about),
            permit: Box::new((connection, place, seat)),
            early,
            exclusive: entry.key.replication.is_some(),
        };
        entry.count_login();
        loops.leave(home, ToLoop::Adopt(Box::new(client)));
        Ok(())
    }

    /// The credentials for the login to the server.
    fn credentials(
        &self,
        found: &DatabaseConfig,
        user: &str,
        secret: &Secret,
        proved: &Proved,
    ) -> Result<Arc<Credentials>, ClientError> {
        let access = self.entrance.shared.access.load();
        if let Some(forced) = &found.forced_user {
            return access.credentials_of(forced, &found.name);
        }
        let sent = proved.password.as_deref().and_then(|sent| std::str::from_utf8(sent).ok());
        let of = (user, access.origin(user, secret, &found.name));
        let credentials = match (secret, sent) {
            // The client has sent more than the stored form contains.
            (Secret::Md5(_) | Secret::Scram(_), Some(sent)) if proved.fits_stored => {
                access.credentials_shown(of, sent, secret)
            }
            // Nothing is stored here of a user that an LDAP server or PAM knows.
            (Secret::None, Some(sent)) => access.credentials_shown(of, sent, secret),
            _ => access.credentials_from(of, secret),
        };
        if let (Some(keys), Secret::Scram(_)) = (&proved.keys, secret) {
            credentials.keep_keys(keys.clone());
        }
        Ok(credentials)
    }

    fn about(&self, user: &str, pool_user: &str) -> ClientAbout {
        let tls = self.stream.as_ref().and_then(Stream::tls).map(|tls| {
            let version = tls.protocol_version().and_then(|version| version.as_str());
            let cipher = tls.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
            // As OpenSSL, PostgreSQL and PgBouncer name those of TLS 1.3.
            let version = version.unwrap_or("TLS").replace('_', ".");
            format!("{version}/{}", cipher.unwrap_or("?").replace("TLS13_", "TLS_"))
        });
        let about = ClientAbout::new(
            self.origin.peer(),
            (user != pool_user).then_some(user),
            &tls.unwrap_or_default(),
            self.entrance.shared.loops.time_of(self.began),
        );
        match &self.stream {
            Some(stream) if stream.is_mptcp() => about.over_mptcp(),
            _ => about,
        }
    }

    async fn enter_admin(
        &mut self,
        startup: &Startup,
        options: &options::Startup,
        database: String,
        user: String,
    ) -> Result<(), Stop> {
        // As in PgBouncer: the user that runs the process may administer it, whatever the rules
        // say.
        let owns = user == CONSOLE
            && matches!(self.origin, Origin::Unix { uid: Some(uid) }
                if uid == hawser_sys::process::effective_uid());
        let proved = if owns {
            Proved::default()
        } else {
            self.authenticate(&database, &user, Replication::None, None).await?.0
        };
        let config = self.entrance.shared.config.load(); // by now
        let role = if owns || config.is_admin(&user) {
            AdminRole::Admin
        } else if config.is_stats_user(&user) {
            AdminRole::Stats
        } else {
            return Err(ClientError::fatal(
                SqlState::INVALID_AUTHORIZATION,
                format!("user \"{user}\" is neither in admin_users nor in stats_users"),
            )
            .into());
        };
        let mut greeting = proved.last_message;
        startup.write_negotiation(&options.protocol_options, &mut greeting);
        greeting.extend_from_slice(&crate::auth::message::ok());
        send(self.stream()?, &greeting).await?;
        let about = self.about(&user, &user);
        let named = |asked: &&options::Asked| asked.name.eq_ignore_ascii_case(b"application_name");
        let application_name =
            options.settings.iter().rfind(named).map_or_else(String::new, |asked| {
                String::from_utf8_lossy(&asked.value).chars().take(NAME_BYTES_MAX).collect()
            });
        let stream = self.stream.take().ok_or(Stop::Gone)?;
        let permit = Box::new(self.permit.take());
        let client = AdminClient { stream, user, role, database, about, application_name, permit };
        // A task of its own: the login's time limit does not apply to the console.
        tokio::spawn((self.entrance.console)(client));
        Ok(())
    }
}

/// The entry of the configuration for a session.
fn entry_of<'config>(
    config: &'config Config,
    database: &str,
    replication: Replication,
) -> Option<&'config DatabaseConfig> {
    let named = config.database(database);
    match (replication, config.databases()) {
        // The protocol has no database: an unknown name may mean the only configured servers.
        (Replication::Physical, [only]) => named.or(Some(only)),
        _ => named,
    }
}

fn no_database(name: &str) -> ClientError {
    let message = format!("database \"{name}\" does not exist");
    ClientError::fatal(SqlState::INVALID_CATALOG_NAME, message)
}

/// About the size of a present server's reports at connect.
const GREETING_BYTES: usize = 512;

/// Whether this user may have a session on a shared server connection.
fn may_share(
    database: &DatabaseConfig,
    user: &str,
    options: &options::Startup,
) -> Result<(), ClientError> {
    if options.replication != Replication::None {
        return Err(ClientError::fatal(
            SqlState::FEATURE_NOT_SUPPORTED,
            "no replication where users share server connections",
        )
        .hint("Replication needs a [[database]] without hand_over_secret_file."));
    }
    if database.forced_user.as_ref().is_some_and(|forced| forced.name == user) {
        return Err(ClientError::fatal(
            SqlState::INVALID_AUTHORIZATION,
            format!("user \"{user}\" is the pooler's own, and not for clients"),
        ));
    }
    // The server would check them by the rights of the role that logs in.
    if let Some(asked) = options.connect_only.first() {
        let name = String::from_utf8_lossy(&asked.name);
        return Err(ClientError::fatal(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("parameter \"{name}\" cannot be set where users share server connections"),
        ));
    }
    Ok(())
}

/// Writes each setting that the server reports, with the value of this client's session.
fn write_parameters(parameters: &ServerParameters, start: &Settings, out: &mut Vec<u8>) {
    let is_plain = start.is_empty();
    for (name, value) in &parameters.pairs {
        let own = if is_plain { None } else { start.get(name) };
        build::parameter_status(out, name, own.unwrap_or(value));
    }
}
