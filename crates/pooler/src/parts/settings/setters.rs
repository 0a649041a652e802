//! Hawser's own statements that set settings within a client's pipeline (`within_pipeline`).
//!
//! # Why one for each `search_path`
//! A server analyses and plans a statement again when it executes it under another `search_path`
//! than the last time (`RevalidateCachedQuery`, plancache.c): 8 us, where executing it takes 5. So
//! each path has statements of its own, for a connection on which that path is in force.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::hash::Keyed;
use crate::parts::statements::shared::{Statement, StatementTable};
use crate::relay::limits::{WITHIN_PATHS_MAX, WITHIN_SETTINGS_MAX};

/// Statements for one setting, two and so on.
type BySettings = [Option<Arc<Statement>>; WITHIN_SETTINGS_MAX];

#[derive(Debug)]
struct Inner {
    by_path: HashMap<Box<[u8]>, BySettings, Keyed>,
    /// For paths beyond the bound.
    others: BySettings,
    /// Asked for since the bound was reached.
    asked: usize,
}

/// Those of one pool.
#[derive(Debug)]
pub(crate) struct Setters(Mutex<Inner>);

impl Setters {
    pub(crate) fn new(key: Keyed) -> Self {
        let by_path = HashMap::with_hasher(key);
        Self(Mutex::new(Inner { by_path, others: BySettings::default(), asked: 0 }))
    }

    /// The one for so many settings under this `search_path`; `None` if there are none, or too
    /// many.
    pub(crate) fn get(
        &self,
        statements: &StatementTable,
        settings: usize,
        path: &[u8],
    ) -> Option<Arc<Statement>> {
        let at = settings.checked_sub(1).filter(|at| *at < WITHIN_SETTINGS_MAX)?;
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let statement = inner.of(path)[at].get_or_insert_with(|| make(statements, settings));
        Some(statement.clone())
    }
}

impl Inner {
    fn of(&mut self, path: &[u8]) -> &mut BySettings {
        // (Looked for twice: the borrow of the first would last.)
        if self.by_path.len() >= WITHIN_PATHS_MAX && !self.by_path.contains_key(path) {
            self.asked += 1;
            if self.asked <= WITHIN_PATHS_MAX * WITHIN_PATHS_MAX {
                return &mut self.others;
            }
            // The first ones may be long unused.
            self.by_path.clear();
        }
        if !self.by_path.contains_key(path) {
            self.by_path.insert(path.into(), BySettings::default());
            self.asked = 0;
        }
        self.by_path.get_mut(path).unwrap_or(&mut self.others)
    }
}

/// Its parameters are names and values, alternating.
fn make(statements: &StatementTable, settings: usize) -> Arc<Statement> {
    const TEXT_TYPE: u32 = 25;
    let calls: Vec<String> = (0..settings)
        .map(|n| format!("pg_catalog.set_config(${},${},false)", 2 * n + 1, 2 * n + 2))
        .collect();
    let mut body = format!("SELECT {}\0", calls.join(",")).into_bytes();
    let parameters = 2 * settings;
    body.extend_from_slice(&(parameters as u16).to_be_bytes());
    body.extend((0..parameters).flat_map(|_| TEXT_TYPE.to_be_bytes()));
    statements.apart(&body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::statements::shared::StatementMemory;

    #[test]
    fn each_path_has_its_own_up_to_a_bound() {
        let statements = StatementTable::new(1, Arc::new(StatementMemory::new(usize::MAX)));
        let setters = Setters::new(Keyed(1));
        let of = |settings, path: &str| {
            setters.get(&statements, settings, path.as_bytes()).map(|statement| statement.id)
        };
        assert_eq!(of(0, "a"), None);
        assert_eq!(of(WITHIN_SETTINGS_MAX + 1, "a"), None);
        assert_eq!(of(2, "a"), of(2, "a"));
        assert_ne!(of(2, "a"), of(1, "a"));
        assert_ne!(of(2, "a"), of(2, "b"));
        for n in 2..WITHIN_PATHS_MAX {
            of(1, &n.to_string());
        }
        assert_eq!(of(1, "beyond"), of(1, "further"));
        assert_ne!(of(1, "beyond"), of(1, "a"));
        for _ in 0..=WITHIN_PATHS_MAX * WITHIN_PATHS_MAX {
            of(1, "beyond");
        }
        assert_ne!(of(1, "beyond"), of(1, "further"), "who is asked for now has one");
    }
}
