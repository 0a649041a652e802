//! TLS towards servers: libpq's sslmodes.
//!
//! | mode | TLS | certificate |
//! |---|---|---|
//! | disable | never | |
//! | allow | if the server refuses us without | not checked |
//! | prefer | if the server can | not checked |
//! | require | always | not checked |
//! | verify-ca | always | of a known authority |
//! | verify-full | always | and with the host's name |

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::certificate::Authorities;
use super::verify::ServerCheck;
use super::{
    ALPN, FileStamps, TlsError, authorities, certificates, certified_key, provider, provider_with,
    versions,
};
use crate::config::{ServerTlsSettings, TlsMode, TlsNegotiation};

/// Where distributions keep the authorities that they trust: Debian and Ubuntu, Fedora, Alpine,
/// openSUSE.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// TLS towards the servers of one database.
#[derive(Debug)]
pub struct Connecting {
    /// The mode.
    pub mode: TlsMode,
    /// Whether TLS begins without asking first.
    pub direct: bool,
    config: Option<Arc<ClientConfig>>,
    /// What it was made of.
    settings: Option<ServerTlsSettings>,
    stamps: FileStamps,
}

impl Connecting {
    /// Never TLS: unix sockets.
    pub fn never() -> Self {
        Self {
            mode: TlsMode::Disable,
            direct: false,
            config: None,
            settings: None,
            stamps: FileStamps::of(std::iter::empty()),
        }
    }

    /// Reads the files.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn load(settings: &ServerTlsSettings) -> Result<Self, TlsError> {
        if settings.server_tls_sslmode == TlsMode::Disable {
            return Ok(Self::never());
        }
        let files = [
            &settings.server_tls_ca_file,
            &settings.server_tls_cert_file,
            &settings.server_tls_key_file,
        ];
        let stamps = FileStamps::of(files.into_iter().flatten());
        Ok(Self {
            mode: settings.server_tls_sslmode,
            direct: settings.server_tls_negotiation == TlsNegotiation::Direct,
            config: Some(Arc::new(client_config(settings)?)),
            settings: Some(settings.clone()),
            stamps,
        })
    }

    /// Whether connections that it has encrypted are as `new` would have them.
    pub fn still_does(&self, new: &Self) -> bool {
        self.settings == new.settings && !self.is_stale()
    }

    /// Whether a file has changed since.
    fn is_stale(&self) -> bool {
        self.stamps.are_stale()
    }

    /// What does a handshake; `None` where TLS is never used.
    pub fn connector(&self) -> Option<TlsConnector> {
        self.config.clone().map(TlsConnector::from)
    }
}

/// The name by which a server's certificate is checked; also SNI, for names that are not addresses.
///
/// # Errors
/// The host is neither a DNS name nor an address.
pub fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned())
        .map_err(|_| format!("\"{host}\" cannot be the name in a certificate"))
}

fn client_config(settings: &ServerTlsSettings) -> Result<ClientConfig, TlsError> {
    let place = || -> PathBuf {
        let file = settings.server_tls_cert_file.as_ref().or(settings.server_tls_ca_file.as_ref());
        file.cloned().unwrap_or_default()
    };
    let unusable =
        |error: &dyn ToString| TlsError::Unusable { path: place(), reason: error.to_string() };
    let usable = provider_with(&settings.server_tls_ciphers, &settings.server_tls13_ciphers, None);
    let builder = ClientConfig::builder_with_provider(usable)
        .with_protocol_versions(&versions(settings.server_tls_protocols))
        .map_err(|error| unusable(&error))?;
    let known = || match &settings.server_tls_ca_file {
        Some(path) => authorities(path),
        None => {
            let roots = Arc::new(system_authorities()?);
            Ok(Authorities { roots, files: Vec::new() })
        }
    };
    let check = match settings.server_tls_sslmode {
        TlsMode::VerifyFull => ServerCheck::full(known()?).map_err(|error| unusable(&error))?,
        TlsMode::VerifyCa => ServerCheck::any_name(known()?).map_err(|error| unusable(&error))?,
        TlsMode::Disable | TlsMode::Allow | TlsMode::Prefer | TlsMode::Require => {
            ServerCheck::any_certificate()
        }
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(check));
    let mut config = match (&settings.server_tls_cert_file, &settings.server_tls_key_file) {
        (Some(certificate), Some(key)) => {
            let own = SingleCertAndKey::from(certified_key(certificate, key)?);
            builder.with_client_cert_resolver(Arc::new(own))
        }
        (Some(_), None) => {
            return Err(TlsError::Missing {
                setting: "server_tls_key_file",
                needed_by: "server_tls_cert_file",
            });
        }
        (None, Some(_)) => {
            return Err(TlsError::Missing {
                setting: "server_tls_cert_file",
                needed_by: "server_tls_key_file",
            });
        }
        (None, None) => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// TLS towards servers that judge logins, whose certificates are always verified, by the authorities of
/// `ca_file` or the system's.
///
/// # Errors
/// `ca_file` is no good. Without the system's, every certificate is refused.
pub fn outward(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    verifying(ca_file, None, || {
        tracing::warn!("no TLS towards LDAP servers and issuers: set auth_ca_file");
    })
}

/// The same towards etcd, which may ask for a certificate: one with its key.
///
/// # Errors
/// A file is no good. Without the system's authorities, every certificate is refused.
pub fn to_etcd(
    ca_file: Option<&Path>,
    own: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>, TlsError> {
    verifying(ca_file, own, || tracing::warn!("no TLS towards etcd: set etcd_ca_file"))
}

fn verifying(
    ca_file: Option<&Path>,
    own: Option<(&Path, &Path)>,
    without: impl FnOnce(),
) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = match ca_file {
        Some(path) => authorities(path)?.roots,
        None => Arc::new(system_authorities().unwrap_or_else(|_| {
            without();
            RootCertStore::empty()
        })),
    };
    let unusable = |error: rustls::Error| {
        let path = ca_file.unwrap_or(Path::new("")).to_owned();
        TlsError::Unusable { path, reason: error.to_string() }
    };
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
    let builder = builder.with_root_certificates(roots);
    Ok(Arc::new(match own {
        Some((certificate, key)) => {
            let own = SingleCertAndKey::from(certified_key(certificate, key)?);
            builder.with_client_cert_resolver(Arc::new(own))
        }
        None => builder.with_no_client_auth(),
    }))
}

fn system_authorities() -> Result<RootCertStore, TlsError> {
    let path = SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.exists());
    let path = path.ok_or(TlsError::NoSystemAuthorities)?;
    let mut store = RootCertStore::empty();
    // Bundles hold old certificates that rustls refuses; those it takes are enough.
    let (added, _) = store.add_parsable_certificates(certificates("certificate authority", path)?);
    if added == 0 { Err(TlsError::NoSystemAuthorities) } else { Ok(store) }
}
