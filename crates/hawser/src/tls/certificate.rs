//! Certificates that libpq and OpenSSL take, and webpki does not.
//!
//! # Model
//! ```text
//!   what the other end shows                     who judges it
//!   one of the authorities, byte for byte        here: dates and purpose
//!   version 1, which has no extensions           here: dates, and a signature of an authority itself
//!   all others                                   webpki
//! ```
//! PostgreSQL's manual makes both of the first: a self-signed server certificate, and one of an authority of
//! its own by `openssl x509 -req` without extensions (19.9.5; OpenSSL before 3.4).
//!
//! # Invariants
//! * a certificate of version 1 signs no other one: what webpki asks of those in between stays
//! * the subject's name counts only where no name constraint could have ruled it out: webpki looks for them
//!   among the alternative names alone
//!
//! # Limits
//! ring verifies no RSA keys below 2,048 bits and no SHA-1. A certificate of version 1 is taken from an
//! authority of the file, not from one in between.

use std::sync::Arc;

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{
    CertificateDer, ServerName, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved, RootCertStore};
use x509_parser::asn1_rs::Any;
use x509_parser::oid_registry::{
    OID_X509_EXT_EXTENDED_KEY_USAGE, OID_X509_EXT_NAME_CONSTRAINTS, OID_X509_EXT_SUBJECT_ALT_NAME,
    Oid,
};
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate, X509Version};

use crate::auth::certificate::Subject;

/// Which end shows a certificate.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shown {
    /// The server.
    ByServer,
    /// The client.
    ByClient,
}

/// Who signs certificates that are taken.
#[derive(Debug)]
pub(super) struct Authorities {
    /// For webpki.
    pub(super) roots: Arc<RootCertStore>,
    /// As they are in the file; none of the system's, which are not shown by servers.
    pub(super) files: Vec<CertificateDer<'static>>,
}

impl Authorities {
    /// Judges a certificate that webpki would not take whatever it is. `None`: webpki is to judge it.
    pub(super) fn judge(
        &self,
        der: &CertificateDer<'_>,
        shown: Shown,
        now: UnixTime,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Option<Result<(), Error>> {
        if self.files.contains(der) {
            return Some(Certificate::parse(der).and_then(|own| own.check_itself(shown, now)));
        }
        let leaf = Certificate::parse(der).ok().filter(Certificate::is_of_version_1)?;
        let signed = leaf.check_signed_by_one_of(&self.roots, algorithms.all);
        Some(signed.and_then(|()| leaf.check_itself(shown, now)))
    }

    /// Whether a constraint on names may hold for what `between` leads to.
    pub(super) fn constrain_names(&self, between: &[CertificateDer<'_>]) -> bool {
        let constrains = |der| match Certificate::parse(der) {
            Ok(one) => one.has(&OID_X509_EXT_NAME_CONSTRAINTS),
            Err(_) => true,
        };
        self.roots.roots.iter().any(|root| root.name_constraints.is_some())
            || between.iter().any(|der| constrains(der))
    }
}

/// A certificate.
pub(super) struct Certificate<'a> {
    der: &'a [u8],
    parsed: X509Certificate<'a>,
}

impl<'a> Certificate<'a> {
    /// Reads one in DER.
    pub(super) fn parse(der: &'a [u8]) -> Result<Self, Error> {
        match X509Certificate::from_der(der) {
            Ok(([], parsed)) => Ok(Self { der, parsed }),
            _ => Err(CertificateError::BadEncoding.into()),
        }
    }

    /// Its key.
    pub(super) fn key(&self) -> SubjectPublicKeyInfoDer<'a> {
        self.parsed.tbs_certificate.subject_pki.raw.into()
    }

    /// The bits of its key, if that is one of RSA.
    pub(super) fn rsa_bits(&self) -> Option<usize> {
        match self.parsed.public_key().parsed() {
            Ok(x509_parser::public_key::PublicKey::RSA(key)) => Some(key.key_size()),
            _ => None,
        }
    }

    /// Whether it has names that count in place of the subject's (RFC 6125, section 6.4.4).
    pub(super) fn has_alternative_names(&self) -> bool {
        self.has(&OID_X509_EXT_SUBJECT_ALT_NAME)
    }

    /// Whether its common name is that of a server, as libpq compares it
    /// (`pq_verify_peer_name_matches_certificate_name`).
    pub(super) fn is_called(&self, name: &ServerName<'_>) -> bool {
        let called = Subject::of(self.der).ok().and_then(|subject| subject.common_name);
        let fits = |pattern: String| match name {
            ServerName::IpAddress(_) => pattern == name.to_str(),
            _ => fits(&pattern, &name.to_str()),
        };
        called.is_some_and(fits)
    }

    fn is_of_version_1(&self) -> bool {
        self.parsed.version() == X509Version::V1
    }

    fn has(&self, extension: &Oid<'_>) -> bool {
        self.parsed.extensions().iter().any(|one| one.oid == *extension)
    }

    fn check_itself(&self, shown: Shown, now: UnixTime) -> Result<(), Error> {
        let now =
            i64::try_from(now.as_secs()).ok().and_then(|now| ASN1Time::from_timestamp(now).ok());
        let now = now.ok_or(Error::FailedToGetCurrentTime)?;
        let validity = self.parsed.validity();
        if now < validity.not_before {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > validity.not_after {
            return Err(CertificateError::Expired.into());
        }
        if self.serves(shown) { Ok(()) } else { Err(CertificateError::InvalidPurpose.into()) }
    }

    fn serves(&self, shown: Shown) -> bool {
        if !self.has(&OID_X509_EXT_EXTENDED_KEY_USAGE) {
            return true;
        }
        let usage = self.parsed.extended_key_usage().ok().flatten();
        usage.is_some_and(|usage| match shown {
            Shown::ByServer => usage.value.server_auth,
            Shown::ByClient => usage.value.client_auth,
        })
    }

    fn check_signed_by_one_of(
        &self,
        roots: &RootCertStore,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), Error> {
        let (issuer, _) = element(self.parsed.issuer().as_raw())?;
        let (whole, _) = element(self.der)?;
        let signed = self.parsed.tbs_certificate.as_ref();
        // After the signed part: the algorithm.
        let (algorithm, _) = element(&whole[signed.len()..])?;
        if self.parsed.tbs_certificate.signature != self.parsed.signature_algorithm {
            return Err(CertificateError::BadEncoding.into());
        }
        let signature = &*self.parsed.signature_value.data;
        let mut error = CertificateError::UnknownIssuer;
        let named = roots.roots.iter().filter(|root| root.subject.as_ref() == issuer);
        for root in named.filter(|root| root.name_constraints.is_none()) {
            let key = Key::of(&root.subject_public_key_info)?;
            let fitting =
                algorithms.iter().filter(|one| one.signature_alg_id().as_ref() == algorithm);
            if key.has_made(signature, signed, fitting) {
                return Ok(());
            }
            error = CertificateError::BadSignature;
        }
        Err(error.into())
    }
}

/// The contents of the element of DER with which `der` begins, and what follows it.
fn element(der: &[u8]) -> Result<(&[u8], &[u8]), Error> {
    let (rest, element) =
        Any::from_der(der).map_err(|_| Error::from(CertificateError::BadEncoding))?;
    Ok((element.data, rest))
}

/// A public key as webpki's algorithms take it.
struct Key<'a> {
    /// The contents of its AlgorithmIdentifier.
    algorithm: &'a [u8],
    bits: &'a [u8],
}

impl<'a> Key<'a> {
    /// Of the contents of a SubjectPublicKeyInfo.
    fn of(contents: &'a [u8]) -> Result<Self, Error> {
        let (algorithm, rest) = element(contents)?;
        match element(rest)? {
            ([0, bits @ ..], []) => Ok(Self { algorithm, bits }),
            _ => Err(CertificateError::BadEncoding.into()),
        }
    }

    /// Whether a signature is its, by one of some algorithms.
    fn has_made<'b>(
        &self,
        signature: &[u8],
        signed: &[u8],
        algorithms: impl IntoIterator<Item = &'b &'b dyn SignatureVerificationAlgorithm>,
    ) -> bool {
        let mut own =
            algorithms.into_iter().filter(|one| one.public_key_alg_id().as_ref() == self.algorithm);
        own.any(|one| one.verify_signature(self.bits, signed, signature).is_ok())
    }
}

/// As [`rustls::crypto::verify_tls12_signature`], without a certificate that webpki reads.
pub(super) fn verify_tls12_signature_with_raw_key(
    message: &[u8],
    key: &SubjectPublicKeyInfoDer<'_>,
    signature: &DigitallySignedStruct,
    supported: &WebPkiSupportedAlgorithms,
) -> Result<(), Error> {
    let named = supported.mapping.iter().find(|(scheme, _)| *scheme == signature.scheme);
    let (_, algorithms) = named.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
    let (contents, _) = element(key)?;
    if Key::of(contents)?.has_made(signature.signature(), message, *algorithms) {
        return Ok(());
    }
    Err(CertificateError::BadSignature.into())
}

/// As libpq's `wildcard_certificate_match`, and without a wildcard: a `*` stands for one whole label, the first.
fn fits(pattern: &str, name: &str) -> bool {
    if pattern.eq_ignore_ascii_case(name) {
        return true;
    }
    let Some(rest) =
        pattern.strip_prefix('*').filter(|rest| rest.len() > 1 && rest.starts_with('.'))
    else {
        return false;
    };
    match name.split_once('.') {
        Some((label, _)) if !label.is_empty() => name[label.len()..].eq_ignore_ascii_case(rest),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_one_label_and_stands_first() {
        for (pattern, name, expected) in [
            ("db.example.net", "DB.Example.net", true),
            ("db.example.net", "db.example.com", false),
            ("*.example.net", "db.example.net", true),
            ("*.EXAMPLE.net", "db.example.net", true),
            ("*.example.net", "a.db.example.net", false),
            ("*.example.net", "example.net", false),
            ("*.example.net", ".example.net", false),
            ("*", "localhost", false),
            ("*.", "localhost.", false),
            ("*b.example.net", "db.example.net", false),
            ("db.*.net", "db.example.net", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
