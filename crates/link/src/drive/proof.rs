//! TLS of a path: version 1.3, both ends proved by keys that the other one knows.
//!
//! # Invariants
//! * neither end sends a byte of the link's own before it has verified the other's signature: rustls gives
//!   no way to, at the end that accepts, while a handshake is not complete
//! * no session is resumed: each path is proved by a signature, so a key that was taken out of the list
//!   cannot come back by a ticket
//! * a handshake that fails is answered by closing the connection, whatever the reason: the caller does
//!   not send rustls's alert

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName,
    Error, ServerConfig, ServerConnection, SignatureScheme,
};

use super::keys::{Key, PublicKey};

/// The protocol's name (ALPN): a server of another protocol is not taken for a far end.
const ALPN: &[u8] = b"hawser-link";

/// The keys of peers that are known now; a reload replaces them.
pub type Peers = Arc<ArcSwap<Vec<PublicKey>>>;

/// Takes a peer whose key is known.
#[derive(Debug)]
struct Pinned {
    peers: Peers,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    fn new(peers: &Peers) -> Arc<Self> {
        let provider = rustls::crypto::ring::default_provider();
        Arc::new(Self {
            peers: peers.clone(),
            algorithms: provider.signature_verification_algorithms,
        })
    }

    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        let not_a_key = CertificateError::ApplicationVerificationFailure;
        let key = PublicKey::of_spki(shown).ok_or(Error::InvalidCertificate(not_a_key))?;
        if self.peers.load().contains(&key) {
            return Ok(());
        }
        // (Whose text is Hawser's own; the others of rustls have an enum each.)
        Err(Error::General(format!("its key, {key}, is not among the keys of the other end")))
    }
}

/// The rest of both verifiers: signatures are checked in the same way at both ends.
macro_rules! checks_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _shown: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("a link speaks TLS 1.3 only".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            shown: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
            verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }

    checks_signatures!();
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }

    checks_signatures!();
}

fn certified(key: &Key) -> Result<Arc<CertifiedKey>, Error> {
    let signing = rustls::crypto::ring::sign::any_eddsa_type(key.der())?;
    let shown = CertificateDer::from(key.public().to_spki());
    Ok(Arc::new(CertifiedKey::new(vec![shown], signing)))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// TLS of the end that dials.
///
/// # Errors
/// The key is no good for TLS.
pub fn near(key: &Key, peers: &Peers) -> Result<Arc<ClientConfig>, Error> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Pinned::new(peers))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified(
            key,
        )?)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// TLS of the end that accepts.
///
/// # Errors
/// The key is no good for TLS.
pub fn far(key: &Key, peers: &Peers) -> Result<Arc<ServerConfig>, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Pinned::new(peers))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified(key)?)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Begins a handshake at the end that dials.
///
/// # Errors
/// As rustls.
pub fn begin_near(config: &Arc<ClientConfig>) -> Result<rustls::Connection, Error> {
    // It is not sent, and not compared: the key is.
    let name =
        ServerName::try_from("hawser-link").map_err(|error| Error::General(error.to_string()))?;
    Ok(ClientConnection::new(config.clone(), name)?.into())
}

/// Begins a handshake at the end that accepts.
///
/// # Errors
/// As rustls.
pub fn begin_far(config: &Arc<ServerConfig>) -> Result<rustls::Connection, Error> {
    Ok(ServerConnection::new(config.clone())?.into())
}

/// The key that the peer has proved to have; `None` before the handshake is complete.
#[must_use]
pub fn peer(tls: &rustls::Connection) -> Option<PublicKey> {
    if tls.is_handshaking() {
        return None;
    }
    tls.peer_certificates()?.first().and_then(|shown| PublicKey::of_spki(shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::keys::tests::throw_away;

    fn known(keys: &[PublicKey]) -> Peers {
        Arc::new(ArcSwap::from_pointee(keys.to_vec()))
    }

    /// Carries bytes between the two until neither has any; what each says at the end.
    fn shake(near: &mut rustls::Connection, far: &mut rustls::Connection) -> Result<(), Error> {
        for _ in 0..10 {
            for turn in [true, false] {
                let (from, to) =
                    if turn { (&mut *near, &mut *far) } else { (&mut *far, &mut *near) };
                let mut bytes = Vec::new();
                while from.wants_write() {
                    from.write_tls(&mut bytes).unwrap();
                }
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    to.read_tls(&mut rest).unwrap();
                    to.process_new_packets()?;
                }
            }
        }
        Ok(())
    }

    #[test]
    fn ends_that_know_each_other_are_proved_and_all_others_are_not() {
        let (here, there, stranger) = (throw_away(), throw_away(), throw_away());
        let (h, t, s) = (here.public(), there.public(), stranger.public());
        for (near_key, near_knows, far_knows, fine) in [
            (&here, vec![t], vec![h], true),
            (&here, vec![s, t], vec![s, h], true), // while a key is changed, both count
            (&here, vec![s], vec![h], false),
            (&stranger, vec![t], vec![h], false),
            (&here, vec![t], vec![], false),
        ] {
            let near_config = near(near_key, &known(&near_knows)).unwrap();
            let far_config = far(&there, &known(&far_knows)).unwrap();
            let mut near = begin_near(&near_config).unwrap();
            let mut far = begin_far(&far_config).unwrap();
            let done = shake(&mut near, &mut far);
            assert_eq!(done.is_ok(), fine, "{done:?}");
            if fine {
                assert_eq!((peer(&near), peer(&far)), (Some(t), Some(near_key.public())));
            } else {
                assert_eq!(peer(&far), None, "it has proved nothing");
            }
        }
    }

    #[test]
    fn a_key_that_was_taken_out_does_not_come_back() {
        let (here, there) = (throw_away(), throw_away());
        let peers = known(&[here.public()]);
        let far_config = far(&there, &peers).unwrap();
        let near_config = near(&here, &known(&[there.public()])).unwrap();
        let again =
            || shake(&mut begin_near(&near_config).unwrap(), &mut begin_far(&far_config).unwrap());
        assert!(again().is_ok());
        peers.store(Arc::new(Vec::new()));
        assert!(again().is_err());
    }
}
