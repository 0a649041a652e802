//! clock_gettime(2), as the event loops read it: once a turn, in microseconds.
//!
//! [`std::time::Instant`] is the same clock through the same vDSO; but the difference of two is
//! reckoned in seconds and nanoseconds with each borrow checked, which costs a loop three times as
//! much as the reading.

/// Microseconds of CLOCK_MONOTONIC. Linux 2.6.
#[inline]
pub fn monotonic_micros() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec that may be written; the call keeps no pointer. It cannot fail for
    // this clock, which is never negative. (By libc and not rustix, whose own way to the vDSO
    // valgrind cannot follow.)
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1000
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn it_goes_with_the_standard_librarys() {
        let (began, micros) = (Instant::now(), monotonic_micros());
        std::thread::sleep(Duration::from_millis(20));
        let passed = u128::from(monotonic_micros() - micros);
        assert!(passed >= 19_999, "{passed}");
        assert!(passed <= began.elapsed().as_micros() + 1, "{passed}");
    }
}
