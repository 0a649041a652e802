//! Checks of a server's certificate that are weaker than rustls's own, as libpq's modes ask.
//!
//! # Invariant
//! That the server owns the key of the certificate it shows is always checked: the signatures of
//! the handshake are.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// Takes a certificate whatever its name, and where no authority is asked for, every certificate.
#[derive(Debug)]
pub(super) struct Lenient {
    /// Checks all but the name, which it checks last.
    authority: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Lenient {
    /// Takes every certificate: `allow`, `prefer`, `require`.
    pub(super) fn any_certificate(provider: &CryptoProvider) -> Self {
        Self { authority: None, algorithms: provider.signature_verification_algorithms }
    }

    /// Takes a certificate of a known authority, whatever its name: `verify-ca`.
    pub(super) fn any_name(provider: &CryptoProvider, full: Arc<WebPkiServerVerifier>) -> Self {
        Self { authority: Some(full), ..Self::any_certificate(provider) }
    }
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(full) = &self.authority else { return Ok(ServerCertVerified::assertion()) };
        match full.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // rustls checks the name last: everything else was in order.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
