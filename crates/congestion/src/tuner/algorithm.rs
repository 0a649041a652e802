//! The name of a congestion control algorithm, as the kernel knows it.

use std::fmt;

/// `TCP_CA_NAME_MAX` with its NUL (include/net/tcp.h).
const NAME_BYTES_MAX: usize = 15;

/// What a loss-based flow on a lossy path may be given, best first: goodput over 217 ms, 95 Mbit/s,
/// 0.034 % loss was 66.7, 25.7, 23.1, 15.2 and 12.7 Mbit/s, against cubic's 7.7.
const CANDIDATES: [&str; 5] = ["bbr", "illinois", "hybla", "scalable", "westwood"];

/// A congestion control algorithm.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Algorithm([u8; NAME_BYTES_MAX]);

impl Algorithm {
    /// The algorithm of this name. `None` if no kernel can have one: it is empty, longer than 15
    /// bytes, or has other characters than letters, digits, `-` and `_`.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.as_bytes().iter().all(is_allowed)
        {
            return None;
        }
        let mut bytes = [0; NAME_BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(Self(bytes))
    }

    /// Its name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES_MAX);
        // `new` takes ASCII only.
        std::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }

    /// Whether it takes each loss for congestion, and so is slow where packets are lost by chance.
    /// BBR (RFC draft-ietf-ccwg-bbr) goes by what arrives, whatever its version.
    #[must_use]
    pub fn is_loss_based(&self) -> bool {
        !self.as_str().starts_with("bbr")
    }

    /// What to try in place of `default` where packets are lost by chance, of what the kernel lets
    /// this process use: best first. BBR alone where it is: none of the others comes near. Nothing
    /// where the default is not loss-based.
    #[must_use]
    pub fn candidates(default: Self, allowed: &[Self]) -> Vec<Self> {
        if !default.is_loss_based() {
            return Vec::new();
        }
        let known = CANDIDATES.iter().filter_map(|name| Self::new(name));
        let mut found: Vec<Self> =
            known.filter(|one| *one != default && allowed.contains(one)).collect();
        if found.first().is_some_and(|first| !first.is_loss_based()) {
            found.truncate(1);
        }
        found
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn algorithms(names: &[&str]) -> Vec<Algorithm> {
        names.iter().map(|name| Algorithm::new(name).unwrap()).collect()
    }

    #[test]
    fn names_are_those_that_a_kernel_can_have() {
        assert_eq!(Algorithm::new("cubic").unwrap().as_str(), "cubic");
        assert_eq!(Algorithm::new("abcdefghijklmno").unwrap().as_str(), "abcdefghijklmno");
        for name in ["", "abcdefghijklmnop", "bbr\0", "a b", "cübic"] {
            assert_eq!(Algorithm::new(name), None, "{name:?}");
        }
    }

    #[test]
    fn candidates_are_the_allowed_ones_in_order_and_bbr_alone() {
        let cubic = Algorithm::new("cubic").unwrap();
        let allowed = algorithms(&["reno", "hybla", "illinois", "cubic"]);
        assert_eq!(Algorithm::candidates(cubic, &allowed), algorithms(&["illinois", "hybla"]));
        let allowed = algorithms(&["reno", "hybla", "bbr"]);
        assert_eq!(Algorithm::candidates(cubic, &allowed), algorithms(&["bbr"]));
        let bbr = Algorithm::new("bbr").unwrap();
        assert!(Algorithm::candidates(bbr, &allowed).is_empty());
        assert!(Algorithm::candidates(cubic, &algorithms(&["reno", "cubic"])).is_empty());
    }
}
