//! What a server connection's client is being answered, as far as it is counted, and which statements its
//! names and portals stand for.
//!
//! # Limits  of a session's own names of statements, [`NAMES_MAX`] are known on a server connection, and
//!           [`PORTALS_MAX`] portals with names: executions of others count as other statements.

use std::collections::HashMap;

use crate::hash::Keyed;
use crate::queries::table::{Execution, Queries, QueryRef};
use crate::queries::tracking::Tracking;
use crate::session::scan::KnownTexts;
use crate::time::Time;

/// The most names of statements that are known on a server connection where they are not shared.
const NAMES_MAX: usize = 1024;
/// The most portals with names that are known on a server connection.
const PORTALS_MAX: usize = 64;

/// What a server connection's client is being answered, as far as it is counted.
#[derive(Default)]
pub(crate) struct Counting {
    /// When the last of them was answered, or the client left.
    mark: Time,
    /// Bytes of the answer so far, rows of it, and the wait before it.
    bytes: u64,
    rows: u64,
    wait_us: u64,
    /// What is bound to the unnamed portal.
    portal: Option<QueryRef>,
    names: Option<Box<Names>>,
}

/// What is known by names.
struct Names {
    /// Statements that the server knows by the client's own names.
    statements: HashMap<Box<[u8]>, QueryRef, Keyed>,
    /// Portals, the latest last.
    portals: Vec<(Box<[u8]>, QueryRef)>,
}

impl Counting {
    /// Something is sent while nothing is outstanding.
    #[inline]
    pub(crate) fn begin(&mut self) {
        (self.bytes, self.rows) = (0, 0);
    }

    /// Its client has waited so long for it.
    pub(crate) fn waited(&mut self, micros: u64) {
        self.wait_us = micros;
    }

    /// Bytes have come for its client.
    #[inline]
    pub(crate) fn take_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// A command has been completed, as this tag says.
    #[inline]
    pub(crate) fn take_tag(&mut self, tag: &[u8]) {
        self.rows += rows_of(tag);
    }

    /// Its client, whose current query began then, has left it.
    pub(crate) fn left(&mut self, since: Time) {
        let mark = self.mark.max(since);
        *self = Self { mark, bytes: self.bytes, rows: self.rows, ..Self::default() };
    }

    /// What has come. `since`: when the client's current query began.
    #[inline]
    pub(super) fn take(&mut self, since: Time, failed: bool, now: Time) -> Execution {
        let time_us = now.micros_since(self.mark.max(since));
        self.mark = now;
        Execution {
            failed,
            rows: std::mem::take(&mut self.rows),
            bytes: std::mem::take(&mut self.bytes),
            time_us,
            wait_us: std::mem::take(&mut self.wait_us),
        }
    }

    fn names(&mut self, hash_key: Keyed) -> &mut Names {
        let none = || Names { statements: HashMap::with_hasher(hash_key), portals: Vec::new() };
        self.names.get_or_insert_with(|| Box::new(none()))
    }

    pub(super) fn name_statement(&mut self, name: &[u8], query: QueryRef, hash_key: Keyed) {
        let statements = &mut self.names(hash_key).statements;
        if statements.len() < NAMES_MAX || statements.contains_key(name) {
            statements.insert(name.into(), query);
        }
    }

    pub(super) fn statement(&self, name: &[u8]) -> QueryRef {
        let names = self.names.as_ref();
        names.and_then(|names| names.statements.get(name).copied()).unwrap_or(QueryRef::OTHER)
    }

    pub(super) fn bind(&mut self, portal: &[u8], query: QueryRef, hash_key: Keyed) {
        if portal.is_empty() {
            self.portal = Some(query);
            return;
        }
        let portals = &mut self.names(hash_key).portals;
        portals.retain(|(name, _)| **name != *portal);
        if portals.len() >= PORTALS_MAX {
            portals.remove(0);
        }
        portals.push((portal.into(), query));
    }

    pub(super) fn bound(&self, portal: &[u8]) -> QueryRef {
        if portal.is_empty() {
            return self.portal.unwrap_or(QueryRef::OTHER);
        }
        let portals = self.names.iter().flat_map(|names| &names.portals);
        let mut named = portals.filter(|(name, _)| **name == *portal);
        named.next().map_or(QueryRef::OTHER, |(_, query)| *query)
    }
}

/// The number at the end of a command tag: `INSERT 0 5`.
#[inline]
fn rows_of(tag: &[u8]) -> u64 {
    let tag = tag.strip_suffix(b"\0").unwrap_or(tag);
    let digits = tag.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let number = &tag[tag.len() - digits..];
    number
        .iter()
        .fold(0, |number: u64, digit| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
}

/// Finds the statement that an execution is counted for.
pub(crate) struct Tracker<'a> {
    pub(crate) queries: &'a mut Queries,
    pub(crate) known: &'a mut KnownTexts,
    pub(crate) tracking: Tracking,
    pub(crate) hash_key: Keyed,
    pub(crate) now: Time,
}

#[cfg(test)]
mod tests {
    use super::rows_of;

    #[test]
    fn rows_are_the_number_at_the_end_of_a_tag() {
        for (tag, rows) in [
            (&b"SELECT 12\0"[..], 12),
            (b"INSERT 0 5\0", 5),
            (b"UPDATE 0\0", 0),
            (b"BEGIN\0", 0),
            (b"\0", 0),
            (b"", 0),
            (b"7", 7),
        ] {
            assert_eq!(rows_of(tag), rows);
        }
    }
}
