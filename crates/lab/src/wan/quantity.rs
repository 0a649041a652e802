//! Rates, sizes, times and shares as a description writes them.
//!
//! # Model       a number and a unit: `"95Mbit/s"`, `"256KiB"`, `"108.5ms"`, `"0.034%"`
//! # Invariants  a value that was read is finite and within its type's bounds
//! # Why not     bare numbers: `rate = 95` is bytes to one reader and megabits to the next

use std::fmt;
use std::time::Duration;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// No rate above: times of single packets would round to nothing.
pub const RATE_MAX_BITS_PER_SECOND: u64 = 1_000_000_000_000;
/// No time above: a sum of all of a packet's times stays far from overflow.
pub const TIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// No size above.
pub const SIZE_MAX_BYTES: u64 = 1 << 40;

/// Bits in a second; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// `bits` in a second; `None` for 0 and for more than [`RATE_MAX_BITS_PER_SECOND`].
    #[must_use]
    pub fn from_bits_per_second(bits: u64) -> Option<Self> {
        (1..=RATE_MAX_BITS_PER_SECOND).contains(&bits).then_some(Self(bits))
    }

    /// Bits in a second.
    #[must_use]
    pub fn bits_per_second(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (divisor, unit) = match self.0 {
            bits if bits >= 1_000_000_000 => (1e9, "Gbit/s"),
            bits if bits >= 1_000_000 => (1e6, "Mbit/s"),
            bits if bits >= 1_000 => (1e3, "kbit/s"),
            _ => (1.0, "bit/s"),
        };
        #[expect(clippy::cast_precision_loss, reason = "for a reader")]
        let value = self.0 as f64 / divisor;
        write!(f, "{value} {unit}")
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub Duration);

/// A probability, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Default)]
pub struct Share(f64);

impl Share {
    /// `None` outside of 0 to 1.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then_some(Self(share))
    }

    /// The probability, 0 to 1.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }

    /// Whether `draw`, uniform over all 64-bit numbers, falls into this share of them.
    #[must_use]
    pub fn includes(self, draw: u64) -> bool {
        // 53 bits are what a double holds exactly.
        #[expect(clippy::cast_precision_loss, reason = "11 bits were shifted out")]
        let uniform = (draw >> 11) as f64 / (1u64 << 53) as f64;
        uniform < self.0
    }
}

/// A number and what follows it.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    number.is_finite().then_some((number, text[end..].trim_start()))
}

/// What a type of quantity is read from.
trait Quantity: Sized {
    /// For messages: what is allowed.
    const ALLOWED: &'static str;

    fn read(text: &str) -> Option<Self>;
}

impl Quantity for Rate {
    const ALLOWED: &'static str =
        "a rate from 1bit/s to 1000Gbit/s, with bit/s, kbit/s, Mbit/s or Gbit/s";

    fn read(text: &str) -> Option<Self> {
        let (number, unit) = split(text)?;
        let factor = match unit {
            "bit/s" => 1.0,
            "kbit/s" => 1e3,
            "Mbit/s" => 1e6,
            "Gbit/s" => 1e9,
            _ => return None,
        };
        let bits = (number * factor).round();
        // Saturates: what is too much is refused by the range.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        Self::from_bits_per_second(bits as u64)
    }
}

impl Quantity for Size {
    const ALLOWED: &'static str = "a size up to 1024GiB, with B, KiB, MiB or GiB";

    fn read(text: &str) -> Option<Self> {
        let (number, unit) = split(text)?;
        let factor = match unit {
            "B" => 1.0,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            _ => return None,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let bytes = (number * factor).round() as u64;
        (bytes <= SIZE_MAX_BYTES).then_some(Self(bytes))
    }
}

impl Quantity for Span {
    const ALLOWED: &'static str = "a time up to 7 days, with us, ms, s, min or h";

    fn read(text: &str) -> Option<Self> {
        let (number, unit) = split(text)?;
        let nanoseconds = number
            * match unit {
                "us" => 1e3,
                "ms" => 1e6,
                "s" => 1e9,
                "min" => 60e9,
                "h" => 3600e9,
                _ => return None,
            };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let time = Duration::from_nanos(nanoseconds.round() as u64);
        (time <= TIME_MAX).then_some(Self(time))
    }
}

impl Quantity for Share {
    const ALLOWED: &'static str = "a share from 0% to 100%, with %";

    fn read(text: &str) -> Option<Self> {
        match split(text)? {
            (number, "%") => Self::new(number / 100.0),
            _ => None,
        }
    }
}

struct Reader<Q>(std::marker::PhantomData<Q>);

impl<Q: Quantity> Visitor<'_> for Reader<Q> {
    type Value = Q;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Q::ALLOWED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Q, E> {
        Q::read(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

macro_rules! read_by_its_unit {
    ($($quantity:ty),*) => {$(
        impl<'de> Deserialize<'de> for $quantity {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(Reader(std::marker::PhantomData))
            }
        }
    )*};
}

read_by_its_unit!(Rate, Size, Span, Share);

/// `text` as a [`Size`], where either a size or something else may stand.
pub(super) fn size(text: &str) -> Option<Size> {
    Size::read(text)
}

/// `text` as a [`Span`], where either a time or something else may stand.
pub(super) fn span(text: &str) -> Option<Span> {
    Span::read(text)
}

/// `text` as a [`Share`], where either a share or something else may stand.
pub(super) fn share(text: &str) -> Option<Share> {
    Share::read(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_what_they_say() {
        assert_eq!(Rate::read("95Mbit/s").unwrap().bits_per_second(), 95_000_000);
        assert_eq!(Rate::read("1.5 kbit/s").unwrap().bits_per_second(), 1_500);
        assert_eq!(Size::read("256KiB"), Some(Size(262_144)));
        assert_eq!(Span::read("108.5ms"), Some(Span(Duration::from_micros(108_500))));
        assert!((Share::read("0.034%").unwrap().get() - 0.000_34).abs() < 1e-12);
    }

    #[test]
    fn what_has_no_unit_or_no_meaning_is_refused() {
        for text in ["95", "", "Mbit/s", "0bit/s", "1001Gbit/s", "-1Mbit/s", "1MB/s", "1..2bit/s"] {
            assert_eq!(Rate::read(text), None, "{text}");
        }
        assert_eq!(Size::read("1KB"), None, "KB is 1000 to some and 1024 to others");
        assert_eq!(Size::read("1025GiB"), None);
        assert_eq!(Span::read("8000h"), None);
        assert_eq!(Share::read("100.1%"), None);
        assert_eq!(Share::read("0.5"), None);
    }

    #[test]
    fn a_share_of_draws_is_included() {
        let mut rng = crate::rng::Rng::new(1);
        let share = Share::new(0.25).unwrap();
        let hits = (0..100_000).filter(|_| share.includes(rng.next_u64())).count();
        assert!((24_500..25_500).contains(&hits), "{hits}");
        assert!(!Share::new(0.0).unwrap().includes(0));
        assert!(Share::new(1.0).unwrap().includes(u64::MAX));
    }
}
