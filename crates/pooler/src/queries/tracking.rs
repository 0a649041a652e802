//! Whether queries are counted.

/// Whether queries of a pool are counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tracking {
    /// They are.
    pub is_on: bool,
    /// A text with its constants is kept of each.
    pub keeps_examples: bool,
}
