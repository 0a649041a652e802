//! Commands of an operator that also apply to the predecessor's clients.

use serde::{Deserialize, Serialize};

/// A command that is passed on. Databases are named as clients ask for them; none: all.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "verb")]
pub enum Order {
    /// PAUSE.
    Pause {
        /// Of what.
        database: Option<String>,
    },
    /// RESUME.
    Resume {
        /// Of what.
        database: Option<String>,
    },
    /// DISABLE.
    Disable {
        /// Of what.
        database: String,
    },
    /// ENABLE.
    Enable {
        /// Of what.
        database: String,
    },
    /// KILL.
    Kill {
        /// Of what.
        database: Option<String>,
    },
    /// RELOAD, or SIGHUP.
    Reload,
    /// A command that this version does not know.
    #[serde(other)]
    Unknown,
}
