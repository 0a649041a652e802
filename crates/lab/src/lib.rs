//! Networks to experiment in, and the simulated world in which Hawser's state machines are tested
//! whole.
//!
//! The laboratory, of which `hawser lab` is the command line:
//! - [`wan`]: networks by description, as pure functions of packets and time
//! - [`namespaces`]: the same, between network namespaces of this machine
//!
//! The simulation, for tests only (feature `simulation`):
//! - [`net`]: byte pipes in virtual time, with the manners of non-blocking sockets
//! - [`model`]: a PostgreSQL server as its clients see it, and clients that know every answer
//! - [`world`]: the real engines between the two, several loops of them, watched at each step
//! - [`rng`]: the one source of chance; a seed repeats a run exactly
//!
//! # Why not
//! A mocked server that plays back answers proves only what its author thought of. The model
//! here is a server in its own right, checked message by message against a real PostgreSQL
//! (`tests/model_is_postgresql.rs`), and each simulated client carries a private one: what the
//! client receives through the thing under test must be what its private server answers.

#[cfg(feature = "simulation")]
pub mod model;
pub mod namespaces;
#[cfg(feature = "simulation")]
pub mod net;
pub mod rng;
pub mod wan;
#[cfg(feature = "simulation")]
pub mod world;
