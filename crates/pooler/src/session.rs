//! What a PostgreSQL session is made of, and which parts of it a statement's text touches.
//!
//! # Model   a session is what its client has asked for; a backend is what has been applied to it.
//!           [`part`] names the parts of that state and says which move to another backend and
//!           which end with theirs. [`scan`] finds in the text of a
//!           query which parts it may touch; [`settings`] holds the part that moves most often, [`aside`] changes it for a moment,
//!           [`options`] where it starts and [`canonical`] in which form a server would show it;
//!           [`report`] reads what a server with the extension says of all of it. `calls` finds the
//!           calls in a text that can be replaced.
//! # Invariant  what is not understood never counts as harmless: it is `unsure`, and the caller
//!           pins the client to its backend.
//!
//! `docs/sessions/README.md` has the table of parts: how each becomes known, is applied and undone.

pub mod aside;
pub(crate) mod calls;
pub mod canonical;
pub(crate) mod commands;
pub(crate) mod moments;
pub mod options;
pub mod part;
pub mod scan;
pub mod settings;
pub(crate) mod token;
