//! The standing of a server: what it is, how much it lags, and whether a database can use it.
//!
//! # Model
//! ```text
//!   lag of a standby = now - when the primary was first seen beyond what the standby has replayed
//! ```
//! # Why not pg_last_xact_replay_timestamp() alone
//! It is the age of the last transaction: of an idle primary's standby it grows without end, and clocks
//! of two machines differ. pg_stat_replication and pg_stat_wal_receiver need a privilege.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use hawser_pooler::ids::ServerAddressId;
use hawser_pooler::session::options::Replication;
use hawser_pooler::time::Time;
use hawser_pooler::wire::error::SqlState;
use tokio::time::timeout;

use super::talk::Answer;
use super::{DialError, Dialler, Login, Reached, Target, locked};
use crate::config::{ServerAddress, TargetSessionAttrs};

/// The question to a server: in recovery, read-only, end of its WAL, end of the received WAL, age
/// of the last replayed transaction.
const QUESTION: &str = "SELECT pg_catalog.pg_is_in_recovery(), \
     pg_catalog.current_setting('default_transaction_read_only'), \
     CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
     ELSE pg_catalog.pg_current_wal_lsn() END, \
     pg_catalog.pg_last_wal_receive_lsn(), \
     pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() \
     OPERATOR(pg_catalog.-) pg_catalog.pg_last_xact_replay_timestamp())";

/// The name of connections for looks at servers.
const NAME: (&[u8], &[u8]) = (b"application_name", b"hawser");

/// Samples of a primary's WAL. Their distance doubles each time that they become too many.
const SAMPLES_MAX: usize = 512;

/// What a look at a server has shown.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Standing {
    /// It takes sessions.
    Serving(State),
    /// It starts or shuts down. Its sessions may go on to their end.
    NotAccepting,
    /// Nothing: it cannot be reached, or gives no answer.
    Unknown,
}

/// A server's answer about itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct State {
    /// It is a standby.
    pub in_recovery: bool,
    /// Transactions are read-only unless they say otherwise; another role may have another default.
    pub read_only: bool,
    /// The end of what it has written, or replayed: bytes of WAL.
    pub wal: u64,
    /// How much it lags by its own account, without a primary to compare with.
    pub own_lag: Duration,
}

impl State {
    fn read(answer: &Answer) -> Option<Self> {
        let [row] = answer.rows.as_slice() else { return None };
        let [in_recovery, read_only, wal, received, age] = row.as_slice() else { return None };
        let wal = lsn(wal.as_deref()?)?;
        let in_recovery = **in_recovery.as_ref()? == *b"t";
        let all_replayed = received.as_deref().and_then(lsn).is_some_and(|to| to <= wal);
        let age = age.as_deref().and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let own_lag = match age {
            Some(seconds) if in_recovery && !all_replayed => {
                Duration::try_from_secs_f64(seconds).unwrap_or_default()
            }
            _ => Duration::ZERO,
        };
        Some(Self { in_recovery, read_only: **read_only.as_ref()? == *b"on", wal, own_lag })
    }
}

/// `16/B374D848` in bytes.
fn lsn(text: &[u8]) -> Option<u64> {
    let (high, low) = std::str::from_utf8(text).ok()?.split_once('/')?;
    let part = |digits| u32::from_str_radix(digits, 16).ok().map(u64::from);
    Some(part(high)? << 32 | part(low)?)
}

/// A primary's positions in the WAL, with their times.
#[derive(Debug, Default)]
pub struct WalHistory {
    primary: Option<ServerAddress>,
    samples: VecDeque<(Instant, u64)>,
}

impl WalHistory {
    /// The primary has reached this position.
    pub fn add(&mut self, primary: &ServerAddress, wal: u64, now: Instant) {
        if self.primary.as_ref() != Some(primary) {
            self.primary = Some(primary.clone());
            self.samples.clear();
        }
        match self.samples.back() {
            Some((_, last)) if wal == *last => return,
            // It has lost WAL: it was restored, or is another one at the same address.
            Some((_, last)) if wal < *last => self.samples.clear(),
            _ => {}
        }
        if self.samples.len() >= SAMPLES_MAX {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.samples.push_back((now, wal));
    }

    /// The lag of a standby that has replayed up to `wal`; `None` if no primary has been seen.
    pub fn lag(&self, wal: u64, now: Instant) -> Option<Duration> {
        self.samples.back()?;
        let missing = self.samples.iter().find(|(_, written)| *written > wal);
        Some(missing.map_or(Duration::ZERO, |(at, _)| now.saturating_duration_since(*at)))
    }
}

/// Why a database does not want a server's connections.
#[derive(Clone, Copy, PartialEq, Debug, derive_more::Display)]
pub enum Unfit {
    /// It starts or shuts down.
    #[display("it does not take sessions: it starts or stops")]
    NotAccepting,
    /// It is not what `target_session_attrs` asks for.
    #[display("it is not what target_session_attrs asks for")]
    Kind,
    /// It is a primary, and Patroni has another leader.
    #[display("it is a primary, but not the leader of its Patroni cluster")]
    NotLeader,
    /// It is a primary that has become read-only.
    #[display("default_transaction_read_only is on")]
    ReadOnly,
    /// It lags more than `max_replica_lag`.
    #[display("it is more than max_replica_lag behind")]
    Lagging,
    /// It is a primary, and a standby is available again.
    #[display("a standby is there, which prefer-standby prefers")]
    StandbyIsThere,
}

impl Unfit {
    /// Whether it is healthy, but of another kind than asked for.
    pub fn is_of_kind(self) -> bool {
        match self {
            Self::Kind | Self::StandbyIsThere => true,
            Self::NotAccepting | Self::NotLeader | Self::ReadOnly | Self::Lagging => false,
        }
    }

    /// Whether no connection to it is wanted while this holds. If false, server connections are
    /// replaced once: a pool may find no better server for its own user.
    pub fn lasts(self) -> bool {
        match self {
            Self::NotAccepting | Self::Kind | Self::NotLeader | Self::Lagging => true,
            Self::ReadOnly | Self::StandbyIsThere => false,
        }
    }
}

/// How much a server lags.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Lag {
    /// By the primary's WAL.
    Measured(Duration),
    /// No primary is among the servers: by the standby's own account, which cannot distinguish a
    /// cut-off standby from an up-to-date one.
    Unknown {
        /// Its own figure.
        own: Duration,
    },
}

impl Lag {
    /// As much as is known.
    pub fn at_least(self) -> Duration {
        match self {
            Self::Measured(lag) | Self::Unknown { own: lag } => lag,
        }
    }

    /// The lag, if it is measured.
    pub fn measured(self) -> Option<Duration> {
        match self {
            Self::Measured(lag) => Some(lag),
            Self::Unknown { .. } => None,
        }
    }
}

/// What is known about a server now.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Look {
    /// Its standing at its last answer.
    pub standing: Standing,
    /// How much it lags.
    pub lag: Lag,
    /// The last look got no answer. A refusal is one.
    pub silent: bool,
    /// Its cluster manager has another leader.
    pub is_deposed: bool,
    /// When the last answered look began.
    pub answered: Time,
}

/// What is known about each server that is looked at.
pub type Looks = HashMap<ServerAddress, Look>;

/// What a database asks of its servers.
#[derive(Clone, Copy, Debug)]
pub struct Wants<'a> {
    /// All of them.
    pub servers: &'a [ServerAddress],
    /// Which of them are suitable.
    pub session_attrs: TargetSessionAttrs,
    /// How much a standby may lag.
    pub max_replica_lag: Option<Duration>,
}

impl Target {
    /// What it asks of its servers.
    pub fn wants(&self) -> Wants<'_> {
        let (session_attrs, max_replica_lag) = (self.session_attrs, self.max_replica_lag);
        Wants { servers: &self.servers, session_attrs, max_replica_lag }
    }
}

/// The servers that a database must not use now. Servers without an answer are not included: their
/// connections show their state.
pub fn unfit(wants: &Wants<'_>, looks: &Looks) -> Vec<(ServerAddress, Unfit)> {
    use TargetSessionAttrs as Attrs;
    let lags = |lag: Lag| wants.max_replica_lag.is_some_and(|most| lag.at_least() > most);
    let is_good_standby = |server: &ServerAddress| match looks.get(server) {
        Some(Look { standing: Standing::Serving(state), lag, .. }) => {
            state.in_recovery && !lags(*lag)
        }
        _ => false,
    };
    let standby_is_there = wants.servers.iter().any(is_good_standby);
    let judge = |server: &ServerAddress| {
        let Look { standing, lag, is_deposed, .. } = looks.get(server)?;
        let state = match standing {
            Standing::Unknown => return None,
            Standing::NotAccepting => return Some(Unfit::NotAccepting),
            Standing::Serving(state) => state,
        };
        let right = match wants.session_attrs {
            // A primary may be read-only for one user and not for another.
            Attrs::Any | Attrs::PreferStandby | Attrs::ReadOnly => true,
            Attrs::Primary | Attrs::ReadWrite => !state.in_recovery,
            Attrs::Standby => state.in_recovery,
        };
        match wants.session_attrs {
            _ if !right => Some(Unfit::Kind),
            Attrs::Primary | Attrs::ReadWrite if *is_deposed => Some(Unfit::NotLeader),
            _ if state.in_recovery && lags(*lag) => Some(Unfit::Lagging),
            Attrs::ReadWrite if state.read_only => Some(Unfit::ReadOnly),
            Attrs::PreferStandby if !state.in_recovery && standby_is_there => {
                Some(Unfit::StandbyIsThere)
            }
            _ => None,
        }
    };
    wants.servers.iter().filter_map(|server| Some((server.clone(), judge(server)?))).collect()
}

impl Dialler {
    /// Looks at a server, by a connection of its own, which no limit of ours counts. `None`: this login
    /// cannot, because the server refuses it (it may have no more connections for this role), or its
    /// password is not available within `within`.
    pub async fn look_at(
        &self,
        server: &ServerAddress,
        target: &Target,
        login: &Login,
        within: Duration,
    ) -> Option<Standing> {
        let credentials = match target.password.as_ref() {
            Some(source) if source.user == login.user => {
                self.passwords.get_soon(source, target.connect_timeout, within).await?
            }
            _ => login.credentials.clone(),
        };
        let look = async {
            let target = Target { reports: false, hands_over: false, ..target.clone() };
            let login = Login {
                replication: Replication::None,
                parameters: Vec::new(),
                start: vec![(NAME.0.into(), NAME.1.into())],
                credentials,
                ..login.clone()
            };
            let reached = self.dial_server(server, &target, &login, TargetSessionAttrs::Any).await;
            let (mut talk, ..): Reached = match reached {
                Ok(reached) => reached,
                Err(DialError::Refused { error, .. })
                    if error.code == SqlState::CANNOT_CONNECT_NOW =>
                {
                    return Some(Standing::NotAccepting);
                }
                Err(error) if error.ends_the_search() || error.is_without_room() => return None,
                Err(_) => return Some(Standing::Unknown),
            };
            let state = talk.query(QUESTION).await.ok().as_ref().and_then(State::read);
            talk.terminate().await;
            Some(state.map_or(Standing::Unknown, Standing::Serving))
        };
        timeout(within, look).await.unwrap_or(Some(Standing::Unknown))
    }

    /// Keeps what is known about the servers that are looked at.
    pub fn set_looks(&self, mut looks: Looks) -> Looks {
        let deposed = locked(&self.deposed);
        for (server, look) in &mut looks {
            look.is_deposed = deposed.contains(server);
        }
        locked(&self.looks).clone_from(&looks);
        looks
    }

    /// Of these servers, or of all, a cluster manager has said that these are not its leader.
    pub fn set_deposed(&self, of: Option<&[ServerAddress]>, deposed: &[&ServerAddress]) {
        let mut all = locked(&self.deposed);
        all.retain(|server| of.is_some_and(|of| !of.contains(server)));
        all.extend(deposed.iter().map(|server| (*server).clone()));
    }

    /// Why a server lags too much, if it does.
    pub(super) fn lags_too_much(
        &self,
        server: &ServerAddress,
        target: &Target,
    ) -> Option<DialError> {
        let most = target.max_replica_lag?;
        let lag = locked(&self.looks).get(server).map(|look| look.lag.at_least());
        let lag = lag.filter(|lag| *lag > most)?;
        Some(DialError::Lagging { server: server.to_string(), lag, most })
    }

    /// The numbers of a server's addresses that have been connected to.
    pub fn ids_of(&self, servers: &[&ServerAddress]) -> Vec<ServerAddressId> {
        let places = locked(&self.places);
        places
            .by_id
            .iter()
            .filter(|(_, (place, _))| servers.contains(&&place.configured))
            .map(|(id, _)| *id)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::target;
    use super::*;
    use crate::tls::connect::Connecting;

    fn server(name: &str) -> ServerAddress {
        ServerAddress::Unix(name.into())
    }

    #[test]
    fn lag_is_the_age_of_the_first_wal_that_is_missing() {
        let (begun, seconds) = (Instant::now(), Duration::from_secs);
        let mut history = WalHistory::default();
        assert_eq!(history.lag(0, begun), None, "there is no primary");
        let primary = server("/one");
        for (second, wal) in [(0, 100), (1, 200), (2, 200), (9, 300)] {
            history.add(&primary, wal, begun + seconds(second));
        }
        let now = begun + seconds(10);
        assert_eq!(history.lag(300, now), Some(Duration::ZERO));
        assert_eq!(history.lag(299, now), Some(seconds(1)));
        assert_eq!(history.lag(200, now), Some(seconds(1)), "an idle primary adds no lag");
        assert_eq!(history.lag(150, now), Some(seconds(9)));
        assert_eq!(history.lag(0, now), Some(seconds(10)));
        for number in 0..10 * SAMPLES_MAX as u64 {
            history.add(&primary, 301 + number, now + seconds(number));
            assert!(history.samples.len() <= SAMPLES_MAX);
        }
        // Another primary's WAL has its own history.
        history.add(&server("/two"), 50, now);
        assert_eq!(history.lag(50, now), Some(Duration::ZERO));
    }

    #[test]
    fn a_server_is_unfit_by_what_the_database_asks_for() {
        use TargetSessionAttrs as Attrs;
        let of = |in_recovery, read_only| {
            Standing::Serving(State { in_recovery, read_only, wal: 1, own_lag: Duration::ZERO })
        };
        let (primary, standby) = (of(false, false), of(true, false));
        let (read_only, away) = (of(false, true), Standing::NotAccepting);
        let names = ["/one", "/two"].map(server);
        let judge = |attrs, standings: [Standing; 2], lag: u64| {
            let mut target = target(&[&names[0], &names[1]], Connecting::never());
            target.session_attrs = attrs;
            target.max_replica_lag = Some(Duration::from_secs(5));
            let lag = Lag::Measured(Duration::from_secs(lag));
            let looks = standings.map(|standing| Look {
                standing,
                lag,
                silent: false,
                is_deposed: false,
                answered: Time::ZERO,
            });
            let found = unfit(&target.wants(), &names.iter().cloned().zip(looks).collect());
            names
                .clone()
                .map(|name| found.iter().find(|(one, _)| *one == name).map(|(_, why)| *why))
        };
        let (kind, lags) = (Some(Unfit::Kind), Some(Unfit::Lagging));
        let both = [primary, standby];
        for (attrs, lag, expected) in [
            (Attrs::Any, 5, [None, None]),
            (Attrs::Any, 6, [None, lags]),
            (Attrs::Primary, 6, [None, kind]),
            (Attrs::ReadWrite, 6, [None, kind]),
            (Attrs::Standby, 5, [kind, None]),
            (Attrs::Standby, 6, [kind, lags]),
            (Attrs::ReadOnly, 5, [None, None]),
            (Attrs::PreferStandby, 5, [Some(Unfit::StandbyIsThere), None]),
            (Attrs::PreferStandby, 6, [None, lags]),
        ] {
            assert_eq!(judge(attrs, both, lag), expected, "{attrs} with {lag} s");
        }
        let unknown = judge(Attrs::PreferStandby, [primary, Standing::Unknown], 0);
        assert_eq!(unknown, [None, None], "one that gives no answer says nothing");
        let not_accepting = Some(Unfit::NotAccepting);
        assert_eq!(judge(Attrs::Primary, [away, standby], 0), [not_accepting, kind]);
        let turned = Some(Unfit::ReadOnly);
        assert_eq!(judge(Attrs::ReadWrite, [read_only, primary], 0), [turned, None]);
        assert_eq!(judge(Attrs::Primary, [read_only, primary], 0), [None, None]);
    }

    #[test]
    fn wal_that_is_lost_is_not_compared_with() {
        let server = ServerAddress::Unix("/one".into());
        let (now, mut history) = (Instant::now(), WalHistory::default());
        history.add(&server, 1_000, now);
        history.add(&server, 100, now + Duration::from_secs(60)); // restored
        assert_eq!(history.lag(100, now + Duration::from_secs(90)), Some(Duration::ZERO));
    }

    #[test]
    fn positions_in_wal_are_read() {
        assert_eq!(lsn(b"16/B374D848"), Some(0x16_B374_D848));
        for text in [&b""[..], b"16", b"16/x", b"1FFFFFFFF/0"] {
            assert_eq!(lsn(text), None);
        }
    }
}
