//! The rule over both queues, in a seeded simulation: order, bound, no reader that waits for what is
//! there, and that each fails without.

use std::collections::VecDeque;

use hawser_time::seeded::Random;

use super::*;

const STEPS: usize = 4_000;
const SEEDS: u64 = 200;
const BUFFER_BYTES: u64 = 128 << 10;

/// One direction of a connection. Bytes are numbered from 0; what waits is ranges of them.
struct Connection {
    random: Random,
    sent: u64,
    read: u64,
    /// Given to TCP, not arrived.
    flight: VecDeque<(u64, u64)>,
    arrived: VecDeque<(u64, u64)>,
    messages: VecDeque<(u64, u64)>,
    sender: Sender,
    reader: Reader,
    enabled: bool,
    /// The reader waits for edges, and takes a short read for the end of what is there.
    by_edges: bool,
    /// It has got an event since its last short read.
    has_event: bool,
    largest: u64,
    most: usize,
    redirected: u64,
    passed: [u64; 3],
}

impl Connection {
    fn of_seed(seed: u64) -> Self {
        let mut random = Random::of_seed(seed);
        // Near the end of the numbers in some runs, because they wrap to 0.
        let first = u32::MAX - random.below(1 << 20) as u32;
        Self {
            random,
            sent: 0,
            read: 0,
            flight: VecDeque::new(),
            arrived: VecDeque::new(),
            messages: VecDeque::new(),
            sender: Sender { established: true, layered: false, write_seq: first, snd_una: first },
            reader: Reader {
                same: true,
                established: true,
                open: true,
                layered: false,
                is_woken: true,
                comes_back: true,
                rcv_nxt: first,
                copied_seq: first,
                queued_bytes: 0,
                queued_messages: 0,
                buffer_bytes: BUFFER_BYTES,
            },
            enabled: true,
            by_edges: false,
            has_event: false,
            largest: 0,
            most: 0,
            redirected: 0,
            passed: [0; 3],
        }
    }

    fn send(&mut self, rule: Rule) {
        let most = [10, 3_000, 100_000][self.random.below(3)];
        let size = 1 + self.random.below(most) as u64;
        let range = (self.sent, self.sent + size);
        let machine = Machine { enabled: self.enabled, short_of_memory: self.random.one_in(50) };
        match rule(machine, size, self.sender, Some(self.reader)) {
            Verdict::Redirect => {
                self.reader.queued_messages = messages_with(self.reader);
                self.messages.push_back(range);
                self.reader.queued_bytes += size;
                self.redirected += 1;
                self.has_event = true;
            }
            // TCP does not take more than it has room for; it takes it later.
            Verdict::Pass(_) if self.in_tcp() + size > 4 * BUFFER_BYTES => return,
            Verdict::Pass(reason) => {
                self.flight.push_back(range);
                self.sender.write_seq = self.sender.write_seq.wrapping_add(size as u32);
                self.passed[reason as usize] += 1;
            }
        }
        self.sent += size;
        let queued = self.messages.iter().map(|(begin, end)| end - begin).sum();
        self.largest = self.largest.max(queued);
        self.most = self.most.max(self.messages.len());
    }

    fn in_tcp(&self) -> u64 {
        self.flight.iter().chain(&self.arrived).map(|(begin, end)| end - begin).sum()
    }

    /// A segment arrives; its acknowledgement comes with it, or later.
    fn arrive(&mut self) {
        if let Some((begin, end)) = self.flight.pop_front() {
            self.arrived.push_back((begin, end));
            self.reader.queued_bytes += end - begin;
            self.reader.rcv_nxt = self.reader.rcv_nxt.wrapping_add((end - begin) as u32);
            self.has_event = true;
        }
        if self.random.one_in(2) {
            self.sender.snd_una = self.reader.rcv_nxt;
        }
    }

    /// As the kernel does: messages first, and not beyond the last of them. Says whether what is read is
    /// next in order.
    fn receive(&mut self) -> bool {
        if self.by_edges && !self.has_event {
            return true;
        }
        let by_tcp = self.messages.is_empty();
        let queue = if by_tcp { &mut self.arrived } else { &mut self.messages };
        let mut room = 1 + self.random.below(40_000) as u64;
        while room > 0
            && let Some((begin, end)) = queue.front_mut()
        {
            let taken = room.min(*end - *begin);
            if *begin != self.read {
                return false;
            }
            *begin += taken;
            if begin == end {
                queue.pop_front();
            }
            room -= taken;
            self.read += taken;
            self.reader.queued_bytes -= taken;
            if by_tcp {
                self.reader.copied_seq = self.reader.copied_seq.wrapping_add(taken as u32);
            }
        }
        self.has_event = room == 0;
        true
    }

    /// Whether all came in order.
    fn run(&mut self, rule: Rule) -> bool {
        // Some readers are slow, for a while.
        let mut eager = 3;
        for _ in 0..STEPS {
            if self.random.one_in(200) {
                eager = 1 + self.random.below(6);
                self.enabled = !self.random.one_in(5);
            }
            match self.random.below(4 + eager) {
                0..=1 => self.send(rule),
                2..=3 => self.arrive(),
                _ if !self.receive() => return false,
                _ => {}
            }
        }
        while !self.flight.is_empty() || self.read != self.sent {
            self.arrive();
            let before = (self.flight.len(), self.read);
            if !self.receive() || self.by_edges && !self.has_event && before == (0, self.read) {
                return false;
            }
        }
        self.read == self.sent
    }
}

type Rule = fn(Machine, u64, Sender, Option<Reader>) -> Verdict;

#[test]
fn bytes_come_in_their_order_and_the_queue_keeps_its_bounds() {
    let (mut redirected, mut passed) = (0, [0; 3]);
    for seed in 0..SEEDS {
        let mut connection = Connection::of_seed(seed);
        assert!(connection.run(decide), "seed {seed}: out of order at {}", connection.read);
        assert!(connection.largest <= BUFFER_BYTES / 2, "seed {seed}: {}", connection.largest);
        assert!(connection.most <= QUEUED_MESSAGES_MAX as usize, "seed {seed}");
        redirected += connection.redirected;
        for (sum, count) in passed.iter_mut().zip(connection.passed) {
            *sum += count;
        }
    }
    assert!(redirected > 2_000, "{redirected}");
    assert!(passed.iter().all(|count| *count > 100), "{passed:?}");
}

fn without_order(machine: Machine, size: u64, sender: Sender, reader: Option<Reader>) -> Verdict {
    match decide(machine, size, sender, reader) {
        Verdict::Pass(Reason::Unread) => Verdict::Redirect,
        other => other,
    }
}

fn without_reading(machine: Machine, size: u64, sender: Sender, reader: Option<Reader>) -> Verdict {
    // What arrived counts as read.
    let reader = reader.map(|reader| Reader { copied_seq: reader.rcv_nxt, ..reader });
    decide(machine, size, sender, reader)
}

fn without_arrival(machine: Machine, size: u64, sender: Sender, reader: Option<Reader>) -> Verdict {
    // What arrived has been read; what is under way is forgotten.
    let sender = Sender { write_seq: sender.snd_una, ..sender };
    decide(machine, size, sender, reader)
}

#[test]
fn each_part_of_the_rule_of_order_is_needed() {
    for rule in [without_order as Rule, without_reading, without_arrival] {
        assert!((0..SEEDS).any(|seed| !Connection::of_seed(seed).run(rule)));
    }
}

#[test]
fn a_reader_that_waits_for_edges_misses_bytes_unless_all_go_through_tcp() {
    let run = |seed, comes_back| {
        let mut connection = Connection::of_seed(seed);
        connection.by_edges = true;
        connection.reader.comes_back = comes_back;
        connection.run(decide)
    };
    assert!((0..20 * SEEDS).any(|seed| !run(seed, true)));
    assert!((0..SEEDS).all(|seed| run(seed, false)));
}

#[test]
fn a_reader_that_never_reads_stops_at_the_bound() {
    for size in [1, 700, 64 << 10] {
        let mut connection = Connection::of_seed(1);
        let on = Machine { enabled: true, short_of_memory: false };
        let mut count = 0;
        while decide(on, size, connection.sender, Some(connection.reader)) == Verdict::Redirect {
            connection.reader.queued_messages = messages_with(connection.reader);
            connection.reader.queued_bytes += size;
            count += 1;
        }
        let bytes = connection.reader.queued_bytes;
        assert!(count <= QUEUED_MESSAGES_MAX && bytes <= BUFFER_BYTES / 2, "{count}, {bytes}");
        let full = decide(on, size, connection.sender, Some(connection.reader));
        assert_eq!(full, Verdict::Pass(Reason::Full));
    }
}

#[test]
fn what_is_not_certain_is_passed() {
    let Connection { sender, reader, .. } = Connection::of_seed(7);
    let on = Machine { enabled: true, short_of_memory: false };
    assert_eq!(decide(on, 1, sender, Some(reader)), Verdict::Redirect);
    let other = Verdict::Pass(Reason::Other);
    assert_eq!(decide(on, 1, sender, None), other);
    assert_eq!(decide(Machine { enabled: false, ..on }, 1, sender, Some(reader)), other);
    for sender in [Sender { established: false, ..sender }, Sender { layered: true, ..sender }] {
        assert_eq!(decide(on, 1, sender, Some(reader)), other);
    }
    for reader in [
        Reader { same: false, ..reader },
        Reader { established: false, ..reader },
        Reader { open: false, ..reader },
        Reader { layered: true, ..reader },
        Reader { is_woken: false, ..reader },
        Reader { comes_back: false, ..reader },
    ] {
        assert_eq!(decide(on, 1, sender, Some(reader)), other);
    }
    let short = Machine { short_of_memory: true, ..on };
    assert_eq!(decide(short, 1, sender, Some(reader)), Verdict::Pass(Reason::Full));
}
