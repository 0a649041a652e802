//! Tries many interleavings of senders and a receiver.
//!
//! A test shows that these tests can fail: [`a_missing_wake_up_is_found`]. Two mutations of
//! `queue.rs` are also found, as deadlocks: `resting` set after the lock is released in `try_rest`,
//! and the test of `resting` before the push in `send`.
//!
//! # Limits
//! Atomics are sequentially consistent here, whatever ordering is asked for: comments argue that
//! relaxed ones suffice; that is not tested.

mod sync {
    pub(super) use shuttle::sync::atomic::{AtomicBool, Ordering};
    pub(super) use shuttle::sync::{Mutex, MutexGuard};
    pub(super) use std::sync::PoisonError;
}

#[expect(unreachable_pub, reason = "public where it is compiled for the program")]
#[expect(clippy::duplicate_mod, reason = "with other primitives")]
#[path = "queue.rs"]
mod queue;

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering as StdOrdering};

use queue::{Mailbox, Wake};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

const SCHEDULES: usize = 3_000;
const SENDERS: usize = 3;
const EACH_SENDS: usize = 3;

/// Stands for eventfd and epoll: a wait that ends when, and only when, it was woken since the last
/// one ended.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }

    /// A wait with a timeout of zero.
    fn look(&self) {
        *self.rung.lock().unwrap() = false;
    }
}

struct Ring(Arc<Bell>);

impl Wake for Ring {
    fn wake(&self) {
        *self.0.rung.lock().unwrap() = true;
        self.0.changed.notify_one();
    }
}

/// A waker that forgets to.
struct Silent;

impl Wake for Silent {
    fn wake(&self) {}
}

/// Several senders, and a receiver that sleeps whenever it may. Returns how often it slept.
fn exchange<W: Wake + Send + Sync + 'static>(bell: &Bell, wake: W) -> usize {
    let mailbox = Arc::new(Mailbox::new(wake));
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let mailbox = mailbox.clone();
            thread::spawn(move || {
                for number in 0..EACH_SENDS {
                    // The first sender leaves its messages, for which its last one wakes the
                    // receiver.
                    if sender == 0 && number + 1 < EACH_SENDS {
                        mailbox.leave((sender, number));
                    } else if sender == 1 {
                        mailbox.leave((sender, number));
                        mailbox.nudge();
                    } else {
                        mailbox.send((sender, number));
                    }
                }
            })
        })
        .collect();
    let mut next = [0; SENDERS];
    let mut inbox = Vec::new();
    let mut slept = 0;
    while next != [EACH_SENDS; SENDERS] {
        if inbox.is_empty() && mailbox.try_rest(&mut inbox) {
            bell.wait();
            slept += 1;
        } else {
            bell.look();
        }
        mailbox.woken();
        mailbox.take(&mut inbox);
        for (sender, number) in inbox.drain(..) {
            assert_eq!(number, next[sender], "a message out of its sender's order");
            next[sender] += 1;
        }
    }
    for sender in senders {
        sender.join().unwrap();
    }
    mailbox.take(&mut inbox);
    assert_eq!(inbox, []);
    slept
}

#[test]
fn every_message_comes_in_order_and_no_wake_up_is_lost() {
    let most = StdArc::new(AtomicUsize::new(0));
    let seen = most.clone();
    shuttle::check_random(
        move || {
            let bell = Arc::new(Bell::default());
            let slept = exchange(&bell, Ring(bell.clone()));
            seen.fetch_max(slept, StdOrdering::Relaxed);
        },
        SCHEDULES,
    );
    assert!(most.load(StdOrdering::Relaxed) > 1, "no schedule let the receiver sleep");
}

#[test]
fn a_few_changes_of_thread_at_the_worst_moments_lose_nothing() {
    shuttle::check_pct(
        || {
            let bell = Arc::new(Bell::default());
            exchange(&bell, Ring(bell.clone()));
        },
        SCHEDULES,
        3,
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_missing_wake_up_is_found() {
    shuttle::check_random(
        || {
            exchange(&Bell::default(), Silent);
        },
        SCHEDULES,
    );
}

#[test]
fn a_rest_costs_one_wake_up_at_most() {
    struct Counted(StdArc<AtomicUsize>);
    impl Wake for Counted {
        fn wake(&self) {
            self.0.fetch_add(1, StdOrdering::Relaxed);
        }
    }
    shuttle::check_random(
        || {
            let count = StdArc::new(AtomicUsize::new(0));
            let mailbox = Arc::new(Mailbox::new(Counted(count.clone())));
            assert!(mailbox.try_rest(&mut Vec::new()));
            let senders: Vec<_> = (0..SENDERS)
                .map(|sender| {
                    let mailbox = mailbox.clone();
                    thread::spawn(move || mailbox.send(sender))
                })
                .collect();
            for sender in senders {
                sender.join().unwrap();
            }
            assert_eq!(count.load(StdOrdering::Relaxed), 1);
            assert!(!mailbox.try_rest(&mut Vec::new()), "rested although messages were there");
            mailbox.send(SENDERS);
            assert_eq!(count.load(StdOrdering::Relaxed), 1, "woken although awake");
            mailbox.waker().wake();
            assert_eq!(count.load(StdOrdering::Relaxed), 2);
            mailbox.take(&mut Vec::new());
            assert!(mailbox.try_rest(&mut Vec::new()));
            mailbox.leave(SENDERS);
            assert_eq!(count.load(StdOrdering::Relaxed), 2, "woken for what can wait");
            mailbox.send(SENDERS);
            assert_eq!(count.load(StdOrdering::Relaxed), 3);
            let mut inbox = Vec::new();
            mailbox.take(&mut inbox);
            assert_eq!(inbox.len(), 2);
        },
        SCHEDULES,
    );
}
