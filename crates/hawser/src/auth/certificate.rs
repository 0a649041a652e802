//! What a login needs of a certificate: the subject's names as PostgreSQL sees them, and the hash to bind a channel to.
//!
//! # Model
//! - Common name: the bytes of the subject's first CN (`be-secure-openssl.c`, `X509_NAME_get_text_by_NID`).
//! - Distinguished name: OpenSSL's `XN_FLAG_RFC2253`: the last component first, parted by `,` (or `+` inside of one), names
//!   of attributes as OpenSSL abbreviates them, special characters after a backslash, everything
//!   that is not printable ASCII as `\XX` for each byte of UTF-8, and attributes without a name as
//!   `OID=#HEX` of their DER.
//! - tls-server-end-point (RFC 5929, section 4.1): the hash of the whole certificate by the hash of its signature
//!   algorithm, with SHA-256 in place of MD5 and SHA-1.
//!
//! # Limits
//! Signatures without a hash of their own (Ed25519, Ed448) have no tls-server-end-point, and OpenSSL gives PostgreSQL none:
//! such a connection has no channel binding. SHA-224 is missing too.
//! Attribute names beyond the common ones are printed as numbers; a map of pg_ident.conf can name them so.

use ring::digest;
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, X509Certificate};
use x509_parser::signature_algorithm::RsaSsaPssParams;

#[cfg(test)]
mod tests;

/// Why nothing can be said of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// It is no X.509 certificate in DER.
    #[error("the certificate is not X.509 in DER form")]
    Malformed,
    /// A name that cannot be text: not UTF-8, or with a NUL inside, which has been used to pass for another name.
    #[error("a name in the certificate's subject is not text or contains embedded null")]
    NameNotText,
}

/// The names of a certificate's subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The first common name, if there is one: `clientname=CN`.
    pub common_name: Option<String>,
    /// The whole name: `clientname=DN`.
    pub distinguished_name: String,
}

impl Subject {
    /// Reads them from a certificate in DER, which the TLS library has verified.
    pub fn of(der: &[u8]) -> Result<Self, CertificateError> {
        let certificate = parse(der)?;
        let subject = certificate.subject();
        let common_name = match subject.iter_common_name().next() {
            Some(attribute) => Some(common_name(attribute.as_slice())?),
            None => None,
        };
        let mut distinguished_name = String::new();
        let parts: Vec<_> = subject.iter_rdn().collect();
        for part in parts.into_iter().rev() {
            let attributes: Vec<_> = part.iter().collect();
            for (index, attribute) in attributes.into_iter().rev().enumerate() {
                if !distinguished_name.is_empty() {
                    distinguished_name.push(if index == 0 { ',' } else { '+' });
                }
                print_attribute(attribute, &mut distinguished_name)?;
            }
        }
        Ok(Self { common_name, distinguished_name })
    }
}

/// The tls-server-end-point hash of a certificate in DER; `None` where its signature algorithm has none.
pub fn end_point_hash(der: &[u8]) -> Result<Option<Vec<u8>>, CertificateError> {
    let certificate = parse(der)?;
    let algorithm = signature_hash(&certificate);
    Ok(algorithm.map(|algorithm| digest::digest(algorithm, der).as_ref().to_vec()))
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, CertificateError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(CertificateError::Malformed),
    }
}

fn signature_hash(certificate: &X509Certificate<'_>) -> Option<&'static digest::Algorithm> {
    let signature = &certificate.signature_algorithm;
    match signature.algorithm.to_id_string().as_str() {
        // RSA with MD5 and SHA-1, ECDSA and DSA with SHA-1
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.3.14.3.2.29"
        | "1.2.840.10045.4.1"
        | "1.2.840.10040.4.3" => Some(&digest::SHA256),
        // RSA, ECDSA and DSA with SHA-256, -384, -512
        "1.2.840.113549.1.1.11" | "1.2.840.10045.4.3.2" | "2.16.840.1.101.3.4.3.2" => {
            Some(&digest::SHA256)
        }
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" | "2.16.840.1.101.3.4.3.3" => {
            Some(&digest::SHA384)
        }
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" | "2.16.840.1.101.3.4.3.4" => {
            Some(&digest::SHA512)
        }
        // RSASSA-PSS names its hash in its parameters.
        "1.2.840.113549.1.1.10" => {
            let parameters = RsaSsaPssParams::try_from(signature.parameters.as_ref()?).ok()?;
            match parameters.hash_algorithm_oid().to_id_string().as_str() {
                // SHA-1, the default, and SHA-256
                "1.3.14.3.2.26" | "2.16.840.1.101.3.4.2.1" => Some(&digest::SHA256),
                "2.16.840.1.101.3.4.2.2" => Some(&digest::SHA384),
                "2.16.840.1.101.3.4.2.3" => Some(&digest::SHA512),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The bytes as they stand, whatever the string's type: a BMPString with its NULs is refused, as in PostgreSQL.
fn common_name(bytes: &[u8]) -> Result<String, CertificateError> {
    match std::str::from_utf8(bytes) {
        Ok(name) if !name.contains('\0') => Ok(name.to_owned()),
        _ => Err(CertificateError::NameNotText),
    }
}

/// OpenSSL's short names.
fn short_name(oid: &str) -> Option<&'static str> {
    Some(match oid {
        "2.5.4.3" => "CN",
        "2.5.4.4" => "SN",
        "2.5.4.5" => "serialNumber",
        "2.5.4.6" => "C",
        "2.5.4.7" => "L",
        "2.5.4.8" => "ST",
        "2.5.4.9" => "street",
        "2.5.4.10" => "O",
        "2.5.4.11" => "OU",
        "2.5.4.12" => "title",
        "2.5.4.13" => "description",
        "2.5.4.15" => "businessCategory",
        "2.5.4.16" => "postalAddress",
        "2.5.4.17" => "postalCode",
        "2.5.4.18" => "postOfficeBox",
        "2.5.4.20" => "telephoneNumber",
        "2.5.4.41" => "name",
        "2.5.4.42" => "GN",
        "2.5.4.43" => "initials",
        "2.5.4.44" => "generationQualifier",
        "2.5.4.45" => "x500UniqueIdentifier",
        "2.5.4.46" => "dnQualifier",
        "2.5.4.51" => "houseIdentifier",
        "2.5.4.65" => "pseudonym",
        "2.5.4.72" => "role",
        "2.5.4.97" => "organizationIdentifier",
        "0.9.2342.19200300.100.1.1" => "UID",
        "0.9.2342.19200300.100.1.3" => "mail",
        "0.9.2342.19200300.100.1.9" => "host",
        "0.9.2342.19200300.100.1.25" => "DC",
        "0.9.2342.19200300.100.1.44" => "uid",
        "1.2.840.113549.1.9.1" => "emailAddress",
        "1.2.840.113549.1.9.2" => "unstructuredName",
        "1.2.840.113549.1.9.8" => "unstructuredAddress",
        "1.3.6.1.4.1.311.60.2.1.1" => "jurisdictionL",
        "1.3.6.1.4.1.311.60.2.1.2" => "jurisdictionST",
        "1.3.6.1.4.1.311.60.2.1.3" => "jurisdictionC",
        _ => return None,
    })
}

fn print_attribute(
    attribute: &AttributeTypeAndValue<'_>,
    out: &mut String,
) -> Result<(), CertificateError> {
    let oid = attribute.attr_type().to_id_string();
    let value = attribute.attr_value();
    let tag = value.header.tag().0;
    let text = match short_name(&oid) {
        Some(_) if value.header.is_universal() => decode(tag, value.data)?,
        _ => None,
    };
    out.push_str(short_name(&oid).unwrap_or(&oid));
    out.push('=');
    match text {
        Some(text) => escape(&text, out),
        None => {
            out.push('#');
            let identifier = u8::try_from(tag).ok().filter(|&tag| tag < 31);
            let identifier = identifier.ok_or(CertificateError::NameNotText)?
                | u8::from(value.header.is_constructed()) << 5
                | (value.header.class() as u8) << 6;
            for byte in std::iter::once(identifier)
                .chain(der_length(value.data.len()))
                .chain(value.data.iter().copied())
            {
                push_hex(byte, out);
            }
        }
    }
    Ok(())
}

/// The text of a string by the number of its type, or `None` for other types, which are printed in hex.
fn decode(tag: u32, data: &[u8]) -> Result<Option<String>, CertificateError> {
    const UTF8: u32 = 12;
    const UNIVERSAL: u32 = 28;
    const BMP: u32 = 30;
    Ok(Some(match tag {
        UTF8 => String::from_utf8(data.to_vec()).map_err(|_| CertificateError::NameNotText)?,
        // Numeric, printable, T61, IA5 and visible strings and the two times: OpenSSL takes each byte for a character.
        18 | 19 | 20 | 22 | 23 | 24 | 26 => data.iter().map(|&byte| char::from(byte)).collect(),
        UNIVERSAL => wide(data, 4)?,
        BMP => wide(data, 2)?,
        _ => return Ok(None),
    }))
}

/// Big-endian code points of `width` bytes.
fn wide(data: &[u8], width: usize) -> Result<String, CertificateError> {
    if !data.len().is_multiple_of(width) {
        return Err(CertificateError::NameNotText);
    }
    data.chunks_exact(width)
        .map(|bytes| bytes.iter().fold(0, |point: u32, &byte| point << 8 | u32::from(byte)))
        .map(|point| char::from_u32(point).ok_or(CertificateError::NameNotText))
        .collect()
}

fn escape(text: &str, out: &mut String) {
    let last = text.len().saturating_sub(1);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => out.extend(['\\', char::from(byte)]),
            b' ' if index == 0 || index == last => out.push_str("\\ "),
            // A lone # is the last character, to OpenSSL, and only a space is special there.
            b'#' if index == 0 && index != last => out.push_str("\\#"),
            0x20..=0x7e => out.push(char::from(byte)),
            _ => {
                out.push('\\');
                push_hex(byte, out);
            }
        }
    }
}

fn push_hex(byte: u8, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend([byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)])));
}

/// The DER form of a length.
fn der_length(length: usize) -> Vec<u8> {
    match u8::try_from(length) {
        Ok(short @ 0..=0x7f) => vec![short],
        _ => {
            let bytes = length.to_be_bytes();
            let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
            let bytes = &bytes[zeros..];
            // At most eight bytes follow.
            let mut form = vec![0x80 | bytes.len() as u8];
            form.extend_from_slice(bytes);
            form
        }
    }
}
