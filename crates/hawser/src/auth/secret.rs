//! What is known of a user's password, and until when it holds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use subtle::ConstantTimeEq;

use super::hba::Method;
use super::md5::{Md5Hash, Salt};
use super::scram::{self, Account, MockNonce, ScramVerifier};

/// A user's secret: what `pg_authid.rolpassword`, a users file or a configuration holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret {
    /// The password itself: logs in anywhere.
    Plain(Password),
    /// The hash of the md5 method: logs in by md5 only.
    Md5(Md5Hash),
    /// A SCRAM verifier: checks clients, and logs in by pass-through only.
    Scram(ScramVerifier),
    /// No password: a login with one fails.
    None,
}

/// A password in plain text, which is never printed.
#[derive(Clone, derive_more::Debug)]
#[debug("Password(..)")]
pub struct Password(Box<[u8]>);

impl Password {
    /// The bytes of the password, in no known encoding.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Password {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Password {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl PartialEq for Password {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Password {}

/// A text that begins as a SCRAM verifier but is none. Taken as a plain password, it would hide a
/// typing error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid SCRAM secret: it must be SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY, with everything \
     but ITERATIONS in base64"
)]
pub struct BrokenVerifier;

impl Secret {
    /// Reads the text of `pg_authid.rolpassword`, or of a users file. Nothing, for NULL and for an empty text.
    pub fn parse(text: Option<&str>) -> Result<Self, BrokenVerifier> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Self::None) };
        if let Some(hash) = Md5Hash::parse(text) {
            return Ok(Self::Md5(hash));
        }
        if text.starts_with("SCRAM-SHA-256$") {
            return ScramVerifier::parse(text).map(Self::Scram).ok_or(BrokenVerifier);
        }
        Ok(Self::Plain(text.into()))
    }

    /// Whether `password`, sent in clear text, is `user`'s. Takes as long as PBKDF2, whatever the secret is, so that the
    /// time does not tell users that exist from others. Not on an event loop.
    pub fn accepts_password(&self, user: &str, password: &[u8], mock: &MockNonce) -> bool {
        let account = match self {
            Self::Scram(verifier) => Account::known(verifier.clone()),
            Self::Plain(_) | Self::Md5(_) | Self::None => Account::unknown(user, mock),
        };
        let by_scram = scram::verify_password(&account, password).is_some();
        let by_text = match self {
            Self::Plain(own) => own.as_bytes().ct_eq(password).into(),
            Self::Md5(hash) => hash.is_of(user, password),
            Self::Scram(_) | Self::None => false,
        };
        by_scram | by_text
    }
}

impl Secret {
    /// Whether `answer` is `user`'s answer to `salt` by the md5 method. The same work for every kind of secret.
    pub fn accepts_md5(&self, user: &str, salt: Salt, answer: &[u8]) -> bool {
        let (hash, known) = match self {
            Self::Plain(password) => (Md5Hash::of_password(user, password.as_bytes()), true),
            Self::Md5(hash) => (*hash, true),
            Self::Scram(_) | Self::None => (Md5Hash::of_password(user, b""), false),
        };
        hash.accepts(salt, answer) & known
    }
}

/// How passwords are stored here, in the words of PostgreSQL's `password_encryption`. It decides what `md5` asks of
/// users whose secret does not decide it, above all of those who do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PasswordEncryption {
    /// `md5`
    Md5,
    /// `scram-sha-256`, PostgreSQL's default.
    #[default]
    ScramSha256,
}

/// What a method that works with passwords asks the client for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Challenge {
    /// AuthenticationCleartextPassword
    Cleartext,
    /// AuthenticationMD5Password
    Md5,
    /// AuthenticationSASL
    Scram,
}

impl Challenge {
    /// `md5` means SCRAM where the stored secret is SCRAM, as in PostgreSQL, and md5 where it can be:
    /// programs for which it is chosen know nothing else. PostgreSQL never has plain passwords;
    /// PgBouncer asks for md5 of those. Where nothing is stored, `encryption` decides. `None` for
    /// methods without a password.
    pub fn of(method: Method, secret: &Secret, encryption: PasswordEncryption) -> Option<Self> {
        match method {
            Method::Password => Some(Self::Cleartext),
            Method::ScramSha256 => Some(Self::Scram),
            Method::Md5 => Some(match (secret, encryption) {
                (Secret::Plain(_) | Secret::Md5(_), _) => Self::Md5,
                (Secret::Scram(_), _) => Self::Scram,
                (Secret::None, PasswordEncryption::Md5) => Self::Md5,
                (Secret::None, PasswordEncryption::ScramSha256) => Self::Scram,
            }),
            Method::Trust
            | Method::Reject
            | Method::Cert
            | Method::Peer
            | Method::Ldap
            | Method::Oauth
            | Method::Pam => None,
        }
    }
}

/// Until when a password holds: `VALID UNTIL` of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidUntil {
    /// NULL or `infinity`.
    Forever,
    /// `-infinity`: it never held.
    Never,
    /// Up to and including this time, in microseconds since 1970-01-01 00:00 UTC. PostgreSQL counts from
    /// 2000 and so reaches a little further than 64 bits from 1970.
    Micros(i128),
}

/// A VALID UNTIL that cannot be read. The login must fail: it may have passed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read \"{0}\" as the time until which a password is valid: it must be a timestamptz as DateStyle \
     ISO prints it (2030-01-31 12:00:00+01), infinity, -infinity, or seconds since 1970"
)]
pub struct BadValidUntil(String);

const MICROS_PER_SECOND: i128 = 1_000_000;

impl ValidUntil {
    /// Reads a `timestamptz` as the server prints it under DateStyle ISO, or seconds since 1970
    /// (`extract(epoch from rolvaliduntil)`). `None` stands for NULL.
    pub fn parse(text: Option<&str>) -> Result<Self, BadValidUntil> {
        let Some(text) = text.map(str::trim) else { return Ok(Self::Forever) };
        if text.eq_ignore_ascii_case("infinity") {
            return Ok(Self::Forever);
        }
        if text.eq_ignore_ascii_case("-infinity") {
            return Ok(Self::Never);
        }
        epoch_seconds(text)
            .or_else(|| timestamp(text))
            .map(Self::Micros)
            .ok_or_else(|| BadValidUntil(text.chars().take(64).collect()))
    }

    /// Whether the password has ceased to hold at `now`.
    pub fn has_passed(self, now: SystemTime) -> bool {
        match self {
            Self::Forever => false,
            Self::Never => true,
            Self::Micros(until) => {
                let now = match now.duration_since(UNIX_EPOCH) {
                    Ok(after) => micros(after),
                    Err(before) => -micros(before.duration()),
                };
                until < now
            }
        }
    }
}

fn micros(duration: Duration) -> i128 {
    i128::try_from(duration.as_micros()).unwrap_or(i128::MAX)
}

/// `-?digits[.digits]`
fn epoch_seconds(text: &str) -> Option<i128> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let (seconds, fraction) = split_fraction(text)?;
    Some(sign * (number(seconds, 1..=15)? * MICROS_PER_SECOND + fraction_micros(fraction)?))
}

/// `YYYY-MM-DD HH:MM:SS[.ffffff]+HH[:MM[:SS]][ BC]`
fn timestamp(text: &str) -> Option<i128> {
    let (text, before_christ) = match text.strip_suffix(" BC") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.split('-');
    let year = number(date.next()?, 4..=6)?;
    let (month, day) = (number(date.next()?, 2..=2)?, number(date.next()?, 2..=2)?);
    if date.next().is_some() || year == 0 {
        return None;
    }
    // The year before 1 is 1 BC.
    let year = if before_christ { 1 - year } else { year };
    if !(1..=12).contains(&month) || !(1..=days_in_month(year, month)).contains(&day) {
        return None;
    }

    let (clock, zone) = match time.strip_suffix('Z') {
        Some(clock) => (clock, 0),
        None => {
            let at = time.find(['+', '-'])?;
            let sign = if time[at..].starts_with('+') { 1 } else { -1 };
            (&time[..at], sign * clock_seconds(&time[at + 1..], 1..=3, 15)?)
        }
    };
    let (clock, fraction) = split_fraction(clock)?;
    let seconds =
        days_from_epoch(year, month, day) * 86_400 + clock_seconds(clock, 3..=3, 24)? - zone;
    Some(seconds * MICROS_PER_SECOND + fraction_micros(fraction)?)
}

/// `HH[:MM[:SS]]` with as many parts as `parts` allows, in seconds.
fn clock_seconds(
    text: &str,
    parts: std::ops::RangeInclusive<usize>,
    hours_max: i128,
) -> Option<i128> {
    let limits = [hours_max, 59, 60];
    let mut seconds = 0;
    let mut count = 0;
    for part in text.split(':') {
        let limit = *limits.get(count)?;
        let value = number(part, 2..=2).filter(|&value| value <= limit)?;
        seconds += value * [3_600, 60, 1][count];
        count += 1;
    }
    parts.contains(&count).then_some(seconds)
}

fn number(digits: &str, length: std::ops::RangeInclusive<usize>) -> Option<i128> {
    let digits_only = digits.bytes().all(|byte| byte.is_ascii_digit());
    if digits_only && length.contains(&digits.len()) { digits.parse().ok() } else { None }
}

/// What stands before and after the point; "0" after it where there is none.
fn split_fraction(text: &str) -> Option<(&str, &str)> {
    match text.split_once('.') {
        Some((_, "")) => None,
        Some(parts) => Some(parts),
        None => Some((text, "0")),
    }
}

/// The digits after the point; those past microseconds are dropped.
fn fraction_micros(digits: &str) -> Option<i128> {
    number(digits, 1..=30)?;
    let kept: String = digits.chars().chain("000000".chars()).take(6).collect();
    kept.parse().ok()
}

fn is_leap(year: i128) -> bool {
    year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0)
}

fn days_in_month(year: i128, month: i128) -> i128 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar, as PostgreSQL counts.
fn days_from_epoch(year: i128, month: i128, day: i128) -> i128 {
    // Years are counted from March, so that the leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    const MARCH_0000_TO_1970: i128 = 719_468;
    days + (153 * month + 2) / 5 + day - 1 - MARCH_0000_TO_1970
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // PostgreSQL 15: CREATE ROLE joe PASSWORD 'secret'
    const VERIFIER: &str = "SCRAM-SHA-256$4096:1k4G5mwcAQt0xMoB1Np7bQ==\
        $4w4Xvj+gywGWTpcvoe0dZuLLuhwqHleRx3pEkJieNjk=:K5+y5LYD1lxHkcZcIt4cXAoPfmLhxyckuPnbM23wknI=";

    fn micros_of(text: &str) -> i128 {
        match ValidUntil::parse(Some(text)) {
            Ok(ValidUntil::Micros(micros)) => micros,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn each_kind_of_secret_is_recognised() {
        assert_eq!(Secret::parse(None), Ok(Secret::None));
        assert_eq!(Secret::parse(Some("")), Ok(Secret::None));
        assert_eq!(Secret::parse(Some("pass")), Ok(Secret::Plain("pass".into())));
        assert!(matches!(Secret::parse(Some(VERIFIER)), Ok(Secret::Scram(_))));
        let md5 = "md50123456789abcdef0123456789abcdef";
        assert!(matches!(Secret::parse(Some(md5)), Ok(Secret::Md5(_))));
        assert!(matches!(Secret::parse(Some(&md5[..34])), Ok(Secret::Plain(_))));
        assert_eq!(Secret::parse(Some("SCRAM-SHA-256$4096:x")), Err(BrokenVerifier));
    }

    #[test]
    fn no_secret_is_ever_printed() {
        for text in ["hunter22", "md50123456789abcdef0123456789abcdef", VERIFIER] {
            let printed = format!("{:?}", Secret::parse(Some(text)).unwrap());
            assert!(printed.contains(".."), "{printed}");
            for part in text.split([':', '$']) {
                assert!(
                    part == "4096" || part.starts_with("SCRAM") || !printed.contains(part),
                    "{printed}"
                );
            }
        }
    }

    #[test]
    fn a_password_in_clear_text_is_checked_against_every_kind() {
        let mock = MockNonce::generate(|bytes| bytes.fill(7));
        let secrets = [
            Secret::Plain("secret".into()),
            Secret::Md5(Md5Hash::of_password("joe", b"secret")),
            Secret::parse(Some(VERIFIER)).unwrap(),
        ];
        for secret in secrets {
            assert!(secret.accepts_password("joe", b"secret", &mock), "{secret:?}");
            assert!(!secret.accepts_password("joe", b"secret2", &mock), "{secret:?}");
            assert!(!secret.accepts_password("joe", b"", &mock), "{secret:?}");
        }
        assert!(!Secret::None.accepts_password("joe", b"", &mock));
    }

    #[test]
    fn an_md5_answer_is_checked_against_every_kind() {
        let salt = [1, 2, 3, 4];
        let answer = Md5Hash::of_password("joe", b"secret").answer(salt);
        let md5 = Secret::Md5(Md5Hash::of_password("joe", b"secret"));
        for secret in [Secret::Plain("secret".into()), md5] {
            assert!(secret.accepts_md5("joe", salt, &answer));
            assert!(!secret.accepts_md5("ann", salt, &answer) || matches!(secret, Secret::Md5(_)));
            assert!(!secret.accepts_md5("joe", [0; 4], &answer));
        }
        let empty = Md5Hash::of_password("joe", b"").answer(salt);
        for secret in [Secret::None, Secret::parse(Some(VERIFIER)).unwrap()] {
            assert!(!secret.accepts_md5("joe", salt, &answer));
            assert!(!secret.accepts_md5("joe", salt, &empty), "no secret is not an empty one");
        }
    }

    #[test]
    fn md5_asks_for_scram_where_the_secret_is_scram_alone() {
        let scram = Secret::parse(Some(VERIFIER)).unwrap();
        let md5 = Secret::Md5(Md5Hash::of_password("joe", b"secret"));
        let of = |method, secret: &Secret, encryption| Challenge::of(method, secret, encryption);
        use PasswordEncryption::{Md5, ScramSha256};
        assert_eq!(of(Method::Md5, &scram, Md5), Some(Challenge::Scram));
        assert_eq!(of(Method::Md5, &md5, ScramSha256), Some(Challenge::Md5));
        assert_eq!(of(Method::ScramSha256, &md5, Md5), Some(Challenge::Scram));
        for encryption in [Md5, ScramSha256] {
            let plain = Secret::Plain("x".into());
            assert_eq!(of(Method::Md5, &plain, encryption), Some(Challenge::Md5), "as PgBouncer");
        }
        assert_eq!(of(Method::Md5, &Secret::None, Md5), Some(Challenge::Md5));
        assert_eq!(of(Method::Md5, &Secret::None, ScramSha256), Some(Challenge::Scram));
        assert_eq!(of(Method::Trust, &Secret::None, Md5), None);
    }

    #[test]
    fn valid_until_is_read_as_the_server_prints_it() {
        assert_eq!(ValidUntil::parse(None), Ok(ValidUntil::Forever));
        assert_eq!(ValidUntil::parse(Some("infinity")), Ok(ValidUntil::Forever));
        assert_eq!(ValidUntil::parse(Some("-infinity")), Ok(ValidUntil::Never));
        // PostgreSQL 15: select extract(epoch from '...'::timestamptz) * 1000000
        let table = [
            ("1970-01-01 00:00:00+00", 0),
            ("2024-02-29 12:34:56.789+05:30", 1_709_190_296_789_000),
            ("2024-02-29 12:34:56.000001-03", 1_709_220_896_000_001),
            ("1900-01-01 00:00:00+00:53:28", -2_208_992_008_000_000),
            ("294276-12-31 23:59:59.999999+00", 9_224_318_015_999_999_999),
            ("0001-01-01 00:00:00+00 BC", -62_167_219_200_000_000),
            ("4714-11-24 00:00:00+00 BC", -210_866_803_200_000_000),
            ("2024-01-01 24:00:00+00", 1_704_153_600_000_000),
            ("2024-01-01T00:00:00Z", 1_704_067_200_000_000),
            ("1704067200", 1_704_067_200_000_000),
            ("1704067200.5", 1_704_067_200_500_000),
            ("1704067200.123456789", 1_704_067_200_123_456),
            ("-1.25", -1_250_000),
        ];
        for (text, expected) in table {
            assert_eq!(micros_of(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_a_time_is_an_error_and_never_a_time() {
        for text in [
            "",
            "never",
            "2024-01-01",
            "2024-01-01 00:00:00",
            "2024-13-01 00:00:00+00",
            "2023-02-29 00:00:00+00",
            "2024-01-00 00:00:00+00",
            "2024-01-01 25:00:00+00",
            "2024-01-01 00:60:00+00",
            "2024-01-01 00:00+00",
            "2024-01-01 00:00:00+",
            "1e9",
            "+5",
            "1.",
            ".",
            "1.x",
            "2024-01-01 00:00:00+99",
            "2024-01-01 00:00:00 CET",
            "Mon Jan 01 00:00:00 2024 UTC",
            "0000-01-01 00:00:00+00",
            "9999999999999999",
            "2024-01-01 00:00:00+00:00:00:00",
        ] {
            let error = ValidUntil::parse(Some(text)).unwrap_err();
            assert!(error.to_string().contains("infinity"), "{text}");
        }
    }

    #[test]
    fn a_password_holds_up_to_and_including_its_time() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let until = ValidUntil::parse(Some("1970-01-01 00:01:40+00")).unwrap();
        assert!(!until.has_passed(at(99)));
        assert!(!until.has_passed(at(100)));
        assert!(until.has_passed(at(100) + Duration::from_micros(1)));
        assert!(!ValidUntil::Forever.has_passed(at(u64::from(u32::MAX))));
        assert!(ValidUntil::Never.has_passed(UNIX_EPOCH - Duration::from_secs(9)));
        let early = ValidUntil::parse(Some("1960-01-01 00:00:00+00")).unwrap();
        assert!(early.has_passed(at(0)));
        assert!(!early.has_passed(UNIX_EPOCH - Duration::from_secs(400_000_000)));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in r"[0-9:+. TZBC-]{0,40}|\PC{0,40}") {
            let _ = ValidUntil::parse(Some(&text));
            let _ = Secret::parse(Some(&text));
        }

        #[test]
        fn every_time_is_read_back(micros in -62_000_000_000_000_000_i128..200_000_000_000_000_000) {
            let text = format!("{}{}.{:06}", if micros < 0 { "-" } else { "" }, micros.unsigned_abs() / 1_000_000, micros.unsigned_abs() % 1_000_000);
            prop_assert_eq!(micros_of(&text), micros);
        }
    }
}
