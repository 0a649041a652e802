//! The `md5` method: what a client answers to a salt, and how a server checks it.
//!
//! # Model
//! stored = hex(md5(password ‖ user)); answer = "md5" ‖ hex(md5(stored ‖ salt)).
//! The stored hash is as good as the password: it suffices to log in.
//!
//! # Why not
//! SCRAM is better in every way; this exists for servers and secrets that have nothing else.

use md5::{Digest, Md5};
use subtle::ConstantTimeEq;

/// The salt of one login.
pub type Salt = [u8; 4];

/// The stored form of an md5 password: 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, derive_more::Debug)]
#[debug("Md5Hash(..)")]
pub struct Md5Hash([u8; 32]);

impl Md5Hash {
    /// The hash that PostgreSQL stores, without its prefix `md5`.
    pub fn of_password(user: &str, password: &[u8]) -> Self {
        Self(hex(Md5::new().chain_update(password).chain_update(user)))
    }

    /// Reads `md5` and 32 lower-case hexadecimal digits; `None` for anything else.
    pub fn parse(stored: &str) -> Option<Self> {
        let digits: [u8; 32] = stored.strip_prefix("md5")?.as_bytes().try_into().ok()?;
        digits
            .iter()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
            .then_some(Self(digits))
    }

    /// The form that PostgreSQL stores: a secret, never for a log.
    pub fn to_stored(&self) -> String {
        format!("md5{}", String::from_utf8_lossy(&self.0))
    }

    /// What a client answers to `salt`: 35 bytes, without the NUL that ends it in a PasswordMessage.
    pub fn answer(&self, salt: Salt) -> [u8; 35] {
        let mut answer = *b"md5................................";
        answer[3..].copy_from_slice(&hex(Md5::new().chain_update(self.0).chain_update(salt)));
        answer
    }

    /// Whether `answer` is the one to `salt`.
    pub fn accepts(&self, salt: Salt, answer: &[u8]) -> bool {
        self.answer(salt).as_slice().ct_eq(answer).into()
    }

    /// Whether this is the hash of `password`.
    pub fn is_of(&self, user: &str, password: &[u8]) -> bool {
        Self::of_password(user, password).0.ct_eq(&self.0).into()
    }
}

fn hex(hash: Md5) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (pair, byte) in text.chunks_exact_mut(2).zip(hash.finalize()) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_is_that_of_postgresql() {
        // PostgreSQL 15: SET password_encryption = md5; CREATE ROLE joe5 PASSWORD 'secret'
        let stored = Md5Hash::parse("md538a409ffa307b66b70440873330f7bf7").unwrap();
        let hash = Md5Hash::of_password("joe5", b"secret");
        assert!(hash == stored);
        assert!(hash.is_of("joe5", b"secret"));
        assert!(!hash.is_of("joe5", b"Secret"));
        assert!(!hash.is_of("jo", b"secret"));
    }

    #[test]
    fn only_the_answer_to_this_salt_is_accepted() {
        let hash = Md5Hash::of_password("joe", b"secret");
        let answer = hash.answer([1, 2, 3, 4]);
        assert!(hash.accepts([1, 2, 3, 4], &answer));
        assert!(!hash.accepts([1, 2, 3, 5], &answer));
        for length in 0..answer.len() {
            assert!(!hash.accepts([1, 2, 3, 4], &answer[..length]));
        }
        assert!(!hash.accepts([1, 2, 3, 4], &[answer.as_slice(), b"\0"].concat()));
    }

    #[test]
    fn what_is_not_a_hash_is_not_read_as_one() {
        for text in ["", "md5", "md5x", "MD52f78a31f64e8d9bd7f26e6f2cc1a5d0b"] {
            assert_eq!(Md5Hash::parse(text), None, "{text}");
        }
        assert_eq!(Md5Hash::parse("md52F78a31f64e8d9bd7f26e6f2cc1a5d0b"), None, "upper case");
        assert_eq!(Md5Hash::parse("md52f78a31f64e8d9bd7f26e6f2cc1a5d0bb"), None, "too long");
    }
}
