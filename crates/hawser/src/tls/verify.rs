//! Checks of certificates: of servers as libpq's modes ask, of clients as PostgreSQL does.
//!
//! # Invariant
//! That the other end owns the key of the certificate it shows is always checked: the signatures of
//! the handshake are.
//!
//! # Why not webpki's verifiers alone
//! They take no certificate of version 1 and none that is itself an authority, and no name but alternative
//! ones: see [`super::certificate`]. In mode `prefer` such a server was used without encryption.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::certificate::{Authorities, Certificate, Shown, verify_tls12_signature_with_raw_key};
use super::provider;

/// What is asked of a server's certificate.
#[derive(Debug)]
pub(super) struct ServerCheck {
    /// That it is of an authority; `None`: nothing.
    authority: Option<(Authorities, Arc<WebPkiServerVerifier>)>,
    /// That its name is the host's.
    name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCheck {
    /// Takes every certificate: `allow`, `prefer`, `require`.
    pub(super) fn any_certificate() -> Self {
        let algorithms = provider().signature_verification_algorithms;
        Self { authority: None, name: false, algorithms }
    }

    /// Takes a certificate of a known authority, whatever its name: `verify-ca`.
    ///
    /// # Errors
    /// There is no authority.
    pub(super) fn any_name(authorities: Authorities) -> Result<Self, VerifierBuilderError> {
        let roots = authorities.roots.clone();
        let webpki = WebPkiServerVerifier::builder_with_provider(roots, provider()).build()?;
        Ok(Self { authority: Some((authorities, webpki)), ..Self::any_certificate() })
    }

    /// Takes a certificate of a known authority with the host's name: `verify-full`.
    ///
    /// # Errors
    /// There is no authority.
    pub(super) fn full(authorities: Authorities) -> Result<Self, VerifierBuilderError> {
        Ok(Self { name: true, ..Self::any_name(authorities)? })
    }
}

/// The rest of both verifiers: signatures are checked in the same way at both ends.
macro_rules! checks_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12(message, certificate, signature, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13(message, certificate, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for ServerCheck {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let taken = ServerCertVerified::assertion();
        let Some((authorities, webpki)) = &self.authority else { return Ok(taken) };
        if let Some(verdict) =
            authorities.judge(certificate, Shown::ByServer, now, &self.algorithms)
        {
            verdict?;
            return match self.name {
                true => check_name(certificate, name).map(|()| taken),
                false => Ok(taken),
            };
        }
        match webpki.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // rustls checks the name last: everything else was in order.
            Err(error) if is_of_name(&error) => {
                let called = || {
                    let certificate = Certificate::parse(certificate)?;
                    Ok::<_, Error>(
                        !certificate.has_alternative_names() && certificate.is_called(name),
                    )
                };
                if !self.name || (called()? && !authorities.constrain_names(intermediates)) {
                    return Ok(taken);
                }
                Err(error)
            }
            result => result,
        }
    }

    checks_signatures!();
}

fn is_of_name(error: &Error) -> bool {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    matches!(error, Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
}

/// The name of a certificate that webpki does not verify.
fn check_name(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
    let parsed = Certificate::parse(certificate)?;
    if parsed.has_alternative_names() {
        return verify_server_name(&ParsedCertificate::try_from(certificate)?, name);
    }
    match parsed.is_called(name) {
        true => Ok(()),
        false => Err(CertificateError::NotValidForName.into()),
    }
}

/// What is asked of a client's certificate, if it shows one.
#[derive(Debug)]
pub(super) struct ClientCheck {
    authorities: Authorities,
    webpki: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCheck {
    /// That it is of a known authority; `must`: that there is one.
    ///
    /// # Errors
    /// There is no authority.
    pub(super) fn new(authorities: Authorities, must: bool) -> Result<Self, VerifierBuilderError> {
        let roots = authorities.roots.clone();
        let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
        if !must {
            builder = builder.allow_unauthenticated();
        }
        let algorithms = provider().signature_verification_algorithms;
        Ok(Self { authorities, webpki: builder.build()?, algorithms })
    }
}

impl ClientCertVerifier for ClientCheck {
    fn offer_client_auth(&self) -> bool {
        self.webpki.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.webpki.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.authorities.judge(certificate, Shown::ByClient, now, &self.algorithms) {
            Some(verdict) => verdict.map(|()| ClientCertVerified::assertion()),
            None => self.webpki.verify_client_cert(certificate, intermediates, now),
        }
    }

    checks_signatures!();
}

// What x509-parser does not read may be read by webpki.

fn verify_tls12(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let Ok(parsed) = Certificate::parse(certificate) else {
        return verify_tls12_signature(message, certificate, signature, algorithms);
    };
    verify_tls12_signature_with_raw_key(message, &parsed.key(), signature, algorithms)?;
    Ok(HandshakeSignatureValid::assertion())
}

fn verify_tls13(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let Ok(parsed) = Certificate::parse(certificate) else {
        return verify_tls13_signature(message, certificate, signature, algorithms);
    };
    verify_tls13_signature_with_raw_key(message, &parsed.key(), signature, algorithms)
}
