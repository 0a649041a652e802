//! Commands of an operator that also apply to the predecessor's clients.

use serde::{Deserialize, Serialize};

use crate::admin::command::Command;

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

impl Order {
    /// The order to pass on for a command; `None`: it concerns one process.
    pub fn of(command: &Command) -> Option<Self> {
        Some(match command.clone() {
            Command::Pause(database) => Self::Pause { database },
            Command::Resume(database) => Self::Resume { database },
            Command::Disable(database) => Self::Disable { database },
            Command::Enable(database) => Self::Enable { database },
            Command::Kill(database) => Self::Kill { database },
            Command::Reload => Self::Reload,
            _ => return None,
        })
    }

    /// The command; `None`: this version does not know it.
    pub fn into_command(self) -> Option<Command> {
        Some(match self {
            Self::Pause { database } => Command::Pause(database),
            Self::Resume { database } => Command::Resume(database),
            Self::Disable { database } => Command::Disable(database),
            Self::Enable { database } => Command::Enable(database),
            Self::Kill { database } => Command::Kill(database),
            Self::Reload => Command::Reload,
            Self::Unknown => return None,
        })
    }
}
