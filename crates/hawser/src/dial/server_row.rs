//! The state of databases' servers, for operators: SHOW HOSTS, `hawser status`, metrics.
//!
//! # Model
//! ```text
//!   down     the last attempt to connect failed, or the last look got no answer
//!   left     it answers, and something keeps its database, or a user that asks for it, from it: it lags, or stops
//!   spare    it answers, and is of a kind that none of them asks for now: the standby of a pair, say
//!   up       it answers
//!   unknown  no client has needed it yet
//! ```
//! The first that holds. Looks are [`standing`](super::standing)'s; attempts are those for clients.

use std::time::Duration;

use super::standing::{Look, Looks, Standing, Unfit, Wants, unfit};
use super::{Dialler, Fare, locked};
use crate::config::ServerAddress;

/// The state of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerState {
    /// It takes connections.
    Up,
    /// It does, and its database could use it, but for this reason.
    Left {
        /// Why.
        reason: String,
    },
    /// It does, but neither its database nor a user asks for its kind now.
    Spare {
        /// What is asked for.
        reason: String,
    },
    /// It does not.
    Down {
        /// The error of the last attempt.
        reason: String,
        /// Attempts in a row that failed.
        failures: u32,
    },
    /// It has not been connected to yet.
    Unknown,
}

impl ServerState {
    /// Its name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Left { .. } => "left",
            Self::Spare { .. } => "spare",
            Self::Down { .. } => "down",
            Self::Unknown => "unknown",
        }
    }

    /// Why it is not up.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Left { reason } | Self::Spare { reason } | Self::Down { reason, .. } => {
                Some(reason)
            }
            Self::Up | Self::Unknown => None,
        }
    }

    /// Whether it takes connections, and nothing is wrong with it; `None`: nothing is known.
    pub fn is_up(&self) -> Option<bool> {
        match self {
            Self::Up | Self::Spare { .. } => Some(true),
            Self::Left { .. } | Self::Down { .. } => Some(false),
            Self::Unknown => None,
        }
    }

    /// Attempts in a row that failed.
    pub fn failures(&self) -> u32 {
        match self {
            Self::Down { failures, .. } => *failures,
            Self::Up | Self::Left { .. } | Self::Spare { .. } | Self::Unknown => 0,
        }
    }
}

/// What a server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerRole {
    /// It writes.
    Primary,
    /// It follows one that does.
    Standby {
        /// How much it lags; `None`: there is no primary among the servers to compare with.
        lag: Option<Duration>,
    },
}

impl ServerRole {
    /// How much a standby lags.
    pub fn lag(self) -> Option<Duration> {
        match self {
            Self::Primary => None,
            Self::Standby { lag } => lag,
        }
    }

    /// `primary` or `standby`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Standby { .. } => "standby",
        }
    }
}

/// One server of one database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerRow {
    /// The `[[database]]` entry.
    pub database: String,
    /// The server as it is configured.
    pub server: String,
    /// Its state.
    pub state: ServerState,
    /// Its role, if servers are looked at.
    pub role: Option<ServerRole>,
}

impl Dialler {
    /// The state of the servers of a database that asks for the first of `wants`, while its users
    /// ask for the others: a server is fit if it is for any of them.
    pub fn server_rows(&self, database: &str, wants: &[Wants<'_>]) -> Vec<ServerRow> {
        let (fares, looks) = (locked(&self.fares), locked(&self.looks));
        let unfit: Vec<_> = wants.iter().map(|wants| unfit(wants, &looks)).collect();
        let row = |server: &ServerAddress| {
            let of = |unfit: &Vec<(ServerAddress, Unfit)>| {
                unfit.iter().find(|(one, _)| one == server).map(|(_, why)| *why)
            };
            let reasons: Option<Vec<Unfit>> = unfit.iter().map(of).collect();
            ServerRow {
                database: database.to_owned(),
                server: server.to_string(),
                state: state(fares.get(server), looks.get(server), &reasons.unwrap_or_default()),
                role: role(&looks, server),
            }
        };
        wants.first().map_or_else(Vec::new, |own| own.servers.iter().map(row).collect())
    }
}

/// `unfit`: why it is fit for none; empty if it is fit for one.
fn state(fare: Option<&Fare>, look: Option<&Look>, unfit: &[Unfit]) -> ServerState {
    let fault = unfit.iter().find(|why| !why.is_of_kind());
    let serves = look.is_some_and(|look| matches!(look.standing, Standing::Serving(_)));
    match (fare, look, unfit) {
        (Some(Fare::Failing { times, reason, .. }), ..) => {
            ServerState::Down { reason: reason.clone(), failures: *times }
        }
        (_, Some(Look { silent: true, .. }), _) => {
            let reason = "it does not answer probes (server_probe_interval)".to_owned();
            ServerState::Down { reason, failures: 0 }
        }
        (.., [first, ..]) => match fault {
            Some(why) => ServerState::Left { reason: why.to_string() },
            None => ServerState::Spare { reason: first.to_string() },
        },
        (Some(Fare::Reached), ..) => ServerState::Up,
        (None, ..) if serves => ServerState::Up,
        (None, ..) => ServerState::Unknown,
    }
}

fn role(looks: &Looks, server: &ServerAddress) -> Option<ServerRole> {
    let Look { standing: Standing::Serving(state), lag, .. } = looks.get(server)? else {
        return None;
    };
    Some(if state.in_recovery {
        ServerRole::Standby { lag: lag.measured() }
    } else {
        ServerRole::Primary
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::standing::{Lag, State};
    use hawser_pooler::time::Time;

    use super::*;

    #[test]
    fn a_failed_attempt_counts_more_than_silence_and_that_more_than_being_left() {
        let serving =
            State { in_recovery: true, read_only: false, wal: 1, own_lag: Duration::ZERO };
        let look = |standing, silent| Look {
            standing,
            lag: Lag::Measured(Duration::ZERO),
            silent,
            is_deposed: false,
            answered: Time::ZERO,
        };
        let well = look(Standing::Serving(serving), false);
        let silent = look(Standing::Serving(serving), true);
        let failing = Fare::Failing { times: 3, until: Instant::now(), reason: "no route".into() };
        let lags = &[Unfit::Lagging][..];
        let name = |fare, look, unfit: &[Unfit]| state(fare, look, unfit).name();
        assert_eq!(name(None, None, &[]), "unknown");
        assert_eq!(name(None, Some(&well), &[]), "up");
        assert_eq!(name(Some(&Fare::Reached), None, &[]), "up");
        assert_eq!(name(Some(&Fare::Reached), Some(&well), lags), "left");
        assert_eq!(name(Some(&Fare::Reached), Some(&silent), lags), "down");
        let of_kinds = [Unfit::Kind, Unfit::StandbyIsThere];
        assert_eq!(name(Some(&Fare::Reached), Some(&well), &of_kinds), "spare");
        assert_eq!(name(None, Some(&well), &[Unfit::Kind, Unfit::Lagging]), "left", "by a user");
        let down = state(Some(&failing), Some(&well), lags);
        assert_eq!((down.name(), down.reason(), down.failures()), ("down", Some("no route"), 3));
    }
}
