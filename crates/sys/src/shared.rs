//! Memory that several processes have mapped: memfd_create(2), sealed so that nobody changes its size.
//!
//! # Model
//! An array of 32-bit words, all atomic: what another process writes meanwhile is read as one of the
//! values that were written, and nothing worse.
//!
//! # Limits
//! Linux 3.17 (memfd_create, seals).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// Shared memory. Its pages cost nothing until they are written.
#[derive(Debug)]
pub struct SharedWords {
    fd: OwnedFd,
    first: NonNull<AtomicU32>,
    count: usize,
}

// SAFETY: the mapping belongs to this value alone in this process, and is only reached as atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// That many words, all 0.
    ///
    /// # Errors
    /// As memfd_create(2), ftruncate(2), fcntl(2) and mmap(2).
    pub fn new(name: &str, count: usize) -> io::Result<Self> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let bytes = count.checked_mul(size_of::<u32>()).ok_or(io::ErrorKind::InvalidInput)?;
        ftruncate(&fd, bytes as u64)?;
        // A process that has mapped it would be killed by SIGBUS if it became shorter.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&fd),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { fd, first, count })
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: the mapping has that many words, is aligned to a page, lives as long as this value, and
        // cannot become shorter.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }

    /// The descriptor by which other processes map it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, to which no reference is left.
        unsafe {
            libc::munmap(self.first.as_ptr().cast(), self.count * size_of::<u32>());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_are_zero_and_keep_what_is_written_and_the_size_stays() {
        let shared = SharedWords::new("test", 3000).unwrap();
        assert!(shared.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
        shared.words()[2999].store(7, Ordering::Relaxed);
        assert_eq!(shared.words()[2999].load(Ordering::Relaxed), 7);
        assert!(ftruncate(shared.fd(), 4).is_err());
    }
}
