//! What is known of the schemas of databases: one for all pools of a database.
//!
//! # Limits  a database is its list of servers and its name there. Pools that reach it by another list (a
//!           standby's, one address of several) learn of a change as of one that does not pass through
//!           Hawser.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use hawser_core::pool::Schema;

use super::{Route, locked};
use crate::config::ServerAddress;

/// A database as pools reach it: its servers, and its name there.
type Reached = (Vec<ServerAddress>, String);

/// The schemas of all databases that have pools.
#[derive(Default)]
pub(super) struct Schemas(Mutex<HashMap<Reached, Weak<Schema>>>);

impl Schemas {
    /// That of a pool's database.
    pub(super) fn of(&self, route: &Route) -> Arc<Schema> {
        let mut known = locked(&self.0);
        let key = (route.target.servers.clone(), route.login.database.clone());
        if let Some(schema) = known.get(&key).and_then(Weak::upgrade) {
            return schema;
        }
        known.retain(|_, schema| schema.strong_count() > 0);
        let schema = Arc::<Schema>::default();
        known.insert(key, Arc::downgrade(&schema));
        schema
    }
}
