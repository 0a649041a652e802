//! What all pools of a database know about it.
//!
//! # Limits  a database is its list of servers and its name there. Pools that reach it by another
//!           list (a standby's, one address of several) see a change as if it did not pass through
//!           Hawser.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use hawser_core::pool::Database;

use super::{Route, locked};
use crate::config::ServerAddress;

/// A database as pools reach it: its servers, and its name there.
type Reached = (Vec<ServerAddress>, String);

/// All databases that have pools.
#[derive(Default)]
pub(super) struct Databases(Mutex<HashMap<Reached, Weak<Database>>>);

impl Databases {
    /// That of a pool's database.
    pub(super) fn of(&self, route: &Route) -> Arc<Database> {
        let mut known = locked(&self.0);
        let key = (route.target.servers.clone(), route.login.database.clone());
        if let Some(database) = known.get(&key).and_then(Weak::upgrade) {
            return database;
        }
        known.retain(|_, database| database.strong_count() > 0);
        let database = Arc::<Database>::default();
        known.insert(key, Arc::downgrade(&database));
        database
    }
}
