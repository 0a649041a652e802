//! The first frame of a path at the end that accepts: which session it is for.
//!
//! # Invariants
//! * only the bytes of one Hello are kept, and nothing is answered before it is complete
//! * a peer can find out whether a session exists only by its token, which is 128 random bits, and
//!   the host gives a session's paths only to the key that began it

use super::Token;
use super::frame::{Frame, Refusal, VERSION_MAX, VERSION_MIN};

/// Bytes of a Hello.
const HELLO_BYTES: usize = 24;

/// What a Hello asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeted {
    /// The session's.
    pub token: Token,
    /// Whether it may be a new one.
    pub fresh: bool,
    /// The newest version that both ends speak.
    pub version: u8,
}

/// Why a path is closed at its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotGreeted {
    /// No Hello: nothing is answered.
    Wrong,
    /// It speaks other versions: [`refusal`] gives those of this end.
    Version(u8, u8),
}

/// Collects a Hello.
#[derive(Clone, Debug, Default)]
pub struct Greeting {
    bytes: Vec<u8>,
}

impl Greeting {
    /// Takes bytes; returns the Hello once it is complete. The near end sends nothing more before
    /// it is answered, so bytes after it are wrong.
    ///
    /// # Errors
    /// [`NotGreeted`].
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Greeted>, NotGreeted> {
        if self.bytes.len() + bytes.len() > HELLO_BYTES {
            return Err(NotGreeted::Wrong);
        }
        self.bytes.extend_from_slice(bytes);
        match Frame::read(&self.bytes) {
            Ok(None) => Ok(None),
            Ok(Some((Frame::Hello { versions, fresh, token }, _))) => {
                if versions.0 > VERSION_MAX || versions.1 < VERSION_MIN {
                    return Err(NotGreeted::Version(versions.0, versions.1));
                }
                let version = versions.1.min(VERSION_MAX);
                Ok(Some(Greeted { token, fresh, version }))
            }
            Ok(Some(_)) | Err(_) => Err(NotGreeted::Wrong),
        }
    }
}

/// The bytes of a refusal.
#[must_use]
pub fn refusal(refusal: Refusal) -> Vec<u8> {
    let mut out = Vec::new();
    Frame::Refused { refusal, versions: (VERSION_MIN, VERSION_MAX) }.write(&mut out);
    out
}
