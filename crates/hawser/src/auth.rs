//! Who may log in, and how both ends prove it: the parts of a login that need no socket.
//!
//! # Model
//! A client's start-up message meets the rules of [`hba`]; the rule that fits names a method; the method runs on a
//! [`secret`]. Towards a server the same exchanges run the other way round.
//!
//! ```text
//!   pg_hba.conf ─► hba ─┬─ password, md5 ─► message, md5 ──┐
//!   pg_ident.conf ► ident ─ cert, peer ─► certificate      ├─► secret ◄── userlist.txt, auth_query
//!                       ├─ scram-sha-256 ─► message, scram ┘
//!                       └─ ldap, oauth ─► an LDAP server, jwt with the issuer's keys
//! ```
//!
//! # Invariants
//! - No socket, no clock and no randomness: messages, the time and nonces are arguments. Files are read by [`access`],
//!   [`records::Disk`] and [`userlist::Userlist::load`] only; an issuer's keys are fetched by [`key_sets`].
//! - Input from the wire never panics and costs a bounded amount of work; the one expensive step, PBKDF2, is a value
//!   ([`scram::Derivation`]) that the caller runs where it delays no client.
//! - A user who does not exist and a wrong password give the same messages by the same steps.
//! - No `Debug` output holds a secret.

pub mod access;
pub mod certificate;
pub mod hba;
pub mod ident;
pub mod jwt;
pub mod key_sets;
pub mod ldap;
pub mod md5;
pub mod message;
pub mod oauth;
pub mod pattern;
pub mod records;
pub mod roles;
pub mod scram;
pub mod secret;
pub mod userlist;
