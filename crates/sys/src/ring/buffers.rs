//! Buffers that the kernel takes for receives: a ring of entries that it shares with the program.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

/// Buffers of a ring; a power of two.
pub const BUFFERS: u16 = 1024;
/// What one takes. Most messages are shorter by far.
pub const BUFFER_BYTES: usize = 4096;
/// From one buffer to the next: a cache line more. At multiples of 4 KiB the first lines of all
/// buffers, which are mostly all that is used, would share a few sets of each cache.
const STRIDE_BYTES: usize = BUFFER_BYTES + 64;
/// The kernel wants the entries to begin a page; 64 KiB are the largest page there is.
const PAGE_BYTES: usize = 64 * 1024;

/// Memory of its own, zeroed, that begins a page.
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).expect("a size of a few MiB");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

// SAFETY: plain memory, which only its owner reaches from this program.
unsafe impl Send for Pages {}

/// The entries, and what they point to.
pub(super) struct Buffers {
    entries: Pages,
    memory: Pages,
    tail: u16,
    /// Which buffers the program has.
    lent: Box<[bool]>,
    lent_count: usize,
}

impl Buffers {
    /// All buffers are the kernel's from the start.
    pub(super) fn new() -> Self {
        let count = usize::from(BUFFERS);
        let mut buffers = Self {
            entries: Pages::new(count * size_of::<BufRingEntry>()),
            memory: Pages::new(count * STRIDE_BYTES),
            tail: 0,
            lent: vec![false; count].into(),
            lent_count: 0,
        };
        for buffer in 0..BUFFERS {
            buffers.put(buffer);
        }
        buffers
    }

    /// Where the entries begin.
    pub(super) fn address(&self) -> u64 {
        self.entries.start.as_ptr() as u64
    }

    fn put(&mut self, buffer: u16) {
        let entries = self.entries.start.as_ptr().cast::<BufRingEntry>();
        let at = usize::from(self.tail & (BUFFERS - 1));
        // SAFETY: `at` is below BUFFERS, for which there is room; zeroed memory is a valid entry. The
        // kernel reads an entry only once the tail has passed it, and there are no more entries
        // between its head and the tail than buffers, so that it does not read this one now.
        let entry = unsafe { &mut *entries.add(at) };
        // SAFETY: within the memory, for `buffer` is below BUFFERS.
        let start = unsafe { self.memory.start.as_ptr().add(usize::from(buffer) * STRIDE_BYTES) };
        entry.set_addr(start as u64);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: `entries` is the first entry. The tail lies in a field of it that `set_*` does not
        // touch, is aligned, and the kernel only reads it.
        let tail = unsafe { &*BufRingEntry::tail(entries).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }

    /// The kernel has filled a buffer.
    pub(super) fn lend(&mut self, buffer: u16) {
        self.lent[usize::from(buffer)] = true;
        self.lent_count += 1;
    }

    /// One that the program does not have is left alone.
    #[inline]
    pub(super) fn give_back(&mut self, buffer: u16) {
        let was = std::mem::take(&mut self.lent[usize::from(buffer)]);
        debug_assert!(was, "given back twice");
        if was {
            self.lent_count -= 1;
            self.put(buffer);
        }
    }

    pub(super) fn lent(&self) -> usize {
        self.lent_count
    }

    #[inline]
    pub(super) fn bytes(&self, buffer: u16, count: usize) -> &[u8] {
        let at = usize::from(buffer);
        assert!(at < usize::from(BUFFERS) && count <= BUFFER_BYTES && self.lent[at]);
        // SAFETY: within the memory, which is initialised. The kernel writes to a buffer that it has
        // lent only after it has been given back, which needs `&mut self`.
        unsafe {
            std::slice::from_raw_parts(self.memory.start.as_ptr().add(at * STRIDE_BYTES), count)
        }
    }
}
