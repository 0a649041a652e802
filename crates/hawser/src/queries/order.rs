//! By what statements are sorted: `SHOW QUERIES ORDER BY time`.

use hawser_pooler::queries::table::QueryRow;

/// By what statements are sorted; what has the most of it comes first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// The sum of their times.
    Time,
    /// Executions.
    Calls,
    /// Executions with an error.
    Errors,
    /// Rows.
    Rows,
    /// Bytes of answers.
    Bytes,
    /// The sum of the waits for a server connection.
    Wait,
    /// The mean time.
    Mean,
    /// The time that 99 of 100 do not exceed.
    P99,
    /// When one was seen last.
    LastSeen,
}

impl Order {
    /// Each with its word.
    pub const ALL: [(&'static str, Self); 9] = [
        ("time", Self::Time),
        ("calls", Self::Calls),
        ("errors", Self::Errors),
        ("rows", Self::Rows),
        ("bytes", Self::Bytes),
        ("wait", Self::Wait),
        ("mean", Self::Mean),
        ("p99", Self::P99),
        ("last_seen", Self::LastSeen),
    ];

    /// The one of a word.
    pub fn from_word(word: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, order)| order)
    }

    /// How much of it a statement has.
    pub fn of(self, row: &QueryRow) -> u64 {
        let counts = &row.counts;
        match self {
            Self::Time => counts.time_us,
            Self::Calls => counts.calls,
            Self::Errors => counts.errors,
            Self::Rows => counts.rows,
            Self::Bytes => counts.bytes,
            Self::Wait => counts.wait_us,
            Self::Mean => counts.mean_us(),
            Self::P99 => counts.times.per_mille(990),
            Self::LastSeen => row.last_seen.as_micros(),
        }
    }
}
