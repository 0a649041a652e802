//! "cached plan must not change result type", and shared statements that the server has lost: healed
//! where no client can notice.
//!
//! # The trap
//! After DDL a statement prepared before it may give other columns; the server then refuses to
//! run it (`RevalidateCachedQuery`, plancache.c). A client that shares it, and prepared it after
//! the DDL or never looked at its columns, has done nothing wrong (trap 6). Nor has one whose shared
//! statement was taken away unseen: by a DEALLOCATE ALL within a function, for example.
//!
//! # Model
//! A pipeline that begins with a Bind of a shared statement outside a transaction is kept as the
//! client sent it, until its first answer. If that is the server's refusal, the client is not
//! told: the statement is prepared again and described, and the pipeline sent once more.
//!
//! ```text
//! Recording ──refusal──► Swallowing ──ready──► Checking ──as the client knows it──► sent again
//!     │ first answer         (up to its Sync)      └──────otherwise───► the refusal is passed on
//!     ▼
//!    Idle
//! ```
//!
//! # Invariants
//! * never within a transaction block, never after anything of the pipeline was answered (so
//!   nothing of it has been carried out: the refusal comes at the first Bind, the rest was
//!   ignored), never twice
//! * a client that has been given a description of the statement gets rows of that description, also
//!   where the pipeline asks for it anew; parameters likewise

use std::hash::Hasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip::SipHasher13;

use super::client::ClientStatement;
use super::host::Host;
use super::limits;
use super::request_queue::Request;
use super::socket::Socket;
use super::statement::Shape;
use super::table::Engine;
use crate::ids::Slot;
use crate::time::Time;
use crate::wire::error::field;
use crate::wire::frame;
use crate::wire::{TransactionStatus, build, frontend};

/// What a client has been told of a statement: hashes, 0 for nothing.
#[derive(Debug, Default)]
pub(super) struct Seen {
    rows: AtomicU64,
    parameters: AtomicU64,
    /// The types of the parameters, if there are any: as in a Parse.
    types: OnceLock<Box<[u8]>>,
    /// The statement on a server connection that the client has bound last, and since when it is there.
    bound: AtomicU64,
    since: AtomicU64,
}

impl Seen {
    pub(super) fn rows(&self, hash: u64) {
        self.rows.store(hash, Ordering::Relaxed);
    }

    /// The body of a ParameterDescription.
    pub(super) fn parameters(&self, body: &[u8]) {
        self.parameters.store(hash_of_parameters(body), Ordering::Relaxed);
        if body.len() > 2 {
            // (Told again, they are the same: see [`super::from_client::client_message::fit`].)
            self.types.get_or_init(|| body.into());
        }
    }

    /// What a portal's description says, it says of this one.
    pub(super) fn binds(&self, statement: u64, since: u64) {
        self.bound.store(statement, Ordering::Relaxed);
        self.since.store(since, Ordering::Relaxed);
    }

    pub(super) fn bound(&self) -> (u64, u64) {
        (self.bound.load(Ordering::Relaxed), self.since.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn told(&self) -> Shape {
        Shape {
            parameters: self.parameters.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
        }
    }

    /// The types of its parameters, as a Parse has them, if it has been told of any.
    pub(super) fn types(&self) -> Option<&[u8]> {
        self.types.get().map(|types| &**types)
    }
}

/// Hash of a RowDescription's body, `None` for NoData. Formats are left out: a statement's
/// description does not know them yet, its portal's does. So are the tables that columns come from,
/// which the server does not compare either (`RevalidateCachedQuery`, plancache.c): a table that was
/// made again as it was gives the same rows. Never 0; `u64::MAX` if it cannot be read whole.
pub(super) fn hash_of_rows(body: Option<&[u8]>) -> u64 {
    let Some(body) = body else { return 1 };
    let Some((count, mut rest)) = frame::take_u16(body) else { return u64::MAX };
    // The server's own bytes: no secret is needed, and this is hashed in each transaction that asks
    // for a description.
    let mut hash = mixed(ROWS_SEED, u64::from(count));
    for _ in 0..count {
        // Name; table, column, type, its length, its modifier; format.
        let Some((name, after)) = frame::take_string(rest) else { return u64::MAX };
        let (Some(fixed), Some(after)) = (after.get(6..16), after.get(18..)) else {
            return u64::MAX;
        };
        let (words, last) = name.as_chunks::<8>();
        for word in words {
            hash = mixed(hash, u64::from_le_bytes(*word));
        }
        let last = last.iter().fold(name.len() as u64, |word, byte| word << 8 | u64::from(*byte));
        hash = mixed(hash, last);
        let (words, last) = fixed.as_chunks::<8>();
        for word in words {
            hash = mixed(hash, u64::from_le_bytes(*word));
        }
        hash = mixed(hash, last.iter().fold(1, |word, byte| word << 8 | u64::from(*byte)));
        rest = after;
    }
    hash.clamp(2, u64::MAX - 1)
}

/// Any number will do that has no pattern: from pi.
const ROWS_SEED: u64 = 0x243f_6a88_85a3_08d3;

/// One word more in a hash: the two halves of a product, of which each bit depends on both factors.
#[inline]
fn mixed(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
    (product as u64) ^ ((product >> 64) as u64)
}

/// Hash of a ParameterDescription's body. Never 0 nor `u64::MAX`.
pub(super) fn hash_of_parameters(body: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0); // the server's own bytes: no secret is needed
    hasher.write(body);
    hasher.finish().clamp(2, u64::MAX - 1)
}

/// Whether an error about a shared statement says that it was prepared before its result changed,
/// or that the server does not have it. Its name is ours alone: something has taken it away unseen,
/// and the next to use it must not find that again.
pub(super) fn is_stale_or_lost(error: &[u8]) -> bool {
    match field(error, b'C') {
        Some(b"0A000") => field(error, b'R') == Some(b"RevalidateCachedQuery"),
        Some(b"26000") => true,
        _ => false,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Healing {
    /// Nothing is kept.
    #[default]
    Idle,
    /// The pipeline is kept; `ended`: with its Sync.
    Recording { ended: bool },
    /// The refusal came; its ReadyForQuery has not.
    Swallowing,
    /// The statement is being prepared and described.
    Checking,
}

/// A pipeline that may be sent again.
#[derive(Debug, Default)]
pub(super) struct Replay {
    healing: Healing,
    bytes: Vec<u8>,
    /// Serial of the client's name for the statement.
    serial: u32,
    /// It is being sent again: not a third time.
    again: bool,
    /// The server's refusal.
    refusal: Vec<u8>,
    /// What the statement is like now.
    now: Shape,
    /// It could not be prepared again.
    failed: bool,
}

impl Replay {
    /// Whether a refusal is being dealt with: nothing else may be sent meanwhile.
    pub(super) fn is_healing(&self) -> bool {
        matches!(self.healing, Healing::Swallowing | Healing::Checking)
    }

    pub(super) fn is_checking(&self) -> bool {
        self.healing == Healing::Checking
    }

    /// Nothing is sent again: an answer came, or the client left.
    #[inline]
    pub(super) fn forget(&mut self) {
        if self.healing != Healing::Idle {
            self.healing = Healing::Idle;
            self.refusal = Vec::new();
        }
    }

    /// Begins with a Bind, the first message since everything was answered.
    pub(super) fn begin(&mut self, bind: &[u8], serial: u32) {
        if self.again || bind.len() > limits::REPLAY_BYTES {
            return;
        }
        self.healing = Healing::Recording { ended: false };
        self.bytes.clear();
        self.bytes.extend_from_slice(bind);
        self.serial = serial;
    }

    /// The same of a whole pipeline, which is its first Bind's alone.
    #[inline]
    pub(super) fn begin_whole(&mut self, pipeline: &[u8], serial: u32) {
        if self.again || pipeline.len() > limits::REPLAY_BYTES {
            return;
        }
        self.healing = Healing::Recording { ended: true };
        self.bytes.clear();
        self.bytes.extend_from_slice(pipeline);
        self.serial = serial;
    }

    /// Whether nothing is kept.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.healing == Healing::Idle
    }

    /// Keeps one more message; `whole`: all of it is here.
    #[inline]
    pub(super) fn record(&mut self, message: &[u8], whole: bool) {
        let Healing::Recording { ended } = self.healing else { return };
        let kind = message[0];
        let fits = whole && self.bytes.len() + message.len() <= limits::REPLAY_BYTES;
        let extended = matches!(
            kind,
            frontend::PARSE
                | frontend::BIND
                | frontend::DESCRIBE
                | frontend::EXECUTE
                | frontend::CLOSE
                | frontend::SYNC
        );
        if ended || !fits || !extended {
            self.forget();
            return;
        }
        self.bytes.extend_from_slice(message);
        self.healing = Healing::Recording { ended: kind == frontend::SYNC };
    }

    /// The server has refused the first Bind. Whether the client need not know, for now.
    pub(super) fn refused(&mut self, error: &[u8]) -> bool {
        if self.healing != (Healing::Recording { ended: true }) {
            return false;
        }
        self.healing = Healing::Swallowing;
        self.refusal.clear();
        build::message(&mut self.refusal, crate::wire::backend::ERROR, |out| {
            out.extend_from_slice(error);
        });
        (self.now, self.failed) = (Shape::default(), false);
        true
    }

    pub(super) fn check_failed(&mut self) {
        self.failed = true;
    }

    /// What the statement is like now; what is 0 is not said.
    pub(super) fn now(&mut self, shape: Shape) {
        if shape.parameters != 0 {
            self.now.parameters = shape.parameters;
        }
        if shape.rows != 0 {
            self.now.rows = shape.rows;
        }
    }

    /// Whether the client gets what it has been told that it gets.
    fn is_as_seen(&self, seen: &Seen) -> bool {
        !self.failed && self.now.fits(seen.told())
    }
}

impl<S: Socket> Engine<S> {
    /// The server is ready for the next step of the healing.
    pub(super) fn heal<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let Some(backend) = &mut client.backend else { return };
        // What the refused pipeline did to names has been taken back: it is there.
        let serial = backend.replay.serial;
        let named = client
            .statements
            .as_ref()
            .and_then(|names| names.names().pairs().find(|(_, named)| named.serial == serial))
            .map(|(_, named)| named.clone());
        match (backend.replay.healing, named) {
            (Healing::Swallowing, Some(ClientStatement { statement, .. })) => {
                let mut out = Vec::new();
                backend.replay.healing = Healing::Checking;
                backend.prepare(&statement, &mut out);
                build::message(&mut out, frontend::DESCRIBE, |out| {
                    out.push(b'S');
                    build::string(out, &statement.name);
                });
                out.extend_from_slice(&build::SYNC);
                backend.request(Request::InjectedDescribe { statement: statement.id });
                backend.request(Request::InjectedSync);
                self.write_to_backend(slot, &out);
            }
            (Healing::Checking, Some(named)) if backend.replay.is_as_seen(&named.seen) => {
                let bytes = std::mem::take(&mut backend.replay.bytes);
                backend.replay.forget();
                backend.replay.again = true;
                let behind = client.input.take();
                self.take_in(host, slot, &bytes, now);
                if let Some(client) = self.clients.get_mut(slot) {
                    client.input.extend_from_slice(&behind);
                    if let Some(backend) = &mut client.backend {
                        backend.replay.again = false;
                        backend.replay.bytes = bytes;
                    }
                }
            }
            _ => {
                let mut answer = std::mem::take(&mut backend.replay.refusal);
                backend.replay.forget();
                build::ready_for_query(&mut answer, TransactionStatus::Idle);
                self.answer(host, slot, &answer, &[], now);
                self.give_back_if_unused(host, slot, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(table: u32, column: u16, r#type: u32, modifier: i32, format: u16) -> u64 {
        let mut body = vec![0, 1, b'v', 0];
        body.extend_from_slice(&table.to_be_bytes());
        body.extend_from_slice(&column.to_be_bytes());
        body.extend_from_slice(&r#type.to_be_bytes());
        body.extend_from_slice(&4u16.to_be_bytes());
        body.extend_from_slice(&modifier.to_be_bytes());
        body.extend_from_slice(&format.to_be_bytes());
        hash_of_rows(Some(&body))
    }

    #[test]
    fn rows_of_a_table_that_was_made_again_as_it_was_are_the_same() {
        let first = described(16_384, 1, 23, -1, 0);
        assert_eq!(described(16_500, 2, 23, -1, 1), first, "another table, another format");
        assert_ne!(described(16_384, 1, 20, -1, 0), first, "another type");
        assert_ne!(described(16_384, 1, 23, 8, 0), first, "another modifier");
    }

    #[test]
    fn each_byte_of_a_name_and_a_type_and_their_place_counts() {
        let description = |columns: &[(&str, u32)]| {
            let mut body = u16::try_from(columns.len()).expect("few").to_be_bytes().to_vec();
            for (name, r#type) in columns {
                build::string(&mut body, name.as_bytes());
                body.extend_from_slice(&[0; 6]);
                body.extend_from_slice(&r#type.to_be_bytes());
                body.extend_from_slice(&[0; 8]);
            }
            hash_of_rows(Some(&body))
        };
        let mut seen = std::collections::BTreeSet::from([0, 1, u64::MAX]);
        let names = ["", "a", "b", "ab", "ba", "12345678", "123456789", "12345678a", "12345678ab"];
        for first in names {
            for second in names {
                for types in [(20, 23), (23, 20), (23, 23)] {
                    assert!(seen.insert(description(&[(first, types.0), (second, types.1)])));
                }
            }
            assert!(seen.insert(description(&[(first, 23)])));
        }
        assert!(seen.insert(description(&[])));
        assert_eq!(hash_of_rows(Some(&[0, 1])), u64::MAX, "it ends too early");
    }
}
