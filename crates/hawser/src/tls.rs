//! TLS in both directions: towards clients ([`accept`]) and towards servers ([`connect`]).
//!
//! # Model
//! Files become a rustls configuration once, at load; a connection only clones an [`Arc`] of it.
//! A reload, or a changed file, makes a new one; connections that are open keep theirs. A session can go to the [`kernel`].
//!
//! # Invariants
//! * a configuration that does not load is never put in force: the old one stays
//! * nothing weaker than TLS 1.2
//!
//! # Limits
//! Keys in PEM without a passphrase. Certificate revocation lists are not read. No RSA keys below 2,048 bits.

pub mod accept;
mod certificate;
pub mod connect;
pub mod kernel;
#[cfg(test)]
pub(crate) mod tests;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, SupportedProtocolVersion};

use certificate::{Authorities, Certificate};

use crate::config::{Tls13Ciphers, TlsCiphers, TlsCurves, TlsVersions};

/// The protocol name that both ends of direct TLS must agree on (ALPN; PostgreSQL 17).
pub const ALPN: &[u8] = b"postgresql";

/// The shortest RSA keys that ring verifies.
const RSA_BITS_MIN: usize = 2048;

/// The keys that TLS here can use.
pub(crate) const USABLE_KEYS: &str = "a key of P-256, P-384, Ed25519, or RSA from 2,048 bits on";

/// The object identifier of P-521 in DER (secp521r1; RFC 5480, section 2.1.1.1).
const P521: [u8; 7] = [0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];

/// Why TLS cannot be set up. Each is a matter of the configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read, or is not PEM of the right kind.
    #[error("could not read the {what} in \"{path}\": {source}")]
    File {
        /// What it was to hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// A file without what it was to hold.
    #[error("there is no {what} in \"{path}\" (PEM is expected)")]
    Empty {
        /// What it was to hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Certificate and key, or the authorities, are no good for TLS.
    #[error("\"{path}\" cannot be used: {reason}")]
    Unusable {
        /// The file of the certificate or the authorities.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A key of another certificate.
    #[error("the private key in \"{key}\" is not the key of the certificate in \"{certificate}\"")]
    OtherKey {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// A setting that another one needs is not there.
    #[error("{needed_by} needs {setting}")]
    Missing {
        /// The setting that is missing.
        setting: &'static str,
        /// What needs it.
        needed_by: &'static str,
    },
    /// No authorities of the system were found.
    #[error("no certificate authorities: give server_tls_ca_file, or install ca-certificates")]
    NoSystemAuthorities,
}

impl TlsError {
    fn unusable(path: &Path, error: &rustls::Error) -> Self {
        Self::Unusable { path: path.to_owned(), reason: error.to_string() }
    }

    fn unusable_key(path: &Path, is_p521: bool, error: &rustls::Error) -> Self {
        let reason = match is_p521 {
            true => format!("TLS here does not support its P-521 key; use {USABLE_KEYS}"),
            false => format!("{error}; use {USABLE_KEYS}"),
        };
        Self::Unusable { path: path.to_owned(), reason }
    }
}

/// With these ciphers and curves only; without curves, all.
fn provider_with(
    ciphers: &TlsCiphers,
    ciphers_13: &Tls13Ciphers,
    curves: Option<&TlsCurves>,
) -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.retain(|suite| {
        let name = suite.suite().as_str();
        name.is_some_and(|name| ciphers.allows(name) || ciphers_13.allows(name))
    });
    provider.kx_groups.retain(|group| {
        let name = group.name().as_str();
        curves.is_none_or(|curves| name.is_some_and(|name| curves.allows(name)))
    });
    Arc::new(provider)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn versions(allowed: TlsVersions) -> Vec<&'static SupportedProtocolVersion> {
    let mut versions = Vec::with_capacity(2);
    if allowed.v1_3 {
        versions.push(&rustls::version::TLS13);
    }
    if allowed.v1_2 {
        versions.push(&rustls::version::TLS12);
    }
    versions
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::File { what, path: path.to_owned(), source };
    let certificates = CertificateDer::pem_file_iter(path)
        .map_err(failed)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    if certificates.is_empty() {
        return Err(TlsError::Empty { what, path: path.to_owned() });
    }
    Ok(certificates)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let what = "private key";
    PrivateKeyDer::from_pem_file(path).map_err(|source| match source {
        pem::Error::NoItemsFound => TlsError::Empty { what, path: path.to_owned() },
        source => TlsError::File { what, path: path.to_owned(), source },
    })
}

/// Whether a key, or what holds one, is of P-521, which ring does not support.
fn is_of_p521(der: &[u8]) -> bool {
    der.windows(P521.len()).any(|part| part == P521)
}

/// Our own certificate, of any version, with its key.
fn certified_key(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = certificates("certificate", certificate)?;
    let der = private_key(key)?;
    let is_p521 = is_of_p521(der.secret_der());
    let signing = provider().key_provider.load_private_key(der);
    let signing = signing.map_err(|error| TlsError::unusable_key(key, is_p521, &error))?;
    // As rustls does with what webpki reads.
    if let (Some(own), Some(known)) = (chain.first(), signing.public_key()) {
        let own =
            Certificate::parse(own).map_err(|error| TlsError::unusable(certificate, &error))?;
        if own.key() != known {
            let (certificate, key) = (certificate.to_owned(), key.to_owned());
            return Err(TlsError::OtherKey { certificate, key });
        }
    }
    Ok(Arc::new(CertifiedKey::new(chain, signing)))
}

fn authorities(path: &Path) -> Result<Authorities, TlsError> {
    let files = certificates("certificate authority", path)?;
    let mut roots = RootCertStore::empty();
    for certificate in &files {
        roots.add(certificate.clone()).map_err(|error| TlsError::unusable(path, &error))?;
    }
    Ok(Authorities { roots: Arc::new(roots), files })
}

/// What in a file of authorities is of no use here, though OpenSSL may take it: a line each.
pub fn weaknesses(path: &Path) -> Vec<String> {
    let all = certificates("certificate", path).unwrap_or_default();
    let weak = all.iter().enumerate().filter_map(|(at, der)| {
        let certificate = Certificate::parse(der).ok()?;
        let key = match certificate.rsa_bits() {
            Some(bits) if bits < RSA_BITS_MIN => format!("an RSA key of {bits} bits"),
            None if is_of_p521(&certificate.key()) => "a P-521 key".to_owned(),
            _ => return None,
        };
        Some(format!(
            "{}: certificate {} has {key}: nothing that it has signed is taken; use {USABLE_KEYS}",
            path.display(),
            at + 1
        ))
    });
    weak.collect()
}

/// What tells one state of some files from another, without reading them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileStamps(Vec<(PathBuf, Option<Stamp>)>);

/// Time of the last change, size and inode.
type Stamp = (SystemTime, u64, u64);

impl FileStamps {
    /// The files as they are now.
    pub(crate) fn of<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        use std::os::unix::fs::MetadataExt;
        let stamp = |path: &PathBuf| {
            let about = std::fs::metadata(path).ok()?;
            Some((about.modified().ok()?, about.len(), about.ino()))
        };
        Self(paths.into_iter().map(|path| (path.clone(), stamp(path))).collect())
    }

    /// Whether a file has changed since.
    pub(crate) fn are_stale(&self) -> bool {
        *self != Self::of(self.0.iter().map(|(path, _)| path))
    }
}
