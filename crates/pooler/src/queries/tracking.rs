//! What is kept of queries.

/// What is kept of a pool's queries.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tracking {
    /// They are counted.
    pub is_on: bool,
    /// A text with its constants is kept of each.
    pub keeps_examples: bool,
    /// Transactions become spans: of which ones, their texts may say.
    pub has_spans: bool,
}
