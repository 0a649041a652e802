//! `hawser cc`: congestion control, of this machine, of a program, and of the pooler's connections.
//!
//! # Model
//! ```text
//!   kernel ── look ──► report ──► text | JSON        list
//!   serve ◄══ transfers ══► bench                    figures of the receiver
//!   apply, undo                                      for a destination, for the machine
//!   usage ── auto ── hawser_congestion::tuner                     for the pooler's own connections
//! ```
//! * [`look`]: reads everything once
//! * [`report`]: what is shown of it, and what stands in the way, in words; pure
//! * [`serve`], [`bench`]: the two ends of a comparison, over [`wire`] and [`transfer`]; [`figures`] is
//!   what comes of it, [`page`] shows it in a browser
//! * [`datagrams`]: what the path carries without any of them; [`postgres`]: what PostgreSQL's own
//!   programs get over it, through a [`relay`]; [`modules`]: those that are loaded for it
//! * [`apply`]: settings, files and routes, and taking them back
//! * [`usage`]: which algorithm the pooler's connections have
//! * [`auto`]: samples connections for the chooser and carries out its decisions
//!
//! # Limits
//! All of it is of the network namespace in which the command runs.

pub mod apply;
pub mod auto;
pub mod bench;
pub mod command;
pub mod datagrams;
pub mod figures;
pub mod look;
pub mod modules;
pub mod page;
pub mod postgres;
pub mod relay;
pub mod report;
pub mod serve;
pub mod transfer;
pub mod usage;
pub mod wire;
