//! Who an end is: an Ed25519 key, in a file that its user alone can read; and the keys of peers.
//!
//! # Model
//! A public key is written `ed25519:` and the base64 of its 32 bytes. TLS carries it as a raw public key
//! (RFC 7250): there is no name, no authority and no date in it, so nothing but the key is compared.
//!
//! # Why not
//! Self-signed certificates, compared by fingerprint: they prove the same, and need a library that
//! makes them, a useless validity, and names that nothing reads.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// The beginning of a SubjectPublicKeyInfo of Ed25519 (RFC 8410, section 4); the key follows.
const SPKI_HEAD: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const PREFIX: &str = "ed25519:";
/// A file of keys that is longer is another file.
const FILE_BYTES_MAX: u64 = 1 << 20;
const LINE_CHARACTERS: usize = 64;

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Reads `ed25519:BASE64`.
    ///
    /// # Errors
    /// What it should look like.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("a public key is {PREFIX} and 44 characters, not \"{text}\"");
        let encoded = text.trim().strip_prefix(PREFIX).ok_or_else(wrong)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| wrong())?;
        bytes.try_into().map(Self).map_err(|_| wrong())
    }

    /// As TLS carries it (RFC 7250).
    #[must_use]
    pub fn to_spki(self) -> Vec<u8> {
        [&SPKI_HEAD[..], &self.0].concat()
    }

    /// Of what TLS carries; `None` if it is no Ed25519 key.
    #[must_use]
    pub fn of_spki(bytes: &[u8]) -> Option<Self> {
        let key = bytes.strip_prefix(&SPKI_HEAD)?;
        key.try_into().ok().map(Self)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A key of this end.
pub struct Key {
    der: PrivatePkcs8KeyDer<'static>,
    public: PublicKey,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.public)
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("\"{path}\": {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others may read it.
    #[error("\"{path}\" has mode {mode:o}: others may read the key; chmod 600 it")]
    Open {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It holds something else.
    #[error("\"{path}\": {reason}")]
    NotAKey {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl Key {
    /// Makes a key and writes it to a new file.
    ///
    /// # Errors
    /// [`KeyError::File`]; a file that is there already stays as it is.
    pub fn generate(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::File { path: path.to_owned(), source };
        let text = Self::new_pem().map_err(failed)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        Self::load(path)
    }

    /// A new key, as its file has it.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn new_pem() -> io::Result<String> {
        let random = ring::rand::SystemRandom::new();
        let document = Ed25519KeyPair::generate_pkcs8(&random)
            .map_err(|_| io::Error::other("the kernel gives no random bytes"))?;
        let mut text = "-----BEGIN PRIVATE KEY-----\n".to_owned();
        let encoded = STANDARD.encode(document.as_ref());
        for line in encoded.as_bytes().chunks(LINE_CHARACTERS) {
            text += &String::from_utf8_lossy(line);
            text.push('\n');
        }
        Ok(text + "-----END PRIVATE KEY-----\n")
    }

    /// Reads a key.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::File { path: path.to_owned(), source };
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Open { path: path.to_owned(), mode });
        }
        let text = fs::read(path).map_err(failed)?;
        Self::of_pem(&text).map_err(|reason| KeyError::NotAKey { path: path.to_owned(), reason })
    }

    /// The key that a file has.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_pem(text: &[u8]) -> Result<Self, String> {
        let key = PrivateKeyDer::from_pem_slice(text).map_err(|error| error.to_string())?;
        let PrivateKeyDer::Pkcs8(der) = key else {
            return Err("it is no key in PKCS #8".to_owned());
        };
        let pair = Ed25519KeyPair::from_pkcs8(der.secret_pkcs8_der())
            .map_err(|error| format!("it is no Ed25519 key: {error}"))?;
        let public = pair.public_key().as_ref().try_into().map(PublicKey);
        let public = public.map_err(|_| "its public key has no 32 bytes".to_owned())?;
        Ok(Self { der, public })
    }

    /// What peers know it by.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// The secret.
    #[must_use]
    pub fn der(&self) -> &PrivatePkcs8KeyDer<'static> {
        &self.der
    }
}

/// Reads a file of public keys: one a line, with a comment after it or after `#`.
///
/// # Errors
/// The file and the line that is wrong.
pub fn read_peers(path: &Path) -> Result<Vec<PublicKey>, String> {
    let mut text = String::new();
    let opened =
        File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
    opened.map_err(|error| format!("\"{}\": {error}", path.display()))?;
    let mut keys = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words = line.split('#').next().unwrap_or("");
        let Some(word) = words.split_whitespace().next() else { continue };
        let key = PublicKey::parse(word)
            .map_err(|error| format!("\"{}\", line {}: {error}", path.display(), number + 1))?;
        keys.push(key);
    }
    Ok(keys)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hawser_sys::random::random_u64;

    pub(in crate::drive) fn throw_away() -> Key {
        let path = std::env::temp_dir().join(format!("hawser-link-{:x}.key", random_u64()));
        let key = Key::generate(&path).unwrap();
        fs::remove_file(&path).unwrap();
        key
    }

    #[test]
    fn a_key_is_written_for_its_user_alone_and_read_again() {
        let path = std::env::temp_dir().join(format!("hawser-link-{:x}.key", random_u64()));
        let made = Key::generate(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Key::load(&path).unwrap().public(), made.public());
        assert!(matches!(Key::generate(&path), Err(KeyError::File { .. })), "it is not replaced");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Key::load(&path), Err(KeyError::Open { mode: 0o640, .. })));
        fs::remove_file(&path).unwrap();
        let text = made.public().to_string();
        assert_eq!(PublicKey::parse(&text), Ok(made.public()));
        assert_eq!(PublicKey::of_spki(&made.public().to_spki()), Some(made.public()));
        assert!(PublicKey::parse(&text[1..]).is_err() && PublicKey::parse("ed25519:AAAA").is_err());
    }

    #[test]
    fn a_file_of_keys_has_comments_and_its_errors_have_lines() {
        let path = std::env::temp_dir().join(format!("hawser-link-{:x}.keys", random_u64()));
        let (one, two) = (throw_away().public(), throw_away().public());
        fs::write(&path, format!("# near ends\n{one} paris\n\n{two} # rome\n")).unwrap();
        assert_eq!(read_peers(&path), Ok(vec![one, two]));
        fs::write(&path, format!("{one}\nnonsense\n")).unwrap();
        assert!(read_peers(&path).unwrap_err().contains("line 2"));
        fs::remove_file(&path).unwrap();
    }
}
