//! Hubs and boards with a server between them, messages in any order that the program allows:
//! each pair of ends keeps its own order, and nothing else does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;
use crate::ids::{LoopId, Slot};

struct Rng(u64);

impl Rng {
    fn below(&mut self, of: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % of as u64) as usize
    }
}

fn channel(number: usize) -> Channel {
    Channel::new(format!("channel \"{number}\"").as_bytes())
}

const CHANNELS: usize = 4;
const LOOPS: u16 = 3;

/// The listening connection's server process, which works as async.c does.
#[derive(Default)]
struct Server {
    listens: BTreeSet<Vec<u8>>,
    /// Committed, and not read from the queue yet.
    unread: VecDeque<(Channel, usize)>,
    to_hub: VecDeque<FromServer>,
    queries: VecDeque<Vec<u8>>,
}

enum FromServer {
    Notified(Channel, usize),
    Ready,
}

impl Server {
    fn read_queue(&mut self) {
        for (channel, number) in self.unread.drain(..) {
            if self.listens.contains(channel.as_bytes()) {
                self.to_hub.push_back(FromServer::Notified(channel, number));
            }
        }
    }

    fn run_query(&mut self) {
        let Some(text) = self.queries.pop_front() else { return };
        let text = String::from_utf8(text).unwrap();
        for statement in text.split_terminator(';') {
            let (verb, name) = statement.split_once(' ').unwrap();
            let name = name.strip_prefix('"').unwrap().strip_suffix('"').unwrap();
            let name = name.replace("\"\"", "\"").into_bytes();
            match verb {
                "LISTEN" => assert!(self.listens.insert(name), "listened twice"),
                "UNLISTEN" => assert!(self.listens.remove(&name), "not listened"),
                other => panic!("{other}"),
            }
        }
        self.read_queue();
        self.to_hub.push_back(FromServer::Ready);
    }
}

enum ToLoop {
    Notified(Channel, usize),
    /// And how often the connection had been lost then.
    Passed(Claimant, usize),
    Failed(Claimant),
    Lost,
}

#[derive(Default)]
struct Listener {
    channels: BTreeSet<usize>,
    /// The notification since which each channel is known to be in force.
    since: BTreeMap<usize, usize>,
    /// What it waits for: the serial, the channel that it joins, and how much had been committed.
    waits: Option<(u32, Option<usize>, usize)>,
    received: Vec<(usize, usize)>,
}

#[derive(Default)]
struct OneLoop {
    board: Board,
    clients: BTreeMap<Slot, Listener>,
}

struct World {
    rng: Rng,
    hub: Hub,
    open: bool,
    opening: bool,
    again: bool,
    server: Server,
    loops: Vec<OneLoop>,
    to_hub: Vec<VecDeque<Ask>>,
    to_loop: Vec<VecDeque<ToLoop>>,
    /// All that has been committed.
    log: Vec<usize>,
    next_slot: u32,
    next_serial: u32,
    passed: usize,
    losses: usize,
}

impl World {
    fn new(seed: u64, again: bool) -> Self {
        Self {
            rng: Rng(seed * 2 + 1),
            hub: Hub::default(),
            open: false,
            opening: false,
            again,
            server: Server::default(),
            loops: (0..LOOPS).map(|_| OneLoop::default()).collect(),
            to_hub: (0..LOOPS).map(|_| VecDeque::new()).collect(),
            to_loop: (0..LOOPS).map(|_| VecDeque::new()).collect(),
            log: Vec::new(),
            next_slot: 0,
            next_serial: 0,
            passed: 0,
            losses: 0,
        }
    }

    fn work(&mut self) {
        while let Some(step) = self.hub.next_step() {
            match step {
                Step::Open => self.opening = true,
                Step::Query(text) => self.server.queries.push_back(text),
            }
        }
    }

    fn pass(&mut self, claimants: Vec<(LoopId, Claimant)>) {
        for (to, claimant) in claimants {
            let message = ToLoop::Passed(claimant, self.losses);
            self.to_loop[usize::from(to.0)].push_back(message);
        }
    }

    fn fail(&mut self, claimants: Vec<(LoopId, Claimant)>) {
        for (to, claimant) in claimants {
            self.to_loop[usize::from(to.0)].push_back(ToLoop::Failed(claimant));
        }
    }

    /// A random client of a loop does something.
    fn client_acts(&mut self) {
        let at = self.rng.below(usize::from(LOOPS));
        let one = &mut self.loops[at];
        if one.clients.len() < 4 && self.rng.below(3) == 0 {
            let slot = Slot { index: self.next_slot, generation: 0 };
            self.next_slot += 1;
            one.clients.insert(slot, Listener::default());
        }
        let slots: Vec<Slot> = one.clients.keys().copied().collect();
        if slots.is_empty() {
            return;
        }
        let slot = slots[self.rng.below(slots.len())];
        let Some(client) = one.clients.get_mut(&slot) else { return };
        let number = self.rng.below(CHANNELS);
        self.next_serial += 1;
        let ticket = Ticket { slot, serial: self.next_serial };
        let mut ask = Ask::default();
        match self.rng.below(5) {
            0 | 1 if client.waits.is_none() && !client.channels.contains(&number) => {
                client.channels.insert(number);
                client.waits = Some((ticket.serial, Some(number), self.log.len()));
                if one.board.add(slot, &channel(number)) {
                    ask.listen.push(channel(number));
                }
                ask.claimant = Some(Claimant::Client(ticket));
            }
            2 if client.waits.is_none() && !client.channels.is_empty() => {
                client.waits = Some((ticket.serial, None, self.log.len()));
                ask.claimant = Some(Claimant::Client(ticket));
            }
            3 if client.waits.is_none() && client.channels.remove(&number) => {
                client.since.remove(&number);
                if one.board.remove(slot, &channel(number)) {
                    ask.unlisten.push(channel(number));
                }
            }
            4 if self.rng.below(4) == 0 => {
                // It leaves, whatever it waits for.
                for number in std::mem::take(&mut client.channels) {
                    if one.board.remove(slot, &channel(number)) {
                        ask.unlisten.push(channel(number));
                    }
                }
                one.clients.remove(&slot);
            }
            _ => return,
        }
        self.to_hub[at].push_back(ask);
    }

    fn loop_takes(&mut self, at: usize) {
        let one = &mut self.loops[at];
        match self.to_loop[at].pop_front() {
            None => {}
            Some(ToLoop::Notified(channel, number)) => {
                for slot in one.board.clients(&channel) {
                    let of = self.log[number];
                    one.clients.get_mut(&slot).unwrap().received.push((of, number));
                }
            }
            Some(ToLoop::Failed(Claimant::Client(ticket))) => {
                // It now listens on its own backend to what it joined.
                let Some(client) = one.clients.get_mut(&ticket.slot) else { return };
                let Some((serial, joined, _)) = client.waits else { return };
                if serial != ticket.serial {
                    return;
                }
                client.waits = None;
                let Some(number) = joined else { return };
                client.channels.remove(&number);
                if one.board.remove(ticket.slot, &channel(number)) {
                    let unlisten = vec![channel(number)];
                    self.to_hub[at].push_back(Ask { unlisten, ..Ask::default() });
                }
            }
            Some(ToLoop::Passed(Claimant::Client(ticket), losses)) => {
                let Some(client) = one.clients.get_mut(&ticket.slot) else { return };
                let Some((serial, joined, committed)) = client.waits else { return };
                if serial != ticket.serial {
                    return;
                }
                client.waits = None;
                self.passed += 1;
                // All that was committed before it asked, on channels in force, has come.
                for (&of, &since) in &client.since {
                    let due: Vec<usize> =
                        (since..committed).filter(|&n| self.log[n] == of).collect();
                    let got: Vec<usize> = client
                        .received
                        .iter()
                        .filter(|&&(channel, n)| channel == of && n >= since && n < committed)
                        .map(|&(_, n)| n)
                        .collect();
                    assert_eq!(got, due, "lost, twice, or out of order");
                }
                if let Some(number) = joined
                    && losses == self.losses
                {
                    client.since.insert(number, self.log.len());
                }
            }
            Some(
                ToLoop::Failed(Claimant::Backend(_)) | ToLoop::Passed(Claimant::Backend(_), _),
            ) => {}
            Some(ToLoop::Lost) => {
                for slot in one.board.all_clients() {
                    let Some(client) = one.clients.remove(&slot) else { continue };
                    let mut ask = Ask::default();
                    for number in client.channels {
                        if one.board.remove(slot, &channel(number)) {
                            ask.unlisten.push(channel(number));
                        }
                    }
                    self.to_hub[at].push_back(ask);
                }
                assert!(one.board.is_empty());
            }
        }
    }

    fn hub_takes(&mut self, at: usize) {
        if let Some(ask) = self.to_hub[at].pop_front() {
            self.hub.ask(LoopId(at as u16), ask);
            self.work();
        }
    }

    fn hub_reads(&mut self) {
        match self.server.to_hub.pop_front() {
            None => {}
            Some(FromServer::Notified(channel, number)) => {
                for to in self.hub.loops(&channel).collect::<Vec<_>>() {
                    let message = ToLoop::Notified(channel.clone(), number);
                    self.to_loop[usize::from(to.0)].push_back(message);
                }
            }
            Some(FromServer::Ready) => {
                let tickets = self.hub.answered();
                self.pass(tickets);
                self.work();
            }
        }
    }

    fn connection_changes(&mut self) {
        if self.opening {
            self.opening = false;
            if self.rng.below(4) == 0 {
                let failed = self.hub.open_failed();
                self.fail(failed);
            } else {
                self.open = true;
                self.server = Server::default();
                self.hub.opened(channel(99));
            }
            self.work();
        }
    }

    fn tell_lost(&mut self) {
        for to in &mut self.to_loop {
            to.push_back(ToLoop::Lost);
        }
    }

    fn lose(&mut self) {
        if !self.open {
            return;
        }
        self.open = false;
        self.losses += 1;
        self.server = Server::default();
        if self.again {
            // Notifications committed meanwhile are lost, and clients get an error: they count from
            // zero again.
            for client in self.loops.iter_mut().flat_map(|one| one.clients.values_mut()) {
                client.since.clear();
            }
        } else {
            self.tell_lost();
        }
        let failed = self.hub.lost(self.again);
        if self.again {
            self.fail(failed);
        }
        self.work();
    }

    fn step(&mut self) {
        match self.rng.below(14) {
            0 | 1 => self.client_acts(),
            2 | 3 => {
                let number = self.rng.below(CHANNELS);
                self.log.push(number);
                if self.open {
                    self.server.unread.push_back((channel(number), self.log.len() - 1));
                }
            }
            4 => self.server.read_queue(),
            5 | 6 => self.server.run_query(),
            7 | 8 => self.hub_reads(),
            9 => self.connection_changes(),
            10 | 11 => {
                let at = self.rng.below(usize::from(LOOPS));
                self.hub_takes(at);
            }
            12 => {
                let at = self.rng.below(usize::from(LOOPS));
                self.loop_takes(at);
            }
            _ => {
                if self.rng.below(60) == 0 {
                    self.lose();
                }
            }
        }
    }

    /// Finishes all that is under way.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.connection_changes();
            self.server.run_query();
            self.hub_reads();
            for at in 0..usize::from(LOOPS) {
                self.hub_takes(at);
                self.loop_takes(at);
            }
        }
        let wanted: BTreeSet<Vec<u8>> = self
            .loops
            .iter()
            .flat_map(|one| one.board.channels().map(|c| c.as_bytes().to_vec()))
            .collect();
        if self.open {
            assert_eq!(self.server.listens, wanted);
        } else {
            assert!(
                wanted.is_empty() && !self.hub.is_needed(),
                "the listening connection is not opened"
            );
        }
        for client in self.loops.iter().flat_map(|one| one.clients.values()) {
            assert!(client.waits.is_none(), "waits for ever");
        }
    }
}

#[test]
fn whatever_the_order_of_messages_nothing_is_lost_or_left() {
    let (mut passed, mut losses) = (0, 0);
    for seed in 0..400 {
        let again = seed % 2 == 0;
        let mut world = World::new(seed, again);
        for _ in 0..600 {
            world.step();
        }
        world.settle();
        passed += world.passed;
        losses += world.losses;
    }
    assert!(passed > 4_000 && losses > 100, "{passed} tickets and {losses} losses show nothing");
}

#[test]
fn what_comes_while_a_query_is_under_way_goes_with_the_next() {
    let mut hub = Hub::default();
    let ticket =
        |serial| Claimant::Client(Ticket { slot: Slot { index: 1, generation: 0 }, serial });
    let ask = |number: usize, serial| Ask {
        listen: vec![channel(number)],
        unlisten: Vec::new(),
        claimant: Some(ticket(serial)),
    };
    hub.ask(LoopId(0), ask(1, 1));
    assert_eq!(hub.next_step(), Some(Step::Open));
    assert_eq!(hub.next_step(), None);
    hub.opened(channel(99));
    let text = b"LISTEN \"channel \"\"1\"\"\";".to_vec();
    assert_eq!(hub.next_step(), Some(Step::Query(text)));
    hub.ask(LoopId(0), ask(2, 2));
    hub.ask(LoopId(1), ask(2, 3));
    assert_eq!(hub.next_step(), None);
    assert_eq!(hub.answered(), [(LoopId(0), ticket(1))]);
    let text = b"LISTEN \"channel \"\"2\"\"\";".to_vec();
    assert_eq!(hub.next_step(), Some(Step::Query(text)));
    assert_eq!(hub.answered(), [(LoopId(0), ticket(2)), (LoopId(1), ticket(3))]);
    assert_eq!(hub.next_step(), None);
    // A fence is an empty query.
    hub.ask(LoopId(1), Ask { claimant: Some(ticket(4)), ..Ask::default() });
    assert_eq!(hub.next_step(), Some(Step::Query(Vec::new())));
}

#[test]
fn more_channels_than_one_query_takes_hold_their_ticket_back() {
    let mut hub = Hub::default();
    hub.ask(
        LoopId(0),
        Ask {
            listen: (0..=hub::CHANNELS_A_QUERY_MAX).map(channel).collect(),
            unlisten: Vec::new(),
            claimant: Some(Claimant::Backend(Slot { index: 1, generation: 0 })),
        },
    );
    assert_eq!(hub.next_step(), Some(Step::Open));
    hub.opened(channel(99_999));
    assert!(matches!(hub.next_step(), Some(Step::Query(_))));
    assert_eq!(hub.answered(), []);
    assert!(matches!(hub.next_step(), Some(Step::Query(_))));
    assert_eq!(hub.answered().len(), 1);
}

#[test]
fn a_notification_is_read_and_recognised_as_ones_own() {
    let body = b"\0\0\0\x07chan\0what\0";
    let one = Notification::read(body).unwrap();
    assert_eq!(
        (one.process, one.channel.as_bytes(), one.payload()),
        (7, &b"chan"[..], &b"what"[..])
    );
    assert_eq!(&*one.message, b"A\0\0\0\x12\0\0\0\x07chan\0what\0");
    assert_eq!(&*one.message_from(0x0040_0001), b"A\0\0\0\x12\0\x40\0\x01chan\0what\0");
    assert_eq!(Notification::read(b"\0\0\0\x07open"), None);
}

#[test]
fn a_ticket_survives_its_marker() {
    let ticket = Ticket { slot: Slot { index: 7, generation: 3 }, serial: u32::MAX };
    let written = ticket.write(LoopId(2));
    assert_eq!(Ticket::read(written.as_bytes()), Some((LoopId(2), ticket)));
    for other in ["", "2.7.3", "2.7.3.1.1", "2.7.-3.1", "x.7.3.1", "70000.1.1.1"] {
        assert_eq!(Ticket::read(other.as_bytes()), None, "{other}");
    }
}
