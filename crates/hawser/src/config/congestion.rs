//! Which congestion control algorithm connections have.

use std::fmt;

use hawser_congestion::tuner::algorithm::Algorithm;

use super::error::Rejected;
use super::registry::Setting;
use super::value::{Context, Raw, SettingType};

/// Which congestion control algorithm connections of one side have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Congestion {
    /// The kernel's default, untouched.
    #[default]
    Default,
    /// The kernel's default to begin with; what delivers more, where that has been measured.
    Auto,
    /// This one.
    Fixed(Algorithm),
}

impl Congestion {
    /// What a word of a configuration means: `default`, `auto`, or an algorithm's name, which need
    /// not be one that this kernel has.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "default" => Some(Self::Default),
            "auto" => Some(Self::Auto),
            name => Algorithm::new(name).map(Self::Fixed),
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Auto => f.write_str("auto"),
            Self::Fixed(algorithm) => f.write_str(algorithm.as_str()),
        }
    }
}

impl SettingType for Congestion {
    const KIND: &'static str = "one of default, auto, or the name of an algorithm";

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        match raw {
            Raw::String(word) | Raw::Text(word) => Self::from_word(word).ok_or_else(|| {
                Rejected::new(format!(
                    "`{word}` can be no algorithm of any kernel: allowed is {}",
                    Self::KIND
                ))
            }),
            _ => Err(Rejected::new(format!("expected a string, {}", Self::KIND))),
        }
    }

    fn show(&self, _: &Setting) -> String {
        self.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_two_modes_and_names() {
        assert_eq!(Congestion::from_word("default"), Some(Congestion::Default));
        assert_eq!(Congestion::from_word("auto"), Some(Congestion::Auto));
        let bbr = Congestion::from_word("bbr").unwrap();
        assert_eq!(bbr, Congestion::Fixed(Algorithm::new("bbr").unwrap()));
        assert_eq!(bbr.to_string(), "bbr");
        for word in ["", "a b", "muchtoolonganame"] {
            assert_eq!(Congestion::from_word(word), None, "{word:?}");
        }
    }
}
