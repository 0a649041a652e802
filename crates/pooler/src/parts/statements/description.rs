//! Descriptions of a statement's parameters and rows that a client or a server connection has got, as
//! hashes.

use std::hash::Hasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip::SipHasher13;

use crate::wire::frame;

/// The server's description of a statement: hashes, 0 for what it has not described. (It never
/// changes after a Parse: the Parse fixes both, and the server refuses to run what would give
/// others.)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shape {
    pub(crate) parameters: u64,
    pub(crate) rows: u64,
}

impl Shape {
    /// Whether it covers everything that was described to a client.
    #[inline]
    pub(crate) fn is_known_for(self, described: Self) -> bool {
        (described.parameters == 0 || self.parameters != 0)
            && (described.rows == 0 || self.rows != 0)
    }

    /// Whether it is as described to a client, as far as that goes.
    #[inline]
    pub(crate) fn fits(self, described: Self) -> bool {
        (described.parameters == 0 || described.parameters == self.parameters)
            && (described.rows == 0 || described.rows == self.rows)
    }
}

/// How a statement was described to a client: hashes, 0 for nothing.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    rows: AtomicU64,
    parameters: AtomicU64,
    /// The types of the parameters, if there are any: as in a Parse.
    types: OnceLock<Box<[u8]>>,
    /// The statement on a server connection that the client has bound last, and since when it is there.
    bound: AtomicU64,
    since: AtomicU64,
}

/// How a statement's parameters and rows were described to a client, as hashes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Described {
    /// Hash of the ParameterDescription; 0: it has got none.
    pub parameters: u64,
    /// Hash of the RowDescription, or of NoData; 0: it has got none.
    pub rows: u64,
    /// The types of the parameters, as in a Parse, if there are any.
    pub types: Option<Box<[u8]>>,
}

impl Seen {
    /// As a record has it.
    pub(crate) fn of(described: Described) -> Self {
        let Described { parameters, rows, types } = described;
        let seen = Self::default();
        seen.parameters.store(parameters, Ordering::Relaxed);
        seen.rows.store(rows, Ordering::Relaxed);
        types.map(|types| seen.types.set(types));
        seen
    }

    /// For a record. (What it was bound to last is a matter of the transaction.)
    pub(crate) fn to_described(&self) -> Described {
        let Self { rows, parameters, types, bound: _, since: _ } = self;
        Described {
            parameters: parameters.load(Ordering::Relaxed),
            rows: rows.load(Ordering::Relaxed),
            types: types.get().cloned(),
        }
    }

    pub(crate) fn rows(&self, hash: u64) {
        self.rows.store(hash, Ordering::Relaxed);
    }

    /// The body of a ParameterDescription.
    pub(crate) fn parameters(&self, body: &[u8]) {
        self.parameters.store(hash_of_parameters(body), Ordering::Relaxed);
        if body.len() > 2 {
            // (A later description is the same: see [`crate::lending::from_client::client_message::fit`].)
            self.types.get_or_init(|| body.into());
        }
    }

    /// A portal's description from now on describes this statement.
    pub(crate) fn binds(&self, statement: u64, since: u64) {
        self.bound.store(statement, Ordering::Relaxed);
        self.since.store(since, Ordering::Relaxed);
    }

    pub(crate) fn bound(&self) -> (u64, u64) {
        (self.bound.load(Ordering::Relaxed), self.since.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn described(&self) -> Shape {
        Shape {
            parameters: self.parameters.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
        }
    }

    /// The types of its parameters, as in a Parse, if any were described.
    pub(crate) fn types(&self) -> Option<&[u8]> {
        self.types.get().map(|types| &**types)
    }
}

/// Hash of a RowDescription's body, `None` for NoData. Formats are left out: a statement's
/// description does not know them yet, its portal's does. So are the tables that columns come from,
/// which the server does not compare either (`RevalidateCachedQuery`, plancache.c): a table that was
/// made again as it was gives the same rows. Never 0; `u64::MAX` if it cannot be read whole.
pub(crate) fn hash_of_rows(body: Option<&[u8]>) -> u64 {
    let Some(body) = body else { return 1 };
    let Some((count, mut rest)) = frame::take_u16(body) else { return u64::MAX };
    // The server's own bytes: no secret is needed, and this is hashed in each transaction that asks
    // for a description.
    let mut hash = mixed(ROWS_SEED, u64::from(count));
    for _ in 0..count {
        // Name; table, column, type, its length, its modifier; format.
        let Some((name, after)) = frame::take_string(rest) else { return u64::MAX };
        let (Some(fixed), Some(after)) = (after.get(6..16), after.get(18..)) else {
            return u64::MAX;
        };
        let (words, last) = name.as_chunks::<8>();
        for word in words {
            hash = mixed(hash, u64::from_le_bytes(*word));
        }
        let last = last.iter().fold(name.len() as u64, |word, byte| word << 8 | u64::from(*byte));
        hash = mixed(hash, last);
        let (words, last) = fixed.as_chunks::<8>();
        for word in words {
            hash = mixed(hash, u64::from_le_bytes(*word));
        }
        hash = mixed(hash, last.iter().fold(1, |word, byte| word << 8 | u64::from(*byte)));
        rest = after;
    }
    hash.clamp(2, u64::MAX - 1)
}

/// A number without a pattern: from pi.
const ROWS_SEED: u64 = 0x243f_6a88_85a3_08d3;

/// One word more in a hash: the two halves of a product, of which each bit depends on both factors.
#[inline]
fn mixed(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
    (product as u64) ^ ((product >> 64) as u64)
}

/// Hash of a ParameterDescription's body. Never 0 nor `u64::MAX`.
pub(crate) fn hash_of_parameters(body: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0); // the server's own bytes: no secret is needed
    hasher.write(body);
    hasher.finish().clamp(2, u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::build;

    fn described(table: u32, column: u16, r#type: u32, modifier: i32, format: u16) -> u64 {
        let mut body = vec![0, 1, b'v', 0];
        body.extend_from_slice(&table.to_be_bytes());
        body.extend_from_slice(&column.to_be_bytes());
        body.extend_from_slice(&r#type.to_be_bytes());
        body.extend_from_slice(&4u16.to_be_bytes());
        body.extend_from_slice(&modifier.to_be_bytes());
        body.extend_from_slice(&format.to_be_bytes());
        hash_of_rows(Some(&body))
    }

    #[test]
    fn rows_of_a_table_that_was_made_again_as_it_was_are_the_same() {
        let first = described(16_384, 1, 23, -1, 0);
        assert_eq!(described(16_500, 2, 23, -1, 1), first, "another table, another format");
        assert_ne!(described(16_384, 1, 20, -1, 0), first, "another type");
        assert_ne!(described(16_384, 1, 23, 8, 0), first, "another modifier");
    }

    #[test]
    fn each_byte_of_a_name_and_a_type_and_their_place_counts() {
        let description = |columns: &[(&str, u32)]| {
            let mut body = u16::try_from(columns.len()).expect("few").to_be_bytes().to_vec();
            for (name, r#type) in columns {
                build::string(&mut body, name.as_bytes());
                body.extend_from_slice(&[0; 6]);
                body.extend_from_slice(&r#type.to_be_bytes());
                body.extend_from_slice(&[0; 8]);
            }
            hash_of_rows(Some(&body))
        };
        let mut seen = std::collections::BTreeSet::from([0, 1, u64::MAX]);
        let names = ["", "a", "b", "ab", "ba", "12345678", "123456789", "12345678a", "12345678ab"];
        for first in names {
            for second in names {
                for types in [(20, 23), (23, 20), (23, 23)] {
                    assert!(seen.insert(description(&[(first, types.0), (second, types.1)])));
                }
            }
            assert!(seen.insert(description(&[(first, 23)])));
        }
        assert!(seen.insert(description(&[])));
        assert_eq!(hash_of_rows(Some(&[0, 1])), u64::MAX, "it ends too early");
    }
}
