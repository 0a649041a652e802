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

/// The processor time of this thread, in the kernel and outside of it: what other threads take of
/// the machine does not count. Linux 2.6.12.
pub fn thread_cpu() -> std::time::Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above, for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    std::time::Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned() as u32)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_thread_that_sleeps_takes_no_processor_time() {
        let began = thread_cpu();
        std::thread::sleep(Duration::from_millis(50));
        let slept = thread_cpu() - began;
        assert!(slept < Duration::from_millis(40), "{slept:?}");
        let mut sum = 0_u64;
        while thread_cpu() - began < slept + Duration::from_millis(2) {
            sum = std::hint::black_box(sum + 1);
        }
    }

    #[test]
    fn it_goes_with_the_standard_librarys() {
        let (began, micros) = (Instant::now(), monotonic_micros());
        std::thread::sleep(Duration::from_millis(20));
        let passed = u128::from(monotonic_micros() - micros);
        assert!(passed >= 19_999, "{passed}");
        assert!(passed <= began.elapsed().as_micros() + 1, "{passed}");
    }
}
