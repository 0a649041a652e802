//! Which congestion control algorithm connections have.

use super::error::Rejected;
use super::setting::Setting;
use super::value::{Context, Raw, SettingType};
pub use hawser_congestion::cc::Congestion;

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
