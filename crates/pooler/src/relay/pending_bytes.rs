//! Bytes that wait: for the rest of a message, or for a socket that is full.
//!
//! # Why not a `Vec`
//! Of tens of thousands of connections almost none has such bytes at any moment, and an empty `Vec`
//! costs 24 bytes. This costs a pointer.

use std::ops::Deref;

/// Memory of bytes that have waited, to be reused.
#[derive(Debug)]
pub(crate) struct Spare {
    #[expect(clippy::vec_box, reason = "the boxes are what is used again")]
    memories: Vec<Box<Vec<u8>>>,
    /// The largest that is kept.
    bytes_max: usize,
}

/// Memories that are kept: enough for one turn.
const SPARE_MAX: usize = 64;
/// The largest that is kept for answers.
const ANSWER_BYTES_MAX: usize = 8 * 1024;
/// The largest that is kept for messages that wait for a server connection. Thousands of clients
/// may wait at once, each with such a memory, however short its message is.
const MESSAGE_BYTES_MAX: usize = 512;

impl Spare {
    pub(crate) const fn for_answers() -> Self {
        Self { memories: Vec::new(), bytes_max: ANSWER_BYTES_MAX }
    }

    /// For messages that wait.
    pub(crate) const fn for_messages() -> Self {
        Self { memories: Vec::new(), bytes_max: MESSAGE_BYTES_MAX }
    }
}

/// Bytes that wait. Holds no memory when there are none.
#[derive(Default, Debug)]
pub(crate) struct PendingBytes(
    #[expect(clippy::box_collection, reason = "one pointer where there are no bytes")]
    Option<Box<Vec<u8>>>,
);

impl PendingBytes {
    pub(crate) const EMPTY: Self = Self(None);

    /// Adds bytes at the end.
    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.0.get_or_insert_default().extend_from_slice(bytes);
        }
    }

    /// The same, with reused memory if there are none yet.
    pub(crate) fn extend_in(&mut self, bytes: &[u8], spare: &mut Spare) {
        if bytes.is_empty() {
            return;
        }
        if self.0.is_none() && bytes.len() <= spare.bytes_max {
            self.0 = spare.memories.pop();
        }
        self.0.get_or_insert_default().extend_from_slice(bytes);
    }

    /// Removes all, and leaves the memory for reuse.
    pub(crate) fn clear_into(&mut self, spare: &mut Spare) {
        if let Some(mut bytes) = self.0.take()
            && bytes.capacity() <= spare.bytes_max
            && spare.memories.len() < SPARE_MAX
        {
            bytes.clear();
            spare.memories.push(bytes);
        }
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Removes the first `count`.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn forget_first(&mut self, count: usize) {
        if count == self.len() {
            self.clear();
        } else if let Some(bytes) = &mut self.0 {
            bytes.drain(..count);
        }
    }

    /// Takes all of them.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.0.take().map_or_else(Vec::new, |bytes| *bytes)
    }
}

impl From<Vec<u8>> for PendingBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self((!bytes.is_empty()).then(|| Box::new(bytes)))
    }
}

impl Deref for PendingBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |bytes| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_costs_a_pointer() {
        assert_eq!(size_of::<PendingBytes>(), size_of::<usize>());
        let mut kept = PendingBytes::from(b"abc".to_vec());
        kept.forget_first(3);
        assert!(kept.0.is_none() && PendingBytes::from(Vec::new()).0.is_none());
        kept.extend_from_slice(b"");
        assert!(kept.0.is_none());
    }

    #[test]
    fn memory_that_was_used_is_used_again_and_not_hoarded() {
        let mut spare = Spare::for_answers();
        let mut kept = PendingBytes::EMPTY;
        kept.extend_in(b"abc", &mut spare);
        let memory = kept.as_ptr();
        kept.clear_into(&mut spare);
        assert!(kept.0.is_none() && spare.memories.len() == 1);
        kept.extend_in(b"de", &mut spare);
        assert_eq!((&*kept, kept.as_ptr()), (&b"de"[..], memory));
        kept.extend_from_slice(&vec![0; ANSWER_BYTES_MAX]);
        kept.clear_into(&mut spare);
        assert!(spare.memories.is_empty(), "too large to be kept");
        let mut spare = Spare::for_messages();
        for (bytes, kept_of_it) in [(MESSAGE_BYTES_MAX + 1, 0), (MESSAGE_BYTES_MAX, 1)] {
            kept.extend_in(&vec![0; bytes], &mut spare);
            kept.clear_into(&mut spare);
            assert_eq!(spare.memories.len(), kept_of_it, "{bytes}");
        }
        kept.extend_in(&[0; MESSAGE_BYTES_MAX + 1], &mut spare);
        assert_eq!(spare.memories.len(), 1, "it would have to grow");
    }

    #[test]
    fn bytes_come_out_in_the_order_in_which_they_were_added() {
        let mut kept = PendingBytes::EMPTY;
        kept.extend_from_slice(b"abc");
        kept.extend_from_slice(b"de");
        kept.forget_first(2);
        assert_eq!(&*kept, b"cde");
        assert_eq!(kept.take(), b"cde");
        assert!(kept.is_empty());
    }
}
