//! Two loops' intakes over one simulated, seeded kernel: connections that are read or not, cross
//! between the loops, end, and leave their places to others; buffers that run out; requests that
//! end for no reason.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use hawser_core::ids::Slot;
use hawser_sys::ring::{BUFFER_BYTES, BUFFERS, Completion, Waited};

use super::table::Requests;
use super::*;

const ENOBUFS: i32 = 105;
const ECANCELED: i32 = 125;
/// Few, so that they run out.
const FREE_BUFFERS: usize = 5;

/// xorshift64*.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// The sockets of both loops.
struct Kernel {
    dice: Dice,
    sockets: BTreeMap<RawFd, Socket>,
}

#[derive(Default)]
struct Socket {
    inbound: VecDeque<u8>,
    closed: bool,
}

/// A ring of this kernel.
struct FakeRing {
    kernel: Rc<RefCell<Kernel>>,
    receives: BTreeMap<u64, RawFd>,
    polls: BTreeMap<u64, RawFd>,
    cancels: Vec<u64>,
    completions: Vec<Completion>,
    memory: Vec<Vec<u8>>,
    free: Vec<u16>,
}

impl FakeRing {
    fn new(kernel: &Rc<RefCell<Kernel>>) -> Self {
        Self {
            kernel: kernel.clone(),
            receives: BTreeMap::new(),
            polls: BTreeMap::new(),
            cancels: Vec::new(),
            completions: Vec::new(),
            memory: vec![Vec::new(); usize::from(BUFFERS)],
            free: (0..FREE_BUFFERS as u16).collect(),
        }
    }

    fn complete(&mut self, data: u64, result: i32, buffer: Option<u16>, more: bool) {
        self.completions.push(Completion { data, result, buffer, more });
    }
}

impl Requests for Rc<RefCell<FakeRing>> {
    fn receive(&mut self, socket: BorrowedFd<'_>, data: u64) {
        let before = self.borrow_mut().receives.insert(data, socket.as_raw_fd());
        assert_eq!(before, None, "two receives of one name");
    }

    fn poll_readable(&mut self, _fd: &EventFd, _data: u64) {}

    fn poll(&mut self, socket: RawFd, _waited: Waited, data: u64) {
        self.borrow_mut().polls.insert(data, socket);
    }

    fn cancel(&mut self, data: u64) {
        self.borrow_mut().cancels.push(data);
    }

    fn submit_and_wait(&mut self, _timeout: Duration) -> io::Result<()> {
        let ring = &mut *self.borrow_mut();
        let kernel = ring.kernel.clone();
        let kernel = &mut *kernel.borrow_mut();
        let Kernel { dice, sockets } = kernel;
        for (data, fd) in ring.receives.clone() {
            let Some(socket) = sockets.get_mut(&fd) else { continue };
            while !socket.inbound.is_empty() {
                let Some(buffer) = ring.free.pop() else {
                    ring.receives.remove(&data);
                    ring.complete(data, -ENOBUFS, None, false);
                    break;
                };
                let count = (1 + dice.below(BUFFER_BYTES)).min(socket.inbound.len());
                ring.memory[usize::from(buffer)] = socket.inbound.drain(..count).collect();
                let more = !dice.one_in(10);
                ring.complete(data, i32::try_from(count).unwrap(), Some(buffer), more);
                if !more {
                    ring.receives.remove(&data);
                    break;
                }
            }
            if socket.closed && socket.inbound.is_empty() && ring.receives.remove(&data).is_some() {
                ring.complete(data, 0, None, false);
            }
        }
        for (data, fd) in ring.polls.clone() {
            if sockets.get(&fd).is_none_or(|socket| socket.closed) {
                ring.polls.remove(&data);
                ring.complete(data, 0x2000, None, false); // POLLRDHUP
            }
        }
        if dice.one_in(3) {
            return Ok(()); // cancels take effect in a later call
        }
        for data in std::mem::take(&mut ring.cancels) {
            let canceled = ring.receives.remove(&data).or_else(|| ring.polls.remove(&data));
            if canceled.is_some() {
                ring.complete(data, -ECANCELED, None, false);
            }
        }
        Ok(())
    }

    fn take(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.borrow_mut().completions);
    }

    fn bytes(&self, _buffer: u16, _count: usize) -> &[u8] {
        unreachable!("`Held` has it")
    }

    fn give_back(&mut self, buffer: u16) {
        let mut ring = self.borrow_mut();
        assert!(!ring.free.contains(&buffer), "given back twice");
        ring.free.push(buffer);
    }
}

/// The same; it lends bytes, which a `RefCell` cannot.
struct Held {
    ring: Rc<RefCell<FakeRing>>,
    memory: Vec<Vec<u8>>,
}

impl Requests for Held {
    fn receive(&mut self, socket: BorrowedFd<'_>, data: u64) {
        self.ring.receive(socket, data);
    }
    fn poll_readable(&mut self, fd: &EventFd, data: u64) {
        self.ring.poll_readable(fd, data);
    }
    fn poll(&mut self, socket: RawFd, waited: Waited, data: u64) {
        self.ring.poll(socket, waited, data);
    }
    fn cancel(&mut self, data: u64) {
        self.ring.cancel(data);
    }
    fn submit_and_wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.ring.submit_and_wait(timeout)
    }
    fn take(&mut self, into: &mut Vec<Completion>) {
        self.ring.take(into);
        for buffer in into.iter().filter_map(|completion| completion.buffer) {
            let bytes = self.ring.borrow().memory[usize::from(buffer)].clone();
            self.memory[usize::from(buffer)] = bytes;
        }
    }
    fn bytes(&self, buffer: u16, count: usize) -> &[u8] {
        &self.memory[usize::from(buffer)][..count]
    }
    fn give_back(&mut self, buffer: u16) {
        self.ring.give_back(buffer);
    }
}

/// A connection, as an engine has it.
struct Connection {
    /// Only its number counts.
    socket: UnixStream,
    home: usize,
    place: Place,
    sent: usize,
    received: usize,
    ended: bool,
    reads: bool,
    /// The engine knows that there is more.
    readable: bool,
    /// It knows that the end comes: a short read is not the last one.
    hung_up: bool,
}

fn byte(at: usize) -> u8 {
    (at * 31 % 251) as u8
}

struct World {
    kernel: Rc<RefCell<Kernel>>,
    rings: [Rc<RefCell<FakeRing>>; 2],
    intakes: [Intake<Held>; 2],
    connections: BTreeMap<u32, Connection>,
    crossings: VecDeque<(usize, Crossing)>,
    generation: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let kernel = Rc::new(RefCell::new(Kernel { dice, sockets: BTreeMap::new() }));
        let rings = [0; 2].map(|_| Rc::new(RefCell::new(FakeRing::new(&kernel))));
        let intakes = [0, 1].map(|at: u16| {
            let ring = rings[usize::from(at)].clone();
            Intake::new(LoopId(at), Held { ring, memory: vec![Vec::new(); usize::from(BUFFERS)] })
        });
        Self {
            kernel,
            rings,
            intakes,
            connections: BTreeMap::new(),
            crossings: VecDeque::new(),
            generation: 0,
        }
    }

    fn roll(&self, bound: usize) -> usize {
        self.kernel.borrow_mut().dice.below(bound)
    }

    fn token(&mut self, index: u32) -> Token {
        self.generation += 1;
        Token::Backend(Slot { index, generation: self.generation })
    }

    fn open(&mut self, index: u32) {
        let (socket, _) = UnixStream::pair().unwrap();
        self.kernel.borrow_mut().sockets.insert(socket.as_raw_fd(), Socket::default());
        let (home, token) = (self.roll(2), self.token(index));
        let place = self.intakes[home].watch(socket.as_fd(), token);
        let connection = Connection {
            socket,
            home,
            place,
            sent: 0,
            received: 0,
            ended: false,
            reads: true,
            readable: false,
            hung_up: false,
        };
        self.connections.insert(index, connection);
    }

    fn close(&mut self, index: u32) {
        let Some(connection) = self.connections.remove(&index) else { return };
        self.intakes[connection.home].forget(connection.place);
        // What `Wire` does: the request ends, wherever it is.
        let fd = connection.socket.as_raw_fd();
        for ring in &self.rings {
            let data: Vec<u64> = ring
                .borrow()
                .receives
                .iter()
                .filter_map(|(data, at)| (*at == fd).then_some(*data))
                .collect();
            for data in data {
                ring.borrow_mut().receives.remove(&data);
                ring.borrow_mut().complete(data, 0, None, false);
            }
        }
        self.kernel.borrow_mut().sockets.remove(&fd);
    }

    fn send(&mut self, index: u32, count: usize) {
        let Some(connection) = self.connections.get_mut(&index) else { return };
        let mut kernel = self.kernel.borrow_mut();
        let socket = kernel.sockets.get_mut(&connection.socket.as_raw_fd()).unwrap();
        if !socket.closed {
            socket.inbound.extend((connection.sent..connection.sent + count).map(byte));
            connection.sent += count;
        }
    }

    /// Moves it to the other loop: given by its home, or taken by the other.
    fn cross(&mut self, index: u32, taken: bool) {
        // (A place that is left is free only when its loop has let go of the connection.)
        let token = self.token(index + 4 * (1 + self.generation % 64));
        let Some(connection) = self.connections.get_mut(&index) else { return };
        let from = connection.home;
        let to = 1 - from;
        let fd = connection.socket.as_fd();
        if taken {
            let passage = self.intakes[to].passage();
            let (place, to_loop) = (connection.place, self.intakes[to].id());
            let release = Crossing::Release { place, to: to_loop, passage };
            self.crossings.push_back((from, release));
            connection.place = self.intakes[to].expect(fd, token, passage);
        } else {
            let received = self.intakes[from].detach(connection.place);
            connection.place = match received.is_empty() {
                true => self.intakes[to].watch(fd, token),
                false => self.intakes[to].watch_with(fd, token, received),
            };
        }
        connection.home = to;
        // The old and the new loop may not both receive.
    }

    fn deliver_crossing(&mut self) {
        let Some((at, crossing)) = self.crossings.pop_front() else { return };
        match crossing {
            Crossing::Release { place, to, passage } => {
                let sent = self.intakes[at].release(place, to, passage);
                self.crossings.extend(sent.map(|(to, crossing)| (usize::from(to.0), crossing)));
            }
            Crossing::Arrived { passage, received } => {
                let sent = self.intakes[at].arrived(passage, received);
                self.crossings.extend(sent.map(|(to, crossing)| (usize::from(to.0), crossing)));
            }
        }
    }

    /// As [`read`] does it.
    fn read(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(&index) else { return };
        let intake = &mut self.intakes[connection.home];
        let mut buf = vec![0; 1 + self.kernel.borrow_mut().dice.below(9000)];
        loop {
            let hung_up = connection.hung_up;
            let (filled, more) = match intake.take(connection.place, &mut buf) {
                Taken::Bytes(filled) => (filled, filled == buf.len() || hung_up),
                Taken::Nothing => (0, false),
                Taken::Ended(_) => {
                    connection.ended = true;
                    (0, false)
                }
                Taken::Direct(filled) => {
                    let mut kernel = self.kernel.borrow_mut();
                    let fd = connection.socket.as_raw_fd();
                    let socket = kernel.sockets.get_mut(&fd).unwrap();
                    let count = socket.inbound.len().min(buf.len() - filled);
                    for (to, from) in buf[filled..].iter_mut().zip(socket.inbound.drain(..count)) {
                        *to = from;
                    }
                    if filled + count == buf.len() {
                        (filled + count, true)
                    } else if count == 0 && socket.closed {
                        intake.note_end(connection.place, Ended::Closed);
                        (filled, false)
                    } else {
                        intake.receive(connection.place, connection.socket.as_fd());
                        (filled + count, hung_up && filled + count > 0)
                    }
                }
            };
            for got in &buf[..filled] {
                assert_eq!(*got, byte(connection.received), "at {}", connection.received);
                connection.received += 1;
            }
            if !more {
                connection.readable = false;
                return;
            }
        }
    }

    fn turn(&mut self, at: usize) {
        let wake = EventFd::new().unwrap();
        self.intakes[at].wait(Duration::ZERO, &wake).unwrap();
        while let Some(event) = self.intakes[at].next() {
            let token = Token::from_bits(event.data);
            let (Token::Client(slot) | Token::Backend(slot)) = token;
            let index = slot.index % 4;
            let known = self.connections.get_mut(&index);
            if let Some(connection) = known.filter(|c| c.home == at && c.place.token == token)
                && (event.readable || event.hangup)
            {
                connection.hung_up |= event.hangup;
                if connection.reads {
                    self.read(index);
                } else {
                    connection.readable = true;
                }
            }
            self.intakes[at].settle(token);
        }
        assert_eq!(self.rings[at].borrow().free.len(), FREE_BUFFERS, "a buffer is held");
        for intake in &self.intakes {
            assert!(intake.kept_max() <= KEPT_BYTES_MAX + 2 * FREE_BUFFERS * BUFFER_BYTES);
        }
        self.one_reader_each();
    }

    fn one_reader_each(&self) {
        let mut readers: Vec<RawFd> = self
            .rings
            .iter()
            .flat_map(|r| r.borrow().receives.values().copied().collect::<Vec<_>>())
            .collect();
        let count = readers.len();
        readers.sort_unstable();
        readers.dedup();
        assert_eq!(readers.len(), count, "two receives read one socket");
    }

    fn step(&mut self) {
        let index = self.roll(4) as u32;
        match self.roll(12) {
            0..=3 => {
                let count = 1 + self.roll(if self.roll(6) == 0 { 30_000 } else { 300 });
                self.send(index, count);
            }
            4 if !self.connections.contains_key(&index) => self.open(index),
            5 if self.roll(8) == 0 => self.close(index),
            6 if self.roll(10) == 0 => {
                if let Some(connection) = self.connections.get(&index) {
                    let fd = connection.socket.as_raw_fd();
                    self.kernel.borrow_mut().sockets.get_mut(&fd).unwrap().closed = true;
                }
            }
            7 => {
                let taken = self.roll(2) == 0;
                // One that has not arrived may be taken on, and is not given away.
                if self.crossings.is_empty() || (taken && self.crossings.len() < 6) {
                    self.cross(index, taken);
                }
            }
            8 => self.deliver_crossing(),
            9 => self.reads(index),
            _ => {
                let at = self.roll(2);
                self.turn(at);
            }
        }
    }

    /// The engine stops reading one, or goes on.
    fn reads(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(&index) else { return };
        connection.reads = !connection.reads;
        if connection.reads && connection.readable {
            self.read(index);
        }
    }

    /// The end: all that was sent must have come.
    fn finish(&mut self) {
        for index in 0..4 {
            if self.connections.get(&index).is_some_and(|connection| !connection.reads) {
                self.reads(index);
            }
        }
        for _ in 0..100 {
            self.deliver_crossing();
            self.turn(0);
            self.turn(1);
        }
        for connection in self.connections.values() {
            assert_eq!(connection.received, connection.sent);
            let closed = self.kernel.borrow().sockets[&connection.socket.as_raw_fd()].closed;
            assert_eq!(connection.ended, closed);
        }
    }
}

#[test]
fn bytes_come_once_and_in_order_whatever_happens_to_requests() {
    for seed in 1..=400 {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for index in 0..4 {
                world.open(index);
            }
            for _ in 0..600 {
                world.step();
            }
            world.finish();
        });
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

/// Its former home's ring may still take bytes of it.
#[test]
fn one_that_is_given_away_before_it_has_arrived_is_broken() {
    let mut world = World::new(1);
    world.open(0);
    let home = world.connections[&0].home;
    world.cross(0, true);
    let place = world.connections[&0].place;
    assert!(world.intakes[1 - home].detach(place).is_broken(), "who is next is told at once");
    world.deliver_crossing();
    world.deliver_crossing();
    assert!(world.crossings.is_empty() && world.rings[home].borrow().receives.is_empty());
}

#[test]
fn a_place_is_packed_into_eight_bytes_and_comes_out_again() {
    for token in [Token::Client, Token::Backend] {
        for (index, generation) in [(0, 0), (7, 1), (u32::MAX >> 4, 0xffff)] {
            let place = Place { home: LoopId(1023), token: token(Slot { index, generation }) };
            assert_eq!(inlet::packed_and_unpacked(place), Some(place));
        }
    }
    assert_eq!(size_of::<Inlet>(), 8);
}

#[test]
fn a_completion_for_a_place_that_is_used_again_changes_nothing_there() {
    let mut world = World::new(1);
    world.open(0);
    world.send(0, 10);
    // It has been received, and the connection is closed before the loop looks.
    let home = world.connections[&0].home;
    world.rings[home].submit_and_wait(Duration::ZERO).unwrap();
    let stale = std::mem::take(&mut world.rings[home].borrow_mut().completions);
    assert_eq!(stale.len(), 1);
    world.close(0);
    world.open(0);
    while world.connections[&0].home != home {
        world.close(0);
        world.open(0);
    }
    world.rings[home].borrow_mut().completions.extend(stale);
    world.turn(home);
    assert_eq!(world.connections[&0].received, 0);
}
