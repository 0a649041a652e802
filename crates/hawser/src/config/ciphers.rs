//! Which ciphers and curves TLS may use, in OpenSSL's words.
//!
//! # Model       a list chooses among what is offered at all; its order says nothing: the client's
//!               order counts, as with every server that leaves it the choice
//! # Limits      of OpenSSL's language: names, groups, `A+B` (what is of both), and `!` before what
//!               is left out. `@...` and `+...` change an order there, and nothing here

use super::error::Rejected;
use super::setting::Setting;
use super::value::{Context, Raw, SettingType};

/// Ciphers of TLS 1.2: rustls's name, OpenSSL's.
const CIPHERS: &[(&str, &str)] = &[
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
];
/// Ciphers of TLS 1.3.
const CIPHERS_13: &[(&str, &str)] = &[
    ("TLS13_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
    ("TLS13_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
    ("TLS13_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256"),
];
/// Curves.
const CURVES: &[(&str, &str)] =
    &[("X25519", "X25519"), ("secp256r1", "prime256v1"), ("secp384r1", "secp384r1")];

/// Words for all that is offered: PgBouncer's, and OpenSSL's for what is sound.
const ALL: &[&str] =
    &["default", "secure", "fast", "normal", "all", "auto", "HIGH", "ECDHE", "EECDH", "kEECDH"];

/// Whether one word of OpenSSL's stands for a cipher, by its own name or by a group's.
fn names(word: &str, (rustls, openssl): (&str, &str)) -> bool {
    let is = |name: &str| word.eq_ignore_ascii_case(name);
    let group = match word {
        "AESGCM" | "AES" => openssl.contains("AES"),
        "AES128" | "AES256" | "CHACHA20" => openssl.contains(word),
        "ECDSA" | "aECDSA" => openssl.contains("ECDSA"),
        "RSA" | "aRSA" => openssl.contains("RSA"),
        "P-256" => rustls == "secp256r1",
        "P-384" => rustls == "secp384r1",
        _ => false,
    };
    group || is(rustls) || is(openssl) || ALL.iter().any(|all| is(all))
}

fn choose(text: &str, offered: &'static [(&str, &str)]) -> Result<Vec<&'static str>, Rejected> {
    let (mut chosen, mut left_out) = (Vec::new(), Vec::new());
    for word in text.split([':', ',', ' ']).filter(|word| !word.is_empty()) {
        if word.starts_with(['@', '+']) || word.eq_ignore_ascii_case("MEDIUM") {
            continue; // an order, and a group of which nothing is offered
        }
        let name = word.trim_start_matches(['!', '-']);
        let meant: Vec<_> = offered
            .iter()
            .filter(|cipher| name.split('+').all(|part| names(part, **cipher)))
            .map(|(rustls, _)| *rustls)
            .collect();
        if name != word {
            left_out.extend(meant); // what is not offered is left out as it is
        } else if meant.is_empty() {
            let known: Vec<_> = offered.iter().map(|(_, openssl)| *openssl).collect();
            let message = format!("`{word}` is not offered: there is {}", known.join(", "));
            return Err(Rejected::new(message));
        } else {
            chosen.extend(meant);
        }
    }
    chosen.retain(|name| !left_out.contains(name));
    if chosen.is_empty() {
        return Err(Rejected::new("nothing is left of what is offered".to_owned()));
    }
    Ok(chosen)
}

macro_rules! chosen_of {
    ($( $(#[$doc:meta])* $Name:ident: $offered:ident, $kind:literal; )+) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $Name {
            written: String,
            chosen: Vec<&'static str>,
        }

        impl $Name {
            /// Whether this may be used, by rustls's name of it.
            #[must_use]
            pub fn allows(&self, name: &str) -> bool {
                self.chosen.contains(&name)
            }
        }

        impl Default for $Name {
            /// All that are offered.
            fn default() -> Self {
                let chosen = $offered.iter().map(|(rustls, _)| *rustls).collect();
                Self { written: String::new(), chosen }
            }
        }

        impl SettingType for $Name {
            const KIND: &'static str = $kind;

            fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
                let (Raw::String(text) | Raw::Text(text)) = raw else {
                    return Err(raw.instead_of::<Self>());
                };
                // PgBouncer's empty list stands for its default.
                let words = if text.is_empty() { "default" } else { text };
                Ok(Self { written: (*text).to_owned(), chosen: choose(words, $offered)? })
            }

            fn show(&self, _: &Setting) -> String {
                self.written.clone()
            }
        }
    )+ };
}

chosen_of! {
    /// Ciphers of TLS 1.2.
    TlsCiphers: CIPHERS, "ciphers in OpenSSL's syntax";
    /// Ciphers of TLS 1.3.
    Tls13Ciphers: CIPHERS_13, "ciphers of TLS 1.3";
    /// Curves of the key exchange.
    TlsCurves: CURVES, "one or more of auto, X25519, prime256v1, secp384r1";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_openssl_choose_among_what_is_offered() {
        let count = |text: &str| choose(text, CIPHERS).map(|chosen| chosen.len()).ok();
        for (text, expected) in [
            ("default", Some(6)),
            ("HIGH:MEDIUM:+3DES:!aNULL", Some(6)),
            ("ECDHE+AESGCM:!aECDSA", Some(2)),
            ("ECDHE-RSA-AES128-GCM-SHA256", Some(1)),
            ("HIGH:!AES128:@STRENGTH", Some(4)),
            ("ECDHE-RSA-CHACHA20-POLY1305,tls_ecdhe_rsa_with_aes_256_gcm_sha384", Some(2)),
            ("AES128-SHA", None),
            ("HIGH:!HIGH", None),
            ("", None),
        ] {
            assert_eq!(count(text), expected, "{text}");
        }
        assert_eq!(choose("P-256:X25519", CURVES).unwrap(), ["secp256r1", "X25519"]);
        assert!(choose("none", CURVES).is_err());
        let refused = choose("TLS_AES_128_CCM_SHA256", CIPHERS_13).unwrap_err();
        assert!(refused.message.contains("there is TLS_AES_256_GCM_SHA384"), "{}", refused.message);
    }
}
