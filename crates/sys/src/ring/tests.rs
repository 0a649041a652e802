//! The real ring, where the kernel has one.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::*;
use crate::eventfd::EventFd;

const SOON: Duration = Duration::from_secs(5);

/// A ring of this thread; none, with the reason said, where the kernel refuses.
fn ring() -> Option<Ring> {
    match Ring::new() {
        Ok(mut ring) => {
            ring.enable().unwrap();
            Some(ring)
        }
        Err(refusal) => {
            eprintln!("skipped: {refusal}");
            None
        }
    }
}

/// All that comes up to and with `count` completions.
fn wait_for(ring: &mut Ring, count: usize) -> Vec<Completion> {
    let mut taken = Vec::new();
    for _ in 0..1000 {
        ring.submit_and_wait(SOON).unwrap();
        ring.take(&mut taken);
        if taken.len() >= count {
            return taken;
        }
    }
    panic!("{count} completions did not come: {taken:?}");
}

fn bytes(ring: &mut Ring, completion: Completion) -> Vec<u8> {
    let buffer = completion.buffer.unwrap();
    let bytes = ring.bytes(buffer, usize::try_from(completion.result).unwrap()).to_vec();
    ring.give_back(buffer);
    bytes
}

#[test]
fn one_receive_reports_all_that_comes_and_then_the_end() {
    let Some(mut ring) = ring() else { return };
    let (near, mut far) = UnixStream::pair().unwrap();
    ring.receive(near.as_fd(), 7);
    for text in [b"first", b"other"] {
        far.write_all(text).unwrap();
        let got = wait_for(&mut ring, 1);
        assert_eq!((got.len(), got[0].data, got[0].more), (1, 7, true));
        assert_eq!(bytes(&mut ring, got[0]), text);
    }
    drop(far);
    let got = wait_for(&mut ring, 1);
    assert_eq!((got[0].result, got[0].buffer, got[0].more), (0, None, false));
    assert_eq!(ring.lent(), 0);
}

#[test]
fn a_receive_is_of_the_socket_it_was_made_for_though_its_number_is_anothers_soon() {
    let Some(mut ring) = ring() else { return };
    let (near, mut far) = UnixStream::pair().unwrap();
    let (other, mut others) = UnixStream::pair().unwrap();
    ring.receive(near.as_fd(), 7);
    let mut number = OwnedFd::from(near);
    rustix::io::dup2(&other, &mut number).unwrap(); // closed, and its number given to another
    others.write_all(b"another's").unwrap();
    far.write_all(b"its own").unwrap();
    let got = wait_for(&mut ring, 1);
    assert_eq!(bytes(&mut ring, got[0]), b"its own");
    drop(far);
    assert_eq!(wait_for(&mut ring, 1)[0].result, 0);
    let mut read = [0; 9];
    UnixStream::from(number).read_exact(&mut read).unwrap();
    assert_eq!(&read, b"another's");
}

#[test]
fn a_ring_that_runs_dry_says_so_and_goes_on_when_buffers_are_back() {
    let Some(mut ring) = ring() else { return };
    let pairs: Vec<_> =
        (0..usize::from(BUFFERS) + 1).map(|_| UnixStream::pair().unwrap()).collect();
    for (at, (near, far)) in pairs.iter().enumerate() {
        (&mut &*far).write_all(&[1]).unwrap();
        ring.receive(near.as_fd(), at as u64);
    }
    let got = wait_for(&mut ring, pairs.len());
    let dry: Vec<_> = got.iter().filter(|got| got.result == -libc::ENOBUFS).collect();
    assert_eq!(dry.len(), 1, "one buffer less than connections");
    assert!(!dry[0].more);
    assert_eq!(ring.lent(), usize::from(BUFFERS));
    let again = dry[0].data;
    for got in got.iter().filter(|got| got.buffer.is_some()) {
        ring.give_back(got.buffer.unwrap());
    }
    ring.receive(pairs[usize::try_from(again).unwrap()].0.as_fd(), again);
    let got = wait_for(&mut ring, 1);
    assert_eq!((got[0].data, got[0].result), (again, 1));
}

#[test]
fn more_than_a_buffer_comes_in_several_in_order() {
    let Some(mut ring) = ring() else { return };
    let (near, mut far) = UnixStream::pair().unwrap();
    let sent: Vec<u8> = (0..3 * BUFFER_BYTES as u32 + 5).map(|at| (at % 251) as u8).collect();
    far.write_all(&sent).unwrap();
    ring.receive(near.as_fd(), 1);
    let mut received = Vec::new();
    while received.len() < sent.len() {
        for got in wait_for(&mut ring, 1) {
            received.extend(bytes(&mut ring, got));
        }
    }
    assert!(received == sent);
}

#[test]
fn a_cancelled_receive_says_so_and_takes_nothing_more() {
    let Some(mut ring) = ring() else { return };
    let (near, mut far) = UnixStream::pair().unwrap();
    ring.receive(near.as_fd(), 3);
    ring.submit_and_wait(Duration::ZERO).unwrap();
    ring.cancel(3);
    ring.submit_and_wait(Duration::ZERO).unwrap();
    let mut taken = Vec::new();
    ring.take(&mut taken);
    // Within one call: a connection changes its loop on that.
    assert_eq!(taken.len(), 1);
    assert_eq!((taken[0].data, taken[0].result, taken[0].more), (3, -libc::ECANCELED, false));
    far.write_all(b"later").unwrap();
    ring.submit_and_wait(Duration::from_millis(20)).unwrap();
    ring.take(&mut taken);
    assert_eq!(taken.len(), 1);
    let mut buf = [0; 5];
    (&mut &near).read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"later");
}

#[test]
fn cancelling_what_is_not_there_says_nothing() {
    let Some(mut ring) = ring() else { return };
    ring.cancel(99);
    ring.submit_and_wait(Duration::ZERO).unwrap();
    let mut taken = Vec::new();
    ring.take(&mut taken);
    assert_eq!(taken, []);
}

#[test]
fn a_closed_socket_whose_sending_is_shut_down_ends_its_receive() {
    let Some(mut ring) = ring() else { return };
    let (near, mut far) = UnixStream::pair().unwrap();
    ring.receive(near.as_fd(), 4);
    ring.submit_and_wait(Duration::ZERO).unwrap();
    near.shutdown(std::net::Shutdown::Both).unwrap();
    drop(near);
    assert_eq!(far.read(&mut [0; 1]).unwrap(), 0, "the peer sees it at once");
    let got = wait_for(&mut ring, 1);
    assert_eq!((got[0].data, got[0].result, got[0].more), (4, 0, false));
}

#[test]
fn room_and_hangups_are_reported_once() {
    let Some(mut ring) = ring() else { return };
    let (near, mut far) = UnixStream::pair().unwrap();
    let mut filled = 0;
    while let Ok(sent) = crate::stream::send(&near, &[0; 65536]) {
        filled += sent;
    }
    ring.poll(near.as_raw_fd(), Waited::Room, 5);
    ring.poll(near.as_raw_fd(), Waited::Hangup, 6);
    ring.submit_and_wait(Duration::from_millis(10)).unwrap();
    let mut taken = Vec::new();
    ring.take(&mut taken);
    assert_eq!(taken, []);
    let mut sink = vec![0; filled];
    far.read_exact(&mut sink).unwrap();
    let got = wait_for(&mut ring, 1);
    assert_eq!((got.len(), got[0].data, got[0].more), (1, 5, false));
    far.shutdown(std::net::Shutdown::Write).unwrap();
    let got = wait_for(&mut ring, 1);
    assert_eq!((got.len(), got[0].data, got[0].more), (1, 6, false));
}

#[test]
fn each_signal_of_an_eventfd_wakes_without_draining() {
    let Some(mut ring) = ring() else { return };
    let wake = EventFd::new().unwrap();
    ring.poll_readable(&wake, 8);
    for _ in 0..3 {
        wake.signal().unwrap();
        let got = wait_for(&mut ring, 1);
        assert_eq!((got.len(), got[0].data, got[0].more), (1, 8, true));
        ring.submit_and_wait(Duration::ZERO).unwrap();
        let mut taken = Vec::new();
        ring.take(&mut taken);
        assert_eq!(taken, []);
    }
}

#[test]
fn a_timeout_ends_a_wait_and_is_no_error() {
    let Some(mut ring) = ring() else { return };
    let before = std::time::Instant::now();
    ring.submit_and_wait(Duration::from_millis(30)).unwrap();
    assert!(before.elapsed() >= Duration::from_millis(30));
}

#[test]
fn requests_beyond_the_queue_are_all_taken() {
    let Some(mut ring) = ring() else { return };
    let (near, mut far) = UnixStream::pair().unwrap();
    for _ in 0..3 * REQUESTS {
        ring.cancel(1234);
    }
    ring.receive(near.as_fd(), 1);
    far.write_all(b"x").unwrap();
    let got = wait_for(&mut ring, 1);
    assert_eq!(got[0].data, 1);
}

#[test]
fn a_ring_moves_to_the_thread_that_enables_it() {
    let Ok(mut ring) = Ring::new() else { return eprintln!("skipped: no io_uring") };
    std::thread::spawn(move || {
        ring.enable().unwrap();
        ring.submit_and_wait(Duration::ZERO).unwrap();
    })
    .join()
    .unwrap();
}

#[test]
fn the_trial_agrees_with_the_ring() {
    let made = Ring::new().is_ok();
    assert_eq!(probe().is_ok(), made, "{:?}", probe());
}

#[test]
fn each_refusal_says_what_to_look_at() {
    let of = |number| Refusal::of_setup(io::Error::from_raw_os_error(number)).to_string();
    assert!(of(libc::ENOSYS).contains("no io_uring"));
    assert!(of(libc::EINVAL).contains("6.1"));
    assert!(of(libc::ENOMEM).contains("RLIMIT_MEMLOCK"));
    assert!(of(libc::EPERM).contains("seccomp") || of(libc::EPERM).contains("io_uring_disabled"));
}
