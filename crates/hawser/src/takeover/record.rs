//! Clients and pools as one process describes them to another, perhaps of another version.
//!
//! # Model
//! JSON by names: a field that the reader does not know is ignored, one that the writer did not know has a
//! default. Bytes are a string whose characters are U+0000 to U+00FF (Latin-1): texts stay
//! readable, and take one byte for each below 128.
//!
//! # Invariants
//! * a record that relies on something that a reader may not know names it in `needs`; a reader
//!   refuses a record with an unknown need, and the client stays
//! * both directions are written field by field: a new field of [`ClientRecord`] does not compile
//!   without a place here
//! * a number that only this process understands (an index, a moment) is not sent: moments become
//!   ages

use std::net::SocketAddr;
use std::sync::Arc;

use hawser_pooler::parts::start_values::parameters::ServerParameters;
use hawser_pooler::parts::statements::description::Described;
use hawser_pooler::relay::succession::{ClientRecord, StatementRecord, UnnamedRecord};
use hawser_pooler::relay::{ClientAbout, ClientSecret, PeerAddress, PoolMode};
use hawser_pooler::session::settings::{Settings, SettingsBuilder};
use hawser_pooler::time::Time;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::auth::md5::Md5Hash;
use crate::auth::scram::ScramVerifier;
use crate::auth::secret::{Password, Secret};

/// What records may need of their reader beyond the first version: that the client's TLS session, which the
/// kernel has, is not taken for plaintext.
const KNOWN_NEEDS: [&str; 1] = [KERNEL_TLS];
const KERNEL_TLS: &str = "kernel_tls";

/// Bytes, as a string of Latin-1.
#[derive(Clone, PartialEq, Eq, Debug, Default, derive_more::From)]
#[from(&[u8])]
pub struct Bytes(pub Box<[u8]>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = self.0.iter().map(|byte| char::from(*byte)).collect();
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = text.chars().map(|c| u8::try_from(u32::from(c)));
        let bytes: Result<Box<[u8]>, _> = bytes.collect();
        bytes.map(Self).map_err(|_| D::Error::custom("a character beyond U+00FF in bytes"))
    }
}

/// Names and values.
type Pairs = Vec<(Bytes, Bytes)>;

fn pairs_of<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Pairs {
    pairs.map(|(name, value)| (name.into(), value.into())).collect()
}

fn settings_of(pairs: &Pairs) -> Settings {
    let pairs = pairs.iter().map(|(name, value)| (&*name.0, &*value.0));
    pairs.collect::<SettingsBuilder>().build()
}

/// A prepared statement.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Statement {
    name: Bytes,
    body: Bytes,
    settings: Pairs,
    told: Description,
}

/// The description of a statement that a client has received.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Description {
    parameters: u64,
    rows: u64,
    types: Option<Bytes>,
}

impl From<Described> for Description {
    fn from(told: Described) -> Self {
        let Described { parameters, rows, types } = told;
        Self { parameters, rows, types: types.map(Bytes) }
    }
}

impl From<Description> for Described {
    fn from(told: Description) -> Self {
        let Description { parameters, rows, types } = told;
        Self { parameters, rows, types: types.map(|types| types.0) }
    }
}

/// An unnamed statement.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unnamed {
    body: Bytes,
    settings: Pairs,
    told: Option<Description>,
}

/// A client.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Client {
    needs: Vec<String>,
    process: u32,
    secret: Bytes,
    /// `None`: a unix socket.
    peer: Option<SocketAddr>,
    /// The user that logged in, if another than the pool's.
    user: Option<String>,
    mptcp: bool,
    /// What its TLS session is, which the kernel has; empty: none.
    tls: String,
    connected_ago_us: u64,
    mode: String,
    values: Pairs,
    start: Pairs,
    desired: Pairs,
    statements: Vec<Statement>,
    unnamed: Option<Unnamed>,
    reads_sequences: bool,
    idle_us: u64,
    schema_changes: u64,
}

/// Why a client cannot be taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotTaken {
    /// The record has a need that this version does not know.
    #[error("its session needs \"{0}\", which is not known here")]
    Needs(String),
    /// A value that this version does not know.
    #[error("its {0} is not known here")]
    Unknown(&'static str),
}

fn mode_name(mode: PoolMode) -> &'static str {
    match mode {
        PoolMode::Session => "session",
        PoolMode::Transaction => "transaction",
        PoolMode::Statement => "statement",
    }
}

fn mode_of(name: &str) -> Option<PoolMode> {
    [PoolMode::Session, PoolMode::Transaction, PoolMode::Statement]
        .into_iter()
        .find(|mode| mode_name(*mode) == name)
}

impl Client {
    /// From `record`, at this moment.
    pub fn of(record: &ClientRecord, now: Time) -> Self {
        let ClientRecord {
            process,
            secret,
            about,
            mode,
            values,
            start,
            desired,
            statements,
            unnamed,
            reads_sequences,
            since,
            schema_changes,
        } = record;
        let statement = |one: &StatementRecord| {
            let StatementRecord { name, body, settings, told } = one;
            Statement {
                name: Bytes(name.clone()),
                body: Bytes(body.clone()),
                settings: pairs_of(settings.iter()),
                told: told.clone().into(),
            }
        };
        let unnamed = unnamed.as_ref().map(|UnnamedRecord { body, settings, told }| Unnamed {
            body: Bytes(body.clone()),
            settings: pairs_of(settings.iter()),
            told: told.clone().map(Into::into),
        });
        Self {
            needs: (!about.tls().is_empty()).then(|| KERNEL_TLS.to_owned()).into_iter().collect(),
            process: *process,
            secret: (&**secret).into(),
            peer: match &about.peer {
                PeerAddress::Unix => None,
                PeerAddress::V4(address) => Some((*address).into()),
                PeerAddress::V6(address) => Some((**address).into()),
            },
            user: about.user().map(str::to_owned),
            mptcp: about.mptcp(),
            tls: about.tls().to_owned(),
            connected_ago_us: now.micros_since(about.connected),
            mode: mode_name(*mode).to_owned(),
            values: values.pairs.iter().map(|(n, v)| ((&**n).into(), (&**v).into())).collect(),
            start: pairs_of(start.iter()),
            desired: pairs_of(desired.iter()),
            statements: statements.iter().map(statement).collect(),
            unnamed,
            reads_sequences: *reads_sequences,
            idle_us: now.micros_since(*since),
            schema_changes: *schema_changes,
        }
    }

    /// The record, at this moment.
    ///
    /// # Errors
    /// This version does not know all of it.
    pub fn to_record(&self, now: Time) -> Result<ClientRecord, NotTaken> {
        if let Some(need) = self.needs.iter().find(|need| !KNOWN_NEEDS.contains(&need.as_str())) {
            return Err(NotTaken::Needs(need.clone()));
        }
        let ago = |us: u64| Time::from_micros(now.as_micros().saturating_sub(us));
        let peer = self.peer.map_or(PeerAddress::Unix, Into::into);
        let about =
            ClientAbout::new(peer, self.user.as_deref(), &self.tls, ago(self.connected_ago_us));
        let about = if self.mptcp { about.over_mptcp() } else { about };
        let statement = |one: &Statement| StatementRecord {
            name: one.name.0.clone(),
            body: one.body.0.clone(),
            settings: settings_of(&one.settings),
            told: one.told.clone().into(),
        };
        let unnamed = self.unnamed.as_ref().map(|one| UnnamedRecord {
            body: one.body.0.clone(),
            settings: settings_of(&one.settings),
            told: one.told.clone().map(Into::into),
        });
        let values = self.values.iter().map(|(n, v)| (n.0.clone(), v.0.clone())).collect();
        Ok(ClientRecord {
            process: self.process,
            secret: ClientSecret::from(&*self.secret.0),
            about,
            mode: mode_of(&self.mode).ok_or(NotTaken::Unknown("pool mode"))?,
            values: Arc::new(ServerParameters { pairs: values }),
            start: settings_of(&self.start),
            desired: settings_of(&self.desired),
            statements: self.statements.iter().map(statement).collect(),
            unnamed,
            reads_sequences: self.reads_sequences,
            since: ago(self.idle_us),
            schema_changes: self.schema_changes,
        })
    }

    /// The user that logged in, if another than the pool's.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Whether it came over MPTCP.
    pub fn is_mptcp(&self) -> bool {
        self.mptcp
    }

    /// Whether the kernel has its TLS session.
    pub fn is_tls(&self) -> bool {
        !self.tls.is_empty()
    }
}

/// A pool, as far as its clients need it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// The number by which clients name it.
    pub number: u32,
    /// The database that clients ask for.
    pub database: String,
    /// The role towards the server.
    pub user: String,
    /// Settings that only a connect can set.
    pub connect_only: Vec<(Bytes, Bytes)>,
    /// The credentials for the login to the server.
    pub credentials: Credentials,
    /// Server connections that the other process has.
    pub held: u32,
    /// Clients of its database ask for the values that they draw from sequences.
    pub asks: bool,
}

/// Credentials for a login to a server. Never printed.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, derive_more::Debug)]
#[serde(default)]
#[debug("Credentials(..)")]
pub struct Credentials {
    /// The secret.
    pub secret: SecretRecord,
    /// The stored form that a password was checked against.
    pub stored: Option<SecretRecord>,
    /// A SCRAM verifier, and the ClientKey that fits it.
    pub keys: Option<(String, String)>,
}

/// A secret. Never printed.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretRecord {
    /// There is none.
    #[default]
    None,
    /// A password.
    Plain(Bytes),
    /// The hash of the md5 method, as PostgreSQL stores it.
    Md5(String),
    /// A SCRAM verifier, as PostgreSQL stores it.
    Scram(String),
}

impl From<&Secret> for SecretRecord {
    fn from(secret: &Secret) -> Self {
        match secret {
            Secret::None => Self::None,
            Secret::Plain(password) => Self::Plain(password.as_bytes().into()),
            Secret::Md5(hash) => Self::Md5(hash.to_stored()),
            Secret::Scram(verifier) => Self::Scram(verifier.to_stored()),
        }
    }
}

impl From<&SecretRecord> for Secret {
    /// An unreadable one counts as none.
    fn from(record: &SecretRecord) -> Self {
        match record {
            SecretRecord::None => Self::None,
            SecretRecord::Plain(password) => Self::Plain(Password::from(&*password.0)),
            SecretRecord::Md5(hash) => Md5Hash::parse(hash).map_or(Self::None, Self::Md5),
            SecretRecord::Scram(text) => ScramVerifier::parse(text).map_or(Self::None, Self::Scram),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&[u8], &[u8])]) -> Settings {
        pairs.iter().copied().collect::<SettingsBuilder>().build()
    }

    fn record() -> ClientRecord {
        let values = ServerParameters { pairs: vec![((*b"TimeZone").into(), (*b"UTC").into())] };
        let about = ClientAbout::new(
            SocketAddr::from(([10, 0, 0, 1], 4711)).into(),
            Some("ann"),
            "TLSv1.3/TLS_AES_256_GCM_SHA384",
            Time::from_micros(1_000_000),
        );
        ClientRecord {
            process: 5_000_000,
            secret: ClientSecret::from(&[0, 1, 128, 255][..]),
            about: about.over_mptcp(),
            mode: PoolMode::Statement,
            values: Arc::new(values),
            start: settings(&[(b"timezone", b"CET")]),
            desired: settings(&[(b"timezone", b"CET"), (b"my.x", b"\xe9\0\xff\"\\")]),
            statements: vec![StatementRecord {
                name: (*b"s\xff").into(),
                body: (*b"SELECT $1\0\0\x01\0\0\0\x17").into(),
                settings: settings(&[(b"search_path", b"a, b")]),
                told: Described { parameters: u64::MAX, rows: 7, types: Some((*b"\0\x01").into()) },
            }],
            unnamed: Some(UnnamedRecord {
                body: (*b"SELECT 1\0\0\0").into(),
                settings: Settings::EMPTY,
                told: None,
            }),
            reads_sequences: true,
            since: Time::from_micros(2_000_000),
            schema_changes: 3,
        }
    }

    #[test]
    fn a_record_comes_out_as_it_went_in_and_moments_are_as_old() {
        let (sent, came) = (Time::from_micros(5_000_000), Time::from_micros(9_000_000));
        let json = serde_json::to_string(&Client::of(&record(), sent)).unwrap();
        let read: Client = serde_json::from_str(&json).unwrap();
        let (before, after) = (record(), read.to_record(came).unwrap());
        assert_eq!(after.process, before.process);
        assert!(after.secret == before.secret);
        assert_eq!(after.about.peer, before.about.peer);
        assert_eq!(after.about.user(), Some("ann"));
        assert_eq!((read.is_tls(), after.about.tls()), (true, before.about.tls()));
        assert!(after.about.mptcp());
        assert_eq!(came.micros_since(after.about.connected), 4_000_000);
        assert_eq!(came.micros_since(after.since), 3_000_000);
        assert_eq!(
            (after.mode, after.reads_sequences, after.schema_changes),
            (before.mode, true, 3)
        );
        assert_eq!(after.values, before.values);
        assert_eq!((&after.start, &after.desired), (&before.start, &before.desired));
        assert_eq!(after.desired.get(b"my.x"), Some(&b"\xe9\0\xff\"\\"[..]));
        assert_eq!((after.statements, after.unnamed), (before.statements, before.unnamed));
    }

    #[test]
    fn what_another_version_writes_is_read_and_a_need_that_is_not_known_refuses_the_client() {
        let older: Client =
            serde_json::from_str(r#"{"process": 5000000, "mode": "transaction"}"#).unwrap();
        assert!(older.to_record(Time::ZERO).unwrap().statements.is_empty());
        let newer: Client =
            serde_json::from_str(r#"{"mode": "transaction", "holds": {"a": [1]}}"#).unwrap();
        newer.to_record(Time::ZERO).unwrap();
        let needs: Client =
            serde_json::from_str(r#"{"mode": "transaction", "needs": ["dreams"]}"#).unwrap();
        assert_eq!(needs.to_record(Time::ZERO).err(), Some(NotTaken::Needs("dreams".to_owned())));
        let mode: Client = serde_json::from_str(r#"{"mode": "dream"}"#).unwrap();
        assert_eq!(mode.to_record(Time::ZERO).err(), Some(NotTaken::Unknown("pool mode")));
        assert!(serde_json::from_str::<Client>(r#"{"secret": "\u0100"}"#).is_err());
    }

    #[test]
    fn credentials_are_never_printed() {
        let secret = SecretRecord::Plain(Bytes((*b"pw").into()));
        let credentials = Credentials { secret, ..Default::default() };
        assert_eq!(format!("{credentials:?}"), "Credentials(..)");
    }
}
