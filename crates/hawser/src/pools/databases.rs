//! What all pools of a database know about it.
//!
//! # Limits  a database is its list of servers and its name there. Pools that reach it by another
//!           list (a standby's, one address of several) see a change as if it did not pass through
//!           Hawser.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use hawser_pooler::lending::Database;

use super::{Route, locked};
use crate::config::ServerAddress;

/// A database as pools reach it: its servers, and its name there.
type Reached = (Vec<ServerAddress>, String);

/// All databases that have pools, and those whose clients ask for what they draw from sequences: the next
/// client's first question is to be answered as well.
#[derive(Default)]
pub(super) struct Databases(Mutex<HashMap<Reached, Arc<Database>>>);

impl Databases {
    /// That of a pool's database.
    pub(super) fn of(&self, route: &Route) -> Arc<Database> {
        self.reached_as((route.target.servers.clone(), route.login.database.clone()))
    }

    fn reached_as(&self, key: Reached) -> Arc<Database> {
        let mut known = locked(&self.0);
        let has_pools = |database: &Arc<Database>| Arc::strong_count(database) > 1;
        if let Some(database) = known.get(&key) {
            if !has_pools(database) {
                database.functions.forget(); // its catalogs have not been looked at since
            }
            return database.clone();
        }
        known.retain(|_, database| has_pools(database) || database.asking.has_asked());
        known.entry(key).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_whose_clients_ask_is_remembered_without_its_pools() {
        let databases = Databases::default();
        let reached = |name: &str| databases.reached_as((Vec::new(), name.to_owned()));
        let (asks, other) = (reached("asks"), reached("other"));
        asks.asking.note_question();
        assert!(reached("asks").asking.has_asked() && !reached("other").asking.has_asked());
        drop((asks, other));
        reached("third");
        assert_eq!(locked(&databases.0).len(), 2);
        assert!(reached("asks").asking.has_asked());
    }
}
