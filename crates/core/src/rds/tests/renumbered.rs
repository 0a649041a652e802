//! A kernel up to 6.18 that knew the last start of this host. It learns of this one by the probe, which it
//! answers with its old numbers, and numbers its messages from 1 after that.

use super::*;
use crate::rds::header::{FLAG_AGAIN, FLAGS_AT, PROBE_PORT};

const TO: u16 = 9;

struct Kernel {
    /// The number of the next message.
    next: u64,
    /// Messages that it does not know to have arrived.
    kept: Vec<Vec<u8>>,
    sent: u8,
}

impl Kernel {
    fn send(&mut self) -> Vec<u8> {
        self.sent += 1;
        let message = message(self.next, 4001, TO, 0, &[self.sent]);
        self.next += 1;
        self.kept.push(message.clone());
        message
    }

    /// Answers the probe of a new start. What it has kept for the last one is dropped.
    fn answer(&mut self, lanes: u8) -> Vec<u8> {
        let answer = probe(self.next, 0, PROBE_PORT, &[5, 0, lanes]);
        self.next = 1;
        self.kept.clear();
        answer
    }

    fn again(&mut self) -> Vec<u8> {
        self.kept.iter_mut().for_each(|message| message[FLAGS_AT] |= FLAG_AGAIN);
        [kernel_map(), self.kept.concat()].concat()
    }
}

fn bodies(node: &mut Node) -> Vec<u8> {
    std::iter::from_fn(|| node.receive(TO)).map(|datagram| datagram.body[0]).collect()
}

#[test]
fn messages_that_a_kernel_numbers_from_1_again_are_no_duplicates() {
    let now = Time::ZERO;
    for (lanes, with_others) in [(1, false), (8, false), (8, true)] {
        for (next, begins) in [(700, 1), (4, 3), (1, 0)] {
            let mut node = node(LARGE);
            node.bind(TO).unwrap();
            let mut kernel = Kernel { next, kept: Vec::new(), sent: 0 };
            let first = node.accept(address(SMALL), 50_000, now).unwrap();
            node.received(first, &kernel_map(), now);
            for _ in 0..begins {
                node.received(first, &kernel.send(), now);
            }
            node.received(first, &kernel.answer(lanes), now);
            if with_others {
                // (Another port of the same lane, with an old number: it was sent beside the answer.)
                node.received(first, &message(next + 100, 4001, TO, 0, &[0]), now);
            }
            let old = bodies(&mut node).len();
            // The connection is cut before the first one is whole.
            let messages: Vec<Vec<u8>> = (0..6).map(|_| kernel.send()).collect();
            node.received(first, &messages[0][..30], now);
            node.closed(first, now);
            let second = node.accept(address(SMALL), 50_001, now).unwrap();
            node.received(second, &kernel.again(), now);
            let wanted = kernel.sent - 6 + 1..=kernel.sent;
            assert_eq!(
                bodies(&mut node),
                wanted.collect::<Vec<u8>>(),
                "{lanes} lanes, {old} before"
            );
            // Of what comes once more, that which is new is taken.
            kernel.kept.drain(..3);
            kernel.send();
            node.closed(second, now);
            let third = node.accept(address(SMALL), 50_002, now).unwrap();
            node.received(third, &kernel.again(), now);
            assert_eq!(bodies(&mut node), [kernel.sent]);
        }
    }
}
