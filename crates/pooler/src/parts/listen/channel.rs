//! A channel's name.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The name of a channel, as the server has it: at most 63 bytes, in the client's encoding.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(Arc<[u8]>);

impl Channel {
    /// The channel of this name.
    pub fn new(name: &[u8]) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Appends it as an identifier: quoted, whatever it is.
    pub fn write_quoted(&self, out: &mut Vec<u8>) {
        out.push(b'"');
        for &byte in &*self.0 {
            if byte == b'"' {
                out.push(b'"');
            }
            out.push(byte);
        }
        out.push(b'"');
    }
}

impl Borrow<[u8]> for Channel {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}
