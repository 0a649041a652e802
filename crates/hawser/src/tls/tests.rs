//! TLS in both directions, with certificates made for the test.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::accept::{Accepting, Acceptor};
use super::connect::{Connecting, server_name};
use crate::config::{
    ClientTlsSettings, Config, ServerTls, Tls13Ciphers, TlsCiphers, TlsMode, TlsNegotiation,
    TlsVersions,
};
use crate::process::random_u64;

/// A directory of PEM files that goes when it is dropped.
pub(crate) struct Pki {
    directory: PathBuf,
    authority: (CertificateParams, KeyPair),
}

impl Drop for Pki {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Pki {
    /// An authority (`ca.crt`), and a server's certificate for `localhost`.
    pub(crate) fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("hawser-pki-{:x}", random_u64()));
        std::fs::create_dir(&directory).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        std::fs::write(directory.join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        let pki = Self { directory, authority: (params, key) };
        pki.issue("server", &["localhost"], "localhost");
        pki
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes `NAME.crt` and `NAME.key`.
    pub(crate) fn issue(&self, name: &str, names: &[&str], common_name: &str) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.authority.0, &self.authority.1);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(self.path(&format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    pub(crate) fn accept_settings(&self, mode: TlsMode) -> ClientTlsSettings {
        let text = "[[database]]\nname = \"*\"\nservers = \"/tmp\"\n[auth]\nauth_type = \"trust\"\n[[user]]\nname = \"u\"\n";
        let mut settings =
            Config::from_str(text, Path::new("test.toml")).unwrap().reload.client_tls;
        settings.client_tls_sslmode = mode;
        settings.client_tls_cert_file = Some(self.path("server.crt"));
        settings.client_tls_key_file = Some(self.path("server.key"));
        settings
    }

    pub(crate) fn connect_settings(&self, mode: TlsMode) -> ServerTls {
        ServerTls {
            mode,
            ca_file: Some(self.path("ca.crt")),
            cert_file: None,
            key_file: None,
            protocols: TlsVersions { v1_2: true, v1_3: true },
            ciphers: TlsCiphers::default(),
            ciphers_13: Tls13Ciphers::default(),
            negotiation: TlsNegotiation::Postgres,
        }
    }
}

/// Agrees on TLS between the two and sends a byte each way.
async fn agree(
    accept: &ClientTlsSettings,
    connect: &ServerTls,
    host: &str,
) -> Result<(Option<usize>, Option<usize>), String> {
    let accepting = Accepting::load(accept).unwrap().unwrap();
    let connecting = Connecting::load(connect).unwrap();
    let (near, far) = duplex(64 * 1024);
    let accepted = tokio::spawn(async move {
        let mut stream =
            accepting.acceptor().accept(far).await.map_err(|error| error.to_string())?;
        let byte = stream.read_u8().await.map_err(|error| error.to_string())?;
        stream.write_u8(byte + 1).await.map_err(|error| error.to_string())?;
        stream.flush().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(stream.get_ref().1.peer_certificates().map(<[_]>::len))
    });
    let connected = async {
        let connector = connecting.connector().unwrap();
        let name = server_name(host).unwrap();
        let mut stream = connector.connect(name, near).await?;
        stream.write_u8(41).await?;
        stream.flush().await?;
        assert_eq!(stream.read_u8().await?, 42);
        Ok::<_, std::io::Error>(stream.get_ref().1.peer_certificates().map(<[_]>::len))
    };
    let connected = connected.await.map_err(|error| error.to_string())?;
    Ok((accepted.await.unwrap()?, connected))
}

#[tokio::test]
async fn each_mode_checks_of_the_certificate_what_libpqs_does() {
    let pki = Pki::new();
    let stranger = Pki::new();
    let accept = pki.accept_settings(TlsMode::Require);
    for (mode, right_name, other_name, other_authority) in [
        (TlsMode::Prefer, true, true, true),
        (TlsMode::Require, true, true, true),
        (TlsMode::VerifyCa, true, true, false),
        (TlsMode::VerifyFull, true, false, false),
    ] {
        let own = pki.connect_settings(mode);
        assert_eq!(agree(&accept, &own, "localhost").await.is_ok(), right_name, "{mode}");
        assert_eq!(agree(&accept, &own, "db.example").await.is_ok(), other_name, "{mode}");
        let other = stranger.connect_settings(mode);
        let found = agree(&accept, &other, "localhost").await;
        assert_eq!(found.is_ok(), other_authority, "{mode}: {found:?}");
    }
}

#[tokio::test]
async fn a_client_certificate_is_optional_unless_the_mode_verifies() {
    let pki = Pki::new();
    pki.issue("ann", &[], "ann");
    let without = pki.connect_settings(TlsMode::Require);
    let with = ServerTls {
        cert_file: Some(pki.path("ann.crt")),
        key_file: Some(pki.path("ann.key")),
        ..without.clone()
    };
    let mut accept = pki.accept_settings(TlsMode::Require);
    accept.client_tls_ca_file = Some(pki.path("ca.crt"));
    assert_eq!(agree(&accept, &without, "localhost").await.unwrap().0, None);
    assert_eq!(agree(&accept, &with, "localhost").await.unwrap().0, Some(1));
    accept.client_tls_sslmode = TlsMode::VerifyFull;
    agree(&accept, &without, "localhost").await.unwrap_err();
    agree(&accept, &with, "localhost").await.unwrap();
    // One of another authority gets nowhere, asked for or not.
    let stranger = Pki::new();
    stranger.issue("ann", &[], "ann");
    let strange = ServerTls {
        cert_file: Some(stranger.path("ann.crt")),
        key_file: Some(stranger.path("ann.key")),
        ..without
    };
    accept.client_tls_sslmode = TlsMode::Require;
    agree(&accept, &strange, "localhost").await.unwrap_err();
}

#[tokio::test]
async fn versions_that_are_not_allowed_are_not_spoken() {
    let pki = Pki::new();
    let mut accept = pki.accept_settings(TlsMode::Require);
    accept.client_tls_protocols = TlsVersions { v1_2: false, v1_3: true };
    let mut connect = pki.connect_settings(TlsMode::Require);
    connect.protocols = TlsVersions { v1_2: true, v1_3: false };
    agree(&accept, &connect, "localhost").await.unwrap_err();
    connect.protocols = TlsVersions { v1_2: true, v1_3: true };
    agree(&accept, &connect, "localhost").await.unwrap();
    accept.client_tls_protocols = TlsVersions { v1_2: true, v1_3: false };
    agree(&accept, &connect, "localhost").await.unwrap();
}

#[test]
fn a_changed_certificate_is_taken_and_a_broken_one_is_not() {
    let pki = Pki::new();
    let settings = pki.accept_settings(TlsMode::Require);
    let acceptor = Acceptor::new(Accepting::load(&settings).unwrap());
    let before = acceptor.current().unwrap().end_point.clone();
    assert!(before.is_some());
    assert!(!acceptor.refresh(&settings).unwrap());
    pki.issue("server", &["localhost"], "a longer name than before");
    assert!(acceptor.refresh(&settings).unwrap());
    let after = acceptor.current().unwrap().end_point.clone();
    assert_ne!(before, after);
    std::fs::write(pki.path("server.crt"), "no certificate").unwrap();
    let error = acceptor.refresh(&settings).unwrap_err();
    assert!(error.to_string().contains("server.crt"), "{error}");
    assert_eq!(acceptor.current().unwrap().end_point, after, "the old one stays");
}

#[test]
fn a_key_of_another_certificate_is_refused_at_load() {
    let pki = Pki::new();
    pki.issue("other", &["localhost"], "other");
    let mut settings = pki.accept_settings(TlsMode::Require);
    settings.client_tls_key_file = Some(pki.path("other.key"));
    let error = Accepting::load(&settings).unwrap_err().to_string();
    assert!(error.contains("other.key") && error.contains("server.crt"), "{error}");
    settings.client_tls_sslmode = TlsMode::Disable;
    assert!(Accepting::load(&settings).unwrap().is_none());
}
