//! TLS towards clients.
//!
//! # Model
//! `client_tls_sslmode` as PgBouncer has it: `disable` offers none; `allow` and `prefer` let the
//! client choose; `require` refuses those without; `verify-ca` and `verify-full` also ask for a
//! certificate of an authority in `client_tls_ca_file`. Below that a certificate is optional where
//! there is such a file, so that a rule of pg_hba.conf can ask for one.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use tokio_rustls::TlsAcceptor;

use super::verify::ClientCheck;
use super::{
    ALPN, FileStamps, TlsError, authorities, certified_key, kernel, provider_with, versions,
};
use crate::auth::certificate::end_point_hash;
use crate::config::TlsMode;
use crate::config::registry::ClientTlsSettings;

/// Tickets for resumption that a client is sent. libpq uses none, other drivers one.
const TICKETS: usize = 1;
/// Plaintext in one record, as PostgreSQL writes them. libpq may have no more room (`pqReadData`):
/// the rest of a longer record stays with OpenSSL, and a client that reads without blocking waits
/// for the socket, which has nothing more.
pub const RECORD_BYTES: usize = 8192;
/// What rustls counts in beside it.
const RECORD_HEADER_BYTES: usize = 5;

/// One state of the configuration.
#[derive(Debug)]
pub struct Accepting {
    /// For handshakes.
    pub config: Arc<ServerConfig>,
    /// The value of tls-server-end-point for SCRAM-SHA-256-PLUS; `None` where the certificate's
    /// algorithm has none.
    pub end_point: Option<Vec<u8>>,
    stamps: FileStamps,
}

impl Accepting {
    /// Reads the files. `Ok(None)`: TLS is not offered.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn load(settings: &ClientTlsSettings) -> Result<Option<Self>, TlsError> {
        let mode = settings.client_tls_sslmode;
        if mode == TlsMode::Disable {
            return Ok(None);
        }
        let needed_by = "client_tls_sslmode";
        let missing = |setting| TlsError::Missing { setting, needed_by };
        let cert_file =
            settings.client_tls_cert_file.as_ref().ok_or(missing("client_tls_cert_file"))?;
        let key_file =
            settings.client_tls_key_file.as_ref().ok_or(missing("client_tls_key_file"))?;
        let ca_file = settings.client_tls_ca_file.as_ref();
        // Taken before the files are read: a change in between is then seen as one.
        let stamps =
            FileStamps::of([Some(cert_file), Some(key_file), ca_file].into_iter().flatten());

        let own = certified_key(cert_file, key_file)?;
        let end_point = own.cert.first().and_then(|own| end_point_hash(own).ok().flatten());
        let unusable = |error: &dyn ToString| TlsError::Unusable {
            path: cert_file.clone(),
            reason: error.to_string(),
        };
        let usable = provider_with(
            &settings.client_tls_ciphers,
            &settings.client_tls13_ciphers,
            Some(&settings.client_tls_ecdhcurve),
        );
        let mut config = ServerConfig::builder_with_provider(usable)
            .with_protocol_versions(&versions(settings.client_tls_protocols))
            .map_err(|error| unusable(&error))?
            .with_client_cert_verifier(client_verifier(mode, ca_file)?)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Tickets carry the session to the client and back: nothing is kept here.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer =
            rustls::crypto::ring::Ticketer::new().map_err(|error| unusable(&error))?;
        config.send_tls13_tickets = TICKETS;
        config.max_fragment_size = Some(RECORD_BYTES + RECORD_HEADER_BYTES);
        // For a client that leaves this process.
        config.enable_secret_extraction = kernel::why_not().is_none();
        Ok(Some(Self { config: Arc::new(config), end_point, stamps }))
    }
}

fn client_verifier(
    mode: TlsMode,
    ca_file: Option<&PathBuf>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let must_verify = matches!(mode, TlsMode::VerifyCa | TlsMode::VerifyFull);
    let Some(ca_file) = ca_file else {
        return if must_verify {
            Err(TlsError::Missing {
                setting: "client_tls_ca_file",
                needed_by: "client_tls_sslmode = \"verify-...\"",
            })
        } else {
            Ok(WebPkiClientVerifier::no_client_auth())
        };
    };
    let check = ClientCheck::new(authorities(ca_file)?, must_verify);
    let check = check
        .map_err(|error| TlsError::Unusable { path: ca_file.clone(), reason: error.to_string() })?;
    Ok(Arc::new(check))
}

/// TLS towards clients as it is in force, replaced by reloads.
#[derive(Debug, Default)]
pub struct Acceptor {
    current: ArcSwapOption<Accepting>,
}

impl Acceptor {
    /// With this state in force.
    pub fn new(state: Option<Accepting>) -> Self {
        if let Some(reason) = state.as_ref().and_then(|_| kernel::why_not()) {
            tracing::info!(reason, "clients in TLS do not go inside, nor to a new process");
        }
        Self { current: ArcSwapOption::from_pointee(state) }
    }

    /// What is in force; `None`: TLS is not offered.
    pub fn current(&self) -> Option<Arc<Accepting>> {
        self.current.load_full()
    }

    /// Puts another state in force.
    pub fn replace(&self, state: Option<Accepting>) {
        self.current.store(state.map(Arc::new));
    }

    /// Reads the files again if one has changed. Whether it has.
    ///
    /// # Errors
    /// See [`TlsError`]: the old state stays in force.
    pub fn refresh(&self, settings: &ClientTlsSettings) -> Result<bool, TlsError> {
        let stale = self.current.load().as_ref().is_some_and(|state| state.stamps.are_stale());
        if stale {
            self.replace(Accepting::load(settings)?);
        }
        Ok(stale)
    }
}

impl Accepting {
    /// What does a handshake.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.clone())
    }
}
