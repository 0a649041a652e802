//! `hawser cc`: congestion control, of this machine, of a program, and of the pooler's connections.
//!
//! # Model
//! ```text
//!   kernel ── look ──► report ──► text | JSON        list
//!   serve ◄══ transfers ══► bench                    figures of the receiver
//!   apply, undo                                      for a destination, for the machine
//!   usage ── auto ── crate::tuner                     for the pooler's own connections
//! ```
//! * [`look`]: reads everything once
//! * [`report`]: what is shown of it, and what stands in the way, in words; pure
//! * [`serve`], [`bench`]: the two ends of a comparison, over [`wire`] and [`transfer`]; [`figures`] is
//!   what comes of it, [`page`] shows it in a browser
//! * [`datagrams`]: what the path carries without any of them; [`postgres`]: what PostgreSQL's own
//!   programs get over it, through a [`relay`]; [`modules`]: those that are loaded for it
//! * [`apply`]: settings, files and routes, and taking them back
//! * [`usage`]: which algorithm the pooler's connections have
//! * [`auto`]: samples connections for the chooser and carries out its decisions
//!
//! # Limits
//! All of it is of the network namespace in which the command runs.

pub mod apply;
pub mod auto;
pub mod bench;
pub mod datagrams;
pub mod figures;
pub mod look;
pub mod modules;
pub mod page;
pub mod postgres;
pub mod relay;
pub mod report;
pub mod serve;
pub mod transfer;
pub mod usage;
pub mod wire;

use crate::tuner::algorithm::Algorithm;

/// Which congestion control algorithm connections of one side have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, derive_more::Display)]
pub enum Congestion {
    /// The kernel's default, untouched.
    #[default]
    #[display("default")]
    Default,
    /// The kernel's default to begin with; what delivers more, where that has been measured.
    #[display("auto")]
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
