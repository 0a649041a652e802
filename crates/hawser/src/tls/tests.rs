//! TLS in both directions, with certificates made for the test.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    Issuer, KeyPair, NameConstraints, SigningKey, date_time_ymd,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use x509_parser::asn1_rs::{Any, FromDer};

use super::accept::{Accepting, Acceptor};
use super::connect::{Connecting, server_name};
use crate::config::{
    ClientTlsSettings, Config, ServerTlsSettings, Tls13Ciphers, TlsCiphers, TlsMode,
    TlsNegotiation, TlsVersions,
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

    /// The same of version 1: without extensions, as `openssl x509 -req` made them by default for decades.
    pub(crate) fn issue_version_1(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.authority.0, &self.authority.1);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let pem = pem(&version_1(certificate.der(), &self.authority.1));
        std::fs::write(self.path(&format!("{name}.crt")), pem).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// A certificate that has signed itself.
    fn issue_self_signed(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "localhost");
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(self.path(&format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// As a server with this certificate.
    fn accept_with(&self, name: &str) -> ClientTlsSettings {
        ClientTlsSettings {
            client_tls_cert_file: Some(self.path(&format!("{name}.crt"))),
            client_tls_key_file: Some(self.path(&format!("{name}.key"))),
            ..self.accept_settings(TlsMode::Require)
        }
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

    pub(crate) fn connect_settings(&self, mode: TlsMode) -> ServerTlsSettings {
        ServerTlsSettings {
            server_tls_sslmode: mode,
            server_tls_ca_file: Some(self.path("ca.crt")),
            server_tls_cert_file: None,
            server_tls_key_file: None,
            server_tls_protocols: TlsVersions { v1_2: true, v1_3: true },
            server_tls_ciphers: TlsCiphers::default(),
            server_tls13_ciphers: Tls13Ciphers::default(),
            server_tls_negotiation: TlsNegotiation::Postgres,
        }
    }
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// A certificate without its version number and extensions, signed again.
fn version_1(der: &[u8], authority: &KeyPair) -> Vec<u8> {
    fn parts(mut of: &[u8]) -> Vec<&[u8]> {
        let mut parts = Vec::new();
        while !of.is_empty() {
            let (rest, _) = Any::from_der(of).unwrap();
            parts.push(&of[..of.len() - rest.len()]);
            of = rest;
        }
        parts
    }
    fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
        let [high, low] = u16::try_from(contents.len()).unwrap().to_be_bytes();
        let length = match (high, low) {
            (0, 0..=0x7f) => vec![low],
            (0, _) => vec![0x81, low],
            _ => vec![0x82, high, low],
        };
        [&[tag], &length[..], contents].concat()
    }
    fn contents(of: &[u8]) -> &[u8] {
        Any::from_der(of).unwrap().1.data
    }
    let whole = parts(contents(der));
    let kept: Vec<_> =
        parts(contents(whole[0])).into_iter().filter(|part| part[0] & 0xc0 == 0).collect();
    let signed = element(0x30, &kept.concat());
    let signature = [&[0][..], &authority.sign(&signed).unwrap()].concat();
    element(0x30, &[&signed, whole[1], &element(0x03, &signature)].concat())
}

/// Agrees on TLS between the two and sends a byte each way.
async fn agree(
    accept: &ClientTlsSettings,
    connect: &ServerTlsSettings,
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
    let with = ServerTlsSettings {
        server_tls_cert_file: Some(pki.path("ann.crt")),
        server_tls_key_file: Some(pki.path("ann.key")),
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
    let strange = ServerTlsSettings {
        server_tls_cert_file: Some(stranger.path("ann.crt")),
        server_tls_key_file: Some(stranger.path("ann.key")),
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
    connect.server_tls_protocols = TlsVersions { v1_2: true, v1_3: false };
    agree(&accept, &connect, "localhost").await.unwrap_err();
    connect.server_tls_protocols = TlsVersions { v1_2: true, v1_3: true };
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

// Of openssl (ecparam -name secp521r1 -genkey, pkcs8 -topk8 -nocrypt, req -x509): ring makes none.
const P521_SEC1: &str = "\
-----BEGIN EC PRIVATE KEY-----
MIHcAgEBBEIARmlOwqT2Kj6GgtXqfz5rElbuaBDYneS+vG3UYPWNtChi+wZu7UFr
jF22w48z/bQFLQ7Zzg3u/QvLL3XSCGE4WP2gBwYFK4EEACOhgYkDgYYABAC6OiHR
muUNnsll+HEr1RRYzm8a5JlG7we2R7qSc7TWwrzwOuhc55oUotuxlRlLwwMYALGy
EOaz4ri2G3tc9eCm/QE6WED687cZ7AYXEtMe3ihCWIAhxuq6lxyp7bf83WZNgPr0
FM/0s0JTl9CJCMA1WyuTitZscLQccj5d9uN4JaANuQ==
-----END EC PRIVATE KEY-----
";
const P521_PKCS8: &str = "\
-----BEGIN PRIVATE KEY-----
MIHuAgEAMBAGByqGSM49AgEGBSuBBAAjBIHWMIHTAgEBBEIARmlOwqT2Kj6GgtXq
fz5rElbuaBDYneS+vG3UYPWNtChi+wZu7UFrjF22w48z/bQFLQ7Zzg3u/QvLL3XS
CGE4WP2hgYkDgYYABAC6OiHRmuUNnsll+HEr1RRYzm8a5JlG7we2R7qSc7TWwrzw
Ouhc55oUotuxlRlLwwMYALGyEOaz4ri2G3tc9eCm/QE6WED687cZ7AYXEtMe3ihC
WIAhxuq6lxyp7bf83WZNgPr0FM/0s0JTl9CJCMA1WyuTitZscLQccj5d9uN4JaAN
uQ==
-----END PRIVATE KEY-----
";
const P521_CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIB/TCCAV6gAwIBAgIUUmTZxLlJmt0z+U8va3PtfoJ4mFMwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEcDUyMTAgFw0yNjExMjkwNzE1MjRaGA8yMTI2MTEwNTA3MTUy
NFowDzENMAsGA1UEAwwEcDUyMTCBmzAQBgcqhkjOPQIBBgUrgQQAIwOBhgAEALo6
IdGa5Q2eyWX4cSvVFFjObxrkmUbvB7ZHupJztNbCvPA66FznmhSi27GVGUvDAxgA
sbIQ5rPiuLYbe1z14Kb9ATpYQPrztxnsBhcS0x7eKEJYgCHG6rqXHKntt/zdZk2A
+vQUz/SzQlOX0IkIwDVbK5OK1mxwtBxyPl3243gloA25o1MwUTAdBgNVHQ4EFgQU
a+FdLZgmRVdzPU+PlUkVoIst0NYwHwYDVR0jBBgwFoAUa+FdLZgmRVdzPU+PlUkV
oIst0NYwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgOBjAAwgYgCQgCUFnPO
/BIf2hSx8sdnnoVeFK4KhLJDoJRaiuoj0s3XagkKqIDCWPVIcMUMGFao08I9rBHj
4LAEpL9hX6QvzN2DiwJCAVhZ4ierIwwNxSPx7TFD/W/4i/EmDEQK0IdkrLNcznZk
UsRyh43KKqUI2lPpaS68l5y5woXZ745R0MPwklIozqwY
-----END CERTIFICATE-----
";

#[test]
fn a_p521_key_is_named_at_load() {
    let pki = Pki::new();
    let mut settings = pki.accept_settings(TlsMode::Require);
    let load = |settings: &ClientTlsSettings| Accepting::load(settings).unwrap_err().to_string();
    settings.client_tls_key_file = Some(pki.path("p521.key"));
    for key in [P521_SEC1, P521_PKCS8] {
        std::fs::write(pki.path("p521.key"), key).unwrap();
        let error = load(&settings);
        assert!(error.contains("p521.key\" cannot be used"), "{error}");
        assert!(error.contains("P-521") && error.contains("P-256"), "{error}");
    }
    let broken = "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
    std::fs::write(pki.path("p521.key"), broken).unwrap();
    let error = load(&settings);
    assert!(!error.contains("P-521") && error.contains("P-256"), "{error}");
}

#[test]
fn a_p521_key_of_an_authority_is_a_weakness() {
    let pki = Pki::new();
    assert!(super::weaknesses(&pki.path("ca.crt")).is_empty());
    std::fs::write(pki.path("p521.crt"), P521_CERTIFICATE).unwrap();
    let lines = super::weaknesses(&pki.path("p521.crt"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("certificate 1 has a P-521 key"), "{lines:?}");
}

/// Each mode of `ca`'s with this server, by name: those in which a connection comes about.
async fn works(
    accept: &ClientTlsSettings,
    ca: &Path,
    own: &ServerTlsSettings,
    host: &str,
) -> Vec<TlsMode> {
    let mut works = Vec::new();
    for mode in [TlsMode::Prefer, TlsMode::Require, TlsMode::VerifyCa, TlsMode::VerifyFull] {
        let connect = ServerTlsSettings {
            server_tls_sslmode: mode,
            server_tls_ca_file: Some(ca.to_owned()),
            ..own.clone()
        };
        if agree(accept, &connect, host).await.is_ok() {
            works.push(mode);
        }
    }
    works
}

const UNVERIFIED: [TlsMode; 2] = [TlsMode::Prefer, TlsMode::Require];
const ANY_NAME: [TlsMode; 3] = [TlsMode::Prefer, TlsMode::Require, TlsMode::VerifyCa];
const ALL: [TlsMode; 4] =
    [TlsMode::Prefer, TlsMode::Require, TlsMode::VerifyCa, TlsMode::VerifyFull];

/// PostgreSQL's manual makes such: mode `prefer` went on without encryption, all others failed.
#[tokio::test]
async fn a_server_certificate_of_version_1_is_taken_as_libpq_takes_it() {
    let (pki, stranger) = (Pki::new(), Pki::new());
    pki.issue_version_1("localhost", |_| {});
    pki.issue_version_1("localhost-old", |params| params.not_after = date_time_ymd(2020, 1, 1));
    pki.issue_version_1("localhost-new", |params| params.not_before = date_time_ymd(4000, 1, 1));
    let accept = pki.accept_with("localhost");
    let ca = pki.path("ca.crt");
    let mut own = pki.connect_settings(TlsMode::Require);
    for protocols in
        [TlsVersions { v1_2: true, v1_3: false }, TlsVersions { v1_2: false, v1_3: true }]
    {
        own.server_tls_protocols = protocols;
        assert_eq!(works(&accept, &ca, &own, "localhost").await, ALL);
        assert_eq!(works(&accept, &ca, &own, "db.example").await, ANY_NAME);
        // Of the same name as the authority: the signature tells them apart.
        assert_eq!(works(&accept, &stranger.path("ca.crt"), &own, "localhost").await, UNVERIFIED);
        for name in ["localhost-old", "localhost-new"] {
            assert_eq!(works(&pki.accept_with(name), &ca, &own, "localhost").await, UNVERIFIED);
        }
    }
}

#[tokio::test]
async fn a_server_certificate_that_is_itself_the_authority_is_taken() {
    let pki = Pki::new();
    let named = |params: &mut CertificateParams| {
        params.subject_alt_names = vec![rcgen::SanType::DnsName("db.example".try_into().unwrap())];
    };
    pki.issue_self_signed("own", |_| {});
    pki.issue_self_signed("other", |_| {});
    pki.issue_self_signed("named", named);
    pki.issue_self_signed("old", |params| params.not_after = date_time_ymd(2020, 1, 1));
    pki.issue_self_signed("client", |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    let own = pki.connect_settings(TlsMode::Require);
    let works = async |server: &str, ca: &str, host| {
        works(&pki.accept_with(server), &pki.path(&format!("{ca}.crt")), &own, host).await
    };
    assert_eq!(works("own", "own", "localhost").await, ALL);
    assert_eq!(works("own", "own", "db.example").await, ANY_NAME);
    assert_eq!(works("own", "other", "localhost").await, UNVERIFIED);
    // An alternative name counts in place of the subject's.
    assert_eq!(works("named", "named", "db.example").await, ALL);
    assert_eq!(works("named", "named", "localhost").await, ANY_NAME);
    assert_eq!(works("old", "old", "localhost").await, UNVERIFIED);
    assert_eq!(works("client", "client", "localhost").await, UNVERIFIED, "not for servers");
}

#[tokio::test]
async fn without_alternative_names_the_common_name_is_the_servers() {
    let mut pki = Pki::new();
    pki.issue("plain", &[], "localhost");
    pki.issue("star", &[], "*.example.net");
    let (own, ca) = (pki.connect_settings(TlsMode::Require), pki.path("ca.crt"));
    assert_eq!(works(&pki.accept_with("plain"), &ca, &own, "localhost").await, ALL);
    assert_eq!(works(&pki.accept_with("plain"), &ca, &own, "localhost.net").await, ANY_NAME);
    assert_eq!(works(&pki.accept_with("star"), &ca, &own, "db.example.net").await, ALL);
    pki.issue("other", &["db.example"], "localhost");
    assert_eq!(works(&pki.accept_with("other"), &ca, &own, "localhost").await, ANY_NAME);
    // webpki compares constraints with alternative names only: the subject's could pass by them.
    pki.authority.0.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName("example.net".to_owned())],
        excluded_subtrees: Vec::new(),
    });
    let constrained = pki.authority.0.self_signed(&pki.authority.1).unwrap();
    std::fs::write(&ca, constrained.pem()).unwrap();
    assert_eq!(works(&pki.accept_with("plain"), &ca, &own, "localhost").await, ANY_NAME);
    pki.issue_version_1("localhost", |_| {});
    assert_eq!(works(&pki.accept_with("localhost"), &ca, &own, "localhost").await, UNVERIFIED);
}

/// It ended the handshake also of clients that prove themselves by a password.
#[tokio::test]
async fn a_client_certificate_of_version_1_is_taken_if_an_authority_has_signed_it() {
    let (pki, stranger) = (Pki::new(), Pki::new());
    pki.issue_version_1("ann", |_| {});
    let with = ServerTlsSettings {
        server_tls_cert_file: Some(pki.path("ann.crt")),
        server_tls_key_file: Some(pki.path("ann.key")),
        ..pki.connect_settings(TlsMode::Require)
    };
    for protocols in
        [TlsVersions { v1_2: true, v1_3: false }, TlsVersions { v1_2: false, v1_3: true }]
    {
        let with = ServerTlsSettings { server_tls_protocols: protocols, ..with.clone() };
        for mode in [TlsMode::Require, TlsMode::VerifyFull] {
            let mut accept = pki.accept_settings(mode);
            accept.client_tls_ca_file = Some(pki.path("ca.crt"));
            assert_eq!(agree(&accept, &with, "localhost").await.unwrap().0, Some(1), "{mode}");
            accept.client_tls_ca_file = Some(stranger.path("ca.crt"));
            agree(&accept, &with, "localhost").await.unwrap_err();
        }
    }
}

/// Whose key it is was never taken from the certificate alone.
#[tokio::test]
async fn a_certificate_without_its_key_is_refused_in_every_mode() {
    let pki = Pki::new();
    pki.issue_version_1("localhost", |_| {});
    pki.issue_version_1("thief", |_| {});
    let chain = super::certificates("certificate", &pki.path("localhost.crt")).unwrap();
    let signing = super::provider().key_provider;
    let key =
        signing.load_private_key(super::private_key(&pki.path("thief.key")).unwrap()).unwrap();
    let stolen = rustls::sign::SingleCertAndKey::from(rustls::sign::CertifiedKey::new(chain, key));
    let stolen = std::sync::Arc::new(stolen);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = rustls::ServerConfig::builder_with_provider(super::provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(stolen.clone());
        let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
        for mode in ALL {
            let (near, far) = duplex(64 * 1024);
            let acceptor = acceptor.clone();
            tokio::spawn(async move { acceptor.accept(far).await.map(drop) });
            let connecting = Connecting::load(&pki.connect_settings(mode)).unwrap();
            let name = server_name("localhost").unwrap();
            let error = connecting.connector().unwrap().connect(name, near).await.unwrap_err();
            assert!(error.to_string().contains("BadSignature"), "{mode}: {error}");
        }
    }
}

/// Connections that were open kept what a reload had forbidden.
#[test]
fn connections_are_replaced_where_any_setting_of_tls_has_changed() {
    let pki = Pki::new();
    let load = |change: &dyn Fn(&mut ServerTlsSettings)| {
        let mut settings = pki.connect_settings(TlsMode::VerifyCa);
        change(&mut settings);
        Connecting::load(&settings).unwrap()
    };
    let old = load(&|_| {});
    assert!(old.still_does(&load(&|_| {})));
    pki.issue("own", &[], "own");
    std::fs::copy(pki.path("ca.crt"), pki.path("ca-2.crt")).unwrap();
    let changes: [&dyn Fn(&mut ServerTlsSettings); 6] = [
        &|one| one.server_tls_sslmode = TlsMode::VerifyFull,
        &|one| one.server_tls_sslmode = TlsMode::Disable,
        &|one| one.server_tls_ca_file = Some(pki.path("ca-2.crt")),
        &|one| {
            one.server_tls_cert_file = Some(pki.path("own.crt"));
            one.server_tls_key_file = Some(pki.path("own.key"));
        },
        &|one| one.server_tls_protocols = TlsVersions { v1_2: false, v1_3: true },
        &|one| one.server_tls_negotiation = TlsNegotiation::Direct,
    ];
    for (at, change) in changes.iter().enumerate() {
        assert!(!old.still_does(&load(change)), "{at}");
    }
    let disabled = |one: &mut ServerTlsSettings| one.server_tls_sslmode = TlsMode::Disable;
    let elsewhere = |one: &mut ServerTlsSettings| {
        one.server_tls_sslmode = TlsMode::Disable;
        one.server_tls_ca_file = None;
    };
    assert!(load(&disabled).still_does(&load(&elsewhere)), "nothing of it is used");
    std::fs::write(pki.path("ca.crt"), std::fs::read(pki.path("own.crt")).unwrap()).unwrap();
    assert!(!old.still_does(&load(&|_| {})), "the file is another one");
}
