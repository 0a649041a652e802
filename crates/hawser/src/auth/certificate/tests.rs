use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

use super::*;

// Made by OpenSSL 3.0; the expected names are those of `openssl x509 -subject -nameopt RFC2253`, the hashes those of
// `openssl dgst`.
const ECDSA_SHA384: &str = "MIIC1DCCAnkCFBFGYhrVRn/cMmE3Vk0dCDmVYwoJMAoGCCqGSM49BAMDMIHqMQswCQYDVQQGEwJERTETMBEGCgmSJomT\
    8ixkARkWA29yZzEXMBUGCgmSJomT8ixkARkWB2V4YW1wbGUxHzAdBgNVBAoMFsOcbWxhdXQsIEluYzsgPCJhXFxiIj4x\
    EDAOBgNVBAsMByNmaXJzdCAxDTALBgNVBAsMBCB4PXkxDDAKBgNVBAsMA3R3bzEeMBwGCSqGSIb3DQEJARYPam9lQGV4\
    YW1wbGUub3JnMQ8wDQYEKgMEBQwFdmFsdWUxCzAJBgNVBAUTAjEyMQ4wDAYDVQQDDAVqb2UreDEPMA0GA1UEAwwGc2Vj\
    b25kMCAXDTI2MTEyMTE1MDUyMFoYDzIxMjYxMDI4MTUwNTIwWjCB6jELMAkGA1UEBhMCREUxEzARBgoJkiaJk/IsZAEZ\
    FgNvcmcxFzAVBgoJkiaJk/IsZAEZFgdleGFtcGxlMR8wHQYDVQQKDBbDnG1sYXV0LCBJbmM7IDwiYVxcYiI+MRAwDgYD\
    VQQLDAcjZmlyc3QgMQ0wCwYDVQQLDAQgeD15MQwwCgYDVQQLDAN0d28xHjAcBgkqhkiG9w0BCQEWD2pvZUBleGFtcGxl\
    Lm9yZzEPMA0GBCoDBAUMBXZhbHVlMQswCQYDVQQFEwIxMjEOMAwGA1UEAwwFam9lK3gxDzANBgNVBAMMBnNlY29uZDBZ\
    MBMGByqGSM49AgEGCCqGSM49AwEHA0IABAcd7C7opRR5mfC09VG81FyZSYeJxfoOlmOnYhBAXpeAuH0EXaq3EPc0wvWt\
    H97cw2rHqNJpSo1ccQvIrUqbX5wwCgYIKoZIzj0EAwMDSQAwRgIhANANO+PTOphEmhv477HBkNLSmfipCMLyhh4gDIkz\
    mtgvAiEAgR1LfEYcK0wcE6P3EfBlcHX/Rgv9CPBI9C5Mhls0YKA=";
const MULTI_VALUED: &str = "MIIBtTCCAVugAwIBAgIUbNvlyBRvDF8iJRjtPpvCB2SzhPAwCgYIKoZIzj0EAwIwLzEKMAgGA1UECgwBeDEUMAgGA1UE\
    AwwBYTAIBgNVBAsMAWIxCzAJBgNVBAMMAiMgMCAXDTI2MTEyMTE1MDc0M1oYDzIxMjYxMDI4MTUwNzQzWjAvMQowCAYD\
    VQQKDAF4MRQwCAYDVQQDDAFhMAgGA1UECwwBYjELMAkGA1UEAwwCIyAwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQH\
    Hewu6KUUeZnwtPVRvNRcmUmHicX6DpZjp2IQQF6XgLh9BF2qtxD3NML1rR/e3MNqx6jSaUqNXHELyK1Km1+co1MwUTAd\
    BgNVHQ4EFgQUBzUmG6hUYVbamhp+RAcngrd/bl0wHwYDVR0jBBgwFoAUBzUmG6hUYVbamhp+RAcngrd/bl0wDwYDVR0T\
    AQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiBzj1L9f5vUEN2BIL94cbeRdOYyZCrVnqcWJNupKnkQ7QIhAPV0/XDo\
    JnA9nwe7sAmNZv3pvHleDGdGtRytITtYI2m2";
const PSS_SHA512: &str = "MIIDaTCCAhygAwIBAgIUFE4szf80Xgj41LXs+9wX5KjbcR8wQgYJKoZIhvcNAQEKMDWgDzANBglghkgBZQMEAgMFAKEc\
    MBoGCSqGSIb3DQEBCDANBglghkgBZQMEAgMFAKIEAgIAvjAOMQwwCgYDVQQDDANwc3MwIBcNMjYxMTIxMTUwNTIxWhgP\
    MjEyNjEwMjgxNTA1MjFaMA4xDDAKBgNVBAMMA3BzczCCASIwDQYJKoZIhvcNAQEBBQADggEPADCCAQoCggEBAK6A3pJQ\
    qFjpqhi8vAcHA1U9xrp9aljCeQNPPL2saBCpfvojg7ls7PSiYreuEmlqoNNec8wHGHUmlQyyCvTj86xcmL3ozEypKJ/e\
    5DaUjmetTkoSmNGvzi9/OJllpGztV+1VrkCwWgJ4tKRhRvQYQ7LmG2ghhEQO6jiy6fhjNttmeE7ew80BZQMSX3yNkUL3\
    MT/ezrI4TPsDGT0MAGWj0J+mCwxl0H3HSznhna2eRPuR2MxOeH1OZM+QKmOSohHc3t7PLV/9pSRAYr1uwZwGkS8ebc9Q\
    11y8Qj3g1fODKoXAvaErMVXDGPKNecmJOpVT9njQ+KgQGgdX+/oTE9kmuIUCAwEAAaNTMFEwHQYDVR0OBBYEFN4QJ5mx\
    YNMgDuOIhZy+mi2tvntpMB8GA1UdIwQYMBaAFN4QJ5mxYNMgDuOIhZy+mi2tvntpMA8GA1UdEwEB/wQFMAMBAf8wQgYJ\
    KoZIhvcNAQEKMDWgDzANBglghkgBZQMEAgMFAKEcMBoGCSqGSIb3DQEBCDANBglghkgBZQMEAgMFAKIEAgIAvgOCAQEA\
    kI413OTCNG5SviiO06aCCT+7O6qLCJlw3EePKvG5rfgFY5xN86BNaCIQEi+1WN2C8zq01dIT6wmjcWyiLPnDyZZvfaja\
    awp64YmpbOO64k0FI8VEXXY+k2RjObQ/ClNDX/vxE+MeHuX6y/dNVsngcF5m9mvlZ4CXdKncWFfcHJ97IVQKEBW4CQnZ\
    g1G+fW9KSLiHtlE8VJ3kCjSyw/+Xp42saLPex8K4Wc4ki4ZfJtKCc50JJWPbDH19fWtDSGlAGl/9M9MgQANQAp9RRd8P\
    TVu4MSqyvSyXWO90g7JSTVlChJUuFyZN8a4BB51hzZur5MI/+ktvma0Wve9m7BP+FQ==";
const RSA_SHA1: &str = "MIIDATCCAemgAwIBAgIUPVHdDg5GYOSD4LuQeo4wJW7QeIswDQYJKoZIhvcNAQEFBQAwDzENMAsGA1UEAwwEc2hhMTAg\
    Fw0yNjExMjExNTA1MjFaGA8yMTI2MTAyODE1MDUyMVowDzENMAsGA1UEAwwEc2hhMTCCASIwDQYJKoZIhvcNAQEBBQAD\
    ggEPADCCAQoCggEBAK6A3pJQqFjpqhi8vAcHA1U9xrp9aljCeQNPPL2saBCpfvojg7ls7PSiYreuEmlqoNNec8wHGHUm\
    lQyyCvTj86xcmL3ozEypKJ/e5DaUjmetTkoSmNGvzi9/OJllpGztV+1VrkCwWgJ4tKRhRvQYQ7LmG2ghhEQO6jiy6fhj\
    NttmeE7ew80BZQMSX3yNkUL3MT/ezrI4TPsDGT0MAGWj0J+mCwxl0H3HSznhna2eRPuR2MxOeH1OZM+QKmOSohHc3t7P\
    LV/9pSRAYr1uwZwGkS8ebc9Q11y8Qj3g1fODKoXAvaErMVXDGPKNecmJOpVT9njQ+KgQGgdX+/oTE9kmuIUCAwEAAaNT\
    MFEwHQYDVR0OBBYEFN4QJ5mxYNMgDuOIhZy+mi2tvntpMB8GA1UdIwQYMBaAFN4QJ5mxYNMgDuOIhZy+mi2tvntpMA8G\
    A1UdEwEB/wQFMAMBAf8wDQYJKoZIhvcNAQEFBQADggEBADEkftrhKswPSd9FGO+XMCRdxcEB/uBnRIfve1PUUaNZViPd\
    Ke6oVY6CQolZUtr5SEf1v0Ewj2qwAx+4jjnYGTAcufuFc56n5p1OyOar+OretuSoc4w9MZoxQ7OLaBueRVwixkUUTiSd\
    tLiIyOhXyRLeX8O1AfsUaY5fAXvGXPxH7D/0dS8qDbdjg5gl63iRM0ohnDYVdDSV3nlPkc01pHhCq8kPlAUkH6WcUoLK\
    HkLOOXJyzPqBiexFkblyk0+6Bf2JgOTUEN94OYf1IaLlbJM+s1UfSRC3Zp2K2+mrWk0oiOle8Nkxm9Su5ini7Mte1Eic\
    A9nNE9U6t6ILE7OEbgc=";

fn der(text: &str) -> Vec<u8> {
    STANDARD.decode(text).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn made(names: Vec<(DnType, DnValue)>, algorithm: &'static rcgen::SignatureAlgorithm) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for (kind, value) in names {
        params.distinguished_name.push(kind, value);
    }
    let key = KeyPair::generate_for(algorithm).unwrap();
    params.self_signed(&key).unwrap().der().to_vec()
}

#[test]
fn names_are_printed_as_openssl_prints_them_for_postgresql() {
    let subject = Subject::of(&der(ECDSA_SHA384)).unwrap();
    assert_eq!(subject.common_name.as_deref(), Some("joe+x"), "the first one");
    assert_eq!(
        subject.distinguished_name,
        "CN=second,CN=joe\\+x,serialNumber=12,1.2.3.4.5=#0C0576616C7565,\
         emailAddress=joe@example.org,OU=two,OU=\\ x=y,OU=\\#first\\ ,\
         O=\\C3\\9Cmlaut\\, Inc\\; \\<\\\"a\\\\\\\\b\\\"\\>,DC=example,DC=org,C=DE"
    );
    let subject = Subject::of(&der(MULTI_VALUED)).unwrap();
    assert_eq!(subject.distinguished_name, "CN=\\#\\ ,OU=b+CN=a,O=x");
    assert_eq!(subject.common_name.as_deref(), Some("a"));
}

#[test]
fn a_certificate_without_a_common_name_has_none() {
    let subject = Subject::of(&made(vec![], &rcgen::PKCS_ECDSA_P256_SHA256)).unwrap();
    assert_eq!(subject, Subject { common_name: None, distinguished_name: String::new() });
}

#[test]
fn every_string_type_is_read_or_refused() {
    use rcgen::string::{BmpString, PrintableString, TeletexString};
    let of = |value| {
        Subject::of(&made(vec![(DnType::OrganizationName, value)], &rcgen::PKCS_ECDSA_P256_SHA256))
            .map(|subject| subject.distinguished_name)
    };
    assert_eq!(of(DnValue::Utf8String("é\t".to_owned())).unwrap(), "O=\\C3\\A9\\09");
    assert_eq!(
        of(DnValue::PrintableString(PrintableString::try_from("a b").unwrap())).unwrap(),
        "O=a b"
    );
    assert_eq!(of(DnValue::TeletexString(TeletexString::try_from("a").unwrap())).unwrap(), "O=a");
    let bmp = || DnValue::BmpString(BmpString::try_from("aé").unwrap());
    assert_eq!(of(bmp()).unwrap(), "O=a\\C3\\A9");
    let named = made(vec![(DnType::CommonName, bmp())], &rcgen::PKCS_ECDSA_P256_SHA256);
    assert_eq!(Subject::of(&named), Err(CertificateError::NameNotText), "its bytes hold NULs");
    let nul = DnValue::Utf8String("joe\0.evil".to_owned());
    let named = made(vec![(DnType::CommonName, nul)], &rcgen::PKCS_ECDSA_P256_SHA256);
    assert_eq!(Subject::of(&named), Err(CertificateError::NameNotText));
    let long = DnValue::Utf8String("x".repeat(200));
    let odd =
        made(vec![(DnType::CustomDnType(vec![1, 2, 3, 4]), long)], &rcgen::PKCS_ECDSA_P256_SHA256);
    let printed = Subject::of(&odd).unwrap().distinguished_name;
    assert!(printed.starts_with("1.2.3.4=#0C81C87878"), "{printed}");
}

#[test]
fn a_lone_special_character_is_escaped_as_openssl_does() {
    for (text, escaped) in
        [("#", "#"), (" ", "\\ "), ("  ", "\\ \\ "), ("##", "\\##"), ("a#", "a#"), ("", "")]
    {
        let mut out = String::new();
        escape(text, &mut out);
        assert_eq!(out, escaped);
    }
}

#[test]
fn the_end_point_hash_is_that_of_the_signature() {
    let hash = |der: &[u8]| end_point_hash(der).unwrap().map(|hash| hex(&hash));
    assert_eq!(
        hash(&der(ECDSA_SHA384)).as_deref(),
        Some(
            "dd923876adb021ce0ccbcc6af6c227560e4908285520d8fe7c6f8f1d7a90e050d8c2017db7284a989ad65a7ef3dc4fa2"
        )
    );
    assert_eq!(
        hash(&der(PSS_SHA512)).as_deref(),
        Some(
            "5969b9c3677dd57c2c8be0a18ec6ff85fb8c4e6024bbe4b6e2b1d5be5e72a760\
             499f4ad418b5a999ad83a44a3ca68ac0de256b7e98cf528310fe4d29a11be0cd"
        )
    );
    assert_eq!(
        hash(&der(RSA_SHA1)).as_deref(),
        Some("3c870991809a7e1b7fbbb032649cd83661fe6cc693e96ebbac9b31925f588630"),
        "SHA-256 in place of SHA-1"
    );
    let p256 = made(vec![], &rcgen::PKCS_ECDSA_P256_SHA256);
    assert_eq!(hash(&p256).unwrap(), hex(digest::digest(&digest::SHA256, &p256).as_ref()));
    assert_eq!(hash(&made(vec![], &rcgen::PKCS_ED25519)), None, "Ed25519 has no hash to name");
}

#[test]
fn every_truncation_is_malformed() {
    let whole = der(ECDSA_SHA384);
    for length in 0..whole.len() {
        assert_eq!(Subject::of(&whole[..length]), Err(CertificateError::Malformed), "{length}");
        assert_eq!(end_point_hash(&whole[..length]), Err(CertificateError::Malformed), "{length}");
    }
    let longer = [whole.as_slice(), b"x"].concat();
    assert_eq!(Subject::of(&longer), Err(CertificateError::Malformed));
}

proptest! {
    #[test]
    fn no_certificate_panics(at in 0_usize..700, byte in any::<u8>()) {
        let mut certificate = der(ECDSA_SHA384);
        let at = at % certificate.len();
        certificate[at] = byte;
        let _ = Subject::of(&certificate);
        let _ = end_point_hash(&certificate);
    }
}
